/* SPDX-License-Identifier: BSD-3-Clause */
/* reduce_scatter and all_reduce: every rank sums its shard of all contributions, in rank order as a tree. */
#include "reductions.h"

#include "copy.h"
#include "tree_sum.h"

enum { SMALL_BYTES = 4096 };

int shm_is_small(const tess_collective *c) {
    return c->op == TESS_ALL_REDUCE && kit_bytes(c) <= SMALL_BYTES;
}

/* Sums round k of this rank's shard (of everything, when it is small). */
static tess_status sum_round(struct shm_run *run, uint64_t k) {
    const tess_collective *c = &run->c;
    struct shm_table *t = run->table;
    kit_reduction r = { .redop = c->redop,
                        .in = c->send_dtype,
                        .out = c->recv_dtype,
                        .add = (c->flags & KIT_ADD) != 0,
                        .stream = run->stream,
                        .scale = c->scale };
    const void *leaves[SHM_RANKS_MAX];
    unsigned char *out = (unsigned char *)c->recv + (uint64_t)t->rank * run->out.bytes;
    uint64_t bytes = tess_dtype_bytes(c->send_dtype), elems;
    elems = shm_read_length(&run->in, run->in.stride ? t->rank : 0, k) / bytes;
    for (int peer = 0; peer < t->size; peer++) {
        const unsigned char *from = NULL;
        tess_status s = shm_read_source(run, &run->in, peer, k, &from);
        if (s)
            return s;
        leaves[peer] = from;
    }
    kit_tree_sum(&r, leaves, t->size, out + k * (run->in.chunk / bytes) * tess_dtype_bytes(c->recv_dtype), elems);
    return TESS_OK;
}

static tess_status gather_round(struct shm_run *run, uint64_t k) {
    struct shm_table *t = run->table;
    struct shm_read *f = &run->out;
    uint64_t total = run->c.count * tess_dtype_bytes(run->c.recv_dtype);
    for (int i = 1; i < t->size; i++) {
        int peer = (t->rank + i) % t->size;
        uint64_t first = (uint64_t)peer * f->bytes + k * f->chunk, left = total > first ? total - first : 0;
        uint64_t room = f->bytes - k * f->chunk < f->chunk ? f->bytes - k * f->chunk : f->chunk;
        const unsigned char *from;
        if (left == 0)
            continue;
        tess_status s = f->at[peer] ? shm_await(t, SHM_REDUCED, peer, peer + 1, run->number + 1, run->error) : TESS_OK;
        if (s == TESS_OK)
            s = shm_read_source(run, f, peer, k, &from);
        if (s)
            return s;
        shm_copy((unsigned char *)run->c.recv + first, from, left < room ? left : room, run->stream);
    }
    return TESS_OK;
}

/* Every rank sums its shard; then, for an all_reduce, it reads the others' shards of the result. */
tess_status shm_run_reduction(struct shm_run *run) {
    tess_status s = shm_read_rounds(run, &run->in, 1, sum_round);
    if (s || !run->out.bytes)
        return s;
    shm_publish(run->table, SHM_REDUCED, run->number + 1);
    return shm_read_rounds(run, &run->out, 0, gather_round);
}
