/* SPDX-License-Identifier: BSD-3-Clause */
/* Linear and convolution by oneDNN, 2.x or 3.x.
 *
 * The caller provides scratch (scratchpad mode "user"). Two kinds of implementation are skipped: those that allocate
 * their own workspace ("gemm:…") and slow references. If none remains for this machine and shape, the plain kernel
 * of that operator computes. Weights and gradients keep PyTorch's layout outside. A call reorders them in scratch if
 * the chosen convolution needs another layout. */
#include "compute_threads.h"
#include "elementwise.h"
#include "onednn_step.h"
#include "ops_plain.h"
#include <tessera/tessera.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    int isa, halves;
} isa_names[] = {
    { "sse41", dnnl_cpu_isa_sse41, 0 },
    { "avx", dnnl_cpu_isa_avx, 0 },
    { "avx2", dnnl_cpu_isa_avx2, 0 },
    { "avx512_core", dnnl_cpu_isa_avx512_core, 0 },
    { "avx512_core_vnni", dnnl_cpu_isa_avx512_core_vnni, 0 },
    { "avx512_core_bf16", dnnl_cpu_isa_avx512_core_bf16, 1 },
#if DNNL_VERSION_MAJOR >= 3
    { "avx2_vnni", dnnl_cpu_isa_avx2_vnni, 0 },
    { "avx512_core_fp16", dnnl_cpu_isa_avx512_core_fp16, 1 },
#endif
    { "avx512_core_amx", dnnl_cpu_isa_avx512_core_amx, 1 },
};
enum { N_ISA = sizeof isa_names / sizeof *isa_names };

/* ---- the context ------------------------------------------------------------------------------- */
static const char *isa_name(int isa) {
    for (int i = 0; i < N_ISA; i++)
        if (isa_names[i].isa == isa)
            return isa_names[i].name;
    return "another instruction set";
}

static int isa_halves(int isa) {
    for (int i = 0; i < N_ISA; i++)
        if (isa_names[i].isa == isa)
            return isa_names[i].halves;
    return 0;
}

/* oneDNN takes an upper bound only before its first primitive, and for the whole process. */
static tess_status limit_isa(const char *name) {
    for (int i = 0; i < N_ISA; i++) {
        if (strcmp(isa_names[i].name, name))
            continue;
        if (dnnl_set_max_cpu_isa((dnnl_cpu_isa_t)isa_names[i].isa) == dnnl_success)
            return TESS_OK;
        if ((int)dnnl_get_effective_cpu_isa() == isa_names[i].isa)
            return TESS_OK;
        return tess_fail(TESS_E_INVALID, "instruction set \"%s\": oneDNN already runs with %s in this process", name,
                         isa_name((int)dnnl_get_effective_cpu_isa()));
    }
    return tess_fail(TESS_E_INVALID,
                     "instruction set \"%s\" is unknown: expected one of sse41, avx, avx2, avx512_core, "
                     "avx512_core_vnni, avx512_core_bf16, avx512_core_amx",
                     name);
}

static void onednn_destroy(ops *o) {
    onednn_context *c = (onednn_context *)o;
    if (!c)
        return;
    if (c->stream)
        dnnl_stream_destroy(c->stream);
    if (c->engine)
        dnnl_engine_destroy(c->engine);
    free(c);
}

static tess_status onednn_create(const ops_options *options, ops **out) {
    dnnl_status_t status;
    if (options && options->isa && options->isa[0])
        OPS_TRY(limit_isa(options->isa));
    onednn_context *c = calloc(1, sizeof *c);
    if (!c)
        return tess_fail(TESS_E_NOMEM, "out of memory for the oneDNN operators");
    c->base.t = &ops_onednn;
    c->base.threads = options && options->threads > 0 ? options->threads : 1;
    c->base.bf16 = options && options->bf16;
    c->base.fp16 = options && options->fp16;
    c->halves = c->base.bf16 && isa_halves((int)dnnl_get_effective_cpu_isa());
    status = dnnl_engine_create(&c->engine, dnnl_cpu, 0);
    if (status == dnnl_success)
        status = dnnl_stream_create(&c->stream, c->engine, dnnl_stream_default_flags);
    if (status != dnnl_success) {
        onednn_destroy(&c->base);
        return onednn_failed("creating a CPU engine", status);
    }
    *out = &c->base;
    return TESS_OK;
}

