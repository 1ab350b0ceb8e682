/* SPDX-License-Identifier: BSD-3-Clause */
/* Collectives of several hosts with several ranks each: within the hosts and between them, so that what crosses the
 * network crosses it once. Rank = host * each + local; a rail has a rank of every host (layout.h). */
#include "communicator.h"
#include "tree_sum.h"

#include <stdlib.h>

enum { ALIGN = 64 };

static uint64_t round_up(uint64_t n, uint64_t to) {
    return (n + to - 1) / to * to;
}
static unsigned char *byte_at(const void *base, uint64_t bytes) {
    return (unsigned char *)base + bytes;
}

/* A partial sum of 16-bit floats is fp32, as in the tree. Minima and maxima are exact in their own dtype. */
static uint32_t partial_dtype(const tess_collective *c) {
    int sums_floats = c->redop == TESS_SUM && (c->send_dtype == TESS_F16 || c->send_dtype == TESS_BF16);
    return sums_floats ? TESS_F32 : c->send_dtype;
}

/* ---- sizes ---------------------------------------------------------------------------------------- */

/* The part of a reduction between hosts; pointers are filled in by who runs it. */
static tess_collective between_of(const tess_collective *c, int32_t each) {
    tess_collective b = *c;
    b.struct_size = sizeof b;
    b.send_dtype = partial_dtype(c);
    if (c->op == TESS_ALL_REDUCE)
        b.count = round_up((c->count + (uint64_t)each - 1) / (uint64_t)each, ALIGN);
    return b;
}

static uint64_t between_scratch(const hosts_plugin *p, const tess_plan_env *env, const tess_collective *c,
                                int32_t hosts) {
    tess_plan_env rail = { .struct_size = sizeof rail };
    tess_need need = { .struct_size = sizeof need };
    memcpy((char *)&rail + sizeof rail.struct_size, (const char *)env + sizeof rail.struct_size,
           (env->struct_size < sizeof rail ? env->struct_size : sizeof rail) - sizeof rail.struct_size);
    rail.nranks = hosts;
    rail.ranks_per_host = 1;
    return p->between.ops->need(p->between.ctx, &rail, c, &need) == TESS_OK ? need.device_bytes : 0;
}

static uint64_t gather_chunk(const tess_collective *c) {
    uint64_t most = HOSTS_CHUNK_BYTES / tess_dtype_bytes(c->send_dtype);
    return c->count < most ? c->count : most;
}

/* Scratch for one sum per host, plus the block that a placeholder rank receives and discards. */
static uint64_t scatter_scratch(const tess_collective *c, uint64_t partial, int32_t hosts, int is_uneven) {
    const uint64_t sums = round_up((uint64_t)hosts * c->count * partial, ALIGN);
    return is_uneven && hosts > 2 ? sums + round_up(c->count * tess_dtype_bytes(c->recv_dtype), ALIGN) : sums;
}

hosts_scratch hosts_scratch_of(const hosts_plugin *p, const tess_plan_env *env, const tess_collective *c, int32_t n,
                               int32_t each) {
    const tess_collective between = between_of(c, each);
    const uint64_t partial = tess_dtype_bytes(between.send_dtype), bytes = kit_bytes(c);
    const int32_t hosts = (n + each - 1) / each;
    hosts_scratch s = { .own = 0 };
    if (bytes <= HOSTS_SMALL_BYTES)
        return s;
    switch (c->op) {
    case TESS_ALL_GATHER: s.own = 2 * (uint64_t)hosts * gather_chunk(c) * tess_dtype_bytes(c->send_dtype); break;
    case TESS_REDUCE_SCATTER: s.own = scatter_scratch(c, partial, hosts, n % each != 0); break;
    case TESS_ALL_REDUCE: s.own = c->count * partial; break;
    case TESS_BROADCAST: s.own = ALIGN; break; /* needs no scratch; nonzero marks a call in two steps */
    default: return s;
    }
    s.own = round_up(s.own, ALIGN);
    if (kit_reduces(c))
        s.under = between_scratch(p, env, &between, hosts);
    return s;
}

