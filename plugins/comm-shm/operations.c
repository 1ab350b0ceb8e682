/* SPDX-License-Identifier: BSD-3-Clause */
#include "operations.h"

#include "copy.h"
#include "reductions.h"

/* Calls this small use the stage even if their data lies in an arena, so that no rank waits until the others have read
 * it. */
enum { EAGER_BYTES = 16 << 10 };
/* A result of this size is not found in the caches later anyway. */
#define STREAM_BYTES (UINT64_C(4) << 20)

/* ---- announcements ------------------------------------------------------------------------------- */

/* Every rank announces its call and continues when all have announced the same one. So every rank detects a mismatch
 * before it uses any data. */
static tess_status agree_on_call(struct shm_operations *o, const struct shm_announcement *mine, tess_error *e) {
    struct shm_table *t = o->table;
    uint64_t number = o->calls++;
    t->slots[t->rank].announced[number & 1] = *mine;
    shm_publish(t, SHM_ANNOUNCED, number + 1);
    tess_status s = shm_await(t, SHM_ANNOUNCED, 0, t->size, number + 1, e);
    for (int rank = 0; rank < t->size && s == TESS_OK; rank++)
        s = kit_compare("shm", &mine->call, t->rank, &t->slots[rank].announced[number & 1].call, rank, e);
    return s;
}

tess_status shm_run_meeting(struct shm_operations *o, uint32_t op, tess_error *e) {
    struct shm_announcement a;
    memset(&a, 0, sizeof a);
    a.call = kit_announce_own(op, (uint64_t)o->table->size, o->calls);
    return agree_on_call(o, &a, e);
}

/* ---- what is read from whom ----------------------------------------------------------------------- */

static void plan_in(struct shm_run *run) {
    const tess_collective *c = &run->c;
    struct shm_read *f = &run->in;
    uint64_t size = (uint64_t)run->table->size, whole = kit_bytes(c);
    int per_reader = c->op == TESS_ALL_TO_ALL || c->op == TESS_ALL_TO_ALL_V || (kit_reduces(c) && !shm_is_small(c));
    f->own = c->send;
    f->only = c->op == TESS_BROADCAST ? c->root : -1;
    f->bytes = c->op == TESS_ALL_REDUCE && per_reader
                   ? kit_shard_elems(c, run->table->size) * tess_dtype_bytes(c->send_dtype)
                   : whole;
    f->stride = per_reader ? f->bytes : 0;
    f->total = c->op != TESS_ALL_REDUCE && per_reader ? whole * size : whole;
}

/* Parts of their own lengths: a reader has to know where its part begins in each rank's data, and all how many rounds
 * the longest takes. */
static void announce_parts(struct shm_run *run) {
    const struct shm_table *t = run->table;
    struct shm_slot *slot = &t->slots[t->rank];
    uint64_t bytes = tess_dtype_bytes(run->c.send_dtype), longest = 0, at = run->number & 1;
    for (int r = 0; r < t->size; r++) {
        const uint64_t part = run->c.send_parts[r] * bytes;
        slot->parts[at][r] = run->before[r];
        run->before[r + 1] = run->before[r] + part;
        longest = part > longest ? part : longest;
    }
    slot->longest[at] = longest;
    run->in.before = run->before;
    run->in.total = run->before[t->size];
}

static uint64_t at_most(uint64_t x, uint64_t most) {
    return x < most ? x : most;
}

/* Every rank has announced its own. No rank sends more than the call's count, whatever stands there. */
static void take_parts(struct shm_run *run) {
    const struct shm_table *t = run->table;
    uint64_t whole = kit_bytes(&run->c), longest = 1, at = run->number & 1;
    for (int r = 0; r < t->size; r++) {
        run->theirs[r] = at_most(t->slots[r].parts[at][t->rank], whole);
        longest = t->slots[r].longest[at] > longest ? t->slots[r].longest[at] : longest;
    }
    run->in.theirs = run->theirs;
    run->in.bytes = at_most(longest, whole);
}

