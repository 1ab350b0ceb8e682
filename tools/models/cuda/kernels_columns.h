/* SPDX-License-Identifier: BSD-3-Clause */
/* Gradients of biases and gains of a whole layer: sums over columns in two stages. The first sums blocks of rows;
 * the second adds those blocks in their order, so that the bits are always the same.
 *
 * A block of the first stage has 64 columns of 256 rows. Sixteen neighbouring threads read a row, 8 bytes each in
 * bf16, and each of the sixteen groups reads every 16th row. The block that finishes last for its columns computes
 * their second stage, whichever it is. */
#ifndef TESS_MODELS_CUDA_KERNELS_COLUMNS_H
#define TESS_MODELS_CUDA_KERNELS_COLUMNS_H
#include "kernels_norm.h"

enum {
    OPS_COLUMN_JOBS = 8,
    OPS_JOB_COLUMNS = 64,
    OPS_JOB_ROWS = 256,
    OPS_JOB_EACH = 4, /* columns per thread */
    OPS_JOB_BESIDE = OPS_JOB_COLUMNS / OPS_JOB_EACH,
    OPS_JOB_BELOW = OPS_BLOCK / OPS_JOB_BESIDE,
    OPS_JOB_AHEAD = 8, /* rows that a thread has under way at once; with a gain two, of two arrays */
    OPS_JOB_COUNTS = 4096
};
typedef struct { /* db: sums of dy's columns; dw, unless null: sums of dy times normalised x */
    const void *x, *dy;
    const float *stats;
    float *dw, *db;                                /* null: not wanted */
    uint32_t width, first_block, first_sum, group; /* `group` rows lie together without gaps */
    uint64_t pitch, x_pitch;                       /* elements from group to group, of dy and of x */
} ops_cuda_columns;
typedef struct { /* sums: for each block of rows, db's and then dw's of each job */
    ops_cuda_columns jobs[OPS_COLUMN_JOBS];
    double *sums;
    uint64_t rows;
    uint32_t blocks, n_sums; /* blocks: of columns; n_sums: sums per block of rows */
    int32_t n_jobs, half, add;
} ops_args_columns;

typedef struct { /* a thread's columns of a row */
    float dy[OPS_JOB_EACH], x[OPS_JOB_EACH], mean, rsigma;
} ops_column_row;
/* Reads n of the columns. */
TESS_FN void ops_column_row_read(const ops_cuda_columns *j, int32_t half, int vector, int gain, uint32_t r, uint32_t c,
                                 uint32_t n, ops_column_row *row) {
    uint32_t group = j->group > 1 ? r / j->group : r, behind = (r - group * j->group) * j->width + c;
    ops_get_four(j->dy, group * j->pitch + behind, n, half, vector, row->dy);
    if (!gain)
        return;
    ops_get_four(j->x, group * j->x_pitch + behind, n, half, vector, row->x);
    row->mean = j->stats[2 * (uint64_t)r], row->rsigma = j->stats[2 * (uint64_t)r + 1];
}
TESS_FN void ops_column_row_add(const ops_column_row *row, int gain, double *dw, double *db) {
    for (int k = 0; k < OPS_JOB_EACH; k++) {
        db[k] += (double)row->dy[k];
        if (gain)
            dw[k] += (double)(row->dy[k] * ((row->x[k] - row->mean) * row->rsigma));
    }
}
/* Whole vectors: several rows are under way at once. */
TESS_FN void ops_column_vectors(const ops_cuda_columns *j, int32_t half, int gain, uint32_t first, uint32_t last,
                                uint32_t c, double *dw, double *db) {
    uint32_t r = first, ahead = OPS_JOB_AHEAD / (gain ? 4 : 1);
    /* fp32 would take too many registers */
    OPS_ROLLED for (; half && r + (ahead - 1) * OPS_JOB_BELOW < last; r += ahead * OPS_JOB_BELOW) {
        ops_column_row rows[OPS_JOB_AHEAD];
        for (uint32_t i = 0; i < OPS_JOB_AHEAD; i++)
            if (i < ahead)
                ops_column_row_read(j, half, 1, gain, r + i * OPS_JOB_BELOW, c, OPS_JOB_EACH, &rows[i]);
        for (uint32_t i = 0; i < OPS_JOB_AHEAD; i++)
            if (i < ahead)
                ops_column_row_add(&rows[i], gain, dw, db);
    }
    OPS_ROLLED for (; r < last; r += OPS_JOB_BELOW) {
        ops_column_row row;
        ops_column_row_read(j, half, 1, gain, r, c, OPS_JOB_EACH, &row);
        ops_column_row_add(&row, gain, dw, db);
    }
}

