/* The slots of tess_comm_ops over a link: requests, the thread that works them off in order, split, abort. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "comm_kit_internal.h"

#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

typedef struct {
    const kit_link_ops *link;
    const tess_host *host;
    const tess_option *options;
    uint32_t n_options;
} context;

struct tess_request {
    tess_request *next;
    tess_comm *comm;
    tess_collective call;
    uint32_t kit_op; /* 0: a collective */
    tess_status status;
    tess_error error;
};

enum { REQUESTS = 64 };
typedef struct block { /* requests are never given back before destroy */
    struct block *next;
    tess_request requests[REQUESTS];
} block;

struct tess_comm {
    const context *ctx;
    kit_world world;
    int32_t (*asked)[2]; /* [nranks]: colour and key of a split */
    uint64_t seq;        /* the worker's */
    pthread_t worker;
    pthread_mutex_t lock; /* of all that follows */
    pthread_cond_t posted, ended;
    tess_request *first, **last, *spare;
    block *blocks;
    tess_status sticky, aborted;
    tess_error why; /* of sticky */
    int quit;
};

/* ---- the worker --------------------------------------------------------------------------------- */

static kit_header header_of(const tess_comm *comm, const tess_request *r) {
    const tess_collective *c = &r->call;
    kit_header h;
    memset(&h, 0, sizeof h);
    h.op = r->kit_op ? r->kit_op : c->op;
    h.seq = comm->seq;
    if (r->kit_op)
        return h;
    h.tag = c->tag;
    if (c->op == TESS_BARRIER)
        return h;
    h.count = c->count;
    h.send_dtype = c->send_dtype;
    h.recv_dtype = c->recv_dtype ? c->recv_dtype : c->send_dtype;
    h.root = c->op == TESS_BROADCAST ? c->root : 0;
    if (c->op == TESS_REDUCE_SCATTER || c->op == TESS_ALL_REDUCE) {
        h.redop = c->redop;
        h.flags = c->flags;
        h.scale = c->scale != 0 ? c->scale : 1;
    }
    return h;
}

/* Everyone's colour and key. */
static tess_status ask_all(tess_comm *comm, tess_error *e) {
    kit_world *w = &comm->world;
    for (int32_t p = 0; p < w->nranks; p++) {
        w->out[p] = p == w->rank ? NULL : comm->asked[w->rank];
        w->in[p] = p == w->rank ? NULL : comm->asked[p];
    }
    return w->nranks == 1 ? TESS_OK : w->link->exchange(w->at, w->out, w->in, sizeof comm->asked[0], w->came, e);
}

static tess_status work(tess_comm *comm, tess_request *r, tess_error *e) {
    kit_header h = header_of(comm, r);
    tess_status s = kit_agree(&comm->world, &h, e);
    comm->seq++;
    if (s == TESS_OK && r->kit_op == KIT_SPLIT)
        s = ask_all(comm, e);
    else if (s == TESS_OK && !r->kit_op)
        s = kit_run(&comm->world, &r->call, e);
    return s;
}

/* The first failure stays. Called with the lock held. */
static void fail_all(tess_comm *comm, tess_status s, const tess_error *e) {
    if (comm->sticky != TESS_OK)
        return;
    comm->sticky = comm->aborted ? comm->aborted : s;
    comm->why = *e;
    if (comm->aborted)
        tess_plugin_fail(&comm->why, comm->aborted, "%s: the communicator was aborted", comm->world.link->name);
}

static void end(tess_comm *comm, tess_request *r) {
    r->status = comm->sticky;
    r->error = comm->why;
    pthread_cond_broadcast(&comm->ended);
}

