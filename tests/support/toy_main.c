/* SPDX-License-Identifier: BSD-3-Clause */
/* Trains the toy and prints one line: "digest=… loss=… peak=… planned=… mapped=… step_allocations=… recompiles=…",
 * mapped and step_allocations being counted at the system call and at malloc; ledger says whether measured and planned
 * bytes were equal at every point of every pass. Fails when on any rank a figure is not as planned, memory has grown by
 * more than every_rank.c allows, or the parameters are not rank 0's. For tests that start ranks. */
#include "tools/support/alloc_count.h"
#include "every_rank.h"
#include "ledger_check.h"
#include "toy.h"
#include "toy_device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(tess *t, tess_status s) {
    fprintf(stderr, "toy: %s\n", tess_last_error());
    tess_close(t);
    toy_device_close();
    return tess_exit_code(s);
}

/* What was booked while running against the plan, category by category. */
static int categories_agree(const tess_stats *s) {
    for (int d = 1; d < 3; d++)
        for (int c = 1; c < TESS_CAT_FRAGMENTATION; c++)
            if (s->live_peak_category_bytes[d][c] != s->category_peak_bytes[d][c])
                return 0;
    return 1;
}

static tess_status take_buffer(void *user, const tess_range *r, void *data) {
    if (strcmp(r->name, "h.2.mean") == 0)
        *(double *)user = ((const float *)data)[0];
    return TESS_OK;
}

