/* SPDX-License-Identifier: BSD-3-Clause */
#include "compile_units.h"

#include "base/status.h"
#include "compile_matrices.h"
#include "compile_states.h"
#include "emit.h"
#include "layout/matrices.h"

/* ---- what goes on in host memory beside the engine's thread ---- */

static int on_host(const tess__compiler *b, tess__rest rest) {
    (void)b;
    return rest.domain == TESS_DOMAIN_HOST;
}

static uint8_t async_if(int condition) {
    return condition ? TESS__ASYNC : 0;
}

/* Tells whether a lane gathers: with one rank there is no network, and the shard is the whole. */
static int gathers_on_lane(const tess__compiler *b, const tess__group *g) {
    return b->setup->shard_ranks == 1 && on_host(b, g->param_rest);
}

static int reduces_on_lane(const tess__compiler *b, const tess__group *g) {
    return b->setup->shard_ranks == 1 && b->setup->replicas == 1 && on_host(b, g->grad_rest);
}

/* Tells whether a unit's gathers take time. With one rank and all memory on the device, a collective is the engine's
 * own work and over when it is posted. */
static int unit_travels(const tess__compiler *b, int32_t u) {
    for (int32_t i = 0, g = b->layout->units[u].first_group; i < b->layout->units[u].n_groups; i++, g++) {
        const tess__group *group = &b->layout->groups[g];
        if (on_host(b, group->param_rest) || on_host(b, group->grad_rest) || on_host(b, group->state_rest))
            return 1;
    }
    return b->setup->shard_ranks > 1 || b->setup->replicas > 1;
}

static int reduction_travels(const tess__compiler *b, int32_t u) {
    for (int32_t i = 0, g = b->layout->units[u].first_group; i < b->layout->units[u].n_groups; i++, g++)
        if (reduces_on_lane(b, &b->layout->groups[g]))
            return 1;
    return b->setup->shard_ranks > 1 || b->setup->replicas > 1;
}

/* Tells whether a lane steps the unit within a pass, while backward goes on. */
static int steps_on_lane(const tess__compiler *b, const tess__group *g) {
    return b->fused && !tess__steps_matrices(g) &&
           (on_host(b, g->param_rest) || on_host(b, g->grad_rest) || on_host(b, g->state_rest));
}

/* ---- parameters: gather, wait, release ---- */

