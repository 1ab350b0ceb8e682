#include "engine.h"

#include "comm_choice.h"
#include "fp_env.h"
#include "log.h"
#include "options.h"
#include "plugin_host.h"
#include "status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SECOND INT64_C(1000000000)

/* ---- errors ---- */

tess_status tess__engine_check(tess *t) {
    if (!t)
        return tess__fail(TESS_E_INVALID, "the engine pointer is null");
    return t->error ? tess__fail(t->error, "%s", t->message) : TESS_OK;
}

void tess__engine_abort_comms(tess *t, tess_status why) {
    pthread_mutex_lock(&t->comm_lock);
    for (int i = 0; i < 3; i++)
        if (t->comms[i] && (i == 0 || t->comms[i] != t->comms[0]) && TESS_CAN(tess_comm_ops, t->comm, abort))
            t->comm->abort(t->comms[i], why);
    pthread_mutex_unlock(&t->comm_lock);
}

tess_status tess__take(const char *call, void *own, uint32_t own_bytes, const void *given) {
    enum { LEAST = 8, MOST = 1 << 16 };
    uint32_t size;
    if (!given)
        return tess__fail(TESS_E_INVALID, "%s: the options are missing", call);
    memcpy(&size, given, sizeof size);
    if (size < LEAST || size > MOST || size % 4)
        return tess__fail(TESS_E_INVALID, "%s: struct_size of the options is %u; set it to sizeof of the struct (%u)",
                          call, size, own_bytes);
    memset(own, 0, own_bytes);
    memcpy(own, given, size < own_bytes ? size : own_bytes);
    memcpy(own, &own_bytes, sizeof own_bytes);
    return TESS_OK;
}

tess_status tess__callback_failed(tess_status status, uint64_t before, const char *what, const char *name) {
    if (status > 0)
        status = TESS_E_INVALID;
    if (tess__fail_count() != before)
        return status;
    return tess__fail(status, "%s \"%s\" failed with %s", what, name, tess__status_name(status));
}

/* What another rank's end can look like here; anything else is this rank's own finding. */
static int may_be_echo(tess_status s) {
    return s == TESS_E_ABORTED || s == TESS_E_PEER || s == TESS_E_TIMEOUT || s == TESS_E_SYSTEM;
}

tess_status tess__engine_fail(tess *t, tess_status status) {
    if (t->error)
        return tess__fail(t->error, "%s", t->message);
    char own[sizeof t->message];
    snprintf(own, sizeof own, "%s", tess_last_error());
    if (t->control) {
        tess__control_report(t->control, status, own);
        tess_error cause = { .struct_size = sizeof cause };
        if (may_be_echo(status) &&
            tess__control_cause(t->control, &cause)) { /* its own name: taken for lost by silence */
            int known = t->doing[t->doing_now][0] != 0;
            status = TESS_E_PEER;
            snprintf(own, sizeof own, "%s%s%s", cause.message, known ? "; this rank was in " : "",
                     t->doing[t->doing_now]);
        }
    }
    t->error = status;
    snprintf(t->message, sizeof t->message, "%s", own);
    if (t->world.nranks > 1)
        tess__engine_abort_comms(t, status);
    return tess__fail(status, "%s", t->message);
}

static void on_lost(void *user, int32_t rank, const char *why) {
    (void)rank, (void)why;
    tess__engine_abort_comms(user, TESS_E_PEER);
}

/* ---- the host table ---- */

static void host_log(void *host, int32_t level, const char *plugin, const char *message) {
    (void)host;
    tess__log(level, "%s: %s", plugin, message);
}

/* Threads are resolved here, once, so that plugins and models use the number that ranks compare. */
static const char *host_option(void *host, const char *key) {
    tess *t = host;
    return strcmp(key, "threads") == 0 && t->threads ? t->threads_text : tess__option_text(key);
}

static tess_status host_kv_set(void *host, const char *key, const void *value, uint64_t bytes) {
    tess *t = host;
    return t->control ? tess__control_set(t->control, key, value, bytes) : TESS_E_UNSUPPORTED;
}

static tess_status host_kv_get(void *host, const char *key, void *value, uint64_t *bytes, int64_t timeout_ns) {
    tess *t = host;
    return t->control ? tess__control_get(t->control, key, value, bytes, timeout_ns) : TESS_E_UNSUPPORTED;
}

