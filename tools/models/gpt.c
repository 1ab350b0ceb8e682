/* SPDX-License-Identifier: BSD-3-Clause */
/* A GPT-2-style decoder for devices, gpt over bytes and gpt2 over tokens: learned positions, layer normalisation before
 * each half of a layer, GELU, a head that shares the embedding's matrix unless asked otherwise. One block per layer;
 * what is cheap to make again (normalised rows, GELU, attention probabilities) is not saved. It is made of the
 * operators of layer_ops.h, so that everything between them is bf16 where the model is; decoder/ has it on the CPU, and
 * gpt_ends.c the first block and the last. */
#include "gpt.h"
#include "decoder/decoder.h"
#include <tessera/tessera.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* ---- a layer ------------------------------------------------------------------------------------- */
enum { LN1_W, LN1_B, QKV_W, QKV_B, PROJ_W, PROJ_B, LN2_W, LN2_B, UP_W, UP_B, DOWN_W, DOWN_B, LAYER_PARAMS };

typedef struct { /* from forward to backward */
    char *qkv, *attended, *middle, *up;
    float *stats1, *stats2, *lse;
} layer_saved;

static layer_saved layer_saved_at(const gpt *g, void *region) {
    char *at = region;
    layer_saved s;
    s.qkv = gpt_cut(&at, 3 * g->row_bytes);
    s.attended = gpt_cut(&at, g->row_bytes);
    s.middle = gpt_cut(&at, g->row_bytes); /* the input plus what attention adds */
    s.up = gpt_cut(&at, 4 * g->row_bytes); /* before GELU */
    s.stats1 = gpt_cut(&at, g->stats_bytes);
    s.stats2 = gpt_cut(&at, g->stats_bytes);
    s.lse = gpt_cut(&at, g->lse_bytes);
    return s;
}

/* In an evaluation the same things live in scratch, and no longer than they are needed. */
static layer_saved layer_transient_at(const gpt *g, char **at) {
    layer_saved s;
    s.qkv = s.up = gpt_cut(at, 4 * g->row_bytes);
    s.attended = s.qkv + 3 * g->row_bytes;
    s.middle = gpt_cut(at, g->row_bytes);
    s.stats1 = s.stats2 = gpt_cut(at, g->stats_bytes);
    s.lse = gpt_cut(at, g->lse_bytes);
    return s;
}

static uint64_t layer_saved_bytes(const gpt *g) {
    return 9 * g->row_bytes + 2 * g->stats_bytes + g->lse_bytes;
}

/* Two masks per layer, after those of the embedding. */
static ops_dropout layer_drop(const gpt_layer *l, const tess_block_call *call, uint32_t half) {
    return model__dropout(l->m, call, 1 + 2 * (uint32_t)l->index + half, l->m->options.dropout);
}

/* From the input to s->middle, and its normalised rows to `normal`. */
static tess_status attention_forward(const gpt_layer *l, const tess_block_call *call, const layer_saved *s,
                                     void *normal, void *inner) {
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
    n.next = gpt_has_dropout(m, call) ? NULL : call->output; /* what the last product adds to */
    n.next_bias = w[DOWN_B];
    return g->t->norm(m->o, &n);
}

static tess_status layer_forward(void *user, const tess_block_call *call) {
    const gpt_layer *l = user;
    const model *m = l->m;
    const gpt *g = m->own;
    const void *const *w = call->params;
    int64_t c = m->options.width;
    char *at = call->scratch;
    layer_saved s = call->saved ? layer_saved_at(g, call->saved) : layer_transient_at(g, &at);
    char *normal = gpt_cut(&at, g->row_bytes), *gelu = call->saved ? gpt_cut(&at, 4 * g->row_bytes) : s.up;
    ops_dropout drop = layer_drop(l, call, 1);
    OPS_TRY(attention_forward(l, call, &s, normal, at));
    ops_factors up = linear_factors(m, normal, w[UP_W], c, 4 * c, gelu);
    up.bias = w[UP_B], up.gelu = 1, up.before = call->saved ? s.up : NULL;
    OPS_TRY(multiply(m, &up, at));
    if (!gpt_has_dropout(m, call))
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
    z.wide1 = gpt_cut(&at, 4 * g->row_bytes);
    z.wide2 = gpt_cut(&at, 4 * g->row_bytes);
    z.d1 = gpt_cut(&at, g->row_bytes);
    z.d2 = gpt_cut(&at, g->row_bytes);
    z.dmiddle = gpt_cut(&at, g->row_bytes);
    z.normal = gpt_cut(&at, g->row_bytes);
    z.masked1 = gpt_cut(&at, dropout ? g->row_bytes : 0);
    z.masked2 = gpt_cut(&at, dropout ? g->row_bytes : 0);
    z.inner = at;
    return z;
}

