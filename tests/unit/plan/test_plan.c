/* SPDX-License-Identifier: BSD-3-Clause */
/* A plan is made, tried and dropped without an engine, a device or other ranks. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include "core/plan/plan.h"
#include "tests/unit/no_steps.h"
#include "tests/unit/plan_fixture.h"

static tess__plan_wrap wrap_of(plan_wrap_open open, const char *text) {
    const void *ops;
    void *ctx;
    tess_error e = { .struct_size = sizeof e };
    tess_host host = plan_host("");
    assert_int_equal(open(&host, &ops, &ctx, &e), TESS_OK);
    return (tess__plan_wrap){ ops, ctx, text };
}

static void declare(tess__plan *p, plan *f, int32_t nranks) {
    plan_init(f, nranks);
    f->setup.optimizer = TESS_OPT_ADAMW, f->setup.n_states = 2;
    plan_scope(f, "a");
    plan_scope(f, "b");
    assert_int_equal(plan_param(f, "a.w", 1000, 0), TESS_OK);
    assert_int_equal(plan_param(f, "b.w", 7000, 0), TESS_OK);
    *p = (tess__plan){ .setup = f->setup, .model = f->model, .wrap = wrap_of(tess__wrap_scopes_open, "scopes") };
}

static void test_plan__an_alternative_leaves_the_plan_as_it_was(void **state) {
    (void)state;
    plan f;
    tess__plan p, other;
    declare(&p, &f, 4);
    assert_int_equal(tess__plan_make(&p), TESS_OK);
    uint64_t bytes = tess__planned_bytes(&p, TESS_DOMAIN_DEVICE), hash = p.programs[TESS__P_TRAIN].hash;
    uint64_t offset = p.model.params[1].offset;
    assert_int_equal(p.layout.n_units, 2);
    assert_true(bytes > 0 && hash);
    assert_ptr_equal(tess__plan_fullest(&p, TESS_DOMAIN_HOST), &p.programs[0]);

    assert_int_equal(tess__plan_try(&p, &other), TESS_OK);
    other.wrap = wrap_of(tess__wrap_none_open, "none");
    assert_int_equal(tess__setup_strategy(&other.setup, "none"), TESS_OK);
    assert_int_equal(tess__plan_remake(&other), TESS_OK);
    assert_int_equal(other.layout.n_units, 1);
    assert_true(tess__planned_bytes(&other, TESS_DOMAIN_DEVICE) > bytes); /* nothing is sharded */
    assert_true(other.programs[TESS__P_TRAIN].hash != hash);
    assert_int_equal(other.model.params[1].offset, 1024);
    tess__plan_drop(&other);

    assert_int_equal(tess__planned_bytes(&p, TESS_DOMAIN_DEVICE), bytes);
    assert_int_equal(p.programs[TESS__P_TRAIN].hash, hash);
    assert_int_equal(p.model.params[1].offset, offset);
    tess__plan_free(&p);
}

static void test_plan__a_plan_over_its_budget_can_be_read(void **state) {
    (void)state;
    plan f;
    tess__plan p;
    declare(&p, &f, 2);
    p.n_user = 1;
    p.user_bytes[0] = 640;
    p.setup.env.device_budget_bytes = 1000;
    assert_int_equal(tess__plan_make(&p), TESS_E_BUDGET);
    uint64_t bytes = tess__planned_bytes(&p, TESS_DOMAIN_DEVICE);
    assert_true(bytes > 1000);
    assert_non_null(strstr(tess_last_error(), "activation 640")); /* what the program took itself is in the list */
    p.setup.env.device_budget_bytes = bytes;
    assert_int_equal(tess__plan_check_budget(&p), TESS_OK);
    p.setup.env.device_budget_bytes = bytes - 1;
    assert_int_equal(tess__plan_check_budget(&p), TESS_E_BUDGET);
    tess__plan_free(&p);
}

/* ---- how far ahead units are gathered ---- */

