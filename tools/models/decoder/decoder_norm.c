/* SPDX-License-Identifier: BSD-3-Clause */
/* Layer normalisation, and Llama's by the root of the mean square, which is the same about a mean of zero. Sums of a
 * row are 16 partial ones, element c in lane c mod 16. */
#include "decoder_rows.h"
#include "tools/models/parallel.h"

#include <math.h>

enum { COLUMNS = 32 };

typedef struct {
    const decoder *d;
    int64_t width;
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

TESS_FN void norm_row(int half, const norm *n, float eps, int64_t r) {
    int64_t width = n->width, at = r * width;
    float mean = n->d->llama ? 0 : (float)(sum_of(half, n->x, at, width) / (double)width);
    double variance = sum_of_squares(half, n->x, at, width, mean) / (double)width;
    float rsigma = (float)(1.0 / sqrt(variance + (double)eps));
    for (int64_t c = 0; c < width; c += LANES) {
        lanes y = (rows_of(half, n->x, at + c, width - c) - mean) * rsigma * rows_of(half, n->w, c, width - c);
        if (n->b)
            y += rows_of(half, n->b, c, width - c);
        rows_to(half, y, n->y, at + c, width - c);
    }
    n->stats[2 * r] = mean;
    n->stats[2 * r + 1] = rsigma;
}

/* Works on a copy: what a vector's store may hit has to be loaded again behind it. So do the others. */
OPS_CLONES static void norm_rows(void *arg, int32_t thread, int64_t first, int64_t last) {
    const norm n = *(const norm *)arg;
    float eps = n.d->eps;
    (void)thread;
    for (int64_t r = first; r < last; r++)
        if (n.d->half)
            norm_row(1, &n, eps, r);
        else
            norm_row(0, &n, eps, r);
}

void decoder_norm(const decoder *d, const void *x, const void *w, const void *b, void *y, float *stats, int64_t rows) {
    norm n = { .d = d, .width = d->width, .x = x, .w = w, .b = b, .y = y, .stats = stats };
    ops_parallel(d->o, rows, 16, norm_rows, &n);
}

/* dx = rσ (g - mean(g) - x̂ mean(g x̂)) with g = dy · w and x̂ the normalised row; mean(g) is 0 for Llama. */
TESS_FN void backward_row(int half, const norm *n, int64_t r) {
    int64_t width = n->width, at = r * width;
    float mean = n->stats[2 * r], rsigma = n->stats[2 * r + 1];
    lanes sum = lanes_fill(0), dot = sum;
    for (int64_t c = 0; c < width; c += LANES) {
        lanes g = rows_of(half, n->dy, at + c, width - c) * rows_of(half, n->w, c, width - c);
        sum += g;
        dot += g * ((rows_of(half, n->x, at + c, width - c) - mean) * rsigma);
    }
    float g_mean = n->d->llama ? 0 : (float)(lanes_add_up(sum) / (double)width);
    float g_dot = (float)(lanes_add_up(dot) / (double)width);
    for (int64_t c = 0; c < width; c += LANES) {
        lanes g = rows_of(half, n->dy, at + c, width - c) * rows_of(half, n->w, c, width - c);
        lanes dx = lanes_layernorm_slope_of(rows_of(half, n->x, at + c, width - c), mean, rsigma, g, g_mean, g_dot);
        dx += n->beside ? rows_of(half, n->beside, at + c, width - c) : lanes_fill(0);
        rows_to(half, dx, n->y, at + c, width - c);
    }
}

OPS_CLONES static void backward_rows(void *arg, int32_t thread, int64_t first, int64_t last) {
    const norm n = *(const norm *)arg;
    (void)thread;
    for (int64_t r = first; r < last; r++)
        if (n.d->half)
            backward_row(1, &n, r);
        else
            backward_row(0, &n, r);
}

/* Adds up at most COLUMNS columns, in the order of rows. */
TESS_FN void add_columns(const norm *n, int half, int64_t at, int64_t columns) {
    eight_sum dw[COLUMNS / 8] = { 0 }, db[COLUMNS / 8] = { 0 };
    double sums[2][COLUMNS];
    for (int64_t r = 0; r < n->rows; r++) {
        float mean = n->stats[2 * r], rsigma = n->stats[2 * r + 1];
        for (int c = 0; c < COLUMNS / 8; c++) {
            int64_t i = r * n->width + at + 8 * c;
            eight dy = eight_at(half, n->dy, i, columns - 8 * c), x = eight_at(half, n->x, i, columns - 8 * c);
            dw[c] += eight_wide(dy * ((x - mean) * rsigma));
            db[c] += eight_wide(dy);
        }
    }
    memcpy(sums[0], dw, sizeof dw);
    memcpy(sums[1], db, sizeof db);
    for (int64_t c = 0; c < columns; c++) {
        if (n->dw)
            n->dw[at + c] += (float)sums[0][c];
        if (n->db)
            n->db[at + c] += (float)sums[1][c];
    }
}

OPS_CLONES static void backward_columns(void *arg, int32_t thread, int64_t first, int64_t last) {
    const norm n = *(const norm *)arg;
    (void)thread;
    for (int64_t c = first; c < last; c += COLUMNS) {
        if (last - c < COLUMNS)
            add_columns(&n, n.d->half, c, last - c);
        else if (n.d->half)
            add_columns(&n, 1, c, COLUMNS);
        else
            add_columns(&n, 0, c, COLUMNS);
    }
}

void decoder_norm_backward(const decoder *d, const void *x, const void *w, const float *stats, const void *dy,
                           const void *dy_beside, void *dx, float *dw, float *db, int64_t rows) {
    norm n = { .d = d, .width = d->width, .x = x, .w = w, .dy = dy, .beside = dy_beside, .y = dx, .dw = dw, .db = db };
    n.stats = (float *)(uintptr_t)stats; /* read only here */
    n.rows = rows;
    if (dw || db)
        ops_parallel(d->o, d->width, COLUMNS, backward_columns, &n);
    ops_parallel(d->o, rows, 16, backward_rows, &n);
}
