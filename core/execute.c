/* The engine's reading of a program: what each instruction does. */
#include "engine.h"

#include "norm.h"
#include "poison.h"
#include "status.h"
#include "try.h"

#include <stdio.h>
#include <string.h>

static tess_status device_failed(const tess *t, tess_status s, const tess_error *e) {
    return tess__plugin_failed(s, TESS_KIND_DEVICE, t->plugins[TESS_KIND_DEVICE], e);
}

/* ---- memory ---- */

void tess__book(tess *t, const tess__buffer *b, const tess__instr *in) {
    uint64_t bytes = tess__measure(t, in, b->role, b->index);
    t->booked[b->role][b->index] = 1;
    t->taken[b->role][b->index] = bytes;
    tess__ledger_add(&t->ledger, b->domain, b->category, b->unit, bytes);
}

void tess__unbook(tess *t, const tess__buffer *b) {
    t->booked[b->role][b->index] = 0;
    tess__ledger_take(&t->ledger, b->domain, b->category, b->unit, t->taken[b->role][b->index]);
}

/* A departing pass finds room as it goes; what the arena cannot hold is obtained on top. */
static tess_status find_room(tess *t, tess__buffer *b) {
    tess__arena *a = &t->arenas[b->domain][TESS__STEP];
    int host = b->domain == TESS_DOMAIN_HOST; /* seldom, and little: always on top */
    if (!host && tess__heap_get(&t->heap, b->bytes, t->setup.align, &b->offset) == TESS_OK) {
        t->where[b->role][b->index] = (char *)a->memory.ptr + b->offset;
        return TESS_OK;
    }
    tess_error e = { .struct_size = sizeof e };
    tess_buffer more = { .struct_size = sizeof more };
    tess_alloc_request r = { .struct_size = sizeof r,
                             .mem = !host          ? t->setup.env.mem
                                    : t->queues.on ? TESS_MEM_PINNED
                                                   : TESS_MEM_HOST,
                             .domain = b->domain,
                             .category = b->category,
                             .numa_node = host ? t->numa_node : -1,
                             .bytes = tess__round_up(b->bytes, t->setup.granularity),
                             .align = t->setup.align };
    tess_status s = host ? TESS_OK : tess__device_has_room(t, r.bytes, &e);
    if (!s)
        s = t->dev->mem_alloc(t->device, &r, &more, &e);
    if (s)
        return tess__fail(s,
                          "a pass that departs from the compiled order needs %llu bytes beside the plan: device %s: %s",
                          (unsigned long long)r.bytes, t->plugins[TESS_KIND_DEVICE]->name,
                          tess__plugin_said(TESS_KIND_DEVICE, t->plugins[TESS_KIND_DEVICE], &e));
    if (t->n_overflow == t->cap_overflow) {
        t->dev->mem_free(t->device, &more);
        return tess__fail(TESS_E_INTERNAL, "more than %d buffers beside the step arena", t->cap_overflow);
    }
    t->overflow[t->n_overflow++] = (tess__overflow){ more, b->domain };
    t->obtained[b->domain] += more.bytes;
    if (t->obtained[b->domain] > t->obtained_peak[b->domain])
        t->obtained_peak[b->domain] = t->obtained[b->domain];
    b->offset = UINT64_MAX;
    t->where[b->role][b->index] = more.ptr;
    return TESS_OK;
}

/* Memory obtained on top goes as soon as its buffer does: a pass may be long. */
static void give_room(tess *t, const tess__buffer *b) {
    if (b->offset != UINT64_MAX) {
        tess__heap_give(&t->heap, b->offset);
        return;
    }
    for (int32_t i = 0; i < t->n_overflow; i++)
        if (t->overflow[i].memory.ptr == tess__at(t, b->role, b->index)) {
            t->obtained[b->domain] -= t->overflow[i].memory.bytes;
            if (tess__host_reads(t, b->domain))
                tess__unpoison(t->overflow[i].memory.ptr, t->overflow[i].memory.bytes);
            t->dev->mem_free(t->device, &t->overflow[i].memory);
            t->overflow[i] = t->overflow[--t->n_overflow];
            return;
        }
}

