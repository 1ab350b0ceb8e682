/* SPDX-License-Identifier: BSD-3-Clause */
// Raw Gloo against this plugin, in one run: the same ranks, sizes and memory, turn by turn.
//
//     raw_gloo PLUGIN.so RANKS [LEAST_BYTES MOST_BYTES [ROUNDS]]
//
// For each operation and size every contender runs in turn, ROUNDS times, each turn the same number of collectives back
// to back (the plugin's posted ahead, as NCCL's tests do). Bus bandwidth as there: all_gather and reduce_scatter
// bytes * (W-1)/W / time, all_reduce twice that, where bytes is the whole buffer. Printed for the median turn and, on a
// busy machine the better guide, for the fastest, with the processor time of rank 0 for one collective and how often
// its threads went to sleep (w); then the plugin's bandwidth over that of Gloo's best algorithm, for both.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <functional>
#include <gloo/allgather.h>
#include <gloo/allgather_ring.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <memory>
#include <string>
#include <sys/resource.h>
#include <sys/wait.h>
#include <tessera/plugin.h>
#include <unistd.h>
#include <vector>

namespace {

struct Contender {
    const char *name;
    std::function<void(int times)> run;
    std::vector<double> seconds, cpu, waits;
    Contender(const char *what, std::function<void(int)> how) : name(what), run(std::move(how)) {}
};

double cpu_seconds() { // sums the processor time of all threads of this rank
    rusage u;
    getrusage(RUSAGE_SELF, &u);
    const auto of = [](const timeval &t) {
        return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
    };
    return of(u.ru_utime) + of(u.ru_stime);
}

double waits() { // counts how often a thread of this rank went to sleep
    rusage u;
    getrusage(RUSAGE_SELF, &u);
    return static_cast<double>(u.ru_nvcsw);
}

// A synchronous algorithm, as often as asked.
template <class Call>
std::function<void(int)> again(Call call) {
    return [call](int times) {
        for (int i = 0; i < times; i++)
            call();
    };
}

[[noreturn]] void die(const char *what, const char *why) {
    fprintf(stderr, "raw_gloo: %s: %s\n", what, why);
    _exit(1);
}

// The plugin's host: a key-value store in files of the run's directory, as Gloo's own store is.
std::string directory;
std::string key_file(const char *key) {
    std::string name = key;
    std::replace(name.begin(), name.end(), '/', '_');
    return directory + "/kv-" + name;
}
tess_status kv_set(void *, const char *key, const void *value, uint64_t bytes) {
    const std::string part = key_file(key) + ".part";
    FILE *f = fopen(part.c_str(), "wb");
    if (f == nullptr || fwrite(value, 1, bytes, f) != bytes || fclose(f) != 0)
        return TESS_E_SYSTEM;
    return rename(part.c_str(), key_file(key).c_str()) == 0 ? TESS_OK : TESS_E_SYSTEM;
}
tess_status kv_get(void *, const char *key, void *value, uint64_t *bytes, int64_t timeout_ns) {
    for (int64_t waited = 0;; waited += 1000000) {
        if (FILE *f = fopen(key_file(key).c_str(), "rb")) {
            *bytes = fread(value, 1, *bytes, f);
            fclose(f);
            return TESS_OK;
        }
        if (waited > timeout_ns)
            return TESS_E_TIMEOUT;
        usleep(1000);
    }
}

const char *no_option(void *, const char *) {
    return nullptr;
}
int32_t never_aborting(void *) {
    return 0;
}
void no_log(void *, int32_t, const char *, const char *) {}

struct Plugin {
    tess_host host{};
    const tess_comm_ops *ops = nullptr;
    void *ctx = nullptr;
    tess_comm *comm = nullptr;
    std::vector<char> scratch;

    Plugin(const char *path, int rank, int size) {
        host.struct_size = sizeof host;
        host.abi_major = TESS_ABI_MAJOR;
        host.abi_minor = TESS_ABI_MINOR;
        host.option = no_option;
        host.aborting = never_aborting;
        host.log = no_log;
        host.kv_set = kv_set;
        host.kv_get = kv_get;
        host.args = host.helper_cpus = "";
        host.numa_node = host.max_helper_threads = -1;
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr)
            die(path, dlerror());
        auto open = reinterpret_cast<decltype(&tess_plugin_open_v1)>(dlsym(library, "tess_plugin_open_v1"));
        tess_error e{};
        e.struct_size = sizeof e;
        const void *table = nullptr;
        if (open(&host, TESS_KIND_COMM, &table, &ctx, &e) != TESS_OK)
            die(path, e.message);
        ops = static_cast<const tess_comm_ops *>(table);
        tess_comm_config cfg{};
        cfg.struct_size = sizeof cfg;
        cfg.rank = rank;
        cfg.nranks = size;
        cfg.group = "bench";
        cfg.timeout_ns = 20000000000;
        if (ops->init(ctx, &cfg, &comm, &e) != TESS_OK)
            die("init", e.message);
    }

