/* SPDX-License-Identifier: BSD-3-Clause */
/* The network of PyTorch's FSDP memory test. It has a stem and three stages of convolution, batch normalisation and
 * ReLU, then an average pool and a linear head. The loss is the square of the first sample's summed outputs. Maps
 * are NHWC. The model saves the tensors that PyTorch saves: each normalisation's input, and its output after the
 * in-place ReLU. */
#include "model.h"
#include <tessera/tessera.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { IMAGE_CHANNELS = 3, STEM_MAPS = 64, STEM_KERNEL = 3, KERNEL = 5, STAGES = 3, CLASSES = 10 };
enum { CONV_W, CONV_B, NORM_W, NORM_B, RUNNING_MEAN, RUNNING_VAR, STAGE_PARAMS };

typedef struct { /* convolution, normalisation, ReLU */
    ops_conv *conv;
    ops_scratch need; /* the larger need of convolution and normalisation */
    ops_batchnorm_shape norm;
    uint64_t map_bytes, stats_bytes;
} stage;

typedef struct {
    stage stem, stages[STAGES];
    ops_linear *head;
    uint64_t places; /* places in a map */
    uint64_t logits_bytes;
} convbn;

static void *cut(char **at, uint64_t bytes) {
    void *p = *at;
    *at += ops_align(bytes);
    return p;
}

/* ---- one stage ------------------------------------------------------------------------------------- */
typedef struct { /* tensors that forward saves for backward */
    float *map, *out, *stats;
} stage_saved;

static uint32_t normalise_with(const tess_block_call *call) {
    return call->pass == TESS_PASS_EVAL ? OPS_RUNNING : call->recompute ? OPS_BATCH : OPS_BATCH_UPDATE;
}

/* Running statistics are the only parameters that a block writes. */
static float *buffer(const tess_block_call *call, int32_t i) {
    return (float *)(uintptr_t)call->params[i];
}

/* `first`: index of the stage's first parameter in the call. */
static tess_status stage_forward(model *m, const stage *g, const tess_block_call *call, int32_t first, const float *x,
                                 const stage_saved *s, void *scratch) {
    const ops_table *t = m->o->t;
    const void *const *p = call->params + first;
    OPS_TRY(t->conv_forward(g->conv, x, p[CONV_W], p[CONV_B], s->map, scratch));
    return t->batchnorm(m->o, &g->norm, normalise_with(call), s->map, p[NORM_W], p[NORM_B],
                        buffer(call, first + RUNNING_MEAN), buffer(call, first + RUNNING_VAR), s->out, s->stats,
                        scratch);
}

/* dmap receives the gradient of the convolution's result; it may be dy. */
static tess_status stage_backward(model *m, const stage *g, const tess_block_call *call, int32_t first, const float *x,
                                  const stage_saved *s, const float *dy, float *dmap, float *dx, void *scratch) {
    const ops_table *t = m->o->t;
    const void *const *p = call->params + first;
    void *const *dp = call->grads + first;
    OPS_TRY(t->batchnorm_backward(m->o, &g->norm, s->map, p[NORM_W], s->stats, s->out, dy, dmap, dp[NORM_W], dp[NORM_B],
                                  scratch));
    return t->conv_backward(g->conv, x, p[CONV_W], dmap, dx, dp[CONV_W], dp[CONV_B], scratch);
}

/* ---- stem ------------------------------------------------------------------------------------------ */
static const float *images_of(const tess_block_call *call) {
    return (const float *)((const char *)call->batch + sizeof(model_batch));
}

/* An evaluation saves nothing, so it normalises the map in place. */
static stage_saved stem_saved(const convbn *n, const tess_block_call *call, char **scratch) {
    char *at = call->saved, **from = at ? &at : scratch;
    stage_saved s = { .out = call->output };
    s.map = at ? cut(from, n->stem.map_bytes) : s.out;
    s.stats = cut(from, n->stem.stats_bytes);
    return s;
}

static tess_status stem_forward(void *user, const tess_block_call *call) {
    model *m = user;
    const convbn *n = m->own;
    const model_batch *batch = model__batch(m, call);
    char *at = call->scratch;
    if (batch->count != (uint32_t)m->options.batch)
        return tess_fail(TESS_E_DATA, "convbn: %u samples in a batch of %d: normalisation needs all", batch->count,
                         m->options.batch);
    stage_saved s = stem_saved(n, call, &at);
    return stage_forward(m, &n->stem, call, 0, images_of(call), &s, at);
}

