/* SPDX-License-Identifier: BSD-3-Clause */
/* A line in which a test's stand-ins write down their calls, one behind another. */
#ifndef TEST_SAID_H
#define TEST_SAID_H
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static char said_so_far[2048];

static inline void say(const char *format, ...) {
    size_t at = strlen(said_so_far);
    va_list args;
    va_start(args, format);
    vsnprintf(said_so_far + at, sizeof said_so_far - at, format, args);
    va_end(args);
}

/** The last of what was said, each of which ends with "; ", begins so. After cmocka.h. */
static inline void expect_last(const char *call) {
    const char *last = said_so_far;
    for (const char *end = strstr(last, "; "); end && end[2]; end = strstr(last, "; "))
        last = end + 2;
    assert_int_equal(strncmp(last, call, strlen(call)), 0);
}

/** Compares with what was said since the last time, and forgets it. After cmocka.h. */
static inline void expect_said(const char *want) {
    assert_string_equal(said_so_far, want);
    said_so_far[0] = 0;
}

/** Of what was said since the last time, these came in this order; forgets all of it. */
static inline void said_in_order(const char *const *texts, int first) {
    const char *from = said_so_far;
    for (; *texts; first = 0, texts++) {
        const char *found = strstr(from, *texts);
        if (!found || (first && found != from))
            fail_msg("expected \"%s\"%s in \"%s\"", *texts, first ? " first" : "", from);
        from = found + strlen(*texts);
    }
    said_so_far[0] = 0;
}
#define expect_said_among(...) said_in_order((const char *const[]){ __VA_ARGS__, NULL }, 0)
#define expect_said_first(...) said_in_order((const char *const[]){ __VA_ARGS__, NULL }, 1)
#endif
