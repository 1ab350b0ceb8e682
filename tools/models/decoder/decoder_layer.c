/* SPDX-License-Identifier: BSD-3-Clause */
/* A layer or half of one, forward and backward, by chunks of whole samples. What is cheap to make again (normalised
 * rows, the activation's result, attention's probabilities) is not saved. */
#include "decoder.h"

#include <string.h>

typedef struct { /* from forward to backward, of one chunk */
    void *qkv, *attended, *middle /* the input plus what attention adds */, *gate, *up;
    float *stats1, *stats2, *lse;
} kept;

static void *take(char **at, const decoder *d, int64_t rows, int64_t width, int64_t first) {
    char *p = decoder_cut(at, decoder_bytes(d, rows, width));
    return decoder_at(d, p, first * width);
}

static float *take_floats(char **at, int64_t elems, int64_t first) {
    float *p = decoder_cut(at, (uint64_t)elems * sizeof(float));
    return p + first;
}

/* A region holds `rows` rows of each; the chunk begins with row `first` of them. */
static void attention_at(const decoder *d, char **region, int64_t rows, int64_t first, kept *k) {
    k->qkv = take(region, d, rows, d->qkv_width, first);
    k->attended = take(region, d, rows, d->q_width, first);
    k->stats1 = take_floats(region, 2 * rows, 2 * first);
    k->lse = take_floats(region, rows * d->heads, first * d->heads);
}

static void middle_at(const decoder *d, char **region, int64_t rows, int64_t first, kept *k) {
    k->middle = take(region, d, rows, d->width, first);
}

static void stats2_at(char **region, int64_t rows, int64_t first, kept *k) {
    k->stats2 = take_floats(region, 2 * rows, 2 * first);
}

/* The first products of the feed-forward half, more than half of it all. */
static void feed_at(const decoder *d, char **region, int64_t rows, int64_t first, kept *k) {
    k->gate = d->gated ? take(region, d, rows, d->hidden, first) : NULL;
    k->up = take(region, d, rows, d->hidden, first);
}

/* The same of a chunk of which nothing is saved. The half behind the other finds the rows between them in its input. */
static kept kept_at(const decoder *d, int part, char **region) {
    kept k = { 0 };
    if (part != DECODER_FEED)
        attention_at(d, region, d->chunk_rows, 0, &k);
    if (part == DECODER_WHOLE)
        middle_at(d, region, d->chunk_rows, 0, &k);
    if (part == DECODER_ATTENTION)
        return k;
    stats2_at(region, d->chunk_rows, 0, &k);
    feed_at(d, region, d->chunk_rows, 0, &k);
    return k;
}

/* In bf16 backward makes the rows between the halves again, by the smallest of a layer's products. In fp32, where
 * products are most of a step, they are saved. */
static int remakes_middle(const decoder *d, int part) {
    return d->half && part == DECODER_WHOLE;
}

/* Saved values lie in the whole layer's `saved`, the rest of the chunk in `own`. */
static kept saved_at(const decoder *d, int part, int selective, int64_t first, char **saved, char **own) {
    kept k = { 0 };
    if (part != DECODER_FEED)
        attention_at(d, saved, d->rows, first, &k);
    if (remakes_middle(d, part))
        middle_at(d, own, d->chunk_rows, 0, &k);
    else if (part == DECODER_WHOLE)
        middle_at(d, saved, d->rows, first, &k);
    if (part == DECODER_ATTENTION)
        return k;
    stats2_at(saved, d->rows, first, &k);
    if (selective)
        feed_at(d, own, d->chunk_rows, 0, &k);
    else
        feed_at(d, saved, d->rows, first, &k);
    return k;
}

/* A forward that saves nothing: the feed-forward half lies where attention's values were, on which nothing depends
 * any more. */
static kept transient_at(const decoder *d, int part, char **region) {
    int64_t rows = d->chunk_rows;
    char *feed = *region;
    if (part != DECODER_WHOLE)
        return kept_at(d, part, region);
    kept k = { .qkv = take(region, d, rows, d->qkv_width, 0), .attended = take(region, d, rows, d->q_width, 0) };
    feed_at(d, &feed, rows, 0, &k);
    *region = feed > *region ? feed : *region;
    k.middle = take(region, d, rows, d->width, 0);
    k.stats1 = k.stats2 = take_floats(region, 2 * rows, 0);
    k.lse = take_floats(region, rows * d->heads, 0);
    return k;
}

static uint64_t transient_bytes(const decoder *d, int part) {
    char *at = NULL;
    transient_at(d, part, &at);
    return (uint64_t)(uintptr_t)at;
}

