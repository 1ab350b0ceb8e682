/* SPDX-License-Identifier: BSD-3-Clause */
/* Generates one token at a time from the saved keys and values of earlier tokens. Products have one row, so their
 * sums may have another order than in a pass over a whole batch. */
#include "decoder_rows.h"
#include "tools/models/parallel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct decoder_sequence {
    const decoder *d;
    float *past;          /* [layer][position][2 · kv_width]: keys, then values */
    float *query, *value; /* one row as fp32 */
    float *scores;        /* [thread][position] */
    float *logits, *stats;
    void *normal, *qkv, *attended, *middle, *gate, *up, *wide, *heads, *after;
    float *head_stats;
    decoder_linears p; /* products of one row */
    char *scratch;     /* scratch of products */
    void *memory;
    uint64_t bytes;
};

/* ---- create and destroy --------------------------------------------------------------------------------- */
/* With `at` null it only counts bytes. */
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
    s->heads = decoder_cut(&at, d->head_norms ? decoder_bytes(d, 1, d->q_width + d->kv_width) : 0);
    s->head_stats = decoder_cut(&at, d->head_norms ? (uint64_t)(2 * (d->heads + d->kv_heads)) * sizeof(float) : 0);
    s->after = decoder_cut(&at, d->after_norms ? decoder_bytes(d, 1, d->width) : 0);
    s->scratch = decoder_cut(&at, scratch);
    return (uint64_t)(at - start);
}

static void destroy(decoder_sequence *s) {
    decoder_linears_destroy(s->d, &s->p);
    free(s->memory);
    free(s);
}

static tess_status create(const decoder *d, decoder_sequence **out) {
    decoder_sequence *s = calloc(1, sizeof *s);
    if (!s)
        return tess_fail(TESS_E_NOMEM, "out of memory for a sequence");
    s->d = d;
    tess_status status = decoder_linears_create(d, 1, 1, 0, &s->p);
    uint64_t scratch = decoder_linears_forward_bytes(&s->p);
    s->bytes = place(s, NULL, scratch);
    if (status == TESS_OK && !(s->memory = aligned_alloc(64, s->bytes)))
        status = tess_fail(TESS_E_NOMEM, "out of memory for the keys and values of a sequence, %llu bytes",
                           (unsigned long long)s->bytes);
    if (status != TESS_OK) {
        destroy(s);
        return status;
    }
    place(s, s->memory, scratch);
    *out = s;
    return TESS_OK;
}

tess_status decoder_sequence_begin(model *m, uint64_t *bytes) {
    decoder *d = m->own;
    OPS_TRY(d->sequence ? TESS_OK : create(d, &d->sequence));
    *bytes = d->sequence->bytes;
    return TESS_OK;
}

void decoder_sequence_end(model *m) {
    decoder *d = m->own;
    if (d->sequence)
        destroy(d->sequence);
    d->sequence = NULL;
    d->filled = 0;
}

/* ---- embedding of the token ------------------------------------------------------------------------------ */
tess_status decoder_sequence_embed(decoder *d, const tess_block_call *call) {
    void *batch = (void *)(uintptr_t)call->batch;
    int32_t id = d->family->bytes ? gpt_text(batch)[0] : lm_tokens(batch)[0];
    OPS_TRY(decoder_position_enter(d, batch));
    if (id < 0 || id >= d->vocabulary)
        return tess_fail(TESS_E_DATA, "%s: token %d, expected 0 to %lld", d->m->t->name, id,
                         (long long)d->vocabulary - 1);
    decoder_ends e = decoder_ends_of(d, call, 0);
    decoder_embedding_one(d, id, d->position, e.table, e.positions, call->output);
    return TESS_OK;
}

/* ---- a layer ------------------------------------------------------------------------------------------ */
static void widen(const decoder *d, const void *x, int64_t elems, float *out) {
    for (int64_t i = 0; i < elems; i += LANES)
        floats_put(rows_at(d, x, i, elems - i), out, i, elems - i);
}

typedef struct {
    const decoder_sequence *s;
    const decoder_sight *sight;
    const float *past; /* the layer's keys and values */
} attend;

