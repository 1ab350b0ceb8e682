/* SPDX-License-Identifier: BSD-3-Clause */
#include "compile.h"

#include "base/hash.h"
#include "kit/norm_limbs.h"
#include "place.h"
#include "compile_audit.h"
#include "compile_blocks.h"
#include "compile_matrices.h"
#include "compile_states.h"
#include "compile_steps.h"
#include "compile_units.h"
#include "emit.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

/* ---- looking ahead ---- */

static int is_begin(uint8_t type) {
    return type == TESS__FORWARD_BEGIN || type == TESS__BACKWARD_BEGIN || type == TESS__RECOMPUTE_BEGIN;
}

/* Marks the units that one of the next `window` scopes to be entered holds. */
static void mark_used_soon(tess__compiler *b, int32_t window) {
    b->mark++;
    for (int32_t e = b->at + 1; b->ahead && e < b->ahead->n_events && window > 0; e++)
        if (is_begin(b->ahead->events[e].type)) {
            int32_t scope = b->ahead->events[e].scope;
            for (int32_t i = 0; i < b->n_scope_units[scope]; i++)
                b->units[b->scope_units[scope][i]].mark = b->mark;
            window--;
        }
}

static tess_status prefetch_scopes(tess__compiler *b) {
    int32_t left = b->setup->prefetch; /* gathers; behind them one more scope's shards come up */
    for (int32_t e = b->at + 1; b->ahead && e < b->ahead->n_events && left >= 0; e++)
        if (is_begin(b->ahead->events[e].type)) {
            int32_t scope = b->ahead->events[e].scope;
            for (int32_t i = 0; i < b->n_scope_units[scope]; i++)
                TRY(left > 0 ? tess__unit_gather_ahead(b, b->scope_units[scope][i])
                             : tess__unit_fetch(b, b->scope_units[scope][i]));
            left--;
        }
    return TESS_OK;
}

static void find_last_backward(tess__compiler *b) {
    for (int32_t u = 0; u < b->layout->n_units; u++)
        b->units[u].last_backward = -1;
    for (int32_t e = 0; b->ahead && e < b->ahead->n_events; e++)
        if (b->ahead->events[e].type == TESS__BACKWARD_BEGIN) {
            int32_t scope = b->ahead->events[e].scope;
            for (int32_t i = 0; i < b->n_scope_units[scope]; i++)
                b->units[b->scope_units[scope][i]].last_backward = e;
        }
}

/* ---- events ---- */

/* Adds a ledger point for each unit that the scope holds. */
static tess_status add_points(tess__compiler *b, uint8_t type, int32_t scope, uint32_t flags) {
    static const uint32_t of[] = { 0,
                                   TESS_LEDGER_PRE_FORWARD,
                                   TESS_LEDGER_POST_FORWARD,
                                   TESS_LEDGER_PRE_BACKWARD,
                                   TESS_LEDGER_POST_BACKWARD,
                                   TESS_LEDGER_PRE_FORWARD,
                                   TESS_LEDGER_POST_FORWARD };
    for (int32_t i = 0; !b->params_only && i < b->n_scope_units[scope]; i++)
        TRY(tess__program_point(b->p, of[type] | flags, b->scope_units[scope][i]));
    return TESS_OK;
}

/* Emits all that precedes ENTER. */
static tess_status prepare_scope(tess__compiler *b, uint8_t type, int32_t scope) {
    int32_t n = b->n_scope_units[scope], *units = b->scope_units[scope];
    int32_t block = b->params_only ? -1 : b->model->scopes[scope].block;
    if (b->setup->prefetch == 0 &&
        type != TESS__FORWARD_BEGIN) { /* prefetch 0 moves nothing beside a scope, which takes the least memory */
        TRY(tess__unit_end_reduce(b));
        TRY(tess__unit_end_replicate(b));
    }
    for (int32_t i = 0; i < n; i++)
        TRY(tess__unit_gather(b, units[i]));
    for (int32_t i = 0; i < n; i++)
        TRY(tess__unit_wait(b, units[i]));
    TRY(prefetch_scopes(b));
    for (int32_t i = 0; type == TESS__BACKWARD_BEGIN && i < n; i++) {
        TRY(tess__unit_begin_grad(b, units[i], 0));
        TRY(tess__unit_states_ahead(b, units[i]));
    }
    if (block >= 0) {
        TRY(tess__block_begin(b, type, block));
        TRY(tess__audit_begin(b, type, block));
    }
    return add_points(b, type, scope, TESS_LEDGER_AFTER);
}

