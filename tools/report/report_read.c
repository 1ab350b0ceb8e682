/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads the lines that `--json` writes, as docs/json.md describes them. Lines of other events are passed over. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/support/json_fields.h"
#include "tools/support/names.h"
#include "report.h"
#include "tools/support/say.h"
#include <tessera/tessera.h>

enum { LINE_MOST = 1 << 20, EVENTS_MOST = 1 << 20, NAME_MOST = 1024 };
#define BYTES_MOST (UINT64_C(1) << 58) /* so that sums stay far from overflow */

const char *const report_category_keys[REPORT_CATEGORIES] = { "sharded_parameter",
                                                              "optimizer_state",
                                                              "sharded_gradient",
                                                              "buffer",
                                                              "unsharded_parameter",
                                                              "unsharded_gradient",
                                                              "activation",
                                                              "communication",
                                                              "input",
                                                              "temporary",
                                                              "fragmentation",
                                                              "other" };
const char *const report_domain_names[REPORT_DOMAINS] = { "device", "host" };
const char *const report_source_names[REPORT_SOURCES] = { "planned", "measured" };
const char *const report_lane_keys[REPORT_LANES] = { "compute",       "communication", "transfer_up",
                                                     "transfer_down", "host",          "other" };
const char *const report_setting_keys[REPORT_SETTINGS] = { "model",       "ranks", "comm",     "offload",
                                                           "precision",   "wrap",  "strategy", "device",
                                                           "activations", "accum", "threads" };

typedef struct {
    report_run *run;
    const char *path;
    uint64_t line, events;
    uint64_t beside; /* events that say nothing of memory or time */
    const json_fields *f;
} reading;

static tess_status wrong(const reading *r, const char *what, const char *expected) {
    return tess_fail(TESS_E_DATA, "%s:%" PRIu64 ": %s, expected %s", r->path, r->line, what, expected);
}

static tess_status wrong_field(const reading *r, const char *key, const char *expected) {
    int there = json_fields_has(r->f, key);
    return tess_fail(TESS_E_DATA, "%s:%" PRIu64 ": \"%s\" is %s%s", r->path, r->line, key,
                     there ? "not " : "missing, expected ", expected);
}

/* ---- names ------------------------------------------------------------------------------------- */
const char *report_name(const report_run *run, int32_t name) {
    return name < 0 ? "" : run->names[name];
}

static void *grown(void *items, size_t *cap, size_t n, size_t size) {
    if (n < *cap)
        return items;
    size_t more = *cap ? *cap * 2 : 64;
    void *p = realloc(items, more * size);
    if (p)
        *cap = more;
    return p;
}

static tess_status no_memory(const reading *r) {
    return tess_fail(TESS_E_NOMEM, "%s: no memory to read it", r->path);
}

/* The number of a text that many lines repeat. */
static tess_status intern(reading *r, const char *text, int32_t *out) {
    report_run *run = r->run;
    *out = tool_names_find(run->name_index, text, strlen(text));
    if (*out >= 0)
        return TESS_OK;
    size_t cap = (size_t)run->cap_names;
    char **names = grown(run->names, &cap, (size_t)run->n_names, sizeof *names);
    if (!names)
        return no_memory(r);
    run->names = names;
    run->cap_names = (int32_t)cap;
    char *copy = strdup(text);
    if (!copy)
        return no_memory(r);
    *out = run->n_names;
    names[run->n_names++] = copy;
    return tool_names_add(run->name_index, copy, *out);
}

/* A field's text as a name; without the field `fallback`, or if that is null -1. */
static tess_status name_of(reading *r, const char *key, const char *fallback, int32_t *out) {
    char text[NAME_MOST];
    *out = -1;
    if (json_fields_text(r->f, key, text, sizeof text))
        return *text ? intern(r, text, out) : TESS_OK;
    if (json_fields_has(r->f, key))
        return wrong_field(r, key, "a text of less than 1024 bytes");
    return fallback ? intern(r, fallback, out) : TESS_OK;
}

