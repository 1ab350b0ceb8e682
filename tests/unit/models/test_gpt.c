/* SPDX-License-Identifier: BSD-3-Clause */
#include "models_common.h"
#include <stddef.h>

static const model_options small = {
    .batch = 3, .layers = 2, .width = 24, .heads = 3, .context = 9, .seed = 5, .operators = "plain"
};
enum { POSITIONS = 27 };

static run small_run(const model_options *o) {
    run r = run_create("gpt", o);
    gpt_batch_fill(&r, 0);
    return r;
}

static gpt_result evaluate(run *r) {
    gpt_result result;
    assert_int_equal(direct_run(r->d, TESS_PASS_EVAL, r->batch, 0, 0, &result), TESS_OK);
    return result;
}

static void test_gpt__defaults_and_names(void **state) {
    run r = run_create("gpt", &(model_options){ .operators = "plain" });
    const model_desc *d = &r.m->desc;
    int64_t elems = 0;
    (void)state;
    assert_int_equal(d->n_params, 2 + 4 * 12 + 3);
    assert_string_equal(d->params[0].name, "embed.wte.weight");
    assert_string_equal(d->params[4].name, "h.0.attn.c_attn.weight");
    assert_int_equal(d->params[4].optimizer_group, 0);
    assert_int_equal(d->params[5].optimizer_group, 1);
    assert_string_equal(d->params[52].name, "head.weight");
    assert_string_equal(d->params[52].alias_of, "embed.wte.weight");
    for (int i = 0; i < d->n_params; i++)
        elems += d->params[i].elems;
    assert_int_equal(elems, 256 * 128 + 64 * 128 + 4 * (12 * 128 * 128 + 13 * 128) + 2 * 128);
    assert_int_equal(d->n_blocks, 6);
    assert_string_equal(d->blocks[4].name, "h.3");
    assert_int_equal(d->blocks[4].n_params, 12);
    assert_true(direct_grad(r.d, 0) == direct_grad(r.d, 52));
    run_destroy(&r);
}

static void test_gpt__first_loss_is_that_of_a_guess(void **state) {
    run r = small_run(&small);
    gpt_result result = evaluate(&r);
    (void)state;
    assert_int_equal(result.sum.count, POSITIONS);
    assert_true(fabs(result.sum.loss / POSITIONS - log(256)) < 0.1);
    run_destroy(&r);
}

/* The loss of one position is log Σ exp(logits) - logits[target]; counting one more position adds just that. */
static void test_gpt__logits_belong_to_their_position(void **state) {
    run r = small_run(&small);
    model_batch *head = r.batch;
    (void)state;
    for (uint32_t row = 0; row < POSITIONS; row += 5) {
        head->want_logits = 1, head->logits_row = row;
        head->count = row;
        gpt_result before = evaluate(&r);
        head->count = row + 1;
        gpt_result after = evaluate(&r);
        double sum = 0;
        for (int c = 0; c < 256; c++)
            sum += exp(after.logits[c]);
        uint8_t target = gpt_text(r.batch)[row / 9 * 10 + row % 9 + 1];
        assert_true(fabs(after.sum.loss - before.sum.loss - (log(sum) - after.logits[target])) < 1e-5);
    }
    run_destroy(&r);
}

static void test_gpt__a_position_does_not_see_what_follows(void **state) {
    run r = small_run(&small);
    model_batch *head = r.batch;
    (void)state;
    head->want_logits = 1, head->logits_row = 9 + 4;
    gpt_result before = evaluate(&r);
    gpt_text(r.batch)[10 + 5] ^= 1;
    gpt_result same = evaluate(&r);
    gpt_text(r.batch)[10 + 4] ^= 1;
    gpt_result other = evaluate(&r);
    assert_memory_equal(before.logits, same.logits, sizeof before.logits);
    assert_true(norm_of(before.logits, other.logits, 256) > 1e-4);
    run_destroy(&r);
}

static void test_gpt__evaluation_equals_training_without_dropout(void **state) {
    run r = small_run(&small);
    gpt_result e = evaluate(&r), t;
    (void)state;
    assert_int_equal(direct_run(r.d, TESS_PASS_TRAIN, r.batch, 0, 0, &t), TESS_OK);
    assert_true(e.sum.loss == t.sum.loss);
    assert_int_equal(e.sum.correct, t.sum.correct);
    run_destroy(&r);
}

