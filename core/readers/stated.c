/* SPDX-License-Identifier: BSD-3-Clause */
#include "stated.h"

static uint64_t most_of(const tess__setup *setup, const tess__program *program) {
    uint64_t most = 0;
    for (int32_t i = 0; i < program->n_collectives; i++) {
        const tess__planned_collective *p = &program->collectives[i];
        if (p->members < 2)
            continue;
        tess_collective c = { .struct_size = sizeof c,
                              .op = p->op,
                              .redop = p->redop,
                              .send_dtype = p->send_dtype,
                              .recv_dtype = p->recv_dtype,
                              .send_mem = setup->env.mem,
                              .recv_mem = setup->env.mem,
                              .count = p->count,
                              .scale = 1 };
        tess_need need = { .struct_size = sizeof need };
        tess_plan_env env = setup->env;
        env.nranks = p->members;
        if (setup->comm->need(setup->comm_ctx, &env, &c, &need) == TESS_OK && need.backend_bytes > most)
            most = need.backend_bytes;
    }
    return most;
}

uint64_t tess__stated_bytes(const tess__plan *p) {
    uint64_t most = 0;
    for (int i = 0; i < TESS__N_PROGRAMS; i++) {
        uint64_t bytes = most_of(&p->setup, &p->programs[i]);
        most = bytes > most ? bytes : most;
    }
    return most;
}
