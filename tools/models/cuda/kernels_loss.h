/* SPDX-License-Identifier: BSD-3-Clause */
/* The loss of a chunk of rows, and in the place of the logits their gradient. A block keeps short rows in shared
 * memory, so that it reads logits once and writes their gradient once. A long row has a block of its own, which reads
 * it with a running maximum and sum, and again from its end, which the second cache has, for the gradient. */
#ifndef TESS_MODELS_CUDA_KERNELS_LOSS_H
#define TESS_MODELS_CUDA_KERNELS_LOSS_H
#include "kernels_tile.h"

typedef struct { /* same layout as ops_loss */
    double loss;
    uint64_t correct, count;
    double divisor;
} ops_cuda_loss;
typedef struct {
    double loss;
    uint64_t correct;
} ops_cuda_row_loss;

typedef struct {
    void *logits; /* of 16 bits or fp32 (`half`) */
    const int32_t *labels;
    ops_cuda_row_loss *losses;
    uint64_t rows, all, classes, pitch; /* rows: the first of `all`, which count */
    float mean, scale;                  /* scale: of the loss */
    float cap, over_cap;                /* over_cap: 1 / the cap of logits; 0: no cap */
    const double *divisor;              /* may be null */
    int32_t half, slopes;               /* slopes: logits are replaced by their gradient; those of other rows by 0 */
    uint32_t tile_rows;
} ops_args_loss;
typedef ops_args_loss ops_args_loss_tile, ops_args_loss_rows;

/* Exponential of a difference of logits, by the GPU's power of two. Its relative error is below 2^-20 where the result
 * matters: of the largest logits. The exact formula (ops_exp) takes ten times the instructions, more than the memory
 * leaves time for. */
TESS_FN float ops_loss_exp(float x) {
#if defined(__CUDA_ARCH__)
    return ptx_exp2(x * 1.44269504f);
#else
    return exp2f(x * 1.44269504f);
#endif
}

/* Gives logits as the loss has them. A cap is applied in fp32, so that the product alone rounds logits. As
 * exponentials it takes the GPU's power of two: 1 - 2 / (e^2t + 1) is tanh(t) to 2^-20. */
TESS_FN void ops_loss_get(const ops_args_loss *a, uint64_t i, uint64_t n, float *x) {
    ops_get_eight(a->logits, i, n, a->half, 1, x);
    for (int k = 0; a->over_cap > 0 && k < 8; k++)
        x[k] = a->cap * (1.0f - 2.0f / (ops_loss_exp(2.0f * (x[k] * a->over_cap)) + 1.0f));
}

typedef struct { /* of a row; over: 1 / the sum of exponentials; mean: factor of its gradient */
    float most, over, mean;
    int32_t label; /* -1: the gradient is 0 */
} ops_loss_row_of;
TESS_FN ops_loss_row_of ops_loss_known(const ops_args_loss *a, uint64_t r, double most, double over) {
    ops_loss_row_of o = { (float)most, (float)over, 0, r < a->rows ? a->labels[r] : -1 };
    o.mean = (a->divisor && *a->divisor > 0 ? (float)(1.0 / *a->divisor) : a->mean) * a->scale;
    return o;
}
/* Writes the gradient of eight logits of row r, from column c on. */
TESS_FN void ops_loss_slopes(const ops_args_loss *a, const ops_loss_row_of *o, uint64_t r, uint64_t c, const float *x) {
    float d[8];
    for (uint64_t k = 0; k < 8; k++) {
        float t = a->over_cap > 0 ? x[k] * a->over_cap : 0, hit = c + k == (uint64_t)o->label ? 1.0f : 0.0f;
        d[k] = o->label >= 0 ? (ops_loss_exp(x[k] - o->most) * o->over - hit) * o->mean * (1.0f - t * t) : 0;
    }
    ops_put_eight(a->logits, r * a->pitch + c, a->classes - c, a->half, 1, d);
}

/* ---- short rows: a block keeps several -------------------------------------------------------------------- */
/* Finds a lane's greatest logit; of equal values the first wins. */
TESS_FN void ops_loss_lane_most(const float *row, uint64_t classes, uint32_t lane, double *most, double *best) {
    uint64_t at = lane;
    for (uint64_t c = lane + OPS_LANES; c < classes; c += OPS_LANES)
        at = row[c] > row[at] ? c : at;
    *most = lane < classes ? (double)row[at] : -INFINITY;
    *best = (double)at;
}
/* Returns the lane that has the row's greatest logit. */
TESS_FN uint32_t ops_loss_winner(const double *most, const double *best) {
    uint32_t winner = 0;
    for (uint32_t i = 1; i < OPS_LANES; i++)
        if (most[i] > most[winner] || (most[i] == most[winner] && best[i] < best[winner]))
            winner = i;
    return winner;
}

