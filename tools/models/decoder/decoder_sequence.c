/* SPDX-License-Identifier: BSD-3-Clause */
/* One token at a time, with the keys and values of those before it: what text is sampled with. Products are of one row,
 * so that their sums may come in another order than in a pass over a whole batch. */
#include "decoder_rows.h"
#include "tools/models/parallel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct decoder_sequence {
    const decoder *d;
    int64_t filled;       /* positions whose keys and values are there */
    int64_t at;           /* the position of the running pass */
    float *past;          /* [layer][position][2 · kv_width]: keys, then values */
    float *query, *value; /* one row in fp32 */
    float *scores;        /* [thread][position] */
    float *logits, *stats;
    void *normal, *qkv, *attended, *middle, *gate, *up, *wide;
    ops_matmul *q, *k, *out, *rise, *down, *head;
    char *scratch; /* of products */
    void *memory;
    uint64_t bytes;
};

/* ---- making ---------------------------------------------------------------------------------------- */
/* `bias`: place of the product's; -1: none. */
static tess_status make_product(decoder_sequence *s, int64_t inputs, int64_t outputs, int add, int bias, uint64_t *most,
                                ops_matmul **out) {
    const decoder *d = s->d;
    uint64_t bytes = 0;
    ops_matmul_shape y = { .rows = 1, .depth = inputs, .columns = outputs, .turn_b = 1, .add = add };
    y.factor = d->dtype;
    y.result = out == &s->head ? TESS_F32 : d->dtype;
    y.bias = bias >= 0 && decoder_has(d, bias);
    tess_status status = d->o->t->matmul_create((ops *)(uintptr_t)d->o, &y, out, &bytes);
    *most = bytes > *most ? bytes : *most;
    return status;
}

static tess_status make_products(decoder_sequence *s, uint64_t *scratch) {
    const decoder *d = s->d;
    OPS_TRY(make_product(s, d->width, d->behind ? d->q_width : d->qkv_width, 0, DECODER_Q_B, scratch, &s->q));
    if (d->behind)
        OPS_TRY(make_product(s, d->width, d->kv_width, 0, -1, scratch, &s->k));
    OPS_TRY(make_product(s, d->q_width, d->width, 1, DECODER_O_B, scratch, &s->out));
    OPS_TRY(make_product(s, d->width, d->hidden, 0, DECODER_UP_B, scratch, &s->rise));
    OPS_TRY(make_product(s, d->hidden, d->width, 1, DECODER_DOWN_B, scratch, &s->down));
    return make_product(s, d->width, d->vocabulary, 0, -1, scratch, &s->head);
}

/* `at` null: only counts. */
static uint64_t place(decoder_sequence *s, char *at, uint64_t scratch) {
    const decoder *d = s->d;
    const char *start = at;
    uint64_t layers = (uint64_t)d->m->options.layers, time = (uint64_t)d->time;
    s->past = decoder_cut(&at, layers * time * (uint64_t)(2 * d->kv_width) * sizeof(float));
    s->query = decoder_cut(&at, (uint64_t)d->q_width * sizeof(float));
    s->value = decoder_cut(&at, (uint64_t)d->q_width * sizeof(float));
    s->scores = decoder_cut(&at, (uint64_t)d->o->threads * time * sizeof(float));
    s->logits = decoder_cut(&at, (uint64_t)d->vocabulary * sizeof(float));
    s->stats = decoder_cut(&at, 2 * sizeof(float));
    s->normal = decoder_cut(&at, decoder_bytes(d, 1, d->width));
    s->qkv = decoder_cut(&at, decoder_bytes(d, 1, d->qkv_width));
    s->attended = decoder_cut(&at, decoder_bytes(d, 1, d->q_width));
    s->middle = decoder_cut(&at, decoder_bytes(d, 1, d->width));
    s->gate = decoder_cut(&at, decoder_bytes(d, 1, d->hidden));
    s->up = decoder_cut(&at, decoder_bytes(d, 1, d->hidden));
    s->wide = decoder_cut(&at, decoder_bytes(d, 1, d->hidden));
    s->scratch = decoder_cut(&at, scratch);
    return (uint64_t)(at - start);
}

