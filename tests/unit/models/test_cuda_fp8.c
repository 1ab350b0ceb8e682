/* SPDX-License-Identifier: BSD-3-Clause */
/* Products in fp8 on a device: codes and scales to the byte, products against the sums of what codes mean, and
 * refusals. */
#include "cuda_tables.h"
#include "factors.h"
#include "tools/models/fp8.h"
#include "tools/models/fp8_formulas.h"

enum { ROWS = 160, DEPTH = 272, COLUMNS = 144, AS_IT_IS = 1, TURNED = 2 /* orders of codes */ };

/* ---- codes --------------------------------------------------------------------------------------------- */
typedef struct { /* matrices of one width, their codes in one array */
    both from[OPS_FP8_MOST], to, turned;
    uint64_t rows[OPS_FP8_MOST], all, width;
    int32_t n, orders, e5m2;
    float inverse;
} codes;

static both matrix(uint32_t which, uint64_t elems, float size) {
    both b = take(elems * sizeof(uint16_t));
    for (uint64_t i = 0; i < elems; i++)
        ((uint16_t *)b.host)[i] = tess_bf16_of_f32(number(which, i) * size);
    up(&b);
    return b;
}

static ops_fp8_factor factor_of(const codes *c, float *inverse) {
    ops_fp8_factor f = { .width = c->width, .n = c->n, .e5m2 = c->e5m2 };
    for (int32_t i = 0; i < c->n; i++)
        f.from[i] = c->from[i].dev, f.rows[i] = c->rows[i];
    f.to = c->orders & AS_IT_IS ? c->to.dev : NULL, f.turned = c->orders & TURNED ? c->turned.dev : NULL;
    f.inverse = inverse;
    return f;
}

/* What the host expects: one scale for all matrices. */
static void expect_codes(codes *c) {
    uint32_t most = 0;
    uint8_t *to = c->to.host, *turned = c->turned.host;
    uint64_t before = 0;
    for (int32_t m = 0; m < c->n; m++)
        for (uint64_t i = 0; i < c->rows[m] * c->width; i++) {
            uint32_t size = fp8_size((uint32_t)((uint16_t *)c->from[m].host)[i] << 16);
            most = size > most ? size : most;
        }
    float scale = fp8_scale(most, c->e5m2);
    for (int32_t m = 0; m < c->n; before += c->rows[m++])
        for (uint64_t r = 0; r < c->rows[m]; r++)
            for (uint64_t k = 0; k < c->width; k++) {
                float x = tess_f32_of_bf16(((uint16_t *)c->from[m].host)[r * c->width + k]);
                uint8_t code = fp8_code(x, scale, c->e5m2);
                if (c->orders & AS_IT_IS)
                    to[(before + r) * c->width + k] = code;
                if (c->orders & TURNED)
                    turned[k * c->all + before + r] = code;
            }
    c->inverse = fp8_inverse(scale);
}

static codes codes_of(const uint64_t *rows, int32_t n, uint64_t width, int32_t orders, int32_t e5m2, float size) {
    codes c = { .n = n, .width = width, .orders = orders, .e5m2 = e5m2 };
    for (int32_t i = 0; i < n; i++) {
        c.rows[i] = rows[i], c.all += rows[i];
        c.from[i] = matrix((uint32_t)(10 + i), rows[i] * width, size * (float)(i + 1));
    }
    c.to = take(c.all * width), c.turned = take(c.all * width);
    up(&c.to), up(&c.turned); /* one that is not wanted stays */
    return c;
}

static void make_codes(const tables *t, codes *a, codes *b) {
    both inverse = take(2 * sizeof(float)), parts = take(layer(t)->fp8_need());
    const ops_fp8_factor two[] = { factor_of(a, inverse.dev), factor_of(b, inverse.dev + 1) };
    assert_int_equal(layer(t)->fp8_codes(t->d, two, parts.dev), TESS_OK);
    expect_codes(a), expect_codes(b);
    same_bits(&a->to), same_bits(&b->to), same_bits(&a->turned), same_bits(&b->turned);
    ((float *)inverse.host)[0] = a->inverse, ((float *)inverse.host)[1] = b->inverse;
    same_bits(&inverse);
}

