/* SPDX-License-Identifier: BSD-3-Clause */
#include "operations.h"
#include "failure.h"
#include <algorithm>

namespace tess_gloo {

// One message at most; longer ones are split, so that an abort never waits for a long read.
constexpr uint64_t kMessageBytes = 8 << 20;
// Contributions are received and summed in chunks of this many bytes, two per peer in flight.
constexpr uint64_t kChunkBytes = 512 << 10;
constexpr uint64_t kRelayBytes = 1 << 20; // broadcast hands on in pieces
constexpr uint64_t kAlign = 64;

static uint64_t round_up(uint64_t n, uint64_t to) {
    return (n + to - 1) / to * to;
}
static unsigned char *byte_at(const void *base, uint64_t bytes) {
    return const_cast<unsigned char *>(static_cast<const unsigned char *>(base)) + bytes;
}

// ---- what a call may look like --------------------------------------------------------------------

tess_status check_collective(const tess_collective &c, int rank, int nranks, tess_error *error) {
    static const kit_reach reach = { "gloo", 1u << TESS_MEM_HOST | 1u << TESS_MEM_PINNED, "host memory" };
    const tess_status s = kit_check_call(&reach, &c, -1, nranks, 0, error);
    return s < 0 || rank < 0 ? s : kit_check_call(&reach, &c, rank, nranks, scratch_bytes(c, nranks), error);
}

// ---- sizes every rank computes alike --------------------------------------------------------------

static uint64_t chunk_elems(const tess_collective &c, int nranks) {
    return std::min(kit_shard_elems(&c, nranks), kChunkBytes / tess_dtype_bytes(c.send_dtype));
}

uint64_t scratch_bytes(const tess_collective &c, int nranks) {
    if (!kit_reduces(&c) || nranks < 2 || kit_bytes(&c) <= kEagerBytes)
        return 0;
    const uint64_t chunk = chunk_elems(c, nranks), window = kit_shard_elems(&c, nranks) > chunk ? 2 : 1;
    return (nranks - 1) * window * round_up(chunk * tess_dtype_bytes(c.send_dtype), kAlign);
}

// ---- headers --------------------------------------------------------------------------------------

Operations::Operations(Mesh *mesh, int rank, int size, Next next)
    : mesh_(mesh), rank_(rank), size_(size), next_(std::move(next)), leaves_(size) {}

void Operations::compare(int peer) {
    tess_error error{};
    error.struct_size = sizeof error;
    if (kit_compare("gloo", &header_, rank_, &mesh_->incoming(peer).header, peer, &error) != TESS_OK)
        throw Failure(error);
}

// A rank that found a mismatch may have left by now, having heard all; the header that it found may still be on its way
// here. It names the cause better than a broken connection does.
void Operations::explain(int heard) {
    const int dead = mesh_->dead_peer();
    if (dead < 0)
        return;
    for (int i = 0; i < heard; i++)
        compare(peer_at(i));
    const int turn = (dead - rank_ + size_ - 1) % size_; // peer_at(turn) is dead
    if (turn >= heard && !mesh_->header_came(dead))
        return;
    compare(dead);
    for (int i = heard; i < size_ - 1; i++)
        if (i != turn && mesh_->header_came(peer_at(i)))
            compare(peer_at(i));
}

// Every rank sends every other rank the header of the collective that it is about to run …
void Operations::announce(const tess_collective *eager) {
    mesh_->wait_sends(kHeaderSlot);
    for (int i = 0; i < size_ - 1; i++) {
        const int peer = peer_at(i);
        mesh_->outgoing(peer).header = announced_;
        mesh_->send_header(peer, eager != nullptr ? fill_payload(*eager, peer) : 0);
    }
}

// … and continues when all headers agree. So every rank detects a mismatch before it uses any data.
void Operations::agree() {
    int heard = 0; // of the peers in the order of peer_at
    try {
        for (; heard < size_ - 1; heard++)
            mesh_->await_header(peer_at(heard));
    } catch (const Failure &) {
        explain(heard);
        throw;
    }
    for (int peer = 0; peer < size_; peer++)
        if (peer != rank_)
            compare(peer);
}

void Operations::meet(uint32_t op, uint64_t tag, uint64_t seq) {
    if (mesh_ == nullptr)
        return;
    announced_ = kit_announce_own(op, tag, seq);
    announce(nullptr);
    header_ = announced_;
    agree();
    mesh_->release_headers();
}

// ---- running one ----------------------------------------------------------------------------------

static Slot data_slot(uint64_t seq) {
    return seq % 2 == 0 ? kDataSlot : kOtherDataSlot;
}

void Operations::run(const tess_collective &c, uint64_t seq) {
    if (mesh_ == nullptr)
        return alone(c);
    if (prepared_ <= seq)
        prepare(c, seq);
    header_ = announced_, slot_ = data_slot(seq);
    agree();
    if (kit_bytes(&c) <= kEagerBytes) {
        eager(c);
        return mesh_->release_headers();
    }
    mesh_->release_headers();
    if (c.op == TESS_ALL_GATHER || c.op == TESS_ALL_TO_ALL || c.op == TESS_ALL_TO_ALL_V)
        exchange(c);
    else if (c.op == TESS_BROADCAST)
        broadcast(c);
    else
        reduce(c);
    mesh_->wait_sends(slot_);
}

// Begins a collective while the one before it runs: posts the sends of its data, and sends its header.
// Sends come before the header, receives when all headers have come: so every send waits for its receive, and is then
// written by Gloo's I/O thread. Were the receive there first, this thread would write it and hold the connection's
// lock. The I/O thread would then spin on incoming data that it cannot take without that lock.
void Operations::prepare(const tess_collective &c, uint64_t seq) {
    const bool small = kit_bytes(&c) <= kEagerBytes;
    if (!small)
        send_data(c, data_slot(seq));
    announced_ = kit_announce(&c, 1, seq);
    announce(small ? &c : nullptr);
    prepared_ = seq + 1;
}

// Hides the exchange of headers, half of a collective's latency, behind the data of the one before. Not when the next
// one sends what this one has yet to receive.
void Operations::prepare_next(const tess_collective &now) {
    const tess_collective *next = next_();
    if (next == nullptr)
        return;
    const auto bytes = [&](const tess_collective &c, bool all) { return kit_bytes(&c) * (all ? size_ : 1); };
    const bool sends_all = next->op == TESS_REDUCE_SCATTER || next->op == TESS_ALL_TO_ALL;
    const bool receives_all = now.op == TESS_ALL_GATHER || now.op == TESS_ALL_TO_ALL;
    // The largest type bounds what a reduction writes.
    const uint64_t written = receives_all ? bytes(now, true) : now.count * sizeof(double);
    if (next->op != TESS_BARRIER && kit_overlap(next->send, bytes(*next, sends_all), now.recv, written))
        return;
    prepare(*next, header_.seq + 1);
}

void Operations::combine(const tess_collective &c, const void *const *leaves, void *out, uint64_t elems) {
    const kit_reduction r = { c.redop, c.send_dtype, c.recv_dtype, (c.flags & KIT_ADD) != 0, 0, c.scale };
    kit_tree_sum(&r, leaves, size_, out, elems);
}

static void copy_bytes(void *to, const void *from, uint64_t bytes) {
    if (bytes > 0 && to != from && to != nullptr)
        memcpy(to, from, bytes);
}

void Operations::alone(const tess_collective &c) {
    if (c.op == TESS_BARRIER || c.count == 0)
        return;
    const void *leaf = c.send;
    if (kit_reduces(&c))
        combine(c, &leaf, c.recv, c.count);
    else
        copy_bytes(c.recv, c.send, sent(c, 0).bytes);
}

static Operations::Part part_of(const tess_collective &c, const uint64_t *parts, int peer) {
    const uint64_t bytes = tess_dtype_bytes(c.send_dtype);
    return { kit_parts_before(parts, peer) * bytes, parts[peer] * bytes };
}

Operations::Part Operations::sent(const tess_collective &c, int peer) const {
    const uint64_t bytes = kit_bytes(&c);
    if (c.op == TESS_ALL_TO_ALL_V)
        return part_of(c, c.send_parts, peer);
    return { c.op == TESS_REDUCE_SCATTER || c.op == TESS_ALL_TO_ALL ? peer * bytes : 0, bytes };
}

Operations::Part Operations::received(const tess_collective &c, int peer) const {
    const uint64_t bytes = kit_bytes(&c);
    return c.op == TESS_ALL_TO_ALL_V ? part_of(c, c.recv_parts, peer) : Part{ peer * bytes, bytes };
}

// Copies the bytes for `peer` behind the header.
size_t Operations::fill_payload(const tess_collective &c, int peer) {
    if (kit_bytes(&c) == 0 || (c.op == TESS_BROADCAST && rank_ != c.root))
        return 0;
    const Part part = sent(c, peer);
    copy_bytes(mesh_->outgoing(peer).payload, byte_at(c.send, part.first), part.bytes);
    return part.bytes;
}

void Operations::copy_own(const tess_collective &c) {
    const Part from = sent(c, rank_);
    copy_bytes(byte_at(c.recv, received(c, rank_).first), byte_at(c.send, from.first), from.bytes);
}

// The headers have carried all data, so this copies it from them.
void Operations::eager(const tess_collective &c) {
    const uint64_t bytes = kit_bytes(&c);
    if (bytes == 0)
        return;
    const auto payload = [&](int peer) { return mesh_->incoming(peer).payload; };
    if (c.op == TESS_BROADCAST)
        return copy_bytes(c.recv, rank_ == c.root ? c.send : payload(c.root), bytes);
    if (kit_reduces(&c)) {
        for (int peer = 0; peer < size_; peer++)
            leaves_[peer] =
                peer != rank_ ? payload(peer) : byte_at(c.send, c.op == TESS_REDUCE_SCATTER ? rank_ * bytes : 0);
        return combine(c, leaves_.data(), c.recv, c.count);
    }
    copy_own(c);
    for (int peer = 0; peer < size_; peer++)
        if (peer != rank_)
            copy_bytes(byte_at(c.recv, received(c, peer).first), payload(peer), received(c, peer).bytes);
}

// Posts `bytes` at `ptr` as messages of at most kMessageBytes.
uint64_t Operations::post(bool send, Slot slot, int peer, void *ptr, uint64_t bytes) {
    for (uint64_t done = 0; done < bytes; done += kMessageBytes) {
        const uint64_t piece = std::min(bytes - done, kMessageBytes);
        if (send)
            mesh_->post_send(slot, peer, byte_at(ptr, done), piece);
        else
            mesh_->post_recv(slot, peer, byte_at(ptr, done), piece);
    }
    return bytes;
}

void Operations::await(Slot slot, int peer, uint64_t bytes) {
    for (uint64_t done = 0; done < bytes; done += kMessageBytes)
        mesh_->wait_recv(slot, peer);
}

void Operations::send_data(const tess_collective &c, Slot slot) {
    const uint64_t bytes = kit_bytes(&c);
    if (kit_reduces(&c))
        return send_shards(c, slot);
    if (c.op == TESS_BROADCAST) {
        for (uint64_t done = 0; rank_ == c.root && done < bytes; done += kRelayBytes)
            hand_on(c, slot, done);
        return;
    }
    for (int i = 0; i < size_ - 1; i++) {
        const Part part = sent(c, peer_at(i));
        post(true, slot, peer_at(i), byte_at(c.send, part.first), part.bytes);
    }
}

// all_gather, all_to_all and all_to_all_v: each rank's block comes from that rank.
void Operations::exchange(const tess_collective &c) {
    for (int i = 0; i < size_ - 1; i++) {
        const Part part = received(c, peer_at(i));
        post(false, slot_, peer_at(i), byte_at(c.recv, part.first), part.bytes);
    }
    prepare_next(c);
    copy_own(c);
    for (int i = 0; i < size_ - 1; i++)
        await(slot_, peer_at(i), received(c, peer_at(i)).bytes);
}

// Broadcast: a binomial tree over ranks counted from the root; each piece is handed on as it comes.
struct Operations::Tree {
    unsigned size, self, root;
    Tree(const tess_collective &c, int rank, int n)
        : size(n), self((rank - c.root + n) % n), root(static_cast<unsigned>(c.root)) {}
    int real(unsigned v) const { return static_cast<int>((v + root) % size); }
    int parent() const { return real(self & (self - 1)); }
    unsigned reach() const { // children are self + 1, 2, 4 … below this bit
        if (self != 0)
            return self & -self;
        unsigned bit = 1;
        while (bit < size)
            bit <<= 1;
        return bit;
    }
};

void Operations::hand_on(const tess_collective &c, Slot slot, uint64_t done) {
    const Tree tree(c, rank_, size_);
    unsigned char *data = byte_at(rank_ == c.root ? c.send : c.recv, done);
    for (unsigned bit = tree.reach() >> 1; bit > 0; bit >>= 1)
        if (tree.self + bit < tree.size)
            mesh_->post_send(slot, tree.real(tree.self + bit), data, std::min(kRelayBytes, kit_bytes(&c) - done));
}

void Operations::broadcast(const tess_collective &c) {
    const uint64_t bytes = kit_bytes(&c);
    if (rank_ == c.root)
        return copy_bytes(c.recv, c.send, bytes);
    const int parent = Tree(c, rank_, size_).parent();
    for (uint64_t done = 0; done < bytes; done += kRelayBytes)
        mesh_->post_recv(slot_, parent, byte_at(c.recv, done), std::min(kRelayBytes, bytes - done));
    for (uint64_t done = 0; done < bytes; done += kRelayBytes) {
        mesh_->wait_recv(slot_, parent);
        hand_on(c, slot_, done);
    }
}

// ---- reductions -----------------------------------------------------------------------------------

// reduce_scatter has one block per rank; all_reduce cuts its buffer into as many shards, the last ones maybe empty.
Operations::Split Operations::split_of(const tess_collective &c) const {
    return { kit_shard_elems(&c, size_), c.op == TESS_ALL_REDUCE ? c.count : c.count * size_ };
}

void Operations::send_shards(const tess_collective &c, Slot slot) {
    const Split split = split_of(c);
    const uint64_t chunk = chunk_elems(c, size_), in = tess_dtype_bytes(c.send_dtype);
    for (uint64_t done = 0; done < split.shard; done += chunk)
        for (int i = 0; i < size_ - 1; i++) {
            const int peer = peer_at(i);
            const uint64_t n = split.elems(peer);
            if (done < n)
                mesh_->post_send(slot, peer, byte_at(c.send, (split.first(peer) + done) * in),
                                 std::min(chunk, n - done) * in);
        }
}

void Operations::reduce(const tess_collective &c) {
    const Split split = split_of(c);
    const uint64_t chunk = chunk_elems(c, size_), in = tess_dtype_bytes(c.send_dtype), mine = split.elems(rank_);
    const uint64_t room = round_up(chunk * in, kAlign);
    for (uint64_t w = 0; w < 2 && w * chunk < mine; w++)
        for (int i = 0; i < size_ - 1; i++)
            mesh_->post_recv(slot_, peer_at(i), byte_at(c.scratch, (w * (size_ - 1) + i) * room),
                             std::min(chunk, mine - w * chunk) * in);
    prepare_next(c);
    reduce_chunks(c, split, chunk);
    if (c.op == TESS_ALL_REDUCE)
        gather_shards(c, split, chunk);
}

// In place, a shard's result lands where our contribution to it was sent from: it can only come after that left. Late,
// as in prepare().
void Operations::gather_shards(const tess_collective &c, const Split &split, uint64_t chunk) {
    const uint64_t out = tess_dtype_bytes(header_.recv_dtype);
    for (int i = 0; i < size_ - 1; i++) {
        const int peer = peer_at(i);
        for (uint64_t done = 0, n = split.elems(peer); done < n; done += chunk)
            mesh_->post_recv(kGatherSlot, peer, byte_at(c.recv, (split.first(peer) + done) * out),
                             std::min(chunk, n - done) * out);
    }
    for (int i = 0; i < size_ - 1; i++)
        for (uint64_t done = 0, n = split.elems(peer_at(i)); done < n; done += chunk)
            mesh_->wait_recv(kGatherSlot, peer_at(i));
    mesh_->wait_sends(kGatherSlot);
}

// Sums this rank's shard chunk by chunk while the next chunks come in.
void Operations::reduce_chunks(const tess_collective &c, const Split &split, uint64_t chunk) {
    const uint64_t in = tess_dtype_bytes(c.send_dtype), room = round_up(chunk * in, kAlign), mine = split.elems(rank_);
    const uint64_t out = tess_dtype_bytes(header_.recv_dtype);
    const bool gather = c.op == TESS_ALL_REDUCE;
    for (uint64_t k = 0; k * chunk < mine; k++) {
        const uint64_t done = k * chunk, n = std::min(chunk, mine - done);
        unsigned char *result = byte_at(c.recv, (gather ? split.first(rank_) + done : done) * out);
        leaves_[rank_] = byte_at(c.send, (split.first(rank_) + done) * in);
        for (int i = 0; i < size_ - 1; i++) {
            mesh_->wait_recv(slot_, peer_at(i));
            leaves_[peer_at(i)] = byte_at(c.scratch, ((k & 1) * (size_ - 1) + i) * room);
        }
        combine(c, leaves_.data(), result, n);
        const uint64_t next = (k + 2) * chunk;
        for (int i = 0; i < size_ - 1; i++) {
            if (next < mine)
                mesh_->post_recv(slot_, peer_at(i), byte_at(c.scratch, ((k & 1) * (size_ - 1) + i) * room),
                                 std::min(chunk, mine - next) * in);
            if (gather)
                mesh_->post_send(kGatherSlot, peer_at(i), result, n * out);
        }
    }
}

} // namespace tess_gloo
