#include "mesh.h"
#include "failure.h"
#include <gloo/common/error.h>
#include <gloo/transport/address.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/loop.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <type_traits>

namespace tess_gloo {

// Slots on the wire; lanes use their own number.
constexpr uint64_t kGoodbyeSlot = kLanes, kWatchSlot = kLanes + 1, kProbeSlot = kLanes + 2;
// Gloo's own timeouts would close connections behind our back; ours are kept on our own condition variables.
constexpr std::chrono::hours kNever(90);
constexpr int64_t kSliceNs = 50 * 1000 * 1000;

Mesh::Mesh(Settings &settings, int rank, int size, const std::atomic<bool> &stop)
    : settings_(settings), rank_(rank), size_(size), stop_(stop), sent_headers_(size), got_headers_(2 * size) {
    for (auto &list : recv_)
        list.resize(size);
    goodbye_.resize(size);
    probe_.resize(size);
    words_.resize(size + 2);
}

Mesh::~Mesh() {
    drop_data();
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto &list : recv_)
        list.clear();
    for (auto &buffer : send_)
        buffer.reset();
    goodbye_.clear();
    probe_.clear();
    goodbye_send_.reset();
    watch_.reset();
    context_.reset(); // closes the connections without resetting them
}

void Mesh::check_stop() const {
    if (stop_)
        throw Failure(TESS_E_ABORTED, -1, "stopped");
}

void Mesh::lost(int peer, const char *what) {
    check_stop();
    if (peer < 0)
        peer = dead_peer();
    throw Failure(TESS_E_PEER, peer, "connection to rank %d lost: %.150s", peer, what);
}

// Runs a call into Gloo; its exceptions become ours.
template <class Call>
auto Mesh::guarded(int peer, Call call) {
    try {
        return call();
    } catch (const std::bad_alloc &) {
        throw Failure(TESS_E_NOMEM, -1, "out of memory");
    } catch (const std::exception &e) {
        lost(peer, e.what());
    }
}

// ---- connecting -----------------------------------------------------------------------------------

std::vector<char> Mesh::addresses() const {
    std::vector<char> all;
    for (int peer = 0; peer < size_; peer++) {
        std::vector<char> one(gloo::transport::Address::kMaxByteSize + 2);
        if (peer != rank_) {
            const std::vector<char> bytes = context_->getPair(peer)->address().bytes();
            const uint16_t length = static_cast<uint16_t>(bytes.size());
            memcpy(one.data(), &length, sizeof length);
            memcpy(one.data() + 2, bytes.data(), bytes.size());
        }
        all.insert(all.end(), one.begin(), one.end());
    }
    return all;
}

std::vector<char> Mesh::fetch(const std::string &key, size_t bytes) {
    std::vector<char> value(bytes);
    for (;;) {
        check_stop();
        uint64_t size = bytes;
        const tess_status s =
            settings_.host().kv_get(settings_.host().host, key.c_str(), value.data(), &size, kSliceNs);
        if (s == TESS_OK && size == bytes)
            return value;
        if (s == TESS_OK)
            throw Failure(TESS_E_MISMATCH, -1, "key '%s' holds %llu bytes, expected %zu: world sizes differ?",
                          key.c_str(), static_cast<unsigned long long>(size), bytes);
        if (s != TESS_E_TIMEOUT)
            throw Failure(s, -1, "the key-value store gave status %d for '%s'", s, key.c_str());
    }
}

void Mesh::connect(const std::string &prefix) {
    const auto device = settings_.device();
    guarded(-1, [&] {
        auto context = device->createContext(rank_, size_);
        context->setTimeout(kNever);
        for (int peer = 0; peer < size_; peer++)
            if (peer != rank_)
                context->createPair(peer);
        std::lock_guard<std::mutex> lock(mutex_);
        context_ = context;
    });
    make_buffers();
    const std::vector<char> mine = addresses();
    const tess_host &host = settings_.host();
    const tess_status s =
        host.kv_set(host.host, (prefix + "/gloo/" + std::to_string(rank_)).c_str(), mine.data(), mine.size());
    if (s != TESS_OK)
        throw Failure(s, -1, "the key-value store refused this rank's addresses, status %d", s);
    const size_t each = mine.size() / size_;
    for (int peer = 0; peer < size_; peer++) {
        if (peer == rank_)
            continue;
        waiting_for_ = peer;
        const std::vector<char> theirs = fetch(prefix + "/gloo/" + std::to_string(peer), mine.size());
        connect_pair(peer, theirs.data() + each * rank_, each);
    }
    // Receives that stay posted: a header ahead, the goodbye, and those that tell of a broken connection.
    for (int peer = 0; peer < size_; peer++) {
        if (peer == rank_)
            continue;
        waiting_for_ = peer;
        guarded(peer, [&] {
            goodbye_[peer]->recv(peer, kGoodbyeSlot, 0, sizeof(uint64_t));
            watch_->recv(peer, kWatchSlot, 0, sizeof(uint64_t));
            probe_[peer]->recv(peer, kProbeSlot, 0, sizeof(uint64_t));
        });
        for (int turn = 0; turn < 2; turn++)
            post_recv(kHeaderLane, peer, &got_headers_[2 * peer + turn], sizeof(Message));
    }
}

