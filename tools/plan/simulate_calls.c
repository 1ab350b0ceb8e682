/* SPDX-License-Identifier: BSD-3-Clause */
/* The time that calls of a program's own scopes take. */
#include "simulate.h"

static uint32_t scope_dtype(const simulation *s, int32_t scope) {
    const tess__scope *of = &s->model->scopes[scope];
    for (int32_t i = 0; i < of->n_params; i++)
        if (s->model->params[of->params[i]].group >= 0)
            return s->layout->groups[s->model->params[of->params[i]].group].compute;
    return TESS_F32;
}

double simulate_call_seconds(const simulation *s, int32_t scope, int back) {
    const machine_desc *m = s->machine;
    double threads = m->is_cpu ? s->threads : 1;
    const scope_cost *c = &s->costs[scope];
    double seconds = back ? c->backward_seconds : c->forward_seconds;
    double fp8 = back ? c->backward_fp8 : c->forward_fp8, flops = (back ? c->backward_flops : c->forward_flops) - fp8;
    double rate = m->flops_per_second[scope_dtype(s, scope) & 15], said = m->flops_per_second[TESS_F8E4M3];
    if (seconds > 0)
        return seconds;
    return simulate_over(flops, rate * threads) + simulate_over(fp8, (said > 0 ? said : rate) * threads) +
           simulate_over(back ? c->backward_bytes : c->forward_bytes, m->memory_bytes_per_second * threads) +
           (back ? c->backward_kernels : c->forward_kernels) * m->kernel_seconds;
}

double simulate_made_again(const tess__model *m, const tess__setup *s, int32_t block) {
    if (block < 0 || block == m->n_blocks - 1)
        return 0;
    const tess_block_options *o = &m->blocks[block].options;
    if (tess__saves_selectively(m, s, block))
        return o->forward_work > 0 ? o->selective_work / o->forward_work : 0.5;
    return tess__activations_of(s, block) == TESS__ACTIVATIONS_RECOMPUTE && o->remake_scratch_bytes &&
           !(o->flags & TESS_BLOCK_KEEP);
}
