/* The hooks: an existing loop calls begin and end, and the program runs on between them. */
#include "engine.h"

#include "log.h"
#include "poison.h"
#include "status.h"
#include "try.h"

#include <stdio.h>
#include <string.h>

/* ---- pointers ---- */

static void *param_at(const tess *t, const tess__param *p) {
    if (p->flags & TESS_BUFFER)
        return (char *)tess__at(t, TESS__BUFFERS, 0) + p->offset;
    const tess__group *g = &t->layout.groups[p->group];
    char *base = tess__at(t, g->in_place ? TESS__MASTER : TESS__FULL, p->group);
    return base + p->offset * tess__dtype_bytes(g->compute);
}

static void *grad_at(const tess *t, const tess__param *p) {
    if (p->flags & (TESS_BUFFER | TESS_FROZEN))
        return NULL;
    const tess__group *g = &t->layout.groups[p->group];
    char *base = tess__at(t, g->grad_in_place ? TESS__SHARD_GRAD : TESS__GRAD, p->group);
    return base + p->offset * tess__dtype_bytes(g->grad_local);
}

void tess__hand_out(const tess *t, int32_t scope, void *params, void *grads) {
    const tess__scope *s = &t->model.scopes[scope];
    for (int32_t i = 0; i < s->n_params; i++) {
        const tess__param *p = &t->model.params[s->params[i]];
        void *param = param_at(t, p);
        memcpy((char *)params + (size_t)i * sizeof param, &param, sizeof param);
        if (grads) {
            void *grad = grad_at(t, p);
            memcpy((char *)grads + (size_t)i * sizeof grad, &grad, sizeof grad);
        }
    }
}

static tess_status check_scope(const tess *t, const char *call, tess_scope scope, const void *params, int32_t n) {
    if (scope < 0 || scope >= t->model.n_scopes)
        return tess__fail(TESS_E_INVALID, "%s: %d is no scope; there are %d", call, scope, t->model.n_scopes);
    const tess__scope *s = &t->model.scopes[scope];
    if (n != s->n_params || (n && !params))
        return tess__fail(TESS_E_INVALID, "%s: scope \"%s\" has %d parameters, room for %d was given", call, s->name,
                          s->n_params, params ? n : 0);
    return TESS_OK;
}

/* ---- a pass that departs from the compiled order ---- */

/* What the instructions so far have done to the units, for the builder to go on from. */
static void replay(tess *t, const tess__program *old, const tess__instr *in) {
    tess__builder *b = &t->builder;
    int32_t unit = in->index >= 0 && in->index < t->layout.n_groups ? t->layout.groups[in->index].unit : -1;
    if (in->op == TESS__FETCH)
        b->units[unit].fetched = 1;
    else if (in->op == TESS__GATHER)
        b->units[unit].gathered = TESS__IN_FLIGHT, b->units[unit].fetched = 0;
    else if (in->op == TESS__GATHER_WAIT)
        b->units[unit].gathered = TESS__HERE;
    else if (in->op == TESS__REDUCE || in->op == TESS__REPLICATE)
        b->reducing = unit;
    else if (in->op == TESS__REDUCE_WAIT || in->op == TESS__REPLICATE_WAIT)
        b->reducing = -1, b->lowering = unit;
    else if (in->op == TESS__DOWN_WAIT)
        b->lowering = -1;
    if (in->op == TESS__REDUCE || in->op == TESS__REPLICATE || in->op == TESS__SUM_FULL) {
        b->units[unit].grad = 0;
        b->units[unit].reduced = 1;
    }
    if (in->op == TESS__ENTER || in->op == TESS__LEAVE) {
        const tess__event *e = &old->events[in->index];
        for (int32_t i = 0; i < b->n_scope_units[e->scope]; i++) {
            tess__unit_state *u = &b->units[b->scope_units[e->scope][i]];
            u->open += in->op == TESS__ENTER ? 1 : -1;
            u->uses += e->type == TESS__FORWARD_BEGIN ? 1 : e->type == TESS__BACKWARD_END ? -1 : 0;
        }
    }
    b->ordinal += in->tag != 0;
}

