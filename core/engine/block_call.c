/* SPDX-License-Identifier: BSD-3-Clause */
/* A call of a block, without the memory that it is about. */
#include "state.h"

uint32_t tess__scope_dtype(const tess *t, int32_t scope) {
    const tess__scope *s = &t->plan.model.scopes[scope];
    for (int32_t i = 0; i < s->n_params; i++)
        if (t->plan.model.params[s->params[i]].group >= 0)
            return t->plan.layout.groups[t->plan.model.params[s->params[i]].group].compute;
    return TESS_F32;
}

tess_block_call tess__block_call_of(const tess *t, int32_t block) {
    int32_t scope = t->plan.model.blocks[block].scope;
    return (tess_block_call){ .struct_size = sizeof(tess_block_call),
                              .pass = t->pass.kind & 15, /* without flags: TRAIN or EVAL */
                              .compute_dtype = tess__scope_dtype(t, scope),
                              .step = t->step.steps_done,
                              .microbatch = t->pass.run->microbatch,
                              .params = (const void *const *)t->pass.block_params,
                              .n_params = t->plan.model.scopes[scope].n_params,
                              .threads = t->plan.setup.threads,
                              .loss_scale = tess_loss_scale(t) };
}