    void run(uint32_t op, const float *send, float *recv, uint64_t count, int size, int times) {
        tess_collective c{};
        c.struct_size = sizeof c;
        c.op = op;
        c.redop = TESS_SUM;
        c.send_dtype = c.recv_dtype = TESS_F32;
        c.send_mem = c.recv_mem = TESS_MEM_HOST;
        c.send = send;
        c.recv = recv;
        c.count = count;
        c.scale = 1;
        tess_plan_env env{};
        env.struct_size = sizeof env;
        env.nranks = size;
        tess_need need{};
        need.struct_size = sizeof need;
        ops->need(ctx, &env, &c, &need);
        if (scratch.size() < need.device_bytes)
            scratch.resize(need.device_bytes);
        c.scratch = scratch.data();
        c.scratch_bytes = scratch.size();
        tess_error e{};
        e.struct_size = sizeof e;
        std::vector<tess_request *> requests(times);
        for (auto &request : requests)
            if (ops->post(comm, &c, 1, &request, &e) != TESS_OK)
                die("post", e.message);
        for (auto request : requests) {
            if (ops->wait(request, -1, &e) != TESS_OK)
                die("wait", e.message);
            ops->request_free(request);
        }
    }
};

struct Bench {
    int rank, size, rounds;
    uint64_t least, most;
    std::shared_ptr<gloo::Context> context;
    std::unique_ptr<Plugin> plugin;
    std::vector<float> in, out;
    uint32_t tag = 0;

    double turn(const std::function<void(int)> &run, int times) {
        gloo::BarrierOptions barrier(context);
        barrier.setTag(tag++);
        gloo::barrier(barrier);
        const auto begin = std::chrono::steady_clock::now();
        run(times);
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / times;
    }

    void compete(const char *op, uint64_t bytes, double factor, std::vector<Contender> list) {
        const auto none = [](const Contender &c) { return *c.name == '\0'; };
        list.erase(std::remove_if(list.begin(), list.end(), none), list.end());
        const int times = static_cast<int>(std::clamp<uint64_t>((UINT64_C(32) << 20) / bytes, 2, 16));
        for (auto &c : list)
            turn(c.run, 2);
        for (int round = 0; round < rounds; round++)
            for (auto &c : list) {
                const double before = cpu_seconds(), waits_before = waits();
                c.seconds.push_back(turn(c.run, times));
                c.cpu.push_back((cpu_seconds() - before) / times);
                c.waits.push_back((waits() - waits_before) / times);
            }
        if (rank != 0)
            return;
        double best[2] = { 0, 0 }, ours[2] = { 0, 0 };
        printf("%-15s %9llu", op, static_cast<unsigned long long>(bytes));
        for (auto &c : list) {
            std::sort(c.seconds.begin(), c.seconds.end());
            std::sort(c.cpu.begin(), c.cpu.end());
            std::sort(c.waits.begin(), c.waits.end());
            for (int k = 0; k < 2; k++) {
                ours[k] = static_cast<double>(bytes) * factor / c.seconds[k == 0 ? c.seconds.size() / 2 : 0] / 1e9;
                if (&c != &list.back())
                    best[k] = std::max(best[k], ours[k]);
            }
            printf("  %s %.2f %.2f %.0fus %.0fw", c.name, ours[0], ours[1], c.cpu[c.cpu.size() / 2] * 1e6,
                   c.waits[c.waits.size() / 2]);
        }
        printf("  GB/s; ratio %.2f %.2f\n", ours[0] / best[0], ours[1] / best[1]);
        fflush(stdout);
    }

    void all_gather(uint64_t bytes) {
        const size_t each = bytes / 4 / size;
        gloo::AllgatherRing<float> ring(context, { in.data() }, out.data(), static_cast<int>(each));
        compete("all_gather", bytes, 1.0 * (size - 1) / size,
                { { "allgather", again([&] {
                        gloo::AllgatherOptions o(context);
                        o.setInput(in.data(), each);
                        o.setOutput(out.data(), each * size);
                        o.setTag(tag++);
                        gloo::allgather(o);
                    }) },
                  { "AllgatherRing", again([&] { ring.run(); }) },
                  { "plugin",
                    [&](int times) { plugin->run(TESS_ALL_GATHER, in.data(), out.data(), each, size, times); } } });
    }

