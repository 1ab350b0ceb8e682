/* SPDX-License-Identifier: BSD-3-Clause */
/* A program reads these of a running engine: the ledger, the trace, the statistics. */
#include "engine/state.h"

#include "kernels/norm.h"
#include <tessera/inspect.h>
#include <tessera/plugin_helpers.h>
#include "base/status.h"
#include "readers/planned.h"
#include "readers/stated.h"

#include <stdlib.h>
#include <string.h>

/* The errors of calls that only read do not end the engine. */
static tess_status check_reading(const tess *t, const char *call, const void *out, uint32_t struct_size) {
    if (!t || !t->sharded)
        return tess__fail(TESS_E_INVALID, "%s: the ledger begins with tess_shard", call);
    if (!out || struct_size < 8 || struct_size > 1 << 16)
        return tess__fail(TESS_E_INVALID, "%s: struct_size is %u; set it to the size of the struct", call,
                          out ? struct_size : 0);
    return TESS_OK;
}

tess_status tess_ledger_peak(const tess *t, tess_ledger_point *out) {
    TRY(check_reading(t, "tess_ledger_peak", out, out ? out->struct_size : 0));
    if (t->settings.plan_only)
        return tess__fail(TESS_E_INVALID, "tess_ledger_peak: this engine only plans; tess_ledger_plan reads that");
    tess_ledger_point p;
    tess__ledger_point(&t->memory.ledger, &t->plan.layout, -1, TESS_LEDGER_PEAK, &p);
    if (t->pass.kind)
        p.pass = tess__pass_name(t->pass.program->kind);
    p.held_bytes = t->memory.held ? t->memory.held->most : 0;
    TESS_GIVE(out, &p);
    return TESS_OK;
}

tess_status tess_ledger_reset(tess *t) {
    TRY(tess__engine_check(t));
    tess__ledger_reset(&t->memory.ledger);
    return TESS_OK;
}

tess_status tess_ledger_hook(tess *t, tess_ledger_fn fn, void *user) {
    TRY(tess__engine_check(t));
    t->recorder.ledger_hook = fn;
    t->recorder.ledger_user = user;
    return TESS_OK;
}

tess_status tess_ledger_held(tess *t, tess_held_fn fn, void *user) {
    TRY(tess__engine_check(t));
    tess__held *held = fn ? calloc(1, sizeof *held) : NULL;
    if (fn && !held)
        return tess__fail(TESS_E_NOMEM, "no memory to book the program's own");
    if (held)
        *held = (tess__held){ .fn = fn, .user = user };
    free(t->memory.held);
    t->memory.held = held;
    t->plan.holds = fn != NULL;
    return TESS_OK;
}

static void sum_group(const tess *t, const tess__group *g, tess_unit_info *out) {
    uint64_t align = t->plan.setup.align;
    out->n_params += g->n_params;
    out->shard_bytes += tess__round_up(g->shard_elems * tess_dtype_bytes(g->master), align);
    if (g->low_copy)
        out->copy_bytes += tess__round_up(g->shard_elems * tess_dtype_bytes(g->compute), align);
    if (!g->in_place)
        out->unsharded_bytes += tess__round_up(g->flat_elems * tess_dtype_bytes(g->compute), align);
    if (!g->trainable)
        return;
    if (!g->grad_in_place)
        out->gradient_bytes += tess__round_up(g->flat_elems * tess_dtype_bytes(g->grad_local), align);
    out->shard_gradient_bytes += tess__round_up(tess__shard_grad_bytes(g), align);
    for (int32_t k = 0; k < (int32_t)g->step.n_states; k++)
        out->state_bytes += tess__round_up(tess__state_bytes(g, k), align);
}

tess_status tess_ledger_unit(const tess *t, int32_t unit, tess_unit_info *out) {
    TRY(check_reading(t, "tess_ledger_unit", out, out ? out->struct_size : 0));
    if (unit < 0 || unit >= t->plan.layout.n_units)
        return tess__fail(TESS_E_INVALID, "tess_ledger_unit: %d is no unit; there are %d", unit,
                          t->plan.layout.n_units);
    const tess__unit *u = &t->plan.layout.units[unit];
    tess_unit_info info = { .struct_size = sizeof info, .name = u->name };
    for (int32_t g = u->first_group; g < u->first_group + u->n_groups; g++) {
        const tess__group *group = &t->plan.layout.groups[g];
        sum_group(t, group, &info);
        for (int32_t i = 0; i < group->n_params; i++)
            info.elems += t->plan.model.params[t->plan.layout.order[group->first_param + i]].elems;
    }
    if (t->memory.ledger.units)
        memcpy(info.live_bytes, t->memory.ledger.units[unit], sizeof info.live_bytes);
    TESS_GIVE(out, &info);
    return TESS_OK;
}

