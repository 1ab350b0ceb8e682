/* SPDX-License-Identifier: BSD-3-Clause */
/* A GPT-2-style decoder over bytes: learned positions, layer normalisation before each half of a layer, GELU, a head
 * that shares the embedding's matrix unless asked otherwise. One block per layer; what is cheap to make again
 * (normalised rows, GELU, attention probabilities) is not saved. For devices, in the operators of layer_ops.h, so that
 * everything between them is bf16 where the model is; decoder/ has it on the CPU. */
#include "model.h"
#include "decoder/decoder.h"
#include "layer_ops.h"
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
    const ops_layer_table *t;
    ops_attention_shape attention;
    ops_rows rows;
    uint64_t row_bytes, stats_bytes, lse_bytes, ids_bytes; /* row_bytes: rows × width factors */
    uint64_t logits_bytes, dlogits_bytes;
    ops_scratch inner; /* the most any operator of a layer needs */
    layer *layers;
} gpt;

static gpt *gpt_of(const model *m) {
    return m->own;
}

/* Takes the next `bytes` of a region. */
static void *cut(char **at, uint64_t bytes) {
    void *p = *at;
    *at += ops_align(bytes);
    return p;
}

static int has_dropout(const model *m, const tess_block_call *call) {
    return m->options.dropout > 0 && call->pass & TESS_PASS_TRAIN;
}

/* ---- products: with weights [outputs, inputs] ---------------------------------------------------- */
static ops_factors linear_factors(const model *m, const void *x, const void *w, int64_t inputs, int64_t outputs,
                                  void *y) {
    ops_factors f = { .rows = (int64_t)gpt_of(m)->rows.rows, .columns = outputs, .depth = inputs, .a = x, .b = w };
    f.y = y, f.turn_b = 1;
    return f;
}

static tess_status multiply(const model *m, const ops_factors *f, void *workspace) {
    return gpt_of(m)->t->product(m->o, f, workspace);
}

static tess_status linear(const model *m, const void *x, const void *w, int64_t inputs, int64_t outputs, void *y,
                          int32_t add, int32_t wide, void *workspace) {
    ops_factors f = linear_factors(m, x, w, inputs, outputs, y);
    f.add = add, f.wide = wide;
    return multiply(m, &f, workspace);
}

static ops_factors input_factors(const model *m, const void *dy, const void *w, int64_t inputs, int64_t outputs,
                                 void *dx) {
    ops_factors f = { .rows = (int64_t)gpt_of(m)->rows.rows, .columns = inputs, .depth = outputs, .a = dy, .b = w };
    f.y = dx;
    return f;
}

static tess_status input_gradient(const model *m, const void *dy, const void *w, int64_t inputs, int64_t outputs,
                                  void *dx, void *workspace) {
    ops_factors f = input_factors(m, dy, w, inputs, outputs, dx);
    return multiply(m, &f, workspace);
}

static tess_status weight_gradient(const model *m, const void *x, const void *dy, int64_t inputs, int64_t outputs,
                                   void *dw, int32_t add, void *workspace) {
    ops_factors f = { .rows = outputs, .columns = inputs, .depth = (int64_t)gpt_of(m)->rows.rows, .a = dy, .b = x };
    f.y = dw, f.turn_a = 1, f.wide = 1, f.add = add;
    return dw ? multiply(m, &f, workspace) : TESS_OK;
}

/* ---- embed ---------------------------------------------------------------------------------------- */
static tess_status call_check(const model *m, const tess_block_call *call) {
    const model_batch *batch = model__batch(m, call);
    uint32_t rows = (uint32_t)gpt_of(m)->rows.rows;
    if (call->compute_dtype != m->options.precision)
        return tess_fail(TESS_E_UNSUPPORTED, "gpt: parameters come in dtype %u, the model was made for %u",
                         call->compute_dtype, m->options.precision);
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
    int32_t *ids = call->scratch;
    ops_dropout drop = model__dropout(m, call, 0, m->options.dropout);
    OPS_TRY(call_check(m, call));
    OPS_TRY(ids_of(m, call->batch, 0, ids));
    return gpt_of(m)->t->embed(m->o, &gpt_of(m)->rows, ids, call->params[0], call->params[1], &drop, call->output);
}

