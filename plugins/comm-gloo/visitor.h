/* SPDX-License-Identifier: BSD-3-Clause */
// A descriptor of ours among those that Gloo's I/O thread waits for.
#pragma once
#include <functional>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/loop.h>
#include <mutex>

namespace tess_gloo {

class Visitor : public gloo::transport::tcp::Handler {
  public:
    using Device = gloo::transport::tcp::Device;
    Visitor(const Visitor &) = delete;
    Visitor &operator=(const Visitor &) = delete;
    ~Visitor() override; // closes the descriptor; leave() comes before

  protected:
    Visitor(Device &, int fd); // takes fd; a negative one is never registered
    void enter();              // turn() may be called from here on
    void leave();              // ends calls of turn() and makes their effects visible; may be called twice
    virtual void turn() = 0;   // runs on Gloo's I/O thread when the descriptor is readable
    uint64_t read_count();     // reads a non-blocking eventfd or timerfd; 0: it has not fired
    int fd() const { return fd_; }

  private:
    // One of these is Gloo's virtual function: the first in Gloo 0.5, the second in current Gloo.
    void handleEvents(int) { take_turn(); }
    void handleEvents(gloo::transport::tcp::Loop &, int) { take_turn(); }
    void take_turn();

    Device &device_;
    const int fd_;
    bool entered_ = false;
    std::mutex turn_;
};

// Runs `call` on the device's I/O thread and waits for it; its exception comes out here.
void on_loop(gloo::transport::tcp::Device &, const std::function<void()> &call);

} // namespace tess_gloo
