/* SPDX-License-Identifier: BSD-3-Clause */
/* The services that this engine gives its plugins. A null slot has the default of plugin/plugin_host.c. */
#include "state.h"

#include "base/options.h"
#include "plugin/plugin_host.h"

#include <string.h>

/* "threads" is resolved here, once, so that plugins and models use the number that ranks compare. "address" is no
 * variable: it is the address at which ranks of other hosts reach this one. */
static const char *host_option(void *host, const char *key) {
    tess *t = host;
    if (strcmp(key, "address") == 0)
        return t->comms.control ? tess__control_address(t->comms.control) : NULL;
    return strcmp(key, "threads") == 0 && t->plan.setup.threads ? t->settings.threads_text
                                                                : tess__given_text(&t->settings.given, key);
}

static tess_status host_kv_set(void *host, const char *key, const void *value, uint64_t bytes) {
    tess *t = host;
    char own[TESS__KV_KEY_MAX + 16];
    tess__comms_key(&t->comms, key, own, sizeof own);
    return t->comms.control ? tess__control_set(t->comms.control, own, value, bytes) : TESS_E_UNSUPPORTED;
}

static tess_status host_kv_get(void *host, const char *key, void *value, uint64_t *bytes, int64_t timeout_ns) {
    tess *t = host;
    char own[TESS__KV_KEY_MAX + 16];
    tess__comms_key(&t->comms, key, own, sizeof own);
    return t->comms.control ? tess__control_get(t->comms.control, own, value, bytes, timeout_ns) : TESS_E_UNSUPPORTED;
}

static int32_t host_aborting(void *host) {
    tess *t = host;
    return t->comms.control ? tess__control_aborting(t->comms.control) : 0;
}

static tess_status host_mem_alloc(void *host, uint32_t domain, uint32_t category, uint64_t bytes, uint64_t align,
                                  void **out) {
    tess *t = host;
    return tess__plugin_book_alloc(&t->selection.book, domain, category, bytes, align, out);
}

static void host_mem_free(void *host, void *ptr) {
    (void)host;
    tess__plugin_book_free(ptr);
}

static tess_status host_plugin_open(void *host, uint32_t kind, const char *selection, const void **ops, void **ctx,
                                    void **handle, tess_error *error) {
    tess *t = host;
    return tess__plugin_host_open(&t->selection.host, kind, selection, ops, ctx, handle, error);
}

void tess__host_make(tess *t) {
    t->selection.host = (tess_host){ .struct_size = sizeof t->selection.host,
                                     .abi_major = TESS_ABI_MAJOR,
                                     .abi_minor = TESS_ABI_MINOR,
                                     .host = t,
                                     .option = host_option,
                                     .kv_set = host_kv_set,
                                     .kv_get = host_kv_get,
                                     .aborting = host_aborting,
                                     .mem_alloc = host_mem_alloc,
                                     .mem_free = host_mem_free,
                                     .args = "",
                                     .helper_cpus = "",
                                     .numa_node = -1,
                                     .max_helper_threads = -1,
                                     .plugin_open = host_plugin_open,
                                     .plugin_close = tess__plugin_host_close };
    const char *cpus = tess__option_text("helper-cpus");
    if (cpus)
        t->selection.host.helper_cpus = cpus;
}
