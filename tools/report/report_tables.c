/* SPDX-License-Identifier: BSD-3-Clause */
/* The page's tables: all that the pictures show, as text. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"

/* ---- parts ------------------------------------------------------------------------------------- */
/* A table scrolls within itself on a narrow page, also by keyboard. */
static void table_begin(FILE *out, const char *kind, size_t r, const char *caption) {
    fprintf(out,
            "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-labelledby=\"%s%zu\">\n<table>\n"
            "<caption id=\"%s%zu\">%s</caption>\n",
            kind, r, kind, r, caption);
}

static void table_end(FILE *out) {
    fputs("</tbody>\n</table>\n</div>\n", out);
}

static void head(FILE *out, const char *const *names, size_t n) {
    fputs("<thead><tr>", out);
    for (size_t i = 0; i < n; i++)
        fprintf(out, "<th scope=\"col\"%s>%s</th>", i ? " class=\"n\"" : "", names[i]);
    fputs("</tr></thead>\n<tbody>\n", out);
}

static void number_cell(FILE *out, uint64_t value) {
    char text[32];
    fprintf(out, "<td class=\"n\">%s</td>", report_grouped(value, text));
}

static void seconds_cell(FILE *out, double seconds) {
    char text[32];
    fprintf(out, "<td class=\"n\">%s</td>", seconds > 0 ? report_seconds(seconds, text) : "–");
}

static void name_cell(FILE *out, const char *name) {
    fputs("<th scope=\"row\">", out);
    report_escape_cut(out, name, 80);
    fputs("</th>", out);
}

/* ---- comparison -------------------------------------------------------------------------------- */
/* Only settings that differ get a column, so that the table fits on a screen. */
static int setting_differs(const report_run *runs, size_t n, int i) {
    size_t r = 1;
    while (r < n && strcmp(runs[r].settings[i], runs[0].settings[i]) == 0)
        r++;
    return r < n;
}

static void put_common_settings(FILE *out, const report_run *runs, size_t n) {
    const char *between = "<p>The same in all: ";
    for (int i = 0; i < REPORT_SETTINGS; i++) {
        if (setting_differs(runs, n, i) || !runs[0].settings[i][0])
            continue;
        fprintf(out, "%s%s ", between, report_setting_keys[i]);
        report_escape_cut(out, runs[0].settings[i], 40);
        between = ", ";
    }
    fputs(*between == ',' ? ".</p>\n" : "", out);
}

static void peak_cells(FILE *out, const report_run *run, int domain) {
    char text[32];
    for (int s = 0; s < REPORT_SOURCES; s++) {
        uint64_t peak = s == REPORT_PLANNED ? run->planned_peak[domain] : run->measured_peak[domain];
        fprintf(out, "<td class=\"n\">%s</td>", peak ? report_bytes(peak, text) : "–");
    }
}

static int any_host(const report_run *runs, size_t n) {
    size_t r = 0;
    while (r < n && !runs[r].planned_peak[REPORT_HOST] && !runs[r].measured_peak[REPORT_HOST])
        r++;
    return r < n;
}

void report_table_compare(FILE *out, const report_run *runs, size_t n) {
    table_begin(out, "compare", 0, "Peak memory per rank and time per step");
    fputs("<thead><tr><th scope=\"col\">run</th><th scope=\"col\" class=\"n\">device, planned</th>"
          "<th scope=\"col\" class=\"n\">device, measured</th>",
          out);
    if (any_host(runs, n))
        fputs("<th scope=\"col\" class=\"n\">host, planned</th><th scope=\"col\" class=\"n\">host, measured</th>", out);
    fputs("<th scope=\"col\" class=\"n\">step, predicted</th><th scope=\"col\" class=\"n\">step, measured median</th>",
          out);
    for (int i = 0; i < REPORT_SETTINGS; i++)
        if (setting_differs(runs, n, i))
            fprintf(out, "<th scope=\"col\">%s</th>", report_setting_keys[i]);
    fputs("</tr></thead>\n<tbody>\n", out);
    for (size_t r = 0; r < n; r++) {
        fprintf(out, "<tr><th scope=\"row\"><a href=\"#run%zu\">", r);
        report_escape_cut(out, runs[r].label, 60);
        fputs("</a></th>", out);
        peak_cells(out, &runs[r], REPORT_DEVICE);
        if (any_host(runs, n))
            peak_cells(out, &runs[r], REPORT_HOST);
        seconds_cell(out, runs[r].predicted_seconds);
        seconds_cell(out, runs[r].step_seconds);
        for (int i = 0; i < REPORT_SETTINGS; i++) {
            if (!setting_differs(runs, n, i))
                continue;
            fputs("<td>", out);
            report_escape_cut(out, runs[r].settings[i], 40);
            fputs("</td>", out);
        }
        fputs("</tr>\n", out);
    }
    table_end(out);
    put_common_settings(out, runs, n);
}

