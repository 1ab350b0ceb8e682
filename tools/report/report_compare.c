/* SPDX-License-Identifier: BSD-3-Clause */
/* Draws several runs beside each other: the memory alive at each run's peak, and the duration of a step. */
#include "report.h"

enum {
    LABEL_END = 168,
    LEFT = LABEL_END + 12,
    BARS = 440, /* width of the longest */
    TIME_LEFT = LEFT + BARS + 100,
    TIMES = REPORT_SVG_WIDTH - TIME_LEFT - 72,
    TOP = 28,
    BAR = 18,
    GAP = 16 /* between runs */
};

typedef struct {
    const report_run *runs;
    const report_order *orders;
    size_t n;
    uint64_t top;
    double slowest;
} comparison;

static const report_stack *peak_of(const comparison *c, size_t r, int domain) {
    const report_order *o = &c->orders[r];
    const report_stack *s = o->n ? report_stack_at(o, o->area, o->peak[domain], domain) : NULL;
    return s && s->total ? s : NULL;
}

/* The bar's length: the bytes obtained, else the bytes planned, else the bytes alive. */
static uint64_t peak_bytes(const comparison *c, size_t r, int domain) {
    const report_run *run = &c->runs[r];
    const report_stack *alive = peak_of(c, r, domain);
    if (run->measured_peak[domain] || run->planned_peak[domain])
        return run->measured_peak[domain] ? run->measured_peak[domain] : run->planned_peak[domain];
    return alive ? alive->total : 0;
}

static double step_seconds(const report_run *run) {
    return run->step_seconds > 0 ? run->step_seconds : run->predicted_seconds;
}

/* The categories in a bar, then a frame as far as what was obtained goes. */
static void put_bar(FILE *out, const comparison *c, size_t r, int domain, int y) {
    const report_stack *alive = peak_of(c, r, domain);
    uint64_t bytes = peak_bytes(c, r, domain);
    double scale = (double)BARS / (double)c->top, x = LEFT;
    char text[32];
    for (int k = 0; alive && k < REPORT_CATEGORIES; k++) {
        const char *pattern = report_category_pattern(k);
        double width = (double)alive->bytes[k] * scale;
        if (width <= 0)
            continue;
        fprintf(out, "<rect class=\"c%d seam\" stroke-width=\".6\" x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\"/>",
                k, x, y, width, BAR);
        if (pattern)
            fprintf(out, "<rect fill=\"url(#%s)\" x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\"/>", pattern, x, y,
                    width, BAR);
        x += width;
    }
    fprintf(out, "<rect class=\"edge none\" x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\"/>", LEFT, y,
            (double)bytes * scale, BAR);
    fprintf(out, "<text class=\"ink\" x=\"%.1f\" y=\"%d\">%s%s</text>\n", LEFT + (double)bytes * scale + 6, y + 13,
            report_bytes(bytes, text), domain == REPORT_HOST ? " host" : "");
}

static void put_time(FILE *out, const comparison *c, size_t r, int y) {
    double seconds = step_seconds(&c->runs[r]);
    char text[32];
    if (seconds <= 0)
        return;
    double width = TIMES * seconds / c->slowest;
    fprintf(out, "<rect class=\"edge %s\" x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\"/>",
            c->runs[r].step_seconds > 0 ? "muted" : "none", TIME_LEFT, y, width, BAR);
    fprintf(out, "<text class=\"ink\" x=\"%.1f\" y=\"%d\">%s</text>\n", TIME_LEFT + width + 6, y + 13,
            report_seconds(seconds, text));
}

static int row_height(const comparison *c, size_t r) {
    return (peak_bytes(c, r, REPORT_HOST) ? 2 * BAR + 3 : BAR) + GAP;
}

static void put_rows(FILE *out, const comparison *c) {
    int y = TOP;
    for (size_t r = 0; r < c->n; r++) {
        fprintf(out, "<text class=\"ink end\" x=\"%d\" y=\"%d\">", LABEL_END, y + 13);
        report_escape_cut(out, c->runs[r].label, 24);
        fputs("</text>", out);
        put_bar(out, c, r, REPORT_DEVICE, y);
        if (peak_bytes(c, r, REPORT_HOST))
            put_bar(out, c, r, REPORT_HOST, y + BAR + 3);
        put_time(out, c, r, y);
        y += row_height(c, r);
    }
}

void report_compare_svg(FILE *out, const report_run *runs, const report_order *orders, size_t n) {
    comparison c = { runs, orders, n, 1, 0 };
    int height = TOP;
    for (size_t r = 0; r < n; r++) {
        for (int d = 0; d < REPORT_DOMAINS; d++)
            if (peak_bytes(&c, r, d) > c.top)
                c.top = peak_bytes(&c, r, d);
        if (step_seconds(&runs[r]) > c.slowest)
            c.slowest = step_seconds(&runs[r]);
        height += row_height(&c, r);
    }
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" role=\"img\" "
            "aria-labelledby=\"tc dc\"><title id=\"tc\">Peak memory and step time of %zu runs</title>"
            "<desc id=\"dc\">Bars; the table below has the same numbers.</desc>\n",
            REPORT_SVG_WIDTH, height, REPORT_SVG_WIDTH, height, n);
    fprintf(out, "<text class=\"muted small\" x=\"%d\" y=\"14\">peak per rank; the frame is what was obtained</text>",
            LEFT);
    if (c.slowest > 0)
        fprintf(out, "<text class=\"muted small\" x=\"%d\" y=\"14\">a step, median (hollow: predicted)</text>\n",
                TIME_LEFT);
    put_rows(out, &c);
    fputs("</svg>\n", out);
}