static tess_status enter_scope(tess__compiler *b, uint8_t type, int32_t scope) {
    for (int32_t i = 0; i < b->n_scope_units[scope]; i++) {
        tess__unit_state *u = &b->units[b->scope_units[scope][i]];
        u->open++;
        u->uses += type == TESS__FORWARD_BEGIN;
    }
    return tess__program_instr(b->p, TESS__ENTER, 0, b->p->n_events - 1, -1, 0);
}

static int keeps_unit(const tess__compiler *b, int32_t u, uint8_t type) {
    int train = (b->p->kind & 15) == TESS_PASS_TRAIN;
    if (b->units[u].open > 0 || b->units[u].mark == b->mark)
        return 1;
    return b->setup->keep_forward && train && type != TESS__BACKWARD_END;
}

static int gradient_is_complete(const tess__compiler *b, int32_t u) {
    const tess__unit_state *s = &b->units[u];
    if (!s->grad || s->open > 0)
        return 0;
    return b->ahead ? s->last_backward < b->at : s->uses <= 0;
}

static tess_status leave_scope(tess__compiler *b, uint8_t type, int32_t scope) {
    int32_t n = b->n_scope_units[scope], *units = b->scope_units[scope];
    int32_t block = b->params_only ? -1 : b->model->scopes[scope].block;
    TRY(tess__program_instr(b->p, TESS__LEAVE, 0, b->p->n_events - 1, -1, 0));
    if (block >= 0) {
        TRY(tess__audit_end(b, type, block));
        TRY(tess__block_end(b, type, block));
    }
    mark_used_soon(b, b->setup->prefetch + 1);
    for (int32_t i = 0; i < n; i++) {
        b->units[units[i]].open--;
        if (type == TESS__BACKWARD_END)
            b->units[units[i]].uses--;
        if (!keeps_unit(b, units[i], type))
            TRY(tess__unit_release(b, units[i]));
    }
    for (int32_t i = n; type == TESS__BACKWARD_END && i-- > 0;)
        if (gradient_is_complete(b, units[i]))
            TRY(tess__unit_reduce(b, units[i]));
    return TESS_OK;
}

/* Emits a pass up to the event's ENTER or LEAVE. */
static tess_status prepare_event(tess__compiler *b, uint8_t type, int32_t scope) {
    TRY(tess__program_event(b->p, type, scope));
    TRY(add_points(b, type, scope, 0));
    return is_begin(type) ? prepare_scope(b, type, scope) : TESS_OK;
}

tess_status tess__compiler_event(tess__compiler *b, uint8_t type, int32_t scope) {
    TRY(prepare_event(b, type, scope));
    if (is_begin(type))
        return enter_scope(b, type, scope);
    TRY(leave_scope(b, type, scope));
    return add_points(b, type, scope, TESS_LEDGER_AFTER);
}

tess_status tess__compiler_end(tess__compiler *b) {
    int train = (b->p->kind & 15) == TESS_PASS_TRAIN;
    for (int32_t u = 0; u < b->layout->n_units; u++) {
        TRY(tess__unit_wait(b, u));
        TRY(tess__unit_release(b, u));
        TRY(tess__unit_drop(b, u));
    }
    for (int32_t u = b->layout->n_units; train && u-- > 0;)
        if (b->layout->units[u].trainable && !b->units[u].reduced) {
            TRY(tess__unit_begin_grad(b, u, 1)); /* no backward touched the unit, so its gradient is zero */
            TRY(tess__unit_reduce(b, u));
        }
    TRY(tess__unit_end_reduce(b));
    TRY(tess__unit_end_replicate(b));
    TRY(tess__unit_end_host_work(b));
    TRY(tess__unit_end_stores(b));
    TRY(tess__matrices_flush(b));
    TRY(tess__states_end(b));
    TRY(tess__grad_end(b));
    for (int32_t i = 0; i < b->model->n_blocks; i++) {
        TRY(tess__emit_free(b, TESS__OUTPUT, i));
        TRY(tess__emit_free(b, TESS__SAVED, i));
    }
    return tess__emit_free(b, TESS__INPUT, 0);
}

/* ---- whole programs ---- */

