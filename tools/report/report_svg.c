/* SPDX-License-Identifier: BSD-3-Clause */
/* Draws memory over the step: areas stacked by category, a line of measured bytes, the peak and the budget. */
#include <stdlib.h>

#include "report.h"

enum {
    LEFT = 78,
    PLOT_WIDTH = 620,
    TOP = 72,
    PLOT_HEIGHT = 264,
    BOTTOM = TOP + PLOT_HEIGHT,
    PANEL = LEFT + PLOT_WIDTH + 24,
    PANEL_END = REPORT_SVG_WIDTH - 8,
    ROW = 19,
    MOST_DRAWN = 1200, /* above this, several columns are drawn as their highest */
    LETTER = 6,        /* width of a small letter, roughly */
    NAME_MOST = 11,    /* letters of a unit's name on the axis */
    STANDING = 12,     /* distance of upright names */
    HEADING = 44       /* height of the title, which a page leaves out */
};

/* ---- scales ------------------------------------------------------------------------------------ */
static double x_of(const report_picture *p, double column) {
    return LEFT + PLOT_WIDTH * column / (double)p->order->n;
}

static double y_of(const report_picture *p, uint64_t bytes) {
    return BOTTOM - PLOT_HEIGHT * ((double)bytes / (double)p->top);
}

/* Returns the number of columns that are drawn as one. */
static size_t bundle(const report_picture *p) {
    return (p->order->n + MOST_DRAWN - 1) / MOST_DRAWN;
}

static const report_stack *stack_at(const report_picture *p, int source, size_t column) {
    return report_stack_at(p->order, source, column, p->domain);
}

/* The highest of the columns from `first` that are drawn as one; null where there are none. */
static const report_stack *drawn_stack(const report_picture *p, int source, size_t first) {
    const report_stack *highest = NULL;
    for (size_t i = first; i < first + bundle(p) && i < p->order->n; i++) {
        const report_stack *s = stack_at(p, source, i);
        if (s && (!highest || s->total > highest->total))
            highest = s;
    }
    return highest;
}

uint64_t report_svg_top(const report_run *run, const report_order *o, int domain) {
    uint64_t top =
        run->planned_peak[domain] > run->measured_peak[domain] ? run->planned_peak[domain] : run->measured_peak[domain];
    for (size_t i = 0; i < o->n; i++)
        for (int s = 0; s < REPORT_SOURCES; s++) {
            const report_stack *stack = report_stack_at(o, s, i, domain);
            if (stack && stack->total > top)
                top = stack->total;
        }
    if (run->budget[domain] > top && run->budget[domain] / 2 <= top)
        top = run->budget[domain];
    return top + top / 10;
}

int report_svg_wanted(const report_run *run, const report_order *o, int domain) {
    return o->n > 0 && (domain == REPORT_DEVICE || report_svg_top(run, o, domain) > 0);
}

/* ---- axes -------------------------------------------------------------------------------------- */
static void put_bytes_axis(FILE *out, const report_picture *p) {
    char text[32];
    uint64_t tick = report_tick_bytes(p->top);
    for (uint64_t at = 0; at <= p->top; at += tick) {
        double y = y_of(p, at);
        fprintf(out, "<path class=\"rule none\" d=\"M%d %.1fH%d\"/>", LEFT, y, LEFT + PLOT_WIDTH);
        fprintf(out, "<text class=\"muted small end\" x=\"%d\" y=\"%.1f\">%s</text>\n", LEFT - 8, y + 4,
                report_bytes(at, text));
    }
}

/* The unit with the shortest name, where one scope has several: a scope's own rather than that of a tied weight. */
static const char *segment_name(const report_picture *p, size_t column, size_t past) {
    const char *shortest = "";
    for (size_t i = column; i < past; i++) {
        const report_point *point = report_column_point(&p->order->columns[i]);
        const char *name = report_name(p->run, point->unit);
        if (*name && (!*shortest || report_length(name) < report_length(shortest)))
            shortest = name;
    }
    return shortest;
}

typedef struct {
    int upright;    /* names run up the page */
    int name_space; /* height of the names below the plot */
} axis_layout;

/* Names lie flat when each fits its segment, else they stand. */
static axis_layout lay_out(const report_picture *p) {
    size_t longest = 0;
    int flat = 1;
    for (size_t i = 0, past; i < p->order->n; i = past) {
        past = report_order_segment(p->order, i);
        size_t length = report_length(segment_name(p, i, past));
        length = length > NAME_MOST ? NAME_MOST : length;
        longest = length > longest ? length : longest;
        if (x_of(p, (double)past) - x_of(p, (double)i) < (double)(length * LETTER + 6))
            flat = 0;
    }
    if (longest == 0)
        return (axis_layout){ 0, 6 };
    return flat ? (axis_layout){ 0, 22 } : (axis_layout){ 1, (int)longest * LETTER + 16 };
}

