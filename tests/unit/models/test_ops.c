/* SPDX-License-Identifier: BSD-3-Clause */
/* The operators: the plain table against finite differences, oneDNN's against the plain one, and the rules they share.
 */
#include "models_common.h"
#include <stddef.h>
#include "tools/models/elementwise.h"
#include "kit/formulas.h"

enum { ROOM = 1 << 23 };
static int in_bf16; /* tables are made for bf16, and all numbers are ones of bf16 */

typedef struct {
    ops *o;
    float *scratch;
} table;

static void *room(uint64_t bytes) {
    void *p = aligned_alloc(64, ops_align(bytes + 1));
    assert_non_null(p);
    return p;
}

static table open_table(const char *name, int32_t threads) {
    const ops_table *t;
    table r;
    assert_int_equal(ops_find(name, &t), TESS_OK);
    assert_int_equal(t->create(&(ops_options){ .threads = threads, .bf16 = in_bf16 }, &r.o), TESS_OK);
    r.scratch = room(ROOM);
    memset(r.scratch, 0xFF, ROOM);
    return r;
}

static void close_table(table *t) {
    t->o->t->destroy(t->o);
    free(t->scratch);
}

/* Numbers in ±1, the same for the same `which`. */
static float *numbers(uint32_t which, uint64_t elems) {
    float *x = room(elems * sizeof *x);
    for (uint64_t i = 0; i < elems; i++)
        x[i] = 2 * philox_uniform(philox_at(3, PHILOX_BATCH, i, which, 0).v[i & 3]) - 1;
    for (uint64_t i = 0; in_bf16 && i < elems; i++)
        x[i] = tess_f32_of_bf16(tess_bf16_of_f32(x[i]));
    return x;
}

/* Weights as the tables take them. */
static void *weights_of(const float *w, uint64_t elems) {
    float *copy = room(elems * sizeof *copy);
    uint16_t *half = (uint16_t *)copy;
    memcpy(copy, w, elems * sizeof *copy);
    for (uint64_t i = 0; in_bf16 && i < elems; i++)
        half[i] = tess_bf16_of_f32(w[i]);
    return copy;
}

static float *zeros(uint64_t elems) {
    float *x = room(elems * sizeof *x);
    memset(x, 0, elems * sizeof *x);
    return x;
}

static double dot(const float *a, const float *b, uint64_t elems) {
    double sum = 0;
    for (uint64_t i = 0; i < elems; i++)
        sum += (double)a[i] * b[i];
    return sum;
}

static void assert_near(const float *a, const float *b, uint64_t elems, double tolerance) {
    double size = norm_of(b, NULL, (int64_t)elems);
    assert_true(size > 0);
    if (norm_of(a, b, (int64_t)elems) > tolerance * size)
        fail_msg("differ by %g of the norm", norm_of(a, b, (int64_t)elems) / size);
}

/* ---- linear and convolution: the gradient of a bilinear form is the form itself ------------------------- */
typedef struct {
    float *y, *dx, *dw, *db;
} products;

static products run_linear(const char *name, int32_t threads, const ops_linear_shape *s, const float *x, const float *w,
                           const float *b, const float *dy) {
    table t = open_table(name, threads);
    ops_linear *l;
    ops_scratch need;
    uint64_t rows = (uint64_t)s->rows, in = (uint64_t)s->inputs, out = (uint64_t)s->outputs;
    products p = { zeros(rows * out), zeros(rows * in), zeros(in * out), zeros(out) };
    void *weights = weights_of(w, in * out);
    assert_int_equal(t.o->t->linear_create(t.o, s, &l, &need), TESS_OK);
    assert_true(need.forward_bytes <= ROOM && need.backward_bytes <= ROOM);
    for (int twice = 0; twice < 2; twice++) { /* dw and db add up, y and dx do not */
        assert_int_equal(t.o->t->linear_forward(l, x, weights, b, p.y, t.scratch), TESS_OK);
        assert_int_equal(t.o->t->linear_backward(l, x, weights, dy, p.dx, p.dw, p.db, t.scratch), TESS_OK);
    }
    t.o->t->linear_destroy(l);
    free(weights);
    close_table(&t);
    return p;
}

static void free_products(products *p) {
    free(p->y), free(p->dx), free(p->dw), free(p->db);
}