static tess_status replay_memory(tess *t, const tess__program *old, const tess__instr *in) {
    tess__builder *b = &t->builder;
    const tess__buffer *from = &old->buffers[in->buffer];
    int32_t *slot = &b->buffer_of[(size_t)from->role * (size_t)b->stride + (size_t)from->index];
    if (in->op == TESS__FREE) {
        *slot = -1;
        if (from->role == TESS__FULL)
            b->units[from->unit].gathered = TESS__ABSENT;
        return TESS_OK;
    }
    if (from->role == TESS__GRAD || (from->role == TESS__SHARD_GRAD && t->layout.groups[from->index].grad_in_place))
        b->units[from->unit].grad = 1;
    return tess__program_buffer(b->p, from, slot);
}

static tess_status take_live(tess *t) {
    const tess__builder *b = &t->builder;
    tess__heap_reset(&t->heap, t->arena_bytes[TESS_DOMAIN_DEVICE][TESS__STEP]);
    for (size_t i = 0; i < (size_t)TESS__N_ROLES * (size_t)b->stride; i++)
        if (b->buffer_of[i] >= 0 && b->p->buffers[b->buffer_of[i]].arena == TESS__STEP &&
            b->p->buffers[b->buffer_of[i]].domain == TESS_DOMAIN_DEVICE)
            TRY(tess__heap_take(&t->heap, b->p->buffers[b->buffer_of[i]].offset, b->p->buffers[b->buffer_of[i]].bytes));
    return TESS_OK;
}

static tess_status depart(tess *t, uint8_t type, int32_t scope) {
    tess__program *old = t->program;
    TRY(tess__execute(t, &t->pc, TESS__TO_EVENT));
    if (t->strict) {
        const char *what = scope < 0                      ? "the end of the pass"
                           : type == TESS__FORWARD_BEGIN  ? "begin of forward of"
                           : type == TESS__FORWARD_END    ? "end of forward of"
                           : type == TESS__BACKWARD_BEGIN ? "begin of backward of"
                                                          : "end of backward of";
        char expected[256] = "the end of the pass";
        if (t->pc < old->n_instrs)
            tess__program_text(old, &t->model, &t->layout, t->pc, expected, sizeof expected);
        return tess__fail(TESS_E_MISMATCH,
                          "the pass departs from the declared order: expected %s, got %s%s%s%s (TESSERA_STRICT=1)",
                          expected, what, scope < 0 ? "" : " \"", scope < 0 ? "" : t->model.scopes[scope].name,
                          scope < 0 ? "" : "\"");
    }
    tess__builder_start(&t->builder, &t->departed, old->kind);
    for (int32_t i = 0; i < t->pc; i++) {
        const tess__instr *in = &old->instrs[i];
        replay(t, old, in);
        if (in->op == TESS__BOOK || in->op == TESS__FREE)
            TRY(replay_memory(t, old, in));
        if (in->op == TESS__ENTER || in->op == TESS__LEAVE)
            TRY(tess__program_event(&t->departed, old->events[in->index].type, old->events[in->index].scope));
    }
    TRY(take_live(t));
    t->program = &t->departed;
    t->pc = t->next_point = 0;
    t->departing = 1;
    return TESS_OK;
}

static int program_slot(uint32_t kind) {
    return kind == TESS_PASS_EVAL ? TESS__P_EVAL : kind & TESS_PASS_NO_SYNC ? TESS__P_NO_SYNC : TESS__P_TRAIN;
}

