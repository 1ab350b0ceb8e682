/* SPDX-License-Identifier: BSD-3-Clause */
#include "newton_schulz.h"

#include <math.h>
#include <string.h>

#define A 3.4445f
#define B -4.7750f
#define C 2.0315f
#define EPS 1e-7

enum { LANES = 8 };

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

uint64_t newton_schulz_bytes(uint64_t rows, uint64_t cols) {
    const uint64_t side = least(rows, cols);
    return (rows * cols + 2 * side * side) * sizeof(float);
}

/* Adds in a fixed order, in lanes that the compiler can keep side by side. */
static double norm_of(const float *x, uint64_t n) {
    double lane[LANES] = { 0 }, sum = 0;
    uint64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] += (double)x[i + (uint64_t)l] * x[i + (uint64_t)l];
    for (; i < n; i++)
        sum += (double)x[i] * x[i];
    for (int l = 0; l < LANES; l++)
        sum += lane[l];
    return sqrt(sum);
}

void newton_schulz(float *x, uint64_t rows, uint64_t cols, int steps, void *scratch, const workers *on) {
    const uint64_t elems = rows * cols, side = least(rows, cols), across = rows > cols ? rows : cols;
    const double norm = norm_of(x, elems);
    const float scale = (float)(1 / (norm < EPS ? EPS : norm)); /* NaN stays */
    float *next = scratch;
    /* The short side's rows: of a high matrix its transpose. */
    matrix now = rows > cols ? (matrix){ x, side, across, 1, cols } : (matrix){ x, side, across, cols, 1 };
    const matrix gram = { next + elems, side, side, side, 1 },
                 both = { next + elems + side * side, side, side, side, 1 };
    for (uint64_t i = 0; i < elems; i++)
        x[i] *= scale;
    for (int k = 0; k < steps; k++) {
        matrix then = now;
        then.at = now.at == x ? next : x;
        product_run(&(product){ .a = now, .b = matrix_turned(&now), .out = gram, .alpha = 1, .symmetric = 1 }, on);
        product_run(&(product){ gram, gram, both, gram, .alpha = C, .beta = B, .symmetric = 1 }, on);
        product_run(&(product){ both, now, then, now, .alpha = 1, .beta = A }, on);
        now = then;
    }
    if (now.at != x)
        memcpy(x, now.at, elems * sizeof *x);
}
