/* SPDX-License-Identifier: BSD-3-Clause */
/* Batch normalisation and the average pool that ends such networks. Sums over rows add chunks of OPS_CHUNK_ROWS rows
 * in fp64 and then the chunks in order. So the bits depend on neither threads nor instruction set. */
#include "elementwise.h"
#include "ops_formulas.h"
#include "parallel.h"

#include <math.h>
#include <string.h>

typedef struct {
    const ops_batchnorm_shape *s;
    const float *x, *w, *b, *y_in, *dy, *stats;
    float *y;
    const float *mean_dy, *mean_dot; /* backward: per channel */
    double *sums;                    /* two sums per chunk and channel */
} work;

typedef struct { /* the range of rows that a range of chunks covers */
    uint64_t first, last;
} span;

static span rows_of_chunk(const ops_batchnorm_shape *s, int64_t chunk) {
    uint64_t first = (uint64_t)chunk * OPS_CHUNK_ROWS, last = first + OPS_CHUNK_ROWS;
    return (span){ first, last < s->rows ? last : s->rows };
}

static int64_t chunks_of(const ops_batchnorm_shape *s) {
    return (int64_t)((s->rows + OPS_CHUNK_ROWS - 1) / OPS_CHUNK_ROWS);
}

/* Adds the sums of all chunks into those of the first. */
static void add_chunks(const ops_batchnorm_shape *s, double *sums) {
    for (int64_t k = 1; k < chunks_of(s); k++)
        for (uint64_t c = 0; c < 2 * s->channels; c++)
            sums[c] += sums[(uint64_t)k * 2 * s->channels + c];
}

OPS_CLONES static void sum_chunks(void *arg, int32_t thread, int64_t first, int64_t last) {
    const work *n = arg;
    uint64_t channels = n->s->channels;
    (void)thread;
    for (int64_t k = first; k < last; k++) {
        span rows = rows_of_chunk(n->s, k);
        double *sum = n->sums + (uint64_t)k * 2 * channels, *square = sum + channels;
        memset(sum, 0, 2 * channels * sizeof *sum);
        for (uint64_t r = rows.first; r < rows.last; r++) {
            const float *x = n->x + r * channels;
            for (uint64_t c = 0; c < channels; c++) {
                double v = x[c];
                sum[c] += v;
                square[c] += v * v;
            }
        }
    }
}

/* Computes the batch's mean and 1/σ; `with` says whether the running values move. */
static void finish_stats(const ops_batchnorm_shape *s, const double *sums, uint32_t with, float *running_mean,
                         float *running_var, float *stats) {
    double rows = (double)s->rows;
    for (uint64_t c = 0; c < s->channels; c++) {
        double mean = sums[c] / rows, variance = sums[s->channels + c] / rows - mean * mean;
        variance = variance > 0 ? variance : 0;
        stats[c] = (float)mean;
        stats[s->channels + c] = ops_rsigma_of(variance);
        if (with != OPS_BATCH_UPDATE)
            continue;
        double unbiased = rows > 1 ? variance * (rows / (rows - 1)) : variance;
        running_mean[c] = (float)(0.9 * (double)running_mean[c] + 0.1 * mean);
        running_var[c] = (float)(0.9 * (double)running_var[c] + 0.1 * unbiased);
    }
}

OPS_CLONES static void normalise_chunks(void *arg, int32_t thread, int64_t first, int64_t last) {
    const work *n = arg;
    uint64_t channels = n->s->channels;
    const float *mean = n->stats, *rsigma = n->stats + channels;
    float least = n->s->relu ? 0 : -INFINITY;
    (void)thread;
    for (uint64_t r = rows_of_chunk(n->s, first).first, end = rows_of_chunk(n->s, last - 1).last; r < end; r++) {
        const float *x = n->x + r * channels;
        float *y = n->y + r * channels;
        for (uint64_t c = 0; c < channels; c++) {
            float v = ops_norm_of(x[c], mean[c], rsigma[c], n->w[c], n->b[c]);
            y[c] = v < least ? least : v; /* a NaN stays */
        }
    }
}

tess_status ops_cpu_batchnorm(ops *o, const ops_batchnorm_shape *s, uint32_t with, const float *x, const float *w,
                              const float *b, float *running_mean, float *running_var, float *y, float *stats,
                              void *scratch) {
    work n = { .s = s, .x = x, .w = w, .b = b, .y = y, .stats = stats, .sums = scratch };
    if (with == OPS_RUNNING) {
        for (uint64_t c = 0; c < s->channels; c++) {
            stats[c] = running_mean[c];
            stats[s->channels + c] = ops_rsigma_of(running_var[c]);
        }
    } else {
        ops_parallel(o, chunks_of(s), 1, sum_chunks, &n);
        add_chunks(s, n.sums);
        finish_stats(s, n.sums, with, running_mean, running_var, stats);
    }
    ops_parallel(o, chunks_of(s), 1, normalise_chunks, &n);
    return TESS_OK;
}

