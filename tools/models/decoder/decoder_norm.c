/* SPDX-License-Identifier: BSD-3-Clause */
/* Layer normalisation, and Llama's by the root of the mean square, which is the same with a mean of zero. A row's
 * sum has 16 partial sums; element c belongs to lane c mod 16. */
#include "decoder_rows.h"
#include "tools/models/parallel.h"

#include <math.h>

enum { COLUMNS = 32 };

typedef struct {
    const decoder *d;
    int64_t width;
    int about_zero, one_more;
    const void *x, *w, *b, *dy, *beside;
    void *y;
    float *stats, *dw, *db;
    int64_t rows;
} norm;

TESS_FN double sum_of(int half, const void *x, int64_t at, int64_t width) {
    lanes sum = lanes_fill(0);
    for (int64_t c = 0; c < width; c += LANES)
        sum += rows_of(half, x, at + c, width - c);
    return lanes_add_up(sum);
}

TESS_FN double sum_of_squares(int half, const void *x, int64_t at, int64_t width, float mean) {
    lanes sum = lanes_fill(0), none = sum;
    for (int64_t c = 0; c < width; c += LANES) {
        lanes apart = lanes_first(rows_of(half, x, at + c, width - c) - mean, width - c, none);
        sum += apart * apart;
    }
    return lanes_add_up(sum);
}

/* Return the gains of 16 columns, and of 32. */
TESS_FN lanes gain_of(int half, const norm *n, int64_t c) {
    lanes w = rows_of(half, n->w, c, n->width - c);
    return n->one_more ? w + 1.0f : w;
}

TESS_FN lanes_pair gains_of(int half, const norm *n, int64_t c) {
    lanes_pair w = pair_of(half, n->w, c);
    return n->one_more ? (lanes_pair){ w.a + 1.0f, w.b + 1.0f } : w;
}

TESS_FN lanes norm_lanes(const norm *n, lanes x, float mean, float rsigma, lanes w, lanes b) {
    lanes y = (x - mean) * rsigma * w;
    return n->b ? y + b : y;
}

TESS_FN void norm_row(int half, const norm *n, float eps, int64_t r) {
    int64_t width = n->width, at = r * width;
    float mean = n->about_zero ? 0 : (float)(sum_of(half, n->x, at, width) / (double)width);
    double variance = sum_of_squares(half, n->x, at, width, mean) / (double)width;
    float rsigma = (float)(1.0 / sqrt(variance + (double)eps));
    lanes none = lanes_fill(0);
    int64_t c = 0;
    for (; c + PAIR <= width; c += PAIR) {
        lanes_pair x = pair_of(half, n->x, at + c), w = gains_of(half, n, c), b = { none, none };
        if (n->b)
            b = pair_of(half, n->b, c);
        pair_to(half,
                (lanes_pair){ norm_lanes(n, x.a, mean, rsigma, w.a, b.a), norm_lanes(n, x.b, mean, rsigma, w.b, b.b) },
                n->y, at + c);
    }
    for (; c < width; c += LANES) {
        lanes b = n->b ? rows_of(half, n->b, c, width - c) : none;
        rows_to(half, norm_lanes(n, rows_of(half, n->x, at + c, width - c), mean, rsigma, gain_of(half, n, c), b), n->y,
                at + c, width - c);
    }
    n->stats[2 * r] = mean;
    n->stats[2 * r + 1] = rsigma;
}

/* Works on a copy of the parameters: the compiler must reload memory that a vector store may overwrite. The others
 * do too. */
OPS_CLONES static void norm_rows(void *arg, int32_t thread, int64_t first, int64_t last) {
    const norm n = *(const norm *)arg;
    float eps = n.d->eps;
    (void)thread;
    for (int64_t r = first; r < last; r++)
        BY_FORMAT(n.d->half, norm_row, &n, eps, r);
}

static norm norm_of(const decoder *d, const decoder_norm_of *of, void *y) {
    norm n = { .d = d, .width = of->width, .x = of->x, .w = of->w, .b = of->b, .y = y, .rows = of->rows };
    n.stats = of->stats, n.about_zero = d->about_zero, n.one_more = d->one_more;
    return n;
}

void decoder_norm(const decoder *d, const decoder_norm_of *of, void *y) {
    norm n = norm_of(d, of, y);
    ops_parallel(d->o, n.rows, 16, norm_rows, &n);
}

/* dx = rσ (g - mean(g) - x̂ mean(g x̂)), where g = dy · w and x̂ is the normalised row. For Llama mean(g) counts as
 * 0. */
