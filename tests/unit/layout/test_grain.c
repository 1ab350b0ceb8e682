/* SPDX-License-Identifier: BSD-3-Clause */
/* Answers of plugins on one parameter, each beside its bound: how an optimizer steps it, and its dtypes. Either they
 * are taken as plugin.h says, or one line names what cannot be. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "core/base/status.h"
#include "core/layout/dtypes.h"
#include "core/layout/grain.h"
#include "tests/unit/no_steps.h"

enum { ELEMS = 6 * 100 };
static tess_grain answer;
static tess_precision_choice choice;
static tess_status fails;
static uint32_t flags_seen;
static char weight[] = "a.w";
static tess__param param;
static tess__setup setup;

static tess_status describe(void *ctx, const tess_param_view *v, uint32_t flags, tess_grain *out, tess_error *e) {
    assert_true(ctx == &answer && v->struct_size == sizeof *v && v->dtype == TESS_F32 && v->flags == 0);
    assert_true(v->name == weight && v->elems == param.elems && v->shape == param.shape && v->ndim == param.ndim);
    assert_true(v->group == 3 && v->compute_mask == param.compute_dtypes && out->struct_size == sizeof *out);
    assert_true(!out->grain && !out->n_states && !out->block);
    flags_seen = flags;
    if (fails)
        snprintf(e->message, sizeof e->message, "no step of mine");
    *out = answer;
    return fails;
}
static tess_optimizer_ops ops = {
    .struct_size = sizeof ops, .describe = describe, .step = no_step, .matrix = no_matrix
};

static void begin(void) {
    ops.step = no_step, ops.matrix = no_matrix;
    param = (tess__param){ .name = weight, .dtype = TESS_F32, .elems = ELEMS, .ndim = 2, .shape = { 6, 100 } };
    param.optimizer_group = 3;
    param.compute_dtypes = 1u << TESS_F32 | 1u << TESS_BF16 | 1u << TESS_F8E4M3;
    setup = (tess__setup){ .step = &ops, .step_ctx = &answer, .step_name = "odd" };
    fails = TESS_OK;
}

/* ---- an optimizer's answers ---- */

static const tess_grain element = { .grain = TESS_GRAIN_ELEMENT,
                                    .n_states = 2,
                                    .state = { { TESS_F32, 1, "m" }, { TESS_U8, 1, "v_2" } } },
                        block = { .grain = TESS_GRAIN_BLOCK,
                                  .block = 256,
                                  .n_states = 2,
                                  .state = { { TESS_U8, 1, "m" }, { TESS_F32, 256, "v" } } },
                        row = { .grain = TESS_GRAIN_ROW,
                                .n_states = 2,
                                .state = { { TESS_F32, 1, "m" }, { TESS_F32, 100, "v" } } },
                        matrix = { .grain = TESS_GRAIN_MATRIX,
                                   .n_states = 2,
                                   .state = { { TESS_F32, 1, "m" }, { TESS_F32, 50, "v" } },
                                   .whole = 1,
                                   .rows = 4,
                                   .cols = 50,
                                   .scratch_bytes = 1000 };

static void answers(const tess_grain *g) {
    begin();
    answer = *g;
}

static void refused(const char *why) {
    tess_grain out;
    char want[256];
    snprintf(want, sizeof want, "parameter \"a.w\": optimizer odd %s", why);
    assert_int_equal(tess__param_step(&setup, &param, &out), TESS_E_UNSUPPORTED);
    assert_string_equal(tess_last_error(), want);
}

static tess_grain taken(void) {
    tess_grain out;
    if (tess__param_step(&setup, &param, &out))
        fail_msg("%s", tess_last_error());
    return out;
}

#define NO_GRAIN "states no grain that is known, expected an element, a block, a row or a matrix"
#define NO_BLOCK "states a block that is no power of two up to 8192, or one beside another grain"
#define NO_STATE                                                                                                       \
    "states a state without a known dtype, a name of [a-z0-9_], or with another `every` than 1 and its block or row"
