/* SPDX-License-Identifier: BSD-3-Clause */
/* Operators and blocks of a decoder. */
#include "decoder.h"
#include <tessera/tessera.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- operators --------------------------------------------------------------------------------------- */
static tess_status make_matmul(const decoder *d, const ops_matmul_shape *s, ops_matmul **out, uint64_t *most) {
    uint64_t bytes;
    OPS_TRY(d->o->t->matmul_create((ops *)(uintptr_t)d->o, s, out, &bytes));
    *most = bytes > *most ? bytes : *most;
    return TESS_OK;
}

/* `residual`: forward adds, with bias. `bias`: place of the product's; -1: none. */
static tess_status make_linear(decoder *d, int64_t rows, int64_t inputs, int64_t outputs, int residual, int bias,
                               decoder_linear *l) {
    ops_matmul_shape y = { .rows = rows, .depth = inputs, .columns = outputs, .turn_b = 1 };
    ops_matmul_shape dx = { .rows = rows, .depth = outputs, .columns = inputs };
    ops_matmul_shape dw = { .rows = outputs, .depth = rows, .columns = inputs, .turn_a = 1 };
    y.factor = dx.factor = dw.factor = dx.result = d->dtype;
    y.result = l == &d->head ? TESS_F32 : d->dtype;
    y.bias = bias >= 0 && decoder_has(d, bias);
    dw.result = TESS_F32;
    dw.add = 1;
    OPS_TRY(make_matmul(d, &y, &l->forward, &l->forward_bytes));
    OPS_TRY(make_matmul(d, &dx, &l->dx, &l->backward_bytes));
    OPS_TRY(make_matmul(d, &dw, &l->dw, &l->backward_bytes));
    y.add = dx.add = 1;
    if (residual)
        return make_matmul(d, &y, &l->forward_add, &l->forward_bytes);
    return d->behind ? make_matmul(d, &dx, &l->dx_add, &l->backward_bytes) : TESS_OK;
}

static tess_status make_operators(decoder *d) {
    int64_t n = d->chunk_rows, c = d->width;
    OPS_TRY(make_linear(d, n, c, d->behind ? d->q_width : d->qkv_width, 0, DECODER_Q_B, &d->q));
    if (d->behind) {
        OPS_TRY(make_linear(d, n, c, d->kv_width, 0, -1, &d->k));
        OPS_TRY(make_linear(d, n, c, d->kv_width, 0, -1, &d->v));
    }
    OPS_TRY(make_linear(d, n, d->q_width, c, 1, DECODER_O_B, &d->out));
    OPS_TRY(make_linear(d, n, c, d->hidden, 0, DECODER_UP_B, &d->up));
    OPS_TRY(make_linear(d, n, d->hidden, c, 1, DECODER_DOWN_B, &d->down));
    OPS_TRY(make_linear(d, d->head_rows, c, d->vocabulary, 0, -1, &d->head));
    return decoder_tiles_create(d);
}

/* ---- rotary positions -------------------------------------------------------------------------------- */
static tess_status make_turns(decoder *d) {
    int64_t half = d->size / 2;
    if (!d->rotary)
        return TESS_OK;
    d->turns = malloc((size_t)(d->time * d->size) * sizeof *d->turns);
    if (!d->turns)
        return tess_fail(TESS_E_NOMEM, "out of memory for %lld positions", (long long)d->time);
    for (int64_t i = 0; i < half; i++) {
        double frequency = decoder_frequency(d, i);
        for (int64_t t = 0; t < d->time; t++) {
            d->turns[t * d->size + i] = (float)cos((double)t * frequency);
            d->turns[t * d->size + half + i] = (float)sin((double)t * frequency);
        }
    }
    return TESS_OK;
}

/* ---- blocks ------------------------------------------------------------------------------------------ */
static tess_status build_embed(model *m) {
    decoder *d = m->own;
    model_block b = { .name = "embed", .flags = TESS_BLOCK_DROP_OUTPUT, .user = m };
    b.output_bytes = (uint64_t)(d->rows * d->width) * d->elem;
    b.forward_scratch_bytes = ops_align((uint64_t)d->rows * sizeof(int32_t));
    b.backward_scratch_bytes = decoder_embed_scratch(d);
    b.forward = decoder_embed_forward;
    b.backward = decoder_embed_backward;
    OPS_TRY(decoder_embed_params(m));
    return model__add_block(m, &b);
}

