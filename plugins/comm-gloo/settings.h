/* SPDX-License-Identifier: BSD-3-Clause */
// The context of an opened plugin: the host's services, the options, and Gloo's device with its I/O thread.
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <sys/socket.h>
#include <tessera/plugin.h>

namespace gloo::transport {
class Device;
}

namespace tess_gloo {

class Settings {
  public:
    explicit Settings(const tess_host *host); // throws Failure for a bad setting behind the colon

    // The device is made at the first communicator and shared by all. Throws Failure.
    std::shared_ptr<gloo::transport::Device> device();

    // For each of our threads, first thing: no signals, the helper CPUs, the default floating-point mode.
    void enter_thread(const char *name) const;

    // Where to listen: what the user says, else this host's address on the way to the other ranks. Throws Failure.
    struct sockaddr_storage address() const;
    int64_t silence_ns() const { return silence_ns_; } // of a peer's host, until it counts as lost; 0: no limit

    const tess_host &host() const { return host_; }

  private:
    tess_host host_{};
    std::string interface_, hostname_;
    int64_t silence_ns_ = 0;
    std::mutex mutex_;
    std::shared_ptr<gloo::transport::Device> device_;
};

} // namespace tess_gloo
