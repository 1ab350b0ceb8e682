/* SPDX-License-Identifier: BSD-3-Clause */
/* Operators on elements and rows, except for the normalisations. */
#include "decoder_rows.h"
#include "tools/models/ops_formulas.h"
#include "tools/models/elementwise.h"
#include "tools/models/parallel.h"
#include "tools/models/philox.h"

#include <math.h>
#include <string.h>

enum { TILE = 256 /* elements at a time, on the stack */, COLUMNS = 64 };

/* ---- activations ------------------------------------------------------------------------------------ */
typedef struct {
    const decoder *d;
    const void *gate, *up;
    void *y, *dgate;
} act;

static float logistic(float x) {
    return 1.0f / (1.0f + ops_exp(-x));
}

OPS_CLONES static void act_range(void *arg, int32_t thread, int64_t first, int64_t last) {
    const act *a = arg;
    float room[3][TILE];
    (void)thread;
    for (int64_t i = first; i < last; i += TILE) {
        int64_t n = last - i < TILE ? last - i : TILE;
        const float *up = rows_in(a->d, a->up, i, n, room[0]);
        float *y = rows_for(a->d, a->y, i, room[2]);
        if (a->gate) {
            const float *gate = rows_in(a->d, a->gate, i, n, room[1]);
            for (int64_t k = 0; k < n; k++)
                y[k] = gate[k] * logistic(gate[k]) * up[k];
        } else {
            for (int64_t k = 0; k < n; k++)
                y[k] = ops_gelu_of(up[k]);
        }
        rows_out(a->d, y, a->y, i, n);
    }
}

void decoder_act(const decoder *d, const void *gate, const void *up, void *y, int64_t elems) {
    act a = { d, gate, up, y, NULL };
    ops_parallel(d->o, elems, TILE * 16, act_range, &a);
}

OPS_CLONES static void act_backward_range(void *arg, int32_t thread, int64_t first, int64_t last) {
    const act *a = arg;
    float room[4][TILE];
    (void)thread;
    for (int64_t i = first; i < last; i += TILE) {
        int64_t n = last - i < TILE ? last - i : TILE;
        const float *up = rows_in(a->d, a->up, i, n, room[0]), *dy = rows_in(a->d, a->y, i, n, room[1]);
        float *dup = rows_for(a->d, a->y, i, room[1]);
        if (a->gate) {
            const float *from = rows_in(a->d, a->gate, i, n, room[2]);
            float *gate = room[2], *dgate = rows_for(a->d, a->dgate, i, room[3]);
            if (from != gate) /* dgate may have its place */
                memcpy(gate, from, (size_t)n * sizeof *gate);
            for (int64_t k = 0; k < n; k++) {
                float s = logistic(gate[k]);
                dgate[k] = dy[k] * up[k] * s * (1.0f + gate[k] * (1.0f - s));
                dup[k] = dy[k] * gate[k] * s;
            }
            rows_out(a->d, dgate, a->dgate, i, n);
        } else {
            for (int64_t k = 0; k < n; k++)
                dup[k] = ops_gelu_slope_of(up[k], dy[k]);
        }
        rows_out(a->d, dup, a->y, i, n);
    }
}

void decoder_act_backward(const decoder *d, const void *gate, const void *up, void *dy_dup, void *dgate,
                          int64_t elems) {
    act a = { d, gate, up, dy_dup, dgate };
    ops_parallel(d->o, elems, TILE * 16, act_backward_range, &a);
}

OPS_CLONES static void add_range(void *arg, int32_t thread, int64_t first, int64_t last) {
    const act *a = arg;
    float room[2][TILE];
    (void)thread;
    for (int64_t i = first; i < last; i += TILE) {
        int64_t n = last - i < TILE ? last - i : TILE;
        const float *x = rows_in(a->d, a->up, i, n, room[0]), *before = rows_in(a->d, a->y, i, n, room[1]);
        float *y = rows_for(a->d, a->y, i, room[1]);
        for (int64_t k = 0; k < n; k++)
            y[k] = before[k] + x[k];
        rows_out(a->d, y, a->y, i, n);
    }
}

