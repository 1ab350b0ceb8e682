/* SPDX-License-Identifier: BSD-3-Clause */
/* The operators that work on rows or images: pooling, layer normalisation, cross entropy and embedding. */
#include "elementwise.h"
#include "ops_formulas.h"
#include "parallel.h"

#include <math.h>
#include <string.h>

typedef struct {
    const ops_conv_shape *s;
    const float *x, *y, *dy;
    float *out;
    uint8_t *which;
    const uint8_t *chosen;
    float scale;
} pool;

/* A tile holds some places and channels of one image. Images are NHWC but pooling writes NCHW, so the tile
 * transposes. */
enum { PLACES = 16, SIDE = 64 };
typedef struct {
    float value[PLACES][SIDE];
    uint8_t which[PLACES][SIDE];
} pool_tile;

typedef struct { /* places at … and channels i … of image n */
    int64_t n, at, places, i, channels;
} pool_part;

/* Calls `turn` for every part of images first … last-1. */
TESS_FN void for_each_part(const pool *p, int64_t first, int64_t last, void (*turn)(const pool *, const pool_part *)) {
    int64_t places = (int64_t)(p->s->height / 2) * (p->s->width / 2), c = p->s->channels;
    for (int64_t n = first; n < last; n++)
        for (int64_t at = 0; at < places; at += PLACES)
            for (int64_t i = 0; i < c; i += SIDE)
                turn(p, &(pool_part){ n, at, places - at < PLACES ? places - at : PLACES, i,
                                      c - i < SIDE ? c - i : SIDE });
}

/* Returns the index in NHWC of window place `k` of pooled place `at`, at the part's first channel. */
TESS_FN int64_t window_at(const pool *p, const pool_part *t, int64_t at, int k) {
    int64_t w = p->s->width / 2, c = p->s->channels, image = (int64_t)p->s->height * p->s->width * c;
    return t->n * image + ops_window_place(p->s->width, c, at / w, at % w, k) + t->i;
}

/* Returns the index in NCHW of the part's first place in its channel i. */
TESS_FN int64_t pooled_at(const pool *p, const pool_part *t, int64_t i) {
    int64_t places = (int64_t)(p->s->height / 2) * (p->s->width / 2);
    return (t->n * p->s->channels + t->i + i) * places + t->at;
}

/* The first of equal values wins, as in PyTorch. */
TESS_FN void largest_of(const pool *p, const pool_part *t, int64_t k, pool_tile *tile) {
    float *value = tile->value[k];
    uint8_t *which = tile->which[k];
    memcpy(value, p->x + window_at(p, t, t->at + k, 0), (size_t)t->channels * sizeof *value);
    memset(which, 0, (size_t)t->channels);
    for (int place = 1; place < 4; place++) {
        const float *x = p->x + window_at(p, t, t->at + k, place);
        for (int64_t i = 0; i < t->channels; i++) {
            int more = x[i] > value[i];
            value[i] = more ? x[i] : value[i];
            which[i] = more ? (uint8_t)place : which[i];
        }
    }
}

OPS_CLONES static void pool_turn(const pool *p, const pool_part *t) {
    pool_tile tile;
    for (int64_t k = 0; k < t->places; k++)
        largest_of(p, t, k, &tile);
    for (int64_t i = 0; i < t->channels; i++) {
        int64_t to = pooled_at(p, t, i);
        for (int64_t k = 0; k < t->places; k++)
            p->out[to + k] = tile.value[k][i];
        for (int64_t k = 0; p->which && k < t->places; k++)
            p->which[to + k] = tile.which[k][i];
    }
}

static void pool_images(void *arg, int32_t thread, int64_t first, int64_t last) {
    (void)thread;
    for_each_part(arg, first, last, pool_turn);
}

tess_status ops_cpu_maxpool(ops *o, const float *x, const ops_conv_shape *s, float *y, uint8_t *which) {
    pool p = { .s = s, .x = x, .out = y, .which = which };
    ops_parallel(o, s->batch, 1, pool_images, &p);
    return TESS_OK;
}

