/* SPDX-License-Identifier: BSD-3-Clause */
/* Networks that are declared in full and compute nothing: each block touches all that it is given, from the first byte
 * to the last. What they need is what the tests of memory are about. */
#ifndef TRACKER_H
#define TRACKER_H
#include <tessera/tessera.h>

enum { MOST_PARAMS = 8, MOST_PIECES = 20 };

typedef struct {
    const char *name; /* below the piece's; null ends the list */
    uint64_t elems;
    const char *tied_to; /* a parameter's whole name, or null */
} tracker_param;

typedef struct { /* a block, or a scope */
    char name[32];
    int frozen;
    tracker_param params[MOST_PARAMS];
    uint64_t output_bytes, saved_bytes, forward_scratch_bytes, backward_scratch_bytes;
} tracker_piece;

typedef struct {
    tracker_piece pieces[MOST_PIECES];
    int n, hooks; /* hooks: scopes, and activations by tess_alloc */
    uint64_t input_bytes;
    const char *optimizer;
    float momentum;
    int accum;
} tracker_net;

/** PyTorch's cases, at 1/scale of their sizes: four MLPs 2048 wide, batch 8192; three of them, batch 8, of which one
 * is entered; a transformer of four layers. `width`: bytes of an activation's element. */
void tracker_mlps(tracker_net *, uint64_t scale, uint64_t width);
void tracker_part(tracker_net *, uint64_t scale, uint64_t width);
void tracker_transformer(tracker_net *, uint64_t scale, uint64_t width);
/** The device of 24 units of memory on two ranks: shards 8, optimizer state 6, gradients 8 at the peak. The layer's 10
 * are what else is alive there, of which `rest` bytes are scratch of backward. */
void tracker_device24(tracker_net *, uint64_t unit_bytes, uint64_t width, uint64_t rest);

/** Declares it; not collective. `scopes`: room for n, or null. */
tess_status tracker_declare(tess *, tracker_net *, tess_scope *scopes);
/** For hooks: all that a scope was given is touched. */
void tracker_touch_forward(const tracker_piece *, void *const *params, uint32_t param_bytes);
void tracker_touch_backward(const tracker_piece *, void *const *params, void *const *grads, uint32_t param_bytes);
#endif
