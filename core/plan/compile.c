/* SPDX-License-Identifier: BSD-3-Clause */
#include "compile.h"

#include "base/hash.h"
#include "kit/norm_limbs.h"
#include "place.h"
#include "base/status.h"
#include "base/try.h"

#include <stdlib.h>
#include <string.h>

/* ---- buffers ---- */

static int32_t *slot(tess__compiler *b, int role, int32_t index) {
    return &b->buffer_of[(size_t)role * (size_t)b->stride + (size_t)index];
}

static uint8_t domain_of(const tess__compiler *b, int role, int32_t index) {
    if (role == TESS__MASTER)
        return (uint8_t)b->layout->groups[index].param_rest.domain;
    if (role == TESS__SHARD_GRAD)
        return (uint8_t)b->layout->groups[index].grad_rest.domain;
    if (role >= TESS__STATE0 && role <= TESS__STATE3)
        return (uint8_t)b->layout->groups[index].state_rest.domain;
    if (role == TESS__PART && tess__one_memory(b->setup))
        return (uint8_t)b->layout->groups[index].grad_rest.domain;
    if (role == TESS__OUTPUT_HOST || role == TESS__SAVED_HOST)
        return TESS_DOMAIN_HOST;
    return TESS_DOMAIN_DEVICE;
}

static int is_resident(const tess__compiler *b, int role, int32_t index) {
    return role <= TESS__SUM_LAST && !(role == TESS__SHARD_GRAD && b->layout->groups[index].grad_moves);
}

static tess_status book(tess__compiler *b, int role, int32_t index, uint8_t category, int32_t unit, uint64_t bytes,
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
    *slot(b, role, index) = at;
    return tess__program_instr(b->p, TESS__ALLOC, flags, index, at, 0);
}

static tess_status release(tess__compiler *b, int role, int32_t index) {
    int32_t at = *slot(b, role, index);
    if (at < 0)
        return TESS_OK;
    *slot(b, role, index) = -1;
    b->p->buffers[at].last = b->p->n_instrs;
    return tess__program_instr(b->p, TESS__FREE, 0, index, at, 0);
}

/* ---- collectives ---- */

static int32_t members_of(const tess__setup *s, int which) {
    return which == TESS__WORLD ? s->nranks : which == TESS__SHARD ? s->shard_ranks : s->replicas;
}

/* Without scratch, which book_scratch adds, and without a reduction. */
static tess__planned_collective collective(const tess__compiler *b, uint8_t op, uint8_t which, uint32_t send,
                                           uint32_t recv, uint64_t count) {
    return (tess__planned_collective){ .op = op,
                                       .which = which,
                                       .send_dtype = send,
                                       .recv_dtype = recv,
                                       .members = members_of(b->setup, which),
                                       .scratch = -1,
                                       .count = count };
}

static tess_status book_scratch(tess__compiler *b, int role, int32_t index, int32_t unit, tess__planned_collective *c) {
    uint64_t bytes = 0;
    if (c->members > 1)
        TRY(tess__scratch_of(b->setup, c->op, c->send_dtype, c->recv_dtype, c->count, c->members, &bytes));
    TRY(book(b, role, index, TESS_CAT_COMM, unit, bytes, 0));
    c->scratch = *slot(b, role, index);
    return TESS_OK;
}

static tess_status post(tess__compiler *b, uint8_t op, uint8_t flags, int32_t index,
                        const tess__planned_collective *c) {
    return tess__program_collective(b->p, op, flags, index, b->ordinal++, c);
}

static tess_status plain(tess__compiler *b, uint8_t op, int32_t index) {
    return tess__program_instr(b->p, op, 0, index, -1, 0);
}

static tess_status flagged(tess__compiler *b, uint8_t op, uint8_t flags, int32_t index) {
    return tess__program_instr(b->p, op, flags, index, -1, 0);
}

/* ---- what goes on in host memory beside the engine's thread ---- */

static int on_host(const tess__compiler *b, tess__rest rest) {
    (void)b;
    return rest.domain == TESS_DOMAIN_HOST;
}

static uint8_t async_if(int condition) {
    return condition ? TESS__ASYNC : 0;
}

/* One rank: there is no network, the shard is the whole. */
static int gathers_on_lane(const tess__compiler *b, const tess__group *g) {
    return b->setup->shard_ranks == 1 && on_host(b, g->param_rest);
}

static int reduces_on_lane(const tess__compiler *b, const tess__group *g) {
    return b->setup->shard_ranks == 1 && b->setup->replicas == 1 && on_host(b, g->grad_rest);
}

/* The step of a unit within a pass, while backward goes on. */
static int steps_on_lane(const tess__compiler *b, const tess__group *g) {
    return b->fused && (on_host(b, g->param_rest) || on_host(b, g->grad_rest) || on_host(b, g->state_rest));
}

