/* SPDX-License-Identifier: BSD-3-Clause */
/* Plugin "lengths": device cpu and comm shm, in tables of another length. "shorter" ends before the last slots, as an
 * older header's table would; "longer" goes on, as a later one's would. Behind both ends lies garbage. */
#include <string.h>
#include <tessera/plugin.h>
#include <tessera/plugin_helpers.h>

TESS_DESCRIPTOR(1u << TESS_KIND_DEVICE | 1u << TESS_KIND_COMM, "lengths", "1.0", "BSD-3-Clause", "");

typedef union {
    uint32_t struct_size;
    tess_device_ops device;
    tess_comm_ops comm;
    void (*words[64])(void);
} table;

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **out, void **ctx, tess_error *error) {
    static table tables[2]; /* one for each kind */
    const int device = kind == TESS_KIND_DEVICE, shorter = strcmp(host->args, "shorter") == 0;
    const void *under = NULL;
    void *handle = NULL;
    tess_status s = host->plugin_open(host->host, kind, device ? "cpu" : "shm", &under, ctx, &handle, error);
    if (s < 0)
        return s;
    const size_t whole = device ? sizeof(tess_device_ops) : sizeof(tess_comm_ops);
    const size_t less = device ? offsetof(tess_device_ops, record_begin) : offsetof(tess_comm_ops, mem_share);
    table *t = &tables[device];
    memset(t, 0x5a, sizeof *t);
    memcpy(t, under, shorter ? less : whole);
    t->struct_size = (uint32_t)(shorter ? less : sizeof *t);
    *out = t;
    return TESS_OK;
}
