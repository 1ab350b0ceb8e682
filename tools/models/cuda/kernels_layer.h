/* SPDX-License-Identifier: BSD-3-Clause */
/* The work of a decoder layer except products and attention, each operator in one pass (see kernels.h). A factor is
 * an operand of products: of 16 bits (`half`, half.h) or fp32. Kernels compute in fp32. */
#ifndef TESS_MODELS_CUDA_KERNELS_LAYER_H
#define TESS_MODELS_CUDA_KERNELS_LAYER_H
#include "kernels_found.h"

TESS_FN float ops_get(const void *x, uint64_t i, int32_t half) {
    return half ? ops_of_half(((const uint16_t *)x)[i]) : ((const float *)x)[i];
}
TESS_FN void ops_put(void *y, uint64_t i, int32_t half, float v) {
    if (half)
        ((uint16_t *)y)[i] = ops_half_of(v);
    else
        ((float *)y)[i] = v;
}
/* Returns the value that a store and a load would give. */
TESS_FN float ops_rounded(float v, int32_t half) {
    return half ? ops_of_half(ops_half_of(v)) : v;
}

/* ---- eight elements: 16 bytes, twice that in fp32 ------------------------------------------ */
/* A GPU refuses such an access if the address is not a multiple of 16. The host writes NaN instead, so that tests
 * fail. */
TESS_FN int ops_refuses(const void *at, int vector, uint64_t n) {
    return vector && n >= 8 && (uintptr_t)at % 16;
}
TESS_FN const char *ops_place(const void *x, uint64_t i, int32_t half) {
    return (const char *)x + i * (half ? sizeof(uint16_t) : sizeof(float));
}
/* Reads elements i … i + 7. Only n of them exist; the others become 0. With `vector` it reads 16 bytes at a time. */
TESS_FN void ops_get_eight(const void *x, uint64_t i, uint64_t n, int32_t half, int vector, float *v) {
#if defined(__CUDA_ARCH__)
    if (vector && n >= 8 && half) {
        uint4 w = *(const uint4 *)ops_place(x, i, 1);
        v[0] = ops_low(w.x), v[1] = ops_high(w.x);
        v[2] = ops_low(w.y), v[3] = ops_high(w.y);
        v[4] = ops_low(w.z), v[5] = ops_high(w.z);
        v[6] = ops_low(w.w), v[7] = ops_high(w.w);
        return;
    }
    if (vector && n >= 8) {
        float4 low = ((const float4 *)ops_place(x, i, 0))[0], high = ((const float4 *)ops_place(x, i, 0))[1];
        v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
        v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
        return;
    }
#endif
    for (uint64_t k = 0; k < 8; k++)
        v[k] = k < n ? ops_get(x, i + k, half) : 0;
    if (ops_refuses(ops_place(x, i, half), vector, n))
        v[0] = NAN;
}
/* Reads only the first four. */
TESS_FN void ops_get_four(const void *x, uint64_t i, uint64_t n, int32_t half, int vector, float *v) {
#if defined(__CUDA_ARCH__)
    if (vector && n >= 4 && half) {
        uint2 w = *(const uint2 *)ops_place(x, i, 1);
        v[0] = ops_low(w.x), v[1] = ops_high(w.x);
        v[2] = ops_low(w.y), v[3] = ops_high(w.y);
        return;
    }
    if (vector && n >= 4) {
        float4 w = *(const float4 *)ops_place(x, i, 0);
        v[0] = w.x, v[1] = w.y, v[2] = w.z, v[3] = w.w;
        return;
    }
#endif
    for (uint64_t k = 0; k < 4; k++)
        v[k] = k < n ? ops_get(x, i + k, half) : 0;
    if (vector && n >= 4 && (uintptr_t)ops_place(x, i, half) % (half ? 8 : 16))
        v[0] = NAN;
}
TESS_FN void ops_put_eight(void *y, uint64_t i, uint64_t n, int32_t half, int vector, const float *v) {
#if defined(__CUDA_ARCH__)
    if (vector && n >= 8 && half) {
        uint4 w = { ops_pair_of(v[0], v[1]), ops_pair_of(v[2], v[3]), ops_pair_of(v[4], v[5]),
                    ops_pair_of(v[6], v[7]) };
        *(uint4 *)(uintptr_t)ops_place(y, i, 1) = w;
        return;
    }
    if (vector && n >= 8) {
        ((float4 *)(uintptr_t)ops_place(y, i, 0))[0] = make_float4(v[0], v[1], v[2], v[3]);
        ((float4 *)(uintptr_t)ops_place(y, i, 0))[1] = make_float4(v[4], v[5], v[6], v[7]);
        return;
    }
#endif
    for (uint64_t k = 0; k < 8; k++)
        if (k < n)
            ops_put(y, i + k, half, ops_refuses(ops_place(y, i, half), vector, n) ? NAN : v[k]);
}
/* Returns whether each row of `width` starts at a multiple of 16 bytes and consists of whole vectors. */
TESS_FN int ops_is_vector(uint64_t width) {
    return width % 8 == 0;
}
/* Calls fn(…, n, vector). If all eight elements are `whole` vectors, it is compiled for that alone: then no branch
 * stands between loads, so that a thread waits for them once. */
