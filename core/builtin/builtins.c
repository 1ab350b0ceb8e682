/* SPDX-License-Identifier: BSD-3-Clause */
#include "builtins.h"

const tess__builtin tess__builtins[] = {
    { TESS_KIND_COMM, "self", "one rank: nothing to communicate", tess__comm_self_open },
    { TESS_KIND_OFFLOAD, "none", "everything rests on the device", tess__offload_none_open },
    { TESS_KIND_PRECISION, "fp32", "every parameter in its declared dtype", tess__precision_fp32_open },
    { TESS_KIND_DEVICE, "cpu", "plain memory, with a settable capacity", tess__device_cpu_open },
    { TESS_KIND_WRAP, "scopes", "each declared scope or block is a unit", tess__wrap_scopes_open },
    { TESS_KIND_WRAP, "none", "one unit for all", tess__wrap_none_open },
    { TESS_KIND_WRAP, "size", "size:N: a module whose parameters reach N elements is a unit", tess__wrap_size_open },
    { TESS_KIND_WRAP, "module", "module:PATTERN,…: each module that matches is a unit", tess__wrap_module_open },
    { TESS_KIND_WRAP, "auto", "auto:BYTES: the fewest units whose planned peak fits", tess__wrap_auto_open },
    { TESS_KIND_OPTIMIZER, "adadelta", "Adadelta", tess__optimizer_adadelta_open },
    { TESS_KIND_OPTIMIZER, "adam", "Adam", tess__optimizer_adam_open },
    { TESS_KIND_OPTIMIZER, "adamw", "AdamW", tess__optimizer_adamw_open },
    { TESS_KIND_OPTIMIZER, "sgd", "SGD, with and without momentum", tess__optimizer_sgd_open },
    { 0, NULL, NULL, NULL },
};
