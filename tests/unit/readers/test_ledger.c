/* SPDX-License-Identifier: BSD-3-Clause */
/* The ledger: planned and measured bytes at every point, what the API says of them, and what it refuses. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/readers/last_run.h"
#include "core/runtime/poison.h"
#include "core/engine/state.h"
#include "tests/support/ledger_check.h"
#include "tests/support/toy.h"

enum { MOST_UNITS = 16 };
static tess_optimizer_options step_options = { .struct_size = sizeof step_options, .lr = 0.01f };

static tess *open_toy(toy *m, int blocks, int accum, int plan_ranks) {
    tess *t = NULL;
    tess_options o = { .struct_size = sizeof o,
                       .optimizer = "adamw",
                       .input_bytes = TOY_INPUT_BYTES,
                       .accum = accum,
                       .plan_only = plan_ranks > 0,
                       .ranks = plan_ranks };
    assert_int_equal(tess_open(&o, &t), TESS_OK);
    assert_int_equal(toy_declare(t, m, blocks), TESS_OK);
    assert_int_equal(tess_shard(t, toy_fill, NULL), plan_ranks ? TESS_E_PLANNED : TESS_OK);
    return t;
}

static void one_step(tess *t, int accum, int fused) {
    double loss;
    for (int k = 0; k < accum; k++)
        assert_int_equal(toy_run(t, TESS_PASS_TRAIN, k, fused && k == accum - 1 ? &step_options : NULL, &loss),
                         TESS_OK);
    if (!fused)
        assert_int_equal(tess_step(t, &step_options), TESS_OK);
}

typedef struct {
    int n;
    uint32_t points[512];
    uint64_t total[512];
    char name[512][24];
    const char *pass[512];
} log;

static void note(void *user, const tess_ledger_point *p) {
    log *l = user;
    assert_true(l->n < 512);
    assert_int_equal(p->index, l->n);
    l->points[l->n] = p->point;
    l->total[l->n] = p->total_bytes[TESS_DOMAIN_DEVICE];
    l->pass[l->n] = p->pass;
    snprintf(l->name[l->n++], sizeof l->name[0], "%s", p->name ? p->name : "");
}

/* ---- both sides agree ---- */

static void test_ledger__every_option_of_a_step_is_measured_as_planned(void **state) {
    (void)state;
    static const char *const activations[] = { "keep", "recompute", "offload" }, *const offload[] = { "none", "cpu" },
                             *const sync[] = { "each", "end" };
    uint64_t points = 0;
    for (int i = 0; i < 3 * 2 * 2 * 2 * 2; i++) {
        int accum = 1 + i / 24, fused = i / 12 % 2;
        toy m;
        ledger_check c;
        setenv("TESSERA_ACTIVATIONS", activations[i % 3], 1);
        setenv("TESSERA_OFFLOAD", offload[i / 3 % 2], 1);
        setenv("TESSERA_SYNC", sync[i / 6 % 2], 1);
        tess *t = open_toy(&m, 1, accum, 0);
        assert_int_equal(ledger_check_open(&c, t, fused ? TESS_LEDGER_STEP : TESS_LEDGER_STEP_APART, NULL), TESS_OK);
        for (int k = 0; k < 2; k++) {
            ledger_check_start(&c);
            one_step(t, accum, fused);
            ledger_check_stop(&c);
        }
        if (c.differ)
            fail_msg("activations %s, offload %s, accum %d, sync %s, %s: %s", activations[i % 3], offload[i / 3 % 2],
                     accum, sync[i / 6 % 2], fused ? "fused" : "apart", c.first);
        points += c.points;
        ledger_check_close(&c);
        assert_int_equal(tess_close(t), TESS_OK);
    }
    unsetenv("TESSERA_ACTIVATIONS");
    unsetenv("TESSERA_OFFLOAD");
    unsetenv("TESSERA_SYNC");
    assert_true(points > 48 * 2 * 5 * 8);
}

