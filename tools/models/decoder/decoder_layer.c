/* SPDX-License-Identifier: BSD-3-Clause */
/* The operators of a layer on the CPU; each works on a chunk of rows (decoder.h). */
#include "decoder.h"
#include "tools/models/fp8_formulas.h"

#include <string.h>

static int64_t wider(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static uint64_t most(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static uint64_t linear_bytes(const decoder_linear *l) {
    return most(l->forward_bytes, l->backward_bytes);
}

/* Returns the scratch of the attention half's products. */
static uint64_t project_bytes(const decoder *d) {
    uint64_t qkv = most(linear_bytes(&d->p.q), most(linear_bytes(&d->p.k), linear_bytes(&d->p.v)));
    return most(qkv, linear_bytes(&d->p.out));
}

static uint64_t forward_need(const decoder *d, int part) {
    uint64_t attention = most(project_bytes(d), d->attention_bytes),
             feed = most(d->p.up.forward_bytes, d->p.down.forward_bytes);
    return most(part == DECODER_FEED ? 0 : attention, part == DECODER_ATTENTION ? 0 : feed);
}

/* In backward some operators use the place of the chunk's `up` as scratch, before `up` is made or after its last
 * use. The next chunk's `up` follows immediately, so an unaligned size gives 0. */
static uint64_t up_bytes(const decoder *d, int part) {
    uint64_t bytes = (uint64_t)(d->chunk_rows * d->hidden) * d->elem;
    return part != DECODER_ATTENTION && bytes == ops_align(bytes) ? bytes : 0;
}

/* Returns the scratch of those operators: the attention half's products, and the backward of the feed-forward half's
 * first products. */
static uint64_t late_bytes(const decoder *d, int part) {
    return most(part == DECODER_FEED ? 0 : project_bytes(d), part == DECODER_ATTENTION ? 0 : d->p.up.backward_bytes);
}

static int is_late_in_up(const decoder *d, int part) {
    return late_bytes(d, part) <= up_bytes(d, part);
}

/* wide and dropped are followed by `normal` and `inner`, because operators that do not need `normal` use both as
 * scratch. */
static decoder_rooms rooms_at(const decoder *d, int part, char **at) {
    int drops = d->m->options.dropout > 0 || d->after_norms;
    int64_t feed = part == DECODER_ATTENTION ? 0 : d->hidden, attention = part == DECODER_FEED ? 0 : d->qkv_width;
    decoder_rooms z = { 0 };
    z.wide = decoder_cut(at, decoder_bytes(d, d->chunk_rows, wider(feed, attention)));
    z.dropped = drops ? decoder_cut(at, decoder_bytes(d, d->chunk_rows, d->width)) : NULL;
    z.normal = decoder_cut(at, decoder_bytes(d, d->chunk_rows, wider(d->width, attention ? d->q_width : 0)));
    z.inner = *at;
    return z;
}

static void place_rooms(decoder_chunk *c, char *at) {
    c->z = rooms_at(c->d, c->l->part, &at);
    c->z.early = c->z.normal;
    c->z.late = is_late_in_up(c->d, c->l->part) ? c->k.up : c->z.inner;
    c->z.up = c->k.up;
}

/* Returns the scratch of operators that must not overwrite `normal`. */
static uint64_t inner_bytes(const decoder *d, int part) {
    uint64_t late = is_late_in_up(d, part) ? 0 : late_bytes(d, part);
    uint64_t attention = part == DECODER_FEED ? 0 : decoder_attention_rest(d, up_bytes(d, part));
    return most(most(late, attention), part == DECODER_ATTENTION ? 0 : d->p.up.forward_bytes);
}

/* Returns the scratch of operators that may use the place of `normal`. */
static uint64_t early_bytes(const decoder *d, int part) {
    uint64_t middle = part == DECODER_WHOLE ? d->p.out.forward_bytes : 0;
    middle = d->after_norms ? most(middle, d->p.down.forward_bytes) : middle;
    return most(middle, part == DECODER_ATTENTION ? 0 : d->p.down.backward_bytes);
}

static uint64_t backward_need(const decoder *d, int part) {
    char *at = NULL;
    decoder_rooms z = rooms_at(d, part, &at);
    return most((uint64_t)(uintptr_t)at + inner_bytes(d, part), (uint64_t)(uintptr_t)z.normal + early_bytes(d, part));
}

/* ---- a chunk ---------------------------------------------------------------------------------------- */
typedef struct { /* scales in fp8; 0: not in fp8 */
    float x, w, dy;
} scales;
typedef struct { /* a factor of a product; elems is of one in fp8 */
    const void *at;
    int64_t elems;
    float scale; /* 0: it is read as it is */
    int32_t e5m2;
} factor;

static const void *rounded(const decoder_chunk *c, const factor *f, char *to) {
    if (f->scale > 0)
        fp8_round(c->d->o, f->at, (uint16_t *)(void *)to, f->elems, f->scale, f->e5m2);
    return f->scale > 0 ? to : f->at;
}

static tess_status multiply(const decoder_chunk *c, const decoder_linear *l, ops_matmul *m, factor a, factor b,
                            const void *bias, void *y, char *scratch) {
    char *first = scratch + l->fp8_at, *second = first + decoder_bytes(c->d, a.elems, 1);
    const void *in_a = rounded(c, &a, first), *in_b = rounded(c, &b, second);
    return c->d->o->t->matmul(m, in_a, in_b, bias, y, scratch);
}

/* A pass over one position has no dropout. */
static int drops(const decoder_chunk *c) {
    return c->d->m->options.dropout > 0 && !decoder_one_position(c->d, c->call);
}

static void drop(const decoder_chunk *c, int half, void *x) {
    const decoder *d = c->d;
    ops_dropout p = decoder_drop(c, half);
    p.first_sample += (uint64_t)(c->first / d->time);
    decoder_dropout(d, x, d->chunk_samples, d->time * d->width, &p);
}

/* ---- forward ---------------------------------------------------------------------------------------- */
static decoder_norm_of norm_of(const decoder_chunk *c, int half) {
    decoder_norm_of of = { .rows = c->rows, .width = c->d->width };
    if (half == DECODER_FEED) {
        of.x = c->k.middle, of.stats = c->k.stats2;
        of.w = decoder_weight(c, DECODER_NORM2_W), of.b = decoder_weight(c, DECODER_NORM2_B);
    } else {
        of.x = decoder_rows_of(c, c->call->input), of.stats = c->k.stats1;
        of.w = decoder_weight(c, DECODER_NORM1_W), of.b = decoder_weight(c, DECODER_NORM1_B);
    }
    return of;
}

static tess_status normalise(decoder_chunk *c, int half) {
    const decoder_norm_of of = norm_of(c, half);
    decoder_norm(c->d, &of, c->z.normal);
    return TESS_OK;
}

/* Describes the normalisation of a half's result. */
static decoder_norm_of after_of(const decoder_chunk *c, int half) {
    int is_feed = half == DECODER_FEED;
    return (decoder_norm_of){ .rows = c->rows,
                              .width = c->d->width,
                              .x = is_feed ? c->k.after2 : c->k.after1,
                              .w = decoder_weight(c, is_feed ? DECODER_AFTER2_W : DECODER_AFTER1_W),
                              .stats = is_feed ? c->k.after2_stats : c->k.after1_stats };
}

/* Describes the normalisation of the heads of queries (which 0) or keys (1). Each head is a row; *at is their place
 * in qkv. */
static decoder_norm_of heads_of(const decoder_chunk *c, int which, decoder_part *at) {
    const decoder *d = c->d;
    *at = which ? decoder_k(d, c->rows) : decoder_q(d);
    return (decoder_norm_of){ .rows = c->rows * (which ? d->kv_heads : d->heads),
                              .width = d->size,
                              .x = decoder_at(d, c->k.heads, at->at),
                              .w = decoder_weight(c, which ? DECODER_KEY_NORM_W : DECODER_QUERY_NORM_W),
                              .stats = c->k.head_stats + (which ? 2 * c->rows * d->heads : 0) };
}

static void normalise_heads(const decoder_chunk *c) {
    for (int which = 0; which < 2 && c->d->head_norms; which++) {
        decoder_part at;
        const decoder_norm_of of = heads_of(c, which, &at);
        decoder_norm(c->d, &of, decoder_at(c->d, c->k.qkv, at.at));
    }
}

typedef struct { /* y = x · w^T + b */
    const decoder_linear *l;
    int w, b;
    void *y; /* y or its gradient */
    int64_t width;
    scales in; /* of x, w and the gradient of y; products that share x share each of them */
} linear;

static linear linear_of(const decoder_linear *l, int w, int b, void *y, int64_t width) {
    return (linear){ .l = l, .w = w, .b = b, .y = y, .width = width };
}

enum { MOST_PRODUCTS = 3 };

static factor x_of(const linear *l, const void *x) {
    return (factor){ x, l->l->rows * l->l->inputs, l->in.x, FP8_E4M3 };
}
static factor w_of(const linear *l, const void *w) {
    return (factor){ w, l->l->inputs * l->l->outputs, l->in.w, FP8_E4M3 };
}
static factor slopes_of(const linear *l) {
    return (factor){ l->y, l->l->rows * l->l->outputs, l->in.dy, FP8_E5M2 };
}

/* Takes the scales of products that share x from the tensors as they are. `back`: y is a gradient. */
static void take_scales(const decoder_chunk *c, linear *of, int n, const void *x, int back) {
    const ops *o = c->d->o;
    const decoder_linear *l = of[0].l;
    uint32_t w = 0, dy = 0;
    if (!l->fp8)
        return;
    float x_scale = fp8_scale(fp8_most(o, x, l->rows * l->inputs, 0), FP8_E4M3);
    for (int i = 0; i < n; i++)
        w = fp8_most(o, decoder_weight(c, of[i].w), l->inputs * of[i].l->outputs, w);
    for (int i = 0; i < n && back; i++)
        dy = fp8_most(o, of[i].y, l->rows * of[i].l->outputs, dy);
    for (int i = 0; i < n; i++)
        of[i].in = (scales){ x_scale, fp8_scale(w, FP8_E4M3), fp8_scale(dy, FP8_E5M2) };
}

/* Lists the products of a half's normalised rows. Queries and keys go into `heads`, values into qkv. */
static int products_of(const decoder_chunk *c, int half, void *heads, void *qkv, void *gate, void *up,
                       linear of[MOST_PRODUCTS]) {
    const decoder *d = c->d;
    const decoder_linears *p = c->p;
    if (half == DECODER_FEED) {
        of[0] = linear_of(&p->up, DECODER_UP_W, DECODER_UP_B, up, d->hidden);
        of[1] = linear_of(&p->up, DECODER_GATE_W, -1, gate, d->hidden);
        return d->gated ? 2 : 1;
    }
    of[0] = linear_of(&p->q, DECODER_Q_W, DECODER_Q_B, heads, d->behind ? d->q_width : d->qkv_width);
    of[1] = linear_of(&p->k, DECODER_K_W, DECODER_K_B, decoder_at(d, heads, decoder_k(d, c->rows).at), d->kv_width);
    of[2] = linear_of(&p->v, DECODER_V_W, DECODER_V_B, decoder_at(d, qkv, decoder_v(d, c->rows).at), d->kv_width);
    return d->behind ? 3 : 1;
}

/* y = x · w^T + b, plus the adapter's result. */
static tess_status product_of(const decoder_chunk *c, const linear *l, const void *x, char *scratch) {
    OPS_TRY(multiply(c, l->l, l->l->forward, x_of(l, x), w_of(l, decoder_matrix(c, l->l, l->w, scratch)),
                     decoder_weight(c, l->b), l->y, scratch));
    return decoder_adapt(c, l->l, l->w, x, l->y, scratch);
}

static tess_status project(decoder_chunk *c, int half) {
    linear of[MOST_PRODUCTS];
    int n = products_of(c, half, c->d->head_norms ? c->k.heads : c->k.qkv, c->k.qkv, c->k.gate, c->k.up, of);
    char *scratch = half == DECODER_ATTENTION ? c->z.late : c->z.inner;
    take_scales(c, of, n, c->z.normal, 0);
    for (int i = 0; i < n; i++)
        OPS_TRY(product_of(c, &of[i], c->z.normal, scratch));
    return TESS_OK;
}

static decoder_attention_scratch attention_scratch(const decoder_chunk *c) {
    return (decoder_attention_scratch){ c->z.up, up_bytes(c->d, c->l->part), c->z.inner };
}

static tess_status attend(decoder_chunk *c) {
    const decoder *d = c->d;
    const decoder_sight *sight = decoder_sight_of(c->l);
    decoder_attention_scratch scratch = attention_scratch(c);
    normalise_heads(c);
    if (decoder_one_position(d, c->call))
        return decoder_sequence_attend(c);
    decoder_rope(d, sight, c->k.qkv, d->chunk_samples, 0);
    return decoder_attention(d, sight, d->chunk_samples, decoder_packed(d, c->call, c->first), c->k.qkv, c->k.attended,
                             c->k.lse, &scratch);
}

/* y = beside + dropout(x · w^T + b). */
static tess_status add_linear(const decoder_chunk *c, int half, linear *l, const void *x, const void *beside) {
    int64_t elems = c->rows * c->d->width;
    take_scales(c, l, 1, x, 0);
    if (drops(c)) {
        OPS_TRY(product_of(c, l, x, c->z.early));
        drop(c, half, l->y);
        decoder_add(c->d, beside, l->y, elems);
        return TESS_OK;
    }
    memcpy(l->y, beside, (size_t)elems * c->d->elem);
    OPS_TRY(multiply(c, l->l, l->l->forward_add, x_of(l, x), w_of(l, decoder_matrix(c, l->l, l->w, c->z.early)),
                     decoder_weight(c, l->b), l->y, c->z.early));
    return decoder_adapt(c, l->l, l->w, x, l->y, c->z.early);
}

/* Computes the last product of a half, whose result is then normalised. */
static tess_status make_after(const decoder_chunk *c, int half) {
    int is_feed = half == DECODER_FEED;
    linear l = is_feed ? linear_of(&c->p->down, DECODER_DOWN_W, DECODER_DOWN_B, c->k.after2, c->d->width)
                       : linear_of(&c->p->out, DECODER_O_W, DECODER_O_B, c->k.after1, c->d->width);
    const void *x = is_feed ? c->z.wide : c->k.attended;
    take_scales(c, &l, 1, x, 0);
    return product_of(c, &l, x, c->z.early);
}

/* Writes after2 and its statistics. The normalised rows themselves are not needed. */
static tess_status remake_after(decoder_chunk *c) {
    const decoder_norm_of of = after_of(c, DECODER_FEED);
    OPS_TRY(make_after(c, DECODER_FEED));
    decoder_norm(c->d, &of, c->z.normal);
    return TESS_OK;
}

/* y = beside + the half's normalised result. */
static tess_status add_after(const decoder_chunk *c, int half, const void *beside, void *y) {
    const decoder_norm_of of = after_of(c, half);
    OPS_TRY(make_after(c, half));
    decoder_norm(c->d, &of, y);
    decoder_add(c->d, beside, y, c->rows * c->d->width);
    return TESS_OK;
}

static tess_status join(decoder_chunk *c, int half) {
    if (c->d->after_norms)
        return half == DECODER_ATTENTION ? add_after(c, half, decoder_rows_of(c, c->call->input), c->k.middle)
                                         : add_after(c, half, c->k.middle, decoder_rows_of(c, c->call->output));
    linear out = linear_of(&c->p->out, DECODER_O_W, DECODER_O_B, c->k.middle, c->d->width);
    if (half == DECODER_ATTENTION)
        return add_linear(c, half, &out, c->k.attended, decoder_rows_of(c, c->call->input));
    linear down =
        linear_of(&c->p->down, DECODER_DOWN_W, DECODER_DOWN_B, decoder_rows_of(c, c->call->output), c->d->width);
    return add_linear(c, half, &down, c->z.wide, c->k.middle);
}

static tess_status activate(decoder_chunk *c) {
    decoder_act(c->d, c->k.gate, c->k.up, c->z.wide, c->rows * c->d->hidden);
    return TESS_OK;
}

/* ---- backward --------------------------------------------------------------------------------------- */
static float *sum(const decoder_chunk *c, int place, int64_t elems);

/* Returns `dy` after the backward of the half's dropout or of the normalisation of its result. Without either it is
 * `dy` itself, otherwise `dropped`. */
static void *undrop(const decoder_chunk *c, int half, void *dy) {
    const decoder_norm_of of = after_of(c, half);
    if (c->d->after_norms) {
        decoder_norm_backward(c->d, &of, dy, NULL, c->z.dropped,
                              sum(c, half == DECODER_FEED ? DECODER_AFTER2_W : DECODER_AFTER1_W, c->d->width), NULL);
        return c->z.dropped;
    }
    if (c->d->m->options.dropout <= 0)
        return dy;
    memcpy(c->z.dropped, dy, (size_t)(c->rows * c->d->width) * c->d->elem);
    drop(c, half, c->z.dropped);
    return c->z.dropped;
}

/* Returns the gradient of a parameter whose kernels only add. */
static float *sum(const decoder_chunk *c, int place, int64_t elems) {
    return decoder_sum(c->d, decoder_grad(c, place), elems, c->first);
}

/* dw += dy^T x, db += the sum of dy. */
static tess_status weights_backward(const decoder_chunk *c, const linear *of, const void *x, char *scratch) {
    float *dw = decoder_grad(c, of->w);
    ops_matmul *by = decoder_stores(c->d, c->first) ? of->l->dw : of->l->dw_add;
    decoder_bias_backward(c->d, of->y, sum(c, of->b, of->width), c->rows, of->width);
    OPS_TRY(decoder_adapt_weights(c, of->l, of->w, x, of->y, scratch));
    return dw ? multiply(c, of->l, by, slopes_of(of), x_of(of, x), NULL, dw, scratch) : TESS_OK;
}

/* dx = dy · w; with `adds`, dx += that. */
static tess_status input_backward(const decoder_chunk *c, const linear *of, int adds, void *dx, char *scratch) {
    OPS_TRY(multiply(c, of->l, adds ? of->l->dx_add : of->l->dx, slopes_of(of),
                     w_of(of, decoder_matrix(c, of->l, of->w, scratch)), NULL, dx, scratch));
    return decoder_adapt_input(c, of->l, of->w, of->y, dx, scratch);
}

/* Computes the gradients of n products that share one x: first of their weights, then of x, which overwrites x. */
static tess_status products_backward(const decoder_chunk *c, linear *of, int n, void *x_dx, char *scratch) {
    take_scales(c, of, n, x_dx, 1);
    for (int i = 0; i < n; i++)
        OPS_TRY(weights_backward(c, &of[i], x_dx, scratch));
    for (int i = 0; i < n; i++)
        OPS_TRY(input_backward(c, &of[i], i > 0, x_dx, scratch));
    return TESS_OK;
}

/* The gradient of the gate overwrites the gate; that of `up` overwrites the activation's result. */
static tess_status activate_backward(decoder_chunk *c) {
    int64_t elems = c->rows * c->d->hidden;
    linear down = linear_of(&c->p->down, DECODER_DOWN_W, DECODER_DOWN_B,
                            undrop(c, DECODER_FEED, decoder_rows_of(c, c->call->grad_output)), c->d->width);
    decoder_act(c->d, c->k.gate, c->k.up, c->z.wide, elems);
    OPS_TRY(products_backward(c, &down, 1, c->z.wide, c->z.early));
    decoder_act_backward(c->d, c->k.gate, c->k.up, c->z.wide, c->k.gate, elems);
    return TESS_OK;
}

/* Returns the gradient of a half's output. In a whole layer the feed-forward half writes the gradient of the rows
 * between the halves into grad_input. */
static void *dy_of(const decoder_chunk *c, int half) {
    int is_between = half == DECODER_ATTENTION && c->l->part == DECODER_WHOLE;
    return decoder_rows_of(c, is_between ? c->call->grad_input : c->call->grad_output);
}

/* Replaces the gradients of normalised queries and keys in `dqkv` by those of their inputs. */
static void heads_backward(const decoder_chunk *c, void *dqkv) {
    for (int which = 0; which < 2 && c->d->head_norms; which++) {
        decoder_part at;
        const decoder_norm_of of = heads_of(c, which, &at);
        void *dx = decoder_at(c->d, dqkv, at.at);
        decoder_norm_backward(c->d, &of, dx, NULL, dx,
                              sum(c, which ? DECODER_KEY_NORM_W : DECODER_QUERY_NORM_W, of.width), NULL);
    }
}

static tess_status attend_backward(decoder_chunk *c) {
    const decoder *d = c->d;
    const decoder_sight *sight = decoder_sight_of(c->l);
    linear out = linear_of(&c->p->out, DECODER_O_W, DECODER_O_B,
                           undrop(c, DECODER_ATTENTION, dy_of(c, DECODER_ATTENTION)), d->width);
    decoder_attention_scratch scratch = attention_scratch(c);
    take_scales(c, &out, 1, c->k.attended, 1);
    OPS_TRY(weights_backward(c, &out, c->k.attended, c->z.late));
    OPS_TRY(input_backward(c, &out, 0, c->z.normal, c->z.late));
    OPS_TRY(decoder_attention_backward(d, sight, d->chunk_samples, decoder_packed(d, c->call, c->first), c->k.qkv,
                                       c->k.attended, c->k.lse, c->z.normal, c->z.wide, &scratch));
    decoder_rope(d, sight, c->z.wide, d->chunk_samples, 1);
    heads_backward(c, c->z.wide);
    return TESS_OK;
}

static tess_status norm_backward(const decoder_chunk *c, int half) {
    const decoder_norm_of of = norm_of(c, half);
    int is_feed = half == DECODER_FEED, w = is_feed ? DECODER_NORM2_W : DECODER_NORM1_W,
        b = is_feed ? DECODER_NORM2_B : DECODER_NORM1_B;
    decoder_norm_backward(c->d, &of, c->z.normal, dy_of(c, half), decoder_rows_of(c, c->call->grad_input),
                          sum(c, w, c->d->width), sum(c, b, c->d->width));
    return TESS_OK;
}

static tess_status project_backward(decoder_chunk *c, int half) {
    linear of[MOST_PRODUCTS];
    int n = products_of(c, half, c->z.wide, c->z.wide, c->k.gate, c->z.wide, of);
    OPS_TRY(normalise(c, half));
    OPS_TRY(products_backward(c, of, n, c->z.normal, c->z.late));
    return norm_backward(c, half);
}

const decoder_operators decoder_on_host = {
    .bytes = sizeof(decoder),
    .flags = TESS_BLOCK_DROP_OUTPUT | TESS_BLOCK_GRAD_IN_PLACE,
    .remakes = 1,
    .create = decoder_host_create,
    .destroy = decoder_host_destroy,
    .measure_embed = decoder_host_embed,
    .measure_head = decoder_host_head,
    .forward_need = forward_need,
    .backward_need = backward_need,
    .place_rooms = place_rooms,
    .position = decoder_sequence_chunk,
    .norm = normalise,
    .project = project,
    .attend = attend,
    .join = join,
    .activate = activate,
    .remake_after = remake_after,
    .activate_backward = activate_backward,
    .attend_backward = attend_backward,
    .project_backward = project_backward,
    .sequence_begin = decoder_sequence_begin,
    .sequence_end = decoder_sequence_end,
};
