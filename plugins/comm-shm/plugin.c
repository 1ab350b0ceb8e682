/* comm-shm: the vtable of tessera/plugin.h over memory that the ranks of one host share. */
#include "communicator.h"
#include "meeting.h"

#include <stdlib.h>

static void shm_close(void *ctx) {
    free(ctx);
}

static tess_status shm_options(void *ctx, const tess_option **out, uint32_t *n) {
    (void)ctx;
    *out = NULL;
    *n = 0;
    return TESS_OK;
}

/* ---- what it can do ------------------------------------------------------------------------------- */

/* At most what the caller has room for; the rest of it zeroed, its struct_size left alone. */
static void give(void *out, const void *value, uint32_t bytes) {
    uint32_t room, head = sizeof room;
    memcpy(&room, out, sizeof room);
    uint32_t both = room < bytes ? room : bytes;
    memcpy((char *)out + head, (const char *)value + head, both - head);
    memset((char *)out + both, 0, room - both);
}

static tess_status shm_query(void *ctx, tess_comm *comm, tess_comm_caps *out) {
    (void)ctx, (void)comm;
    tess_comm_caps caps = { .caps = TESS_COMM_THREAD_MULTIPLE | TESS_COMM_ABORT | TESS_COMM_SPLIT |
                                    TESS_COMM_ZERO_COPY | TESS_COMM_BATCH | TESS_COMM_TREE_ORDER,
                            .redop_mask = 1u << TESS_SUM | 1u << TESS_MIN | 1u << TESS_MAX,
                            .mem_mask = 1u << TESS_MEM_HOST | 1u << TESS_MEM_PINNED | 1u << TESS_MEM_SHM,
                            .align = 1,
                            .max_bytes = UINT64_C(1) << 48,
                            .wire_id = "shm/1" };
    for (uint32_t op = TESS_ALL_GATHER; op <= TESS_BARRIER; op++)
        caps.op_mask |= 1u << op;
    for (uint32_t dtype = TESS_U8; dtype <= TESS_F64; dtype++)
        caps.dtype_mask |= 1u << dtype;
    give(out, &caps, sizeof caps);
    return TESS_OK;
}

/* Whether these ranks can be served at all, as far as the plan knows. */
static int serves(const tess_plan_env *env) {
    return env->nranks >= 1 && env->nranks <= SHM_RANKS_MAX &&
           (env->ranks_per_host <= 0 || env->ranks_per_host >= env->nranks);
}

static tess_status shm_need(void *ctx, const tess_plan_env *env, const tess_collective *call, tess_need *out) {
    (void)ctx;
    struct shm_failure why;
    tess_collective c = shm_take_call(call, call->struct_size);
    if (!serves(env) || shm_check(&c, -1, env->nranks, &why) != TESS_OK)
        return TESS_E_UNSUPPORTED;
    /* The table, whose stages all ranks map and one fills, and a thread's stack. */
    tess_need need = { .align = 64, .backend_bytes = shm_table_bytes(env->nranks) + (UINT64_C(1) << 20) };
    give(out, &need, sizeof need);
    return TESS_OK;
}

/* A few exchanges of words, and what passes through memory: rough figures of a machine of 2023. */
static tess_status shm_cost(void *ctx, const tess_plan_env *env, const tess_collective *call, int64_t *ns) {
    (void)ctx;
    const double bytes_per_ns = 12, exchange_ns = 4000;
    tess_collective c = shm_take_call(call, call->struct_size);
    double w = env->nranks, bytes = (double)shm_bytes(&c), moved;
    if (!serves(env))
        return TESS_E_UNSUPPORTED;
    switch (c.op) {
    case TESS_ALL_GATHER: moved = 2 * (w - 1) * w * bytes; break;
    case TESS_ALL_TO_ALL: moved = 2 * w * w * bytes; break;
    case TESS_REDUCE_SCATTER: moved = (w + 1) * w * bytes; break;
    case TESS_ALL_REDUCE: moved = (3 * w - 1) * bytes; break;
    case TESS_BROADCAST: moved = 2 * (w - 1) * bytes; break;
    default: moved = 0;
    }
    *ns = (int64_t)(exchange_ns * (w > 1 ? 2 : 1) + moved / bytes_per_ns);
    return TESS_OK;
}

/* ---- making and ending ---------------------------------------------------------------------------- */