static void put_segment_name(FILE *out, const char *name, double x, int upright) {
    if (upright)
        fprintf(out, "<text class=\"muted small end\" transform=\"translate(%.1f %d) rotate(-90)\">", x + 4,
                BOTTOM + 8);
    else
        fprintf(out, "<text class=\"muted small middle\" x=\"%.1f\" y=\"%d\">", x, BOTTOM + 17);
    report_escape_cut(out, name, NAME_MOST);
    fputs("</text>\n", out);
}

/* A standing name that would touch the one before it is left out. */
static void put_segments(FILE *out, const report_picture *p, const axis_layout *axis) {
    double last = 0;
    for (size_t i = 0, past; i < p->order->n; i = past) {
        past = report_order_segment(p->order, i);
        double x = (x_of(p, (double)i) + x_of(p, (double)past)) / 2;
        if (axis->upright && x - last < STANDING)
            continue;
        fprintf(out, "<path class=\"edge none\" d=\"M%.1f %dv4\"/>", x, BOTTOM);
        put_segment_name(out, segment_name(p, i, past), x, axis->upright);
        last = x;
    }
}

static int same_band(const report_picture *p, size_t a, size_t b) {
    const report_column *columns = p->order->columns;
    return p->order->phases[a] == p->order->phases[b] &&
           report_column_point(&columns[a])->pass == report_column_point(&columns[b])->pass;
}

/* Below the names: forward, backward, optimizer, with a bracket each. A pass other than training is named. */
static void put_bands(FILE *out, const report_picture *p, int y) {
    static const char *const names[] = { "", "forward", "backward", "optimizer", "" };
    for (size_t i = 0, past; i < p->order->n; i = past) {
        const report_point *point = report_column_point(&p->order->columns[i]);
        const char *pass = report_name(p->run, point->pass), *name = names[p->order->phases[i]];
        for (past = i + 1; past < p->order->n && same_band(p, i, past);)
            past++;
        double from = x_of(p, (double)i) + 1.5, to = x_of(p, (double)past) - 1.5;
        fprintf(out, "<path class=\"edge none\" d=\"M%.1f %dv-4H%.1fv4\"/>", from, y, to);
        if (i > 0)
            fprintf(out, "<path class=\"rule none\" stroke-dasharray=\"2 3\" d=\"M%.1f %dV%d\"/>", from - 1.5, TOP,
                    BOTTOM);
        if (to - from < (double)report_length(name) * LETTER)
            continue;
        fprintf(out, "<text class=\"ink small middle\" x=\"%.1f\" y=\"%d\">%s", (from + to) / 2, y + 14, name);
        if (*pass && (pass[0] != 't' || pass[1] != 'r') && (to - from) > 120) {
            fputs(*name ? " (" : "", out);
            report_escape_cut(out, pass, NAME_MOST);
            fputs(*name ? ")" : "", out);
        }
        fputs("</text>\n", out);
    }
}

/* ---- areas and the line ------------------------------------------------------------------------ */
static uint64_t level(const report_stack *s, int category) {
    uint64_t sum = 0;
    for (int c = 0; s && c <= category; c++)
        sum += s->bytes[c];
    return sum;
}

static int any_of(const report_picture *p, int category) {
    for (size_t i = 0; i < p->order->n; i++) {
        const report_stack *s = stack_at(p, p->order->area, i);
        if (s && s->bytes[category])
            return 1;
    }
    return 0;
}

/* One edge of an area, as steps, from left to right or back; equal neighbours are one step. */
static void put_edge(FILE *out, const report_picture *p, int category, int back) {
    size_t width = bundle(p), n = (p->order->n + width - 1) / width;
    for (size_t k = 0; k < n; k++) {
        size_t i = (back ? n - 1 - k : k) * width, past = i + width < p->order->n ? i + width : p->order->n;
        uint64_t here = level(drawn_stack(p, p->order->area, i), category);
        if (k + 1 < n) {
            size_t next = back ? i - width : i + width;
            if (level(drawn_stack(p, p->order->area, next), category) == here)
                continue;
        }
        fprintf(out, "V%.1fH%.1f", y_of(p, here), x_of(p, (double)(back ? i : past)));
    }
}

