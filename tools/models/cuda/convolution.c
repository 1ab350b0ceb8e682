/* SPDX-License-Identifier: BSD-3-Clause */
/* Convolution by cuDNN if it can (cudnn.c), otherwise by products over strips of windows, whose rows are the
 * windows. The gradient of the input is a convolution of dy with the reversed weights, so that each element is one
 * sum. */
#include "cudnn_ops.h"
#include <tessera/tessera.h>

#include <stdlib.h>

enum { STRIP_BYTES = 64 << 20 }; /* approximate limit of the windows' size */

struct ops_conv {
    cuda_ops *c;
    ops_conv_shape s, back; /* back: the convolution from dy to dx */
    ops_scratch need;
    ops_cudnn_conv dnn;
};

typedef struct {
    uint64_t places, taps, strip; /* places: of the output; taps: k · k · channels; strip: places at a time */
    uint64_t windows_bytes, weights_bytes, dy_bytes, workspace_bytes;
} sizes;

static sizes sizes_of(const cuda_ops *c, const ops_conv_shape *s) {
    uint64_t bytes = ops_halves(&c->base) ? sizeof(uint16_t) : sizeof(float);
    sizes z = { .places = (uint64_t)s->batch * (uint64_t)ops_conv_height(s) * (uint64_t)ops_conv_width(s) };
    z.taps = (uint64_t)s->kernel * (uint64_t)s->kernel * (uint64_t)s->channels;
    z.strip = STRIP_BYTES / (z.taps * bytes);
    z.strip = z.strip < 1 ? 1 : z.strip > z.places ? z.places : z.strip;
    z.windows_bytes = ops_align(z.strip * z.taps * bytes);
    z.weights_bytes = ops_align(z.taps * (uint64_t)s->outputs * sizeof(float)); /* room for an fp32 gradient too */
    z.dy_bytes = ops_halves(&c->base) ? ops_align(z.strip * (uint64_t)s->outputs * bytes) : 0;
    z.workspace_bytes = ops_cuda_workspace((int64_t)z.strip, s->outputs, (int64_t)z.taps, 1);
    return z;
}

tess_status ops_cuda_conv_create(ops *o, const ops_conv_shape *s, ops_conv **out, ops_scratch *need) {
    if (s->pad >= s->kernel)
        return tess_fail(TESS_E_UNSUPPORTED, "operators cuda: a convolution with %d around a kernel of %d", s->pad,
                         s->kernel);
    ops_conv *v = calloc(1, sizeof *v);
    if (!v)
        return tess_fail(TESS_E_NOMEM, "out of memory for a convolution");
    *v = (ops_conv){ .c = cuda_of(o), .s = *s, .back = *s };
    v->back.height = ops_conv_height(s);
    v->back.width = ops_conv_width(s);
    v->back.channels = s->outputs;
    v->back.outputs = s->channels;
    v->back.pad = s->kernel - 1 - s->pad;
    sizes z = sizes_of(v->c, s), b = sizes_of(v->c, &v->back);
    uint64_t there = z.windows_bytes + z.weights_bytes + z.workspace_bytes;
    uint64_t back = b.windows_bytes + b.weights_bytes + b.workspace_bytes;
    *need = v->need = (ops_scratch){ there, there + z.dy_bytes > back ? there + z.dy_bytes : back };
    *out = v;
    return TESS_OK;
}

void ops_cuda_conv_destroy(ops_conv *v) {
    if (v)
        ops_cudnn_conv_release(v->c, &v->dnn);
    free(v);
}

static tess_status windows_of(const cuda_ops *c, const ops_conv_shape *s, const float *x, uint64_t first, uint64_t n,
                              uint64_t taps, void *windows) {
    ops_args_windows a = { .x = x, .elems = n * taps, .first_place = first };
    if (ops_halves(&c->base))
        a.half = windows;
    else
        a.out = windows;
    a.height = s->height, a.width = s->width, a.channels = s->channels, a.kernel = s->kernel, a.pad = s->pad;
    a.out_height = ops_conv_height(s), a.out_width = ops_conv_width(s);
    return ops_cuda_launch(c, OPS_KERNEL_windows, &a, ops_blocks_each(a.elems));
}

/* Convolves x with w. `of` is the shape of w; with `turned` its taps are reversed. */
static tess_status convolve(const cuda_ops *c, const ops_conv_shape *s, const ops_conv_shape *of, int turned,
                            const float *x, const void *w, float *y, char *scratch) {
    sizes z = sizes_of(c, s);
    char *windows = scratch, *weights = windows + z.windows_bytes, *workspace = weights + z.weights_bytes;
    uint64_t elems = z.taps * (uint64_t)s->outputs;
    OPS_TRY(OPS_LAUNCH(c, turn_weights, ops_blocks_each(elems), .w = w, .out = weights, .elems = elems,
                       .channels = of->channels, .outputs = of->outputs, .kernel = of->kernel, .turned = turned,
                       .halves = ops_halves(&c->base)));
    for (uint64_t first = 0; first < z.places; first += z.strip) {
        uint64_t n = z.places - first < z.strip ? z.places - first : z.strip;
        ops_product p = { .rows = (int64_t)n, .columns = s->outputs, .depth = (int64_t)z.taps, .alpha = 1 };
        p.a = windows, p.b = weights, p.c = y + first * (uint64_t)s->outputs, p.halves = ops_halves(&c->base);
        p.a_pitch = (int64_t)z.taps, p.b_pitch = s->outputs, p.c_pitch = s->outputs;
        OPS_TRY(windows_of(c, s, x, first, n, z.taps, windows));
        OPS_TRY(ops_cuda_product(c, &p, workspace));
    }
    return TESS_OK;
}

