/* SPDX-License-Identifier: BSD-3-Clause */
/* Moves values in and out without the whole model anywhere: owned ranges, and full parameters piece by piece. */
#include "values.h"

#include "base/hash.h"
#include "kernels/kernels.h"
#include "base/status.h"
#include <tessera/gpu.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *call; /* the public function's name */
    uint32_t of;      /* TESS_OF_…, without the flag */
    int write;
    tess_range_fn fn;
    void *user;
    void *raw, *wide; /* host memory for one chunk: as stored, and as fp32 */
} walk;

/* A walk hands out floats, one for each element. */
static tess_status check_state(const tess *t, const walk *w) {
    for (int32_t g = 0; w->of >= TESS_OF_MOMENT1 && g < t->plan.layout.n_groups; g++) {
        const tess_grain *step = &t->plan.layout.groups[g].step;
        const tess_state *x = &step->state[w->of - TESS_OF_MOMENT1];
        if (w->of - TESS_OF_MOMENT1 < step->n_states && (x->every > 1 || !tess__is_float(x->dtype)))
            return tess__fail(TESS_E_UNSUPPORTED,
                              "%s: optimizer %s keeps its state %s in %s, not as a number for each element", w->call,
                              t->settings.optimizer, x->name, tess_dtype_name(x->dtype));
    }
    return TESS_OK;
}

static tess_status check_walk(const tess *t, const walk *w) {
    if (!t->sharded || t->settings.plan_only)
        return tess__fail(TESS_E_INVALID, "%s before tess_shard", w->call);
    if (w->of < TESS_OF_PARAM || w->of > TESS_OF_MOMENT2 || !w->fn)
        return tess__fail(TESS_E_INVALID, "%s: %u is nothing to walk over, or the function is missing", w->call, w->of);
    if (w->of == TESS_OF_GRAD && (!t->pass.pending_grads || t->pass.microbatch < t->plan.setup.accum))
        return tess__fail(TESS_E_INVALID, "%s: there are no gradients; they live from a training pass to its step",
                          w->call);
    if (w->of >= TESS_OF_MOMENT1 && (int32_t)(w->of - TESS_OF_MOMENT1) >= t->plan.layout.n_states)
        return tess__fail(TESS_E_INVALID, "%s: optimizer %s keeps %d states", w->call, t->settings.optimizer,
                          t->plan.layout.n_states);
    return check_state(t, w);
}

tess_range tess__range_of(const tess__param *p, int32_t index, uint64_t first, uint64_t elems) {
    return (tess_range){ .struct_size = sizeof(tess_range),
                         .param = index,
                         .tag = p->tag,
                         .slice = p->slice,
                         .slice_elems = p->elems,
                         .first_elem = first,
                         .elems = elems,
                         .name = p->name,
                         .stacked_first = (uint64_t)p->slice * p->elems + first };
}

static tess_status call_program(const walk *w, const tess_range *r, void *data) {
    uint64_t before = tess__fail_count();
    tess_status s = w->fn(w->user, r, data);
    return s ? tess__callback_failed(s, before, "the program's function for parameter", r->name) : TESS_OK;
}

/* Hands one range to the callback, in place where host code can read it as it lies. */
static tess_status visit_range(tess *t, const walk *w, const tess_range *r, const tess__value *v) {
    if (tess__value_direct(v))
        return call_program(w, r, v->at);
    for (uint64_t done = 0; done < r->elems; done += TESS__CHUNK_ELEMS) {
        tess_range part = *r;
        part.first_elem += done;
        part.stacked_first += done;
        part.elems = r->elems - done < TESS__CHUNK_ELEMS ? r->elems - done : TESS__CHUNK_ELEMS;
        TRY(tess__value_load(t, v, done, part.elems, w->raw, w->wide));
        TRY(call_program(w, &part, w->wide));
        if (w->write)
            TRY(tess__value_store(t, v, done, part.elems, w->raw, w->wide));
    }
    return TESS_OK;
}

static int is_visited(const tess *t, const walk *w, int32_t i) {
    const tess__param *p = &t->plan.model.params[i];
    if (p->tied_to != i)
        return 0;
    if (p->flags & TESS_BUFFER) /* buffers are the same on all ranks: all set them, rank 0 gives them */
        return w->of == TESS_OF_PARAM && (w->write || t->comms.world.rank == 0);
    if (w->of >= TESS_OF_MOMENT1)
        return w->of - TESS_OF_MOMENT1 < t->plan.layout.groups[p->group].step.n_states;
    return w->of == TESS_OF_PARAM || !(p->flags & TESS_FROZEN);
}

