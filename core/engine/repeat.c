/* SPDX-License-Identifier: BSD-3-Clause */
/* Passes of blocks that a device records and runs again by one call. The first pass of its kind is called, so that
 * libraries take what they need; the second is recorded. */
#include "state.h"

#include "base/hash.h"
#include "base/log.h"
#include "base/status.h"

#include <stdio.h>
#include <string.h>

/* ---- what can be recorded ---- */

/* The reason why the host takes part in the program, or null. */
static const char *host_part(const tess *t, const tess__program *p) {
    const char *norm = t->scaler.how.init > 0 ? "the scale of losses changes" : NULL;
    for (int32_t i = 0; i < p->n_instrs; i++) {
        const tess__instr *in = &p->instrs[i];
        int zeroes = in->op == TESS__ALLOC && in->flags & TESS__ZERO;
        if (zeroes && p->buffers[in->buffer].domain == TESS_DOMAIN_HOST)
            return "a gradient that rests on the host is zeroed there";
        if (in->op == TESS__OPTIMIZE && tess__steps_on_host(t, in->index))
            return "the host steps what rests there";
        if (in->op == TESS__OPTIMIZE && tess__plugin_steps_on_device(t, in->index))
            return "the optimizer plugin's steps have their numbers from the host";
        if (in->op == TESS__NORM_FINISH && !tess__device_clips(t))
            norm = "the host needs the norm";
    }
    return norm;
}

/* The reason why the pass, or the optimizer step that follows it, cannot be repeated, or null. */
static const char *why_not(const tess *t, const tess_run_options *o) {
    const tess__plan *p = &t->plan;
    const char *why = t->proof            ? "digests are made on the host"
                      : t->transfers.runs ? "draws of stochastic rounding are others at each step"
                                          : host_part(t, t->pass.program);
    if (why || !o->step || t->pass.program == &p->programs[TESS__P_FUSED])
        return why;
    return host_part(t, &p->programs[tess__step_needs_norm(t, o->step) ? TESS__P_CLIP : TESS__P_STEP]);
}

static int may_repeat(const tess *t, const tess_run_options *o) {
    return t->graphs.on && t->pass.repeat && o->kind == TESS_PASS_TRAIN;
}

/* Tracing is local to a rank. All ranks must decide alike, so it prevents recording only when there is one rank. */
static int is_watched(const tess *t) {
    return t->comms.world.nranks == 1 && (t->recorder.trace || t->recorder.ledger_hook);
}

static int is_last_microbatch(const tess *t) {
    return t->pass.microbatch == t->plan.setup.accum - 1;
}

/* Microbatches between the first and the last share one recording, unless sums are a tree. */
static int32_t position_in_step(const tess *t) {
    return !t->plan.setup.deterministic && t->pass.microbatch > 0 && !is_last_microbatch(t) ? 1 : t->pass.microbatch;
}

static tess__graph_key key_of(const tess *t, const tess_run_options *o) {
    const tess_optimizer_options *step = is_last_microbatch(t) ? o->step : NULL;
    return (tess__graph_key){ .program = t->pass.program,
                              .repeat = t->pass.repeat,
                              .pass = t->streams.pass,
                              .microbatch = position_in_step(t),
                              .has_step = step != NULL,
                              .grad_scale = step ? step->grad_scale : 0,
                              .clip_norm = step ? step->clip_norm : 0 };
}

/* ---- what the ranks agree on ---- */

static void say_pass(const tess__graph_key *key, int records, char *out, size_t n) {
    snprintf(out, n, "%s training pass (repeat %llu, microbatch %d)", records ? "the recording of a" : "a recorded",
             (unsigned long long)key->repeat, key->microbatch);
}