static void onednn_describe(const ops *o, char *out, size_t bytes) {
    const dnnl_version_t *v = dnnl_version();
    const onednn_context *c = (const onednn_context *)o;
    char halves[40] = "", plain[24] = "";
    if (c->halves)
        snprintf(halves, sizeof halves, c->n_wide ? ", bf16 products, %d in fp32" : ", bf16 products", c->n_wide);
    if (c->n_plain)
        snprintf(plain, sizeof plain, ", %d plain", c->n_plain);
    snprintf(out, bytes, "oneDNN %d.%d.%d %s, %d threads%s%s", v->major, v->minor, v->patch,
             isa_name((int)dnnl_get_effective_cpu_isa()), o->threads, c->halves ? halves : ops_as_fp32(o), plain);
}

/* ---- linear: three products on plain layouts ----------------------------------------------------- */
struct ops_linear {
    onednn_context *c;
    ops_linear_shape s;
    onednn_step forward, dx, dw; /* a step has no primitive if the plain kernel computes */
    int32_t halves;              /* x and dy are narrowed into scratch; w is bf16 already */
};

static void linear_clear(ops_linear *l) {
    onednn_step_destroy(&l->forward);
    onednn_step_destroy(&l->dx);
    onednn_step_destroy(&l->dw);
}

static void onednn_linear_destroy(ops_linear *l) {
    if (l)
        linear_clear(l);
    free(l);
}

