/* SPDX-License-Identifier: BSD-3-Clause */
/* Functions that a run's tasks and its loop share: agreement of the ranks, and one evaluation. */
#include "train.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tools/support/say.h"

tess_status train_agree(train_run *r, tess_status mine) {
    int first = r->rank;
    if (r->joins) /* the others have done this before */
        return mine;
    tess_status status = tess_agree(r->t, mine);
    if (status != TESS_OK && r->ranks > 1) /* the rank that failed prints its message itself */
        sscanf(tess_last_error(), "rank %d:", &first);
    return first == r->rank ? status : tess_fail(status, "%s", "");
}

/* All ranks have the same mean, so they judge alike. Under skip the engine omitted the step if its gradient was not
 * finite either. */
tess_status train_judge_loss(train_run *r, const char *what, uint64_t step, double own, double mean) {
    const int stops = strcmp(r->s.on_nan, "stop") == 0;
    if (isfinite(mean) || (r->said_not_finite && !stops))
        return TESS_OK;
    r->said_not_finite = 1;
    if (!stops && r->rank == 0)
        tool_say(SAY_WARNING, "step %llu: the %s is %g; the run goes on, and this is said once (--on-nan %s)",
                 (unsigned long long)step, what, isnan(mean) ? (double)NAN : mean, r->s.on_nan);
    if (!stops)
        return TESS_OK;
    if (isfinite(own))
        return tess_agree(r->t, TESS_OK);
    return tess_agree(r->t,
                      tess_fail(TESS_E_NOT_FINITE,
                                "step %llu: the %s of rank %d is %g; --on-nan skip leaves out steps whose gradient is "
                                "not finite, warn goes on",
                                (unsigned long long)step, what, r->rank, isnan(own) ? (double)NAN : own));
}

tess_status train_evaluate(train_run *r, double *loss, double *accuracy) {
    double sums[3] = { 0 }; /* loss, correct, count */
    uint64_t rounds = (r->task.eval_batches + (uint64_t)r->ranks - 1) / (uint64_t)r->ranks;
    for (uint64_t i = 0; i < rounds; i++) {
        r->ops->fill_eval(r, i * (uint64_t)r->ranks + (uint64_t)r->rank, r->batch);
        tess_run_options run = { .struct_size = sizeof run, .kind = TESS_PASS_EVAL, .batch = r->batch };
        run.result = r->result;
        TRY(model_run(r->t, r->m, &run));
        sums[0] += r->result->loss;
        sums[1] += (double)r->result->correct;
        sums[2] += (double)r->result->count;
    }
    const double own = sums[0];
    TRY(tess_all_reduce(r->t, sums, 3, TESS_F64, TESS_SUM));
    *loss = sums[0] / sums[2];
    *accuracy = sums[1] / sums[2];
    return train_judge_loss(r, "validation loss", r->steps_done, own, *loss);
}

int train_resumes_checkpoint(const train_settings *s) {
    static const char *const files[] = { "model.safetensors", "model.safetensors.index.json" };
    char path[PATH_MAX];
    for (int i = 0; s->resume && i < 2; i++)
        if ((size_t)snprintf(path, sizeof path, "%s/%s", s->resume, files[i]) >= sizeof path || access(path, F_OK) == 0)
            return 0;
    return s->resume != NULL;
}

uint64_t train_hash_on(uint64_t hash, const unsigned char *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ data[i]) * 1099511628211u;
    return hash;
}
