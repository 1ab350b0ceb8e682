/* SPDX-License-Identifier: BSD-3-Clause */
/* A layer on a device: GPT-2's, or Llama's with products that lie beside each other. */
#include "gpt.h"

/* ---- what lies where ------------------------------------------------------------------------------------ */
static const void *param(const gpt_layer *l, const tess_block_call *call, int place) {
    int32_t at = gpt_of(l->m)->d.at[place];
    return at < 0 ? NULL : call->params[at];
}

static float *grad(const gpt_layer *l, const tess_block_call *call, int place) {
    int32_t at = gpt_of(l->m)->d.at[place];
    return at < 0 ? NULL : call->grads[at];
}

typedef struct { /* from forward to backward */
    char *qkv, *attended, *middle, *feed;
    float *stats1, *stats2, *lse, *turned;
} layer_saved;

static layer_saved layer_saved_at(const gpt *g, void *region) {
    char *at = region;
    layer_saved s;
    s.qkv = gpt_cut(&at, g->qkv_bytes);
    s.attended = gpt_cut(&at, g->q_bytes);
    s.middle = gpt_cut(&at, g->row_bytes); /* the input plus what attention adds */
    s.feed = gpt_cut(&at, g->feed_bytes);  /* before the activation */
    s.stats1 = gpt_cut(&at, g->stats_bytes);
    s.stats2 = gpt_cut(&at, g->stats_bytes);
    s.lse = gpt_cut(&at, g->lse_bytes);
    s.turned = g->turned_bytes ? gpt_cut(&at, g->turned_bytes) : NULL; /* by which angles */
    return s;
}

/* In an evaluation the same things live in scratch, and no longer than they are needed. */
static layer_saved layer_transient_at(const gpt *g, char **at) {
    layer_saved s;
    s.qkv = s.feed = gpt_cut(at, gpt_most(g->qkv_bytes + g->q_bytes, g->feed_bytes));
    s.attended = s.qkv + g->qkv_bytes;
    s.middle = gpt_cut(at, g->row_bytes);
    s.stats1 = s.stats2 = gpt_cut(at, g->stats_bytes);
    s.lse = gpt_cut(at, g->lse_bytes);
    s.turned = NULL;
    return s;
}

/* With the normalised rows and, where it is not in the place of what the activation is taken of, its result. */
uint64_t gpt_layer_forward_scratch(const gpt *g) {
    uint64_t transient =
        gpt_most(g->qkv_bytes + g->q_bytes, g->feed_bytes) + g->row_bytes + g->stats_bytes + g->lse_bytes;
    return g->row_bytes + gpt_most(g->hidden_bytes, transient + (g->d.gated ? g->hidden_bytes : 0));
}

uint64_t gpt_layer_saved(const gpt *g) {
    return g->qkv_bytes + g->q_bytes + g->row_bytes + g->feed_bytes + 2 * g->stats_bytes + g->lse_bytes +
           g->turned_bytes;
}

/* Two masks per layer, after those of the embedding. */
static ops_dropout layer_drop(const gpt_layer *l, const tess_block_call *call, uint32_t half) {
    return model__dropout(l->m, call, 1 + 2 * (uint32_t)l->index + half, l->m->options.dropout);
}

/* ---- products that lie beside each other --------------------------------------------------------------- */
enum { MOST_BESIDE = 3 };
typedef struct { /* the same rows times each matrix; a row of the result has them in their order */
    int32_t n, place[MOST_BESIDE];
    int64_t width[MOST_BESIDE], all;
} beside;

static beside queries_keys_values(const decoder *d) {
    return decoder_has(d, DECODER_K_W) ? (beside){ 3,
                                                   { DECODER_Q_W, DECODER_K_W, DECODER_V_W },
                                                   { d->q_width, d->kv_width, d->kv_width },
                                                   d->qkv_width }
                                       : (beside){ 1, { DECODER_Q_W }, { d->qkv_width }, d->qkv_width };
}

