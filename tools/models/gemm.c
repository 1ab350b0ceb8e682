/* SPDX-License-Identifier: BSD-3-Clause */
#include "gemm.h"
#include "parallel.h"

enum { MR = 6, NR = 16, KC = 256, NC = 256 };
_Static_assert(GEMM_SCRATCH_BYTES % 64 == 0 && GEMM_SCRATCH_BYTES >= (KC * NC + KC * MR) * 4, "the panels fit");

/* Multiplies an a panel (MR values per k) by a b panel (NR values per k) into tile[MR][NR], WIDTH columns at a time.
 * Those are one register: sums of two GCC keeps in memory, which is seven times slower. */
#define MULTIPLY_PANELS(TARGETS, NAME, WIDTH)                                                                          \
    TARGETS static void NAME(int64_t depth, const float *a, const float *b, float *tile) {                             \
        typedef float vec __attribute__((vector_size(WIDTH * sizeof(float))));                                         \
        for (int64_t n = 0; n < NR; n += WIDTH) {                                                                      \
            vec c0 = { 0 }, c1 = { 0 }, c2 = { 0 }, c3 = { 0 }, c4 = { 0 }, c5 = { 0 };                                \
            const float *row = a, *column = b + n;                                                                     \
            for (int64_t k = 0; k < depth; k++, row += MR, column += NR) {                                             \
                vec v = *(const vec *)column;                                                                          \
                c0 += row[0] * v;                                                                                      \
                c1 += row[1] * v;                                                                                      \
                c2 += row[2] * v;                                                                                      \
                c3 += row[3] * v;                                                                                      \
                c4 += row[4] * v;                                                                                      \
                c5 += row[5] * v;                                                                                      \
            }                                                                                                          \
            enum { NEXT = NR / WIDTH };                                                                                \
            vec *out = (vec *)(tile + n);                                                                              \
            out[0] = c0, out[NEXT] = c1, out[2 * NEXT] = c2;                                                           \
            out[3 * NEXT] = c3, out[4 * NEXT] = c4, out[5 * NEXT] = c5;                                                \
        }                                                                                                              \
    }
MULTIPLY_PANELS(OPS_CLONES, multiply_panels_8, 8)
#ifdef OPS_WIDEST
MULTIPLY_PANELS(__attribute__((target(OPS_WIDEST))), multiply_panels_16, 16)
#endif

static void multiply_panels(int64_t depth, const float *a, const float *b, float *tile) {
#ifdef OPS_WIDEST
    if (OPS_HAS_WIDEST) {
        multiply_panels_16(depth, a, b, tile);
        return;
    }
#endif
    multiply_panels_8(depth, a, b, tile);
}

/* Packs rows i … into a panel ordered by k; rows beyond the matrix become zero. */
static void pack_rows(const gemm_task *t, int64_t i, int64_t k0, int64_t depth, float *out) {
    int64_t rows = t->rows - i < MR ? t->rows - i : MR;
    for (int64_t r = 0; r < MR; r++) {
        const float *from = t->a + (i + r) * t->a_row + k0 * t->a_depth;
        for (int64_t k = 0; k < depth; k++)
            out[k * MR + r] = r < rows ? from[k * t->a_depth] : 0;
    }
}

static void pack_columns(const gemm_task *t, int64_t j0, int64_t columns, int64_t k0, int64_t depth, float *out) {
    for (int64_t j = 0; j < columns; j += NR) {
        int64_t width = columns - j < NR ? columns - j : NR;
        for (int64_t k = 0; k < depth; k++, out += NR) {
            const float *from = t->b + (k0 + k) * t->b_depth + (j0 + j) * t->b_column;
            for (int64_t c = 0; c < NR; c++)
                out[c] = c < width ? from[c * t->b_column] : 0;
        }
    }
}

static void store_tile(const gemm_task *t, int64_t i, int64_t j, int64_t columns, int add, const float *tile) {
    int64_t rows = t->rows - i < MR ? t->rows - i : MR;
    float scale = t->scale != 0 ? t->scale : 1;
    for (int64_t r = 0; r < rows; r++) {
        float *c = t->c + (i + r) * t->c_row + j;
        for (int64_t n = 0; n < columns; n++)
            c[n] = add ? c[n] + scale * tile[r * NR + n] : scale * tile[r * NR + n];
    }
}

void gemm(const gemm_task *t, void *scratch) {
    float *b = scratch, *a = b + KC * NC;
    for (int64_t j0 = 0; j0 < t->columns; j0 += NC) {
        int64_t columns = t->columns - j0 < NC ? t->columns - j0 : NC;
        for (int64_t k0 = 0; k0 < t->depth; k0 += KC) {
            int64_t depth = t->depth - k0 < KC ? t->depth - k0 : KC;
            pack_columns(t, j0, columns, k0, depth, b);
            for (int64_t i = 0; i < t->rows; i += MR) {
                pack_rows(t, i, k0, depth, a);
                for (int64_t j = 0; j < columns; j += NR) {
                    float tile[MR * NR] __attribute__((aligned(64)));
                    multiply_panels(depth, a, b + j * depth, tile);
                    store_tile(t, i, j0 + j, columns - j < NR ? columns - j : NR, t->accumulate || k0 > 0, tile);
                }
            }
        }
    }
}

typedef struct {
    const gemm_task *t;
    char *scratch;
    int32_t by_columns;
} split;

static void gemm_part(void *arg, int32_t thread, int64_t first, int64_t last) {
    const split *s = arg;
    gemm_task part = *s->t;
    if (s->by_columns) {
        part.columns = last - first;
        part.b += first * part.b_column;
        part.c += first;
    } else {
        part.rows = last - first;
        part.a += first * part.a_row;
        part.c += first * part.c_row;
    }
    gemm(&part, s->scratch + (int64_t)thread * GEMM_SCRATCH_BYTES);
}

void gemm_parallel(const ops *o, const gemm_task *t, void *scratch) {
    split s = { t, scratch, t->columns > t->rows };
    ops_parallel(o, s.by_columns ? t->columns : t->rows, s.by_columns ? NR : MR, gemm_part, &s);
}
