/* SPDX-License-Identifier: BSD-3-Clause */
/* The engine's reading of a program: what each instruction does. */
#include "finite.h"

#include "kernels/norm.h"
#include "layout/matrices.h"
#include "optimize/parts.h"
#include "runtime/poison.h"
#include "base/status.h"

#include <stdio.h>
#include <string.h>

void tess__doing_event(tess *t, const tess__event *e) {
    char text[256];
    tess__event_text(t, e, text, sizeof text);
    tess__comms_doing(&t->comms, text);
}

/* ---- collectives ---- */

static void name_instr(tess *t, const tess__instr *in) {
    char text[256];
    tess__program_text(t->pass.program, &t->plan.model, &t->plan.layout, (int32_t)(in - t->pass.program->instrs), text,
                       sizeof text);
    size_t at = strlen(text);
    if (t->pass.kind)
        snprintf(text + at, sizeof text - at, " in %s",
                 t->pass.kind == TESS_PASS_EVAL ? "an evaluation" : "a training pass");
    tess__comms_doing(&t->comms, text);
}

/* Makes the collective that the instruction posts, from `send` to `recv`; `scratch` is the role of its scratch. */
static tess_collective planned_collective(const tess *t, const tess__instr *in, const void *send, void *recv,
                                          int scratch) {
    const tess__planned_collective *p = &t->pass.program->collectives[in->collective];
    return (tess_collective){ .op = p->op,
                              .redop = p->redop,
                              .send_dtype = p->send_dtype,
                              .recv_dtype = p->recv_dtype,
                              .send = send,
                              .recv = recv,
                              .count = p->count,
                              .scale = p->is_mean ? (double)tess__mean_scale(t) : 1.0,
                              .scratch = p->scratch < 0 ? NULL : tess__address_of(t, scratch, in->index),
                              .scratch_bytes = p->scratch < 0 ? 0 : t->pass.program->buffers[p->scratch].bytes,
                              .tag = in->tag };
}

static int scratch_of(uint8_t op) {
    return op == TESS__GATHER    ? TESS__GATHER_SCRATCH
           : op == TESS__COLLECT ? TESS__COLLECT_SCRATCH
           : op == TESS__RETURN  ? TESS__RETURN_SCRATCH
                                 : TESS__REDUCE_SCRATCH;
}

static tess_status post_planned(tess *t, const tess__instr *in, const void *send, void *recv) {
    int gathers = in->op == TESS__GATHER || in->op == TESS__COLLECT;
    tess__in_flight *f = &t->transfers.in_flight[in->index];
    name_instr(t, in);
    tess_collective c = planned_collective(t, in, send, recv, scratch_of(in->op));
    if (c.op == TESS_ALL_TO_ALL_V)
        tess__parts_exchanged(&t->step, in->index, in->op == TESS__RETURN, &c.send_parts, &c.recv_parts);
    TRY(tess__comm_post(&t->comms, t->pass.program->collectives[in->collective].which, &c,
                        gathers ? &f->gather : &f->reduce));
    *(gathers ? &f->gather_seq : &f->reduce_seq) = c.seq;
    *(gathers ? &f->gather_ns : &f->reduce_ns) = tess__tracing_begin(t);
    TRY(tess__tracing_posted(t, in, gathers ? f->gather : f->reduce));
    tess__comms_idle(&t->comms);
    return TESS_OK;
}

tess_status tess__run_planned(tess *t, const tess__instr *in, const void *send, void *recv, int scratch,
                              const char *doing) {
    const tess__planned_collective *p = &t->pass.program->collectives[in->collective];
    tess_collective c = planned_collective(t, in, send, recv, scratch);
    return p->members == 1 ? TESS_OK : tess__stream_collective(&t->streams, p->which, &c, doing);
}

/* ---- parameters ---- */

