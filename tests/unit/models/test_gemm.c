/* SPDX-License-Identifier: BSD-3-Clause */
/* The plain product against its sums in the order that gemm.h gives, to the bit, whatever kernel this processor has. */
#include "models_common.h"
#include "tools/models/gemm.h"

enum { CHUNK = 256 };

static float *numbers(uint32_t which, int64_t elems) {
    float *x = malloc((size_t)elems * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < elems; i++)
        x[i] = 2 * batch_uniform((uint32_t)i, which, 0) - 1;
    return x;
}

static void expect(const gemm_task *t, float *c) {
    float scale = t->scale != 0 ? t->scale : 1;
    for (int64_t i = 0; i < t->rows; i++)
        for (int64_t j = 0; j < t->columns; j++)
            for (int64_t k0 = 0; k0 < t->depth; k0 += CHUNK) {
                float sum = 0, *to = &c[i * t->c_row + j];
                for (int64_t k = k0; k < t->depth && k < k0 + CHUNK; k++)
                    sum += t->a[i * t->a_row + k * t->a_depth] * t->b[k * t->b_depth + j * t->b_column];
                *to = t->accumulate || k0 > 0 ? *to + scale * sum : scale * sum;
            }
}

/* Every way to store the factors, with room behind each row of the product, which stays. */
static void product(int64_t rows, int64_t columns, int64_t depth, int32_t threads) {
    const ops_table *table;
    ops *o;
    assert_int_equal(ops_find("plain", &table), TESS_OK);
    assert_int_equal(table->create(&(ops_options){ .threads = threads }, &o), TESS_OK);
    void *scratch = aligned_alloc(64, (size_t)threads * GEMM_SCRATCH_BYTES);
    const int64_t c_row = columns + 3;
    float *a = numbers(1, rows * depth), *b = numbers(2, depth * columns), *before = numbers(3, rows * c_row);
    const size_t bytes = (size_t)(rows * c_row) * sizeof *before;
    float *got = malloc(bytes), *expected = malloc(bytes);
    assert_true(scratch && got && expected);
    for (int way = 0; way < 16; way++) {
        gemm_task t = { .rows = rows,
                        .columns = columns,
                        .depth = depth,
                        .a = a,
                        .b = b,
                        .c = expected,
                        .c_row = c_row,
                        .accumulate = way >> 2 & 1,
                        .scale = way & 8 ? 0.3f : 0 };
        t.a_row = way & 1 ? 1 : depth, t.a_depth = way & 1 ? rows : 1;
        t.b_depth = way & 2 ? 1 : columns, t.b_column = way & 2 ? depth : 1;
        memcpy(got, before, bytes);
        memcpy(expected, before, bytes);
        expect(&t, expected);
        t.c = got;
        gemm_parallel(o, &t, scratch);
        if (memcmp(got, expected, bytes) != 0)
            fail_msg("%lld x %lld, depth %lld, %d threads, way %d: other bits", (long long)rows, (long long)columns,
                     (long long)depth, (int)threads, way);
    }
    free(a), free(b), free(before), free(got), free(expected), free(scratch);
    table->destroy(o);
}

static void test_gemm__sums_have_their_order(void **state) {
    static const int64_t shapes[][3] = { { 1, 1, 1 },     { 6, 16, 256 },  { 7, 17, 257 },
                                         { 5, 15, 255 },  { 13, 8, 24 },   { 12, 24, 512 },
                                         { 20, 300, 40 }, { 300, 9, 100 }, { 3, 257, 600 } };
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int32_t threads = 1; threads <= 3; threads++)
            product(shapes[i][0], shapes[i][1], shapes[i][2], threads);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_gemm__sums_have_their_order) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