static void test_cuda_fp8__codes_and_scales_are_the_formulas(void **state) {
    static const uint64_t one[] = { 16 }, three[] = { 272, 16, 144 }, large[] = { 400, 1024 };
    (void)state;
    for (int orders = AS_IT_IS; orders <= (AS_IT_IS | TURNED); orders++)
        for (int e5m2 = 0; e5m2 < 2; e5m2++) {
            int32_t others = orders % 3 + 1;
            tables t = open_tables(IN_BF16, 0);
            codes a = codes_of(three, 3, 144, orders, e5m2, 3e-6f), b = codes_of(one, 1, 16, others, !e5m2, 700);
            make_codes(&t, &a, &b);
            close_tables(&t);
            t = open_tables(IN_BF16, 0);
            a = codes_of(large, 2, 1056, orders, e5m2, 1), b = codes_of(one, 1, 656, orders, e5m2, 1e-20f);
            make_codes(&t, &a, &b);
            close_tables(&t);
        }
}

/* Only zeros; values that are not finite beside others; none but such. */
static void test_cuda_fp8__zeros_and_what_is_not_finite(void **state) {
    static const uint64_t rows[] = { 32 };
    tables t = open_tables(IN_BF16, 0);
    codes a = codes_of(rows, 1, 48, AS_IT_IS, 0, 0), b = codes_of(rows, 1, 48, TURNED, 1, 2);
    uint16_t *x = b.from[0].host;
    (void)state;
    x[3] = 0x7f80, x[700] = 0xff80, x[1000] = 0x7fc1;
    up(&b.from[0]);
    make_codes(&t, &a, &b);
    assert_true(a.inverse == 1);
    assert_int_equal(((uint8_t *)b.turned.host)[3 * 32], FP8_NAN);
    for (int i = 0; i < 32 * 48; i++)
        x[i] = 0xff80;
    up(&b.from[0]);
    make_codes(&t, &a, &b);
    assert_true(b.inverse == 1);
    close_tables(&t);
}

/* ---- what writers find ---------------------------------------------------------------------------------- */
typedef struct { /* rooms for it, larger than any kernel here has blocks */
    both at;
    fp8_found found;
} finding;
enum { ROOMS = 4096 };

static finding find(void) {
    finding f = { .at = take(ROOMS * sizeof(uint32_t)) };
    memset(f.at.host, 0x5a, f.at.bytes);
    up(&f.at);
    f.found = (fp8_found){ .at = f.at.dev, .n = 77 };
    return f;
}

static uint32_t largest(const uint16_t *x, uint64_t n) {
    uint32_t most = 0;
    for (uint64_t i = 0; i < n; i++)
        most = fp8_size((uint32_t)x[i] << 16) > most ? fp8_size((uint32_t)x[i] << 16) : most;
    return most;
}

/* Each of `blocks` numbers is one of the tensor's, the largest is its largest, and none lies behind them. */
static void expect_found(const finding *f, const both *y, uint64_t elems, uint64_t blocks) {
    uint32_t *got = down(&f->at), most = 0;
    uint16_t *there = down(y);
    assert_int_equal(f->found.n, blocks);
    for (uint64_t i = 0; i < blocks; i++)
        most = got[i] > most ? got[i] : most;
    assert_int_equal(most, largest(there, elems));
    assert_true(most > 0);
    for (uint64_t i = blocks; i < ROOMS; i++)
        assert_int_equal(got[i], 0x5a5a5a5a);
    free(got), free(there);
}

static both bf16(uint32_t which, uint64_t elems) {
    return matrix(which, elems, 3);
}

