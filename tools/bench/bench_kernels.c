/* SPDX-License-Identifier: BSD-3-Clause */
#include "bench.h"

#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "tools/commands.h"
#include "core/kernels/isa.h"
#include "tools/support/json_out.h"
#include "core/kernels/kernels.h"
#include "kit/norm_limbs.h"
#include <tessera/plugin_helpers.h>

tess_status tool_bench_run(const tess_kernel *kernel) {
    tess_error error = { .struct_size = sizeof error };
    return tess__kernel_run(kernel, NULL, &error);
}

/* ---- streams: what memory can do, without arithmetic to speak of ---------------------------------- */
typedef struct {
    float *a;
    const float *b, *c;
    double sum;
} stream_args;

static void stream_update(void *user, uint64_t first, uint64_t elems) { /* x = a x */
    float *a = ((stream_args *)user)->a + first;
    for (uint64_t i = 0; i < elems; i++)
        a[i] = a[i] * 0.999f;
}
static void stream_sum(void *user, uint64_t first, uint64_t elems) {
    stream_args *s = user;
    const int32_t *b = (const int32_t *)(const void *)(s->b + first);
    uint32_t sum = 0;
    for (uint64_t i = 0; i < elems; i++)
        sum += (uint32_t)b[i];
    __atomic_store_n((uint32_t *)(void *)&s->sum, sum, __ATOMIC_RELAXED); /* keeps the loop */
}
static void stream_copy(void *user, uint64_t first, uint64_t elems) {
    stream_args *s = user;
    memcpy(s->a + first, s->b + first, elems * sizeof *s->a);
}
static void stream_triad(void *user, uint64_t first, uint64_t elems) {
    stream_args *s = user;
    float *restrict a = s->a + first;
    const float *restrict b = s->b + first, *restrict c = s->c + first;
    for (uint64_t i = 0; i < elems; i++)
        a[i] = 0.5f * b[i] + 0.25f * c[i];
}
enum { LINE = 16 }; /* numbers */
/* Reads `from` numbers for each `to` that it writes. Parts begin at multiples of 64 elements. */
TESS_BODY void resize(const stream_args *s, uint64_t first, uint64_t elems, uint64_t from, uint64_t to) {
    uint64_t most = from > to ? from : to, begin = first / most;
    uint32_t *restrict a = (uint32_t *)(void *)s->a + begin * to;
    const uint32_t *restrict b = (const uint32_t *)(const void *)s->b + begin * from;
    for (uint64_t i = 0; i < elems / most; i += LINE)
        for (uint64_t j = 0; j < LINE; j++)
            for (uint64_t k = 0; k < to; k++) {
                uint32_t x = b[i * from + j];
                for (uint64_t more = 1; more < from; more++)
                    x |= b[i * from + more * LINE + j];
                a[i * to + k * LINE + j] = x;
            }
}
#if defined(__SSE2__)
/* The same with stores past the caches, which spare reading the output. */
TESS_BODY void resize_past(const stream_args *s, uint64_t first, uint64_t elems, uint64_t from, uint64_t to) {
    uint64_t most = from > to ? from : to, begin = first / most;
    float *a = s->a + begin * to;
    const float *b = s->b + begin * from;
    for (uint64_t i = 0; i < elems / most; i += 4) {
        __m128 x = _mm_load_ps(b + i * from);
        for (uint64_t more = 1; more < from; more++)
            x = _mm_or_ps(x, _mm_load_ps(b + i * from + 4 * more));
        for (uint64_t k = 0; k < to; k++)
            _mm_stream_ps(a + i * to + 4 * k, x);
    }
    _mm_sfence();
}
static void stream_triad_past(void *user, uint64_t first, uint64_t elems) {
    stream_args *s = user;
    __m128 half = _mm_set1_ps(0.5f), quarter = _mm_set1_ps(0.25f);
    for (uint64_t i = first; i + 4 <= first + elems; i += 4)
        _mm_stream_ps(s->a + i,
                      _mm_add_ps(_mm_mul_ps(half, _mm_load_ps(s->b + i)), _mm_mul_ps(quarter, _mm_load_ps(s->c + i))));
    _mm_sfence();
}
#define RESIZE(from, to)                                                                                               \
    static void stream_##from##_to_##to(void *user, uint64_t first, uint64_t elems) {                                  \
        resize(user, first, elems, from, to);                                                                          \
    }                                                                                                                  \
    static void stream_##from##_to_##to##_past(void *user, uint64_t first, uint64_t elems) {                           \
        resize_past(user, first, elems, from, to);                                                                     \
    }
