/* SPDX-License-Identifier: BSD-3-Clause */
/* An audit as instructions, and its bytes: which blocks have one in which passes, what lives how long, and the place of
 * every part of what is sent and of the room in which it is computed again. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "core/base/status.h"
#include "core/plan/audit.h"
#include "core/plan/emit.h"

static struct {
    char said[1024];
    int fail; /* the n-th call from here on */
} world;

__attribute__((format(printf, 1, 2))) static tess_status note(const char *format, ...) {
    va_list args;
    char *end = world.said + strlen(world.said);
    va_start(args, format);
    vsnprintf(end, sizeof world.said - strlen(world.said), format, args);
    va_end(args);
    strcat(world.said, "; ");
    return world.fail && --world.fail == 0 ? tess__fail(TESS_E_NOMEM, "no memory") : TESS_OK;
}

static const char *role_name(int role) {
    return role == TESS__AUDIT_SENT      ? "sent"
           : role == TESS__AUDIT_WORK    ? "work"
           : role == TESS__AUDIT_FOUND   ? "found"
           : role == TESS__AUDIT_SCRATCH ? "scratch"
                                         : "?";
}

static tess_status alloc(tess__compiler *b, int role, int32_t index, uint8_t category, int32_t unit, uint64_t bytes,
                         uint8_t flags) {
    (void)b;
    assert_int_equal(unit, -1);
    assert_int_equal(category, role == TESS__AUDIT_WORK ? TESS_CAT_TEMPORARY : TESS_CAT_COMM);
    return note("%s%d %llu%s", role_name(role), (int)index, (unsigned long long)bytes, flags ? " back" : "");
}

static tess_status free_it(tess__compiler *b, int role, int32_t index) {
    (void)b;
    return note("no %s%d", role_name(role), (int)index);
}

static tess_status scratch(tess__compiler *b, int role, int32_t index, int32_t unit, tess__planned_collective *c) {
    (void)b;
    assert_int_equal(unit, -1);
    assert_true(c->op == TESS_ALL_GATHER && c->which == TESS__WORLD && c->send_dtype == TESS_U8 &&
                c->recv_dtype == TESS_U8);
    c->scratch = 5;
    return note("%s%d", role_name(role), (int)index);
}

static tess_status post(tess__compiler *b, uint8_t op, uint8_t flags, int32_t index,
                        const tess__planned_collective *c) {
    (void)b;
    assert_int_equal(c->scratch, 5);
    return note("%s%d %llu%s",
                op == TESS__AUDIT_SEND ? "send"
                : op == TESS__AUDIT    ? "audit"
                                       : "?",
                (int)index, (unsigned long long)c->count,
                flags == TESS__OF_BACKWARD ? " back"
                : flags                    ? " ?"
                                           : "");
}

#define tess__emit_alloc alloc
#define tess__emit_free free_it
#define tess__emit_scratch scratch
#define tess__emit_post post
#include "core/plan/compile_audit.c"

/* Three blocks. The first and the last share a weight of 100 fp32, which the first has under two names; the middle one
 * has one of 16 and a frozen one; the last has a buffer beside it. */
static tess__param params[] = {
    { .tied_to = 0, .group = 0, .elems = 100 },
    { .tied_to = 0, .group = 0, .elems = 100 },
    { .tied_to = 2, .group = 1, .elems = 33 },
    { .tied_to = 3, .group = 0, .elems = 16 },
    { .tied_to = 4, .group = 0, .elems = 99, .flags = TESS_FROZEN },
    { .tied_to = 5, .group = -1, .elems = 98, .flags = TESS_BUFFER },
};
static int32_t first[] = { 0, 2, 1 }, middle[] = { 3, 4 }, last[] = { 5, 0 };
static tess__scope scopes[] = { { .n_params = 3, .params = first },
                                { .n_params = 2, .params = middle },
                                { .n_params = 2, .params = last } };
static tess__block blocks[] = {
    { .scope = 0,
      .options = { .flags = TESS_BLOCK_AUDIT,
                   .output_bytes = 100,
                   .saved_bytes = 65,
                   .forward_scratch_bytes = 1,
                   .backward_scratch_bytes = 129 } },
    { .scope = 1, .options = { .output_bytes = 200, .saved_bytes = 64, .forward_scratch_bytes = 200 } },
    { .scope = 2,
      .options = { .flags = TESS_BLOCK_AUDIT | TESS_BLOCK_KEEP,
                   .output_bytes = 8,
                   .forward_scratch_bytes = 70,
                   .backward_scratch_bytes = 64 } },
};
static const tess__model model = {
    .params = params, .n_params = 6, .scopes = scopes, .n_scopes = 3, .blocks = blocks, .n_blocks = 3
};
static tess__group groups[] = { { .grad_local = TESS_F32 }, { .grad_local = TESS_BF16 } };
static const tess__layout layout = { .groups = groups, .n_groups = 2 };
static tess__setup setup;
static tess__program program;

