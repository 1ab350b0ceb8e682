/* SPDX-License-Identifier: BSD-3-Clause */
/* The plugins of one engine: one of each kind, chosen by the environment, the program's options or the default. The
 * optimizers "none" and "own" are no plugins. */
#ifndef TESS_SELECTION_H
#define TESS_SELECTION_H
#include "open.h"
#include "plugin_book.h"

enum { TESS__N_KINDS = 7 }; /* kinds count from 1 */

typedef struct {
    tess_host host;                       /* the services that they get */
    tess__plugin *plugins[TESS__N_KINDS]; /* by TESS_KIND_…; null: no optimizer, or the program's own */
    char *text[TESS__N_KINDS];            /* that chose each */
    int comm_picked;                      /* comm was "auto" */
    int watches_crashes;                  /* while an optimizer is open that is not built in */
    tess__plugin_book book;               /* what they take for themselves; host.mem_alloc writes it */
} tess__selection;

/** Opens one plugin of each kind, with `host` set before. `ranks_per_host` decides comm=auto; `announce`: log what it
 * picked. What was opened until a failure stays, for tess__selection_close. */
tess_status tess__selection_open(tess__selection *, int32_t nranks, int32_t ranks_per_host, int announce);
/** Says in a line what the plugins left allocated. */
void tess__selection_close(tess__selection *);
#endif
