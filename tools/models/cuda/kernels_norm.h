/* SPDX-License-Identifier: BSD-3-Clause */
/* Normalisation of rows that consist of whole vectors and fit into a block's shared memory. Sums and bits equal
 * those of kernels_layer.h, which handles all other rows. */
#ifndef TESS_MODELS_CUDA_KERNELS_NORM_H
#define TESS_MODELS_CUDA_KERNELS_NORM_H
#include "kernels_tile.h"

typedef ops_args_norm ops_args_norm_tile;
typedef ops_args_norm_slopes ops_args_norm_slopes_tile;
/* Returns the place of two numbers of a row, which lane 0 writes for the other lanes. */
TESS_FN double *ops_row_numbers(double *room, uint64_t within) {
    return room + 2 * OPS_BLOCK + 2 * within;
}

/* Groups of eight elements of a tile that a thread has under way at once. In fp32 one fills as many registers, and fp16
 * needs some more than bf16. */
#if defined(OPS_HALF_F16)
enum { OPS_TILE_AHEAD = 1 };
#else
enum { OPS_TILE_AHEAD = 2 };
#endif
TESS_FN uint32_t ops_tile_ahead(int32_t half) {
    return half ? (uint32_t)OPS_TILE_AHEAD : 1;
}
typedef struct { /* of two arrays */
    float x[8], y[8];
} ops_tile_eight;
/* Reads group i of a block's rows; `first`: their first element. y null: not read. A group of a row that is not there
 * is read from the first row, because a branch before a load would make the thread wait. */
TESS_FN void ops_tile_read(const void *x, const void *y, int32_t half, uint32_t eights, uint64_t first, uint32_t rows,
                           uint32_t i, ops_tile_eight *e) {
    uint64_t at = first + (uint64_t)(i < rows * eights ? i : i % eights) * 8;
    ops_get_eight(x, at, 8, half, 1, e->x);
    if (y)
        ops_get_eight(y, at, 8, half, 1, e->y);
}
/* Returns how many of a block's rows exist. */
TESS_FN uint32_t ops_tile_count(uint64_t rows, uint64_t begin, uint32_t tile_rows) {
    return rows - begin < tile_rows ? (uint32_t)(rows - begin) : tile_rows;
}

/* Adds to eight elements what precedes the normalisation, and writes the sums that are wanted. */
TESS_FN void ops_norm_eight(const ops_args_norm *a, uint64_t r, uint64_t c, float *v, float *add) {
    float bias[8];
    uint64_t i = r * a->width + c;
    ops_bias_eight(a->add_bias, c, a->half, bias);
    for (int k = 0; k < 8; k++)
        add[k] += bias[k];
    ops_mask_eight(&a->mask, r, c, add);
    for (int k = 0; k < 8; k++)
        v[k] = ops_rounded(v[k] + add[k], a->half);
    ops_put_eight(a->sum, i, 8, a->half, 1, v);
    if (!a->next)
        return;
    ops_bias_eight(a->next_bias, c, a->half, bias);
    for (int k = 0; k < 8; k++)
        bias[k] = v[k] + bias[k];
    ops_put_eight(a->next, i, 8, a->half, 1, bias);
}

/* Adds up a lane's part of the row's sum, or with `mean` of its squared deviations. */
TESS_FN void ops_norm_lane(const ops_args_norm *a, const void *tile, uint64_t row, uint32_t lane, const float *mean,
                           double *out) {
    float sum = 0;
    for (uint64_t c = lane; c < a->width; c += OPS_LANES) {
        float x = ops_get(tile, row + c, a->half), d = mean ? x - *mean : x;
        sum += mean ? d * d : d;
    }
    *out = (double)sum;
}

