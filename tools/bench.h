/* The measurements behind `tessera bench`, one file per subject. Each prints a line per case: JSON when asked, else a
 * row of a table. Returns the exit code of DESIGN section 11. */
#ifndef TOOL_BENCH_H
#define TOOL_BENCH_H
#include <stdint.h>
#include <stdio.h>

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
#endif
