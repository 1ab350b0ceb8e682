/* SPDX-License-Identifier: BSD-3-Clause */
/* Operators of Llama's layers on a GPU against definitions in fp64: rotary positions, SwiGLU,
 * normalisation by the root of the mean square, and products whose rows lie apart. */
#include "cuda_tables.h"
#include "factors.h"
#include "tools/models/stored.h"
#include <tessera/plugin_helpers.h>

#pragma GCC diagnostic ignored "-Wmissing-field-initializers" /* a shape without a window or a cap */
enum { SAMPLES = 2, TIME = 7, ROWS = SAMPLES * TIME };

/* ---- rotary positions ------------------------------------------------------------------------------ */
static void define_rotation(float *x, const ops_rotation *n) {
    for (uint64_t r = 0; r < n->of.rows; r++)
        for (int32_t h = 0; h < n->heads; h++)
            for (int32_t p = 0; p < n->pairs; p++) {
                double angle =
                    6.283185307179586 * n->turns[p] * (double)(n->first + r % n->of.time) * (n->back ? -1 : 1);
                float *re = x + r * n->of.width + (uint64_t)(h * 2 * n->pairs + p), *im = re + n->pairs;
                double a = *re, b = *im;
                *re = (float)(a * cos(angle) - b * sin(angle));
                *im = (float)(b * cos(angle) + a * sin(angle));
            }
}

/* The values at the end of a row belong to no head that turns. */
static void rotate_on(int32_t heads, int32_t pairs, uint64_t time, uint64_t first, int halves, int back) {
    uint64_t width = (uint64_t)(heads * 2 * pairs + 8), rows = SAMPLES * time;
    double turns[256];
    tables t = open_tables(halves, 0);
    both x = factors(1, rows * width, halves);
    ops_rotation n = { .of = { rows, width, time }, .x = x.dev, .heads = heads, .pairs = pairs, .back = back };
    n.turns = turns, n.first = first;
    for (int32_t p = 0; p < pairs; p++)
        turns[p] = 0.37 / (1 + p * p);
    assert_int_equal(layer(&t)->rotate(t.d, &n), TESS_OK);
    define_rotation(x.host, &n);
    near_factors(&x, halves, halves ? 4e-3 : 1e-7);
    if (!back) { /* and back again */
        n.back = 1;
        assert_int_equal(layer(&t)->rotate(t.d, &n), TESS_OK);
        define_rotation(x.host, &n);
        near_factors(&x, halves, halves ? 6e-3 : 2e-7);
    }
    close_tables(&t);
}

static void test_cuda_llama__positions_turn_their_heads(void **state) {
    (void)state;
    for (int halves = 0; halves < FACTOR_KINDS; halves++)
        for (int back = 0; back < 2; back++) {
            rotate_on(1, 1, TIME, 0, halves, back), rotate_on(5, 8, TIME, 0, halves, back);
            rotate_on(6, 5, TIME, 0, halves, back), rotate_on(3, 32, 900, 0, halves, back);
            rotate_on(6, 5, 1, 37, halves, back);
        }
    tables t = open_tables(0, 0);
    assert_int_equal(layer(&t)->rotate(t.d, &(ops_rotation){ .pairs = 257 }), TESS_E_UNSUPPORTED);
    close_tables(&t);
}

/* ---- gradients of queries and keys turn back as attention writes them ------------------------------ */
/* The bits of two launches. Where a head does not fill its kernel, or in fp32, they are two. */
static void turned_back_on(ops_attention_shape s, int halves, int in_one) {
    uint64_t rows = (uint64_t)(s.batch * s.time), y_elems = rows * (uint64_t)(s.heads * s.size);
    uint64_t width = (uint64_t)((s.heads + 2 * s.kv_heads) * s.size), table_bytes;
    double turns[64];
    tables t = open_tables(halves, 16 << 20);
    both x = factors(1, rows * width, halves), dy = factors(3, y_elems, halves), table, dx[2];
    both y = take(y_elems * 4), lse = take(rows * (uint64_t)s.heads * 4);
    for (int p = 0; p < 64; p++)
        turns[p] = 0.37 / (1 + p * p);
    table_bytes = layer(&t)->rotation_need(t.d, &s);
    assert_int_equal(table_bytes > 0, in_one);
    table = take(table_bytes ? table_bytes : 4);
    ops_rotation turn = { .of = { rows, width, (uint64_t)s.time }, .x = x.dev, .turns = turns };
    turn.heads = s.heads + s.kv_heads, turn.pairs = s.size / 2, turn.table = table_bytes ? table.dev : NULL;
    assert_int_equal(layer(&t)->rotate(t.d, &turn), TESS_OK);
    assert_int_equal(layer(&t)->attention(t.d, &s, x.dev, y.dev, lse.dev, t.scratch.dev), TESS_OK);
    turn.back = 1;
    for (int once = 0; once < 2; once++) {
        dx[once] = take(rows * width * 4);
        up(&dx[once]);
        turn.x = dx[once].dev;
        assert_int_equal(layer(&t)->attention_backward(t.d, &s, x.dev, y.dev, lse.dev, dy.dev, dx[once].dev,
                                                       once ? &turn : NULL, t.scratch.dev),
                         TESS_OK);
        if (!once)
            turn.table = NULL, assert_int_equal(layer(&t)->rotate(t.d, &turn), TESS_OK);
        turn.table = table_bytes ? table.dev : NULL;
    }
    same_there(&dx[0], &dx[1]);
    close_tables(&t);
}

