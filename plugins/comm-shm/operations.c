#include "operations.h"

#include "copy.h"
#include "reduce.h"

#include <inttypes.h>

/* So little goes over the stage even when it lies in an arena: then nobody waits until the others have read it. */
enum { EAGER_BYTES = 16 << 10 };
/* A result of this size is not found in the caches later anyway. */
#define STREAM_BYTES (UINT64_C(4) << 20)

/* ---- words ---------------------------------------------------------------------------------------- */

static const char *op_name(uint32_t op) {
    static const char *const names[] = { "?",         "all_gather", "reduce_scatter", "all_reduce",
                                         "broadcast", "all_to_all", "barrier" };
    return op == SHM_OP_FINALIZE ? "finalize" : op < sizeof names / sizeof *names ? names[op] : names[0];
}

static void describe(char *out, size_t room, const struct shm_call *c) {
    snprintf(out, room,
             "%s count %" PRIu64 " dtype %u>%u redop %u root %d scale %g tag %" PRIx64 " seq %" PRIu64 "/%" PRIu64,
             op_name(c->op), c->count, c->send_dtype, c->recv_dtype, c->redop, c->root, c->scale, c->tag, c->caller_seq,
             c->seq);
}

/* Every rank says what it is about to do, and goes on when all have said the same: so a mismatch is found by every
 * rank, before any data is used. */
static tess_status agree(struct shm_operations *o, const struct shm_word *mine, struct shm_failure *f) {
    struct shm_table *t = o->table;
    uint64_t number = o->calls;
    t->seats[t->rank].said[number & 1] = *mine;
    shm_publish(t, SHM_ANNOUNCED, number + 1);
    tess_status s = shm_await(t, SHM_ANNOUNCED, 0, t->size, number + 1, f);
    for (int rank = 0; rank < t->size && s == TESS_OK; rank++) {
        const struct shm_call *theirs = &t->seats[rank].said[number & 1].call;
        char here[160], there[160];
        if (memcmp(&mine->call, theirs, sizeof *theirs) == 0)
            continue;
        describe(here, sizeof here, &mine->call);
        describe(there, sizeof there, theirs);
        s = shm_fail(f, TESS_E_MISMATCH, rank, "rank %d: %.105s; rank %d: %.105s", t->rank, here, rank, there);
    }
    o->calls++;
    return s;
}

tess_status shm_run_meeting(struct shm_operations *o, uint32_t op, struct shm_failure *f) {
    struct shm_word word;
    memset(&word, 0, sizeof word);
    word.call.op = op;
    word.call.seq = o->calls;
    word.call.count = (uint64_t)o->table->size;
    return agree(o, &word, f);
}

static struct shm_call call_of(const tess_collective *c, uint64_t number) {
    struct shm_call call;
    memset(&call, 0, sizeof call);
    call.op = c->op;
    call.tag = c->tag;
    call.seq = number;
    call.caller_seq = c->seq;
    if (c->op == TESS_BARRIER)
        return call;
    call.count = c->count;
    call.send_dtype = c->send_dtype;
    call.recv_dtype = c->recv_dtype;
    if (shm_reduces(c)) {
        call.redop = c->redop;
        call.scale = c->scale;
    }
    call.root = c->op == TESS_BROADCAST ? c->root : 0;
    return call;
}

/* ---- flows ---------------------------------------------------------------------------------------- */

static void plan_in(struct shm_run *run) {
    const tess_collective *c = &run->c;
    struct shm_flow *f = &run->in;
    uint64_t size = (uint64_t)run->table->size, whole = shm_bytes(c);
    int per_reader = c->op == TESS_ALL_TO_ALL || (shm_reduces(c) && !shm_is_small(c));
    f->own = c->send;
    f->only = c->op == TESS_BROADCAST ? c->root : -1;
    f->bytes = c->op == TESS_ALL_REDUCE && per_reader
                   ? shm_shard_elems(c, run->table->size) * shm_dtype_bytes(c->send_dtype)
                   : whole;
    f->stride = per_reader ? f->bytes : 0;
    f->total = c->op != TESS_ALL_REDUCE && per_reader ? whole * size : whole;
}

/* The shards of the result, each at its rank's place in recv; the others read them whole. */
static void plan_out(struct shm_run *run) {
    const tess_collective *c = &run->c;
    struct shm_flow *f = &run->out;
    uint64_t bytes = shm_dtype_bytes(c->recv_dtype), first;
    if (c->op != TESS_ALL_REDUCE || shm_is_small(c))
        return;
    f->bytes = shm_shard_elems(c, run->table->size) * bytes;
    first = f->bytes * (uint64_t)run->table->rank;
    f->own = c->recv ? (const unsigned char *)c->recv + first : NULL;
    f->total = c->count * bytes > first ? c->count * bytes - first : 0;
    f->only = -1;
}

static void say_place(struct shm_run *run, const struct shm_flow *f, const void *at, uint64_t bytes,
                      struct shm_place *out) {
    struct shm_place place;
    memset(&place, 0, sizeof place);
    int has = bytes > EAGER_BYTES && (f->only < 0 || f->only == run->table->rank);
    if (has && shm_arena_find(run->table->group, at, bytes, &place.region, &place.offset))
        *out = place;
}

