/* SPDX-License-Identifier: BSD-3-Clause */
/* comm-hosts: the vtable of tessera/plugin.h over two other comm plugins, one within a host and one between hosts. */
#include "communicator.h"

#include <stdlib.h>
#include <sys/mman.h>

TESS_DESCRIPTOR(1u << TESS_KIND_COMM, "hosts", TESSERA_PLUGIN_VERSION, "BSD-3-Clause", "two other comm plugins");

TESS_OPTIONS(options) = {
    { sizeof options[0], TESS_OPTION_INT, 0, 4096, "hosts-ranks", "0", "",
      "for tests on one host: so many neighbours count as a host" },
};

/* ---- what it can do ------------------------------------------------------------------------------- */

static tess_comm_caps caps_of(const hosts_under *u) {
    tess_comm_caps caps = { .struct_size = sizeof caps };
    if (u->ops->query(u->ctx, NULL, &caps) != TESS_OK)
        caps.caps = 0;
    return caps;
}

static tess_status hosts_query(void *ctx, tess_comm *comm, tess_comm_caps *out) {
    const hosts_plugin *p = ctx;
    (void)comm;
    tess_comm_caps a = caps_of(&p->within), b = caps_of(&p->between), both = b;
    both.caps = TESS_COMM_THREAD_MULTIPLE | TESS_COMM_ABORT | TESS_COMM_SPLIT | TESS_COMM_BATCH | TESS_COMM_TREE_ORDER;
    both.op_mask &= a.op_mask;
    both.redop_mask &= a.redop_mask;
    both.dtype_mask &= a.dtype_mask;
    both.mem_mask = 1u << TESS_MEM_HOST | 1u << TESS_MEM_PINNED;
    both.align = a.align > b.align ? a.align : b.align;
    snprintf(both.wire_id, sizeof both.wire_id, "hosts/1 %.24s %.24s", a.wire_id, b.wire_id);
    TESS_GIVE(out, &both);
    return TESS_OK;
}

/* Returns the ranks per host that the plan assumes (the last host may have fewer), or 0 if they fit no tree. */
static int32_t planned_each(const hosts_plugin *p, const tess_plan_env *env) {
    int32_t each = p->pretend ? p->pretend : env->ranks_per_host;
    return hosts_fit_tree(env->nranks, each) ? each : 0;
}

static tess_status hosts_need(void *ctx, const tess_plan_env *env, const tess_collective *call, tess_need *out) {
    const hosts_plugin *p = ctx;
    tess_collective c = kit_take_call(call, call->struct_size);
    tess_need within = { .struct_size = sizeof within }, between = { .struct_size = sizeof between };
    const int32_t each = planned_each(p, env);
    tess_plan_env host = { .struct_size = sizeof host, .mem = env->mem, .nranks = each ? each : 1, .in_flight = 1 };
    if (env->nranks < 1 || c.root < 0 || c.root >= env->nranks)
        return TESS_E_UNSUPPORTED;
    c.root = 0; /* the parts count ranks of their own */
    if (p->between.ops->need(p->between.ctx, env, &c, &between) != TESS_OK ||
        p->within.ops->need(p->within.ctx, &host, &c, &within) != TESS_OK)
        return TESS_E_UNSUPPORTED;
    if (each) {
        const hosts_scratch two = hosts_scratch_of(p, env, &c, env->nranks, each);
        if (two.own && two.own + two.under > between.device_bytes)
            between.device_bytes = two.own + two.under;
    }
    between.align = 64;
    between.backend_bytes = 2 * between.backend_bytes + within.backend_bytes;
    TESS_GIVE(out, &between);
    return TESS_OK;
}

/* Uses the core's network model: 1 GB/s per host plus 50 µs per collective; each byte crosses it once. Without two
 * steps, groups within a host may still gain. */
static tess_status hosts_cost(void *ctx, const tess_plan_env *env, const tess_collective *call, int64_t *ns) {
    const hosts_plugin *p = ctx;
    const tess_collective c = kit_take_call(call, call->struct_size);
    const int32_t each = planned_each(p, env);
    const double bytes = (double)kit_bytes(&c), w = env->nranks;
    if (env->ranks_per_host <= 1 || env->ranks_per_host >= env->nranks)
        return TESS_E_UNSUPPORTED;
    const double crossing = bytes * (each ? w - each : (w - 1) * env->ranks_per_host);
    *ns = (int64_t)((each ? 100000 : 49999) + crossing + (each ? 2 * w * each * bytes / 12 : 0));
    return TESS_OK;
}

