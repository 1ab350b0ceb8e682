/* SPDX-License-Identifier: BSD-3-Clause */
#include "grain.h"

#include "base/status.h"

#include <string.h>

tess_param_view tess__param_view_of(const tess__param *p) {
    return (tess_param_view){ .struct_size = sizeof(tess_param_view),
                              .dtype = p->dtype,
                              .flags = p->flags & TESS_FROZEN ? 1 : 0,
                              .compute_mask = p->compute_dtypes,
                              .name = p->name,
                              .elems = p->elems,
                              .shape = p->shape,
                              .ndim = p->ndim,
                              .group = p->optimizer_group };
}

tess_status tess__grain_refused(const tess__setup *s, const tess__param *p, const char *what) {
    return tess__fail(TESS_E_UNSUPPORTED, "parameter \"%s\": optimizer %s %s", p->name, s->step_name, what);
}

/* A row of a matrix, else of the last dimension; 0: the grain has none. */
static uint64_t row_of(const tess__param *p, const tess_grain *g) {
    if (g->grain == TESS_GRAIN_MATRIX)
        return g->cols;
    return g->grain != TESS_GRAIN_ROW ? 0 : p->ndim ? (uint64_t)p->shape[p->ndim - 1] : 1;
}

/* The elements that no cut may part, where it is neither one nor a whole matrix. */
static uint64_t uncut(const tess__param *p, const tess_grain *g) {
    int has_rows = g->grain == TESS_GRAIN_ROW;
    for (uint32_t k = 0; k < g->n_states; k++)
        has_rows |= g->grain == TESS_GRAIN_MATRIX && g->state[k].every > 1;
    return has_rows ? row_of(p, g) : g->block;
}

static int state_is_good(const tess__param *p, const tess_grain *g, const tess_state *x) {
    size_t n = strnlen(x->name, sizeof x->name);
    const uint64_t most = g->grain == TESS_GRAIN_BLOCK ? g->block : row_of(p, g);
    return tess_dtype_bytes(x->dtype) && x->every && (x->every == 1 || x->every == most) && n && n < sizeof x->name &&
           strspn(x->name, "abcdefghijklmnopqrstuvwxyz0123456789_") == n;
}

static int has_name_twice(const tess_grain *g) {
    for (uint32_t k = 1; k < g->n_states; k++)
        for (uint32_t i = 0; i < k; i++)
            if (strcmp(g->state[i].name, g->state[k].name) == 0)
                return 1;
    return 0;
}

/* A device's kernel reads and writes the states that it knows, and asks for none. */
static int has_states_of_kernel(const tess__setup *s, const tess_grain *g) {
    uint32_t n = g->kernel != TESS_OPT_SGD ? 2 : s->with_momentum ? 1 : 0;
    for (uint32_t k = 0; k < g->n_states; k++)
        if (g->state[k].dtype != TESS_F32 || g->state[k].every != 1)
            return 0;
    return g->n_states == n;
}

static tess_status check_matrix(const tess__setup *s, const tess__param *p, const tess_grain *g) {
    if (!g->rows || !g->cols || g->cols > p->elems / g->rows || p->elems % (g->rows * g->cols))
        return tess__grain_refused(
            s, p, "states a matrix of which the parameter is no stack: rows times cols has to divide it");
    if (g->scratch_bytes > (uint64_t)1 << 40)
        return tess__grain_refused(s, p, "states more than a tebibyte of scratch");
    for (uint32_t k = 0; k < TESS_STATES_MOST; k++)
        if (g->whole >> k & 1 && (k >= g->n_states || g->state[k].dtype != TESS_F32 || g->state[k].every != 1))
            return tess__grain_refused(
                s, p, "states in `whole` a state that it does not have, or one that is not fp32 for each element");
    if (g->whole >> TESS_STATES_MOST || g->kernel || !TESS_CAN(tess_optimizer_ops, s->step, matrix))
        return tess__grain_refused(s, p, "states the grain of a matrix without `matrix` for it, or beside a kernel");
    return TESS_OK;
}

