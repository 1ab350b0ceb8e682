/* SPDX-License-Identifier: BSD-3-Clause */
/* What a decoder has beside GPT-2's layers: the loss, the embedding, Llama's rotation and SwiGLU. Each streams through
 * memory, and is held against a copy. The head's product is held against one of a vocabulary of whole eights. */
#include "gpu_bench.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/status.h"
#include "tools/models/layer_ops.h"

enum { WIDTH = 768, HIDDEN = 2048, SIZE = 64, QUERIES = 12, KEYS = 4, FEW = 256 /* classes: bytes */ };

typedef struct {
    ops *o;
    const ops_layer_table *t;
    uint64_t rows, time, chunk, classes, tokens; /* tokens: how many of the batch's differ */
    void *x, *dx, *y, *logits, *losses, *table, *position, *scratch;
    float *dtable, *dposition;
    int32_t *ids, *host_ids;
    double turns[SIZE / 2];
} ends;

/* ---- what is run ------------------------------------------------------------------------------- */
static tess_status loss_of(const ends *e, uint64_t rows, uint64_t classes) {
    ops_row_loss l = { .logits = e->logits, .labels = e->ids, .slopes = 1 };
    l.losses = e->losses, l.rows = l.count = rows, l.classes = classes, l.pitch = (classes + 7) / 8 * 8, l.mean = 1;
    return e->t->loss(e->o, &l);
}
static tess_status run_loss(const void *bench) {
    const ends *e = bench;
    return loss_of(e, e->chunk, e->classes);
}
static tess_status run_loss_of_few(const void *bench) {
    const ends *e = bench;
    return loss_of(e, e->chunk, FEW);
}
static tess_status logits_of(const ends *e, uint64_t classes) {
    ops_factors f = { .rows = (int64_t)e->chunk, .columns = (int64_t)classes, .depth = WIDTH, .a = e->x };
    f.b = e->table, f.y = e->logits, f.y_pitch = (int64_t)((classes + 7) / 8 * 8), f.turn_b = 1;
    return e->t->product(e->o, &f, e->scratch);
}
static tess_status run_logits(const void *bench) {
    const ends *e = bench;
    return logits_of(e, e->classes);
}
static tess_status run_logits_of_eights(const void *bench) {
    const ends *e = bench;
    return logits_of(e, e->classes / 8 * 8);
}
static ops_rows rows_of(const ends *e) {
    return (ops_rows){ e->rows, WIDTH, e->time };
}
static tess_status run_embed(const void *bench) {
    const ends *e = bench;
    ops_rows of = rows_of(e);
    return e->t->embed(e->o, &of, e->ids, e->table, NULL, e->position, 0, NULL, e->y);
}
static tess_status run_embed_backward(const void *bench) {
    const ends *e = bench;
    ops_rows of = rows_of(e);
    return e->t->embed_backward(e->o, &of, e->ids, e->y, 0, e->dtable, e->dposition, 0, e->scratch);
}
static tess_status run_rotation(const void *bench) {
    const ends *e = bench;
    ops_rotation n = { .of = { e->rows, (QUERIES + 2 * KEYS) * SIZE, e->time }, .x = e->x, .heads = QUERIES + KEYS };
    n.pairs = SIZE / 2, n.turns = e->turns;
    return e->t->rotate(e->o, &n);
}
static tess_status run_swiglu(const void *bench) {
    const ends *e = bench;
    return e->t->swiglu(e->o, e->x, e->y, e->rows, HIDDEN, 0, NULL);
}
static tess_status run_swiglu_backward(const void *bench) {
    const ends *e = bench;
    return e->t->swiglu_backward(e->o, e->x, e->y, e->dx, e->y, e->rows, HIDDEN, 0, NULL, NULL);
}

/* ---- memory ------------------------------------------------------------------------------------ */
static int by_id(const void *a, const void *b) {
    return *(const int32_t *)a - *(const int32_t *)b;
}
/* The batch's tokens, spread over the vocabulary; labels of the chunk are below FEW. */
static tess_status fill_ids(ends *e) {
    for (uint64_t i = 0; i < e->rows; i++)
        e->host_ids[i] = (int32_t)(i < e->chunk ? i * 31 % FEW : i * 2654435761u % e->classes);
    TRY(e->o->t->upload(e->o, e->host_ids, e->ids, e->rows * sizeof *e->ids));
    qsort(e->host_ids, e->rows, sizeof *e->host_ids, by_id);
    for (uint64_t i = 0; i < e->rows; i++)
        e->tokens += i == 0 || e->host_ids[i] != e->host_ids[i - 1];
    return TESS_OK;
}

