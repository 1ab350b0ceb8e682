/* SPDX-License-Identifier: BSD-3-Clause */
#include "kernel_fixture.h"
#include <tessera/plugin_helpers.h>
#include <stdlib.h>

enum { ELEMS = 5 * TESS_Q8_BLOCK + 37, PARTS = 5 };

static void cast(uint32_t from, uint32_t to, const void *src, void *dst, uint64_t elems) {
    const void *in[1] = { src };
    tess_kernel k = { .struct_size = sizeof k,
                      .kernel = TESS_K_CAST,
                      .in_dtype = from,
                      .out_dtype = to,
                      .n_in = 1,
                      .in = in,
                      .out = dst,
                      .elems = elems };
    run_kernel(&k, NULL);
}

static float scale_of(const char *blocks, uint64_t block) {
    float scale;
    memcpy(&scale, blocks + block * TESS_Q8_BYTES, sizeof scale);
    return scale;
}

static void test_q8__a_block_is_its_scale_and_its_bytes(void **state) {
    (void)state;
    static float in[TESS_Q8_BLOCK + 3], out[TESS_Q8_BLOCK + 3];
    static char blocks[2 * TESS_Q8_BYTES];
    static const float values[] = { 254.0f, -254.0f, 1.0f, 3.0f, 5.0f, -1.0f, -3.0f, 0.5f };
    static const int8_t bytes[] = { 127, -127, 0, 2, 2, 0, -2, 0 }; /* scale 2: halves go to even */
    memcpy(in, values, sizeof values);
    in[TESS_Q8_BLOCK] = 127.0f, in[TESS_Q8_BLOCK + 2] = -64.0f; /* a short block, with a scale of its own */
    memset(blocks, 0x55, sizeof blocks);
    cast(TESS_F32, TESS_Q8, in, blocks, TESS_Q8_BLOCK + 3);
    assert_true(tess_dtype_span(TESS_Q8, TESS_Q8_BLOCK + 3) == sizeof blocks);
    assert_true(scale_of(blocks, 0) == 2.0f && scale_of(blocks, 1) == 1.0f);
    assert_memory_equal(blocks + 4, bytes, sizeof bytes);
    assert_true(blocks[TESS_Q8_BYTES + 4] == 127 && blocks[TESS_Q8_BYTES + 6] == -64);
    for (int i = TESS_Q8_BYTES + 7; i < 2 * TESS_Q8_BYTES; i++)
        assert_int_equal(blocks[i], 0);
    cast(TESS_Q8, TESS_F32, blocks, out, TESS_Q8_BLOCK + 3);
    for (int i = 0; i < 8; i++)
        assert_true(out[i] == 2.0f * bytes[i]);
    assert_true(out[TESS_Q8_BLOCK] == 127.0f && out[TESS_Q8_BLOCK + 2] == -64.0f);
}

static void test_q8__no_element_is_off_by_more_than_half_a_scale(void **state) {
    (void)state;
    static float in[ELEMS], out[ELEMS];
    static char blocks[(ELEMS / TESS_Q8_BLOCK + 1) * TESS_Q8_BYTES];
    uint64_t seed = 7;
    for (int round = 0; round < 200; round++) {
        for (int i = 0; i < ELEMS; i++)
            in[i] = random_wide(&seed);
        cast(TESS_F32, TESS_Q8, in, blocks, ELEMS);
        cast(TESS_Q8, TESS_F32, blocks, out, ELEMS);
        for (int i = 0; i < ELEMS; i++)
            assert_true(fabsf(out[i] - in[i]) <= 0.50001f * scale_of(blocks, (uint64_t)i / TESS_Q8_BLOCK));
    }
}

static void test_q8__what_is_not_finite_makes_its_block_nan_and_no_other(void **state) {
    (void)state;
    static const float bad[] = { INFINITY, -INFINITY, NAN };
    static float in[2 * TESS_Q8_BLOCK], out[2 * TESS_Q8_BLOCK];
    static char blocks[2 * TESS_Q8_BYTES];
    for_each_isa(isa) for (int b = 0; b < 3; b++) {
        for (int i = 0; i < 2 * TESS_Q8_BLOCK; i++)
            in[i] = (float)(i % 128);
        in[200] = bad[b];
        cast(TESS_F32, TESS_Q8, in, blocks, 2 * TESS_Q8_BLOCK);
        cast(TESS_Q8, TESS_F32, blocks, out, 2 * TESS_Q8_BLOCK);
        for (int i = 0; i < TESS_Q8_BLOCK; i++)
            assert_true(isnan(out[i]) && out[TESS_Q8_BLOCK + i] == in[TESS_Q8_BLOCK + i]);
    }
    tess__isa_limit(0);
}

