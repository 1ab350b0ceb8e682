/* SPDX-License-Identifier: BSD-3-Clause */
/* Causal attention with grouped queries, by blocks of query rows: the scores of one block exist at a time, and backward
 * makes them again from the saved log-sum-exp (Dao et al., "FlashAttention", 2022). Products of a block are the
 * table's, on tensors where they lie; each thread has its own, for every shape that a block can have. */
#include "decoder_rows.h"
#include "tools/models/ops_formulas.h"
#include "tools/models/parallel.h"
#include <tessera/tessera.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 64 /* query rows */, SPAN = 512 /* keys in one product */ };
enum {
    SCORES, /* [rows, keys] = q k^T, and dy v^T */
    FIRST,  /* [rows, size] = p v, and ds k */
    NEXT,   /* the same, added to it */
    KEYS,   /* [keys, size] += ds^T q, and p^T dy */
    KINDS
};

typedef struct {
    int64_t rows, keys;
    ops_matmul *q[KINDS], *y[KINDS]; /* a head's rows lie as far apart as in qkv, or as in y */
} tile;

struct decoder_tiles {
    const decoder *d;
    int32_t threads, n_shapes;
    tile *tiles; /* [thread][shape] */
    uint64_t matmul_bytes, thread_bytes;
};

/* ---- making ---------------------------------------------------------------------------------------- */
static tess_status make_one(decoder_tiles *t, int kind, const tile *of, int64_t stride, ops_matmul **out) {
    const decoder *d = t->d;
    uint64_t bytes;
    ops_matmul_shape s = { .rows = of->rows, .depth = of->keys, .columns = d->size, .alone = 1, .factor = d->dtype };
    s.result = TESS_F32;
    if (kind == SCORES) {
        s.depth = d->size, s.columns = of->keys, s.turn_b = 1;
        s.a_stride = stride, s.b_stride = d->qkv_width, s.y_stride = d->time;
    } else if (kind == KEYS) {
        s.rows = of->keys, s.depth = of->rows, s.turn_a = s.add = 1;
        s.a_stride = d->time, s.b_stride = stride;
    } else {
        s.a_stride = d->time, s.b_stride = d->qkv_width, s.add = kind == NEXT;
    }
    OPS_TRY(d->o->t->matmul_create((ops *)(uintptr_t)d->o, &s, out, &bytes));
    t->matmul_bytes = bytes > t->matmul_bytes ? bytes : t->matmul_bytes;
    return TESS_OK;
}

static tess_status make_tile(decoder_tiles *t, tile *at) {
    const decoder *d = t->d;
    for (int kind = 0; kind < KINDS; kind++)
        OPS_TRY(make_one(t, kind, at, d->qkv_width, &at->q[kind]));
    OPS_TRY(make_one(t, SCORES, at, d->q_width, &at->y[SCORES]));
    return make_one(t, KEYS, at, d->q_width, &at->y[KEYS]);
}

