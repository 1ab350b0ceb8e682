/* SPDX-License-Identifier: BSD-3-Clause */
/* A run stops, warns or skips the step at the first value that is not finite, or at a gradient far above the usual
 * (TESSERA_ON_NAN, TESSERA_SPIKE). If the step has a norm, its sum is the same on every rank, and so is the decision.
 * Else the optimizer's kernel notes bad values that it leaves. The rank that finds one stops, and the others hear of it
 * as of any failure. */
#include "finite.h"
#include "scaler.h"
#include "values.h"

#include "base/log.h"
#include "base/status.h"
#include "kernels/norm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ADVICE "; TESSERA_ON_NAN=skip leaves such steps out, warn goes on"

/* ---- where it is ---- */

typedef struct { /* the first bad value that this rank owns, as ranks tell each other */
    int32_t found, param;
    uint32_t of, reserved;
    uint64_t element;
    double value;
} bad_value;

/* A gradient whose square overflows makes the norm infinite. */
static int is_bad(uint32_t of, double x) {
    float square = (float)x * (float)x;
    return of == TESS_OF_GRAD ? !isfinite(square) : !isfinite(x);
}

static tess_status find_in_piece(tess *t, const tess__value *v, const tess__piece *piece, void *raw, void *wide,
                                 bad_value *out) {
    for (uint64_t done = 0; done < piece->elems; done += TESS__CHUNK_ELEMS) {
        uint64_t n = piece->elems - done < TESS__CHUNK_ELEMS ? piece->elems - done : TESS__CHUNK_ELEMS;
        TRY(tess__value_load(t, v, done, n, raw, wide));
        for (uint64_t i = 0; i < n; i++) {
            double x = v->dtype == TESS_F64 ? ((const double *)wide)[i] : (double)((const float *)wide)[i];
            if (is_bad(out->of, x)) {
                out->found = 1;
                out->element = piece->in_param + done + i;
                out->value = x;
                return TESS_OK;
            }
        }
    }
    return TESS_OK;
}

static int has_floats(const tess *t, uint32_t of, const tess__param *p) {
    const tess_grain *g = &t->plan.layout.groups[p->group].step;
    return of - TESS_OF_MOMENT1 < g->n_states && tess__is_float(g->state[of - TESS_OF_MOMENT1].dtype);
}

static tess_status find_bad_param(tess *t, void *room, bad_value *out) {
    for (int32_t i = 0; i < t->plan.model.n_params && !out->found; i++) {
        const tess__param *p = &t->plan.model.params[i];
        if (p->tied_to != i || p->flags & (TESS_FROZEN | TESS_BUFFER))
            continue;
        if (out->of >= TESS_OF_MOMENT1 && !has_floats(t, out->of, p))
            continue;
        tess__owned own = tess__owned_at(t, out->of, i);
        tess__value v = { own.at, own.mem, own.dtype, tess__value_scale(t, out->of) };
        if (out->of == TESS_OF_GRAD)
            v.dtype = t->plan.layout.groups[p->group].grad_shard;
        out->param = i;
        TRY(find_in_piece(t, &v, &own.piece, room, (char *)room + (size_t)TESS__CHUNK_ELEMS * 8, out));
    }
    return TESS_OK;
}

/* Looks through gradients when `first` is TESS_OF_GRAD, before the step; else through parameters and then states,
 * after it. */
static tess_status find_bad_value(tess *t, uint32_t first, bad_value *out) {
    uint32_t last = first == TESS_OF_GRAD ? first : TESS_OF_GRAD + (uint32_t)t->plan.layout.n_states;
    void *room = malloc((size_t)2 * TESS__CHUNK_ELEMS * 8);
    tess_status s = room ? tess__streams_sync(&t->streams) : tess__fail(TESS_E_NOMEM, "no memory to look for NaN");
    *out = (bad_value){ .found = 0 };
    for (uint32_t of = first; !s && of <= last && !out->found; of++) {
        out->of = of;
        if (of != TESS_OF_GRAD || first == TESS_OF_GRAD)
            s = find_bad_param(t, room, out);
    }
    free(room);
    return s;
}

/* printf shows a NaN's sign, which means nothing. */
static double unsigned_nan(double x) {
    return isnan(x) ? (double)NAN : x;
}

static void say_bad_value(const tess *t, const bad_value *at, int32_t rank, char *out, size_t n) {
    const tess__param *p = &t->plan.model.params[at->param];
    out[0] = 0;
    if (at->found)
        snprintf(out, n, ": rank %d, unit %s: element %llu of %s \"%s\" is %g", tess__comms_rank(&t->comms, rank),
                 t->plan.layout.units[t->plan.layout.groups[p->group].unit].name, (unsigned long long)at->element,
                 at->of == TESS_OF_PARAM  ? "parameter"
                 : at->of == TESS_OF_GRAD ? "the gradient of"
                                          : "an optimizer state of",
                 p->name, unsigned_nan(at->value));
}

/* [C] Says where the lowest rank that has a bad value found it. */
static tess_status find_among_ranks(tess *t, uint32_t first, char *out, size_t n) {
    bad_value own, *all = calloc((size_t)t->comms.world.nranks, sizeof *all);
    tess_status s = all ? find_bad_value(t, first, &own) : tess__fail(TESS_E_NOMEM, "no memory to compare ranks");
    if (!s)
        s = tess__comms_exchange(&t->comms, "the search for a value that is not finite", &own, sizeof own, all);
    int32_t r = 0;
    while (!s && r + 1 < t->comms.world.nranks && !all[r].found)
        r++;
    if (!s)
        say_bad_value(t, &all[r], r, out, n);
    free(all);
    return s;
}

