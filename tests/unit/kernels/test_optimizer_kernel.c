/* SPDX-License-Identifier: BSD-3-Clause */
#include "kernel_fixture.h"

enum { ELEMS = 3001 };
static float grad[ELEMS], start[ELEMS];

static void fill(uint64_t seed) {
    for (int i = 0; i < ELEMS; i++) {
        grad[i] = random_wide(&seed);
        start[i] = random_unit(&seed);
    }
}

typedef struct {
    tess_segment segments[3];
    tess_optimizer optimizer;
    tess_kernel kernel;
    const void *in[1];
    float p[ELEMS], a[ELEMS], b[ELEMS];
    uint16_t low[ELEMS];
} step;

/* One step of `optimizer` over one segment with decay; the arrays stay as they are. */
static step *settle(uint32_t optimizer) {
    static step s;
    s.segments[0] = (tess_segment){ .struct_size = sizeof s.segments[0],
                                    .elems = ELEMS,
                                    .lr = 0.01f,
                                    .weight_decay = 0.1f,
                                    .momentum = optimizer == TESS_OPT_SGD ? 0.9f : 0 };
    s.optimizer = (tess_optimizer){ .struct_size = sizeof s.optimizer,
                                    .optimizer = optimizer,
                                    .n_segments = 1,
                                    .segments = s.segments,
                                    .step = 3,
                                    .beta1 = 0.9f,
                                    .beta2 = 0.99f,
                                    .eps = 1e-6f,
                                    .rho = 0.9f,
                                    .grad_scale = 0.5f };
    s.in[0] = grad;
    s.kernel = (tess_kernel){ .struct_size = sizeof s.kernel,
                              .kernel = TESS_K_OPTIMIZER,
                              .in_dtype = TESS_F32,
                              .out_dtype = TESS_F32,
                              .n_in = 1,
                              .in = s.in,
                              .out = s.p,
                              .state = { s.a, s.b },
                              .elems = ELEMS,
                              .optimizer = &s.optimizer };
    return &s;
}

/* The same of fresh arrays. */
static step *prepare(uint32_t optimizer) {
    step *s = settle(optimizer);
    memcpy(s->p, start, sizeof s->p);
    memset(s->a, 0, sizeof s->a);
    memset(s->b, 0, sizeof s->b);
    memset(s->low, 0, sizeof s->low);
    return s;
}

static void test_optimizer_kernel__low_copy_is_the_new_master_rounded(void **state) {
    (void)state;
    fill(51);
    for_each_isa(isa) for (uint32_t o = TESS_OPT_SGD; o <= TESS_OPT_ADADELTA; o++) {
        step *s = prepare(o);
        s->kernel.out2 = s->low;
        run_kernel(&s->kernel, NULL);
        for (int i = 0; i < ELEMS; i++) {
            assert_int_equal(s->low[i], tess_bf16_of_f32(s->p[i]));
            assert_true(s->p[i] != start[i]);
        }
    }
    tess__isa_limit(0);
}

static void test_optimizer_kernel__bf16_gradient_is_cast_first(void **state) {
    (void)state;
    static uint16_t narrow[ELEMS];
    static float want[ELEMS];
    fill(52);
    for (int i = 0; i < ELEMS; i++) {
        narrow[i] = tess_bf16_of_f32(grad[i]);
        grad[i] = tess_f32_of_bf16(narrow[i]);
    }
    for (uint32_t o = TESS_OPT_SGD; o <= TESS_OPT_ADADELTA; o++) {
        step *s = prepare(o);
        run_kernel(&s->kernel, NULL);
        memcpy(want, s->p, sizeof want);
        s = prepare(o);
        s->kernel.in_dtype = TESS_BF16;
        s->in[0] = narrow;
        run_kernel(&s->kernel, NULL);
        assert_memory_equal(s->p, want, sizeof want);
    }
}

