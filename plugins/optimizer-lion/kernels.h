/* SPDX-License-Identifier: BSD-3-Clause */
/* The formula of lion, for the host's loop and for CUDA: the same bits. */
#ifndef LION_KERNELS_H
#define LION_KERNELS_H
#include "formulas.h"

typedef struct { /* beta1, 1 - beta1, beta2, 1 - beta2, 1 - lr wd, lr */
    float b1, c1, b2, c2, shrink, lr;
} lion_numbers;

/* Avoids branches, so that the compiler can vectorise the loop. NaN has no sign, so it gives 0. */
TESS_FN float lion_sign(float x) {
    return (float)(x > 0) - (float)(x < 0);
}

TESS_FN void lion_f32(const lion_numbers *n, float g, float *x, float *m) {
    *x = *x * n->shrink - n->lr * lion_sign(n->b1 * *m + n->c1 * g);
    *m = n->b2 * *m + n->c2 * g;
}

typedef struct {
    uint64_t items; /* elements */
    float *master, *momentum;
    const float *grad, *clip;
    int64_t *not_finite, step;
    lion_numbers numbers;
    float grad_scale;
} lion_args;

TESS_FN void lion_item(const lion_args *a, uint64_t i) {
    float x = a->master[i], m = a->momentum[i], scale = a->clip ? a->grad_scale * *a->clip : a->grad_scale;
    lion_f32(&a->numbers, a->grad[i] * scale, &x, &m);
    a->master[i] = x;
    a->momentum[i] = m;
    if (!(x - x == 0 && m - m == 0) && a->not_finite && !*a->not_finite)
        *a->not_finite = a->step;
}

/* X(name, arguments, what is done for item i) */
#define LION_KERNELS(X) X(tess_lion, lion_args, lion_item)
#endif
