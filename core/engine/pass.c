/* SPDX-License-Identifier: BSD-3-Clause */
/* The hooks: an existing loop calls begin and end, and the program runs on between them. */
#include "state.h"

#include "base/log.h"
#include "runtime/poison.h"
#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- pointers ---- */

static void *param_at(const tess *t, const tess__param *p) {
    if (p->flags & TESS_BUFFER)
        return (char *)tess__address_of(t, TESS__BUFFERS, 0) + p->offset;
    const tess__group *g = &t->plan.layout.groups[p->group];
    int rests = g->low_copy ? TESS__LOW_COPY : TESS__MASTER;
    char *base = tess__address_of(t, g->in_place ? rests : TESS__FULL, p->group);
    return base + p->offset * tess_dtype_bytes(g->compute);
}

void *tess__grad_at(const tess *t, const tess__param *p) {
    if (p->flags & (TESS_BUFFER | TESS_FROZEN))
        return NULL;
    const tess__group *g = &t->plan.layout.groups[p->group];
    char *base = tess__address_of(t, g->grad_in_place ? TESS__SHARD_GRAD : TESS__GRAD, p->group);
    return base + p->offset * tess_dtype_bytes(g->grad_local);
}

/* The place of the scope's parameter i in the program's memory: an alias shares that of its parameter by tag. */
static size_t slot_of(const tess *t, const tess__scope *s, int32_t i, int32_t n) {
    const tess__param *p = &t->plan.model.params[s->params[i]];
    return sizeof(void *) * (n < 0 ? (size_t)t->plan.model.params[p->tied_to].tag : (size_t)i);
}

tess_status tess__scope_pointers(tess *t, int32_t scope, void *params, void *grads, int32_t n) {
    const tess__scope *s = &t->plan.model.scopes[scope];
    for (int32_t i = 0; i < s->n_params; i++) {
        const tess__param *p = &t->plan.model.params[s->params[i]];
        size_t at = slot_of(t, s, i, n);
        void *param, *grad;
        TRY(tess__guard_open(t, s->params[i], TESS__GUARD_PARAM, param_at(t, p), &param));
        memcpy((char *)params + at, &param, sizeof param);
        if (grads) {
            TRY(tess__guard_open(t, s->params[i], TESS__GUARD_GRAD, tess__grad_at(t, p), &grad));
            memcpy((char *)grads + at, &grad, sizeof grad);
        }
    }
    return TESS_OK;
}

tess_status tess__take_back(tess *t, int32_t scope, int backward, const char *call) {
    const tess__scope *s = &t->plan.model.scopes[scope];
    for (int32_t i = 0; t->pass.guard && i < s->n_params; i++) {
        const tess__param *p = &t->plan.model.params[s->params[i]];
        TRY(tess__guard_close(t, s->params[i], TESS__GUARD_PARAM, param_at(t, p), call, scope));
        if (backward)
            TRY(tess__guard_close(t, s->params[i], TESS__GUARD_GRAD, tess__grad_at(t, p), call, scope));
    }
    return TESS_OK;
}

/* Every parameter of a scope has a tag within the table that no other one there has. */
static tess_status check_tags(const tess *t, const char *call, const tess__scope *s, int64_t slots) {
    const tess__param *all = t->plan.model.params;
    for (int32_t i = 0; i < s->n_params; i++) {
        int32_t at = all[s->params[i]].tied_to;
        if (all[at].tag >= (uint64_t)slots)
            return tess__fail(TESS_E_INVALID, "%s: parameter \"%s\" has tag %llu, and the table has %lld slots", call,
                              all[at].name, (unsigned long long)all[at].tag, (long long)slots);
        for (int32_t k = 0; k < i; k++) {
            int32_t other = all[s->params[k]].tied_to;
            if (other != at && all[other].tag == all[at].tag)
                return tess__fail(TESS_E_INVALID, "%s: parameters \"%s\" and \"%s\" of scope \"%s\" have one tag", call,
                                  all[other].name, all[at].name, s->name);
        }
    }
    return TESS_OK;
}