/* ---- making ---------------------------------------------------------------------------------------- */

static tess_comm_config part_config(const tess_comm_config *from, int32_t rank, int32_t nranks, const char *group) {
    tess_comm_config c = { .struct_size = sizeof c, .timeout_ns = from->timeout_ns, .device = -1 };
    c.rank = rank;
    c.nranks = nranks;
    c.local_rank = rank;
    c.group = group;
    return c;
}

/* The part's message counts its own ranks. */
static tess_status fail_init(const tess_comm *c, int which, const char *name, tess_error *cause, tess_status s,
                             tess_error *e) {
    const int32_t rank = hosts_rank_of(c, which, cause->rank);
    const size_t length = strlen(cause->message);
    if (rank != cause->rank)
        snprintf(cause->message + length, sizeof cause->message - length,
                 " (of the group \"%s\", whose rank %d is rank %d)", name, (int)cause->rank, (int)rank);
    return tess_plugin_fail_of(e, s, rank, "%s", cause->message);
}

static tess_status make_part(tess_comm *c, int which, const tess_comm_config *from, int32_t rank, int32_t nranks,
                             const char *name, tess_error *e) {
    const hosts_under *u = which == HOSTS_LOCAL ? &c->plugin->within : &c->plugin->between;
    char group[256];
    snprintf(group, sizeof group, "%.180s/%s", c->prefix, name);
    const tess_comm_config config = part_config(from, rank, nranks, group);
    tess_comm *part = NULL;
    tess_error cause = { .struct_size = sizeof cause, .rank = -1 };
    tess_status s = u->ops->init(u->ctx, &config, &part, &cause);
    return s < 0 ? fail_init(c, which, name, &cause, s, e) : hosts_comm_take(c, which, u, part, e);
}

static int32_t first_of_host(const tess_comm *c) {
    int32_t r = 0;
    while (c->ids[r] != c->ids[c->rank])
        r++;
    return r;
}

static tess_status make_rails(tess_comm *c, const tess_comm_config *config, tess_error *e) {
    const hosts_layout *l = &c->layout;
    tess_status s = TESS_OK;
    for (int32_t round = 0; round < hosts_rounds(l, l->host) && s == TESS_OK; round++) {
        const int32_t rail = hosts_rail(l, l->host, l->local, round);
        char name[32];
        snprintf(name, sizeof name, "rail%d", (int)rail);
        if (rail >= 0)
            s = make_part(c, HOSTS_RAIL + round, config, l->host, l->hosts, name, e);
    }
    return s;
}

static tess_status make_local(tess_comm *c, const tess_comm_config *config, tess_error *e) {
    char name[32];
    snprintf(name, sizeof name, "host%d", (int)first_of_host(c));
    return make_part(c, HOSTS_LOCAL, config, c->layout.local, c->layout.sharing, name, e);
}

static tess_status make_parts(tess_comm *c, const tess_comm_config *config, tess_error *e) {
    const hosts_layout *l = &c->layout;
    tess_status s = TESS_OK;
    if (l->kind != HOSTS_ONE)
        s = make_part(c, HOSTS_WHOLE, config, c->rank, c->size, "whole", e);
    if (s == TESS_OK && (l->kind != HOSTS_FLAT || l->sharing > 1))
        s = make_local(c, config, e);
    return s == TESS_OK && l->kind == HOSTS_TWO_STEPS ? make_rails(c, config, e) : s;
}

static void log_layout(const tess_comm *c) {
    const hosts_plugin *p = c->plugin;
    char fewer[40] = "";
    if (c->layout.last < c->layout.each)
        snprintf(fewer, sizeof fewer, ", the last of %d", (int)c->layout.last);
    if (c->rank == 0 && c->layout.kind == HOSTS_TWO_STEPS)
        kit_log(p->host, 2, "comm hosts", "%d hosts of %d ranks%s: %s within, %s between them", (int)c->layout.hosts,
                (int)c->layout.each, fewer, p->names[0], p->names[1]);
    else if (c->rank == 0 && c->layout.why)
        kit_log(p->host, 2, "comm hosts", "%s alone between all %d ranks: %s", p->names[1], (int)c->size,
                c->layout.why);
}