static void norms_find(uint64_t rows, uint64_t width, uint64_t forward, uint64_t backward, int masks) {
    tables t = open_tables(IN_BF16, 1 << 20);
    const ops_rows of = { rows, width, rows };
    const ops_dropout drop = { .rate = 0.5f, .seed = 3 };
    both x = bf16(1, rows * width), w = bf16(2, width), y = take(rows * width * 2), stats = take(rows * 8);
    both dy = bf16(4, rows * width), dx = take(rows * width * 2), masked = take(rows * width * 2), again = y;
    finding f = find(), g = find(), h = find();
    ops_norm n = { .of = of, .x = x.dev, .w = w.dev, .y = y.dev, .stats = stats.dev, .found = &f.found };
    assert_int_equal(layer(&t)->norm(t.d, &n), TESS_OK);
    expect_found(&f, &y, rows * width, forward);
    again = take(rows * width * 2);
    ops_norm_backward b = { .of = of, .x = x.dev, .w = w.dev, .dy = dy.dev, .stats = stats.dev, .dx = dx.dev };
    b.normal = again.dev, b.masked = masks ? masked.dev : NULL, b.drop = &drop;
    b.found = &g.found, b.found_normal = &h.found;
    assert_int_equal(layer(&t)->norm_backward(t.d, &b), TESS_OK);
    expect_found(&g, masks ? &masked : &dx, rows * width, backward);
    expect_found(&h, &again, rows * width, backward);
    finding alone = find(); /* beside sums over columns, of one tensor only */
    both dw = numbers(5, width);
    const ops_columns sums = { .x = x.dev, .dy = dy.dev, .stats = stats.dev, .dw = dw.dev, .width = width };
    b.found = NULL, b.found_normal = &alone.found;
    assert_int_equal(layer(&t)->norm_backward_columns(t.d, &b, &sums, 1, 0, t.scratch.dev), TESS_OK);
    expect_found(&alone, &again, rows * width, backward);
    close_tables(&t);
}

/* Rows that no block can keep: their kernels find nothing, and say so. */
static void test_cuda_fp8__norms_find_the_largest(void **state) {
    (void)state;
    norms_find(37, 64, 3, 3, 0);
    norms_find(16, 1024, 2, 4, 1);
    tables t = open_tables(IN_BF16, 0);
    both x = bf16(1, 2 * 16384), w = bf16(2, 16384), y = take(2 * 16384 * 2), stats = take(16);
    finding f = find();
    ops_norm n = { .of = { 2, 16384, 2 }, .x = x.dev, .w = w.dev, .y = y.dev, .stats = stats.dev, .found = &f.found };
    assert_int_equal(layer(&t)->norm(t.d, &n), TESS_OK);
    assert_int_equal(f.found.n, 0);
    close_tables(&t);
}

static void test_cuda_fp8__activations_find_the_largest(void **state) {
    enum { WIDE = 112, ALL = 40 * WIDE };
    (void)state;
    for (int32_t is_gelu = 0; is_gelu < 2; is_gelu++) {
        tables t = open_tables(IN_BF16, 0);
        both x = bf16(1, 2 * ALL), dy = bf16(2, ALL), y = take(ALL * 2), dx = take(2 * ALL * 2);
        finding f = find(), g = find(), h = find();
        assert_int_equal(layer(&t)->swiglu(t.d, x.dev, y.dev, 40, WIDE, is_gelu, &f.found), TESS_OK);
        expect_found(&f, &y, ALL, 3);
        assert_int_equal(
            layer(&t)->swiglu_backward(t.d, x.dev, dy.dev, dx.dev, y.dev, 40, WIDE, is_gelu, &g.found, &h.found),
            TESS_OK);
        expect_found(&g, &dx, 2 * ALL, 3);
        expect_found(&h, &y, ALL, 3);
        close_tables(&t);
    }
}

/* Codes take their scale from it, few numbers or many, and read the tensor for nothing else. */
static void test_cuda_fp8__codes_take_what_was_found(void **state) {
    static const uint64_t rows[] = { 48 };
    static const uint32_t numbers_of[] = { 1, 300, 2048, 2049, 4000 };
    (void)state;
    for (size_t i = 0; i < sizeof numbers_of / sizeof *numbers_of; i++) {
        tables t = open_tables(IN_BF16, 0);
        codes a = codes_of(rows, 1, 80, AS_IT_IS | TURNED, 1, 2);
        uint32_t n = numbers_of[i], *most = NULL;
        finding f = find();
        most = f.at.host;
        for (uint32_t k = 0; k < n; k++)
            most[k] = k == n - 1 - n / 3 ? 0x44000000u /* 512, of numbers below 2 */ : 0x3f800000u;
        up(&f.at);
        both inverse = take(4), parts = take(layer(&t)->fp8_need());
        ops_fp8_factor two[2] = { factor_of(&a, inverse.dev) };
        f.found.n = n, two[0].found = &f.found;
        assert_int_equal(layer(&t)->fp8_codes(t.d, two, parts.dev), TESS_OK);
        float *got = down(&inverse);
        assert_true(*got == fp8_inverse(fp8_scale(0x44000000u, 1)));
        free(got);
        close_tables(&t);
    }
}

