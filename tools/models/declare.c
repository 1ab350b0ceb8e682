/* A model's parameters and blocks to the engine: the one file of the models that calls it. */
#include "model.h"

static tess_status declare_param(tess *t, const model *m, int32_t i) {
    const model_param *p = &m->desc.params[i];
    if (p->alias_of[0])
        return tess_param_tie(t, p->name, p->alias_of);
    tess_param_options o = { .struct_size = sizeof o, .dtype = TESS_F32, .name = p->name };
    o.shape = p->shape;
    o.ndim = p->ndim;
    o.optimizer_group = p->optimizer_group;
    o.tag = (uint64_t)i;
    return tess_param_add(t, &o, NULL);
}

tess_status model_declare(tess *t, const model *m) {
    for (int32_t i = 0; i < m->desc.n_params; i++)
        OPS_TRY(declare_param(t, m, i));
    for (int32_t i = 0; i < m->desc.n_blocks; i++) {
        const model_block *b = &m->desc.blocks[i];
        tess_block_options o = { .struct_size = sizeof o, .name = b->name, .output_bytes = b->output_bytes };
        o.saved_bytes = b->saved_bytes;
        o.forward_scratch_bytes = b->forward_scratch_bytes;
        o.backward_scratch_bytes = b->backward_scratch_bytes;
        o.forward = b->forward;
        o.backward = b->backward;
        o.user = b->user;
        OPS_TRY(tess_block_add(t, &o, NULL));
    }
    return TESS_OK;
}
