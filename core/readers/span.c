/* SPDX-License-Identifier: BSD-3-Clause */
#include "span.h"

#include <string.h>

const char *tess__track_name(uint32_t track) {
    static const char *const names[] = { "compute", "communication", "transfer_up", "transfer_down", "host" };
    return track < TESS__N_TRACKS ? names[track] : "?";
}

static const char *const op_names[] = {
    [TESS__ALLOC] = "zero",
    [TESS__FREE] = "free",
    [TESS__INPUT_COPY] = "input",
    [TESS__RESULT_COPY] = "result",
    [TESS__GATHER] = "all_gather",
    [TESS__GATHER_WAIT] = "wait_all_gather",
    [TESS__CAST_WIRE] = "cast_gradient",
    [TESS__SUM_FULL] = "sum_microbatches",
    [TESS__REDUCE] = "reduce_scatter",
    [TESS__REDUCE_WAIT] = "wait_reduce_scatter",
    [TESS__REPLICATE] = "all_reduce",
    [TESS__REPLICATE_WAIT] = "wait_all_reduce",
    [TESS__SUM_SHARD] = "sum_shards",
    [TESS__NORM_GROUP] = "norm",
    [TESS__NORM_REDUCE] = "all_reduce_norm",
    [TESS__NORM_FINISH] = "norm_result",
    [TESS__OPTIMIZE] = "optimizer",
    [TESS__SHARE_BUFFERS] = "broadcast_buffers",
    [TESS__PREFETCH] = "fetch",
    [TESS__PREFETCH_WAIT] = "wait_fetch",
    [TESS__HOST_WAIT] = "wait_host",
    [TESS__OFFLOAD] = "stow",
    [TESS__OFFLOAD_WAIT] = "wait_stow",
    [TESS__RELOAD] = "unstow",
    [TESS__RELOAD_WAIT] = "wait_unstow",
    [TESS__UPDATE_MAKE] = "update",
    [TESS__COLLECT] = "gather_updates",
    [TESS__COLLECT_WAIT] = "wait_gather_updates",
    [TESS__MATRIX] = "matrices",
    [TESS__RETURN] = "return_updates",
    [TESS__RETURN_WAIT] = "wait_return_updates",
    [TESS__UPDATE_APPLY] = "optimizer_apply",
    [TESS__WIDEN] = "widen",
    [TESS__SUM_ARRIVED] = "sum_ranks",
    [TESS__AUDIT_SEND] = "all_gather_audit",
    [TESS__AUDIT] = "audit",
    [TESS__PACK_SUM] = "pack_sum",
    [TESS__SUM_LANDED] = "sum_replicas",
    [TESS__WIDEN_SUM] = "widen_sum",
    [TESS__STATES_FETCH] = "fetch_states",
    [TESS__STATES_FETCH_WAIT] = "wait_fetch_states",
    [TESS__STATES_STORE] = "store_states",
    [TESS__STATES_STORE_WAIT] = "wait_store_states",
    [TESS__GRAD_FETCH] = "fetch_gradient",
    [TESS__GRAD_FETCH_WAIT] = "wait_fetch_gradient",
    [TESS__GRAD_STORE] = "store_gradient",
    [TESS__GRAD_STORE_WAIT] = "wait_store_gradient",
};

static int is_op(uint8_t op) {
    return op < sizeof op_names / sizeof op_names[0] && op_names[op];
}

/* Names a span's operation. The engine thread's work before a collective's post has another name than the
 * collective. */
const char *tess__span_op(const tess__span *s) {
    int compute = s->track == TESS__TRACK_COMPUTE;
    if (s->op == TESS__ENTER)
        return s->event == TESS__FORWARD_BEGIN    ? "forward"
               : s->event == TESS__BACKWARD_BEGIN ? "backward"
                                                  : "recompute";
    if (compute && s->op == TESS__GATHER)
        return "cast_shard";
    if (compute && s->op == TESS__REDUCE)
        return "average";
    return is_op(s->op) ? op_names[s->op] : "?";
}

int tess__span_is_wait(const tess__span *s) {
    return s->track == TESS__TRACK_COMPUTE && (s->op == TESS__NORM_REDUCE || s->op == TESS__SHARE_BUFFERS ||
                                               (is_op(s->op) && strncmp(op_names[s->op], "wait_", 5) == 0));
}

tess__span_place tess__span_about(const tess__span *s, const tess__model *m, const tess__layout *l) {
    tess__span_place at = { -1, -1, -1 };
    switch (s->op) {
    case TESS__ENTER: at.scope = s->index; break;
    case TESS__INPUT_COPY:
    case TESS__NORM_REDUCE:
    case TESS__NORM_FINISH:
    case TESS__SHARE_BUFFERS:
    case TESS__ALLOC: break;
    case TESS__RESULT_COPY:
    case TESS__AUDIT_SEND:
    case TESS__AUDIT:
    case TESS__OFFLOAD:
    case TESS__OFFLOAD_WAIT:
    case TESS__RELOAD:
    case TESS__RELOAD_WAIT: at.scope = m->blocks[s->index].scope; break;
    default: at.unit = l->groups[s->index].unit;
    }
    if (at.scope >= 0)
        at.block = m->scopes[at.scope].block;
    return at;
}

const char *tess__span_unit(const tess__span *s, const tess__model *m, const tess__layout *l) {
    tess__span_place at = tess__span_about(s, m, l);
    return at.scope >= 0 ? m->scopes[at.scope].name : at.unit >= 0 ? l->units[at.unit].name : "";
}
