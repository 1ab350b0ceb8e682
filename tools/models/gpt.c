/* SPDX-License-Identifier: BSD-3-Clause */
/* A GPT-2-style decoder over bytes: learned positions, layer normalisation before each half of a layer, GELU, a head
 * that shares the embedding's matrix unless asked otherwise. One block per layer; what is cheap to make again
 * (normalised rows, GELU, attention probabilities) is not saved. For devices; decoder/ has it on the CPU. */
#include "model.h"
#include "decoder/decoder.h"
#include <tessera/tessera.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VOCABULARY = 256 };

typedef struct {
    model *m;
    int32_t index;
} layer;

typedef struct {
    ops_linear *qkv, *attention_out, *up, *down, *head; /* of one shape in every layer */
    ops_attention_shape attention;
    uint64_t rows, width;
    uint64_t row_bytes, stats_bytes, lse_bytes, ids_bytes, logits_bytes; /* row_bytes: rows × width floats */
    ops_scratch inner;                                                   /* the most any operator of a layer needs */
    layer *layers;
} gpt;

/* Takes the next `bytes` of a region. */
static void *cut(char **at, uint64_t bytes) {
    void *p = *at;
    *at += ops_align(bytes);
    return p;
}

/* ---- embed ---------------------------------------------------------------------------------------- */
static tess_status batch_check(const model *m, const model_batch *batch) {
    uint32_t rows = (uint32_t)((gpt *)m->own)->rows;
    if (batch->count > rows)
        return tess_fail(TESS_E_DATA, "gpt: %u target positions in a batch of %u", batch->count, rows);
    if (batch->want_logits && batch->logits_row >= rows)
        return tess_fail(TESS_E_DATA, "gpt: logits of position %u in a batch of %u", batch->logits_row, rows);
    return TESS_OK;
}

/* The bytes at positions shift … of each sample, as indices. */
static tess_status ids_of(const model *m, const void *batch, int32_t shift, int32_t *out) {
    const uint8_t *text = (const uint8_t *)batch + sizeof(model_batch) + shift;
    uint64_t time = (uint64_t)m->options.context;
    return m->o->t->ids(m->o, text, (uint64_t)m->options.batch, time, time + 1, out);
}

static tess_status embed_forward(void *user, const tess_block_call *call) {
    model *m = user;
    gpt *g = m->own;
    int32_t *ids = call->scratch;
    ops_dropout drop = model__dropout(m, call, 0, m->options.dropout);
    OPS_TRY(batch_check(m, model__batch(m, call)));
    OPS_TRY(ids_of(m, call->batch, 0, ids));
    OPS_TRY(m->o->t->embedding(m->o, ids, call->params[0], call->params[1], call->output, g->rows,
                               (uint64_t)m->options.context, g->width));
    return m->o->t->dropout(m->o, call->output, (uint64_t)m->options.batch, (uint64_t)m->options.context * g->width,
                            &drop);
}

static tess_status embed_backward(void *user, const tess_block_call *call) {
    model *m = user;
    gpt *g = m->own;
    char *at = call->scratch;
    int32_t *ids = cut(&at, g->ids_bytes);
    const float *dy = call->grad_output;
    ops_dropout drop = model__dropout(m, call, 0, m->options.dropout);
    if (drop.rate > 0) {
        float *dropped = cut(&at, g->row_bytes);
        OPS_TRY(m->o->t->copy(m->o, dy, dropped, g->rows * g->width * sizeof *dy));
        OPS_TRY(m->o->t->dropout(m->o, dropped, (uint64_t)m->options.batch, (uint64_t)m->options.context * g->width,
                                 &drop));
        dy = dropped;
    }
    OPS_TRY(ids_of(m, call->batch, 0, ids));
    return m->o->t->embedding_backward(m->o, ids, dy, call->grads[0], call->grads[1], g->rows,
                                       (uint64_t)m->options.context, g->width);
}

/* ---- a layer ------------------------------------------------------------------------------------- */
enum { LN1_W, LN1_B, QKV_W, QKV_B, PROJ_W, PROJ_B, LN2_W, LN2_B, UP_W, UP_B, DOWN_W, DOWN_B, LAYER_PARAMS };

