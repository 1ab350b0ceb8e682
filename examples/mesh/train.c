/* SPDX-License-Identifier: BSD-3-Clause */
/* Tensor parallelism beside sharding: each layer's hidden units are split over the ranks of `tp`, and what each rank
 * has of the model is sharded over the ranks of `dp`. Without a mesh all ranks are `dp`; the bits are the same. tessera
 * run --mesh dp=2,tp=2 -- build/train */
#include <tessera/tessera.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 24, HIDDEN = 64, LAYERS = 3, BATCH = 8, STEPS = 40 };
enum { PARTS = 4, PART = HIDDEN / PARTS }; /* sums over hidden units are sums of four parts: tp is 1, 2 or 4 */
struct layer {
    float *up, *up_bias, *down, *down_bias; /* [hidden][WIDTH], [hidden], [hidden][WIDTH], [WIDTH] */
};
typedef struct {
    tess *t;                  /* over the ranks of dp that hold the same part of the model */
    tess_group *tp;           /* the ranks that hold one replica together */
    int parts, hidden, first; /* this rank's; first: of its hidden units in the whole layer */
} trainer;

static float x[LAYERS + 1][BATCH][WIDTH], act[LAYERS][BATCH][HIDDEN];

static void ok(tess_status status) {
    if (status < 0 && fprintf(stderr, "%s\n", tess_last_error()))
        exit(tess_exit_code(status));
}

/* ---- the two cuts --------------------------------------------------------------------------------- */

static void open_mesh(trainer *r) {
    tess_group_options dp = { .struct_size = sizeof dp }, tp = { .struct_size = sizeof tp };
    ok(tess_mesh_group("dp", &dp));
    ok(tess_mesh_group("tp", &tp));
    ok(tess_open(&(tess_options){ .struct_size = sizeof(tess_options), .group = &dp }, &r->t));
    ok(tess_group_open(&(tess_options){ .struct_size = sizeof(tess_options), .group = &tp }, &r->tp));
    if (PARTS % tess_group_ranks(r->tp) != 0)
        ok(tess_fail(TESS_E_INVALID, "tp is %d, expected 1, 2 or 4", tess_group_ranks(r->tp)));
    r->parts = PARTS / tess_group_ranks(r->tp);
    r->hidden = r->parts * PART;
    r->first = tess_group_rank(r->tp) * r->hidden;
}

/* Adds up one part after the other in a tree, on this rank and then over tp: the same sum for every tp. */
static void add_parts(trainer *r, float part[PARTS][BATCH * WIDTH]) {
    for (int step = 1; step < r->parts; step *= 2)
        for (int p = 0; p < r->parts; p += 2 * step)
            for (int i = 0; i < BATCH * WIDTH; i++)
                part[p][i] += part[p + step][i];
    ok(tess_group_all_reduce(r->tp, part, BATCH * WIDTH, TESS_F32, TESS_SUM));
}

/* ---- the model ------------------------------------------------------------------------------------ */

/* A value by its place in the whole tensor, of which this rank has a part. */
static tess_status start(void *user, const tess_range *range, void *data) {
    const trainer *r = user;
    uint64_t before = range->tag * (uint64_t)r->first + range->first_elem; /* tag: elements of a hidden unit */
    for (uint64_t i = 0; i < range->elems; i++)
        ((float *)data)[i] = 0.3f * sinf((float)(range->param + 1) * (float)(before + i + 1) + (float)range->slice);
    return TESS_OK;
}

static void add_param(trainer *r, const char *name, int64_t elems, uint64_t tag) {
    tess_param_options p = { .struct_size = sizeof p,
                             .dtype = TESS_F32,
                             .name = name,
                             .stack = LAYERS,
                             .shape = &elems,
                             .ndim = 1,
                             .tag = tag };
    ok(tess_param_add(r->t, &p, NULL));
}

static tess_scope describe(trainer *r) {
    tess_scope first;
    ok(tess_scope_add(r->t, "layer.*", LAYERS, &first));
    add_param(r, "layer.*.up.weight", r->hidden * WIDTH, WIDTH);
    add_param(r, "layer.*.up.bias", r->hidden, 1);
    add_param(r, "layer.*.down.weight", r->hidden * WIDTH, WIDTH);
    add_param(r, "layer.*.down.bias", WIDTH, 0); /* on every rank of tp, with the same gradient */
    ok(tess_shard(r->t, start, r));
    return first;
}

static void forward(trainer *r, tess_scope first) {
    static float part[PARTS][BATCH * WIDTH];
    for (int k = 0; k < LAYERS; k++) {
        struct layer l;
        ok(tess_forward_begin(r->t, first + k, &l, 4));
        memset(part, 0, sizeof part);
        for (int b = 0; b < BATCH; b++)
            for (int h = 0; h < r->hidden; h++) {
                float sum = l.up_bias[h];
                for (int i = 0; i < WIDTH; i++)
                    sum += l.up[h * WIDTH + i] * x[k][b][i];
                act[k][b][h] = tanhf(sum);
                for (int i = 0; i < WIDTH; i++)
                    part[h / PART][b * WIDTH + i] += act[k][b][h] * l.down[h * WIDTH + i];
            }
        add_parts(r, part);
        for (int b = 0; b < BATCH; b++)
            for (int i = 0; i < WIDTH; i++)
                x[k + 1][b][i] = x[k][b][i] + part[0][b * WIDTH + i] + l.down_bias[i];
        ok(tess_forward_end(r->t, first + k));
    }
}