static void drop_overflow(tess *t) {
    for (int32_t i = 0; i < t->n_overflow; i++) {
        tess_buffer *b = &t->overflow[i].memory;
        t->obtained[t->overflow[i].domain] -= b->bytes;
        if (tess__host_reads(t, t->overflow[i].domain))
            tess__unpoison(b->ptr, b->bytes);
        t->dev->mem_free(t->device, b);
    }
    t->n_overflow = 0;
}

static tess_status grow_step_arena(tess *t) {
    for (uint32_t d = 1; d < 3; d++) {
        uint64_t most = 0;
        for (int i = 0; i < TESS__N_PROGRAMS; i++)
            if (t->programs[i].step_bytes[d] > most)
                most = t->programs[i].step_bytes[d];
        if (most <= t->arena_bytes[d][TESS__STEP])
            continue;
        tess__arena_release(t, d, TESS__STEP);
        TRY(tess__arena_obtain(t, d, TESS__STEP, most));
    }
    return TESS_OK;
}

/* The order just seen becomes the compiled one, on all ranks together. */
static tess_status recompile(tess *t) {
    tess__program fresh = { 0 };
    uint32_t kind = t->departed.kind;
    tess__program *slot = &t->programs[program_slot(kind)];
    tess_status s = tess__compile_pass(&t->builder, kind, &t->departed, 0, &fresh);
    if (s) {
        tess__program_free(&fresh);
        return s;
    }
    tess__program_free(slot);
    *slot = fresh;
    t->n_recompiles++;
    if (t->world.rank == 0)
        tess__log(TESS_LOG_INFO, "the order of scopes departs from the declared one: recompiled (%s pass, time %llu)",
                  kind == TESS_PASS_EVAL ? "evaluation" : "training", (unsigned long long)t->n_recompiles);
    TRY(tess__handshake_programs(t, slot, 1));
    TRY(tess__check_budget(t));
    return grow_step_arena(t);
}

/* ---- start and end of a pass ---- */

tess_status tess__pass_start(tess *t, tess__program *program, uint32_t kind) {
    t->program = program;
    t->pc = t->next_point = 0;
    t->pass = kind;
    t->departing = 0;
    int train = (kind & 15) == TESS_PASS_TRAIN;
    for (int32_t i = 0; train && t->setup.accum > 1 && t->microbatch == 0 && i < t->resident.n_buffers; i++) {
        const tess__buffer *b = &t->resident.buffers[i];
        if (b->role == TESS__SHARD_GRAD && !t->booked[b->role][b->index])
            tess__book(t, b, NULL);
    }
    return TESS_OK;
}

tess_status tess__pass_finish(tess *t) {
    if (!t->pass)
        return TESS_OK;
    for (int32_t k = 0; k < 2 * t->model.n_scopes; k++)
        if (t->entered[k])
            return tess__fail(TESS_E_INVALID, "the pass ends while %s of scope \"%s\" has begun and not ended",
                              k % 2 ? "backward" : "forward", t->model.scopes[k / 2].name);
    int ends_early = 0;
    for (int32_t i = t->pc; !t->departing && i < t->program->n_instrs; i++)
        ends_early |= t->program->instrs[i].op == TESS__ENTER || t->program->instrs[i].op == TESS__LEAVE;
    if (ends_early)
        TRY(depart(t, TESS__FORWARD_END, -1));
    if (t->departing)
        TRY(tess__builder_end(&t->builder));
    TRY(tess__execute(t, &t->pc, TESS__TO_END));
    if ((t->pass & 15) == TESS_PASS_TRAIN) {
        t->microbatch++;
        t->pending_grads = 1;
    }
    t->pass = 0;
    if (!t->departing)
        return TESS_OK;
    t->departing = 0;
    drop_overflow(t);
    return recompile(t);
}

