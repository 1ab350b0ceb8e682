/* SPDX-License-Identifier: BSD-3-Clause */
#include "hf_config.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <tessera/tessera.h>
#include "tools/support/json_fields.h"

enum { MOST_BYTES = 1 << 20 };

typedef struct {
    const char *path;
    json_fields fields;
} config;

static tess_status wrong(const config *c, const char *key, const char *expected) {
    return tess_fail(TESS_E_DATA, "%s: \"%s\": expected %s", c->path, key, expected);
}

static tess_status read_all(const char *path, char **text, size_t *bytes) {
    FILE *f = fopen(path, "re");
    *text = malloc(MOST_BYTES + 1);
    if (!f || !*text) {
        tess_status status = f ? tess_fail(TESS_E_NOMEM, "%s: no memory", path)
                               : tess_fail(TESS_E_DATA, "%s: %s", path, strerror(errno));
        if (f)
            fclose(f);
        return status;
    }
    *bytes = fread(*text, 1, MOST_BYTES + 1, f);
    int failed = ferror(f);
    fclose(f);
    if (failed || *bytes > MOST_BYTES)
        return tess_fail(TESS_E_DATA, "%s: cannot be read, or longer than %d bytes", path, MOST_BYTES);
    return TESS_OK;
}

/* ---- values ------------------------------------------------------------------------------------------ */
/* `fallback` 0: the key must be there. */
static tess_status whole(const config *c, const char *key, int32_t fallback, int32_t *out) {
    uint64_t value = 0;
    if (!json_fields_has(&c->fields, key) && fallback) {
        *out = fallback;
        return TESS_OK;
    }
    if (!json_fields_uint(&c->fields, key, &value) || value < 1 || value > 1 << 24)
        return wrong(c, key, "a whole number from 1 to 16777216");
    *out = (int32_t)value;
    return TESS_OK;
}

static tess_status real(const config *c, const json_fields *f, const char *key, double fallback, double *out) {
    *out = fallback;
    if (!json_fields_has(f, key) && fallback > 0)
        return TESS_OK;
    return json_fields_double(f, key, out) && *out > 0 && *out < 1e12 ? TESS_OK : wrong(c, key, "a positive number");
}

static tess_status is_one(const config *c, const json_fields *f, const char *key) {
    double value;
    if (!json_fields_has(f, key) || (json_fields_double(f, key, &value) && value == 1))
        return TESS_OK;
    return wrong(c, key, "1, nothing else is supported");
}

static tess_status is_text(const config *c, const char *key, const char *fallback, const char *value) {
    char text[64];
    if (!json_fields_has(&c->fields, key) && fallback && strcmp(fallback, value) == 0)
        return TESS_OK;
    if (json_fields_text(&c->fields, key, text, sizeof text) && strcmp(text, value) == 0)
        return TESS_OK;
    return tess_fail(TESS_E_DATA, "%s: \"%s\": expected \"%s\", nothing else is supported", c->path, key, value);
}

/* Whatever transformers has where the key is absent. */
static tess_status is_set(const config *c, const char *key, int value) {
    int set = value;
    if (!json_fields_has(&c->fields, key) || (json_fields_bool(&c->fields, key, &set) && set == value))
        return TESS_OK;
    return wrong(c, key, value ? "true, nothing else is supported" : "false, nothing else is supported");
}

/* null, or an object without members. */
static tess_status is_empty(const config *c, const char *key) {
    json_fields f;
    if (!json_fields_has(&c->fields, key) || (json_fields_object(&c->fields, key, &f) && f.n == 0))
        return TESS_OK;
    return wrong(c, key, "nothing, as it is not supported");
}

/* Absent: none. */
static tess_status rate(const config *c, const char *key, float *out) {
    double value = 0;
    if (json_fields_has(&c->fields, key) &&
        (!json_fields_double(&c->fields, key, &value) || !(value >= 0 && value < 1)))
        return wrong(c, key, "a number from 0, below 1");
    *out = (float)value;
    return TESS_OK;
}