static void test_ledger__a_plan_that_is_64_bytes_short_is_not_what_is_measured(void **state) {
    (void)state;
    toy m;
    ledger_check c;
    tess *t = open_toy(&m, 1, 1, 0);
    tess__program *p = &t->plan.programs[TESS__P_TRAIN];
    int32_t i = 0;
    while (p->buffers[i].role != TESS__SAVED)
        i++;
    p->buffers[i].bytes -= 64; /* while the plan is read only: the run must not do harm */
    assert_int_equal(ledger_check_open(&c, t, TESS_LEDGER_STEP_APART, NULL), TESS_OK);
    p->buffers[i].bytes += 64;
    ledger_check_start(&c);
    one_step(t, 1, 0);
    ledger_check_stop(&c);
    assert_true(c.differ > 0);
    assert_non_null(strstr(c.first, "activation"));
    ledger_check_close(&c);
    assert_int_equal(tess_close(t), TESS_OK);
}

static void test_ledger__sizes_in_the_program_do_not_reach_the_measured_side(void **state) {
    (void)state;
    toy m;
    ledger_check c;
    tess *t = open_toy(&m, 1, 1, 0);
    assert_int_equal(ledger_check_open(&c, t, TESS_LEDGER_STEP_APART, NULL), TESS_OK);
    tess__program *program = &t->plan.programs[TESS__P_TRAIN];
    for (int i = 0; i < program->n_instrs; i++) {
        const tess__instr *in = &program->instrs[i];
        if (in->op != TESS__ALLOC)
            continue;
        tess__buffer *b = &program->buffers[in->buffer], right = *b;
        b->bytes = 1 << 20, b->offset = 12345;
        uint64_t measured = tess__measure(&t->plan, &t->memory.comm_scratch, program, NULL, in, b->role, b->index);
        *b = right;
        assert_int_equal(measured, right.bytes);
    }
    tess_buffer *arena = &t->memory.arenas[TESS_DOMAIN_DEVICE][TESS__STEP].memory;
    uint64_t obtained = arena->bytes, end = 0;
    for (int i = 0; i < t->plan.programs[TESS__P_TRAIN].n_buffers; i++) {
        const tess__buffer *b = &t->plan.programs[TESS__P_TRAIN].buffers[i];
        if (b->arena == TESS__STEP && b->domain == TESS_DOMAIN_DEVICE && b->offset + b->bytes > end)
            end = b->offset + b->bytes;
    }
    assert_true(end > 64 && end <= obtained);
    arena->bytes = end - 64; /* as if less had been obtained */
    double loss;
    tess_status s = toy_run(t, TESS_PASS_TRAIN, 0, NULL, &loss);
    assert_int_equal(s, TESS__CHECKING ? TESS_OK : TESS_E_INTERNAL); /* there each buffer has memory of its own */
    if (s)
        assert_non_null(strstr(tess_last_error(), "that were obtained"));
    arena->bytes = obtained;
    ledger_check_close(&c);
    assert_int_equal(tess_close(t), s);
}

typedef struct { /* the latest visits of each unit to one point: before it, after it */
    uint32_t point;
    tess_ledger_point at[MOST_UNITS][2];
} visits;

static void visit(void *user, const tess_ledger_point *p) {
    visits *v = user;
    assert_true(p->unit < MOST_UNITS);
    if ((p->point & ~(uint32_t)TESS_LEDGER_AFTER) == v->point)
        v->at[p->unit][(p->point & TESS_LEDGER_AFTER) != 0] = *p;
}

static tess_ledger_point ledger_now(const tess *t) {
    tess_ledger_point now;
    tess__ledger_point(&t->memory.ledger, &t->plan.layout, -1, 0, &now);
    return now;
}

/* ---- what the points are ---- */

