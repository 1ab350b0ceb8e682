/* SPDX-License-Identifier: BSD-3-Clause */
/* Gradients of biases and gains of a whole layer: sums over columns in two stages, of blocks of rows and then over
 * those blocks in their order, so that the bits are the same every time. A block of the first stage has 64 columns of
 * 256 rows: 8 threads beside each other read 16 bytes in bf16 of a row, 32 threads below each other every 32nd row. */
#ifndef TESS_MODELS_CUDA_KERNELS_COLUMNS_H
#define TESS_MODELS_CUDA_KERNELS_COLUMNS_H
#include "kernels_layer.h"

enum {
    OPS_COLUMN_JOBS = 8,
    OPS_JOB_COLUMNS = 64,
    OPS_JOB_ROWS = 256,
    OPS_JOB_BESIDE = OPS_JOB_COLUMNS / 8, /* threads */
    OPS_JOB_BELOW = OPS_BLOCK / OPS_JOB_BESIDE
};
typedef struct { /* db = the sums of dy's columns; dw, where wanted, those of dy times normalised x */
    const void *x, *dy;
    const float *stats;
    float *dw, *db; /* null: not wanted */
    uint32_t width, first_block, first_sum;
} ops_cuda_columns;
typedef struct { /* sums: of every block of rows, db's and then dw's of each job */
    ops_cuda_columns jobs[OPS_COLUMN_JOBS];
    double *sums;
    uint64_t rows;
    uint32_t blocks, n_sums; /* of one block of rows */
    int32_t n_jobs, half, add;
} ops_args_columns;

TESS_FN void ops_column_sums(const ops_cuda_columns *j, const ops_args_columns *a, uint64_t c, uint64_t first,
                             double *dw, double *db) {
    uint64_t last = first - first % OPS_JOB_ROWS + OPS_JOB_ROWS, n = c < j->width ? j->width - c : 0;
    int vector = ops_is_vector(j->width);
    for (int k = 0; k < 8; k++)
        dw[k] = db[k] = 0;
    for (uint64_t r = first; n && r < last && r < a->rows; r += OPS_JOB_BELOW) {
        float dy[8], x[8];
        ops_get_eight(j->dy, r * j->width + c, n, a->half, vector, dy);
        for (int k = 0; k < 8; k++)
            db[k] += (double)dy[k];
        if (!j->dw)
            continue;
        float mean = j->stats[2 * r], rsigma = j->stats[2 * r + 1];
        ops_get_eight(j->x, r * j->width + c, n, a->half, vector, x);
        for (int k = 0; k < 8; k++)
            dw[k] += (double)(dy[k] * ((x[k] - mean) * rsigma));
    }
}

/* Column k·8 + e of a block's lies at e·8 + k, so that neighbouring threads store next to each other. */
OPS_BODY(columns) {
    uint32_t at = block % a->blocks;
    uint64_t chunk = block / a->blocks;
    int32_t k = 0;
    while (k + 1 < a->n_jobs && a->jobs[k + 1].first_block <= at)
        k++;
    const ops_cuda_columns *j = &a->jobs[k];
    uint64_t c = (uint64_t)(at - j->first_block) * OPS_JOB_COLUMNS;
    if (phase == 0) {
        uint32_t beside = thread % OPS_JOB_BESIDE, below = thread / OPS_JOB_BESIDE;
        double dw[8], db[8], *to = room + below * OPS_JOB_COLUMNS + beside;
        ops_column_sums(j, a, c + beside * 8, chunk * OPS_JOB_ROWS + below, dw, db);
        for (int e = 0; e < 8; e++) {
            to[e * OPS_JOB_BESIDE] = db[e];
            to[OPS_WIDE / 2 + e * OPS_JOB_BESIDE] = dw[e];
        }
        return;
    }
    uint32_t of_dw = thread / OPS_JOB_COLUMNS, place = thread % OPS_JOB_COLUMNS;
    c += place % OPS_JOB_BESIDE * 8 + place / OPS_JOB_BESIDE;
    if (c >= j->width || of_dw > (j->dw ? 1u : 0u))
        return;
    double sum = 0;
    for (int below = 0; below < OPS_JOB_BELOW; below++)
        sum += room[of_dw * (OPS_WIDE / 2) + (uint32_t)below * OPS_JOB_COLUMNS + place];
    a->sums[chunk * a->n_sums + j->first_sum + of_dw * j->width + c] = sum;
}

/* A thread for each sum. */
typedef ops_args_columns ops_args_columns_end;
OPS_BODY(columns_end) {
    uint32_t i = block * OPS_BLOCK + thread;
    uint64_t chunks = (a->rows + OPS_JOB_ROWS - 1) / OPS_JOB_ROWS;
    int32_t k = 0;
    OPS_ONE_PHASE;
    if (i >= a->n_sums)
        return;
    while (k + 1 < a->n_jobs && a->jobs[k + 1].first_sum <= i)
        k++;
    const ops_cuda_columns *j = &a->jobs[k];
    uint32_t c = i - j->first_sum;
    float *out = c < j->width ? j->db : j->dw;
    c = c < j->width ? c : c - j->width;
    double sum = 0;
    for (uint64_t chunk = 0; chunk < chunks; chunk++)
        sum += a->sums[chunk * a->n_sums + i];
    if (out)
        out[c] = a->add ? out[c] + (float)sum : (float)sum;
}
#endif
