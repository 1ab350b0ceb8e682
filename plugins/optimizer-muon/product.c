/* SPDX-License-Identifier: BSD-3-Clause */
#include "product.h"

#include <math.h>
#include <stddef.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* A tile of the product is made from packed parts of both factors, DEEP of the sum's terms at a time. Its sums stay in
 * `sum` meanwhile, so that a chain goes on where it was. */
enum { HIGH = 96, WIDE = 128, DEEP = 256, ROWS = 6, COLS = 32 };

typedef struct {
    _Alignas(64) float a[HIGH / ROWS][DEEP][ROWS];
    _Alignas(64) float b[WIDE / COLS][DEEP][COLS];
    _Alignas(64) float sum[HIGH][WIDE];
} tile;

typedef void small_fn(const float (*a)[ROWS], const float (*b)[COLS], uint64_t deep, float *sum);

static void small_any(const float (*a)[ROWS], const float (*b)[COLS], uint64_t deep, float *sum) {
    for (uint64_t k = 0; k < deep; k++)
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < COLS; j++)
                sum[i * WIDE + j] = fmaf(a[k][i], b[k][j], sum[i * WIDE + j]);
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static void small_avx2(const float (*a)[ROWS], const float (*b)[COLS],
                                                           uint64_t deep, float *sum) {
    for (int half = 0; half < COLS; half += 16) {
        __m256 s[ROWS][2];
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < 2; j++)
                s[i][j] = _mm256_load_ps(&sum[i * WIDE + half + 8 * j]);
        for (uint64_t k = 0; k < deep; k++) {
            const __m256 left = _mm256_load_ps(&b[k][half]), right = _mm256_load_ps(&b[k][half + 8]);
            for (int i = 0; i < ROWS; i++) {
                const __m256 x = _mm256_broadcast_ss(&a[k][i]);
                s[i][0] = _mm256_fmadd_ps(x, left, s[i][0]);
                s[i][1] = _mm256_fmadd_ps(x, right, s[i][1]);
            }
        }
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < 2; j++)
                _mm256_store_ps(&sum[i * WIDE + half + 8 * j], s[i][j]);
    }
}

__attribute__((target("avx512f"))) static void small_avx512(const float (*a)[ROWS], const float (*b)[COLS],
                                                            uint64_t deep, float *sum) {
    __m512 s[ROWS][2];
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < 2; j++)
            s[i][j] = _mm512_load_ps(&sum[i * WIDE + 16 * j]);
    for (uint64_t k = 0; k < deep; k++) {
        const __m512 left = _mm512_load_ps(&b[k][0]), right = _mm512_load_ps(&b[k][16]);
        for (int i = 0; i < ROWS; i++) {
            const __m512 x = _mm512_set1_ps(a[k][i]);
            s[i][0] = _mm512_fmadd_ps(x, left, s[i][0]);
            s[i][1] = _mm512_fmadd_ps(x, right, s[i][1]);
        }
    }
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < 2; j++)
            _mm512_store_ps(&sum[i * WIDE + 16 * j], s[i][j]);
}
#endif

static small_fn *small_of_this_cpu(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        return small_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return small_avx2;
#endif
    return small_any;
}

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* Rows first … first + n - 1 and terms k … k + deep - 1 of a factor, `lanes` rows side by side, and zeros behind the
 * last. */
static void pack(const matrix *m, uint64_t first, uint64_t n, uint64_t k, uint64_t deep, uint64_t lanes, float *out) {
    for (uint64_t i = 0; i < n; i += lanes, out += DEEP * lanes) {
        const uint64_t have = least(lanes, n - i);
        const float *from = m->at + (first + i) * m->down + k * m->across;
        for (uint64_t t = 0; t < deep; t++)
            for (uint64_t l = 0; l < lanes; l++)
                out[t * lanes + l] = l < have ? from[l * m->down + t * m->across] : 0;
    }
}

typedef struct {
    const product *p;
    matrix turned; /* the second factor: packed by its columns */
    small_fn *small;
    uint64_t across; /* tiles in a row of the product */
} work;

static void store(const product *p, const tile *t, uint64_t row, uint64_t col) {
    const uint64_t rows = least(HIGH, p->out.rows - row), cols = least(WIDE, p->out.cols - col);
    const int turns = p->out.across > p->out.down; /* the row's elements are the ones far apart */
    for (uint64_t n = 0; n < rows * cols; n++) {
        const uint64_t i = turns ? n % rows : n / cols, j = turns ? n / rows : n % cols;
        if (p->symmetric && col + j < row + i)
            continue; /* its mirror image, in this tile or another, is the one that is computed */
        float x = p->alpha * t->sum[i][j];
        if (p->beta != 0)
            x = p->beta * p->plus.at[(row + i) * p->plus.down + (col + j) * p->plus.across] + x;
        p->out.at[(row + i) * p->out.down + (col + j) * p->out.across] = x;
        if (p->symmetric)
            p->out.at[(col + j) * p->out.down + (row + i) * p->out.across] = x;
    }
}

static void make_tile(const work *w, tile *t, uint64_t row, uint64_t col) {
    const product *p = w->p;
    const uint64_t rows = least(HIGH, p->out.rows - row), cols = least(WIDE, p->out.cols - col), terms = p->a.cols;
    memset(t->sum, 0, sizeof t->sum);
    for (uint64_t k = 0; k < terms; k += DEEP) {
        const uint64_t deep = least(DEEP, terms - k);
        pack(&p->a, row, rows, k, deep, ROWS, &t->a[0][0][0]);
        pack(&w->turned, col, cols, k, deep, COLS, &t->b[0][0][0]);
        for (uint64_t i = 0; i < rows; i += ROWS)
            for (uint64_t j = 0; j < cols; j += COLS)
                w->small((const float(*)[ROWS])t->a[i / ROWS], (const float(*)[COLS])t->b[j / COLS], deep,
                         &t->sum[i][j]);
    }
    store(p, t, row, col);
}

static void make_tiles(void *user, uint64_t first, uint64_t n) {
    const work *w = user;
    tile t; /* of this thread: 300 KB of its stack */
    for (uint64_t i = first; i < first + n; i++) {
        const uint64_t row = i / w->across * HIGH, col = i % w->across * WIDE;
        if (!w->p->symmetric || col + WIDE > row) /* the others are mirrored */
            make_tile(w, &t, row, col);
    }
}

void product_run(const product *p, const workers *on) {
    work w = {
        .p = p, .turned = matrix_turned(&p->b), .small = small_of_this_cpu(), .across = (p->out.cols + WIDE - 1) / WIDE
    };
    on->share(on->pool, (p->out.rows + HIGH - 1) / HIGH * w.across, make_tiles, &w);
}
