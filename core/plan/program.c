/* SPDX-License-Identifier: BSD-3-Clause */
#include "program.h"

#include "base/hash.h"
#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>

static tess_status grow_items(void **items, int32_t n, int32_t *cap, size_t size) {
    if (n < *cap)
        return TESS_OK;
    int32_t want = *cap ? 2 * *cap : 64;
    void *bigger = realloc(*items, (size_t)want * size);
    if (!bigger)
        return tess__fail(TESS_E_NOMEM, "no memory for a program of %d instructions", want);
    *items = bigger;
    *cap = want;
    return TESS_OK;
}

tess_status tess__program_instr(tess__program *p, uint8_t op, uint8_t flags, int32_t index, int32_t buffer,
                                uint64_t tag) {
    TRY(grow_items((void **)&p->instrs, p->n_instrs, &p->cap_instrs, sizeof *p->instrs));
    p->instrs[p->n_instrs++] =
        (tess__instr){ .op = op, .flags = flags, .index = index, .buffer = buffer, .collective = -1, .tag = tag };
    return TESS_OK;
}

static uint64_t collective_tag(const tess__program *p, uint8_t op, int32_t index, uint64_t ordinal,
                               const tess__planned_collective *c) {
    uint64_t h = tess__hash_u64(TESS__HASH_START, ordinal);
    h = tess__hash_u64(h, (uint64_t)p->kind << 32 | op);
    h = tess__hash_u64(h, (uint64_t)(uint32_t)index << 32 | (uint32_t)c->members);
    h = tess__hash_u64(h, (uint64_t)c->op << 24 | (uint64_t)c->redop << 16 | (uint64_t)c->which << 8 | c->is_mean);
    h = tess__hash_u64(h, (uint64_t)c->send_dtype << 32 | c->recv_dtype);
    h = tess__hash_u64(h, c->count);
    return h ? h : 1;
}

tess_status tess__program_collective(tess__program *p, uint8_t op, uint8_t flags, int32_t index, uint64_t ordinal,
                                     const tess__planned_collective *c) {
    TRY(grow_items((void **)&p->collectives, p->n_collectives, &p->cap_collectives, sizeof *p->collectives));
    TRY(tess__program_instr(p, op, flags, index, -1, collective_tag(p, op, index, ordinal, c)));
    p->instrs[p->n_instrs - 1].collective = p->n_collectives;
    p->collectives[p->n_collectives++] = *c;
    return TESS_OK;
}

tess_status tess__program_buffer(tess__program *p, const tess__buffer *b, int32_t *index) {
    tess_status s = grow_items((void **)&p->buffers, p->n_buffers, &p->cap_buffers, sizeof *p->buffers);
    if (!s) {
        *index = p->n_buffers;
        p->buffers[p->n_buffers++] = *b;
    }
    return s;
}

tess_status tess__program_event(tess__program *p, uint8_t type, int32_t scope) {
    TRY(grow_items((void **)&p->events, p->n_events, &p->cap_events, sizeof *p->events));
    p->events[p->n_events++] = (tess__event){ .type = type, .scope = scope };
    return TESS_OK;
}

tess_status tess__program_point(tess__program *p, uint32_t point, int32_t unit) {
    TRY(grow_items((void **)&p->points, p->n_points, &p->cap_points, sizeof *p->points));
    p->points[p->n_points++] = (tess__point){ .at = p->n_instrs, .unit = unit, .point = point };
    return TESS_OK;
}

void tess__program_clear(tess__program *p) {
    p->n_instrs = p->n_buffers = p->n_events = p->n_points = p->n_collectives = 0;
}

void tess__program_free(tess__program *p) {
    free(p->instrs);
    free(p->buffers);
    free(p->events);
    free(p->points);
    free(p->collectives);
    *p = (tess__program){ 0 };
}

uint64_t tess__program_hash(const tess__program *p) {
    uint64_t h = tess__hash_u64(TESS__HASH_START, p->kind);
    for (int32_t i = 0; i < p->n_instrs; i++) {
        const tess__instr *in = &p->instrs[i];
        h = tess__hash_u64(h, (uint64_t)in->op << 40 | (uint64_t)in->flags << 32 | (uint32_t)in->index);
        h = tess__hash_u64(h, in->tag);
    }
    for (int32_t i = 0; i < p->n_buffers; i++) {
        const tess__buffer *b = &p->buffers[i];
        h = tess__hash_u64(h, (uint64_t)b->role << 48 | (uint64_t)b->arena << 40 | (uint64_t)b->domain << 36 |
                                  (uint64_t)b->category << 32 | (uint32_t)b->index);
        h = tess__hash_u64(h, b->bytes);
        h = tess__hash_u64(h, b->offset);
    }
    return h;
}

const char *tess__category_name(uint32_t category) {
    static const char *const names[] = { "?",
                                         "sharded parameter",
                                         "unsharded parameter",
                                         "sharded gradient",
                                         "unsharded gradient",
                                         "optimizer state",
                                         "activation",
                                         "communication",
                                         "input",
                                         "temporary",
                                         "buffer",
                                         "fragmentation",
                                         "snapshot",
                                         "mirror",
                                         "parameter copy",
                                         "optimizer scratch" };
    return category < sizeof names / sizeof names[0] ? names[category] : "?";
}

