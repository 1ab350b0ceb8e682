/* SPDX-License-Identifier: BSD-3-Clause */
/* After the loss of a rank, a run continues from images in memory. The step determines data, schedule and random
 * numbers, so only the images need to be restored. */
#include <inttypes.h>
#include <math.h>

#include "tools/support/say.h"
#include "tools/support/alloc_count.h"
#include "train.h"

int train_joins(const train_run *r) {
    tess_info info = { .struct_size = sizeof info };
    return tess_info_get(r->t, &info) == TESS_OK && info.joins;
}

static void forget_step(train_run *r) {
    tool_alloc_window_end();
    train_ledger_drop(r);
    train_step_forget(r);
    r->saving = 0;
    r->interrupted = 0;
    r->digest[0] = 0;
}

/* This process has become rank 0, so it continues the output of the old one. */
static tess_status take_over(train_run *r) {
    r->joins = 1; /* makes files open for appending */
    TRY(train_output_open(r));
    TRY(train_watch_open(r));
    train_lives_open(r);
    train_output_start(r);
    return train_spans_start(r);
}

/* A smaller group numbers its ranks anew, and each has more of a step's microbatches. */
static tess_status take_place(train_run *r) {
    tess_info info = { .struct_size = sizeof info };
    int was_first = r->rank == 0;
    TRY(tess_info_get(r->t, &info));
    r->rank = tess_rank(r->t);
    r->ranks = r->task.sampler.ranks = tess_ranks(r->t);
    r->s.accum = r->task.sampler.accum = info.accum;
    r->s.sync_each = r->task.sampler.sync_each = (int)info.sync_each;
    train_feed_forget(r);
    return r->rank == 0 && !was_first ? take_over(r) : TESS_OK;
}

tess_status train_recover(train_run *r) {
    tess_recovery got = { .struct_size = sizeof got };
    forget_step(r);
    TRY(tess_recover(r->t, &got));
    if (!got.recovered)
        return TESS_OK;
    if (r->joins)
        r->first_step = got.step;
    if (tess_ranks(r->t) != r->ranks)
        TRY(take_place(r));
    r->joins = 0;
    r->steps_done = r->group_step = got.step;
    train_lives_recovered(r);
    train_output_recovery(r, &got);
    train_watch_begin(r);
    TRY(tess_ledger_hook(r->t, NULL, NULL));
    TRY(train_best_share(r));
    return train_spans_agree(r); /* TESS_E_LOST if another rank is lost meanwhile */
}