static tess_status fill(tess *t, const tess__buffer *b, uint8_t byte) {
    tess_error e = { .struct_size = sizeof e };
    void *at = tess__at(t, b->role, b->index);
    if (b->domain == TESS_DOMAIN_HOST) {
        TRY(tess__device_sync(t));
        memset(at, byte, b->bytes);
        return TESS_OK;
    }
    tess_status s = t->dev->fill(t->device, at, byte, b->bytes, &t->compute, &e);
    return s ? device_failed(t, s, &e) : TESS_OK;
}

static tess_status book(tess *t, const tess__instr *in) {
    tess__buffer *b = &t->program->buffers[in->buffer];
    if (b->arena == TESS__STEP) {
        if (t->departing)
            TRY(find_room(t, b));
        else
            t->where[b->role][b->index] = (char *)t->arenas[b->domain][TESS__STEP].memory.ptr + b->offset;
    } else if (t->booked[b->role][b->index]) {
        return TESS_OK;
    }
    tess__book(t, b, in);
    TRY(tess__measure_place(t, b));
    if (tess__host_reads(t, b->domain))
        tess__unpoison(tess__at(t, b->role, b->index), b->bytes);
    return in->flags & TESS__ZERO ? fill(t, b, 0) : TESS_OK;
}

static tess_status unbook(tess *t, const tess__instr *in) {
    const tess__buffer *b = &t->program->buffers[in->buffer];
    if (!t->booked[b->role][b->index])
        return TESS_OK;
    tess__unbook(t, b);
    if (b->arena != TESS__STEP)
        return TESS_OK;
    if (t->strict) /* all bits set is a NaN in every float format */
        TRY(fill(t, b, 0xff));
    if (tess__host_reads(t, b->domain))
        tess__poison(tess__at(t, b->role, b->index), b->bytes);
    if (t->departing)
        give_room(t, b);
    return TESS_OK;
}

/* ---- collectives ---- */

static int32_t world_rank(const tess *t, int which, int32_t rank) {
    if (rank < 0 || which == TESS__WORLD || t->comms[which] == t->comms[TESS__WORLD])
        return rank;
    return which == TESS__SHARD ? t->replica_rank * t->setup.shard_ranks + rank
                                : rank * t->setup.shard_ranks + t->shard_rank;
}

static const char *set_doing(tess *t, const char *text) {
    t->doing_now ^= 1;
    snprintf(t->doing[t->doing_now], sizeof t->doing[0], "%s", text);
    if (t->control)
        tess__control_doing(t->control, t->doing[t->doing_now]);
    return t->doing[t->doing_now];
}

void tess__doing_event(tess *t, const tess__event *e) {
    static const char *const names[] = { "",         "forward",       "forward",      "backward",
                                         "backward", "recomputation", "recomputation" };
    char text[256];
    snprintf(text, sizeof text, "%s of \"%s\"", names[e->type], t->model.scopes[e->scope].name);
    set_doing(t, text);
}

static void clear_doing(tess *t) {
    t->doing_now ^= 1;
    t->doing[t->doing_now][0] = 0;
    if (t->control)
        tess__control_doing(t->control, NULL);
}

/* Ranks disagree: each says what it is about to do, so that the message can name both sides. */
static tess_status mismatch(tess *t, int which, const tess_error *e) {
    char key[64], theirs[256];
    tess_error cause = { .struct_size = sizeof cause };
    int32_t peer = world_rank(t, which, e->rank);
    if (!t->control || peer < 0)
        return tess__fail(TESS_E_MISMATCH, "in %s: %s", t->doing[t->doing_now], e->message);
    snprintf(key, sizeof key, "mismatch/%d", t->world.rank);
    tess__control_set(t->control, key, t->doing[t->doing_now], sizeof t->doing[0]);
    snprintf(key, sizeof key, "mismatch/%d", peer);
    uint64_t bytes = sizeof theirs;
    if (tess__control_get(t->control, key, theirs, &bytes, INT64_C(1000000000))) {
        int known = tess__control_cause(t->control, &cause) != TESS_OK; /* the other side was quicker */
        return tess__fail(TESS_E_MISMATCH, "%s", known ? cause.message : e->message);
    }
    theirs[sizeof theirs - 1] = 0;
    return tess__fail(TESS_E_MISMATCH, "the ranks call different things: rank %d is in %s, rank %d in %s",
                      t->world.rank, t->doing[t->doing_now], peer, theirs);
}