static tess_status check_scope(const tess *t, const char *call, tess_scope scope, const void *params, int32_t n) {
    if (scope < 0 || scope >= t->plan.model.n_scopes)
        return tess__fail(TESS_E_INVALID, "%s: %d is no scope; there are %d", call, scope, t->plan.model.n_scopes);
    const tess__scope *s = &t->plan.model.scopes[scope];
    if (n < 0 && params)
        return check_tags(t, call, s, -(int64_t)n);
    if (n != s->n_params || (n && !params))
        return tess__fail(TESS_E_INVALID, "%s: scope \"%s\" has %d parameters, room for %d was given", call, s->name,
                          s->n_params, params ? n : 0);
    return TESS_OK;
}

/* ---- the running pass ---- */

tess_status tess__pass_create(tess *t) {
    tess__pass_run *p = &t->pass;
    p->entered = calloc(2 * (size_t)t->plan.model.n_scopes, sizeof *p->entered);
    p->begun = calloc(2 * (size_t)t->plan.model.n_scopes, sizeof *p->begun);
    p->block_params = calloc((size_t)t->plan.model.n_params + 1, sizeof *p->block_params);
    p->block_grads = calloc((size_t)t->plan.model.n_params + 1, sizeof *p->block_grads);
    t->audit.inputs = calloc((size_t)t->plan.model.n_blocks + 1, sizeof *t->audit.inputs);
    return p->entered && p->begun && p->block_params && p->block_grads && t->audit.inputs
               ? TESS_OK
               : tess__fail(TESS_E_NOMEM, "no memory for the engine's tables");
}

void tess__pass_destroy(tess *t) {
    tess__pass_run *p = &t->pass;
    free(p->entered);
    free(p->begun);
    free(p->block_params);
    free(p->block_grads);
    free(t->audit.inputs);
    t->audit.inputs = NULL;
    p->entered = p->begun = NULL;
    p->block_params = p->block_grads = NULL;
    tess__program_free(&p->deviating_program);
}

void tess__pass_forget(tess *t) {
    tess__pass_run *p = &t->pass;
    memset(p->entered, 0, 2 * (size_t)t->plan.model.n_scopes * sizeof *p->entered);
    memset(p->begun, 0, 2 * (size_t)t->plan.model.n_scopes * sizeof *p->begun);
    p->kind = 0;
    p->pc = t->recorder.next_point = 0;
    p->summoned = p->microbatch = p->pending_grads = 0;
    p->run = NULL;
    p->ended_by = NULL;
    tess__guard_destroy(p->guard);
    p->guard = NULL;
}

/* ---- start and end of a pass ---- */

static int program_slot(uint32_t kind) {
    return kind == TESS_PASS_EVAL ? TESS__P_EVAL : kind & TESS_PASS_NO_SYNC ? TESS__P_NO_SYNC : TESS__P_TRAIN;
}

void tess__pass_begins(tess *t, tess__program *program, uint32_t kind) {
    t->pass.program = program;
    t->pass.pc = t->recorder.next_point = 0;
    t->pass.kind = t->comms.pass_kind = kind;
    t->memory.deviating = 0;
    t->pass.ended_by = NULL;
    memset(t->pass.begun, 0, 2 * (size_t)t->plan.model.n_scopes * sizeof *t->pass.begun);
    int train = (kind & 15) == TESS_PASS_TRAIN;
    for (int32_t i = 0; train && t->plan.setup.accum > 1 && t->pass.microbatch == 0 && i < t->plan.resident.n_buffers;
         i++) {
        const tess__buffer *b = &t->plan.resident.buffers[i];
        if (b->role == TESS__SHARD_GRAD && !t->memory.booked[b->role][b->index])
            tess__book(&t->memory, b, NULL, NULL);
    }
}

tess_status tess__pass_start(tess *t, tess__program *program, uint32_t kind) {
    TRY(t->hooks->before_pass(t, kind));
    TRY(tess__low_copies_refresh(t));
    tess__pass_begins(t, program, kind);
    return TESS_OK;
}

