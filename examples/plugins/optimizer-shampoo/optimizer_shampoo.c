/* SPDX-License-Identifier: BSD-3-Clause */
/* optimizer-shampoo: one-sided Shampoo for matrices, AdamW for the rest. README.md has the formula and its source. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plugin_base.h"

TESS_DESCRIPTOR(1u << TESS_KIND_OPTIMIZER, "shampoo", "0.1.0", "BSD-3-Clause", "");

enum { EVERY, MOST, DAMPING, N_OPTIONS };
TESS_OPTIONS(options) = {
    { sizeof options[0], TESS_OPTION_INT, 1, 1e9, "shampoo-every", "10", "", "steps between two roots" },
    { sizeof options[0], TESS_OPTION_INT, 2, 8192, "shampoo-most", "512", "",
      "matrices whose smaller side is longer are AdamW's" },
    { sizeof options[0], TESS_OPTION_REAL, 1e-7, 1, "shampoo-damping", "1e-4", "",
      "added to the diagonal, as a part of its mean" },
};
static const kit_options readable = { "optimizer shampoo", "shampoo-", options, N_OPTIONS, NULL };

typedef struct {
    uint64_t every, most;
    float damping;
} settings;

enum { MOMENTUM, SECOND, ROOT }; /* states; those of AdamW are the first two */

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static tess_status shampoo_describe(void *ctx, const tess_param_view *param, uint32_t flags, tess_grain *out,
                                    tess_error *error) {
    const settings *s = ctx;
    tess_grain grain = { .grain = TESS_GRAIN_ELEMENT,
                         .kernel = TESS_OPT_ADAMW,
                         .n_states = 2,
                         .state = { { TESS_F32, 1, "momentum" }, { TESS_F32, 1, "second" } } };
    (void)flags, (void)error;
    uint64_t rows = param->ndim == 2 ? (uint64_t)param->shape[0] : 0, cols = rows ? (uint64_t)param->shape[1] : 0;
    uint64_t side = least(rows, cols);
    if (side > 1 && side <= s->most) {
        grain.grain = TESS_GRAIN_MATRIX;
        grain.kernel = 0;
        grain.n_states = 3;
        grain.state[ROOT] = (tess_state){ TESS_F32, 1, "root" };
        grain.whole = 1u << SECOND | 1u << ROOT; /* side times side of their elements are used */
        grain.rows = rows;
        grain.cols = cols;
        grain.scratch_bytes = 4 * (rows * cols + 4 * side * side);
    }
    TESS_GIVE(out, &grain);
    return TESS_OK;
}

/* ---- products, shared among threads by rows: each element is one sum, in one order ------------------ */

typedef struct {
    const float *a, *b;
    float *out;
    uint64_t inner, cols;
    uint64_t a_row, a_col; /* strides of a */
    float scale, diagonal; /* out = scale a b + diagonal I */
} product;

static void rows_of_product(void *user, uint64_t first, uint64_t n) {
    const product *p = user;
    for (uint64_t r = first; r < first + n; r++) {
        float *out = p->out + r * p->cols;
        memset(out, 0, p->cols * sizeof *out);
        for (uint64_t k = 0; k < p->inner; k++) {
            const float a = p->a[r * p->a_row + k * p->a_col];
            const float *b = p->b + k * p->cols;
            for (uint64_t c = 0; c < p->cols; c++)
                out[c] += a * b[c];
        }
        for (uint64_t c = 0; c < p->cols; c++)
            out[c] *= p->scale;
        if (p->diagonal != 0)
            out[r] += p->diagonal;
    }
}

static void multiply(const tess_optimizer_matrix *m, product p, uint64_t rows) {
    m->share(m->pool, rows, rows_of_product, &p);
}

/* scale a b + diagonal I, all of n times n */
static void square(const tess_optimizer_matrix *m, const float *a, const float *b, float *out, uint64_t n, float scale,
                   float diagonal) {
    multiply(m, (product){ a, b, out, n, n, n, 1, scale, diagonal }, n);
}

/* ---- the step of a matrix --------------------------------------------------------------------------- */

/* Whether the smaller side is the one of rows: the update is then root times gradient, else gradient times root. */
static int is_left(const tess_optimizer_matrix *m) {
    return m->rows <= m->cols;
}

/* second = beta second + (1 - beta) G G^T, or G^T G. Scratch: G's transpose, then the product. */
static void add_second(const tess_optimizer_matrix *m, float beta) {
    const uint64_t n = least(m->rows, m->cols), inner = m->rows + m->cols - n;
    float *turned = m->scratch, *sum = turned + m->rows * m->cols, *second = m->state[SECOND];
    for (uint64_t r = 0; r < m->rows; r++)
        for (uint64_t c = 0; c < m->cols; c++)
            turned[c * m->rows + r] = m->update[r * m->cols + c];
    multiply(m,
             is_left(m) ? (product){ m->update, turned, sum, inner, n, inner, 1, 1 - beta, 0 }
                        : (product){ turned, m->update, sum, inner, n, inner, 1, 1 - beta, 0 },
             n);
    for (uint64_t i = 0; i < n * n; i++)
        second[i] = beta * second[i] + sum[i];
}

