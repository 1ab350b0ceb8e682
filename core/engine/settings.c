/* SPDX-License-Identifier: BSD-3-Clause */
/* The options of an engine, from its caller and from the environment. */
#include "state.h"

#include "base/log.h"
#include "base/options.h"
#include "base/status.h"
#include "checkpoint/checksum.h"
#include "plan/activations.h"
#include "readers/declaration_file.h"
#include <tessera/gpu.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SECOND INT64_C(1000000000)

/* The default is a rank's share of the cores of its host. */
static int64_t default_threads(const tess *t) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int32_t ranks = t->comms.world.local_nranks > 0 ? t->comms.world.local_nranks : t->comms.world.nranks;
    return cores > ranks ? cores / ranks : 1;
}

enum { MOST_ACCUM = 1 << 14, MOST_AUDIT = 1 << 20 };

/* Tells whether the user set accum, which wins over the program's microbatches. */
static int user_accumulates(const tess *t) {
    const char *told = tess__option_text("accum");
    return told && !t->settings.given.wins && told == tess__given_text(NULL, "accum");
}

static void say_who_accumulates(tess *t) {
    int32_t all = t->plan.setup.microbatches;
    if (t->plan.setup.accum > 1)
        snprintf(t->settings.accum_text, sizeof t->settings.accum_text, " (%s=%d)",
                 all                   ? "tess_options.microbatches"
                 : user_accumulates(t) ? "TESSERA_ACCUM"
                                       : "tess_options.accum",
                 all ? all : t->plan.setup.accum);
}

/* A rank's share of the program's microbatches becomes accum. This may change sync, which under deterministic mode
 * decides the order of the sum. */
static tess_status read_accum(tess *t) {
    tess__setup *s = &t->plan.setup;
    int32_t all = t->settings.options.microbatches, ranks = s->nranks;
    const char *told = tess__option_text("accum");
    int64_t accum = 1;
    uint64_t share = 0;
    TRY(tess__option_int("accum", 1, MOST_ACCUM, &accum));
    s->accum = (int32_t)accum;
    if (!all || user_accumulates(t))
        return TESS_OK;
    if (told && told != tess__given_text(NULL, "accum") && accum * ranks != all)
        return tess__fail(TESS_E_INVALID,
                          "tess_options.accum is %d on %d ranks and tess_options.microbatches %d: leave accum 0",
                          (int)accum, ranks, all);
    if (all < 0 ||
        !tess__divide_microbatches((uint64_t)all, (uint64_t)ranks, s->deterministic, &s->sync_each, &share) ||
        share > MOST_ACCUM)
        return tess__fail(TESS_E_INVALID,
                          "tess_options.microbatches is %d, which %d rank%s not divide%s: take another number of ranks",
                          all, ranks, ranks == 1 ? " does" : "s do", s->deterministic ? " into aligned subtrees" : "");
    s->accum = (int32_t)share;
    s->microbatches = all;
    return TESS_OK;
}

static void take_promises(tess__setup *s, const tess_options *o) {
    s->input_bytes = o->input_bytes;
    s->step_in_pass = (o->flags & TESS_OPTIONS_STEP_IN_PASS) != 0;
    s->no_clip = (o->flags & TESS_OPTIONS_NO_CLIP) != 0 && !s->norm_first;
    s->repeats = (o->flags & TESS_OPTIONS_REPEAT) != 0;
    s->late = (o->flags & TESS_OPTIONS_LATE) != 0;
    s->base_apart = (o->flags & TESS_OPTIONS_BASE_APART) != 0 && tess__sum_known();
}

static tess_status read_common(tess *t) {
    const tess_options *o = &t->settings.options;
    int missing = o->common_bytes && !o->common && !t->settings.plan_only;
    if (missing || o->common_bytes > TESS_CHECKPOINT_BYTES)
        return tess__fail(
            TESS_E_INVALID, "tess_options.common_bytes is %llu%s: at most %d are kept, and common points to them",
            (unsigned long long)o->common_bytes, missing ? " and common is null" : "", TESS_CHECKPOINT_BYTES);
    t->plan.setup.common_bytes = o->common_bytes;
    return TESS_OK;
}

static tess_status read_guard(tess *t) {
    const char *on_nan = "stop";
    TRY(tess__option_choice("on-nan", &on_nan));
    TRY(tess__option_real("spike", &t->settings.spike));
    if (!isfinite(t->settings.spike) || (t->settings.spike != 0 && t->settings.spike < 1))
        return tess__fail(TESS_E_INVALID, "TESSERA_SPIKE is %g, expected 0 (off) or a number from 1 up",
                          t->settings.spike);
    t->settings.on_nan = strcmp(on_nan, "skip") == 0   ? TESS__NAN_SKIP
                         : strcmp(on_nan, "warn") == 0 ? TESS__NAN_WARN
                                                       : TESS__NAN_STOP;
    t->plan.setup.norm_first = t->settings.on_nan == TESS__NAN_SKIP || t->settings.spike > 0;
    return TESS_OK;
}

