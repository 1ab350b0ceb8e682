/* SPDX-License-Identifier: BSD-3-Clause */
/* One token at a time on a device, as decoder/decoder_sequence.c has it on the CPU. A pass computes one row of all but
 * attention, which is that of a sample as long as what is there: queries are kept beside keys and values, and only the
 * last row of what comes out is used. */
#include "gpt.h"
#include <tessera/tessera.h>

#include <stdlib.h>

struct gpt_sequence {
    uint64_t filled, at;  /* positions that are there; that of the running pass */
    uint64_t layer_bytes; /* of one layer's queries, keys and values */
    char *past;
};

/* ---- making ------------------------------------------------------------------------------------------- */
static uint64_t all_bytes(const model *m, const gpt_sequence *s) {
    return (uint64_t)m->options.layers * s->layer_bytes;
}

static tess_status create(const model *m, gpt_sequence **out) {
    const decoder *d = m->own;
    void *past = NULL;
    gpt_sequence *s = calloc(1, sizeof *s);
    if (!s)
        return tess_fail(TESS_E_NOMEM, "out of memory for a sequence");
    s->layer_bytes = decoder_bytes(d, d->time, d->qkv_width);
    tess_status status = m->o->t->alloc(m->o, all_bytes(m, s), &past);
    if (status != TESS_OK) {
        free(s);
        return status;
    }
    s->past = past;
    *out = s;
    return TESS_OK;
}

tess_status gpt_sequence_begin(model *m, uint64_t *bytes) {
    gpt *g = m->own;
    OPS_TRY(g->sequence ? TESS_OK : create(m, &g->sequence));
    *bytes = all_bytes(m, g->sequence);
    return TESS_OK;
}

void gpt_sequence_end(model *m) {
    gpt *g = m->own;
    if (!g->sequence)
        return;
    m->o->t->free(m->o, g->sequence->past);
    free(g->sequence);
    g->sequence = NULL;
}

/* ---- a pass --------------------------------------------------------------------------------------------- */
int gpt_one_position(const model *m, const tess_block_call *call) {
    return gpt_of(m)->sequence && model__batch(m, call)->position;
}

ops_rows gpt_rows_of(const model *m, const tess_block_call *call) {
    const gpt *g = m->own;
    return gpt_one_position(m, call) ? (ops_rows){ 1, g->rows.width, 1 } : g->rows;
}

uint64_t gpt_first_position(const model *m, const tess_block_call *call) {
    return gpt_one_position(m, call) ? gpt_of(m)->sequence->at : 0;
}

tess_status gpt_sequence_enter(const model *m, const tess_block_call *call) {
    gpt_sequence *s = gpt_of(m)->sequence;
    uint64_t time = gpt_of(m)->rows.time;
    if (!gpt_one_position(m, call))
        return TESS_OK;
    s->at = model__batch(m, call)->position - 1;
    if (s->at > s->filled || s->at >= time)
        return tess_fail(TESS_E_INVALID, "%s: position %llu of a sequence of %llu, most %llu", m->t->name,
                         (unsigned long long)s->at, (unsigned long long)s->filled, (unsigned long long)time);
    return TESS_OK;
}

void gpt_sequence_leave(const model *m, const tess_block_call *call) {
    gpt_sequence *s = gpt_of(m)->sequence;
    if (gpt_one_position(m, call))
        s->filled = s->at + 1;
}

gpt_view gpt_view_of(const gpt_layer *l, const tess_block_call *call, void *qkv) {
    const gpt *g = l->m->own;
    const gpt_sequence *s = g->sequence;
    gpt_view v = { g->attention, qkv, qkv };
    if (!gpt_one_position(l->m, call))
        return v;
    v.shape.batch = 1, v.shape.time = (int32_t)s->at + 1;
    v.all = s->past + (uint64_t)l->index * s->layer_bytes;
    v.rows = decoder_at(&g->d, v.all, (int64_t)s->at * g->d.qkv_width);
    return v;
}
