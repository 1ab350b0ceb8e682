/* SPDX-License-Identifier: BSD-3-Clause */
// Sockets that close themselves, and addresses.
#pragma once
#include <string>
#include <sys/socket.h>
#include <unistd.h>

namespace tess_gloo {

class Socket {
  public:
    explicit Socket(int fd = -1) : fd_(fd) {}
    ~Socket() { reset(); }
    Socket(Socket &&other) noexcept : fd_(other.release()) {}
    Socket &operator=(Socket &&other) noexcept {
        reset(other.release());
        return *this;
    }
    int get() const { return fd_; }
    explicit operator bool() const { return fd_ >= 0; }
    int release() {
        const int fd = fd_;
        fd_ = -1;
        return fd;
    }
    void reset(int fd = -1) {
        if (fd_ >= 0)
            ::close(fd_);
        fd_ = fd;
    }

  private:
    int fd_;
};

// They return 0, or -1 if the host or interface does not exist or has no address.
int find_address(const std::string &host, struct sockaddr_storage *);
int find_interface(const std::string &name, struct sockaddr_storage *);
socklen_t address_bytes(const struct sockaddr_storage &); // 0: neither IPv4 nor IPv6
std::string address_text(const struct sockaddr_storage &);

// Bytes sent or received; 0: not now; -1: the connection has ended. Never blocks, raises no signal.
ssize_t send_some(const Socket &, const void *, size_t bytes);
ssize_t recv_some(const Socket &, void *, size_t bytes);

} // namespace tess_gloo
