/* SPDX-License-Identifier: BSD-3-Clause */
#include "kernel_fixture.h"
#include "core/kernels/norm.h"

static void square_sum(const float *x, uint64_t elems, uint32_t flags, double scale, int64_t *limbs, tess__pool *pool) {
    const void *in[1] = { x };
    tess_kernel kernel = { .struct_size = sizeof kernel,
                           .kernel = TESS_K_SQUARE_SUM,
                           .in_dtype = TESS_F32,
                           .out_dtype = TESS_I64,
                           .n_in = 1,
                           .flags = flags,
                           .in = in,
                           .out = limbs,
                           .elems = elems,
                           .scale = scale };
    run_kernel(&kernel, pool);
}

/* Schoolbook: the sum as bytes of one long integer in units of 2^-149. */
typedef struct {
    uint32_t word[16];
} long_integer;

static void add_float(long_integer *sum, float square) {
    uint32_t bits = tess_f32_bits(square), exponent = bits >> 23;
    uint64_t mantissa = (bits & 0x7fffff) | (exponent ? 0x800000 : 0), over;
    uint32_t bit = exponent ? exponent - 1 : 0;
    uint64_t wide = mantissa << (bit % 32);
    over = 0;
    for (uint32_t i = bit / 32; i < 16; i++, wide >>= 32) {
        over += sum->word[i] + (wide & 0xffffffff);
        sum->word[i] = (uint32_t)over;
        over >>= 32;
    }
}

static void assert_limbs_are(const int64_t *limbs, const long_integer *want) {
    for (int i = 0; i < TESS__NORM_DIGITS; i++)
        assert_true(limbs[i] == (int64_t)want->word[i]);
}

enum { ELEMS = 5003 };

static void test_norm__any_values_sum_exactly_on_every_instruction_set(void **state) {
    (void)state;
    static float x[ELEMS];
    uint64_t seed = 11;
    for (int spread = 1; spread <= 64; spread *= 2) {
        long_integer want = { { 0 } };
        for (int i = 0; i < ELEMS; i++) {
            x[i] = i % 5 == 0 ? 0 : ldexpf(random_unit(&seed), (int)(next_random(&seed) % (2 * spread)) - spread);
            add_float(&want, x[i] * x[i]);
        }
        for_each_isa(isa) {
            int64_t limbs[TESS__NORM_LIMBS];
            square_sum(x, ELEMS, 0, 1, limbs, NULL);
            assert_limbs_are(limbs, &want);
            assert_true(limbs[TESS__NORM_NAN] == 0 && limbs[TESS__NORM_INFINITE] == 0);
        }
    }
    tess__isa_limit(0);
}

static void test_norm__every_exponent_is_exact(void **state) {
    (void)state;
    float x[1];
    for_each_isa(isa) for (int e = -149; e < 64; e++) {
        int64_t limbs[TESS__NORM_LIMBS];
        long_integer want = { { 0 } };
        x[0] = ldexpf(1.0f, e);
        add_float(&want, x[0] * x[0]);
        square_sum(x, 1, 0, 1, limbs, NULL);
        assert_limbs_are(limbs, &want);
        assert_true(tess__norm_result(limbs) == (e >= -74 ? ldexp(1, e) : 0)); /* below, the f32 square is 0 */
    }
    tess__isa_limit(0);
}

static void test_norm__any_order_and_split_gives_the_same_limbs(void **state) {
    (void)state;
    static float x[ELEMS];
    uint64_t seed = 12;
    int64_t whole[TESS__NORM_LIMBS], parts[TESS__NORM_LIMBS], again[TESS__NORM_LIMBS];
    for (int i = 0; i < ELEMS; i++)
        x[i] = random_wide(&seed);
    square_sum(x, ELEMS, 0, 1, whole, NULL);
    for (int i = ELEMS - 1; i > 0; i--) {
        int j = (int)(next_random(&seed) % (uint64_t)(i + 1));
        float t = x[i];
        x[i] = x[j], x[j] = t;
    }
    square_sum(x, 1000, 0, 1, parts, NULL);
    square_sum(x + 1000, 1, TESS_KERNEL_ADD, 1, parts, NULL);
    square_sum(x + 1001, ELEMS - 1001, 0, 1, again, NULL);
    tess__norm_add(parts, again);
    assert_memory_equal(parts, whole, sizeof whole);
}

static void test_norm__result_is_rounded_once(void **state) {
    (void)state;
    int64_t limbs[TESS__NORM_LIMBS] = { 0 };
    uint64_t seed = 13;
    for (int round = 0; round < 20000; round++) {
        memset(limbs, 0, sizeof limbs);
        /* 100 bits at a random place, by the compiler's own 113-bit floats. */
        int at = (int)(next_random(&seed) % 8);
        __float128 exact = 0;
        for (int i = 3; i >= 0; i--) {
            limbs[at + i] = (int64_t)(next_random(&seed) >> (i == 3 ? 60 : 32));
            if (round % 3 == 0 && i < 2)
                limbs[at + i] = i == 1 && round % 2 ? 0x80000000ll : 0; /* ties */
            exact = exact * 4294967296.0Q + limbs[at + i];
        }
        assert_true(tess__norm_square(limbs) == ldexp((double)exact, 32 * at - 149));
    }
}

static void test_norm__sums_of_many_ranks_carry(void **state) {
    (void)state;
    int64_t one[TESS__NORM_LIMBS] = { 0 }, all[TESS__NORM_LIMBS];
    for (int i = 0; i < 9; i++)
        one[i] = 0xffffffffll;
    for (int i = 0; i < TESS__NORM_LIMBS; i++)
        all[i] = one[i] * (1 << 20);
    assert_true(tess__norm_square(all) == tess__norm_square(one) * (1 << 20));
}

