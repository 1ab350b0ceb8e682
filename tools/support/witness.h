/* SPDX-License-Identifier: BSD-3-Clause */
/* This process's memory as the kernel tells it: a witness that knows nothing of plans and books. */
#ifndef TOOL_WITNESS_H
#define TOOL_WITNESS_H
#include <stdint.h>

typedef struct {
    uint64_t mapped_bytes;        /* all mappings that can be written, touched or not; without stacks of threads */
    uint64_t anonymous_bytes;     /* resident now, without pages of files and of shared memory */
    uint64_t resident_bytes;      /* of all mappings, now */
    uint64_t resident_peak_bytes; /* the most so far */
    uint64_t threads;
} tool_witness;

/** All zero where there is no /proc. Allocates nothing that lasts. */
void tool_witness_read(tool_witness *out);
#endif
