/* SPDX-License-Identifier: BSD-3-Clause */
/* The work of a decoder layer beside its products and attention, each in one pass: kernels.h. A factor is what products
 * take, bf16 (`half`) or fp32; what is computed is fp32. */
#ifndef TESS_MODELS_CUDA_KERNELS_LAYER_H
#define TESS_MODELS_CUDA_KERNELS_LAYER_H
#include "kernel_body.h"

TESS_FN float ops_get(const void *x, uint64_t i, int32_t half) {
    return half ? tess_f32_of_bf16(((const uint16_t *)x)[i]) : ((const float *)x)[i];
}
TESS_FN void ops_put(void *y, uint64_t i, int32_t half, float v) {
    if (half)
        ((uint16_t *)y)[i] = tess_bf16_of_f32(v);
    else
        ((float *)y)[i] = v;
}
/* The value that reading it again would give. */
TESS_FN float ops_rounded(float v, int32_t half) {
    return half ? tess_f32_of_bf16(tess_bf16_of_f32(v)) : v;
}

/* Elements i … i + 3, which lie in one vector when all are there; those beyond `n` are 0 and not written. */
TESS_FN void ops_get_four(const void *x, uint64_t i, uint64_t n, int32_t half, float *v) {
#if defined(__CUDA_ARCH__)
    if (i + 4 <= n && half) {
        uint2 two = *(const uint2 *)((const uint16_t *)x + i);
        v[0] = tess_f32_of_bits(two.x << 16), v[1] = tess_f32_of_bits(two.x & 0xffff0000u);
        v[2] = tess_f32_of_bits(two.y << 16), v[3] = tess_f32_of_bits(two.y & 0xffff0000u);
        return;
    }
    if (i + 4 <= n) {
        float4 four = *(const float4 *)((const float *)x + i);
        v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
        return;
    }
#endif
    for (uint64_t k = 0; k < 4; k++)
        v[k] = i + k < n ? ops_get(x, i + k, half) : 0;
}
TESS_FN void ops_put_four(void *y, uint64_t i, uint64_t n, int32_t half, const float *v) {
#if defined(__CUDA_ARCH__)
    if (i + 4 <= n && half) {
        uint2 two = { tess_bf16_of_f32(v[0]) | (uint32_t)tess_bf16_of_f32(v[1]) << 16,
                      tess_bf16_of_f32(v[2]) | (uint32_t)tess_bf16_of_f32(v[3]) << 16 };
        *(uint2 *)((uint16_t *)y + i) = two;
        return;
    }
    if (i + 4 <= n) {
        *(float4 *)((float *)y + i) = make_float4(v[0], v[1], v[2], v[3]);
        return;
    }
#endif
    for (uint64_t k = 0; k < 4; k++)
        if (i + k < n)
            ops_put(y, i + k, half, v[k]);
}
/* The four elements of a thread. */
#define OPS_FOUR(i) uint64_t i = ((uint64_t)block * OPS_BLOCK + thread) * 4

/* ---- dropout ----------------------------------------------------------------------------------- */
typedef struct { /* rows of `width`; `time` rows are a sample. rate 0: none */
    uint64_t seed, step, first_sample, time, width;
    uint32_t layer;
    float rate;
} ops_cuda_mask;
TESS_FN float ops_masked(const ops_cuda_mask *m, uint64_t r, uint64_t c, float v) {
    if (!(m->rate > 0))
        return v;
    uint64_t sample = ops_div(r, m->time), at = ops_mod(r, m->time) * m->width + c;
    philox_block words = philox(m->seed, (uint32_t)(at / 4), (uint32_t)PHILOX_DROPOUT << 24 | m->layer,
                                (uint32_t)(m->first_sample + sample), (uint32_t)m->step);
    uint32_t low = at & 1 ? words.v[1] : words.v[0], high = at & 1 ? words.v[3] : words.v[2]; /* no index: registers */
    float keep = 1.0f - m->rate, grow = 1.0f / keep;
    return philox_uniform(at & 2 ? high : low) < keep ? v * grow : 0;
}

