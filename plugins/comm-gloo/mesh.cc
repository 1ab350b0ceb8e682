/* SPDX-License-Identifier: BSD-3-Clause */
#include "mesh.h"
#include "failure.h"
#include "pair.h"
#include "plugin_base.h"
#include "rendezvous.h"
#include "visitor.h"
#include <cerrno>
#include <gloo/common/error.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

namespace tess_gloo {

// Slots beside those of collectives.
constexpr uint64_t kGoodbyeSlot = kSlots, kWatchSlot = kSlots + 1, kProbeSlot = kSlots + 2;
// Gloo's own timeouts would close connections behind our back; ours are kept on our own condition variables.
constexpr std::chrono::hours kNever(90);

Mesh::Mesh(Settings &settings, int rank, int size, const std::atomic<bool> &stop)
    : settings_(settings), rank_(rank), size_(size), stop_(stop), sent_headers_(size), got_headers_(2 * size) {
    for (auto &list : recv_)
        list.resize(size);
    goodbye_.resize(size);
    probe_.resize(size);
    words_.resize(size + 2);
    sockets_.reserve(size);
}

void Mesh::check_stop() const {
    if (stop_)
        throw Failure(TESS_E_ABORTED, -1, "stopped");
}

// Silence is our own finding, a connection that a peer has closed may be its echo.
Failure Mesh::why(int peer, const char *what) {
    const int silent = unreachable_;
    if (silent >= 0)
        return Failure(TESS_E_PEER, silent, "rank %d cannot be reached: its host acknowledged nothing for %.3g s",
                       silent, static_cast<double>(settings_.silence_ns()) * 1e-9);
    if (peer < 0)
        peer = dead_peer();
    return Failure(TESS_E_PEER, peer, "connection to rank %d lost: %.150s", peer, what);
}

void Mesh::lost(int peer, const char *what) {
    check_stop();
    throw why(peer, what);
}

// Runs a call into Gloo; its exceptions become ours.
template <class Call>
auto Mesh::guarded(int peer, Call call) {
    try {
        return call();
    } catch (const std::bad_alloc &) {
        throw Failure(TESS_E_NOMEM, -1, "out of memory");
    } catch (const std::exception &e) {
        if (is_own_failure(e))
            throw failure_of(e);
        lost(peer, e.what());
    }
}

// ---- connecting -----------------------------------------------------------------------------------

static ProvenPair &pair_of(gloo::transport::Context &context, int peer) {
    return static_cast<ProvenPair &>(*context.getPair(peer));
}

void Mesh::make_pairs() {
    auto &device = static_cast<gloo::transport::tcp::Device &>(*settings_.device());
    auto context = std::static_pointer_cast<gloo::transport::tcp::Context>(device.createContext(rank_, size_));
    context->setTimeout(kNever);
    on_loop(device, [&] {
        for (int peer = 0; peer < size_; peer++)
            if (peer != rank_)
                context->getPair(peer).reset(new ProvenPair(context.get(), &device, peer, kNever));
    });
    std::lock_guard<std::mutex> lock(mutex_);
    context_ = context;
}

void Mesh::connect(const std::string &prefix) {
    std::vector<Socket> sockets = Rendezvous(settings_, prefix, rank_, size_, stop_, waiting_for_).run();
    guarded(-1, [&] { make_pairs(); });
    make_buffers();
    for (int peer = 0; peer < size_; peer++)
        if (peer != rank_)
            guarded(peer, [&] { pair_of(*context_, peer).adopt(sockets[peer].release()); });
    for (int peer = 0; peer < size_; peer++)
        if (peer != rank_)
            post_standing(peer);
    if (settings_.silence_ns() > 0)
        patrol_ = std::make_unique<Patrol>(*this);
}

// Receives that stay posted: a header ahead, the goodbye, and those that tell of a broken connection.
void Mesh::post_standing(int peer) {
    guarded(peer, [&] {
        goodbye_[peer]->recv(peer, kGoodbyeSlot, 0, sizeof(uint64_t));
        watch_->recv(peer, kWatchSlot, 0, sizeof(uint64_t));
        probe_[peer]->recv(peer, kProbeSlot, 0, sizeof(uint64_t));
    });
    for (int turn = 0; turn < 2; turn++)
        post_recv(kHeaderSlot, peer, &got_headers_[2 * peer + turn], sizeof(Message));
}

// A slot's buffers cover all of memory: a message's offset is its address. Gloo's buffers are then made once, not for
// each collective.
void Mesh::make_buffers() {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto everything = [&] { return context_->createUnboundBuffer(nullptr, SIZE_MAX); };
    for (int slot = 0; slot < kSlots; slot++) {
        send_[slot] = everything();
        for (int peer = 0; peer < size_; peer++)
            if (peer != rank_)
                recv_[slot][peer] = everything();
    }
    const auto word = [&](int i) { return context_->createUnboundBuffer(&words_[i], sizeof(uint64_t)); };
    goodbye_send_ = word(size_);
    watch_ = word(size_ + 1);
    for (int peer = 0; peer < size_; peer++) {
        if (peer == rank_)
            continue;
        goodbye_[peer] = word(peer);
        probe_[peer] = word(size_ + 1);
    }
}

// ---- messages -------------------------------------------------------------------------------------

void Mesh::post_recv(Slot slot, int peer, void *to, size_t bytes) {
    check_stop();
    guarded(peer, [&] { recv_[slot][peer]->recv(peer, slot, reinterpret_cast<size_t>(to), bytes); });
}

void Mesh::post_send(Slot slot, int peer, const void *from, size_t bytes) {
    check_stop();
    guarded(peer, [&] { send_[slot]->send(peer, slot, reinterpret_cast<size_t>(from), bytes); });
    unsent_[slot]++;
}

// Gloo's wait returns false when wake() interrupted it.
void Mesh::wait_recv(Slot slot, int peer) {
    do
        check_stop();
    while (!guarded(peer, [&] { return recv_[slot][peer]->waitRecv(nullptr, kNever); }));
}

void Mesh::wait_sends(Slot slot) {
    while (unsent_[slot] > 0) {
        check_stop();
        if (guarded(-1, [&] { return send_[slot]->waitSend(nullptr, kNever); }))
            unsent_[slot]--;
    }
}

void Mesh::send_header(int peer, size_t payload_bytes) {
    post_send(kHeaderSlot, peer, &sent_headers_[peer], sizeof(Header) + payload_bytes);
}

void Mesh::release_headers() {
    for (int peer = 0; peer < size_; peer++)
        if (peer != rank_)
            post_recv(kHeaderSlot, peer, &got_headers_[2 * peer + turn_], sizeof(Message));
    turn_ ^= 1;
}

bool Mesh::header_came(int peer) {
    for (int ends = 0; ends < 2 && !impatient_;) { // at a connection's end a first wait does not look at what came
        try {
            if (recv_[kHeaderSlot][peer]->waitRecv(nullptr, kNever))
                return true; // each false is wake()'s
        } catch (const std::exception &) {
            ends++;
        }
    }
    return false;
}

void Mesh::send_byes() {
    for (int peer = 0; peer < size_; peer++)
        if (peer != rank_)
            guarded(peer, [&] { goodbye_send_->send(peer, kGoodbyeSlot, 0, sizeof(uint64_t)); });
    for (int sent = 0; sent < size_ - 1;) {
        check_stop();
        if (guarded(-1, [&] { return goodbye_send_->waitSend(nullptr, kNever); }))
            sent++;
    }
}

void Mesh::await_byes() {
    for (int peer = 0; peer < size_; peer++) {
        if (peer == rank_)
            continue;
        do
            check_stop();
        while (!guarded(peer, [&] { return goodbye_[peer]->waitRecv(nullptr, kNever); }));
    }
}

// ---- the end --------------------------------------------------------------------------------------

void Mesh::watch() {
    try {
        watch_->waitRecv(nullptr, kNever);
    } catch (const std::exception &) {
    }
}

void Mesh::lose_patience() {
    impatient_ = true;
    wake();
}

// Interrupting a wait beforehand makes it a test.
int Mesh::dead_peer() {
    std::lock_guard<std::mutex> lock(mutex_);
    for (int peer = 0; peer < size_; peer++) {
        if (peer == rank_ || !probe_[peer])
            continue;
        try {
            probe_[peer]->abortWaitRecv();
            probe_[peer]->waitRecv(nullptr, kNever);
        } catch (const std::exception &) {
            return peer;
        }
    }
    return -1;
}

void Mesh::wake() {
    std::lock_guard<std::mutex> lock(mutex_);
    for (int slot = 0; slot < kSlots; slot++) {
        if (send_[slot])
            send_[slot]->abortWaitSend();
        for (auto &buffer : recv_[slot])
            if (buffer)
                buffer->abortWaitRecv();
    }
    for (auto &buffer : goodbye_)
        if (buffer)
            buffer->abortWaitRecv();
    if (goodbye_send_)
        goodbye_send_->abortWaitSend();
    if (watch_)
        watch_->abortWaitRecv();
}

// Gloo's buffers end only when its thread has let go of them, so the memory behind them is free afterwards.
void Mesh::drop_data() {
    std::lock_guard<std::mutex> lock(mutex_);
    for (int slot : { kDataSlot, kOtherDataSlot, kGatherSlot }) {
        send_[slot].reset();
        for (auto &buffer : recv_[slot])
            buffer.reset();
    }
}

// Asks the kernel now and then, on Gloo's I/O thread, whether every peer's host still answers. Time in which this
// process did not run is not silence.
class Mesh::Patrol final : public Visitor {
  public:
    explicit Patrol(Mesh &mesh)
        : Visitor(static_cast<Device &>(*mesh.settings_.device()),
                  timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)),
          mesh_(mesh), limit_ns_(mesh.settings_.silence_ns()), awake_ns_(kit_now_ns()), turn_ns_(awake_ns_) {
        struct itimerspec every {};
        every.it_interval.tv_sec = limit_ns_ / 8 / 1000000000;
        every.it_interval.tv_nsec = limit_ns_ / 8 % 1000000000;
        every.it_value = every.it_interval;
        if (fd() < 0 || timerfd_settime(fd(), 0, &every, nullptr) != 0)
            throw Failure(TESS_E_SYSTEM, -1, "gloo: no timer: %s", strerror(errno));
        enter();
    }
    ~Patrol() override { leave(); }