/* ---- products ------------------------------------------------------------------------------------------ */
static double value(const codes *c, uint64_t row, uint64_t k) {
    return (double)fp8_value(((uint8_t *)c->to.host)[row * DEPTH + k], c->e5m2) * c->inverse;
}

typedef struct {
    codes a, b;
    both inverse, y, bias, before;
    tables t;
} product;

/* a[rows, depth] of e5m2 or e4m3, b[columns, depth]. */
static product open_product(int32_t e5m2) {
    static const uint64_t rows[] = { ROWS }, columns[] = { 16, COLUMNS - 16 };
    product p = { .t = open_tables(IN_BF16, 8 << 20) };
    p.a = codes_of(rows, 1, DEPTH, AS_IT_IS, e5m2, 30), p.b = codes_of(columns, 2, DEPTH, AS_IT_IS, 0, 0.01f);
    both parts = take(layer(&p.t)->fp8_need());
    p.inverse = take(2 * sizeof(float));
    const ops_fp8_factor two[] = { factor_of(&p.a, p.inverse.dev), factor_of(&p.b, p.inverse.dev + 1) };
    assert_int_equal(layer(&p.t)->fp8_codes(p.t.d, two, parts.dev), TESS_OK);
    expect_codes(&p.a), expect_codes(&p.b);
    p.y = factors(5, ROWS * COLUMNS, IN_BF16), p.bias = factors(6, COLUMNS, IN_BF16);
    p.before = take(ROWS * COLUMNS * 4);
    return p;
}

static ops_factors call_of(const product *p, int32_t e5m2) {
    ops_factors f = { .rows = ROWS, .columns = COLUMNS, .depth = DEPTH, .a = p->a.to.dev, .b = p->b.to.dev };
    f.turn_b = 1, f.y = p->y.dev, f.a_inverse = p->inverse.dev, f.b_inverse = p->inverse.dev + 1, f.a_e5m2 = e5m2;
    return f;
}

static void sums(const product *p, float *y, int add, const float *bias) {
    for (uint64_t r = 0; r < ROWS; r++)
        for (uint64_t c = 0; c < COLUMNS; c++) {
            double sum = add ? (double)y[r * COLUMNS + c] : 0;
            for (uint64_t k = 0; k < DEPTH; k++)
                sum += value(&p->a, r, k) * value(&p->b, c, k);
            y[r * COLUMNS + c] = (float)(sum + (bias ? (double)bias[c] : 0));
        }
}

static void test_cuda_fp8__products_are_sums_of_what_codes_mean(void **state) {
    (void)state;
    for (int32_t e5m2 = 0; e5m2 < 2; e5m2++)
        for (int add = 0; add < 2; add++)
            for (int wide = 0; wide < 2; wide++) {
                product p = open_product(e5m2);
                ops_factors f = call_of(&p, e5m2);
                f.add = add, f.wide = wide;
                if (wide)
                    up(&p.y);
                assert_int_equal(layer(&p.t)->product(p.t.d, &f, p.t.scratch.dev), TESS_OK);
                sums(&p, p.y.host, add, NULL);
                if (wide)
                    near(&p.y, 1e-6);
                else
                    near_factors(&p.y, IN_BF16, 4e-3);
                close_tables(&p.t);
            }
}

static float gelu(float x) {
    return (float)(0.5 * (double)x * (1 + tanh(0.7978845608028654 * ((double)x + 0.044715 * pow((double)x, 3)))));
}