/* After an evaluation every rank has rank 0's statistics. */
static tess_status buffers_agree(tess *t, int *agree) {
    double mine = NAN, least, most;
    tess_status s = tess_each_full(t, TESS_OF_PARAM, take_buffer, &mine);
    least = most = mine;
    if (!s)
        s = tess_all_reduce(t, &least, 1, TESS_F64, TESS_MIN);
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

int main(int argc, char **argv) {
    int blocks = argc > 1 && strstr(argv[1], "blocks") != NULL;
    int fused = argc > 1 && strstr(argv[1], "fused") != NULL;
    int clip = argc > 1 && strstr(argv[1], "clip") != NULL;
    int steps = argc > 2 ? atoi(argv[2]) : 3;
    const char *accum_text = getenv("TESSERA_ACCUM"), *sync = getenv("TESSERA_SYNC");
    int accum = accum_text ? atoi(accum_text) : 1, at_end = sync && strcmp(sync, "end") == 0;
    tess *t = NULL;
    toy m;
    tool_witness before;
    tool_witness_read(&before);
    tess_options options = { .struct_size = sizeof options, .optimizer = "adamw", .input_bytes = TOY_INPUT_BYTES };
    if (toy_device_open(&options))
        return 3;
    tess_status s = tess_open(&options, &t);
    if (s)
        return fail(NULL, s);
    if ((s = toy_declare(t, &m, blocks)) || (s = tess_shard(t, toy_fill, NULL)))
        return fail(t, s);
    tess_optimizer_options step = { .struct_size = sizeof step, .lr = 0.01f, .clip_norm = clip ? 0.002f : 0 };
    m.skip = argc > 1 && strstr(argv[1], "part") ? 3 : 0;
    checks c;
    if ((s = open_checks(&c, t, clip ? TESS_LEDGER_STEP_CLIPPED : fused ? TESS_LEDGER_STEP : TESS_LEDGER_STEP_APART)))
        return fail(t, s);
    double loss = 0;
    int W = tess_ranks(t), r = tess_rank(t);
    for (int i = 0; !s && i < steps; i++) {
        if (i == 1)
            tool_alloc_window_begin();
        if (!m.skip)
            ledger_check_start(&c.step);
        for (int k = 0; !s && k < accum; k++) {
            int64_t g = (int64_t)i * accum * W + (at_end ? r * accum + k : k * W + r);
            int last = k == accum - 1;
            s = blocks ? toy_run(t, TESS_PASS_TRAIN, g, fused && last ? &step : NULL, &loss)
                       : toy_pass(t, &m, TESS_PASS_TRAIN, g, &loss);
        }
        if (!s && !(blocks && fused))
            s = tess_step(t, &step);
        if (!m.skip)
            ledger_check_stop(&c.step);
        /* Before the others can be done and ask the server, which may be in this process, for their goodbye. */
        if (i == steps - 1)
            tool_alloc_window_end();
        if (!s)
            s = tess_all_reduce(t, &loss, 1, TESS_F64, TESS_AVG);
        double eval;
        if (!m.skip)
            ledger_check_start(&c.eval);
        if (!s)
            s = blocks ? toy_run(t, TESS_PASS_EVAL, 1000, NULL, &eval) : toy_pass(t, &m, TESS_PASS_EVAL, 1000, &eval);
        if (!m.skip && blocks) /* a hooks pass ends with the next call */
            ledger_check_stop(&c.eval);
    }
    ledger_check_start(&c.full);
    uint64_t digest = 0;
    tess_stats stats = { .struct_size = sizeof stats };
    int agree = 0;
    if (s || (s = buffers_agree(t, &agree)) || (s = toy_digest(t, &digest)) || (s = tess_stats_get(t, &stats)))
        return fail(t, s);
    if (blocks)
        ledger_check_stop(&c.full);
    every_rank mine = { { 0 } };
    every_rank_witness(&mine, t, &before);
    uint64_t points = c.step.points + c.eval.points + c.full.points;
    const char *ledger = verdict(&c);
    int books = strcmp(ledger, "equal") == 0; /* the last pass of the hooks ends with the next call only */
    if (blocks)
        books &= rests(&stats) && (fused || categories_agree(&stats));
    int departed = stats.n_recompiles > 0; /* such a pass may take more than the plan, and is counted */
    mine.value[EVERY_BOOKS] = books || departed;
    mine.value[EVERY_DIGEST] = (int64_t)digest;
    mine.value[EVERY_PEAK] = (int64_t)(departed ? stats.planned_peak_bytes : stats.peak_bytes)[1];
    mine.value[EVERY_PLANNED] = (int64_t)stats.planned_peak_bytes[1];
    mine.value[EVERY_HOST_PEAK] = (int64_t)(departed ? stats.planned_peak_bytes : stats.peak_bytes)[2];
    mine.value[EVERY_HOST_PLANNED] = (int64_t)stats.planned_peak_bytes[2];
    mine.value[EVERY_MAPPED] = tool_alloc_available() && !departed ? (int64_t)tool_alloc_mapped_peak() : -1;
    mine.value[EVERY_ALLOCATIONS] = tool_alloc_available() && !departed ? (int64_t)tool_alloc_own() : -1;
    /* A sanitizer's shadow grows with what it watches, a GPU's memory is not this process's, and MPI's is not stated.
     */
    int watched = tool_alloc_available() && !toy_on_device() && !getenv("TESSERA_TEST_LAUNCHER");
    int failed = !every_rank_agree(t, &mine, !toy_on_device(), watched);
    if (r == 0)
        printf("digest=%016llx loss=%.17g peak=%llu planned=%llu host_peak=%llu host_planned=%llu mapped=%llu "
               "categories=%s resting=%s buffers=%s ledger=%s points=%llu step_allocations=%lld units=%llu "
               "recompiles=%llu ranks=%d growth=%lld\n",
               (unsigned long long)digest, loss, (unsigned long long)stats.peak_bytes[1],
               (unsigned long long)stats.planned_peak_bytes[1], (unsigned long long)stats.peak_bytes[2],
               (unsigned long long)stats.planned_peak_bytes[2], (unsigned long long)tool_alloc_mapped_peak(),
               categories_agree(&stats) ? "equal" : "differ", rests(&stats) ? "equal" : "differ",
               agree ? "equal" : "differ", ledger, (unsigned long long)points,
               tool_alloc_available() ? (long long)tool_alloc_own() : -1LL, (unsigned long long)stats.n_units,
               (unsigned long long)stats.n_recompiles, W, (long long)mine.value[EVERY_MAPPED_GROWTH]);
    int code = tess_exit_code(tess_close(t));
    if (code)
        fprintf(stderr, "toy: at the end: %s\n", tess_last_error());
    toy_device_close();
    return code ? code : failed;
}