#define EACH_GROUP(g, u)                                                                                               \
    for (int32_t g = b->layout->units[u].first_group, g##_end = g + b->layout->units[u].n_groups; g < g##_end; g++)

tess_status tess__unit_gather(tess__compiler *b, int32_t u) {
    if (b->units[u].gathered != TESS__ABSENT)
        return TESS_OK;
    EACH_GROUP(g, u) {
        const tess__group *group = &b->layout->groups[g];
        if (group->in_place)
            continue;
        int packed = tess_dtype_is_blocks(group->gather);
        tess__planned_collective c = tess__emit_collective(
            b, TESS_ALL_GATHER, TESS__SHARD, packed ? TESS_U8 : group->gather, packed ? TESS_U8 : group->gather,
            packed ? tess_dtype_span(group->gather, group->shard_elems) : group->shard_elems);
        TRY(tess__emit_alloc(b, packed ? TESS__PACKED : TESS__FULL, g, packed ? TESS_CAT_COMM : TESS_CAT_FULL_PARAM, u,
                             tess_dtype_span(group->gather, group->flat_elems), 0));
        if (b->units[u].fetched && on_host(b, group->param_rest)) {
            TRY(tess__emit(b, TESS__PREFETCH_WAIT, g));
            TRY(tess__emit_free(b, TESS__STAGED_PARAM, g));
        } else {
            TRY(tess__staged_param(b, g));
        }
        TRY(tess__emit_scratch(b, TESS__GATHER_SCRATCH, g, u, &c));
        TRY(tess__emit_post(b, TESS__GATHER, async_if(gathers_on_lane(b, group)), g, &c));
        if (!gathers_on_lane(b, group))
            TRY(tess__emit_free(b, TESS__STAGED_PARAM, g));
        TRY(tess__emit_free(b, TESS__FETCHED, g));
    }
    b->units[u].gathered = TESS__IN_FLIGHT;
    b->units[u].fetched = 0;
    return TESS_OK;
}

/* Brings a shard up from the host while the unit before it is gathered, so that its own gather can begin at once.
 * With one rank that transfer is the gather. */
tess_status tess__unit_fetch(tess__compiler *b, int32_t u) {
    if (b->units[u].gathered != TESS__ABSENT || b->units[u].fetched || b->setup->shard_ranks == 1)
        return TESS_OK;
    EACH_GROUP(g, u) {
        const tess__group *group = &b->layout->groups[g];
        if (!on_host(b, group->param_rest))
            continue;
        TRY(tess__emit_alloc(b, TESS__FETCHED, g, TESS_CAT_COMM, u, tess_dtype_span(group->gather, group->shard_elems),
                             0));
        TRY(tess__staged_param(b, g));
        TRY(tess__emit(b, TESS__PREFETCH, g));
        b->units[u].fetched = 1;
    }
    return TESS_OK;
}

tess_status tess__unit_drop(tess__compiler *b, int32_t u) {
    EACH_GROUP(g, u)
        if (b->units[u].fetched && on_host(b, b->layout->groups[g].param_rest)) {
            TRY(tess__emit(b, TESS__PREFETCH_WAIT, g));
            TRY(tess__emit_free(b, TESS__STAGED_PARAM, g));
            TRY(tess__emit_free(b, TESS__FETCHED, g));
        }
    b->units[u].fetched = 0;
    return TESS_OK;
}

/* The whole is not there before it is needed: what is gathered ahead lies in blocks. */
static tess_status widen_group(tess__compiler *b, int32_t g) {
    const tess__group *group = &b->layout->groups[g];
    if (!tess_dtype_is_blocks(group->gather))
        return TESS_OK;
    TRY(tess__emit_alloc(b, TESS__FULL, g, TESS_CAT_FULL_PARAM, group->unit,
                         group->flat_elems * tess_dtype_bytes(group->compute), 0));
    TRY(tess__emit(b, TESS__WIDEN, g));
    return tess__emit_free(b, TESS__PACKED, g);
}

tess_status tess__unit_wait(tess__compiler *b, int32_t u) {
    if (b->units[u].gathered != TESS__IN_FLIGHT)
        return TESS_OK;
    EACH_GROUP(g, u) {
        if (b->layout->groups[g].in_place)
            continue;
        TRY(tess__emit(b, TESS__GATHER_WAIT, g));
        if (gathers_on_lane(b, &b->layout->groups[g]))
            TRY(tess__emit_free(b, TESS__STAGED_PARAM, g));
        TRY(tess__emit_free(b, TESS__GATHER_SCRATCH, g));
        TRY(widen_group(b, g));
    }
    b->units[u].gathered = TESS__HERE;
    return TESS_OK;
}

tess_status tess__unit_release(tess__compiler *b, int32_t u) {
    EACH_GROUP(g, u) {
        TRY(tess__emit_free(b, TESS__PACKED, g));
        TRY(tess__emit_free(b, TESS__FULL, g));
    }
    b->units[u].gathered = TESS__ABSENT;
    return TESS_OK;
}

tess_status tess__unit_gather_ahead(tess__compiler *b, int32_t u) {
    return unit_travels(b, u) ? tess__unit_gather(b, u) : TESS_OK;
}

/* ---- gradients: begin, reduce, finish ---- */

static int sums_at_end(const tess__compiler *b) {
    return b->setup->accum > 1 && !b->setup->sync_each;
}

/* Tells whether a sum of reduced shards follows, and with it the division. */
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
    TRY(tess__grad_memory(b, g));
    if (b->setup->accum > 1)
        return TESS_OK; /* lives across passes: the engine books it at the first microbatch */
    if (b->fused && group->grad_rest.stored)
        return TESS_OK; /* is stepped where it is summed */
    return tess__emit_alloc(b, TESS__SHARD_GRAD, g, TESS_CAT_SHARD_GRAD, group->unit,
                            tess__round_up(tess__shard_grad_bytes(group), tess__grad_align(b->setup, b->layout, g)),
                            flags);
}

/* Tells whether kernels write every element of the gradient before anything reads it: no parameter adds, and there
 * is no padding. */
static int kernels_store_all(const tess__compiler *b, const tess__group *g) {
    uint64_t elems = 0;
    for (int32_t i = g->first_param; i < g->first_param + g->n_params; i++) {
        const tess__param *p = &b->model->params[b->layout->order[i]];
        if (!(p->flags & TESS_GRAD_OVERWRITE))
            return 0;
        elems += p->elems;
    }
    return b->model->n_blocks && elems == g->flat_elems;
}

