/* SPDX-License-Identifier: BSD-3-Clause */
/* A group of the program's own is an engine without a model: it has a communicator, a device, and an error that stays.
 * Its collectives work on the program's memory and are done when they return. */
#include "group.h"

#include "base/hash.h"
#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- opened ---- */

/* Settings of engines, which a group does without, whatever the environment says. */
static const tess_setting bare[] = { { "strategy", "full" }, { "offload", "none" },    { "precision", "fp32" },
                                     { "wrap", "scopes" },   { "optimizer", "none" },  { "activations", "keep" },
                                     { "accum", "1" },       { "sync", "each" },       { "checkpoint", "sync" },
                                     { "threads", "1" },     { "deterministic", "0" }, { "spike", "0" } };
enum { N_BARE = sizeof bare / sizeof bare[0] };

/* The environment's, else the program's own. */
static const char *or_own(const char *key, const char *own) {
    const char *text = tess__option_text(key);
    return text ? text : own;
}

tess_status tess__group_open(const tess_options *options, const tess__hooks *hooks, tess **out) {
    tess_options own = { .struct_size = sizeof own };
    if (options)
        TRY(tess__copy_options("tess_group_open", &own, sizeof own, TESS__UP_TO(tess_options, own_states), options));
    tess_setting *settings = calloc((size_t)own.n_settings + N_BARE, sizeof *settings);
    if (!settings || (own.n_settings && !own.settings)) {
        free(settings);
        return tess__fail(settings ? TESS_E_INVALID : TESS_E_NOMEM, "tess_group_open: no settings to read");
    }
    for (uint32_t i = 0; i < own.n_settings; i++)
        settings[i] = (tess_setting){ own.settings[i].key, or_own(own.settings[i].key, own.settings[i].value) };
    memcpy(settings + own.n_settings, bare, sizeof bare);
    tess_options o = { .struct_size = sizeof o,
                       .pointer_mem = own.pointer_mem,
                       .comm = or_own("comm", own.comm),
                       .device = or_own("device", own.device),
                       .stream = own.stream,
                       .plan_only = own.plan_only || tess__option_text("plan"),
                       .ranks = own.ranks,
                       .flags = TESS_OPTIONS_WIN,
                       .n_settings = own.n_settings + N_BARE,
                       .settings = settings,
                       .group = own.group };
    tess_status s = tess__engine_open(&o, hooks, out);
    free(settings);
    return s;
}

/* ---- collectives ---- */

typedef struct {
    const char *call;
    uint64_t elems;
    uint32_t dtype;
} request;

static tess_status check_request(const tess *t, const request *r, const void *a, const void *b) {
    if (!tess_dtype_bytes(r->dtype))
        return tess__fail(TESS_E_INVALID, "%s: there is no dtype %u", r->call, r->dtype);
    if (r->elems && (!a || !b))
        return tess__fail(TESS_E_INVALID, "%s: %llu elements at a null pointer", r->call, (unsigned long long)r->elems);
    uint64_t most = t->plan.setup.most_bytes;
    if (most && r->elems > most / tess_dtype_bytes(r->dtype))
        return tess__fail(TESS_E_INVALID, "%s: %llu elements are more than comm %s moves at once (%llu bytes)", r->call,
                          (unsigned long long)r->elems, t->comms.plugin->name, (unsigned long long)most);
    return TESS_OK;
}

/* Room for the largest collective so far. */
static tess_status make_scratch(tess *t, const tess_need *need) {
    if (need->device_bytes <= t->scratch.bytes)
        return TESS_OK;
    if (t->scratch.ptr)
        tess__device_free(&t->device, &t->scratch);
    t->scratch = (tess_buffer){ .struct_size = sizeof t->scratch };
    tess_alloc_request r = { .struct_size = sizeof r,
                             .mem = t->device.mem,
                             .domain = TESS_DOMAIN_DEVICE,
                             .category = TESS_CAT_COMM,
                             .numa_node = -1,
                             .bytes = need->device_bytes,
                             .align = need->align > t->plan.setup.align ? need->align : t->plan.setup.align };
    return tess__device_alloc(&t->device, &r, &t->scratch);
}

/* Comm self does not reach every device's memory. */
static tess_status run_alone(tess *t, const request *r, const tess_collective *c) {
    uint64_t bytes = r->elems * tess_dtype_bytes(r->dtype);
    return c->send == c->recv || !bytes ? TESS_OK
                                        : tess__copy_now(t, c->recv, t->device.mem, c->send, t->device.mem, bytes);
}

