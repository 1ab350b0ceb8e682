/* SPDX-License-Identifier: BSD-3-Clause */
/* comm-nccl: the vtable of tessera/plugin.h over NCCL. */
#include "communicator.h"

#include <stdlib.h>

static void close_plugin(void *ctx) {
    free(ctx);
}

/* ---- what it can do ----------------------------------------------------------------------------- */

static tess_status nccl_query(void *ctx, tess_comm *comm, tess_comm_caps *out) {
    const struct nccl_settings *settings = ctx;
    int apart = settings->apart && (!comm || nccl_room_left(comm));
    const uint32_t can = TESS_COMM_THREAD_MULTIPLE | TESS_COMM_STREAM_ORDERED | TESS_COMM_ABORT | TESS_COMM_SPLIT |
                         TESS_COMM_BATCH | TESS_COMM_RECORDS;
    const uint32_t chosen = (settings->sums == NCCL_SUMS_TREE ? TESS_COMM_TREE_ORDER : 0) |
                            (apart ? TESS_COMM_APART : 0) |
                            ((comm ? nccl_memory_shares(comm) : settings->windows) ? TESS_COMM_SHARES : 0);
    tess_comm_caps caps = kit_caps(can | chosen, 1u << TESS_MEM_CUDA, "nccl/1");
    caps.op_mask |= 1u << TESS_ALL_TO_ALL_V;
    caps.align = 16;
    TESS_GIVE(out, &caps);
    return TESS_OK;
}

static tess_status nccl_need(void *ctx, const tess_plan_env *env, const tess_collective *call, tess_need *out) {
    enum { REQUESTS = 128 };
    const struct nccl_settings *settings = ctx;
    tess_collective c = kit_take_call(call, call->struct_size);
    if (env->nranks < 1 || nccl_check(&c, -1, env->nranks, settings->sums, NULL) != TESS_OK)
        return TESS_E_UNSUPPORTED;
    /* Counts our announcements and kernels, and an estimate of NCCL's channels; only hardware shows their real size. */
    uint64_t announcements = REQUESTS * sizeof(kit_announcement) * (1 + (uint64_t)env->nranks);
    tess_need need = { .align = 256,
                       .device_bytes = nccl_way_of(&c, env->nranks, settings->sums).scratch_bytes,
                       .backend_bytes =
                           announcements + (UINT64_C(4) << 20) + (env->nranks > 1 ? UINT64_C(512) << 20 : 0) };
    TESS_GIVE(out, &need);
    return TESS_OK;
}

/* Rough figures of GPUs that NVLink joins, else of one 400 Gb/s adapter per GPU. */
static tess_status nccl_cost(void *ctx, const tess_plan_env *env, const tess_collective *call, int64_t *ns) {
    const struct nccl_settings *settings = ctx;
    tess_collective c = kit_take_call(call, call->struct_size);
    int one_host = env->ranks_per_host <= 0 || env->ranks_per_host >= env->nranks;
    double w = env->nranks, bytes = (double)kit_bytes(&c), bytes_per_ns = one_host ? 300 : 40, sent;
    if (env->nranks > 0 && nccl_way_of(&c, env->nranks, settings->sums).how == NCCL_WIDENED)
        bytes *= 2; /* fp32 of 16 bits */
    switch (c.op) {
    case TESS_ALL_GATHER:
    case TESS_REDUCE_SCATTER:
    case TESS_ALL_TO_ALL: sent = (w - 1) * bytes; break;
    case TESS_ALL_TO_ALL_V: sent = (w - 1) / w * bytes; break;
    case TESS_ALL_REDUCE: sent = 2 * (w - 1) / w * bytes; break;
    case TESS_BROADCAST: sent = w > 1 ? bytes : 0; break;
    default: sent = 0;
    }
    *ns = (int64_t)((w > 1 ? 30000 : 5000) + sent / bytes_per_ns);
    return TESS_OK;
}

/* ---- making and ending -------------------------------------------------------------------------- */

