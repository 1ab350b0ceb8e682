/* SPDX-License-Identifier: BSD-3-Clause */
#include "hf_config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <tessera/tessera.h>
#include "tools/support/hf_fields.h"

/* ---- settings as options ------------------------------------------------------------------------------- */
enum { WHOLE, FLOAT, REAL };
static const struct {
    int32_t setting, kind;
    size_t at;
} options[] = {
#define OPTION(name) offsetof(model_options, name)
    { HF_LAYERS, WHOLE, OPTION(layers) },
    { HF_HEADS, WHOLE, OPTION(heads) },
    { HF_KV_HEADS, WHOLE, OPTION(decoder.kv_heads) },
    { HF_HEAD_SIZE, WHOLE, OPTION(decoder.head_size) },
    { HF_WIDTH, WHOLE, OPTION(width) },
    { HF_FEED, WHOLE, OPTION(decoder.feed) },
    { HF_VOCABULARY, WHOLE, OPTION(decoder.vocabulary) },
    { HF_POSITION_TABLE, WHOLE, OPTION(decoder.positions) },
    { HF_EPS, FLOAT, OPTION(decoder.norm_eps) },
    { HF_DROPOUT, FLOAT, OPTION(dropout) },
    { HF_ATTENTION_DROPOUT, FLOAT, OPTION(attention_dropout) },
    { HF_ROPE_THETA, REAL, OPTION(decoder.rope_theta) },
    { HF_ROPE_FACTOR, REAL, OPTION(decoder.rope_factor) },
    { HF_ROPE_LOW, REAL, OPTION(decoder.rope_low) },
    { HF_ROPE_HIGH, REAL, OPTION(decoder.rope_high) },
    { HF_ROPE_POSITIONS, WHOLE, OPTION(decoder.rope_positions) },
    { HF_ROPE_FAST, REAL, OPTION(decoder.rope_fast) },
    { HF_ROPE_SLOW, REAL, OPTION(decoder.rope_slow) },
    { HF_ROPE_WHOLE, WHOLE, OPTION(decoder.rope_whole) },
    { HF_ROPE_ATTENTION, REAL, OPTION(decoder.rope_attention) },
    { HF_ROPE_LOCAL_THETA, REAL, OPTION(decoder.rope_local_theta) },
    { HF_WINDOW, WHOLE, OPTION(decoder.window) },
    { HF_WINDOW_FROM, WHOLE, OPTION(decoder.window_from) },
    { HF_WINDOW_EVERY, WHOLE, OPTION(decoder.window_every) },
    { HF_QUERY_SCALAR, REAL, OPTION(decoder.query_scalar) },
    { HF_ATTENTION_CAP, REAL, OPTION(decoder.attention_cap) },
    { HF_LOGIT_CAP, REAL, OPTION(decoder.logit_cap) },
#undef OPTION
};

/* YaRN's factor of lengths, unless the file says it. */
static double stretch(double factor, double by) {
    return factor > 1 ? 0.1 * by * log(factor) + 1 : 1;
}

static void complete(double v[HF_SETTINGS]) {
    double factor = v[HF_ROPE_FACTOR], by = v[HF_ROPE_MSCALE], by_all = v[HF_ROPE_MSCALE_ALL];
    if (v[HF_ROPE_FAST] > 0 && !(v[HF_ROPE_ATTENTION] > 0))
        v[HF_ROPE_ATTENTION] =
            by > 0 && by_all > 0 ? stretch(factor, by) / stretch(factor, by_all) : stretch(factor, 1);
}

static void give(const double v[HF_SETTINGS], model_options *o) {
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        void *to = (char *)o + options[i].at;
        double value = v[options[i].setting];
        if (options[i].kind == WHOLE)
            *(int32_t *)to = (int32_t)value;
        else if (options[i].kind == FLOAT)
            *(float *)to = (float)value;
        else
            *(double *)to = value;
    }
    o->untied = v[HF_TIED] == 0;
}

