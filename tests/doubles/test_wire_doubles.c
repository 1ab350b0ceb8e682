/* SPDX-License-Identifier: BSD-3-Clause */
/* Sums over comm-nccl on the doubles, in called and in recorded passes. In the tree a piece is summed while the next
 * one is exchanged; where NCCL sums 16 bits, a piece is widened while it sums the one before. The bits are those of the
 * tree or of NCCL's ring, no race is told, a message of one piece costs what it did, and what fails half way leaves
 * nothing running. */
#include "driver.h"
#include "plugin_host.h"

#include "formulas.h"
#include <setjmp.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <tessera/plugin_helpers.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS = 3, MI = 1 << 20, LONG_S = 60 };

struct sum {
    uint32_t op, in, out;
    uint64_t count;
    int add;
    double scale;
    unsigned pieces; /* 0: everybody sums all */
    int idle;        /* 1 + the rank that has nothing in the last one */
};
static const char *sums_by = "tree"; /* TESSERA_NCCL_SUMS */

static struct { char wrong[RANKS][240]; } * told; /* by rank, "" when all was well */
static int rank;
static const tess_comm_ops *ops;
static void *ctx;
static tess_comm *world;
static tess_error error = { .struct_size = sizeof error };
static CUstream stream;

#define MUST(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            snprintf(told->wrong[rank], sizeof told->wrong[rank], "%d: %s (%s)", __LINE__, #condition, error.message); \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

/* ---- values --------------------------------------------------------------------------------------- */

/* Of many sizes, so that another order gives other bits. whose: a rank, or RANKS for what recv held. */
static float value_of(uint32_t dtype, int whose, uint64_t i) {
    uint64_t h = (i * (RANKS + 1) + (uint64_t)whose + 1) * UINT64_C(0x9e3779b97f4a7c15);
    h ^= h >> 29;
    float x = tess_f32_of_bits((uint32_t)(h >> 32 & 0x807fffff) | (118u + (uint32_t)h % 12u) << 23);
    return dtype == TESS_BF16  ? tess_f32_of_bf16(tess_bf16_of_f32(x))
           : dtype == TESS_F16 ? tess_f32_of_f16(tess_f16_of_f32(x))
                               : x;
}

static void store(uint32_t dtype, void *at, uint64_t i, float x) {
    if (dtype == TESS_F32)
        ((float *)at)[i] = x;
    else
        ((uint16_t *)at)[i] = dtype == TESS_BF16 ? tess_bf16_of_f32(x) : tess_f16_of_f32(x);
}

static float tree(const float *x, int n) {
    int left = 1;
    if (n == 1)
        return *x;
    while (2 * left < n)
        left *= 2;
    return tree(x, left) + tree(x + left, n - left);
}

/* As the double's ring, which begins behind the rank whose part it is. */
static float ring(const struct sum *s, const float *x) {
    int native = strcmp(sums_by, "native") == 0, first = s->op == TESS_REDUCE_SCATTER ? rank + 1 : 1;
    float sum = x[first % RANKS];
    for (int i = 1; i < RANKS; i++) {
        sum += x[(first + i) % RANKS];
        if (native)
            sum = s->in == TESS_BF16 ? tess_f32_of_bf16(tess_bf16_of_f32(sum)) : tess_f32_of_f16(tess_f16_of_f32(sum));
    }
    return sum;
}

static float result_of(const struct sum *s, uint64_t i) {
    float x[RANKS];
    uint64_t at = s->op == TESS_REDUCE_SCATTER ? (uint64_t)rank * s->count + i : i;
    for (int p = 0; p < RANKS; p++)
        x[p] = value_of(s->in, p, at);
    float sum = strcmp(sums_by, "tree") == 0 ? tree(x, RANKS) : ring(s, x);
    if (s->add)
        sum = value_of(s->out, RANKS, i) + sum;
    return s->scale == 1 ? sum : sum * (float)s->scale;
}

/* ---- one reduction -------------------------------------------------------------------------------- */