static tess_status make(void *ctx, const tess_comm_config *config, tess_comm **out, struct shm_failure *f) {
    struct shm_group *group;
    int members[SHM_RANKS_MAX];
    uint64_t offset = 0;
    if (config->nranks < 1 || config->rank < 0 || config->rank >= config->nranks || !config->group)
        return shm_fail(f, TESS_E_INVALID, -1, "shm: rank %d of %d ranks", config->rank, config->nranks);
    if (config->nranks > SHM_RANKS_MAX)
        return shm_fail(f, TESS_E_UNSUPPORTED, -1, "shm: %d ranks, serves %d at most", config->nranks, SHM_RANKS_MAX);
    tess_status s = shm_group_create(config->rank, config->nranks, &group, f);
    if (s)
        return s;
    /* Before the descriptor goes out, so that the table is there when the others map it. */
    if (config->rank == 0)
        s = shm_table_reserve(group, shm_table_bytes(config->nranks), &offset, f);
    if (s == TESS_OK)
        s = shm_meet(ctx, config, group, f);
    if (s) {
        shm_group_drop(group);
        return s;
    }
    for (int i = 0; i < config->nranks; i++)
        members[i] = i;
    return shm_comm_create(ctx, group, members, config->rank, config->nranks, config->group, 0, out, f);
}

static tess_status shm_init(void *ctx, const tess_comm_config *config, tess_comm **out, tess_error *error) {
    struct shm_failure f = { .status = TESS_OK };
    return make(ctx, config, out, &f) == TESS_OK ? TESS_OK : shm_report(&f, error);
}

/* What each rank of the parent tells the others in a split. */
struct choice {
    int32_t color, key;
    uint64_t table_offset;
};

/* An all_gather over the parent. */
static tess_status exchange(tess_comm *parent, const struct choice *mine, struct choice *all, int64_t timeout_ns,
                            struct shm_failure *f) {
    tess_request *request;
    struct shm_failure ignored;
    tess_collective c = { .struct_size = sizeof c,
                          .op = TESS_ALL_GATHER,
                          .send_dtype = TESS_I64,
                          .recv_dtype = TESS_I64,
                          .send_mem = TESS_MEM_HOST,
                          .recv_mem = TESS_MEM_HOST,
                          .send = mine,
                          .recv = all,
                          .count = sizeof *mine / sizeof(int64_t),
                          .tag = UINT64_C(0x73706c6974) /* "split" */ };
    tess_status s = shm_comm_post(parent, &c, 1, &request, f);
    if (s)
        return s;
    s = shm_comm_wait(request, timeout_ns > 0 ? timeout_ns : -1, f);
    if (s == TESS_E_TIMEOUT) { /* it still writes to `all`: end it before leaving */
        shm_comm_fail(parent, f);
        shm_comm_wait(request, -1, &ignored);
    }
    shm_comm_release(request);
    return s;
}

/* The ranks of one colour, ordered by key, then rank. */
static int list_members(const struct choice *all, int size, int32_t color, int *out) {
    int n = 0;
    for (int rank = 0; rank < size; rank++) {
        if (all[rank].color != color)
            continue;
        int at = n++;
        for (; at > 0 && all[out[at - 1]].key > all[rank].key; at--)
            out[at] = out[at - 1];
        out[at] = rank;
    }
    return n;
}

static tess_status divide(tess_comm *parent, int32_t color, int32_t key, const tess_comm_config *config,
                          tess_comm **out, struct shm_failure *f) {
    struct choice mine = { .color = color, .key = key }, all[SHM_RANKS_MAX];
    int ranks[SHM_RANKS_MAX], members[SHM_RANKS_MAX], self = 0;
    char prefix[256];
    tess_status s = exchange(parent, &mine, all, config->timeout_ns, f);
    if (s)
        return s;
    int n = color < 0 ? 0 : list_members(all, parent->size, color, ranks);
    if (n > 0 && ranks[0] == parent->rank)
        s = shm_table_reserve(parent->group, shm_table_bytes(n), &mine.table_offset, f);
    if (s) { /* the others wait for this rank: they must learn of it */
        shm_comm_fail(parent, f);
        return s;
    }
    s = exchange(parent, &mine, all, config->timeout_ns, f);
    if (s || color < 0) {
        if (s == TESS_OK)
            *out = NULL;
        return s;
    }
    for (int i = 0; i < n; i++) {
        members[i] = parent->members[ranks[i]];
        self = ranks[i] == parent->rank ? i : self;
    }
    snprintf(prefix, sizeof prefix, "%.200s/color%d", config->group ? config->group : parent->prefix, color);
    shm_group_keep(parent->group);
    return shm_comm_create(parent->settings, parent->group, members, self, n, prefix, all[ranks[0]].table_offset, out,
                           f);
}

static tess_status shm_split(tess_comm *comm, int32_t color, int32_t key, const tess_comm_config *config,
                             tess_comm **out, tess_error *error) {
    struct shm_failure f = { .status = TESS_OK };
    return divide(comm, color, key, config, out, &f) == TESS_OK ? TESS_OK : shm_report(&f, error);
}

static tess_status shm_finalize(tess_comm *comm, int64_t timeout_ns, tess_error *error) {
    struct shm_failure f = { .status = TESS_OK };
    return shm_comm_finalize(comm, timeout_ns, &f) == TESS_OK ? TESS_OK : shm_report(&f, error);
}