static tess_status read_tied(const config *c, int fallback, model_options *o) {
    int tied = fallback;
    if (json_fields_has(&c->fields, "tie_word_embeddings") &&
        !json_fields_bool(&c->fields, "tie_word_embeddings", &tied))
        return wrong(c, "tie_word_embeddings", "true or false");
    o->untied = !tied;
    return TESS_OK;
}

/* ---- gpt2 -------------------------------------------------------------------------------------------- */
/* The models drop with one rate behind the embedding and both halves of a layer. */
static tess_status read_dropout(const config *c, model_options *o) {
    float embed, residual;
    OPS_TRY(rate(c, "embd_pdrop", &embed));
    OPS_TRY(rate(c, "resid_pdrop", &residual));
    OPS_TRY(rate(c, "attn_pdrop", &o->attention_dropout));
    o->dropout = residual;
    return embed == residual ? TESS_OK : wrong(c, "embd_pdrop", "the rate of \"resid_pdrop\"");
}

static tess_status read_gpt2(const config *c, model_options *o) {
    double eps;
    OPS_TRY(is_text(c, "activation_function", "gelu_new", "gelu_new"));
    OPS_TRY(is_set(c, "scale_attn_by_inverse_layer_idx", 0));
    OPS_TRY(is_set(c, "scale_attn_weights", 1));
    OPS_TRY(is_set(c, "add_cross_attention", 0));
    OPS_TRY(read_dropout(c, o));
    OPS_TRY(whole(c, "n_layer", 12, &o->layers));
    OPS_TRY(whole(c, "n_head", 12, &o->heads));
    OPS_TRY(whole(c, "n_embd", 768, &o->width));
    OPS_TRY(whole(c, "n_inner", 4 * o->width, &o->decoder.feed));
    OPS_TRY(whole(c, "vocab_size", 50257, &o->decoder.vocabulary));
    OPS_TRY(whole(c, "n_positions", 1024, &o->decoder.positions));
    OPS_TRY(real(c, &c->fields, "layer_norm_epsilon", 1e-5, &eps));
    o->decoder.norm_eps = (float)eps;
    return read_tied(c, 1, o);
}

/* ---- llama ------------------------------------------------------------------------------------------- */
static tess_status read_rope_kind(const config *c, const json_fields *f, model_decoder *d) {
    char kind[32] = "default";
    int32_t positions = 0;
    if (!json_fields_text(f, "rope_type", kind, sizeof kind))
        json_fields_text(f, "type", kind, sizeof kind);
    if (strcmp(kind, "default") == 0)
        return TESS_OK;
    if (strcmp(kind, "llama3") != 0 && strcmp(kind, "linear") != 0)
        return tess_fail(TESS_E_DATA, "%s: rope_type \"%s\": expected default, linear or llama3", c->path, kind);
    OPS_TRY(real(c, f, "factor", 0, &d->rope_factor));
    if (strcmp(kind, "linear") == 0)
        return TESS_OK;
    config inner = { c->path, *f };
    OPS_TRY(real(c, f, "low_freq_factor", 0, &d->rope_low));
    OPS_TRY(real(c, f, "high_freq_factor", 0, &d->rope_high));
    OPS_TRY(whole(&inner, "original_max_position_embeddings", 0, &positions));
    d->rope_positions = positions;
    return d->rope_high > d->rope_low ? TESS_OK : wrong(c, "high_freq_factor", "more than low_freq_factor");
}

/* transformers 5 has rope_parameters, 4 has rope_scaling beside rope_theta. */
static tess_status read_rope(const config *c, model_decoder *d) {
    static const char *const keys[] = { "rope_parameters", "rope_scaling" };
    json_fields f;
    OPS_TRY(real(c, &c->fields, "rope_theta", 10000, &d->rope_theta));
    for (int i = 0; i < 2; i++) {
        if (!json_fields_has(&c->fields, keys[i]))
            continue;
        if (!json_fields_object(&c->fields, keys[i], &f))
            return wrong(c, keys[i], "an object or null");
        OPS_TRY(real(c, &f, "rope_theta", d->rope_theta, &d->rope_theta));
        OPS_TRY(is_one(c, &f, "partial_rotary_factor"));
        OPS_TRY(read_rope_kind(c, &f, d));
    }
    return TESS_OK;
}