struct buffers {
    CUdeviceptr send, recv, scratch;
    uint64_t send_elems, send_bytes, recv_bytes, scratch_bytes;
    void *host;
};

static tess_collective call_of(const struct sum *s) {
    return (tess_collective){ .struct_size = sizeof(tess_collective),
                              .op = s->op,
                              .redop = TESS_SUM,
                              .flags = s->add ? 1 : 0,
                              .send_dtype = s->in,
                              .recv_dtype = s->out,
                              .send_mem = TESS_MEM_CUDA,
                              .recv_mem = TESS_MEM_CUDA,
                              .count = s->count,
                              .scale = s->scale,
                              .after = { .mem = TESS_MEM_CUDA, .handle = stream } };
}

static void fill(const struct buffers *b, CUdeviceptr at, uint32_t dtype, int whose, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        store(dtype, b->host, i, value_of(dtype, whose, i));
    MUST(cuMemcpyHtoD(at, b->host, n * tess_dtype_bytes(dtype)) == CUDA_SUCCESS);
}

static void obtain(struct buffers *b, const struct sum *s) {
    tess_plan_env env = { .struct_size = sizeof env, .nranks = RANKS };
    tess_need need = { .struct_size = sizeof need };
    tess_collective c = call_of(s);
    MUST(ops->need(ctx, &env, &c, &need) == TESS_OK);
    b->send_elems = s->count * (s->op == TESS_REDUCE_SCATTER ? (uint64_t)RANKS : 1);
    b->send_bytes = b->send_elems * tess_dtype_bytes(s->in);
    b->recv_bytes = s->count * tess_dtype_bytes(s->out);
    b->scratch_bytes = need.device_bytes;
    b->host = malloc(b->send_bytes > b->recv_bytes ? b->send_bytes : b->recv_bytes);
    MUST(b->host && b->scratch_bytes <= (uint64_t)(strcmp(sums_by, "tree") == 0 ? 16 : 32) * MI);
    MUST(cuMemAlloc(&b->send, b->send_bytes) == CUDA_SUCCESS && cuMemAlloc(&b->recv, b->recv_bytes) == CUDA_SUCCESS);
    MUST(cuMemAlloc(&b->scratch, b->scratch_bytes ? b->scratch_bytes : 1) == CUDA_SUCCESS);
    fill(b, b->send, s->in, rank, b->send_elems);
    fill(b, b->recv, s->out, RANKS, s->count);
}

static void give_back(struct buffers *b) {
    MUST(cuMemFree(b->send) == CUDA_SUCCESS && cuMemFree(b->recv) == CUDA_SUCCESS);
    MUST(cuMemFree(b->scratch) == CUDA_SUCCESS);
    free(b->host);
}

static tess_status post(const struct buffers *b, const struct sum *s, tess_request **out) {
    tess_collective c = call_of(s);
    c.send = (const void *)b->send;
    c.recv = (void *)b->recv;
    c.scratch = (void *)b->scratch;
    c.scratch_bytes = b->scratch_bytes;
    return ops->post(world, &c, 1, out, &error);
}

/* Reads recv in the caller's stream, as a block would, behind the wait for the request. */
static void post_and_read(const struct buffers *b, const struct sum *s, void *out, tess_request **request) {
    tess_stream after = { .mem = TESS_MEM_CUDA, .handle = stream };
    MUST(post(b, s, request) == TESS_OK);
    MUST(ops->wait_stream(*request, &after, &error) == TESS_OK);
    MUST(cuMemcpyDtoHAsync(out, b->recv, b->recv_bytes, stream) == CUDA_SUCCESS);
}

static void compare(const struct buffers *b, const struct sum *s, const void *got) {
    uint32_t bytes = tess_dtype_bytes(s->out);
    for (uint64_t i = 0; i < s->count; i++)
        store(s->out, b->host, i, result_of(s, i));
    for (uint64_t i = 0; i < s->count; i++)
        if (memcmp((const char *)b->host + i * bytes, (const char *)got + i * bytes, bytes) != 0) {
            snprintf(told->wrong[rank], sizeof told->wrong[rank],
                     "operation %u of dtypes %u, %u and %llu elements: element %llu has other bits", s->op, s->in,
                     s->out, (unsigned long long)s->count, (unsigned long long)i);
            _exit(1);
        }
}