/* Against sums in fp64, written the obvious way. */
static void check_linear(const ops_linear_shape *s, const products *p, const float *x, const float *w, const float *b,
                         const float *dy) {
    int rows = s->rows, in = s->inputs, out = s->outputs;
    products e = { zeros(rows * out), zeros(rows * in), zeros(in * out), zeros(out) };
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < out; o++) {
            double sum = b ? b[o] : 0;
            for (int i = 0; i < in; i++)
                sum += (double)x[r * in + i] * w[o * in + i];
            e.y[r * out + o] = s->relu && sum < 0 ? 0 : (float)sum;
        }
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < in; i++) {
            double sum = 0;
            for (int o = 0; o < out; o++)
                sum += (double)dy[r * out + o] * w[o * in + i];
            e.dx[r * in + i] = (float)sum;
        }
    for (int o = 0; o < out; o++)
        for (int i = 0; i <= in; i++) {
            double sum = 0;
            for (int r = 0; r < rows; r++)
                sum += 2.0 * dy[r * out + o] * (i < in ? x[r * in + i] : 1);
            *(i < in ? &e.dw[o * in + i] : &e.db[o]) = (float)sum;
        }
    assert_near(p->y, e.y, (uint64_t)(rows * out), 1e-6);
    assert_near(p->dx, e.dx, (uint64_t)(rows * in), 1e-6);
    assert_near(p->dw, e.dw, (uint64_t)(in * out), 1e-6);
    assert_near(p->db, e.db, (uint64_t)out, 1e-6);
    free_products(&e);
}

static const ops_linear_shape linear_shapes[] = {
    { 7, 5, 3, 0, 0 },     { 64, 300, 33, 1, 0 }, { 1, 17, 10, 0, 0 },
    { 70, 64, 256, 0, 1 }, { 3, 3, 3, 0, 1 },     { 130, 520, 128, 0, 0 }
};

static void linear_on(const char *name) {
    for (size_t i = 0; i < sizeof linear_shapes / sizeof *linear_shapes; i++)
        for (int32_t threads = 1; threads <= 2; threads++) {
            const ops_linear_shape *s = &linear_shapes[i];
            uint64_t rows = (uint64_t)s->rows, in = (uint64_t)s->inputs, out = (uint64_t)s->outputs;
            float *x = numbers(1, rows * in), *w = numbers(2, in * out), *b = numbers(3, out),
                  *dy = numbers(4, rows * out);
            products p = run_linear(name, threads, s, x, w, s->no_bias ? NULL : b, dy);
            check_linear(s, &p, x, w, s->no_bias ? NULL : b, dy);
            free_products(&p);
            free(x), free(w), free(b), free(dy);
        }
}

static void test_ops__plain_linear_equals_the_sums(void **state) {
    (void)state;
    linear_on("plain");
}

static void test_ops__onednn_linear_equals_the_sums(void **state) {
    (void)state;
#ifndef TESSERA_HAVE_DNNL
    skip();
#endif
    linear_on("onednn");
}

static products run_conv(const char *name, int32_t threads, const ops_conv_shape *s, const float *x, const float *w,
                         const float *b, const float *dy) {
    table t = open_table(name, threads);
    ops_conv *c;
    ops_scratch need;
    uint64_t out = (uint64_t)s->outputs, in = (uint64_t)s->channels, taps = (uint64_t)(s->kernel * s->kernel);
    uint64_t places = (uint64_t)(s->batch * ops_conv_height(s) * ops_conv_width(s));
    products p = { zeros(places * out), zeros((uint64_t)(s->batch * s->height * s->width) * in), zeros(taps * in * out),
                   zeros(out) };
    void *weights = weights_of(w, taps * in * out);
    assert_int_equal(t.o->t->conv_create(t.o, s, &c, &need), TESS_OK);
    assert_true(need.forward_bytes <= ROOM && need.backward_bytes <= ROOM);
    for (int twice = 0; twice < 2; twice++) {
        assert_int_equal(t.o->t->conv_forward(c, x, weights, b, p.y, t.scratch), TESS_OK);
        assert_int_equal(t.o->t->conv_backward(c, x, weights, dy, p.dx, p.dw, p.db, t.scratch), TESS_OK);
    }
    t.o->t->conv_destroy(c);
    free(weights);
    close_table(&t);
    return p;
}