void decoder_add(const decoder *d, const void *x, void *y, int64_t elems) {
    act a = { .d = d, .up = x, .y = y };
    ops_parallel(d->o, elems, TILE * 16, add_range, &a);
}

/* ---- sums over rows --------------------------------------------------------------------------------- */
typedef struct {
    const decoder *d;
    const void *dy;
    float *db;
    int64_t rows, stride;
} bias;

OPS_CLONES static void bias_columns(void *arg, int32_t thread, int64_t first, int64_t last) {
    const bias *b = arg;
    (void)thread;
    for (int64_t c = first; c < last; c += COLUMNS) {
        double sum[COLUMNS] = { 0 };
        float room[COLUMNS];
        int64_t n = last - c < COLUMNS ? last - c : COLUMNS;
        for (int64_t r = 0; r < b->rows; r++) {
            const float *dy = rows_in(b->d, b->dy, r * b->stride + c, n, room);
            for (int64_t i = 0; i < n; i++)
                sum[i] += dy[i];
        }
        for (int64_t i = 0; i < n; i++)
            b->db[c + i] += (float)sum[i];
    }
}

void decoder_bias_backward(const decoder *d, const void *dy, float *db, int64_t rows, int64_t width, int64_t stride) {
    bias b = { d, dy, db, rows, stride };
    if (db)
        ops_parallel(d->o, width, COLUMNS, bias_columns, &b);
}

/* ---- dropout: tools/models/elementwise.c has the same masks ------------------------------------------- */
typedef struct {
    const decoder *d;
    void *x;
    int64_t elems;
    const ops_dropout *drop;
} mask;

static void drop_samples(void *arg, int32_t thread, int64_t first, int64_t last) {
    const mask *m = arg;
    const ops_dropout *p = m->drop;
    float keep = 1.0f - p->rate, grow = 1.0f / keep, room[4];
    (void)thread;
    for (int64_t s = first; s < last; s++)
        for (int64_t i = 0; i < m->elems; i += 4) {
            int64_t at = s * m->elems + i, n = m->elems - i < 4 ? m->elems - i : 4;
            philox_block word = philox(p->seed, (uint32_t)(i / 4), (uint32_t)PHILOX_DROPOUT << 24 | p->layer,
                                       (uint32_t)(p->first_sample + (uint64_t)s), (uint32_t)p->step);
            const float *x = rows_in(m->d, m->x, at, n, room);
            float *y = rows_for(m->d, m->x, at, room);
            for (int64_t k = 0; k < n; k++)
                y[k] = philox_uniform(word.v[k]) < keep ? x[k] * grow : 0;
            rows_out(m->d, y, m->x, at, n);
        }
}

void decoder_dropout(const decoder *d, void *x, int64_t samples, int64_t elems, const ops_dropout *drop) {
    mask m = { d, x, elems, drop };
    if (drop->rate > 0 && !d->half)
        d->o->t->dropout((ops *)(uintptr_t)d->o, x, (uint64_t)samples, (uint64_t)elems, drop);
    else if (drop->rate > 0)
        ops_parallel(d->o, samples, 1, drop_samples, &m);
}

/* ---- rotary positions ------------------------------------------------------------------------------- */
typedef struct {
    const decoder *d;
    void *x;
    float sign;
} turn;