typedef struct { /* from forward to backward */
    float *qkv, *attended, *middle, *up, *stats1, *stats2, *lse;
} layer_saved;

static layer_saved layer_saved_at(const gpt *g, void *region) {
    char *at = region;
    layer_saved s;
    s.qkv = cut(&at, 3 * g->row_bytes);
    s.attended = cut(&at, g->row_bytes);
    s.middle = cut(&at, g->row_bytes); /* the input plus what attention adds */
    s.up = cut(&at, 4 * g->row_bytes); /* before GELU */
    s.stats1 = cut(&at, g->stats_bytes);
    s.stats2 = cut(&at, g->stats_bytes);
    s.lse = cut(&at, g->lse_bytes);
    return s;
}

/* In an evaluation the same things live in scratch, and no longer than they are needed. */
static layer_saved layer_transient_at(const gpt *g, char **at) {
    layer_saved s;
    s.qkv = s.up = cut(at, 4 * g->row_bytes);
    s.attended = s.qkv + 3 * g->row_bytes / sizeof(float);
    s.middle = cut(at, g->row_bytes);
    s.stats1 = s.stats2 = cut(at, g->stats_bytes);
    s.lse = cut(at, g->lse_bytes);
    return s;
}

static uint64_t layer_saved_bytes(const gpt *g) {
    return 9 * g->row_bytes + 2 * g->stats_bytes + g->lse_bytes;
}

/* Two masks per layer, after those of the embedding. */
static tess_status drop_rows(model *m, const tess_block_call *call, const layer *l, uint32_t half, float *x) {
    gpt *g = m->own;
    ops_dropout drop = model__dropout(m, call, 1 + 2 * (uint32_t)l->index + half, m->options.dropout);
    return m->o->t->dropout(m->o, x, (uint64_t)m->options.batch, (uint64_t)m->options.context * g->width, &drop);
}

static tess_status layer_forward(void *user, const tess_block_call *call) {
    const layer *l = user;
    model *m = l->m;
    gpt *g = m->own;
    const ops_table *t = m->o->t;
    const float *x = call->input, *const *w = (const float *const *)call->params;
    float *y = call->output;
    char *at = call->scratch;
    layer_saved s = call->saved ? layer_saved_at(g, call->saved) : layer_transient_at(g, &at);
    float *normal = cut(&at, g->row_bytes), *gelu = call->saved ? cut(&at, 4 * g->row_bytes) : s.up;
    OPS_TRY(t->layernorm(m->o, x, w[LN1_W], w[LN1_B], normal, s.stats1, g->rows, g->width));
    OPS_TRY(t->linear_forward(g->qkv, normal, w[QKV_W], w[QKV_B], s.qkv, at));
    OPS_TRY(t->attention(m->o, &g->attention, s.qkv, s.attended, s.lse, at));
    OPS_TRY(t->linear_forward(g->attention_out, s.attended, w[PROJ_W], w[PROJ_B], s.middle, at));
    OPS_TRY(drop_rows(m, call, l, 0, s.middle));
    OPS_TRY(t->add(m->o, x, s.middle, g->rows * g->width));
    OPS_TRY(t->layernorm(m->o, s.middle, w[LN2_W], w[LN2_B], normal, s.stats2, g->rows, g->width));
    OPS_TRY(t->linear_forward(g->up, normal, w[UP_W], w[UP_B], s.up, at));
    OPS_TRY(t->gelu(m->o, s.up, gelu, g->rows * g->width * 4));
    OPS_TRY(t->linear_forward(g->down, gelu, w[DOWN_W], w[DOWN_B], y, at));
    OPS_TRY(drop_rows(m, call, l, 1, y));
    return t->add(m->o, s.middle, y, g->rows * g->width);
}

typedef struct { /* backward's scratch */
    float *wide1, *wide2, *normal, *d, *dmiddle, *stats;
    char *inner;
} layer_scratch;

