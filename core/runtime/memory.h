/* SPDX-License-Identifier: BSD-3-Clause */
/* The memory of an engine: its arenas, what lives where in them, and what is booked. */
#ifndef TESS_MEMORY_H
#define TESS_MEMORY_H
#include "first_fit.h"
#include "held.h"
#include "measure.h"
#include "offload_store.h"
#include "readers/ledger.h"
#include "streams.h"

enum { TESS__GROUPS = 3 };

typedef struct { /* one arena, as obtained */
    tess_buffer memory;
    tess_comm *comm; /* that allocated it, and frees it; null: the device */
    struct {
        tess_comm *comm; /* null: none, or it could not */
        tess_buffer memory;
    } registered[TESS__GROUPS]; /* with those of the shard group, the replicas and reductions, where there are such */
    int shared;                 /* 1: with the other ranks, by each of these communicators; -1: a backend does not */
} tess__arena;

typedef struct { /* obtained beside the arenas by a pass that deviates */
    tess_buffer memory;
    uint32_t domain;
} tess__overflow;

typedef struct {
    const tess__plan *plan;
    const tess__device *device;
    tess__comms *comms;
    tess__streams *streams;
    int strict;                           /* what is released is filled with NaN */
    int deviating;                        /* a pass is off the compiled order: room is found as it goes */
    tess__arena arenas[TESS__DOMAINS][4]; /* by domain, by arena; of the disk's domain the resident one, at the store */
    uint64_t arena_bytes[TESS__DOMAINS][4];
    uint64_t obtained[TESS__DOMAINS], obtained_peak[TESS__DOMAINS];
    tess__offload_store store;     /* of what rests outside memory */
    int32_t numa_node;             /* nearest the device; host memory's; -1: any */
    void **address[TESS__N_ROLES]; /* by role and index: where it lives now */
    uint8_t *booked[TESS__N_ROLES];
    uint64_t *booked_bytes[TESS__N_ROLES];
    void **own[TESS__N_ROLES]; /* in a checking build: memory of its own, in place of the step arena's */
    tess__first_fit first_fit; /* the step arena, while a pass deviates */
    tess__overflow *overflow;
    int32_t n_overflow, cap_overflow;
    tess_buffer user[TESS__MAX_USER]; /* of tess_alloc; as many as the plan has */
    tess__ledger ledger;              /* measured */
    tess__held *held;                 /* null: the program says nothing of its own */
    tess__needs comm_scratch;
} tess__memory;

/** Makes tables of what lives where, for a finished plan; nothing lives yet. The parts below are set before. */
tess_status tess__memory_create(tess__memory *);
/** Obtains the arenas, and places what rests in them. `device_index`: to ask for its NUMA node. */
tess_status tess__memory_obtain(tess__memory *, int32_t device_index);
/** Allocates for tess_alloc, which has done so `n` times. TESS_E_BUDGET beyond the budget. */
tess_status tess__memory_user(tess__memory *, const char *label, uint64_t bytes, int32_t n);
/** For a group of ranks that changes. The first takes off the books what the step that broke off had booked,
 * `deviating` being a pass off the compiled order. The second obtains again what communicators had allocated, when
 * there are new ones, and all rests where it did. */
void tess__memory_forget(tess__memory *, const tess__program *deviating);
tess_status tess__memory_renew(tess__memory *);
/** Frees arenas and tables and keeps the program's own memory, so that tess__memory_create and tess__memory_obtain
 * can follow with another plan. */
void tess__memory_drop(tess__memory *);
/** Allocates host memory beside the arenas, for images on their way from one plan to another. */
tess_status tess__memory_beside(tess__memory *, uint64_t bytes, tess_buffer *out);
void tess__memory_beside_free(tess__memory *, tess_buffer *); /* nothing when there is none */
void tess__memory_release(tess__memory *, int of_comm); /* the arenas that a communicator, or the device, allocated */
void tess__memory_free(tess__memory *);                 /* all that is left */

tess_status tess__step_arena_grow(tess__memory *); /* to the largest program; nothing lives in it */
/** [C] Shares new arenas with the other ranks, when the backend gains by it; nothing is in flight. */
tess_status tess__memory_share(tess__memory *);
void tess__overflow_drop(tess__memory *); /* what a pass obtained beside the plan */
/** Books a buffer on the ledger, with the bytes that its place must hold (measure.h). `p` and `in`: the instruction
 * that books it, or null. */
void tess__book(tess__memory *, const tess__buffer *, const tess__program *p, const tess__instr *in);
void tess__unbook(tess__memory *, const tess__buffer *);
/** Run ALLOC and FREE of that program. */
tess_status tess__place_buffer(tess__memory *, tess__program *, const tess__instr *);
tess_status tess__release_buffer(tess__memory *, const tess__program *, const tess__instr *);

static inline void *tess__address(const tess__memory *m, int role, int32_t index) {
    return m->address[role][index];
}
/** State k of a group, where a step finds it. */
static inline void *tess__state_address(const tess__memory *m, int k, int32_t group) {
    int stored = m->plan->layout.groups[group].state_rest.stored;
    return tess__address(m, (stored ? TESS__STAGED0 : TESS__STATE0) + k, group);
}
/** The shard of a group's parameters, where a step or a gather finds it. */
static inline void *tess__master_address(const tess__memory *m, int32_t group) {
    return tess__address(m, m->plan->layout.groups[group].param_rest.stored ? TESS__STAGED_PARAM : TESS__MASTER, group);
}
/** The sharded gradient, where it is summed and where a step finds it. */
static inline void *tess__grad_address(const tess__memory *m, int32_t group) {
    int stored = m->plan->layout.groups[group].grad_rest.stored;
    return tess__address(m, stored ? TESS__STAGED_GRAD0 : TESS__SHARD_GRAD, group);
}
#endif