/* Gradients with dropout on against differences of the loss, whose masks stay because step and microbatch do. */
static void test_gpt__gradients_are_derivatives_with_dropout(void **state) {
    model_options o = small;
    o.dropout = 0.3f;
    run r = small_run(&o);
    gpt_result base, up, down;
    double slope = 0, size = 0;
    const float h = 2e-3f;
    (void)state;
    assert_int_equal(direct_run(r.d, TESS_PASS_TRAIN, r.batch, 2, 1, &base), TESS_OK);
    for (int32_t turn = 0; turn < 2; turn++) {
        for (int32_t p = 0; p < r.m->desc.n_params; p++)
            for (int64_t i = 0; i < r.m->desc.params[p].elems; i++) {
                float v = 2 * batch_uniform((uint32_t)i, (uint32_t)p, 77) - 1;
                double g = (double)direct_grad(r.d, p)[i];
                slope += turn ? 0 : g * v;
                size += turn ? 0 : g * g;
                direct_param(r.d, p)[i] += turn ? -2 * h * v : h * v;
            }
        assert_int_equal(direct_run(r.d, TESS_PASS_TRAIN, r.batch, 2, 1, turn ? &down : &up), TESS_OK);
    }
    double difference = (up.sum.loss - down.sum.loss) / POSITIONS / (2.0 * (double)h);
    assert_true(fabs(base.sum.loss / POSITIONS - evaluate(&r).sum.loss / POSITIONS) > 1e-4);
    if (!(fabs(difference - slope) <= 2e-2 * sqrt(size)))
        fail_msg("slope %g by differences, %g by gradients of size %g", difference, slope, sqrt(size));
    run_destroy(&r);
}

static void test_gpt__dropout_follows_the_sample(void **state) {
    model_options o = small, one = small;
    gpt_result all;
    double parts = 0;
    (void)state;
    o.dropout = one.dropout = 0.5f;
    one.batch = 1;
    run a = small_run(&o), b = run_create("gpt", &one);
    assert_int_equal(direct_run(a.d, TESS_PASS_TRAIN, a.batch, 1, 0, &all), TESS_OK);
    for (uint64_t s = 0; s < 3; s++) {
        gpt_result part;
        gpt_batch_fill(&b, s);
        assert_int_equal(direct_run(b.d, TESS_PASS_TRAIN, b.batch, 1, s, &part), TESS_OK);
        parts += part.sum.loss;
    }
    assert_true(fabs(parts - all.sum.loss) < 1e-4);
    run_destroy(&a);
    run_destroy(&b);
}

static void test_gpt__bad_options_and_batches_are_refused(void **state) {
    static const struct {
        model_options o;
        const char *message;
    } bad[] = {
        { { .width = 10, .heads = 3 }, "heads 3: expected a divisor of width 10" },
        { { .layers = -1 }, "layers -1: expected 1 to 1000" },
        { { .batch = -4 }, "batch -4: expected 1 to 65536" },
        { { .dropout = 1 }, "dropout 1: expected below 1" },
        { { .batch = 65536, .context = 4096 },
          "context 4096 with batch 65536: expected 1 to 16777216 positions in a batch" },
    };
    model *m = NULL;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(model_create("gpt", &bad[i].o, &m), TESS_E_INVALID);
        assert_string_equal(tess_last_error(), bad[i].message);
        assert_null(m);
    }
    assert_int_equal(model_create("bert", NULL, &m), TESS_E_INVALID);
    assert_string_equal(tess_last_error(), "model \"bert\" is unknown: expected one of mnist, gpt, gpt2, llama, qwen2, "
                                           "qwen3, mistral, gemma2, gemma3, linear, convbn");
    run r = small_run(&small);
    ((model_batch *)r.batch)->count = POSITIONS + 1;
    assert_int_equal(direct_run(r.d, TESS_PASS_EVAL, r.batch, 0, 0, NULL), TESS_E_DATA);
    assert_string_equal(tess_last_error(), "gpt: 28 target positions in a batch of 27");
    run_destroy(&r);
}