/* ---- parameters: gather, wait, release ---- */

#define EACH_GROUP(g, u)                                                                                               \
    for (int32_t g = b->layout->units[u].first_group, g##_end = g + b->layout->units[u].n_groups; g < g##_end; g++)

static tess_status gather_unit(tess__compiler *b, int32_t u) {
    if (b->units[u].gathered != TESS__ABSENT)
        return TESS_OK;
    EACH_GROUP(g, u) {
        const tess__group *group = &b->layout->groups[g];
        if (group->in_place)
            continue;
        tess__planned_collective c =
            collective(b, TESS_ALL_GATHER, TESS__SHARD, group->compute, group->compute, group->shard_elems);
        TRY(book(b, TESS__FULL, g, TESS_CAT_FULL_PARAM, u, group->flat_elems * tess__dtype_bytes(group->compute), 0));
        if (b->units[u].fetched && on_host(b, group->param_rest))
            TRY(plain(b, TESS__PREFETCH_WAIT, g));
        TRY(book_scratch(b, TESS__GATHER_SCRATCH, g, u, &c));
        TRY(post(b, TESS__GATHER, async_if(gathers_on_lane(b, group)), g, &c));
        TRY(release(b, TESS__FETCHED, g));
    }
    b->units[u].gathered = TESS__IN_FLIGHT;
    b->units[u].fetched = 0;
    return TESS_OK;
}

/* A shard comes up from the host while the unit before it is being gathered; its own gather can then begin at once.
 * With one rank the gather is that very transfer. */
static tess_status fetch_unit(tess__compiler *b, int32_t u) {
    if (b->units[u].gathered != TESS__ABSENT || b->units[u].fetched || b->setup->shard_ranks == 1)
        return TESS_OK;
    EACH_GROUP(g, u) {
        const tess__group *group = &b->layout->groups[g];
        if (!on_host(b, group->param_rest))
            continue;
        TRY(book(b, TESS__FETCHED, g, TESS_CAT_COMM, u, group->shard_elems * tess__dtype_bytes(group->compute), 0));
        TRY(plain(b, TESS__PREFETCH, g));
        b->units[u].fetched = 1;
    }
    return TESS_OK;
}

static tess_status drop_fetched(tess__compiler *b, int32_t u) {
    EACH_GROUP(g, u)
    if (b->units[u].fetched && on_host(b, b->layout->groups[g].param_rest)) {
        TRY(plain(b, TESS__PREFETCH_WAIT, g));
        TRY(release(b, TESS__FETCHED, g));
    }
    b->units[u].fetched = 0;
    return TESS_OK;
}

static tess_status wait_unit(tess__compiler *b, int32_t u) {
    if (b->units[u].gathered != TESS__IN_FLIGHT)
        return TESS_OK;
    EACH_GROUP(g, u) {
        if (b->layout->groups[g].in_place)
            continue;
        TRY(plain(b, TESS__GATHER_WAIT, g));
        TRY(release(b, TESS__GATHER_SCRATCH, g));
    }
    b->units[u].gathered = TESS__HERE;
    return TESS_OK;
}

static tess_status release_unit(tess__compiler *b, int32_t u) {
    EACH_GROUP(g, u)
    TRY(release(b, TESS__FULL, g));
    b->units[u].gathered = TESS__ABSENT;
    return TESS_OK;
}

/* ---- gradients: begin, reduce, finish ---- */

static int sums_at_end(const tess__compiler *b) {
    return b->setup->accum > 1 && !b->setup->sync_each;
}

/* A sum of reduced shards is still to come, and the division with it. */
static int sums_shards(const tess__compiler *b) {
    return b->setup->accum > 1 && b->setup->sync_each;
}

/* The reduced shard takes a detour when it is to be added to a sum, or when a collective cannot end where the gradient
 * rests. */
static int needs_part(const tess__compiler *b, const tess__group *g) {
    return sums_shards(b) || (g->grad_rest.domain != TESS_DOMAIN_DEVICE && !tess__one_memory(b->setup));
}

static tess_status book_shard_grad(tess__compiler *b, int32_t g, uint8_t flags) {
    const tess__group *group = &b->layout->groups[g];
    if (b->setup->accum > 1)
        return TESS_OK; /* lives across passes: the engine books it at the first microbatch */
    return book(b, TESS__SHARD_GRAD, g, TESS_CAT_SHARD_GRAD, group->unit, group->shard_elems * 4, flags);
}

static tess_status begin_grad(tess__compiler *b, int32_t u) {
    if (b->units[u].grad || !b->layout->units[u].trainable)
        return TESS_OK;
    if (b->units[u].reduced)
        return tess__fail(TESS_E_INVALID,
                          "backward enters unit %s again after its gradient was reduced, which a pass does once, after "
                          "the last use: run all forwards of a pass before its backwards",
                          b->layout->units[u].name);
    EACH_GROUP(g, u) {
        const tess__group *group = &b->layout->groups[g];
        if (!group->trainable)
            continue;
        if (group->grad_in_place)
            TRY(book_shard_grad(b, g, TESS__ZERO));
        else
            TRY(book(b, TESS__GRAD, g, TESS_CAT_FULL_GRAD, u, group->flat_elems * tess__dtype_bytes(group->grad_local),
                     TESS__ZERO));
    }
    b->units[u].grad = 1;
    return TESS_OK;
}

/* The dtype in which a group's gradient is sent: partial sums travel in fp32 (NUMBERS, "Leaves"). */
static uint32_t sent_dtype(const tess__compiler *b, const tess__group *g) {
    return sums_at_end(b) ? TESS_F32 : g->grad_wire;
}

static tess_status prepare_send(tess__compiler *b, int32_t g) {
    const tess__group *group = &b->layout->groups[g];
    if (group->grad_wire != group->grad_local) { /* a leaf is rounded once, wherever it goes */
        TRY(book(b, TESS__WIRE, g, TESS_CAT_COMM, group->unit, group->flat_elems * tess__dtype_bytes(group->grad_wire),
                 0));
        TRY(plain(b, TESS__CAST_WIRE, g));
        TRY(release(b, TESS__GRAD, g));
    }
    if (!sums_at_end(b))
        return TESS_OK;
    TRY(plain(b, TESS__SUM_FULL, g));
    TRY(release(b, TESS__WIRE, g));
    return release(b, TESS__GRAD, g);
}

static tess_status replicate(tess__compiler *b, int32_t g) {
    const tess__group *group = &b->layout->groups[g];
    uint32_t send = b->setup->shard_ranks == 1 ? sent_dtype(b, group) : TESS_F32;
    tess__planned_collective c = collective(b, TESS_ALL_REDUCE, TESS__REPLICA, send, TESS_F32, group->shard_elems);
    c.redop = TESS_SUM;
    c.is_mean = !sums_shards(b);
    TRY(book_scratch(b, TESS__REDUCE_SCRATCH, g, group->unit, &c));
    return post(b, TESS__REPLICATE, 0, g, &c);
}

static tess_status post_reduce(tess__compiler *b, int32_t g) {
    const tess__group *group = &b->layout->groups[g];
    TRY(prepare_send(b, g));
    if (needs_part(b, group))
        TRY(book(b, TESS__PART, g, TESS_CAT_COMM, group->unit, group->shard_elems * 4, 0));
    else if (!group->grad_in_place)
        TRY(book_shard_grad(b, g, 0));
    if (b->setup->shard_ranks == 1 && b->setup->replicas > 1)
        return replicate(b, g);
    if (group->grad_in_place)
        return TESS_OK;
    tess__planned_collective c =
        collective(b, TESS_REDUCE_SCATTER, TESS__SHARD, sent_dtype(b, group), TESS_F32, group->shard_elems);
    c.redop = TESS_SUM;
    c.is_mean = b->setup->replicas == 1 && !sums_shards(b);
    TRY(book_scratch(b, TESS__REDUCE_SCRATCH, g, group->unit, &c));
    return post(b, TESS__REDUCE, async_if(reduces_on_lane(b, group)), g, &c);
}

static tess_status finish_group(tess__compiler *b, int32_t g) {
    const tess__group *group = &b->layout->groups[g];
    int sharded = b->setup->shard_ranks > 1, replicated = b->setup->replicas > 1;
    if (sharded || (!replicated && !group->grad_in_place)) {
        TRY(plain(b, TESS__REDUCE_WAIT, g));
        TRY(release(b, TESS__REDUCE_SCRATCH, g));
    }
    if (sharded) { /* before the second collective takes scratch of its own */
        TRY(release(b, TESS__GRAD, g));
        TRY(release(b, TESS__WIRE, g));
        if (replicated)
            TRY(replicate(b, g));
    }
    if (replicated) {
        TRY(plain(b, TESS__REPLICATE_WAIT, g));
        TRY(release(b, TESS__REDUCE_SCRATCH, g));
    }
    TRY(release(b, TESS__GRAD, g));
    TRY(release(b, TESS__WIRE, g));
    if (needs_part(b, group)) {
        TRY(book_shard_grad(b, g, 0));
        TRY(flagged(b, TESS__SUM_SHARD, async_if(on_host(b, group->grad_rest)), g));
        if (!on_host(b, group->grad_rest))
            TRY(release(b, TESS__PART, g));
    }
    return TESS_OK;
}

/* Whether the unit's optimizer step ends on a lane. */
static int ends_later(const tess__compiler *b, int32_t u) {
    EACH_GROUP(g, u)
    if (b->layout->groups[g].trainable && steps_on_lane(b, &b->layout->groups[g]))
        return 1;
    return 0;
}

/* What a unit's gradient sets going on the host has time until the next unit's gradient has come down. */
static tess_status finish_lowering(tess__compiler *b) {
    int32_t u = b->on_host;
    b->on_host = -1;
    if (u < 0)
        return TESS_OK;
    EACH_GROUP(g, u) {
        const tess__group *group = &b->layout->groups[g];
        int sums = needs_part(b, group) && on_host(b, group->grad_rest);
        if (!group->trainable || (!sums && !steps_on_lane(b, group)))
            continue;
        TRY(plain(b, TESS__HOST_WAIT, g));
        TRY(release(b, TESS__PART, g));
        if (b->fused)
            TRY(release(b, TESS__SHARD_GRAD, g));
    }
    return ends_later(b, u) ? tess__program_point(b->p, TESS_LEDGER_OPTIMIZER | TESS_LEDGER_AFTER, u) : TESS_OK;
}

static tess_status optimize_group(tess__compiler *b, int32_t g);

static tess_status finish_reduce(tess__compiler *b) {
    int32_t u = b->reducing;
    b->reducing = -1;
    if (u < 0)
        return TESS_OK;
    TRY(finish_lowering(b));
    EACH_GROUP(g, u)
    if (b->layout->groups[g].trainable) {
        TRY(finish_group(b, g));
        if (b->fused)
            TRY(optimize_group(b, g));
    }
    b->on_host = u;
    return TESS_OK;
}

static tess_status reduce_unit(tess__compiler *b, int32_t u) {
    int sync = !(b->p->kind & TESS_PASS_NO_SYNC);
    TRY(finish_reduce(b));
    EACH_GROUP(g, u) {
        if (!b->layout->groups[g].trainable)
            continue;
        if (sync)
            TRY(post_reduce(b, g));
        else
            TRY(prepare_send(b, g));
    }
    b->units[u].grad = 0;
    b->units[u].reduced = 1;
    if (sync)
        b->reducing = u;
    return TESS_OK;
}

/* ---- looking ahead ---- */

static int is_begin(uint8_t type) {
    return type == TESS__FORWARD_BEGIN || type == TESS__BACKWARD_BEGIN || type == TESS__RECOMPUTE_BEGIN;
}

/* Marks the units that one of the next `window` scopes to be entered holds. */
static void mark_used_soon(tess__compiler *b, int32_t window) {
    b->mark++;
    for (int32_t e = b->at + 1; b->ahead && e < b->ahead->n_events && window > 0; e++)
        if (is_begin(b->ahead->events[e].type)) {
            int32_t scope = b->ahead->events[e].scope;
            for (int32_t i = 0; i < b->n_scope_units[scope]; i++)
                b->units[b->scope_units[scope][i]].mark = b->mark;
            window--;
        }
}

static tess_status prefetch(tess__compiler *b) {
    int32_t left = b->setup->prefetch; /* gathers; behind them one more scope's shards come up */
    for (int32_t e = b->at + 1; b->ahead && e < b->ahead->n_events && left >= 0; e++)
        if (is_begin(b->ahead->events[e].type)) {
            int32_t scope = b->ahead->events[e].scope;
            for (int32_t i = 0; i < b->n_scope_units[scope]; i++)
                TRY(left > 0 ? gather_unit(b, b->scope_units[scope][i]) : fetch_unit(b, b->scope_units[scope][i]));
            left--;
        }
    return TESS_OK;
}

static void find_last_backward(tess__compiler *b) {
    for (int32_t u = 0; u < b->layout->n_units; u++)
        b->units[u].last_backward = -1;
    for (int32_t e = 0; b->ahead && e < b->ahead->n_events; e++)
        if (b->ahead->events[e].type == TESS__BACKWARD_BEGIN) {
            int32_t scope = b->ahead->events[e].scope;
            for (int32_t i = 0; i < b->n_scope_units[scope]; i++)
                b->units[b->scope_units[scope][i]].last_backward = e;
        }
}

/* ---- blocks: activations ---- */

/* Of the last block backward comes at once. */
static int recomputes(const tess__compiler *b, int32_t block) {
    return b->setup->activations == TESS__ACTIVATIONS_RECOMPUTE && block < b->model->n_blocks - 1 &&
           !(b->model->blocks[block].options.flags & TESS_BLOCK_KEEP);
}

/* Backward makes again what the block would have saved, piece by piece: no forward runs again for it. */
static int remakes(const tess__compiler *b, int32_t block) {
    return recomputes(b, block) && b->model->blocks[block].options.remake_scratch_bytes;
}

static int is_stowed(const tess__compiler *b, int32_t block, uint8_t which) {
    return (b->p->kind & 15) == TESS_PASS_TRAIN && tess__stowed_bytes(b->model, b->setup, block, which != 0);
}

static int role_of(uint8_t which, int host) {
    return which == TESS__OUTPUTS ? (host ? TESS__OUTPUT_HOST : TESS__OUTPUT) : host ? TESS__SAVED_HOST : TESS__SAVED;
}

static tess_status stow(tess__compiler *b, int32_t block, uint8_t which) {
    if (!is_stowed(b, block, which))
        return TESS_OK;
    const tess__buffer *from = &b->p->buffers[*slot(b, role_of(which, 0), block)];
    TRY(book(b, role_of(which, 1), block, TESS_CAT_ACTIVATION, -1, from->bytes, 0));
    return flagged(b, TESS__OFFLOAD, which, block);
}

static tess_status end_stow(tess__compiler *b, int32_t block, uint8_t which) {
    if (!is_stowed(b, block, which))
        return TESS_OK;
    TRY(flagged(b, TESS__OFFLOAD_WAIT, which, block));
    return release(b, role_of(which, 0), block);
}

static tess_status unstow(tess__compiler *b, int32_t block, uint8_t which) {
    if (!is_stowed(b, block, which))
        return TESS_OK;
    const tess__buffer *from = &b->p->buffers[*slot(b, role_of(which, 1), block)];
    TRY(book(b, role_of(which, 0), block, TESS_CAT_ACTIVATION, -1, from->bytes, 0));
    return flagged(b, TESS__RELOAD, which, block);
}

static tess_status end_unstow(tess__compiler *b, int32_t block, uint8_t which) {
    if (!is_stowed(b, block, which))
        return TESS_OK;
    TRY(flagged(b, TESS__RELOAD_WAIT, which, block));
    return release(b, role_of(which, 1), block);
}

/* A block's forward has ended: what only backward needs goes down while the next one runs. */
static tess_status stow_behind(tess__compiler *b, int32_t block) {
    TRY(end_stow(b, block - 1, 0));
    TRY(end_stow(b, block - 2, TESS__OUTPUTS));
    TRY(stow(b, block, 0));
    return stow(b, block - 1, TESS__OUTPUTS);
}

/* A block's backward begins: what the one behind it needs comes up while this one runs. */
static tess_status unstow_ahead(tess__compiler *b, int32_t block) {
    TRY(end_unstow(b, block, 0));
    TRY(end_unstow(b, block - 1, TESS__OUTPUTS));
    TRY(unstow(b, block - 1, 0));
    return unstow(b, block - 2, TESS__OUTPUTS);
}

static tess_status block_begin(tess__compiler *b, uint8_t type, int32_t block) {
    const tess_block_options *o = &b->model->blocks[block].options;
    int train = (b->p->kind & 15) == TESS_PASS_TRAIN;
    if (type == TESS__FORWARD_BEGIN)
        TRY(book(b, TESS__OUTPUT, block, TESS_CAT_ACTIVATION, -1, o->output_bytes, 0));
    if (type == TESS__RECOMPUTE_BEGIN || (type == TESS__FORWARD_BEGIN && train && !remakes(b, block)))
        TRY(book(b, TESS__SAVED, block, TESS_CAT_ACTIVATION, -1, o->saved_bytes, 0));
    if (type == TESS__BACKWARD_BEGIN)
        TRY(unstow_ahead(b, block));
    if (type == TESS__BACKWARD_BEGIN && block > 0)
        TRY(book(b, TESS__OUTPUT_GRAD, block - 1, TESS_CAT_ACTIVATION, -1,
                 b->model->blocks[block - 1].options.output_bytes, 0));
    uint64_t scratch = type != TESS__BACKWARD_BEGIN ? o->forward_scratch_bytes
                       : remakes(b, block)          ? o->remake_scratch_bytes
                                                    : o->backward_scratch_bytes;
    return book(b, TESS__SCRATCH, block, TESS_CAT_TEMPORARY, -1, scratch, 0);
}

static tess_status block_end(tess__compiler *b, uint8_t type, int32_t block) {
    int train = (b->p->kind & 15) == TESS_PASS_TRAIN, last = block == b->model->n_blocks - 1;
    TRY(release(b, TESS__SCRATCH, block));
    if (type == TESS__FORWARD_END) {
        if (last)
            TRY(plain(b, TESS__RESULT_COPY, block));
        if (train && recomputes(b, block))
            TRY(release(b, TESS__SAVED, block));
        TRY(stow_behind(b, block));
        if (!train && block > 0)
            TRY(release(b, TESS__OUTPUT, block - 1));
        if (!train && last)
            TRY(release(b, TESS__OUTPUT, block));
    } else if (type == TESS__BACKWARD_END) {
        TRY(release(b, TESS__OUTPUT_GRAD, block));
        TRY(release(b, TESS__SAVED, block));
        TRY(release(b, TESS__OUTPUT, block));
    }
    return TESS_OK;
}

/* ---- events ---- */

/* A ledger point of each unit that the scope holds. */
static tess_status points(tess__compiler *b, uint8_t type, int32_t scope, uint32_t flags) {
    static const uint32_t of[] = { 0,
                                   TESS_LEDGER_PRE_FORWARD,
                                   TESS_LEDGER_POST_FORWARD,
                                   TESS_LEDGER_PRE_BACKWARD,
                                   TESS_LEDGER_POST_BACKWARD,
                                   TESS_LEDGER_PRE_FORWARD,
                                   TESS_LEDGER_POST_FORWARD };
    for (int32_t i = 0; !b->params_only && i < b->n_scope_units[scope]; i++)
        TRY(tess__program_point(b->p, of[type] | flags, b->scope_units[scope][i]));
    return TESS_OK;
}

static tess_status scope_begin(tess__compiler *b, uint8_t type, int32_t scope) {
    int32_t n = b->n_scope_units[scope], *units = b->scope_units[scope];
    int32_t block = b->params_only ? -1 : b->model->scopes[scope].block;
    for (int32_t i = 0; i < n; i++)
        TRY(gather_unit(b, units[i]));
    for (int32_t i = 0; i < n; i++)
        TRY(wait_unit(b, units[i]));
    TRY(prefetch(b));
    for (int32_t i = 0; i < n; i++) {
        b->units[units[i]].open++;
        if (type == TESS__FORWARD_BEGIN)
            b->units[units[i]].uses++;
        if (type == TESS__BACKWARD_BEGIN)
            TRY(begin_grad(b, units[i]));
    }
    if (block >= 0)
        TRY(block_begin(b, type, block));
    TRY(points(b, type, scope, TESS_LEDGER_AFTER));
    return tess__program_instr(b->p, TESS__ENTER, 0, b->p->n_events - 1, -1, 0);
}

static int keeps(const tess__compiler *b, int32_t u, uint8_t type) {
    int train = (b->p->kind & 15) == TESS_PASS_TRAIN;
    if (b->units[u].open > 0 || b->units[u].mark == b->mark)
        return 1;
    return b->setup->keep_forward && train && type != TESS__BACKWARD_END;
}

static int gradient_is_complete(const tess__compiler *b, int32_t u) {
    const tess__unit_state *s = &b->units[u];
    if (!s->grad || s->open > 0)
        return 0;
    return b->ahead ? s->last_backward < b->at : s->uses <= 0;
}

static tess_status scope_end(tess__compiler *b, uint8_t type, int32_t scope) {
    int32_t n = b->n_scope_units[scope], *units = b->scope_units[scope];
    int32_t block = b->params_only ? -1 : b->model->scopes[scope].block;
    TRY(tess__program_instr(b->p, TESS__LEAVE, 0, b->p->n_events - 1, -1, 0));
    if (block >= 0)
        TRY(block_end(b, type, block));
    mark_used_soon(b, b->setup->prefetch + 1);
    for (int32_t i = 0; i < n; i++) {
        b->units[units[i]].open--;
        if (type == TESS__BACKWARD_END)
            b->units[units[i]].uses--;
        if (!keeps(b, units[i], type))
            TRY(release_unit(b, units[i]));
    }
    for (int32_t i = n; type == TESS__BACKWARD_END && i-- > 0;)
        if (gradient_is_complete(b, units[i]))
            TRY(reduce_unit(b, units[i]));
    return TESS_OK;
}

tess_status tess__compiler_event(tess__compiler *b, uint8_t type, int32_t scope) {
    TRY(tess__program_event(b->p, type, scope));
    TRY(points(b, type, scope, 0));
    if (is_begin(type))
        return scope_begin(b, type, scope);
    TRY(scope_end(b, type, scope));
    return points(b, type, scope, TESS_LEDGER_AFTER);
}

tess_status tess__compiler_end(tess__compiler *b) {
    int train = (b->p->kind & 15) == TESS_PASS_TRAIN;
    for (int32_t u = 0; u < b->layout->n_units; u++) {
        TRY(wait_unit(b, u));
        TRY(release_unit(b, u));
        TRY(drop_fetched(b, u));
    }
    for (int32_t u = b->layout->n_units; train && u-- > 0;)
        if (b->layout->units[u].trainable && !b->units[u].reduced) {
            TRY(begin_grad(b, u)); /* untouched: its gradient is zero */
            TRY(reduce_unit(b, u));
        }
    TRY(finish_reduce(b));
    TRY(finish_lowering(b));
    for (int32_t i = 0; i < b->model->n_blocks; i++) {
        TRY(release(b, TESS__OUTPUT, i));
        TRY(release(b, TESS__SAVED, i));
    }
    return release(b, TESS__INPUT, 0);
}

/* ---- whole programs ---- */

void tess__compiler_start(tess__compiler *b, tess__program *p, uint32_t kind) {
    tess__program_clear(p);
    p->kind = kind;
    b->p = p;
    b->ahead = NULL;
    b->at = 0;
    b->fused = b->params_only = 0;
    b->reducing = b->on_host = -1;
    b->ordinal = 0;
    b->mark = 0;
    memset(b->units, 0, (size_t)b->layout->n_units * sizeof *b->units);
    for (size_t i = 0; i < (size_t)TESS__N_ROLES * (size_t)b->stride; i++)
        b->buffer_of[i] = -1;
}

static tess_status declared_events(const tess__compiler *b, uint32_t kind, tess__program *out) {
    const tess__model *m = b->model;
    int32_t n = m->n_blocks ? m->n_blocks : m->n_scopes;
    for (int32_t i = 0; i < n; i++) {
        int32_t scope = m->n_blocks ? m->blocks[i].scope : i;
        TRY(tess__program_event(out, TESS__FORWARD_BEGIN, scope));
        TRY(tess__program_event(out, TESS__FORWARD_END, scope));
    }
    for (int32_t i = n; (kind & 15) == TESS_PASS_TRAIN && i-- > 0;) {
        int32_t scope = m->n_blocks ? m->blocks[i].scope : i;
        if (m->n_blocks && recomputes(b, i) && !remakes(b, i)) {
            TRY(tess__program_event(out, TESS__RECOMPUTE_BEGIN, scope));
            TRY(tess__program_event(out, TESS__RECOMPUTE_END, scope));
        }
        TRY(tess__program_event(out, TESS__BACKWARD_BEGIN, scope));
        TRY(tess__program_event(out, TESS__BACKWARD_END, scope));
    }
    return TESS_OK;
}

/* Closes the lives of step buffers, places them and hashes the whole. */
static tess_status finish_program(tess__compiler *b, int with_grads, tess__program *out) {
    for (int32_t i = 0; i < out->n_buffers; i++)
        if (out->buffers[i].last == INT32_MAX)
            out->buffers[i].last = out->n_instrs;
    tess__program resident = { 0 }, lent = { 0 };
    tess_status s = tess__resident(b->setup, b->layout, with_grads, &resident);
    if (!s && (out->kind & 15) != TESS_PASS_TRAIN) /* between a pass and its step gradients lie in the step arena */
        s = tess__resident(b->setup, b->layout, 1, &lent);
    if (!s)
        s = tess__assign_offsets(out, &resident, &lent, b->setup->align);
    tess__program_free(&resident);
    tess__program_free(&lent);
    out->hash = tess__program_hash(out);
    return s;
}

/* Each rank's running statistics are of its own data; an evaluation uses rank 0's on all (NUMBERS, "Buffers"). */
static tess_status share_buffers(tess__compiler *b) {
    const tess__setup *s = b->setup;
    if ((b->p->kind & 15) != TESS_PASS_EVAL || s->nranks == 1 || !b->layout->buffer_bytes)
        return TESS_OK;
    tess__planned_collective c = collective(b, TESS_BROADCAST, TESS__WORLD, TESS_U8, TESS_U8, b->layout->buffer_bytes);
    TRY(book_scratch(b, TESS__CHUNK_SCRATCH, 0, -1, &c));
    TRY(post(b, TESS__SHARE_BUFFERS, 0, 0, &c));
    return release(b, TESS__CHUNK_SCRATCH, 0);
}

tess_status tess__compile_pass(tess__compiler *b, uint32_t kind, const tess__program *events, int fused,
                               tess__program *out) {
    tess__program declared = { 0 };
    tess_status s = events ? TESS_OK : declared_events(b, kind, &declared);
    tess__compiler_start(b, out, kind);
    b->ahead = events ? events : &declared;
    b->fused = fused;
    find_last_backward(b);
    if (!s)
        s = share_buffers(b);
    if (!s && b->model->n_blocks) {
        s = book(b, TESS__INPUT, 0, TESS_CAT_INPUT, -1, b->setup->input_bytes, 0);
        if (!s)
            s = plain(b, TESS__INPUT_COPY, 0);
    }
    for (b->at = 0; !s && b->at < b->ahead->n_events; b->at++)
        s = tess__compiler_event(b, b->ahead->events[b->at].type, b->ahead->events[b->at].scope);
    if (!s)
        s = tess__compiler_end(b);
    if (!s)
        s = finish_program(b, b->setup->accum > 1, out);
    b->ahead = NULL;
    tess__program_free(&declared);
    return s;
}

static tess_status optimize_group(tess__compiler *b, int32_t g) {
    int32_t u = b->layout->groups[g].unit, first = b->layout->units[u].first_group;
    int32_t last = first + b->layout->units[u].n_groups - 1;
    int later = steps_on_lane(b, &b->layout->groups[g]);
    while (!b->layout->groups[first].trainable)
        first++;
    while (!b->layout->groups[last].trainable)
        last--;
    if (g == first)
        TRY(tess__program_point(b->p, TESS_LEDGER_OPTIMIZER, u));
    TRY(flagged(b, TESS__OPTIMIZE, async_if(later), g));
    if (!later)
        TRY(release(b, TESS__SHARD_GRAD, g));
    return g == last && !ends_later(b, u) ? tess__program_point(b->p, TESS_LEDGER_OPTIMIZER | TESS_LEDGER_AFTER, u)
                                          : TESS_OK;
}

static tess_status compile_norm(tess__compiler *b) {
    tess__planned_collective c = collective(b, TESS_ALL_REDUCE, TESS__SHARD, TESS_I64, TESS_I64, TESS__NORM_LIMBS);
    c.redop = TESS_SUM;
    TRY(book(b, TESS__LIMBS, 0, TESS_CAT_COMM, -1, TESS__NORM_LIMBS * 8, TESS__ZERO));
    for (int32_t g = 0; g < b->layout->n_groups; g++)
        if (b->layout->groups[g].trainable)
            TRY(plain(b, TESS__NORM_GROUP, g));
    TRY(book_scratch(b, TESS__LIMBS_SCRATCH, 0, -1, &c));
    TRY(post(b, TESS__NORM_REDUCE, 0, 0, &c));
    TRY(release(b, TESS__LIMBS_SCRATCH, 0));
    TRY(plain(b, TESS__NORM_FINISH, 0));
    return release(b, TESS__LIMBS, 0);
}

static tess_status compile_steps(tess__compiler *b) {
    for (int32_t g = 0; g < b->layout->n_groups; g++) {
        const tess__group *group = &b->layout->groups[g];
        if (!group->trainable)
            continue;
        tess__buffer live = { .role = TESS__SHARD_GRAD,
                              .domain = (uint8_t)group->grad_rest.domain,
                              .arena = TESS__RESIDENT,
                              .category = TESS_CAT_SHARD_GRAD,
                              .index = g,
                              .unit = group->unit,
                              .bytes = tess__round_up(group->shard_elems * 4, b->setup->align),
                              .last = INT32_MAX };
        TRY(tess__program_buffer(b->p, &live, slot(b, TESS__SHARD_GRAD, g)));
        TRY(optimize_group(b, g));
    }
    return TESS_OK;
}

/* tess_each_full: pieces are broadcast by their owners, one at a time. */
static tess_status compile_full(tess__compiler *b) {
    uint64_t scratch = 0, bytes = 0;
    for (int32_t g = 0; g < b->layout->n_groups; g++) {
        uint64_t wide = b->layout->chunk_elems * tess__dtype_bytes(b->layout->groups[g].master);
        bytes = wide > bytes ? wide : bytes;
    }
    if (b->setup->shard_ranks > 1)
        TRY(tess__scratch_of(b->setup, TESS_BROADCAST, TESS_U8, TESS_U8, bytes, b->setup->shard_ranks, &scratch));
    TRY(book(b, TESS__CHUNK, 0, TESS_CAT_COMM, -1, bytes, 0));
    return book(b, TESS__CHUNK_SCRATCH, 0, TESS_CAT_COMM, -1, scratch, 0);
}

tess_status tess__compile_other(tess__compiler *b, uint32_t kind, tess__program *out) {
    tess__compiler_start(b, out, kind);
    if (kind == TESS__PASS_NORM || kind == TESS__PASS_CLIP)
        TRY(compile_norm(b));
    if (kind == TESS__PASS_STEP || kind == TESS__PASS_CLIP)
        TRY(compile_steps(b));
    if (kind == TESS__PASS_FULL)
        TRY(compile_full(b));
    return finish_program(b, kind != TESS__PASS_FULL, out);
}
