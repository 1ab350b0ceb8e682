/* SPDX-License-Identifier: BSD-3-Clause */
/* The operators of a decoder's layer at GPT-2's size: what streams through memory against a copy, attention against a
 * product of cuBLAS. */
#include "gpu_bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/status.h"
#include "kit/formulas.h"
#include "tools/models/layer_ops.h"

enum { ROUNDS = 15, REPEATS = 4, WIDTH = 768, HEADS = 12, ARRAYS = 6 };

typedef struct {
    ops *o;
    const ops_layer_table *t;
    ops_rows rows;
    ops_attention_shape attention;
    char *array[ARRAYS]; /* of 4 · WIDTH factors a row */
    float *stats, *lse, *gains;
    void *workspace;
} layer_bench;

/* ---- what is run ------------------------------------------------------------------------------- */
static tess_status run_norm(const void *bench) {
    const layer_bench *b = bench;
    ops_norm n = { .of = b->rows, .x = b->array[0], .add = b->array[1], .add_bias = b->array[5], .sum = b->array[2] };
    n.next_bias = n.w = n.b = b->array[5], n.next = b->array[3], n.y = b->array[4], n.stats = b->stats;
    return b->t->norm(b->o, &n);
}
static tess_status run_norm_backward(const void *bench) {
    const layer_bench *b = bench;
    ops_norm_backward n = { .of = b->rows, .x = b->array[0], .dy = b->array[1], .add = b->array[2] };
    n.w = n.b = b->array[5], n.stats = b->stats, n.dx = b->array[3], n.normal = b->array[4];
    return b->t->norm_backward(b->o, &n);
}
static tess_status run_columns(const void *bench) {
    const layer_bench *b = bench;
    ops_columns all[] = { { .dy = b->array[0], .db = b->gains, .width = 4 * WIDTH },
                          { .x = b->array[1], .dy = b->array[2], .stats = b->stats, .width = WIDTH } };
    all[1].dw = b->gains + 4 * WIDTH, all[1].db = b->gains + 5 * WIDTH;
    return b->t->columns(b->o, all, 2, b->rows.rows, 0, b->workspace);
}
/* A layer's last launch: every bias but one, and the gain. */
static tess_status run_norm_backward_columns(const void *bench) {
    const layer_bench *b = bench;
    ops_norm_backward n = { .of = b->rows, .x = b->array[0], .dy = b->array[1], .add = b->array[2] };
    ops_columns all[] = { { .dy = b->array[5], .db = b->gains, .width = 4 * WIDTH },
                          { .x = b->array[0], .dy = b->array[1], .stats = b->stats, .width = WIDTH } };
    n.w = n.b = b->array[2], n.stats = b->stats, n.dx = b->array[3], n.normal = b->array[4];
    all[1].dw = b->gains + 4 * WIDTH, all[1].db = b->gains + 5 * WIDTH;
    return b->t->norm_backward_columns(b->o, &n, all, 2, 0, b->workspace);
}
static ops_factors up_factors(const layer_bench *b) {
    ops_factors f = { .rows = (int64_t)b->rows.rows, .columns = 4 * WIDTH, .depth = WIDTH, .a = b->array[0] };
    f.b = b->array[1], f.y = b->array[2], f.turn_b = 1;
    return f;
}
static tess_status run_product(const void *bench) {
    const layer_bench *b = bench;
    ops_factors f = up_factors(b);
    return b->t->product(b->o, &f, b->workspace);
}
static tess_status run_product_gelu(const void *bench) {
    const layer_bench *b = bench;
    ops_factors f = up_factors(b);
    f.bias = b->array[5], f.gelu = 1, f.before = b->array[3];
    return b->t->product(b->o, &f, b->workspace);
}
static tess_status run_product_back(const void *bench) {
    const layer_bench *b = bench;
    ops_factors f = up_factors(b);
    f.through = b->array[3], f.again = b->array[4];
    return b->t->product(b->o, &f, b->workspace);
}
static tess_status run_attention(const void *bench) {
    const layer_bench *b = bench;
    return b->t->attention(b->o, &b->attention, b->array[0], b->array[1], b->lse, b->workspace);
}
static tess_status run_attention_backward(const void *bench) {
    const layer_bench *b = bench;
    return b->t->attention_backward(b->o, &b->attention, b->array[0], b->array[1], b->lse, b->array[2], b->array[3],
                                    NULL, b->workspace);
}

