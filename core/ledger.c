#include "engine.h"

#include "status.h"
#include "try.h"

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

static void change(tess__ledger *l, uint32_t domain, uint32_t category, int32_t unit, uint64_t by) {
    l->live[domain][category] += by;
    l->total[domain] += by;
    if (l->units && unit >= 0 && unit < l->n_units)
        l->units[unit][domain][category] += by;
}

void tess__ledger_add(tess__ledger *l, uint32_t domain, uint32_t category, int32_t unit, uint64_t bytes) {
    change(l, domain, category, unit, bytes);
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
    change(l, domain, category, unit, 0 - bytes);
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
    static const char *const names[2][8] = { { "?", "before_pre_forward", "before_post_forward", "before_pre_backward",
                                               "before_post_backward", "before_optimizer", "peak", "now" },
                                             { "?", "after_pre_forward", "after_post_forward", "after_pre_backward",
                                               "after_post_backward", "after_optimizer", "?", "?" } };
    uint32_t of = point & ~(uint32_t)TESS_LEDGER_AFTER;
    return of < 8 ? names[(point & TESS_LEDGER_AFTER) != 0][of] : "?";
}

/* ---- points ---- */

static void fill(const tess__ledger *l, const tess__layout *layout, int32_t unit, uint32_t point,
                 tess_ledger_point *out) {
    *out = (tess_ledger_point){ .struct_size = sizeof *out, .point = point, .unit = unit, .index = l->n_points };
    int peak = point == TESS_LEDGER_PEAK;
    memcpy(out->bytes, peak ? l->at_peak : l->live, sizeof out->bytes);
    memcpy(out->total_bytes, peak ? l->peak : l->total, sizeof out->total_bytes);
    if (unit < 0)
        return;
    out->name = layout->units[unit].name;
    if (l->units)
        memcpy(out->unit_bytes, l->units[unit], sizeof out->unit_bytes);
}

enum { KEPT = 2 * TESS_LEDGER_OPTIMIZER };
static int kept_slot(uint32_t point) {
    return (int)((point & 255) - 1) * 2 + ((point & TESS_LEDGER_AFTER) != 0);
}

void tess__ledger_reach(tess *t, const tess__point *at) {
    if (t->ledger_hook || t->kept) {
        tess_ledger_point p;
        uint64_t unused;
        fill(&t->ledger, &t->layout, at->unit, at->point, &p);
        p.pass = tess__pass_name(t->program->kind);
        if (TESS_CAN(tess_device_ops, t->dev, mem_usage))
            t->dev->mem_usage(t->device, &p.backend_bytes, &unused);
        if (t->kept)
            t->kept[(size_t)at->unit * KEPT + (size_t)kept_slot(at->point)] = p;
        if (t->ledger_hook)
            t->ledger_hook(t->ledger_user, &p);
    }
    t->ledger.n_points++;
}

/* ---- reading the measured side ---- */

/* The errors of calls that only read do not end the engine. */
static tess_status check(const tess *t, const char *call, const void *out, uint32_t struct_size) {
    if (!t || !t->sharded)
        return tess__fail(TESS_E_INVALID, "%s: the ledger begins with tess_shard", call);
    if (!out || struct_size < 8 || struct_size > 1 << 16)
        return tess__fail(TESS_E_INVALID, "%s: struct_size is %u; set it to the size of the struct", call,
                          out ? struct_size : 0);
    return TESS_OK;
}

static tess_status check_ran(const tess *t, const char *call, const tess_ledger_point *out) {
    TRY(check(t, call, out, out ? out->struct_size : 0));
    return t->plan_only ? tess__fail(TESS_E_INVALID, "%s: this engine only plans; tess_ledger_plan reads that", call)
                        : TESS_OK;
}

static tess_status hand_over(const tess *t, uint32_t point, tess_ledger_point *out) {
    tess_ledger_point p;
    fill(&t->ledger, &t->layout, -1, point, &p);
    if (t->pass)
        p.pass = tess__pass_name(t->program->kind);
    tess__slot_out(out, &p, sizeof p);
    return TESS_OK;
}

tess_status tess_ledger_now(const tess *t, tess_ledger_point *out) {
    TRY(check_ran(t, "tess_ledger_now", out));
    return hand_over(t, TESS_LEDGER_NOW, out);
}

