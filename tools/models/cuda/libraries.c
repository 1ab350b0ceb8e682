/* SPDX-License-Identifier: BSD-3-Clause */
#include "cuda_ops.h"
#include <tessera/tessera.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static ops_cublas blas;
static ops_cublaslt lt;
static int has_lt;
static char failure[300]; /* "": no failure */

/* A cuBLAS of a later major version than the driver's can be loaded, but then has no kernel that the driver accepts. */
static int driver_takes(int major) {
    const tess_cuda *cu;
    char why[240];
    return tess_cuda_get(&cu, why, sizeof why) != TESS_OK || cu->driver_version / 1000 >= major;
}

static void *open_first(int *major) {
    char name[32];
    for (*major = driver_takes(13) ? 13 : 12; *major >= 12; --*major) {
        snprintf(name, sizeof name, "libcublas.so.%d", *major);
        void *lib = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        if (lib)
            return lib;
        if (!failure[0]) /* the first failure says where the library was searched */
            snprintf(failure, sizeof failure, "%s", dlerror());
    }
    return NULL;
}

/* cuBLAS depends on cuBLASLt, so the latter lies in the same place. */
static int load_lt(int major) {
    char name[32];
    int found = 1;
    snprintf(name, sizeof name, "libcublasLt.so.%d", major);
    void *lib = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        return 0;
#define FIND(name)                                                                                                     \
    *(void **)(void *)&lt.name = dlsym(lib, #name);                                                                    \
    found = found && lt.name;
    OPS_CUBLASLT_FUNCTIONS(FIND)
#undef FIND
    return found;
}

/* The library stays open until the process ends. */
static void load(void) {
    int major;
    void *lib = open_first(&major);
    const char *missing = NULL;
    if (!lib)
        return;
    failure[0] = 0;
#define FIND(name)                                                                                                     \
    *(void **)(void *)&blas.name = dlsym(lib, #name);                                                                  \
    if (!blas.name && !missing)                                                                                        \
        missing = #name;
    OPS_CUBLAS_FUNCTIONS(FIND)
#undef FIND
    if (missing)
        snprintf(failure, sizeof failure, "the library lacks %s", missing);
    has_lt = load_lt(major);
}

tess_status ops_cublas_load(const ops_cublas **out) {
    pthread_once(&once, load);
    if (failure[0])
        return tess_fail(TESS_E_UNSUPPORTED, "operators cuda: cuBLAS 13 or 12 is needed: %s", failure);
    *out = &blas;
    return TESS_OK;
}

const ops_cublaslt *ops_cublaslt_load(void) {
    pthread_once(&once, load);
    return has_lt ? &lt : NULL;
}
