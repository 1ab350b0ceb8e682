/* SPDX-License-Identifier: BSD-3-Clause */
/* Sums f32 squares exactly: mantissas are added up as integers per exponent, and those sums laid into the limbs at the
 * end of a part. The vector paths do the same for a block at a time, relative to the block's largest square. */
#include "norm.h"
#include "kit/formulas.h"
#include "kernel_x86.h"
#include <tessera/plugin_helpers.h>

enum { BLOCK = 2048, NOT_FINITE = 255 };

typedef struct { /* one thread's sums */
    int64_t limb[TESS__NORM_LIMBS];
    uint64_t bucket[256]; /* by biased exponent: the sum of the 24-bit mantissas; 255: how many are not finite */
} norm_sums;

void tess__norm_add(int64_t *sum, const int64_t *limbs) {
    for (int i = 0; i < TESS__NORM_LIMBS; i++)
        sum[i] += limbs[i];
    tess__norm_carry(sum);
}

/* Adds value * 2^bit; digits stay far below 2^63 until the next carry. */
static void add_at(norm_sums *sums, uint64_t value, uint32_t bit) {
    unsigned __int128 wide = (unsigned __int128)value << (bit & 31);
    int64_t *limb = sums->limb + (bit >> 5);
    for (int i = 0; i < 3; i++, wide >>= 32)
        limb[i] += (int64_t)((uint64_t)wide & 0xffffffffu);
}

static inline void add_square(norm_sums *sums, float square) {
    uint32_t bits = tess_f32_bits(square), exponent = bits >> 23 & 255u;
    if (exponent == NOT_FINITE)
        sums->limb[bits & 0x7fffffu ? TESS__NORM_NAN : TESS__NORM_INFINITE]++;
    else
        sums->bucket[exponent] += (bits & 0x7fffffu) | (exponent ? 0x800000u : 0u);
}

static void add_block_c(norm_sums *sums, const float *x, uint64_t elems, float scale) {
    for (uint64_t i = 0; i < elems; i++) {
        float scaled = x[i] * scale;
        add_square(sums, scaled * scaled);
    }
}

#if defined(TESS_HAVE_X86)
static void add_rest(void *sums, float square) {
    add_square(sums, square);
}

TESS_BODY void add_block_wide(norm_sums *sums, const float *x, uint64_t elems, float scale,
                              int (*square_block)(const float *, uint64_t, float, tess__square_block *,
                                                  void (*)(void *, float), void *)) {
    tess__square_block sum;
    uint64_t whole = elems & ~(uint64_t)15;
    if (!square_block(x, whole, scale, &sum, add_rest, sums)) {
        add_block_c(sums, x, elems, scale);
        return;
    }
    add_at(sums, sum.high, sum.high_bit);
    add_at(sums, sum.low, sum.low_bit);
    add_block_c(sums, x + whole, elems - whole, scale);
}
static void add_block_avx2(norm_sums *sums, const float *x, uint64_t elems, float scale) {
    add_block_wide(sums, x, elems, scale, tess__square_block_avx2);
}
static void add_block_avx512(norm_sums *sums, const float *x, uint64_t elems, float scale) {
    add_block_wide(sums, x, elems, scale, tess__square_block_avx512);
}
#endif

typedef void (*block_fn)(norm_sums *, const float *, uint64_t elems, float scale);

static block_fn block_find(void) {
#if defined(TESS_HAVE_X86)
    int isa = tess__isa();
    if (isa >= TESS_ISA_AVX2)
        return isa >= TESS_ISA_AVX512 ? add_block_avx512 : add_block_avx2;
#endif
    return add_block_c;
}

typedef struct {
    const tess_kernel *kernel;
    tess__cast_fn load;
    block_fn block;
    uint32_t in_bytes;
    int64_t limb[TESS__NORM_LIMBS];
} norm_job;

/* Empties buckets into limbs: exponent e (0 and 1 alike) means units of 2^(max(e, 1) - 1) * 2^-149. */
static void empty_buckets(norm_sums *sums) {
    for (uint32_t e = 0; e < NOT_FINITE; e++)
        if (sums->bucket[e])
            add_at(sums, sums->bucket[e], e ? e - 1 : 0);
    tess__norm_carry(sums->limb);
}

static void norm_part(void *user, uint64_t first, uint64_t elems) {
    norm_job *job = user;
    norm_sums sums = { 0 };
    float room[BLOCK], scale = job->kernel->scale == 0 ? 1.0f : (float)job->kernel->scale;
    const char *in = (const char *)job->kernel->in[0] + first * job->in_bytes;
    for (uint64_t at = 0; at < elems; at += BLOCK) {
        uint64_t now = elems - at < BLOCK ? elems - at : BLOCK;
        const void *x = in + at * job->in_bytes;
        if (job->load) {
            job->load(x, room, now);
            x = room;
        }
        job->block(&sums, x, now, scale);
    }
    empty_buckets(&sums);
    for (int i = 0; i < TESS__NORM_LIMBS; i++)
        __atomic_fetch_add(&job->limb[i], sums.limb[i], __ATOMIC_RELAXED);
}

void tess__kernel_square_sum(const tess_kernel *k, tess__pool *pool) {
    norm_job job = { .kernel = k,
                     .load = k->in_dtype == TESS_F32 ? NULL : tess__cast_find(k->in_dtype, TESS_F32, 0),
                     .block = block_find(),
                     .in_bytes = tess_dtype_bytes(k->in_dtype) };
    int64_t *out = k->out;
    tess__pool_run(pool, k->elems, TESS__KERNEL_LEAST_ELEMS, norm_part, &job);
    if (!(k->flags & TESS_KERNEL_ADD))
        memset(out, 0, sizeof job.limb);
    tess__norm_add(out, job.limb);
}

double tess__norm_square(const int64_t *limbs) {
    return tess__norm_square_of(limbs);
}

double tess__norm_result(const int64_t *limbs) {
    return sqrt(tess__norm_square(limbs));
}

float tess__clip_coefficient(double max_norm, double norm) {
    return tess__clip_of(max_norm, norm);
}
