/* SPDX-License-Identifier: BSD-3-Clause */
/* Several engines in one process: one alone, two at once with different wraps, one more after them. Each trains the toy
 * and must end with the digest of the first; planned and obtained bytes are compared for each, and the ledger at every
 * point. Prints "engines=4 digest=equal planned=equal ledger=equal". */
#include "ledger_check.h"
#include "toy.h"

#include <stdio.h>
#include <stdlib.h>

enum { STEPS = 3 };

typedef struct {
    tess *t;
    toy m;
    ledger_check check;
    uint64_t digest;
    int planned_equal, ledger_equal;
} run;

static tess_status start(run *r, const char *wrap, const char *strategy) {
    tess_options o = { .struct_size = sizeof o,
                       .optimizer = "adamw",
                       .wrap = wrap,
                       .strategy = strategy,
                       .input_bytes = TOY_INPUT_BYTES };
    tess_status s = tess_open(&o, &r->t);
    if (!s)
        s = toy_declare(r->t, &r->m, 0);
    if (!s)
        s = tess_shard(r->t, toy_fill, NULL);
    r->m.skip = 0;
    return s ? s : ledger_check_open(&r->check, r->t, TESS_LEDGER_STEP_APART, NULL);
}

static tess_status train_step(run *r, int i) {
    tess_optimizer_options step = { .struct_size = sizeof step, .lr = 0.01f };
    double loss;
    ledger_check_start(&r->check);
    tess_status s = toy_pass(r->t, &r->m, TESS_PASS_TRAIN, (int64_t)i * tess_ranks(r->t) + tess_rank(r->t), &loss);
    if (!s)
        s = tess_step(r->t, &step);
    ledger_check_stop(&r->check);
    return s;
}

/* What it took against the plan; then its end. */
static tess_status finish(run *r) {
    tess_stats stats = { .struct_size = sizeof stats };
    tess_status s = toy_digest(r->t, &r->digest);
    if (!s)
        s = tess_stats_get(r->t, &stats);
    r->planned_equal = stats.peak_bytes[1] && stats.peak_bytes[1] == stats.planned_peak_bytes[1] &&
                       stats.peak_bytes[2] == stats.planned_peak_bytes[2];
    r->ledger_equal = !r->check.differ;
    if (r->check.differ)
        fprintf(stderr, "engines: ledger: %s\n", r->check.first);
    ledger_check_close(&r->check);
    tess_status closed = tess_close(r->t);
    r->t = NULL;
    return s ? s : closed;
}

static tess_status one_alone(run *r, const char *wrap) {
    tess_status s = start(r, wrap, "full");
    for (int i = 0; !s && i < STEPS; i++)
        s = train_step(r, i);
    return s ? s : finish(r);
}

static tess_status two_at_once(run *a, run *b) {
    tess_status s = start(a, "scopes", "full");
    if (!s)
        s = start(b, "none", "grad_op");
    for (int i = 0; !s && i < STEPS; i++)
        if (!(s = train_step(a, i)))
            s = train_step(b, i);
    if (!s)
        s = finish(a);
    return s ? s : finish(b);
}

int main(void) {
    run runs[4] = { { .t = NULL } };
    tess_status s = one_alone(&runs[0], "scopes");
    if (!s)
        s = two_at_once(&runs[1], &runs[2]);
    if (!s)
        s = one_alone(&runs[3], "size:100");
    if (s) {
        fprintf(stderr, "engines: %s\n", tess_last_error());
        for (int i = 0; i < 4; i++)
            tess_close(runs[i].t);
        return tess_exit_code(s);
    }
    int planned = 1, ledger = 1;
    for (int i = 0; i < 4; i++) {
        planned &= runs[i].planned_equal;
        ledger &= runs[i].ledger_equal;
        if (runs[i].digest != runs[0].digest)
            fprintf(stderr, "engines: number %d has digest %016llx\n", i, (unsigned long long)runs[i].digest);
        s |= runs[i].digest != runs[0].digest;
    }
    printf("engines=4 digest=%s planned=%s ledger=%s\n", s ? "differ" : "equal", planned ? "equal" : "differ",
           ledger ? "equal" : "differ");
    return s || !planned || !ledger;
}
