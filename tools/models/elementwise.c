/* SPDX-License-Identifier: BSD-3-Clause */
#include "elementwise.h"
#include "lanes.h"
#include "parallel.h"
#include "philox.h"

#include <string.h>

enum { GRAIN = 4096 }; /* elements; fewer do not repay a thread */

typedef struct {
    const float *x, *y, *dy;
    float *out;
    float scale;
} flat;

OPS_CLONES static void relu_range(void *arg, int32_t thread, int64_t first, int64_t last) {
    const flat *f = arg;
    (void)thread;
    for (int64_t i = first; i < last; i++)
        f->out[i] = ops_relu_slope_of(f->y[i], f->dy[i], f->scale);
}

tess_status ops_cpu_relu_backward(ops *o, const float *y, const float *dy, float *dx, uint64_t elems, float scale) {
    flat f = { .y = y, .dy = dy, .out = dx, .scale = scale };
    ops_parallel(o, (int64_t)elems, GRAIN, relu_range, &f);
    return TESS_OK;
}

OPS_CLONES static void add_range(void *arg, int32_t thread, int64_t first, int64_t last) {
    const flat *f = arg;
    (void)thread;
    for (int64_t i = first; i < last; i++)
        f->out[i] += f->x[i];
}

tess_status ops_cpu_add(ops *o, const float *x, float *y, uint64_t elems) {
    flat f = { .x = x, .out = y };
    ops_parallel(o, (int64_t)elems, GRAIN, add_range, &f);
    return TESS_OK;
}

typedef struct {
    const void *x;
    void *y;
} cast;

OPS_CLONES static void narrow_range(void *arg, int32_t thread, int64_t first, int64_t last) {
    const cast *c = arg;
    const float *x = c->x;
    uint16_t *y = c->y;
    (void)thread;
    for (int64_t i = first; i < last; i++)
        y[i] = tess_bf16_of_f32(x[i]);
}

OPS_CLONES static void narrow_f16_range(void *arg, int32_t thread, int64_t first, int64_t last) {
    const cast *c = arg;
    const float *x = c->x;
    uint16_t *y = c->y;
    (void)thread;
    for (; first + LANES <= last; first += LANES)
        lanes_store(LANES_F16, lanes_load(LANES_F32, x + first), y + first);
    for (; first < last; first++)
        y[first] = tess_f16_of_f32(x[first]);
}

tess_status ops_cpu_narrow(const ops *o, const float *x, uint16_t *y, uint64_t elems) {
    ops_parallel(o, (int64_t)elems, GRAIN, o->fp16 ? narrow_f16_range : narrow_range, &(cast){ x, y });
    return TESS_OK;
}

OPS_CLONES static void widen_range(void *arg, int32_t thread, int64_t first, int64_t last) {
    const cast *c = arg;
    const uint16_t *x = c->x;
    float *y = c->y;
    (void)thread;
    for (int64_t i = first; i < last; i++)
        y[i] = tess_f32_of_bf16(x[i]);
}

OPS_CLONES static void widen_f16_range(void *arg, int32_t thread, int64_t first, int64_t last) {
    const cast *c = arg;
    const uint16_t *x = c->x;
    float *y = c->y;
    (void)thread;
    for (; first + LANES <= last; first += LANES)
        lanes_store(LANES_F32, lanes_load(LANES_F16, x + first), y + first);
    for (; first < last; first++)
        y[first] = tess_f32_of_f16(x[first]);
}

tess_status ops_cpu_widen(const ops *o, const uint16_t *x, float *y, uint64_t elems) {
    ops_parallel(o, (int64_t)elems, GRAIN, o->fp16 ? widen_f16_range : widen_range, &(cast){ x, y });
    return TESS_OK;
}

tess_status ops_cpu_zero(ops *o, void *x, uint64_t bytes) {
    (void)o;
    memset(x, 0, bytes);
    return TESS_OK;
}

tess_status ops_cpu_copy(ops *o, const void *x, void *y, uint64_t bytes) {
    (void)o;
    memcpy(y, x, bytes);
    return TESS_OK;
}

/* Philox for SIDE neighbouring blocks at once, so that the compiler vectorises the rounds. */
enum { SIDE = 16 };
TESS_FN void mask_words(uint64_t seed, uint64_t first_block, uint32_t layer, uint32_t sample, uint32_t step,
                        uint32_t words[SIDE][4]) {
    uint32_t c0[SIDE], c1[SIDE], c2[SIDE], c3[SIDE], k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int i = 0; i < SIDE; i++) {
        c0[i] = (uint32_t)(first_block + i);
        c1[i] = (uint32_t)PHILOX_DROPOUT << 24 | layer;
        c2[i] = sample, c3[i] = step;
    }
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u)
        for (int i = 0; i < SIDE; i++) {
            uint64_t p = (uint64_t)0xD2511F53u * c0[i], q = (uint64_t)0xCD9E8D57u * c2[i];
            c0[i] = (uint32_t)(q >> 32) ^ c1[i] ^ k0;
            c2[i] = (uint32_t)(p >> 32) ^ c3[i] ^ k1;
            c1[i] = (uint32_t)q, c3[i] = (uint32_t)p;
        }
    for (int i = 0; i < SIDE; i++)
        words[i][0] = c0[i], words[i][1] = c1[i], words[i][2] = c2[i], words[i][3] = c3[i];
}