static void *worker(void *arg) {
    tess_comm *comm = arg;
    fesetenv(FE_DFL_ENV); /* sums round as everywhere, whatever mode the program runs in */
    pthread_mutex_lock(&comm->lock);
    for (;;) {
        while (!comm->first && !comm->quit)
            pthread_cond_wait(&comm->posted, &comm->lock);
        tess_request *r = comm->first;
        if (!r)
            break;
        comm->first = r->next;
        if (!comm->first)
            comm->last = &comm->first;
        if (comm->sticky == TESS_OK) {
            tess_error e = { .struct_size = sizeof e };
            pthread_mutex_unlock(&comm->lock);
            tess_status s = work(comm, r, &e);
            pthread_mutex_lock(&comm->lock);
            if (s < 0)
                fail_all(comm, s, &e);
            r->status = s < 0 ? comm->sticky : TESS_OK;
            r->error = comm->why;
            pthread_cond_broadcast(&comm->ended);
        } else {
            end(comm, r);
        }
    }
    pthread_mutex_unlock(&comm->lock);
    return NULL;
}

/* "2,6-7" → the thread's cores. What cannot be read or set is a wish that was not met. */
static void stay_on(const char *cpus) {
    cpu_set_t set;
    CPU_ZERO(&set);
    while (*cpus >= '0' && *cpus <= '9') {
        char *next;
        long from = strtol(cpus, &next, 10), to = *next == '-' ? strtol(next + 1, &next, 10) : from;
        for (long cpu = from; cpu <= to && cpu < CPU_SETSIZE; cpu++)
            CPU_SET(cpu, &set);
        cpus = *next == ',' ? next + 1 : "";
    }
    if (CPU_COUNT(&set))
        sched_setaffinity(0, sizeof set, &set);
}

static void *bound_worker(void *arg) {
    tess_comm *comm = arg;
    stay_on(comm->ctx->host->helper_cpus);
    return worker(arg);
}

/* ---- requests ----------------------------------------------------------------------------------- */

static tess_request *take_request(tess_comm *comm) {
    if (!comm->spare) {
        block *b = calloc(1, sizeof *b);
        if (!b)
            return NULL;
        b->next = comm->blocks;
        comm->blocks = b;
        for (int i = 0; i < REQUESTS; i++) {
            b->requests[i].next = comm->spare;
            comm->spare = &b->requests[i];
        }
    }
    tess_request *r = comm->spare;
    comm->spare = r->next;
    return r;
}

/* Queues a collective, or an operation of the kit's own when `c` is null. */
static tess_status enqueue(tess_comm *comm, const tess_collective *c, uint32_t kit_op, tess_request **out,
                           tess_error *e) {
    tess_status s = TESS_OK;
    pthread_mutex_lock(&comm->lock);
    tess_request *r = comm->sticky == TESS_OK ? take_request(comm) : NULL;
    if (comm->sticky != TESS_OK) {
        s = tess_plugin_fail_of(e, comm->sticky, comm->why.rank, "%s", comm->why.message);
    } else if (!r) {
        s = tess_plugin_fail(e, TESS_E_NOMEM, "%s: no memory for a request", comm->world.link->name);
    } else {
        memset(r, 0, sizeof *r);
        if (c)
            memcpy(&r->call, c, c->struct_size < sizeof *c ? c->struct_size : sizeof *c);
        r->comm = comm;
        r->kit_op = kit_op;
        r->status = TESS_PENDING;
        *comm->last = r;
        comm->last = &r->next;
        *out = r;
        pthread_cond_signal(&comm->posted);
    }
    pthread_mutex_unlock(&comm->lock);
    return s;
}

static tess_status kit_post(tess_comm *comm, const tess_collective *c, uint32_t n, tess_request **out, tess_error *e) {
    if (n != 1)
        return tess_plugin_fail(e, TESS_E_UNSUPPORTED, "%s: %u collectives in one post, expected 1",
                                comm->world.link->name, n);
    tess_status s = kit_check(comm->world.link, c, &comm->world, comm->world.nranks, e);
    return s < 0 ? s : enqueue(comm, c, 0, out, e);
}

