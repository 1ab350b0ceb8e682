/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads one line of JSON, such as `--json` writes, as its top-level fields. */
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
    const char *expected; /* after a failure: the scanner expected this at `wrong_at` */
    size_t wrong_at;
} json_fields;

/** Reads one object. `text` stays the caller's and must outlive the fields. Of equal keys the first counts. Keys of 48
 * bytes and more are ignored. Returns 0 if it is no object, has too many fields or is cut off. */
int json_fields_read(json_fields *, const char *text, size_t bytes);

/* Each returns 1 and sets *out, or returns 0 if the field is missing or of another kind. */
int json_fields_text(const json_fields *, const char *key, char *out, size_t capacity);
int json_fields_uint(const json_fields *, const char *key, uint64_t *out);
int json_fields_double(const json_fields *, const char *key, double *out);
int json_fields_bool(const json_fields *, const char *key, int *out);
/** Reads a value that is an object. */
int json_fields_object(const json_fields *, const char *key, json_fields *out);
/** Returns a scanner at the value, for arrays and other values. */
int json_fields_at(const json_fields *, const char *key, json_in *out);
/** Returns 1 if the field exists and is not null. */
int json_fields_has(const json_fields *, const char *key);
#endif
