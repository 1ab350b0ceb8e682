/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera bench comm, in each rank: time and bus bandwidth of a comm plugin's collectives. */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "bench.h"
#include "tools/support/command_line.h"
#include "core/control/control.h"
#include "tools/support/json_out.h"
#include "core/plugin/open.h"
#include "tools/support/say.h"
#include "tools/support/options.h"

#define JOIN_NS INT64_C(60000000000)
#define WAIT_NS INT64_C(120000000000)
enum { MOST_PLUGINS = 32, MOST_TIMES = 16, MOST_ROUNDS = 101, LARGE_BYTES = 16 << 20 };

static const struct {
    const char *name;
    uint32_t op;
    int per_rank;  /* count is of one rank's block */
    double factor; /* of (W-1)/W; 0: none; negative: of 1 */
} ops[] = {
    { "all_gather", TESS_ALL_GATHER, 1, 1 }, { "reduce_scatter", TESS_REDUCE_SCATTER, 1, 1 },
    { "all_reduce", TESS_ALL_REDUCE, 0, 2 }, { "broadcast", TESS_BROADCAST, 0, -1 },
    { "all_to_all", TESS_ALL_TO_ALL, 1, 1 }, { "all_to_all_v", TESS_ALL_TO_ALL_V, 0, 1 },
    { "barrier", TESS_BARRIER, 0, 0 },
};
enum { OPS = sizeof ops / sizeof *ops };

