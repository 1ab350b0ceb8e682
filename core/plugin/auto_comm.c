/* SPDX-License-Identifier: BSD-3-Clause */
#include "auto_comm.h"

#include "open.h"
#include "base/status.h"

#include <stdio.h>
#include <string.h>

/* ---- plugins -------------------------------------------------------------------------------------- */

typedef struct {
    const tess_host *services;
    const tess_plan_env *env;
    int64_t least_ns; /* negative: none found */
    char name[32];
} choice;

/* Over a network of 1 GB/s, which the ranks of a host share, and of which every collective takes 50 µs. */
static int64_t default_cost(const tess_plan_env *env, uint64_t block_bytes) {
    int64_t sharing = env->ranks_per_host > 0 ? env->ranks_per_host : 1;
    return 50000 + (int64_t)block_bytes * (env->nranks - 1) * sharing;
}

/* Seconds to gather 16 MiB in all; negative: the plugin does not serve such ranks. */
static int64_t cost_of(const tess__plugin *p, const tess_plan_env *env) {
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

static tess_status consider_plugin(void *user, const tess__plugin_row *row) {
    choice *c = user;
    tess__plugin *p;
    if (!row->usable || tess__plugin_open(row->kind, row->name, c->services, &p))
        return TESS_OK;
    int64_t ns = cost_of(p, c->env);
    tess__plugin_close(p);
    int first = ns == c->least_ns && strcmp(row->name, c->name) < 0;
    if (ns >= 0 && (c->least_ns < 0 || ns < c->least_ns || first)) {
        c->least_ns = ns;
        snprintf(c->name, sizeof c->name, "%s", row->name);
    }
    return TESS_OK;
}

tess_status tess__comm_choose(const tess_host *services, const tess_plan_env *env, char name[32]) {
    choice c = { .services = services, .env = env, .least_ns = -1 };
    snprintf(c.name, sizeof c.name, "%s", env->nranks == 1 ? "self" : "");
    tess_status s = env->nranks == 1 ? TESS_OK : tess__plugin_list(TESS_KIND_COMM, consider_plugin, &c);
    if (s)
        return s;
    if (!c.name[0])
        return tess__fail(TESS_E_INVALID,
                          "%d ranks need a comm plugin and none is usable; `tessera plugins list` says why",
                          env->nranks);
    memcpy(name, c.name, sizeof c.name);
    return TESS_OK;
}
