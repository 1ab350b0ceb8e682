/* SPDX-License-Identifier: BSD-3-Clause */
#include "plugin_host.h"

#include <dlfcn.h>
#include <pthread.h>
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
    if (strcmp(key, "nccl-shared-gpu") == 0)
        return getenv("PROBE_SHARED_GPU");
    if (strcmp(key, "nccl-sums") == 0)
        return getenv("PROBE_SUMS");
    return strcmp(key, "deterministic") == 0 ? getenv("PROBE_DETERMINISTIC") : NULL;
}
/* A key under way is not compared: strcmp may find a difference and then read what another rank has put there since,
 * and so call different keys equal. */
static int index_of(const char *key) {
    int i = 0;
    while (i < KEYS && (atomic_load(&host_shared->keys[i].version) < 2 || strcmp(host_shared->keys[i].key, key) != 0))
        i++;
    return i;
}
static tess_status write_at(int i, const char *key, const void *value, uint64_t bytes) {
    if (i >= KEYS || bytes > VALUE)
        return TESS_E_NOMEM;
    int is_new = atomic_fetch_add(&host_shared->keys[i].version, 1) == 0;
    atomic_thread_fence(memory_order_seq_cst);
    if (is_new)
        snprintf(host_shared->keys[i].key, sizeof host_shared->keys[i].key, "%s", key);
    memcpy(host_shared->keys[i].value, value, bytes);
    host_shared->keys[i].bytes = bytes;
    atomic_fetch_add(&host_shared->keys[i].version, 1);
    return TESS_OK;
}
/* A key is set by one rank only, but by any of its threads. */
static tess_status set(void *host, const char *key, const void *value, uint64_t bytes) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    (void)host;
    pthread_mutex_lock(&lock);
    int i = index_of(key);
    tess_status s = write_at(i < KEYS ? i : atomic_fetch_add(&host_shared->n_keys, 1), key, value, bytes);
    pthread_mutex_unlock(&lock);
    return s;
}
/* 0: it was being written. */
static int read_at(int i, void *value, uint64_t *bytes) {
    unsigned version = atomic_load(&host_shared->keys[i].version);
    *bytes = host_shared->keys[i].bytes;
    memcpy(value, host_shared->keys[i].value, *bytes);
    atomic_thread_fence(memory_order_seq_cst);
    return version % 2 == 0 && atomic_load(&host_shared->keys[i].version) == version;
}
static tess_status get(void *host, const char *key, void *value, uint64_t *bytes, int64_t timeout_ns) {
    (void)host;
    for (int64_t late = now_ns() + timeout_ns;; usleep(500)) {
        int i = index_of(key);
        if (i < KEYS && read_at(i, value, bytes))
            return TESS_OK;
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

const tess_host plugin_host = { .struct_size = sizeof plugin_host,
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
    if (!open || open(&plugin_host, TESS_KIND_COMM, &table, ctx, error)) {
        fprintf(stderr, "cannot open the plugin: %s\n", library ? error->message : dlerror());
        return 0;
    }
    *ops = table;
    return 1;
}