#define NO_STACK "states a matrix of which the parameter is no stack: rows times cols has to divide it"
#define NO_WHOLE "states in `whole` a state that it does not have, or one that is not fp32 for each element"
#define NO_MATRIX "states the grain of a matrix without `matrix` for it, or beside a kernel"
#define NO_KERNEL_STATES "names a kernel, and other states than the kernel's: fp32, one value for each element"

static void test_grain__blocks_and_states_have_their_bounds(void **state) {
    (void)state;
    static const uint32_t good[] = { 1, 2, 64, 4096, 8192 }, bad[] = { 0, 3, 255, 8191, 8193, 16384 };
    answers(&element), answer.grain = 0, refused(NO_GRAIN);
    answers(&element), answer.grain = TESS_GRAIN_ROW + 1, refused(NO_GRAIN);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        answers(&block), answer.block = answer.state[1].every = good[i], assert_int_equal(taken().block, good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        answers(&block), answer.block = bad[i], refused(NO_BLOCK);
    answers(&element), answer.block = 1, refused(NO_BLOCK);
    answers(&row), answer.block = 64, refused(NO_BLOCK);
    answers(&element), answer.n_states = 5, refused("states more than 4 states");
    answers(&element), answer.n_states = 4, refused(NO_STATE); /* of which two are empty */
    for (uint32_t k = 0; k < 4; k++)
        answer.state[k] = (tess_state){ TESS_F32, 1, { (char)('a' + k) } };
    assert_int_equal(taken().n_states, 4);
    answer.state[3].name[0] = 'b';
    refused("states two states of one name, by which checkpoints keep them");
    answers(&element), answer.state[1].dtype = 0, refused(NO_STATE);
    answers(&element), answer.state[0].dtype = 77, refused(NO_STATE);
    answers(&element), answer.state[1].every = 0, refused(NO_STATE);
    answers(&element), answer.state[1].every = 2, refused(NO_STATE);
    answers(&block), answer.state[1].every = 128, refused(NO_STATE);
    answers(&row), answer.state[1].every = 6, refused(NO_STATE);
    answers(&matrix), answer.state[1].every = 100, refused(NO_STATE);
    for (const char *c = "A-. %"; *c; c++)
        answers(&element), answer.state[1].name[1] = *c, refused(NO_STATE);
    answers(&element), memset(answer.state[1].name, 'x', 32), refused(NO_STATE);
    answer.state[1].name[31] = 0, assert_int_equal(strlen(taken().state[1].name), 31);
}

/* A row is the last dimension; a parameter of one element is a row of one. */
static void test_grain__rows_have_their_bounds(void **state) {
    (void)state;
    answers(&row), assert_int_equal(taken().block, 100);
    answers(&row), param.ndim = 0, param.elems = 1, answer.state[1].every = 1, assert_int_equal(taken().block, 1);
    answers(&row), param.shape[1] = answer.state[1].every = TESS_ROW_MOST;
    assert_int_equal(taken().block, TESS_ROW_MOST);
    param.shape[1] = answer.state[1].every = TESS_ROW_MOST + 1;
    refused("steps rows, and has rows of more than 65536 elements");
    answers(&block), param.shape[1] = TESS_ROW_MOST + 1, (void)taken(); /* which has no rows */
    answers(&element), param.shape[1] = TESS_ROW_MOST + 1, assert_int_equal(taken().block, 0);
}

static void test_grain__matrices_are_a_stack(void **state) {
    (void)state;
    static const struct {
        uint64_t rows, cols;
        int good;
    } shapes[] = { { 6, 100, 1 },        { 1, 1, 1 },          { 600, 1, 1 }, { 1, 600, 1 }, { 3, 50, 1 },
                   { 0, 100, 0 },        { 6, 0, 0 },          { 7, 100, 0 }, { 1, 601, 0 }, { 601, 1, 0 },
                   { 1ull << 63, 2, 0 }, { 2, 1ull << 63, 0 }, { 25, 48, 0 }, { 4, 100, 0 } };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        answers(&matrix), answer.n_states = 1, answer.rows = shapes[i].rows, answer.cols = shapes[i].cols;
        if (!shapes[i].good)
            refused(NO_STACK);
        else {
            const tess_grain g = taken();
            assert_true(g.rows == shapes[i].rows && g.cols == shapes[i].cols && g.scratch_bytes == 1000 &&
                        g.whole == 1);
            assert_int_equal(g.block, 0); /* it may be cut anywhere */
        }
    }
    answers(&matrix), assert_int_equal(taken().block, 50); /* no row of it, of which there is one value */
    answers(&matrix), answer.scratch_bytes = 1ull << 40, assert_true(taken().scratch_bytes == 1ull << 40);
    answer.scratch_bytes++, refused("states more than a tebibyte of scratch");
    answers(&matrix), answer.whole = 2, refused(NO_WHOLE); /* one value of a row */
    answers(&matrix), answer.whole = 4, refused(NO_WHOLE); /* none */
    answers(&matrix), answer.whole = 16, refused(NO_MATRIX);
    answers(&matrix), answer.state[0].dtype = TESS_BF16, refused(NO_WHOLE);
    answers(&matrix), answer.state[1].every = 1, answer.whole = 3, assert_int_equal(taken().whole, 3);
    answers(&matrix), answer.whole = 0, assert_int_equal(taken().whole, 0);
    answers(&matrix), answer.kernel = TESS_OPT_ADAMW, refused(NO_MATRIX);
    answers(&matrix), ops.matrix = NULL, refused(NO_MATRIX);
    answers(&matrix), param.elems = 3 * (TESS_ROW_MOST + 1), answer.rows = 3;
    answer.cols = answer.state[1].every = TESS_ROW_MOST + 1;
    refused("steps rows, and has rows of more than 65536 elements");
    answer.n_states = 1, assert_int_equal(taken().block, 0);
}