static int32_t host_aborting(void *host) {
    tess *t = host;
    return t->control ? tess__control_aborting(t->control) : 0;
}

static tess_status host_mem_alloc(void *host, uint32_t domain, uint32_t category, uint64_t bytes, uint64_t align,
                                  void **out) {
    (void)host, (void)domain, (void)category;
    return posix_memalign(out, align < sizeof(void *) ? sizeof(void *) : align, bytes) ? TESS_E_NOMEM : TESS_OK;
}

static void host_mem_free(void *host, void *ptr) {
    (void)host;
    free(ptr);
}

static tess_status host_plugin_open(void *host, uint32_t kind, const char *selection, const void **ops, void **ctx,
                                    void **handle, tess_error *error) {
    tess *t = host;
    return tess__plugin_host_open(&t->host, kind, selection, ops, ctx, handle, error);
}

static void make_host(tess *t) {
    t->host = (tess_host){ .struct_size = sizeof t->host,
                           .abi_major = TESS_ABI_MAJOR,
                           .abi_minor = TESS_ABI_MINOR,
                           .host = t,
                           .log = host_log,
                           .option = host_option,
                           .kv_set = host_kv_set,
                           .kv_get = host_kv_get,
                           .aborting = host_aborting,
                           .mem_alloc = host_mem_alloc,
                           .mem_free = host_mem_free,
                           .args = "",
                           .helper_cpus = "",
                           .numa_node = -1,
                           .max_helper_threads = -1,
                           .plugin_open = host_plugin_open,
                           .plugin_close = tess__plugin_host_close };
    const char *cpus = tess__option_text("helper-cpus");
    if (cpus)
        t->host.helper_cpus = cpus;
}

/* ---- plugins ---- */

/* The environment wins over the program's options, those over the default. */
static const char *pick(const char *key, const char *option, const char *fallback) {
    const char *text = tess__option_text(key);
    return text ? text : option && option[0] ? option : fallback;
}

/* comm=auto: one rank needs no network; else what is fastest between these ranks. */
static tess_status pick_comm(tess *t, const char **selection, char name[32]) {
    if (strcmp(*selection, "auto") != 0)
        return TESS_OK;
    tess_device_info info = { .struct_size = sizeof info };
    tess_error e = { .struct_size = sizeof e };
    const tess__plugin *device = t->plugins[TESS_KIND_DEVICE];
    const tess_device_ops *ops = device->ops;
    tess_status s = ops->describe(device->ctx, -1, &info, &e);
    if (s)
        return tess__plugin_failed(s, TESS_KIND_DEVICE, device, &e);
    tess_plan_env env = { .struct_size = sizeof env,
                          .mem = info.mem,
                          .nranks = t->setup.nranks,
                          .ranks_per_host = t->setup.env.ranks_per_host };
    s = tess__comm_choose(&t->host, &env, name);
    if (s)
        return s;
    if (env.nranks > 1 && t->world.rank == 0 && !t->plan_only)
        tess__log(TESS_LOG_INFO, "comm=auto picked %s for %d ranks, %d of them on one host", name, env.nranks,
                  env.ranks_per_host);
    *selection = name;
    t->comm_picked = 1;
    return TESS_OK;
}

static tess_status open_plugin(tess *t, uint32_t kind, const char *option, const char *fallback) {
    char picked[32];
    const char *selection = pick(tess__kind_name(kind), option, fallback);
    tess_status s = kind == TESS_KIND_COMM ? pick_comm(t, &selection, picked) : TESS_OK;
    if (s)
        return s;
    t->selected[kind] = strdup(selection);
    if (!t->selected[kind])
        return tess__fail(TESS_E_NOMEM, "no memory for the name of a plugin");
    return tess__plugin_open(kind, selection, &t->host, &t->plugins[kind]);
}

