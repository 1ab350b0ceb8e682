/* SPDX-License-Identifier: BSD-3-Clause */
/* Optimizer states and parameters that rest in a store: they come to host memory ahead of their step, and go back
 * behind it. Gradients go there behind their sum, and come for the norm and the step. */
#include "state.h"

#include "base/status.h"

/* Begins to move a group's shard of the parameters, or one state. */
static tess_status post_one(tess *t, int32_t g, uint32_t op, int from, int to, uint64_t bytes, tess_request **out) {
    return tess__offload_post(&t->memory.store, op, tess__address_of(t, from, g), tess__address_of(t, to, g),
                              tess__round_up(bytes, t->plan.layout.store_align), out);
}

/* Begins to move all of a group. Whoever read or wrote it before has ended. */
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

/* Which sums the microbatch of this pass adds to, or leaves, as bits: those of the binary counter, or one in their
 * order. The last microbatch adds all of them. Without sums of shards, the gradient itself. */
static uint32_t sums_of(const tess *t, uint32_t op) {
    const tess__setup *s = &t->plan.setup;
    int adds = (t->pass.program->kind & 15) == TESS_PASS_TRAIN && s->accum > 1 && s->sync_each;
    uint32_t k = (uint32_t)t->pass.microbatch;
    int is_last = k + 1 == (uint32_t)s->accum;
    if (!adds || (op == TESS_STORE_WRITE && is_last))
        return 1;
    if (!s->deterministic)
        return op == TESS_STORE_WRITE || k > 0;
    return op == TESS_STORE_WRITE ? ~k & (k + 1) : is_last ? k : k & ~(k + 1);
}

static tess_status post_grad(tess *t, int32_t g, uint32_t op, uint32_t sums) {
    tess__in_flight *f = &t->transfers.in_flight[g];
    f->sums_ns = tess__tracing_begin(t);
    for (int l = 0; sums >> l; l++)
        if (sums >> l & 1)
            TRY(post_one(t, g, op, l ? TESS__SUM0 + l : TESS__SHARD_GRAD, TESS__STAGED_GRAD0 + l,
                         tess__shard_grad_bytes(&t->plan.layout.groups[g]), &f->sums[l]));
    return TESS_OK;
}

/* Waits for all, so that nobody uses the memory when one has failed. The first failure counts. Returns whether there
 * was any. */
static tess_status wait_all(tess *t, tess_request **requests, int n, int *any) {
    tess_status first = TESS_OK;
    for (int k = 0; k < n; k++) {
        *any |= requests[k] != NULL;
        tess_status s = requests[k] ? tess__offload_wait(&t->memory.store, &requests[k]) : TESS_OK;
        first = first ? first : s;
    }
    return first;
}

static tess_status wait(tess *t, int32_t g, int *any) {
    tess__in_flight *f = &t->transfers.in_flight[g];
    return wait_all(t, f->staged, TESS__MAX_STATES + 1, any);
}

static tess_status wait_grad(tess *t, int32_t g, int *any) {
    tess__in_flight *f = &t->transfers.in_flight[g];
    return wait_all(t, f->sums, sizeof f->sums / sizeof *f->sums, any);
}

/* The lane that steps or sums a group hands it to the store itself, because this thread may be long in a backward. */
static tess_status hand_over(tess *t, const tess__instr *in) {
    const tess__job job = { .op = in->op,
                            .index = in->index,
                            .arg = in->op == TESS__GRAD_STORE ? (int32_t)sums_of(t, TESS_STORE_WRITE) : 0 };
    tess__executor *on = &t->transfers.down;
    return in->flags & TESS__ASYNC ? on->post(on, &job, &t->transfers.in_flight[in->index].stored)
                                   : tess__states_job(t, &job);
}

tess_status tess__states_job(tess *t, const tess__job *job) {
    return job->op == TESS__STATES_STORE ? post(t, job->index, TESS_STORE_WRITE)
                                         : post_grad(t, job->index, TESS_STORE_WRITE, (uint32_t)job->arg);
}

static tess_status wait_traced(tess *t, const tess__instr *in, uint8_t op, uint32_t track) {
    tess__in_flight *f = &t->transfers.in_flight[in->index];
    int any = 0, grad = op == TESS__GRAD_FETCH || op == TESS__GRAD_STORE;
    TRY(tess__executor_wait(&t->transfers.down, &f->stored));
    TRY(grad ? wait_grad(t, in->index, &any) : wait(t, in->index, &any));
    if (any)
        tess__tracing_job(t, track, op, in->index, grad ? f->sums_ns : f->staged_ns);
    return TESS_OK;
}

tess_status tess__states_instr(tess *t, const tess__instr *in) {
    switch (in->op) {
    case TESS__STATES_FETCH: return post(t, in->index, TESS_STORE_READ);
    case TESS__STATES_STORE: return t->step.skips ? TESS_OK : hand_over(t, in);
    case TESS__STATES_FETCH_WAIT: return wait_traced(t, in, TESS__STATES_FETCH, TESS__TRACK_UP);
    case TESS__STATES_STORE_WAIT: return wait_traced(t, in, TESS__STATES_STORE, TESS__TRACK_DOWN);
    case TESS__GRAD_FETCH: return post_grad(t, in->index, TESS_STORE_READ, sums_of(t, TESS_STORE_READ));
    case TESS__GRAD_STORE: return hand_over(t, in);
    case TESS__GRAD_FETCH_WAIT: return wait_traced(t, in, TESS__GRAD_FETCH, TESS__TRACK_UP);
    default: return wait_traced(t, in, TESS__GRAD_STORE, TESS__TRACK_DOWN);
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
    int any;
    for (int32_t g = 0; g < t->plan.layout.n_groups; g++) {
        (void)wait(t, g, &any);
        (void)wait_grad(t, g, &any);
    }
}
