/* SPDX-License-Identifier: BSD-3-Clause */
/* A decoder on a device: sizes and blocks. */
#include "gpt.h"
#include <tessera/tessera.h>

#include <stdlib.h>

/* ---- building --------------------------------------------------------------------------------------- */
/* The workspace of a linear operator's three products, where it is more than what there is. */
static void need_linear(const model *m, int64_t inputs, int64_t outputs, ops_scratch *need) {
    int64_t rows = (int64_t)gpt_of(m)->rows.rows;
    uint64_t bytes = gpt_of(m)->t->product_need(rows, outputs, inputs);
    need->forward_bytes = gpt_most(need->forward_bytes, bytes);
    need->backward_bytes = gpt_most(need->backward_bytes, bytes);
}

static tess_status build_layer(model *m, int32_t i) {
    gpt *g = m->own;
    g->layers[i] = (gpt_layer){ m, i };
    model_block b = { .output_bytes = (uint64_t)(g->d.rows * g->d.width) * g->d.elem, .user = &g->layers[i] };
    decoder_layer_name(&g->d, i, b.name);
    b.saved_bytes = gpt_layer_saved(g);
    b.forward_scratch_bytes = gpt_layer_forward_scratch(g) + g->inner.forward_bytes;
    b.backward_scratch_bytes = gpt_layer_backward_scratch(g) + g->inner.backward_bytes;
    b.forward = gpt_layer_forward;
    b.backward = gpt_layer_backward;
    OPS_TRY(decoder_layer_params(m, b.name, DECODER_WHOLE));
    return model__add_block(m, &b);
}

static void need_layer(const model *m, ops_scratch *need) {
    const gpt *g = m->own;
    const decoder *d = &g->d;
    int64_t c = d->width, biases = (decoder_has(d, DECODER_O_B) + decoder_has(d, DECODER_DOWN_B)) * c;
    biases += decoder_has(d, DECODER_UP_B) * d->hidden + decoder_has(d, DECODER_Q_B) * d->qkv_width;
    g->t->attention_need(m->o, &g->attention, need);
    need_linear(m, c, d->qkv_width, need);
    need_linear(m, d->q_width, c, need);
    need_linear(m, c, gpt_layer_feed_width(d), need);
    need->backward_bytes = gpt_most(need->backward_bytes, g->t->columns_need(g->rows.rows, (uint64_t)(4 * c + biases)));
}

static uint64_t row_bytes(const gpt *g, int64_t width) {
    return decoder_bytes(&g->d, g->d.rows, width);
}

static void set_sizes(model *m) {
    gpt *g = m->own;
    decoder *d = &g->d;
    decoder_sizes(m, d);
    g->t = m->o->t->layer;
    g->eps = m->options.decoder.norm_eps > 0 ? (double)m->options.decoder.norm_eps : 1e-5;
    g->rows = (ops_rows){ (uint64_t)d->rows, (uint64_t)d->width, (uint64_t)d->time };
    g->row_bytes = row_bytes(g, d->width);
    g->q_bytes = row_bytes(g, d->q_width);
    g->qkv_bytes = row_bytes(g, d->qkv_width);
    g->hidden_bytes = row_bytes(g, d->hidden);
    g->feed_bytes = row_bytes(g, gpt_layer_feed_width(d));
    g->stats_bytes = ops_align(2 * g->rows.rows * sizeof(float));
    g->lse_bytes = ops_align(g->rows.rows * (uint64_t)d->heads * sizeof(float));
    g->ids_bytes = ops_align(g->rows.rows * sizeof(int32_t));
    g->attention = (ops_attention_shape){ (int32_t)d->batch, (int32_t)d->time, (int32_t)d->heads, (int32_t)d->size,
                                          (int32_t)d->kv_heads };
    g->turned_bytes = d->rotary ? g->t->rotation_need(m->o, &g->attention) : 0;
    need_layer(m, &g->inner);
}

static tess_status make_turns(gpt *g) {
    const decoder *d = &g->d;
    int64_t pairs = d->size / 2;
    if (!d->rotary)
        return TESS_OK;
    if (pairs > OPS_ROTATION_MOST)
        return tess_fail(TESS_E_UNSUPPORTED, "%s on %s: heads of %lld elements, at most %d are possible", d->m->t->name,
                         d->m->o->t->name, (long long)d->size, 2 * OPS_ROTATION_MOST);
    if (!(g->turns = malloc((size_t)pairs * sizeof *g->turns)))
        return tess_fail(TESS_E_NOMEM, "out of memory for model %s", d->m->t->name);
    for (int64_t i = 0; i < pairs; i++)
        g->turns[i] = decoder_frequency(d, i) / 6.283185307179586;
    return TESS_OK;
}

tess_status gpt_build(model *m) {
    const model_options *o = &m->options;
    if (o->half_units)
        return tess_fail(TESS_E_UNSUPPORTED, "%s on %s: its units are whole layers; --units half is for the CPU",
                         m->t->name, m->o->t->name);
    gpt *g = m->own = calloc(1, sizeof *g);
    if (!g || !(g->layers = calloc((size_t)o->layers, sizeof *g->layers)))
        return tess_fail(TESS_E_NOMEM, "out of memory for model %s", m->t->name);
    m->may_store = 1;
    set_sizes(m);
    m->desc.input_bytes = decoder_input_bytes(&g->d);
    OPS_TRY(make_turns(g));
    OPS_TRY(gpt_build_embed(m));
    for (int32_t i = 0; i < o->layers; i++)
        OPS_TRY(build_layer(m, i));
    return gpt_build_head(m, gpt_layer_backward_scratch(g) + g->inner.backward_bytes);
}

void gpt_release(model *m) {
    gpt *g = m->own;
    if (!g)
        return;
    gpt_sequence_end(m);
    free(g->turns);
    free(g->layers);
    free(g);
}
