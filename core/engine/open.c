/* SPDX-License-Identifier: BSD-3-Clause */
#include "scaler.h"

#include "control/host_id.h"
#include "control/mesh.h"
#include "base/log.h"
#include "base/option_fields.h"
#include "base/options.h"
#include "readers/declaration_file.h"
#include "readers/last_run.h"
#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static tess_status join_world(tess *t) {
    tess__comms *c = &t->comms;
    TRY(tess__world_from_env(&c->world));
    if (c->world.nranks > 1) {
        tess__log_set_rank(c->world.rank);
        TRY(tess__control_join(&c->world, tess__comms_lost, c, &c->seat));
        c->control = c->seat.control;
    }
    snprintf(c->title, sizeof c->title, "engine %u", c->seat.engine);
    return TESS_OK;
}

static tess_status open_world(tess *t) {
    TRY(tess__read_group(t));
    const tess_group_options *group = t->settings.options.group;
    if (t->settings.plan_only)
        t->comms.world = (tess__world){ .nranks = group ? group->ranks : t->settings.options.ranks };
    if (t->settings.plan_only && group)
        TRY(tess__mesh_stride(group->name ? group->name : "", &t->plan.setup.stride));
    if (!t->settings.plan_only)
        TRY(join_world(t));
    tess_status s = group && !t->settings.plan_only ? tess__comms_join_group(&t->comms, group, &t->outside) : TESS_OK;
    t->mirror.rank = t->comms.world.rank;
    t->plan.setup.nranks = t->comms.world.nranks;
    return s;
}

/* Asks the ranks which of them share a host, so that every rank plans with the same hosts. Launchers do not always
 * say it, and hosts may have different numbers of ranks. */
tess_status tess__find_hosts(tess *t) {
    int32_t n = t->plan.setup.nranks;
    t->plan.setup.env.ranks_per_host = n;
    t->plan.setup.hosts = 0;
    if (!t->comms.control)
        return TESS_OK;
    uint64_t mine = tess__host_id(), *all = calloc((size_t)n, sizeof *all);
    if (!all)
        return tess__fail(TESS_E_NOMEM, "no memory to compare %d ranks", n);
    tess_status s = tess__comms_exchange(&t->comms, "the comparison of hosts", &mine, sizeof mine, all);
    if (!s) {
        t->plan.setup.env.ranks_per_host = tess__most_on_a_host(all, n);
        t->plan.setup.hosts = tess__layout_of_hosts(all, n);
    }
    free(all);
    return s;
}

static tess_status open_plugins(tess *t) {
    tess__selection *x = &t->selection;
    tess__setup *u = &t->plan.setup;
    int announce = tess__comms_rank(&t->comms, t->comms.world.rank) == 0 && !t->settings.plan_only;
    TRY(tess__selection_open(x, u->nranks, u->env.ranks_per_host, announce));
    u->comm = x->plugins[TESS_KIND_COMM]->ops;
    u->comm_ctx = x->plugins[TESS_KIND_COMM]->ctx;
    u->device = x->plugins[TESS_KIND_DEVICE]->ops;
    u->device_ctx = x->plugins[TESS_KIND_DEVICE]->ctx;
    u->precision = x->plugins[TESS_KIND_PRECISION]->ops;
    u->precision_ctx = x->plugins[TESS_KIND_PRECISION]->ctx;
    u->offload = x->plugins[TESS_KIND_OFFLOAD]->ops;
    u->offload_ctx = x->plugins[TESS_KIND_OFFLOAD]->ctx;
    u->offload_name = x->plugins[TESS_KIND_OFFLOAD]->name;
    const tess__plugin *optimizer = x->plugins[TESS_KIND_OPTIMIZER];
    if (optimizer) {
        u->optimizer = TESS__OPT_PLUGIN;
        u->step = optimizer->ops;
        u->step_ctx = optimizer->ctx;
        u->step_name = optimizer->name;
    }
    tess__device_use(&t->device, x->plugins[TESS_KIND_DEVICE]);
    tess__comms_use(&t->comms, x->plugins[TESS_KIND_COMM], &t->device);
    t->plan.wrap =
        (tess__plan_wrap){ x->plugins[TESS_KIND_WRAP]->ops, x->plugins[TESS_KIND_WRAP]->ctx, x->text[TESS_KIND_WRAP] };
    return TESS_OK;
}

/* Sets the level of the whole process, so one engine's request holds for all. */
static tess_status read_log_level(const tess *t) {
    static const char *const names[] = { "error", "warning", "info", "debug" };
    const char *level = NULL;
    tess_status s = t->settings.options.log ? tess__option_choice("log", &level) : TESS_OK;
    for (int32_t i = 0; level && i < 4; i++)
        if (strcmp(level, names[i]) == 0)
            tess__log_set_least(i);
    return s;
}