static void test_cuda_llama__gradients_turn_back(void **state) {
    static const ops_attention_shape shapes[] = {
        { 2, 70, 2, 16, 2 }, { 1, 130, 4, 32, 2 }, { 2, 67, 2, 64, 1 }, { 1, 33, 2, 96, 2 }, { 1, 150, 3, 128, 1 }
    };
    (void)state;
    for (attention_products = 5; attention_products <= 7; attention_products += 2)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            turned_back_on(shapes[i], IN_BF16, 1), turned_back_on(shapes[i], IN_F16, 1);
    attention_products = 0;
    turned_back_on((ops_attention_shape){ 1, 40, 2, 24, 1 }, IN_BF16, 0);
    turned_back_on((ops_attention_shape){ 1, 40, 4, 32, 2 }, 0, 0);
}

/* ---- SwiGLU ---------------------------------------------------------------------------------------- */
static void swiglu_on(uint64_t width, int halves) {
    tables t = open_tables(halves, 0);
    both x = numbers(1, ROWS * 2 * width), dy = factors(2, ROWS * width, halves), y = take(ROWS * width * 4);
    both dx = take(ROWS * 2 * width * 4);
    for (uint64_t i = 0; i < ROWS * 2 * width; i++)
        ((float *)x.host)[i] *= 8; /* both ends of SiLU */
    up_factors(&x, halves);
    double within = halves ? 4e-3 : 1e-6;
    assert_int_equal(layer(&t)->swiglu(t.d, x.dev, y.dev, ROWS, width, 0, NULL), TESS_OK);
    for (uint64_t i = 0; i < ROWS * width; i++) {
        float *gate = (float *)x.host + i / width * 2 * width + i % width,
              *out = (float *)dx.host + (gate - (float *)x.host);
        double g = gate[0], u = gate[width], s = 1 / (1 + exp(-g)), d = ((float *)dy.host)[i];
        ((float *)y.host)[i] = (float)(g * s * u);
        out[0] = (float)(d * u * s * (1 + g * (1 - s)));
        out[width] = (float)(d * g * s);
    }
    near_factors(&y, halves, within);
    assert_int_equal(layer(&t)->swiglu_backward(t.d, x.dev, dy.dev, dx.dev, dy.dev, ROWS, width, 0, NULL, NULL),
                     TESS_OK);
    near_factors(&dx, halves, within);
    memcpy(dy.host, y.host, ROWS * width * 4); /* which the gradient made room for */
    near_factors(&dy, halves, within);
    close_tables(&t);
}

static void test_cuda_llama__swiglu_is_its_definition(void **state) {
    static const uint64_t widths[] = { 1, 5, 16, 50, 344 };
    (void)state;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (int halves = 0; halves < FACTOR_KINDS; halves++)
            swiglu_on(widths[i], halves);
}

/* ---- normalisation about zero ----------------------------------------------------------------------- */
static double rsigma_of(const float *x, uint64_t width, double eps) {
    double sum = 0;
    for (uint64_t c = 0; c < width; c++)
        sum += (double)x[c] * x[c];
    return 1 / sqrt(sum / (double)width + eps);
}

static void define_backward(const float *x, const float *w, const float *dy, float *dx, uint64_t width, double eps) {
    double rsigma = rsigma_of(x, width, eps), dot = 0;
    for (uint64_t c = 0; c < width; c++)
        dot += (double)dy[c] * w[c] * x[c] * rsigma / (double)width;
    for (uint64_t c = 0; c < width; c++)
        dx[c] += (float)(rsigma * ((double)dy[c] * w[c] - x[c] * rsigma * dot));
}

