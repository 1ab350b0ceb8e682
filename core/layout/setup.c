/* SPDX-License-Identifier: BSD-3-Clause */
#include "setup.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>

static tess_status set_hybrid(tess__setup *s, const char *strategy, const char *number) {
    char *end;
    long k = strtol(number, &end, 10);
    if (number[0] < '0' || number[0] > '9' || *end || k < 1 || k > s->nranks || s->nranks % k)
        return tess__fail(TESS_E_INVALID, "TESSERA_STRATEGY=%s: the number after the colon must divide the %d ranks",
                          strategy, s->nranks);
    s->shard_ranks = (int32_t)k;
    return TESS_OK;
}

tess_status tess__setup_strategy(tess__setup *s, const char *strategy) {
    tess_status status = TESS_OK;
    s->strategy = strategy;
    s->keep_forward = 0;
    s->shard_ranks = s->nranks;
    if (strcmp(strategy, "grad_op") == 0)
        s->keep_forward = 1;
    else if (strcmp(strategy, "none") == 0)
        s->shard_ranks = 1, s->keep_forward = 1;
    else if (strncmp(strategy, "hybrid:", 7) == 0)
        status = set_hybrid(s, strategy, strategy + 7);
    else if (strncmp(strategy, "hybrid_grad_op:", 15) == 0)
        s->keep_forward = 1, status = set_hybrid(s, strategy, strategy + 15);
    else if (strcmp(strategy, "full") != 0)
        status =
            tess__fail(TESS_E_INVALID,
                       "TESSERA_STRATEGY=%s: expected full, grad_op, none, hybrid:K or hybrid_grad_op:K", strategy);
    s->replicas = s->nranks / s->shard_ranks;
    return status;
}

int32_t tess__sum_levels(const tess__setup *s) {
    int32_t levels = 1;
    while (s->deterministic && s->accum >> levels)
        levels++;
    return levels;
}
