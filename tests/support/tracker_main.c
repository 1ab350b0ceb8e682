/* SPDX-License-Identifier: BSD-3-Clause */
/* The cases of PyTorch's test of its FSDP2 memory tracker, and its memory guide's device of 24 units. A plan is made in
 * advance, with no ranks and no memory, and held against runs: at every ledger point, and what was obtained in all.
 *
 *   tracker CASE run SCALE     on the ranks that `tessera run` started: mlps, part, transformer, device24
 *   tracker CASE plan SCALE    the plan alone, for TRACKER_RANKS ranks; SCALE 1: PyTorch's sizes
 *
 * For device24 SCALE is the unit in bytes. Strategy, offload and so on come from the environment. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/support/alloc_count.h"
#include "core/engine/state.h"
#include "ledger_check.h"
#include "core/base/status.h"
#include "tracker.h"

static tracker_net net, copy; /* of the run and of the plan */
static int failures;
static uint64_t mapped_before;

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            failures++;                                                                                                \
            fprintf(stderr, __VA_ARGS__);                                                                              \
            fputc('\n', stderr);                                                                                       \
        }                                                                                                              \
    } while (0)

static int stop(tess_status s) {
    fprintf(stderr, "tracker: %s\n", tess_last_error());
    return tess_exit_code(s);
}

static uint64_t width_of_elements(void) {
    const char *precision = getenv("TESSERA_PRECISION");
    return precision && strncmp(precision, "bf16", 4) == 0 ? 2 : 4;
}

/* ---- opening ---- */

static tess_status open_net(tracker_net *n, int32_t plan_ranks, tess_scope *scopes, tess **t, void **memory) {
    tess_options o = { .struct_size = sizeof o,
                       .optimizer = n->optimizer,
                       .momentum = n->momentum,
                       .accum = n->accum,
                       .input_bytes = n->input_bytes,
                       .plan_only = plan_ranks > 0,
                       .ranks = plan_ranks };
    tess_status s = tess_open(&o, t);
    if (!s)
        s = tracker_declare(*t, n, scopes);
    if (!s && n->hooks)
        s = tess_alloc(*t, "activations", n->pieces[0].output_bytes + 2 * n->pieces[0].saved_bytes, memory);
    return s ? s : tess_shard(*t, NULL, NULL);
}

/* A pass through the first scope alone, which the plan would otherwise not know of. */
static tess_status plan_part(tess *t) {
    static const uint8_t types[] = { TESS__FORWARD_BEGIN, TESS__FORWARD_END, TESS__BACKWARD_BEGIN, TESS__BACKWARD_END };
    tess__program events = { 0 };
    tess_status s = TESS_OK;
    for (int i = 0; i < 4 && !s; i++)
        s = tess__program_event(&events, types[i], 0);
    if (!s)
        s = tess__compile_pass(&t->plan.compiler, TESS_PASS_TRAIN, &events, 0, &t->plan.programs[TESS__P_TRAIN]);
    tess__program_free(&events);
    return s;
}

static tess_status open_plan(int32_t ranks, tess **t) {
    void *none;
    copy = net;
    tess_status s = open_net(&copy, ranks, NULL, t, &none);
    if (s != TESS_E_PLANNED && s != TESS_E_BUDGET)
        return s;
    return net.hooks ? plan_part(*t) : TESS_OK;
}

/* ---- running ---- */

static tess_status pass_through_part(tess *t, tess_scope scope, unsigned char *memory) {
    void *params[MOST_PARAMS], *grads[MOST_PARAMS];
    const tracker_piece *p = &net.pieces[0];
    uint32_t bytes = (uint32_t)width_of_elements();
    tess_status s = tess_pass(t, TESS_PASS_TRAIN);
    if (!s)
        s = tess_forward_begin(t, scope, params, 4);
    if (s)
        return s;
    tracker_touch_forward(p, params, bytes);
    memset(memory, 0x3c, p->output_bytes + p->saved_bytes);
    s = tess_forward_end(t, scope);
    if (!s)
        s = tess_backward_begin(t, scope, params, grads, 4);
    if (s)
        return s;
    tracker_touch_backward(p, params, grads, bytes);
    return tess_backward_end(t, scope);
}