static beside gate_and_up(const decoder *d) {
    return d->gated ? (beside){ 2, { DECODER_GATE_W, DECODER_UP_W }, { d->hidden, d->hidden }, 2 * d->hidden }
                    : (beside){ 1, { DECODER_UP_W }, { d->hidden }, d->hidden };
}

int64_t gpt_layer_feed_width(const decoder *d) {
    return gate_and_up(d).all;
}

/* Matrices that lie behind each other, as they do in one unit without gaps, are one matrix. */
static beside as_few(const decoder *d, const beside *b, const void *const *at, uint64_t elem) {
    for (int32_t i = 1; i < b->n; i++) {
        const char *before = at[d->at[b->place[i - 1]]];
        if (!before || before + (uint64_t)(b->width[i - 1] * d->width) * elem != at[d->at[b->place[i]]])
            return *b;
    }
    return (beside){ 1, { b->place[0] }, { b->all }, b->all };
}

/* f: what follows the product, where there is one. */
static tess_status beside_forward(const gpt_layer *l, const tess_block_call *call, const beside *of, const void *x,
                                  void *y, const ops_factors *with, void *workspace) {
    const decoder *d = l->m->own;
    uint64_t rows = gpt_rows_of(l->m, call).rows;
    beside b = as_few(d, of, call->params, d->elem);
    for (int64_t i = 0, at = 0; i < b.n; at += b.width[i++]) {
        ops_factors f = *with,
                    sizes = gpt_linear_factors(rows, x, param(l, call, b.place[i]), d->width, b.width[i], NULL);
        f.rows = sizes.rows, f.columns = sizes.columns, f.depth = sizes.depth, f.a = sizes.a, f.b = sizes.b;
        f.turn_b = 1, f.y = decoder_at(d, y, at), f.y_pitch = b.all;
        OPS_TRY(gpt_multiply(l->m, &f, workspace));
    }
    return TESS_OK;
}

static tess_status beside_input(const gpt_layer *l, const tess_block_call *call, const beside *of, const void *dy,
                                void *dx, void *workspace) {
    const decoder *d = l->m->own;
    beside b = as_few(d, of, call->params, d->elem);
    for (int64_t i = 0, at = 0; i < b.n; at += b.width[i++]) {
        ops_factors f =
            gpt_input_factors(l->m, decoder_at(d, dy, at), param(l, call, b.place[i]), d->width, b.width[i], dx);
        f.a_pitch = b.all, f.add = i > 0;
        OPS_TRY(gpt_multiply(l->m, &f, workspace));
    }
    return TESS_OK;
}

static tess_status beside_weights(const gpt_layer *l, const tess_block_call *call, const beside *of, const void *x,
                                  const void *dy, void *workspace) {
    const decoder *d = l->m->own;
    beside b = as_few(d, of, (const void *const *)call->grads, sizeof(float));
    for (int64_t i = 0, at = 0; i < b.n; at += b.width[i++])
        OPS_TRY(gpt_weight_gradient(l->m, x, decoder_at(d, dy, at), d->width, b.width[i], b.all,
                                    grad(l, call, b.place[i]), !l->m->stores_grads, workspace));
    return TESS_OK;
}

/* ---- forward ----------------------------------------------------------------------------------------- */
static ops_norm norm_of(const gpt_layer *l, const tess_block_call *call, int w, int b) {
    const gpt *g = l->m->own;
    ops_norm n = { .of = gpt_rows_of(l->m, call), .w = param(l, call, w), .b = param(l, call, b) };
    n.eps = g->eps, n.about_zero = g->d.about_zero;
    return n;
}

/* Queries and keys turn by their positions; `back`: their gradients. */
static ops_rotation rotation_of(const gpt_layer *l, const tess_block_call *call, const layer_saved *s, void *qkv,
                                int32_t back) {
    const gpt *g = l->m->own;
    const decoder *d = &g->d;
    ops_rotation r = { .of = gpt_rows_of(l->m, call), .x = qkv, .first = gpt_first_position(l->m, call) };
    r.of.width = (uint64_t)d->qkv_width, r.heads = (int32_t)(d->heads + d->kv_heads);
    r.pairs = (int32_t)d->size / 2, r.back = back, r.turns = g->turns, r.table = s->turned;
    return r;
}

