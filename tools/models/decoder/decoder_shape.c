/* SPDX-License-Identifier: BSD-3-Clause */
/* Sizes, positions and parameters of a decoder, on the CPU and on devices. The model's own begins with a decoder. */
#include "decoder.h"
#include <tessera/tessera.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    LEAST_ROWS = 128,
    MOST_ROWS = 512 /* of a chunk */,
    HEAD_BYTES = 32 << 20 /* of a chunk's logits */,
    HEAD_ROWS = 64 /* at least, if there are */
};

/* ---- sizes ------------------------------------------------------------------------------------------- */
/* The largest divisor of n that is at most `limit`, and 1 if there is none. */
static int64_t divisor(int64_t n, int64_t limit) {
    int64_t k = limit < n ? limit : n;
    while (k > 1 && n % k)
        k--;
    return k < 1 ? 1 : k;
}

/* Few enough for little scratch, and enough that the gradient of a matrix, which every chunk reads and writes, costs
 * little beside the products that make it. */
static int64_t chunk_rows(int64_t width) {
    int64_t rows = width * 4 / 3;
    return rows < LEAST_ROWS ? LEAST_ROWS : rows > MOST_ROWS ? MOST_ROWS : rows;
}

void decoder_sizes(model *m, decoder *d) {
    const model_options *o = &m->options;
    d->m = m;
    d->o = m->o;
    d->llama = strcmp(m->t->name, "llama") == 0;
    d->bytes = strcmp(m->t->name, "gpt") == 0;
    d->half = o->precision == TESS_BF16;
    d->dtype = o->precision;
    d->elem = d->half ? 2 : 4;
    d->batch = o->batch, d->time = o->context, d->width = o->width;
    d->rows = d->batch * d->time;
    d->heads = o->heads;
    d->kv_heads = o->decoder.kv_heads ? o->decoder.kv_heads : o->heads;
    d->size = o->decoder.head_size ? o->decoder.head_size : o->width / o->heads;
    d->q_width = d->heads * d->size;
    d->kv_width = d->kv_heads * d->size;
    d->qkv_width = d->q_width + 2 * d->kv_width;
    d->hidden = o->decoder.feed ? o->decoder.feed : 4 * d->width;
    d->vocabulary = o->decoder.vocabulary ? o->decoder.vocabulary : 256;
    d->eps = o->decoder.norm_eps > 0 ? o->decoder.norm_eps : 1e-5f;
    d->chunk_samples = divisor(d->batch, chunk_rows(d->width) / d->time);
    d->chunk_rows = d->chunk_samples * d->time;
    int64_t rows = HEAD_BYTES / (d->vocabulary * (int64_t)sizeof(float)), few = chunk_rows(d->width);
    rows = rows < few ? rows : few;
    d->head_rows = divisor(d->rows, rows > HEAD_ROWS ? rows : HEAD_ROWS);
}

/* ---- rotary positions -------------------------------------------------------------------------------- */
/* Llama 3.1: long waves are stretched by `factor`, short ones stay, those between go over smoothly. */
static double stretched(const model_decoder *o, double frequency) {
    double turns = (double)o->rope_positions * frequency / 6.283185307179586;
    if (o->rope_factor <= 0 || o->rope_positions == 0)
        return o->rope_factor > 0 ? frequency / o->rope_factor : frequency;
    if (turns < o->rope_low)
        return frequency / o->rope_factor;
    if (turns > o->rope_high)
        return frequency;
    double smooth = (turns - o->rope_low) / (o->rope_high - o->rope_low);
    return (1 - smooth) * frequency / o->rope_factor + smooth * frequency;
}

double decoder_frequency(const decoder *d, int64_t pair) {
    const model_decoder *o = &d->m->options.decoder;
    double theta = o->rope_theta > 0 ? o->rope_theta : 10000;
    return stretched(o, pow(theta, -2.0 * (double)pair / (double)d->size));
}

/* ---- parameters -------------------------------------------------------------------------------------- */
static tess_status add(model *m, const char *module, const char *leaf, int64_t rows, int64_t columns, uint32_t init,
                       double scale) {
    char name[MODEL_NAME];
    snprintf(name, sizeof name, "%s.%s", module, leaf);
    return model__add_param(m, name, (const int64_t[MODEL_DIMS]){ rows, columns }, init, (float)scale);
}

typedef struct {
    const char *leaf;
    int64_t rows, columns;
    double scale; /* 0: a constant */
    float constant;
    int32_t place;
} layer_param;

static int is_in(const layer_param *p, int part) {
    return part == DECODER_WHOLE || (p->place >= DECODER_NORM2_W) == (part == DECODER_FEED);
}

/* Those of a part; the places are the whole layer's. */
static tess_status add_layer_params(model *m, const char *name, int part, const layer_param *list, int32_t n) {
    decoder *d = m->own;
    for (int32_t i = 0; i < DECODER_PLACES; i++)
        d->at[i] = -1;
    for (int32_t i = 0; i < n; i++) {
        const layer_param *p = &list[i];
        d->at[p->place] = i;
        if (!is_in(p, part))
            continue;
        OPS_TRY(add(m, name, p->leaf, p->rows, p->columns, p->scale > 0 ? MODEL_NORMAL : MODEL_CONSTANT,
                    p->scale > 0 ? p->scale : (double)p->constant));
    }
    return TESS_OK;
}

