/* SPDX-License-Identifier: BSD-3-Clause */
/* The decoders: the parts of each family and the options that each accepts. */
#include "decoder/decoder.h"
#include <tessera/tessera.h>

/* ---- families ---------------------------------------------------------------------------------------- */
#define GPT2_LAYERS                                                                                                    \
    .embed = "wte.weight", .positions = "wpe.weight", .layer = "h", .norm_w = "ln_f.weight", .norm_b = "ln_f.bias",    \
    .halves = { [DECODER_ATTENTION] = { "attn", "ln_1" }, [DECODER_FEED] = { "mlp", "ln_2" } }, .params = gpt2_layer,  \
    .n_params = sizeof gpt2_layer / sizeof *gpt2_layer

static const decoder_param gpt2_layer[] = {
    { "ln_1.weight", DECODER_NORM1_W, DECODER_WIDTH, 0, DECODER_ONES },
    { "ln_1.bias", DECODER_NORM1_B, DECODER_WIDTH, 0, DECODER_ZEROS },
    { "attn.c_attn.weight", DECODER_Q_W, DECODER_QKV, DECODER_WIDTH, DECODER_NORMAL },
    { "attn.c_attn.bias", DECODER_Q_B, DECODER_QKV, 0, DECODER_ZEROS },
    { "attn.c_proj.weight", DECODER_O_W, DECODER_WIDTH, DECODER_Q, DECODER_RESIDUAL },
    { "attn.c_proj.bias", DECODER_O_B, DECODER_WIDTH, 0, DECODER_ZEROS },
    { "ln_2.weight", DECODER_NORM2_W, DECODER_WIDTH, 0, DECODER_ONES },
    { "ln_2.bias", DECODER_NORM2_B, DECODER_WIDTH, 0, DECODER_ZEROS },
    { "mlp.c_fc.weight", DECODER_UP_W, DECODER_HIDDEN, DECODER_WIDTH, DECODER_NORMAL },
    { "mlp.c_fc.bias", DECODER_UP_B, DECODER_HIDDEN, 0, DECODER_ZEROS },
    { "mlp.c_proj.weight", DECODER_DOWN_W, DECODER_WIDTH, DECODER_HIDDEN, DECODER_RESIDUAL },
    { "mlp.c_proj.bias", DECODER_DOWN_B, DECODER_WIDTH, 0, DECODER_ZEROS },
};
static const decoder_family gpt_family = { GPT2_LAYERS, .bytes = 1 };
static const decoder_family gpt2_family = { GPT2_LAYERS };

#define LLAMA_ATTENTION                                                                                                \
    { "self_attn.q_proj.weight", DECODER_Q_W, DECODER_Q, DECODER_WIDTH, DECODER_NORMAL },                              \
        { "self_attn.k_proj.weight", DECODER_K_W, DECODER_KV, DECODER_WIDTH, DECODER_NORMAL },                         \
        { "self_attn.v_proj.weight", DECODER_V_W, DECODER_KV, DECODER_WIDTH, DECODER_NORMAL }, {                       \
        "self_attn.o_proj.weight", DECODER_O_W, DECODER_WIDTH, DECODER_Q, DECODER_RESIDUAL                             \
    }
#define LLAMA_PRODUCTS                                                                                                 \
    { "mlp.gate_proj.weight", DECODER_GATE_W, DECODER_HIDDEN, DECODER_WIDTH, DECODER_NORMAL },                         \
        { "mlp.up_proj.weight", DECODER_UP_W, DECODER_HIDDEN, DECODER_WIDTH, DECODER_NORMAL }, {                       \
        "mlp.down_proj.weight", DECODER_DOWN_W, DECODER_WIDTH, DECODER_HIDDEN, DECODER_RESIDUAL                        \
    }
#define LLAMA_FEED                                                                                                     \
    { "post_attention_layernorm.weight", DECODER_NORM2_W, DECODER_WIDTH, 0, DECODER_ONES }, LLAMA_PRODUCTS
static const decoder_param llama_layer[] = {
    { "input_layernorm.weight", DECODER_NORM1_W, DECODER_WIDTH, 0, DECODER_ONES },
    LLAMA_ATTENTION,
    LLAMA_FEED,
};

