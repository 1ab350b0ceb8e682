/* SPDX-License-Identifier: BSD-3-Clause */
/* The engine's instructions and the program's blocks in words: for messages, and as ranges of the device's profiler. */
#include "state.h"

#include <stdio.h>

enum { TEXT = 256 };

void tess__event_text(const tess *t, const tess__event *e, char *out, size_t bytes) {
    static const char *const names[] = { "",         "forward",       "forward",      "backward",
                                         "backward", "recomputation", "recomputation" };
    snprintf(out, bytes, "%s of \"%s\"", names[e->type], t->plan.model.scopes[e->scope].name);
}

void tess__range_instr(const tess *t, const tess__instr *in) {
    char text[TEXT];
    if (!tess__device_is_profiled(&t->device))
        return;
    tess__program_text(t->pass.program, &t->plan.model, &t->plan.layout, (int32_t)(in - t->pass.program->instrs), text,
                       sizeof text);
    tess__device_range_push(&t->device, text);
}

void tess__range_event(const tess *t, const tess__event *e) {
    char text[TEXT];
    if (!tess__device_is_profiled(&t->device))
        return;
    tess__event_text(t, e, text, sizeof text);
    tess__device_range_push(&t->device, text);
}

void tess__range_end(const tess *t) {
    if (tess__device_is_profiled(&t->device))
        tess__device_range_pop(&t->device);
}
