#include "builtins.h"
#include "loader.h"

const tess__builtin tess__builtins[] = {
    { TESS_KIND_COMM, "self", "one rank: nothing to communicate", tess__comm_self_open },
    { TESS_KIND_OFFLOAD, "none", "everything rests on the device", tess__offload_none_open },
    { TESS_KIND_PRECISION, "fp32", "every parameter in its declared dtype", tess__precision_fp32_open },
    { TESS_KIND_DEVICE, "cpu", "plain memory, with a settable capacity", tess__device_cpu_open },
    { 0, NULL, NULL, NULL },
};