static tess_status open_plugins(tess *t) {
    const tess_options *o = &t->options;
    tess_status s = open_plugin(t, TESS_KIND_DEVICE, o->device, "cpu");
    if (!s)
        s = open_plugin(t, TESS_KIND_COMM, o->comm, "auto");
    if (!s)
        s = open_plugin(t, TESS_KIND_PRECISION, o->precision, "fp32");
    if (!s)
        s = open_plugin(t, TESS_KIND_OFFLOAD, o->offload, "none");
    if (!s)
        s = open_plugin(t, TESS_KIND_WRAP, o->wrap, "scopes");
    if (s)
        return s;
    t->comm = t->plugins[TESS_KIND_COMM]->ops;
    t->dev = t->plugins[TESS_KIND_DEVICE]->ops;
    t->setup.comm = t->comm;
    t->setup.comm_ctx = t->plugins[TESS_KIND_COMM]->ctx;
    t->setup.device = t->dev;
    t->setup.device_ctx = t->plugins[TESS_KIND_DEVICE]->ctx;
    t->setup.precision = t->plugins[TESS_KIND_PRECISION]->ops;
    t->setup.precision_ctx = t->plugins[TESS_KIND_PRECISION]->ctx;
    t->setup.offload = t->plugins[TESS_KIND_OFFLOAD]->ops;
    t->setup.offload_ctx = t->plugins[TESS_KIND_OFFLOAD]->ctx;
    return TESS_OK;
}

/* ---- options ---- */

/* A rank's share of the cores of its host. */
static int64_t default_threads(const tess *t) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int32_t ranks = t->world.local_nranks > 0 ? t->world.local_nranks : t->world.nranks;
    return cores > ranks ? cores / ranks : 1;
}

static tess_status read_switches(tess *t) {
    tess__setup *s = &t->setup;
    int64_t accum = t->options.accum > 0 ? t->options.accum : 1;
    const char *activations = "keep", *sync = "each";
    double timeout = 300;
    tess_status status = tess__option_int("accum", 1, 1 << 14, &accum);
    if (!status)
        status = tess__option_choice("sync", &sync);
    if (!status)
        status = tess__option_choice("activations", &activations);
    if (!status)
        status = tess__option_flag("deterministic", &s->deterministic);
    if (!status)
        status = tess__option_flag("strict", &t->strict);
    if (!status)
        status = tess__option_real("timeout", &timeout);
    const char *prefetch = tess__option_text("prefetch");
    int64_t depth = 1;
    if (!status && prefetch && strcmp(prefetch, "auto") != 0)
        status = tess__option_int("prefetch", 0, 8, &depth);
    if (status)
        return status;
    int64_t threads = s->deterministic ? 1 : default_threads(t);
    if ((status = tess__option_int("threads", 1, 1024, &threads)))
        return status;
    t->threads = (int32_t)threads;
    snprintf(t->threads_text, sizeof t->threads_text, "%d", t->threads);
    s->accum = (int32_t)accum;
    s->sync_each = strcmp(sync, "each") == 0;
    s->prefetch = (int32_t)depth;
    s->input_bytes = t->options.input_bytes;
    t->timeout_ns = (int64_t)(timeout * (double)SECOND);
    if (strcmp(activations, "recompute") == 0)
        s->activations = TESS__ACTIVATIONS_RECOMPUTE;
    else if (strcmp(activations, "offload") == 0)
        s->activations = TESS__ACTIVATIONS_OFFLOAD;
    return TESS_OK;
}

static tess_status read_budget(tess *t) {
    tess_plan_env *e = &t->setup.env;
    e->device_budget_bytes = t->options.device_memory_bytes;
    tess_status s = tess__option_bytes("device-memory", &e->device_budget_bytes);
    return s ? s : tess__option_bytes("host-memory", &e->host_budget_bytes);
}

static tess_status read_options(tess *t) {
    tess_status s = read_switches(t);
    if (!s)
        s = read_budget(t);
    t->strategy = strdup(pick("strategy", t->options.strategy, "full"));
    t->optimizer = strdup(pick("optimizer", t->options.optimizer, "adamw"));
    if (!s && (!t->strategy || !t->optimizer))
        s = tess__fail(TESS_E_NOMEM, "no memory for the options");
    if (!s)
        s = tess__setup_strategy(&t->setup, t->strategy);
    return s ? s : tess__setup_optimizer(&t->setup, t->optimizer, t->options.momentum != 0);
}

/* ---- device and communicators ---- */

