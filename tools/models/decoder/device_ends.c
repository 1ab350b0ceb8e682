/* SPDX-License-Identifier: BSD-3-Clause */
/* The first and the last block of a decoder on a device. The head works in chunks of rows, so that the logits of a
 * large vocabulary never exist whole. In training its backward does all (TESS_BLOCK_LATE_RESULT): a chunk's logits, the
 * losses, in the place of the logits their gradient, and that of the input and the matrix. So logits are computed once.
 * Logits are factors: of 16 bits if the parameters are. */
#include "device.h"
#include <tessera/tessera.h>

/* A chunk has at least so many bytes of each class's logits, because each chunk reads and writes the whole gradient of
 * the matrix: 3,072 rows of 16 bits. */
enum { LEAST_BYTES = 6144 };

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

/* Kernels add to the table's gradient, which a tied head has stored, and store only the positions that a batch has. If
 * documents share samples they add to the positions too. So the rest has to be zeroed. */
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
typedef struct {
    const model *m;
    const device_decoder *g;
    const tess_block_call *call;
    decoder_ends e;
    char *logits;     /* one chunk's, then their gradient */
    float *stats;     /* statistics of the normalisation */
    char *normal, *d; /* both of all rows; d: the gradient of `normal` */
    int32_t *targets;
    void *losses;
    void *wide; /* the matrix, if it is stored in another dtype */
    void *inner;
} head;

static int trains(const tess_block_call *call) {
    return (call->pass & TESS_PASS_TRAIN) != 0;
}

static uint64_t chunk_rows(const device_decoder *g) {
    return (uint64_t)g->d.head_rows;
}

static uint64_t wide_bytes(const decoder *d) {
    return decoder_widens(d, d->table) ? decoder_bytes(d, d->vocabulary, d->width) : 0;
}

static head head_of(const model *m, const tess_block_call *call, void *scratch, int backward) {
    const device_decoder *g = m->own;
    head h = { .m = m, .g = g, .call = call };
    char *at = scratch;
    h.logits = decoder_cut(&at, chunk_rows(g) * g->pitch * g->d.elem);
    h.stats = decoder_cut(&at, g->stats_bytes);
    h.normal = decoder_cut(&at, g->row_bytes);
    h.d = decoder_cut(&at, backward ? g->row_bytes : 0);
    h.targets = decoder_cut(&at, g->ids_bytes);
    h.losses = decoder_cut(&at, m->o->t->cross_entropy_need(g->rows.rows));
    h.wide = decoder_cut(&at, wide_bytes(&g->d));
    h.inner = at;
    if (call)
        h.e = decoder_ends_of(&g->d, call, 1);
    return h;
}

static tess_status widen_head(head *h) {
    const decoder *d = &h->g->d;
    const void *from = h->e.head;
    if (!wide_bytes(d))
        return TESS_OK;
    h->e.head = h->wide;
    return device_widen(d, d->table, from, NULL, (uint64_t)d->vocabulary, (uint64_t)d->width, h->wide);
}

static tess_status normalise(const head *h) {
    ops_norm n = { .of = device_rows_of(h->m, h->call), .x = h->call->input, .w = h->e.norm_w, .y = h->normal };
    n.b = h->e.norm_b, n.stats = h->stats;
    n.eps = h->g->eps, n.about_zero = h->g->d.about_zero, n.one_more = h->g->d.one_more;
    return h->g->t->norm(h->m->o, &n);
}

/* ---- a chunk: rows from `first` on ---- */
static uint64_t rows_from(const device_decoder *g, uint64_t first) {
    return g->rows.rows - first < chunk_rows(g) ? g->rows.rows - first : chunk_rows(g);
}

static void *factor_row(const head *h, char *x, uint64_t row) {
    return x + row * h->g->rows.width * h->g->d.elem;
}

