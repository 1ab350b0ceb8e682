#include "kernel_fixture.h"
#include "tree.h"

enum { MOST = 64, ELEMS = 1500 };
static float inputs[MOST][ELEMS];
static uint16_t narrow[MOST][ELEMS];

static void fill(uint64_t seed) {
    for (int k = 0; k < MOST; k++)
        for (int i = 0; i < ELEMS; i++) {
            inputs[k][i] = random_wide(&seed);
            narrow[k][i] = tess_bf16_of_f32(inputs[k][i]);
        }
}

/* The rule as NUMBERS.md states it, one element at a time. */
static float rule(int lo, int hi, int i) {
    int p = 1;
    if (hi - lo == 1)
        return inputs[lo][i];
    while (2 * p < hi - lo)
        p *= 2;
    return rule(lo, lo + p, i) + rule(lo + p, hi, i);
}

static void sum_all(int first, int n, float *out, uint32_t flags, double scale, tess__pool *pool) {
    const void *in[MOST];
    for (int k = 0; k < n; k++)
        in[k] = inputs[first + k];
    tess_kernel kernel = { .struct_size = sizeof kernel,
                           .kernel = TESS_K_TREE_SUM,
                           .in_dtype = TESS_F32,
                           .out_dtype = TESS_F32,
                           .n_in = (uint32_t)n,
                           .flags = flags,
                           .in = in,
                           .out = out,
                           .elems = ELEMS,
                           .scale = scale };
    run_kernel(&kernel, pool);
}

static void test_tree__any_number_of_inputs_follows_the_rule(void **state) {
    (void)state;
    fill(1);
    for_each_isa(isa) for (int n = 1; n <= MOST; n++) {
        float out[ELEMS];
        sum_all(0, n, out, 0, 1, NULL);
        for (int i = 0; i < ELEMS; i += 7)
            assert_int_equal(tess_f32_bits(out[i]), tess_f32_bits(rule(0, n, i)));
    }
    tess__isa_limit(0);
}

static void test_tree__one_by_one_gives_the_bits_of_all_at_once(void **state) {
    (void)state;
    static float scratch[8][ELEMS];
    fill(2);
    for (int n = 1; n <= MOST; n++) {
        float want[ELEMS], got[ELEMS];
        tess__tree tree;
        tess_kernel kernel;
        sum_all(0, n, want, 0, 0.125, NULL);
        memset(scratch, 0xff, sizeof scratch);
        assert_true(tess__tree_levels((uint64_t)n) <= 6);
        tess__tree_init(&tree, TESS_F32, ELEMS, (uint64_t)n, scratch);
        for (int k = 0; k < n - 1; k++) {
            tess__tree_push(&tree, inputs[k], TESS_F32, &kernel);
            run_kernel(&kernel, NULL);
        }
        tess__tree_last(&tree, inputs[n - 1], TESS_F32, got, TESS_F32, 0, 0.125, &kernel);
        run_kernel(&kernel, NULL);
        assert_memory_equal(got, want, sizeof want);
        const unsigned char *beyond = (const unsigned char *)scratch[tess__tree_levels((uint64_t)n)];
        assert_int_equal(beyond[0], 0xff); /* no level beyond the stated number is touched */
    }
}

static void test_tree__groups_of_a_power_of_two_give_the_same_bits(void **state) {
    (void)state;
    static float part[MOST][ELEMS];
    fill(3);
    for (int group = 2; group <= 16; group *= 2) {
        for (int n = 1; n <= MOST; n++) {
            const void *in[MOST];
            float want[ELEMS], got[ELEMS];
            int groups = (n + group - 1) / group;
            for (int g = 0; g < groups; g++) {
                sum_all(g * group, n - g * group < group ? n - g * group : group, part[g], 0, 1, NULL);
                in[g] = part[g];
            }
            tess_kernel kernel = { .struct_size = sizeof kernel,
                                   .kernel = TESS_K_TREE_SUM,
                                   .in_dtype = TESS_F32,
                                   .out_dtype = TESS_F32,
                                   .n_in = (uint32_t)groups,
                                   .in = in,
                                   .out = got,
                                   .elems = ELEMS };
            run_kernel(&kernel, NULL);
            sum_all(0, n, want, 0, 1, NULL);
            assert_memory_equal(got, want, sizeof want);
        }
    }
}

static void test_tree__bf16_inputs_are_summed_in_f32(void **state) {
    (void)state;
    fill(4);
    const void *in[MOST];
    float want[ELEMS], got[ELEMS];
    uint16_t low[ELEMS];
    for (int k = 0; k < 7; k++) {
        in[k] = narrow[k];
        for (int i = 0; i < ELEMS; i++)
            inputs[k][i] = tess_f32_of_bf16(narrow[k][i]);
    }
    sum_all(0, 7, want, 0, 1, NULL);
    tess_kernel kernel = { .struct_size = sizeof kernel,
                           .kernel = TESS_K_TREE_SUM,
                           .in_dtype = TESS_BF16,
                           .out_dtype = TESS_F32,
                           .n_in = 7,
                           .in = in,
                           .out = got,
                           .elems = ELEMS };
    run_kernel(&kernel, NULL);
    assert_memory_equal(got, want, sizeof want);
    kernel.out_dtype = TESS_BF16;
    kernel.out = low;
    run_kernel(&kernel, NULL);
    for (int i = 0; i < ELEMS; i++)
        assert_int_equal(low[i], tess_bf16_of_f32(want[i]));
}

