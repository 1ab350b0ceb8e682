/* SPDX-License-Identifier: BSD-3-Clause */
/* comm-shm: the vtable of tessera/plugin.h over memory that the ranks of one host share. */
#include "communicator.h"
#include "rendezvous.h"

#include <stdlib.h>

/* ---- what it can do ------------------------------------------------------------------------------- */

static tess_status shm_query(void *ctx, tess_comm *comm, tess_comm_caps *out) {
    (void)ctx, (void)comm;
    const uint32_t can =
        TESS_COMM_THREAD_MULTIPLE | TESS_COMM_ABORT | TESS_COMM_SPLIT | TESS_COMM_BATCH | TESS_COMM_TREE_ORDER;
    tess_comm_caps caps = kit_caps(can, shm_reach.mem_mask, "shm/1");
    caps.op_mask |= 1u << TESS_ALL_TO_ALL_V;
    TESS_GIVE(out, &caps);
    return TESS_OK;
}

/* Returns 1 if the planned ranks may share one host and fit the table. */
static int serves(const tess_plan_env *env) {
    return env->nranks >= 1 && env->nranks <= SHM_RANKS_MAX &&
           (env->ranks_per_host <= 0 || env->ranks_per_host >= env->nranks);
}

static tess_status shm_need(void *ctx, const tess_plan_env *env, const tess_collective *call, tess_need *out) {
    (void)ctx;
    tess_collective c = kit_take_call(call, call->struct_size);
    if (!serves(env) || kit_check_call(&shm_reach, &c, -1, env->nranks, 0, NULL) != TESS_OK)
        return TESS_E_UNSUPPORTED;
    /* Counts the table with all ranks' stages, and the stack of the worker thread. */
    tess_need need = { .align = 64, .backend_bytes = shm_table_bytes(env->nranks) + (UINT64_C(1) << 20) };
    TESS_GIVE(out, &need);
    return TESS_OK;
}

/* A few exchanges of words, and what passes through memory: rough figures of a machine of 2023. */
static tess_status shm_cost(void *ctx, const tess_plan_env *env, const tess_collective *call, int64_t *ns) {
    (void)ctx;
    const double bytes_per_ns = 12, exchange_ns = 4000;
    tess_collective c = kit_take_call(call, call->struct_size);
    double w = env->nranks, bytes = (double)kit_bytes(&c), moved;
    if (!serves(env))
        return TESS_E_UNSUPPORTED;
    switch (c.op) {
    case TESS_ALL_GATHER: moved = 2 * (w - 1) * w * bytes; break;
    case TESS_ALL_TO_ALL: moved = 2 * w * w * bytes; break;
    case TESS_ALL_TO_ALL_V: moved = 2 * w * bytes; break;
    case TESS_REDUCE_SCATTER: moved = (w + 1) * w * bytes; break;
    case TESS_ALL_REDUCE: moved = (3 * w - 1) * bytes; break;
    case TESS_BROADCAST: moved = 2 * (w - 1) * bytes; break;
    default: moved = 0;
    }
    *ns = (int64_t)(exchange_ns * (w > 1 ? 2 : 1) + moved / bytes_per_ns);
    return TESS_OK;
}

/* ---- making and ending ---------------------------------------------------------------------------- */

static tess_status shm_init(void *ctx, const tess_comm_config *config, tess_comm **out, tess_error *e) {
    struct shm_group *group;
    int members[SHM_RANKS_MAX];
    uint64_t offset = 0;
    tess_status s = kit_check_place("shm", config, e);
    if (s)
        return s;
    if (config->nranks > SHM_RANKS_MAX)
        return tess_plugin_fail(e, TESS_E_UNSUPPORTED, "shm: %d ranks, serves %d at most", config->nranks,
                                SHM_RANKS_MAX);
    s = shm_group_create(config->rank, config->nranks, &group, e);
    if (s)
        return s;
    /* Rank 0 reserves the table before it sends the descriptor, so that the table exists when the others map it. */
    if (config->rank == 0)
        s = shm_table_reserve(group, shm_table_bytes(config->nranks), &offset, e);
    if (s == TESS_OK)
        s = shm_meet(ctx, config, group, e);
    if (s) {
        shm_group_drop(group);
        return s;
    }
    for (int i = 0; i < config->nranks; i++)
        members[i] = i;
    return shm_comm_create(ctx, group, members, config->rank, config->nranks, config->group, 0, out, e);
}

