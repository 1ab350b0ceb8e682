/* SPDX-License-Identifier: BSD-3-Clause */
/* Operators on elements and rows, except for normalisations. */
#include "decoder_rows.h"
#include "tools/models/elementwise.h"
#include "tools/models/parallel.h"
#include "tools/models/philox.h"

#include <math.h>
#include <string.h>

enum { GRAIN = 4096 /* least elements per thread */, COLUMNS = 64 };

/* ---- activations ------------------------------------------------------------------------------------ */
typedef struct {
    const decoder *d;
    const void *gate, *up;
    void *y, *dgate;
} act;

enum { PLAIN, SILU, GELU }; /* no gate, or the gate's activation */

TESS_FN lanes act_lanes(int gated, lanes gate, lanes up) {
    return gated == SILU ? lanes_swiglu_of(gate, up) : gated == GELU ? lanes_gelu_of(gate) * up : lanes_gelu_of(up);
}

TESS_FN void act_few(int half, int gated, const act *a, int64_t i, int64_t n) {
    lanes up = rows_of(half, a->up, i, n), gate = gated ? rows_of(half, a->gate, i, n) : up;
    rows_to(half, act_lanes(gated, gate, up), a->y, i, n);
}

TESS_FN void act_pair(int half, int gated, const act *a, int64_t i) {
    lanes_pair up = pair_of(half, a->up, i), gate = gated ? pair_of(half, a->gate, i) : up;
    pair_to(half, (lanes_pair){ act_lanes(gated, gate.a, up.a), act_lanes(gated, gate.b, up.b) }, a->y, i);
}

/* Returns dup for dy, and writes dgate if there is a gate. */
TESS_FN lanes act_slope(int gated, lanes gate, lanes up, lanes dy, lanes *dgate) {
    if (!gated)
        return lanes_gelu_slope_of(up, dy);
    if (gated == GELU) {
        *dgate = lanes_gelu_slope_of(gate, dy * up);
        return dy * lanes_gelu_of(gate);
    }
    *dgate = lanes_swiglu_gate_slope_of(gate, up, dy);
    return lanes_swiglu_up_slope_of(gate, dy);
}

TESS_FN void act_backward_few(int half, int gated, const act *a, int64_t i, int64_t n) {
    lanes up = rows_of(half, a->up, i, n), gate = gated ? rows_of(half, a->gate, i, n) : up, dgate = up;
    lanes dup = act_slope(gated, gate, up, rows_of(half, a->y, i, n), &dgate);
    if (gated)
        rows_to(half, dgate, a->dgate, i, n);
    rows_to(half, dup, a->y, i, n);
}

TESS_FN void act_backward_pair(int half, int gated, const act *a, int64_t i) {
    lanes_pair up = pair_of(half, a->up, i), gate = gated ? pair_of(half, a->gate, i) : up, dgate = up;
    lanes_pair dup = pair_of(half, a->y, i);
    dup.a = act_slope(gated, gate.a, up.a, dup.a, &dgate.a);
    dup.b = act_slope(gated, gate.b, up.b, dup.b, &dgate.b);
    if (gated)
        pair_to(half, dgate, a->dgate, i);
    pair_to(half, dup, a->y, i);
}

/* Each kind has a loop of its own, so that all constants of its formula stay in registers. */
TESS_FN void act_span(int half, int gated, int backward, const act *a, int64_t i, int64_t last) {
    for (; i + PAIR <= last; i += PAIR)
        (backward ? act_backward_pair : act_pair)(half, gated, a, i);
    for (; i < last; i += LANES)
        (backward ? act_backward_few : act_few)(half, gated, a, i, last - i);
}

#define ACT_SPANS(half, gated, backward, ...)                                                                          \
    switch (gated) {                                                                                                   \
    case PLAIN: BY_FORMAT(half, act_span, PLAIN, backward, __VA_ARGS__); break;                                        \
    case SILU: BY_FORMAT(half, act_span, SILU, backward, __VA_ARGS__); break;                                          \
    default: BY_FORMAT(half, act_span, GELU, backward, __VA_ARGS__); break;                                            \
    }

/* Works on a copy of the parameters: the compiler must reload memory that a vector store may overwrite. The others
 * do too. */
OPS_CLONES static void act_range(void *arg, int32_t thread, int64_t first, int64_t last) {
    const act a = *(const act *)arg;
    (void)thread;
    ACT_SPANS(a.d->half, a.gate ? 1 + a.d->gelu : PLAIN, 0, &a, first, last);
}