static void test_ledger__points_come_in_the_order_of_the_step(void **state) {
    (void)state;
    toy m;
    log planned = { 0 }, measured = { 0 };
    tess *t = open_toy(&m, 1, 1, 0);
    assert_int_equal(tess_ledger_plan(t, TESS_LEDGER_STEP_APART, note, &planned), TESS_OK);
    assert_int_equal(tess_ledger_hook(t, note, &measured), TESS_OK);
    one_step(t, 1, 0);
    assert_int_equal(tess_ledger_hook(t, NULL, NULL), TESS_OK);
    assert_int_equal(measured.n + 1, planned.n); /* the plan ends with the peak */
    assert_int_equal(planned.points[planned.n - 1], TESS_LEDGER_PEAK);
    assert_int_equal(planned.points[0], TESS_LEDGER_PRE_FORWARD);
    assert_string_equal(planned.pass[0], "train");
    assert_string_equal(planned.pass[planned.n - 2], "step");
    assert_int_equal(planned.points[planned.n - 2], TESS_LEDGER_OPTIMIZER | TESS_LEDGER_AFTER);
    int32_t n_units = t->plan.layout.n_units;
    int before = 0, after = 0, optimizer = 0;
    for (int i = 0; i < measured.n; i++) {
        assert_int_equal(measured.points[i], planned.points[i]);
        assert_int_equal(measured.total[i], planned.total[i]);
        assert_string_equal(measured.name[i], planned.name[i]);
        before += !(measured.points[i] & TESS_LEDGER_AFTER);
        after += (measured.points[i] & TESS_LEDGER_AFTER) != 0;
        optimizer += (measured.points[i] & 255) == TESS_LEDGER_OPTIMIZER;
    }
    assert_int_equal(before, after);
    assert_int_equal(optimizer, 2 * n_units);
    assert_int_equal(tess_close(t), TESS_OK);
}

static void test_ledger__a_unit_is_gathered_and_released_between_its_points(void **state) {
    (void)state;
    toy m;
    visits backward = { .point = TESS_LEDGER_PRE_BACKWARD };
    tess_unit_info info = { .struct_size = sizeof info };
    setenv("TESSERA_PREFETCH", "0", 1);
    setenv("TESSERA_PRECISION", "bf16", 1);
    tess *t = open_toy(&m, 1, 1, 0);
    assert_int_equal(tess_ledger_hook(t, visit, &backward), TESS_OK);
    one_step(t, 1, 0);
    int seen = 0;
    for (int32_t u = 0; u < t->plan.layout.n_units; u++) {
        assert_int_equal(tess_ledger_unit(t, u, &info), TESS_OK);
        const tess_ledger_point *before = &backward.at[u][0], *after = &backward.at[u][1];
        assert_string_equal(after->name, info.name);
        assert_int_equal(after->unit_bytes[1][TESS_CAT_FULL_PARAM], info.unsharded_bytes);
        if (before->unit_bytes[1][TESS_CAT_FULL_PARAM]) /* tied, or wanted by the scope before: still there */
            continue;
        seen++;
        assert_int_equal(after->unit_bytes[1][TESS_CAT_FULL_GRAD], info.gradient_bytes);
        assert_true(info.unsharded_bytes > 0);
    }
    assert_true(seen >= 2);
    assert_int_equal(tess_close(t), TESS_OK);
    unsetenv("TESSERA_PREFETCH");
    unsetenv("TESSERA_PRECISION");
}

static void test_ledger__units_add_up_to_what_rests(void **state) {
    (void)state;
    toy m;
    tess *t = open_toy(&m, 1, 1, 0);
    uint64_t shard = 0, states = 0, live = 0, elems = 0;
    for (int32_t u = 0; u < t->plan.layout.n_units; u++) {
        tess_unit_info info = { .struct_size = sizeof info };
        assert_int_equal(tess_ledger_unit(t, u, &info), TESS_OK);
        shard += info.shard_bytes;
        states += info.state_bytes;
        elems += info.elems;
        for (int c = 0; c < 16; c++)
            live += info.live_bytes[1][c];
    }
    const tess_ledger_point now = ledger_now(t);
    assert_int_equal(now.bytes[1][TESS_CAT_SHARD_PARAM], shard);
    assert_int_equal(now.bytes[1][TESS_CAT_OPTIMIZER], states);
    assert_int_equal(elems, t->plan.layout.param_elems);
    assert_int_equal(live + now.bytes[1][TESS_CAT_BUFFER], now.total_bytes[1]);
    assert_int_equal(tess_close(t), TESS_OK);
}

