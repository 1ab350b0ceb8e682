/* SPDX-License-Identifier: BSD-3-Clause */
/* A small comm plugin: the ranks of one host put what they send on a board in shared memory, and read it there. */
#include <errno.h>
#include <fcntl.h>
#include <fenv.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "faulty.h"

FAULTY_NOTE(TESS_KIND_COMM);

enum { RANKS = 16, AREA = 1 << 18, OWN_BYTES = 5000 };
typedef struct {
    atomic_int joined;
    struct {
        atomic_uint ready, done; /* collectives that this rank has put on the board, and finished reading */
        unsigned char bytes[AREA];
    } of[RANKS];
} board;

struct tess_comm {
    const tess_host *host;
    board *b;
    int32_t rank, n;
    void *own;           /* OWN_BYTES of the host */
    unsigned posted, at; /* collectives so far; the one under way */
    tess_request *first;
    atomic_int aborted;
    int splits;
    tess_comm *parent; /* of which it was split off */
};
struct tess_request {
    tess_comm *comm;
    tess_collective c;
    unsigned seq, turn;
    tess_status status;
    tess_request *next;
    tess_request *before; /* of the same batch */
    void *early;
};

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
static void nap(void) {
    nanosleep(&(struct timespec){ 0, 50000 }, NULL);
}

/* ---- values ------------------------------------------------------------------------------------ */

static uint64_t bytes_of(uint32_t dtype) {
    return dtype == TESS_F64 ? 8 : dtype == TESS_BF16 ? 2 : dtype == TESS_I32 || dtype == TESS_F32 ? 4 : 0;
}

static double load(uint32_t dtype, const unsigned char *p) {
    int32_t i;
    float f;
    double d;
    uint32_t wide = 0;
    memcpy(&i, p, dtype == TESS_BF16 ? 2 : 4);
    switch (dtype) {
    case TESS_I32: return i;
    case TESS_F32: memcpy(&f, p, 4); return f;
    case TESS_F64: memcpy(&d, p, 8); return d;
    default:
        memcpy((char *)&wide + 2, p, 2);
        memcpy(&f, &wide, 4);
        return f;
    }
}

