/* SPDX-License-Identifier: BSD-3-Clause */
/* The kernels of attention by products, except the products (see kernels.h). */
#ifndef TESS_MODELS_CUDA_KERNELS_ATTENTION_H
#define TESS_MODELS_CUDA_KERNELS_ATTENTION_H
#include "kernels_layer.h"

/* ---- attention: heads of one sample, query rows from `first` on --------------------------------------- */
/* ops_first_key returns the first key that a query sees; ops_capped applies the cap to a score. `places` are the
 * positions of a sample within their documents; null: the sample is one document. */
TESS_FN uint64_t ops_first_key(uint64_t window, const int32_t *places, uint64_t query) {
    uint64_t begin = places ? query - (uint64_t)places[query] : 0;
    return window && query >= window + begin ? query - window + 1 : begin;
}
TESS_FN float ops_capped(float score, float cap) {
    return cap > 0 ? cap * ops_tanh(score / cap) : score;
}

typedef struct { /* Scores become probabilities, in place or rounded into `half`; hidden keys get 0. */
    float *scores, *lse;
    uint16_t *half;
    const int32_t *places;
    uint64_t heads, rows, first, columns, pitch, time, window; /* lse: [heads, time] */
    float cap;
} ops_args_attention_softmax;
OPS_BODY(attention_softmax) {
    OPS_ROW;
    if (r >= a->heads * a->rows)
        return;
    float *row = a->scores + r * a->pitch;
    uint64_t query = a->first + r % a->rows, n = query + 1, begin = within * OPS_LANES;
    uint64_t first = ops_first_key(a->window, a->places, query);
    if (phase == 0) {
        float most = first + lane < n ? row[first + lane] : row[first];
        for (uint64_t c = first + lane + OPS_LANES; c < n; c += OPS_LANES)
            most = row[c] > most ? row[c] : most;
        room[thread] = (double)ops_capped(most, a->cap);
        return;
    }
    float most = (float)room[begin];
    for (uint64_t i = begin + 1; i < begin + OPS_LANES; i++)
        most = room[i] > (double)most ? (float)room[i] : most;
    if (phase == 1) {
        double sum = 0;
        for (uint64_t c = first + lane; c < n; c += OPS_LANES) {
            row[c] = ops_exp(ops_capped(row[c], a->cap) - most);
            sum += (double)row[c];
        }
        room[OPS_BLOCK + thread] = sum;
        return;
    }
    double sum = ops_add_lanes(room + OPS_BLOCK, within);
    float over = (float)(1.0 / sum);
    for (uint64_t c = lane; c < a->columns; c += OPS_LANES) {
        float p = c >= first && c < n ? row[c] * over : 0;
        if (a->half)
            a->half[r * a->pitch + c] = ops_half_of(p);
        else
            row[c] = p;
    }
    if (lane == 0)
        a->lse[r / a->rows * a->time + query] = most + (float)log(sum);
}

typedef struct { /* Scores and dp = dy v^T become p and ds, in place or rounded into the halves. */
    float *scores, *dp;
    uint16_t *half_p, *half_ds;
    const float *lse;
    const void *y, *dy; /* [time, heads, size] */
    const int32_t *places;
    uint64_t heads, rows, first, columns, pitch, time, size, window;
    float scale, cap;
    int32_t half; /* y and dy are of 16 bits */
} ops_args_attention_slopes;
OPS_BODY(attention_slopes) {
    OPS_ROW;
    if (r >= a->heads * a->rows)
        return;
    uint64_t head = r / a->rows, query = a->first + r % a->rows, n = query + 1, at = r * a->pitch;
    if (phase == 0) {
        uint64_t row = (query * a->heads + head) * a->size;
        double dot = 0;
        for (uint64_t c = lane; c < a->size; c += OPS_LANES)
            dot += (double)ops_get(a->y, row + c, a->half) * (double)ops_get(a->dy, row + c, a->half);
        room[thread] = dot;
        return;
    }
    float dot = (float)ops_add_lanes(room, within), lse = a->lse[head * a->time + query];
    uint64_t first = ops_first_key(a->window, a->places, query);
    for (uint64_t c = lane; c < a->columns; c += OPS_LANES) {
        int is_seen = c >= first && c < n;
        float score = is_seen ? ops_capped(a->scores[at + c], a->cap) : 0, t = a->cap > 0 ? score / a->cap : 0;
        float p = is_seen ? ops_exp(score - lse) : 0;
        float ds = is_seen ? a->scale * p * (a->dp[at + c] - dot) * (1.0f - t * t) : 0;
        if (a->half_p) {
            a->half_p[at + c] = ops_half_of(p);
            a->half_ds[at + c] = ops_half_of(ds);
        } else {
            a->scores[at + c] = p;
            a->dp[at + c] = ds;
        }
    }
}

/* ---- backward of kernels_attend.h ------------------------------------------------------------------ */
typedef struct { /* rows[batch, heads, time, 2]: of a query's row, base-2 log-sum-exp, and the sum of y · dy */
    const uint16_t *y, *dy; /* [batch, time, heads, size] */
    const float *lse;
    float *rows;
    uint64_t batch, time, heads, size;
    uint32_t *turns; /* of attend_five.h, to be made zeros; as many as n_turns */
    uint64_t n_turns;
} ops_args_attend_sums;
OPS_BODY(attend_sums) {
    OPS_ROW;
    if (phase == 0 && r * OPS_LANES + lane < a->n_turns)
        a->turns[r * OPS_LANES + lane] = 0;
    if (r >= a->batch * a->time * a->heads)
        return;
    if (phase == 0) {
        float sum = 0, y[8], dy[8];
        for (uint64_t c = lane * 8; c < a->size; c += OPS_LANES * 8) {
            ops_get_eight(a->y, r * a->size + c, a->size - c, 1, a->size % 8 == 0, y);
            ops_get_eight(a->dy, r * a->size + c, a->size - c, 1, a->size % 8 == 0, dy);
            for (int i = 0; i < 8; i++)
                sum += y[i] * dy[i];
        }
        room[thread] = (double)sum;
    } else if (lane == 0) {
        uint64_t row = ops_div(r, a->heads), n = ops_div(row, a->time);
        uint64_t to = (n * a->heads + r - row * a->heads) * a->time + row - n * a->time;
        a->rows[2 * to] = a->lse[to] * ATTEND_LOG2E;
        a->rows[2 * to + 1] = (float)ops_add_lanes(room, within);
    }
}
#endif
