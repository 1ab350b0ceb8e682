/* SPDX-License-Identifier: BSD-3-Clause */
/* Trains the toy and prints one line: "digest=… loss=… peak=… planned=… mapped=… step_allocations=… recompiles=…",
 * mapped and step_allocations being counted at the system call and at malloc; ledger says whether measured and planned
 * bytes were equal at every point of every pass; norm: tess_stats.grad_norm of the last step. Fails when on any rank a
 * figure is not as planned, memory has grown by more than every_rank.c allows, or the parameters are not rank 0's. For
 * tests that start ranks. */
#include "tools/support/alloc_count.h"
#include "core/engine/state.h"
#include "every_rank.h"
#include "ledger_check.h"
#include "toy.h"
#include "toy_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(tess *t, tess_status s) {
    fprintf(stderr, "toy: %s\n", tess_last_error());
    tess_close(t);
    toy_device_close();
    return tess_exit_code(s);
}

/* After an evaluation every rank has rank 0's statistics. */
static tess_status buffers_agree(tess *t, double mine, int *agree) {
    double least = mine, most = mine;
    tess_status s = tess_all_reduce(t, &least, 1, TESS_F64, TESS_MIN);
    if (!s)
        s = tess_all_reduce(t, &most, 1, TESS_F64, TESS_MAX);
    *agree = least == most;
    return s;
}

/* Between steps only what rests is alive: nothing leaked into the books. */
static int rests(const tess_stats *s) {
    return s->live_bytes[1] == s->resting_bytes[1] && s->live_bytes[2] == s->resting_bytes[2];
}

typedef struct {
    ledger_check step, eval, full;
} checks;

static tess_status open_checks(checks *c, tess *t, uint32_t of) {
    uint64_t (*count)(void) = tool_alloc_available() ? tool_alloc_own : NULL;
    tess_status s = ledger_check_open(&c->step, t, of, count);
    if (!s)
        s = ledger_check_open(&c->eval, t, TESS_LEDGER_EVAL, count);
    return s ? s : ledger_check_open(&c->full, t, TESS_LEDGER_FULL, count);
}

/* The peak of the run against those that are planned of its passes, category by category. tess_stats has the plan's own
 * peak, which may be that of a program that a run has no reason to take: a step with clipping, or within its pass. */
static int categories_agree(const checks *c, const tess_stats *s) {
    const ledger_check *all[] = { &c->step, &c->eval, &c->full };
    for (int d = 1; d < 3; d++) {
        const tess_ledger_point *most = NULL;
        for (int i = 0; i < 3; i++) {
            const tess_ledger_point *peak = &all[i]->planned[all[i]->n_planned - 1];
            most = !most || peak->total_bytes[d] > most->total_bytes[d] ? peak : most;
        }
        if (memcmp(s->live_peak_category_bytes[d], most->bytes[d], sizeof most->bytes[d]) != 0)
            return 0;
    }
    return 1;
}

static const char *verdict(checks *c) {
    ledger_check *all[] = { &c->step, &c->eval, &c->full };
    const char *text = "equal";
    for (int i = 0; i < 3; i++) {
        if (all[i]->differ) {
            fprintf(stderr, "toy: ledger: %s (and %d more)\n", all[i]->first, all[i]->differ - 1);
            text = "differ";
        }
        ledger_check_close(all[i]);
    }
    return text;
}

/* ---- training ---- */

typedef struct {
    int flags, blocks, fused, clip, steps, accum, at_end;
    tess *t;
    toy m;
    tess_optimizer_options step;
    checks c;
    double loss;
    int rates; /* a rate for each group, of each step: tess_optimizer_options.group_lr */
    float group_lr[2];
} training;

static const tess_optimizer_group two_groups[] = { { 0.1f, 0 }, { 0, 0.5f } };