static tess_status iterate(tess *t, tess_scope first, unsigned char *memory, const void *batch) {
    tess_optimizer_options step = { .struct_size = sizeof step, .lr = 1e-2f, .momentum = net.momentum };
    tess_status s = TESS_OK;
    for (int k = 0; k < net.accum && !s; k++) {
        tess_run_options run = { .struct_size = sizeof run, .kind = TESS_PASS_TRAIN, .batch = batch };
        s = net.hooks ? pass_through_part(t, first, memory) : tess_run(t, &run);
    }
    return s ? s : tess_step(t, &step);
}

static void compare_totals(const tess *plan, const tess *t, const ledger_check *c, const char *name) {
    tess_stats planned = { .struct_size = sizeof planned }, found = planned;
    tess_stats_get(plan, &planned);
    tess_stats_get(t, &found);
    uint64_t mapped = tool_alloc_mapped() - mapped_before, all = found.peak_bytes[1] + found.peak_bytes[2];
    const tess_ledger_point *peak = &c->planned[c->n_planned - 1];
    for (int d = 1; d < 3; d++) /* a pass that departs takes more, once */
        CHECK(net.hooks || found.peak_bytes[d] == planned.planned_peak_bytes[d], "%s: %s: %llu bytes, planned %llu",
              name, d == 1 ? "device" : "host", (unsigned long long)found.peak_bytes[d],
              (unsigned long long)planned.planned_peak_bytes[d]);
    CHECK(!tool_alloc_available() || net.hooks || mapped == all, "%s: %llu bytes were mapped, %llu are known of", name,
          (unsigned long long)mapped, (unsigned long long)all);
    CHECK(!c->differ, "%s: %s (and %d more)", name, c->first, c->differ - 1);
    double accuracy = (double)peak->total_bytes[1] / (double)c->measured_peak[1];
    CHECK(accuracy == 1, "%s: accuracy %.17g", name, accuracy);
    if (tess_rank(t) == 0)
        printf("%s: %llu points equal, peak planned %llu and %llu, measured %llu and %llu, accuracy %.17g\n", name,
               (unsigned long long)c->points, (unsigned long long)peak->total_bytes[1],
               (unsigned long long)peak->total_bytes[2], (unsigned long long)c->measured_peak[1],
               (unsigned long long)c->measured_peak[2], accuracy);
}

static tess_status run(const char *name) {
    tess *t = NULL, *plan = NULL;
    tess_scope scopes[MOST_PIECES];
    void *memory = NULL, *batch = calloc(1, net.input_bytes + 1);
    ledger_check c = { 0 };
    const char *world = getenv("WORLD_SIZE");
    tess_status s = batch ? open_plan(world ? atoi(world) : 1, &plan) : tess__fail(TESS_E_NOMEM, "no memory");
    if (!s)
        s = ledger_check_open(&c, plan, TESS_LEDGER_STEP_APART, tool_alloc_available() ? tool_alloc_own : NULL);
    mapped_before = tool_alloc_mapped();
    if (!s)
        s = open_net(&net, 0, scopes, &t, &memory);
    c.t = t;
    if (!s && net.hooks) /* its first pass deviates from the declared order */
        s = iterate(t, scopes[0], memory, batch);
    for (int i = 0; i < 2 && !s; i++) {
        if (i == 1)
            tool_alloc_window_begin();
        ledger_check_start(&c);
        s = iterate(t, scopes[0], memory, batch);
        ledger_check_stop(&c);
    }
    tool_alloc_window_end();
    if (!s)
        compare_totals(plan, t, &c, name);
    if (!s && !net.hooks)
        CHECK(c.points == 2 * c.n_planned, "%s: %llu points", name, (unsigned long long)c.points);
    ledger_check_close(&c);
    free(batch);
    tess_status closed = tess_close(t);
    tess_close(plan);
    return s ? s : closed;
}

/* ---- planning alone ---- */

static void keep_peak(void *user, const tess_ledger_point *p) {
    if (p->point == TESS_LEDGER_PEAK)
        *(tess_ledger_point *)user = *p;
}

static tess_status read_peak(int32_t ranks, tess_ledger_point *peak, tess_stats *stats) {
    tess *t = NULL;
    tess_status s = open_plan(ranks, &t);
    if (!s)
        s = tess_ledger_plan(t, TESS_LEDGER_STEP_APART, keep_peak, peak);
    *stats = (tess_stats){ .struct_size = sizeof *stats };
    if (!s)
        s = tess_stats_get(t, stats);
    tess_close(t);
    return s;
}

