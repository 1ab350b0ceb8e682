/* SPDX-License-Identifier: BSD-3-Clause */
/* Work beside the engine's thread: on lanes of the host or streams of the device. */
#include "state.h"

#include "kernels/kernels.h"
#include "base/status.h"

#include <string.h>

/* ---- the lanes ---- */

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

tess_status tess__moves_start(tess *t) {
    tess_error e = { .struct_size = sizeof e };
    if (!has_work(t))
        return TESS_OK;
    TRY(t->streams.on ? tess__streams_moves(&t->streams)
                      : tess__lane_create(t->selection.host.helper_cpus, &t->transfers.up));
    TRY(tess__lane_create(t->selection.host.helper_cpus, &t->transfers.down));
    tess_status s = tess__pool_create(t->plan.setup.threads < 256 ? t->plan.setup.threads : 256,
                                      t->selection.host.helper_cpus, &t->transfers.host_pool, &e);
    return s ? tess__fail(s, "%s", e.message) : TESS_OK;
}

void tess__moves_end(tess *t) {
    tess__lane_destroy(t->transfers.up);
    tess__lane_destroy(t->transfers.down);
    tess__pool_destroy(t->transfers.host_pool);
    t->transfers.up = t->transfers.down = NULL;
    t->transfers.host_pool = NULL;
}

static tess_status wait_for(tess *t, tess__lane *lane, const tess__stream *queue, uint64_t *ticket) {
    uint64_t waited = *ticket;
    *ticket = 0;
    if (!waited)
        return TESS_OK;
    return t->streams.on ? tess__stream_wait(&t->streams, queue, waited) : tess__lane_wait(lane, waited);
}

tess_status tess__move_up_wait(tess *t, uint64_t *ticket) {
    return wait_for(t, t->transfers.up, &t->streams.up, ticket);
}

tess_status tess__move_down_wait(tess *t, uint64_t *ticket) {
    return wait_for(t, t->transfers.down, &t->streams.down, ticket);
}

/* Everything the step of a group touches lies in the host's memory. */
static int steps_on_host(const tess *t, int32_t g) {
    const tess__group *group = &t->plan.layout.groups[g];
    return group->param_rest.domain == TESS_DOMAIN_HOST && group->grad_rest.domain == TESS_DOMAIN_HOST &&
           (t->plan.setup.n_states == 0 || group->state_rest.domain == TESS_DOMAIN_HOST);
}

static tess_status stream_up(void *engine, tess_kernel *k) {
    tess *t = engine;
    return tess__stream_kernel(&t->streams, &t->streams.up, k);
}

static tess_status stream_down(void *engine, tess_kernel *k) {
    tess *t = engine;
    return tess__stream_kernel(&t->streams, &t->streams.down, k);
}

static tess_status host_kernel(tess_kernel *k, tess__pool *pool) {
    tess_error e = { .struct_size = sizeof e };
    k->struct_size = sizeof *k;
    tess_status s = tess__kernel_run(k, pool, &e);
    return s ? tess__fail(s, "on the host: %s", e.message) : TESS_OK;
}

/* Down: sums and the optimizer step, by all threads of the pool. Up: copies, which one thread does as fast. */
static tess_status run_down(void *user, tess_kernel *k) {
    return host_kernel(k, ((tess *)user)->transfers.host_pool);
}

static tess_status run_up(void *user, tess_kernel *k) {
    (void)user;
    return host_kernel(k, NULL);
}

/* ---- jobs, on a lane's thread: they touch nothing but buffers that live until the wait ---- */

static tess_status end_job(tess *t, tess_status s, uint32_t track, uint8_t op, int32_t index, int64_t begin) {
    tess__tracing_job(t, track, op, index, begin);
    return s;
}

static tess_status job_gather(void *user, int32_t g, int64_t arg) {
    tess *t = user;
    int64_t begin = tess__tracing_begin(t);
    (void)arg;
    return end_job(t, tess__shard_to_slot(t, g, tess__address_of(t, TESS__FULL, g), run_up), TESS__TRACK_UP,
                   TESS__GATHER, g, begin);
}

static tess_status fetch_shard(tess *t, int32_t g, tess__kernel_fn run) {
    const tess__group *group = &t->plan.layout.groups[g];
    uint32_t dtype;
    const void *in[1] = { tess__gather_source(t, g, &dtype) };
    tess_kernel k = { .kernel = TESS_K_CAST,
                      .in_dtype = dtype,
                      .out_dtype = group->compute,
                      .n_in = 1,
                      .in = in,
                      .out = tess__address_of(t, TESS__FETCHED, g),
                      .elems = group->shard_elems };
    return run(t, &k);
}