/* ---- ledger ------------------------------------------------------------------------------------ */
static int category_of(const char *key) {
    int c = 0;
    while (c < REPORT_CATEGORIES - 1 && strcmp(report_category_keys[c], key) != 0)
        c++;
    return c;
}

static tess_status read_stack(reading *r, const char *domain, report_stack *out) {
    json_fields inner;
    memset(out, 0, sizeof *out);
    if (!json_fields_has(r->f, domain))
        return TESS_OK;
    if (!json_fields_object(r->f, domain, &inner))
        return wrong_field(r, domain, "an object of bytes by category");
    for (size_t i = 0; i < inner.n; i++) {
        uint64_t bytes;
        if (!json_fields_uint(&inner, inner.fields[i].key, &bytes) || bytes > BYTES_MOST - out->total)
            return tess_fail(TESS_E_DATA, "%s:%" PRIu64 ": \"%s\" of \"%s\" is no number of bytes, of 2^58 in all",
                             r->path, r->line, inner.fields[i].key, domain);
        out->bytes[category_of(inner.fields[i].key)] += bytes;
        out->total += bytes;
    }
    return TESS_OK;
}

static int point_of(const char *text) {
    static const char *const names[] = { "pre_forward", "post_forward", "pre_backward", "post_backward", "optimizer" };
    if (strcmp(text, "peak") == 0)
        return REPORT_PEAK;
    int after = strncmp(text, "after_", 6) == 0;
    if (!after && strncmp(text, "before_", 7) != 0)
        return REPORT_OTHER_POINT;
    for (int i = 0; i < 5; i++)
        if (strcmp(text + (after ? 6 : 7), names[i]) == 0)
            return 2 * i + after;
    return REPORT_OTHER_POINT;
}

static tess_status source_of(const reading *r, const char *const *names, int n, int *out) {
    char text[32] = "";
    if (json_fields_text(r->f, "source", text, sizeof text))
        for (*out = 0; *out < n; ++*out)
            if (strcmp(text, names[*out]) == 0)
                return TESS_OK;
    return tess_fail(TESS_E_DATA, "%s:%" PRIu64 ": \"source\" is '%s', expected %s or %s", r->path, r->line, text,
                     names[0], names[1]);
}

static tess_status read_point(reading *r) {
    report_point p = { .unit = -1 };
    report_run *run = r->run;
    int source;
    TRY(source_of(r, report_source_names, REPORT_SOURCES, &source));
    if (!json_fields_uint(r->f, "index", &p.index))
        return wrong_field(r, "index", "a whole number");
    TRY(name_of(r, "pass", "train", &p.pass));
    TRY(name_of(r, "unit", NULL, &p.unit));
    TRY(name_of(r, "point", NULL, &p.point_name));
    if (p.point_name < 0)
        return wrong_field(r, "point", "a point of the step");
    for (int d = 0; d < REPORT_DOMAINS; d++)
        TRY(read_stack(r, report_domain_names[d], &p.domain[d]));
    p.point = point_of(report_name(run, p.point_name));
    report_point *points = grown(run->points[source], &run->cap_points[source], run->n_points[source], sizeof p);
    if (!points)
        return no_memory(r);
    run->points[source] = points;
    points[run->n_points[source]++] = p;
    return TESS_OK;
}

