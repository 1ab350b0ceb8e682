/* SPDX-License-Identifier: BSD-3-Clause */
/* Estimates the work of a block. Products and convolutions are counted exactly. Operators that only stream through
 * memory (normalisations, activations, sums) count the bytes that they read and write. */
#include "decoder/decoder.h"
#include <tessera/plugin_helpers.h>

#include <stdio.h>
#include <string.h>

static int64_t dim(const model_param *p, int32_t i) {
    return i < p->ndim ? p->shape[i] : 1;
}

/* Counts how often one call applies a matrix: once per row, or for a convolution once per place of its output. */
static double applications(const model *m, const model_param *p) {
    const model_options *o = &m->options;
    double batch = o->batch;
    if (p->ndim < 2 || p->is_buffer)
        return 0;
    if (m->t->decoder)
        return strncmp(p->name, "embed.", 6) == 0 ? 0 : batch * o->context;
    if (p->ndim < 4)
        return batch;
    if (strcmp(m->t->name, "mnist") == 0) {
        double side = dim(p, 1) == 1 ? 26 : 24;
        return batch * side * side;
    }
    double side = o->image_size - 2; /* convbn: the stem has no padding, the stages keep the size */
    return batch * side * side;
}

/* The first block has no input gradient to compute. */
static int is_first(const model *m, int32_t block) {
    return block == 0 && !m->t->decoder;
}

/* Returns parameter i, or the one of which it is another name. */
static const model_param *root_of(const model *m, int32_t i) {
    const model_param *p = &m->desc.params[i];
    for (int32_t k = 0; p->alias_of[0] && k < m->desc.n_params; k++)
        if (strcmp(m->desc.params[k].name, m->desc.params[i].alias_of) == 0)
            p = &m->desc.params[k];
    return p;
}

static void count_products(const model *m, int32_t block, model_cost *c) {
    const model_block *b = &m->desc.blocks[block];
    for (int32_t i = b->first_param; i < b->first_param + b->n_params; i++) {
        const model_param *p = root_of(m, i);
        double times = p != &m->desc.params[i] ? (double)m->options.batch * m->options.context : applications(m, p);
        double flops = 2 * times * (double)p->elems, back = flops * (is_first(m, block) || p->is_frozen ? 1 : 2);
        c->forward_flops += flops;
        c->backward_flops += back;
        c->forward_fp8 += p->in_fp8 ? flops : 0;
        c->backward_fp8 += p->in_fp8 ? back : 0;
        c->forward_kernels += times > 0;
        c->backward_kernels += times > 0 ? 2 : 0;
    }
}

/* Scores and their weighted sum each cover half of a time × time square, because attention is causal. */
static void count_attention(const model *m, model_cost *c) {
    double rows = (double)m->options.batch * m->options.context;
    double flops = 2 * rows * m->options.context * m->options.width;
    c->forward_flops += flops;
    c->backward_flops += 2.5 * flops;
    c->forward_kernels += 1;
    c->backward_kernels += 2;
}

static int ends_with(const char *name, const char *tail) {
    size_t n = strlen(name), k = strlen(tail);
    return n >= k && strcmp(name + n - k, tail) == 0;
}

static int is_named(const model_param *p, const decoder_param *as) {
    return ends_with(p->name, as->leaf);
}

static int32_t place_of(const model *m, const model_param *p) {
    const decoder_family *f = m->t->decoder;
    for (int32_t k = 0; k < f->n_params; k++)
        if (is_named(p, &f->params[k]))
            return f->params[k].place;
    return -1;
}

/* Keys and values have the input of queries, and up has that of a gate. */
static int shares_input(const decoder *d, int32_t place) {
    return place == DECODER_K_W || place == DECODER_V_W || (place == DECODER_UP_W && d->gated);
}

/* On a GPU the kernels that write these find their largest magnitudes (decoder/device_layer.c): every input but
 * attention's result, and some gradients of results. */
static int finds_input(const decoder *d, int32_t place) {
    return d->beside && place != DECODER_O_W;
}
static int finds_gradient(const decoder *d, int32_t place) {
    int is_found = place == DECODER_UP_W || place == DECODER_GATE_W || place == DECODER_O_W;
    return d->beside && (is_found || (place == DECODER_DOWN_W && d->after_norms));
}

/* Codes of a product's factors. A GPU reads bf16 twice, or once if a maximum was found, and writes a byte, of a
 * result's gradient two, as it serves two products. The CPU reads twice and writes bf16 for each product. */
static void count_codes(const model *m, const model_block *b, model_cost *c) {
    const decoder *d = m->own;
    const double each = d->beside ? 5 : 6;
    for (int32_t i = b->first_param; i < b->first_param + b->n_params; i++) {
        const model_param *p = &m->desc.params[i];
        int32_t place = place_of(m, p);
        int is_first_one = !shares_input(d, place), trains = !p->is_frozen;
        double x = is_first_one ? (double)(d->rows * dim(p, 1)) : 0, dy = (double)(d->rows * dim(p, 0));
        double of_x = (each - 2 * finds_input(d, place)) * x, of_dy = (each - 2 * finds_gradient(d, place)) * dy;
        if (!p->in_fp8)
            continue;
        c->forward_bytes += of_x + each * (double)p->elems;
        c->backward_bytes += each * (double)p->elems + of_dy + trains * of_x + trains * (d->beside ? 1 : each) * dy;
        c->forward_kernels += 2 * is_first_one;
        c->backward_kernels += 2 * is_first_one * (1 + trains);
    }
}

