/* SPDX-License-Identifier: BSD-3-Clause */
/* The families: gpt2 and llama. A new one is its tables here, and its table of parameters in tools/models. */
#include "hf_family.h"

#include <stdio.h>
#include <string.h>

#define MEMBER(name, what) .key = name, .kind = what
#define SETS(name, what, place, absent) MEMBER(name, what), .setting = place, .fallback = absent

const hf_field hf_any_fields[] = {
    { MEMBER("pruned_heads", HF_EMPTY) },
    { MEMBER("quantization_config", HF_EMPTY) },
    { .key = NULL },
};

/* ---- gpt2 ------------------------------------------------------------------------------------------- */
/* The model drops with one rate behind the embedding and both halves of a layer. Absent rates are 0 here, and 0.1 in
 * transformers: so they are written. */
static const hf_field gpt2_fields[] = {
    { SETS("vocab_size", HF_WHOLE, HF_VOCABULARY, 50257) },
    { SETS("tie_word_embeddings", HF_BOOL, HF_TIED, 1) },
    { MEMBER("activation_function", HF_TEXT), .text = "gelu_new" },
    { SETS("n_layer", HF_WHOLE, HF_LAYERS, 12) },
    { SETS("n_head", HF_WHOLE, HF_HEADS, 12) },
    { SETS("n_embd", HF_WHOLE, HF_WIDTH, 768) },
    { SETS("n_inner", HF_WHOLE, HF_FEED, 4), .of = HF_WIDTH },
    { SETS("n_positions", HF_WHOLE, HF_POSITION_TABLE, 1024) },
    { SETS("layer_norm_epsilon", HF_REAL, HF_EPS, 1e-5) },
    { SETS("resid_pdrop", HF_RATE, HF_DROPOUT, 0) },
    { SETS("embd_pdrop", HF_RATE, HF_DROPOUT, 0), .same = HF_DROPOUT, .text = "the rate of \"resid_pdrop\"" },
    { SETS("attn_pdrop", HF_RATE, HF_ATTENTION_DROPOUT, 0) },
    { MEMBER("scale_attn_by_inverse_layer_idx", HF_FALSE) },
    { MEMBER("scale_attn_weights", HF_TRUE) },
    { MEMBER("add_cross_attention", HF_FALSE) },
    { MEMBER("bos_token_id", HF_IGNORED) },
    { MEMBER("eos_token_id", HF_IGNORED) },
    { .key = NULL },
};
static const hf_tensor gpt2_tensors[] = {
    { "embed.", "transformer.", 0 },
    { "h.", "transformer.h.", HF_TURNED },
    { "head.ln_f.", "transformer.ln_f.", 0 },
    { "head.weight", "lm_head.weight", HF_HEAD },
    { .ours = NULL },
};

/* ---- llama ------------------------------------------------------------------------------------------ */
/* transformers 5 has rope_parameters, 4 has rope_scaling beside rope_theta. */
static const hf_field llama_fields[] = {
    { SETS("vocab_size", HF_WHOLE, HF_VOCABULARY, 32000) },
    { SETS("tie_word_embeddings", HF_BOOL, HF_TIED, 0) },
    { MEMBER("hidden_act", HF_TEXT), .text = "silu" },
    { SETS("num_hidden_layers", HF_WHOLE, HF_LAYERS, 32) },
    { SETS("num_attention_heads", HF_WHOLE, HF_HEADS, 32) },
    { SETS("num_key_value_heads", HF_WHOLE, HF_KV_HEADS, 1), .of = HF_HEADS },
    { SETS("head_dim", HF_WHOLE, HF_HEAD_SIZE, 0) },
    { SETS("hidden_size", HF_WHOLE, HF_WIDTH, 4096) },
    { SETS("intermediate_size", HF_WHOLE, HF_FEED, 11008) },
    { SETS("max_position_embeddings", HF_WHOLE, HF_POSITIONS, 2048) },
    { SETS("rms_norm_eps", HF_REAL, HF_EPS, 1e-6) },
    { SETS("rope_theta", HF_REAL, HF_ROPE_THETA, 10000) },
    { MEMBER("rope_parameters", HF_ROPE) },
    { MEMBER("rope_scaling", HF_ROPE), .read_only = 1 },
    { SETS("attention_dropout", HF_RATE, HF_ATTENTION_DROPOUT, 0), .read_only = 1 },
    { MEMBER("attention_bias", HF_FALSE) },
    { MEMBER("mlp_bias", HF_FALSE) },
    { MEMBER("partial_rotary_factor", HF_ONE) },
    { MEMBER("bos_token_id", HF_IGNORED) },
    { MEMBER("eos_token_id", HF_IGNORED) },
    { .key = NULL },
};
static const hf_tensor llama_tensors[] = {
    { "embed.weight", "model.embed_tokens.weight", 0 },
    { "layers.", "model.layers.", 0 },
    { "head.norm.", "model.norm.", 0 },
    { "head.weight", "lm_head.weight", HF_HEAD },
    { .ours = NULL },
};