/* ---- the planned side ---- */

tess_status tess_ledger_plan(const tess *t, uint32_t of, tess_ledger_fn fn, void *user) {
    if (!t || !t->sharded || !fn)
        return tess__fail(TESS_E_INVALID, "tess_ledger_plan: a function to call, and tess_shard before it, are needed");
    if (!tess__ledger_programs(&t->plan, of, NULL))
        return tess__fail(TESS_E_INVALID, "tess_ledger_plan: %u is nothing that is planned", of);
    return tess__ledger_read(&t->plan, of, fn, user);
}

/* ---- tess_trace ---- */

static tess_status start_trace(tess *t, uint64_t spans) {
    TRY(tess__pass_finish(t));
    if (!t->sharded || t->settings.plan_only)
        return tess__fail(TESS_E_INVALID, "tess_trace before tess_shard");
    tess__tracing_end(t);
    if (!spans)
        return TESS_OK;
    return tess__tracing_start(t, spans);
}

tess_status tess_trace(tess *t, uint64_t spans) {
    TESS__PUBLIC(t, start_trace(t, spans));
}

static tess_status each_span(const tess *t, uint64_t step, tess_span_fn fn, void *user) {
    uint64_t n = tess__trace_read(t->recorder.trace, step, NULL, 0);
    tess__span *spans = malloc((n + 1) * sizeof *spans);
    tess_status s = TESS_OK;
    if (!spans)
        return tess__fail(TESS_E_NOMEM, "no memory for %llu spans", (unsigned long long)n);
    tess__trace_read(t->recorder.trace, step, spans, n);
    for (uint64_t i = 0; i < n && !s; i++) {
        tess__span_place at = tess__span_about(&spans[i], &t->plan.model, &t->plan.layout);
        tess_span span = { .struct_size = sizeof span,
                           .lane = tess__track_name(spans[i].track),
                           .op = tess__span_op(&spans[i]),
                           .unit = tess__span_unit(&spans[i], &t->plan.model, &t->plan.layout),
                           .step = step,
                           .start = spans[i].start,
                           .seconds = spans[i].seconds,
                           .scope = at.scope,
                           .block = at.block,
                           .unit_index = at.unit,
                           .wait = tess__span_is_wait(&spans[i]) };
        s = fn(user, &span);
    }
    free(spans);
    return s;
}

tess_status tess_trace_each(tess *t, uint64_t step, tess_span_fn fn, void *user) {
    TRY(tess__engine_check(t));
    if (!fn || !t->recorder.trace)
        return tess__fail(TESS_E_INVALID, "tess_trace_each: %s",
                          fn ? "nothing was recorded: tess_trace comes first" : "the function is missing");
    TRY(tess__streams_sync(&t->streams));
    TRY(tess__timeline_read(&t->recorder.timeline));
    return each_span(t, step, fn, user);
}

/* ---- statistics ---- */

/* It may have grown since the ledger changed. */
static void put_held(const tess *t, tess_stats *s) {
    tess__held *h = t->memory.held;
    s->whole_peak_bytes = t->memory.ledger.most[TESS_DOMAIN_DEVICE];
    if (!h)
        return;
    tess__held_ask(h, t->memory.ledger.total[TESS_DOMAIN_DEVICE]);
    s->held_bytes = h->now;
    s->held_peak_bytes = h->most;
    s->whole_peak_bytes = h->whole > s->whole_peak_bytes ? h->whole : s->whole_peak_bytes;
}

static void put_plugins(const tess *t, tess_stats *s) {
    const tess__plugin_book *b = &t->selection.book;
    for (uint32_t d = 1; d < 3; d++) {
        s->plugin_bytes[d] = atomic_load(&b->live[d]);
        s->plugin_peak_bytes[d] = atomic_load(&b->peak[d]);
        for (uint32_t c = 1; c < 16; c++)
            s->plugin_category_bytes[d][c] = atomic_load(&b->category_peak[d][c]);
    }
    s->plugin_stated_bytes = tess__stated_bytes(&t->plan);
}

