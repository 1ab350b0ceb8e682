/* SPDX-License-Identifier: BSD-3-Clause */
/* Says whose code a fatal signal has interrupted: a plugin's step that crashes is named, and its parameter. */
#ifndef TESS_CRASH_H
#define TESS_CRASH_H

typedef struct {                                 /* texts live as long as the call */
    const char *kind, *plugin, *doing, *subject; /* "optimizer", "mine", "step", the parameter's name */
} tess__crash_place;

/** Where this thread is within a plugin, and null elsewhere; a signal handler reads it. */
extern _Thread_local const tess__crash_place *tess__crash_now __attribute__((tls_model("initial-exec")));

/** Takes the signals of a crash which the process has left alone, while anybody watches. The handler writes one line to
 * standard error and lets the signal end the process, as it would have. */
void tess__crash_watch(void);
void tess__crash_unwatch(void);
#endif
