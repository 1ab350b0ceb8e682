/* SPDX-License-Identifier: BSD-3-Clause */
/* The first and the last block of a decoder on a device. The head works in chunks of rows, so that the logits of a
 * large vocabulary never exist whole. Forward computes the losses. Backward computes a chunk's logits again, with
 * the maxima and sums that forward kept. If one chunk has all rows, forward computes the gradient of the logits with
 * the loss and keeps that instead. */
#include "device.h"
#include <tessera/tessera.h>

/* A chunk has at least LEAST_ROWS rows, because each chunk reads and writes the whole gradient of the matrix. */
enum { LEAST_ROWS = 1024 };

/* ---- embed ---------------------------------------------------------------------------------------- */
static tess_status call_check(const model *m, const tess_block_call *call) {
    const decoder *d = m->own;
    if (call->compute_dtype != m->options.precision && !decoder_widens(d, d->table))
        return tess_fail(TESS_E_UNSUPPORTED, "%s: parameters come in dtype %u, the model was made for %u", m->t->name,
                         call->compute_dtype, m->options.precision);
    return TESS_OK;
}

/* Reads the tokens at positions shift … of each sample. As targets (shift 1), tokens that do not count become -1. */
static tess_status ids_of(const model *m, const tess_block_call *call, int32_t shift, int32_t *out) {
    ops_rows of = device_rows_of(m, call);
    uint64_t samples = of.rows / of.time, time = of.time;
    void *batch = (void *)(uintptr_t)call->batch;
    if (device_of(m)->d.family->bytes)
        return m->o->t->ids(m->o, gpt_text(batch) + shift, samples, time, time + 1, out);
    return device_of(m)->t->tokens(m->o, lm_tokens(batch) + shift, samples, time, time + 1, shift ? LM_IGNORED : 0,
                                   LM_IGNORED | LM_BEGINS, out);
}

tess_status device_places(const model *m, const tess_block_call *call, int32_t *out, const int32_t **places) {
    const device_decoder *g = m->own;
    void *batch = (void *)(uintptr_t)call->batch;
    *places = model__batch(m, call)->packed && !device_one_position(m, call) ? out : NULL;
    if (!*places)
        return TESS_OK;
    return g->t->places(m->o, lm_tokens(batch), g->rows.rows / g->rows.time, g->rows.time, g->rows.time + 1, LM_BEGINS,
                        out);
}

/* Returns the bytes of scratch for them in the first block. */
static uint64_t places_bytes(const decoder *d) {
    return d->m->options.packs && !d->rotary ? device_of(d->m)->ids_bytes : 0;
}

static tess_status embed_forward(void *user, const tess_block_call *call) {
    model *m = user;
    decoder *d = m->own;
    char *at = call->scratch;
    int32_t *ids = decoder_cut(&at, device_of(m)->ids_bytes);
    const int32_t *places = NULL;
    decoder_ends e = decoder_ends_of(d, call, 0);
    ops_dropout drop = model__dropout(m, call, 0, m->options.dropout);
    ops_rows of = device_rows_of(m, call);
    OPS_TRY(call_check(m, call));
    OPS_TRY(device_one_position(m, call) ? decoder_position_enter(d, model__batch(m, call)) : TESS_OK);
    OPS_TRY(ids_of(m, call, 0, ids));
    if (e.positions)
        OPS_TRY(device_places(m, call, decoder_cut(&at, places_bytes(d)), &places));
    if (e.positions)
        e.positions = decoder_at(d, e.positions, (int64_t)device_first_position(m, call) * d->width);
    if (decoder_widens(d, d->table)) {
        OPS_TRY(device_widen(d, d->table, e.table, ids, of.rows, of.width, at));
        e.table = at, ids = NULL;
    }
    return device_of(m)->t->embed(m->o, &of, ids, e.table, places, e.positions, d->embed_scale, &drop, call->output);
}

/* Kernels add to the table's gradient, and store only the positions that a batch has. If documents share samples they
 * add to the positions too. So the rest has to be zeroed. */
