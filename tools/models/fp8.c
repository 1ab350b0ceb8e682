/* SPDX-License-Identifier: BSD-3-Clause */
#include "fp8.h"
#include "fp8_formulas.h"
#include "parallel.h"

#include <stdatomic.h>

enum { GRAIN = 4096 };

typedef struct {
    const uint16_t *x;
    uint16_t *y;
    float scale;
    int e5m2;
    _Atomic uint32_t most;
} job;

/* As integers, magnitudes are in order. So the largest is the same in any order of threads. */
OPS_CLONES static uint32_t largest(const uint16_t *x, int64_t first, int64_t last) {
    uint32_t most = 0;
    for (int64_t i = first; i < last; i++) {
        uint32_t size = fp8_size((uint32_t)x[i] << 16);
        most = size > most ? size : most;
    }
    return most;
}

static void most_of_range(void *arg, int32_t thread, int64_t first, int64_t last) {
    job *j = arg;
    uint32_t most = largest(j->x, first, last), before = atomic_load(&j->most);
    (void)thread;
    while (most > before && !atomic_compare_exchange_weak(&j->most, &before, most))
        ;
}

uint32_t fp8_most(const ops *o, const uint16_t *x, int64_t elems, uint32_t most) {
    job j = { .x = x, .most = most };
    ops_parallel(o, elems, GRAIN, most_of_range, &j);
    return atomic_load(&j.most);
}

OPS_CLONES static void round_range(const uint16_t *x, uint16_t *y, int64_t n, float scale, int e5m2) {
    const float inverse = fp8_inverse(scale);
    for (int64_t i = 0; i < n; i++) /* no bit is lost */
        y[i] = (uint16_t)(tess_f32_bits(fp8_rounded(tess_f32_of_bf16(x[i]), scale, inverse, e5m2)) >> 16);
}

static void round_part(void *arg, int32_t thread, int64_t first, int64_t last) {
    const job *j = arg;
    (void)thread;
    if (j->e5m2)
        round_range(j->x + first, j->y + first, last - first, j->scale, FP8_E5M2);
    else
        round_range(j->x + first, j->y + first, last - first, j->scale, FP8_E4M3);
}

void fp8_round(const ops *o, const uint16_t *x, uint16_t *y, int64_t elems, float scale, int e5m2) {
    job j = { .x = x, .y = y, .scale = scale, .e5m2 = e5m2 };
    ops_parallel(o, elems, GRAIN, round_part, &j);
}
