/* SPDX-License-Identifier: BSD-3-Clause */
/* A trace in Chrome's JSON format, which Perfetto reads too: one process per run and source, lanes as threads, memory
 * as counters. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/support/json_out.h"
#include "report.h"

typedef struct {
    FILE *out;
    json_out json;
    int any;
    const report_run *run;
    const report_order *order;
    int source, process;
} trace;

/* ---- events ------------------------------------------------------------------------------------ */
static json_out *begin(trace *t, const char *phase, const char *name, int thread) {
    fputs(t->any ? ",\n" : "\n", t->out);
    t->any = 1;
    json_init(&t->json, t->out);
    json_object_begin(&t->json, NULL);
    json_string(&t->json, "ph", phase);
    json_string(&t->json, "name", name);
    json_int(&t->json, "pid", t->process);
    json_int(&t->json, "tid", thread);
    return &t->json;
}

/* The name of a process or thread, or its place among the others. */
static void put_metadata(trace *t, const char *what, int thread, const char *name, int place) {
    json_out *j = begin(t, "M", what, thread);
    json_object_begin(j, "args");
    if (name)
        json_string(j, "name", name);
    else
        json_int(j, "sort_index", place);
    json_object_end(j);
    json_object_end(j);
}

static double microseconds(double seconds) {
    return round(seconds * 1e9) / 1e3;
}

static void put_span(trace *t, const report_span *s) {
    const char *op = report_name(t->run, s->op), *unit = report_name(t->run, s->unit);
    char name[256];
    snprintf(name, sizeof name, "%s%s%s", op, *unit ? " " : "", unit);
    json_out *j = begin(t, "X", name, s->lane + 1);
    json_string(j, "cat", report_lane_keys[s->lane]);
    json_double(j, "ts", microseconds(s->start));
    json_double(j, "dur", microseconds(s->seconds));
    json_object_begin(j, "args");
    json_string(j, "op", op);
    if (*unit)
        json_string(j, "unit", unit);
    json_object_end(j);
    json_object_end(j);
}

static void put_counter(trace *t, const report_point *p, int domain, double seconds, const int *used) {
    char name[32];
    snprintf(name, sizeof name, "%s memory", report_domain_names[domain]);
    json_out *j = begin(t, "C", name, 0);
    json_double(j, "ts", microseconds(seconds));
    json_object_begin(j, "args");
    for (int c = 0; c < REPORT_CATEGORIES; c++)
        if (used[c])
            json_uint(j, report_category_keys[c], p->domain[domain].bytes[c]);
    json_object_end(j);
    json_object_end(j);
}

/* ---- when the instants of the ledger are ------------------------------------------------------- */
static const char *wanted_op(int32_t point) {
    return point < REPORT_PRE_BACKWARD ? "forward" : point < REPORT_OPTIMIZER ? "backward" : "optim";
}

static int span_fits(const trace *t, const report_span *s, const report_point *p) {
    return s->source == t->source && s->unit == p->unit && (p->point >= REPORT_OPTIMIZER || s->lane == 0) &&
           strstr(report_name(t->run, s->op), wanted_op(p->point));
}

/* Whether a point is at its span's end: what comes after the work. */
static int at_end(int32_t point) {
    return point >= REPORT_OPTIMIZER ? point % 2 : (point & 2) != 0;
}

/* The place of the next span from *from that the point belongs to; each point moves on from the one before it. */
static double time_of(const trace *t, const report_point *p, size_t *from) {
    enum { AHEAD = 256 };
    if (p->point >= REPORT_PEAK)
        return NAN;
    for (size_t i = *from; i < t->run->n_spans && i < *from + AHEAD; i++) {
        const report_span *s = &t->run->spans[i];
        if (!span_fits(t, s, p))
            continue;
        *from = i;
        return at_end(p->point) ? s->start + s->seconds : s->start;
    }
    return NAN;
}

/* Points without a span lie evenly between those with one; time never goes back. */
static void fill_in(double *times, size_t n, double end) {
    double before = 0;
    for (size_t i = 0; i < n; i++) {
        size_t known = i;
        while (known < n && isnan(times[known]))
            known++;
        double next = known < n ? times[known] : end;
        if (known > i)
            times[i] = before + (next - before) / (double)(known - i + 1);
        if (times[i] < before)
            times[i] = before;
        before = times[i];
    }
}

static const report_point *point_at(const trace *t, size_t column) {
    return t->order->columns[column].of[t->source];
}

/* Each instant takes a millisecond if there are no spans. */
static void find_times(const trace *t, double *times) {
    int spans = report_has_spans(t->run, t->source);
    size_t from = 0, n = 0;
    for (size_t i = 0; i < t->order->n; i++)
        if (point_at(t, i)) {
            times[n] = spans ? time_of(t, point_at(t, i), &from) : (double)n * 1e-3;
            n++;
        }
    fill_in(times, n, report_span_end(t->run, t->source));
}

static void put_counters(trace *t) {
    double *times = calloc(t->order->n + 1, sizeof *times);
    int used[REPORT_DOMAINS][REPORT_CATEGORIES] = { { 0 } };
    if (!times)
        return;
    find_times(t, times);
    for (size_t i = 0; i < t->order->n; i++)
        for (int d = 0; point_at(t, i) && d < REPORT_DOMAINS; d++)
            for (int c = 0; c < REPORT_CATEGORIES; c++)
                used[d][c] |= point_at(t, i)->domain[d].bytes[c] > 0;
    for (int d = 0; d < REPORT_DOMAINS; d++) {
        size_t n = 0;
        int any = 0;
        for (int c = 0; c < REPORT_CATEGORIES; c++)
            any |= used[d][c];
        for (size_t i = 0; any && i < t->order->n; i++) {
            if (point_at(t, i) && t->order->columns[i].domains & 1 << d)
                put_counter(t, point_at(t, i), d, times[n], used[d]);
            n += point_at(t, i) != NULL;
        }
    }
    free(times);
}

/* ---- processes --------------------------------------------------------------------------------- */
static int lane_used(const trace *t, int lane) {
    for (size_t i = 0; i < t->run->n_spans; i++)
        if (t->run->spans[i].source == t->source && t->run->spans[i].lane == lane)
            return 1;
    return 0;
}

static void put_process(trace *t) {
    int spans = report_has_spans(t->run, t->source);
    char name[512];
    if (!spans && !t->run->n_points[t->source])
        return;
    snprintf(name, sizeof name, "%s, %s%s", t->run->label, report_source_names[t->source],
             spans ? "" : " (an instant of the step per millisecond)");
    put_metadata(t, "process_name", 0, name, 0);
    put_metadata(t, "process_sort_index", 0, NULL, t->process);
    for (int l = 0; l < REPORT_LANES; l++) {
        if (!lane_used(t, l))
            continue;
        put_metadata(t, "thread_name", l + 1, report_lane_keys[l], 0);
        put_metadata(t, "thread_sort_index", l + 1, NULL, l);
    }
    for (size_t i = 0; i < t->run->n_spans; i++)
        if (t->run->spans[i].source == t->source)
            put_span(t, &t->run->spans[i]);
    put_counters(t);
}

void report_trace(FILE *out, const report_run *runs, const report_order *orders, size_t n) {
    trace t = { .out = out };
    fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[", out);
    for (size_t r = 0; r < n; r++)
        for (int s = REPORT_SOURCES - 1; s >= 0; s--) {
            t.run = &runs[r];
            t.order = &orders[r];
            t.source = s;
            t.process = (int)(2 * r) + (s == REPORT_MEASURED ? 1 : 2);
            put_process(&t);
        }
    fputs("\n]}\n", out);
}