struct counts {
    uint64_t groups, sums, records, waits, widened, finished, sends;
};
static struct counts count_now(void) {
    return (struct counts){ double__counted("groups-of-nccl"),  double__counted("tess_nccl_reduce"),
                            double__counted("cuEventRecord"),   double__counted("cuStreamWaitEvent"),
                            double__counted("tess_nccl_widen"), double__counted("tess_nccl_finish"),
                            double__counted("ncclSend") };
}

/* A group of one reduction for each piece, and no send. The first record is waited for by the second piece's widening,
 * and two that follow are behind a widening and, where a third piece comes into its half, behind a sum. */
static void check_counts_of_nccl(const struct sum *s, struct counts before, struct counts now) {
    uint64_t pieces = s->pieces, more = pieces - 1, wide = strcmp(sums_by, "fp32") == 0;
    MUST(now.groups - before.groups == pieces && now.sends == before.sends && now.sums == before.sums);
    MUST(now.widened - before.widened == wide * pieces);
    MUST(now.finished - before.finished == pieces);
    MUST(now.records - before.records == 2 + (more ? 2 * more : 0));
    MUST(now.waits - before.waits == 2 + 2 * more);
}

/* One piece: the two events of a request, the wait for `after`, and the caller's for the request. Each piece but the
 * last has two events and two waits. The first two wait for no sum; that of the last but one is waited for at the end.
 */
static void check_counts(const struct sum *s, struct counts before) {
    struct counts now = count_now();
    if (strcmp(sums_by, "tree") != 0) {
        check_counts_of_nccl(s, before, now);
        return;
    }
    uint64_t more = s->pieces > 1 ? s->pieces - 1 : 0, gathers = s->op == TESS_ALL_REDUCE && s->pieces;
    MUST(now.groups - before.groups == (s->pieces ? s->pieces : 1) + gathers);
    MUST(now.sums - before.sums == (s->pieces ? s->pieces : 1) - (s->idle == rank + 1));
    MUST(now.records - before.records == 2 + 2 * more);
    MUST(now.waits - before.waits == 2 + (more ? 2 * more : 0));
}

static void reduce_called(const struct sum *s, int counts) {
    struct buffers b;
    tess_request *request;
    void *got;
    obtain(&b, s);
    MUST(cuMemHostAlloc(&got, b.recv_bytes, 0) == CUDA_SUCCESS);
    struct counts before = count_now();
    post_and_read(&b, s, got, &request);
    if (counts)
        check_counts(s, before);
    MUST(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    MUST(ops->wait(request, -1, &error) == TESS_OK);
    ops->request_free(request);
    compare(&b, s, got);
    MUST(cuMemFreeHost(got) == CUDA_SUCCESS);
    give_back(&b);
}

static void reduce_recorded(const struct sum *s) {
    struct buffers b;
    tess_request *request;
    CUgraph graph;
    CUgraphExec exec;
    void *got;
    obtain(&b, s);
    MUST(cuMemHostAlloc(&got, b.recv_bytes, 0) == CUDA_SUCCESS);
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) == CUDA_SUCCESS);
    post_and_read(&b, s, got, &request);
    MUST(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
    MUST(cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
    MUST(cuGraphLaunch(exec, stream) == CUDA_SUCCESS && cuStreamSynchronize(stream) == CUDA_SUCCESS);
    compare(&b, s, got);
    ops->request_free(request);
    MUST(cuGraphExecDestroy(exec) == CUDA_SUCCESS && cuGraphDestroy(graph) == CUDA_SUCCESS);
    MUST(cuMemFreeHost(got) == CUDA_SUCCESS);
    give_back(&b);
}

/* ---- a rank --------------------------------------------------------------------------------------- */

static void open_world(void) {
    tess_comm_config config = { .struct_size = sizeof config,
                                .rank = rank,
                                .nranks = RANKS,
                                .local_rank = rank,
                                .device = -1,
                                .group = "world",
                                .timeout_ns = LONG_S * INT64_C(1000000000) };
    CUcontext context;
    MUST(cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, rank) == CUDA_SUCCESS);
    MUST(cuCtxPushCurrent(context) == CUDA_SUCCESS);
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    setenv("PROBE_SUMS", sums_by, 1);
    MUST(plugin_host_load(&ops, &ctx, &error));
    MUST(ops->init(ctx, &config, &world, &error) == TESS_OK);
}

