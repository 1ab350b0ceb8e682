/* SPDX-License-Identifier: BSD-3-Clause */
/* A call at a wrong time or with wrong values, and its message. After cmocka.h. */
#ifndef TEST_REFUSED_H
#define TEST_REFUSED_H
#include <stdarg.h>
#include <stdio.h>
#include <tessera/tessera.h>

static inline void refuses(tess_status got, const char *format, ...) {
    char want[512];
    va_list args;
    va_start(args, format);
    vsnprintf(want, sizeof want, format, args);
    va_end(args);
    assert_int_equal(got, TESS_E_INVALID);
    assert_string_equal(tess_last_error(), want);
}
#endif