/* ---- posting on parts ----------------------------------------------------------------------------- */

typedef struct {
    tess_comm *c;
    const tess_collective *call;
    const hosts_scratch *scratch;
    tess_error *error;
} two_steps;

/* The ranks of a host are in order. */
static int32_t rank_beside(const tess_comm *c, int32_t nth) {
    for (int32_t r = 0; r < c->size; r++)
        if (c->ids[r] == c->ids[c->rank] && nth-- == 0)
            return r;
    return -1;
}

/* A rank of a part as one of all. */
int32_t hosts_rank_of(const tess_comm *c, int which, int32_t r) {
    const hosts_layout *l = &c->layout;
    if (r < 0 || which == HOSTS_WHOLE || l->kind == HOSTS_ONE)
        return r;
    if (which == HOSTS_LOCAL)
        return rank_beside(c, r);
    return r * l->each + hosts_local_on(l, r, hosts_rail(l, l->host, l->local, which - HOSTS_RAIL));
}

static tess_status fail_part(const tess_comm *c, int which, const tess_error *cause, tess_status s, tess_error *e) {
    return tess_plugin_fail_of(e, s, hosts_rank_of(c, which, cause->rank), "%s", cause->message);
}

static tess_status post_part(tess_comm *c, int which, const tess_collective *calls, uint32_t n, tess_request **out,
                             tess_error *e) {
    tess_error cause = { .struct_size = sizeof cause, .rank = -1 };
    tess_status s = c->parts[which].ops->post(c->parts[which].comm, calls, n, out, &cause);
    return s < 0 ? fail_part(c, which, &cause, s, e) : TESS_OK;
}

static tess_status wait_part(tess_comm *c, int which, tess_request *r, tess_error *e) {
    tess_error cause = { .struct_size = sizeof cause, .rank = -1 };
    tess_status s = c->parts[which].ops->wait(r, -1, &cause);
    c->parts[which].ops->request_free(r);
    return s < 0 ? fail_part(c, which, &cause, s, e) : TESS_OK;
}

tess_status hosts_run_on(tess_comm *c, int which, const tess_collective *call, tess_error *e) {
    tess_request *r = NULL;
    tess_status s = post_part(c, which, call, 1, &r, e);
    return s < 0 ? s : wait_part(c, which, r, e);
}

/* A request that outlives a failure would write to memory that is the caller's again. */
static tess_status give_up(tess_comm *c, int which, tess_request *r, tess_status why) {
    c->parts[which].ops->abort(c->parts[which].comm, why);
    wait_part(c, which, r, NULL);
    return why;
}

/* ---- all_gather ----------------------------------------------------------------------------------- */

static unsigned char *block_of(const two_steps *t, int32_t rank) {
    return byte_at(t->call->recv, (uint64_t)rank * kit_bytes(t->call));
}

static int32_t rounds_of(const two_steps *t) {
    return hosts_rounds(&t->c->layout, t->c->layout.host);
}
static int32_t rail_of(const two_steps *t, int32_t round) {
    return hosts_rail(&t->c->layout, t->c->layout.host, t->c->layout.local, round);
}

/* Within this host, of the blocks that came to it over the rails of a round. Others among them are here already. */
static tess_collective gather_within(const two_steps *t, int32_t host, int32_t round) {
    const int32_t window = hosts_window(&t->c->layout, host, round);
    tess_collective c = *t->call;
    c.send = block_of(t, window + t->c->layout.local);
    c.recv = block_of(t, window);
    return c;
}

/* The blocks of this host. */
static tess_collective gather_own(const two_steps *t) {
    tess_collective c = *t->call;
    c.recv = block_of(t, t->c->layout.host * t->c->layout.each);
    return c;
}

/* Returns 1 if the last host has no block on that rail; its rank there is a placeholder. */
static int is_short(const two_steps *t, int32_t rail) {
    return !hosts_has_block(&t->c->layout, t->c->layout.hosts - 1, rail);
}