static tess_status describe_device(tess *t) {
    tess_device_info info = { .struct_size = sizeof info };
    tess_error e = { .struct_size = sizeof e };
    tess_status s = t->dev->describe(t->setup.device_ctx, -1, &info, &e);
    if (s)
        return tess__plugin_failed(s, TESS_KIND_DEVICE, t->plugins[TESS_KIND_DEVICE], &e);
    uint32_t readable = t->options.pointer_mem ? t->options.pointer_mem : 1u << TESS_MEM_HOST;
    if (!(readable >> info.mem & 1))
        return tess__fail(TESS_E_UNSUPPORTED,
                          "TESSERA_DEVICE=%s: this program's kernels do not read that device's memory",
                          t->selected[TESS_KIND_DEVICE]);
    tess_comm_caps caps = { .struct_size = sizeof caps };
    if ((s = t->comm->query(t->setup.comm_ctx, NULL, &caps)))
        return tess__fail(s, "comm %s cannot say what it needs", t->plugins[TESS_KIND_COMM]->name);
    if (t->setup.nranks > 1 && !(caps.mem_mask >> info.mem & 1))
        return tess__fail(TESS_E_UNSUPPORTED, "TESSERA_COMM=%s does not reach the memory of device %s",
                          t->selected[TESS_KIND_COMM], t->selected[TESS_KIND_DEVICE]);
    t->setup.align = info.align > 64 ? info.align : 64;
    if (caps.align > t->setup.align)
        t->setup.align = caps.align;
    t->setup.granularity = info.granularity_bytes ? info.granularity_bytes : 1;
    t->setup.env.struct_size = sizeof t->setup.env;
    t->setup.env.mem = info.mem;
    t->setup.env.nranks = t->setup.nranks;
    t->setup.env.in_flight = (uint32_t)t->setup.prefetch;
    return TESS_OK;
}

static tess_status create_device(tess *t) {
    tess_error e = { .struct_size = sizeof e };
    /* The host's memory is one device for all its ranks; else a rank takes the device of its LOCAL_RANK. */
    int32_t index = t->setup.env.mem == TESS_MEM_HOST ? 0 : t->world.local_rank;
    tess_status s = t->dev->create(t->setup.device_ctx, index, t->setup.env.device_budget_bytes, &t->device, &e);
    if (s)
        return tess__plugin_failed(s, TESS_KIND_DEVICE, t->plugins[TESS_KIND_DEVICE], &e);
    t->compute = (tess_stream){ .mem = t->setup.env.mem, .handle = t->options.stream };
    int own = t->setup.env.mem == TESS_MEM_HOST && !t->options.stream; /* else null is the device's default queue */
    if (own && TESS_CAN(tess_device_ops, t->dev, stream_create))
        s = t->dev->stream_create(t->device, TESS_STREAM_COMPUTE, &t->compute, &e);
    else if (!own && TESS_CAN(tess_device_ops, t->dev, stream_import))
        s = t->dev->stream_import(t->device, t->options.stream, &t->compute, &e);
    return s ? tess__plugin_failed(s, TESS_KIND_DEVICE, t->plugins[TESS_KIND_DEVICE], &e) : tess__queues_start(t);
}

/* Puts a new communicator in its place, unless a rank was lost meanwhile. */
static tess_status keep_comm(tess *t, int which, tess_comm *comm) {
    pthread_mutex_lock(&t->comm_lock);
    t->comms[which] = comm;
    pthread_mutex_unlock(&t->comm_lock);
    if (t->control && tess__control_aborting(t->control)) {
        tess__engine_abort_comms(t, TESS_E_PEER);
        return tess__fail(TESS_E_PEER, "a rank was lost while communicators were made");
    }
    return TESS_OK;
}

static tess_comm_config config_of(const tess *t, int32_t rank, int32_t nranks, const char *group) {
    return (tess_comm_config){ .struct_size = sizeof(tess_comm_config),
                               .rank = rank,
                               .nranks = nranks,
                               .local_rank = t->world.local_rank,
                               .device = t->setup.env.mem == TESS_MEM_HOST ? -1 : t->world.local_rank,
                               .group = group,
                               .timeout_ns = t->timeout_ns };
}

