/* SPDX-License-Identifier: BSD-3-Clause */
/* Where each rank of the process's world waits, in which of its engines and groups. One thread uses all of them, so a
 * rank comes to one wait only when the one it is in has ended: ranks that wait for each other in a circle wait for
 * ever. */
#ifndef TESS_PLACES_H
#define TESS_PLACES_H
#include "comms.h"

/** Says that this rank waits for collective `seq` on communicator `which`, and looks for a circle among what the ranks
 * said. TESS_E_MISMATCH, naming the ranks of one, and their waits. */
tess_status tess__places_check(tess__comms *, int which, uint64_t seq);
/** Says that this rank enters exchange `exchange_count - 1` of the control plane. */
tess_status tess__places_enter_exchange(const tess__comms *, const char *what);
#endif