typedef struct {
    const char *what;
    tess_status (*run)(const void *);
    double bytes; /* for each row and column of WIDTH; 0: a product */
} layer_case;
static const layer_case followed[] = { { "product, bias, GELU", run_product_gelu, 0 },
                                       { "product, back through GELU", run_product_back, 0 } };
static const layer_case streaming[] = {
    { "residual, normalisation", run_norm, 10 },
    { "their backward", run_norm_backward, 10 },
    { "sums of columns", run_columns, 8 + 4 },
    { "both in one launch", run_norm_backward_columns, 10 + 8 },
};

/* ---- memory ------------------------------------------------------------------------------------ */
static tess_status take(layer_bench *b, uint64_t bytes, void *out) {
    void *at = NULL;
    tess_status s = b->o->t->alloc(b->o, bytes, &at);
    memcpy(out, &at, sizeof at);
    return s;
}

static uint64_t attention_workspace(const layer_bench *b, const ops_attention_shape *s, uint64_t least) {
    ops_scratch need;
    b->t->attention_need(b->o, s, &need);
    return need.backward_bytes > least ? need.backward_bytes : least;
}

static tess_status open_layer(layer_bench *b, int32_t batch, int32_t context) {
    const ops_table *table;
    uint64_t workspace;
    TRY(ops_find("cuda", &table));
    TRY(table->create(&(ops_options){ .bf16 = 1 }, &b->o));
    TRY(table->start(b->o, &(tess_stream){ .mem = TESS_MEM_CUDA }));
    b->t = table->layer;
    b->rows = (ops_rows){ (uint64_t)batch * (uint64_t)context, WIDTH, (uint64_t)context };
    b->attention = (ops_attention_shape){ .batch = batch, .time = context, .heads = HEADS, .size = WIDTH / HEADS };
    workspace = b->t->product_need((int64_t)b->rows.rows, 4 * WIDTH, WIDTH);
    uint64_t sums = b->t->columns_need(b->rows.rows, 6 * WIDTH);
    workspace = workspace > sums ? workspace : sums;
    ops_attention_shape wide = b->attention;
    wide.heads = WIDTH / 128, wide.size = 128;
    b->o->attention_products = 5; /* needs more than seven */
    workspace = attention_workspace(b, &b->attention, attention_workspace(b, &wide, workspace));
    b->o->attention_products = 0;
    uint64_t most = b->rows.rows > WIDTH ? b->rows.rows : WIDTH; /* one of them is the product's weight */
    for (int i = 0; i < ARRAYS; i++)
        TRY(take(b, 4 * most * WIDTH * sizeof(uint16_t), &b->array[i]));
    TRY(take(b, 2 * b->rows.rows * sizeof(float), &b->stats));
    TRY(take(b, b->rows.rows * HEADS * sizeof(float), &b->lse));
    TRY(take(b, 6 * WIDTH * sizeof(float), &b->gains));
    return take(b, workspace, &b->workspace);
}

static void close_layer(layer_bench *b) {
    void *all[] = { b->stats, b->lse, b->gains, b->workspace };
    for (int i = 0; b->o && i < ARRAYS; i++)
        b->o->t->free(b->o, b->array[i]);
    for (size_t i = 0; b->o && i < sizeof all / sizeof *all; i++)
        b->o->t->free(b->o, all[i]);
    if (b->o)
        b->o->t->destroy(b->o);
}

