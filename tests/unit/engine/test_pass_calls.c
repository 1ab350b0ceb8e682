/* SPDX-License-Identifier: BSD-3-Clause */
/* The hooks of a pass alone, with all that they call written down. These tests hold which pointers a scope has, and in
 * which order a pass starts, runs, deviates and ends. They hold what becomes of calls at a wrong time and of failures.
 */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/status.h"
#include "tests/unit/noted.h"
#include "tests/unit/refused.h"
#include "rooms.h"

enum { PARAMS = 5, SCOPES = 2 };
static struct {
    const char *fails; /* the call that fails, by its first word */
    int callocs_left;  /* -1: none fails */
    int guarded;       /* pointers of the guard are written down */
} world;
static tess t;

#define note(...) noted(&world.fails, 1, __VA_ARGS__)
static void *get_memory(size_t n, size_t size) {
    if (world.callocs_left == 0)
        return NULL;
    world.callocs_left -= world.callocs_left > 0;
    return calloc(n, size);
}
static tess_status open_guard(int32_t param, int kind, void *real, void **out) {
    *out = real;
    return world.guarded ? note("open %d%s", param, kind == TESS__GUARD_GRAD ? "g" : "") : TESS_OK;
}
static tess_status close_guard(int32_t param, int kind, const void *real, const char *call, int32_t scope) {
    return note("close %d%s %s %s %d", param, kind == TESS__GUARD_GRAD ? "g" : "", real ? place(real) : "null", call,
                scope);
}
/* Goes on to the next event, or to the end. */
static tess_status execute(int32_t *pc, int how) {
    const tess__program *p = t.pass.program;
    while (*pc < p->n_instrs && how != TESS__TO_WAIT &&
           (how == TESS__TO_END || (p->instrs[*pc].op != TESS__ENTER && p->instrs[*pc].op != TESS__LEAVE)))
        ++*pc;
    return note("run %s", how == TESS__TO_END ? "all" : how == TESS__TO_EVENT ? "on" : "ahead");
}
static tess_status deviate(uint8_t type, int32_t scope) {
    t.memory.deviating = 1;
    return note("deviate %d %d", type, scope);
}
static tess_status fail_engine(tess_status s) {
    say("fail; ");
    return s;
}
static int slot(const tess__program *p) {
    return (int)(p - t.plan.programs);
}
#define tess__engine_check(e) ((e) ? TESS_OK : TESS_E_INVALID)
#define tess__engine_fail(e, s) fail_engine(s)
#define tess__guard_open(e, i, kind, real, out) open_guard(i, kind, real, out)
#define tess__guard_close(e, i, kind, real, call, scope) close_guard(i, kind, real, call, scope)
#define tess__guard_check(e, call) note("check '%s'", call)
#define tess__guard_destroy(g) ((void)note((g) ? "end-guard" : "no-guard"))
#define tess__low_copies_refresh(e) note("refresh")
#define tess__book(m, b, p, in) ((void)note("book %d%s", (b)->index, (p) || (in) ? "?" : ""))
#define tess__check_backward(e) note("backward-check")
#define tess__deviate(e, type, scope) deviate(type, scope)
#define tess__compiler_start(c, p, kind)                                                                               \
    ((void)note("compile %d%s", (int)(kind), (p) == &(t)->pass.deviating_program ? "" : "?"))
#define tess__compiler_event(c, type, scope) note("event %d %d", type, scope)
#define tess__compiler_end(c) note("compiled")
#define tess__first_fit_reset(f, bytes) ((void)note("room %d", (int)(bytes)))
#define tess__execute(e, pc, how) execute(pc, how)
#define tess__overflow_drop(m) ((void)note("drop-overflow"))
#define tess__recompile_pass(e, kind, p) note("recompile %d %d", (int)(kind), slot(p))
static void say_event(const char *what, const tess__event *event) {
    (void)note("%s %d %d", what, event->type, event->scope);
}
static void say_span(const tess__event *event, tess__mark mark) {
    (void)note("span %d %d %d", event->type, event->scope, (int)mark.ns);
}
#define tess__doing_event(e, ...) say_event("doing", __VA_ARGS__)
#define tess__range_event(e, ...) say_event("range", __VA_ARGS__)
#define tess__range_end(e) ((void)note("range-end"))
#define tess__tracing_mark(e, in) ((tess__mark){ .ns = (in) ? 0 : 7 })
#define tess__tracing_event(e, ...) say_span(__VA_ARGS__)
#define calloc get_memory
#include "core/engine/pass.c"
#undef calloc

static tess_status before_pass(tess *e, uint32_t kind) {
    (void)e;
    return note("before %u", kind);
}
static tess_status digest_pass(tess *e) {
    (void)e;
    return note("digest-pass");
}
static tess_status digest_event(tess *e, const tess__event *event) {
    (void)e;
    return note("digest-event %d %d", event->type, event->scope);
}