  private:
    void turn() override {
        if (read_count() == 0)
            return;
        const int64_t now = kit_now_ns();
        if (now - turn_ns_ > limit_ns_ / 2)
            awake_ns_ = now;
        turn_ns_ = now;
        for (int peer = 0; peer < mesh_.size_; peer++)
            if (peer != mesh_.rank_)
                look_at(peer, (now - awake_ns_) / 1000000);
    }
    void look_at(int peer, int64_t awake_ms) {
        ProvenPair &pair = pair_of(*mesh_.context_, peer);
        if (!pair.is_silent(limit_ns_ / 1000000, awake_ms))
            return;
        int none = -1;
        mesh_.unreachable_.compare_exchange_strong(none, peer);
        pair.give_up("it cannot be reached");
    }

    Mesh &mesh_;
    const int64_t limit_ns_;
    int64_t awake_ns_, turn_ns_;
};

// Keeps Gloo's I/O thread going round. Closing a pair waits for it to come round once, which when idle takes 10 ms.
class Bell final : public Visitor {
  public:
    explicit Bell(Device &device) : Visitor(device, eventfd(1, EFD_CLOEXEC)) { enter(); }
    ~Bell() override { leave(); }

  private:
    void turn() override {}
};

void Mesh::close_pairs() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!context_)
        return;
    try {
        Bell bell(static_cast<gloo::transport::tcp::Device &>(*settings_.device()));
        for (int peer = 0; peer < size_; peer++) {
            auto &pair = context_->getPair(peer);
            if (peer == rank_ || !pair)
                continue;
            sockets_.emplace_back(pair_of(*context_, peer).share());
            pair->close();
        }
    } catch (const std::exception &) { // the pair's destructor closes the connections that remain open
    }
}

void Mesh::release_sockets() {
    std::lock_guard<std::mutex> lock(mutex_);
    sockets_.clear();
}

Mesh::~Mesh() = default; // here, where a Patrol is known

} // namespace tess_gloo
