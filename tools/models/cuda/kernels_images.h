/* SPDX-License-Identifier: BSD-3-Clause */
/* Kernels of batch normalisation, and those that turn convolutions into products (see kernels.h). */
#ifndef TESS_MODELS_CUDA_KERNELS_IMAGES_H
#define TESS_MODELS_CUDA_KERNELS_IMAGES_H
#include "half.h"
#include "kernel_body.h"

/* ---- batch normalisation: sums over chunks of rows, as on the CPU ----------------------------------- */
typedef struct {
    const float *x;
    double *sums; /* two sums per chunk and channel */
    uint64_t rows, channels;
} ops_args_batchnorm_sums;
OPS_BODY(batchnorm_sums) {
    uint64_t i = (uint64_t)block * OPS_BLOCK + thread, chunk = i / a->channels, c = i % a->channels;
    uint64_t first = chunk * OPS_CHUNK, last = first + OPS_CHUNK < a->rows ? first + OPS_CHUNK : a->rows;
    double sum = 0, square = 0;
    OPS_ONE_PHASE;
    if (first >= a->rows)
        return;
    OPS_AHEAD for (uint64_t r = first; r < last; r++) {
        double v = (double)a->x[r * a->channels + c];
        sum += v;
        square += v * v;
    }
    a->sums[chunk * 2 * a->channels + c] = sum;
    a->sums[(chunk * 2 + 1) * a->channels + c] = square;
}

/* Adds the chunks in order. The sum starts as the first chunk's, not as 0. */
TESS_FN double ops_add_chunks(const double *sums, uint64_t rows, uint64_t channels, uint64_t at) {
    double sum = sums[at];
    OPS_AHEAD for (uint64_t chunk = 1; chunk * OPS_CHUNK < rows; chunk++) sum += sums[chunk * 2 * channels + at];
    return sum;
}

typedef struct { /* sums null: the running values normalise */
    const double *sums;
    float *running_mean, *running_var, *stats;
    uint64_t rows, channels;
    int32_t update;
} ops_args_batchnorm_stats;
OPS_BODY(batchnorm_stats) {
    uint64_t c = (uint64_t)block * OPS_BLOCK + thread;
    double rows = (double)a->rows;
    OPS_ONE_PHASE;
    if (c >= a->channels)
        return;
    if (!a->sums) {
        a->stats[c] = a->running_mean[c];
        a->stats[a->channels + c] = ops_rsigma_of((double)a->running_var[c]);
        return;
    }
    double mean = ops_add_chunks(a->sums, a->rows, a->channels, c) / rows;
    double variance = ops_add_chunks(a->sums, a->rows, a->channels, a->channels + c) / rows - mean * mean;
    variance = variance > 0 ? variance : 0;
    a->stats[c] = (float)mean;
    a->stats[a->channels + c] = ops_rsigma_of(variance);
    if (!a->update)
        return;
    double unbiased = rows > 1 ? variance * (rows / (rows - 1)) : variance;
    a->running_mean[c] = (float)(0.9 * (double)a->running_mean[c] + 0.1 * mean);
    a->running_var[c] = (float)(0.9 * (double)a->running_var[c] + 0.1 * unbiased);
}

typedef struct {
    const float *x, *w, *b, *stats;
    float *y;
    uint64_t elems, channels;
    int32_t relu;
} ops_args_batchnorm;
OPS_BODY(batchnorm) {
    OPS_ONE_PHASE;
    OPS_FOR_EACH(i, a->elems) {
        uint64_t c = ops_mod(i, a->channels);
        float v = ops_norm_of(a->x[i], a->stats[c], a->stats[a->channels + c], a->w[c], a->b[c]);
        a->y[i] = a->relu && v < 0 ? 0 : v; /* a NaN stays */
    }
}

typedef struct { /* y: the result, which relu's backward reads */
    const float *x, *y, *dy, *stats;
    double *sums;
    uint64_t rows, channels;
    int32_t relu;
} ops_args_batchnorm_slopes;
OPS_BODY(batchnorm_slopes) {
    uint64_t i = (uint64_t)block * OPS_BLOCK + thread, chunk = i / a->channels, c = i % a->channels;
    uint64_t first = chunk * OPS_CHUNK, last = first + OPS_CHUNK < a->rows ? first + OPS_CHUNK : a->rows;
    double sum = 0, dot = 0;
    OPS_ONE_PHASE;
    if (first >= a->rows)
        return;
    float mean = a->stats[c], rsigma = a->stats[a->channels + c];
    OPS_AHEAD for (uint64_t r = first; r < last; r++) {
        uint64_t at = r * a->channels + c;
        float dy = a->dy[at], g = !a->relu || a->y[at] > 0 ? dy : 0;
        sum += (double)g;
        dot += (double)g * (double)((a->x[at] - mean) * rsigma);
    }
    a->sums[chunk * 2 * a->channels + c] = sum;
    a->sums[(chunk * 2 + 1) * a->channels + c] = dot;
}

