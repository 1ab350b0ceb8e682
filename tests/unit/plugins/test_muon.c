/* SPDX-License-Identifier: BSD-3-Clause */
/* optimizer-muon: against torch.optim.Muon (tests/reference/make_muon.py), its products bit by bit, and what it leaves
 * to AdamW. */
#include "tests/unit/kernels/kernel_fixture.h"
#include "core/plugin/open.h"
#include <tessera/plugin_helpers.h>
#include "plugins/optimizer-muon/newton_schulz.h"
#include "muon.inc"
#include <math.h>
#include <stdlib.h>

enum { HIGH = 24, WIDE = 16, SAMPLES = 32, STEPS = 20, ELEMS = HIGH * WIDE };
#include "two_matrices.h"

static tess__plugin *open_plugin(const char *selection) {
    tess__plugin *plugin = NULL;
    if (tess__plugin_open(TESS_KIND_OPTIMIZER, selection, NULL, &plugin) != TESS_OK)
        fail_msg("%s: %s", selection, tess_last_error());
    return plugin;
}

static void at_once(void *pool, uint64_t n, void (*fn)(void *user, uint64_t first, uint64_t n), void *user) {
    (void)pool;
    fn(user, 0, n);
}

static void one_by_one(void *pool, uint64_t n, void (*fn)(void *user, uint64_t first, uint64_t n), void *user) {
    (void)pool;
    while (n-- > 0)
        fn(user, n, 1);
}

static const workers serial = { at_once, NULL }, apart = { one_by_one, NULL };

/* ---- what it steps ---- */

static tess_param_view view_of(const char *name, int32_t ndim, const int64_t *shape) {
    tess_param_view v = {
        .struct_size = sizeof v, .dtype = TESS_F32, .name = name, .elems = 1, .shape = shape, .ndim = ndim
    };
    for (int32_t i = 0; i < ndim; i++)
        v.elems *= (uint64_t)shape[i];
    return v;
}

static tess_grain describe(const tess__plugin *p, const tess_param_view *v) {
    const tess_optimizer_ops *ops = p->ops;
    tess_grain g = { .struct_size = sizeof g };
    assert_int_equal(ops->describe(p->ctx, v, 0, &g, NULL), TESS_OK);
    return g;
}

static void test_muon__hidden_matrices_are_its_own_and_the_rest_is_adamws(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int32_t ndim;
        int64_t shape[4];
        int hidden;
    } cases[] = {
        { "h.0.attn.weight", 2, { 8, 24 }, 1 },    { "h.0.attn.bias", 1, { 24 }, 0 },
        { "embed.wte.weight", 2, { 100, 8 }, 0 },  { "model.embed_tokens.weight", 2, { 100, 8 }, 0 },
        { "lm_head.weight", 2, { 100, 8 }, 0 },    { "header.weight", 2, { 100, 8 }, 1 },
        { "experts.weight", 3, { 4, 6, 10 }, 1 },  { "conv.weight", 4, { 4, 3, 3, 3 }, 0 },
        { "h.0.column.weight", 2, { 100, 1 }, 0 }, { "h.0.scale", 0, { 0 }, 0 },
    };
    tess__plugin *plugin = open_plugin("muon"), *other = open_plugin("muon:adamw=attn,conv");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const tess_param_view v = view_of(cases[i].name, cases[i].ndim, cases[i].shape);
        const tess_grain g = describe(plugin, &v);
        if ((g.grain == TESS_GRAIN_MATRIX) != cases[i].hidden || (g.kernel == TESS_OPT_ADAMW) == cases[i].hidden)
            fail_msg("%s: grain %u, kernel %u", cases[i].name, g.grain, g.kernel);
        if (cases[i].hidden)
            assert_true(g.rows * g.cols * (cases[i].ndim == 3 ? 4 : 1) == v.elems && g.n_states == 1);
    }
    const tess_param_view v = view_of(cases[0].name, 2, cases[0].shape);
    assert_int_equal(describe(other, &v).kernel, TESS_OPT_ADAMW);
    tess__plugin_close(plugin);
    tess__plugin_close(other);
}

