/* SPDX-License-Identifier: BSD-3-Clause */
/* Starts the ranks of a program from a test, on loopback, with a time limit; leaves no process behind. */
#ifndef RANKS_H
#define RANKS_H
#include <stddef.h>

/** Runs argv in `n` ranks. Rank 0's standard output, or when a rank fails its standard error, goes to `output`. Returns
 * the first failing rank's exit code (128 + signal when killed), 0 when all ended well. TESSERA_TEST_LAUNCHER
 * ("mpirun -n %d") starts the ranks instead, where it is set. */
int ranks_run(int n, char **argv, int timeout_s, char *output, size_t capacity);
#endif