static tess_status embed_backward(void *user, const tess_block_call *call) {
    model *m = user;
    gpt *g = m->own;
    char *at = call->scratch;
    int32_t *ids = cut(&at, g->ids_bytes);
    void *room = cut(&at, has_dropout(m, call) ? g->row_bytes : 0);
    const void *dy;
    ops_dropout drop = model__dropout(m, call, 0, m->options.dropout);
    OPS_TRY(g->t->mask(m->o, &g->rows, &drop, call->grad_output, room, &dy));
    OPS_TRY(ids_of(m, call->batch, 0, ids));
    return g->t->embed_backward(m->o, &g->rows, ids, dy, call->grads[0], call->grads[1], !m->stores_grads, at);
}

/* ---- a layer ------------------------------------------------------------------------------------- */
enum { LN1_W, LN1_B, QKV_W, QKV_B, PROJ_W, PROJ_B, LN2_W, LN2_B, UP_W, UP_B, DOWN_W, DOWN_B, LAYER_PARAMS };

typedef struct { /* from forward to backward */
    char *qkv, *attended, *middle, *up;
    float *stats1, *stats2, *lse;
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
    s.attended = s.qkv + 3 * g->row_bytes;
    s.middle = cut(at, g->row_bytes);
    s.stats1 = s.stats2 = cut(at, g->stats_bytes);
    s.lse = cut(at, g->lse_bytes);
    return s;
}

static uint64_t layer_saved_bytes(const gpt *g) {
    return 9 * g->row_bytes + 2 * g->stats_bytes + g->lse_bytes;
}

/* Two masks per layer, after those of the embedding. */
static ops_dropout layer_drop(const layer *l, const tess_block_call *call, uint32_t half) {
    return model__dropout(l->m, call, 1 + 2 * (uint32_t)l->index + half, l->m->options.dropout);
}

/* From the input to s->middle, and its normalised rows to `normal`. */
static tess_status attention_forward(const layer *l, const tess_block_call *call, const layer_saved *s, void *normal,
                                     void *inner) {
    const model *m = l->m;
    const gpt *g = m->own;
    const void *const *w = call->params;
    int64_t c = m->options.width;
    ops_dropout drop = layer_drop(l, call, 0);
    OPS_TRY(g->t->norm(
        m->o,
        &(ops_norm){ .of = g->rows, .x = call->input, .w = w[LN1_W], .b = w[LN1_B], .y = normal, .stats = s->stats1 }));
    ops_factors qkv = linear_factors(m, normal, w[QKV_W], c, 3 * c, s->qkv);
    qkv.bias = w[QKV_B];
    OPS_TRY(multiply(m, &qkv, inner));
    OPS_TRY(g->t->attention(m->o, &g->attention, s->qkv, s->attended, s->lse, inner));
    OPS_TRY(linear(m, s->attended, w[PROJ_W], c, c, normal, 0, 0, inner));
    ops_norm n = { .of = g->rows, .x = call->input, .add = normal, .add_bias = w[PROJ_B], .sum = s->middle };
    n.w = w[LN2_W], n.b = w[LN2_B], n.y = normal, n.stats = s->stats2, n.drop = &drop;
    n.next = has_dropout(m, call) ? NULL : call->output; /* what the last product adds to */
    n.next_bias = w[DOWN_B];
    return g->t->norm(m->o, &n);
}

static tess_status layer_forward(void *user, const tess_block_call *call) {
    const layer *l = user;
    const model *m = l->m;
    const gpt *g = m->own;
    const void *const *w = call->params;
    int64_t c = m->options.width;
    char *at = call->scratch;
    layer_saved s = call->saved ? layer_saved_at(g, call->saved) : layer_transient_at(g, &at);
    char *normal = cut(&at, g->row_bytes), *gelu = call->saved ? cut(&at, 4 * g->row_bytes) : s.up;
    ops_dropout drop = layer_drop(l, call, 1);
    OPS_TRY(attention_forward(l, call, &s, normal, at));
    ops_factors up = linear_factors(m, normal, w[UP_W], c, 4 * c, gelu);
    up.bias = w[UP_B], up.gelu = 1, up.before = call->saved ? s.up : NULL;
    OPS_TRY(multiply(m, &up, at));
    if (!has_dropout(m, call))
        return linear(m, gelu, w[DOWN_W], 4 * c, c, call->output, 1, 0, at);
    OPS_TRY(linear(m, gelu, w[DOWN_W], 4 * c, c, normal, 0, 0, at));
    return g->t->norm(
        m->o,
        &(ops_norm){
            .of = g->rows, .x = s.middle, .add = normal, .add_bias = w[DOWN_B], .sum = call->output, .drop = &drop });
}

typedef struct { /* backward's scratch: what the sums over columns need stays to the end */
    char *wide1, *wide2, *d1, *d2, *dmiddle, *normal, *masked1, *masked2, *inner;
    const void *dy, *dattention; /* of what the halves add: behind dropout */
} layer_scratch;