/* ---- times ------------------------------------------------------------------------------------- */
tess_status gpu_bench_time(ops *o, tess_status (*run)(const void *), const void *arg, double *out) {
    double seconds[ROUNDS];
    if (gpu_bench_once) {
        *out = 1;
        TRY(run(arg));
        return o->t->finish(o);
    }
    for (int round = -2; round < ROUNDS; round++) {
        double begin = gpu_bench_now();
        for (int k = 0; k < REPEATS; k++)
            TRY(run(arg));
        TRY(o->t->finish(o));
        if (round >= 0)
            seconds[round] = (gpu_bench_now() - begin) / REPEATS;
    }
    *out = gpu_bench_median(seconds, ROUNDS);
    return TESS_OK;
}

/* *rate: of a product alone, in TFLOP/s. */
static tess_status measure_products(const layer_bench *b, double *rate) {
    double seconds, flops = 2.0 * (double)b->rows.rows * 4 * WIDTH * WIDTH;
    *rate = 1;
    if (gpu_bench_once)
        return TESS_OK;
    TRY(gpu_bench_time(b->o, run_product, b, &seconds));
    *rate = flops / seconds * 1e-12;
    for (size_t i = 0; i < sizeof followed / sizeof *followed; i++) {
        TRY(gpu_bench_time(b->o, followed[i].run, b, &seconds));
        gpu_bench_say(followed[i].what, flops / seconds * 1e-12, *rate, "TFLOP/s, against the product alone");
    }
    return TESS_OK;
}

/* In seven products and in five, of the model's heads and of heads of 128 elements. */
static tess_status measure_backward(layer_bench *b, double attended, double product) {
    const ops_attention_shape of_model = b->attention;
    for (int wide = 0; wide < 2; wide++) {
        b->attention.heads = wide ? WIDTH / 128 : of_model.heads, b->attention.size = WIDTH / b->attention.heads;
        for (int products = 7; products >= 5; products -= 2) {
            char what[64];
            double seconds;
            snprintf(what, sizeof what, "its backward, heads of %d, %d products", b->attention.size, products);
            b->o->attention_products = products;
            TRY(run_attention(b)); /* its rows' sums are backward's */
            TRY(gpu_bench_time(b->o, run_attention_backward, b, &seconds));
            gpu_bench_say(what, 2.5 * attended / seconds * 1e-12, product, "TFLOP/s, against a product");
        }
    }
    b->attention = of_model, b->o->attention_products = 0;
    return TESS_OK;
}

static tess_status measure(layer_bench *b, double copy_bandwidth) {
    double seconds, product, rows = (double)b->rows.rows;
    double attended = 2.0 * rows * (double)b->rows.time * WIDTH; /* causal: half of two products */
    for (size_t i = 0; i < sizeof streaming / sizeof *streaming; i++) {
        TRY(gpu_bench_time(b->o, streaming[i].run, b, &seconds));
        gpu_bench_say(streaming[i].what, streaming[i].bytes * rows * WIDTH / seconds * 1e-9, copy_bandwidth * 1e-9,
                      "GB/s");
    }
    TRY(measure_products(b, &product));
    TRY(gpu_bench_time(b->o, run_attention, b, &seconds));
    gpu_bench_say("attention", attended / seconds * 1e-12, product, "TFLOP/s, against a product");
    TRY(gpu_bench_time(b->o, run_attention_backward, b, &seconds));
    gpu_bench_say("its backward", 2.5 * attended / seconds * 1e-12, product, "TFLOP/s, against a product");
    return measure_backward(b, attended, product);
}

/* ---- the other attention ----------------------------------------------------------------------- */
/* The largest difference of `n` elements in bf16, as a share of the largest of `a`. */
static double apart(const uint16_t *a, const uint16_t *b, uint64_t n) {
    double most = 0, difference = 0;
    for (uint64_t i = 0; i < n; i++) {
        double x = (double)tess_f32_of_bf16(a[i]), y = (double)tess_f32_of_bf16(b[i]);
        if (!isfinite(x) || !isfinite(y))
            return INFINITY;
        most = fmax(most, fabs(x)), difference = fmax(difference, fabs(x - y));
    }
    return difference / most;
}

