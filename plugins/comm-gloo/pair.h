/* SPDX-License-Identifier: BSD-3-Clause */
// Gloo's pair over a connection that we made and proved ourselves (rendezvous.h). Gloo itself accepts and connects
// nothing, and what it throws on its I/O thread ends the pair instead of the process.
#pragma once
#include <exception>
#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>
#include <mutex>

namespace tess_gloo {

class ProvenPair final : public gloo::transport::tcp::Pair {
  public:
    using Context = gloo::transport::tcp::Context;
    using Device = gloo::transport::tcp::Device;

    // Call it on the device's I/O thread only (visitor.h, on_loop), so that Gloo's listening socket closes before it
    // accepts a connection.
    ProvenPair(Context *, Device *, int rank, std::chrono::milliseconds timeout);
    ~ProvenPair() override;

    void adopt(int fd); // takes it, also when it throws
    // On the I/O thread: true if the peer's host has acknowledged nothing for `limit_ms`. Time before `awake_ms` ago
    // does not count, because this process may have been stopped.
    bool is_silent(int64_t limit_ms, int64_t awake_ms);
    void give_up(const std::string &why); // ends the pair
    int share(); // duplicates its socket, so that the peer sees no end while the copy is open; -1: no socket

    // On the I/O thread: the socket was ready when the thread polled it; the pair may have ended since.
#if __has_include(<gloo/transport/tcp/listener.h>) // current Gloo
    void handleEvents(gloo::transport::tcp::Loop &loop, int events) override {
        unless_closed([&] { Pair::handleEvents(loop, events); });
    }
#else
    void handleEvents(int events) override {
        unless_closed([&] { Pair::handleEvents(events); });
    }
#endif

  protected:
    void handleReadWrite(int events) override;

  private:
    // The I/O thread takes several events at once. One may be the timer by which this pair gives up (give_up); at the
    // pair's own behind it Gloo throws.
    template <class Handle>
    void unless_closed(Handle handle) {
        try {
            handle();
        } catch (...) {
            std::unique_lock<std::mutex> lock(m_, std::try_to_lock);
            if (lock && state_ != CLOSED)
                signalException(std::current_exception());
        }
    }
};

} // namespace tess_gloo