static tess_status obtain(ends *e) {
    uint64_t wide = e->rows * 2 * HIDDEN * sizeof(uint16_t), row = (e->classes + 7) / 8 * 8;
    uint64_t product = e->t->product_need((int64_t)e->chunk, (int64_t)e->classes, WIDTH);
    uint64_t embed = e->t->embed_backward_need(e->rows);
    struct {
        void *out;
        uint64_t bytes;
    } all[] = { { &e->x, wide },
                { &e->dx, wide },
                { &e->y, wide },
                { &e->logits, e->chunk * row * sizeof(uint16_t) },
                { &e->losses, e->o->t->cross_entropy_need(e->rows) },
                { &e->table, e->classes * WIDTH * sizeof(uint16_t) },
                { &e->position, e->time * WIDTH * sizeof(uint16_t) },
                { &e->scratch, product > embed ? product : embed },
                { &e->dtable, e->classes * WIDTH * sizeof(float) },
                { &e->dposition, e->time * WIDTH * sizeof(float) },
                { &e->ids, e->rows * sizeof(int32_t) } };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        void *at = NULL;
        TRY(e->o->t->alloc(e->o, all[i].bytes, &at));
        memcpy(all[i].out, &at, sizeof at);
    }
    e->host_ids = malloc(e->rows * sizeof *e->host_ids);
    return e->host_ids ? fill_ids(e) : tess__fail(TESS_E_NOMEM, "no memory for tokens");
}

static tess_status open_ends(ends *e, int small) {
    const ops_table *table;
    e->time = small ? 16 : 1024, e->rows = small ? 32 : 8192, e->chunk = small ? 8 : 1024;
    e->classes = small ? 6700 : 50257;
    for (int p = 0; p < SIZE / 2; p++)
        e->turns[p] = 0.1 / (1 + p);
    TRY(ops_find("cuda", &table));
    TRY(table->create(&(ops_options){ .bf16 = 1 }, &e->o));
    TRY(table->start(e->o, &(tess_stream){ .mem = TESS_MEM_CUDA }));
    e->t = table->layer;
    return obtain(e);
}

static void close_ends(ends *e) {
    void *all[] = { e->x,        e->dx,      e->y,      e->logits,    e->losses, e->table,
                    e->position, e->scratch, e->dtable, e->dposition, e->ids };
    for (size_t i = 0; e->o && i < sizeof all / sizeof *all; i++)
        e->o->t->free(e->o, all[i]);
    if (e->o)
        e->o->t->destroy(e->o);
    free(e->host_ids);
}

/* ---- times ------------------------------------------------------------------------------------- */
static tess_status measure(const ends *e, double copy_bandwidth) {
    double rows = (double)e->rows, chunk = (double)e->chunk, classes = (double)e->classes;
    double embedded = rows * WIDTH, grads = ((double)e->tokens * 8 + (double)e->time * 4) * WIDTH;
    const struct {
        const char *what;
        tess_status (*run)(const void *);
        double bytes;
    } cases[] = { { "loss and gradient of 256 classes", run_loss_of_few, 4 * chunk * FEW },
                  { "loss and gradient of many", run_loss, 4 * chunk * classes },
                  { "embedding", run_embed, 6 * embedded },
                  { "embedding's backward", run_embed_backward, 2 * embedded + grads },
                  { "rotation", run_rotation, 4 * rows * (QUERIES + KEYS) * SIZE },
                  { "SwiGLU", run_swiglu, 6 * rows * HIDDEN },
                  { "SwiGLU's backward", run_swiglu_backward, 12 * rows * HIDDEN } };
    double seconds, flops = 2 * chunk * classes * WIDTH, eights;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        TRY(gpu_bench_time(e->o, cases[i].run, e, &seconds));
        gpu_bench_say(cases[i].what, cases[i].bytes / seconds * 1e-9, copy_bandwidth * 1e-9, "GB/s");
    }
    TRY(gpu_bench_time(e->o, run_logits_of_eights, e, &eights));
    TRY(gpu_bench_time(e->o, run_logits, e, &seconds));
    gpu_bench_say("logits of an odd vocabulary", flops / seconds * 1e-12, flops / eights * 1e-12,
                  "TFLOP/s, against eights of it alone");
    return TESS_OK;
}

tess_status gpu_bench_ends(uint64_t bytes, double copy_bandwidth) {
    ends e = { .o = NULL };
    tess_status status = open_ends(&e, bytes < UINT64_C(1) << 28);
    if (status == TESS_OK)
        status = measure(&e, copy_bandwidth);
    close_ends(&e);
    return status;
}