static tess__param params[PARAMS];
static tess__scope scopes[SCOPES];
static tess__group groups[N_GROUPS];
static tess__instr instrs[8];
static tess__event events[4];
static tess__buffer buffers[3];
static uint8_t booked[TESS__N_ROLES][N_GROUPS];
static tess__mark marks[2 * SCOPES];
static int32_t of_first[] = { 0, 1, 4 }, of_second[] = { 2, 3 };
static char param_names[PARAMS][8] = { "w", "b", "stat", "frozen", "alias" }, scope_names[SCOPES][4] = { "h.0", "h.1" };

/* Forward of both scopes, backward of both, with work in between. */
static int begin(void **state) {
    static const tess__hooks hooks = { .before_pass = before_pass,
                                       .digest_pass = digest_pass,
                                       .digest_event = digest_event };
    (void)state;
    memset(&world, 0, sizeof world);
    world.callocs_left = -1;
    tess__pass_destroy(&t);
    memset(&t, 0, sizeof t);
    memset(booked, 0, sizeof booked);
    memset(marks, 0, sizeof marks);
    place_all(&t);
    for (int r = 0; r < TESS__N_ROLES; r++)
        t.memory.booked[r] = booked[r];
    for (int i = 0; i < PARAMS; i++)
        params[i] =
            (tess__param){ .name = param_names[i], .tied_to = i, .tag = (uint64_t)i, .offset = (uint64_t)(10 * i) };
    params[0].group = params[4].group = 1;
    params[2].flags = TESS_BUFFER;
    params[3].flags = TESS_FROZEN;
    params[4].tied_to = 0;
    params[4].tag = 77;
    params[4].offset = 0;
    for (int i = 0; i < N_GROUPS; i++)
        groups[i] = (tess__group){ .master = TESS_F32, .compute = TESS_BF16, .grad_local = TESS_F32 };
    scopes[0] = (tess__scope){ .name = scope_names[0], .n_params = 3, .params = of_first };
    scopes[1] = (tess__scope){ .name = scope_names[1], .n_params = 2, .params = of_second };
    for (int i = 0; i < 3; i++)
        buffers[i] = (tess__buffer){ .role = i == 1 ? TESS__MASTER : TESS__SHARD_GRAD, .index = i };
    t.hooks = &hooks;
    t.sharded = 1;
    t.plan.model.params = params;
    t.plan.model.n_params = PARAMS;
    t.plan.model.scopes = scopes;
    t.plan.model.n_scopes = SCOPES;
    t.plan.layout.groups = groups;
    t.plan.setup.accum = 1;
    t.plan.resident.buffers = buffers;
    t.plan.resident.n_buffers = 3;
    t.recorder.entered = marks;
    for (int i = 0; i < 8; i++)
        instrs[i] = (tess__instr){ .op = i == 1 || i == 5   ? TESS__ENTER
                                         : i == 3 || i == 6 ? TESS__LEAVE
                                                            : TESS__GATHER };
    for (int i = 0; i < 4; i++) {
        events[i] = (tess__event){ .type = (uint8_t)(TESS__FORWARD_BEGIN + i), .scope = i / 2 };
        instrs[i == 0 ? 1 : i == 1 ? 3 : i == 2 ? 5 : 6].index = i;
    }
    for (int i = 0; i < TESS__N_PROGRAMS; i++)
        t.plan.programs[i] =
            (tess__program){ .instrs = instrs, .n_instrs = 8, .events = events, .n_events = 4, .kind = 0 };
    assert_int_equal(tess__pass_create(&t), TESS_OK);
    said_so_far[0] = 0;
    return 0;
}
static int end(void **state) {
    (void)state;
    tess__pass_destroy(&t);
    return 0;
}

static void did(tess_status s, const char *want) {
    assert_int_equal(s, TESS_OK);
    expect_said(want);
}

/* ---- pointers ---- */