/* Names are compared part by part, as wholes; the user's list stands in the place of the usual one. */
static void test_muon__parts_of_names_are_compared_as_wholes(void **state) {
    (void)state;
    static const struct {
        const char *selection, *name;
        int hidden;
    } cases[] = {
        { "muon", "wte", 0 },
        { "muon", "a.wpe", 0 },
        { "muon", "embed.w", 0 },
        { "muon", "embeddings.w", 0 },
        { "muon", "head", 0 },
        { "muon", "a.output.w", 0 },
        { "muon", "wt", 1 },
        { "muon", "wtee", 1 },
        { "muon", "put.w", 1 },
        { "muon", "wte,wpe", 1 },
        { "muon", "", 1 },
        { "muon:adamw=b", "wte", 1 },
        { "muon:adamw=b", "a.b", 0 },
        { "muon:adamw=b", "a.bb", 1 },
        { "muon:adamw=x,,b", "a..c", 1 },
        { "muon:adamw=x,,b", "a..b", 0 },
        { "muon:adamw=", "wte", 1 },
    };
    const int64_t shape[] = { 2, 3 };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tess__plugin *plugin = open_plugin(cases[i].selection);
        const tess_param_view v = view_of(cases[i].name, 2, shape);
        if ((describe(plugin, &v).grain == TESS_GRAIN_MATRIX) != cases[i].hidden)
            fail_msg("%s: %s", cases[i].selection, cases[i].name);
        tess__plugin_close(plugin);
    }
}