/* Wherever it is: in a chunk, in a rest that is no whole vector, in the gradient or in the master. */
static void test_optimizer_kernel__a_step_that_is_not_finite_is_noted(void **state) {
    (void)state;
    static const float bad[] = { NAN, INFINITY, -INFINITY };
    fill(55);
    for_each_isa(isa) for (uint32_t o = TESS_OPT_SGD; o <= TESS_OPT_ADADELTA; o++) {
        for (int i = 0; i < 6; i++) {
            int64_t noted = 0;
            int at = i / 3 ? ELEMS - 1 : 1500;
            step *s = prepare(o);
            s->optimizer.not_finite = &noted;
            run_kernel(&s->kernel, NULL);
            assert_int_equal(noted, 0);
            s->p[at] = bad[i % 3];
            run_kernel(&s->kernel, NULL);
            assert_int_equal(noted, s->optimizer.step);
            noted = 7;
            run_kernel(&s->kernel, NULL);
            assert_int_equal(noted, 7);
        }
    }
    tess__isa_limit(0);
}

/* Noted exactly when one of the values that the step leaves is not finite, whatever it found: for all extremes of
 * gradient, master and states. Neighbours are large, so that sums of finite values overflow. */
enum { ROW = 37, EXTREMES = 10 };
static const double extremes[EXTREMES] = { 0,           1,      -1e-30,           2e19,
                                           -2e38,       3e38,   (double)INFINITY, -(double)INFINITY,
                                           (double)NAN, 1.5e308 };

static double extreme(uint64_t at, int of) {
    for (; of; of--)
        at /= EXTREMES;
    return extremes[at % EXTREMES];
}

static int one_is_not_finite(const void *values, uint32_t dtype) {
    for (int i = 0; i < ROW; i++)
        if (!isfinite(dtype == TESS_F64 ? ((const double *)values)[i] : (double)((const float *)values)[i]))
            return 1;
    return 0;
}

static void note_of_extremes(uint32_t optimizer, uint32_t dtype, uint64_t combination) {
    static double wide[4][ROW];
    static float narrow[4][ROW];
    int64_t noted = 0;
    int bad = 0;
    void *at[4];
    step *s = settle(optimizer ? optimizer : TESS_OPT_SGD);
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < ROW; i++)
            wide[k][i] = k == 1 && combination % 2 ? 3e38 : 0.5;
        wide[k][combination % ROW] = extreme(combination, k);
        for (int i = 0; i < ROW; i++)
            narrow[k][i] = (float)wide[k][i];
        at[k] = dtype == TESS_F64 ? (void *)wide[k] : (void *)narrow[k];
    }
    s->in[0] = at[0];
    s->segments[0].elems = s->kernel.elems = ROW;
    s->segments[0].momentum = optimizer == TESS_OPT_SGD ? 0.9f : 0;
    s->segments[0].lr = combination % 5 ? 0.01f : 0;
    s->kernel.in_dtype = s->kernel.out_dtype = dtype;
    s->kernel.out = at[1];
    s->kernel.state[0] = optimizer ? at[2] : NULL;
    s->kernel.state[1] = optimizer > TESS_OPT_SGD ? at[3] : NULL;
    s->optimizer.not_finite = &noted;
    run_kernel(&s->kernel, NULL);
    for (int k = 1; k < 2 + (optimizer > 0) + (optimizer > TESS_OPT_SGD); k++)
        bad |= one_is_not_finite(at[k], dtype);
    if ((noted != 0) != bad)
        fail_msg("optimizer %u, %s, combination %d: noted %d, not finite %d", optimizer,
                 dtype == TESS_F64 ? "f64" : "f32", (int)combination, (int)noted, bad);
}

