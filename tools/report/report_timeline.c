/* SPDX-License-Identifier: BSD-3-Clause */
/* The step's lanes: what computes, communicates and moves, when. */
#include <stdlib.h>
#include <string.h>

#include "report.h"

enum {
    LEFT = 112,
    WIDTH = REPORT_SVG_WIDTH - LEFT - 16,
    TOP = 34,
    BAR = 20,
    GAP = 12,      /* between lanes */
    MOST_ROWS = 4, /* rows of one lane for spans that overlap; more share the last */
    LETTER = 6
};

static const char *const lane_names[REPORT_LANES] = { "compute",       "communication", "transfer up",
                                                      "transfer down", "host",          "other" };

typedef struct {
    const report_run *run;
    const report_span **spans; /* this source's spans, sorted by lane and start */
    uint8_t *rows;             /* row of each span */
    size_t n;
    double end; /* end of the step */
    int lane_rows[REPORT_LANES], lane_y[REPORT_LANES];
    int height;
} timeline;

static int compare_spans(const void *pa, const void *pb) {
    const report_span *a = *(const report_span *const *)pa, *b = *(const report_span *const *)pb;
    if (a->lane != b->lane)
        return a->lane < b->lane ? -1 : 1;
    if (a->start != b->start)
        return a->start < b->start ? -1 : 1;
    return a < b ? -1 : a > b;
}

/* A span takes the first row of its lane that is free when it starts; a rounding error does not count. */
static void assign_rows(timeline *t) {
    double free_from[MOST_ROWS];
    for (size_t i = 0; i < t->n; i++) {
        const report_span *s = t->spans[i];
        int row = 0;
        if (i == 0 || t->spans[i - 1]->lane != s->lane)
            memset(free_from, 0, sizeof free_from);
        while (row < MOST_ROWS - 1 && free_from[row] > s->start + 1e-9)
            row++;
        free_from[row] = s->start + s->seconds;
        t->rows[i] = (uint8_t)row;
        if (row >= t->lane_rows[s->lane])
            t->lane_rows[s->lane] = row + 1;
    }
}

static int timeline_make(timeline *t, const report_run *run, int source) {
    *t = (timeline){ .run = run, .end = report_span_end(run, source), .height = TOP };
    t->spans = calloc(run->n_spans + 1, sizeof *t->spans);
    t->rows = calloc(run->n_spans + 1, 1);
    if (!t->spans || !t->rows)
        return 0;
    for (size_t i = 0; i < run->n_spans; i++)
        if (run->spans[i].source == source)
            t->spans[t->n++] = &run->spans[i];
    qsort(t->spans, t->n, sizeof *t->spans, compare_spans);
    assign_rows(t);
    for (int l = 0; l < REPORT_LANES; l++) {
        t->lane_y[l] = t->height;
        if (t->lane_rows[l])
            t->height += t->lane_rows[l] * (BAR + 2) + GAP;
    }
    if (t->end <= 0)
        t->end = 1e-9;
    return 1;
}

static double x_of(const timeline *t, double seconds) {
    return LEFT + WIDTH * seconds / t->end;
}

static void put_axis(FILE *out, const timeline *t) {
    char text[32];
    double tick = report_tick_seconds(t->end);
    for (int k = 0; k * tick <= t->end * 1.0001; k++) {
        double x = x_of(t, k * tick);
        fprintf(out, "<path class=\"rule none\" d=\"M%.1f %dV%d\"/>", x, TOP - 6, t->height - GAP + 4);
        fprintf(out, "<text class=\"muted small %s\" x=\"%.1f\" y=\"%d\">%s</text>\n", k ? "middle" : "", x, TOP - 12,
                report_seconds(k * tick, text));
    }
}

static void put_label(FILE *out, const timeline *t, const report_span *s, double x, double width, int y) {
    const char *op = report_name(t->run, s->op), *unit = report_name(t->run, s->unit);
    size_t room = (size_t)(width > 8 ? (width - 8) / LETTER : 0), need = report_length(op) + report_length(unit) + 1;
    if (room < 3)
        return;
    fprintf(out, "<text class=\"on o%d small\" x=\"%.1f\" y=\"%d\">", report_op_colour(op), x + 4, y + 14);
    if (*unit && need <= room) {
        report_escape(out, op);
        fputc(' ', out);
        report_escape(out, unit);
    } else {
        report_escape_cut(out, *unit && report_length(unit) <= room ? unit : op, room);
    }
    fputs("</text>", out);
}

/* Leaves out a span that is narrower than half a pixel and lies on an earlier one. */
static void put_spans(FILE *out, const timeline *t) {
    double drawn[REPORT_LANES][MOST_ROWS] = { { 0 } };
    for (size_t i = 0; i < t->n; i++) {
        const report_span *s = t->spans[i];
        double x = x_of(t, s->start), end = x_of(t, s->start + s->seconds), *last = &drawn[s->lane][t->rows[i]];
        int y = t->lane_y[s->lane] + t->rows[i] * (BAR + 2);
        if (end - x < 0.5 && end < *last + 0.5)
            continue;
        double width = end - x > 0.5 ? end - x : 0.5;
        *last = x + width;
        fprintf(out, "<rect class=\"c%d%s\" x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\"/>",
                report_op_colour(report_name(t->run, s->op)), width > 3 ? " seam" : "", x, y, width, BAR);
        put_label(out, t, s, x, width, y);
        fputc('\n', out);
    }
}

static void put_lanes(FILE *out, const timeline *t) {
    for (int l = 0; l < REPORT_LANES; l++)
        if (t->lane_rows[l])
            fprintf(out, "<text class=\"ink end\" x=\"%d\" y=\"%d\">%s</text>\n", LEFT - 10, t->lane_y[l] + 14,
                    lane_names[l]);
}

void report_timeline_legend(FILE *out, const report_run *run, int source) {
    for (size_t i = 0; i < run->n_spans; i++) {
        size_t k = 0;
        while (k < i && (run->spans[k].source != source || run->spans[k].op != run->spans[i].op))
            k++;
        if (k < i || run->spans[i].source != source)
            continue;
        fprintf(
            out,
            "<span><svg class=\"swatch\" aria-hidden=\"true\" viewBox=\"0 0 12 12\"><rect class=\"c%d\" width=\"12\" "
            "height=\"12\"/></svg> ",
            report_op_colour(report_name(run, run->spans[i].op)));
        report_escape_cut(out, report_name(run, run->spans[i].op), 40);
        fputs("</span>\n", out);
    }
}

void report_timeline_svg(FILE *out, const report_run *run, int source, int number) {
    char text[32];
    timeline t;
    if (timeline_make(&t, run, source)) {
        const char *what = source == REPORT_PLANNED ? "simulated" : "measured";
        fprintf(out,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
                "role=\"img\" aria-labelledby=\"t%d d%d\">",
                REPORT_SVG_WIDTH, t.height, REPORT_SVG_WIDTH, t.height, number, number);
        fprintf(out,
                "<title id=\"t%d\">Timeline of one step, %s</title><desc id=\"d%d\">%zu pieces of work in %s. The "
                "table below adds them up by lane and operation.</desc>\n",
                number, what, number, t.n, report_seconds(t.end, text));
        put_axis(out, &t);
        put_lanes(out, &t);
        put_spans(out, &t);
        fputs("</svg>\n", out);
    }
    free(t.spans);
    free(t.rows);
}