/* Adds to e what the tap (kr, kc) from channel i to output o contributes at one output place. */
static void check_conv(const ops_conv_shape *s, const products *p, const float *x, const float *w, const float *b,
                       const float *dy) {
    int64_t h = ops_conv_height(s), wd = ops_conv_width(s), k = s->kernel, in = s->channels, out = s->outputs;
    uint64_t n_y = (uint64_t)(s->batch * h * wd * out), n_x = (uint64_t)(s->batch * s->height * s->width * in);
    uint64_t n_w = (uint64_t)(k * k * in * out);
    double *y = calloc(n_y, sizeof *y), *dx = calloc(n_x, sizeof *dx), *dw = calloc(n_w, sizeof *dw);
    float *e = zeros(n_y > n_x ? n_y : n_x > n_w ? n_x : n_w);
    assert_true(y && dx && dw);
    for (int64_t at = 0; at < s->batch * h * wd * out; at++) {
        int64_t o = at % out, c = at / out % wd, r = at / out / wd % h, n = at / out / wd / h;
        y[at] = b[o];
        for (int64_t tap = 0; tap < k * k * in; tap++) {
            int64_t i = tap % in, kc = tap / in % k, kr = tap / in / k;
            int64_t row = r + kr - s->pad, column = c + kc - s->pad;
            int64_t xi = ((n * s->height + row) * s->width + column) * in + i, wi = ((o * in + i) * k + kr) * k + kc;
            if (row < 0 || row >= s->height || column < 0 || column >= s->width)
                continue;
            y[at] += (double)x[xi] * w[wi];
            dx[xi] += (double)dy[at] * w[wi];
            dw[wi] += 2.0 * dy[at] * x[xi];
        }
    }
    for (uint64_t i = 0; i < n_y; i++)
        e[i] = s->relu && y[i] < 0 ? 0 : (float)y[i];
    assert_near(p->y, e, n_y, 1e-6);
    for (uint64_t i = 0; i < n_x; i++)
        e[i] = (float)dx[i];
    assert_near(p->dx, e, n_x, 1e-6);
    for (uint64_t i = 0; i < n_w; i++)
        e[i] = (float)dw[i];
    assert_near(p->dw, e, n_w, 3e-6);
    free(y), free(dx), free(dw), free(e);
}

static void conv_on(const char *name) {
    static const ops_conv_shape shapes[] = {
        { 2, 28, 28, 1, 32, 3, 1, 0 },  { 3, 26, 26, 32, 64, 3, 1, 0 }, { 1, 7, 9, 3, 5, 5, 0, 0 },
        { 2, 12, 11, 64, 24, 5, 0, 2 }, { 1, 3, 2, 16, 16, 5, 0, 2 },   { 1, 60, 62, 16, 16, 5, 0, 2 },
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int32_t threads = 1; threads <= 2; threads++) {
            const ops_conv_shape *s = &shapes[i];
            uint64_t places = (uint64_t)(s->batch * ops_conv_height(s) * ops_conv_width(s) * s->outputs);
            float *x = numbers(1, (uint64_t)(s->batch * s->height * s->width * s->channels)), *dy = numbers(4, places);
            float *w = numbers(2, (uint64_t)(s->kernel * s->kernel * s->channels * s->outputs)), *b = numbers(3, 64);
            products p = run_conv(name, threads, s, x, w, b, dy);
            check_conv(s, &p, x, w, b, dy);
            free_products(&p);
            free(x), free(w), free(b), free(dy);
        }
}

static void test_ops__plain_convolution_equals_the_sums(void **state) {
    (void)state;
    conv_on("plain");
}

static void test_ops__onednn_convolution_equals_the_sums(void **state) {
    (void)state;
#ifndef TESSERA_HAVE_DNNL
    skip();
#endif
    conv_on("onednn");
}

/* Products of bf16 numbers are exact in fp32, so only the sums round: bf16 in and fp32 out meet the same bounds. */
static void test_ops__bf16_products_equal_the_sums(void **state) {
    (void)state;
    in_bf16 = 1;
    linear_on("auto");
    conv_on("auto");
    linear_on("plain");
    conv_on("plain");
    in_bf16 = 0;
}

static void test_ops__casts_round_to_nearest_even(void **state) {
    static const float x[] = { 1.0f, 1.00390625f, 1.01171875f, -1.00390637f, 3.4e38f, 0.0f, 1e-40f };
    static const uint16_t expected[] = { 0x3f80, 0x3f80, 0x3f82, 0xbf81, 0x7f80, 0, 0x0001 };
    enum { N = sizeof x / sizeof *x };
    table t = open_table("plain", 1);
    uint16_t y[N];
    float back[N];
    (void)state;
    ops_cpu_narrow(t.o, x, y, N);
    for (int i = 0; i < N; i++)
        assert_int_equal(y[i], expected[i]);
    ops_cpu_widen(t.o, y, back, N);
    for (int i = 0; i < N; i++)
        assert_int_equal(tess_f32_bits(back[i]), (uint32_t)expected[i] << 16);
    close_table(&t);
}