static tess_status visit_owned(tess *t, const walk *w) {
    for (int32_t i = 0; i < t->plan.model.n_params; i++) {
        const tess__param *p = &t->plan.model.params[i];
        if (!is_visited(t, w, i))
            continue;
        tess__owned o = tess__owned_at(t, w->of, i);
        tess_range r = tess__range_of(p, i, o.piece.in_param, o.piece.elems);
        if (o.piece.elems)
            TRY(visit_range(t, w, &r, &(tess__value){ o.at, o.mem, o.dtype, tess__value_scale(t, w->of) }));
    }
    return TESS_OK;
}

static tess_status with_chunks(tess *t, walk *w, tess_status (*body)(tess *, const walk *)) {
    TRY(tess__streams_sync(&t->streams)); /* host memory may be read as it lies */
    if (t->proof && !w->write)
        TRY(t->hooks->check_rest(t));
    w->raw = malloc(TESS__CHUNK_ELEMS * 8);
    w->wide = malloc(TESS__CHUNK_ELEMS * 8);
    tess_status s = w->raw && w->wide ? body(t, w) : tess__fail(TESS_E_NOMEM, "no memory for a chunk of parameters");
    free(w->raw);
    free(w->wide);
    return s;
}

static tess_status each_owned(tess *t, uint32_t of, tess_range_fn fn, void *user) {
    walk w = { .call = "tess_each_owned",
               .of = of & ~(uint32_t)TESS_OF_WRITE,
               .write = (of & TESS_OF_WRITE) != 0,
               .fn = fn,
               .user = user };
    TRY(tess__pass_finish(t));
    TRY(check_walk(t, &w));
    if (w.write) {
        tess__side_thread_join(&t->saving);
        t->masters_changed = 1;
    }
    return with_chunks(t, &w, visit_owned);
}

/* ---- all of it, on every rank ---- */

static tess_status send_chunk(tess *t, int32_t param, uint64_t first, int32_t owner, uint64_t bytes) {
    void *chunk = tess__address_of(t, TESS__CHUNK, 0);
    if (t->plan.setup.shard_ranks == 1)
        return TESS_OK;
    tess_collective c = { .op = TESS_BROADCAST,
                          .send_dtype = TESS_U8,
                          .recv_dtype = TESS_U8,
                          .send = chunk,
                          .recv = chunk,
                          .count = bytes,
                          .root = owner,
                          .scale = 1,
                          .tag = tess__hash_u64(tess__hash_u64(TESS__HASH_START, (uint64_t)param), first) | 1 };
    if (t->memory.booked[TESS__CHUNK_SCRATCH][0]) {
        c.scratch = tess__address_of(t, TESS__CHUNK_SCRATCH, 0);
        c.scratch_bytes = t->plan.programs[TESS__P_FULL].buffers[1].bytes;
    }
    return tess__comm_run(&t->comms, TESS__SHARD, &c, "the walk over full parameters");
}

static tess_status visit_piece(tess *t, const walk *w, int32_t i, int32_t owner) {
    const tess__param *p = &t->plan.model.params[i];
    tess__piece piece = tess__layout_piece(&t->plan.layout, p, owner);
    tess__value own = tess__value_owned(t, w->of, p, &piece); /* the owner's part */
    uint32_t bytes = tess_dtype_bytes(own.dtype);
    char *chunk = tess__address_of(t, TESS__CHUNK, 0);
    for (uint64_t done = 0; done < piece.elems; done += TESS__CHUNK_ELEMS) {
        uint64_t n = piece.elems - done < TESS__CHUNK_ELEMS ? piece.elems - done : TESS__CHUNK_ELEMS;
        if (owner == t->comms.shard_rank)
            TRY(tess__copy_now(t, chunk, t->plan.setup.env.mem, own.at + done * bytes, own.mem, n * bytes));
        TRY(send_chunk(t, i, piece.in_param + done, owner, n * bytes));
        tess_range r = tess__range_of(p, i, piece.in_param + done, n);
        TRY(visit_range(t, w, &r, &(tess__value){ chunk, t->plan.setup.env.mem, own.dtype, own.scale }));
    }
    return TESS_OK;
}

