/* SPDX-License-Identifier: BSD-3-Clause */
/* Sizes, positions and parameters of a decoder, on the CPU and on devices. model.own begins with a decoder. */
#include "decoder.h"
#include <tessera/tessera.h>

#include <math.h>
#include <stdio.h>

#include "tools/models/lanes.h"

enum {
    LEAST_ROWS = 128,
    MOST_ROWS = 512 /* rows of a chunk */,
    HEAD_BYTES = 32 << 20 /* bytes of a chunk's logits */,
    HEAD_ROWS = 64 /* minimum, if the batch has as many */
};

/* ---- sizes ------------------------------------------------------------------------------------------- */
/* The largest divisor of n that is at most `limit`, and 1 if there is none. */
static int64_t divisor(int64_t n, int64_t limit) {
    int64_t k = limit < n ? limit : n;
    while (k > 1 && n % k)
        k--;
    return k < 1 ? 1 : k;
}

/* Each chunk reads and writes the whole gradient of a matrix. So a chunk has enough rows that this costs little
 * beside the products, and few enough that scratch stays small. */
static int64_t chunk_rows(int64_t width) {
    int64_t rows = width * 4 / 3;
    return rows < LEAST_ROWS ? LEAST_ROWS : rows > MOST_ROWS ? MOST_ROWS : rows;
}

static void find_places(decoder *d) {
    for (int32_t i = 0; i < DECODER_PLACES; i++)
        d->at[i] = -1;
    for (int32_t i = 0; i < d->family->n_params; i++)
        d->at[d->family->params[i].place] = i;
}

/* Layers before window_from see all keys, and so does each whose number is a multiple of window_every. */
int decoder_nearness(const decoder *d, int32_t layer) {
    const model_decoder *o = &d->m->options.decoder;
    int far = layer < o->window_from || (o->window_every > 0 && (layer + 1) % o->window_every == 0);
    return o->window > 0 && !far ? DECODER_NEAR : DECODER_FAR;
}

static void set_sights(decoder *d) {
    const model_decoder *o = &d->m->options.decoder;
    double of = o->query_scalar > 0 ? o->query_scalar : (double)d->size;
    for (int i = 0; i < DECODER_SIGHTS; i++)
        d->sights[i] = (decoder_sight){ .scale = (float)(1.0 / sqrt(of)), .cap = (float)o->attention_cap };
    d->sights[DECODER_NEAR].window = o->window;
}

void decoder_sizes(model *m, decoder *d) {
    const model_options *o = &m->options;
    d->m = m;
    d->o = m->o;
    d->family = m->t->decoder;
    find_places(d);
    d->about_zero = d->family->about_zero;
    d->rotary = !d->family->positions;
    d->one_more = d->family->one_more, d->gelu = d->family->gelu;
    d->gated = decoder_has(d, DECODER_GATE_W);
    d->head_norms = decoder_has(d, DECODER_QUERY_NORM_W), d->after_norms = decoder_has(d, DECODER_AFTER1_W);
    d->beside = m->o->t->mem != TESS_MEM_HOST;
    d->behind = decoder_has(d, DECODER_K_W) && !d->beside;
    d->half = o->precision == TESS_BF16 ? LANES_BF16 : o->precision == TESS_F16 ? LANES_F16 : LANES_F32;
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
    set_sights(d);
    d->embed_scale = d->family->scaled ? (float)sqrt((double)d->width) : 0;
    /* transformers has the factor in the dtype of embeddings */
    if (d->half == LANES_F16)
        d->embed_scale = tess_f32_of_f16(tess_f16_of_f32(d->embed_scale));
    else if (d->half)
        d->embed_scale = tess_f32_of_bf16(tess_bf16_of_f32(d->embed_scale));
    d->logit_cap = (float)o->decoder.logit_cap;
    /* A scale in fp8 is of a whole tensor. So that it depends on no chunk, there is one. */
    d->fp8 = o->products != 0;
    d->chunk_samples = d->beside || d->fp8 ? d->batch : divisor(d->batch, chunk_rows(d->width) / d->time);
    d->chunk_rows = d->chunk_samples * d->time;
    int64_t rows = HEAD_BYTES / (d->vocabulary * (int64_t)sizeof(float)), few = chunk_rows(d->width);
    rows = rows < few ? rows : few;
    d->head_rows = divisor(d->rows, o->head_rows ? o->head_rows : rows > HEAD_ROWS ? rows : HEAD_ROWS);
}