/* Collects the host of every rank from the key-value store. */
static tess_status find_hosts(const hosts_plugin *p, const tess_comm_config *config, uint64_t *ids, tess_error *e) {
    const kit_joining j = kit_joining_begin(p->host, "hosts", config->group, config->timeout_ns);
    uint64_t mine = p->pretend ? (uint64_t)(config->rank / p->pretend) : hosts_id();
    tess_status s = kit_joining_set(&j, "hosts", config->rank, &mine, sizeof mine, e);
    for (int32_t r = 0; r < config->nranks && s == TESS_OK; r++)
        s = kit_joining_get(&j, "hosts", r, &ids[r], sizeof ids[r], e);
    return s;
}

static tess_status open_comm(const hosts_plugin *p, const tess_comm_config *config, const uint64_t *ids,
                             tess_comm **out, tess_error *e) {
    tess_comm *c = NULL;
    tess_status s = hosts_comm_new(p, config->rank, config->nranks, ids, config->group, &c, e);
    if (s == TESS_OK)
        s = make_parts(c, config, e);
    if (s == TESS_OK)
        s = hosts_comm_start(c, e);
    if (s < 0) {
        hosts_comm_destroy(c);
        return s;
    }
    log_layout(c);
    *out = c;
    return TESS_OK;
}

static tess_status hosts_init(void *ctx, const tess_comm_config *config, tess_comm **out, tess_error *e) {
    tess_status s = kit_check_place("hosts", config, e);
    if (s < 0)
        return s;
    uint64_t *ids = calloc((size_t)config->nranks, sizeof *ids);
    if (!ids)
        return tess_plugin_fail(e, TESS_E_NOMEM, "hosts: no memory for %d ranks", (int)config->nranks);
    s = find_hosts(ctx, config, ids, e);
    if (s == TESS_OK)
        s = open_comm(ctx, config, ids, out, e);
    free(ids);
    return s;
}

/* ---- split ---------------------------------------------------------------------------------------- */

/* Splits one part of the child off the parent's part. All ranks of that part call it; with color -1 a rank gets none.
 */
static tess_status split_part(tess_comm *parent, int from, tess_comm *child, int to, int32_t color, int32_t key,
                              const tess_comm_config *config, tess_error *e) {
    const hosts_part *part = &parent->parts[from];
    tess_comm *made = NULL;
    tess_status s = part->ops->split(part->comm, color, key, config, &made, e);
    if (s < 0 || !made)
        return s;
    return hosts_comm_take(child, to, from == HOSTS_LOCAL ? &parent->plugin->within : &parent->plugin->between, made,
                           e);
}

/* The round in which this rank joins `rail`, as all ranks of the rail see it: that of the last host. */
static int32_t split_color(const hosts_layout *l, int32_t round) {
    const int32_t last = l->hosts - 1;
    if (l->host == last)
        return hosts_rail(l, last, l->local, round);
    return hosts_round_of(l, last, l->local) == round ? l->local : -1;
}

static tess_status split_rails(tess_comm *c, const tess_comm_config *config, tess_error *e) {
    const hosts_layout *l = &c->layout;
    if (l->kind != HOSTS_TWO_STEPS)
        return TESS_OK;
    char group[256];
    snprintf(group, sizeof group, "%.180s/rail", c->prefix);
    const tess_comm_config rail = part_config(config, l->host, l->hosts, group);
    tess_status s = TESS_OK;
    for (int32_t round = 0; round < hosts_rounds(l, l->hosts - 1) && s == TESS_OK; round++) {
        const int32_t mine = l->host == l->hosts - 1 ? round : 0;
        s = split_part(c, HOSTS_WHOLE, c, HOSTS_RAIL + mine, split_color(l, round), l->host, &rail, e);
    }
    return s;
}

