/* SPDX-License-Identifier: BSD-3-Clause */
// comm-gloo: the vtable of tessera/plugin.h over Gloo. Nothing throws past this file.
#include "communicator.h"
#include <gloo/config.h>

namespace tess_gloo {
namespace {

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

tess_status query(void *, tess_comm *, tess_comm_caps *out) {
    const uint32_t can =
        TESS_COMM_THREAD_MULTIPLE | TESS_COMM_ABORT | TESS_COMM_SPLIT | TESS_COMM_BATCH | TESS_COMM_TREE_ORDER;
    tess_comm_caps caps = kit_caps(can, 1u << TESS_MEM_HOST | 1u << TESS_MEM_PINNED, "gloo-tcp/1");
    caps.op_mask |= 1u << TESS_ALL_TO_ALL_V;
    TESS_GIVE(out, &caps);
    return TESS_OK;
}

tess_status need(void *, const tess_plan_env *env, const tess_collective *c, tess_need *out) {
    const tess_collective call = kit_take_call(c, c->struct_size);
    if (env->nranks < 1 || check_collective(call, -1, env->nranks, nullptr) != TESS_OK)
        return TESS_E_UNSUPPORTED;
    tess_need need{};
    need.align = 64;
    need.device_bytes = scratch_bytes(call, env->nranks);
    // Header messages of every peer, partial sums, Gloo's own lists, and the stacks of three threads.
    need.backend_bytes =
        env->nranks > 1 ? (UINT64_C(1) << 20) + static_cast<uint64_t>(env->nranks) * (UINT64_C(32) << 10) : 0;
    TESS_GIVE(out, &need);
    return TESS_OK;
}

tess_status init(void *ctx, const tess_comm_config *cfg, tess_comm **out, tess_error *error) {
    return guarded(error, [&]() -> tess_status {
        const tess_status s = kit_check_place("gloo", cfg, error);
        if (s != TESS_OK)
            return s;
        auto comm = std::make_unique<Communicator>(context(ctx)->settings, *cfg, cfg->group);
        comm->start(cfg->timeout_ns);
        *out = comm.release();
        return TESS_OK;
    });
}

// Every rank learns every colour and key over the parent, then the members of each colour connect anew.
tess_status split(tess_comm *comm, int32_t color, int32_t key, const tess_comm_config *cfg, tess_comm **out,
                  tess_error *error) {
    return guarded(error, [&]() -> tess_status {
        Communicator &parent = *communicator(comm);
        const kit_choice choice = { color, key, 0 };
        std::vector<kit_choice> all(parent.size());
        std::vector<int32_t> members(parent.size());
        const tess_status s = kit_requests_choices(&comm->requests, &choice, all.data(), cfg->timeout_ns, error);
        if (s < 0)
            return s;
        if (color < 0) {
            *out = nullptr;
            return TESS_OK;
        }
        tess_comm_config mine{};
        mine.nranks = kit_split_members(all.data(), parent.size(), color, parent.rank(), members.data(), &mine.rank);
        const std::string group =
            (cfg->group != nullptr ? cfg->group : parent.prefix()) + ("/color" + std::to_string(color));
        auto child = std::make_unique<Communicator>(parent.settings(), mine, group);
        child->start(cfg->timeout_ns);
        *out = child.release();
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

const tess_comm_ops comm_ops = {
    sizeof(tess_comm_ops),
    TESS_ABI_MAJOR,
    TESS_ABI_MINOR,
    close,
    query,
    need,
    /* cost */ nullptr,
    init,
    split,
    kit_slot_finalize,
    destroy,
    kit_slot_abort,
    kit_slot_health,
    /* mem_alloc */ nullptr,
    /* mem_free */ nullptr,
    /* mem_register */ nullptr,
    /* mem_deregister */ nullptr,
    kit_slot_post,
    kit_slot_test,
    kit_slot_wait,
    kit_slot_wait_stream,
    kit_slot_request_free,
    /* mem_share */ nullptr,
};

} // namespace
} // namespace tess_gloo

extern "C" {
TESS_DESCRIPTOR(1u << TESS_KIND_COMM, "gloo", TESSERA_PLUGIN_VERSION, "BSD-3-Clause", "libgloo");

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
