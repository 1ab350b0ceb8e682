/* SPDX-License-Identifier: BSD-3-Clause */
/* optimizer-lion and optimizer-adamw8bit: formulas, codes, and values of torchao 0.x
 * (tests/reference/make_adamw8bit.py). */
#include "tests/unit/kernels/kernel_fixture.h"
#include "core/plugin/open.h"
#include <tessera/plugin_helpers.h>
#include "plugins/optimizer-adamw8bit/codes.h"
#include "adamw8bit.inc"
#include <math.h>
#include <stdlib.h>

enum { N = 4352, STEPS = 20, EVERY = 64 };
enum { HIGH = 96, WIDE = 64, SAMPLES = 32 };
#include "two_matrices.h"

static tess__plugin *open_plugin(const char *selection) {
    tess__plugin *plugin = NULL;
    if (tess__plugin_open(TESS_KIND_OPTIMIZER, selection, NULL, &plugin) != TESS_OK)
        fail_msg("%s: %s", selection, tess_last_error());
    return plugin;
}

static tess_grain describe(const tess__plugin *p, uint64_t elems) {
    const tess_optimizer_ops *ops = p->ops;
    const int64_t shape[1] = { (int64_t)elems };
    const tess_param_view view = {
        .struct_size = sizeof view, .dtype = TESS_F32, .name = "w", .elems = elems, .shape = shape, .ndim = 1
    };
    tess_grain g = { .struct_size = sizeof g };
    assert_int_equal(ops->describe(p->ctx, &view, 0, &g, NULL), TESS_OK);
    return g;
}

/* ---- lion ---- */

static void test_optimizers__lion_is_its_formula(void **state) {
    (void)state;
    tess__plugin *plugin = open_plugin("lion:beta1=0.8");
    const tess_optimizer_ops *ops = plugin->ops;
    enum { FEW = 100 };
    float p[FEW], g[FEW], m[FEW] = { 0 };
    double want[FEW], m_want[FEW] = { 0 };
    for (uint64_t i = 0; i < FEW; i++)
        want[i] = (double)(p[i] = noise(i, 0));
    for (uint64_t step = 1; step <= 3; step++) {
        tess_optimizer_piece piece = { .struct_size = sizeof piece, .elems = FEW, .step = step, .lr = 0.01 };
        piece.weight_decay = 0.5;
        piece.beta1 = 0.3; /* the user's setting wins */
        piece.beta2 = 0.6; /* and the program's number over the usual one */
        piece.master = p, piece.grad = g, piece.state[0] = m;
        for (uint64_t i = 0; i < FEW; i++) {
            g[i] = i % 10 ? noise(i, step) : 0;
            double c = 0.8 * m_want[i] + 0.2 * (double)g[i];
            want[i] = want[i] * (1 - 0.01 * 0.5) - 0.01 * ((c > 0) - (c < 0));
            m_want[i] = 0.6 * m_want[i] + 0.4 * (double)g[i];
        }
        assert_int_equal(ops->step(plugin->ctx, &piece, NULL), TESS_OK);
    }
    for (uint64_t i = 0; i < FEW; i++)
        if (fabs((double)p[i] - want[i]) > 1e-6 || fabs((double)m[i] - m_want[i]) > 1e-6)
            fail_msg("element %d: %g and %g, expected %g and %g", (int)i, (double)p[i], (double)m[i], want[i],
                     m_want[i]);
    tess__plugin_close(plugin);
}

/* ---- adamw8bit ---- */

static void test_optimizers__adamw8bit_takes_two_bytes_an_element(void **state) {
    (void)state;
    tess__plugin *plugin = open_plugin("adamw8bit");
    tess_grain small = describe(plugin, 4095), large = describe(plugin, 4096);
    uint64_t bytes = 0;
    assert_true(small.grain == TESS_GRAIN_ELEMENT && small.kernel == TESS_OPT_ADAMW && small.n_states == 2);
    assert_true(large.grain == TESS_GRAIN_BLOCK && large.block == 256 && !large.kernel && large.n_states == 4);
    for (uint32_t k = 0; k < large.n_states; k++)
        bytes += 4096 / large.state[k].every * tess_dtype_bytes(large.state[k].dtype);
    assert_true(bytes <= 2.1 * 4096);
    tess__plugin_close(plugin);
}

static int nearest(const codes *c, float x) {
    int best = 0;
    for (int i = 1; i < CODES; i++)
        if (fabs((double)c->value[i] - (double)x) < fabs((double)c->value[best] - (double)x))
            best = i;
    return best;
}

