/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads a decoder's shape from the config.json beside a checkpoint, and estimates activations from it.
 * docs/model-json.md has the formula, term by term as here. */
#include "plan_file_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/support/names.h"
#include "tools/support/options.h"
#include <tessera/tessera.h>
#include "tools/support/hf_family.h"
#include "tools/support/say.h"

enum { MOST_VALUE = 1 << 24, MOST_TEXT = 1 << 20 };
#define MOST_TOKENS (UINT64_C(1) << 32) /* times MOST_VALUE and a dozen terms, below 2^64 */

/* ---- reading ----------------------------------------------------------------------------------- */

typedef struct {
    double settings[HF_SETTINGS]; /* settings of every family; 0: absent */
    uint64_t num_experts_per_tok, moe_intermediate_size;
    int tie, encoder_decoder, layer_norm;
} keys_found;

static int is_word(const char *text, size_t n, const char *word) {
    return strlen(word) == n && memcmp(text, word, n) == 0;
}

static int is_whole(const char *text, size_t n, uint64_t *out) {
    json_in number = { .text = text, .bytes = n };
    return json_in_uint(&number, out) && json_in_end(&number) && *out >= 1 && *out <= MOST_VALUE;
}

/* Experts belong to no family. */
static uint64_t *experts_of(keys_found *k, const char *key) {
    if (strcmp(key, "num_experts_per_tok") == 0)
        return &k->num_experts_per_tok;
    return strcmp(key, "moe_intermediate_size") == 0 ? &k->moe_intermediate_size : NULL;
}

/* Takes the value that is `n` bytes of JSON at `text`. */
static int take(keys_found *k, const char *key, const char *text, size_t n, json_in *in) {
    const hf_family *family = NULL;
    const hf_field *f = hf_family_field(key, &family);
    uint64_t value, *experts = experts_of(k, key);
    if (f && f->setting == HF_TIED)
        k->tie = is_word(text, n, "true") ? 1 : is_word(text, n, "false") ? 0 : -1;
    if (strcmp(key, "is_encoder_decoder") == 0)
        k->encoder_decoder = is_word(text, n, "true");
    if ((!experts && (!f || f->kind != HF_WHOLE || f->none)) || is_word(text, n, "null"))
        return 1;
    if (!is_whole(text, n, &value)) {
        in->at -= n;
        in->expected = "a whole number from 1 to 16777216";
        return 0;
    }
    if (experts) {
        *experts = value;
        return 1;
    }
    k->settings[f->setting] = (double)value;
    k->layer_norm |= family->layer_norm;
    return 1;
}

static int scan(keys_found *k, json_in *in) {
    char key[128];
    if (!json_in_char(in, '{'))
        return 0;
    if (json_in_if(in, '}'))
        return json_in_end(in);
    do {
        if (!json_in_string(in, key, sizeof key) || !json_in_char(in, ':'))
            return 0;
        while (in->at < in->bytes && in->text[in->at] && strchr(" \t\r\n", in->text[in->at]))
            in->at++;
        size_t start = in->at;
        if (!json_in_skip(in) || !take(k, key, in->text + start, in->at - start, in))
            return 0;
    } while (json_in_if(in, ','));
    return json_in_char(in, '}') && json_in_end(in);
}

static int any_name_has(const plan_model *m, const char *word) {
    for (int32_t i = 0; i < m->n_params; i++)
        if (strstr(m->params[i].name, word))
            return 1;
    return 0;
}

static uint64_t count_layers(const plan_model *m) {
    uint64_t n = 0;
    for (int32_t i = 0; i < m->n_blocks; i++)
        n += m->blocks[i].place == PLAN_LAYER;
    return n;
}

/* A block reads all parameters below its name: one that holds others cannot be one. */
static const char *outer_block(const plan_model *m) {
    tool_names index = { NULL };
    const char *outer = NULL;
    int32_t at;
    for (int32_t i = 0; i < m->n_blocks; i++)
        if (tool_names_add(&index, m->blocks[i].name, i) != TESS_OK)
            outer = m->blocks[i].name;
    for (int32_t i = 0; i < m->n_blocks && !outer; i++)
        for (size_t n = strlen(m->blocks[i].name); n > 0 && !outer;) {
            while (n > 0 && m->blocks[i].name[n - 1] != '.')
                n--;
            n -= n > 0;
            if ((at = tool_names_find(&index, m->blocks[i].name, n)) >= 0 && at != i)
                outer = m->blocks[at].name;
        }
    tool_names_free(&index);
    return outer;
}

