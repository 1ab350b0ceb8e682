/* SPDX-License-Identifier: BSD-3-Clause */
#include <string.h>

#include "bench_batch.h"
#include "tools/models/decoder/decoder.h"

static void fill_tokens(const model *m, void *batch) {
    int64_t n = (int64_t)m->options.batch * (m->options.context + 1), vocabulary = m->desc.params[0].shape[0];
    for (int64_t i = 0; i < n; i++)
        lm_tokens(batch)[i] = (int32_t)(i * 7 % vocabulary);
}

static void fill_floats(const model *m, void *batch) {
    uint32_t x = 1;
    float *floats = (float *)(void *)((char *)batch + sizeof(model_batch));
    uint64_t n = (m->desc.input_bytes - sizeof(model_batch)) / sizeof(float);
    for (uint64_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        floats[i] = (float)(x >> 8) * 0x1p-24f - 0.5f;
    }
}

void bench_batch_fill(const model *m, void *batch) {
    int is_text = m->t->decoder != NULL, has_tokens = is_text && !m->t->decoder->bytes;
    memset(batch, 0, m->desc.input_bytes);
    ((model_batch *)batch)->count = (uint32_t)m->options.batch * (is_text ? (uint32_t)m->options.context : 1);
    if (has_tokens)
        fill_tokens(m, batch);
    else
        fill_floats(m, batch);
    for (int32_t i = 0; strcmp(m->t->name, "mnist") == 0 && i < m->options.batch; i++)
        mnist_labels(batch)[i] = i % 10;
}