/* A device's kernel has its own states: two, but of sgd one with a momentum and else none. */
static void test_grain__a_kernel_brings_its_states(void **state) {
    (void)state;
    for (uint32_t kernel = TESS_OPT_SGD; kernel <= TESS_OPT_ADADELTA + 1; kernel++)
        for (uint32_t n = 0; n < 4; n++)
            for (int momentum = 0; momentum < 2; momentum++) {
                const uint32_t want = kernel != TESS_OPT_SGD ? 2 : (uint32_t)momentum;
                answers(&element), setup.with_momentum = momentum, ops.step = NULL;
                answer.kernel = kernel, answer.n_states = n;
                for (uint32_t k = 0; k < n; k++)
                    answer.state[k] = (tess_state){ TESS_F32, 1, { (char)('a' + k) } };
                if (kernel > TESS_OPT_ADADELTA)
                    refused("names a kernel that no device has");
                else if (n != want)
                    refused(NO_KERNEL_STATES);
                else
                    assert_true(taken().kernel == kernel && taken().n_states == n);
                assert_int_equal(flags_seen, momentum ? TESS_STEPS_MOMENTUM : 0);
            }
    answers(&element), answer.kernel = TESS_OPT_ADAM, refused(NO_KERNEL_STATES); /* bytes */
    answers(&block), answer.kernel = TESS_OPT_ADAM, answer.state[0].dtype = TESS_F32, refused(NO_KERNEL_STATES);
    answers(&element), ops.step = NULL, refused("has no step, and names no kernel for it");
    answers(&element), fails = TESS_E_INVALID;
    tess_grain out;
    assert_int_equal(tess__param_step(&setup, &param, &out), TESS_E_INVALID);
    assert_string_equal(tess_last_error(), "parameter \"a.w\": optimizer odd: no step of mine");
}

/* By their bytes groups are told apart, so what means nothing is zero. */
static void test_grain__what_means_nothing_is_zero(void **state) {
    (void)state;
    tess_grain want = { .struct_size = sizeof want,
                        .grain = TESS_GRAIN_ELEMENT,
                        .n_states = 2,
                        .state = { { TESS_F32, 1, "m" }, { TESS_U8, 1, "v_2" } } };
    answers(&element);
    answer.struct_size = 5, answer.whole = 7, answer.rows = 3, answer.cols = 4, answer.scratch_bytes = 9;
    answer.state[2] = (tess_state){ TESS_F32, 9, "x" };
    memset(answer.state[1].name + 4, 'z', 28);
    tess_grain out = taken();
    assert_memory_equal(&out, &want, sizeof want);
    setup.step = NULL; /* without a plugin the setup says it */
    for (uint32_t optimizer = 0; optimizer < 3; optimizer += 2) {
        setup.optimizer = optimizer, setup.n_states = optimizer ? 2 : 0;
        want = (tess_grain){ .struct_size = sizeof want, .kernel = optimizer, .n_states = optimizer ? 2 : 0 };
        want.grain = optimizer ? TESS_GRAIN_ELEMENT : 0;
        for (uint32_t k = 0; k < want.n_states; k++)
            want.state[k] = (tess_state){ .dtype = TESS_F32, .every = 1 };
        out = taken();
        assert_memory_equal(&out, &want, sizeof want);
    }
}

