/* SPDX-License-Identifier: BSD-3-Clause */
/* Steps a parameter with an optimizer plugin, between bytes that nothing may change. */
#include "optimizer.h"

#include <stdlib.h>
#include <string.h>

static void share_at_once(void *pool, uint64_t n, void (*fn)(void *user, uint64_t first, uint64_t n), void *user) {
    (void)pool;
    if (n)
        fn(user, 0, n);
}

static guarded guarded_new(check *c, uint64_t bytes) {
    guarded g = { .bytes = bytes, .base = aligned_alloc(64, (bytes + 2 * GUARD + 63) / 64 * 64) };
    check_that(c, g.base, "no memory");
    memset(g.base, CANARY, bytes + 2 * GUARD);
    g.at = g.base + GUARD;
    return g;
}

void stepped_untouched(check *c, const guarded *g, const unsigned char *before, uint64_t first, uint64_t end,
                       const char *what) {
    for (uint64_t i = 0; i < GUARD; i++)
        check_that(c, g->base[i] == CANARY && g->at[g->bytes + i] == CANARY, "step writes outside of %s", what);
    check_that(c, memcmp(g->at, before, first) == 0 && memcmp(g->at + end, before + end, g->bytes - end) == 0,
               "step writes outside of its piece of %s", what);
}

static uint64_t values_of(uint64_t elems, uint32_t every) {
    return (elems + every - 1) / every;
}

uint64_t stepped_state_at(const stepped *x, uint32_t k, uint64_t elem) {
    return values_of(elem, x->grain.state[k].every) * tess_dtype_bytes(x->grain.state[k].dtype);
}

int stepped_new(check *c, int i, stepped *x) {
    uint64_t random = 7 + (uint64_t)i;
    *x = (stepped){ .param = param_of(i, TESS_F32), .in_update = 0x11, .in_scratch = 0x11, .share = share_at_once };
    if (describe(c, &x->param, TESS_STEPS_MOMENTUM, &x->grain, 0) != TESS_OK || x->grain.kernel)
        return 0;
    check_that(c, TESS_CAN(tess_optimizer_ops, optimizer_ops, step), "has no step, and names no kernel");
    judge(c, &x->param, &x->grain);
    x->master = guarded_new(c, 4 * x->param.elems);
    x->grad = guarded_new(c, 4 * x->param.elems);
    x->update = guarded_new(c, 4 * x->param.elems);
    x->scratch = guarded_new(c, x->grain.scratch_bytes);
    for (uint32_t k = 0; k < x->grain.n_states; k++) {
        x->state[k] = guarded_new(c, stepped_state_at(x, k, x->param.elems));
        memset(x->state[k].at, 0, x->state[k].bytes);
    }
    for (uint64_t e = 0; e < x->param.elems; e++)
        ((float *)(void *)x->master.at)[e] = check_random_float(&random);
    return 1;
}

void stepped_free(stepped *x) {
    free(x->master.base);
    free(x->grad.base);
    free(x->update.base);
    free(x->scratch.base);
    for (uint32_t k = 0; k < x->grain.n_states; k++)
        free(x->state[k].base);
}

void stepped_gradient(stepped *x, uint64_t step) {
    uint64_t random = 99 + step;
    for (uint64_t e = 0; e < x->param.elems; e++)
        ((float *)(void *)x->grad.at)[e] = e % 17 ? check_random_float(&random) * 1e-3f : 0;
}

tess_optimizer_piece stepped_piece_of(const stepped *x, uint64_t step, uint64_t first, uint64_t elems) {
    return (tess_optimizer_piece){ .struct_size = sizeof(tess_optimizer_piece),
                                   .param = &x->param,
                                   .first = first,
                                   .elems = elems,
                                   .step = step,
                                   .lr = 1e-2,
                                   .weight_decay = 0.1,
                                   .momentum = 0.9 };
}

