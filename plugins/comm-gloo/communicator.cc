#include "communicator.h"
#include <algorithm>

namespace tess_gloo {

constexpr size_t kRequests = 64; // made at the start; more are made when more are outstanding

static uint64_t fnv(const std::string &text) {
    uint64_t hash = 14695981039346656037u;
    for (unsigned char c : text)
        hash = (hash ^ c) * 1099511628211u;
    return hash;
}

Communicator::Communicator(std::shared_ptr<Settings> settings, const tess_comm_config &cfg, std::string prefix)
    : settings_(std::move(settings)), rank_(cfg.rank), size_(cfg.nranks), prefix_(std::move(prefix)),
      mesh_(size_ > 1 ? new Mesh(*settings_, rank_, size_, stop_) : nullptr),
      operations_(mesh_.get(), rank_, size_, [this] { return next(); }) {
    for (size_t i = 0; i < kRequests; i++) {
        pool_.emplace_back();
        pool_.back().calls.reserve(4);
        pool_.back().next = free_;
        free_ = &pool_.back();
    }
}

Communicator::~Communicator() {
    bool orderly;
    {
        Lock lock(mutex_);
        orderly = finalized_;
        quit_ = true;
    }
    if (!orderly)
        fail(Failure(TESS_E_ABORTED, -1, "the communicator was destroyed"));
    else if (mesh_)
        stop_ = true, mesh_->wake(); // the watcher
    work_cv_.notify_all();
    if (worker_.joinable())
        worker_.join();
    if (watcher_.joinable())
        watcher_.join();
}

template <class Ready>
bool Communicator::wait_until(Lock &lock, int64_t timeout_ns, Ready ready) {
    // About a century: a sum with the clock that cannot overflow.
    constexpr int64_t forever = INT64_C(3000000000000000000);
    if (timeout_ns < 0 || timeout_ns > forever) {
        done_cv_.wait(lock, ready);
        return true;
    }
    return done_cv_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), ready);
}

// ---- starting -------------------------------------------------------------------------------------

void Communicator::start(int64_t timeout_ns) {
    worker_ = std::thread([this] { work(); });
    const auto begin = std::chrono::steady_clock::now();
    // Closing resets a connection. A peer that has not looked at it yet by then is ended by Gloo: its I/O thread asks
    // for the name of the other side and throws, where nobody can catch it. So what was just opened gets time to
    // arrive.
    int turns_to_arrive = 6;
    Lock lock(mutex_);
    while (!connected_ && !closed_) {
        done_cv_.wait_for(lock, std::chrono::milliseconds(10));
        if (connected_ || closed_)
            break;
        lock.unlock();
        const auto spent =
            std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin);
        if (settings_->aborting())
            fail(Failure(TESS_E_ABORTED, -1, "the run was aborted while connecting group '%.100s'", prefix_.c_str()));
        else if (timeout_ns > 0 && spent.count() > timeout_ns)
            fail(Failure(TESS_E_TIMEOUT, mesh_->waiting_for(), "rank %d has not joined group '%.100s' within %.1f s",
                         mesh_->waiting_for(), prefix_.c_str(), static_cast<double>(timeout_ns) * 1e-9));
        if (stop_ && mesh_ && turns_to_arrive-- <= 0)
            mesh_->break_connect();
        lock.lock();
    }
    if (cause_.status != TESS_OK)
        throw Failure(cause_);
}

void Communicator::hello() {
    if (mesh_) {
        mesh_->connect(prefix_);
        operations_.meet(kOpHello, fnv(prefix_), seq_++);
        watcher_ = std::thread([this] { watch(); });
    }
    Lock lock(mutex_);
    connected_ = true;
    done_cv_.notify_all();
}

void Communicator::watch() {
    settings_->enter_thread("tess-gloo-watch");
    mesh_->watch();
    if (stop_ || leaving_)
        return;
    const int peer = mesh_->dead_peer();
    fail(Failure(TESS_E_PEER, peer, "rank %d closed its connection", peer));
}

// ---- the worker -----------------------------------------------------------------------------------

void Communicator::work() {
    settings_->enter_thread("tess-gloo-work");
    try {
        hello();
        Lock lock(mutex_);
        while (!stop_ && !(quit_ && head_ == nullptr)) {
            if (head_ == nullptr) {
                work_cv_.wait(lock);
                continue;
            }
            running_ = head_;
            head_ = head_->next;
            if (head_ == nullptr)
                tail_ = nullptr;
            lock.unlock();
            run(running_);
            lock.lock();
            end(running_, Failure());
            running_ = nullptr;
        }
    } catch (const Failure &f) {
        fail(f);
    } catch (const std::exception &e) {
        fail(Failure(TESS_E_INTERNAL, -1, "gloo: %.200s", e.what()));
    }
    tear_down();
}

// Connections first, so that Gloo's thread stops, then its buffers: no caller's memory is touched from then on, and the
// requests may end.
void Communicator::tear_down() {
    Lock lock(mutex_);
    const tess_status cause = cause_.status;
    lock.unlock();
    // After a mismatch no data has been asked for, and the others must still be able to read what we said.
    if (mesh_ && cause != TESS_OK && cause != TESS_E_MISMATCH)
        mesh_->close_pairs();
    if (mesh_)
        mesh_->drop_data();
    lock.lock();
    end_all(lock);
    closed_ = true;
    done_cv_.notify_all();
    if (cause != TESS_E_MISMATCH)
        return;
    work_cv_.wait(lock, [&] { return aborted_ || quit_; });
    const bool hard = aborted_;
    lock.unlock();
    if (mesh_ && hard)
        mesh_->close_pairs();
}