void tess__compiler_start(tess__compiler *b, tess__program *p, uint32_t kind) {
    tess__program_clear(p);
    p->kind = kind;
    b->p = p;
    b->ahead = NULL;
    b->at = 0;
    b->fused = b->params_only = 0;
    b->reducing = b->replicating = b->on_host = b->leaving = -1;
    b->begun = b->coming = b->going = b->storing = b->storing_grad = -1;
    b->ordinal = 0;
    b->mark = 0;
    memset(b->units, 0, (size_t)b->layout->n_units * sizeof *b->units);
    for (size_t i = 0; i < (size_t)TESS__N_ROLES * (size_t)b->stride; i++)
        b->buffer_of[i] = -1;
}

static tess_status declared_events(const tess__compiler *b, uint32_t kind, tess__program *out) {
    const tess__model *m = b->model;
    int32_t n = m->n_blocks ? m->n_blocks : m->n_scopes;
    for (int32_t i = 0; i < n; i++) {
        int32_t scope = m->n_blocks ? m->blocks[i].scope : i;
        TRY(tess__program_event(out, TESS__FORWARD_BEGIN, scope));
        TRY(tess__program_event(out, TESS__FORWARD_END, scope));
    }
    for (int32_t i = n; (kind & 15) == TESS_PASS_TRAIN && i-- > 0;) {
        int32_t scope = m->n_blocks ? m->blocks[i].scope : i;
        if (m->n_blocks && tess__block_recomputes(b, i) && !tess__block_remakes(b, i)) {
            TRY(tess__program_event(out, TESS__RECOMPUTE_BEGIN, scope));
            TRY(tess__program_event(out, TESS__RECOMPUTE_END, scope));
        }
        TRY(tess__program_event(out, TESS__BACKWARD_BEGIN, scope));
        TRY(tess__program_event(out, TESS__BACKWARD_END, scope));
    }
    return TESS_OK;
}

/* Closes the lives of step buffers, places them and hashes the whole. */
static tess_status finish_program(tess__compiler *b, int with_grads, tess__program *out) {
    for (int32_t i = 0; i < out->n_buffers; i++)
        if (out->buffers[i].last == INT32_MAX)
            out->buffers[i].last = out->n_instrs;
    tess__program resident = { 0 }, lent = { 0 };
    tess_status s = tess__resident(b->setup, b->layout, with_grads, &resident);
    int may_see = out->kind == TESS__PASS_CLIP || !tess__steps_in_pass(b->model, b->setup);
    if (!s && may_see && (out->kind & 15) != TESS_PASS_TRAIN) /* gradients wait for their step in the step arena */
        s = tess__resident(b->setup, b->layout, 1, &lent);
    if (!s)
        s = tess__assign_offsets(out, &resident, &lent, b->setup->align, tess__host_align(b->setup, b->layout));
    tess__program_free(&resident);
    tess__program_free(&lent);
    out->hash = tess__program_hash(out);
    return s;
}

/* Each rank's running statistics are of its own data; an evaluation uses rank 0's on all ranks. */
static tess_status share_buffers(tess__compiler *b) {
    const tess__setup *s = b->setup;
    if ((b->p->kind & 15) != TESS_PASS_EVAL || s->nranks == 1 || !b->layout->buffer_bytes)
        return TESS_OK;
    tess__planned_collective c =
        tess__emit_collective(b, TESS_BROADCAST, TESS__WORLD, TESS_U8, TESS_U8, b->layout->buffer_bytes);
    TRY(tess__emit_scratch(b, TESS__CHUNK_SCRATCH, 0, -1, &c));
    TRY(tess__emit_post(b, TESS__SHARE_BUFFERS, 0, 0, &c));
    return tess__emit_free(b, TESS__CHUNK_SCRATCH, 0);
}

/* Compiles the first `n` of `events` with all of them in view. */
static tess_status compile_events(tess__compiler *b, uint32_t kind, const tess__program *events, int32_t n, int fused,
                                  tess__program *out) {
    tess__compiler_start(b, out, kind);
    b->ahead = events;
    b->fused = fused;
    find_last_backward(b);
    TRY(share_buffers(b));
    if (b->model->n_blocks) {
        TRY(tess__emit_alloc(b, TESS__INPUT, 0, TESS_CAT_INPUT, -1, b->setup->input_bytes, 0));
        TRY(tess__emit(b, TESS__INPUT_COPY, 0));
    }
    for (b->at = 0; b->at < n; b->at++)
        TRY(tess__compiler_event(b, events->events[b->at].type, events->events[b->at].scope));
    return TESS_OK;
}