static tess_status add_gpt_layer(model *m, const char *name, int part) {
    const decoder *d = m->own;
    int64_t c = d->width;
    double residual = 0.02 / sqrt(2.0 * m->options.layers); /* GPT-2: the sum over layers keeps its size */
    const layer_param list[] = {
        { "ln_1.weight", c, 0, 0, 1, DECODER_NORM1_W },
        { "ln_1.bias", c, 0, 0, 0, DECODER_NORM1_B },
        { "attn.c_attn.weight", d->qkv_width, c, 0.02, 0, DECODER_Q_W },
        { "attn.c_attn.bias", d->qkv_width, 0, 0, 0, DECODER_Q_B },
        { "attn.c_proj.weight", c, c, residual, 0, DECODER_O_W },
        { "attn.c_proj.bias", c, 0, 0, 0, DECODER_O_B },
        { "ln_2.weight", c, 0, 0, 1, DECODER_NORM2_W },
        { "ln_2.bias", c, 0, 0, 0, DECODER_NORM2_B },
        { "mlp.c_fc.weight", d->hidden, c, 0.02, 0, DECODER_UP_W },
        { "mlp.c_fc.bias", d->hidden, 0, 0, 0, DECODER_UP_B },
        { "mlp.c_proj.weight", c, d->hidden, residual, 0, DECODER_DOWN_W },
        { "mlp.c_proj.bias", c, 0, 0, 0, DECODER_DOWN_B },
    };
    return add_layer_params(m, name, part, list, sizeof list / sizeof *list);
}

static tess_status add_llama_layer(model *m, const char *name, int part) {
    const decoder *d = m->own;
    int64_t c = d->width;
    double residual = 0.02 / sqrt(2.0 * m->options.layers);
    const layer_param list[] = {
        { "input_layernorm.weight", c, 0, 0, 1, DECODER_NORM1_W },
        { "self_attn.q_proj.weight", d->q_width, c, 0.02, 0, DECODER_Q_W },
        { "self_attn.k_proj.weight", d->kv_width, c, 0.02, 0, DECODER_K_W },
        { "self_attn.v_proj.weight", d->kv_width, c, 0.02, 0, DECODER_V_W },
        { "self_attn.o_proj.weight", c, d->q_width, residual, 0, DECODER_O_W },
        { "post_attention_layernorm.weight", c, 0, 0, 1, DECODER_NORM2_W },
        { "mlp.gate_proj.weight", d->hidden, c, 0.02, 0, DECODER_GATE_W },
        { "mlp.up_proj.weight", d->hidden, c, 0.02, 0, DECODER_UP_W },
        { "mlp.down_proj.weight", c, d->hidden, residual, 0, DECODER_DOWN_W },
    };
    return add_layer_params(m, name, part, list, sizeof list / sizeof *list);
}

tess_status decoder_layer_params(model *m, const char *name, int part) {
    const decoder *d = m->own;
    return (d->llama ? add_llama_layer : add_gpt_layer)(m, name, part);
}

void decoder_layer_name(const decoder *d, int32_t i, char name[MODEL_NAME]) {
    snprintf(name, MODEL_NAME, d->llama ? "layers.%d" : "h.%d", i);
}

tess_status decoder_embed_params(model *m) {
    const decoder *d = m->own;
    int64_t positions = m->options.decoder.positions ? m->options.decoder.positions : d->time;
    if (d->llama)
        return add(m, "embed", "weight", d->vocabulary, d->width, MODEL_NORMAL, 0.02);
    OPS_TRY(add(m, "embed", "wte.weight", d->vocabulary, d->width, MODEL_NORMAL, 0.02));
    return add(m, "embed", "wpe.weight", positions, d->width, MODEL_NORMAL, 0.02);
}

tess_status decoder_head_params(model *m) {
    const decoder *d = m->own;
    OPS_TRY(add(m, "head", d->llama ? "norm.weight" : "ln_f.weight", d->width, 0, MODEL_CONSTANT, 1));
    if (!d->llama)
        OPS_TRY(add(m, "head", "ln_f.bias", d->width, 0, MODEL_CONSTANT, 0));
    if (m->options.untied)
        return add(m, "head", "weight", d->vocabulary, d->width, MODEL_NORMAL, 0.02);
    return model__add_alias(m, "head.weight", d->llama ? "embed.weight" : "embed.wte.weight");
}

/* ---- batches ----------------------------------------------------------------------------------------- */
uint64_t decoder_input_bytes(const decoder *d) {
    return sizeof(model_batch) + (uint64_t)(d->batch * (d->time + 1)) * (d->bytes ? 1 : sizeof(int32_t));
}

static tess_status check_head(const decoder *d, const model_batch *batch) {
    if (batch->count > d->rows)
        return tess_fail(TESS_E_DATA, "%s: %u target positions in a batch of %lld", d->m->t->name, batch->count,
                         (long long)d->rows);
    if (batch->want_logits && batch->logits_row >= d->rows)
        return tess_fail(TESS_E_DATA, "%s: logits of position %u in a batch of %lld", d->m->t->name, batch->logits_row,
                         (long long)d->rows);
    return TESS_OK;
}

tess_status decoder_token_check(const decoder *d, int32_t token) {
    if (token >= 0 && token < d->vocabulary)
        return TESS_OK;
    return tess_fail(TESS_E_DATA, "%s: token %d in a batch, expected 0 to %lld", d->m->t->name, token,
                     (long long)d->vocabulary - 1);
}

tess_status decoder_batch_check(const model *m, const void *batch) {
    const decoder *d = m->own;
    const int32_t *tokens = lm_tokens((void *)(uintptr_t)batch);
    OPS_TRY(check_head(d, batch));
    for (int64_t i = 0; !d->bytes && i < d->batch * (d->time + 1); i++)
        OPS_TRY(decoder_token_check(d, tokens[i]));
    return TESS_OK;
}