/* Same threads and instruction set: the same bits, from run to run and at another address. */
static void test_ops__onednn_bits_repeat_at_any_aligned_address(void **state) {
    (void)state;
#ifndef TESSERA_HAVE_DNNL
    skip();
#endif
    ops_linear_shape s = { 96, 520, 128, 0, 0 };
    float *x = numbers(1, 96 * 520), *w = numbers(2, 520 * 128), *b = numbers(3, 128), *dy = numbers(4, 96 * 128);
    float *moved = (float *)room(520 * 128 * 4 + 64) + 16;
    memcpy(moved, w, 520 * 128 * 4);
    products p = run_linear("onednn", 2, &s, x, w, b, dy), q = run_linear("onednn", 2, &s, x, moved, b, dy);
    assert_memory_equal(p.y, q.y, 96 * 128 * 4);
    assert_memory_equal(p.dx, q.dx, 96 * 520 * 4);
    assert_memory_equal(p.dw, q.dw, 520 * 128 * 4);
    free_products(&p), free_products(&q);
    free(x), free(w), free(b), free(dy), free(moved - 16);
}

/* ---- elementwise: directional derivatives by central differences ----------------------------------------- */
enum { DIFF = 96 };
typedef void (*forward_fn)(ops *, const float *x, float *y, float *kept, void *scratch);

/* <dy, (f(x + h v) - f(x - h v)) / 2h> against <dx, v>, in a few directions v. */
static void check_derivative(table *t, forward_fn f, const float *x, const float *dy, const float *dx, uint64_t n_x,
                             uint64_t n_y, double tolerance) {
    const float h = 1e-2f;
    float *up = zeros(n_x), *down = zeros(n_x), *yu = zeros(n_y), *yd = zeros(n_y), *kept = zeros(n_x + n_y);
    for (uint32_t k = 0; k < 5; k++) {
        float *v = numbers(10 + k, n_x);
        for (uint64_t i = 0; i < n_x; i++)
            up[i] = x[i] + h * v[i], down[i] = x[i] - h * v[i];
        f(t->o, up, yu, kept, t->scratch);
        f(t->o, down, yd, kept, t->scratch);
        double expected = (dot(dy, yu, n_y) - dot(dy, yd, n_y)) / (2.0 * (double)h), got = dot(dx, v, n_x);
        double size = norm_of(dx, NULL, (int64_t)n_x) * norm_of(v, NULL, (int64_t)n_x) / sqrt((double)n_x);
        if (!(fabs(expected - got) <= tolerance * size))
            fail_msg("direction %u: %g by differences, %g by backward", k, expected, got);
        free(v);
    }
    free(up), free(down), free(yu), free(yd), free(kept);
}

static void gelu_of(ops *o, const float *x, float *y, float *kept, void *scratch) {
    (void)kept, (void)scratch;
    assert_int_equal(o->t->gelu(o, x, y, DIFF), TESS_OK);
}

static void test_ops__gelu_is_the_tanh_form(void **state) {
    table t = open_table("plain", 1);
    float *x = numbers(1, DIFF), *y = zeros(DIFF), *dy = numbers(2, DIFF), *dx = zeros(DIFF);
    (void)state;
    for (int i = 0; i < DIFF; i++)
        x[i] *= 6;
    assert_int_equal(t.o->t->gelu(t.o, x, y, DIFF), TESS_OK);
    for (int i = 0; i < DIFF; i++) {
        double v = x[i], e = 0.5 * v * (1 + tanh(0.7978845608028654 * (v + 0.044715 * v * v * v)));
        assert_true(fabs(y[i] - e) <= 1e-6 * fabs(e) + 1e-12);
    }
    assert_int_equal(t.o->t->gelu_backward(t.o, x, dy, dx, DIFF), TESS_OK);
    check_derivative(&t, gelu_of, x, dy, dx, DIFF, DIFF, 1e-3);
    free(x), free(y), free(dy), free(dx);
    close_table(&t);
}

enum { ROWS = 5, WIDTH = 37 };
static float *norm_w, *norm_b;

static void norm_x(ops *o, const float *x, float *y, float *kept, void *scratch) {
    (void)scratch;
    assert_int_equal(o->t->layernorm(o, x, norm_w, norm_b, y, kept, ROWS, WIDTH), TESS_OK);
}

static void norm_parameters(ops *o, const float *p, float *y, float *kept, void *scratch) {
    float *x = numbers(1, ROWS * WIDTH);
    (void)scratch;
    assert_int_equal(o->t->layernorm(o, x, p, p + 64, y, kept, ROWS, WIDTH), TESS_OK);
    free(x);
}