OPS_CLONES static void weigh(const float *q, const float *keys, int64_t n, int64_t stride, int64_t size,
                             const decoder_sight *sight, float *p) {
    float most = 0, cap = sight->cap;
    double sum = 0;
    for (int64_t t = 0; t < n; t++) {
        double dot = 0;
        for (int64_t i = 0; i < size; i++)
            dot += (double)q[i] * (double)keys[t * stride + i];
        p[t] = sight->scale * (float)dot;
        p[t] = cap > 0 ? cap * ops_tanh(p[t] / cap) : p[t];
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
    float *p = s->scores + thread * d->time;
    int64_t stride = 2 * d->kv_width, from = decoder_first_key(a->sight, d->position), n = d->position + 1 - from;
    for (int64_t h = first; h < last; h++) {
        const float *keys = a->past + from * stride + h / (d->heads / d->kv_heads) * d->size,
                    *values = keys + d->kv_width;
        float *y = s->value + h * d->size;
        weigh(s->query + h * d->size, keys, n, stride, d->size, a->sight, p);
        memset(y, 0, (size_t)d->size * sizeof *y);
        for (int64_t t = 0; t < n; t++)
            for (int64_t i = 0; i < d->size; i++)
                y[i] += p[t] * values[t * stride + i];
    }
}

/* Turns the position's queries and keys, saves keys and values, and computes attention's result. */
tess_status decoder_sequence_attend(const decoder_chunk *c) {
    const decoder *d = c->d;
    decoder_sequence *s = d->sequence;
    float *past = s->past + (int64_t)c->l->index * d->time * 2 * d->kv_width;
    attend a = { s, decoder_sight_of(c->l), past };
    decoder_rope_one(d, a.sight, s->qkv, d->position);
    widen(d, s->qkv, d->q_width, s->query);
    widen(d, decoder_at(d, s->qkv, d->q_width), 2 * d->kv_width, past + d->position * 2 * d->kv_width);
    ops_parallel(d->o, d->heads, 1, attend_heads, &a);
    for (int64_t i = 0; i < d->q_width; i += LANES)
        rows_put(d, floats_at(s->value, i, d->q_width - i), s->attended, i, d->q_width - i);
    return TESS_OK;
}

decoder_chunk decoder_sequence_chunk(const decoder_layer *l, const tess_block_call *call) {
    const decoder_sequence *s = l->d->sequence;
    decoder_chunk c = { .d = l->d, .l = l, .call = call, .p = &s->p, .rows = 1 };
    c.k = (decoder_kept){ .qkv = s->qkv, .attended = s->attended, .middle = s->middle, .up = s->up };
    c.k.gate = l->d->gated ? s->gate : NULL;
    c.k.stats1 = c.k.stats2 = c.k.after1_stats = c.k.after2_stats = s->stats;
    c.k.heads = s->heads, c.k.head_stats = s->head_stats, c.k.after1 = c.k.after2 = s->after;
    c.z = (decoder_rooms){ .normal = s->normal, .wide = s->wide, .inner = s->scratch };
    c.z.early = c.z.late = s->scratch;
    return c;
}

/* ---- the head ----------------------------------------------------------------------------------------- */
tess_status decoder_sequence_head(decoder *d, const tess_block_call *call) {
    decoder_sequence *s = d->sequence;
    decoder_ends e = decoder_ends_of(d, call, 1);
    const decoder_norm_of of = { 1, d->width, call->input, e.norm_w, e.norm_b, s->stats };
    decoder_norm(d, &of, s->normal);
    /* The logits are copied, because products need an aligned result. */
    const void *table = decoder_table(d, &s->p.head, e.head, s->scratch);
    OPS_TRY(d->o->t->matmul(s->p.head.forward, s->normal, table, NULL, s->logits, s->scratch));
    decoder_cap(d, s->logits, 1);
    *(model_result *)call->output = (model_result){ .count = 0 };
    memcpy(lm_logits(call->output), s->logits, (size_t)d->vocabulary * sizeof(float));
    d->filled = d->position + 1;
    return TESS_OK;
}
