/* SPDX-License-Identifier: BSD-3-Clause */
/* A rank's store: bytes that the offload plugin keeps where no address reaches. In the engine's tables they have
 * addresses all the same, which count from TESS__STORE_BASE and which nothing may touch. Their kind of memory is
 * TESS__MEM_STORE. All calls of the plugin's store go through here, from any thread. */
#ifndef TESS_OFFLOAD_STORE_H
#define TESS_OFFLOAD_STORE_H
#include "layout/setup.h"
#include <stdatomic.h>

enum { TESS__MEM_STORE = 24 /* beside TESS_MEM_…, which fit a mask of 32 bits */ };
#define TESS__STORE_BASE (UINT64_C(1) << 62) /* no processor has an address there */

typedef struct {
    const tess_offload_ops *ops;
    const char *name;   /* the plugin's, for messages */
    tess_store *handle; /* null: there is none */
    atomic_int failed;  /* a request of it did, since it was made */
    int registered;     /* it knows the memory of a step */
} tess__offload_store;

/** Makes a store of `config`; `*obtained` as the plugin measures it. */
tess_status tess__offload_open(tess__offload_store *, const tess__setup *, const tess_store_config *config,
                               uint64_t *obtained);
void tess__offload_close(tess__offload_store *); /* none is fine */
/** Says where a step's requests lie, until the next call or the end: nowhere, with 0 bytes. A store that does not want to
 * know, or cannot prepare that memory, does without. */
tess_status tess__offload_memory(tess__offload_store *, void *memory, uint64_t bytes);
/** Begins to read or write (TESS_STORE_…) `bytes` bytes at the store's address `at`. */
tess_status tess__offload_post(tess__offload_store *, uint32_t op, const void *at, void *memory, uint64_t bytes,
                               tess_request **out);
/** Waits, and forgets the request whatever its status. At once where there is none. */
tess_status tess__offload_wait(tess__offload_store *, tess_request **);
/** Does both, for whoever reads or writes apart from a step. */
tess_status tess__offload_run(tess__offload_store *, uint32_t op, const void *at, void *memory, uint64_t bytes);
#endif