static tess_status clear_grads(const model *m, float *dtable, float *dposition, int packed) {
    const decoder *d = m->own;
    int64_t positions = m->options.decoder.positions, behind = positions > d->time ? positions - d->time : 0;
    if (m->stores_grads && dposition && packed)
        OPS_TRY(m->o->t->zero(m->o, dposition, (uint64_t)(d->time * d->width) * sizeof *dposition));
    if (m->stores_grads && m->options.untied && dtable)
        OPS_TRY(m->o->t->zero(m->o, dtable, (uint64_t)(d->vocabulary * d->width) * sizeof *dtable));
    if (m->stores_grads && dposition && behind)
        return m->o->t->zero(m->o, dposition + d->time * d->width, (uint64_t)(behind * d->width) * sizeof *dposition);
    return TESS_OK;
}

static tess_status embed_backward(void *user, const tess_block_call *call) {
    model *m = user;
    device_decoder *g = m->own;
    char *at = call->scratch;
    int32_t *ids = decoder_cut(&at, g->ids_bytes);
    void *room = decoder_cut(&at, device_has_dropout(m, call) ? g->row_bytes : 0);
    const void *dy;
    int32_t *room_places = decoder_cut(&at, places_bytes(&g->d));
    const int32_t *places = NULL;
    decoder_ends e = decoder_ends_of(&g->d, call, 0);
    ops_dropout drop = model__dropout(m, call, 0, m->options.dropout);
    if (!e.dtable && !e.dpositions)
        return TESS_OK;
    OPS_TRY(e.dpositions ? device_places(m, call, room_places, &places) : TESS_OK);
    OPS_TRY(g->t->mask(m->o, &g->rows, &drop, call->grad_output, room, &dy));
    OPS_TRY(ids_of(m, call, 0, ids));
    OPS_TRY(clear_grads(m, e.dtable, e.dpositions, places != NULL));
    if (places) {
        OPS_TRY(g->t->embed_backward(m->o, &g->rows, places, dy, 0, e.dpositions, NULL, 0, at));
        e.dpositions = NULL;
    }
    return g->t->embed_backward(m->o, &g->rows, ids, dy, g->d.embed_scale, e.dtable, e.dpositions, !m->stores_grads,
                                at);
}

/* ---- head ------------------------------------------------------------------------------------------ */
static int keeps_gradient(const device_decoder *g) {
    return g->head_rows == g->rows.rows;
}

typedef struct {
    const model *m;
    const device_decoder *g;
    const tess_block_call *call;
    decoder_ends e;
    void *dlogits;    /* one chunk's gradient */
    float *stats;     /* statistics of the normalisation */
    float *row_stats; /* maxima and sums of the logits; kept if the gradient is not */
    float *logits;    /* one chunk's */
    char *normal, *d; /* both of all rows; d: the gradient of `normal` */
    int32_t *targets;
    void *losses;
    void *wide; /* the matrix, if it is stored in another dtype */
    void *inner;
} head;

static uint64_t logits_bytes(const device_decoder *g) {
    return g->head_rows * g->pitch * sizeof(float);
}
static uint64_t dlogits_bytes(const model *m) {
    return device_of(m)->head_rows * device_of(m)->pitch * device_of(m)->d.elem;
}

static uint64_t wide_bytes(const decoder *d) {
    return decoder_widens(d, d->table) ? decoder_bytes(d, d->vocabulary, d->width) : 0;
}

static tess_status widen_head(head *h) {
    const decoder *d = &h->g->d;
    const void *from = h->e.head;
    if (!wide_bytes(d))
        return TESS_OK;
    h->e.head = h->wide;
    return device_widen(d, d->table, from, NULL, (uint64_t)d->vocabulary, (uint64_t)d->width, h->wide);
}

static char *cut_kept(const model *m, head *h, char *kept) {
    const device_decoder *g = m->own;
    h->stats = decoder_cut(&kept, g->stats_bytes);
    if (keeps_gradient(g))
        h->dlogits = decoder_cut(&kept, dlogits_bytes(m));
    else
        h->row_stats = decoder_cut(&kept, g->stats_bytes);
    return kept;
}

