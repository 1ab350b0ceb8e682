/* SPDX-License-Identifier: BSD-3-Clause */
/* The memory that plugins take for themselves through host->mem_alloc, by domain and category. It stands apart from the
 * ledger, whose every byte is planned; tess_stats shows it beside what the plugins state. Any thread. */
#ifndef TESS_PLUGIN_BOOK_H
#define TESS_PLUGIN_BOOK_H
#include <stdatomic.h>
#include <tessera/plugin.h>

typedef struct {
    _Atomic uint64_t live[3], peak[3];                           /* by TESS_DOMAIN_… */
    _Atomic uint64_t category_live[3][16], category_peak[3][16]; /* and TESS_CAT_… */
} tess__plugin_book;                                             /* all zero: nothing is taken */

/** Allocates as tess_host.mem_alloc says it. `book` null: allocates all the same and books nothing. */
tess_status tess__plugin_book_alloc(tess__plugin_book *book, uint32_t domain, uint32_t category, uint64_t bytes,
                                    uint64_t align, void **out);
void tess__plugin_book_free(void *); /* null is fine */
#endif
