/* SPDX-License-Identifier: BSD-3-Clause */
/* TESSERA_COMM=fault:FAULT,op=NAME,at=N,rank=R,over=PLUGIN: the other plugin, but that on rank R the N-th operation of
 * that name is delayed, dropped, corrupted, or the end of the process. A plugin on top of another: it opens it through
 * the host table, hands every slot through, and wraps communicators and requests to know them again. */
#include "settings.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

TESS_DESCRIPTOR(1u << TESS_KIND_COMM, "fault", "1.0.0", "", "another comm plugin");

typedef struct {
    const tess_host *host;
    settings settings;
    const tess_comm_ops *under; /* the other plugin */
    void *under_ctx, *handle;
    uint64_t seen; /* operations so far that the settings speak of */
    int silent;    /* after a drop nothing leaves this rank any more */
} context;

struct tess_comm {
    context *ctx;
    tess_comm *under;
    int32_t rank; /* in the world */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    tess_status aborted; /* of the dropped requests, which the other plugin does not know */
    tess_request *spare; /* kept, so that a step allocates nothing */
};

struct tess_request {
    tess_request *next; /* among the spare ones */
    tess_comm *comm;
    tess_request *under; /* null: dropped */
    void *spoil;         /* where a bit is to be turned over once it has ended */
    uint32_t op;
};

/* ---- the fault --------------------------------------------------------------------------------- */

static int strikes(const tess_comm *comm, uint32_t op) {
    context *c = comm->ctx;
    const settings *s = &c->settings;
    if (s->fault == NO_FAULT || (s->op && s->op != op) || (s->rank >= 0 && s->rank != comm->rank))
        return 0;
    c->seen++;
    return !s->at || c->seen == s->at;
}

static void say(const tess_comm *comm, const char *what, uint32_t op) {
    char line[160];
    snprintf(line, sizeof line, "%s on rank %d: %s number %llu", what, (int)comm->rank, settings_op_name(op),
             (unsigned long long)comm->ctx->seen);
    comm->ctx->host->log(comm->ctx->host->host, 1, "comm fault", line);
}

static void sleep_ms(int64_t ms) {
    struct timespec t = { ms / 1000, ms % 1000 * 1000000 };
    while (nanosleep(&t, &t) != 0 && errno == EINTR)
        ;
}

static void *byte_to_spoil(const tess_collective *c) {
    uint32_t bytes = tess_dtype_bytes(c->recv_dtype ? c->recv_dtype : c->send_dtype);
    return c->count && c->recv ? (char *)c->recv + (bytes == 4 ? 2 : bytes == 8 ? 6 : 0) : NULL;
}

/* Does what is due to one collective before it is posted. Nothing to post: TESS_PENDING. */
static tess_status befall(tess_comm *comm, tess_collective *c, tess_request *request) {
    if (comm->ctx->silent)
        return TESS_PENDING;
    if (!strikes(comm, c->op))
        return TESS_OK;
    switch (comm->ctx->settings.fault) {
    case DELAY: say(comm, "delay", c->op), sleep_ms(comm->ctx->settings.delay_ms); break;
    case DROP: say(comm, "drop", c->op), comm->ctx->silent = 1; return TESS_PENDING;
    case CORRUPT_DATA: say(comm, "corrupted data", c->op), request->spoil = byte_to_spoil(c); break;
    case CORRUPT_TAG: say(comm, "corrupted tag", c->op), c->tag ^= 1; break;
    default: say(comm, "kill", c->op), kill(getpid(), SIGKILL);
    }
    return TESS_OK;
}

/* One bit of the first element, in the upper part of a float's mantissa. */
static void spoil(tess_request *r) {
    if (r->spoil)
        *(unsigned char *)r->spoil ^= 0x40;
    r->spoil = NULL;
}

/* ---- requests ---------------------------------------------------------------------------------- */

static tess_request *take_request(tess_comm *comm) {
    pthread_mutex_lock(&comm->lock);
    tess_request *r = comm->spare;
    if (r)
        comm->spare = r->next;
    pthread_mutex_unlock(&comm->lock);
    if (!r)
        r = malloc(sizeof *r);
    if (r)
        *r = (tess_request){ .comm = comm };
    return r;
}

static void keep_request(tess_request *r) {
    pthread_mutex_lock(&r->comm->lock);
    r->next = r->comm->spare;
    r->comm->spare = r;
    pthread_mutex_unlock(&r->comm->lock);
}

