/* SPDX-License-Identifier: BSD-3-Clause */
/* The table of comm plugin shm, for plugins of tests that change some of its calls. */
#ifndef TESS_TEST_OVER_SHM_H
#define TESS_TEST_OVER_SHM_H
#include <string.h>
#include <tessera/plugin.h>
#include <tessera/plugin_helpers.h>

/* Opens shm; `table` and `ctx` get its own. A failure is shm's. */
static inline tess_status open_shm(const tess_host *host, tess_comm_ops *table, void **ctx, tess_error *error) {
    const void *ops = NULL;
    void *handle = NULL;
    tess_status s = host->plugin_open(host->host, TESS_KIND_COMM, "shm", &ops, ctx, &handle, error);
    if (s < 0)
        return s;
    const uint32_t bytes = ((const tess_comm_ops *)ops)->struct_size;
    memcpy(table, ops, bytes < sizeof *table ? bytes : sizeof *table);
    return TESS_OK;
}
#endif
