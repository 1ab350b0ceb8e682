/* SPDX-License-Identifier: BSD-3-Clause */
#include "at_rest.h"

#include "base/status.h"
#include "kernels/digest.h"
#include "kernels/kernels.h"

#include <stdlib.h>

enum { MASTER, LOW_COPY, STATE, KINDS = STATE + TESS__MAX_STATES };

typedef struct { /* one buffer of a group */
    const char *at;
    uint32_t value_bytes;
    uint64_t n, sum; /* values */
} resting;

static resting resting_of(const tess *t, int32_t g, int kind) {
    const tess__group *group = &t->plan.layout.groups[g];
    uint64_t bytes = kind == MASTER     ? group->shard_elems * tess_dtype_bytes(group->master)
                     : kind == LOW_COPY ? group->low_copy * group->shard_elems * tess_dtype_bytes(group->compute)
                     : kind - STATE < (int)group->step.n_states ? tess__state_bytes(group, kind - STATE)
                                                                : 0;
    int role = kind == MASTER ? TESS__MASTER : kind == LOW_COPY ? TESS__LOW_COPY : TESS__STATE0 + kind - STATE;
    resting r = { .value_bytes = bytes % 4 ? 1 : 4 };
    r.n = bytes / r.value_bytes;
    r.at = r.n ? tess__address_of(t, role, g) : NULL;
    return r;
}

static void digest_part(void *user, uint64_t first, uint64_t n) {
    resting *r = user;
    uint64_t sum = tess__digest(r->at + first * r->value_bytes, r->value_bytes, first, n, 0);
    __atomic_fetch_add(&r->sum, sum, __ATOMIC_RELAXED);
}

static uint64_t digest(const tess *t, tess__pool *pool, int32_t g, int kind) {
    resting r = resting_of(t, g, kind);
    if (r.n)
        tess__pool_run(pool, r.n, TESS__KERNEL_LEAST_ELEMS, digest_part, &r);
    return r.sum;
}

tess_status tess__at_rest_take(tess *t, tess__at_rest *a, tess__pool *pool) {
    int32_t n = t->plan.layout.n_groups;
    if (!a->sum || a->n_groups != n) { /* a smaller group of ranks has a plan of its own */
        free(a->sum);
        *a = (tess__at_rest){ .n_groups = n, .sum = calloc((size_t)n * KINDS + 1, sizeof *a->sum) };
    }
    if (!a->sum)
        return tess__fail(TESS_E_NOMEM, "no memory for the digests of what rests");
    for (int32_t g = 0; g < n; g++)
        for (int k = 0; k < KINDS; k++)
            a->sum[g * KINDS + k] = digest(t, pool, g, k);
    a->known = 1;
    t->rest_changed = 0;
    return TESS_OK;
}

static tess_status check(const tess *t, const tess__at_rest *a, tess__pool *pool, int32_t g, int kind) {
    static const char *const names[] = { "parameters", "low-precision copies", "optimizer states" };
    if (digest(t, pool, g, kind) == a->sum[g * KINDS + kind])
        return TESS_OK;
    return tess__fail(TESS_E_MISMATCH,
                      "rank %d, unit %s: the %s at rest are not what step %llu left: memory has changed "
                      "(TESSERA_AT_REST_DIGESTS)",
                      t->comms.world.rank, t->plan.layout.units[t->plan.layout.groups[g].unit].name,
                      names[kind < STATE ? kind : STATE], (unsigned long long)t->step.steps_done);
}

tess_status tess__at_rest_check(tess *t, tess__at_rest *a, tess__pool *pool) {
    if (t->masters_changed || t->rest_changed)
        a->known = 0;
    for (int32_t g = 0; a->known && g < t->plan.layout.n_groups; g++)
        for (int k = MASTER; k <= LOW_COPY; k++)
            TRY(check(t, a, pool, g, k));
    return TESS_OK;
}

tess_status tess__at_rest_check_group(const tess *t, const tess__at_rest *a, tess__pool *pool, int32_t g) {
    if (!a->known)
        return TESS_OK;
    TRY(check(t, a, pool, g, MASTER));
    for (int k = STATE; k < KINDS; k++)
        TRY(check(t, a, pool, g, k));
    return TESS_OK;
}

void tess__at_rest_free(tess__at_rest *a) {
    free(a->sum);
    *a = (tess__at_rest){ .sum = NULL };
}