static tess_status stem_backward(void *user, const tess_block_call *call) {
    model *m = user;
    const convbn *n = m->own;
    char *at = call->scratch;
    stage_saved s = stem_saved(n, call, &at);
    float *dmap = cut(&at, n->stem.map_bytes);
    return stage_backward(m, &n->stem, call, 0, images_of(call), &s, call->grad_output, dmap, NULL, at);
}

/* ---- the three stages ---------------------------------------------------------------------------------- */
static void stages_saved(const convbn *n, char *at, stage_saved s[STAGES]) {
    for (int i = 0; i < STAGES; i++) {
        s[i].map = cut(&at, n->stages[i].map_bytes);
        s[i].out = cut(&at, n->stages[i].map_bytes);
    }
    for (int i = 0; i < STAGES; i++)
        s[i].stats = cut(&at, n->stages[i].stats_bytes);
}

/* An evaluation alternates between two maps. */
static void stages_transient(const convbn *n, char **at, stage_saved s[STAGES]) {
    float *maps[2] = { cut(at, n->stages[0].map_bytes), cut(at, n->stages[0].map_bytes) };
    float *stats = cut(at, n->stages[0].stats_bytes);
    for (int i = 0; i < STAGES; i++)
        s[i] = (stage_saved){ maps[i % 2], maps[i % 2], stats };
}

static tess_status blocks_forward(void *user, const tess_block_call *call) {
    model *m = user;
    const convbn *n = m->own;
    const float *x = call->input;
    char *at = call->scratch;
    stage_saved s[STAGES];
    if (call->saved)
        stages_saved(n, call->saved, s);
    else
        stages_transient(n, &at, s);
    for (int i = 0; i < STAGES; i++) {
        OPS_TRY(stage_forward(m, &n->stages[i], call, i * STAGE_PARAMS, x, &s[i], at));
        x = s[i].out;
    }
    return m->o->t->avgpool(m->o, x, call->output, (uint64_t)m->options.batch, n->places, (uint64_t)m->options.hidden);
}

static tess_status blocks_backward(void *user, const tess_block_call *call) {
    model *m = user;
    const convbn *n = m->own;
    char *at = call->scratch;
    stage_saved s[STAGES];
    float *maps[2] = { cut(&at, n->stages[0].map_bytes), cut(&at, n->stages[0].map_bytes) };
    stages_saved(n, call->saved, s);
    OPS_TRY(m->o->t->avgpool_backward(m->o, call->grad_output, maps[0], (uint64_t)m->options.batch, n->places,
                                      (uint64_t)m->options.hidden));
    for (int i = STAGES - 1; i >= 0; i--) {
        float *dy = maps[i % 2], *dx = i ? maps[(i + 1) % 2] : call->grad_input;
        const float *x = i ? s[i - 1].out : call->input;
        OPS_TRY(stage_backward(m, &n->stages[i], call, i * STAGE_PARAMS, x, &s[i], dy, dy, dx, at));
    }
    return TESS_OK;
}

/* ---- head ------------------------------------------------------------------------------------------ */
static tess_status head_forward(void *user, const tess_block_call *call) {
    model *m = user;
    const convbn *n = m->own;
    char *at = call->scratch;
    float *logits = call->saved ? call->saved : cut(&at, n->logits_bytes);
    OPS_TRY(m->o->t->linear_forward(n->head, call->input, call->params[0], call->params[1], logits, at));
    return m->o->t->sum_loss(m->o, logits, CLASSES, 1, 1, model__loss(call));
}

static tess_status head_backward(void *user, const tess_block_call *call) {
    model *m = user;
    const convbn *n = m->own;
    char *at = call->scratch;
    float *dlogits = cut(&at, n->logits_bytes);
    OPS_TRY(m->o->t->sum_loss_backward(m->o, call->saved, CLASSES, 1, model__loss_scale(call),
                                       (uint64_t)m->options.batch * CLASSES, dlogits));
    return m->o->t->linear_backward(n->head, call->input, call->params[0], dlogits, call->grad_input, call->grads[0],
                                    call->grads[1], at);
}