/* ---- spans and units --------------------------------------------------------------------------- */
static tess_status read_span(reading *r) {
    static const char *const sources[] = { "simulated", "measured" };
    report_run *run = r->run;
    report_span s = { .unit = -1 };
    char lane[32] = "";
    int source;
    TRY(source_of(r, sources, 2, &source));
    TRY(name_of(r, "op", "?", &s.op));
    TRY(name_of(r, "unit", NULL, &s.unit));
    if (!json_fields_double(r->f, "start", &s.start) || s.start < 0 || s.start > 1e9)
        return wrong_field(r, "start", "seconds");
    if (!json_fields_double(r->f, "seconds", &s.seconds) || s.seconds < 0 || s.seconds > 1e9)
        return wrong_field(r, "seconds", "seconds");
    if (!json_fields_text(r->f, "lane", lane, sizeof lane))
        return wrong_field(r, "lane", "the name of a lane");
    s.source = (uint8_t)source;
    while (s.lane < REPORT_LANES - 1 && strcmp(report_lane_keys[s.lane], lane) != 0)
        s.lane++;
    report_span *spans = grown(run->spans, &run->cap_spans, run->n_spans, sizeof s);
    if (!spans)
        return no_memory(r);
    run->spans = spans;
    spans[run->n_spans++] = s;
    return TESS_OK;
}

/* Lists numbers, as many as fit. */
static int read_owners(const json_fields *f, char *out, size_t capacity) {
    json_in in;
    uint64_t rank;
    size_t at = 0;
    if (!json_fields_at(f, "owners", &in))
        return 1;
    if (!json_in_char(&in, '['))
        return 0;
    do {
        if (!json_in_uint(&in, &rank))
            return 0;
        if (at + 24 < capacity)
            at += (size_t)snprintf(out + at, capacity - at, "%s%" PRIu64, at ? " " : "", rank);
        else if (at + 4 < capacity)
            at += (size_t)snprintf(out + at, capacity - at, " …");
    } while (json_in_if(&in, ','));
    return json_in_char(&in, ']');
}

static tess_status read_unit(reading *r) {
    report_run *run = r->run;
    report_unit u = { .name = -1 };
    const struct {
        const char *key;
        uint64_t *to;
    } numbers[] = { { "parameters", &u.parameters },         { "elements", &u.elements },
                    { "shard_bytes", &u.shard_bytes },       { "unsharded_bytes", &u.unsharded_bytes },
                    { "gradient_bytes", &u.gradient_bytes }, { "state_bytes", &u.state_bytes } };
    TRY(name_of(r, "name", "", &u.name));
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (!json_fields_uint(r->f, numbers[i].key, numbers[i].to) && json_fields_has(r->f, numbers[i].key))
            return wrong_field(r, numbers[i].key, "a whole number");
    if (!read_owners(r->f, u.owners, sizeof u.owners))
        return wrong_field(r, "owners", "a list of ranks");
    report_unit *units = grown(run->units, &run->cap_units, run->n_units, sizeof u);
    if (!units)
        return no_memory(r);
    run->units = units;
    units[run->n_units++] = u;
    return TESS_OK;
}

/* ---- steps and ranks --------------------------------------------------------------------------- */
static tess_status read_step(reading *r) {
    report_run *run = r->run;
    report_loss s = { .step = 0 };
    r->beside++;
    if (!json_fields_uint(r->f, "step", &s.step) || !json_fields_double(r->f, "loss", &s.loss))
        return TESS_OK; /* null: no number */
    if (!json_fields_double(r->f, "grad_norm", &s.grad_norm))
        s.grad_norm = NAN;
    if (!json_fields_double(r->f, "lr", &s.rate))
        s.rate = NAN;
    if (!json_fields_double(r->f, "loss_scale", &s.scale))
        s.scale = NAN;
    report_loss *losses = grown(run->losses, &run->cap_losses, run->n_losses, sizeof s);
    if (!losses)
        return no_memory(r);
    run->losses = losses;
    losses[run->n_losses++] = s;
    return TESS_OK;
}

static tess_status read_validation(reading *r) {
    report_run *run = r->run;
    report_loss s = { .grad_norm = NAN, .rate = NAN, .scale = NAN };
    r->beside++;
    if (!json_fields_uint(r->f, "step", &s.step) || !json_fields_double(r->f, "loss", &s.loss))
        return TESS_OK;
    report_loss *all = grown(run->validations, &run->cap_validations, run->n_validations, sizeof s);
    if (!all)
        return no_memory(r);
    run->validations = all;
    all[run->n_validations++] = s;
    return TESS_OK;
}