static tess_status fault_post(tess_comm *comm, const tess_collective *c, uint32_t n, tess_request **out,
                              tess_error *error) {
    const tess_comm_ops *under = comm->ctx->under;
    tess_request *r = take_request(comm);
    tess_collective own;
    tess_status s = TESS_OK;
    if (!r)
        return tess_plugin_fail(error, TESS_E_NOMEM, "comm fault: no memory for a request");
    r->op = c->op;
    if (n == 1 && c->struct_size <= sizeof own) { /* a longer one, or a batch, goes through as it is */
        memset(&own, 0, sizeof own);
        memcpy(&own, c, c->struct_size);
        s = befall(comm, &own, r);
        c = &own;
    }
    if (s == TESS_OK)
        s = under->post(comm->under, c, n, &r->under, error);
    if (s < 0)
        keep_request(r);
    else
        *out = r;
    return s < 0 ? s : TESS_OK;
}

static tess_status ended(tess_request *r, tess_status s) {
    if (s == TESS_OK)
        spoil(r);
    return s;
}

static struct timespec deadline(int64_t ns) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    ns += t.tv_nsec;
    t.tv_sec += ns / 1000000000;
    t.tv_nsec = ns % 1000000000;
    return t;
}

/* A dropped collective ends by abort only. */
static tess_status wait_dropped(tess_request *r, int64_t timeout_ns, tess_error *error) {
    tess_comm *comm = r->comm;
    struct timespec until = deadline(timeout_ns > 0 ? timeout_ns : 0);
    int late = 0;
    pthread_mutex_lock(&comm->lock);
    while (!comm->aborted && !late && timeout_ns != 0)
        late = timeout_ns < 0 ? pthread_cond_wait(&comm->changed, &comm->lock)
                              : pthread_cond_timedwait(&comm->changed, &comm->lock, &until);
    tess_status s = comm->aborted;
    pthread_mutex_unlock(&comm->lock);
    if (s < 0)
        return tess_plugin_fail(error, s, "comm fault: aborted, a dropped %s never ended", settings_op_name(r->op));
    return timeout_ns ? tess_plugin_fail(error, TESS_E_TIMEOUT, "comm fault: the dropped %s has not ended",
                                         settings_op_name(r->op))
                      : TESS_PENDING;
}

static tess_status fault_wait(tess_request *r, int64_t timeout_ns, tess_error *error) {
    return r->under ? ended(r, r->comm->ctx->under->wait(r->under, timeout_ns, error))
                    : wait_dropped(r, timeout_ns, error);
}

static tess_status fault_test(tess_request *r, tess_error *error) {
    return r->under ? ended(r, r->comm->ctx->under->test(r->under, error)) : wait_dropped(r, 0, error);
}

static void fault_request_free(tess_request *r) {
    if (r && r->under)
        r->comm->ctx->under->request_free(r->under);
    if (r)
        keep_request(r);
}

/* ---- communicators ----------------------------------------------------------------------------- */

enum { RESERVE = 16 }; /* requests that are under way at once, in a step that audits, too */

static int reserve_requests(tess_comm *comm) {
    tess_request *r = NULL;
    for (int i = 0; i < RESERVE && (r = calloc(1, sizeof *r)); i++) {
        r->comm = comm;
        keep_request(r);
    }
    return r != NULL;
}

static void fault_destroy(tess_comm *);

static tess_status wrapped(context *ctx, tess_comm *under, int32_t rank, tess_comm **out, tess_error *error) {
    pthread_condattr_t clock;
    tess_comm *comm = calloc(1, sizeof *comm);
    if (!comm) {
        ctx->under->destroy(under);
        return tess_plugin_fail(error, TESS_E_NOMEM, "comm fault: no memory for a communicator");
    }
    comm->ctx = ctx;
    comm->under = under;
    comm->rank = rank;
    pthread_mutex_init(&comm->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&comm->changed, &clock);
    pthread_condattr_destroy(&clock);
    if (!reserve_requests(comm)) {
        fault_destroy(comm);
        return tess_plugin_fail(error, TESS_E_NOMEM, "comm fault: no memory for requests");
    }
    *out = comm;
    return TESS_OK;
}

static tess_status fault_init(void *ctx, const tess_comm_config *config, tess_comm **out, tess_error *error) {
    context *c = ctx;
    tess_comm *under;
    tess_status s = c->under->init(c->under_ctx, config, &under, error);
    return s < 0 ? s : wrapped(c, under, config->rank, out, error);
}

static tess_status fault_split(tess_comm *comm, int32_t color, int32_t key, const tess_comm_config *config,
                               tess_comm **out, tess_error *error) {
    tess_comm *under = NULL;
    tess_status s = comm->ctx->under->split(comm->under, color, key, config, &under, error);
    if (s < 0)
        return s;
    if (!under) {
        *out = NULL;
        return TESS_OK;
    }
    return wrapped(comm->ctx, under, comm->rank, out, error);
}

static tess_status fault_abort(tess_comm *comm, tess_status why) {
    pthread_mutex_lock(&comm->lock);
    if (!comm->aborted)
        comm->aborted = why < 0 ? why : TESS_E_ABORTED;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    return comm->ctx->under->abort(comm->under, why);
}

