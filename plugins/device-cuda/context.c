/* SPDX-License-Identifier: BSD-3-Clause */
/* Enters and leaves the context that driver calls need, and turns a failed call into an error. */
#include "device.h"

tess_status cuda_failed(tess_device *d, CUresult result, const char *doing, tess_error *error) {
    tess_status s = tess_cuda_status(result);
    s = tess_plugin_fail(error, s, "device cuda: GPU %d: %s failed: %s", d ? (int)d->index : 0, doing,
                         tess_cuda_text(result));
    if (error && error->struct_size > offsetof(tess_error, native))
        error->native = (int32_t)result;
    return s;
}

tess_status cuda_enter(tess_device *d, tess_error *error) {
    CUresult r = d->cu->cuCtxPushCurrent(d->context);
    return r ? cuda_failed(d, r, "making its context current", error) : TESS_OK;
}

void cuda_leave(tess_device *d) {
    CUcontext was;
    d->cu->cuCtxPopCurrent(&was);
}
