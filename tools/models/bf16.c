/* SPDX-License-Identifier: BSD-3-Clause */
/* A model in bf16. Activations between blocks, the saved floats and the matrices are bf16. A block computes in fp32
 * inside, except for its products (ops.h). A wrapper widens small parameters, the input and the saved floats into
 * scratch, and rounds the output. Running statistics and the last block's result keep their dtype. Gradients of
 * parameters are fp32. */
#include "model.h"
#include <tessera/tessera.h>

#include <stdlib.h>
#include <string.h>

typedef struct model_half {
    model *m;
    model_block wide; /* the block as the model made it; output and saved belong to one chunk */
    int32_t is_first, is_last;
    uint64_t input_bytes;  /* fp32 bytes of one chunk; 0 for the first block */
    uint64_t params_bytes; /* bytes of the widened parameters */
} half;

/* The call as the block inside sees it. */
typedef struct {
    tess_block_call call;
    const void *params[MODEL_BLOCK_PARAMS];
    char *at; /* the scratch that is still free */
} inside;

static void *cut(inside *in, uint64_t bytes) {
    void *p = in->at;
    in->at += ops_align(bytes);
    return p;
}

static uint64_t half_of(uint64_t float_bytes) {
    return ops_align(float_bytes / 2);
}

static tess_status widen(const half *h, inside *in, const void *from, uint64_t float_bytes, const void **out) {
    float *to = cut(in, float_bytes);
    *out = to;
    return h->m->o->t->widen(h->m->o, from, to, float_bytes / sizeof *to);
}

static int is_widened(const half *h, int32_t i) {
    const model_param *p = &h->m->desc.params[h->wide.first_param + i];
    return !(h->wide.products >> i & 1) && !p->is_buffer;
}

/* An alias has its target's size. */
static uint64_t elems_of(const model_desc *desc, int32_t i) {
    const model_param *p = &desc->params[i];
    for (int32_t k = 0; p->alias_of[0] && k < i; k++)
        if (!strcmp(desc->params[k].name, p->alias_of))
            return (uint64_t)desc->params[k].elems;
    return (uint64_t)p->elems;
}

static tess_status enter(const half *h, const tess_block_call *call, inside *in) {
    const model_block *b = &h->wide;
    if (call->compute_dtype != h->m->options.precision)
        return tess_fail(TESS_E_UNSUPPORTED, "block %s: parameters come in dtype %u, the model was made for %u",
                         b->name, call->compute_dtype, h->m->options.precision);
    in->call = *call;
    in->call.params = in->params;
    in->call.compute_dtype = TESS_F32;
    in->at = call->scratch;
    for (int32_t i = 0; i < b->n_params; i++) {
        uint64_t bytes = elems_of(&h->m->desc, b->first_param + i) * sizeof(float);
        in->params[i] = call->params[i];
        if (is_widened(h, i))
            OPS_TRY(widen(h, in, call->params[i], bytes, &in->params[i]));
    }
    return h->is_first ? TESS_OK : widen(h, in, call->input, h->input_bytes, &in->call.input);
}

/* Returns room in scratch for `saved` if its first part has to be widened; otherwise `saved` itself. */
static void *wide_saved(const half *h, const tess_block_call *call, inside *in) {
    return h->wide.saved_floats_bytes && call->saved ? cut(in, h->wide.saved_bytes) : call->saved;
}

static tess_status pack_saved(const half *h, const char *wide, char *packed) {
    uint64_t floats = h->wide.saved_floats_bytes;
    ops *o = h->m->o;
    if (!floats || !packed)
        return TESS_OK;
    OPS_TRY(o->t->narrow(o, (const float *)wide, (uint16_t *)packed, floats / sizeof(float)));
    return o->t->copy(o, wide + floats, packed + half_of(floats), h->wide.saved_bytes - floats);
}

static tess_status unpack_saved(const half *h, const char *packed, char *wide) {
    uint64_t floats = h->wide.saved_floats_bytes;
    ops *o = h->m->o;
    if (!floats)
        return TESS_OK;
    OPS_TRY(o->t->widen(o, (const uint16_t *)packed, (float *)wide, floats / sizeof(float)));
    return o->t->copy(o, packed + half_of(floats), wide + floats, h->wide.saved_bytes - floats);
}

