/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera bench step: a pass by the engine on one rank against the same blocks called directly, in turns. Both have the
 * gradients zeroed that kernels add to; neither steps the optimizer. A ratio is the median of the rounds' own, so that
 * a slow minute, which hits both sides of a round, counts little; that of processor time leaves out what other programs
 * took. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"
#include "bench_batch.h"
#include "tools/support/options.h"
#include "tools/models/direct.h"
#include "tools/plan/model_run.h"
#include "tools/support/command_line.h"
#include "tools/support/json_out.h"
#include "tools/support/progress.h"
#include "tools/support/say.h"
#include <tessera/inspect.h>

enum { ROUNDS = 9, MOST_ROUNDS = 99, MOST_OPS = 32, SPANS = 1 << 16 };
static const double most_seconds = 3; /* results of one model after three rounds */

typedef struct {
    const char *name;
    double seconds; /* total over all rounds */
} share;

typedef struct {
    double wall, cpu; /* seconds; of all threads */
} took;

typedef struct {
    const tool_bench_options *options;
    train_settings settings;
    tool_planner planner;
    model_options how;
    model *m;
    tess *t;
    direct *d;
    void *batch, *result;
    took direct[MOST_ROUNDS], engine[MOST_ROUNDS];
    int n;
    share ops[MOST_OPS]; /* time of the engine's thread by instruction */
    int n_ops;
} step;

/* ---- the two sides ------------------------------------------------------------------------------- */
static took now(void) {
    struct timespec cpu;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    return (took){ tool_seconds(), (double)cpu.tv_sec + (double)cpu.tv_nsec * 1e-9 };
}

static took since(took start) {
    took end = now();
    return (took){ end.wall - start.wall, end.cpu - start.cpu };
}

static tess_status run_direct(step *s, took *out) {
    took start = now();
    direct_zero_grads(s->d);
    tess_status status = direct_run(s->d, TESS_PASS_TRAIN, s->batch, 0, 0, s->result);
    *out = since(start);
    return status;
}

static tess_status run_engine(step *s, took *out) {
    tess_run_options o = { .struct_size = sizeof o, .kind = TESS_PASS_TRAIN, .batch = s->batch, .result = s->result };
    took start = now();
    tess_status status = model_run(s->t, s->m, &o);
    *out = since(start);
    return status == TESS_OK ? tess_grad_drop(s->t) : status;
}

static tess_status add_span(void *user, const tess_span *span) {
    step *s = user;
    int i = 0;
    if (strcmp(span->lane, "compute") != 0)
        return TESS_OK;
    while (i < s->n_ops && strcmp(s->ops[i].name, span->op) != 0)
        i++;
    if (i == MOST_OPS)
        return TESS_OK;
    s->n_ops += i == s->n_ops;
    s->ops[i].name = span->op;
    s->ops[i].seconds += span->seconds;
    return TESS_OK;
}

/* Whoever goes second finds other caches: they take turns at that, too. */
static tess_status one_round(step *s, took *by_direct, took *by_engine) {
    TRY(s->n % 2 ? run_direct(s, by_direct) : run_engine(s, by_engine));
    return s->n % 2 ? run_engine(s, by_engine) : run_direct(s, by_direct);
}

static tess_status rounds(step *s) {
    double begin = tool_seconds();
    took unused[2];
    int want = s->options->rounds ? s->options->rounds : ROUNDS;
    want = want > MOST_ROUNDS ? MOST_ROUNDS : want;
    TRY(one_round(s, &unused[0], &unused[1])); /* warms up */
    TRY(tess_trace(s->t, SPANS));
    while (s->n < want && (s->n < 3 || s->options->rounds || tool_seconds() - begin < most_seconds)) {
        TRY(one_round(s, &s->direct[s->n], &s->engine[s->n]));
        s->n++;
    }
    return tess_trace_each(s->t, tess_steps_done(s->t), add_span, s);
}

/* ---- making -------------------------------------------------------------------------------------- */
static tess_status make(step *s, const char *name) {
    TRY(train_settings_read(name, &s->settings));
    s->settings.steps_apart = 1;
    TRY(model_run_make(&s->settings, 0, &s->how, &s->m));
    TRY(model_run_open(&s->settings, 0, &s->planner, &s->how, &s->m, &s->t));
    if (tess_ranks(s->t) != 1)
        return tess_fail(TESS_E_INVALID, "bench step runs on one rank, not %d", tess_ranks(s->t));
    TRY(model_start(s->t, s->m));
    TRY(model_declare(s->t, s->m));
    TRY(tess_shard(s->t, model_fill, s->m));
    TRY(direct_create(s->m, 0, &s->d));
    s->batch = aligned_alloc(64, ops_align(s->m->desc.input_bytes));
    s->result = aligned_alloc(64, ops_align(s->m->desc.result_bytes));
    if (!s->batch || !s->result)
        return tess_fail(TESS_E_NOMEM, "no memory for a batch of %s", name);
    bench_batch_fill(s->m, s->batch);
    return TESS_OK;
}

static void drop(step *s) {
    direct_destroy(s->d);
    tess_close(s->t);
    model_destroy(s->m);
    free(s->batch);
    free(s->result);
}

/* ---- the result ---------------------------------------------------------------------------------- */
static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, ascending);
    return v[n / 2];
}

