/* SPDX-License-Identifier: BSD-3-Clause */
/* What a span is called, and what it is about. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <string.h>

#include "core/layout/layout.h"
#include "core/readers/span.h"

static const char *op_of(int track, int op, int event) {
    return tess__span_op(&(tess__span){ .track = (uint8_t)track, .op = (uint8_t)op, .event = (uint8_t)event });
}

static void test_span__an_operation_is_named_by_what_ran_where(void **state) {
    (void)state;
    assert_string_equal(op_of(TESS__TRACK_COMPUTE, TESS__ENTER, TESS__FORWARD_BEGIN), "forward");
    assert_string_equal(op_of(TESS__TRACK_COMPUTE, TESS__ENTER, TESS__BACKWARD_BEGIN), "backward");
    assert_string_equal(op_of(TESS__TRACK_COMPUTE, TESS__ENTER, TESS__FORWARD_END), "recompute");
    assert_string_equal(op_of(TESS__TRACK_COMPUTE, TESS__GATHER, 0), "cast_shard");
    assert_string_equal(op_of(TESS__TRACK_COMM, TESS__GATHER, 0), "all_gather");
    assert_string_equal(op_of(TESS__TRACK_COMPUTE, TESS__REDUCE, 0), "average");
    assert_string_equal(op_of(TESS__TRACK_COMM, TESS__REDUCE, 0), "reduce_scatter");
    assert_string_equal(op_of(TESS__TRACK_UP, TESS__PREFETCH, 0), "fetch");
    assert_string_equal(op_of(TESS__TRACK_DOWN, TESS__OFFLOAD, 0), "stow");
    assert_string_equal(op_of(TESS__TRACK_COMPUTE, TESS__RELOAD_WAIT, 0), "wait_unstow");
    assert_string_equal(op_of(TESS__TRACK_COMPUTE, 0, 0), "?");
    assert_string_equal(op_of(TESS__TRACK_COMPUTE, 255, 0), "?");
    assert_string_equal(tess__track_name(TESS__TRACK_COMPUTE), "compute");
    assert_string_equal(tess__track_name(TESS__TRACK_HOST), "host");
    assert_string_equal(tess__track_name(TESS__N_TRACKS), "?");
}

static int waits(int track, int op) {
    return tess__span_is_wait(&(tess__span){ .track = (uint8_t)track, .op = (uint8_t)op });
}

static void test_span__only_the_engines_thread_waits(void **state) {
    (void)state;
    static const int ops[] = { TESS__GATHER_WAIT,   TESS__REDUCE_WAIT, TESS__REPLICATE_WAIT,
                               TESS__PREFETCH_WAIT, TESS__HOST_WAIT,   TESS__OFFLOAD_WAIT,
                               TESS__RELOAD_WAIT,   TESS__NORM_REDUCE, TESS__SHARE_BUFFERS };
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        assert_int_equal(waits(TESS__TRACK_COMPUTE, ops[i]), 1);
        assert_int_equal(waits(TESS__TRACK_COMM, ops[i]), 0);
    }
    assert_false(waits(TESS__TRACK_COMPUTE, TESS__GATHER) || waits(TESS__TRACK_COMPUTE, TESS__OPTIMIZE));
    assert_false(waits(TESS__TRACK_COMPUTE, 0) || waits(TESS__TRACK_COMPUTE, 255));
}

static void test_span__it_is_about_a_scope_a_block_or_a_unit(void **state) {
    (void)state;
    tess__scope scopes[] = { { .name = "a", .block = -1 }, { .name = "b", .block = 1 }, { .name = "c", .block = 0 } };
    tess__block blocks[] = { { .scope = 2 }, { .scope = 1 } };
    tess__group groups[] = { { .unit = 1 }, { .unit = 0 } };
    tess__unit units[] = { { .name = "u0" }, { .name = "u1" } };
    const tess__model m = { .scopes = scopes, .blocks = blocks };
    const tess__layout l = { .groups = groups, .units = units };
    static const struct {
        int op, index, scope, block, unit;
        const char *name;
    } cases[] = {
        { TESS__ENTER, 0, 0, -1, -1, "a" },         { TESS__ENTER, 2, 2, 0, -1, "c" },
        { TESS__RESULT_COPY, 1, 1, 1, -1, "b" },    { TESS__OFFLOAD, 0, 2, 0, -1, "c" },
        { TESS__OFFLOAD_WAIT, 1, 1, 1, -1, "b" },   { TESS__RELOAD, 0, 2, 0, -1, "c" },
        { TESS__RELOAD_WAIT, 0, 2, 0, -1, "c" },    { TESS__INPUT_COPY, 0, -1, -1, -1, "" },
        { TESS__NORM_REDUCE, 0, -1, -1, -1, "" },   { TESS__NORM_FINISH, 0, -1, -1, -1, "" },
        { TESS__SHARE_BUFFERS, 0, -1, -1, -1, "" }, { TESS__ALLOC, 0, -1, -1, -1, "" },
        { TESS__GATHER, 0, -1, -1, 1, "u1" },       { TESS__OPTIMIZE, 1, -1, -1, 0, "u0" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const tess__span s = { .op = (uint8_t)cases[i].op, .index = cases[i].index };
        tess__span_place at = tess__span_about(&s, &m, &l);
        assert_int_equal(at.scope, cases[i].scope);
        assert_int_equal(at.block, cases[i].block);
        assert_int_equal(at.unit, cases[i].unit);
        assert_string_equal(tess__span_unit(&s, &m, &l), cases[i].name);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_span__an_operation_is_named_by_what_ran_where),
        cmocka_unit_test(test_span__only_the_engines_thread_waits),
        cmocka_unit_test(test_span__it_is_about_a_scope_a_block_or_a_unit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