static tess_status split(tess *t, int which, int32_t color, int32_t key, int32_t nranks, const char *group) {
    tess_error e = { .struct_size = sizeof e };
    tess_comm *comm = NULL;
    tess_comm_config c = config_of(t, key, nranks, group);
    if (!TESS_CAN(tess_comm_ops, t->comm, split))
        return tess__fail(TESS_E_UNSUPPORTED, "TESSERA_STRATEGY: comm %s cannot split, which hybrid sharding needs",
                          t->plugins[TESS_KIND_COMM]->name);
    tess_status s = t->comm->split(t->comms[TESS__WORLD], color, key, &c, &comm, &e);
    return s ? tess__plugin_failed(s, TESS_KIND_COMM, t->plugins[TESS_KIND_COMM], &e) : keep_comm(t, which, comm);
}

static tess_status create_comms(tess *t) {
    const tess__setup *u = &t->setup;
    tess_error e = { .struct_size = sizeof e };
    tess_comm_config c = config_of(t, t->world.rank, u->nranks, "world");
    tess_comm *comm = NULL;
    snprintf(t->doing[t->doing_now], sizeof t->doing[0], "the start of comm %s", t->plugins[TESS_KIND_COMM]->name);
    tess_status s = t->comm->init(u->comm_ctx, &c, &comm, &e);
    if (s)
        return tess__plugin_failed(s, TESS_KIND_COMM, t->plugins[TESS_KIND_COMM], &e);
    if ((s = keep_comm(t, TESS__WORLD, comm)))
        return s;
    t->shard_rank = t->world.rank % u->shard_ranks;
    t->replica_rank = t->world.rank / u->shard_ranks;
    if (u->shard_ranks == u->nranks)
        t->comms[TESS__SHARD] = comm;
    else if (u->shard_ranks > 1 && (s = split(t, TESS__SHARD, t->replica_rank, t->shard_rank, u->shard_ranks, "shard")))
        return s;
    if (u->replicas == u->nranks)
        t->comms[TESS__REPLICA] = comm;
    else if (u->replicas > 1 && (s = split(t, TESS__REPLICA, t->shard_rank, t->replica_rank, u->replicas, "replica")))
        return s;
    t->doing[t->doing_now][0] = 0;
    return TESS_OK;
}

/* ---- open and close ---- */

static tess_status open_world(tess *t) {
    tess_status s = TESS_OK;
    if (t->plan_only) {
        t->world = (tess__world){ .nranks = t->options.ranks };
    } else if ((s = tess__world_from_env(&t->world))) {
        return s;
    } else if (t->world.nranks > 1) {
        tess__log_set_rank(t->world.rank);
        if ((s = tess__control_open(&t->world, &t->control)))
            return s;
        tess__control_on_lost(t->control, on_lost, t);
    }
    t->setup.nranks = t->world.nranks;
    return s;
}

/* Launchers do not always say who shares a host, and hosts may have different numbers of ranks: looked up, so that
 * every rank plans with the same. */
static tess_status find_hosts(tess *t) {
    int32_t n = t->setup.nranks;
    t->setup.env.ranks_per_host = n;
    if (!t->control)
        return TESS_OK;
    uint64_t mine = tess__host_id(), *all = calloc((size_t)n, sizeof *all);
    if (!all)
        return tess__fail(TESS_E_NOMEM, "no memory to compare %d ranks", n);
    tess_status s = tess__engine_exchange(t, "the comparison of hosts", &mine, sizeof mine, all);
    if (!s)
        t->setup.env.ranks_per_host = tess__most_on_a_host(all, n);
    free(all);
    return s;
}

static tess_status read_plan(tess *t) {
    int64_t ranks = t->options.ranks > 0 ? t->options.ranks : 1;
    tess_status s = TESS_OK;
    t->plan_only = t->options.plan_only != 0;
    if (!t->plan_only && tess__option_text("plan")) {
        t->plan_only = 1;
        s = tess__option_int("plan", 1, INT32_MAX, &ranks);
    }
    t->options.ranks = (int32_t)ranks;
    return s;
}

static tess_status start(tess *t) {
    tess_status s = read_plan(t);
    if (!s)
        s = open_world(t);
    if (!s)
        s = find_hosts(t);
    if (!s)
        s = read_options(t);
    if (!s)
        s = open_plugins(t);
    if (!s && t->world.rank == 0)
        tess__options_warn_unknown(); /* now that the plugins' own variables are known */
    if (!s)
        s = describe_device(t);
    if (s || t->plan_only)
        return s;
    s = tess__handshake_identity(t);
    if (!s)
        s = create_device(t);
    return s ? s : create_comms(t);
}