static void close_world(int orderly) {
    MUST(!orderly || ops->finalize(world, -1, &error) == TESS_OK);
    ops->destroy(world);
    ops->close(ctx);
    MUST(cuStreamDestroy(stream) == CUDA_SUCCESS);
    cuCtxPopCurrent(NULL);
    cuDevicePrimaryCtxRelease(rank);
}

/* 16 MiB of what two others send are 4 Mi elements of bf16, in pieces of 2 Mi. */
static const struct sum of_16_bits[] = {
    { TESS_REDUCE_SCATTER, TESS_BF16, TESS_F32, 4 * MI + 12345, 1, 1.0 / 6, 3, 0 },
    { TESS_REDUCE_SCATTER, TESS_BF16, TESS_F32, 1, 1, 0.5, 1, 0 },
    { TESS_REDUCE_SCATTER, TESS_F16, TESS_F32, 1001, 1, 1, 1, 0 },
    { TESS_ALL_REDUCE, TESS_F16, TESS_F16, 13 * MI + 1, 0, 0.25, 3, 0 },
    { TESS_ALL_REDUCE, TESS_BF16, TESS_F32, 64 * 1024 + 7, 1, 0.5, 1, 0 },
    { TESS_ALL_REDUCE, TESS_BF16, TESS_F32, 1, 0, 0.5, 0, 0 },
};
/* Rank 2 has nothing in the last of three pieces, and one that is short before it. */
static const struct sum of_f32[] = {
    { TESS_ALL_REDUCE, TESS_F32, TESS_F32, 6 * MI + 1, 0, 1, 3, RANKS },
    { TESS_REDUCE_SCATTER, TESS_F32, TESS_F32, 777, 1, 0.5, 1, 0 },
};

static void do_sums(const struct sum *list, size_t n) {
    open_world();
    for (size_t i = 0; i < n; i++)
        reduce_called(&list[i], 1);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || list[i].count < MI)
            reduce_recorded(&list[i]);
    close_world(1);
}

static void sums_of_16_bits(void) {
    do_sums(of_16_bits, sizeof of_16_bits / sizeof *of_16_bits);
}

static void sums_of_f32(void) {
    setenv("PROBE_DETERMINISTIC", "1", 1);
    do_sums(of_f32, sizeof of_f32 / sizeof *of_f32);
}

/* 32 MiB of three ranks' fp32 are 2,796,032 elements of each, in pieces of half; without ranks, 8 Mi. */
static const struct sum widened[] = {
    { TESS_REDUCE_SCATTER, TESS_BF16, TESS_F32, 4 * MI + 12344, 1, 1.0 / 6, 4, 0 },
    { TESS_REDUCE_SCATTER, TESS_BF16, TESS_F32, 1, 1, 0.5, 1, 0 },
    { TESS_REDUCE_SCATTER, TESS_BF16, TESS_F32, 4096, 0, 1, 1, 0 },
    { TESS_REDUCE_SCATTER, TESS_BF16, TESS_BF16, 1001, 0, 0.25, 1, 0 },
    { TESS_REDUCE_SCATTER, TESS_F16, TESS_F32, 1001, 1, 1, 1, 0 },
    { TESS_ALL_REDUCE, TESS_F16, TESS_F16, 13 * MI + 1, 0, 0.25, 4, 0 },
    { TESS_ALL_REDUCE, TESS_BF16, TESS_F32, 64 * 1024 + 7, 1, 0.5, 1, 0 },
};
static const struct sum native[] = {
    { TESS_REDUCE_SCATTER, TESS_BF16, TESS_F32, 4 * MI + 12345, 1, 1.0 / 6, 1, 0 },
    { TESS_REDUCE_SCATTER, TESS_F16, TESS_F32, 1001, 0, 1, 1, 0 },
    { TESS_ALL_REDUCE, TESS_BF16, TESS_BF16, 64 * 1024 + 7, 0, 0.5, 1, 0 },
};

