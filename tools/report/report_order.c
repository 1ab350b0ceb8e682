/* SPDX-License-Identifier: BSD-3-Clause */
/* Planned and measured side by side, and what follows from the order of time. */
#include <stdlib.h>
#include <string.h>

#include "report.h"
#include <tessera/tessera.h>

/* ---- columns ----------------------------------------------------------------------------------- */
enum { ALL_DOMAINS = (1 << REPORT_DOMAINS) - 1 };

typedef struct {
    const report_point *point;
    int source;
    size_t place; /* position in the file, so that ties keep their order */
} entry;

static int compare_entries(const void *pa, const void *pb) {
    const entry *a = pa, *b = pb;
    if (a->point->index != b->point->index)
        return a->point->index < b->point->index ? -1 : 1;
    if (a->source != b->source)
        return a->source - b->source;
    return a->place < b->place ? -1 : a->place > b->place;
}

const report_point *report_column_point(const report_column *c) {
    return c->of[REPORT_PLANNED] ? c->of[REPORT_PLANNED] : c->of[REPORT_MEASURED];
}

static const report_point *at(const report_order *o, size_t i) {
    return report_column_point(&o->columns[i]);
}

const report_stack *report_stack_at(const report_order *o, int source, size_t i, int domain) {
    while (i > 0 && !(o->columns[i].domains & 1 << domain))
        i--;
    const report_point *p = o->columns[i].of[source];
    return p ? &p->domain[domain] : NULL;
}

static uint64_t area_total(const report_order *o, size_t i, int domain) {
    const report_stack *s = report_stack_at(o, o->area, i, domain);
    return s ? s->total : 0;
}

/* An entry joins the column before it when that is of the same instant and lacks its source. */
static void add_column(report_order *o, const entry *e) {
    report_column *last = o->n ? &o->columns[o->n - 1] : NULL;
    if (!last || last->of[e->source] || report_column_point(last)->index != e->point->index) {
        last = &o->columns[o->n++];
        *last = (report_column){ .domains = ALL_DOMAINS };
    }
    last->of[e->source] = e->point;
}

/* ---- the peak ---------------------------------------------------------------------------------- */
static size_t fullest_column(const report_order *o, int domain) {
    size_t fullest = 0;
    for (size_t i = 1; i < o->n; i++)
        if (area_total(o, i, domain) > area_total(o, fullest, domain))
            fullest = i;
    return fullest;
}

/* The column of the point that the plan names as the last one before the peak, or the fullest. */
static size_t column_before_peak(const report_order *o, const report_run *run, int domain) {
    for (size_t i = 0; domain == REPORT_DEVICE && run->peak_point >= 0 && i < o->n; i++)
        if (at(o, i)->point_name == run->peak_point && at(o, i)->unit == run->peak_unit &&
            at(o, i)->pass == run->peak_pass)
            return i;
    return fullest_column(o, domain);
}

/* The peak is a moment between points; only where it equals none it gets a column of its own. */
static void place_peak(report_order *o, const report_run *run, int domain) {
    const report_point *peak = o->peak_points[o->area];
    size_t fullest = fullest_column(o, domain);
    o->peak[domain] = fullest;
    if (!peak || peak->domain[domain].total <= area_total(o, fullest, domain))
        return;
    size_t after = column_before_peak(o, run, domain), to = after + 1;
    if (to < o->n && !(o->columns[to].domains & 1 << domain)) {
        o->columns[to].domains |= (uint8_t)(1 << domain); /* the other domain's is at the same place */
        o->peak[domain] = to;
        return;
    }
    memmove(&o->columns[to + 1], &o->columns[to], (o->n - to) * sizeof *o->columns);
    o->columns[to] = (report_column){ { o->peak_points[0], o->peak_points[1] }, (uint8_t)(1 << domain) };
    o->n++;
    for (int d = 0; d < domain; d++)
        o->peak[d] += o->peak[d] >= to;
    o->peak[domain] = to;
}