#define OPS_KNOWN(whole, n, fn, ...) ((whole) ? fn(__VA_ARGS__, 8, 1) : fn(__VA_ARGS__, n, 0))
/* A thread handles eight elements of arrays that start at multiples of 16 bytes. */
#define OPS_EIGHT(i) uint64_t i = ((uint64_t)block * OPS_BLOCK + thread) * 8

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
    /* These selections avoid an index into words.v, which would take it out of registers. */
    uint32_t low = at & 1 ? words.v[1] : words.v[0], high = at & 1 ? words.v[3] : words.v[2];
    float keep = 1.0f - m->rate, grow = 1.0f / keep;
    return philox_uniform(at & 2 ? high : low) < keep ? v * grow : 0;
}

/* Masks eight neighbours of a row, if rows are whole vectors: two blocks of random words. */
TESS_FN void ops_mask_eight(const ops_cuda_mask *m, uint64_t r, uint64_t c, float *v) {
    uint64_t at = ops_mod(r, m->time) * m->width + c;
    float keep = 1.0f - m->rate, grow = 1.0f / keep;
    for (uint64_t k = 0; m->rate > 0 && k < 8; k += 4) {
        philox_block words = philox(m->seed, (uint32_t)((at + k) / 4), (uint32_t)PHILOX_DROPOUT << 24 | m->layer,
                                    (uint32_t)(m->first_sample + ops_div(r, m->time)), (uint32_t)m->step);
        for (uint64_t j = 0; j < 4; j++)
            v[k + j] = philox_uniform(words.v[j]) < keep ? v[k + j] * grow : 0;
    }
}

typedef struct {
    const void *x;
    void *y;
    uint64_t elems;
    ops_cuda_mask mask;
    int32_t half;
} ops_args_mask;
OPS_BODY(mask) {
    float v[8];
    OPS_EIGHT(i);
    OPS_ONE_PHASE;
    if (i >= a->elems)
        return;
    ops_get_eight(a->x, i, a->elems - i, a->half, 1, v);
    if (ops_is_vector(a->mask.width))
        ops_mask_eight(&a->mask, ops_div(i, a->mask.width), ops_mod(i, a->mask.width), v);
    for (uint64_t k = 0; k < 8 && !ops_is_vector(a->mask.width); k++)
        v[k] = ops_masked(&a->mask, ops_div(i + k, a->mask.width), ops_mod(i + k, a->mask.width), v[k]);
    ops_put_eight(a->y, i, a->elems - i, a->half, 1, v);
}

/* ---- bias and GELU ------------------------------------------------------------------------------ */
/* Adds the bias to eight elements, from element i on; columns wrap around at `width`. */
TESS_FN void ops_add_bias(const void *bias, uint64_t i, uint64_t width, int32_t half, int vector, float *v) {
    float b[8];
    uint64_t c = ops_mod(i, width);
    if (ops_is_vector(width))
        ops_get_eight(bias, c, 8, half, vector, b);
    for (int k = 0; k < 8; k++) {
        v[k] += ops_is_vector(width) ? b[k] : ops_get(bias, c, half);
        c = c + 1 < width ? c + 1 : 0;
    }
}

