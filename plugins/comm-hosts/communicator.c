/* SPDX-License-Identifier: BSD-3-Clause */
#include "communicator.h"

#include <stdlib.h>

static const kit_reach reach = { "hosts", 1u << TESS_MEM_HOST | 1u << TESS_MEM_PINNED, "host memory" };

/* ---- what the worker does ------------------------------------------------------------------------- */

static tess_plan_env env_of(const tess_comm *c) {
    return (tess_plan_env){ .struct_size = sizeof(tess_plan_env),
                            .mem = TESS_MEM_HOST,
                            .nranks = c->size,
                            .ranks_per_host = c->layout.each ? c->layout.each : c->layout.sharing,
                            .in_flight = 1 };
}

static uint64_t flat_scratch(const tess_comm *c, const tess_collective *call) {
    const tess_plan_env env = env_of(c);
    const hosts_under *under = c->layout.kind == HOSTS_ONE ? &c->plugin->within : &c->plugin->between;
    tess_need need = { .struct_size = sizeof need };
    return under->ops->need(under->ctx, &env, call, &need) == TESS_OK ? need.device_bytes : 0;
}

static tess_status check_call(tess_comm *c, const tess_collective *call, tess_error *e) {
    tess_status s = kit_check_call(&reach, call, -1, c->size, 0, e);
    return s < 0 ? s : kit_check_call(&reach, call, c->rank, c->size, flat_scratch(c, call), e);
}

static tess_status compare_announcements(tess_comm *c, const kit_announcement *mine, tess_error *e) {
    for (int32_t r = 0; r < c->size; r++) {
        tess_status s = r == c->rank ? TESS_OK : kit_compare("hosts", mine, c->rank, &c->heard[r], r, e);
        if (s < 0)
            return s;
    }
    return TESS_OK;
}

/* Every rank finds a mismatch: two that differ differ from each third between them. Nobody leaves before all have
 * heard. */
static void part_after_mismatch(tess_comm *c) {
    const tess_collective barrier = { .struct_size = sizeof barrier, .op = TESS_BARRIER, .scale = 1 };
    tess_error ignored = { .struct_size = sizeof ignored };
    hosts_run_on(c, HOSTS_WHOLE, &barrier, &ignored);
}

/* Every rank hears what all are about to do before a part of it begins: a part alone would compare a few ranks only. */
static tess_status agree_on_call(tess_comm *c, const tess_collective *call, tess_error *e) {
    const kit_announcement mine = kit_announce(call, 1, c->seq);
    const tess_collective gather = { .struct_size = sizeof gather,
                                     .op = TESS_ALL_GATHER,
                                     .send_dtype = TESS_U8,
                                     .recv_dtype = TESS_U8,
                                     .send_mem = TESS_MEM_HOST,
                                     .recv_mem = TESS_MEM_HOST,
                                     .send = &mine,
                                     .recv = c->heard,
                                     .count = sizeof mine,
                                     .scale = 1 };
    tess_status s = hosts_run_on(c, HOSTS_WHOLE, &gather, e);
    if (s == TESS_OK && (s = compare_announcements(c, &mine, e)) < 0)
        part_after_mismatch(c);
    return s;
}

static tess_status run_call(tess_comm *c, const tess_collective *call, tess_error *e) {
    c->seq++;
    if (c->layout.kind != HOSTS_TWO_STEPS)
        return hosts_run_on(c, c->layout.kind == HOSTS_ONE ? HOSTS_LOCAL : HOSTS_WHOLE, call, e);
    const tess_plan_env env = env_of(c);
    const hosts_scratch scratch = hosts_scratch_of(c->plugin, &env, call, c->size, c->layout.each);
    if (!scratch.own || call->scratch_bytes < scratch.own + scratch.under)
        return hosts_run_on(c, HOSTS_WHOLE, call, e);
    tess_status s = agree_on_call(c, call, e);
    return s < 0 ? s : hosts_run_two_steps(c, call, &scratch, e);
}

/* Finalizes the communicator of all ranks first: when that has ended, no rank uses a part any more. */
static tess_status end_parts(tess_comm *c, tess_error *e) {
    tess_status s = TESS_OK;
    for (int32_t which = 0; which < c->n_parts && s == TESS_OK; which++) {
        const hosts_part *part = &c->parts[which];
        if (part->comm && TESS_CAN(tess_comm_ops, part->ops, finalize))
            s = part->ops->finalize(part->comm, -1, e);
    }
    return s;
}