OPS_BODY(loss_tile) {
    uint64_t eights = (a->classes + 7) / 8, pitch = ops_tile_pitch(a->classes);
    uint64_t begin = (uint64_t)block * a->tile_rows;
    float *tile = (float *)ops_tile(room);
    if (phase == 0) {
        OPS_TILE_EACH(i, a->tile_rows, eights) {
            uint64_t within = i / (uint32_t)eights, c = i % (uint32_t)eights * 8, r = begin + within;
            float x[8];
            if (r < a->rows) {
                ops_loss_get(a, r * a->pitch + c, a->classes - c, x);
                ops_put_eight(tile, within * pitch + c, 8, 0, 1, x);
            }
        }
        return;
    }
    if (phase == 4) {
        OPS_TILE_EACH(i, a->slopes ? a->tile_rows : 0, eights) {
            uint64_t within = i / (uint32_t)eights, c = i % (uint32_t)eights * 8, r = begin + within;
            float x[8];
            ops_get_eight(tile, within * pitch + c, 8, 0, 1, x);
            ops_loss_row_of o =
                ops_loss_known(a, r, room[OPS_BLOCK + within * OPS_LANES], room[OPS_BLOCK + within * OPS_LANES + 1]);
            if (r < a->all)
                ops_loss_slopes(a, &o, r, c, x);
        }
        return;
    }
    uint32_t lane = thread % OPS_LANES, within = thread / OPS_LANES;
    uint64_t r = begin + within;
    const double *lanes = room + within * OPS_LANES;
    if (within >= a->tile_rows || r >= a->rows)
        return;
    const float *row = tile + within * pitch;
    if (phase == 1) {
        ops_loss_lane_most(row, a->classes, lane, &room[thread], &room[OPS_BLOCK + thread]);
        return;
    }
    if (phase == 3 && lane) /* lane 0 overwrites values that the other lanes would read */
        return;
    uint32_t winner = ops_loss_winner(lanes, lanes + OPS_BLOCK);
    float most = (float)lanes[winner];
    if (phase == 2) {
        double sum = 0;
        for (uint64_t c = lane; c < a->classes; c += OPS_LANES)
            sum += (double)ops_exp(row[c] - most);
        room[2 * OPS_BLOCK + thread] = sum;
        return;
    }
    int32_t label = a->labels[r];
    double sum = ops_add_lanes(room + 2 * OPS_BLOCK, within);
    a->losses[r].loss = label < 0 ? 0 : (double)most - (double)row[label] + log(sum);
    a->losses[r].correct = (int32_t)lanes[OPS_BLOCK + winner] == label;
    room[OPS_BLOCK + thread] = (double)most;
    room[OPS_BLOCK + thread + 1] = 1.0 / sum;
}

/* ---- long rows: one block per row -------------------------------------------------------------------------- */
typedef struct { /* state over some logits; sum: of the exponentials relative to the maximum; 0: no logits yet */
    double sum;
    float most;
    uint32_t best;
} ops_online;

/* Returns which of eight is `most`, the first if several are. */
TESS_FN uint32_t ops_first_of(const float *x, float most) {
    uint32_t first = 7;
    for (uint32_t k = 7; k-- > 0;)
        first = x[k] == most ? k : first;
    return first;
}
/* The eight exponentials are added in fp32, because a GPU converts and adds few doubles at a time. fmaxf passes NaNs
 * over, but their exponentials are NaN, and so the sum is. */
TESS_FN void ops_online_add(ops_online *o, const float *x, uint64_t c) {
    float most = x[0], sum = 0;
    for (int k = 1; k < 8; k++)
        most = fmaxf(most, x[k]);
    if (o->sum == 0 || most > o->most) { /* a NaN sum stays NaN */
        if (most == -INFINITY) {         /* -INFINITY - -INFINITY would be NaN */
            for (int k = 0; k < 8; k++)
                o->sum = x[k] == -INFINITY ? o->sum : (double)NAN;
            return;
        }
        o->sum = o->sum == 0 ? 0 : o->sum * (double)ops_loss_exp(o->most - most);
        o->most = most, o->best = (uint32_t)c + ops_first_of(x, most);
    }
    for (int k = 0; k < 8; k++)
        sum += ops_loss_exp(x[k] - o->most);
    o->sum += (double)sum;
}
TESS_FN ops_online ops_online_join(ops_online x, ops_online y) {
    if (y.sum == 0)
        return x;
    if (x.sum == 0)
        return y;
    ops_online o = y.most > x.most || (y.most == x.most && y.best < x.best) ? y : x;
    o.sum = x.sum * (double)ops_loss_exp(x.most - o.most) + y.sum * (double)ops_loss_exp(y.most - o.most);
    return o;
}
/* Stores the state of a thread in the block's room, as three numbers. */
TESS_FN void ops_online_put(double *room, uint32_t at, ops_online o) {
    room[at] = o.sum, room[OPS_BLOCK + at] = (double)o.most, room[2 * OPS_BLOCK + at] = (double)o.best;
}
TESS_FN ops_online ops_online_at(const double *room, uint32_t at) {
    ops_online o = { room[at], (float)room[OPS_BLOCK + at], (uint32_t)room[2 * OPS_BLOCK + at] };
    return o;
}
TESS_FN ops_online ops_online_over(const double *room, uint32_t first, uint32_t n, uint32_t apart) {
    ops_online o = ops_online_at(room, first);
    for (uint32_t i = 1; i < n; i++)
        o = ops_online_join(o, ops_online_at(room, first + i * apart));
    return o;
}