/* Of groups whose copy is read in place it is the only planned field beside the masters. */
static void test_ledger__units_have_their_copies(void **state) {
    (void)state;
    toy m;
    setenv("TESSERA_PRECISION", "bf16", 1);
    for (int with = 0; with < 2; with++) {
        setenv("TESSERA_LOW_COPY", with ? "1" : "0", 1);
        tess *t = open_toy(&m, 1, 1, 0);
        uint64_t copies = 0, shard = 0;
        for (int32_t u = 0; u < t->plan.layout.n_units; u++) {
            tess_unit_info info = { .struct_size = sizeof info };
            assert_int_equal(tess_ledger_unit(t, u, &info), TESS_OK);
            assert_int_equal(info.live_bytes[1][TESS_CAT_LOW_COPY], info.copy_bytes);
            assert_true(!with || info.unsharded_bytes + info.copy_bytes > 0);
            copies += info.copy_bytes;
            shard += info.shard_bytes;
        }
        const tess_ledger_point now = ledger_now(t);
        assert_int_equal(now.bytes[1][TESS_CAT_LOW_COPY], copies);
        assert_int_equal(now.bytes[1][TESS_CAT_SHARD_PARAM], shard);
        assert_int_equal(copies > 0, with);
        assert_int_equal(tess_close(t), TESS_OK);
    }
    unsetenv("TESSERA_LOW_COPY");
    unsetenv("TESSERA_PRECISION");
}

static void test_ledger__reset_makes_now_the_peak(void **state) {
    (void)state;
    toy m;
    tess_ledger_point peak = { .struct_size = sizeof peak };
    tess *t = open_toy(&m, 1, 1, 0);
    one_step(t, 1, 0);
    assert_int_equal(tess_ledger_peak(t, &peak), TESS_OK);
    const tess_ledger_point now = ledger_now(t);
    assert_true(peak.total_bytes[1] > now.total_bytes[1]);
    assert_true(peak.index > 0);
    assert_int_equal(tess_ledger_reset(t), TESS_OK);
    assert_int_equal(tess_ledger_peak(t, &peak), TESS_OK);
    assert_int_equal(peak.total_bytes[1], now.total_bytes[1]);
    assert_memory_equal(peak.bytes, now.bytes, sizeof now.bytes);
    assert_int_equal(peak.index, 0);
    assert_int_equal(tess_close(t), TESS_OK);
}

static void test_ledger__memory_of_the_program_is_on_both_sides(void **state) {
    (void)state;
    toy m;
    ledger_check c;
    void *own;
    tess *t = open_toy(&m, 1, 1, 0);
    assert_int_equal(tess_alloc(t, "mine", 12345, &own), TESS_OK);
    assert_int_equal(ledger_check_open(&c, t, TESS_LEDGER_STEP, NULL), TESS_OK);
    assert_true(c.planned[0].bytes[1][TESS_CAT_ACTIVATION] >= 12345);
    ledger_check_start(&c);
    one_step(t, 1, 1);
    ledger_check_stop(&c);
    assert_int_equal(c.differ, 0);
    ledger_check_close(&c);
    assert_int_equal(tess_close(t), TESS_OK);
}

/* ---- memory of the program's own that no plan has ---- */

typedef struct {
    uint64_t now, most;
    int asked;
} holder;

static uint64_t holds(void *user, uint64_t *most) {
    holder *h = user;
    h->asked++;
    *most = h->most;
    return h->now;
}

static void same_as_held(void *user, const tess_ledger_point *p) {
    const holder *h = user;
    assert_int_equal(p->held_bytes, h->now);
}