static int is_half(const model *m, const model_block *b, int half) {
    return ends_with(b->name, m->t->decoder->halves[half][0]);
}

/* Each normalisation and sum of a layer moves three rows, GELU eight. That makes six rows in the first half and
 * fourteen in the second. */
static void count_layer(const model *m, const model_block *b, model_cost *c) {
    double row = (double)m->options.batch * m->options.context * m->options.width * 4;
    int attends = !is_half(m, b, DECODER_FEED), feeds = !is_half(m, b, DECODER_ATTENTION);
    if (attends)
        count_attention(m, c);
    c->forward_bytes = (6 * attends + 14 * feeds) * row;
    c->backward_bytes = (12 * attends + 28 * feeds) * row;
    c->forward_kernels += 2 * attends + 3 * feeds;
    c->backward_kernels += 4 * attends + 4 * feeds;
}

int64_t model_head_chunks(const model *m, int64_t *rows) {
    const decoder *d = m->own;
    if (!m->t->decoder)
        return 0;
    *rows = d->head_rows;
    return (d->rows + d->head_rows - 1) / d->head_rows;
}

/* The loss reads logits, and its gradient is written in their place. Each chunk but the first reads and writes the
 * whole gradient of the matrix. */
static void count_head(const model *m, const model_block *b, model_cost *c) {
    const decoder *d = m->own;
    int64_t rows, chunks = model_head_chunks(m, &rows);
    double logits = (double)d->rows * (double)d->vocabulary * (d->beside ? (double)d->elem : sizeof(float));
    double again = 2.0 * (double)(chunks - 1) * (double)d->vocabulary * (double)d->width * sizeof(float);
    c->forward_bytes += logits;
    c->backward_bytes += logits + (root_of(m, b->first_param + b->n_params - 1)->is_frozen ? 0 : again);
    c->forward_kernels += 2 * (int32_t)(chunks - 1);
    c->backward_kernels += 2 * (int32_t)(chunks - 1);
}

/* Such a block's forward does nothing in training. */
static model_cost in_backward(const model_cost *c) {
    return (model_cost){ .backward_flops = c->forward_flops + c->backward_flops,
                         .backward_bytes = c->forward_bytes + c->backward_bytes,
                         .backward_kernels = c->forward_kernels + c->backward_kernels };
}

model_cost model_block_cost(const model *m, int32_t block) {
    const model_block *b = &m->desc.blocks[block];
    double in = block ? (double)m->desc.blocks[block - 1].output_bytes : (double)m->desc.input_bytes;
    double out = (double)b->output_bytes, saved = (double)b->saved_bytes;
    model_cost c = { 0 };
    count_products(m, block, &c);
    if (m->t->decoder && block > 0 && block < m->desc.n_blocks - 1) {
        count_layer(m, b, &c);
        count_codes(m, b, &c);
    } else {
        c.forward_bytes = in + 2 * out + saved;
        c.backward_bytes = 2 * (in + out + saved);
        c.forward_kernels += 1;
        c.backward_kernels += 2;
    }
    if (m->t->decoder && block == m->desc.n_blocks - 1)
        count_head(m, b, &c);
    return b->flags & TESS_BLOCK_LATE_RESULT ? in_backward(&c) : c;
}

/* Counts the products that a selective backward repeats: the first ones of the feed-forward half. */
double model_selective_flops(const model *m, int32_t block) {
    const decoder_family *f = m->t->decoder;
    const model_block *b = &m->desc.blocks[block];
    double flops = 0;
    for (int32_t i = b->first_param; b->selective_saved_bytes && i < b->first_param + b->n_params; i++)
        for (int32_t k = 0; k < f->n_params; k++)
            if ((f->params[k].place == DECODER_GATE_W || f->params[k].place == DECODER_UP_W) &&
                is_named(&m->desc.params[i], &f->params[k]))
                flops += 2 * applications(m, &m->desc.params[i]) * (double)m->desc.params[i].elems;
    return flops;
}

double model_step_flops(const model *m) {
    double flops = 0;
    for (int32_t i = 0; i < m->desc.n_blocks; i++) {
        model_cost c = model_block_cost(m, i);
        flops += c.forward_flops + c.backward_flops;
    }
    return flops;
}

void model_key(const model *m, char *out, size_t n) {
    const model_options *o = &m->options;
    size_t at = (size_t)snprintf(out, n, "%s batch=%d", m->t->name, o->batch);
    if (at < n && m->t->decoder)
        at += (size_t)snprintf(out + at, n - at, " width=%d heads=%d context=%d", o->width, o->heads, o->context);
    if (at < n && m->t->decoder && o->head_rows)
        at += (size_t)snprintf(out + at, n - at, " head-rows=%d", o->head_rows);
    if (at < n && strcmp(m->t->name, "convbn") == 0)
        at += (size_t)snprintf(out + at, n - at, " image=%d hidden=%d", o->image_size, o->hidden);
    if (at < n)
        snprintf(out + at, n - at, " threads=%d %s%s", o->threads, tess_dtype_name(o->precision),
                 o->products ? "+fp8" : "");
}