/* ---- the peak by category ---------------------------------------------------------------------- */
static uint64_t highest_of(const report_order *o, int domain, int category) {
    uint64_t highest = 0;
    for (size_t i = 0; i < o->n; i++) {
        const report_stack *s = report_stack_at(o, o->area, i, domain);
        if (s && s->bytes[category] > highest)
            highest = s->bytes[category];
    }
    return highest;
}

typedef struct {
    uint64_t bytes[REPORT_SOURCES];
    int has[REPORT_SOURCES];
} pair;

/* most null: a sum, which has no highest. */
static void peak_row(FILE *out, const char *name, const pair *p, const uint64_t *most) {
    fprintf(out, "<tr%s><th scope=\"row\">%s</th>", most ? "" : " class=\"sum\"", name);
    for (int s = 0; s < REPORT_SOURCES; s++)
        if (p->has[s])
            number_cell(out, p->bytes[s]);
    if (p->has[0] && p->has[1])
        fprintf(out, "<td class=\"n\">%s</td>", p->bytes[0] == p->bytes[1] ? "equal" : "differs");
    if (most)
        number_cell(out, *most);
    else
        fputs("<td></td>", out);
    fputs("</tr>\n", out);
}

static void peak_head(FILE *out, const pair *p) {
    fputs("<thead><tr><th scope=\"col\">category</th>", out);
    for (int s = 0; s < REPORT_SOURCES; s++)
        if (p->has[s])
            fprintf(out, "<th scope=\"col\" class=\"n\">%s</th>", report_source_names[s]);
    if (p->has[0] && p->has[1])
        fputs("<th scope=\"col\" class=\"n\">planned against measured</th>", out);
    fputs("<th scope=\"col\" class=\"n\">highest in the step</th></tr></thead>\n<tbody>\n", out);
}

/* The sum, and what was obtained from the system for it. */
static void peak_sums(FILE *out, const report_run *run, int domain, const pair *total) {
    pair obtained = { { run->planned_peak[domain], run->measured_peak[domain] }, { total->has[0], total->has[1] } };
    pair rest = obtained;
    peak_row(out, "alive in all", total, NULL);
    for (int s = 0; s < REPORT_SOURCES; s++) {
        if (total->has[s] && obtained.bytes[s] < total->bytes[s])
            return;
        rest.bytes[s] -= total->has[s] ? total->bytes[s] : rest.bytes[s];
    }
    peak_row(out, "fragmentation", &rest, &(uint64_t){ rest.bytes[rest.has[0] ? 0 : 1] });
    peak_row(out, "obtained", &obtained, NULL);
}

void report_table_peak(FILE *out, const report_run *run, const report_order *o, int domain, size_t r) {
    const report_stack *of[REPORT_SOURCES];
    pair row = { .has = { 0 } };
    char caption[96], kind[16];
    for (int s = 0; s < REPORT_SOURCES; s++) {
        of[s] = report_stack_at(o, s, o->peak[domain], domain);
        row.has[s] = of[s] != NULL;
    }
    snprintf(caption, sizeof caption, "Bytes of %s memory at its peak, by category", report_domain_names[domain]);
    snprintf(kind, sizeof kind, "peak-%s", report_domain_names[domain]);
    table_begin(out, kind, r, caption);
    peak_head(out, &row);
    for (int c = REPORT_CATEGORIES - 1; c >= 0; c--) {
        uint64_t most = highest_of(o, domain, c);
        for (int s = 0; s < REPORT_SOURCES; s++)
            row.bytes[s] = of[s] ? of[s]->bytes[c] : 0;
        if (most)
            peak_row(out, report_category_name(c), &row, &most);
    }
    for (int s = 0; s < REPORT_SOURCES; s++)
        row.bytes[s] = of[s] ? of[s]->total : 0;
    peak_sums(out, run, domain, &row);
    table_end(out);
}

/* ---- units ------------------------------------------------------------------------------------- */
enum { FORWARD_TIME, BACKWARD_TIME, COMMUNICATION_TIME, UNIT_TIMES };

static int kind_of_time(const report_run *run, const report_span *s) {
    const char *op = report_name(run, s->op);
    if (s->lane == 1)
        return COMMUNICATION_TIME;
    if (s->lane != 0)
        return UNIT_TIMES;
    return strstr(op, "backward") ? BACKWARD_TIME : strstr(op, "forward") ? FORWARD_TIME : UNIT_TIMES;
}