tess_status tess_ledger_peak(const tess *t, tess_ledger_point *out) {
    TRY(check_ran(t, "tess_ledger_peak", out));
    return hand_over(t, TESS_LEDGER_PEAK, out);
}

tess_status tess_ledger_reset(tess *t) {
    TRY(tess__engine_check(t));
    tess__ledger_reset(&t->ledger);
    return TESS_OK;
}

tess_status tess_ledger_hook(tess *t, tess_ledger_fn fn, void *user) {
    TRY(tess__engine_check(t));
    t->ledger_hook = fn;
    t->ledger_user = user;
    return TESS_OK;
}

tess_status tess_ledger_keep(tess *t) {
    TRY(tess__engine_check(t));
    if (!t->sharded || t->plan_only)
        return tess__fail(TESS_E_INVALID, "tess_ledger_keep before tess_shard");
    if (!t->kept)
        t->kept = calloc((size_t)t->layout.n_units * KEPT + 1, sizeof *t->kept);
    return t->kept ? TESS_OK : tess__fail(TESS_E_NOMEM, "no memory for the points of %d units", t->layout.n_units);
}

tess_status tess_ledger_last(const tess *t, int32_t unit, uint32_t point, tess_ledger_point *out) {
    TRY(check_ran(t, "tess_ledger_last", out));
    uint32_t of = point & ~(uint32_t)TESS_LEDGER_AFTER;
    if (!t->kept)
        return tess__fail(TESS_E_INVALID, "tess_ledger_last: tess_ledger_keep comes first");
    if (unit < 0 || unit >= t->layout.n_units || of < TESS_LEDGER_PRE_FORWARD || of > TESS_LEDGER_OPTIMIZER)
        return tess__fail(TESS_E_INVALID, "tess_ledger_last: there is no point %u of unit %d", point, unit);
    const tess_ledger_point *p = &t->kept[(size_t)unit * KEPT + (size_t)kept_slot(point)];
    if (!p->struct_size)
        return tess__fail(TESS_E_INVALID, "tess_ledger_last: unit %s has not been %s yet", t->layout.units[unit].name,
                          tess__point_name(point));
    tess__slot_out(out, p, sizeof *p);
    return TESS_OK;
}

static void sum_group(const tess *t, const tess__group *g, tess_unit_info *out) {
    uint64_t align = t->setup.align;
    out->n_params += g->n_params;
    out->shard_bytes += tess__round_up(g->shard_elems * tess__dtype_bytes(g->master), align);
    if (!g->in_place)
        out->unsharded_bytes += tess__round_up(g->flat_elems * tess__dtype_bytes(g->compute), align);
    if (!g->trainable)
        return;
    if (!g->grad_in_place)
        out->gradient_bytes += tess__round_up(g->flat_elems * tess__dtype_bytes(g->grad_local), align);
    out->shard_gradient_bytes += tess__round_up(g->shard_elems * 4, align);
    out->state_bytes += (uint64_t)t->setup.n_states * tess__round_up(g->shard_elems * 4, align);
}

tess_status tess_ledger_unit(const tess *t, int32_t unit, tess_unit_info *out) {
    TRY(check(t, "tess_ledger_unit", out, out ? out->struct_size : 0));
    if (unit < 0 || unit >= t->layout.n_units)
        return tess__fail(TESS_E_INVALID, "tess_ledger_unit: %d is no unit; there are %d", unit, t->layout.n_units);
    const tess__unit *u = &t->layout.units[unit];
    tess_unit_info info = { .struct_size = sizeof info, .name = u->name };
    for (int32_t g = u->first_group; g < u->first_group + u->n_groups; g++) {
        const tess__group *group = &t->layout.groups[g];
        sum_group(t, group, &info);
        for (int32_t i = 0; i < group->n_params; i++)
            info.elems += t->model.params[t->layout.order[group->first_param + i]].elems;
    }
    if (t->ledger.units)
        memcpy(info.live_bytes, t->ledger.units[unit], sizeof info.live_bytes);
    tess__slot_out(out, &info, sizeof info);
    return TESS_OK;
}

/* ---- the planned side ---- */

int32_t tess__ledger_programs(const tess *t, uint32_t of, int32_t *out) {
    int32_t accum = t->setup.accum, n = 0, last = -1;
    int at_end = accum > 1 && !t->setup.sync_each;
    if (of == TESS_LEDGER_STEP && t->programs[TESS__P_FUSED].n_instrs)
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
    const tess *t;
    tess__ledger ledger;
    uint64_t *taken; /* by role and index */
    tess_ledger_fn fn;
    void *user;
} reading;