tess_status tess__unit_begin_grad(tess__compiler *b, int32_t u, int is_untouched) {
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
        uint8_t zero = !is_untouched && kernels_store_all(b, group) ? 0 : TESS__ZERO;
        if (group->grad_in_place)
            TRY(book_shard_grad(b, g, zero));
        else
            TRY(tess__emit_alloc(b, TESS__GRAD, g, TESS_CAT_FULL_GRAD, u,
                                 group->flat_elems * tess_dtype_bytes(group->grad_local), zero));
    }
    b->units[u].grad = 1;
    return TESS_OK;
}

/* Tells whether the group's gradient travels in blocks, leaves and sums alike. */
static int sends_blocks(const tess__compiler *b, const tess__group *g) {
    return tess_dtype_is_blocks(g->grad_wire) && b->setup->nranks > 1;
}

/* The dtype in which a group's gradient is sent where it is not in blocks: partial sums are sent in fp32
 * (docs/numbers.md, "Sums"). */
static uint32_t sent_dtype(const tess__compiler *b, const tess__group *g) {
    return sums_at_end(b) ? TESS_F32 : g->grad_wire;
}

/* Blocks of the shard for its replicas: as many for each, the last ones maybe empty. */
static tess_status alloc_for_replicas(tess__compiler *b, int role, int32_t g) {
    const tess__group *group = &b->layout->groups[g];
    uint64_t elems = (uint64_t)b->setup->replicas * tess__replica_elems(group, b->setup->replicas);
    return tess__emit_alloc(b, role, g, TESS_CAT_COMM, group->unit, tess_dtype_span(group->grad_wire, elems),
                            elems == group->shard_elems || role == TESS__LANDED ? 0 : TESS__ZERO);
}

static tess_status alloc_wire(tess__compiler *b, int32_t g) {
    const tess__group *group = &b->layout->groups[g];
    if (sends_blocks(b, group) && b->setup->shard_ranks == 1)
        return alloc_for_replicas(b, TESS__WIRE, g);
    return tess__emit_alloc(b, TESS__WIRE, g, TESS_CAT_COMM, group->unit,
                            tess_dtype_span(group->grad_wire, group->flat_elems), 0);
}

static tess_status prepare_send(tess__compiler *b, int32_t g) {
    const tess__group *group = &b->layout->groups[g];
    if (group->grad_wire != group->grad_local) { /* so that a leaf is rounded once, wherever it goes */
        TRY(alloc_wire(b, g));
        TRY(tess__emit(b, TESS__CAST_WIRE, g));
        TRY(tess__emit_free(b, TESS__GRAD, g));
    }
    if (!sums_at_end(b))
        return TESS_OK;
    TRY(tess__emit(b, TESS__SUM_FULL, g));
    TRY(tess__emit_free(b, TESS__WIRE, g));
    return tess__emit_free(b, TESS__GRAD, g);
}

/* Posts a collective of replicas' blocks: each sends every other its part, and later the sum of its own to all. */
static tess_status post_blocks(tess__compiler *b, int32_t g, uint8_t op, uint8_t flags) {
    const tess__group *group = &b->layout->groups[g];
    uint64_t bytes = tess_dtype_span(group->grad_wire, tess__replica_elems(group, b->setup->replicas));
    tess__planned_collective c = tess__emit_collective(b, op, TESS__REPLICA, TESS_U8, TESS_U8, bytes);
    TRY(tess__emit_scratch(b, TESS__REDUCE_SCRATCH, g, group->unit, &c));
    return tess__emit_post(b, TESS__REPLICATE, flags, g, &c);
}

static tess_status replicate_group(tess__compiler *b, int32_t g) {
    const tess__group *group = &b->layout->groups[g];
    uint32_t send = b->setup->shard_ranks == 1 ? sent_dtype(b, group) : TESS_F32;
    if (sends_blocks(b, group)) {
        TRY(alloc_for_replicas(b, TESS__LANDED, g));
        return post_blocks(b, g, TESS_ALL_TO_ALL, 0);
    }
    tess__planned_collective c =
        tess__emit_collective(b, TESS_ALL_REDUCE, TESS__REPLICA, send, TESS_F32, group->shard_elems);
    c.redop = TESS_SUM;
    c.is_mean = !sums_shards(b);
    TRY(tess__emit_scratch(b, TESS__REDUCE_SCRATCH, g, group->unit, &c));
    return tess__emit_post(b, TESS__REPLICATE, 0, g, &c);
}