typedef struct {
    const void *x;
    void *y;
    uint64_t elems;
    ops_cuda_mask mask;
    int32_t half;
} ops_args_mask;
OPS_BODY(mask) {
    float v[4];
    OPS_FOUR(i);
    OPS_ONE_PHASE;
    if (i >= a->elems)
        return;
    ops_get_four(a->x, i, a->elems, a->half, v);
    for (uint64_t k = 0; k < 4; k++)
        v[k] = ops_masked(&a->mask, ops_div(i + k, a->mask.width), ops_mod(i + k, a->mask.width), v[k]);
    ops_put_four(a->y, i, a->elems, a->half, v);
}

/* ---- bias and GELU ------------------------------------------------------------------------------ */
TESS_FN void ops_add_bias(const void *bias, uint64_t i, uint64_t width, int32_t half, float *v) {
    uint64_t c = ops_mod(i, width);
    for (uint64_t k = 0; k < 4; k++, c = c + 1 < width ? c + 1 : 0)
        v[k] += ops_get(bias, c, half);
}

typedef struct { /* x may be y. bias null: none; before: not null gets x + bias, which GELU is then taken of as rounded
                  */
    const void *x, *bias;
    void *before, *y;
    uint64_t elems, width;
    int32_t half, gelu;
} ops_args_bias;
OPS_BODY(bias) {
    float v[4];
    OPS_FOUR(i);
    OPS_ONE_PHASE;
    if (i >= a->elems)
        return;
    ops_get_four(a->x, i, a->elems, a->half, v);
    if (a->bias)
        ops_add_bias(a->bias, i, a->width, a->half, v);
    if (a->before)
        ops_put_four(a->before, i, a->elems, a->half, v);
    for (int k = 0; k < 4; k++)
        v[k] = a->gelu ? ops_gelu_of(ops_rounded(v[k], a->half)) : v[k];
    ops_put_four(a->y, i, a->elems, a->half, v);
}

typedef struct { /* dx of GELU, and what it had made; dx may be dy */
    const void *x, *dy;
    void *dx, *y;
    uint64_t elems;
    int32_t half;
} ops_args_gelu_slopes;
OPS_BODY(gelu_slopes) {
    float x[4], dy[4];
    OPS_FOUR(i);
    OPS_ONE_PHASE;
    if (i >= a->elems)
        return;
    ops_get_four(a->x, i, a->elems, a->half, x);
    ops_get_four(a->dy, i, a->elems, a->half, dy);
    for (int k = 0; k < 4; k++) {
        dy[k] = ops_gelu_slope_of(x[k], dy[k]);
        x[k] = ops_gelu_of(x[k]);
    }
    ops_put_four(a->dx, i, a->elems, a->half, dy);
    ops_put_four(a->y, i, a->elems, a->half, x);
}

/* ---- residual and normalisation ----------------------------------------------------------------- */
typedef struct { /* sum = x + masked(add + add_bias); next = sum + next_bias; y = the sum, normalised */
    const void *x, *add, *add_bias, *next_bias, *w, *b; /* add null: sum is x, and not written */
    void *sum, *next, *y;                               /* next, y null: not wanted */
    float *stats;
    uint64_t rows, width;
    ops_cuda_mask mask;
    int32_t half;
} ops_args_norm;
TESS_FN float ops_norm_sum(const ops_args_norm *a, uint64_t r, uint64_t c) {
    uint64_t i = r * a->width + c;
    float x = ops_get(a->x, i, a->half), add;
    if (!a->add)
        return x;
    add = ops_get(a->add, i, a->half) + ops_get(a->add_bias, c, a->half);
    x = ops_rounded(x + ops_masked(&a->mask, r, c, add), a->half);
    ops_put(a->sum, i, a->half, x);
    if (a->next)
        ops_put(a->next, i, a->half, x + ops_get(a->next_bias, c, a->half));
    return x;
}
OPS_BODY(norm) {
    OPS_ROW;
    if (r >= a->rows)
        return;
    const void *x = a->add ? a->sum : a->x; /* a lane reads what it wrote itself */
    float sum = 0;
    if (phase == 0) {
        for (uint64_t c = lane; c < a->width; c += OPS_LANES)
            sum += ops_norm_sum(a, r, c);
        room[thread] = (double)sum;
        return;
    }
    if (!a->y)
        return;
    float mean = (float)(ops_add_lanes(room, within) / (double)a->width);
    if (phase == 1) {
        for (uint64_t c = lane; c < a->width; c += OPS_LANES) {
            float d = ops_get(x, r * a->width + c, a->half) - mean;
            sum += d * d;
        }
        room[OPS_BLOCK + thread] = (double)sum;
        return;
    }
    float rsigma = ops_rsigma_of(ops_add_lanes(room + OPS_BLOCK, within) / (double)a->width);
    for (uint64_t c = lane; c < a->width; c += OPS_LANES)
        ops_put(a->y, r * a->width + c, a->half,
                ops_norm_of(ops_get(x, r * a->width + c, a->half), mean, rsigma, ops_get(a->w, c, a->half),
                            ops_get(a->b, c, a->half)));
    if (lane == 0) {
        a->stats[2 * r] = mean;
        a->stats[2 * r + 1] = rsigma;
    }
}