static void test_optimizer_kernel__a_note_is_exact(void **state) {
    (void)state;
    for_each_isa(isa) for (uint32_t o = 0; o <= TESS_OPT_ADADELTA; o++) {
        uint64_t all = EXTREMES * EXTREMES; /* of gradient and master, and of each state */
        for (int state = 0; state < (o > 0) + (o > TESS_OPT_SGD); state++)
            all *= EXTREMES;
        for (uint64_t c = 0; c < all; c++) {
            note_of_extremes(o, TESS_F32, c);
            note_of_extremes(o, TESS_F64, c);
        }
    }
    tess__isa_limit(0);
}

static void test_optimizer_kernel__elements_in_no_segment_stay(void **state) {
    (void)state;
    fill(53);
    for (uint32_t o = TESS_OPT_SGD; o <= TESS_OPT_ADADELTA; o++) {
        step *s = prepare(o);
        s->segments[1] = s->segments[2] = s->segments[0];
        s->segments[0].first = 1, s->segments[0].elems = 70;
        s->segments[1].first = 71, s->segments[1].elems = 0;
        s->segments[2].first = 2000, s->segments[2].elems = 1000;
        s->optimizer.n_segments = 3;
        s->kernel.out2 = s->low;
        run_kernel(&s->kernel, NULL);
        for (int i = 0; i < ELEMS; i++) {
            int in = (i >= 1 && i < 71) || (i >= 2000 && i < 3000);
            assert_int_equal(s->p[i] != start[i], in);
            assert_int_equal(s->a[i] != 0, in);
            assert_int_equal(s->low[i] != 0, in);
        }
    }
}

/* Each segment's own settings: as if it were a tensor of its own. */
/* Whichever one of a segment's numbers is another than that of the segment before. */
static void test_optimizer_kernel__segments_have_their_own_settings(void **state) {
    (void)state;
    static float want[ELEMS];
    fill(54);
    for (int which = 0; which < 3; which++) {
        const uint32_t optimizer = which == 2 ? TESS_OPT_SGD : TESS_OPT_ADAMW;
        step *s = NULL;
        for (int part = 0; part < 3; part++) { /* the first segment, the second, both */
            s = prepare(optimizer);
            s->segments[0].momentum = which == 2 ? 0.9f : 0;
            tess_segment other = s->segments[0];
            *(which == 0 ? &other.lr : which == 1 ? &other.weight_decay : &other.momentum) += 0.05f;
            s->segments[0].elems = 1000;
            other.first = 1000, other.elems = ELEMS - 1000;
            s->segments[part == 2] = part == 0 ? s->segments[0] : other;
            s->optimizer.n_segments = part == 2 ? 2 : 1;
            memset(s->a, 0x3c, sizeof s->a); /* a momentum that is there already */
            run_kernel(&s->kernel, NULL);
            if (part == 2)
                break;
            const size_t first = part ? 1000 : 0, n = part ? ELEMS - 1000 : 1000;
            memcpy(want + first, s->p + first, n * sizeof *want);
        }
        assert_memory_equal(s->p, want, sizeof want);
        assert_true(memcmp(want, start, sizeof want) != 0);
    }
}

/* A later header's segments lie where their size says; an older one's optimizer has no place for a note. */
static void test_optimizer_kernel__structs_of_other_headers(void **state) {
    (void)state;
    static float want[ELEMS];
    struct {
        tess_segment s;
        uint64_t later;
    } list[3];
    int64_t noted = 0;
    fill(58);
    step *s = prepare(TESS_OPT_ADAMW);
    for (int i = 0; i < 3; i++) {
        s->segments[i] = s->segments[0];
        s->segments[i].first = (uint64_t)i * 1000, s->segments[i].elems = 900;
        s->segments[i].lr = 0.01f * (float)(i + 1);
        list[i].s = s->segments[i];
        list[i].s.struct_size = sizeof list[0];
        list[i].later = UINT64_MAX;
    }
    s->optimizer.n_segments = 3;
    run_kernel(&s->kernel, NULL);
    memcpy(want, s->p, sizeof want);
    s = prepare(TESS_OPT_ADAMW);
    s->optimizer.segments = &list[0].s, s->optimizer.n_segments = 3;
    run_kernel(&s->kernel, NULL);
    assert_memory_equal(s->p, want, sizeof want);
    s = prepare(TESS_OPT_ADAMW);
    s->p[7] = INFINITY;
    s->optimizer.struct_size = offsetof(tess_optimizer, not_finite);
    s->optimizer.not_finite = &noted;
    run_kernel(&s->kernel, NULL);
    assert_int_equal(noted, 0);
}