static void test_tree__add_then_scale_in_that_order(void **state) {
    (void)state;
    fill(5);
    float plain[ELEMS], out[ELEMS];
    sum_all(0, 3, plain, 0, 1, NULL);
    memcpy(out, inputs[9], sizeof out);
    sum_all(0, 3, out, TESS_KERNEL_ADD, 1.0 / 3, NULL);
    for (int i = 0; i < ELEMS; i++)
        assert_int_equal(tess_f32_bits(out[i]), tess_f32_bits((inputs[9][i] + plain[i]) * (float)(1.0 / 3)));
}

static void test_tree__output_over_an_input_is_allowed(void **state) {
    (void)state;
    fill(6);
    float want[ELEMS];
    sum_all(0, 6, want, 0, 1, NULL);
    sum_all(0, 6, inputs[2], 0, 1, NULL);
    assert_memory_equal(inputs[2], want, sizeof want);
}

static void test_tree__integers_and_f64_keep_their_dtype(void **state) {
    (void)state;
    int64_t a[3][5], sum64[5];
    int32_t b[3][5], sum32[5];
    double c[3][5], sumd[5];
    const void *ina[3] = { a[0], a[1], a[2] }, *inb[3] = { b[0], b[1], b[2] }, *inc[3] = { c[0], c[1], c[2] };
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < 5; i++) {
            a[k][i] = (1ll << 62) - k * 1000 - i;
            b[k][i] = INT32_MAX - k - i;
            c[k][i] = (k + 1) * 1e-17 + (k == 0);
        }
    tess_kernel kernel = { .struct_size = sizeof kernel,
                           .kernel = TESS_K_TREE_SUM,
                           .in_dtype = TESS_I64,
                           .out_dtype = TESS_I64,
                           .n_in = 3,
                           .in = ina,
                           .out = sum64,
                           .elems = 5 };
    run_kernel(&kernel, NULL);
    kernel.in_dtype = kernel.out_dtype = TESS_I32, kernel.in = inb, kernel.out = sum32;
    run_kernel(&kernel, NULL);
    kernel.in_dtype = kernel.out_dtype = TESS_F64, kernel.in = inc, kernel.out = sumd;
    run_kernel(&kernel, NULL);
    for (int i = 0; i < 5; i++) {
        assert_true(sum64[i] == (int64_t)((uint64_t)a[0][i] + (uint64_t)a[1][i] + (uint64_t)a[2][i]));
        assert_true(sum32[i] == (int32_t)((uint32_t)b[0][i] + (uint32_t)b[1][i] + (uint32_t)b[2][i]));
        assert_true(sumd[i] == (c[0][i] + c[1][i]) + c[2][i]);
    }
}

static void test_tree__thread_count_does_not_change_bits(void **state) {
    (void)state;
    enum { LARGE = 200000 };
    static float in[3][LARGE], want[LARGE], got[LARGE];
    const void *list[3] = { in[0], in[1], in[2] };
    uint64_t seed = 7;
    tess__pool *pool = NULL;
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < LARGE; i++)
            in[k][i] = random_wide(&seed);
    tess_kernel kernel = { .struct_size = sizeof kernel,
                           .kernel = TESS_K_TREE_SUM,
                           .in_dtype = TESS_F32,
                           .out_dtype = TESS_F32,
                           .n_in = 3,
                           .in = list,
                           .out = want,
                           .elems = LARGE };
    run_kernel(&kernel, NULL);
    kernel.out = got;
    for (int threads = 2; threads <= 5; threads++) {
        assert_int_equal(tess__pool_create(threads, "", &pool, NULL), TESS_OK);
        memset(got, 0, sizeof got);
        run_kernel(&kernel, pool);
        assert_memory_equal(got, want, sizeof want);
        tess__pool_destroy(pool);
    }
}

static void test_tree__bad_kernels_are_refused_in_words(void **state) {
    (void)state;
    float out[4];
    const void *in[2] = { out, NULL };
    tess_error error;
    tess_kernel kernel = { .struct_size = sizeof kernel,
                           .kernel = TESS_K_TREE_SUM,
                           .in_dtype = TESS_F32,
                           .out_dtype = TESS_F32,
                           .n_in = 2,
                           .in = in,
                           .out = out,
                           .elems = 4 };
    assert_int_equal(try_kernel(&kernel, &error), TESS_E_INVALID);
    assert_string_equal(error.message, "tree sum: input 1 of 2 is null");
    kernel.n_in = 0;
    assert_int_equal(try_kernel(&kernel, &error), TESS_E_INVALID);
    kernel.n_in = 1, kernel.in_dtype = TESS_F64;
    assert_int_equal(try_kernel(&kernel, &error), TESS_E_UNSUPPORTED);
    assert_string_equal(error.message, "tree sum from f64 to f32 is not offered");
    kernel.in_dtype = kernel.out_dtype = TESS_I32, kernel.scale = 0.5;
    assert_int_equal(try_kernel(&kernel, &error), TESS_E_UNSUPPORTED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tree__any_number_of_inputs_follows_the_rule),
        cmocka_unit_test(test_tree__one_by_one_gives_the_bits_of_all_at_once),
        cmocka_unit_test(test_tree__groups_of_a_power_of_two_give_the_same_bits),
        cmocka_unit_test(test_tree__bf16_inputs_are_summed_in_f32),
        cmocka_unit_test(test_tree__add_then_scale_in_that_order),
        cmocka_unit_test(test_tree__output_over_an_input_is_allowed),
        cmocka_unit_test(test_tree__integers_and_f64_keep_their_dtype),
        cmocka_unit_test(test_tree__thread_count_does_not_change_bits),
        cmocka_unit_test(test_tree__bad_kernels_are_refused_in_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
