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
    uint64_t bytes = kind == MASTER ? !group->param_rest.stored * group->shard_elems * tess_dtype_bytes(group->master)
                     : kind == LOW_COPY ? group->low_copy * group->shard_elems * tess_dtype_bytes(group->compute)
                     : kind - STATE < (int)group->step.n_states && !group->state_rest.stored
                         ? tess__state_bytes(group, kind - STATE) /* a store looks after its own */
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
        a->n_groups = n;
        a->sum = calloc((size_t)n * KINDS + 1, sizeof *a->sum);
    }
    if (!a->sum)
        return tess__fail(TESS_E_NOMEM, "no memory for the digests of what rests");
    for (int32_t g = 0; g < n; g++)
        for (int k = 0; k < KINDS; k++)
            a->sum[g * KINDS + k] = digest(t, pool, g, k);
    a->known = 1;
    t->rest_changed = 0;
    return tess__at_rest_take_pass(t, a, pool);
}

static tess_status changed(const tess *t, int32_t unit, const char *what) {
    return tess__fail(TESS_E_MISMATCH,
                      "rank %d, unit %s: the %s at rest are not what step %llu left: memory has changed "
                      "(TESSERA_AT_REST_DIGESTS)",
                      t->comms.world.rank, unit < 0 ? "of no name" : t->plan.layout.units[unit].name, what,
                      (unsigned long long)t->step.steps_done);
}

static tess_status check(const tess *t, const tess__at_rest *a, tess__pool *pool, int32_t g, int kind) {
    static const char *const names[] = { "parameters", "low-precision copies", "optimizer states" };
    if (digest(t, pool, g, kind) == a->sum[g * KINDS + kind])
        return TESS_OK;
    return changed(t, t->plan.layout.groups[g].unit, names[kind < STATE ? kind : STATE]);
}

tess_status tess__at_rest_check(tess *t, tess__at_rest *a, tess__pool *pool, int states) {
    if (t->masters_changed || t->rest_changed)
        a->known = 0;
    for (int32_t g = 0; a->known && g < t->plan.layout.n_groups; g++)
        for (int k = MASTER; k < (states ? KINDS : STATE); k++)
            TRY(check(t, a, pool, g, k));
    return TESS_OK;
}

/* ---- what a pass leaves: gradients, until the step, and running statistics ---- */

static int is_left_by_pass(const tess *t, const tess__buffer *b) {
    int sums = b->role >= TESS__SUM0 && b->role <= TESS__SUM_LAST;
    if (b->domain == TESS_DOMAIN_DISK) /* it compares what it reads with sums of its own */
        return 0;
    return b->role == TESS__BUFFERS || ((sums || b->role == TESS__SHARD_GRAD) && t->memory.booked[b->role][b->index]);
}

static uint64_t digest_buffer(const tess *t, tess__pool *pool, const tess__buffer *b) {
    resting r = { .at = tess__address_of(t, b->role, b->index), .value_bytes = 4, .n = b->bytes / 4 };
    tess__pool_run(pool, r.n, TESS__KERNEL_LEAST_ELEMS, digest_part, &r);
    return r.sum;
}

tess_status tess__at_rest_take_pass(tess *t, tess__at_rest *a, tess__pool *pool) {
    int32_t n = t->plan.resident.n_buffers;
    if (!a->left || a->n_left != n) {
        free(a->left);
        a->left = calloc((size_t)n + 1, sizeof *a->left);
        a->n_left = n;
    }
    if (!a->left)
        return tess__fail(TESS_E_NOMEM, "no memory for the digests of what rests");
    for (int32_t i = 0; i < n; i++)
        if (is_left_by_pass(t, &t->plan.resident.buffers[i]))
            a->left[i] = digest_buffer(t, pool, &t->plan.resident.buffers[i]);
    a->left_known = 1;
    return TESS_OK;
}

static tess_status check_left(const tess *t, const tess__at_rest *a, tess__pool *pool, int32_t i) {
    const tess__buffer *b = &t->plan.resident.buffers[i];
    if (!is_left_by_pass(t, b) || digest_buffer(t, pool, b) == a->left[i])
        return TESS_OK;
    return changed(t, b->unit, b->role == TESS__BUFFERS ? "running statistics" : "gradients");
}

tess_status tess__at_rest_check_pass(const tess *t, tess__at_rest *a, tess__pool *pool) {
    if (t->masters_changed) /* the program may have written them too */
        a->left_known = 0;
    for (int32_t i = 0; a->left_known && i < a->n_left; i++)
        TRY(check_left(t, a, pool, i));
    a->left_known = 0; /* the pass writes them */
    return TESS_OK;
}

tess_status tess__at_rest_check_group(const tess *t, const tess__at_rest *a, tess__pool *pool, int32_t g) {
    for (int32_t i = 0; a->left_known && !t->masters_changed && i < a->n_left; i++)
        if (t->plan.resident.buffers[i].role == TESS__SHARD_GRAD && t->plan.resident.buffers[i].index == g)
            TRY(check_left(t, a, pool, i));
    if (!a->known)
        return TESS_OK;
    TRY(check(t, a, pool, g, MASTER));
    for (int k = STATE; k < KINDS; k++)
        TRY(check(t, a, pool, g, k));
    return TESS_OK;
}

void tess__at_rest_free(tess__at_rest *a) {
    free(a->sum);
    free(a->left);
    *a = (tess__at_rest){ .sum = NULL };
}