/* Keeps what one call wrote into array `i`. */
static tess_status keep(const layer_bench *b, int i, uint64_t elems, uint16_t *to) {
    return b->o->t->download(b->o, b->array[i], to, elems * sizeof *to);
}

/* Numbers between -2 and 2, for queries, keys and values, and for the gradient of the result. */
static tess_status fill(const layer_bench *b, uint16_t *room, uint64_t elems) {
    for (uint64_t i = 0; i < elems; i++)
        room[i] = tess_bf16_of_f32((float)(i * 2654435761u % 1009) / 252 - 2);
    TRY(b->o->t->upload(b->o, room, b->array[0], elems * sizeof *room));
    return b->o->t->upload(b->o, room + elems / 2, b->array[2], elems / 3 * sizeof *room);
}

/* The same arrays by cuDNN: times, and how far its values are from those of our kernels. `kept`: room for them. */
static tess_status compare_attention(const layer_bench *own, layer_bench *b, uint16_t *kept, double own_seconds[2]) {
    tess_status (*const runs[2])(const void *) = { run_attention, run_attention_backward };
    static const char *const names[2] = { "attention of cuDNN", "its backward, deterministic" };
    TRY(fill(own, kept, own->rows.rows * WIDTH * 3));
    for (int i = 0; i < 2; i++) {
        uint64_t elems = own->rows.rows * WIDTH * (i ? 3 : 1);
        double seconds;
        char line[96];
        TRY(runs[i](own));
        TRY(keep(own, i ? 3 : 1, elems, kept));
        TRY(gpu_bench_time(own->o, runs[i], own, &own_seconds[i]));
        TRY(gpu_bench_time(b->o, runs[i], b, &seconds));
        TRY(keep(b, i ? 3 : 1, elems, kept + elems));
        snprintf(line, sizeof line, "%s, %.1e apart", names[i], apart(kept, kept + elems, elems));
        gpu_bench_say(line, seconds * 1e6, own_seconds[i] * 1e6, "us, against our own");
    }
    return TESS_OK;
}

/* cuDNN may be missing, or older: then a line says so, and nothing fails. */
static tess_status measure_cudnn(const layer_bench *own) {
    layer_bench b = *own;
    const ops_table *table = own->o->t;
    ops_scratch need;
    double seconds[2];
    uint16_t *kept = calloc(own->rows.rows * WIDTH * 6, sizeof *kept);
    tess_status status = kept ? table->create(&(ops_options){ .bf16 = 1, .cudnn_attention = 1 }, &b.o) : TESS_E_NOMEM;
    if (status == TESS_OK && table->start(b.o, &(tess_stream){ .mem = TESS_MEM_CUDA }) != TESS_OK) {
        printf("no attention of cuDNN: %s\n", tess_last_error());
    } else if (status == TESS_OK) {
        b.t->attention_need(b.o, &b.attention, &need);
        b.workspace = NULL;
        status = take(&b, need.backward_bytes, &b.workspace);
        if (status == TESS_OK)
            status = compare_attention(own, &b, kept, seconds);
        table->free(b.o, b.workspace);
    }
    if (b.o != own->o)
        table->destroy(b.o);
    free(kept);
    return status;
}

tess_status gpu_bench_layer(uint64_t bytes, double copy_bandwidth) {
    layer_bench b = { .o = NULL };
    int small = bytes < UINT64_C(1) << 28;
    tess_status status = open_layer(&b, small ? 1 : 8, gpu_bench_once ? 200 : small ? 16 : 1024); /* 200: four tiles */
    if (status == TESS_OK)
        status = measure(&b, copy_bandwidth);
    if (status == TESS_OK && !gpu_bench_once)
        status = measure_cudnn(&b);
    close_layer(&b);
    return status;
}
