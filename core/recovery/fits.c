/* SPDX-License-Identifier: BSD-3-Clause */
#include "fits.h"

#include "base/log.h"
#include "base/options.h"
#include "base/status.h"
#include "engine/state.h"

#include <stdio.h>

tess_status tess__fits_set(tess__setup *s, int32_t nranks) {
    uint64_t all = (uint64_t)s->nranks * (uint64_t)s->accum, accum;
    int sync_each = s->sync_each;
    if (!tess__divide_microbatches(all, (uint64_t)s->nranks, s->deterministic, &sync_each, &accum) ||
        (s->accum > 1 && sync_each != s->sync_each))
        return tess__fail(TESS_E_INVALID,
                          "the %d ranks themselves do not divide the %llu microbatches of a step into aligned subtrees",
                          s->nranks, (unsigned long long)all);
    if (!tess__divide_microbatches(all, (uint64_t)nranks, s->deterministic, &s->sync_each, &accum))
        return tess__fail(TESS_E_INVALID,
                          "%d ranks do not divide the %llu microbatches of a step into aligned subtrees", nranks,
                          (unsigned long long)all);
    s->accum = (int32_t)accum;
    s->nranks = s->env.nranks = s->env.ranks_per_host = nranks;
    s->mirror = nranks > 1 ? s->mirror : 0;
    s->prefetch = s->prefetch_fixed || s->prefetch ? s->prefetch : 1;
    return tess__setup_strategy(s, s->strategy);
}

uint64_t tess__fits_carried(const tess__plan *p) {
    uint64_t images = tess__copy_groups(&p->setup) ? 2 : 1;
    return tess__round_up(images * tess__image_bytes(&p->setup, &p->layout), p->setup.granularity);
}

static tess_status check_budget(const tess__plan *p, uint64_t carried) {
    uint64_t budget = p->setup.env.host_budget_bytes, need = tess__planned_bytes(p, TESS_DOMAIN_HOST) + carried;
    TRY(tess__plan_check_budget(p));
    if (budget && need > budget)
        return tess__fail(TESS_E_BUDGET, "%d ranks need %llu bytes of host memory and TESSERA_HOST_MEMORY allows %llu",
                          p->setup.nranks, (unsigned long long)need, (unsigned long long)budget);
    return TESS_OK;
}

/* Tells whether the group could go on with so many ranks, by making the plan that it would have. */
static tess_status try_ranks(const tess *t, int32_t nranks) {
    tess__plan p;
    int32_t least = tess__log_set_least(TESS_LOG_ERROR);
    tess_status s = tess__plan_try(&t->plan, &p);
    if (!s) {
        s = tess__fits_set(&p.setup, nranks);
        if (!s)
            s = tess__check_overwrite(&p);
        if (!s)
            s = tess__plan_remake(&p);
        if (!s)
            s = check_budget(&p, tess__fits_carried(&t->plan));
        tess__plan_drop(&p);
    }
    tess__log_set_least(least);
    return s;
}

tess_status tess__fits_announce(tess *t) {
    const tess__setup *s = &t->plan.setup;
    int32_t groups = tess__copy_groups(s);
    tess__kv_fits say = { .stride = groups ? groups : s->shard_ranks, .replicas = !groups };
    int64_t least = 0;
    char why[512] = "";
    TRY(tess__option_int("ranks-least", 1, s->nranks, &least));
    const tess__given *before = tess__given_use(&t->settings.given);
    for (int32_t n = s->nranks - 1; least && n >= least && say.n < TESS__KV_FITS_MAX; n--) {
        tess_status status = try_ranks(t, n);
        if (!status)
            say.fits[say.n++] = n;
        else if (!*why || status != TESS_E_INVALID)
            snprintf(why, sizeof why, "%s", tess_last_error());
    }
    tess__given_use(before);
    if (*why && !say.n && t->comms.world.generation == 0)
        tess__log(TESS_LOG_WARNING, "no smaller group could go on without a lost rank: %s", why);
    return tess__control_set(t->comms.control, TESS__KV_READY, &say, sizeof say);
}
