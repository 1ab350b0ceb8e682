/* SPDX-License-Identifier: BSD-3-Clause */
#include "models_common.h"
#include <stddef.h>

static const model_options plain = { .batch = 6, .dropout = -1, .operators = "plain" };

static void test_mnist__parameters_match_the_tutorial(void **state) {
    static const char *const names[] = { "conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias",
                                         "fc1.weight",   "fc1.bias",   "fc2.weight",   "fc2.bias" };
    static const int64_t elems[] = { 288, 32, 18432, 64, 1179648, 128, 1280, 10 };
    run r = run_create("mnist", &plain);
    (void)state;
    assert_int_equal(r.m->desc.n_params, 8);
    for (int i = 0; i < 8; i++) {
        assert_string_equal(r.m->desc.params[i].name, names[i]);
        assert_int_equal(r.m->desc.params[i].elems, elems[i]);
    }
    assert_int_equal(r.m->desc.n_blocks, 4);
    assert_string_equal(r.m->desc.blocks[3].name, "fc2");
    run_destroy(&r);
}

static void test_mnist__padding_does_not_count(void **state) {
    model_options small = plain;
    model_result a, b;
    (void)state;
    small.batch = 4;
    run full = run_create("mnist", &small), padded = run_create("mnist", &plain);
    mnist_batch_fill(&full, 10, 4);
    mnist_batch_fill(&padded, 10, 4);
    assert_int_equal(direct_run(full.d, TESS_PASS_TRAIN, full.batch, 0, 0, &a), TESS_OK);
    assert_int_equal(direct_run(padded.d, TESS_PASS_TRAIN, padded.batch, 0, 0, &b), TESS_OK);
    assert_true(a.loss == b.loss);
    assert_int_equal(b.count, 4);
    assert_int_equal(a.correct, b.correct);
    for (int i = 0; i < 8; i++) {
        int64_t elems = full.m->desc.params[i].elems;
        double norm = norm_of(direct_grad(full.d, i), NULL, elems);
        assert_true(norm > 0);
        assert_true(norm_of(direct_grad(full.d, i), direct_grad(padded.d, i), elems) <= 1e-6 * norm);
    }
    run_destroy(&full);
    run_destroy(&padded);
}

static void test_mnist__bad_batch_is_refused(void **state) {
    run r = run_create("mnist", &plain);
    (void)state;
    mnist_batch_fill(&r, 0, 6);
    mnist_labels(r.batch)[2] = 10;
    assert_int_equal(direct_run(r.d, TESS_PASS_EVAL, r.batch, 0, 0, NULL), TESS_E_DATA);
    assert_string_equal(tess_last_error(), "mnist: label 10 of sample 2: expected 0 to 9");
    mnist_batch_fill(&r, 0, 6);
    ((model_batch *)r.batch)->count = 7;
    assert_int_equal(direct_run(r.d, TESS_PASS_EVAL, r.batch, 0, 0, NULL), TESS_E_DATA);
    assert_string_equal(tess_last_error(), "mnist: 7 samples in a batch of 6");
    run_destroy(&r);
}

/* The mask belongs to the sample: the same two microbatches give the same gradients whoever computes which. */
static void test_mnist__dropout_follows_the_sample(void **state) {
    model_options with = { .batch = 2, .operators = "plain" };
    (void)state;
    run a = run_create("mnist", &with), b = run_create("mnist", &with);
    model_result r1, r2, r3;
    mnist_batch_fill(&a, 6, 2);
    mnist_batch_fill(&b, 6, 2);
    assert_int_equal(direct_run(a.d, TESS_PASS_TRAIN, a.batch, 5, 3, &r1), TESS_OK);
    assert_int_equal(direct_run(b.d, TESS_PASS_TRAIN, b.batch, 4, 3, &r2), TESS_OK);
    direct_zero_grads(b.d);
    assert_int_equal(direct_run(b.d, TESS_PASS_TRAIN, b.batch, 5, 3, &r3), TESS_OK);
    assert_true(r1.loss == r3.loss);
    assert_true(r1.loss != r2.loss);
    for (int i = 0; i < 8; i++)
        assert_memory_equal(direct_grad(a.d, i), direct_grad(b.d, i), (size_t)a.m->desc.params[i].elems * 4);
    run_destroy(&a);
    run_destroy(&b);
}

