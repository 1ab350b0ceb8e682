/* How values get in and out without the whole model anywhere: owned ranges, and full parameters piece by piece. */
#include "engine.h"

#include "hash.h"
#include "kernels.h"
#include "status.h"
#include "try.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    uint32_t of; /* TESS_OF_…, without the flag */
    int write;
    tess_range_fn fn;
    void *user;
    void *raw, *wide; /* host memory for one chunk: as stored, and as fp32 */
} walk;

static int role_of(uint32_t of) {
    return of == TESS_OF_PARAM     ? TESS__MASTER
           : of == TESS_OF_GRAD    ? TESS__SHARD_GRAD
           : of == TESS_OF_MOMENT1 ? TESS__STATE0
                                   : TESS__STATE1;
}

static uint32_t dtype_of(const tess *t, uint32_t of, const tess__param *p) {
    if (p->flags & TESS_BUFFER)
        return p->dtype;
    return of == TESS_OF_PARAM ? t->layout.groups[p->group].master : TESS_F32;
}

static tess_status check(const tess *t, uint32_t of, tess_range_fn fn) {
    if (!t->sharded || t->plan_only)
        return tess__fail(TESS_E_INVALID, "tess_each before tess_shard");
    if (of < TESS_OF_PARAM || of > TESS_OF_MOMENT2 || !fn)
        return tess__fail(TESS_E_INVALID, "tess_each: %u is nothing to walk over", of);
    if (of == TESS_OF_GRAD && (!t->pending_grads || t->microbatch < t->setup.accum))
        return tess__fail(TESS_E_INVALID,
                          "tess_each: there are no gradients; they live from a training pass to its step");
    if (of >= TESS_OF_MOMENT1 && (int32_t)(of - TESS_OF_MOMENT1) >= t->setup.n_states)
        return tess__fail(TESS_E_INVALID, "tess_each: this optimizer keeps %d states", t->setup.n_states);
    return TESS_OK;
}

static tess_status copy(tess *t, void *dst, uint32_t dst_mem, const void *src, uint32_t src_mem, uint64_t bytes) {
    tess_error e = { .struct_size = sizeof e };
    tess_status s = t->dev->copy(t->device, dst, dst_mem, src, src_mem, bytes, &t->compute, &e);
    return s ? tess__plugin_failed(s, TESS_KIND_DEVICE, t->plugins[TESS_KIND_DEVICE], &e) : tess__device_sync(t);
}

static tess_range range_of(const tess__param *p, int32_t index, uint64_t first, uint64_t elems) {
    return (tess_range){ .struct_size = sizeof(tess_range),
                         .param = index,
                         .tag = p->tag,
                         .slice = p->slice,
                         .slice_elems = p->elems,
                         .first_elem = first,
                         .elems = elems,
                         .name = p->name };
}

/* The kind of memory that this rank's part of a parameter lies in. */
static uint32_t mem_of(const tess *t, uint32_t of, const tess__param *p) {
    if (p->flags & TESS_BUFFER)
        return t->setup.env.mem;
    const tess__group *g = &t->layout.groups[p->group];
    const tess__rest *rest = of == TESS_OF_PARAM ? &g->param_rest : of == TESS_OF_GRAD ? &g->grad_rest : &g->state_rest;
    if (rest->domain == TESS_DOMAIN_DEVICE)
        return t->setup.env.mem;
    return t->arenas[TESS_DOMAIN_HOST][rest->pageable ? TESS__PAGEABLE : TESS__RESIDENT].memory.mem;
}

/* Hands one range to the callback, in place where host code can read it as it lies. */
static tess_status visit(tess *t, const walk *w, const tess_range *r, void *at, uint32_t mem, uint32_t dtype) {
    uint64_t before = tess__fail_count();
    int direct = (mem == TESS_MEM_HOST || mem == TESS_MEM_PINNED) && (dtype == TESS_F32 || dtype == TESS_F64);
    if (direct) {
        tess_status s = w->fn(w->user, r, at);
        return s ? tess__callback_failed(s, before, "the program's function for parameter", r->name) : TESS_OK;
    }
    uint32_t bytes = tess__dtype_bytes(dtype), wide = dtype == TESS_F64 ? TESS_F64 : TESS_F32;
    tess__cast_fn widen = tess__cast_find(dtype, wide, 0), narrow = tess__cast_find(wide, dtype, 0);
    for (uint64_t done = 0; done < r->elems; done += TESS__CHUNK_ELEMS) {
        uint64_t n = r->elems - done < TESS__CHUNK_ELEMS ? r->elems - done : TESS__CHUNK_ELEMS;
        tess_range part = *r;
        part.first_elem += done;
        part.elems = n;
        char *from = (char *)at + done * bytes;
        TRY(copy(t, w->raw, TESS_MEM_HOST, from, mem, n * bytes));
        widen(w->raw, w->wide, n);
        tess_status s = w->fn(w->user, &part, w->wide);
        if (s)
            return tess__callback_failed(s, before, "the program's function for parameter", r->name);
        if (!w->write)
            continue;
        narrow(w->wide, w->raw, n);
        TRY(copy(t, from, mem, w->raw, TESS_MEM_HOST, n * bytes));
    }
    return TESS_OK;
}

