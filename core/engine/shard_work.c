/* SPDX-License-Identifier: BSD-3-Clause */
/* The arithmetic on a group's shard: casts, sums, the optimizer step. An executor's kernels run it. */
#include "state.h"

#include "base/status.h"

/* Where a gather reads, and in which dtype: the shard's low-precision copy, or the masters, which may have to come
 * first. */
static tess_status gather_source(tess *t, int32_t g, const void **out, uint32_t *dtype) {
    const tess__group *group = &t->plan.layout.groups[g];
    *dtype = group->low_copy ? group->compute : group->master;
    *out = group->low_copy ? tess__address_of(t, TESS__LOW_COPY, g) : tess__master_address(&t->memory, g);
    return tess__param_fetch(t, g);
}

const tess_rounding *tess__rounding_of(const tess *t, int32_t g, uint64_t first, uint32_t draw, tess_rounding *room) {
    const tess__group *group = &t->plan.layout.groups[g];
    *room = (tess_rounding){ .struct_size = sizeof *room,
                             .n_runs = (uint32_t)group->n_params,
                             .runs = t->transfers.runs ? t->transfers.runs + group->first_param : NULL,
                             .first = first,
                             .step = (uint32_t)t->step.steps_done,
                             .draw = draw };
    return group->draws ? room : NULL;
}

/* Casts the shard to what is gathered. */
static tess_status cast_shard(tess *t, int32_t g, const void *from, uint32_t dtype, void *to, tess__executor *on) {
    const tess__group *group = &t->plan.layout.groups[g];
    const void *in[1] = { from };
    int packs = tess_dtype_is_blocks(group->gather) && dtype == group->master;
    tess_rounding draws;
    const tess_rounding *rounding =
        tess__rounding_of(t, g, (uint64_t)t->comms.shard_rank * group->shard_elems, 0, &draws);
    tess_kernel k = { .kernel = TESS_K_CAST,
                      .rounding = packs ? rounding : NULL,
                      .in_dtype = dtype,
                      .out_dtype = group->gather,
                      .n_in = 1,
                      .in = in,
                      .out = to,
                      .elems = group->shard_elems };
    return on->kernel(on, &k);
}

/* Casts the masters as every gather does, and the optimizer's kernels too. */
tess_status tess__low_copy_make(tess *t, int32_t g, tess__executor *on) {
    return cast_shard(t, g, tess__address_of(t, TESS__MASTER, g), t->plan.layout.groups[g].master,
                      tess__address_of(t, TESS__LOW_COPY, g), on);
}

void *tess__gathered(const tess *t, int32_t g) {
    return tess__address_of(t, tess_dtype_is_blocks(t->plan.layout.groups[g].gather) ? TESS__PACKED : TESS__FULL, g);
}

void *tess__own_slot(const tess *t, int32_t g) {
    const tess__group *group = &t->plan.layout.groups[g];
    return (char *)tess__gathered(t, g) +
           (uint64_t)t->comms.shard_rank * tess_dtype_span(group->gather, group->shard_elems);
}

tess_status tess__widen(tess *t, int32_t g, tess__executor *on) {
    const tess__group *group = &t->plan.layout.groups[g];
    const void *in[1] = { tess__address_of(t, TESS__PACKED, g) };
    tess_kernel k = { .kernel = TESS_K_CAST,
                      .in_dtype = group->gather,
                      .out_dtype = group->compute,
                      .n_in = 1,
                      .in = in,
                      .out = tess__address_of(t, TESS__FULL, g),
                      .elems = group->flat_elems };
    return on->kernel(on, &k);
}

tess_status tess__shard_to_slot(tess *t, int32_t g, tess__executor *on) {
    uint32_t dtype = t->plan.layout.groups[g].gather;
    const void *from = tess__address_of(t, TESS__FETCHED, g);
    if (!t->memory.booked[TESS__FETCHED][g]) /* else it was cast on its way to the device */
        TRY(gather_source(t, g, &from, &dtype));
    return cast_shard(t, g, from, dtype, tess__own_slot(t, g), on);
}

