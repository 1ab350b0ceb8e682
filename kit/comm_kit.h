/* SPDX-License-Identifier: BSD-3-Clause */
/* A whole comm plugin out of a link: the author writes how W ranks connect and how they exchange bytes. The kit does
 * the rest of tess_comm_ops on top of it: checks of arguments, requests with the thread that runs them, every
 * collective, sums in the engine's tree order, the comparison of announcements, split, abort.
 *
 * Compiled into the plugin (tessera_add_plugin(… KIT)), no part of the ABI. A backend with asynchronous collectives of
 * its own fills in tess_comm_ops itself and does not need this. */
#ifndef TESS_COMM_KIT_H
#define TESS_COMM_KIT_H
#include <tessera/plugin_helpers.h>

typedef struct kit_link kit_link; /* the author's: the connections of one communicator */

/* The author's functions. All but interrupt are called by one thread at a time for one link: join by the engine's
 * thread, exchange by the communicator's own. */
typedef struct {
    const char *name, *wire_id; /* for messages; ranks with equal wire_id can talk to each other */
    uint32_t mem_mask;          /* 1u << TESS_MEM_… that exchange can read and write */
    /* Connects `config->rank` of `config->nranks` with all others; `config->group` is a prefix for keys of the
     * key-value store that no other communicator has. Blocks until all are there, config->timeout_ns is over
     * (TESS_E_TIMEOUT, with a rank that is missing) or host->aborting says so (TESS_E_ABORTED). */
    tess_status (*join)(const tess_host *host, const tess_comm_config *config, kit_link **out, tess_error *error);
    /* Sends `bytes` from out[p] to each rank p and receives as many from p into in[p]; null: nothing that way. Own
     * rank's entries are null. Blocks without limit until all of it is done, or interrupt was called (TESS_E_ABORTED).
     * Sizes and directions agree on all ranks, except where ranks err: then what matters is that the first exchange of
     * a collective is a small one and comes through. came[p]: bytes received so far, also on failure. A rank that is
     * gone is a failure (TESS_E_PEER with the rank) only while something is expected from it, or nothing is (it only
     * receives). */
    tess_status (*exchange)(kit_link *, const void *const *out, void *const *in, uint64_t bytes, uint64_t *came,
                            tess_error *error);
    void (*interrupt)(kit_link *); /* any thread, repeatable: exchange, now or later, returns at once */
    void (*leave)(kit_link *);     /* gives everything back, waits for nobody; null is fine */
    void (*closed)(void);          /* after the last communicator of a closed plugin; null: nothing to do */
} kit_link_ops;

/** The open function of the plugin: returns a table and a context over `link`, which lives as long as the process.
 * The context keeps `host`. A link's own options are declared with TESS_OPTIONS and read before. */
tess_status kit_open(const kit_link_ops *link, const tess_host *host, const void **ops, void **ctx, tess_error *error);
#endif