static void fault_destroy(tess_comm *comm) {
    if (!comm)
        return;
    comm->ctx->under->destroy(comm->under);
    while (comm->spare) {
        tess_request *r = comm->spare;
        comm->spare = r->next;
        free(r);
    }
    pthread_mutex_destroy(&comm->lock);
    pthread_cond_destroy(&comm->changed);
    free(comm);
}

/* A silent rank does not come to the end either. */
static tess_status fault_finalize(tess_comm *comm, int64_t timeout_ns, tess_error *error) {
    if (comm->ctx->silent)
        return tess_plugin_fail(error, TESS_E_TIMEOUT, "comm fault: this rank has fallen silent");
    return comm->ctx->under->finalize(comm->under, timeout_ns, error);
}

static tess_status fault_health(tess_comm *comm, tess_error *error) {
    return comm->ctx->under->health(comm->under, error);
}

/* Memory is the other plugin's; only the communicator in front is ours. */
static tess_status fault_mem_alloc(tess_comm *comm, const tess_alloc_request *r, tess_buffer *out, tess_error *error) {
    return comm->ctx->under->mem_alloc(comm->under, r, out, error);
}
static void fault_mem_free(tess_comm *comm, tess_buffer *buffer) {
    comm->ctx->under->mem_free(comm->under, buffer);
}
static tess_status fault_mem_register(tess_comm *comm, tess_buffer *buffer, tess_error *error) {
    return comm->ctx->under->mem_register(comm->under, buffer, error);
}
static void fault_mem_deregister(tess_comm *comm, tess_buffer *buffer) {
    comm->ctx->under->mem_deregister(comm->under, buffer);
}

/* ---- without a communicator ---------------------------------------------------------------------- */

static tess_status fault_query(void *ctx, tess_comm *comm, tess_comm_caps *out) {
    context *c = ctx;
    tess_status s = c->under->query(c->under_ctx, comm ? comm->under : NULL, out);
    if (s == TESS_OK && TESS_HAS(tess_comm_caps, out, caps))
        out->caps &= ~(uint32_t)(TESS_COMM_BATCH | TESS_COMM_STREAM_ORDERED); /* ours would miss what is in one */
    return s;
}
static tess_status fault_need(void *ctx, const tess_plan_env *env, const tess_collective *c, tess_need *out) {
    context *own = ctx;
    return own->under->need(own->under_ctx, env, c, out);
}
static tess_status fault_cost(void *ctx, const tess_plan_env *env, const tess_collective *c, int64_t *ns) {
    context *own = ctx;
    return own->under->cost(own->under_ctx, env, c, ns);
}

static void fault_close(void *ctx) {
    context *c = ctx;
    c->host->plugin_close(c->host->host, c->handle);
    free(ctx);
}

/* What the other plugin leaves out has a default in the core, and must be left out here too: one table for each set of
 * slots. Tables live as long as the process, and two threads that fill in the same one write the same. */
static const tess_comm_ops *table_over(const tess_comm_ops *under) {
    enum { OPTIONAL = 8 };
    static tess_comm_ops tables[1 << OPTIONAL];
    tess_comm_ops ops = { .struct_size = sizeof ops,
                          .abi_major = TESS_ABI_MAJOR,
                          .abi_minor = TESS_ABI_MINOR,
                          .close = fault_close,
                          .query = fault_query,
                          .need = fault_need,
                          .init = fault_init,
                          .destroy = fault_destroy,
                          .abort = fault_abort,
                          .post = fault_post,
                          .test = fault_test,
                          .wait = fault_wait,
                          .request_free = fault_request_free };
    unsigned set = 0, bit = 0;
#define PASS_ON(slot)                                                                                                  \
    if (bit++, TESS_CAN(tess_comm_ops, under, slot)) {                                                                 \
        ops.slot = fault_##slot;                                                                                       \
        set |= 1u << (bit - 1);                                                                                        \
    }
    PASS_ON(cost)
    PASS_ON(split)
    PASS_ON(finalize)
    PASS_ON(health)
    PASS_ON(mem_alloc)
    PASS_ON(mem_free)
    PASS_ON(mem_register)
    PASS_ON(mem_deregister)
    tables[set] = ops;
    return &tables[set];
}

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **out, void **ctx, tess_error *error) {
    const void *under = NULL;
    if (kind != TESS_KIND_COMM)
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "fault offers comm only");
    context *c = calloc(1, sizeof *c);
    if (!c)
        return tess_plugin_fail(error, TESS_E_NOMEM, "comm fault: no memory to open");
    c->host = host;
    tess_status s = settings_read(host, &c->settings, error);
    if (s == TESS_OK)
        s = host->plugin_open(host->host, TESS_KIND_COMM, c->settings.over, &under, &c->under_ctx, &c->handle, error);
    if (s < 0) {
        free(c);
        return s;
    }
    c->under = under;
    *out = table_over(under);
    *ctx = c;
    return TESS_OK;
}
