/* SPDX-License-Identifier: BSD-3-Clause */
/* Checks promises of plugin.h for every kind: memory that the plugin takes from the host, and shorter error structs. */
#include <string.h>

#include "internal.h"

/* ---- the plugin's own memory ------------------------------------------------------------------- */

void check_stated(check *c, uint64_t bytes) {
    c->stated_bytes = bytes > c->stated_bytes ? bytes : c->stated_bytes;
}

void check_book(check *c) {
    uint64_t left, peak;
    const uint64_t stated = c->stated_bytes * (uint64_t)(c->communicators > 1 ? c->communicators : 1);
    check_taken(&left, &peak);
    check_that(c, !left, "close leaves %llu bytes of host->mem_alloc", (unsigned long long)left);
    check_that(c, peak <= stated, "takes %llu bytes by host->mem_alloc, and states %llu", (unsigned long long)peak,
               (unsigned long long)stated);
}

enum { SHORT_ERROR_BYTES = 32 };
tess_error *check_short_error(check *c) {
    const uint32_t size = SHORT_ERROR_BYTES;
    tess_error *e = check_at_edge(c, size);
    memset(e, 0, size);
    memcpy(e, &size, sizeof size);
    return e;
}

void check_short_error_filled(check *c, const tess_error *e, tess_status s, const char *slot) {
    const size_t room = SHORT_ERROR_BYTES - offsetof(tess_error, message);
    check_that(c, s < 0, "%s gave %s, expected an error", slot, check_status(s));
    check_that(c, e->struct_size == SHORT_ERROR_BYTES && e->code == s && *e->message && memchr(e->message, 0, room),
               "%s does not fill an error struct of %d bytes as far as it goes", slot, SHORT_ERROR_BYTES);
}
