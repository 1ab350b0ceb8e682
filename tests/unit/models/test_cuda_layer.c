/* SPDX-License-Identifier: BSD-3-Clause */
/* The operators of a decoder's layer on a GPU (layer_ops.h) against the plain ones in fp32: to the bit in fp32 where
 * the sums have the same order, within rounding in bf16 and fp16. Attention goes against its definition, in fp64. */
#include "cuda_tables.h"
#include "factors.h"

enum { SAMPLES = 3, TIME = 13, ROWS = SAMPLES * TIME };

static void plus(both *to, const both *x, const both *bias) {
    uint64_t width = bias ? bias->bytes / sizeof(float) : 1, elems = to->bytes / sizeof(float);
    for (uint64_t i = 0; i < elems; i++)
        ((float *)to->host)[i] = ((float *)x->host)[i] + (bias ? ((float *)bias->host)[i % width] : 0);
}

/* ---- rows ---------------------------------------------------------------------------------------- */
static void norm_on(uint64_t width, int halves, float rate) {
    uint64_t n = ROWS * width;
    tables t = open_tables(halves, 0);
    ops_dropout drop = { .seed = 5, .step = 2, .first_sample = 7, .layer = 3, .rate = rate };
    both x = factors(1, n, halves), add = factors(2, n, halves), bias = factors(3, width, halves);
    both w = factors(4, width, halves), b = factors(5, width, halves), next_bias = factors(6, width, halves);
    both sum = take(n * 4), next = take(n * 4), y = take(n * 4), stats = take(2 * ROWS * 4);
    double within = halves ? 4e-3 : 0;
    ops_norm call = { .of = { ROWS, width, TIME }, .x = x.dev, .add = add.dev, .add_bias = bias.dev, .w = w.dev };
    call.b = b.dev, call.next_bias = next_bias.dev, call.sum = sum.dev, call.next = next.dev, call.y = y.dev;
    call.stats = stats.dev, call.drop = &drop;
    assert_int_equal(layer(&t)->norm(t.d, &call), TESS_OK);
    plus(&sum, &add, &bias);
    assert_int_equal(t.c->t->dropout(t.c, sum.host, SAMPLES, TIME * width, &drop), TESS_OK);
    for (uint64_t i = 0; i < n; i++)
        ((float *)sum.host)[i] = ((float *)x.host)[i] + ((float *)sum.host)[i];
    near_factors(&sum, halves, within);
    plus(&next, &sum, &next_bias);
    near_factors(&next, halves, within);
    assert_int_equal(t.c->t->layernorm(t.c, sum.host, w.host, b.host, y.host, stats.host, ROWS, width), TESS_OK);
    near_factors(&y, halves, halves ? 2e-2 : 0);
    near(&stats, halves ? 2e-2 : 0);
    call = (ops_norm){ .of = { ROWS, width, TIME }, .x = x.dev, .w = w.dev, .b = b.dev, .y = y.dev };
    call.stats = stats.dev; /* of the input alone */
    assert_int_equal(layer(&t)->norm(t.d, &call), TESS_OK);
    assert_int_equal(t.c->t->layernorm(t.c, x.host, w.host, b.host, y.host, stats.host, ROWS, width), TESS_OK);
    near_factors(&y, halves, within);
    near(&stats, 0);
    close_tables(&t);
}

static void norm_backward_on(uint64_t width, int halves, float rate) {
    uint64_t n = ROWS * width;
    tables t = open_tables(halves, 1 << 14);
    ops_dropout drop = { .seed = 5, .step = 2, .first_sample = 7, .layer = 3, .rate = rate };
    both x = factors(1, n, halves), dy = factors(2, n, halves), add = factors(3, n, halves);
    both w = factors(4, width, halves), b = factors(5, width, halves), stats = take(2 * ROWS * 4);
    both dx = take(n * 4), masked = take(n * 4), normal = take(n * 4), dw = numbers(6, width), db = numbers(7, width);
    double within = halves ? 4e-3 : 0;
    t.c->t->layernorm(t.c, x.host, w.host, b.host, normal.host, stats.host, ROWS, width);
    up(&stats);
    ops_norm_backward call = { .of = { ROWS, width, TIME }, .x = x.dev, .w = w.dev, .b = b.dev, .dy = dy.dev };
    call.add = add.dev, call.stats = stats.dev, call.dx = dx.dev, call.masked = masked.dev;
    call.normal = normal.dev, call.drop = &drop;
    assert_int_equal(layer(&t)->norm_backward(t.d, &call), TESS_OK);
    ops_columns columns[] = {
        { .dy = dy.dev, .db = dw.dev, .width = width }, /* not wanted: */
        { .dy = dy.dev, .width = width },
        { .x = x.dev, .dy = dy.dev, .stats = stats.dev, .dw = dw.dev, .db = db.dev, .width = width }
    };
    assert_int_equal(layer(&t)->columns(t.d, columns + 1, 2, ROWS, 1, t.scratch.dev), TESS_OK);
    t.c->t->layernorm_backward(t.c, x.host, w.host, stats.host, dy.host, dx.host, dw.host, db.host, ROWS, width);
    near(&dw, 1e-6), near(&db, 1e-6);
    assert_int_equal(layer(&t)->columns(t.d, columns, 1, ROWS, 0, t.scratch.dev), TESS_OK); /* stored */
    for (uint64_t c = 0; c < width; c++) {
        double sum = 0;
        for (uint64_t r = 0; r < ROWS; r++)
            sum += (double)((float *)dy.host)[r * width + c];
        ((float *)dw.host)[c] = (float)sum;
    }
    near(&dw, 1e-6);
    for (uint64_t i = 0; i < n; i++)
        ((float *)masked.host)[i] = ((float *)dx.host)[i] += ((float *)add.host)[i];
    t.c->t->dropout(t.c, masked.host, SAMPLES, TIME * width, &drop);
    near_factors(&dx, halves, within), near_factors(&masked, halves, within), near_factors(&normal, halves, within);
    close_tables(&t);
}

static void test_cuda_layer__norms_equal_the_cpus(void **state) {
    static const uint64_t widths[] = { 3, 16, 50, 128, 768 };
    (void)state;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (int halves = 0; halves < FACTOR_KINDS; halves++)
            for (int k = 0; k < 2; k++) {
                norm_on(widths[i], halves, 0.25f * (float)k);
                norm_backward_on(widths[i], halves, 0.25f * (float)k);
            }
}

/* ---- sums over columns: in the order that they are promised in ------------------------------------ */
enum { LONG_ROWS = 700, CHUNK_ROWS = 256, LANES_BELOW = 16 };

static double column_sum(const float *dy, const float *x, const float *stats, uint64_t width, uint64_t c) {
    double sum = 0;
    for (uint64_t first = 0; first < LONG_ROWS; first += CHUNK_ROWS) {
        double chunk = 0;
        for (uint64_t lane = 0; lane < LANES_BELOW; lane++) {
            double part = 0;
            for (uint64_t r = first + lane; r < first + CHUNK_ROWS && r < LONG_ROWS; r += LANES_BELOW) {
                float v = dy[r * width + c];
                part += (double)(x ? v * ((x[r * width + c] - stats[2 * r]) * stats[2 * r + 1]) : v);
            }
            chunk += part;
        }
        sum += chunk;
    }
    return sum;
}