static int has_events_left(const tess *t) {
    const tess__program *p = t->pass.program;
    for (int32_t i = t->pass.pc; i < p->n_instrs; i++)
        if (p->instrs[i].op == TESS__ENTER || p->instrs[i].op == TESS__LEAVE)
            return 1;
    return 0;
}

tess_status tess__pass_finish(tess *t) {
    if (!t->pass.kind)
        return TESS_OK;
    for (int32_t k = 0; k < 2 * t->plan.model.n_scopes; k++)
        if (t->pass.entered[k])
            return tess__fail(TESS_E_INVALID, "the pass ends while %s of scope \"%s\" has begun and not ended",
                              k % 2 ? "backward" : "forward", t->plan.model.scopes[k / 2].name);
    TRY(tess__check_backward(t));
    TRY(tess__guard_check(t, "the end of the pass"));
    if (!t->memory.deviating && has_events_left(t))
        TRY(tess__deviate(t, TESS__FORWARD_END, -1));
    if (t->memory.deviating)
        TRY(tess__compiler_end(&t->plan.compiler));
    TRY(tess__execute(t, &t->pass.pc, TESS__TO_END));
    if ((t->pass.kind & 15) == TESS_PASS_TRAIN) {
        t->pass.microbatch++;
        t->pass.pending_grads = 1;
    }
    uint32_t kind = t->pass.kind;
    t->pass.kind = t->comms.pass_kind = 0;
    if (t->proof)
        TRY(t->hooks->digest_pass(t));
    if (!t->memory.deviating)
        return TESS_OK;
    t->memory.deviating = 0;
    tess__overflow_drop(&t->memory);
    return tess__recompile_pass(t, kind, &t->plan.programs[program_slot(t->pass.deviating_program.kind)]);
}

static tess_status start_pass(tess *t, uint32_t kind) {
    TRY(tess__pass_finish(t));
    if (!t->sharded || t->settings.plan_only)
        return tess__fail(TESS_E_INVALID, "tess_pass before tess_shard");
    if (t->plan.model.n_blocks)
        return tess__fail(TESS_E_INVALID, "tess_pass: this model declares blocks, which run by tess_run");
    if (t->pass.summoned)
        return tess__fail(TESS_E_INVALID, "tess_pass while parameters are summoned");
    if (kind != TESS_PASS_EVAL && (kind & ~(uint32_t)TESS_PASS_NO_SYNC) != TESS_PASS_TRAIN)
        return tess__fail(TESS_E_INVALID, "tess_pass: %u is no kind of pass", kind);
    int at_end = t->plan.setup.accum > 1 && !t->plan.setup.sync_each,
        last = t->pass.microbatch == t->plan.setup.accum - 1;
    if (kind != TESS_PASS_EVAL && t->pass.microbatch >= t->plan.setup.accum)
        return tess__fail(TESS_E_INVALID,
                          "tess_pass: %d microbatches are declared per step (accum) and all have run%s; "
                          "tess_step or tess_grad_drop comes next",
                          t->plan.setup.accum, t->settings.accum_text);
    if (kind & TESS_PASS_NO_SYNC && (!at_end || last))
        return tess__fail(TESS_E_INVALID, "tess_pass: a pass without communication needs accum > 1 and sync=end, and "
                                          "cannot be the last of its step");
    if (kind == TESS_PASS_TRAIN && at_end && !last)
        kind |= TESS_PASS_NO_SYNC;
    return tess__pass_start(t, &t->plan.programs[program_slot(kind)], kind);
}

tess_status tess_pass(tess *t, uint32_t kind) {
    TESS__PUBLIC(t, start_pass(t, kind));
}

/* ---- begin and end ---- */

