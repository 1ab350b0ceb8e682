/* SPDX-License-Identifier: BSD-3-Clause */
#include "compile_blocks.h"

#include "base/status.h"
#include "emit.h"

/* The last block is never recomputed, because its backward follows immediately. Nor is one that saves nothing. */
int tess__block_recomputes(const tess__compiler *b, int32_t block) {
    const tess_block_options *o = &b->model->blocks[block].options;
    return tess__activations_of(b->setup, block) == TESS__ACTIVATIONS_RECOMPUTE && block < b->model->n_blocks - 1 &&
           o->saved_bytes && !(o->flags & TESS_BLOCK_KEEP);
}

/* Whether backward makes the saved activations again, piece by piece, so that no forward runs again. */
int tess__block_remakes(const tess__compiler *b, int32_t block) {
    return tess__block_recomputes(b, block) && b->model->blocks[block].options.remake_scratch_bytes;
}

/* Whether the block saves a part of its activations and backward makes the rest again. */
static int is_selective(const tess__compiler *b, int32_t block) {
    return tess__saves_selectively(b->model, b->setup, block);
}

static int is_offloaded(const tess__compiler *b, int32_t block, uint8_t which) {
    return (b->p->kind & 15) == TESS_PASS_TRAIN && tess__offloaded_bytes(b->model, b->setup, block, which != 0);
}

static int role_of(uint8_t which, int host) {
    return which == TESS__OUTPUTS ? (host ? TESS__OUTPUT_HOST : TESS__OUTPUT) : host ? TESS__SAVED_HOST : TESS__SAVED;
}

/* Begins the copy of a block's buffer to the host, or back to the device, into a buffer of its own. */
static tess_status move_block(tess__compiler *b, int32_t block, uint8_t which, int to_host) {
    if (!is_offloaded(b, block, which))
        return TESS_OK;
    const tess__buffer *from = &b->p->buffers[*tess__emit_buffer_of(b, role_of(which, !to_host), block)];
    TRY(tess__emit_alloc(b, role_of(which, to_host), block, TESS_CAT_ACTIVATION, -1, from->bytes, 0));
    return tess__emit_flagged(b, to_host ? TESS__OFFLOAD : TESS__RELOAD, which, block);
}

static tess_status end_offload(tess__compiler *b, int32_t block, uint8_t which) {
    if (!is_offloaded(b, block, which))
        return TESS_OK;
    TRY(tess__emit_flagged(b, TESS__OFFLOAD_WAIT, which, block));
    return tess__emit_free(b, role_of(which, 0), block);
}

/* Waits once, although a forward that runs again needs the input, and then the backward behind it. */
static tess_status end_reload(tess__compiler *b, int32_t block, uint8_t which) {
    if (!is_offloaded(b, block, which) || *tess__emit_buffer_of(b, role_of(which, 1), block) < 0)
        return TESS_OK;
    TRY(tess__emit_flagged(b, TESS__RELOAD_WAIT, which, block));
    return tess__emit_free(b, role_of(which, 1), block);
}

/* After a block's forward, activations that only backward needs go to the host while the next block runs. */
static tess_status offload_behind(tess__compiler *b, int32_t block) {
    TRY(end_offload(b, block - 1, 0));
    TRY(end_offload(b, block - 2, TESS__OUTPUTS));
    TRY(move_block(b, block, 0, 1));
    return move_block(b, block - 1, TESS__OUTPUTS, 1);
}

/* When a block's backward begins, the activations of the block behind it come back while this one runs. */
static tess_status reload_ahead(tess__compiler *b, int32_t block) {
    TRY(end_reload(b, block, 0));
    TRY(end_reload(b, block - 1, TESS__OUTPUTS));
    TRY(move_block(b, block - 1, 0, 0));
    return move_block(b, block - 2, TESS__OUTPUTS, 0);
}

static tess_status backward_begin(tess__compiler *b, int32_t block) {
    if (b->model->blocks[block].options.flags & TESS_BLOCK_DROP_OUTPUT)
        TRY(tess__emit_free(b, TESS__OUTPUT, block));
    TRY(reload_ahead(b, block));
    if (block == 0 || tess__grad_in_place(b->model, block))
        return TESS_OK;
    return tess__emit_alloc(b, TESS__OUTPUT_GRAD, tess__grad_place(b->model, block - 1), TESS_CAT_ACTIVATION, -1,
                            b->model->blocks[block - 1].options.output_bytes, 0);
}

tess_status tess__block_begin(tess__compiler *b, uint8_t type, int32_t block) {
    const tess_block_options *o = &b->model->blocks[block].options;
    int train = (b->p->kind & 15) == TESS_PASS_TRAIN;
    if (type == TESS__FORWARD_BEGIN)
        TRY(tess__emit_alloc(b, TESS__OUTPUT, block, TESS_CAT_ACTIVATION, -1, o->output_bytes, 0));
    if (type == TESS__RECOMPUTE_BEGIN || (type == TESS__FORWARD_BEGIN && train && !tess__block_remakes(b, block)))
        TRY(tess__emit_alloc(b, TESS__SAVED, block, TESS_CAT_ACTIVATION, -1,
                             is_selective(b, block) ? o->selective_saved_bytes : o->saved_bytes, 0));
    if (type == TESS__RECOMPUTE_BEGIN)
        TRY(end_reload(b, block - 1, TESS__OUTPUTS));
    if (type == TESS__BACKWARD_BEGIN)
        TRY(backward_begin(b, block));
    uint64_t scratch = type != TESS__BACKWARD_BEGIN    ? o->forward_scratch_bytes
                       : tess__block_remakes(b, block) ? o->remake_scratch_bytes
                       : is_selective(b, block)        ? o->selective_scratch_bytes
                                                       : o->backward_scratch_bytes;
    return tess__emit_alloc(b, TESS__SCRATCH, block, TESS_CAT_TEMPORARY, -1, scratch, 0);
}

tess_status tess__block_end(tess__compiler *b, uint8_t type, int32_t block) {
    int train = (b->p->kind & 15) == TESS_PASS_TRAIN, last = block == b->model->n_blocks - 1;
    TRY(tess__emit_free(b, TESS__SCRATCH, block));
    if (type == TESS__FORWARD_END) {
        if (last && !(train && tess__result_is_late(b->model, block)))
            TRY(tess__emit(b, TESS__RESULT_COPY, block));
        if (train && tess__block_recomputes(b, block))
            TRY(tess__emit_free(b, TESS__SAVED, block));
        TRY(offload_behind(b, block));
        if (!train && block > 0)
            TRY(tess__emit_free(b, TESS__OUTPUT, block - 1));
        if (!train && last)
            TRY(tess__emit_free(b, TESS__OUTPUT, block));
    } else if (type == TESS__BACKWARD_END) {
        if (tess__result_is_late(b->model, block))
            TRY(tess__emit(b, TESS__RESULT_COPY, block));
        if (!tess__grad_in_place(b->model, block))
            TRY(tess__emit_free(b, TESS__OUTPUT_GRAD, tess__grad_place(b->model, block)));
        TRY(tess__emit_free(b, TESS__SAVED, block));
        TRY(tess__emit_free(b, TESS__OUTPUT, block));
    }
    return TESS_OK;
}