static tess_status start(tess *t, uint32_t kind) {
    TRY(tess__pass_finish(t));
    if (!t->sharded || t->plan_only)
        return tess__fail(TESS_E_INVALID, "tess_pass before tess_shard");
    if (t->model.n_blocks)
        return tess__fail(TESS_E_INVALID, "tess_pass: this model declares blocks, which run by tess_run");
    if (t->summoned)
        return tess__fail(TESS_E_INVALID, "tess_pass while parameters are summoned");
    if (kind != TESS_PASS_EVAL && (kind & ~(uint32_t)TESS_PASS_NO_SYNC) != TESS_PASS_TRAIN)
        return tess__fail(TESS_E_INVALID, "tess_pass: %u is no kind of pass", kind);
    int at_end = t->setup.accum > 1 && !t->setup.sync_each, last = t->microbatch == t->setup.accum - 1;
    if (kind != TESS_PASS_EVAL && t->microbatch >= t->setup.accum)
        return tess__fail(TESS_E_INVALID,
                          "tess_pass: %d microbatches are declared per step (accum) and all have run; "
                          "tess_step or tess_grad_drop comes next",
                          t->setup.accum);
    if (kind & TESS_PASS_NO_SYNC && (!at_end || last))
        return tess__fail(TESS_E_INVALID, "tess_pass: a pass without communication needs accum > 1 and sync=end, and "
                                          "cannot be the last of its step");
    if (kind == TESS_PASS_TRAIN && at_end && !last)
        kind |= TESS_PASS_NO_SYNC;
    return tess__pass_start(t, &t->programs[program_slot(kind)], kind);
}

/* Runs a public call's body and makes its failure sticky. */
#define PUBLIC(t, body)                                                                                                \
    do {                                                                                                               \
        tess_status public_status = tess__engine_check(t);                                                             \
        if (public_status)                                                                                             \
            return public_status;                                                                                      \
        public_status = (body);                                                                                        \
        return public_status ? tess__engine_fail(t, public_status) : TESS_OK;                                          \
    } while (0)

tess_status tess_pass(tess *t, uint32_t kind) {
    PUBLIC(t, start(t, kind));
}

/* ---- begin and end ---- */

static tess_status go_to(tess *t, uint8_t type, int32_t scope) {
    int begin = type == TESS__FORWARD_BEGIN || type == TESS__BACKWARD_BEGIN;
    if (!t->pass)
        return tess__fail(TESS_E_INVALID, "scope \"%s\" is entered outside a pass; tess_pass comes first",
                          t->model.scopes[scope].name);
    if (type >= TESS__BACKWARD_BEGIN && (t->pass & 15) != TESS_PASS_TRAIN)
        return tess__fail(TESS_E_INVALID, "backward of scope \"%s\" in an evaluation", t->model.scopes[scope].name);
    int32_t *entered = &t->entered[2 * scope + (type >= TESS__BACKWARD_BEGIN)];
    if (!begin && !*entered)
        return tess__fail(TESS_E_INVALID, "%s of scope \"%s\" ends without having begun",
                          type == TESS__FORWARD_END ? "forward" : "backward", t->model.scopes[scope].name);
    *entered += begin ? 1 : -1;
    if (!t->departing) {
        TRY(tess__execute(t, &t->pc, TESS__TO_EVENT));
        const tess__instr *in = t->pc < t->program->n_instrs ? &t->program->instrs[t->pc] : NULL;
        if (in && in->op == (begin ? TESS__ENTER : TESS__LEAVE) && t->program->events[in->index].type == type &&
            t->program->events[in->index].scope == scope) {
            t->pc++;
            return begin ? TESS_OK : tess__execute(t, &t->pc, TESS__TO_WAIT);
        }
        TRY(depart(t, type, scope));
    }
    TRY(tess__builder_event(&t->builder, type, scope));
    return tess__execute(t, &t->pc, TESS__TO_END);
}