tess_status tess__shard_fetch(tess *t, int32_t g, tess__executor *on) {
    uint32_t dtype;
    const void *from;
    TRY(gather_source(t, g, &from, &dtype));
    return cast_shard(t, g, from, dtype, tess__address_of(t, TESS__FETCHED, g), on);
}

static int sums_at_end(const tess *t) {
    return t->plan.setup.accum > 1 && !t->plan.setup.sync_each;
}

float tess__mean_scale(const tess *t) {
    return (float)(1.0 / ((double)t->plan.setup.nranks * t->plan.setup.accum));
}

/* If a sum of shards follows, the division waits for its end. */
static double reduce_scale(const tess *t) {
    return t->plan.setup.accum > 1 && t->plan.setup.sync_each ? 1.0 : (double)tess__mean_scale(t);
}

/* The flag of sums that go through the blocks in which they would travel, on however many ranks. */
static uint32_t through_blocks(const tess *t, int32_t g) {
    uint32_t wire = t->plan.layout.groups[g].grad_wire;
    return wire == TESS_Q8 ? TESS_KERNEL_Q8 : wire == TESS_Q8E4M3 ? TESS_KERNEL_Q8E4M3 : 0;
}

tess__microbatch_sum tess__microbatch_sum_of(const tess *t, int32_t g, int shards) {
    tess__microbatch_sum c = { .n_levels = tess__sum_levels(&t->plan.setup),
                               .in_order = !t->plan.setup.deterministic,
                               .flags = through_blocks(t, g) };
    int staged = shards && t->plan.layout.groups[g].grad_rest.stored;
    for (int32_t l = 0; l < c.n_levels; l++)
        c.level[l] = shards && l == 0 ? tess__grad_address(&t->memory, g)
                                      : tess__address_of(t, (staged ? TESS__STAGED_GRAD0 : TESS__SUM0) + l, g);
    c.elems = shards ? t->plan.layout.groups[g].shard_elems : t->plan.layout.groups[g].flat_elems;
    return c;
}

/* Finds the gradient to send: the sum of microbatches, the leaf rounded to the wire's dtype, or the leaf. */
tess_status tess__gradient_to_send(tess *t, int32_t g, tess__executor *on, void **source) {
    const tess__group *group = &t->plan.layout.groups[g];
    int blocks = tess_dtype_is_blocks(group->grad_wire) && t->plan.setup.nranks > 1; /* what they hold is packed */
    if (sums_at_end(t) && !blocks) {
        tess__microbatch_sum c = tess__microbatch_sum_of(t, g, 0);
        return tess__microbatch_total(&c, (uint32_t)t->plan.setup.accum, on->kernel, on, source);
    }
    *source = group->grad_in_place
                  ? tess__address_of(t, TESS__SHARD_GRAD, g)
                  : tess__address_of(t, group->grad_wire != group->grad_local ? TESS__WIRE : TESS__GRAD, g);
    return TESS_OK;
}

void *tess__reduce_target(const tess *t, int32_t g) {
    return t->memory.booked[TESS__PART][g] ? tess__address_of(t, TESS__PART, g) : tess__grad_address(&t->memory, g);
}

tess_status tess__reduce_single_rank(tess *t, int32_t g, tess__executor *on) {
    void *source;
    TRY(tess__gradient_to_send(t, g, on, &source));
    const void *in[1] = { source };
    tess_kernel k = { .kernel = TESS_K_TREE_SUM,
                      .in_dtype = sums_at_end(t) ? TESS_F32 : t->plan.layout.groups[g].grad_wire,
                      .out_dtype = TESS_F32,
                      .n_in = 1,
                      .in = in,
                      .out = tess__reduce_target(t, g),
                      .elems = t->plan.layout.groups[g].shard_elems,
                      .scale = reduce_scale(t) };
    return on->kernel(on, &k);
}