/* Seconds by unit's name and kind, or null: no spans or no memory. */
static double *unit_times(const report_run *run, int source) {
    double *sums = report_has_spans(run, source) ? calloc((size_t)run->n_names * UNIT_TIMES, sizeof *sums) : NULL;
    for (size_t i = 0; sums && i < run->n_spans; i++) {
        const report_span *s = &run->spans[i];
        int kind = kind_of_time(run, s);
        if (s->source == source && s->unit >= 0 && kind < UNIT_TIMES)
            sums[s->unit * UNIT_TIMES + kind] += s->seconds;
    }
    return sums;
}

static void unit_sums(FILE *out, const report_run *run) {
    uint64_t sums[6] = { 0 };
    for (size_t i = 0; i < run->n_units; i++) {
        const report_unit *u = &run->units[i];
        const uint64_t of[6] = { u->parameters,      u->elements,       u->shard_bytes,
                                 u->unsharded_bytes, u->gradient_bytes, u->state_bytes };
        for (int k = 0; k < 6; k++)
            sums[k] += of[k];
    }
    fputs("<tr class=\"sum\"><th scope=\"row\">in all</th>", out);
    for (int k = 0; k < 6; k++)
        number_cell(out, sums[k]);
}

static int has_owners(const report_run *run) {
    for (size_t i = 0; i < run->n_units; i++)
        if (run->units[i].owners[0])
            return 1;
    return 0;
}

static void unit_head(FILE *out, int owners, int times) {
    const char *names[11] = { "unit", "parameters", "elements", "shard", "unsharded", "gradient", "optimizer state" };
    static const char *const timed[] = { "forward", "backward", "communication" };
    size_t n = 7;
    if (owners)
        names[n++] = "owners of its matrices";
    for (int k = 0; times && k < UNIT_TIMES; k++)
        names[n++] = timed[k];
    head(out, names, n);
}

void report_table_units(FILE *out, const report_run *run, size_t r) {
    int owners = has_owners(run);
    int source = report_has_spans(run, REPORT_MEASURED) ? REPORT_MEASURED : REPORT_PLANNED;
    double *times = unit_times(run, source);
    table_begin(out, "units", r,
                !times                      ? "Units: bytes of each on one rank"
                : source == REPORT_MEASURED ? "Units: bytes of each on one rank, and measured time in the step"
                                            : "Units: bytes of each on one rank, and simulated time in the step");
    unit_head(out, owners, times != NULL);
    for (size_t i = 0; i < run->n_units; i++) {
        const report_unit *u = &run->units[i];
        fputs("<tr>", out);
        name_cell(out, report_name(run, u->name));
        number_cell(out, u->parameters);
        number_cell(out, u->elements);
        number_cell(out, u->shard_bytes);
        number_cell(out, u->unsharded_bytes);
        number_cell(out, u->gradient_bytes);
        number_cell(out, u->state_bytes);
        if (owners)
            fprintf(out, "<td class=\"n\">%s</td>", u->owners);
        for (int k = 0; times && u->name >= 0 && k < UNIT_TIMES; k++)
            seconds_cell(out, times[u->name * UNIT_TIMES + k]);
        fputs("</tr>\n", out);
    }
    unit_sums(out, run);
    if (owners)
        fputs("<td></td>", out);
    fputs(times ? "<td></td><td></td><td></td></tr>\n" : "</tr>\n", out);
    table_end(out);
    free(times);
}

/* ---- lanes ------------------------------------------------------------------------------------- */
typedef struct {
    int source, lane, op;
    size_t count;
    double seconds;
} lane_sum;

static lane_sum *find_sum(lane_sum *sums, size_t n, const report_span *s) {
    for (size_t i = 0; i < n; i++)
        if (sums[i].source == s->source && sums[i].lane == s->lane && sums[i].op == s->op)
            return &sums[i];
    return NULL;
}

static size_t add_up(const report_run *run, lane_sum *sums, size_t most) {
    size_t n = 0;
    for (size_t i = 0; i < run->n_spans; i++) {
        const report_span *s = &run->spans[i];
        lane_sum *sum = find_sum(sums, n, s);
        if (!sum && n == most)
            continue;
        if (!sum) {
            sum = &sums[n++];
            *sum = (lane_sum){ s->source, s->lane, s->op, 0, 0 };
        }
        sum->count++;
        sum->seconds += s->seconds;
    }
    return n;
}

static int compare_sums(const void *pa, const void *pb) {
    const lane_sum *a = pa, *b = pb;
    if (a->source != b->source)
        return b->source - a->source; /* measured first */
    if (a->lane != b->lane)
        return a->lane - b->lane;
    return a->seconds > b->seconds ? -1 : a->seconds < b->seconds;
}