/* Two rows that cancel each other and leave what was rounded beside them: another order of sums gives other bits.
 * fp16 ends before such values. */
static both cancelling(uint32_t which, uint64_t width, int halves) {
    both b = numbers(which, LONG_ROWS * width);
    float *x = b.host;
    for (uint64_t c = 0; c < width; c++) {
        x[5 * width + c] = 0x1p51f;
        x[300 * width + c] = -0x1p51f;
    }
    up_factors(&b, halves);
    return b;
}

static void columns_on(uint64_t narrow, uint64_t wide, int halves) {
    tables t = open_tables(halves, 1 << 16);
    both dy = cancelling(1, narrow, halves), other = cancelling(2, wide, halves);
    both x = factors(3, LONG_ROWS * wide, halves), stats = numbers(4, 2 * LONG_ROWS);
    both db = numbers(5, narrow), gain = take(wide * 4), shift = take(wide * 4);
    ops_columns jobs[] = {
        { .dy = dy.dev, .db = db.dev, .width = narrow },
        { .x = x.dev, .dy = other.dev, .stats = stats.dev, .dw = gain.dev, .db = shift.dev, .width = wide },
    };
    assert_true(layer(&t)->columns_need(LONG_ROWS, narrow + 2 * wide) <= 1 << 16);
    assert_int_equal(layer(&t)->columns(t.d, jobs + 1, 1, LONG_ROWS, 0, t.scratch.dev), TESS_OK);
    assert_int_equal(layer(&t)->columns(t.d, jobs, 2, LONG_ROWS, 1, t.scratch.dev), TESS_OK);
    for (uint64_t c = 0; c < narrow; c++)
        ((float *)db.host)[c] += (float)column_sum(dy.host, NULL, NULL, narrow, c);
    for (uint64_t c = 0; c < wide; c++) {
        ((float *)gain.host)[c] = 2 * (float)column_sum(other.host, x.host, stats.host, wide, c);
        ((float *)shift.host)[c] = 2 * (float)column_sum(other.host, NULL, NULL, wide, c);
    }
    same_bits(&db), same_bits(&gain), same_bits(&shift);
    close_tables(&t);
}

static void test_cuda_layer__columns_are_summed_in_a_fixed_order(void **state) {
    (void)state;
    for (int halves = 0; halves < IN_F16; halves++) {
        columns_on(3, 72, halves), columns_on(128, 130, halves), columns_on(1, 64, halves);
    }
}

/* So many that they share counts of blocks, which each launch leaves as it found them. */
static void test_cuda_layer__columns_of_any_number(void **state) {
    enum { WIDE = 40000, ALL = 3 };
    tables t = open_tables(1, OPS_COLUMNS_MOST * WIDE * sizeof(double));
    both dy = factors(1, ALL * WIDE, 1), sums[OPS_COLUMNS_MOST];
    ops_columns jobs[OPS_COLUMNS_MOST];
    (void)state;
    for (int k = 0; k < OPS_COLUMNS_MOST; k++) {
        sums[k] = take(WIDE * 4);
        jobs[k] = (ops_columns){ .dy = dy.dev, .db = sums[k].dev, .width = WIDE };
    }
    assert_true(layer(&t)->columns_need(ALL, OPS_COLUMNS_MOST * WIDE) <= t.scratch.bytes);
    for (int k = 0; k < 2; k++)
        assert_int_equal(layer(&t)->columns(t.d, jobs, OPS_COLUMNS_MOST, ALL, k, t.scratch.dev), TESS_OK);
    for (uint64_t i = 0; i < ALL * WIDE; i++)
        ((float *)sums[0].host)[i % WIDE] += 2 * ((float *)dy.host)[i];
    near(&sums[0], 1e-5);
    for (int k = 1; k < OPS_COLUMNS_MOST; k++)
        same_there(&sums[0], &sums[k]);
    close_tables(&t);
}

/* Beside a normalisation's way back they have the bits that each has alone. */
static void norm_columns_on(uint64_t width, int halves, int32_t add) {
    uint64_t n = LONG_ROWS * width;
    tables t = open_tables(halves, 1 << 17);
    both x = factors(1, n, halves), dy = factors(2, n, halves), w = factors(3, width, halves);
    both stats = numbers(4, 2 * LONG_ROWS), dx[2], normal[2], dw[2], db[2];
    assert_true(layer(&t)->columns_need(LONG_ROWS, 2 * width) <= 1 << 17);
    for (int together = 0; together < 2; together++) {
        dx[together] = take(n * 4), normal[together] = take(n * 4);
        up(&dx[together]), up(&normal[together]); /* 16 bits leave half of it */
        dw[together] = numbers(5, width), db[together] = numbers(6, width);
        ops_norm_backward of = { .of = { LONG_ROWS, width, LONG_ROWS }, .x = x.dev, .w = w.dev, .b = w.dev };
        ops_columns sums = { .x = x.dev, .dy = dy.dev, .stats = stats.dev, .width = width };
        of.dy = dy.dev, of.stats = stats.dev, of.dx = dx[together].dev, of.normal = normal[together].dev;
        sums.dw = dw[together].dev, sums.db = db[together].dev;
        if (together)
            assert_int_equal(layer(&t)->norm_backward_columns(t.d, &of, &sums, 1, add, t.scratch.dev), TESS_OK);
        if (together)
            continue;
        assert_int_equal(layer(&t)->norm_backward(t.d, &of), TESS_OK);
        assert_int_equal(layer(&t)->columns(t.d, &sums, 1, LONG_ROWS, add, t.scratch.dev), TESS_OK);
    }
    same_there(&dx[0], &dx[1]), same_there(&normal[0], &normal[1]);
    same_there(&dw[0], &dw[1]), same_there(&db[0], &db[1]);
    close_tables(&t);
}

/* With rows that a block keeps, and without. */
static void test_cuda_layer__columns_beside_a_norms_way_back(void **state) {
    (void)state;
    for (int halves = 0; halves < FACTOR_KINDS; halves++)
        for (int add = 0; add < 2; add++)
            norm_columns_on(136, halves, add), norm_columns_on(50, halves, add);
}

/* ---- elements ------------------------------------------------------------------------------------ */
static void mask_on(uint64_t width, int halves) {
    uint64_t n = ROWS * width;
    tables t = open_tables(halves, 0);
    ops_dropout drop = { .seed = UINT64_C(0x123456789a), .step = 7, .first_sample = 40, .layer = 3, .rate = 0.25f };
    both x = factors(1, n, halves), y = take(n * 4);
    const void *out;
    assert_int_equal(layer(&t)->mask(t.d, &(ops_rows){ ROWS, width, TIME }, &drop, x.dev, y.dev, &out), TESS_OK);
    assert_ptr_equal(out, y.dev);
    memcpy(y.host, x.host, n * 4);
    t.c->t->dropout(t.c, y.host, SAMPLES, TIME * width, &drop);
    near_factors(&y, halves, halves ? 4e-3 : 0);
    drop.rate = 0;
    assert_int_equal(layer(&t)->mask(t.d, &(ops_rows){ ROWS, width, TIME }, &drop, x.dev, y.dev, &out), TESS_OK);
    assert_ptr_equal(out, x.dev);
    close_tables(&t);
}

