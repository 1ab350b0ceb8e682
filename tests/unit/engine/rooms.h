/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory by role and index, as an engine has it. Its addresses have names, so that a test can write down from where
 * to where work goes. */
#ifndef TEST_ROOMS_H
#define TEST_ROOMS_H
#include "core/engine/state.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { SLOT = TESS__N_ROLES, GATHERED, TARGET, SOURCE, ALL_REPLICAS, ONE_REPLICA, TOTAL, OF_PROGRAM, N_ROOMS };
enum { N_GROUPS = 3, ROOM = 4096 };
static const struct {
    int role;
    const char *name;
} names[] = { { SLOT, "slot" },
              { GATHERED, "gathered" },
              { TARGET, "target" },
              { SOURCE, "source" },
              { ALL_REPLICAS, "replicas" },
              { ONE_REPLICA, "replica" },
              { TOTAL, "total" },
              { OF_PROGRAM, "program" },
              { TESS__FULL, "full" },
              { TESS__GRAD, "grad" },
              { TESS__WIRE, "wire" },
              { TESS__SHARD_GRAD, "shard_grad" },
              { TESS__STAGED_GRAD0, "staged_grad" },
              { TESS__STATE1, "state_1_" },
              { TESS__STAGED0 + 1, "staged_1_" },
              { TESS__LOW_COPY, "low" },
              { TESS__ARRIVED, "arrived" },
              { TESS__LANDED, "landed" },
              { TESS__LIMBS, "limbs" },
              { TESS__LIMBS_SCRATCH, "limbs_scratch" },
              { TESS__NORM_RESULT, "norm_result" },
              { TESS__BUFFERS, "buffers" },
              { TESS__CHUNK_SCRATCH, "chunk_scratch" },
              { TESS__GATHER_SCRATCH, "gather_scratch" },
              { TESS__REDUCE_SCRATCH, "reduce_scratch" },
              { TESS__COLLECT_SCRATCH, "collect_scratch" },
              { TESS__RETURN_SCRATCH, "return_scratch" },
              { TESS__UPDATE, "update" },
              { TESS__UPDATE + 2, "update_2_" },
              { TESS__PARTS, "parts" },
              { TESS__PARTS + 2, "parts_2_" },
              { TESS__INPUT, "input" },
              { TESS__BATCH, "batch" },
              { TESS__OUTPUT, "output" },
              { TESS__RESULT, "result" },
              { TESS__MASTER, "master" },
              { TESS__STAGED_PARAM, "staged_param" },
              { TESS__STATE0, "state" },
              { TESS__STAGED0, "staged" },
              { TESS__PACKED, "packed" },
              { TESS__FETCHED, "fetched" },
              { TESS__PART, "part" },
              { TESS__SUM0, "sum_0_" },
              { TESS__SUM0 + 1, "sum_1_" },
              { TESS__SUM0 + 2, "sum_2_" },
              { TESS__STAGED_GRAD0 + 1, "staged_sum_1_" },
              { TESS__STAGED_GRAD0 + 2, "staged_sum_2_" },
              { TESS__SHARD_WIRE, "shard_wire" },
              { TESS__NUMBERS, "numbers" } };

static char room[N_ROOMS][N_GROUPS][ROOM];
static void *places[N_ROOMS][N_GROUPS];
/** "full1", "full1+8": by role and index. */
static inline const char *place(const void *p) {
    static char text[4][48];
    static int turn;
    const uintptr_t at = (uintptr_t)p - (uintptr_t)room;
    if (!p || at >= sizeof room)
        return p ? "elsewhere" : "null";
    char *out = text[turn++ % 4];
    const int role = (int)(at / sizeof room[0]);
    const char *name = "unnamed";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        name = names[i].role == role ? names[i].name : name;
    int n = snprintf(out, sizeof text[0], "%s%d", name, (int)(at % sizeof room[0] / ROOM));
    if (at % ROOM)
        snprintf(out + n, sizeof text[0] - (size_t)n, "+%d", (int)(at % ROOM));
    return out;
}

/** Gives the engine's memory these addresses. */
static inline void place_all(tess *t) {
    for (int r = 0; r < N_ROOMS; r++)
        for (int i = 0; i < N_GROUPS; i++)
            places[r][i] = room[r][i];
    for (int r = 0; r < TESS__N_ROLES; r++)
        t->memory.address[r] = places[r];
    t->memory.plan = &t->plan;
}
#endif