tess_status tess_open(const tess_options *options, tess **out) {
    tess_options own = { .struct_size = sizeof own };
    if (!out)
        return tess__fail(TESS_E_INVALID, "tess_open: there is no place for the engine pointer");
    tess_status s = options ? tess__take("tess_open", &own, sizeof own, options) : TESS_OK;
    if (s)
        return s;
    tess *t = calloc(1, sizeof *t);
    if (!t)
        return tess__fail(TESS_E_NOMEM, "no memory for the engine");
    t->options = own;
    pthread_mutex_init(&t->comm_lock, NULL);
    make_host(t);
    s = start(t);
    if (s) {
        s = tess__engine_fail(t, s);
        tess_close(t);
        return s;
    }
    *out = t;
    return TESS_OK;
}

static void free_arenas(tess *t, int of_comm) {
    for (uint32_t d = 1; d < 3; d++)
        for (uint32_t a = TESS__RESIDENT; a <= TESS__PAGEABLE; a++)
            if (!t->arenas[d][a].comm == !of_comm)
                tess__arena_release(t, d, a);
}

static void free_memory(tess *t) {
    for (int32_t i = 0; i < t->n_overflow; i++)
        t->dev->mem_free(t->device, &t->overflow[i].memory);
    for (int32_t i = 0; i < t->n_user; i++)
        if (t->user_buffers[i].ptr)
            t->dev->mem_free(t->device, &t->user_buffers[i]);
    free_arenas(t, 0);
    free(t->overflow);
}

/* Aborts every communicator before freeing any, and lets requests end before their memory goes. What a communicator
 * allocated goes before it. */
static void close_comms(tess *t) {
    int orderly = !t->error;
    tess_comm *comms[3];
    if (!orderly)
        tess__engine_abort_comms(t, t->error);
    pthread_mutex_lock(&t->comm_lock);
    memcpy(comms, t->comms, sizeof comms);
    memset(t->comms, 0, sizeof t->comms);
    pthread_mutex_unlock(&t->comm_lock);
    for (int i = 2; i > 0; i--)
        if (comms[i] == comms[0])
            comms[i] = NULL;
    for (int i = 2; orderly && i >= 0; i--) {
        tess_error e = { .struct_size = sizeof e };
        if (comms[i] && TESS_CAN(tess_comm_ops, t->comm, finalize))
            t->comm->finalize(comms[i], 5 * SECOND, &e);
    }
    free_arenas(t, 1);
    for (int i = 2; i >= 0; i--)
        if (comms[i])
            t->comm->destroy(comms[i]);
}

static void drop_requests(tess *t) {
    for (int32_t g = 0; t->state && g < t->layout.n_groups; g++) {
        tess__in_flight *s = &t->state[g];
        tess_error e = { .struct_size = sizeof e };
        if (s->gather && t->comm->wait(s->gather, 5 * SECOND, &e) != TESS_E_TIMEOUT)
            t->comm->request_free(s->gather);
        if (s->reduce && t->comm->wait(s->reduce, 5 * SECOND, &e) != TESS_E_TIMEOUT)
            t->comm->request_free(s->reduce);
    }
    tess_error e = { .struct_size = sizeof e };
    if (t->loose && t->comm->wait(t->loose, 5 * SECOND, &e) != TESS_E_TIMEOUT)
        t->comm->request_free(t->loose);
    for (tess__queues *q = &t->queues; q->n_retired > 0; q->n_retired--) {
        tess_request *r = q->retired[q->first_retired].request;
        q->first_retired = (q->first_retired + 1) % TESS__RETIRED;
        if (t->comm->wait(r, 5 * SECOND, &e) != TESS_E_TIMEOUT)
            t->comm->request_free(r);
    }
}