/* A library of the program's own shares the cores with gathers within a host. Else one unit is gathered ahead. */
static void test_plan__nothing_is_gathered_ahead_beside_a_library_on_one_host(void **state) {
    (void)state;
    static const struct {
        int32_t holds, per_host, fixed, expected;
        const char *offload;
    } cases[] = { { 1, 4, 0, 0, "none" },
                  { 0, 4, 0, 1, "none" },
                  { 1, 2, 0, 1, "none" },
                  { 1, 4, 1, 1, "none" },
                  { 1, 4, 0, 1, "disk" } }; /* a GPU: torch/test_torch_doubles */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        plan f;
        tess__plan p;
        declare(&p, &f, 4);
        p.holds = cases[i].holds;
        p.setup.env.ranks_per_host = cases[i].per_host;
        p.setup.prefetch_fixed = cases[i].fixed;
        p.setup.offload_name = cases[i].offload;
        assert_int_equal(tess__plan_make(&p), TESS_OK);
        assert_int_equal(p.setup.prefetch, cases[i].expected);
        tess__plan_free(&p);
    }
}

/* ---- where gradients rest ---- */
enum { PARAM = 64000, OUTPUT = 6400, RESULT = 64 };

/* Two blocks of one parameter each, on one rank, with SGD: parameters and gradients, no states. */
static void plan_blocks(tess__plan *p, plan *f, int step_in_pass, uint64_t saved, uint64_t forward_scratch,
                        uint64_t backward_scratch) {
    static const char *const names[] = { "a", "b" };
    plan_init(f, 1);
    f->setup.step_in_pass = f->setup.no_clip = step_in_pass;
    f->setup.optimizer = TESS_OPT_SGD;
    for (int i = 0; i < 2; i++) {
        tess_block_options o = { .struct_size = sizeof o,
                                 .name = names[i],
                                 .output_bytes = i ? RESULT : OUTPUT,
                                 .saved_bytes = saved,
                                 .forward_scratch_bytes = forward_scratch,
                                 .backward_scratch_bytes = backward_scratch,
                                 .forward = no_block,
                                 .backward = no_block };
        assert_int_equal(tess__model_add_block(&f->model, &o, NULL), TESS_OK);
        assert_int_equal(plan_param(f, i ? "b.w" : "a.w", PARAM / 4, 0), TESS_OK);
    }
    *p = (tess__plan){ .setup = f->setup, .model = f->model, .wrap = wrap_of(tess__wrap_scopes_open, "scopes") };
    assert_int_equal(tess__plan_make(p), TESS_OK);
}

static int count_gradients(const tess__plan *p, int arena) {
    int n = 0;
    for (int32_t i = 0; i < p->resident.n_buffers; i++)
        n += p->resident.buffers[i].role == TESS__SHARD_GRAD && p->resident.buffers[i].arena == arena;
    return n;
}

/* They lie in the step arena, where saved activations were, when the peak is smaller for it. */
static void test_plan__gradients_lie_among_activations(void **state) {
    (void)state;
    enum { SAVED = 128000, SCRATCH = 51200 };
    plan f;
    tess__plan p;
    plan_blocks(&p, &f, 0, SAVED, SCRATCH, SCRATCH);
    assert_int_equal(count_gradients(&p, TESS__STEP), 2);
    assert_int_equal(p.resident.step_bytes[TESS_DOMAIN_DEVICE], 2 * PARAM);
    /* the backward of b: both blocks' saved values, outputs, the gradient of a's output, scratch, the gradient of b */
    assert_int_equal(tess__planned_bytes(&p, TESS_DOMAIN_DEVICE),
                     2 * PARAM + 2 * SAVED + 2 * OUTPUT + RESULT + SCRATCH + PARAM);
    tess__plan_free(&p);
}

/* An evaluation between a pass and its step must leave gradients alone. Here they lie above a backward's scratch, in
 * the middle of the arena, and the scratch of an evaluation, which is larger, would lie above them: LARGER + 2 PARAM +
 * LARGEST. They rest in the resident arena instead, where they cost their own bytes alone. */