static void test_pass_calls__pointers_come_in_the_order_of_declarations(void **state) {
    void *p[3], *g[3];
    (void)state;
    assert_int_equal(tess__scope_pointers(&t, 0, p, g, 3), TESS_OK);
    assert_string_equal(place(p[0]), "full1");
    assert_string_equal(place(p[1]), "full0+20"); /* element 10, of 2 bytes */
    assert_string_equal(place(p[2]), "full1");
    assert_string_equal(place(g[0]), "grad1");
    assert_string_equal(place(g[1]), "grad0+40");
    assert_int_equal(tess__scope_pointers(&t, 1, p, g, 2), TESS_OK);
    assert_string_equal(place(p[0]), "buffers0+20"); /* of buffers the offset is in bytes */
    assert_string_equal(place(p[1]), "full0+60");
    assert_true(!g[0] && !g[1]); /* neither is trained */
    groups[0].in_place = groups[1].in_place = groups[1].low_copy = 1;
    groups[0].grad_in_place = 1;
    groups[0].compute = TESS_F32;
    assert_int_equal(tess__scope_pointers(&t, 0, p, g, 3), TESS_OK);
    assert_string_equal(place(p[0]), "low1");
    assert_string_equal(place(p[1]), "master0+40");
    assert_string_equal(place(g[0]), "grad1");
    assert_string_equal(place(g[1]), "shard_grad0+40");
    void *table[4] = { 0 }, *of_grads[4] = { 0 }; /* by tag: an alias has that of its parameter */
    params[0].tag = 3;
    params[1].tag = 0;
    assert_int_equal(tess__scope_pointers(&t, 0, table, of_grads, -4), TESS_OK);
    assert_true(table[3] == p[0] && table[0] == p[1] && !table[1] && !table[2]);
    assert_true(of_grads[3] == g[0] && of_grads[0] == g[1] && !of_grads[1] && !of_grads[2]);
    world.guarded = 1;
    did(tess__scope_pointers(&t, 0, p, NULL, 3), "open 0; open 1; open 4; ");
    did(tess__scope_pointers(&t, 0, p, g, 3), "open 0; open 0g; open 1; open 1g; open 4; open 4g; ");
    world.fails = "open";
    assert_int_equal(tess__scope_pointers(&t, 0, p, g, 3), TESS_E_DEVICE);
    expect_said("open 0; ");
}

static void test_pass_calls__pointers_end_with_their_call(void **state) {
    (void)state;
    did(tess__take_back(&t, 0, 1, "x"), ""); /* without strictness nobody looks */
    t.pass.guard = (void *)&world;
    did(tess__take_back(&t, 0, 0, "x"), "close 0 full1 x 0; close 1 full0+20 x 0; close 4 full1 x 0; ");
    did(tess__take_back(&t, 1, 1, "y"),
        "close 2 buffers0+20 y 1; close 2g null y 1; close 3 full0+60 y 1; close 3g null "
        "y 1; ");
    world.fails = "close";
    assert_int_equal(tess__take_back(&t, 0, 1, "x"), TESS_E_DEVICE);
    expect_said("close 0 full1 x 0; ");
    t.pass.guard = NULL;
}

static void test_pass_calls__rooms_and_tags_fit_the_scope(void **state) {
    void *p[3];
    (void)state;
    for (int scope = -1; scope <= SCOPES; scope += SCOPES + 1)
        refuses(check_scope(&t, "x", scope, p, 3), "x: %d is no scope; there are 2", scope);
    for (int n = 0; n < 5; n++)
        if (n != 3)
            refuses(check_scope(&t, "x", 0, p, n), "x: scope \"h.0\" has 3 parameters, room for %d was given", n);
    refuses(check_scope(&t, "x", 0, NULL, 3), "x: scope \"h.0\" has 3 parameters, room for 0 was given");
    refuses(check_scope(&t, "x", 0, NULL, -3), "x: scope \"h.0\" has 3 parameters, room for 0 was given");
    assert_int_equal(check_scope(&t, "x", 0, p, 3), TESS_OK);
    scopes[1].n_params = 0;
    assert_int_equal(check_scope(&t, "x", 1, NULL, 0), TESS_OK); /* it has none */
    assert_int_equal(check_scope(&t, "x", 0, p, -2), TESS_OK);
    refuses(check_scope(&t, "x", 0, p, -1), "x: parameter \"b\" has tag 1, and the table has 1 slots");
    params[0].tag = 5;
    refuses(check_scope(&t, "x", 0, p, -5), "x: parameter \"w\" has tag 5, and the table has 5 slots");
    assert_int_equal(check_scope(&t, "x", 0, p, -6), TESS_OK); /* the alias's own tag counts for nothing */
    params[1].tag = 5;
    refuses(check_scope(&t, "x", 0, p, -6), "x: parameters \"w\" and \"b\" of scope \"h.0\" have one tag");
    static int32_t alias_first[] = { 4, 3, 1 };
    scopes[0].params = alias_first;
    params[3].tag = 2;
    refuses(check_scope(&t, "x", 0, p, -6), "x: parameters \"w\" and \"b\" of scope \"h.0\" have one tag");
    params[1].tag = 2;
    refuses(check_scope(&t, "x", 0, p, -6), "x: parameters \"frozen\" and \"b\" of scope \"h.0\" have one tag");
}

/* ---- tables ---- */

