/* SPDX-License-Identifier: BSD-3-Clause */
/* Chooses the executor for the work of an instruction, and what waits for it. */
#include "state.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>

/* ---- the executors ---- */

static int has_work(const tess *t) {
    int any = 0;
    for (int32_t i = 0; !any && i < t->plan.model.n_blocks; i++)
        any = tess__activations_of(&t->plan.setup, i) == TESS__ACTIVATIONS_OFFLOAD;
    for (int32_t g = 0; !any && g < t->plan.layout.n_groups; g++) {
        const tess__group *group = &t->plan.layout.groups[g];
        any = group->param_rest.domain == TESS_DOMAIN_HOST || group->grad_rest.domain == TESS_DOMAIN_HOST ||
              group->state_rest.domain == TESS_DOMAIN_HOST;
    }
    return any;
}

/* Whether a step of the optimizer plugin's own runs here, or else on the device. */
static int steps_pieces(const tess *t, int on_device) {
    int any = 0;
    for (int32_t g = 0; !any && g < t->plan.layout.n_groups; g++)
        any = t->plan.layout.groups[g].step.grain && !t->plan.layout.groups[g].step.kernel &&
              tess__plugin_steps_on_device(t, g) == on_device;
    return any;
}

static tess_status start_device_steps(tess *t, int32_t device) {
    tess__transfers *x = &t->transfers;
    x->step_stream = t->device.compute;
    x->step_stream.mem = t->device.mem;
    x->step_stream.device = device;
    return tess__device_steps_open(t->selection.plugins[TESS_KIND_OPTIMIZER], &x->step_stream, &x->steps);
}

static tess_status start_streams(tess *t) {
    tess__transfers *x = &t->transfers;
    TRY(tess__streams_add_transfers(&t->streams));
    tess__executor_stream(&x->up, &t->streams, &t->streams.up);
    tess__executor_stream(&x->down, &t->streams, &t->streams.down);
    return tess__executor_lane(&x->host, t->selection.host.helper_cpus, x->host_pool, &t->streams, &t->streams.down);
}

static tess_status start_lanes(tess *t) {
    tess__transfers *x = &t->transfers;
    TRY(tess__executor_lane(&x->up, t->selection.host.helper_cpus, NULL, NULL, NULL));
    return tess__executor_lane(&x->down, t->selection.host.helper_cpus, x->host_pool, NULL, NULL);
}

/* Numbers the model's elements in the order of their declaration, each parameter from a block's beginning on. */
static tess_status number_elements(tess *t) {
    const tess__layout *l = &t->plan.layout;
    const tess__model *m = &t->plan.model;
    int any = 0;
    for (int32_t g = 0; g < l->n_groups; g++)
        any |= l->groups[g].draws;
    if (!any)
        return TESS_OK;
    t->transfers.runs = calloc((size_t)l->n_order, sizeof *t->transfers.runs);
    uint64_t *at = calloc((size_t)m->n_params + 1, sizeof *at);
    for (int32_t i = 0; at && i < m->n_params; i++)
        at[i + 1] = at[i] + (m->params[i].tied_to == i ? tess__round_up(m->params[i].elems, TESS_Q8_BLOCK) : 0);
    for (int32_t i = 0; at && t->transfers.runs && i < l->n_order; i++) {
        const tess__param *p = &m->params[l->order[i]];
        t->transfers.runs[i] = (tess_place){ .first = p->offset, .elems = p->elems, .at = at[l->order[i]] };
    }
    int made = at && t->transfers.runs;
    free(at);
    return made ? TESS_OK : tess__fail(TESS_E_NOMEM, "no memory for the engine's tables");
}

tess_status tess__transfers_create(tess *t) {
    t->transfers.in_flight = calloc((size_t)t->plan.compiler.stride + 1, sizeof *t->transfers.in_flight);
    t->transfers.arrived = calloc((size_t)t->plan.setup.nranks, sizeof *t->transfers.arrived);
    return t->transfers.in_flight && t->transfers.arrived
               ? number_elements(t)
               : tess__fail(TESS_E_NOMEM, "no memory for the engine's tables");
}

void tess__transfers_destroy(tess *t) {
    free(t->transfers.in_flight);
    free(t->transfers.arrived);
    free(t->transfers.runs);
    t->transfers.runs = NULL;
    t->transfers.in_flight = NULL;
    t->transfers.arrived = NULL;
}

