/* SPDX-License-Identifier: BSD-3-Clause */
#include "communicator.h"

namespace tess_gloo {

Communicator::Communicator(std::shared_ptr<Settings> settings, const tess_comm_config &cfg, std::string prefix)
    : settings_(std::move(settings)), rank_(cfg.rank), size_(cfg.nranks), prefix_(std::move(prefix)),
      mesh_(size_ > 1 ? new Mesh(*settings_, rank_, size_, stop_) : nullptr),
      operations_(mesh_.get(), rank_, size_, [this] { return next(); }) {
    kit_requests_init(&requests, &ops, &settings_->host());
}

Communicator::~Communicator() {
    kit_requests_stop(&requests);
    wake(); // the watcher
    if (watcher_.joinable())
        watcher_.join();
    kit_requests_finish(&requests);
}

void Communicator::wake() {
    stop_ = true;
    if (mesh_)
        mesh_->wake();
    {
        std::lock_guard<std::mutex> lock(mutex_);
        wakes_++;
    }
    woken_.notify_all();
}

void Communicator::start(int64_t timeout_ns) {
    constexpr int64_t turn_ns = 10000000;
    const kit_joining joining = kit_joining_begin(&settings_->host(), "gloo", prefix_.c_str(), timeout_ns);
    tess_error error{};
    error.struct_size = sizeof error;
    tess_request *joined = nullptr;
    tess_status s = kit_requests_start(&requests, &error);
    if (s == TESS_OK)
        s = kit_requests_post_own(&requests, KIT_OP_JOIN, &joined, &error);
    while (s == TESS_OK && (s = kit_slot_test(joined, &error)) == TESS_PENDING) {
        kit_slot_wait(joined, turn_ns, nullptr);
        s = TESS_OK;
        tess_error late{};
        late.struct_size = sizeof late;
        if (kit_joining_check(&joining, mesh_ ? mesh_->waiting_for() : -1, &late) != TESS_OK)
            kit_requests_fail(&requests, &late);
    }
    kit_slot_request_free(joined);
    if (s != TESS_OK)
        throw Failure(error);
}

// ---- what the worker does -------------------------------------------------------------------------

void Communicator::connect() {
    if (!mesh_)
        return;
    mesh_->connect(prefix_);
    watcher_ = std::thread([this] { watch(); });
    operations_.meet(KIT_OP_JOIN, 0, seq_++);
}

void Communicator::finalize() {
    operations_.meet(KIT_OP_FINALIZE, 0, seq_++);
    leaving_ = true; // a peer may close its connection from here on, so that is no failure
    if (!mesh_)
        return;
    mesh_->send_byes();
    mesh_->await_byes();
}

void Communicator::run(const tess_collective *calls, uint32_t n, uint32_t own_op) {
    if (own_op == KIT_OP_JOIN)
        return connect();
    if (own_op == KIT_OP_FINALIZE)
        return finalize();
    last_ = calls + n - 1;
    for (call_ = calls; call_ <= last_; call_++)
        operations_.run(*call_, seq_++);
}

const tess_collective *Communicator::next() {
    return call_ < last_ ? call_ + 1 : kit_requests_next(&requests);
}

// Connections first, so that Gloo's thread stops, then its buffers: no caller's memory is touched from then on.
void Communicator::drain(tess_status cause) {
    wake();
    // After a mismatch the pairs stay open: this rank has requested no data, and its peers must still read its header.
    if (mesh_ && cause != TESS_E_MISMATCH)
        mesh_->close_pairs();
    if (mesh_)
        mesh_->drop_data();
}

void Communicator::leave(tess_status cause, bool aborted) {
    if (mesh_ && cause == TESS_E_MISMATCH && aborted)
        mesh_->close_pairs();
    if (mesh_)
        mesh_->release_sockets();
}

void Communicator::watch() {
    settings_->enter_thread("tess-gloo-watch");
    mesh_->watch();
    if (!stop_ && !leaving_)
        suspect();
    mesh_->lose_patience();
}

// A connection has ended. The worker gets a moment to find out why, unless somebody else wakes it.
void Communicator::suspect() {
    constexpr std::chrono::seconds kMoment(1);
    const Failure failure = mesh_->why(-1, "it closed");
    std::unique_lock<std::mutex> lock(mutex_);
    const unsigned wakes = wakes_ + 1; // the suspicion's own
    lock.unlock();
    kit_requests_suspect(&requests, &failure);
    lock.lock();
    woken_.wait_for(lock, kMoment, [&] { return wakes_ != wakes; });
}

const kit_requests_ops Communicator::ops = {
    "gloo",
    "tess-gloo-work",
    [](tess_comm *comm, const tess_collective *call, tess_error *error) {
        return check_collective(*call, self(comm)->rank_, self(comm)->size_, error);
    },
    [](tess_comm *comm, const tess_collective *calls, uint32_t n, uint32_t own_op, tess_error *error) {
        return guarded(error, [&] {
            self(comm)->run(calls, n, own_op);
            return TESS_OK;
        });
    },
    [](tess_comm *comm) { self(comm)->wake(); },
    [](tess_comm *comm, const tess_error *cause) { self(comm)->drain(cause->code); },
    [](tess_comm *comm, const tess_error *cause, int aborted) { self(comm)->leave(cause->code, aborted != 0); },
};

} // namespace tess_gloo