typedef struct { /* dx = add + the gradient of x; masked: the same as dropout lets it back; normal: y, made again */
    const void *x, *w, *b, *dy, *add; /* add null: none */
    const float *stats;
    void *dx, *masked, *normal; /* masked, normal null: not wanted */
    uint64_t rows, width;
    ops_cuda_mask mask;
    int32_t half;
} ops_args_norm_slopes;
OPS_BODY(norm_slopes) {
    OPS_ROW;
    if (r >= a->rows)
        return;
    uint64_t at = r * a->width;
    float mean = a->stats[2 * r], rsigma = a->stats[2 * r + 1];
    if (phase == 0) {
        float sum = 0, dot = 0;
        for (uint64_t c = lane; c < a->width; c += OPS_LANES) {
            float g = ops_get(a->dy, at + c, a->half) * ops_get(a->w, c, a->half);
            sum += g;
            dot += g * ((ops_get(a->x, at + c, a->half) - mean) * rsigma);
        }
        room[thread] = (double)sum;
        room[OPS_BLOCK + thread] = (double)dot;
        return;
    }
    float g_mean = (float)(ops_add_lanes(room, within) / (double)a->width);
    float g_dot = (float)(ops_add_lanes(room + OPS_BLOCK, within) / (double)a->width);
    OPS_ROLLED for (uint64_t c = lane; c < a->width; c += OPS_LANES) {
        float x = ops_get(a->x, at + c, a->half), w = ops_get(a->w, c, a->half);
        float d = ops_layernorm_slope_of(x, mean, rsigma, ops_get(a->dy, at + c, a->half) * w, g_mean, g_dot);
        d = a->add ? d + ops_get(a->add, at + c, a->half) : d;
        if (a->normal)
            ops_put(a->normal, at + c, a->half, ops_norm_of(x, mean, rsigma, w, ops_get(a->b, c, a->half)));
        ops_put(a->dx, at + c, a->half, d);
        if (a->masked)
            ops_put(a->masked, at + c, a->half, ops_masked(&a->mask, r, c, ops_rounded(d, a->half)));
    }
}

/* ---- gradients of biases and gains, of a whole layer: 16 columns of 16 lanes each to a block ------ */
enum { OPS_COLUMN_JOBS = 8, OPS_JOB_COLUMNS = 16, OPS_JOB_LANES = OPS_BLOCK / OPS_JOB_COLUMNS };
typedef struct { /* db = the sums of dy's columns; dw, where wanted, those of dy times normalised x */
    const void *x, *dy;
    const float *stats;
    float *dw, *db; /* null: not wanted */
    uint32_t width, first_block;
} ops_cuda_columns;
typedef struct {
    ops_cuda_columns jobs[OPS_COLUMN_JOBS];
    uint64_t rows;
    int32_t n_jobs, half, add;
} ops_args_columns;
TESS_FN void ops_column_sums(const ops_cuda_columns *j, const ops_args_columns *a, uint64_t c, uint32_t lane,
                             double *dw, double *db) {
    *dw = *db = 0;
    for (uint64_t r = lane; r < a->rows; r += OPS_JOB_LANES) {
        float dy = ops_get(j->dy, r * j->width + c, a->half);
        *db += (double)dy;
        if (j->dw)
            *dw += (double)(dy * ((ops_get(j->x, r * j->width + c, a->half) - j->stats[2 * r]) * j->stats[2 * r + 1]));
    }
}
TESS_FN void ops_column_end(float *out, int32_t add, const double *room, uint32_t column) {
    double sum = 0;
    for (int lane = 0; lane < OPS_JOB_LANES; lane++)
        sum += room[lane * OPS_JOB_COLUMNS + (int)column];
    if (out)
        *out = add ? *out + (float)sum : (float)sum;
}
OPS_BODY(columns) {
    int32_t k = 0;
    while (k + 1 < a->n_jobs && a->jobs[k + 1].first_block <= block)
        k++;
    const ops_cuda_columns *j = &a->jobs[k];
    uint64_t c = (uint64_t)(block - j->first_block) * OPS_JOB_COLUMNS + thread % OPS_JOB_COLUMNS;
    if (c >= j->width)
        return;
    if (phase == 0) {
        ops_column_sums(j, a, c, thread / OPS_JOB_COLUMNS, &room[thread], &room[OPS_BLOCK + thread]);
    } else if (thread < OPS_JOB_COLUMNS) {
        ops_column_end(j->dw ? j->dw + c : j->dw, a->add, room, thread);
        ops_column_end(j->db ? j->db + c : j->db, a->add, room + OPS_BLOCK, thread);
    }
}

