/* The open functions of the plugins that are compiled in (builtins.c lists them). */
#ifndef TESS_BUILTINS_H
#define TESS_BUILTINS_H
#include "device_cpu.h"

tess_status tess__comm_self_open(const tess_host *, const void **ops, void **ctx, tess_error *);
tess_status tess__offload_none_open(const tess_host *, const void **ops, void **ctx, tess_error *);
tess_status tess__precision_fp32_open(const tess_host *, const void **ops, void **ctx, tess_error *);
#endif
