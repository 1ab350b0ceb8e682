// One communicator: requests in post order, a worker thread that runs them, a watcher that notices lost peers.
#pragma once
#include "failure.h"
#include "operations.h"
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

namespace tess_gloo {
class Communicator;
}

// One post: its collectives run one after another, and it ends when all have.
struct tess_request {
    tess_gloo::Communicator *comm = nullptr;
    tess_request *next = nullptr; // in the queue, or among the free ones
    std::vector<tess_collective> calls;
    uint32_t own_op = 0; // an operation of ours instead of `calls`
    std::atomic<tess_status> status{ TESS_PENDING };
    tess_gloo::Failure failure;
};

struct tess_comm {}; // what the ABI hands around; a Communicator is one

namespace tess_gloo {

class Communicator : public tess_comm {
  public:
    Communicator(std::shared_ptr<Settings> settings, const tess_comm_config &, std::string prefix);
    ~Communicator(); // waits for own threads only

    void start(int64_t timeout_ns);                          // connects; throws Failure
    tess_request *post(const tess_collective *, uint32_t n); // throws Failure
    tess_status wait(tess_request *, int64_t timeout_ns, Failure *);
    void release(tess_request *);
    void finalize(int64_t timeout_ns); // throws Failure
    void abort(tess_status why);
    tess_status health(Failure *);

    int rank() const { return rank_; }
    int size() const { return size_; }
    const std::string &prefix() const { return prefix_; }
    const std::shared_ptr<Settings> &settings() const { return settings_; }

  private:
    using Lock = std::unique_lock<std::mutex>;
    void work();
    void watch();
    void hello();
    void tear_down();
    void run(tess_request *);
    const tess_collective *next();
    void enqueue(Lock &, tess_request *);
    tess_request *take_free();
    void fail(const Failure &); // the first cause stays
    void end_all(Lock &);
    void end(tess_request *, const Failure &);
    template <class Ready>
    bool wait_until(Lock &, int64_t timeout_ns, Ready);

    const std::shared_ptr<Settings> settings_;
    const int rank_, size_;
    const std::string prefix_;
    std::atomic<bool> stop_{ false }; // give up all waiting on peers
    std::atomic<bool> leaving_{ false };
    std::unique_ptr<Mesh> mesh_; // null with one rank
    Operations operations_;
    uint64_t seq_ = 0;        // of the worker: exchanges so far
    size_t running_call_ = 0; // of the worker: which of running_'s calls

    std::mutex mutex_; // guards what follows
    std::condition_variable work_cv_, done_cv_;
    std::deque<tess_request> pool_;
    tess_request *free_ = nullptr, *head_ = nullptr, *tail_ = nullptr, *running_ = nullptr;
    Failure cause_; // status TESS_OK while all is well
    bool connected_ = false, finalized_ = false, quit_ = false, closed_ = false, aborted_ = false;
    std::thread worker_, watcher_;
};

} // namespace tess_gloo
