/* SPDX-License-Identifier: BSD-3-Clause */
#include "hf_fields.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "say.h"
#include "json_file.h"

enum { MOST_BYTES = 16 << 20 };

/* ---- the file ------------------------------------------------------------------------------------------- */
tess_status hf_file_open(const char *path, hf_file *out) {
    struct stat st;
    int is_dir = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    *out = (hf_file){ .text = NULL };
    if ((size_t)snprintf(out->path, PATH_MAX, is_dir ? "%s/config.json" : "%s", path) >= PATH_MAX)
        return tess_fail(TESS_E_DATA, "%.60s…: the path is longer than %d bytes", path, PATH_MAX);
    TRY(json_file_read(out->path, MOST_BYTES, &out->text, &out->bytes));
    if (!json_fields_read(&out->fields, out->text, out->bytes)) {
        hf_file_close(out);
        return tess_fail(TESS_E_DATA, "%s: offset %zu: expected %s", out->path, out->fields.wrong_at,
                         out->fields.expected ? out->fields.expected : "a JSON object");
    }
    if (!json_fields_text(&out->fields, "model_type", out->type, sizeof out->type))
        out->type[0] = 0;
    return TESS_OK;
}

void hf_file_close(hf_file *f) {
    free(f->text);
    f->text = NULL;
}

/* ---- in one word ---------------------------------------------------------------------------------------- */
/* White space only stands in strings, and there as an escape. */
static void put_compact(FILE *f, const char *text, size_t bytes) {
    for (size_t i = 0, inside = 0; i < bytes; i++) {
        inside ^= text[i] == '"';
        if (inside && text[i] == '\\')
            fputc(text[i++], f);
        if (text[i] == ' ' && inside)
            fputs("\\u0020", f);
        else if (!strchr(" \t\r\n", text[i]))
            fputc(text[i], f);
    }
}

static int compact(json_in *s, FILE *f) {
    char key[64];
    int n = 0;
    if (!json_in_char(s, '{'))
        return 0;
    fputc('{', f);
    do {
        json_in ahead = *s;
        size_t from = s->at;
        int is_short = json_in_string(&ahead, key, sizeof key);
        if (!json_in_string(s, NULL, 0) || !json_in_char(s, ':') || !json_in_skip(s))
            return 0;
        if (is_short && (strcmp(key, "dtype") == 0 || strcmp(key, "torch_dtype") == 0))
            continue;
        if (n++)
            fputc(',', f);
        put_compact(f, s->text + from, s->at - from);
    } while (json_in_if(s, ','));
    fputc('}', f);
    return json_in_char(s, '}');
}

tess_status hf_file_word(const hf_file *file, char **out) {
    size_t length = 0;
    char *word = NULL;
    json_in scan = { .text = file->text, .bytes = file->bytes };
    FILE *f = open_memstream(&word, &length);
    if (!f)
        return tess_fail(TESS_E_NOMEM, "no memory for %s", file->path);
    int whole = compact(&scan, f);
    tess_status status = fclose(f) != 0 ? tess_fail(TESS_E_NOMEM, "no memory for %s", file->path)
                         : whole        ? TESS_OK
                                        : json_file_bad(file->path, &scan);
    if (status)
        free(word);
    else
        *out = word;
    return status;
}

/* ---- reading -------------------------------------------------------------------------------------------- */
/* Takes the member's value. What was expected, or null. */
static const char *take(const json_fields *in, const hf_field *f, double *value) {
    uint64_t whole;
    char text[64];
    int set;
    json_fields inner;
    switch (f->kind) {
    case HF_WHOLE:
        if (!json_fields_uint(in, f->key, &whole) || whole < 1 || whole > 1 << 24)
            return "a whole number from 1 to 16777216";
        *value = (double)whole;
        return NULL;
    case HF_REAL:
        return json_fields_double(in, f->key, value) && *value > 0 && *value < 1e12 ? NULL : "a positive number";
    case HF_RATE:
        return json_fields_double(in, f->key, value) && *value >= 0 && *value < 1 ? NULL : "a number from 0, below 1";
    case HF_BOOL:
        if (!json_fields_bool(in, f->key, &set))
            return "true or false";
        *value = set;
        return NULL;
    case HF_TEXT: return json_fields_text(in, f->key, text, sizeof text) && strcmp(text, f->text) == 0 ? NULL : f->text;
    case HF_TRUE: return json_fields_bool(in, f->key, &set) && set ? NULL : "true, nothing else is supported";
    case HF_FALSE: return json_fields_bool(in, f->key, &set) && !set ? NULL : "false, nothing else is supported";
    case HF_ONE: return json_fields_double(in, f->key, value) && *value == 1 ? NULL : "1, nothing else is supported";
    case HF_EMPTY:
        return json_fields_object(in, f->key, &inner) && inner.n == 0 ? NULL : "nothing, as it is not supported";
    case HF_ROPE: return json_fields_object(in, f->key, &inner) ? NULL : "an object or null";
    default: return NULL;
    }
}

