/* SPDX-License-Identifier: BSD-3-Clause */
/* Sums in the one tree order (docs/numbers.md): T(lo, hi) = T(lo, lo+p) + T(lo+p, hi), p the largest power of two below
 * hi - lo, by the binary counter that gives the same: input k is added to the partials of k's trailing one bits, and
 * the end adds what is left from the smallest up. Worked a chunk at a time, so that partials stay in the nearest cache.
 */
#include "kit/formulas.h"
#include "isa.h"
#include "kernel_x86.h"
#include "kernels.h"
#include <tessera/plugin_helpers.h>

enum { CHUNK_BYTES = 4096, MOST_LEVELS = 32 };

/* The operations on one chunk of one type: add a + b, multiply. Integers wrap, as in every comm backend. */
#define SPAN(type, name)                                                                                               \
    TESS_BODY void add_body_##name(void *out, const void *a, const void *b, uint64_t elems) {                          \
        type *o = out;                                                                                                 \
        const type *x = a, *y = b;                                                                                     \
        for (uint64_t i = 0; i < elems; i++)                                                                           \
            o[i] = x[i] + y[i];                                                                                        \
    }                                                                                                                  \
    static void add_c_##name(void *out, const void *a, const void *b, uint64_t elems) {                                \
        add_body_##name(out, a, b, elems);                                                                             \
    }                                                                                                                  \
    SPAN_WIDE(name)
#if defined(TESS_HAVE_X86)
#define SPAN_WIDE(name)                                                                                                \
    TESS_TARGET_AVX2 static void add_avx2_##name(void *out, const void *a, const void *b, uint64_t elems) {            \
        add_body_##name(out, a, b, elems);                                                                             \
    }                                                                                                                  \
    TESS_TARGET_AVX512 static void add_avx512_##name(void *out, const void *a, const void *b, uint64_t elems) {        \
        add_body_##name(out, a, b, elems);                                                                             \
    }