void decoder_act(const decoder *d, const void *gate, const void *up, void *y, int64_t elems) {
    act a = { d, gate, up, y, NULL };
    ops_parallel(d->o, elems, GRAIN, act_range, &a);
}

OPS_CLONES static void act_backward_range(void *arg, int32_t thread, int64_t first, int64_t last) {
    const act a = *(const act *)arg;
    (void)thread;
    ACT_SPANS(a.d->half, a.gate ? 1 + a.d->gelu : PLAIN, 1, &a, first, last);
}

void decoder_act_backward(const decoder *d, const void *gate, const void *up, void *dy_dup, void *dgate,
                          int64_t elems) {
    act a = { d, gate, up, dy_dup, dgate };
    ops_parallel(d->o, elems, GRAIN, act_backward_range, &a);
}

OPS_CLONES static void add_range(void *arg, int32_t thread, int64_t first, int64_t last) {
    const act *a = arg;
    (void)thread;
    for (int64_t i = first; i < last; i += LANES)
        rows_put(a->d, rows_at(a->d, a->y, i, last - i) + rows_at(a->d, a->up, i, last - i), a->y, i, last - i);
}

void decoder_add(const decoder *d, const void *x, void *y, int64_t elems) {
    act a = { .d = d, .up = x, .y = y };
    ops_parallel(d->o, elems, GRAIN, add_range, &a);
}

/* ---- sums over rows --------------------------------------------------------------------------------- */
typedef struct {
    const decoder *d;
    const void *dy;
    float *db;
    int64_t rows, width;
} bias;

/* Adds up some rows in the tile's columns from `at` on. */
TESS_FN void add_rows(int half, const bias *b, int64_t row, int64_t rows, int64_t at, int64_t columns, double *sums) {
    int64_t c = 0, from = row * b->width + at;
    for (; c + PAIR <= columns; c += PAIR) {
        lanes_pair part = { lanes_fill(0), lanes_fill(0) };
        for (int64_t r = 0; r < rows; r++) {
            lanes_pair dy = pair_of(half, b->dy, from + r * b->width + c);
            part.a += dy.a, part.b += dy.b;
        }
        pair_add(sums + c, part);
    }
    for (; c < columns; c++) {
        float part = 0;
        for (int64_t r = 0; r < rows; r++)
            part += one_of(half, b->dy, from + r * b->width + c);
        sums[c] += part;
    }
}

TESS_FN void add_tile(int half, const bias *b, int64_t at, int64_t columns) {
    double sums[TILE] = { 0 };
    for (int64_t r = 0; r < b->rows; r += ROWS_TOGETHER)
        add_rows(half, b, r, b->rows - r < ROWS_TOGETHER ? b->rows - r : ROWS_TOGETHER, at, columns, sums);
    sums_to(half, sums, columns, b->db + at);
}

OPS_CLONES static void bias_columns(void *arg, int32_t thread, int64_t first, int64_t last) {
    const bias b = *(const bias *)arg;
    (void)thread;
    for (int64_t at = first; at < last; at += TILE)
        BY_FORMAT(b.d->half, add_tile, &b, at, last - at < TILE ? last - at : TILE);
}

void decoder_bias_backward(const decoder *d, const void *dy, float *db, int64_t rows, int64_t width) {
    bias b = { d, dy, db, rows, width };
    if (db)
        ops_parallel(d->o, width, COLUMNS, bias_columns, &b);
}

/* ---- dropout, with the same masks as tools/models/elementwise.c ------------------------------------------ */
typedef struct {
    const decoder *d;
    void *x;
    int64_t elems;
    const ops_dropout *drop;
} mask;

