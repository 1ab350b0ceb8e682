/* SPDX-License-Identifier: BSD-3-Clause */
#include "log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_int rank_shown = -1;
static atomic_int threshold = -1; /* -1: the environment has not been read yet */

static const char *const names[] = { "error", "warning", "info", "debug" };

/* Reads the environment itself: the options report through this file. An unknown word is reported by the options. */
static int read_threshold(void) {
    const char *text = secure_getenv("TESSERA_LOG");
    for (int i = 0; text && i < (int)(sizeof names / sizeof names[0]); i++)
        if (strcmp(text, names[i]) == 0)
            return i;
    return TESS_LOG_INFO;
}

int32_t tess__log_rank(void) {
    return atomic_load(&rank_shown);
}

void tess__log_set_rank(int32_t rank) {
    atomic_store(&rank_shown, rank);
}

int32_t tess__log_set_least(int32_t level) {
    return atomic_exchange(&threshold, level);
}

static int write_prefix(char *line, size_t capacity, int32_t level) {
    int rank = atomic_load(&rank_shown), at;
    if (rank >= 0)
        at = snprintf(line, capacity, "tessera[%d]: ", rank);
    else
        at = snprintf(line, capacity, "tessera: ");
    if (level != TESS_LOG_INFO)
        at += snprintf(line + at, capacity - (size_t)at, "%s: ", names[level]);
    return at;
}

void tess__log(int32_t level, const char *format, ...) {
    if (atomic_load(&threshold) < 0)
        atomic_store(&threshold, read_threshold());
    if (level < 0 || level > TESS_LOG_DEBUG || level > atomic_load(&threshold))
        return;
    char line[2048];
    int at = write_prefix(line, sizeof line, level);
    va_list args;
    va_start(args, format);
    int length = vsnprintf(line + at, sizeof line - (size_t)at - 1, format, args);
    va_end(args);
    if (length < 0)
        return;
    size_t end = strnlen(line, sizeof line - 2);
    for (size_t i = (size_t)at; i < end; i++)
        if (line[i] == '\n')
            line[i] = ' ';
    line[end] = '\n';
    ssize_t ignored = write(STDERR_FILENO, line, end + 1);
    (void)ignored;
}