static void norm_on(uint64_t width, int halves) {
    const double eps = 0.25;
    tables t = open_tables(halves, 1 << 20);
    both x = factors(1, ROWS * width, halves), add = factors(2, ROWS * width, halves), w = factors(3, width, halves);
    both sum = take(ROWS * width * 4), y = take(ROWS * width * 4), stats = take(2 * ROWS * 4);
    both dy = factors(4, ROWS * width, halves), dx = take(ROWS * width * 4), normal = take(ROWS * width * 4);
    both dw = take(width * 4);
    double within = halves ? 8e-3 : 1e-6;
    ops_norm n = { .of = { ROWS, width, TIME }, .x = x.dev, .add = add.dev, .w = w.dev, .sum = sum.dev, .y = y.dev };
    n.next = normal.dev, n.stats = stats.dev, n.eps = eps, n.about_zero = 1;
    assert_int_equal(layer(&t)->norm(t.d, &n), TESS_OK);
    for (uint64_t i = 0; i < ROWS * width; i++)
        ((float *)sum.host)[i] = ((float *)x.host)[i] + ((float *)add.host)[i];
    memcpy(normal.host, sum.host, ROWS * width * 4); /* next, without a bias */
    near_factors(&sum, halves, within), near_factors(&normal, halves, within);
    float *rounded = down_factors(&sum, halves);
    memcpy(sum.host, rounded, ROWS * width * 4);
    free(rounded);
    for (uint64_t i = 0; i < ROWS * width; i++) {
        const float *row = (float *)sum.host + i / width * width;
        double rsigma = rsigma_of(row, width, eps), normalised = row[i % width] * rsigma;
        ((float *)stats.host)[2 * (i / width) + 1] = (float)rsigma; /* the mean stays 0 */
        ((float *)y.host)[i] = (float)(normalised * ((float *)w.host)[i % width]);
        ((float *)dw.host)[i % width] += (float)(normalised * ((float *)dy.host)[i]);
        ((float *)dx.host)[i] = ((float *)add.host)[i];
    }
    near_factors(&y, halves, within), near(&stats, 1e-6);
    ops_norm_backward b = { .of = n.of, .x = sum.dev, .w = w.dev, .dy = dy.dev, .add = add.dev, .stats = stats.dev };
    b.dx = dx.dev, b.normal = normal.dev, b.about_zero = 1;
    assert_int_equal(layer(&t)->norm_backward(t.d, &b), TESS_OK);
    for (uint64_t r = 0; r < ROWS; r++)
        define_backward((float *)sum.host + r * width, w.host, (float *)dy.host + r * width,
                        (float *)dx.host + r * width, width, eps);
    near_factors(&dx, halves, within);
    memcpy(normal.host, y.host, ROWS * width * 4);
    near_factors(&normal, halves, within);
    ops_columns columns = { .x = sum.dev, .dy = dy.dev, .stats = stats.dev, .dw = dw.dev, .width = width };
    assert_int_equal(layer(&t)->columns(t.d, &columns, 1, ROWS, 0, t.scratch.dev), TESS_OK);
    near(&dw, 1e-5);
    close_tables(&t);
}

static void test_cuda_llama__rows_are_normalised_about_zero(void **state) {
    static const uint64_t widths[] = { 3, 16, 50, 128 };
    (void)state;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (int halves = 0; halves < FACTOR_KINDS; halves++)
            norm_on(widths[i], halves);
}

/* ---- products beside each other ---------------------------------------------------------------------- */
/* A product into the middle of wider rows leaves what lies around it; one of the middle of wider rows reads no more. */
static void pitches_on(int halves) {
    enum { COLUMNS = 6, DEPTH = 10, PITCH = 17, AT = 4 };
    tables t = open_tables(halves, 1 << 20);
    both x = factors(1, ROWS * DEPTH, halves), w = factors(2, COLUMNS * DEPTH, halves);
    both y = factors(3, ROWS * PITCH, halves), dw = take(COLUMNS * DEPTH * 4);
    uint64_t elem = halves ? 2 : 4;
    ops_factors f = { .rows = ROWS, .columns = COLUMNS, .depth = DEPTH, .a = x.dev, .b = w.dev, .turn_b = 1 };
    f.y = (char *)y.dev + AT * elem, f.y_pitch = PITCH;
    assert_int_equal(layer(&t)->product(t.d, &f, t.scratch.dev), TESS_OK);
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLUMNS; c++) {
            double sum = 0;
            for (int k = 0; k < DEPTH; k++)
                sum += (double)((float *)x.host)[r * DEPTH + k] * ((float *)w.host)[c * DEPTH + k];
            ((float *)y.host)[r * PITCH + AT + c] = (float)sum;
        }
    near_factors(&y, halves, halves ? 4e-3 : 1e-6);
    up_factors(&y, halves);
    f = (ops_factors){
        .rows = COLUMNS, .columns = DEPTH, .depth = ROWS, .b = x.dev, .y = dw.dev, .turn_a = 1, .wide = 1
    };
    f.a = (char *)y.dev + AT * elem, f.a_pitch = PITCH;
    assert_int_equal(layer(&t)->product(t.d, &f, t.scratch.dev), TESS_OK);
    for (int c = 0; c < COLUMNS; c++)
        for (int k = 0; k < DEPTH; k++)
            for (int r = 0; r < ROWS; r++)
                ((float *)dw.host)[c * DEPTH + k] +=
                    ((float *)y.host)[r * PITCH + AT + c] * ((float *)x.host)[r * DEPTH + k];
    near(&dw, 1e-5);
    close_tables(&t);
}

