/* SPDX-License-Identifier: BSD-3-Clause */
#include "communicator.h"

#include <stdlib.h>

const kit_reach shm_reach = { "shm", 1u << TESS_MEM_HOST | 1u << TESS_MEM_PINNED | 1u << TESS_MEM_SHM, "host memory" };

/* ---- what the worker does ------------------------------------------------------------------------- */

static tess_status comm_check(tess_comm *c, const tess_collective *call, tess_error *e) {
    return kit_check_call(&shm_reach, call, c->rank, c->size, 0, e);
}

static tess_status comm_run(tess_comm *c, const tess_collective *calls, uint32_t n, uint32_t own_op, tess_error *e) {
    tess_status s = own_op ? shm_run_meeting(&c->operations, own_op, e) : TESS_OK;
    if (own_op && s == TESS_OK)
        shm_table_set_state(&c->table, SHM_LEFT);
    for (uint32_t i = 0; i < n && s == TESS_OK; i++)
        s = shm_run_call(&c->operations, &calls[i], e);
    return s;
}

static void comm_interrupt(tess_comm *c) {
    shm_table_stop(&c->table);
}

/* The others learn of it before any request ends, so before its memory can change while they read it. */
static void comm_drain(tess_comm *c, const tess_error *cause) {
    shm_table_set_state(&c->table, cause->code);
}

static const kit_requests_ops requests_ops = {
    .plugin = "shm",
    .thread = "tess-shm-work",
    .check = comm_check,
    .run = comm_run,
    .interrupt = comm_interrupt,
    .drain = comm_drain,
};

/* ---- begin and end -------------------------------------------------------------------------------- */

tess_status shm_comm_create(const tess_host *host, struct shm_group *group, const int *members, int rank, int size,
                            const char *prefix, uint64_t table_offset, tess_comm **out, tess_error *e) {
    void *memory = NULL;
    tess_comm *c = calloc(1, sizeof *c);
    if (!c) {
        shm_group_drop(group);
        return tess_plugin_fail(e, TESS_E_NOMEM, "shm: no memory for a communicator");
    }
    kit_requests_init(&c->requests, &requests_ops, host);
    c->group = group;
    c->rank = rank;
    c->size = size;
    memcpy(c->members, members, (size_t)size * sizeof *members);
    snprintf(c->prefix, sizeof c->prefix, "%s", prefix);
    c->operations.table = &c->table;
    tess_status s = shm_table_map(group, members[0], table_offset, shm_table_bytes(size), &memory, e);
    if (s == TESS_OK) {
        shm_table_open(&c->table, group, c->members, rank, size, memory, &c->requests.cause);
        s = kit_requests_start(&c->requests, e);
    }
    if (s == TESS_OK)
        *out = c;
    else
        shm_comm_destroy(c);
    return s;
}

void shm_comm_destroy(tess_comm *c) {
    if (!c)
        return;
    kit_requests_stop(&c->requests);
    shm_table_close(&c->table);
    shm_group_drop(c->group);
    kit_requests_finish(&c->requests);
    free(c);
}
