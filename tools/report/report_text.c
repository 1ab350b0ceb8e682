/* SPDX-License-Identifier: BSD-3-Clause */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "tools/support/json_out.h"
#include "report.h"

/* ---- escaping ---------------------------------------------------------------------------------- */
/* One character at p: its bytes, 0 where there is no UTF-8. */
static size_t character(const char *p) {
    return (size_t)json_utf8_length((const unsigned char *)p);
}

/* Control characters, the two code points XML excludes, and what turns the direction of the text around it. */
static int unwelcome(const char *p, size_t n) {
    static const char *const refused[] = { "\xef\xbf\xbe", "\xef\xbf\xbf", "\xe2\x80\xaa", "\xe2\x80\xab",
                                           "\xe2\x80\xac", "\xe2\x80\xad", "\xe2\x80\xae", "\xe2\x81\xa6",
                                           "\xe2\x81\xa7", "\xe2\x81\xa8", "\xe2\x81\xa9" };
    if (n == 0 || (n == 1 && ((unsigned char)*p < 0x20 || *p == 0x7f)))
        return 1;
    if (n == 2 && (unsigned char)p[0] == 0xc2 && (unsigned char)p[1] < 0xa0)
        return 1; /* C1 controls */
    for (size_t i = 0; n == 3 && i < sizeof refused / sizeof refused[0]; i++)
        if (memcmp(p, refused[i], 3) == 0)
            return 1;
    return 0;
}

static void put_character(FILE *out, const char *p, size_t n) {
    static const char special[] = "&<>\"'";
    static const char *const entity[] = { "&amp;", "&lt;", "&gt;", "&quot;", "&#39;" };
    const char *at = n == 1 ? strchr(special, *p) : NULL;
    if (at)
        fputs(entity[at - special], out);
    else if (unwelcome(p, n))
        fputs("\xef\xbf\xbd", out);
    else
        fwrite(p, 1, n, out);
}

void report_escape_cut(FILE *out, const char *text, size_t most) {
    size_t left = report_length(text) > most ? most - 1 : most;
    int cut = left < most;
    for (const char *p = text; *p && left; left--) {
        size_t n = character(p);
        put_character(out, p, n);
        p += n ? n : 1;
    }
    if (cut)
        fputs("…", out);
}

void report_escape(FILE *out, const char *text) {
    report_escape_cut(out, text, SIZE_MAX);
}

size_t report_length(const char *text) {
    size_t length = 0;
    for (const char *p = text; *p; length++) {
        size_t n = character(p);
        p += n ? n : 1;
    }
    return length;
}

/* ---- numbers ----------------------------------------------------------------------------------- */
const char *report_bytes(uint64_t bytes, char out[32]) {
    static const char *const units[] = { "bytes", "KiB", "MiB", "GiB", "TiB", "PiB" };
    double value = (double)bytes;
    int unit = 0;
    for (; value >= 999.5 && unit < 5; unit++)
        value /= 1024;
    if (bytes == 0)
        snprintf(out, 32, "0");
    else if (unit == 0 || value == floor(value))
        snprintf(out, 32, "%.0f %s", value, units[unit]);
    else
        snprintf(out, 32, "%.*f %s", value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2, value, units[unit]);
    return out;
}

const char *report_grouped(uint64_t value, char out[32]) {
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%" PRIu64, value), at = 0;
    for (int i = 0; i < n; i++) {
        if (i && (n - i) % 3 == 0)
            out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = '\0';
    return out;
}

const char *report_seconds(double seconds, char out[32]) {
    static const char *const units[] = { "s", "ms", "µs", "ns" };
    int unit = 0;
    double value = seconds;
    for (; value != 0 && fabs(value) < 0.9995 && unit < 3; unit++)
        value *= 1000;
    if (value == 0)
        snprintf(out, 32, "0");
    else
        snprintf(out, 32, "%.*f %s", fabs(value) >= 99.95 ? 0 : fabs(value) >= 9.995 ? 1 : 2, value, units[unit]);
    return out;
}

uint64_t report_tick_bytes(uint64_t top) {
    uint64_t tick = 1;
    while (top / tick > 5)
        tick *= 2;
    return tick;
}

double report_tick_seconds(double top) {
    double tick = pow(10, floor(log10(top > 0 ? top : 1)) - 1);
    static const double factors[] = { 1, 2, 5, 10 };
    int i = 0;
    while (i < 3 && top / (tick * factors[i]) > 10)
        i++;
    return tick * factors[i];
}

/* ---- words ------------------------------------------------------------------------------------- */
const char *report_category_name(int category) {
    static const char *const names[REPORT_CATEGORIES] = { "sharded parameter",
                                                          "optimizer state",
                                                          "sharded gradient",
                                                          "buffer",
                                                          "unsharded parameter",
                                                          "unsharded gradient",
                                                          "activation",
                                                          "communication",
                                                          "input",
                                                          "temporary",
                                                          "fragmentation",
                                                          "other" };
    return names[category];
}

void report_point_text(FILE *out, const report_run *run, const report_point *p) {
    static const char *const names[] = { "pre-forward", "post-forward", "pre-backward", "post-backward", "optimizer" };
    if (p->point < REPORT_PEAK)
        fprintf(out, "%s %s", p->point % 2 ? "after" : "before", names[p->point / 2]);
    else if (p->point == REPORT_PEAK)
        fputs("peak", out);
    else
        report_escape(out, report_name(run, p->point_name));
    if (p->unit < 0)
        return;
    fputs(p->point == REPORT_PEAK ? ", " : " of ", out);
    report_escape_cut(out, report_name(run, p->unit), 60);
}