/* Sums g and g · x̂, where g is dy after relu's backward. */
OPS_CLONES static void sum_gradients(void *arg, int32_t thread, int64_t first, int64_t last) {
    const work *n = arg;
    uint64_t channels = n->s->channels;
    const float *mean = n->stats, *rsigma = n->stats + channels;
    (void)thread;
    for (int64_t k = first; k < last; k++) {
        span rows = rows_of_chunk(n->s, k);
        double *sum = n->sums + (uint64_t)k * 2 * channels, *dot = sum + channels;
        memset(sum, 0, 2 * channels * sizeof *sum);
        for (uint64_t r = rows.first; r < rows.last; r++) {
            const float *x = n->x + r * channels, *dy = n->dy + r * channels, *y = n->y_in + r * channels;
            for (uint64_t c = 0; c < channels; c++) {
                double g = y[c] > 0 || !n->s->relu ? dy[c] : 0;
                sum[c] += g;
                dot[c] += g * (double)((x[c] - mean[c]) * rsigma[c]);
            }
        }
    }
}

/* dx = w rσ (g - mean(g) - x̂ mean(g x̂)). */
OPS_CLONES static void backward_chunks(void *arg, int32_t thread, int64_t first, int64_t last) {
    const work *n = arg;
    uint64_t channels = n->s->channels;
    const float *mean = n->stats, *rsigma = n->stats + channels;
    (void)thread;
    for (uint64_t r = rows_of_chunk(n->s, first).first, end = rows_of_chunk(n->s, last - 1).last; r < end; r++) {
        const float *x = n->x + r * channels, *dy = n->dy + r * channels, *y = n->y_in + r * channels;
        float *dx = n->y + r * channels;
        for (uint64_t c = 0; c < channels; c++) {
            float g = y[c] > 0 || !n->s->relu ? dy[c] : 0;
            dx[c] = ops_batchnorm_slope_of(x[c], mean[c], rsigma[c], n->w[c], g, n->mean_dy[c], n->mean_dot[c]);
        }
    }
}

tess_status ops_cpu_batchnorm_backward(ops *o, const ops_batchnorm_shape *s, const float *x, const float *w,
                                       const float *stats, const float *y, const float *dy, float *dx, float *dw,
                                       float *db, void *scratch) {
    double *sums = scratch;
    float *means = (float *)(sums + (uint64_t)chunks_of(s) * 2 * s->channels);
    work n = { .s = s, .x = x, .w = w, .y_in = y ? y : x, .dy = dy, .y = dx, .stats = stats, .sums = sums };
    ops_parallel(o, chunks_of(s), 1, sum_gradients, &n);
    add_chunks(s, sums);
    for (uint64_t c = 0; c < s->channels; c++) {
        if (db)
            db[c] += (float)sums[c];
        if (dw)
            dw[c] += (float)sums[s->channels + c];
        means[c] = (float)(sums[c] / (double)s->rows);
        means[s->channels + c] = (float)(sums[s->channels + c] / (double)s->rows);
    }
    n.mean_dy = means;
    n.mean_dot = means + s->channels;
    ops_parallel(o, chunks_of(s), 1, backward_chunks, &n);
    return TESS_OK;
}

/* ---- average pool ------------------------------------------------------------------------------------- */
enum { COLUMNS = 64 };
typedef struct {
    const float *x;
    float *y;
    uint64_t places, channels;
} pool;

OPS_CLONES static void pool_columns(void *arg, int32_t thread, int64_t first, int64_t last) {
    const pool *p = arg;
    (void)thread;
    for (uint64_t at = (uint64_t)first; at < (uint64_t)last;) { /* columns of all samples in sequence */
        uint64_t sample = at / p->channels, c = at % p->channels, n = p->channels - c;
        n = n < COLUMNS ? n : COLUMNS;
        n = n < (uint64_t)last - at ? n : (uint64_t)last - at;
        double sum[COLUMNS] = { 0 };
        for (uint64_t place = 0; place < p->places; place++) {
            const float *x = p->x + (sample * p->places + place) * p->channels + c;
            for (uint64_t i = 0; i < n; i++)
                sum[i] += x[i];
        }
        for (uint64_t i = 0; i < n; i++)
            p->y[at + i] = (float)(sum[i] / (double)p->places);
        at += n;
    }
}

tess_status ops_cpu_avgpool(ops *o, const float *x, float *y, uint64_t batch, uint64_t places, uint64_t channels) {
    pool p = { x, y, places, channels };
    ops_parallel(o, (int64_t)(batch * channels), COLUMNS, pool_columns, &p);
    return TESS_OK;
}

static void spread_places(void *arg, int32_t thread, int64_t first, int64_t last) {
    const pool *p = arg;
    (void)thread;
    for (uint64_t at = (uint64_t)first; at < (uint64_t)last; at++) {
        const float *dy = p->x + at / p->places * p->channels;
        for (uint64_t c = 0; c < p->channels; c++)
            p->y[at * p->channels + c] = (float)((double)dy[c] / (double)p->places);
    }
}

tess_status ops_cpu_avgpool_backward(ops *o, const float *dy, float *dx, uint64_t batch, uint64_t places,
                                     uint64_t channels) {
    pool p = { dy, dx, places, channels };
    ops_parallel(o, (int64_t)(batch * places), 64, spread_places, &p);
    return TESS_OK;
}