#define PAST(name) name##_past
#else
#define RESIZE(from, to)                                                                                               \
    static void stream_##from##_to_##to(void *user, uint64_t first, uint64_t elems) {                                  \
        resize(user, first, elems, from, to);                                                                          \
    }
#define PAST(name) name
#endif
RESIZE(1, 1)
RESIZE(2, 1)
RESIZE(4, 1)
RESIZE(1, 2)
RESIZE(1, 4)

/* Shapes of traffic. Memory that is read and memory that is written share a bus, and turning it costs: how much moves
 * depends on the parts of both. */
enum { READS = 1, UPDATES, COPIES, SUMS, HALVES, QUARTERS, DOUBLES, QUADRUPLES };
typedef struct {
    uint32_t shape, bytes_per_elem;
    tess__pool_fn fn;
} stream;
static const stream streams[] = {
    { READS, 4, stream_sum },
    { UPDATES, 8, stream_update },
    { COPIES, 8, stream_copy },
    { COPIES, 8, stream_1_to_1 },
    { COPIES, 8, PAST(stream_1_to_1) },
    { SUMS, 12, stream_triad },
    { SUMS, 12, PAST(stream_triad) },
    { HALVES, 6, stream_2_to_1 },
    { HALVES, 6, PAST(stream_2_to_1) },
    { QUARTERS, 5, stream_4_to_1 },
    { QUARTERS, 5, PAST(stream_4_to_1) },
    { DOUBLES, 6, stream_1_to_2 },
    { DOUBLES, 6, PAST(stream_1_to_2) },
    { QUADRUPLES, 5, stream_1_to_4 },
    { QUADRUPLES, 5, PAST(stream_1_to_4) },
};
enum { N_STREAMS = sizeof streams / sizeof streams[0] };

/* An update in place is also held against the streams with an output of their own, whichever is faster. */
static int comparable(uint32_t kernel_shape, uint32_t stream_shape) {
    return kernel_shape == stream_shape ||
           (kernel_shape == UPDATES && (stream_shape == COPIES || stream_shape == SUMS));
}