static tess_status run_calls(tess_comm *c, const tess_collective *calls, uint32_t n, uint32_t own_op, tess_error *e) {
    tess_status s = own_op == KIT_OP_FINALIZE ? end_parts(c, e) : TESS_OK;
    for (uint32_t i = 0; i < n && s == TESS_OK; i++)
        s = run_call(c, &calls[i], e);
    return s;
}

/* After a mismatch HOSTS_WHOLE stays open, because the other ranks must still read this rank's announcement. */
static void abort_parts(tess_comm *c) {
    const int kept = kit_slot_health(c, NULL) == TESS_E_MISMATCH ? HOSTS_WHOLE : -1;
    pthread_mutex_lock(&c->lock);
    c->aborted = 1;
    for (int32_t which = 0; which < c->n_parts; which++)
        if (c->parts[which].comm && which != kept)
            c->parts[which].ops->abort(c->parts[which].comm, TESS_E_ABORTED);
    pthread_mutex_unlock(&c->lock);
}

static const kit_requests_ops requests_ops = {
    .plugin = "hosts",
    .thread = "tess-hosts-work",
    .check = check_call,
    .run = run_calls,
    .interrupt = abort_parts,
};

/* ---- begin and end -------------------------------------------------------------------------------- */

static int allocate_tables(tess_comm *c) {
    const hosts_layout *l = &c->layout;
    c->n_parts = HOSTS_RAIL + (l->kind == HOSTS_TWO_STEPS ? hosts_rounds(l, l->host) : 0);
    c->parts = calloc((size_t)c->n_parts, sizeof *c->parts);
    c->ids = calloc((size_t)c->size, sizeof *c->ids);
    c->heard = calloc((size_t)c->size, sizeof *c->heard);
    c->broadcasts = calloc((size_t)l->hosts + 1, sizeof *c->broadcasts);
    return c->parts && c->ids && c->heard && c->broadcasts;
}

static void release_comm(tess_comm *c) {
    if (!c)
        return;
    free(c->parts);
    free(c->ids);
    free(c->heard);
    free(c->broadcasts);
    free(c);
}

tess_status hosts_comm_new(const hosts_plugin *p, int32_t rank, int32_t size, const uint64_t *ids, const char *prefix,
                           tess_comm **out, tess_error *e) {
    const tess_comm made = { .plugin = p, .rank = rank, .size = size, .layout = hosts_layout_of(ids, size, rank) };
    tess_comm *c = malloc(sizeof *c);
    if (c)
        *c = made;
    if (!c || !allocate_tables(c)) {
        release_comm(c);
        return tess_plugin_fail(e, TESS_E_NOMEM, "hosts: no memory for a communicator of %d ranks", (int)size);
    }
    memcpy(c->ids, ids, (size_t)size * sizeof *ids);
    snprintf(c->prefix, sizeof c->prefix, "%s", prefix);
    pthread_mutex_init(&c->lock, NULL);
    kit_requests_init(&c->requests, &requests_ops, p->host);
    *out = c;
    return TESS_OK;
}

tess_status hosts_comm_take(tess_comm *c, int which, const hosts_under *under, tess_comm *part, tess_error *e) {
    pthread_mutex_lock(&c->lock);
    c->parts[which] = (hosts_part){ under->ops, part };
    int aborted = c->aborted;
    pthread_mutex_unlock(&c->lock);
    return aborted ? tess_plugin_fail(e, TESS_E_ABORTED, "hosts: aborted while connecting") : TESS_OK;
}

tess_status hosts_comm_start(tess_comm *c, tess_error *e) {
    return kit_requests_start(&c->requests, e);
}

/* Ends in-flight work first: `interrupt` aborts the parts unless all were finalized. */
void hosts_comm_destroy(tess_comm *c) {
    if (!c)
        return;
    kit_requests_stop(&c->requests);
    for (int32_t which = c->n_parts - 1; which >= 0; which--)
        if (c->parts[which].comm)
            c->parts[which].ops->destroy(c->parts[which].comm);
    kit_requests_finish(&c->requests);
    pthread_mutex_destroy(&c->lock);
    release_comm(c);
}
