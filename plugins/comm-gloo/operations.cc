#include "operations.h"
#include "failure.h"
#include <algorithm>
#include <cinttypes>

namespace tess_gloo {

// One message at most; longer ones are split, so that an abort never waits for a long read.
constexpr uint64_t kMessageBytes = 8 << 20;
// Contributions are received and summed in chunks of this many bytes, two per peer in flight.
constexpr uint64_t kChunkBytes = 512 << 10;
constexpr uint64_t kRelayBytes = 1 << 20; // broadcast hands on in pieces
constexpr uint64_t kAlign = 64;
constexpr uint32_t kAdd = 1; // tess_collective.flags: add to recv

static uint64_t round_up(uint64_t n, uint64_t to) {
    return (n + to - 1) / to * to;
}
static bool reduces(uint32_t op) {
    return op == TESS_REDUCE_SCATTER || op == TESS_ALL_REDUCE;
}
static unsigned char *at(const void *base, uint64_t bytes) {
    return const_cast<unsigned char *>(static_cast<const unsigned char *>(base)) + bytes;
}

// ---- what a call may look like --------------------------------------------------------------------

static bool refuse(Failure *why, const Failure &f) {
    *why = f;
    return false;
}

static bool check_types(const tess_collective &c, Failure *why) {
    if (c.op == TESS_BARRIER)
        return true;
    if (dtype_bytes(c.send_dtype) == 0)
        return refuse(why, Failure(TESS_E_UNSUPPORTED, -1, "gloo: dtype %u", c.send_dtype));
    const uint32_t out = c.recv_dtype != 0 ? c.recv_dtype : c.send_dtype;
    if (!reduces(c.op))
        return out == c.send_dtype ||
               refuse(why, Failure(TESS_E_UNSUPPORTED, -1, "gloo: op %u from dtype %u to %u", c.op, c.send_dtype, out));
    if (!reduce_offered(c.send_dtype, out, c.redop))
        return refuse(
            why, Failure(TESS_E_UNSUPPORTED, -1, "gloo: reduction %u from dtype %u to %u", c.redop, c.send_dtype, out));
    const bool whole =
        c.send_dtype == TESS_U8 || c.send_dtype == TESS_I8 || c.send_dtype == TESS_I32 || c.send_dtype == TESS_I64;
    if (whole && c.scale != 0 && c.scale != 1)
        return refuse(why, Failure(TESS_E_INVALID, -1, "gloo: scale %g on integers, expected 1", c.scale));
    if ((c.flags & kAdd) != 0 && c.redop != TESS_SUM)
        return refuse(why, Failure(TESS_E_UNSUPPORTED, -1, "gloo: only a sum adds to what recv holds"));
    return true;
}

static bool overlap(const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes) {
    const auto x = reinterpret_cast<uintptr_t>(a), y = reinterpret_cast<uintptr_t>(b);
    return a_bytes > 0 && b_bytes > 0 && x < y + b_bytes && y < x + a_bytes;
}

static bool check_memory(const tess_collective &c, int rank, int nranks, Failure *why) {
    const uint64_t n = c.count, w = static_cast<uint64_t>(nranks);
    const uint64_t in = n * dtype_bytes(c.send_dtype),
                   out = n * dtype_bytes(c.recv_dtype != 0 ? c.recv_dtype : c.send_dtype);
    if (n == 0 || c.op == TESS_BARRIER)
        return true;
    constexpr uint32_t kinds = 1u << TESS_MEM_HOST | 1u << TESS_MEM_PINNED;
    if (c.send_mem > 31 || c.recv_mem > 31 || (kinds >> c.send_mem & kinds >> c.recv_mem & 1) == 0)
        return refuse(why, Failure(TESS_E_UNSUPPORTED, -1, "gloo: memory kinds %u and %u, expected host memory",
                                   c.send_mem, c.recv_mem));
    const bool sends = c.op != TESS_BROADCAST || rank == c.root;
    const bool receives = c.op != TESS_BROADCAST || rank != c.root;
    if ((sends && c.send == nullptr) || (receives && c.recv == nullptr))
        return refuse(why, Failure(TESS_E_INVALID, -1, "gloo: %s is null with count %" PRIu64,
                                   sends && !c.send ? "send" : "recv", n));
    bool fine = true;
    switch (c.op) {
    case TESS_ALL_GATHER: fine = c.send == at(c.recv, rank * in) || !overlap(c.send, in, c.recv, w * in); break;
    case TESS_ALL_TO_ALL:
        fine = nranks == 1 ? c.send == c.recv || !overlap(c.send, in, c.recv, in)
                           : !overlap(c.send, w * in, c.recv, w * in);
        break;
    case TESS_REDUCE_SCATTER:
        fine = (c.recv == at(c.send, rank * in) && in == out) || !overlap(c.send, w * in, c.recv, out);
        break;
    case TESS_ALL_REDUCE:
        fine = (c.send == c.recv && in == out && (c.flags & kAdd) == 0) || !overlap(c.send, in, c.recv, out);
        break;
    default: fine = !sends || c.send == c.recv || c.recv == nullptr || !overlap(c.send, in, c.recv, in);
    }
    return fine || refuse(why, Failure(TESS_E_INVALID, -1, "gloo: send and recv overlap other than in place"));
}

bool check_collective(const tess_collective &c, int rank, int nranks, Failure *why) {
    if (c.op < TESS_ALL_GATHER || c.op > TESS_BARRIER)
        return refuse(why, Failure(TESS_E_UNSUPPORTED, -1, "gloo: operation %u", c.op));
    if (!check_types(c, why))
        return false;
    if (c.count > (UINT64_C(1) << 48))
        return refuse(why, Failure(TESS_E_INVALID, -1, "gloo: count %" PRIu64, c.count));
    if (c.op == TESS_BROADCAST && (c.root < 0 || c.root >= nranks))
        return refuse(why, Failure(TESS_E_INVALID, -1, "gloo: root %d of %d ranks", c.root, nranks));
    if (rank < 0)
        return true;
    const uint64_t need = scratch_bytes(c, nranks);
    if (c.scratch_bytes < need || (need > 0 && c.scratch == nullptr))
        return refuse(why, Failure(TESS_E_INVALID, -1, "gloo: %" PRIu64 " bytes of scratch, needs %" PRIu64,
                                   c.scratch_bytes, need));
    return check_memory(c, rank, nranks, why);
}

// ---- sizes every rank computes alike --------------------------------------------------------------

// Bytes that one rank sends to one other; small enough, they travel with the header.
static uint64_t eager_bytes(const tess_collective &c) {
    return c.op == TESS_BARRIER ? 0 : c.count * dtype_bytes(c.send_dtype);
}
// Elements of the largest shard of a reduction. all_reduce cuts its buffer on 64-element boundaries.
static uint64_t shard_elems(const tess_collective &c, int nranks) {
    if (c.op == TESS_REDUCE_SCATTER)
        return c.count;
    return std::min(c.count, round_up((c.count + nranks - 1) / nranks, 64));
}
static uint64_t chunk_elems(const tess_collective &c, int nranks) {
    return std::min(shard_elems(c, nranks), kChunkBytes / dtype_bytes(c.send_dtype));
}

uint64_t scratch_bytes(const tess_collective &c, int nranks) {
    if (!reduces(c.op) || nranks < 2 || eager_bytes(c) <= kEagerBytes)
        return 0;
    const uint64_t chunk = chunk_elems(c, nranks), window = shard_elems(c, nranks) > chunk ? 2 : 1;
    return (nranks - 1) * window * round_up(chunk * dtype_bytes(c.send_dtype), kAlign);
}

// ---- headers --------------------------------------------------------------------------------------

Operations::Operations(Mesh *mesh, int rank, int size, Next next)
    : mesh_(mesh), rank_(rank), size_(size), next_(std::move(next)), leaves_(size), stack_(kReduceScratch) {}

static const char *op_name(uint32_t op) {
    static const char *const names[] = { "?",         "all_gather", "reduce_scatter", "all_reduce",
                                         "broadcast", "all_to_all", "barrier" };
    if (op == kOpHello)
        return "init";
    if (op == kOpFinalize)
        return "finalize";
    return op < sizeof names / sizeof *names ? names[op] : names[0];
}

void Operations::compare(int peer) {
    const Header &mine = header_, &theirs = mesh_->incoming(peer).header;
    if (memcmp(&mine, &theirs, sizeof mine) == 0)
        return;
    const auto say = [](char *out, size_t size, const Header &h) {
        snprintf(out, size,
                 "%s count %" PRIu64 " dtype %u>%u redop %u root %d scale %g tag %" PRIx64 " seq %" PRIu64 "/%" PRIu64,
                 op_name(h.op), h.count, h.send_dtype, h.recv_dtype, h.redop, h.root, h.scale, h.tag, h.caller_seq,
                 h.seq);
    };
    char here[160], there[160];
    say(here, sizeof here, mine);
    say(there, sizeof there, theirs);
    throw Failure(TESS_E_MISMATCH, peer, "rank %d: %.105s; rank %d: %.105s", rank_, here, peer, there);
}

// Every rank tells every other what it is about to do …
void Operations::announce(const tess_collective *eager) {
    mesh_->wait_sends(kHeaderLane);
    for (int i = 0; i < size_ - 1; i++) {
        const int peer = peer_at(i);
        mesh_->outgoing(peer).header = announced_;
        mesh_->send_header(peer, eager != nullptr ? fill_payload(*eager, peer) : 0);
    }
}

// … and goes on when all have said the same. So a mismatch is found by every rank, before any data is used.
void Operations::agree() {
    try {
        for (int i = 0; i < size_ - 1; i++)
            mesh_->await_header(peer_at(i));
    } catch (const Failure &) {
        // A rank that found a mismatch may be gone by now: what it said is the better answer.
        const int dead = mesh_->dead_peer();
        if (dead >= 0 && mesh_->header_came(dead))
            compare(dead);
        throw;
    }
    for (int peer = 0; peer < size_; peer++)
        if (peer != rank_)
            compare(peer);
}

void Operations::meet(uint32_t op, uint64_t tag, uint64_t seq) {
    if (mesh_ == nullptr)
        return;
    announced_ = Header{};
    announced_.magic = kMagic, announced_.op = op, announced_.tag = tag, announced_.seq = seq;
    announced_.count = static_cast<uint64_t>(size_);
    announce(nullptr);
    header_ = announced_;
    agree();
    mesh_->release_headers();
}

static Header header_of(const tess_collective &c, uint64_t seq) {
    Header h{};
    h.magic = kMagic, h.op = c.op, h.tag = c.tag, h.seq = seq, h.caller_seq = c.seq;
    if (c.op == TESS_BARRIER)
        return h;
    h.count = c.count, h.send_dtype = c.send_dtype, h.recv_dtype = c.recv_dtype != 0 ? c.recv_dtype : c.send_dtype;
    if (reduces(c.op))
        h.redop = c.redop, h.scale = c.scale != 0 ? c.scale : 1;
    if (c.op == TESS_BROADCAST)
        h.root = c.root;
    return h;
}

// ---- running one ----------------------------------------------------------------------------------

static Lane data_lane(uint64_t seq) {
    return seq % 2 == 0 ? kDataLane : kOtherDataLane;
}

void Operations::run(const tess_collective &c, uint64_t seq) {
    if (mesh_ == nullptr)
        return alone(c);
    if (prepared_ <= seq)
        prepare(c, seq);
    header_ = announced_, lane_ = data_lane(seq);
    agree();
    if (eager_bytes(c) <= kEagerBytes) {
        eager(c);
        return mesh_->release_headers();
    }
    mesh_->release_headers();
    if (c.op == TESS_ALL_GATHER || c.op == TESS_ALL_TO_ALL)
        exchange(c);
    else if (c.op == TESS_BROADCAST)
        broadcast(c);
    else
        reduce(c);
    mesh_->wait_sends(lane_);
}

// What can be done for a collective while the one before it runs: its data is posted to leave and its header sent.
// Sends come before the header, receives when all headers have come: so every send waits for its receive, and is then
// written by Gloo's I/O thread. Were the receive there first, this thread would write it, holding the connection's
// lock, while the I/O thread spins on incoming data that it cannot take without that lock.
void Operations::prepare(const tess_collective &c, uint64_t seq) {
    const bool small = eager_bytes(c) <= kEagerBytes;
    if (!small)
        send_data(c, data_lane(seq));
    announced_ = header_of(c, seq);
    announce(small ? &c : nullptr);
    prepared_ = seq + 1;
}

// Hides the exchange of headers, half of a collective's latency, behind the data of the one before. Not when the next
// one sends what this one has yet to receive.
void Operations::prepare_next(const tess_collective &now) {
    const tess_collective *next = next_();
    if (next == nullptr)
        return;
    const auto bytes = [&](const tess_collective &c, bool all) { return eager_bytes(c) * (all ? size_ : 1); };
    const bool sends_all = next->op == TESS_REDUCE_SCATTER || next->op == TESS_ALL_TO_ALL;
    const bool receives_all = now.op == TESS_ALL_GATHER || now.op == TESS_ALL_TO_ALL;
    // The largest type bounds what a reduction writes.
    const uint64_t written = receives_all ? bytes(now, true) : now.count * sizeof(double);
    if (next->op != TESS_BARRIER && overlap(next->send, bytes(*next, sends_all), now.recv, written))
        return;
    prepare(*next, header_.seq + 1);
}

void Operations::combine(const tess_collective &c, const void *const *leaves, void *out, uint64_t elems) {
    const Reduction r{ c.redop, c.send_dtype, c.recv_dtype != 0 ? c.recv_dtype : c.send_dtype, (c.flags & 1) != 0,
                       c.scale };
    reduce_fn(r)(leaves, size_, out, elems, r, stack_.data());
}

static void copy(void *to, const void *from, uint64_t bytes) {
    if (bytes > 0 && to != from && to != nullptr)
        memcpy(to, from, bytes);
}

void Operations::alone(const tess_collective &c) {
    if (c.op == TESS_BARRIER || c.count == 0)
        return;
    const void *leaf = c.send;
    if (reduces(c.op))
        combine(c, &leaf, c.recv, c.count);
    else
        copy(c.recv, c.send, eager_bytes(c));
}

// What `peer` gets from this rank, behind the header.
size_t Operations::fill_payload(const tess_collective &c, int peer) {
    const uint64_t bytes = eager_bytes(c);
    if (bytes == 0 || (c.op == TESS_BROADCAST && rank_ != c.root))
        return 0;
    const bool blocks = c.op == TESS_REDUCE_SCATTER || c.op == TESS_ALL_TO_ALL;
    memcpy(mesh_->outgoing(peer).payload, at(c.send, blocks ? peer * bytes : 0), bytes);
    return bytes;
}

// All that was to be sent has come with the headers.
void Operations::eager(const tess_collective &c) {
    const uint64_t bytes = eager_bytes(c);
    if (bytes == 0)
        return;
    const auto payload = [&](int peer) { return mesh_->incoming(peer).payload; };
    if (c.op == TESS_BROADCAST)
        return copy(c.recv, rank_ == c.root ? c.send : payload(c.root), bytes);
    if (reduces(c.op)) {
        for (int peer = 0; peer < size_; peer++)
            leaves_[peer] = peer != rank_ ? payload(peer) : at(c.send, c.op == TESS_REDUCE_SCATTER ? rank_ * bytes : 0);
        return combine(c, leaves_.data(), c.recv, c.count);
    }
    copy(at(c.recv, rank_ * bytes), at(c.send, c.op == TESS_ALL_TO_ALL ? rank_ * bytes : 0), bytes);
    for (int peer = 0; peer < size_; peer++)
        if (peer != rank_)
            copy(at(c.recv, peer * bytes), payload(peer), bytes);
}

// Posts `bytes` at `ptr` as messages of at most kMessageBytes.
uint64_t Operations::post(bool send, Lane lane, int peer, void *ptr, uint64_t bytes) {
    for (uint64_t done = 0; done < bytes; done += kMessageBytes) {
        const uint64_t piece = std::min(bytes - done, kMessageBytes);
        if (send)
            mesh_->post_send(lane, peer, at(ptr, done), piece);
        else
            mesh_->post_recv(lane, peer, at(ptr, done), piece);
    }
    return bytes;
}

void Operations::await(Lane lane, int peer, uint64_t bytes) {
    for (uint64_t done = 0; done < bytes; done += kMessageBytes)
        mesh_->wait_recv(lane, peer);
}

void Operations::send_data(const tess_collective &c, Lane lane) {
    const uint64_t bytes = eager_bytes(c);
    if (reduces(c.op))
        return send_shards(c, lane);
    if (c.op == TESS_BROADCAST) {
        for (uint64_t done = 0; rank_ == c.root && done < bytes; done += kRelayBytes)
            hand_on(c, lane, done);
        return;
    }
    for (int i = 0; i < size_ - 1; i++)
        post(true, lane, peer_at(i), at(c.send, c.op == TESS_ALL_TO_ALL ? peer_at(i) * bytes : 0), bytes);
}

// all_gather and all_to_all: each rank's block comes from that rank.
void Operations::exchange(const tess_collective &c) {
    const uint64_t bytes = eager_bytes(c);
    for (int i = 0; i < size_ - 1; i++)
        post(false, lane_, peer_at(i), at(c.recv, peer_at(i) * bytes), bytes);
    prepare_next(c);
    copy(at(c.recv, rank_ * bytes), at(c.send, c.op == TESS_ALL_TO_ALL ? rank_ * bytes : 0), bytes);
    for (int i = 0; i < size_ - 1; i++)
        await(lane_, peer_at(i), bytes);
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

void Operations::hand_on(const tess_collective &c, Lane lane, uint64_t done) {
    const Tree tree(c, rank_, size_);
    unsigned char *data = at(rank_ == c.root ? c.send : c.recv, done);
    for (unsigned bit = tree.reach() >> 1; bit > 0; bit >>= 1)
        if (tree.self + bit < tree.size)
            mesh_->post_send(lane, tree.real(tree.self + bit), data, std::min(kRelayBytes, eager_bytes(c) - done));
}

void Operations::broadcast(const tess_collective &c) {
    const uint64_t bytes = eager_bytes(c);
    if (rank_ == c.root)
        return copy(c.recv, c.send, bytes);
    const int parent = Tree(c, rank_, size_).parent();
    for (uint64_t done = 0; done < bytes; done += kRelayBytes)
        mesh_->post_recv(lane_, parent, at(c.recv, done), std::min(kRelayBytes, bytes - done));
    for (uint64_t done = 0; done < bytes; done += kRelayBytes) {
        mesh_->wait_recv(lane_, parent);
        hand_on(c, lane_, done);
    }
}

// ---- reductions -----------------------------------------------------------------------------------

// reduce_scatter has one block per rank; all_reduce cuts its buffer into as many shards, the last ones maybe empty.
Operations::Split Operations::split_of(const tess_collective &c) const {
    return { shard_elems(c, size_), c.op == TESS_ALL_REDUCE ? c.count : c.count * size_ };
}

void Operations::send_shards(const tess_collective &c, Lane lane) {
    const Split split = split_of(c);
    const uint64_t chunk = chunk_elems(c, size_), in = dtype_bytes(c.send_dtype);
    for (uint64_t done = 0; done < split.shard; done += chunk)
        for (int i = 0; i < size_ - 1; i++) {
            const int peer = peer_at(i);
            const uint64_t n = split.elems(peer);
            if (done < n)
                mesh_->post_send(lane, peer, at(c.send, (split.first(peer) + done) * in),
                                 std::min(chunk, n - done) * in);
        }
}

void Operations::reduce(const tess_collective &c) {
    const Split split = split_of(c);
    const uint64_t chunk = chunk_elems(c, size_), in = dtype_bytes(c.send_dtype), mine = split.elems(rank_);
    const uint64_t slot = round_up(chunk * in, kAlign);
    for (uint64_t w = 0; w < 2 && w * chunk < mine; w++)
        for (int i = 0; i < size_ - 1; i++)
            mesh_->post_recv(lane_, peer_at(i), at(c.scratch, (w * (size_ - 1) + i) * slot),
                             std::min(chunk, mine - w * chunk) * in);
    prepare_next(c);
    reduce_chunks(c, split, chunk);
    if (c.op == TESS_ALL_REDUCE)
        gather_shards(c, split, chunk);
}

// In place, a shard's result lands where our contribution to it was sent from: it can only come after that left. Late,
// as in prepare().
void Operations::gather_shards(const tess_collective &c, const Split &split, uint64_t chunk) {
    const uint64_t out = dtype_bytes(header_.recv_dtype);
    for (int i = 0; i < size_ - 1; i++) {
        const int peer = peer_at(i);
        for (uint64_t done = 0, n = split.elems(peer); done < n; done += chunk)
            mesh_->post_recv(kGatherLane, peer, at(c.recv, (split.first(peer) + done) * out),
                             std::min(chunk, n - done) * out);
    }
    for (int i = 0; i < size_ - 1; i++)
        for (uint64_t done = 0, n = split.elems(peer_at(i)); done < n; done += chunk)
            mesh_->wait_recv(kGatherLane, peer_at(i));
    mesh_->wait_sends(kGatherLane);
}

// Sums this rank's shard chunk by chunk while the next chunks come in.
void Operations::reduce_chunks(const tess_collective &c, const Split &split, uint64_t chunk) {
    const uint64_t in = dtype_bytes(c.send_dtype), slot = round_up(chunk * in, kAlign), mine = split.elems(rank_);
    const uint64_t out = dtype_bytes(header_.recv_dtype);
    const bool gather = c.op == TESS_ALL_REDUCE;
    for (uint64_t k = 0; k * chunk < mine; k++) {
        const uint64_t done = k * chunk, n = std::min(chunk, mine - done);
        unsigned char *result = at(c.recv, (gather ? split.first(rank_) + done : done) * out);
        leaves_[rank_] = at(c.send, (split.first(rank_) + done) * in);
        for (int i = 0; i < size_ - 1; i++) {
            mesh_->wait_recv(lane_, peer_at(i));
            leaves_[peer_at(i)] = at(c.scratch, ((k & 1) * (size_ - 1) + i) * slot);
        }
        combine(c, leaves_.data(), result, n);
        const uint64_t next = (k + 2) * chunk;
        for (int i = 0; i < size_ - 1; i++) {
            if (next < mine)
                mesh_->post_recv(lane_, peer_at(i), at(c.scratch, ((k & 1) * (size_ - 1) + i) * slot),
                                 std::min(chunk, mine - next) * in);
            if (gather)
                mesh_->post_send(kGatherLane, peer_at(i), result, n * out);
        }
    }
}

} // namespace tess_gloo