/* Takes memory kind, alignment and granularity for the plan, and refuses plugins that do not go together. */
static tess_status read_device(tess *t) {
    tess__setup *u = &t->plan.setup;
    tess_device_info info;
    tess_comm_caps caps;
    TRY(tess__device_describe(&t->device, -1, &info));
    uint32_t readable = t->settings.options.pointer_mem ? t->settings.options.pointer_mem : 1u << TESS_MEM_HOST;
    if (!(readable >> info.mem & 1))
        return tess__fail(TESS_E_UNSUPPORTED,
                          "TESSERA_DEVICE=%s: this program's kernels do not read that device's memory",
                          t->selection.text[TESS_KIND_DEVICE]);
    TRY(tess__comms_caps(&t->comms, &caps));
    if (u->nranks > 1 && !(caps.mem_mask >> info.mem & 1))
        return tess__fail(TESS_E_UNSUPPORTED, "TESSERA_COMM=%s does not reach the memory of device %s",
                          t->selection.text[TESS_KIND_COMM], t->selection.text[TESS_KIND_DEVICE]);
    u->most_bytes = caps.max_bytes;
    u->parts = (int)(caps.op_mask >> TESS_ALL_TO_ALL_V & 1);
    t->device.mem = info.mem;
    u->align = info.align > 64 ? info.align : 64;
    if (caps.align > u->align)
        u->align = caps.align;
    u->granularity = info.granularity_bytes ? info.granularity_bytes : 1;
    u->env.struct_size = sizeof u->env;
    u->env.mem = info.mem;
    u->env.nranks = u->nranks;
    u->env.in_flight = (uint32_t)u->prefetch;
    return TESS_OK;
}

/* On the host all ranks share device 0; else a rank takes the device of its LOCAL_RANK. */
int32_t tess__device_index(const tess *t) {
    return t->device.mem == TESS_MEM_HOST ? 0 : t->comms.world.local_rank;
}

static tess_status create_device(tess *t) {
    TRY(tess__device_create(&t->device, tess__device_index(t), t->plan.setup.env.device_budget_bytes,
                            t->settings.options.stream, t->plan.setup.repeats));
    return tess__streams_start(&t->streams, &t->device, &t->comms);
}

/* Each part knows those that it stands on; tess_close relies on it, also after a failure. */
static void connect_parts(tess *t) {
    t->memory.plan = &t->plan;
    t->memory.device = &t->device;
    t->memory.comms = &t->comms;
    t->memory.streams = &t->streams;
}

static tess_status start_engine(tess *t) {
    connect_parts(t);
    TRY(read_log_level(t));
    TRY(tess__read_plan(t));
    TRY(open_world(t));
    if (t->outside)
        return TESS_OK;
    TRY(tess__find_hosts(t));
    TRY(tess__read_options(t));
    t->memory.strict = t->settings.strict;
    t->comms.timeout_ns = t->settings.timeout_ns;
    TRY(open_plugins(t));
    TRY(tess__scaler_open(t));
    TRY(tess__given_check(&t->settings.given));
    int planned = t->settings.plan_only && !t->settings.options.plan_only; /* tessera plan -- PROGRAM warns itself */
    if (t->comms.world.rank == 0 && !planned)
        tess__options_warn_unknown(); /* now that the plugins' own variables are known */
    TRY(read_device(t));
    if (t->settings.plan_only)
        return TESS_OK;
    t->mirror.joins = t->plan.setup.mirror && t->comms.world.generation > 0;
    if (!t->mirror.joins) /* the ranks that are left were compared when they started */
        TRY(tess__handshake_identity(t));
    TRY(create_device(t));
    return tess__comms_create(&t->comms, &t->plan.setup);
}

tess_status tess__engine_open(const tess_options *options, const tess__hooks *hooks, tess **out) {
    tess_options own = { .struct_size = sizeof own };
    if (!out)
        return tess__fail(TESS_E_INVALID, "tess_open: there is no place for the engine pointer");
    if (options)
        TRY(tess__copy_options("tess_open", &own, sizeof own, TESS__UP_TO(tess_options, own_states), options));
    tess *t = calloc(1, sizeof *t);
    if (!t)
        return tess__fail(TESS_E_NOMEM, "no memory for the engine");
    t->hooks = hooks;
    t->settings.options = own;
    pthread_mutex_init(&t->comms.lock, NULL);
    tess__mirror_reset(&t->mirror);
    tess_status s = tess__given_of(&own, &t->settings.given);
    const tess__given *before = tess__given_use(&t->settings.given);
    tess__host_make(t);
    if (!s)
        s = start_engine(t);
    tess__given_use(before);
    if (s) {
        s = tess__engine_fail(t, s);
        tess_close(t);
        return s;
    }
    if (t->outside) {
        *out = NULL;
        return tess_close(t);
    }
    *out = t;
    return TESS_OK;
}