static void test_cuda_layer__elements_equal_the_cpus(void **state) {
    (void)state;
    for (int halves = 0; halves < FACTOR_KINDS; halves++) {
        mask_on(50, halves), mask_on(64, halves), mask_on(3, halves);
    }
}

/* ---- products ------------------------------------------------------------------------------------ */
static void product_on(int halves, int turn_a, int turn_b, int wide, int add) {
    enum { M = 37, N = 22, K = 30 };
    int kind = wide ? 0 : halves;
    tables t = open_tables(halves, 1 << 20);
    both a = factors(1, M * K, halves), b = factors(2, K * N, halves), y = numbers(3, M * N);
    const float *left = a.host, *right = b.host;
    float *out = y.host;
    up_factors(&y, kind);
    ops_factors f = { .rows = M, .columns = N, .depth = K, .a = a.dev, .b = b.dev, .y = y.dev };
    f.turn_a = turn_a, f.turn_b = turn_b, f.wide = wide, f.add = add;
    assert_true(layer(&t)->product_need(M, N, K) <= 1 << 20);
    assert_int_equal(layer(&t)->product(t.d, &f, t.scratch.dev), TESS_OK);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            double sum = add ? out[i * N + j] : 0;
            for (int k = 0; k < K; k++)
                sum += (double)left[turn_a ? k * M + i : i * K + k] * right[turn_b ? j * K + k : k * N + j];
            out[i * N + j] = (float)sum;
        }
    near_factors(&y, kind, kind ? 4e-3 : 1e-6);
    close_tables(&t);
}

static void test_cuda_layer__products_are_rounded_once(void **state) {
    (void)state;
    for (int how = 0; how < 16; how++)
        for (int halves = 0; halves < FACTOR_KINDS; halves++)
            product_on(halves, how & 1, how >> 1 & 1, how >> 2 & 1, how >> 3);
}

/* Odd sides in rows that begin where vectors do: such a product is taken apart. No gap between rows is written. */
typedef struct {
    int64_t rows, columns, depth, a_pitch, y_pitch;
    int turn_a, turn_b;
} sides;
static void odd_on(const sides *s, int wide, int add) {
    enum { MOST = 64 * 64 };
    tables t = open_tables(IN_BF16, 1 << 20);
    both a = factors(1, MOST, IN_BF16), b = factors(2, MOST, IN_BF16), y = numbers(3, MOST);
    const float *left = a.host, *right = b.host;
    float *out = y.host;
    up_factors(&y, wide ? 0 : IN_BF16);
    ops_factors f = { .rows = s->rows, .columns = s->columns, .depth = s->depth, .a = a.dev, .b = b.dev, .y = y.dev };
    f.a_pitch = s->a_pitch, f.y_pitch = s->y_pitch, f.turn_a = s->turn_a, f.turn_b = s->turn_b;
    f.wide = wide, f.add = add;
    assert_int_equal(layer(&t)->product(t.d, &f, t.scratch.dev), TESS_OK);
    for (int64_t i = 0; i < s->rows; i++)
        for (int64_t j = 0; j < s->columns; j++) {
            double sum = add ? out[i * s->y_pitch + j] : 0;
            for (int64_t k = 0; k < s->depth; k++)
                sum += (double)left[s->turn_a ? k * s->a_pitch + i : i * s->a_pitch + k] *
                       right[s->turn_b ? j * s->depth + k : k * s->columns + j];
            out[i * s->y_pitch + j] = (float)sum;
        }
    near_factors(&y, wide ? 0 : IN_BF16, wide ? 1e-6 : 1.2e-2);
    close_tables(&t);
}

static void test_cuda_layer__odd_sides_are_taken_apart(void **state) {
    static const sides all[] = {
        { 9, 37, 32, 32, 40, 0, 1 },  /* a vocabulary's logits */
        { 9, 24, 37, 40, 24, 0, 0 },  /* the gradient of its input */
        { 37, 24, 9, 40, 24, 1, 0 },  /* and of its matrix */
        { 37, 29, 24, 40, 32, 1, 1 }, /* both sides of the result */
        { 37, 24, 37, 40, 24, 0, 0 }, /* rows that no vector goes along */
        { 9, 7, 37, 40, 8, 0, 0 },    /* no pitch of the second factor is a multiple of eight, so it stays whole */
    };
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int how = 0; how < 4; how++)
            odd_on(&all[i], how & 1, how >> 1);
}

/* ---- products with what follows them: by the library at widths that it takes, else by kernels ------ */
enum { DEPTH = 24 };

/* y = a · b turned */
static void define_product(both *y, const both *a, const both *b, uint64_t width) {
    for (uint64_t i = 0; i < ROWS; i++)
        for (uint64_t j = 0; j < width; j++) {
            double sum = 0;
            for (uint64_t k = 0; k < DEPTH; k++)
                sum += (double)((float *)a->host)[i * DEPTH + k] * ((float *)b->host)[j * DEPTH + k];
            ((float *)y->host)[i * width + j] = (float)sum;
        }
}

/* ---- how far rounding to 16 bits may take a result from its definition. A library fuses what follows a product, and
 * may round once, or not, so a product that is rounded before the bias is added has two roundings. ---- */
static double half_unit;                  /* of 8 bits or of 11, rounded to the nearest */
static const double tanh_error = 0x1p-11; /* relative, of tanh.approx.f32 by PTX's table; ours has less */
static const double most_slope = 1.13;    /* GELU's slope is at most 1.1289 */
static const double more = 1 + 0x1p-6;    /* what a product of two roundings adds */

/* The most by which product plus bias may be off: fp32's sums of DEPTH products, and the two roundings. */
static double *off_by(const both *a, const both *b, const both *bias, uint64_t width) {
    double *off = malloc(ROWS * width * sizeof *off);
    assert_non_null(off);
    for (uint64_t i = 0; i < ROWS * width; i++) {
        double sum = 0, sizes = 0;
        for (uint64_t k = 0; k < DEPTH; k++) {
            double x = (double)((float *)a->host)[i / width * DEPTH + k] * ((float *)b->host)[i % width * DEPTH + k];
            sum += x, sizes += fabs(x);
        }
        double with = sum + (bias ? (double)((float *)bias->host)[i % width] : 0);
        off[i] = more * (DEPTH * 0x1p-24 * sizes + half_unit * fabs(sum) + (bias ? half_unit * fabs(with) : 0));
    }
    return off;
}

typedef double allowed(const double *off, double x, double y); /* off: null, x is exact */
static double of_sum(const double *off, double x, double y) {
    (void)x, (void)y;
    return *off;
}
static double of_gelu(const double *off, double x, double y) {
    return most_slope * (off ? *off : 0) + more * half_unit * fabs(y) + 0.5 * fabs(x) * tanh_error;
}
/* y: the product times the slope at x, so the product is at most as off as without a bias. tanh t counts in the slope
 * as 1/2 - x t s, where s is the slope of what it is taken of. */