/* ---- building -------------------------------------------------------------------------------------- */
static uint64_t most(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static tess_status make_stage(model *m, const ops_conv_shape *shape, stage *out) {
    uint64_t places = (uint64_t)ops_conv_height(shape) * (uint64_t)ops_conv_width(shape);
    out->norm = (ops_batchnorm_shape){ (uint64_t)shape->batch * places, (uint64_t)shape->outputs, 1 };
    out->map_bytes = ops_align(out->norm.rows * out->norm.channels * sizeof(float));
    out->stats_bytes = ops_align(2 * out->norm.channels * sizeof(float));
    OPS_TRY(m->o->t->conv_create(m->o, shape, &out->conv, &out->need));
    uint64_t sums = ops_batchnorm_scratch(&out->norm);
    out->need.forward_bytes = most(out->need.forward_bytes, sums);
    out->need.backward_bytes = most(out->need.backward_bytes, sums);
    return TESS_OK;
}

static tess_status add(model *m, const char *block, int at, const char *leaf, const int64_t shape[MODEL_DIMS],
                       uint32_t init, double scale) {
    char name[MODEL_NAME];
    snprintf(name, sizeof name, "%s.%d.%s", block, at, leaf);
    return model__add_param(m, name, shape, init, (float)scale);
}

static tess_status add_buffer(model *m, const char *block, int at, const char *leaf, int64_t elems, float value) {
    char name[MODEL_NAME];
    snprintf(name, sizeof name, "%s.%d.%s", block, at, leaf);
    return model__add_buffer(m, name, elems, value);
}

/* Names and initial values are PyTorch's. Module `at` of the sequence is the convolution; the next module is its
 * normalisation, which is a unit of its own. */
static tess_status add_stage(model *m, const char *block, int at, const ops_conv_shape *s) {
    const int64_t weight[MODEL_DIMS] = { s->outputs, s->channels, s->kernel, s->kernel };
    const int64_t line[MODEL_DIMS] = { s->outputs };
    double bound = 1.0 / sqrt((double)s->channels * s->kernel * s->kernel);
    char scope[MODEL_NAME];
    snprintf(scope, sizeof scope, "%s.%d", block, at + 1);
    OPS_TRY(add(m, block, at, "weight", weight, MODEL_UNIFORM, bound));
    OPS_TRY(add(m, block, at, "bias", line, MODEL_UNIFORM, bound));
    OPS_TRY(model__add_scope(m, scope));
    OPS_TRY(add(m, block, at + 1, "weight", line, MODEL_CONSTANT, 1));
    OPS_TRY(add(m, block, at + 1, "bias", line, MODEL_CONSTANT, 0));
    OPS_TRY(add_buffer(m, block, at + 1, "running_mean", s->outputs, 0));
    return add_buffer(m, block, at + 1, "running_var", s->outputs, 1);
}

static tess_status build_stem(model *m) {
    convbn *n = m->own;
    stage *g = &n->stem;
    int32_t size = m->options.image_size;
    ops_conv_shape shape = { m->options.batch, size, size, IMAGE_CHANNELS, STEM_MAPS, STEM_KERNEL, 0, 0 };
    OPS_TRY(make_stage(m, &shape, g));
    n->places = (uint64_t)ops_conv_height(&shape) * (uint64_t)ops_conv_width(&shape);
    model_block b = { .name = "stem", .output_bytes = g->norm.rows * g->norm.channels * sizeof(float), .user = m };
    b.saved_bytes = g->map_bytes + g->stats_bytes;
    b.forward_scratch_bytes = g->stats_bytes + g->need.forward_bytes;
    b.backward_scratch_bytes = g->map_bytes + g->need.backward_bytes;
    b.forward = stem_forward;
    b.backward = stem_backward;
    b.flags = TESS_BLOCK_KEEP; /* PyTorch's test recomputes only the three stages */
    b.products = 1u << CONV_W;
    b.reads_output = 1;
    OPS_TRY(add_stage(m, "stem", 0, &shape));
    return model__add_block(m, &b);
}

static tess_status build_blocks(model *m) {
    convbn *n = m->own;
    int32_t side = m->options.image_size - STEM_KERNEL + 1, hidden = m->options.hidden;
    ops_scratch inner = { 0, 0 };
    model_block b = { .name = "blocks", .user = m };
    for (int i = 0; i < STAGES; i++) {
        stage *g = &n->stages[i];
        ops_conv_shape shape = { m->options.batch, side, side, i ? hidden : STEM_MAPS, hidden, KERNEL, 0, KERNEL / 2 };
        OPS_TRY(make_stage(m, &shape, g));
        OPS_TRY(add_stage(m, b.name, 3 * i, &shape));
        inner.forward_bytes = most(inner.forward_bytes, g->need.forward_bytes);
        inner.backward_bytes = most(inner.backward_bytes, g->need.backward_bytes);
        b.saved_bytes += 2 * g->map_bytes + g->stats_bytes;
        b.products |= 1u << (i * STAGE_PARAMS + CONV_W);
    }
    b.output_bytes = (uint64_t)m->options.batch * (uint64_t)hidden * sizeof(float);
    b.forward_scratch_bytes = 2 * n->stages[0].map_bytes + n->stages[0].stats_bytes + inner.forward_bytes;
    b.backward_scratch_bytes = 2 * n->stages[0].map_bytes + inner.backward_bytes;
    b.forward = blocks_forward;
    b.backward = blocks_backward;
    return model__add_block(m, &b);
}

static tess_status build_head(model *m) {
    convbn *n = m->own;
    int32_t hidden = m->options.hidden;
    float bound = (float)(1.0 / sqrt((double)hidden));
    ops_scratch need;
    ops_linear_shape shape = { m->options.batch, hidden, CLASSES, 0, 0 };
    OPS_TRY(m->o->t->linear_create(m->o, &shape, &n->head, &need));
    n->logits_bytes = ops_align((uint64_t)m->options.batch * CLASSES * sizeof(float));
    model_block b = { .name = "head", .output_bytes = sizeof(model_result), .user = m, .products = 1 };
    b.saved_bytes = n->logits_bytes;
    b.forward_scratch_bytes = n->logits_bytes + need.forward_bytes;
    b.backward_scratch_bytes = n->logits_bytes + need.backward_bytes;
    b.forward = head_forward;
    b.backward = head_backward;
    OPS_TRY(model__add_param(m, "head.weight", (const int64_t[MODEL_DIMS]){ CLASSES, hidden }, MODEL_UNIFORM, bound));
    OPS_TRY(model__add_param(m, "head.bias", (const int64_t[MODEL_DIMS]){ CLASSES }, MODEL_UNIFORM, bound));
    return model__add_block(m, &b);
}

static tess_status convbn_build(model *m) {
    uint64_t size = (uint64_t)m->options.image_size;
    m->own = calloc(1, sizeof(convbn));
    if (!m->own)
        return tess_fail(TESS_E_NOMEM, "out of memory for model convbn");
    m->desc.input_bytes =
        sizeof(model_batch) + (uint64_t)m->options.batch * size * size * IMAGE_CHANNELS * sizeof(float);
    OPS_TRY(build_stem(m));
    OPS_TRY(build_blocks(m));
    return build_head(m);
}

static void convbn_release(model *m) {
    convbn *n = m->own;
    const ops_table *t = m->o->t;
    if (!n)
        return;
    t->conv_destroy(n->stem.conv);
    for (int i = 0; i < STAGES; i++)
        t->conv_destroy(n->stages[i].conv);
    t->linear_destroy(n->head);
    free(n);
}

static tess_status convbn_check(const model_ops *t, const model_options *o) {
    (void)t;
    if (o->image_size < STEM_KERNEL || o->image_size > 4096)
        return tess_fail(TESS_E_INVALID, "image size %d: expected %d to 4096", o->image_size, STEM_KERNEL);
    if (o->hidden < 1 || o->hidden > 4096)
        return tess_fail(TESS_E_INVALID, "hidden %d: expected 1 to 4096", o->hidden);
    if ((int64_t)o->batch * o->image_size * o->image_size > 1 << 26)
        return tess_fail(TESS_E_INVALID, "image size %d with batch %d: expected at most %d pixels in a batch",
                         o->image_size, o->batch, 1 << 26);
    return TESS_OK;
}

const model_ops model_convbn = {
    .name = "convbn",
    .defaults = { .batch = 2, .image_size = 224, .hidden = 128 },
    .optimizer_groups = 1,
    .check = convbn_check,
    .build = convbn_build,
    .release = convbn_release,
};