/* Sums every 16th row from `first` to `last`. */
TESS_FN void ops_column_sums(const ops_cuda_columns *j, int32_t half, uint32_t first, uint32_t last, uint32_t c,
                             double *dw, double *db) {
    uint32_t n = c < j->width ? j->width - c : 0;
    int vector = ops_is_vector(j->width) && ops_is_vector(j->pitch) && ops_is_vector(j->x_pitch);
    for (int k = 0; k < OPS_JOB_EACH; k++)
        dw[k] = db[k] = 0;
    if (n && vector && j->dw)
        ops_column_vectors(j, half, 1, first, last, c, dw, db);
    else if (n && vector)
        ops_column_vectors(j, half, 0, first, last, c, dw, db);
    OPS_ROLLED for (uint32_t r = first; n && !vector && r < last; r += OPS_JOB_BELOW) {
        ops_column_row row;
        ops_column_row_read(j, half, 0, j->dw != NULL, r, c, n, &row);
        ops_column_row_add(&row, j->dw != NULL, dw, db);
    }
}

/* Number of finished blocks per block of columns. The counts are 0 between launches, which follow each other on the
 * operators' stream. If there are more blocks of columns than counts, several share a count. */
#if defined(__CUDACC__)
static __device__ uint32_t ops_job_counts[OPS_JOB_COUNTS];
#else
static __thread uint32_t ops_job_counts[OPS_JOB_COUNTS];
#endif
/* Makes a block's writes visible to other blocks before ops_job_done counts the block. */
TESS_FN void ops_job_wrote(void) {
#if defined(__CUDA_ARCH__)
    __threadfence();
#endif
}
/* Counts a finished block and returns whether it is the last of `all`. */
TESS_FN int ops_job_done(uint32_t which, uint32_t all) {
    int last = 0;
#if defined(__CUDA_ARCH__)
    last = atomicAdd(&ops_job_counts[which], 1u) == all - 1;
    __threadfence();
    if (last)
        ops_job_counts[which] = 0;
#elif !defined(__CUDACC__)
    last = ops_job_counts[which]++ == all - 1;
    if (last)
        ops_job_counts[which] = 0;
#endif
    return last;
}
/* Reads past the multiprocessor's cache, which does not see the writes of other blocks. */
TESS_FN double ops_job_read(const double *at) {
#if defined(__CUDA_ARCH__)
    return __ldcg(at);
#else
    return *at;
#endif
}

TESS_FN uint64_t ops_job_chunks(const ops_args_columns *a) {
    return (a->rows + OPS_JOB_ROWS - 1) / OPS_JOB_ROWS;
}
TESS_FN const ops_cuda_columns *ops_job_of(const ops_args_columns *a, uint32_t at) {
    int32_t k = 0;
    while (k + 1 < a->n_jobs && a->jobs[k + 1].first_block <= at)
        k++;
    return &a->jobs[k];
}

/* Computes the first stage. Column k·4 + e of a block is stored at e·16 + k, so that neighbouring threads store to
 * neighbouring addresses. */