/* Sums what came from the replicas, and brings all sums together. */
static tess_status end_blocks(tess__compiler *b, int32_t g) {
    TRY(tess__emit(b, TESS__SUM_LANDED, g));
    TRY(tess__emit_free(b, TESS__LANDED, g));
    TRY(post_blocks(b, g, TESS_ALL_GATHER, TESS__BACK));
    TRY(tess__emit(b, TESS__REPLICATE_WAIT, g));
    TRY(tess__emit_free(b, TESS__REDUCE_SCRATCH, g));
    TRY(tess__emit(b, TESS__WIDEN_SUM, g));
    return tess__emit_free(b, TESS__SHARD_WIRE, g);
}

/* Makes the rounded leaf the sharded gradient. */
static tess_status round_leaf(tess__compiler *b, int32_t g) {
    TRY(book_shard_grad(b, g, 0));
    TRY(tess__emit(b, TESS__CAST_WIRE, g));
    return tess__emit_free(b, TESS__GRAD, g);
}

/* Each rank sends every other its part of the shard's gradient in blocks, and sums what comes. */
static tess_status exchange_blocks(tess__compiler *b, int32_t g) {
    const tess__group *group = &b->layout->groups[g];
    tess__planned_collective c = tess__emit_collective(b, TESS_ALL_TO_ALL, TESS__SHARD_SUMS, TESS_U8, TESS_U8,
                                                       tess_dtype_span(group->grad_wire, group->shard_elems));
    TRY(tess__emit_alloc(b, TESS__ARRIVED, g, TESS_CAT_COMM, group->unit,
                         tess_dtype_span(group->grad_wire, group->flat_elems), 0));
    TRY(tess__emit_scratch(b, TESS__REDUCE_SCRATCH, g, group->unit, &c));
    return tess__emit_post(b, TESS__REDUCE, 0, g, &c);
}

/* Tells whether a lane reduces the gradient to where it goes to its store from. */
static int leaves_behind_reduce(const tess__compiler *b, const tess__group *g) {
    return reduces_on_lane(b, g) && !needs_part(b, g) && !g->grad_in_place && g->grad_shard == TESS_F32;
}

static tess_status post_reduce(tess__compiler *b, int32_t g) {
    const tess__group *group = &b->layout->groups[g];
    if (group->grad_shard != TESS_F32)
        return round_leaf(b, g);
    TRY(prepare_send(b, g));
    if (sums_at_end(b) && sends_blocks(b, group)) {
        TRY(alloc_wire(b, g));
        TRY(tess__emit(b, TESS__PACK_SUM, g));
    }
    if (needs_part(b, group)) {
        TRY(tess__grad_ahead(b, g)); /* the sum to which the part is added */
        TRY(tess__emit_alloc(b, TESS__PART, g, TESS_CAT_COMM, group->unit, group->shard_elems * 4, 0));
    } else if (!group->grad_in_place)
        TRY(book_shard_grad(b, g, 0));
    if (b->setup->shard_ranks == 1 && b->setup->replicas > 1)
        return replicate_group(b, g);
    if (group->grad_in_place)
        return TESS_OK;
    if (b->setup->shard_ranks > 1 && sends_blocks(b, group))
        return exchange_blocks(b, g);
    tess__planned_collective c = tess__emit_collective(b, TESS_REDUCE_SCATTER, TESS__SHARD_SUMS, sent_dtype(b, group),
                                                       TESS_F32, group->shard_elems);
    c.redop = TESS_SUM;
    c.is_mean = b->setup->replicas == 1 && !sums_shards(b);
    TRY(tess__emit_scratch(b, TESS__REDUCE_SCRATCH, g, group->unit, &c));
    TRY(tess__emit_post(b, TESS__REDUCE, async_if(reduces_on_lane(b, group)), g, &c));
    return leaves_behind_reduce(b, group) ? tess__grad_store_behind(b, g) : TESS_OK;
}