/* What a reduction of that many elements is said to take. */
static int64_t cost_of(uint32_t dtype) {
    const struct sum s = { TESS_REDUCE_SCATTER, dtype, TESS_F32, 64 * MI, 1, 0.5, 1, 0 };
    tess_plan_env env = { .struct_size = sizeof env, .nranks = RANKS };
    tess_collective c = call_of(&s);
    int64_t ns = 0;
    setenv("PROBE_SUMS", sums_by, 1);
    MUST(plugin_host_load(&ops, &ctx, &error));
    MUST(ops->cost(ctx, &env, &c, &ns) == TESS_OK);
    ops->close(ctx);
    return ns;
}

static void sums_of_nccl_in_fp32(void) {
    sums_by = "fp32";
    MUST(cost_of(TESS_BF16) == cost_of(TESS_F32));
    do_sums(widened, sizeof widened / sizeof *widened);
}

static void sums_of_nccl_native(void) {
    sums_by = "native";
    MUST(cost_of(TESS_BF16) < cost_of(TESS_F32));
    do_sums(native, sizeof native / sizeof *native);
}

/* The third piece's widening, which no other passes, waits on the GPU until NCCL has summed the second. */
static void sum_passes_widening(void) {
    char wish[128];
    sums_by = "fp32";
    snprintf(wish, sizeof wish, "tess_nccl_widen:3:%d,tess_nccl_widen:7:%d", LONG_S, LONG_S);
    setenv("TESSERA_DOUBLE_OVERTAKE", wish, 1);
    open_world();
    reduce_called(widened, 0);
    MUST(double__counted("sums-overtaken") == 1);
    reduce_recorded(widened);
    MUST(double__counted("sums-overtaken") == 2);
    close_world(1);
}

/* Rank 1 would sum in another way. */
static void ways_differ(void) {
    sums_by = rank == 1 ? "native" : "fp32";
    setenv("PROBE_SUMS", sums_by, 1);
    tess_comm_config config = { .struct_size = sizeof config,
                                .rank = rank,
                                .nranks = RANKS,
                                .local_rank = rank,
                                .device = -1,
                                .group = "world",
                                .timeout_ns = LONG_S * INT64_C(1000000000) };
    MUST(plugin_host_load(&ops, &ctx, &error));
    MUST(ops->init(ctx, &config, &world, &error) == TESS_E_INVALID);
    MUST(strstr(error.message, "rank 0 has TESSERA_NCCL_SUMS=fp32 and rank 1 has native, expected the same"));
    ops->close(ctx);
}

/* The first piece's sum waits on the GPU until the second has been exchanged: called, and in each launch of a graph. */
static void exchange_passes_sum(void) {
    char wish[128];
    snprintf(wish, sizeof wish, "tess_nccl_reduce:1:%d,tess_nccl_reduce:4:%d", LONG_S, LONG_S);
    setenv("TESSERA_DOUBLE_OVERTAKE", wish, 1);
    open_world();
    reduce_called(of_16_bits, 0);
    MUST(double__counted("sums-overtaken") == 1);
    reduce_recorded(of_16_bits);
    MUST(double__counted("sums-overtaken") == 2);
    close_world(1);
}

