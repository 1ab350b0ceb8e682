/* SPDX-License-Identifier: BSD-3-Clause */
/* Operators on rows: column sums, dropout, rotary positions and embedding. */
#include "decoder_rows.h"
#include "tools/models/elementwise.h"
#include "tools/models/parallel.h"
#include "tools/models/philox.h"

enum { COLUMNS = 64 /* least columns per thread */ };

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