/* Sample 1 of a batch of two and sample 0 of the next microbatch of one have the same number, so the same mask. */
static void test_mnist__dropout_does_not_depend_on_the_batch_size(void **state) {
    model_options two = { .batch = 2, .operators = "plain" }, one = { .batch = 1, .operators = "plain" };
    model_result both, first, second;
    (void)state;
    run a = run_create("mnist", &two), b = run_create("mnist", &one);
    mnist_batch_fill(&a, 0, 2);
    assert_int_equal(direct_run(a.d, TESS_PASS_TRAIN, a.batch, 1, 0, &both), TESS_OK);
    mnist_batch_fill(&b, 0, 1);
    assert_int_equal(direct_run(b.d, TESS_PASS_TRAIN, b.batch, 1, 0, &first), TESS_OK);
    mnist_batch_fill(&b, 1, 1);
    assert_int_equal(direct_run(b.d, TESS_PASS_TRAIN, b.batch, 1, 1, &second), TESS_OK);
    assert_true(fabs(both.loss - first.loss - second.loss) < 1e-5);
    run_destroy(&a);
    run_destroy(&b);
}

static void test_mnist__evaluation_has_no_dropout(void **state) {
    model_options with = { .batch = 6, .operators = "plain" };
    model_result a, b;
    (void)state;
    run drop = run_create("mnist", &with), none = run_create("mnist", &plain);
    mnist_batch_fill(&drop, 0, 6);
    assert_int_equal(direct_run(drop.d, TESS_PASS_EVAL, drop.batch, 0, 0, &a), TESS_OK);
    assert_int_equal(direct_run(none.d, TESS_PASS_TRAIN, drop.batch, 0, 0, &b), TESS_OK);
    assert_true(a.loss == b.loss);
    run_destroy(&drop);
    run_destroy(&none);
}

static void test_mnist__plain_bits_do_not_depend_on_threads(void **state) {
    model_options three = plain;
    (void)state;
    three.threads = 3;
    run a = run_create("mnist", &plain), b = run_create("mnist", &three);
    mnist_batch_fill(&a, 0, 6);
    assert_int_equal(direct_run(a.d, TESS_PASS_TRAIN, a.batch, 0, 0, NULL), TESS_OK);
    assert_int_equal(direct_run(b.d, TESS_PASS_TRAIN, a.batch, 0, 0, NULL), TESS_OK);
    for (int i = 0; i < 8; i++)
        assert_memory_equal(direct_grad(a.d, i), direct_grad(b.d, i), (size_t)a.m->desc.params[i].elems * 4);
    run_destroy(&a);
    run_destroy(&b);
}

static void test_mnist__fill_by_ranges_equals_fill_at_once(void **state) {
    run r = run_create("mnist", &plain);
    float part[97];
    (void)state;
    for (uint64_t first = 0; first < 18432; first += 97) {
        tess_range range = { .struct_size = sizeof range, .tag = 2, .slice_elems = 18432, .first_elem = first };
        range.elems = 18432 - first < 97 ? 18432 - first : 97;
        assert_int_equal(model_fill(r.m, &range, part), TESS_OK);
        assert_memory_equal(part, direct_param(r.d, 2) + first, range.elems * sizeof(float));
    }
    run_destroy(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mnist__parameters_match_the_tutorial),
        cmocka_unit_test(test_mnist__padding_does_not_count),
        cmocka_unit_test(test_mnist__bad_batch_is_refused),
        cmocka_unit_test(test_mnist__dropout_follows_the_sample),
        cmocka_unit_test(test_mnist__dropout_does_not_depend_on_the_batch_size),
        cmocka_unit_test(test_mnist__evaluation_has_no_dropout),
        cmocka_unit_test(test_mnist__plain_bits_do_not_depend_on_threads),
        cmocka_unit_test(test_mnist__fill_by_ranges_equals_fill_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