/* Every rank fails at the same call of a post, with sums that still run in another stream than the exchange. */
static struct {
    const char *name;
    int nth;
} failing;
static void post_fails(void) {
    const int64_t gives_up_ns = 1000000000; /* post does not wait longer than that */
    struct buffers b;
    tess_request *request;
    open_world();
    obtain(&b, of_16_bits);
    char wish[64];
    snprintf(wish, sizeof wish, "%s:%d", failing.name, (int)double__counted(failing.name) + failing.nth);
    setenv("TESSERA_DOUBLE_FAIL", wish, 1);
    int64_t begin = now_ns();
    tess_status s = post(&b, of_16_bits, &request);
    if (s == TESS_OK) {
        s = ops->wait(request, -1, &error);
        ops->request_free(request);
    }
    MUST(s != TESS_OK);
    MUST(!double__device_works(rank) || now_ns() - begin > gives_up_ns);
    MUST(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    ops->destroy(world);
    world = NULL;
    give_back(&b);
    close_world(0);
}

/* A post fails while its first kernel is held up for longer than it waits. Memory that is freed then waits for the
 * kernel. */
static void freed_behind_work(void) {
    tess_alloc_request request = { .struct_size = sizeof request, .mem = TESS_MEM_CUDA, .bytes = MI, .align = 256 };
    tess_buffer memory = { .struct_size = sizeof memory };
    struct buffers b;
    tess_request *posted;
    char wish[64];
    sums_by = "fp32";
    setenv("TESSERA_DOUBLE_OVERTAKE", "tess_nccl_widen:1:2", 1);
    open_world();
    MUST(ops->mem_alloc(world, &request, &memory, &error) == TESS_OK);
    obtain(&b, &widened[1]);
    snprintf(wish, sizeof wish, "ncclGroupEnd:%d", (int)double__counted("ncclGroupEnd") + 1);
    setenv("TESSERA_DOUBLE_FAIL", wish, 1);
    MUST(post(&b, &widened[1], &posted) != TESS_OK);
    MUST(double__device_works(rank));
    ops->mem_free(world, &memory);
    MUST(!double__device_works(rank));
    ops->destroy(world);
    world = NULL;
    give_back(&b);
    close_world(0);
}

/* ---- one run -------------------------------------------------------------------------------------- */

static int code_of(pid_t pid) {
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void run_ranks(void (*what)(void)) {
    pid_t pids[RANKS];
    int codes[RANKS], failed = 0;
    char number[12];
    memset(told, 0, sizeof *told);
    memset(host_shared, 0, sizeof *host_shared);
    fflush(NULL);
    for (rank = 0; rank < RANKS; rank++) {
        pids[rank] = fork();
        if (pids[rank] == 0) {
            snprintf(number, sizeof number, "%d", rank);
            setenv("RANK", number, 1);
            setenv("TESSERA_DOUBLE_LEAKS", "55", 1); /* races, too */
            setenv("TESSERA_DOUBLE_RACES", "1", 1);
            setenv("TESSERA_DOUBLE_DELAY_US", "5", 1);
            what();
            exit(0);
        }
    }
    for (int i = 0; i < RANKS; i++) {
        codes[i] = code_of(pids[i]);
        failed |= codes[i] != 0;
        if (codes[i] != 0)
            atomic_store(&host_shared->failed, 1); /* those who wait for it */
    }
    for (int i = 0; failed && i < RANKS; i++)
        print_message("rank %d ended with %d: %s\n", i, codes[i], told->wrong[i]);
    assert_false(failed);
}

static void test_wire__sums_of_16_bits_have_the_bits_of_the_tree_doubles(void **state) {
    (void)state;
    run_ranks(sums_of_16_bits);
}

static void test_wire__deterministic_sums_of_f32_have_the_bits_of_the_tree_doubles(void **state) {
    (void)state;
    run_ranks(sums_of_f32);
}

static void test_wire__nccl_sums_16_bits_in_fp32_doubles(void **state) {
    (void)state;
    run_ranks(sums_of_nccl_in_fp32);
}

static void test_wire__nccl_sums_16_bits_as_they_are_doubles(void **state) {
    (void)state;
    run_ranks(sums_of_nccl_native);
}

static void test_wire__next_piece_is_widened_while_one_is_summed_doubles(void **state) {
    (void)state;
    run_ranks(sum_passes_widening);
}

static void test_wire__ranks_that_sum_in_two_ways_are_named_doubles(void **state) {
    (void)state;
    run_ranks(ways_differ);
}

static void test_wire__next_piece_is_exchanged_while_one_is_summed_doubles(void **state) {
    (void)state;
    run_ranks(exchange_passes_sum);
}

static void test_wire__memory_is_freed_behind_work_that_failed_doubles(void **state) {
    (void)state;
    run_ranks(freed_behind_work);
}

/* The event behind the first sum, the third exchange, and the wait for the last sum but one. */
static void test_wire__post_that_fails_leaves_nothing_running_doubles(void **state) {
    static const struct {
        const char *name;
        int nth;
    } calls[] = { { "cuEventRecord", 3 }, { "ncclGroupEnd", 3 }, { "cuStreamWaitEvent", 5 } };
    (void)state;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        failing.name = calls[i].name;
        failing.nth = calls[i].nth;
        run_ranks(post_fails);
    }
}

/* ---- the ranks' store ------------------------------------------------------------------------------ */

static void begin_key(const char *key, unsigned version) {
    memset(host_shared, 0, sizeof *host_shared);
    atomic_store(&host_shared->n_keys, 1);
    atomic_store(&host_shared->keys[0].version, version);
    strcpy(host_shared->keys[0].key, key);
}

/* Whatever a comparison with it says: here, that it is the same. */
static void test_wire__store_takes_no_key_that_another_rank_is_writing_doubles(void **state) {
    const int value = 7;
    int got = 0;
    uint64_t bytes = sizeof got;
    (void)state;
    begin_key("key", 1);
    assert_int_equal(plugin_host.kv_get(NULL, "key", &got, &bytes, 0), TESS_E_TIMEOUT);
    assert_int_equal(plugin_host.kv_set(NULL, "key", &value, sizeof value), TESS_OK);
    assert_int_equal(atomic_load(&host_shared->keys[0].version), 1);
    assert_int_equal(plugin_host.kv_get(NULL, "key", &got, &bytes, 0), TESS_OK);
    assert_int_equal(got, value);
}

static void test_wire__store_gives_no_value_that_is_being_written_doubles(void **state) {
    const int value = 7;
    int got = 0;
    uint64_t bytes = sizeof got;
    (void)state;
    begin_key("key", 2);
    assert_int_equal(plugin_host.kv_set(NULL, "key", &value, sizeof value), TESS_OK);
    assert_int_equal(atomic_load(&host_shared->n_keys), 1);
    assert_int_equal(plugin_host.kv_get(NULL, "key", &got, &bytes, 0), TESS_OK);
    assert_int_equal(got, value);
    atomic_fetch_add(&host_shared->keys[0].version, 1);
    assert_int_equal(plugin_host.kv_get(NULL, "key", &got, &bytes, 0), TESS_E_TIMEOUT);
}

int main(void) {
    told = mmap(NULL, sizeof *told, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (told == MAP_FAILED || !plugin_host_open())
        return 1;
    if (!getenv("PLUGIN")) {
        printf("skipped: PLUGIN does not name comm-nccl\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wire__store_takes_no_key_that_another_rank_is_writing_doubles),
        cmocka_unit_test(test_wire__store_gives_no_value_that_is_being_written_doubles),
        cmocka_unit_test(test_wire__sums_of_16_bits_have_the_bits_of_the_tree_doubles),
        cmocka_unit_test(test_wire__deterministic_sums_of_f32_have_the_bits_of_the_tree_doubles),
        cmocka_unit_test(test_wire__nccl_sums_16_bits_in_fp32_doubles),
        cmocka_unit_test(test_wire__nccl_sums_16_bits_as_they_are_doubles),
        cmocka_unit_test(test_wire__next_piece_is_widened_while_one_is_summed_doubles),
        cmocka_unit_test(test_wire__ranks_that_sum_in_two_ways_are_named_doubles),
        cmocka_unit_test(test_wire__next_piece_is_exchanged_while_one_is_summed_doubles),
        cmocka_unit_test(test_wire__memory_is_freed_behind_work_that_failed_doubles),
        cmocka_unit_test(test_wire__post_that_fails_leaves_nothing_running_doubles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