static tess_status visit_full(tess *t, const walk *w) {
    for (int32_t i = 0; i < t->plan.model.n_params; i++) {
        const tess__param *p = &t->plan.model.params[i];
        if (p->tied_to != i || (w->of != TESS_OF_PARAM && (p->flags & TESS_BUFFER || !is_visited(t, w, i))))
            continue;
        if (p->flags & TESS_BUFFER) { /* rank 0's values, as in an evaluation; the others see their own */
            tess_range r = tess__range_of(p, i, 0, p->elems);
            tess__value v = tess__value_owned(t, w->of, p, NULL);
            TRY(visit_range(t, w, &r, &v));
            continue;
        }
        for (int32_t owner = 0; owner < t->plan.setup.shard_ranks; owner++)
            TRY(visit_piece(t, w, i, owner));
    }
    return TESS_OK;
}

static tess_status each_full(tess *t, uint32_t of, tess_range_fn fn, void *user) {
    walk w = { .call = "tess_each_full", .of = of, .fn = fn, .user = user };
    if (of & TESS_OF_WRITE)
        return tess__fail(TESS_E_INVALID,
                          "tess_each_full only reads: TESS_OF_WRITE belongs to tess_each_owned, where each "
                          "rank writes what it owns");
    TRY(tess__pass_finish(t));
    TRY(check_walk(t, &w));
    if (t->pass.summoned)
        return tess__fail(TESS_E_INVALID, "tess_each_full while parameters are summoned");
    TRY(tess__run_program(t, &t->plan.programs[TESS__P_FULL]));
    TRY(with_chunks(t, &w, visit_full));
    return tess__free_all(t, &t->plan.programs[TESS__P_FULL]);
}

/* ---- public ---- */

tess_status tess_each_owned(tess *t, uint32_t of, tess_range_fn fn, void *user) {
    TESS__PUBLIC(t, each_owned(t, of, fn, user));
}

tess_status tess_each_full(tess *t, uint32_t of, tess_range_fn fn, void *user) {
    TESS__PUBLIC(t, each_full(t, of, fn, user));
}

/* ---- small reductions ---- */

/* Makes the collective of a reduction whose operands lie in the stage. */
static tess_collective reduction_of(const tess *t, uint64_t elems, uint32_t dtype, uint32_t op) {
    void *stage = tess__address_of(t, TESS__STAGE, 0);
    tess_collective c = { .op = TESS_ALL_REDUCE,
                          .redop = op == TESS_AVG ? TESS_SUM : op,
                          .send_dtype = dtype,
                          .recv_dtype = dtype,
                          .send = stage,
                          .recv = stage,
                          .count = elems,
                          .scale = op == TESS_AVG ? 1.0 / t->plan.setup.nranks : 1.0,
                          .scratch = tess__address_of(t, TESS__STAGE_SCRATCH, 0),
                          .tag = 0 };
    c.tag = tess__hash_u64(tess__hash_u64(TESS__HASH_START, (uint64_t)dtype << 32 | op), elems) | 1;
    for (int32_t i = 0; i < t->plan.resident.n_buffers; i++)
        if (t->plan.resident.buffers[i].role == TESS__STAGE_SCRATCH)
            c.scratch_bytes = t->plan.resident.buffers[i].bytes;
    return c;
}

typedef struct { /* one call */
    const char *call;
    char *host;
    uint64_t elems;
    uint32_t dtype, op;
} reduction;

static tess_status reduce_piece(tess *t, char *host, uint64_t elems, const reduction *r, const char *doing) {
    void *stage = tess__address_of(t, TESS__STAGE, 0);
    uint64_t bytes = elems * tess_dtype_bytes(r->dtype);
    TRY(tess__copy_now(t, stage, t->plan.setup.env.mem, host, TESS_MEM_HOST, bytes));
    tess_collective c = reduction_of(t, elems, r->dtype, r->op);
    TRY(tess__comm_run(&t->comms, TESS__WORLD, &c, doing));
    return tess__copy_now(t, host, TESS_MEM_HOST, stage, t->plan.setup.env.mem, bytes);
}

