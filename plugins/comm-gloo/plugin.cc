// comm-gloo: the vtable of tessera/plugin.h over Gloo. Nothing throws past this file.
#include "communicator.h"
#include <algorithm>
#include <gloo/config.h>

namespace tess_gloo {
namespace {

// Runs `body`; what it throws becomes a status and a tess_error.
template <class Body>
tess_status guarded(tess_error *error, Body body) {
    try {
        return body();
    } catch (const Failure &f) {
        return report(f, error);
    } catch (const std::bad_alloc &) {
        return report(Failure(TESS_E_NOMEM, -1, "gloo: out of memory"), error);
    } catch (const std::exception &e) {
        return report(Failure(TESS_E_INTERNAL, -1, "gloo: %.200s", e.what()), error);
    } catch (...) {
        return report(Failure(TESS_E_INTERNAL, -1, "gloo: unknown exception"), error);
    }
}

struct Context {
    std::shared_ptr<Settings> settings;
};
Context *context(void *ctx) {
    return static_cast<Context *>(ctx);
}
Communicator *communicator(tess_comm *comm) {
    return static_cast<Communicator *>(comm);
}

void close(void *ctx) {
    guarded(nullptr, [&] {
        delete context(ctx);
        return TESS_OK;
    });
}

const tess_option option_list[] = {
    { sizeof(tess_option), 3, "gloo-interface", "", "network interface Gloo uses, for ranks on several hosts" },
    { sizeof(tess_option), 3, "gloo-hostname", "127.0.0.1", "name or address Gloo listens on" },
};
tess_status options(void *, const tess_option **out, uint32_t *n) {
    *out = option_list;
    *n = sizeof option_list / sizeof *option_list;
    return TESS_OK;
}

template <class T>
void give(T *out, T value) { // at most what the caller has room for; the rest of it zeroed
    const uint32_t size = out->struct_size;
    value.struct_size = size;
    memset(out, 0, size);
    memcpy(out, &value, std::min<size_t>(size, sizeof value));
}

tess_status query(void *, tess_comm *, tess_comm_caps *out) {
    tess_comm_caps caps{};
    caps.caps = TESS_COMM_THREAD_MULTIPLE | TESS_COMM_ABORT | TESS_COMM_SPLIT | TESS_COMM_BATCH | TESS_COMM_TREE_ORDER;
    for (uint32_t op = TESS_ALL_GATHER; op <= TESS_BARRIER; op++)
        caps.op_mask |= 1u << op;
    caps.redop_mask = 1u << TESS_SUM | 1u << TESS_MIN | 1u << TESS_MAX;
    for (uint32_t dtype = TESS_U8; dtype <= TESS_F64; dtype++)
        caps.dtype_mask |= 1u << dtype;
    caps.mem_mask = 1u << TESS_MEM_HOST | 1u << TESS_MEM_PINNED;
    caps.align = 1;
    caps.max_bytes = UINT64_C(1) << 48;
    // Gloo's handshake between two ranks changed when it got one listening socket per device.
#if __has_include(<gloo/transport/tcp/listener.h>)
    snprintf(caps.wire_id, sizeof caps.wire_id, "gloo-tcp-listener/1");
#else
    snprintf(caps.wire_id, sizeof caps.wire_id, "gloo-tcp/1");
#endif
    give(out, caps);
    return TESS_OK;
}

tess_status need(void *, const tess_plan_env *env, const tess_collective *c, tess_need *out) {
    tess_collective call{};
    memcpy(&call, c, std::min<size_t>(c->struct_size, sizeof call));
    Failure why;
    if (env->nranks < 1 || !check_collective(call, -1, env->nranks, &why))
        return TESS_E_UNSUPPORTED;
    tess_need need{};
    need.align = 64;
    need.device_bytes = scratch_bytes(call, env->nranks);
    // Header messages of every peer, partial sums, Gloo's own lists, and the stacks of three threads.
    need.backend_bytes =
        env->nranks > 1 ? (UINT64_C(1) << 20) + static_cast<uint64_t>(env->nranks) * (UINT64_C(32) << 10) : 0;
    give(out, need);
    return TESS_OK;
}

tess_status init(void *ctx, const tess_comm_config *cfg, tess_comm **out, tess_error *error) {
    return guarded(error, [&] {
        if (cfg->nranks < 1 || cfg->rank < 0 || cfg->rank >= cfg->nranks || cfg->group == nullptr)
            throw Failure(TESS_E_INVALID, -1, "gloo: rank %d of %d ranks", cfg->rank, cfg->nranks);
        auto comm = std::make_unique<Communicator>(context(ctx)->settings, *cfg, cfg->group);
        comm->start(cfg->timeout_ns);
        *out = comm.release();
        return TESS_OK;
    });
}

// Every rank learns every colour and key over the parent, then the members of each colour connect anew.
struct Choice {
    int32_t color, key;
};
std::vector<Choice> choices(Communicator &parent, Choice mine, int64_t timeout_ns) {
    std::vector<Choice> all(parent.size());
    all[parent.rank()] = mine;
    tess_collective c{};
    c.struct_size = sizeof c;
    c.op = TESS_ALL_GATHER;
    c.send_dtype = c.recv_dtype = TESS_I32;
    c.send_mem = c.recv_mem = TESS_MEM_HOST;
    c.send = &all[parent.rank()];
    c.recv = all.data();
    c.count = 2;
    c.tag = UINT64_C(0x73706c6974); // "split"
    tess_request *request = parent.post(&c, 1);
    Failure failure;
    if (parent.wait(request, timeout_ns > 0 ? timeout_ns : -1, &failure) == TESS_E_TIMEOUT) {
        parent.abort(TESS_E_TIMEOUT); // the exchange still writes to `all`: end it before leaving
        parent.wait(request, -1, &failure);
    }
    parent.release(request);
    if (failure.status != TESS_OK)
        throw failure;
    return all;
}

tess_status split(tess_comm *comm, int32_t color, int32_t key, const tess_comm_config *cfg, tess_comm **out,
                  tess_error *error) {
    return guarded(error, [&] {
        Communicator &parent = *communicator(comm);
        const std::vector<Choice> all = choices(parent, { color, key }, cfg->timeout_ns);
        if (color < 0) {
            *out = nullptr;
            return TESS_OK;
        }
        std::vector<int> members;
        for (int rank = 0; rank < parent.size(); rank++)
            if (all[rank].color == color)
                members.push_back(rank);
        std::stable_sort(members.begin(), members.end(), [&](int a, int b) { return all[a].key < all[b].key; });
        tess_comm_config mine{};
        mine.rank = static_cast<int32_t>(std::find(members.begin(), members.end(), parent.rank()) - members.begin());
        mine.nranks = static_cast<int32_t>(members.size());
        const std::string group =
            (cfg->group != nullptr ? cfg->group : parent.prefix()) + ("/color" + std::to_string(color));
        auto child = std::make_unique<Communicator>(parent.settings(), mine, group);
        child->start(cfg->timeout_ns);
        *out = child.release();
        return TESS_OK;
    });
}

tess_status finalize(tess_comm *comm, int64_t timeout_ns, tess_error *error) {
    return guarded(error, [&] {
        communicator(comm)->finalize(timeout_ns);
        return TESS_OK;
    });
}

void destroy(tess_comm *comm) {
    guarded(nullptr, [&] {
        if (comm != nullptr)
            delete communicator(comm);
        return TESS_OK;
    });
}

tess_status abort_comm(tess_comm *comm, tess_status why) {
    return guarded(nullptr, [&] {
        communicator(comm)->abort(why);
        return TESS_OK;
    });
}

tess_status health(tess_comm *comm, tess_error *error) {
    return guarded(error, [&] {
        Failure failure;
        return communicator(comm)->health(&failure) == TESS_OK ? TESS_OK : report(failure, error);
    });
}

tess_status post(tess_comm *comm, const tess_collective *calls, uint32_t n, tess_request **out, tess_error *error) {
    return guarded(error, [&] {
        *out = communicator(comm)->post(calls, n);
        return TESS_OK;
    });
}

tess_status wait(tess_request *request, int64_t timeout_ns, tess_error *error) {
    return guarded(error, [&] {
        Failure failure;
        const tess_status status = request->comm->wait(request, timeout_ns, &failure);
        return status < 0 ? report(failure, error) : status;
    });
}

tess_status test(tess_request *request, tess_error *error) {
    return wait(request, 0, error);
}

tess_status wait_stream(tess_request *request, const tess_stream *, tess_error *error) { // host memory: like wait
    return wait(request, -1, error);
}

void request_free(tess_request *request) {
    guarded(nullptr, [&] {
        if (request != nullptr)
            request->comm->release(request);
        return TESS_OK;
    });
}

const tess_comm_ops comm_ops = {
    sizeof(tess_comm_ops),
    TESS_ABI_MAJOR,
    TESS_ABI_MINOR,
    close,
    options,
    query,
    need,
    /* cost */ nullptr,
    init,
    split,
    finalize,
    destroy,
    abort_comm,
    health,
    /* mem_alloc */ nullptr,
    /* mem_free */ nullptr,
    /* mem_register */ nullptr,
    /* mem_deregister */ nullptr,
    post,
    /* progress: own threads */ nullptr,
    test,
    wait,
    wait_stream,
    request_free,
};

} // namespace
} // namespace tess_gloo

extern "C" {
__attribute__((section(".tessera.plugin"), used)) const tess_plugin_note tess_plugin_note_v1 = {
    "TESSPLG", sizeof(tess_plugin_note), TESS_ABI_MAJOR, TESS_ABI_MINOR, 0,
    0,         1u << TESS_KIND_COMM,     "gloo",         "0.1.0",        "",
    "libgloo",
};

TESS_EXPORT tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **ops, void **ctx,
                                            tess_error *error) {
    using namespace tess_gloo;
    return guarded(error, [&] {
        if (kind != TESS_KIND_COMM)
            throw Failure(TESS_E_UNSUPPORTED, -1, "gloo: kind %u, offers comm only", kind);
        auto made = std::make_unique<Context>();
        made->settings = std::make_shared<Settings>(host);
        *ctx = made.release();
        *ops = &comm_ops;
        return TESS_OK;
    });
}
}
