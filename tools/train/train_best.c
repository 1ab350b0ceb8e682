/* SPDX-License-Identifier: BSD-3-Clause */
/* Tracks the best validation loss and the evaluations since then. A checkpoint stores both in the run's own bytes, so
 * that a resumed run knows them. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tools/support/say.h"
#include <tessera/tessera.h>
#include "train.h"

void train_best_note(train_run *r) {
    train_best *b = &r->best;
    if (b->n && r->steps_done <= b->last)
        return; /* repeated after a recovery, and counted before it */
    b->last = r->steps_done;
    double loss = b->n++ ? b->loss : INFINITY;
    if (!(r->eval_loss < loss)) { /* NaN is never better */
        b->loss = loss;
        b->without++;
        return;
    }
    b->loss = r->eval_loss;
    b->step = r->steps_done;
    b->without = 0;
}

int train_best_is_now(const train_run *r) {
    return r->best.n && isfinite(r->best.loss) && r->best.step == r->steps_done;
}

/* A recovery may go back behind the last evaluation. The run then ends when it reaches that again. */
int train_best_stops(const train_run *r) {
    return r->s.patience && r->best.without >= r->s.patience && r->steps_done >= r->best.last;
}

const double *train_best_score(const train_run *r) {
    int has_one = r->s.keep_best && r->best.n && r->best.last == r->steps_done && isfinite(r->eval_loss);
    return has_one ? &r->eval_loss : NULL;
}

void train_best_words(const train_run *r, char out[TRAIN_BEST_BYTES]) {
    const train_best *b = &r->best;
    *out = '\0';
    if (b->n)
        snprintf(out, TRAIN_BEST_BYTES, " best=%.17g/%" PRIu64 "/%" PRIu64 "/%" PRIu64 "/%" PRIu64 "/%" PRIx64, b->loss,
                 b->step, b->without, b->last, b->n, r->held_out);
}

/* Returns 1 if both runs train on the same data. */
static int same_data(const train_run *r, const char *saved) {
    static const char key[] = " data=";
    const char *mine = strstr(r->identity, key), *theirs = strstr(saved, key);
    return mine && theirs && strncmp(mine, theirs, sizeof key - 1 + 16) == 0;
}

void train_best_take(train_run *r, const char *saved) {
    static const char key[] = " best=";
    const char *at = strstr(saved, key), *config = strstr(saved, " config=");
    train_best b = { .n = 0 };
    uint64_t held_out; /* a loss on other held-out data does not compare */
    if (at && (!config || at < config) && same_data(r, saved) &&
        sscanf(at + sizeof key - 1, "%lf/%" SCNu64 "/%" SCNu64 "/%" SCNu64 "/%" SCNu64 "/%" SCNx64, &b.loss, &b.step,
               &b.without, &b.last, &b.n, &held_out) == 6 &&
        held_out == r->held_out)
        r->best = b;
}

/* A process that replaces a lost rank has zeros, and all others have the same values. */
tess_status train_best_share(train_run *r) {
    train_best *b = &r->best;
    double all[] = { b->n ? -b->loss : -INFINITY, (double)b->step, (double)b->without, (double)b->last, (double)b->n };
    TRY(tess_all_reduce(r->t, all, 5, TESS_F64, TESS_MAX));
    *b = (train_best){ -all[0], (uint64_t)all[1], (uint64_t)all[2], (uint64_t)all[3], (uint64_t)all[4] };
    return TESS_OK;
}