static void backward(trainer *r, tess_scope first, float grad[BATCH * WIDTH]) {
    static float part[PARTS][BATCH * WIDTH];
    for (int k = LAYERS - 1; k >= 0; k--) {
        struct layer l, d;
        ok(tess_backward_begin(r->t, first + k, &l, &d, 4));
        memset(part, 0, sizeof part);
        for (int b = 0; b < BATCH; b++) {
            for (int i = 0; i < WIDTH; i++)
                d.down_bias[i] += grad[b * WIDTH + i];
            for (int h = 0; h < r->hidden; h++) {
                float to_act = 0;
                for (int i = 0; i < WIDTH; i++) {
                    to_act += l.down[h * WIDTH + i] * grad[b * WIDTH + i];
                    d.down[h * WIDTH + i] += act[k][b][h] * grad[b * WIDTH + i];
                }
                const float to_sum = to_act * (1 - act[k][b][h] * act[k][b][h]);
                d.up_bias[h] += to_sum;
                for (int i = 0; i < WIDTH; i++) {
                    d.up[h * WIDTH + i] += to_sum * x[k][b][i];
                    part[h / PART][b * WIDTH + i] += to_sum * l.up[h * WIDTH + i];
                }
            }
        }
        add_parts(r, part);
        for (int i = 0; i < BATCH * WIDTH; i++)
            grad[i] += part[0][i];
        ok(tess_backward_end(r->t, first + k));
    }
}

/* ---- training ------------------------------------------------------------------------------------- */

/* Ranks of one tp group read the same microbatch: tess_microbatch counts the ranks of dp. */
static double train_step(trainer *r, tess_scope first, int step) {
    float grad[BATCH * WIDTH];
    double loss = 0;
    ok(tess_pass(r->t, TESS_PASS_TRAIN));
    uint64_t sample = tess_microbatch(r->t, (uint64_t)step) * BATCH;
    for (int b = 0; b < BATCH; b++)
        for (int i = 0; i < WIDTH; i++)
            x[0][b][i] = sinf((float)((sample + (uint64_t)b) * WIDTH + (uint64_t)i));
    forward(r, first);
    for (int b = 0; b < BATCH; b++)
        for (int i = 0; i < WIDTH; i++) {
            const float error = x[LAYERS][b][i] - x[0][b][(i + 1) % WIDTH];
            grad[b * WIDTH + i] = 2 * error / (BATCH * WIDTH);
            loss += error * error / (BATCH * WIDTH);
        }
    backward(r, first, grad);
    ok(tess_step(r->t, &(tess_optimizer_options){ .struct_size = sizeof(tess_optimizer_options), .lr = 0.003f }));
    ok(tess_all_reduce(r->t, &loss, 1, TESS_F64, TESS_AVG));
    return loss;
}

/* A hash of the whole model: each range, whole on the ranks of dp, is put together over tp. */
typedef struct {
    trainer *r;
    float mine[HIDDEN * WIDTH], all[PARTS * HIDDEN * WIDTH];
    uint64_t hash;
} whole_model;

static tess_status add_to_hash(void *user, const tess_range *range, void *data) {
    whole_model *w = user;
    const uint64_t n = range->slice_elems;
    memcpy(w->mine + range->first_elem, data, range->elems * sizeof w->mine[0]);
    if (range->first_elem + range->elems < n)
        return TESS_OK;
    ok(tess_group_all_gather(w->r->tp, w->mine, w->all, n, TESS_F32));
    const unsigned char *bytes = (const unsigned char *)w->all;
    uint64_t whole = range->tag ? n * (uint64_t)tess_group_ranks(w->r->tp) : n;
    for (uint64_t i = 0; i < whole * sizeof w->all[0]; i++)
        w->hash = (w->hash ^ bytes[i]) * 0x100000001b3;
    return TESS_OK;
}

int main(void) {
    trainer r;
    double loss = 0;
    open_mesh(&r);
    tess_scope first = describe(&r);
    int speaks = tess_rank(r.t) == 0 && tess_group_rank(r.tp) == 0;
    for (int step = 0; step < STEPS; step++) {
        loss = train_step(&r, first, step);
        if (speaks && (step + 1) % 10 == 0)
            printf("step %d loss %.9g\n", step + 1, loss);
    }
    whole_model *w = calloc(1, sizeof *w);
    if (!w)
        return 4;
    w->r = &r;
    w->hash = 0xcbf29ce484222325;
    ok(tess_each_full(r.t, TESS_OF_PARAM, add_to_hash, w));
    if (speaks)
        printf("digest %016" PRIx64 "\n", w->hash);
    free(w);
    ok(tess_close(r.t));
    ok(tess_group_close(r.tp));
    return 0;
}