/* Parts of threads begin and end within segments. */
static void test_optimizer_kernel__parts_are_those_of_one_thread(void **state) {
    (void)state;
    enum { LARGE = 100000 };
    static float g[LARGE], p[2][LARGE], a[2][LARGE], b[2][LARGE];
    static uint16_t low[2][LARGE];
    static const uint64_t first[] = { 5, 33000, 70000 }, elems[] = { 32000, 37000, 29990 };
    tess__pool *pool = NULL;
    uint64_t seed = 59;
    assert_int_equal(tess__pool_create(3, "", &pool, NULL), TESS_OK);
    for (int i = 0; i < LARGE; i++)
        g[i] = random_wide(&seed);
    for (int threads = 0; threads < 2; threads++) {
        step *s = settle(TESS_OPT_ADAM);
        s->in[0] = g;
        for (int i = 0; i < 3; i++) {
            s->segments[i] = s->segments[0];
            s->segments[i].first = first[i], s->segments[i].elems = elems[i];
            s->segments[i].lr = 0.01f * (float)(i + 1), s->segments[i].weight_decay = i % 2 ? 0.1f : 0;
        }
        s->optimizer.n_segments = 3;
        s->kernel.elems = LARGE, s->kernel.out = p[threads], s->kernel.out2 = low[threads];
        s->kernel.state[0] = a[threads], s->kernel.state[1] = b[threads];
        run_kernel(&s->kernel, threads ? pool : NULL);
    }
    tess__pool_destroy(pool);
    assert_memory_equal(p[1], p[0], sizeof p[0]);
    assert_memory_equal(a[1], a[0], sizeof a[0]);
    assert_memory_equal(b[1], b[0], sizeof b[0]);
    assert_memory_equal(low[1], low[0], sizeof low[0]);
    for (int i = 0; i < LARGE; i++) {
        int in = 0;
        for (int k = 0; k < 3; k++)
            in |= (uint64_t)i >= first[k] && (uint64_t)i < first[k] + elems[k];
        assert_int_equal(a[0][i] != 0, in);
    }
}

static void test_optimizer_kernel__f64_follows_the_f64_formulas(void **state) {
    (void)state;
    static double g[ELEMS], p[ELEMS], m[ELEMS], v[ELEMS], want[3];
    fill(55);
    for_each_isa(isa) {
        step *s = prepare(TESS_OPT_ADAM);
        tess_step_constants c;
        for (int i = 0; i < ELEMS; i++)
            g[i] = (double)grad[i] / 3, p[i] = (double)start[i] / 7, m[i] = 0.25, v[i] = 0.5;
        s->in[0] = g;
        s->kernel.in_dtype = s->kernel.out_dtype = TESS_F64;
        s->kernel.out = p, s->kernel.state[0] = m, s->kernel.state[1] = v;
        run_kernel(&s->kernel, NULL);
        tess_step_prepare(&s->optimizer, s->segments, &c);
        for (int i = 0; i < ELEMS; i++) {
            want[0] = (double)start[i] / 7, want[1] = 0.25, want[2] = 0.5;
            tess_adam_f64(&c, g[i], &want[0], &want[1], &want[2]);
            assert_true(p[i] == want[0] && m[i] == want[1] && v[i] == want[2]);
        }
    }
    tess__isa_limit(0);
}