/* Writes all four places of a window. */
OPS_CLONES static void unpool_turn(const pool *p, const pool_part *t) {
    pool_tile tile;
    for (int64_t i = 0; i < t->channels; i++) {
        int64_t from = pooled_at(p, t, i);
        for (int64_t k = 0; k < t->places; k++) {
            float dx = p->scale * p->dy[from + k];
            tile.value[k][i] = p->y[from + k] > 0 ? dx : 0;
            tile.which[k][i] = p->chosen[from + k];
        }
    }
    for (int64_t k = 0; k < t->places; k++)
        for (int place = 0; place < 4; place++) {
            float *out = p->out + window_at(p, t, t->at + k, place);
            for (int64_t i = 0; i < t->channels; i++)
                out[i] = tile.which[k][i] == place ? tile.value[k][i] : 0;
        }
}

static void unpool_images(void *arg, int32_t thread, int64_t first, int64_t last) {
    const pool *p = arg;
    int64_t image = (int64_t)p->s->height * p->s->width * p->s->channels;
    (void)thread;
    if (p->s->height % 2 || p->s->width % 2) /* an odd last row or column belongs to no window */
        memset(p->out + first * image, 0, (size_t)((last - first) * image) * sizeof *p->out);
    for_each_part(p, first, last, unpool_turn);
}

tess_status ops_cpu_maxpool_backward(ops *o, const float *y, const uint8_t *which, const float *dy,
                                     const ops_conv_shape *s, float *dx, float scale) {
    pool p = { .s = s, .y = y, .dy = dy, .out = dx, .chosen = which, .scale = scale };
    ops_parallel(o, s->batch, 1, unpool_images, &p);
    return TESS_OK;
}

typedef struct {
    const float *x, *w, *b, *dy;
    float *y, *stats, *dw, *db;
    uint64_t rows, width;
} norm;

enum { LANES = OPS_LANES }; /* number of partial sums, the same for each instruction set */

static double add_lanes(const float *lane) {
    double sum = 0;
    for (int i = 0; i < LANES; i++)
        sum += lane[i];
    return sum;
}

/* Computes the mean of x, and from it 1/sqrt(variance + eps). */
OPS_CLONES static void row_stats(const float *x, uint64_t width, float *mean_out, float *rsigma_out) {
    float lane[LANES] = { 0 }, square[LANES] = { 0 };
    uint64_t whole = width / LANES * LANES;
    for (uint64_t c = 0; c < whole; c += LANES)
        for (int i = 0; i < LANES; i++)
            lane[i] += x[c + (uint64_t)i];
    for (uint64_t c = whole; c < width; c++)
        lane[c - whole] += x[c];
    float mean = (float)(add_lanes(lane) / (double)width);
    for (uint64_t c = 0; c < whole; c += LANES)
        for (int i = 0; i < LANES; i++) {
            float d = x[c + (uint64_t)i] - mean;
            square[i] += d * d;
        }
    for (uint64_t c = whole; c < width; c++)
        square[c - whole] += (x[c] - mean) * (x[c] - mean);
    *mean_out = mean;
    *rsigma_out = ops_rsigma_of(add_lanes(square) / (double)width);
}

OPS_CLONES static void norm_rows(void *arg, int32_t thread, int64_t first, int64_t last) {
    const norm *n = arg;
    (void)thread;
    for (int64_t r = first; r < last; r++) {
        const float *x = n->x + (uint64_t)r * n->width;
        float *y = n->y + (uint64_t)r * n->width, mean, rsigma;
        row_stats(x, n->width, &mean, &rsigma);
        for (uint64_t c = 0; c < n->width; c++)
            y[c] = ops_norm_of(x[c], mean, rsigma, n->w[c], n->b[c]);
        n->stats[2 * r] = mean;
        n->stats[2 * r + 1] = rsigma;
    }
}

tess_status ops_cpu_layernorm(ops *o, const float *x, const float *w, const float *b, float *y, float *stats,
                              uint64_t rows, uint64_t width) {
    norm n = { .x = x, .w = w, .b = b, .y = y, .stats = stats, .rows = rows, .width = width };
    ops_parallel(o, (int64_t)rows, 16, norm_rows, &n);
    return TESS_OK;
}

