/* What the tests of the reference models share: batches made from the counter, and a model run without the engine. */
#ifndef MODELS_COMMON_H
#define MODELS_COMMON_H
#include "direct.h"
#include "philox.h"

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

/** Global sample `sample` of a made-up data set: the same in tests/reference/make_reference.py. */
static inline void mnist_sample(uint64_t sample, float image[784], int32_t *label) {
    for (uint32_t i = 0; i < 784; i++)
        image[i] = 4.0f * philox_uniform(philox_at(7, PHILOX_BATCH, i, (uint32_t)sample, 0).v[i & 3]) - 1.0f;
    *label = (int32_t)(philox_at(7, PHILOX_BATCH, 0, (uint32_t)sample, 1).v[0] % 10);
}

/** Samples first … into a batch, `count` of them counted; the rest is zero. */
static inline void mnist_batch_fill(run *r, uint64_t first, int32_t count) {
    model_batch *head = r->batch;
    memset(r->batch, 0, r->m->desc.input_bytes);
    head->count = (uint32_t)count;
    for (int32_t i = 0; i < count; i++)
        mnist_sample(first + (uint64_t)i, mnist_images(r->batch, r->m->options.batch) + (size_t)i * 784,
                     mnist_labels(r->batch) + i);
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
