/* SPDX-License-Identifier: BSD-3-Clause */
/* The operators of a layer on a device (decoder.h). */
#include "device.h"

/* ---- products -------------------------------------------------------------------------------------------- */
static device_beside one(int32_t place, int64_t inputs, int64_t outputs, int32_t bias) {
    return (device_beside){ 1, { place }, inputs, { outputs }, outputs, { bias } };
}

/* Returns the products of a half's normalised rows. */
static device_beside first_of(const decoder *d, int half) {
    const device_beside qkv = { 3,
                                { DECODER_Q_W, DECODER_K_W, DECODER_V_W },
                                d->width,
                                { d->q_width, d->kv_width, d->kv_width },
                                d->qkv_width,
                                { DECODER_Q_B, DECODER_K_B, DECODER_V_B } };
    const device_beside feed = {
        2, { DECODER_GATE_W, DECODER_UP_W }, d->width, { d->hidden, d->hidden }, 2 * d->hidden, { -1, -1 }
    };
    if (half == DECODER_FEED)
        return d->gated ? feed : one(DECODER_UP_W, d->width, d->hidden, DECODER_UP_B);
    return decoder_has(d, DECODER_K_W) ? qkv : one(DECODER_Q_W, d->width, d->qkv_width, DECODER_Q_B);
}

/* Returns the last product of a half. */
static device_beside last_of(const decoder *d, int half) {
    return half == DECODER_FEED ? one(DECODER_DOWN_W, d->hidden, d->width, -1)
                                : one(DECODER_O_W, d->q_width, d->width, -1);
}

static tess_status multiply(const decoder_chunk *c, const ops_factors *f) {
    return device_of(c->d->m)->t->product(c->d->m->o, f, device_workspace(c));
}

typedef tess_status (*adapting)(const decoder_chunk *, const device_adapted *);

static int has_adapters(const decoder *d, const device_beside *b) {
    int has = 0;
    for (int32_t i = 0; i < b->n; i++)
        has |= device_adapts(d, b->place[i]);
    return has;
}

/* Calls `one` for each product. x is their common input or its gradient, y the first result or its gradient. */
static tess_status adapt(const decoder_chunk *c, const device_beside *b, adapting one, const void *x, const void *y) {
    for (int64_t i = 0, at = 0; i < b->n; at += b->width[i++]) {
        device_adapted a = { b->place[i],
                             (int64_t)device_rows_of(c->d->m, c->call).rows,
                             b->inputs,
                             b->width[i],
                             b->all,
                             x,
                             decoder_at(c->d, y, at) };
        OPS_TRY(one(c, &a));
    }
    return TESS_OK;
}

/* `with` says what follows the product and its bias, and whether the result is added. `found`, here and below: what the
 * writer of x or dy found for products in fp8, or null. */
static tess_status product(const decoder_chunk *c, device_beside of, const void *x, void *y, const ops_factors *with,
                           const fp8_found *found) {
    if (device_in_fp8(c, &of))
        return device_product_fp8(c, &of, device_is_one_bias(c, &of), x, y, with, found);
    device_beside b = device_is_one_bias(c, &of) ? device_as_few(c->d, &of, c->call->params, c->d->elem) : of;
    for (int64_t i = 0, at = 0; i < b.n; at += b.width[i++]) {
        ops_factors f = *with;
        f.rows = (int64_t)device_rows_of(c->d->m, c->call).rows, f.columns = b.width[i], f.depth = b.inputs, f.a = x;
        f.turn_b = 1, f.y = decoder_at(c->d, y, at), f.y_pitch = b.all, f.bias = decoder_weight(c, b.bias[i]);
        OPS_TRY(device_matrix(c, b.place[i], f.columns, f.depth, &f.b));
        OPS_TRY(multiply(c, &f));
    }
    return adapt(c, &of, device_adapt, x, y);
}

static tess_status input_gradient(const decoder_chunk *c, device_beside of, const void *dy, void *dx,
                                  const ops_factors *with, const fp8_found *found) {
    if (device_in_fp8(c, &of))
        return device_input_gradient_fp8(c, &of, dy, dx, with, found);
    device_beside b = device_as_few(c->d, &of, c->call->params, c->d->elem);
    for (int64_t i = 0, at = 0; i < b.n; at += b.width[i++]) {
        ops_factors f = *with;
        f.rows = c->rows, f.columns = b.inputs, f.depth = b.width[i], f.a = decoder_at(c->d, dy, at), f.a_pitch = b.all;
        f.y = dx, f.add = i > 0;
        OPS_TRY(device_matrix(c, b.place[i], f.depth, f.columns, &f.b));
        OPS_TRY(multiply(c, &f));
    }
    return adapt(c, &of, device_adapt_input, dx, dy);
}