static void test_ledger__memory_that_the_program_holds_is_booked_beside_the_plan(void **state) {
    (void)state;
    toy m;
    ledger_check c;
    holder h = { .now = 1000, .most = 5000 };
    tess_ledger_point peak = { .struct_size = sizeof peak };
    tess_stats s = { .struct_size = sizeof s };
    tess *t = open_toy(&m, 1, 1, 0);
    assert_int_equal(tess_stats_get(t, &s), TESS_OK);
    assert_int_equal(s.whole_peak_bytes, s.live_peak_bytes[1]);
    assert_int_equal(tess_ledger_held(t, holds, &h), TESS_OK);
    assert_int_equal(ledger_check_open(&c, t, TESS_LEDGER_STEP, NULL), TESS_OK);
    ledger_check_start(&c);
    one_step(t, 1, 1);
    ledger_check_stop(&c);
    assert_int_equal(c.differ, 0); /* planned bytes are measured, as without it */
    ledger_check_close(&c);
    assert_true(h.asked > 10);
    assert_int_equal(tess_ledger_hook(t, same_as_held, &h), TESS_OK);
    one_step(t, 1, 1);
    assert_int_equal(tess_ledger_hook(t, NULL, NULL), TESS_OK);
    h.now = 2000;
    assert_int_equal(tess_stats_get(t, &s), TESS_OK);
    assert_int_equal(s.held_bytes, 2000);
    assert_int_equal(s.held_peak_bytes, 5000);
    assert_int_equal(s.whole_peak_bytes, s.live_peak_bytes[1] + 5000);
    assert_int_equal(tess_ledger_peak(t, &peak), TESS_OK);
    assert_int_equal(peak.held_bytes, 5000);
    assert_int_equal(tess_ledger_held(t, NULL, NULL), TESS_OK);
    assert_int_equal(tess_stats_get(t, &s), TESS_OK);
    assert_int_equal(s.held_peak_bytes, 0);
    assert_int_equal(tess_close(t), TESS_OK);
    assert_int_equal(tess_ledger_held(NULL, holds, &h), TESS_E_INVALID);
}

/* A model with one more dimension is another program. A folder that cannot be made is no error. */
static void test_ledger__a_run_leaves_what_it_held_for_the_plan(void **state) {
    (void)state;
    toy m;
    holder h = { .now = 1, .most = 777 };
    char folder[] = "/tmp/tessera-held-XXXXXX", file[128];
    assert_non_null(mkdtemp(folder));
    setenv("XDG_CACHE_HOME", folder, 1);
    tess *t = open_toy(&m, 1, 1, 0);
    const tess__model *model = &t->plan.model;
    assert_int_equal(tess__last_run_find(model).ranks, 0);
    assert_int_equal(tess_ledger_held(t, holds, &h), TESS_OK);
    one_step(t, 1, 0);
    assert_int_equal(tess_close(t), TESS_OK);
    t = open_toy(&m, 1, 1, 2); /* it plans, and leaves nothing itself */
    assert_int_equal(tess_ledger_held(t, holds, &h), TESS_OK);
    model = &t->plan.model;
    assert_int_equal(tess__last_run_find(model).held_bytes, 777);
    assert_int_equal(tess__last_run_find(model).ranks, 1);
    model->params[0].shape[0]++;
    assert_int_equal(tess__last_run_find(model).ranks, 0);
    setenv("XDG_CACHE_HOME", "/proc/none", 1);
    tess__last_run_keep(model, &(tess__last_run){ 1, 1 });
    assert_int_equal(tess__last_run_find(model).ranks, 0);
    setenv("XDG_CACHE_HOME", folder, 1);
    model->params[0].shape[0]--;
    assert_int_equal(tess__last_run_find(model).held_bytes, 777);
    assert_int_equal(tess_close(t), TESS_OK);
    unsetenv("XDG_CACHE_HOME");
    snprintf(file, sizeof file, "rm -r %s", folder);
    assert_int_equal(system(file), 0);
}

