/* SPDX-License-Identifier: BSD-3-Clause */
/* Descriptions of machines for the simulator (tools/plan/simulate.h): the named ones, files in JSON
 * (docs/machine.md), and block times of an earlier run. */
#ifndef TOOL_MACHINE_H
#define TOOL_MACHINE_H
#include <stdio.h>

#include <tessera/tessera.h>

enum { MACHINE_RATE_COPY, MACHINE_RATE_SUM, MACHINE_RATE_OPTIMIZER, MACHINE_RATE_NORM, MACHINE_N_RATES };
enum { MACHINE_RING, MACHINE_TREE, MACHINE_DIRECT }; /* latencies of a collective among n: n - 1, ⌈log2 n⌉ or 1 */

typedef struct {
    double latency_seconds, bytes_per_second;
} machine_link;

typedef struct {   /* a collective as measured */
    char comm[16]; /* plugin */
    uint32_t op;   /* TESS_ALL_GATHER … */
    int32_t ranks;
    uint64_t bytes;              /* of all ranks together; all_reduce: of the buffer */
    double seconds, cpu_seconds; /* cpu: of one rank */
} machine_collective;

typedef struct { /* a block as measured */
    char model[96], name[48];
    double forward_seconds, backward_seconds;
} machine_block;

#define MACHINE_DISK_RATE 2e9 /* bytes per second, where nothing is said: a solid state disk's usual */
typedef struct {
    char name[64], source[256];
    int32_t is_cpu; /* rates are of one thread; else of the device */
    int32_t is_gpu; /* set by the description */
    int32_t ranks_per_node, algorithm;
    double cores;                                  /* of a node, which its ranks' threads share; 0: they do not share */
    double flops_per_second[16];                   /* index: dtype of products; fp8 0: as the compute dtype */
    double memory_bytes_per_second;                /* read and written, each counted */
    double rate_bytes_per_second[MACHINE_N_RATES]; /* bandwidth of the engine's kernels; 0: the memory's */
    double kernel_seconds, collective_seconds;     /* fixed cost of each, beside its work */
    machine_link within, across;                   /* of a rank, in one node and between nodes */
    double up_bytes_per_second, down_bytes_per_second; /* a rank's bandwidth between device and host */
    double host_bytes_per_second;                      /* the optimizer on the host, of a rank */
    double disk_bytes_per_second; /* of a node's disk, which its ranks share, either way; 0: MACHINE_DISK_RATE */
    uint64_t device_memory_bytes;
    machine_collective *collectives; /* in ascending order of bytes within comm, op and ranks */
    machine_block *blocks;
    int32_t n_collectives, n_blocks;
} machine_desc;

/** `word`: a name, or a path (it holds a '/' or a '.'). TESS_E_DATA names the file, the place and what was expected;
 * TESS_E_INVALID: no such name. */
tess_status machine_open(const char *word, machine_desc *out);
void machine_close(machine_desc *); /* all zero is fine */
/** The names, ending with null. */
const char *const *machine_names(void);
/** The text of a named machine, or null. machine_named.c */
const char *machine_text(const char *name);
/** Reads `text` of `bytes` bytes; `path` for messages. */
tess_status machine_parse(const char *path, const char *text, size_t bytes, machine_desc *out);
/** Writes the format that machine_open reads; returns -1 if a write failed. */
int machine_write(const machine_desc *, FILE *);

tess_status machine_add_collective(machine_desc *, const machine_collective *);
tess_status machine_add_block(machine_desc *, const machine_block *); /* replaces one of the same name */
/** Takes the `block` and, where `collectives`, the `bench` events of a file that --json wrote. TESS_E_DATA also when
 * there are none. */
tess_status machine_add_events(machine_desc *, const char *path, int collectives);
/** Finds the measured times of a block, or of another block of its kind ("h.3" for "h.7"). Null: none. */
const machine_block *machine_find_block(const machine_desc *, const char *model_key, const char *block);
#endif