static tess_status nccl_init(void *ctx, const tess_comm_config *config, tess_comm **out, tess_error *error) {
    tess_error f = { .struct_size = sizeof f, .rank = -1 };
    tess_comm *c = NULL;
    tess_status s = kit_check_place("nccl", config, &f);
    if (s == TESS_OK)
        s = nccl_comm_create(ctx, config, &c, &f);
    if (s)
        return tess_plugin_copy_error(error, &f);
    s = nccl_found(c, &f);
    if (s == TESS_OK)
        s = nccl_comm_begin(c, &f);
    if (s) {
        nccl_comm_destroy(c);
        return tess_plugin_copy_error(error, &f);
    }
    *out = c;
    return TESS_OK;
}

/* The same on the ranks of one group, and of no other group: their keys do not meet. */
static void name_group(tess_comm *parent, const char *group, int32_t color, char *out, size_t room) {
    snprintf(out, room, "%.150s.%d.%d", group ? group : parent->prefix, ++parent->splits, (int)color);
}

static tess_status nccl_split(tess_comm *parent, int32_t color, int32_t key, const tess_comm_config *config,
                              tess_comm **out, tess_error *error) {
    tess_error f = { .struct_size = sizeof f, .rank = -1 };
    char group[200];
    tess_comm_config mine = { .struct_size = sizeof mine,
                              .nranks = 1,
                              .device = parent->index,
                              .group = group,
                              .timeout_ns = config->timeout_ns };
    tess_comm *child = NULL;
    name_group(parent, config->group, color, group, sizeof group);
    tess_status s = color < 0 ? TESS_OK : nccl_comm_create(parent->settings, &mine, &child, &f);
    if (s == TESS_OK)
        s = nccl_enter(&parent->gpu, &f);
    if (s) { /* this rank cannot take part in the split, so the other ranks must not wait for it */
        nccl_comm_fail(parent, &f);
        goto err;
    }
    pthread_mutex_lock(&parent->lock);
    s = nccl_divide(parent, color, key, child, &f);
    pthread_mutex_unlock(&parent->lock);
    nccl_leave(&parent->gpu);
    if (s == TESS_OK && child)
        s = nccl_comm_begin(child, &f);
    if (s)
        goto err;
    *out = child;
    return TESS_OK;
err:
    nccl_comm_destroy(child);
    return tess_plugin_copy_error(error, &f);
}

static tess_status nccl_finalize(tess_comm *comm, int64_t timeout_ns, tess_error *error) {
    tess_error f = { .struct_size = sizeof f, .rank = -1 };
    return nccl_comm_finalize(comm, timeout_ns, &f) == TESS_OK ? TESS_OK : tess_plugin_copy_error(error, &f);
}

static tess_status abort_comm(tess_comm *comm, tess_status why) {
    tess_error f = { .struct_size = sizeof f };
    tess_plugin_fail(&f, why < 0 ? why : TESS_E_ABORTED, "nccl: the communicator was aborted");
    nccl_comm_fail(comm, &f);
    return TESS_OK;
}

static tess_status nccl_health(tess_comm *comm, tess_error *error) {
    tess_error f = { .struct_size = sizeof f };
    return nccl_comm_health(comm, &f) == TESS_OK ? TESS_OK : tess_plugin_copy_error(error, &f);
}

/* ---- memory ------------------------------------------------------------------------------------- */

static tess_status mem_alloc(tess_comm *comm, const tess_alloc_request *r, tess_buffer *out, tess_error *error) {
    tess_error f = { .struct_size = sizeof f, .rank = -1 };
    tess_buffer buffer = { .mem = TESS_MEM_CUDA };
    if (r->mem != TESS_MEM_CUDA)
        tess_plugin_fail(&f, TESS_E_UNSUPPORTED, "nccl: memory kind %u asked for, gives a GPU's memory", r->mem);
    else
        nccl_memory_obtain(comm, r->bytes, &buffer, &f);
    if (f.code != TESS_OK)
        return tess_plugin_copy_error(error, &f);
    TESS_GIVE(out, &buffer);
    return TESS_OK;
}