static tess_status see_place(struct shm_run *run, struct shm_flow *f, int rank, const struct shm_place *place) {
    struct shm_table *t = run->table;
    int has = f->bytes > 0 && (f->only < 0 || f->only == rank);
    if (has && !place->region.bytes) {
        f->any = 1;
        f->staging |= rank == t->rank;
    }
    if (!has || !place->region.bytes || rank == t->rank)
        return TESS_OK;
    f->at[rank] = shm_arena_at(t->group, t->members[rank], &place->region, place->offset);
    return f->at[rank] ? TESS_OK
                       : shm_fail(run->failure, TESS_E_NOMEM, -1, "shm: cannot map %" PRIu64 " bytes of rank %d",
                                  place->region.bytes, rank);
}

/* Who reads whose memory, now that all have said where it is. */
static tess_status see_places(struct shm_run *run) {
    tess_status s = TESS_OK;
    for (int rank = 0; rank < run->table->size && s == TESS_OK; rank++) {
        const struct shm_word *said = &run->table->seats[rank].said[run->number & 1];
        s = see_place(run, &run->in, rank, &said->send);
        if (s == TESS_OK)
            s = see_place(run, &run->out, rank, &said->recv);
    }
    shm_flow_plan(&run->in, run->table->size);
    shm_flow_plan(&run->out, run->table->size);
    run->out.first_round = run->in.first_round + run->in.rounds;
    return s;
}

/* ---- all_gather, broadcast, all_to_all ------------------------------------------------------------ */

static void copy_piece(struct shm_run *run, int peer, uint64_t k, const unsigned char *from) {
    const struct shm_flow *f = &run->in;
    uint64_t block = f->only >= 0 ? 0 : (uint64_t)peer;
    if (!run->c.recv) /* a root that keeps no copy */
        return;
    unsigned char *to = (unsigned char *)run->c.recv + block * f->bytes + k * f->chunk;
    if (to != from)
        shm_copy(to, from, shm_flow_length(f, f->stride ? run->table->rank : 0, k), run->stream);
}

static tess_status move_round(struct shm_run *run, uint64_t k) {
    struct shm_table *t = run->table;
    for (int i = 0; i < t->size; i++) {
        int peer = (t->rank + i) % t->size; /* each begins with itself, so that not all read one rank at once */
        const unsigned char *from;
        if (run->in.only >= 0 && peer != run->in.only)
            continue;
        tess_status s = shm_flow_source(run, &run->in, peer, k, &from);
        if (s)
            return s;
        copy_piece(run, peer, k, from);
    }
    return TESS_OK;
}

static tess_status run_moves(struct shm_run *run) {
    tess_status s = TESS_OK;
    for (uint64_t k = 0; k < run->in.rounds && s == TESS_OK; k++) {
        if (run->in.staging && k > 0)
            s = shm_flow_stage(run, &run->in, k);
        if (s == TESS_OK)
            s = move_round(run, k);
        if (s == TESS_OK && atomic_load(&run->table->stop)) {
            *run->failure = *run->table->reason;
            s = run->failure->status;
        }
        if (s == TESS_OK)
            shm_flow_taken(run, &run->in, k);
    }
    return s;
}

/* ---- one call ------------------------------------------------------------------------------------- */

/* What this rank says; its first round is staged before, so that it comes with the word. */
static tess_status prepare(struct shm_run *run, struct shm_word *word) {
    const tess_collective *c = &run->c;
    memset(word, 0, sizeof *word);
    word->call = call_of(c, run->number);
    plan_in(run);
    plan_out(run);
    run->in.first_round = run->ops->rounds;
    say_place(run, &run->in, c->send, run->in.total, &word->send);
    say_place(run, &run->out, run->out.own, run->out.total, &word->recv);
    if (word->send.region.bytes || run->in.bytes == 0 || (run->in.only >= 0 && run->in.only != run->table->rank))
        return TESS_OK;
    run->in.any = 1;
    shm_flow_plan(&run->in, run->table->size);
    return shm_flow_stage(run, &run->in, 0);
}

/* No other rank's memory is read from here on; this one's is the caller's again when nobody reads it. */
static tess_status leave(struct shm_run *run, int lent) {
    struct shm_table *t = run->table;
    tess_status s = shm_still_here(t, run->read, run->failure);
    if (s)
        return s;
    shm_publish(t, SHM_DONE, run->number + 1);
    return lent ? shm_await(t, SHM_DONE, 0, t->size, run->number + 1, run->failure) : TESS_OK;
}

tess_status shm_run_call(struct shm_operations *o, const tess_collective *c, struct shm_failure *f) {
    struct shm_run run;
    struct shm_word word;
    memset(&run, 0, sizeof run);
    run.ops = o;
    run.table = o->table;
    run.c = *c;
    run.number = o->calls;
    run.failure = f;
    run.stream = shm_bytes(c) * (c->op == TESS_ALL_GATHER || c->op == TESS_ALL_TO_ALL ? (uint64_t)o->table->size : 1) >=
                 STREAM_BYTES;
    tess_status s = prepare(&run, &word);
    if (s == TESS_OK)
        s = agree(o, &word, f);
    if (s == TESS_OK)
        s = see_places(&run);
    if (s == TESS_OK && run.in.bytes > 0)
        s = shm_reduces(c) ? shm_run_reduction(&run) : run_moves(&run);
    o->rounds += run.in.rounds + run.out.rounds;
    return s ? s : leave(&run, word.send.region.bytes || word.recv.region.bytes);
}