/* The same as an all_gather to which the last rank gives nothing: a broadcast from each of the others. */
static uint32_t as_broadcasts(const two_steps *t, const tess_collective *gather) {
    const int32_t n = t->c->layout.hosts - 1;
    for (int32_t h = 0; h < n; h++) {
        tess_collective *b = &t->c->broadcasts[h];
        *b = *gather;
        b->op = TESS_BROADCAST;
        b->root = h;
        b->recv = byte_at(gather->recv, (uint64_t)h * kit_bytes(gather));
    }
    return (uint32_t)n;
}

static tess_status post_chunk(two_steps *t, int32_t round, uint64_t k, uint64_t chunk, tess_request **out) {
    const uint64_t bytes = tess_dtype_bytes(t->call->send_dtype), left = t->call->count - k * chunk;
    tess_collective c = *t->call;
    c.count = left < chunk ? left : chunk;
    c.send = byte_at(t->call->send, k * chunk * bytes);
    c.recv = byte_at(t->call->scratch, (k & 1) * (uint64_t)t->c->layout.hosts * chunk * bytes);
    if (!is_short(t, rail_of(t, round)))
        return post_part(t->c, HOSTS_RAIL + round, &c, 1, out, t->error);
    const uint32_t n = as_broadcasts(t, &c);
    return post_part(t->c, HOSTS_RAIL + round, t->c->broadcasts, n, out, t->error);
}

static void place_chunk(const two_steps *t, int32_t round, uint64_t k, uint64_t chunk) {
    const hosts_layout *l = &t->c->layout;
    const uint64_t bytes = tess_dtype_bytes(t->call->send_dtype), left = t->call->count - k * chunk;
    const uint64_t n = (left < chunk ? left : chunk) * bytes;
    const unsigned char *from = byte_at(t->call->scratch, (k & 1) * (uint64_t)l->hosts * chunk * bytes);
    const int32_t rail = rail_of(t, round);
    for (int32_t h = 0; h < l->hosts; h++)
        if (h != l->host && hosts_has_block(l, h, rail))
            memcpy(block_of(t, h * l->each + hosts_local_on(l, h, rail)) + k * chunk * bytes, from + (uint64_t)h * n,
                   n);
}

/* Gathers over the rail in chunks: while one travels, the previous one is copied to its places. */
static tess_status gather_between(two_steps *t, int32_t round) {
    const uint64_t chunk = gather_chunk(t->call), n = (t->call->count + chunk - 1) / chunk;
    tess_request *now = NULL, *next = NULL;
    tess_status s = post_chunk(t, round, 0, chunk, &now);
    for (uint64_t k = 0; k < n && s == TESS_OK; k++) {
        if (k + 1 < n)
            s = post_chunk(t, round, k + 1, chunk, &next);
        if (s < 0)
            return give_up(t->c, HOSTS_RAIL + round, now, s);
        s = wait_part(t->c, HOSTS_RAIL + round, now, t->error);
        if (s == TESS_OK)
            place_chunk(t, round, k, chunk);
        else if (k + 1 < n)
            return give_up(t->c, HOSTS_RAIL + round, next, s);
        now = next;
    }
    return s;
}

static tess_status gather_over_rails(two_steps *t) {
    tess_status s = TESS_OK;
    for (int32_t round = 0; round < rounds_of(t) && s == TESS_OK; round++)
        if (rail_of(t, round) >= 0)
            s = gather_between(t, round);
    return s;
}

/* Round by round, host by host: a window may begin or end with blocks of the one before. */
static tess_status hand_on(two_steps *t) {
    const hosts_layout *l = &t->c->layout;
    tess_status s = TESS_OK;
    for (int32_t round = 0; round < rounds_of(t); round++)
        for (int32_t h = 0; h < l->hosts && s == TESS_OK; h++)
            if (h != l->host) {
                const tess_collective c = gather_within(t, h, round);
                s = hosts_run_on(t->c, HOSTS_LOCAL, &c, t->error);
            }
    return s;
}

