/* SPDX-License-Identifier: BSD-3-Clause */
/* The first and the last block: embedding; final normalisation, head and loss. The head works in chunks of rows, so
 * that the logits of a large vocabulary never exist whole. In training its backward does all (TESS_BLOCK_LATE_RESULT):
 * a chunk's logits, losses and gradients. So logits are computed once. */
#include "decoder.h"
#include <tessera/tessera.h>

#include <string.h>

/* ---- the batch --------------------------------------------------------------------------------------- */
/* Reads the tokens at positions shift … of each sample. As targets (shift 1), tokens that do not count become -1. */
static tess_status ids_of(const decoder *d, const void *batch, int64_t shift, int32_t *out) {
    void *from = (void *)(uintptr_t)batch;
    for (int64_t r = 0; r < d->rows; r++) {
        int64_t at = r / d->time * (d->time + 1) + r % d->time + shift;
        int32_t marked = d->family->bytes ? gpt_text(from)[at] : lm_tokens(from)[at];
        out[r] = lm_token(marked);
        OPS_TRY(decoder_token_check(d, out[r]));
        out[r] = shift && marked & LM_IGNORED ? -1 : out[r];
    }
    return TESS_OK;
}

static uint64_t ids_bytes(const decoder *d) {
    return ops_align((uint64_t)d->rows * sizeof(int32_t));
}

float *decoder_sum(const decoder *d, float *grad, int64_t elems, int64_t first) {
    if (grad && decoder_stores(d, first))
        d->o->t->zero((ops *)(uintptr_t)d->o, grad, (uint64_t)elems * sizeof *grad);
    return grad;
}

/* ---- embedding --------------------------------------------------------------------------------------- */
static tess_status embed_forward(void *user, const tess_block_call *call) {
    const model *m = user;
    decoder *d = m->own;
    ops_dropout drop = model__dropout(m, call, 0, m->options.dropout);
    if (decoder_one_position(d, call))
        return decoder_sequence_embed(d, call);
    OPS_TRY(decoder_batch_check(m, call->batch));
    OPS_TRY(ids_of(d, call->batch, 0, call->scratch));
    decoder_ends e = decoder_ends_of(d, call, 0);
    decoder_embedding(d, call->scratch, decoder_packed(d, call, 0), e.table, e.positions, call->output);
    decoder_dropout(d, call->output, d->batch, d->time * d->width, &drop);
    return TESS_OK;
}

static tess_status embed_backward(void *user, const tess_block_call *call) {
    const model *m = user;
    const decoder *d = m->own;
    char *at = call->scratch;
    int32_t *ids = decoder_cut(&at, ids_bytes(d));
    const void *dy = call->grad_output;
    ops_dropout drop = model__dropout(m, call, 0, m->options.dropout);
    OPS_TRY(ids_of(d, call->batch, 0, ids));
    if (drop.rate > 0) {
        memcpy(at, dy, (size_t)(d->rows * d->width) * d->elem);
        decoder_dropout(d, at, d->batch, d->time * d->width, &drop);
        dy = at;
    }
    decoder_ends e = decoder_ends_of(d, call, 0);
    if (m->options.untied)
        e.dtable = decoder_sum(d, e.dtable, m->desc.params[0].elems, 0);
    if (e.dpositions)
        e.dpositions = decoder_sum(d, e.dpositions, m->desc.params[1].elems, 0);
    decoder_embedding_backward(d, ids, decoder_packed(d, call, 0), dy, e.dtable, e.dpositions);
    return TESS_OK;
}

/* ---- head -------------------------------------------------------------------------------------------- */
typedef struct {
    const decoder *d;
    const tess_block_call *call;
    decoder_ends e;
    int32_t *targets;
    char *normal, *dnormal;
    float *logits, *stats;
    uint16_t *halves;
    double *loss;
    uint8_t *correct;
    char *inner;
    const void *table; /* the head's matrix as products read it */
} head;

static head head_of(const decoder *d, const tess_block_call *call, char **at, int backward) {
    uint64_t logits = (uint64_t)(d->head_rows * d->vocabulary);
    head h = { .d = d, .call = call };
    h.targets = decoder_cut(at, ids_bytes(d));
    h.normal = decoder_cut(at, decoder_bytes(d, d->head_rows, d->width));
    h.dnormal = backward ? decoder_cut(at, decoder_bytes(d, d->head_rows, d->width)) : NULL;
    h.logits = decoder_cut(at, logits * sizeof(float));
    h.halves = backward && d->half ? decoder_cut(at, logits * sizeof(uint16_t)) : NULL;
    h.stats = decoder_cut(at, (uint64_t)(2 * d->head_rows) * sizeof(float));
    h.loss = decoder_cut(at, (uint64_t)d->head_rows * sizeof(double));
    h.correct = decoder_cut(at, (uint64_t)d->head_rows);
    h.inner = *at;
    if (call)
        h.e = decoder_ends_of(d, call, 1);
    return h;
}

static uint64_t head_scratch(const decoder *d, int backward) {
    char *at = NULL;
    head_of(d, NULL, &at, backward);
    uint64_t forward_bytes = d->p.head.forward_bytes, backward_bytes = backward ? d->p.head.backward_bytes : 0;
    return (uint64_t)(uintptr_t)at + (forward_bytes > backward_bytes ? forward_bytes : backward_bytes);
}

static const void *input_of(const head *h, int64_t first) {
    return decoder_at(h->d, h->call->input, first * h->d->width);
}