static void test_optimizers__a_code_is_the_nearest(void **state) {
    (void)state;
    static codes c;
    for (int is_signed = 0; is_signed < 2; is_signed++) {
        codes_make(&c, is_signed);
        assert_true(c.value[CODES - 1] == 1 && c.value[0] < (is_signed ? -0.99f : 1e-30f));
        for (int i = 0; i < CODES; i++)
            assert_int_equal(codes_nearest(&c, c.value[i]), i);
        for (int i = 1; i < CODES; i++)
            assert_true(c.value[i] > c.value[i - 1]);
        for (uint64_t i = 0; i < 200000; i++) {
            float x = noise(i, 3) * powf(10, (float)(i % 9) * -1);
            x = is_signed ? x : fabsf(x);
            int found = codes_nearest(&c, x), best = nearest(&c, x);
            double off = fabs((double)c.value[found] - (double)x) - fabs((double)c.value[best] - (double)x);
            if (off > 1e-9)
                fail_msg("%.9g has code %d of %.9g, nearer is %d of %.9g", (double)x, found, (double)c.value[found],
                         best, (double)c.value[best]);
        }
        assert_true(codes_nearest(&c, 1) == CODES - 1 && c.value[codes_nearest(&c, 0)] == 0);
        assert_true(c.value[codes_nearest(&c, -0.0f)] == 0); /* what a tiny -x / most is */
    }
}

typedef struct {
    float p[N], g[N], most[2][N / 256];
    uint8_t code[2][N];
} run8;

static float decoded(const run8 *r, const codes *c, int moment, uint64_t i) {
    return c->value[r->code[moment][i]] * r->most[moment][i / 256];
}

/* Codes are equal but where the reference's rounding falls on the other side of a middle: then they are neighbours. */
static void compare(const run8 *r, const float *p, const float *m, const float *v, double tolerance) {
    static codes first, second;
    codes_make(&first, 1);
    codes_make(&second, 0);
    int other = 0;
    for (uint64_t i = 0; i < N / EVERY; i++) {
        uint64_t at = i * EVERY;
        double dm = fabs((double)decoded(r, &first, 0, at) - (double)m[i]),
               dv = fabs((double)decoded(r, &second, 1, at) - (double)v[i]);
        if (fabs((double)r->p[at] - (double)p[i]) > tolerance)
            fail_msg("element %d is %.9g, torchao has %.9g", (int)at, (double)r->p[at], (double)p[i]);
        other += dm > 1e-6 * fabs((double)m[i]) + 1e-12 || dv > 1e-6 * (double)v[i] + 1e-12;
        assert_true(dm <= 0.02 * (double)r->most[0][at / 256] && dv <= 0.02 * (double)r->most[1][at / 256]);
    }
    assert_true(other <= 3);
}

/* Nothing is rounded to codes before the first update, so each element of it is AdamW's. */
static void compare_first_update(const run8 *r) {
    for (uint64_t i = 0; i < N; i++) {
        const double g = (double)r->g[i], p = (double)noise(i, 0);
        const double want = p * (1 - 0.01 * 0.1) - 0.01 * g / (fabs(g) + 1e-8);
        if (!(fabs((double)r->p[i] - want) <= 1e-5))
            fail_msg("element %d of the first update: %.9g, expected %.9g", (int)i, (double)r->p[i], want);
    }
}

static void test_optimizers__adamw8bit_is_torchaos(void **state) {
    (void)state;
    static run8 r;
    tess__plugin *plugin = open_plugin("adamw8bit");
    const tess_optimizer_ops *ops = plugin->ops;
    for (uint64_t i = 0; i < N; i++)
        r.p[i] = noise(i, 0);
    for (uint64_t step = 1; step <= STEPS; step++) {
        tess_optimizer_piece piece = { .struct_size = sizeof piece, .elems = N, .step = step, .lr = 0.01 };
        piece.weight_decay = 0.1, piece.beta1 = 0.9, piece.beta2 = 0.99, piece.eps = 1e-8;
        piece.master = r.p, piece.grad = r.g;
        for (int k = 0; k < 2; k++)
            piece.state[k] = r.code[k], piece.state[2 + k] = r.most[k];
        for (uint64_t i = 0; i < N; i++)
            r.g[i] = noise(i, step) * 1e-3f;
        assert_int_equal(ops->step(plugin->ctx, &piece, NULL), TESS_OK);
        if (step == 1) {
            compare(&r, param_1, exp_avg_1, exp_avg_sq_1, 1e-5);
            compare_first_update(&r);
        }
    }
    compare(&r, param_20, exp_avg_20, exp_avg_sq_20, 1e-3);
    tess__plugin_close(plugin);
}

typedef struct {
    float at[HIGH * WIDE], grad[HIGH * WIDE], most[2][HIGH * WIDE / 256];
    uint8_t code[2][HIGH * WIDE];
} weight8;

static void step8(const tess__plugin *plugin, weight8 *w, uint64_t step) {
    const tess_optimizer_ops *ops = plugin->ops;
    tess_optimizer_piece piece = { .struct_size = sizeof piece, .elems = HIGH * WIDE, .step = step, .lr = 0.01 };
    piece.weight_decay = 0.1, piece.beta1 = 0.9, piece.beta2 = 0.99, piece.eps = 1e-8;
    piece.master = w->at, piece.grad = w->grad;
    for (int k = 0; k < 2; k++)
        piece.state[k] = w->code[k], piece.state[2 + k] = w->most[k];
    assert_int_equal(ops->step(plugin->ctx, &piece, NULL), TESS_OK);
}

