/* SPDX-License-Identifier: BSD-3-Clause */
/* Calls of plugins and blocks that nobody makes: plans alone are looked at. */
#ifndef TESSERA_TESTS_NO_STEPS_H
#define TESSERA_TESTS_NO_STEPS_H
#include <tessera/plugin.h>
#include <tessera/tessera.h>

static inline tess_status no_step(void *ctx, const tess_optimizer_piece *p, tess_error *e) {
    (void)ctx, (void)p, (void)e;
    return TESS_OK;
}

static inline tess_status no_matrix(void *ctx, const tess_optimizer_matrix *m, tess_error *e) {
    (void)ctx, (void)m, (void)e;
    return TESS_OK;
}

static inline tess_status no_block(void *user, const tess_block_call *c) {
    (void)user, (void)c;
    return TESS_OK;
}

static inline tess_status no_stream(tess_device *device, uint32_t role, tess_stream *out, tess_error *e) {
    (void)device, (void)role, (void)out, (void)e;
    return TESS_E_UNSUPPORTED;
}

static inline void close_store(tess_store *x) {
    (void)x;
}
#endif
