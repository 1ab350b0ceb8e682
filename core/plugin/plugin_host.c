/* SPDX-License-Identifier: BSD-3-Clause */
#include "plugin_host.h"

#include <stdlib.h>

#include "base/log.h"
#include "base/options.h"
#include "plugin_book.h"
#include "plugin_check.h"
#include <tessera/plugin_helpers.h>

static void host_log(void *host, int32_t level, const char *plugin, const char *message) {
    (void)host;
    tess__log(level, "%s: %s", plugin ? plugin : "plugin", message ? message : "");
}

static const char *host_option(void *host, const char *key) {
    (void)host;
    return key ? tess__option_text(key) : NULL;
}

static tess_status host_kv_set(void *host, const char *key, const void *value, uint64_t bytes) {
    (void)host, (void)key, (void)value, (void)bytes;
    return TESS_E_UNSUPPORTED;
}

static tess_status host_kv_get(void *host, const char *key, void *value, uint64_t *bytes, int64_t timeout_ns) {
    (void)host, (void)key, (void)value, (void)bytes, (void)timeout_ns;
    return TESS_E_UNSUPPORTED;
}

static int32_t host_aborting(void *host) {
    (void)host;
    return 0;
}

static tess_status host_mem_alloc(void *host, uint32_t domain, uint32_t category, uint64_t bytes, uint64_t align,
                                  void **out) {
    (void)host;
    return tess__plugin_book_alloc(NULL, domain, category, bytes, align, out);
}

static void host_mem_free(void *host, void *ptr) {
    (void)host;
    tess__plugin_book_free(ptr);
}

const tess_host tess__host_defaults = {
    .struct_size = sizeof tess__host_defaults,
    .abi_major = TESS_ABI_MAJOR,
    .abi_minor = TESS_ABI_MINOR,
    .log = host_log,
    .option = host_option,
    .kv_set = host_kv_set,
    .kv_get = host_kv_get,
    .aborting = host_aborting,
    .mem_alloc = host_mem_alloc,
    .mem_free = host_mem_free,
    .helper_cpus = "",
    .numa_node = -1,
    .max_helper_threads = -1,
};

/* A profiler sets this variable to tell NVTX's callers which library takes their ranges. */
const char *tess__plugin_host_profiler(void) {
    const char *library = secure_getenv("NVTX_INJECTION64_PATH");
    return library && *library ? library : NULL;
}

tess_host *tess__plugin_host_new(const tess_host *services, const char *args) {
    tess_host *h = malloc(sizeof *h);
    if (!h)
        return NULL;
    *h = services ? *services : tess__host_defaults;
    h->struct_size = tess__host_defaults.struct_size;
    h->abi_major = tess__host_defaults.abi_major;
    h->abi_minor = tess__host_defaults.abi_minor;
    h->args = args;
    if (!h->log)
        h->log = tess__host_defaults.log;
    if (!h->option)
        h->option = tess__host_defaults.option;
    if (!h->kv_set)
        h->kv_set = tess__host_defaults.kv_set;
    if (!h->kv_get)
        h->kv_get = tess__host_defaults.kv_get;
    if (!h->aborting)
        h->aborting = tess__host_defaults.aborting;
    if (!h->mem_alloc || !h->mem_free) {
        h->mem_alloc = tess__host_defaults.mem_alloc;
        h->mem_free = tess__host_defaults.mem_free;
    }
    if (!h->helper_cpus)
        h->helper_cpus = tess__host_defaults.helper_cpus;
    if (!h->profiler)
        h->profiler = tess__plugin_host_profiler();
    return h;
}
