/* SPDX-License-Identifier: BSD-3-Clause */
/* Causal attention by blocks of query rows. Only one block's probabilities exist at a time, so nothing of size time
 * × time is kept. Backward computes them again from the saved log-sum-exp (Dao et al., "FlashAttention", 2022). */
#include "elementwise.h"
#include "gemm.h"
#include "parallel.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 64 }; /* query rows */

typedef struct {
    const ops_attention_shape *s;
    const float *x, *y, *lse_in, *dy;
    float *out, *lse;
    char *scratch;
    uint64_t scratch_bytes;
} attend;

typedef struct { /* one head of one sample; strides between rows: `in` for q, k and v, `row` for the output */
    int64_t time, size, in, row;
    const float *q, *k, *v;
    float scale;
} head;

static uint64_t scratch_per_thread(const ops_attention_shape *s) {
    return GEMM_SCRATCH_BYTES + 2 * ops_align((uint64_t)BLOCK * (uint64_t)s->time * sizeof(float));
}

void ops_cpu_attention_need(const ops *o, const ops_attention_shape *s, ops_scratch *need) {
    need->forward_bytes = need->backward_bytes = scratch_per_thread(s) * (uint64_t)o->threads;
}

static head head_of(const ops_attention_shape *s, const float *x, int64_t b, int64_t h) {
    int64_t width = (int64_t)s->heads * s->size;
    const float *q = x + b * s->time * 3 * width + h * s->size;
    return (head){ s->time, s->size, 3 * width, width, q, q + width, q + 2 * width, (float)(1.0 / sqrt(s->size)) };
}

/* scores[rows, columns] = scale · q k^T for query rows i … and keys 0 … columns-1. */
static void scores(const head *h, int64_t i, int64_t rows, int64_t columns, float *out, void *scratch) {
    gemm_task t = { .rows = rows, .columns = columns, .depth = h->size, .a = h->q + i * h->in, .b = h->k, .c = out };
    t.a_row = h->in, t.a_depth = 1, t.b_depth = 1, t.b_column = h->in, t.c_row = columns, t.scale = h->scale;
    gemm(&t, scratch);
}

/* Replaces the first n scores by their exponentials and returns the logarithm of the sum. Later keys are masked. */
static float softmax_scores(float *row, int64_t n, int64_t columns) {
    float most = row[0];
    double sum = 0;
    for (int64_t j = 1; j < n; j++)
        most = row[j] > most ? row[j] : most;
    ops_cpu_exp(row, most, row, (uint64_t)n);
    for (int64_t j = 0; j < n; j++)
        sum += row[j];
    float over = (float)(1.0 / sum);
    for (int64_t j = 0; j < n; j++)
        row[j] *= over;
    memset(row + n, 0, (size_t)(columns - n) * sizeof *row);
    return most + (float)log(sum);
}

static void attend_heads(void *arg, int32_t thread, int64_t first, int64_t last) {
    const attend *a = arg;
    char *scratch = a->scratch + (uint64_t)thread * a->scratch_bytes;
    float *p = (float *)(scratch + GEMM_SCRATCH_BYTES);
    for (int64_t n = first; n < last; n++) {
        int64_t b = n / a->s->heads, hd = n % a->s->heads;
        head h = head_of(a->s, a->x, b, hd);
        for (int64_t i = 0; i < h.time; i += BLOCK) {
            int64_t rows = h.time - i < BLOCK ? h.time - i : BLOCK, columns = i + rows;
            scores(&h, i, rows, columns, p, scratch);
            for (int64_t r = 0; r < rows; r++)
                a->lse[n * h.time + i + r] = softmax_scores(p + r * columns, i + r + 1, columns);
            gemm_task t = { .rows = rows, .columns = h.size, .depth = columns, .a = p, .b = h.v };
            t.c = a->out + (b * h.time + i) * h.row + hd * h.size;
            t.a_row = columns, t.a_depth = 1, t.b_depth = h.in, t.b_column = 1, t.c_row = h.row;
            gemm(&t, scratch);
        }
    }
}

tess_status ops_cpu_attention(ops *o, const ops_attention_shape *s, const float *x, float *y, float *lse,
                              void *scratch) {
    attend a = { .s = s, .x = x, .out = y, .lse = lse, .scratch = scratch, .scratch_bytes = scratch_per_thread(s) };
    ops_parallel(o, (int64_t)s->batch * s->heads, 1, attend_heads, &a);
    return TESS_OK;
}