static tess_status cast_elems(tess *t, const void *src, uint32_t from, void *dst, uint32_t to, uint64_t elems) {
    const void *in[1] = { src };
    tess_kernel k = {
        .kernel = TESS_K_CAST, .in_dtype = from, .out_dtype = to, .n_in = 1, .in = in, .out = dst, .elems = elems
    };
    return tess__compute(t, &k);
}

static tess_status gather_group(tess *t, const tess__instr *in) {
    int32_t g = in->index;
    const tess__group *group = &t->plan.layout.groups[g];
    if (group->low_copy && group->param_rest.domain == TESS_DOMAIN_DEVICE && !(in->flags & TESS__ASYNC))
        return post_planned(t, in, tess__address_of(t, TESS__LOW_COPY, g), /* sent where the step wrote it */
                            tess__address_of(t, TESS__FULL, g));
    TRY(tess__work(t, in));
    if (t->plan.setup.shard_ranks == 1)
        return TESS_OK;
    return post_planned(t, in, tess__own_slot(t, g), tess__gathered(t, g));
}

static tess_status end_request(tess *t, const tess__instr *in, int which, tess_request **request, uint64_t seq,
                               int64_t posted_ns) {
    if (!*request)
        return TESS_OK;
    name_instr(t, in);
    if (t->streams.on && t->streams.comm_waits) {
        tess_request *waited = *request;
        *request = NULL;
        TRY(tess__retire(&t->streams, which, waited, seq));
        tess__comms_idle(&t->comms);
        return TESS_OK;
    }
    TRY(tess__comm_wait(&t->comms, which, *request, seq));
    tess__tracing_comm(t, in, posted_ns);
    tess__comm_free(&t->comms, *request);
    *request = NULL;
    tess__comms_idle(&t->comms);
    return TESS_OK;
}

static tess_status end_planned(tess *t, const tess__instr *in) {
    tess__in_flight *f = &t->transfers.in_flight[in->index];
    if (in->op == TESS__GATHER_WAIT || in->op == TESS__COLLECT_WAIT)
        return end_request(t, in, TESS__SHARD, &f->gather, f->gather_seq, f->gather_ns);
    return end_request(t, in, in->op == TESS__REPLICATE_WAIT ? TESS__REPLICA : TESS__SHARD_SUMS, &f->reduce,
                       f->reduce_seq, f->reduce_ns);
}

/* ---- gradients ---- */

/* The number of this microbatch among those of all ranks, as the sampler counts (docs/numbers.md, "Sums"). */
static uint32_t leaf_number(const tess *t) {
    const tess__setup *s = &t->plan.setup;
    uint32_t rank = (uint32_t)t->comms.world.rank, k = (uint32_t)t->pass.microbatch;
    return s->sync_each ? k * (uint32_t)s->nranks + rank : rank * (uint32_t)s->accum + k;
}

static tess_status cast_wire(tess *t, int32_t g) {
    const tess__group *group = &t->plan.layout.groups[g];
    int to = group->grad_shard == TESS_F32 ? TESS__WIRE : TESS__SHARD_GRAD;
    const void *in[1] = { tess__address_of(t, TESS__GRAD, g) };
    tess_rounding draws;
    const tess_rounding *rounding = tess__rounding_of(t, g, 0, 1 + leaf_number(t), &draws);
    tess_kernel k = { .kernel = TESS_K_CAST,
                      .in_dtype = group->grad_local,
                      .out_dtype = group->grad_wire,
                      .n_in = 1,
                      .in = in,
                      .out = tess__address_of(t, to, g),
                      .elems = group->flat_elems,
                      .rounding = tess_dtype_is_blocks(group->grad_wire) ? rounding : NULL };
    return tess__compute(t, &k);
}

static tess_status sum_full(tess *t, int32_t g) {
    const tess__group *group = &t->plan.layout.groups[g];
    int wire = group->grad_wire != group->grad_local;
    tess__microbatch_sum c = tess__microbatch_sum_of(t, g, 0);
    return tess__microbatch_add(&c, (uint32_t)t->pass.microbatch,
                                tess__address_of(t, wire ? TESS__WIRE : TESS__GRAD, g), group->grad_wire,
                                t->transfers.compute.kernel, &t->transfers.compute);
}

