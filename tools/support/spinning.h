/* SPDX-License-Identifier: BSD-3-Clause */
/* How long compute threads spin before they sleep. libgomp's default is some milliseconds, which costs nothing where
 * each thread has a core; where it has none, the one that is waited for does not run meanwhile. */
#ifndef TOOL_SPINNING_H
#define TOOL_SPINNING_H
#include <stdint.h>

#define TOOL_SPIN_VARIABLE "GOMP_SPINCOUNT"
#define TOOL_SPIN_COUNT 1000 /* tens of microseconds: about what sleeping and waking take */

/** Whether that many threads here, 0: any number, have to share cores, with each other or with other processes that run
 * now and have run in the last minute. 0 when the user says how to wait: GOMP_SPINCOUNT or OMP_WAIT_POLICY is set. */
int tool_spinning_hurts(int64_t threads);
/** For a process that computes: if so, it begins anew with the variable set, which libgomp reads when it is loaded. */
void tool_spinning_bound(char **argv);
#endif