/* Turns scores into the probabilities p, and dp = dy v^T into ds = scale · p (dp - y·dy). */
static void softmax_backward(const head *h, int64_t n, int64_t columns, float lse, double dot, float *p, float *dp) {
    ops_cpu_exp(p, lse, p, (uint64_t)n);
    for (int64_t j = 0; j < n; j++)
        dp[j] = h->scale * p[j] * (dp[j] - (float)dot);
    memset(p + n, 0, (size_t)(columns - n) * sizeof *p);
    memset(dp + n, 0, (size_t)(columns - n) * sizeof *dp);
}

static void attend_block_backward(const attend *a, const head *h, int64_t n, int64_t i, char *scratch) {
    int64_t rows = h->time - i < BLOCK ? h->time - i : BLOCK, columns = i + rows;
    int64_t b = n / a->s->heads, hd = n % a->s->heads, at = (b * h->time + i) * h->row + hd * h->size;
    float *p = (float *)(scratch + GEMM_SCRATCH_BYTES), *ds = p + ops_align((uint64_t)(BLOCK * h->time) * 4) / 4;
    float *dq = a->out + b * h->time * h->in + hd * h->size, *dk = dq + h->row, *dv = dk + h->row;
    scores(h, i, rows, columns, p, scratch);
    gemm_task t = { .rows = rows, .columns = columns, .depth = h->size, .a = a->dy + at, .b = h->v, .c = ds };
    t.a_row = h->row, t.a_depth = 1, t.b_depth = 1, t.b_column = h->in, t.c_row = columns;
    gemm(&t, scratch); /* dp = dy v^T */
    for (int64_t r = 0; r < rows; r++) {
        double dot = 0;
        for (int64_t c = 0; c < h->size; c++)
            dot += (double)a->y[at + r * h->row + c] * a->dy[at + r * h->row + c];
        softmax_backward(h, i + r + 1, columns, a->lse_in[n * h->time + i + r], dot, p + r * columns, ds + r * columns);
    }
    t = (gemm_task){ .rows = rows, .columns = h->size, .depth = columns, .a = ds, .b = h->k, .c = dq + i * h->in };
    t.a_row = columns, t.a_depth = 1, t.b_depth = h->in, t.b_column = 1, t.c_row = h->in;
    gemm(&t, scratch);
    t = (gemm_task){ .rows = columns, .columns = h->size, .depth = rows, .a = ds, .b = h->q + i * h->in, .c = dk };
    t.a_row = 1, t.a_depth = columns, t.b_depth = h->in, t.b_column = 1, t.c_row = h->in, t.accumulate = 1;
    gemm(&t, scratch);
    t.a = p, t.b = a->dy + at, t.b_depth = h->row, t.c = dv;
    gemm(&t, scratch);
}

static void attend_heads_backward(void *arg, int32_t thread, int64_t first, int64_t last) {
    const attend *a = arg;
    char *scratch = a->scratch + (uint64_t)thread * a->scratch_bytes;
    for (int64_t n = first; n < last; n++) {
        int64_t b = n / a->s->heads, hd = n % a->s->heads;
        head h = head_of(a->s, a->x, b, hd);
        float *dq = a->out + b * h.time * h.in + hd * h.size;
        for (int64_t t = 0; t < h.time; t++) { /* several query blocks add to the gradients of keys and values */
            memset(dq + t * h.in + h.row, 0, (size_t)h.size * sizeof(float));
            memset(dq + t * h.in + 2 * h.row, 0, (size_t)h.size * sizeof(float));
        }
        for (int64_t i = 0; i < h.time; i += BLOCK)
            attend_block_backward(a, &h, n, i, scratch);
    }
}

tess_status ops_cpu_attention_backward(ops *o, const ops_attention_shape *s, const float *x, const float *y,
                                       const float *lse, const float *dy, float *dx, void *scratch) {
    attend a = { .s = s, .x = x, .y = y, .lse_in = lse, .dy = dy, .out = dx, .scratch = scratch };
    a.scratch_bytes = scratch_per_thread(s);
    ops_parallel(o, (int64_t)s->batch * s->heads, 1, attend_heads_backward, &a);
    return TESS_OK;
}