static tess_status reduce_group(tess *t, const tess__instr *in) {
    int32_t g = in->index;
    void *source;
    if (t->plan.setup.shard_ranks == 1)
        return tess__work(t, in);
    TRY(tess__gradient_to_send(t, g, &t->transfers.compute, &source));
    int blocks = t->pass.program->collectives[in->collective].op == TESS_ALL_TO_ALL;
    return post_planned(t, in, source, blocks ? tess__address_of(t, TESS__ARRIVED, g) : tess__reduce_target(t, g));
}

/* Blocks go to all replicas, and back to where they went out from. */
static tess_status replicate_blocks(tess *t, const tess__instr *in) {
    char *all = tess__replica_wire(t, in->index);
    if (in->flags & TESS__BACK)
        return post_planned(t, in, tess__replica_slot(t, in->index), all);
    return post_planned(t, in, all, tess__address_of(t, TESS__LANDED, in->index));
}

static tess_status pack_sum(tess *t, int32_t g) {
    tess__microbatch_sum c = tess__microbatch_sum_of(t, g, 0);
    void *sum;
    TRY(tess__microbatch_total(&c, (uint32_t)t->plan.setup.accum, t->transfers.compute.kernel, &t->transfers.compute,
                               &sum));
    return cast_elems(t, sum, TESS_F32, tess__address_of(t, TESS__WIRE, g), t->plan.layout.groups[g].grad_wire,
                      t->plan.layout.groups[g].flat_elems);
}

static tess_status replicate_group(tess *t, const tess__instr *in) {
    int32_t g = in->index;
    void *source = tess__reduce_target(t, g);
    if (t->pass.program->collectives[in->collective].op != TESS_ALL_REDUCE)
        return replicate_blocks(t, in);
    if (t->plan.setup.shard_ranks == 1)
        TRY(tess__gradient_to_send(t, g, &t->transfers.compute, &source));
    return post_planned(t, in, source, tess__reduce_target(t, g));
}

/* ---- norm and optimizer ---- */

static tess_status norm_group(tess *t, int32_t g) {
    const void *in[1] = { tess__grad_address(&t->memory, g) };
    tess_kernel k = { .kernel = TESS_K_SQUARE_SUM,
                      .in_dtype = t->plan.layout.groups[g].grad_shard,
                      .out_dtype = TESS_I64,
                      .n_in = 1,
                      .flags = TESS_KERNEL_ADD | (t->step.more_follow ? TESS_KERNEL_MORE : 0),
                      .in = in,
                      .out = tess__address_of(t, TESS__LIMBS, 0),
                      .elems = t->plan.layout.groups[g].shard_elems,
                      .scale = t->step.grad_scale == 1.0f ? 0 : (double)t->step.grad_scale };
    return tess__compute(t, &k);
}

static tess_status norm_reduce(tess *t, const tess__instr *in) {
    void *limbs = tess__address_of(t, TESS__LIMBS, 0);
    return tess__run_planned(t, in, limbs, limbs, TESS__LIMBS_SCRATCH, "all_reduce of the gradient norm");
}

static tess_status share_buffers(tess *t, const tess__instr *in) {
    void *all = tess__address_of(t, TESS__BUFFERS, 0);
    return tess__run_planned(t, in, all, all, TESS__CHUNK_SCRATCH, "the broadcast of buffers");
}

/* A device clips when only the optimizer's kernels need the norm: it makes their factor itself. */
int tess__device_clips(const tess *t) {
    tess_kernel k = { .kernel = TESS_K_CLIP, .in_dtype = TESS_I64, .out_dtype = TESS_F32, .n_in = 1 };
    if (!t->streams.on || t->plan.setup.norm_first || !tess__device_offers(&t->device, &k))
        return 0;
    for (int32_t g = 0; g < t->plan.layout.n_groups; g++)
        if (t->plan.layout.groups[g].trainable && tess__steps_on_host(t, g))
            return 0;
    return 1;
}

