/* SPDX-License-Identifier: BSD-3-Clause */
/* Writes the JSON that `--json` prints to a stream, value by value. The caller gives values in order: each member of an
 * object with a key, each element of an array with null. This adds commas and escapes. */
#ifndef TOOL_JSON_OUT_H
#define TOOL_JSON_OUT_H
#include <stdint.h>
#include <stdio.h>

typedef struct {
    FILE *out;
    uint32_t depth;
    uint64_t filled; /* bit d: the container at depth d has a value; at most 64 levels */
} json_out;

void json_init(json_out *, FILE *out);
void json_object_begin(json_out *, const char *key);
void json_object_end(json_out *);
void json_array_begin(json_out *, const char *key);
void json_array_end(json_out *);
/** Writes UTF-8 text. Invalid bytes become U+FFFD, and a null pointer becomes null. */
void json_string(json_out *, const char *key, const char *text);
void json_int(json_out *, const char *key, int64_t value);
void json_uint(json_out *, const char *key, uint64_t value);
/** Writes 17 digits, so that a reader gets the same double. It writes null if the value is not finite. */
void json_double(json_out *, const char *key, double value);
void json_bool(json_out *, const char *key, int value);
void json_null(json_out *, const char *key);
/** Ends one object of a stream of lines with a newline and flushes. Returns -1 if anything could not be written, else
 * 0. */
int json_line(json_out *);

/** Returns the length of the UTF-8 sequence at p, or 0 for overlong forms, surrogates and code points past U+10FFFF. */
int json_utf8_length(const unsigned char *p);
#endif
