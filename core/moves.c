/* What happens to a group's shard, on the engine's thread or beside it, and the transfers between device and host. */
#include "engine.h"

#include "kernels.h"
#include "status.h"
#include "try.h"

#include <string.h>

/* ---- a group's shard ---- */

tess_status tess__shard_to_slot(tess *t, int32_t g, void *slot, tess__kernel_fn run) {
    const tess__group *group = &t->layout.groups[g];
    int fetched = t->booked[TESS__FETCHED][g]; /* cast on the way up */
    const void *in[1] = { tess__at(t, fetched ? TESS__FETCHED : TESS__MASTER, g) };
    tess_kernel k = { .kernel = TESS_K_CAST,
                      .in_dtype = fetched ? group->compute : group->master,
                      .out_dtype = group->compute,
                      .n_in = 1,
                      .in = in,
                      .out = slot,
                      .elems = group->shard_elems };
    return run(t, &k);
}

static int sums_at_end(const tess *t) {
    return t->setup.accum > 1 && !t->setup.sync_each;
}

static float final_scale(const tess *t) {
    return (float)(1.0 / ((double)t->setup.nranks * t->setup.accum));
}

/* With a sum of shards still to come, the division waits for its end. */
double tess__reduce_scale(const tess *t) {
    return t->setup.accum > 1 && t->setup.sync_each ? 1.0 : (double)final_scale(t);
}

tess__counter tess__counter_of(const tess *t, int32_t g, int shards) {
    tess__counter c = { .n_levels = tess__sum_levels(&t->setup), .in_order = !t->setup.deterministic };
    for (int32_t l = 0; l < c.n_levels; l++)
        c.level[l] = shards && l == 0 ? tess__at(t, TESS__SHARD_GRAD, g) : tess__at(t, TESS__SUM0 + l, g);
    c.elems = shards ? t->layout.groups[g].shard_elems : t->layout.groups[g].flat_elems;
    return c;
}

/* What is sent, and in which dtype: the sum of microbatches, the leaf rounded to the wire, or the leaf. */
tess_status tess__find_source(tess *t, int32_t g, tess__kernel_fn run, void **source, uint32_t *dtype) {
    const tess__group *group = &t->layout.groups[g];
    *dtype = group->grad_wire;
    if (sums_at_end(t)) {
        tess__counter c = tess__counter_of(t, g, 0);
        *dtype = TESS_F32;
        return tess__counter_finish(&c, (uint32_t)t->setup.accum, run, t, source);
    }
    *source = group->grad_in_place ? tess__at(t, TESS__SHARD_GRAD, g)
                                   : tess__at(t, group->grad_wire != group->grad_local ? TESS__WIRE : TESS__GRAD, g);
    return TESS_OK;
}

void *tess__reduced_at(const tess *t, int32_t g) {
    return tess__at(t, t->booked[TESS__PART][g] ? TESS__PART : TESS__SHARD_GRAD, g);
}

tess_status tess__reduce_alone(tess *t, int32_t g, tess__kernel_fn run) {
    void *source;
    uint32_t dtype;
    TRY(tess__find_source(t, g, run, &source, &dtype));
    const void *in[1] = { source };
    tess_kernel k = { .kernel = TESS_K_TREE_SUM,
                      .in_dtype = dtype,
                      .out_dtype = TESS_F32,
                      .n_in = 1,
                      .in = in,
                      .out = tess__reduced_at(t, g),
                      .elems = t->layout.groups[g].shard_elems,
                      .scale = tess__reduce_scale(t) };
    return run(t, &k);
}

/* A plain copy when there is nothing to add up: the gradient rests where a collective cannot end. */
static tess_status copy_part(tess *t, int32_t g, tess__kernel_fn run) {
    const void *in[1] = { tess__at(t, TESS__PART, g) };
    tess_kernel k = { .kernel = TESS_K_CAST,
                      .in_dtype = TESS_F32,
                      .out_dtype = TESS_F32,
                      .n_in = 1,
                      .in = in,
                      .out = tess__at(t, TESS__SHARD_GRAD, g),
                      .elems = t->layout.groups[g].shard_elems };
    return run(t, &k);
}

