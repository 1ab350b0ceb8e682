/* SPDX-License-Identifier: BSD-3-Clause */
#include "models_common.h"
#include <stddef.h>

/* Ranks one after another in one process: their gradients add up, the average is taken, SGD with lr 0.1. */
static void one_step(const char *operators, int32_t ranks, int32_t batch) {
    model_options o = { .batch = batch, .operators = operators };
    double weight[9], output[3], updated[9];
    float first[3];
    run r = run_create("linear", &o);
    linear_result result;
    linear_fill_input(0, first);
    linear_expect(ranks, batch, 0.1, first, weight, output, updated);
    for (int i = 0; i < 9; i++)
        assert_true(direct_param(r.d, 0)[i] == (float)weight[i]);
    for (int32_t rank = 0; rank < ranks; rank++) {
        memset(r.batch, 0, r.m->desc.input_bytes);
        ((model_batch *)r.batch)->count = (uint32_t)batch;
        for (int32_t i = 0; i < batch; i++)
            linear_fill_input((uint64_t)(rank * batch + i), linear_input(r.batch) + 3 * i);
        assert_int_equal(direct_run(r.d, TESS_PASS_TRAIN, r.batch, 0, (uint64_t)rank, &result), TESS_OK);
        for (int i = 0; rank == 0 && i < 3; i++)
            assert_true(result.output[i] == (float)output[i]);
    }
    for (int i = 0; i < 9; i++) {
        double w = weight[i] - 0.1 * (double)direct_grad(r.d, 0)[i] / ranks;
        assert_true(fabs(w - updated[i]) <= 1e-6);
    }
    run_destroy(&r);
}

static void test_linear__one_step_equals_the_closed_form(void **state) {
    (void)state;
    for (int32_t ranks = 1; ranks <= 5; ranks++)
        for (int32_t batch = 1; batch <= 4; batch += 3) {
            one_step("plain", ranks, batch);
            one_step("auto", ranks, batch);
        }
}

static void test_linear__expectation_by_hand(void **state) {
    const float x[3] = { 1, 1.25f, 1.5f };
    double weight[9], output[3], updated[9];
    (void)state;
    linear_expect(2, 1, 0.5, x, weight, output, updated); /* samples 1 1.25 1.5 and 1.75 2 2.25 */
    assert_true(weight[0] == -0.375 && weight[6] == 0.375 && weight[7] == -0.375);
    assert_true(output[0] == -0.375 - 0.25 * 1.25 - 0.125 * 1.5);
    assert_true(updated[0] == -0.375 - 0.5 * 1.375);
    assert_true(updated[8] == weight[8] - 0.5 * 1.875);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear__one_step_equals_the_closed_form),
        cmocka_unit_test(test_linear__expectation_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
