/* SPDX-License-Identifier: BSD-3-Clause */
// One communicator: the kit's queue and worker over a mesh, and a watcher that notices lost peers.
#pragma once
#include "failure.h"
#include "operations.h"
#include "requests.h"
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

struct tess_comm { // the handle that the plugin interface passes; Communicator derives from it
    kit_requests requests;
};

namespace tess_gloo {

class Communicator : public tess_comm {
  public:
    Communicator(std::shared_ptr<Settings> settings, const tess_comm_config &, std::string prefix);
    ~Communicator(); // waits for own threads only

    void start(int64_t timeout_ns); // connects; throws Failure

    int rank() const { return rank_; }
    int size() const { return size_; }
    const std::string &prefix() const { return prefix_; }
    const std::shared_ptr<Settings> &settings() const { return settings_; }
    static const kit_requests_ops ops; // the callbacks that `requests` runs

  private:
    static Communicator *self(tess_comm *comm) { return static_cast<Communicator *>(comm); }
    void run(const tess_collective *, uint32_t n, uint32_t own_op);
    void connect();
    void finalize();
    void drain(tess_status cause);
    void leave(tess_status cause, bool aborted);
    void wake();
    void watch();
    void suspect();
    const tess_collective *next();

    const std::shared_ptr<Settings> settings_;
    const int rank_, size_;
    const std::string prefix_;
    std::atomic<bool> stop_{ false }; // give up all waiting on peers
    std::atomic<bool> leaving_{ false };
    std::unique_ptr<Mesh> mesh_; // null with one rank
    Operations operations_;
    uint64_t seq_ = 0;                                        // worker only: header exchanges so far
    const tess_collective *call_ = nullptr, *last_ = nullptr; // worker only: running, last of request
    std::thread watcher_;
    std::mutex mutex_; // of what follows
    std::condition_variable woken_;
    unsigned wakes_ = 0;
};

} // namespace tess_gloo