static head head_of(const model *m, const tess_block_call *call) {
    head h = { .m = m, .g = m->own, .call = call };
    if (call)
        h.e = decoder_ends_of(&h.g->d, call, 1);
    return h;
}

/* An evaluation keeps nothing, so the normalisation's statistics lie in scratch. */
static head forward_head(const model *m, const tess_block_call *call, void *scratch) {
    const device_decoder *g = m->own;
    head h = head_of(m, call);
    char *at = scratch;
    h.stats = decoder_cut(&at, g->stats_bytes);
    h.logits = decoder_cut(&at, logits_bytes(g));
    h.normal = decoder_cut(&at, g->row_bytes);
    h.targets = decoder_cut(&at, g->ids_bytes);
    h.losses = decoder_cut(&at, m->o->t->cross_entropy_need(g->rows.rows));
    h.row_stats = decoder_cut(&at, g->stats_bytes);
    h.wide = decoder_cut(&at, wide_bytes(&g->d));
    h.inner = at;
    if (call && call->saved)
        cut_kept(m, &h, call->saved);
    return h;
}

static head backward_head(const model *m, const tess_block_call *call, void *scratch) {
    const device_decoder *g = m->own;
    int again = !keeps_gradient(g);
    head h = head_of(m, call);
    char *at = scratch;
    h.normal = decoder_cut(&at, g->row_bytes);
    h.d = decoder_cut(&at, g->row_bytes);
    h.logits = decoder_cut(&at, again ? logits_bytes(g) : 0);
    h.dlogits = decoder_cut(&at, again ? dlogits_bytes(m) : 0);
    h.targets = decoder_cut(&at, again ? g->ids_bytes : 0);
    h.wide = decoder_cut(&at, wide_bytes(&g->d));
    h.inner = at;
    if (call)
        cut_kept(m, &h, call->saved);
    return h;
}

static tess_status normalise(const head *h) {
    ops_norm n = { .of = device_rows_of(h->m, h->call), .x = h->call->input, .w = h->e.norm_w, .y = h->normal };
    n.b = h->e.norm_b, n.stats = h->stats;
    n.eps = h->g->eps, n.about_zero = h->g->d.about_zero, n.one_more = h->g->d.one_more;
    return h->g->t->norm(h->m->o, &n);
}

/* ---- a chunk: rows from `first` on ---- */
static uint64_t rows_from(const device_decoder *g, uint64_t first) {
    return g->rows.rows - first < g->head_rows ? g->rows.rows - first : g->head_rows;
}

static void *factor_row(const head *h, char *x, uint64_t row) {
    return x + row * h->g->rows.width * h->g->d.elem;
}

static tess_status logits_of(const head *h, uint64_t first, uint64_t rows) {
    ops_factors f = { .rows = (int64_t)rows, .columns = h->g->d.vocabulary };
    f.depth = (int64_t)h->g->rows.width, f.a = factor_row(h, h->normal, first), f.b = h->e.head;
    f.y = h->logits, f.y_pitch = (int64_t)h->g->pitch, f.turn_b = f.wide = 1;
    OPS_TRY(h->g->t->product(h->m->o, &f, h->inner));
    return h->g->d.logit_cap > 0 ? h->g->t->cap(h->m->o, h->logits, rows * h->g->pitch, h->g->d.logit_cap) : TESS_OK;
}

static ops_row_loss loss_of(const head *h, uint64_t first) {
    uint64_t count = model__batch(h->m, h->call)->count, rows = rows_from(h->g, first);
    ops_row_loss l = { .logits = h->logits, .labels = h->targets + first, .dlogits = h->dlogits, .rows = rows };
    l.stats = h->row_stats ? h->row_stats + 2 * first : NULL;
    l.classes = (uint64_t)h->g->d.vocabulary, l.pitch = h->g->pitch;
    l.count = count < first ? 0 : count - first < rows ? count - first : rows;
    l.mean = count ? (float)(1.0 / (double)count) : 0, l.cap = h->g->d.logit_cap;
    l.scale = model__loss_scale(h->call);
    l.divisor = &((const model_batch *)h->call->batch)->divisor;
    return l;
}