static int is_visited(const tess *t, const walk *w, int32_t i) {
    const tess__param *p = &t->model.params[i];
    if (p->tied_to != i)
        return 0;
    if (p->flags & TESS_BUFFER) /* the same everywhere: all set it, rank 0 gives it */
        return w->of == TESS_OF_PARAM && (w->write || t->world.rank == 0);
    return w->of == TESS_OF_PARAM || !(p->flags & TESS_FROZEN);
}

static tess_status visit_owned(tess *t, const walk *w) {
    for (int32_t i = 0; i < t->model.n_params; i++) {
        const tess__param *p = &t->model.params[i];
        if (!is_visited(t, w, i))
            continue;
        uint32_t dtype = dtype_of(t, w->of, p);
        tess__piece piece = { .elems = p->elems };
        char *at = (char *)tess__at(t, TESS__BUFFERS, 0) + p->offset;
        if (!(p->flags & TESS_BUFFER)) {
            piece = tess__layout_piece(&t->layout, p, t->shard_rank);
            at = (char *)tess__at(t, role_of(w->of), p->group) + piece.in_shard * tess__dtype_bytes(dtype);
        }
        tess_range r = range_of(p, i, piece.in_param, piece.elems);
        if (piece.elems)
            TRY(visit(t, w, &r, at, mem_of(t, w->of, p), dtype));
    }
    return TESS_OK;
}

static tess_status with_chunks(tess *t, walk *w, tess_status (*body)(tess *, const walk *)) {
    TRY(tess__device_sync(t)); /* host memory may be read as it lies */
    w->raw = malloc(TESS__CHUNK_ELEMS * 8);
    w->wide = malloc(TESS__CHUNK_ELEMS * 8);
    tess_status s = w->raw && w->wide ? body(t, w) : tess__fail(TESS_E_NOMEM, "no memory for a chunk of parameters");
    free(w->raw);
    free(w->wide);
    return s;
}

static tess_status each(tess *t, uint32_t of, tess_range_fn fn, void *user) {
    walk w = { .of = of & ~(uint32_t)TESS_OF_WRITE, .write = (of & TESS_OF_WRITE) != 0, .fn = fn, .user = user };
    TRY(tess__pass_finish(t));
    TRY(check(t, w.of, fn));
    return with_chunks(t, &w, visit_owned);
}

/* ---- all of it, on every rank ---- */

static tess_status send_chunk(tess *t, int32_t param, uint64_t first, int32_t owner, uint64_t bytes) {
    void *chunk = tess__at(t, TESS__CHUNK, 0);
    if (t->setup.shard_ranks == 1)
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
    if (t->booked[TESS__CHUNK_SCRATCH][0]) {
        c.scratch = tess__at(t, TESS__CHUNK_SCRATCH, 0);
        c.scratch_bytes = t->programs[TESS__P_FULL].buffers[1].bytes;
    }
    return tess__comm_run(t, TESS__SHARD, &c, "the walk over full parameters");
}

static tess_status visit_piece(tess *t, const walk *w, int32_t i, int32_t owner) {
    const tess__param *p = &t->model.params[i];
    tess__piece piece = tess__layout_piece(&t->layout, p, owner);
    uint32_t dtype = dtype_of(t, w->of, p), bytes = tess__dtype_bytes(dtype);
    char *chunk = tess__at(t, TESS__CHUNK, 0);
    for (uint64_t done = 0; done < piece.elems; done += TESS__CHUNK_ELEMS) {
        uint64_t n = piece.elems - done < TESS__CHUNK_ELEMS ? piece.elems - done : TESS__CHUNK_ELEMS;
        if (owner == t->shard_rank)
            TRY(copy(t, chunk, t->setup.env.mem,
                     (char *)tess__at(t, role_of(w->of), p->group) + (piece.in_shard + done) * bytes,
                     mem_of(t, w->of, p), n * bytes));
        TRY(send_chunk(t, i, piece.in_param + done, owner, n * bytes));
        tess_range r = range_of(p, i, piece.in_param + done, n);
        TRY(visit(t, w, &r, chunk, t->setup.env.mem, dtype));
    }
    return TESS_OK;
}

static tess_status visit_full(tess *t, const walk *w) {
    for (int32_t i = 0; i < t->model.n_params; i++) {
        const tess__param *p = &t->model.params[i];
        if (p->tied_to != i || (w->of != TESS_OF_PARAM && p->flags & (TESS_FROZEN | TESS_BUFFER)))
            continue;
        if (p->flags & TESS_BUFFER) { /* rank 0's, as in evaluation; the others see their own */
            tess_range r = range_of(p, i, 0, p->elems);
            TRY(visit(t, w, &r, (char *)tess__at(t, TESS__BUFFERS, 0) + p->offset, t->setup.env.mem, p->dtype));
            continue;
        }
        for (int32_t owner = 0; owner < t->setup.shard_ranks; owner++)
            TRY(visit_piece(t, w, i, owner));
    }
    return TESS_OK;
}

