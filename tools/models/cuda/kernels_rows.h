/* SPDX-License-Identifier: BSD-3-Clause */
/* Kernels that sum over columns, and kernels of losses (see kernels.h). */
#ifndef TESS_MODELS_CUDA_KERNELS_ROWS_H
#define TESS_MODELS_CUDA_KERNELS_ROWS_H
#include "kernels_loss.h"

/* ---- sums over columns: a block has 8 columns of 32 lanes each --------------------------------------- */
TESS_FN double ops_add_column(const double *room, uint32_t column) {
    double sum = 0;
    for (int lane = 0; lane < OPS_COLUMN_LANES; lane++)
        sum += room[lane * OPS_COLUMNS_PER_BLOCK + (int)column];
    return sum;
}

typedef struct { /* y[sample, c] = the sum over the sample's rows of x, or y += that */
    const float *x;
    float *y;
    uint64_t rows, width, groups; /* groups: blocks per sample */
    int32_t add;
    uint32_t over; /* 1: divide by rows */
} ops_args_column_sums;
OPS_BODY(column_sums) {
    enum { AHEAD = 16 }; /* rows that a thread has under way at once */
    uint64_t sample = block / a->groups, c = block % a->groups * OPS_COLUMNS_PER_BLOCK + thread % OPS_COLUMNS_PER_BLOCK;
    if (c >= a->width)
        return;
    if (phase == 0) {
        const float *x = a->x + sample * a->rows * a->width + c;
        uint64_t r = thread / OPS_COLUMNS_PER_BLOCK;
        double sum = 0;
        OPS_ROLLED for (; r + (AHEAD - 1) * OPS_COLUMN_LANES < a->rows; r += AHEAD * OPS_COLUMN_LANES) {
            float v[AHEAD];
            for (uint64_t k = 0; k < AHEAD; k++)
                v[k] = x[(r + k * OPS_COLUMN_LANES) * a->width];
            for (uint64_t k = 0; k < AHEAD; k++)
                sum += (double)v[k];
        }
        for (; r < a->rows; r += OPS_COLUMN_LANES)
            sum += (double)x[r * a->width];
        room[thread] = sum;
    } else if (thread < OPS_COLUMNS_PER_BLOCK) {
        double sum = ops_add_column(room, thread);
        float *y = a->y + sample * a->width + c;
        sum = a->over ? sum / (double)a->rows : sum;
        *y = a->add ? *y + (float)sum : (float)sum;
    }
}

/* ---- loss ------------------------------------------------------------------------------------ */
typedef struct { /* logits become probabilities */
    float *logits;
    const int32_t *labels;
    ops_cuda_row_loss *losses;
    uint64_t rows, classes;
} ops_args_cross_entropy;
OPS_BODY(cross_entropy) {
    OPS_ROW;
    if (r >= a->rows)
        return;
    float *row = a->logits + r * a->classes;
    uint64_t label = (uint64_t)a->labels[r], first = within * OPS_LANES, best = lane;
    if (phase == 0) { /* each lane finds its greatest; of equal values the first wins */
        for (uint64_t c = lane + OPS_LANES; c < a->classes; c += OPS_LANES)
            best = row[c] > row[best] ? c : best;
        room[thread] = lane < a->classes ? (double)row[best] : 0;
        room[OPS_BLOCK + thread] = (double)best;
        return;
    }
    uint64_t lanes = a->classes < (uint64_t)OPS_LANES ? a->classes : (uint64_t)OPS_LANES;
    /* Lane 0 reads the label's logit in this phase, because the next phase overwrites the row. */
    if (phase == 1) {
        uint64_t winner = first;
        for (uint64_t i = first + 1; i < first + lanes; i++)
            if (room[i] > room[winner] || (room[i] == room[winner] && room[OPS_BLOCK + i] < room[OPS_BLOCK + winner]))
                winner = i;
        if (lane == 0) {
            a->losses[r].loss = room[winner] - (double)row[label];
            a->losses[r].correct = (uint64_t)room[OPS_BLOCK + winner] == label;
        }
        return;
    }
    float most = (float)room[first];
    for (uint64_t i = first + 1; i < first + lanes; i++)
        most = room[i] > (double)most ? (float)room[i] : most;
    if (phase == 2) {
        double sum = 0;
        for (uint64_t c = lane; c < a->classes; c += OPS_LANES) {
            row[c] = ops_exp(row[c] - most);
            sum += (double)row[c];
        }
        room[OPS_BLOCK + thread] = sum;
        return;
    }
    double sum = ops_add_lanes(room + OPS_BLOCK, within);
    float over = (float)(1.0 / sum);
    for (uint64_t c = lane; c < a->classes; c += OPS_LANES)
        row[c] *= over;
    if (lane == 0)
        a->losses[r].loss += log(sum);
}