#define PATHS(name)                                                                                                    \
    { add_c_##name, add_avx2_##name, add_avx512_##name }
#else
#define SPAN_WIDE(name)
#define PATHS(name)                                                                                                    \
    { add_c_##name, add_c_##name, add_c_##name }
#endif
SPAN(float, f32)
SPAN(double, f64)
SPAN(uint32_t, i32)
SPAN(uint64_t, i64)

typedef void (*add_fn)(void *, const void *, const void *, uint64_t);
typedef int (*pair_fn)(const void *, const void *, void *, uint64_t, int past);
static const struct {
    uint32_t dtype;
    add_fn paths[3];
} adds[] = { { TESS_F32, PATHS(f32) }, { TESS_F64, PATHS(f64) }, { TESS_I32, PATHS(i32) }, { TESS_I64, PATHS(i64) } };

static add_fn add_find(uint32_t dtype) {
    int isa = tess__isa(), path = isa >= TESS_ISA_AVX512 ? 2 : isa == TESS_ISA_AVX2 ? 1 : 0;
    for (size_t i = 0; i < sizeof adds / sizeof adds[0]; i++)
        if (adds[i].dtype == dtype)
            return adds[i].paths[path];
    return NULL;
}

typedef struct {
    const tess_kernel *kernel;
    uint32_t sum_dtype, sum_bytes, out_bytes;
    add_fn add;
    tess__cast_fn load, store, load_out; /* null: no cast needed */
    tess__cast_fn pack, widen;           /* null: sums do not go through blocks */
    int past, direct;                    /* the output goes past the caches, by the last addition itself */
    add_fn past_add;                     /* null: none for this type */
    pair_fn pair;                        /* of two inputs of blocks; null: none for these */
} sum_job;

typedef struct { /* one thread's scratch for a chunk: a partial per level, the input as loaded, the result */
    _Alignas(64) char level[MOST_LEVELS][CHUNK_BYTES];
    _Alignas(64) char loaded[CHUNK_BYTES];
    _Alignas(64) char result[CHUNK_BYTES];
    char blocks[CHUNK_BYTES / sizeof(float) / TESS_Q8_BLOCK * TESS_Q8_BYTES];
} sum_scratch;

/* One sum of two. */
static void add_two(const sum_job *job, void *to, const void *a, const void *b, uint64_t elems, sum_scratch *s) {
    job->add(to, a, b, elems);
    if (job->pack) {
        job->pack(to, s->blocks, elems);
        job->widen(s->blocks, to, elems);
    }
}

/* Finds input k's elements from `first` in the sum's dtype: where they lie, or cast into the scratch. */
static const void *load_input(const sum_job *job, uint32_t k, uint64_t first, uint64_t elems, void *room) {
    const char *in = (const char *)job->kernel->in[k] + tess_dtype_span(job->kernel->in_dtype, first);
    if (!job->load)
        return in;
    job->load(in, room, elems);
    return room;
}

/* The sum of inputs k - 1 and k. */
static const void *add_leaves(const sum_job *job, uint32_t k, uint64_t first, uint64_t elems, void *to,
                              sum_scratch *s) {
    int last = job->direct && job->kernel->n_in == 2;
    const char *const *in = (const char *const *)job->kernel->in;
    uint64_t at = tess_dtype_span(job->kernel->in_dtype, first);
    if (job->pair && job->pair(in[k - 1] + at, in[k] + at, to, elems, last))
        return to;
    const void *a = load_input(job, k - 1, first, elems, s->level[0]), *b = load_input(job, k, first, elems, s->loaded);
    if (last && job->past_add)
        job->past_add(to, a, b, elems);
    else
        add_two(job, to, a, b, elems, s);
    return to;
}

/* Computes T over a chunk; the last addition goes to `end`. Returns where the sum lies: in `end`, or for one input
 * where it is. */
static const void *sum_tree(const sum_job *job, uint64_t first, uint64_t elems, void *end, sum_scratch *s) {
    const void *level[MOST_LEVELS], *x;
    uint32_t last = job->kernel->n_in - 1;
    for (uint32_t k = 1; k < last; k += 2) {
        uint32_t top = (uint32_t)__builtin_ctz(~k);
        x = add_leaves(job, k, first, elems, s->level[top], s);
        for (uint32_t i = 1; i < top; i++)
            add_two(job, s->level[top], level[i], x, elems, s);
        level[top] = x;
    }
    if (last & 1)
        x = add_leaves(job, last, first, elems, last == 1 ? end : s->result, s);
    else
        x = load_input(job, last, first, elems, s->loaded);
    for (uint32_t i = 1; last >> i; i++) {
        if (last >> i & 1) {
            void *to = last >> i == 1 ? end : s->result;
            if (to == end && job->direct)
                job->past_add(to, level[i], x, elems);
            else
                add_two(job, to, level[i], x, elems, s);
            x = to;
        }
    }
    return x;
}

/* The output may be any partial, so it is written by the last addition only. */
static const void *sum_chain(const sum_job *job, uint64_t first, uint64_t elems, void *end, sum_scratch *s) {
    uint32_t last = job->kernel->n_in - 1;
    const void *x = load_input(job, last, first, elems, s->loaded);
    for (uint32_t k = last; k-- > 0;) {
        void *to = k ? s->result : end;
        job->add(to, (const char *)job->kernel->in[k] + first * job->sum_bytes, x, elems);
        x = to;
    }
    return x;
}

static void scale_span(uint32_t dtype, void *out, const void *in, uint64_t elems, double scale) {
    if (dtype == TESS_F32) {
        float *o = out, s = (float)scale;
        const float *x = in;
        for (uint64_t i = 0; i < elems; i++)
            o[i] = x[i] * s;
    } else {
        double *o = out;
        const double *x = in;
        for (uint64_t i = 0; i < elems; i++)
            o[i] = x[i] * scale;
    }
}

#if defined(TESS_HAVE_X86)
/* A sum that is much larger than the caches writes past them, since each line would be read before it is written. */
static int goes_past(const tess_kernel *k) {
    uint64_t bytes = tess_dtype_span(k->out_dtype, k->elems) + k->n_in * tess_dtype_span(k->in_dtype, k->elems);
    return tess__isa() >= TESS_ISA_AVX2 && bytes >= 16u << 20 && !(k->flags & TESS_KERNEL_ADD);
}
#define copy_past tess__copy_past
#define copy_past_end tess__copy_past_end

/* By hand: what adds two of a type past the caches, and two of blocks through blocks of the same kind. */
static void find_by_hand(sum_job *job, uint32_t in, uint32_t blocks) {
    if (job->past && job->sum_dtype == TESS_F32 && !blocks)
        job->past_add = tess__add_past;
    if (blocks == in && tess__isa() >= TESS_ISA_AVX512)
        job->pair = in == TESS_Q8 ? tess__pair_q8_512 : tess__pair_e4m3_512;
}
#else
static void find_by_hand(sum_job *job, uint32_t in, uint32_t blocks) {
    (void)job, (void)in, (void)blocks;
}
static int goes_past(const tess_kernel *k) {
    (void)k;
    return 0;
}
#define copy_past memcpy
#define copy_past_end() (void)0
#endif

/* Adds what is in the output, scales and stores. `x` may be the output itself, when nothing is added and no cast
 * needed. */
static void finish_sum(const sum_job *job, const void *x, char *out, uint64_t elems, sum_scratch *s) {
    const tess_kernel *k = job->kernel;
    void *to = job->store || job->past ? s->result : out;
    if (k->flags & TESS_KERNEL_ADD) {
        const void *old = out;
        if (job->load_out) {
            job->load_out(out, s->level[0], elems);
            old = s->level[0];
        }
        add_two(job, to, old, x, elems, s);
        x = to;
    }
    if (k->scale != 0 && k->scale != 1) {
        scale_span(job->sum_dtype, to, x, elems, k->scale);
        x = to;
    }
    if (job->store)
        job->store(x, out, elems);
    else if (job->past && x != out)
        copy_past(out, x, elems * job->out_bytes);
    else if (x != out)
        memmove(out, x, elems * job->out_bytes);
}

static void sum_part(void *user, uint64_t first, uint64_t elems) {
    const sum_job *job = user;
    const tess_kernel *k = job->kernel;
    sum_scratch scratch;
    uint64_t chunk = CHUNK_BYTES / job->sum_bytes, stop = first + elems;
    int through =
        job->store || (job->past && !job->direct) || k->flags & TESS_KERNEL_ADD; /* the sum is not yet what goes out */
    for (uint64_t at = first; at < stop; at += chunk) {
        uint64_t now = stop - at < chunk ? stop - at : chunk;
        char *out = (char *)k->out + tess_dtype_span(k->out_dtype, at);
        void *end = through ? scratch.result : out;
        const void *x = k->flags & TESS_KERNEL_CHAIN ? sum_chain(job, at, now, end, &scratch)
                                                     : sum_tree(job, at, now, end, &scratch);
        finish_sum(job, x, out, now, &scratch);
    }
    if (job->past)
        copy_past_end();
}

/* 16-bit floats and blocks are summed in f32; all else in its own dtype. */
static uint32_t sum_dtype_of(uint32_t in) {
    return in == TESS_BF16 || in == TESS_F16 || tess_dtype_is_blocks(in) ? TESS_F32 : in;
}

void tess__kernel_tree_sum(const tess_kernel *k, tess__pool *pool) {
    if (k->n_in == 1 && !(k->flags & TESS_KERNEL_ADD) && (k->scale == 0 || k->scale == 1)) {
        if (k->in[0] != k->out || k->in_dtype != k->out_dtype)
            tess__kernel_cast(k, pool);
        return;
    }
    uint32_t sum = sum_dtype_of(k->in_dtype);
    uint32_t blocks = k->flags & TESS_KERNEL_Q8 ? TESS_Q8 : k->flags & TESS_KERNEL_Q8E4M3 ? TESS_Q8E4M3 : 0;
    sum_job job = { .kernel = k,
                    .sum_dtype = sum,
                    .sum_bytes = tess_dtype_bytes(sum),
                    .out_bytes = tess_dtype_bytes(k->out_dtype),
                    .add = add_find(sum),
                    .load = k->in_dtype == sum ? NULL : tess__cast_find(k->in_dtype, sum, 0),
                    .store = k->out_dtype == sum ? NULL : tess__cast_find(sum, k->out_dtype, 0),
                    .pack = blocks ? tess__cast_find(sum, blocks, 0) : NULL,
                    .past = k->out_dtype == sum && goes_past(k),
                    .widen = blocks ? tess__cast_find(blocks, sum, 0) : NULL,
                    .load_out = k->out_dtype == sum ? NULL : tess__cast_find(k->out_dtype, sum, 0) };
    find_by_hand(&job, k->in_dtype, blocks);
    int plain = (k->scale == 0 || k->scale == 1) && !(k->flags & TESS_KERNEL_CHAIN);
    job.direct = job.past && plain && (job.past_add || (job.pair && k->n_in == 2));
    tess__pool_run(pool, k->elems, TESS__KERNEL_LEAST_ELEMS, sum_part, &job);
}

static void scale_part(void *user, uint64_t first, uint64_t elems) {
    const tess_kernel *k = user;
    uint64_t offset = first * tess_dtype_bytes(k->out_dtype);
    const char *in = k->in && k->in[0] ? k->in[0] : k->out;
    scale_span(k->out_dtype, (char *)k->out + offset, in + offset, elems, k->scale);
}

void tess__kernel_scale(const tess_kernel *k, tess__pool *pool) {
    tess_kernel copy = *k;
    tess__pool_run(pool, k->elems, TESS__KERNEL_LEAST_ELEMS, scale_part, &copy);
}