/* ---- the two ends -------------------------------------------------------------------------------- */
typedef struct { /* y[row] = masked(table[ids[row]] + position[row mod time]) */
    const int32_t *ids;
    const void *table, *position;
    void *y;
    uint64_t elems;
    ops_cuda_mask mask;
    int32_t half;
} ops_args_embed;
OPS_BODY(embed) {
    OPS_ONE_PHASE;
    OPS_FOR_EACH(i, a->elems) {
        uint64_t width = a->mask.width, r = ops_div(i, width), c = ops_mod(i, width);
        float v = ops_get(a->table, (uint64_t)a->ids[r] * width + c, a->half);
        v += ops_get(a->position, ops_mod(r, a->mask.time) * width + c, a->half);
        ops_put(a->y, i, a->half, ops_masked(&a->mask, r, c, v));
    }
}

typedef struct { /* order: the rows by their id, those of one id in their order; sorted: their ids. By counting what
                  * comes before: any number of ids, no sum that two threads share */
    const int32_t *ids;
    int32_t *order, *sorted;
    uint32_t rows;
} ops_args_sort_ids;
OPS_BODY(sort_ids) {
    uint32_t r = block * OPS_BLOCK + thread, at = 0;
    OPS_ONE_PHASE;
    if (r >= a->rows)
        return;
    int32_t id = a->ids[r];
    for (uint32_t k = 0; k < a->rows; k++)
        at += a->ids[k] < id + (k < r);
    a->order[at] = (int32_t)r;
    a->sorted[at] = id;
}

typedef struct { /* sorted rows first, then the positions; null: not wanted. The first row of an id adds up all of them
                  */
    const int32_t *order, *sorted;
    const void *dy;
    float *dtable, *dposition;
    uint64_t rows, time, width;
    int32_t half, add_position;
} ops_args_embed_slopes;
TESS_FN void ops_add_rows(const ops_args_embed_slopes *a, uint64_t first, uint64_t c) {
    int32_t id = a->sorted[first];
    if (first && a->sorted[first - 1] == id)
        return;
    float *to = a->dtable + (uint64_t)id * a->width + c, sum = *to;
    for (uint64_t k = first; k < a->rows && a->sorted[k] == id; k++)
        sum += ops_get(a->dy, (uint64_t)a->order[k] * a->width + c, a->half);
    *to = sum;
}
OPS_BODY(embed_slopes) {
    uint64_t i = (uint64_t)block * OPS_BLOCK + thread, row = ops_div(i, a->width), c = ops_mod(i, a->width);
    OPS_ONE_PHASE;
    if (row < a->rows) {
        if (a->dtable)
            ops_add_rows(a, row, c);
        return;
    }
    row -= a->rows;
    if (row >= a->time || !a->dposition)
        return;
    float sum = a->add_position ? a->dposition[row * a->width + c] : 0;
    for (uint64_t r = row; r < a->rows; r += a->time)
        sum += ops_get(a->dy, r * a->width + c, a->half);
    a->dposition[row * a->width + c] = sum;
}
#endif