static void test_muon__says_what_it_needs_of_a_parameter(void **state) {
    (void)state;
    static const int64_t shapes[][3] = { { 2, 3 }, { 3, 2 }, { 5, 2, 3 }, { 1, 3 }, { 3, 1 }, { 2, 2 } };
    tess__plugin *plugin = open_plugin("muon");
    for (int i = 0; i < 6; i++) {
        const tess_param_view v = view_of("w", i == 2 ? 3 : 2, shapes[i]);
        const tess_grain g = describe(plugin, &v);
        if (i == 3 || i == 4) {
            assert_true(g.grain == TESS_GRAIN_ELEMENT && g.kernel == TESS_OPT_ADAMW && g.n_states == 2);
            for (int k = 0; k < 2; k++) {
                assert_true(g.state[k].dtype == TESS_F32 && g.state[k].every == 1);
                assert_string_equal(g.state[k].name, k ? "exp_avg_sq" : "exp_avg");
            }
            assert_true(g.rows == 0 && g.scratch_bytes == 0);
            continue;
        }
        const int64_t *shape = shapes[i] + (i == 2);
        assert_true(g.rows == (uint64_t)shape[0] && g.cols == (uint64_t)shape[1]);
        assert_int_equal(g.scratch_bytes, newton_schulz_bytes(g.rows, g.cols));
        assert_true(g.n_states == 1 && g.kernel == 0 && g.state[0].dtype == TESS_F32 && g.state[0].every == 1);
        assert_string_equal(g.state[0].name, "exp_avg");
    }
    const tess_optimizer_ops *ops = plugin->ops;
    assert_int_equal(ops->takes,
                     TESS_TAKES_LR | TESS_TAKES_MOMENTUM | TESS_TAKES_BETA1 | TESS_TAKES_BETA2 | TESS_TAKES_EPS);
    tess__plugin_close(plugin);
    static const char *const bad[] = { "muon:momentum=1",       "muon:momentum=-0.1", "muon:steps=0",
                                       "muon:steps=21",         "muon:scale=other",   "muon:nesterov=2",
                                       "muon:momentum=0.95,x=1" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_not_equal(tess__plugin_open(TESS_KIND_OPTIMIZER, bad[i], NULL, &plugin), TESS_OK);
}

/* ---- the step ---- */

/* Before: the momentum, and the update with a look ahead or without. After: decay, then the update at the rate of the
 * matrix's shape. To the bit. */
static void test_muon__a_step_is_its_formula(void **state) {
    (void)state;
    static const struct {
        const char *selection;
        double momentum, keep; /* the program's; what counts */
        int nesterov, original;
        int64_t shape[2];
    } cases[] = {
        { "muon", 0, 0.95, 1, 0, { 2, 3 } },
        { "muon", 0.5, 0.5, 1, 0, { 3, 2 } },
        { "muon:momentum=0.75", 0.5, 0.75, 1, 0, { 2, 3 } },
        { "muon:momentum=0", 0.5, 0, 1, 0, { 2, 3 } },
        { "muon:nesterov=0", 0, 0.95, 0, 0, { 3, 2 } },
        { "muon:scale=original", 0, 0.95, 1, 1, { 3, 2 } },
        { "muon:scale=original", 0, 0.95, 1, 1, { 2, 3 } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tess__plugin *plugin = open_plugin(cases[i].selection);
        const tess_optimizer_ops *ops = plugin->ops;
        const tess_param_view view = view_of("w", 2, cases[i].shape);
        float x[6], m[6], g[6], u[6];
        tess_optimizer_piece p = { .struct_size = sizeof p,
                                   .param = &view,
                                   .elems = 5, /* a part of it */
                                   .lr = 0.125,
                                   .weight_decay = 0.3,
                                   .momentum = cases[i].momentum,
                                   .master = x,
                                   .grad = g,
                                   .state = { m },
                                   .update = u };
        for (uint64_t k = 0; k < 6; k++)
            x[k] = noise(k, 1), m[k] = noise(k, 2), g[k] = noise(k, 3), u[k] = 9;
        const float keep = (float)cases[i].keep, take = (float)(1 - cases[i].keep);
        p.phase = TESS_PHASE_BEFORE;
        assert_int_equal(ops->step(plugin->ctx, &p, NULL), TESS_OK);
        for (uint64_t k = 0; k < 6; k++) {
            const float was = noise(k, 2), now = k < 5 ? was + take * (g[k] - was) : was;
            assert_true(m[k] == now && x[k] == noise(k, 1));
            assert_true(u[k] == (k == 5 ? 9 : cases[i].nesterov ? g[k] + keep * (now - g[k]) : now));
        }
        const double rows = (double)cases[i].shape[0], cols = (double)cases[i].shape[1];
        const float rate = (float)(cases[i].original ? 0.125 * sqrt(rows > cols ? rows / cols : 1)
                                                     : 0.125 * 0.2 * sqrt(3)),
                    shrink = (float)(1 - 0.125 * 0.3);
        p.phase = TESS_PHASE_AFTER;
        p.grad = NULL;
        for (uint64_t k = 0; k < 6; k++)
            u[k] = noise(k, 4), m[k] = 8;
        assert_int_equal(ops->step(plugin->ctx, &p, NULL), TESS_OK);
        for (uint64_t k = 0; k < 6; k++) {
            const float kept = noise(k, 1) * shrink, taken = rate * u[k];
            assert_true(x[k] == (k < 5 ? kept - taken : noise(k, 1)));
            assert_true(m[k] == 8);
        }
        tess__plugin_close(plugin);
    }
}

/* ---- products ---- */

/* One chain of fused multiply-adds for each element, and the sides in the other order give the same. */
static void test_muon__a_product_is_its_chain_on_any_threads(void **state) {
    (void)state;
    static const uint64_t sizes[][3] = { { 1, 1, 1 }, { 5, 3, 7 }, { 97, 129, 300 }, { 193, 31, 513 } };
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        const uint64_t rows = sizes[s][0], cols = sizes[s][1], terms = sizes[s][2];
        float *a = malloc(rows * terms * 4), *b = malloc(terms * cols * 4), *out = malloc(rows * cols * 4);
        float *plus = malloc(rows * cols * 4), *turned = malloc(rows * cols * 4);
        assert_true(a && b && out && plus && turned);
        for (uint64_t i = 0; i < rows * terms; i++)
            a[i] = noise(i, 1);
        for (uint64_t i = 0; i < terms * cols; i++)
            b[i] = noise(i, 2);
        for (uint64_t i = 0; i < rows * cols; i++)
            plus[i] = noise(i, 3);
        const product p = { { a, rows, terms, terms, 1 },
                            { b, terms, cols, cols, 1 },
                            { out, rows, cols, cols, 1 },
                            { plus, rows, cols, cols, 1 },
                            .alpha = 3,
                            .beta = 0.3f };
        product_run(&p, s % 2 ? &apart : &serial);
        product q = p;
        q.out = (matrix){ turned, rows, cols, 1, rows };
        product_run(&q, &apart);
        for (uint64_t i = 0; i < rows; i++)
            for (uint64_t j = 0; j < cols; j++) {
                float sum = 0;
                for (uint64_t k = 0; k < terms; k++)
                    sum = fmaf(a[i * terms + k], b[k * cols + j], sum);
                const float scaled = 3 * sum, kept = 0.3f * plus[i * cols + j];
                const float want = kept + scaled;
                if (out[i * cols + j] != want || turned[j * rows + i] != want)
                    fail_msg("%d x %d x %d: element (%d, %d) is %a and %a, expected %a", (int)rows, (int)cols,
                             (int)terms, (int)i, (int)j, (double)out[i * cols + j], (double)turned[j * rows + i],
                             (double)want);
            }
        free(a), free(b), free(out), free(plus), free(turned);
    }
}

static void test_muon__half_of_a_symmetric_product_is_the_whole(void **state) {
    (void)state;
    enum { SIDE = 205, TERMS = 77 };
    static float a[SIDE * TERMS], whole[SIDE * SIDE], half[SIDE * SIDE];
    for (uint64_t i = 0; i < SIDE * TERMS; i++)
        a[i] = noise(i, 4);
    const matrix m = { a, SIDE, TERMS, TERMS, 1 };
    product p = { .a = m, .b = matrix_turned(&m), .out = { whole, SIDE, SIDE, SIDE, 1 }, .alpha = 1 };
    product_run(&p, &serial);
    p.out.at = half;
    p.symmetric = 1;
    product_run(&p, &apart);
    assert_memory_equal(whole, half, sizeof whole);
}

/* What is not finite anywhere in a matrix is everywhere in its update, where the core finds it. A zero stays. */
static void test_muon__what_is_not_finite_stays_so(void **state) {
    (void)state;
    static float x[ELEMS], scratch[ELEMS + 2 * WIDE * WIDE];
    assert_int_equal(newton_schulz_bytes(HIGH, WIDE), sizeof scratch);
    newton_schulz(x, HIGH, WIDE, 5, scratch, &serial);
    for (uint64_t i = 0; i < ELEMS; i++)
        assert_true(x[i] == 0);
    for (int bad = 0; bad < 2; bad++) {
        for (uint64_t i = 0; i < ELEMS; i++)
            x[i] = noise(i, 5);
        x[100] = bad ? INFINITY : NAN;
        newton_schulz(x, HIGH, WIDE, 5, scratch, &serial);
        assert_false(isfinite(x[100]));
    }
}

/* ---- torch ---- */

typedef struct {
    float at[ELEMS], momentum[ELEMS], grad[ELEMS], update[ELEMS], before[ELEMS];
    int64_t shape[2];
} weight;

static void step(const tess__plugin *plugin, weight *w, uint64_t number) {
    static float scratch[ELEMS + 2 * WIDE * WIDE];
    const tess_optimizer_ops *ops = plugin->ops;
    const tess_param_view view = view_of("w", 2, w->shape);
    tess_optimizer_piece p = { .struct_size = sizeof p,
                               .param = &view,
                               .elems = ELEMS,
                               .step = number,
                               .lr = 0.01,
                               .weight_decay = 0.1,
                               .master = w->at,
                               .grad = w->grad,
                               .state = { w->momentum },
                               .update = w->update,
                               .phase = TESS_PHASE_BEFORE };
    tess_optimizer_matrix m = { .struct_size = sizeof m,
                                .param = &view,
                                .rows = (uint64_t)w->shape[0],
                                .cols = (uint64_t)w->shape[1],
                                .step = number,
                                .update = w->update,
                                .scratch = scratch,
                                .share = at_once };
    memcpy(w->before, w->at, sizeof w->at);
    assert_int_equal(ops->step(plugin->ctx, &p, NULL), TESS_OK);
    assert_int_equal(ops->matrix(plugin->ctx, &m, NULL), TESS_OK);
    p.phase = TESS_PHASE_AFTER;
    p.grad = NULL;
    assert_int_equal(ops->step(plugin->ctx, &p, NULL), TESS_OK);
}

static void first_update(const weight *w, const float *want) {
    for (int i = 0; i < ELEMS; i++) {
        const double update = (double)w->at[i] - (double)w->before[i] * (1 - 0.01 * 0.1);
        if (!(fabs(update - (double)want[i]) <= 1e-5))
            fail_msg("element %d of the first update is %g, expected %g", i, update, (double)want[i]);
    }
}

static void train(const char *selection, const float *losses, int compares_first) {
    static weight one, two;
    tess__plugin *plugin = open_plugin(selection);
    one = (weight){ .shape = { HIGH, WIDE } };
    two = (weight){ .shape = { WIDE, HIGH } };
    for (uint64_t i = 0; i < ELEMS; i++) {
        one.at[i] = noise(i, 0) * 0.3f;
        two.at[i] = noise(i, 1) * 0.3f;
    }
    for (uint64_t s = 0; s < STEPS; s++) {
        const double loss = loss_of(one.at, two.at, one.grad, two.grad);
        if (!(fabs(loss - (double)losses[s]) <= 1e-3))
            fail_msg("%s: loss %g in step %d, torch has %g", selection, loss, (int)s + 1, (double)losses[s]);
        step(plugin, &one, s + 1);
        step(plugin, &two, s + 1);
        if (s == 0 && compares_first) {
            first_update(&one, update_one);
            first_update(&two, update_two);
        }
    }
    tess__plugin_close(plugin);
}

static void test_muon__is_torchs(void **state) {
    (void)state;
    train("muon:scale=original", losses_original, 1);
    train("muon", losses_match_rms_adamw, 0);
}

static void test_muon__what_no_momentum_is_is_refused_and_nothing_changes(void **state) {
    (void)state;
    static const double bad[] = { -0.5, 1, (double)NAN };
    tess__plugin *plugin = open_plugin("muon");
    const tess_optimizer_ops *ops = plugin->ops;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        float m[4] = { 0 }, u[4] = { 0 }, g[4] = { 1, 1, 1, 1 };
        const int64_t shape[2] = { 2, 2 };
        const tess_param_view view = view_of("w", 2, shape);
        tess_error e = { .struct_size = sizeof e };
        tess_optimizer_piece p = { .struct_size = sizeof p,
                                   .param = &view,
                                   .elems = 4,
                                   .momentum = bad[i],
                                   .grad = g,
                                   .state = { m },
                                   .update = u,
                                   .phase = TESS_PHASE_BEFORE };
        assert_int_equal(ops->step(plugin->ctx, &p, &e), TESS_E_INVALID);
        assert_non_null(strstr(e.message, "expected 0 or more and less than 1"));
        assert_true(m[0] == 0 && u[3] == 0);
    }
    tess__plugin_close(plugin);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_muon__hidden_matrices_are_its_own_and_the_rest_is_adamws),
        cmocka_unit_test(test_muon__parts_of_names_are_compared_as_wholes),
        cmocka_unit_test(test_muon__says_what_it_needs_of_a_parameter),
        cmocka_unit_test(test_muon__a_step_is_its_formula),
        cmocka_unit_test(test_muon__a_product_is_its_chain_on_any_threads),
        cmocka_unit_test(test_muon__half_of_a_symmetric_product_is_the_whole),
        cmocka_unit_test(test_muon__what_is_not_finite_stays_so),
        cmocka_unit_test(test_muon__is_torchs),
        cmocka_unit_test(test_muon__what_no_momentum_is_is_refused_and_nothing_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
