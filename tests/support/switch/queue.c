/* SPDX-License-Identifier: BSD-3-Clause */
#include "queue.h"

#include <stdlib.h>
#include <string.h>

static int before(const switch_frame *a, const switch_frame *b) {
    return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->turn < b->turn;
}

static void swap(switch_queue *q, size_t a, size_t b) {
    switch_frame *kept = q->heap[a];
    q->heap[a] = q->heap[b];
    q->heap[b] = kept;
}

static int grow(switch_queue *q) {
    size_t capacity = q->capacity ? 2 * q->capacity : 256;
    switch_frame **heap = realloc(q->heap, capacity * sizeof(switch_frame *));
    if (!heap)
        return -1;
    q->heap = heap;
    q->capacity = capacity;
    return 0;
}

int switch_queue_add(switch_queue *q, int64_t due_ns, int port, const void *data, size_t bytes) {
    if (q->n == q->capacity && grow(q) != 0)
        return -1;
    switch_frame *frame = malloc(sizeof *frame + bytes);
    if (!frame)
        return -1;
    *frame = (switch_frame){ .due_ns = due_ns, .turn = q->turn++, .port = port, .bytes = bytes };
    memcpy(frame->data, data, bytes);
    size_t at = q->n++;
    q->heap[at] = frame;
    for (; at > 0 && before(q->heap[at], q->heap[(at - 1) / 2]); at = (at - 1) / 2)
        swap(q, at, (at - 1) / 2);
    return 0;
}

static void sink(switch_queue *q, size_t at) {
    for (;;) {
        size_t least = at, child = 2 * at + 1;
        for (size_t i = child; i < child + 2 && i < q->n; i++)
            if (before(q->heap[i], q->heap[least]))
                least = i;
        if (least == at)
            return;
        swap(q, at, least);
        at = least;
    }
}

switch_frame *switch_queue_take(switch_queue *q, int64_t now_ns) {
    if (q->n == 0 || q->heap[0]->due_ns > now_ns)
        return NULL;
    switch_frame *first = q->heap[0];
    q->heap[0] = q->heap[--q->n];
    sink(q, 0);
    return first;
}

int64_t switch_queue_due(const switch_queue *q) {
    return q->n ? q->heap[0]->due_ns : INT64_MAX;
}

void switch_queue_clear(switch_queue *q) {
    while (q->n)
        free(q->heap[--q->n]);
    free(q->heap);
    *q = (switch_queue){ 0 };
}
