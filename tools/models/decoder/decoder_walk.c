/* SPDX-License-Identifier: BSD-3-Clause */
/* Forward and backward of a layer or half a layer, as calls of the operators in decoder.h. This file determines
 * their order and the places of their tensors. Values that are cheap to compute again (normalised rows, the
 * activation's result, attention's probabilities) are not saved. */
#include "decoder.h"

/* ---- places of tensors --------------------------------------------------------------------------------------- */
static void *take(char **at, const decoder *d, int64_t rows, int64_t width, int64_t first) {
    char *p = decoder_cut(at, decoder_bytes(d, rows, width));
    return decoder_at(d, p, first * width);
}

static float *take_floats(char **at, int64_t elems, int64_t first) {
    float *p = decoder_cut(at, (uint64_t)elems * sizeof(float));
    return p + first;
}

/* Places a half's result before its normalisation. */
static void after_at(const decoder *d, char **region, int64_t rows, int64_t first, void **after, float **stats) {
    if (!d->after_norms)
        return;
    *after = take(region, d, rows, d->width, first);
    *stats = take_floats(region, 2 * rows, 2 * first);
}

static void heads_at(const decoder *d, char **region, int64_t rows, int64_t first, decoder_kept *k) {
    int64_t heads = d->heads + d->kv_heads;
    if (!d->head_norms)
        return;
    k->heads = take(region, d, rows, d->q_width + d->kv_width, first);
    k->head_stats = take_floats(region, 2 * rows * heads, 2 * first * heads);
}

/* A region holds `rows` rows of each tensor; the chunk begins with its row `first`. */
static void attention_at(const decoder *d, char **region, int64_t rows, int64_t first, decoder_kept *k) {
    k->qkv = take(region, d, rows, d->qkv_width, first);
    k->attended = take(region, d, rows, d->q_width, first);
    k->stats1 = take_floats(region, 2 * rows, 2 * first);
    k->lse = take_floats(region, rows * d->heads, first * d->heads);
    k->turned = d->turned_bytes ? decoder_cut(region, d->turned_bytes) : NULL;
    heads_at(d, region, rows, first, k);
    after_at(d, region, rows, first, &k->after1, &k->after1_stats);
}

static void middle_at(const decoder *d, char **region, int64_t rows, int64_t first, decoder_kept *k) {
    k->middle = take(region, d, rows, d->width, first);
}

static void stats2_at(const decoder *d, char **region, int64_t rows, int64_t first, decoder_kept *k) {
    k->stats2 = take_floats(region, 2 * rows, 2 * first);
    after_at(d, region, rows, first, &k->after2, &k->after2_stats);
}

/* Places the first products of the feed-forward half, which make about half of a layer's values. */
static void feed_at(const decoder *d, char **region, int64_t rows, int64_t first, decoder_kept *k) {
    if (d->gated && d->beside) {
        k->gate = take(region, d, rows, 2 * d->hidden, first);
        k->up = decoder_at(d, k->gate, d->hidden);
        return;
    }
    k->gate = d->gated ? take(region, d, rows, d->hidden, first) : NULL;
    k->up = take(region, d, rows, d->hidden, first);
}

/* Places a chunk's values if none are saved. The feed-forward half finds the rows between the halves in its input. */
static decoder_kept kept_at(const decoder *d, int part, char **region) {
    decoder_kept k = { 0 };
    if (part != DECODER_FEED)
        attention_at(d, region, d->chunk_rows, 0, &k);
    if (part == DECODER_WHOLE)
        middle_at(d, region, d->chunk_rows, 0, &k);
    if (part == DECODER_ATTENTION)
        return k;
    stats2_at(d, region, d->chunk_rows, 0, &k);
    feed_at(d, region, d->chunk_rows, 0, &k);
    return k;
}

/* In bf16 backward recomputes the rows between the halves, which takes the smallest of a layer's products. In fp32,
 * where products are most of a step, they are saved. */
static int remakes_middle(const decoder *d, int part) {
    return d->t->remakes && d->half && part == DECODER_WHOLE && !d->after_norms;
}

