/* SPDX-License-Identifier: BSD-3-Clause */
/* config.json beside a checkpoint: the shape of a decoder, and what it says of activations. The formula stands in
 * docs/model-json.md, term by term as here. */
#include "plan_file_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/name_index.h"
#include "tools/support/options.h"
#include <tessera/tessera.h>

enum { MOST_VALUE = 1 << 24, MOST_TEXT = 1 << 20 };
#define MOST_TOKENS (UINT64_C(1) << 32) /* times MOST_VALUE and a dozen terms, below 2^64 */

/* ---- reading ----------------------------------------------------------------------------------- */

typedef struct {
    uint64_t hidden_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim, intermediate_size,
        vocab_size, max_position_embeddings, num_experts_per_tok, moe_intermediate_size;
    int tie, encoder_decoder, old_names;
} keys_found;

/* Names of today, and of GPT-2. */
static const struct {
    const char *key;
    size_t offset;
    int old;
} known[] = {
#define FIELD(name) offsetof(keys_found, name)
    { "hidden_size", FIELD(hidden_size), 0 },
    { "n_embd", FIELD(hidden_size), 1 },
    { "num_hidden_layers", FIELD(num_hidden_layers), 0 },
    { "n_layer", FIELD(num_hidden_layers), 1 },
    { "num_attention_heads", FIELD(num_attention_heads), 0 },
    { "n_head", FIELD(num_attention_heads), 1 },
    { "num_key_value_heads", FIELD(num_key_value_heads), 0 },
    { "head_dim", FIELD(head_dim), 0 },
    { "intermediate_size", FIELD(intermediate_size), 0 },
    { "n_inner", FIELD(intermediate_size), 1 },
    { "vocab_size", FIELD(vocab_size), 0 },
    { "max_position_embeddings", FIELD(max_position_embeddings), 0 },
    { "n_positions", FIELD(max_position_embeddings), 1 },
    { "num_experts_per_tok", FIELD(num_experts_per_tok), 0 },
    { "moe_intermediate_size", FIELD(moe_intermediate_size), 0 },
#undef FIELD
};

static int is_word(const char *text, size_t n, const char *word) {
    return strlen(word) == n && memcmp(text, word, n) == 0;
}

/* Takes the value that is `n` bytes of JSON at `text`. */
static int take(keys_found *k, const char *key, const char *text, size_t n, json_scan *in) {
    if (strcmp(key, "tie_word_embeddings") == 0)
        k->tie = is_word(text, n, "true") ? 1 : is_word(text, n, "false") ? 0 : -1;
    if (strcmp(key, "is_encoder_decoder") == 0)
        k->encoder_decoder = is_word(text, n, "true");
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        uint64_t value = 0;
        if (strcmp(known[i].key, key) != 0 || is_word(text, n, "null"))
            continue;
        json_scan number = { .text = text, .bytes = n };
        if (!json_scan_uint(&number, &value) || !json_scan_end(&number) || value < 1 || value > MOST_VALUE) {
            in->at -= n;
            in->expected = "a whole number from 1 to 16777216";
            return 0;
        }
        *(uint64_t *)((char *)k + known[i].offset) = value;
        k->old_names |= known[i].old;
    }
    return 1;
}

static int scan(keys_found *k, json_scan *in) {
    char key[128];
    if (!json_scan_char(in, '{'))
        return 0;
    if (json_scan_if(in, '}'))
        return json_scan_end(in);
    do {
        if (!json_scan_string(in, key, sizeof key) || !json_scan_char(in, ':'))
            return 0;
        while (in->at < in->bytes && in->text[in->at] && strchr(" \t\r\n", in->text[in->at]))
            in->at++;
        size_t start = in->at;
        if (!json_scan_skip(in) || !take(k, key, in->text + start, in->at - start, in))
            return 0;
    } while (json_scan_if(in, ','));
    return json_scan_char(in, '}') && json_scan_end(in);
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
    tess__names index = { 0 };
    const char *outer = NULL;
    int32_t at;
    for (int32_t i = 0; i < m->n_blocks; i++)
        if (tess__names_add(&index, m->blocks[i].name, i) != TESS_OK)
            outer = m->blocks[i].name;
    for (int32_t i = 0; i < m->n_blocks && !outer; i++)
        for (size_t n = strlen(m->blocks[i].name); n > 0 && !outer;) {
            while (n > 0 && m->blocks[i].name[n - 1] != '.')
                n--;
            n -= n > 0;
            if ((at = tess__names_find(&index, m->blocks[i].name, n)) >= 0 && at != i)
                outer = m->blocks[at].name;
        }
    tess__names_free(&index);
    return outer;
}

static tess_status read_lengths(const char *path, plan_config *c) {
    int64_t batch = 1, context = c->positions && c->positions < 4096 ? (int64_t)c->positions : 4096;
    tess_status status = tool_option_int("batch", &batch);
    if (status == TESS_OK)
        status = tool_option_int("context", &context);
    if (status != TESS_OK)
        return status;
    c->batch = (uint64_t)batch;
    c->context = (uint64_t)context;
    if (c->batch * c->context > MOST_TOKENS)
        return tess_fail(TESS_E_INVALID, "%s: a batch of %lld with a context of %lld has more than 2^32 tokens", path,
                         (long long)batch, (long long)context);
    return TESS_OK;
}

static void find_reason(const keys_found *k, const plan_model *m, plan_config *c) {
    const char *missing = !k->hidden_size           ? "hidden_size"
                          : !k->num_attention_heads ? "num_attention_heads"
                          : !k->vocab_size          ? "vocab_size"
                          : !count_layers(m)        ? "layers that the names show"
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

tess_status plan_config_read(const char *path, const plan_model *m, plan_config *out) {
    keys_found k = { .tie = -1 };
    char *text = NULL;
    size_t bytes = 0;
    tess_status status = json_file_read(path, MOST_TEXT, &text, &bytes);
    if (status != TESS_OK)
        return status;
    json_scan in = { .text = text, .bytes = bytes };
    if (!scan(&k, &in))
        status = json_file_bad(path, &in);
    free(text);
    if (status != TESS_OK)
        return status;
    plan_config c = { .hidden = k.hidden_size,
                      .layers = k.num_hidden_layers,
                      .heads = k.num_attention_heads,
                      .kv_heads = k.num_key_value_heads ? k.num_key_value_heads : k.num_attention_heads,
                      .head_dim = k.head_dim,
                      .vocabulary = k.vocab_size,
                      .positions = k.max_position_embeddings,
                      .experts = k.num_experts_per_tok ? k.num_experts_per_tok : 1,
                      .layer_norm = k.old_names,
                      .says_tied = k.tie };
    if (!c.head_dim && c.heads && c.hidden % c.heads == 0)
        c.head_dim = c.hidden / c.heads;
    c.intermediate = k.num_experts_per_tok && k.moe_intermediate_size ? k.moe_intermediate_size : k.intermediate_size;
    if (!c.intermediate)
        c.intermediate = 4 * c.hidden;
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

/* The vocabulary's matrix in a block that stands in `place`, or -1. */
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