/* From normalised rows to what attention makes of them, *attended. */
static tess_status attend(const gpt_layer *l, const tess_block_call *call, const layer_saved *s, const void *normal,
                          void *inner, const void **attended) {
    const gpt *g = l->m->own;
    beside qkv = queries_keys_values(&g->d);
    gpt_view v = gpt_view_of(l, call, s->qkv);
    ops_factors with = { .bias = param(l, call, DECODER_Q_B) };
    ops_rotation turn = rotation_of(l, call, s, v.rows, 0);
    OPS_TRY(beside_forward(l, call, &qkv, normal, v.rows, &with, inner));
    OPS_TRY(g->d.rotary ? g->t->rotate(l->m->o, &turn) : TESS_OK);
    *attended = decoder_at(&g->d, s->attended, (int64_t)gpt_first_position(l->m, call) * g->d.q_width);
    return g->t->attention(l->m->o, &v.shape, v.all, s->attended, s->lse, inner);
}

/* From the input to s->middle, and its normalised rows to `normal`. */
static tess_status attention_forward(const gpt_layer *l, const tess_block_call *call, const layer_saved *s,
                                     void *normal, void *inner) {
    const model *m = l->m;
    const gpt *g = m->own;
    const void *attended;
    ops_dropout drop = layer_drop(l, call, 0);
    ops_norm n = norm_of(l, call, DECODER_NORM1_W, DECODER_NORM1_B);
    n.x = call->input, n.y = normal, n.stats = s->stats1;
    OPS_TRY(g->t->norm(m->o, &n));
    OPS_TRY(attend(l, call, s, normal, inner, &attended));
    OPS_TRY(
        gpt_linear(m, n.of.rows, attended, param(l, call, DECODER_O_W), g->d.q_width, g->d.width, normal, 0, inner));
    n = norm_of(l, call, DECODER_NORM2_W, DECODER_NORM2_B);
    n.x = call->input, n.add = normal, n.add_bias = param(l, call, DECODER_O_B), n.sum = s->middle;
    n.y = normal, n.stats = s->stats2, n.drop = &drop;
    n.next = gpt_has_dropout(m, call) ? NULL : call->output; /* what the last product adds to */
    n.next_bias = param(l, call, DECODER_DOWN_B);
    return g->t->norm(m->o, &n);
}

/* From normalised rows to the activation's result. */
static tess_status rise(const gpt_layer *l, const tess_block_call *call, const layer_saved *s, const void *normal,
                        void *active, void *inner) {
    const gpt *g = l->m->own;
    beside up = gate_and_up(&g->d);
    ops_factors with = { .bias = param(l, call, DECODER_UP_B), .gelu = !g->d.gated };
    with.before = call->saved && !g->d.gated ? s->feed : NULL;
    OPS_TRY(beside_forward(l, call, &up, normal, g->d.gated ? s->feed : active, &with, inner));
    uint64_t rows = gpt_rows_of(l->m, call).rows;
    return g->d.gated ? g->t->swiglu(l->m->o, s->feed, active, rows, (uint64_t)g->d.hidden) : TESS_OK;
}

tess_status gpt_layer_forward(void *user, const tess_block_call *call) {
    const gpt_layer *l = user;
    const model *m = l->m;
    const gpt *g = m->own;
    int64_t c = g->d.width, h = g->d.hidden;
    uint64_t rows = gpt_rows_of(m, call).rows;
    const void *down = param(l, call, DECODER_DOWN_W);
    char *at = call->scratch;
    layer_saved s = call->saved ? layer_saved_at(g, call->saved) : layer_transient_at(g, &at);
    char *normal = gpt_cut(&at, g->row_bytes),
         *active = call->saved || g->d.gated ? gpt_cut(&at, g->hidden_bytes) : s.feed;
    ops_dropout drop = layer_drop(l, call, 1);
    OPS_TRY(attention_forward(l, call, &s, normal, at));
    OPS_TRY(rise(l, call, &s, normal, active, at));
    if (!gpt_has_dropout(m, call))
        return gpt_linear(m, rows, active, down, h, c, call->output, 1, at);
    OPS_TRY(gpt_linear(m, rows, active, down, h, c, normal, 0, at));
    return g->t->norm(m->o, &(ops_norm){ .of = g->rows,
                                         .x = s.middle,
                                         .add = normal,
                                         .add_bias = param(l, call, DECODER_DOWN_B),
                                         .sum = call->output,
                                         .drop = &drop });
}

