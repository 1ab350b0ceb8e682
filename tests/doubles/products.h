/* SPDX-License-Identifier: BSD-3-Clause */
/* Products of matrices, columns first, as cuBLAS and cuBLASLt have them: cublas.c. */
#ifndef TESSERA_DOUBLE_PRODUCTS_H
#define TESSERA_DOUBLE_PRODUCTS_H
#include "double.h"

typedef struct {
    int turn_a, turn_b, m, n, k, lda, ldb, ldc, halves, half_c, times;
    int f16;            /* what is of 16 bits is fp16, else bf16 */
    int code_a, code_b; /* bits of mantissa, 3 or 2, of factors in fp8, which `halves` excludes; 0: others */
    float alpha, beta;
    const float *scale_a, *scale_b; /* of codes: the product is multiplied by both; not null */
    const void *a, *b;
    void *c;
    long long step_a, step_b, step_c;
    const uint16_t *bias; /* with half_c, where they are not null: as cublaslt.c says */
    uint16_t *before;
    int gelu;
} double_product;

/** Sizes and pointers; all is in device memory as a whole. */
int double__product_is_good(const double_product *);
void double__product_push(double_stream *, const double_product *);
/** The device of a handle; -1: it is none. */
int double__blas_device(const void *handle);
#endif
