/* SPDX-License-Identifier: BSD-3-Clause */
/* comm plugin "greedy": shm, but that one rank maps memory that nobody asked for. Args "open:R:KIB" take it when the
 * plugin is opened on rank R, "init:R:KIB" when its communicator is made. What the witness must find
 * (tests/e2e/test_every_rank.sh). */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "over_shm.h"

TESS_DESCRIPTOR(1u << TESS_KIND_COMM, "greedy", "1.0", "BSD-3-Clause", "");

static tess_comm_ops table;
static tess_status (*inner_init)(void *, const tess_comm_config *, tess_comm **, tess_error *);

static size_t kib;

/* R:KIB */
static int is_mine(const char *text) {
    const char *rank = getenv("RANK");
    char *colon;
    long asked = strtol(text, &colon, 10);
    kib = *colon ? strtoul(colon + 1, NULL, 10) : 0;
    return rank && atol(rank) == asked;
}

static void take(void) {
    mmap(NULL, kib << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

static tess_status greedy_init(void *ctx, const tess_comm_config *config, tess_comm **out, tess_error *error) {
    take();
    return inner_init(ctx, config, out, error);
}

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **out, void **ctx, tess_error *error) {
    (void)kind;
    const tess_status s = open_shm(host, &table, ctx, error);
    if (s < 0)
        return s;
    inner_init = table.init;
    if (strncmp(host->args, "open:", 5) == 0 && is_mine(host->args + 5))
        take();
    if (strncmp(host->args, "init:", 5) == 0 && is_mine(host->args + 5))
        table.init = greedy_init;
    *out = &table;
    return TESS_OK;
}
