/* SPDX-License-Identifier: BSD-3-Clause */
/* Saving, as the room above it sees it. */
#ifndef TESS_SAVING_H
#define TESS_SAVING_H
#include <tessera/tessera.h>

/** Waits for a save that is being written, or, with an error of the engine, lets it go. */
void tess__saver_end(tess *);
/** [C] A process that takes a lost rank's place learns whose checkpoints the run writes. */
tess_status tess__past_share(tess *);
#endif
