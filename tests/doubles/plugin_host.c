/* SPDX-License-Identifier: BSD-3-Clause */
#include "plugin_host.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct plugin_host_shared *host_shared;

int plugin_host_open(void) {
    host_shared = mmap(NULL, sizeof *host_shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return host_shared != MAP_FAILED;
}

int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void keep_log(void *host, int32_t level, const char *plugin, const char *message) {
    (void)host, (void)level, (void)plugin;
    snprintf(host_shared->logged, sizeof host_shared->logged, "%s", message);
}
static const char *no_option(void *host, const char *key) {
    (void)host;
    if (strcmp(key, "nccl-windows") == 0)
        return getenv("PROBE_WINDOWS");
    return strcmp(key, "deterministic") == 0 ? getenv("PROBE_DETERMINISTIC") : NULL;
}
static tess_status set(void *host, const char *key, const void *value, uint64_t bytes) {
    (void)host;
    int i = 0;
    while (i < KEYS && strcmp(host_shared->keys[i].key, key) != 0)
        i++;
    if (i == KEYS)
        i = atomic_fetch_add(&host_shared->n_keys, 1);
    if (i >= KEYS || bytes > VALUE)
        return TESS_E_NOMEM;
    snprintf(host_shared->keys[i].key, sizeof host_shared->keys[i].key, "%s", key);
    memcpy(host_shared->keys[i].value, value, bytes);
    host_shared->keys[i].bytes = bytes;
    atomic_store(&host_shared->keys[i].ready, 1);
    return TESS_OK;
}
static tess_status get(void *host, const char *key, void *value, uint64_t *bytes, int64_t timeout_ns) {
    (void)host;
    for (int64_t late = now_ns() + timeout_ns;; usleep(500)) {
        for (int i = 0; i < KEYS; i++)
            if (atomic_load(&host_shared->keys[i].ready) && strcmp(host_shared->keys[i].key, key) == 0) {
                *bytes = host_shared->keys[i].bytes;
                memcpy(value, host_shared->keys[i].value, *bytes);
                return TESS_OK;
            }
        if (atomic_load(&host_shared->failed))
            return TESS_E_ABORTED;
        if (now_ns() > late)
            return TESS_E_TIMEOUT;
    }
}
static int32_t is_aborting(void *host) {
    (void)host;
    return getenv("PROBE_DEAF") ? 0 : atomic_load(&host_shared->failed);
}

static const tess_host the_host = { .struct_size = sizeof the_host,
                                    .abi_major = TESS_ABI_MAJOR,
                                    .abi_minor = TESS_ABI_MINOR,
                                    .log = keep_log,
                                    .option = no_option,
                                    .kv_set = set,
                                    .kv_get = get,
                                    .aborting = is_aborting,
                                    .args = "",
                                    .helper_cpus = "",
                                    .numa_node = -1,
                                    .max_helper_threads = -1 };

int plugin_host_load(const tess_comm_ops **ops, void **ctx, tess_error *error) {
    typedef tess_status (*open_fn)(const tess_host *, uint32_t, const void **, void **, tess_error *);
    const void *table;
    open_fn open;
    void *library = dlopen(getenv("PLUGIN"), RTLD_NOW | RTLD_LOCAL);
    void *symbol = library ? dlsym(library, "tess_plugin_open_v1") : NULL;
    memcpy(&open, &symbol, sizeof symbol);
    if (!open || open(&the_host, TESS_KIND_COMM, &table, ctx, error)) {
        fprintf(stderr, "cannot open the plugin: %s\n", library ? error->message : dlerror());
        return 0;
    }
    *ops = table;
    return 1;
}