TESS_FN void ops_norm_fill(const ops_args_norm *a, const void *add, uint64_t begin, uint32_t thread, void *tile) {
    uint32_t eights = (uint32_t)(a->width / 8), rows = ops_tile_count(a->rows, begin, a->tile_rows);
    uint32_t ahead = ops_tile_ahead(a->half), pitch = (uint32_t)ops_tile_pitch(a->width);
    OPS_ROLLED for (uint32_t i = thread; i < rows * eights; i += ahead * OPS_BLOCK) {
        ops_tile_eight all[OPS_TILE_AHEAD];
        for (uint32_t k = 0; k < OPS_TILE_AHEAD; k++)
            if (k < ahead)
                ops_tile_read(a->x, add, a->half, eights, begin * a->width, rows, i + k * OPS_BLOCK, &all[k]);
        OPS_UNROLLED for (uint32_t k = 0; k < OPS_TILE_AHEAD; k++) {
            uint32_t at = i + k * OPS_BLOCK, within = at / eights, c = (at - within * eights) * 8;
            if (k >= ahead || within >= rows)
                continue;
            if (add)
                ops_norm_eight(a, begin + within, c, all[k].x, all[k].y);
            ops_put_eight(tile, within * pitch + c, 8, a->half, 1, all[k].x);
        }
    }
}
OPS_BODY(norm_tile) {
    uint64_t eights = a->width / 8, pitch = ops_tile_pitch(a->width), begin = (uint64_t)block * a->tile_rows;
    void *tile = ops_tile(room);
    float v[8], w[8], b[8];
    if (phase == 0) {
        if (a->add)
            ops_norm_fill(a, a->add, begin, thread, tile);
        else
            ops_norm_fill(a, NULL, begin, thread, tile);
        return;
    }
    if (!a->y)
        return;
    if (phase == 4) {
        ops_found_begin(&a->found, thread, room);
        OPS_TILE_EACH(i, a->tile_rows, eights) {
            uint64_t within = i / (uint32_t)eights, c = i % (uint32_t)eights * 8;
            const double *of = ops_row_numbers(room, within);
            if (begin + within >= a->rows)
                continue;
            ops_get_eight(tile, within * pitch + c, 8, a->half, 1, v);
            ops_gain_eight(a->w, c, a->half, a->one_more, w);
            ops_bias_eight(a->b, c, a->half, b);
            for (int k = 0; k < 8; k++)
                v[k] = ops_norm_of(v[k], (float)of[0], (float)of[1], w[k], b[k]);
            ops_put_eight(a->y, (begin + within) * a->width + c, 8, a->half, 1, v);
            ops_found_add(&a->found, 0, thread, v, room);
        }
        return;
    }
    if (phase > 4) {
        ops_found_end(&a->found, block, thread, phase - 5, room);
        return;
    }
    uint32_t lane = thread % OPS_LANES, within = thread / OPS_LANES;
    if (within >= a->tile_rows || begin + within >= a->rows)
        return;
    if (phase == 1) {
        ops_norm_lane(a, tile, within * pitch, lane, NULL, &room[thread]);
        return;
    }
    float mean = a->about_zero ? 0 : (float)(ops_add_lanes(room, within) / (double)a->width);
    if (phase == 2) {
        ops_norm_lane(a, tile, within * pitch, lane, &mean, &room[OPS_BLOCK + thread]);
    } else if (lane == 0) {
        float rsigma = ops_rsigma_with(ops_add_lanes(room + OPS_BLOCK, within) / (double)a->width, a->eps);
        ops_row_numbers(room, within)[0] = (double)(a->stats[2 * (begin + within)] = mean);
        ops_row_numbers(room, within)[1] = (double)(a->stats[2 * (begin + within) + 1] = rsigma);
    }
}

/* ---- backward ------------------------------------------------------------------------------------ */
/* Computes eight elements of the input's gradient and writes the other wanted results. */
TESS_FN void ops_norm_slopes_eight(const ops_args_norm_slopes *a, uint64_t r, uint64_t c, const float *x, float *dy,
                                   const double *means, uint32_t thread, double *room) {
    uint64_t i = r * a->width + c;
    float mean = a->stats[2 * r], rsigma = a->stats[2 * r + 1], w[8], b[8];
    ops_gain_eight(a->w, c, a->half, a->one_more, w);
    for (int k = 0; k < 8; k++)
        dy[k] = ops_layernorm_slope_of(x[k], mean, rsigma, dy[k] * w[k], (float)means[0], (float)means[1]);
    if (a->normal) {
        ops_bias_eight(a->b, c, a->half, b);
        for (int k = 0; k < 8; k++)
            b[k] = ops_norm_of(x[k], mean, rsigma, w[k], b[k]);
        ops_put_eight(a->normal, i, 8, a->half, 1, b);
        ops_found_add(&a->found, 1, thread, b, room);
    }
    if (a->add) {
        ops_get_eight(a->add, i, 8, a->half, 1, b);
        for (int k = 0; k < 8; k++)
            dy[k] += b[k];
    }
    ops_put_eight(a->dx, i, 8, a->half, 1, dy);
    if (a->masked) {
        for (int k = 0; k < 8; k++)
            dy[k] = ops_rounded(dy[k], a->half);
        ops_mask_eight(&a->mask, r, c, dy);
        ops_put_eight(a->masked, i, 8, a->half, 1, dy);
    }
    ops_found_add(&a->found, 0, thread, dy, room);
}

