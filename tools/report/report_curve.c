/* SPDX-License-Identifier: BSD-3-Clause */
/* Loss and gradient norm over the run, and where ranks differ. */
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

typedef struct {
    int norm;           /* the gradient norm's curve, not the loss's */
    double least, most; /* of the finite values */
} range;

static double value_of(const report_run *run, const range *r, size_t i) {
    return r->norm ? run->losses[i].grad_norm : run->losses[i].loss;
}

static int range_of(const report_run *run, range *out) {
    int any = 0;
    for (size_t i = 0; i < run->n_losses; i++) {
        double value = value_of(run, out, i);
        if (!isfinite(value))
            continue;
        out->least = any && out->least < value ? out->least : value;
        out->most = any && out->most > value ? out->most : value;
        any = 1;
    }
    if (any && out->most - out->least < 1e-12)
        out->most = out->least + 1;
    return any;
}

static double x_of(const report_run *run, size_t i) {
    double first = (double)run->losses[0].step, last = (double)run->losses[run->n_losses - 1].step;
    return LEFT + WIDTH * (last > first ? ((double)run->losses[i].step - first) / (last - first) : 0.5);
}

static double y_of(const range *r, double value) {
    return BOTTOM - PLOT_HEIGHT * (value - r->least) / (r->most - r->least);
}

static void put_axis(FILE *out, const report_run *run, const range *r) {
    for (int k = 0; k <= 2; k++) {
        double value = r->least + (r->most - r->least) * k / 2;
        fprintf(out, "<path class=\"rule none\" d=\"M%d %.1fH%d\"/>", LEFT, y_of(r, value), LEFT + WIDTH);
        fprintf(out, "<text class=\"muted small end\" x=\"%d\" y=\"%.1f\">%.4g</text>\n", LEFT - 8, y_of(r, value) + 4,
                value);
    }
    fprintf(out, "<text class=\"muted small\" x=\"%d\" y=\"%d\">step %llu</text>", LEFT, BOTTOM + 18,
            (unsigned long long)run->losses[0].step);
    fprintf(out, "<text class=\"muted small end\" x=\"%d\" y=\"%d\">step %llu</text>\n", LEFT + WIDTH, BOTTOM + 18,
            (unsigned long long)run->losses[run->n_losses - 1].step);
}

/* A gap where there is no number. Of long runs every k-th step is drawn, and the last. */
static void put_line(FILE *out, const report_run *run, const range *r) {
    size_t stride = run->n_losses / MOST_SHOWN + 1;
    int drawing = 0;
    fputs("<path class=\"line none\" stroke-width=\"1.5\" d=\"", out);
    for (size_t i = 0; i < run->n_losses;
         i = i + stride < run->n_losses || i == run->n_losses - 1 ? i + stride : run->n_losses - 1) {
        double value = value_of(run, r, i);
        if (isfinite(value))
            fprintf(out, "%c%.1f %.1f", drawing ? 'L' : 'M', x_of(run, i), y_of(r, value));
        drawing = isfinite(value);
    }
    fputs("\"/>\n", out);
}

int report_curve_svg(FILE *out, const report_run *run, int norm, int number) {
    range r = { norm, 0, 0 };
    if (run->n_losses < 2 || !range_of(run, &r))
        return 0;
    size_t last = run->n_losses - 1;
    if (!out)
        return 1;
    fprintf(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" role=\"img\" "
        "aria-labelledby=\"t%d d%d\"><title id=\"t%d\">%s over the run</title><desc id=\"d%d\">From %.6g at step %llu "
        "to %.6g at step %llu; the least is %.6g.</desc>\n",
        REPORT_SVG_WIDTH, BOTTOM + 26, REPORT_SVG_WIDTH, BOTTOM + 26, number, number, number,
        norm ? "Gradient norm" : "Training loss", number, value_of(run, &r, 0), (unsigned long long)run->losses[0].step,
        value_of(run, &r, last), (unsigned long long)run->losses[last].step, r.least);
    put_axis(out, run, &r);
    put_line(out, run, &r);
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