static tess__compiler begin(uint32_t kind, int32_t nranks, int32_t every) {
    memset(&world, 0, sizeof world);
    setup = (tess__setup){ .nranks = nranks, .audit_every = every, .input_bytes = 70 };
    program.kind = kind;
    return (tess__compiler){ .setup = &setup, .model = &model, .layout = &layout, .p = &program };
}

static void test_compile_audit__gradients_and_sums_have_one_place_for_each_parameter(void **state) {
    (void)state;
    static const uint64_t grads[] = { 0, 448, 0,
                                      448 + 128 }; /* 400 rounded up, then 66; the third is the first again */
    static const uint64_t middles[] = { 0, 64, 64 }, lasts[] = { 0, 0, 448 };
    for (int32_t k = 0; k < 4; k++) {
        assert_int_equal(tess__audit_grads_before(&model, &layout, 0, k), grads[k]);
        assert_int_equal(tess__audit_sums_before(&model, &layout, 0, k), k == 1 || k == 3 ? 448 : 0);
    }
    for (int32_t k = 0; k < 3; k++) {
        assert_int_equal(tess__audit_grads_before(&model, &layout, 1, k), middles[k]);
        assert_int_equal(tess__audit_grads_before(&model, &layout, 2, k), lasts[k]);
        assert_int_equal(tess__audit_sums_before(&model, &layout, 1, k), 0);
        assert_int_equal(tess__audit_sums_before(&model, &layout, 2, k), 0);
    }
    static const int adds[3][3] = { { 1, 0, 1 }, { 0, 0, 0 }, { 0, 0, 0 } };
    for (int32_t b = 0; b < 3; b++)
        for (int32_t k = 0; k < scopes[b].n_params; k++)
            assert_int_equal(tess__audit_adds(&model, b, k), adds[b][k]);
    static const uint64_t bytes[] = { 400, 400, 66, 64, 0, 0 };
    for (int i = 0; i < 6; i++)
        assert_int_equal(tess__audit_grad_bytes(&layout, &params[i]), bytes[i]);
}

static void expect_room(int32_t block, int backward, tess__audit_room want) {
    const tess__audit_room got = tess__audit_room_of(&setup, &model, &layout, block, backward);
    assert_int_equal(got.batch, want.batch);
    assert_int_equal(got.input, want.input);
    assert_int_equal(got.grad_output, want.grad_output);
    assert_int_equal(got.sums, want.sums);
    assert_int_equal(got.sent_bytes, want.sent_bytes);
    assert_int_equal(got.output, want.output);
    assert_int_equal(got.saved, want.saved);
    assert_int_equal(got.scratch, want.scratch);
    assert_int_equal(got.grad_input, want.grad_input);
    assert_int_equal(got.grads, want.grads);
    assert_int_equal(got.work_bytes, want.work_bytes);
}

static void test_compile_audit__each_part_has_its_place(void **state) {
    (void)state;
    (void)begin(TESS_PASS_TRAIN, 2, 1);
    /* Behind a head of 64: the batch of 70 and the input. In the room the output, what is saved, scratch. */
    expect_room(0, 0, (tess__audit_room){ 64, 192, 192, 192, 192, 0, 128, 256, 320, 320, 320 });
    expect_room(0, 1, (tess__audit_room){ 64, 192, 192, 320, 768, 0, 128, 256, 448, 448, 448 + 576 });
    expect_room(1, 0, (tess__audit_room){ 64, 192, 320, 320, 320, 0, 256, 320, 576, 576, 576 });
    expect_room(1, 1, (tess__audit_room){ 64, 192, 320, 576, 576, 0, 256, 320, 576, 704, 768 });
    expect_room(2, 0, (tess__audit_room){ 64, 192, 448, 448, 448, 0, 64, 64, 192, 192, 192 });
    expect_room(2, 1, (tess__audit_room){ 64, 192, 448, 448, 448, 0, 64, 64, 192, 448, 448 + 448 });
}

static void test_compile_audit__a_blocks_inputs_go_out_and_its_digests_come(void **state) {
    (void)state;
    tess__compiler b = begin(TESS_PASS_TRAIN, 3, 4);
    assert_int_equal(tess__audit_begin(&b, TESS__FORWARD_BEGIN, 0), TESS_OK);
    assert_int_equal(tess__audit_end(&b, TESS__FORWARD_END, 0), TESS_OK);
    assert_string_equal(world.said, "sent0 576; scratch0; send0 192; no scratch0; work0 320; found0 192; scratch0; "
                                    "audit0 64; no scratch0; no found0; no work0; no sent0; ");
    b = begin(TESS_PASS_TRAIN | 16, 3, 4);
    assert_int_equal(tess__audit_begin(&b, TESS__BACKWARD_BEGIN, 0), TESS_OK);
    assert_int_equal(tess__audit_end(&b, TESS__BACKWARD_END, 0), TESS_OK);
    assert_string_equal(world.said,
                        "sent0 2304 back; scratch0; send0 768 back; no scratch0; work0 1024 back; found0 192; "
                        "scratch0; audit0 64 back; no scratch0; no found0; no work0; no sent0; ");
}