uint64_t decoder_layer_saved(const decoder *d, int part, int selective) {
    char *saved = NULL, *own = NULL;
    saved_at(d, part, selective, 0, &saved, &own);
    return (uint64_t)(uintptr_t)saved;
}

uint64_t decoder_layer_unsaved(const decoder *d, int part, int selective) {
    char *saved = NULL, *own = NULL;
    saved_at(d, part, selective, 0, &saved, &own);
    return (uint64_t)(uintptr_t)own;
}

uint64_t decoder_layer_kept(const decoder *d, int part) {
    char *at = NULL;
    kept_at(d, part, &at);
    return (uint64_t)(uintptr_t)at;
}

static int64_t wider(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static uint64_t most(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static uint64_t linear_bytes(const decoder_linear *l) {
    return most(l->forward_bytes, l->backward_bytes);
}

/* The attention half multiplies in this much scratch. */
static uint64_t project_bytes(const decoder *d) {
    uint64_t qkv = most(linear_bytes(&d->q), most(linear_bytes(&d->k), linear_bytes(&d->v)));
    return most(qkv, linear_bytes(&d->out));
}

uint64_t decoder_layer_forward_scratch(const decoder *d, int part) {
    uint64_t attention = most(project_bytes(d), d->attention_bytes),
             feed = most(d->up.forward_bytes, d->down.forward_bytes);
    return decoder_bytes(d, d->chunk_rows, d->width) + transient_bytes(d, part) +
           most(part == DECODER_FEED ? 0 : attention, part == DECODER_ATTENTION ? 0 : feed);
}

/* In backward some operators work where the chunk's `up` lies, before it is made or when it is done with. The next
 * chunk's begins right behind: 0 where that is not aligned. */
static uint64_t up_bytes(const decoder *d, int part) {
    uint64_t bytes = (uint64_t)(d->chunk_rows * d->hidden) * d->elem;
    return part != DECODER_ATTENTION && bytes == ops_align(bytes) ? bytes : 0;
}

/* Those are, if there is room: the attention half's, and the backward of the first products of the other. */
static uint64_t late_bytes(const decoder *d, int part) {
    return most(part == DECODER_FEED ? 0 : project_bytes(d), part == DECODER_ATTENTION ? 0 : d->up.backward_bytes);
}

static int is_late_in_up(const decoder *d, int part) {
    return late_bytes(d, part) <= up_bytes(d, part);
}

typedef struct { /* of one chunk in backward */
    char *wide, *narrow, *dropped, *inner;
} rooms;

/* The last two: operators that do not need `narrow` have it as scratch, too. */
static rooms rooms_at(const decoder *d, int part, char **at) {
    int drops = d->m->options.dropout > 0;
    int64_t feed = part == DECODER_ATTENTION ? 0 : d->hidden, attention = part == DECODER_FEED ? 0 : d->qkv_width;
    rooms z;
    z.wide = decoder_cut(at, decoder_bytes(d, d->chunk_rows, wider(feed, attention)));
    z.dropped = drops ? decoder_cut(at, decoder_bytes(d, d->chunk_rows, d->width)) : NULL;
    z.narrow = decoder_cut(at, decoder_bytes(d, d->chunk_rows, wider(d->width, attention ? d->q_width : 0)));
    z.inner = *at;
    return z;
}

/* Operators' scratch behind `narrow`. */
static uint64_t inner_bytes(const decoder *d, int part) {
    uint64_t late = is_late_in_up(d, part) ? 0 : late_bytes(d, part);
    uint64_t attention = part == DECODER_FEED ? 0 : decoder_attention_rest(d, up_bytes(d, part));
    return most(most(late, attention), part == DECODER_ATTENTION ? 0 : d->up.forward_bytes);
}

/* And of those that have `narrow`. */
static uint64_t early_bytes(const decoder *d, int part) {
    uint64_t middle = part == DECODER_WHOLE ? d->out.forward_bytes : 0;
    return most(middle, part == DECODER_ATTENTION ? 0 : d->down.backward_bytes);
}

uint64_t decoder_layer_backward_scratch(const decoder *d, int part) {
    char *at = NULL;
    rooms z = rooms_at(d, part, &at);
    return most((uint64_t)(uintptr_t)at + inner_bytes(d, part), (uint64_t)(uintptr_t)z.narrow + early_bytes(d, part));
}

/* ---- a chunk ---------------------------------------------------------------------------------------- */
typedef struct {
    const decoder *d;
    const decoder_layer *l;
    const tess_block_call *call;
    int64_t first; /* row */
    char *inner;   /* scratch of operators */
    char *early;   /* of those that run while `narrow` is free */
    char *late;    /* of those that run while `up` is free */
    char *up;      /* where attention may work instead; null: nowhere */
} chunk;

static const void *param(const chunk *c, int place) {
    int32_t at = place < 0 ? -1 : c->d->at[place];
    return at < 0 ? NULL : c->call->params[at - c->l->first];
}

static float *grad(const chunk *c, int place) {
    int32_t at = place < 0 ? -1 : c->d->at[place];
    return at < 0 ? NULL : c->call->grads[at - c->l->first];
}

/* The chunk's rows of a tensor as wide as the layer. */
static void *rows_of_chunk(const chunk *c, const void *x) {
    return decoder_at(c->d, x, c->first * c->d->width);
}

static chunk with_scratch(const chunk *c, char *inner) {
    chunk other = *c;
    other.inner = inner;
    return other;
}

static tess_status multiply(const chunk *c, ops_matmul *m, const void *a, const void *b, const void *bias, void *y) {
    return c->d->o->t->matmul(m, a, b, bias, y, c->inner);
}

/* Two masks per layer, after those of the embedding. */
static void drop(const chunk *c, uint32_t half, void *x) {
    const decoder *d = c->d;
    ops_dropout p = model__dropout(d->m, c->call, 1 + 2 * (uint32_t)c->l->index + half, d->m->options.dropout);
    p.first_sample += (uint64_t)(c->first / d->time);
    decoder_dropout(d, x, d->chunk_samples, d->time * d->width, &p);
}

/* y = beside + x · w^T + b, the second half of the sum dropped out. */
static tess_status add_linear(const chunk *c, const decoder_linear *l, uint32_t half, const void *x, int w, int b,
                              const void *beside, void *y) {
    int64_t elems = c->d->chunk_rows * c->d->width;
    if (c->d->m->options.dropout > 0) {
        OPS_TRY(multiply(c, l->forward, x, param(c, w), param(c, b), y));
        drop(c, half, y);
        decoder_add(c->d, beside, y, elems);
        return TESS_OK;
    }
    memcpy(y, beside, (size_t)elems * c->d->elem);
    return multiply(c, l->forward_add, x, param(c, w), param(c, b), y);
}

/* ---- forward ---------------------------------------------------------------------------------------- */
static tess_status project(const chunk *c, const void *normal, void *qkv) {
    const decoder *d = c->d;
    OPS_TRY(multiply(c, d->q.forward, normal, param(c, DECODER_Q_W), param(c, DECODER_Q_B), qkv));
    if (!d->behind)
        return TESS_OK;
    void *k = decoder_at(d, qkv, decoder_k(d, d->chunk_rows).at),
         *v = decoder_at(d, qkv, decoder_v(d, d->chunk_rows).at);
    OPS_TRY(multiply(c, d->k.forward, normal, param(c, DECODER_K_W), NULL, k));
    OPS_TRY(multiply(c, d->v.forward, normal, param(c, DECODER_V_W), NULL, v));
    decoder_rope(d, qkv, d->chunk_samples, 0);
    return TESS_OK;
}

/* From the rows between the halves to the first products of the second. */
static tess_status make_feed(const chunk *c, const kept *k, void *normal) {
    const decoder *d = c->d;
    decoder_norm(d, k->middle, param(c, DECODER_NORM2_W), param(c, DECODER_NORM2_B), normal, k->stats2, d->chunk_rows);
    if (d->gated)
        OPS_TRY(multiply(c, d->up.forward, normal, param(c, DECODER_GATE_W), NULL, k->gate));
    return multiply(c, d->up.forward, normal, param(c, DECODER_UP_W), param(c, DECODER_UP_B), k->up);
}

static decoder_attention_scratch attention_scratch(const chunk *c) {
    return (decoder_attention_scratch){ c->up, up_bytes(c->d, c->l->part), c->inner };
}

static tess_status make_middle(const chunk *c, const kept *k) {
    const void *x = rows_of_chunk(c, c->call->input);
    return add_linear(c, &c->d->out, 0, k->attended, DECODER_O_W, DECODER_O_B, x, k->middle);
}

static tess_status make_attention(const chunk *c, const kept *k, void *normal) {
    const decoder *d = c->d;
    const void *x = rows_of_chunk(c, c->call->input);
    decoder_attention_scratch scratch = attention_scratch(c);
    chunk late = with_scratch(c, c->late);
    decoder_norm(d, x, param(c, DECODER_NORM1_W), param(c, DECODER_NORM1_B), normal, k->stats1, d->chunk_rows);
    OPS_TRY(project(&late, normal, k->qkv));
    return decoder_attention(d, d->chunk_samples, k->qkv, k->attended, k->lse, &scratch);
}

/* Makes what backward needs of a chunk and was not saved. */
static tess_status make_unsaved(const chunk *c, const kept *k, void *normal) {
    int part = c->l->part, all = !c->call->saved;
    chunk early = with_scratch(c, c->early);
    if (all && part != DECODER_FEED)
        OPS_TRY(make_attention(c, k, normal));
    if (part == DECODER_WHOLE && (all || remakes_middle(c->d, part)))
        OPS_TRY(make_middle(&early, k));
    return part != DECODER_ATTENTION && (all || c->call->selective) ? make_feed(c, k, normal) : TESS_OK;
}

/* The activation's result replaces the first products, unless backward reads them. */
static tess_status chunk_forward(const chunk *c, const kept *k, void *normal, void *wide) {
    const decoder *d = c->d;
    if (c->l->part != DECODER_FEED) {
        OPS_TRY(make_attention(c, k, normal));
        OPS_TRY(make_middle(c, k));
    }
    if (c->l->part == DECODER_ATTENTION)
        return TESS_OK;
    OPS_TRY(make_feed(c, k, normal));
    decoder_act(d, k->gate, k->up, wide, d->chunk_rows * d->hidden);
    return add_linear(c, &d->down, 1, wide, DECODER_DOWN_W, DECODER_DOWN_B, k->middle,
                      rows_of_chunk(c, c->call->output));
}

/* The first half hands the rows between them to the second. */
static void find_middle(const chunk *c, kept *k) {
    if (c->l->part == DECODER_FEED)
        k->middle = rows_of_chunk(c, c->call->input);
    if (c->l->part == DECODER_ATTENTION)
        k->middle = rows_of_chunk(c, c->call->output);
}

tess_status decoder_layer_forward(void *layer, const tess_block_call *call) {
    const decoder_layer *l = layer;
    const decoder *d = l->d;
    if (decoder_one_position(d, call))
        return decoder_sequence_layer(d->sequence, l, call);
    char *at = call->scratch;
    void *normal = decoder_cut(&at, decoder_bytes(d, d->chunk_rows, d->width));
    for (int64_t first = 0; first < d->rows; first += d->chunk_rows) {
        char *own = at, *saved = call->saved;
        kept k = saved ? saved_at(d, l->part, call->selective, first, &saved, &own) : transient_at(d, l->part, &own);
        char *inner = at + transient_bytes(d, l->part);
        chunk c = { d, l, call, first, inner, inner, inner, NULL };
        find_middle(&c, &k);
        OPS_TRY(chunk_forward(&c, &k, normal, call->saved && !call->selective ? own : k.up));
    }
    return TESS_OK;
}

/* ---- backward --------------------------------------------------------------------------------------- */
/* `dy` behind the dropout of a half: itself, or masked in `room`. */
static const void *undrop(const chunk *c, uint32_t half, const void *dy, void *room) {
    if (c->d->m->options.dropout <= 0)
        return dy;
    memcpy(room, dy, (size_t)(c->d->chunk_rows * c->d->width) * c->d->elem);
    drop(c, half, room);
    return room;
}

typedef struct { /* y = x · w^T + b in backward */
    const decoder_linear *l;
    int w, b;
    const void *dy;
    int64_t width;
} linear;

/* dw += dy^T x, db += the sum of dy. */
static tess_status weights_backward(const chunk *c, const linear *of, const void *x) {
    decoder_bias_backward(c->d, of->dy, grad(c, of->b), c->d->chunk_rows, of->width);
    return grad(c, of->w) ? multiply(c, of->l->dw, of->dy, x, NULL, grad(c, of->w)) : TESS_OK;
}

/* The gradients of n products of one x: those of their weights, and then x's own, in x's place. */
static tess_status products_backward(const chunk *c, const linear *of, int n, void *x_dx) {
    for (int i = 0; i < n; i++)
        OPS_TRY(weights_backward(c, &of[i], x_dx));
    for (int i = 0; i < n; i++)
        OPS_TRY(multiply(c, i ? of[i].l->dx_add : of[i].l->dx, of[i].dy, param(c, of[i].w), NULL, x_dx));
    return TESS_OK;
}

/* The chunk's rows of the input's gradient, which in a whole layer hold that of the rows between the halves first. */
static void *dx_of(const chunk *c) {
    return rows_of_chunk(c, c->call->grad_input);
}

/* From the chunk's dy to that of the rows between the halves. The gradient of the gate takes the gate's place. */
static tess_status feed_backward(const chunk *c, const kept *k, const rooms *z) {
    const decoder *d = c->d;
    int64_t n = d->chunk_rows, h = d->hidden;
    const void *dy = rows_of_chunk(c, c->call->grad_output);
    const linear down = { &d->down, DECODER_DOWN_W, DECODER_DOWN_B, undrop(c, 1, dy, z->dropped), d->width };
    const linear rise[] = { { &d->up, DECODER_UP_W, DECODER_UP_B, z->wide, h },
                            { &d->up, DECODER_GATE_W, -1, k->gate, h } };
    chunk early = with_scratch(c, c->early), late = with_scratch(c, c->late);
    decoder_act(d, k->gate, k->up, z->wide, n * h);
    OPS_TRY(products_backward(&early, &down, 1, z->wide));
    decoder_act_backward(d, k->gate, k->up, z->wide, k->gate, n * h);
    decoder_norm(d, k->middle, param(c, DECODER_NORM2_W), param(c, DECODER_NORM2_B), z->narrow, k->stats2, n);
    OPS_TRY(products_backward(&late, rise, d->gated ? 2 : 1, z->narrow));
    decoder_norm_backward(d, k->middle, param(c, DECODER_NORM2_W), k->stats2, z->narrow, dy, dx_of(c),
                          grad(c, DECODER_NORM2_W), grad(c, DECODER_NORM2_B), n);
    return TESS_OK;
}

/* From the gradient of queries, keys and values to that of the normalised rows, in their place. */
static tess_status project_backward(const chunk *c, char *dqkv, void *normal) {
    const decoder *d = c->d;
    char *dk = decoder_at(d, dqkv, decoder_k(d, d->chunk_rows).at),
         *dv = decoder_at(d, dqkv, decoder_v(d, d->chunk_rows).at);
    const linear of[] = { { &d->q, DECODER_Q_W, DECODER_Q_B, dqkv, d->behind ? d->q_width : d->qkv_width },
                          { &d->k, DECODER_K_W, -1, dk, d->kv_width },
                          { &d->v, DECODER_V_W, -1, dv, d->kv_width } };
    decoder_rope(d, dqkv, d->chunk_samples, 1);
    return products_backward(c, of, d->behind ? 3 : 1, normal);
}

/* From there to the gradient of the chunk's input. */
static tess_status attention_backward(const chunk *c, const kept *k, const rooms *z) {
    const decoder *d = c->d;
    int64_t n = d->chunk_rows;
    const void *x = rows_of_chunk(c, c->call->input);
    const void *dy = c->l->part == DECODER_WHOLE ? dx_of(c) : rows_of_chunk(c, c->call->grad_output);
    const linear out = { &d->out, DECODER_O_W, DECODER_O_B, undrop(c, 0, dy, z->dropped), d->width };
    decoder_attention_scratch scratch = attention_scratch(c);
    chunk late = with_scratch(c, c->late);
    OPS_TRY(weights_backward(&late, &out, k->attended));
    OPS_TRY(multiply(&late, d->out.dx, out.dy, param(c, DECODER_O_W), NULL, z->narrow));
    OPS_TRY(decoder_attention_backward(d, d->chunk_samples, k->qkv, k->attended, k->lse, z->narrow, z->wide, &scratch));
    decoder_norm(d, x, param(c, DECODER_NORM1_W), param(c, DECODER_NORM1_B), z->narrow, k->stats1, n);
    OPS_TRY(project_backward(&late, z->wide, z->narrow));
    decoder_norm_backward(d, x, param(c, DECODER_NORM1_W), k->stats1, z->narrow, dy, dx_of(c), grad(c, DECODER_NORM1_W),
                          grad(c, DECODER_NORM1_B), n);
    return TESS_OK;
}

tess_status decoder_layer_backward(void *layer, const tess_block_call *call) {
    const decoder_layer *l = layer;
    const decoder *d = l->d;
    for (int64_t first = 0; first < d->rows; first += d->chunk_rows) {
        char *own = call->scratch, *saved = call->saved;
        kept k = saved ? saved_at(d, l->part, call->selective, first, &saved, &own) : kept_at(d, l->part, &own);
        rooms z = rooms_at(d, l->part, &own);
        chunk c = { d, l, call, first, z.inner, z.narrow, is_late_in_up(d, l->part) ? k.up : z.inner, k.up };
        find_middle(&c, &k);
        OPS_TRY(make_unsaved(&c, &k, z.narrow));
        OPS_TRY(l->part == DECODER_ATTENTION ? TESS_OK : feed_backward(&c, &k, &z));
        OPS_TRY(l->part == DECODER_FEED ? TESS_OK : attention_backward(&c, &k, &z));
    }
    return TESS_OK;
}