static tess_status comm_failed(tess *t, int which, tess_status s, const tess_error *e) {
    if (s == TESS_E_MISMATCH)
        return mismatch(t, which, e);
    int32_t peer = world_rank(t, which, e->rank);
    if (peer >= 0)
        return tess__fail(s, "%s failed at rank %d: %s", t->doing[t->doing_now], peer, e->message);
    return tess__fail(s, "%s failed: %s", t->doing[t->doing_now], e->message);
}

/* A rank that ended in order will never come: say so instead of waiting for the timeout. */
static tess_status check_departed(tess *t) {
    for (int32_t r = 0; t->control && r < t->world.nranks; r++)
        if (r != t->world.rank && tess__control_departed(t->control, r))
            return tess__fail(TESS_E_PEER, "rank %d has ended while rank %d waits for it in %s", r, t->world.rank,
                              t->doing[t->doing_now]);
    return TESS_OK;
}

tess_status tess__comm_wait(tess *t, int which, tess_request *request, uint64_t seq) {
    const int64_t slice = INT64_C(100000000), second = 10 * slice;
    tess_error e = { .struct_size = sizeof e, .rank = -1 };
    for (int64_t waited = 0;; waited += slice) {
        tess_status s = t->comm->wait(request, slice, &e);
        if (s == TESS_OK)
            return TESS_OK;
        if (s != TESS_E_TIMEOUT)
            return comm_failed(t, which, s, &e);
        TRY(check_departed(t));
        if ((waited + slice) % second == 0)
            TRY(tess__waiting_check(t, seq, t->doing[t->doing_now]));
        if (waited > t->timeout_ns)
            return tess__fail(TESS_E_TIMEOUT, "%s took more than %lld s (TESSERA_TIMEOUT)", t->doing[t->doing_now],
                              (long long)(t->timeout_ns / 1000000000));
    }
}

static tess_status post(tess *t, int which, tess_collective *c, tess_request **request) {
    tess_error e = { .struct_size = sizeof e, .rank = -1 };
    c->struct_size = sizeof *c;
    c->send_mem = c->recv_mem = t->setup.env.mem;
    c->after = t->compute;
    c->seq = t->n_collectives++;
    t->recent_tags[c->seq % TESS__RECENT_TAGS] = c->tag;
    tess_status s = t->comm->post(t->comms[which], c, 1, request, &e);
    return s ? comm_failed(t, which, s, &e) : TESS_OK;
}

tess_status tess__comm_run(tess *t, int which, const tess_collective *c, const char *doing) {
    tess_collective own = *c;
    set_doing(t, doing);
    TRY(post(t, which, &own, &t->loose));
    TRY(tess__comm_wait(t, which, t->loose, own.seq));
    t->comm->request_free(t->loose);
    t->loose = NULL;
    clear_doing(t);
    return TESS_OK;
}

static void name_instr(tess *t, const tess__instr *in) {
    char text[256];
    tess__program_text(t->program, &t->model, &t->layout, (int32_t)(in - t->program->instrs), text, sizeof text);
    set_doing(t, text);
}

/* ---- parameters ---- */

tess_status tess__device_kernel(void *user, tess_kernel *k) {
    tess *t = user;
    tess_error e = { .struct_size = sizeof e };
    k->struct_size = sizeof *k;
    tess_status s = t->dev->kernel(t->device, k, &t->compute, &e);
    return s ? device_failed(t, s, &e) : TESS_OK;
}

static tess_status cast(tess *t, const void *src, uint32_t from, void *dst, uint32_t to, uint64_t elems) {
    const void *in[1] = { src };
    tess_kernel k = {
        .kernel = TESS_K_CAST, .in_dtype = from, .out_dtype = to, .n_in = 1, .in = in, .out = dst, .elems = elems
    };
    return tess__device_kernel(t, &k);
}