tess_status decoder_sequence_create(decoder *d, decoder_sequence **out) {
    uint64_t scratch = 0;
    decoder_sequence *s = calloc(1, sizeof *s);
    if (!s)
        return tess_fail(TESS_E_NOMEM, "out of memory for a sequence");
    s->d = d;
    tess_status status = make_products(s, &scratch);
    s->bytes = place(s, NULL, scratch);
    if (status == TESS_OK && !(s->memory = aligned_alloc(64, s->bytes)))
        status = tess_fail(TESS_E_NOMEM, "out of memory for the keys and values of a sequence, %llu bytes",
                           (unsigned long long)s->bytes);
    if (status != TESS_OK) {
        decoder_sequence_destroy(s);
        return status;
    }
    place(s, s->memory, scratch);
    *out = s;
    return TESS_OK;
}

uint64_t decoder_sequence_bytes(const decoder_sequence *s) {
    return s->bytes;
}

void decoder_sequence_destroy(decoder_sequence *s) {
    if (!s)
        return;
    ops_matmul *const all[] = { s->q, s->k, s->out, s->rise, s->down, s->head };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        s->d->o->t->matmul_destroy(all[i]);
    free(s->memory);
    free(s);
}

/* ---- the token ---------------------------------------------------------------------------------------- */
tess_status decoder_sequence_embed(decoder_sequence *s, const tess_block_call *call) {
    const decoder *d = s->d;
    void *batch = (void *)(uintptr_t)call->batch;
    int64_t at = (int64_t)((const model_batch *)batch)->position - 1;
    int32_t id = d->family->bytes ? gpt_text(batch)[0] : lm_tokens(batch)[0];
    if (at > s->filled || at >= d->time)
        return tess_fail(TESS_E_INVALID, "%s: position %lld of a sequence of %lld, most %lld", d->m->t->name,
                         (long long)at, (long long)s->filled, (long long)d->time);
    if (id < 0 || id >= d->vocabulary)
        return tess_fail(TESS_E_DATA, "%s: token %d, expected 0 to %lld", d->m->t->name, id,
                         (long long)d->vocabulary - 1);
    s->at = at;
    decoder_embedding_one(d, id, at, call->params[0], d->rotary ? NULL : call->params[1], call->output);
    return TESS_OK;
}

/* ---- a layer ------------------------------------------------------------------------------------------ */
static const void *param(const decoder_layer *l, const tess_block_call *call, int place) {
    int32_t at = l->d->at[place];
    return at < 0 ? NULL : call->params[at - l->first];
}

static void widen(const decoder *d, const void *x, int64_t elems, float *out) {
    for (int64_t i = 0; i < elems; i += LANES)
        floats_put(rows_at(d, x, i, elems - i), out, i, elems - i);
}

typedef struct {
    const decoder_sequence *s;
    const float *past; /* of the layer */
} attend;

OPS_CLONES static void weigh(const float *q, const float *keys, int64_t n, int64_t stride, int64_t size, float scale,
                             float *p) {
    float most = 0;
    double sum = 0;
    for (int64_t t = 0; t < n; t++) {
        double dot = 0;
        for (int64_t i = 0; i < size; i++)
            dot += (double)q[i] * (double)keys[t * stride + i];
        p[t] = scale * (float)dot;
        most = t == 0 || p[t] > most ? p[t] : most;
    }
    for (int64_t t = 0; t < n; t++)
        p[t] = ops_exp(p[t] - most);
    for (int64_t t = 0; t < n; t++)
        sum += p[t];
    for (int64_t t = 0; t < n; t++)
        p[t] *= (float)(1.0 / sum);
}

static void attend_heads(void *arg, int32_t thread, int64_t first, int64_t last) {
    const attend *a = arg;
    const decoder_sequence *s = a->s;
    const decoder *d = s->d;
    float *p = s->scores + thread * d->time, scale = (float)(1.0 / sqrt((double)d->size));
    int64_t stride = 2 * d->kv_width, n = s->at + 1;
    for (int64_t h = first; h < last; h++) {
        const float *keys = a->past + h / (d->heads / d->kv_heads) * d->size, *values = keys + d->kv_width;
        float *y = s->value + h * d->size;
        weigh(s->query + h * d->size, keys, n, stride, d->size, scale, p);
        memset(y, 0, (size_t)d->size * sizeof *y);
        for (int64_t t = 0; t < n; t++)
            for (int64_t i = 0; i < d->size; i++)
                y[i] += p[t] * values[t * stride + i];
    }
}