static tess_status split_parts(tess_comm *parent, tess_comm *child, int32_t color, const tess_comm_config *config,
                               tess_error *e) {
    const int is_one = child && child->layout.kind == HOSTS_ONE && parent->parts[HOSTS_LOCAL].comm != NULL;
    const int whole = child && !is_one, local = child && (is_one || child->layout.sharing > 1);
    tess_status s = TESS_OK;
    if (parent->parts[HOSTS_WHOLE].comm)
        s = split_part(parent, HOSTS_WHOLE, child, HOSTS_WHOLE, whole ? color : -1, child ? child->rank : 0, config, e);
    if (s == TESS_OK && parent->parts[HOSTS_LOCAL].comm)
        s = split_part(parent, HOSTS_LOCAL, child, HOSTS_LOCAL, local ? color : -1, child ? child->rank : 0, config, e);
    if (s == TESS_OK && child && child->layout.kind == HOSTS_TWO_STEPS && child->layout.sharing == 1)
        s = make_local(child, config, e); /* alone on the last host: there may be nothing to split */
    return s == TESS_OK && child ? split_rails(child, config, e) : s;
}

/* A group of one rank that shares its host with nobody has no part within it. */
static void settle_layout(tess_comm *c) {
    if (!c->parts[HOSTS_LOCAL].comm)
        c->layout.kind = HOSTS_FLAT;
}

/* The members of `color` as a communicator without parts; null: this rank is in none. */
static tess_status make_child(const tess_comm *parent, const kit_choice *all, int32_t color, const char *prefix,
                              tess_comm **out, tess_error *e) {
    int32_t *members = calloc((size_t)parent->size, sizeof *members);
    uint64_t *ids = calloc((size_t)parent->size, sizeof *ids);
    int32_t self = 0, n = 0;
    tess_status s = members && ids ? TESS_OK : tess_plugin_fail(e, TESS_E_NOMEM, "hosts: no memory to split");
    if (s == TESS_OK)
        n = kit_split_members(all, parent->size, color, parent->rank, members, &self);
    for (int32_t i = 0; i < n; i++)
        ids[i] = parent->ids[members[i]];
    *out = NULL;
    if (n > 0)
        s = hosts_comm_new(parent->plugin, self, n, ids, prefix, out, e);
    free(members);
    free(ids);
    return s;
}

static tess_status hosts_split(tess_comm *parent, int32_t color, int32_t key, const tess_comm_config *config,
                               tess_comm **out, tess_error *e) {
    const kit_choice mine = { .color = color, .key = key };
    kit_choice *all = calloc((size_t)parent->size, sizeof *all);
    tess_comm *child = NULL;
    char prefix[200];
    if (!all)
        return tess_plugin_fail(e, TESS_E_NOMEM, "hosts: no memory to split %d ranks", (int)parent->size);
    snprintf(prefix, sizeof prefix, "%.160s/color%d", config->group ? config->group : parent->prefix, (int)color);
    tess_status s = kit_requests_choices(&parent->requests, &mine, all, config->timeout_ns, e);
    if (s == TESS_OK)
        s = make_child(parent, all, color, prefix, &child, e);
    free(all);
    if (s == TESS_OK)
        s = split_parts(parent, child, color, config, e);
    if (s == TESS_OK && child) {
        settle_layout(child);
        s = hosts_comm_start(child, e);
    }
    if (s < 0) {
        hosts_comm_destroy(child);
        return s;
    }
    *out = child;
    return TESS_OK;
}

/* ---- memory --------------------------------------------------------------------------------------- */

static int gives_memory(const tess_comm *c) {
    const hosts_part *local = &c->parts[HOSTS_LOCAL];
    return local->comm && TESS_CAN(tess_comm_ops, local->ops, mem_alloc);
}

