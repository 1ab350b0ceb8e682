/* SPDX-License-Identifier: BSD-3-Clause */
/* Causal attention with grouped queries, by blocks of query rows. Only one block's scores exist at a time. Backward
 * computes them again from the saved log-sum-exp (Dao et al., "FlashAttention", 2022).
 *
 * The table's matmul computes a block's products. They read copies without gaps, because oneDNN is fast only for
 * those. Each thread has products of its own for each shape that a block can have. Keys are padded with zeros to
 * whole vectors. */
#include "decoder_rows.h"
#include "tools/models/parallel.h"
#include <tessera/tessera.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 64 /* query rows */, SPAN = 512 /* keys in one product */ };
enum {
    SCORES, /* [rows, keys] = q k^T, and dy v^T */
    FIRST,  /* [rows, size] = p v, and ds k */
    NEXT,   /* [rows, size] += p v, and ds k */
    KEYS,   /* [keys, size] += ds^T q, and p^T dy */
    KINDS
};

typedef struct {
    int64_t rows, keys;
    ops_matmul *product[KINDS];
} tile;

struct decoder_tiles {
    const decoder *d;
    int64_t keys; /* keys of a sample, padded */
    int32_t threads, n_shapes;
    tile *tiles; /* [thread][shape] */
    uint64_t matmul_bytes, thread_bytes;
};

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Rounds a number of keys up to whole vectors. */
static int64_t filled_up(int64_t keys) {
    return (keys + LANES - 1) / LANES * LANES;
}

/* ---- making products and scratch ------------------------------------------------------------------------- */
static tess_status make_one(decoder_tiles *t, int kind, const tile *of, ops_matmul **out) {
    const decoder *d = t->d;
    uint64_t bytes;
    ops_matmul_shape s = { .rows = of->rows, .depth = of->keys, .columns = d->size, .alone = 1, .factor = d->dtype };
    s.result = TESS_F32;
    if (kind == SCORES)
        s.depth = d->size, s.columns = of->keys, s.turn_b = 1;
    else if (kind == KEYS)
        s.rows = of->keys, s.depth = of->rows, s.turn_a = s.add = 1;
    else
        s.add = kind == NEXT;
    OPS_TRY(d->o->t->matmul_create((ops *)(uintptr_t)d->o, &s, out, &bytes));
    t->matmul_bytes = bytes > t->matmul_bytes ? bytes : t->matmul_bytes;
    return TESS_OK;
}

static tess_status make_tile(decoder_tiles *t, tile *at) {
    for (int kind = 0; kind < KINDS; kind++)
        OPS_TRY(make_one(t, kind, at, &at->product[kind]));
    return TESS_OK;
}

static int32_t find(const tile *tiles, int32_t n, int64_t rows, int64_t keys) {
    for (int32_t i = 0; i < n; i++)
        if (tiles[i].rows == rows && tiles[i].keys == keys)
            return i;
    return -1;
}

/* Lists each shape that occurs, once. */
static int32_t list_shapes(const decoder *d, tile *out) {
    int32_t n = 0;
    for (int64_t i = 0; i < d->time; i += BLOCK)
        for (int64_t rows = least(BLOCK, d->time - i), j = 0; j < i + rows; j += SPAN) {
            int64_t keys = least(SPAN, filled_up(i + rows) - j);
            if (find(out, n, rows, keys) < 0)
                out[n++] = (tile){ .rows = rows, .keys = keys };
        }
    return n;
}

enum { SHAPES = 2 * (SPAN / BLOCK + 2) };

typedef struct { /* one thread's products and scratch */
    const decoder *d;
    const tile *tiles;
    /* Scores and their gradient, a block's result, and gradients of keys and values. */
    float *p, *dp, *rows, *dk, *dv;
    void *p_factor, *ds_factor; /* p and dp rounded to bf16; in fp32 p and dp themselves */
    void *q, *dy, *k, *v;       /* rows of one head, copied without gaps */
    char *scratch;
} worker;

