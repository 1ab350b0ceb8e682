/* SPDX-License-Identifier: BSD-3-Clause */
/* store_speed PLUGIN SETTINGS MIB DEPTH: reads and writes a store of offload-disk with nothing beside it, DEPTH
 * requests of 1 MiB under way at once. Prints bytes per second: of writing, of reading. For
 * docs/benchmarks/disk_alone.sh. */
#include <tessera/plugin_helpers.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BLOCK = 1 << 20, MOST = 256 };

static void say(void *host, int32_t level, const char *plugin, const char *message) {
    (void)host;
    if (level < 2)
        fprintf(stderr, "%s: %s\n", plugin, message);
}

static const char *no_option(void *host, const char *key) {
    (void)host, (void)key;
    return NULL;
}

static int32_t goes_on(void *host) {
    (void)host;
    return 0;
}

static void check(tess_status s, const tess_error *e, const char *what) {
    if (!s)
        return;
    fprintf(stderr, "store_speed: %s: %s\n", what, e->message);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Moves the whole store once, a block behind the other, in memory of `depth` blocks. */
static double move(const tess_offload_ops *ops, tess_store *store, uint32_t op, uint64_t blocks, uint64_t depth,
                   char *memory) {
    tess_request *under_way[MOST] = { NULL };
    tess_error e = { .struct_size = sizeof e };
    double begin = now();
    for (uint64_t i = 0; i < blocks + depth; i++) {
        uint64_t k = i % depth;
        if (under_way[k])
            check(ops->store_wait(store, under_way[k], &e), &e, "wait");
        under_way[k] = NULL;
        tess_store_io io = {
            .struct_size = sizeof io, .op = op, .at = i * BLOCK, .bytes = BLOCK, .memory = memory + k * BLOCK
        };
        if (i < blocks)
            check(ops->store_post(store, &io, &under_way[k], &e), &e, "post");
    }
    return (double)blocks * BLOCK / (now() - begin);
}

static const tess_offload_ops *open_plugin(const char *path, const tess_host *host, void **ctx) {
    tess_status (*open)(const tess_host *, uint32_t, const void **, void **, tess_error *) = NULL;
    const void *ops = NULL;
    tess_error e = { .struct_size = sizeof e };
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library)
        *(void **)&open = dlsym(library, "tess_plugin_open_v1");
    if (!open) {
        fprintf(stderr, "store_speed: %s\n", dlerror());
        exit(1);
    }
    check(open(host, TESS_KIND_OFFLOAD, &ops, ctx, &e), &e, path);
    return ops;
}

int main(int argc, char **argv) {
    uint64_t blocks = argc == 5 ? strtoull(argv[3], NULL, 10) : 0, depth = argc == 5 ? strtoull(argv[4], NULL, 10) : 0;
    if (!blocks || !depth || depth > MOST) {
        fprintf(stderr, "usage: store_speed PLUGIN SETTINGS MIB DEPTH\n");
        return 2;
    }
    tess_host host = { .struct_size = sizeof host,
                       .abi_major = TESS_ABI_MAJOR,
                       .abi_minor = TESS_ABI_MINOR,
                       .log = say,
                       .option = no_option,
                       .aborting = goes_on,
                       .args = argv[2],
                       .helper_cpus = "",
                       .numa_node = -1 };
    void *ctx;
    const tess_offload_ops *ops = open_plugin(argv[1], &host, &ctx);
    uint64_t own = BLOCK + blocks * BLOCK / 1024,
             obtained = 0; /* for the store itself: what bounces, and sums of 4 KiB each */
    tess_store_config c = { .struct_size = sizeof c,
                            .most_posted = MOST,
                            .nranks = 1,
                            .align = 4096,
                            .bytes = blocks * BLOCK,
                            .memory = aligned_alloc(4096, own / 4096 * 4096),
                            .memory_bytes = own / 4096 * 4096 };
    char *memory = aligned_alloc(4096, depth * BLOCK);
    tess_store *store;
    tess_error e = { .struct_size = sizeof e };
    if (!memory || !c.memory)
        return 4;
    memset(memory, 7, depth * BLOCK);
    check(ops->store_open(ctx, &c, &store, &obtained, &e), &e, "store");
    if (TESS_CAN(tess_offload_ops, ops, store_deregister) && /* as the core does */
        ops->store_register(store, memory, depth * BLOCK, &e) == TESS_E_UNSUPPORTED)
        fprintf(stderr, "store_speed: %s\n", e.message);
    double writes = move(ops, store, TESS_STORE_WRITE, blocks, depth, memory);
    printf("%.0f %.0f\n", writes, move(ops, store, TESS_STORE_READ, blocks, depth, memory));
    ops->store_close(store);
    ops->close(ctx);
    free(memory);
    free(c.memory);
    return 0;
}