static void test_pass_calls__tables_are_there_or_missing_as_a_whole(void **state) {
    (void)state;
    for (int left = 0; left <= 5; left++) {
        tess__pass_destroy(&t);
        world.callocs_left = left;
        const tess_status s = tess__pass_create(&t);
        assert_int_equal(s, left < 5 ? TESS_E_NOMEM : TESS_OK);
        if (s)
            assert_string_equal(tess_last_error(), "no memory for the engine's tables");
    }
    tess__pass_destroy(&t);
    assert_true(!t.pass.entered && !t.pass.begun && !t.pass.block_params && !t.pass.block_grads && !t.audit.inputs);
    world.callocs_left = -1;
    assert_int_equal(tess__pass_create(&t), TESS_OK);
    for (int i = 0; i < 2 * SCOPES; i++)
        t.pass.entered[i] = t.pass.begun[i] = 9;
    t.pass.kind = 3;
    t.pass.pc = t.recorder.next_point = t.pass.summoned = t.pass.microbatch = t.pass.pending_grads = 4;
    t.pass.run = (void *)&world;
    t.pass.ended_by = "x";
    t.pass.guard = (void *)&world;
    tess__pass_forget(&t);
    expect_said("end-guard; ");
    for (int i = 0; i < 2 * SCOPES; i++)
        assert_true(!t.pass.entered[i] && !t.pass.begun[i]);
    assert_true(!t.pass.kind && !t.pass.pc && !t.recorder.next_point && !t.pass.summoned && !t.pass.microbatch);
    assert_true(!t.pass.pending_grads && !t.pass.run && !t.pass.ended_by && !t.pass.guard);
}

/* ---- start ---- */

static void test_pass_calls__a_pass_starts_at_its_beginning(void **state) {
    (void)state;
    t.pass.pc = t.recorder.next_point = 4;
    t.memory.deviating = 1;
    t.pass.ended_by = "x";
    t.pass.begun[0] = t.pass.begun[3] = 9;
    did(tess__pass_start(&t, &t.plan.programs[TESS__P_EVAL], TESS_PASS_EVAL), "before 2; refresh; ");
    assert_ptr_equal(t.pass.program, &t.plan.programs[TESS__P_EVAL]);
    assert_true(t.pass.kind == TESS_PASS_EVAL && t.comms.pass_kind == TESS_PASS_EVAL && !t.memory.deviating);
    assert_true(!t.pass.pc && !t.recorder.next_point && !t.pass.ended_by && !t.pass.begun[0] && !t.pass.begun[3]);
    t.pass.kind = 0;
    static const char *const calls[] = { "before", "refresh" };
    for (int i = 0; i < 2; i++) {
        world.fails = calls[i];
        assert_int_equal(tess__pass_start(&t, &t.plan.programs[0], TESS_PASS_TRAIN), TESS_E_DEVICE);
        expect_said(i ? "before 1; refresh; " : "before 1; ");
        assert_int_equal(t.pass.kind, 0);
    }
    world.fails = NULL;
    static const struct {
        int accum, microbatch, booked;
        uint32_t kind;
        const char *want;
    } cases[] = { { 1, 0, 0, TESS_PASS_TRAIN, "" },
                  { 2, 0, 0, TESS_PASS_TRAIN, "book 0; book 2; " }, /* gradients live from the first microbatch on */
                  { 2, 0, 0, TESS_PASS_TRAIN | TESS_PASS_NO_SYNC, "book 0; book 2; " },
                  { 2, 0, 1, TESS_PASS_TRAIN, "book 0; " },
                  { 2, 1, 0, TESS_PASS_TRAIN, "" },
                  { 2, 0, 0, TESS_PASS_EVAL, "" } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        t.plan.setup.accum = cases[i].accum;
        t.pass.microbatch = cases[i].microbatch;
        booked[TESS__SHARD_GRAD][2] = (uint8_t)cases[i].booked;
        tess__pass_begins(&t, &t.plan.programs[0], cases[i].kind);
        expect_said(cases[i].want);
    }
    t.pass.kind = 0;
}

