/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads JSON in place, value by value, in the order in which it stands: the counterpart of json_out.h. */
#ifndef TOOL_JSON_IN_H
#define TOOL_JSON_IN_H
#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *text;
    size_t bytes, at;
    const char *expected; /* after a failure: what the scanner expected at `at` */
} json_in;

/* Each returns 1, or 0 after a failure. */

/** Passes over white space and the character `c`. */
int json_in_char(json_in *, char c);
/** Passes over white space; 1 if `c` is next (and is passed over), else 0 without failing. */
int json_in_if(json_in *, char c);
/** A string, unescaped to UTF-8 and ended by a null byte, of at most capacity - 1 bytes; null characters are refused.
 * `out` may be null: then it is passed over. */
int json_in_string(json_in *, char *out, size_t capacity);
/** A whole number from 0 to 2^63 - 1. */
int json_in_uint(json_in *, uint64_t *out);
/** Any value, nested at most 32 deep. */
int json_in_skip(json_in *);
/** True if only white space is left. */
int json_in_end(json_in *);
#endif