/* root = (second / correction + damping I)^-1/2 by coupled Newton-Schulz steps: y goes to the root of a, z to its
 * inverse. Dividing by the trace brings all eigenvalues of a between damping / n and 1. */
static void make_root(const tess_optimizer_matrix *m, float correction, float damping) {
    const uint64_t n = least(m->rows, m->cols);
    float *y = (float *)m->scratch + m->rows * m->cols, *z = y + n * n, *t = z + n * n, *next = t + n * n;
    const float *second = m->state[SECOND];
    double trace = 0;
    for (uint64_t i = 0; i < n; i++)
        trace += (double)second[i * n + i] / (double)correction;
    const float added = (float)(trace / (double)n) * damping, all = (float)trace + (float)n * added;
    if (!(all > 0)) { /* no gradient yet, or NaN, which the update keeps */
        memset(m->state[ROOT], 0, n * n * sizeof(float));
        return;
    }
    for (uint64_t i = 0; i < n * n; i++) {
        y[i] = (second[i] / correction + (i % (n + 1) ? 0 : added)) / all;
        z[i] = i % (n + 1) ? 0 : 1;
    }
    /* An eigenvalue below 1 grows by 9/4 a step, and the last few steps double the digits. */
    const int steps = (int)ceil(log((double)n / (double)damping) / log(2.25)) + 6;
    for (int i = 0; i < steps; i++) {
        square(m, z, y, t, n, -0.5f, 1.5f);
        square(m, y, t, next, n, 1, 0);
        memcpy(y, next, n * n * sizeof *y);
        square(m, t, z, next, n, 1, 0);
        memcpy(z, next, n * n * sizeof *z);
    }
    for (uint64_t i = 0; i < n * n; i++)
        m->state[ROOT][i] = z[i] / sqrtf(all);
}

static tess_status shampoo_matrix(void *ctx, const tess_optimizer_matrix *m, tess_error *error) {
    const settings *s = ctx;
    const double beta = m->beta2 != 0 ? m->beta2 : 0.999;
    const uint64_t n = least(m->rows, m->cols), bytes = m->rows * m->cols * sizeof(float);
    const float scale = sqrtf((float)(m->rows + m->cols - n)); /* an element's size is then about 1, as AdamW's */
    (void)error;
    add_second(m, (float)beta);
    if ((m->step - 1) % s->every == 0)
        make_root(m, (float)(1 - pow(beta, (double)m->step)), s->damping);
    float *out = m->scratch;
    if (is_left(m))
        multiply(m, (product){ m->state[ROOT], m->update, out, n, m->cols, n, 1, scale, 0 }, m->rows);
    else
        multiply(m, (product){ m->update, m->state[ROOT], out, n, n, n, 1, scale, 0 }, m->rows);
    memcpy(m->update, out, bytes);
    return TESS_OK;
}

/* Before: the gradient is what the matrix needs. After: a momentum of what it made, and the step of AdamW. */
static tess_status shampoo_step(void *ctx, const tess_optimizer_piece *p, tess_error *error) {
    const double beta = p->beta1 != 0 ? p->beta1 : 0.9;
    const float b = (float)beta, c = (float)(1 - beta), shrink = (float)(1 - p->lr * p->weight_decay);
    const float lr = (float)(p->lr / (1 - pow(beta, (double)p->step)));
    float *momentum = p->state[MOMENTUM];
    (void)ctx;
    if (!(p->beta1 >= 0 && p->beta1 < 1 && p->beta2 >= 0 && p->beta2 < 1))
        return tess_plugin_fail(error, TESS_E_INVALID,
                                "optimizer shampoo: beta1 %g and beta2 %g, expected 0 or more and less than 1",
                                p->beta1, p->beta2);
    if (p->phase == TESS_PHASE_BEFORE) {
        memcpy(p->update, p->grad, p->elems * sizeof *p->update);
        return TESS_OK;
    }
    for (uint64_t i = 0; i < p->elems; i++) {
        momentum[i] = b * momentum[i] + c * p->update[i];
        p->master[i] = p->master[i] * shrink - lr * momentum[i];
    }
    return TESS_OK;
}

static void shampoo_close(void *ctx) {
    free(ctx);
}

static const tess_optimizer_ops ops = {
    .struct_size = sizeof ops,
    .abi_major = TESS_ABI_MAJOR,
    .abi_minor = TESS_ABI_MINOR,
    .close = shampoo_close,
    .describe = shampoo_describe,
    .step = shampoo_step,
    .matrix = shampoo_matrix,
    .takes = TESS_TAKES_LR | TESS_TAKES_BETA1 | TESS_TAKES_BETA2 | TESS_TAKES_EPS,
};

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **out, void **ctx, tess_error *error) {
    kit_option read[N_OPTIONS];
    if (kind != TESS_KIND_OPTIMIZER)
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "shampoo offers optimizer only");
    tess_status status = kit_options_read(&readable, host, read, error);
    if (status < 0)
        return status;
    settings *s = malloc(sizeof *s);
    if (!s)
        return tess_plugin_fail(error, TESS_E_NOMEM, "optimizer shampoo: no memory");
    *s = (settings){ (uint64_t)read[EVERY].value.integer, (uint64_t)read[MOST].value.integer,
                     (float)read[DAMPING].value.real };
    *out = &ops;
    *ctx = s;
    return TESS_OK;
}
