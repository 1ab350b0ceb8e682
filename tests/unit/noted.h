/* SPDX-License-Identifier: BSD-3-Clause */
/* A stand-in's call that is written down, and may fail. */
#ifndef TEST_NOTED_H
#define TEST_NOTED_H
#include "core/base/status.h"
#include "tests/unit/said.h"

/** Writes down a call. Where its first word is one of these n, it fails; NULL is none. */
__attribute__((format(printf, 3, 4))) static inline tess_status noted(const char *const *fails, int n,
                                                                      const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    say("%s; ", text);
    const size_t word = strcspn(text, " ");
    for (int i = 0; i < n; i++)
        if (fails[i] && strlen(fails[i]) == word && !strncmp(fails[i], text, word))
            return tess__fail(TESS_E_DEVICE, "%s failed", fails[i]);
    return TESS_OK;
}
#endif