static tess_status read_lengths(const char *path, plan_config *c) {
    int64_t batch = 1, context = c->positions && c->positions < 4096 ? (int64_t)c->positions : 4096;
    TRY(tool_option_int("batch", &batch));
    TRY(tool_option_int("context", &context));
    c->batch = (uint64_t)batch;
    c->context = (uint64_t)context;
    if (c->batch * c->context > MOST_TOKENS)
        return tess_fail(TESS_E_INVALID, "%s: a batch of %lld with a context of %lld has more than 2^32 tokens", path,
                         (long long)batch, (long long)context);
    return TESS_OK;
}

static void find_reason(const keys_found *k, const plan_model *m, plan_config *c) {
    const char *missing = !c->hidden         ? "hidden_size"
                          : !c->heads        ? "num_attention_heads"
                          : !c->vocabulary   ? "vocab_size"
                          : !count_layers(m) ? "layers that the names show"
                                             : NULL;
    const char *outer = outer_block(m);
    if (k->encoder_decoder)
        snprintf(c->reason, sizeof c->reason, "it describes an encoder and a decoder");
    else if (missing)
        snprintf(c->reason, sizeof c->reason, "it has no %s", missing);
    else if (!c->head_dim || c->heads * c->head_dim > MOST_VALUE || c->kv_heads * c->head_dim > MOST_VALUE)
        snprintf(c->reason, sizeof c->reason, "its heads have no common width");
    else if (outer)
        snprintf(c->reason, sizeof c->reason, "module '%.40s' holds parameters beside its layers", outer);
}

static plan_config config_of(const keys_found *k) {
    uint64_t v[HF_SETTINGS];
    for (int32_t i = 0; i < HF_SETTINGS; i++)
        v[i] = (uint64_t)k->settings[i];
    plan_config c = { .hidden = v[HF_WIDTH],
                      .layers = v[HF_LAYERS],
                      .heads = v[HF_HEADS],
                      .kv_heads = v[HF_KV_HEADS] ? v[HF_KV_HEADS] : v[HF_HEADS],
                      .head_dim = v[HF_HEAD_SIZE],
                      .intermediate = v[HF_FEED],
                      .vocabulary = v[HF_VOCABULARY],
                      .positions = v[HF_POSITIONS] ? v[HF_POSITIONS] : v[HF_POSITION_TABLE],
                      .experts = k->num_experts_per_tok ? k->num_experts_per_tok : 1,
                      .layer_norm = k->layer_norm,
                      .says_tied = k->tie };
    if (!c.head_dim && c.heads && c.hidden % c.heads == 0)
        c.head_dim = c.hidden / c.heads;
    if (k->num_experts_per_tok && k->moe_intermediate_size)
        c.intermediate = k->moe_intermediate_size;
    if (!c.intermediate)
        c.intermediate = 4 * c.hidden;
    return c;
}

tess_status plan_config_read(const char *path, const plan_model *m, plan_config *out) {
    keys_found k = { .tie = -1 };
    char *text = NULL;
    size_t bytes = 0;
    tess_status status = json_file_read(path, MOST_TEXT, &text, &bytes);
    if (status != TESS_OK)
        return status;
    json_in in = { .text = text, .bytes = bytes };
    if (!scan(&k, &in))
        status = json_file_bad(path, &in);
    free(text);
    if (status != TESS_OK)
        return status;
    plan_config c = config_of(&k);
    c.gated = any_name_has(m, "gate_proj") || any_name_has(m, "gate_up") || any_name_has(m, ".w3.");
    find_reason(&k, m, &c);
    if (!c.reason[0] && count_layers(m) < c.layers)
        return tess_fail(TESS_E_DATA,
                         "%s: num_hidden_layers is %llu, but there are parameters of %llu layers only; of a checkpoint "
                         "in several files, plan the folder",
                         path, (unsigned long long)c.layers, (unsigned long long)count_layers(m));
    if ((status = read_lengths(path, &c)) == TESS_OK)
        *out = c;
    return status;
}

/* ---- a head that is the embedding -------------------------------------------------------------- */

static int is_table(const plan_param *p, const plan_config *c) {
    return p->ndim == 2 && p->shape[0] == (int64_t)c->vocabulary && p->shape[1] == (int64_t)c->hidden;
}