static double of_slope(const double *off, double x, double y) {
    double s = sqrt(2 / acos(-1)) * (1 + 3 * 0.044715 * x * x);
    return most_slope * *off + more * half_unit * fabs(y) + *off / half_unit * (0.5 + fabs(x) * s) * tanh_error;
}

/* In fp32 the sum's order and the formulas are the CPU's. */
static void near_allowed(const both *y, int halves, allowed *most, const double *off, const float *x) {
    if (!halves) {
        near_factors(y, 0, 2e-6);
        return;
    }
    float *got = down_factors(y, halves);
    for (uint64_t i = 0; i < y->bytes / sizeof(float); i++) {
        double want = (double)((float *)y->host)[i], by = fabs((double)got[i] - want);
        double limit = most(off ? &off[i] : NULL, x ? (double)x[i] : 0, want);
        if (!(by <= limit + (halves == IN_F16 ? 0x1p-24 : 0))) /* twice half the least fp16 */
            fail_msg("element %d is %g, off by %g, at most %g is rounding", (int)i, (double)got[i], by, limit);
    }
    free(got);
}

static void follow_on(uint64_t width, int halves) {
    uint64_t n = ROWS * width;
    tables t = open_tables(halves, 1 << 20);
    both a = numbers(1, ROWS * DEPTH), b = factors(2, width * DEPTH, halves), bias = factors(3, width, halves);
    both other = factors(5, width, halves);
    half_unit = halves == IN_F16 ? 0x1p-11 : 0x1p-8;
    both through = numbers(4, n), y = take(n * 4), before = take(n * 4), again = take(n * 4);
    for (uint64_t i = 0; i < ROWS * DEPTH; i++)
        ((float *)a.host)[i] *= 4; /* both ends of GELU */
    for (uint64_t i = 0; i < n; i++)
        ((float *)through.host)[i] *= 6;
    up_factors(&a, halves), up_factors(&through, halves);
    double *off = off_by(&a, &b, &bias, width), *off_other = off_by(&a, &b, &other, width);
    double *off_alone = off_by(&a, &b, NULL, width);
    ops_factors f = { .rows = ROWS, .columns = (int64_t)width, .depth = DEPTH, .a = a.dev, .b = b.dev, .y = y.dev };
    f.turn_b = 1, f.bias = bias.dev;
    assert_int_equal(layer(&t)->product(t.d, &f, t.scratch.dev), TESS_OK);
    define_product(&before, &a, &b, width);
    plus(&y, &before, &bias);
    near_allowed(&y, halves, of_sum, off, NULL);
    memcpy(before.host, y.host, n * 4);
    t.c->t->gelu(t.c, before.host, y.host, n);
    f.gelu = 1; /* nothing is kept of it, as in an evaluation */
    assert_int_equal(layer(&t)->product(t.d, &f, t.scratch.dev), TESS_OK);
    near_allowed(&y, halves, of_gelu, off, before.host);
    f.before = before.dev;
    for (int again_too = 0; again_too < 2; again_too++) { /* and as it was chosen the first time */
        assert_int_equal(layer(&t)->product(t.d, &f, t.scratch.dev), TESS_OK);
        near_allowed(&y, halves, of_gelu, off, before.host), near_allowed(&before, halves, of_sum, off, NULL);
    }
    f.bias = other.dev, f.gelu = 0, f.before = NULL; /* another layer's, of the same shape */
    assert_int_equal(layer(&t)->product(t.d, &f, t.scratch.dev), TESS_OK);
    define_product(&before, &a, &b, width);
    plus(&y, &before, &other);
    near_allowed(&y, halves, of_sum, off_other, NULL);
    t.c->t->gelu(t.c, through.host, again.host, n);
    t.c->t->gelu_backward(t.c, through.host, before.host, y.host, n);
    f = (ops_factors){ .rows = ROWS, .columns = (int64_t)width, .depth = DEPTH, .a = a.dev, .b = b.dev, .y = y.dev };
    f.turn_b = 1, f.through = through.dev, f.again = again.dev;
    assert_int_equal(layer(&t)->product(t.d, &f, t.scratch.dev), TESS_OK);
    near_allowed(&y, halves, of_slope, off_alone, through.host);
    near_allowed(&again, halves, of_gelu, NULL, through.host);
    free(off), free(off_other), free(off_alone);
    close_tables(&t);
}

static void test_cuda_layer__bias_and_gelu_follow_products(void **state) {
    static const uint64_t widths[] = { 3, 50, 64, 8, 72 };
    (void)state;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (int halves = 0; halves < FACTOR_KINDS; halves++)
            follow_on(widths[i], halves);
}

/* More shapes than algorithms are kept for: those that come too late go the way back. */
static void test_cuda_layer__many_shapes_of_products(void **state) {
    tables t = open_tables(1, 1 << 20);
    both a = factors(1, 32 * 64, 1), b = factors(2, 64 * 64, 1), bias = factors(3, 64, 1), y = take(32 * 64 * 4);
    (void)state;
    for (int64_t rows = 1; rows <= 20; rows++) {
        ops_factors f = { .rows = rows, .columns = 64, .depth = 64, .a = a.dev, .b = b.dev, .y = y.dev, .turn_b = 1 };
        f.bias = bias.dev;
        assert_int_equal(layer(&t)->product(t.d, &f, t.scratch.dev), TESS_OK);
        double sum = ((float *)bias.host)[63];
        for (int k = 0; k < 64; k++)
            sum += (double)((float *)a.host)[(rows - 1) * 64 + k] * ((float *)b.host)[63 * 64 + k];
        float *got = down_factors(&y, 1);
        assert_true(fabs(got[rows * 64 - 1] - sum) <= 2e-2 * (1 + fabs(sum)));
        free(got);
    }
    close_tables(&t);
}

/* ---- attention: by its definition, in fp64 ------------------------------------------------------- */
typedef struct {
    ops_attention_shape s;
    int64_t pitch; /* of a row of qkv */
    const float *x, *dy;
    float *y, *lse, *dx;
    double *p; /* probabilities of one query */
} definition;

static const float *vector_of(const definition *d, int64_t row, int64_t head) {
    return d->x + row * d->pitch + head * d->s.size;
}

static double dot_of(const definition *d, const float *a, const float *b) {
    double sum = 0;
    for (int c = 0; c < d->s.size; c++)
        sum += (double)a[c] * b[c];
    return sum;
}

static double cap_of(const definition *d, double score) {
    return d->s.cap > 0 ? (double)d->s.cap * tanh(score / (double)d->s.cap) : score;
}

