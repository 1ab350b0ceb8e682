/* SPDX-License-Identifier: BSD-3-Clause */
#include "peft_folder.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hf_names.h"
#include "json_fields.h"
#include "json_file.h"
#include "json_out.h"
#include "say.h"

enum { MOST_BYTES = 1 << 20 /* limit for a config's bytes */ };

/* ---- paths and names --------------------------------------------------------------------------------- */
static tess_status path_in(const char *dir, const char *file, char out[PATH_MAX]) {
    if ((size_t)snprintf(out, PATH_MAX, "%s/%s", dir, file) < PATH_MAX - 8)
        return TESS_OK;
    return tess_fail(TESS_E_DATA, "%.60s…: the path is longer than %d bytes", dir, PATH_MAX - 8);
}

tess_status peft_weights_path(const char *dir, char out[PATH_MAX]) {
    return path_in(dir, "adapter_model.safetensors", out);
}

void peft_name(const char *model, const char *name, char out[PEFT_NAME]) {
    char theirs[HF_NAME];
    hf_name(model, name, 1, theirs);
    snprintf(out, PEFT_NAME, "base_model.model.%s", theirs);
}

/* ---- reading ----------------------------------------------------------------------------------------- */
typedef struct {
    char path[PATH_MAX], *text;
    json_fields fields;
} config;

/* Returns 1 for a value that sets nothing: null, false, 0, or empty. */
static int is_nothing(const config *c, size_t field) {
    static const char *const words[] = { "null", "false", "0", "0.0", "\"\"", "{}", "[]" };
    const char *at = c->text + c->fields.fields[field].at;
    char word[8] = "";
    for (size_t n = 0; *at && n < sizeof word - 1; at++) {
        if (n && (*at == ',' || *at == '}') && word[0] != '{')
            break;
        if (!strchr(" \t\r\n", *at))
            word[n++] = *at;
        if ((*at == '}' && word[0] == '{') || *at == ']')
            break;
    }
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(word, words[i]) == 0)
            return 1;
    return 0;
}

static int is_among(const char *key, const char *const *keys) {
    while (*keys && strcmp(*keys, key) != 0)
        keys++;
    return *keys != NULL;
}

/* These fields describe how a model was made or is loaded, but do not affect its results. */
static const char *const passed_over[] = { "auto_mapping",      "base_model_name_or_path",
                                           "inference_mode",    "init_lora_weights",
                                           "peft_version",      "revision",
                                           "runtime_config",    "task_type",
                                           "fan_in_fan_out",    "megatron_core",
                                           "qalora_group_size", NULL };
static const char *const read_here[] = { "peft_type", "r", "lora_alpha", "use_rslora", "target_modules", "bias", NULL };

static tess_status check_members(const config *c) {
    for (size_t i = 0; i < c->fields.n; i++) {
        const char *key = c->fields.fields[i].key;
        if (!is_among(key, passed_over) && !is_among(key, read_here) && !is_nothing(c, i))
            return tess_fail(TESS_E_DATA, "%s: \"%s\" is set, which is not supported here", c->path, key);
    }
    return TESS_OK;
}

static tess_status check_words(const config *c) {
    static const char *const rows[][2] = { { "peft_type", "LORA" }, { "bias", "none" } };
    for (int i = 0; i < 2; i++) {
        char word[32] = "";
        if (!json_fields_has(&c->fields, rows[i][0]) && i)
            continue;
        if (!json_fields_text(&c->fields, rows[i][0], word, sizeof word) || strcmp(word, rows[i][1]) != 0)
            return tess_fail(TESS_E_DATA, "%s: \"%s\" is %s, expected \"%s\"", c->path, rows[i][0],
                             word[0] ? word : "something else", rows[i][1]);
    }
    return TESS_OK;
}

/* peft takes any other text as a regular expression, which is not supported here. */
static tess_status read_targets(const config *c, char out[PEFT_TARGETS]) {
    char word[64];
    json_in in;
    size_t at = 0;
    if (json_fields_text(&c->fields, "target_modules", out, PEFT_TARGETS) && strcmp(out, "all-linear") == 0)
        return TESS_OK;
    out[0] = 0;
    if (!json_fields_at(&c->fields, "target_modules", &in) || !json_in_if(&in, '['))
        return tess_fail(TESS_E_DATA, "%s: \"target_modules\": expected a list of modules, or \"all-linear\"", c->path);
    while (json_in_string(&in, word, sizeof word)) {
        int n = snprintf(out + at, PEFT_TARGETS - at, "%s%s", at ? "," : "", word);
        if ((at += (size_t)n) >= PEFT_TARGETS)
            return tess_fail(TESS_E_DATA, "%s: \"target_modules\" is longer than %d bytes", c->path, PEFT_TARGETS);
        if (!json_in_if(&in, ','))
            break;
    }
    return json_in_if(&in, ']') && at
               ? TESS_OK
               : tess_fail(TESS_E_DATA, "%s: \"target_modules\": expected a list of modules", c->path);
}

