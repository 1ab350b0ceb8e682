/* SPDX-License-Identifier: BSD-3-Clause */
/* Modules and launches: a kernel's name leads to a function of the host, in the tables that this library is built with.
 */
#include "driver.h"
#include "races.h"

#include <string.h>

extern const double_kernels_fn double__tables[]; /* tables.c */
static char module;

const double_kernel *double__kernel_named(const char *name) {
    for (const double_kernels_fn *table = double__tables; *table; table++)
        for (const double_kernel *k = (*table)(); k->name; k++)
            if (strcmp(k->name, name) == 0)
                return k;
    return NULL;
}

static CUresult load(CUmodule *out, const void *image) {
    if (!image || !out)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult fits = double__image_fits(image);
    if (fits != CUDA_SUCCESS)
        return fits;
    double__live("modules", 1);
    *out = (CUmodule)(void *)&module;
    return CUDA_SUCCESS;
}

DOUBLE_API CUresult cuModuleLoadData(CUmodule *out, const void *image) {
    ENTER_UNSAFE("cuModuleLoadData", CUDA_ERROR_NO_BINARY_FOR_GPU);
    return load(out, image);
}

DOUBLE_API CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned n, CUjit_option *options,
                                       void **values) {
    ENTER_CONTEXT("cuModuleLoadDataEx", CUDA_ERROR_NO_BINARY_FOR_GPU);
    (void)n;
    (void)options;
    (void)values;
    return load(out, image);
}

DOUBLE_API CUresult cuModuleUnload(CUmodule which) {
    CUresult entered = double__enter_context("cuModuleUnload", CUDA_ERROR_UNKNOWN);
    if ((void *)which != &module)
        return CUDA_ERROR_INVALID_HANDLE;
    double__live("modules", -1);
    return entered;
}

/* More shared memory than usual has to be allowed: of a function, in its context, from the time it was found. */
enum { USUAL_SHARED = 48 << 10, ALLOWED = 16 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    const double_kernel *kernel;
    int bytes[DOUBLE_DEVICES];
} allowed[ALLOWED]; /* the kernels that want more */

static int *allowed_to(const double_kernel *k) {
    int i = 0;
    while (i < ALLOWED - 1 && allowed[i].kernel && allowed[i].kernel != k)
        i++;
    allowed[i].kernel = k;
    return &allowed[i].bytes[double__current_device()];
}
static void allow_shared(const double_kernel *k, int bytes) {
    pthread_mutex_lock(&lock);
    if (k->shared_bytes > USUAL_SHARED)
        *allowed_to(k) = bytes;
    pthread_mutex_unlock(&lock);
}
static int is_allowed(const double_kernel *k, unsigned bytes) {
    pthread_mutex_lock(&lock);
    int ok = bytes <= USUAL_SHARED || (k->shared_bytes > USUAL_SHARED && (int)bytes <= *allowed_to(k));
    pthread_mutex_unlock(&lock);
    return ok;
}

DOUBLE_API CUresult cuModuleGetFunction(CUfunction *out, CUmodule which, const char *name) {
    ENTER_CONTEXT("cuModuleGetFunction", CUDA_ERROR_NOT_FOUND);
    const double_kernel *k = (void *)which == &module ? double__kernel_named(name) : NULL;
    if (!k)
        return CUDA_ERROR_NOT_FOUND;
    allow_shared(k, 0);
    *out = (CUfunction)(void *)(uintptr_t)k;
    return CUDA_SUCCESS;
}

DOUBLE_API CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute attribute, int value) {
    ENTER_CONTEXT("cuFuncSetAttribute", CUDA_ERROR_UNKNOWN);
    if (!f)
        return CUDA_ERROR_INVALID_HANDLE;
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
        return CUDA_SUCCESS;
    if (value < 0 || value > double__shared_bytes())
        return CUDA_ERROR_INVALID_VALUE;
    allow_shared((const double_kernel *)(void *)f, value);
    return CUDA_SUCCESS;
}

DOUBLE_API CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction f) {
    ENTER_CONTEXT("cuFuncGetAttribute", CUDA_ERROR_UNKNOWN);
    *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
    return f ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

DOUBLE_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction f, int threads, size_t shared) {
    ENTER_CONTEXT("cuOccupancyMaxActiveBlocksPerMultiprocessor", CUDA_ERROR_UNKNOWN);
    (void)shared;
    *blocks = threads > 0 ? 2048 / threads : 0;
    return f ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

struct launch {
    const double_kernel *kernel;
    unsigned grid[3], block[3];
    unsigned char args[DOUBLE_WORK_BYTES - 64] __attribute__((aligned(16)));
};

static void run_launch(void *data) {
    struct launch *l = data;
    double__translate(l->args, l->kernel->args_bytes);
    l->kernel->run(l->args, l->grid, l->block);
}

enum { DESCRIBED = 8 };
static struct {
    const char *name;
    double_describe_fn *describe;
} described[DESCRIBED];

void double__describes_kernel(const char *name, double_describe_fn *describe) {
    int i = 0;
    while (i < DESCRIBED - 1 && described[i].name)
        i++;
    described[i].name = name;
    described[i].describe = describe;
}

static void describe_launch(const void *data, double_access *a) {
    const struct launch *l = data;
    for (int i = 0; i < DESCRIBED && described[i].name; i++)
        if (strcmp(described[i].name, l->kernel->name) == 0) {
            described[i].describe(l->args, a);
            return;
        }
    double__reads_words(a, l->kernel->name, l->args, l->kernel->args_bytes);
}
__attribute__((constructor)) static void describe_launches(void) {
    double__describes(run_launch, describe_launch);
}

/* Whether an argument is an address in page-locked memory. */
static int reaches_host(const void *args, size_t bytes) {
    void *word;
    for (size_t at = 0; at + sizeof word <= bytes; at += sizeof word) {
        memcpy(&word, (const char *)args + at, sizeof word);
        if (word && double__is_locked(word))
            return 1;
    }
    return 0;
}

DOUBLE_API CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                   unsigned bz, unsigned shared, CUstream stream, void **params, void **extra) {
    ENTER_CONTEXT("cuLaunchKernel", CUDA_ERROR_LAUNCH_FAILED);
    const double_kernel *k = (const double_kernel *)(void *)f;
    double_stream *s = double__stream_of(stream);
    struct launch l = { .kernel = k, .grid = { gx, gy, gz }, .block = { bx, by, bz } };
    if (!k || !s)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!is_allowed(k, shared) || !gx || !gy || !gz || !bx || !by || !bz || gy > 65535 || gz > 65535 ||
        (uint64_t)bx * by * bz > 1024 || !params || extra || k->args_bytes > sizeof l.args)
        return CUDA_ERROR_INVALID_VALUE;
    TAKES(s);
    if (shared < k->shared_bytes) { /* a block would write behind what it has */
        double__spoil(double__current_device(), CUDA_ERROR_ILLEGAL_ADDRESS);
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    double__fails(k->name); /* counts it */
    memcpy(l.args, params[0], k->args_bytes);
    if (strcmp(k->name, "tess_cuda_cast") == 0 && reaches_host(l.args, k->args_bytes))
        double__peak("cast-blocks-over-host", gx);
    double__push(s, run_launch, &l, offsetof(struct launch, args) + k->args_bytes);
    return CUDA_SUCCESS;
}