OPS_BODY(norm_slopes_tile) {
    uint64_t eights = a->width / 8, pitch = ops_tile_pitch(a->width), begin = (uint64_t)block * a->tile_rows;
    uint64_t other = a->tile_rows * pitch; /* dy's rows follow x's */
    void *tile = ops_tile(room);
    if (phase == 0) {
        uint32_t rows = ops_tile_count(a->rows, begin, a->tile_rows), ahead = ops_tile_ahead(a->half);
        OPS_ROLLED for (uint32_t i = thread; i < rows * (uint32_t)eights; i += ahead * OPS_BLOCK) {
            ops_tile_eight all[OPS_TILE_AHEAD];
            for (uint32_t k = 0; k < OPS_TILE_AHEAD; k++)
                if (k < ahead)
                    ops_tile_read(a->x, a->dy, a->half, (uint32_t)eights, begin * a->width, rows, i + k * OPS_BLOCK,
                                  &all[k]);
            for (uint32_t k = 0; k < OPS_TILE_AHEAD; k++) {
                uint32_t at = i + k * OPS_BLOCK, within = at / (uint32_t)eights;
                uint64_t place = within * pitch + (at - within * (uint32_t)eights) * 8;
                if (k >= ahead || within >= rows)
                    continue;
                ops_put_eight(tile, place, 8, a->half, 1, all[k].x);
                ops_put_eight(tile, other + place, 8, a->half, 1, all[k].y);
            }
        }
        return;
    }
    if (phase == 3) {
        ops_found_begin(&a->found, thread, room);
        OPS_TILE_EACH(i, a->tile_rows, eights) {
            uint64_t within = i / (uint32_t)eights, c = i % (uint32_t)eights * 8, at = within * pitch + c;
            float x[8], dy[8];
            if (begin + within >= a->rows)
                continue;
            ops_get_eight(tile, at, 8, a->half, 1, x);
            ops_get_eight(tile, other + at, 8, a->half, 1, dy);
            ops_norm_slopes_eight(a, begin + within, c, x, dy, ops_row_numbers(room, within), thread, room);
        }
        return;
    }
    if (phase > 3) {
        ops_found_end(&a->found, block, thread, phase - 4, room);
        return;
    }
    uint32_t lane = thread % OPS_LANES, within = thread / OPS_LANES;
    uint64_t r = begin + within, row = within * pitch;
    if (within >= a->tile_rows || r >= a->rows)
        return;
    if (phase == 1) {
        float mean = a->stats[2 * r], rsigma = a->stats[2 * r + 1], sum = 0, dot = 0;
        for (uint64_t c = lane; c < a->width; c += OPS_LANES) {
            float g = ops_get(tile, other + row + c, a->half) * ops_gain(a->w, c, a->half, a->one_more);
            sum += g;
            dot += g * ((ops_get(tile, row + c, a->half) - mean) * rsigma);
        }
        room[thread] = (double)sum;
        room[OPS_BLOCK + thread] = (double)dot;
    } else if (lane == 0) {
        double *means = ops_row_numbers(room, within);
        means[0] = a->about_zero ? 0 : (double)(float)(ops_add_lanes(room, within) / (double)a->width);
        means[1] = (double)(float)(ops_add_lanes(room + OPS_BLOCK, within) / (double)a->width);
    }
}
#endif