/* Copies the limbs to the host first, where the program may ask for the norm, because the factor takes their place. */
static tess_status clip_on_device(tess *t) {
    const void *in[1] = { tess__address_of(t, TESS__LIMBS, 0) };
    int64_t *limbs = tess__of_pass(t, TESS__NORM_RESULT, TESS__NORM_LIMBS * sizeof *limbs);
    t->step.norm_limbs = limbs;
    TRY(tess__norm_take(&t->streams, limbs, in[0], TESS__NORM_LIMBS * sizeof *limbs));
    tess_kernel k = { .kernel = TESS_K_CLIP,
                      .in_dtype = TESS_I64,
                      .out_dtype = TESS_F32,
                      .n_in = 1,
                      .in = in,
                      .out = tess__address_of(t, TESS__LIMBS, 0),
                      .elems = TESS__NORM_LIMBS,
                      .scale = (double)t->step.options->clip_norm };
    t->step.kernel.clip = k.out;
    return tess__compute(t, &k);
}

static tess_status norm_finish(tess *t) {
    int64_t limbs[TESS__NORM_LIMBS];
    if (t->step.options && t->pass.program->kind == TESS__PASS_CLIP && tess__device_clips(t))
        return clip_on_device(t);
    TRY(tess__streams_read(&t->streams, limbs, tess__address_of(t, TESS__LIMBS, 0), sizeof limbs));
    t->step.norm = tess__norm_result(limbs);
    const tess_optimizer_options *o = t->step.options;
    t->step.has_norm = t->pass.program->kind == TESS__PASS_CLIP && o;
    if (!t->step.has_norm)
        return TESS_OK;
    if (o->clip_norm > 0)
        t->step.kernel.grad_scale = t->step.grad_scale * tess__clip_coefficient(o->clip_norm, t->step.norm);
    return tess__judge_norm(t);
}

/* ---- whole matrices ---- */

static int piece_of(const tess__instr *in) {
    return in->flags >> TESS__PIECE_SHIFT;
}

static tess_status collect(tess *t, const tess__instr *in) {
    float *all = tess__address_of(t, TESS__UPDATE + piece_of(in), in->index);
    if (tess__matrices_by_parts(&t->plan.setup))
        return post_planned(t, in, tess__address_of(t, TESS__PARTS + piece_of(in), in->index), all);
    return post_planned(t, in, all + (uint64_t)t->comms.shard_rank * t->plan.layout.groups[in->index].shard_elems, all);
}

/* The results take the place of the gradient, which no one needs any more, and states their own: at once, or from the
 * parts that they came in. */
static tess_status give_back(tess *t, const tess__instr *in) {
    int piece = piece_of(in);
    void *to = !piece                                    ? tess__grad_address(&t->memory, in->index)
               : tess__matrices_by_parts(&t->plan.setup) ? tess__address_of(t, TESS__PARTS + piece, in->index)
                                                         : tess__state_address(&t->memory, piece - 1, in->index);
    return post_planned(t, in, tess__address_of(t, TESS__UPDATE + piece, in->index), to);
}

static tess_status given_back(tess *t, const tess__instr *in) {
    int piece = piece_of(in);
    TRY(end_planned(t, in));
    if (piece && tess__matrices_by_parts(&t->plan.setup))
        tess__parts_unpack(&t->step, in->index, tess__address_of(t, TESS__PARTS + piece, in->index),
                           tess__state_address(&t->memory, piece - 1, in->index));
    return TESS_OK;
}