static tess_status read_members(const config *c, peft_config *out) {
    uint64_t rank = 0;
    *out = (peft_config){ .rank = 0 };
    if (!json_fields_uint(&c->fields, "r", &rank) || rank < 1 || rank > 65536)
        return tess_fail(TESS_E_DATA, "%s: \"r\": expected a rank of 1 to 65536", c->path);
    out->rank = (int32_t)rank;
    if (!json_fields_double(&c->fields, "lora_alpha", &out->alpha) || !(out->alpha > 0))
        return tess_fail(TESS_E_DATA, "%s: \"lora_alpha\": expected a number above 0", c->path);
    int rooted = 0;
    json_fields_bool(&c->fields, "use_rslora", &rooted);
    out->rooted = rooted;
    return read_targets(c, out->targets);
}

tess_status peft_config_read(const char *dir, peft_config *out) {
    config c = { .text = NULL };
    size_t bytes = 0;
    tess_status status = path_in(dir, "adapter_config.json", c.path);
    if (status == TESS_OK)
        status = json_file_read(c.path, MOST_BYTES, &c.text, &bytes);
    if (status == TESS_OK && !json_fields_read(&c.fields, c.text, bytes))
        status = tess_fail(TESS_E_DATA, "%s: byte %zu: expected %s", c.path, c.fields.wrong_at, c.fields.expected);
    if (status == TESS_OK)
        status = check_members(&c);
    if (status == TESS_OK)
        status = check_words(&c);
    if (status == TESS_OK)
        status = read_members(&c, out);
    free(c.text);
    return status;
}

/* ---- writing ----------------------------------------------------------------------------------------- */
static void put_targets(json_out *j, const char *targets) {
    if (strcmp(targets, "all-linear") == 0) {
        json_string(j, "target_modules", targets);
        return;
    }
    json_array_begin(j, "target_modules");
    for (const char *p = targets; *p;) {
        char word[PEFT_TARGETS];
        size_t n = strcspn(p, ",");
        snprintf(word, sizeof word, "%.*s", (int)n, p);
        json_string(j, NULL, word);
        p += n + (p[n] == ',');
    }
    json_array_end(j);
}

static void put_config(FILE *f, const peft_config *c, const char *base, int turned) {
    json_out j;
    json_init(&j, f);
    json_object_begin(&j, NULL);
    json_string(&j, "peft_type", "LORA");
    json_string(&j, "task_type", "CAUSAL_LM");
    json_string(&j, "base_model_name_or_path", base);
    json_int(&j, "r", c->rank);
    json_double(&j, "lora_alpha", c->alpha);
    json_bool(&j, "use_rslora", c->rooted);
    put_targets(&j, c->targets);
    json_bool(&j, "fan_in_fan_out", turned);
    json_double(&j, "lora_dropout", 0);
    json_string(&j, "bias", "none");
    json_null(&j, "modules_to_save");
    json_bool(&j, "inference_mode", 1);
    json_object_end(&j);
    fputc('\n', f);
}

tess_status peft_config_write(const char *dir, const peft_config *c, const char *base, int turned) {
    char path[PATH_MAX], temporary[PATH_MAX + 8];
    TRY(path_in(dir, "adapter_config.json", path));
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return tess_fail(TESS_E_DATA, "%s: cannot be made: %s", dir, strerror(errno));
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    FILE *f = fopen(temporary, "we");
    if (!f)
        return tess_fail(TESS_E_DATA, "%s: cannot be written: %s", path, strerror(errno));
    put_config(f, c, base, turned);
    int failed = fflush(f) != 0 || fsync(fileno(f)) != 0;
    failed = fclose(f) != 0 || failed || rename(temporary, path) != 0;
    if (!failed)
        return TESS_OK;
    int error = errno;
    unlink(temporary);
    return tess_fail(TESS_E_DATA, "%s: cannot be written: %s", path, strerror(error));
}
