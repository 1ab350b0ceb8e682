/* SPDX-License-Identifier: BSD-3-Clause */
/* Formulas of OPS_REAL, which is one element (ops_formulas.h) or sixteen side by side (lanes.h). Each of the two
 * includes this file, so it has no guard. */

/** Returns 2^whole · e^r for |r| below 0.35. `n` is whole + 1.5 · 2^23, where whole is an integer below 127. */
TESS_FN OPS_REAL OPS_NAME(scaled_exp)(OPS_REAL r, OPS_REAL n) {
    /* Minimax polynomial for (e^r - 1 - r) / r²; the relative error of e^r is below 4e-9. */
    OPS_REAL p = OPS_FILL(1.38142220e-3f);
    p = p * r + 8.36889875e-3f;
    p = p * r + 4.16684057e-2f;
    p = p * r + 1.66665191e-1f;
    p = p * r + 4.99999933e-1f;
    return (p * (r * r) + r + 1.0f) * OPS_OF_BITS((OPS_BITS(n) + 127u) << 23);
}

/** Computes exp by Cody and Waite's reduction and a polynomial of degree 6. All operations are lane-wise, so it
 * vectorises. The relative error is below 2e-7. */
TESS_FN OPS_REAL OPS_NAME(exp)(OPS_REAL x) {
    x = OPS_SELECT(x < -87.0f, OPS_FILL(-87.0f), x);
    x = OPS_SELECT(x > 88.0f, OPS_FILL(88.0f), x);
    OPS_REAL n = x * 1.44269504f + 12582912.0f; /* adding 1.5 · 2^23 rounds to an integer, in the low bits */
    OPS_REAL whole = n - 12582912.0f;
    return OPS_NAME(scaled_exp)((x - whole * 0.693359375f) - whole * -2.12194440e-4f, n);
}

TESS_FN OPS_REAL OPS_NAME(logistic)(OPS_REAL x) {
    return 1.0f / (1.0f + OPS_NAME(exp)(-x));
}

/** Up to |x| = 0.6 this is x + x³ times a minimax polynomial in x², which keeps the relative precision of small
 * values. Beyond 0.6 it uses the exponential of 2 |x|. */
TESS_FN OPS_REAL OPS_NAME(tanh)(OPS_REAL x) {
    OPS_REAL size = OPS_SELECT(x < 0.0f, -x, x), z = x * x;
    OPS_REAL far = 1.0f - 2.0f / (OPS_NAME(exp)(size + size) + 1.0f);
    z = OPS_SELECT(size > 0.6f, OPS_FILL(0.36f), z);
    OPS_REAL p = z * -5.90584986e-3f + 2.08053682e-2f;
    p = p * z + -5.37866801e-2f;
    p = p * z + 1.33319587e-1f;
    p = p * z + -3.33332986e-1f;
    return OPS_SELECT(size > 0.6f, OPS_SELECT(x < 0.0f, -far, far), x + x * (z * p));
}

/** 0.5 (1 + tanh(u)) is the logistic function of 2u, which keeps its relative precision where tanh is near -1. It is
 * computed as a power of two with exponent t = -2 log2(e) u. The reduction of t is exact, so only the rounding of t
 * loses precision. */
TESS_FN OPS_REAL OPS_NAME(gelu_gate)(OPS_REAL x) {
    OPS_REAL t = x * (x * x * -0.10294324f + -2.3022082f); /* -2 log2(e) √(2/π), and 0.044715 times that */
    t = OPS_SELECT(t < -60.0f, OPS_FILL(-60.0f), t);       /* 1 + 2^-60 rounds to 1 */
    t = OPS_SELECT(t > 126.0f, OPS_FILL(126.0f), t);
    OPS_REAL n = t + 12582912.0f, r = (t - (n - 12582912.0f)) * 0.693147181f;
    return 1.0f / (1.0f + OPS_NAME(scaled_exp)(r, n));
}
TESS_FN OPS_REAL OPS_NAME(gelu_of)(OPS_REAL x) {
    return x * OPS_NAME(gelu_gate)(x);
}
TESS_FN OPS_REAL OPS_NAME(gelu_slope_of)(OPS_REAL x, OPS_REAL dy) {
    OPS_REAL gate = OPS_NAME(gelu_gate)(x), slope = x * x * 0.214064449f + 1.59576912f;
    return dy * (gate + x * gate * (1.0f - gate) * slope);
}

/** SwiGLU multiplies SiLU(gate) by up; the next two functions are its gradients. */
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

/** Returns the gradient of a normalised element's input; g: gradient of the element times its weight. */
TESS_FN OPS_REAL OPS_NAME(layernorm_slope_of)(OPS_REAL x, float mean, float rsigma, OPS_REAL g, float g_mean,
                                              float g_dot) {
    return rsigma * (g - g_mean - (x - mean) * rsigma * g_dot);
}
