/* SPDX-License-Identifier: BSD-3-Clause */
/* The measurements behind `tessera bench`, one file per subject. Each prints a line per case: JSON when asked, else a
 * row of a table. Returns the exit code of docs/errors.md. */
#ifndef TOOL_BENCH_H
#define TOOL_BENCH_H
#include <stdint.h>
#include <stdio.h>
#include <tessera/tessera.h>

typedef struct {
    FILE *out;       /* null: standard output */
    int json;        /* a JSON object per line */
    int32_t threads; /* 0: as many as this process may run on */
    uint64_t bytes;  /* of the largest array; 0: enough to be far beyond the caches */
    int32_t rounds;  /* the best of so many counts; 0: 10 */
} tool_bench_options;

/** The cpu device's kernels against memory bandwidth. `what`: "cast", "optimizer", "sum", "norm", or null for all.
 *     {"event":"bench","what","isa","threads","bytes","seconds","bandwidth","memory_bandwidth","ratio"}
 * bytes: what one run reads and writes, each once; memory_bandwidth: the best stream of the same shape in the same
 * rounds, on the same threads: for kernels with an output of its own copy and triad, for those that update in place
 * also x = a x, for those that only read a sum. */
int tool_bench_kernels(const char *what, const tool_bench_options *);

/** Runs a kernel of the cpu device on this thread. */
tess_status tool_bench_run(const tess_kernel *);

typedef struct {
    FILE *out;            /* null: standard output */
    int json;             /* a JSON object per line, else a table */
    const char *comm;     /* as TESSERA_COMM; null: each comm plugin that supports so many ranks, in turn */
    const char *op;       /* "all_gather" …; null: all */
    uint64_t least_bytes; /* sizes go from here, times four; 0: 1 KiB */
    uint64_t most_bytes;  /* 0: 64 MiB */
    int32_t rounds;       /* the median of so many counts; 0: 7 */
    double seconds;       /* a case stops taking rounds after this; 0: 2 */
    int32_t together;     /* collectives posted before the first is waited for; 0: as many as make 8 MiB, 16 at most */
} tool_bench_comm_options;

/** Collectives in fp32. Called by every rank that `tessera run` started, alike; rank 0 prints:
 *     {"event":"bench","comm","op","ranks","bytes","seconds","cpu_seconds","bus_bandwidth",
 *      "memory_bandwidth","memory_allows"}
 * bytes: of the whole buffer, that of all ranks for all_gather, reduce_scatter, all_to_all and all_to_all_v, whose
 * parts are equal here. seconds: of one collective out of several posted together, on the slowest rank. bus_bandwidth
 * as in NCCL's tests, in bytes per second: bytes / seconds, times (W-1)/W, twice that for all_reduce, times 1 for
 * broadcast; 0 for barrier. memory_bandwidth: what all ranks together read and write per second when each copies;
 * memory_allows: the bus bandwidth that copies and sums without communication would have (docs/benchmarks/comm-shm.md).
 * Buffers are the plugin's own where it allocates. */
int tool_bench_comm(const tool_bench_comm_options *);

/** Blocks of the reference models (null: mnist and gpt), in fp32 and bf16 unless TESSERA_PRECISION names one. Called by
 * every rank alike, so that all cores are busy; rank 0 prints `block` events (docs/json.md) or a table. */
int tool_bench_blocks(FILE *out, int json, const char *model_or_null);

/** A pass of the engine on one rank against its blocks called directly, in turns; null: five models. A pass and its
 * parts, the medians of rounds (0: 9) and the means of spans:
 *     {"event":"bench","what":"step","model","rounds","direct_seconds","seconds","ratio","mean_seconds","engine":{…},"outside_blocks_seconds"}
 */
int tool_bench_step(const tool_bench_options *, const char *model_or_null);

/** Measures this machine for the simulator and writes a description (docs/machine.md) to `path`. Starts ranks. */
int tool_bench_machine(const char *path);
#endif