static uint64_t most(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static uint64_t linear_step_scratch(const ops_linear *l, const onednn_step *s) {
    return s->primitive ? s->scratch_bytes : ops_plain_gemm_scratch(&l->c->base);
}

static tess_status linear_make(ops_linear *l, int32_t halves) {
    const ops_linear_shape *s = &l->s;
    onednn_product forward = { .rows = s->rows, .depth = s->inputs, .columns = s->outputs, .turn_b = 1 };
    onednn_product dx = { .rows = s->rows, .depth = s->outputs, .columns = s->inputs };
    onednn_product dw = { .rows = s->outputs, .depth = s->rows, .columns = s->inputs, .turn_a = 1, .add = 1 };
    forward.bias = !s->no_bias;
    forward.relu = s->relu;
    l->halves = halves;
    forward.factor = dx.factor = dw.factor = halves ? dnnl_bf16 : dnnl_f32;
    forward.result = dx.result = dw.result = forward.bias_type = dx.bias_type = dw.bias_type = dnnl_f32;
    OPS_TRY(onednn_product_step(l->c, &forward, &l->forward));
    OPS_TRY(onednn_product_step(l->c, &dx, &l->dx));
    return onednn_product_step(l->c, &dw, &l->dw);
}

static uint64_t half_bytes(int64_t rows, int64_t columns) {
    return ops_align((uint64_t)(rows * columns) * sizeof(uint16_t));
}

static uint64_t linear_weights(const ops_linear_shape *s) {
    return (uint64_t)s->inputs * (uint64_t)s->outputs;
}

static ops_scratch linear_need(const ops_linear *l) {
    const ops_linear_shape *s = &l->s;
    uint64_t x = half_bytes(s->rows, s->inputs), dy = half_bytes(s->rows, s->outputs);
    uint64_t wide = ops_plain_weights_scratch(&l->c->base, linear_weights(s));
    ops_scratch need = { linear_step_scratch(l, &l->forward),
                         most(linear_step_scratch(l, &l->dx), linear_step_scratch(l, &l->dw)) };
    need.forward_bytes += l->halves ? x : wide;
    need.backward_bytes += l->halves ? x + dy : wide;
    return need;
}

static tess_status onednn_linear_create(ops *o, const ops_linear_shape *s, ops_linear **out, ops_scratch *need) {
    onednn_context *c = (onednn_context *)o;
    ops_linear *l = calloc(1, sizeof *l);
    if (!l)
        return tess_fail(TESS_E_NOMEM, "out of memory for a linear operator");
    l->c = c;
    l->s = *s;
    int before = onednn_enter(o->threads);
    tess_status status = linear_make(l, c->halves);
    if (status == TESS_OK && c->halves && !(l->forward.primitive && l->dx.primitive && l->dw.primitive)) {
        linear_clear(l);
        c->n_wide++;
        status = linear_make(l, 0);
    }
    onednn_leave(before);
    if (status != TESS_OK) {
        onednn_linear_destroy(l);
        return status;
    }
    *need = linear_need(l);
    *out = l;
    return TESS_OK;
}

/* Narrows x to bf16 at the start of *scratch and moves *scratch behind the result. */
static const void *narrowed(const ops *o, const float *x, int64_t rows, int64_t columns, void **scratch) {
    uint16_t *half = *scratch;
    ops_cpu_narrow(o, x, half, (uint64_t)(rows * columns));
    *scratch = (char *)half + half_bytes(rows, columns);
    return half;
}

static tess_status onednn_linear_forward(ops_linear *l, const float *x, const void *w, const float *b, float *y,
                                         void *scratch) {
    const ops *o = &l->c->base;
    if (l->halves) {
        const void *half = narrowed(o, x, l->s.rows, l->s.inputs, &scratch);
        return onednn_step_run(l->c, &l->forward, (const void *[]){ half, w, y, b }, scratch);
    }
    const float *wide = ops_plain_weights(o, w, linear_weights(&l->s), &scratch);
    if (l->forward.primitive)
        return onednn_step_run(l->c, &l->forward, (const void *[]){ x, wide, y, b }, scratch);
    ops_plain_linear_forward(&l->c->base, &l->s, x, wide, b, y, scratch);
    return TESS_OK;
}

static tess_status linear_backward_halves(ops_linear *l, const float *x, const void *w, const float *dy, float *dx,
                                          float *dw, void *scratch) {
    const ops *o = &l->c->base;
    const void *dy_half = narrowed(o, dy, l->s.rows, l->s.outputs, &scratch);
    if (dx)
        OPS_TRY(onednn_step_run(l->c, &l->dx, (const void *[]){ dy_half, w, dx }, scratch));
    if (!dw)
        return TESS_OK;
    const void *x_half = narrowed(o, x, l->s.rows, l->s.inputs, &scratch);
    return onednn_step_run(l->c, &l->dw, (const void *[]){ dy_half, x_half, dw }, scratch);
}

static tess_status linear_backward_wide(ops_linear *l, const float *x, const void *w, const float *dy, float *dx,
                                        float *dw, void *scratch) {
    ops *o = &l->c->base;
    const float *wide = ops_plain_weights(o, w, linear_weights(&l->s), &scratch);
    if (dx && l->dx.primitive)
        OPS_TRY(onednn_step_run(l->c, &l->dx, (const void *[]){ dy, wide, dx }, scratch));
    else if (dx)
        ops_plain_linear_dx(o, &l->s, wide, dy, dx, scratch);
    if (dw && l->dw.primitive)
        return onednn_step_run(l->c, &l->dw, (const void *[]){ dy, x, dw }, scratch);
    if (dw)
        ops_plain_linear_dw(o, &l->s, x, dy, dw, scratch);
    return TESS_OK;
}

static tess_status onednn_linear_backward(ops_linear *l, const float *x, const void *w, const float *dy, float *dx,
                                          float *dw, float *db, void *scratch) {
    if (db)
        ops_cpu_bias_backward(&l->c->base, dy, db, (uint64_t)l->s.rows, (uint64_t)l->s.outputs);
    return (l->halves ? linear_backward_halves : linear_backward_wide)(l, x, w, dy, dx, dw, scratch);
}

/* ---- convolution ------------------------------------------------------------------------------- */
struct ops_conv {
    onednn_context *c;
    ops_conv_shape s;
    onednn_step forward, dx, dw;                /* a step has no primitive if the plain kernel computes */
    onednn_step forward_turn, dx_turn, dw_turn; /* reorder weights into the chosen layout, and the gradient back */
    uint64_t forward_weights_bytes, dx_weights_bytes, dw_weights_bytes;
    int32_t halves; /* as in ops_linear */
};

typedef struct {
    dnnl_memory_desc_t x, w, b, y, oihw; /* w: with any layout */
    dnnl_dims_t padding;                 /* equal on each side */
} conv_mds;
/* Dtypes of the three tensors. The two factors of a product may be bf16; its result never is. */
typedef struct {
    dnnl_data_type_t x, w, y;
} conv_dtypes;

static tess_status make_conv_mds(const ops_conv_shape *s, conv_dtypes t, conv_mds *m) {
    dnnl_dims_t x = { s->batch, s->channels, s->height, s->width }, b = { s->outputs };
    dnnl_dims_t w = { s->outputs, s->channels, s->kernel, s->kernel };
    dnnl_dims_t y = { s->batch, s->outputs, ops_conv_height(s), ops_conv_width(s) };
    if (onednn_md_make(&m->x, 4, x, t.x, dnnl_nhwc) || onednn_md_make(&m->w, 4, w, t.w, dnnl_format_tag_any) ||
        onednn_md_make(&m->b, 1, b, dnnl_f32, dnnl_a) || onednn_md_make(&m->y, 4, y, t.y, dnnl_nhwc) ||
        onednn_md_make(&m->oihw, 4, w, t.w, dnnl_oihw))
        return onednn_failed("describing a convolution", dnnl_invalid_arguments);
    m->padding[0] = m->padding[1] = s->pad;
    return TESS_OK;
}

static void free_conv_mds(conv_mds *m) {
    onednn_md_free(&m->x), onednn_md_free(&m->w), onednn_md_free(&m->b), onednn_md_free(&m->y),
        onednn_md_free(&m->oihw);
}

static const dnnl_dims_t strides = { 1, 1 };

#if DNNL_VERSION_MAJOR >= 3
static const dnnl_dims_t dilates = { 0, 0 };
static dnnl_primitive_desc_t conv_forward_pd(onednn_context *c, const conv_mds *m, int relu) {
    dnnl_primitive_attr_t attributes = onednn_attributes(0, relu);
    dnnl_primitive_desc_t pd = NULL;
    if (dnnl_convolution_forward_primitive_desc_create(&pd, c->engine, dnnl_forward_training, dnnl_convolution_direct,
                                                       m->x, m->w, m->b, m->y, strides, dilates, m->padding, m->padding,
                                                       attributes) == dnnl_success)
        pd = onednn_first_usable(pd);
    dnnl_primitive_attr_destroy(attributes);
    return pd;
}
static dnnl_primitive_desc_t conv_dx_pd(onednn_context *c, const conv_mds *m, const_dnnl_primitive_desc_t hint) {
    dnnl_primitive_attr_t attributes = onednn_attributes(0, 0);
    dnnl_primitive_desc_t pd = NULL;
    if (dnnl_convolution_backward_data_primitive_desc_create(&pd, c->engine, dnnl_convolution_direct, m->x, m->w, m->y,
                                                             strides, dilates, m->padding, m->padding, hint,
                                                             attributes) == dnnl_success)
        pd = onednn_first_usable(pd);
    dnnl_primitive_attr_destroy(attributes);
    return pd;
}
static dnnl_primitive_desc_t conv_dw_pd(onednn_context *c, const conv_mds *m, const_dnnl_primitive_desc_t hint) {
    dnnl_primitive_attr_t attributes = onednn_attributes(0, 0);
    dnnl_primitive_desc_t pd = NULL;
    if (dnnl_convolution_backward_weights_primitive_desc_create(&pd, c->engine, dnnl_convolution_direct, m->x, m->w,
                                                                NULL, m->y, strides, dilates, m->padding, m->padding,
                                                                hint, attributes) == dnnl_success)
        pd = onednn_first_usable(pd);
    dnnl_primitive_attr_destroy(attributes);
    return pd;
}
#else
static dnnl_primitive_desc_t conv_forward_pd(onednn_context *c, const conv_mds *m, int relu) {
    dnnl_convolution_desc_t d;
    if (dnnl_convolution_forward_desc_init(&d, dnnl_forward_training, dnnl_convolution_direct, &m->x, &m->w, &m->b,
                                           &m->y, strides, m->padding, m->padding) != dnnl_success)
        return NULL;
    dnnl_primitive_attr_t attributes = onednn_attributes(0, relu);
    dnnl_primitive_desc_t pd = onednn_first_usable(c, &d, attributes, NULL);
    dnnl_primitive_attr_destroy(attributes);
    return pd;
}
static dnnl_primitive_desc_t conv_dx_pd(onednn_context *c, const conv_mds *m, const_dnnl_primitive_desc_t hint) {
    dnnl_convolution_desc_t d;
    if (dnnl_convolution_backward_data_desc_init(&d, dnnl_convolution_direct, &m->x, &m->w, &m->y, strides, m->padding,
                                                 m->padding) != dnnl_success)
        return NULL;
    dnnl_primitive_attr_t attributes = onednn_attributes(0, 0);
    dnnl_primitive_desc_t pd = onednn_first_usable(c, &d, attributes, hint);
    dnnl_primitive_attr_destroy(attributes);
    return pd;
}
static dnnl_primitive_desc_t conv_dw_pd(onednn_context *c, const conv_mds *m, const_dnnl_primitive_desc_t hint) {
    dnnl_convolution_desc_t d;
    if (dnnl_convolution_backward_weights_desc_init(&d, dnnl_convolution_direct, &m->x, &m->w, NULL, &m->y, strides,
                                                    m->padding, m->padding) != dnnl_success)
        return NULL;
    dnnl_primitive_attr_t attributes = onednn_attributes(0, 0);
    dnnl_primitive_desc_t pd = onednn_first_usable(c, &d, attributes, hint);
    dnnl_primitive_attr_destroy(attributes);
    return pd;
}
#endif

/* Reorders from one layout to another; with `add` it adds to the target. */
static tess_status turn_create(onednn_context *c, md_view from, md_view to, int add, onednn_step *s) {
    dnnl_primitive_attr_t attributes = onednn_attributes(add, 0);
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t made = dnnl_reorder_primitive_desc_create(&pd, from, c->engine, to, c->engine, attributes);
    dnnl_primitive_attr_destroy(attributes);
    if (made != dnnl_success)
        return onednn_failed("describing a reorder of weights", made);
    tess_status status = onednn_step_arg(c, s, DNNL_ARG_FROM, from);
    if (status == TESS_OK)
        status = onednn_step_arg(c, s, DNNL_ARG_TO, to);
    if (status == TESS_OK)
        status = onednn_step_finish(c, s, pd);
    dnnl_primitive_desc_destroy(pd);
    return status;
}

static tess_status conv_forward_make(ops_conv *v, const conv_mds *m, const_dnnl_primitive_desc_t pd) {
    onednn_context *c = v->c;
    md_view w = dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
    v->forward_weights_bytes = ops_align(dnnl_memory_desc_get_size(w));
    OPS_TRY(turn_create(c, onednn_view(&m->oihw), w, 0, &v->forward_turn));
    OPS_TRY(onednn_step_arg(c, &v->forward, DNNL_ARG_SRC, onednn_view(&m->x)));
    OPS_TRY(onednn_step_arg(c, &v->forward, DNNL_ARG_WEIGHTS, w));
    OPS_TRY(onednn_step_arg(c, &v->forward, DNNL_ARG_BIAS, onednn_view(&m->b)));
    OPS_TRY(onednn_step_arg(c, &v->forward, DNNL_ARG_DST, onednn_view(&m->y)));
    return onednn_step_finish(c, &v->forward, pd);
}

static tess_status conv_dx_make(ops_conv *v, const conv_mds *m, const_dnnl_primitive_desc_t pd) {
    onednn_context *c = v->c;
    md_view w = dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
    v->dx_weights_bytes = ops_align(dnnl_memory_desc_get_size(w));
    OPS_TRY(turn_create(c, onednn_view(&m->oihw), w, 0, &v->dx_turn));
    OPS_TRY(onednn_step_arg(c, &v->dx, DNNL_ARG_DIFF_DST, onednn_view(&m->y)));
    OPS_TRY(onednn_step_arg(c, &v->dx, DNNL_ARG_WEIGHTS, w));
    OPS_TRY(onednn_step_arg(c, &v->dx, DNNL_ARG_DIFF_SRC, onednn_view(&m->x)));
    return onednn_step_finish(c, &v->dx, pd);
}

static tess_status conv_dw_make(ops_conv *v, const conv_mds *m, const_dnnl_primitive_desc_t pd) {
    onednn_context *c = v->c;
    md_view w = dnnl_primitive_desc_query_md(pd, dnnl_query_diff_weights_md, 0);
    v->dw_weights_bytes = ops_align(dnnl_memory_desc_get_size(w));
    OPS_TRY(turn_create(c, w, onednn_view(&m->oihw), 1, &v->dw_turn));
    OPS_TRY(onednn_step_arg(c, &v->dw, DNNL_ARG_SRC, onednn_view(&m->x)));
    OPS_TRY(onednn_step_arg(c, &v->dw, DNNL_ARG_DIFF_DST, onednn_view(&m->y)));
    OPS_TRY(onednn_step_arg(c, &v->dw, DNNL_ARG_DIFF_WEIGHTS, w));
    return onednn_step_finish(c, &v->dw, pd);
}

enum { FORWARD, BACKWARD_X, BACKWARD_W, DIRECTIONS };
static const conv_dtypes wide_dtypes[DIRECTIONS] = { { dnnl_f32, dnnl_f32, dnnl_f32 },
                                                     { dnnl_f32, dnnl_f32, dnnl_f32 },
                                                     { dnnl_f32, dnnl_f32, dnnl_f32 } };
static const conv_dtypes half_dtypes[DIRECTIONS] = { { dnnl_bf16, dnnl_bf16, dnnl_f32 },
                                                     { dnnl_f32, dnnl_bf16, dnnl_bf16 },
                                                     { dnnl_bf16, dnnl_f32, dnnl_bf16 } };

/* Makes each direction separately; a direction without a usable implementation stays empty. */
static tess_status conv_make_of(ops_conv *v, const conv_mds m[DIRECTIONS]) {
    dnnl_primitive_desc_t forward = conv_forward_pd(v->c, &m[FORWARD], v->s.relu), dx, dw;
    if (!forward)
        return TESS_OK; /* backward descriptions need the forward one as a hint */
    tess_status status = conv_forward_make(v, &m[FORWARD], forward);
    dx = conv_dx_pd(v->c, &m[BACKWARD_X], forward);
    dw = conv_dw_pd(v->c, &m[BACKWARD_W], forward);
    if (status == TESS_OK && dx)
        status = conv_dx_make(v, &m[BACKWARD_X], dx);
    if (status == TESS_OK && dw)
        status = conv_dw_make(v, &m[BACKWARD_W], dw);
    dnnl_primitive_desc_destroy(forward);
    if (dx)
        dnnl_primitive_desc_destroy(dx);
    if (dw)
        dnnl_primitive_desc_destroy(dw);
    return status;
}

static tess_status conv_make(ops_conv *v, int32_t halves) {
    conv_mds m[DIRECTIONS];
    tess_status status = TESS_OK;
    memset(m, 0, sizeof m);
    v->halves = halves;
    for (int i = 0; i < DIRECTIONS && status == TESS_OK; i++)
        status = make_conv_mds(&v->s, halves ? half_dtypes[i] : wide_dtypes[i], &m[i]);
    if (status == TESS_OK)
        status = conv_make_of(v, m);
    for (int i = 0; i < DIRECTIONS; i++)
        free_conv_mds(&m[i]);
    return status;
}

static void conv_clear(ops_conv *v) {
    onednn_step *steps[] = { &v->forward, &v->dx, &v->dw, &v->forward_turn, &v->dx_turn, &v->dw_turn };
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        onednn_step_destroy(steps[i]);
}

static void onednn_conv_destroy(ops_conv *v) {
    if (v)
        conv_clear(v);
    free(v);
}

static uint64_t conv_step_scratch(const ops_conv *v, const onednn_step *s, const onednn_step *turn,
                                  uint64_t weights_bytes) {
    if (!s->primitive)
        return ops_plain_conv_scratch(&v->c->base, &v->s);
    return weights_bytes + most(s->scratch_bytes, turn->scratch_bytes);
}

static int64_t conv_places(const ops_conv_shape *s) {
    return (int64_t)s->batch * ops_conv_height(s) * ops_conv_width(s);
}

static int64_t conv_pixels(const ops_conv_shape *s) {
    return (int64_t)s->batch * s->height * s->width;
}

static uint64_t conv_weights(const ops_conv_shape *s) {
    return (uint64_t)s->outputs * (uint64_t)s->channels * (uint64_t)s->kernel * (uint64_t)s->kernel;
}

static ops_scratch conv_need(const ops_conv *v) {
    const ops_conv_shape *s = &v->s;
    uint64_t x = half_bytes(conv_pixels(s), s->channels), dy = half_bytes(conv_places(s), s->outputs);
    uint64_t wide = ops_plain_weights_scratch(&v->c->base, conv_weights(s));
    ops_scratch need = { conv_step_scratch(v, &v->forward, &v->forward_turn, v->forward_weights_bytes),
                         most(conv_step_scratch(v, &v->dx, &v->dx_turn, v->dx_weights_bytes),
                              conv_step_scratch(v, &v->dw, &v->dw_turn, v->dw_weights_bytes)) };
    need.forward_bytes += v->halves ? x : wide;
    need.backward_bytes += v->halves ? x + dy : wide;
    return need;
}

static tess_status onednn_conv_create(ops *o, const ops_conv_shape *s, ops_conv **out, ops_scratch *need) {
    onednn_context *c = (onednn_context *)o;
    ops_conv *v = calloc(1, sizeof *v);
    if (!v)
        return tess_fail(TESS_E_NOMEM, "out of memory for a convolution");
    v->c = c;
    v->s = *s;
    int before = onednn_enter(o->threads);
    tess_status status = conv_make(v, c->halves);
    if (status == TESS_OK && c->halves && !(v->forward.primitive && v->dx.primitive && v->dw.primitive)) {
        conv_clear(v);
        c->n_wide++;
        status = conv_make(v, 0);
    }
    onednn_leave(before);
    if (status != TESS_OK) {
        onednn_conv_destroy(v);
        return status;
    }
    *need = conv_need(v);
    *out = v;
    return TESS_OK;
}

/* In the next functions x, w and dy have the dtype of v's primitives: all bf16 or all fp32. */
static tess_status conv_forward(ops_conv *v, const void *x, const void *w, const float *b, float *y, void *scratch) {
    char *pad = (char *)scratch + v->forward_weights_bytes;
    OPS_TRY(onednn_step_run(v->c, &v->forward_turn, (const void *[]){ w, scratch }, pad));
    return onednn_step_run(v->c, &v->forward, (const void *[]){ x, scratch, b, y }, pad);
}

static tess_status onednn_conv_forward(ops_conv *v, const float *x, const void *w, const float *b, float *y,
                                       void *scratch) {
    const ops *o = &v->c->base;
    if (v->halves) {
        const void *half = narrowed(o, x, conv_pixels(&v->s), v->s.channels, &scratch);
        return conv_forward(v, half, w, b, y, scratch);
    }
    const float *wide = ops_plain_weights(o, w, conv_weights(&v->s), &scratch);
    if (v->forward.primitive)
        return conv_forward(v, x, wide, b, y, scratch);
    ops_plain_conv_forward(&v->c->base, &v->s, x, wide, b, y, scratch);
    return TESS_OK;
}

static tess_status conv_dx(ops_conv *v, const void *w, const void *dy, float *dx, void *scratch) {
    char *pad = (char *)scratch + v->dx_weights_bytes;
    if (!v->dx.primitive) {
        ops_plain_conv_dx(&v->c->base, &v->s, w, dy, dx, scratch);
        return TESS_OK;
    }
    OPS_TRY(onednn_step_run(v->c, &v->dx_turn, (const void *[]){ w, scratch }, pad));
    return onednn_step_run(v->c, &v->dx, (const void *[]){ dy, scratch, dx }, pad);
}

static tess_status conv_dw(ops_conv *v, const void *x, const void *dy, float *dw, void *scratch) {
    char *pad = (char *)scratch + v->dw_weights_bytes;
    if (!v->dw.primitive) {
        ops_plain_conv_dw(&v->c->base, &v->s, x, dy, dw, scratch);
        return TESS_OK;
    }
    OPS_TRY(onednn_step_run(v->c, &v->dw, (const void *[]){ x, dy, scratch }, pad));
    return onednn_step_run(v->c, &v->dw_turn, (const void *[]){ scratch, dw }, pad);
}

static tess_status onednn_conv_backward(ops_conv *v, const float *x, const void *w, const float *dy, float *dx,
                                        float *dw, float *db, void *scratch) {
    const ops *o = &v->c->base;
    const ops_conv_shape *s = &v->s;
    const void *x_in = x, *w_in = w, *dy_in = dy;
    if (db)
        ops_cpu_bias_backward(&v->c->base, dy, db, (uint64_t)conv_places(s), (uint64_t)s->outputs);
    if (v->halves)
        dy_in = narrowed(o, dy, conv_places(s), s->outputs, &scratch);
    else
        w_in = ops_plain_weights(o, w, conv_weights(s), &scratch);
    if (dx)
        OPS_TRY(conv_dx(v, w_in, dy_in, dx, scratch));
    if (dw && v->halves)
        x_in = narrowed(o, x, conv_pixels(s), s->channels, &scratch);
    return dw ? conv_dw(v, x_in, dy_in, dw, scratch) : TESS_OK;
}

const ops_table ops_onednn = {
    .name = "onednn",
    .mem = TESS_MEM_HOST,
    .create = onednn_create,
    .start = ops_threads_start,
    .destroy = onednn_destroy,
    .describe = onednn_describe,
    .linear_create = onednn_linear_create,
    .linear_destroy = onednn_linear_destroy,
    .linear_forward = onednn_linear_forward,
    .linear_backward = onednn_linear_backward,
    .matmul_create = ops_onednn_matmul_create,
    .matmul_destroy = ops_onednn_matmul_destroy,
    .matmul = ops_onednn_matmul,
    .conv_create = onednn_conv_create,
    .conv_destroy = onednn_conv_destroy,
    .conv_forward = onednn_conv_forward,
    .conv_backward = onednn_conv_backward,
    OPS_CPU_ELEMENTWISE,
};