/* Returns the gain of a normalisation; with `one_more` it is 1 + w. */
TESS_FN float ops_gain(const void *w, uint64_t c, int32_t half, int32_t one_more) {
    float v = ops_get(w, c, half);
    return one_more ? v + 1.0f : v;
}
TESS_FN void ops_gain_eight(const void *w, uint64_t c, int32_t half, int32_t one_more, float *v) {
    ops_get_eight(w, c, 8, half, 1, v);
    for (int k = 0; one_more && k < 8; k++)
        v[k] += 1.0f;
}

typedef struct { /* x may be y. bias null: none. before: null, or gets x + bias. GELU reads that sum after rounding. */
    const void *x, *bias;
    void *before, *y;
    uint64_t elems, width, pitch; /* pitch 0: rows have no gaps; otherwise x is y, and only the bias is added */
    int32_t half, gelu, vector;   /* vector: all arrays start at multiples of 16 bytes; one token's row may not */
    ops_found found;              /* of y */
} ops_args_bias;
TESS_FN void ops_bias_apart(const ops_args_bias *a, uint64_t i) {
    for (uint64_t end = i + 8 < a->elems ? i + 8 : a->elems; i < end; i++) {
        uint64_t c = ops_mod(i, a->width), at = ops_div(i, a->width) * a->pitch + c;
        ops_put(a->y, at, a->half, ops_get(a->y, at, a->half) + ops_get(a->bias, c, a->half));
    }
}
TESS_FN void ops_bias_of_eight(const ops_args_bias *a, uint64_t i, uint32_t thread, double *room) {
    float v[8];
    ops_get_eight(a->x, i, a->elems - i, a->half, a->vector, v);
    if (a->bias)
        ops_add_bias(a->bias, i, a->width, a->half, a->vector, v);
    if (a->before)
        ops_put_eight(a->before, i, a->elems - i, a->half, a->vector, v);
    for (int k = 0; k < 8; k++)
        v[k] = a->gelu ? ops_gelu_of(ops_rounded(v[k], a->half)) : v[k];
    ops_put_eight(a->y, i, a->elems - i, a->half, a->vector, v);
    ops_found_add(&a->found, 0, thread, v, room);
}
OPS_BODY(bias) {
    OPS_EIGHT(i);
    if (phase) {
        ops_found_end(&a->found, block, thread, phase - 1, room);
        return;
    }
    ops_found_begin(&a->found, thread, room);
    if (i < a->elems && a->pitch)
        ops_bias_apart(a, i);
    else if (i < a->elems)
        ops_bias_of_eight(a, i, thread, room);
}

typedef struct { /* dx of GELU, and y = GELU(x) computed again; dx may be dy */
    const void *x, *dy;
    void *dx, *y;
    uint64_t elems;
    int32_t half;
    ops_found found; /* of dx and y */
} ops_args_gelu_slopes;
TESS_FN void ops_gelu_slopes_eight(const ops_args_gelu_slopes *a, uint64_t i, uint32_t thread, double *room, uint64_t n,
                                   int vector) {
    float x[8], dy[8];
    ops_get_eight(a->x, i, n, a->half, vector, x);
    ops_get_eight(a->dy, i, n, a->half, vector, dy);
    for (int k = 0; k < 8; k++) {
        dy[k] = ops_gelu_slope_of(x[k], dy[k]);
        x[k] = ops_gelu_of(x[k]);
    }
    ops_put_eight(a->dx, i, n, a->half, vector, dy);
    ops_put_eight(a->y, i, n, a->half, vector, x);
    ops_found_add(&a->found, 0, thread, dy, room);
    ops_found_add(&a->found, 1, thread, x, room);
}
OPS_BODY(gelu_slopes) {
    OPS_EIGHT(i);
    if (phase) {
        ops_found_end(&a->found, block, thread, phase - 1, room);
        return;
    }
    ops_found_begin(&a->found, thread, room);
    if (i < a->elems)
        OPS_KNOWN(a->elems - i >= 8, a->elems - i, ops_gelu_slopes_eight, a, i, thread, room);
}