static tess_status read_rank(reading *r) {
    static const char *const keys[REPORT_RANK_FIGURES] = { "peak_device_bytes", "peak_host_bytes",
                                                           "peak_resident_bytes", "step_allocations" };
    report_run *run = r->run;
    report_rank of = { .rank = 0 };
    r->beside++;
    if (!json_fields_uint(r->f, "rank", &of.rank))
        return wrong_field(r, "rank", "a whole number");
    for (int k = 0; k < REPORT_RANK_FIGURES; k++)
        json_fields_uint(r->f, keys[k], &of.figure[k]);
    report_rank *ranks = grown(run->ranks, &run->cap_ranks, run->n_ranks, sizeof of);
    if (!ranks)
        return no_memory(r);
    run->ranks = ranks;
    ranks[run->n_ranks++] = of;
    return TESS_OK;
}

/* ---- plan and summary -------------------------------------------------------------------------- */
static void read_settings(reading *r) {
    for (int i = 0; i < REPORT_SETTINGS; i++) {
        char *to = r->run->settings[i];
        uint64_t number;
        if (json_fields_text(r->f, report_setting_keys[i], to, sizeof r->run->settings[i]))
            continue;
        if (json_fields_uint(r->f, report_setting_keys[i], &number))
            snprintf(to, sizeof r->run->settings[i], "%" PRIu64, number);
    }
    if (!r->run->settings[0][0])
        json_fields_text(r->f, "source", r->run->settings[0], sizeof r->run->settings[0]);
}

/* Fields that a line need not have. */
static void read_peaks(reading *r) {
    report_run *run = r->run;
    for (int d = 0; d < REPORT_DOMAINS; d++) {
        char key[64];
        snprintf(key, sizeof key, "planned_peak_%s_bytes", report_domain_names[d]);
        json_fields_uint(r->f, key, &run->planned_peak[d]);
        snprintf(key, sizeof key, "peak_%s_bytes", report_domain_names[d]);
        json_fields_uint(r->f, key, &run->measured_peak[d]);
        snprintf(key, sizeof key, "%s_memory_bytes", report_domain_names[d]);
        json_fields_uint(r->f, key, &run->budget[d]);
    }
}

/* Reads the points of a plan between which its peak lies. */
static tess_status read_peak_place(reading *r) {
    report_run *run = r->run;
    const json_fields *whole = r->f;
    json_fields peak;
    if (!json_fields_object(whole, "peak", &peak))
        return TESS_OK;
    r->f = &peak;
    tess_status status = name_of(r, "pass", NULL, &run->peak_pass);
    if (status == TESS_OK)
        status = name_of(r, "unit", NULL, &run->peak_unit);
    if (status == TESS_OK)
        status = name_of(r, "point", NULL, &run->peak_point);
    r->f = whole;
    return status;
}

static tess_status read_plan(reading *r) {
    report_run *run = r->run;
    run->is_plan = 1;
    read_settings(r);
    read_peaks(r);
    run->has_fits = json_fields_bool(r->f, "fits", &run->fits);
    json_fields_bool(r->f, "estimate", &run->estimate);
    json_fields_double(r->f, "seconds", &run->predicted_seconds);
    return read_peak_place(r);
}

static tess_status read_summary(reading *r) {
    report_run *run = r->run;
    char source[16];
    run->is_run = 1;
    read_settings(r);
    read_peaks(r);
    json_fields_uint(r->f, "steps", &run->steps);
    json_fields_double(r->f, "tokens_per_second", &run->tokens_per_second);
    run->has_loss = json_fields_double(r->f, "loss", &run->loss);
    json_fields_double(r->f, "flop_utilisation", &run->utilisation);
    json_fields_double(r->f, "peak_flops_per_second", &run->peak_flops);
    run->peak_given =
        json_fields_text(r->f, "peak_flops_source", source, sizeof source) && strcmp(source, "given") == 0;
    json_fields_double(r->f, "step_seconds", &run->step_seconds);
    return TESS_OK;
}

