/* SPDX-License-Identifier: BSD-3-Clause */
/* The switch without its sockets: links between all pairs of ports, frames under way, and the orders that change them.
 * Port i has the address 02:00:00:00:00:i+1. */
#ifndef SWITCH_FABRIC_H
#define SWITCH_FABRIC_H
#include <stdio.h>

#include "link.h"
#include "queue.h"

enum { SWITCH_PORTS = 64, SWITCH_FRAME = 1 << 16, SWITCH_ADDRESS = 6 };

typedef struct {
    int n;
    switch_link links[SWITCH_PORTS][SWITCH_PORTS]; /* from, to */
    switch_queue queue;
    FILE *capture; /* null: none */
} switch_fabric;

void switch_fabric_init(switch_fabric *, int ports);
void switch_fabric_clear(switch_fabric *);
void switch_fabric_address(int port, unsigned char out[SWITCH_ADDRESS]);

/** A frame that has come in at a port: it is captured, and queued for where it goes. */
void switch_fabric_take(switch_fabric *, int from, int64_t now_ns, const unsigned char *frame, size_t bytes);

/** "link FROM TO RULE…" (either may be all), "count FROM TO", "capture FILE", "capture off": 0 with an answer, or -1
 *  with what is wrong. */
int switch_fabric_order(switch_fabric *, char *text, char *answer, size_t size);
#endif
