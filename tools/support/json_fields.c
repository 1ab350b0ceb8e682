/* SPDX-License-Identifier: BSD-3-Clause */
#include "json_fields.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int fail(json_fields *f, const json_in *s) {
    f->expected = s->expected ? s->expected : "an object";
    f->wrong_at = s->at;
    return 0;
}

static int find(const json_fields *f, const char *key) {
    for (size_t i = 0; i < f->n; i++)
        if (strcmp(f->fields[i].key, key) == 0)
            return (int)i;
    return -1;
}

/* Reads a key and notes where its value begins. The key is unescaped, or "" if it is longer than any key we look up. */
static int read_field(json_fields *f, json_in *s) {
    char key[sizeof f->fields[0].key] = "";
    json_in ahead = *s;
    int fits = json_in_string(&ahead, key, sizeof key);
    if (!json_in_string(s, NULL, 0) || !json_in_char(s, ':'))
        return 0;
    size_t at = s->at;
    if (!json_in_skip(s))
        return 0;
    if (!fits || find(f, key) >= 0)
        return 1;
    if (f->n == JSON_FIELDS_MOST) {
        s->expected = "at most 64 fields";
        return 0;
    }
    memcpy(f->fields[f->n].key, key, sizeof key);
    f->fields[f->n++].at = at;
    return 1;
}

static int read_object(json_fields *f, json_in *s) {
    if (!json_in_char(s, '{'))
        return 0;
    if (json_in_if(s, '}'))
        return 1;
    do {
        if (!read_field(f, s))
            return 0;
    } while (json_in_if(s, ','));
    return json_in_char(s, '}');
}

int json_fields_read(json_fields *f, const char *text, size_t bytes) {
    json_in s = { .text = text, .bytes = bytes };
    f->text = text;
    f->bytes = bytes;
    f->n = 0;
    f->expected = NULL;
    return read_object(f, &s) && json_in_end(&s) ? 1 : fail(f, &s);
}

int json_fields_at(const json_fields *f, const char *key, json_in *s) {
    int i = find(f, key);
    if (i < 0)
        return 0;
    *s = (json_in){ .text = f->text, .bytes = f->bytes, .at = f->fields[i].at };
    while (s->at < s->bytes && strchr(" \t\r\n", s->text[s->at]))
        s->at++;
    return s->at < s->bytes;
}

int json_fields_text(const json_fields *f, const char *key, char *out, size_t capacity) {
    json_in s;
    return json_fields_at(f, key, &s) && s.text[s.at] == '"' && json_in_string(&s, out, capacity);
}

/* Copies a number, true, false or null. Returns 0 if the value is something else or too long. */
static size_t bare_word(const json_fields *f, const char *key, char out[48]) {
    json_in s;
    size_t n = 0;
    if (!json_fields_at(f, key, &s))
        return 0;
    while (s.at + n < s.bytes && n < 47 && !strchr(" \t\r\n,:{}[]\"", s.text[s.at + n])) {
        out[n] = s.text[s.at + n];
        n++;
    }
    out[n] = '\0';
    return n == 47 ? 0 : n;
}

int json_fields_uint(const json_fields *f, const char *key, uint64_t *out) {
    char word[48];
    size_t n = bare_word(f, key, word);
    json_in s = { .text = word, .bytes = n };
    uint64_t value;
    if (n == 0 || !json_in_uint(&s, &value) || !json_in_end(&s))
        return 0;
    *out = value;
    return 1;
}

int json_fields_double(const json_fields *f, const char *key, double *out) {
    char word[48], *end;
    size_t n = bare_word(f, key, word);
    if (n == 0 || strspn(word, "+-.0123456789eE") != n || !strchr("-0123456789", word[0]))
        return 0;
    double value = strtod(word, &end);
    if (*end || !isfinite(value))
        return 0;
    *out = value;
    return 1;
}

int json_fields_bool(const json_fields *f, const char *key, int *out) {
    char word[48];
    if (bare_word(f, key, word) == 0 || (strcmp(word, "true") != 0 && strcmp(word, "false") != 0))
        return 0;
    *out = word[0] == 't';
    return 1;
}

int json_fields_object(const json_fields *f, const char *key, json_fields *out) {
    json_in s;
    if (!json_fields_at(f, key, &s) || s.text[s.at] != '{')
        return 0;
    size_t start = s.at;
    return json_in_skip(&s) && json_fields_read(out, f->text + start, s.at - start);
}

int json_fields_has(const json_fields *f, const char *key) {
    char word[48];
    json_in s;
    return json_fields_at(f, key, &s) && (bare_word(f, key, word) == 0 || strcmp(word, "null") != 0);
}
