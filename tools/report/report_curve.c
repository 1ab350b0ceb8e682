/* SPDX-License-Identifier: BSD-3-Clause */
/* Losses, gradient norm and learning rate over the run, and where ranks differ. */
#include <math.h>
#include <string.h>

#include "report.h"

enum {
    LEFT = 64,
    TOP = 16,
    PLOT_HEIGHT = 160,
    BOTTOM = TOP + PLOT_HEIGHT,
    WIDTH = REPORT_SVG_WIDTH - LEFT - 24,
    MOST_SHOWN = 1000
};

const char *const report_curve_names[REPORT_CURVES] = { "Training loss", "Validation loss", "Gradient norm",
                                                        "Learning rate", "Loss scale" };

typedef struct {
    int curve;
    const report_loss *at;
    size_t n;
    double least, most; /* bounds of the finite values */
} series;

static double value_of(const series *s, size_t i) {
    return s->curve == REPORT_CURVE_NORM    ? s->at[i].grad_norm
           : s->curve == REPORT_CURVE_RATE  ? s->at[i].rate
           : s->curve == REPORT_CURVE_SCALE ? s->at[i].scale
                                            : s->at[i].loss;
}

static int find_range(series *s) {
    int any = 0;
    for (size_t i = 0; i < s->n; i++) {
        double value = value_of(s, i);
        if (!isfinite(value))
            continue;
        s->least = any && s->least < value ? s->least : value;
        s->most = any && s->most > value ? s->most : value;
        any = 1;
    }
    if (any && s->most - s->least < 1e-12)
        s->most = s->least + (s->least != 0 ? fabs(s->least) : 1);
    return any;
}

static double x_of(const series *s, size_t i) {
    double first = (double)s->at[0].step, last = (double)s->at[s->n - 1].step;
    return LEFT + WIDTH * (last > first ? ((double)s->at[i].step - first) / (last - first) : 0.5);
}

static double y_of(const series *r, double value) {
    return BOTTOM - PLOT_HEIGHT * (value - r->least) / (r->most - r->least);
}

static void put_axis(FILE *out, const series *r) {
    for (int k = 0; k <= 2; k++) {
        double value = r->least + (r->most - r->least) * k / 2;
        fprintf(out, "<path class=\"rule none\" d=\"M%d %.1fH%d\"/>", LEFT, y_of(r, value), LEFT + WIDTH);
        fprintf(out, "<text class=\"muted small end\" x=\"%d\" y=\"%.1f\">%.4g</text>\n", LEFT - 8, y_of(r, value) + 4,
                value);
    }
    fprintf(out, "<text class=\"muted small\" x=\"%d\" y=\"%d\">step %llu</text>", LEFT, BOTTOM + 18,
            (unsigned long long)r->at[0].step);
    fprintf(out, "<text class=\"muted small end\" x=\"%d\" y=\"%d\">step %llu</text>\n", LEFT + WIDTH, BOTTOM + 18,
            (unsigned long long)r->at[r->n - 1].step);
}

/* A gap where there is no number. Of long runs every k-th step is drawn, and the last. */
static void put_line(FILE *out, const series *r) {
    size_t stride = r->n / MOST_SHOWN + 1;
    int drawing = 0;
    fputs("<path class=\"line none\" stroke-width=\"1.5\" d=\"", out);
    for (size_t i = 0; i < r->n; i = i + stride < r->n || i == r->n - 1 ? i + stride : r->n - 1) {
        double value = value_of(r, i);
        if (isfinite(value))
            fprintf(out, "%c%.1f %.1f", drawing ? 'L' : 'M', x_of(r, i), y_of(r, value));
        drawing = isfinite(value);
    }
    fputs("\"/>\n", out);
}

int report_curve_svg(FILE *out, const report_run *run, int curve, int number) {
    int held_out = curve == REPORT_CURVE_VALIDATION;
    series r = { curve, held_out ? run->validations : run->losses, held_out ? run->n_validations : run->n_losses, 0,
                 0 };
    if (r.n < 2 || !find_range(&r))
        return 0;
    size_t last = r.n - 1;
    if (!out)
        return 1;
    fprintf(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" role=\"img\" "
        "aria-labelledby=\"t%d d%d\"><title id=\"t%d\">%s over the run</title><desc id=\"d%d\">From %.6g at step %llu "
        "to %.6g at step %llu; the least is %.6g.</desc>\n",
        REPORT_SVG_WIDTH, BOTTOM + 26, REPORT_SVG_WIDTH, BOTTOM + 26, number, number, number, report_curve_names[curve],
        number, value_of(&r, 0), (unsigned long long)r.at[0].step, value_of(&r, last),
        (unsigned long long)r.at[last].step, r.least);
    put_axis(out, &r);
    put_line(out, &r);
    fputs("</svg>\n", out);
    return 1;
}

/* ---- ranks ------------------------------------------------------------------------------------- */
static const char *const rank_titles[REPORT_RANK_FIGURES] = { "device memory obtained", "host memory obtained",
                                                              "resident set, peak", "allocations in steps" };

static int column_differs(const report_run *run, int k) {
    for (size_t i = 1; i < run->n_ranks; i++)
        if (run->ranks[i].figure[k] != run->ranks[0].figure[k])
            return 1;
    return 0;
}

static void put_rank(FILE *out, const report_rank *r) {
    char text[32];
    fprintf(out, "<tr><th scope=\"row\">%llu</th>", (unsigned long long)r->rank);
    for (int k = 0; k < REPORT_RANK_FIGURES; k++)
        fprintf(out, "<td class=\"n\">%s</td>",
                k == REPORT_RANK_ALLOCATIONS ? report_grouped(r->figure[k], text) : report_bytes(r->figure[k], text));
    fputs("</tr>\n", out);
}

void report_table_ranks(FILE *out, const report_run *run, size_t r) {
    const char *between = "";
    fprintf(out,
            "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-labelledby=\"ranks%zu\">\n<table>\n"
            "<caption id=\"ranks%zu\">Each rank</caption>\n<thead><tr><th scope=\"col\">rank</th>",
            r, r);
    for (int k = 0; k < REPORT_RANK_FIGURES; k++)
        fprintf(out, "<th scope=\"col\" class=\"n\">%s</th>", rank_titles[k]);
    fputs("</tr></thead>\n<tbody>\n", out);
    for (size_t i = 0; i < run->n_ranks; i++)
        put_rank(out, &run->ranks[i]);
    fputs("</tbody>\n</table>\n</div>\n<p>Ranks differ in: ", out);
    for (int k = 0; k < REPORT_RANK_FIGURES; k++)
        if (column_differs(run, k)) {
            fprintf(out, "%s%s", between, rank_titles[k]);
            between = ", ";
        }
    fputs(*between ? ".</p>\n" : "nothing.</p>\n", out);
}
