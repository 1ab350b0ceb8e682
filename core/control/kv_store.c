/* SPDX-License-Identifier: BSD-3-Clause */
#include "kv_store.h"

#include <stdlib.h>
#include <string.h>

#include "control.h"

enum { BUCKETS = 4096, KEYS_MAX = 1 << 20, BYTES_MAX = 256 << 20 };

typedef struct entry {
    struct entry *next;
    tess__blob *value;
    char key[];
} entry;

struct tess__kv_store {
    entry *buckets[BUCKETS];
    uint64_t n_keys, bytes;
};

static uint32_t bucket_of(const char *key) {
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (; *key; key++)
        hash = (hash ^ (unsigned char)*key) * 16777619u;
    return hash % BUCKETS;
}

static entry *find_entry(const tess__kv_store *store, const char *key) {
    for (entry *e = store->buckets[bucket_of(key)]; e; e = e->next)
        if (strcmp(e->key, key) == 0)
            return e;
    return NULL;
}

tess__kv_store *tess__kv_store_create(void) {
    return calloc(1, sizeof(tess__kv_store));
}

/* The entry that *at points to. */
static void unlink_entry(entry **at) {
    entry *e = *at;
    *at = e->next;
    tess__blob_drop(e->value);
    free(e);
}

void tess__kv_store_destroy(tess__kv_store *store) {
    for (size_t i = 0; store && i < BUCKETS; i++)
        while (store->buckets[i])
            unlink_entry(&store->buckets[i]);
    free(store);
}

void tess__kv_store_drop(tess__kv_store *store, const char *key) {
    entry **at = &store->buckets[bucket_of(key)];
    while (*at && strcmp((*at)->key, key) != 0)
        at = &(*at)->next;
    if (!*at)
        return;
    store->n_keys--;
    store->bytes -= (*at)->value ? (*at)->value->bytes : 0;
    unlink_entry(at);
}

static entry *add_entry(tess__kv_store *store, const char *key) {
    size_t key_bytes = strlen(key) + 1;
    entry *e = calloc(1, sizeof *e + key_bytes);
    if (!e)
        return NULL;
    memcpy(e->key, key, key_bytes);
    uint32_t bucket = bucket_of(key);
    e->next = store->buckets[bucket];
    store->buckets[bucket] = e;
    store->n_keys++;
    return e;
}

tess_status tess__kv_store_set(tess__kv_store *store, const char *key, const void *value, uint64_t bytes,
                               const char **why) {
    entry *e = find_entry(store, key);
    uint64_t old = e && e->value ? e->value->bytes : 0;
    *why = "the key is empty or longer than 255 bytes";
    if (!*key || strlen(key) > TESS__KV_KEY_MAX)
        return TESS_E_INVALID;
    *why = "the value is larger than 4 MiB";
    if (bytes > TESS__KV_VALUE_MAX)
        return TESS_E_INVALID;
    *why = "the key-value store is full";
    if (store->bytes - old + bytes > BYTES_MAX || (!e && store->n_keys == KEYS_MAX))
        return TESS_E_NOMEM;
    tess__blob *blob = tess__blob_new(value, bytes);
    if (blob && !e)
        e = add_entry(store, key);
    if (!blob || !e) {
        tess__blob_drop(blob);
        return TESS_E_NOMEM;
    }
    tess__blob_drop(e->value);
    e->value = blob;
    store->bytes += bytes - old;
    return TESS_OK;
}

tess__blob *tess__kv_store_get(const tess__kv_store *store, const char *key) {
    entry *e = find_entry(store, key);
    return e ? e->value : NULL;
}