static void put_area(FILE *out, const report_picture *p, int category) {
    const char *pattern = report_category_pattern(category);
    for (int layer = 0; layer < (pattern ? 2 : 1); layer++) {
        if (layer == 0)
            fprintf(out, "<path class=\"c%d seam\" stroke-width=\".6\" data-category=\"%s\" d=\"M%d %d", category,
                    report_category_keys[category], LEFT, BOTTOM);
        else
            fprintf(out, "<path fill=\"url(#%s)\" d=\"M%d %d", pattern, LEFT, BOTTOM);
        put_edge(out, p, category, 0);
        put_edge(out, p, category - 1, 1);
        fputs("Z\"/>\n", out);
    }
}

static int has_line(const report_picture *p) {
    return p->order->area == REPORT_PLANNED && p->run->n_points[REPORT_MEASURED] > 0;
}

static void put_measured_path(FILE *out, const report_picture *p) {
    size_t width = bundle(p);
    int down = 0;
    fputs("<path class=\"line none\" data-source=\"measured\" stroke-width=\"1.4\" d=\"", out);
    for (size_t i = 0; i < p->order->n; i += width) {
        const report_stack *s = drawn_stack(p, REPORT_MEASURED, i);
        size_t past = i + width < p->order->n ? i + width : p->order->n;
        if (s && down)
            fprintf(out, "V%.1f", y_of(p, s->total));
        else if (s)
            fprintf(out, "M%.1f %.1f", x_of(p, (double)i), y_of(p, s->total));
        if (s)
            fprintf(out, "H%.1f", x_of(p, (double)past));
        down = s != NULL;
    }
    fputs("\"/>\n", out);
}

/* ---- marks ------------------------------------------------------------------------------------- */
static void put_level_line(FILE *out, const report_picture *p, uint64_t bytes, int budget) {
    if (bytes == 0 || bytes > p->top)
        return;
    fprintf(out, "<path class=\"%s none\" stroke-dasharray=\"%s\" stroke-width=\"%s\" d=\"M%d %.1fH%d\"/>",
            budget ? "budget" : "edge", budget ? "7 4" : "2 3", budget ? "1.6" : "1", LEFT, y_of(p, bytes),
            LEFT + PLOT_WIDTH);
}

/* Above its line, or below where the line of `other` would strike it through. */
static void put_level_label(FILE *out, const report_picture *p, uint64_t bytes, uint64_t other, const char *what,
                            int budget) {
    /* The label at the right makes room for the peak's mark. */
    int late = x_of(p, (double)p->order->peak[p->domain] + 1) > LEFT + 0.78 * PLOT_WIDTH;
    int x = budget ? LEFT + 6 : late ? LEFT + PLOT_WIDTH * 7 / 10 : LEFT + PLOT_WIDTH - 4;
    char text[32];
    double y = y_of(p, bytes), above = y - y_of(p, other);
    int struck = other && other <= p->top && above > 0 && above < 20;
    if (bytes == 0 || bytes > p->top)
        return;
    fprintf(out, "<text class=\"%s small halo\" x=\"%d\" y=\"%.1f\">%s %s</text>\n",
            budget ? "budget-text strong" : "muted end", x, struck ? y + 13 : y - 5, what, report_bytes(bytes, text));
}

static void put_levels(FILE *out, const report_picture *p, uint64_t obtained, const char *name) {
    uint64_t budget = p->run->budget[p->domain];
    put_level_line(out, p, obtained, 0);
    put_level_line(out, p, budget, 1);
    put_level_label(out, p, obtained, budget, name, 0);
    put_level_label(out, p, budget, obtained, "budget", 1);
}

static const report_stack *peak_stack(const report_picture *p) {
    return stack_at(p, p->order->area, p->order->peak[p->domain]);
}

/* ", after pre-backward of h.0": the point that the peak is at, or the last one before it. */
static void put_peak_place(FILE *out, const report_picture *p) {
    size_t i = p->order->peak[p->domain];
    const report_point *point = report_column_point(&p->order->columns[i]);
    fputs(", ", out);
    if (point->point != REPORT_PEAK || i == 0) {
        report_point_text(out, p->run, point);
        return;
    }
    fputs("later than ", out);
    report_point_text(out, p->run, report_column_point(&p->order->columns[i - 1]));
}

static void put_peak(FILE *out, const report_picture *p) {
    const report_stack *peak = peak_stack(p);
    double x = x_of(p, (double)p->order->peak[p->domain] + 0.5);
    const char *anchor = x < LEFT + PLOT_WIDTH * 0.3 ? "" : x > LEFT + PLOT_WIDTH * 0.7 ? "end" : "middle";
    char text[32];
    if (!peak || peak->total == 0)
        return;
    double y = y_of(p, peak->total);
    fprintf(out, "<path class=\"line none\" d=\"M%.1f %dV%.1f\"/>", x, TOP - 4, y - 4);
    fprintf(out, "<circle class=\"ink seam\" stroke-width=\"1.5\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>", x, y);
    fprintf(out, "<text class=\"ink small strong %s\" x=\"%.1f\" y=\"%d\">most alive %s", anchor, x, TOP - 9,
            report_bytes(peak->total, text));
    put_peak_place(out, p);
    fputs("</text>\n", out);
}