static tess_status input_gradient(const head *h, uint64_t first) {
    ops_factors f = { .rows = (int64_t)rows_from(h->g, first), .columns = (int64_t)h->g->rows.width };
    f.depth = h->g->d.vocabulary, f.a = h->dlogits, f.a_pitch = (int64_t)h->g->pitch;
    f.b = h->e.head, f.y = factor_row(h, h->d, first);
    return h->g->t->product(h->m->o, &f, h->inner);
}

/* Later chunks add to the first one's gradient. If the embedding shares the matrix, its own gradient is added later,
 * so this one adds too. */
static tess_status weight_gradient(const head *h, uint64_t first) {
    ops_factors f = { .rows = h->g->d.vocabulary, .columns = (int64_t)h->g->rows.width };
    f.depth = (int64_t)rows_from(h->g, first), f.a = h->dlogits, f.a_pitch = (int64_t)h->g->pitch, f.turn_a = 1;
    f.b = factor_row(h, h->normal, first), f.y = h->e.dhead, f.wide = 1;
    f.add = first > 0 || !h->m->stores_grads || !h->m->options.untied;
    return h->e.dhead ? h->g->t->product(h->m->o, &f, h->inner) : TESS_OK;
}

/* ---- forward ----- */
static tess_status copy_row(const head *h, uint64_t row) {
    return h->m->o->t->copy(h->m->o, h->logits + row * h->g->pitch, lm_logits(h->call->output),
                            (uint64_t)h->g->d.vocabulary * sizeof(float));
}

static tess_status copy_logits(const head *h, uint64_t first) {
    const model_batch *batch = model__batch(h->m, h->call);
    uint64_t row = batch->logits_row - first;
    int is_here = batch->want_logits && batch->logits_row >= first && row < rows_from(h->g, first);
    return is_here ? copy_row(h, row) : TESS_OK;
}

static tess_status chunk_forward(const head *h, uint64_t first) {
    ops_row_loss l = loss_of(h, first);
    l.losses = h->losses, l.first = first;
    OPS_TRY(logits_of(h, first, l.rows));
    OPS_TRY(copy_logits(h, first));
    return h->g->t->loss(h->m->o, &l);
}

static tess_status one_forward(const head *h) {
    OPS_TRY(logits_of(h, 0, 1));
    OPS_TRY(copy_row(h, 0));
    device_decoder *g = h->m->own;
    g->d.filled = g->d.position + 1;
    return TESS_OK;
}

static tess_status head_forward(void *user, const tess_block_call *call) {
    model *m = user;
    head h = forward_head(m, call, call->scratch);
    OPS_TRY(widen_head(&h));
    OPS_TRY(normalise(&h));
    OPS_TRY(m->o->t->zero(m->o, call->output, m->desc.result_bytes));
    if (device_one_position(m, call))
        return one_forward(&h);
    OPS_TRY(ids_of(m, call, 1, h.targets));
    for (uint64_t first = 0; first < h.g->rows.rows; first += h.g->head_rows)
        OPS_TRY(chunk_forward(&h, first));
    return h.g->t->loss_sum(m->o, h.losses, model__batch(m, call)->count, h.targets,
                            &((const model_batch *)call->batch)->divisor, model__loss(call));
}

/* ---- backward ----- */
static tess_status chunk_backward(const head *h, uint64_t first) {
    ops_row_loss l = loss_of(h, first);
    OPS_TRY(logits_of(h, first, l.rows));
    OPS_TRY(h->g->t->loss_slopes(h->m->o, &l));
    OPS_TRY(input_gradient(h, first));
    return weight_gradient(h, first);
}

