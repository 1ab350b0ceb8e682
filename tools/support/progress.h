/* SPDX-License-Identifier: BSD-3-Clause */
/* Shows how far a long piece of work is: a bar on a terminal, a line now and then elsewhere. */
#ifndef TOOL_PROGRESS_H
#define TOOL_PROGRESS_H
#include <stdint.h>
#include <stdio.h>

typedef struct {
    FILE *out;
    int quiet, terminal, color;
    uint64_t total;   /* steps */
    uint64_t first;   /* steps done before this run */
    const char *unit; /* unit of the rate per second: "samples", "tokens" */
    double started, last_shown;
    uint64_t next_line; /* plain: the step that is shown next */
    int bar_drawn;
} tool_progress;

typedef struct {
    uint64_t step, units; /* done so far */
    double loss;
    uint64_t device_bytes, device_peak_bytes; /* 0: not shown */
    double grad_norm, utilisation;            /* NAN: not shown */
} tool_progress_point;

void tool_progress_start(tool_progress *, FILE *out, int quiet, uint64_t total, const char *unit);
void tool_progress_show(tool_progress *, const tool_progress_point *);
/** A line of text that stays, above the bar. */
void tool_progress_say(tool_progress *, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** Takes the bar away. */
void tool_progress_finish(tool_progress *);

/** A clock that only goes forward. */
double tool_seconds(void);
int64_t tool_now_ns(void);
/** "12.3 MiB". In a buffer of the caller's, which it returns. */
const char *tool_bytes_text(uint64_t bytes, char out[32]);
#endif