/* "blocks-fused-clip-groups-rates" and the environment */
static void read_mode(training *r, const char *mode, const char *steps) {
    const char *accum = getenv("TESSERA_ACCUM"), *sync = getenv("TESSERA_SYNC");
    const char *optimizer = getenv("TESSERA_OPTIMIZER");
    int momentum = optimizer && strcmp(optimizer, "sgd") == 0,
        adadelta = optimizer && strcmp(optimizer, "adadelta") == 0;
    r->blocks = strstr(mode, "blocks") != NULL;
    r->fused = strstr(mode, "fused") != NULL;
    r->clip = strstr(mode, "clip") != NULL;
    r->flags = (r->blocks ? TOY_BLOCKS : 0) | (strstr(mode, "groups") ? TOY_GROUPS : 0) |
               (strstr(mode, "fp32") ? TOY_FP32 : 0) | (strstr(mode, "large") ? TOY_LARGE : 0) |
               (strstr(mode, "stored") ? TOY_STORED : 0);
    r->rates = strstr(mode, "rates") != NULL;
    r->steps = steps ? atoi(steps) : 3;
    r->accum = accum ? atoi(accum) : 1;
    r->at_end = sync && strcmp(sync, "end") == 0;
    r->step = (tess_optimizer_options){ .struct_size = sizeof r->step,
                                        .lr = adadelta ? 0.5f : 0.01f,
                                        .momentum = momentum ? 0.9f : 0,
                                        .clip_norm = r->clip ? 0.002f : 0,
                                        .groups = r->flags & TOY_GROUPS ? two_groups : NULL,
                                        .n_groups = r->flags & TOY_GROUPS ? 2 : 0 };
}

static tess_status open_training(training *r, const char *mode) {
    tess_options options = { .struct_size = sizeof options,
                             .optimizer = "adamw",
                             .momentum = r->step.momentum,
                             .flags = TESS_OPTIONS_LOSS_SCALE |
                                      (!r->blocks || !r->fused ? 0
                                       : r->clip               ? TESS_OPTIONS_STEP_IN_PASS
                                                               : TESS_OPTIONS_STEP_IN_PASS | TESS_OPTIONS_NO_CLIP),
                             .input_bytes = TOY_INPUT_BYTES };
    if (toy_device_open(&options))
        return TESS_E_DEVICE;
    tess_status s = tess_open(&options, &r->t);
    if (s || (s = toy_declare(r->t, &r->m, r->flags)) || (s = tess_shard(r->t, toy_fill, NULL)))
        return s;
    r->m.skip = strstr(mode, "part") ? 3 : 0;
    return open_checks(&r->c, r->t,
                       r->clip    ? TESS_LEDGER_STEP_CLIPPED
                       : r->fused ? TESS_LEDGER_STEP
                                  : TESS_LEDGER_STEP_APART);
}

/* Every other pass of a step but the last says itself that it does not communicate; the others leave that to the
 * engine. */
static uint32_t kind_of(const training *r, int k) {
    return TESS_PASS_TRAIN | (r->at_end && k < r->accum - 1 && k % 2 == 0 ? TESS_PASS_NO_SYNC : 0);
}

/* As schedules of their own: one group's rate falls, the other's begins at 0. */
static void set_rates(training *r, int i) {
    r->group_lr[0] = r->step.lr / (float)(1 + i);
    r->group_lr[1] = r->step.lr * 0.5f * (float)i;
    r->step.group_lr = r->rates ? r->group_lr : NULL;
}

static tess_status train_step(training *r, int i) {
    int W = tess_ranks(r->t), rank = tess_rank(r->t);
    tess_status s = TESS_OK;
    set_rates(r, i);
    if (!r->m.skip)
        ledger_check_start(&r->c.step);
    for (int k = 0; !s && k < r->accum; k++) {
        int64_t g = (int64_t)i * r->accum * W + (r->at_end ? rank * r->accum + k : k * W + rank);
        int last = k == r->accum - 1;
        s = r->blocks ? toy_run(r->t, TESS_PASS_TRAIN, g, r->fused && last ? &r->step : NULL, &r->loss)
                      : toy_pass(r->t, &r->m, kind_of(r, k), g, &r->loss);
    }
    if (!s && !(r->blocks && r->fused))
        s = tess_step(r->t, &r->step);
    if (!r->m.skip)
        ledger_check_stop(&r->c.step);
    return s;
}

