/* SPDX-License-Identifier: BSD-3-Clause */
// One communicator's connections: a pair to every other rank, and slots of messages over them.
//
// All sending and receiving is done by the communicator's worker thread; only wake(), the watcher and the functions
// marked "any thread" differ. Errors are thrown as Failure.
#pragma once
#include "collective.h"
#include "settings.h"
#include "socket.h"
#include <atomic>
#include <gloo/transport/context.h>
#include <gloo/transport/unbound_buffer.h>
#include <memory>
#include <mutex>
#include <vector>

namespace tess_gloo {

using Header = kit_announcement; // all ranks must announce the same call before any data moves
// Small contributions travel behind the header, which saves the second message.
constexpr size_t kEagerBytes = 4096;
struct Message {
    Header header;
    unsigned char payload[kEagerBytes];
};

// Messages of one slot between two ranks arrive in the order they were posted. Collectives take the two data slots in
// turn, so that one can be sent while the one before it is still awaited.
enum Slot { kHeaderSlot, kDataSlot, kOtherDataSlot, kGatherSlot, kSlots };

class Mesh {
  public:
    Mesh(Settings &, int rank, int size, const std::atomic<bool> &stop);
    ~Mesh();
    Mesh(const Mesh &) = delete;
    Mesh &operator=(const Mesh &) = delete;

    // Meets the other ranks under the name `prefix`, and connects every pair.
    void connect(const std::string &prefix);
    int waiting_for() const { return waiting_for_; } // any thread: the rank of the last wait, -1 none

    // Any thread. Wakes the worker and the watcher out of every wait; they then see `stop`.
    void wake();
    void post_recv(Slot, int peer, void *to, size_t bytes);
    void post_send(Slot, int peer, const void *from, size_t bytes);
    void wait_recv(Slot, int peer); // one message
    void wait_sends(Slot);          // waits for every send posted on the slot so far

    // The header exchange: fill outgoing(p) for every peer, send with sizes, then await each; release before the next.
    Message &outgoing(int peer) { return sent_headers_[peer]; }
    const Message &incoming(int peer) const { return got_headers_[2 * peer + turn_]; }
    void send_header(int peer, size_t payload_bytes);
    void await_header(int peer) {
        waiting_for_ = peer;
        wait_recv(kHeaderSlot, peer);
    }
    // After a failure: true if a peer's header arrives before its connection ends and before lose_patience().
    bool header_came(int peer);
    void release_headers();

    // Goodbye: sent to all as the last message; after await_byes every connection may close in any order.
    void send_byes();
    void await_byes();

    // The watcher thread: returns when a connection has broken or wake() was called.
    void watch();
    void lose_patience();
    int dead_peer(); // any thread: a rank whose connection has broken, -1 none
    // Any thread: says why the connections have ended. If `peer` is -1, it finds the peer itself.
    struct Failure why(int peer, const char *what);

    // When one of these has returned, Gloo no longer touches memory of the caller.
    void drop_data();
    void close_pairs();
    // The sockets stay open until now, so that a rank that has lost one is not taken for lost by the others.
    void release_sockets();

  private:
    using Buffer = gloo::transport::UnboundBuffer;
    class Patrol;
    void make_pairs();
    void make_buffers();
    void post_standing(int peer);
    template <class Call>
    auto guarded(int peer, Call call);
    [[noreturn]] void lost(int peer, const char *what);
    void check_stop() const;

    Settings &settings_;
    const int rank_, size_;
    const std::atomic<bool> &stop_;
    std::atomic<int> waiting_for_{ -1 };
    std::atomic<int> unreachable_{ -1 }; // the first rank whose host fell silent
    std::atomic<bool> impatient_{ false };
    int turn_ = 0;

    // They end from the last to the first: the patrol, which looks at connections; buffers; connections; their memory.
    std::vector<Message> sent_headers_, got_headers_;   // [peer], [2 * peer + turn]
    std::vector<uint64_t> words_;                       // goodbyes received and sent; a target of unanswered receives
    std::shared_ptr<gloo::transport::Context> context_; // its end closes the connections without resetting them

    // Guards the lists against wake(), and probing against itself.
    std::mutex mutex_;
    std::vector<std::unique_ptr<Buffer>> recv_[kSlots]; // [peer], so that each peer can be awaited alone
    std::unique_ptr<Buffer> send_[kSlots];
    uint64_t unsent_[kSlots] = {};
    std::vector<std::unique_ptr<Buffer>> goodbye_; // [peer]: a receive posted at the start
    std::unique_ptr<Buffer> goodbye_send_;
    // Receives that nobody answers: Gloo marks them when a connection breaks. One for the watcher to wait on, and one
    // for each peer to find out whose it was.
    std::unique_ptr<Buffer> watch_;
    std::vector<std::unique_ptr<Buffer>> probe_;
    std::vector<Socket> sockets_; // duplicates that keep the connections of closed pairs open
    std::unique_ptr<Patrol> patrol_;
};

} // namespace tess_gloo
