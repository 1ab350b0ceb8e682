/* SPDX-License-Identifier: BSD-3-Clause */
/* Limits how long compute threads spin before they sleep. libgomp spins for some milliseconds, which is free if each
 * thread has a core. Otherwise it delays the thread that others wait for. */
#ifndef TOOL_SPINNING_H
#define TOOL_SPINNING_H
#include <stdint.h>

#define TOOL_SPIN_VARIABLE "GOMP_SPINCOUNT"
#define TOOL_SPIN_COUNT 1000 /* tens of microseconds, about the cost of sleeping and waking */

/** Returns 1 if that many threads must share cores, with each other or with other processes that run now and ran in the
 * last minute. `threads` 0 asks about other processes alone. It returns 0 if the user set GOMP_SPINCOUNT or
 * OMP_WAIT_POLICY. */
int tool_spinning_hurts(int64_t threads);
/** Processes that compute call this. If spinning hurts, it restarts the process with the variable set, because libgomp
 * reads that when it is loaded. */
void tool_spinning_bound(char **argv);
#endif
