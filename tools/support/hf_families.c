/* SPDX-License-Identifier: BSD-3-Clause */
/* The table of families. A new family needs its tables here and its table of parameters in tools/models. */
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
/* The model uses one dropout rate behind the embedding and both halves of a layer. An absent rate means 0 here but 0.1
 * in transformers, so exports write the rates. */
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

/* ---- llama and its kind ------------------------------------------------------------------------------ */
#define SHAPE(words, tied, layers, heads, kv, kv_of, head, width, feed, positions)                                     \
    { SETS("vocab_size", HF_WHOLE, HF_VOCABULARY, words) }, { SETS("tie_word_embeddings", HF_BOOL, HF_TIED, tied) },   \
        { SETS("num_hidden_layers", HF_WHOLE, HF_LAYERS, layers) },                                                    \
        { SETS("num_attention_heads", HF_WHOLE, HF_HEADS, heads) },                                                    \
        { SETS("num_key_value_heads", HF_WHOLE, HF_KV_HEADS, kv), .of = kv_of },                                       \
        { SETS("head_dim", HF_WHOLE, HF_HEAD_SIZE, head) }, { SETS("hidden_size", HF_WHOLE, HF_WIDTH, width) },        \
        { SETS("intermediate_size", HF_WHOLE, HF_FEED, feed) },                                                        \
        { SETS("max_position_embeddings", HF_WHOLE, HF_POSITIONS, positions) },                                        \
        { SETS("rms_norm_eps", HF_REAL, HF_EPS, 1e-6) },                                                               \
        { SETS("attention_dropout", HF_RATE, HF_ATTENTION_DROPOUT, 0), .read_only = 1 },                               \
        { MEMBER("attention_bias", HF_FALSE) }, { MEMBER("bos_token_id", HF_IGNORED) }, {                              \
        MEMBER("eos_token_id", HF_IGNORED)                                                                             \
    }
#define SILU                                                                                                           \
    { MEMBER("hidden_act", HF_TEXT), .text = "silu" }
#define GEGLU                                                                                                          \
    { MEMBER("hidden_activation", HF_TEXT), .text = "gelu_pytorch_tanh" }
#define WINDOW(unset, condition)                                                                                       \
    { SETS("sliding_window", HF_WHOLE, HF_WINDOW, unset), .none = 1, .only = condition }
/* transformers 5 writes rope_parameters, 4 writes rope_scaling beside rope_theta. */
#define ROPE                                                                                                           \
    { SETS("rope_theta", HF_REAL, HF_ROPE_THETA, 10000) }, { MEMBER("rope_parameters", HF_ROPE) },                     \
        { MEMBER("rope_scaling", HF_ROPE), .read_only = 1 }, {                                                         \
        MEMBER("partial_rotary_factor", HF_ONE)                                                                        \
    }

static const hf_field llama_fields[] = {
    SHAPE(32000, 0, 32, 32, 1, HF_HEADS, 0, 4096, 11008, 2048),
    SILU,
    ROPE,
    { MEMBER("mlp_bias", HF_FALSE) },
    { .key = NULL },
};
static const hf_field mistral_fields[] = {
    SHAPE(32000, 0, 32, 32, 8, HF_NONE, 0, 4096, 14336, 131072), SILU, ROPE, WINDOW(4096, HF_NONE), { .key = NULL },
};
#define QWEN_WINDOW                                                                                                    \
    { SETS("use_sliding_window", HF_BOOL, HF_WINDOW_USED, 0) }, WINDOW(4096, HF_WINDOW_USED),                          \
        { SETS("max_window_layers", HF_COUNT, HF_WINDOW_FROM, 28), .only = HF_WINDOW_USED }, {                         \
        MEMBER("layer_types", HF_LAYER_TYPES), .setting = HF_WINDOW_EVERY                                              \
    }
static const hf_field qwen2_fields[] = {
    SHAPE(151936, 0, 32, 32, 1, HF_HEADS, 0, 4096, 22016, 32768), SILU, ROPE, QWEN_WINDOW, { .key = NULL },
};
static const hf_field qwen3_fields[] = {
    SHAPE(151936, 0, 32, 32, 1, HF_HEADS, 128, 4096, 22016, 32768), SILU, ROPE, QWEN_WINDOW, { .key = NULL },
};
#define GEMMA(logit_cap)                                                                                               \
    { SETS("query_pre_attn_scalar", HF_REAL, HF_QUERY_SCALAR, 256) },                                                  \
        { SETS("final_logit_softcapping", HF_REAL, HF_LOGIT_CAP, logit_cap), .none = 1 }, {                            \
        MEMBER("use_bidirectional_attention", HF_FALSE)                                                                \
    }
