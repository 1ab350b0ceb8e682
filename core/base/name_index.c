/* SPDX-License-Identifier: BSD-3-Clause */
#include "name_index.h"

#include "hash.h"
#include "status.h"

#include <stdlib.h>
#include <string.h>

/* Finds the slot of the name, or the free one where it belongs. The table is never full: add keeps it half empty. */
static int32_t slot_of(const tess__names *names, const char *name, size_t length) {
    uint64_t hash = tess__hash(TESS__HASH_START, name, length);
    int32_t at = (int32_t)((hash ^ hash >> 32) & (uint64_t)(names->cap - 1));
    for (;; at = (at + 1) & (names->cap - 1)) {
        const char *there = names->slots[at].name;
        if (!there || (strncmp(there, name, length) == 0 && there[length] == 0))
            return at;
    }
}

static tess_status grow_index(tess__names *names) {
    tess__names bigger = { .n = names->n, .cap = names->cap ? 2 * names->cap : 64 };
    bigger.slots = calloc((size_t)bigger.cap, sizeof *bigger.slots);
    if (!bigger.slots)
        return tess__fail(TESS_E_NOMEM, "no memory for an index of %d names", bigger.cap);
    for (int32_t i = 0; i < names->cap; i++)
        if (names->slots[i].name)
            bigger.slots[slot_of(&bigger, names->slots[i].name, strlen(names->slots[i].name))] = names->slots[i];
    free(names->slots);
    *names = bigger;
    return TESS_OK;
}

tess_status tess__names_add(tess__names *names, const char *name, int32_t value) {
    tess_status s = 2 * names->n >= names->cap ? grow_index(names) : TESS_OK;
    if (s)
        return s;
    int32_t at = slot_of(names, name, strlen(name));
    names->slots[at].name = name;
    names->slots[at].value = value;
    names->n++;
    return TESS_OK;
}

int32_t tess__names_find(const tess__names *names, const char *name, size_t length) {
    if (!names->cap)
        return -1;
    int32_t at = slot_of(names, name, length);
    return names->slots[at].name ? names->slots[at].value : -1;
}

void tess__names_free(tess__names *names) {
    free(names->slots);
    *names = (tess__names){ 0 };
}
