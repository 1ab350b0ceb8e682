/* SPDX-License-Identifier: BSD-3-Clause */
/* How long a collective takes: by its measured times, or by the links that are described. */
#include "simulate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int same_case(const machine_collective *c, const char *comm, uint32_t op, int32_t ranks) {
    return c->op == op && c->ranks == ranks && (!comm || strcmp(c->comm, comm) == 0);
}

/* Ranks nearest to `members` for which this operation was measured; 0: none. */
static int32_t nearest_ranks(const machine_desc *m, const char *comm, uint32_t op, int32_t members) {
    int32_t best = 0;
    for (int32_t i = 0; i < m->n_collectives; i++) {
        int32_t r = m->collectives[i].ranks;
        if (same_case(&m->collectives[i], comm, op, r) && r > 1 && (!best || abs(r - members) < abs(best - members)))
            best = r;
    }
    return best;
}

/* An all_to_all takes the times of an all_to_all_v, and the other way round, where only the other was measured. */
static uint32_t measured_op(const machine_desc *m, const char *comm, uint32_t op) {
    if ((op != TESS_ALL_TO_ALL && op != TESS_ALL_TO_ALL_V) || nearest_ranks(m, comm, op, 2))
        return op;
    return op == TESS_ALL_TO_ALL ? TESS_ALL_TO_ALL_V : TESS_ALL_TO_ALL;
}

/* Interpolates between measured sizes. Above the largest, time grows in proportion; below the smallest it stays. */
static double interpolated_seconds(const machine_desc *m, const char *comm, uint32_t op, int32_t ranks, double bytes,
                                   double *cpu) {
    const machine_collective *below = NULL, *above = NULL;
    for (int32_t i = 0; i < m->n_collectives; i++) {
        const machine_collective *c = &m->collectives[i];
        if (!same_case(c, comm, op, ranks))
            continue;
        if ((double)c->bytes <= bytes)
            below = c;
        else if (!above)
            above = c;
    }
    if (!below || !above) {
        const machine_collective *c = below ? below : above;
        double times = below && c->bytes ? bytes / (double)c->bytes : 1;
        *cpu = c->cpu_seconds * times;
        return c->seconds * times;
    }
    double part = (bytes - (double)below->bytes) / (double)(above->bytes - below->bytes);
    *cpu = below->cpu_seconds + part * (above->cpu_seconds - below->cpu_seconds);
    return below->seconds + part * (above->seconds - below->seconds);
}

static double count_latencies(const machine_desc *m, int32_t members) {
    return m->algorithm == MACHINE_RING ? members - 1 : m->algorithm == MACHINE_TREE ? ceil(log2(members)) : 1;
}

static double described_seconds(const machine_desc *m, uint32_t op, int32_t members, int32_t per_node, double bytes) {
    int crosses = per_node < members;
    const machine_link *far = crosses ? &m->across : &m->within;
    double moved = bytes * simulate_share(members), times = op == TESS_ALL_REDUCE ? 2 : 1;
    double seconds = per_node > 1 ? simulate_over(moved, m->within.bytes_per_second) : 0;
    double between = crosses ? simulate_over(moved, m->across.bytes_per_second * per_node) : 0;
    seconds = between > seconds ? between : seconds; /* pipelined: the narrower level counts */
    return m->collective_seconds + times * (seconds + count_latencies(m, members) * far->latency_seconds);
}

double simulate_collective(const machine_desc *m, const char *comm, uint32_t op, int32_t members, int32_t per_node,
                           uint64_t bytes, double *cpu_seconds) {
    double cpu = 0, seconds;
    op = measured_op(m, comm, op);
    int32_t ranks = members > 1 ? nearest_ranks(m, comm, op, members) : 0;
    if (members <= 1)
        seconds = 0;
    else if (ranks) /* scales by the bytes that one rank receives */
        seconds = interpolated_seconds(m, comm, op, ranks,
                                       (double)bytes * simulate_share(members) / simulate_share(ranks), &cpu);
    else
        seconds = described_seconds(m, op, members, per_node, (double)bytes);
    if (m->is_cpu && !ranks) /* without a measurement it keeps one core busy */
        cpu = seconds;
    if (cpu_seconds)
        *cpu_seconds = cpu;
    return seconds;
}
