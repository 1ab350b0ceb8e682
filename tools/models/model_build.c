/* SPDX-License-Identifier: BSD-3-Clause */
/* Functions with which a model describes its parameters, scopes and blocks, in the order of the calls. */
#include "model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tess_status grow(void **array, int32_t used, size_t size) {
    if (used & (used - 1)) /* the array grows only when its size is 0 or a power of two */
        return TESS_OK;
    void *more = realloc(*array, (size_t)(used ? used * 2 : 1) * size);
    if (!more)
        return tess_fail(TESS_E_NOMEM, "out of memory for a model's description");
    *array = more;
    return TESS_OK;
}

static tess_status next_param(model *m, const char *name, model_param **out) {
    OPS_TRY(grow((void **)&m->desc.params, m->desc.n_params, sizeof *m->desc.params));
    model_param *p = &m->desc.params[m->desc.n_params];
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s", name);
    m->desc.n_params++;
    *out = p;
    return TESS_OK;
}

tess_status model__add_param(model *m, const char *name, const int64_t shape[MODEL_DIMS], uint32_t init, float scale) {
    model_param *p;
    OPS_TRY(next_param(m, name, &p));
    p->elems = 1;
    for (; p->ndim < MODEL_DIMS && shape[p->ndim]; p->ndim++)
        p->elems *= p->shape[p->ndim] = shape[p->ndim];
    p->init = init;
    p->scale = scale;
    p->optimizer_group = m->t->optimizer_groups > 1 && p->ndim < 2;
    return TESS_OK;
}

tess_status model__add_alias(model *m, const char *name, const char *of) {
    model_param *p;
    OPS_TRY(next_param(m, name, &p));
    snprintf(p->alias_of, sizeof p->alias_of, "%s", of);
    return TESS_OK;
}

tess_status model__add_buffer(model *m, const char *name, int64_t elems, float value) {
    const int64_t shape[MODEL_DIMS] = { elems };
    OPS_TRY(model__add_param(m, name, shape, MODEL_CONSTANT, value));
    m->desc.params[m->desc.n_params - 1].is_buffer = 1;
    return TESS_OK;
}

tess_status model__add_scope(model *m, const char *name) {
    OPS_TRY(grow((void **)&m->desc.scopes, m->desc.n_scopes, sizeof *m->desc.scopes));
    snprintf(m->desc.scopes[m->desc.n_scopes++], MODEL_NAME, "%s", name);
    return TESS_OK;
}

tess_status model__add_block(model *m, const model_block *block) {
    OPS_TRY(grow((void **)&m->desc.blocks, m->desc.n_blocks, sizeof *m->desc.blocks));
    model_block *b = &m->desc.blocks[m->desc.n_blocks];
    const model_block *before = m->desc.n_blocks ? b - 1 : NULL;
    *b = *block;
    b->first_param = before ? before->first_param + before->n_params : 0;
    b->n_params = m->desc.n_params - b->first_param;
    m->desc.n_blocks++;
    m->desc.result_bytes = b->output_bytes;
    return TESS_OK;
}

ops_dropout model__dropout(const model *m, const tess_block_call *call, uint32_t layer, float rate) {
    ops_dropout d = { .seed = m->options.seed, .step = call->step, .layer = layer };
    d.first_sample = call->microbatch * (uint64_t)m->options.batch + (uint64_t)m->first_sample;
    d.rate = call->pass & TESS_PASS_TRAIN ? rate : 0;
    return d;
}
