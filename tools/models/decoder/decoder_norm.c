/* SPDX-License-Identifier: BSD-3-Clause */
/* Layer normalisation, and Llama's by the root of the mean square, which is the same about a mean of zero. */
#include "decoder_rows.h"
#include "tools/models/ops_formulas.h"
#include "tools/models/parallel.h"

#include <math.h>

enum { LANES = OPS_LANES, COLUMNS = 64 };

typedef struct {
    const decoder *d;
    const void *x, *w, *b, *dy, *beside;
    void *y;
    float *stats, *dw, *db;
    char *room;
    int64_t rows;
} norm;

static float *room_of(const norm *n, int32_t thread, int which) {
    return (float *)(n->room + (uint64_t)thread * n->d->room_bytes + (uint64_t)which * (n->d->room_bytes / 5));
}

static double add_lanes(const float *lane) {
    double sum = 0;
    for (int i = 0; i < LANES; i++)
        sum += lane[i];
    return sum;
}

static inline double sum_of(const float *x, int64_t width) {
    float lane[LANES] = { 0 };
    int64_t whole = width / LANES * LANES;
    for (int64_t c = 0; c < whole; c += LANES)
        for (int i = 0; i < LANES; i++)
            lane[i] += x[c + i];
    for (int64_t c = whole; c < width; c++)
        lane[c - whole] += x[c];
    return add_lanes(lane);
}

static inline double sum_of_squares(const float *x, float mean, int64_t width) {
    float lane[LANES] = { 0 };
    int64_t whole = width / LANES * LANES;
    for (int64_t c = 0; c < whole; c += LANES)
        for (int i = 0; i < LANES; i++)
            lane[i] += (x[c + i] - mean) * (x[c + i] - mean);
    for (int64_t c = whole; c < width; c++)
        lane[c - whole] += (x[c] - mean) * (x[c] - mean);
    return add_lanes(lane);
}

OPS_CLONES static void norm_rows(void *arg, int32_t thread, int64_t first, int64_t last) {
    const norm *n = arg;
    int64_t width = n->d->width;
    const float *w = rows_in(n->d, n->w, 0, width, room_of(n, thread, 0));
    const float *b = n->b ? rows_in(n->d, n->b, 0, width, room_of(n, thread, 1)) : NULL;
    for (int64_t r = first; r < last; r++) {
        const float *x = rows_in(n->d, n->x, r * width, width, room_of(n, thread, 2));
        float *y = rows_for(n->d, n->y, r * width, room_of(n, thread, 3));
        float mean = n->d->llama ? 0 : (float)(sum_of(x, width) / (double)width);
        double variance = sum_of_squares(x, mean, width) / (double)width;
        float rsigma = (float)(1.0 / sqrt(variance + (double)n->d->eps));
        for (int64_t c = 0; c < width; c++)
            y[c] = (x[c] - mean) * rsigma * w[c];
        for (int64_t c = 0; b && c < width; c++)
            y[c] += b[c];
        rows_out(n->d, y, n->y, r * width, width);
        n->stats[2 * r] = mean;
        n->stats[2 * r + 1] = rsigma;
    }
}

void decoder_norm(const decoder *d, const void *x, const void *w, const void *b, void *y, float *stats, int64_t rows,
                  char *room) {
    norm n = { .d = d, .x = x, .w = w, .b = b, .y = y, .stats = stats, .room = room };
    ops_parallel(d->o, rows, 16, norm_rows, &n);
}

/* dx = rσ (g - mean(g) - x̂ mean(g x̂)) with g = dy · w and x̂ the normalised row; mean(g) is 0 for Llama. */
OPS_CLONES static void backward_rows(void *arg, int32_t thread, int64_t first, int64_t last) {
    const norm *n = arg;
    int64_t width = n->d->width, whole = width / LANES * LANES;
    const float *w = rows_in(n->d, n->w, 0, width, room_of(n, thread, 0));
    for (int64_t r = first; r < last; r++) {
        const float *x = rows_in(n->d, n->x, r * width, width, room_of(n, thread, 1));
        const float *dy = rows_in(n->d, n->dy, r * width, width, room_of(n, thread, 2));
        const float *beside = n->beside ? rows_in(n->d, n->beside, r * width, width, room_of(n, thread, 3)) : NULL;
        float *dx = rows_for(n->d, n->y, r * width, room_of(n, thread, 4));
        float mean = n->stats[2 * r], rsigma = n->stats[2 * r + 1], sum[LANES] = { 0 }, dot[LANES] = { 0 };
        for (int64_t c = 0; c < whole; c += LANES)
            for (int i = 0; i < LANES; i++) {
                float g = dy[c + i] * w[c + i];
                sum[i] += g;
                dot[i] += g * ((x[c + i] - mean) * rsigma);
            }
        for (int64_t c = whole; c < width; c++) {
            sum[c - whole] += dy[c] * w[c];
            dot[c - whole] += dy[c] * w[c] * ((x[c] - mean) * rsigma);
        }
        float g_mean = n->d->llama ? 0 : (float)(add_lanes(sum) / (double)width);
        float g_dot = (float)(add_lanes(dot) / (double)width);
        for (int64_t c = 0; c < width; c++)
            dx[c] = ops_layernorm_slope_of(x[c], mean, rsigma, dy[c] * w[c], g_mean, g_dot) + (beside ? beside[c] : 0);
        rows_out(n->d, dx, n->y, r * width, width);
    }
}

OPS_CLONES static void backward_columns(void *arg, int32_t thread, int64_t first, int64_t last) {
    const norm *n = arg;
    int64_t width = n->d->width;
    (void)thread;
    for (int64_t c = first; c < last; c += COLUMNS) {
        double dw[COLUMNS] = { 0 }, db[COLUMNS] = { 0 };
        float room[2][COLUMNS];
        int64_t columns = last - c < COLUMNS ? last - c : COLUMNS;
        for (int64_t r = 0; r < n->rows; r++) {
            const float *x = rows_in(n->d, n->x, r * width + c, columns, room[0]);
            const float *dy = rows_in(n->d, n->dy, r * width + c, columns, room[1]);
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

void decoder_norm_backward(const decoder *d, const void *x, const void *w, const float *stats, const void *dy,
                           const void *dy_beside, void *dx, float *dw, float *db, int64_t rows, char *room) {
    norm n = { .d = d, .x = x, .w = w, .dy = dy, .beside = dy_beside, .y = dx, .dw = dw, .db = db, .room = room };
    n.stats = (float *)(uintptr_t)stats; /* read only here */
    n.rows = rows;
    if (dw || db)
        ops_parallel(d->o, d->width, COLUMNS, backward_columns, &n);
    ops_parallel(d->o, rows, 16, backward_rows, &n);
}