static void test_norm__nan_and_infinity_are_counted_apart(void **state) {
    (void)state;
    float x[3000] = { 0 };
    for_each_isa(isa) {
        int64_t limbs[TESS__NORM_LIMBS];
        memset(x, 0, sizeof x);
        x[7] = 3, x[8] = 4;
        square_sum(x, 3000, 0, 1, limbs, NULL);
        assert_true(tess__norm_result(limbs) == 5);
        x[2000] = 1e30f; /* its square is infinite in f32 */
        x[2001] = -INFINITY;
        square_sum(x, 3000, 0, 1, limbs, NULL);
        assert_true(limbs[TESS__NORM_INFINITE] == 2 && isinf(tess__norm_result(limbs)));
        x[2999] = NAN;
        square_sum(x, 3000, 0, 1, limbs, NULL);
        assert_true(limbs[TESS__NORM_NAN] == 1 && isnan(tess__norm_result(limbs)));
    }
    tess__isa_limit(0);
}

static void test_norm__scale_multiplies_the_element_first(void **state) {
    (void)state;
    static float x[ELEMS], scaled[ELEMS];
    uint64_t seed = 14;
    int64_t a[TESS__NORM_LIMBS], b[TESS__NORM_LIMBS];
    for (int i = 0; i < ELEMS; i++) {
        x[i] = random_wide(&seed);
        scaled[i] = x[i] * (1.0f / 3);
    }
    for_each_isa(isa) {
        square_sum(x, ELEMS, 0, 1.0f / 3, a, NULL);
        square_sum(scaled, ELEMS, 0, 1, b, NULL);
        assert_memory_equal(a, b, sizeof a);
    }
    tess__isa_limit(0);
}

/* 16-bit gradients are widened, and any part is added to what is there. */
static void test_norm__of_16_bits_is_that_of_the_widened(void **state) {
    (void)state;
    static const uint32_t dtypes[] = { TESS_BF16, TESS_F16 };
    static uint16_t narrow[ELEMS];
    static float x[ELEMS];
    uint64_t seed = 17;
    for_each_isa(isa) for (int d = 0; d < 2; d++) {
        int64_t want[TESS__NORM_LIMBS], got[TESS__NORM_LIMBS];
        for (int i = 0; i < ELEMS; i++) {
            const float any = random_wide(&seed);
            narrow[i] = d ? tess_f16_of_f32(any) : tess_bf16_of_f32(any);
            x[i] = d ? tess_f32_of_f16(narrow[i]) : tess_f32_of_bf16(narrow[i]);
        }
        const void *in[1] = { narrow };
        tess_kernel k = { .struct_size = sizeof k, .kernel = TESS_K_SQUARE_SUM, .in_dtype = dtypes[d], .n_in = 1 };
        k.in = in, k.out = got, k.elems = 2100, k.scale = 0.75;
        square_sum(x, ELEMS, 0, 0.75, want, NULL);
        run_kernel(&k, NULL);
        in[0] = narrow + 2100, k.elems = ELEMS - 2100, k.flags = TESS_KERNEL_ADD;
        run_kernel(&k, NULL);
        assert_memory_equal(got, want, sizeof want);
    }
    tess__isa_limit(0);
}

static void test_norm__no_elements_give_zero(void **state) {
    (void)state;
    float x[1] = { 1 };
    int64_t limbs[TESS__NORM_LIMBS];
    memset(limbs, 0xff, sizeof limbs);
    square_sum(x, 0, 0, 1, limbs, NULL);
    assert_true(tess__norm_result(limbs) == 0);
}

static void test_norm__clip_coefficient_is_pytorchs(void **state) {
    (void)state;
    assert_true(tess__clip_coefficient(1, 0) == 1);
    assert_true(tess__clip_coefficient(1, 0.5) == 1);
    assert_true(tess__clip_coefficient(1, 4) == (float)(1 / (4 + 1e-6)));
    assert_true(tess__clip_coefficient(1, (double)INFINITY) == 0);
    assert_true(isnan(tess__clip_coefficient(1, (double)NAN)));
}

static void test_norm__thread_count_does_not_change_limbs(void **state) {
    (void)state;
    enum { LARGE = 300001 };
    static float x[LARGE];
    uint64_t seed = 15;
    int64_t want[TESS__NORM_LIMBS], got[TESS__NORM_LIMBS];
    for (int i = 0; i < LARGE; i++)
        x[i] = random_wide(&seed);
    square_sum(x, LARGE, 0, 1, want, NULL);
    for (int threads = 2; threads <= 4; threads++) {
        tess__pool *pool = NULL;
        assert_int_equal(tess__pool_create(threads, "", &pool, NULL), TESS_OK);
        square_sum(x, LARGE, 0, 1, got, pool);
        assert_memory_equal(got, want, sizeof want);
        tess__pool_destroy(pool);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norm__any_values_sum_exactly_on_every_instruction_set),
        cmocka_unit_test(test_norm__every_exponent_is_exact),
        cmocka_unit_test(test_norm__any_order_and_split_gives_the_same_limbs),
        cmocka_unit_test(test_norm__result_is_rounded_once),
        cmocka_unit_test(test_norm__sums_of_many_ranks_carry),
        cmocka_unit_test(test_norm__nan_and_infinity_are_counted_apart),
        cmocka_unit_test(test_norm__scale_multiplies_the_element_first),
        cmocka_unit_test(test_norm__of_16_bits_is_that_of_the_widened),
        cmocka_unit_test(test_norm__no_elements_give_zero),
        cmocka_unit_test(test_norm__clip_coefficient_is_pytorchs),
        cmocka_unit_test(test_norm__thread_count_does_not_change_limbs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
