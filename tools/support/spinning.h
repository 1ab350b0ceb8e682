/* SPDX-License-Identifier: BSD-3-Clause */
/* This bounds how long compute threads spin before they sleep. libgomp spins for some milliseconds, which is free if
 * each thread has a core. If not, the spinning delays the thread that others wait for. */
#ifndef TOOL_SPINNING_H
#define TOOL_SPINNING_H
#include <stdint.h>

#define TOOL_SPIN_VARIABLE "GOMP_SPINCOUNT"
#define TOOL_SPIN_COUNT 1000 /* tens of microseconds: about what sleeping and waking take */

/** Whether that many threads here, 0: any number, have to share cores, with each other or with other processes that run
 * now and have run in the last minute. 0 when the user says how to wait: GOMP_SPINCOUNT or OMP_WAIT_POLICY is set. */
int tool_spinning_hurts(int64_t threads);
/** A process that computes calls it. If spinning hurts, it restarts itself with the variable set, because libgomp reads
 * it when it is loaded. */
void tool_spinning_bound(char **argv);
#endif
