/* SPDX-License-Identifier: BSD-3-Clause */
/* Products of fp32 matrices whose bits depend on the factors alone: each element is one chain of fused multiply-adds,
 * from the first to the last, on any instruction set and any number of threads. */
#ifndef MUON_PRODUCT_H
#define MUON_PRODUCT_H
#include <stdint.h>

typedef struct { /* element (i, j) lies at[i * down + j * across] */
    float *at;
    uint64_t rows, cols, down, across;
} matrix;

typedef struct { /* shares out parts of 0 … n - 1 */
    void (*share)(void *pool, uint64_t n, void (*fn)(void *user, uint64_t first, uint64_t n), void *user);
    void *pool;
} workers;

/** out = beta plus + alpha a b. plus: null with a beta of 0, else as out, which it may be. symmetric: the product is,
 * so that one half of it is computed. out overlaps neither factor. */
typedef struct {
    matrix a, b, out, plus;
    float alpha, beta;
    int symmetric;
} product;
void product_run(const product *, const workers *);

static inline matrix matrix_turned(const matrix *m) {
    return (matrix){ m->at, m->cols, m->rows, m->across, m->down };
}
#endif