tess_status tess__compile_pass(tess__compiler *b, uint32_t kind, const tess__program *events, int fused,
                               tess__program *out) {
    tess__program declared = { 0 };
    tess_status s = events ? TESS_OK : declared_events(b, kind, &declared);
    if (!events)
        events = &declared;
    if (!s)
        s = compile_events(b, kind, events, events->n_events, fused, out);
    if (!s)
        s = tess__compiler_end(b);
    if (!s)
        s = finish_program(b, b->setup->accum > 1, out);
    b->ahead = NULL;
    tess__program_free(&declared);
    return s;
}

/* Compiles a pass that has done all before the event at `at`, which then did not come. */
static tess_status compile_up_to(tess__compiler *b, const tess__program *of, int32_t at, tess__program *out) {
    TRY(compile_events(b, of->kind, of, at, 0, out));
    if (at == of->n_events)
        return tess__compiler_end(b);
    TRY(prepare_event(b, of->events[at].type, of->events[at].scope));
    out->n_events--;
    return TESS_OK;
}

tess_status tess__compile_again(tess__compiler *b, const tess__program *of, int32_t pc, tess__program *out) {
    int32_t at = 0;
    for (int32_t i = 0; i < pc; i++)
        at += of->instrs[i].op == TESS__ENTER || of->instrs[i].op == TESS__LEAVE;
    tess_status s = compile_up_to(b, of, at, out);
    b->ahead = NULL;
    if (!s && (out->n_instrs != pc || out->n_buffers > of->n_buffers))
        s = tess__fail(TESS_E_INTERNAL, "a pass compiled again has %d instructions up to its event %d instead of %d",
                       out->n_instrs, at, pc);
    for (int32_t i = 0; !s && i < out->n_buffers; i++)
        out->buffers[i].offset = of->buffers[i].offset;
    return s;
}

static tess_status compile_norm(tess__compiler *b) {
    tess__planned_collective c =
        tess__emit_collective(b, TESS_ALL_REDUCE, TESS__SHARD, TESS_I64, TESS_I64, TESS__NORM_LIMBS);
    c.redop = TESS_SUM;
    TRY(tess__emit_alloc(b, TESS__LIMBS, 0, TESS_CAT_COMM, -1, TESS__NORM_LIMBS * 8, TESS__ZERO));
    for (int32_t g = 0; g < b->layout->n_groups; g++)
        if (b->layout->groups[g].trainable) {
            TRY(tess__grad_need(b, g));
            TRY(tess__emit(b, TESS__NORM_GROUP, g));
            TRY(tess__grad_free(b, g));
        }
    TRY(tess__emit_scratch(b, TESS__LIMBS_SCRATCH, 0, -1, &c));
    TRY(tess__emit_post(b, TESS__NORM_REDUCE, 0, 0, &c));
    TRY(tess__emit_free(b, TESS__LIMBS_SCRATCH, 0));
    return tess__emit(b, TESS__NORM_FINISH, 0);
}

/* Compiles tess_each_full: owners broadcast their pieces, one at a time. */
static tess_status compile_full(tess__compiler *b) {
    uint64_t scratch = 0, bytes = 0;
    for (int32_t g = 0; g < b->layout->n_groups; g++) {
        uint64_t wide = b->layout->chunk_elems * tess_dtype_bytes(b->layout->groups[g].master);
        bytes = wide > bytes ? wide : bytes;
    }
    if (b->setup->shard_ranks > 1)
        TRY(tess__scratch_of(b->setup, TESS_BROADCAST, TESS_U8, TESS_U8, bytes, b->setup->shard_ranks, &scratch));
    TRY(tess__emit_alloc(b, TESS__CHUNK, 0, TESS_CAT_COMM, -1, bytes, 0));
    return tess__emit_alloc(b, TESS__CHUNK_SCRATCH, 0, TESS_CAT_COMM, -1, scratch, 0);
}

tess_status tess__compile_other(tess__compiler *b, uint32_t kind, tess__program *out) {
    tess__compiler_start(b, out, kind);
    if (kind == TESS__PASS_CLIP)
        TRY(tess__states_begin(b)); /* beside the norm */
    if (kind == TESS__PASS_NORM || kind == TESS__PASS_CLIP)
        TRY(compile_norm(b));
    if (kind == TESS__PASS_STEP || kind == TESS__PASS_CLIP)
        TRY(tess__compile_steps(b));
    TRY(tess__emit_free(b, TESS__LIMBS, 0)); /* a device keeps the factor for clipping there */
    if (kind == TESS__PASS_FULL)
        TRY(compile_full(b));
    return finish_program(b, kind != TESS__PASS_FULL, out);
}
