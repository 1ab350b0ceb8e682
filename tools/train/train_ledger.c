/* SPDX-License-Identifier: BSD-3-Clause */
/* Writes the events of a run's second step, or of its only one, from the ledger. Rank 0 writes them. */
#include <stdlib.h>

#include "tools/plan/plan.h"
#include <tessera/inspect.h>
#include "train.h"
#include "tools/support/say.h"

static void count(void *user, const tess_ledger_point *p) {
    (void)p;
    ((train_run *)user)->ledger.room++;
}

static void take(void *user, const tess_ledger_point *p) {
    train_run *r = user;
    if (r->ledger.n < r->ledger.room)
        r->ledger.points[r->ledger.n++] = *p;
}

static void put_planned(void *user, const tess_ledger_point *p) {
    ledger_json_point(user, "planned", p);
}

static uint32_t what(const train_run *r) {
    return r->s.clip > 0 ? TESS_LEDGER_STEP_CLIPPED : TESS_LEDGER_STEP;
}

static uint64_t steps_before(const train_run *r) {
    return r->first_step + (r->task.steps > r->first_step + 1);
}

int train_ledger_comes(const train_run *r) {
    return train_output_json(r) && r->steps_done <= steps_before(r);
}

tess_status train_ledger_begin(train_run *r) {
    if (!train_output_json(r) || r->steps_done != steps_before(r))
        return TESS_OK;
    TRY(tess_ledger_plan(r->t, what(r), count, r));
    r->ledger.points = calloc(r->ledger.room, sizeof *r->ledger.points); /* the step itself allocates nothing */
    if (!r->ledger.points)
        return tess_fail(TESS_E_NOMEM, "no memory for %zu ledger points", r->ledger.room);
    TRY(tess_ledger_reset(r->t));
    return tess_ledger_hook(r->t, take, r);
}

tess_status train_ledger_end(train_run *r) {
    tess_ledger_point peak = { .struct_size = sizeof peak };
    if (!r->ledger.points)
        return TESS_OK;
    tess_status status = tess_ledger_hook(r->t, NULL, NULL);
    if (status == TESS_OK)
        status = tess_ledger_peak(r->t, &peak);
    if (status == TESS_OK) {
        ledger_json_units(&r->json, r->t);
        status = tess_ledger_plan(r->t, what(r), put_planned, &r->json);
    }
    for (size_t i = 0; status == TESS_OK && i < r->ledger.n; i++)
        ledger_json_point(&r->json, "measured", &r->ledger.points[i]);
    if (status == TESS_OK) {
        if (r->ledger.n)
            peak.pass = r->ledger.points[r->ledger.n - 1].pass;
        ledger_json_point(&r->json, "measured", &peak);
    }
    train_ledger_drop(r);
    return status;
}

void train_ledger_drop(train_run *r) {
    free(r->ledger.points);
    r->ledger.points = NULL;
    r->ledger.n = r->ledger.room = 0;
}
