/* SPDX-License-Identifier: BSD-3-Clause */
#include "staged_read.h"

#include "copy.h"

/* Limits pieces of a direct read, so that a rank soon notices that it must give up. */
#define PIECE_BYTES (UINT64_C(1) << 20)

void shm_read_plan(struct shm_read *f, int size) {
    uint64_t room = f->stride > 0 ? SHM_STAGE_BYTES / (uint64_t)size / 64 * 64 : SHM_STAGE_BYTES;
    f->chunk = f->any || room > PIECE_BYTES ? room : PIECE_BYTES;
    f->rounds = (f->bytes + f->chunk - 1) / f->chunk;
}

tess_status shm_read_stage(struct shm_run *run, struct shm_read *f, uint64_t k) {
    struct shm_table *t = run->table;
    uint64_t round = f->first_round + k;
    int blocks = f->stride > 0 ? t->size : 1;
    /* The half was filled two rounds ago. */
    tess_status s = round >= 2 ? shm_await(t, SHM_TAKEN, 0, t->size, round - 1, run->error) : TESS_OK;
    if (s)
        return s;
    unsigned char *half = shm_stage(t, t->rank, round);
    for (int b = 0; b < blocks; b++)
        if (blocks == 1 || b != t->rank)
            shm_copy(half + (uint64_t)b * f->chunk,
                     f->own + (f->before ? f->before[b] : (uint64_t)b * f->stride) + k * f->chunk,
                     shm_read_length(f, b, k), 0);
    shm_publish(t, SHM_STAGED, round + 1);
    return TESS_OK;
}

tess_status shm_read_source(struct shm_run *run, struct shm_read *f, int peer, uint64_t k, const unsigned char **out) {
    struct shm_table *t = run->table;
    uint64_t reader = f->stride > 0 ? (uint64_t)t->rank : 0;
    const unsigned char *base = peer == t->rank ? f->own : f->at[peer];
    if (base) {
        run->read[peer] = peer != t->rank;
        *out = base + (f->theirs ? f->theirs[peer] : reader * f->stride) + k * f->chunk;
        return TESS_OK;
    }
    tess_status s = shm_await(t, SHM_STAGED, peer, peer + 1, f->first_round + k + 1, run->error);
    *out = shm_stage(t, peer, f->first_round + k) + reader * f->chunk;
    return s;
}

tess_status shm_read_rounds(struct shm_run *run, struct shm_read *f, uint64_t staged,
                            tess_status (*round)(struct shm_run *, uint64_t k)) {
    tess_status s = TESS_OK;
    for (uint64_t k = 0; k < f->rounds && s == TESS_OK; k++) {
        if (f->staging && k >= staged)
            s = shm_read_stage(run, f, k);
        if (s == TESS_OK)
            s = round(run, k);
        if (s == TESS_OK && atomic_load(&run->table->stop))
            s = tess_plugin_copy_error(run->error, run->table->reason);
        if (s == TESS_OK && (f->any || k + 1 == f->rounds)) /* has read the round, or all */
            shm_publish(run->table, SHM_TAKEN, f->first_round + k + 1);
    }
    return s;
}
