/* SPDX-License-Identifier: BSD-3-Clause */
/* The blocks API: the engine runs the pass by itself and owns the activations. */
#include "finite.h"

#include "base/options.h"
#include "base/status.h"
#include <tessera/gpu.h>

#include <string.h>

static void *or_null(const tess *t, int role, int32_t index) {
    return index >= 0 && t->memory.booked[role][index] ? tess__address_of(t, role, index) : NULL;
}

static tess_status call_block(tess *t, const tess__event *e) {
    int32_t i = t->plan.model.scopes[e->scope].block;
    const tess_block_options *o = &t->plan.model.blocks[i].options;
    int backward = e->type == TESS__BACKWARD_BEGIN;
    tess_block_call c = tess__block_call_of(t, i);
    c.recompute = e->type == TESS__RECOMPUTE_BEGIN;
    c.grads = t->pass.block_grads;
    c.batch = or_null(t, TESS__INPUT, 0);
    c.input = or_null(t, TESS__OUTPUT, i - 1);
    c.output = or_null(t, TESS__OUTPUT, i);
    c.saved = or_null(t, TESS__SAVED, i);
    c.scratch = or_null(t, TESS__SCRATCH, i);
    c.selective = (uint32_t)tess__saves_selectively(&t->plan.model, &t->plan.setup, i);
    if (backward) {
        c.grad_output = or_null(t, TESS__OUTPUT_GRAD, tess__grad_place(&t->plan.model, i));
        c.grad_input = i ? or_null(t, TESS__OUTPUT_GRAD, tess__grad_place(&t->plan.model, i - 1)) : NULL;
    }
    TRY(tess__scope_pointers(t, e->scope, t->pass.block_params, backward ? t->pass.block_grads : NULL, 0));
    uint64_t before = tess__fail_count();
    tess_status s = (backward ? o->backward : o->forward)(o->user, &c);
    if (s)
        return tess__callback_failed(s, before, backward ? "backward of block" : "forward of block", o->name);
    return tess__take_back(t, e->scope, backward, backward ? "backward" : "forward");
}

static tess__program *choose_program(tess *t, const tess_run_options *o) {
    if (o->kind == TESS_PASS_EVAL)
        return &t->plan.programs[TESS__P_EVAL];
    if (!t->plan.setup.sync_each && t->pass.microbatch < t->plan.setup.accum - 1)
        return &t->plan.programs[TESS__P_NO_SYNC];
    if (o->step && !tess__step_needs_norm(t, o->step) && t->plan.setup.accum == 1)
        return &t->plan.programs[TESS__P_FUSED];
    return &t->plan.programs[TESS__P_TRAIN];
}

/* Refuses a pass for which no memory was planned. */
static tess_status check_promises(const tess *t, const tess_run_options *o) {
    const tess__plan *p = &t->plan;
    if (!o->step && tess__steps_in_pass(&p->model, &p->setup))
        return tess__fail(TESS_E_INVALID, "tess_run: a training pass without a step, and tess_options.flags has "
                                          "TESS_OPTIONS_STEP_IN_PASS");
    if (o->step && o->step->clip_norm != 0 && tess__steps_by_unit(&p->model, &p->setup))
        return tess__fail(TESS_E_INVALID,
                          "tess_run: a step with clipping, and tess_options.flags has TESS_OPTIONS_NO_CLIP");
    return TESS_OK;
}

static tess_status check_run(const tess *t, const tess_run_options *o) {
    if (!t->sharded || t->settings.plan_only || !t->plan.model.n_blocks)
        return tess__fail(TESS_E_INVALID, "tess_run needs declared blocks and tess_shard");
    if (o->kind != TESS_PASS_EVAL && o->kind != TESS_PASS_TRAIN)
        return tess__fail(TESS_E_INVALID, "tess_run: %u is no kind of pass", o->kind);
    if (o->kind == TESS_PASS_TRAIN)
        TRY(check_promises(t, o));
    if (t->plan.setup.input_bytes && !o->batch)
        return tess__fail(TESS_E_INVALID, "tess_run: the batch of %llu bytes is missing",
                          (unsigned long long)t->plan.setup.input_bytes);
    if (o->kind == TESS_PASS_TRAIN && t->pass.microbatch >= t->plan.setup.accum)
        return tess__fail(TESS_E_INVALID, "tess_run: all %d microbatches of the step have run%s; tess_step comes next",
                          t->plan.setup.accum, t->settings.accum_text);
    if (t->pass.summoned)
        return tess__fail(TESS_E_INVALID, "tess_run while parameters are summoned");
    return TESS_OK;
}