/* The peak comes last, with the name of the pass that the plan ends with. */
static void keep_last(void *user, const tess_ledger_point *p) {
    *(tess_ledger_point *)user = *p;
}
static void test_ledger__the_peak_is_of_the_last_pass(void **state) {
    (void)state;
    toy m;
    static const struct {
        uint32_t of;
        const char *pass;
    } plans[] = { { TESS_LEDGER_STEP_APART, "step" }, { TESS_LEDGER_EVAL, "eval" }, { TESS_LEDGER_NORM, "norm" } };
    tess *t = open_toy(&m, 0, 1, 0);
    for (int i = 0; i < 3; i++) {
        tess_ledger_point last = { .struct_size = 0 };
        assert_int_equal(tess_ledger_plan(t, plans[i].of, keep_last, &last), TESS_OK);
        assert_int_equal(last.point, TESS_LEDGER_PEAK);
        assert_string_equal(last.pass, plans[i].pass);
        assert_true(last.unit == -1 && last.total_bytes[1] > 0);
    }
    assert_int_equal(tess_close(t), TESS_OK);
}

/* ---- refusals ---- */

static void test_ledger__bad_calls_are_refused_and_do_not_end_the_engine(void **state) {
    (void)state;
    toy m;
    tess_ledger_point p = { .struct_size = sizeof p };
    tess_unit_info u = { .struct_size = sizeof u };
    tess *t = NULL;
    log l = { 0 };
    assert_int_equal(tess_ledger_peak(NULL, &p), TESS_E_INVALID);
    assert_int_equal(tess_open(NULL, &t), TESS_OK);
    assert_int_equal(tess_ledger_peak(t, &p), TESS_E_INVALID);
    assert_string_equal(tess_last_error(), "tess_ledger_peak: the ledger begins with tess_shard");
    assert_int_equal(tess_ledger_plan(t, TESS_LEDGER_STEP, note, &l), TESS_E_INVALID);
    assert_int_equal(tess_close(t), TESS_OK);
    t = open_toy(&m, 1, 1, 0);
    assert_int_equal(tess_ledger_peak(t, NULL), TESS_E_INVALID);
    p.struct_size = 4;
    assert_int_equal(tess_ledger_peak(t, &p), TESS_E_INVALID);
    assert_string_equal(tess_last_error(), "tess_ledger_peak: struct_size is 4; set it to the size of the struct");
    p.struct_size = sizeof p;
    assert_int_equal(tess_ledger_unit(t, t->plan.layout.n_units, &u), TESS_E_INVALID);
    assert_int_equal(tess_ledger_plan(t, 99, note, &l), TESS_E_INVALID);
    assert_int_equal(tess_ledger_plan(t, TESS_LEDGER_STEP, NULL, &l), TESS_E_INVALID);
    one_step(t, 1, 0); /* all well */
    assert_int_equal(tess_close(t), TESS_OK);
    t = open_toy(&m, 1, 1, 2);
    assert_int_equal(tess_ledger_peak(t, &p), TESS_E_INVALID);
    assert_int_equal(tess_ledger_plan(t, TESS_LEDGER_STEP, note, &l), TESS_OK);
    assert_true(l.n > 0);
    assert_int_equal(tess_close(t), TESS_OK);
}

static void test_ledger__an_older_struct_is_filled_as_far_as_it_goes(void **state) {
    (void)state;
    toy m;
    struct {
        tess_ledger_point p;
        uint64_t behind;
    } s;
    tess *t = open_toy(&m, 1, 1, 0);
    memset(&s, 0x5a, sizeof s);
    s.p.struct_size = offsetof(tess_ledger_point, unit_bytes);
    assert_int_equal(tess_ledger_peak(t, &s.p), TESS_OK);
    assert_int_equal(s.p.struct_size, offsetof(tess_ledger_point, unit_bytes));
    assert_true(s.p.bytes[1][TESS_CAT_SHARD_PARAM] > 0);
    assert_int_equal(s.p.unit_bytes[0][0], 0x5a5a5a5a5a5a5a5a);
    assert_int_equal(s.behind, 0x5a5a5a5a5a5a5a5a);
    assert_int_equal(tess_close(t), TESS_OK);
}

/* PyTorch's figures of an iteration: after the loss what rests and the gradient that backward begins with; at the
 * last unit's step its gradient alone is left of all; after it what rests. */
