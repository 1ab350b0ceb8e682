/* SPDX-License-Identifier: BSD-3-Clause */
/* Values that are not finite, and gradients far above the usual: which is found first, who says it, how often, and
 * whether the run stops, goes on or leaves the step out. Ranks and values are the test's own. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/status.h"
#include "core/engine/finite.h"
#include "core/engine/scaler.h"
#include "core/engine/values.h"
#include "core/kernels/norm.h"
#include "tests/unit/logged.h"

enum { PARAMS = 4, ELEMS = 2 * TESS__CHUNK_ELEMS + 3 };
static struct {
    int rescues, exchanges, waits; /* rescues: the scale of losses takes the step */
    uint32_t bad_of;
    int32_t bad_param, other; /* other: 1 + the rank that has found a value */
    uint64_t bad_at;
    double bad, usual, limbs;
    tess_status load, exchange;
} world;
static tess t;
static int64_t notes[TESS__NORM_LIMBS + 1];

static uint32_t looking_at;
static int32_t looking_in;
static tess__owned owned(uint32_t of, int32_t i) {
    looking_at = of;
    looking_in = i;
    return (tess__owned){ .piece = { .in_param = 100, .elems = ELEMS }, .dtype = TESS_F32 };
}
static tess_status load(uint64_t first, uint64_t n, float *wide) {
    assert_true(first + n <= ELEMS && n <= TESS__CHUNK_ELEMS);
    memset(wide, 0, n * sizeof *wide);
    if (n < TESS__CHUNK_ELEMS)
        wide[n] = NAN; /* of nobody */
    if (looking_at == world.bad_of && looking_in == world.bad_param && world.bad_at >= first &&
        world.bad_at < first + n)
        wide[world.bad_at - first] = (float)world.bad;
    return world.load;
}
static tess_status exchange(const void *mine, uint64_t bytes, char *all) {
    world.exchanges++;
    for (int32_t r = 0; r < t.comms.world.nranks; r++) {
        memset(all + (uint64_t)r * bytes, 0, bytes);
        if (r == t.comms.world.rank || r + 1 == world.other)
            memcpy(all + (uint64_t)r * bytes, mine, bytes);
    }
    if (world.other && world.other != t.comms.world.rank + 1)
        memset(all + (uint64_t)t.comms.world.rank * bytes, 0, bytes);
    return world.exchange;
}
#define tess__owned_at(e, of, i) owned(of, i)
#define tess__value_scale(e, of) 1
#define tess__value_load(e, v, first, n, raw, wide) ((void)(e), (void)(raw), (void)(v), load(first, n, wide))
#define tess__streams_sync(q) TESS_OK
#define tess__comms_exchange(c, what, mine, bytes, all) exchange(mine, bytes, (char *)(all))
#define tess__scaler_step(e, finite) ((finite) ? 0 : world.rescues)
#define tess__usual_norm(s, norm) ((void)(norm), world.usual)
#define tess__norm_wait(q) (world.waits++, TESS_OK)
#define tess__norm_square(at) ((void)(at), world.limbs)
#define tess__address_of(e, role, i) ((void *)notes)
#include "core/engine/finite.c"

static char names[PARAMS][4] = { "a", "b", "c", "d" }, unit_name[] = "h.0";
static tess__param params[PARAMS];
static tess__group groups[1];
static tess__unit units[1];

static int begin(void **state) {
    (void)state;
    memset(&world, 0, sizeof world);
    memset(&logged, 0, sizeof logged);
    memset(&t, 0, sizeof t);
    for (int32_t i = 0; i < PARAMS; i++)
        params[i] = (tess__param){ .name = names[i], .tied_to = i };
    params[0].flags = TESS_FROZEN;
    params[2].tied_to = 1;
    groups[0] = (tess__group){ .grad_shard = TESS_F32 };
    groups[0].step.n_states = 2;
    groups[0].step.state[0].dtype = TESS_U8; /* of which none is NaN */
    groups[0].step.state[1].dtype = TESS_F32;
    units[0].name = unit_name;
    t.plan.model.params = params;
    t.plan.model.n_params = PARAMS;
    t.plan.layout.groups = groups;
    t.plan.layout.units = units;
    t.plan.layout.n_states = 2;
    t.comms.world.nranks = 3;
    t.step.steps_done = 6;
    t.settings.on_nan = TESS__NAN_STOP;
    world.bad_of = 77;
    return 0;
}

static void stops(tess_status s, const char *what) {
    char want[700];
    snprintf(want, sizeof want, "%s; TESSERA_ON_NAN=skip leaves such steps out, warn goes on", what);
    assert_int_equal(s, TESS_E_NOT_FINITE);
    assert_string_equal(tess_last_error(), want);
}