/* The others wait for a rank that cannot make its table: they must learn of it. */
static tess_status reserve_table(tess_comm *parent, int nranks, uint64_t *offset, tess_error *error) {
    tess_error e = { .struct_size = sizeof e, .rank = -1 };
    tess_status s = shm_table_reserve(parent->group, shm_table_bytes(nranks), offset, &e);
    if (s == TESS_OK)
        return s;
    kit_requests_fail(&parent->requests, &e);
    return tess_plugin_copy_error(error, &e);
}

static tess_status shm_split(tess_comm *parent, int32_t color, int32_t key, const tess_comm_config *config,
                             tess_comm **out, tess_error *e) {
    kit_choice mine = { .color = color, .key = key }, all[SHM_RANKS_MAX];
    int ranks[SHM_RANKS_MAX], members[SHM_RANKS_MAX], self = 0;
    char prefix[256];
    tess_status s = kit_requests_choices(&parent->requests, &mine, all, config->timeout_ns, e);
    if (s)
        return s;
    int n = kit_split_members(all, parent->size, color, parent->rank, ranks, &self);
    if (n > 0 && ranks[0] == parent->rank)
        s = reserve_table(parent, n, &mine.value, e);
    if (s == TESS_OK) /* now with the place of each new table */
        s = kit_requests_choices(&parent->requests, &mine, all, config->timeout_ns, e);
    if (s || color < 0) {
        if (s == TESS_OK)
            *out = NULL;
        return s;
    }
    for (int i = 0; i < n; i++)
        members[i] = parent->members[ranks[i]];
    snprintf(prefix, sizeof prefix, "%.200s/color%d", config->group ? config->group : parent->prefix, color);
    shm_group_keep(parent->group);
    return shm_comm_create(parent->requests.host, parent->group, members, self, n, prefix, all[ranks[0]].value, out, e);
}

/* ---- memory --------------------------------------------------------------------------------------- */

static tess_status shm_mem_alloc(tess_comm *comm, const tess_alloc_request *r, tess_buffer *out, tess_error *error) {
    tess_buffer buffer = { .mem = r->mem, .bytes = (r->bytes + 4095) / 4096 * 4096 };
    if (r->mem != TESS_MEM_HOST && r->mem != TESS_MEM_SHM)
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "shm: memory kind %u asked for, gives pageable host memory",
                                r->mem);
    tess_status s = shm_arena_alloc(comm->group, r->bytes, r->align, &buffer.ptr, error);
    if (s == TESS_OK)
        TESS_GIVE(out, &buffer);
    return s;
}

static void shm_mem_free(tess_comm *comm, tess_buffer *buffer) {
    if (buffer)
        shm_arena_free(comm->group, buffer->ptr);
}

/* ---- the two symbols ------------------------------------------------------------------------------ */

static const tess_comm_ops comm_ops = {
    .struct_size = sizeof comm_ops,
    .abi_major = TESS_ABI_MAJOR,
    .abi_minor = TESS_ABI_MINOR,
    .query = shm_query,
    .need = shm_need,
    .cost = shm_cost,
    .init = shm_init,
    .split = shm_split,
    .destroy = shm_comm_destroy,
    .mem_alloc = shm_mem_alloc,
    .mem_free = shm_mem_free,
    KIT_REQUEST_SLOTS,
};

TESS_DESCRIPTOR(1u << TESS_KIND_COMM, "shm", TESSERA_PLUGIN_VERSION, "BSD-3-Clause", "Linux");

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **ops, void **ctx, tess_error *error) {
    if (kind != TESS_KIND_COMM)
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "shm: kind %u, offers comm only", kind);
    if (host->args && *host->args)
        return tess_plugin_fail(error, TESS_E_INVALID, "shm: takes no arguments, found \"%.100s\"", host->args);
    *ctx = (void *)host;
    *ops = &comm_ops;
    return TESS_OK;
}
