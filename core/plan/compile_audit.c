/* SPDX-License-Identifier: BSD-3-Clause */
/* Every audited block has these instructions in every training pass, and its turn comes at run time. So a program stays
 * the same for all steps, and so do its bytes. */
#include "compile_audit.h"

#include "audit.h"
#include "base/status.h"
#include "emit.h"

static int is_audited(const tess__compiler *b, uint8_t type, int32_t block) {
    return (b->p->kind & 15) == TESS_PASS_TRAIN && type < TESS__RECOMPUTE_BEGIN &&
           tess__audit_covers(b->setup, b->model, block, type == TESS__BACKWARD_BEGIN || type == TESS__BACKWARD_END);
}

/* Posts a collective that gives every rank `bytes` of each. */
static tess_status exchange(tess__compiler *b, uint8_t op, uint8_t flags, int32_t block, uint64_t bytes) {
    tess__planned_collective c = tess__emit_collective(b, TESS_ALL_GATHER, TESS__WORLD, TESS_U8, TESS_U8, bytes);
    TRY(tess__emit_scratch(b, TESS__AUDIT_SCRATCH, block, -1, &c));
    TRY(tess__emit_post(b, op, flags, block, &c));
    return tess__emit_free(b, TESS__AUDIT_SCRATCH, block);
}

tess_status tess__audit_begin(tess__compiler *b, uint8_t type, int32_t block) {
    if (!is_audited(b, type, block))
        return TESS_OK;
    uint8_t flags = type == TESS__BACKWARD_BEGIN ? TESS__OF_BACKWARD : 0;
    tess__audit_room room = tess__audit_room_of(b->setup, b->model, b->layout, block, flags != 0);
    TRY(tess__emit_alloc(b, TESS__AUDIT_SENT, block, TESS_CAT_COMM, -1, (uint64_t)b->setup->nranks * room.sent_bytes,
                         flags));
    return exchange(b, TESS__AUDIT_SEND, flags, block, room.sent_bytes);
}

tess_status tess__audit_end(tess__compiler *b, uint8_t type, int32_t block) {
    if (!is_audited(b, type, block))
        return TESS_OK;
    uint8_t flags = type == TESS__BACKWARD_END ? TESS__OF_BACKWARD : 0;
    tess__audit_room room = tess__audit_room_of(b->setup, b->model, b->layout, block, flags != 0);
    TRY(tess__emit_alloc(b, TESS__AUDIT_WORK, block, TESS_CAT_TEMPORARY, -1, room.work_bytes, flags));
    TRY(tess__emit_alloc(b, TESS__AUDIT_FOUND, block, TESS_CAT_COMM, -1,
                         (uint64_t)b->setup->nranks * TESS__AUDIT_FOUND_BYTES, 0));
    TRY(exchange(b, TESS__AUDIT, flags, block, TESS__AUDIT_FOUND_BYTES));
    TRY(tess__emit_free(b, TESS__AUDIT_FOUND, block));
    TRY(tess__emit_free(b, TESS__AUDIT_WORK, block));
    return tess__emit_free(b, TESS__AUDIT_SENT, block);
}
