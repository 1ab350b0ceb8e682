/* SPDX-License-Identifier: BSD-3-Clause */
#include "plugin_book.h"

#include <stdlib.h>

/* Lies right before what the plugin gets. */
typedef struct {
    tess__plugin_book *book;
    void *begin;
    uint64_t bytes;
    uint32_t domain, category;
} entry;

enum { LEAST_ALIGN = 16, MOST_ALIGN = 1 << 30 };

static void add_bytes(_Atomic uint64_t *live, _Atomic uint64_t *peak, uint64_t bytes) {
    uint64_t now = atomic_fetch_add(live, bytes) + bytes, most = atomic_load(peak);
    while (now > most && !atomic_compare_exchange_weak(peak, &most, now))
        ;
}

static void book_entry(const entry *e, int taken) {
    tess__plugin_book *b = e->book;
    if (!b)
        return;
    if (taken) {
        add_bytes(&b->live[e->domain], &b->peak[e->domain], e->bytes);
        add_bytes(&b->category_live[e->domain][e->category], &b->category_peak[e->domain][e->category], e->bytes);
    } else {
        atomic_fetch_sub(&b->live[e->domain], e->bytes);
        atomic_fetch_sub(&b->category_live[e->domain][e->category], e->bytes);
    }
}

static int is_power_of_two(uint64_t x) {
    return x && (x & (x - 1)) == 0;
}

tess_status tess__plugin_book_alloc(tess__plugin_book *b, uint32_t domain, uint32_t category, uint64_t bytes,
                                    uint64_t align, void **out) {
    if (category < TESS_CAT_SHARD_PARAM || category > TESS_CAT_OPTIMIZER_SCRATCH || !is_power_of_two(align) ||
        align > MOST_ALIGN)
        return TESS_E_INVALID;
    if (domain != TESS_DOMAIN_HOST) /* the device's memory is the device plugin's */
        return TESS_E_UNSUPPORTED;
    const uint64_t step = align < LEAST_ALIGN ? LEAST_ALIGN : align;
    const uint64_t before = (sizeof(entry) + step - 1) / step * step;
    void *begin;
    if (bytes > UINT64_MAX - before || posix_memalign(&begin, step, before + bytes) != 0)
        return TESS_E_NOMEM;
    entry *e = (entry *)((char *)begin + before) - 1;
    *e = (entry){ b, begin, bytes, domain, category };
    book_entry(e, 1);
    *out = e + 1;
    return TESS_OK;
}

void tess__plugin_book_free(void *ptr) {
    if (!ptr)
        return;
    const entry e = ((entry *)ptr)[-1];
    book_entry(&e, 0);
    free(e.begin);
}
