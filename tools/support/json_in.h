/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads JSON in place, value by value, in the file's order. json_out.h writes it. */
#ifndef TOOL_JSON_IN_H
#define TOOL_JSON_IN_H
#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *text;
    size_t bytes, at;
    const char *expected; /* after a failure: the scanner expected this at `at` */
} json_in;

/* Each returns 1, or 0 after a failure. */

/** Skips white space and the character `c`. */
int json_in_char(json_in *, char c);
/** Skips white space. Returns 1 and skips `c` if it is next, else returns 0 without failing. */
int json_in_if(json_in *, char c);
/** Reads a string as UTF-8 with a null byte, of at most capacity - 1 bytes. It refuses null characters. If `out` is
 * null, it skips the string. */
int json_in_string(json_in *, char *out, size_t capacity);
/** Reads a whole number from 0 to 2^63 - 1. */
int json_in_uint(json_in *, uint64_t *out);
/** Skips any value, nested at most 32 deep. */
int json_in_skip(json_in *);
/** Returns 1 if only white space is left. */
int json_in_end(json_in *);
#endif
