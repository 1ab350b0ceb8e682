/* SPDX-License-Identifier: BSD-3-Clause */
/* A run that is started again when ranks are lost. */
#ifndef TOOL_RESTART_H
#define TOOL_RESTART_H
#include "launch.h"

enum { RESTART_MOST_REPLACED = 10000 };
typedef struct {
    int32_t restarts;     /* most of them; 0: none */
    int32_t least, most;  /* ranks to continue with; 0: as many as were started */
    int32_t replacements; /* with recovery in memory: lost ranks that are replaced, in each life */
    int self;             /* launch_self */
} restart_options;

/** Like launch_start_ranks, and starts again, after a pause that grows, when a rank was lost: with the ranks that are
 * left, down to `least`, else with as many as before. A program that refuses a number of ranks (exit code 3) gets the
 * next smaller, at last `most` again. Each start but the first has TESSERA_RESTART, how many there have been, and
 * TESSERA_RESTART_RANKS, how many ranks the first had; all
 * have TESSERA_RESTART_FILE, a place for what the program wants to know of its last life. A number of 8 bytes at its
 * beginning that has grown beyond all before is progress: the pause is short again. */
int restart_launch(const launch_options *, const restart_options *);

/** "3", or "2:4" → least and most; 0, or -1. */
int restart_parse_ranks(const char *text, int32_t *least, int32_t *most);
#endif
