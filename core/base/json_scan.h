/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads JSON in place, value by value, in the order in which it stands: enough for headers of data files. */
#ifndef TESS_JSON_SCAN_H
#define TESS_JSON_SCAN_H
#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *text;
    size_t bytes, at;
    const char *expected; /* after a failure: what should have stood at `at` */
} json_scan;

/* Each returns 1, or 0 after a failure. */

/** Passes over white space and the character `c`. */
int json_scan_char(json_scan *, char c);
/** Passes over white space; 1 if `c` is next (and is passed over), else 0 without failing. */
int json_scan_if(json_scan *, char c);
/** A string, unescaped to UTF-8 and ended by a null byte, of at most capacity - 1 bytes; null characters are refused.
 */
int json_scan_string(json_scan *, char *out, size_t capacity);
/** A whole number from 0 to 2^63 - 1. */
int json_scan_uint(json_scan *, uint64_t *out);
/** Any value, nested at most 32 deep. */
int json_scan_skip(json_scan *);
/** Only white space is left. */
int json_scan_end(json_scan *);
#endif