void Mesh::connect_pair(int peer, const char *address, size_t bytes) {
    uint16_t length;
    memcpy(&length, address, sizeof length);
    if (length == 0 || length > bytes - sizeof length)
        throw Failure(TESS_E_PEER, peer, "rank %d published no address", peer);
    check_stop();
    guarded(peer, [&] { context_->getPair(peer)->connect(std::vector<char>(address + 2, address + 2 + length)); });
    check_stop();
}

void Mesh::break_connect() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!context_)
        return;
    for (int peer = 0; peer < size_; peer++)
        if (peer != rank_)
            context_->getPair(peer)->close();
}

// A lane's buffers cover all of memory: a message's offset is its address. Gloo's buffers are then made once, not for
// each collective.
void Mesh::make_buffers() {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto everything = [&] { return context_->createUnboundBuffer(nullptr, SIZE_MAX); };
    for (int lane = 0; lane < kLanes; lane++) {
        send_[lane] = everything();
        for (int peer = 0; peer < size_; peer++)
            if (peer != rank_)
                recv_[lane][peer] = everything();
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

void Mesh::post_recv(Lane lane, int peer, void *to, size_t bytes) {
    check_stop();
    guarded(peer, [&] { recv_[lane][peer]->recv(peer, lane, reinterpret_cast<size_t>(to), bytes); });
}

void Mesh::post_send(Lane lane, int peer, const void *from, size_t bytes) {
    check_stop();
    guarded(peer, [&] { send_[lane]->send(peer, lane, reinterpret_cast<size_t>(from), bytes); });
    unsent_[lane]++;
}

// Gloo's wait returns false when wake() interrupted it.
void Mesh::wait_recv(Lane lane, int peer) {
    do
        check_stop();
    while (!guarded(peer, [&] { return recv_[lane][peer]->waitRecv(nullptr, kNever); }));
}

void Mesh::wait_sends(Lane lane) {
    while (unsent_[lane] > 0) {
        check_stop();
        if (guarded(-1, [&] { return send_[lane]->waitSend(nullptr, kNever); }))
            unsent_[lane]--;
    }
}

void Mesh::send_header(int peer, size_t payload_bytes) {
    post_send(kHeaderLane, peer, &sent_headers_[peer], sizeof(Header) + payload_bytes);
}

void Mesh::release_headers() {
    for (int peer = 0; peer < size_; peer++)
        if (peer != rank_)
            post_recv(kHeaderLane, peer, &got_headers_[2 * peer + turn_], sizeof(Message));
    turn_ ^= 1;
}

bool Mesh::header_came(int peer) {
    try { // the broken connection ends the wait; the first false is wake()'s
        for (int tries = 0; tries < 2; tries++)
            if (recv_[kHeaderLane][peer]->waitRecv(nullptr, kNever))
                return true;
    } catch (const std::exception &) {
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
    for (int lane = 0; lane < kLanes; lane++) {
        if (send_[lane])
            send_[lane]->abortWaitSend();
        for (auto &buffer : recv_[lane])
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
    for (int lane : { kDataLane, kOtherDataLane, kGatherLane }) {
        send_[lane].reset();
        for (auto &buffer : recv_[lane])
            buffer.reset();
    }
}

// Keeps Gloo's I/O thread going round. Closing a pair waits for it to come round once, which when idle takes 10 ms.
class Bell final : public gloo::transport::tcp::Handler {
  public:
    explicit Bell(gloo::transport::tcp::Device &device) : device_(device), fd_(eventfd(1, EFD_CLOEXEC)) {
        if (fd_ >= 0)
            device_.registerDescriptor(fd_, EPOLLIN, this);
    }
    ~Bell() override {
        if (fd_ < 0)
            return;
        try {
            device_.unregisterDescriptor(fd_, this);
        } catch (const std::exception &) { // then it was not registered
        }
        ::close(fd_);
    }
    Bell(const Bell &) = delete;
    Bell &operator=(const Bell &) = delete;
    void handleEvents(int) override {}

  private:
    gloo::transport::tcp::Device &device_;
    const int fd_;
};

void Mesh::close_pairs() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!context_)
        return;
    try {
        Bell bell(static_cast<gloo::transport::tcp::Device &>(*settings_.device()));
        for (int peer = 0; peer < size_; peer++) {
            auto &pair = context_->getPair(peer);
            if (peer != rank_ && pair)
                pair->close();
        }
    } catch (const std::exception &) { // what stays open is closed with the pair's end
    }
}

} // namespace tess_gloo