tess_status tess__sum_shard(tess *t, int32_t g, int32_t microbatch, tess__kernel_fn run) {
    if (t->setup.accum == 1 || sums_at_end(t))
        return copy_part(t, g, run);
    tess__counter c = tess__counter_of(t, g, 1);
    TRY(tess__counter_add(&c, (uint32_t)microbatch, tess__at(t, TESS__PART, g), TESS_F32, run, t));
    if (microbatch < t->setup.accum - 1)
        return TESS_OK;
    void *sum;
    TRY(tess__counter_finish(&c, (uint32_t)t->setup.accum, run, t, &sum));
    const void *in[1] = { sum };
    tess_kernel k = { .kernel = TESS_K_SCALE,
                      .in_dtype = TESS_F32,
                      .out_dtype = TESS_F32,
                      .n_in = 1,
                      .in = in,
                      .out = tess__at(t, TESS__SHARD_GRAD, g),
                      .elems = c.elems,
                      .scale = (double)final_scale(t) };
    return run(t, &k);
}

tess_status tess__optimize(tess *t, int32_t g, tess__kernel_fn run) {
    const tess__group *group = &t->layout.groups[g];
    const void *in[1] = { tess__at(t, TESS__SHARD_GRAD, g) };
    tess_optimizer o = t->step_kernel;
    o.segments = &t->segments[t->first_segment[g]];
    o.n_segments = (uint32_t)(t->first_segment[g + 1] - t->first_segment[g]);
    if (!o.n_segments)
        return TESS_OK;
    tess_kernel k = { .kernel = TESS_K_OPTIMIZER,
                      .in_dtype = TESS_F32,
                      .out_dtype = group->master,
                      .n_in = 1,
                      .in = in,
                      .out = tess__at(t, TESS__MASTER, g),
                      .elems = group->shard_elems,
                      .optimizer = &o,
                      .first_elem = (uint64_t)t->shard_rank * group->shard_elems };
    for (int32_t i = 0; i < t->setup.n_states; i++)
        k.state[i] = tess__at(t, TESS__STATE0 + i, g);
    return run(t, &k);
}

/* ---- the lanes ---- */

static int has_work(const tess *t) {
    int any = t->setup.activations == TESS__ACTIVATIONS_OFFLOAD && t->model.n_blocks > 0;
    for (int32_t g = 0; !any && g < t->layout.n_groups; g++) {
        const tess__group *group = &t->layout.groups[g];
        any = group->param_rest.domain == TESS_DOMAIN_HOST || group->grad_rest.domain == TESS_DOMAIN_HOST ||
              group->state_rest.domain == TESS_DOMAIN_HOST;
    }
    return any;
}

tess_status tess__moves_start(tess *t) {
    tess_error e = { .struct_size = sizeof e };
    if (!has_work(t))
        return TESS_OK;
    TRY(t->queues.on ? tess__queues_moves(t) : tess__lane_create(t->host.helper_cpus, &t->up));
    TRY(tess__lane_create(t->host.helper_cpus, &t->down));
    tess_status s = tess__pool_create(t->threads < 256 ? t->threads : 256, t->host.helper_cpus, &t->host_pool, &e);
    return s ? tess__fail(s, "%s", e.message) : TESS_OK;
}

void tess__moves_end(tess *t) {
    tess__lane_destroy(t->up);
    tess__lane_destroy(t->down);
    tess__pool_destroy(t->host_pool);
    t->up = t->down = NULL;
    t->host_pool = NULL;
}

static tess_status wait_for(tess *t, tess__lane *lane, const tess__queue *queue, uint64_t *ticket) {
    uint64_t waited = *ticket;
    *ticket = 0;
    if (!waited)
        return TESS_OK;
    return t->queues.on ? tess__queue_wait(t, queue, waited) : tess__lane_wait(lane, waited);
}

tess_status tess__move_up_wait(tess *t, uint64_t *ticket) {
    return wait_for(t, t->up, &t->queues.up, ticket);
}

tess_status tess__move_down_wait(tess *t, uint64_t *ticket) {
    return wait_for(t, t->down, &t->queues.down, ticket);
}

/* Everything the step of a group touches lies in the host's memory. */
static int steps_on_host(const tess *t, int32_t g) {
    const tess__group *group = &t->layout.groups[g];
    return group->param_rest.domain == TESS_DOMAIN_HOST && group->grad_rest.domain == TESS_DOMAIN_HOST &&
           (t->setup.n_states == 0 || group->state_rest.domain == TESS_DOMAIN_HOST);
}

static tess_status host_kernel(tess_kernel *k, tess__pool *pool) {
    tess_error e = { .struct_size = sizeof e };
    k->struct_size = sizeof *k;
    tess_status s = tess__kernel_run(k, pool, &e);
    return s ? tess__fail(s, "on the host: %s", e.message) : TESS_OK;
}