/* ---- planned against measured ------------------------------------------------------------------ */
static int differ(const report_point *a, const report_point *b) {
    return memcmp(a->domain, b->domain, sizeof a->domain) != 0;
}

/* An instant is a column; a peak that is in no column is one more only where it differs. */
static void compare_sources(report_order *o) {
    const report_point *const *peak = o->peak_points;
    int peak_seen = 0;
    for (size_t i = 0; i < o->n; i++) {
        const report_point *const *of = o->columns[i].of;
        if (!of[0] || !of[1])
            continue;
        peak_seen |= of[0] == peak[0];
        o->both++;
        if (differ(of[0], of[1]) && o->different++ == 0)
            o->first_different = of[0];
    }
    if (!peak_seen && peak[0] && peak[1] && differ(peak[0], peak[1])) {
        o->both++;
        if (o->different++ == 0)
            o->first_different = peak[0];
    }
}

/* ---- phases ------------------------------------------------------------------------------------ */
static int own_phase(int32_t point) {
    if (point >= REPORT_PEAK)
        return REPORT_NO_PHASE;
    return point >= REPORT_OPTIMIZER ? REPORT_STEP : point >= REPORT_PRE_BACKWARD ? REPORT_BACKWARD : REPORT_FORWARD;
}

/* A segment is one time in a scope, which may hold several units: its points only go on. */
size_t report_order_segment(const report_order *o, size_t i) {
    size_t past = i + 1;
    int32_t point = at(o, i)->point;
    for (; past < o->n && at(o, past)->pass == at(o, i)->pass && o->phases[past] == o->phases[i]; past++) {
        int32_t next = at(o, past)->point;
        if (next >= REPORT_PEAK)
            continue;
        if (next < point || (next == point && at(o, past)->unit == at(o, past - 1)->unit))
            break;
        point = next;
    }
    return past;
}

/* Other points between two backwards count as backward: a scope's forward that is recomputed, or the step of a unit
 * whose gradient has arrived. */
static void find_within_backward(report_order *o) {
    for (size_t i = 0, past; i < o->n; i = past) {
        past = report_order_segment(o, i);
        while (o->phases[i] == REPORT_STEP && past < o->n && o->phases[past] == REPORT_STEP)
            past++;
        if (o->phases[i] != REPORT_BACKWARD && i > 0 && past < o->n && o->phases[i - 1] == REPORT_BACKWARD &&
            o->phases[past] == REPORT_BACKWARD && at(o, i - 1)->pass == at(o, past)->pass)
            memset(o->phases + i, REPORT_BACKWARD, past - i);
    }
}

/* A peak has the phase of the point before it. */
static void find_phases(report_order *o) {
    for (size_t i = 0; i < o->n; i++) {
        int phase = own_phase(at(o, i)->point);
        if (at(o, i)->point == REPORT_PEAK && i > 0)
            phase = o->phases[i - 1];
        o->phases[i] = (uint8_t)phase;
    }
    find_within_backward(o);
}

/* ---- all of it --------------------------------------------------------------------------------- */
/* All points but the peaks, in order of time. */
static size_t collect(const report_run *run, report_order *o, entry *entries) {
    size_t n = 0;
    for (int s = 0; s < REPORT_SOURCES; s++)
        for (size_t i = 0; i < run->n_points[s]; i++) {
            if (run->points[s][i].point == REPORT_PEAK)
                o->peak_points[s] = &run->points[s][i];
            else
                entries[n++] = (entry){ &run->points[s][i], s, i };
        }
    qsort(entries, n, sizeof *entries, compare_entries);
    return n;
}