/* The sum of as many blocks of each of `ranks`, one behind the other. It goes out in f32, scaled; or in blocks. */
static tess_status sum_blocks(tess *t, int32_t g, const char *parts, int32_t ranks, uint64_t elems, int packs,
                              void *out, tess__executor *on) {
    uint32_t dtype = t->plan.layout.groups[g].grad_wire;
    for (int32_t r = 0; r < ranks; r++)
        t->transfers.arrived[r] = parts + (uint64_t)r * tess_dtype_span(dtype, elems);
    tess_kernel k = { .kernel = TESS_K_TREE_SUM,
                      .in_dtype = dtype,
                      .out_dtype = packs ? dtype : TESS_F32,
                      .n_in = (uint32_t)ranks,
                      .flags = through_blocks(t, g),
                      .in = t->transfers.arrived,
                      .out = out,
                      .elems = elems,
                      .scale = packs ? 1.0 : reduce_scale(t) };
    return on->kernel(on, &k);
}

tess_status tess__sum_arrived(tess *t, int32_t g, tess__executor *on) {
    const tess__setup *s = &t->plan.setup;
    void *out = s->replicas > 1 ? tess__address_of(t, TESS__SHARD_WIRE, g) : tess__reduce_target(t, g);
    return sum_blocks(t, g, tess__address_of(t, TESS__ARRIVED, g), s->shard_ranks, t->plan.layout.groups[g].shard_elems,
                      s->replicas > 1, out, on);
}

void *tess__replica_wire(const tess *t, int32_t g) {
    return tess__address_of(t, t->plan.setup.shard_ranks > 1 ? TESS__SHARD_WIRE : TESS__WIRE, g);
}

void *tess__replica_slot(const tess *t, int32_t g) {
    const tess__group *group = &t->plan.layout.groups[g];
    uint64_t part = tess_dtype_span(group->grad_wire, tess__replica_elems(group, t->plan.setup.replicas));
    return (char *)tess__replica_wire(t, g) + (uint64_t)t->comms.replica_rank * part;
}

tess_status tess__sum_landed(tess *t, int32_t g, tess__executor *on) {
    int32_t replicas = t->plan.setup.replicas;
    return sum_blocks(t, g, tess__address_of(t, TESS__LANDED, g), replicas,
                      tess__replica_elems(&t->plan.layout.groups[g], replicas), 1, tess__replica_slot(t, g), on);
}

tess_status tess__widen_sum(tess *t, int32_t g, tess__executor *on) {
    return sum_blocks(t, g, tess__replica_wire(t, g), 1, t->plan.layout.groups[g].shard_elems, 0,
                      tess__reduce_target(t, g), on);
}

/* Copies when there is nothing to add: a collective cannot end where this gradient rests. */
static tess_status copy_part(tess *t, int32_t g, tess__executor *on) {
    const void *in[1] = { tess__address_of(t, TESS__PART, g) };
    tess_kernel k = { .kernel = TESS_K_CAST,
                      .in_dtype = TESS_F32,
                      .out_dtype = TESS_F32,
                      .n_in = 1,
                      .in = in,
                      .out = tess__grad_address(&t->memory, g),
                      .elems = t->plan.layout.groups[g].shard_elems };
    return on->kernel(on, &k);
}

tess_status tess__sum_shard(tess *t, int32_t g, int32_t microbatch, tess__executor *on) {
    if (t->plan.setup.accum == 1 || sums_at_end(t))
        return copy_part(t, g, on);
    tess__microbatch_sum c = tess__microbatch_sum_of(t, g, 1);
    TRY(tess__microbatch_add(&c, (uint32_t)microbatch, tess__address_of(t, TESS__PART, g), TESS_F32, on->kernel, on));
    if (microbatch < t->plan.setup.accum - 1)
        return TESS_OK;
    void *sum;
    TRY(tess__microbatch_total(&c, (uint32_t)t->plan.setup.accum, on->kernel, on, &sum));
    const void *in[1] = { sum };
    tess_kernel k = { .kernel = TESS_K_SCALE,
                      .in_dtype = TESS_F32,
                      .out_dtype = TESS_F32,
                      .n_in = 1,
                      .in = in,
                      .out = tess__grad_address(&t->memory, g),
                      .elems = c.elems,
                      .scale = (double)tess__mean_scale(t) };
    return on->kernel(on, &k);
}

