/* SPDX-License-Identifier: BSD-3-Clause */
/* Starting this host's ranks: docs/launching.md. */
#ifndef TOOL_LAUNCH_H
#define TOOL_LAUNCH_H
#include <stdint.h>

typedef struct { /* runs this command on another host, with launch_options.follow */
    const char *host;
    char *const *argv; /* ends with null */
} launch_agent;

typedef struct {
    int32_t ranks;             /* ranks to start on this host, or the number of agents */
    int32_t world, first_rank; /* all hosts' ranks and this host's first; world 0: one host */
    int32_t node;              /* node 0 holds the server, at `host`:`port` */
    const char *host;
    int32_t port;
    int prefix;                 /* 1: "[rank] " before each line of output; 0: the ranks write to our own streams */
    int bind;                   /* 1: to disjoint sets of cores, when there are enough */
    int ranks_explain;          /* 1: a rank that exits with a code has said why; no line about it */
    const char *program;        /* the file to run; null: argv[0], searched in PATH */
    char *const *argv;          /* ends with null */
    const char *mesh;           /* TESSERA_MESH; null: as it is */
    int32_t least;              /* recovery in memory: ranks to go on with when nobody replaces one; 0: all */
    int32_t replacements;       /* ranks that are replaced at most; beyond that the group gets smaller, or ends */
    int32_t *lost;              /* out: how many ranks were killed, not by us; may be null */
    int32_t restarts;           /* TESSERA_RESTART: how often the run was started again; 0: not set */
    int32_t restart_ranks;      /* TESSERA_RESTART_RANKS: how many there were at first; with `restarts` */
    const char *restart_file;   /* TESSERA_RESTART_FILE; null: not set */
    const launch_agent *agents; /* null: start ranks; else start these, one for each host */
    const char *secret;         /* for the agents: the first line of their standard input */
    int follow;                 /* 1: standard input has the secret, then signals to pass on; its end is SIGTERM */
} launch_options;

enum { LAUNCH_SECRET_BYTES = 136 }; /* with the final null */
/** The secret of TESSERA_SECRET and its like; "" when none is set. 0, or an exit code after one line. */
int launch_secret_read(char out[LAUNCH_SECRET_BYTES]);

/** Starts the ranks, each with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TESSERA_KV
 * set (on several hosts also TESSERA_SECRET_FD, which ends at the first program that reads it), and
 * TESSERA_HELPER_CPUS and OMP_NUM_THREADS unless set already. Waits for all of them; when one fails, gives the others
 * TESSERA_GRACE seconds to end by themselves, then stops them. Returns the exit code: 0, or that of the rank that
 * failed first (5 when a signal killed it, with a line that names it), or 128 + the number of the signal that we were
 * sent. Handles signals, so call it on the main thread of a process with nothing else to do.
 *
 * Ranks are process groups of their own. With `prefix` they start with SIGPIPE ignored, so that they outlive us long
 * enough to say what happened. A program that never opens tessera gets SIGTERM when we die by SIGKILL. */
int launch_start_ranks(const launch_options *);
/** The same with this very program: argv[0] is for show, the rest its arguments. */
int launch_self(const launch_options *);

/** Decides for a command that has -n. 1: start that many ranks. 0: continue in this process, which is one rank or
 * another launcher's. -1: -n contradicts WORLD_SIZE; it wrote one line on standard error (exit code 2). */
int launch_wanted(const char *command, int64_t ranks);
#endif