static tess_status gather(tess *t, const tess__instr *in) {
    int32_t g = in->index;
    const tess__group *group = &t->layout.groups[g];
    uint64_t bytes = group->shard_elems * tess__dtype_bytes(group->compute);
    char *full = tess__at(t, TESS__FULL, g), *slot = full + (uint64_t)t->shard_rank * bytes;
    if (in->flags & TESS__ASYNC)
        return tess__move_gather(t, g);
    TRY(tess__shard_to_slot(t, g, slot, tess__device_kernel));
    if (t->setup.shard_ranks == 1)
        return TESS_OK;
    name_instr(t, in);
    tess_collective c = { .op = TESS_ALL_GATHER,
                          .send_dtype = group->compute,
                          .recv_dtype = group->compute,
                          .send = slot,
                          .recv = full,
                          .count = group->shard_elems,
                          .scale = 1,
                          .scratch = tess__at(t, TESS__GATHER_SCRATCH, g),
                          .tag = in->tag };
    if (t->booked[TESS__GATHER_SCRATCH][g])
        c.scratch_bytes = t->program->buffers[in[-1].buffer].bytes;
    TRY(post(t, TESS__SHARD, &c, &t->state[g].gather));
    t->state[g].gather_seq = c.seq;
    t->state[g].gather_ns = tess__tracing_begin(t);
    clear_doing(t);
    return TESS_OK;
}

static tess_status end_request(tess *t, const tess__instr *in, int which, tess_request **request, uint64_t seq,
                               int64_t posted_ns) {
    if (!*request)
        return TESS_OK;
    name_instr(t, in);
    if (t->queues.on && t->queues.comm_waits) {
        tess_request *waited = *request;
        *request = NULL;
        TRY(tess__retire(t, which, waited, seq));
        clear_doing(t);
        return TESS_OK;
    }
    TRY(tess__comm_wait(t, which, *request, seq));
    tess__tracing_comm(t, in, posted_ns);
    t->comm->request_free(*request);
    *request = NULL;
    clear_doing(t);
    return TESS_OK;
}

/* ---- gradients ---- */

static tess_status cast_wire(tess *t, int32_t g) {
    const tess__group *group = &t->layout.groups[g];
    return cast(t, tess__at(t, TESS__GRAD, g), group->grad_local, tess__at(t, TESS__WIRE, g), group->grad_wire,
                group->flat_elems);
}

static tess_status sum_full(tess *t, int32_t g) {
    const tess__group *group = &t->layout.groups[g];
    int wire = group->grad_wire != group->grad_local;
    tess__counter c = tess__counter_of(t, g, 0);
    return tess__counter_add(&c, (uint32_t)t->microbatch, tess__at(t, wire ? TESS__WIRE : TESS__GRAD, g),
                             group->grad_wire, tess__device_kernel, t);
}

static uint64_t reduce_scratch(const tess *t, const tess__instr *in) {
    return t->booked[TESS__REDUCE_SCRATCH][in->index] ? t->program->buffers[in[-1].buffer].bytes : 0;
}

static tess_status reduce(tess *t, const tess__instr *in) {
    int32_t g = in->index;
    uint64_t elems = t->layout.groups[g].shard_elems;
    void *source;
    uint32_t dtype;
    if (in->flags & TESS__ASYNC)
        return tess__move_reduce(t, g);
    if (t->setup.shard_ranks == 1)
        return tess__reduce_alone(t, g, tess__device_kernel);
    TRY(tess__find_source(t, g, tess__device_kernel, &source, &dtype));
    name_instr(t, in);
    tess_collective c = { .op = TESS_REDUCE_SCATTER,
                          .redop = TESS_SUM,
                          .send_dtype = dtype,
                          .recv_dtype = TESS_F32,
                          .send = source,
                          .recv = tess__reduced_at(t, g),
                          .count = elems,
                          .scale = t->setup.replicas > 1 ? 1.0 : tess__reduce_scale(t),
                          .scratch = tess__at(t, TESS__REDUCE_SCRATCH, g),
                          .scratch_bytes = reduce_scratch(t, in),
                          .tag = in->tag };
    TRY(post(t, TESS__SHARD, &c, &t->state[g].reduce));
    t->state[g].reduce_seq = c.seq;
    t->state[g].reduce_ns = tess__tracing_begin(t);
    clear_doing(t);
    return TESS_OK;
}

