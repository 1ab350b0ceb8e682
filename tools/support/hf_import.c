/* SPDX-License-Identifier: BSD-3-Clause */
#include "hf_import.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "say.h"
#include "hf_names.h"
#include "json_fields.h"
#include "json_file.h"

enum { MOST_CONFIG = 16 << 20 };

/* ---- config.json ---------------------------------------------------------------------------------------- */
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

int hf_compact(json_in *s, FILE *f) {
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

static tess_status make_word(const char *path, const char *text, size_t bytes, char **out) {
    size_t length = 0;
    json_in scan = { .text = text, .bytes = bytes };
    FILE *f = open_memstream(out, &length);
    if (!f)
        return tess_fail(TESS_E_NOMEM, "no memory for %s", path);
    int whole = hf_compact(&scan, f);
    if (fclose(f) != 0)
        return tess_fail(TESS_E_NOMEM, "no memory for %s", path);
    return whole ? TESS_OK : json_file_bad(path, &scan);
}

static tess_status read_fields(const char *path, const char *text, size_t bytes, hf_source *s) {
    json_fields fields;
    if (!json_fields_read(&fields, text, bytes))
        return tess_fail(TESS_E_DATA, "%s: offset %zu: expected %s", path, fields.wrong_at,
                         fields.expected ? fields.expected : "a JSON object");
    if (!json_fields_text(&fields, "model_type", s->model, sizeof s->model) || !hf_knows(s->model)) {
        s->model[0] = 0;
        return TESS_OK;
    }
    s->is_tied = strcmp(s->model, "gpt2") == 0; /* unless it says */
    json_fields_bool(&fields, "tie_word_embeddings", &s->is_tied);
    return make_word(path, text, bytes, &s->config);
}

tess_status hf_source_read(const char *dir, hf_source *out) {
    char path[PATH_MAX], *text = NULL;
    size_t bytes = 0;
    *out = (hf_source){ .config = NULL };
    if ((size_t)snprintf(path, sizeof path, "%s/config.json", dir) >= sizeof path || access(path, F_OK) != 0)
        return TESS_OK;
    TRY(json_file_read(path, MOST_CONFIG, &text, &bytes));
    tess_status status = read_fields(path, text, bytes, out);
    free(text);
    return status;
}

void hf_source_free(hf_source *s) {
    free(s->config);
    s->config = NULL;
}

/* ---- matrices ------------------------------------------------------------------------------------------- */
tess_status hf_read_turned(const tool_safetensors *file, const tool_tensor *t, const char *name, uint64_t begin,
                           uint64_t elems, float *out) {
    uint64_t inputs = (uint64_t)t->shape[0], outputs = (uint64_t)t->shape[1];
    uint64_t end = begin + elems, first = begin / inputs, last = (end - 1) / inputs;
    float *line = malloc((last - first + 1) * sizeof *line);
    if (!line)
        return tess_fail(TESS_E_NOMEM, "no memory to turn %s", name);
    tess_status status = TESS_OK;
    for (uint64_t i = 0; status == TESS_OK && i < inputs; i++) {
        status = tool_safetensors_read(file, t, i * outputs + first, last - first + 1, line);
        for (uint64_t o = first; o <= last; o++) {
            uint64_t ours = o * inputs + i;
            if (ours >= begin && ours < end)
                out[ours - begin] = line[o - first];
        }
    }
    free(line);
    return status;
}