    void reduce_scatter(uint64_t bytes) {
        const size_t each = bytes / 4 / size;
        gloo::ReduceScatterHalvingDoubling<float> halving(context, { in.data() }, static_cast<int>(each * size),
                                                          std::vector<int>(size, static_cast<int>(each)));
        compete("reduce_scatter", bytes, 1.0 * (size - 1) / size,
                { { "HalvingDoubling", again([&] { halving.run(); }) }, { "plugin", [&](int times) {
                                                                             plugin->run(TESS_REDUCE_SCATTER, in.data(),
                                                                                         out.data(), each, size, times);
                                                                         } } });
    }

    void all_reduce(uint64_t bytes) {
        const size_t n = bytes / 4;
        const auto with = [&, n](gloo::detail::AllreduceOptionsImpl::Algorithm algorithm) {
            gloo::AllreduceOptions o(context);
            o.setAlgorithm(algorithm);
            o.setInput(in.data(), n);
            o.setOutput(out.data(), n);
            o.setReduceFunction([](void *a, const void *b, const void *c, size_t m) {
                gloo::sum<float>(static_cast<float *>(a), static_cast<const float *>(b), static_cast<const float *>(c),
                                 m);
            });
            o.setTag(tag++);
            gloo::allreduce(o);
        };
        // Gloo 0.5's unbound ring stalls with four ranks on loopback (0.00 GB/s): with more than two it is left out.
        gloo::AllreduceHalvingDoubling<float> halving(context, { in.data() }, static_cast<int>(n));
        gloo::AllreduceRingChunked<float> chunked(context, { in.data() }, static_cast<int>(n));
        compete(
            "all_reduce", bytes, 2.0 * (size - 1) / size,
            { { size > 2 ? "" : "ring", again([&] { with(gloo::detail::AllreduceOptionsImpl::RING); }) },
              { "bcube", again([&] { with(gloo::detail::AllreduceOptionsImpl::BCUBE); }) },
              { "HalvingDoubling", again([&] { halving.run(); }) },
              { "RingChunked", again([&] { chunked.run(); }) },
              { "plugin", [&](int times) { plugin->run(TESS_ALL_REDUCE, in.data(), out.data(), n, size, times); } } });
    }

    void run(const char *path) {
        auto device = gloo::transport::tcp::CreateDevice("127.0.0.1");
        auto made = std::make_shared<gloo::rendezvous::Context>(rank, size);
        gloo::rendezvous::FileStore store(directory);
        made->connectFullMesh(store, device);
        context = made;
        plugin = std::make_unique<Plugin>(path, rank, size);
        in.assign(most / 4, 0.0f);
        out.assign(most / 4, 0.0f);
        for (uint64_t bytes = least; bytes <= most; bytes *= 4) {
            all_gather(bytes);
            reduce_scatter(bytes);
            all_reduce(bytes);
        }
        tess_error e{};
        e.struct_size = sizeof e;
        plugin->ops->finalize(plugin->comm, 20000000000, &e);
        plugin->ops->destroy(plugin->comm);
        plugin->ops->close(plugin->ctx);
    }
};

int rank_main(int rank, int size, char **argv, int argc) {
    Bench b{};
    b.rank = rank;
    b.size = size;
    b.least = argc > 4 ? strtoull(argv[3], nullptr, 10) : 1 << 20;
    b.most = argc > 4 ? strtoull(argv[4], nullptr, 10) : 64 << 20;
    b.rounds = argc > 5 ? atoi(argv[5]) : 9;
    try {
        b.run(argv[1]);
    } catch (const std::exception &e) {
        die("gloo", e.what());
    }
    return 0;
}

} // namespace

int main(int argc, char **argv) {
    const int size = argc > 2 ? atoi(argv[2]) : 0;
    if (size < 2 || size > 64) {
        fprintf(stderr, "usage: raw_gloo PLUGIN.so RANKS [LEAST_BYTES MOST_BYTES [ROUNDS]]\n");
        return 2;
    }
    char name[] = "/tmp/raw-gloo-XXXXXX";
    if (mkdtemp(name) == nullptr)
        return 1;
    directory = name;
    for (int rank = 0; rank < size; rank++) {
        const pid_t pid = fork();
        if (pid < 0)
            return 1;
        if (pid == 0)
            _exit(rank_main(rank, size, argv, argc));
    }
    int failed = 0;
    for (int status; wait(&status) > 0;)
        failed |= status;
    const std::string clean = "rm -rf " + directory;
    return system(clean.c_str()) != 0 || failed != 0;
}
