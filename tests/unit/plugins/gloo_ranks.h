/* SPDX-License-Identifier: BSD-3-Clause */
// Ranks of comm-gloo in one process, over a key-value store of the test's own.
#pragma once
#include "plugins/comm-gloo/failure.h"
#include "plugins/comm-gloo/mesh.h"
#include "plugins/comm-gloo/proof.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace tess_gloo {

// What a host gives its plugins.
struct Host {
    using Text = std::map<std::string, std::string>;
    struct Store {
        std::mutex lock;
        std::condition_variable changed;
        Text values;
        void set(const std::string &key, const std::string &value) {
            std::lock_guard<std::mutex> held(lock);
            values[key] = value;
            changed.notify_all();
        }
        Card card(const std::string &key) {
            Card c{};
            std::lock_guard<std::mutex> held(lock);
            memcpy(&c, values[key].data(), std::min(values[key].size(), sizeof c));
            return c;
        }
    };

    Host(std::shared_ptr<Store> s, Text o) : store(std::move(s)), options(std::move(o)) {
        table.struct_size = sizeof table;
        table.host = this;
        table.args = table.helper_cpus = "";
        table.option = [](void *host, const char *key) -> const char * {
            const Text &all = static_cast<Host *>(host)->options;
            const auto found = all.find(key);
            return found != all.end() ? found->second.c_str() : nullptr;
        };
        table.kv_set = [](void *host, const char *key, const void *value, uint64_t bytes) -> tess_status {
            Host &h = *static_cast<Host *>(host);
            if (h.set_status == TESS_OK)
                h.store->set(key, std::string(static_cast<const char *>(value), bytes));
            return h.set_status;
        };
        table.kv_get = [](void *host, const char *key, void *value, uint64_t *bytes, int64_t timeout_ns) {
            return static_cast<Host *>(host)->get(key, value, bytes, timeout_ns);
        };
        table.aborting = [](void *) { return 0; };
    }
    Host(const Host &) = delete;
    Host &operator=(const Host &) = delete;

    std::shared_ptr<Store> store;
    Text options;
    std::atomic<tess_status> set_status{ TESS_OK }, get_status{ TESS_OK };
    std::vector<int64_t> timeouts_ns; // of the gets so far
    tess_host table{};

  private:
    tess_status get(const char *key, void *value, uint64_t *bytes, int64_t timeout_ns) {
        std::unique_lock<std::mutex> held(store->lock);
        timeouts_ns.push_back(timeout_ns);
        if (get_status != TESS_OK)
            return get_status;
        const auto there = [&] { return store->values.count(key) != 0; };
        if (!store->changed.wait_for(held, std::chrono::nanoseconds(timeout_ns), there))
            return TESS_E_TIMEOUT;
        const std::string &found = store->values[key];
        memcpy(value, found.data(), std::min<size_t>(found.size(), *bytes));
        *bytes = found.size();
        return TESS_OK;
    }
};

// How a call failed; code TESS_OK: it did not.
inline Failure failure_in(const std::function<void()> &call) {
    try {
        call();
    } catch (const Failure &f) {
        return f;
    }
    return Failure(TESS_OK, -1, "%s", "");
}

// A call on a thread of its own.
class Call {
  public:
    explicit Call(std::function<void()> call)
        : call_(std::move(call)), thread_([this] {
              failure_ = failure_in(call_);
              ended_ = true;
          }) {}
    ~Call() {
        if (thread_.joinable())
            thread_.join();
    }
    bool ended() const { return ended_; }
    const Failure &join() {
        if (thread_.joinable())
            thread_.join();
        return failure_;
    }

  private:
    std::function<void()> call_;
    Failure failure_{ TESS_OK, -1, "%s", "" };
    std::atomic<bool> ended_{ false };
    std::thread thread_;
};

inline void pause_ms(int ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}
// True within the time that a busy machine may need.
inline bool becomes(const std::function<bool()> &what) {
    for (int i = 0; i < 20000 && !what(); i++)
        pause_ms(1);
    return what();
}

struct Rank {
    Rank(std::shared_ptr<Host::Store> store, int rank, int size, const Host::Text &options)
        : host(std::move(store), options), settings(&host.table), mesh(new Mesh(settings, rank, size, stop)) {}
    Host host;
    Settings settings;
    std::atomic<bool> stop{ false };
    std::unique_ptr<Mesh> mesh;
};

// Ranks that have met.
class Group {
  public:
    explicit Group(int size, const char *heartbeat = "0") {
        auto store = std::make_shared<Host::Store>();
        std::vector<std::unique_ptr<Call>> meeting;
        for (int r = 0; r < size; r++)
            ranks_.emplace_back(new Rank(store, r, size, { { "heartbeat", heartbeat } }));
        for (const auto &rank : ranks_)
            meeting.emplace_back(new Call([&rank] { rank->mesh->connect("group"); }));
        for (const auto &call : meeting)
            if (call->join().code != TESS_OK)
                failure_ = call->join().message;
        card_0_ = store->card("group/gloo/0");
    }
    const std::string &failure() const { return failure_; }
    const Card &card_0() const { return card_0_; } // by which rank 0 was met
    int size() const { return static_cast<int>(ranks_.size()); }
    Mesh &operator[](int r) { return *ranks_[r]->mesh; }
    void stop(int r) { ranks_[r]->stop = true; }
    void end(int r) { ranks_[r]->mesh.reset(); } // its connections close

  private:
    std::vector<std::unique_ptr<Rank>> ranks_;
    std::string failure_;
    Card card_0_{};
};

} // namespace tess_gloo
