/* SPDX-License-Identifier: BSD-3-Clause */
/* The slots of tess_comm_ops over a link: the kit's requests, and an exchange for each collective. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "comm_kit_internal.h"
#include "requests.h"

#include <stdlib.h>

typedef struct {
    const kit_link_ops *link;
    const tess_host *host;
    kit_requests_ops requests;
} context;

struct tess_comm {
    kit_requests requests; /* first */
    const context *ctx;
    kit_world world;
    kit_choice *choices; /* [nranks], of a split */
    uint64_t seq;        /* the worker's */
};

/* ---- what the worker does ------------------------------------------------------------------------ */

static kit_reach reach_of(const kit_link_ops *l) {
    return (kit_reach){ l->name, l->mem_mask, "memory that its link reaches" };
}

/* Every exchange of a link has parts of one length. */
static tess_status refuse_parts(const char *name, const tess_collective *c, tess_error *e) {
    return c->op != TESS_ALL_TO_ALL_V ? TESS_OK
                                      : tess_plugin_fail(e, TESS_E_UNSUPPORTED, "%s: operation %u", name, c->op);
}

static tess_status comm_check(tess_comm *comm, const tess_collective *c, tess_error *e) {
    const kit_world *w = &comm->world;
    if (refuse_parts(w->link->name, c, e) < 0)
        return TESS_E_UNSUPPORTED;
    const kit_reach reach = reach_of(w->link);
    tess_status s = kit_check_call(&reach, c, -1, w->nranks, 0, e);
    return s < 0 ? s : kit_check_call(&reach, c, w->rank, w->nranks, kit_scratch_bytes(c, w->nranks), e);
}

static tess_status comm_run(tess_comm *comm, const tess_collective *c, uint32_t n, uint32_t own_op, tess_error *e) {
    kit_announcement a = kit_announce_own(own_op, 0, comm->seq);
    tess_status s = own_op ? kit_agree(&comm->world, &a, e) : TESS_OK;
    comm->seq += own_op != 0;
    for (uint32_t i = 0; i < n && s == TESS_OK; i++) {
        a = kit_announce(&c[i], 1, comm->seq++);
        s = kit_agree(&comm->world, &a, e);
        if (s == TESS_OK)
            s = kit_run(&comm->world, &c[i], e);
    }
    return s;
}

static void comm_interrupt(tess_comm *comm) {
    comm->world.link->interrupt(comm->world.at);
}

/* ---- communicators ------------------------------------------------------------------------------- */

static void free_tables(tess_comm *comm) {
    free(comm->world.announced);
    free(comm->world.out);
    free(comm->world.in);
    free(comm->world.came);
    free(comm->world.small);
    free(comm->choices);
    free(comm);
}

static tess_comm *new_tables(const context *ctx, const tess_comm_config *config) {
    size_t n = (size_t)config->nranks;
    tess_comm *comm = calloc(1, sizeof *comm);
    if (!comm)
        return NULL;
    comm->ctx = ctx;
    comm->world = (kit_world){ .link = ctx->link, .rank = config->rank, .nranks = config->nranks };
    comm->world.announced = calloc(n, sizeof *comm->world.announced);
    comm->world.out = calloc(n, sizeof *comm->world.out);
    comm->world.in = calloc(n, sizeof *comm->world.in);
    comm->world.came = calloc(n, sizeof *comm->world.came);
    comm->world.small = aligned_alloc(64, n * KIT_SMALL_BYTES);
    comm->choices = calloc(n, sizeof *comm->choices);
    if (comm->world.announced && comm->world.out && comm->world.in && comm->world.came && comm->world.small &&
        comm->choices)
        return comm;
    free_tables(comm);
    return NULL;
}

static void kit_destroy(tess_comm *comm) {
    if (!comm)
        return;
    kit_requests_stop(&comm->requests);
    comm->world.link->leave(comm->world.at);
    kit_requests_finish(&comm->requests);
    free_tables(comm);
}

static tess_status make_comm(const context *ctx, const tess_comm_config *config, tess_comm **out, tess_error *e) {
    tess_comm *comm = new_tables(ctx, config);
    if (!comm)
        return tess_plugin_fail(e, TESS_E_NOMEM, "%s: no memory for a communicator", ctx->link->name);
    tess_status s = ctx->link->join(ctx->host, config, &comm->world.at, e);
    if (s < 0) {
        free_tables(comm);
        return s;
    }
    kit_requests_init(&comm->requests, &ctx->requests, ctx->host);
    s = kit_requests_start(&comm->requests, e);
    if (s < 0)
        kit_destroy(comm);
    else
        *out = comm;
    return s;
}

