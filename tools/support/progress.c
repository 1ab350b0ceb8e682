/* SPDX-License-Identifier: BSD-3-Clause */
#include "progress.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { WIDE_BAR = 24, NARROW_BAR = 10 };
static const double redraw_seconds = 0.1, line_seconds = 15;

int64_t tool_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

double tool_seconds(void) {
    return 1e-9 * (double)tool_now_ns();
}

const char *tool_bytes_text(uint64_t bytes, char out[32]) {
    static const char *const units[] = { "bytes", "KiB", "MiB", "GiB", "TiB" };
    double value = (double)bytes;
    int unit = 0;
    for (; value >= 1000 && unit < 4; unit++)
        value /= 1024;
    snprintf(out, 32, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return out;
}

static int is_terminal(FILE *out) {
    const char *term = getenv("TERM");
    return isatty(fileno(out)) && !(term && strcmp(term, "dumb") == 0);
}

void tool_progress_start(tool_progress *p, FILE *out, int quiet, uint64_t total, const char *unit) {
    const char *no_color = getenv("NO_COLOR");
    *p = (tool_progress){ .out = out, .quiet = quiet, .total = total ? total : 1, .unit = unit, .next_line = 1 };
    p->terminal = is_terminal(out);
    p->color = p->terminal && !(no_color && *no_color);
    p->started = tool_seconds();
}

static void append(char text[256], const char *format, ...) {
    size_t n = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + n, 256 - n, format, args);
    va_end(args);
}

/* Writes times as "1:02:03", "2:03" or "3 s". */
static void append_left(char text[256], double seconds) {
    uint64_t s = (uint64_t)(seconds + 0.5), hours = s / 3600, minutes = s / 60 % 60;
    if (hours)
        append(text, "%" PRIu64 ":%02" PRIu64 ":%02" PRIu64, hours, minutes, s % 60);
    else if (minutes)
        append(text, "%" PRIu64 ":%02" PRIu64, minutes, s % 60);
    else
        append(text, "%" PRIu64 " s", s);
}

/* Writes "step 12/90 loss 2.3012 norm 0.91 812 samples/s 41 % of peak 12 s left device 9.1 MiB, peak 12.4 MiB". If
 * narrow, it writes fewer words, to fit 80 columns. */
static void describe(const tool_progress *p, const tool_progress_point *at, double now, int narrow, char text[256]) {
    char live[32], peak[32];
    double seconds = now - p->started;
    snprintf(text, 256, narrow ? "%" PRIu64 "/%" PRIu64 " loss %.4f" : "step %" PRIu64 "/%" PRIu64 "  loss %.4f",
             at->step, p->total, at->loss);
    if (!isnan(at->grad_norm) && !narrow)
        append(text, "  norm %.3g", at->grad_norm);
    if (!isnan(at->loss_scale) && !narrow)
        append(text, at->skipped ? "  scale %.9g, %" PRIu64 " skipped" : "  scale %.9g", at->loss_scale, at->skipped);
    append(text, narrow ? " %.0f %s/s" : "  %.0f %s/s", seconds > 0 ? (double)at->units / seconds : 0.0, p->unit);
    if (!isnan(at->utilisation) && !narrow)
        append(text, "  %.0f %% of peak", 100 * at->utilisation);
    if (at->step > p->first && at->step < p->total) {
        append(text, narrow ? " " : "  ");
        append_left(text, seconds / (double)(at->step - p->first) * (double)(p->total - at->step));
        append(text, " left");
    }
    if (at->device_peak_bytes)
        append(text, narrow ? " %s, peak %s" : "  device %s, peak %s", tool_bytes_text(at->device_bytes, live),
               tool_bytes_text(at->device_peak_bytes, peak));
}

static void draw_bar(tool_progress *p, const tool_progress_point *at, double now) {
    char text[256], bar[WIDE_BAR + 1];
    struct winsize size = { 0 };
    int columns = ioctl(fileno(p->out), TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
    int narrow = columns < 110, width = narrow ? NARROW_BAR : WIDE_BAR;
    uint64_t step = at->step < p->total ? at->step : p->total;
    int filled = (int)((double)width * (double)step / (double)p->total);
    for (int i = 0; i < width; i++)
        bar[i] = i < filled ? '#' : '.';
    bar[width] = '\0';
    describe(p, at, now, narrow, text);
    fprintf(p->out, "\r%s%s%s %3.0f%% %.*s\033[K", p->color ? "\033[32m" : "", bar, p->color ? "\033[0m" : "",
            100.0 * (double)step / (double)p->total, columns - width - 7, text);
    fflush(p->out);
    p->bar_drawn = 1;
}

void tool_progress_show(tool_progress *p, const tool_progress_point *at) {
    if (p->quiet)
        return;
    double now = tool_seconds();
    int last = at->step >= p->total;
    if (p->terminal) {
        if (!last && now - p->last_shown < redraw_seconds)
            return;
        draw_bar(p, at, now);
    } else {
        if (!last && at->step < p->next_line && now - p->last_shown < line_seconds)
            return;
        char text[256];
        describe(p, at, now, 0, text);
        fprintf(p->out, "%s\n", text);
        fflush(p->out);
        p->next_line = at->step + (p->total + 9) / 10;
    }
    p->last_shown = now;
}

void tool_progress_finish(tool_progress *p) {
    if (p->bar_drawn)
        fputs("\r\033[K", p->out);
    p->bar_drawn = 0;
    fflush(p->out);
}

void tool_progress_say(tool_progress *p, const char *format, ...) {
    if (p->quiet)
        return;
    tool_progress_finish(p);
    va_list args;
    va_start(args, format);
    vfprintf(p->out, format, args);
    va_end(args);
    fputc('\n', p->out);
    fflush(p->out);
}
