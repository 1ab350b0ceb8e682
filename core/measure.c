#include "engine.h"

#include "norm.h"
#include "status.h"
#include "try.h"

#include <stdlib.h>

/* ---- what the comm plugin wants ---- */

static tess_status ask_group(tess__needs *n, const tess__setup *s, const tess__group *g, int32_t i) {
    uint32_t sent = s->accum > 1 && !s->sync_each ? TESS_F32 : g->grad_wire;
    if (s->shard_ranks > 1) {
        TRY(tess__scratch_of(s, TESS_ALL_GATHER, g->compute, g->compute, g->shard_elems, s->shard_ranks,
                             &n->gather[i]));
        if (g->trainable)
            TRY(tess__scratch_of(s, TESS_REDUCE_SCATTER, sent, TESS_F32, g->shard_elems, s->shard_ranks,
                                 &n->reduce[i]));
    }
    if (s->replicas > 1 && g->trainable)
        TRY(tess__scratch_of(s, TESS_ALL_REDUCE, s->shard_ranks > 1 ? TESS_F32 : sent, TESS_F32, g->shard_elems,
                             s->replicas, &n->replicate[i]));
    return TESS_OK;
}

static tess_status ask_rest(tess__needs *n, const tess__setup *s, const tess__layout *l) {
    for (int32_t i = 0; i < l->n_groups; i++) {
        uint64_t bytes = l->chunk_elems * tess__dtype_bytes(l->groups[i].master);
        n->chunk = bytes > n->chunk ? bytes : n->chunk;
    }
    if (s->shard_ranks > 1) {
        TRY(tess__scratch_of(s, TESS_ALL_REDUCE, TESS_I64, TESS_I64, TESS__NORM_LIMBS, s->shard_ranks, &n->norm));
        TRY(tess__scratch_of(s, TESS_BROADCAST, TESS_U8, TESS_U8, n->chunk, s->shard_ranks, &n->full));
    }
    if (s->nranks > 1)
        TRY(tess__scratch_of(s, TESS_ALL_REDUCE, TESS_F64, TESS_F64, TESS__STAGE_BYTES / 8, s->nranks, &n->stage));
    if (s->nranks > 1 && l->buffer_bytes)
        TRY(tess__scratch_of(s, TESS_BROADCAST, TESS_U8, TESS_U8, l->buffer_bytes, s->nranks, &n->share));
    return TESS_OK;
}

tess_status tess__needs_create(tess__needs *n, const tess__setup *s, const tess__layout *l) {
    size_t count = (size_t)l->n_groups + 1;
    n->gather = calloc(3 * count, sizeof *n->gather);
    if (!n->gather)
        return tess__fail(TESS_E_NOMEM, "no memory for the needs of %d groups", l->n_groups);
    n->reduce = n->gather + count;
    n->replicate = n->reduce + count;
    for (int32_t i = 0; i < l->n_groups; i++)
        TRY(ask_group(n, s, &l->groups[i], i));
    return ask_rest(n, s, l);
}

void tess__needs_free(tess__needs *n) {
    free(n->gather);
    *n = (tess__needs){ 0 };
}

/* ---- what a place must hold ---- */

static int sums_at_end(const tess *t) {
    return t->setup.accum > 1 && !t->setup.sync_each;
}

static uint64_t of_group(const tess *t, const tess__instr *in, int role, int32_t i) {
    const tess__group *g = &t->layout.groups[i];
    if (role >= TESS__SUM0 && role <= TESS__SUM_LAST)
        return 4 * (sums_at_end(t) ? g->flat_elems : g->shard_elems);
    switch (role) {
    case TESS__MASTER: return g->shard_elems * tess__dtype_bytes(g->master);
    case TESS__FETCHED: return g->shard_elems * tess__dtype_bytes(g->compute);
    case TESS__FULL: return g->flat_elems * tess__dtype_bytes(g->compute);
    case TESS__GRAD: return g->flat_elems * tess__dtype_bytes(g->grad_local);
    case TESS__WIRE: return g->flat_elems * tess__dtype_bytes(g->grad_wire);
    case TESS__GATHER_SCRATCH: return t->needs.gather[i];
    case TESS__REDUCE_SCRATCH: return in && in[1].op == TESS__REPLICATE ? t->needs.replicate[i] : t->needs.reduce[i];
    default: return 4 * g->shard_elems; /* gradient, states, a part of a sum */
    }
}

static uint64_t of_block(const tess *t, const tess__instr *in, int role, int32_t i) {
    const tess_block_options *o = &t->model.blocks[i].options;
    switch (role) {
    case TESS__SAVED:
    case TESS__SAVED_HOST: return o->saved_bytes;
    case TESS__SCRATCH:
        return in && t->program->events[in[1].index].type == TESS__BACKWARD_BEGIN ? o->backward_scratch_bytes
                                                                                  : o->forward_scratch_bytes;
    default: return o->output_bytes;
    }
}

static uint64_t of_rest(const tess *t, int role) {
    switch (role) {
    case TESS__BUFFERS: return t->layout.buffer_bytes;
    case TESS__STAGE: return TESS__STAGE_BYTES;
    case TESS__STAGE_SCRATCH: return t->needs.stage;
    case TESS__INPUT: return t->setup.input_bytes;
    case TESS__LIMBS: return TESS__NORM_LIMBS * sizeof(int64_t);
    case TESS__LIMBS_SCRATCH: return t->needs.norm;
    case TESS__CHUNK: return t->needs.chunk;
    default: return t->program->kind == TESS__PASS_FULL ? t->needs.full : t->needs.share;
    }
}

uint64_t tess__measure(const tess *t, const tess__instr *in, int role, int32_t index) {
    uint64_t bytes;
    switch (role) {
    case TESS__OUTPUT:
    case TESS__SAVED:
    case TESS__OUTPUT_GRAD:
    case TESS__SCRATCH:
    case TESS__OUTPUT_HOST:
    case TESS__SAVED_HOST: bytes = of_block(t, in, role, index); break;
    case TESS__BUFFERS:
    case TESS__STAGE:
    case TESS__STAGE_SCRATCH:
    case TESS__INPUT:
    case TESS__LIMBS:
    case TESS__LIMBS_SCRATCH:
    case TESS__CHUNK:
    case TESS__CHUNK_SCRATCH: bytes = of_rest(t, role); break;
    default: bytes = of_group(t, in, role, index);
    }
    return tess__round_up(bytes, t->setup.align);
}

tess_status tess__measure_place(const tess *t, const tess__buffer *b) {
    const tess_buffer *m = &t->arenas[b->domain][b->arena].memory;
    if (t->departing || b->arena != TESS__STEP) /* departing: its room comes from the heap, or on top */
        return TESS_OK;
    uint64_t first = (uint64_t)((char *)t->where[b->role][b->index] - (char *)m->ptr);
    uint64_t bytes = t->taken[b->role][b->index];
    if (first > m->bytes || bytes > m->bytes - first)
        return tess__fail(TESS_E_INTERNAL, "%llu bytes are needed at offset %llu of %llu that were obtained",
                          (unsigned long long)bytes, (unsigned long long)first, (unsigned long long)m->bytes);
    return TESS_OK;
}