static void test_pass_calls__kinds_of_passes_have_their_programs(void **state) {
    (void)state;
    did(tess_pass(&t, TESS_PASS_TRAIN), "before 1; refresh; ");
    assert_int_equal(slot(t.pass.program), TESS__P_TRAIN);
    t.pass.kind = 0;
    did(tess_pass(&t, TESS_PASS_EVAL), "before 2; refresh; ");
    assert_int_equal(slot(t.pass.program), TESS__P_EVAL);
    t.pass.kind = 0;
    refuses(tess_pass(&t, TESS_PASS_TRAIN | TESS_PASS_NO_SYNC),
            "tess_pass: a pass without communication needs accum > 1 and sync=end, and cannot be the last of its step");
    static const uint32_t none[] = { 0, 3, TESS_PASS_EVAL | TESS_PASS_NO_SYNC, 99 };
    for (int i = 0; i < 4; i++)
        refuses(tess_pass(&t, none[i]), "tess_pass: %u is no kind of pass", none[i]);
    said_so_far[0] = 0;
    t.plan.setup.accum = 3;
    for (int each = 0; each < 2; each++)
        for (int m = 0; m < 3; m++) { /* with sync=end none but the last communicates, whoever asks */
            t.plan.setup.sync_each = each;
            t.pass.microbatch = m;
            booked[TESS__SHARD_GRAD][0] = booked[TESS__SHARD_GRAD][2] = 1;
            assert_int_equal(tess_pass(&t, TESS_PASS_TRAIN), TESS_OK);
            assert_int_equal(slot(t.pass.program), !each && m < 2 ? TESS__P_NO_SYNC : TESS__P_TRAIN);
            assert_int_equal(t.pass.kind, !each && m < 2 ? TESS_PASS_TRAIN | TESS_PASS_NO_SYNC : TESS_PASS_TRAIN);
            t.pass.kind = 0;
            const tess_status s = tess_pass(&t, TESS_PASS_TRAIN | TESS_PASS_NO_SYNC);
            assert_int_equal(s, !each && m < 2 ? TESS_OK : TESS_E_INVALID);
            t.pass.kind = 0;
        }
    t.pass.microbatch = 3;
    strcpy(t.settings.accum_text, " (why)");
    refuses(tess_pass(&t, TESS_PASS_TRAIN),
            "tess_pass: 3 microbatches are declared per step (accum) and all have run (why); "
            "tess_step or tess_grad_drop comes next");
    assert_int_equal(tess_pass(&t, TESS_PASS_EVAL), TESS_OK);
    t.pass.kind = 0;
    t.pass.summoned = 1;
    refuses(tess_pass(&t, TESS_PASS_EVAL), "tess_pass while parameters are summoned");
    t.plan.model.n_blocks = 1;
    refuses(tess_pass(&t, TESS_PASS_EVAL), "tess_pass: this model declares blocks, which run by tess_run");
    t.settings.plan_only = 1;
    refuses(tess_pass(&t, TESS_PASS_EVAL), "tess_pass before tess_shard");
    t.settings.plan_only = t.sharded = 0;
    refuses(tess_pass(&t, TESS_PASS_EVAL), "tess_pass before tess_shard");
    assert_int_equal(tess_pass(NULL, TESS_PASS_EVAL), TESS_E_INVALID);
    t.plan.model.n_blocks = 0;
}

/* ---- through a pass ---- */

static void start(uint32_t kind) {
    booked[TESS__SHARD_GRAD][0] = booked[TESS__SHARD_GRAD][2] = 1;
    assert_int_equal(tess_pass(&t, kind), TESS_OK);
    said_so_far[0] = 0;
}

static void test_pass_calls__a_pass_goes_from_event_to_event(void **state) {
    void *p[3], *g[3];
    (void)state;
    events[2].scope = 0; /* forward of both, but backward of h.0 alone */
    events[3].scope = 0;
    start(TESS_PASS_TRAIN);
    did(tess_forward_begin(&t, 0, p, 3), "run on; doing 1 0; range 1 0; ");
    assert_true(t.pass.pc == 2 && t.pass.entered[0] == 1 && t.pass.begun[0] == 1);
    assert_string_equal(place(p[0]), "full1");
    events[1].scope = 0;
    did(tess_forward_end(&t, 0), "range-end; run on; run ahead; ");
    assert_true(t.pass.pc == 4 && t.pass.entered[0] == 0 && t.pass.begun[0] == 1);
    t.proof = (void *)&world;
    t.recorder.trace = (void *)&world;
    t.pass.guard = (void *)&world;
    did(tess_backward_begin(&t, 0, p, g, 3), "run on; doing 3 0; range 3 0; ");
    assert_string_equal(place(g[0]), "grad1");
    assert_true(t.pass.entered[1] == 1 && t.pass.begun[1] == 1 && marks[1].ns == 7 && marks[0].ns == 0);
    did(tess_backward_end(&t, 0), "span 3 0 7; range-end; close 0 full1 tess_backward_end 0; close 0g grad1 "
                                  "tess_backward_end 0; close 1 full0+20 tess_backward_end 0; close 1g grad0+40 "
                                  "tess_backward_end 0; close 4 full1 tess_backward_end 0; close 4g grad1 "
                                  "tess_backward_end 0; digest-event 4 0; run on; run ahead; ");
    assert_true(t.pass.pc == 7 && t.pass.entered[1] == 0);
    did(tess__pass_finish(&t), "backward-check; check 'the end of the pass'; run all; digest-pass; ");
    assert_true(t.pass.kind == 0 && t.comms.pass_kind == 0 && t.pass.microbatch == 1 && t.pass.pending_grads == 1);
    did(tess__pass_finish(&t), ""); /* there is none any more */
    t.pass.guard = NULL;
    t.proof = NULL;
    start(TESS_PASS_EVAL);
    t.pass.pc = 7;
    did(tess__pass_finish(&t), "backward-check; check 'the end of the pass'; run all; ");
    assert_int_equal(t.pass.microbatch, 1); /* an evaluation is none */
}

