/* SPDX-License-Identifier: BSD-3-Clause */
/* These kernels work on many arrays at once. Each block belongs to one piece, whose blocks are neighbours. Bodies are
 * as in kernels.h. */
#ifndef CUDA_KERNELS_MANY_H
#define CUDA_KERNELS_MANY_H
#include "kernels.h"

enum { CUDA_PIECES = 40, CUDA_SETS = 5, CUDA_SQUARE_PIECES = 96 }; /* the arguments of a launch hold 4 KiB */

/* The piece that a block belongs to: the last that begins at it or before. */
#define CUDA_PIECE_OF(a, block, k)                                                                                     \
    uint32_t k = 0;                                                                                                    \
    while (k + 1 < (a)->n_pieces && (a)->pieces[k + 1].first_block <= (block))                                         \
    k++
#define CUDA_PIECE_BLOCKS(a, k)                                                                                        \
    (((k) + 1 < (a)->n_pieces ? (a)->pieces[(k) + 1].first_block : (a)->n_blocks) - (a)->pieces[k].first_block)

/* ---- optimizer: one pass over gradient, master and state ---------------------------------------- */

typedef struct { /* elements [first, end) of the arrays, with one set of constants */
    const void *grad;
    void *master, *state0, *state1, *low; /* low: the bf16 copy of the new master, or null */
    uint64_t first, end;
    uint32_t grad_dtype, vector, set, first_block;
    int64_t *not_finite; /* receives the first step that leaves NaN or infinity; may be null */
} cuda_step_piece;
typedef struct {
    uint32_t n_pieces, n_blocks, n_sets, reserved;
    const float *clip; /* null: none */
    const char
        *prepared; /* null, or where sets lie instead of below, TESS_PREPARED_BYTES apart; a set may be before it */
    cuda_step_piece pieces[CUDA_PIECES];
    tess_step_constants sets[CUDA_SETS];
} cuda_steps_args;

TESS_STATIC_ASSERT(sizeof(tess_step_constants) <= TESS_PREPARED_BYTES, "prepared constants have no room");
TESS_FN tess_step_constants cuda_step_constants(const cuda_steps_args *a, uint32_t piece) {
    uint32_t set = a->pieces[piece].set;
    tess_step_constants c =
        a->prepared ? *(const tess_step_constants *)(a->prepared + (int64_t)(int32_t)set * TESS_PREPARED_BYTES)
                    : a->sets[set];
    c.grad_scale = a->clip ? c.grad_scale * *a->clip : c.grad_scale;
    return c;
}

TESS_FN uint64_t cuda_step_items(const cuda_step_piece *p) {
    return (p->end + CUDA_LANES - 1) / CUDA_LANES - p->first / CUDA_LANES;
}

#define CUDA_FINITE(x) ((x) - (x) == 0)
#define CUDA_STEP_BODY(name, type, states, load, half_of, call)                                                        \
    TESS_FN void cuda_##name##_body(const cuda_step_piece *a, const tess_step_constants *c, uint64_t i) {              \
        uint64_t base = (a->first / CUDA_LANES + i) * CUDA_LANES;                                                      \
        uint32_t from = a->first > base ? (uint32_t)(a->first - base) : 0, to = cuda_lanes_of(a->end, base);           \
        CUDA_ALIGNED type g[CUDA_LANES], p[CUDA_LANES], m[CUDA_LANES], v[CUDA_LANES];                                  \
        CUDA_ALIGNED uint16_t half[CUDA_LANES];                                                                        \
        int vector = (int)a->vector;                                                                                   \
        load(a->grad_dtype, vector, a->grad, base, from, to, g);                                                       \
        cuda_get_##load##_of(vector, a->master, base, from, to, p);                                                    \
        if (states > 0)                                                                                                \
            cuda_get_##load##_of(vector, a->state0, base, from, to, m);                                                \
        if (states > 1)                                                                                                \
            cuda_get_##load##_of(vector, a->state1, base, from, to, v);                                                \
        int finite = 1;                                                                                                \
        CUDA_UNROLL for (uint32_t l = 0; l < CUDA_LANES; l++) {                                                        \
            call;                                                                                                      \
            half[l] = half_of(p[l]);                                                                                   \
            if (l >= from && l < to)                                                                                   \
                finite &= CUDA_FINITE(p[l]) && (states < 1 || CUDA_FINITE(m[l])) && (states < 2 || CUDA_FINITE(v[l])); \
        }                                                                                                              \
        if (!finite && a->not_finite && !*a->not_finite)                                                               \
            *a->not_finite = c->step;                                                                                  \
        cuda_put_##load##_of(vector, a->master, base, from, to, p);                                                    \
        if (states > 0)                                                                                                \
            cuda_put_##load##_of(vector, a->state0, base, from, to, m);                                                \
        if (states > 1)                                                                                                \
            cuda_put_##load##_of(vector, a->state1, base, from, to, v);                                                \
        if (a->low)                                                                                                    \
            cuda_put_u16(vector, a->low, base, from, to, half);                                                        \
    }
