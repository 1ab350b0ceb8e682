/* SPDX-License-Identifier: BSD-3-Clause */
/* Targets that do not count, and documents that share a sample: each as if it were alone. */
#include "models_common.h"

#include <stdio.h>

enum { VOCABULARY = 61 };

/* Families with caps have windows in their first layer. */
static model_options options_of(const char *name, int32_t batch, int32_t context, const char *operators) {
    model_options o = { .batch = batch, .layers = 2, .width = 24, .heads = 3, .context = context };
    o.decoder.vocabulary = VOCABULARY;
    o.operators = operators;
    if (strncmp(name, "gemma", 5) != 0)
        return o;
    o.decoder.kv_heads = 1, o.decoder.feed = 36;
    o.decoder.window = context > 100 ? 30 : 5, o.decoder.window_every = 2;
    o.decoder.attention_cap = 0.5, o.decoder.logit_cap = 1.5, o.decoder.rope_local_theta = 30;
    return o;
}

static model_batch *clear(run *r) {
    memset(r->batch, 0, r->m->desc.input_bytes);
    model_batch *head = r->batch;
    head->count = (uint32_t)(r->m->options.batch * r->m->options.context);
    return head;
}

/* Token t of document n. */
static int32_t token_of(int64_t n, int64_t t) {
    return (int32_t)(philox_at(7, PHILOX_BATCH, (uint64_t)t, (uint32_t)n, 9).v[0] % VOCABULARY);
}

static model_result train(run *r) {
    model_result *out = calloc(1, r->m->desc.result_bytes), result;
    assert_non_null(out);
    assert_int_equal(direct_run(r->d, TESS_PASS_TRAIN, r->batch, 0, 0, out), TESS_OK);
    result = *out;
    free(out);
    return result;
}

/* The gradients of all parameters, behind each other. */
static float *gradients(run *r, int64_t *n) {
    float *all = NULL;
    *n = 0;
    for (int32_t i = 0; i < r->m->desc.n_params; i++) {
        int64_t elems = r->m->desc.params[i].alias_of[0] ? 0 : r->m->desc.params[i].elems;
        assert_non_null(all = realloc(all, (size_t)(*n + elems + 1) * sizeof *all));
        memcpy(all + *n, direct_grad(r->d, i), (size_t)elems * sizeof *all);
        *n += elems;
    }
    return all;
}

/* The last rows by marks, and by a count that leaves them out: the same bits. */
static void ignores(const char *name, const char *operators) {
    model_options o = options_of(name, 2, 9, operators);
    run r = run_create(name, &o);
    int64_t n;
    model_batch *head = clear(&r);
    for (int64_t i = 0; i < 20; i++)
        lm_tokens(r.batch)[i] = token_of(0, i);
    head->count = 13;
    direct_zero_grads(r.d);
    model_result counted = train(&r);
    float *expected = gradients(&r, &n);
    head->count = 18;
    head->divisor = 13;
    for (int64_t i = 15; i < 20; i++) /* targets 4 … 8 of the second sample */
        lm_tokens(r.batch)[i] |= LM_IGNORED;
    direct_zero_grads(r.d);
    model_result marked = train(&r);
    float *got = gradients(&r, &n);
    assert_memory_equal(got, expected, (size_t)n * sizeof *got);
    assert_true(marked.loss == counted.loss && marked.divisor == 13 && counted.divisor == 0);
    assert_int_equal(marked.count, 13);
    assert_int_equal(marked.correct, counted.correct);
    head->divisor = 26; /* of a step with another, longer microbatch */
    direct_zero_grads(r.d);
    train(&r);
    free(got);
    got = gradients(&r, &n);
    for (int64_t i = 0; i < n; i++)
        assert_true(fabsf(2 * got[i] - expected[i]) <= 1e-6f * (1 + fabsf(expected[i])));
    lm_tokens(r.batch)[19] = VOCABULARY | LM_IGNORED; /* it is no token all the same */
    assert_int_equal(direct_run(r.d, TESS_PASS_TRAIN, r.batch, 0, 0, NULL), TESS_E_DATA);
    free(got);
    free(expected);
    run_destroy(&r);
}