/* ---- rotary positions -------------------------------------------------------------------------------- */
/* Llama 3.1 stretches long waves by `factor` and keeps short ones; between them it interpolates smoothly. */
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

/* Returns the pair whose wave makes `turns` turns within the context before it was stretched. */
static double pair_of_turns(const decoder *d, double theta, double turns) {
    double positions = (double)d->m->options.decoder.rope_positions;
    return (double)d->size * log(positions / (turns * 6.283185307179586)) / (2 * log(theta));
}

/* YaRN (Peng et al., 2023) interpolates by the number of the pair, between the pairs with rope_fast and rope_slow
 * turns. */
static double stretched_by_pairs(const decoder *d, double theta, int64_t pair, double frequency) {
    const model_decoder *o = &d->m->options.decoder;
    double first = pair_of_turns(d, theta, o->rope_fast), last = pair_of_turns(d, theta, o->rope_slow);
    first = o->rope_whole ? floor(first) : first, last = o->rope_whole ? ceil(last) : last;
    first = first > 0 ? first : 0, last = last < (double)d->size - 1 ? last : (double)d->size - 1;
    double part = ((double)pair - first) / (last != first ? last - first : 0.001);
    part = part < 0 ? 0 : part > 1 ? 1 : part;
    return part * frequency / o->rope_factor + (1 - part) * frequency;
}

int decoder_turns_alike(const decoder *d) {
    return !(d->m->options.decoder.rope_local_theta > 0);
}

double decoder_frequency(const decoder *d, int nearness, int64_t pair) {
    const model_decoder *o = &d->m->options.decoder;
    int local = nearness == DECODER_NEAR && !decoder_turns_alike(d);
    double theta = local ? o->rope_local_theta : o->rope_theta > 0 ? o->rope_theta : 10000;
    double frequency = pow(theta, -2.0 * (double)pair / (double)d->size);
    if (local)
        return frequency;
    return o->rope_attention > 0 ? stretched_by_pairs(d, theta, pair, frequency) : stretched(o, frequency);
}

double decoder_turn_scale(const decoder *d, int nearness) {
    double scale = d->m->options.decoder.rope_attention;
    return scale > 0 && (nearness == DECODER_FAR || decoder_turns_alike(d)) ? scale : 1;
}

/* ---- parameters -------------------------------------------------------------------------------------- */
static tess_status add(model *m, const char *module, const char *leaf, int64_t rows, int64_t columns, uint32_t init,
                       double scale) {
    char name[MODEL_NAME];
    snprintf(name, sizeof name, "%s.%s", module, leaf);
    return model__add_param(m, name, (const int64_t[MODEL_DIMS]){ rows, columns }, init, (float)scale);
}

/* Sets the storage format of the parameter that was added last. */
static tess_status rests(model *m, uint32_t stored) {
    m->desc.params[m->desc.n_params - 1].stored = m->options.lora.rank ? stored : STORED_F32;
    return TESS_OK;
}

/* Sides of the products that share an input. They are in fp8 together, since they are one on a device. */
int decoder_in_fp8(const decoder *d, int place, int64_t rows) {
    int64_t qkv = decoder_has(d, DECODER_K_W) ? d->q_width | d->kv_width : d->qkv_width;
    int64_t sides = rows | d->width;
    switch (place) {
    case DECODER_Q_W:
    case DECODER_K_W:
    case DECODER_V_W: sides |= qkv; break;
    case DECODER_O_W: sides |= d->q_width; break;
    case DECODER_GATE_W:
    case DECODER_UP_W:
    case DECODER_DOWN_W: sides |= d->hidden; break;
    default: return 0;
    }
    return d->fp8 && sides % FP8_SIDES == 0; /* a power of two divides all of them */
}

int decoder_is_in(const decoder_param *p, int part) {
    return part == DECODER_WHOLE || (p->place >= DECODER_NORM2_W) == (part == DECODER_FEED);
}

