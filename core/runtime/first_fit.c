/* SPDX-License-Identifier: BSD-3-Clause */
#include "first_fit.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>

tess_status tess__first_fit_create(tess__first_fit *h, int32_t max_extents) {
    *h = (tess__first_fit){ .taken = calloc((size_t)max_extents + 1, sizeof *h->taken), .cap = max_extents };
    return h->taken ? TESS_OK : tess__fail(TESS_E_NOMEM, "no memory for a list of %d extents", max_extents);
}

void tess__first_fit_free_all(tess__first_fit *h) {
    free(h->taken);
    *h = (tess__first_fit){ 0 };
}

void tess__first_fit_reset(tess__first_fit *h, uint64_t bytes) {
    h->n = 0;
    h->bytes = bytes;
}

static tess_status insert_extent(tess__first_fit *h, int32_t at, uint64_t offset, uint64_t bytes) {
    if (h->n == h->cap)
        return TESS_E_NOMEM;
    memmove(&h->taken[at + 1], &h->taken[at], (size_t)(h->n - at) * sizeof *h->taken);
    h->taken[at] = (tess__extent){ offset, bytes };
    h->n++;
    return TESS_OK;
}

tess_status tess__first_fit_take(tess__first_fit *h, uint64_t offset, uint64_t bytes) {
    int32_t at = 0;
    while (at < h->n && h->taken[at].offset < offset)
        at++;
    int low = at > 0 && h->taken[at - 1].offset + h->taken[at - 1].bytes > offset;
    int high = at < h->n && offset + bytes > h->taken[at].offset;
    if (low || high)
        return tess__fail(TESS_E_INTERNAL, "two step buffers overlap at offset %llu", (unsigned long long)offset);
    return insert_extent(h, at, offset, bytes);
}

tess_status tess__first_fit_get(tess__first_fit *h, uint64_t bytes, uint64_t align, uint64_t *offset) {
    uint64_t from = 0;
    int32_t at = 0;
    for (; at < h->n && h->taken[at].offset < from + bytes; at++) {
        uint64_t end = h->taken[at].offset + h->taken[at].bytes;
        if (end > from)
            from = (end + align - 1) / align * align;
    }
    if (from > h->bytes || bytes > h->bytes - from)
        return TESS_E_NOMEM;
    tess_status s = insert_extent(h, at, from, bytes);
    if (!s)
        *offset = from;
    return s;
}

void tess__first_fit_give(tess__first_fit *h, uint64_t offset) {
    for (int32_t i = 0; i < h->n; i++)
        if (h->taken[i].offset == offset) {
            memmove(&h->taken[i], &h->taken[i + 1], (size_t)(h->n - i - 1) * sizeof *h->taken);
            h->n--;
            return;
        }
}