/* ---- the kernels ---------------------------------------------------------------------------------- */
typedef struct {
    const char *subject, *what;
    uint32_t shape;
    double bytes_per_elem;
    uint32_t kernel, in_dtype, out_dtype, n_in, optimizer, low_copy;
} bench_case;
#define BLOCKS (1 + 4.0 / TESS_Q8_BLOCK) /* bytes of an element in blocks of 8 bits */
static const bench_case cases[] = {
    { "cast", "cast f32 bf16", HALVES, 6, TESS_K_CAST, TESS_F32, TESS_BF16, 1, 0, 0 },
    { "cast", "cast bf16 f32", DOUBLES, 6, TESS_K_CAST, TESS_BF16, TESS_F32, 1, 0, 0 },
    { "cast", "cast f32 f16", HALVES, 6, TESS_K_CAST, TESS_F32, TESS_F16, 1, 0, 0 },
    { "cast", "cast f32 q8", QUARTERS, 4 + BLOCKS, TESS_K_CAST, TESS_F32, TESS_Q8, 1, 0, 0 },
    { "cast", "cast q8 f32", QUADRUPLES, 4 + BLOCKS, TESS_K_CAST, TESS_Q8, TESS_F32, 1, 0, 0 },
    { "cast", "cast f32 q8e4m3", QUARTERS, 4 + BLOCKS, TESS_K_CAST, TESS_F32, TESS_Q8E4M3, 1, 0, 0 },
    { "cast", "cast q8e4m3 f32", QUADRUPLES, 4 + BLOCKS, TESS_K_CAST, TESS_Q8E4M3, TESS_F32, 1, 0, 0 },
    { "optimizer", "adamw", UPDATES, 28, TESS_K_OPTIMIZER, TESS_F32, TESS_F32, 1, TESS_OPT_ADAMW, 0 },
    { "optimizer", "adamw with bf16 copy", UPDATES, 30, TESS_K_OPTIMIZER, TESS_F32, TESS_F32, 1, TESS_OPT_ADAMW, 1 },
    { "optimizer", "adadelta", UPDATES, 28, TESS_K_OPTIMIZER, TESS_F32, TESS_F32, 1, TESS_OPT_ADADELTA, 0 },
    { "optimizer", "sgd momentum", UPDATES, 20, TESS_K_OPTIMIZER, TESS_F32, TESS_F32, 1, TESS_OPT_SGD, 0 },
    { "sum", "tree sum of 2", SUMS, 12, TESS_K_TREE_SUM, TESS_F32, TESS_F32, 2, 0, 0 },
    { "sum", "tree sum of 2 q8", DOUBLES, 4 + 2 * BLOCKS, TESS_K_TREE_SUM, TESS_Q8, TESS_F32, 2, 0, 0 },
    { "sum", "tree sum of 2 q8e4m3", DOUBLES, 4 + 2 * BLOCKS, TESS_K_TREE_SUM, TESS_Q8E4M3, TESS_F32, 2, 0, 0 },
    { "norm", "square sum", READS, 4, TESS_K_SQUARE_SUM, TESS_F32, TESS_I64, 1, 0, 0 },
};
enum { N_CASES = sizeof cases / sizeof cases[0], N_ARRAYS = 4 };

typedef struct {
    const tool_bench_options *options;
    FILE *out;
    tess__pool *pool;
    uint64_t elems;
    float *array[N_ARRAYS]; /* gradient or input, master or output, two states */
    uint16_t *low;
    double stream_seconds[N_STREAMS][2]; /* over two arrays and over all; the best so far, as those below */
    double case_seconds[N_CASES];
} bench;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
static void keep_best(double *best, double seconds) {
    *best = *best == 0 || seconds < *best ? seconds : *best;
}

/* A stream over as much memory as the kernels it is compared with: how far pages and caches reach counts for both. */
static void run_stream(bench *b, size_t i, int arrays) {
    double start = now();
    for (int k = 0; k < arrays; k++) {
        stream_args args = { b->array[k], b->array[(k + 1) % N_ARRAYS], b->array[(k + 2) % N_ARRAYS], 0 };
        tess__pool_run(b->pool, b->elems, TESS__KERNEL_LEAST_ELEMS, streams[i].fn, &args);
    }
    keep_best(&b->stream_seconds[i][arrays == N_ARRAYS], (now() - start) / arrays);
}

static void run_streams(bench *b) {
    for (size_t i = 0; i < N_STREAMS; i++) {
        run_stream(b, i, 2);
        run_stream(b, i, N_ARRAYS);
    }
}