/* Comes behind the gradient of the same product's input. */
static tess_status weight_gradient(const decoder_chunk *c, device_beside of, const void *x, const void *dy,
                                   const fp8_found *found) {
    if (device_in_fp8(c, &of))
        return device_weight_gradient_fp8(c, &of, x, found);
    device_beside b = device_as_few(c->d, &of, (const void *const *)c->call->grads, sizeof(float));
    for (int64_t i = 0, at = 0; i < b.n; at += b.width[i++]) {
        ops_factors f = { .rows = b.width[i], .columns = b.inputs, .depth = c->rows, .b = x, .turn_a = 1, .wide = 1 };
        f.a = decoder_at(c->d, dy, at), f.a_pitch = b.all, f.y = decoder_grad(c, b.place[i]);
        f.add = !c->d->m->stores_grads;
        OPS_TRY(f.y ? multiply(c, &f) : TESS_OK);
    }
    return adapt(c, &of, device_adapt_weights, x, dy);
}

/* ---- forward ----------------------------------------------------------------------------------------- */
static uint64_t forward_need(const decoder *d, int part) {
    (void)part;
    return device_of(d->m)->inner.forward_bytes;
}

static ops_norm norm_of(const decoder_chunk *c, int half) {
    const device_decoder *g = device_of(c->d->m);
    int is_feed = half == DECODER_FEED;
    ops_norm n = { .of = device_rows_of(c->d->m, c->call), .x = c->call->input, .y = c->z.normal };
    n.w = decoder_weight(c, is_feed ? DECODER_NORM2_W : DECODER_NORM1_W);
    n.b = decoder_weight(c, is_feed ? DECODER_NORM2_B : DECODER_NORM1_B);
    n.stats = is_feed ? c->k.stats2 : c->k.stats1;
    n.eps = g->eps, n.about_zero = c->d->about_zero, n.one_more = c->d->one_more;
    return n;
}

/* join_attention computes the second normalisation together with its input. */
static tess_status normalise(decoder_chunk *c, int half) {
    ops_norm n = norm_of(c, half);
    device_beside of = first_of(c->d, half);
    if (half == DECODER_FEED)
        return TESS_OK;
    c->z.found = device_found(c, &of, 0, 0), n.found = &c->z.found;
    return device_of(c->d->m)->t->norm(c->d->m->o, &n);
}

/* Returns the place of the feed-forward half's first products. */
static void *feed_of(const decoder_chunk *c) {
    return c->d->gated ? c->k.gate : c->k.up;
}

/* The product applies GELU itself, and keeps GELU's input for backward. */
static tess_status project(decoder_chunk *c, int half) {
    const decoder *d = c->d;
    device_beside of = first_of(d, half), then = last_of(d, DECODER_FEED);
    int is_feed = half == DECODER_FEED, gelu = is_feed && !d->gated, apart = gelu && has_adapters(d, &of);
    ops_factors with = { .gelu = gelu && !apart };
    with.before = with.gelu && c->call->saved ? c->k.up : NULL;
    if (with.gelu)
        c->z.found_too = device_found(c, &then, 1, 0), with.found = &c->z.found_too;
    void *y = with.gelu ? c->z.wide : is_feed ? feed_of(c) : device_view_of(c->l, c->call, c->k.qkv).rows;
    OPS_TRY(product(c, of, c->z.normal, y, &with, &c->z.found));
    uint64_t elems = device_rows_of(d->m, c->call).rows * (uint64_t)d->hidden;
    return apart ? device_of(d->m)->t->gelu(d->m->o, y, c->z.wide, elems) : TESS_OK;
}