static tess_status hosts_mem_alloc(tess_comm *c, const tess_alloc_request *r, tess_buffer *out, tess_error *e) {
    tess_buffer buffer = { .mem = r->mem, .bytes = (r->bytes + 4095) / 4096 * 4096 };
    if (gives_memory(c))
        return c->parts[HOSTS_LOCAL].ops->mem_alloc(c->parts[HOSTS_LOCAL].comm, r, out, e);
    if (r->mem != TESS_MEM_HOST || r->align > 4096)
        return tess_plugin_fail(e, TESS_E_UNSUPPORTED, "hosts: memory kind %u asked for, gives pageable host memory",
                                r->mem);
    buffer.bytes = buffer.bytes ? buffer.bytes : 4096;
    buffer.ptr = mmap(NULL, buffer.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (buffer.ptr == MAP_FAILED)
        return tess_plugin_fail(e, TESS_E_NOMEM, "hosts: no memory of %llu bytes", (unsigned long long)r->bytes);
    TESS_GIVE(out, &buffer);
    return TESS_OK;
}

static void hosts_mem_free(tess_comm *c, tess_buffer *buffer) {
    if (gives_memory(c))
        c->parts[HOSTS_LOCAL].ops->mem_free(c->parts[HOSTS_LOCAL].comm, buffer);
    else if (buffer && buffer->ptr)
        munmap(buffer->ptr, buffer->bytes);
}

/* ---- the two symbols ------------------------------------------------------------------------------ */

static void hosts_close(void *ctx) {
    hosts_plugin *p = ctx;
    p->host->plugin_close(p->host->host, p->between.handle);
    p->host->plugin_close(p->host->host, p->within.handle);
    free(p);
}

static const tess_comm_ops comm_ops = {
    .struct_size = sizeof comm_ops,
    .abi_major = TESS_ABI_MAJOR,
    .abi_minor = TESS_ABI_MINOR,
    .close = hosts_close,
    .query = hosts_query,
    .need = hosts_need,
    .cost = hosts_cost,
    .init = hosts_init,
    .split = hosts_split,
    .destroy = hosts_comm_destroy,
    .mem_alloc = hosts_mem_alloc,
    .mem_free = hosts_mem_free,
    KIT_REQUEST_SLOTS,
};

/* "shm+gloo" */
static tess_status read_names(const tess_host *host, char names[2][32], tess_error *e) {
    const char *args = host->args && *host->args ? host->args : "shm+gloo", *plus = strchr(args, '+');
    if (!plus || plus == args || !plus[1] || plus - args > 31 || strlen(plus + 1) > 31)
        return tess_plugin_fail(e, TESS_E_INVALID, "hosts: \"%.60s\" is no pair, expected WITHIN+BETWEEN, as shm+gloo",
                                args);
    snprintf(names[0], 32, "%.*s", (int)(plus - args), args);
    snprintf(names[1], 32, "%s", plus + 1);
    return TESS_OK;
}

/* Bits are the same in one step and in two only where both sum in the tree. */
static tess_status open_under(hosts_plugin *p, int i, hosts_under *u, tess_error *e) {
    const void *ops = NULL;
    tess_status s = p->host->plugin_open(p->host->host, TESS_KIND_COMM, p->names[i], &ops, &u->ctx, &u->handle, e);
    if (s < 0)
        return s;
    u->ops = ops;
    const uint32_t wanted = TESS_COMM_TREE_ORDER | TESS_COMM_SPLIT | TESS_COMM_ABORT;
    tess_comm_caps caps = caps_of(u);
    if ((caps.caps & wanted) == wanted && (caps.mem_mask >> TESS_MEM_HOST & 1))
        return TESS_OK;
    return tess_plugin_fail(e, TESS_E_UNSUPPORTED, "hosts: comm %s does not sum host memory in the tree's order",
                            p->names[i]);
}

static tess_status open_both(hosts_plugin *p, tess_error *e) {
    const char *pretend = p->host->option(p->host->host, "hosts-ranks");
    tess_option_value value = { 0, 0, 0 };
    p->pretend = pretend && tess_option_parse(options, pretend, &value) ? (int32_t)value.integer : 0;
    tess_status s = read_names(p->host, p->names, e);
    if (s == TESS_OK)
        s = open_under(p, 0, &p->within, e);
    return s < 0 ? s : open_under(p, 1, &p->between, e);
}

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **ops, void **ctx, tess_error *error) {
    if (kind != TESS_KIND_COMM)
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "hosts: kind %u, offers comm only", kind);
    hosts_plugin *p = calloc(1, sizeof *p);
    if (!p)
        return tess_plugin_fail(error, TESS_E_NOMEM, "hosts: no memory to open");
    p->host = host;
    tess_status s = open_both(p, error);
    if (s < 0) {
        hosts_close(p);
        return s;
    }
    *ctx = p;
    *ops = &comm_ops;
    return TESS_OK;
}