/* dx = rσ (g - mean(g) - x̂ mean(g x̂)), where g = dy · w and x̂ is the normalised row. */
OPS_CLONES static void norm_backward_rows(void *arg, int32_t thread, int64_t first, int64_t last) {
    const norm *n = arg;
    uint64_t width = n->width, whole = width / LANES * LANES;
    (void)thread;
    for (int64_t r = first; r < last; r++) {
        const float *x = n->x + (uint64_t)r * width, *dy = n->dy + (uint64_t)r * width, *w = n->w;
        float *dx = n->y + (uint64_t)r * width, mean = n->stats[2 * r], rsigma = n->stats[2 * r + 1];
        float sum[LANES] = { 0 }, dot[LANES] = { 0 };
        for (uint64_t c = 0; c < whole; c += LANES)
            for (int i = 0; i < LANES; i++) {
                float g = dy[c + (uint64_t)i] * w[c + (uint64_t)i];
                sum[i] += g;
                dot[i] += g * ((x[c + (uint64_t)i] - mean) * rsigma);
            }
        for (uint64_t c = whole; c < width; c++) {
            sum[c - whole] += dy[c] * w[c];
            dot[c - whole] += dy[c] * w[c] * ((x[c] - mean) * rsigma);
        }
        float g_mean = (float)(add_lanes(sum) / (double)width), g_dot = (float)(add_lanes(dot) / (double)width);
        for (uint64_t c = 0; c < width; c++)
            dx[c] = ops_layernorm_slope_of(x[c], mean, rsigma, dy[c] * w[c], g_mean, g_dot);
    }
}

enum { COLUMNS = 64 };

OPS_CLONES static void norm_backward_columns(void *arg, int32_t thread, int64_t first, int64_t last) {
    const norm *n = arg;
    (void)thread;
    for (int64_t c = first; c < last; c += COLUMNS) {
        double dw[COLUMNS] = { 0 }, db[COLUMNS] = { 0 };
        int64_t columns = last - c < COLUMNS ? last - c : COLUMNS;
        for (uint64_t r = 0; r < n->rows; r++) {
            const float *x = n->x + r * n->width + c, *dy = n->dy + r * n->width + c;
            for (int64_t i = 0; i < columns; i++) {
                dw[i] += dy[i] * ((x[i] - n->stats[2 * r]) * n->stats[2 * r + 1]);
                db[i] += dy[i];
            }
        }
        for (int64_t i = 0; i < columns; i++) {
            if (n->dw)
                n->dw[c + i] += (float)dw[i];
            if (n->db)
                n->db[c + i] += (float)db[i];
        }
    }
}

tess_status ops_cpu_layernorm_backward(ops *o, const float *x, const float *w, const float *stats, const float *dy,
                                       float *dx, float *dw, float *db, uint64_t rows, uint64_t width) {
    norm n = { .x = x, .w = w, .dy = dy, .y = dx, .dw = dw, .db = db, .rows = rows, .width = width };
    n.stats = (float *)(uintptr_t)stats; /* backward only reads it */
    if (dw || db)
        ops_parallel(o, (int64_t)width, COLUMNS, norm_backward_columns, &n);
    ops_parallel(o, (int64_t)rows, 16, norm_backward_rows, &n);
    return TESS_OK;
}

/* Turns one row of logits into probabilities and returns its loss. */
static double softmax_row(float *row, uint64_t classes, int32_t label, int *correct) {
    uint64_t best = 0;
    for (uint64_t c = 1; c < classes; c++)
        best = row[c] > row[best] ? c : best;
    double most = row[best], target = row[label], sum = 0;
    ops_cpu_exp(row, row[best], row, classes);
    for (uint64_t c = 0; c < classes; c++)
        sum += row[c];
    float over = (float)(1.0 / sum);
    for (uint64_t c = 0; c < classes; c++)
        row[c] *= over;
    *correct = best == (uint64_t)label;
    return log(sum) - (target - most);
}