/* Ends the reduction within the shard group. Then the shard goes on to the replicas, if there are any. */
static tess_status end_first(tess__compiler *b, int32_t g) {
    const tess__group *group = &b->layout->groups[g];
    int sharded = b->setup->shard_ranks > 1, replicated = b->setup->replicas > 1;
    if (group->grad_shard != TESS_F32)
        return TESS_OK;
    if (sharded || (!replicated && !group->grad_in_place)) {
        TRY(tess__emit(b, TESS__REDUCE_WAIT, g));
        TRY(tess__emit_free(b, TESS__REDUCE_SCRATCH, g));
    }
    if (!sharded)
        return TESS_OK;
    TRY(tess__emit_free(b, TESS__GRAD, g)); /* before the second collective takes scratch of its own */
    TRY(tess__emit_free(b, TESS__WIRE, g));
    if (sends_blocks(b, group)) {
        if (replicated)
            TRY(alloc_for_replicas(b, TESS__SHARD_WIRE, g));
        TRY(tess__emit(b, TESS__SUM_ARRIVED, g));
        TRY(tess__emit_free(b, TESS__ARRIVED, g));
    }
    return replicated ? replicate_group(b, g) : TESS_OK;
}

static tess_status finish_group(tess__compiler *b, int32_t g) {
    const tess__group *group = &b->layout->groups[g];
    if (group->grad_shard != TESS_F32)
        return TESS_OK;
    if (b->setup->replicas > 1) {
        TRY(tess__emit(b, TESS__REPLICATE_WAIT, g));
        TRY(tess__emit_free(b, TESS__REDUCE_SCRATCH, g));
        if (sends_blocks(b, group))
            TRY(end_blocks(b, g));
    }
    TRY(tess__emit_free(b, TESS__GRAD, g));
    TRY(tess__emit_free(b, TESS__WIRE, g));
    if (needs_part(b, group)) {
        TRY(tess__grad_need(b, g));
        TRY(book_shard_grad(b, g, 0));
        TRY(tess__emit_flagged(b, TESS__SUM_SHARD, async_if(on_host(b, group->grad_rest)), g));
        return on_host(b, group->grad_rest) ? tess__grad_store_behind(b, g) : tess__emit_free(b, TESS__PART, g);
    }
    return leaves_behind_reduce(b, group) ? tess__grad_going(b, g) : tess__grad_store(b, g);
}

/* Tells whether the exchange of the unit's matrices goes on beside the backward of the units after it. */
static int overlaps_matrices(const tess__compiler *b, int32_t u) {
    if (!b->fused || b->in_turn != TESS__IN_TURN_NEVER || b->setup->shard_ranks == 1)
        return 0;
    EACH_GROUP(g, u)
        if (tess__steps_matrices(&b->layout->groups[g]))
            return 1;
    return 0;
}

/* Tells whether the unit's optimizer step ends on a lane, or with its matrices. */
static int ends_later(const tess__compiler *b, int32_t u) {
    EACH_GROUP(g, u)
        if (b->layout->groups[g].trainable && steps_on_lane(b, &b->layout->groups[g]))
            return 1;
    return overlaps_matrices(b, u);
}

/* Matrices that travel keep their states longer: theirs come when their gradient is complete. */
static int comes_early(const tess__compiler *b, int32_t u) {
    EACH_GROUP(g, u)
        if (b->layout->groups[g].trainable && tess__steps_matrices(&b->layout->groups[g]) && reduction_travels(b, u))
            return 0;
    return b->fused && b->units[u].last_backward == b->at;
}

tess_status tess__unit_states_ahead(tess__compiler *b, int32_t u) {
    if (!comes_early(b, u))
        return TESS_OK;
    EACH_GROUP(g, u)
        if (b->layout->groups[g].trainable)
            TRY(tess__states_ahead(b, g));
    return TESS_OK;
}

tess_status tess__group_optimize(tess__compiler *b, int32_t g) {
    int32_t u = b->layout->groups[g].unit, first = b->layout->units[u].first_group;
    int32_t last = first + b->layout->units[u].n_groups - 1;
    int later = steps_on_lane(b, &b->layout->groups[g]), overlaps = overlaps_matrices(b, u);
    while (!b->layout->groups[first].trainable)
        first++;
    while (!b->layout->groups[last].trainable)
        last--;
    if (g == first)
        TRY(tess__program_point(b->p, TESS_LEDGER_OPTIMIZER, u));
    if (tess__steps_matrices(&b->layout->groups[g])) {
        TRY(overlaps ? tess__matrices_begin(b, g) : tess__matrices_alone(b, g));
    } else {
        TRY(tess__states_need(b, g));
        TRY(tess__emit_flagged(b, TESS__OPTIMIZE, async_if(later), g));
        if (later) {
            TRY(tess__states_store_behind(b, g));
        } else {
            TRY(tess__grad_free(b, g));
            TRY(tess__states_store(b, g));
        }
    }
    if (g == last && overlaps)
        b->begun = u;
    return g == last && !ends_later(b, u) ? tess__program_point(b->p, TESS_LEDGER_OPTIMIZER | TESS_LEDGER_AFTER, u)
                                          : TESS_OK;
}

