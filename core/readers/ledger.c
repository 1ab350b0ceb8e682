/* SPDX-License-Identifier: BSD-3-Clause */
#include "ledger.h"

#include <tessera/plugin_helpers.h>
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

/* ---- the books ---- */

tess_status tess__ledger_create(tess__ledger *l, int32_t n_units) {
    l->units = calloc((size_t)n_units + 1, sizeof *l->units);
    l->n_units = n_units;
    return l->units ? TESS_OK : tess__fail(TESS_E_NOMEM, "no memory for the ledger of %d units", n_units);
}

void tess__ledger_free(tess__ledger *l) {
    free(l->units);
    *l = (tess__ledger){ 0 };
}

static void change_bytes(tess__ledger *l, uint32_t domain, uint32_t category, int32_t unit, uint64_t by) {
    l->live[domain][category] += by;
    l->total[domain] += by;
    if (l->units && unit >= 0 && unit < l->n_units)
        l->units[unit][domain][category] += by;
}

void tess__ledger_add(tess__ledger *l, uint32_t domain, uint32_t category, int32_t unit, uint64_t bytes) {
    change_bytes(l, domain, category, unit, bytes);
    if (l->total[domain] > l->peak[domain]) {
        l->peak[domain] = l->total[domain];
        memcpy(l->at_peak[domain], l->live[domain], sizeof l->live[domain]);
    }
    if (l->total[domain] > l->most[domain]) {
        l->most[domain] = l->total[domain];
        memcpy(l->at_most[domain], l->live[domain], sizeof l->live[domain]);
    }
}

void tess__ledger_take(tess__ledger *l, uint32_t domain, uint32_t category, int32_t unit, uint64_t bytes) {
    change_bytes(l, domain, category, unit, 0 - bytes);
}

void tess__ledger_reset(tess__ledger *l) {
    memcpy(l->at_peak, l->live, sizeof l->live);
    memcpy(l->peak, l->total, sizeof l->total);
    l->n_points = 0;
}

/* ---- names ---- */

const char *tess__pass_name(uint32_t kind) {
    switch (kind) {
    case TESS_PASS_TRAIN: return "train";
    case TESS_PASS_TRAIN | TESS_PASS_NO_SYNC: return "no_sync";
    case TESS_PASS_EVAL: return "eval";
    case TESS__PASS_STEP: return "step";
    case TESS__PASS_NORM: return "norm";
    case TESS__PASS_CLIP: return "clip";
    case TESS__PASS_FULL: return "full";
    default: return "?";
    }
}

const char *tess__point_name(uint32_t point) {
    static const char *const names[2][7] = { { "?", "before_pre_forward", "before_post_forward", "before_pre_backward",
                                               "before_post_backward", "before_optimizer", "peak" },
                                             { "?", "after_pre_forward", "after_post_forward", "after_pre_backward",
                                               "after_post_backward", "after_optimizer", "?" } };
    uint32_t of = point & ~(uint32_t)TESS_LEDGER_AFTER;
    return of < 7 ? names[(point & TESS_LEDGER_AFTER) != 0][of] : "?";
}

/* ---- points ---- */

void tess__ledger_point(const tess__ledger *l, const tess__layout *layout, int32_t unit, uint32_t point,
                        tess_ledger_point *out) {
    *out = (tess_ledger_point){ .struct_size = sizeof *out, .point = point, .unit = unit, .index = l->n_points };
    int peak = point == TESS_LEDGER_PEAK;
    memcpy(out->bytes, peak ? l->at_peak : l->live, sizeof out->bytes);
    memcpy(out->total_bytes, peak ? l->peak : l->total, sizeof out->total_bytes);
    memcpy(out->disk_bytes, (peak ? l->at_peak : l->live)[TESS_DOMAIN_DISK], sizeof out->disk_bytes);
    out->disk_total_bytes = (peak ? l->peak : l->total)[TESS_DOMAIN_DISK];
    if (unit < 0)
        return;
    out->name = layout->units[unit].name;
    if (!l->units)
        return;
    memcpy(out->unit_bytes, l->units[unit], sizeof out->unit_bytes);
    memcpy(out->disk_unit_bytes, l->units[unit][TESS_DOMAIN_DISK], sizeof out->disk_unit_bytes);
}

/* ---- the planned side ---- */