/* Recorded collectives are not compared across ranks, so passes are. The compute stream then waits for all ranks. */
static tess_status agree_on_pass(tess *t, const tess__graph_key *key, int records) {
    tess_collective c = { .op = TESS_BARRIER, .send_dtype = TESS_U8, .recv_dtype = TESS_U8, .scale = 1 };
    uint32_t floats[2];
    char *doing = t->streams.passes[t->streams.pass].what;
    if (t->comms.world.nranks == 1)
        return TESS_OK;
    memcpy(floats, &key->grad_scale, sizeof floats);
    c.tag = tess__hash_u64(key->program->hash, key->repeat);
    c.tag = tess__hash_u64(c.tag, (uint64_t)key->pass << 33 | (uint64_t)key->microbatch << 1 | (uint64_t)records);
    c.tag = tess__hash_u64(c.tag, (uint64_t)floats[0] << 32 | floats[1]);
    say_pass(key, records, doing, TESS__ACTIVITY);
    if (records) /* no rank begins before all have come */
        return tess__comm_run(&t->comms, TESS__WORLD, &c, doing);
    return tess__stream_collective(&t->streams, TESS__WORLD, &c, doing);
}

/* ---- the step's own numbers ---- */

static uint64_t numbers_bytes(const tess *t) {
    return (uint64_t)t->step.first_segment[t->plan.layout.n_groups] * TESS_PREPARED_BYTES;
}

static void *prepared(const tess *t) {
    return tess__of_pass(t, TESS__PREPARED, t->plan.layout.prepared_bytes);
}

static tess_status prepare_step(tess *t, int has_step) {
    tess_optimizer o = t->step.kernel;
    tess__segments_of(&t->step, &t->plan.layout, -1, &o);
    return has_step ? tess__device_prepare(&t->device, &o, prepared(t)) : TESS_OK;
}

/* ---- recorded, and run again ---- */

/* Does here, once, all that a pass does on the host. The device has not run anything of it when this returns. */
static tess_status record_calls(tess *t, const tess_run_options *o, int has_step, tess__pass_fn *calls) {
    if (has_step)
        TRY(tess__device_copy(&t->device, tess__address_of(t, TESS__NUMBERS, 0), t->device.mem, prepared(t),
                              TESS_MEM_PINNED, numbers_bytes(t), NULL));
    return calls(t, o);
}

/* Hides the observers, because points in time of a recording mean nothing. */
static tess_status record_unseen(tess *t, const tess_run_options *o, int has_step, tess__pass_fn *calls) {
    tess__watchers seen = tess__recorder_hide(t);
    t->graphs.recording = 1;
    tess__streams_record(&t->streams);
    tess_status s = record_calls(t, o, has_step, calls), joined = tess__streams_join(&t->streams);
    t->graphs.recording = 0;
    tess__recorder_show(t, &seen);
    return s ? s : joined;
}

/* ---- a recording that cannot go on ---- */

typedef struct { /* what the pass has changed on the host, though the device ran none of it */
    tess__program *program;
    int32_t microbatch, pending_grads;
    uint64_t steps_done, n_collectives, common;
    tess__late_pass late;
} before_pass;

static before_pass remember(const tess *t) {
    return (before_pass){ t->pass.program,
                          t->pass.microbatch,
                          t->pass.pending_grads,
                          t->step.steps_done,
                          t->comms.n_collectives,
                          t->comms.common,
                          t->streams.passes[t->streams.pass] };
}

/* Puts the host where it was when the pass began. What earlier passes left to the device has ended then, so no ticket
 * of theirs is needed. */
static void go_back(tess *t, const tess_run_options *o, const before_pass *b) {
    tess__streams_idle(&t->streams);
    tess__drop_requests(t);
    tess__transfers_forget(t);
    tess__memory_forget(&t->memory, &t->pass.deviating_program);
    t->pass.microbatch = 0; /* the step's gradients are on the books from its beginning */
    tess__pass_begins(t, b->program, b->program->kind);
    t->pass.microbatch = b->microbatch;
    t->pass.pending_grads = b->pending_grads;
    t->pass.run = o;
    t->step.steps_done = b->steps_done;
    t->step.options = NULL;
    tess__comms_skip(&t->comms, b->n_collectives); /* ranks have come to different places of the recording */
    t->comms.common = b->common;
    t->streams.passes[t->streams.pass] = b->late;
}

/* Finds the first rank that could not record, -1 if all could. Of several ranks all launch what they recorded, or none.
 * A step takes no memory for that, so of more ranks than these a failure is an error. */