static decoder_norm_of norm_of(const head *h, int64_t first) {
    return (decoder_norm_of){ h->d->head_rows, h->d->width, input_of(h, first), h->e.norm_w, h->e.norm_b, h->stats };
}

static tess_status logits_of(const head *h, int64_t first) {
    const decoder *d = h->d;
    decoder_norm_of of = norm_of(h, first);
    decoder_norm(d, &of, h->normal);
    OPS_TRY(d->o->t->matmul(d->p.head.forward, h->normal, h->table, NULL, h->logits, h->inner));
    decoder_cap(d, h->logits, d->head_rows);
    return TESS_OK;
}

/* ---- the loss ----- */
static void add_losses(const head *h, int64_t first, int64_t rows, model_result *sum) {
    for (int64_t r = 0; r < rows; r++) {
        sum->loss += h->loss[r];
        sum->correct += h->correct[r];
        sum->count += h->targets[first + r] >= 0;
    }
}

static tess_status begin(head *h) {
    const decoder *d = h->d;
    const model_batch *batch = h->call->batch;
    h->table = decoder_table(d, &d->p.head, h->e.head, h->inner);
    memset(lm_logits(h->call->output), 0, (uint64_t)d->vocabulary * sizeof(float));
    *(model_result *)h->call->output = (model_result){ .divisor = batch->divisor };
    return ids_of(d, h->call->batch, 1, h->targets);
}

/* Computes a chunk's logits and adds its losses to the result. An evaluation passes over a chunk that nobody asks
 * for. */
static tess_status losses_of(const head *h, int64_t first, int is_needed) {
    const decoder *d = h->d;
    const model_batch *batch = h->call->batch;
    int64_t wanted = (int64_t)batch->logits_row - first, counted = (int64_t)batch->count - first;
    int here = batch->want_logits && wanted >= 0 && wanted < d->head_rows;
    if (counted <= 0 && !here && !is_needed)
        return TESS_OK;
    counted = counted < 0 ? 0 : counted < d->head_rows ? counted : d->head_rows;
    OPS_TRY(logits_of(h, first));
    if (here)
        memcpy(lm_logits(h->call->output), h->logits + wanted * d->vocabulary, (uint64_t)d->vocabulary * sizeof(float));
    decoder_loss(d, h->logits, h->targets + first, counted, h->loss, h->correct);
    add_losses(h, first, counted, h->call->output);
    return TESS_OK;
}

static tess_status head_forward(void *user, const tess_block_call *call) {
    decoder *d = ((const model *)user)->own;
    char *at = call->scratch;
    if (call->pass & TESS_PASS_TRAIN) /* backward does it all */
        return TESS_OK;
    head h = head_of(d, call, &at, 0);
    if (decoder_one_position(d, call))
        return decoder_sequence_head(d, call);
    OPS_TRY(begin(&h));
    for (int64_t first = 0; first < d->rows; first += d->head_rows)
        OPS_TRY(losses_of(&h, first, 0));
    return TESS_OK;
}

/* ---- training ----- */
/* Computes the gradients of a chunk's input, and adds those of the parameters. The logits are replaced by theirs. */
static tess_status gradients_of(const head *h, int64_t first) {
    const decoder *d = h->d;
    const tess_block_call *call = h->call;
    const ops_table *t = d->o->t;
    const void *dlogits = h->halves ? (const void *)h->halves : h->logits;
    int64_t count = ((const model_batch *)call->batch)->count;
    int stores = d->m->options.untied && decoder_stores(d, first);
    decoder_loss_backward(d, h->logits, h->targets + first, d->head_rows, count - first, decoder_loss_scale(call),
                          h->halves);
    if (h->e.dhead)
        OPS_TRY(t->matmul(stores ? d->p.head.dw : d->p.head.dw_add, dlogits, h->normal, NULL, h->e.dhead, h->inner));
    OPS_TRY(t->matmul(d->p.head.dx, dlogits, h->table, NULL, h->dnormal, h->inner));
    decoder_norm_of of = norm_of(h, first);
    decoder_norm_backward(d, &of, h->dnormal, NULL, decoder_at(d, call->grad_input, first * d->width),
                          decoder_sum(d, h->e.norm_dw, d->width, first), decoder_sum(d, h->e.norm_db, d->width, first));
    return TESS_OK;
}

static tess_status head_backward(void *user, const tess_block_call *call) {
    const decoder *d = ((const model *)user)->own;
    char *at = call->scratch;
    head h = head_of(d, call, &at, 1);
    OPS_TRY(begin(&h));
    for (int64_t first = 0; first < d->rows; first += d->head_rows) {
        OPS_TRY(losses_of(&h, first, 1));
        OPS_TRY(gradients_of(&h, first));
    }
    return TESS_OK;
}

/* ---- building ---------------------------------------------------------------------------------------- */
void decoder_host_embed(const decoder *d, model_block *b) {
    b->flags = TESS_BLOCK_DROP_OUTPUT;
    b->forward_scratch_bytes = ids_bytes(d);
    b->backward_scratch_bytes = ids_bytes(d) + (d->m->options.dropout > 0 ? decoder_bytes(d, d->rows, d->width) : 0);
    b->forward = embed_forward;
    b->backward = embed_backward;
}

void decoder_host_head(decoder *d, model_block *b) {
    b->flags = TESS_BLOCK_LATE_RESULT;
    b->forward_scratch_bytes = head_scratch(d, 0);
    b->backward_scratch_bytes = head_scratch(d, 1);
    b->forward = head_forward;
    b->backward = head_backward;
}