static struct timespec deadline(int64_t timeout_ns) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    int64_t ns = t.tv_nsec + timeout_ns % 1000000000;
    t.tv_sec += timeout_ns / 1000000000 + ns / 1000000000;
    t.tv_nsec = ns % 1000000000;
    return t;
}

static tess_status kit_wait(tess_request *r, int64_t timeout_ns, tess_error *e) {
    tess_comm *comm = r->comm;
    struct timespec until = deadline(timeout_ns > 0 ? timeout_ns : 0);
    int late = timeout_ns == 0;
    pthread_mutex_lock(&comm->lock);
    while (r->status == TESS_PENDING && !late)
        late = timeout_ns < 0 ? pthread_cond_wait(&comm->ended, &comm->lock)
                              : pthread_cond_timedwait(&comm->ended, &comm->lock, &until);
    tess_status s = r->status;
    if (s < 0)
        tess_plugin_fail_of(e, s, r->error.rank, "%s", r->error.message);
    pthread_mutex_unlock(&comm->lock);
    if (s == TESS_PENDING && timeout_ns != 0)
        return tess_plugin_fail(e, TESS_E_TIMEOUT, "%s: operation %u has not ended after %lld ms",
                                comm->world.link->name, r->kit_op ? r->kit_op : r->call.op,
                                (long long)(timeout_ns / 1000000));
    return s;
}

static tess_status kit_test(tess_request *r, tess_error *e) {
    return kit_wait(r, 0, e);
}

static void kit_request_free(tess_request *r) {
    if (!r)
        return;
    tess_comm *comm = r->comm;
    pthread_mutex_lock(&comm->lock);
    r->next = comm->spare;
    comm->spare = r;
    pthread_mutex_unlock(&comm->lock);
}

/* ---- communicators ------------------------------------------------------------------------------ */

static void kit_destroy(tess_comm *comm);
static tess_status kit_abort(tess_comm *comm, tess_status why);

static tess_status start_worker(tess_comm *comm, tess_error *e) {
    sigset_t all, before;
    pthread_condattr_t clock;
    pthread_mutex_init(&comm->lock, NULL);
    pthread_cond_init(&comm->posted, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&comm->ended, &clock);
    pthread_condattr_destroy(&clock);
    sigfillset(&all); /* signals are the program's: none shall be taken by our thread */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&comm->worker, NULL, bound_worker, comm);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed ? tess_plugin_fail(e, TESS_E_SYSTEM, "%s: no thread: %s", comm->world.link->name, strerror(failed))
                  : TESS_OK;
}

static void free_tables(tess_comm *comm) {
    while (comm->blocks) {
        block *b = comm->blocks;
        comm->blocks = b->next;
        free(b);
    }
    free(comm->world.headers);
    free(comm->world.out);
    free(comm->world.in);
    free(comm->world.came);
    free(comm->world.small);
    free(comm->asked);
    free(comm);
}

static tess_comm *new_tables(const context *ctx, const tess_comm_config *config) {
    size_t n = (size_t)config->nranks;
    tess_comm *comm = calloc(1, sizeof *comm);
    if (!comm)
        return NULL;
    comm->ctx = ctx;
    comm->last = &comm->first;
    comm->why = (tess_error){ .struct_size = sizeof comm->why, .rank = -1 };
    comm->world = (kit_world){ .link = ctx->link, .rank = config->rank, .nranks = config->nranks };
    comm->world.headers = calloc(n, sizeof *comm->world.headers);
    comm->world.out = calloc(n, sizeof *comm->world.out);
    comm->world.in = calloc(n, sizeof *comm->world.in);
    comm->world.came = calloc(n, sizeof *comm->world.came);
    comm->world.small = aligned_alloc(64, n * KIT_SMALL_BYTES);
    comm->asked = calloc(n, sizeof *comm->asked);
    if (comm->world.headers && comm->world.out && comm->world.in && comm->world.came && comm->world.small &&
        comm->asked)
        return comm;
    free_tables(comm);
    return NULL;
}