static tess_status run(tess *t, const request *r, tess_collective *c) {
    char doing[96];
    tess_need need = { .struct_size = sizeof need };
    tess_plan_env env = t->plan.setup.env;
    TRY(check_request(t, r, c->send, c->recv));
    if (t->settings.plan_only)
        return TESS_OK;
    if (t->comms.world.nranks == 1)
        return run_alone(t, r, c);
    c->struct_size = sizeof *c;
    c->send_dtype = c->recv_dtype = r->dtype;
    c->send_mem = c->recv_mem = t->device.mem;
    c->count = r->elems;
    env.nranks = t->comms.world.nranks;
    if (t->comms.ops->need(t->comms.plugin->ctx, &env, c, &need))
        return tess__fail(TESS_E_UNSUPPORTED, "%s: comm %s does not offer it for %s", r->call, t->comms.plugin->name,
                          tess_dtype_name(r->dtype));
    TRY(make_scratch(t, &need));
    c->scratch = need.device_bytes ? t->scratch.ptr : NULL;
    c->scratch_bytes = need.device_bytes;
    snprintf(doing, sizeof doing, "%s of %llu %s", r->call, (unsigned long long)r->elems, tess_dtype_name(r->dtype));
    c->tag = tess__hash_u64(tess__hash_text(TESS__HASH_START, doing), (uint64_t)c->redop << 32 | (uint32_t)c->root);
    return tess__comm_run(&t->comms, TESS__WORLD, c, doing);
}

static tess_status all_reduce(tess *t, void *data, uint64_t elems, uint32_t dtype, uint32_t op) {
    static const char *const calls[] = { "", "tess_group_all_reduce (sum)", "tess_group_all_reduce (min)",
                                         "tess_group_all_reduce (max)", "tess_group_all_reduce (average)" };
    if (op < TESS_SUM || op > TESS_AVG)
        return tess__fail(TESS_E_INVALID, "tess_group_all_reduce: there is no operation %u", op);
    const request r = { calls[op], elems, dtype };
    tess_collective c = { .op = TESS_ALL_REDUCE,
                          .redop = op == TESS_AVG ? TESS_SUM : op,
                          .send = data,
                          .recv = data,
                          .scale = op == TESS_AVG ? 1.0 / t->comms.world.nranks : 1.0 };
    if (op == TESS_AVG && (dtype == TESS_U8 || dtype == TESS_I8 || dtype == TESS_I32 || dtype == TESS_I64))
        return tess__fail(TESS_E_INVALID, "tess_group_all_reduce: integers have no average");
    return run(t, &r, &c);
}

static tess_status broadcast(tess *t, void *data, uint64_t elems, uint32_t dtype, int32_t root) {
    const request r = { "tess_group_broadcast", elems, dtype };
    tess_collective c = { .op = TESS_BROADCAST, .send = data, .recv = data, .scale = 1, .root = root };
    if (root < 0 || root >= t->comms.world.nranks)
        return tess__fail(TESS_E_INVALID, "tess_group_broadcast: the root is %d, in a group of %d ranks", root,
                          t->comms.world.nranks);
    return run(t, &r, &c);
}

static tess_status move(tess *t, uint32_t op, const request *r, const void *send, void *recv) {
    tess_collective c = { .op = op, .send = send, .recv = recv, .scale = 1 };
    return run(t, r, &c);
}

/* ---- public ---- */

tess_status tess_group_close(tess_group *group) {
    return tess_close((tess *)group);
}

int32_t tess_group_rank(const tess_group *group) {
    return tess_rank((const tess *)group);
}

int32_t tess_group_ranks(const tess_group *group) {
    return tess_ranks((const tess *)group);
}

tess_status tess_group_all_reduce(tess_group *group, void *data, uint64_t elems, uint32_t dtype, uint32_t op) {
    tess *t = (tess *)group;
    TESS__PUBLIC(t, all_reduce(t, data, elems, dtype, op));
}

tess_status tess_group_broadcast(tess_group *group, void *data, uint64_t elems, uint32_t dtype, int32_t root) {
    tess *t = (tess *)group;
    TESS__PUBLIC(t, broadcast(t, data, elems, dtype, root));
}

tess_status tess_group_all_gather(tess_group *group, const void *mine, void *all, uint64_t elems, uint32_t dtype) {
    tess *t = (tess *)group;
    const request r = { "tess_group_all_gather", elems, dtype };
    TESS__PUBLIC(t, move(t, TESS_ALL_GATHER, &r, mine, all));
}

tess_status tess_group_exchange(tess_group *group, const void *send, void *recv, uint64_t elems, uint32_t dtype) {
    tess *t = (tess *)group;
    const request r = { "tess_group_exchange", elems, dtype };
    TESS__PUBLIC(t, move(t, TESS_ALL_TO_ALL, &r, send, recv));
}