tess_status stepped_piece(stepped *x, uint64_t step, uint64_t first, uint64_t elems, tess_error *e) {
    tess_optimizer_piece p = stepped_piece_of(x, step, first, elems);
    p.master = (float *)(void *)x->master.at + first;
    p.grad = (const float *)(void *)x->grad.at + first;
    p.phase = x->phase;
    if (x->phase != TESS_PHASE_WHOLE)
        p.update = (float *)(void *)x->update.at + first;
    if (x->phase == TESS_PHASE_AFTER)
        p.grad = NULL;
    for (uint32_t k = 0; k < x->grain.n_states; k++)
        p.state[k] = x->state[k].at + stepped_state_at(x, k, first);
    return optimizer_ops->step(optimizer_ctx, &p, e);
}

void stepped_must(check *c, stepped *x, uint64_t step, uint64_t first, uint64_t elems) {
    tess_error e = { .struct_size = sizeof e };
    check_doing(c, "step");
    tess_status s = stepped_piece(x, step, first, elems, &e);
    check_doing(c, "");
    check_that(c, s == TESS_OK, "step of %llu elements gave %s: %s", (unsigned long long)elems, check_status(s),
               e.message);
}

void stepped_same(check *c, const stepped *a, const stepped *b, const char *when, const char *than) {
    unsigned long long elems = a->param.elems;
    check_that(c, memcmp(a->master.at, b->master.at, a->master.bytes) == 0,
               "%llu elements, %s: the parameter has other bits than %s", elems, when, than);
    for (uint32_t k = 0; k < a->grain.n_states; k++)
        check_that(c, memcmp(a->state[k].at, b->state[k].at, a->state[k].bytes) == 0,
                   "%llu elements, %s: state %s has other bits than %s", elems, when, a->grain.state[k].name, than);
}

uint64_t stepped_grain(const stepped *x) {
    return uncut_of(&x->param, &x->grain);
}

void stepped_cut(check *c, stepped *x, uint64_t step, uint64_t grains, int back) {
    uint64_t most = grains * stepped_grain(x), n = (x->param.elems + most - 1) / most;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t first = (back ? n - 1 - i : i) * most, left = x->param.elems - first;
        stepped_must(c, x, step, first, left < most ? left : most);
    }
}

static void guards_hold(check *c, const guarded *g, const char *what) {
    for (uint64_t i = 0; i < GUARD; i++)
        check_that(c, g->base[i] == CANARY && g->at[g->bytes + i] == CANARY, "matrix writes outside of %s", what);
}

void stepped_matrix(check *c, stepped *x, uint64_t step, uint64_t index) {
    const uint64_t at = index * x->grain.rows * x->grain.cols;
    tess_error e = { .struct_size = sizeof e };
    tess_optimizer_matrix m = { .struct_size = sizeof m,
                                .param = &x->param,
                                .index = index,
                                .rows = x->grain.rows,
                                .cols = x->grain.cols,
                                .step = step,
                                .momentum = 0.9,
                                .update = (float *)(void *)x->update.at + at,
                                .scratch = x->scratch.at,
                                .share = x->share };
    for (uint32_t k = 0; k < x->grain.n_states; k++)
        m.state[k] = x->grain.whole >> k & 1 ? (float *)(void *)x->state[k].at + at : NULL;
    memset(x->scratch.at, x->in_scratch, x->scratch.bytes);
    check_doing(c, "matrix");
    tess_status s = optimizer_ops->matrix(optimizer_ctx, &m, &e);
    check_doing(c, "");
    check_that(c, s == TESS_OK, "matrix gave %s: %s", check_status(s), e.message);
    guards_hold(c, &x->scratch, "its scratch");
    guards_hold(c, &x->update, "its update");
}

void stepped_phases(check *c, stepped *x, uint64_t step, uint64_t grains, int back) {
    int of_matrix = x->grain.grain == TESS_GRAIN_MATRIX;
    x->phase = of_matrix ? TESS_PHASE_BEFORE : TESS_PHASE_WHOLE;
    memset(x->update.at, x->in_update, x->update.bytes);
    stepped_cut(c, x, step, grains, back);
    if (!of_matrix)
        return;
    for (uint64_t i = 0; i < x->param.elems / (x->grain.rows * x->grain.cols); i++)
        stepped_matrix(c, x, step, i);
    x->phase = TESS_PHASE_AFTER;
    stepped_cut(c, x, step, grains, back);
}

void stepped_at_once(check *c, stepped *x, uint64_t step) {
    stepped_phases(c, x, step, x->param.elems, 0);
}
