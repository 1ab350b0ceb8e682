/* SPDX-License-Identifier: BSD-3-Clause */
/* tess_shard wraps, lays out, compiles, plans, compares, obtains memory and fills it. Also tess_alloc. */
#include "state.h"

#include "readers/declaration_file.h"
#include "base/log.h"
#include "base/options.h"
#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Asks the program's own planner, in the words of tessera.h. */
static tess_status plan_alternative(void *user, const tess__option_set *c, uint64_t bytes[TESS__DOMAINS],
                                    double *seconds) {
    const tess *t = user;
    const tess_options *o = &t->settings.options;
    tess_setting settings[TESS__MOST_SETTINGS];
    for (int32_t i = 0; i < c->n; i++)
        settings[i] = (tess_setting){ c->set[i].key, c->set[i].value };
    tess__given_use(t->settings.callers);
    tess_status s = o->plan_alternative(o->plan_user, settings, (uint32_t)c->n, bytes, seconds);
    bytes[TESS_DOMAIN_DISK] = bytes[0];
    tess__given_use(&t->settings.given);
    return s;
}

/* The message of a plan over its budget goes on with what to change. */
static tess_status append_advice(tess *t) {
    char over_budget[1024], text[1024];
    snprintf(over_budget, sizeof over_budget, "%s", tess_last_error());
    tess__replan_fn own = t->settings.options.plan_alternative ? plan_alternative : NULL;
    tess__advise(&t->plan, &t->selection, own, t, &t->advice);
    tess__advice_text(&t->advice, over_budget, text, sizeof text);
    return tess__fail(TESS_E_BUDGET, "%s", text);
}

/* Passes read the copies alone, so the device must offer the step that writes them in bf16. For fp16 a cast follows. */
static tess_status check_copies(const tess *t) {
    for (int32_t g = 0; t->plan.setup.optimizer && g < t->plan.layout.n_groups; g++) {
        const tess__group *group = &t->plan.layout.groups[g];
        tess_kernel k = {
            .kernel = TESS_K_OPTIMIZER, .in_dtype = group->grad_shard, .out_dtype = group->master, .n_in = 1
        };
        k.out2 = &k; /* any non-null pointer asks about steps that write a copy */
        if (group->low_copy && group->compute == TESS_BF16 && !tess__device_offers(&t->device, &k))
            return tess__fail(TESS_E_UNSUPPORTED,
                              "TESSERA_LOW_COPY=1: device %s offers no step that writes bf16 copies",
                              t->device.plugin->name);
    }
    return TESS_OK;
}

static tess_status make_plan(tess *t) {
    TRY(tess__check_activations(t));
    TRY(tess__check_overwrite(&t->plan));
    TRY(t->hooks->audit_check(t));
    tess_status s = tess__plan_make(&t->plan);
    int planned = t->plan.layout.n_units > 0; /* not where no choice of units fits (wrap=auto) */
    if ((!s || s == TESS_E_BUDGET) && planned)
        TRY(check_copies(t));
    return s == TESS_E_BUDGET && planned && !tess__option_text("plan-file") ? append_advice(t) : s;
}

/* Writes them for `tessera plan -- PROGRAM`. */
static tess_status write_declarations(const tess *t) {
    const char *path = tess__option_text("plan-file");
    return path
               ? tess__describe(&t->plan, &t->settings.given, &t->settings.options, t->settings.options.plan_only, path)
               : TESS_OK;
}

static tess_status shard_model(tess *t, tess_range_fn fill, void *user) {
    if (t->sharded)
        return tess__fail(TESS_E_INVALID, "tess_shard is called twice");
    tess_status s = make_plan(t);
    if (t->settings.plan_only && (!s || s == TESS_E_BUDGET)) { /* a plan over its budget can be read, too */
        t->sharded = 1;
        if (write_declarations(t))
            return TESS_E_SYSTEM;
    }
    TRY(s);
    if (t->settings.plan_only)
        return tess__fail(TESS_E_PLANNED, "planned, nothing allocated");
    TRY(tess__handshake_programs(t, t->plan.programs, TESS__N_PROGRAMS));
    TRY(tess__tables_create(t));
    TRY(tess__segments_make(&t->step, &t->plan, t->comms.shard_rank));
    TRY(tess__memory_obtain(&t->memory, tess__device_index(t)));
    TRY(tess__memory_share(&t->memory));
    TRY(tess__guard_create(t, &t->pass.guard));
    if (t->comms.world.rank == 0)
        tess__say_unused(t);
    TRY(tess__transfers_start(t, tess__device_index(t)));
    t->sharded = 1;
    return fill && !t->mirror.joins ? tess_each_owned(t, TESS_OF_PARAM | TESS_OF_WRITE, fill, user) : TESS_OK;
}

tess_status tess_shard(tess *t, tess_range_fn fill, void *user) {
    TRY(tess__engine_check(t));
    t->settings.callers = tess__given_use(&t->settings.given);
    tess_status s = shard_model(t, fill, user);
    tess__given_use(t->settings.callers);
    if (s == TESS_E_PLANNED || t->error)
        return s;
    return s ? tess__engine_fail(t, s) : TESS_OK;
}

/* A program that is only planned still computes with the pointer before tess_shard. It gets addresses without memory.
 */
static void *reserve_addresses(uint64_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static tess_status alloc_user_memory(tess *t, const char *label, uint64_t bytes, void **out) {
    int32_t n = t->plan.n_user;
    tess_buffer *b = &t->memory.user[n];
    if (!out)
        return tess__fail(TESS_E_INVALID, "tess_alloc: there is no place for the pointer");
    if (n == TESS__MAX_USER)
        return tess__fail(TESS_E_INVALID, "more than %d allocations; \"%s\" is one too many", TESS__MAX_USER, label);
    bytes = tess__round_up(bytes ? bytes : 1, t->plan.setup.granularity);
    if (t->settings.plan_only)
        *b = (tess_buffer){ .bytes = bytes, .ptr = reserve_addresses(bytes) };
    else
        TRY(tess__memory_user(&t->memory, label, bytes, n));
    t->plan.user_bytes[t->plan.n_user++] = b->bytes;
    *out = b->ptr;
    return TESS_OK;
}

tess_status tess_alloc(tess *t, const char *label, uint64_t bytes, void **out) {
    TESS__PUBLIC(t, alloc_user_memory(t, label ? label : "tess_alloc", bytes, out));
}
