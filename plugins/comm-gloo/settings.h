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

    // Each of our threads calls this first. It blocks signals, moves to the helper CPUs and sets the default
    // floating-point mode.
    void enter_thread(const char *name) const;

    // Returns the address to listen on: the user's, else the one that routes to the other ranks. Throws Failure.
    struct sockaddr_storage address() const;
    int64_t silence_ns() const { return silence_ns_; } // a peer's host counts as lost after so long; 0: never

    const tess_host &host() const { return host_; }

  private:
    tess_host host_{};
    std::string interface_, hostname_;
    int64_t silence_ns_ = 0;
    std::mutex mutex_;
    std::shared_ptr<gloo::transport::Device> device_;
};

} // namespace tess_gloo
