/* SPDX-License-Identifier: BSD-3-Clause */
/* Computes the sizes of a decoder on a device, and the angles that its operators need. */
#include "device.h"
#include <tessera/tessera.h>

#include <stdlib.h>

/* Enlarges `need` to the workspace of a linear operator's three products. */
static void need_linear(const model *m, int place, int64_t inputs, int64_t outputs, ops_scratch *need) {
    int64_t rows = (int64_t)device_of(m)->rows.rows, rank = m->options.lora.rank;
    int64_t depth = device_most((uint64_t)inputs, (uint64_t)rank),
            columns = device_most((uint64_t)outputs, (uint64_t)rank);
    uint64_t bytes = device_of(m)->t->product_need(rows, columns, depth) + device_lora_bytes(m->own) +
                     device_fp8_bytes(m->own, place, inputs, outputs);
    need->forward_bytes = device_most(need->forward_bytes, bytes);
    need->backward_bytes = device_most(need->backward_bytes, bytes);
}

static void need_layer(model *m, ops_scratch *need) {
    device_decoder *g = m->own;
    const decoder *d = &g->d;
    int64_t c = d->width, biases = (decoder_has(d, DECODER_O_B) + decoder_has(d, DECODER_DOWN_B)) * c;
    biases +=
        d->after_norms * 4 * c + decoder_has(d, DECODER_UP_B) * d->hidden + decoder_has(d, DECODER_Q_B) * d->qkv_width;
    g->t->attention_need(m->o, &g->attention, need);
    if (m->options.packs) /* places come before it */
        need->forward_bytes += g->ids_bytes, need->backward_bytes += g->ids_bytes;
    g->columns_bytes = g->t->columns_need(g->rows.rows, (uint64_t)(4 * c + biases));
    need_linear(m, DECODER_Q_W, c, d->qkv_width, need);
    need_linear(m, DECODER_O_W, d->q_width, c, need);
    need_linear(m, DECODER_UP_W, c, device_feed_width(d), need);
    need_linear(m, DECODER_DOWN_W, d->hidden, c, need);
    need->backward_bytes = device_most(need->backward_bytes, g->columns_bytes);
    if (d->head_norms)
        need->backward_bytes = device_most(
            need->backward_bytes, g->t->columns_need(g->rows.rows * (uint64_t)d->heads, (uint64_t)(2 * d->size)));
    g->found_bytes =
        d->fp8 ? g->t->fp8_found_need(g->rows.rows, device_most((uint64_t)d->hidden, (uint64_t)d->width)) : 0;
    need->forward_bytes = ops_align(need->forward_bytes) + 2 * g->found_bytes;
    need->backward_bytes = ops_align(need->backward_bytes) + 2 * g->found_bytes;
}

static void set_sizes(model *m) {
    device_decoder *g = m->own;
    decoder *d = &g->d;
    g->t = m->o->t->layer;
    g->eps = m->options.decoder.norm_eps > 0 ? (double)m->options.decoder.norm_eps : 1e-5;
    g->rows = (ops_rows){ (uint64_t)d->rows, (uint64_t)d->width, (uint64_t)d->time };
    g->row_bytes = decoder_bytes(d, d->rows, d->width);
    g->stats_bytes = ops_align(2 * g->rows.rows * sizeof(float));
    g->ids_bytes = ops_align(g->rows.rows * sizeof(int32_t));
    g->attention = (ops_attention_shape){ .batch = (int32_t)d->batch,
                                          .time = (int32_t)d->time,
                                          .heads = (int32_t)d->heads,
                                          .size = (int32_t)d->size,
                                          .kv_heads = (int32_t)d->kv_heads,
                                          .packs = m->options.packs };
    d->turned_bytes = d->rotary ? g->t->rotation_need(m->o, &g->attention) : 0;
    need_layer(m, &g->inner);
}

static tess_status make_turns(device_decoder *g, int nearness) {
    const decoder *d = &g->d;
    int64_t pairs = d->size / 2;
    double *turns;
    if (!d->rotary)
        return TESS_OK;
    if (pairs > OPS_ROTATION_MOST)
        return tess_fail(TESS_E_UNSUPPORTED, "%s on %s: heads of %lld elements, at most %d are possible", d->m->t->name,
                         d->m->o->t->name, (long long)d->size, 2 * OPS_ROTATION_MOST);
    if (!(turns = g->turns[nearness] = malloc((size_t)pairs * sizeof *turns)))
        return tess_fail(TESS_E_NOMEM, "out of memory for model %s", d->m->t->name);
    for (int64_t i = 0; i < pairs; i++)
        turns[i] = decoder_frequency(d, nearness, i) / 6.283185307179586;
    return TESS_OK;
}

/* Layers differ only in what their rows see. */
static tess_status check_attention(const model *m) {
    for (int i = 0; i < DECODER_SIGHTS; i++) {
        const decoder_sight *sight = &device_of(m)->d.sights[i];
        ops_attention_shape s = device_of(m)->attention;
        s.window = (int32_t)sight->window, s.cap = sight->cap;
        OPS_TRY(device_of(m)->t->attention_check(m->o, &s));
    }
    return TESS_OK;
}

tess_status device_create(model *m) {
    set_sizes(m);
    OPS_TRY(check_attention(m));
    OPS_TRY(make_turns(m->own, DECODER_FAR));
    return make_turns(m->own, DECODER_NEAR);
}

void device_destroy(model *m) {
    device_sequence_end(m);
    for (int i = 0; i < DECODER_SIGHTS; i++)
        free(device_of(m)->turns[i]);
}