static layer_scratch layer_scratch_at(const gpt *g, void *region, int dropout) {
    char *at = region;
    layer_scratch z = { 0 };
    z.wide1 = cut(&at, 4 * g->row_bytes);
    z.wide2 = cut(&at, 4 * g->row_bytes);
    z.d1 = cut(&at, g->row_bytes);
    z.d2 = cut(&at, g->row_bytes);
    z.dmiddle = cut(&at, g->row_bytes);
    z.normal = cut(&at, g->row_bytes);
    z.masked1 = cut(&at, dropout ? g->row_bytes : 0);
    z.masked2 = cut(&at, dropout ? g->row_bytes : 0);
    z.inner = at;
    return z;
}

/* From the block's output to z->dmiddle. */
static tess_status mlp_backward(const layer *l, const tess_block_call *call, const layer_saved *s, layer_scratch *z) {
    const model *m = l->m;
    const gpt *g = m->own;
    const void *const *w = call->params;
    void *const *dw = call->grads;
    int64_t c = m->options.width;
    ops_dropout drop = layer_drop(l, call, 0), drop2 = layer_drop(l, call, 1);
    OPS_TRY(g->t->mask(m->o, &g->rows, &drop2, call->grad_output, z->masked2, &z->dy));
    ops_factors down = input_factors(m, z->dy, w[DOWN_W], 4 * c, c, z->wide1);
    down.through = s->up, down.again = z->wide2;
    OPS_TRY(multiply(m, &down, z->inner));
    OPS_TRY(weight_gradient(m, z->wide2, z->dy, 4 * c, c, dw[DOWN_W], !m->stores_grads, z->inner));
    OPS_TRY(input_gradient(m, z->wide1, w[UP_W], c, 4 * c, z->d1, z->inner));
    ops_norm_backward n = { .of = g->rows, .x = s->middle, .w = w[LN2_W], .b = w[LN2_B], .dy = z->d1 };
    n.add = call->grad_output, n.stats = s->stats2, n.dx = z->dmiddle, n.normal = z->normal, n.drop = &drop;
    n.masked = has_dropout(m, call) ? z->masked1 : NULL;
    OPS_TRY(g->t->norm_backward(m->o, &n));
    z->dattention = n.masked ? n.masked : n.dx;
    return weight_gradient(m, z->normal, z->wide1, c, 4 * c, dw[UP_W], !m->stores_grads, z->inner);
}

/* From z->dmiddle to the block's input. */
static tess_status attention_backward(const layer *l, const tess_block_call *call, const layer_saved *s,
                                      const layer_scratch *z) {
    const model *m = l->m;
    const gpt *g = m->own;
    const void *const *w = call->params;
    void *const *dw = call->grads;
    int64_t c = m->options.width;
    OPS_TRY(weight_gradient(m, s->attended, z->dattention, c, c, dw[PROJ_W], !m->stores_grads, z->inner));
    OPS_TRY(input_gradient(m, z->dattention, w[PROJ_W], c, c, z->d2, z->inner));
    OPS_TRY(g->t->attention_backward(m->o, &g->attention, s->qkv, s->attended, s->lse, z->d2, z->wide2, z->inner));
    OPS_TRY(input_gradient(m, z->wide2, w[QKV_W], c, 3 * c, z->d2, z->inner));
    ops_norm_backward n = { .of = g->rows, .x = call->input, .w = w[LN1_W], .b = w[LN1_B], .dy = z->d2 };
    n.add = z->dmiddle, n.stats = s->stats1, n.dx = call->grad_input, n.normal = z->normal;
    OPS_TRY(g->t->norm_backward(m->o, &n));
    return weight_gradient(m, z->normal, z->wide2, c, 3 * c, dw[QKV_W], !m->stores_grads, z->inner);
}

static tess_status layer_columns(const layer *l, const tess_block_call *call, const layer_saved *s,
                                 const layer_scratch *z) {
    const gpt *g = l->m->own;
    float *const *dw = (float *const *)call->grads;
    uint64_t c = g->rows.width;
    const ops_columns all[] = {
        { .dy = z->dy, .db = dw[DOWN_B], .width = c },
        { .dy = z->wide1, .db = dw[UP_B], .width = 4 * c },
        { .x = s->middle, .dy = z->d1, .stats = s->stats2, .dw = dw[LN2_W], .db = dw[LN2_B], .width = c },
        { .dy = z->dattention, .db = dw[PROJ_B], .width = c },
        { .dy = z->wide2, .db = dw[QKV_B], .width = 3 * c },
        { .x = call->input, .dy = z->d2, .stats = s->stats1, .dw = dw[LN1_W], .db = dw[LN1_B], .width = c },
    };
    return g->t->columns(l->m->o, all, sizeof all / sizeof *all, g->rows.rows, !l->m->stores_grads, z->inner);
}