/* ---- rotary positions ------------------------------------------------------------------------------- */
const hf_field hf_rope_fields[] = {
    { SETS("rope_theta", HF_REAL, HF_ROPE_THETA, 1), .of = HF_ROPE_THETA },
    { MEMBER("partial_rotary_factor", HF_ONE) },
    { .key = NULL },
};
static const hf_field linear_fields[] = {
    { SETS("factor", HF_REAL, HF_ROPE_FACTOR, 0), .required = 1 },
    { .key = NULL },
};
static const hf_field llama3_fields[] = {
    { SETS("factor", HF_REAL, HF_ROPE_FACTOR, 0), .required = 1 },
    { SETS("low_freq_factor", HF_REAL, HF_ROPE_LOW, 0), .required = 1 },
    { SETS("high_freq_factor", HF_REAL, HF_ROPE_HIGH, 0), .required = 1, .above = HF_ROPE_LOW,
      .text = "more than low_freq_factor" },
    { SETS("original_max_position_embeddings", HF_WHOLE, HF_ROPE_POSITIONS, 0), .required = 1 },
    { .key = NULL },
};
static const hf_field no_fields[] = { { .key = NULL } };
const hf_rope hf_ropes[] = {
    { "default", no_fields },
    { "linear", linear_fields },
    { "llama3", llama3_fields },
    { NULL, NULL },
};

/* ---- all -------------------------------------------------------------------------------------------- */
const hf_family hf_families[] = {
    { .model = "gpt2",
      .architecture = "GPT2LMHeadModel",
      .prefix = "transformer.",
      .fields = gpt2_fields,
      .tensors = gpt2_tensors,
      .layer_norm = 1 },
    { .model = "llama",
      .architecture = "LlamaForCausalLM",
      .prefix = "model.",
      .fields = llama_fields,
      .tensors = llama_tensors },
    { .model = NULL },
};

const hf_family *hf_family_find(const char *model) {
    for (const hf_family *f = hf_families; f->model; f++)
        if (strcmp(f->model, model) == 0)
            return f;
    return NULL;
}

const char *hf_family_names(const char *word, char out[128]) {
    size_t at = 0;
    for (const hf_family *f = hf_families; f->model && at < 128; f++) {
        const char *before = f == hf_families ? "" : f[1].model ? ", " : " ";
        const char *last = f > hf_families && !f[1].model ? word : "";
        at += (size_t)snprintf(out + at, 128 - at, "%s%s%s%s", before, last, *last ? " " : "", f->model);
    }
    return out;
}

const hf_field *hf_family_field(const char *key, const hf_family **family) {
    const hf_field *found = NULL;
    for (const hf_family *f = hf_families; f->model; f++)
        for (const hf_field *at = f->fields; at->key; at++)
            if (strcmp(at->key, key) == 0 && (!found || !f->layer_norm))
                found = at, *family = f;
    return found;
}
