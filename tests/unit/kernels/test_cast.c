/* SPDX-License-Identifier: BSD-3-Clause */
#include "kernel_fixture.h"
#include <stdlib.h>

static void cast_with(tess__cast_fn fn, const void *src, void *dst, uint64_t elems) {
    assert_non_null(fn);
    fn(src, dst, elems);
}

/* What each path makes of f32 inputs, compared with the formula, over first, first + step, … */
static void compare_paths(uint32_t to, uint32_t first, uint64_t step) {
    enum { BATCH = 1 << 16 };
    static float in[BATCH];
    static uint16_t want[BATCH], got[BATCH + 32];
    for (uint64_t at = first; at <= UINT32_MAX;) {
        uint64_t n = 0;
        for (; n < BATCH && at <= UINT32_MAX; at += step)
            in[n++] = tess_f32_of_bits((uint32_t)at);
        for (uint64_t i = 0; i < n; i++)
            want[i] = to == TESS_BF16 ? tess_bf16_of_f32(in[i]) : tess_f16_of_f32(in[i]);
        for_each_isa(isa) for (int stream = 0; stream < 2; stream++) {
            cast_with(tess__cast_find(TESS_F32, to, stream), in, got, n);
            if (memcmp(got, want, n * 2))
                fail_msg("%s differs from the formula near input %08x", tess__isa_name(isa), (uint32_t)(at - n * step));
        }
    }
    tess__isa_limit(0);
}

static void test_cast__every_path_gives_the_formulas_bits_on_a_sample(void **state) {
    (void)state;
    compare_paths(TESS_BF16, 0, 9973);
    compare_paths(TESS_F16, 5, 14983);
    compare_paths(TESS_BF16, 0x00000000, 0x7fff); /* about every bf16, and halfway between */
    compare_paths(TESS_BF16, 0x00008000, 0x10000);
    compare_paths(TESS_F16, 0x00001000, 0x2000);
}

/* Denormals have a place of their own in the hardware path: all small ones, alone and among others. */
static void test_cast__denormals_are_kept(void **state) {
    (void)state;
    float in[32];
    uint16_t out[32];
    for_each_isa(isa) for (uint32_t bits = 1; bits < 0x01000000; bits += 4099) {
        for (int i = 0; i < 32; i++)
            in[i] = i % 3 ? 1.0f : tess_f32_of_bits(bits | (i & 1 ? 0x80000000u : 0));
        cast_with(tess__cast_find(TESS_F32, TESS_BF16, 0), in, out, 32);
        for (int i = 0; i < 32; i++)
            assert_int_equal(out[i], tess_bf16_of_f32(in[i]));
    }
    tess__isa_limit(0);
}

static int thorough; /* `test_cast all` */
static void test_cast__formulas_round_to_nearest_even(void **state) {
    (void)state;
    uint64_t seed = 21;
    for (int round = 0; round < (thorough ? 2000000 : 100000); round++) {
        float x = tess_f32_of_bits((uint32_t)next_random(&seed));
        if (!isfinite(x) || fabsf(x) > 3e38f)
            continue;
        double low, high;
        uint16_t got = tess_bf16_of_f32(x), zero = (uint16_t)(tess_f32_bits(x) >> 16); /* towards zero */
        low = (double)tess_f32_of_bf16(zero), high = (double)tess_f32_of_bf16((uint16_t)(zero + 1));
        double to_low = fabs((double)x - low), to_high = fabs((double)x - high);
        uint16_t want = to_low < to_high   ? zero
                        : to_high < to_low ? (uint16_t)(zero + 1)
                                           : (uint16_t)(zero + (zero & 1));
        assert_int_equal(got, want);
    }
}

/* Every finite f16 and the points between two of them: there the nearest is known by construction. */
static void test_cast__f16_rounds_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x7bff; h++) {
        float here = tess_f32_of_f16((uint16_t)h), next = tess_f32_of_f16((uint16_t)(h + 1));
        float middle = (here + next) / 2; /* exact */
        assert_true(next > here);
        assert_int_equal(tess_f16_of_f32(here), h);
        assert_int_equal(tess_f16_of_f32(-here), h | 0x8000);
        assert_int_equal(tess_f16_of_f32(nextafterf(middle, 0)), h);
        assert_int_equal(tess_f16_of_f32(nextafterf(middle, 1e9f)), h + 1);
        assert_int_equal(tess_f16_of_f32(middle), h + (h & 1));
    }
    assert_true(tess_f32_of_f16(1) == 0x1p-24f && tess_f32_of_f16(0x3c00) == 1 && tess_f32_of_f16(0x7bff) == 65504);
    assert_int_equal(tess_f16_of_f32(65519.996f), 0x7bff);
    assert_int_equal(tess_f16_of_f32(65520), 0x7c00);
    assert_int_equal(tess_f16_of_f32(1e30f), 0x7c00);
}

static void test_cast__nan_stays_quiet_nan_and_infinity_stays(void **state) {
    (void)state;
    assert_int_equal(tess_bf16_of_f32(INFINITY), 0x7f80);
    assert_int_equal(tess_bf16_of_f32(-INFINITY), 0xff80);
    assert_int_equal(tess_bf16_of_f32(3.4e38f), 0x7f80);                      /* beyond the last bf16 */
    assert_int_equal(tess_bf16_of_f32(tess_f32_of_bits(0x7f800001)), 0x7fc0); /* signalling */
    assert_int_equal(tess_bf16_of_f32(tess_f32_of_bits(0xffffffff)), 0xffff);
    assert_int_equal(tess_f16_of_f32(tess_f32_of_bits(0x7f800001)), 0x7e00);
    assert_int_equal(tess_f16_of_f32(-INFINITY), 0xfc00);
    assert_true(isnan(tess_f32_of_f16(0x7c01)) && isinf(tess_f32_of_f16(0x7c00)));
}