typedef struct { /* uses one block */
    const ops_cuda_row_loss *losses;
    ops_cuda_loss *out;
    uint64_t rows;
    const int32_t *labels; /* null: all count */
    const double *divisor; /* may be null */
} ops_args_loss_sum;
OPS_BODY(loss_sum) {
    if (block)
        return;
    if (phase == 0) {
        double loss = 0, correct = 0, count = 0;
        for (uint64_t r = thread; r < a->rows; r += OPS_BLOCK) {
            loss += a->losses[r].loss;
            correct += (double)a->losses[r].correct;
            count += !a->labels || a->labels[r] >= 0;
        }
        room[thread] = loss;
        room[OPS_BLOCK + thread] = correct;
        room[2 * OPS_BLOCK + thread] = count;
    } else if (thread == 0) {
        double loss = 0, correct = 0, count = 0;
        for (int i = 0; i < OPS_BLOCK; i++) {
            loss += room[i];
            correct += room[OPS_BLOCK + i];
            count += room[2 * OPS_BLOCK + i];
        }
        a->out->loss = loss;
        a->out->correct = (uint64_t)correct;
        a->out->count = (uint64_t)count;
        a->out->divisor = a->divisor ? *a->divisor : 0;
    }
}

typedef struct {
    const float *probabilities;
    const int32_t *labels;
    float *dlogits;
    uint64_t elems, classes, count;
    float over; /* scale / count */
} ops_args_cross_entropy_backward;
OPS_BODY(cross_entropy_backward) {
    OPS_ONE_PHASE;
    OPS_FOR_EACH(i, a->elems) {
        uint64_t r = ops_div(i, a->classes), c = ops_mod(i, a->classes);
        float hit = r < a->count && c == (uint64_t)a->labels[r] ? 1.0f : 0.0f;
        a->dlogits[i] = r < a->count ? (a->probabilities[i] - hit) * a->over : 0;
    }
}

typedef struct { /* one thread adds the few elements in order */
    const float *x;
    ops_cuda_loss *out;
    uint64_t elems, count;
    int32_t squared;
} ops_args_sum_loss;
OPS_BODY(sum_loss) {
    double sum = 0;
    OPS_ONE_PHASE;
    if (block || thread)
        return;
    for (uint64_t i = 0; i < a->elems; i++)
        sum += (double)a->x[i];
    a->out->loss = a->squared ? sum * sum : sum;
    a->out->correct = 0;
    a->out->divisor = 0;
    a->out->count = a->count;
}

typedef struct {
    const float *x;
    float *dx;
    uint64_t elems, all;
    int32_t squared;
    float scale;
} ops_args_sum_loss_backward;
OPS_BODY(sum_loss_backward) {
    double sum = 0;
    OPS_ONE_PHASE;
    for (uint64_t i = 0; a->squared && i < a->elems; i++)
        sum += (double)a->x[i];
    OPS_FOR_EACH(i, a->all)
        a->dx[i] = i >= a->elems ? 0 : a->squared ? (float)(2 * sum) * a->scale : a->scale;
}

#endif
