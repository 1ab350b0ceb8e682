/* SPDX-License-Identifier: BSD-3-Clause */
/* Shared by the harnesses: the input as a text or a file, and what a refusal must look like. */
#ifndef FUZZ_INPUT_H
#define FUZZ_INPUT_H
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/status.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/** The input with a zero behind it, in memory of its own; the caller frees it. */
static inline char *fuzz_text(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1);
    memcpy(text, data, size);
    text[size] = 0;
    return text;
}

/** A path whose file holds the input; the next call rewrites it. */
static inline const char *fuzz_file(const uint8_t *data, size_t size) {
    static char path[64];
    static int file = -1;
    if (file < 0 && (file = memfd_create("input", MFD_CLOEXEC)) < 0)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    if (ftruncate(file, 0) != 0 || pwrite(file, data, size, 0) != (ssize_t)size)
        abort();
    return path;
}

/** A refusal has a message, of one line; `before` is tess__fail_count() before the call. */
static inline void fuzz_check(int refused, uint64_t before) {
    if ((refused && tess__fail_count() == before) || (refused && strchr(tess_last_error(), '\n')))
        abort();
}
#endif