static tess_status run_audit(tess *t, const tess__instr *in) {
    tess__mark begin = tess__tracing_mark(t, in);
    TRY(t->hooks->audit_instr(t, in));
    tess__tracing_instr(t, in, begin);
    return TESS_OK;
}

static tess_status run_events(tess *t) {
    for (;;) {
        TRY(tess__execute(t, &t->pass.pc, TESS__TO_EVENT));
        if (t->pass.pc == t->pass.program->n_instrs)
            return TESS_OK;
        const tess__instr *in = &t->pass.program->instrs[t->pass.pc++];
        if (in->op == TESS__AUDIT_SEND || in->op == TESS__AUDIT)
            TRY(run_audit(t, in));
        if (in->op != TESS__ENTER)
            continue;
        tess__doing_event(t, &t->pass.program->events[in->index]);
        tess__mark begin = tess__tracing_mark(t, NULL);
        tess__range_event(t, &t->pass.program->events[in->index]);
        tess_status s = call_block(t, &t->pass.program->events[in->index]);
        tess__range_end(t);
        TRY(s);
        if (t->proof)
            TRY(t->hooks->digest_event(t, &t->pass.program->events[in->index]));
        tess__tracing_event(t, &t->pass.program->events[in->index], begin);
    }
}

/* Runs the pass by calling every instruction, without a recording. */
static tess_status run_calls(tess *t, const tess_run_options *o) {
    int fused = t->pass.program == &t->plan.programs[TESS__P_FUSED], train = o->kind == TESS_PASS_TRAIN;
    int last = t->pass.microbatch == t->plan.setup.accum - 1;
    if (fused)
        TRY(tess__step_begin(t, o->step));
    TRY(run_events(t));
    TRY(tess__guard_check(t, "tess_run"));
    tess__pass_over(t, train);
    if (fused)
        return tess__step_end(t);
    if (train && o->step && last)
        return tess__step_run(t, o->step);
    return t->proof ? t->hooks->digest_pass(t) : TESS_OK;
}

static tess_status run_blocks(tess *t, const tess_run_options *options, uint64_t repeat) {
    tess_run_options o;
    tess_optimizer_options step;
    TRY(tess__copy_options("tess_run", &o, sizeof o, TESS__UP_TO(tess_run_options, step), options));
    if (o.step) {
        TRY(tess__copy_options("tess_run: step", &step, sizeof step, TESS__UP_TO(tess_optimizer_options, step),
                               o.step));
        o.step = &step;
    }
    TRY(check_run(t, &o));
    TRY(tess__pass_finish(t));
    TRY(tess__guard_check(t, "tess_run"));
    tess__program *program = choose_program(t, &o);
    t->pass.run = &o;
    t->pass.repeat = repeat;
    TRY(tess__pass_start(t, program, program->kind));
    t->streams.passes[t->streams.pass].step = t->step.steps_done + 1;
    TRY(tess__repeat_pass(t, &o, run_calls));
    TRY(tess__pass_wait(
        &t->streams)); /* the only wait: for all of the step under way, or with late passes for the one before */
    return tess__look_at_steps(t);
}

tess_status tess_run(tess *t, const tess_run_options *options) {
    return tess_run_repeat(t, options, 0);
}

tess_status tess_run_repeat(tess *t, const tess_run_options *options, uint64_t number) {
    TRY(tess__engine_check(t));
    tess_status s = run_blocks(t, options, number);
    t->pass.run = NULL;
    if (s)
        tess__result_forget(&t->streams);
    return s ? tess__engine_fail(t, s) : TESS_OK;
}

static tess_status wait_passes(tess *t) {
    TRY(tess__passes_wait(&t->streams));
    return tess__look_at_steps(t);
}

tess_status tess_run_wait(tess *t) {
    TESS__PUBLIC(t, wait_passes(t));
}