/* Describes the turning of queries and keys by their positions; with `back` it turns their gradients back. */
static ops_rotation rotation_of(const decoder_chunk *c, void *qkv, int32_t back) {
    const decoder *d = c->d;
    ops_rotation r = { .of = device_rows_of(d->m, c->call), .x = qkv, .first = device_first_position(d->m, c->call) };
    r.of.width = (uint64_t)d->qkv_width, r.heads = (int32_t)(d->heads + d->kv_heads);
    int near = decoder_nearness(d, c->l->index);
    r.pairs = (int32_t)d->size / 2, r.back = back, r.turns = device_of(d->m)->turns[near], r.table = c->k.turned;
    r.scale = (float)decoder_turn_scale(d, near);
    return r;
}

/* Describes the normalisation of queries and keys; in backward their gradients are in qkv's place. */
static ops_head_norm heads_of(const decoder_chunk *c, void *qkv) {
    const decoder *d = c->d;
    ops_head_norm n = { .of = device_rows_of(d->m, c->call), .x = qkv, .kept = c->k.heads, .stats = c->k.head_stats };
    n.of.width = (uint64_t)d->qkv_width, n.eps = device_of(d->m)->eps, n.one_more = d->one_more;
    n.heads = (int32_t)d->heads, n.kv_heads = (int32_t)d->kv_heads, n.size = (int32_t)d->size;
    n.query_w = decoder_weight(c, DECODER_QUERY_NORM_W), n.key_w = decoder_weight(c, DECODER_KEY_NORM_W);
    return n;
}

/* Normalises a half's result into the place of the normalised rows. */
static tess_status normalise_after(const decoder_chunk *c, int half) {
    const decoder *d = c->d;
    int is_feed = half == DECODER_FEED;
    ops_norm n = { .of = device_rows_of(d->m, c->call), .y = c->z.normal, .eps = device_of(d->m)->eps };
    n.x = is_feed ? c->k.after2 : c->k.after1, n.stats = is_feed ? c->k.after2_stats : c->k.after1_stats;
    n.w = decoder_weight(c, is_feed ? DECODER_AFTER2_W : DECODER_AFTER1_W);
    n.about_zero = d->about_zero, n.one_more = d->one_more;
    return device_of(d->m)->t->norm(d->m->o, &n);
}

/* Returns attention's scratch. If documents share samples the rows' places lie before it. */
static tess_status attention_scratch(const decoder_chunk *c, device_view *v, void **out) {
    const model *m = c->d->m;
    char *at = c->z.inner;
    if (m->options.packs)
        OPS_TRY(device_places(m, c->call, decoder_cut(&at, device_of(m)->ids_bytes), &v->shape.places));
    *out = at;
    return TESS_OK;
}

static tess_status attend(decoder_chunk *c) {
    const device_decoder *g = device_of(c->d->m);
    device_view v = device_view_of(c->l, c->call, c->k.qkv);
    ops_rotation turn = rotation_of(c, v.rows, 0);
    ops_head_norm heads = heads_of(c, v.rows);
    OPS_TRY(c->d->head_norms ? g->t->head_norm(c->d->m->o, &heads) : TESS_OK);
    OPS_TRY(c->d->rotary ? g->t->rotate(c->d->m->o, &turn) : TESS_OK);
    void *scratch;
    OPS_TRY(attention_scratch(c, &v, &scratch));
    return g->t->attention(c->d->m->o, &v.shape, v.all, c->k.attended, c->k.lse, scratch);
}

/* The same launch computes the second normalisation, and the sum to which the layer's last product adds. */
static tess_status join_attention(decoder_chunk *c) {
    const decoder *d = c->d;
    const model *m = d->m;
    ops_dropout drop = decoder_drop(c, DECODER_ATTENTION);
    ops_norm n = norm_of(c, DECODER_FEED);
    device_beside then = first_of(d, DECODER_FEED);
    const void *attended = decoder_at(d, c->k.attended, (int64_t)device_first_position(m, c->call) * d->q_width);
    OPS_TRY(product(c, last_of(d, DECODER_ATTENTION), attended, d->after_norms ? c->k.after1 : c->z.normal,
                    &(ops_factors){ 0 }, NULL));
    OPS_TRY(d->after_norms ? normalise_after(c, DECODER_ATTENTION) : TESS_OK);
    c->z.found = device_found(c, &then, 0, 0), n.found = &c->z.found;
    n.add = c->z.normal, n.add_bias = decoder_weight(c, DECODER_O_B), n.sum = c->k.middle, n.drop = &drop;
    /* the last product adds to this */
    n.next = device_has_dropout(m, c->call) || d->after_norms ? NULL : c->call->output;
    n.next_bias = decoder_weight(c, DECODER_DOWN_B);
    return device_of(m)->t->norm(m->o, &n);
}

