/* SPDX-License-Identifier: BSD-3-Clause */
#include "matmul.h"
#include "elementwise.h"
#include "gemm.h"
#include "parallel.h"
#include <tessera/tessera.h>
#include "kit/formulas.h"

#include <stdlib.h>

typedef struct { /* layout of a matrix in memory */
    int64_t rows, width;
} stored;

static stored stored_as(int64_t rows, int64_t columns, int32_t turned) {
    return (stored){ turned ? columns : rows, turned ? rows : columns };
}

static uint64_t extent(const stored *s) {
    return (uint64_t)(s->rows * s->width);
}

static stored a_of(const ops_matmul_shape *s) {
    return stored_as(s->rows, s->depth, s->turn_a);
}
static stored b_of(const ops_matmul_shape *s) {
    return stored_as(s->depth, s->columns, s->turn_b);
}
static stored y_of(const ops_matmul_shape *s) {
    return stored_as(s->rows, s->columns, 0);
}

static uint64_t wide_bytes(const stored *s, uint32_t dtype) {
    return dtype != TESS_F32 ? ops_align(extent(s) * sizeof(float)) : 0;
}

uint64_t matmul_scratch(const ops_matmul_shape *s) {
    stored a = a_of(s), b = b_of(s), y = y_of(s);
    return wide_bytes(&a, s->factor) + wide_bytes(&b, s->factor) + wide_bytes(&y, s->result);
}

static const float *widened(const ops *o, const void *from, const stored *s, uint32_t dtype, char **at) {
    float *to = (float *)*at;
    if (dtype == TESS_F32)
        return from;
    /* An object with `alone` set gets one thread here, because parallel regions do not nest. */
    ops_cpu_widen(o, from, to, extent(s));
    *at += wide_bytes(s, dtype);
    return to;
}

typedef struct {
    const ops_matmul_shape *s;
    const float *wide; /* null: y is fp32 and holds the product */
    const void *bias;
    void *y;
} finish;

static float bias_at(const finish *f, int64_t c) {
    const uint16_t *halves = f->bias;
    return f->s->factor == TESS_BF16  ? tess_f32_of_bf16(halves[c])
           : f->s->factor == TESS_F16 ? tess_f32_of_f16(halves[c])
                                      : ((const float *)f->bias)[c];
}

static void finish_rows(void *arg, int32_t thread, int64_t first, int64_t last) {
    const finish *f = arg;
    (void)thread;
    for (int64_t r = first; r < last; r++)
        for (int64_t c = 0; c < f->s->columns; c++) {
            int64_t i = r * f->s->columns + c;
            float v = (f->wide ? f->wide[i] : ((float *)f->y)[i]) + (f->bias ? bias_at(f, c) : 0);
            if (f->wide)
                ((uint16_t *)f->y)[i] = f->s->result == TESS_F16 ? tess_f16_of_f32(v) : tess_bf16_of_f32(v);
            else
                ((float *)f->y)[i] = v;
        }
}

tess_status matmul_run(const ops *o, const ops_matmul_shape *s, const void *a, const void *b, const void *bias, void *y,
                       matmul_wide_fn fn, void *user, void *scratch) {
    stored sa = a_of(s), sb = b_of(s), sy = y_of(s);
    char *at = scratch;
    const float *wa = widened(o, a, &sa, s->factor, &at), *wb = widened(o, b, &sb, s->factor, &at);
    float *wy = y;
    if (s->result != TESS_F32) {
        wy = (float *)at;
        if (s->add)
            widened(o, y, &sy, s->result, &at);
        else
            at += wide_bytes(&sy, s->result);
    }
    OPS_TRY(fn(user, wa, wb, wy, at));
    finish f = { s, s->result != TESS_F32 ? wy : NULL, s->bias ? bias : NULL, y };
    if ((f.wide || f.bias) && s->alone)
        finish_rows(&f, 0, 0, s->rows);
    else if (f.wide || f.bias)
        ops_parallel(o, s->rows, 16, finish_rows, &f);
    return TESS_OK;
}

/* ---- slots of the plain table --------------------------------------------------------------------------- */
struct ops_matmul {
    ops *o;
    ops_matmul_shape s;
};

void ops_plain_matmul_wide(const ops *o, const ops_matmul_shape *s, const float *a, const float *b, float *y,
                           void *scratch) {
    stored sa = a_of(s), sb = b_of(s);
    gemm_task t = { .rows = s->rows, .columns = s->columns, .depth = s->depth, .a = a, .b = b, .c = y };
    t.a_row = s->turn_a ? 1 : sa.width;
    t.a_depth = s->turn_a ? sa.width : 1;
    t.b_depth = s->turn_b ? 1 : sb.width;
    t.b_column = s->turn_b ? sb.width : 1;
    t.c_row = s->columns;
    t.accumulate = s->add;
    if (s->alone)
        gemm(&t, scratch);
    else
        gemm_parallel(o, &t, scratch);
}

static tess_status multiply(void *user, const float *a, const float *b, float *y, void *scratch) {
    const ops_matmul *p = user;
    ops_plain_matmul_wide(p->o, &p->s, a, b, y, scratch);
    return TESS_OK;
}

tess_status ops_plain_matmul_create(ops *o, const ops_matmul_shape *s, ops_matmul **out, uint64_t *scratch_bytes) {
    ops_matmul *p = calloc(1, sizeof *p);
    if (!p)
        return tess_fail(TESS_E_NOMEM, "out of memory for a product");
    *p = (ops_matmul){ o, *s };
    *scratch_bytes = matmul_scratch(s) + (s->alone ? 1 : (uint64_t)o->threads) * GEMM_SCRATCH_BYTES;
    *out = p;
    return TESS_OK;
}

void ops_plain_matmul_destroy(ops_matmul *p) {
    free(p);
}

tess_status ops_plain_matmul(ops_matmul *p, const void *a, const void *b, const void *bias, void *y, void *scratch) {
    return matmul_run(p->o, &p->s, a, b, bias, y, multiply, p, scratch);
}
