/* SPDX-License-Identifier: BSD-3-Clause */
/* The time of a step on a machine that is only described: the instructions of its programs, read as the engine reads
 * them. The engine's thread and the lanes beside it (collectives, transfers up and down) run at once; a post costs
 * nothing, a wait joins. Collectives that run at once share their links alike. On a CPU all of them share the rank's
 * cores: when they want more than there are, all are slowed alike. docs/machine.md says what the numbers mean. */
#ifndef TOOL_SIMULATE_H
#define TOOL_SIMULATE_H
#include "core/layout/matrices.h"
#include "core/readers/span.h"
#include "tools/machine/machine.h"

typedef struct { /* the cost of one call of a scope; seconds override counts */
    double forward_flops, backward_flops, forward_bytes, backward_bytes;
    double forward_fp8, backward_fp8; /* those of the operations that have fp8's rate */
    double forward_seconds, backward_seconds;
    int32_t forward_kernels, backward_kernels;
} scope_cost;

typedef struct {
    const tess__setup *setup;
    const tess__model *model;
    const tess__layout *layout;
    const machine_desc *machine;
    const scope_cost *costs; /* index: scope; null: nothing computes */
    const char *comm;        /* the plugin's name, for the measured collectives */
    int32_t apart; /* 1: gathers, reductions and sums of replicas each have a communicator, which work in parallel */
    int32_t threads;
    const tess__program *const *programs; /* the programs of a step, in order */
    int32_t n_programs;
} simulation;

typedef struct {
    double seconds;
    double exposed[TESS__N_TRACKS]; /* the engine's thread stood still for this track */
    double busy[TESS__N_TRACKS];
    double critical[TESS__N_TRACKS]; /* the critical path by track; adds up to `seconds` */
    tess__span *spans;               /* ordered by start */
    int32_t n_spans, cap_spans;
} simulated_step;

tess_status simulate_step(const simulation *, simulated_step *out);
void simulated_free(simulated_step *);
/** One collective alone, among `members` ranks of which `per_node` share a node. `bytes` as in machine_collective;
 * `cpu_seconds`, or null: what it takes of the rank's cores. */
double simulate_collective(const machine_desc *, const char *comm, uint32_t op, int32_t members, int32_t per_node,
                           uint64_t bytes, double *cpu_seconds);
/** Seconds of work at a rate, 0 where there is none or no rate is known. */
static inline double simulate_over(double work_done, double rate) {
    return work_done > 0 && rate > 0 ? work_done / rate : 0;
}
/** The part of a collective's bytes that comes from other ranks. */
static inline double simulate_share(int32_t ranks) {
    return (double)(ranks - 1) / ranks;
}
/** One call of a scope that has costs; `back`: of its backward. */
double simulate_call_seconds(const simulation *, int32_t scope, int back);
/** The share of its forward that the block's backward makes again by itself; 0 for a block of -1. */
double simulate_made_again(const tess__model *, const tess__setup *, int32_t block);
/** The bytes that a cast reads and writes: GATHER, CAST_WIRE, WIDEN, and those of sums in blocks. */
static inline double simulate_cast_bytes(const tess__group *g, uint8_t op) {
    uint64_t shard = g->shard_elems, flat = g->flat_elems;
    switch (op) {
    case TESS__GATHER: /* a copy is as narrow as what is gathered */
        return (double)(tess_dtype_span(g->low_copy ? g->compute : g->master, shard) +
                        tess_dtype_span(g->gather, shard));
    case TESS__PACK_SUM:
    case TESS__CAST_WIRE: return (double)(tess_dtype_span(g->grad_local, flat) + tess_dtype_span(g->grad_wire, flat));
    case TESS__WIDEN: return (double)(tess_dtype_span(g->gather, flat) + tess_dtype_span(g->compute, flat));
    case TESS__SUM_LANDED: /* of each replica's part, the sum of one */
    case TESS__WIDEN_SUM: return (double)(tess_dtype_span(g->grad_wire, shard) + 4 * shard);
    default: return (double)(tess_dtype_span(g->grad_wire, flat) + 4 * shard); /* of each rank's blocks, the sum */
    }
}
static inline int32_t simulate_ranks_of_node(const simulation *in) {
    int32_t all = in->setup->nranks * (in->setup->stride > 1 ? in->setup->stride : 1);
    int32_t node = in->machine->ranks_per_node > 0 ? in->machine->ranks_per_node : all;
    return node < all ? node : all;
}
/** Bytes of a group, read from a node's disk or written there; its ranks share it. */
static inline double simulate_disk_seconds(const simulation *in, double bytes) {
    double said = in->machine->disk_bytes_per_second;
    return bytes * simulate_ranks_of_node(in) / (said > 0 ? said : MACHINE_DISK_RATE);
}
/** Those of the shard of parameters, where they rest in a store. */
static inline double simulate_stored_params(const tess__group *g) {
    return g->param_rest.stored ? (double)g->shard_elems * tess_dtype_bytes(g->master) : 0;
}
static inline double simulate_stored_states(const tess__group *g) {
    return g->state_rest.stored ? (double)tess__states_of(g, g->shard_elems) : 0;
}
/* Counts its gradient, or else its states and parameters. */
static inline double simulate_stored_bytes(const tess__layout *l, int32_t group, int grad) {
    const tess__group *g = &l->groups[group];
    return grad ? (double)tess__shard_grad_bytes(g) : simulate_stored_states(g) + simulate_stored_params(g);
}
/* Reads the gradient, updates the master and every state, writes the copy. That in fp16 is a cast, which reads the
 * master. */
static inline double simulate_optimizer_bytes(const tess__group *g) {
    double cast = g->compute == TESS_F16 ? (double)g->shard_elems * 4 : 0;
    double copy = g->low_copy ? (double)tess_dtype_span(g->compute, g->shard_elems) + cast : 0;
    return (double)tess__shard_grad_bytes(g) + copy + (double)g->shard_elems * 8 +
           2 * (double)tess__states_of(g, g->shard_elems);
}
#endif
