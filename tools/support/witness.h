/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads this process's memory from the kernel, which is independent of the plan and of the accounting. */
#ifndef TOOL_WITNESS_H
#define TOOL_WITNESS_H
#include <stdint.h>

typedef struct {
    uint64_t mapped_bytes;        /* all mappings that can be written, touched or not; without stacks of threads */
    uint64_t anonymous_bytes;     /* resident now, without pages of files and of shared memory */
    uint64_t resident_bytes;      /* resident now, all mappings */
    uint64_t resident_peak_bytes; /* highest so far */
    uint64_t threads;
} tool_witness;

/** Gives zeros if there is no /proc. It keeps no memory. */
void tool_witness_read(tool_witness *out);
#endif
