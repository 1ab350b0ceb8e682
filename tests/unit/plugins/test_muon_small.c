/* SPDX-License-Identifier: BSD-3-Clause */
/* Muon's products alone: small ones have the same bits by each instruction set that this processor has, and by none;
 * large ones are chains of fused multiply-adds; and the iteration is its formula. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include "plugins/optimizer-muon/newton_schulz.h"
#include "plugins/optimizer-muon/product.c"

#include <stdlib.h>

enum { MOST = 41 };
static float a[MOST][ROWS] __attribute__((aligned(64))), b[MOST][COLS] __attribute__((aligned(64)));

/* By its definition: each sum goes on where it was, and what lies beside it stays. */
static void expect_sums(small_fn *fn, uint64_t deep) {
    static float sum[(ROWS + 1) * WIDE] __attribute__((aligned(64)));
    for (int i = 0; i < (ROWS + 1) * WIDE; i++)
        sum[i] = (float)i / 7;
    fn(a, b, deep, sum);
    for (int i = 0; i < (ROWS + 1) * WIDE; i++) {
        float one = (float)i / 7;
        for (uint64_t k = 0; k < deep && i / WIDE < ROWS && i % WIDE < COLS; k++)
            one = fmaf(a[k][i / WIDE], b[k][i % WIDE], one);
        assert_memory_equal(&one, &sum[i], sizeof one);
    }
}

static void test_muon_small__each_instruction_set_has_the_same_bits(void **state) {
    (void)state;
    uint32_t seed = 1;
    for (int k = 0; k < MOST; k++)
        for (int i = 0; i < ROWS + COLS; i++) {
            seed = seed * 1664525 + 1013904223;
            *(i < ROWS ? &a[k][i] : &b[k][i - ROWS]) = (float)((double)seed / 4294967296.0 - 0.5);
        }
    for (uint64_t deep = 0; deep <= MOST; deep++) {
        expect_sums(small_any, deep);
        expect_sums(small_of_this_cpu(), deep);
#if defined(__x86_64__)
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
            expect_sums(small_avx2, deep);
#endif
    }
}

/* ---- whole products ---- */

static uint32_t seed;
static float noise(void) {
    seed = seed * 1664525 + 1013904223;
    return (float)((double)seed / 4294967296.0 - 0.5);
}
static void in_parts(void *pool, uint64_t n, void (*fn)(void *user, uint64_t first, uint64_t n), void *user) {
    (void)pool;
    for (uint64_t i = n; i-- > 0;)
        fn(user, i, 1);
}
static void at_once(void *pool, uint64_t n, void (*fn)(void *user, uint64_t first, uint64_t n), void *user) {
    (void)pool;
    fn(user, 0, n);
}
static const workers parts = { in_parts, NULL }, once = { at_once, NULL };

typedef struct {
    uint64_t rows, cols, terms;
    int turned_a, turned_b, turned_out;
    float beta;
} shape;

static matrix lay(float *at, uint64_t rows, uint64_t cols, int turned) {
    return turned ? (matrix){ at, rows, cols, 1, rows } : (matrix){ at, rows, cols, cols, 1 };
}
static float *element(const matrix *m, uint64_t i, uint64_t j) {
    return &m->at[i * m->down + j * m->across];
}
static float *drawn(uint64_t n) {
    float *x = malloc((n + 1) * sizeof *x);
    for (uint64_t i = 0; i <= n; i++)
        x[i] = noise();
    return x;
}

static void expect_product(const shape *s, int symmetric, const workers *on) {
    const uint64_t n = s->rows * s->cols;
    float *pa = drawn(s->rows * s->terms), *pb = drawn(s->terms * s->cols), *out = drawn(n), *plus = drawn(n);
    const float behind = out[n];
    product p = { .a = lay(pa, s->rows, s->terms, s->turned_a),
                  .b = lay(pb, s->terms, s->cols, s->turned_b),
                  .out = lay(out, s->rows, s->cols, s->turned_out),
                  .plus = lay(plus, s->rows, s->cols, s->turned_out),
                  .alpha = 3,
                  .beta = s->beta,
                  .symmetric = symmetric };
    if (symmetric) { /* a a', and something symmetric beside it */
        p.b = matrix_turned(&p.a);
        for (uint64_t i = 0; i < n; i++)
            plus[i] = (float)(i / s->cols + i % s->cols);
    }
    if (s->beta == 0)
        p.plus = (matrix){ 0 };
    product_run(&p, on);
    for (uint64_t i = 0; i < s->rows; i++)
        for (uint64_t j = 0; j < s->cols; j++) {
            float sum = 0;
            for (uint64_t k = 0; k < s->terms; k++)
                sum = fmaf(*element(&p.a, i, k), *element(&p.b, k, j), sum);
            sum *= 3;
            if (s->beta != 0)
                sum = s->beta * *element(&p.plus, i, j) + sum;
            if (memcmp(&sum, element(&p.out, i, j), sizeof sum) != 0)
                fail_msg("%d x %d x %d: element %d, %d", (int)s->rows, (int)s->cols, (int)s->terms, (int)i, (int)j);
        }
    assert_memory_equal(&out[n], &behind, sizeof behind);
    free(pa);
    free(pb);
    free(out);
    free(plus);
}

