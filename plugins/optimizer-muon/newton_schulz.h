/* SPDX-License-Identifier: BSD-3-Clause */
/* The orthogonal factor of a matrix, nearly: five steps of Newton and Schulz's iteration with the coefficients of
 * Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024. */
#ifndef MUON_NEWTON_SCHULZ_H
#define MUON_NEWTON_SCHULZ_H
#include "product.h"

/** Bytes that newton_schulz needs. */
uint64_t newton_schulz_bytes(uint64_t rows, uint64_t cols);
/** Replaces x, row by row, by U S V' where U, V are its singular vectors and S lies about 1. */
void newton_schulz(float *x, uint64_t rows, uint64_t cols, int steps, void *scratch, const workers *);
#endif