static tess_status read_llama(const config *c, model_options *o, int32_t *positions) {
    double eps;
    OPS_TRY(is_text(c, "hidden_act", "silu", "silu"));
    OPS_TRY(is_set(c, "attention_bias", 0));
    OPS_TRY(is_set(c, "mlp_bias", 0));
    OPS_TRY(is_one(c, &c->fields, "partial_rotary_factor"));
    OPS_TRY(rate(c, "attention_dropout", &o->attention_dropout));
    OPS_TRY(whole(c, "num_hidden_layers", 32, &o->layers));
    OPS_TRY(whole(c, "num_attention_heads", 32, &o->heads));
    OPS_TRY(whole(c, "num_key_value_heads", o->heads, &o->decoder.kv_heads));
    OPS_TRY(whole(c, "hidden_size", 4096, &o->width));
    OPS_TRY(whole(c, "intermediate_size", 11008, &o->decoder.feed));
    OPS_TRY(whole(c, "vocab_size", 32000, &o->decoder.vocabulary));
    OPS_TRY(whole(c, "max_position_embeddings", 2048, positions));
    if (json_fields_has(&c->fields, "head_dim"))
        OPS_TRY(whole(c, "head_dim", 0, &o->decoder.head_size));
    OPS_TRY(real(c, &c->fields, "rms_norm_eps", 1e-6, &eps));
    o->decoder.norm_eps = (float)eps;
    OPS_TRY(read_rope(c, &o->decoder));
    return read_tied(c, 0, o);
}

/* ---- the file ---------------------------------------------------------------------------------------- */
static tess_status read_config(const config *c, const char *name, model_options *o, int32_t *positions) {
    char type[64] = "";
    json_fields_text(&c->fields, "model_type", type, sizeof type);
    if (strcmp(type, "gpt2") != 0 && strcmp(type, "llama") != 0)
        return tess_fail(TESS_E_DATA, "%s: model_type \"%s\": expected gpt2 or llama", c->path, type);
    if (strcmp(type, name) != 0)
        return tess_fail(TESS_E_DATA, "%s: model_type \"%s\", but %s is to be trained: tessera train %s", c->path, type,
                         name, type);
    OPS_TRY(is_empty(c, "pruned_heads"));
    OPS_TRY(is_empty(c, "quantization_config"));
    if (strcmp(name, "llama") == 0)
        return read_llama(c, o, positions);
    tess_status status = read_gpt2(c, o);
    *positions = o->decoder.positions;
    return status;
}

static tess_status file_of(const char *path, char file[PATH_MAX]) {
    struct stat st;
    int is_dir = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    if ((size_t)snprintf(file, PATH_MAX, is_dir ? "%s/config.json" : "%s", path) >= PATH_MAX)
        return tess_fail(TESS_E_DATA, "%.60s…: the path is longer than %d bytes", path, PATH_MAX);
    return TESS_OK;
}

tess_status hf_config_text(const char *path, char **text, size_t *bytes) {
    char file[PATH_MAX];
    OPS_TRY(file_of(path, file));
    tess_status status = read_all(file, text, bytes);
    if (status != TESS_OK) {
        free(*text);
        *text = NULL;
    }
    return status;
}

tess_status hf_config_read(const char *path, const char *name, model_options *out, int32_t *positions) {
    char file[PATH_MAX], *text = NULL;
    size_t bytes = 0;
    config c = { .path = file };
    model_options o = *out;
    OPS_TRY(file_of(path, file));
    tess_status status = read_all(file, &text, &bytes);
    if (status == TESS_OK && !json_fields_read(&c.fields, text, bytes))
        status = tess_fail(TESS_E_DATA, "%s: offset %zu: expected %s", file, c.fields.wrong_at,
                           c.fields.expected ? c.fields.expected : "a JSON object");
    if (status == TESS_OK)
        status = read_config(&c, name, &o, positions);
    free(text);
    if (status == TESS_OK)
        *out = o;
    return status;
}