/* ---- backward ---------------------------------------------------------------------------------------- */
typedef struct { /* backward's scratch: what the sums over columns need stays to the end */
    char *dfeed, *wide, *d1, *d2, *dmiddle, *normal, *masked1, *masked2, *inner;
    const void *dy, *dattention; /* of what the halves add: behind dropout */
} layer_scratch;

static layer_scratch layer_scratch_at(const gpt *g, char **at, int dropout) {
    layer_scratch z = { 0 };
    z.dfeed = gpt_cut(at, g->feed_bytes);
    z.wide = gpt_cut(at, gpt_most(g->hidden_bytes, g->qkv_bytes));
    z.d1 = gpt_cut(at, g->row_bytes);
    z.d2 = gpt_cut(at, gpt_most(g->row_bytes, g->q_bytes));
    z.dmiddle = gpt_cut(at, g->row_bytes);
    z.normal = gpt_cut(at, g->row_bytes);
    z.masked1 = gpt_cut(at, dropout ? g->row_bytes : 0);
    z.masked2 = gpt_cut(at, dropout ? g->row_bytes : 0);
    z.inner = *at;
    return z;
}

uint64_t gpt_layer_backward_scratch(const gpt *g) {
    char *at = NULL;
    layer_scratch_at(g, &at, g->d.m->options.dropout > 0);
    return (uint64_t)(uintptr_t)at;
}

/* The gradient of what the activation was taken of, and its result again, from the gradient of the output. */
static tess_status act_backward(const gpt_layer *l, const tess_block_call *call, const layer_saved *s,
                                const layer_scratch *z) {
    const gpt *g = l->m->own;
    int64_t c = g->d.width, h = g->d.hidden;
    int32_t gated = g->d.gated;
    ops_factors down = gpt_input_factors(l->m, z->dy, param(l, call, DECODER_DOWN_W), h, c, gated ? z->wide : z->dfeed);
    if (!gated)
        down.through = s->feed, down.again = z->wide;
    OPS_TRY(gpt_multiply(l->m, &down, z->inner));
    return gated ? g->t->swiglu_backward(l->m->o, s->feed, z->wide, z->dfeed, z->wide, g->rows.rows, (uint64_t)h)
                 : TESS_OK;
}

static ops_norm_backward norm_backward_of(const gpt_layer *l, const tess_block_call *call, int w, int b) {
    const gpt *g = l->m->own;
    ops_norm_backward n = {
        .of = g->rows, .w = param(l, call, w), .b = param(l, call, b), .about_zero = g->d.about_zero
    };
    return n;
}

/* From the block's output to z->dmiddle. */
static tess_status feed_backward(const gpt_layer *l, const tess_block_call *call, const layer_saved *s,
                                 layer_scratch *z) {
    const model *m = l->m;
    const gpt *g = m->own;
    int64_t c = g->d.width, h = g->d.hidden;
    beside up = gate_and_up(&g->d);
    ops_dropout drop = layer_drop(l, call, 0), drop2 = layer_drop(l, call, 1);
    OPS_TRY(g->t->mask(m->o, &g->rows, &drop2, call->grad_output, z->masked2, &z->dy));
    OPS_TRY(act_backward(l, call, s, z));
    OPS_TRY(gpt_weight_gradient(m, z->wide, z->dy, h, c, 0, grad(l, call, DECODER_DOWN_W), !m->stores_grads, z->inner));
    OPS_TRY(beside_input(l, call, &up, z->dfeed, z->d1, z->inner));
    ops_norm_backward n = norm_backward_of(l, call, DECODER_NORM2_W, DECODER_NORM2_B);
    n.x = s->middle, n.dy = z->d1, n.add = call->grad_output, n.stats = s->stats2;
    n.dx = z->dmiddle, n.normal = z->normal, n.drop = &drop;
    n.masked = gpt_has_dropout(m, call) ? z->masked1 : NULL;
    OPS_TRY(g->t->norm_backward(m->o, &n));
    z->dattention = n.masked ? n.masked : n.dx;
    return beside_weights(l, call, &up, z->normal, z->dfeed, z->inner);
}

