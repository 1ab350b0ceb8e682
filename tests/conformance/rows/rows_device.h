/* SPDX-License-Identifier: BSD-3-Clause */
/* The step of rows, in host memory and in that of a double of CUDA. */
#ifndef ROWS_DEVICE_H
#define ROWS_DEVICE_H
#include <tessera/plugin.h>

tess_status rows_step(void *ctx, const tess_optimizer_piece *, tess_error *);
tess_status rows_device_open(void *ctx, uint32_t mem, const tess_stream *, void **out, tess_error *);
tess_status rows_device_step(void *opened, const tess_device_piece *, const tess_stream *, tess_error *);
void rows_device_close(void *opened);
#endif