tess_status report_order_make(const report_run *run, report_order *out) {
    size_t most = run->n_points[REPORT_PLANNED] + run->n_points[REPORT_MEASURED];
    memset(out, 0, sizeof *out);
    if (most == 0)
        return TESS_OK;
    entry *entries = calloc(most, sizeof *entries);
    out->columns = calloc(most + REPORT_DOMAINS, sizeof *out->columns);
    out->phases = calloc(most + REPORT_DOMAINS, 1);
    out->area = run->n_points[REPORT_PLANNED] ? REPORT_PLANNED : REPORT_MEASURED;
    if (!entries || !out->columns || !out->phases) {
        free(entries);
        report_order_free(out);
        return tess_fail(TESS_E_NOMEM, "%s: no memory to put it in order", run->path);
    }
    for (size_t i = 0, n = collect(run, out, entries); i < n; i++)
        add_column(out, &entries[i]);
    free(entries);
    for (int d = 0; d < REPORT_DOMAINS && out->n; d++)
        place_peak(out, run, d);
    compare_sources(out);
    find_phases(out);
    return TESS_OK;
}

void report_order_free(report_order *o) {
    free(o->columns);
    free(o->phases);
    memset(o, 0, sizeof *o);
}

/* ---- spans ------------------------------------------------------------------------------------- */
int report_has_spans(const report_run *run, int source) {
    size_t i = 0;
    while (i < run->n_spans && run->spans[i].source != source)
        i++;
    return i < run->n_spans;
}

double report_span_end(const report_run *run, int source) {
    double end = 0;
    for (size_t i = 0; i < run->n_spans; i++)
        if (run->spans[i].source == source && run->spans[i].start + run->spans[i].seconds > end)
            end = run->spans[i].start + run->spans[i].seconds;
    return end;
}

typedef struct {
    double from, to;
} interval;

static int compare_intervals(const void *pa, const void *pb) {
    const interval *a = pa, *b = pb;
    return a->from < b->from ? -1 : a->from > b->from;
}

/* The spans of one lane as intervals that do not touch, in order; returns how many. */
static size_t lane_intervals(const report_run *run, int source, int lane, interval *out) {
    size_t n = 0, merged = 0;
    for (size_t i = 0; i < run->n_spans; i++) {
        const report_span *s = &run->spans[i];
        int waits = strncmp(report_name(run, s->op), "wait", 4) == 0; /* it waits for another lane, which is no work */
        if (s->source == source && s->lane == lane && s->seconds > 0 && !waits)
            out[n++] = (interval){ s->start, s->start + s->seconds };
    }
    qsort(out, n, sizeof *out, compare_intervals);
    for (size_t i = 0; i < n; i++) {
        if (merged == 0 || out[i].from > out[merged - 1].to)
            out[merged++] = out[i];
        else if (out[i].to > out[merged - 1].to)
            out[merged - 1].to = out[i].to;
    }
    return merged;
}

static double length_of(const interval *items, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += items[i].to - items[i].from;
    return sum;
}

double report_lane_busy(const report_run *run, int source, int lane) {
    interval *items = calloc(run->n_spans + 1, sizeof *items);
    double busy = items ? length_of(items, lane_intervals(run, source, lane, items)) : 0;
    free(items);
    return busy;
}

/* The intersection of two sorted lists. */
static double overlap(const interval *a, size_t n_a, const interval *b, size_t n_b) {
    double sum = 0;
    for (size_t i = 0, j = 0; i < n_a && j < n_b;) {
        double from = a[i].from > b[j].from ? a[i].from : b[j].from;
        double to = a[i].to < b[j].to ? a[i].to : b[j].to;
        if (to > from)
            sum += to - from;
        if (a[i].to < b[j].to)
            i++;
        else
            j++;
    }
    return sum;
}

double report_exposed(const report_run *run, int source, int lane) {
    interval *a = calloc(2 * run->n_spans + 2, sizeof *a), *b = a ? a + run->n_spans + 1 : NULL;
    if (!a)
        return 0;
    size_t n_a = lane_intervals(run, source, lane, a), n_b = lane_intervals(run, source, 0, b);
    double exposed = length_of(a, n_a) - overlap(a, n_a, b, n_b);
    free(a);
    return exposed > 0 ? exposed : 0;
}
