/* SPDX-License-Identifier: BSD-3-Clause */
/* The lines that a source logs which is included behind this header: how many, the last one, and its level. */
#ifndef TEST_LOGGED_H
#define TEST_LOGGED_H
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "core/base/log.h"

static struct {
    int n;
    int32_t level;
    char text[4096];
} logged;

#define tess__log take_log
static inline void take_log(int32_t level, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(logged.text, sizeof logged.text, format, args);
    va_end(args);
    logged.level = level;
    logged.n++;
}

/** Compares with what was logged since the last time, and forgets it. After cmocka.h. */
static inline void expect_logged(int n, int32_t level, const char *last) {
    assert_string_equal(logged.text, last);
    assert_int_equal(logged.n, n);
    assert_int_equal(logged.level, n ? level : 0);
    memset(&logged, 0, sizeof logged);
}
#endif
