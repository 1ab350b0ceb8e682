/* SPDX-License-Identifier: BSD-3-Clause */
/* One line of JSON as its top-level fields, in place: what reads the lines that `--json` writes. */
#ifndef TOOL_JSON_FIELDS_H
#define TOOL_JSON_FIELDS_H
#include "json_in.h"

enum { JSON_FIELDS_MOST = 64 };

typedef struct {
    const char *text;
    size_t bytes;
    struct {
        char key[48];
        size_t at; /* offset of the value */
    } fields[JSON_FIELDS_MOST];
    size_t n;
    const char *expected; /* after a failure: what the scanner expected at `wrong_at` */
    size_t wrong_at;
} json_fields;

/** Reads one object; `text` stays the caller's and must outlive the fields. Of equal keys the first counts; keys of 48
 * bytes and more are passed over. Returns 1, or 0 when it is no object, has more fields or is cut off. */
int json_fields_read(json_fields *, const char *text, size_t bytes);

/* Each returns 1 and sets *out, or 0 when there is no such field or its value is of another kind. */
int json_fields_text(const json_fields *, const char *key, char *out, size_t capacity);
int json_fields_uint(const json_fields *, const char *key, uint64_t *out);
int json_fields_double(const json_fields *, const char *key, double *out);
int json_fields_bool(const json_fields *, const char *key, int *out);
/** A value that is an object, as fields. */
int json_fields_object(const json_fields *, const char *key, json_fields *out);
/** Gives a scanner at the value, for lists and the like. */
int json_fields_at(const json_fields *, const char *key, json_in *out);
/** True if the field exists and is not null. */
int json_fields_has(const json_fields *, const char *key);
#endif
