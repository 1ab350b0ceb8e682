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
/* Writes values without white space between them, and white space in strings as escapes. */
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
/* Reads the member's value. Returns null, or what was expected. */
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
    case HF_COUNT:
        if (!json_fields_uint(in, f->key, &whole) || whole > 1 << 24)
            return "a whole number from 0 to 16777216";
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
    case HF_OBJECT:
    case HF_ROPE: return json_fields_object(in, f->key, &inner) ? NULL : "an object or null";
    default: return NULL;
    }
}

/* ---- layers with and without a window ----- */
enum { MOST_LAYERS = 1000 };
typedef struct {
    int32_t n, from, every; /* from: layers before the first with a window; every: layers up to the first without */
    char near[MOST_LAYERS];
} layer_types;

static int scan_types(json_in *s, layer_types *t) {
    char type[24];
    if (!json_in_char(s, '['))
        return 0;
    do {
        if (t->n == MOST_LAYERS || !json_in_string(s, type, sizeof type))
            return 0;
        t->near[t->n] = strcmp(type, "sliding_attention") == 0;
        if (!t->near[t->n++] && strcmp(type, "full_attention") != 0)
            return 0;
    } while (json_in_if(s, ','));
    return json_in_char(s, ']');
}

static int is_near(const layer_types *t, int32_t layer) {
    return layer >= t->from && (!t->every || (layer + 1) % t->every != 0);
}

/* Layers without a window are either the first ones, or one at each multiple of a number. */
static int find_pattern(layer_types *t) {
    while (t->from < t->n && !t->near[t->from])
        t->from++;
    for (int32_t i = 0; t->from == 0 && i < t->n && !t->every; i++)
        t->every = t->near[i] ? 0 : i + 1;
    for (int32_t i = 0; i < t->n; i++)
        if (is_near(t, i) != t->near[i])
            return 0;
    return 1;
}

static tess_status read_types(const char *path, const json_fields *in, const hf_field *f, double *v) {
    layer_types t = { 0 };
    json_in s;
    if (!json_fields_at(in, f->key, &s) || !scan_types(&s, &t) || t.n != (int32_t)v[HF_LAYERS])
        return tess_fail(TESS_E_DATA, "%s: \"%s\": expected \"sliding_attention\" or \"full_attention\" for each layer",
                         path, f->key);
    if (!find_pattern(&t))
        return tess_fail(TESS_E_DATA,
                         "%s: \"%s\": expected one full_attention every so many layers, or none after the first "
                         "sliding_attention; nothing else is supported",
                         path, f->key);
    if (t.from < t.n && !(v[HF_WINDOW] > 0))
        return tess_fail(TESS_E_DATA, "%s: \"%s\": expected no sliding_attention without a sliding_window", path,
                         f->key);
    v[HF_WINDOW] = t.from < t.n ? v[HF_WINDOW] : 0;
    v[HF_WINDOW_FROM] = t.from < t.n ? t.from : 0;
    v[HF_WINDOW_EVERY] = t.every;
    return TESS_OK;
}

static int is_null(const json_fields *in, const char *key) {
    json_in s;
    return json_fields_at(in, key, &s) && !json_fields_has(in, key);
}

static tess_status read_field(const char *path, const json_fields *in, const hf_field *f, double *v) {
    double value = f->fallback * (f->of ? v[f->of] : 1);
    int is_there = f->required || json_fields_has(in, f->key);
    if (is_there && f->kind == HF_LAYER_TYPES)
        return read_types(path, in, f, v);
    if (f->none && is_null(in, f->key))
        value = 0;
    const char *expected = is_there ? take(in, f, &value) : NULL;
    if (expected && f->kind == HF_TEXT)
        return tess_fail(TESS_E_DATA, "%s: \"%s\": expected \"%s\", nothing else is supported", path, f->key, f->text);
    if (!expected && ((f->same && value != v[f->same]) || (f->above && value <= v[f->above])))
        expected = f->text;
    if (expected)
        return tess_fail(TESS_E_DATA, "%s: \"%s\": expected %s", path, f->key, expected);
    v[f->setting] = f->only && v[f->only] == 0 ? 0 : value;
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
        if (f->kind == HF_OBJECT && json_fields_object(in, f->key, &inner))
            TRY(read_list(path, &inner, f->inner, v));
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

static void write_types(const hf_field *f, const double *v, json_out *j) {
    layer_types t = { .from = (int32_t)v[HF_WINDOW_FROM], .every = (int32_t)v[HF_WINDOW_EVERY] };
    json_array_begin(j, f->key);
    for (int32_t i = 0; i < (int32_t)v[HF_LAYERS]; i++)
        json_string(j, NULL, v[HF_WINDOW] > 0 && is_near(&t, i) ? "sliding_attention" : "full_attention");
    json_array_end(j);
}

static void write_field(const hf_field *f, const double *v, json_out *j) {
    if (f->none && !(v[f->setting] > 0)) {
        json_null(j, f->key);
        return;
    }
    switch (f->kind) {
    case HF_LAYER_TYPES: write_types(f, v, j); break;
    case HF_COUNT:
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
    json_string(j, "model_type", hf_family_type(family));
    write_list(family->fields, settings, j);
}