static void test_ops__layernorm_backward_is_its_derivative(void **state) {
    table t = open_table("plain", 2);
    float *x = numbers(1, ROWS * WIDTH), *y = zeros(ROWS * WIDTH), *stats = zeros(2 * ROWS), *p = numbers(5, 128);
    float *dy = numbers(2, ROWS * WIDTH), *dx = zeros(ROWS * WIDTH), *dp = zeros(128);
    (void)state;
    norm_w = p, norm_b = p + 64;
    assert_int_equal(t.o->t->layernorm(t.o, x, norm_w, norm_b, y, stats, ROWS, WIDTH), TESS_OK);
    assert_int_equal(t.o->t->layernorm_backward(t.o, x, norm_w, stats, dy, dx, dp, dp + 64, ROWS, WIDTH), TESS_OK);
    check_derivative(&t, norm_x, x, dy, dx, ROWS * WIDTH, ROWS * WIDTH, 2e-3);
    check_derivative(&t, norm_parameters, p, dy, dp, 128, ROWS * WIDTH, 2e-3);
    free(x), free(y), free(stats), free(p), free(dy), free(dx), free(dp);
    close_table(&t);
}

static const ops_attention_shape attend = {
    .batch = 2, .time = 70, .heads = 3, .size = 5
}; /* more rows than one block */
enum { N_QKV = 2 * 70 * 3 * 3 * 5, N_ATT = 2 * 70 * 3 * 5 };

static void attend_x(ops *o, const float *x, float *y, float *kept, void *scratch) {
    assert_int_equal(o->t->attention(o, &attend, x, y, kept, scratch), TESS_OK);
}

static void test_ops__attention_backward_is_its_derivative(void **state) {
    for (int32_t threads = 1; threads <= 2; threads++) {
        table t = open_table("plain", threads);
        float *x = numbers(1, N_QKV), *y = zeros(N_ATT), *lse = zeros(2 * 70 * 3), *dy = numbers(2, N_ATT);
        float *dx = zeros(N_QKV);
        ops_scratch need;
        (void)state;
        t.o->t->attention_need(t.o, &attend, &need);
        assert_true(need.forward_bytes <= ROOM && need.backward_bytes <= ROOM);
        attend_x(t.o, x, y, lse, t.scratch);
        assert_int_equal(t.o->t->attention_backward(t.o, &attend, x, y, lse, dy, dx, t.scratch), TESS_OK);
        check_derivative(&t, attend_x, x, dy, dx, N_QKV, N_ATT, 2e-3);
        free(x), free(y), free(lse), free(dy), free(dx);
        close_table(&t);
    }
}

static void test_ops__attention_does_not_see_later_positions(void **state) {
    table t = open_table("plain", 1);
    float *x = numbers(1, N_QKV), *y = zeros(N_ATT), *z = zeros(N_ATT), *lse = zeros(2 * 70 * 3);
    const int row = 3 * 3 * 5, from = 66;
    (void)state;
    attend_x(t.o, x, y, lse, t.scratch);
    for (int i = from * row; i < 70 * row; i++)
        x[i] = -3 * x[i];
    attend_x(t.o, x, z, lse, t.scratch);
    assert_memory_equal(y, z, (size_t)(from * 15) * sizeof(float));
    assert_true(norm_of(y + from * 15, z + from * 15, 15) > 1e-3);
    free(x), free(y), free(z), free(lse);
    close_table(&t);
}

/* ---- pool, dropout, loss, embedding: exact values ----------------------------------------------------------- */
static void test_ops__maxpool_takes_the_first_of_equals(void **state) {
    table t = open_table("plain", 1);
    const ops_conv_shape s = { .batch = 1, .height = 2, .width = 4, .channels = 2 };
    const float x[16] = { 1, 9, 1, 8, -1, 5, -2, 6, 0, 7, 1, 6, -3, 7, -4, 8 }; /* (row, column, channel) */
    const float y_expected[4] = { 1, -1, 9, 8 }, dy[4] = { 10, 20, 30, 40 };
    const uint8_t which_expected[4] = { 0, 0, 0, 3 };
    float y[4], dx[16], dx_expected[16] = { [0] = 5, [1] = 15, [15] = 20 };
    uint8_t which[4];
    (void)state;
    assert_int_equal(t.o->t->maxpool(t.o, x, &s, y, which), TESS_OK);
    assert_memory_equal(y, y_expected, sizeof y);
    assert_memory_equal(which, which_expected, sizeof which);
    assert_int_equal(t.o->t->maxpool_backward(t.o, y, which, dy, &s, dx, 0.5f),
                     TESS_OK); /* -1: relu let nothing pass */
    assert_memory_equal(dx, dx_expected, sizeof dx);
    close_table(&t);
}