static tess_status all_gather(two_steps *t) {
    const tess_collective own = gather_own(t);
    tess_request *r = NULL;
    tess_status s = post_part(t->c, HOSTS_LOCAL, &own, 1, &r, t->error);
    if (s < 0)
        return s;
    s = gather_over_rails(t);
    if (s < 0)
        return give_up(t->c, HOSTS_LOCAL, r, s);
    s = wait_part(t->c, HOSTS_LOCAL, r, t->error);
    return s < 0 ? s : hand_on(t);
}

/* ---- reductions ----------------------------------------------------------------------------------- */

/* Partial sums of a host: no scale yet, nothing added. */
static tess_collective within_of(const tess_collective *call) {
    tess_collective c = *call;
    c.recv_dtype = partial_dtype(call);
    c.flags = 0;
    c.scale = 1;
    c.scratch = NULL;
    c.scratch_bytes = 0;
    return c;
}

static void take_scratch(const two_steps *t, tess_collective *c) {
    c->send = t->call->scratch;
    c->scratch = byte_at(t->call->scratch, t->scratch->own);
    c->scratch_bytes = t->scratch->under;
}

/* Sums the blocks of a rail within this host: one block per host, none for a placeholder rank. */
static tess_status sum_within(two_steps *t, int32_t round) {
    const hosts_layout *l = &t->c->layout;
    tess_collective c = within_of(t->call);
    const uint64_t block_bytes = kit_bytes(t->call), out = c.count * tess_dtype_bytes(c.recv_dtype);
    tess_status s = TESS_OK;
    for (int32_t h = 0; h < l->hosts && s == TESS_OK; h++) {
        if (h == l->host && round > 0)
            continue; /* has no block on these rails: any sum will do */
        c.send = byte_at(t->call->send, (uint64_t)hosts_window(l, h, round) * block_bytes);
        c.recv = byte_at(t->call->scratch, (uint64_t)h * out);
        s = hosts_run_on(t->c, HOSTS_LOCAL, &c, t->error);
    }
    return s;
}

/* Two hosts, and the last has no block on this rail: the first one gets its sum and adds the two, as the rail would. */
static tess_status add_from_last(two_steps *t, int32_t round) {
    const tess_collective of_rail = between_of(t->call, t->c->layout.each);
    unsigned char *mine = t->call->scratch, *theirs = byte_at(mine, kit_bytes(&of_rail));
    const int is_last = t->c->layout.host == 1;
    tess_collective c = within_of(&of_rail);
    c.op = TESS_BROADCAST;
    c.root = 1;
    c.send = mine;
    c.recv = is_last ? mine : theirs;
    tess_status s = hosts_run_on(t->c, HOSTS_RAIL + round, &c, t->error);
    const void *leaves[2] = { mine, theirs };
    const kit_reduction sum = {
        of_rail.redop, of_rail.send_dtype, of_rail.recv_dtype, (of_rail.flags & KIT_ADD) != 0, 0, of_rail.scale
    };
    if (s == TESS_OK && !is_last)
        kit_tree_sum(&sum, leaves, 2, t->call->recv, of_rail.count);
    return s;
}

/* The rail adds up the hosts' sums. */
static tess_status sum_between(two_steps *t, int32_t round) {
    const hosts_layout *l = &t->c->layout;
    const int32_t rail = rail_of(t, round);
    tess_collective c = between_of(t->call, l->each);
    if (rail < 0)
        return TESS_OK;
    if (l->hosts == 2 && is_short(t, rail))
        return add_from_last(t, round);
    take_scratch(t, &c);
    if (!hosts_has_block(l, l->host, rail))
        c.recv = byte_at(t->call->scratch, round_up((uint64_t)l->hosts * kit_bytes(&c), ALIGN));
    return hosts_run_on(t->c, HOSTS_RAIL + round, &c, t->error);
}