static void test_cuda_llama__products_lie_in_wider_rows(void **state) {
    (void)state;
    for (int halves = 0; halves < FACTOR_KINDS; halves++)
        pitches_on(halves);
}

/* ---- frozen matrices --------------------------------------------------------------------------------- */
/* Some rows of a matrix, as the CPU widens it: to the bit. */
static void widened_on(uint32_t kind, uint64_t width, int halves) {
    enum { MATRIX_ROWS = 11 };
    uint64_t elems = MATRIX_ROWS * width, n = ROWS * width, elem = halves ? 2 : 4;
    uint64_t bytes = (uint64_t)stored_elems(kind, (int64_t)elems) * tess_dtype_bytes(stored_dtype(kind));
    tables t = open_tables(halves, 0);
    both from = take(bytes), all = take(elems * elem), some = take(n * elem), ids = indices(ROWS, MATRIX_ROWS);
    float *wide = malloc((elems + STORED_BLOCK) * sizeof *wide);
    assert_non_null(wide);
    for (uint64_t i = 0; i < elems + STORED_BLOCK; i++)
        wide[i] = i < elems ? number(1, i) : 0;
    for (uint64_t i = 0; i < elems; i++)
        if (kind == STORED_F32)
            ((float *)from.host)[i] = wide[i];
        else if (kind == STORED_F16 || kind == STORED_BF16)
            ((uint16_t *)from.host)[i] = kind == STORED_F16 ? tess_f16_of_f32(wide[i]) : tess_bf16_of_f32(wide[i]);
        else if (i % STORED_BLOCK == 0)
            stored_pack(kind, wide + i, (uint8_t *)from.host + (int64_t)(i / STORED_BLOCK) * stored_block_bytes(kind));
    up(&from);
    static const uint32_t dtypes[FACTOR_KINDS] = { TESS_F32, [IN_BF16] = TESS_BF16, [IN_F16] = TESS_F16 };
    stored_widen(t.c, kind, from.host, (int64_t)elems, dtypes[halves], all.host);
    for (uint64_t r = 0; r < ROWS; r++)
        memcpy((char *)some.host + r * width * elem,
               (char *)all.host + (uint64_t)((int32_t *)ids.host)[r] * width * elem, width * elem);
    ops_stored s = { .kind = kind, .from = from.dev, .y = all.dev, .rows = MATRIX_ROWS, .width = width };
    assert_int_equal(layer(&t)->widen_stored(t.d, &s), TESS_OK);
    same_bits(&all);
    s.ids = (int32_t *)ids.dev, s.y = some.dev, s.rows = ROWS;
    assert_int_equal(layer(&t)->widen_stored(t.d, &s), TESS_OK);
    same_bits(&some);
    free(wide);
    close_tables(&t);
}

static void test_cuda_llama__frozen_matrices_are_widened_to_the_cpus_bits(void **state) {
    (void)state;
    for (uint32_t kind = STORED_F32; kind < STORED_KINDS; kind++)
        for (int halves = 0; halves < FACTOR_KINDS; halves++)
            widened_on(kind, 5, halves), widened_on(kind, 24, halves), widened_on(kind, 128, halves);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_llama__positions_turn_their_heads),
        cmocka_unit_test(test_cuda_llama__gradients_turn_back),
        cmocka_unit_test(test_cuda_llama__swiglu_is_its_definition),
        cmocka_unit_test(test_cuda_llama__rows_are_normalised_about_zero),
        cmocka_unit_test(test_cuda_llama__products_lie_in_wider_rows),
        cmocka_unit_test(test_cuda_llama__frozen_matrices_are_widened_to_the_cpus_bits),
    };
    return cmocka_run_group_tests(tests, start, finish);
}