static void test_pass_calls__another_event_than_compiled_deviates(void **state) {
    static const struct {
        uint8_t type;
        int32_t scope;
    } others[] = { { TESS__FORWARD_BEGIN, 1 }, { TESS__BACKWARD_BEGIN, 0 } };
    char want[128];
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        begin(NULL);
        start(TESS_PASS_TRAIN);
        snprintf(want, sizeof want, "run on; deviate %d %d; event %d %d; run all; ", others[i].type, others[i].scope,
                 others[i].type, others[i].scope);
        did(go_to(&t, others[i].type, others[i].scope), want);
        snprintf(want, sizeof want, "event %d %d; run all; ", others[i].type + 1, others[i].scope);
        did(go_to(&t, (uint8_t)(others[i].type + 1), others[i].scope), want); /* and goes on so */
        snprintf(want, sizeof want,
                 "backward-check; check 'the end of the pass'; compiled; run all; drop-overflow; "
                 "recompile 1 %d; ",
                 TESS__P_TRAIN);
        did(tess__pass_finish(&t), want);
        assert_false(t.memory.deviating);
    }
    begin(NULL);
    start(TESS_PASS_TRAIN); /* an end where a begin was to come */
    t.pass.entered[0] = 1;
    did(go_to(&t, TESS__FORWARD_END, 0), "run on; deviate 2 0; event 2 0; run all; ");
    begin(NULL);
    start(TESS_PASS_TRAIN); /* nothing is left to come */
    t.pass.pc = 7;
    did(go_to(&t, TESS__FORWARD_BEGIN, 0), "run on; deviate 1 0; event 1 0; run all; ");
    begin(NULL); /* a pass that ends too early deviates at its end */
    start(TESS_PASS_EVAL);
    t.pass.deviating_program.kind = TESS_PASS_EVAL;
    snprintf(want, sizeof want,
             "backward-check; check 'the end of the pass'; deviate 2 -1; compiled; run all; "
             "drop-overflow; recompile 2 %d; ",
             TESS__P_EVAL);
    did(tess__pass_finish(&t), want);
    begin(NULL);
    start(TESS_PASS_TRAIN);
    t.pass.pc = 4; /* at least one is left */
    instrs[5].op = TESS__GATHER;
    assert_int_equal(tess__pass_finish(&t), TESS_OK);
    assert_non_null(strstr(said_so_far, "deviate 2 -1"));
    begin(NULL);
    start(TESS_PASS_TRAIN);
    t.pass.pc = 6;
    instrs[6].op = TESS__ENTER;
    assert_int_equal(tess__pass_finish(&t), TESS_OK);
    assert_non_null(strstr(said_so_far, "deviate 2 -1"));
}

static void test_pass_calls__nothing_comes_behind_a_failure(void **state) {
    static const char *const calls[] = { "backward-check", "check",    "deviate", "compiled", "run",
                                         "digest-pass",    "recompile" };
    static const char *const whole = "backward-check; check 'the end of the pass'; deviate 2 -1; compiled; run all; "
                                     "digest-pass; drop-overflow; recompile 1 0; ";
    void *p[3];
    (void)state;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        begin(NULL);
        t.proof = (void *)&world;
        start(TESS_PASS_TRAIN);
        world.fails = calls[i];
        assert_int_equal(tess__pass_finish(&t), TESS_E_DEVICE);
        assert_int_equal(strncmp(said_so_far, whole, strlen(said_so_far)), 0);
        expect_last(calls[i]);
    }
    static const char *const of_begin[] = { "run", "open" }, *const of_end[] = { "close", "digest-event", "run" };
    for (int i = 0; i < 2; i++) {
        begin(NULL);
        start(TESS_PASS_TRAIN);
        world.guarded = 1;
        world.fails = of_begin[i];
        assert_int_equal(tess_forward_begin(&t, 0, p, 3), TESS_E_DEVICE);
        expect_said(i ? "run on; doing 1 0; open 0; fail; " : "run on; fail; ");
    }
    for (int i = 0; i < 3; i++) {
        begin(NULL);
        start(TESS_PASS_TRAIN);
        assert_int_equal(tess_forward_begin(&t, 0, p, 3), TESS_OK);
        t.proof = (void *)&world;
        t.pass.guard = (void *)&world;
        scopes[0].n_params = 1;
        said_so_far[0] = 0;
        world.fails = of_end[i];
        assert_int_equal(tess_forward_end(&t, 0), TESS_E_DEVICE);
        expect_said(i == 0   ? "range-end; close 0 full1 tess_forward_end 0; fail; "
                    : i == 1 ? "range-end; close 0 full1 tess_forward_end 0; digest-event 2 0; fail; "
                             : "range-end; close 0 full1 tess_forward_end 0; digest-event 2 0; run on; fail; ");
        t.pass.guard = NULL;
    }
    static const char *const of_deviation[] = { "deviate", "event" };
    for (int i = 0; i < 2; i++) {
        begin(NULL);
        start(TESS_PASS_TRAIN);
        world.fails = of_deviation[i];
        assert_int_equal(go_to(&t, TESS__FORWARD_BEGIN, 1), TESS_E_DEVICE);
        expect_said(i ? "run on; deviate 1 1; event 1 1; " : "run on; deviate 1 1; ");
    }
}