static tess_status replicate(tess *t, const tess__instr *in) {
    int32_t g = in->index;
    void *source = tess__reduced_at(t, g);
    uint32_t dtype = TESS_F32;
    if (t->setup.shard_ranks == 1)
        TRY(tess__find_source(t, g, tess__device_kernel, &source, &dtype));
    name_instr(t, in);
    tess_collective c = { .op = TESS_ALL_REDUCE,
                          .redop = TESS_SUM,
                          .send_dtype = dtype,
                          .recv_dtype = TESS_F32,
                          .send = source,
                          .recv = tess__reduced_at(t, g),
                          .count = t->layout.groups[g].shard_elems,
                          .scale = tess__reduce_scale(t),
                          .scratch = tess__at(t, TESS__REDUCE_SCRATCH, g),
                          .scratch_bytes = reduce_scratch(t, in),
                          .tag = in->tag };
    TRY(post(t, TESS__REPLICA, &c, &t->state[g].reduce));
    t->state[g].reduce_seq = c.seq;
    t->state[g].reduce_ns = tess__tracing_begin(t);
    clear_doing(t);
    return TESS_OK;
}

/* ---- norm and optimizer ---- */

static tess_status norm_group(tess *t, int32_t g) {
    const void *in[1] = { tess__at(t, TESS__SHARD_GRAD, g) };
    tess_kernel k = { .kernel = TESS_K_SQUARE_SUM,
                      .in_dtype = TESS_F32,
                      .out_dtype = TESS_I64,
                      .n_in = 1,
                      .flags = 1,
                      .in = in,
                      .out = tess__at(t, TESS__LIMBS, 0),
                      .elems = t->layout.groups[g].shard_elems,
                      .scale = t->grad_scale == 1.0f ? 0 : (double)t->grad_scale };
    return tess__device_kernel(t, &k);
}

static tess_status norm_reduce(tess *t, const tess__instr *in) {
    if (t->setup.shard_ranks == 1)
        return TESS_OK;
    void *limbs = tess__at(t, TESS__LIMBS, 0);
    tess_collective c = { .op = TESS_ALL_REDUCE,
                          .redop = TESS_SUM,
                          .send_dtype = TESS_I64,
                          .recv_dtype = TESS_I64,
                          .send = limbs,
                          .recv = limbs,
                          .count = TESS__NORM_LIMBS,
                          .scale = 1,
                          .scratch = tess__at(t, TESS__LIMBS_SCRATCH, 0),
                          .tag = in->tag };
    if (t->booked[TESS__LIMBS_SCRATCH][0])
        c.scratch_bytes = t->program->buffers[in[-1].buffer].bytes;
    return tess__comm_run(t, TESS__SHARD, &c, "all_reduce of the gradient norm");
}

static tess_status share_buffers(tess *t, const tess__instr *in) {
    void *buffers = tess__at(t, TESS__BUFFERS, 0);
    tess_collective c = { .op = TESS_BROADCAST,
                          .send_dtype = TESS_U8,
                          .recv_dtype = TESS_U8,
                          .send = buffers,
                          .recv = buffers,
                          .count = t->layout.buffer_bytes,
                          .scale = 1,
                          .tag = in->tag };
    if (t->booked[TESS__CHUNK_SCRATCH][0]) {
        c.scratch = tess__at(t, TESS__CHUNK_SCRATCH, 0);
        c.scratch_bytes = t->program->buffers[in[-1].buffer].bytes;
    }
    return tess__comm_run(t, TESS__WORLD, &c, "the broadcast of buffers");
}

static tess_status norm_finish(tess *t) {
    int64_t limbs[TESS__NORM_LIMBS];
    TRY(tess__device_read(t, limbs, tess__at(t, TESS__LIMBS, 0), sizeof limbs));
    t->norm = tess__norm_result(limbs);
    const tess_optimizer_options *o = t->step_options;
    if (t->program->kind == TESS__PASS_CLIP && o)
        t->step_kernel.grad_scale = t->grad_scale * tess__clip_coefficient(o->clip_norm, t->norm);
    return TESS_OK;
}

/* ---- the loop ---- */

static tess_status copy_input(tess *t) {
    tess_error e = { .struct_size = sizeof e };
    if (!t->setup.input_bytes)
        return TESS_OK;
    tess_status s = t->dev->copy(t->device, tess__at(t, TESS__INPUT, 0), t->setup.env.mem, t->run->batch, TESS_MEM_HOST,
                                 t->setup.input_bytes, &t->compute, &e);
    return s ? device_failed(t, s, &e) : tess__batch_mark(t);
}

