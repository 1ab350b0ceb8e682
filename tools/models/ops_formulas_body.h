/* SPDX-License-Identifier: BSD-3-Clause */
/* Formulas of OPS_REAL: one element, or sixteen side by side (ops_formulas.h, lanes.h). Included once for each, hence
 * no guard. */

/** exp by Cody and Waite's reduction and a polynomial of degree 7; only lane-wise operations, so it vectorises.
 * Relative error below 2e-7. */
TESS_FN OPS_REAL OPS_NAME(exp)(OPS_REAL x) {
    x = OPS_SELECT(x < -87.0f, OPS_FILL(-87.0f), x);
    x = OPS_SELECT(x > 88.0f, OPS_FILL(88.0f), x);
    OPS_REAL n = x * 1.44269504f + 12582912.0f; /* adding 1.5 · 2^23 rounds to an integer, in the low bits */
    OPS_REAL whole = n - 12582912.0f;
    OPS_REAL r = (x - whole * 0.693359375f) - whole * -2.12194440e-4f;
    OPS_REAL p = OPS_FILL(1.98412698e-4f);
    p = p * r + 1.38888889e-3f;
    p = p * r + 8.33333333e-3f;
    p = p * r + 4.16666667e-2f;
    p = p * r + 1.66666667e-1f;
    p = p * r + 0.5f;
    OPS_REAL power = OPS_OF_BITS((OPS_BITS(n) - 0x4B400000u + 127u) << 23);
    return (p * (r * r) + r + 1.0f) * power;
}

TESS_FN OPS_REAL OPS_NAME(logistic)(OPS_REAL x) {
    return 1.0f / (1.0f + OPS_NAME(exp)(-x));
}

/** 0.5 (1 + tanh(u)) is the logistic function of 2u, which keeps its relative precision where tanh is near -1. */
TESS_FN OPS_REAL OPS_NAME(gelu_gate)(OPS_REAL x) {
    return OPS_NAME(logistic)(1.595769122f * (x + 0.044715f * x * x * x));
}
TESS_FN OPS_REAL OPS_NAME(gelu_of)(OPS_REAL x) {
    return x * OPS_NAME(gelu_gate)(x);
}
TESS_FN OPS_REAL OPS_NAME(gelu_slope_of)(OPS_REAL x, OPS_REAL dy) {
    OPS_REAL gate = OPS_NAME(gelu_gate)(x), slope = 1.595769122f * (1.0f + 3.0f * 0.044715f * x * x);
    return dy * (gate + x * gate * (1.0f - gate) * slope);
}

/** SiLU of the gate times what it lets through, and the gradients of the two. */
TESS_FN OPS_REAL OPS_NAME(swiglu_of)(OPS_REAL gate, OPS_REAL up) {
    return gate * OPS_NAME(logistic)(gate) * up;
}
TESS_FN OPS_REAL OPS_NAME(swiglu_gate_slope_of)(OPS_REAL gate, OPS_REAL up, OPS_REAL dy) {
    OPS_REAL s = OPS_NAME(logistic)(gate);
    return dy * up * s * (1.0f + gate * (1.0f - s));
}
TESS_FN OPS_REAL OPS_NAME(swiglu_up_slope_of)(OPS_REAL gate, OPS_REAL dy) {
    return dy * gate * OPS_NAME(logistic)(gate);
}

/** A normalised element's input's gradient; g: that of the element times its weight. */
TESS_FN OPS_REAL OPS_NAME(layernorm_slope_of)(OPS_REAL x, float mean, float rsigma, OPS_REAL g, float g_mean,
                                              float g_dot) {
    return rsigma * (g - g_mean - (x - mean) * rsigma * g_dot);
}