typedef struct { /* dw, db null: not wanted; means: two per channel */
    const double *sums;
    float *dw, *db, *means;
    uint64_t rows, channels;
} ops_args_batchnorm_means;
OPS_BODY(batchnorm_means) {
    uint64_t c = (uint64_t)block * OPS_BLOCK + thread;
    OPS_ONE_PHASE;
    if (c >= a->channels)
        return;
    double sum = ops_add_chunks(a->sums, a->rows, a->channels, c);
    double dot = ops_add_chunks(a->sums, a->rows, a->channels, a->channels + c);
    if (a->db)
        a->db[c] += (float)sum;
    if (a->dw)
        a->dw[c] += (float)dot;
    a->means[c] = (float)(sum / (double)a->rows);
    a->means[a->channels + c] = (float)(dot / (double)a->rows);
}

typedef struct {
    const float *x, *y, *dy, *w, *stats, *means;
    float *dx;
    uint64_t elems, channels;
    int32_t relu;
} ops_args_batchnorm_backward;
OPS_BODY(batchnorm_backward) {
    OPS_ONE_PHASE;
    OPS_FOR_EACH(i, a->elems) {
        uint64_t c = ops_mod(i, a->channels);
        float g = !a->relu || a->y[i] > 0 ? a->dy[i] : 0;
        a->dx[i] = ops_batchnorm_slope_of(a->x[i], a->stats[c], a->stats[a->channels + c], a->w[c], g, a->means[c],
                                          a->means[a->channels + c]);
    }
}

/* ---- convolution as a product ---------------------------------------------------------------- */
typedef struct { /* a row is one place of the output, from `first_place` on, with k · k · channels elements; either out
                    or half is set */
    const float *x;
    float *out;
    uint16_t *half;
    uint64_t elems, first_place;
    int32_t height, width, channels, kernel, pad, out_height, out_width;
} ops_args_windows;
OPS_BODY(windows) {
    uint64_t c = (uint64_t)a->channels, k = (uint64_t)a->kernel, taps = k * k * c;
    uint64_t ow = (uint64_t)a->out_width, oh = (uint64_t)a->out_height;
    OPS_ONE_PHASE;
    OPS_FOR_EACH(i, a->elems) {
        uint64_t place = a->first_place + ops_div(i, taps), tap = ops_mod(i, taps), line = ops_div(place, ow);
        int64_t row = (int64_t)(ops_mod(line, oh) + ops_div(tap, k * c)) - a->pad;
        int64_t column = (int64_t)(ops_mod(place, ow) + ops_mod(ops_div(tap, c), k)) - a->pad;
        float v = 0;
        if (row >= 0 && row < a->height && column >= 0 && column < a->width) {
            int64_t image = (int64_t)ops_div(line, oh);
            v = a->x[((image * a->height + row) * a->width + column) * a->channels + (int64_t)ops_mod(tap, c)];
        }
        if (a->half)
            a->half[i] = ops_half_of(v);
        else
            a->out[i] = v;
    }
}

enum { OPS_TURN_IN_OUT, OPS_TURN_ROUND, OPS_TURN_OUT_FIRST };
/* Reorders [out, in, k, k] to [k, k, in, out], to [k, k, out, in] with reversed taps, or to [out, k, k, in]. */
typedef struct {
    const void *w;
    void *out;
    uint64_t elems;
    int32_t channels, outputs, kernel, turned;
    int32_t halves; /* w and out are of 16 bits */
} ops_args_turn_weights;
OPS_BODY(turn_weights) {
    uint64_t c = (uint64_t)a->channels, n = (uint64_t)a->outputs, kk = (uint64_t)a->kernel * (uint64_t)a->kernel;
    uint64_t fast = a->turned == OPS_TURN_IN_OUT ? n : c, slow = a->turned == OPS_TURN_IN_OUT ? c : n;
    OPS_ONE_PHASE;
    OPS_FOR_EACH(i, a->elems) { /* i is an index into the result, [tap, slow, fast] */
        uint64_t at_fast = i % fast, at_slow = i / fast % slow, tap = i / (fast * slow);
        if (a->turned == OPS_TURN_OUT_FIRST)
            tap = i / fast % kk, at_slow = i / (fast * kk);
        uint64_t out = a->turned ? at_slow : at_fast, in = a->turned ? at_fast : at_slow;
        uint64_t from = (out * c + in) * kk + (a->turned == OPS_TURN_ROUND ? kk - 1 - tap : tap);
        if (a->halves)
            ((uint16_t *)a->out)[i] = ((const uint16_t *)a->w)[from];
        else
            ((float *)a->out)[i] = ((const float *)a->w)[from];
    }
}

typedef struct { /* dw[out, in, k, k] += d[k, k, in, out], or d[out, k, k, in] */
    const float *d;
    float *dw;
    uint64_t elems;
    int32_t channels, outputs, kernel, out_first;
} ops_args_add_weights;
OPS_BODY(add_weights) {
    uint64_t c = (uint64_t)a->channels, n = (uint64_t)a->outputs, kk = (uint64_t)a->kernel * (uint64_t)a->kernel;
    OPS_ONE_PHASE;
    OPS_FOR_EACH(i, a->elems) {
        uint64_t tap = i % kk, in = i / kk % c, out = i / (kk * c);
        a->dw[i] += a->d[a->out_first ? (out * kk + tap) * c + in : (tap * c + in) * n + out];
    }
}

#endif
