/* SPDX-License-Identifier: BSD-3-Clause */
/* Keys and values in memory, bounded. Not for several threads at once. */
#ifndef TESS_KV_STORE_H
#define TESS_KV_STORE_H
#include "wire.h"

typedef struct tess__kv_store tess__kv_store;
tess__kv_store *tess__kv_store_create(void); /* null: no memory */
void tess__kv_store_destroy(tess__kv_store *);
/** Copies; replaces what was there. TESS_E_INVALID: key or value too long; TESS_E_NOMEM: the store is full. Sets no
 * message: *why is a sentence without the key. */
tess_status tess__kv_store_set(tess__kv_store *, const char *key, const void *value, uint64_t bytes, const char **why);
/** The value, which the store keeps, or null. */
tess__blob *tess__kv_store_get(const tess__kv_store *, const char *key);
/** The key and its value are gone; nothing when there is none. */
void tess__kv_store_drop(tess__kv_store *, const char *key);
#endif