static tess_status shm_abort(tess_comm *comm, tess_status why) {
    struct shm_failure f;
    shm_fail(&f, why < 0 ? why : TESS_E_ABORTED, -1, "shm: the communicator was aborted");
    shm_comm_fail(comm, &f);
    return TESS_OK;
}

static tess_status shm_health(tess_comm *comm, tess_error *error) {
    struct shm_failure f;
    return shm_comm_health(comm, &f) == TESS_OK ? TESS_OK : shm_report(&f, error);
}

/* ---- memory --------------------------------------------------------------------------------------- */

static tess_status shm_mem_alloc(tess_comm *comm, const tess_alloc_request *r, tess_buffer *out, tess_error *error) {
    struct shm_failure f = { .status = TESS_OK };
    void *at;
    if (r->mem != TESS_MEM_HOST && r->mem != TESS_MEM_SHM)
        shm_fail(&f, TESS_E_UNSUPPORTED, -1, "shm: memory kind %u asked for, gives pageable host memory", r->mem);
    else
        shm_arena_alloc(comm->group, r->bytes, r->align, &at, &f);
    if (f.status != TESS_OK)
        return shm_report(&f, error);
    tess_buffer buffer = { .mem = r->mem, .ptr = at, .bytes = (r->bytes + 4095) / 4096 * 4096 };
    give(out, &buffer, sizeof buffer);
    return TESS_OK;
}

static void shm_mem_free(tess_comm *comm, tess_buffer *buffer) {
    if (buffer)
        shm_arena_free(comm->group, buffer->ptr);
}

/* ---- requests ------------------------------------------------------------------------------------- */

static tess_status shm_post(tess_comm *comm, const tess_collective *calls, uint32_t n, tess_request **out,
                            tess_error *error) {
    struct shm_failure f = { .status = TESS_OK };
    return shm_comm_post(comm, calls, n, out, &f) == TESS_OK ? TESS_OK : shm_report(&f, error);
}

static tess_status shm_wait(tess_request *request, int64_t timeout_ns, tess_error *error) {
    struct shm_failure f = { .status = TESS_OK };
    tess_status s = shm_comm_wait(request, timeout_ns, &f);
    return s < 0 ? shm_report(&f, error) : s;
}

static tess_status shm_test(tess_request *request, tess_error *error) {
    return shm_wait(request, 0, error);
}

static tess_status shm_wait_stream(tess_request *request, const tess_stream *stream, tess_error *error) {
    (void)stream; /* host memory: like wait */
    return shm_wait(request, -1, error);
}

static void shm_request_free(tess_request *request) {
    if (request)
        shm_comm_release(request);
}

/* ---- the two symbols ------------------------------------------------------------------------------ */

static const tess_comm_ops comm_ops = {
    .struct_size = sizeof comm_ops,
    .abi_major = TESS_ABI_MAJOR,
    .abi_minor = TESS_ABI_MINOR,
    .close = shm_close,
    .options = shm_options,
    .query = shm_query,
    .need = shm_need,
    .cost = shm_cost,
    .init = shm_init,
    .split = shm_split,
    .finalize = shm_finalize,
    .destroy = shm_comm_destroy,
    .abort = shm_abort,
    .health = shm_health,
    .mem_alloc = shm_mem_alloc,
    .mem_free = shm_mem_free,
    .post = shm_post,
    .test = shm_test,
    .wait = shm_wait,
    .wait_stream = shm_wait_stream,
    .request_free = shm_request_free,
};

__attribute__((section(".tessera.plugin"), used)) const tess_plugin_note tess_plugin_note_v1 = {
    .magic = "TESSPLG",
    .struct_size = sizeof(tess_plugin_note),
    .abi_major = TESS_ABI_MAJOR,
    .abi_minor = TESS_ABI_MINOR,
    .kinds = 1u << TESS_KIND_COMM,
    .name = "shm",
    .version = "0.1.0",
    .needs = "Linux",
};

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **ops, void **ctx, tess_error *error) {
    struct shm_failure f = { .status = TESS_OK };
    struct shm_settings *settings = malloc(sizeof *settings);
    if (kind != TESS_KIND_COMM)
        shm_fail(&f, TESS_E_UNSUPPORTED, -1, "shm: kind %u, offers comm only", kind);
    else if (host->args && *host->args)
        shm_fail(&f, TESS_E_INVALID, -1, "shm: takes no arguments, found \"%.100s\"", host->args);
    else if (!settings)
        shm_fail(&f, TESS_E_NOMEM, -1, "shm: no memory");
    if (f.status != TESS_OK) {
        free(settings);
        return shm_report(&f, error);
    }
    shm_settings_init(settings, host);
    *ctx = settings;
    *ops = &comm_ops;
    return TESS_OK;
}
