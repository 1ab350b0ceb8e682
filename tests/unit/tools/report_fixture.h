/* SPDX-License-Identifier: BSD-3-Clause */
/* Reports from lines of JSON, and a checker of markup that the pictures and pages must pass. */
#ifndef TEST_REPORT_FIXTURE_H
#define TEST_REPORT_FIXTURE_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tools/report/report.h"

/* Two units, a forward and a backward each, a peak between two points, then the optimizer; planned and measured. */
#define FIXTURE_POINT(source, index, point, unit, device)                                                              \
    "{\"event\":\"ledger\",\"source\":\"" source "\",\"pass\":\"train\",\"index\":" #index ",\"point\":\"" point       \
    "\",\"unit\":" unit ",\"device\":{" device "},\"host\":{}}\n"
#define FIXTURE_REST "\"sharded_parameter\":1000,\"optimizer_state\":2000"
#define FIXTURE_LEDGER(source)                                                                                         \
    FIXTURE_POINT(source, 0, "before_pre_forward", "\"a\"", FIXTURE_REST)                                              \
    FIXTURE_POINT(source, 1, "after_pre_forward", "\"a\"", FIXTURE_REST ",\"unsharded_parameter\":500")                \
    FIXTURE_POINT(source, 2, "before_post_forward", "\"a\"",                                                           \
                  FIXTURE_REST ",\"unsharded_parameter\":500,\"activation\":700")                                      \
    FIXTURE_POINT(source, 3, "after_post_forward", "\"a\"", FIXTURE_REST ",\"activation\":700")                        \
    FIXTURE_POINT(source, 4, "before_pre_backward", "\"a\"", FIXTURE_REST ",\"activation\":700")                       \
    FIXTURE_POINT(source, 5, "after_pre_backward", "\"a\"",                                                            \
                  FIXTURE_REST ",\"unsharded_parameter\":500,\"unsharded_gradient\":500,\"activation\":700")           \
    FIXTURE_POINT(source, 6, "before_post_backward", "\"a\"",                                                          \
                  FIXTURE_REST ",\"unsharded_parameter\":500,\"unsharded_gradient\":500")                              \
    FIXTURE_POINT(source, 7, "after_post_backward", "\"a\"", FIXTURE_REST ",\"sharded_gradient\":250")                 \
    FIXTURE_POINT(source, 8, "before_optimizer", "\"a\"", FIXTURE_REST ",\"sharded_gradient\":250")                    \
    FIXTURE_POINT(source, 9, "after_optimizer", "\"a\"", FIXTURE_REST)                                                 \
    FIXTURE_POINT(source, 10, "peak", "null",                                                                          \
                  FIXTURE_REST ",\"unsharded_gradient\":500,\"sharded_gradient\":250,\"communication\":1500")
#define FIXTURE_PLAN                                                                                                   \
    "{\"event\":\"plan\",\"model\":\"toy\",\"ranks\":2,\"strategy\":\"full\",\"planned_peak_device_bytes\":6000,"      \
    "\"peak\":{\"pass\":\"train\",\"point\":\"before_post_backward\",\"unit\":\"a\"},\"device_memory_bytes\":7000,"    \
    "\"fits\":true}\n"
#define FIXTURE_SPAN(source, lane, op, start, seconds)                                                                 \
    "{\"event\":\"span\",\"source\":\"" source "\",\"step\":2,\"lane\":\"" lane "\",\"op\":\"" op                      \
    "\",\"unit\":\"a\",\"start\":" #start ",\"seconds\":" #seconds "}\n"

static inline tess_status fixture_read(const char *text, report_run *out) {
    FILE *in = fmemopen((void *)text, strlen(text), "r");
    assert_non_null(in);
    tess_status status = report_read(in, "runs/toy.json", out);
    fclose(in);
    return status;
}

/* What a report of one run writes; the caller frees it. */
static inline char *fixture_render(const char *text, int format) {
    report_run run;
    report_order order;
    char *out = NULL;
    size_t bytes = 0;
    assert_int_equal(fixture_read(text, &run), TESS_OK);
    assert_int_equal(report_order_make(&run, &order), TESS_OK);
    FILE *to = open_memstream(&out, &bytes);
    assert_non_null(to);
    if (format == REPORT_SVG)
        report_svg_file(to, &run, &order, 1);
    else if (format == REPORT_TRACE)
        report_trace(to, &run, &order, 1);
    else
        report_html(to, &run, &order, 1);
    assert_int_equal(fclose(to), 0);
    report_order_free(&order);
    report_run_free(&run);
    return out;
}

/* ---- well-formed markup ------------------------------------------------------------------------ */
typedef struct {
    char names[64][32];
    int depth;
} fixture_tags;

static inline const char *fixture_attributes(const char *p) {
    for (;;) {
        while (isspace((unsigned char)*p))
            p++;
        if (!isalpha((unsigned char)*p))
            return p;
        while (isalnum((unsigned char)*p) || strchr("-:", *p))
            p++;
        if (p[0] != '=' || p[1] != '"')
            return NULL;
        for (p += 2; *p && *p != '"'; p++)
            if (*p == '<')
                return NULL;
        if (*p++ != '"')
            return NULL;
    }
}

static inline const char *fixture_tag(const char *p, fixture_tags *t) {
    char name[32] = "";
    int close = *p == '/', n = 0;
    if (strncmp(p, "!DOCTYPE html>", 14) == 0)
        return p + 14;
    for (p += close; (isalnum((unsigned char)*p)) && n < 31; p++)
        name[n++] = *p;
    if (n == 0 || !(p = fixture_attributes(p)))
        return NULL;
    if (close)
        return *p == '>' && t->depth > 0 && strcmp(t->names[--t->depth], name) == 0 ? p + 1 : NULL;
    if (p[0] == '/' && p[1] == '>')
        return p + 2;
    if (*p != '>' || t->depth == 64)
        return NULL;
    strcpy(t->names[t->depth++], name);
    return p + 1;
}

/* Null when every element is closed in turn and text has only known entities; else where it goes wrong. */
static inline const char *fixture_malformed(const char *text) {
    static const char *const entities[] = { "&amp;", "&lt;", "&gt;", "&quot;", "&#39;" };
    fixture_tags tags = { .depth = 0 };
    for (const char *p = text; *p;) {
        const char *here = p;
        if (*p == '<') {
            if (!(p = fixture_tag(p + 1, &tags)))
                return here;
        } else if (*p == '&') {
            size_t i = 0;
            while (i < 5 && strncmp(p, entities[i], strlen(entities[i])) != 0)
                i++;
            if (i == 5)
                return here;
            p++;
        } else {
            if ((unsigned char)*p < 0x20 && *p != '\n' && *p != '\t')
                return here;
            p++;
        }
    }
    return tags.depth ? "the end" : NULL;
}

static inline void fixture_check_markup(const char *text) {
    const char *bad = fixture_malformed(text);
    if (bad)
        fail_msg("malformed at: %.80s", bad);
}

static inline int fixture_count(const char *text, const char *what) {
    int n = 0;
    for (const char *p = text; (p = strstr(p, what)); p += strlen(what))
        n++;
    return n;
}
#endif
