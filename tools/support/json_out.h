/* SPDX-License-Identifier: BSD-3-Clause */
/* Writes JSON to a stream, value by value, with no library: what `--json` prints. The caller keeps the order right
 * (a key for each member of an object, null as the key in an array); commas, escapes and numbers are done here. */
#ifndef TOOL_JSON_OUT_H
#define TOOL_JSON_OUT_H
#include <stdint.h>
#include <stdio.h>

typedef struct {
    FILE *out;
    uint32_t depth;
    uint64_t filled; /* bit d: the container at depth d has a value already; 64 levels */
} json_out;

void json_init(json_out *, FILE *out);
void json_object_begin(json_out *, const char *key);
void json_object_end(json_out *);
void json_array_begin(json_out *, const char *key);
void json_array_end(json_out *);
/** Writes text in UTF-8, invalid bytes as U+FFFD, and a null pointer as null. */
void json_string(json_out *, const char *key, const char *text);
void json_int(json_out *, const char *key, int64_t value);
void json_uint(json_out *, const char *key, uint64_t value);
/** Writes 17 digits, so that a reader gets the same double; null if it is not finite. */
void json_double(json_out *, const char *key, double value);
void json_bool(json_out *, const char *key, int value);
void json_null(json_out *, const char *key);
/** Ends one object of a stream of lines: newline and flush. -1 when anything could not be written, else 0. */
int json_line(json_out *);

/** The length of the UTF-8 sequence at p, or 0: no overlong forms, no surrogates, nothing past U+10FFFF. */
int json_utf8_length(const unsigned char *p);
#endif