/* ---- residual and normalisation ----------------------------------------------------------------- */
/* Returns a bias, or 0 if there is none. */
TESS_FN float ops_bias_at(const void *bias, uint64_t c, int32_t half) {
    return bias ? ops_get(bias, c, half) : 0;
}
TESS_FN void ops_bias_eight(const void *bias, uint64_t c, int32_t half, float *v) {
    for (int k = 0; !bias && k < 8; k++)
        v[k] = 0;
    if (bias)
        ops_get_eight(bias, c, 8, half, 1, v);
}

typedef struct { /* sum = x + masked(add + add_bias); next = sum + next_bias; y = the sum, normalised */
    const void *x, *add, *add_bias, *next_bias, *w, *b; /* add null: sum is x and is not written; null biases: none */
    void *sum, *next, *y;                               /* next, y null: not written */
    float *stats;
    uint64_t rows, width;
    ops_cuda_mask mask;
    double eps;
    int32_t half, about_zero, one_more; /* about_zero: Llama's normalisation by the root of the mean square */
    uint32_t tile_rows;                 /* kernels_norm.h */
    ops_found found;                    /* of y; with tile_rows only */
} ops_args_norm;
TESS_FN float ops_norm_sum(const ops_args_norm *a, uint64_t r, uint64_t c) {
    uint64_t i = r * a->width + c;
    float x = ops_get(a->x, i, a->half), add;
    if (!a->add)
        return x;
    add = ops_get(a->add, i, a->half) + ops_bias_at(a->add_bias, c, a->half);
    x = ops_rounded(x + ops_masked(&a->mask, r, c, add), a->half);
    ops_put(a->sum, i, a->half, x);
    if (a->next)
        ops_put(a->next, i, a->half, x + ops_bias_at(a->next_bias, c, a->half));
    return x;
}
OPS_BODY(norm) {
    OPS_ROW;
    if (r >= a->rows)
        return;
    const void *x = a->add ? a->sum : a->x; /* each lane reads only elements that it wrote itself */
    float sum = 0;
    if (phase == 0) {
        for (uint64_t c = lane; c < a->width; c += OPS_LANES)
            sum += ops_norm_sum(a, r, c);
        room[thread] = (double)sum;
        return;
    }
    if (!a->y)
        return;
    float mean = a->about_zero ? 0 : (float)(ops_add_lanes(room, within) / (double)a->width);
    if (phase == 1) {
        for (uint64_t c = lane; c < a->width; c += OPS_LANES) {
            float d = ops_get(x, r * a->width + c, a->half) - mean;
            sum += d * d;
        }
        room[OPS_BLOCK + thread] = (double)sum;
        return;
    }
    float rsigma = ops_rsigma_with(ops_add_lanes(room + OPS_BLOCK, within) / (double)a->width, a->eps);
    for (uint64_t c = lane; c < a->width; c += OPS_LANES)
        ops_put(a->y, r * a->width + c, a->half,
                ops_norm_of(ops_get(x, r * a->width + c, a->half), mean, rsigma,
                            ops_gain(a->w, c, a->half, a->one_more), ops_bias_at(a->b, c, a->half)));
    if (lane == 0) {
        a->stats[2 * r] = mean;
        a->stats[2 * r + 1] = rsigma;
    }
}

typedef struct { /* dx = add + the gradient of x; masked: dx with dropout's mask; normal: y, computed again */
    const void *x, *w, *b, *dy, *add; /* add null: none */
    const float *stats;
    void *dx, *masked, *normal; /* masked, normal null: not written */
    uint64_t rows, width;
    ops_cuda_mask mask;
    int32_t half, about_zero, one_more;
    uint32_t tile_rows; /* kernels_norm.h */
    ops_found found;    /* of masked, or without it of dx, and of normal; with tile_rows only */
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
            float g = ops_get(a->dy, at + c, a->half) * ops_gain(a->w, c, a->half, a->one_more);
            sum += g;
            dot += g * ((ops_get(a->x, at + c, a->half) - mean) * rsigma);
        }
        room[thread] = (double)sum;
        room[OPS_BLOCK + thread] = (double)dot;
        return;
    }
    float g_mean = a->about_zero ? 0 : (float)(ops_add_lanes(room, within) / (double)a->width);
    float g_dot = (float)(ops_add_lanes(room + OPS_BLOCK, within) / (double)a->width);
    OPS_ROLLED for (uint64_t c = lane; c < a->width; c += OPS_LANES) {
        float x = ops_get(a->x, at + c, a->half), w = ops_gain(a->w, c, a->half, a->one_more);
        float d = ops_layernorm_slope_of(x, mean, rsigma, ops_get(a->dy, at + c, a->half) * w, g_mean, g_dot);
        d = a->add ? d + ops_get(a->add, at + c, a->half) : d;
        if (a->normal)
            ops_put(a->normal, at + c, a->half, ops_norm_of(x, mean, rsigma, w, ops_bias_at(a->b, c, a->half)));
        ops_put(a->dx, at + c, a->half, d);
        if (a->masked)
            ops_put(a->masked, at + c, a->half, ops_masked(&a->mask, r, c, ops_rounded(d, a->half)));
    }
}