static void test_optimizers__losses_of_adamw8bit_are_torchaos(void **state) {
    (void)state;
    static weight8 one, two;
    tess__plugin *plugin = open_plugin("adamw8bit");
    double worst = 0;
    for (uint64_t i = 0; i < HIGH * WIDE; i++) {
        one.at[i] = noise(i, 0) * 0.3f;
        two.at[i] = noise(i, 1) * 0.3f;
    }
    for (uint64_t step = 1; step <= STEPS; step++) {
        const double loss = loss_of(one.at, two.at, one.grad, two.grad), off = fabs(loss - (double)losses[step - 1]);
        if (!(off <= 1e-3))
            fail_msg("loss %g in step %d, torchao has %g", loss, (int)step, (double)losses[step - 1]);
        worst = fmax(worst, off);
        step8(plugin, &one, step);
        step8(plugin, &two, step);
    }
    print_message("adamw8bit: losses at most %.2g off in %d steps\n", worst, STEPS);
    tess__plugin_close(plugin);
}

/* One element's gradient is a small part of its block's largest one, and then exactly zero, as that of a token that
 * comes no more. Its second moment is below the least code, its first is not. AdamW's steps then shrink from lr on;
 * codes of either moment may double it. */
static void test_optimizers__a_small_second_moment_is_not_lost(void **state) {
    (void)state;
    enum { LAST = 10 };
    static const float parts[] = { 1e-6f, 1e-5f, 1e-4f, 3e-4f, 1e-3f, 1 };
    static run8 r;
    for (size_t k = 0; k < sizeof parts / sizeof parts[0]; k++) {
        tess__plugin *plugin = open_plugin("adamw8bit");
        const tess_optimizer_ops *ops = plugin->ops;
        memset(&r, 0, sizeof r);
        for (uint64_t step = 1; step <= LAST + 10; step++) {
            tess_optimizer_piece piece = { .struct_size = sizeof piece, .elems = 256, .step = step, .lr = 0.01 };
            piece.master = r.p, piece.grad = r.g;
            piece.state[0] = r.code[0], piece.state[1] = r.code[1], piece.state[2] = r.most[0],
            piece.state[3] = r.most[1];
            for (uint64_t i = 0; i < 256; i++)
                r.g[i] = i == 7 ? step <= LAST ? parts[k] : 0 : 1;
            const double before = (double)r.p[7];
            assert_int_equal(ops->step(plugin->ctx, &piece, NULL), TESS_OK);
            const double moved = before - (double)r.p[7];
            if (moved < -1e-6 || moved > 0.02)
                fail_msg("gradient %g, step %d moves by %g", (double)parts[k], (int)step, moved);
        }
        tess__plugin_close(plugin);
    }
}

/* ---- both ---- */

static void test_optimizers__what_no_beta_is_is_refused_and_nothing_changes(void **state) {
    (void)state;
    static const char *const names[] = { "lion", "adamw8bit" };
    static const double bad[] = { -0.5, 1, (double)NAN };
    static run8 r;
    for (size_t i = 0; i < 2 * sizeof bad / sizeof bad[0]; i++) {
        tess__plugin *plugin = open_plugin(names[i % 2]);
        const tess_optimizer_ops *ops = plugin->ops;
        tess_optimizer_piece piece = {
            .struct_size = sizeof piece, .elems = N, .step = 1, .lr = 1, .beta1 = bad[i / 2]
        };
        tess_error e = { .struct_size = sizeof e };
        float m[N] = { 0 };
        piece.master = r.p, piece.grad = r.g, piece.state[0] = i % 2 ? (void *)r.code[0] : m;
        piece.state[1] = r.code[1], piece.state[2] = r.most[0], piece.state[3] = r.most[1];
        for (uint64_t k = 0; k < N; k++)
            r.p[k] = r.g[k] = 1;
        assert_int_equal(ops->step(plugin->ctx, &piece, &e), TESS_E_INVALID);
        assert_non_null(strstr(e.message, "expected 0 or more and less than 1"));
        for (uint64_t k = 0; k < N; k++)
            assert_true(r.p[k] == 1 && r.code[1][k] == 0);
        tess__plugin_close(plugin);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optimizers__lion_is_its_formula),
        cmocka_unit_test(test_optimizers__adamw8bit_takes_two_bytes_an_element),
        cmocka_unit_test(test_optimizers__a_code_is_the_nearest),
        cmocka_unit_test(test_optimizers__adamw8bit_is_torchaos),
        cmocka_unit_test(test_optimizers__losses_of_adamw8bit_are_torchaos),
        cmocka_unit_test(test_optimizers__a_small_second_moment_is_not_lost),
        cmocka_unit_test(test_optimizers__what_no_beta_is_is_refused_and_nothing_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
