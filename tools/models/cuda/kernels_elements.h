/* SPDX-License-Identifier: BSD-3-Clause */
/* Kernels of single elements, pools and indices (see kernels.h). */
#ifndef TESS_MODELS_CUDA_KERNELS_ELEMENTS_H
#define TESS_MODELS_CUDA_KERNELS_ELEMENTS_H
#include "half.h"
#include "kernel_body.h"

/* ---- element by element ------------------------------------------------------------------------ */
typedef struct {
    const float *x;
    uint16_t *y;
    uint64_t elems;
} ops_args_narrow;
OPS_BODY(narrow) {
    OPS_ONE_PHASE;
    OPS_LOAD(float, x, a->x, a->elems);
    OPS_STORE(i, k, a->elems) a->y[i] = ops_half_of(x[k]);
}

typedef struct {
    const uint16_t *x;
    float *y;
    uint64_t elems;
} ops_args_widen;
OPS_BODY(widen) {
    OPS_ONE_PHASE;
    OPS_LOAD(uint16_t, x, a->x, a->elems);
    OPS_STORE(i, k, a->elems) a->y[i] = ops_of_half(x[k]);
}

typedef struct {
    const float *x;
    float *y;
    uint64_t elems;
} ops_args_add;
OPS_BODY(add) {
    OPS_ONE_PHASE;
    OPS_LOAD(float, x, a->x, a->elems);
    OPS_LOAD(float, y, a->y, a->elems);
    OPS_STORE(i, k, a->elems) a->y[i] = y[k] + x[k];
}

typedef struct {
    const float *y, *dy;
    float *dx;
    uint64_t elems;
    float scale;
} ops_args_relu_backward;
OPS_BODY(relu_backward) {
    OPS_ONE_PHASE;
    OPS_LOAD(float, y, a->y, a->elems);
    OPS_LOAD(float, dy, a->dy, a->elems);
    OPS_STORE(i, k, a->elems) a->dx[i] = ops_relu_slope_of(y[k], dy[k], a->scale);
}

typedef struct { /* b null: none */
    const float *b;
    float *y;
    uint64_t elems, width;
    int32_t relu;
} ops_args_bias_relu;
OPS_BODY(bias_relu) {
    OPS_ONE_PHASE;
    OPS_LOAD(float, y, a->y, a->elems);
    OPS_STORE(i, k, a->elems) a->y[i] = ops_bias_relu_of(y[k], a->b, ops_mod(i, a->width), a->relu);
}

typedef struct { /* each thread handles the four elements of one block of random words */
    float *x;
    uint64_t samples, elems, seed, step, first_sample;
    uint32_t layer;
    float rate;
} ops_args_dropout;
OPS_BODY(dropout) {
    uint64_t groups = (a->elems + 3) / 4, at = (uint64_t)block * OPS_BLOCK + thread;
    uint64_t sample = ops_div(at, groups);
    uint64_t first = ops_mod(at, groups) * 4;
    float keep = 1.0f - a->rate, grow = 1.0f / keep;
    OPS_ONE_PHASE;
    if (sample >= a->samples)
        return;
    float *x = a->x + sample * a->elems + first;
    philox_block words = philox(a->seed, (uint32_t)(first / 4), (uint32_t)PHILOX_DROPOUT << 24 | a->layer,
                                (uint32_t)(a->first_sample + sample), (uint32_t)a->step);
    for (int j = 0; j < 4; j++)
        if (first + (uint64_t)j < a->elems)
            x[j] = philox_uniform(words.v[j]) < keep ? x[j] * grow : 0;
}