static void put_disk(const tess *t, tess_stats *s) {
    const tess__program *any = tess__plan_fullest(&t->plan, TESS_DOMAIN_DISK);
    uint64_t planned = tess__planned_bytes(&t->plan, TESS_DOMAIN_DISK),
             before = t->mirror.planned_peak[TESS_DOMAIN_DISK];
    uint64_t sum = 0;
    s->disk_peak_bytes = t->memory.obtained_peak[TESS_DOMAIN_DISK];
    s->planned_disk_peak_bytes = before > planned ? before : planned;
    s->disk_live_bytes = t->memory.ledger.total[TESS_DOMAIN_DISK];
    for (uint32_t c = 1; c < 16; c++)
        sum += s->disk_category_bytes[c] = any->category_bytes[TESS_DOMAIN_DISK][c];
    s->disk_category_bytes[TESS_CAT_FRAGMENTATION] = s->planned_disk_peak_bytes - sum;
}

/* Reads the norm. If the device clipped, this waits for it, unless passes are waited for apart. */
static tess_status norm_of_step(const tess *t, double *out) {
    const int64_t *limbs = t->error ? NULL : t->streams.late ? t->streams.limbs : t->step.norm_limbs;
    if (limbs && !t->streams.late)
        TRY(tess__norm_wait(&t->streams));
    *out = limbs ? tess__norm_result(limbs) : t->step.has_norm ? t->step.norm : -1;
    return TESS_OK;
}

tess_status tess_stats_get(const tess *t, tess_stats *out) {
    if (!t || !out || !t->sharded)
        return tess__fail(TESS_E_INVALID, "statistics exist after tess_shard only");
    if (out->struct_size < 8 || out->struct_size > 1 << 16)
        return tess__fail(TESS_E_INVALID, "tess_stats_get: struct_size is %u; set it to sizeof(tess_stats)",
                          out->struct_size);
    int training = tess__steps_by_unit(&t->plan.model, &t->plan.setup) ? TESS__P_FUSED : TESS__P_TRAIN;
    tess_stats s = { .struct_size = out->struct_size,
                     .n_recompiles = t->pass.n_recompiles,
                     .n_skipped = t->step.n_skipped,
                     .loss_scale = t->scaler.now.scale,
                     .n_overflows = t->scaler.now.skipped,
                     .n_audits = t->audit.done,
                     .n_audit_failures = t->audit.failures,
                     .n_collectives = t->comms.n_collectives,
                     .n_units = (uint64_t)t->plan.layout.n_units,
                     .n_params = (uint64_t)t->plan.model.n_params,
                     .param_elems = t->plan.layout.param_elems,
                     .program_hash = t->plan.programs[training].hash };
    for (uint32_t d = 1; d < 3; d++) {
        s.peak_bytes[d] = t->memory.obtained_peak[d];
        s.planned_peak_bytes[d] = tess__planned_bytes(&t->plan, d);
        if (t->mirror.planned_peak[d] > s.planned_peak_bytes[d]) /* a group of ranks before this one planned more */
            s.planned_peak_bytes[d] = t->mirror.planned_peak[d];
        s.live_bytes[d] = t->memory.ledger.total[d];
        s.live_peak_bytes[d] = t->memory.ledger.most[d];
        memcpy(s.live_peak_category_bytes[d], t->memory.ledger.at_most[d], sizeof t->memory.ledger.at_most[d]);
        const tess__program *fullest = &t->plan.programs[0];
        for (int i = 1; i < TESS__N_PROGRAMS; i++)
            if (t->plan.programs[i].live_peak_bytes[d] > fullest->live_peak_bytes[d])
                fullest = &t->plan.programs[i];
        uint64_t sum = 0;
        for (uint32_t c = 1; c < 16; c++)
            sum += s.category_peak_bytes[d][c] = fullest->category_bytes[d][c];
        for (int32_t i = 0; d == TESS_DOMAIN_DEVICE && i < t->plan.n_user; i++) {
            s.category_peak_bytes[d][TESS_CAT_ACTIVATION] += t->memory.user[i].bytes;
            sum += t->memory.user[i].bytes;
        }
        s.category_peak_bytes[d][TESS_CAT_FRAGMENTATION] = s.planned_peak_bytes[d] - sum;
        for (int32_t i = 0; i < t->plan.resident.n_buffers; i++)
            if (t->plan.resident.buffers[i].domain == d && t->plan.resident.buffers[i].role != TESS__SHARD_GRAD)
                s.resting_bytes[d] += t->plan.resident.buffers[i].bytes;
    }
    put_disk(t, &s);
    put_plugins(t, &s);
    put_held(t, &s);
    TRY(norm_of_step(t, &s.grad_norm));
    TESS_GIVE(out, &s);
    return TESS_OK;
}

/* ---- for readers of plans ---- */

const tess__plan *tess__plan_of(const tess *t) {
    return &t->plan;
}

const tess__selection *tess__selection_of(const tess *t) {
    return &t->selection;
}

const tess__advice *tess__advice_of(const tess *t) {
    return &t->advice;
}
