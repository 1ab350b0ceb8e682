/* SPDX-License-Identifier: BSD-3-Clause */
/* Linear and convolution in plain C, for a machine that has only a C compiler. Tests compare the other tables with
 * these. Those tables also use them if their library has no kernel that meets the rules. */
#include "ops_plain.h"
#include "compute_threads.h"
#include "elementwise.h"
#include "gemm.h"
#include "parallel.h"
#include "matmul.h"

#include <tessera/tessera.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ops_linear {
    ops *o;
    ops_linear_shape s;
};
struct ops_conv {
    ops *o;
    ops_conv_shape s;
};

static tess_status plain_create(const ops_options *options, ops **out) {
    int32_t threads = options && options->threads > 0 ? options->threads : 1;
    ops *o = calloc(1, sizeof *o);
    if (!o)
        return tess_fail(TESS_E_NOMEM, "out of memory for the plain operators");
    o->t = &ops_plain;
#ifdef _OPENMP
    o->threads = threads;
#else
    (void)threads;
    o->threads = 1;
#endif
    o->bf16 = options && options->bf16;
    o->fp16 = options && options->fp16;
    *out = o;
    return TESS_OK;
}

static void plain_destroy(ops *o) {
    free(o);
}

static void plain_describe(const ops *o, char *out, size_t bytes) {
    snprintf(out, bytes, "plain, %d threads%s", o->threads, ops_as_fp32(o));
}

uint64_t ops_plain_weights_scratch(const ops *o, uint64_t elems) {
    return o->bf16 || o->fp16 ? ops_align(elems * sizeof(float)) : 0;
}

const float *ops_plain_weights(const ops *o, const void *w, uint64_t elems, void **scratch) {
    float *wide = *scratch;
    if (!o->bf16 && !o->fp16)
        return w;
    ops_cpu_widen(o, w, wide, elems);
    *scratch = (char *)wide + ops_plain_weights_scratch(o, elems);
    return wide;
}

/* ---- linear ------------------------------------------------------------------------------------ */
uint64_t ops_plain_gemm_scratch(const ops *o) {
    return (uint64_t)o->threads * GEMM_SCRATCH_BYTES;
}

void ops_plain_linear_forward(ops *o, const ops_linear_shape *s, const float *x, const float *w, const float *b,
                              float *y, void *scratch) {
    gemm_task t = { .rows = s->rows, .columns = s->outputs, .depth = s->inputs, .a = x, .b = w, .c = y };
    t.a_row = s->inputs, t.a_depth = 1, t.b_depth = 1, t.b_column = s->inputs, t.c_row = s->outputs;
    gemm_parallel(o, &t, scratch);
    ops_cpu_bias_relu(o, b, y, (uint64_t)s->rows, (uint64_t)s->outputs, s->relu);
}

void ops_plain_linear_dx(ops *o, const ops_linear_shape *s, const float *w, const float *dy, float *dx, void *scratch) {
    gemm_task t = { .rows = s->rows, .columns = s->inputs, .depth = s->outputs, .a = dy, .b = w, .c = dx };
    t.a_row = s->outputs, t.a_depth = 1, t.b_depth = s->inputs, t.b_column = 1, t.c_row = s->inputs;
    gemm_parallel(o, &t, scratch);
}

void ops_plain_linear_dw(ops *o, const ops_linear_shape *s, const float *x, const float *dy, float *dw, void *scratch) {
    gemm_task t = { .rows = s->outputs, .columns = s->inputs, .depth = s->rows, .a = dy, .b = x, .c = dw };
    t.a_row = 1, t.a_depth = s->outputs, t.b_depth = s->inputs, t.b_column = 1, t.c_row = s->inputs, t.accumulate = 1;
    gemm_parallel(o, &t, scratch);
}

static uint64_t linear_weights(const ops_linear_shape *s) {
    return (uint64_t)s->inputs * (uint64_t)s->outputs;
}