static tess_status read_field(const char *path, const json_fields *in, const hf_field *f, double *v) {
    double value = f->fallback * (f->of ? v[f->of] : 1);
    int is_there = f->required || json_fields_has(in, f->key);
    const char *expected = is_there ? take(in, f, &value) : NULL;
    if (expected && f->kind == HF_TEXT)
        return tess_fail(TESS_E_DATA, "%s: \"%s\": expected \"%s\", nothing else is supported", path, f->key, f->text);
    if (!expected && ((f->same && value != v[f->same]) || (f->above && value <= v[f->above])))
        expected = f->text;
    if (expected)
        return tess_fail(TESS_E_DATA, "%s: \"%s\": expected %s", path, f->key, expected);
    v[f->setting] = value;
    return TESS_OK;
}

static tess_status read_list(const char *path, const json_fields *in, const hf_field *list, double *v);

static tess_status read_rope(const char *path, const json_fields *in, double *v) {
    char type[32] = "", types[64] = "";
    const hf_rope *r = hf_ropes;
    if (!json_fields_text(in, "rope_type", type, sizeof type) && !json_fields_text(in, "type", type, sizeof type))
        snprintf(type, sizeof type, "%s", r->type);
    TRY(read_list(path, in, hf_rope_fields, v));
    for (size_t at = 0; r->type && strcmp(r->type, type) != 0 && at < sizeof types; r++)
        at += (size_t)snprintf(types + at, sizeof types - at, "%s%s",
                               r == hf_ropes ? ""
                               : r[1].type   ? ", "
                                             : " or ",
                               r->type);
    if (!r->type)
        return tess_fail(TESS_E_DATA, "%s: rope_type \"%s\": expected %s", path, type, types);
    return read_list(path, in, r->fields, v);
}

static tess_status read_list(const char *path, const json_fields *in, const hf_field *list, double *v) {
    json_fields inner;
    for (const hf_field *f = list; f->key; f++) {
        TRY(read_field(path, in, f, v));
        if (f->kind == HF_ROPE && json_fields_object(in, f->key, &inner))
            TRY(read_rope(path, &inner, v));
    }
    return TESS_OK;
}

tess_status hf_fields_read(const hf_file *file, const hf_family *family, double settings[HF_SETTINGS]) {
    TRY(read_list(file->path, &file->fields, hf_any_fields, settings));
    return read_list(file->path, &file->fields, family->fields, settings);
}

tess_status hf_fields_read_one(const hf_file *file, const hf_family *family, int32_t setting,
                               double settings[HF_SETTINGS]) {
    for (const hf_field *f = family->fields; f->key; f++)
        if (f->setting == setting)
            TRY(read_field(file->path, &file->fields, f, settings));
    return TESS_OK;
}

/* ---- writing -------------------------------------------------------------------------------------------- */
static void write_list(const hf_field *list, const double *v, json_out *j);

static void write_field(const hf_field *f, const double *v, json_out *j) {
    switch (f->kind) {
    case HF_WHOLE: json_int(j, f->key, (int64_t)v[f->setting]); break;
    case HF_REAL:
    case HF_RATE: json_double(j, f->key, v[f->setting]); break;
    case HF_BOOL: json_bool(j, f->key, v[f->setting] != 0); break;
    case HF_TEXT: json_string(j, f->key, f->text); break;
    case HF_ROPE:
        json_object_begin(j, f->key);
        json_string(j, "rope_type", hf_ropes->type);
        write_list(hf_rope_fields, v, j);
        json_object_end(j);
        break;
    case HF_IGNORED: json_null(j, f->key); break;
    default: break;
    }
}

static void write_list(const hf_field *list, const double *v, json_out *j) {
    for (const hf_field *f = list; f->key; f++)
        if (!f->read_only)
            write_field(f, v, j);
}

void hf_fields_write(const hf_family *family, const double settings[HF_SETTINGS], json_out *j) {
    json_array_begin(j, "architectures");
    json_string(j, NULL, family->architecture);
    json_array_end(j);
    json_string(j, "model_type", family->model);
    write_list(family->fields, settings, j);
}