static void define_query(definition *d, int64_t row, int64_t first, int64_t head, int64_t kv) {
    double scale = d->s.scale > 0 ? (double)d->s.scale : 1 / sqrt(d->s.size), sum = 0, delta = 0;
    int64_t n = row - first + 1, at = (row * d->s.heads + head) * d->s.size;
    int64_t from = d->s.window && n > d->s.window ? n - d->s.window : 0;
    for (int64_t k = from; k < n; k++)
        sum += d->p[k] = exp(cap_of(d, scale * dot_of(d, vector_of(d, row, head), vector_of(d, first + k, kv))));
    for (int c = 0; c < d->s.size; c++) {
        double y = 0;
        for (int64_t k = from; k < n; k++)
            y += d->p[k] / sum * vector_of(d, first + k, kv + d->s.kv_heads)[c];
        d->y[at + c] = (float)y;
        delta += y * d->dy[at + c];
    }
    d->lse[(first / d->s.time * d->s.heads + head) * d->s.time + n - 1] = (float)log(sum);
    for (int64_t k = from; k < n; k++) {
        double t = d->s.cap > 0 ? log(d->p[k]) / (double)d->s.cap : 0;
        double p = d->p[k] / sum, dp = dot_of(d, d->dy + at, vector_of(d, first + k, kv + d->s.kv_heads));
        double ds = p * (dp - delta) * scale * (1 - t * t);
        for (int c = 0; c < d->s.size; c++) {
            d->dx[row * d->pitch + head * d->s.size + c] += (float)(ds * vector_of(d, first + k, kv)[c]);
            d->dx[(first + k) * d->pitch + kv * d->s.size + c] += (float)(ds * vector_of(d, row, head)[c]);
            d->dx[(first + k) * d->pitch + (kv + d->s.kv_heads) * d->s.size + c] += (float)(p * d->dy[at + c]);
        }
    }
}

static void define(definition *d) {
    int64_t share = d->s.heads / d->s.kv_heads;
    for (int64_t row = 0; row < d->s.batch * d->s.time; row++)
        for (int64_t head = 0; head < d->s.heads; head++)
            define_query(d, row, row / d->s.time * d->s.time, head, d->s.heads + head / share);
}

#pragma GCC diagnostic ignored "-Wmissing-field-initializers" /* a shape without a window or a cap */
static void attention_by(ops_attention_shape s, int halves, int cudnn) {
    int64_t kv = s.kv_heads ? s.kv_heads : s.heads, pitch = (s.heads + 2 * kv) * s.size, rows = s.batch * s.time;
    uint64_t y_elems = (uint64_t)(rows * s.heads * s.size);
    ops_scratch need;
    tables t = open_tables_with(halves, cudnn, 16 << 20);
    both x = numbers(1, (uint64_t)(rows * pitch));
    both y = take(y_elems * 4), lse = take((uint64_t)(rows * s.heads) * 4), dy = factors(3, y_elems, halves);
    both dx = take((uint64_t)(rows * pitch) * 4);
    double within = halves ? 1e-2 : 1e-5;
    for (int64_t i = 0; i < rows * pitch; i++)
        ((float *)x.host)[i] *= 2; /* sharper than random rows are */
    up_factors(&x, halves);
    layer(&t)->attention_need(t.d, &s, &need);
    assert_true(need.forward_bytes <= 16 << 20 && need.backward_bytes <= 16 << 20);
    assert_int_equal(layer(&t)->attention(t.d, &s, x.dev, y.dev, lse.dev, t.scratch.dev), TESS_OK);
    assert_int_equal(layer(&t)->attention_backward(t.d, &s, x.dev, y.dev, lse.dev, dy.dev, dx.dev, NULL, t.scratch.dev),
                     TESS_OK);
    definition d = { s, pitch, x.host, dy.host, y.host, lse.host, dx.host, NULL };
    d.s.kv_heads = (int32_t)kv;
    d.p = malloc((size_t)s.time * sizeof *d.p);
    define(&d);
    free(d.p);
    near_factors(&y, halves, within), near(&lse, within), near_factors(&dx, halves, within);
    close_tables(&t);
}

static void attention_on(ops_attention_shape s, int halves) {
    attention_by(s, halves, 0);
}

/* One launch forward and one backward; of every kernel, whole and partial tiles, rows and heads. */
static void test_cuda_layer__attention_in_16_bits_is_its_definition(void **state) {
    static const ops_attention_shape shapes[] = {
        { 2, 9, 3, 8, 0 },        { 1, 1, 1, 4, 0 },
        { 2, 64, 2, 16, 0 },      { 1, 130, 2, 16, 0 },
        { 1, 70, 4, 24, 2 },      { 1, 65, 2, 32, 0 },
        { 1, 331, 1, 64, 0 },     { 1, 33, 3, 5, 1 },
        { 1, 70, 2, 80, 0 },      { 1, 67, 1, 96, 0 },
        { 1, 261, 2, 128, 1 },    { 1, 20, 1, 127, 0 },
        { 1, 150, 2, 16, 1, 70 }, { 2, 70, 1, 32, 1, 5, 0.4f, 1.5f },
    };
    (void)state;
    static const int products[] = { 0, 7 };
    for (size_t n = 0; n < sizeof products / sizeof *products; n++) {
        attention_products = products[n];
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            attention_on(shapes[i], IN_BF16), attention_on(shapes[i], IN_F16);
    }
    attention_products = 0;
}

/* The graphs, operation by operation on the double, within what our own kernels are held to. */
static void test_cuda_layer__attention_of_cudnn_is_its_definition(void **state) {
    static const ops_attention_shape shapes[] = { { 2, 9, 3, 8, 0 },    { 1, 1, 1, 8, 0 },
                                                  { 1, 131, 2, 64, 1 }, { 1, 70, 4, 24, 2 },
                                                  { 2, 33, 2, 128, 0 }, { 1, 40, 2, 16, 0, 40, 0.3f, 0 } };
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        attention_by(shapes[i], IN_BF16, 1), attention_by(shapes[i], IN_F16, 1);
}

static void test_cuda_layer__attention_of_cudnn_refuses_what_it_has_not(void **state) {
    static const ops_attention_shape refused[] = { { 1, 9, 1, 12, 0 },
                                                   { 1, 9, 1, 136, 0 },
                                                   { 1, 9, 1, 16, 0, 4 },
                                                   { 1, 9, 1, 16, 0, 0, 0, 2 },
                                                   { 1, 9, 1, 16, .packs = 1 } };
    (void)state;
    for (int halves = 0; halves <= IN_BF16; halves++) {
        ops o = { .bf16 = halves == IN_BF16, .cudnn_attention = 1 };
        const ops_table *cuda;
        assert_int_equal(ops_find("cuda", &cuda), TESS_OK);
        for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
            assert_int_equal(cuda->layer->attention_check(&o, &refused[i]), TESS_E_UNSUPPORTED);
        assert_int_equal(cuda->layer->attention_check(&o, &(ops_attention_shape){ 1, 9, 1, 16, 0, 9 }),
                         halves ? TESS_OK : TESS_E_UNSUPPORTED);
        o.cudnn_attention = 0;
        assert_int_equal(cuda->layer->attention_check(&o, &refused[0]), TESS_OK);
    }
}