static tess_status add_layer_param(model *m, const char *layer, const decoder_param *p) {
    const decoder *d = m->own;
    const int64_t sizes[DECODER_SIZES] = { 0, d->width, d->q_width, d->kv_width, d->qkv_width, d->hidden, d->size };
    const double scales[] = { 0, 1, 0.02,
                              0.02 / sqrt(2.0 * m->options.layers) }; /* the sum over layers then keeps its size */
    OPS_TRY(add(m, layer, p->leaf, sizes[p->rows], sizes[p->columns],
                p->init < DECODER_NORMAL ? MODEL_CONSTANT : MODEL_NORMAL, scales[p->init]));
    m->desc.params[m->desc.n_params - 1].in_fp8 = decoder_in_fp8(d, p->place, d->rows);
    return rests(m, p->columns ? m->options.lora.matrices : STORED_F32);
}

tess_status decoder_layer_params(model *m, const char *layer, int part) {
    const decoder_family *f = m->t->decoder;
    for (int32_t i = 0; i < f->n_params; i++)
        if (decoder_is_in(&f->params[i], part))
            OPS_TRY(add_layer_param(m, layer, &f->params[i]));
    return TESS_OK;
}

tess_status decoder_embed_params(model *m) {
    const decoder *d = m->own;
    int64_t positions = m->options.decoder.positions ? m->options.decoder.positions : d->time;
    OPS_TRY(add(m, "embed", d->family->embed, d->vocabulary, d->width, MODEL_NORMAL, 0.02));
    OPS_TRY(rests(m, m->options.lora.tables));
    if (d->rotary)
        return TESS_OK;
    return add(m, "embed", d->family->positions, positions, d->width, MODEL_NORMAL, 0.02);
}

tess_status decoder_head_params(model *m) {
    const decoder_family *f = m->t->decoder;
    const decoder *d = m->own;
    char table[MODEL_NAME];
    OPS_TRY(add(m, "head", f->norm_w, d->width, 0, MODEL_CONSTANT, f->one_more ? 0 : 1));
    if (f->norm_b)
        OPS_TRY(add(m, "head", f->norm_b, d->width, 0, MODEL_CONSTANT, 0));
    if (m->options.untied) {
        OPS_TRY(add(m, "head", "weight", d->vocabulary, d->width, MODEL_NORMAL, 0.02));
        return rests(m, m->options.lora.tables);
    }
    snprintf(table, sizeof table, "embed.%s", f->embed);
    return model__add_alias(m, "head.weight", table);
}

/* The order is that in which the parameters are added. */
decoder_ends decoder_ends_of(const decoder *d, const tess_block_call *call, int is_head) {
    decoder_ends e = { 0 };
    const void **const params[] = { &e.table, &e.positions, &e.norm_w, &e.norm_b, &e.head };
    float **const grads[] = { &e.dtable, &e.dpositions, &e.norm_dw, &e.norm_db, &e.dhead };
    const int there[] = { !is_head, !is_head && !d->rotary, is_head, is_head && d->family->norm_b, is_head };
    for (int i = 0, at = 0; i < 5; at += there[i++])
        if (there[i]) {
            *params[i] = call->params[at];
            *grads[i] = call->grads ? call->grads[at] : NULL;
        }
    return e;
}

/* ---- batches ----------------------------------------------------------------------------------------- */
uint64_t decoder_input_bytes(const decoder *d) {
    return sizeof(model_batch) + (uint64_t)(d->batch * (d->time + 1)) * (d->family->bytes ? 1 : sizeof(int32_t));
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
    if (((const model_batch *)batch)->packed && m->o->t->mem != TESS_MEM_HOST && !m->options.packs)
        return tess_fail(TESS_E_UNSUPPORTED, "%s on %s: a batch is packed, the model was made for others", m->t->name,
                         m->o->t->name);
    OPS_TRY(check_head(d, batch));
    for (int64_t i = 0; !d->family->bytes && i < d->batch * (d->time + 1); i++)
        OPS_TRY(decoder_token_check(d, lm_token(tokens[i])));
    return TESS_OK;
}

float decoder_loss_scale(const tess_block_call *call) {
    const model_batch *batch = call->batch;
    double divisor = batch->divisor > 0 ? batch->divisor : (double)batch->count;
    return divisor > 0 ? (float)(1.0 / divisor) * model__loss_scale(call) : 0;
}

tess_status decoder_position_enter(decoder *d, const model_batch *batch) {
    d->position = (int64_t)batch->position - 1;
    if (d->position <= d->filled && d->position < d->time)
        return TESS_OK;
    return tess_fail(TESS_E_INVALID, "%s: position %lld of a sequence of %lld, most %lld", d->m->t->name,
                     (long long)d->position, (long long)d->filled, (long long)d->time);
}