static worker worker_at(const decoder_tiles *t, char **at) {
    const decoder *d = t->d;
    uint64_t block = (uint64_t)(BLOCK * t->keys), head = (uint64_t)(t->keys * d->size);
    worker w = { .d = d };
    w.p = decoder_cut(at, block * sizeof(float));
    w.dp = decoder_cut(at, block * sizeof(float));
    w.p_factor = d->half ? decoder_cut(at, block * d->elem) : w.p;
    w.ds_factor = d->half ? decoder_cut(at, block * d->elem) : w.dp;
    w.rows = decoder_cut(at, (uint64_t)(BLOCK * d->size) * sizeof(float));
    w.dk = decoder_cut(at, head * sizeof(float));
    w.dv = decoder_cut(at, head * sizeof(float));
    w.q = decoder_cut(at, (uint64_t)(BLOCK * d->size) * d->elem);
    w.dy = decoder_cut(at, (uint64_t)(BLOCK * d->size) * d->elem);
    w.k = decoder_cut(at, head * d->elem);
    w.v = decoder_cut(at, head * d->elem);
    w.scratch = decoder_cut(at, t->matmul_bytes);
    return w;
}

static uint64_t thread_bytes(const decoder_tiles *t) {
    char *at = NULL;
    worker_at(t, &at);
    return (uint64_t)(uintptr_t)at;
}