/* Computes logits before their cap, as factors or in fp32. */
static tess_status logits_of(const head *h, uint64_t first, uint64_t rows, void *y, int32_t wide) {
    ops_factors f = { .rows = (int64_t)rows, .columns = h->g->d.vocabulary };
    f.depth = (int64_t)h->g->rows.width, f.a = factor_row(h, h->normal, first), f.b = h->e.head;
    f.y = y, f.y_pitch = (int64_t)h->g->pitch, f.turn_b = 1, f.wide = wide;
    return h->g->t->product(h->m->o, &f, h->inner);
}

/* Computes those of one row in fp32, for the result. */
static tess_status result_logits(const head *h, uint64_t row) {
    const decoder *d = &h->g->d;
    float *y = lm_logits(h->call->output);
    OPS_TRY(logits_of(h, row, 1, y, 1));
    return d->logit_cap > 0 ? h->g->t->cap(h->m->o, y, (uint64_t)d->vocabulary, d->logit_cap) : TESS_OK;
}

/* Writes the losses of a chunk; training replaces the logits by their gradient. */
static tess_status losses_of(const head *h, uint64_t first) {
    uint64_t count = model__batch(h->m, h->call)->count, rows = rows_from(h->g, first);
    ops_row_loss l = { .logits = h->logits, .labels = h->targets + first, .losses = h->losses, .first = first };
    l.classes = (uint64_t)h->g->d.vocabulary, l.pitch = h->g->pitch, l.rows = rows;
    l.count = count < first ? 0 : count - first < rows ? count - first : rows;
    l.mean = count ? (float)(1.0 / (double)count) : 0, l.cap = h->g->d.logit_cap;
    l.scale = model__loss_scale(h->call), l.slopes = trains(h->call);
    l.divisor = &((const model_batch *)h->call->batch)->divisor;
    return h->g->t->loss(h->m->o, &l);
}

static tess_status input_gradient(const head *h, uint64_t first) {
    ops_factors f = { .rows = (int64_t)rows_from(h->g, first), .columns = (int64_t)h->g->rows.width };
    f.depth = h->g->d.vocabulary, f.a = h->logits, f.a_pitch = (int64_t)h->g->pitch;
    f.b = h->e.head, f.y = factor_row(h, h->d, first);
    return h->g->t->product(h->m->o, &f, h->inner);
}

/* Later chunks add to the first one's gradient, and so does the embedding later, if it shares the matrix. */
static tess_status weight_gradient(const head *h, uint64_t first) {
    ops_factors f = { .rows = h->g->d.vocabulary, .columns = (int64_t)h->g->rows.width };
    f.depth = (int64_t)rows_from(h->g, first), f.a = h->logits, f.a_pitch = (int64_t)h->g->pitch, f.turn_a = 1;
    f.b = factor_row(h, h->normal, first), f.y = h->e.dhead, f.wide = 1;
    f.add = first > 0 || !h->m->stores_grads;
    return h->e.dhead ? h->g->t->product(h->m->o, &f, h->inner) : TESS_OK;
}

/* ---- the loss ----- */
/* Computes the row whose logits the result has, in fp32. */
static tess_status wanted_logits(const head *h) {
    const model_batch *batch = model__batch(h->m, h->call);
    int has = batch->want_logits && batch->logits_row < h->g->rows.rows;
    return has ? result_logits(h, batch->logits_row) : TESS_OK;
}

static tess_status chunk(const head *h, uint64_t first) {
    OPS_TRY(logits_of(h, first, rows_from(h->g, first), h->logits, 0));
    OPS_TRY(losses_of(h, first));
    if (!trains(h->call))
        return TESS_OK;
    OPS_TRY(input_gradient(h, first));
    return weight_gradient(h, first);
}

static tess_status begin(head *h) {
    OPS_TRY(widen_head(h));
    OPS_TRY(normalise(h));
    return h->m->o->t->zero(h->m->o, h->call->output, h->m->desc.result_bytes);
}

/* Writes the result, and in training the gradient of the matrix and of what it multiplies. */
static tess_status whole_batch(const head *h) {
    const model *m = h->m;
    OPS_TRY(ids_of(m, h->call, 1, h->targets));
    OPS_TRY(wanted_logits(h));
    for (uint64_t first = 0; first < h->g->rows.rows; first += chunk_rows(h->g))
        OPS_TRY(chunk(h, first));
    return h->g->t->loss_sum(m->o, h->losses, model__batch(m, h->call)->count, h->targets,
                             &((const model_batch *)h->call->batch)->divisor, model__loss(h->call));
}