static tess_status find_failing(tess *t, tess_status own, int32_t *rank) {
    char mine = own != TESS_OK, all[1 << 14] = { mine };
    int32_t n = t->comms.world.nranks;
    *rank = -1;
    if (n > (int32_t)sizeof all)
        return own;
    TRY(n > 1 ? tess__comms_exchange_in_step(&t->comms, "the recording of a pass", &mine, 1, all) : TESS_OK);
    for (int32_t i = n - 1; i >= 0; i--)
        *rank = all[i] ? i : *rank;
    return TESS_OK;
}

/* From here on passes are called, on all ranks. `why`: of the rank that failed first, for the one line. */
static tess_status call_instead(tess *t, tess__recorded *r, const tess_run_options *o, const before_pass *b,
                                tess__pass_fn *calls, const char *why) {
    t->graphs.on = 0;
    tess__device_graph_end(&t->device, r->graph);
    r->graph = NULL;
    if (why)
        tess__log(TESS_LOG_WARNING, "a pass cannot be recorded, so passes are called from now on: %s", why);
    go_back(t, o, b);
    return calls(t, o);
}

static tess_status try_recording(tess *t, tess__recorded *r, const tess_run_options *o, tess__pass_fn *calls) {
    TRY(tess__device_record_begin(&t->device));
    tess_status s = record_unseen(t, o, r->key.has_step, calls);
    if (s)
        tess__device_record_end(&t->device, NULL);
    return s ? s : tess__device_record_end(&t->device, &r->graph);
}

static tess_status record_pass(tess *t, tess__recorded *r, const tess_run_options *o, tess__pass_fn *calls) {
    before_pass before = remember(t);
    TRY(agree_on_pass(t, &r->key, 1));
    char why[512] = "";
    int32_t failing;
    tess_status s = try_recording(t, r, o, calls);
    if (s)
        snprintf(why, sizeof why, "%s", tess_last_error());
    TRY(find_failing(t, s, &failing));
    if (failing >= 0)
        return call_instead(t, r, o, &before, calls, failing == t->comms.world.rank ? why : NULL);
    r->late = t->streams.passes[t->streams.pass];
    TRY(prepare_step(t, r->key.has_step));
    t->streams.passes[t->streams.pass].is_recorded = 1;
    return tess__device_graph_run(&t->device, r->graph);
}

static tess_status run_recorded(tess *t, const tess__recorded *r, const tess_run_options *o) {
    uint64_t bytes = t->plan.setup.input_bytes;
    if (bytes)
        memcpy(tess__of_pass(t, TESS__BATCH, bytes), o->batch, bytes);
    if (r->key.has_step)
        TRY(tess__step_begin(t, o->step));
    TRY(agree_on_pass(t, &r->key, 0));
    TRY(prepare_step(t, r->key.has_step));
    tess__result_again(&t->streams, &r->late, o->result);
    TRY(tess__device_graph_run(&t->device, r->graph));
    tess__pass_over(t, 1);
    if (!r->key.has_step)
        return TESS_OK;
    TRY(tess__grad_release(t)); /* the pass of the microbatch before had booked them */
    return tess__step_end(t);
}

static void say_why(const tess *t, const char *why) {
    if (t->comms.world.rank == 0)
        tess__log(TESS_LOG_INFO, "passes that repeat are called and not recorded: %s", why);
}

tess_status tess__repeat_pass(tess *t, const tess_run_options *o, tess__pass_fn *calls) {
    if (!may_repeat(t, o))
        return calls(t, o);
    tess__graph_key key = key_of(t, o);
    tess__recorded *r = tess__graphs_find(&t->graphs, &t->device, &key);
    if (!r->known && (r->why_not = why_not(t, o)) && !t->graphs.logged_reason)
        say_why(t, t->graphs.logged_reason = r->why_not);
    tess_status s = !r->known || r->why_not || is_watched(t) ? calls(t, o)
                    : r->graph                               ? run_recorded(t, r, o)
                                                             : record_pass(t, r, o, calls);
    r->known = 1;
    return s;
}