static tess_status read_flags(tess *t) {
    tess__setup *s = &t->plan.setup;
    s->graphs = 1;
    TRY(tess__option_flag("deterministic", &s->deterministic));
    TRY(tess__option_flag("strict", &t->settings.strict));
    TRY(tess__option_flag("low-copy", &s->low_copy));
    TRY(tess__option_flag("at-rest-digests", &t->settings.digests_rest));
    TRY(tess__option_flag("graphs", &s->graphs));
    s->graphs &= !t->settings.strict; /* the host makes the guard's copies, so nothing can be recorded */
    return TESS_OK;
}

static tess_status read_switches(tess *t) {
    tess__setup *s = &t->plan.setup;
    const char *activations = "keep", *sync = "each", *checkpoint = "async";
    double timeout = 300;
    TRY(tess__option_choice("sync", &sync));
    activations = tess__option_or("activations", activations);
    TRY(tess__activations_check(activations));
    TRY(tess__option_choice("checkpoint", &checkpoint));
    TRY(read_flags(t));
    TRY(read_guard(t));
    TRY(tess__option_real("timeout", &timeout));
    const char *prefetch = tess__option_text("prefetch");
    int64_t depth = 1;
    s->prefetch_fixed = prefetch && strcmp(prefetch, "auto") != 0;
    if (s->prefetch_fixed)
        TRY(tess__option_int("prefetch", 0, 8, &depth));
    int64_t threads = s->deterministic ? 1 : default_threads(t);
    TRY(tess__option_int("threads", 1, 1024, &threads));
    t->plan.setup.threads = (int32_t)threads;
    snprintf(t->settings.threads_text, sizeof t->settings.threads_text, "%d", t->plan.setup.threads);
    s->sync_each = strcmp(sync, "each") == 0;
    TRY(read_accum(t));
    say_who_accumulates(t);
    s->snapshot = t->settings.options.checkpoint != 0 && strcmp(checkpoint, "async") == 0;
    s->prefetch = (int32_t)depth;
    take_promises(s, &t->settings.options);
    t->settings.timeout_ns = (int64_t)(timeout * (double)SECOND);
    t->settings.activations = strdup(activations);
    if (!t->settings.activations)
        return tess__fail(TESS_E_NOMEM, "no memory for the options");
    if (!tess__activations_uniform(activations, &s->activations))
        s->activation_spec = t->settings.activations;
    return TESS_OK;
}

static tess_status read_budget(tess *t) {
    tess_plan_env *e = &t->plan.setup.env;
    TRY(tess__option_bytes("device-memory", &e->device_budget_bytes));
    TRY(tess__option_bytes("disk-memory", &t->plan.setup.disk_budget_bytes));
    return tess__option_bytes("host-memory", &e->host_budget_bytes);
}

static tess_status read_own_states(tess *t) {
    int32_t n = t->settings.options.own_states;
    if (n < 0 || n > 2)
        return tess__fail(TESS_E_INVALID, "tess_options.own_states is %d, expected 0 to 2", n);
    if (t->plan.setup.own_optimizer)
        t->plan.setup.n_states = n;
    return TESS_OK;
}

/* Tells whether a lost rank would be started again: only the launcher of one host does it. */
static int is_replaced(const tess *t) {
    const tess__world *w = &t->comms.world;
    return t->settings.plan_only || (w->launched && w->address[0] == '/');
}

static tess_status read_mirror(tess *t) {
    int64_t steps = 0;
    tess_status s = tess__option_int("mirror", 0, INT32_MAX, &steps);
    if (s || !steps || !t->settings.options.recover || t->plan.setup.nranks == 1)
        return s;
    if (t->settings.options.group)
        return tess__fail(
            TESS_E_UNSUPPORTED,
            "TESSERA_MIRROR=%d: an engine over a group of ranks (tess_options.group) cannot go on without "
            "a lost one; unset it, and start again from a checkpoint (tessera run --restarts)",
            (int)steps);
    if (is_replaced(t))
        t->plan.setup.mirror = (int32_t)steps;
    else if (t->comms.world.rank == 0)
        tess__log(TESS_LOG_WARNING, "TESSERA_MIRROR=%d: only `tessera run` on one host replaces a lost rank; off",
                  (int)steps);
    return TESS_OK;
}

