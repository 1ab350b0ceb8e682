/* SPDX-License-Identifier: BSD-3-Clause */
/* Measures the best rate of products on this machine, with which a step's utilisation is computed. */
#include "model.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SIDE = 512, LEAST = 3, MOST = 64 };
static const double most_seconds = 0.02;

typedef struct {
    ops *o;
    ops_matmul *product;
    char *a, *b, *y, *scratch;
} bench;

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Fills with ones: 0x3f80 is 1 in bf16, and 0x3f803f80 about 1 in fp32. */
static void fill(char *at, uint64_t bytes) {
    for (uint64_t i = 0; i + 2 <= bytes; i += 2)
        memcpy(at + i, &(const uint16_t){ 0x3f80 }, 2);
}

static tess_status make(const model *m, bench *b) {
    uint32_t dtype = m->options.precision == TESS_BF16 ? TESS_BF16 : TESS_F32;
    uint64_t bytes = SIDE * SIDE * (dtype == TESS_BF16 ? 2 : 4), scratch = 0;
    ops_matmul_shape s = { .rows = SIDE, .depth = SIDE, .columns = SIDE, .factor = dtype, .result = TESS_F32 };
    OPS_TRY(b->o->t->matmul_create(b->o, &s, &b->product, &scratch));
    b->a = aligned_alloc(64, bytes);
    b->b = aligned_alloc(64, bytes);
    b->y = aligned_alloc(64, SIDE * SIDE * sizeof(float));
    b->scratch = aligned_alloc(64, ops_align(scratch) + 64);
    if (!b->a || !b->b || !b->y || !b->scratch)
        return TESS_E_NOMEM;
    fill(b->a, bytes);
    fill(b->b, bytes);
    return TESS_OK;
}

/* Returns the shortest time of one product; the first one only warms up. */
static double least(const bench *b) {
    double begin = seconds(), best = 0;
    for (int i = 0; i < MOST && (i < LEAST || seconds() - begin < most_seconds); i++) {
        double start = seconds();
        if (b->o->t->matmul(b->product, b->a, b->b, NULL, b->y, b->scratch) != TESS_OK)
            return 0;
        double took = seconds() - start;
        best = i > 0 && (best <= 0 || took < best) ? took : best;
    }
    return best;
}

double model_peak_flops(const model *m) {
    bench b = { .o = m->o };
    if (!m->o->t->matmul_create || m->o->t->mem != TESS_MEM_HOST)
        return 0;
    double best = make(m, &b) == TESS_OK ? least(&b) : 0;
    m->o->t->matmul_destroy(b.product);
    free(b.a);
    free(b.b);
    free(b.y);
    free(b.scratch);
    return best > 0 ? 2.0 * SIDE * SIDE * SIDE / best : 0;
}
