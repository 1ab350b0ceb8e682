/* SPDX-License-Identifier: BSD-3-Clause */
#include "tune_search.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/support/say.h"
#include "tools/support/options.h"
#include "tools/plan/plan_time.h"
#include "tools/support/command_line.h"
#include "tools/support/settings.h"
#include <tessera/inspect.h>

const char *const tune_keys[TUNE_KNOBS] = { "wrap", "strategy", "activations", "offload", "precision", "prefetch" };
static const char *const usual[TUNE_KNOBS] = { "scopes", "full", "keep", "none", "fp32", "auto" };
enum { MOST_VALUES = 8, REFINED = 12 };

typedef struct {
    const char *word;
    int32_t ranks;
    const machine_desc *machine;
    char values[TUNE_KNOBS][MOST_VALUES][TUNE_VALUE]; /* the usual one first */
    int32_t n_values[TUNE_KNOBS];
    int set[TUNE_KNOBS]; /* set by the user */
    tune_result *out;
    int32_t cap;
    tess_status failed; /* the last that was no budget */
    char why[512];
} tuning;

static void add(tuning *s, int knob, const char *value) {
    if (!s->set[knob] && s->n_values[knob] < MOST_VALUES)
        snprintf(s->values[knob][s->n_values[knob]++], sizeof s->values[0][0], "%s", value);
}

static void add_number(tuning *s, int knob, const char *name, uint64_t number) {
    char text[TUNE_VALUE];
    snprintf(text, sizeof text, "%s:%" PRIu64, name, number);
    add(s, knob, text);
}

/* ---- what there is to try ---------------------------------------------------------------------- */
static void add_strategies(tuning *s) {
    int32_t node = s->machine->ranks_per_node, group = node > 1 && s->ranks > node ? node : s->ranks / 2;
    add(s, TUNE_STRATEGY, "full");
    if (s->ranks == 1)
        return;
    add(s, TUNE_STRATEGY, "grad_op");
    add(s, TUNE_STRATEGY, "none");
    if (group > 1 && group < s->ranks && s->ranks % group == 0) {
        add_number(s, TUNE_STRATEGY, "hybrid", (uint64_t)group);
        add_number(s, TUNE_STRATEGY, "hybrid_grad_op", (uint64_t)group);
    }
}

static tess_status take_given(tuning *s) {
    for (int k = 0; k < TUNE_KNOBS; k++) {
        const char *text = tool_option_text(tune_keys[k]);
        if (text && strlen(text) >= TUNE_VALUE)
            return tess_fail(TESS_E_INVALID, "--%s: %zu characters, expected fewer than %d", tune_keys[k], strlen(text),
                             TUNE_VALUE);
        if (text)
            add(s, k, text);
        s->set[k] = text != NULL;
    }
    return TESS_OK;
}

static void list_values(tuning *s, uint64_t elems) {
    add(s, TUNE_WRAP, "scopes");
    add(s, TUNE_WRAP, "none");
    for (uint64_t part = 4; part <= 64 && elems / part > 1000; part *= 4)
        add_number(s, TUNE_WRAP, "size", elems / part);
    add_strategies(s);
    add(s, TUNE_ACTIVATIONS, "keep");
    add(s, TUNE_ACTIVATIONS, "selective");
    add(s, TUNE_ACTIVATIONS, "recompute");
    add(s, TUNE_ACTIVATIONS, "recompute:every=2");
    if (tool_option_text("device-memory"))
        add(s, TUNE_ACTIVATIONS, "auto");
    add(s, TUNE_ACTIVATIONS, "offload");
    add(s, TUNE_OFFLOAD, "none");
    add(s, TUNE_OFFLOAD, "cpu");
    if (tool_option_text("offload-disk-dir")) { /* the folder for files: without it nobody knows where they may lie */
        add(s, TUNE_OFFLOAD, "disk");
        add(s, TUNE_OFFLOAD, "disk+cpu:params,grads");
    }
    add(s, TUNE_PRECISION, "fp32");
    add(s, TUNE_PRECISION, "bf16");
    add(s, TUNE_PREFETCH, "auto");
}

/* ---- one candidate ----------------------------------------------------------------------------- */
static tess_status set_options(const char value[TUNE_KNOBS][TUNE_VALUE]) {
    for (int k = 0; k < TUNE_KNOBS; k++)
        TRY(tool_settings_set(tune_keys[k], value[k]));
    return TESS_OK;
}

