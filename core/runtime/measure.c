/* SPDX-License-Identifier: BSD-3-Clause */
#include "measure.h"

#include "kit/norm_limbs.h"
#include "layout/matrices.h"
#include "plan/audit.h"
#include "base/status.h"
#include "checkpoint/disk.h"

#include <stdlib.h>

/* ---- what the comm plugin wants ---- */

/* Blocks go to the replicas in parts, all alike, and their sums come back. */
static uint64_t replica_blocks(const tess__setup *s, const tess__group *g) {
    uint64_t n = (uint64_t)s->replicas, blocks = g->shard_elems / TESS_Q8_BLOCK;
    return (blocks / n + (blocks % n > 0)) * TESS_Q8_BYTES;
}

static tess_status ask_replicas(tess__needs *n, const tess__setup *s, const tess__group *g, int32_t i, uint32_t sent) {
    uint64_t bytes = replica_blocks(s, g);
    if (!tess_dtype_is_blocks(sent))
        return tess__scratch_of(s, TESS_ALL_REDUCE, s->shard_ranks > 1 ? TESS_F32 : sent, TESS_F32, g->shard_elems,
                                s->replicas, &n->replicate[i]);
    TRY(tess__scratch_of(s, TESS_ALL_TO_ALL, TESS_U8, TESS_U8, bytes, s->replicas, &n->replicate[i]));
    return tess__scratch_of(s, TESS_ALL_GATHER, TESS_U8, TESS_U8, bytes, s->replicas, &n->back[i]);
}

static tess_status ask_group(tess__needs *n, const tess__setup *s, const tess__group *g, int32_t i) {
    int at_end = s->accum > 1 && !s->sync_each && !tess_dtype_is_blocks(g->grad_wire);
    uint32_t sent = at_end ? TESS_F32 : g->grad_wire;
    uint64_t blocks = tess_dtype_span(TESS_Q8, g->shard_elems); /* of q8e4m3 as many */
    int parts = tess_dtype_is_blocks(sent) && s->shard_ranks > 1;
    if (s->shard_ranks > 1 && tess_dtype_is_blocks(g->gather))
        TRY(tess__scratch_of(s, TESS_ALL_GATHER, TESS_U8, TESS_U8, blocks, s->shard_ranks, &n->gather[i]));
    if (parts && g->trainable)
        TRY(tess__scratch_of(s, TESS_ALL_TO_ALL, TESS_U8, TESS_U8, blocks, s->shard_ranks, &n->reduce[i]));
    if (s->shard_ranks > 1) {
        if (!tess_dtype_is_blocks(g->gather))
            TRY(tess__scratch_of(s, TESS_ALL_GATHER, g->compute, g->compute, g->shard_elems, s->shard_ranks,
                                 &n->gather[i]));
        if (g->trainable && !parts)
            TRY(tess__scratch_of(s, TESS_REDUCE_SCATTER, sent, TESS_F32, g->shard_elems, s->shard_ranks,
                                 &n->reduce[i]));
    }
    if (s->shard_ranks > 1 && g->n_matrices && s->parts) {
        TRY(tess__scratch_of(s, TESS_ALL_TO_ALL_V, TESS_F32, TESS_F32, tess__parts_most(g), s->shard_ranks,
                             &n->collect[i]));
        n->give_back[i] = n->collect[i];
    } else if (s->shard_ranks > 1 && g->n_matrices) {
        TRY(tess__scratch_of(s, TESS_ALL_GATHER, TESS_F32, TESS_F32, g->shard_elems, s->shard_ranks, &n->collect[i]));
        TRY(tess__scratch_of(s, TESS_REDUCE_SCATTER, TESS_F32, TESS_F32, g->shard_elems, s->shard_ranks,
                             &n->give_back[i]));
    }
    return s->replicas > 1 && g->trainable ? ask_replicas(n, s, g, i, sent) : TESS_OK;
}