/* ---- embedding --------------------------------------------------------------------------------------- */
typedef struct { /* y[row] = masked(scale · table[ids[row]] + position[places[row]]); position null: none */
    const int32_t *ids, *places; /* null: ids[row] = row, places[row] = row mod time */
    const void *table, *position;
    void *y;
    uint64_t elems;
    ops_cuda_mask mask;
    float scale;
    int32_t half;
} ops_args_embed;
TESS_FN uint64_t ops_embed_row(const ops_args_embed *a, uint64_t r) {
    return a->ids ? (uint64_t)a->ids[r] : r;
}
TESS_FN uint64_t ops_embed_place(const ops_args_embed *a, uint64_t r) {
    return a->places ? (uint64_t)a->places[r] : ops_mod(r, a->mask.time);
}
TESS_FN void ops_embed_one(const ops_args_embed *a, uint64_t i) {
    uint64_t width = a->mask.width, r = ops_div(i, width), c = ops_mod(i, width);
    float v = ops_get(a->table, ops_embed_row(a, r) * width + c, a->half) * a->scale;
    v += ops_bias_at(a->position, ops_embed_place(a, r) * width + c, a->half);
    ops_put(a->y, i, a->half, ops_masked(&a->mask, r, c, v));
}
OPS_BODY(embed) {
    float v[8], p[8];
    OPS_EIGHT(i);
    uint64_t width = a->mask.width, r = ops_div(i, width), c = ops_mod(i, width);
    OPS_ONE_PHASE;
    if (!ops_is_vector(width)) {
        for (uint64_t end = i + 8; i < end && i < a->elems; i++)
            ops_embed_one(a, i);
        return;
    }
    if (i >= a->elems)
        return;
    ops_get_eight(a->table, ops_embed_row(a, r) * width + c, 8, a->half, 1, v);
    ops_bias_eight(a->position, ops_embed_place(a, r) * width + c, a->half, p);
    for (int k = 0; k < 8; k++)
        v[k] = v[k] * a->scale + p[k];
    ops_mask_eight(&a->mask, r, c, v);
    ops_put_eight(a->y, i, 8, a->half, 1, v);
}

/* `order` gets the rows sorted by id, and by row within an id; `sorted` gets their ids. The rows that precede a row are
 * counted, by eight threads, so the number of ids does not matter. */
enum { OPS_SORT_SLICES = 8, OPS_SORT_ROWS = OPS_BLOCK / OPS_SORT_SLICES /* of a block */ };
typedef struct {
    const int32_t *ids;
    int32_t *order, *sorted;
    uint32_t rows;
} ops_args_sort_ids;
OPS_BODY(sort_ids) {
    uint32_t slice = thread / OPS_SORT_ROWS, within = thread % OPS_SORT_ROWS, r = block * OPS_SORT_ROWS + within;
    uint32_t each = (a->rows + OPS_SORT_SLICES - 1) / OPS_SORT_SLICES, last = (slice + 1) * each, at = 0;
    if (r >= a->rows || (phase && slice))
        return;
    int32_t id = a->ids[r];
    if (phase == 0) {
        last = last < a->rows ? last : a->rows;
        for (uint32_t k = slice * each; k < last; k++)
            at += a->ids[k] < id + (k < r);
        room[thread] = at;
        return;
    }
    for (uint32_t k = 0; k < OPS_SORT_SLICES; k++)
        at += (uint32_t)room[k * OPS_SORT_ROWS + within];
    a->order[at] = (int32_t)r;
    a->sorted[at] = id;
}