static void test_q8__blocks_below_the_least_scale_are_zero(void **state) {
    (void)state;
    static float in[TESS_Q8_BLOCK], out[TESS_Q8_BLOCK];
    char blocks[TESS_Q8_BYTES];
    in[3] = 0x1.fffffep-120f;
    cast(TESS_F32, TESS_Q8, in, blocks, TESS_Q8_BLOCK);
    cast(TESS_Q8, TESS_F32, blocks, out, TESS_Q8_BLOCK);
    assert_true(scale_of(blocks, 0) == 0.0f && out[3] == 0.0f);
    in[3] = -0x1p-119f;
    cast(TESS_F32, TESS_Q8, in, blocks, TESS_Q8_BLOCK);
    assert_true(blocks[4 + 3] == -127 && scale_of(blocks, 0) >= 0x1p-126f);
}

/* Every path, and any part of the work, gives the bits of the plain one. */
static void test_q8__instruction_sets_and_threads_change_no_bit(void **state) {
    (void)state;
    enum { MANY = 2 * TESS_Q8_BLOCK * TESS_Q8_BLOCK + 77 };
    tess__pool *pool;
    tess_error error = { .struct_size = sizeof error };
    float *in = malloc(MANY * sizeof *in);
    char *want = malloc(tess_dtype_span(TESS_Q8, MANY)), *got = malloc(tess_dtype_span(TESS_Q8, MANY));
    uint64_t seed = 3;
    assert_int_equal(tess__pool_create(3, "", &pool, &error), TESS_OK);
    for (int i = 0; i < MANY; i++)
        in[i] = random_wide(&seed);
    tess__isa_limit(TESS_ISA_C);
    cast(TESS_F32, TESS_Q8, in, want, MANY);
    const void *list[1] = { in };
    tess_kernel k = { .struct_size = sizeof k,
                      .kernel = TESS_K_CAST,
                      .in_dtype = TESS_F32,
                      .out_dtype = TESS_Q8,
                      .n_in = 1,
                      .in = list,
                      .out = got,
                      .elems = MANY };
    for_each_isa(isa) {
        memset(got, 0x55, tess_dtype_span(TESS_Q8, MANY));
        run_kernel(&k, pool);
        assert_memory_equal(got, want, tess_dtype_span(TESS_Q8, MANY));
    }
    tess__isa_limit(0);
    tess__pool_destroy(pool);
    free(in), free(want), free(got);
}

/* A sum of blocks is the tree of what they hold, and so are the steps of its binary counter. */
static void test_q8__sums_are_the_tree_of_the_widened_values(void **state) {
    (void)state;
    static float wide[PARTS][ELEMS], want[ELEMS], got[ELEMS];
    static char blocks[PARTS][(ELEMS / TESS_Q8_BLOCK + 1) * TESS_Q8_BYTES];
    const void *as_f32[PARTS], *as_q8[PARTS];
    uint64_t seed = 5;
    for (int p = 0; p < PARTS; p++) {
        for (int i = 0; i < ELEMS; i++)
            wide[p][i] = random_wide(&seed);
        cast(TESS_F32, TESS_Q8, wide[p], blocks[p], ELEMS);
        cast(TESS_Q8, TESS_F32, blocks[p], wide[p], ELEMS);
        as_f32[p] = wide[p], as_q8[p] = blocks[p];
    }
    for_each_isa(isa) for (uint32_t n = 1; n <= PARTS; n++) {
        tess_kernel k = { .struct_size = sizeof k,
                          .kernel = TESS_K_TREE_SUM,
                          .in_dtype = TESS_F32,
                          .out_dtype = TESS_F32,
                          .n_in = n,
                          .in = as_f32,
                          .out = want,
                          .elems = ELEMS,
                          .scale = 1.0 / 3 };
        run_kernel(&k, NULL);
        k.in_dtype = TESS_Q8, k.in = as_q8, k.out = got;
        run_kernel(&k, NULL);
        assert_memory_equal(got, want, sizeof got);
    }
    tess__isa_limit(0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_q8__a_block_is_its_scale_and_its_bytes),
        cmocka_unit_test(test_q8__no_element_is_off_by_more_than_half_a_scale),
        cmocka_unit_test(test_q8__what_is_not_finite_makes_its_block_nan_and_no_other),
        cmocka_unit_test(test_q8__blocks_below_the_least_scale_are_zero),
        cmocka_unit_test(test_q8__instruction_sets_and_threads_change_no_bit),
        cmocka_unit_test(test_q8__sums_are_the_tree_of_the_widened_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
