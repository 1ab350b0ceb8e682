/* SPDX-License-Identifier: BSD-3-Clause */
/* Builds the blocks of a decoder. */
#include "decoder.h"
#include <tessera/tessera.h>

#include <stdio.h>
#include <stdlib.h>

static tess_status build_embed(model *m) {
    const decoder *d = m->own;
    model_block b = { .name = "embed", .user = m };
    b.output_bytes = (uint64_t)(d->rows * d->width) * d->elem;
    d->t->measure_embed(d, &b);
    OPS_TRY(decoder_embed_params(m));
    return model__add_block(m, &b);
}

/* The name of a half is that of its larger module; its normalisation is the second module. */
static void name_part(const decoder *d, const char *layer, int part, model_block *b) {
    const char *const *names = d->family->halves[part];
    snprintf(b->name, sizeof b->name, part == DECODER_WHOLE ? "%s" : "%s.%s", layer, names[0]);
    if (part != DECODER_WHOLE)
        snprintf(b->also, sizeof b->also, "%s.%s", layer, names[1]);
}

/* With adapters, each half's adapters follow its parameters. */
static tess_status add_params(model *m, const char *layer, int part) {
    int first = part == DECODER_WHOLE ? DECODER_ATTENTION : part, last = part == DECODER_WHOLE ? DECODER_FEED : part;
    if (!m->options.lora.rank)
        return decoder_layer_params(m, layer, part);
    for (int half = first; half <= last; half++) {
        OPS_TRY(decoder_layer_params(m, layer, half));
        OPS_TRY(decoder_lora_params(m, layer, half));
    }
    return TESS_OK;
}

static tess_status build_part(model *m, int32_t i, int part) {
    decoder *d = m->own;
    decoder_layer *l = &d->layers[2 * i + (part == DECODER_FEED)];
    model_block b = { .output_bytes = (uint64_t)(d->rows * d->width) * d->elem, .user = l };
    char layer[MODEL_NAME];
    snprintf(layer, sizeof layer, "%s.%d", d->family->layer, i);
    name_part(d, layer, part, &b);
    decoder_measure_layer(d, part, &b);
    b.forward = decoder_layer_forward;
    b.backward = decoder_layer_backward;
    OPS_TRY(add_params(m, layer, part));
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
    d->t->measure_head(d, &b);
    OPS_TRY(decoder_head_params(m));
    return model__add_block(m, &b);
}

/* Counts the matrices in fp8. That none is would leave the option without effect. */
static tess_status check_fp8(model *m) {
    const decoder *d = m->own;
    for (int32_t i = 0; i < d->family->n_params; i++) {
        m->matrices += d->family->params[i].columns != DECODER_NONE;
        m->in_fp8 += decoder_in_fp8(d, d->family->params[i].place, d->rows);
    }
    if (d->fp8 && m->options.lora.rank)
        return tess_fail(TESS_E_UNSUPPORTED,
                         "%s: products in fp8 are not for adapters (--lora): TESSERA_PRECISION=bf16", m->t->name);
    if (d->fp8 && !m->in_fp8)
        return tess_fail(
            TESS_E_UNSUPPORTED,
            "%s: no product can be in fp8: %lld rows (batch times context), width %lld, feed-forward %lld; "
            "multiples of %d are needed",
            m->t->name, (long long)d->rows, (long long)d->width, (long long)d->hidden, FP8_SIDES);
    return TESS_OK;
}

tess_status decoder_build(model *m) {
    const decoder_operators *t = m->o->t->mem == TESS_MEM_HOST ? &decoder_on_host : &decoder_on_device;
    decoder *d = m->own = calloc(1, t->bytes);
    if (!d || !(d->layers = calloc((size_t)m->options.layers, 2 * sizeof *d->layers)))
        return tess_fail(TESS_E_NOMEM, "out of memory for model %s", m->t->name);
    if (m->options.half_units && !t->remakes)
        return tess_fail(TESS_E_UNSUPPORTED, "%s on %s: its units are whole layers; --units half is for the CPU",
                         m->t->name, m->o->t->name);
    d->t = t;
    m->may_store = 1;
    decoder_sizes(m, d);
    OPS_TRY(decoder_lora_find(d));
    OPS_TRY(check_fp8(m));
    OPS_TRY(t->create(m));
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
    if (d->t)
        d->t->destroy(m);
    free(d->layers);
    free(d);
}