static void test_plan__gradients_rest_apart_from_a_large_evaluation(void **state) {
    (void)state;
    enum { SAVED = 6400, LARGEST = 640000, LARGER = 600000 };
    plan f;
    tess__plan p;
    plan_blocks(&p, &f, 0, SAVED, LARGEST, LARGER);
    assert_int_equal(count_gradients(&p, TESS__RESIDENT), 2);
    assert_int_equal(p.resident.step_bytes[TESS_DOMAIN_DEVICE], 4 * PARAM);
    /* the forward of b in training: both blocks' saved values, outputs, scratch */
    assert_int_equal(tess__planned_bytes(&p, TESS_DOMAIN_DEVICE), 4 * PARAM + 2 * SAVED + OUTPUT + RESULT + LARGEST);
    tess__plan_free(&p);
}

/* With a step in each pass a gradient ends with its unit's step: no two are there at once, and nothing is planned that
 * would find them later. */
static void test_plan__gradients_that_step_in_their_pass_end_within_it(void **state) {
    (void)state;
    enum { SAVED = 640, SCRATCH = 51200 };
    plan f;
    tess__plan p;
    plan_blocks(&p, &f, 0, SAVED, SCRATCH, SCRATCH);
    /* the backward of a: its saved values, its output, that one's gradient, scratch, the gradients of a and b */
    assert_int_equal(tess__planned_bytes(&p, TESS_DOMAIN_DEVICE), 2 * PARAM + SAVED + 2 * OUTPUT + SCRATCH + 2 * PARAM);
    tess__plan_free(&p);
    plan_blocks(&p, &f, 1, SAVED, SCRATCH, SCRATCH);
    assert_int_equal(count_gradients(&p, TESS__STEP) + count_gradients(&p, TESS__RESIDENT), 0);
    for (int i = 0; i < TESS__N_PROGRAMS; i++)
        assert_int_equal(p.programs[i].n_instrs > 0, i == TESS__P_FUSED || i == TESS__P_EVAL || i == TESS__P_FULL);
    /* the backward of b: both blocks' saved values, outputs, the gradient of a's output, scratch, the gradient of b */
    assert_int_equal(tess__planned_bytes(&p, TESS_DOMAIN_DEVICE),
                     2 * PARAM + 2 * SAVED + 2 * OUTPUT + RESULT + SCRATCH + PARAM);
    tess__plan_free(&p);
}

/* Four blocks, of which the two in the middle have `flags`: the peak is the backward of the third. */
static uint64_t bytes_with_flags(uint32_t flags, uint64_t third_output) {
    enum { SAVED = 640, SCRATCH = 51200 };
    static const char *const names[] = { "a", "b", "c", "d" };
    plan f;
    plan_init(&f, 1);
    f.setup.step_in_pass = f.setup.no_clip = 1;
    f.setup.optimizer = TESS_OPT_SGD;
    for (int i = 0; i < 4; i++) {
        char param[8];
        tess_block_options o = { .struct_size = sizeof o, .name = names[i], .forward = no_block, .backward = no_block };
        o.flags = i == 1 || i == 2 ? flags : 0;
        o.output_bytes = i == 3 ? RESULT : i == 2 ? third_output : OUTPUT;
        o.saved_bytes = i < 3 ? SAVED : 0;
        o.backward_scratch_bytes = i < 3 ? SCRATCH : 0;
        snprintf(param, sizeof param, "%s.w", names[i]);
        assert_int_equal(tess__model_add_block(&f.model, &o, NULL), TESS_OK);
        assert_int_equal(plan_param(&f, param, PARAM / 4, 0), TESS_OK);
    }
    tess__plan p = { .setup = f.setup, .model = f.model, .wrap = wrap_of(tess__wrap_scopes_open, "scopes") };
    assert_int_equal(tess__plan_make(&p), TESS_OK);
    uint64_t bytes = tess__planned_bytes(&p, TESS_DOMAIN_DEVICE);
    tess__plan_free(&p);
    return bytes - 5 * PARAM - 3 * SAVED - SCRATCH;
}

