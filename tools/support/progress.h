/* SPDX-License-Identifier: BSD-3-Clause */
/* Shows the progress of a long task: a bar on a terminal, or occasional lines elsewhere. */
#ifndef TOOL_PROGRESS_H
#define TOOL_PROGRESS_H
#include <stdint.h>
#include <stdio.h>

typedef struct {
    FILE *out;
    int quiet, terminal, color;
    uint64_t total;   /* steps of the whole task */
    uint64_t first;   /* steps done before this run */
    const char *unit; /* unit of the rate: "samples" or "tokens" per second */
    double started, last_shown;
    uint64_t next_line; /* without a bar: the next step to print */
    int bar_drawn;
} tool_progress;

typedef struct {
    uint64_t step, units; /* done so far */
    double loss;
    uint64_t device_bytes, device_peak_bytes; /* 0: not shown */
    double grad_norm, utilisation;            /* NAN: not shown */
    double loss_scale;                        /* the same; with it the steps that were left out */
    uint64_t skipped;
} tool_progress_point;

void tool_progress_start(tool_progress *, FILE *out, int quiet, uint64_t total, const char *unit);
void tool_progress_show(tool_progress *, const tool_progress_point *);
/** Prints a line that stays above the bar. */
void tool_progress_say(tool_progress *, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** Removes the bar. */
void tool_progress_finish(tool_progress *);

/** Returns the seconds of a monotonic clock. */
double tool_seconds(void);
int64_t tool_now_ns(void);
/** Writes a size such as "12.3 MiB" to `out` and returns `out`. */
const char *tool_bytes_text(uint64_t bytes, char out[32]);
#endif