static layer_scratch layer_scratch_at(const gpt *g, void *region) {
    char *at = region;
    layer_scratch z;
    z.wide1 = cut(&at, 4 * g->row_bytes);
    z.wide2 = cut(&at, 4 * g->row_bytes);
    z.normal = cut(&at, g->row_bytes);
    z.d = cut(&at, g->row_bytes);
    z.dmiddle = cut(&at, g->row_bytes);
    z.stats = cut(&at, g->stats_bytes);
    z.inner = at;
    return z;
}

/* `dy` behind the dropout of a half: itself, or masked in `room`. */
static tess_status undrop(model *m, const tess_block_call *call, const layer *l, uint32_t half, const float *dy,
                          float *room, const float **out) {
    gpt *g = m->own;
    *out = dy;
    if (m->options.dropout <= 0)
        return TESS_OK;
    OPS_TRY(m->o->t->copy(m->o, dy, room, g->rows * g->width * sizeof *dy));
    *out = room;
    return drop_rows(m, call, l, half, room);
}

/* From the block's output to z->dmiddle. */
static tess_status mlp_backward(const layer *l, const tess_block_call *call, const layer_saved *s,
                                const layer_scratch *z) {
    model *m = l->m;
    gpt *g = m->own;
    const ops_table *t = m->o->t;
    const float *const *w = (const float *const *)call->params, *dy;
    float *const *dw = (float *const *)call->grads;
    OPS_TRY(undrop(m, call, l, 1, call->grad_output, z->d, &dy));
    OPS_TRY(t->gelu(m->o, s->up, z->wide1, g->rows * g->width * 4));
    OPS_TRY(t->linear_backward(g->down, z->wide1, w[DOWN_W], dy, z->wide2, dw[DOWN_W], dw[DOWN_B], z->inner));
    OPS_TRY(t->gelu_backward(m->o, s->up, z->wide2, z->wide2, g->rows * g->width * 4));
    OPS_TRY(t->layernorm(m->o, s->middle, w[LN2_W], w[LN2_B], z->normal, z->stats, g->rows, g->width));
    OPS_TRY(t->linear_backward(g->up, z->normal, w[UP_W], z->wide2, z->d, dw[UP_W], dw[UP_B], z->inner));
    OPS_TRY(t->layernorm_backward(m->o, s->middle, w[LN2_W], s->stats2, z->d, z->dmiddle, dw[LN2_W], dw[LN2_B], g->rows,
                                  g->width));
    return t->add(m->o, call->grad_output, z->dmiddle, g->rows * g->width);
}

/* From z->dmiddle to the block's input. */
static tess_status attention_backward(const layer *l, const tess_block_call *call, const layer_saved *s,
                                      const layer_scratch *z) {
    model *m = l->m;
    gpt *g = m->own;
    const ops_table *t = m->o->t;
    const float *const *w = (const float *const *)call->params, *x = call->input, *dy;
    float *const *dw = (float *const *)call->grads, *dx = call->grad_input;
    OPS_TRY(undrop(m, call, l, 0, z->dmiddle, z->normal, &dy));
    OPS_TRY(t->linear_backward(g->attention_out, s->attended, w[PROJ_W], dy, z->d, dw[PROJ_W], dw[PROJ_B], z->inner));
    OPS_TRY(t->attention_backward(m->o, &g->attention, s->qkv, s->attended, s->lse, z->d, z->wide1, z->inner));
    OPS_TRY(t->layernorm(m->o, x, w[LN1_W], w[LN1_B], z->normal, z->stats, g->rows, g->width));
    OPS_TRY(t->linear_backward(g->qkv, z->normal, w[QKV_W], z->wide1, z->d, dw[QKV_W], dw[QKV_B], z->inner));
    OPS_TRY(t->layernorm_backward(m->o, x, w[LN1_W], s->stats1, z->d, dx, dw[LN1_W], dw[LN1_B], g->rows, g->width));
    return t->add(m->o, z->dmiddle, dx, g->rows * g->width);
}

