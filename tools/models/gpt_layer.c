/* SPDX-License-Identifier: BSD-3-Clause */
/* The operators of a layer on a device: decoder/decoder.h. */
#include "gpt.h"

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

static beside beside_of(const decoder *d, int half) {
    return half == DECODER_FEED ? gate_and_up(d) : queries_keys_values(d);
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
static tess_status beside_forward(const decoder_chunk *c, const beside *of, const void *x, void *y,
                                  const ops_factors *with, void *workspace) {
    const decoder *d = c->d;
    uint64_t rows = gpt_rows_of(d->m, c->call).rows;
    beside b = as_few(d, of, c->call->params, d->elem);
    for (int64_t i = 0, at = 0; i < b.n; at += b.width[i++]) {
        ops_factors f = *with,
                    sizes = gpt_linear_factors(rows, x, decoder_weight(c, b.place[i]), d->width, b.width[i], NULL);
        f.rows = sizes.rows, f.columns = sizes.columns, f.depth = sizes.depth, f.a = sizes.a, f.b = sizes.b;
        f.turn_b = 1, f.y = decoder_at(d, y, at), f.y_pitch = b.all;
        OPS_TRY(gpt_multiply(d->m, &f, workspace));
    }
    return TESS_OK;
}

static tess_status beside_input(const decoder_chunk *c, const beside *of, const void *dy, void *dx, void *workspace) {
    const decoder *d = c->d;
    beside b = as_few(d, of, c->call->params, d->elem);
    for (int64_t i = 0, at = 0; i < b.n; at += b.width[i++]) {
        ops_factors f =
            gpt_input_factors(d->m, decoder_at(d, dy, at), decoder_weight(c, b.place[i]), d->width, b.width[i], dx);
        f.a_pitch = b.all, f.add = i > 0;
        OPS_TRY(gpt_multiply(d->m, &f, workspace));
    }
    return TESS_OK;
}

static tess_status beside_weights(const decoder_chunk *c, const beside *of, const void *x, const void *dy,
                                  void *workspace) {
    const decoder *d = c->d;
    beside b = as_few(d, of, (const void *const *)c->call->grads, sizeof(float));
    for (int64_t i = 0, at = 0; i < b.n; at += b.width[i++])
        OPS_TRY(gpt_weight_gradient(d->m, x, decoder_at(d, dy, at), d->width, b.width[i], b.all,
                                    decoder_grad(c, b.place[i]), !d->m->stores_grads, workspace));
    return TESS_OK;
}

/* ---- forward ----------------------------------------------------------------------------------------- */
uint64_t gpt_forward_need(const decoder *d, int part) {
    (void)part;
    return gpt_of(d->m)->inner.forward_bytes;
}

static ops_norm norm_of(const decoder_chunk *c, int half) {
    const gpt *g = gpt_of(c->d->m);
    int is_feed = half == DECODER_FEED;
    ops_norm n = { .of = gpt_rows_of(c->d->m, c->call), .x = c->call->input, .y = c->z.normal };
    n.w = decoder_weight(c, is_feed ? DECODER_NORM2_W : DECODER_NORM1_W);
    n.b = decoder_weight(c, is_feed ? DECODER_NORM2_B : DECODER_NORM1_B);
    n.stats = is_feed ? c->k.stats2 : c->k.stats1;
    n.eps = g->eps, n.about_zero = c->d->about_zero;
    return n;
}

/* The second normalisation is made where its input is. */
tess_status gpt_norm(decoder_chunk *c, int half) {
    ops_norm n = norm_of(c, half);
    return half == DECODER_FEED ? TESS_OK : gpt_of(c->d->m)->t->norm(c->d->m->o, &n);
}

/* What the first products of the feed-forward half are written to. */
static void *feed_of(const decoder_chunk *c) {
    return c->d->gated ? c->k.gate : c->k.up;
}

/* GELU is taken with the product, and kept is what it was taken of. */
tess_status gpt_project(decoder_chunk *c, int half) {
    const decoder *d = c->d;
    beside of = beside_of(d, half);
    int is_feed = half == DECODER_FEED, gelu = is_feed && !d->gated;
    ops_factors with = { .bias = decoder_weight(c, is_feed ? DECODER_UP_B : DECODER_Q_B), .gelu = gelu };
    with.before = gelu && c->call->saved ? c->k.up : NULL;
    void *y = gelu ? c->z.wide : is_feed ? feed_of(c) : gpt_view_of(c->l, c->call, c->k.qkv).rows;
    return beside_forward(c, &of, c->z.normal, y, &with, c->z.inner);
}

/* Queries and keys turn by their positions; `back`: their gradients. */
static ops_rotation rotation_of(const decoder_chunk *c, void *qkv, int32_t back) {
    const decoder *d = c->d;
    ops_rotation r = { .of = gpt_rows_of(d->m, c->call), .x = qkv, .first = gpt_first_position(d->m, c->call) };
    r.of.width = (uint64_t)d->qkv_width, r.heads = (int32_t)(d->heads + d->kv_heads);
    r.pairs = (int32_t)d->size / 2, r.back = back, r.turns = gpt_of(d->m)->turns, r.table = c->k.turned;
    return r;
}

tess_status gpt_attend(decoder_chunk *c) {
    const gpt *g = gpt_of(c->d->m);
    gpt_view v = gpt_view_of(c->l, c->call, c->k.qkv);
    ops_rotation turn = rotation_of(c, v.rows, 0);
    OPS_TRY(c->d->rotary ? g->t->rotate(c->d->m->o, &turn) : TESS_OK);
    return g->t->attention(c->d->m->o, &v.shape, v.all, c->k.attended, c->k.lse, c->z.inner);
}

/* With the second normalisation, from whose sum the last product of the layer begins. */
static tess_status join_attention(const decoder_chunk *c) {
    const decoder *d = c->d;
    const model *m = d->m;
    ops_dropout drop = decoder_drop(c, DECODER_ATTENTION);
    ops_norm n = norm_of(c, DECODER_FEED);
    const void *attended = decoder_at(d, c->k.attended, (int64_t)gpt_first_position(m, c->call) * d->q_width);
    OPS_TRY(gpt_linear(m, n.of.rows, attended, decoder_weight(c, DECODER_O_W), d->q_width, d->width, c->z.normal, 0,
                       c->z.inner));
    n.add = c->z.normal, n.add_bias = decoder_weight(c, DECODER_O_B), n.sum = c->k.middle, n.drop = &drop;
    n.next = gpt_has_dropout(m, c->call) ? NULL : c->call->output; /* what the last product adds to */
    n.next_bias = decoder_weight(c, DECODER_DOWN_B);
    return gpt_of(m)->t->norm(m->o, &n);
}

static tess_status join_feed(const decoder_chunk *c) {
    const decoder *d = c->d;
    const model *m = d->m;
    const gpt *g = gpt_of(m);
    int drops = gpt_has_dropout(m, c->call);
    ops_dropout drop = decoder_drop(c, DECODER_FEED);
    OPS_TRY(gpt_linear(m, gpt_rows_of(m, c->call).rows, c->z.wide, decoder_weight(c, DECODER_DOWN_W), d->hidden,
                       d->width, drops ? c->z.normal : c->call->output, !drops, c->z.inner));
    if (!drops)
        return TESS_OK;
    return g->t->norm(m->o, &(ops_norm){ .of = g->rows,
                                         .x = c->k.middle,
                                         .add = c->z.normal,
                                         .add_bias = decoder_weight(c, DECODER_DOWN_B),
                                         .sum = c->call->output,
                                         .drop = &drop });
}

tess_status gpt_join(decoder_chunk *c, int half) {
    return half == DECODER_FEED ? join_feed(c) : join_attention(c);
}

tess_status gpt_activate(decoder_chunk *c) {
    const model *m = c->d->m;
    uint64_t rows = gpt_rows_of(m, c->call).rows, width = (uint64_t)c->d->hidden;
    return c->d->gated ? gpt_of(m)->t->swiglu(m->o, c->k.gate, c->z.wide, rows, width) : TESS_OK;
}

/* ---- backward ---------------------------------------------------------------------------------------- */
/* What the sums over columns need stays to the end. */
static decoder_rooms rooms_at(const decoder *d, char **at) {
    const gpt *g = gpt_of(d->m);
    int dropout = d->m->options.dropout > 0;
    uint64_t qkv_bytes = decoder_bytes(d, d->rows, d->qkv_width);
    decoder_rooms z = { 0 };
    z.dfeed = decoder_cut(at, decoder_bytes(d, d->rows, gpt_layer_feed_width(d)));
    z.wide = decoder_cut(at, gpt_most(decoder_bytes(d, d->rows, d->hidden), qkv_bytes));
    z.d1 = decoder_cut(at, g->row_bytes);
    z.d2 = decoder_cut(at, gpt_most(g->row_bytes, decoder_bytes(d, d->rows, d->q_width)));
    z.dmiddle = decoder_cut(at, g->row_bytes);
    z.normal = decoder_cut(at, g->row_bytes);
    z.masked1 = decoder_cut(at, dropout ? g->row_bytes : 0);
    z.masked2 = decoder_cut(at, dropout ? g->row_bytes : 0);
    z.inner = *at;
    return z;
}

void gpt_rooms(decoder_chunk *c, char *at) {
    c->z = rooms_at(c->d, &at);
}

uint64_t gpt_backward_need(const decoder *d, int part) {
    char *at = NULL;
    (void)part;
    rooms_at(d, &at);
    return (uint64_t)(uintptr_t)at + gpt_of(d->m)->inner.backward_bytes;
}

/* dw += dy^T x, or stores it. */
static tess_status weights_backward(const decoder_chunk *c, const void *x, const void *dy, int64_t inputs, int place) {
    const model *m = c->d->m;
    return gpt_weight_gradient(m, x, dy, inputs, c->d->width, 0, decoder_grad(c, place), !m->stores_grads, c->z.inner);
}

/* The activation's result is made again beside the gradient of what it was taken of. */
tess_status gpt_activate_backward(decoder_chunk *c) {
    const decoder *d = c->d;
    const model *m = d->m;
    const gpt *g = gpt_of(m);
    decoder_rooms *z = &c->z;
    ops_dropout drop = decoder_drop(c, DECODER_FEED);
    OPS_TRY(g->t->mask(m->o, &g->rows, &drop, c->call->grad_output, z->masked2, &z->dy));
    ops_factors down = gpt_input_factors(m, z->dy, decoder_weight(c, DECODER_DOWN_W), d->hidden, d->width,
                                         d->gated ? z->wide : z->dfeed);
    if (!d->gated)
        down.through = c->k.up, down.again = z->wide;
    OPS_TRY(gpt_multiply(m, &down, z->inner));
    if (d->gated)
        OPS_TRY(g->t->swiglu_backward(m->o, c->k.gate, z->wide, z->dfeed, z->wide, g->rows.rows, (uint64_t)d->hidden));
    return weights_backward(c, z->wide, z->dy, d->hidden, DECODER_DOWN_W);
}

tess_status gpt_attend_backward(decoder_chunk *c) {
    const decoder *d = c->d;
    const model *m = d->m;
    const gpt *g = gpt_of(m);
    const decoder_rooms *z = &c->z;
    ops_rotation back = rotation_of(c, z->wide, 1);
    OPS_TRY(weights_backward(c, c->k.attended, z->dattention, d->q_width, DECODER_O_W));
    OPS_TRY(
        gpt_input_gradient(m, z->dattention, decoder_weight(c, DECODER_O_W), d->q_width, d->width, z->d2, z->inner));
    return g->t->attention_backward(m->o, &g->attention, c->k.qkv, c->k.attended, c->k.lse, z->d2, z->wide,
                                    d->rotary ? &back : NULL, z->inner);
}

static ops_norm_backward norm_backward_of(const decoder_chunk *c, int half) {
    const gpt *g = gpt_of(c->d->m);
    const ops_norm same = norm_of(c, half);
    ops_norm_backward n = { .of = g->rows, .w = same.w, .b = same.b, .stats = same.stats };
    n.about_zero = same.about_zero, n.normal = c->z.normal;
    return n;
}

/* To the rows between the halves. */
static tess_status norm2_backward(decoder_chunk *c) {
    const model *m = c->d->m;
    decoder_rooms *z = &c->z;
    ops_dropout drop = decoder_drop(c, DECODER_ATTENTION);
    ops_norm_backward n = norm_backward_of(c, DECODER_FEED);
    n.x = c->k.middle, n.dy = z->d1, n.add = c->call->grad_output, n.dx = z->dmiddle, n.drop = &drop;
    n.masked = gpt_has_dropout(m, c->call) ? z->masked1 : NULL;
    z->dattention = n.masked ? n.masked : n.dx;
    return gpt_of(m)->t->norm_backward(m->o, &n);
}

/* To the layer's input, and beside it the sums over columns of the whole layer. */
static tess_status norm1_backward(decoder_chunk *c) {
    const decoder *d = c->d;
    const gpt *g = gpt_of(d->m);
    const decoder_rooms *z = &c->z;
    uint64_t width = g->rows.width, h = (uint64_t)d->hidden, qkv = (uint64_t)d->qkv_width;
    ops_norm_backward n = norm_backward_of(c, DECODER_ATTENTION);
    n.x = c->call->input, n.dy = z->d2, n.add = z->dmiddle, n.dx = c->call->grad_input;
    ops_columns all[] = {
        { .x = c->k.middle, .dy = z->d1, .stats = c->k.stats2, .width = width },
        { .x = c->call->input, .dy = z->d2, .stats = c->k.stats1, .width = width },
        { .dy = z->dy, .db = decoder_grad(c, DECODER_DOWN_B), .width = width },
        { .dy = z->dfeed, .db = decoder_grad(c, DECODER_UP_B), .width = h },
        { .dy = z->dattention, .db = decoder_grad(c, DECODER_O_B), .width = width },
        { .dy = z->wide, .db = decoder_grad(c, DECODER_Q_B), .width = qkv },
    };
    all[0].dw = decoder_grad(c, DECODER_NORM2_W), all[0].db = decoder_grad(c, DECODER_NORM2_B);
    all[1].dw = decoder_grad(c, DECODER_NORM1_W), all[1].db = decoder_grad(c, DECODER_NORM1_B);
    return g->t->norm_backward_columns(d->m->o, &n, all, sizeof all / sizeof *all, !d->m->stores_grads, z->inner);
}

tess_status gpt_project_backward(decoder_chunk *c, int half) {
    beside of = beside_of(c->d, half);
    const decoder_rooms *z = &c->z;
    int is_feed = half == DECODER_FEED;
    const char *dy = is_feed ? z->dfeed : z->wide;
    OPS_TRY(beside_input(c, &of, dy, is_feed ? z->d1 : z->d2, z->inner));
    OPS_TRY(is_feed ? norm2_backward(c) : norm1_backward(c));
    return beside_weights(c, &of, z->normal, dy, z->inner);
}
