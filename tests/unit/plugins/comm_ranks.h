/* SPDX-License-Identifier: BSD-3-Clause */
/* A comm plugin among threads, each of them a rank with a context of its own, over a key-value store in memory: every
 * collective has its values and writes nothing else. */
#ifndef TEST_COMM_RANKS_H
#define TEST_COMM_RANKS_H
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tessera/plugin_helpers.h>

enum { RANKS = 9, KEYS = 512 };

static atomic_int wrong; /* what ranks, which are threads, have found */
#define CHECK(x)                                                                                                       \
    do                                                                                                                 \
        if (!(x) && atomic_fetch_add(&wrong, 1) < 5)                                                                   \
            fprintf(stderr, "line %d: %s\n", __LINE__, #x);                                                            \
    while (0)

static double read_value(const void *at, uint32_t dtype, uint64_t i) {
    if (dtype == TESS_BF16) {
        uint32_t bits = (uint32_t)((const uint16_t *)at)[i] << 16;
        float f;
        memcpy(&f, &bits, sizeof f);
        return (double)f;
    }
    return dtype == TESS_F32 ? (double)((const float *)at)[i] : (double)((const unsigned char *)at)[i];
}

/* Small whole numbers alone, which bf16 holds. */
static void write_value(void *at, uint32_t dtype, uint64_t i, double v) {
    float f = (float)v;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if (dtype == TESS_BF16)
        ((uint16_t *)at)[i] = (uint16_t)(bits >> 16);
    else if (dtype == TESS_F32)
        ((float *)at)[i] = f;
    else
        ((unsigned char *)at)[i] = (unsigned char)v;
}

/* ---- the host of the plugin ----------------------------------------------------------------------- */

static struct {
    char key[96];
    unsigned char value[512];
    uint64_t bytes;
} kv[KEYS];
static pthread_mutex_t kv_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t kv_change = PTHREAD_COND_INITIALIZER;
static int n_keys;
static char pretended[16]; /* ranks of a host, to comm-hosts */
static int may_fail;       /* so that nobody ends in order */

static tess_status kv_set(void *host, const char *key, const void *value, uint64_t bytes) {
    (void)host;
    pthread_mutex_lock(&kv_lock);
    CHECK(n_keys < KEYS && bytes <= sizeof kv[0].value);
    snprintf(kv[n_keys].key, sizeof kv[0].key, "%s", key);
    memcpy(kv[n_keys].value, value, bytes);
    kv[n_keys++].bytes = bytes;
    pthread_cond_broadcast(&kv_change);
    pthread_mutex_unlock(&kv_lock);
    return TESS_OK;
}

static tess_status kv_get(void *host, const char *key, void *value, uint64_t *bytes, int64_t timeout_ns) {
    (void)host, (void)timeout_ns;
    tess_status s = TESS_E_TIMEOUT;
    pthread_mutex_lock(&kv_lock);
    while (s)
        for (int i = 0; i <= n_keys && s; i++) {
            if (i == n_keys) {
                pthread_cond_wait(&kv_change, &kv_lock);
                break;
            }
            if (strcmp(kv[i].key, key) == 0) {
                memcpy(value, kv[i].value, kv[i].bytes);
                *bytes = kv[i].bytes;
                s = TESS_OK;
            }
        }
    pthread_mutex_unlock(&kv_lock);
    return s;
}

static const char *option(void *host, const char *key) {
    (void)host;
    return strcmp(key, "hosts-ranks") == 0 ? pretended : strcmp(key, "heartbeat") == 0 ? "0" : NULL;
}

static int32_t aborting(void *host) {
    (void)host;
    return 0;
}

static void log_nothing(void *host, int32_t level, const char *plugin, const char *message) {
    (void)host, (void)level, (void)plugin, (void)message;
}

static tess_host host = { .struct_size = sizeof host,
                          .abi_major = TESS_ABI_MAJOR,
                          .abi_minor = TESS_ABI_MINOR,
                          .log = log_nothing,
                          .option = option,
                          .kv_set = kv_set,
                          .kv_get = kv_get,
                          .aborting = aborting,
                          .args = "",
                          .helper_cpus = "" };

/* ---- the ranks ------------------------------------------------------------------------------------ */

typedef tess_status (*open_fn)(const tess_host *, uint32_t, const void **, void **, tess_error *);
static open_fn open_plugin;

typedef struct rank_state {
    int rank, n, each; /* of all; ranks of a host */
    int32_t color, key;
    void (*work)(struct rank_state *, tess_comm *);
    const tess_comm_ops *ops;
    void *ctx;
    tess_status status; /* of the first call that failed */
    tess_error error;
} rank_state;

static double value(int rank, uint64_t i) {
    return rank + (double)(i % 5);
}

/* Posts a call with the scratch that it needs, and waits for it. */
static tess_status call(rank_state *r, tess_comm *comm, int n, tess_collective *c) {
    const tess_plan_env env = {
        .struct_size = sizeof env, .mem = TESS_MEM_HOST, .nranks = n, .ranks_per_host = r->each, .in_flight = 1
    };
    tess_need need = { .struct_size = sizeof need };
    tess_request *request = NULL;
    c->struct_size = sizeof *c;
    c->send_mem = c->recv_mem = TESS_MEM_HOST;
    r->error = (tess_error){ .struct_size = sizeof r->error, .rank = -1 };
    CHECK(r->ops->need(r->ctx, &env, c, &need) == TESS_OK);
    void *scratch = aligned_alloc(64, need.device_bytes / 64 * 64 + 64);
    memset(scratch, 0x7b, need.device_bytes); /* whatever was there before */
    c->scratch = scratch;
    c->scratch_bytes = need.device_bytes;
    tess_status s = r->ops->post(comm, c, 1, &request, &r->error);
    if (s == TESS_OK) {
        s = r->ops->wait(request, -1, &r->error);
        r->ops->request_free(request);
    }
    free(scratch);
    return s;
}

static double expected(const tess_collective *c, int rank, int n, const int *of, uint64_t i) {
    const uint64_t first = c->op == TESS_ALL_REDUCE ? 0 : (uint64_t)rank * c->count;
    double v = value(of[0], first + i);
    switch (c->op) {
    case TESS_ALL_GATHER: return value(of[i / c->count], i % c->count);
    case TESS_ALL_TO_ALL: return value(of[i / c->count], first + i % c->count);
    case TESS_BROADCAST: return value(of[c->root], i);
    default:
        for (int s = 1; s < n; s++) {
            const double x = value(of[s], first + i);
            v = c->redop == TESS_SUM ? v + x : (c->redop == TESS_MIN) == (x < v) ? x : v;
        }
        return (v + (c->flags & 1 ? 3 : 0)) * c->scale;
    }
}

/* One call on ranks `of`, with its values before and after, and nothing written behind them. */
static void try_call(rank_state *r, tess_comm *comm, int rank, int n, const int *of, tess_collective c) {
    const uint64_t blocks = (uint64_t)n,
                   sent = c.count * (c.op == TESS_REDUCE_SCATTER || c.op == TESS_ALL_TO_ALL ? blocks : 1);
    const uint64_t got = c.count * (c.op == TESS_ALL_GATHER || c.op == TESS_ALL_TO_ALL ? blocks : 1);
    void *send = malloc(4 * sent + 8), *recv = malloc(4 * got + 8);
    for (uint64_t i = 0; i < sent; i++)
        write_value(send, c.send_dtype, i, value(of[rank], i));
    for (uint64_t i = 0; i < got + 1; i++)
        write_value(recv, c.recv_dtype, i, 3);
    c.send = send;
    c.recv = c.op == TESS_BROADCAST && rank == c.root ? send : recv;
    CHECK(call(r, comm, n, &c) == TESS_OK);
    uint64_t bad = 0;
    for (uint64_t i = 0; i < got; i++)
        bad += read_value(c.recv, c.recv_dtype, i) != expected(&c, rank, n, of, i);
    if (bad && atomic_fetch_add(&wrong, 1) < 5)
        fprintf(stderr, "rank %d of %d, %d on a host: op %u, redop %u, count %llu, dtypes %u %u: %llu wrong\n", rank, n,
                r->each, c.op, c.redop, (unsigned long long)c.count, c.send_dtype, c.recv_dtype,
                (unsigned long long)bad);
    CHECK(read_value(recv, c.recv_dtype, got) == 3);
    free(send);
    free(recv);
}

/* Every operation, small and in two steps; gathers of more than one chunk. */
static void try_all(rank_state *r, tess_comm *comm, int rank, int n, const int *of) {
    static const uint64_t counts[] = { 0, 1, 1000, 17001, 33003 };
    static const uint32_t redops[] = { TESS_SUM, TESS_MIN, TESS_MAX };
    for (int i = 0; i < 5; i++) {
        tess_collective c = { .send_dtype = TESS_F32, .recv_dtype = TESS_F32, .count = counts[i], .scale = 1 };
        for (c.op = TESS_ALL_GATHER; c.op <= TESS_BROADCAST; c.op++)
            for (int k = 0; k < (c.op == TESS_REDUCE_SCATTER || c.op == TESS_ALL_REDUCE ? 3 : 1); k++) {
                c.redop = redops[k];
                c.root = n - 1 - (int)(counts[i] % (uint64_t)n);
                c.send_dtype = k == 1 || i < 4 ? TESS_F32 : TESS_BF16;
                c.recv_dtype = c.op == TESS_REDUCE_SCATTER && k == 0 ? TESS_F32 : c.send_dtype;
                c.flags = c.op == TESS_REDUCE_SCATTER && k == 0;
                c.scale = k == 0 && (c.op == TESS_REDUCE_SCATTER || c.op == TESS_ALL_REDUCE) ? 2 : 1;
                try_call(r, comm, rank, n, of, c);
            }
    }
    if (n <= 5) {
        tess_collective c = { .op = TESS_ALL_GATHER, .send_dtype = TESS_F32, .recv_dtype = TESS_F32, .scale = 1 };
        for (int last = -1; last <= 3; last += 4) { /* elements of the last chunk; -1: one less than a chunk has */
            c.count = (uint64_t)(2 * (1 << 18) + last);
            try_call(r, comm, rank, n, of, c);
        }
    }
    const tess_collective barrier = { .op = TESS_BARRIER, .scale = 1 };
    tess_collective c = barrier;
    CHECK(call(r, comm, n, &c) == TESS_OK);
}

static void *run_rank(void *user) {
    rank_state *r = user;
    const void *ops = NULL;
    tess_comm *comm = NULL;
    const tess_comm_config config = { .struct_size = sizeof config,
                                      .rank = r->rank,
                                      .nranks = r->n,
                                      .group = "w",
                                      .timeout_ns = 20000000000,
                                      .device = -1 };
    CHECK(open_plugin(&host, TESS_KIND_COMM, &ops, &r->ctx, &r->error) == TESS_OK);
    r->ops = ops;
    CHECK(r->ops->init(r->ctx, &config, &comm, &r->error) == TESS_OK);
    r->work(r, comm);
    if (!may_fail)
        CHECK(r->ops->finalize(comm, 20000000000, &r->error) == TESS_OK);
    r->ops->destroy(comm);
    if (TESS_CAN(tess_comm_ops, r->ops, close))
        r->ops->close(r->ctx);
    return NULL;
}

static void run_ranks(rank_state *ranks, int n, int each, void (*work)(rank_state *, tess_comm *)) {
    pthread_t threads[RANKS];
    n_keys = 0;
    atomic_store(&wrong, 0);
    snprintf(pretended, sizeof pretended, "%d", each);
    for (int r = 0; r < n; r++) {
        ranks[r].rank = r;
        ranks[r].n = n;
        ranks[r].each = each;
        ranks[r].work = work;
        assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &ranks[r]), 0);
    }
    for (int r = 0; r < n; r++)
        pthread_join(threads[r], NULL);
    assert_int_equal(atomic_load(&wrong), 0);
}

static const int in_order[RANKS] = { 0, 1, 2, 3, 4, 5, 6, 7, 8 };

static void work_all(rank_state *r, tess_comm *comm) {
    try_all(r, comm, r->rank, r->n, in_order);
}

/* From TESSERA_PLUGIN_PATH; 0: it is not there. */
static int open_library(const char *comm) {
    char path[4096];
    const char *folder = getenv("TESSERA_PLUGIN_PATH");
    snprintf(path, sizeof path, "%s/libtessera-comm-%s.so", folder ? folder : "", comm);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    *(void **)&open_plugin = library ? dlsym(library, "tess_plugin_open_v1") : NULL;
    return open_plugin != NULL;
}
#endif