static tess_status plain_linear_create(ops *o, const ops_linear_shape *s, ops_linear **out, ops_scratch *need) {
    ops_linear *l = calloc(1, sizeof *l);
    if (!l)
        return tess_fail(TESS_E_NOMEM, "out of memory for a linear operator");
    *l = (ops_linear){ o, *s };
    uint64_t bytes = ops_plain_weights_scratch(o, linear_weights(s)) + ops_plain_gemm_scratch(o);
    *need = (ops_scratch){ bytes, bytes };
    *out = l;
    return TESS_OK;
}

static void plain_linear_destroy(ops_linear *l) {
    free(l);
}

static tess_status plain_linear_forward(ops_linear *l, const float *x, const void *w, const float *b, float *y,
                                        void *scratch) {
    const float *wide = ops_plain_weights(l->o, w, linear_weights(&l->s), &scratch);
    ops_plain_linear_forward(l->o, &l->s, x, wide, b, y, scratch);
    return TESS_OK;
}

static tess_status plain_linear_backward(ops_linear *l, const float *x, const void *w, const float *dy, float *dx,
                                         float *dw, float *db, void *scratch) {
    const float *wide = ops_plain_weights(l->o, w, linear_weights(&l->s), &scratch);
    if (dx)
        ops_plain_linear_dx(l->o, &l->s, wide, dy, dx, scratch);
    if (dw)
        ops_plain_linear_dw(l->o, &l->s, x, dy, dw, scratch);
    if (db)
        ops_cpu_bias_backward(l->o, dy, db, (uint64_t)l->s.rows, (uint64_t)l->s.outputs);
    return TESS_OK;
}

/* ---- convolution: windows of one strip of output rows become rows of a matrix ----------------------------- */
enum { STRIP_BYTES = 4 << 20 }; /* approximate limit of the windows' size */

typedef struct {
    int64_t height, width, places, taps; /* sizes of the output; taps: k · k · channels */
    int64_t strip;                       /* output rows per strip */
    uint64_t windows_bytes, weights_bytes;
} conv_sizes;

static conv_sizes sizes_of(const ops_conv_shape *s) {
    conv_sizes z = { .height = ops_conv_height(s), .width = ops_conv_width(s) };
    z.places = z.height * z.width;
    z.taps = (int64_t)s->kernel * s->kernel * s->channels;
    uint64_t row_bytes = (uint64_t)(z.width * z.taps) * sizeof(float);
    z.strip = (int64_t)(STRIP_BYTES / row_bytes);
    z.strip = z.strip < 1 ? 1 : z.strip > z.height ? z.height : z.strip;
    z.windows_bytes = ops_align((uint64_t)z.strip * row_bytes);
    z.weights_bytes = ops_align((uint64_t)(z.taps * s->outputs) * sizeof(float));
    return z;
}

uint64_t ops_plain_conv_scratch(const ops *o, const ops_conv_shape *s) {
    conv_sizes z = sizes_of(s);
    return z.windows_bytes + z.weights_bytes + ops_plain_gemm_scratch(o);
}

/* Permutes weights from [out, in, k, k] to [k, k, in, out], or adds them back. */
static void permute_weights(const ops_conv_shape *s, float *oihw, float *hwio, int add_back) {
    int64_t kk = (int64_t)s->kernel * s->kernel;
    for (int64_t n = 0; n < s->outputs; n++)
        for (int64_t c = 0; c < s->channels; c++)
            for (int64_t k = 0; k < kk; k++) {
                float *a = &oihw[(n * s->channels + c) * kk + k], *b = &hwio[(k * s->channels + c) * s->outputs + n];
                if (add_back)
                    *a += *b;
                else
                    *b = *a;
            }
}

/* One strip of one image: output rows from `first` on of image n. */
typedef struct {
    int64_t n, first, rows, places; /* places: places in the strip */
    uint64_t at;                    /* index of its first place in the whole output */
} strip;