int32_t tess__ledger_programs(const tess__plan *p, uint32_t of, int32_t *out) {
    int32_t accum = p->setup.accum, n = 0, last = -1;
    int at_end = accum > 1 && !p->setup.sync_each;
    if (p->setup.norm_first && (of == TESS_LEDGER_STEP || of == TESS_LEDGER_STEP_APART))
        of = TESS_LEDGER_STEP_CLIPPED;
    if (of == TESS_LEDGER_STEP && p->programs[TESS__P_FUSED].n_instrs)
        last = TESS__P_FUSED, accum = 0;
    else if (of == TESS_LEDGER_STEP || of == TESS_LEDGER_STEP_APART)
        last = TESS__P_STEP;
    else if (of == TESS_LEDGER_STEP_CLIPPED)
        last = TESS__P_CLIP;
    else if (of == TESS_LEDGER_NORM)
        last = TESS__P_NORM;
    else if (of == TESS_LEDGER_EVAL || of == TESS_LEDGER_FULL)
        last = of == TESS_LEDGER_EVAL ? TESS__P_EVAL : TESS__P_FULL, accum = 0;
    if (last < 0)
        return 0;
    for (int32_t k = 0; k < accum; k++, n++)
        if (out)
            out[n] = at_end && k < accum - 1 ? TESS__P_NO_SYNC : TESS__P_TRAIN;
    if (out)
        out[n] = last;
    return n + 1;
}

typedef struct {
    const tess__plan *plan;
    tess__ledger ledger;
    uint64_t *taken; /* by role and index */
    tess_ledger_fn fn;
    void *user;
} reading;

static uint64_t *taken_of(const reading *r, const tess__buffer *b) {
    return &r->taken[(size_t)b->role * (size_t)r->plan->compiler.stride + (size_t)b->index];
}

static void read_book(reading *r, const tess__buffer *b, int sign) {
    uint64_t *taken = taken_of(r, b);
    if (sign > 0 && !*taken) {
        *taken = b->bytes;
        tess__ledger_add(&r->ledger, b->domain, b->category, b->unit, b->bytes);
    } else if (sign < 0) {
        tess__ledger_take(&r->ledger, b->domain, b->category, b->unit, *taken);
        *taken = 0;
    }
}

static void read_resident(reading *r, int grads) {
    for (int32_t i = 0; i < r->plan->resident.n_buffers; i++)
        if ((r->plan->resident.buffers[i].role == TESS__SHARD_GRAD) == grads)
            read_book(r, &r->plan->resident.buffers[i], 1);
    for (int32_t i = 0; !grads && i < r->plan->n_user; i++)
        tess__ledger_add(&r->ledger, TESS_DOMAIN_DEVICE, TESS_CAT_ACTIVATION, -1, r->plan->user_bytes[i]);
}

static void read_program(reading *r, const tess__program *p) {
    int32_t next = 0;
    for (int32_t i = 0; i <= p->n_instrs; i++) {
        for (; next < p->n_points && p->points[next].at <= i; next++) {
            tess_ledger_point point;
            tess__ledger_point(&r->ledger, &r->plan->layout, p->points[next].unit, p->points[next].point, &point);
            point.pass = tess__pass_name(p->kind);
            r->ledger.n_points++;
            r->fn(r->user, &point);
        }
        if (i < p->n_instrs && (p->instrs[i].op == TESS__ALLOC || p->instrs[i].op == TESS__FREE))
            read_book(r, &p->buffers[p->instrs[i].buffer], p->instrs[i].op == TESS__ALLOC ? 1 : -1);
    }
}

static tess_status read_programs(reading *r, uint32_t of) {
    int32_t n = tess__ledger_programs(r->plan, of, NULL), *programs = calloc((size_t)n + 1, sizeof *programs);
    const tess__program *p = NULL;
    if (!programs)
        return tess__fail(TESS_E_NOMEM, "no memory to read %d programs", n);
    tess__ledger_programs(r->plan, of, programs);
    read_resident(r, 0);
    if (r->plan->setup.accum > 1 && of != TESS_LEDGER_EVAL && of != TESS_LEDGER_FULL)
        read_resident(r, 1); /* gradients live from the first microbatch on */
    tess__ledger_reset(&r->ledger);
    for (int32_t i = 0; i < n; i++) {
        p = &r->plan->programs[programs[i]];
        read_program(r, p);
    }
    free(programs);
    tess_ledger_point peak;
    tess__ledger_point(&r->ledger, &r->plan->layout, -1, TESS_LEDGER_PEAK, &peak);
    peak.pass = p ? tess__pass_name(p->kind) : NULL;
    r->fn(r->user, &peak);
    return TESS_OK;
}

tess_status tess__ledger_read(const tess__plan *p, uint32_t of, tess_ledger_fn fn, void *user) {
    reading r = { .plan = p, .fn = fn, .user = user };
    r.taken = calloc((size_t)TESS__N_ROLES * (size_t)p->compiler.stride, sizeof *r.taken);
    tess_status s = r.taken ? tess__ledger_create(&r.ledger, p->layout.n_units)
                            : tess__fail(TESS_E_NOMEM, "no memory to read the plan");
    if (!s)
        s = read_programs(&r, of);
    free(r.taken);
    tess__ledger_free(&r.ledger);
    return s;
}
