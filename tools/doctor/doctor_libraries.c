/* SPDX-License-Identifier: BSD-3-Clause */
/* Reports this build's parts and the libraries found at run time. It links no library itself and asks loaded ones for
 * their versions. */
#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <string.h>
#include <unistd.h>

#include "doctor.h"
#include "tools/support/version.h"

/* ISO C has no cast from an object's to a function's address. */
static int find(void *library, const char *name, void *fn) {
    void *symbol = dlsym(library, name);
    memcpy(fn, &symbol, sizeof symbol);
    return symbol != NULL;
}

static void parts(doctor *d) {
    char missing[512] = "";
    const char *part;
    int built_in;
    size_t at = 0;
    for (size_t i = 0; (part = tool_version_part(i, &built_in)) != NULL; i++)
        if (!built_in && at < sizeof missing)
            at += (size_t)snprintf(missing + at, sizeof missing - at, "%s%s", at ? ", " : "", part);
    doctor_row(d, at ? DOCTOR_NOTE : DOCTOR_OK, "this build",
               "tools/quickstart build installs the packages and builds again; CUDA comes from NVIDIA", "%s%s",
               at ? "left out: " : "every part is built in", missing);
}

static void versions(doctor *d) {
    typedef const char *text_fn(void);
    typedef const char *numbered_text_fn(int);
    typedef unsigned number_fn(void);
    typedef const int *numbers_fn(void); /* dnnl_version_t begins with three */
    text_fn *zlib, *utf8proc;
    numbered_text_fn *openssl;
    number_fn *xxhash;
    numbers_fn *dnnl;
    char found[512];
    size_t at = (size_t)snprintf(found, sizeof found, "glibc %s", gnu_get_libc_version());
#define SAY(...)                                                                                                       \
    if (at < sizeof found)                                                                                             \
    at += (size_t)snprintf(found + at, sizeof found - at, __VA_ARGS__)
    if (find(RTLD_DEFAULT, "OpenSSL_version", &openssl))
        SAY(", %s", openssl(0));
    if (find(RTLD_DEFAULT, "dnnl_version", &dnnl))
        SAY(", oneDNN %d.%d.%d", dnnl()[0], dnnl()[1], dnnl()[2]);
    if (find(RTLD_DEFAULT, "zlibVersion", &zlib))
        SAY(", zlib %s", zlib());
    if (find(RTLD_DEFAULT, "XXH_versionNumber", &xxhash))
        SAY(", xxHash %u.%u.%u", xxhash() / 10000, xxhash() / 100 % 100, xxhash() % 100);
    if (find(RTLD_DEFAULT, "utf8proc_version", &utf8proc))
        SAY(", utf8proc %s", utf8proc());
#undef SAY
    doctor_row(d, DOCTOR_OK, "libraries", NULL, "%s", found);
}

static void each_gpu(doctor *d, void *library, int driver) {
    int (*count)(int *), (*name)(char *, int, int);
    int n = 0;
    if (!find(library, "cuDeviceGetCount", &count) || !find(library, "cuDeviceGetName", &name) || count(&n) != 0 ||
        n == 0) {
        doctor_row(d, DOCTOR_NOTE, "GPU", "is one in CUDA_VISIBLE_DEVICES?", "the driver shows no GPU");
        return;
    }
    for (int i = 0; i < n; i++) {
        char text[128] = "";
        name(text, sizeof text - 1, i);
        doctor_row(d, DOCTOR_OK, "GPU", NULL, "%d: %s, driver for CUDA %d.%d", i, text, driver / 1000,
                   driver % 100 / 10);
    }
}

static void gpus(doctor *d) {
    int (*init)(unsigned), (*version)(int *);
    int driver = 0, code = 0;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    const int device = access("/dev/nvidiactl", F_OK) == 0;
    if (!library && !device)
        doctor_row(d, DOCTOR_OK, "GPU", NULL, "none: the cpu device trains");
    else if (!library)
        doctor_row(d, DOCTOR_NOTE, "GPU", "install libcuda1 of the driver's version; in a container, --gpus all",
                   "there is a device, and no libcuda.so.1");
    else if (!find(library, "cuInit", &init) || !find(library, "cuDriverGetVersion", &version) ||
             (code = init(0)) != 0 || version(&driver) != 0)
        doctor_row(d, DOCTOR_NOTE, "GPU", "nvidia-smi says more; in a container, --gpus all",
                   "libcuda.so.1 does not start: error %d", code);
    else
        each_gpu(d, library, driver);
}

static void nccl(doctor *d) {
    int (*get)(int *);
    int v = 0;
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        doctor_row(d, DOCTOR_OK, "NCCL", NULL, "none: shm, gloo and hosts carry what ranks say");
    else if (!find(library, "ncclGetVersion", &get) || get(&v) != 0 || v < 21800)
        doctor_row(d, DOCTOR_NOTE, "NCCL", "install NCCL 2.18 or later", "libnccl.so.2 is version %d", v);
    else
        doctor_row(d, DOCTOR_OK, "NCCL", NULL, "%d.%d.%d", v / 10000, v / 100 % 100, v % 100);
}

void doctor_libraries(doctor *d) {
    parts(d);
    versions(d);
    gpus(d);
    nccl(d);
}