void report_table_lanes(FILE *out, const report_run *run, size_t r) {
    static const char *const names[] = { "lane and operation", "pieces", "time", "share of the step" };
    lane_sum sums[256];
    size_t n = add_up(run, sums, sizeof sums / sizeof sums[0]);
    qsort(sums, n, sizeof *sums, compare_sums);
    table_begin(out, "lanes", r, "Where the time of the step goes");
    head(out, names, 4);
    for (size_t i = 0; i < n; i++) {
        const lane_sum *s = &sums[i];
        double end = report_span_end(run, s->source);
        char lane[32];
        snprintf(lane, sizeof lane, "%s", report_lane_keys[s->lane]);
        for (char *p = lane; *p; p++)
            *p = *p == '_' ? ' ' : *p;
        fprintf(out,
                "<tr><th scope=\"row\"><svg class=\"swatch\" aria-hidden=\"true\" viewBox=\"0 0 12 12\">"
                "<rect class=\"c%d\" width=\"12\" height=\"12\"/></svg> %s: ",
                report_op_colour(report_name(run, s->op)), lane);
        report_escape_cut(out, report_name(run, s->op), 60);
        fputs(s->source == REPORT_PLANNED ? ", simulated</th>" : "</th>", out);
        number_cell(out, s->count);
        seconds_cell(out, s->seconds);
        fprintf(out, "<td class=\"n\">%.1f %%</td></tr>\n", end > 0 ? 100 * s->seconds / end : 0.0);
    }
    table_end(out);
}

/* ---- every instant ----------------------------------------------------------------------------- */
static void points_head(FILE *out, const report_order *o, int used[REPORT_DOMAINS][REPORT_CATEGORIES]) {
    fputs("<thead><tr><th scope=\"col\">instant</th>", out);
    for (int d = 0; d < REPORT_DOMAINS; d++)
        for (int c = 0; c < REPORT_CATEGORIES; c++) {
            used[d][c] = highest_of(o, d, c) > 0;
            if (used[d][c])
                fprintf(out, "<th scope=\"col\" class=\"n\">%s%s</th>", d == REPORT_HOST ? "host: " : "",
                        report_category_name(c));
        }
    fputs("<th scope=\"col\" class=\"n\">device, in all</th><th scope=\"col\">measured</th></tr></thead>\n<tbody>\n",
          out);
}

static void point_verdict(FILE *out, const report_column *c) {
    char text[32];
    const report_point *planned = c->of[REPORT_PLANNED], *measured = c->of[REPORT_MEASURED];
    if (planned && measured && memcmp(planned->domain, measured->domain, sizeof planned->domain) == 0)
        fputs("<td>equal</td>", out);
    else if (planned && measured)
        fprintf(out, "<td>%s</td>", report_grouped(measured->domain[REPORT_DEVICE].total, text));
    else
        fprintf(out, "<td>%s</td>", planned ? "–" : "measured only");
}

/* A peak speaks of one domain only. */
static void point_cells(FILE *out, const report_column *column, int used[REPORT_DOMAINS][REPORT_CATEGORIES]) {
    const report_point *p = report_column_point(column);
    for (int d = 0; d < REPORT_DOMAINS; d++)
        for (int c = 0; c < REPORT_CATEGORIES; c++) {
            if (!used[d][c])
                continue;
            if (column->domains & 1 << d)
                number_cell(out, p->domain[d].bytes[c]);
            else
                fputs("<td class=\"n\">–</td>", out);
        }
    if (column->domains & 1 << REPORT_DEVICE)
        number_cell(out, p->domain[REPORT_DEVICE].total);
    else
        fputs("<td class=\"n\">–</td>", out);
    point_verdict(out, column);
}

void report_table_points(FILE *out, const report_run *run, const report_order *o, size_t r) {
    int used[REPORT_DOMAINS][REPORT_CATEGORIES];
    size_t every = (o->n + 1999) / 2000; /* a page that opens */
    table_begin(out, "points", r,
                every > 1 ? "Bytes alive at the instants of the step, some left out"
                          : "Bytes alive at every instant of the step");
    points_head(out, o, used);
    for (size_t i = 0; i < o->n; i++) {
        const report_point *p = report_column_point(&o->columns[i]);
        if (i % every && i != o->peak[REPORT_DEVICE] && i != o->peak[REPORT_HOST])
            continue;
        fprintf(out, "<tr%s><th scope=\"row\">", i == o->peak[REPORT_DEVICE] ? " class=\"peak\"" : "");
        report_point_text(out, run, p);
        fputs(i == o->peak[REPORT_DEVICE] && p->point != REPORT_PEAK ? " (peak)</th>" : "</th>", out);
        point_cells(out, &o->columns[i], used);
        fputs("</tr>\n", out);
    }
    table_end(out);
}