/* ---- the panel at the right: the legend, with what is alive at the peak --------------------------- */
/* Bytes that the device gave, or would give, beyond those alive: places that nothing fits, and pages. */
static uint64_t obtained_bytes(const report_picture *p) {
    uint64_t measured = p->run->measured_peak[p->domain];
    return measured ? measured : p->run->planned_peak[p->domain];
}

static const char *obtained_name(const report_picture *p) {
    return p->run->measured_peak[p->domain] ? "obtained" : "to obtain";
}

static int panel_rows(const report_picture *p) {
    int rows = 2 + has_line(p) + 2 * (obtained_bytes(p) > 0);
    for (int c = 0; c < REPORT_CATEGORIES; c++)
        rows += any_of(p, c);
    return rows;
}

static int put_panel_row(FILE *out, int y, const char *name, uint64_t bytes, const char *class) {
    char text[32];
    fprintf(out, "<text class=\"ink %s\" x=\"%d\" y=\"%d\">%s</text>", class, PANEL + 20, y, name);
    fprintf(out, "<text class=\"ink end %s\" x=\"%d\" y=\"%d\">%s</text>\n", class, PANEL_END, y,
            report_bytes(bytes, text));
    return y + ROW;
}

static void put_swatch(FILE *out, int y, int category) {
    const char *pattern = report_category_pattern(category);
    fprintf(out, "<rect class=\"c%d\" x=\"%d\" y=\"%d\" width=\"12\" height=\"12\"/>", category, PANEL, y - 10);
    if (pattern)
        fprintf(out, "<rect fill=\"url(#%s)\" x=\"%d\" y=\"%d\" width=\"12\" height=\"12\"/>", pattern, PANEL, y - 10);
}

/* Below the categories: the sum, what was measured, and what was obtained. */
static void put_panel_sums(FILE *out, const report_picture *p, int y) {
    const report_stack *peak = peak_stack(p), *measured = stack_at(p, REPORT_MEASURED, p->order->peak[p->domain]);
    uint64_t total = peak ? peak->total : 0, obtained = obtained_bytes(p);
    fprintf(out, "<path class=\"edge none\" d=\"M%d %dH%d\"/>\n", PANEL, y - 12, PANEL_END);
    y = put_panel_row(out, y + 3, "in all", total, "strong");
    if (has_line(p)) {
        fprintf(out, "<path class=\"line none\" stroke-width=\"1.8\" d=\"M%d %dh12\"/>", PANEL, y - 4);
        y = put_panel_row(out, y, "measured", measured ? measured->total : 0, "");
    }
    if (obtained < total || obtained == 0)
        return;
    y = put_panel_row(out, y, "fragmentation", obtained - total, "");
    fprintf(out, "<path class=\"edge none\" stroke-dasharray=\"2 3\" d=\"M%d %dh12\"/>", PANEL, y - 4);
    put_panel_row(out, y, obtained_name(p), obtained, "");
}

static void put_panel(FILE *out, const report_picture *p) {
    const report_stack *peak = peak_stack(p);
    int y = TOP + 10;
    fprintf(out, "<text class=\"muted small\" x=\"%d\" y=\"%d\">alive at that instant, %s</text>\n", PANEL, TOP - 9,
            report_source_names[p->order->area]);
    for (int c = REPORT_CATEGORIES - 1; c >= 0; c--) {
        if (!any_of(p, c))
            continue;
        put_swatch(out, y, c);
        y = put_panel_row(out, y, report_category_name(c), peak ? peak->bytes[c] : 0, "");
    }
    put_panel_sums(out, p, y);
}

/* ---- the whole --------------------------------------------------------------------------------- */
static int put_setting(FILE *out, const report_run *run, int i, const char *before, const char *after, int some) {
    if (!run->settings[i][0])
        return some;
    fputs(some ? " · " : "", out);
    fputs(before, out);
    report_escape_cut(out, run->settings[i], 30);
    fputs(after, out);
    return 1;
}

