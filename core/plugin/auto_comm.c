/* SPDX-License-Identifier: BSD-3-Clause */
#include "auto_comm.h"

#include "base/status.h"

#include <string.h>

/* ---- plugins -------------------------------------------------------------------------------------- */

typedef struct {
    const tess_plan_env *env;
    int64_t least_ns; /* negative: none found */
    char best[32];
} comm_choice;

/* The cost that is assumed of a plugin that names none: a network of 1 GB/s, which the ranks of a host share, and 50
 * µs for every collective. */
static int64_t default_cost(const tess_plan_env *env, uint64_t block_bytes) {
    int64_t sharing = env->ranks_per_host > 0 ? env->ranks_per_host : 1;
    return 50000 + (int64_t)block_bytes * (env->nranks - 1) * sharing;
}

/* The time to gather 16 MiB in all; negative: the plugin does not serve such ranks. */
static int64_t cost_of(void *user, const tess__plugin *p) {
    const tess_plan_env *env = ((const comm_choice *)user)->env;
    const tess_comm_ops *ops = p->ops;
    uint64_t block = ((uint64_t)16 << 20) / (uint64_t)env->nranks;
    tess_comm_caps caps = { .struct_size = sizeof caps };
    tess_need need = { .struct_size = sizeof need };
    tess_collective c = { .struct_size = sizeof c,
                          .op = TESS_ALL_GATHER,
                          .send_dtype = TESS_U8,
                          .recv_dtype = TESS_U8,
                          .send_mem = env->mem,
                          .recv_mem = env->mem,
                          .count = block,
                          .scale = 1 };
    int64_t ns = -1;
    if (ops->query(p->ctx, NULL, &caps) || !(caps.mem_mask >> env->mem & 1) || ops->need(p->ctx, env, &c, &need))
        return -1;
    if (TESS_CAN(tess_comm_ops, ops, cost) && ops->cost(p->ctx, env, &c, &ns) == TESS_OK && ns >= 0)
        return ns;
    return default_cost(env, block);
}

/* Built-in plugins serve one rank. */
static tess_status consider_plugin(void *user, const tess__plugin_row *row, tess__plugin **opened) {
    comm_choice *c = user;
    (void)opened;
    if (!row->usable || !*row->path || row->answer < 0)
        return TESS_OK;
    int first = row->answer == c->least_ns && strcmp(row->name, c->best) < 0;
    if (c->least_ns < 0 || row->answer < c->least_ns || first) {
        c->least_ns = row->answer;
        memcpy(c->best, row->name, sizeof c->best);
    }
    return TESS_OK;
}

tess_status tess__comm_choose(const tess_host *services, const tess_plan_env *env, tess__plugin **out) {
    comm_choice c = { .env = env, .least_ns = -1 };
    if (env->nranks == 1)
        return tess__plugin_open(TESS_KIND_COMM, "self", services, out);
    TRY(tess__plugin_ask(TESS_KIND_COMM, services, cost_of, consider_plugin, &c));
    if (c.least_ns < 0)
        return tess__fail(TESS_E_INVALID,
                          "%d ranks need a comm plugin and none is usable; `tessera plugins list` says why",
                          env->nranks);
    return tess__plugin_open(TESS_KIND_COMM, c.best, services, out);
}