/* With that variable of the double the operators do not start, and say why. */
static void cudnn_does_not_start(const char *name, const char *value, const char *why) {
    const ops_table *cuda;
    ops *o;
    tess_stream s = { .mem = TESS_MEM_CUDA, .device = 0, .handle = stream };
    assert_int_equal(ops_find("cuda", &cuda), TESS_OK);
    assert_int_equal(cuda->create(&(ops_options){ .bf16 = 1, .cudnn_attention = 1 }, &o), TESS_OK);
    setenv(name, value, 1);
    assert_int_equal(cuda->start(o, &s), TESS_E_UNSUPPORTED);
    unsetenv(name);
    assert_non_null(strstr(tess_last_error(), why));
    assert_non_null(strstr(tess_last_error(), "TESSERA_ATTENTION=own"));
    cuda->destroy(o);
}

static void test_cuda_layer__attention_of_cudnn_wants_a_cudnn_and_a_gpu_that_have_it(void **state) {
    (void)state;
    cudnn_does_not_start("TESSERA_DOUBLE_FAIL", "cudnnCreate:1", "missing");
    cudnn_does_not_start("TESSERA_DOUBLE_CUDNN_VERSION", "91501", "cuDNN 9.15");
    cudnn_does_not_start("TESSERA_DOUBLE_CAPABILITY", "100", "this is 10");
}

/* The call fails and the next one succeeds: nothing of a plan that did not come about is kept. */
static void plan_fails(const char *name, const char *value, tess_status expected, const char *why) {
    ops_attention_shape s = { 1, 9, 2, 16, 0 };
    tables t = open_tables_with(IN_BF16, 1, 1 << 20);
    both x = factors(1, 9 * 96, IN_BF16), y = take(9 * 32 * 4), lse = take(18 * 4);
    setenv(name, value, 1);
    assert_int_equal(layer(&t)->attention(t.d, &s, x.dev, y.dev, lse.dev, t.scratch.dev), expected);
    unsetenv(name);
    assert_non_null(strstr(tess_last_error(), why));
    assert_int_equal(layer(&t)->attention(t.d, &s, x.dev, y.dev, lse.dev, t.scratch.dev), TESS_OK);
    close_tables(&t);
}

static void test_cuda_layer__attention_of_cudnn_says_why_it_has_no_plan(void **state) {
    (void)state;
    plan_fails("TESSERA_DOUBLE_FAIL", "engines:1", TESS_E_UNSUPPORTED, "no engine for forward of heads of 16");
    plan_fails("TESSERA_DOUBLE_CUDNN_WORKSPACE", "100000", TESS_E_UNSUPPORTED, "larger than planned, bytes: 100256");
    plan_fails("TESSERA_DOUBLE_FAIL", "cudnnBackendExecute:3", TESS_E_DEVICE, "attention failed");
}

static void test_cuda_layer__attention_by_products_is_its_definition(void **state) {
    static const ops_attention_shape shapes[] = { { 2, 9, 3, 8, 0 },         { 1, 1, 1, 4, 0 },
                                                  { 1, 300, 2, 8, 0 },       { 2, 9, 4, 8, 2 },
                                                  { 1, 9, 6, 5, 2 },         { 1, 9, 3, 8, 1 },
                                                  { 1, 300, 4, 6, 2 },       { 1, 300, 4, 6, 2, 40, 0, 1.5f },
                                                  { 2, 9, 3, 8, 1, 4, 0.5f } };
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        attention_on(shapes[i], 0);
    for (int halves = IN_BF16; halves < FACTOR_KINDS; halves++) {
        attention_on((ops_attention_shape){ 1, 20, 2, 130, 0 }, halves);
        attention_on((ops_attention_shape){ 1, 20, 4, 130, 2 }, halves);
    }
}

/* ---- the two ends -------------------------------------------------------------------------------- */
static void embed_on(int32_t tokens, uint64_t samples, uint64_t width, int halves) {
    uint64_t rows = samples * TIME, n = rows * width, table_elems = (uint64_t)tokens * width;
    tables t = open_tables(halves, 1 << 20);
    ops_rows of = { rows, width, TIME };
    ops_dropout drop = { .seed = 5, .step = 2, .rate = 0.25f };
    both ids = indices(rows, tokens > 3 ? tokens - 3 : tokens), table = factors(1, table_elems, halves);
    both position = factors(2, TIME * width, halves), y = take(n * 4), dy = factors(3, n, halves);
    both dtable = numbers(4, table_elems), dposition = numbers(5, TIME * width);
    ((int32_t *)ids.host)[rows / 2] = tokens - 1; /* the last row of the table too */
    up(&ids);
    t.c->t->embedding(t.c, ids.host, table.host, position.host, y.host, rows, TIME, width);
    t.c->t->dropout(t.c, y.host, samples, TIME * width, &drop);
    assert_int_equal(layer(&t)->embed(t.d, &of, (int32_t *)ids.dev, table.dev, NULL, position.dev, 0, &drop, y.dev),
                     TESS_OK);
    near_factors(&y, halves, halves ? 4e-3 : 0);
    assert_true(layer(&t)->embed_backward_need(rows) <= 1 << 20);
    assert_int_equal(
        layer(&t)->embed_backward(t.d, &of, (int32_t *)ids.dev, dy.dev, 0, dtable.dev, dposition.dev, 1, t.scratch.dev),
        TESS_OK);
    t.c->t->embedding_backward(t.c, ids.host, dy.host, dtable.host, dposition.host, rows, TIME, width);
    near(&dtable, 0), near(&dposition, 0); /* the same order of sums */
    assert_int_equal(
        layer(&t)->embed_backward(t.d, &of, (int32_t *)ids.dev, dy.dev, 0, NULL, dposition.dev, 0, t.scratch.dev),
        TESS_OK);
    memset(dposition.host, 0, dposition.bytes);
    float *unused = calloc(table_elems, sizeof *unused);
    t.c->t->embedding_backward(t.c, ids.host, dy.host, unused, dposition.host, rows, TIME, width);
    free(unused);
    near(&dposition, 0);
    of.rows = (uint64_t)1 << 31;
    assert_int_equal(layer(&t)->embed_backward(t.d, &of, (int32_t *)ids.dev, dy.dev, 0, NULL, NULL, 0, NULL),
                     TESS_E_UNSUPPORTED);
    close_tables(&t);
}

/* Rows of whole vectors, with numbers behind each that nothing may read. */
static both padded(const both *logits, uint64_t classes, uint64_t pitch, int halves) {
    both wide = take(ROWS * pitch * 4);
    for (uint64_t r = 0; r < ROWS; r++)
        for (uint64_t c = 0; c < pitch; c++)
            ((float *)wide.host)[r * pitch + c] = c < classes ? ((float *)logits->host)[r * classes + c] : NAN;
    up_factors(&wide, halves);
    return wide;
}

static void near_slopes(const both *got, const both *expected, uint64_t classes, uint64_t pitch, uint64_t count,
                        int halves) {
    float *slopes = down_factors(got, halves), *dense = malloc(expected->bytes);
    assert_non_null(dense);
    for (uint64_t r = 0; r < ROWS; r++)
        memcpy(dense + r * classes, slopes + r * pitch, classes * sizeof *dense);
    for (uint64_t i = count * classes; i < ROWS * classes; i++)
        assert_true(dense[i] == 0);
    free(slopes);
    near_values(expected, dense, halves ? 4e-3 : 1e-6);
}