static tess_status evaluate(training *r) {
    double loss;
    if (!r->m.skip)
        ledger_check_start(&r->c.eval);
    tess_status s = r->blocks ? toy_run(r->t, TESS_PASS_EVAL, 1000, NULL, &loss)
                              : toy_pass(r->t, &r->m, TESS_PASS_EVAL, 1000, &loss);
    if (!s && !r->blocks)
        s = tess_grad_drop(r->t); /* a hooks pass ends with the next call */
    if (!r->m.skip)
        ledger_check_stop(&r->c.eval);
    return s;
}

static tess_status train(training *r) {
    tess_status s = TESS_OK;
    for (int i = 0; !s && i < r->steps; i++) {
        if (i == 1)
            tool_alloc_window_begin();
        s = train_step(r, i);
        /* Before the others can be done and ask the server, which may be in this process, for their goodbye. */
        if (i == r->steps - 1)
            tool_alloc_window_end();
        if (!s)
            s = tess_all_reduce(r->t, &r->loss, 1, TESS_F64, TESS_AVG);
        if (!s)
            s = evaluate(r);
    }
    return s;
}

/* ---- figures ---- */

typedef struct {
    uint64_t digest, points;
    tess_stats stats;
    int agree, departed, categories;
    const char *ledger;
    every_rank mine;
    uint64_t mapped;     /* and allocations: before anything is summoned, which is in no plan */
    int64_t allocations; /* -1: a sanitizer owns malloc */
} figures;

/* What the comm plugin says that its communicators take of their own, of all that there are. */
static int64_t stated_for(const tess__setup *s, int32_t ranks) {
    tess_plan_env env = s->env;
    tess_collective c = { .struct_size = sizeof c,
                          .op = TESS_ALL_GATHER,
                          .send_dtype = TESS_F32,
                          .recv_dtype = TESS_F32,
                          .send_mem = env.mem,
                          .recv_mem = env.mem,
                          .count = 4096,
                          .scale = 1 };
    tess_need need = { .struct_size = sizeof need };
    env.nranks = ranks;
    return s->comm->need(s->comm_ctx, &env, &c, &need) == TESS_OK ? (int64_t)need.backend_bytes : 0;
}

static int64_t stated(const tess *t) {
    const tess__setup *s = &t->plan.setup;
    int64_t bytes = 0;
    for (int i = 0; i < TESS__N_COMMS; i++) {
        int again = !t->comms.list[i];
        for (int k = 0; k < i; k++)
            again |= t->comms.list[k] == t->comms.list[i];
        if (!again)
            bytes += stated_for(s, i == TESS__WORLD     ? s->env.nranks
                                   : i == TESS__REPLICA ? s->env.nranks / s->shard_ranks
                                                        : s->shard_ranks);
    }
    return bytes;
}

static tess_status take_figures(training *r, const tool_witness *before, figures *f) {
    ledger_check_start(&r->c.full);
    f->stats.struct_size = sizeof f->stats;
    double mean;
    tess_status s = toy_digest_and_mean(r->t, &f->digest, &mean);
    if (s || (s = buffers_agree(r->t, mean, &f->agree)))
        return s;
    ledger_check_stop(&r->c.full);
    if ((s = tess_stats_get(r->t, &f->stats)))
        return s;
    f->mapped = tool_alloc_mapped_peak();
    f->allocations = tool_alloc_available() ? (int64_t)tool_alloc_own() : -1;
    every_rank_witness(&f->mine, before);
    f->mine.value[EVERY_STATED] = stated(r->t);
    f->points = r->c.step.points + r->c.eval.points + r->c.full.points;
    f->categories = categories_agree(&r->c, &f->stats);
    f->ledger = verdict(&r->c);
    f->departed = f->stats.n_recompiles > 0; /* such a pass may take more than the plan, and is counted */
    return TESS_OK;
}