static tess_status keep(tuning *s, const tune_candidate *c) {
    tune_result *r = s->out;
    if (r->n == s->cap) {
        int32_t want = s->cap ? 2 * s->cap : 256;
        tune_candidate *more = realloc(r->all, (size_t)want * sizeof *more);
        if (!more)
            return tess_fail(TESS_E_NOMEM, "no memory for %d candidates", want);
        r->all = more;
        s->cap = want;
    }
    r->all[r->n++] = *c;
    r->n_fit += c->fits;
    return TESS_OK;
}

static tess_status read_plan(tuning *s, const plan_source *source, tune_candidate *c) {
    tess_stats stats = { .struct_size = sizeof stats };
    simulated_step line;
    TRY(tess_stats_get(source->t, &stats));
    TRY(plan_time(source, s->machine, &line));
    memcpy(c->peak_bytes, stats.planned_peak_bytes, sizeof stats.planned_peak_bytes);
    c->peak_bytes[TESS_DOMAIN_DISK] = stats.planned_disk_peak_bytes;
    c->seconds = line.seconds;
    s->out->is_model = source->is_model;
    simulated_free(&line);
    return keep(s, c);
}

static tess_status try(tuning *s, const char value[TUNE_KNOBS][TUNE_VALUE]) {
    tune_candidate c = { .seconds = NAN };
    plan_source source;
    memcpy(c.value, value, sizeof c.value);
    uint32_t mark = tool_settings_mark();
    tess_status status = set_options(value);
    if (status == TESS_OK)
        status = plan_open(s->word, s->ranks, &source);
    tool_settings_back(mark);
    if (status != TESS_OK && status != TESS_E_BUDGET) {
        s->failed = status;
        snprintf(s->why, sizeof s->why, "%s", tess_last_error());
        return TESS_OK;
    }
    c.fits = status == TESS_OK;
    status = read_plan(s, &source, &c);
    plan_close(&source);
    return status;
}

/* ---- the whole --------------------------------------------------------------------------------- */
static tess_status try_all(tuning *s) {
    int32_t at[TUNE_KNOBS] = { 0 };
    for (int knob = 0; knob >= 0;) {
        char value[TUNE_KNOBS][TUNE_VALUE];
        for (int k = 0; k < TUNE_KNOBS; k++)
            memcpy(value[k], s->values[k][at[k]], sizeof value[k]);
        TRY(try(s, (const char(*)[TUNE_VALUE])value));
        knob = TUNE_KNOBS - 1;
        while (knob >= 0 && ++at[knob] == s->n_values[knob])
            at[knob--] = 0;
    }
    return TESS_OK;
}

/* Whole picoseconds: sums of the same times in another order differ by rounding alone. */
static double picoseconds(const tune_candidate *c) {
    return nearbyint(c->seconds * 1e12);
}

static int by_time(const void *a, const void *b) {
    const tune_candidate *x = a, *y = b;
    if (x->fits != y->fits)
        return y->fits - x->fits;
    if (picoseconds(x) != picoseconds(y))
        return picoseconds(x) < picoseconds(y) ? -1 : 1;
    for (uint32_t d = 1; d < TUNE_DOMAINS; d++)
        if (x->peak_bytes[d] != y->peak_bytes[d])
            return x->peak_bytes[d] < y->peak_bytes[d] ? -1 : 1;
    for (int k = 0; k < TUNE_KNOBS; k++) { /* prefers the default among equals */
        int plain = (strcmp(y->value[k], usual[k]) == 0) - (strcmp(x->value[k], usual[k]) == 0);
        if (plain)
            return plain;
    }
    return memcmp(x->value, y->value, sizeof x->value);
}

static int same_plan(const tune_candidate *x, const tune_candidate *y) {
    return x->fits == y->fits && picoseconds(x) == picoseconds(y) &&
           memcmp(x->peak_bytes, y->peak_bytes, sizeof x->peak_bytes) == 0;
}

static void sort(tune_result *r) {
    int32_t n = 0;
    qsort(r->all, (size_t)r->n, sizeof *r->all, by_time);
    for (int32_t i = 0; i < r->n; i++) { /* the same by another name */
        if (n && same_plan(&r->all[n - 1], &r->all[i]))
            continue;
        r->all[n++] = r->all[i];
    }
    r->n = n;
    r->n_fit = 0;
    for (int32_t i = 0; i < n; i++)
        r->n_fit += r->all[i].fits;
}