typedef struct {
    float *x;
    uint64_t elems;
    const ops_dropout *d;
} drop;

OPS_CLONES static void drop_samples(void *arg, int32_t thread, int64_t first, int64_t last) {
    const drop *p = arg;
    const ops_dropout *d = p->d;
    float keep = 1.0f - d->rate, grow = 1.0f / keep;
    (void)thread;
    for (int64_t s = first; s < last; s++)
        for (uint64_t i = 0; i < p->elems; i += SIDE * 4) {
            uint32_t words[SIDE][4], *word = words[0];
            uint64_t n = p->elems - i < SIDE * 4 ? p->elems - i : SIDE * 4;
            float *x = p->x + (uint64_t)s * p->elems + i;
            mask_words(d->seed, i / 4, d->layer, (uint32_t)(d->first_sample + (uint64_t)s), (uint32_t)d->step, words);
            for (uint64_t j = 0; j < n; j++) {
                float kept = x[j] * grow; /* the product precedes the choice; otherwise GCC does not vectorise it */
                x[j] = philox_uniform(word[j]) < keep ? kept : 0;
            }
        }
}

tess_status ops_cpu_dropout(ops *o, float *x, uint64_t samples, uint64_t elems, const ops_dropout *d) {
    drop p = { x, elems, d };
    if (d->rate > 0)
        ops_parallel(o, (int64_t)samples, 1, drop_samples, &p);
    return TESS_OK;
}

OPS_CLONES void ops_cpu_exp(const float *x, float minus, float *y, uint64_t elems) {
    for (uint64_t i = 0; i < elems; i++)
        y[i] = ops_exp(x[i] - minus);
}

OPS_CLONES static void gelu_range(void *arg, int32_t thread, int64_t first, int64_t last) {
    const flat *f = arg;
    (void)thread;
    for (int64_t i = first; i < last; i++)
        f->out[i] = ops_gelu_of(f->x[i]);
}

tess_status ops_cpu_gelu(ops *o, const float *x, float *y, uint64_t elems) {
    flat f = { .x = x, .out = y };
    ops_parallel(o, (int64_t)elems, GRAIN, gelu_range, &f);
    return TESS_OK;
}

OPS_CLONES static void gelu_backward_range(void *arg, int32_t thread, int64_t first, int64_t last) {
    const flat *f = arg;
    (void)thread;
    for (int64_t i = first; i < last; i++)
        f->out[i] = ops_gelu_slope_of(f->x[i], f->dy[i]);
}

tess_status ops_cpu_gelu_backward(ops *o, const float *x, const float *dy, float *dx, uint64_t elems) {
    flat f = { .x = x, .dy = dy, .out = dx };
    ops_parallel(o, (int64_t)elems, GRAIN, gelu_backward_range, &f);
    return TESS_OK;
}

typedef struct {
    const float *dy;
    float *db;
    uint64_t rows, width;
} bias;

enum { COLUMNS = 64 }; /* columns that are summed together; column-wise work is cut at multiples of it */

OPS_CLONES static void bias_columns(void *arg, int32_t thread, int64_t first, int64_t last) {
    const bias *b = arg;
    (void)thread;
    for (int64_t c = first; c < last; c += COLUMNS) {
        double sum[COLUMNS] = { 0 };
        int64_t n = last - c < COLUMNS ? last - c : COLUMNS;
        for (uint64_t r = 0; r < b->rows; r++)
            for (int64_t i = 0; i < n; i++)
                sum[i] += b->dy[r * b->width + (uint64_t)(c + i)];
        for (int64_t i = 0; i < n; i++)
            b->db[c + i] += (float)sum[i];
    }
}

void ops_cpu_bias_backward(ops *o, const float *dy, float *db, uint64_t rows, uint64_t width) {
    bias b = { dy, db, rows, width };
    ops_parallel(o, (int64_t)width, COLUMNS, bias_columns, &b);
}

typedef struct {
    const float *b;
    float *y;
    uint64_t width;
    int32_t relu;
} bias_relu;

OPS_CLONES static void bias_relu_rows(void *arg, int32_t thread, int64_t first, int64_t last) {
    const bias_relu *p = arg;
    (void)thread;
    for (int64_t r = first; r < last; r++) {
        float *y = p->y + (uint64_t)r * p->width;
        for (uint64_t c = 0; c < p->width; c++)
            y[c] = ops_bias_relu_of(y[c], p->b, c, p->relu);
    }
}

void ops_cpu_bias_relu(ops *o, const float *b, float *y, uint64_t rows, uint64_t width, int32_t relu) {
    bias_relu p = { b, y, width, relu };
    if (b || relu)
        ops_parallel(o, (int64_t)rows, 16, bias_relu_rows, &p);
}
