/* SPDX-License-Identifier: BSD-3-Clause */
/* One optimizer step of one element, in TESS_REAL. Included by formulas.h once per type, hence no guard.
 * Each takes the gradient and updates parameter and state in place; states start at zero. */

/* SGD: g += wd p;  m = momentum m + g;  p -= lr m.  Without momentum there is no m. */
TESS_FN TESS_REAL TESS_NAME(tess_decayed)(const tess_step_constants *c, TESS_REAL g, TESS_REAL p) {
    g = g * (TESS_REAL)c->grad_scale;
    return c->decays ? TESS_FMA((TESS_REAL)c->weight_decay, p, g) : g;
}
TESS_FN void TESS_NAME(tess_sgd)(const tess_step_constants *c, TESS_REAL g, TESS_REAL *p) {
    g = TESS_NAME(tess_decayed)(c, g, *p);
    *p = TESS_FMA((TESS_REAL)c->minus_lr, g, *p);
}
TESS_FN void TESS_NAME(tess_sgd_momentum)(const tess_step_constants *c, TESS_REAL g, TESS_REAL *p, TESS_REAL *m) {
    g = TESS_NAME(tess_decayed)(c, g, *p);
    *m = *m * (TESS_REAL)c->momentum + g;
    *p = TESS_FMA((TESS_REAL)c->minus_lr, *m, *p);
}

/* m = lerp(m, g, 1 - beta1);  v = beta2 v + (1 - beta2) g g;  p -= step m / (sqrt(v) / bias2_root + eps).
 * lerp starts from the nearer end, as PyTorch's does. */
TESS_FN void TESS_NAME(tess_moments)(const tess_step_constants *c, TESS_REAL g, TESS_REAL *p, TESS_REAL *m,
                                     TESS_REAL *v) {
    TESS_REAL w = (TESS_REAL)c->one_minus_beta1, b = (TESS_REAL)c->one_minus_beta2, m0 = *m, d = g - m0;
    int from_m = w < (TESS_REAL)0.5;
    TESS_REAL m1 = TESS_FMA(from_m ? w : w - 1, d, from_m ? m0 : g);
    TESS_REAL v1 = TESS_FMA(b * g, g, *v * (TESS_REAL)c->beta2);
    TESS_REAL denominator = TESS_SQRT(v1) / (TESS_REAL)c->bias2_root + (TESS_REAL)c->eps;
    *m = m1;
    *v = v1;
    *p = *p + ((TESS_REAL)c->minus_step * m1) / denominator;
}
/* Adam: g += wd p first.  AdamW: p *= 1 - lr wd first. */
TESS_FN void TESS_NAME(tess_adam)(const tess_step_constants *c, TESS_REAL g, TESS_REAL *p, TESS_REAL *m, TESS_REAL *v) {
    TESS_NAME(tess_moments)(c, TESS_NAME(tess_decayed)(c, g, *p), p, m, v);
}
TESS_FN void TESS_NAME(tess_adamw)(const tess_step_constants *c, TESS_REAL g, TESS_REAL *p, TESS_REAL *m,
                                   TESS_REAL *v) {
    TESS_REAL shrunk = *p * (TESS_REAL)c->shrink; /* exactly 1 without decay */
    TESS_NAME(tess_moments)(c, g * (TESS_REAL)c->grad_scale, &shrunk, m, v);
    *p = shrunk;
}

/* Adadelta: s = rho s + (1 - rho) g g;  d = sqrt(a + eps) / sqrt(s + eps) g;  a = rho a + (1 - rho) d d;  p -= lr d. */
TESS_FN void TESS_NAME(tess_adadelta)(const tess_step_constants *c, TESS_REAL g, TESS_REAL *p, TESS_REAL *s,
                                      TESS_REAL *a) {
    TESS_REAL rho = (TESS_REAL)c->rho, q = (TESS_REAL)c->one_minus_rho, eps = (TESS_REAL)c->eps;
    g = TESS_NAME(tess_decayed)(c, g, *p);
    TESS_REAL s1 = TESS_FMA(q * g, g, *s * rho);
    TESS_REAL d = TESS_SQRT(*a + eps) / TESS_SQRT(s1 + eps) * g;
    *a = TESS_FMA(q * d, d, *a * rho);
    *s = s1;
    *p = TESS_FMA((TESS_REAL)c->minus_lr, d, *p);
}
