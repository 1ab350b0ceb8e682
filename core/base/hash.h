/* SPDX-License-Identifier: BSD-3-Clause */
/* FNV-1a, 64 bit: for tags and for comparing programs between ranks, not against an adversary. */
#ifndef TESS_HASH_H
#define TESS_HASH_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define TESS__HASH_START 14695981039346656037ull

static inline uint64_t tess__hash(uint64_t hash, const void *data, size_t bytes) {
    const unsigned char *p = data;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ p[i]) * 1099511628211ull;
    return hash;
}
static inline uint64_t tess__hash_u64(uint64_t hash, uint64_t value) {
    return tess__hash(hash, &value, sizeof value);
}
static inline uint64_t tess__hash_text(uint64_t hash, const char *text) {
    return tess__hash(hash, text, strlen(text) + 1);
}
#endif
