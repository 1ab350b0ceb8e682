/* SPDX-License-Identifier: BSD-3-Clause */
/* The ledger says what is alive, by domain, category and unit. The engine keeps one while it runs (measured, see
 * measure.h). Reading the compiled programs of a step makes the other (planned). Both speak at the same points. */
#ifndef TESS_LEDGER_H
#define TESS_LEDGER_H
#include "plan/plan.h"
#include <tessera/inspect.h>

typedef uint64_t tess__bytes[TESS__DOMAINS][16]; /* by domain, by category */

typedef struct {
    tess__bytes live, at_peak, at_most;
    uint64_t total[TESS__DOMAINS], peak[TESS__DOMAINS],
        most[TESS__DOMAINS]; /* peak: since the last reset; most: ever */
    uint64_t n_points;       /* since the last reset */
    tess__bytes *units;      /* by unit; null: not kept */
    int32_t n_units;
} tess__ledger;

/** Makes room for the units; what is booked already stays. */
tess_status tess__ledger_create(tess__ledger *, int32_t n_units);
void tess__ledger_free(tess__ledger *);
void tess__ledger_add(tess__ledger *, uint32_t domain, uint32_t category, int32_t unit, uint64_t bytes);
void tess__ledger_take(tess__ledger *, uint32_t domain, uint32_t category, int32_t unit, uint64_t bytes);
void tess__ledger_reset(tess__ledger *);

/** The bytes alive now (for TESS_LEDGER_PEAK: at the peak), as a point of a unit or, below 0, of none. */
void tess__ledger_point(const tess__ledger *, const tess__layout *, int32_t unit, uint32_t point,
                        tess_ledger_point *out);

/** "train", "no_sync", "eval", "step", "norm", "clip", "full". */
const char *tess__pass_name(uint32_t kind);
/** "before_pre_forward", … "peak". */
const char *tess__point_name(uint32_t point);

/** Lists the programs of one step in the order in which they run: TESS__P_…, at most accum + 1 of them. `of`:
 * TESS_LEDGER_STEP and so on. Returns how many, 0 when `of` is none of them; out may be null. */
int32_t tess__ledger_programs(const tess__plan *, uint32_t of, int32_t *out);

/** Reads the programs of a step: `fn` gets each point and, last, the peak. */
tess_status tess__ledger_read(const tess__plan *, uint32_t of, tess_ledger_fn fn, void *user);
#endif