/* Bias beside rows with gaps, bias and GELU, and the way back through GELU. */
static void test_cuda_fp8__what_follows_a_product(void **state) {
    product p = open_product(0);
    ops_factors f = call_of(&p, 0);
    (void)state;
    f.bias = p.bias.dev, f.gelu = 1, f.before = p.before.dev;
    assert_int_equal(layer(&p.t)->product(p.t.d, &f, p.t.scratch.dev), TESS_OK);
    sums(&p, p.before.host, 0, p.bias.host);
    near_factors(&p.before, IN_BF16, 4e-3);
    for (int i = 0; i < ROWS * COLUMNS; i++)
        ((float *)p.y.host)[i] = gelu(((float *)p.before.host)[i]);
    near_factors(&p.y, IN_BF16, 1e-2);
    both wide = take(ROWS * (COLUMNS + 16) * 4);
    f = call_of(&p, 0);
    f.bias = p.bias.dev, f.y = wide.dev, f.y_pitch = COLUMNS + 16;
    assert_int_equal(layer(&p.t)->product(p.t.d, &f, p.t.scratch.dev), TESS_OK);
    float *got = down_factors(&wide, IN_BF16), *tight = malloc(ROWS * COLUMNS * 4);
    for (int i = 0; i < ROWS * COLUMNS; i++)
        tight[i] = got[i / COLUMNS * (COLUMNS + 16) + i % COLUMNS];
    free(got);
    near_values(&p.before, tight, 4e-3);
    both again = take(ROWS * COLUMNS * 4);
    f = call_of(&p, 0);
    f.through = p.before.dev, f.again = again.dev;
    assert_int_equal(layer(&p.t)->product(p.t.d, &f, p.t.scratch.dev), TESS_OK);
    near_values(&p.y, down_factors(&again, IN_BF16), 1e-2);
    close_tables(&p.t);
}

/* GELU behind a product, and the way back through it, find the largest of what they write. */
static void test_cuda_fp8__gelu_finds_the_largest(void **state) {
    const uint64_t blocks = (ROWS * COLUMNS + 2047) / 2048;
    product p = open_product(0);
    both y = take(ROWS * COLUMNS * 2), before = take(ROWS * COLUMNS * 2), again = take(ROWS * COLUMNS * 2);
    finding f = find(), g = find(), h = find();
    ops_factors a = call_of(&p, 0);
    (void)state;
    a.bias = p.bias.dev, a.gelu = 1, a.before = before.dev, a.y = y.dev, a.found = &f.found;
    assert_int_equal(layer(&p.t)->product(p.t.d, &a, p.t.scratch.dev), TESS_OK);
    expect_found(&f, &y, ROWS * COLUMNS, blocks);
    a = call_of(&p, 0);
    a.y = y.dev, a.through = before.dev, a.again = again.dev, a.found = &g.found, a.found_again = &h.found;
    assert_int_equal(layer(&p.t)->product(p.t.d, &a, p.t.scratch.dev), TESS_OK);
    expect_found(&g, &y, ROWS * COLUMNS, blocks);
    expect_found(&h, &again, ROWS * COLUMNS, blocks);
    close_tables(&p.t);
}

/* The library offers nothing for sides that are no whole vectors: an error, not another precision. */
static void test_cuda_fp8__a_product_that_does_not_exist_is_one_line(void **state) {
    product p = open_product(0);
    ops_factors f = call_of(&p, 0);
    (void)state;
    f.depth = DEPTH - 8;
    assert_int_equal(layer(&p.t)->product(p.t.d, &f, p.t.scratch.dev), TESS_E_UNSUPPORTED);
    assert_string_equal(tess_last_error(), "cuBLASLt has no product in fp8 of 160 x 264 by 264 x 144: "
                                           "TESSERA_PRECISION=bf16");
    close_tables(&p.t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_fp8__codes_and_scales_are_the_formulas),
        cmocka_unit_test(test_cuda_fp8__zeros_and_what_is_not_finite),
        cmocka_unit_test(test_cuda_fp8__norms_find_the_largest),
        cmocka_unit_test(test_cuda_fp8__activations_find_the_largest),
        cmocka_unit_test(test_cuda_fp8__codes_take_what_was_found),
        cmocka_unit_test(test_cuda_fp8__gelu_finds_the_largest),
        cmocka_unit_test(test_cuda_fp8__products_are_sums_of_what_codes_mean),
        cmocka_unit_test(test_cuda_fp8__what_follows_a_product),
        cmocka_unit_test(test_cuda_fp8__a_product_that_does_not_exist_is_one_line),
    };
    return cmocka_run_group_tests(tests, start, finish);
}
