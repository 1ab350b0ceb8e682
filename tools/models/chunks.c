/* SPDX-License-Identifier: BSD-3-Clause */
/* Some blocks treat samples independently. Such a block works through its samples in chunks, so that its scratch
 * holds only one chunk. */
#include "model.h"
#include <tessera/tessera.h>

#include <stdlib.h>

enum { CHUNK_SAMPLES = 4, LEAST_SAMPLES = 2 };

typedef struct model_chunked {
    model *m;
    tess_block_fn forward, backward; /* the block's functions; they work on one chunk */
    void *user;
    int32_t chunks;
    uint64_t input_bytes, output_bytes, saved_bytes; /* bytes of one chunk */
} chunked;

int32_t model__chunk_samples(const model *m) {
    int32_t n = m->options.batch, chunk = n < CHUNK_SAMPLES ? n : CHUNK_SAMPLES;
    while (n % chunk)
        chunk--;
    return m->o->t->mem != TESS_MEM_HOST || chunk < LEAST_SAMPLES ? n : chunk;
}

static void *behind(const void *p, uint64_t bytes) {
    return p ? (char *)(uintptr_t)p + bytes : NULL;
}

static tess_status run(const chunked *c, tess_block_fn fn, const tess_block_call *call) {
    tess_status status = TESS_OK;
    for (int32_t i = 0; i < c->chunks && status == TESS_OK; i++) {
        uint64_t k = (uint64_t)i;
        tess_block_call part = *call;
        part.input = behind(call->input, k * c->input_bytes);
        part.grad_input = behind(call->grad_input, k * c->input_bytes);
        part.output = behind(call->output, k * c->output_bytes);
        part.grad_output = behind(call->grad_output, k * c->output_bytes);
        part.saved = behind(call->saved, k * c->saved_bytes);
        c->m->first_sample = i * (c->m->options.batch / c->chunks);
        status = fn(c->user, &part);
    }
    c->m->first_sample = 0;
    return status;
}

static tess_status forward(void *user, const tess_block_call *call) {
    const chunked *c = user;
    return run(c, c->forward, call);
}

static tess_status backward(void *user, const tess_block_call *call) {
    const chunked *c = user;
    return run(c, c->backward, call);
}

tess_status model__make_chunked(model *m) {
    chunked *all = m->chunked = calloc((size_t)m->desc.n_blocks, sizeof *all);
    if (!all)
        return tess_fail(TESS_E_NOMEM, "out of memory for model %s", m->t->name);
    for (int32_t i = 0; i < m->desc.n_blocks; i++) {
        model_block *b = &m->desc.blocks[i];
        uint64_t n = (uint64_t)b->chunks;
        if (n < 2)
            continue;
        all[i] =
            (chunked){ m, b->forward, b->backward, b->user, b->chunks, 0, b->output_bytes / n, b->saved_bytes / n };
        all[i].input_bytes = i ? m->desc.blocks[i - 1].output_bytes / n : 0;
        b->forward = forward;
        b->backward = backward;
        b->user = &all[i];
    }
    return TESS_OK;
}
