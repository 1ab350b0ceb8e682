/* SPDX-License-Identifier: BSD-3-Clause */
/* Sixteen elements side by side against the formulas of one, to the bit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tools/models/lanes.h"

/* Every 65,521st float but NaNs, sixteen at a time. */
static lanes some_floats(uint32_t *bits) {
    lanes x = lanes_fill(0);
    for (int i = 0; i < LANES; i++, *bits += 65521u)
        x[i] = tess_f32_of_bits((*bits & 0x7fffffffu) > 0x7f800000u ? *bits & 0xff7fffffu : *bits);
    return x;
}

static void assert_lane(lanes got, int i, float expected) {
    float one = got[i];
    if (tess_f32_bits(one) != tess_f32_bits(expected) && !(isnan(one) && isnan(expected)))
        fail_msg("%a, expected %a", (double)one, (double)expected);
}

static void test_lanes__have_the_bits_of_one_element(void **state) {
    uint32_t bits = 1;
    (void)state;
    for (int n = 0; n < 4100; n++) { /* once round all floats */
        lanes x = some_floats(&bits), dy = x[0] * 0.37f + x;
        lanes e = lanes_exp(x), l = lanes_logistic(x), g = lanes_gelu_of(x), s = lanes_gelu_slope_of(x, dy);
        lanes norm = lanes_layernorm_slope_of(x, 0.3f, 1.7f, dy, 0.2f, -0.4f);
        for (int i = 0; i < LANES; i++) {
            assert_lane(e, i, ops_exp(x[i]));
            assert_lane(l, i, ops_logistic(x[i]));
            assert_lane(g, i, ops_gelu_of(x[i]));
            assert_lane(s, i, ops_gelu_slope_of(x[i], dy[i]));
            assert_lane(norm, i, ops_layernorm_slope_of(x[i], 0.3f, 1.7f, dy[i], 0.2f, -0.4f));
        }
    }
}

static void test_lanes__widen_and_round_as_one_element(void **state) {
    uint16_t half[LANES], back[LANES];
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits += LANES) {
        for (int i = 0; i < LANES; i++)
            half[i] = (uint16_t)(bits + (uint32_t)i);
        lanes x = lanes_load(1, half), y = (lanes)((lanes_bits)x + 0x8000u), z = (lanes)((lanes_bits)x + 0x8001u);
        for (int i = 0; i < LANES; i++)
            assert_int_equal(((lanes_bits)x)[i], (uint32_t)half[i] << 16);
        for (int which = 0; which < 3; which++) { /* itself, a tie, above the tie; NaNs too */
            lanes v = which == 0 ? x : which == 1 ? y : z;
            lanes_store(1, v, back);
            for (int i = 0; i < LANES; i++)
                assert_int_equal(back[i], tess_bf16_of_f32_bits(((lanes_bits)v)[i]));
        }
    }
}

/* Every fp16; rounded, every 251st float: denormals, ties, overflow and NaNs too. */
static void test_lanes__widen_and_round_fp16_as_one_element(void **state) {
    uint16_t half[2 * LANES], back[2 * LANES];
    (void)state;
    for (uint32_t first = 0; first < 65536; first += LANES) {
        for (int i = 0; i < LANES; i++)
            half[i] = (uint16_t)(first + (uint32_t)i);
        lanes x = lanes_load(LANES_F16, half);
        for (int i = 0; i < LANES; i++)
            assert_int_equal(((lanes_bits)x)[i], tess_f32_bits(tess_f32_of_f16(half[i])));
    }
    for (uint64_t bits = 0; bits < UINT64_C(1) << 32; bits += (uint64_t)LANES * 251) {
        lanes_bits more = { 0 };
        for (int i = 0; i < LANES; i++)
            more[i] = (uint32_t)bits + 251u * (uint32_t)i;
        lanes_pair x = { (lanes)more, (lanes)(more + 0x1000u) };
        lanes_store(LANES_F16, x.a, half);
        lanes_pair_store(LANES_F16, x, back);
        for (int64_t k = 0; k < 2 * LANES; k++) {
            uint32_t was = k < LANES ? more[k] : more[k - LANES] + 0x1000u;
            uint16_t expected = tess_f16_of_f32(tess_f32_of_bits(was));
            assert_int_equal(back[lanes_pair_place(LANES_F16, k)], expected);
            if (k < LANES)
                assert_int_equal(half[k], expected);
        }
        lanes_pair again = lanes_pair_load(LANES_F16, back);
        for (int k = 0; k < LANES; k++)
            assert_int_equal(((lanes_bits)again.b)[k],
                             tess_f32_bits(tess_f32_of_f16(back[lanes_pair_place(LANES_F16, LANES + k)])));
    }
}

/* Element k of what was loaded, at its place in memory; bits may be added to it first. */
static void assert_pairs(int half, const void *from, uint32_t more) {
    uint32_t back[2 * LANES];
    lanes_pair x = lanes_pair_load(half, from);
    x.a = (lanes)((lanes_bits)x.a + more);
    x.b = (lanes)((lanes_bits)x.b + more);
    lanes_pair_store(half, x, back);
    for (int64_t k = 0; k < 2 * LANES; k++) {
        int64_t at = lanes_pair_place(half, k);
        uint32_t was = half ? (uint32_t)((const uint16_t *)from)[at] << 16 : ((const uint32_t *)from)[at];
        assert_int_equal(k < LANES ? ((lanes_bits)x.a)[k] : ((lanes_bits)x.b)[k - LANES], was + more);
        float v = tess_f32_of_bits(was + more);
        if (half)
            assert_int_equal(((const uint16_t *)back)[at], tess_bf16_of_f32(v));
        else
            assert_int_equal(back[at], was + more);
    }
}

static void test_lanes__pairs_are_loaded_and_stored_in_place(void **state) {
    uint32_t x[2 * LANES + 1] = { 0 }, bits = 1;
    (void)state;
    for (int n = 0; n < 4100; n++) { /* once round all floats, and all bf16 */
        for (int i = 0; i < 2 * LANES; i++, bits += 65521u)
            x[i] = bits;
        for (int half = 0; half < 2; half++)
            for (uint32_t more = 0; more < 0x10000u; more += 0x7fffu)
                assert_pairs(half, (char *)x + (n & 1 ? 2 : 0) * half, more);
    }
}

static void test_lanes__behind_the_first_are_others(void **state) {
    lanes x = { 3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3 };
    (void)state;
    for (int n = 1; n <= 20; n++) {
        lanes first = lanes_first(x, n, lanes_fill(-1));
        double sum = 0;
        float most = -1;
        for (int i = 0; i < LANES; i++) {
            float expected = i < n ? x[i] : -1;
            assert_true(first[i] == expected);
            most = expected > most ? expected : most;
            sum += expected;
        }
        assert_true(lanes_most(first) == most && lanes_add_up(first) == sum);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lanes__have_the_bits_of_one_element),
        cmocka_unit_test(test_lanes__widen_and_round_as_one_element),
        cmocka_unit_test(test_lanes__widen_and_round_fp16_as_one_element),
        cmocka_unit_test(test_lanes__pairs_are_loaded_and_stored_in_place),
        cmocka_unit_test(test_lanes__behind_the_first_are_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
