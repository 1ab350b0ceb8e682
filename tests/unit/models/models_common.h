/* SPDX-License-Identifier: BSD-3-Clause */
/* What the tests of the reference models share: batches made from the counter, and a model run without the engine. */
#ifndef MODELS_COMMON_H
#define MODELS_COMMON_H
#include "tools/models/direct.h"
#include "tools/models/philox.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

typedef struct {
    model *m;
    direct *d;
    void *batch;
} run;

/* Made-up data: the same as in tests/reference/make_reference.py. */
static inline float batch_uniform(uint32_t i, uint32_t a, uint32_t b) {
    return philox_uniform(philox_at(7, PHILOX_BATCH, i, a, b).v[i & 3]);
}

/** Global sample `sample`: 7 × 7 cells, the label's pattern with some turned over, and noise. */
static inline void mnist_sample(uint32_t sample, float image[784], int32_t *label) {
    *label = (int32_t)(philox_at(7, PHILOX_BATCH, 0, sample, 1).v[0] % 10);
    for (uint32_t i = 0; i < 784; i++) {
        uint32_t cell = i / 28 / 4 * 7 + i % 28 / 4;
        int lit = (batch_uniform(cell, (uint32_t)*label, 2) < 0.2f) != (batch_uniform(cell, sample, 1u << 31) < 0.05f);
        image[i] = (lit ? 0.5f : -0.25f) + 0.5f * batch_uniform(i, sample, 0);
    }
}

/** Text in which three of four bytes follow from the one before. */
static inline void gpt_sample(uint32_t sample, uint8_t *text, int32_t bytes) {
    uint32_t last = 0;
    for (int32_t t = 0; t < bytes; t++) {
        uint32_t word = philox_at(7, PHILOX_BATCH, (uint64_t)t, sample, 3).v[t & 3];
        last = word % 4 ? (last * 5 + 7) % 64 : (word >> 8) % 64;
        text[t] = (uint8_t)last;
    }
}

/** Samples first … into a batch, `count` of them counted; the rest is zero. */
static inline void mnist_batch_fill(run *r, uint64_t first, int32_t count) {
    model_batch *head = r->batch;
    memset(r->batch, 0, r->m->desc.input_bytes);
    head->count = (uint32_t)count;
    for (int32_t i = 0; i < count; i++)
        mnist_sample((uint32_t)first + (uint32_t)i, mnist_images(r->batch, r->m->options.batch) + (size_t)i * 784,
                     mnist_labels(r->batch) + i);
}

static inline void gpt_batch_fill(run *r, uint64_t first) {
    model_batch *head = r->batch;
    int32_t bytes = r->m->options.context + 1;
    memset(r->batch, 0, r->m->desc.input_bytes);
    head->count = (uint32_t)(r->m->options.batch * r->m->options.context);
    for (int32_t i = 0; i < r->m->options.batch; i++)
        gpt_sample((uint32_t)first + (uint32_t)i, gpt_text(r->batch) + i * bytes, bytes);
}

/** convbn's images, element by element as they lie in the batch. */
static inline void convbn_batch_fill(run *r, uint64_t first) {
    model_batch *head = r->batch;
    uint32_t elems = (uint32_t)(r->m->options.image_size * r->m->options.image_size * 3);
    memset(r->batch, 0, r->m->desc.input_bytes);
    head->count = (uint32_t)r->m->options.batch;
    for (uint32_t s = 0; s < head->count; s++)
        for (uint32_t i = 0; i < elems; i++)
            convbn_images(r->batch)[s * elems + i] = 2 * batch_uniform(i, (uint32_t)first + s, 4) - 1;
}

static inline run run_create(const char *name, const model_options *options) {
    run r;
    assert_int_equal(model_create(name, options, &r.m), TESS_OK);
    assert_int_equal(direct_create(r.m, 1, &r.d), TESS_OK);
    r.batch = aligned_alloc(64, ops_align(r.m->desc.input_bytes));
    assert_non_null(r.batch);
    return r;
}

static inline void run_destroy(run *r) {
    assert_true(direct_intact(r->d));
    direct_destroy(r->d);
    model_destroy(r->m);
    free(r->batch);
}

static inline double norm_of(const float *a, const float *b, int64_t elems) {
    double sum = 0;
    for (int64_t i = 0; i < elems; i++) {
        double d = (double)a[i] - (b ? (double)b[i] : 0);
        sum += d * d;
    }
    return sqrt(sum);
}
#endif