void tess__transfers_forget(tess *t) {
    tess__states_forget(t);
    memset(t->transfers.in_flight, 0, ((size_t)t->plan.compiler.stride + 1) * sizeof *t->transfers.in_flight);
}

static tess_status do_job(void *executor, const tess__job *);

tess_status tess__transfers_start(tess *t, int32_t device) {
    tess__transfers *x = &t->transfers;
    tess_error e = { .struct_size = sizeof e };
    tess__executor_compute(&x->compute, &t->device);
    x->compute.run = do_job;
    x->compute.engine = t;
    if (steps_pieces(t, 1))
        TRY(start_device_steps(t, device));
    int lanes = has_work(t);
    if (!lanes && !steps_pieces(t, 0))
        return TESS_OK;
    tess_status s = tess__pool_create(t->plan.setup.threads < 256 ? t->plan.setup.threads : 256,
                                      lanes ? t->selection.host.helper_cpus : NULL, &x->host_pool, &e);
    if (s || !lanes)
        return s ? tess__fail(s, "%s", e.message) : TESS_OK;
    TRY(t->streams.on ? start_streams(t) : start_lanes(t));
    x->up.run = x->down.run = x->host.run = do_job;
    x->up.engine = x->down.engine = x->host.engine = t;
    return TESS_OK;
}

void tess__transfers_end(tess *t) {
    tess__executor_end(&t->transfers.up);
    tess__executor_end(&t->transfers.down);
    tess__executor_end(&t->transfers.host);
    tess__pool_destroy(t->transfers.host_pool);
    t->transfers.host_pool = NULL;
    tess__device_steps_close(t->selection.plugins[TESS_KIND_OPTIMIZER], t->transfers.steps);
    t->transfers.steps = NULL;
}

/* ---- jobs: on a lane's thread they touch nothing but buffers that live until the wait ---- */

static uint64_t activation_bytes(const tess *t, int32_t block, int output) {
    const tess_block_options *o = &t->plan.model.blocks[block].options;
    return output ? o->output_bytes : o->saved_bytes;
}

/* Moves a block's saved buffer or output to the host, or back. */
static tess_status move_activation(tess *t, int32_t block, int output, int back, tess__executor *on) {
    void *device = tess__address_of(t, output ? TESS__OUTPUT : TESS__SAVED, block);
    void *host = tess__address_of(t, output ? TESS__OUTPUT_HOST : TESS__SAVED_HOST, block);
    uint32_t mem = t->plan.setup.env.mem;
    uint64_t bytes = activation_bytes(t, block, output);
    return back ? on->copy(on, device, mem, host, TESS_MEM_PINNED, bytes)
                : on->copy(on, host, TESS_MEM_PINNED, device, mem, bytes);
}

static tess_status do_work(tess *t, const tess__job *job, tess__executor *on) {
    switch (job->op) {
    case TESS__GATHER: return tess__shard_to_slot(t, job->index, on);
    case TESS__PREFETCH: return tess__shard_fetch(t, job->index, on);
    case TESS__REDUCE: return tess__reduce_single_rank(t, job->index, on);
    case TESS__SUM_SHARD: return tess__sum_shard(t, job->index, job->arg, on);
    case TESS__OPTIMIZE:
        if (t->proof)
            TRY(t->hooks->digest_gradient(t, job->index, on));
        return tess__optimize(t, job->index, on);
    case TESS__STATES_STORE:
    case TESS__GRAD_STORE: return tess__states_job(t, job);
    default: return move_activation(t, job->index, job->arg, job->op == TESS__RELOAD, on);
    }
}

static uint32_t track_of(uint8_t op) {
    if (op == TESS__SUM_SHARD || op == TESS__OPTIMIZE)
        return TESS__TRACK_HOST;
    return op == TESS__REDUCE || op == TESS__OFFLOAD ? TESS__TRACK_DOWN : TESS__TRACK_UP;
}

static int is_store(const tess__job *job) {
    return job->op == TESS__STATES_STORE || job->op == TESS__GRAD_STORE;
}

/* Runs one job. Spans of a stream come from the timeline, those of a store from whoever waits for it, others are traced
 * here. */
