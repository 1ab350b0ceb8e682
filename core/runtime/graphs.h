/* SPDX-License-Identifier: BSD-3-Clause */
/* Passes that a device records and runs again by one call. Everything that a pass puts into the compute stream is
 * fixed: where buffers lie, by the plan; what blocks do, by the program's promise (tess_run_repeat). A step's
 * own numbers (rates, bias corrections) come in by memory. */
#ifndef TESS_GRAPHS_H
#define TESS_GRAPHS_H
#include "device.h"
#include "plan/program.h"
#include "streams.h"

enum { TESS__GRAPHS = 64 }; /* two of each microbatch's place in its step */

typedef struct { /* what must be the same; compared as bytes */
    const tess__program *program;
    uint64_t repeat;
    int32_t pass; /* its place in tess__streams.passes */
    int32_t microbatch, has_step, reserved;
    float grad_scale, clip_norm;
} tess__graph_key;

typedef struct {
    tess__graph_key key;
    int known; /* a pass of this key has run */
    uint64_t used;
    const char *why_not;  /* what the host does in it, so that it is never recorded; null: nothing */
    tess_graph *graph;    /* null: not recorded yet */
    tess__late_pass late; /* where it leaves its result and its norm */
} tess__recorded;

typedef struct {
    int on;                    /* planned for, and the device can */
    int recording;             /* the optimizer takes its numbers from memory */
    uint64_t used;             /* counts */
    const char *logged_reason; /* why the first pass that is never recorded is not; null: none was logged */
    tess__recorded list[TESS__GRAPHS];
} tess__graphs;

/** Finds the entry for passes of that key. A new one takes the place of the one used longest ago. */
tess__recorded *tess__graphs_find(tess__graphs *, const tess__device *, const tess__graph_key *);
/** Drops all graphs, of which none runs any more, because addresses and communicators that they refer to are about
 * to change. */
void tess__graphs_drop(tess__graphs *, const tess__device *);
#endif