static void test_finite__the_first_bad_gradient_is_found_wherever_it_is(void **state) {
    static const uint64_t places[] = { 0, 1, TESS__CHUNK_ELEMS - 1, TESS__CHUNK_ELEMS, ELEMS - 1 };
    for (int32_t param = 0; param < PARAMS; param++)
        for (int i = 0; i < 5; i++) {
            char want[200];
            int trained = param == 1 || param == 3; /* one is frozen, one tied */
            begin(state);
            t.step.norm = i % 2 ? INFINITY : (double)-NAN;
            world.bad_of = TESS_OF_GRAD;
            world.bad_param = param;
            world.bad_at = places[i];
            world.bad = i == 4 ? 1e20 : i % 2 ? (double)-INFINITY : (double)-NAN; /* a square that overflows */
            snprintf(want, sizeof want, "step 7: the gradient norm is %s", i % 2 ? "inf" : "nan");
            if (trained)
                snprintf(want + strlen(want), sizeof want - strlen(want),
                         ": rank 0, unit h.0: element %d of the gradient of \"%s\" is %s", (int)places[i] + 100,
                         names[param],
                         i == 4  ? "1e+20"
                         : i % 2 ? "-inf"
                                 : "nan");
            stops(tess__judge_norm(&t), want);
        }
    begin(state); /* the lowest rank that has one */
    t.comms.world.rank = 2;
    t.step.norm = (double)NAN;
    world.bad_of = TESS_OF_GRAD, world.bad_param = 1, world.bad = (double)INFINITY;
    stops(tess__judge_norm(&t), "step 7: the gradient norm is nan: rank 2, unit h.0: element 100 of the gradient of "
                                "\"b\" is inf");
    world.other = 2;
    t.scaler.now.scale = 0.5;
    stops(tess__judge_norm(&t), "step 7: the gradient norm is nan with losses times 0.5, the least scale: rank 1, unit "
                                "h.0: element 100 of the gradient of \"b\" is inf");
    world.exchange = TESS_E_PEER;
    assert_int_equal(tess__judge_norm(&t), TESS_E_PEER);
    world.load = TESS_E_DEVICE;
    assert_int_equal(tess__judge_norm(&t), TESS_E_DEVICE);
}

static void test_finite__a_run_stops_or_goes_on_or_leaves_the_step_out(void **state) {
    begin(state);
    t.step.norm = 5;
    assert_int_equal(tess__judge_norm(&t), TESS_OK);
    t.step.norm = (double)INFINITY;
    world.rescues = 1; /* the scale of losses falls in its place */
    assert_int_equal(tess__judge_norm(&t), TESS_OK);
    assert_int_equal(world.exchanges, 0);
    world.rescues = 0;
    t.settings.on_nan = TESS__NAN_WARN;
    for (int i = 0; i < 4; i++)
        assert_int_equal(tess__judge_norm(&t), TESS_OK);
    assert_true(world.exchanges == 1 && !t.step.skips);
    expect_logged(1, TESS_LOG_WARNING,
                  "step 7: the gradient norm is inf; the run goes on, and this is said once "
                  "(TESSERA_ON_NAN)");
    for (int32_t rank = 0; rank < 2; rank++) {
        begin(state);
        t.comms.world.rank = rank;
        t.settings.on_nan = TESS__NAN_SKIP;
        t.step.norm = (double)INFINITY;
        for (int i = 1; i <= 17; i++) { /* the first, the second, the fourth… */
            int said = (i & (i - 1)) == 0, before = logged.n;
            t.step.skips = 0;
            assert_int_equal(tess__judge_norm(&t), TESS_OK);
            assert_true(t.step.skips == 1 && t.step.n_skipped == (uint64_t)i);
            assert_int_equal(logged.n - before, said && rank == 0);
        }
        assert_int_equal(world.exchanges, 5); /* all ranks search together */
        if (rank == 0)
            expect_logged(5, TESS_LOG_WARNING,
                          "step 7: the gradient norm is inf; the step is left out, 16 so far "
                          "(TESSERA_ON_NAN=skip)");
    }
    begin(state);
    t.comms.world.rank = 1; /* rank 0 says it */
    t.settings.on_nan = TESS__NAN_WARN;
    t.step.norm = (double)INFINITY;
    assert_int_equal(tess__judge_norm(&t), TESS_OK);
    assert_true(logged.n == 0 && t.step.warned_not_finite == 1);
}