static tess_status layer_backward(void *user, const tess_block_call *call) {
    const layer *l = user;
    gpt *g = l->m->own;
    layer_saved s = layer_saved_at(g, call->saved);
    layer_scratch z = layer_scratch_at(g, call->scratch);
    OPS_TRY(mlp_backward(l, call, &s, &z));
    return attention_backward(l, call, &s, &z);
}

/* ---- head ------------------------------------------------------------------------------------------ */
enum { LNF_W, LNF_B, HEAD_W };

static tess_status head_forward(void *user, const tess_block_call *call) {
    model *m = user;
    gpt *g = m->own;
    const ops_table *t = m->o->t;
    const model_batch *batch = model__batch(m, call);
    gpt_result *result = call->output;
    char *at = call->scratch, *kept = call->saved;
    char **keep = kept ? &kept : &at;
    float *logits = cut(keep, g->logits_bytes), *stats = cut(keep, g->stats_bytes), *normal = cut(&at, g->row_bytes);
    int32_t *targets = cut(&at, g->ids_bytes);
    OPS_TRY(
        t->layernorm(m->o, call->input, call->params[LNF_W], call->params[LNF_B], normal, stats, g->rows, g->width));
    OPS_TRY(t->linear_forward(g->head, normal, call->params[HEAD_W], NULL, logits, at));
    OPS_TRY(t->zero(m->o, result, sizeof *result));
    if (batch->want_logits)
        OPS_TRY(
            t->copy(m->o, logits + (uint64_t)batch->logits_row * VOCABULARY, result->logits, sizeof result->logits));
    OPS_TRY(ids_of(m, call->batch, 1, targets));
    return t->cross_entropy(m->o, logits, targets, g->rows, VOCABULARY, batch->count, model__loss(call), at);
}

static tess_status head_backward(void *user, const tess_block_call *call) {
    model *m = user;
    gpt *g = m->own;
    const ops_table *t = m->o->t;
    char *at = call->scratch, *kept = call->saved;
    const float *probabilities = cut(&kept, g->logits_bytes), *stats = cut(&kept, g->stats_bytes);
    float *dlogits = cut(&at, g->logits_bytes), *normal = cut(&at, g->row_bytes), *d = cut(&at, g->row_bytes);
    float *new_stats = cut(&at, g->stats_bytes);
    int32_t *targets = cut(&at, g->ids_bytes);
    const void *const *w = call->params;
    OPS_TRY(ids_of(m, call->batch, 1, targets));
    OPS_TRY(t->cross_entropy_backward(m->o, probabilities, targets, g->rows, VOCABULARY, model__batch(m, call)->count,
                                      dlogits));
    OPS_TRY(t->layernorm(m->o, call->input, w[LNF_W], w[LNF_B], normal, new_stats, g->rows, g->width));
    OPS_TRY(t->linear_backward(g->head, normal, w[HEAD_W], dlogits, d, call->grads[HEAD_W], NULL, at));
    return t->layernorm_backward(m->o, call->input, w[LNF_W], stats, d, call->grad_input, call->grads[LNF_W],
                                 call->grads[LNF_B], g->rows, g->width);
}