static tess_status make(const context *ctx, const tess_comm_config *config, tess_comm **out, tess_error *e) {
    tess_comm *comm = new_tables(ctx, config);
    if (!comm)
        return tess_plugin_fail(e, TESS_E_NOMEM, "%s: no memory for a communicator", ctx->link->name);
    tess_status s = ctx->link->join(ctx->host, config, &comm->world.at, e);
    if (s < 0)
        goto err_tables;
    s = start_worker(comm, e);
    if (s < 0)
        goto err_link;
    *out = comm;
    return TESS_OK;
err_link:
    ctx->link->leave(comm->world.at);
err_tables:
    free_tables(comm);
    return s;
}

static tess_status kit_init(void *ctx, const tess_comm_config *config, tess_comm **out, tess_error *e) {
    const context *c = ctx;
    if (config->nranks < 1 || config->rank < 0 || config->rank >= config->nranks)
        return tess_plugin_fail(e, TESS_E_INVALID, "%s: rank %d of %d", c->link->name, (int)config->rank,
                                (int)config->nranks);
    return make(c, config, out, e);
}

/* Runs one operation of the kit's own through the queue, behind all collectives posted before. */
static tess_status meet(tess_comm *comm, uint32_t kit_op, int64_t timeout_ns, tess_error *e) {
    tess_request *r = NULL;
    tess_status s = enqueue(comm, NULL, kit_op, &r, e);
    if (s < 0)
        return s;
    s = kit_wait(r, timeout_ns, e);
    if (s != TESS_E_TIMEOUT)
        kit_request_free(r);
    return s;
}

/* Our place among the ranks of our colour, by key, then rank. */
static void place(const tess_comm *comm, int32_t *rank, int32_t *nranks) {
    const int32_t self = comm->world.rank, color = comm->asked[self][0], key = comm->asked[self][1];
    *rank = *nranks = 0;
    for (int32_t p = 0; p < comm->world.nranks; p++)
        if (comm->asked[p][0] == color) {
            ++*nranks;
            *rank += comm->asked[p][1] < key || (comm->asked[p][1] == key && p < self);
        }
}

static tess_status kit_split(tess_comm *comm, int32_t color, int32_t key, const tess_comm_config *config,
                             tess_comm **out, tess_error *e) {
    tess_comm_config own = { .struct_size = 0 };
    char group[300];
    comm->asked[comm->world.rank][0] = color;
    comm->asked[comm->world.rank][1] = key;
    tess_status s = meet(comm, KIT_SPLIT, config->timeout_ns, e);
    if (s < 0)
        return s;
    if (color < 0) {
        *out = NULL;
        return TESS_OK;
    }
    memcpy(&own, config, config->struct_size < sizeof own ? config->struct_size : sizeof own);
    own.struct_size = sizeof own;
    place(comm, &own.rank, &own.nranks);
    snprintf(group, sizeof group, "%.250s.%d", config->group, (int)color);
    own.group = group;
    return make(comm->ctx, &own, out, e);
}

static tess_status kit_finalize(tess_comm *comm, int64_t timeout_ns, tess_error *e) {
    return meet(comm, KIT_FINALIZE, timeout_ns, e);
}

static tess_status kit_abort(tess_comm *comm, tess_status why) {
    tess_error e = { .struct_size = sizeof e };
    pthread_mutex_lock(&comm->lock);
    if (!comm->aborted)
        comm->aborted = why < 0 ? why : TESS_E_ABORTED;
    fail_all(comm, comm->aborted, &e);
    pthread_mutex_unlock(&comm->lock);
    comm->world.link->interrupt(comm->world.at);
    return TESS_OK;
}