/* The two halves of a head's elements are the parts of size/2 complex numbers. */
static void turn_head(const turn *t, int64_t at, const float *turns) {
    int64_t half = t->d->size / 2;
    float room[2][TILE];
    for (int64_t i = 0; i < half; i += TILE) {
        int64_t n = half - i < TILE ? half - i : TILE;
        const float *re = rows_in(t->d, t->x, at + i, n, room[0]), *im = rows_in(t->d, t->x, at + half + i, n, room[1]);
        float *re_out = rows_for(t->d, t->x, at + i, room[0]), *im_out = rows_for(t->d, t->x, at + half + i, room[1]);
        for (int64_t k = 0; k < n; k++) {
            float c = turns[2 * (i + k)], s = t->sign * turns[2 * (i + k) + 1], a = re[k], b = im[k];
            re_out[k] = a * c - b * s;
            im_out[k] = b * c + a * s;
        }
        rows_out(t->d, re_out, t->x, at + i, n);
        rows_out(t->d, im_out, t->x, at + half + i, n);
    }
}

static void turn_rows(void *arg, int32_t thread, int64_t first, int64_t last) {
    const turn *t = arg;
    const decoder *d = t->d;
    (void)thread;
    for (int64_t r = first; r < last; r++)
        for (int64_t h = 0; h < d->heads + d->kv_heads; h++) /* keys lie behind queries */
            turn_head(t, r * d->qkv_width + h * d->size, d->turns + r % d->time * d->size);
}

void decoder_rope(const decoder *d, void *qkv, int64_t samples, int back) {
    turn t = { d, qkv, back ? -1.0f : 1.0f };
    if (d->turns)
        ops_parallel(d->o, samples * d->time, 16, turn_rows, &t);
}

void decoder_rope_one(const decoder *d, void *qkv, int64_t position) {
    turn t = { d, qkv, 1.0f };
    for (int64_t h = 0; d->turns && h < d->heads + d->kv_heads; h++)
        turn_head(&t, h * d->size, d->turns + position * d->size);
}

/* ---- embedding -------------------------------------------------------------------------------------- */
typedef struct {
    const decoder *d;
    const int32_t *ids;
    const void *table, *position, *dy;
    void *y;
    float *dtable, *dposition;
} embed;

/* One row: y = table[id] + position[at]. */
static inline void embed_row(const embed *e, int32_t id, int64_t at, int64_t row) {
    const decoder *d = e->d;
    float room[2][TILE];
    for (int64_t c = 0; c < d->width; c += TILE) {
        int64_t n = d->width - c < TILE ? d->width - c : TILE;
        const float *x = rows_in(d, e->table, id * d->width + c, n, room[0]);
        float *y = rows_for(d, e->y, row * d->width + c, room[0]);
        if (e->position) {
            const float *p = rows_in(d, e->position, at * d->width + c, n, room[1]);
            for (int64_t i = 0; i < n; i++)
                y[i] = x[i] + p[i];
        } else if (y != x) {
            memcpy(y, x, (size_t)n * sizeof *y);
        }
        rows_out(d, y, e->y, row * d->width + c, n);
    }
}

OPS_CLONES static void embed_rows(void *arg, int32_t thread, int64_t first, int64_t last) {
    const embed *e = arg;
    (void)thread;
    for (int64_t r = first; r < last; r++)
        embed_row(e, e->ids[r], r % e->d->time, r);
}

void decoder_embedding_one(const decoder *d, int32_t id, int64_t at, const void *table, const void *position, void *y) {
    embed e = { .d = d, .table = table, .position = position, .y = y };
    embed_row(&e, id, at, 0);
}

void decoder_embedding(const decoder *d, const int32_t *ids, const void *table, const void *position, void *y) {
    embed e = { .d = d, .ids = ids, .table = table, .position = position, .y = y };
    ops_parallel(d->o, d->rows, 16, embed_rows, &e);
}

