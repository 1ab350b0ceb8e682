/* SPDX-License-Identifier: BSD-3-Clause */
/* An optimizer plugin whose second moments are one number a row: of matrices behind the owner's work, of everything
 * else in one step. A short vector is AdamW's, whose second moment has the same name and one number an element. On the
 * doubles of CUDA it steps in a device's memory too, in a function of the host. */
#include "rows_device.h"
#include <tessera/plugin_helpers.h>
#include <tessera/plugin_options.h>
#include <math.h>
#include <stdlib.h>

TESS_DESCRIPTOR(1u << TESS_KIND_OPTIMIZER, "rows", "0.1.0", "BSD-3-Clause", "");

TESS_OPTIONS(options) = {
    { sizeof options[0], TESS_OPTION_FLAG, 0, 0, "rows-matrices", "1", "", "owners work on whole matrices" },
};

enum { SHORT = 200 };

static uint64_t row_of(const tess_param_view *p) {
    return p->ndim ? (uint64_t)p->shape[p->ndim - 1] : 1;
}

static tess_status describe(void *ctx, const tess_param_view *p, uint32_t flags, tess_grain *out, tess_error *e) {
    tess_grain grain = { .grain = TESS_GRAIN_ROW,
                         .n_states = 2,
                         .state = { { TESS_F32, 1, "momentum" }, { TESS_F32, (uint32_t)row_of(p), "second" } } };
    const int *matrices = ctx;
    (void)flags, (void)e;
    if (p->ndim < 2 && p->elems < SHORT) {
        grain.grain = TESS_GRAIN_ELEMENT;
        grain.kernel = TESS_OPT_ADAMW;
        grain.state[1].every = 1;
    } else if (*matrices && p->ndim >= 2 && row_of(p) > 1 && !strstr(p->name, "wte")) {
        grain.grain = TESS_GRAIN_MATRIX;
        grain.rows = (uint64_t)p->shape[p->ndim - 2];
        grain.cols = row_of(p);
    }
    TESS_GIVE(out, &grain);
    return TESS_OK;
}

/* Adds the mean square of a row to its second moment; the step is divided by the root. */
static float divisor_of(float *second, const float *x, uint64_t n) {
    float sum = 0;
    for (uint64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    *second = 0.9f * *second + 0.1f * (sum / (float)n);
    return sqrtf(*second) + 1e-6f;
}

tess_status rows_step(void *ctx, const tess_optimizer_piece *p, tess_error *e) {
    const uint64_t n = row_of(p->param);
    float *m = p->state[0], *second = p->state[1];
    (void)ctx, (void)e;
    for (uint64_t i = 0; i < p->elems && p->phase != TESS_PHASE_AFTER; i++)
        m[i] = 0.9f * m[i] + p->grad[i];
    for (uint64_t i = 0; i < p->elems && p->phase == TESS_PHASE_BEFORE; i++)
        p->update[i] = m[i];
    for (uint64_t row = 0; row < p->elems / n && p->phase != TESS_PHASE_BEFORE; row++) {
        const float *x = (p->phase == TESS_PHASE_AFTER ? p->update : m) + row * n;
        const float rate = (float)p->lr / divisor_of(&second[row], x, n);
        for (uint64_t i = 0; i < n; i++)
            p->master[row * n + i] -= rate * x[i];
    }
    return TESS_OK;
}

/* The momentum, less its mean over the matrix. */
static tess_status matrix(void *ctx, const tess_optimizer_matrix *m, tess_error *e) {
    const uint64_t n = m->rows * m->cols;
    double sum = 0;
    (void)ctx, (void)e;
    for (uint64_t i = 0; i < n; i++)
        sum += (double)m->update[i];
    for (uint64_t i = 0; i < n; i++)
        m->update[i] -= (float)(sum / (double)n);
    return TESS_OK;
}

static const tess_optimizer_ops ops = {
    .struct_size = sizeof ops,
    .abi_major = TESS_ABI_MAJOR,
    .abi_minor = TESS_ABI_MINOR,
    .close = free,
    .describe = describe,
    .step = rows_step,
    .matrix = matrix,
#if defined(ROWS_CUDA)
    .device_open = rows_device_open,
    .device_step = rows_device_step,
    .device_close = rows_device_close,
#endif
};

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **out, void **ctx, tess_error *e) {
    if (kind != TESS_KIND_OPTIMIZER)
        return tess_plugin_fail(e, TESS_E_UNSUPPORTED, "rows offers optimizer only");
    int *matrices = malloc(sizeof *matrices);
    if (!matrices)
        return tess_plugin_fail(e, TESS_E_NOMEM, "optimizer rows: no memory to open");
    const char *said = host->option(host->host, "rows-matrices");
    *matrices = !said || strcmp(said, "0") != 0;
    *out = &ops;
    *ctx = matrices;
    return TESS_OK;
}