static void free_tables(tess *t) {
    for (int role = 0; role < TESS__N_ROLES; role++) {
        free(t->where[role]);
        free(t->booked[role]);
        free(t->taken[role]);
    }
    for (int i = 0; i < TESS__N_PROGRAMS; i++)
        tess__program_free(&t->programs[i]);
    tess__program_free(&t->resident);
    tess__program_free(&t->departed);
    tess__heap_free_all(&t->heap);
    tess__ledger_free(&t->ledger);
    tess__needs_free(&t->needs);
    free(t->kept);
    tess__builder_free(&t->builder);
    tess__layout_free(&t->layout);
    tess__model_free(&t->model);
    free(t->state);
    free(t->entered);
    free(t->segments);
    free(t->first_segment);
    free(t->segment_group);
    free(t->block_params);
    free(t->block_grads);
    for (int i = 0; i < 6; i++)
        free(t->selected[i]);
    free(t->strategy);
    free(t->optimizer);
}

tess_status tess_close(tess *t) {
    if (!t)
        return TESS_OK;
    if (!t->error && t->pass && t->sharded) {
        tess_status finished = tess__pass_finish(t);
        if (finished)
            tess__engine_fail(t, finished);
    }
    if (!t->error && t->control && t->comms[TESS__WORLD]) {
        char all[1 << 12];
        char mine = 0;
        tess_status closed =
            t->setup.nranks <= (int32_t)sizeof all ? tess__engine_exchange(t, "tess_close", &mine, 1, all) : TESS_OK;
        if (closed)
            tess__engine_fail(t, closed);
    }
    tess_status s = !t->error && t->device ? tess__device_sync(t) : TESS_OK;
    if (s)
        tess__engine_fail(t, s);
    s = t->error;
    if (t->error)
        tess__engine_abort_comms(t, t->error);
    drop_requests(t);
    tess__moves_end(t);
    tess__tracing_end(t);
    close_comms(t);
    if (t->control) {
        tess__control_on_lost(t->control, NULL, NULL);
        tess__control_close(t->control, !t->error);
        t->control = NULL;
    }
    if (t->device) {
        free_memory(t);
        tess__queues_end(t);
        if (t->compute.handle && !t->options.stream && TESS_CAN(tess_device_ops, t->dev, stream_destroy))
            t->dev->stream_destroy(t->device, &t->compute);
        t->dev->destroy(t->device);
    }
    for (int32_t i = 0; t->plan_only && i < t->n_user; i++)
        if (t->user_buffers[i].ptr)
            munmap(t->user_buffers[i].ptr, t->user_buffers[i].bytes);
    for (int kind = 1; kind < 6; kind++)
        tess__plugin_close(t->plugins[kind]);
    free_tables(t);
    pthread_mutex_destroy(&t->comm_lock);
    free(t);
    return s;
}

int32_t tess_rank(const tess *t) {
    return t ? t->world.rank : -1;
}

int32_t tess_ranks(const tess *t) {
    return t ? t->world.nranks : -1;
}

/* ---- describe ---- */

#define DESCRIBE(call)                                                                                                 \
    do {                                                                                                               \
        tess_status status = tess__engine_check(t);                                                                    \
        if (!status)                                                                                                   \
            status = (call);                                                                                           \
        return status && !t->error ? tess__engine_fail(t, status) : status;                                            \
    } while (0)

tess_status tess_scope_add(tess *t, const char *name, int64_t stack, tess_scope *first) {
    DESCRIBE(tess__model_add_scope(&t->model, name, stack, first));
}

static tess_status add_param(tess *t, tess_param_options *o, const tess_param_options *given, tess_param *first) {
    tess_status s = tess__take("tess_param_add", o, sizeof *o, given);
    return s ? s : tess__model_add_param(&t->model, o, first);
}

static tess_status add_block(tess *t, tess_block_options *o, const tess_block_options *given, tess_scope *scope) {
    tess_status s = tess__take("tess_block_add", o, sizeof *o, given);
    return s ? s : tess__model_add_block(&t->model, o, scope);
}

tess_status tess_param_add(tess *t, const tess_param_options *options, tess_param *first) {
    tess_param_options o;
    DESCRIBE(add_param(t, &o, options, first));
}

tess_status tess_param_tie(tess *t, const char *alias, const char *of) {
    DESCRIBE(tess__model_tie(&t->model, alias, of));
}

tess_status tess_block_add(tess *t, const tess_block_options *options, tess_scope *scope) {
    tess_block_options o;
    DESCRIBE(add_block(t, &o, options, scope));
}