/* Saved values lie in the whole layer's `saved`, the chunk's other values in `own`. */
static decoder_kept saved_at(const decoder *d, int part, int selective, int64_t first, char **saved, char **own) {
    decoder_kept k = { 0 };
    if (part != DECODER_FEED)
        attention_at(d, saved, d->rows, first, &k);
    if (remakes_middle(d, part))
        middle_at(d, own, d->chunk_rows, 0, &k);
    else if (part == DECODER_WHOLE)
        middle_at(d, saved, d->rows, first, &k);
    if (part == DECODER_ATTENTION)
        return k;
    stats2_at(d, saved, d->rows, first, &k);
    if (selective)
        feed_at(d, own, d->chunk_rows, 0, &k);
    else
        feed_at(d, saved, d->rows, first, &k);
    return k;
}

/* Places values of a forward that saves nothing. The feed-forward half overwrites attention's values, because
 * nothing reads them any more. */
static decoder_kept transient_at(const decoder *d, int part, char **region) {
    int64_t rows = d->chunk_rows;
    char *feed = *region;
    if (part != DECODER_WHOLE)
        return kept_at(d, part, region);
    decoder_kept k = { .qkv = take(region, d, rows, d->qkv_width, 0),
                       .attended = take(region, d, rows, d->q_width, 0) };
    feed_at(d, &feed, rows, 0, &k);
    *region = feed > *region ? feed : *region;
    k.middle = take(region, d, rows, d->width, 0);
    k.stats1 = k.stats2 = take_floats(region, 2 * rows, 0);
    k.lse = take_floats(region, rows * d->heads, 0);
    heads_at(d, region, rows, 0, &k);
    after_at(d, region, rows, 0, &k.after1, &k.after1_stats);
    k.after2 = k.after1, k.after2_stats = k.after1_stats;
    return k;
}

/* The attention half passes the rows between the halves to the feed-forward half. */
static void find_middle(decoder_chunk *c) {
    if (c->l->part == DECODER_FEED)
        c->k.middle = decoder_rows_of(c, c->call->input);
    if (c->l->part == DECODER_ATTENTION)
        c->k.middle = decoder_rows_of(c, c->call->output);
}

static decoder_chunk chunk_at(const decoder_layer *l, const tess_block_call *call, int64_t first) {
    return (decoder_chunk){ .d = l->d, .l = l, .call = call, .p = &l->d->p, .first = first, .rows = l->d->chunk_rows };
}

/* Places a forward's scratch at `at`. The activation's result usually overwrites `up`. It has its own place if
 * backward reads `up`, or if the widths differ. */
static void place_forward(decoder_chunk *c, char **at) {
    const decoder *d = c->d;
    int part = c->l->part, saves = c->call->saved && !c->call->selective;
    c->z.normal = decoder_cut(at, decoder_bytes(d, d->chunk_rows, d->width));
    char *saved = c->call->saved, *own = *at;
    c->k = c->call->saved ? saved_at(d, part, c->call->selective, c->first, &saved, &own) : transient_at(d, part, &own);
    char *behind = *at;
    transient_at(d, part, &behind);
    c->z.wide = saves ? own : c->k.up;
    if (!saves && d->gated && d->beside)
        c->z.wide = behind;
    *at = d->gated && d->beside ? behind + decoder_bytes(d, d->chunk_rows, d->hidden) : behind;
    c->z.inner = c->z.early = c->z.late = *at;
}

static void place_backward(decoder_chunk *c) {
    char *own = c->call->scratch, *saved = c->call->saved;
    int part = c->l->part;
    c->k = saved ? saved_at(c->d, part, c->call->selective, c->first, &saved, &own) : kept_at(c->d, part, &own);
    find_middle(c);
    c->d->t->place_rooms(c, own);
}

/* ---- bytes ---------------------------------------------------------------------------------------------- */
static uint64_t forward_bytes(const decoder *d, int part) {
    const decoder_layer l = { .d = (decoder *)(uintptr_t)d, .part = part };
    const tess_block_call call = { 0 };
    decoder_chunk c = chunk_at(&l, &call, 0);
    char *at = NULL;
    place_forward(&c, &at);
    return (uint64_t)(uintptr_t)at;
}

static uint64_t saved_bytes(const decoder *d, int part, int selective, uint64_t *unsaved) {
    char *saved = NULL, *own = NULL;
    saved_at(d, part, selective, 0, &saved, &own);
    *unsaved = (uint64_t)(uintptr_t)own;
    return (uint64_t)(uintptr_t)saved;
}

static uint64_t kept_bytes(const decoder *d, int part) {
    char *at = NULL;
    kept_at(d, part, &at);
    return (uint64_t)(uintptr_t)at;
}