static tess_status join_feed(const decoder_chunk *c) {
    const decoder *d = c->d;
    const model *m = d->m;
    const device_decoder *g = device_of(m);
    int drops = device_has_dropout(m, c->call), apart = drops || d->after_norms;
    ops_dropout drop = decoder_drop(c, DECODER_FEED);
    void *to = d->after_norms ? c->k.after2 : drops ? c->z.normal : c->call->output;
    OPS_TRY(product(c, last_of(d, DECODER_FEED), c->z.wide, to, &(ops_factors){ .add = !apart }, &c->z.found_too));
    if (!apart)
        return TESS_OK;
    OPS_TRY(d->after_norms ? normalise_after(c, DECODER_FEED) : TESS_OK);
    return g->t->norm(m->o, &(ops_norm){ .of = device_rows_of(m, c->call),
                                         .x = c->k.middle,
                                         .add = c->z.normal,
                                         .add_bias = decoder_weight(c, DECODER_DOWN_B),
                                         .sum = c->call->output,
                                         .drop = &drop });
}

static tess_status join(decoder_chunk *c, int half) {
    return half == DECODER_FEED ? join_feed(c) : join_attention(c);
}

static tess_status activate(decoder_chunk *c) {
    const model *m = c->d->m;
    uint64_t rows = device_rows_of(m, c->call).rows, width = (uint64_t)c->d->hidden;
    device_beside then = last_of(c->d, DECODER_FEED);
    if (!c->d->gated)
        return TESS_OK;
    c->z.found_too = device_found(c, &then, 1, 0);
    return device_of(m)->t->swiglu(m->o, c->k.gate, c->z.wide, rows, width, c->d->gelu, &c->z.found_too);
}

/* ---- backward ---------------------------------------------------------------------------------------- */
/* Gradients that the sums over columns read are kept until the layer ends. */
static decoder_rooms rooms_at(const decoder *d, char **at) {
    const device_decoder *g = device_of(d->m);
    int dropout = d->m->options.dropout > 0 || d->after_norms;
    uint64_t qkv_bytes = decoder_bytes(d, d->rows, d->qkv_width);
    decoder_rooms z = { 0 };
    z.dfeed = decoder_cut(at, decoder_bytes(d, d->rows, device_feed_width(d)));
    z.wide = decoder_cut(at, device_most(decoder_bytes(d, d->rows, d->hidden), qkv_bytes));
    z.d1 = decoder_cut(at, g->row_bytes);
    z.d2 = decoder_cut(at, device_most(g->row_bytes, decoder_bytes(d, d->rows, d->q_width)));
    z.dmiddle = decoder_cut(at, g->row_bytes);
    z.normal = decoder_cut(at, g->row_bytes);
    z.masked1 = decoder_cut(at, dropout ? g->row_bytes : 0);
    z.masked2 = decoder_cut(at, dropout ? g->row_bytes : 0);
    z.inner = *at;
    return z;
}

static void place_rooms(decoder_chunk *c, char *at) {
    c->z = rooms_at(c->d, &at);
}

static uint64_t backward_need(const decoder *d, int part) {
    char *at = NULL;
    (void)part;
    rooms_at(d, &at);
    return (uint64_t)(uintptr_t)at + device_of(d->m)->inner.backward_bytes;
}

/* dx: the gradient of a half's result before its normalisation; dy: after it. */
static tess_status after_backward(decoder_chunk *c, int half, const void *dy, void *dx) {
    const decoder *d = c->d;
    int is_feed = half == DECODER_FEED;
    ops_norm_backward n = { .of = device_of(d->m)->rows, .dy = dy, .dx = dx, .about_zero = d->about_zero };
    n.x = is_feed ? c->k.after2 : c->k.after1, n.stats = is_feed ? c->k.after2_stats : c->k.after1_stats;
    device_beside then = last_of(d, half);
    n.w = decoder_weight(c, is_feed ? DECODER_AFTER2_W : DECODER_AFTER1_W), n.one_more = d->one_more;
    c->z.found = device_found(c, &then, 0, 1), n.found = &c->z.found;
    return device_of(d->m)->t->norm_backward(d->m->o, &n);
}