/* A half is named after its larger module, and has its normalisation beside it. */
static void name_part(const decoder *d, const char *layer, int part, model_block *b) {
    const char *const *names = d->family->halves[part];
    snprintf(b->name, sizeof b->name, part == DECODER_WHOLE ? "%s" : "%s.%s", layer, names[0]);
    if (part != DECODER_WHOLE)
        snprintf(b->also, sizeof b->also, "%s.%s", layer, names[1]);
}

static void measure_part(const decoder *d, int part, model_block *b) {
    uint64_t scratch = decoder_layer_backward_scratch(d, part);
    b->saved_bytes = decoder_layer_saved(d, part, 0);
    b->forward_scratch_bytes = decoder_layer_forward_scratch(d, part);
    b->backward_scratch_bytes = scratch + decoder_layer_unsaved(d, part, 0);
    b->remake_scratch_bytes = scratch + decoder_layer_kept(d, part);
    if (part == DECODER_ATTENTION)
        return;
    b->selective_saved_bytes = decoder_layer_saved(d, part, 1);
    b->selective_scratch_bytes = scratch + decoder_layer_unsaved(d, part, 1);
}

static tess_status build_part(model *m, int32_t i, int part) {
    decoder *d = m->own;
    decoder_layer *l = &d->layers[2 * i + (part == DECODER_FEED)];
    model_block b = { .output_bytes = (uint64_t)(d->rows * d->width) * d->elem, .user = l };
    char layer[MODEL_NAME];
    b.flags = TESS_BLOCK_DROP_OUTPUT | TESS_BLOCK_GRAD_IN_PLACE;
    decoder_layer_name(d, i, layer);
    name_part(d, layer, part, &b);
    measure_part(d, part, &b);
    b.forward = decoder_layer_forward;
    b.backward = decoder_layer_backward;
    OPS_TRY(decoder_layer_params(m, layer, part));
    *l = (decoder_layer){ d, i, part, part == DECODER_FEED ? d->at[DECODER_NORM2_W] : 0 };
    return model__add_block(m, &b);
}

static tess_status build_layer(model *m, int32_t i) {
    if (!m->options.half_units)
        return build_part(m, i, DECODER_WHOLE);
    OPS_TRY(build_part(m, i, DECODER_ATTENTION));
    return build_part(m, i, DECODER_FEED);
}

static tess_status build_head(model *m) {
    decoder *d = m->own;
    model_block b = { .name = "head", .user = m };
    b.output_bytes = sizeof(model_result) + (uint64_t)d->vocabulary * sizeof(float);
    b.forward_scratch_bytes = decoder_head_forward_scratch(d);
    b.backward_scratch_bytes = decoder_head_backward_scratch(d);
    b.forward = decoder_head_forward;
    b.backward = decoder_head_backward;
    OPS_TRY(decoder_head_params(m));
    return model__add_block(m, &b);
}

tess_status decoder_build(model *m) {
    decoder *d = m->own = calloc(1, sizeof *d);
    if (!d || !(d->layers = calloc((size_t)m->options.layers, 2 * sizeof *d->layers)))
        return tess_fail(TESS_E_NOMEM, "out of memory for model %s", m->t->name);
    decoder_sizes(m, d);
    OPS_TRY(make_operators(d));
    OPS_TRY(make_turns(d));
    m->desc.input_bytes = decoder_input_bytes(d);
    OPS_TRY(build_embed(m));
    for (int32_t i = 0; i < m->options.layers; i++)
        OPS_TRY(build_layer(m, i));
    return build_head(m);
}

void decoder_release(model *m) {
    decoder *d = m->own;
    if (!d)
        return;
    decoder_linear *all[] = { &d->q, &d->k, &d->v, &d->out, &d->up, &d->down, &d->head };
    for (size_t i = 0; d->o && i < sizeof all / sizeof *all; i++) {
        ops_matmul *parts[] = { all[i]->forward, all[i]->forward_add, all[i]->dx, all[i]->dx_add, all[i]->dw };
        for (size_t k = 0; k < sizeof parts / sizeof *parts; k++)
            d->o->t->matmul_destroy(parts[k]);
    }
    decoder_tiles_destroy(d->tiles);
    decoder_sequence_destroy(d->sequence);
    free(d->turns);
    free(d->layers);
    free(d);
}

/* ---- a sequence -------------------------------------------------------------------------------------- */
tess_status decoder_sequence_begin(model *m, uint64_t *bytes) {
    decoder *d = m->own;
    OPS_TRY(d->sequence ? TESS_OK : decoder_sequence_create(d, &d->sequence));
    *bytes = decoder_sequence_bytes(d->sequence);
    return TESS_OK;
}

void decoder_sequence_end(model *m) {
    decoder *d = m->own;
    decoder_sequence_destroy(d->sequence);
    d->sequence = NULL;
}
