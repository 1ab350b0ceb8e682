/* SPDX-License-Identifier: BSD-3-Clause */
/* Sizes, operators, parameters and blocks of a decoder. */
#include "decoder.h"
#include <tessera/tessera.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
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

static void choose_sizes(model *m, decoder *d) {
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
    int64_t rows = HEAD_BYTES / (d->vocabulary * (int64_t)sizeof(float));
    d->head_rows = divisor(d->rows, rows > HEAD_ROWS ? rows : HEAD_ROWS);
}

/* ---- operators --------------------------------------------------------------------------------------- */
static tess_status make_matmul(decoder *d, const ops_matmul_shape *s, ops_matmul **out) {
    uint64_t bytes;
    OPS_TRY(d->o->t->matmul_create((ops *)(uintptr_t)d->o, s, out, &bytes));
    d->matmul_bytes = bytes > d->matmul_bytes ? bytes : d->matmul_bytes;
    return TESS_OK;
}

/* `residual`: forward adds, with bias. */
static tess_status make_linear(decoder *d, int64_t rows, int64_t inputs, int64_t outputs, int residual, uint32_t result,
                               decoder_linear *l) {
    ops_matmul_shape y = { .rows = rows, .depth = inputs, .columns = outputs, .turn_b = 1 };
    ops_matmul_shape dx = { .rows = rows, .depth = outputs, .columns = inputs };
    ops_matmul_shape dw = { .rows = outputs, .depth = rows, .columns = inputs, .turn_a = 1 };
    y.factor = dx.factor = dw.factor = dx.result = d->dtype;
    y.result = result;
    y.bias = !d->llama && l != &d->head;
    dw.result = TESS_F32;
    dw.add = 1;
    OPS_TRY(make_matmul(d, &y, &l->forward));
    OPS_TRY(make_matmul(d, &dx, &l->dx));
    OPS_TRY(make_matmul(d, &dw, &l->dw));
    y.add = dx.add = 1;
    if (residual)
        return make_matmul(d, &y, &l->forward_add);
    return d->llama ? make_matmul(d, &dx, &l->dx_add) : TESS_OK;
}