void decoder_measure_layer(const decoder *d, int part, model_block *b) {
    uint64_t unsaved, scratch = d->t->backward_need(d, part);
    b->flags = d->t->flags;
    b->saved_bytes = saved_bytes(d, part, 0, &unsaved);
    b->forward_scratch_bytes = forward_bytes(d, part) + d->t->forward_need(d, part);
    b->backward_scratch_bytes = scratch + unsaved;
    if (!d->t->remakes)
        return;
    b->remake_scratch_bytes = scratch + kept_bytes(d, part);
    if (part == DECODER_ATTENTION)
        return;
    b->selective_saved_bytes = saved_bytes(d, part, 1, &unsaved);
    b->selective_scratch_bytes = scratch + unsaved;
}

/* ---- forward -------------------------------------------------------------------------------------------------- */
static tess_status make_attention(decoder_chunk *c) {
    const decoder_operators *t = c->d->t;
    OPS_TRY(t->norm(c, DECODER_ATTENTION));
    OPS_TRY(t->project(c, DECODER_ATTENTION));
    return t->attend(c);
}

/* Computes the first products of the feed-forward half from the rows between the halves. */
static tess_status make_feed(decoder_chunk *c) {
    OPS_TRY(c->d->t->norm(c, DECODER_FEED));
    return c->d->t->project(c, DECODER_FEED);
}

static tess_status chunk_forward(decoder_chunk *c) {
    const decoder_operators *t = c->d->t;
    if (c->l->part != DECODER_FEED) {
        OPS_TRY(make_attention(c));
        OPS_TRY(t->join(c, DECODER_ATTENTION));
    }
    if (c->l->part == DECODER_ATTENTION)
        return TESS_OK;
    OPS_TRY(make_feed(c));
    OPS_TRY(t->activate(c));
    return t->join(c, DECODER_FEED);
}

static tess_status position_forward(const decoder_layer *l, const tess_block_call *call) {
    decoder_chunk c = l->d->t->position(l, call);
    find_middle(&c);
    return chunk_forward(&c);
}

tess_status decoder_layer_forward(void *layer, const tess_block_call *call) {
    const decoder_layer *l = layer;
    if (decoder_one_position(l->d, call))
        return position_forward(l, call);
    for (int64_t first = 0; first < l->d->rows; first += l->d->chunk_rows) {
        decoder_chunk c = chunk_at(l, call, first);
        char *at = call->scratch;
        place_forward(&c, &at);
        find_middle(&c);
        OPS_TRY(chunk_forward(&c));
    }
    return TESS_OK;
}

/* ---- backward ------------------------------------------------------------------------------------------------- */
/* Computes those values of a chunk that backward needs and forward did not save. */
static tess_status make_unsaved(decoder_chunk *c) {
    int part = c->l->part, all = !c->call->saved;
    if (all && part != DECODER_FEED)
        OPS_TRY(make_attention(c));
    if (part == DECODER_WHOLE && (all || remakes_middle(c->d, part)))
        OPS_TRY(c->d->t->join(c, DECODER_ATTENTION));
    if (part == DECODER_ATTENTION || !(all || c->call->selective))
        return TESS_OK;
    OPS_TRY(make_feed(c));
    if (!all || !c->d->after_norms)
        return TESS_OK;
    OPS_TRY(c->d->t->activate(c));
    return c->d->t->remake_after(c);
}

static tess_status chunk_backward(decoder_chunk *c) {
    const decoder_operators *t = c->d->t;
    if (c->l->part != DECODER_ATTENTION) {
        OPS_TRY(t->activate_backward(c));
        OPS_TRY(t->project_backward(c, DECODER_FEED));
    }
    if (c->l->part == DECODER_FEED)
        return TESS_OK;
    OPS_TRY(t->attend_backward(c));
    return t->project_backward(c, DECODER_ATTENTION);
}

tess_status decoder_layer_backward(void *layer, const tess_block_call *call) {
    const decoder_layer *l = layer;
    for (int64_t first = 0; first < l->d->rows; first += l->d->chunk_rows) {
        decoder_chunk c = chunk_at(l, call, first);
        place_backward(&c);
        OPS_TRY(make_unsaved(&c));
        OPS_TRY(chunk_backward(&c));
    }
    return TESS_OK;
}