/* The first blocks handle sorted rows, the others positions; a null gradient is not computed. The thread at the
 * first row of an id adds up all rows of that id. */
typedef struct {
    const int32_t *order, *sorted;
    const void *dy;
    float *dtable, *dposition;
    uint64_t rows, time, width;
    float scale; /* factor of the table's gradient */
    int32_t half, add_position;
} ops_args_embed_slopes;
/* A thread has eight columns if rows are whole vectors, otherwise one. */
TESS_FN uint64_t ops_columns_of_thread(uint64_t width) {
    return ops_is_vector(width) ? 8 : 1;
}
enum { OPS_EMBED_AHEAD = 16 }; /* rows that a thread has under way at once */
/* Adds n rows of dy in their order, at most OPS_EMBED_AHEAD: `order` from k on, or without it rows k, k + `apart`, … */
TESS_FN void ops_add_few(const ops_args_embed_slopes *a, const int32_t *order, uint64_t k, uint64_t apart, uint64_t n,
                         uint64_t c, float scale, uint64_t columns, float *sum) {
    float dy[OPS_EMBED_AHEAD][8];
    for (uint64_t i = 0; i < OPS_EMBED_AHEAD; i++) {
        uint64_t at = k + (i < n ? i : 0) * apart, r = order ? (uint64_t)order[at] : at;
        ops_get_eight(a->dy, r * a->width + c, columns, a->half, 1, dy[i]);
    }
    for (uint64_t i = 0; i < OPS_EMBED_AHEAD; i++)
        for (int e = 0; e < 8; e++)
            sum[e] = i < n ? sum[e] + dy[i][e] * scale : sum[e];
}
/* Returns how many sorted rows from k on have this id, at most OPS_EMBED_AHEAD. */
TESS_FN uint64_t ops_same_ids(const ops_args_embed_slopes *a, uint64_t k, int32_t id) {
    uint64_t n = 0;
    for (uint64_t i = 0; i < OPS_EMBED_AHEAD; i++)
        n += k + i < a->rows && a->sorted[k + i] == id;
    return n;
}
TESS_FN void ops_add_rows(const ops_args_embed_slopes *a, uint64_t first, uint64_t c, uint64_t columns) {
    int32_t id = a->sorted[first];
    uint64_t to = (uint64_t)id * a->width + c;
    float sum[8];
    if (first && a->sorted[first - 1] == id)
        return;
    ops_get_eight(a->dtable, to, columns, 0, 1, sum);
    for (uint64_t k = first, same; (same = ops_same_ids(a, k, id)); k += same)
        ops_add_few(a, a->order, k, 1, same, c, a->scale, columns, sum);
    ops_put_eight(a->dtable, to, columns, 0, 1, sum);
}
TESS_FN void ops_add_positions(const ops_args_embed_slopes *a, uint64_t row, uint64_t c, uint64_t columns) {
    float sum[8] = { 0 };
    if (a->add_position)
        ops_get_eight(a->dposition, row * a->width + c, columns, 0, 1, sum);
    for (uint64_t r = row; r < a->rows; r += OPS_EMBED_AHEAD * a->time) {
        uint64_t left = ops_div(a->rows - r + a->time - 1, a->time), most = OPS_EMBED_AHEAD;
        ops_add_few(a, NULL, r, a->time, left < most ? left : most, c, 1, columns, sum);
    }
    ops_put_eight(a->dposition, row * a->width + c, columns, 0, 1, sum);
}
TESS_FN void ops_embed_slopes_of(const ops_args_embed_slopes *a, uint64_t i, uint64_t columns, int vector) {
    uint64_t threads = a->width / columns, row = ops_div(i, threads), c = ops_mod(i, threads) * columns;
    (void)vector;
    if (row < a->rows && a->dtable)
        ops_add_rows(a, row, c, columns);
    if (row >= a->rows && row - a->rows < a->time && a->dposition)
        ops_add_positions(a, row - a->rows, c, columns);
}
OPS_BODY(embed_slopes) {
    uint64_t i = (uint64_t)block * OPS_BLOCK + thread;
    OPS_ONE_PHASE;
    OPS_KNOWN(ops_is_vector(a->width), 1, ops_embed_slopes_of, a, i);
}
#endif