void Communicator::run(tess_request *request) {
    if (request->own_op != 0) {
        operations_.meet(request->own_op, 0, seq_++);
        leaving_ = true; // from here a peer may close
        if (mesh_)
            mesh_->send_byes();
        if (mesh_)
            mesh_->await_byes();
        return;
    }
    for (running_call_ = 0; running_call_ < request->calls.size(); running_call_++)
        operations_.run(request->calls[running_call_], seq_++);
}

// The collective behind the one that runs now. Only the worker takes requests off the queue, so it stays.
const tess_collective *Communicator::next() {
    if (running_call_ + 1 < running_->calls.size())
        return &running_->calls[running_call_ + 1];
    Lock lock(mutex_);
    return head_ != nullptr && head_->own_op == 0 ? head_->calls.data() : nullptr;
}

// ---- requests -------------------------------------------------------------------------------------

tess_request *Communicator::take_free() {
    if (free_ == nullptr) {
        pool_.emplace_back();
        return &pool_.back();
    }
    tess_request *request = free_;
    free_ = request->next;
    return request;
}

void Communicator::enqueue(Lock &, tess_request *request) {
    request->comm = this;
    request->next = nullptr;
    request->failure = Failure();
    request->status.store(TESS_PENDING, std::memory_order_relaxed);
    (tail_ != nullptr ? tail_->next : head_) = request;
    tail_ = request;
    work_cv_.notify_one();
}

tess_request *Communicator::post(const tess_collective *calls, uint32_t n) {
    if (n == 0 || calls->struct_size < offsetof(tess_collective, tag) + sizeof calls->tag)
        throw Failure(TESS_E_INVALID, -1, "gloo: %u collectives of %u bytes each", n, n == 0 ? 0 : calls->struct_size);
    Lock lock(mutex_);
    if (cause_.status != TESS_OK)
        throw Failure(cause_);
    if (finalized_)
        throw Failure(TESS_E_INVALID, -1, "gloo: post after finalize");
    tess_request *request = take_free();
    request->own_op = 0;
    request->calls.clear();
    const auto *bytes = reinterpret_cast<const unsigned char *>(calls);
    for (uint32_t i = 0; i < n; i++) {
        tess_collective call{};
        memcpy(&call, bytes + size_t{ i } * calls->struct_size, std::min<size_t>(calls->struct_size, sizeof call));
        Failure why;
        if (!check_collective(call, rank_, size_, &why)) {
            request->next = free_, free_ = request;
            throw why;
        }
        request->calls.push_back(call);
    }
    enqueue(lock, request);
    return request;
}

tess_status Communicator::wait(tess_request *request, int64_t timeout_ns, Failure *out) {
    tess_status status = request->status.load(std::memory_order_acquire);
    if (status == TESS_PENDING) {
        if (timeout_ns == 0)
            return TESS_PENDING;
        Lock lock(mutex_);
        const auto ended = [&] { return request->status.load(std::memory_order_acquire) != TESS_PENDING; };
        if (!wait_until(lock, timeout_ns, ended)) {
            *out = Failure(TESS_E_TIMEOUT, -1, "gloo: not done within %.3f s", static_cast<double>(timeout_ns) * 1e-9);
            return TESS_E_TIMEOUT;
        }
        status = request->status.load(std::memory_order_acquire);
    }
    *out = request->failure;
    return status;
}

void Communicator::release(tess_request *request) {
    Lock lock(mutex_);
    request->next = free_;
    free_ = request;
}

void Communicator::end(tess_request *request, const Failure &failure) {
    request->failure = failure;
    request->status.store(failure.status, std::memory_order_release);
    done_cv_.notify_all();
}

void Communicator::end_all(Lock &) {
    const Failure failure =
        cause_.status != TESS_OK ? cause_ : Failure(TESS_E_ABORTED, -1, "the communicator was destroyed");
    if (running_ != nullptr)
        end(running_, failure);
    for (tess_request *r = head_; r != nullptr; r = r->next)
        end(r, failure);
    running_ = head_ = tail_ = nullptr;
}

// ---- ending ---------------------------------------------------------------------------------------

void Communicator::fail(const Failure &failure) {
    {
        Lock lock(mutex_);
        if (cause_.status == TESS_OK)
            cause_ = failure;
        stop_ = true;
        work_cv_.notify_all();
    }
    if (mesh_)
        mesh_->wake();
}

void Communicator::abort(tess_status why) {
    {
        Lock lock(mutex_);
        aborted_ = true;
    }
    fail(Failure(why < 0 ? why : TESS_E_ABORTED, -1, "the communicator was aborted"));
}

tess_status Communicator::health(Failure *out) {
    Lock lock(mutex_);
    *out = cause_;
    return cause_.status;
}

void Communicator::finalize(int64_t timeout_ns) {
    Lock lock(mutex_);
    if (cause_.status != TESS_OK)
        throw Failure(cause_);
    if (finalized_)
        return;
    tess_request *request = take_free();
    request->own_op = kOpFinalize;
    request->calls.clear();
    enqueue(lock, request);
    const auto ended = [&] { return request->status.load(std::memory_order_acquire) != TESS_PENDING; };
    if (!wait_until(lock, timeout_ns, ended))
        throw Failure(TESS_E_TIMEOUT, -1, "gloo: the other ranks have not come to finalize");
    const Failure failure = request->failure;
    request->next = free_, free_ = request;
    if (failure.status != TESS_OK)
        throw failure;
    finalized_ = true;
}

} // namespace tess_gloo