static void test_ops__dropout_keeps_its_share_and_repeats(void **state) {
    enum { SAMPLES = 40, ELEMS = 1001 };
    table t = open_table("plain", 2), u = open_table("plain", 1);
    ops_dropout d = { .seed = 11, .step = 3, .first_sample = 100, .layer = 2, .rate = 0.25f };
    float *x = room(SAMPLES * ELEMS * 4), *y = room(SAMPLES * ELEMS * 4);
    int kept = 0;
    (void)state;
    for (int i = 0; i < SAMPLES * ELEMS; i++)
        x[i] = y[i] = 3;
    assert_int_equal(t.o->t->dropout(t.o, x, SAMPLES, ELEMS, &d), TESS_OK);
    for (int i = 0; i < SAMPLES * ELEMS; i++) {
        assert_true(x[i] == 0 || x[i] == 4);
        kept += x[i] == 4;
    }
    assert_in_range(kept, (int)(0.74 * SAMPLES * ELEMS), (int)(0.76 * SAMPLES * ELEMS));
    d.first_sample = 120; /* the second half alone: the same masks */
    assert_int_equal(u.o->t->dropout(u.o, y + 20 * ELEMS, 20, ELEMS, &d), TESS_OK);
    assert_memory_equal(x + 20 * ELEMS, y + 20 * ELEMS, 20 * ELEMS * 4);
    free(x), free(y);
    close_table(&t), close_table(&u);
}

static void test_ops__philox_matches_the_published_vectors(void **state) {
    (void)state;
    philox_block a = philox(0, 0, 0, 0, 0), b = philox(~(uint64_t)0, ~0u, ~0u, ~0u, ~0u);
    philox_block c = philox(0x299f31d0a4093822ull, 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344);
    const uint32_t ea[4] = { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 };
    const uint32_t eb[4] = { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd };
    const uint32_t ec[4] = { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 };
    assert_memory_equal(a.v, ea, sizeof ea);
    assert_memory_equal(b.v, eb, sizeof eb);
    assert_memory_equal(c.v, ec, sizeof ec);
}

static void test_ops__cross_entropy_counts_its_rows_only(void **state) {
    table t = open_table("plain", 1);
    float logits[9] = { 1, 2, 0.5f, 3, 0, -1, 7, 7, 7 }, d[9];
    const int32_t labels[3] = { 1, 2, 0 };
    double z0 = exp(1) + exp(2) + exp(0.5), z1 = exp(3) + 1 + exp(-1);
    ops_loss loss;
    (void)state;
    assert_int_equal(t.o->t->cross_entropy(t.o, logits, labels, 3, 3, 2, &loss, NULL), TESS_OK);
    assert_true(fabs(loss.loss - (log(z0) - 2 + log(z1) + 1)) < 1e-6);
    assert_int_equal(loss.correct, 1);
    assert_int_equal(loss.count, 2);
    assert_int_equal(t.o->t->cross_entropy_backward(t.o, logits, labels, 3, 3, 2, 1, d), TESS_OK);
    assert_true(fabs(d[1] - (exp(2) / z0 - 1) / 2) < 1e-7);
    assert_true(fabs(d[3] - exp(3) / z1 / 2) < 1e-7);
    assert_true(d[6] == 0 && d[7] == 0 && d[8] == 0);
    close_table(&t);
}