/* ---- lines ------------------------------------------------------------------------------------- */
static tess_status read_event(reading *r) {
    static const struct {
        const char *name;
        tess_status (*read)(reading *);
    } events[] = { { "ledger", read_point },     { "span", read_span }, { "unit", read_unit },
                   { "step", read_step },        { "rank", read_rank }, { "validation", read_validation },
                   { "epoch", read_validation }, { "plan", read_plan }, { "summary", read_summary } };
    char name[32];
    if (!json_fields_text(r->f, "event", name, sizeof name))
        return wrong(r, "an object without \"event\"", "what `tessera train --json` or `tessera plan --json` writes");
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++)
        if (strcmp(name, events[i].name) == 0)
            return ++r->events > EVENTS_MOST ? wrong(r, "more than a million events", "fewer") : events[i].read(r);
    return TESS_OK;
}

static tess_status read_line(reading *r, const char *line, size_t bytes) {
    json_fields fields;
    if (strspn(line, " \t\r\n") == bytes)
        return TESS_OK;
    if (!json_fields_read(&fields, line, bytes))
        return tess_fail(TESS_E_DATA, "%s:%" PRIu64 ": %s JSON at column %zu, expected %s", r->path, r->line,
                         fields.wrong_at >= bytes - (line[bytes - 1] == '\n') ? "cut off" : "no", fields.wrong_at + 1,
                         fields.expected);
    r->f = &fields;
    return read_event(r);
}

/* A line of at most LINE_MOST bytes, so that no file makes us take memory without end. */
static tess_status next_line(reading *r, FILE *in, char *line, size_t *bytes) {
    size_t n = 0;
    int c;
    while ((c = getc_unlocked(in)) != EOF) {
        if (n + 1 == LINE_MOST)
            return wrong(r, "a line of a mebibyte or more", "shorter ones");
        line[n++] = (char)c;
        if (c == '\n')
            break;
    }
    line[n] = '\0';
    *bytes = n;
    return ferror(in) ? tess_fail(TESS_E_DATA, "%s: %s", r->path, strerror(errno)) : TESS_OK;
}

static tess_status read_lines(reading *r, FILE *in, char *line) {
    for (size_t bytes = 0;;) {
        r->line++;
        TRY(next_line(r, in, line, &bytes));
        if (bytes == 0)
            return TESS_OK;
        TRY(read_line(r, line, bytes));
    }
}

tess_status report_read(FILE *in, const char *path, report_run *out) {
    reading r = { .run = out, .path = path };
    char *line = malloc(LINE_MOST);
    memset(out, 0, sizeof *out);
    out->path = out->label = path;
    out->peak_pass = out->peak_unit = out->peak_point = -1;
    out->name_index = calloc(1, sizeof(tool_names));
    tess_status status = line && out->name_index ? read_lines(&r, in, line) : no_memory(&r);
    free(line);
    if (status == TESS_OK && r.events == r.beside)
        return tess_fail(TESS_E_DATA,
                         "%s: nothing about memory or time, expected what `tessera train --json` or "
                         "`tessera plan --json` writes",
                         path);
    return status;
}

void report_run_free(report_run *run) {
    for (int s = 0; s < REPORT_SOURCES; s++)
        free(run->points[s]);
    for (int32_t i = 0; i < run->n_names; i++)
        free(run->names[i]);
    if (run->name_index)
        tool_names_free(run->name_index);
    free(run->name_index);
    free(run->names);
    free(run->spans);
    free(run->units);
    free(run->losses);
    free(run->validations);
    free(run->ranks);
    memset(run, 0, sizeof *run);
}