/* Qwen 2 has biases. They follow the matrices in this list, because the device code takes adjacent vectors as one. */
static const decoder_param qwen2_layer[] = {
    { "input_layernorm.weight", DECODER_NORM1_W, DECODER_WIDTH, 0, DECODER_ONES },
    { "self_attn.q_proj.weight", DECODER_Q_W, DECODER_Q, DECODER_WIDTH, DECODER_NORMAL },
    { "self_attn.k_proj.weight", DECODER_K_W, DECODER_KV, DECODER_WIDTH, DECODER_NORMAL },
    { "self_attn.v_proj.weight", DECODER_V_W, DECODER_KV, DECODER_WIDTH, DECODER_NORMAL },
    { "self_attn.q_proj.bias", DECODER_Q_B, DECODER_Q, 0, DECODER_ZEROS },
    { "self_attn.k_proj.bias", DECODER_K_B, DECODER_KV, 0, DECODER_ZEROS },
    { "self_attn.v_proj.bias", DECODER_V_B, DECODER_KV, 0, DECODER_ZEROS },
    { "self_attn.o_proj.weight", DECODER_O_W, DECODER_WIDTH, DECODER_Q, DECODER_RESIDUAL },
    LLAMA_FEED,
};
static const decoder_param qwen3_layer[] = {
    { "input_layernorm.weight", DECODER_NORM1_W, DECODER_WIDTH, 0, DECODER_ONES },
    LLAMA_ATTENTION,
    { "self_attn.q_norm.weight", DECODER_QUERY_NORM_W, DECODER_HEAD, 0, DECODER_ONES },
    { "self_attn.k_norm.weight", DECODER_KEY_NORM_W, DECODER_HEAD, 0, DECODER_ONES },
    LLAMA_FEED,
};

/* Gemma's gains are 1 + the parameter, so they start at zero. */
#define GEMMA_FEED                                                                                                     \
    { "post_attention_layernorm.weight", DECODER_AFTER1_W, DECODER_WIDTH, 0, DECODER_ZEROS },                          \
        { "pre_feedforward_layernorm.weight", DECODER_NORM2_W, DECODER_WIDTH, 0, DECODER_ZEROS }, LLAMA_PRODUCTS, {    \
        "post_feedforward_layernorm.weight", DECODER_AFTER2_W, DECODER_WIDTH, 0, DECODER_ZEROS                         \
    }
static const decoder_param gemma2_layer[] = {
    { "input_layernorm.weight", DECODER_NORM1_W, DECODER_WIDTH, 0, DECODER_ZEROS },
    LLAMA_ATTENTION,
    GEMMA_FEED,
};
static const decoder_param gemma3_layer[] = {
    { "input_layernorm.weight", DECODER_NORM1_W, DECODER_WIDTH, 0, DECODER_ZEROS },
    LLAMA_ATTENTION,
    { "self_attn.q_norm.weight", DECODER_QUERY_NORM_W, DECODER_HEAD, 0, DECODER_ZEROS },
    { "self_attn.k_norm.weight", DECODER_KEY_NORM_W, DECODER_HEAD, 0, DECODER_ZEROS },
    GEMMA_FEED,
};

#define LLAMA_LAYERS(layer_params)                                                                                     \
    .about_zero = 1, .embed = "weight", .layer = "layers", .norm_w = "norm.weight",                                    \
    .halves = { [DECODER_ATTENTION] = { "self_attn", "input_layernorm" },                                              \
                [DECODER_FEED] = { "mlp", "post_attention_layernorm" } },                                              \
    .params = layer_params, .n_params = sizeof layer_params / sizeof *layer_params
#define GEMMA .one_more = 1, .gelu = 1, .scaled = 1
static const decoder_family llama_family = { LLAMA_LAYERS(llama_layer) };
static const decoder_family qwen2_family = { LLAMA_LAYERS(qwen2_layer) };
static const decoder_family qwen3_family = { LLAMA_LAYERS(qwen3_layer) };
static const decoder_family gemma2_family = { LLAMA_LAYERS(gemma2_layer), GEMMA };
static const decoder_family gemma3_family = { LLAMA_LAYERS(gemma3_layer), GEMMA };

/* ---- a sequence -------------------------------------------------------------------------------------- */
tess_status model_sequence_begin(model *m, uint64_t *bytes) {
    if (!m->t->decoder)
        return tess_fail(TESS_E_UNSUPPORTED, "%s on %s keeps no keys and values", m->t->name, m->o->t->name);
    return ((const decoder *)m->own)->t->sequence_begin(m, bytes);
}

void model_sequence_end(model *m) {
    if (m->t->decoder)
        ((const decoder *)m->own)->t->sequence_end(m);
}