static tess_status copy_result(tess *t, int32_t block) {
    uint64_t bytes = t->model.blocks[block].options.output_bytes;
    if (!t->run->result || !bytes)
        return TESS_OK;
    return tess__device_read(t, t->run->result, tess__at(t, TESS__OUTPUT, block), bytes);
}

static tess_status run_instr(tess *t, const tess__instr *in) {
    switch (in->op) {
    case TESS__BOOK: return book(t, in);
    case TESS__FREE: return unbook(t, in);
    case TESS__INPUT_COPY: return copy_input(t);
    case TESS__RESULT_COPY: return copy_result(t, in->index);
    case TESS__GATHER: return gather(t, in);
    case TESS__GATHER_WAIT:
        TRY(tess__move_up_wait(t, &t->state[in->index].fetched));
        return end_request(t, in, TESS__SHARD, &t->state[in->index].gather, t->state[in->index].gather_seq,
                           t->state[in->index].gather_ns);
    case TESS__CAST_WIRE: return cast_wire(t, in->index);
    case TESS__SUM_FULL: return sum_full(t, in->index);
    case TESS__REDUCE: return reduce(t, in);
    case TESS__REDUCE_WAIT:
        TRY(tess__move_down_wait(t, &t->state[in->index].lowered));
        return end_request(t, in, TESS__SHARD, &t->state[in->index].reduce, t->state[in->index].reduce_seq,
                           t->state[in->index].reduce_ns);
    case TESS__REPLICATE: return replicate(t, in);
    case TESS__REPLICATE_WAIT:
        return end_request(t, in, TESS__REPLICA, &t->state[in->index].reduce, t->state[in->index].reduce_seq,
                           t->state[in->index].reduce_ns);
    case TESS__SUM_SHARD:
        return in->flags & TESS__ASYNC ? tess__move_sum(t, in->index)
                                       : tess__sum_shard(t, in->index, t->microbatch, tess__device_kernel);
    case TESS__NORM_GROUP: return norm_group(t, in->index);
    case TESS__NORM_REDUCE: return norm_reduce(t, in);
    case TESS__SHARE_BUFFERS: return share_buffers(t, in);
    case TESS__NORM_FINISH: return norm_finish(t);
    case TESS__OPTIMIZE:
        return in->flags & TESS__ASYNC ? tess__move_optimize(t, in->index) : tess__optimize_now(t, in->index);
    case TESS__ENTER:
    case TESS__LEAVE: return TESS_OK; /* the caller's */
    default: return tess__move(t, in);
    }
}

static int stops(uint8_t op, int how_far) {
    if (how_far == TESS__TO_WAIT && (op == TESS__GATHER_WAIT || op == TESS__REDUCE_WAIT || op == TESS__REPLICATE_WAIT ||
                                     op == TESS__NORM_REDUCE || op == TESS__FETCH_WAIT || op == TESS__DOWN_WAIT))
        return 1;
    return how_far != TESS__TO_END && (op == TESS__ENTER || op == TESS__LEAVE);
}

tess_status tess__execute(tess *t, int32_t *pc, int how_far) {
    for (;; ++*pc) {
        while (t->next_point < t->program->n_points && t->program->points[t->next_point].at <= *pc)
            tess__ledger_reach(t, &t->program->points[t->next_point++]);
        if (*pc >= t->program->n_instrs)
            return TESS_OK;
        const tess__instr *in = &t->program->instrs[*pc];
        if (stops(in->op, how_far))
            return TESS_OK;
        int64_t begin = tess__tracing_begin(t);
        TRY(run_instr(t, in));
        tess__tracing_instr(t, in, begin);
    }
}

tess_status tess__run_program(tess *t, tess__program *p) {
    int32_t pc = 0;
    t->program = p;
    t->next_point = 0;
    return tess__execute(t, &pc, TESS__TO_END);
}

tess_status tess__free_all(tess *t, const tess__program *p) {
    t->program = (tess__program *)p;
    for (int32_t i = 0; i < p->n_buffers; i++) {
        tess__instr in = { .op = TESS__FREE, .index = p->buffers[i].index, .buffer = i };
        TRY(unbook(t, &in));
    }
    return TESS_OK;
}
