/* SPDX-License-Identifier: BSD-3-Clause */
// The rendezvous gives each pair of ranks a proven connection. Meanwhile every rank listens on one port and connects to
// the ranks below it.
#pragma once
#include "reception.h"
#include "settings.h"
#include <atomic>

namespace tess_gloo {

class Rendezvous {
  public:
    // `stop` ends run(); `waiting_for` tells who is missing.
    Rendezvous(Settings &, const std::string &group, int rank, int size, const std::atomic<bool> &stop,
               std::atomic<int> &waiting_for); // throws Failure
    // A connection to every other rank, [rank]. Throws Failure.
    std::vector<Socket> run();

  private:
    struct Link { // a connection to a lower rank that has not sent its proof yet
        int peer = -1;
        Socket socket;
        bool reached = false, answered = false;
        int error = 0;
        int64_t begin_ns = 0, attempt_ns = 0;
        Bytes32 expected{};
        size_t bytes = 0;
        Greeting greeting{};
        Bytes32 proof{};
    };
    void check_files() const;
    void publish();
    void fetch();
    void take_card(int peer, const Card &);
    void turn(int timeout_ms);
    void attempt(Link &);
    bool advance(Link &); // true: proven
    bool reach(Link &);
    bool read(Link &, void *to, size_t bytes);
    void answer(Link &);
    void give_up(Link &, int error);
    void check_reach(const Link &, int64_t now_ns) const;
    int missing() const;

    Settings &settings_;
    const std::string group_;
    const int rank_, size_;
    const std::atomic<bool> &stop_;
    std::atomic<int> &waiting_for_;
    Reception reception_;
    int64_t fetch_ns_;
    int n_cards_ = 0;
    std::vector<Card> cards_;  // [rank]; nranks 0: not here yet
    std::vector<Socket> done_; // [rank]
    std::list<Link> links_;
};

} // namespace tess_gloo