static int run_case(bench *b, size_t i) {
    const bench_case *c = &cases[i];
    int64_t limbs[TESS__NORM_LIMBS];
    tess_segment segment = { .struct_size = sizeof segment,
                             .elems = b->elems,
                             .lr = 1e-6f,
                             .weight_decay = 0.01f,
                             .momentum = c->optimizer == TESS_OPT_SGD ? 0.9f : 0 };
    tess_optimizer optimizer = { .struct_size = sizeof optimizer,
                                 .optimizer = c->optimizer,
                                 .n_segments = 1,
                                 .segments = &segment,
                                 .step = 10,
                                 .beta1 = 0.9f,
                                 .beta2 = 0.999f,
                                 .eps = 1e-8f,
                                 .rho = 0.9f,
                                 .grad_scale = 1 };
    int reads_low = c->in_dtype == TESS_BF16 || tess_dtype_is_blocks(c->in_dtype);
    const void *in[2] = { reads_low ? (const void *)b->low : b->array[0], b->array[2] };
    int narrows = c->kernel == TESS_K_CAST && c->out_dtype != TESS_F32;
    tess_kernel kernel = { .struct_size = sizeof kernel,
                           .kernel = c->kernel,
                           .in_dtype = c->in_dtype,
                           .out_dtype = c->out_dtype,
                           .n_in = c->n_in,
                           .flags = c->kernel != TESS_K_TREE_SUM ? 0
                                    : c->in_dtype == TESS_Q8     ? TESS_KERNEL_Q8
                                    : c->in_dtype == TESS_Q8E4M3 ? TESS_KERNEL_Q8E4M3
                                                                 : 0,
                           .in = in,
                           .out = narrows                          ? (void *)b->low
                                  : c->kernel == TESS_K_SQUARE_SUM ? (void *)limbs
                                                                   : b->array[1],
                           .out2 = c->low_copy ? b->low : NULL,
                           .state = { b->array[2], b->array[3] },
                           .elems = b->elems,
                           .scale = 1,
                           .optimizer = &optimizer };
    tess_error error = { .struct_size = sizeof error };
    double start = now();
    tess_status status = tess__kernel_run(&kernel, b->pool, &error);
    keep_best(&b->case_seconds[i], now() - start);
    if (status < 0)
        fprintf(stderr, "tessera bench: %s: %s\n", c->what, error.message);
    return status < 0 ? TOOL_FAILED : TOOL_OK;
}

/* Values in which no kernel meets denormals, infinities or the root of a negative state. Touched by the threads that
 * use them. */
static void fill(void *user, uint64_t first, uint64_t elems) {
    bench *b = user;
    for (uint64_t i = first; i < first + elems; i++) {
        float x = (float)((i * 2654435761u >> 8) % 65536 + 1) * 0x1p-17f;
        b->array[0][i] = x;
        b->array[1][i] = x;
        b->array[2][i] = x * 0.5f;
        b->array[3][i] = x * 0.25f;
        b->low[i] = 0x3f80;
    }
}

/* ---- results -------------------------------------------------------------------------------------- */
static double memory_bandwidth(const bench *b, const bench_case *c) {
    double best = 0;
    int all = c->kernel == TESS_K_OPTIMIZER;
    for (size_t i = 0; i < N_STREAMS; i++) {
        double bandwidth = (double)(b->elems * streams[i].bytes_per_elem) / b->stream_seconds[i][all];
        if (comparable(c->shape, streams[i].shape) && bandwidth > best)
            best = bandwidth;
    }
    return best;
}

static int print_case(const bench *b, size_t i) {
    const bench_case *c = &cases[i];
    uint64_t bytes = (uint64_t)((double)b->elems * c->bytes_per_elem);
    double bandwidth = (double)bytes / b->case_seconds[i], memory = memory_bandwidth(b, c);
    if (!b->options->json) {
        fprintf(b->out, "%-22s %7.2f GB/s of %7.2f GB/s memory bandwidth: %.2f\n", c->what, bandwidth * 1e-9,
                memory * 1e-9, bandwidth / memory);
        return TOOL_OK;
    }
    json_out json;
    json_init(&json, b->out);
    json_object_begin(&json, NULL);
    json_string(&json, "event", "bench");
    json_string(&json, "what", c->what);
    json_string(&json, "isa", tess__isa_name(tess__isa()));
    json_int(&json, "threads", tess__pool_threads(b->pool));
    json_uint(&json, "bytes", bytes);
    json_double(&json, "seconds", b->case_seconds[i]);
    json_double(&json, "bandwidth", bandwidth);
    json_double(&json, "memory_bandwidth", memory);
    json_double(&json, "ratio", bandwidth / memory);
    json_object_end(&json);
    return json_line(&json) < 0 ? TOOL_FAILED : TOOL_OK;
}

