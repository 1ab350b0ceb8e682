/* SPDX-License-Identifier: BSD-3-Clause */
/* Launches our own kernels in the context of the operators. */
#include "cuda_ops.h"

#include <limits.h>
#include <tessera/tessera.h>

const char *ops_cuda_kernel_name(const cuda_ops *c, int kernel) {
    static const char *const names[][2] = {
#define NAME(name, phases) { "tess_ops_" #name, "tess_ops_f16_" #name },
        OPS_CUDA_KERNELS(NAME) OPS_CUDA_WIDE_KERNELS(NAME)
#undef NAME
#define NAME(name, args, shares) { "tess_ops_" #name, "tess_ops_f16_" #name },
            OPS_ATTEND_KERNELS(NAME) OPS_ATTEND_LARGE_KERNELS(NAME)
#undef NAME
    };
    return names[kernel][c->base.fp16 != 0];
}

tess_status ops_cuda_failed(const cuda_ops *c, CUresult r, const char *what) {
    (void)c;
    return tess_fail(tess_cuda_status(r), "operators cuda: %s: %s", what, tess_cuda_text(r));
}

tess_status ops_cuda_enter(const cuda_ops *c) {
    if (!c->context)
        return tess_fail(TESS_E_INVALID, "operators cuda: called before they were started on a device");
    CU_TRY(c, "making the context current", c->d->cuCtxPushCurrent(c->context));
    return TESS_OK;
}

void ops_cuda_leave(const cuda_ops *c) {
    CUcontext popped;
    c->d->cuCtxPopCurrent(&popped);
}

/* ---- shared memory that a launch gives ------------------------------------------------------------ */
static unsigned given_bytes(int kernel) {
    switch (kernel) {
#define GIVEN(name, args, shares)                                                                                      \
    case OPS_KERNEL_##name: return sizeof(shares);
        OPS_ATTEND_LARGE_KERNELS(GIVEN)
#undef GIVEN
    default: return 0;
    }
}

/* A launch may give more than 48 KiB only to a function that is told so before. */
tess_status ops_cuda_take_shared(cuda_ops *c) {
    CU_TRY(
        c, "asking for a block's shared memory",
        c->d->cuDeviceGetAttribute(&c->shared_bytes, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, c->device));
    for (int i = OPS_KERNEL_attend_16; i < OPS_N_KERNELS; i++)
        if (given_bytes(i) && ops_cuda_has_shared(c, i))
            CU_TRY(c, ops_cuda_kernel_name(c, i),
                   c->d->cuFuncSetAttribute(c->kernels[i], CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                            (int)given_bytes(i)));
    return TESS_OK;
}

int ops_cuda_has_shared(const cuda_ops *c, int kernel) {
    return given_bytes(kernel) <= (unsigned)c->shared_bytes;
}

tess_status ops_cuda_launch(const cuda_ops *c, int kernel, const void *args, uint64_t blocks) {
    void *params[] = { (void *)(uintptr_t)args };
    unsigned given = given_bytes(kernel);
    unsigned threads = kernel < OPS_KERNEL_attend_16 ? OPS_BLOCK : given ? TILE_MOST_THREADS : TILE_THREADS;
    if (!blocks)
        return TESS_OK;
    if (blocks > INT_MAX)
        return tess_fail(TESS_E_UNSUPPORTED, "operators cuda: %s of %llu blocks: at most %d are possible",
                         ops_cuda_kernel_name(c, kernel), (unsigned long long)blocks, INT_MAX);
    CU_TRY(c, ops_cuda_kernel_name(c, kernel),
           c->d->cuLaunchKernel(c->kernels[kernel], (unsigned)blocks, 1, 1, threads, 1, 1, given, c->stream, params,
                                NULL));
    return TESS_OK;
}

tess_status ops_cuda_narrow_in(const cuda_ops *c, const float *x, uint16_t *y, uint64_t elems) {
    return OPS_LAUNCH(c, narrow, ops_blocks_each(elems), .x = x, .y = y, .elems = elems);
}

tess_status ops_cuda_zero_in(const cuda_ops *c, void *x, uint64_t bytes) {
    if (bytes)
        CU_TRY(c, "filling with zeros", c->d->cuMemsetD8Async((CUdeviceptr)(uintptr_t)x, 0, bytes, c->stream));
    return TESS_OK;
}

/* Sums the columns of `samples` samples of `rows` rows each. */
tess_status ops_cuda_sample_sums_in(const cuda_ops *c, const float *x, float *y, uint64_t samples, uint64_t rows,
                                    uint64_t width, int add, uint32_t over) {
    uint64_t groups = (width + OPS_COLUMNS_PER_BLOCK - 1) / OPS_COLUMNS_PER_BLOCK;
    return OPS_LAUNCH(c, column_sums, samples * groups, .x = x, .y = y, .rows = rows, .width = width, .groups = groups,
                      .add = add, .over = over);
}
tess_status ops_cuda_column_sums_in(const cuda_ops *c, const float *x, float *y, uint64_t rows, uint64_t width,
                                    int add) {
    return ops_cuda_sample_sums_in(c, x, y, 1, rows, width, add, 0);
}
