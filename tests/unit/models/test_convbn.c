/* SPDX-License-Identifier: BSD-3-Clause */
#include "models_common.h"
#include <stddef.h>

static const model_options small = { .image_size = 9, .hidden = 6, .seed = 4, .operators = "plain" };

static run small_run(const model_options *o) {
    run r = run_create("convbn", o);
    convbn_batch_fill(&r, 0);
    return r;
}

static int32_t index_of(const model *m, const char *name) {
    for (int32_t i = 0; i < m->desc.n_params; i++)
        if (!strcmp(m->desc.params[i].name, name))
            return i;
    fail_msg("no parameter %s", name);
    return -1;
}

static void test_convbn__names_and_units_are_those_of_pytorch(void **state) {
    static const char *const scopes[] = { "stem.1", "blocks.1", "blocks.4", "blocks.7" };
    run r = run_create("convbn", &(model_options){ .image_size = 9, .operators = "plain" });
    const model_desc *d = &r.m->desc;
    int64_t trained = 0, running = 0;
    (void)state;
    assert_int_equal(d->n_blocks, 3);
    assert_int_equal(d->n_scopes, 4);
    for (int i = 0; i < 4; i++)
        assert_string_equal(d->scopes[i], scopes[i]);
    for (int32_t i = 0; i < d->n_params; i++)
        *(d->params[i].is_buffer ? &running : &trained) += d->params[i].elems;
    assert_int_equal(trained, 64 * 3 * 9 + 64 + 128 * 64 * 25 + 2 * 128 * 128 * 25 + 3 * 128 + 2 * 64 + 6 * 128 + 1290);
    assert_int_equal(running, 2 * 64 + 6 * 128);
    assert_int_equal(d->params[index_of(r.m, "blocks.3.weight")].elems, 128 * 128 * 25);
    assert_int_equal(d->params[index_of(r.m, "blocks.7.running_var")].is_buffer, 1);
    assert_true(direct_param(r.d, index_of(r.m, "stem.1.running_mean"))[63] == 0);
    assert_true(direct_param(r.d, index_of(r.m, "stem.1.running_var"))[63] == 1);
    run_destroy(&r);
}

/* What PyTorch keeps: of each normalisation the input and, the ReLU working in place, its own output. */
static void test_convbn__saved_bytes_are_those_of_pytorch(void **state) {
    model *m;
    const uint64_t map = 2 * 222 * 222 * 4, stats = 2 * 4;
    (void)state;
    assert_int_equal(model_create("convbn", NULL, &m), TESS_OK);
    const model_block *b = m->desc.blocks;
    assert_int_equal(m->desc.input_bytes, sizeof(model_batch) + 2 * 224 * 224 * 3 * 4);
    assert_int_equal(b[0].output_bytes, 64 * map);
    assert_int_equal(b[0].saved_bytes, 64 * map + 64 * stats);
    assert_int_equal(b[1].saved_bytes, 6 * 128 * map + 3 * 128 * stats);
    assert_int_equal(b[1].output_bytes, 2 * 128 * 4);
    assert_int_equal(b[2].output_bytes, sizeof(model_result));
    model_destroy(m);
}

/* The running values move by a tenth in a training pass, and evaluation reads them without moving them. */
static void test_convbn__running_statistics_move_in_training_only(void **state) {
    run r = small_run(&small);
    int32_t at = index_of(r.m, "stem.1.running_var");
    float *var = direct_param(r.d, at), first[64], second[64];
    model_result fresh, moved;
    (void)state;
    assert_int_equal(direct_run(r.d, TESS_PASS_EVAL, r.batch, 0, 0, &fresh), TESS_OK);
    for (int i = 0; i < 64; i++)
        assert_true(var[i] == 1);
    assert_int_equal(direct_run(r.d, TESS_PASS_TRAIN, r.batch, 0, 0, NULL), TESS_OK);
    memcpy(first, var, sizeof first);
    assert_int_equal(direct_run(r.d, TESS_PASS_EVAL, r.batch, 0, 0, &moved), TESS_OK);
    assert_memory_equal(var, first, sizeof first);
    assert_true(moved.loss != fresh.loss);
    assert_int_equal(direct_run(r.d, TESS_PASS_TRAIN, r.batch, 0, 0, NULL), TESS_OK);
    memcpy(second, var, sizeof second);
    for (int i = 0; i < 64; i++) { /* towards the same batch variance v: 1, 0.9 + 0.1 v, 0.81 + 0.19 v */
        double v = (first[i] - 0.9) / 0.1;
        assert_true(fabs(second[i] - (0.81 + 0.19 * v)) < 1e-5);
    }
    run_destroy(&r);
}