static void test_finite__a_spike_is_above_so_many_times_the_usual(void **state) {
    const char *said = "step 7: the gradient norm is 6.5, more than 3 times 2, the median of the steps before "
                       "(TESSERA_SPIKE)";
    char want[300];
    t.settings.spike = 3;
    t.step.norm = 6;
    world.usual = 2;
    assert_int_equal(tess__judge_norm(&t), TESS_OK); /* just so much */
    t.step.norm = 6.5;
    stops(tess__judge_norm(&t), said);
    world.usual = 0.5; /* a small one counts too */
    assert_int_equal(tess__judge_norm(&t), TESS_E_NOT_FINITE);
    world.usual = 0; /* none is known */
    assert_int_equal(tess__judge_norm(&t), TESS_OK);
    world.usual = 2;
    t.settings.spike = 0;
    assert_int_equal(tess__judge_norm(&t), TESS_OK);
    for (int32_t rank = 0; rank < 2; rank++)
        for (int skip = 0; skip < 2; skip++) {
            begin(state);
            t.settings.spike = 3;
            t.step.norm = 6.5;
            world.usual = 2;
            t.comms.world.rank = rank;
            t.settings.on_nan = skip ? TESS__NAN_SKIP : TESS__NAN_WARN;
            for (int i = 0; i < 3; i++)
                assert_int_equal(tess__judge_norm(&t), TESS_OK);
            assert_int_equal(t.step.n_skipped, skip ? 3 : 0);
            snprintf(want, sizeof want, "%s%s", said,
                     skip ? "; the step is left out, 2 so far (TESSERA_ON_NAN=skip)" : "");
            expect_logged(rank ? 0 : skip ? 2 : 3, TESS_LOG_WARNING, rank ? "" : want);
        }
}

static void test_finite__what_a_step_leaves_is_looked_at(void **state) {
    for (uint32_t of = TESS_OF_PARAM; of <= TESS_OF_MOMENT1 + 1; of++) {
        begin(state);
        t.comms.world.rank = 1;
        int64_t *note = tess__note_of_step(&t);
        assert_true(note == &t.step.noted && *note == 0);
        assert_int_equal(tess__look_at_steps(&t), TESS_OK);
        *note = 5;
        assert_true(tess__note_of_step(&t) == note && *note == 5); /* what is noted stays */
        world.bad_of = of;
        world.bad_param = 3;
        world.bad = (double)NAN;
        char want[200];
        int found = of != TESS_OF_GRAD && of != TESS_OF_MOMENT1; /* gradients are gone, and bytes are no floats */
        snprintf(want, sizeof want, "step 5 leaves values that are not finite%s%s%s",
                 found ? ": rank 1, unit h.0: element 100 of " : "",
                 !found                ? ""
                 : of == TESS_OF_PARAM ? "parameter"
                                       : "an optimizer state of",
                 found ? " \"d\" is nan" : "");
        stops(tess__look_at_steps(&t), want);
        assert_int_equal(world.exchanges, 0); /* this rank alone */
        t.settings.on_nan = TESS__NAN_WARN;
        for (int i = 0; i < 2; i++)
            assert_int_equal(tess__look_at_steps(&t), TESS_OK);
        assert_true(logged.n == 1 && logged.level == TESS_LOG_WARNING); /* whichever rank it is */
    }
    begin(state);
    t.streams.on = 1; /* a device notes it behind the norm */
    notes[TESS__NORM_LIMBS] = 9;
    assert_ptr_equal(tess__note_of_step(&t), &notes[TESS__NORM_LIMBS]);
    assert_int_equal(notes[TESS__NORM_LIMBS], 0);
}

static void test_finite__a_norm_that_comes_late_counts(void **state) {
    t.streams.not_finite_step = 4;
    stops(tess__look_at_steps(&t), "step 4: the gradient norm is not finite");
    world.bad_of = TESS_OF_PARAM, world.bad_param = 1, world.bad = (double)INFINITY;
    stops(tess__look_at_steps(&t),
          "step 4: the gradient norm is not finite: rank 0, unit h.0: element 100 of parameter "
          "\"b\" is inf");
    tess__note_of_step(&t);
    t.step.n_norms = 3;
    tess__forget_steps(&t); /* as for a rank that goes back */
    assert_true(!t.step.noted_at && !t.step.n_norms && !t.streams.not_finite_step);
    assert_int_equal(tess__look_at_steps(&t), TESS_OK);
    for (int i = 0; i < 4; i++) {
        begin(state);
        world.limbs = i == 3 ? 2 : (double)INFINITY;
        t.step.norm_limbs = i == 0 ? NULL : notes;
        t.streams.late = i == 1;
        assert_int_equal(tess__look_at_last_norm(&t), TESS_OK);
        assert_int_equal(world.waits, i > 1);
        assert_int_equal(t.streams.not_finite_step, i == 2 ? 6 : 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_finite__the_first_bad_gradient_is_found_wherever_it_is, begin),
        cmocka_unit_test_setup(test_finite__a_run_stops_or_goes_on_or_leaves_the_step_out, begin),
        cmocka_unit_test_setup(test_finite__a_spike_is_above_so_many_times_the_usual, begin),
        cmocka_unit_test_setup(test_finite__what_a_step_leaves_is_looked_at, begin),
        cmocka_unit_test_setup(test_finite__a_norm_that_comes_late_counts, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