/* From the block's output to z->dmiddle. */
static tess_status mlp_backward(const gpt_layer *l, const tess_block_call *call, const layer_saved *s,
                                layer_scratch *z) {
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
    n.masked = gpt_has_dropout(m, call) ? z->masked1 : NULL;
    OPS_TRY(g->t->norm_backward(m->o, &n));
    z->dattention = n.masked ? n.masked : n.dx;
    return weight_gradient(m, z->normal, z->wide1, c, 4 * c, dw[UP_W], !m->stores_grads, z->inner);
}

/* From z->dmiddle to the block's input. */
static tess_status attention_backward(const gpt_layer *l, const tess_block_call *call, const layer_saved *s,
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

static tess_status layer_columns(const gpt_layer *l, const tess_block_call *call, const layer_saved *s,
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
    const gpt_layer *l = user;
    gpt *g = l->m->own;
    layer_saved s = layer_saved_at(g, call->saved);
    layer_scratch z = layer_scratch_at(g, call->scratch, gpt_has_dropout(l->m, call));
    OPS_TRY(mlp_backward(l, call, &s, &z));
    OPS_TRY(attention_backward(l, call, &s, &z));
    return layer_columns(l, call, &s, &z);
}

/* ---- building --------------------------------------------------------------------------------------- */
/* The workspace of a linear operator's three products, where it is more than what there is. */
static void need_linear(const model *m, int64_t inputs, int64_t outputs, ops_scratch *need) {
    int64_t rows = (int64_t)gpt_of(m)->rows.rows;
    uint64_t bytes = gpt_of(m)->t->product_need(rows, outputs, inputs);
    need->forward_bytes = gpt_most(need->forward_bytes, bytes);
    need->backward_bytes = gpt_most(need->backward_bytes, bytes);
}

static tess_status add_layer_params(model *m, const char *name) {
    int64_t c = m->options.width;
    double residual = 0.02 / sqrt(2.0 * m->options.layers); /* GPT-2: the sum over layers keeps its size */
    OPS_TRY(gpt_add_param(m, name, "ln_1.weight", c, 0, MODEL_CONSTANT, 1));
    OPS_TRY(gpt_add_param(m, name, "ln_1.bias", c, 0, MODEL_CONSTANT, 0));
    OPS_TRY(gpt_add_param(m, name, "attn.c_attn.weight", 3 * c, c, MODEL_NORMAL, 0.02));
    OPS_TRY(gpt_add_param(m, name, "attn.c_attn.bias", 3 * c, 0, MODEL_CONSTANT, 0));
    OPS_TRY(gpt_add_param(m, name, "attn.c_proj.weight", c, c, MODEL_NORMAL, residual));
    OPS_TRY(gpt_add_param(m, name, "attn.c_proj.bias", c, 0, MODEL_CONSTANT, 0));
    OPS_TRY(gpt_add_param(m, name, "ln_2.weight", c, 0, MODEL_CONSTANT, 1));
    OPS_TRY(gpt_add_param(m, name, "ln_2.bias", c, 0, MODEL_CONSTANT, 0));
    OPS_TRY(gpt_add_param(m, name, "mlp.c_fc.weight", 4 * c, c, MODEL_NORMAL, 0.02));
    OPS_TRY(gpt_add_param(m, name, "mlp.c_fc.bias", 4 * c, 0, MODEL_CONSTANT, 0));
    OPS_TRY(gpt_add_param(m, name, "mlp.c_proj.weight", c, 4 * c, MODEL_NORMAL, residual));
    return gpt_add_param(m, name, "mlp.c_proj.bias", c, 0, MODEL_CONSTANT, 0);
}

static uint64_t layer_backward_scratch(const model *m) {
    const gpt *g = m->own;
    return (m->options.dropout > 0 ? 14 : 12) * g->row_bytes + g->inner.backward_bytes;
}

static tess_status build_layer(model *m, int32_t i) {
    gpt *g = m->own;
    g->layers[i] = (gpt_layer){ m, i };
    model_block b = { .output_bytes = gpt_factors(m, g->rows.rows * g->rows.width), .user = &g->layers[i] };
    snprintf(b.name, sizeof b.name, "h.%d", i);
    b.saved_bytes = layer_saved_bytes(g);
    b.forward_scratch_bytes = 6 * g->row_bytes + g->stats_bytes + g->lse_bytes + g->inner.forward_bytes;
    b.backward_scratch_bytes = layer_backward_scratch(m);
    b.forward = layer_forward;
    b.backward = layer_backward;
    OPS_TRY(add_layer_params(m, b.name));
    return model__add_block(m, &b);
}

static void need_layer(const model *m, ops_scratch *need) {
    int64_t c = m->options.width;
    gpt_of(m)->t->attention_need(m->o, &gpt_of(m)->attention, need);
    need_linear(m, c, 3 * c, need);
    need_linear(m, c, c, need);
    need_linear(m, c, 4 * c, need);
    need->backward_bytes =
        gpt_most(need->backward_bytes, gpt_of(m)->t->columns_need(gpt_of(m)->rows.rows, 13 * (uint64_t)c));
}

static void set_sizes(model *m) {
    const model_options *o = &m->options;
    gpt *g = m->own;
    g->t = m->o->t->layer;
    g->bytes = strcmp(m->t->name, "gpt") == 0;
    g->vocabulary = g->bytes || !o->decoder.vocabulary ? 256 : (uint64_t)o->decoder.vocabulary;
    g->positions = (uint64_t)(o->decoder.positions ? o->decoder.positions : o->context);
    g->rows = (ops_rows){ (uint64_t)o->batch * (uint64_t)o->context, (uint64_t)o->width, (uint64_t)o->context };
    g->row_bytes = ops_align(gpt_factors(m, g->rows.rows * g->rows.width));
    g->stats_bytes = ops_align(2 * g->rows.rows * sizeof(float));
    g->lse_bytes = ops_align(g->rows.rows * (uint64_t)o->heads * sizeof(float));
    g->ids_bytes = ops_align(g->rows.rows * sizeof(int32_t));
    g->attention = (ops_attention_shape){ o->batch, o->context, o->heads, o->width / o->heads, 0 };
    need_layer(m, &g->inner);
}

/* Refuses what a config.json of gpt2 may ask for and the kernels do not have. */
static tess_status check_native(const model_options *o, const char *name) {
    const model_decoder *d = &o->decoder;
    if (d->feed && d->feed != 4 * o->width)
        return tess_fail(TESS_E_UNSUPPORTED, "%s on --device cuda: a feed-forward half of %d, expected 4 times %d",
                         name, d->feed, o->width);
    if (o->width % o->heads || (d->head_size && d->head_size != o->width / o->heads))
        return tess_fail(TESS_E_UNSUPPORTED, "%s on --device cuda: %d heads of %d, expected a width of %d in all", name,
                         o->heads, d->head_size, o->width);
    if (d->kv_heads && d->kv_heads != o->heads)
        return tess_fail(TESS_E_UNSUPPORTED, "%s on --device cuda: %d heads share %d keys and values", name, o->heads,
                         d->kv_heads);
    if (d->norm_eps > 0 && d->norm_eps != 1e-5f)
        return tess_fail(TESS_E_UNSUPPORTED, "%s on --device cuda: normalisation with eps %g, expected 1e-05", name,
                         (double)d->norm_eps);
    return TESS_OK;
}

static tess_status gpt_build(model *m) {
    const model_options *o = &m->options;
    if (m->o->t->mem == TESS_MEM_HOST)
        return decoder_build(m);
    OPS_TRY(check_native(o, m->t->name));
    gpt *g = m->own = calloc(1, sizeof *g);
    if (!g || !(g->layers = calloc((size_t)o->layers, sizeof *g->layers)))
        return tess_fail(TESS_E_NOMEM, "out of memory for model %s", m->t->name);
    m->is_native = 1;
    m->may_store = 1;
    set_sizes(m);
    m->desc.input_bytes = (uint64_t)o->batch * (uint64_t)(o->context + 1) * (g->bytes ? 1 : sizeof(int32_t));
    m->desc.input_bytes += sizeof(model_batch);
    OPS_TRY(gpt_build_embed(m));
    for (int32_t i = 0; i < o->layers; i++)
        OPS_TRY(build_layer(m, i));
    return gpt_build_head(m, layer_backward_scratch(m));
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

static tess_status gpt2_check(const model_options *o) {
    return decoder_check(o, "gpt2");
}

const model_ops model_gpt2 = {
    .name = "gpt2",
    .defaults = { .batch = 4, .layers = 4, .heads = 4, .width = 128, .context = 64 },
    .optimizer_groups = 2,
    .check = gpt2_check,
    .check_batch = gpt_check_batch,
    .build = gpt_build,
    .release = gpt_release,
};