/* From the position's queries, keys and values to what attention gives it. */
static void look_back(decoder_sequence *s, int32_t layer) {
    const decoder *d = s->d;
    float *past = s->past + (int64_t)layer * d->time * 2 * d->kv_width;
    attend a = { s, past };
    decoder_rope_one(d, s->qkv, s->at);
    widen(d, s->qkv, d->q_width, s->query);
    widen(d, decoder_at(d, s->qkv, d->q_width), 2 * d->kv_width, past + s->at * 2 * d->kv_width);
    ops_parallel(d->o, d->heads, 1, attend_heads, &a);
    for (int64_t i = 0; i < d->q_width; i += LANES)
        rows_put(d, floats_at(s->value, i, d->q_width - i), s->attended, i, d->q_width - i);
}

static tess_status project(decoder_sequence *s, const decoder_layer *l, const tess_block_call *call) {
    const decoder *d = s->d;
    const ops_table *t = d->o->t;
    OPS_TRY(t->matmul(s->q, s->normal, param(l, call, DECODER_Q_W), param(l, call, DECODER_Q_B), s->qkv, s->scratch));
    if (!d->behind)
        return TESS_OK;
    char *k = decoder_at(d, s->qkv, d->q_width);
    OPS_TRY(t->matmul(s->k, s->normal, param(l, call, DECODER_K_W), NULL, k, s->scratch));
    return t->matmul(s->k, s->normal, param(l, call, DECODER_V_W), NULL, decoder_at(d, k, d->kv_width), s->scratch);
}

static tess_status attend_back(decoder_sequence *s, const decoder_layer *l, const tess_block_call *call, void *middle) {
    const decoder *d = s->d;
    decoder_norm(d, call->input, param(l, call, DECODER_NORM1_W), param(l, call, DECODER_NORM1_B), s->normal, s->stats,
                 1);
    OPS_TRY(project(s, l, call));
    look_back(s, l->index);
    memcpy(middle, call->input, (size_t)d->width * d->elem);
    return d->o->t->matmul(s->out, s->attended, param(l, call, DECODER_O_W), param(l, call, DECODER_O_B), middle,
                           s->scratch);
}

static tess_status feed(decoder_sequence *s, const decoder_layer *l, const tess_block_call *call, const void *middle) {
    const decoder *d = s->d;
    const ops_table *t = d->o->t;
    decoder_norm(d, middle, param(l, call, DECODER_NORM2_W), param(l, call, DECODER_NORM2_B), s->normal, s->stats, 1);
    if (d->gated)
        OPS_TRY(t->matmul(s->rise, s->normal, param(l, call, DECODER_GATE_W), NULL, s->gate, s->scratch));
    OPS_TRY(
        t->matmul(s->rise, s->normal, param(l, call, DECODER_UP_W), param(l, call, DECODER_UP_B), s->up, s->scratch));
    decoder_act(d, d->gated ? s->gate : NULL, s->up, s->wide, d->hidden);
    memcpy(call->output, middle, (size_t)d->width * d->elem);
    return t->matmul(s->down, s->wide, param(l, call, DECODER_DOWN_W), param(l, call, DECODER_DOWN_B), call->output,
                     s->scratch);
}

tess_status decoder_sequence_layer(decoder_sequence *s, const decoder_layer *l, const tess_block_call *call) {
    if (l->part != DECODER_FEED)
        OPS_TRY(attend_back(s, l, call, l->part == DECODER_WHOLE ? s->middle : call->output));
    if (l->part == DECODER_ATTENTION)
        return TESS_OK;
    return feed(s, l, call, l->part == DECODER_WHOLE ? s->middle : call->input);
}

/* ---- the head ----------------------------------------------------------------------------------------- */
tess_status decoder_sequence_head(decoder_sequence *s, const tess_block_call *call) {
    const decoder *d = s->d;
    const void *norm_b = d->family->norm_b ? call->params[1] : NULL, *w = call->params[d->family->norm_b ? 2 : 1];
    decoder_norm(d, call->input, call->params[0], norm_b, s->normal, s->stats, 1);
    OPS_TRY(d->o->t->matmul(s->head, s->normal, w, NULL, s->logits, s->scratch)); /* aligned, as the result is not */
    *(model_result *)call->output = (model_result){ .count = 0 };
    memcpy(lm_logits(call->output), s->logits, (size_t)d->vocabulary * sizeof(float));
    s->filled = s->at + 1;
    return TESS_OK;
}