static const hf_field gemma2_fields[] = {
    SHAPE(256000, 1, 26, 8, 4, HF_NONE, 256, 2304, 9216, 8192),
    GEGLU,
    ROPE,
    WINDOW(4096, HF_NONE),
    { SETS("layer_types", HF_LAYER_TYPES, HF_WINDOW_EVERY, 2) },
    { SETS("attn_logit_softcapping", HF_REAL, HF_ATTENTION_CAP, 50), .none = 1 },
    GEMMA(30),
    { .key = NULL },
};
/* Layers with a window have rotary angles of their own. transformers 5 puts both in rope_parameters. */
static const hf_field near_fields[] = {
    { SETS("rope_theta", HF_REAL, HF_ROPE_LOCAL_THETA, 1), .of = HF_ROPE_LOCAL_THETA },
    { MEMBER("rope_type", HF_TEXT), .text = "default" },
    { MEMBER("partial_rotary_factor", HF_ONE) },
    { .key = NULL },
};
static const hf_field ropes_fields[] = {
    { MEMBER("rope_type", HF_EMPTY) },
    { MEMBER("rope_theta", HF_EMPTY) },
    { MEMBER("full_attention", HF_ROPE) },
    { MEMBER("sliding_attention", HF_OBJECT), .inner = near_fields },
    { .key = NULL },
};
static const hf_field gemma3_fields[] = {
    SHAPE(262208, 1, 26, 8, 4, HF_NONE, 256, 2304, 9216, 131072),
    GEGLU,
    { SETS("rope_theta", HF_REAL, HF_ROPE_THETA, 1e6) },
    { SETS("rope_local_base_freq", HF_REAL, HF_ROPE_LOCAL_THETA, 10000) },
    { MEMBER("rope_parameters", HF_OBJECT), .inner = ropes_fields },
    { MEMBER("rope_scaling", HF_ROPE), .read_only = 1 },
    WINDOW(4096, HF_NONE),
    { SETS("sliding_window_pattern", HF_WHOLE, HF_WINDOW_EVERY, 6), .read_only = 1 },
    { SETS("layer_types", HF_LAYER_TYPES, HF_WINDOW_EVERY, 1), .of = HF_WINDOW_EVERY },
    { MEMBER("attn_logit_softcapping", HF_EMPTY) }, /* transformers has no such cap either */
    GEMMA(0),
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
static const hf_field yarn_fields[] = {
    { SETS("factor", HF_REAL, HF_ROPE_FACTOR, 0), .required = 1 },
    { SETS("original_max_position_embeddings", HF_WHOLE, HF_ROPE_POSITIONS, 1), .of = HF_POSITIONS },
    { SETS("beta_fast", HF_REAL, HF_ROPE_FAST, 32) },
    { SETS("beta_slow", HF_REAL, HF_ROPE_SLOW, 1) },
    { SETS("attention_factor", HF_REAL, HF_ROPE_ATTENTION, 0) },
    { SETS("mscale", HF_REAL, HF_ROPE_MSCALE, 0) },
    { SETS("mscale_all_dim", HF_REAL, HF_ROPE_MSCALE_ALL, 0) },
    { SETS("truncate", HF_BOOL, HF_ROPE_WHOLE, 1) },
    { .key = NULL },
};
static const hf_field no_fields[] = { { .key = NULL } };
const hf_rope hf_ropes[] = {
    { "default", no_fields }, { "linear", linear_fields }, { "llama3", llama3_fields }, { "yarn", yarn_fields },
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
#define OF_LLAMAS_KIND(name, class)                                                                                    \
    .model = #name, .architecture = class, .prefix = "model.", .fields = name##_fields, .tensors = llama_tensors
    { OF_LLAMAS_KIND(llama, "LlamaForCausalLM") },
    { OF_LLAMAS_KIND(qwen2, "Qwen2ForCausalLM") },
    { OF_LLAMAS_KIND(qwen3, "Qwen3ForCausalLM") },
    { OF_LLAMAS_KIND(mistral, "MistralForCausalLM") },
    { OF_LLAMAS_KIND(gemma2, "Gemma2ForCausalLM") },
    { OF_LLAMAS_KIND(gemma3, "Gemma3ForCausalLM"), .type = "gemma3_text" },
    { .model = NULL },
};

const hf_family *hf_family_find(const char *model) {
    for (const hf_family *f = hf_families; f->model; f++)
        if (strcmp(f->model, model) == 0)
            return f;
    return NULL;
}

const char *hf_family_type(const hf_family *f) {
    return f->type ? f->type : f->model;
}

const hf_family *hf_family_of_type(const char *type) {
    for (const hf_family *f = hf_families; f->model; f++)
        if (strcmp(hf_family_type(f), type) == 0)
            return f;
    return NULL;
}

const char *hf_family_names(int types, const char *word, char out[128]) {
    size_t at = 0;
    for (const hf_family *f = hf_families; f->model && at < 128; f++) {
        const char *before = f == hf_families ? "" : f[1].model ? ", " : " ";
        const char *last = f > hf_families && !f[1].model ? word : "";
        at += (size_t)snprintf(out + at, 128 - at, "%s%s%s%s", before, last, *last ? " " : "",
                               types ? hf_family_type(f) : f->model);
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