static int is_block(const char *op) {
    return strcmp(op, "forward") == 0 || strcmp(op, "backward") == 0 || strcmp(op, "recompute") == 0;
}

typedef struct { /* medians */
    double direct, engine, ratio, cpu_ratio;
    double mean; /* of the engine, as the parts are */
} result;

static double outside_blocks(const step *s, const result *r) {
    double left = r->mean;
    for (int i = 0; i < s->n_ops; i++)
        left -= is_block(s->ops[i].name) ? s->ops[i].seconds / s->n : 0;
    return left;
}

static void print_text(const step *s, FILE *out, const char *key, const result *r) {
    double left = outside_blocks(s, r);
    fprintf(out, "%-62s direct %10.1f us, engine %10.1f us, ratio %.4f, of processor time %.4f\n", key, r->direct * 1e6,
            r->engine * 1e6, r->ratio, r->cpu_ratio);
    for (int i = 0; i < s->n_ops; i++) {
        double seconds = s->ops[i].seconds / s->n;
        left -= is_block(s->ops[i].name) ? 0 : seconds;
        fprintf(out, "    %-20s %10.1f us, %5.2f %%\n", s->ops[i].name, seconds * 1e6, 100 * seconds / r->mean);
    }
    fprintf(out, "    %-20s %10.1f us, %5.2f %%\n", "between them", left * 1e6, 100 * left / r->mean);
}

static void put_rounds(json_out *j, const char *key, const step *s, const took *of, int cpu) {
    json_array_begin(j, key);
    for (int i = 0; i < s->n; i++)
        json_double(j, NULL, cpu ? of[i].cpu : of[i].wall);
    json_array_end(j);
}

static int print_json(const step *s, FILE *out, const char *key, const result *r) {
    json_out j;
    json_init(&j, out);
    json_object_begin(&j, NULL);
    json_string(&j, "event", "bench");
    json_string(&j, "what", "step");
    json_string(&j, "model", key);
    json_int(&j, "rounds", s->n);
    json_double(&j, "direct_seconds", r->direct);
    json_double(&j, "seconds", r->engine);
    json_double(&j, "ratio", r->ratio);
    json_double(&j, "cpu_ratio", r->cpu_ratio);
    json_double(&j, "mean_seconds", r->mean);
    json_object_begin(&j, "engine");
    for (int i = 0; i < s->n_ops; i++)
        json_double(&j, s->ops[i].name, s->ops[i].seconds / s->n);
    json_object_end(&j);
    json_double(&j, "outside_blocks_seconds", outside_blocks(s, r));
    put_rounds(&j, "direct_rounds", s, s->direct, 0);
    put_rounds(&j, "engine_rounds", s, s->engine, 0);
    put_rounds(&j, "direct_cpu_rounds", s, s->direct, 1);
    put_rounds(&j, "engine_cpu_rounds", s, s->engine, 1);
    json_object_end(&j);
    return json_line(&j);
}

static result result_of(const step *s) {
    double direct[MOST_ROUNDS], engine[MOST_ROUNDS], ratio[MOST_ROUNDS], cpu_ratio[MOST_ROUNDS];
    result r = { .mean = 0 };
    for (int i = 0; i < s->n; i++) {
        r.mean += s->engine[i].wall / s->n;
        direct[i] = s->direct[i].wall;
        engine[i] = s->engine[i].wall;
        ratio[i] = engine[i] / direct[i];
        cpu_ratio[i] = s->engine[i].cpu / s->direct[i].cpu;
    }
    r.direct = median(direct, s->n);
    r.engine = median(engine, s->n);
    r.ratio = median(ratio, s->n);
    r.cpu_ratio = median(cpu_ratio, s->n);
    return r;
}

static tess_status print(step *s) {
    char key[96];
    FILE *out = s->options->out ? s->options->out : stdout;
    result r = result_of(s);
    model_key(s->m, key, sizeof key);
    if (!s->options->json)
        print_text(s, out, key, &r);
    else if (print_json(s, out, key, &r) != 0)
        return tess_fail(TESS_E_SYSTEM, "--json: not everything could be written");
    return TESS_OK;
}

static tess_status bench_model(const tool_bench_options *options, const char *name) {
    step *s = calloc(1, sizeof *s);
    if (!s)
        return tess_fail(TESS_E_NOMEM, "no memory to measure steps");
    s->options = options;
    tess_status status = make(s, name);
    if (status == TESS_OK)
        status = rounds(s);
    if (status == TESS_OK)
        status = print(s);
    drop(s);
    free(s);
    return status;
}

int tool_bench_step(const tool_bench_options *options, const char *model_or_null) {
    static const char *const usual[] = { "mnist", "convbn", "gpt", "gpt2", "llama" };
    int64_t ranks = 1;
    tess_status status = tool_option_ranks(65536, &ranks);
    if (status == TESS_OK && ranks != 1)
        status = tess_fail(TESS_E_INVALID, "bench step runs on one rank, not %" PRId64, ranks);
    for (size_t i = 0; i < (model_or_null ? 1 : sizeof usual / sizeof usual[0]) && status == TESS_OK; i++)
        status = bench_model(options, model_or_null ? model_or_null : usual[i]);
    return status == TESS_OK ? TOOL_OK : tool_report(status);
}