static void test_optimizer_kernel__thread_count_does_not_change_bits(void **state) {
    (void)state;
    enum { LARGE = 150000 };
    static float g[LARGE], p[3][LARGE], a[3][LARGE], b[3][LARGE];
    uint64_t seed = 56;
    for (int i = 0; i < LARGE; i++)
        g[i] = random_wide(&seed);
    for (int threads = 1; threads <= 3; threads++) {
        step *s = prepare(TESS_OPT_ADADELTA);
        tess__pool *pool = NULL;
        assert_int_equal(tess__pool_create(threads, "", &pool, NULL), TESS_OK);
        s->in[0] = g;
        s->segments[0].elems = s->kernel.elems = LARGE;
        s->kernel.out = p[threads - 1], s->kernel.state[0] = a[threads - 1], s->kernel.state[1] = b[threads - 1];
        run_kernel(&s->kernel, pool);
        tess__pool_destroy(pool);
    }
    assert_memory_equal(p[1], p[0], sizeof p[0]);
    assert_memory_equal(p[2], p[0], sizeof p[0]);
    assert_memory_equal(a[2], a[0], sizeof a[0]);
    assert_memory_equal(b[2], b[0], sizeof b[0]);
}

static void test_optimizer_kernel__bad_settings_are_refused_in_words(void **state) {
    (void)state;
    tess_error error;
    fill(57);
    step *s = prepare(TESS_OPT_ADAM);
    s->optimizer.step = 0;
    assert_int_equal(try_kernel(&s->kernel, &error), TESS_E_INVALID);
    assert_string_equal(error.message, "optimizer: the step is 0, it counts from 1");
    s = prepare(TESS_OPT_ADAM);
    s->kernel.state[1] = NULL;
    assert_int_equal(try_kernel(&s->kernel, &error), TESS_E_INVALID);
    assert_string_equal(error.message, "optimizer 2: state 1 is null");
    s = prepare(TESS_OPT_SGD);
    s->kernel.state[0] = NULL; /* but momentum is not 0 */
    assert_int_equal(try_kernel(&s->kernel, &error), TESS_E_INVALID);
    s = prepare(TESS_OPT_ADAM);
    s->segments[1] = s->segments[0];
    s->segments[1].first = ELEMS - 1;
    s->optimizer.n_segments = 2;
    assert_int_equal(try_kernel(&s->kernel, &error), TESS_E_INVALID);
    assert_string_equal(error.message, "optimizer: segment 1 is 3001 elements from 3000; expected ascending, disjoint, "
                                       "within 3001");
    s = prepare(TESS_OPT_ADAM);
    s->segments[0].first = UINT64_MAX;
    assert_int_equal(try_kernel(&s->kernel, &error), TESS_E_INVALID);
    s = prepare(9);
    assert_int_equal(try_kernel(&s->kernel, &error), TESS_E_UNSUPPORTED);
    s = prepare(TESS_OPT_ADAM);
    s->kernel.out_dtype = TESS_BF16; /* no masters of 16 bits */
    assert_int_equal(try_kernel(&s->kernel, &error), TESS_E_UNSUPPORTED);
    assert_memory_equal(s->p, start, sizeof start);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optimizer_kernel__low_copy_is_the_new_master_rounded),
        cmocka_unit_test(test_optimizer_kernel__bf16_gradient_is_cast_first),
        cmocka_unit_test(test_optimizer_kernel__elements_in_no_segment_stay),
        cmocka_unit_test(test_optimizer_kernel__a_step_that_is_not_finite_is_noted),
        cmocka_unit_test(test_optimizer_kernel__a_note_is_exact),
        cmocka_unit_test(test_optimizer_kernel__segments_have_their_own_settings),
        cmocka_unit_test(test_optimizer_kernel__structs_of_other_headers),
        cmocka_unit_test(test_optimizer_kernel__parts_are_those_of_one_thread),
        cmocka_unit_test(test_optimizer_kernel__f64_follows_the_f64_formulas),
        cmocka_unit_test(test_optimizer_kernel__thread_count_does_not_change_bits),
        cmocka_unit_test(test_optimizer_kernel__bad_settings_are_refused_in_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