static void test_compile_audit__nothing_of_it_where_there_is_none(void **state) {
    (void)state;
    static const struct {
        uint32_t kind;
        int32_t nranks, every, block;
        uint8_t type;
    } none[] = { { TESS_PASS_EVAL, 2, 1, 0, TESS__FORWARD_BEGIN },
                 { TESS_PASS_TRAIN, 1, 1, 0, TESS__FORWARD_BEGIN },
                 { TESS_PASS_TRAIN, 2, 0, 0, TESS__BACKWARD_BEGIN },
                 { TESS_PASS_TRAIN, 2, 1, 1, TESS__BACKWARD_BEGIN }, /* promises no bits */
                 { TESS_PASS_TRAIN, 2, 1, 0, TESS__RECOMPUTE_BEGIN },
                 { TESS_PASS_TRAIN, 2, 1, 2, TESS__RECOMPUTE_END } };
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        tess__compiler b = begin(none[i].kind, none[i].nranks, none[i].every);
        assert_int_equal(tess__audit_begin(&b, none[i].type, none[i].block), TESS_OK);
        assert_int_equal(tess__audit_end(&b, none[i].type, none[i].block), TESS_OK);
        assert_string_equal(world.said, "");
    }
    (void)begin(TESS_PASS_TRAIN, 2, 1);
    assert_true(tess__audit_covers(&setup, &model, 0, 0) && tess__audit_covers(&setup, &model, 2, 0));
    assert_true(tess__audit_covers(&setup, &model, 0, 1) && tess__audit_covers(&setup, &model, 2, 1));
    assert_false(tess__audit_covers(&setup, &model, 1, 0) || tess__audit_covers(&setup, &model, 1, 1));
}

/* Forward has no result to compare where backward writes it. */
static void test_compile_audit__a_late_result_is_audited_with_backward(void **state) {
    (void)state;
    tess__compiler b = begin(TESS_PASS_TRAIN, 2, 1);
    blocks[0].options.flags |= TESS_BLOCK_LATE_RESULT; /* not heeded: it is not the last */
    blocks[2].options.flags |= TESS_BLOCK_LATE_RESULT;
    assert_int_equal(tess__audit_begin(&b, TESS__FORWARD_BEGIN, 2), TESS_OK);
    assert_int_equal(tess__audit_end(&b, TESS__FORWARD_END, 2), TESS_OK);
    assert_string_equal(world.said, "");
    assert_int_equal(tess__audit_begin(&b, TESS__BACKWARD_BEGIN, 2), TESS_OK);
    assert_non_null(strstr(world.said, "send2 "));
    assert_int_equal(tess__audit_end(&b, TESS__BACKWARD_END, 2), TESS_OK);
    assert_non_null(strstr(world.said, "audit2 64 back"));
    assert_int_equal(tess__audit_begin(&b, TESS__FORWARD_BEGIN, 0), TESS_OK);
    assert_non_null(strstr(world.said, "send0 "));
    blocks[0].options.flags &= ~(uint32_t)TESS_BLOCK_LATE_RESULT;
    blocks[2].options.flags &= ~(uint32_t)TESS_BLOCK_LATE_RESULT;
}

static void test_compile_audit__a_failure_is_passed_on_at_once(void **state) {
    (void)state;
    for (int fail = 1; fail <= 12; fail++) {
        tess__compiler b = begin(TESS_PASS_TRAIN, 2, 1);
        world.fail = fail;
        tess_status s = tess__audit_begin(&b, TESS__FORWARD_BEGIN, 2);
        s = s ? s : tess__audit_end(&b, TESS__FORWARD_END, 2);
        int calls = 0;
        for (const char *at = world.said; (at = strchr(at, ';')); at++)
            calls++;
        assert_int_equal(s, TESS_E_NOMEM);
        assert_int_equal(calls, fail);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_compile_audit__gradients_and_sums_have_one_place_for_each_parameter),
        cmocka_unit_test(test_compile_audit__each_part_has_its_place),
        cmocka_unit_test(test_compile_audit__a_blocks_inputs_go_out_and_its_digests_come),
        cmocka_unit_test(test_compile_audit__nothing_of_it_where_there_is_none),
        cmocka_unit_test(test_compile_audit__a_late_result_is_audited_with_backward),
        cmocka_unit_test(test_compile_audit__a_failure_is_passed_on_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
