/* SPDX-License-Identifier: BSD-3-Clause */
/* Frames under way, in the order in which they are due; those due at once in the order in which they came. */
#ifndef SWITCH_QUEUE_H
#define SWITCH_QUEUE_H
#include <stddef.h>
#include <stdint.h>

typedef struct {
    int64_t due_ns;
    uint64_t turn;
    int port;
    size_t bytes;
    unsigned char data[];
} switch_frame;

typedef struct {
    switch_frame **heap;
    size_t n, capacity;
    uint64_t turn;
} switch_queue;

/** 0, or -1 without memory: the frame is lost. */
int switch_queue_add(switch_queue *, int64_t due_ns, int port, const void *data, size_t bytes);
/** The next one, which the caller frees, or null when none is due by now. */
switch_frame *switch_queue_take(switch_queue *, int64_t now_ns);
/** When the next one is due; INT64_MAX: none is there. */
int64_t switch_queue_due(const switch_queue *);
void switch_queue_clear(switch_queue *);
#endif