static void test_cast__widening_is_exact_on_every_path(void **state) {
    (void)state;
    static uint16_t in[65536];
    static float out[65536];
    for (uint32_t h = 0; h < 65536; h++)
        in[h] = (uint16_t)h;
    for_each_isa(isa) for (int stream = 0; stream < 2; stream++) {
        cast_with(tess__cast_find(TESS_BF16, TESS_F32, stream), in, out, 65536);
        for (uint32_t h = 0; h < 65536; h++)
            assert_int_equal(tess_f32_bits(out[h]), h << 16);
        cast_with(tess__cast_find(TESS_F16, TESS_F32, stream), in, out, 65536);
        for (uint32_t h = 0; h < 65536; h++)
            assert_int_equal(tess_f32_bits(out[h]), tess_f32_bits(tess_f32_of_f16((uint16_t)h)));
    }
    tess__isa_limit(0);
}

/* Any start and length: nothing outside is written, whatever the alignment. */
static void test_cast__odd_starts_and_lengths_stay_inside(void **state) {
    (void)state;
    float in[200];
    uint16_t out[220];
    uint64_t seed = 22;
    for (int i = 0; i < 200; i++)
        in[i] = random_wide(&seed);
    for_each_isa(isa) for (int stream = 0; stream < 2; stream++) for (int start = 0; start < 40; start += 3) {
        for (int n = 0; n < 140; n += 7) {
            memset(out, 0xee, sizeof out);
            cast_with(tess__cast_find(TESS_F32, TESS_BF16, stream), in + start, out + start, (uint64_t)n);
            for (int i = 0; i < 220; i++)
                assert_int_equal(out[i], i >= start && i < start + n ? tess_bf16_of_f32(in[i]) : 0xeeee);
        }
    }
    tess__isa_limit(0);
}

static void test_cast__f64_to_16_bits_is_rounded_once(void **state) {
    (void)state;
    double in[3] = { 1 + 0x1p-8 + 0x1p-40, 1 + 0x1p-8, -(1 + 3 * 0x1p-11 - 0x1p-50) };
    uint16_t bf16[3], f16[3];
    cast_with(tess__cast_find(TESS_F64, TESS_BF16, 0), in, bf16, 3);
    cast_with(tess__cast_find(TESS_F64, TESS_F16, 0), in, f16, 3);
    assert_int_equal(bf16[0], 0x3f81); /* just above a tie: through f32 alone it would go down */
    assert_int_equal(bf16[1], 0x3f80);
    assert_int_equal(f16[2], 0xbc01); /* just below a tie */
}

static void test_cast__kernel_runs_threaded_and_refuses_what_it_cannot(void **state) {
    (void)state;
    enum { LARGE = 2900000 }; /* which goes past the caches */
    float *in = malloc(LARGE * sizeof *in);
    uint16_t *out = malloc(LARGE * sizeof *out);
    const void *list[1] = { in };
    tess_error error;
    tess__pool *pool = NULL;
    assert_int_equal(tess__pool_create(3, "", &pool, NULL), TESS_OK);
    for (int i = 0; i < LARGE; i++)
        in[i] = tess_f32_of_bits(0x3f800000u + (uint32_t)i * 1009u % 0x800000u);
    tess_kernel kernel = { .struct_size = sizeof kernel,
                           .kernel = TESS_K_CAST,
                           .in_dtype = TESS_F32,
                           .out_dtype = TESS_BF16,
                           .n_in = 1,
                           .in = list,
                           .out = out,
                           .elems = LARGE };
    run_kernel(&kernel, pool);
    for (int i = 0; i < LARGE; i++)
        if (out[i] != tess_bf16_of_f32(in[i]))
            fail_msg("element %d", i);
    tess__pool_destroy(pool);
    kernel.out_dtype = TESS_I32;
    assert_int_equal(try_kernel(&kernel, &error), TESS_E_UNSUPPORTED);
    assert_string_equal(error.message, "cast from f32 to i32 is not offered");
    kernel.out_dtype = 77;
    assert_int_equal(try_kernel(&kernel, &error), TESS_E_UNSUPPORTED);
    kernel.out_dtype = TESS_BF16, kernel.scale = 2;
    assert_int_equal(try_kernel(&kernel, &error), TESS_E_UNSUPPORTED);
    free(in);
    free(out);
}

static void test_cast__all_inputs(void **state) {
    (void)state;
    compare_paths(TESS_BF16, 0, 1);
    compare_paths(TESS_F16, 0, 1);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cast__every_path_gives_the_formulas_bits_on_a_sample),
        cmocka_unit_test(test_cast__denormals_are_kept),
        cmocka_unit_test(test_cast__formulas_round_to_nearest_even),
        cmocka_unit_test(test_cast__f16_rounds_to_nearest_even),
        cmocka_unit_test(test_cast__nan_stays_quiet_nan_and_infinity_stays),
        cmocka_unit_test(test_cast__widening_is_exact_on_every_path),
        cmocka_unit_test(test_cast__odd_starts_and_lengths_stay_inside),
        cmocka_unit_test(test_cast__f64_to_16_bits_is_rounded_once),
        cmocka_unit_test(test_cast__kernel_runs_threaded_and_refuses_what_it_cannot),
    };
    const struct CMUnitTest slow[] = { cmocka_unit_test(test_cast__all_inputs),
                                       cmocka_unit_test(test_cast__formulas_round_to_nearest_even) };
    thorough = argc > 1 && strcmp(argv[1], "all") == 0;
    if (thorough) /* over all 2^32 inputs: minutes */
        return cmocka_run_group_tests(slow, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