static int in_module(const char *param, const char *module) {
    size_t n = strlen(module);
    return strncmp(param, module, n) == 0 && param[n] == '.' && !strchr(param + n + 1, '.');
}

/* Finds the vocabulary's matrix in a block at position `place` (PLAN_BEFORE, …), or -1. */
static int32_t find_table(const plan_model *m, const plan_config *c, int32_t place) {
    for (int32_t b = 0; b < m->n_blocks; b++)
        for (int32_t i = 0; m->blocks[b].place == place && i < m->n_params; i++)
            if (is_table(&m->params[i], c) && in_module(m->params[i].name, m->blocks[b].name))
                return i;
    return -1;
}

static int has_block(const plan_model *m, const char *name) {
    for (int32_t b = 0; b < m->n_blocks; b++)
        if (strcmp(m->blocks[b].name, name) == 0)
            return 1;
    return 0;
}

tess_status plan_config_tie(plan_model *m, const char *path, const plan_config *c) {
    int32_t embedding = find_table(m, c, PLAN_BEFORE), head = find_table(m, c, PLAN_HEAD);
    if (embedding < 0 || c->says_tied == 0 || (head >= 0 && c->says_tied < 0))
        return TESS_OK;
    if (head < 0 && has_block(m, "lm_head"))
        return plan_model_tie(m, path, "lm_head.weight", m->params[embedding].name);
    if (head < 0) {
        plan_block block = { .name = "lm_head", .place = PLAN_HEAD };
        tess_status status = plan_model_block(m, path, &block);
        return status == TESS_OK ? plan_model_tie(m, path, "lm_head.weight", m->params[embedding].name) : status;
    }
    /* Stored twice, trained once. */
    tess_status status = plan_model_tie(m, path, m->params[head].name, m->params[embedding].name);
    if (status == TESS_OK) {
        free(m->params[head].name);
        memmove(&m->params[head], &m->params[head + 1], (size_t)(--m->n_params - head) * sizeof *m->params);
    }
    return status;
}

/* ---- the formula ------------------------------------------------------------------------------- */

static uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static void set_layer(plan_block *b, const plan_config *c, uint64_t tokens, uint64_t width) {
    uint64_t queries = c->heads * c->head_dim, keys = 2 * c->kv_heads * c->head_dim; /* keys and values */
    uint64_t inner = (c->gated ? 3 : 2) * c->intermediate * c->experts;
    uint64_t statistics = 2 * (c->layer_norm ? 8 : 4); /* fp32, of both normalisations */
    b->output_bytes = tokens * c->hidden * width;
    b->saved_bytes = tokens * (width * (3 * c->hidden + 2 * queries + keys + inner) + 4 * c->heads + statistics);
    b->forward_scratch_bytes = tokens * c->hidden * width;
    b->backward_scratch_bytes = tokens * width * larger(inner + c->hidden, 2 * queries + keys + 2 * c->hidden);
}

static void set_head(plan_block *b, const plan_config *c, uint64_t tokens, uint64_t width) {
    b->saved_bytes = tokens * c->vocabulary * 4; /* log-probabilities, in backward overwritten by their gradient */
    b->backward_scratch_bytes = width == 4 ? 0 : tokens * c->vocabulary * width;
}

tess_status plan_config_activations(plan_model *m, const char *path, const plan_config *c, uint64_t width) {
    uint64_t tokens = c->batch * c->context;
    if (c->intermediate * c->experts > 4 * (uint64_t)MOST_VALUE)
        return tess_fail(TESS_E_DATA, "%s: %llu experts of %llu are more than 2^26 wide", path,
                         (unsigned long long)c->experts, (unsigned long long)c->intermediate);
    for (int32_t i = 0; i < m->n_blocks; i++) {
        plan_block *b = &m->blocks[i];
        b->output_bytes = tokens * c->hidden * width;
        if (b->place == PLAN_LAYER)
            set_layer(b, c, tokens, width);
        else if (b->place == PLAN_AFTER)
            b->saved_bytes = tokens * (c->layer_norm ? 8 : 4);
        else if (b->place == PLAN_HEAD)
            set_head(b, c, tokens, width);
        if (i == m->n_blocks - 1)
            b->output_bytes = 64; /* the loss */
    }
    return plan_model_measure(m, path);
}