static void test_gpt__normal_values_have_their_deviation(void **state) {
    run r = run_create("gpt", &(model_options){ .operators = "plain", .seed = 9 });
    (void)state;
    const int params[2] = { 4, 6 }; /* c_attn, and c_proj on the residual path */
    const double deviation[2] = { 0.02, 0.02 / sqrt(8) };
    for (int k = 0; k < 2; k++) {
        int64_t elems = r.m->desc.params[params[k]].elems;
        double found = norm_of(direct_param(r.d, params[k]), NULL, elems) / sqrt((double)elems), mean = 0;
        for (int64_t i = 0; i < elems; i++)
            mean += direct_param(r.d, params[k])[i] / (double)elems;
        assert_true(fabs(found / deviation[k] - 1) < 0.02);
        assert_true(fabs(mean) < 4 * deviation[k] / sqrt((double)elems));
    }
    run_destroy(&r);
}

/* Kernels that store leave nothing of what was there, and end in the bits of those that add to zeros. */
static void stores_as_it_adds(const char *name, model_options o) {
    run r = run_create(name, &o);
    const model_desc *d = &r.m->desc;
    model_batch *head = r.batch;
    memset(r.batch, 0, d->input_bytes);
    head->count = (uint32_t)(o.batch * o.context - 1); /* the last row counts not */
    for (int32_t i = 0; i < o.batch * (o.context + 1); i++)
        if (strcmp(name, "gpt") == 0)
            gpt_text(r.batch)[i] = (uint8_t)(i * 37);
        else
            lm_tokens(r.batch)[i] = i * 37 % 64;
    float **added = calloc((size_t)d->n_params, sizeof *added);
    direct_zero_grads(r.d);
    assert_int_equal(direct_run(r.d, TESS_PASS_TRAIN, r.batch, 0, 0, NULL), TESS_OK);
    for (int32_t i = 0; i < d->n_params; i++) {
        size_t bytes = (size_t)d->params[i].elems * sizeof(float);
        added[i] = memcpy(malloc(bytes + 1), direct_grad(r.d, i), bytes);
        memset(direct_grad(r.d, i), 0xff, bytes); /* NaN */
    }
    assert_true(r.m->may_store);
    r.m->stores_grads = 1;
    direct_zero_grads(r.d);
    assert_int_equal(direct_run(r.d, TESS_PASS_TRAIN, r.batch, 0, 0, NULL), TESS_OK);
    for (int32_t i = 0; i < d->n_params; i++) {
        for (int64_t k = 0; k < d->params[i].elems; k++)
            if (direct_grad(r.d, i)[k] != added[i][k])
                fail_msg("%s: %s[%d]: %g and %g", name, d->params[i].name, (int)k, (double)direct_grad(r.d, i)[k],
                         (double)added[i][k]);
        free(added[i]);
    }
    free(added);
    run_destroy(&r);
}

static void test_gpt__gradients_are_stored_in_the_bits_that_are_added(void **state) {
    (void)state;
    static const char *const names[] = { "gpt", "gpt2", "llama" };
    for (int i = 0; i < 3; i++)
        for (int32_t variant = 0; variant < 4; variant++)
            for (int32_t plain = 0; plain < 2; plain++) {
                model_options o = { .batch = 6, .layers = 2, .width = 48, .heads = 3, .context = 32 };
                o.untied = variant & 1, o.half_units = variant >> 1;
                o.decoder.vocabulary = i ? 64 : 0;
                o.operators = plain ? "plain" : NULL;
                stores_as_it_adds(names[i], o);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt__defaults_and_names),
        cmocka_unit_test(test_gpt__first_loss_is_that_of_a_guess),
        cmocka_unit_test(test_gpt__logits_belong_to_their_position),
        cmocka_unit_test(test_gpt__a_position_does_not_see_what_follows),
        cmocka_unit_test(test_gpt__evaluation_equals_training_without_dropout),
        cmocka_unit_test(test_gpt__gradients_are_derivatives_with_dropout),
        cmocka_unit_test(test_gpt__dropout_follows_the_sample),
        cmocka_unit_test(test_gpt__bad_options_and_batches_are_refused),
        cmocka_unit_test(test_gpt__normal_values_have_their_deviation),
        cmocka_unit_test(test_gpt__gradients_are_stored_in_the_bits_that_are_added),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
