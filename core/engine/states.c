/* SPDX-License-Identifier: BSD-3-Clause */
/* Optimizer states and parameters that rest in a store: they come to host memory ahead of their step, and go back
 * behind it. */
#include "state.h"

#include "base/status.h"

/* Begins to move a group's shard of the parameters, or one state. */
static tess_status post_one(tess *t, int32_t g, uint32_t op, int from, int to, uint64_t bytes, tess_request **out) {
    return tess__offload_post(&t->memory.store, op, tess__address_of(t, from, g), tess__address_of(t, to, g),
                              tess__round_up(bytes, t->plan.layout.store_align), out);
}

/* Begins to move all of a group. The engine's thread has waited for whoever read or wrote it before. */
static tess_status post(tess *t, int32_t g, uint32_t op) {
    const tess__group *group = &t->plan.layout.groups[g];
    tess__in_flight *f = &t->transfers.in_flight[g];
    f->staged_ns = tess__tracing_begin(t);
    for (int32_t k = 0; group->state_rest.stored && k < (int32_t)group->step.n_states; k++)
        TRY(post_one(t, g, op, TESS__STATE0 + k, TESS__STAGED0 + k, tess__state_bytes(group, k), &f->staged[k]));
    return group->param_rest.stored
               ? post_one(t, g, op, TESS__MASTER, TESS__STAGED_PARAM,
                          group->shard_elems * tess_dtype_bytes(group->master), &f->staged[TESS__MAX_STATES])
               : TESS_OK;
}

/* Waits for all, so that nobody uses the memory when one has failed. The first failure counts. */
static tess_status wait(tess *t, int32_t g) {
    tess_status first = TESS_OK;
    for (int k = 0; k <= TESS__MAX_STATES; k++) {
        tess_request **request = &t->transfers.in_flight[g].staged[k];
        tess_status s = *request ? tess__offload_wait(&t->memory.store, request) : TESS_OK;
        first = first ? first : s;
    }
    return first;
}

static tess_status wait_traced(tess *t, const tess__instr *in, uint8_t op, uint32_t track) {
    tess__in_flight *f = &t->transfers.in_flight[in->index];
    int any = f->staged[0] || f->staged[TESS__MAX_STATES];
    TRY(wait(t, in->index));
    if (any)
        tess__tracing_job(t, track, op, in->index, f->staged_ns);
    return TESS_OK;
}

tess_status tess__states_instr(tess *t, const tess__instr *in) {
    switch (in->op) {
    case TESS__STATES_FETCH: return post(t, in->index, TESS_STORE_READ);
    case TESS__STATES_STORE: return t->step.skips ? TESS_OK : post(t, in->index, TESS_STORE_WRITE);
    case TESS__STATES_FETCH_WAIT: return wait_traced(t, in, TESS__STATES_FETCH, TESS__TRACK_UP);
    default: return wait_traced(t, in, TESS__STATES_STORE, TESS__TRACK_DOWN);
    }
}

tess_status tess__param_fetch(tess *t, int32_t g) {
    const tess__group *group = &t->plan.layout.groups[g];
    return group->param_rest.stored
               ? tess__offload_run(
                     &t->memory.store, TESS_STORE_READ, tess__address_of(t, TESS__MASTER, g),
                     tess__address_of(t, TESS__STAGED_PARAM, g),
                     tess__round_up(group->shard_elems * tess_dtype_bytes(group->master), t->plan.layout.store_align))
               : TESS_OK;
}

void tess__states_forget(tess *t) {
    for (int32_t g = 0; g < t->plan.layout.n_groups; g++)
        (void)wait(t, g);
}