static uint64_t *taken_of(const reading *r, const tess__buffer *b) {
    return &r->taken[(size_t)b->role * (size_t)r->t->builder.stride + (size_t)b->index];
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
    for (int32_t i = 0; i < r->t->resident.n_buffers; i++)
        if ((r->t->resident.buffers[i].role == TESS__SHARD_GRAD) == grads)
            read_book(r, &r->t->resident.buffers[i], 1);
    for (int32_t i = 0; !grads && i < r->t->n_user; i++)
        tess__ledger_add(&r->ledger, TESS_DOMAIN_DEVICE, TESS_CAT_ACTIVATION, -1, r->t->user_buffers[i].bytes);
}

static void read_program(reading *r, const tess__program *p) {
    int32_t next = 0;
    for (int32_t i = 0; i <= p->n_instrs; i++) {
        for (; next < p->n_points && p->points[next].at <= i; next++) {
            tess_ledger_point point;
            fill(&r->ledger, &r->t->layout, p->points[next].unit, p->points[next].point, &point);
            point.pass = tess__pass_name(p->kind);
            r->ledger.n_points++;
            r->fn(r->user, &point);
        }
        if (i < p->n_instrs && (p->instrs[i].op == TESS__BOOK || p->instrs[i].op == TESS__FREE))
            read_book(r, &p->buffers[p->instrs[i].buffer], p->instrs[i].op == TESS__BOOK ? 1 : -1);
    }
}

static tess_status read_programs(reading *r, uint32_t of) {
    int32_t n = tess__ledger_programs(r->t, of, NULL), *programs = calloc((size_t)n + 1, sizeof *programs);
    const tess__program *p = NULL;
    if (!programs)
        return tess__fail(TESS_E_NOMEM, "no memory to read %d programs", n);
    tess__ledger_programs(r->t, of, programs);
    read_resident(r, 0);
    if (r->t->setup.accum > 1 && of != TESS_LEDGER_EVAL && of != TESS_LEDGER_FULL)
        read_resident(r, 1); /* gradients live from the first microbatch on */
    tess__ledger_reset(&r->ledger);
    for (int32_t i = 0; i < n; i++) {
        p = &r->t->programs[programs[i]];
        read_program(r, p);
    }
    free(programs);
    tess_ledger_point peak;
    fill(&r->ledger, &r->t->layout, -1, TESS_LEDGER_PEAK, &peak);
    peak.pass = p ? tess__pass_name(p->kind) : NULL;
    r->fn(r->user, &peak);
    return TESS_OK;
}

tess_status tess_ledger_plan(const tess *t, uint32_t of, tess_ledger_fn fn, void *user) {
    if (!t || !t->sharded || !fn)
        return tess__fail(TESS_E_INVALID, "tess_ledger_plan: a function to call, and tess_shard before it, are needed");
    if (!tess__ledger_programs(t, of, NULL))
        return tess__fail(TESS_E_INVALID, "tess_ledger_plan: %u is nothing that is planned", of);
    reading r = { .t = t, .fn = fn, .user = user };
    r.taken = calloc((size_t)TESS__N_ROLES * (size_t)t->builder.stride, sizeof *r.taken);
    tess_status s = r.taken ? tess__ledger_create(&r.ledger, t->layout.n_units)
                            : tess__fail(TESS_E_NOMEM, "no memory to read the plan");
    if (!s)
        s = read_programs(&r, of);
    free(r.taken);
    tess__ledger_free(&r.ledger);
    return s;
}

tess__fullest tess__ledger_fullest(const tess *t, uint32_t domain) {
    tess__fullest f = { -1, 0, -1 };
    uint64_t most = 0;
    for (int32_t i = 0; i < TESS__N_PROGRAMS; i++)
        if (t->programs[i].n_instrs && t->programs[i].live_peak_bytes[domain] > most) {
            most = t->programs[i].live_peak_bytes[domain];
            f = (tess__fullest){ i, t->programs[i].peak_instr[domain], -1 };
        }
    for (int32_t k = 0; f.program >= 0 && k < t->programs[f.program].n_points; k++)
        if (t->programs[f.program].points[k].at <= f.instr)
            f.point = k;
    return f;
}