static int next_strip(const ops_conv_shape *s, const conv_sizes *z, strip *p) {
    p->first += p->rows;
    if (p->first == z->height)
        p->first = 0, p->n++;
    p->rows = z->height - p->first < z->strip ? z->height - p->first : z->strip;
    p->places = p->rows * z->width;
    p->at = (uint64_t)(p->n * z->places + p->first * z->width);
    return p->n < s->batch;
}

static const strip before_first = { 0 };

/* Returns the image offset of a window's row `row` at output column c. *from … *to is the part inside the image, in
 * elements of that row; *to = 0: none. */
static int64_t window_row(const ops_conv_shape *s, int64_t row, int64_t c, int64_t *from, int64_t *to) {
    int64_t left = c - s->pad, right = left + s->kernel;
    *from = left < 0 ? -left * s->channels : 0;
    *to = row < 0 || row >= s->height ? 0 : ((right < s->width ? right : s->width) - left) * s->channels;
    return (row * s->width + left) * s->channels;
}

static void windows_of(const ops_conv_shape *s, const conv_sizes *z, const strip *p, const float *x, float *windows) {
    int64_t run = (int64_t)s->kernel * s->channels, from, to;
    const float *image = x + p->n * s->height * s->width * s->channels;
    for (int64_t r = p->first; r < p->first + p->rows; r++)
        for (int64_t c = 0; c < z->width; c++)
            for (int64_t k = 0; k < s->kernel; k++, windows += run) {
                int64_t at = window_row(s, r - s->pad + k, c, &from, &to);
                if (to - from < run)
                    memset(windows, 0, (size_t)run * sizeof *windows);
                if (to > from)
                    memcpy(windows + from, image + at + from, (size_t)(to - from) * sizeof *windows);
            }
}

static void add_windows(const ops_conv_shape *s, const conv_sizes *z, const strip *p, const float *windows, float *x) {
    int64_t run = (int64_t)s->kernel * s->channels, from, to;
    float *image = x + p->n * s->height * s->width * s->channels;
    for (int64_t r = p->first; r < p->first + p->rows; r++)
        for (int64_t c = 0; c < z->width; c++)
            for (int64_t k = 0; k < s->kernel; k++, windows += run) {
                int64_t at = window_row(s, r - s->pad + k, c, &from, &to);
                for (int64_t i = from; i < to; i++)
                    image[at + i] += windows[i];
            }
}

void ops_plain_conv_forward(ops *o, const ops_conv_shape *s, const float *x, const float *w, const float *b, float *y,
                            void *scratch) {
    conv_sizes z = sizes_of(s);
    float *windows = scratch, *hwio = windows + z.windows_bytes / sizeof(float);
    void *rest = (char *)hwio + z.weights_bytes;
    permute_weights(s, (float *)(uintptr_t)w, hwio, 0);
    for (strip p = before_first; next_strip(s, &z, &p);) {
        windows_of(s, &z, &p, x, windows);
        gemm_task t = { .rows = p.places, .columns = s->outputs, .depth = z.taps, .a = windows, .b = hwio };
        t.c = y + p.at * (uint64_t)s->outputs;
        t.a_row = z.taps, t.a_depth = 1, t.b_depth = s->outputs, t.b_column = 1, t.c_row = s->outputs;
        gemm_parallel(o, &t, rest);
    }
    ops_cpu_bias_relu(o, b, y, (uint64_t)(s->batch * z.places), (uint64_t)s->outputs, s->relu);
}

void ops_plain_conv_dx(ops *o, const ops_conv_shape *s, const float *w, const float *dy, float *dx, void *scratch) {
    conv_sizes z = sizes_of(s);
    float *windows = scratch, *hwio = windows + z.windows_bytes / sizeof(float);
    void *rest = (char *)hwio + z.weights_bytes;
    permute_weights(s, (float *)(uintptr_t)w, hwio, 0);
    memset(dx, 0, (size_t)s->batch * (size_t)s->height * (size_t)s->width * (size_t)s->channels * sizeof *dx);
    for (strip p = before_first; next_strip(s, &z, &p);) {
        gemm_task t = { .rows = p.places, .columns = z.taps, .depth = s->outputs, .b = hwio, .c = windows };
        t.a = dy + p.at * (uint64_t)s->outputs;
        t.a_row = s->outputs, t.a_depth = 1, t.b_depth = 1, t.b_column = s->outputs, t.c_row = z.taps;
        gemm_parallel(o, &t, rest);
        add_windows(s, &z, &p, windows, dx);
    }
}

