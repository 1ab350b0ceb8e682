/* SPDX-License-Identifier: BSD-3-Clause */
#include "cuda_ops.h"
#include <tessera/tessera.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static ops_cublas blas;
static char failure[300]; /* "": loaded */

/* A cuBLAS of a later major version than the driver loads and then finds no kernel that the driver takes. */
static int driver_takes(int major) {
    const tess_cuda *cu;
    char why[240];
    return tess_cuda_get(&cu, why, sizeof why) != TESS_OK || cu->driver_version / 1000 >= major;
}

static void *open_first(void) {
    static const char *const names[] = { "libcublas.so.13", "libcublas.so.12" };
    for (size_t i = driver_takes(13) ? 0 : 1; i < sizeof names / sizeof *names; i++) {
        void *lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (lib)
            return lib;
        if (!failure[0]) /* the first one's, which says where it was looked for */
            snprintf(failure, sizeof failure, "%s", dlerror());
    }
    return NULL;
}

/* Stays open as long as the process. */
static void load(void) {
    void *lib = open_first();
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
}

tess_status ops_cublas_load(const ops_cublas **out) {
    pthread_once(&once, load);
    if (failure[0])
        return tess_fail(TESS_E_UNSUPPORTED, "operators cuda: cuBLAS 13 or 12 is needed: %s", failure);
    *out = &blas;
    return TESS_OK;
}
