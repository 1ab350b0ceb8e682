/* SPDX-License-Identifier: BSD-3-Clause */
/* The mode of each block's activations until its backward: TESSERA_ACTIVATIONS, as text and per block. */
#ifndef TESS_ACTIVATIONS_H
#define TESS_ACTIVATIONS_H
#include "plan.h"

/** Checks the form alone of a text such as "keep", "recompute:h.*,offload:every=2" or "auto:512MiB", since blocks
 * are not known yet. TESS_E_INVALID. */
tess_status tess__activations_check(const char *spec);
/** Whether the text is one mode for all blocks, and which. */
int tess__activations_uniform(const char *spec, int *mode);
/** Sets p->modes of a finished model from p->setup.activation_spec; for auto all blocks keep. A pattern that matches no
 * block is an error. */
tess_status tess__activations_resolve(tess__plan *p);
int tess__activations_are_auto(const tess__plan *p);
/** Finds the assignment of keep, selective and recompute with the least work whose planned device memory is within
 * what auto allows. Where auto may offload, it also tries offload, and of equal work takes the one that moves the least
 * bytes. It calls `compile`, which says the bytes, for each that it tries, the cheapest first. TESS_E_BUDGET when none
 * fits. */
typedef tess_status (*tess__compile_fn)(tess__plan *, uint64_t bytes[3] /* by domain */);
tess_status tess__activations_choose(tess__plan *p, tess__compile_fn compile);
/** Bytes that a pass moves to the host, and back. */
double tess__activations_moved(const tess__plan *p);
/** Work that a block's mode adds to a pass. */
double tess__activations_work(const tess__plan *p, int32_t block, int mode);
#endif