static int32_t find(const tile *tiles, int32_t n, int64_t rows, int64_t keys) {
    for (int32_t i = 0; i < n; i++)
        if (tiles[i].rows == rows && tiles[i].keys == keys)
            return i;
    return -1;
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Every shape that occurs. */
static int32_t list_shapes(const decoder *d, tile *out) {
    int32_t n = 0;
    for (int64_t i = 0; i < d->time; i += BLOCK)
        for (int64_t rows = least(BLOCK, d->time - i), j = 0; j < i + rows; j += SPAN) {
            int64_t keys = least(SPAN, i + rows - j);
            if (find(out, n, rows, keys) < 0)
                out[n++] = (tile){ .rows = rows, .keys = keys };
        }
    return n;
}

enum { SHAPES = 2 * (SPAN / BLOCK + 2) };

/* scores and their gradient in fp32, both as factors, a block's rows, keys' and values' gradients, sums of rows. */
static uint64_t thread_bytes(const decoder_tiles *t) {
    const decoder *d = t->d;
    uint64_t block = ops_align((uint64_t)(BLOCK * d->time) * sizeof(float));
    uint64_t factors = d->half ? ops_align((uint64_t)(BLOCK * d->time) * d->elem) : 0;
    uint64_t keys = ops_align((uint64_t)(d->time * d->size) * sizeof(float));
    return 2 * block + 2 * factors + ops_align((uint64_t)(BLOCK * d->size) * sizeof(float)) + 2 * keys +
           ops_align(t->matmul_bytes);
}

tess_status decoder_tiles_create(decoder *d) {
    decoder_tiles *t = d->tiles = calloc(1, sizeof *t);
    if (!t || !(t->tiles = calloc((size_t)d->o->threads * SHAPES, sizeof *t->tiles)))
        return tess_fail(TESS_E_NOMEM, "out of memory for attention");
    t->d = d;
    t->n_shapes = list_shapes(d, t->tiles);
    t->threads = d->o->threads;
    for (int32_t i = t->n_shapes; i < t->threads * t->n_shapes; i++)
        t->tiles[i] = (tile){ .rows = t->tiles[i % t->n_shapes].rows, .keys = t->tiles[i % t->n_shapes].keys };
    for (int32_t i = 0; i < t->threads * t->n_shapes; i++)
        OPS_TRY(make_tile(t, &t->tiles[i]));
    t->thread_bytes = thread_bytes(t);
    d->attention_bytes = t->thread_bytes * (uint64_t)t->threads;
    return TESS_OK;
}

void decoder_tiles_destroy(decoder_tiles *t) {
    for (int32_t i = 0; t && t->tiles && i < t->threads * t->n_shapes; i++)
        for (int kind = 0; kind < KINDS; kind++) {
            t->d->o->t->matmul_destroy(t->tiles[i].q[kind]);
            t->d->o->t->matmul_destroy(t->tiles[i].y[kind]);
        }
    if (t)
        free(t->tiles);
    free(t);
}

/* ---- a thread at work ------------------------------------------------------------------------------- */
typedef struct {
    const decoder *d;
    const tile *tiles;
    float *p, *dp, *rows, *dk, *dv;
    void *p_factor, *ds_factor; /* p and dp themselves in fp32 */
    char *scratch;
} worker;

typedef struct {
    const decoder *d;
    const void *qkv, *y, *dy;
    void *out;
    float *lse;
    const float *lse_in;
    char *scratch;
    tess_status *failed;
} attend;

static worker worker_of(const attend *a, int32_t thread) {
    const decoder *d = a->d;
    const decoder_tiles *t = d->tiles;
    char *at = a->scratch + (uint64_t)thread * t->thread_bytes;
    uint64_t block = (uint64_t)(BLOCK * d->time);
    worker w = { .d = d, .tiles = t->tiles + thread * t->n_shapes };
    w.p = decoder_cut(&at, block * sizeof(float));
    w.dp = decoder_cut(&at, block * sizeof(float));
    w.p_factor = d->half ? decoder_cut(&at, block * d->elem) : w.p;
    w.ds_factor = d->half ? decoder_cut(&at, block * d->elem) : w.dp;
    w.rows = decoder_cut(&at, (uint64_t)(BLOCK * d->size) * sizeof(float));
    w.dk = decoder_cut(&at, (uint64_t)(d->time * d->size) * sizeof(float));
    w.dv = decoder_cut(&at, (uint64_t)(d->time * d->size) * sizeof(float));
    w.scratch = at;
    return w;
}

static tess_status multiply(const worker *w, ops_matmul *m, const void *a, const void *b, void *y) {
    return w->d->o->t->matmul(m, a, b, NULL, y, w->scratch);
}

static const tile *tile_of(const worker *w, int64_t rows, int64_t keys) {
    return &w->tiles[find(w->tiles, w->d->tiles->n_shapes, rows, keys)];
}

/* out[rows, columns] = x k^T: x is `stride` apart from row to row, as queries or as results. */
static tess_status scores(const worker *w, const void *x, int is_query, const void *k, int64_t rows, int64_t columns,
                          float *out) {
    for (int64_t j = 0; j < columns; j += SPAN) {
        const tile *t = tile_of(w, rows, least(SPAN, columns - j));
        OPS_TRY(
            multiply(w, is_query ? t->q[SCORES] : t->y[SCORES], x, decoder_at(w->d, k, j * w->d->qkv_width), out + j));
    }
    return TESS_OK;
}

/* w->rows[rows, size] = factor · k. */
static tess_status combine(const worker *w, const void *factor, const void *k, int64_t rows, int64_t columns) {
    for (int64_t j = 0; j < columns; j += SPAN) {
        const tile *t = tile_of(w, rows, least(SPAN, columns - j));
        OPS_TRY(multiply(w, t->q[j ? NEXT : FIRST], decoder_at(w->d, factor, j),
                         decoder_at(w->d, k, j * w->d->qkv_width), w->rows));
    }
    return TESS_OK;
}

/* out[columns, size] += factor^T · x. */
static tess_status collect(const worker *w, const void *factor, const void *x, int is_query, int64_t rows,
                           int64_t columns, float *out) {
    for (int64_t j = 0; j < columns; j += SPAN) {
        const tile *t = tile_of(w, rows, least(SPAN, columns - j));
        OPS_TRY(multiply(w, is_query ? t->q[KEYS] : t->y[KEYS], decoder_at(w->d, factor, j), x, out + j * w->d->size));
    }
    return TESS_OK;
}

static void store_rows(const decoder *d, const float *from, void *to, int64_t at, int64_t rows, int64_t stride) {
    for (int64_t r = 0; r < rows; r++)
        if (d->half)
            rows_out(d, from + r * d->size, to, at + r * stride, d->size);
        else
            memcpy((float *)to + at + r * stride, from + r * d->size, (size_t)d->size * sizeof(float));
}

/* ---- forward ---------------------------------------------------------------------------------------- */
/* Makes probabilities of the `n` scores that the row may see, and 0 of the others. Returns the logarithm of their sum.
 */
OPS_CLONES static float softmax_row(const decoder *d, float *row, void *factor, int64_t n, int64_t columns,
                                    float scale) {
    float most = row[0];
    double sum = 0;
    for (int64_t j = 1; j < n; j++)
        most = row[j] > most ? row[j] : most;
    for (int64_t j = 0; j < n; j++)
        row[j] = ops_exp(scale * row[j] - scale * most);
    for (int64_t j = 0; j < n; j++)
        sum += row[j];
    float over = (float)(1.0 / sum);
    for (int64_t j = 0; j < n; j++)
        row[j] *= over;
    for (int64_t j = n; j < columns; j++)
        row[j] = 0;
    rows_out(d, row, factor, 0, columns);
    return scale * most + (float)log(sum);
}

/* Head `h` of sample `b`. */
static tess_status attend_head(const attend *a, const worker *w, int64_t b, int64_t h) {
    const decoder *d = a->d;
    int64_t group = h / (d->heads / d->kv_heads), base = b * d->time * d->qkv_width;
    const void *k = decoder_at(d, a->qkv, base + d->q_width + group * d->size), *v = decoder_at(d, k, d->kv_width);
    float scale = (float)(1.0 / sqrt((double)d->size));
    for (int64_t i = 0; i < d->time; i += BLOCK) {
        int64_t rows = least(BLOCK, d->time - i), columns = i + rows;
        OPS_TRY(scores(w, decoder_at(d, a->qkv, base + i * d->qkv_width + h * d->size), 1, k, rows, columns, w->p));
        for (int64_t r = 0; r < rows; r++)
            a->lse[(b * d->heads + h) * d->time + i + r] =
                softmax_row(d, w->p + r * d->time, decoder_at(d, w->p_factor, r * d->time), i + r + 1, columns, scale);
        OPS_TRY(combine(w, w->p_factor, v, rows, columns));
        store_rows(d, w->rows, a->out, (b * d->time + i) * d->q_width + h * d->size, rows, d->q_width);
    }
    return TESS_OK;
}

static void attend_heads(void *arg, int32_t thread, int64_t first, int64_t last) {
    const attend *a = arg;
    worker w = worker_of(a, thread);
    for (int64_t n = first; n < last; n++)
        if (attend_head(a, &w, n / a->d->heads, n % a->d->heads) != TESS_OK)
            *a->failed = TESS_E_DEVICE;
}

tess_status decoder_attention(const decoder *d, int64_t samples, const void *qkv, void *y, float *lse, void *scratch) {
    tess_status failed = TESS_OK;
    attend a = { .d = d, .qkv = qkv, .out = y, .lse = lse, .scratch = scratch, .failed = &failed };
    ops_parallel(d->o, samples * d->heads, 1, attend_heads, &a);
    return failed;
}

/* ---- backward --------------------------------------------------------------------------------------- */
/* From scores and dp = dy v^T: the probabilities, and ds = scale · p (dp - y·dy). */
OPS_CLONES static void softmax_backward_row(const decoder *d, float *p, float *dp, void *p_factor, void *ds_factor,
                                            int64_t n, int64_t columns, float scale, float lse, float dot) {
    for (int64_t j = 0; j < n; j++) {
        p[j] = ops_exp(scale * p[j] - lse);
        dp[j] = scale * p[j] * (dp[j] - dot);
    }
    for (int64_t j = n; j < columns; j++)
        p[j] = dp[j] = 0;
    rows_out(d, p, p_factor, 0, columns);
    rows_out(d, dp, ds_factor, 0, columns);
}

static float dot_of_rows(const decoder *d, const void *x, const void *y, int64_t at) {
    float sum = 0, room[2][BLOCK];
    for (int64_t c = 0; c < d->size; c += BLOCK) {
        int64_t n = least(BLOCK, d->size - c);
        const float *a = rows_in(d, x, at + c, n, room[0]), *b = rows_in(d, y, at + c, n, room[1]);
        for (int64_t i = 0; i < n; i++)
            sum += a[i] * b[i];
    }
    return sum;
}

static tess_status block_backward(const attend *a, const worker *w, int64_t b, int64_t h, int64_t i) {
    const decoder *d = a->d;
    int64_t group = h / (d->heads / d->kv_heads), base = b * d->time * d->qkv_width;
    int64_t rows = least(BLOCK, d->time - i), columns = i + rows, from = base + i * d->qkv_width + h * d->size;
    int64_t at = (b * d->time + i) * d->q_width + h * d->size;
    const void *k = decoder_at(d, a->qkv, base + d->q_width + group * d->size), *v = decoder_at(d, k, d->kv_width);
    const void *q = decoder_at(d, a->qkv, from), *dy = decoder_at(d, a->dy, at);
    float scale = (float)(1.0 / sqrt((double)d->size));
    OPS_TRY(scores(w, q, 1, k, rows, columns, w->p));
    OPS_TRY(scores(w, dy, 0, v, rows, columns, w->dp));
    for (int64_t r = 0; r < rows; r++)
        softmax_backward_row(d, w->p + r * d->time, w->dp + r * d->time, decoder_at(d, w->p_factor, r * d->time),
                             decoder_at(d, w->ds_factor, r * d->time), i + r + 1, columns, scale,
                             a->lse_in[(b * d->heads + h) * d->time + i + r],
                             dot_of_rows(d, a->y, a->dy, at + r * d->q_width));
    OPS_TRY(combine(w, w->ds_factor, k, rows, columns));
    store_rows(d, w->rows, a->out, from, rows, d->qkv_width);
    OPS_TRY(collect(w, w->ds_factor, q, 1, rows, columns, w->dk));
    return collect(w, w->p_factor, dy, 0, rows, columns, w->dv);
}

/* All query heads that share keys and values, which collect from every block after them. */
static tess_status group_backward(const attend *a, const worker *w, int64_t b, int64_t group) {
    const decoder *d = a->d;
    int64_t share = d->heads / d->kv_heads, at = b * d->time * d->qkv_width + d->q_width + group * d->size;
    memset(w->dk, 0, (size_t)(d->time * d->size) * sizeof(float));
    memset(w->dv, 0, (size_t)(d->time * d->size) * sizeof(float));
    for (int64_t h = group * share; h < (group + 1) * share; h++)
        for (int64_t i = 0; i < d->time; i += BLOCK)
            OPS_TRY(block_backward(a, w, b, h, i));
    store_rows(d, w->dk, a->out, at, d->time, d->qkv_width);
    store_rows(d, w->dv, a->out, at + d->kv_width, d->time, d->qkv_width);
    return TESS_OK;
}

static void backward_groups(void *arg, int32_t thread, int64_t first, int64_t last) {
    const attend *a = arg;
    worker w = worker_of(a, thread);
    for (int64_t n = first; n < last; n++)
        if (group_backward(a, &w, n / a->d->kv_heads, n % a->d->kv_heads) != TESS_OK)
            *a->failed = TESS_E_DEVICE;
}

tess_status decoder_attention_backward(const decoder *d, int64_t samples, const void *qkv, const void *y,
                                       const float *lse, const void *dy, void *dqkv, void *scratch) {
    tess_status failed = TESS_OK;
    attend a = { .d = d, .qkv = qkv, .y = y, .dy = dy, .out = dqkv, .lse_in = lse, .scratch = scratch };
    a.failed = &failed;
    ops_parallel(d->o, samples * d->kv_heads, 1, backward_groups, &a);
    return failed;
}
