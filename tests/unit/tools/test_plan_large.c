/* SPDX-License-Identifier: BSD-3-Clause */
/* Planning a model of 405 B parameters on 16,384 ranks: a closed form for the bytes, and within 0.1 s.
 * Many thousand parameters in many thousand units stay quick too. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tests/unit/plan_fixture.h"

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void add(plan *p, const char *name, int64_t stack, int64_t rows, int64_t cols) {
    const int64_t shape[2] = { rows, cols };
    const tess_param_options o = {
        .struct_size = sizeof o, .dtype = TESS_F32, .name = name, .stack = stack, .shape = shape, .ndim = 2
    };
    assert_int_equal(tess__model_add_param(&p->model, &o, NULL), TESS_OK);
}

/* All that tess_shard plans: wrap, layout and every program. Returns the seconds taken. */
static double plan_all(plan *p, int32_t *unit) {
    static const uint32_t passes[] = { TESS_PASS_TRAIN, TESS_PASS_TRAIN | TESS_PASS_NO_SYNC, TESS_PASS_EVAL };
    static const uint32_t others[] = { TESS__PASS_STEP, TESS__PASS_NORM, TESS__PASS_CLIP, TESS__PASS_FULL };
    const void *ops;
    void *ctx;
    int32_t n_units;
    tess__program resident = { 0 };
    p->setup.accum = 2;
    p->setup.sync_each = 0;
    double start = now_s();
    assert_int_equal(tess__wrap_scopes_open(&p->host, &ops, &ctx, NULL), TESS_OK);
    assert_int_equal(tess__model_finish(&p->model), TESS_OK);
    assert_int_equal(tess__wrap_apply_planned(&p->model, ops, ctx, "scopes", &p->setup.env, NULL, NULL, unit, &n_units),
                     TESS_OK);
    assert_int_equal(tess__layout_build(&p->model, &p->setup, unit, n_units, &p->layout), TESS_OK);
    assert_int_equal(tess__compiler_create(&p->compiler, &p->setup, &p->model, &p->layout), TESS_OK);
    assert_int_equal(tess__resident(&p->setup, &p->layout, 1, &resident), TESS_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(tess__compile_pass(&p->compiler, passes[i], NULL, 0, &p->program), TESS_OK);
    for (int i = 0; i < 4; i++)
        assert_int_equal(tess__compile_other(&p->compiler, others[i], &p->program), TESS_OK);
    assert_int_equal(tess__compile_pass(&p->compiler, TESS_PASS_TRAIN, NULL, 0, &p->program), TESS_OK);
    double seconds = now_s() - start;
    tess__program_free(&resident);
    return seconds;
}

static int is_slow_build(void) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return 1;
#else
    return getenv("VALGRIND") != NULL;
#endif
}

static void test_plan_large__405_billion_parameters_are_planned_in_a_tenth_of_a_second(void **state) {
    (void)state;
    enum { WIDTH = 16384, HIDDEN = 53248, LAYERS = 126, KV = 1024, VOCABULARY = 128256 };
    static int32_t unit[2000];
    plan p;
    plan_init(&p, 16384);
    p.setup.n_states = 2;
    assert_int_equal(tess__model_add_scope(&p.model, "embed", 0, NULL), TESS_OK);
    assert_int_equal(tess__model_add_scope(&p.model, "layers.*", LAYERS, NULL), TESS_OK);
    assert_int_equal(tess__model_add_scope(&p.model, "head", 0, NULL), TESS_OK);
    add(&p, "embed.weight", 0, VOCABULARY, WIDTH);
    add(&p, "layers.*.q", LAYERS, WIDTH, WIDTH);
    add(&p, "layers.*.k", LAYERS, KV, WIDTH);
    add(&p, "layers.*.v", LAYERS, KV, WIDTH);
    add(&p, "layers.*.o", LAYERS, WIDTH, WIDTH);
    add(&p, "layers.*.gate", LAYERS, HIDDEN, WIDTH);
    add(&p, "layers.*.up", LAYERS, HIDDEN, WIDTH);
    add(&p, "layers.*.down", LAYERS, WIDTH, HIDDEN);
    add(&p, "layers.*.norm1", LAYERS, 1, WIDTH);
    add(&p, "layers.*.norm2", LAYERS, 1, WIDTH);
    add(&p, "head.norm", 0, 1, WIDTH);
    add(&p, "head.weight", 0, VOCABULARY, WIDTH);
    double seconds = plan_all(&p, unit);
    assert_int_equal(p.layout.param_elems, UINT64_C(405853388800));
    assert_int_equal(p.layout.n_units, LAYERS + 2);
    uint64_t layer = 2 * (uint64_t)WIDTH * WIDTH + 2 * (uint64_t)KV * WIDTH + 3 * (uint64_t)WIDTH * HIDDEN + 2 * WIDTH;
    uint64_t shard = (layer + 16384 * 64 - 1) / (16384 * 64) * 64;
    assert_int_equal(p.layout.groups[1].shard_elems, shard);
    printf("405 B parameters, %d names, %d instructions: %.1f ms\n", p.model.n_params, p.program.n_instrs,
           seconds * 1e3);
    if (!is_slow_build())
        assert_true(seconds < 0.1);
    plan_free(&p);
}

static void test_plan_large__twenty_thousand_parameters_in_five_thousand_units_are_quick(void **state) {
    (void)state;
    enum { UNITS = 5000 };
    static int32_t unit[4 * UNITS];
    plan p;
    plan_init(&p, 8);
    double start = now_s();
    assert_int_equal(tess__model_add_scope(&p.model, "m.*", UNITS, NULL), TESS_OK);
    for (int i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof name, "m.*.p%d", i);
        add(&p, name, UNITS, i + 1, 50);
    }
    double declared = now_s() - start, seconds = plan_all(&p, unit);
    assert_int_equal(p.layout.n_units, UNITS);
    printf("%d parameters in %d units: declared in %.1f ms, planned in %.1f ms\n", p.model.n_params, UNITS,
           declared * 1e3, seconds * 1e3);
    if (!is_slow_build())
        assert_true(declared + seconds < 2);
    plan_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_large__405_billion_parameters_are_planned_in_a_tenth_of_a_second),
        cmocka_unit_test(test_plan_large__twenty_thousand_parameters_in_five_thousand_units_are_quick),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