static tess_status layer_backward(void *user, const tess_block_call *call) {
    const layer *l = user;
    gpt *g = l->m->own;
    layer_saved s = layer_saved_at(g, call->saved);
    layer_scratch z = layer_scratch_at(g, call->scratch, has_dropout(l->m, call));
    OPS_TRY(mlp_backward(l, call, &s, &z));
    OPS_TRY(attention_backward(l, call, &s, &z));
    return layer_columns(l, call, &s, &z);
}

/* ---- head ------------------------------------------------------------------------------------------ */
enum { LNF_W, LNF_B, HEAD_W };

/* The matrix of the embedding has a gradient of its own, behind this one. */
static int32_t head_adds(const model *m) {
    return !m->stores_grads || !m->options.untied;
}

static tess_status head_forward(void *user, const tess_block_call *call) {
    model *m = user;
    gpt *g = m->own;
    const model_batch *batch = model__batch(m, call);
    const void *const *w = call->params;
    gpt_result *result = call->output;
    char *at = call->scratch, *kept = call->saved;
    void *dlogits = kept ? cut(&kept, g->dlogits_bytes) : NULL;
    float *stats = cut(kept ? &kept : &at, g->stats_bytes), *logits = cut(&at, g->logits_bytes);
    void *normal = cut(&at, g->row_bytes);
    int32_t *targets = cut(&at, g->ids_bytes);
    OPS_TRY(g->t->norm(
        m->o,
        &(ops_norm){ .of = g->rows, .x = call->input, .w = w[LNF_W], .b = w[LNF_B], .y = normal, .stats = stats }));
    OPS_TRY(linear(m, normal, w[HEAD_W], m->options.width, VOCABULARY, logits, 0, 1, at));
    OPS_TRY(m->o->t->zero(m->o, result, sizeof *result));
    if (batch->want_logits)
        OPS_TRY(m->o->t->copy(m->o, logits + (uint64_t)batch->logits_row * VOCABULARY, result->logits,
                              sizeof result->logits));
    OPS_TRY(ids_of(m, call->batch, 1, targets));
    ops_row_loss l = { .logits = logits, .labels = targets, .dlogits = dlogits, .rows = g->rows.rows };
    l.classes = VOCABULARY, l.count = batch->count;
    return g->t->loss(m->o, &l, model__loss(call), at);
}

static tess_status head_backward(void *user, const tess_block_call *call) {
    model *m = user;
    gpt *g = m->own;
    char *at = call->scratch, *kept = call->saved;
    const void *dlogits = cut(&kept, g->dlogits_bytes);
    const float *stats = cut(&kept, g->stats_bytes);
    void *normal = cut(&at, g->row_bytes), *d = cut(&at, g->row_bytes);
    const void *const *w = call->params;
    OPS_TRY(input_gradient(m, dlogits, w[HEAD_W], m->options.width, VOCABULARY, d, at));
    OPS_TRY(g->t->norm_backward(m->o, &(ops_norm_backward){ .of = g->rows,
                                                            .x = call->input,
                                                            .w = w[LNF_W],
                                                            .b = w[LNF_B],
                                                            .dy = d,
                                                            .stats = stats,
                                                            .dx = call->grad_input,
                                                            .normal = normal }));
    OPS_TRY(weight_gradient(m, normal, dlogits, m->options.width, VOCABULARY, call->grads[HEAD_W], head_adds(m), at));
    ops_columns of = { .x = call->input, .dy = d, .stats = stats, .dw = call->grads[LNF_W], .db = call->grads[LNF_B] };
    of.width = g->rows.width;
    return g->t->columns(m->o, &of, 1, g->rows.rows, !m->stores_grads, at);
}

/* ---- building --------------------------------------------------------------------------------------- */
static uint64_t factors(const model *m, uint64_t elems) {
    return elems * (m->options.precision == TESS_BF16 ? sizeof(uint16_t) : sizeof(float));
}