tess_status decoder_tiles_create(decoder *d) {
    decoder_tiles *t = d->tiles = calloc(1, sizeof *t);
    if (!t || !(t->tiles = calloc((size_t)d->o->threads * SHAPES, sizeof *t->tiles)))
        return tess_fail(TESS_E_NOMEM, "out of memory for attention");
    t->d = d;
    t->keys = filled_up(d->time);
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

/* Returns the number of threads whose scratch fits into the first region. */
static int32_t threads_in(const decoder_tiles *t, uint64_t first_bytes) {
    uint64_t n = first_bytes / t->thread_bytes;
    return n < (uint64_t)t->threads ? (int32_t)n : t->threads;
}

uint64_t decoder_attention_rest(const decoder *d, uint64_t first_bytes) {
    const decoder_tiles *t = d->tiles;
    return t->thread_bytes * (uint64_t)(t->threads - threads_in(t, first_bytes));
}

void decoder_tiles_destroy(decoder_tiles *t) {
    for (int32_t i = 0; t && t->tiles && i < t->threads * t->n_shapes; i++)
        for (int kind = 0; kind < KINDS; kind++)
            t->d->o->t->matmul_destroy(t->tiles[i].product[kind]);
    if (t)
        free(t->tiles);
    free(t);
}

/* ---- the work of a thread ----------------------------------------------------------------------------- */
typedef struct {
    const decoder *d;
    const decoder_sight *sight;
    const int32_t *packed; /* decoder_packed's result */
    const void *qkv, *y, *dy;
    void *out;
    float *lse;
    const float *lse_in;
    int64_t rows; /* rows of all samples */
    const decoder_attention_scratch *scratch;
    tess_status *failed;
} attend;

/* Any thread may record a failure. */
static void note_failure(const attend *a) {
    __atomic_store_n(a->failed, TESS_E_DEVICE, __ATOMIC_RELAXED);
}

static worker worker_of(const attend *a, int32_t thread) {
    const decoder_tiles *t = a->d->tiles;
    int32_t in_first = threads_in(t, a->scratch->first ? a->scratch->first_bytes : 0);
    char *at = thread < in_first ? a->scratch->first + (uint64_t)thread * t->thread_bytes
                                 : a->scratch->rest + (uint64_t)(thread - in_first) * t->thread_bytes;
    worker w = worker_at(t, &at);
    w.tiles = t->tiles + thread * t->n_shapes;
    return w;
}

/* Needs no call of memcpy if rows are whole vectors. */
TESS_FN void copy_row(const char *from, char *to, uint64_t bytes) {
    for (; bytes >= sizeof(lanes); bytes -= sizeof(lanes), from += sizeof(lanes), to += sizeof(lanes))
        *(lanes_bits_there *)to = *(const lanes_bits_there *)from;
    if (bytes)
        memcpy(to, from, bytes);
}

/* Copies rows that lie `stride` apart, and fills up with zeros to `all` rows. */
OPS_CLONES static void gather_rows(const decoder *d, const void *from, int64_t stride, int64_t rows, int64_t all,
                                   void *to) {
    uint64_t bytes = (uint64_t)d->size * d->elem, apart = (uint64_t)stride * d->elem;
    for (int64_t r = 0; r < rows; r++)
        copy_row((const char *)from + (uint64_t)r * apart, (char *)to + (uint64_t)r * bytes, bytes);
    memset((char *)to + (uint64_t)rows * bytes, 0, (uint64_t)(all - rows) * bytes);
}

/* Copies the keys and values of a sample that `group` shares. */
static void gather_keys(const attend *a, const worker *w, int64_t b, int64_t group) {
    const decoder *d = a->d;
    decoder_part k = decoder_k(d, a->rows), v = decoder_v(d, a->rows);
    int64_t row = b * d->time, all = d->tiles->keys;
    gather_rows(d, decoder_at(d, a->qkv, k.at + row * k.stride + group * d->size), k.stride, d->time, all, w->k);
    gather_rows(d, decoder_at(d, a->qkv, v.at + row * v.stride + group * d->size), v.stride, d->time, all, w->v);
}

static tess_status multiply(const worker *w, int kind, int64_t rows, int64_t keys, const void *a, const void *b,
                            void *y) {
    const tile *t = &w->tiles[find(w->tiles, w->d->tiles->n_shapes, rows, keys)];
    return w->d->o->t->matmul(t->product[kind], a, b, NULL, y, w->scratch);
}

/* A block of query rows and the keys that it sees: spans from `begin` on. */
typedef struct {
    int64_t rows, begin, columns;
} block;

/* Returns the first key that query row `row` of sample `b` sees, within its document and window. Later rows see no
 * earlier key. */
static int64_t first_key(const attend *a, int64_t b, int64_t row) {
    int64_t near = decoder_first_key(a->sight, row), begin = decoder_begin(a->d, a->packed, b, row);
    return near > begin ? near : begin;
}

static block block_of(const attend *a, int64_t b, int64_t row) {
    int64_t rows = least(BLOCK, a->d->time - row);
    return (block){ rows, first_key(a, b, row) / SPAN * SPAN, filled_up(row + rows) };
}

/* out = x k^T. Scores are stored by spans of keys; a span is [rows, keys] without gaps. */
static tess_status scores(const worker *w, const void *x, const void *k, const block *of, float *out) {
    const decoder *d = w->d;
    for (int64_t j = of->begin; j < of->columns; j += SPAN)
        OPS_TRY(multiply(w, SCORES, of->rows, least(SPAN, of->columns - j), x, decoder_at(d, k, j * d->size),
                         out + j * BLOCK));
    return TESS_OK;
}

/* w->rows[rows, size] = factor · k. */
static tess_status combine(const worker *w, const void *factor, const void *k, const block *of) {
    const decoder *d = w->d;
    for (int64_t j = of->begin; j < of->columns; j += SPAN)
        OPS_TRY(multiply(w, j > of->begin ? NEXT : FIRST, of->rows, least(SPAN, of->columns - j),
                         decoder_at(d, factor, j * BLOCK), decoder_at(d, k, j * d->size), w->rows));
    return TESS_OK;
}

/* out[columns, size] += factor^T · x. */
static tess_status collect(const worker *w, const void *factor, const void *x, const block *of, float *out) {
    const decoder *d = w->d;
    for (int64_t j = of->begin; j < of->columns; j += SPAN)
        OPS_TRY(multiply(w, KEYS, of->rows, least(SPAN, of->columns - j), decoder_at(d, factor, j * BLOCK), x,
                         out + j * d->size));
    return TESS_OK;
}

TESS_FN void store_lanes(int half, int64_t size, float scale, const float *from, void *to, int64_t at) {
    for (int64_t c = 0; c < size; c += LANES)
        rows_to(half, scale * floats_at(from, c, size - c), to, at + c, size - c);
}

/* Stores each row times its scale; scales null: unscaled. */
OPS_CLONES static void store_rows(const decoder *d, const float *from, const float *scales, void *to, int64_t at,
                                  int64_t rows, int64_t stride) {
    int64_t size = d->size;
    int half = d->half;
    for (int64_t r = 0; r < rows; r++) {
        float scale = scales ? scales[r] : 1;
        BY_FORMAT(half, store_lanes, size, scale, from + r * size, to, at + r * stride);
    }
}

/* ---- forward ---------------------------------------------------------------------------------------- */
typedef struct { /* a row of a block's scores: of `columns` it sees those from `first` to n */
    int64_t row, first, n, begin, columns;
    float scale; /* the scale that is still to be applied: 1 for capped scores */
} seen;

static seen seen_of(const attend *a, const block *of) {
    return (seen){ .begin = of->begin, .columns = of->columns, .scale = a->sight->cap > 0 ? 1 : a->sight->scale };
}

static void look(seen *s, const attend *a, int64_t b, int64_t first_row, int64_t row) {
    s->row = row;
    s->first = first_key(a, b, first_row + row);
    s->n = first_row + row + 1;
}

/* Returns where score j of the row lies. */
TESS_FN int64_t place_of(const seen *s, int64_t j) {
    int64_t span = j / SPAN * SPAN, keys = s->columns - span < SPAN ? s->columns - span : SPAN;
    return span * BLOCK + s->row * keys + (j - span);
}

/* One span of a row: its `keys` scores start at `at`, and the row sees those from `first` to n. */
typedef struct {
    int64_t at, first, n, keys;
} part;

TESS_FN part part_of(const seen *s, int64_t span) {
    int64_t n = s->n - span < SPAN ? s->n - span : SPAN, keys = s->columns - span < SPAN ? s->columns - span : SPAN;
    int64_t first = s->first - span < keys ? s->first - span : keys;
    return (part){ place_of(s, span), first > 0 ? first : 0, n > 0 ? n : 0, keys };
}

/* Keeps those of 16 scores from j on that the row sees, and replaces the others by `none`. */
TESS_FN lanes seen_lanes(lanes x, const part *of, int64_t j, lanes none) {
    return lanes_first(lanes_from(x, of->first - j, none), of->n - j, none);
}

TESS_FN float most_of(const float *p, const seen *s) {
    lanes top = lanes_fill(p[place_of(s, s->first)]);
    for (int64_t span = s->begin; span < s->n; span += SPAN) {
        part x = part_of(s, span);
        int64_t j = x.first / LANES * LANES;
        if (x.first % LANES) {
            top = lanes_max(seen_lanes(lanes_load(0, p + x.at + j), &x, j, top), top);
            j += LANES;
        }
        for (; j + LANES <= x.n; j += LANES)
            top = lanes_max(lanes_load(0, p + x.at + j), top);
        if (j < x.n)
            top = lanes_max(lanes_first(lanes_load(0, p + x.at + j), x.n - j, top), top);
    }
    return lanes_most(top);
}

/* Replaces a block's scores by cap · tanh(scale · score / cap). */
OPS_CLONES static void cap_scores(const block *of, float scale, float cap, float *p) {
    for (int64_t j = of->begin; j < of->columns; j += SPAN)
        for (int64_t i = 0, n = of->rows * least(SPAN, of->columns - j); i < n; i += LANES) {
            float *at = p + j * BLOCK + i;
            lanes_store(0, cap * lanes_tanh(lanes_load(0, at) * (scale / cap)), at);
        }
}

static tess_status scores_of_queries(const attend *a, const worker *w, const block *of) {
    OPS_TRY(scores(w, w->q, w->k, of, w->p));
    if (a->sight->cap > 0)
        cap_scores(of, a->sight->scale, a->sight->cap, w->p);
    return TESS_OK;
}

/* Writes exponentials of the scores that the row sees, and 0 for the others. Returns one over their sum, and writes
 * the log-sum-exp. */
TESS_FN float softmax_lanes(int half, const float *p, void *factor, const seen *s, float *lse) {
    lanes sums = lanes_fill(0), none = sums;
    float most = s->scale * most_of(p, s);
    for (int64_t span = s->begin; span < s->columns; span += SPAN) {
        part x = part_of(s, span);
        int64_t j = 0;
        for (; j < x.first; j += LANES) {
            lanes e = seen_lanes(lanes_exp(s->scale * lanes_load(0, p + x.at + j) - most), &x, j, none);
            sums += e;
            rows_to(half, e, factor, x.at + j, LANES);
        }
        for (; j + LANES <= x.n; j += LANES) {
            lanes e = lanes_exp(s->scale * lanes_load(0, p + x.at + j) - most);
            sums += e;
            rows_to(half, e, factor, x.at + j, LANES);
        }
        for (; j < x.keys; j += LANES) {
            lanes e = j >= x.n ? none : lanes_exp(s->scale * lanes_load(0, p + x.at + j) - most);
            e = lanes_first(e, x.n - j, none);
            sums += e;
            rows_to(half, e, factor, x.at + j, LANES);
        }
    }
    float sum = lanes_sum(sums);
    *lse = most + (float)log((double)sum);
    return 1.0f / sum;
}

/* Works on a copy of the parameters: the compiler must reload memory that a vector store may overwrite. Backward
 * does too. */
OPS_CLONES static float softmax_row(const decoder *d, const float *p, void *factor, const seen *of, float *lse) {
    const seen s = *of;
    return BY_FORMAT(d->half, softmax_lanes, p, factor, &s, lse);
}

/* Computes head `h` of sample `b`, whose keys and values are already in w. */
static tess_status attend_head(const attend *a, const worker *w, int64_t b, int64_t h) {
    const decoder *d = a->d;
    decoder_part q = decoder_q(d);
    float over[BLOCK]; /* one over each row's sum of exponentials */
    for (int64_t i = 0; i < d->time; i += BLOCK) {
        const block of = block_of(a, b, i);
        int64_t row = b * d->time + i;
        seen s = seen_of(a, &of);
        gather_rows(d, decoder_at(d, a->qkv, q.at + row * q.stride + h * d->size), q.stride, of.rows, of.rows, w->q);
        OPS_TRY(scores_of_queries(a, w, &of));
        for (int64_t r = 0; r < of.rows; r++) {
            look(&s, a, b, i, r);
            over[r] = softmax_row(d, w->p, w->p_factor, &s, &a->lse[(b * d->heads + h) * d->time + i + r]);
        }
        OPS_TRY(combine(w, w->p_factor, w->v, &of));
        store_rows(d, w->rows, over, a->out, row * d->q_width + h * d->size, of.rows, d->q_width);
    }
    return TESS_OK;
}

/* Computes all query heads that share the keys and values of `group`. */
static tess_status attend_group(const attend *a, const worker *w, int64_t b, int64_t group) {
    int64_t share = a->d->heads / a->d->kv_heads;
    gather_keys(a, w, b, group);
    for (int64_t h = group * share; h < (group + 1) * share; h++)
        OPS_TRY(attend_head(a, w, b, h));
    return TESS_OK;
}

static void attend_groups(void *arg, int32_t thread, int64_t first, int64_t last) {
    const attend *a = arg;
    worker w = worker_of(a, thread);
    for (int64_t n = first; n < last; n++)
        if (attend_group(a, &w, n / a->d->kv_heads, n % a->d->kv_heads) != TESS_OK)
            note_failure(a);
}

tess_status decoder_attention(const decoder *d, const decoder_sight *sight, int64_t samples, const int32_t *packed,
                              const void *qkv, void *y, float *lse, const decoder_attention_scratch *scratch) {
    tess_status failed = TESS_OK;
    attend a = { .d = d, .sight = sight, .packed = packed, .qkv = qkv, .out = y, .lse = lse, .scratch = scratch };
    a.failed = &failed;
    a.rows = samples * d->time;
    ops_parallel(d->o, samples * d->kv_heads, 1, attend_groups, &a);
    return failed;
}

/* ---- backward --------------------------------------------------------------------------------------- */
/* Turns scores into probabilities, and dp = dy v^T into ds = scale · p (dp - y·dy). A cap multiplies ds by its
 * slope. */
typedef struct {
    float lse, dot, slope, cap; /* slope: the scale of the original scores */
} slopes;

TESS_FN lanes softmax_slope(int capped, const worker *w, const seen *s, int64_t at, const slopes *of, lanes *p) {
    lanes score = lanes_load(0, w->p + at);
    *p = lanes_exp(s->scale * score - of->lse);
    lanes ds = of->slope * *p * (lanes_load(0, w->dp + at) - of->dot);
    return capped ? ds * (1.0f - score * score * (1.0f / (of->cap * of->cap))) : ds;
}

TESS_FN void softmax_backward_lanes(int half, int capped, const worker *w, const seen *s, const slopes *of) {
    lanes none = lanes_fill(0), p = none, ds = none;
    for (int64_t span = s->begin; span < s->columns; span += SPAN) {
        part x = part_of(s, span);
        int64_t j = 0;
        for (; j < x.first; j += LANES) {
            ds = softmax_slope(capped, w, s, x.at + j, of, &p);
            rows_to(half, seen_lanes(p, &x, j, none), w->p_factor, x.at + j, LANES);
            rows_to(half, seen_lanes(ds, &x, j, none), w->ds_factor, x.at + j, LANES);
        }
        for (; j + LANES <= x.n; j += LANES) {
            ds = softmax_slope(capped, w, s, x.at + j, of, &p);
            rows_to(half, p, w->p_factor, x.at + j, LANES);
            rows_to(half, ds, w->ds_factor, x.at + j, LANES);
        }
        for (; j < x.keys; j += LANES) {
            if (j < x.n)
                ds = softmax_slope(capped, w, s, x.at + j, of, &p);
            rows_to(half, lanes_first(p, x.n - j, none), w->p_factor, x.at + j, LANES);
            rows_to(half, lanes_first(ds, x.n - j, none), w->ds_factor, x.at + j, LANES);
        }
    }
}

OPS_CLONES static void softmax_backward_row(const worker *from, const seen *of, const slopes *with) {
    const worker w = *from;
    const seen s = *of;
    const slopes by = *with;
    if (by.cap > 0)
        BY_FORMAT(w.d->half, softmax_backward_lanes, 1, &w, &s, &by);
    else
        BY_FORMAT(w.d->half, softmax_backward_lanes, 0, &w, &s, &by);
}

TESS_FN float dot_of_lanes(int half, const void *x, const void *y, int64_t at, int64_t size) {
    lanes sums = lanes_fill(0);
    for (int64_t c = 0; c < size; c += LANES)
        sums += rows_of(half, x, at + c, size - c) * rows_of(half, y, at + c, size - c);
    return lanes_sum(sums);
}

OPS_CLONES static float dot_of_rows(const decoder *d, const void *x, const void *y, int64_t at) {
    return BY_FORMAT(d->half, dot_of_lanes, x, y, at, d->size);
}

static tess_status block_backward(const attend *a, const worker *w, int64_t b, int64_t h, int64_t i) {
    const decoder *d = a->d;
    decoder_part q = decoder_q(d);
    const block of = block_of(a, b, i);
    int64_t row = b * d->time + i, at = row * d->q_width + h * d->size, from = q.at + row * q.stride + h * d->size;
    seen s = seen_of(a, &of);
    slopes by = { .slope = a->sight->scale, .cap = a->sight->cap };
    gather_rows(d, decoder_at(d, a->qkv, from), q.stride, of.rows, of.rows, w->q);
    gather_rows(d, decoder_at(d, a->dy, at), d->q_width, of.rows, of.rows, w->dy);
    OPS_TRY(scores_of_queries(a, w, &of));
    OPS_TRY(scores(w, w->dy, w->v, &of, w->dp));
    for (int64_t r = 0; r < of.rows; r++) {
        look(&s, a, b, i, r);
        by.lse = a->lse_in[(b * d->heads + h) * d->time + i + r];
        by.dot = dot_of_rows(d, a->y, a->dy, at + r * d->q_width);
        softmax_backward_row(w, &s, &by);
    }
    OPS_TRY(combine(w, w->ds_factor, w->k, &of));
    store_rows(d, w->rows, NULL, a->out, from, of.rows, q.stride);
    OPS_TRY(collect(w, w->ds_factor, w->q, &of, w->dk));
    return collect(w, w->p_factor, w->dy, &of, w->dv);
}

/* Computes all query heads that share keys and values; each block adds to the gradients of those. */
static tess_status group_backward(const attend *a, const worker *w, int64_t b, int64_t group) {
    const decoder *d = a->d;
    decoder_part k = decoder_k(d, a->rows), v = decoder_v(d, a->rows);
    int64_t share = d->heads / d->kv_heads, row = b * d->time;
    uint64_t bytes = (uint64_t)(d->tiles->keys * d->size) * sizeof(float);
    gather_keys(a, w, b, group);
    memset(w->dk, 0, bytes);
    memset(w->dv, 0, bytes);
    for (int64_t h = group * share; h < (group + 1) * share; h++)
        for (int64_t i = 0; i < d->time; i += BLOCK)
            OPS_TRY(block_backward(a, w, b, h, i));
    store_rows(d, w->dk, NULL, a->out, k.at + row * k.stride + group * d->size, d->time, k.stride);
    store_rows(d, w->dv, NULL, a->out, v.at + row * v.stride + group * d->size, d->time, v.stride);
    return TESS_OK;
}

static void backward_groups(void *arg, int32_t thread, int64_t first, int64_t last) {
    const attend *a = arg;
    worker w = worker_of(a, thread);
    for (int64_t n = first; n < last; n++)
        if (group_backward(a, &w, n / a->d->kv_heads, n % a->d->kv_heads) != TESS_OK)
            note_failure(a);
}

tess_status decoder_attention_backward(const decoder *d, const decoder_sight *sight, int64_t samples,
                                       const int32_t *packed, const void *qkv, const void *y, const float *lse,
                                       const void *dy, void *dqkv, const decoder_attention_scratch *scratch) {
    tess_status failed = TESS_OK;
    attend a = { .d = d, .sight = sight, .packed = packed, .qkv = qkv, .y = y, .dy = dy, .out = dqkv, .lse_in = lse };
    a.scratch = scratch;
    a.failed = &failed;
    a.rows = samples * d->time;
    ops_parallel(d->o, samples * d->kv_heads, 1, backward_groups, &a);
    return failed;
}