/* ---- gpt: a decoder over bytes --------------------------------------------------------------------------- */
static tess_status check_gpt(const model_ops *t, const model_options *o) {
    (void)t;
    if (o->layers < 1 || o->layers > 1000)
        return tess_fail(TESS_E_INVALID, "layers %d: expected 1 to 1000", o->layers);
    if (o->width < 1 || o->width > 65536)
        return tess_fail(TESS_E_INVALID, "width %d: expected 1 to 65536", o->width);
    if (o->heads < 1 || o->width % o->heads)
        return tess_fail(TESS_E_INVALID, "heads %d: expected a divisor of width %d", o->heads, o->width);
    if (o->context < 1 || (int64_t)o->context * o->batch > 1 << 24)
        return tess_fail(TESS_E_INVALID, "context %d with batch %d: expected 1 to %d positions in a batch", o->context,
                         o->batch, 1 << 24);
    return TESS_OK;
}

const model_ops model_gpt = {
    .name = "gpt",
    .defaults = { .batch = 6, .layers = 4, .heads = 4, .width = 128, .context = 64 },
    .optimizer_groups = 2,
    .decoder = &gpt_family,
    .check = check_gpt,
    .check_batch = decoder_batch_check,
    .build = decoder_build,
    .release = decoder_release,
};

/* ---- decoders of model folders ------------------------------------------------------------------------- */
static tess_status check_shape(const model_ops *t, const model_options *o) {
    const model_decoder *d = &o->decoder;
    const char *name = t->name;
    int32_t kv = d->kv_heads ? d->kv_heads : o->heads;
    if (o->layers < 1 || o->layers > 1000 || o->width < 1 || o->width > 65536)
        return tess_fail(TESS_E_INVALID, "%s: %d layers of width %d: expected 1 to 1000 and 1 to 65536", name,
                         o->layers, o->width);
    if (o->heads < 1 || (!d->head_size && o->width % o->heads))
        return tess_fail(TESS_E_INVALID, "heads %d: expected a divisor of width %d", o->heads, o->width);
    if (kv < 1 || o->heads % kv)
        return tess_fail(TESS_E_INVALID, "%s: %d key-value heads, expected a divisor of %d heads", name, kv, o->heads);
    if (o->context < 1 || (int64_t)o->context * o->batch > 1 << 24)
        return tess_fail(TESS_E_INVALID, "context %d with batch %d: expected 1 to %d positions in a batch", o->context,
                         o->batch, 1 << 24);
    if (d->positions && o->context > d->positions)
        return tess_fail(TESS_E_INVALID, "context %d: the model has %d positions", o->context, d->positions);
    return TESS_OK;
}

static tess_status check_llama(const model_ops *t, const model_options *o) {
    int32_t size = o->decoder.head_size ? o->decoder.head_size : o->heads > 0 ? o->width / o->heads : 0;
    OPS_TRY(check_shape(t, o));
    if (size % 2)
        return tess_fail(TESS_E_INVALID, "%s: heads of %d elements, expected an even number", t->name, size);
    if (!t->decoder->one_more)
        return TESS_OK;
    if (o->dropout > 0)
        return tess_fail(TESS_E_UNSUPPORTED, "%s: dropout %g, but it has none", t->name, (double)o->dropout);
    return o->half_units ? tess_fail(TESS_E_UNSUPPORTED, "%s: its units are whole layers: leave out --units", t->name)
                         : TESS_OK;
}

#define DECODER(model, of, fits)                                                                                       \
    .name = #model, .optimizer_groups = 2, .decoder = &of##_family, .check = fits, .check_batch = decoder_batch_check, \
    .build = decoder_build, .release = decoder_release
#define SMALL .batch = 4, .layers = 4, .heads = 4, .width = 128, .context = 64
#define SMALL_LLAMA                                                                                                    \
    {                                                                                                                  \
        SMALL, .decoder = {.kv_heads = 2, .feed = 344 }                                                                \
    }

const model_ops model_gpt2 = { DECODER(gpt2, gpt2, check_shape), .defaults = { SMALL } };
const model_ops model_llama = { DECODER(llama, llama, check_llama), .defaults = SMALL_LLAMA };
const model_ops model_qwen2 = { DECODER(qwen2, qwen2, check_llama), .defaults = SMALL_LLAMA };
const model_ops model_qwen3 = { DECODER(qwen3, qwen3, check_llama), .defaults = SMALL_LLAMA };
const model_ops model_mistral = { DECODER(mistral, llama, check_llama), .defaults = SMALL_LLAMA };
const model_ops model_gemma2 = { DECODER(gemma2, gemma2, check_llama), .defaults = SMALL_LLAMA };
const model_ops model_gemma3 = { DECODER(gemma3, gemma3, check_llama), .defaults = SMALL_LLAMA };