static const char *op_name(uint8_t op) {
    static const char *const names[] = {
        [TESS__ALLOC] = "book",
        [TESS__FREE] = "free",
        [TESS__INPUT_COPY] = "input",
        [TESS__RESULT_COPY] = "result",
        [TESS__GATHER] = "all_gather",
        [TESS__GATHER_WAIT] = "all_gather",
        [TESS__ENTER] = "enter",
        [TESS__LEAVE] = "leave",
        [TESS__CAST_WIRE] = "cast of the gradient",
        [TESS__SUM_FULL] = "sum of microbatches",
        [TESS__REDUCE] = "reduce_scatter",
        [TESS__REDUCE_WAIT] = "reduce_scatter",
        [TESS__REPLICATE] = "all_reduce",
        [TESS__REPLICATE_WAIT] = "all_reduce",
        [TESS__SUM_SHARD] = "sum of shards",
        [TESS__NORM_GROUP] = "gradient norm",
        [TESS__NORM_REDUCE] = "all_reduce of the gradient norm",
        [TESS__NORM_FINISH] = "end of the gradient norm",
        [TESS__OPTIMIZE] = "optimizer step",
        [TESS__SHARE_BUFFERS] = "broadcast of buffers",
        [TESS__PREFETCH] = "fetch from the host",
        [TESS__PREFETCH_WAIT] = "wait for the fetch from the host",
        [TESS__HOST_WAIT] = "wait for the work on the host",
        [TESS__OFFLOAD] = "move to the host",
        [TESS__OFFLOAD_WAIT] = "wait for the move to the host",
        [TESS__RELOAD] = "move back from the host",
        [TESS__RELOAD_WAIT] = "wait for the move back from the host",
        [TESS__UPDATE_MAKE] = "update of matrices",
        [TESS__COLLECT] = "gathering of the updates",
        [TESS__COLLECT_WAIT] = "gathering of the updates",
        [TESS__MATRIX] = "matrices",
        [TESS__RETURN] = "return of the updates",
        [TESS__RETURN_WAIT] = "return of the updates",
        [TESS__UPDATE_APPLY] = "optimizer step",
        [TESS__WIDEN] = "widening",
        [TESS__SUM_ARRIVED] = "sum of ranks",
        [TESS__AUDIT_SEND] = "all_gather for the audit",
        [TESS__AUDIT] = "audit",
        [TESS__PACK_SUM] = "cast of the sum",
        [TESS__SUM_LANDED] = "sum of replicas",
        [TESS__WIDEN_SUM] = "widening of the sum",
        [TESS__STATES_FETCH] = "fetch of the states",
        [TESS__STATES_FETCH_WAIT] = "wait for the fetch of the states",
        [TESS__STATES_STORE] = "store of the states",
        [TESS__STATES_STORE_WAIT] = "wait for the store of the states",
        [TESS__GRAD_FETCH] = "fetch of the gradient",
        [TESS__GRAD_FETCH_WAIT] = "wait for the fetch of the gradient",
        [TESS__GRAD_STORE] = "store of the gradient",
        [TESS__GRAD_STORE_WAIT] = "wait for the store of the gradient",
    };
    return op < sizeof names / sizeof names[0] && names[op] ? names[op] : "?";
}

static const char *event_name(uint8_t type) {
    static const char *const names[] = { "?",           "forward of",       "forward of",      "backward of",
                                         "backward of", "recomputation of", "recomputation of" };
    return names[type];
}

void tess__program_text(const tess__program *p, const tess__model *m, const tess__layout *l, int32_t i, char *out,
                        size_t n) {
    const tess__instr *in = &p->instrs[i];
    if (in->op == TESS__ENTER || in->op == TESS__LEAVE) {
        const tess__event *e = &p->events[in->index];
        snprintf(out, n, "%s %s \"%s\"", op_name(in->op), event_name(e->type), m->scopes[e->scope].name);
    } else if (in->op == TESS__ALLOC || in->op == TESS__FREE) {
        const tess__buffer *b = &p->buffers[in->buffer];
        snprintf(out, n, "%s %s%s%s, %llu bytes", op_name(in->op), tess__category_name(b->category),
                 b->unit >= 0 ? " of unit " : "", b->unit >= 0 ? l->units[b->unit].name : "",
                 (unsigned long long)b->bytes);
    } else if (in->op == TESS__INPUT_COPY || in->op == TESS__RESULT_COPY || in->op == TESS__NORM_REDUCE ||
               in->op == TESS__SHARE_BUFFERS || in->op == TESS__NORM_FINISH) {
        snprintf(out, n, "%s", op_name(in->op));
    } else if (in->op == TESS__AUDIT || in->op == TESS__AUDIT_SEND) {
        snprintf(out, n, "%s of %s of block \"%s\"", op_name(in->op),
                 in->flags & TESS__OF_BACKWARD ? "backward" : "forward", m->blocks[in->index].options.name);
    } else if (in->op >= TESS__OFFLOAD && in->op <= TESS__RELOAD_WAIT) {
        snprintf(out, n, "%s of the activations of \"%s\"", op_name(in->op),
                 m->scopes[m->blocks[in->index].scope].name);
    } else {
        const tess__group *g = &l->groups[in->index];
        snprintf(out, n, "%s of unit %s (%llu elements)", op_name(in->op), l->units[g->unit].name,
                 (unsigned long long)g->flat_elems);
    }
}
