/* SPDX-License-Identifier: BSD-3-Clause */
/* Runs one step. If the host runs ahead of the device, a step's loss arrives during the next step, and the mean over
 * ranks during the one after. Neither makes anybody wait. */
#include <signal.h>

#include "tools/support/say.h"
#include "tools/support/alloc_count.h"
#include <tessera/gpu.h>
#include "train.h"

/* ---- a step's results -------------------------------------------------------------------------- */
static void add_loss(const train_run *r, train_step_record *of) {
    double divisor = r->result->divisor > 0 ? r->result->divisor : (double)r->result->count;
    of->shared[0] += r->result->loss / divisor / (double)r->s.accum;
}

/* The device has finished the step. */
static void note_end(train_run *r, train_step_record *of) {
    double now = tool_seconds();
    of->seconds = now - (r->over > of->started ? r->over : of->started);
    r->over = now;
    r->seconds += of->seconds;
    train_lives_step(r, of->step);
    of->grad_norm = train_watch_norm(r, train_output_shows(r));
}

/* Shares the request to end, because all ranks end when one is asked to. */
static void *to_share(const train_run *r, train_step_record *of) {
    of->shared[1] = train_asked_to_end(r);
    of->own_loss = of->shared[0];
    return of->shared;
}

/* Shows a step whose loss is the mean over all ranks. */
static tess_status show_step(train_run *r, const train_step_record *of) {
    if (of->shared[1] > 0)
        r->interrupted = train_asked_to_end(r) ? train_asked_to_end(r) : SIGTERM;
    r->loss = of->shared[0];
    train_watch_step(r, of);
    train_output_step(r, of);
    TRY(train_spans_step(r, of));
    return train_judge_loss(r, "loss", of->step, of->own_loss, of->shared[0]);
}

/* ---- late -------------------------------------------------------------------------------------- */
/* A pass has returned. `result` now holds the previous step's last result, and the mean of the step before that has
 * arrived. */
static tess_status take_late(train_run *r) {
    train_late *l = &r->late;
    l->known = l->sharing;
    l->sharing = l->running;
    l->running.started = 0;
    if (!l->sharing.started)
        return TESS_OK;
    add_loss(r, &l->sharing);
    note_end(r, &l->sharing);
    return tess_all_reduce_late(r->t, to_share(r, &l->sharing), 2, TESS_F64, TESS_AVG);
}

static tess_status show_known(train_run *r) {
    train_step_record of = r->late.known;
    r->late.known.started = 0;
    return of.started ? show_step(r, &of) : TESS_OK;
}

void train_step_forget(train_run *r) {
    r->late = (train_late){ .running = { .started = 0 } };
}

tess_status train_step_settle(train_run *r) {
    while (r->late.running.started || r->late.sharing.started) {
        TRY(tess_run_wait(r->t));
        TRY(take_late(r));
        TRY(show_known(r));
    }
    return TESS_OK;
}

/* ---- the step ---------------------------------------------------------------------------------- */
static tess_status run_pass(train_run *r, int32_t k) {
    tess_run_options run = { .struct_size = sizeof run, .kind = TESS_PASS_TRAIN, .batch = r->batch };
    run.result = r->result;
    run.microbatch = tool_sampler_slot(&r->task.sampler, r->rank, k);
    run.step = k == (int32_t)r->s.accum - 1 ? &r->optimizer : NULL;
    return r->is_late ? model_run_late(r->t, r->m, &run, !train_spans_need_calls(r)) : model_run(r->t, r->m, &run);
}

/* The last microbatch includes the optimizer step, so that without clipping each unit steps as its gradient arrives. A
 * late result belongs to the previous microbatch. For the first one, that is the previous step's last. */
static tess_status run_microbatches(train_run *r, train_step_record *of) {
    tess_status status = TESS_OK;
    for (int32_t k = 0; k < (int32_t)r->s.accum && status == TESS_OK; k++) {
        train_feed_next(r, r->steps_done, k);
        double began = tool_seconds();
        status = run_pass(r, k);
        of->run_seconds += tool_seconds() - began;
        if (status == TESS_OK && r->is_late && k == 0)
            status = take_late(r);
        else if (status == TESS_OK)
            add_loss(r, of);
    }
    return status;
}

static tess_status end_now(train_run *r, train_step_record *of) {
    TRY(tess_all_reduce(r->t, to_share(r, of), 2, TESS_F64, TESS_AVG));
    note_end(r, of);
    return TESS_OK;
}

tess_status train_step(train_run *r) {
    train_step_record of = { .step = r->steps_done + 1, .rate = train_rate(r, 0, r->steps_done) };
    of.started = tool_seconds();
    train_rates_set(r, r->steps_done);
    if (r->steps_done > r->group_step)
        tool_alloc_window_begin();
    tess_status status = run_microbatches(r, &of);
    if (status == TESS_OK && !r->is_late)
        status = end_now(r, &of);
    tool_alloc_window_end();
    if (status != TESS_OK)
        return status;
    r->steps_done++;
    if (!r->is_late)
        return show_step(r, &of);
    r->late.running = of;
    return show_known(r);
}