void ops_plain_conv_dw(ops *o, const ops_conv_shape *s, const float *x, const float *dy, float *dw, void *scratch) {
    conv_sizes z = sizes_of(s);
    float *windows = scratch, *hwio = windows + z.windows_bytes / sizeof(float);
    void *rest = (char *)hwio + z.weights_bytes;
    for (strip p = before_first; next_strip(s, &z, &p);) {
        windows_of(s, &z, &p, x, windows);
        gemm_task t = { .rows = z.taps, .columns = s->outputs, .depth = p.places, .a = windows, .c = hwio };
        t.b = dy + p.at * (uint64_t)s->outputs;
        t.a_row = 1, t.a_depth = z.taps, t.b_depth = s->outputs, t.b_column = 1, t.c_row = s->outputs;
        t.accumulate = p.at > 0;
        gemm_parallel(o, &t, rest);
    }
    permute_weights(s, dw, hwio, 1);
}

static uint64_t conv_weights(const ops_conv_shape *s) {
    return (uint64_t)s->outputs * (uint64_t)s->channels * (uint64_t)s->kernel * (uint64_t)s->kernel;
}

static tess_status plain_conv_create(ops *o, const ops_conv_shape *s, ops_conv **out, ops_scratch *need) {
    ops_conv *c = calloc(1, sizeof *c);
    if (!c)
        return tess_fail(TESS_E_NOMEM, "out of memory for a convolution");
    *c = (ops_conv){ o, *s };
    uint64_t bytes = ops_plain_weights_scratch(o, conv_weights(s)) + ops_plain_conv_scratch(o, s);
    *need = (ops_scratch){ bytes, bytes };
    *out = c;
    return TESS_OK;
}

static void plain_conv_destroy(ops_conv *c) {
    free(c);
}

static tess_status plain_conv_forward(ops_conv *c, const float *x, const void *w, const float *b, float *y,
                                      void *scratch) {
    const float *wide = ops_plain_weights(c->o, w, conv_weights(&c->s), &scratch);
    ops_plain_conv_forward(c->o, &c->s, x, wide, b, y, scratch);
    return TESS_OK;
}

static tess_status plain_conv_backward(ops_conv *c, const float *x, const void *w, const float *dy, float *dx,
                                       float *dw, float *db, void *scratch) {
    conv_sizes z = sizes_of(&c->s);
    const float *wide = ops_plain_weights(c->o, w, conv_weights(&c->s), &scratch);
    if (dx)
        ops_plain_conv_dx(c->o, &c->s, wide, dy, dx, scratch);
    if (dw)
        ops_plain_conv_dw(c->o, &c->s, x, dy, dw, scratch);
    if (db)
        ops_cpu_bias_backward(c->o, dy, db, (uint64_t)(c->s.batch * z.places), (uint64_t)c->s.outputs);
    return TESS_OK;
}

const ops_table ops_plain = {
    .name = "plain",
    .mem = TESS_MEM_HOST,
    .create = plain_create,
    .start = ops_threads_start,
    .destroy = plain_destroy,
    .describe = plain_describe,
    .linear_create = plain_linear_create,
    .linear_destroy = plain_linear_destroy,
    .linear_forward = plain_linear_forward,
    .linear_backward = plain_linear_backward,
    .matmul_create = ops_plain_matmul_create,
    .matmul_destroy = ops_plain_matmul_destroy,
    .matmul = ops_plain_matmul,
    .conv_create = plain_conv_create,
    .conv_destroy = plain_conv_destroy,
    .conv_forward = plain_conv_forward,
    .conv_backward = plain_conv_backward,
    OPS_CPU_ELEMENTWISE,
};