/* The loss alone, which leaves the logits; with their gradient in their place; and both by two chunks. */
static void loss_on(uint64_t classes, uint64_t count, int halves, double within) {
    uint64_t pitch = (classes + 7) / 8 * 8, half = 16, n = classes;
    tables t = open_tables(halves, 4096);
    both logits = factors(1, ROWS * n, halves), labels = indices(ROWS, (int32_t)n);
    both loss = take(sizeof(ops_loss)), expected = take(ROWS * n * 4);
    ops_row_loss l = { .labels = (int32_t *)labels.dev, .losses = t.scratch.dev, .classes = n, .pitch = pitch };
    l.mean = (float)(1.0 / (double)count), l.scale = halves == IN_F16 ? 64 : 0;
    both scores = take(logits.bytes); /* the CPU's becomes probabilities */
    memcpy(scores.host, logits.host, logits.bytes);
    t.c->t->cross_entropy(t.c, scores.host, labels.host, ROWS, n, count, loss.host, NULL);
    t.c->t->cross_entropy_backward(t.c, scores.host, labels.host, ROWS, n, count, halves == IN_F16 ? 64 : 1,
                                   expected.host);
    for (int way = 0; way < 3; way++) {
        both wide = padded(&logits, n, pitch, halves);
        l.slopes = way > 0;
        for (uint64_t first = 0; first < ROWS; first += l.rows) {
            l.first = first, l.rows = way < 2 ? ROWS : first ? ROWS - half : half;
            l.count = first + l.rows < count ? l.rows : count - first;
            l.labels = (int32_t *)labels.dev + first;
            l.logits = (char *)wide.dev + first * pitch * (halves ? 2 : 4);
            assert_int_equal(layer(&t)->loss(t.d, &l), TESS_OK);
        }
        assert_int_equal(layer(&t)->loss_sum(t.d, t.scratch.dev, count, NULL, NULL, (ops_loss *)loss.dev), TESS_OK);
        ops_loss *got = down(&loss), *cpu = loss.host;
        assert_true(fabs(got->loss - cpu->loss) <= within * cpu->loss);
        assert_int_equal(got->correct, cpu->correct);
        assert_int_equal(got->count, count);
        free(got);
        near_slopes(&wide, way ? &expected : &logits, n, pitch, way ? count : ROWS, halves);
    }
    close_tables(&t);
}

/* ---- logits in 16 bits ------------------------------------------------------------------------------ */
/* With logits z of fp32 sums and z' = z (1 + e), |e| <= u, and M the largest |z| of a row, a row's loss log(sum(exp z))
 * - z_y moves by at most u (M + |z_y|): the first term's slopes are probabilities, which add up to 1. A probability p
 * moves by at most p (exp(2 u M) - 1), and its gradient is rounded once, by u. EXP_OFF is the exponential's own error.
 */
enum { HEAD_WIDTH = 40 };
static const double EXP_OFF = 0x1p-18;

typedef struct {
    double loss, loss_bound, most, worst_slope_part;
} in_16_bits;

static double log_sum(const float *z, uint64_t classes, double *most) {
    double sum = 0;
    for (uint64_t c = 0; c < classes; c++)
        *most = fmax(*most, fabs((double)z[c])), sum += exp((double)z[c]);
    return log(sum);
}

static void row_within(const float *z, const float *slopes, int32_t label, uint64_t classes, double u, float scale,
                       in_16_bits *of) {
    double most = 0, lse = log_sum(z, classes, &most);
    of->most = fmax(of->most, most);
    of->loss += lse - (double)z[label], of->loss_bound += u * (most + fabs((double)z[label])) + EXP_OFF;
    for (uint64_t c = 0; c < classes; c++) {
        double p = exp((double)z[c] - lse), g = p - (c == (uint64_t)label), got = (double)slopes[c] / (double)scale;
        double bound = p * (expm1(2 * u * most) + EXP_OFF), off = fabs(got - g);
        bound += u * (fabs(g) + bound) + 0x1p-24;
        assert_true(off <= bound);
        of->worst_slope_part = fmax(of->worst_slope_part, off / bound);
    }
}

static void logits_within_on(uint64_t classes, int halves, float size) {
    uint64_t pitch = (classes + 7) / 8 * 8;
    tables t = open_tables(halves, 40u << 20);
    both x = factors(1, ROWS * HEAD_WIDTH, halves), w = numbers(2, classes * HEAD_WIDTH),
         labels = indices(ROWS, (int32_t)classes);
    both wide = take(ROWS * pitch * 4), z = take(ROWS * pitch * 4), loss = take(sizeof(ops_loss)), losses = take(4096);
    ops_factors f = {
        .rows = ROWS, .columns = (int64_t)classes, .depth = HEAD_WIDTH, .a = x.dev, .b = w.dev, .turn_b = 1
    };
    ops_row_loss l = { .logits = z.dev, .labels = (int32_t *)labels.dev, .losses = losses.dev, .slopes = 1 };
    in_16_bits of = { 0 };
    double u = halves == IN_F16 ? 0x1p-11 : 0x1p-8;
    for (uint64_t i = 0; i < classes * HEAD_WIDTH; i++)
        ((float *)w.host)[i] *= size;
    up_factors(&w, halves);
    assert_true(layer(&t)->product_need(ROWS, (int64_t)classes, HEAD_WIDTH) <= 40u << 20);
    f.y = wide.dev, f.y_pitch = (int64_t)pitch, f.wide = 1;
    assert_int_equal(layer(&t)->product(t.d, &f, t.scratch.dev), TESS_OK);
    f.y = z.dev, f.wide = 0;
    assert_int_equal(layer(&t)->product(t.d, &f, t.scratch.dev), TESS_OK);
    float *exact = down(&wide), *rounded = down_factors(&z, halves);
    for (uint64_t i = 0; i < ROWS * pitch; i++) /* a sum of fp32, rounded once */
        assert_true(i % pitch >= classes || rounded[i] == wide_of(halves, half_of(halves, exact[i])));
    l.rows = l.count = ROWS, l.classes = classes, l.pitch = pitch, l.mean = 1, l.scale = 64;
    assert_int_equal(layer(&t)->loss(t.d, &l), TESS_OK);
    assert_int_equal(layer(&t)->loss_sum(t.d, losses.dev, ROWS, NULL, NULL, (ops_loss *)loss.dev), TESS_OK);
    float *slopes = down_factors(&z, halves);
    for (uint64_t r = 0; r < ROWS; r++)
        row_within(exact + r * pitch, slopes + r * pitch, ((int32_t *)labels.host)[r], classes, u, 64, &of);
    ops_loss *got = down(&loss);
    print_message(
        "%d classes, logits up to %.0f in 16 bits (%d): the mean loss %.4f is %.2g off, its bound %.2g; slopes "
        "reach %.2f of theirs\n",
        (int)classes, of.most, halves, of.loss / ROWS, fabs(got->loss - of.loss) / ROWS, of.loss_bound / ROWS,
        of.worst_slope_part);
    assert_true(fabs(got->loss - of.loss) <= of.loss_bound);
    free(exact), free(rounded), free(slopes), free(got);
    close_tables(&t);
}

