/* SPDX-License-Identifier: BSD-3-Clause */
#include "library.h"

#include <dlfcn.h>
#include <pthread.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct nccl_library library;
static tess_error failure = { .struct_size = sizeof failure, .rank = -1 };

const char *nccl_version_text(int version, char out[24]) {
    int major = version < 10000 ? version / 1000 : version / 10000;
    snprintf(out, 24, "%d.%d.%d", major, (version < 10000 ? version % 1000 : version % 10000) / 100, version % 100);
    return out;
}

int nccl_hangs_in_windows(int version) {
    return version < NCCL_VERSION(2, 29, 7);
}

static void *find_symbol(void *handle, const char *name, int needed) {
    void *symbol = dlsym(handle, name);
    if (!symbol && needed && failure.code == TESS_OK)
        tess_plugin_fail(&failure, TESS_E_VERSION, "nccl: libnccl.so.2 has no %s: NCCL 2.18 or later is needed", name);
    return symbol;
}

static void load_library(void) {
    char text[24];
    void *handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!handle) {
        tess_plugin_fail(&failure, TESS_E_UNSUPPORTED,
                         "nccl: cannot load libnccl.so.2 (is NCCL installed, or its folder in "
                         "LD_LIBRARY_PATH?): %.120s",
                         dlerror());
        return;
    }
    /* ISO C has no cast from an object's to a function's address. */
#define GET(name, needed)                                                                                              \
    {                                                                                                                  \
        void *symbol = find_symbol(handle, #name, needed);                                                             \
        memcpy(&library.name, &symbol, sizeof symbol);                                                                 \
    }
#define GET_NEEDED(name) GET(name, 1)
#define GET_LATER(name) GET(name, 0)
    NCCL_NEEDED(GET_NEEDED)
    NCCL_SINCE_2_19(GET_LATER)
    NCCL_SINCE_2_27(GET_LATER)
    if (failure.code != TESS_OK)
        return;
    ncclResult_t r = library.ncclGetVersion(&library.version);
    if (r != ncclSuccess)
        nccl_failed(&failure, &library, r, "ncclGetVersion");
    else if (library.version < NCCL_OLDEST)
        tess_plugin_fail(&failure, TESS_E_VERSION, "nccl: libnccl.so.2 is NCCL %s, 2.18.0 or later is needed",
                         nccl_version_text(library.version, text));
    if (library.version < NCCL_VERSION(2, 19, 0)) {
        library.ncclMemAlloc = NULL;
        library.ncclCommRegister = NULL;
    }
    if (library.version < NCCL_VERSION(2, 27, 0))
        library.ncclCommWindowRegister = NULL;
}

tess_status nccl_library_get(const struct nccl_library **out, tess_error *f) {
    pthread_once(&once, load_library);
    if (failure.code != TESS_OK) {
        *f = failure;
        return f->code;
    }
    *out = &library;
    return TESS_OK;
}

/* NCCL_COMM_BLOCKING overrides the setting that a communicator is made with. */
static tess_status fail_unblocked(tess_error *f, const char *call) {
    f->native = (int32_t)ncclInProgress;
    return tess_plugin_fail(f, TESS_E_INVALID,
                            "nccl: %s did not block, as NCCL_COMM_BLOCKING=0 has it: unset that variable", call);
}

tess_status nccl_failed(tess_error *f, const struct nccl_library *lib, ncclResult_t result, const char *call) {
    if (result == ncclInProgress) /* a blocking communicator never returns this unless the environment overrides it */
        return fail_unblocked(f, call);
    tess_status s = result == ncclUnhandledCudaError                              ? TESS_E_DEVICE
                    : result == ncclSystemError                                   ? TESS_E_SYSTEM
                    : result == ncclRemoteError                                   ? TESS_E_PEER
                    : result == ncclInvalidArgument || result == ncclInvalidUsage ? TESS_E_INVALID
                                                                                  : TESS_E_SYSTEM;
    tess_plugin_fail(f, s, "nccl: %s gave %d: %s", call, (int)result, lib->ncclGetErrorString(result));
    f->native = (int32_t)result;
    return s;
}