/* Rows in their order for each column, so that threads do not matter. */
OPS_CLONES static void embed_backward_columns(void *arg, int32_t thread, int64_t first, int64_t last) {
    const embed *e = arg;
    const decoder *d = e->d;
    float room[COLUMNS];
    (void)thread;
    for (int64_t c = first; c < last; c += COLUMNS)
        for (int64_t r = 0; r < d->rows; r++) {
            int64_t n = last - c < COLUMNS ? last - c : COLUMNS;
            const float *dy = rows_in(d, e->dy, r * d->width + c, n, room);
            float *table = e->dtable ? e->dtable + e->ids[r] * d->width + c : NULL;
            float *position = e->dposition ? e->dposition + r % d->time * d->width + c : NULL;
            for (int64_t i = 0; table && i < n; i++)
                table[i] += dy[i];
            for (int64_t i = 0; position && i < n; i++)
                position[i] += dy[i];
        }
}

void decoder_embedding_backward(const decoder *d, const int32_t *ids, const void *dy, float *dtable, float *dposition) {
    embed e = { .d = d, .ids = ids, .dy = dy, .dtable = dtable, .dposition = dposition };
    ops_parallel(d->o, d->width, COLUMNS, embed_backward_columns, &e);
}

/* ---- loss ------------------------------------------------------------------------------------------- */
typedef struct {
    const decoder *d;
    const float *logits;
    float *dlogits;
    const int32_t *labels;
    double *loss;
    uint8_t *correct;
    uint16_t *halves;
    int64_t count;
    float scale;
} loss;

/* Log of the sum of exponentials, and the largest. */
OPS_CLONES static double log_sum(const float *x, int64_t n, float *most_out, int64_t *best_out) {
    int64_t best = 0;
    double sum = 0;
    float most = x[0], room[TILE];
    for (int64_t c = 1; c < n; c++)
        if (x[c] > most)
            most = x[c], best = c;
    for (int64_t c = 0; c < n; c += TILE) {
        int64_t m = n - c < TILE ? n - c : TILE;
        for (int64_t i = 0; i < m; i++)
            room[i] = ops_exp(x[c + i] - most);
        for (int64_t i = 0; i < m; i++)
            sum += room[i];
    }
    *most_out = most;
    *best_out = best;
    return log(sum) + (double)most;
}

static void loss_rows(void *arg, int32_t thread, int64_t first, int64_t last) {
    const loss *l = arg;
    (void)thread;
    for (int64_t r = first; r < last; r++) {
        const float *x = l->logits + r * l->d->vocabulary;
        float most;
        int64_t best;
        l->loss[r] = log_sum(x, l->d->vocabulary, &most, &best) - (double)x[l->labels[r]];
        l->correct[r] = best == l->labels[r];
    }
}

void decoder_loss(const decoder *d, const float *logits, const int32_t *labels, int64_t rows, double *out,
                  uint8_t *correct) {
    loss l = { .d = d, .logits = logits, .labels = labels, .loss = out, .correct = correct };
    ops_parallel(d->o, rows, 4, loss_rows, &l);
}

OPS_CLONES static void loss_backward_rows(void *arg, int32_t thread, int64_t first, int64_t last) {
    const loss *l = arg;
    int64_t n = l->d->vocabulary;
    (void)thread;
    for (int64_t r = first; r < last; r++) {
        float *x = l->dlogits + r * n, most = 0, log_of = 0;
        int64_t best;
        if (r < l->count)
            log_of = (float)log_sum(x, n, &most, &best);
        for (int64_t c = 0; c < n; c++)
            x[c] = r < l->count ? l->scale * ops_exp(x[c] - log_of) : 0;
        if (r < l->count)
            x[l->labels[r]] -= l->scale;
        for (int64_t c = 0; l->halves && c < n; c++)
            l->halves[r * n + c] = tess_bf16_of_f32(x[c]);
    }
}

void decoder_loss_backward(const decoder *d, float *logits, const int32_t *labels, int64_t rows, int64_t count,
                           float scale, uint16_t *halves) {
    loss l = { .d = d, .dlogits = logits, .labels = labels, .count = count, .scale = scale, .halves = halves };
    ops_parallel(d->o, rows, 4, loss_backward_rows, &l);
}
