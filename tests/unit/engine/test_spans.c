/* SPDX-License-Identifier: BSD-3-Clause */
/* tess_trace and tess_trace_each: what a program sees of a step that was recorded. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "tests/support/toy.h"
#include "tests/unit/said.h"

typedef struct {
    int n, blocks;
    double last, seconds;
} seen;

static tess_status look(void *user, const tess_span *span) {
    seen *s = user;
    assert_true(span->seconds >= 0);
    assert_true(span->start >= s->last);
    s->last = span->start;
    s->seconds += span->seconds;
    s->n++;
    s->blocks += span->block >= 0;
    return TESS_OK;
}

/* Writes each span down: operation, what it is about, its block and unit. One rank's sum of the norm waits for nothing,
 * but on a busy machine it can take the microsecond from which on waits are recorded. */
static tess_status write_down(void *user, const tess_span *s) {
    (void)user;
    if (strcmp(s->op, "all_reduce_norm") == 0)
        return TESS_OK;
    assert_string_equal(s->lane, "compute");
    assert_true(s->seconds >= 0 && !s->wait && s->struct_size == sizeof *s);
    say("%s", s->op);
    if (s->unit[0])
        say(" %s", s->unit);
    if (s->block >= 0 || s->unit_index >= 0)
        say(" %d:%d", s->block, s->unit_index);
    say("; ");
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
    assert_true(first.seconds > 0 && first.seconds < 60);
    assert_int_equal(none.n, 0);
    assert_int_equal(tess_trace_each(t, 0, stop, &calls), TESS_E_INVALID);
    assert_int_equal(calls, 1);
    tess_close(t);
}

#define STEP                                                                                                           \
    "norm embed.weight -1:0; norm h.0 -1:1; norm h.1 -1:2; norm h.2 -1:3; norm head -1:4; norm_result; "               \
    "optimizer embed.weight -1:0; optimizer h.0 -1:1; optimizer h.1 -1:2; optimizer h.2 -1:3; optimizer head -1:4; "

/* All but what takes no time: places of memory, and ends. */
static void test_spans__one_rank_shows_each_piece_of_its_work(void **state) {
    for (int blocks = 0; blocks < 2; blocks++) {
        tess *t = NULL;
        toy m;
        double loss;
        tess_options o = { .struct_size = sizeof o, .optimizer = "sgd", .input_bytes = TOY_INPUT_BYTES };
        const tess_optimizer_options step = { .struct_size = sizeof step, .lr = 0.01f, .clip_norm = 1 };
        (void)state;
        setenv("TESSERA_LOG", "error", 1);
        assert_int_equal(tess_open(&o, &t), TESS_OK);
        assert_int_equal(toy_declare(t, &m, blocks ? TOY_BLOCKS : 0), TESS_OK);
        assert_int_equal(tess_shard(t, toy_fill, NULL), TESS_OK);
        assert_int_equal(tess_trace(t, 1000), TESS_OK);
        if (blocks)
            assert_int_equal(toy_run(t, TESS_PASS_TRAIN, 0, &step, &loss), TESS_OK);
        else {
            assert_int_equal(toy_pass(t, &m, TESS_PASS_TRAIN, 0, &loss), TESS_OK);
            assert_int_equal(tess_step(t, &step), TESS_OK);
        }
        assert_int_equal(tess_trace_each(t, 0, write_down, NULL), TESS_OK);
        expect_said(
            blocks
                ? "input; forward embed 0:-1; forward h.0 1:-1; forward h.1 2:-1; forward h.2 3:-1; forward head 4:-1; "
                  "result head 4:-1; zero; zero; backward head 4:-1; zero; backward h.2 3:-1; zero; backward h.1 2:-1; "
                  "zero; backward h.0 1:-1; backward embed 0:-1; zero; " STEP
                : "forward embed; forward h.0; forward h.1; forward h.2; forward head; zero; zero; backward head; "
                  "zero; backward h.2; zero; backward h.1; zero; backward h.0; backward embed; zero; " STEP);
        tess_close(t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spans__a_recorded_step_is_shown_in_order),
        cmocka_unit_test(test_spans__one_rank_shows_each_piece_of_its_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