typedef struct {
    tool_bench_comm_options options;
    tess__world world;
    tess__control *control;
    tess_host host;
    tess__plugin *plugin;
    const tess_comm_ops *comm_ops;
    tess_comm *comm; /* atomic: the control plane's thread aborts it */
    tess_comm_caps caps;
    char *send, *recv, *scratch; /* send and recv: the plugin's own memory where it gives some, else these */
    char *plain_send, *plain_recv;
    tess_buffer own[2];
    int copies_by_memcpy;
    double copied, summed; /* bytes read and written per second in plain loops, of all ranks together: medians of */
    double copy_rates[MOST_ROUNDS], sum_rates[MOST_ROUNDS];
    uint64_t scratch_bytes, tag;
    int32_t exchanges;
} bench;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* CPU seconds of all threads of this rank. */
static double cpu_now(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

/* ---- the plugin's host --------------------------------------------------------------------------- */
static tess_status host_kv_set(void *host, const char *key, const void *value, uint64_t bytes) {
    bench *b = host;
    return b->control ? tess__control_set(b->control, key, value, bytes) : TESS_E_UNSUPPORTED;
}

static tess_status host_kv_get(void *host, const char *key, void *value, uint64_t *bytes, int64_t timeout_ns) {
    bench *b = host;
    return b->control ? tess__control_get(b->control, key, value, bytes, timeout_ns) : TESS_E_UNSUPPORTED;
}

static int32_t host_aborting(void *host) {
    bench *b = host;
    return b->control ? tess__control_aborting(b->control) : 0;
}

/* For plugins over another one, which needs these services too. */
static tess_status host_plugin_open(void *host, uint32_t kind, const char *selection, const void **ops, void **ctx,
                                    void **handle, tess_error *error) {
    return tess__plugin_host_open(&((bench *)host)->host, kind, selection, ops, ctx, handle, error);
}

static void on_lost(void *user, int32_t rank, const char *why) {
    (void)rank, (void)why;
    bench *b = user;
    tess_comm *comm = __atomic_load_n(&b->comm, __ATOMIC_ACQUIRE);
    if (comm)
        b->comm_ops->abort(comm, TESS_E_PEER);
}

/* Every rank's status: OK when all are; so a rank that can go on does not wait for one that cannot. */
static tess_status agree(bench *b, tess_status mine) {
    if (!b->control)
        return mine;
    tess_status all[b->world.nranks];
    char key[32];
    snprintf(key, sizeof key, "bench/%d", b->exchanges++);
    tess_status status = tess__control_exchange(b->control, key, &mine, sizeof mine, all);
    if (status != TESS_OK || mine != TESS_OK)
        return status != TESS_OK ? status : mine;
    for (int32_t r = 0; r < b->world.nranks; r++)
        if (all[r] != TESS_OK)
            return tess_fail(all[r], "rank %d could not take part: %s", r, tool_status_name(all[r]));
    return TESS_OK;
}

/* ---- one case ------------------------------------------------------------------------------------ */
static tess_status run(bench *b, const tess_collective *c, int times) {
    tess_request *requests[MOST_TIMES];
    tess_error error = { .struct_size = sizeof error };
    tess_status status = TESS_OK;
    int n = 0;
    while (n < times && status == TESS_OK) {
        status = b->comm_ops->post(b->comm, c, 1, &requests[n], &error);
        n += status == TESS_OK;
    }
    for (int i = 0; i < n; i++) {
        tess_error late = { .struct_size = sizeof late };
        tess_status s = b->comm_ops->wait(requests[i], WAIT_NS, &late);
        if (s != TESS_OK && status == TESS_OK) {
            status = s;
            error = late;
        }
        if (s != TESS_E_TIMEOUT)
            b->comm_ops->request_free(requests[i]);
    }
    return status == TESS_OK ? TESS_OK : tess_fail(status, "comm %s: %s", b->plugin->name, error.message);
}

/* The slowest rank's seconds. */
static tess_status slowest(bench *b, double mine, double *out) {
    double all[b->world.nranks];
    tess_collective c = { .struct_size = sizeof c,
                          .op = TESS_ALL_GATHER,
                          .send_dtype = TESS_U8,
                          .recv_dtype = TESS_U8,
                          .send_mem = TESS_MEM_HOST,
                          .recv_mem = TESS_MEM_HOST,
                          .send = &mine,
                          .recv = all,
                          .count = sizeof mine,
                          .tag = ++b->tag };
    tess_status status = run(b, &c, 1);
    *out = 0;
    for (int32_t r = 0; r < b->world.nranks && status == TESS_OK; r++)
        if (all[r] > *out)
            *out = all[r];
    return status;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n) {
    qsort(values, (size_t)n, sizeof *values, by_value);
    return values[n / 2];
}

/* ---- what memory allows -------------------------------------------------------------------------- */

/* Past the caches, as a collective that knows its size would write. */
static void copy_past(char *to, const char *from, uint64_t bytes) {
#if defined(__x86_64__)
    for (uint64_t i = 0; i + 64 <= bytes; i += 64)
        for (uint64_t k = i; k < i + 64; k += 16)
            _mm_stream_si128((__m128i *)(to + k), _mm_load_si128((const __m128i *)(from + k)));
    _mm_sfence();
#else
    memcpy(to, from, bytes);
#endif
}

/* Adds the blocks of `from`, as a reduction reads them: several streams in, one out. */
static void sum_past(float *to, const float *from, uint64_t elems, int blocks) {
#if defined(__x86_64__)
    for (uint64_t i = 0; i + 4 <= elems; i += 4) {
        __m128 sum = _mm_loadu_ps(from + i);
        for (int k = 1; k < blocks; k++)
            sum = _mm_add_ps(sum, _mm_loadu_ps(from + (uint64_t)k * elems + i));
        _mm_stream_ps(to + i, sum);
    }
    _mm_sfence();
#else
    for (uint64_t i = 0; i < elems; i++) {
        float sum = from[i];
        for (int k = 1; k < blocks; k++)
            sum += from[(uint64_t)k * elems + i];
        to[i] = sum;
    }
#endif
}

static void run_plainly(bench *b, int sums, int by_memcpy) {
    if (sums)
        sum_past((float *)b->recv, (const float *)b->send, b->options.most_bytes / sizeof(float) / (uint64_t)sums,
                 sums);
    else if (by_memcpy)
        memcpy(b->recv, b->send, b->options.most_bytes);
    else
        copy_past(b->recv, b->send, b->options.most_bytes);
}

/* One round of a plain loop, in which all ranks work at once from their own send to their own recv: bytes per second of
 * all. `sums`: so many blocks are added up; 0: all is copied. */
static tess_status time_loop(bench *b, int sums, int by_memcpy, double *rate) {
    const double read = (double)b->options.most_bytes, written = sums ? read / sums : read;
    double ignored, took;
    TRY(slowest(b, 0, &ignored));
    double begin = now();
    run_plainly(b, sums, by_memcpy);
    TRY(slowest(b, now() - begin, &took));
    *rate = (read + written) * b->world.nranks / took;
    return TESS_OK;
}

/* Round i of the loops that copy and that add up. */
static tess_status sample_memory(bench *b, int i) {
    TRY(time_loop(b, 0, b->copies_by_memcpy, &b->copy_rates[i]));
    return time_loop(b, b->world.nranks, 0, &b->sum_rates[i]);
}

static void settle_memory(bench *b, int n) {
    b->copied = median(b->copy_rates, n);
    b->summed = median(b->sum_rates, n);
}

static tess_status measure_memory(bench *b) {
    enum { ROUNDS = 5 };
    double by_memcpy = 0;
    for (b->copies_by_memcpy = 1; b->copies_by_memcpy >= 0; b->copies_by_memcpy--) {
        for (int i = 0; i < ROUNDS; i++)
            TRY(sample_memory(b, i));
        settle_memory(b, ROUNDS);
        by_memcpy = b->copies_by_memcpy ? b->copied : by_memcpy;
    }
    b->copies_by_memcpy = by_memcpy > b->copied;
    b->copied = b->copies_by_memcpy ? by_memcpy : b->copied;
    return TESS_OK;
}

/* ---- measuring ----------------------------------------------------------------------------------- */

/* Every rank counts the same rounds, because all look at the slowest rank's clock. with_memory: the plain loops take
 * turns with the collective, since what the memory of a virtual machine gives differs by the second. */
static tess_status measure(bench *b, const tess_collective *c, int times, int with_memory, double *seconds,
                           double *cpu) {
    double rounds[MOST_ROUNDS], spent = 0, busy = 0;
    int n = 0, want = b->options.rounds < MOST_ROUNDS ? b->options.rounds : MOST_ROUNDS;
    for (int round = -1; round < want; round++) { /* the first is to warm up */
        double ignored, took;
        TRY(slowest(b, 0, &ignored)); /* everybody is here */
        double begin = now(), cpu_begin = cpu_now();
        TRY(run(b, c, times));
        double mine = now() - begin, cpu_mine = cpu_now() - cpu_begin;
        TRY(slowest(b, mine, &took));
        spent += took;
        if (round >= 0) {
            rounds[n++] = took / times;
            busy += cpu_mine / times;
        }
        if (n > 0 && with_memory)
            TRY(sample_memory(b, n - 1));
        if (n > 0 && spent > b->options.seconds)
            break;
    }
    if (with_memory)
        settle_memory(b, n);
    *seconds = median(rounds, n);
    *cpu = busy / n;
    return TESS_OK;
}

/* Seconds that memory takes for a buffer's byte, when every contribution is read where it lies and every result written
 * once: bytes that are copied, and bytes that are added up. docs/benchmarks/comm-shm.md. */
static double least_seconds(const bench *b, uint32_t op) {
    double w = b->world.nranks;
    switch (op) {
    case TESS_REDUCE_SCATTER: return (w + 1) / b->summed;
    case TESS_ALL_REDUCE: return (w + 1) / b->summed + (2 * w - 2) / b->copied;
    default: return 2 * w / b->copied;
    }
}

static int print(const bench *b, int op, uint64_t bytes, double seconds, double cpu) {
    double w = b->world.nranks, factor = ops[op].factor < 0 ? 1 : ops[op].factor * (w - 1) / w;
    double bandwidth = (double)bytes * factor / seconds;
    double allowed = factor / least_seconds(b, ops[op].op);
    FILE *out = b->options.out;
    if (!b->options.json) {
        fprintf(out, "%-8s %-15s %3d ranks %10llu bytes %12.1f us %9.3f GB/s, memory allows %7.3f\n", b->plugin->name,
                ops[op].name, b->world.nranks, (unsigned long long)bytes, seconds * 1e6, bandwidth * 1e-9,
                allowed * 1e-9);
        return fflush(out) == 0 ? TOOL_OK : TOOL_FAILED;
    }
    json_out json;
    json_init(&json, out);
    json_object_begin(&json, NULL);
    json_string(&json, "event", "bench");
    json_string(&json, "comm", b->plugin->name);
    json_string(&json, "op", ops[op].name);
    json_int(&json, "ranks", b->world.nranks);
    json_uint(&json, "bytes", bytes);
    json_double(&json, "seconds", seconds);
    json_double(&json, "cpu_seconds", cpu);
    json_double(&json, "bus_bandwidth", bandwidth);
    json_double(&json, "memory_bandwidth", b->copied);
    json_double(&json, "memory_allows", allowed);
    json_object_end(&json);
    return json_line(&json) < 0 ? TOOL_FAILED : TOOL_OK;
}

/* An all_to_all_v of equal parts moves what an all_to_all of these bytes does, so that the two are compared. `parts`
 * has a value for each rank. */
static tess_collective collective(bench *b, int op, uint64_t bytes, uint64_t *parts) {
    const uint64_t ranks = (uint64_t)b->world.nranks, elems = bytes / sizeof(float), block = elems / ranks;
    const int by_parts = ops[op].op == TESS_ALL_TO_ALL_V;
    for (uint64_t r = 0; r < ranks; r++)
        parts[r] = block;
    return (tess_collective){ .struct_size = sizeof(tess_collective),
                              .op = ops[op].op,
                              .redop = TESS_SUM,
                              .send_dtype = TESS_F32,
                              .recv_dtype = TESS_F32,
                              .send_mem = TESS_MEM_HOST,
                              .recv_mem = TESS_MEM_HOST,
                              .send = b->send,
                              .recv = b->recv,
                              .count = ops[op].per_rank ? block
                                       : by_parts       ? block * ranks
                                                        : elems,
                              .scale = 1,
                              .tag = ++b->tag,
                              .send_parts = by_parts ? parts : NULL,
                              .recv_parts = by_parts ? parts : NULL };
}

/* Scratch as the plugin asks for it. */
static tess_status provide(bench *b, tess_collective *c) {
    tess_plan_env env = { .struct_size = sizeof env,
                          .mem = TESS_MEM_HOST,
                          .nranks = b->world.nranks,
                          .ranks_per_host = b->world.local_nranks };
    tess_need need = { .struct_size = sizeof need };
    TRY(b->comm_ops->need(b->plugin->ctx, &env, c, &need));
    if (need.device_bytes > b->scratch_bytes) {
        free(b->scratch);
        b->scratch_bytes = 0;
        if (posix_memalign((void **)&b->scratch, 4096, need.device_bytes) != 0) {
            b->scratch = NULL;
            return tess_fail(TESS_E_NOMEM, "no memory for %llu bytes of scratch",
                             (unsigned long long)need.device_bytes);
        }
        b->scratch_bytes = need.device_bytes;
    }
    c->scratch = b->scratch;
    c->scratch_bytes = b->scratch_bytes;
    return TESS_OK;
}

static int bench_case(bench *b, int op, uint64_t bytes) {
    uint64_t parts[b->world.nranks];
    tess_collective c = collective(b, op, bytes, parts);
    tess_status status = provide(b, &c);
    if (status == TESS_E_UNSUPPORTED)
        return TOOL_OK; /* need is the same on every rank */
    double seconds = 0, cpu = 0;
    uint64_t times = ((uint64_t)8 << 20) / (bytes ? bytes : 1);
    times = times < 1 ? 1 : times > MOST_TIMES ? MOST_TIMES : times;
    if (b->options.together > 0)
        times = (uint64_t)(b->options.together < MOST_TIMES ? b->options.together : MOST_TIMES);
    if (status == TESS_OK)
        status = measure(b, &c, (int)times, bytes >= LARGE_BYTES, &seconds, &cpu);
    if (status != TESS_OK)
        return tool_report(status);
    if (b->world.rank != 0)
        return TOOL_OK;
    /* Blocks are whole elements: what was moved, not what was asked for. */
    return print(b, op, c.count * (uint64_t)(ops[op].per_rank ? b->world.nranks : 1) * sizeof(float), seconds, cpu);
}

static int bench_ops(bench *b) {
    int code = TOOL_OK;
    for (int op = 0; op < OPS && code == TOOL_OK; op++) {
        if ((b->options.op && strcmp(b->options.op, ops[op].name) != 0) || !(b->caps.op_mask >> ops[op].op & 1))
            continue;
        if (ops[op].op == TESS_BARRIER)
            code = bench_case(b, op, 0);
        else
            for (uint64_t n = b->options.least_bytes; n <= b->options.most_bytes && code == TOOL_OK; n *= 4)
                code = bench_case(b, op, n);
    }
    return code;
}

/* ---- one plugin ---------------------------------------------------------------------------------- */
/* Why this plugin cannot run here, for a plugin nobody named: no error. */
static int skip(bench *b, const char *name) {
    if (b->world.rank == 0)
        tool_say(SAY_INFO, "bench comm: %s left out: %s", name, tess_last_error());
    return TOOL_OK;
}

static tess_status join(bench *b) {
    char group[96];
    snprintf(group, sizeof group, "bench/%s", b->plugin->name); /* a path may be longer than a key */
    tess_comm_config cfg = { .struct_size = sizeof cfg,
                             .rank = b->world.rank,
                             .nranks = b->world.nranks,
                             .local_rank = b->world.local_rank,
                             .device = -1,
                             .group = group,
                             .timeout_ns = JOIN_NS };
    tess_error error = { .struct_size = sizeof error };
    tess_comm *comm;
    tess_status status = b->comm_ops->init(b->plugin->ctx, &cfg, &comm, &error);
    if (status != TESS_OK)
        return tess_fail(status, "comm %s: %s", b->plugin->name, error.message);
    b->caps = (tess_comm_caps){ .struct_size = sizeof b->caps };
    b->comm_ops->query(b->plugin->ctx, comm, &b->caps);
    __atomic_store_n(&b->comm, comm, __ATOMIC_RELEASE);
    return TESS_OK;
}

/* The buffers of this plugin: from its own allocator, as the engine takes its arenas from there. */
static tess_status take_buffers(bench *b) {
    tess_alloc_request r = { .struct_size = sizeof r,
                             .mem = TESS_MEM_HOST,
                             .domain = TESS_DOMAIN_DEVICE,
                             .device = -1,
                             .numa_node = -1,
                             .bytes = b->options.most_bytes,
                             .align = 4096 };
    b->send = b->plain_send;
    b->recv = b->plain_recv;
    b->own[0] = b->own[1] = (tess_buffer){ .struct_size = sizeof(tess_buffer) };
    if (!TESS_CAN(tess_comm_ops, b->comm_ops, mem_alloc) || !(b->caps.mem_mask >> TESS_MEM_HOST & 1))
        return TESS_OK;
    for (int i = 0; i < 2; i++) {
        tess_error error = { .struct_size = sizeof error };
        tess_status status = b->comm_ops->mem_alloc(b->comm, &r, &b->own[i], &error);
        if (status != TESS_OK)
            return tess_fail(status, "comm %s: %s", b->plugin->name, error.message);
        memset(b->own[i].ptr, 0, b->options.most_bytes);
    }
    b->send = b->own[0].ptr;
    b->recv = b->own[1].ptr;
    return TESS_OK;
}

static void leave(bench *b, int orderly) {
    tess_comm *comm = b->comm;
    if (!comm)
        return;
    tess_error error = { .struct_size = sizeof error };
    if (orderly)
        b->comm_ops->finalize(comm, WAIT_NS, &error);
    if (b->control) /* no abort is in progress from here on */
        tess__control_on_lost(b->control, NULL, NULL);
    __atomic_store_n(&b->comm, NULL, __ATOMIC_RELEASE);
    for (int i = 0; i < 2; i++)
        if (b->own[i].ptr)
            b->comm_ops->mem_free(comm, &b->own[i]);
    b->comm_ops->destroy(comm);
    if (b->control)
        tess__control_on_lost(b->control, on_lost, b);
}

static int bench_plugin(bench *b, const char *selection, int named) {
    tess_status status = tess__plugin_open(TESS_KIND_COMM, selection, &b->host, &b->plugin);
    if (status == TESS_OK) {
        b->comm_ops = b->plugin->ops;
        status = join(b);
    }
    if (status == TESS_OK)
        status = take_buffers(b);
    tess_status all = agree(b, status);
    if (all == TESS_OK)
        all = measure_memory(b);
    int code = TOOL_OK;
    if (all == TESS_OK)
        code = bench_ops(b);
    else
        code = named || host_aborting(b) ? tool_report(all) : skip(b, selection);
    leave(b, all == TESS_OK && code == TOOL_OK);
    tess__plugin_close(b->plugin);
    b->plugin = NULL;
    return code;
}

/* ---- all ----------------------------------------------------------------------------------------- */
typedef struct {
    char names[MOST_PLUGINS][32];
    int n;
} found;

static tess_status remember(void *user, const tess__plugin_row *row, tess__plugin **opened) {
    (void)opened;
    found *f = user;
    if (row->usable && f->n < MOST_PLUGINS)
        snprintf(f->names[f->n++], sizeof f->names[0], "%s", row->name);
    return TESS_OK;
}

static int bench_all(bench *b) {
    if (b->options.comm)
        return bench_plugin(b, b->options.comm, 1);
    found f = { .n = 0 };
    tess_status status = tess__plugin_list(TESS_KIND_COMM, NULL, remember, &f);
    if (status != TESS_OK)
        return tool_report(status);
    int code = TOOL_OK;
    for (int i = 0; i < f.n && code == TOOL_OK; i++)
        code = bench_plugin(b, f.names[i], 0);
    return code;
}

static void take_options(bench *b, const tool_bench_comm_options *options) {
    b->options = *options;
    if (!b->options.out)
        b->options.out = stdout;
    if (!b->options.least_bytes)
        b->options.least_bytes = 1 << 10;
    if (!b->options.most_bytes)
        b->options.most_bytes = 64 << 20;
    if (b->options.rounds <= 0)
        b->options.rounds = 7;
    if (b->options.seconds <= 0)
        b->options.seconds = 2;
    b->host = (tess_host){ .struct_size = sizeof b->host,
                           .abi_major = TESS_ABI_MAJOR,
                           .abi_minor = TESS_ABI_MINOR,
                           .host = b,
                           .kv_set = host_kv_set,
                           .kv_get = host_kv_get,
                           .aborting = host_aborting,
                           .plugin_open = host_plugin_open,
                           .plugin_close = tess__plugin_host_close,
                           .args = "",
                           .helper_cpus = tool_option_text("helper-cpus"),
                           .numa_node = -1,
                           .max_helper_threads = -1 };
    if (!b->host.helper_cpus)
        b->host.helper_cpus = "";
}

static int known_op(const char *name) {
    const char *names[OPS];
    for (int i = 0; i < OPS; i++)
        names[i] = ops[i].name;
    for (int i = 0; i < OPS; i++)
        if (!name || strcmp(name, names[i]) == 0)
            return 1;
    fprintf(stderr, "tessera bench: no operation '%s'%s\n", name, tool_suggestion(name, names, OPS));
    return 0;
}

static int obtain(bench *b) {
    uint64_t bytes = b->options.most_bytes;
    if (posix_memalign((void **)&b->plain_send, 4096, bytes) != 0 ||
        posix_memalign((void **)&b->plain_recv, 4096, bytes) != 0)
        return tool_report(
            tess_fail(TESS_E_NOMEM, "no memory for two buffers of %llu bytes", (unsigned long long)bytes));
    memset(b->plain_send, 0, bytes);
    memset(b->plain_recv, 0, bytes);
    return TOOL_OK;
}

int tool_bench_comm(const tool_bench_comm_options *options) {
    bench b = { .control = NULL };
    if (!known_op(options->op))
        return TOOL_USAGE;
    take_options(&b, options);
    tess_status status = tess__world_from_env(&b.world);
    if (status == TESS_OK && b.world.nranks > 1)
        status = tess__control_open(&b.world, &b.control);
    if (status != TESS_OK)
        return tool_report(status);
    if (b.control)
        tess__control_on_lost(b.control, on_lost, &b);
    int code = obtain(&b);
    if (code == TOOL_OK)
        code = bench_all(&b);
    /* An exchange that has completed on one rank completes on all. */
    if (code == TOOL_OK && agree(&b, TESS_OK) != TESS_OK)
        code = TOOL_PEER;
    tess__control_close(b.control, code == TOOL_OK);
    free(b.plain_send);
    free(b.plain_recv);
    free(b.scratch);
    return code;
}