static tess_status read_ledger(tess *t) {
    int64_t every = 1;
    TRY(tess__option_int("ledger-every", 1, INT32_MAX, &every));
    const char *path = tess__option_text("ledger");
    if (!path)
        return TESS_OK;
    t->plan.setup.ledger_every = (int32_t)every;
    t->settings.ledger = strdup(path);
    return t->settings.ledger ? TESS_OK : tess__fail(TESS_E_NOMEM, "no memory for the options");
}

static tess_status read_audit(tess *t) {
    const char *share = tess__option_text("audit"), *then = "stop";
    char *end = "";
    TRY(tess__option_choice("on-audit", &then));
    t->settings.audit_recovers = strcmp(then, "recover") == 0;
    if (!share || strcmp(share, "0") == 0)
        return TESS_OK;
    long every = strncmp(share, "1/", 2) == 0 && share[2] >= '0' && share[2] <= '9' ? strtol(share + 2, &end, 10) : 0;
    if (every < 1 || every > MOST_AUDIT || *end)
        return tess__fail(TESS_E_INVALID, "TESSERA_AUDIT is '%.40s', expected 0 (off) or 1/K with K from 1 to %d",
                          share, MOST_AUDIT);
    if (t->plan.setup.nranks == 1)
        return tess__fail(TESS_E_INVALID, "TESSERA_AUDIT=%.40s: one rank has no other that computes again; take two",
                          share);
    t->plan.setup.audit_every = (int32_t)every;
    return TESS_OK;
}

static tess_status read_detail(tess *t) {
    int64_t step = 1;
    const char *path = tess__option_text("detail"), *values = tess__option_text("detail-values");
    TRY(tess__option_int("detail-step", 1, INT64_MAX, &step));
    if (!path)
        return TESS_OK;
    t->settings.detail_step = (uint64_t)step;
    t->settings.detail = strdup(path);
    t->settings.detail_values = values ? strdup(values) : NULL;
    return t->settings.detail && (!values || t->settings.detail_values)
               ? TESS_OK
               : tess__fail(TESS_E_NOMEM, "no memory for the options");
}

tess_status tess__read_options(tess *t) {
    TRY(read_switches(t));
    TRY(read_common(t));
    TRY(read_mirror(t));
    TRY(read_ledger(t));
    TRY(read_audit(t));
    TRY(read_detail(t));
    TRY(read_budget(t));
    t->settings.strategy = strdup(tess__option_or("strategy", "full"));
    t->settings.optimizer = strdup(tess__option_or("optimizer", "adamw"));
    if (!t->settings.strategy || !t->settings.optimizer)
        return tess__fail(TESS_E_NOMEM, "no memory for the options");
    TRY(tess__setup_strategy(&t->plan.setup, t->settings.strategy));
    t->plan.setup.with_momentum = t->settings.options.momentum != 0;
    t->plan.setup.own_optimizer = strcmp(t->settings.optimizer, "own") == 0;
    return read_own_states(t);
}

tess_status tess__read_plan(tess *t) {
    int64_t ranks = t->settings.options.ranks > 0 ? t->settings.options.ranks : 1;
    tess_status s = TESS_OK;
    t->settings.plan_only = t->settings.options.plan_only != 0;
    if (!t->settings.plan_only && tess__option_text("plan")) {
        t->settings.plan_only = 1;
        tess__describe_expect(1);
        s = tess__option_int("plan", 1, INT32_MAX, &ranks);
    }
    t->settings.options.ranks = (int32_t)ranks;
    return s;
}

static tess_status check_group(const tess *t, const tess_group_options *o) {
    const char *name = o->name ? o->name : "";
    if (o->struct_size < sizeof *o)
        return tess__fail(TESS_E_INVALID, "tess_options.group: struct_size is %u; set it to sizeof of the struct (%zu)",
                          o->struct_size, sizeof *o);
    if (o->ranks < 0 || strlen(name) >= sizeof t->settings.group_name || tess__has_control(name))
        return tess__fail(TESS_E_INVALID,
                          "tess_options.group: ranks is %d, the name '%.40s', expected a number from 0 up and at most "
                          "%zu characters",
                          o->ranks, name, sizeof t->settings.group_name - 1);
    if (t->settings.plan_only && !o->ranks)
        return tess__fail(TESS_E_INVALID,
                          "tess_options.group.ranks is 0, so a plan does not know how many ranks group '%s' has: "
                          "tess_mesh_group says it",
                          name);
    return TESS_OK;
}

tess_status tess__read_group(tess *t) {
    tess__settings *s = &t->settings;
    const tess_group_options *given = s->options.group;
    if (!given)
        return TESS_OK;
    TRY(check_group(t, given));
    s->group = *given;
    snprintf(s->group_name, sizeof s->group_name, "%s", given->name ? given->name : "");
    s->group.name = s->group_name;
    s->options.group = &s->group;
    return TESS_OK;
}