static tess_status one_position(const head *h) {
    device_decoder *g = h->m->own;
    OPS_TRY(result_logits(h, 0));
    g->d.filled = g->d.position + 1;
    return TESS_OK;
}

static tess_status head_forward(void *user, const tess_block_call *call) {
    model *m = user;
    head h = head_of(m, call, call->scratch, 0);
    if (trains(call)) /* backward does it all */
        return TESS_OK;
    OPS_TRY(begin(&h));
    return device_one_position(m, call) ? one_position(&h) : whole_batch(&h);
}

/* ---- training ----- */
static tess_status norm_backward(const head *h) {
    const tess_block_call *call = h->call;
    ops_columns of = { .x = call->input, .dy = h->d, .stats = h->stats, .width = h->g->rows.width };
    ops_norm_backward n = { .of = h->g->rows, .x = call->input, .w = h->e.norm_w, .dy = h->d };
    n.b = h->e.norm_b, n.about_zero = h->g->d.about_zero, n.one_more = h->g->d.one_more;
    n.stats = h->stats, n.dx = call->grad_input;
    of.dw = h->e.norm_dw, of.db = h->e.norm_db;
    return h->g->t->norm_backward_columns(h->m->o, &n, &of, 1, !h->m->stores_grads, h->inner);
}

static tess_status head_backward(void *user, const tess_block_call *call) {
    head h = head_of(user, call, call->scratch, 1);
    OPS_TRY(begin(&h));
    OPS_TRY(whole_batch(&h));
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

/* Returns the rows of a chunk if all have about as many, and none more than `most`. */
static uint64_t even_rows(uint64_t rows, uint64_t most) {
    uint64_t chunks = (rows + most - 1) / most, even = ((rows + chunks - 1) / chunks + 63) / 64 * 64;
    return even < most ? even : most;
}

/* Chooses as many rows as fit into the scratch that a layer's backward needs anyway, so that the head does not raise
 * the step's peak. The least is LEAST_BYTES. */
static void choose_rows(const model *m, uint64_t layer_scratch) {
    device_decoder *g = m->own;
    uint64_t fit = layer_scratch / (g->pitch * g->d.elem) / 64 * 64, least = LEAST_BYTES / g->d.elem;
    fit = even_rows(g->rows.rows, fit < least ? least : fit);
    fit = m->options.head_rows ? (uint64_t)m->options.head_rows : fit;
    g->d.head_rows = (int64_t)(fit < g->rows.rows ? fit : g->rows.rows);
}

/* Returns the workspace of the head's three products for a chunk, and of its sums over columns. */
static ops_scratch need_head(const device_decoder *g) {
    int64_t rows = g->d.head_rows, vocabulary = g->d.vocabulary, width = (int64_t)g->rows.width;
    ops_scratch need;
    need.forward_bytes = need.backward_bytes = g->t->product_need(rows, vocabulary, width);
    need.backward_bytes = device_most(need.backward_bytes, g->t->columns_need(g->rows.rows, 2 * g->rows.width));
    return need;
}

void device_measure_head(decoder *d, model_block *b) {
    model *m = d->m;
    device_decoder *g = m->own;
    g->pitch = ((uint64_t)d->vocabulary + 7) / 8 * 8;
    choose_rows(m, d->t->backward_need(d, DECODER_WHOLE));
    ops_scratch need = need_head(g);
    b->flags = TESS_BLOCK_LATE_RESULT;
    b->forward_scratch_bytes = (uint64_t)(uintptr_t)head_of(m, NULL, NULL, 0).inner + need.forward_bytes;
    b->backward_scratch_bytes = (uint64_t)(uintptr_t)head_of(m, NULL, NULL, 1).inner + need.backward_bytes;
    b->forward = head_forward;
    b->backward = head_backward;
}
