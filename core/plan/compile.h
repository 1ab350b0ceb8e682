/* SPDX-License-Identifier: BSD-3-Clause */
/* The step compiler turns the order of scopes into a program. Given one event at a time and no view ahead, it also
 * serves a pass that deviates from the declared order. */
#ifndef TESS_COMPILE_H
#define TESS_COMPILE_H
#include "program.h"

enum { TESS__ABSENT, TESS__IN_FLIGHT, TESS__HERE };
enum {
    TESS__IN_TURN_NEVER,
    TESS__IN_TURN_FUSED,
    TESS__IN_TURN_ALWAYS
}; /* where the step is part of the pass; anywhere */

typedef struct {           /* what the compiler knows of a unit between two events */
    uint8_t gathered;      /* TESS__ABSENT, … */
    uint8_t grad;          /* its unsharded gradient lives */
    uint8_t reduced;       /* in this pass */
    uint8_t fetched;       /* its shard is on its way up, or there */
    int32_t open;          /* scopes now entered that hold it */
    int32_t uses;          /* forward uses whose backward has not come */
    int32_t mark;          /* equal to the compiler's: used soon */
    int32_t last_backward; /* position of the last backward that holds it; known only with a view ahead */
} tess__unit_state;

typedef struct {
    const tess__setup *setup;
    const tess__model *model;
    const tess__layout *layout;
    tess__program *p;
    const tess__program *ahead; /* the events to come, or null */
    int32_t at;                 /* the event now compiled, in `ahead` */
    int32_t fused;              /* the optimizer step of a unit follows its reduction */
    int32_t in_turn;       /* TESS__IN_TURN_…: one unit's matrices after the other, so that they take less memory */
    int32_t params_only;   /* scopes are entered for their parameters, no block runs */
    int32_t reducing;      /* the unit whose gradient is on its way, or -1 */
    int32_t replicating;   /* behind it, the unit whose shard the replicas add up, or -1 */
    int32_t on_host;       /* the unit whose gradient is at work on the host, or -1 */
    int32_t leaving;       /* before it, the one whose states or gradient go to their store behind that work, or -1 */
    int32_t begun;         /* the unit whose matrices were begun last, or -1; */
    int32_t coming, going; /* before it, those whose updates come together and go back */
    int32_t storing;       /* the group whose states go back to their store, or -1 */
    int32_t storing_grad;  /* the one whose gradient goes there, or -1 */
    int32_t mark;
    uint64_t ordinal; /* of the next collective, for its tag */
    tess__unit_state *units;
    int32_t *buffer_of; /* by role and index: the live buffer, or -1 */
    int32_t stride;
    int32_t **scope_units, *n_scope_units;
} tess__compiler;

/** compile_tables.c */
tess_status tess__compiler_create(tess__compiler *, const tess__setup *, const tess__model *, const tess__layout *);
void tess__compiler_free(tess__compiler *);
/** Starts an empty pass in `p`. */
void tess__compiler_start(tess__compiler *, tess__program *p, uint32_t kind);
tess_status tess__compiler_event(tess__compiler *, uint8_t type, int32_t scope);
/** Ends a pass: waits for, reduces and releases everything. */
tess_status tess__compiler_end(tess__compiler *);

/** Compiles a pass over `events` (null: the declared order) into `out` and places its buffers. */
tess_status tess__compile_pass(tess__compiler *, uint32_t kind, const tess__program *events, int fused,
                               tess__program *out);
/** For a pass that deviates at the ENTER, LEAVE or end at `pc` of `of`: compiles what precedes it once more into `out`,
 * with the same places in memory. The compiler then stands where that pass does, without a view ahead. */
tess_status tess__compile_again(tess__compiler *, const tess__program *of, int32_t pc, tess__program *out);
/** Compiles the programs that have no events: TESS__PASS_STEP, _NORM, _CLIP, _FULL. */
tess_status tess__compile_other(tess__compiler *, uint32_t kind, tess__program *out);
/** Scratch the comm plugin wants for one collective among `nranks`, in device memory. resident.c */
tess_status tess__scratch_of(const tess__setup *, uint32_t op, uint32_t send, uint32_t recv, uint64_t count,
                             int32_t nranks, uint64_t *bytes);
/** Whether a group's sharded gradient lives in the step arena. resident.c */
int tess__grad_moves(const tess__setup *, const tess__model *, const tess__group *);
/** The buffers that live all the time; with_grads: the sharded gradients too. */
/** Bytes of a rank's image: what it must not lose. */
uint64_t tess__image_bytes(const tess__setup *, const tess__layout *);
tess_status tess__resident(const tess__setup *, const tess__layout *, int with_grads, tess__program *out);
#endif