/* ---- pools ------------------------------------------------------------------------------------- */
typedef struct { /* images: batch, height, width, channels; y: batch, channels, height / 2, width / 2 */
    const float *x;
    float *y;
    uint8_t *which; /* null: not wanted */
    int32_t batch, height, width, channels;
} ops_args_maxpool;
OPS_BODY(maxpool) {
    int64_t h = a->height / 2, w = a->width / 2, c = a->channels;
    uint64_t elems = (uint64_t)(a->batch * h * w * c);
    OPS_ONE_PHASE;
    OPS_FOR_EACH(i, elems) {
        int64_t channel = (int64_t)i % c, place = (int64_t)i / c % (h * w), n = (int64_t)i / (c * h * w), best = 0;
        const float *image = a->x + n * a->height * a->width * c + channel;
        float most = image[ops_window_place(a->width, c, place / w, place % w, 0)];
        for (int k = 1; k < 4; k++) { /* the first of equal values wins */
            float v = image[ops_window_place(a->width, c, place / w, place % w, k)];
            best = v > most ? k : best;
            most = v > most ? v : most;
        }
        a->y[(n * c + channel) * h * w + place] = most;
        if (a->which)
            a->which[(n * c + channel) * h * w + place] = (uint8_t)best;
    }
}

typedef struct {
    const float *y, *dy;
    const uint8_t *which;
    float *dx;
    int32_t batch, height, width, channels;
    float scale;
} ops_args_maxpool_backward;
OPS_BODY(maxpool_backward) {
    int64_t h = a->height / 2, w = a->width / 2, c = a->channels;
    uint64_t elems = (uint64_t)a->batch * (uint64_t)a->height * (uint64_t)a->width * (uint64_t)c;
    OPS_ONE_PHASE;
    OPS_FOR_EACH(i, elems) {
        int64_t channel = (int64_t)i % c, column = (int64_t)i / c % a->width;
        int64_t row = (int64_t)i / (c * a->width) % a->height, n = (int64_t)i / (c * a->width * a->height);
        int64_t from = ((n * c + channel) * h + row / 2) * w + column / 2;
        int inside = row / 2 < h && column / 2 < w, mine = (int)(row % 2 * 2 + column % 2);
        a->dx[i] = inside && a->which[from] == mine && a->y[from] > 0 ? a->scale * a->dy[from] : 0;
    }
}

typedef struct {
    const float *dy;
    float *dx;
    uint64_t elems, places, channels;
} ops_args_avgpool_backward;
OPS_BODY(avgpool_backward) {
    OPS_ONE_PHASE;
    OPS_FOR_EACH(i, a->elems) {
        uint64_t sample = ops_div(i, a->places * a->channels), c = ops_mod(i, a->channels);
        a->dx[i] = (float)((double)a->dy[sample * a->channels + c] / (double)a->places);
    }
}

/* ---- indices ----------------------------------------------------------------------------------- */
typedef struct {
    const uint8_t *text;
    int32_t *out;
    uint64_t elems, time, stride;
} ops_args_ids;
OPS_BODY(ids) {
    OPS_ONE_PHASE;
    OPS_FOR_EACH(i, a->elems) {
        uint64_t at = ops_div(i, a->time) * a->stride + ops_mod(i, a->time);
        a->out[i] = a->text[at];
    }
}

typedef struct {
    const int32_t *tokens;
    int32_t *out;
    uint64_t elems, time, stride;
    int32_t ignored, marks; /* a token with the bit `ignored` becomes -1; other tokens lose the bits `marks` */
} ops_args_tokens;
OPS_BODY(tokens) {
    OPS_ONE_PHASE;
    OPS_FOR_EACH(i, a->elems) {
        int32_t token = a->tokens[ops_div(i, a->time) * a->stride + ops_mod(i, a->time)];
        a->out[i] = token & a->ignored ? -1 : token & ~a->marks;
    }
}

typedef struct {
    const int32_t *tokens;
    int32_t *out;
    uint64_t elems, time, stride;
    int32_t begins; /* the mark of a document's first token */
} ops_args_places;
OPS_BODY(places) {
    OPS_ONE_PHASE;
    OPS_FOR_EACH(i, a->elems) {
        uint64_t at = ops_mod(i, a->time), begin = at;
        const int32_t *sample = a->tokens + ops_div(i, a->time) * a->stride;
        while (begin > 0 && !(sample[begin] & a->begins))
            begin--;
        a->out[i] = (int32_t)(at - begin);
    }
}

#endif