static int sums_on_lane(const tess__compiler *b, const tess__group *g) {
    return needs_part(b, g) && on_host(b, g->grad_rest);
}

tess_status tess__unit_end_stores(tess__compiler *b) {
    int32_t u = b->leaving;
    b->leaving = -1;
    if (u < 0)
        return TESS_OK;
    EACH_GROUP(g, u) {
        if (sums_on_lane(b, &b->layout->groups[g]))
            TRY(tess__grad_stored(b, g));
        if (steps_on_lane(b, &b->layout->groups[g]))
            TRY(tess__states_stored(b, g));
    }
    return TESS_OK;
}

/* Host work started by a unit's gradient is awaited only after the next unit's gradient has arrived, so the two
 * overlap. */
tess_status tess__unit_end_host_work(tess__compiler *b) {
    int32_t u = b->on_host;
    b->on_host = -1;
    b->leaving = u;
    if (u < 0)
        return TESS_OK;
    EACH_GROUP(g, u) {
        const tess__group *group = &b->layout->groups[g];
        if (!group->trainable || (!sums_on_lane(b, group) && !steps_on_lane(b, group)))
            continue;
        TRY(tess__emit(b, TESS__HOST_WAIT, g));
        TRY(tess__emit_free(b, TESS__PART, g));
        if (b->fused)
            TRY(tess__grad_free(b, g));
    }
    if (b->setup->prefetch == 0)
        TRY(tess__unit_end_stores(b));
    return ends_later(b, u) && !overlaps_matrices(b, u)
               ? tess__program_point(b->p, TESS_LEDGER_OPTIMIZER | TESS_LEDGER_AFTER, u)
               : TESS_OK;
}

static tess_status finish_unit(tess__compiler *b, int32_t u, int ends_first) {
    TRY(tess__unit_end_host_work(b));
    TRY(tess__matrices_follow(b)); /* with replicas two units may end with no reduction between them */
    EACH_GROUP(g, u)
        if (b->layout->groups[g].trainable) {
            if (ends_first)
                TRY(end_first(b, g));
            TRY(finish_group(b, g));
            if (b->fused)
                TRY(tess__group_optimize(b, g));
        }
    b->on_host = u;
    return tess__unit_end_stores(b); /* of the unit before, beside this one's step */
}

tess_status tess__unit_end_replicate(tess__compiler *b) {
    int32_t u = b->replicating;
    b->replicating = -1;
    return u < 0 ? TESS_OK : finish_unit(b, u, 0);
}

/* Ends a unit's reduction. The sum of its replicas goes on beside the next unit's backward, as its reduction did
 * before. So shard and scratch stay for one unit longer. */
tess_status tess__unit_end_reduce(tess__compiler *b) {
    int32_t u = b->reducing;
    b->reducing = -1;
    TRY(tess__unit_end_replicate(b));
    if (u < 0)
        return TESS_OK;
    if (b->setup->shard_ranks == 1 || b->setup->replicas == 1)
        return finish_unit(b, u, 1);
    EACH_GROUP(g, u)
        if (b->layout->groups[g].trainable)
            TRY(end_first(b, g));
    b->replicating = u;
    return TESS_OK;
}

tess_status tess__unit_reduce(tess__compiler *b, int32_t u) {
    int sync = !(b->p->kind & TESS_PASS_NO_SYNC);
    TRY(tess__unit_end_reduce(b));
    EACH_GROUP(g, u) {
        if (!b->layout->groups[g].trainable)
            continue;
        if (sync)
            TRY(post_reduce(b, g));
        else
            TRY(prepare_send(b, g));
        if (b->fused)
            TRY(tess__states_ahead(b, g));
    }
    b->units[u].grad = 0;
    b->units[u].reduced = 1;
    if (sync)
        b->reducing = u;
    TRY(tess__matrices_follow(b)); /* behind this unit's reduction, which goes on beside the owners' work */
    return sync && !reduction_travels(b, u) ? tess__unit_end_reduce(b) : TESS_OK;
}
