/* SPDX-License-Identifier: BSD-3-Clause */
/* Two offload plugins as one: "disk:DIR+cpu:params". Each region rests where the first one says; what the first leaves
 * on the device rests where the second one says. */
#ifndef TESS_JOINED_H
#define TESS_JOINED_H
#include "open.h"

/** Cuts `selection` before its last plugin, and returns that plugin's text; null: there is one plugin alone. A plus
 * divides plugins when a plugin's name stands behind it, up to a colon or the end: a name begins with a letter. */
char *tess__joined_cut(char *selection);
/** Takes both, and closes both on failure. One of them at most may have a store. */
tess_status tess__joined_make(tess__plugin *first, tess__plugin *second, tess__plugin **out);
#endif
