/* SPDX-License-Identifier: BSD-3-Clause */
/* The ring into which the engine records spans when it is asked to. */
#ifndef TESS_TRACE_H
#define TESS_TRACE_H
#include "readers/span.h"

typedef struct tess__trace tess__trace;
/** A ring of the last `spans` spans, allocated here. */
tess_status tess__trace_create(uint64_t spans, tess__trace **out);
void tess__trace_destroy(tess__trace *); /* null is fine */
int64_t tess__trace_now(void);           /* nanoseconds of the monotonic clock */
/** Adds a span that ends now. Any thread. With `t` null it does nothing, which is all that a run without a trace
 * pays. */
void tess__trace_add(tess__trace *t, uint32_t track, const tess__instr *, const tess__event *or_null, uint64_t step,
                     int64_t begin_ns);
/** Adds a span whose end is known. */
void tess__trace_add_span(tess__trace *t, uint32_t track, const tess__instr *, const tess__event *or_null,
                          uint64_t step, int64_t begin_ns, int64_t end_ns);
/** Reads the spans of step `step` while nothing runs, in order of their start, which counts from the first. Returns
 * how many there are; writes at most `cap`. */
uint64_t tess__trace_read(const tess__trace *, uint64_t step, tess__span *out, uint64_t cap);
#endif