/* Down: sums and the optimizer step, by all threads of the pool. Up: copies, which one thread does as fast. */
static tess_status run_down(void *user, tess_kernel *k) {
    return host_kernel(k, ((tess *)user)->host_pool);
}

static tess_status run_up(void *user, tess_kernel *k) {
    (void)user;
    return host_kernel(k, NULL);
}

/* ---- jobs, on a lane's thread: they touch nothing but buffers that live until the wait ---- */

static tess_status done(tess *t, tess_status s, uint32_t lane, uint8_t op, int32_t index, int64_t begin) {
    tess__tracing_job(t, lane, op, index, begin);
    return s;
}

static tess_status job_gather(void *user, int32_t g, int64_t arg) {
    tess *t = user;
    int64_t begin = tess__tracing_begin(t);
    (void)arg;
    return done(t, tess__shard_to_slot(t, g, tess__at(t, TESS__FULL, g), run_up), TESS__LANE_UP, TESS__GATHER, g,
                begin);
}

static tess_status fetch(tess *t, int32_t g, tess__kernel_fn run) {
    const tess__group *group = &t->layout.groups[g];
    const void *in[1] = { tess__at(t, TESS__MASTER, g) };
    tess_kernel k = { .kernel = TESS_K_CAST,
                      .in_dtype = group->master,
                      .out_dtype = group->compute,
                      .n_in = 1,
                      .in = in,
                      .out = tess__at(t, TESS__FETCHED, g),
                      .elems = group->shard_elems };
    return run(t, &k);
}

static tess_status job_fetch(void *user, int32_t g, int64_t arg) {
    int64_t begin = tess__tracing_begin(user);
    (void)arg;
    return done(user, fetch(user, g, run_up), TESS__LANE_UP, TESS__FETCH, g, begin);
}

static tess_status job_reduce(void *user, int32_t g, int64_t arg) {
    int64_t begin = tess__tracing_begin(user);
    (void)arg;
    return done(user, tess__reduce_alone(user, g, run_down), TESS__LANE_DOWN, TESS__REDUCE, g, begin);
}

static tess_status job_sum(void *user, int32_t g, int64_t microbatch) {
    int64_t begin = tess__tracing_begin(user);
    return done(user, tess__sum_shard(user, g, (int32_t)microbatch, run_down), TESS__LANE_HOST, TESS__SUM_SHARD, g,
                begin);
}

/* `down`: with queues, the ticket behind which the gradient has come. */
static tess_status job_optimize(void *user, int32_t g, int64_t down) {
    tess *t = user;
    if (t->queues.on)
        TRY(tess__queue_finish(t, &t->queues.down, (uint64_t)down));
    int64_t begin = tess__tracing_begin(user);
    return done(user, tess__optimize(user, g, run_down), TESS__LANE_HOST, TESS__OPTIMIZE, g, begin);
}

static uint64_t activation_bytes(const tess *t, int32_t block, int output) {
    const tess_block_options *o = &t->model.blocks[block].options;
    return output ? o->output_bytes : o->saved_bytes;
}