static tess_status begin(tess *t, const char *call, uint8_t type, tess_scope scope, void *params, void *grads,
                         int32_t n) {
    TRY(check_scope(t, call, scope, params, n));
    TRY(go_to(t, type, scope));
    tess__doing_event(t, &(tess__event){ .type = type, .scope = scope });
    tess__hand_out(t, scope, params, grads);
    if (t->trace)
        t->entered_ns[2 * scope + (type >= TESS__BACKWARD_BEGIN)] = tess__trace_now();
    return TESS_OK;
}

static tess_status end(tess *t, const char *call, uint8_t type, tess_scope scope) {
    if (scope < 0 || scope >= t->model.n_scopes)
        return tess__fail(TESS_E_INVALID, "%s: %d is no scope; there are %d", call, scope, t->model.n_scopes);
    int backward = type >= TESS__BACKWARD_BEGIN;
    uint8_t began = backward ? TESS__BACKWARD_BEGIN : TESS__FORWARD_BEGIN;
    if (t->trace && t->entered[2 * scope + backward])
        tess__tracing_event(t, &(tess__event){ began, scope }, t->entered_ns[2 * scope + backward]);
    return go_to(t, type, scope);
}

tess_status tess_forward_begin(tess *t, tess_scope scope, void *params, int32_t n) {
    PUBLIC(t, begin(t, "tess_forward_begin", TESS__FORWARD_BEGIN, scope, params, NULL, n));
}

tess_status tess_forward_end(tess *t, tess_scope scope) {
    PUBLIC(t, end(t, "tess_forward_end", TESS__FORWARD_END, scope));
}

tess_status tess_backward_begin(tess *t, tess_scope scope, void *params, void *grads, int32_t n) {
    PUBLIC(t, begin(t, "tess_backward_begin", TESS__BACKWARD_BEGIN, scope, params, grads, n));
}

tess_status tess_backward_end(tess *t, tess_scope scope) {
    PUBLIC(t, end(t, "tess_backward_end", TESS__BACKWARD_END, scope));
}

/* ---- summon ---- */

static tess_status summon(tess *t, tess_scope scope, void *params, int32_t n) {
    if (!t->sharded || t->plan_only)
        return tess__fail(TESS_E_INVALID, "tess_summon_begin before tess_shard");
    TRY(check_scope(t, "tess_summon_begin", scope, params, n));
    TRY(tess__pass_finish(t));
    if (!t->summoned) {
        tess__builder_start(&t->builder, &t->departed, TESS_PASS_EVAL);
        t->builder.params_only = 1;
        tess__heap_reset(&t->heap, t->arena_bytes[TESS_DOMAIN_DEVICE][TESS__STEP]);
        t->program = &t->departed;
        t->pc = t->next_point = 0;
        t->departing = 1;
    }
    t->summoned++;
    t->entered[2 * scope]++;
    TRY(tess__builder_event(&t->builder, TESS__FORWARD_BEGIN, scope));
    TRY(tess__execute(t, &t->pc, TESS__TO_END));
    tess__hand_out(t, scope, params, NULL);
    return TESS_OK;
}

static tess_status dismiss(tess *t, tess_scope scope) {
    if (scope < 0 || scope >= t->model.n_scopes || t->summoned < 1 || !t->entered[2 * scope])
        return tess__fail(TESS_E_INVALID, "tess_summon_end: scope %d is not summoned", scope);
    t->entered[2 * scope]--;
    TRY(tess__builder_event(&t->builder, TESS__FORWARD_END, scope));
    t->summoned--;
    if (!t->summoned)
        TRY(tess__builder_end(&t->builder));
    TRY(tess__execute(t, &t->pc, TESS__TO_END));
    if (!t->summoned) {
        t->departing = 0;
        drop_overflow(t);
    }
    return TESS_OK;
}

tess_status tess_summon_begin(tess *t, tess_scope scope, void *params, int32_t n) {
    PUBLIC(t, summon(t, scope, params, n));
}

tess_status tess_summon_end(tess *t, tess_scope scope) {
    PUBLIC(t, dismiss(t, scope));
}