/* Behind all figures: what is summoned is in no plan. */
static tess_status summon(training *r, figures *f) {
    int same = 1;
    tess_status s = toy_on_device() ? TESS_OK : toy_summoned(r->t, &r->m, &same);
    f->mine.value[EVERY_SUMMONED] = same;
    return s;
}

static void fill_mine(figures *f) {
    const tess_stats *s = &f->stats;
    const uint64_t *peak = f->departed ? s->planned_peak_bytes : s->peak_bytes;
    int disk = s->disk_peak_bytes == s->planned_disk_peak_bytes || f->departed;
    int books = strcmp(f->ledger, "equal") == 0 && rests(s) && f->categories && disk;
    int counted = tool_alloc_available() && !f->departed;
    f->mine.value[EVERY_BOOKS] = books || f->departed;
    f->mine.value[EVERY_DIGEST] = (int64_t)f->digest;
    f->mine.value[EVERY_PEAK] = (int64_t)peak[1];
    f->mine.value[EVERY_PLANNED] = (int64_t)s->planned_peak_bytes[1];
    f->mine.value[EVERY_HOST_PEAK] = (int64_t)peak[2];
    f->mine.value[EVERY_HOST_PLANNED] = (int64_t)s->planned_peak_bytes[2];
    f->mine.value[EVERY_MAPPED] = counted ? (int64_t)f->mapped : -1;
    f->mine.value[EVERY_ALLOCATIONS] = counted ? f->allocations : -1;
}

static void print_figures(const training *r, const figures *f) {
    const tess_stats *s = &f->stats;
    printf("digest=%016llx loss=%.17g peak=%llu planned=%llu host_peak=%llu host_planned=%llu mapped=%llu "
           "categories=%s resting=%s buffers=%s ledger=%s points=%llu step_allocations=%lld units=%llu "
           "recompiles=%llu ranks=%d growth=%lld norm=%.17g disk_peak=%llu disk_planned=%llu\n",
           (unsigned long long)f->digest, r->loss, (unsigned long long)s->peak_bytes[1],
           (unsigned long long)s->planned_peak_bytes[1], (unsigned long long)s->peak_bytes[2],
           (unsigned long long)s->planned_peak_bytes[2], (unsigned long long)f->mapped,
           f->categories ? "equal" : "differ", rests(s) ? "equal" : "differ", f->agree ? "equal" : "differ", f->ledger,
           (unsigned long long)f->points, (long long)f->allocations, (unsigned long long)s->n_units,
           (unsigned long long)s->n_recompiles, tess_ranks(r->t), (long long)f->mine.value[EVERY_MAPPED_GROWTH],
           s->grad_norm, (unsigned long long)s->disk_peak_bytes, (unsigned long long)s->planned_disk_peak_bytes);
}

int main(int argc, char **argv) {
    static training r;
    static figures f;
    const char *mode = argc > 1 ? argv[1] : "";
    tool_witness before;
    tool_witness_read(&before);
    read_mode(&r, mode, argc > 2 ? argv[2] : NULL);
    tess_status s = open_training(&r, mode);
    if (s || (s = train(&r)) || (s = take_figures(&r, &before, &f)))
        return fail(r.t, s);
    fill_mine(&f);
    if ((s = summon(&r, &f)))
        return fail(r.t, s);
    /* A sanitizer's shadow grows with what it watches, a GPU's memory is not this process's, and MPI's is not stated.
     */
    int watched = tool_alloc_available() && !toy_on_device() && !getenv("TESSERA_TEST_LAUNCHER");
    int failed = !every_rank_agree(r.t, &f.mine, !toy_on_device(), watched);
    if (tess_rank(r.t) == 0)
        print_figures(&r, &f);
    int code = tess_exit_code(tess_close(r.t));
    if (code)
        fprintf(stderr, "toy: at the end: %s\n", tess_last_error());
    toy_device_close();
    return code ? code : failed;
}