/* ---- a precision plugin's answers ---- */

static int makes_blocks, drew;
static tess_status kernel_need(void *ctx, const tess_kernel *k, tess_need *out) {
    assert_true(ctx == &choice && k->kernel == TESS_K_CAST && k->in_dtype == TESS_F32 && k->n_in == 1);
    assert_true(k->struct_size == sizeof *k && out->struct_size == sizeof *out);
    assert_int_equal(k->out_dtype, choice.gather == TESS_Q8 ? TESS_Q8 : TESS_Q8E4M3);
    drew = k->rounding != NULL;
    return makes_blocks ? TESS_OK : TESS_E_UNSUPPORTED;
}
static tess_status device_describe(void *ctx, int32_t index, tess_device_info *out, tess_error *e) {
    assert_true(ctx == &choice && index == -1 && !e);
    snprintf(out->name, sizeof out->name, "toaster");
    return TESS_OK;
}
static tess_status choose(void *ctx, const tess_param_view *v, tess_precision_choice *out, tess_error *e) {
    assert_true(ctx == &choice && v->name == weight && out->struct_size == sizeof *out);
    assert_int_equal(v->flags, param.flags & TESS_FROZEN ? 1 : 0);
    if (fails)
        snprintf(e->message, sizeof e->message, "none fits");
    *out = choice;
    return fails;
}
static const tess_precision_ops precision = { .struct_size = sizeof precision, .choose = choose };
static const tess_device_ops device = { .struct_size = sizeof device,
                                        .kernel_need = kernel_need,
                                        .describe = device_describe };

static void chooses(void) {
    begin();
    setup.precision = &precision, setup.precision_ctx = &choice, setup.device = &device, setup.device_ctx = &choice;
    makes_blocks = 1, drew = -1;
    choice = (tess_precision_choice){ .struct_size = sizeof choice,
                                      .master = TESS_F32,
                                      .compute = TESS_BF16,
                                      .gather = TESS_BF16,
                                      .grad_local = TESS_F32,
                                      .grad_wire = TESS_BF16,
                                      .accumulate = TESS_F32 };
}

static void expect_choice(const char *why) {
    tess_precision_choice out;
    char want[256];
    tess_status s = tess__param_dtypes(&setup, &param, &out);
    snprintf(want, sizeof want, "parameter \"a.w\": %s", why ? why : "");
    assert_int_equal(s, why ? TESS_E_UNSUPPORTED : TESS_OK);
    if (why)
        assert_string_equal(tess_last_error(), want);
    else
        assert_memory_equal(&out, &choice, sizeof out);
}

#define NOT_READ "TESSERA_PRECISION asks for compute in %s, which this program's kernels do not read"