static tess_status reduce_scatter(two_steps *t) {
    tess_status s = TESS_OK;
    for (int32_t round = 0; round < rounds_of(t) && s == TESS_OK; round++) {
        s = sum_within(t, round);
        if (s == TESS_OK)
            s = sum_between(t, round);
    }
    return s;
}

typedef struct { /* the part of an all_reduce that one rail adds up */
    uint64_t first, count;
} segment;

static segment segment_of(const two_steps *t, int32_t rail) {
    const uint64_t most = between_of(t->call, t->c->layout.each).count, first = most * (uint64_t)rail;
    const uint64_t left = first < t->call->count ? t->call->count - first : 0;
    return (segment){ first, left < most ? left : most };
}

static tess_status spread_segments(two_steps *t) {
    const uint64_t bytes = tess_dtype_bytes(t->call->recv_dtype);
    tess_status s = TESS_OK;
    for (int32_t i = 0; i < t->c->layout.each && s == TESS_OK; i++) {
        const segment part = segment_of(t, i);
        tess_collective c = *t->call;
        c.op = TESS_BROADCAST;
        c.send_dtype = t->call->recv_dtype;
        c.send = c.recv = byte_at(t->call->recv, part.first * bytes);
        c.count = part.count;
        c.flags = 0;
        c.scale = 1;
        c.root = hosts_local_on(&t->c->layout, t->c->layout.host, i);
        s = part.count ? hosts_run_on(t->c, HOSTS_LOCAL, &c, t->error) : TESS_OK;
    }
    return s;
}

static tess_status add_segment(two_steps *t, int32_t round) {
    const int32_t rail = rail_of(t, round);
    const segment mine = segment_of(t, rail < 0 ? 0 : rail);
    tess_collective c = between_of(t->call, t->c->layout.each);
    take_scratch(t, &c);
    c.send = byte_at(c.send, mine.first * tess_dtype_bytes(c.send_dtype));
    c.recv = byte_at(t->call->recv, mine.first * tess_dtype_bytes(c.recv_dtype));
    c.count = mine.count;
    return rail < 0 || !mine.count ? TESS_OK : hosts_run_on(t->c, HOSTS_RAIL + round, &c, t->error);
}

static tess_status all_reduce(two_steps *t) {
    tess_collective c = within_of(t->call);
    c.recv = t->call->scratch;
    tess_status s = hosts_run_on(t->c, HOSTS_LOCAL, &c, t->error);
    for (int32_t round = 0; round < rounds_of(t) && s == TESS_OK; round++)
        s = add_segment(t, round);
    return s < 0 ? s : spread_segments(t);
}

/* ---- broadcast ------------------------------------------------------------------------------------ */

static tess_status broadcast_blocks(two_steps *t) {
    const hosts_layout *l = &t->c->layout;
    const int32_t host = t->call->root / l->each, rail = hosts_rail(l, host, t->call->root % l->each, 0);
    const int32_t local = hosts_local_on(l, l->host, rail);
    tess_collective c = *t->call;
    tess_status s = TESS_OK;
    c.root = host;
    if (l->local == local)
        s = hosts_run_on(t->c, HOSTS_RAIL + hosts_round_of(l, l->host, rail), &c, t->error);
    c.root = local;
    if (t->c->rank != t->call->root)
        c.send = t->call->recv;
    return s < 0 ? s : hosts_run_on(t->c, HOSTS_LOCAL, &c, t->error);
}

tess_status hosts_run_two_steps(tess_comm *c, const tess_collective *call, const hosts_scratch *scratch,
                                tess_error *e) {
    two_steps t = { c, call, scratch, e };
    switch (call->op) {
    case TESS_ALL_GATHER: return all_gather(&t);
    case TESS_REDUCE_SCATTER: return reduce_scatter(&t);
    case TESS_ALL_REDUCE: return all_reduce(&t);
    default: return broadcast_blocks(&t);
    }
}