/* Bytes of `peer`'s part for this rank. */
static uint64_t incoming(const struct shm_run *run, int peer) {
    return run->c.recv_parts[peer] * tess_dtype_bytes(run->c.recv_dtype);
}

/* The shards of the result, each at its rank's place in recv; the others read them whole. */
static void plan_out(struct shm_run *run) {
    const tess_collective *c = &run->c;
    struct shm_read *f = &run->out;
    uint64_t bytes = tess_dtype_bytes(c->recv_dtype), first;
    if (c->op != TESS_ALL_REDUCE || shm_is_small(c))
        return;
    f->bytes = kit_shard_elems(c, run->table->size) * bytes;
    first = f->bytes * (uint64_t)run->table->rank;
    f->own = c->recv ? (const unsigned char *)c->recv + first : NULL;
    f->total = c->count * bytes > first ? c->count * bytes - first : 0;
    f->only = -1;
}

static void find_place(struct shm_run *run, const struct shm_read *f, const void *at, uint64_t bytes,
                       struct shm_place *out) {
    struct shm_place place;
    memset(&place, 0, sizeof place);
    int has = bytes > EAGER_BYTES && (f->only < 0 || f->only == run->table->rank);
    if (has && shm_arena_find(run->table->group, at, bytes, &place.region, &place.offset))
        *out = place;
}

/* `rank` announced a place for its part of the result. Others read no more than this there: up to the result's end. */
static uint64_t result_bytes(const struct shm_run *run, int rank) {
    const uint64_t all = run->c.count * tess_dtype_bytes(run->c.recv_dtype), first = run->out.bytes * (uint64_t)rank;
    return all > first ? all - first : 0;
}

static tess_status take_place(struct shm_run *run, struct shm_read *f, int rank, const struct shm_place *place) {
    struct shm_table *t = run->table;
    const uint64_t bytes = f == &run->out ? result_bytes(run, rank)
                           : f->theirs    ? f->theirs[rank] + incoming(run, rank)
                                          : f->total;
    int has = f->bytes > 0 && (f->only < 0 || f->only == rank);
    if (has && !place->region.bytes) {
        f->any = 1;
        f->staging |= rank == t->rank;
    }
    if (!has || !place->region.bytes || rank == t->rank)
        return TESS_OK;
    f->at[rank] = shm_arena_at(t->group, t->members[rank], &place->region, place->offset, bytes);
    return f->at[rank] ? TESS_OK
                       : tess_plugin_fail(run->error, TESS_E_NOMEM, "shm: cannot map %llu bytes of rank %d",
                                          (unsigned long long)place->region.bytes, rank);
}

/* Maps the memory that this rank reads, at the places that the ranks have announced. */
static tess_status take_places(struct shm_run *run) {
    tess_status s = TESS_OK;
    if (run->in.before)
        take_parts(run);
    for (int rank = 0; rank < run->table->size && s == TESS_OK; rank++) {
        const struct shm_announcement *theirs = &run->table->slots[rank].announced[run->number & 1];
        s = take_place(run, &run->in, rank, &theirs->send);
        if (s == TESS_OK)
            s = take_place(run, &run->out, rank, &theirs->recv);
    }
    shm_read_plan(&run->in, run->table->size);
    shm_read_plan(&run->out, run->table->size);
    run->out.first_round = run->in.first_round + run->in.rounds;
    return s;
}

/* ---- all_gather, broadcast, all_to_all, all_to_all_v ----------------------------------------------- */

static uint64_t piece_bytes(const struct shm_run *run, int peer, uint64_t k) {
    const struct shm_read *f = &run->in;
    const uint64_t done = k * f->chunk, all = f->theirs ? incoming(run, peer) : 0;
    if (f->theirs)
        return all > done ? at_most(all - done, f->chunk) : 0;
    return shm_read_length(f, f->stride ? run->table->rank : 0, k);
}