static void test_ops__embedding_adds_up_repeated_tokens(void **state) {
    table t = open_table("plain", 1);
    const int32_t ids[4] = { 2, 0, 2, 2 };
    const float words[6] = { 1, 2, 3, 4, 5, 6 }, places[4] = { 10, 20, 30, 40 };
    const float y_expected[8] = { 15, 26, 31, 42, 15, 26, 35, 46 }, dy[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
    const float dw_expected[6] = { 3, 4, 0, 0, 13, 16 }, dp_expected[4] = { 6, 8, 10, 12 };
    float y[8], dw[6] = { 0 }, dp[4] = { 0 };
    (void)state;
    assert_int_equal(t.o->t->embedding(t.o, ids, words, places, y, 4, 2, 2), TESS_OK);
    assert_memory_equal(y, y_expected, sizeof y);
    assert_int_equal(t.o->t->embedding_backward(t.o, ids, dy, dw, dp, 4, 2, 2), TESS_OK);
    assert_memory_equal(dw, dw_expected, sizeof dw);
    assert_memory_equal(dp, dp_expected, sizeof dp);
    close_table(&t);
}

/* ---- batch normalisation ------------------------------------------------------------------------------ */
enum { BN_ROWS = 1100, BN_CHANNELS = 5, BN = BN_ROWS * BN_CHANNELS }; /* three chunks of rows */
static const ops_batchnorm_shape bn_shape = { BN_ROWS, BN_CHANNELS, 0 }, bn_relu = { BN_ROWS, BN_CHANNELS, 1 };
static float *bn_w, *bn_b;

static void bn_x(ops *o, const float *x, float *y, float *kept, void *scratch) {
    assert_int_equal(o->t->batchnorm(o, &bn_shape, OPS_BATCH, x, bn_w, bn_b, NULL, NULL, y, kept, scratch), TESS_OK);
}

static void bn_parameters(ops *o, const float *p, float *y, float *kept, void *scratch) {
    float *x = numbers(1, BN);
    assert_int_equal(o->t->batchnorm(o, &bn_shape, OPS_BATCH, x, p, p + 8, NULL, NULL, y, kept, scratch), TESS_OK);
    free(x);
}

static void test_ops__batchnorm_backward_is_its_derivative(void **state) {
    table t = open_table("plain", 2);
    float *x = numbers(1, BN), *y = zeros(BN), *dy = numbers(2, BN), *dx = zeros(BN), *stats = zeros(2 * BN_CHANNELS);
    float *p = numbers(5, 16), *dp = zeros(16);
    (void)state;
    bn_w = p, bn_b = p + 8;
    bn_x(t.o, x, y, stats, t.scratch);
    for (int twice = 0; twice < 2; twice++) /* dw and db add up */
        assert_int_equal(t.o->t->batchnorm_backward(t.o, &bn_shape, x, p, stats, NULL, dy, dx, dp, dp + 8, t.scratch),
                         TESS_OK);
    for (int i = 0; i < 16; i++)
        dp[i] /= 2;
    check_derivative(&t, bn_x, x, dy, dx, BN, BN, 2e-3);
    check_derivative(&t, bn_parameters, p, dy, dp, 16, BN, 2e-3);
    free(x), free(y), free(dy), free(dx), free(stats), free(p), free(dp);
    close_table(&t);
}

/* The same sums in fp64; which statistics are used, and when the running ones move. */
static void test_ops__batchnorm_uses_and_moves_statistics(void **state) {
    table t = open_table("plain", 1);
    float *x = numbers(1, BN), *y = zeros(BN), *stats = zeros(2 * BN_CHANNELS), *w = numbers(5, 8), *b = numbers(6, 8);
    float mean[BN_CHANNELS], var[BN_CHANNELS], before[BN_CHANNELS];
    (void)state;
    for (int c = 0; c < BN_CHANNELS; c++)
        mean[c] = before[c] = (float)c, var[c] = 1;
    assert_int_equal(t.o->t->batchnorm(t.o, &bn_shape, OPS_BATCH, x, w, b, mean, var, y, stats, t.scratch), TESS_OK);
    assert_memory_equal(mean, before, sizeof mean);
    assert_int_equal(t.o->t->batchnorm(t.o, &bn_relu, OPS_BATCH_UPDATE, x, w, b, mean, var, y, stats, t.scratch),
                     TESS_OK);
    for (int c = 0; c < BN_CHANNELS; c++) {
        double sum = 0, square = 0;
        for (int r = 0; r < BN_ROWS; r++)
            sum += x[r * BN_CHANNELS + c];
        for (int r = 0; r < BN_ROWS; r++)
            square += pow(x[r * BN_CHANNELS + c] - sum / BN_ROWS, 2);
        assert_true(fabs(mean[c] - (0.9 * c + 0.1 * sum / BN_ROWS)) < 1e-6);
        assert_true(fabs(var[c] - (0.9 + 0.1 * square / (BN_ROWS - 1))) < 1e-6);
        for (int r = 0; r < BN_ROWS; r++) {
            double e = (x[r * BN_CHANNELS + c] - sum / BN_ROWS) / sqrt(square / BN_ROWS + 1e-5) * w[c] + b[c];
            assert_true(fabs(y[r * BN_CHANNELS + c] - (e > 0 ? e : 0)) < 1e-5);
        }
    }
    memcpy(before, mean, sizeof mean);
    assert_int_equal(t.o->t->batchnorm(t.o, &bn_shape, OPS_RUNNING, x, w, b, mean, var, x, stats, t.scratch), TESS_OK);
    assert_memory_equal(mean, before, sizeof mean);
    float *fresh = numbers(1, BN);
    for (int i = 0; i < BN; i++) {
        int c = i % BN_CHANNELS;
        double e = (fresh[i] - mean[c]) / sqrt(var[c] + 1e-5) * w[c] + b[c];
        assert_true(fabs(x[i] - e) < 1e-5);
    }
    free(x), free(y), free(stats), free(w), free(b), free(fresh);
    close_table(&t);
}

/* Where relu gave 0 no gradient comes back; bits do not depend on threads. */
static void test_ops__batchnorm_bits_do_not_depend_on_threads(void **state) {
    float *x = numbers(1, BN), *dy = numbers(2, BN), *w = numbers(5, 8), *b = numbers(6, 8), *out[2];
    (void)state;
    for (int turn = 0; turn < 2; turn++) {
        table t = open_table("plain", turn ? 3 : 1);
        float *y = zeros(BN), *dx = out[turn] = zeros(BN), stats[2 * BN_CHANNELS], dp[16] = { 0 };
        assert_int_equal(t.o->t->batchnorm(t.o, &bn_relu, OPS_BATCH, x, w, b, NULL, NULL, y, stats, t.scratch),
                         TESS_OK);
        memcpy(dx, dy, BN * sizeof *dx);
        assert_int_equal(t.o->t->batchnorm_backward(t.o, &bn_relu, x, w, stats, y, dx, dx, dp, dp + 8, t.scratch),
                         TESS_OK);
        double db = 0;
        for (int i = 0; i < BN; i += BN_CHANNELS)
            db += y[i] > 0 ? dy[i] : 0;
        assert_true(fabs(dp[8] - db) < 1e-4);
        free(y);
        close_table(&t);
    }
    assert_memory_equal(out[0], out[1], BN * sizeof *x);
    free(x), free(dy), free(w), free(b), free(out[0]), free(out[1]);
}

static void test_ops__avgpool_is_the_mean_over_places(void **state) {
    enum { BATCH = 3, PLACES = 7, CHANNELS = 70 };
    (void)state;
    for (int32_t threads = 1; threads <= 2; threads++) {
        table t = open_table("plain", threads);
        float *x = numbers(1, BATCH * PLACES * CHANNELS), *y = zeros(BATCH * CHANNELS);
        float *dx = zeros(BATCH * PLACES * CHANNELS);
        assert_int_equal(t.o->t->avgpool(t.o, x, y, BATCH, PLACES, CHANNELS), TESS_OK);
        assert_int_equal(t.o->t->avgpool_backward(t.o, y, dx, BATCH, PLACES, CHANNELS), TESS_OK);
        for (int n = 0; n < BATCH; n++)
            for (int c = 0; c < CHANNELS; c++) {
                double sum = 0;
                for (int p = 0; p < PLACES; p++)
                    sum += x[(n * PLACES + p) * CHANNELS + c];
                assert_true(y[n * CHANNELS + c] == (float)(sum / PLACES));
                for (int p = 0; p < PLACES; p++)
                    assert_true(dx[(n * PLACES + p) * CHANNELS + c] == (float)((double)y[n * CHANNELS + c] / PLACES));
            }
        free(x), free(y), free(dx);
        close_table(&t);
    }
}

static void test_ops__unknown_names_are_refused(void **state) {
    const ops_table *t;
    ops *o;
    (void)state;
    assert_int_equal(ops_find("cudnn", &t), TESS_E_INVALID);
    assert_string_equal(tess_last_error(), "operators \"cudnn\": expected auto, onednn, plain or cuda");
#ifdef TESSERA_HAVE_DNNL
    assert_int_equal(ops_onednn.create(&(ops_options){ .threads = 1, .isa = "avx1024" }, &o), TESS_E_INVALID);
    assert_non_null(strstr(tess_last_error(), "\"avx1024\" is unknown"));
#else
    (void)o;
    assert_int_equal(ops_find("onednn", &t), TESS_E_UNSUPPORTED);
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ops__plain_linear_equals_the_sums),
        cmocka_unit_test(test_ops__onednn_linear_equals_the_sums),
        cmocka_unit_test(test_ops__plain_convolution_equals_the_sums),
        cmocka_unit_test(test_ops__onednn_convolution_equals_the_sums),
        cmocka_unit_test(test_ops__bf16_products_equal_the_sums),
        cmocka_unit_test(test_ops__casts_round_to_nearest_even),
        cmocka_unit_test(test_ops__onednn_bits_repeat_at_any_aligned_address),
        cmocka_unit_test(test_ops__gelu_is_the_tanh_form),
        cmocka_unit_test(test_ops__layernorm_backward_is_its_derivative),
        cmocka_unit_test(test_ops__attention_backward_is_its_derivative),
        cmocka_unit_test(test_ops__attention_does_not_see_later_positions),
        cmocka_unit_test(test_ops__maxpool_takes_the_first_of_equals),
        cmocka_unit_test(test_ops__dropout_keeps_its_share_and_repeats),
        cmocka_unit_test(test_ops__philox_matches_the_published_vectors),
        cmocka_unit_test(test_ops__cross_entropy_counts_its_rows_only),
        cmocka_unit_test(test_ops__embedding_adds_up_repeated_tokens),
        cmocka_unit_test(test_ops__batchnorm_backward_is_its_derivative),
        cmocka_unit_test(test_ops__batchnorm_uses_and_moves_statistics),
        cmocka_unit_test(test_ops__batchnorm_bits_do_not_depend_on_threads),
        cmocka_unit_test(test_ops__avgpool_is_the_mean_over_places),
        cmocka_unit_test(test_ops__unknown_names_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