static void test_ledger__after_the_loss_and_after_the_step_is_what_is_planned(void **state) {
    (void)state;
    toy m;
    log planned = { 0 };
    const void *p[8];
    void *g[8];
    visits optimizer = { .point = TESS_LEDGER_OPTIMIZER };
    tess_stats s = { .struct_size = sizeof s };
    tess *t = open_toy(&m, 0, 1, 0);
    assert_int_equal(tess_ledger_hook(t, visit, &optimizer), TESS_OK);
    assert_int_equal(tess_ledger_plan(t, TESS_LEDGER_STEP_APART, note, &planned), TESS_OK);
    assert_int_equal(tess_pass(t, TESS_PASS_TRAIN), TESS_OK);
    for (int k = 0; k < TOY_SCOPES; k++) {
        assert_int_equal(tess_forward_begin(t, m.scope[k], p, m.n_params[k]), TESS_OK);
        assert_int_equal(tess_forward_end(t, m.scope[k]), TESS_OK);
    }
    const tess_ledger_point loss = ledger_now(t);
    int i = 0, at = 0;
    for (; planned.points[i] != TESS_LEDGER_POST_BACKWARD; i++)
        at = i; /* the engine goes on to the next begin, so that the last scope's gradient is there */
    assert_int_equal(loss.total_bytes[1], planned.total[at]);
    assert_int_equal(tess_stats_get(t, &s), TESS_OK);
    assert_int_equal(loss.total_bytes[1] - loss.bytes[1][TESS_CAT_SHARD_GRAD], s.resting_bytes[1]);
    assert_true(loss.bytes[1][TESS_CAT_SHARD_GRAD] > 0);
    for (int k = TOY_SCOPES; k-- > 0;) {
        assert_int_equal(tess_backward_begin(t, m.scope[k], p, g, m.n_params[k]), TESS_OK);
        assert_int_equal(tess_backward_end(t, m.scope[k]), TESS_OK);
    }
    assert_int_equal(tess_step(t, &step_options), TESS_OK);
    uint64_t left = 0;
    for (int32_t u = 0; u < t->plan.layout.n_units; u++) {
        const tess_ledger_point *before = &optimizer.at[u][0];
        assert_int_equal(before->total_bytes[1], s.resting_bytes[1] + before->bytes[1][TESS_CAT_SHARD_GRAD]);
        if (before->bytes[1][TESS_CAT_SHARD_GRAD] == before->unit_bytes[1][TESS_CAT_SHARD_GRAD])
            left++;
    }
    assert_int_equal(left, 1); /* the last of them */
    const tess_ledger_point end = ledger_now(t);
    assert_int_equal(end.total_bytes[1], s.resting_bytes[1]);
    assert_int_equal(tess_close(t), TESS_OK);
}

/* Unsharded parameters on the device now. */
static uint64_t gathered(const tess *t) {
    return ledger_now(t).bytes[TESS_DOMAIN_DEVICE][TESS_CAT_FULL_PARAM];
}

enum { HOOKS = 3 };

/* Hook after hook begins, from the outermost to the innermost, and they end the other way round: all see one memory,
 * which is there until the last of them has ended. */
static void nest_forward(tess *t, const toy *m, int k) {
    const void *p[HOOKS][8];
    uint64_t held = 0;
    for (int h = 0; h < HOOKS; h++) {
        assert_int_equal(tess_forward_begin(t, m->scope[k], p[h], m->n_params[k]), TESS_OK);
        assert_ptr_equal(p[h][0], p[0][0]);
        if (h)
            assert_int_equal(gathered(t), held);
        held = gathered(t);
    }
    uint16_t value = *(const uint16_t *)p[0][0]; /* bf16, so that there is something to gather on one rank */
    assert_true(held > 0);
    for (int h = HOOKS; h-- > 0;) {
        assert_int_equal(gathered(t), held);
        assert_int_equal(*(const uint16_t *)p[h][0], value);
        assert_int_equal(tess_forward_end(t, m->scope[k]), TESS_OK);
    }
}

