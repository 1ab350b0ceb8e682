/* SPDX-License-Identifier: BSD-3-Clause */
#include "audit.h"

enum { ALIGN = 64 };

static const tess__param *param_of(const tess__model *m, int32_t block, int32_t k) {
    return &m->params[m->scopes[m->blocks[block].scope].params[k]];
}

static int32_t params_of(const tess__model *m, int32_t block) {
    return m->scopes[m->blocks[block].scope].n_params;
}

int tess__audit_covers(const tess__setup *s, const tess__model *m, int32_t block, int backward) {
    return s->audit_every && s->nranks > 1 && m->blocks[block].options.flags & TESS_BLOCK_AUDIT &&
           (backward || !tess__result_is_late(m, block));
}

int tess__audit_adds(const tess__model *m, int32_t block, int32_t k) {
    int32_t root = param_of(m, block, k)->tied_to;
    for (int32_t later = block + 1; later < m->n_blocks; later++)
        for (int32_t i = 0; i < params_of(m, later); i++)
            if (param_of(m, later, i)->tied_to == root)
                return 1;
    return 0;
}

uint64_t tess__audit_grad_bytes(const tess__layout *l, const tess__param *p) {
    if (p->flags & (TESS_BUFFER | TESS_FROZEN))
        return 0;
    return p->elems * tess_dtype_bytes(l->groups[p->group].grad_local);
}

/* Whether an earlier name in the scope is of the same parameter. */
static int is_again(const tess__model *m, int32_t block, int32_t k) {
    for (int32_t i = 0; i < k; i++)
        if (param_of(m, block, i)->tied_to == param_of(m, block, k)->tied_to)
            return 1;
    return 0;
}

static uint64_t gradients(const tess__model *m, const tess__layout *l, int32_t block, int32_t k, int sums) {
    uint64_t bytes = 0;
    if (k < params_of(m, block)) /* the first name of the same parameter has the place */
        for (int32_t i = k; i-- > 0;)
            if (param_of(m, block, i)->tied_to == param_of(m, block, k)->tied_to)
                k = i;
    for (int32_t i = 0; i < k; i++)
        if (!is_again(m, block, i) && (!sums || tess__audit_adds(m, block, i)))
            bytes += tess__round_up(tess__audit_grad_bytes(l, param_of(m, block, i)), ALIGN);
    return bytes;
}

uint64_t tess__audit_grads_before(const tess__model *m, const tess__layout *l, int32_t block, int32_t k) {
    return gradients(m, l, block, k, 0);
}

uint64_t tess__audit_sums_before(const tess__model *m, const tess__layout *l, int32_t block, int32_t k) {
    return gradients(m, l, block, k, 1);
}

/* Takes a part of a room; returns its offset. */
static uint64_t part(uint64_t *at, uint64_t bytes) {
    uint64_t here = *at;
    *at += tess__round_up(bytes, ALIGN);
    return here;
}

static uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

tess__audit_room tess__audit_room_of(const tess__setup *s, const tess__model *m, const tess__layout *l, int32_t block,
                                     int backward) {
    const tess_block_options *o = &m->blocks[block].options;
    uint64_t input = block ? m->blocks[block - 1].options.output_bytes : 0;
    uint64_t scratch =
        backward ? larger(o->forward_scratch_bytes, o->backward_scratch_bytes) : o->forward_scratch_bytes;
    int32_t n = params_of(m, block);
    tess__audit_room r;
    uint64_t at = TESS__AUDIT_HEAD, work = 0;
    r.batch = part(&at, s->input_bytes);
    r.input = part(&at, input);
    r.grad_output = part(&at, backward && block < m->n_blocks - 1 ? o->output_bytes : 0);
    r.sums = part(&at, backward ? tess__audit_sums_before(m, l, block, n) : 0);
    r.sent_bytes = at;
    r.output = part(&work, o->output_bytes);
    r.saved = part(&work, o->saved_bytes);
    r.scratch = part(&work, scratch);
    r.grad_input = part(&work, backward ? input : 0);
    r.grads = part(&work, backward ? tess__audit_grads_before(m, l, block, n) : 0);
    r.work_bytes = work;
    return r;
}