static tess_status make_operators(decoder *d) {
    int64_t n = d->chunk_rows, c = d->width;
    OPS_TRY(make_linear(d, n, c, d->llama ? d->q_width : d->qkv_width, 0, d->dtype, &d->q));
    if (d->llama) {
        OPS_TRY(make_linear(d, n, c, d->kv_width, 0, d->dtype, &d->k));
        OPS_TRY(make_linear(d, n, c, d->kv_width, 0, d->dtype, &d->v));
    }
    OPS_TRY(make_linear(d, n, d->q_width, c, 1, d->dtype, &d->out));
    OPS_TRY(make_linear(d, n, c, d->hidden, 0, d->dtype, &d->up));
    OPS_TRY(make_linear(d, n, d->hidden, c, 1, d->dtype, &d->down));
    OPS_TRY(make_linear(d, d->head_rows, c, d->vocabulary, 0, TESS_F32, &d->head));
    return decoder_tiles_create(d);
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

static tess_status make_turns(decoder *d) {
    const model_decoder *o = &d->m->options.decoder;
    int64_t half = d->size / 2;
    double theta = o->rope_theta > 0 ? o->rope_theta : 10000;
    if (!d->llama)
        return TESS_OK;
    d->turns = malloc((size_t)(d->time * d->size) * sizeof *d->turns);
    if (!d->turns)
        return tess_fail(TESS_E_NOMEM, "out of memory for %lld positions", (long long)d->time);
    for (int64_t i = 0; i < half; i++) {
        double frequency = stretched(o, pow(theta, -2.0 * (double)i / (double)d->size));
        for (int64_t t = 0; t < d->time; t++) {
            d->turns[t * d->size + i] = (float)cos((double)t * frequency);
            d->turns[t * d->size + half + i] = (float)sin((double)t * frequency);
        }
    }
    return TESS_OK;
}

/* ---- parameters and blocks --------------------------------------------------------------------------- */
static tess_status add(model *m, const char *module, const char *leaf, int64_t rows, int64_t columns, uint32_t init,
                       double scale) {
    char name[MODEL_NAME];
    snprintf(name, sizeof name, "%s.%s", module, leaf);
    return model__add_param(m, name, (const int64_t[MODEL_DIMS]){ rows, columns }, init, (float)scale);
}

static tess_status build_embed(model *m) {
    decoder *d = m->own;
    model_block b = { .name = "embed", .flags = TESS_BLOCK_DROP_OUTPUT, .user = m };
    b.output_bytes = (uint64_t)(d->rows * d->width) * d->elem;
    b.forward_scratch_bytes = ops_align((uint64_t)d->rows * sizeof(int32_t));
    b.backward_scratch_bytes = decoder_embed_scratch(d);
    b.forward = decoder_embed_forward;
    b.backward = decoder_embed_backward;
    if (d->llama)
        OPS_TRY(add(m, "embed", "weight", d->vocabulary, d->width, MODEL_NORMAL, 0.02));
    else
        OPS_TRY(add(m, "embed", "wte.weight", d->vocabulary, d->width, MODEL_NORMAL, 0.02));
    int64_t positions = m->options.decoder.positions ? m->options.decoder.positions : d->time;
    if (!d->llama)
        OPS_TRY(add(m, "embed", "wpe.weight", positions, d->width, MODEL_NORMAL, 0.02));
    return model__add_block(m, &b);
}

typedef struct {
    const char *leaf;
    int64_t rows, columns;
    double scale; /* 0: a constant */
    float constant;
    int32_t place;
} layer_param;

static tess_status add_layer_params(model *m, const char *name, const layer_param *list, int32_t n) {
    decoder *d = m->own;
    for (int32_t i = 0; i < DECODER_PLACES; i++)
        d->at[i] = -1;
    for (int32_t i = 0; i < n; i++) {
        const layer_param *p = &list[i];
        d->at[p->place] = i;
        OPS_TRY(add(m, name, p->leaf, p->rows, p->columns, p->scale > 0 ? MODEL_NORMAL : MODEL_CONSTANT,
                    p->scale > 0 ? p->scale : (double)p->constant));
    }
    return TESS_OK;
}

static tess_status add_gpt_layer(model *m, const char *name) {
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
    return add_layer_params(m, name, list, sizeof list / sizeof *list);
}

static tess_status add_llama_layer(model *m, const char *name) {
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
    return add_layer_params(m, name, list, sizeof list / sizeof *list);
}

static tess_status build_layer(model *m, int32_t i) {
    decoder *d = m->own;
    d->layers[i] = (decoder_layer){ d, i };
    model_block b = { .output_bytes = (uint64_t)(d->rows * d->width) * d->elem, .user = &d->layers[i] };
    b.flags = TESS_BLOCK_DROP_OUTPUT | TESS_BLOCK_GRAD_IN_PLACE;
    snprintf(b.name, sizeof b.name, d->llama ? "layers.%d" : "h.%d", i);
    b.saved_bytes = decoder_layer_saved(d, 0);
    b.forward_scratch_bytes = decoder_layer_forward_scratch(d);
    b.backward_scratch_bytes = decoder_layer_backward_scratch(d) + decoder_layer_unsaved(d, 0);
    b.remake_scratch_bytes = decoder_layer_backward_scratch(d) + decoder_layer_kept(d);
    b.selective_saved_bytes = decoder_layer_saved(d, 1);
    b.selective_scratch_bytes = decoder_layer_backward_scratch(d) + decoder_layer_unsaved(d, 1);
    b.forward = decoder_layer_forward;
    b.backward = decoder_layer_backward;
    OPS_TRY((d->llama ? add_llama_layer : add_gpt_layer)(m, b.name));
    return model__add_block(m, &b);
}

static tess_status build_head(model *m) {
    decoder *d = m->own;
    model_block b = { .name = "head", .user = m };
    b.output_bytes = sizeof(model_result) + (uint64_t)d->vocabulary * sizeof(float);
    b.forward_scratch_bytes = decoder_head_forward_scratch(d);
    b.backward_scratch_bytes = decoder_head_backward_scratch(d);
    b.forward = decoder_head_forward;
    b.backward = decoder_head_backward;
    OPS_TRY(add(m, "head", d->llama ? "norm.weight" : "ln_f.weight", d->width, 0, MODEL_CONSTANT, 1));
    if (!d->llama)
        OPS_TRY(add(m, "head", "ln_f.bias", d->width, 0, MODEL_CONSTANT, 0));
    if (m->options.untied)
        OPS_TRY(add(m, "head", "weight", d->vocabulary, d->width, MODEL_NORMAL, 0.02));
    else
        OPS_TRY(model__add_alias(m, "head.weight", d->llama ? "embed.weight" : "embed.wte.weight"));
    return model__add_block(m, &b);
}

tess_status decoder_build(model *m) {
    decoder *d = m->own = calloc(1, sizeof *d);
    m->is_decoder = 1;
    if (!d || !(d->layers = calloc((size_t)m->options.layers, sizeof *d->layers)))
        return tess_fail(TESS_E_NOMEM, "out of memory for model %s", m->t->name);
    choose_sizes(m, d);
    OPS_TRY(make_operators(d));
    OPS_TRY(make_turns(d));
    m->desc.input_bytes = sizeof(model_batch) + (uint64_t)(d->batch * (d->time + 1)) * (d->bytes ? 1 : sizeof(int32_t));
    OPS_TRY(build_embed(m));
    for (int32_t i = 0; i < m->options.layers; i++)
        OPS_TRY(build_layer(m, i));
    return build_head(m);
}

void decoder_release(model *m) {
    decoder *d = m->own;
    if (!d)
        return;
    decoder_linear *all[] = { &d->q, &d->k, &d->v, &d->out, &d->up, &d->down, &d->head };
    for (size_t i = 0; d->o && i < sizeof all / sizeof *all; i++) {
        ops_matmul *parts[] = { all[i]->forward, all[i]->forward_add, all[i]->dx, all[i]->dx_add, all[i]->dw };
        for (size_t k = 0; k < sizeof parts / sizeof *parts; k++)
            d->o->t->matmul_destroy(parts[k]);
    }
    decoder_tiles_destroy(d->tiles);
    decoder_sequence_destroy(d->sequence);
    free(d->turns);
    free(d->layers);
    free(d);
}

/* ---- a sequence -------------------------------------------------------------------------------------- */
tess_status model_sequence_begin(model *m, uint64_t *bytes) {
    decoder *d = m->own;
    if (!m->is_decoder)
        return tess_fail(TESS_E_UNSUPPORTED, "%s on %s keeps no keys and values", m->t->name, m->o->t->name);
    OPS_TRY(d->sequence ? TESS_OK : decoder_sequence_create(d, &d->sequence));
    *bytes = decoder_sequence_bytes(d->sequence);
    return TESS_OK;
}

void model_sequence_end(model *m) {
    decoder *d = m->own;
    if (!m->is_decoder)
        return;
    decoder_sequence_destroy(d->sequence);
    d->sequence = NULL;
}

/* ---- llama; gpt.c has gpt and gpt2 ----------------------------------------------------------------------------------
 */
static tess_status build_on_cpu(model *m) {
    if (m->o->t->mem != TESS_MEM_HOST)
        return tess_fail(TESS_E_UNSUPPORTED, "model %s runs on the CPU only; --device cuda has gpt and gpt2",
                         m->t->name);
    return decoder_build(m);
}

tess_status decoder_check(const model_options *o, const char *name) {
    const model_decoder *d = &o->decoder;
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

static tess_status check_llama(const model_options *o) {
    int32_t size = o->decoder.head_size ? o->decoder.head_size : o->heads > 0 ? o->width / o->heads : 0;
    OPS_TRY(decoder_check(o, "llama"));
    return size % 2 ? tess_fail(TESS_E_INVALID, "llama: heads of %d elements, expected an even number", size) : TESS_OK;
}

const model_ops model_llama = {
    .name = "llama",
    .defaults = { .batch = 4,
                  .layers = 4,
                  .heads = 4,
                  .width = 128,
                  .context = 64,
                  .decoder = { .kv_heads = 2, .feed = 344 } },
    .optimizer_groups = 2,
    .check = check_llama,
    .build = build_on_cpu,
    .release = decoder_release,
};