/* The launch that computes the gradient of the activation's input also computes its result again. */
static tess_status activate_backward(decoder_chunk *c) {
    const decoder *d = c->d;
    const model *m = d->m;
    const device_decoder *g = device_of(m);
    decoder_rooms *z = &c->z;
    device_beside down = last_of(d, DECODER_FEED), up = first_of(d, DECODER_FEED);
    ops_dropout drop = decoder_drop(c, DECODER_FEED);
    OPS_TRY(g->t->mask(m->o, &g->rows, &drop, c->call->grad_output, z->masked2, &z->dy));
    fp8_found of_dy = { 0 };
    if (d->after_norms) {
        OPS_TRY(after_backward(c, DECODER_FEED, c->call->grad_output, z->masked2));
        z->dy = z->masked2, of_dy = z->found;
    }
    ops_factors with = { 0 };
    int apart = has_adapters(d, &down);
    if (!d->gated && !apart)
        with.through = c->k.up, with.again = z->wide;
    z->found = device_found(c, &up, 0, 1), z->found_too = device_found(c, &down, 1, 1);
    with.found = &z->found, with.found_again = &z->found_too;
    OPS_TRY(input_gradient(c, down, z->dy, d->gated ? z->wide : z->dfeed, &with, &of_dy));
    if (!d->gated && apart)
        OPS_TRY(g->t->gelu_backward(m->o, c->k.up, z->dfeed, z->dfeed, z->wide, g->rows.rows * (uint64_t)d->hidden));
    if (d->gated)
        OPS_TRY(g->t->swiglu_backward(m->o, c->k.gate, z->wide, z->dfeed, z->wide, g->rows.rows, (uint64_t)d->hidden,
                                      d->gelu, &z->found, &z->found_too));
    return weight_gradient(c, down, z->wide, z->dy, &z->found_too);
}

static tess_status attend_backward(decoder_chunk *c) {
    const decoder *d = c->d;
    const model *m = d->m;
    const device_decoder *g = device_of(m);
    decoder_rooms *z = &c->z;
    device_view v = device_view_of(c->l, c->call, c->k.qkv);
    device_beside out = last_of(d, DECODER_ATTENTION);
    ops_rotation back = rotation_of(c, z->wide, 1);
    OPS_TRY(input_gradient(c, out, z->dattention, z->d2, &(ops_factors){ 0 }, &z->found));
    OPS_TRY(weight_gradient(c, out, c->k.attended, z->dattention, NULL));
    z->found = (fp8_found){ 0 }; /* attention's backward finds nothing */
    void *scratch;
    OPS_TRY(attention_scratch(c, &v, &scratch));
    OPS_TRY(g->t->attention_backward(m->o, &v.shape, c->k.qkv, c->k.attended, c->k.lse, z->d2, z->wide,
                                     d->rotary ? &back : NULL, scratch));
    ops_head_norm heads = heads_of(c, z->wide);
    if (!d->head_norms)
        return TESS_OK;
    return g->t->head_norm_backward(m->o, &heads, decoder_grad(c, DECODER_QUERY_NORM_W),
                                    decoder_grad(c, DECODER_KEY_NORM_W), !m->stores_grads, z->inner);
}

static ops_norm_backward norm_backward_of(const decoder_chunk *c, int half) {
    const device_decoder *g = device_of(c->d->m);
    const ops_norm same = norm_of(c, half);
    ops_norm_backward n = { .of = g->rows, .w = same.w, .b = same.b, .stats = same.stats };
    n.about_zero = same.about_zero, n.one_more = same.one_more, n.normal = c->z.normal;
    return n;
}

/* Computes the gradient of the rows between the halves. */
static tess_status norm2_backward(decoder_chunk *c) {
    const model *m = c->d->m;
    decoder_rooms *z = &c->z;
    ops_dropout drop = decoder_drop(c, DECODER_ATTENTION);
    ops_norm_backward n = norm_backward_of(c, DECODER_FEED);
    device_beside up = first_of(c->d, DECODER_FEED), out = last_of(c->d, DECODER_ATTENTION);
    z->found = device_found(c, &out, 0, 1), z->found_too = device_found(c, &up, 1, 1);
    n.found = &z->found, n.found_normal = &z->found_too;
    n.x = c->k.middle, n.dy = z->d1, n.add = c->call->grad_output, n.dx = z->dmiddle, n.drop = &drop;
    n.masked = device_has_dropout(m, c->call) ? z->masked1 : NULL;
    z->dattention = n.masked ? n.masked : n.dx;
    OPS_TRY(device_of(m)->t->norm_backward(m->o, &n));
    if (!c->d->after_norms)
        return TESS_OK;
    z->dattention = z->masked1;
    return after_backward(c, DECODER_ATTENTION, z->dmiddle, z->masked1);
}