/* Moves a block's saved buffer or output; back: from the host. */
static tess_status move_activation(tess *t, int32_t block, int output, int back, tess__kernel_fn run) {
    void *device = tess__at(t, output ? TESS__OUTPUT : TESS__SAVED, block);
    void *host = tess__at(t, output ? TESS__OUTPUT_HOST : TESS__SAVED_HOST, block);
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

static tess_status job_stow(void *user, int32_t block, int64_t output) {
    int64_t begin = tess__tracing_begin(user);
    return done(user, move_activation(user, block, output != 0, 0, run_down), TESS__LANE_DOWN, TESS__STOW, block,
                begin);
}

static tess_status job_unstow(void *user, int32_t block, int64_t output) {
    int64_t begin = tess__tracing_begin(user);
    return done(user, move_activation(user, block, output != 0, 1, run_up), TESS__LANE_UP, TESS__UNSTOW, block, begin);
}

/* ---- instructions: handed to a lane, or put into a queue of the device ---- */

/* The ticket behind what was put there last, where that went well. */
static tess_status queued(const tess__queue *q, uint64_t *ticket, tess_status s) {
    *ticket = s ? 0 : q->posted;
    return s;
}

tess_status tess__move_gather(tess *t, int32_t g) {
    uint64_t *ticket = &t->state[g].fetched;
    if (t->queues.on)
        return queued(&t->queues.up, ticket, tess__shard_to_slot(t, g, tess__at(t, TESS__FULL, g), tess__queue_up));
    *ticket = tess__lane_post(t->up, job_gather, t, g, 0);
    return TESS_OK;
}

tess_status tess__move_reduce(tess *t, int32_t g) {
    uint64_t *ticket = &t->state[g].lowered;
    if (t->queues.on)
        return queued(&t->queues.down, ticket, tess__reduce_alone(t, g, tess__queue_down));
    *ticket = tess__lane_post(t->down, job_reduce, t, g, 0);
    return TESS_OK;
}

tess_status tess__move_sum(tess *t, int32_t g) {
    uint64_t *ticket = &t->state[g].lowered;
    if (t->queues.on)
        return queued(&t->queues.down, ticket, tess__sum_shard(t, g, t->microbatch, tess__queue_down));
    *ticket = tess__lane_post(t->down, job_sum, t, g, t->microbatch);
    return TESS_OK;
}

tess_status tess__move_optimize(tess *t, int32_t g) {
    tess__in_flight *state = &t->state[g];
    if (!t->queues.on)
        state->lowered = tess__lane_post(t->down, job_optimize, t, g, 0);
    else if (steps_on_host(t, g))
        state->stepped = tess__lane_post(t->down, job_optimize, t, g, (int64_t)t->queues.down.posted);
    else
        return queued(&t->queues.down, &state->lowered, tess__optimize(t, g, tess__queue_down));
    return TESS_OK;
}

/* A step apart from its passes: on the device, which reads page-locked memory too, unless all of it is the host's. */
tess_status tess__optimize_now(tess *t, int32_t g) {
    if (!t->queues.on || !steps_on_host(t, g))
        return tess__optimize(t, g, tess__device_kernel);
    TRY(tess__device_sync(t));
    return tess__optimize(t, g, run_down);
}

static tess_status fetch_group(tess *t, int32_t g) {
    uint64_t *ticket = &t->state[g].fetched;
    if (t->queues.on)
        return queued(&t->queues.up, ticket, fetch(t, g, tess__queue_up));
    *ticket = tess__lane_post(t->up, job_fetch, t, g, 0);
    return TESS_OK;
}

static tess_status down_wait(tess *t, int32_t g) {
    uint64_t stepped = t->state[g].stepped;
    t->state[g].stepped = 0;
    TRY(tess__move_down_wait(t, &t->state[g].lowered));
    return tess__lane_wait(t->down, stepped);
}

static tess_status stow(tess *t, const tess__instr *in) {
    int output = in->flags & TESS__OUTPUTS ? 1 : 0, back = in->op == TESS__UNSTOW;
    tess__in_flight *state = &t->state[in->index];
    uint64_t *ticket = back ? &state->unstowed[output] : &state->stowed[output];
    if (!t->queues.on) {
        *ticket = tess__lane_post(back ? t->up : t->down, back ? job_unstow : job_stow, t, in->index, output);
        return TESS_OK;
    }
    tess__queue *queue = back ? &t->queues.up : &t->queues.down;
    void *device = tess__at(t, output ? TESS__OUTPUT : TESS__SAVED, in->index);
    void *host = tess__at(t, output ? TESS__OUTPUT_HOST : TESS__SAVED_HOST, in->index);
    uint64_t bytes = activation_bytes(t, in->index, output);
    return queued(queue, ticket,
                  back ? tess__queue_copy(t, queue, device, t->setup.env.mem, host, TESS_MEM_PINNED, bytes)
                       : tess__queue_copy(t, queue, host, TESS_MEM_PINNED, device, t->setup.env.mem, bytes));
}

tess_status tess__move(tess *t, const tess__instr *in) {
    tess__in_flight *state = &t->state[in->index];
    int output = in->flags & TESS__OUTPUTS ? 1 : 0;
    switch (in->op) {
    case TESS__FETCH: return fetch_group(t, in->index);
    case TESS__FETCH_WAIT: return tess__move_up_wait(t, &state->fetched);
    case TESS__DOWN_WAIT: return down_wait(t, in->index);
    case TESS__STOW:
    case TESS__UNSTOW: return stow(t, in);
    case TESS__STOW_WAIT: return tess__move_down_wait(t, &state->stowed[output]);
    case TESS__UNSTOW_WAIT: return tess__move_up_wait(t, &state->unstowed[output]);
    default: return tess__fail(TESS_E_INTERNAL, "instruction %u is unknown", in->op);
    }
}