static tess_status go_to(tess *t, uint8_t type, int32_t scope) {
    int begin = type == TESS__FORWARD_BEGIN || type == TESS__BACKWARD_BEGIN;
    if (!t->pass.kind)
        return tess__fail(TESS_E_INVALID, "scope \"%s\" is entered outside a pass%s%s%s; tess_pass comes first",
                          t->plan.model.scopes[scope].name, t->pass.ended_by ? ": " : "",
                          t->pass.ended_by ? t->pass.ended_by : "", t->pass.ended_by ? " has ended it" : "");
    if (type >= TESS__BACKWARD_BEGIN && (t->pass.kind & 15) != TESS_PASS_TRAIN)
        return tess__fail(TESS_E_INVALID, "backward of scope \"%s\" in an evaluation",
                          t->plan.model.scopes[scope].name);
    int32_t *entered = &t->pass.entered[2 * scope + (type >= TESS__BACKWARD_BEGIN)];
    if (!begin && !*entered)
        return tess__fail(TESS_E_INVALID, "%s of scope \"%s\" ends without having begun",
                          type == TESS__FORWARD_END ? "forward" : "backward", t->plan.model.scopes[scope].name);
    *entered += begin ? 1 : -1;
    t->pass.begun[2 * scope + (type >= TESS__BACKWARD_BEGIN)] += begin;
    if (!t->memory.deviating) {
        TRY(tess__execute(t, &t->pass.pc, TESS__TO_EVENT));
        const tess__instr *in = t->pass.pc < t->pass.program->n_instrs ? &t->pass.program->instrs[t->pass.pc] : NULL;
        if (in && in->op == (begin ? TESS__ENTER : TESS__LEAVE) && t->pass.program->events[in->index].type == type &&
            t->pass.program->events[in->index].scope == scope) {
            t->pass.pc++;
            return begin ? TESS_OK : tess__execute(t, &t->pass.pc, TESS__TO_WAIT);
        }
        TRY(tess__deviate(t, type, scope));
    }
    TRY(tess__compiler_event(&t->plan.compiler, type, scope));
    return tess__execute(t, &t->pass.pc, TESS__TO_END);
}

static tess_status begin_scope(tess *t, const char *call, uint8_t type, tess_scope scope, void *params, void *grads,
                               int32_t n) {
    TRY(check_scope(t, call, scope, params, n));
    TRY(go_to(t, type, scope));
    tess__doing_event(t, &(tess__event){ .type = type, .scope = scope });
    TRY(tess__scope_pointers(t, scope, params, grads, n));
    tess__range_event(t, &(tess__event){ .type = type, .scope = scope });
    if (t->recorder.trace)
        t->recorder.entered[2 * scope + (type >= TESS__BACKWARD_BEGIN)] = tess__tracing_mark(t, NULL);
    return TESS_OK;
}

static tess_status end_scope(tess *t, const char *call, uint8_t type, tess_scope scope) {
    if (scope < 0 || scope >= t->plan.model.n_scopes)
        return tess__fail(TESS_E_INVALID, "%s: %d is no scope; there are %d", call, scope, t->plan.model.n_scopes);
    int backward = type >= TESS__BACKWARD_BEGIN;
    uint8_t began = backward ? TESS__BACKWARD_BEGIN : TESS__FORWARD_BEGIN;
    if (t->recorder.trace && t->pass.entered[2 * scope + backward])
        tess__tracing_event(t, &(tess__event){ began, scope }, t->recorder.entered[2 * scope + backward]);
    if (t->pass.entered[2 * scope + backward]) {
        tess__range_end(t);
        TRY(tess__take_back(t, scope, backward, call));
        if (t->proof)
            TRY(t->hooks->digest_event(t, &(tess__event){ .type = type, .scope = scope }));
    }
    return go_to(t, type, scope);
}

tess_status tess_forward_begin(tess *t, tess_scope scope, void *params, int32_t n) {
    TESS__PUBLIC(t, begin_scope(t, "tess_forward_begin", TESS__FORWARD_BEGIN, scope, params, NULL, n));
}

tess_status tess_forward_end(tess *t, tess_scope scope) {
    TESS__PUBLIC(t, end_scope(t, "tess_forward_end", TESS__FORWARD_END, scope));
}

tess_status tess_backward_begin(tess *t, tess_scope scope, void *params, void *grads, int32_t n) {
    TESS__PUBLIC(t, begin_scope(t, "tess_backward_begin", TESS__BACKWARD_BEGIN, scope, params, grads, n));
}