/* ---- the whole ------------------------------------------------------------------------------------ */
/* The distance from one array to the next. Four arrays a power of two apart, from 128 MiB on, meet in the same banks of
 * memory: on the reference machine AdamW over them runs at 0.64 of the bandwidth that it has otherwise, from 256 MiB on
 * at 0.35. */
enum { APART = 3 << 20 };
static void *map(uint64_t bytes) {
    void *memory = mmap(NULL, bytes + APART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}

static int obtain(bench *b, tess_error *error) {
    cpu_set_t cpus;
    uint64_t bytes = b->options->bytes ? b->options->bytes : (uint64_t)128 << 20;
    int32_t threads = b->options->threads;
    if (!threads)
        threads = sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
    b->elems = (bytes / sizeof(float) + TESS_Q8_BLOCK - 1) / TESS_Q8_BLOCK * TESS_Q8_BLOCK;
    if (tess__pool_create(threads, "", &b->pool, error) < 0)
        return TOOL_CONFIG;
    for (int i = 0; i < N_ARRAYS; i++)
        b->array[i] = map(b->elems * sizeof(float));
    b->low = map(b->elems * sizeof *b->low);
    for (int i = 0; i < N_ARRAYS; i++)
        if (!b->array[i] || !b->low) {
            snprintf(error->message, sizeof error->message, "no memory for arrays of %llu bytes",
                     (unsigned long long)bytes);
            return TOOL_MEMORY;
        }
    tess__pool_run(b->pool, b->elems, TESS__KERNEL_LEAST_ELEMS, fill, b);
    return TOOL_OK;
}

static void give_back(bench *b) {
    for (int i = 0; i < N_ARRAYS; i++)
        if (b->array[i])
            munmap(b->array[i], b->elems * sizeof(float) + APART);
    if (b->low)
        munmap(b->low, b->elems * sizeof *b->low + APART);
    tess__pool_destroy(b->pool);
}

static int asked_for(const char *what, size_t i) {
    return !what || strcmp(what, cases[i].subject) == 0;
}

/* Streams and kernels take turns, so that a busy moment of the machine meets both. */
static int measure(bench *b, const char *what) {
    int code = TOOL_OK, rounds = b->options->rounds > 0 ? b->options->rounds : 10;
    for (int round = 0; round < rounds; round++) {
        run_streams(b);
        for (size_t i = 0; i < N_CASES && code == TOOL_OK; i++)
            if (asked_for(what, i))
                code = run_case(b, i);
    }
    for (size_t i = 0; i < N_CASES && code == TOOL_OK; i++)
        if (asked_for(what, i))
            code = print_case(b, i);
    return code;
}

int tool_bench_kernels(const char *what, const tool_bench_options *options) {
    bench b = { .options = options, .out = options->out ? options->out : stdout };
    tess_error error = { .struct_size = sizeof error };
    int any = 0;
    for (size_t i = 0; i < N_CASES; i++)
        any |= asked_for(what, i);
    if (!any) {
        fprintf(stderr, "tessera bench: no subject '%s', expected cast, optimizer, sum or norm\n", what);
        return TOOL_USAGE;
    }
    int code = obtain(&b, &error);
    if (code == TOOL_OK)
        code = measure(&b, what);
    else
        fprintf(stderr, "tessera bench: %s\n", error.message);
    give_back(&b);
    return code;
}