static tess_status norm_backward(const head *h) {
    const tess_block_call *call = h->call;
    ops_columns of = { .x = call->input, .dy = h->d, .stats = h->stats, .width = h->g->rows.width };
    ops_norm_backward n = { .of = h->g->rows, .x = call->input, .w = h->e.norm_w, .dy = h->d };
    n.b = h->e.norm_b, n.about_zero = h->g->d.about_zero, n.one_more = h->g->d.one_more;
    n.stats = h->stats, n.dx = call->grad_input, n.normal = keeps_gradient(h->g) ? h->normal : NULL;
    of.dw = h->e.norm_dw, of.db = h->e.norm_db;
    return h->g->t->norm_backward_columns(h->m->o, &n, &of, 1, !h->m->stores_grads, h->inner);
}

static tess_status head_backward(void *user, const tess_block_call *call) {
    model *m = user;
    head h = backward_head(m, call, call->scratch);
    OPS_TRY(widen_head(&h));
    if (keeps_gradient(h.g)) {
        OPS_TRY(input_gradient(&h, 0));
        OPS_TRY(norm_backward(&h));
        return weight_gradient(&h, 0);
    }
    OPS_TRY(normalise(&h));
    OPS_TRY(ids_of(m, call, 1, h.targets));
    for (uint64_t first = 0; first < h.g->rows.rows; first += h.g->head_rows)
        OPS_TRY(chunk_backward(&h, first));
    return norm_backward(&h);
}

/* ---- building --------------------------------------------------------------------------------------- */
void device_measure_embed(const decoder *d, model_block *b) {
    const device_decoder *g = device_of(d->m);
    b->forward_scratch_bytes = g->ids_bytes + places_bytes(d) + (decoder_widens(d, d->table) ? g->row_bytes : 0);
    b->backward_scratch_bytes = g->ids_bytes + (d->m->options.dropout > 0 ? g->row_bytes : 0) + places_bytes(d) +
                                g->t->embed_backward_need(g->rows.rows);
    b->forward = embed_forward;
    b->backward = embed_backward;
}

/* Chooses as many rows as fit into the scratch that a layer's backward needs anyway, so that the head does not raise
 * the step's peak. The least is LEAST_ROWS. */
static void choose_rows(const model *m, uint64_t layer_scratch) {
    device_decoder *g = m->own;
    uint64_t row = g->pitch * (sizeof(float) + g->d.elem), fit = layer_scratch / row / 64 * 64;
    fit = fit < LEAST_ROWS ? LEAST_ROWS : fit;
    fit = m->options.head_rows ? (uint64_t)m->options.head_rows : fit;
    g->head_rows = fit < g->rows.rows ? fit : g->rows.rows;
}

/* Returns the workspace of the head's three products for a chunk, and of its sums over columns. */
static ops_scratch need_head(const device_decoder *g) {
    int64_t rows = (int64_t)g->head_rows, vocabulary = g->d.vocabulary, width = (int64_t)g->rows.width;
    ops_scratch need;
    need.forward_bytes = need.backward_bytes = g->t->product_need(rows, vocabulary, width);
    need.backward_bytes = device_most(need.backward_bytes, g->t->columns_need(g->rows.rows, 2 * g->rows.width));
    return need;
}

void device_measure_head(decoder *d, model_block *b) {
    model *m = d->m;
    device_decoder *g = m->own;
    head kept = { 0 };
    g->pitch = ((uint64_t)d->vocabulary + 7) / 8 * 8;
    choose_rows(m, d->t->backward_need(d, DECODER_WHOLE));
    ops_scratch need = need_head(g);
    b->saved_bytes = (uint64_t)(uintptr_t)cut_kept(m, &kept, NULL);
    b->forward_scratch_bytes = (uint64_t)(uintptr_t)forward_head(m, NULL, NULL).inner + need.forward_bytes;
    b->backward_scratch_bytes = (uint64_t)(uintptr_t)backward_head(m, NULL, NULL).inner + need.backward_bytes;
    b->forward = head_forward;
    b->backward = head_backward;
}