static tess_status matrices_instr(tess *t, const tess__instr *in) {
    const tess__plugin *plugin = t->selection.plugins[TESS_KIND_OPTIMIZER];
    tess__pool *pool = t->transfers.host_pool;
    switch (in->op) {
    case TESS__UPDATE_MAKE:
        if (t->proof)
            TRY(t->hooks->digest_gradient(t, in->index, &t->transfers.compute));
        return tess__update_make(&t->step, &t->memory, plugin, in->index, pool);
    case TESS__COLLECT: return collect(t, in);
    case TESS__MATRIX: return tess__matrices_step(&t->step, &t->memory, plugin, in->index, pool);
    case TESS__RETURN: return give_back(t, in);
    case TESS__RETURN_WAIT: return given_back(t, in);
    case TESS__UPDATE_APPLY: return tess__step_pieces(&t->step, &t->memory, plugin, in->index, TESS_PHASE_AFTER, pool);
    default: return end_planned(t, in);
    }
}

/* ---- the loop ---- */

static tess_status copy_input(tess *t) {
    uint64_t bytes = t->plan.setup.input_bytes;
    if (!bytes)
        return TESS_OK;
    if (t->streams.late) { /* late: the program may change the batch before it is copied */
        void *batch = tess__of_pass(t, TESS__BATCH, bytes);
        memcpy(batch, t->pass.run->batch, bytes);
        return tess__device_copy(&t->device, tess__address_of(t, TESS__INPUT, 0), t->device.mem, batch, TESS_MEM_PINNED,
                                 bytes, NULL);
    }
    TRY(tess__device_copy(&t->device, tess__address_of(t, TESS__INPUT, 0), t->device.mem, t->pass.run->batch,
                          TESS_MEM_HOST, bytes, NULL));
    return tess__batch_mark(&t->streams);
}

static tess_status copy_result(tess *t, int32_t block) {
    uint64_t bytes = t->plan.model.blocks[block].options.output_bytes;
    if (!(t->pass.run->result || t->streams.recording) || !bytes) /* a repeated pass may want its result */
        return TESS_OK;
    return tess__result_take(&t->streams, t->pass.run->result, tess__of_pass(t, TESS__RESULT, bytes),
                             tess__address_of(t, TESS__OUTPUT, block), bytes);
}

/* Tells whether the next work on the compute stream is of the same kind, so that a device may do both at once. Under
 * a timeline each is measured by itself, and strictness fills memory that is released between them. */
static int more_follow(const tess *t, const tess__instr *in) {
    const tess__instr *end = t->pass.program->instrs + t->pass.program->n_instrs;
    if (t->recorder.timeline.trace || t->memory.strict || in->flags & TESS__ASYNC)
        return 0;
    uint8_t op = in->op;
    for (++in; in < end && (in->op == TESS__FREE || (in->op == TESS__ALLOC && !(in->flags & TESS__ZERO))); in++)
        ;
    if (in == end || in->op != op || in->flags & TESS__ASYNC)
        return 0;
    return op == TESS__NORM_GROUP || tess__steps_on_device(t, in->index);
}