static void put_heading(FILE *out, const report_picture *p) {
    const report_run *run = p->run;
    const int one_rank = run->settings[1][0] == '1' && !run->settings[1][1];
    int some;
    fprintf(out, "<text class=\"ink title\" x=\"8\" y=\"20\">%s memory of a rank over one step</text>",
            p->domain == REPORT_DEVICE ? "Device" : "Host");
    fputs("<text class=\"muted\" x=\"8\" y=\"39\">", out);
    some = put_setting(out, run, 0, "", "", 0);
    some = put_setting(out, run, 1, "", one_rank ? " rank" : " ranks", some);
    some = put_setting(out, run, 6, "strategy ", "", some);
    some = put_setting(out, run, 5, "wrap ", "", some);
    some = put_setting(out, run, 3, "offload ", "", some);
    some = put_setting(out, run, 4, "", "", some);
    put_setting(out, run, 8, "activations ", "", some);
    fputs("</text>\n", out);
}

static void put_description(FILE *out, const report_picture *p) {
    const report_stack *peak = peak_stack(p);
    char text[32];
    fprintf(out, "<title id=\"t%d\">%s memory over one step</title><desc id=\"d%d\">Areas stacked by category, %s.",
            p->number, p->domain == REPORT_DEVICE ? "Device" : "Host", p->number, report_source_names[p->order->area]);
    if (peak) {
        fprintf(out, " Peak %s", report_bytes(peak->total, text));
        put_peak_place(out, p);
        fprintf(out, ", column %zu of %zu:", p->order->peak[p->domain] + 1, p->order->n);
    }
    for (int c = 0; peak && c < REPORT_CATEGORIES; c++)
        if (peak->bytes[c])
            fprintf(out, " %s %s.", report_category_name(c), report_bytes(peak->bytes[c], text));
    fputs("</desc>\n", out);
}

int report_svg_height(const report_picture *p) {
    axis_layout axis = lay_out(p);
    int plot = BOTTOM + axis.name_space + 30, panel = TOP + 10 + ROW * panel_rows(p) + 10;
    return (plot > panel ? plot : panel) - (p->bare ? HEADING : 0);
}

void report_svg_memory(FILE *out, const report_picture *p, int y) {
    axis_layout axis = lay_out(p);
    int height = report_svg_height(p);
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" y=\"%d\" width=\"%d\" height=\"%d\" viewBox=\"0 %d %d %d\" "
            "role=\"img\" aria-labelledby=\"t%d d%d\">",
            y, REPORT_SVG_WIDTH, height, p->bare ? HEADING : 0, REPORT_SVG_WIDTH, height, p->number, p->number);
    put_description(out, p);
    if (!p->bare)
        put_heading(out, p);
    put_bytes_axis(out, p);
    for (int c = 0; c < REPORT_CATEGORIES; c++)
        if (any_of(p, c))
            put_area(out, p, c);
    put_segments(out, p, &axis);
    put_bands(out, p, BOTTOM + axis.name_space + 8);
    if (has_line(p))
        put_measured_path(out, p);
    put_levels(out, p, obtained_bytes(p), obtained_name(p));
    put_peak(out, p);
    put_panel(out, p);
    fputs("</svg>\n", out);
}

uint64_t report_shared_top(const report_run *runs, const report_order *orders, size_t n, size_t r, int domain) {
    uint64_t own = report_svg_top(&runs[r], &orders[r], domain), top = own ? own : 1;
    for (size_t i = 0; i < n; i++) {
        uint64_t other = report_svg_top(&runs[i], &orders[i], domain);
        if (other > top && other / 4 <= own)
            top = other;
    }
    return top;
}

/* The pictures to draw, below one another; out null: only their height. */
static int put_pictures(FILE *out, const report_run *runs, const report_order *orders, size_t n) {
    int y = 0, number = 0;
    for (int d = 0; d < REPORT_DOMAINS; d++) {
        for (size_t i = 0; i < n; i++) {
            report_picture p = { &runs[i], &orders[i], d, 0, report_shared_top(runs, orders, n, i, d), number++ };
            if (!report_svg_wanted(&runs[i], &orders[i], d))
                continue;
            if (out)
                report_svg_memory(out, &p, y);
            y += report_svg_height(&p) + 12;
        }
    }
    return y;
}

void report_svg_file(FILE *out, const report_run *runs, const report_order *orders, size_t n) {
    int height = put_pictures(NULL, runs, orders, n);
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\">\n<style>\n",
            REPORT_SVG_WIDTH, height, REPORT_SVG_WIDTH, height);
    report_svg_style(out);
    fputs("</style>\n", out);
    report_svg_defs(out);
    fprintf(out, "<rect class=\"page\" width=\"%d\" height=\"%d\"/>\n", REPORT_SVG_WIDTH, height);
    put_pictures(out, runs, orders, n);
    fputs("</svg>\n", out);
}