static void test_cuda_layer__logits_in_16_bits_lie_within_their_bound(void **state) {
    (void)state;
    for (int halves = 1; halves < FACTOR_KINDS; halves++) {
        logits_within_on(131, halves, 1), logits_within_on(131, halves, 8);
        logits_within_on(8209, halves, 1), logits_within_on(8209, halves, 8);
    }
}

/* The loss and its gradient are those of the logits as the product has rounded them, once: a cap rounds none of them
 * again. */
static void rounded_once_on(uint64_t classes, int halves, float cap) {
    uint64_t pitch = (classes + 7) / 8 * 8;
    tables t = open_tables(halves, 4096);
    both x = numbers(1, ROWS * pitch), labels = indices(ROWS, (int32_t)classes), loss = take(sizeof(ops_loss));
    double expected = 0, u = halves == IN_F16 ? 0x1p-11 : 0x1p-8, off = EXP_OFF + (double)cap * 0x1p-19;
    for (uint64_t i = 0; i < ROWS * pitch; i++)
        ((float *)x.host)[i] *= 8;
    up_factors(&x, halves); /* x.host then has what was rounded */
    ops_row_loss l = { .logits = x.dev, .labels = (int32_t *)labels.dev, .losses = t.scratch.dev, .slopes = 1 };
    l.rows = l.count = ROWS, l.classes = classes, l.pitch = pitch, l.mean = 1, l.cap = cap, l.scale = 64;
    float *z = down_factors(&x, halves);
    assert_int_equal(layer(&t)->loss(t.d, &l), TESS_OK);
    assert_int_equal(layer(&t)->loss_sum(t.d, t.scratch.dev, ROWS, NULL, NULL, (ops_loss *)loss.dev), TESS_OK);
    float *slopes = down_factors(&x, halves);
    for (uint64_t r = 0; r < ROWS; r++) {
        const int32_t label = ((int32_t *)labels.host)[r];
        const float *row = z + r * pitch;
        double sum = 0;
        for (uint64_t c = 0; c < classes; c++)
            sum += exp((double)cap * tanh((double)(row[c] / cap)));
        expected += log(sum) - (double)cap * tanh((double)(row[label] / cap));
        for (uint64_t c = 0; c < classes; c++) {
            double part = tanh((double)(row[c] / cap)), p = exp((double)cap * part) / sum;
            double g = (p - (c == (uint64_t)label)) * (1 - part * part), got = (double)slopes[r * pitch + c] / 64;
            assert_true(fabs(got - g) <= u * fabs(g) + off * p + 0x1p-19 * (c == (uint64_t)label) + 0x1p-24);
        }
    }
    ops_loss *got = down(&loss);
    assert_true(fabs(got->loss - expected) <= ROWS * off);
    free(z), free(slopes), free(got);
    close_tables(&t);
}

static void test_cuda_layer__capped_logits_are_rounded_once(void **state) {
    (void)state;
    for (int halves = 1; halves < FACTOR_KINDS; halves++)
        for (uint64_t classes = 131; classes < 10000; classes += 8078)
            rounded_once_on(classes, halves, 2), rounded_once_on(classes, halves, 30);
}

/* One logit of row 1 that is no finite number: the loss says so. */
static void loss_is_no_number_with(uint64_t classes, uint64_t at, float value, int halves) {
    tables t = open_tables(halves, 4096);
    both logits = numbers(1, ROWS * classes), labels = indices(ROWS, (int32_t)classes);
    both loss = take(sizeof(ops_loss));
    ((float *)logits.host)[classes + at] = value;
    up_factors(&logits, halves);
    ops_row_loss l = { .logits = logits.dev, .labels = (int32_t *)labels.dev };
    l.losses = t.scratch.dev, l.rows = ROWS, l.classes = classes, l.count = ROWS, l.pitch = classes, l.mean = 1;
    assert_int_equal(layer(&t)->loss(t.d, &l), TESS_OK);
    assert_int_equal(layer(&t)->loss_sum(t.d, t.scratch.dev, ROWS, NULL, NULL, (ops_loss *)loss.dev), TESS_OK);
    ops_loss *got = down(&loss);
    assert_true(isnan(got->loss));
    free(got);
    close_tables(&t);
}

static void test_cuda_layer__a_loss_that_is_no_number_is_seen(void **state) {
    (void)state;
    for (uint64_t classes = 256; classes <= 8192; classes *= 32)
        for (uint64_t at = 7; at < classes; at += classes / 3)
            for (int halves = 0; halves < FACTOR_KINDS; halves++) {
                loss_is_no_number_with(classes, at, NAN, halves);
                loss_is_no_number_with(classes, at, INFINITY, halves);
            }
}

static void test_cuda_layer__ends_equal_the_cpus(void **state) {
    (void)state;
    for (int halves = 0; halves < FACTOR_KINDS; halves++) {
        embed_on(19, SAMPLES, 20, halves), embed_on(1, 1, 20, halves), embed_on(50257, 47, 20, halves);
        embed_on(19, SAMPLES, 24, halves);
        loss_on(3, ROWS, halves, 1e-12), loss_on(256, ROWS - 7, halves, 1e-12);
        loss_on(5003, ROWS - 2, halves, 1e-12), loss_on(50257, ROWS - 1, halves, 1e-6);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_layer__attention_of_cudnn_wants_a_cudnn_and_a_gpu_that_have_it), /* counts calls */
        cmocka_unit_test(test_cuda_layer__attention_of_cudnn_says_why_it_has_no_plan),
        cmocka_unit_test(test_cuda_layer__attention_of_cudnn_is_its_definition),
        cmocka_unit_test(test_cuda_layer__attention_of_cudnn_refuses_what_it_has_not),
        cmocka_unit_test(test_cuda_layer__norms_equal_the_cpus),
        cmocka_unit_test(test_cuda_layer__columns_are_summed_in_a_fixed_order),
        cmocka_unit_test(test_cuda_layer__columns_of_any_number),
        cmocka_unit_test(test_cuda_layer__columns_beside_a_norms_way_back),
        cmocka_unit_test(test_cuda_layer__elements_equal_the_cpus),
        cmocka_unit_test(test_cuda_layer__products_are_rounded_once),
        cmocka_unit_test(test_cuda_layer__odd_sides_are_taken_apart),
        cmocka_unit_test(test_cuda_layer__bias_and_gelu_follow_products),
        cmocka_unit_test(test_cuda_layer__many_shapes_of_products),
        cmocka_unit_test(test_cuda_layer__attention_in_16_bits_is_its_definition),
        cmocka_unit_test(test_cuda_layer__attention_by_products_is_its_definition),
        cmocka_unit_test(test_cuda_layer__ends_equal_the_cpus),
        cmocka_unit_test(test_cuda_layer__logits_in_16_bits_lie_within_their_bound),
        cmocka_unit_test(test_cuda_layer__capped_logits_are_rounded_once),
        cmocka_unit_test(test_cuda_layer__a_loss_that_is_no_number_is_seen),
    };
    return cmocka_run_group_tests(tests, start, finish);
}