static void test_plan__a_dropped_output_and_a_gradient_in_place_take_nothing(void **state) {
    (void)state;
    assert_int_equal(bytes_with_flags(0, OUTPUT), 5 * OUTPUT); /* three outputs, the gradients of two */
    assert_int_equal(bytes_with_flags(TESS_BLOCK_DROP_OUTPUT, OUTPUT), 4 * OUTPUT);
    assert_int_equal(bytes_with_flags(TESS_BLOCK_GRAD_IN_PLACE, OUTPUT), 4 * OUTPUT);
    assert_int_equal(bytes_with_flags(TESS_BLOCK_DROP_OUTPUT | TESS_BLOCK_GRAD_IN_PLACE, OUTPUT), 3 * OUTPUT);
    /* an output of another size than its input needs a gradient of its own */
    assert_int_equal(bytes_with_flags(TESS_BLOCK_GRAD_IN_PLACE, 2 * OUTPUT), 7 * OUTPUT);
}

/* ---- scratch of collectives ---- */

static tess_need wanted;
static tess_status need_wanted(void *ctx, const tess_plan_env *env, const tess_collective *c, tess_need *out) {
    (void)ctx, (void)c;
    TESS_GIVE(out, &wanted);
    return env->nranks == 7 ? TESS_E_UNSUPPORTED : TESS_OK;
}

static tess_status ask_scratch(tess_need need, int32_t nranks, uint64_t most, uint64_t *bytes) {
    static const tess_comm_ops comm = { .struct_size = sizeof comm, .need = need_wanted };
    plan f;
    plan_init(&f, 4);
    f.setup.comm = &comm;
    f.setup.most_bytes = most;
    wanted = need;
    *bytes = 1;
    return tess__scratch_of(&f.setup, TESS_ALL_GATHER, TESS_BF16, TESS_F32, 10, nranks, bytes);
}

static void expect_refused(tess_need need, int32_t nranks, uint64_t most, const char *why) {
    uint64_t bytes;
    assert_int_equal(ask_scratch(need, nranks, most, &bytes), TESS_E_UNSUPPORTED);
    assert_string_equal(tess_last_error(), why);
    assert_int_equal(bytes, 1);
}

static void test_plan__scratch_is_on_the_device_or_refused(void **state) {
    (void)state;
    static const char apart[] =
        "the comm plugin wants scratch outside device memory or aligned to 64 bytes for operation 1",
                      wide[] =
                          "the comm plugin wants scratch outside device memory or aligned to 128 bytes for operation 1";
    uint64_t bytes;
    assert_int_equal(TESS_ALL_GATHER, 1);
    assert_int_equal(ask_scratch((tess_need){ .device_bytes = 300, .align = 64 }, 4, 160, &bytes), TESS_OK);
    assert_int_equal(bytes, 300);
    expect_refused((tess_need){ .device_bytes = 300, .align = 128 }, 4, 0, wide);
    expect_refused((tess_need){ .pinned_bytes = 1, .align = 64 }, 4, 0, apart);
    expect_refused((tess_need){ .host_bytes = 1, .align = 64 }, 4, 0, apart);
    expect_refused((tess_need){ .align = 64 }, 7, 0,
                   "the comm plugin does not offer a collective (operation 1, bf16 to f32, 7 ranks)");
    expect_refused((tess_need){ .align = 64 }, 4, 159,
                   "a collective has 160 bytes on a rank, and the comm plugin takes 159: smaller units are needed "
                   "(TESSERA_WRAP)");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan__an_alternative_leaves_the_plan_as_it_was),
        cmocka_unit_test(test_plan__a_plan_over_its_budget_can_be_read),
        cmocka_unit_test(test_plan__nothing_is_gathered_ahead_beside_a_library_on_one_host),
        cmocka_unit_test(test_plan__gradients_lie_among_activations),
        cmocka_unit_test(test_plan__gradients_rest_apart_from_a_large_evaluation),
        cmocka_unit_test(test_plan__gradients_that_step_in_their_pass_end_within_it),
        cmocka_unit_test(test_plan__a_dropped_output_and_a_gradient_in_place_take_nothing),
        cmocka_unit_test(test_plan__scratch_is_on_the_device_or_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