/* Document n into sample `row`, from `at` on; its last token is a target alone. */
static void put(run *r, int64_t row, int64_t at, int64_t n, int64_t length) {
    int32_t *tokens = lm_tokens(r->batch) + row * (r->m->options.context + 1);
    for (int64_t t = 0; t < length; t++)
        tokens[at + t] = token_of(n, t) | (t == 0 ? LM_BEGINS | LM_IGNORED : 0);
}

static void ignore_from(run *r, int64_t row, int64_t at) {
    for (; at <= r->m->options.context; at++)
        lm_tokens(r->batch)[row * (r->m->options.context + 1) + at] = LM_IGNORED;
}

/* Documents that share samples have the loss and, added up, the gradients of each alone. */
static void packs(const char *name, int32_t context, const int64_t (*lengths)[4], const char *operators) {
    model_options o = options_of(name, 2, context, operators), one = options_of(name, 1, context, operators);
    run packed = run_create(name, &o), alone = run_create(name, &one);
    int64_t n, targets = 0;
    double loss = 0;
    model_batch *head = clear(&packed);
    head->packed = 1;
    for (int64_t row = 0; row < 2; row++) {
        int64_t at = 0;
        for (int64_t k = 0; k < 4; at += lengths[row][k++]) {
            put(&packed, row, at, 4 * row + k, lengths[row][k]);
            targets += lengths[row][k] - 1;
        }
        assert_true(at <= context + 1);
        ignore_from(&packed, row, at);
    }
    head->divisor = (double)targets;
    direct_zero_grads(packed.d);
    direct_zero_grads(alone.d);
    model_result all = train(&packed);
    for (int64_t k = 0; k < 8; k++) {
        clear(&alone)->divisor = (double)targets;
        put(&alone, 0, 0, k, lengths[k / 4][k % 4]);
        ignore_from(&alone, 0, lengths[k / 4][k % 4]);
        loss += train(&alone).loss;
    }
    float *got = gradients(&packed, &n), *expected = gradients(&alone, &n);
    assert_int_equal(all.count, targets);
    assert_true(fabs(all.loss - loss) <= 1e-6 * loss);
    double off = norm_of(got, expected, n) / norm_of(expected, NULL, n);
    print_message("%s, context %d, %s: gradients %.2g off\n", name, context, packed.m->operators, off);
    assert_true(off <= 1e-6);
    head->packed = 0; /* without it they see each other */
    assert_true(fabs(train(&packed).loss - loss) > 1e-4 * loss);
    free(got);
    free(expected);
    run_destroy(&packed);
    run_destroy(&alone);
}

static void test_targets__ignored_ones_are_as_if_they_were_not_there(void **state) {
    (void)state;
    ignores("gpt2", "plain"), ignores("gpt2", NULL);
    ignores("llama", "plain"), ignores("llama", NULL);
    ignores("gemma2", "plain"), ignores("gemma3", NULL);
}

static void test_targets__documents_of_a_packed_sample_are_as_if_alone(void **state) {
    static const int64_t few[2][4] = { { 5, 1, 11, 7 }, { 2, 17, 3, 1 } };
    static const int64_t many[2][4] = { { 70, 500, 2, 9 }, { 64, 64, 300, 173 } };
    (void)state;
    packs("gpt2", 24, few, "plain"), packs("gpt2", 24, few, NULL);
    packs("llama", 24, few, "plain"), packs("llama", 24, few, NULL);
    packs("llama", 600, many, NULL), packs("gpt2", 600, many, NULL);
    packs("gemma2", 24, few, "plain"), packs("gemma3", 24, few, NULL), packs("gemma2", 600, many, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_targets__ignored_ones_are_as_if_they_were_not_there),
        cmocka_unit_test(test_targets__documents_of_a_packed_sample_are_as_if_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
