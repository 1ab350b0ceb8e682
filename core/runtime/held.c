/* SPDX-License-Identifier: BSD-3-Clause */
#include "held.h"

void tess__held_ask(tess__held *h, uint64_t booked) {
    uint64_t most = 0;
    if (!h)
        return;
    h->now = h->fn(h->user, &most);
    most = most > h->now ? most : h->now;
    h->most = most > h->most ? most : h->most;
    h->whole = booked + most > h->whole ? booked + most : h->whole;
}