static tess_status ask_rest(tess__needs *n, const tess__setup *s, const tess__layout *l) {
    for (int32_t i = 0; i < l->n_groups; i++) {
        uint64_t bytes = l->chunk_elems * tess_dtype_bytes(l->groups[i].master);
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
    if (s->mirror) {
        uint64_t whole = tess__image_bytes(s, l), piece = whole < TESS__MIRROR_CHUNK ? whole : TESS__MIRROR_CHUNK;
        int32_t members = s->replicas > 1 ? s->replicas : s->nranks % 2 ? 3 : 2;
        uint64_t all = 0;
        TRY(tess__scratch_of(s, TESS_BROADCAST, TESS_U8, TESS_U8, piece, members, &n->mirror));
        TRY(tess__scratch_of(s, TESS_BROADCAST, TESS_U8, TESS_U8, piece, s->nranks, &all));
        n->mirror = all > n->mirror ? all : n->mirror;
    }
    return TESS_OK;
}

tess_status tess__needs_create(tess__needs *n, const tess__setup *s, const tess__layout *l) {
    size_t count = (size_t)l->n_groups + 1;
    n->gather = calloc(6 * count, sizeof *n->gather);
    if (!n->gather)
        return tess__fail(TESS_E_NOMEM, "no memory for the needs of %d groups", l->n_groups);
    n->reduce = n->gather + count;
    n->replicate = n->reduce + count;
    n->collect = n->replicate + count;
    n->give_back = n->collect + count;
    n->back = n->give_back + count;
    for (int32_t i = 0; i < l->n_groups; i++)
        TRY(ask_group(n, s, &l->groups[i], i));
    return ask_rest(n, s, l);
}

void tess__needs_free(tess__needs *n) {
    free(n->gather);
    *n = (tess__needs){ 0 };
}

/* ---- what a place must hold ---- */

static int sums_at_end(const tess__plan *p) {
    return p->setup.accum > 1 && !p->setup.sync_each;
}

/* Bytes of a state's values: one for each run of `every` elements. */
static uint64_t of_state(const tess__group *g, int k, uint64_t elems) {
    const tess_state *x = &g->step.state[k];
    return elems / x->every * tess_dtype_bytes(x->dtype);
}

/* Bytes of the matrix that needs the most, whoever owns it. */
static uint64_t of_matrices(const tess__plan *p, int32_t group) {
    uint64_t most = 0;
    for (int32_t i = 0; i < p->layout.n_matrices; i++)
        if (p->layout.matrices[i].group == group && p->layout.matrices[i].scratch_bytes > most)
            most = p->layout.matrices[i].scratch_bytes;
    return most;
}

/* Elements of the rank that owns the most of the group's matrices. */
static uint64_t most_owned(const tess__plan *p, int32_t group) {
    uint64_t most = 0;
    for (int32_t r = 0; r < p->setup.shard_ranks; r++) {
        uint64_t own = 0;
        for (int32_t i = 0; i < p->layout.n_matrices; i++)
            if (p->layout.matrices[i].group == group && p->layout.matrices[i].owner == r)
                own += p->layout.matrices[i].rows * p->layout.matrices[i].cols;
        most = own > most ? own : most;
    }
    return most;
}

static uint64_t of_group(const tess__plan *p, const tess__needs *needs, const tess__instr *in, int role, int32_t i) {
    const tess__group *g = &p->layout.groups[i];
    if (role >= TESS__UPDATE && role <= TESS__UPDATE_LAST)
        return 4 * (p->setup.parts && p->setup.shard_ranks > 1 ? most_owned(p, i) : g->flat_elems);
    if (role >= TESS__SUM0 && role <= TESS__SUM_LAST)
        return 4 * (sums_at_end(p) ? g->flat_elems : g->shard_elems);
    switch (role) {
    case TESS__MASTER:
    case TESS__STAGED_PARAM: return g->shard_elems * tess_dtype_bytes(g->master);
    case TESS__LOW_COPY: return g->shard_elems * tess_dtype_bytes(g->compute);
    case TESS__FETCHED: return tess_dtype_span(g->gather, g->shard_elems);
    case TESS__PACKED:
    case TESS__ARRIVED: return tess_dtype_span(TESS_Q8, g->flat_elems);
    case TESS__FULL: return g->flat_elems * tess_dtype_bytes(g->compute);
    case TESS__GRAD: return g->flat_elems * tess_dtype_bytes(g->grad_local);
    case TESS__WIRE:
        if (p->setup.shard_ranks == 1 && p->setup.replicas > 1 && tess_dtype_is_blocks(g->grad_wire))
            return (uint64_t)p->setup.replicas * replica_blocks(&p->setup, g);
        return tess_dtype_span(g->grad_wire, g->flat_elems);
    case TESS__SHARD_WIRE:
    case TESS__LANDED: return (uint64_t)p->setup.replicas * replica_blocks(&p->setup, g);
    case TESS__STAGED_GRAD0:
    case TESS__SHARD_GRAD: return g->shard_elems * tess_dtype_bytes(g->grad_shard);
    case TESS__GATHER_SCRATCH: return needs->gather[i];
    case TESS__REDUCE_SCRATCH:
        if (!in || in[1].op != TESS__REPLICATE)
            return needs->reduce[i];
        return in[1].flags & TESS__BACK ? needs->back[i] : needs->replicate[i];
    case TESS__COLLECT_SCRATCH: return needs->collect[i];
    case TESS__RETURN_SCRATCH: return needs->give_back[i];
    case TESS__MATRIX_SCRATCH: return of_matrices(p, i);
    case TESS__STATE0:
    case TESS__STATE1:
    case TESS__STATE2:
    case TESS__STATE3: return of_state(g, role - TESS__STATE0, g->shard_elems);
    case TESS__STAGED0:
    case TESS__STAGED0 + 1:
    case TESS__STAGED0 + 2:
    case TESS__STAGED_LAST: return of_state(g, role - TESS__STAGED0, g->shard_elems);
    default: return 4 * g->shard_elems; /* a part of a sum */
    }
}

static uint64_t of_block(const tess__plan *p, const tess__program *program, const uint8_t *saved, const tess__instr *in,
                         int role, int32_t i) {
    const tess_block_options *o = &p->model.blocks[i].options;
    switch (role) {
    case TESS__SAVED:
        return tess__saves_selectively(&p->model, &p->setup, i) ? o->selective_saved_bytes : o->saved_bytes;
    case TESS__SAVED_HOST: return o->saved_bytes;
    case TESS__SCRATCH:
        while (in && in->op != TESS__ENTER)
            in++;
        if (!in || program->events[in->index].type != TESS__BACKWARD_BEGIN)
            return o->forward_scratch_bytes;
        if (tess__saves_selectively(&p->model, &p->setup, i))
            return o->selective_scratch_bytes;
        return (saved && saved[i]) || !o->remake_scratch_bytes ? o->backward_scratch_bytes : o->remake_scratch_bytes;
    default: return o->output_bytes;
    }
}

/* ---- audits: reckoned from the declarations, apart from plan/audit.c ---- */

static uint64_t padded(uint64_t bytes) {
    return tess__round_up(bytes, 64);
}

static int has_param(const tess__model *m, int32_t block, int32_t root) {
    const tess__scope *s = &m->scopes[m->blocks[block].scope];
    for (int32_t i = 0; i < s->n_params; i++)
        if (m->params[s->params[i]].tied_to == root)
            return 1;
    return 0;
}

/* Bytes of the gradients of a block's parameters; `begun`: of those alone that a later block has too. */
static uint64_t of_gradients(const tess__plan *p, int32_t block, int begun) {
    const tess__model *m = &p->model;
    uint64_t bytes = 0;
    for (int32_t root = 0; root < m->n_params; root++) {
        const tess__param *of = &m->params[root];
        int counts = !begun;
        for (int32_t later = block + 1; later < m->n_blocks; later++)
            counts |= has_param(m, later, root);
        if (of->tied_to == root && of->group >= 0 && !(of->flags & TESS_FROZEN) && counts && has_param(m, block, root))
            bytes += padded(of->elems * tess_dtype_bytes(p->layout.groups[of->group].grad_local));
    }
    return bytes;
}

static uint64_t of_sent(const tess__plan *p, int32_t block, int backward) {
    uint64_t bytes = TESS__AUDIT_HEAD + padded(p->setup.input_bytes);
    if (block)
        bytes += padded(p->model.blocks[block - 1].options.output_bytes);
    if (backward && block < p->model.n_blocks - 1)
        bytes += padded(p->model.blocks[block].options.output_bytes);
    return bytes + (backward ? of_gradients(p, block, 1) : 0);
}

static uint64_t of_again(const tess__plan *p, int32_t block, int backward) {
    const tess_block_options *o = &p->model.blocks[block].options;
    uint64_t scratch = o->forward_scratch_bytes;
    if (backward && o->backward_scratch_bytes > scratch)
        scratch = o->backward_scratch_bytes;
    uint64_t bytes = padded(o->output_bytes) + padded(o->saved_bytes) + padded(scratch);
    if (backward && block)
        bytes += padded(p->model.blocks[block - 1].options.output_bytes);
    return bytes + (backward ? of_gradients(p, block, 0) : 0);
}

static uint64_t of_audit(const tess__plan *p, const tess__instr *in, int role, int32_t block) {
    int backward = in && in->flags & TESS__OF_BACKWARD;
    uint64_t ranks = (uint64_t)p->setup.nranks, bytes = 0;
    switch (role) {
    case TESS__AUDIT_SENT: return ranks * of_sent(p, block, backward);
    case TESS__AUDIT_WORK: return of_again(p, block, backward);
    case TESS__AUDIT_FOUND: return ranks * TESS__AUDIT_FOUND_BYTES;
    default: /* scratch of the collective that follows; what the plugin would fail with stands in the plan already */
        backward = in && in[1].flags & TESS__OF_BACKWARD;
        bytes = in && in[1].op == TESS__AUDIT_SEND ? of_sent(p, block, backward) : TESS__AUDIT_FOUND_BYTES;
        return tess__scratch_of(&p->setup, TESS_ALL_GATHER, TESS_U8, TESS_U8, bytes, p->setup.nranks, &bytes) ? 0
                                                                                                              : bytes;
    }
}

/* The most bytes that one of a shard's replicas copies: parameters, states, buffers, the program's bytes. Frozen
 * parameters within the host's reach are not copied, and none that checkpoints leave out. */
static uint64_t snapshot_bytes(const tess__plan *p) {
    const tess__setup *s = &p->setup;
    uint64_t bytes = p->layout.buffer_bytes + 2 * TESS_CHECKPOINT_BYTES + TESS__DISK_BLOCK;
    for (int32_t i = 0; i < p->layout.n_groups; i++) {
        const tess__group *g = &p->layout.groups[i];
        uint64_t most = 0;
        int out_of_reach = s->env.mem != TESS_MEM_HOST && g->param_rest.domain == TESS_DOMAIN_DEVICE;
        int copied = g->trainable || (!s->base_apart && (out_of_reach || g->param_rest.stored));
        for (int32_t k = 0; copied && k < s->replicas; k++) {
            tess__span_elems part = tess__replica_part(g, k, s->replicas);
            most = part.elems > most ? part.elems : most;
        }
        bytes += most * tess_dtype_bytes(g->master);
        for (int k = 0; k < (int)g->step.n_states; k++)
            bytes += of_state(g, k, most);
    }
    return bytes;
}

/* Bytes of one image: shards, states, buffers, the program's own bytes. A rank holds two of its own, and two of another
 * rank's unless replicas are the copies. */
static uint64_t image_bytes(const tess__plan *p) {
    uint64_t bytes = tess__round_up(p->setup.common_bytes, p->setup.align);
    bytes += tess__round_up(p->layout.buffer_bytes, p->setup.align);
    for (int32_t i = 0; i < p->layout.n_groups; i++) {
        const tess__group *g = &p->layout.groups[i];
        bytes += tess__round_up(of_group(p, NULL, NULL, TESS__MASTER, i), p->setup.align);
        for (int32_t k = 0; k < (int32_t)g->step.n_states; k++)
            bytes += tess__round_up(of_group(p, NULL, NULL, TESS__STATE0 + k, i), p->setup.align);
    }
    return bytes;
}

static uint64_t mirror_bytes(const tess__plan *p, int role) {
    uint64_t bytes = image_bytes(p);
    if (role == TESS__MIRROR)
        return p->setup.replicas > 1 ? 2 * bytes : 4 * bytes;
    return bytes < TESS__MIRROR_CHUNK ? bytes : TESS__MIRROR_CHUNK;
}

/* Bytes of the optimizer's numbers. An optimizer never has more segments than parameters. */
static uint64_t numbers(const tess__plan *p) {
    uint64_t n = 0;
    for (int32_t i = 0; i < p->model.n_params; i++)
        n += p->model.params[i].tied_to == i && !(p->model.params[i].flags & TESS_BUFFER);
    return n * TESS_PREPARED_BYTES;
}

static int stores(const tess__plan *p) {
    for (int32_t i = 0; i < p->layout.n_groups; i++)
        if (p->layout.groups[i].state_rest.stored || p->layout.groups[i].param_rest.stored ||
            p->layout.groups[i].grad_rest.stored)
            return 1;
    return 0;
}

/* The ledger's room: a number of 8 bytes and its 16 digits for each digest, two quotes and a comma for each unit. */
static uint64_t digests(const tess__plan *p) {
    uint64_t params = numbers(p) / TESS_PREPARED_BYTES, states = 0;
    for (int32_t i = 0; i < p->layout.n_groups; i++)
        states = p->layout.groups[i].step.n_states > states ? p->layout.groups[i].step.n_states : states;
    uint64_t bytes = params * ((2 + states) * 24 + 3) + 256; /* padded with the rest of the buffer */
    return bytes + (p->setup.env.mem == TESS_MEM_HOST && !stores(p) ? 0 : TESS__PROOF_CHUNK);
}

/* Every pass that may be under way has its own part of such memory. */
static uint64_t on_the_way(const tess__plan *p, uint64_t bytes) {
    return p->setup.late && p->model.n_blocks ? 2 * tess__round_up(bytes, p->setup.align) : bytes;
}

static uint64_t of_rest(const tess__plan *p, const tess__needs *needs, const tess__program *program, int role) {
    switch (role) {
    case TESS__BUFFERS: return p->layout.buffer_bytes;
    case TESS__STAGE: return TESS__STAGE_BYTES;
    case TESS__STAGE_SCRATCH: return needs->stage;
    case TESS__SNAPSHOT: return snapshot_bytes(p);
    case TESS__DIGESTS: return digests(p);
    case TESS__STORE_OWN: return p->layout.store_bytes;
    case TESS__MIRROR:
    case TESS__MIRROR_STAGE: return mirror_bytes(p, role);
    case TESS__MIRROR_SCRATCH: return needs->mirror;
    case TESS__INPUT: return p->setup.input_bytes;
    case TESS__PREPARED: return on_the_way(p, numbers(p));
    case TESS__NUMBERS: return numbers(p);
    case TESS__VALUES: return on_the_way(p, 8 * sizeof(double));
    case TESS__BATCH: return on_the_way(p, p->setup.input_bytes);
    case TESS__RESULT: return on_the_way(p, p->model.blocks[p->model.n_blocks - 1].options.output_bytes);
    case TESS__NORM_RESULT: return on_the_way(p, (TESS__NORM_LIMBS + 1) * sizeof(int64_t));
    case TESS__LIMBS: return TESS__NORM_LIMBS * sizeof(int64_t);
    case TESS__LIMBS_SCRATCH: return needs->norm;
    case TESS__CHUNK: return needs->chunk;
    default: return program->kind == TESS__PASS_FULL ? needs->full : needs->share;
    }
}

/* Whatever is in a store, and on its way, fills whole blocks of it. */
static int fills_blocks(const tess__plan *p, int role, int32_t index) {
    int state = (role >= TESS__STATE0 && role <= TESS__STATE3) || (role >= TESS__STAGED0 && role <= TESS__STAGED_LAST);
    if (role == TESS__MASTER || role == TESS__STAGED_PARAM)
        return p->layout.groups[index].param_rest.stored;
    if (role == TESS__SHARD_GRAD || (role >= TESS__STAGED_GRAD0 && role <= TESS__STAGED_GRAD_LAST) ||
        (role >= TESS__SUM0 && role <= TESS__SUM_LAST && !sums_at_end(p)))
        return p->layout.groups[index].grad_rest.stored;
    return state && p->layout.groups[index].state_rest.stored;
}

uint64_t tess__measure(const tess__plan *p, const tess__needs *needs, const tess__program *program,
                       const uint8_t *saved, const tess__instr *in, int role, int32_t index) {
    uint64_t bytes;
    switch (role) {
    case TESS__OUTPUT:
    case TESS__SAVED:
    case TESS__OUTPUT_GRAD:
    case TESS__SCRATCH:
    case TESS__OUTPUT_HOST:
    case TESS__SAVED_HOST: bytes = of_block(p, program, saved, in, role, index); break;
    case TESS__AUDIT_SENT:
    case TESS__AUDIT_WORK:
    case TESS__AUDIT_FOUND:
    case TESS__AUDIT_SCRATCH: bytes = of_audit(p, in, role, index); break;
    case TESS__BUFFERS:
    case TESS__STAGE:
    case TESS__STAGE_SCRATCH:
    case TESS__DIGESTS:
    case TESS__STORE_OWN:
    case TESS__SNAPSHOT:
    case TESS__MIRROR:
    case TESS__MIRROR_STAGE:
    case TESS__MIRROR_SCRATCH:
    case TESS__RESULT:
    case TESS__NORM_RESULT:
    case TESS__BATCH:
    case TESS__PREPARED:
    case TESS__NUMBERS:
    case TESS__VALUES:
    case TESS__INPUT:
    case TESS__LIMBS:
    case TESS__LIMBS_SCRATCH:
    case TESS__CHUNK:
    case TESS__CHUNK_SCRATCH: bytes = of_rest(p, needs, program, role); break;
    default: bytes = of_group(p, needs, in, role, index);
    }
    return tess__round_up(bytes, fills_blocks(p, role, index) ? p->layout.store_align : p->setup.align);
}