static tess_status half_forward(void *user, const tess_block_call *call) {
    const half *h = user;
    inside in;
    OPS_TRY(enter(h, call, &in));
    if (!h->is_last)
        in.call.output = cut(&in, h->wide.output_bytes);
    in.call.saved = wide_saved(h, call, &in);
    in.call.scratch = in.at;
    OPS_TRY(h->wide.forward(h->wide.user, &in.call));
    OPS_TRY(pack_saved(h, in.call.saved, call->saved));
    return h->is_last ? TESS_OK
                      : h->m->o->t->narrow(h->m->o, in.call.output, call->output, h->wide.output_bytes / sizeof(float));
}

static tess_status half_backward(void *user, const tess_block_call *call) {
    const half *h = user;
    const void *output;
    inside in;
    OPS_TRY(enter(h, call, &in));
    if (h->wide.reads_output && !h->is_last) {
        OPS_TRY(widen(h, &in, call->output, h->wide.output_bytes, &output));
        in.call.output = (void *)(uintptr_t)output;
    }
    in.call.saved = wide_saved(h, call, &in);
    OPS_TRY(unpack_saved(h, call->saved, in.call.saved));
    if (!h->is_last)
        OPS_TRY(widen(h, &in, call->grad_output, h->wide.output_bytes, &in.call.grad_output));
    if (!h->is_first)
        in.call.grad_input = cut(&in, h->input_bytes);
    in.call.scratch = in.at;
    OPS_TRY(h->wide.backward(h->wide.user, &in.call));
    return h->is_first
               ? TESS_OK
               : h->m->o->t->narrow(h->m->o, in.call.grad_input, call->grad_input, h->input_bytes / sizeof(float));
}

/* Adds up the sizes that enter, half_forward and half_backward cut from scratch, in the same order. */
static void describe(half *h, model_block *out) {
    const model_block *b = &h->wide;
    uint64_t output = h->is_last ? 0 : ops_align(b->output_bytes), input = ops_align(h->input_bytes);
    uint64_t saved = b->saved_floats_bytes ? ops_align(b->saved_bytes) : 0;
    for (int32_t i = 0; i < b->n_params; i++)
        if (is_widened(h, i))
            h->params_bytes += ops_align(elems_of(&h->m->desc, b->first_param + i) * sizeof(float));
    out->forward_scratch_bytes += h->params_bytes + input + output + saved;
    out->backward_scratch_bytes += h->params_bytes + 2 * input + output + saved + (b->reads_output ? output : 0);
    if (!h->is_last)
        out->output_bytes /= 2;
    if (saved)
        out->saved_bytes = half_of(b->saved_floats_bytes) + b->saved_bytes - b->saved_floats_bytes;
    out->forward = half_forward;
    out->backward = half_backward;
    out->user = h;
}

tess_status model__make_halves(model *m) {
    int32_t n = m->desc.n_blocks;
    uint64_t input = 0;
    half *all = m->halves = calloc((size_t)n, sizeof *all);
    if (!all)
        return tess_fail(TESS_E_NOMEM, "out of memory for model %s in bf16", m->t->name);
    for (int32_t i = 0; i < n; i++) {
        model_block *b = &m->desc.blocks[i];
        if (b->n_params > MODEL_BLOCK_PARAMS)
            return tess_fail(TESS_E_INTERNAL, "block %s has %d parameters, at most %d are possible in bf16", b->name,
                             b->n_params, MODEL_BLOCK_PARAMS);
        uint64_t chunks = b->chunks > 1 ? (uint64_t)b->chunks : 1, output = b->output_bytes;
        all[i] = (half){ .m = m, .wide = *b, .is_first = i == 0, .is_last = i == n - 1 };
        all[i].input_bytes = input / chunks;
        all[i].wide.output_bytes /= chunks;
        all[i].wide.saved_bytes /= chunks;
        describe(&all[i], b);
        input = output;
    }
    return TESS_OK;
}