static tess_status run_instr(tess *t, const tess__instr *in) {
    switch (in->op) {
    case TESS__ALLOC: return tess__place_buffer(&t->memory, t->pass.program, in);
    case TESS__FREE: return tess__release_buffer(&t->memory, t->pass.program, in);
    case TESS__INPUT_COPY: return copy_input(t);
    case TESS__RESULT_COPY: return copy_result(t, in->index);
    case TESS__GATHER: return gather_group(t, in);
    case TESS__GATHER_WAIT: TRY(tess__work_wait(t, in)); return end_planned(t, in);
    case TESS__CAST_WIRE: return cast_wire(t, in->index);
    case TESS__SUM_FULL: return sum_full(t, in->index);
    case TESS__REDUCE: return reduce_group(t, in);
    case TESS__REDUCE_WAIT: TRY(tess__work_wait(t, in)); return end_planned(t, in);
    case TESS__REPLICATE: return replicate_group(t, in);
    case TESS__REPLICATE_WAIT: return end_planned(t, in);
    case TESS__WIDEN: return tess__widen(t, in->index, &t->transfers.compute);
    case TESS__SUM_ARRIVED: return tess__sum_arrived(t, in->index, &t->transfers.compute);
    case TESS__PACK_SUM: return pack_sum(t, in->index);
    case TESS__SUM_LANDED: return tess__sum_landed(t, in->index, &t->transfers.compute);
    case TESS__WIDEN_SUM: return tess__widen_sum(t, in->index, &t->transfers.compute);
    case TESS__OPTIMIZE: return t->step.skips ? TESS_OK : tess__work(t, in);
    case TESS__SUM_SHARD:
    case TESS__PREFETCH:
    case TESS__OFFLOAD:
    case TESS__RELOAD: return tess__work(t, in);
    case TESS__PREFETCH_WAIT:
    case TESS__HOST_WAIT:
    case TESS__OFFLOAD_WAIT:
    case TESS__RELOAD_WAIT: return tess__work_wait(t, in);
    case TESS__NORM_GROUP: return norm_group(t, in->index);
    case TESS__NORM_REDUCE: return norm_reduce(t, in);
    case TESS__SHARE_BUFFERS: return share_buffers(t, in);
    case TESS__NORM_FINISH: return norm_finish(t);
    case TESS__UPDATE_MAKE:
    case TESS__COLLECT:
    case TESS__COLLECT_WAIT:
    case TESS__MATRIX:
    case TESS__RETURN:
    case TESS__RETURN_WAIT:
    case TESS__UPDATE_APPLY: return t->step.skips ? TESS_OK : matrices_instr(t, in);
    case TESS__ENTER:
    case TESS__LEAVE: return TESS_OK; /* the caller stops here */
    default:
        if (in->op >= TESS__STATES_FETCH && in->op <= TESS__GRAD_STORE_WAIT)
            return tess__states_instr(t, in);
        return tess__fail(TESS_E_INTERNAL, "instruction %u is unknown", in->op);
    }
}

static int stops_at(uint8_t op, int how_far) {
    if (how_far == TESS__TO_WAIT &&
        (op == TESS__GATHER_WAIT || op == TESS__REDUCE_WAIT || op == TESS__REPLICATE_WAIT || op == TESS__NORM_REDUCE ||
         op == TESS__PREFETCH_WAIT || op == TESS__HOST_WAIT || op == TESS__COLLECT_WAIT || op == TESS__RETURN_WAIT))
        return 1;
    int is_audit = op == TESS__AUDIT || op == TESS__AUDIT_SEND;
    return how_far != TESS__TO_END && (op == TESS__ENTER || op == TESS__LEAVE || is_audit);
}

tess_status tess__execute(tess *t, int32_t *pc, int how_far) {
    for (;; ++*pc) {
        while (t->recorder.next_point < t->pass.program->n_points &&
               t->pass.program->points[t->recorder.next_point].at <= *pc)
            tess__ledger_reach(t, &t->pass.program->points[t->recorder.next_point++]);
        if (*pc >= t->pass.program->n_instrs)
            return TESS_OK;
        const tess__instr *in = &t->pass.program->instrs[*pc];
        if (stops_at(in->op, how_far))
            return TESS_OK;
        tess__mark begin = tess__tracing_mark(t, in);
        t->step.more_follow = (in->op == TESS__NORM_GROUP || in->op == TESS__OPTIMIZE) && more_follow(t, in);
        tess__range_instr(t, in);
        tess_status s = run_instr(t, in);
        tess__range_end(t);
        TRY(s);
        if (t->proof)
            TRY(t->hooks->digest_instr(t, in));
        tess__tracing_instr(t, in, begin);
    }
}

tess_status tess__run_program(tess *t, tess__program *p) {
    int32_t pc = 0;
    t->pass.program = p;
    t->recorder.next_point = 0;
    return tess__execute(t, &pc, TESS__TO_END);
}

tess_status tess__free_all(tess *t, const tess__program *p) {
    for (int32_t i = 0; i < p->n_buffers; i++) {
        tess__instr in = { .op = TESS__FREE, .index = p->buffers[i].index, .buffer = i };
        TRY(tess__release_buffer(&t->memory, p, &in));
    }
    return TESS_OK;
}