static void kit_destroy(tess_comm *comm) {
    if (!comm)
        return;
    kit_abort(comm, TESS_E_ABORTED);
    pthread_mutex_lock(&comm->lock);
    comm->quit = 1;
    pthread_cond_signal(&comm->posted);
    pthread_mutex_unlock(&comm->lock);
    pthread_join(comm->worker, NULL);
    comm->world.link->leave(comm->world.at);
    pthread_mutex_destroy(&comm->lock);
    pthread_cond_destroy(&comm->posted);
    pthread_cond_destroy(&comm->ended);
    free_tables(comm);
}

static tess_status kit_health(tess_comm *comm, tess_error *e) {
    pthread_mutex_lock(&comm->lock);
    tess_status s = comm->sticky;
    if (s < 0)
        tess_plugin_fail_of(e, s, comm->why.rank, "%s", comm->why.message);
    pthread_mutex_unlock(&comm->lock);
    return s;
}

/* ---- what needs no communicator ------------------------------------------------------------------ */

static void kit_close(void *ctx) {
    const context *c = ctx;
    if (c->link->closed)
        c->link->closed();
    free(ctx);
}

static tess_status kit_options(void *ctx, const tess_option **out, uint32_t *n) {
    const context *c = ctx;
    *out = c->options;
    *n = c->n_options;
    return TESS_OK;
}

static tess_status kit_query(void *ctx, tess_comm *comm, tess_comm_caps *out) {
    const context *c = ctx;
    tess_comm_caps caps = { .caps =
                                TESS_COMM_THREAD_MULTIPLE | TESS_COMM_ABORT | TESS_COMM_SPLIT | TESS_COMM_TREE_ORDER,
                            .op_mask = 1u << TESS_ALL_GATHER | 1u << TESS_REDUCE_SCATTER | 1u << TESS_ALL_REDUCE |
                                       1u << TESS_BROADCAST | 1u << TESS_ALL_TO_ALL | 1u << TESS_BARRIER,
                            .redop_mask = 1u << TESS_SUM | 1u << TESS_MIN | 1u << TESS_MAX,
                            .dtype_mask = 1u << TESS_U8 | 1u << TESS_I8 | 1u << TESS_I32 | 1u << TESS_I64 |
                                          1u << TESS_F16 | 1u << TESS_BF16 | 1u << TESS_F32 | 1u << TESS_F64,
                            .mem_mask = c->link->mem_mask };
    (void)comm;
    snprintf(caps.wire_id, sizeof caps.wire_id, "%s", c->link->wire_id);
    TESS_GIVE(out, &caps);
    return TESS_OK;
}

static tess_status kit_need(void *ctx, const tess_plan_env *env, const tess_collective *c, tess_need *out) {
    const context *own = ctx;
    tess_need need = { .align = 64 };
    tess_status s = kit_check(own->link, c, NULL, env->nranks, NULL);
    if (s < 0)
        return s;
    need.device_bytes = kit_scratch_bytes(c, env->nranks);
    TESS_GIVE(out, &need);
    return TESS_OK;
}

static const tess_comm_ops ops = {
    .struct_size = sizeof ops,
    .abi_major = TESS_ABI_MAJOR,
    .abi_minor = TESS_ABI_MINOR,
    .close = kit_close,
    .options = kit_options,
    .query = kit_query,
    .need = kit_need,
    .init = kit_init,
    .split = kit_split,
    .finalize = kit_finalize,
    .destroy = kit_destroy,
    .abort = kit_abort,
    .health = kit_health,
    .post = kit_post,
    .test = kit_test,
    .wait = kit_wait,
    .request_free = kit_request_free,
};

tess_status kit_open(const kit_link_ops *link, const tess_host *host, const tess_option *options, uint32_t n_options,
                     const void **out, void **ctx, tess_error *e) {
    context *c = calloc(1, sizeof *c);
    if (!c)
        return tess_plugin_fail(e, TESS_E_NOMEM, "%s: no memory to open", link->name);
    *c = (context){ .link = link, .host = host, .options = options, .n_options = n_options };
    *out = &ops;
    *ctx = c;
    return TESS_OK;
}