#define cuda_get_cuda_load_f32_of cuda_get_f32
#define cuda_get_cuda_load_f64_of cuda_get_f64
#define cuda_put_cuda_load_f32_of cuda_put_f32
#define cuda_put_cuda_load_f64_of cuda_put_f64
#define CUDA_STEP_BODIES(r, type)                                                                                      \
    CUDA_STEP_BODY(sgd_##r, type, 0, cuda_load_##r, tess_bf16_of_##r, tess_sgd_##r(c, g[l], &p[l]))                    \
    CUDA_STEP_BODY(sgd_momentum_##r, type, 1, cuda_load_##r, tess_bf16_of_##r,                                         \
                   tess_sgd_momentum_##r(c, g[l], &p[l], &m[l]))                                                       \
    CUDA_STEP_BODY(adam_##r, type, 2, cuda_load_##r, tess_bf16_of_##r, tess_adam_##r(c, g[l], &p[l], &m[l], &v[l]))    \
    CUDA_STEP_BODY(adamw_##r, type, 2, cuda_load_##r, tess_bf16_of_##r, tess_adamw_##r(c, g[l], &p[l], &m[l], &v[l]))  \
    CUDA_STEP_BODY(adadelta_##r, type, 2, cuda_load_##r, tess_bf16_of_##r,                                             \
                   tess_adadelta_##r(c, g[l], &p[l], &m[l], &v[l]))
CUDA_STEP_BODIES(f32, float)
CUDA_STEP_BODIES(f64, double)

/* X(name, what is done for item i of a piece) */
#define CUDA_STEPS(X)                                                                                                  \
    X(tess_cuda_sgd_f32, cuda_sgd_f32_body)                                                                            \
    X(tess_cuda_sgd_momentum_f32, cuda_sgd_momentum_f32_body)                                                          \
    X(tess_cuda_adam_f32, cuda_adam_f32_body)                                                                          \
    X(tess_cuda_adamw_f32, cuda_adamw_f32_body)                                                                        \
    X(tess_cuda_adadelta_f32, cuda_adadelta_f32_body)                                                                  \
    X(tess_cuda_sgd_f64, cuda_sgd_f64_body)                                                                            \
    X(tess_cuda_sgd_momentum_f64, cuda_sgd_momentum_f64_body)                                                          \
    X(tess_cuda_adam_f64, cuda_adam_f64_body)                                                                          \
    X(tess_cuda_adamw_f64, cuda_adamw_f64_body)                                                                        \
    X(tess_cuda_adadelta_f64, cuda_adadelta_f64_body)

/* ---- square sum: every thread of a block adds into a column of digits of its own ---------------- */

typedef struct {
    const void *in;
    uint64_t elems;
    uint32_t in_dtype, vector, first_block, reserved;
} cuda_square_piece;
typedef struct {
    uint32_t n_pieces, n_blocks;
    int64_t *limbs; /* TESS__NORM_LIMBS; this adds to them, and cuda_carry brings the digits below 2^32 */
    float scale;
    uint32_t reserved;
    cuda_square_piece pieces[CUDA_SQUARE_PIECES];
} cuda_squares_args;
typedef struct {
    int64_t limb[TESS__NORM_LIMBS][CUDA_COLUMNS];
} cuda_square_shared;

TESS_FN uint64_t cuda_square_items(const cuda_square_piece *p) {
    return (p->elems + CUDA_LANES - 1) / CUDA_LANES;
}
TESS_FN void cuda_add_square(cuda_square_shared *s, uint32_t column, float square) {
    uint32_t bits = tess_f32_bits(square), exponent = bits >> 23 & 255u;
    if (exponent == 255u) {
        s->limb[bits & 0x7fffffu ? TESS__NORM_NAN : TESS__NORM_INFINITE][column]++;
        return;
    }
    uint32_t bit = exponent ? exponent - 1 : 0; /* units of 2^-149 */
    uint64_t wide = (uint64_t)((bits & 0x7fffffu) | (exponent ? 0x800000u : 0u)) << (bit & 31u);
    s->limb[bit >> 5][column] += (int64_t)(wide & 0xffffffffu);
    s->limb[(bit >> 5) + 1][column] += (int64_t)(wide >> 32);
}
TESS_FN void cuda_square_begin(cuda_square_shared *s, uint32_t column) {
    CUDA_UNROLL for (int d = 0; d < TESS__NORM_LIMBS; d++) s->limb[d][column] = 0;
}
TESS_FN void cuda_square_body(const cuda_square_piece *p, float scale, cuda_square_shared *s, uint32_t column,
                              uint64_t i) {
    uint64_t base = i * CUDA_LANES;
    uint32_t to = cuda_lanes_of(p->elems, base);
    CUDA_ALIGNED float x[CUDA_LANES];
    cuda_load_f32(p->in_dtype, (int)p->vector, p->in, base, 0, to, x); /* lanes beyond the end are 0 */
    CUDA_UNROLL for (int l = 0; l < CUDA_LANES; l++) {
        float scaled = x[l] * scale;
        if ((uint32_t)l < to)
            cuda_add_square(s, column, scaled * scaled);
    }
}
/* Digit `row` of the whole block into its first column. */
TESS_FN void cuda_square_row(cuda_square_shared *s, uint32_t row) {
    int64_t sum = 0;
    for (int c = 0; c < CUDA_COLUMNS; c++)
        sum += s->limb[row][c];
    s->limb[row][0] = sum;
}
/* One thread: the block's digits below 2^32, so that any number of blocks may be added, onto the result. All blocks add
 * to the same addresses, one after another, so digits that are 0, as most are, are left out. */
TESS_FN void cuda_square_end(const cuda_squares_args *a, cuda_square_shared *s) {
    int64_t over = 0;
    for (int d = 0; d < TESS__NORM_LIMBS; d++) {
        int64_t value = s->limb[d][0];
        if (d < TESS__NORM_DIGITS) {
            over += value;
            value = (int64_t)((uint64_t)over & 0xffffffffu);
            over >>= 32;
        }
        if (!value)
            continue;
#if defined(__CUDA_ARCH__)
        atomicAdd((unsigned long long *)a->limbs + d, (unsigned long long)value);
#else
        __atomic_fetch_add(a->limbs + d, value, __ATOMIC_RELAXED);
#endif
    }
}
#endif