/* Each adds to what those outside of it have added. */
static void nest_backward(tess *t, const toy *m, int k) {
    const void *p[8];
    void *g[HOOKS][8];
    for (int h = 0; h < HOOKS; h++) {
        assert_int_equal(tess_backward_begin(t, m->scope[k], p, g[h], m->n_params[k]), TESS_OK);
        assert_true(*(float *)g[h][0] == (float)h);
        *(float *)g[h][0] += 1;
    }
    for (int h = HOOKS; h-- > 0;)
        assert_int_equal(tess_backward_end(t, m->scope[k]), TESS_OK);
}

/* Several wrappers around one module: the unit is gathered once and its gradient reduced once, and the figures are
 * those of one. */
static void test_ledger__several_hooks_on_one_module_see_one_unit(void **state) {
    (void)state;
    toy m;
    tess_stats s = { .struct_size = sizeof s };
    setenv("TESSERA_PRECISION", "bf16", 1);
    tess *t = open_toy(&m, 0, 1, 0);
    unsetenv("TESSERA_PRECISION");
    for (int pass = 0; pass < 2; pass++) {
        float norm = -1;
        assert_int_equal(tess_pass(t, TESS_PASS_TRAIN), TESS_OK);
        nest_forward(t, &m, 1);
        nest_backward(t, &m, 1);
        assert_int_equal(tess_grad_norm(t, &norm), TESS_OK);
        assert_true(norm == HOOKS);
        assert_int_equal(tess_grad_drop(t), TESS_OK);
        assert_int_equal(tess_stats_get(t, &s), TESS_OK);
        assert_int_equal(s.live_bytes[1], s.resting_bytes[1]);
    }
    assert_int_equal(s.n_recompiles, 1); /* the second pass is what was compiled for the first */
    assert_int_equal(tess_close(t), TESS_OK);
}

static void test_ledger__a_second_hook_takes_the_first_ones_place(void **state) {
    (void)state;
    toy m;
    log first = { 0 }, second = { 0 };
    tess *t = open_toy(&m, 1, 1, 0);
    assert_int_equal(tess_ledger_hook(t, note, &first), TESS_OK);
    one_step(t, 1, 0);
    int seen = first.n;
    assert_true(seen > 0);
    assert_int_equal(tess_ledger_reset(t), TESS_OK);
    assert_int_equal(tess_ledger_hook(t, note, &second), TESS_OK);
    one_step(t, 1, 0);
    assert_int_equal(first.n, seen);
    assert_int_equal(second.n, seen);
    assert_int_equal(tess_close(t), TESS_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger__every_option_of_a_step_is_measured_as_planned),
        cmocka_unit_test(test_ledger__a_plan_that_is_64_bytes_short_is_not_what_is_measured),
        cmocka_unit_test(test_ledger__sizes_in_the_program_do_not_reach_the_measured_side),
        cmocka_unit_test(test_ledger__points_come_in_the_order_of_the_step),
        cmocka_unit_test(test_ledger__a_unit_is_gathered_and_released_between_its_points),
        cmocka_unit_test(test_ledger__units_add_up_to_what_rests),
        cmocka_unit_test(test_ledger__units_have_their_copies),
        cmocka_unit_test(test_ledger__reset_makes_now_the_peak),
        cmocka_unit_test(test_ledger__memory_of_the_program_is_on_both_sides),
        cmocka_unit_test(test_ledger__memory_that_the_program_holds_is_booked_beside_the_plan),
        cmocka_unit_test(test_ledger__a_run_leaves_what_it_held_for_the_plan),
        cmocka_unit_test(test_ledger__the_peak_is_of_the_last_pass),
        cmocka_unit_test(test_ledger__bad_calls_are_refused_and_do_not_end_the_engine),
        cmocka_unit_test(test_ledger__an_older_struct_is_filled_as_far_as_it_goes),
        cmocka_unit_test(test_ledger__after_the_loss_and_after_the_step_is_what_is_planned),
        cmocka_unit_test(test_ledger__several_hooks_on_one_module_see_one_unit),
        cmocka_unit_test(test_ledger__a_second_hook_takes_the_first_ones_place),
    };
    setenv("TESSERA_LOG", "error", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