static void test_pass_calls__scopes_at_a_wrong_time_are_named(void **state) {
    void *p[3];
    (void)state;
    refuses(tess_forward_begin(&t, 0, p, 3), "scope \"h.0\" is entered outside a pass; tess_pass comes first");
    t.pass.ended_by = "x";
    refuses(tess_forward_begin(&t, 0, p, 3),
            "scope \"h.0\" is entered outside a pass: x has ended it; tess_pass comes first");
    start(TESS_PASS_EVAL);
    refuses(tess_backward_begin(&t, 1, p, p, 2), "backward of scope \"h.1\" in an evaluation");
    refuses(tess_backward_end(&t, 1), "backward of scope \"h.1\" in an evaluation");
    t.pass.kind = TESS_PASS_TRAIN;
    refuses(tess_forward_end(&t, 1), "forward of scope \"h.1\" ends without having begun");
    refuses(tess_backward_end(&t, 0), "backward of scope \"h.0\" ends without having begun");
    expect_said("fail; fail; fail; fail; ");
    for (int scope = -1; scope <= SCOPES; scope += SCOPES + 1) {
        refuses(tess_forward_end(&t, scope), "tess_forward_end: %d is no scope; there are 2", scope);
        refuses(tess_backward_end(&t, scope), "tess_backward_end: %d is no scope; there are 2", scope);
        refuses(tess_backward_begin(&t, scope, p, p, 3), "tess_backward_begin: %d is no scope; there are 2", scope);
    }
    for (int k = 0; k < 4; k++) {
        t.pass.entered[k] = 1;
        refuses(tess__pass_finish(&t), "the pass ends while %s of scope \"h.%d\" has begun and not ended",
                k % 2 ? "backward" : "forward", k / 2);
        t.pass.entered[k] = 0;
    }
    t.pass.kind = 0;
}

/* ---- summon ---- */