static tess_status forward(ops_conv *v, const float *x, const void *w, const float *b, float *y, void *scratch) {
    const ops_conv_shape *s = &v->s;
    uint64_t elems = sizes_of(v->c, s).places * (uint64_t)s->outputs;
    if (!v->dnn.asked)
        ops_cudnn_conv_prepare(v->c, &v->dnn, s, v->need);
    if (v->dnn.use_forward)
        OPS_TRY(ops_cudnn_forward(v->c, &v->dnn, s, x, w, y, scratch));
    if (!v->dnn.use_forward)
        OPS_TRY(convolve(v->c, s, s, OPS_TURN_IN_OUT, x, w, y, scratch));
    if (!b && !s->relu)
        return TESS_OK;
    return OPS_LAUNCH(v->c, bias_relu, ops_blocks_each(elems), .b = b, .y = y, .elems = elems,
                      .width = (uint64_t)s->outputs, .relu = s->relu);
}

tess_status ops_cuda_conv_forward(ops_conv *v, const float *x, const void *w, const float *b, float *y, void *scratch) {
    OPS_INSIDE(v->c, forward(v, x, w, b, y, scratch));
}

/* Strips add to d[taps, outputs], which is then added to dw in PyTorch's layout. */
static tess_status weights_backward(const ops_conv *v, const float *x, const float *dy, float *dw, char *scratch) {
    const cuda_ops *c = v->c;
    const ops_conv_shape *s = &v->s;
    sizes z = sizes_of(c, s);
    char *windows = scratch, *d = windows + z.windows_bytes, *half = d + z.weights_bytes;
    uint64_t elems = z.taps * (uint64_t)s->outputs;
    for (uint64_t first = 0; first < z.places; first += z.strip) {
        uint64_t n = z.places - first < z.strip ? z.places - first : z.strip;
        const float *at = dy + first * (uint64_t)s->outputs;
        ops_product p = { .rows = (int64_t)z.taps, .columns = s->outputs, .depth = (int64_t)n, .alpha = 1 };
        p.a = windows, p.a_turned = 1, p.a_pitch = (int64_t)z.taps,
        p.b = ops_halves(&c->base) ? (void *)half : (void *)(uintptr_t)at;
        p.b_pitch = s->outputs, p.c = (float *)(void *)d, p.c_pitch = s->outputs, p.halves = ops_halves(&c->base);
        p.beta = first > 0;
        OPS_TRY(windows_of(c, s, x, first, n, z.taps, windows));
        if (ops_halves(&c->base))
            OPS_TRY(ops_cuda_narrow_in(c, at, (uint16_t *)(void *)half, n * (uint64_t)s->outputs));
        OPS_TRY(ops_cuda_product(c, &p, half + z.dy_bytes));
    }
    return OPS_LAUNCH(c, add_weights, ops_blocks_each(elems), .d = (const float *)(void *)d, .dw = dw, .elems = elems,
                      .channels = s->channels, .outputs = s->outputs, .kernel = s->kernel);
}

static tess_status backward(ops_conv *v, const float *x, const void *w, const float *dy, float *dx, float *dw,
                            float *db, void *scratch) {
    if (dx && v->dnn.use_data)
        OPS_TRY(ops_cudnn_data(v->c, &v->dnn, &v->s, w, dy, dx, scratch));
    if (dx && !v->dnn.use_data)
        OPS_TRY(convolve(v->c, &v->back, &v->s, OPS_TURN_ROUND, dy, w, dx, scratch));
    if (dw && v->dnn.use_filter)
        OPS_TRY(ops_cudnn_filter(v->c, &v->dnn, &v->s, x, dy, dw, scratch));
    if (dw && !v->dnn.use_filter)
        OPS_TRY(weights_backward(v, x, dy, dw, scratch));
    return db ? ops_cuda_column_sums_in(v->c, dy, db, sizes_of(v->c, &v->s).places, (uint64_t)v->s.outputs, 1)
              : TESS_OK;
}

tess_status ops_cuda_conv_backward(ops_conv *v, const float *x, const void *w, const float *dy, float *dx, float *dw,
                                   float *db, void *scratch) {
    OPS_INSIDE(v->c, backward(v, x, w, dy, dx, dw, db, scratch));
}