static double value_of(const model_options *o, size_t i) {
    const void *from = (const char *)o + options[i].at;
    return options[i].kind == WHOLE   ? *(const int32_t *)from
           : options[i].kind == FLOAT ? (double)*(const float *)from
                                      : *(const double *)from;
}

/* A model's settings, with its defaults where its options are 0. */
static void settings_of(const model *m, double v[HF_SETTINGS]) {
    const model_options *o = &m->options;
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        v[options[i].setting] = value_of(o, i);
    const struct {
        int32_t setting;
        double value;
    } defaults[] = {
        { HF_KV_HEADS, o->heads },
        { HF_HEAD_SIZE, o->width / o->heads },
        { HF_FEED, 4 * o->width },
        { HF_VOCABULARY, (double)m->desc.params[0].shape[0] },
        { HF_POSITIONS, o->context },
        { HF_POSITION_TABLE, o->context },
        { HF_EPS, 1e-5 },
        { HF_ROPE_THETA, 10000 },
        { HF_ROPE_LOCAL_THETA, 10000 },
        { HF_QUERY_SCALAR, o->decoder.head_size ? o->decoder.head_size : o->width / o->heads },
    };
    for (size_t i = 0; i < sizeof defaults / sizeof defaults[0]; i++)
        if (!(v[defaults[i].setting] > 0))
            v[defaults[i].setting] = defaults[i].value;
    v[HF_TIED] = !o->untied;
    v[HF_WINDOW_USED] = v[HF_WINDOW] > 0;
}

/* ---- reading ------------------------------------------------------------------------------------------- */
static tess_status check_type(const hf_file *file, const char *name) {
    const hf_family *family = hf_family_of_type(file->type);
    char names[128];
    if (!family)
        return tess_fail(TESS_E_DATA, "%s: model_type \"%s\": expected %s", file->path, file->type,
                         hf_family_names(1, "or", names));
    if (strcmp(family->model, name) != 0)
        return tess_fail(TESS_E_DATA, "%s: model_type \"%s\", but %s is to be trained: tessera train %s", file->path,
                         file->type, name, family->model);
    return TESS_OK;
}

tess_status hf_config_read(const char *path, const char *name, model_options *out, int32_t *positions) {
    hf_file file;
    double v[HF_SETTINGS] = { 0 };
    OPS_TRY(hf_file_open(path, &file));
    tess_status status = check_type(&file, name);
    if (status == TESS_OK)
        status = hf_fields_read(&file, hf_family_find(name), v);
    hf_file_close(&file);
    if (status != TESS_OK)
        return status;
    complete(v);
    give(v, out);
    *positions = (int32_t)(v[HF_POSITIONS] > 0 ? v[HF_POSITIONS] : v[HF_POSITION_TABLE]);
    return TESS_OK;
}

/* ---- writing ------------------------------------------------------------------------------------------- */
static tess_status make_from_options(const model *m, char **out) {
    char *text = NULL;
    size_t bytes = 0;
    double v[HF_SETTINGS] = { 0 };
    json_out j;
    FILE *f = open_memstream(&text, &bytes);
    if (!f)
        return tess_fail(TESS_E_NOMEM, "no memory for config.json");
    settings_of(m, v);
    json_init(&j, f);
    json_object_begin(&j, NULL);
    hf_fields_write(hf_family_find(m->t->name), v, &j);
    json_object_end(&j);
    if (fclose(f) == 0) {
        *out = text;
        return TESS_OK;
    }
    free(text);
    return tess_fail(TESS_E_NOMEM, "no memory for config.json");
}

tess_status hf_config_make(const model *m, const char *source, char **out) {
    hf_file file;
    if (!source)
        return make_from_options(m, out);
    OPS_TRY(hf_file_open(source, &file));
    tess_status status = hf_file_word(&file, out);
    hf_file_close(&file);
    return status;
}
