/* SPDX-License-Identifier: BSD-3-Clause */
/* Detects deadlocks across ranks. A backend compares collectives on one communicator; after one second of waiting this
 * compares across communicators and with exchanges of the control plane; places.h across engines and groups. It reports
 * only what cannot become true later: a rank inside exchange k posts nothing until k ends, and the n-th posted
 * collective never changes. */
#ifndef TESS_DEADLOCK_H
#define TESS_DEADLOCK_H
#include "comms.h"

/** Runs every second of a wait for collective `seq` on communicator `which`. Says that this rank waits, and looks
 * where the others are. TESS_E_MISMATCH, naming both, when two ranks can never meet. */
tess_status tess__deadlock_check(tess__comms *, int which, uint64_t seq);
/** Says that this rank enters exchange `exchange_count - 1` of the control plane. */
tess_status tess__deadlock_enter_exchange(tess__comms *, const char *what);
/** Warns of the ranks that tess__deadlock_check last found not to be waiting. */
void tess__deadlock_name_absent(const tess__comms *);
#endif