TESS_FN void backward_row(int half, const norm *n, int64_t r) {
    int64_t width = n->width, at = r * width;
    float mean = n->stats[2 * r], rsigma = n->stats[2 * r + 1];
    lanes none = lanes_fill(0), sum = none, dot = none;
    for (int64_t c = 0; c < width; c += LANES) {
        lanes g = rows_of(half, n->dy, at + c, width - c) * gain_of(half, n, c);
        sum += g;
        dot += g * ((rows_of(half, n->x, at + c, width - c) - mean) * rsigma);
    }
    float g_mean = n->about_zero ? 0 : (float)(lanes_add_up(sum) / (double)width);
    float g_dot = (float)(lanes_add_up(dot) / (double)width);
    int64_t c = 0;
    for (; c + PAIR <= width; c += PAIR) {
        lanes_pair x = pair_of(half, n->x, at + c), dy = pair_of(half, n->dy, at + c), w = gains_of(half, n, c);
        lanes_pair beside = { none, none };
        if (n->beside)
            beside = pair_of(half, n->beside, at + c);
        x.a = beside.a + lanes_layernorm_slope_of(x.a, mean, rsigma, dy.a * w.a, g_mean, g_dot);
        x.b = beside.b + lanes_layernorm_slope_of(x.b, mean, rsigma, dy.b * w.b, g_mean, g_dot);
        pair_to(half, x, n->y, at + c);
    }
    for (; c < width; c += LANES) {
        lanes g = rows_of(half, n->dy, at + c, width - c) * gain_of(half, n, c);
        lanes dx = lanes_layernorm_slope_of(rows_of(half, n->x, at + c, width - c), mean, rsigma, g, g_mean, g_dot);
        dx += n->beside ? rows_of(half, n->beside, at + c, width - c) : none;
        rows_to(half, dx, n->y, at + c, width - c);
    }
}

OPS_CLONES static void backward_rows(void *arg, int32_t thread, int64_t first, int64_t last) {
    const norm n = *(const norm *)arg;
    (void)thread;
    for (int64_t r = first; r < last; r++)
        BY_FORMAT(n.d->half, backward_row, &n, r);
}

typedef struct { /* sums of a tile's columns */
    double dw[TILE], db[TILE];
} sums;

/* Adds up some rows in the tile's columns from `at` on. */
TESS_FN void add_rows(int half, const norm *n, int64_t row, int64_t rows, int64_t at, int64_t columns, sums *to) {
    int64_t c = 0, from = row * n->width + at;
    const float *stats = n->stats + 2 * row;
    for (; c + PAIR <= columns; c += PAIR) {
        lanes_pair dw = { lanes_fill(0), lanes_fill(0) }, db = dw;
        for (int64_t r = 0; r < rows; r++) {
            lanes_pair x = pair_of(half, n->x, from + r * n->width + c),
                       dy = pair_of(half, n->dy, from + r * n->width + c);
            dw.a += dy.a * ((x.a - stats[2 * r]) * stats[2 * r + 1]);
            dw.b += dy.b * ((x.b - stats[2 * r]) * stats[2 * r + 1]);
            db.a += dy.a, db.b += dy.b;
        }
        pair_add(to->dw + c, dw);
        pair_add(to->db + c, db);
    }
    for (; c < columns; c++) {
        float dw = 0, db = 0;
        for (int64_t r = 0; r < rows; r++) {
            float dy = one_of(half, n->dy, from + r * n->width + c);
            dw += dy * ((one_of(half, n->x, from + r * n->width + c) - stats[2 * r]) * stats[2 * r + 1]);
            db += dy;
        }
        to->dw[c] += dw;
        to->db[c] += db;
    }
}

TESS_FN void add_tile(int half, const norm *n, int64_t at, int64_t columns) {
    sums all = { 0 };
    for (int64_t r = 0; r < n->rows; r += ROWS_TOGETHER)
        add_rows(half, n, r, n->rows - r < ROWS_TOGETHER ? n->rows - r : ROWS_TOGETHER, at, columns, &all);
    if (n->dw)
        sums_to(half, all.dw, columns, n->dw + at);
    if (n->db)
        sums_to(half, all.db, columns, n->db + at);
}

OPS_CLONES static void backward_columns(void *arg, int32_t thread, int64_t first, int64_t last) {
    const norm n = *(const norm *)arg;
    (void)thread;
    for (int64_t at = first; at < last; at += TILE)
        BY_FORMAT(n.d->half, add_tile, &n, at, last - at < TILE ? last - at : TILE);
}

void decoder_norm_backward(const decoder *d, const decoder_norm_of *of, const void *dy, const void *dy_beside, void *dx,
                           float *dw, float *db) {
    norm n = norm_of(d, of, dx);
    n.dy = dy, n.beside = dy_beside, n.dw = dw, n.db = db, n.b = NULL;
    if (dw || db)
        ops_parallel(d->o, n.width, COLUMNS, backward_columns, &n);
    ops_parallel(d->o, n.rows, 16, backward_rows, &n);
}