/* Computes the gradient of the layer's input, and in the same launch the sums over columns of the whole layer. */
static tess_status norm1_backward(decoder_chunk *c) {
    const decoder *d = c->d;
    const device_decoder *g = device_of(d->m);
    decoder_rooms *z = &c->z;
    uint64_t width = g->rows.width, h = (uint64_t)d->hidden, qkv = (uint64_t)d->qkv_width;
    ops_norm_backward n = norm_backward_of(c, DECODER_ATTENTION);
    device_beside first = first_of(d, DECODER_ATTENTION);
    n.x = c->call->input, n.dy = z->d2, n.add = z->dmiddle, n.dx = c->call->grad_input;
    z->found_too = device_found(c, &first, 1, 1), n.found_normal = &z->found_too;
    ops_columns all[] = {
        { .x = c->k.middle, .dy = z->d1, .stats = c->k.stats2, .width = width },
        { .x = c->call->input, .dy = z->d2, .stats = c->k.stats1, .width = width },
        { .dy = z->dy, .db = decoder_grad(c, DECODER_DOWN_B), .width = width },
        { .dy = z->dfeed, .db = decoder_grad(c, DECODER_UP_B), .width = h },
        { .dy = z->dattention, .db = decoder_grad(c, DECODER_O_B), .width = width },
        { .dy = z->wide, .db = decoder_grad(c, DECODER_Q_B), .width = (uint64_t)first.width[0], .pitch = qkv },
        { .db = decoder_grad(c, DECODER_K_B), .width = (uint64_t)d->kv_width, .pitch = qkv },
        { .db = decoder_grad(c, DECODER_V_B), .width = (uint64_t)d->kv_width, .pitch = qkv },
        { .x = c->k.after1, .dy = z->dmiddle, .stats = c->k.after1_stats, .width = width },
        { .x = c->k.after2, .dy = c->call->grad_output, .stats = c->k.after2_stats, .width = width },
    };
    all[6].dy = decoder_at(d, z->wide, d->q_width), all[7].dy = decoder_at(d, z->wide, d->q_width + d->kv_width);
    all[8].dw = decoder_grad(c, DECODER_AFTER1_W), all[9].dw = decoder_grad(c, DECODER_AFTER2_W);
    all[0].dw = decoder_grad(c, DECODER_NORM2_W), all[0].db = decoder_grad(c, DECODER_NORM2_B);
    all[1].dw = decoder_grad(c, DECODER_NORM1_W), all[1].db = decoder_grad(c, DECODER_NORM1_B);
    return g->t->norm_backward_columns(d->m->o, &n, all, sizeof all / sizeof *all, !d->m->stores_grads, z->inner);
}

static tess_status project_backward(decoder_chunk *c, int half) {
    device_beside of = first_of(c->d, half);
    const decoder_rooms *z = &c->z;
    int is_feed = half == DECODER_FEED;
    const char *dy = is_feed ? z->dfeed : z->wide;
    OPS_TRY(input_gradient(c, of, dy, is_feed ? z->d1 : z->d2, &(ops_factors){ 0 }, &z->found));
    OPS_TRY(is_feed ? norm2_backward(c) : norm1_backward(c));
    return weight_gradient(c, of, z->normal, dy, &z->found_too);
}

const decoder_operators decoder_on_device = {
    .bytes = sizeof(device_decoder),
    .create = device_create,
    .destroy = device_destroy,
    .measure_embed = device_measure_embed,
    .measure_head = device_measure_head,
    .forward_need = forward_need,
    .backward_need = backward_need,
    .place_rooms = place_rooms,
    .norm = normalise,
    .project = project,
    .attend = attend,
    .join = join,
    .activate = activate,
    .activate_backward = activate_backward,
    .attend_backward = attend_backward,
    .project_backward = project_backward,
    .sequence_begin = device_sequence_begin,
    .sequence_end = device_sequence_end,
};
