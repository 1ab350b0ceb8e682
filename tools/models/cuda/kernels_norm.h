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

/* Reads eight elements of a row to normalise, and writes the sums that are wanted. */
TESS_FN void ops_norm_eight(const ops_args_norm *a, uint64_t r, uint64_t c, float *v) {
    float add[8], bias[8];
    uint64_t i = r * a->width + c;
    ops_get_eight(a->x, i, 8, a->half, 1, v);
    if (!a->add)
        return;
    ops_get_eight(a->add, i, 8, a->half, 1, add);
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

OPS_BODY(norm_tile) {
    uint64_t eights = a->width / 8, pitch = ops_tile_pitch(a->width), begin = (uint64_t)block * a->tile_rows;
    void *tile = ops_tile(room);
    float v[8], w[8], b[8];
    if (phase == 0) {
        OPS_TILE_EACH(i, a->tile_rows, eights) {
            uint64_t within = i / eights, c = i % eights * 8;
            if (begin + within < a->rows) {
                ops_norm_eight(a, begin + within, c, v);
                ops_put_eight(tile, within * pitch + c, 8, a->half, 1, v);
            }
        }
        return;
    }
    if (!a->y)
        return;
    if (phase == 4) {
        OPS_TILE_EACH(i, a->tile_rows, eights) {
            uint64_t within = i / eights, c = i % eights * 8;
            const double *of = ops_row_numbers(room, within);
            if (begin + within >= a->rows)
                continue;
            ops_get_eight(tile, within * pitch + c, 8, a->half, 1, v);
            ops_gain_eight(a->w, c, a->half, a->one_more, w);
            ops_bias_eight(a->b, c, a->half, b);
            for (int k = 0; k < 8; k++)
                v[k] = ops_norm_of(v[k], (float)of[0], (float)of[1], w[k], b[k]);
            ops_put_eight(a->y, (begin + within) * a->width + c, 8, a->half, 1, v);
        }
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
                                   const double *means) {
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
    }
    if (a->add) {
        ops_get_eight(a->add, i, 8, a->half, 1, b);
        for (int k = 0; k < 8; k++)
            dy[k] += b[k];
    }
    ops_put_eight(a->dx, i, 8, a->half, 1, dy);
    if (!a->masked)
        return;
    for (int k = 0; k < 8; k++)
        dy[k] = ops_rounded(dy[k], a->half);
    ops_mask_eight(&a->mask, r, c, dy);
    ops_put_eight(a->masked, i, 8, a->half, 1, dy);
}

OPS_BODY(norm_slopes_tile) {
    uint64_t eights = a->width / 8, pitch = ops_tile_pitch(a->width), begin = (uint64_t)block * a->tile_rows;
    uint64_t other = a->tile_rows * pitch; /* dy's rows follow x's */
    void *tile = ops_tile(room);
    float x[8], dy[8];
    if (phase == 0 || phase == 3) {
        OPS_TILE_EACH(i, a->tile_rows, eights) {
            uint64_t within = i / eights, c = i % eights * 8, r = begin + within, at = within * pitch + c;
            if (r >= a->rows)
                continue;
            ops_get_eight(phase ? tile : a->x, phase ? at : r * a->width + c, 8, a->half, 1, x);
            ops_get_eight(phase ? tile : a->dy, phase ? other + at : r * a->width + c, 8, a->half, 1, dy);
            if (phase) {
                ops_norm_slopes_eight(a, r, c, x, dy, ops_row_numbers(room, within));
                continue;
            }
            ops_put_eight(tile, at, 8, a->half, 1, x);
            ops_put_eight(tile, other + at, 8, a->half, 1, dy);
        }
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
