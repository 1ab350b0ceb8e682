/* SPDX-License-Identifier: BSD-3-Clause */
/* The time of a step on a machine that is only described: the instructions of its programs, read as the engine reads
 * them. The engine's thread and the lanes beside it (collectives, transfers up and down) run at once; a post costs
 * nothing, a wait joins. Collectives that run at once share their links alike. On a CPU all of them share the rank's
 * cores: when they want more than there are, all are slowed alike. docs/machine.md says what the numbers mean. */
#ifndef TESS_SIMULATE_H
#define TESS_SIMULATE_H
#include "span.h"

enum { TESS__RATE_COPY, TESS__RATE_SUM, TESS__RATE_OPTIMIZER, TESS__RATE_NORM, TESS__N_RATES };
enum { TESS__RING, TESS__TREE, TESS__DIRECT }; /* latencies of a collective among n: n - 1, ⌈log2 n⌉ or 1 */

typedef struct {
    double latency_seconds, bytes_per_second;
} tess__link;

typedef struct {   /* a collective as measured */
    char comm[16]; /* plugin */
    uint32_t op;   /* TESS_ALL_GATHER … */
    int32_t ranks;
    uint64_t bytes;              /* of all ranks together; all_reduce: of the buffer */
    double seconds, cpu_seconds; /* cpu: of one rank */
} tess__collective_time;

typedef struct { /* a block as measured */
    char model[96], name[48];
    double forward_seconds, backward_seconds;
} tess__block_time;

typedef struct {
    char name[64], source[256];
    int32_t is_cpu; /* rates are of one thread; else of the device */
    int32_t is_gpu; /* the description says so */
    int32_t ranks_per_node, algorithm;
    double cores;                                /* of a node, which its ranks' threads share; 0: they do not share */
    double flops_per_second[16];                 /* by compute dtype */
    double memory_bytes_per_second;              /* read and written, each counted */
    double rate_bytes_per_second[TESS__N_RATES]; /* of the engine's kernels; 0: the memory's */
    double kernel_seconds, collective_seconds;   /* what each costs beside its work */
    tess__link within, across;                   /* of a rank, in one node and between nodes */
    double up_bytes_per_second, down_bytes_per_second; /* between device and host, of a rank */
    double host_bytes_per_second;                      /* the optimizer on the host, of a rank */
    uint64_t device_memory_bytes;
    tess__collective_time *collectives; /* in ascending order of bytes within comm, op and ranks */
    tess__block_time *blocks;
    int32_t n_collectives, n_blocks;
} tess__machine;

typedef struct { /* of one call of a scope; seconds win over counts */
    double forward_flops, backward_flops, forward_bytes, backward_bytes;
    double forward_seconds, backward_seconds;
    int32_t forward_kernels, backward_kernels;
} tess__scope_cost;

typedef struct {
    const tess__setup *setup;
    const tess__model *model;
    const tess__layout *layout;
    const tess__machine *machine;
    const tess__scope_cost *costs; /* by scope; null: nothing computes */
    const char *comm;              /* the plugin's name, for the measured collectives */
    int32_t apart; /* gathers, reductions and the sums of replicas have a communicator each, which work at once */
    int32_t threads;
    const tess__program *const *programs; /* in order, one after another: a step */
    int32_t n_programs;
} tess__simulation;

typedef struct {
    double seconds;
    double exposed[TESS__N_TRACKS]; /* the engine's thread stood still for this track */
    double busy[TESS__N_TRACKS];
    double critical[TESS__N_TRACKS]; /* the critical path by track; adds up to `seconds` */
    tess__span *spans;               /* in order of their beginning */
    int32_t n_spans, cap_spans;
} tess__timeline;

tess_status tess__simulate(const tess__simulation *, tess__timeline *out);
void tess__timeline_free(tess__timeline *);
/** One collective alone, among `members` ranks of which `per_node` share a node. `bytes` as in tess__collective_time;
 * `cpu_seconds`, or null: what it takes of the rank's cores. */
double tess__collective_seconds(const tess__machine *, const char *comm, uint32_t op, int32_t members, int32_t per_node,
                                uint64_t bytes, double *cpu_seconds);
#endif