tess_status tess_backward_end(tess *t, tess_scope scope) {
    TESS__PUBLIC(t, end_scope(t, "tess_backward_end", TESS__BACKWARD_END, scope));
}

/* ---- summon ---- */

/* Ends a pass that has not come to its end. This call is named here, or at the next begin. */
static tess_status end_pass_by_summon(tess *t, tess_scope scope) {
    int inside = t->pass.kind && (t->memory.deviating || has_events_left(t));
    const char *name = t->plan.model.scopes[scope].name;
    for (int32_t k = 0; k < 2 * t->plan.model.n_scopes; k++)
        if (t->pass.kind && t->pass.entered[k])
            return tess__fail(TESS_E_INVALID,
                              "tess_summon_begin of scope \"%s\" within a pass: %s of scope \"%s\" has begun and not "
                              "ended",
                              name, k % 2 ? "backward" : "forward", t->plan.model.scopes[k / 2].name);
    if (inside && (t->settings.strict || (t->pass.kind & 15) == TESS_PASS_TRAIN))
        return tess__fail(TESS_E_INVALID,
                          "tess_summon_begin of scope \"%s\" within a pass, which has not come to its end", name);
    TRY(tess__pass_finish(t));
    t->pass.ended_by = inside ? "tess_summon_begin" : NULL;
    return TESS_OK;
}

static tess_status summon_scope(tess *t, tess_scope scope, void *params, int32_t n) {
    if (!t->sharded || t->settings.plan_only)
        return tess__fail(TESS_E_INVALID, "tess_summon_begin before tess_shard");
    TRY(check_scope(t, "tess_summon_begin", scope, params, n));
    TRY(end_pass_by_summon(t, scope));
    TRY(tess__low_copies_refresh(t)); /* masters may be written between two summons, too */
    if (!t->pass.summoned) {
        tess__compiler_start(&t->plan.compiler, &t->pass.deviating_program, TESS_PASS_EVAL);
        t->plan.compiler.params_only = 1;
        tess__first_fit_reset(&t->memory.first_fit, t->memory.arena_bytes[TESS_DOMAIN_DEVICE][TESS__STEP]);
        t->pass.program = &t->pass.deviating_program;
        t->pass.pc = t->recorder.next_point = 0;
        t->memory.deviating = 1;
    }
    t->pass.summoned++;
    t->pass.entered[2 * scope]++;
    TRY(tess__compiler_event(&t->plan.compiler, TESS__FORWARD_BEGIN, scope));
    TRY(tess__execute(t, &t->pass.pc, TESS__TO_END));
    tess__guard *guard = t->pass.guard;
    t->pass.guard = NULL; /* the guard is for passes; between them memory is read-only */
    tess_status s = tess__scope_pointers(t, scope, params, NULL, n);
    t->pass.guard = guard;
    return s;
}

static tess_status dismiss_scope(tess *t, tess_scope scope) {
    if (scope < 0 || scope >= t->plan.model.n_scopes || t->pass.summoned < 1 || !t->pass.entered[2 * scope])
        return tess__fail(TESS_E_INVALID, "tess_summon_end: scope %d is not summoned", scope);
    t->pass.entered[2 * scope]--;
    TRY(tess__compiler_event(&t->plan.compiler, TESS__FORWARD_END, scope));
    t->pass.summoned--;
    if (!t->pass.summoned)
        TRY(tess__compiler_end(&t->plan.compiler));
    TRY(tess__execute(t, &t->pass.pc, TESS__TO_END));
    if (!t->pass.summoned) {
        t->memory.deviating = 0;
        tess__overflow_drop(&t->memory);
    }
    return TESS_OK;
}

tess_status tess_summon_begin(tess *t, tess_scope scope, void *params, int32_t n) {
    TESS__PUBLIC(t, summon_scope(t, scope, params, n));
}

tess_status tess_summon_end(tess *t, tess_scope scope) {
    TESS__PUBLIC(t, dismiss_scope(t, scope));
}