TESS_FN void ops_columns_begin(const ops_args_columns *a, uint32_t at, uint64_t chunk, uint32_t thread, double *room) {
    const ops_cuda_columns *j = ops_job_of(a, at);
    uint32_t beside = thread % OPS_JOB_BESIDE, below = thread / OPS_JOB_BESIDE;
    uint32_t c = (at - j->first_block) * OPS_JOB_COLUMNS + beside * OPS_JOB_EACH;
    double dw[OPS_JOB_EACH], db[OPS_JOB_EACH], *to = room + below * OPS_JOB_COLUMNS + beside;
    uint64_t last = (chunk + 1) * OPS_JOB_ROWS < a->rows ? (chunk + 1) * OPS_JOB_ROWS : a->rows;
    ops_column_sums(j, a->half, (uint32_t)chunk * OPS_JOB_ROWS + below, (uint32_t)last, c, dw, db);
    for (int e = 0; e < OPS_JOB_EACH; e++) {
        to[e * OPS_JOB_BESIDE] = db[e];
        to[OPS_WIDE / 2 + e * OPS_JOB_BESIDE] = dw[e];
    }
}
TESS_FN void ops_columns_store(const ops_args_columns *a, uint32_t at, uint64_t chunk, uint32_t thread,
                               const double *room) {
    const ops_cuda_columns *j = ops_job_of(a, at);
    uint32_t of_dw = thread / OPS_JOB_COLUMNS, place = thread % OPS_JOB_COLUMNS;
    uint64_t c = (uint64_t)(at - j->first_block) * OPS_JOB_COLUMNS;
    c += place % OPS_JOB_BESIDE * OPS_JOB_EACH + place / OPS_JOB_BESIDE;
    if (c >= j->width || of_dw > (j->dw ? 1u : 0u))
        return;
    double sum = 0;
    for (int below = 0; below < OPS_JOB_BELOW; below++)
        sum += room[of_dw * (OPS_WIDE / 2) + (uint32_t)below * OPS_JOB_COLUMNS + place];
    a->sums[chunk * a->n_sums + j->first_sum + of_dw * j->width + c] = sum;
    ops_job_wrote();
}

/* Computes the second stage; each thread adds up one sum. */
TESS_FN void ops_columns_end(const ops_args_columns *a, uint32_t at, uint32_t thread) {
    const ops_cuda_columns *j = ops_job_of(a, at);
    uint32_t of_dw = thread / OPS_JOB_COLUMNS;
    uint32_t c = (at - j->first_block) * OPS_JOB_COLUMNS + thread % OPS_JOB_COLUMNS;
    float *out = of_dw ? j->dw : j->db;
    if (of_dw > 1 || c >= j->width || !out)
        return;
    const double *from = a->sums + j->first_sum + of_dw * j->width + c;
    double sum = 0;
    for (uint64_t chunk = 0; chunk < ops_job_chunks(a); chunk++)
        sum += ops_job_read(from + chunk * a->n_sums);
    out[c] = a->add ? out[c] + (float)sum : (float)sum;
}

OPS_BODY(columns) {
    uint32_t at = block % a->blocks, count = at % OPS_JOB_COUNTS;
    uint64_t chunk = block / a->blocks;
    if (phase == 0)
        ops_columns_begin(a, at, chunk, thread, room);
    else if (phase == 1)
        ops_columns_store(a, at, chunk, thread, room);
    else if (phase == 2 && thread == 0)
        room[0] = ops_job_done(count, (uint32_t)ops_job_chunks(a) * ((a->blocks - count - 1) / OPS_JOB_COUNTS + 1));
    else if (phase == 3 && room[0] > 0)
        for (at = count; at < a->blocks; at += OPS_JOB_COUNTS)
            ops_columns_end(a, at, thread);
}

/* Sums over columns and the backward of a normalisation in one launch. Neither reads the other's results. The sums
 * have the first blocks. */
typedef struct {
    ops_args_columns columns;
    ops_args_norm_slopes norm;
    uint32_t first; /* the first block of the normalisation */
} ops_args_norm_slopes_columns;
OPS_BODY(norm_slopes_columns) {
    if (block < a->first)
        ops_body_columns(&a->columns, block, thread, phase, room);
    else
        ops_body_norm_slopes_tile(&a->norm, block - a->first, thread, phase, room);
}
#endif
