/* SPDX-License-Identifier: BSD-3-Clause */
/* Shared by the files of optimizer-lion. plugin.c: options, the step on the host; numbers.c: its numbers; cuda.c: that
 * on a GPU, where the CUDA toolkit was there to build it. */
#ifndef LION_H
#define LION_H
#include "kernels.h"
#include "plugin_base.h"

enum { BETA1, BETA2, N_OPTIONS };
typedef struct {
    kit_option beta[N_OPTIONS];
} lion_settings;

/* The numbers of this piece's step. TESS_E_INVALID: the program's betas are none. `ctx`: the plugin's. */
tess_status lion_numbers_of(const void *ctx, const tess_optimizer_piece *, lion_numbers *out, tess_error *);

tess_status lion_device_open(void *ctx, uint32_t mem, const tess_stream *, void **out, tess_error *);
tess_status lion_device_step(void *opened, const tess_device_piece *, const tess_stream *, tess_error *);
void lion_device_close(void *opened);
#endif