/* Adds every 2,048th group of eight logits of row r, from column c on. Two groups are under way at once. */
TESS_FN void ops_loss_row(const ops_args_loss *a, uint64_t r, uint64_t c, ops_online *o) {
    const uint64_t apart = OPS_BLOCK * 8, row = r * a->pitch;
    float x[8], y[8];
    OPS_ROLLED for (; c + apart + 8 <= a->classes; c += 2 * apart) {
        ops_loss_get(a, row + c, 8, x);
        ops_loss_get(a, row + c + apart, 8, y);
        ops_online_add(o, x, c);
        ops_online_add(o, y, c + apart);
    }
    OPS_ROLLED for (; c < a->classes; c += apart) {
        ops_loss_get(a, row + c, a->classes - c, x);
        for (uint64_t k = 0; k < 8; k++)
            x[k] = c + k < a->classes ? x[k] : -INFINITY;
        ops_online_add(o, x, c);
    }
}
TESS_FN void ops_loss_eight_slopes(const ops_args_loss *a, const ops_loss_row_of *o, uint64_t r, uint64_t c) {
    float x[8];
    ops_loss_get(a, r * a->pitch + c, a->classes - c, x);
    ops_loss_slopes(a, o, r, c, x);
}
/* Replaces those groups by their gradient, from the row's end on: the cache has what was read last. */
TESS_FN void ops_loss_row_slopes(const ops_args_loss *a, const ops_loss_row_of *o, uint64_t r, uint64_t c) {
    const uint64_t apart = OPS_BLOCK * 8;
    uint64_t n = c < a->classes ? (a->classes - c + apart - 1) / apart : 0;
    float x[8], y[8];
    OPS_ROLLED for (; n && (n % 2 || c + (n - 1) * apart + 8 > a->classes); n--)
        ops_loss_eight_slopes(a, o, r, c + (n - 1) * apart);
    OPS_ROLLED for (; n; n -= 2) {
        uint64_t at = c + (n - 2) * apart;
        ops_loss_get(a, r * a->pitch + at, 8, x);
        ops_loss_get(a, r * a->pitch + at + apart, 8, y);
        ops_loss_slopes(a, o, r, at, x);
        ops_loss_slopes(a, o, r, at + apart, y);
    }
}
TESS_FN void ops_loss_row_end(const ops_args_loss *a, uint64_t r, double *room) {
    int32_t label = a->labels[r];
    ops_online o = ops_online_over(room, 0, OPS_LANES, OPS_LANES);
    uint64_t c = label < 0 ? 0 : (uint64_t)label, first = c - c % 8;
    float x[8];
    ops_loss_get(a, r * a->pitch + first, a->classes - first, x);
    a->losses[r].loss = label < 0 ? 0 : (double)o.most - (double)x[c % 8] + log(o.sum);
    a->losses[r].correct = (int32_t)o.best == label;
    room[0] = (double)o.most, room[1] = 1.0 / o.sum;
}
OPS_BODY(loss_rows) {
    ops_online o = { 0, 0, 0 };
    uint64_t r = block;
    int counts = r < a->rows;
    if (phase == 3 && a->slopes) {
        ops_loss_row_of of = ops_loss_known(a, r, counts ? room[0] : 0, counts ? room[1] : 0);
        ops_loss_row_slopes(a, &of, r, (uint64_t)thread * 8);
    } else if (phase == 0 && counts) {
        ops_loss_row(a, r, (uint64_t)thread * 8, &o);
        ops_online_put(room, thread, o);
    } else if (phase == 1 && counts && thread < OPS_LANES) {
        o = ops_online_over(room, thread * OPS_LANES, OPS_LANES, 1);
        ops_online_put(room, thread * OPS_LANES, o);
    } else if (phase == 2 && counts && thread == 0) {
        ops_loss_row_end(a, r, room);
    }
}

typedef struct { /* in place, of fp32 */
    float *x;
    uint64_t elems;
    float cap;
} ops_args_cap;
OPS_BODY(cap) {
    OPS_EIGHT(i);
    float v[8];
    OPS_ONE_PHASE;
    if (i >= a->elems)
        return;
    ops_get_eight(a->x, i, a->elems - i, 0, 1, v);
    for (int k = 0; k < 8; k++)
        v[k] = a->cap * ops_tanh(v[k] / a->cap);
    ops_put_eight(a->x, i, a->elems - i, 0, 1, v);
}
#endif