static void test_grain__are_those_that_the_programs_kernels_know(void **state) {
    (void)state;
    char text[200];
    static const uint32_t narrow[] = { TESS_F16, TESS_BF16, TESS_F8E4M3, TESS_F8E5M2 };
    chooses(), expect_choice(NULL);
    chooses(), param.compute_dtypes = 1u << TESS_F32, snprintf(text, sizeof text, NOT_READ, "bf16"),
               expect_choice(text);
    chooses(), param.compute_dtypes = 0, expect_choice(text); /* as it was declared */
    chooses(), param.compute_dtypes = 0, choice.compute = choice.gather = TESS_F32, expect_choice(NULL);
    chooses(), choice.gather = TESS_F32, expect_choice("the precision plugin gathers in a format of its own");
    for (size_t i = 0; i < 4; i++) {
        chooses(), choice.accumulate = narrow[i];
        snprintf(text, sizeof text, "the precision plugin asks for sums in %s, expected fp32",
                 tess_dtype_name(narrow[i]));
        expect_choice(text);
    }
    chooses(), choice.accumulate = TESS_F64, expect_choice(NULL);
    chooses(), choice.rounding = TESS_ROUND_STOCHASTIC, expect_choice(NULL);
    chooses(), choice.rounding = TESS_ROUND_STOCHASTIC + 1;
    expect_choice("the precision plugin asks for rounding 2, which is none");
    chooses(), choice.products = TESS_F8E4M3, expect_choice(NULL);
    param.compute_dtypes = 1u << TESS_BF16;
    expect_choice("the precision plugin asks for products in f8e4m3, which this program's kernels do not round to");
    chooses(), choice.products = TESS_BF16;
    expect_choice("the precision plugin asks for products in bf16, which this program's kernels do not round to");
    chooses(), fails = TESS_E_INVALID;
    tess_precision_choice out;
    assert_int_equal(tess__param_dtypes(&setup, &param, &out), TESS_E_INVALID);
    assert_string_equal(tess_last_error(), "parameter \"a.w\": none fits");
    chooses(), param.flags = TESS_FROZEN, expect_choice(NULL);
}

static void test_grain__blocks_are_made_of_fp32_by_the_device(void **state) {
    (void)state;
    const char *of = "the precision plugin sends %s and %s in blocks of 8 bits, expected fp32";
    char text[200];
    for (int way = 1; way < 4; way++) /* parameters, gradients, both */
        for (uint32_t rounding = 0; rounding < 2; rounding++) {
            for (makes_blocks = 0; makes_blocks < 2; makes_blocks++) {
                const int makes = makes_blocks;
                chooses();
                makes_blocks = makes;
                choice.gather = way & 1 ? TESS_Q8 : choice.gather;
                choice.grad_wire = way & 2 ? TESS_Q8E4M3 : choice.grad_wire;
                choice.rounding = rounding;
                snprintf(text, sizeof text,
                         "TESSERA_PRECISION sends blocks of 8 bits%s, which device toaster does not make: "
                         "TESSERA_DEVICE=cpu, or TESSERA_PRECISION=bf16",
                         rounding ? " by draws" : "");
                expect_choice(makes ? NULL : text);
                assert_int_equal(drew, rounding);
                assert_int_equal(tess__draws_of(&choice), rounding);
            }
            makes_blocks = 1;
            choice.master = TESS_F64;
            snprintf(text, sizeof text, of, "f64", "f32");
            expect_choice(text);
            choice.master = TESS_F32, choice.grad_local = TESS_BF16;
            snprintf(text, sizeof text, of, "f32", "bf16");
            expect_choice(text);
        }
    chooses(), choice.rounding = 1;
    assert_int_equal(tess__draws_of(&choice), 0);
    expect_choice(NULL);
    assert_int_equal(drew, -1); /* it is not asked */
}

static void test_grain__opaque_bytes_have_no_choice(void **state) {
    (void)state;
    tess_precision_choice out;
    chooses(), param.dtype = TESS_U8, fails = TESS_E_INVALID;
    assert_int_equal(tess__param_dtypes(&setup, &param, &out), TESS_OK);
    assert_true(out.master == TESS_U8 && out.compute == TESS_U8 && out.gather == TESS_U8);
    assert_true(out.grad_local == TESS_F32 && out.grad_wire == TESS_F32 && out.accumulate == TESS_F32 && !out.products);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grain__blocks_and_states_have_their_bounds),
        cmocka_unit_test(test_grain__rows_have_their_bounds),
        cmocka_unit_test(test_grain__matrices_are_a_stack),
        cmocka_unit_test(test_grain__a_kernel_brings_its_states),
        cmocka_unit_test(test_grain__what_means_nothing_is_zero),
        cmocka_unit_test(test_grain__are_those_that_the_programs_kernels_know),
        cmocka_unit_test(test_grain__blocks_are_made_of_fp32_by_the_device),
        cmocka_unit_test(test_grain__opaque_bytes_have_no_choice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