static uint64_t most(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* The workspace of a linear operator's three products, where it is more than what there is. */
static void need_linear(const model *m, int64_t inputs, int64_t outputs, ops_scratch *need) {
    int64_t rows = (int64_t)gpt_of(m)->rows.rows;
    uint64_t bytes = gpt_of(m)->t->product_need(rows, outputs, inputs);
    need->forward_bytes = most(need->forward_bytes, bytes);
    need->backward_bytes = most(need->backward_bytes, bytes);
}

static tess_status add(model *m, const char *module, const char *leaf, int64_t rows, int64_t columns, uint32_t init,
                       double scale) {
    char name[MODEL_NAME];
    snprintf(name, sizeof name, "%s.%s", module, leaf);
    return model__add_param(m, name, (const int64_t[MODEL_DIMS]){ rows, columns }, init, (float)scale);
}

static tess_status build_embed(model *m) {
    gpt *g = m->own;
    model_block b = { .name = "embed", .output_bytes = factors(m, g->rows.rows * g->rows.width), .user = m };
    b.forward_scratch_bytes = g->ids_bytes;
    b.backward_scratch_bytes =
        g->ids_bytes + (m->options.dropout > 0 ? g->row_bytes : 0) + g->t->embed_backward_need(g->rows.rows);
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
    model_block b = { .output_bytes = factors(m, g->rows.rows * g->rows.width), .user = &g->layers[i] };
    snprintf(b.name, sizeof b.name, "h.%d", i);
    b.saved_bytes = layer_saved_bytes(g);
    b.forward_scratch_bytes = 6 * g->row_bytes + g->stats_bytes + g->lse_bytes + g->inner.forward_bytes;
    b.backward_scratch_bytes = (m->options.dropout > 0 ? 14 : 12) * g->row_bytes + g->inner.backward_bytes;
    b.forward = layer_forward;
    b.backward = layer_backward;
    OPS_TRY(add_layer_params(m, b.name));
    return model__add_block(m, &b);
}

static tess_status build_head(model *m) {
    gpt *g = m->own;
    ops_scratch need = { 0, 0 };
    need_linear(m, m->options.width, VOCABULARY, &need);
    model_block b = { .name = "head", .output_bytes = sizeof(gpt_result), .user = m };
    need.forward_bytes = most(need.forward_bytes, m->o->t->cross_entropy_need(g->rows.rows));
    need.backward_bytes = most(need.backward_bytes, g->t->columns_need(g->rows.rows, 2 * g->rows.width));
    b.saved_bytes = g->dlogits_bytes + g->stats_bytes;
    b.forward_scratch_bytes = g->logits_bytes + g->stats_bytes + g->row_bytes + g->ids_bytes + need.forward_bytes;
    b.backward_scratch_bytes = 2 * g->row_bytes + need.backward_bytes;
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

static void need_layer(const model *m, ops_scratch *need) {
    int64_t c = m->options.width;
    gpt_of(m)->t->attention_need(m->o, &gpt_of(m)->attention, need);
    need_linear(m, c, 3 * c, need);
    need_linear(m, c, c, need);
    need_linear(m, c, 4 * c, need);
    need->backward_bytes =
        most(need->backward_bytes, gpt_of(m)->t->columns_need(gpt_of(m)->rows.rows, 13 * (uint64_t)c));
}

static void set_sizes(model *m) {
    const model_options *o = &m->options;
    gpt *g = m->own;
    g->t = m->o->t->layer;
    g->rows = (ops_rows){ (uint64_t)o->batch * (uint64_t)o->context, (uint64_t)o->width, (uint64_t)o->context };
    g->row_bytes = ops_align(factors(m, g->rows.rows * g->rows.width));
    g->stats_bytes = ops_align(2 * g->rows.rows * sizeof(float));
    g->lse_bytes = ops_align(g->rows.rows * (uint64_t)o->heads * sizeof(float));
    g->ids_bytes = ops_align(g->rows.rows * sizeof(int32_t));
    g->logits_bytes = ops_align(g->rows.rows * VOCABULARY * sizeof(float));
    g->dlogits_bytes = ops_align(factors(m, g->rows.rows * VOCABULARY));
    g->attention = (ops_attention_shape){ o->batch, o->context, o->heads, o->width / o->heads, 0 };
    need_layer(m, &g->inner);
}

static tess_status gpt_build(model *m) {
    const model_options *o = &m->options;
    if (m->o->t->mem == TESS_MEM_HOST)
        return decoder_build(m);
    gpt *g = m->own = calloc(1, sizeof *g);
    if (!g || !(g->layers = calloc((size_t)o->layers, sizeof *g->layers)))
        return tess_fail(TESS_E_NOMEM, "out of memory for model gpt");
    m->is_native = 1;
    m->may_store = 1;
    set_sizes(m);
    m->desc.input_bytes = sizeof(model_batch) + (uint64_t)o->batch * (uint64_t)(o->context + 1);
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