static void test_muon_small__a_product_is_its_chains_whatever_its_shape(void **state) {
    (void)state;
    static const shape shapes[] = { { 1, 1, 1, 0, 0, 0, 0 },       { 7, 33, 5, 0, 0, 0, 0.5f },
                                    { 7, 33, 5, 1, 0, 1, 0.5f },   { 97, 5, 3, 0, 1, 0, 0 },
                                    { 5, 129, 3, 1, 1, 0, 0 },     { 97, 129, 2, 0, 0, 1, 0.5f },
                                    { 6, 32, 257, 0, 0, 0, 0.5f }, { 3, 4, 513, 1, 0, 0, 0 },
                                    { 96, 128, 4, 0, 0, 0, 0 },    { 193, 3, 4, 0, 0, 0, 0 } };
    seed = 5;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        expect_product(&shapes[i], 0, i % 2 ? &parts : &once);
    for (uint64_t n = 1; n < 300; n = n * 5 / 2 + 1) {
        const shape s = { n, n, 3, n % 2, 0, 0, n % 3 ? 0.5f : 0 };
        expect_product(&s, 1, n % 2 ? &parts : &once);
    }
}

/* ---- the iteration ---- */

/* x <- 3.4445 x + (-4.7750 g + 2.0315 g g) x of g = x x', from x over its norm on; in doubles, by its short side. */
static void iterate(double *x, int rows, int cols, int steps) {
    enum { SIDE = 24 };
    static double g[SIDE][SIDE], b[SIDE][SIDE], y[SIDE * SIDE];
    double norm = 0;
    for (int i = 0; i < rows * cols; i++)
        norm += x[i] * x[i];
    norm = sqrt(norm);
    for (int i = 0; i < rows * cols; i++)
        x[i] /= norm < 1e-7 ? 1e-7 : norm;
    for (int s = 0; s < steps; s++) {
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < rows; j++) {
                g[i][j] = 0;
                for (int k = 0; k < cols; k++)
                    g[i][j] += x[i * cols + k] * x[j * cols + k];
            }
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < rows; j++) {
                b[i][j] = -4.7750 * g[i][j];
                for (int k = 0; k < rows; k++)
                    b[i][j] += 2.0315 * g[i][k] * g[k][j];
            }
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < cols; j++) {
                y[i * cols + j] = 3.4445 * x[i * cols + j];
                for (int k = 0; k < rows; k++)
                    y[i * cols + j] += b[i][k] * x[k * cols + j];
            }
        memcpy(x, y, (size_t)(rows * cols) * sizeof *x);
    }
}

static void test_muon_small__the_iteration_is_its_formula_on_either_side(void **state) {
    (void)state;
    enum { MOST_SIDE = 24, ELEMS = MOST_SIDE * MOST_SIDE };
    static const int sizes[][2] = { { 1, 1 }, { 2, 3 }, { 3, 2 }, { 7, 24 }, { 24, 7 }, { 9, 9 } };
    seed = 3;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int steps = 0; steps < 6; steps++)
            for (int tiny = 0; tiny < 2; tiny++) {
                const int rows = sizes[i][0], cols = sizes[i][1], n = rows * cols;
                float x[ELEMS];
                double want[ELEMS];
                for (int k = 0; k < n; k++)
                    want[k] = (double)(x[k] = noise() * (tiny ? 1e-9f : 4));
                float *scratch = drawn(newton_schulz_bytes((uint64_t)rows, (uint64_t)cols) / sizeof(float));
                const float behind = scratch[newton_schulz_bytes((uint64_t)rows, (uint64_t)cols) / sizeof(float)];
                newton_schulz(x, (uint64_t)rows, (uint64_t)cols, steps, scratch, &once);
                assert_memory_equal(&scratch[newton_schulz_bytes((uint64_t)rows, (uint64_t)cols) / sizeof(float)],
                                    &behind, sizeof behind);
                if (rows > cols) { /* the same of the transpose */
                    double turned[ELEMS];
                    for (int k = 0; k < n; k++)
                        turned[k % cols * rows + k / cols] = want[k];
                    iterate(turned, cols, rows, steps);
                    for (int k = 0; k < n; k++)
                        want[k] = turned[k % cols * rows + k / cols];
                } else
                    iterate(want, rows, cols, steps);
                for (int k = 0; k < n; k++)
                    if (!(fabs((double)x[k] - want[k]) < 2e-5))
                        fail_msg("%d x %d, %d steps: %g, expected %g", rows, cols, steps, (double)x[k], want[k]);
                free(scratch);
            }
    assert_int_equal(newton_schulz_bytes(3, 5), (15 + 2 * 9) * 4);
    assert_int_equal(newton_schulz_bytes(5, 3), (15 + 2 * 9) * 4);
    float bad[2] = { NAN, 1 }, scratch[4];
    newton_schulz(bad, 1, 2, 1, scratch, &once);
    assert_true(bad[0] != bad[0] && bad[1] != bad[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_muon_small__each_instruction_set_has_the_same_bits),
        cmocka_unit_test(test_muon_small__a_product_is_its_chains_whatever_its_shape),
        cmocka_unit_test(test_muon_small__the_iteration_is_its_formula_on_either_side),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
