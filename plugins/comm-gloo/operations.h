/* SPDX-License-Identifier: BSD-3-Clause */
// The collectives themselves, over a Mesh; each runs on the worker thread from beginning to end.
#pragma once
#include "mesh.h"
#include "tree_sum.h"
#include <algorithm>
#include <functional>
#include <tessera/plugin.h>
#include <vector>

namespace tess_gloo {

// Checks a call that kit_take_call made, on `rank` of `nranks`; rank is -1 when planning. The error says what is wrong.
tess_status check_collective(const tess_collective &, int rank, int nranks, tess_error *);
uint64_t scratch_bytes(const tess_collective &, int nranks);

class Operations {
  public:
    struct Part { // of an all_gather or all_to_all: where one rank's block is, in bytes
        uint64_t first, bytes;
    };
    // The collective that will run after the present one, null when none is known yet.
    using Next = std::function<const tess_collective *()>;

    Operations(Mesh *mesh, int rank, int size, Next next); // mesh null: one rank
    void run(const tess_collective &, uint64_t seq);
    // Exchanges headers alone, for an internal `op`; returns when every rank has called it.
    void meet(uint32_t op, uint64_t tag, uint64_t seq);

  private:
    struct Tree;   // the tree that a broadcast follows
    struct Split { // divides a reduction's buffer over the ranks
        uint64_t shard, total;
        uint64_t first(int rank) const { return std::min(rank * shard, total); }
        uint64_t elems(int rank) const { return std::min((rank + 1) * shard, total) - first(rank); }
    };
    Split split_of(const tess_collective &) const;
    void prepare(const tess_collective &, uint64_t seq);
    void prepare_next(const tess_collective &now);
    void send_data(const tess_collective &, Slot);
    void send_shards(const tess_collective &, Slot);
    void announce(const tess_collective *eager);
    void agree();
    void explain(int heard);
    size_t fill_payload(const tess_collective &, int peer);
    void compare(int peer);
    void eager(const tess_collective &);
    void copy_own(const tess_collective &);
    void alone(const tess_collective &);
    void exchange(const tess_collective &);
    Part sent(const tess_collective &, int peer) const;
    Part received(const tess_collective &, int peer) const;
    void hand_on(const tess_collective &, Slot, uint64_t done);
    void broadcast(const tess_collective &);
    void reduce(const tess_collective &);
    void gather_shards(const tess_collective &, const Split &, uint64_t chunk_elems);
    void reduce_chunks(const tess_collective &, const Split &, uint64_t chunk_elems);
    void combine(const tess_collective &, const void *const *leaves, void *out, uint64_t elems);

    uint64_t post(bool send, Slot, int peer, void *ptr, uint64_t bytes);
    void await(Slot, int peer, uint64_t bytes);
    int peer_at(int i) const { return (rank_ + 1 + i) % size_; } // i from 0 to size - 2: begin with the next rank

    Mesh *mesh_;
    const int rank_, size_;
    const Next next_;
    Header header_{}, announced_{}; // the running collective's; the last announced, maybe the next one's
    uint64_t prepared_ = 0;         // collectives with a seq below this one have been announced
    Slot slot_ = kDataSlot;         // carries the data of the running collective
    std::vector<const void *> leaves_;
};

} // namespace tess_gloo
