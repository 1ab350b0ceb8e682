/* SPDX-License-Identifier: BSD-3-Clause */
#include "trace.h"

#include "base/status.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- the ring ---- */

typedef struct {
    int64_t begin_ns, end_ns;
    uint64_t step;
    int32_t index;
    uint8_t track, op, event;
} stored_span;

struct tess__trace {
    stored_span *records;
    uint64_t cap;
    atomic_uint_fast64_t n; /* ever added */
};

tess_status tess__trace_create(uint64_t spans, tess__trace **out) {
    if (!spans || spans > UINT64_C(1) << 28)
        return tess__fail(TESS_E_INVALID, "a trace of %llu spans: expected 1 to 2^28", (unsigned long long)spans);
    tess__trace *t = calloc(1, sizeof *t);
    stored_span *records = calloc(spans, sizeof *records);
    if (!t || !records) {
        free(t);
        free(records);
        return tess__fail(TESS_E_NOMEM, "no memory for a trace of %llu spans", (unsigned long long)spans);
    }
    t->records = records;
    t->cap = spans;
    *out = t;
    return TESS_OK;
}

void tess__trace_destroy(tess__trace *t) {
    if (t)
        free(t->records);
    free(t);
}

int64_t tess__trace_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void tess__trace_add(tess__trace *t, uint32_t track, const tess__instr *in, const tess__event *event, uint64_t step,
                     int64_t begin_ns) {
    if (t)
        tess__trace_add_span(t, track, in, event, step, begin_ns, tess__trace_now());
}

void tess__trace_add_span(tess__trace *t, uint32_t track, const tess__instr *in, const tess__event *event,
                          uint64_t step, int64_t begin_ns, int64_t end_ns) {
    uint64_t at = atomic_fetch_add_explicit(&t->n, 1, memory_order_relaxed) % t->cap;
    t->records[at] = (stored_span){ .begin_ns = begin_ns,
                                    .end_ns = end_ns,
                                    .step = step,
                                    .index = event ? event->scope : in->index,
                                    .track = (uint8_t)track,
                                    .op = in->op,
                                    .event = event ? event->type : 0 };
}

static int by_start(const void *a, const void *b) {
    const tess__span *x = a, *y = b;
    if (x->start != y->start)
        return x->start < y->start ? -1 : 1;
    return (int)x->track - (int)y->track;
}

uint64_t tess__trace_read(const tess__trace *t, uint64_t step, tess__span *out, uint64_t cap) {
    uint64_t end = atomic_load(&t->n), kept = end < t->cap ? end : t->cap, n = 0;
    int64_t origin = INT64_MAX;
    for (uint64_t i = 0; i < kept; i++)
        if (t->records[i].step == step && t->records[i].begin_ns < origin)
            origin = t->records[i].begin_ns;
    for (uint64_t i = 0; i < kept; i++) {
        const stored_span *r = &t->records[i];
        if (r->step != step)
            continue;
        if (n < cap)
            out[n] = (tess__span){ .track = r->track,
                                   .op = r->op,
                                   .event = r->event,
                                   .index = r->index,
                                   .cause = -1,
                                   .step = step,
                                   .start = (double)(r->begin_ns - origin) * 1e-9,
                                   .seconds = (double)(r->end_ns - r->begin_ns) * 1e-9 };
        n++;
    }
    if (cap)
        qsort(out, n < cap ? n : cap, sizeof *out, by_start);
    return n;
}