static void test_pass_calls__summoned_parameters_are_compiled_as_they_come(void **state) {
    void *p[3];
    (void)state;
    t.memory.arena_bytes[TESS_DOMAIN_DEVICE][TESS__STEP] = 640;
    t.pass.pc = t.recorder.next_point = 5;
    world.guarded = 1;
    t.pass.guard = (void *)&world;
    did(tess_summon_begin(&t, 0, p, 3), "refresh; compile 2; room 640; event 1 0; run all; open 0; open 1; open 4; ");
    assert_true(t.plan.compiler.params_only && t.pass.program == &t.pass.deviating_program && t.memory.deviating);
    assert_true(t.pass.summoned == 1 && t.pass.entered[0] == 1 && t.recorder.next_point == 0);
    assert_ptr_equal(t.pass.guard, &world); /* it is put back */
    assert_string_equal(place(p[0]), "full1");
    did(tess_summon_begin(&t, 1, p, 2), "refresh; event 1 1; run all; open 2; open 3; ");
    assert_int_equal(t.pass.summoned, 2);
    refuses(tess_summon_end(&t, -1), "tess_summon_end: scope -1 is not summoned");
    refuses(tess_summon_end(&t, 2), "tess_summon_end: scope 2 is not summoned");
    said_so_far[0] = 0;
    did(tess_summon_end(&t, 0), "event 2 0; run all; ");
    assert_true(t.pass.entered[0] == 0 && t.memory.deviating);
    refuses(tess_summon_end(&t, 0), "tess_summon_end: scope 0 is not summoned");
    said_so_far[0] = 0;
    did(tess_summon_end(&t, 1), "event 2 1; compiled; run all; drop-overflow; ");
    assert_true(t.pass.summoned == 0 && !t.memory.deviating);
    t.pass.entered[1] = 1;
    refuses(tess_summon_end(&t, 0), "tess_summon_end: scope 0 is not summoned");
    t.pass.entered[0] = 1;
    refuses(tess_summon_end(&t, 0), "tess_summon_end: scope 0 is not summoned"); /* of a pass, not of a summon */
    t.pass.entered[0] = t.pass.entered[1] = 0;
    t.pass.guard = NULL;
    static const char *const begins[] = { "refresh", "event", "run", "open" };
    static const char *const whole = "refresh; compile 2; room 0; event 1 0; run all; open 0; fail; ";
    for (int i = 0; i < 4; i++) {
        begin(NULL);
        world.guarded = 1;
        world.fails = begins[i];
        assert_int_equal(tess_summon_begin(&t, 0, p, 3), TESS_E_DEVICE);
        const size_t n = strlen(said_so_far) - strlen("fail; ");
        assert_int_equal(strncmp(said_so_far, whole, n), 0);
        assert_int_equal(strstr(said_so_far, "open") != NULL, i == 3);
        assert_int_equal(strstr(said_so_far, "run") != NULL, i >= 2);
        assert_int_equal(strstr(said_so_far, "event") != NULL, i >= 1);
    }
    static const char *const ends[] = { "event", "compiled", "run" };
    for (int i = 0; i < 3; i++) {
        begin(NULL);
        assert_int_equal(tess_summon_begin(&t, 0, p, 3), TESS_OK);
        said_so_far[0] = 0;
        world.fails = ends[i];
        assert_int_equal(tess_summon_end(&t, 0), TESS_E_DEVICE);
        expect_said(i == 0   ? "event 2 0; fail; "
                    : i == 1 ? "event 2 0; compiled; fail; "
                             : "event 2 0; compiled; run all; fail; ");
    }
}

static void test_pass_calls__a_summon_ends_an_evaluation_and_no_training(void **state) {
    void *p[3];
    (void)state;
    t.sharded = 0;
    refuses(tess_summon_begin(&t, 0, p, 3), "tess_summon_begin before tess_shard");
    t.sharded = t.settings.plan_only = 1;
    refuses(tess_summon_begin(&t, 0, p, 3), "tess_summon_begin before tess_shard");
    t.settings.plan_only = 0;
    refuses(tess_summon_begin(&t, 2, p, 3), "tess_summon_begin: 2 is no scope; there are 2");
    for (int strict = 0; strict < 2; strict++)
        for (int train = 0; train < 2; train++)
            for (int deviating = 0; deviating < 2; deviating++)
                for (int at_end = 0; at_end < 2; at_end++) {
                    begin(NULL);
                    t.settings.strict = strict;
                    start(train ? TESS_PASS_TRAIN : TESS_PASS_EVAL);
                    t.pass.pc = at_end ? 7 : 0;
                    t.memory.deviating = deviating;
                    const int inside = deviating || !at_end;
                    const tess_status s = tess_summon_begin(&t, 1, p, 2);
                    if (inside && (strict || train))
                        refuses(s, "tess_summon_begin of scope \"h.1\" within a pass, which has not come to its end");
                    else {
                        assert_int_equal(s, TESS_OK);
                        assert_int_equal(t.pass.kind, 0);
                        assert_int_equal(t.pass.ended_by != NULL, inside);
                        assert_non_null(strstr(said_so_far, "backward-check"));
                    }
                }
    begin(NULL);
    start(TESS_PASS_EVAL);
    for (int k = 0; k < 4; k++) {
        t.pass.entered[k] = 1;
        refuses(tess_summon_begin(&t, 1, p, 2),
                "tess_summon_begin of scope \"h.1\" within a pass: %s of scope \"h.%d\" has begun and not ended",
                k % 2 ? "backward" : "forward", k / 2);
        t.pass.entered[k] = 0;
    }
    world.fails = "backward-check";
    assert_int_equal(tess_summon_begin(&t, 1, p, 2), TESS_E_DEVICE);
    assert_false(t.pass.summoned);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(test_pass_calls__##name, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(pointers_come_in_the_order_of_declarations),
        TEST(pointers_end_with_their_call),
        TEST(rooms_and_tags_fit_the_scope),
        TEST(tables_are_there_or_missing_as_a_whole),
        TEST(a_pass_starts_at_its_beginning),
        TEST(kinds_of_passes_have_their_programs),
        TEST(a_pass_goes_from_event_to_event),
        TEST(another_event_than_compiled_deviates),
        TEST(nothing_comes_behind_a_failure),
        TEST(scopes_at_a_wrong_time_are_named),
        TEST(summoned_parameters_are_compiled_as_they_come),
        TEST(a_summon_ends_an_evaluation_and_no_training),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
