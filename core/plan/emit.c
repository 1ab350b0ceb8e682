/* SPDX-License-Identifier: BSD-3-Clause */
#include "emit.h"

#include "base/status.h"
#include "place.h"

/* ---- buffers ---- */

int32_t *tess__emit_buffer_of(tess__compiler *b, int role, int32_t index) {
    return &b->buffer_of[(size_t)role * (size_t)b->stride + (size_t)index];
}

static uint8_t domain_of(const tess__compiler *b, int role, int32_t index) {
    if (role == TESS__MASTER)
        return (uint8_t)b->layout->groups[index].param_rest.domain;
    if (role == TESS__SHARD_GRAD)
        return (uint8_t)tess__rest_domain(&b->layout->groups[index].grad_rest);
    if (role == TESS__PART && tess__one_memory(b->setup))
        return (uint8_t)b->layout->groups[index].grad_rest.domain;
    if (role == TESS__OUTPUT_HOST || role == TESS__SAVED_HOST ||
        (role >= TESS__STAGED0 && role <= TESS__STAGED_GRAD_LAST))
        return TESS_DOMAIN_HOST;
    return TESS_DOMAIN_DEVICE;
}

static int is_resident(const tess__compiler *b, int role, int32_t index) {
    return role <= TESS__SUM_LAST && !(role == TESS__SHARD_GRAD && b->layout->groups[index].grad_moves);
}

tess_status tess__emit_alloc(tess__compiler *b, int role, int32_t index, uint8_t category, int32_t unit, uint64_t bytes,
                             uint8_t flags) {
    if (!bytes)
        return TESS_OK;
    tess__buffer buffer = { .role = (uint8_t)role,
                            .domain = domain_of(b, role, index),
                            .arena = is_resident(b, role, index) ? TESS__RESIDENT : TESS__STEP,
                            .category = category,
                            .index = index,
                            .unit = unit,
                            .bytes = tess__round_up(bytes, b->setup->align),
                            .first = b->p->n_instrs,
                            .last = INT32_MAX };
    int32_t at;
    TRY(tess__program_buffer(b->p, &buffer, &at));
    *tess__emit_buffer_of(b, role, index) = at;
    return tess__program_instr(b->p, TESS__ALLOC, flags, index, at, 0);
}

tess_status tess__emit_free(tess__compiler *b, int role, int32_t index) {
    int32_t at = *tess__emit_buffer_of(b, role, index);
    if (at < 0)
        return TESS_OK;
    *tess__emit_buffer_of(b, role, index) = -1;
    b->p->buffers[at].last = b->p->n_instrs;
    return tess__program_instr(b->p, TESS__FREE, 0, index, at, 0);
}

/* ---- collectives ---- */

static int32_t members_of(const tess__setup *s, int which) {
    switch (which) {
    case TESS__WORLD: return s->nranks;
    case TESS__REPLICA: return s->replicas;
    default: return s->shard_ranks;
    }
}

/* Makes a collective without scratch, which book_scratch adds, and without a reduction. */
tess__planned_collective tess__emit_collective(const tess__compiler *b, uint8_t op, uint8_t which, uint32_t send,
                                               uint32_t recv, uint64_t count) {
    return (tess__planned_collective){ .op = op,
                                       .which = which,
                                       .send_dtype = send,
                                       .recv_dtype = recv,
                                       .members = members_of(b->setup, which),
                                       .scratch = -1,
                                       .count = count };
}

tess_status tess__emit_scratch(tess__compiler *b, int role, int32_t index, int32_t unit, tess__planned_collective *c) {
    uint64_t bytes = 0;
    if (c->members > 1)
        TRY(tess__scratch_of(b->setup, c->op, c->send_dtype, c->recv_dtype, c->count, c->members, &bytes));
    TRY(tess__emit_alloc(b, role, index, TESS_CAT_COMM, unit, bytes, 0));
    c->scratch = *tess__emit_buffer_of(b, role, index);
    return TESS_OK;
}

tess_status tess__emit_post(tess__compiler *b, uint8_t op, uint8_t flags, int32_t index,
                            const tess__planned_collective *c) {
    return tess__program_collective(b->p, op, flags, index, b->ordinal++, c);
}

tess_status tess__emit(tess__compiler *b, uint8_t op, int32_t index) {
    return tess__program_instr(b->p, op, 0, index, -1, 0);
}

tess_status tess__emit_flagged(tess__compiler *b, uint8_t op, uint8_t flags, int32_t index) {
    return tess__program_instr(b->p, op, flags, index, -1, 0);
}