/* A forward that runs again for its backward gives the same output and saved values and leaves the statistics alone. */
static void test_convbn__recomputation_changes_nothing(void **state) {
    run r = small_run(&small);
    const model_block *b = r.m->desc.blocks;
    uint64_t bytes = b->output_bytes;
    float *output[2], *saved[2];
    const void *params[6];
    void *scratch = aligned_alloc(64, ops_align(b->forward_scratch_bytes));
    (void)state;
    assert_non_null(scratch);
    for (int i = 0; i < 6; i++)
        params[i] = direct_param(r.d, i);
    for (int again = 0; again < 2; again++) {
        float before[64];
        assert_non_null(output[again] = aligned_alloc(64, ops_align(bytes)));
        assert_non_null(saved[again] = aligned_alloc(64, ops_align(b->saved_bytes)));
        memset(saved[again], 0, b->saved_bytes);
        memcpy(before, direct_param(r.d, 4), sizeof before);
        tess_block_call call = { .struct_size = sizeof call, .pass = TESS_PASS_TRAIN, .compute_dtype = TESS_F32 };
        call.recompute = (uint32_t)again;
        call.params = params, call.n_params = 6, call.threads = 1;
        call.batch = r.batch, call.output = output[again], call.saved = saved[again], call.scratch = scratch;
        assert_int_equal(b->forward(b->user, &call), TESS_OK);
        assert_int_equal(!memcmp(before, direct_param(r.d, 4), sizeof before), again);
    }
    assert_memory_equal(output[0], output[1], bytes);
    assert_memory_equal(saved[0], saved[1], b->saved_bytes);
    for (int again = 0; again < 2; again++)
        free(output[again]), free(saved[again]);
    free(scratch);
    run_destroy(&r);
}

static void test_convbn__plain_bits_do_not_depend_on_threads(void **state) {
    model_options three = small;
    (void)state;
    three.threads = 3;
    run a = small_run(&small), b = small_run(&three);
    assert_int_equal(direct_run(a.d, TESS_PASS_TRAIN, a.batch, 0, 0, NULL), TESS_OK);
    assert_int_equal(direct_run(b.d, TESS_PASS_TRAIN, b.batch, 0, 0, NULL), TESS_OK);
    for (int32_t i = 0; i < a.m->desc.n_params; i++)
        assert_memory_equal(direct_grad(a.d, i), direct_grad(b.d, i), (size_t)a.m->desc.params[i].elems * 4);
    run_destroy(&a);
    run_destroy(&b);
}

/* In bf16 the losses stay near fp32's, and running statistics stay fp32. */
static void test_convbn__bf16_stays_near(void **state) {
    model_options half = small;
    model_result wide_result, half_result;
    (void)state;
    half.precision = TESS_BF16;
    run a = small_run(&small), b = small_run(&half);
    assert_int_equal(direct_run(a.d, TESS_PASS_TRAIN, a.batch, 0, 0, &wide_result), TESS_OK);
    assert_int_equal(direct_run(b.d, TESS_PASS_TRAIN, b.batch, 0, 0, &half_result), TESS_OK);
    double wide = sqrt(wide_result.loss), narrow = sqrt(half_result.loss);
    assert_true(fabs(wide - narrow) < 0.02 * (1 + wide));
    assert_true(wide != narrow);
    int32_t at = index_of(a.m, "blocks.7.running_var");
    double size = norm_of(direct_param(a.d, at), NULL, 6);
    assert_true(norm_of(direct_param(a.d, at), direct_param(b.d, at), 6) < 1e-2 * size);
    run_destroy(&a);
    run_destroy(&b);
}

static void test_convbn__bad_options_and_batches_are_refused(void **state) {
    static const struct {
        model_options o;
        const char *message;
    } bad[] = {
        { { .image_size = 2 }, "image size 2: expected 3 to 4096" },
        { { .hidden = -1 }, "hidden -1: expected 1 to 4096" },
        { { .image_size = 4096, .batch = 5 },
          "image size 4096 with batch 5: expected at most 67108864 pixels in a batch" },
    };
    model *m = NULL;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(model_create("convbn", &bad[i].o, &m), TESS_E_INVALID);
        assert_string_equal(tess_last_error(), bad[i].message);
        assert_null(m);
    }
    run r = small_run(&small);
    ((model_batch *)r.batch)->count = 1;
    assert_int_equal(direct_run(r.d, TESS_PASS_TRAIN, r.batch, 0, 0, NULL), TESS_E_DATA);
    assert_string_equal(tess_last_error(), "convbn: 1 samples in a batch of 2: normalisation needs all");
    run_destroy(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_convbn__names_and_units_are_those_of_pytorch),
        cmocka_unit_test(test_convbn__saved_bytes_are_those_of_pytorch),
        cmocka_unit_test(test_convbn__running_statistics_move_in_training_only),
        cmocka_unit_test(test_convbn__recomputation_changes_nothing),
        cmocka_unit_test(test_convbn__plain_bits_do_not_depend_on_threads),
        cmocka_unit_test(test_convbn__bf16_stays_near),
        cmocka_unit_test(test_convbn__bad_options_and_batches_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