/* Only the engine's thread, which feeds the compute stream, knows whether more steps follow at once. */
static uint32_t optimize_flags(const tess *t, const tess__executor *on) {
    return on == &t->transfers.compute && t->step.more_follow ? TESS_KERNEL_MORE : 0;
}

int tess__rests_on_host(const tess *t, int32_t g) {
    const tess__group *group = &t->plan.layout.groups[g];
    return group->param_rest.domain == TESS_DOMAIN_HOST && group->grad_rest.domain == TESS_DOMAIN_HOST &&
           (group->step.n_states == 0 || group->state_rest.domain == TESS_DOMAIN_HOST);
}

int tess__plugin_steps_on_device(const tess *t, int32_t g) {
    const tess_grain *step = &t->plan.layout.groups[g].step;
    return step->grain && !step->kernel && t->streams.on && !tess__rests_on_host(t, g);
}

static tess_status plugin_step(tess *t, int32_t g, tess__executor *on) {
    const tess__plugin *plugin = t->selection.plugins[TESS_KIND_OPTIMIZER];
    if (!tess__plugin_steps_on_device(t, g))
        return tess__step_pieces(&t->step, &t->memory, plugin, g, TESS_PHASE_WHOLE,
                                 on->pool ? on->pool : t->transfers.host_pool);
    TRY(tess__step_on_device(&t->step, &t->memory, plugin, t->transfers.steps, g, &t->transfers.step_stream));
    return t->plan.layout.groups[g].low_copy ? tess__low_copy_make(t, g, on) : TESS_OK;
}

tess_status tess__optimize(tess *t, int32_t g, tess__executor *on) {
    const tess__group *group = &t->plan.layout.groups[g];
    const void *in[1] = { tess__grad_address(&t->memory, g) };
    tess_optimizer o = t->step.kernel;
    tess__segments_of(&t->step, &t->plan.layout, g, &o);
    if (!o.n_segments)
        return TESS_OK;
    if (!group->step.kernel)
        return plugin_step(t, g, on);
    if (t->graphs.recording)
        o.prepared =
            (char *)tess__address_of(t, TESS__NUMBERS, 0) + (size_t)t->step.first_segment[g] * TESS_PREPARED_BYTES;
    int writes_copy = group->low_copy && group->compute == TESS_BF16; /* kernels of steps write no other dtype */
    tess_kernel k = { .kernel = TESS_K_OPTIMIZER,
                      .in_dtype = group->grad_shard,
                      .out_dtype = group->master,
                      .n_in = 1,
                      .flags = optimize_flags(t, on),
                      .in = in,
                      .out = tess__master_address(&t->memory, g),
                      .out2 = writes_copy ? tess__address_of(t, TESS__LOW_COPY, g) : NULL,
                      .elems = group->shard_elems,
                      .optimizer = &o };
    for (int32_t i = 0; i < (int32_t)group->step.n_states; i++)
        k.state[i] = tess__state_address(&t->memory, i, g);
    TRY(on->kernel(on, &k));
    return group->low_copy && !writes_copy ? tess__low_copy_make(t, g, on) : TESS_OK;
}

uint32_t tess__rest_mem(const tess *t, const tess__rest *rest) {
    if (rest->stored)
        return TESS__MEM_STORE;
    if (rest->domain == TESS_DOMAIN_DEVICE)
        return t->plan.setup.env.mem;
    return t->memory.arenas[TESS_DOMAIN_HOST][rest->pageable ? TESS__PAGEABLE : TESS__RESIDENT].memory.mem;
}

tess_status tess__copy_now(tess *t, void *dst, uint32_t dst_mem, const void *src, uint32_t src_mem, uint64_t bytes) {
    if (src_mem == TESS__MEM_STORE)
        return tess__offload_run(&t->memory.store, TESS_STORE_READ, src, dst, bytes);
    if (dst_mem == TESS__MEM_STORE)
        return tess__offload_run(&t->memory.store, TESS_STORE_WRITE, dst, (void *)(uintptr_t)src, bytes);
    TRY(tess__device_copy(&t->device, dst, dst_mem, src, src_mem, bytes, NULL));
    return tess__streams_sync(&t->streams);
}
