/* SPDX-License-Identifier: BSD-3-Clause */
/* The plugins that are compiled in: their list and their open functions. The core names no other plugin. */
#ifndef TESS_BUILTINS_H
#define TESS_BUILTINS_H
#include "device_cpu.h"

typedef struct {
    uint32_t kind;
    const char *name, *help;
    tess_status (*open)(const tess_host *, const void **ops, void **ctx, tess_error *);
} tess__builtin;
extern const tess__builtin tess__builtins[]; /* ends with kind 0 */

tess_status tess__comm_self_open(const tess_host *, const void **ops, void **ctx, tess_error *);
tess_status tess__offload_none_open(const tess_host *, const void **ops, void **ctx, tess_error *);
tess_status tess__optimizer_adadelta_open(const tess_host *, const void **ops, void **ctx, tess_error *);
tess_status tess__optimizer_adam_open(const tess_host *, const void **ops, void **ctx, tess_error *);
tess_status tess__optimizer_adamw_open(const tess_host *, const void **ops, void **ctx, tess_error *);
tess_status tess__optimizer_sgd_open(const tess_host *, const void **ops, void **ctx, tess_error *);
tess_status tess__precision_fp32_open(const tess_host *, const void **ops, void **ctx, tess_error *);
tess_status tess__wrap_auto_open(const tess_host *, const void **ops, void **ctx, tess_error *);
tess_status tess__wrap_scopes_open(const tess_host *, const void **ops, void **ctx, tess_error *);
tess_status tess__wrap_none_open(const tess_host *, const void **ops, void **ctx, tess_error *);
tess_status tess__wrap_size_open(const tess_host *, const void **ops, void **ctx, tess_error *);
tess_status tess__wrap_module_open(const tess_host *, const void **ops, void **ctx, tess_error *);
#endif