static void drop_samples(void *arg, int32_t thread, int64_t first, int64_t last) {
    const mask *m = arg;
    const ops_dropout *p = m->drop;
    float keep = 1.0f - p->rate, grow = 1.0f / keep;
    (void)thread;
    for (int64_t s = first; s < last; s++)
        for (int64_t i = 0; i < m->elems; i += LANES) {
            int64_t at = s * m->elems + i, n = m->elems - i;
            lanes x = rows_at(m->d, m->x, at, n), y;
            for (int64_t k = 0; k < LANES; k += 4) {
                philox_block word = philox(p->seed, (uint32_t)((i + k) / 4), (uint32_t)PHILOX_DROPOUT << 24 | p->layer,
                                           (uint32_t)(p->first_sample + (uint64_t)s), (uint32_t)p->step);
                for (int64_t j = 0; j < 4; j++)
                    y[k + j] = philox_uniform(word.v[j]) < keep ? x[k + j] * grow : 0;
            }
            rows_put(m->d, y, m->x, at, n);
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
    const float *turns;
    void *x;
    int64_t rows;
    float sign;
} turn;

/* The two halves of a head are the real and imaginary parts of size/2 complex numbers. Cosines and sines are stored
 * likewise. */
TESS_FN void turn_head(const turn *t, int64_t at, const float *turns) {
    int64_t half = t->d->size / 2;
    for (int64_t i = 0; i < half; i += LANES) {
        int64_t n = half - i;
        lanes re = rows_at(t->d, t->x, at + i, n), im = rows_at(t->d, t->x, at + half + i, n);
        lanes c = floats_at(turns, i, n), s = t->sign * floats_at(turns, half + i, n);
        rows_put(t->d, re * c - im * s, t->x, at + i, n);
        rows_put(t->d, im * c + re * s, t->x, at + half + i, n);
    }
}

TESS_FN void turn_row(const turn *t, int64_t row, int64_t position) {
    const decoder *d = t->d;
    const float *turns = t->turns + position * d->size;
    decoder_part q = decoder_q(d), k = decoder_k(d, t->rows);
    for (int64_t h = 0; h < d->heads; h++)
        turn_head(t, q.at + row * q.stride + h * d->size, turns);
    for (int64_t h = 0; h < d->kv_heads; h++)
        turn_head(t, k.at + row * k.stride + h * d->size, turns);
}

OPS_CLONES static void turn_rows(void *arg, int32_t thread, int64_t first, int64_t last) {
    const turn *t = arg;
    (void)thread;
    for (int64_t r = first; r < last; r++)
        turn_row(t, r, r % t->d->time);
}

void decoder_rope(const decoder *d, const decoder_sight *sight, void *qkv, int64_t samples, int back) {
    turn t = { d, sight->turns, qkv, samples * d->time, back ? -1.0f : 1.0f };
    if (t.turns)
        ops_parallel(d->o, t.rows, 16, turn_rows, &t);
}

void decoder_rope_one(const decoder *d, const decoder_sight *sight, void *qkv, int64_t position) {
    turn t = { d, sight->turns, qkv, 1, 1.0f };
    if (t.turns)
        turn_row(&t, 0, position);
}

/* ---- embedding -------------------------------------------------------------------------------------- */
typedef struct {
    const decoder *d;
    const int32_t *ids, *packed;
    const void *table, *position, *dy;
    void *y;
    float *dtable, *dposition;
} embed;

/* The table may be stored in another dtype than tensors. */
TESS_FN lanes table_at(const decoder *d, const void *table, int64_t i, int64_t n) {
    float room[LANES] = { 0 };
    if (d->table == STORED_F32)
        return rows_at(d, table, i, n);
    if (d->table == STORED_BF16)
        return rows_of(LANES_BF16, table, i, n);
    stored_read(d->table, table, i, n < LANES ? n : LANES, room);
    return lanes_load(0, room);
}

/* Computes one row: y = table[id] + position[at]. */
TESS_FN void embed_row(const embed *e, int32_t id, int64_t at, int64_t row) {
    const decoder *d = e->d;
    for (int64_t c = 0; c < d->width; c += LANES) {
        lanes x = table_at(d, e->table, id * d->width + c, d->width - c);
        if (d->embed_scale > 0)
            x *= d->embed_scale;
        if (e->position)
            x += rows_at(d, e->position, at * d->width + c, d->width - c);
        rows_put(d, x, e->y, row * d->width + c, d->width - c);
    }
}

/* Returns the position of row r within its document. */
static int64_t position_of(const embed *e, int64_t r) {
    int64_t at = r % e->d->time;
    return at - decoder_begin(e->d, e->packed, r / e->d->time, at);
}

OPS_CLONES static void embed_rows(void *arg, int32_t thread, int64_t first, int64_t last) {
    const embed *e = arg;
    (void)thread;
    for (int64_t r = first; r < last; r++)
        embed_row(e, e->ids[r], position_of(e, r), r);
}

void decoder_embedding_one(const decoder *d, int32_t id, int64_t at, const void *table, const void *position, void *y) {
    embed e = { .d = d, .table = table, .position = position, .y = y };
    embed_row(&e, id, at, 0);
}

void decoder_embedding(const decoder *d, const int32_t *ids, const int32_t *packed, const void *table,
                       const void *position, void *y) {
    embed e = { .d = d, .ids = ids, .packed = packed, .table = table, .position = position, .y = y };
    ops_parallel(d->o, d->rows, 16, embed_rows, &e);
}

/* Each column adds rows in their order, so that the bits do not depend on threads. */
OPS_CLONES static void embed_backward_columns(void *arg, int32_t thread, int64_t first, int64_t last) {
    const embed *e = arg;
    const decoder *d = e->d;
    (void)thread;
    for (int64_t r = 0; r < d->rows; r++) {
        int64_t at = e->dposition ? position_of(e, r) : 0;
        for (int64_t c = first; c < last; c += LANES) {
            lanes dy = rows_at(d, e->dy, r * d->width + c, last - c);
            if (d->embed_scale > 0)
                dy *= d->embed_scale;
            if (e->dtable)
                floats_add(e->dtable, e->ids[r] * d->width + c, last - c, dy);
            if (e->dposition)
                floats_add(e->dposition, at * d->width + c, last - c, dy);
        }
    }
}

void decoder_embedding_backward(const decoder *d, const int32_t *ids, const int32_t *packed, const void *dy,
                                float *dtable, float *dposition) {
    embed e = { .d = d, .ids = ids, .packed = packed, .dy = dy, .dtable = dtable, .dposition = dposition };
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

OPS_CLONES static void cap_rows(void *arg, int32_t thread, int64_t first, int64_t last) {
    const loss *l = arg;
    int64_t n = l->d->vocabulary;
    float cap = l->d->logit_cap;
    (void)thread;
    for (int64_t r = first; r < last; r++)
        for (int64_t c = 0; c < n; c += LANES)
            floats_put(cap * lanes_tanh(floats_at(l->dlogits, r * n + c, n - c) / cap), l->dlogits, r * n + c, n - c);
}

void decoder_cap(const decoder *d, float *logits, int64_t rows) {
    loss l = { .d = d, .dlogits = logits };
    if (d->logit_cap > 0)
        ops_parallel(d->o, rows, 4, cap_rows, &l);
}

/* Returns the log of the sum of exponentials, and writes the maximum and its first index. */
OPS_CLONES static double log_sum(const float *x, int64_t n, float *most_out, int64_t *best_out) {
    int64_t best = 0;
    double sum = 0;
    lanes top = lanes_fill(x[0]), none = lanes_fill(0);
    for (int64_t c = 0; c < n; c += LANES)
        top = lanes_max(lanes_first(floats_at(x, c, n - c), n - c, top), top);
    float most = lanes_most(top);
    while (best < n - 1 && x[best] != most)
        best++;
    /* Each lane sums only 16 elements in fp32, which keeps sums precise. */
    for (int64_t c = 0; c < n; c += LANES * LANES) {
        lanes part = none;
        for (int64_t i = c; i < n && i < c + LANES * LANES; i += LANES)
            part += lanes_first(lanes_exp(floats_at(x, i, n - i) - most), n - i, none);
        sum += lanes_add_up(part);
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
        l->loss[r] = l->correct[r] = 0;
        if (l->labels[r] < 0)
            continue;
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
        float *x = l->dlogits + r * n, most = 0, log_of = 0, over = l->d->logit_cap > 0 ? 1 / l->d->logit_cap : 0;
        float slope = 1; /* the cap's slope */
        int64_t best;
        int counts = r < l->count && l->labels[r] >= 0;
        if (counts) {
            log_of = (float)log_sum(x, n, &most, &best);
            slope -= over > 0 ? x[l->labels[r]] * over * (x[l->labels[r]] * over) : 0;
        }
        for (int64_t c = 0; c < n; c += LANES) {
            lanes score = floats_at(x, c, n - c);
            lanes dx = counts ? l->scale * lanes_exp(score - log_of) : lanes_fill(0);
            if (over > 0)
                dx *= 1.0f - score * over * (score * over);
            floats_put(dx, x, c, n - c);
        }
        if (counts)
            x[l->labels[r]] -= l->scale * slope;
        for (int64_t c = 0; l->halves && c < n; c += LANES)
            rows_put(l->d, floats_at(x, c, n - c), l->halves, r * n + c, n - c);
    }
}

void decoder_loss_backward(const decoder *d, float *logits, const int32_t *labels, int64_t rows, int64_t count,
                           float scale, uint16_t *halves) {
    loss l = { .d = d, .dlogits = logits, .labels = labels, .count = count, .scale = scale, .halves = halves };
    ops_parallel(d->o, rows, 4, loss_backward_rows, &l);
}