/* The last normalisation's way back, and beside it the sums over columns of the whole layer. */
static tess_status end_backward(const gpt_layer *l, const tess_block_call *call, const layer_saved *s,
                                const layer_scratch *z, const ops_norm_backward *n) {
    const gpt *g = l->m->own;
    uint64_t c = g->rows.width, h = (uint64_t)g->d.hidden, qkv = (uint64_t)g->d.qkv_width;
    ops_columns all[] = {
        { .x = s->middle, .dy = z->d1, .stats = s->stats2, .width = c },
        { .x = call->input, .dy = z->d2, .stats = s->stats1, .width = c },
        { .dy = z->dy, .db = grad(l, call, DECODER_DOWN_B), .width = c },
        { .dy = z->dfeed, .db = grad(l, call, DECODER_UP_B), .width = h },
        { .dy = z->dattention, .db = grad(l, call, DECODER_O_B), .width = c },
        { .dy = z->wide, .db = grad(l, call, DECODER_Q_B), .width = qkv },
    };
    all[0].dw = grad(l, call, DECODER_NORM2_W), all[0].db = grad(l, call, DECODER_NORM2_B);
    all[1].dw = grad(l, call, DECODER_NORM1_W), all[1].db = grad(l, call, DECODER_NORM1_B);
    return g->t->norm_backward_columns(l->m->o, n, all, sizeof all / sizeof *all, !l->m->stores_grads, z->inner);
}

/* From z->dmiddle to the block's input. */
static tess_status attention_backward(const gpt_layer *l, const tess_block_call *call, const layer_saved *s,
                                      const layer_scratch *z) {
    const model *m = l->m;
    const gpt *g = m->own;
    int64_t c = g->d.width, q = g->d.q_width;
    beside qkv = queries_keys_values(&g->d);
    ops_rotation back = rotation_of(l, call, s, z->wide, 1);
    OPS_TRY(gpt_weight_gradient(m, s->attended, z->dattention, q, c, 0, grad(l, call, DECODER_O_W), !m->stores_grads,
                                z->inner));
    OPS_TRY(gpt_input_gradient(m, z->dattention, param(l, call, DECODER_O_W), q, c, z->d2, z->inner));
    OPS_TRY(g->t->attention_backward(m->o, &g->attention, s->qkv, s->attended, s->lse, z->d2, z->wide,
                                     g->d.rotary ? &back : NULL, z->inner));
    OPS_TRY(beside_input(l, call, &qkv, z->wide, z->d2, z->inner));
    ops_norm_backward n = norm_backward_of(l, call, DECODER_NORM1_W, DECODER_NORM1_B);
    n.x = call->input, n.dy = z->d2, n.add = z->dmiddle, n.stats = s->stats1;
    n.dx = call->grad_input, n.normal = z->normal;
    OPS_TRY(end_backward(l, call, s, z, &n));
    return beside_weights(l, call, &qkv, z->normal, z->wide, z->inner);
}

tess_status gpt_layer_backward(void *user, const tess_block_call *call) {
    const gpt_layer *l = user;
    gpt *g = l->m->own;
    layer_saved s = layer_saved_at(g, call->saved);
    char *at = call->scratch;
    layer_scratch z = layer_scratch_at(g, &at, gpt_has_dropout(l->m, call));
    OPS_TRY(feed_backward(l, call, &s, &z));
    return attention_backward(l, call, &s, &z);
}