static tess_status job_fetch(void *user, int32_t g, int64_t arg) {
    int64_t begin = tess__tracing_begin(user);
    (void)arg;
    return end_job(user, fetch_shard(user, g, run_up), TESS__TRACK_UP, TESS__PREFETCH, g, begin);
}

static tess_status job_reduce(void *user, int32_t g, int64_t arg) {
    int64_t begin = tess__tracing_begin(user);
    (void)arg;
    return end_job(user, tess__reduce_single_rank(user, g, run_down), TESS__TRACK_DOWN, TESS__REDUCE, g, begin);
}

static tess_status job_sum(void *user, int32_t g, int64_t microbatch) {
    int64_t begin = tess__tracing_begin(user);
    return end_job(user, tess__sum_shard(user, g, (int32_t)microbatch, run_down), TESS__TRACK_HOST, TESS__SUM_SHARD, g,
                   begin);
}

/* `down`: with queues, the ticket behind which the gradient has come. */
static tess_status job_optimize(void *user, int32_t g, int64_t down) {
    tess *t = user;
    if (t->streams.on)
        TRY(tess__stream_finish(&t->streams, &t->streams.down, (uint64_t)down));
    int64_t begin = tess__tracing_begin(user);
    return end_job(user, tess__optimize(user, g, 0, run_down), TESS__TRACK_HOST, TESS__OPTIMIZE, g, begin);
}

static uint64_t activation_bytes(const tess *t, int32_t block, int output) {
    const tess_block_options *o = &t->plan.model.blocks[block].options;
    return output ? o->output_bytes : o->saved_bytes;
}

/* Moves a block's saved buffer or output; back: from the host. */
static tess_status move_activation(tess *t, int32_t block, int output, int back, tess__kernel_fn run) {
    void *device = tess__address_of(t, output ? TESS__OUTPUT : TESS__SAVED, block);
    void *host = tess__address_of(t, output ? TESS__OUTPUT_HOST : TESS__SAVED_HOST, block);
    const void *in[1] = { back ? host : device };
    tess_kernel k = { .kernel = TESS_K_CAST,
                      .in_dtype = TESS_U8,
                      .out_dtype = TESS_U8,
                      .n_in = 1,
                      .in = in,
                      .out = back ? device : host,
                      .elems = activation_bytes(t, block, output) };
    return run(t, &k);
}

static tess_status job_offload(void *user, int32_t block, int64_t output) {
    int64_t begin = tess__tracing_begin(user);
    return end_job(user, move_activation(user, block, output != 0, 0, run_down), TESS__TRACK_DOWN, TESS__OFFLOAD, block,
                   begin);
}

static tess_status job_reload(void *user, int32_t block, int64_t output) {
    int64_t begin = tess__tracing_begin(user);
    return end_job(user, move_activation(user, block, output != 0, 1, run_up), TESS__TRACK_UP, TESS__RELOAD, block,
                   begin);
}

/* ---- instructions: handed to a lane, or put into a queue of the device ---- */

/* The ticket behind what was put there last, where that went well. */
static tess_status note_ticket(const tess__stream *q, uint64_t *ticket, tess_status s) {
    *ticket = s ? 0 : q->posted;
    return s;
}

tess_status tess__move_gather(tess *t, int32_t g) {
    uint64_t *ticket = &t->transfers.in_flight[g].fetched;
    if (t->streams.on)
        return note_ticket(&t->streams.up, ticket,
                           tess__shard_to_slot(t, g, tess__address_of(t, TESS__FULL, g), stream_up));
    *ticket = tess__lane_post(t->transfers.up, job_gather, t, g, 0);
    return TESS_OK;
}

tess_status tess__move_reduce(tess *t, int32_t g) {
    uint64_t *ticket = &t->transfers.in_flight[g].on_host;
    if (t->streams.on)
        return note_ticket(&t->streams.down, ticket, tess__reduce_single_rank(t, g, stream_down));
    *ticket = tess__lane_post(t->transfers.down, job_reduce, t, g, 0);
    return TESS_OK;
}

tess_status tess__move_sum(tess *t, int32_t g) {
    uint64_t *ticket = &t->transfers.in_flight[g].on_host;
    if (t->streams.on)
        return note_ticket(&t->streams.down, ticket, tess__sum_shard(t, g, t->pass.microbatch, stream_down));
    *ticket = tess__lane_post(t->transfers.down, job_sum, t, g, t->pass.microbatch);
    return TESS_OK;
}