static tess_status do_job(void *executor, const tess__job *job) {
    tess__executor *on = executor;
    tess *t = on->engine;
    int64_t begin = on->lane ? tess__tracing_begin(t) : 0;
    TRY(do_work(t, job, on));
    if (on->lane && !is_store(job))
        tess__tracing_job(t, track_of(job->op), job->op, job->index, begin);
    return TESS_OK;
}

/* ---- instructions ---- */

int tess__steps_on_host(const tess *t, int32_t g) {
    return t->streams.on && tess__rests_on_host(t, g);
}

/* Whether a step apart from its passes runs on the device. It does unless all of it is the host's, since a device
 * reads page-locked memory too. */
int tess__steps_on_device(const tess *t, int32_t g) {
    return t->step.first_segment[g] < t->step.first_segment[g + 1] && t->plan.layout.groups[g].step.kernel &&
           !tess__steps_on_host(t, g);
}

static tess__executor *executor_of(tess *t, const tess__instr *in) {
    tess__transfers *x = &t->transfers;
    if (in->op == TESS__OPTIMIZE && tess__steps_on_host(t, in->index))
        return &x->host;
    if (!tess__is_beside(in))
        return &x->compute;
    return in->op == TESS__GATHER || in->op == TESS__PREFETCH || in->op == TESS__RELOAD ? &x->up : &x->down;
}

static uint64_t *ticket_of(tess *t, const tess__instr *in) {
    tess__in_flight *f = &t->transfers.in_flight[in->index];
    int output = (in->flags & TESS__OUTPUTS) != 0;
    switch (in->op) {
    case TESS__GATHER:
    case TESS__PREFETCH: return &f->fetched;
    case TESS__OFFLOAD: return &f->offloaded[output];
    case TESS__RELOAD: return &f->reloaded[output];
    case TESS__OPTIMIZE: return tess__steps_on_host(t, in->index) ? &f->stepped : &f->on_host;
    default: return &f->on_host;
    }
}

tess_status tess__work(tess *t, const tess__instr *in) {
    tess__executor *on = executor_of(t, in);
    tess__job job = { .op = in->op, .index = in->index };
    if (in->op == TESS__SUM_SHARD)
        job.arg = t->pass.microbatch;
    if (in->op == TESS__OFFLOAD || in->op == TESS__RELOAD)
        job.arg = (in->flags & TESS__OUTPUTS) != 0;
    if (on != &t->transfers.host || tess__is_beside(in))
        return on->post(on, &job, ticket_of(t, in));
    TRY(tess__streams_sync(&t->streams)); /* because this thread reads what the device has written */
    return do_work(t, &job, on);
}

tess_status tess__work_wait(tess *t, const tess__instr *in) {
    tess__transfers *x = &t->transfers;
    tess__in_flight *f = &x->in_flight[in->index];
    int output = (in->flags & TESS__OUTPUTS) != 0;
    switch (in->op) {
    case TESS__GATHER_WAIT:
    case TESS__PREFETCH_WAIT: return tess__executor_wait(&x->up, &f->fetched);
    case TESS__RELOAD_WAIT: return tess__executor_wait(&x->up, &f->reloaded[output]);
    case TESS__OFFLOAD_WAIT: return tess__executor_wait(&x->down, &f->offloaded[output]);
    case TESS__REDUCE_WAIT: return tess__executor_wait(&x->down, &f->on_host);
    default: TRY(tess__executor_wait(&x->down, &f->on_host)); return tess__executor_wait(&x->host, &f->stepped);
    }
}

/* Refreshes a copy where masters were changed. Nothing is under way there, so the host may write what rests there. */
static tess_status refresh_copy(tess *t, int32_t g) {
    if (!t->streams.on || t->plan.layout.groups[g].param_rest.domain == TESS_DOMAIN_DEVICE)
        return tess__low_copy_make(t, g, &t->transfers.compute);
    TRY(tess__streams_sync(&t->streams));
    return tess__low_copy_make(t, g, &t->transfers.host);
}

tess_status tess__low_copies_refresh(tess *t) {
    for (int32_t g = 0; t->masters_changed && g < t->plan.layout.n_groups; g++)
        if (t->plan.layout.groups[g].low_copy)
            TRY(refresh_copy(t, g));
    t->rest_changed |= t->masters_changed;
    t->masters_changed = 0;
    return TESS_OK;
}