static tess_status mem_register(tess_comm *comm, tess_buffer *buffer, tess_error *error) {
    tess_error f = { .struct_size = sizeof f, .rank = -1 };
    void *reg;
    tess_status s = buffer->mem == TESS_MEM_CUDA
                        ? nccl_memory_register(comm, buffer->ptr, buffer->bytes, &reg, &f)
                        : tess_plugin_fail(&f, TESS_E_UNSUPPORTED, "nccl: registers a GPU's memory only");
    if (s)
        return tess_plugin_copy_error(error, &f);
    buffer->reg = reg;
    return TESS_OK;
}

static void mem_deregister(tess_comm *comm, tess_buffer *buffer) {
    if (buffer && buffer->reg)
        nccl_memory_deregister(comm, buffer->reg);
}

static tess_status mem_share(tess_comm *comm, tess_buffer *buffer, tess_error *error) {
    tess_error f = { .struct_size = sizeof f, .rank = -1 };
    return nccl_memory_share(comm, buffer, &f) == TESS_OK ? TESS_OK : tess_plugin_copy_error(error, &f);
}

static void mem_free(tess_comm *comm, tess_buffer *buffer) {
    if (buffer && buffer->ptr)
        nccl_memory_release(comm, buffer);
}

/* ---- requests ----------------------------------------------------------------------------------- */

static tess_status nccl_post(tess_comm *comm, const tess_collective *calls, uint32_t n, tess_request **out,
                             tess_error *error) {
    tess_error f = { .struct_size = sizeof f, .rank = -1 };
    return nccl_comm_post(comm, calls, n, out, &f) == TESS_OK ? TESS_OK : tess_plugin_copy_error(error, &f);
}

static tess_status nccl_wait(tess_request *request, int64_t timeout_ns, tess_error *error) {
    tess_error f = { .struct_size = sizeof f, .rank = -1 };
    tess_status s = nccl_comm_wait(request, timeout_ns, &f);
    return s < 0 ? tess_plugin_copy_error(error, &f) : s;
}

static tess_status nccl_test(tess_request *request, tess_error *error) {
    return nccl_wait(request, 0, error);
}

static tess_status wait_stream(tess_request *request, const tess_stream *stream, tess_error *error) {
    tess_error f = { .struct_size = sizeof f, .rank = -1 };
    return nccl_comm_wait_stream(request, stream, &f) == TESS_OK ? TESS_OK : tess_plugin_copy_error(error, &f);
}

static void request_free(tess_request *request) {
    if (request)
        nccl_comm_release(request);
}

/* ---- the two symbols ---------------------------------------------------------------------------- */

static const tess_comm_ops comm_ops = {
    .struct_size = sizeof comm_ops,
    .abi_major = TESS_ABI_MAJOR,
    .abi_minor = TESS_ABI_MINOR,
    .close = close_plugin,
    .query = nccl_query,
    .need = nccl_need,
    .cost = nccl_cost,
    .init = nccl_init,
    .split = nccl_split,
    .finalize = nccl_finalize,
    .destroy = nccl_comm_destroy,
    .abort = abort_comm,
    .health = nccl_health,
    .mem_alloc = mem_alloc,
    .mem_free = mem_free,
    .mem_register = mem_register,
    .mem_deregister = mem_deregister,
    .post = nccl_post,
    .test = nccl_test,
    .wait = nccl_wait,
    .wait_stream = wait_stream,
    .request_free = request_free,
    .mem_share = mem_share,
};

TESS_DESCRIPTOR(1u << TESS_KIND_COMM, "nccl", TESSERA_PLUGIN_VERSION, "BSD-3-Clause", "NCCL >= 2.18, an NVIDIA GPU");

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **ops, void **ctx, tess_error *error) {
    tess_error f = { .struct_size = sizeof f, .rank = -1 };
    struct nccl_settings *settings = malloc(sizeof *settings);
    if (kind != TESS_KIND_COMM)
        tess_plugin_fail(&f, TESS_E_UNSUPPORTED, "nccl: kind %u, offers comm only", kind);
    else if (!settings)
        tess_plugin_fail(&f, TESS_E_NOMEM, "nccl: no memory");
    else
        nccl_settings_init(settings, host, &f);
    if (f.code != TESS_OK) {
        free(settings);
        return tess_plugin_copy_error(error, &f);
    }
    *ctx = settings;
    *ops = &comm_ops;
    return TESS_OK;
}