void tess__drop_requests(tess *t) {
    for (int32_t g = 0; t->transfers.in_flight && g < t->plan.layout.n_groups; g++) {
        tess__comm_drop(&t->comms, t->transfers.in_flight[g].gather);
        tess__comm_drop(&t->comms, t->transfers.in_flight[g].reduce);
    }
    tess__comm_drop(&t->comms, t->comms.unowned_request);
    tess__streams_drop(&t->streams);
}

void tess__close_comms(tess *t) {
    if (t->error)
        tess__comms_abort(&t->comms, t->error);
    tess__comms_withdraw(&t->comms);
    if (t->error)
        tess__streams_idle(&t->streams);
    tess__graphs_drop(&t->graphs, &t->device); /* communicators end when no graph refers to them any more */
    tess__memory_release(&t->memory, 1);
    tess__comms_destroy(&t->comms, !t->error);
}

static void free_settings(tess__settings *s) {
    free(s->strategy);
    free(s->optimizer);
    free(s->activations);
    free(s->ledger);
    free(s->detail);
    free(s->detail_values);
    tess__given_free(&s->given);
}

/* Ends the pass, the save and the group of ranks in order, while the others still listen. */
static void end_orderly(tess *t) {
    if (!t->error && t->pass.kind && t->sharded) {
        tess_status finished = tess__pass_finish(t);
        if (finished)
            tess__engine_fail(t, finished);
    }
    t->hooks->end_save(t);
    t->hooks->end_digests(t);
    if (!t->error && t->mirror.ready && t->comms.control)
        tess__control_set(t->comms.control, TESS__KV_READY, NULL, 0);
    if (t->settings.plan_only && !t->settings.options.plan_only && !t->sharded)
        tess__describe_expect(-1);
    if (!t->error && t->comms.control && t->comms.list[TESS__WORLD]) {
        char all[1 << 12];
        char mine = 0;
        tess_status closed = t->plan.setup.nranks <= (int32_t)sizeof all
                                 ? tess__comms_exchange(&t->comms, "tess_close", &mine, 1, all)
                                 : TESS_OK;
        if (closed)
            tess__engine_fail(t, closed);
    }
}

/* For the next plan of this program. */
static void keep_held(const tess *t) {
    if (!t->error && t->memory.held && t->memory.held->most && t->sharded && !t->settings.plan_only &&
        t->comms.world.rank == 0)
        tess__last_run_keep(&t->plan.model, &(tess__last_run){ t->memory.held->most, t->comms.world.nranks });
}

tess_status tess_close(tess *t) {
    if (!t)
        return TESS_OK;
    end_orderly(t);
    tess_status s = !t->error && t->device.handle ? tess__streams_sync(&t->streams) : TESS_OK;
    if (s)
        tess__engine_fail(t, s);
    s = t->error;
    keep_held(t);
    if (t->error)
        tess__comms_abort(&t->comms, t->error);
    tess__drop_requests(t);
    tess__transfers_end(t);
    tess__tracing_end(t);
    tess__close_comms(t);
    tess__control_leave(&t->comms.seat, !t->error);
    t->comms.control = NULL;
    t->hooks->end_recovery(t);
    tess__guard_destroy(t->pass.guard);
    tess__memory_free(&t->memory);
    tess__streams_end(&t->streams);
    if (t->scratch.ptr)
        tess__device_free(&t->device, &t->scratch);
    tess__device_destroy(&t->device);
    for (int32_t i = 0; t->settings.plan_only && i < t->plan.n_user; i++)
        if (t->memory.user[i].ptr)
            munmap(t->memory.user[i].ptr, t->memory.user[i].bytes);
    tess__selection_close(&t->selection);
    tess__tables_destroy(t);
    tess__plan_free(&t->plan);
    free_settings(&t->settings);
    tess__comms_leave_group(&t->comms);
    pthread_mutex_destroy(&t->comms.lock);
    free(t);
    return s;
}

int32_t tess_rank(const tess *t) {
    return t ? t->comms.world.rank : -1;
}

int32_t tess_ranks(const tess *t) {
    return t ? t->comms.world.nranks : -1;
}