static int32_t plan_ranks(void) {
    return getenv("TRACKER_RANKS") ? atoi(getenv("TRACKER_RANKS")) : 2;
}

static tess_status plan(const char *name) {
    tess_ledger_point peak;
    tess_stats stats;
    tess_status s = read_peak(plan_ranks(), &peak, &stats);
    if (!s)
        printf("%s: device %llu, host %llu bytes alive at the peak; %llu and %llu obtained\n", name,
               (unsigned long long)peak.total_bytes[1], (unsigned long long)peak.total_bytes[2],
               (unsigned long long)stats.planned_peak_bytes[1], (unsigned long long)stats.planned_peak_bytes[2]);
    return s;
}

/* ---- the device of 24 units ---- */

static int is_plain(void) {
    static const char *const names[] = { "TESSERA_OFFLOAD", "TESSERA_ACTIVATIONS", "TESSERA_PRECISION" };
    for (int i = 0; i < 3; i++)
        if (getenv(names[i]))
            return 0;
    return plan_ranks() == 2;
}

/* What the layer holds beside what the plan puts there, so that it is 10 units with the plain options. The same is then
 * kept with all others. The plan has, when the 15th layer's backward runs: two layers' whole parameters; what 15 have
 * saved, a quarter each; their outputs and two gradients of such, a sixteenth each; the reduced part of a gradient,
 * with comm-gloo's scratch of two chunks at most; 4 KiB of input, and as much for numbers that ranks add up. */
static uint64_t rest_of_layer(uint64_t unit) {
    const uint64_t part = unit / 2, chunk = 512 << 10, scratch = part > chunk ? 2 * chunk : part;
    return 10 * unit - (2 * unit + 15 * unit / 4 + (15 + 2) * unit / 16 + part + scratch + 4096 + 4096);
}

static void check_plain(const tess_ledger_point *peak, uint64_t unit) {
    const uint64_t *b = peak->bytes[TESS_DOMAIN_DEVICE];
    uint64_t gradients = b[TESS_CAT_SHARD_GRAD] + b[TESS_CAT_FULL_GRAD];
    CHECK(b[TESS_CAT_SHARD_PARAM] == 8 * unit, "shards are %llu", (unsigned long long)b[TESS_CAT_SHARD_PARAM]);
    CHECK(b[TESS_CAT_OPTIMIZER] == 6 * unit, "the optimizer has %llu", (unsigned long long)b[TESS_CAT_OPTIMIZER]);
    CHECK(gradients == 8 * unit, "gradients are %llu", (unsigned long long)gradients);
    CHECK(peak->total_bytes[1] == 32 * unit, "in all %llu", (unsigned long long)peak->total_bytes[1]);
}

static tess_status device24(const char *mode, uint64_t unit) {
    tess_ledger_point peak;
    tess_stats stats;
    tracker_device24(&net, unit, width_of_elements(), rest_of_layer(unit));
    if (strcmp(mode, "run") == 0)
        return run("device24");
    tess_status s = read_peak(plan_ranks(), &peak, &stats);
    if (s)
        return s;
    if (is_plain())
        check_plain(&peak, unit);
    double obtained = (double)stats.planned_peak_bytes[1] / (double)unit, alive = (double)peak.total_bytes[1];
    printf("device24: %.3f units of 24 alive, %.3f obtained: %s by %.3f; host %.3f\n", alive / (double)unit, obtained,
           obtained <= 24 ? "fits" : "does not fit", obtained <= 24 ? 24 - obtained : obtained - 24,
           (double)stats.planned_peak_bytes[2] / (double)unit);
    return TESS_OK;
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    uint64_t scale = strtoull(argv[3], NULL, 10), width = width_of_elements();
    if (!scale)
        return 2;
    tess_status s;
    if (strcmp(argv[1], "device24") == 0) {
        s = device24(argv[2], scale);
    } else {
        if (strcmp(argv[1], "mlps") == 0)
            tracker_mlps(&net, scale, width);
        else if (strcmp(argv[1], "part") == 0)
            tracker_part(&net, scale, width);
        else
            tracker_transformer(&net, scale, width);
        s = strcmp(argv[2], "run") == 0 ? run(argv[1]) : plan(argv[1]);
    }
    return s ? stop(s) : failures > 0;
}
