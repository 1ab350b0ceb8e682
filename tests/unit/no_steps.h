/* SPDX-License-Identifier: BSD-3-Clause */
/* An optimizer's calls that nobody makes: plans alone are looked at. */
#ifndef TESSERA_TESTS_NO_STEPS_H
#define TESSERA_TESTS_NO_STEPS_H
#include <tessera/plugin.h>

static tess_status no_step(void *ctx, const tess_optimizer_piece *p, tess_error *e) {
    (void)ctx, (void)p, (void)e;
    return TESS_OK;
}

static tess_status no_matrix(void *ctx, const tess_optimizer_matrix *m, tess_error *e) {
    (void)ctx, (void)m, (void)e;
    return TESS_OK;
}
#endif