static void store(uint32_t dtype, double v, unsigned char *p) {
    int32_t i = (int32_t)(uint32_t)(uint64_t)(int64_t)(dtype == TESS_I32 ? v : 0);
    float f = (float)v;
    uint32_t bits;
    uint16_t half;
    memcpy(&bits, &f, 4);
    half = (uint16_t)(isnan(f) ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    memcpy(p,
           dtype == TESS_I32   ? (void *)&i
           : dtype == TESS_F32 ? (void *)&f
           : dtype == TESS_F64 ? (void *)&v
                               : &half,
           bytes_of(dtype));
}

static double join(const tess_collective *c, double a, double b) {
    if (c->redop == TESS_SUM)
        return c->send_dtype == TESS_F32 || c->send_dtype == TESS_BF16 ? (float)a + (float)b : a + b;
#ifndef FAULT_MAX_LOSES_NAN
    if (isnan(a) || isnan(b))
        return NAN;
#endif
    return (c->redop == TESS_MIN) == (a < b) ? a : b;
}

static double tree(const tess_comm *x, const tess_collective *c, uint64_t i, int lo, int n) {
    int p = 1;
    if (n == 1)
        return load(c->send_dtype, x->b->of[lo].bytes + i * bytes_of(c->send_dtype));
    while (p * 2 < n)
        p *= 2;
#ifdef FAULT_SUM_ORDER
    p = 1;
#endif
    return join(c, tree(x, c, i, lo, p), tree(x, c, i, lo + p, n - p));
}

static void reduce(const tess_comm *x, const tess_collective *c, uint64_t first) {
    for (uint64_t i = 0; i < c->count; i++) {
        unsigned char *out = (unsigned char *)c->recv + i * bytes_of(c->recv_dtype);
        double v = tree(x, c, first + i, 0, x->n);
        int narrow = c->send_dtype == TESS_F32 || c->send_dtype == TESS_BF16;
        if (c->flags & 1)
            v = narrow ? (float)load(c->recv_dtype, out) + (float)v : load(c->recv_dtype, out) + v;
        store(c->recv_dtype, c->send_dtype == TESS_I32 ? v : narrow ? (float)v * (float)c->scale : v * c->scale, out);
    }
}

/* ---- one collective ---------------------------------------------------------------------------- */

/* Bytes before a rank's part, and of all with rank n. */
static uint64_t before(const tess_collective *c, const uint64_t *parts, int rank) {
    uint64_t elems = 0;
    for (int r = 0; r < rank; r++)
        elems += parts[r];
    return elems * bytes_of(c->send_dtype);
}

/* The board has where each part begins, then the parts. */
static void put_parts(const tess_comm *x, const tess_collective *c, unsigned char *board) {
    for (int r = 0; r < x->n; r++) {
        const uint64_t at = before(c, c->send_parts, r);
        memcpy(board + 8 * r, &at, 8);
    }
    if (before(c, c->send_parts, x->n))
        memcpy(board + 8 * x->n, c->send, before(c, c->send_parts, x->n));
}

static void take_parts(const tess_comm *x, const tess_collective *c) {
    for (int r = 0; r < x->n; r++) {
        const unsigned char *board = x->b->of[r].bytes;
        uint64_t at, bytes = c->recv_parts[r] * bytes_of(c->send_dtype);
        memcpy(&at, board + 8 * x->rank, 8);
#ifdef FAULT_PARTS_MISPLACED
        at = 0;
#endif
#ifdef FAULT_PARTS_TOO_LONG
        bytes += bytes_of(c->send_dtype);
#endif
        if (bytes)
            memcpy((unsigned char *)c->recv + before(c, c->recv_parts, r), board + 8 * x->n + at, bytes);
    }
}

static int parts_fit(const tess_comm *x, const tess_collective *c) {
    const char *send = c->send, *recv = c->recv;
    const uint64_t most = c->count * bytes_of(c->send_dtype);
    if (!c->count)
        return 1;
#ifndef FAULT_PARTS_UNCHECKED
    if (!c->send_parts || !c->recv_parts || c->send_parts[x->rank] != c->recv_parts[x->rank] ||
        before(c, c->send_parts, x->n) > most || before(c, c->recv_parts, x->n) > most)
        return 0;
#endif
    return !(send < recv + before(c, c->recv_parts, x->n) && recv < send + before(c, c->send_parts, x->n));
}

static uint64_t sent_bytes(const tess_comm *x, const tess_collective *c) {
    uint64_t blocks = c->op == TESS_REDUCE_SCATTER || c->op == TESS_ALL_TO_ALL ? (uint64_t)x->n : 1;
    return c->op == TESS_BARRIER ? 0 : blocks * c->count * bytes_of(c->send_dtype);
}

static void finish(const tess_comm *x, const tess_collective *c) {
    uint64_t block = c->count * bytes_of(c->send_dtype);
    int n = x->n;
    if (c->op == TESS_ALL_TO_ALL_V && c->count)
        take_parts(x, c);
#ifdef FAULT_SHORT_COUNT
    block = block > 64 ? block - bytes_of(c->send_dtype) : block;
#endif
#ifdef FAULT_FORGETS_THREE
    n = n == 3 ? 2 : n;
#endif
    uint64_t full = c->count * bytes_of(c->send_dtype);
    for (int r = 0; r < n; r++) {
        unsigned char *to = (unsigned char *)c->recv + (uint64_t)r * full;
        if (c->op == TESS_ALL_GATHER && to != c->send)
            memcpy(to, x->b->of[r].bytes, block);
        if (c->op == TESS_ALL_TO_ALL)
            memcpy(to, x->b->of[r].bytes + (uint64_t)x->rank * full, block);
    }
    if (c->op == TESS_BROADCAST && x->rank != c->root)
        memcpy(c->recv, x->b->of[c->root].bytes, block);
    if (c->op == TESS_REDUCE_SCATTER)
        reduce(x, c, (uint64_t)x->rank * c->count);
    if (c->op == TESS_ALL_REDUCE)
        reduce(x, c, 0);
#ifdef FAULT_WRITES_PAST_END
    if (c->op == TESS_ALL_GATHER)
        ((unsigned char *)c->recv)[(uint64_t)n * full] ^= 1;
#endif
}

static int all_at_least(tess_comm *x, int done, unsigned value) {
    for (int r = 0; r < x->n; r++)
        if ((int)(atomic_load(done ? &x->b->of[r].done : &x->b->of[r].ready) - value) < 0)
            return 0;
    return 1;
}

static unsigned turns, turns_over; /* of all communicators of this process */

/* Moves the oldest request on as far as it goes. */
static void move_on(tess_comm *x) {
    for (tess_request *q = x->first; q; q = x->first) {
        const tess_collective *c = &q->c;
#ifdef FAULT_APART_TAKES_TURNS
        if (q->turn != turns_over)
            return;
#endif
#ifndef FAULT_IGNORES_ABORT
        if (q->status == TESS_PENDING && atomic_load(&x->aborted))
            q->status = atomic_load(&x->aborted);
#endif
        if (q->status == TESS_PENDING && x->at == q->seq) {
            if (!all_at_least(x, 1, q->seq)) /* the board is still read */
                return;
            if (c->op == TESS_ALL_TO_ALL_V && c->count)
                put_parts(x, c, x->b->of[x->rank].bytes);
            else if (sent_bytes(x, c))
                memcpy(x->b->of[x->rank].bytes, c->send, sent_bytes(x, c));
            atomic_store(&x->b->of[x->rank].ready, q->seq + 1);
            x->at++;
        }
        if (q->status == TESS_PENDING) {
            if (!all_at_least(x, 0, q->seq + 1))
                return;
            finish(x, c);
            atomic_store(&x->b->of[x->rank].done, q->seq + 1);
            q->status = TESS_OK;
        }
        x->first = q->next;
        turns_over++;
    }
}

/* Sums are made in the default mode, whatever the caller's. */
static void advance(tess_comm *x) {
    fenv_t callers;
    fegetenv(&callers);
    fesetenv(FE_DFL_ENV);
    move_on(x);
    fesetenv(&callers);
}

/* ---- the slots --------------------------------------------------------------------------------- */

enum {
    DTYPES = 1 << TESS_I32 | 1 << TESS_BF16 | 1 << TESS_F32 | 1 << TESS_F64,
    OPS = 1 << TESS_ALL_GATHER | 1 << TESS_REDUCE_SCATTER | 1 << TESS_ALL_REDUCE | 1 << TESS_BROADCAST |
          1 << TESS_ALL_TO_ALL | 1 << TESS_BARRIER | 1 << TESS_ALL_TO_ALL_V,
};

static tess_status query(void *ctx, tess_comm *comm, tess_comm_caps *out) {
    tess_comm_caps caps = { .caps = TESS_COMM_ABORT | TESS_COMM_BATCH | TESS_COMM_TREE_ORDER | TESS_COMM_APART
#ifndef FAULT_APART_WITHOUT_SPLIT
                                    | TESS_COMM_SPLIT
#endif
                            ,
                            .op_mask = OPS,
                            .redop_mask = 1u << TESS_SUM | 1u << TESS_MIN | 1u << TESS_MAX,
                            .dtype_mask = DTYPES,
                            .mem_mask = 1u << TESS_MEM_HOST,
                            .max_bytes = AREA,
                            .wire_id = "board" };
    (void)ctx, (void)comm;
#ifdef FAULT_QUERY_PAST_SIZE
    memcpy((char *)out + 4, (char *)&caps + 4, sizeof caps - 4);
#else
    give(out, out->struct_size, &caps, sizeof caps);
#endif
    return TESS_OK;
}

static tess_status need(void *ctx, const tess_plan_env *env, const tess_collective *c, tess_need *out) {
    tess_need none = { .align = 1, .backend_bytes = OWN_BYTES };
    (void)ctx, (void)env;
    if (c->op < TESS_ALL_GATHER || c->op > TESS_ALL_TO_ALL_V)
        return TESS_E_UNSUPPORTED;
    if (c->op != TESS_BARRIER && (!bytes_of(c->send_dtype) || !bytes_of(c->recv_dtype)))
        return TESS_E_UNSUPPORTED;
#ifdef FAULT_NEED_IMPURE
    static uint64_t calls;
    none.device_bytes = calls++ % 7 == 6 ? 64 : 0;
#endif
    give(out, out->struct_size, &none, sizeof none);
    return TESS_OK;
}

static tess_status find_board(tess_comm *x, const tess_comm_config *cfg, tess_error *e) {
    char key[200], path[64] = "";
    uint64_t room = sizeof path;
    int fd = -1;
    snprintf(key, sizeof key, "%s/board", cfg->group);
    tess_status s = TESS_OK;
    if (cfg->rank == 0) {
        fd = memfd_create("board", MFD_CLOEXEC);
        if (fd < 0 || ftruncate(fd, sizeof(board)) != 0)
            s = TESS_E_SYSTEM;
        snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), fd);
        if (s == TESS_OK && cfg->nranks > 1)
            s = x->host->kv_set(x->host->host, key, path, strlen(path) + 1);
    } else {
        s = x->host->kv_get(x->host->host, key, path, &room, cfg->timeout_ns);
        if (s == TESS_OK && (fd = open(path, O_RDWR | O_CLOEXEC)) < 0)
            s = TESS_E_PEER;
    }
    if (s == TESS_OK && (x->b = mmap(NULL, sizeof(board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED)
        s = TESS_E_SYSTEM;
    int64_t late = now_ns() + cfg->timeout_ns;
    if (s == TESS_OK)
        atomic_fetch_add(&x->b->joined, 1);
    while (s == TESS_OK && atomic_load(&x->b->joined) < cfg->nranks) {
        if (x->host->aborting(x->host->host))
            s = TESS_E_ABORTED;
        else if (now_ns() > late)
            s = TESS_E_TIMEOUT;
        nap();
    }
#ifdef FAULT_LEAVES_FILE_OPEN
    if (s < 0)
#endif
        if (fd >= 0)
            close(fd);
    failed(e, s, "comm faulty: joining %s failed", cfg->group);
    if (e && s < 0 && cfg->nranks > 1)
        e->rank = cfg->rank == 0 ? 1 : 0;
    return s;
}

#ifdef FAULT_LEAKS_THREAD
static void *for_ever(void *arg) {
    for (;;)
        sleep(1000);
    return arg;
}
#endif

static tess_status init(void *ctx, const tess_comm_config *cfg, tess_comm **out, tess_error *e) {
    tess_comm *x = calloc(1, sizeof *x);
    if (!x)
        return failed(e, TESS_E_NOMEM, "comm faulty: no memory");
    x->host = ctx;
    x->rank = cfg->rank;
    x->n = cfg->nranks;
#ifdef FAULT_INIT_CRASHES
    volatile uintptr_t nowhere = 8;
    *(volatile int *)nowhere = 1;
#endif
#ifdef FAULT_INIT_HANGS
    for (;;)
        sleep(1000);
#endif
#ifdef FAULT_LEAKS_THREAD
    pthread_t thread;
    pthread_create(&thread, NULL, for_ever, NULL);
    pthread_detach(thread);
#endif
#ifdef FAULT_LEAKS_SOCKET
    if (cfg->nranks > 1)
        socket(AF_UNIX, SOCK_STREAM, 0);
#endif
#ifdef FAULT_BLOCKS_SIGNALS
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
#endif
#ifdef FAULT_LEAVES_PROCESS
    if (fork() == 0) {
        setsid();
        for (;;)
            sleep(1000);
    }
#endif
    tess_status taken = x->host->mem_alloc(x->host->host, TESS_DOMAIN_HOST, TESS_CAT_COMM, OWN_BYTES, 4096, &x->own);
    if (taken < 0) {
        free(x);
        return failed(e, taken, "comm faulty: no memory of the host");
    }
    tess_status s = cfg->nranks > RANKS ? failed(e, TESS_E_UNSUPPORTED, "too many ranks") : find_board(x, cfg, e);
    if (s < 0) {
        x->host->mem_free(x->host->host, x->own);
        free(x);
    } else {
        *out = x;
    }
    return s;
}

static const void *registered;
static const tess_comm *registered_with;

static tess_status post_one(tess_comm *x, const tess_collective *c, tess_request **out, tess_error *e) {
    uint64_t per = c->count;
    tess_status why = atomic_load(&x->aborted);
#ifdef FAULT_CALLS_EXIT
    exit(0);
#endif
    if (why < 0)
        return failed(e, why, "comm faulty was aborted");
    if (c->op < TESS_ALL_GATHER || c->op > TESS_ALL_TO_ALL_V || c->send_mem != TESS_MEM_HOST ||
        c->recv_mem != TESS_MEM_HOST)
        return failed(e, TESS_E_UNSUPPORTED, "comm faulty does not offer this");
    int reduces = c->op == TESS_REDUCE_SCATTER || c->op == TESS_ALL_REDUCE;
    if (c->op != TESS_BARRIER && (!bytes_of(c->send_dtype) || (!reduces && c->send_dtype != c->recv_dtype)))
        return failed(e, TESS_E_UNSUPPORTED, "comm faulty does not offer these dtypes");
    if (reduces && (c->redop < TESS_SUM || c->redop > TESS_MAX))
        return failed(e, TESS_E_UNSUPPORTED, "comm faulty does not offer reduction %u", c->redop);
    const char *send = c->send, *recv = c->recv;
#ifdef FAULT_APART_REGISTERS_ONE
    if (c->recv_reg && c->recv_reg == registered && registered_with != x)
        return failed(e, TESS_E_INVALID, "comm faulty: that memory is registered with another");
#endif
    if (per && (!send || !recv))
        return failed(e, TESS_E_INVALID, "comm faulty: no buffer");
    if (per > AREA || sent_bytes(x, c) > AREA)
        return failed(e, TESS_E_INVALID, "comm faulty: %llu elements are too many", (unsigned long long)per);
    if (c->op == TESS_ALL_TO_ALL_V && !parts_fit(x, c))
        return failed(e, TESS_E_INVALID, "comm faulty: the parts do not fit, or overlap");
    if (c->op == TESS_ALL_GATHER && send != recv + (uint64_t)x->rank * per * bytes_of(c->send_dtype) &&
        send < recv + (uint64_t)x->n * per * bytes_of(c->send_dtype) && recv < send + sent_bytes(x, c))
        return failed(e, TESS_E_INVALID, "comm faulty: the buffers overlap");
    if (c->op == TESS_ALL_TO_ALL && x->n > 1 && recv < send + sent_bytes(x, c) && send < recv + sent_bytes(x, c))
        return failed(e, TESS_E_INVALID, "comm faulty: the buffers overlap");
#ifndef FAULT_SCATTERS_IN_PLACE
    if (c->op == TESS_REDUCE_SCATTER && recv >= send && recv < send + sent_bytes(x, c))
        return failed(e, TESS_E_INVALID, "comm faulty: the buffers overlap");
#endif
    if (c->op == TESS_BROADCAST && (c->root < 0 || c->root >= x->n))
        return failed(e, TESS_E_INVALID, "comm faulty: root is %d", c->root);
    if (reduces && c->send_dtype == TESS_I32 && c->scale != 1)
        return failed(e, TESS_E_INVALID, "comm faulty: integers have scale 1");
    tess_request *q = calloc(1, sizeof *q), **end = &x->first;
    if (!q)
        return failed(e, TESS_E_NOMEM, "comm faulty: no memory");
    *q = (tess_request){ .comm = x, .c = *c, .seq = x->posted++, .turn = turns++, .status = TESS_PENDING };
    while (*end)
        end = &(*end)->next;
    *end = q;
    *out = q;
    advance(x);
    return TESS_OK;
}

/* The request is the last one's, which ends last. */
static tess_status post(tess_comm *x, const tess_collective *calls, uint32_t n, tess_request **out, tess_error *e) {
    tess_request *before = NULL, *q = NULL;
    for (uint32_t i = 0; i < n; i++, before = q) {
        tess_collective c;
        memcpy(&c, (const char *)calls + (size_t)i * calls->struct_size, sizeof c);
        void *early = NULL;
#ifdef FAULT_BATCH_AT_ONCE
        early = n > 1 ? malloc(sent_bytes(x, &c) + 1) : NULL;
        c.send = early ? memcpy(early, c.send, sent_bytes(x, &c)) : c.send;
#endif
        tess_status s = post_one(x, &c, &q, e);
        if (s < 0) /* what was started goes on: no check posts a bad call behind a good one */
            return s;
        q->before = before;
        q->early = early;
    }
    *out = q;
    return n ? TESS_OK : failed(e, TESS_E_INVALID, "comm faulty: no collective");
}

static tess_status ended(tess_request *q, tess_error *e) {
    return q->status < 0 ? failed(e, q->status, "comm faulty was aborted") : q->status;
}

static tess_status test(tess_request *q, tess_error *e) {
#ifdef FAULT_TEST_LIES
    (void)e;
    return TESS_OK;
#endif
    advance(q->comm);
    return ended(q, e);
}

static tess_status wait(tess_request *q, int64_t timeout_ns, tess_error *e) {
    int64_t late = now_ns() + timeout_ns;
#if defined(FAULT_FLUSHES_DENORMALS) && defined(__SSE2__)
    _mm_setcsr(_mm_getcsr() | 0x8040);
#endif
    for (advance(q->comm); q->status == TESS_PENDING; advance(q->comm)) {
#ifndef FAULT_WAIT_IGNORES_TIMEOUT
        if (timeout_ns >= 0 && now_ns() >= late)
            break;
#endif
        nap();
    }
    (void)late;
    return q->status == TESS_PENDING ? failed(e, TESS_E_TIMEOUT, "comm faulty: not yet") : ended(q, e);
}

static void request_free(tess_request *q) {
    for (tess_request *before; q; q = before) {
        before = q->before;
        free(q->early);
        free(q);
    }
}

static tess_status finalize(tess_comm *x, int64_t timeout_ns, tess_error *e) {
    tess_collective c = { .struct_size = sizeof c, .op = TESS_BARRIER };
    tess_request *q = NULL;
    c.send_mem = c.recv_mem = TESS_MEM_HOST;
    tess_status s = post(x, &c, 1, &q, e);
    if (s < 0)
        return s;
    s = wait(q, timeout_ns, e);
    if (s != TESS_E_TIMEOUT)
        request_free(q);
    return s;
}

static void destroy(tess_comm *x) {
    if (!x)
        return;
    while (x->first) {
        tess_request *q = x->first;
        x->first = q->next;
        free(q);
    }
    munmap(x->b, sizeof(board));
#ifndef FAULT_FORGETS_HOST_MEMORY
    x->host->mem_free(x->host->host, x->own);
#endif
    free(x);
}

static tess_status abort_comm(tess_comm *x, tess_status why) {
    int none = 0;
#ifdef FAULT_APART_ABORTS_BOTH
    if (x->parent)
        abort_comm(x->parent, why);
#endif
    atomic_compare_exchange_strong(&x->aborted, &none, why < 0 ? why : TESS_E_ABORTED);
    return TESS_OK;
}

static tess_status health(tess_comm *x, tess_error *e) {
    tess_status why = atomic_load(&x->aborted);
    return why < 0 ? failed(e, why, "comm faulty was aborted") : TESS_OK;
}

/* Each rank says what it wants, and the first of a color has the board. */
static tess_status split(tess_comm *x, int32_t color, int32_t key, const tess_comm_config *cfg, tess_comm **out,
                         tess_error *e) {
    int32_t mine[2] = { color, key }, all[RANKS][2];
    tess_collective c = { .struct_size = sizeof c, .op = TESS_ALL_GATHER, .send = mine, .recv = all, .count = 2 };
    c.send_dtype = c.recv_dtype = TESS_I32;
    c.send_mem = c.recv_mem = TESS_MEM_HOST;
    tess_request *q;
    tess_status s = post(x, &c, 1, &q, e);
    if (s == TESS_OK && (s = wait(q, cfg->timeout_ns, e)) != TESS_E_TIMEOUT)
        request_free(q);
    if (s < 0)
        return s;
    char group[160];
    tess_comm_config own = { .struct_size = sizeof own, .group = group, .timeout_ns = cfg->timeout_ns };
    snprintf(group, sizeof group, "%.100s.%d.%d", cfg->group, x->splits++, (int)color);
    for (int r = 0; r < x->n; r++) {
        own.nranks += all[r][0] == color;
        own.rank += all[r][0] == color && (all[r][1] < key || (all[r][1] == key && r < x->rank));
    }
    *out = NULL;
    s = color < 0 ? TESS_OK : init((void *)x->host, &own, out, e);
    if (*out)
        (*out)->parent = x;
    return s;
}

/* Every second buffer is registered; what was is given back. */
static tess_status mem_register(tess_comm *x, tess_buffer *buffer, tess_error *e) {
    static int calls;
    (void)x;
#ifdef FAULT_REGISTER_WRITES_ON_FAILURE
    buffer->reg = buffer->ptr;
#endif
#ifdef FAULT_APART_REGISTERS_ONE
    calls = 0;
#endif
    if (calls++ % 2)
        return failed(e, TESS_E_UNSUPPORTED, "comm faulty: not this one");
    registered = buffer->reg = buffer->ptr;
    registered_with = x;
    return TESS_OK;
}

static void mem_deregister(tess_comm *x, tess_buffer *buffer) {
    (void)x;
    buffer->reg = NULL;
}

static const tess_comm_ops ops = {
    .struct_size = sizeof ops,
    .abi_major = TESS_ABI_MAJOR,
    .abi_minor = TESS_ABI_MINOR,
    .query = query,
    .need = need,
    .init = init,
#ifndef FAULT_APART_WITHOUT_SPLIT
    .split = split,
#endif
    .finalize = finalize,
    .destroy = destroy,
    .abort = abort_comm,
    .health = health,
    .mem_register = mem_register,
    .mem_deregister = mem_deregister,
    .post = post,
    .test = test,
    .wait = wait,
    .request_free = request_free,
};

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **out, void **ctx, tess_error *e) {
    if (kind != TESS_KIND_COMM)
        return failed(e, TESS_E_UNSUPPORTED, "faulty offers comm only");
    take_at_open(host);
    *out = &ops;
    *ctx = (void *)host;
    return TESS_OK;
}