static tess_status each_full(tess *t, uint32_t of, tess_range_fn fn, void *user) {
    walk w = { .of = of, .fn = fn, .user = user };
    TRY(tess__pass_finish(t));
    TRY(check(t, of, fn));
    if (t->summoned)
        return tess__fail(TESS_E_INVALID, "tess_each_full while parameters are summoned");
    TRY(tess__run_program(t, &t->programs[TESS__P_FULL]));
    TRY(with_chunks(t, &w, visit_full));
    return tess__free_all(t, &t->programs[TESS__P_FULL]);
}

/* ---- public ---- */

tess_status tess_each(tess *t, uint32_t of, tess_range_fn fn, void *user) {
    tess_status s = tess__engine_check(t);
    if (!s && (s = each(t, of, fn, user)))
        s = tess__engine_fail(t, s);
    return s;
}

tess_status tess_each_full(tess *t, uint32_t of, tess_range_fn fn, void *user) {
    tess_status s = tess__engine_check(t);
    if (!s && (s = each_full(t, of, fn, user)))
        s = tess__engine_fail(t, s);
    return s;
}

/* ---- small reductions ---- */

static tess_status reduce_piece(tess *t, char *host, uint64_t elems, uint32_t dtype, uint32_t op) {
    void *stage = tess__at(t, TESS__STAGE, 0);
    uint64_t bytes = elems * tess__dtype_bytes(dtype);
    TRY(copy(t, stage, t->setup.env.mem, host, TESS_MEM_HOST, bytes));
    tess_collective c = { .op = TESS_ALL_REDUCE,
                          .redop = op == TESS_AVG ? TESS_SUM : op,
                          .send_dtype = dtype,
                          .recv_dtype = dtype,
                          .send = stage,
                          .recv = stage,
                          .count = elems,
                          .scale = op == TESS_AVG ? 1.0 / t->setup.nranks : 1.0,
                          .scratch = tess__at(t, TESS__STAGE_SCRATCH, 0),
                          .tag = 0 };
    c.tag = tess__hash_u64(tess__hash_u64(TESS__HASH_START, (uint64_t)dtype << 32 | op), elems) | 1;
    for (int32_t i = 0; i < t->resident.n_buffers; i++)
        if (t->resident.buffers[i].role == TESS__STAGE_SCRATCH)
            c.scratch_bytes = t->resident.buffers[i].bytes;
    TRY(tess__comm_run(t, TESS__WORLD, &c, "tess_all_reduce"));
    return copy(t, host, TESS_MEM_HOST, stage, t->setup.env.mem, bytes);
}

static tess_status all_reduce(tess *t, char *host, uint64_t elems, uint32_t dtype, uint32_t op) {
    uint32_t bytes = tess__dtype_bytes(dtype);
    if ((dtype != TESS_F32 && dtype != TESS_F64 && dtype != TESS_I32 && dtype != TESS_I64) || op < TESS_SUM ||
        op > TESS_AVG || (op == TESS_AVG && (dtype == TESS_I32 || dtype == TESS_I64)))
        return tess__fail(TESS_E_INVALID, "tess_all_reduce: operation %u of dtype %s is not offered", op,
                          tess__dtype_name(dtype));
    if (!t->sharded || t->plan_only)
        return tess__fail(TESS_E_INVALID, "tess_all_reduce before tess_shard");
    if (elems && !host)
        return tess__fail(TESS_E_INVALID, "tess_all_reduce: %llu elements at a null pointer",
                          (unsigned long long)elems);
    if (t->world.nranks == 1)
        return TESS_OK;
    for (uint64_t done = 0; done < elems; done += TESS__STAGE_BYTES / 8) {
        uint64_t n = elems - done < TESS__STAGE_BYTES / 8 ? elems - done : TESS__STAGE_BYTES / 8;
        TRY(reduce_piece(t, host + done * bytes, n, dtype, op));
    }
    return TESS_OK;
}

tess_status tess_all_reduce(tess *t, void *host, uint64_t elems, uint32_t dtype, uint32_t op) {
    tess_status s = tess__engine_check(t);
    if (!s && (s = all_reduce(t, host, elems, dtype, op)))
        s = tess__engine_fail(t, s);
    return s;
}

tess_status tess_barrier(tess *t) {
    tess_status s = tess__engine_check(t);
    if (s || t->world.nranks == 1 || t->plan_only)
        return s;
    tess_collective c = { .op = TESS_BARRIER, .send_dtype = TESS_U8, .recv_dtype = TESS_U8, .scale = 1, .tag = 1 };
    if ((s = tess__comm_run(t, TESS__WORLD, &c, "tess_barrier")))
        s = tess__engine_fail(t, s);
    return s;
}
