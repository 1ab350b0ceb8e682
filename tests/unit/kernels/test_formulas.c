/* SPDX-License-Identifier: BSD-3-Clause */
#include "kernel_fixture.h"

enum { ELEMS = 128, STEPS = 10 };
typedef struct {
    const char *name;
    uint32_t optimizer, states;
    float lr, weight_decay, momentum, beta1, beta2, eps, rho;
    uint32_t exact[3][ELEMS]; /* parameter, state 0, state 1 with correctly rounded square roots */
    uint32_t own[ELEMS];      /* the parameter with the square roots of PyTorch's CPU build */
} reference;
static const reference references[] = {
#include "tests/reference/optimizers.inc"
};

/* Ten steps as the reference took them, in two segments. */
static void train(const reference *r, float *param, float *state0, float *state1, float grad_scale) {
    tess_segment segments[2] = { { .struct_size = sizeof segments[0],
                                   .elems = 50,
                                   .lr = r->lr,
                                   .weight_decay = r->weight_decay,
                                   .momentum = r->momentum } };
    tess_optimizer optimizer = { .struct_size = sizeof optimizer,
                                 .optimizer = r->optimizer,
                                 .n_segments = 2,
                                 .segments = segments,
                                 .beta1 = r->beta1,
                                 .beta2 = r->beta2,
                                 .eps = r->eps,
                                 .rho = r->rho,
                                 .grad_scale = grad_scale };
    float grad[ELEMS];
    const void *in[1] = { grad };
    tess_kernel kernel = { .struct_size = sizeof kernel,
                           .kernel = TESS_K_OPTIMIZER,
                           .in_dtype = TESS_F32,
                           .out_dtype = TESS_F32,
                           .n_in = 1,
                           .in = in,
                           .out = param,
                           .elems = ELEMS,
                           .state = { r->states > 0 ? state0 : NULL, r->states > 1 ? state1 : NULL },
                           .optimizer = &optimizer };
    uint64_t seed = 42;
    segments[1] = segments[0];
    segments[1].first = 50;
    segments[1].elems = ELEMS - 50;
    for (int i = 0; i < ELEMS; i++)
        param[i] = random_unit(&seed);
    memset(state0, 0, ELEMS * sizeof *state0);
    memset(state1, 0, ELEMS * sizeof *state1);
    for (optimizer.step = 1; optimizer.step <= STEPS; optimizer.step++) {
        for (int i = 0; i < ELEMS; i++) {
            float unit = random_unit(&seed);
            grad[i] = ldexpf(unit, (int)(next_random(&seed) % 24) - 12) / grad_scale;
        }
        run_kernel(&kernel, NULL);
    }
}

static void test_formulas__optimizers_equal_pytorch_to_the_bit(void **state) {
    (void)state;
    float p[ELEMS], a[ELEMS], b[ELEMS];
    for_each_isa(isa) for (size_t c = 0; c < sizeof references / sizeof references[0]; c++) {
        const reference *r = &references[c];
        train(r, p, a, b, 1);
        for (int i = 0; i < ELEMS; i++)
            if (tess_f32_bits(p[i]) != r->exact[0][i] || (r->states > 0 && tess_f32_bits(a[i]) != r->exact[1][i]) ||
                (r->states > 1 && tess_f32_bits(b[i]) != r->exact[2][i]))
                fail_msg("%s, %s, element %d: %08x %08x %08x, PyTorch has %08x %08x %08x", r->name, tess__isa_name(isa),
                         i, tess_f32_bits(p[i]), tess_f32_bits(a[i]), tess_f32_bits(b[i]), r->exact[0][i],
                         r->exact[1][i], r->exact[2][i]);
    }
    tess__isa_limit(0);
}

/* PyTorch's CPU build takes square roots from a library that does not round them correctly; after ten steps that is
 * seen in the last bits of a parameter. */
static void test_formulas__pytorchs_own_square_roots_stay_near(void **state) {
    (void)state;
    float p[ELEMS], a[ELEMS], b[ELEMS];
    for (size_t c = 0; c < sizeof references / sizeof references[0]; c++) {
        const reference *r = &references[c];
        float worst = 0;
        int differ = 0;
        train(r, p, a, b, 1);
        for (int i = 0; i < ELEMS; i++) {
            float off = fabsf(p[i] - tess_f32_of_bits(r->own[i]));
            differ += off != 0;
            worst = off > worst ? off : worst;
        }
        print_message("%-16s %d of %d parameters differ from PyTorch's own, by %g at most\n", r->name, differ, ELEMS,
                      (double)worst);
        assert_true(r->optimizer == TESS_OPT_SGD ? worst == 0 : worst <= 0x1p-22f);
    }
}

static void test_formulas__grad_scale_multiplies_first(void **state) {
    (void)state;
    float p[ELEMS], q[ELEMS], a[ELEMS], b[ELEMS];
    for (size_t c = 0; c < sizeof references / sizeof references[0]; c++) {
        train(&references[c], p, a, b, 1);
        train(&references[c], q, a, b, 0.25f); /* gradients four times as large */
        assert_memory_equal(p, q, sizeof p);
    }
}

static void test_formulas__a_float_setting_stands_for_its_decimal(void **state) {
    (void)state;
    assert_true(tess_decimal_of_f32(0.999f) == 0.999);
    assert_true(tess_decimal_of_f32(1e-8f) == 1e-8);
    assert_true(tess_decimal_of_f32(0.0006f) == 0.0006);
    assert_true(tess_decimal_of_f32(0) == 0 && !signbit(tess_decimal_of_f32(0)) && signbit(tess_decimal_of_f32(-0.0f)));
    assert_true(tess_decimal_of_f32(-1.5f) == -1.5);
    assert_true((float)tess_decimal_of_f32(0x1.fffffep-3f) == 0x1.fffffep-3f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formulas__optimizers_equal_pytorch_to_the_bit),
        cmocka_unit_test(test_formulas__pytorchs_own_square_roots_stay_near),
        cmocka_unit_test(test_formulas__grad_scale_multiplies_first),
        cmocka_unit_test(test_formulas__a_float_setting_stands_for_its_decimal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