/* ---- what is done about it ---- */

static tess_status stop_or_warn(tess *t, int on_each, const char *what) {
    if (t->settings.on_nan == TESS__NAN_STOP)
        return tess__fail(TESS_E_NOT_FINITE, "%s" ADVICE, what);
    if (!t->step.warned_not_finite++ && (on_each || t->comms.world.rank == 0))
        tess__log(TESS_LOG_WARNING, "%s; the run goes on, and this is said once (TESSERA_ON_NAN)", what);
    return TESS_OK;
}

/* A run whose parameters are NaN skips every step. The log then names the first, the second, the fourth and so on. */
static int is_said(const tess *t) {
    uint64_t before = t->step.n_skipped;
    return t->settings.on_nan == TESS__NAN_SKIP ? (before & (before + 1)) == 0 : !t->step.warned_not_finite;
}

/* Every rank knows the norm and none has stepped yet. `what` is null when nothing is logged. */
static tess_status decide(tess *t, const char *what) {
    if (t->settings.on_nan != TESS__NAN_SKIP)
        return stop_or_warn(t, 0, what);
    t->step.skips = 1;
    t->step.n_skipped++;
    if (what && t->comms.world.rank == 0)
        tess__log(TESS_LOG_WARNING, "%s; the step is left out, %llu so far (TESSERA_ON_NAN=skip)", what,
                  (unsigned long long)t->step.n_skipped);
    return TESS_OK;
}

static uint64_t this_step(const tess *t) {
    return t->step.steps_done + 1;
}

static tess_status judge_not_finite(tess *t) {
    char where[512] = "", scale[48] = "", what[640];
    if (!is_said(t))
        return t->settings.on_nan == TESS__NAN_SKIP ? decide(t, NULL) : TESS_OK;
    TRY(find_among_ranks(t, TESS_OF_GRAD, where, sizeof where));
    if (t->scaler.now.scale > 0)
        snprintf(scale, sizeof scale, " with losses times %.9g, the least scale", t->scaler.now.scale);
    snprintf(what, sizeof what, "step %llu: the gradient norm is %g%s%s", (unsigned long long)this_step(t),
             unsigned_nan(t->step.norm), scale, where);
    return decide(t, what);
}

/* ---- a gradient far above the usual ---- */

/* Every norm is remembered, so a norm that stays high becomes the usual one. */
static tess_status judge_spike(tess *t) {
    double norm = t->step.norm, usual = tess__usual_norm(&t->step, norm);
    char what[256];
    if (usual <= 0 || norm <= t->settings.spike * usual)
        return TESS_OK;
    snprintf(
        what, sizeof what,
        "step %llu: the gradient norm is %g, more than %g times %g, the median of the steps before (TESSERA_SPIKE)",
        (unsigned long long)this_step(t), norm, t->settings.spike, usual);
    if (t->settings.on_nan == TESS__NAN_WARN && t->comms.world.rank == 0)
        tess__log(TESS_LOG_WARNING, "%s", what);
    return t->settings.on_nan == TESS__NAN_WARN ? TESS_OK : decide(t, is_said(t) ? what : NULL);
}

tess_status tess__judge_norm(tess *t) {
    int finite = isfinite(t->step.norm) != 0;
    if (tess__scaler_step(t, finite))
        return TESS_OK;
    if (!finite)
        return judge_not_finite(t);
    return t->settings.spike > 0 ? judge_spike(t) : TESS_OK;
}

/* ---- what a step has left ---- */

int64_t *tess__note_of_step(tess *t) {
    int64_t *at = &t->step.noted;
    if (t->streams.on)
        at = (int64_t *)tess__address_of(t, TESS__NORM_RESULT, 0) + TESS__NORM_LIMBS;
    if (at != t->step.noted_at)
        *at = 0;
    return t->step.noted_at = at;
}

/* A device that clips hands its norm over late, on all ranks alike. */
static tess_status look_at_norms(tess *t) {
    char where[512] = "", what[640];
    uint64_t step = t->streams.not_finite_step;
    if (!step || t->step.warned_not_finite)
        return TESS_OK;
    TRY(find_among_ranks(t, TESS_OF_PARAM, where, sizeof where));
    snprintf(what, sizeof what, "step %llu: the gradient norm is not finite%s", (unsigned long long)step, where);
    return stop_or_warn(t, 0, what);
}

tess_status tess__look_at_steps(tess *t) {
    char where[512] = "", what[640];
    bad_value at;
    TRY(look_at_norms(t));
    int64_t step = t->step.noted_at ? __atomic_load_n(t->step.noted_at, __ATOMIC_RELAXED) : 0;
    if (!step || t->step.warned_not_finite)
        return TESS_OK;
    TRY(find_bad_value(t, TESS_OF_PARAM, &at));
    say_bad_value(t, &at, t->comms.world.rank, where, sizeof where);
    snprintf(what, sizeof what, "step %lld leaves values that are not finite%s", (long long)step, where);
    return stop_or_warn(t, 1, what);
}

tess_status tess__look_at_last_norm(tess *t) {
    if (t->streams.late || !t->step.norm_limbs)
        return TESS_OK;
    TRY(tess__norm_wait(&t->streams));
    if (!isfinite(tess__norm_square(t->step.norm_limbs)))
        t->streams.not_finite_step = t->step.steps_done;
    return TESS_OK;
}

void tess__forget_steps(tess *t) {
    t->step.noted_at = NULL;
    t->step.n_norms = 0;
    t->streams.not_finite_step = 0;
}
