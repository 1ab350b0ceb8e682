/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads this process's memory from the kernel, independently of the plan and the accounting. */
#ifndef TOOL_WITNESS_H
#define TOOL_WITNESS_H
#include <stdint.h>

typedef struct {
    uint64_t mapped_bytes;        /* all writable mappings, touched or not, without thread stacks */
    uint64_t anonymous_bytes;     /* resident now, without pages of files and shared memory */
    uint64_t resident_bytes;      /* resident now, in all mappings */
    uint64_t resident_peak_bytes; /* the most resident at one time so far */
    uint64_t threads;
} tool_witness;

/** Writes zeros if there is no /proc. It keeps no memory. */
void tool_witness_read(tool_witness *out);
#endif