/* The best ones again, with other numbers of units gathered ahead. */
static tess_status refine(tuning *s) {
    static const char *const depths[] = { "0", "2", "3" };
    int32_t n = s->out->n_fit < REFINED ? s->out->n_fit : REFINED;
    tess_status status = TESS_OK;
    for (int32_t i = 0; i < n && !s->set[TUNE_PREFETCH] && s->ranks > 1; i++)
        for (size_t d = 0; d < sizeof depths / sizeof depths[0] && status == TESS_OK; d++) {
            tune_candidate c = s->out->all[i];
            snprintf(c.value[TUNE_PREFETCH], sizeof c.value[0], "%s", depths[d]);
            status = try(s, (const char(*)[TUNE_VALUE])c.value);
        }
    sort(s->out);
    return status;
}

static tess_status count_elems(const tuning *s, uint64_t *out) {
    plan_source source;
    tess_stats stats = { .struct_size = sizeof stats };
    tess_status status = plan_open(s->word, s->ranks, &source);
    if (status != TESS_OK && status != TESS_E_BUDGET)
        return status;
    status = tess_stats_get(source.t, &stats);
    *out = stats.param_elems;
    plan_close(&source);
    return status;
}

tess_status tune_search(const char *word, int32_t ranks, const machine_desc *machine, tune_result *out) {
    tuning s = { .word = word, .ranks = ranks, .machine = machine, .out = out };
    uint64_t elems = 0;
    *out = (tune_result){ .all = NULL };
    int32_t least = tool_say_at_most(SAY_ERROR);
    tess_status status = take_given(&s);
    if (status == TESS_OK)
        status = count_elems(&s, &elems);
    if (status == TESS_OK) {
        list_values(&s, elems);
        status = try_all(&s);
        sort(out);
        if (status == TESS_OK)
            status = refine(&s);
    }
    tool_say_at_most(least);
    if (status == TESS_OK && !out->n)
        status = tess_fail(s.failed ? s.failed : TESS_E_INVALID, "%s", s.why);
    if (status != TESS_OK)
        tune_result_free(out);
    return status;
}

void tune_result_free(tune_result *r) {
    free(r->all);
    *r = (tune_result){ .all = NULL };
}

/* ---- the command ------------------------------------------------------------------------------- */
/* True for an option that is set and that the command takes. Ranks, knobs and tune's own outputs are excluded, because
 * they are handled apart. */
static int is_carried(const tool_option *o, uint32_t command, const char *subject) {
    int is_apart = tool_listed("ranks json report quiet log", o->key);
    for (int k = 0; k < TUNE_KNOBS; k++)
        is_apart |= strcmp(o->key, tune_keys[k]) == 0;
    return !is_apart && (o->commands & command) && tool_option_is_for(o, subject) && tool_option_text(o->key);
}

static void put_option(FILE *f, const tool_option *o) {
    if (o->value) {
        fprintf(f, " --%s", o->key);
        tool_put_word(f, tool_option_text(o->key));
    } else
        fprintf(f, " --%s=%s", o->key, tool_option_text(o->key));
}

char *tune_command(const tune_result *r, const tune_candidate *c, char *const *names, int is_program, int32_t ranks) {
    const uint32_t command = r->is_model ? TOOL_TRAIN : TOOL_PLAN;
    const char *subject = r->is_model ? names[0] : is_program ? "PROGRAM" : "FILE";
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    if (!f)
        return NULL;
    fprintf(f, "tessera %s", r->is_model ? "train" : "plan");
    if (!is_program)
        tool_put_word(f, names[0]);
    fprintf(f, " -n %d", (int)ranks);
    for (int k = 0; k < TUNE_KNOBS; k++)
        if (strcmp(c->value[k], usual[k]) != 0) {
            fprintf(f, " --%s", tune_keys[k]);
            tool_put_word(f, c->value[k]);
        }
    for (const tool_option *o = tool_options; o->key; o++)
        if (is_carried(o, command, subject))
            put_option(f, o);
    if (is_program)
        fputs(" --", f);
    for (int i = 0; is_program && names[i]; i++)
        tool_put_word(f, names[i]);
    return fclose(f) == 0 ? text : NULL;
}