/* Checks what a plugin has said, so that a wrong word is one line and no memory. */
static tess_status check_grain(const tess__setup *s, const tess__param *p, const tess_grain *g) {
    if (g->grain < TESS_GRAIN_ELEMENT || g->grain > TESS_GRAIN_ROW)
        return tess__grain_refused(s, p,
                                   "states no grain that is known, expected an element, a block, a row or a matrix");
    if (g->grain != TESS_GRAIN_BLOCK ? g->block != 0
                                     : !g->block || g->block > TESS_BLOCK_MOST || g->block & (g->block - 1))
        return tess__grain_refused(s, p,
                                   "states a block that is no power of two up to 8192, or one beside another grain");
    if (g->n_states > TESS_STATES_MOST)
        return tess__grain_refused(s, p, "states more than 4 states");
    for (uint32_t k = 0; k < g->n_states; k++)
        if (!state_is_good(p, g, &g->state[k]))
            return tess__grain_refused(
                s, p,
                "states a state without a known dtype, a name of [a-z0-9_], or with another `every` than 1 "
                "and its block or row");
    if (has_name_twice(g))
        return tess__grain_refused(s, p, "states two states of one name, by which checkpoints keep them");
    if (g->grain == TESS_GRAIN_MATRIX)
        TRY(check_matrix(s, p, g));
    if (g->grain != TESS_GRAIN_BLOCK && uncut(p, g) > TESS_ROW_MOST)
        return tess__grain_refused(s, p, "steps rows, and has rows of more than 65536 elements");
    if (!g->kernel && !TESS_CAN(tess_optimizer_ops, s->step, step))
        return tess__grain_refused(s, p, "has no step, and names no kernel for it");
    if (g->kernel > TESS_OPT_ADADELTA)
        return tess__grain_refused(s, p, "names a kernel that no device has");
    if (g->kernel && !has_states_of_kernel(s, g))
        return tess__grain_refused(
            s, p, "names a kernel, and other states than the kernel's: fp32, one value for each element");
    return TESS_OK;
}

/* Leaves nothing that means nothing, because groups are told apart by their bytes. From here on a row is a block. */
static void tidy_grain(const tess__param *p, tess_grain *g) {
    tess_grain tidy = { .struct_size = sizeof tidy,
                        .grain = g->grain,
                        .block = (uint32_t)uncut(p, g),
                        .kernel = g->kernel,
                        .n_states = g->n_states };
    if (g->grain == TESS_GRAIN_MATRIX) {
        tidy.whole = g->whole;
        tidy.rows = g->rows;
        tidy.cols = g->cols;
        tidy.scratch_bytes = g->scratch_bytes;
    }
    for (uint32_t k = 0; k < g->n_states; k++) {
        tidy.state[k] = (tess_state){ .dtype = g->state[k].dtype, .every = g->state[k].every };
        strncpy(tidy.state[k].name, g->state[k].name, sizeof tidy.state[k].name - 1);
    }
    *g = tidy;
}

tess_status tess__param_step(const tess__setup *s, const tess__param *p, tess_grain *out) {
    *out = (tess_grain){ .struct_size = sizeof *out };
    if (!s->step) {
        out->grain = s->optimizer ? TESS_GRAIN_ELEMENT : 0;
        out->kernel = s->optimizer;
        out->n_states = (uint32_t)s->n_states;
        for (uint32_t k = 0; k < out->n_states; k++)
            out->state[k] = (tess_state){ .dtype = TESS_F32, .every = 1 };
        return TESS_OK;
    }
    tess_param_view v = tess__param_view_of(p);
    tess_error e = { .struct_size = sizeof e };
    tess_status status = s->step->describe(s->step_ctx, &v, s->with_momentum ? TESS_STEPS_MOMENTUM : 0, out, &e);
    if (status)
        return tess__fail(status, "parameter \"%s\": optimizer %s: %s", p->name, s->step_name, e.message);
    TRY(check_grain(s, p, out));
    tidy_grain(p, out);
    return TESS_OK;
}