tess_status tess__move_optimize(tess *t, int32_t g) {
    tess__in_flight *state = &t->transfers.in_flight[g];
    if (!t->streams.on)
        state->on_host = tess__lane_post(t->transfers.down, job_optimize, t, g, 0);
    else if (steps_on_host(t, g))
        state->stepped = tess__lane_post(t->transfers.down, job_optimize, t, g, (int64_t)t->streams.down.posted);
    else
        return note_ticket(&t->streams.down, &state->on_host, tess__optimize(t, g, 0, stream_down));
    return TESS_OK;
}

/* A step apart from its passes: on the device, which reads page-locked memory too, unless all of it is the host's. */
int tess__steps_on_device(const tess *t, int32_t g) {
    return t->step.first_segment[g] < t->step.first_segment[g + 1] && !tess__steps_on_host(t, g);
}

int tess__steps_on_host(const tess *t, int32_t g) {
    return t->streams.on && steps_on_host(t, g);
}

tess_status tess__optimize_now(tess *t, int32_t g) {
    if (!t->streams.on || !steps_on_host(t, g))
        return tess__optimize(t, g, t->step.more_follow ? TESS_KERNEL_MORE : 0, tess__engine_kernel);
    TRY(tess__streams_sync(&t->streams));
    return tess__optimize(t, g, 0, run_down);
}

/* Nothing is under way where masters were changed, so that the host may write what rests there. */
static tess_status refresh_copy(tess *t, int32_t g) {
    if (!t->streams.on || t->plan.layout.groups[g].param_rest.domain == TESS_DOMAIN_DEVICE)
        return tess__low_copy_make(t, g, tess__engine_kernel);
    TRY(tess__streams_sync(&t->streams));
    return tess__low_copy_make(t, g, run_down);
}

tess_status tess__low_copies_refresh(tess *t) {
    for (int32_t g = 0; t->masters_changed && g < t->plan.layout.n_groups; g++)
        if (t->plan.layout.groups[g].low_copy)
            TRY(refresh_copy(t, g));
    t->masters_changed = 0;
    return TESS_OK;
}

static tess_status fetch_group(tess *t, int32_t g) {
    uint64_t *ticket = &t->transfers.in_flight[g].fetched;
    if (t->streams.on)
        return note_ticket(&t->streams.up, ticket, fetch_shard(t, g, stream_up));
    *ticket = tess__lane_post(t->transfers.up, job_fetch, t, g, 0);
    return TESS_OK;
}

static tess_status down_wait(tess *t, int32_t g) {
    uint64_t stepped = t->transfers.in_flight[g].stepped;
    t->transfers.in_flight[g].stepped = 0;
    TRY(tess__move_down_wait(t, &t->transfers.in_flight[g].on_host));
    return tess__lane_wait(t->transfers.down, stepped);
}

static tess_status offload_post(tess *t, const tess__instr *in) {
    int output = in->flags & TESS__OUTPUTS ? 1 : 0, back = in->op == TESS__RELOAD;
    tess__in_flight *state = &t->transfers.in_flight[in->index];
    uint64_t *ticket = back ? &state->reloaded[output] : &state->offloaded[output];
    if (!t->streams.on) {
        *ticket = tess__lane_post(back ? t->transfers.up : t->transfers.down, back ? job_reload : job_offload, t,
                                  in->index, output);
        return TESS_OK;
    }
    tess__stream *queue = back ? &t->streams.up : &t->streams.down;
    void *device = tess__address_of(t, output ? TESS__OUTPUT : TESS__SAVED, in->index);
    void *host = tess__address_of(t, output ? TESS__OUTPUT_HOST : TESS__SAVED_HOST, in->index);
    uint64_t bytes = activation_bytes(t, in->index, output);
    return note_ticket(
        queue, ticket,
        back ? tess__stream_copy(&t->streams, queue, device, t->plan.setup.env.mem, host, TESS_MEM_PINNED, bytes)
             : tess__stream_copy(&t->streams, queue, host, TESS_MEM_PINNED, device, t->plan.setup.env.mem, bytes));
}

tess_status tess__move(tess *t, const tess__instr *in) {
    tess__in_flight *state = &t->transfers.in_flight[in->index];
    int output = in->flags & TESS__OUTPUTS ? 1 : 0;
    switch (in->op) {
    case TESS__PREFETCH: return fetch_group(t, in->index);
    case TESS__PREFETCH_WAIT: return tess__move_up_wait(t, &state->fetched);
    case TESS__HOST_WAIT: return down_wait(t, in->index);
    case TESS__OFFLOAD:
    case TESS__RELOAD: return offload_post(t, in);
    case TESS__OFFLOAD_WAIT: return tess__move_down_wait(t, &state->offloaded[output]);
    case TESS__RELOAD_WAIT: return tess__move_up_wait(t, &state->reloaded[output]);
    default: return tess__fail(TESS_E_INTERNAL, "instruction %u is unknown", in->op);
    }
}