static tess_status reduce_now(tess *t, const reduction *r, const char *doing) {
    uint32_t bytes = tess_dtype_bytes(r->dtype);
    for (uint64_t done = 0; done < r->elems; done += TESS__STAGE_BYTES / 8) {
        uint64_t n = r->elems - done < TESS__STAGE_BYTES / 8 ? r->elems - done : TESS__STAGE_BYTES / 8;
        TRY(reduce_piece(t, r->host + done * bytes, n, r, doing));
    }
    return TESS_OK;
}

/* Reduces behind the latest pass, in a place of that pass's own. */
static tess_status reduce_behind(tess *t, int pass, const reduction *r, const char *doing) {
    void *stage = tess__address_of(t, TESS__STAGE, 0);
    uint64_t bytes = r->elems * tess_dtype_bytes(r->dtype);
    char *at = tess__address_of(t, TESS__VALUES, 0);
    at += (uint64_t)pass * tess__round_up(TESS__VALUES_BYTES, t->plan.setup.align);
    memcpy(at, r->host, bytes);
    TRY(tess__device_copy(&t->device, stage, t->device.mem, at, TESS_MEM_PINNED, bytes, NULL));
    tess_collective c = reduction_of(t, r->elems, r->dtype, r->op);
    TRY(tess__stream_collective(&t->streams, TESS__WORLD, &c, doing));
    return tess__values_take(&t->streams, pass, r->host, at, stage, bytes);
}

static tess_status check_reduction(const tess *t, const reduction *r) {
    uint32_t dtype = r->dtype, op = r->op;
    if ((dtype != TESS_F32 && dtype != TESS_F64 && dtype != TESS_I32 && dtype != TESS_I64) || op < TESS_SUM ||
        op > TESS_AVG || (op == TESS_AVG && (dtype == TESS_I32 || dtype == TESS_I64)))
        return tess__fail(TESS_E_INVALID, "%s: operation %u of dtype %s is not offered", r->call, op,
                          tess_dtype_name(dtype));
    if (!t->sharded || t->settings.plan_only)
        return tess__fail(TESS_E_INVALID, "%s before tess_shard", r->call);
    if (r->elems && !r->host)
        return tess__fail(TESS_E_INVALID, "%s: %llu elements at a null pointer", r->call, (unsigned long long)r->elems);
    if (t->settings.strict && tess__guard_in(r->host, r->elems, dtype))
        return tess__fail(TESS_E_INVALID,
                          "%s: the values hold the NaN that TESSERA_STRICT=1 leaves in released memory: a pointer was "
                          "used after its end",
                          r->call);
    return TESS_OK;
}

static tess_status reduce_values(tess *t, const reduction *r, int may_be_late) {
    static const char *const ops[] = { "", "sum", "min", "max", "average" };
    char doing[96];
    TRY(check_reduction(t, r));
    if (t->comms.world.nranks == 1)
        return TESS_OK;
    snprintf(doing, sizeof doing, "%s (%s) of %llu %s", r->call, ops[r->op], (unsigned long long)r->elems,
             tess_dtype_name(r->dtype));
    int pass = may_be_late ? tess__latest_pass(&t->streams) : -1;
    int fits = r->elems && r->elems <= TESS__VALUES_BYTES / tess_dtype_bytes(r->dtype);
    return pass >= 0 && fits ? reduce_behind(t, pass, r, doing) : reduce_now(t, r, doing);
}

tess_status tess_all_reduce(tess *t, void *host, uint64_t elems, uint32_t dtype, uint32_t op) {
    const reduction r = { "tess_all_reduce", host, elems, dtype, op };
    TESS__PUBLIC(t, reduce_values(t, &r, 0));
}

tess_status tess_all_reduce_late(tess *t, void *host, uint64_t elems, uint32_t dtype, uint32_t op) {
    const reduction r = { "tess_all_reduce_late", host, elems, dtype, op };
    TESS__PUBLIC(t, reduce_values(t, &r, 1));
}

tess_status tess_barrier(tess *t) {
    tess_status s = tess__engine_check(t);
    if (s || t->comms.world.nranks == 1 || t->settings.plan_only)
        return s;
    tess_collective c = { .op = TESS_BARRIER, .send_dtype = TESS_U8, .recv_dtype = TESS_U8, .scale = 1, .tag = 1 };
    if ((s = tess__comm_run(&t->comms, TESS__WORLD, &c, "tess_barrier")))
        s = tess__engine_fail(t, s);
    return s;
}