tess_status ops_cpu_cross_entropy(ops *o, float *logits, const int32_t *labels, uint64_t rows, uint64_t classes,
                                  uint64_t count, ops_loss *out, void *scratch) {
    ops_loss sum = { .count = count };
    (void)o;
    (void)rows;
    (void)scratch;
    for (uint64_t r = 0; r < count; r++) {
        int correct;
        sum.loss += softmax_row(logits + r * classes, classes, labels[r], &correct);
        sum.correct += (uint64_t)correct;
    }
    *out = sum;
    return TESS_OK;
}

tess_status ops_cpu_cross_entropy_backward(ops *o, const float *probabilities, const int32_t *labels, uint64_t rows,
                                           uint64_t classes, uint64_t count, float scale, float *dlogits) {
    float over = count ? (float)((double)scale / (double)count) : 0;
    (void)o;
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t c = 0; c < classes; c++) {
            float hit = c == (uint64_t)labels[r] ? 1.0f : 0.0f;
            dlogits[r * classes + c] = r < count ? (probabilities[r * classes + c] - hit) * over : 0;
        }
    return TESS_OK;
}

uint64_t ops_cpu_cross_entropy_need(uint64_t rows) {
    (void)rows;
    return 0;
}

tess_status ops_cpu_sum_loss(ops *o, const float *x, uint64_t elems, int32_t squared, uint64_t count, ops_loss *out) {
    ops_loss sum = { .count = count };
    (void)o;
    for (uint64_t i = 0; i < elems; i++)
        sum.loss += x[i];
    sum.loss = squared ? sum.loss * sum.loss : sum.loss;
    *out = sum;
    return TESS_OK;
}

tess_status ops_cpu_sum_loss_backward(ops *o, const float *x, uint64_t elems, int32_t squared, float scale,
                                      uint64_t all, float *dx) {
    double sum = 0;
    (void)o;
    for (uint64_t i = 0; squared && i < elems; i++)
        sum += x[i];
    for (uint64_t i = 0; i < all; i++)
        dx[i] = i >= elems ? 0 : squared ? (float)(2 * sum) * scale : scale;
    return TESS_OK;
}

tess_status ops_cpu_ids(ops *o, const uint8_t *text, uint64_t samples, uint64_t time, uint64_t stride, int32_t *out) {
    (void)o;
    for (uint64_t i = 0; i < samples * time; i++)
        out[i] = text[i / time * stride + i % time];
    return TESS_OK;
}

tess_status ops_cpu_embedding(ops *o, const int32_t *ids, const float *table, const float *position, float *y,
                              uint64_t rows, uint64_t time, uint64_t width) {
    (void)o;
    for (uint64_t r = 0; r < rows; r++) {
        const float *token = table + (uint64_t)ids[r] * width, *place = position + r % time * width;
        for (uint64_t c = 0; c < width; c++)
            y[r * width + c] = token[c] + place[c];
    }
    return TESS_OK;
}

typedef struct {
    const int32_t *ids;
    const float *dy;
    float *dtable, *dposition;
    uint64_t rows, time, width;
} embed;

/* Threads divide the columns, because two rows may hold the same token. */
static void embed_columns(void *arg, int32_t thread, int64_t first, int64_t last) {
    const embed *e = arg;
    (void)thread;
    for (uint64_t r = 0; r < e->rows; r++) {
        const float *dy = e->dy + r * e->width;
        float *token = e->dtable ? e->dtable + (uint64_t)e->ids[r] * e->width : NULL;
        float *place = e->dposition ? e->dposition + r % e->time * e->width : NULL;
        for (int64_t c = first; token && c < last; c++)
            token[c] += dy[c];
        for (int64_t c = first; place && c < last; c++)
            place[c] += dy[c];
    }
}

tess_status ops_cpu_embedding_backward(ops *o, const int32_t *ids, const float *dy, float *dtable, float *dposition,
                                       uint64_t rows, uint64_t time, uint64_t width) {
    embed e = { ids, dy, dtable, dposition, rows, time, width };
    ops_parallel(o, (int64_t)width, COLUMNS, embed_columns, &e);
    return TESS_OK;
}
