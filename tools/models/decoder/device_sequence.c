/* SPDX-License-Identifier: BSD-3-Clause */
/* Generates one token at a time on a device, as decoder_sequence.c does on the CPU. All operators but attention
 * compute one row. Attention computes a sample of all positions so far. So queries are saved beside keys and values,
 * and only the last row of the result is used. */
#include "device.h"

/* ---- create and destroy ----------------------------------------------------------------------------------- */
tess_status device_sequence_begin(model *m, uint64_t *bytes) {
    device_decoder *g = m->own;
    void *past = g->past;
    g->layer_bytes = decoder_bytes(&g->d, g->d.time, g->d.qkv_width);
    *bytes = (uint64_t)m->options.layers * g->layer_bytes;
    OPS_TRY(past ? TESS_OK : m->o->t->alloc(m->o, *bytes, &past));
    g->past = past;
    return TESS_OK;
}

void device_sequence_end(model *m) {
    device_decoder *g = m->own;
    if (g->past)
        m->o->t->free(m->o, g->past);
    g->past = NULL;
    g->d.filled = 0;
}

/* ---- a pass --------------------------------------------------------------------------------------------- */
int device_one_position(const model *m, const tess_block_call *call) {
    return device_of(m)->past && model__batch(m, call)->position;
}

ops_rows device_rows_of(const model *m, const tess_block_call *call) {
    const device_decoder *g = m->own;
    return device_one_position(m, call) ? (ops_rows){ 1, g->rows.width, 1 } : g->rows;
}

uint64_t device_first_position(const model *m, const tess_block_call *call) {
    return device_one_position(m, call) ? (uint64_t)device_of(m)->d.position : 0;
}

device_view device_view_of(const decoder_layer *l, const tess_block_call *call, void *qkv) {
    const device_decoder *g = l->d->m->own;
    const decoder_sight *sight = decoder_sight_of(l);
    device_view v = { g->attention, qkv, qkv };
    v.shape.window = (int32_t)sight->window, v.shape.scale = sight->scale, v.shape.cap = sight->cap;
    if (!device_one_position(l->d->m, call))
        return v;
    v.shape.grows = 1, v.shape.batch = 1, v.shape.time = (int32_t)g->d.position + 1;
    v.all = g->past + (uint64_t)l->index * g->layer_bytes;
    v.rows = decoder_at(&g->d, v.all, g->d.position * g->d.qkv_width);
    return v;
}
