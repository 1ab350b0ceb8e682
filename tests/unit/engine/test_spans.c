/* SPDX-License-Identifier: BSD-3-Clause */
/* tess_trace and tess_trace_each: what a program sees of a step that was recorded. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>

#include "tests/support/toy.h"

typedef struct {
    int n, blocks;
    double last;
} seen;

static tess_status look(void *user, const tess_span *span) {
    seen *s = user;
    assert_true(span->seconds >= 0);
    assert_true(span->start >= s->last);
    s->last = span->start;
    s->n++;
    s->blocks += span->block >= 0;
    return TESS_OK;
}

static tess_status stop(void *user, const tess_span *span) {
    (void)span;
    ++*(int *)user;
    return TESS_E_INVALID;
}

static void test_spans__a_recorded_step_is_shown_in_order(void **state) {
    (void)state;
    setenv("TESSERA_LOG", "error", 1);
    tess *t = NULL;
    toy m;
    double loss;
    int calls = 0;
    seen first = { .n = 0 }, second = { .n = 0 }, none = { .n = 0 };
    tess_options o = { .struct_size = sizeof o, .optimizer = "sgd", .input_bytes = TOY_INPUT_BYTES };
    tess_optimizer_options step = { .struct_size = sizeof step, .lr = 0.01f };
    assert_int_equal(tess_open(&o, &t), TESS_OK);
    assert_int_equal(toy_declare(t, &m, 1), TESS_OK);
    assert_int_equal(tess_shard(t, toy_fill, NULL), TESS_OK);
    assert_int_equal(tess_trace(t, 1000), TESS_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(toy_run(t, TESS_PASS_TRAIN, i, &step, &loss), TESS_OK);
    assert_int_equal(tess_trace_each(t, 0, look, &first), TESS_OK);
    assert_int_equal(tess_trace_each(t, 1, look, &second), TESS_OK);
    assert_int_equal(tess_trace_each(t, 7, look, &none), TESS_OK);
    assert_true(first.blocks >= 2 * TOY_SCOPES); /* a forward and a backward of each */
    assert_int_equal(first.n, second.n);
    assert_int_equal(none.n, 0);
    assert_int_equal(tess_trace_each(t, 0, stop, &calls), TESS_E_INVALID);
    assert_int_equal(calls, 1);
    tess_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_spans__a_recorded_step_is_shown_in_order) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