static tess_status kit_init(void *ctx, const tess_comm_config *config, tess_comm **out, tess_error *e) {
    const context *c = ctx;
    tess_status s = kit_check_place(c->link->name, config, e);
    return s < 0 ? s : make_comm(c, config, out, e);
}

/* Finds this rank's place among those of its colour. */
static tess_status find_place(const tess_comm *comm, int32_t color, int32_t *rank, int32_t *nranks, tess_error *e) {
    int32_t *members = calloc((size_t)comm->world.nranks, sizeof *members);
    if (!members)
        return tess_plugin_fail(e, TESS_E_NOMEM, "%s: no memory to split %d ranks", comm->world.link->name,
                                (int)comm->world.nranks);
    *nranks = kit_split_members(comm->choices, comm->world.nranks, color, comm->world.rank, members, rank);
    free(members);
    return TESS_OK;
}

static tess_status kit_split(tess_comm *comm, int32_t color, int32_t key, const tess_comm_config *config,
                             tess_comm **out, tess_error *e) {
    tess_comm_config own = { .struct_size = 0 };
    char group[300];
    const kit_choice mine = { .color = color, .key = key };
    tess_status s = kit_requests_choices(&comm->requests, &mine, comm->choices, config->timeout_ns, e);
    if (s == TESS_OK && color < 0)
        *out = NULL;
    if (s < 0 || color < 0)
        return s;
    memcpy(&own, config, config->struct_size < sizeof own ? config->struct_size : sizeof own);
    own.struct_size = sizeof own;
    s = find_place(comm, color, &own.rank, &own.nranks, e);
    snprintf(group, sizeof group, "%.250s.%d", config->group, (int)color);
    own.group = group;
    return s < 0 ? s : make_comm(comm->ctx, &own, out, e);
}

/* ---- what needs no communicator ------------------------------------------------------------------ */

static void kit_close(void *ctx) {
    const context *c = ctx;
    if (c->link->closed)
        c->link->closed();
    free(ctx);
}

static tess_status kit_query(void *ctx, tess_comm *comm, tess_comm_caps *out) {
    const context *c = ctx;
    const uint32_t can =
        TESS_COMM_THREAD_MULTIPLE | TESS_COMM_ABORT | TESS_COMM_SPLIT | TESS_COMM_BATCH | TESS_COMM_TREE_ORDER;
    const tess_comm_caps caps = kit_caps(can, c->link->mem_mask, c->link->wire_id);
    (void)comm;
    TESS_GIVE(out, &caps);
    return TESS_OK;
}

static tess_status kit_need(void *ctx, const tess_plan_env *env, const tess_collective *call, tess_need *out) {
    const context *own = ctx;
    const kit_reach reach = reach_of(own->link);
    const tess_collective c = kit_take_call(call, call->struct_size);
    tess_need need = { .align = 64 };
    tess_status s = kit_check_call(&reach, &c, -1, env->nranks, 0, NULL);
    if (s == TESS_OK)
        s = refuse_parts(own->link->name, &c, NULL);
    if (s < 0)
        return s;
    need.device_bytes = kit_scratch_bytes(&c, env->nranks);
    TESS_GIVE(out, &need);
    return TESS_OK;
}

static const tess_comm_ops ops = {
    .struct_size = sizeof ops,
    .abi_major = TESS_ABI_MAJOR,
    .abi_minor = TESS_ABI_MINOR,
    .close = kit_close,
    .query = kit_query,
    .need = kit_need,
    .init = kit_init,
    .split = kit_split,
    .destroy = kit_destroy,
    KIT_REQUEST_SLOTS,
};

tess_status kit_open(const kit_link_ops *link, const tess_host *host, const void **out, void **ctx, tess_error *e) {
    context *c = calloc(1, sizeof *c);
    if (!c)
        return tess_plugin_fail(e, TESS_E_NOMEM, "%s: no memory to open", link->name);
    *c = (context){ .link = link, .host = host };
    c->requests = (kit_requests_ops){ .plugin = link->name,
                                      .thread = "tess-kit-work",
                                      .check = comm_check,
                                      .run = comm_run,
                                      .interrupt = comm_interrupt };
    *out = &ops;
    *ctx = c;
    return TESS_OK;
}