/* Where the data of `peer` goes in recv. */
static uint64_t block_at(const struct shm_run *run, int peer) {
    if (run->in.theirs)
        return kit_parts_before(run->c.recv_parts, peer) * tess_dtype_bytes(run->c.recv_dtype);
    return run->in.only >= 0 ? 0 : (uint64_t)peer * run->in.bytes;
}

static void copy_piece(struct shm_run *run, int peer, uint64_t k, const unsigned char *from) {
    if (!run->c.recv) /* a root that keeps no copy */
        return;
    unsigned char *to = (unsigned char *)run->c.recv + block_at(run, peer) + k * run->in.chunk;
    if (to != from)
        shm_copy(to, from, piece_bytes(run, peer, k), run->stream);
}

static tess_status move_round(struct shm_run *run, uint64_t k) {
    struct shm_table *t = run->table;
    for (int i = 0; i < t->size; i++) {
        int peer = (t->rank + i) % t->size; /* each starts with itself, so that they read different ranks */
        const unsigned char *from;
        if ((run->in.only >= 0 && peer != run->in.only) || (run->in.theirs && !piece_bytes(run, peer, k)))
            continue;
        tess_status s = shm_read_source(run, &run->in, peer, k, &from);
        if (s)
            return s;
        copy_piece(run, peer, k, from);
    }
    return TESS_OK;
}

/* ---- one call ------------------------------------------------------------------------------------- */

/* Makes this rank's announcement. It stages the first round before, so that the data arrives with the announcement. */
static tess_status prepare_announcement(struct shm_run *run, struct shm_announcement *mine) {
    const tess_collective *c = &run->c;
    memset(mine, 0, sizeof *mine);
    mine->call = kit_announce(c, 1, run->number);
    plan_in(run);
    if (c->op == TESS_ALL_TO_ALL_V && c->count)
        announce_parts(run);
    plan_out(run);
    find_place(run, &run->in, c->send, run->in.total, &mine->send);
    find_place(run, &run->out, run->out.own, run->out.total, &mine->recv);
    if (mine->send.region.bytes || run->in.bytes == 0 || (run->in.only >= 0 && run->in.only != run->table->rank))
        return TESS_OK;
    run->in.any = 1;
    shm_read_plan(&run->in, run->table->size);
    return shm_read_stage(run, &run->in, 0);
}

/* From now on this rank reads no other rank's memory. It returns its own to the caller when no rank reads it. */
static tess_status leave_call(struct shm_run *run, int lent) {
    struct shm_table *t = run->table;
    tess_status s = shm_still_here(t, run->read, run->error);
    if (s)
        return s;
    shm_publish(t, SHM_DONE, run->number + 1);
    return lent ? shm_await(t, SHM_DONE, 0, t->size, run->number + 1, run->error) : TESS_OK;
}

tess_status shm_run_call(struct shm_operations *o, const tess_collective *c, tess_error *e) {
    struct shm_run run;
    struct shm_announcement mine;
    memset(&run, 0, sizeof run);
    run.in.first_round = o->rounds;
    run.table = o->table;
    run.c = *c;
    run.number = o->calls;
    run.error = e;
    run.stream = kit_bytes(c) * (c->op == TESS_ALL_GATHER || c->op == TESS_ALL_TO_ALL ? (uint64_t)o->table->size : 1) >=
                 STREAM_BYTES;
    tess_status s = prepare_announcement(&run, &mine);
    if (s == TESS_OK)
        s = agree_on_call(o, &mine, e);
    if (s == TESS_OK)
        s = take_places(&run);
    if (s == TESS_OK && run.in.bytes > 0)
        s = kit_reduces(c) ? shm_run_reduction(&run) : shm_read_rounds(&run, &run.in, 1, move_round);
    o->rounds += run.in.rounds + run.out.rounds;
    return s ? s : leave_call(&run, mine.send.region.bytes || mine.recv.region.bytes);
}
