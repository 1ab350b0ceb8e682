/* SPDX-License-Identifier: BSD-3-Clause */
/* The host's part for tests that load comm-nccl by themselves: ranks are forks, and the key-value store is memory that
 * they share. */
#ifndef TESSERA_PLUGIN_HOST_H
#define TESSERA_PLUGIN_HOST_H
#include <stdatomic.h>
#include <tessera/plugin.h>

enum { KEYS = 64, VALUE = 512 };
struct plugin_host_shared {
    atomic_int failed; /* a rank has: the others are told, as the core does */
    atomic_int n_keys;
    struct {
        atomic_uint version; /* of the value; odd while it is written, 1 with its key */
        char key[160];
        unsigned char value[VALUE];
        uint64_t bytes;
    } keys[KEYS];
    char logged[400];
};
extern struct plugin_host_shared *host_shared; /* zeros before each run of all ranks */

/* Before all else; 0 when there is no memory to share. */
int plugin_host_open(void);
extern const tess_host plugin_host;
/* The plugin that PLUGIN names; 0 after a line that says why not. PROBE_DETERMINISTIC and PROBE_DEAF: options. */
int plugin_host_load(const tess_comm_ops **ops, void **ctx, tess_error *);
int64_t now_ns(void);
#endif