/* ---- building --------------------------------------------------------------------------------------- */
static uint64_t most(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static tess_status make_linear(model *m, int32_t inputs, int32_t outputs, int32_t no_bias, ops_linear **out,
                               ops_scratch *need) {
    gpt *g = m->own;
    ops_scratch n;
    ops_linear_shape shape = { (int32_t)g->rows, inputs, outputs, 0, no_bias };
    OPS_TRY(m->o->t->linear_create(m->o, &shape, out, &n));
    need->forward_bytes = most(need->forward_bytes, n.forward_bytes);
    need->backward_bytes = most(need->backward_bytes, n.backward_bytes);
    return TESS_OK;
}

static tess_status add(model *m, const char *module, const char *leaf, int64_t rows, int64_t columns, uint32_t init,
                       double scale) {
    char name[MODEL_NAME];
    snprintf(name, sizeof name, "%s.%s", module, leaf);
    return model__add_param(m, name, (const int64_t[MODEL_DIMS]){ rows, columns }, init, (float)scale);
}

static tess_status build_embed(model *m) {
    gpt *g = m->own;
    model_block b = { .name = "embed", .output_bytes = g->rows * g->width * sizeof(float), .user = m };
    b.forward_scratch_bytes = g->ids_bytes;
    b.backward_scratch_bytes = g->ids_bytes + (m->options.dropout > 0 ? g->row_bytes : 0);
    b.forward = embed_forward;
    b.backward = embed_backward;
    OPS_TRY(add(m, "embed", "wte.weight", VOCABULARY, m->options.width, MODEL_NORMAL, 0.02));
    OPS_TRY(add(m, "embed", "wpe.weight", m->options.context, m->options.width, MODEL_NORMAL, 0.02));
    return model__add_block(m, &b);
}

static tess_status add_layer_params(model *m, const char *name) {
    int64_t c = m->options.width;
    double residual = 0.02 / sqrt(2.0 * m->options.layers); /* GPT-2: the sum over layers keeps its size */
    OPS_TRY(add(m, name, "ln_1.weight", c, 0, MODEL_CONSTANT, 1));
    OPS_TRY(add(m, name, "ln_1.bias", c, 0, MODEL_CONSTANT, 0));
    OPS_TRY(add(m, name, "attn.c_attn.weight", 3 * c, c, MODEL_NORMAL, 0.02));
    OPS_TRY(add(m, name, "attn.c_attn.bias", 3 * c, 0, MODEL_CONSTANT, 0));
    OPS_TRY(add(m, name, "attn.c_proj.weight", c, c, MODEL_NORMAL, residual));
    OPS_TRY(add(m, name, "attn.c_proj.bias", c, 0, MODEL_CONSTANT, 0));
    OPS_TRY(add(m, name, "ln_2.weight", c, 0, MODEL_CONSTANT, 1));
    OPS_TRY(add(m, name, "ln_2.bias", c, 0, MODEL_CONSTANT, 0));
    OPS_TRY(add(m, name, "mlp.c_fc.weight", 4 * c, c, MODEL_NORMAL, 0.02));
    OPS_TRY(add(m, name, "mlp.c_fc.bias", 4 * c, 0, MODEL_CONSTANT, 0));
    OPS_TRY(add(m, name, "mlp.c_proj.weight", c, 4 * c, MODEL_NORMAL, residual));
    return add(m, name, "mlp.c_proj.bias", c, 0, MODEL_CONSTANT, 0);
}

static tess_status build_layer(model *m, int32_t i) {
    gpt *g = m->own;
    g->layers[i] = (layer){ m, i };
    model_block b = { .output_bytes = g->rows * g->width * sizeof(float), .user = &g->layers[i] };
    snprintf(b.name, sizeof b.name, "h.%d", i);
    b.saved_bytes = layer_saved_bytes(g);
    b.saved_floats_bytes = 9 * g->row_bytes;
    b.products = 1u << QKV_W | 1u << PROJ_W | 1u << UP_W | 1u << DOWN_W;
    b.forward_scratch_bytes = 6 * g->row_bytes + g->stats_bytes + g->lse_bytes + g->inner.forward_bytes;
    b.backward_scratch_bytes = 11 * g->row_bytes + g->stats_bytes + g->inner.backward_bytes;
    b.forward = layer_forward;
    b.backward = layer_backward;
    OPS_TRY(add_layer_params(m, b.name));
    return model__add_block(m, &b);
}

static tess_status build_head(model *m) {
    gpt *g = m->own;
    ops_scratch need = { 0, 0 };
    OPS_TRY(make_linear(m, m->options.width, VOCABULARY, 1, &g->head, &need));
    model_block b = { .name = "head", .output_bytes = sizeof(gpt_result), .user = m, .products = 1u << HEAD_W };
    need.forward_bytes = most(need.forward_bytes, m->o->t->cross_entropy_need(g->rows));
    b.saved_bytes = g->logits_bytes + g->stats_bytes;
    b.forward_scratch_bytes = b.saved_bytes + g->row_bytes + g->ids_bytes + need.forward_bytes;
    b.backward_scratch_bytes = g->logits_bytes + 2 * g->row_bytes + g->stats_bytes + g->ids_bytes + need.backward_bytes;
    b.forward = head_forward;
    b.backward = head_backward;
    OPS_TRY(add(m, "head", "ln_f.weight", m->options.width, 0, MODEL_CONSTANT, 1));
    OPS_TRY(add(m, "head", "ln_f.bias", m->options.width, 0, MODEL_CONSTANT, 0));
    if (m->options.untied)
        OPS_TRY(add(m, "head", "weight", VOCABULARY, m->options.width, MODEL_NORMAL, 0.02));
    else
        OPS_TRY(model__add_alias(m, "head.weight", "embed.wte.weight"));
    return model__add_block(m, &b);
}

static tess_status make_layer_operators(model *m) {
    gpt *g = m->own;
    int32_t c = m->options.width;
    g->attention =
        (ops_attention_shape){ m->options.batch, m->options.context, m->options.heads, c / m->options.heads };
    m->o->t->attention_need(m->o, &g->attention, &g->inner);
    OPS_TRY(make_linear(m, c, 3 * c, 0, &g->qkv, &g->inner));
    OPS_TRY(make_linear(m, c, c, 0, &g->attention_out, &g->inner));
    OPS_TRY(make_linear(m, c, 4 * c, 0, &g->up, &g->inner));
    return make_linear(m, 4 * c, c, 0, &g->down, &g->inner);
}

static tess_status gpt_build(model *m) {
    const model_options *o = &m->options;
    if (m->o->t->mem == TESS_MEM_HOST)
        return decoder_build(m);
    gpt *g = m->own = calloc(1, sizeof *g);
    if (!g || !(g->layers = calloc((size_t)o->layers, sizeof *g->layers)))
        return tess_fail(TESS_E_NOMEM, "out of memory for model gpt");
    g->rows = (uint64_t)o->batch * (uint64_t)o->context;
    g->width = (uint64_t)o->width;
    g->row_bytes = ops_align(g->rows * g->width * sizeof(float));
    g->stats_bytes = ops_align(2 * g->rows * sizeof(float));
    g->lse_bytes = ops_align(g->rows * (uint64_t)o->heads * sizeof(float));
    g->ids_bytes = ops_align(g->rows * sizeof(int32_t));
    g->logits_bytes = ops_align(g->rows * VOCABULARY * sizeof(float));
    m->desc.input_bytes = sizeof(model_batch) + (uint64_t)o->batch * (uint64_t)(o->context + 1);
    OPS_TRY(make_layer_operators(m));
    OPS_TRY(build_embed(m));
    for (int32_t i = 0; i < o->layers; i++)
        OPS_TRY(build_layer(m, i));
    return build_head(m);
}

static void gpt_release(model *m) {
    gpt *g = m->own;
    if (m->is_decoder) {
        decoder_release(m);
        return;
    }
    if (!g)
        return;
    ops_linear *all[] = { g->qkv, g->attention_out, g->up, g->down, g->head };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        m->o->t->linear_destroy(all[i]);
    free(g->layers);
    free(g);
}

static tess_status gpt_check(const model_options *o) {
    if (o->layers < 1 || o->layers > 1000)
        return tess_fail(TESS_E_INVALID, "layers %d: expected 1 to 1000", o->layers);
    if (o->width < 1 || o->width > 65536)
        return tess_fail(TESS_E_INVALID, "width %d: expected 1 to 65536", o->width);
    if (o->heads < 1 || o->width % o->heads)
        return tess_fail(TESS_E_INVALID, "heads %d: expected a divisor of width %d", o->heads, o->width);
    if (o->context < 1 || (int64_t)o->context * o->batch > 1 << 24)
        return tess_fail(TESS_E_INVALID, "context %d with batch %d: expected 1 to %d positions in a batch", o->context,
                         o->batch, 1 << 24);
    return TESS_OK;
}

const model_ops model_gpt = {
    .name = "gpt",
    .defaults = { .batch = 6, .layers = 4, .heads = 4, .width = 128, .context = 64 },
    .optimizer_groups = 2,
    .check = gpt_check,
    .build = gpt_build,
    .release = gpt_release,
};
