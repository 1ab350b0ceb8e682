/* SPDX-License-Identifier: BSD-3-Clause */
/* For tests of layer_ops.h: arrays that the device has as factors. */
#ifndef TESSERA_TESTS_FACTORS_H
#define TESSERA_TESTS_FACTORS_H
#include "cuda_tables.h"
#include "tools/models/layer_ops.h"

static inline const ops_layer_table *layer(const tables *t) {
    return t->d->t->layer;
}

/* ---- factors: the host has fp32, the device theirs ---------------------------------------------- */
static inline void up_factors(const both *b, int halves) {
    uint64_t elems = b->bytes / sizeof(float);
    float *wide = b->host;
    uint16_t *half = malloc(elems * sizeof *half);
    both raw = { half, b->dev, elems * sizeof *half };
    assert_non_null(half);
    for (uint64_t i = 0; halves && i < elems; i++) {
        half[i] = half_of(halves, wide[i]);
        wide[i] = wide_of(halves, half[i]);
    }
    up(halves ? &raw : b);
    free(half);
}

static inline both factors(uint32_t which, uint64_t elems, int halves) {
    both b = numbers(which, elems);
    up_factors(&b, halves);
    return b;
}

/* In fp32, what the device has. */
static inline float *down_factors(const both *b, int halves) {
    uint64_t elems = b->bytes / sizeof(float);
    uint16_t *raw = down(b);
    float *wide = malloc(b->bytes);
    assert_non_null(wide);
    for (uint64_t i = 0; i < elems; i++)
        wide[i] = halves ? wide_of(halves, raw[i]) : ((float *)(void *)raw)[i];
    free(raw);
    return wide;
}

static inline void near_factors(const both *b, int halves, double tolerance) {
    near_values(b, down_factors(b, halves), tolerance);
}
#endif
