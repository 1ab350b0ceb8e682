/* tess_shard: wrap, lay out, compile, plan, compare, obtain memory, fill. */
#include "engine.h"

#include "describe.h"
#include "log.h"
#include "numa.h"
#include "options.h"
#include "slots.h"
#include "poison.h"
#include "status.h"
#include "wrap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- compile ---- */

static uint32_t pass_kind(int program) {
    static const uint32_t kinds[] = { TESS_PASS_TRAIN, TESS_PASS_TRAIN | TESS_PASS_NO_SYNC,
                                      TESS_PASS_EVAL,  TESS_PASS_TRAIN,
                                      TESS__PASS_STEP, TESS__PASS_NORM,
                                      TESS__PASS_CLIP, TESS__PASS_FULL };
    return kinds[program];
}

/* Programs that this run can never enter are left empty. */
static int is_wanted(const tess *t, int program) {
    int at_end = t->setup.accum > 1 && !t->setup.sync_each;
    if (program == TESS__P_NO_SYNC)
        return at_end;
    if (program == TESS__P_FUSED)
        return t->model.n_blocks > 0 && t->setup.accum == 1 && t->setup.optimizer;
    if (program == TESS__P_STEP || program == TESS__P_CLIP)
        return t->setup.optimizer != 0;
    return 1;
}

tess_status tess__compile_all(tess *t) {
    tess_status s = tess__resident(&t->setup, &t->layout, 1, &t->resident);
    for (int i = 0; !s && i < TESS__N_PROGRAMS; i++) {
        if (!is_wanted(t, i))
            continue;
        if (i < TESS__P_STEP)
            s = tess__compile_pass(&t->builder, pass_kind(i), NULL, i == TESS__P_FUSED, &t->programs[i]);
        else
            s = tess__compile_other(&t->builder, pass_kind(i), &t->programs[i]);
    }
    return s;
}

/* ---- the budget ---- */

static uint64_t arena_plan(const tess *t, uint32_t domain, uint32_t arena) {
    if (arena == TESS__RESIDENT)
        return t->resident.step_bytes[domain];
    if (arena == TESS__PAGEABLE)
        return domain == TESS_DOMAIN_HOST ? t->resident.pageable_bytes : 0;
    uint64_t most = 0;
    for (int i = 0; i < TESS__N_PROGRAMS; i++)
        if (t->programs[i].step_bytes[domain] > most)
            most = t->programs[i].step_bytes[domain];
    return most;
}

uint64_t tess__planned_bytes(const tess *t, uint32_t domain) {
    uint64_t total = 0;
    for (uint32_t a = TESS__RESIDENT; a <= TESS__PAGEABLE; a++)
        total += tess__round_up(arena_plan(t, domain, a), t->setup.granularity);
    for (int32_t i = 0; domain == TESS_DOMAIN_DEVICE && i < t->n_user; i++)
        total += tess__round_up(t->user_buffers[i].bytes, t->setup.granularity);
    return total;
}

static void list_categories(const tess *t, uint32_t domain, char *out, size_t n) {
    const tess__program *fullest = &t->programs[0];
    for (int i = 1; i < TESS__N_PROGRAMS; i++)
        if (t->programs[i].live_peak_bytes[domain] > fullest->live_peak_bytes[domain])
            fullest = &t->programs[i];
    size_t at = 0;
    out[0] = 0;
    for (uint32_t c = 1; c < 16; c++)
        if (fullest->category_bytes[domain][c] && at < n)
            at += (size_t)snprintf(out + at, n - at, "%s%s %llu", at ? ", " : "", tess__category_name(c),
                                   (unsigned long long)fullest->category_bytes[domain][c]);
}

static tess_status over_budget(const tess *t, uint32_t domain, uint64_t need, uint64_t budget) {
    static const char *const name[] = { "", "device", "host" }, *const variable[] = { "", "DEVICE", "HOST" };
    char categories[512];
    list_categories(t, domain, categories, sizeof categories);
    return tess__fail(
        TESS_E_BUDGET,
        "a step needs %llu bytes of %s memory per rank and TESSERA_%s_MEMORY allows %llu; at its peak, in bytes: %s",
        (unsigned long long)need, name[domain], variable[domain], (unsigned long long)budget, categories);
}

tess_status tess__check_budget(tess *t) {
    const uint64_t budget[3] = { 0, t->setup.env.device_budget_bytes, t->setup.env.host_budget_bytes };
    for (uint32_t d = 1; d < 3; d++) {
        uint64_t need = tess__planned_bytes(t, d);
        if (budget[d] && need > budget[d])
            return over_budget(t, d, need, budget[d]);
    }
    return TESS_OK;
}

/* How many units are gathered ahead is ours to choose unless the user did: fewer when that makes it fit. */
static tess_status fit_prefetch(tess *t) {
    const char *asked = tess__option_text("prefetch");
    tess_status s = tess__check_budget(t);
    if (!s || (asked && strcmp(asked, "auto") != 0) || t->setup.prefetch == 0)
        return s;
    t->setup.prefetch = 0;
    if (tess__compile_all(t) || tess__check_budget(t)) {
        t->setup.prefetch = 1; /* it does not help: speak of the usual plan */
        if ((s = tess__compile_all(t)))
            return s;
        return tess__check_budget(t);
    }
    tess__log(TESS_LOG_INFO, "no unit is gathered ahead, so that the step fits its memory");
    return TESS_OK;
}

/* ---- memory ---- */

tess_status tess__device_has_room(const tess *t, uint64_t bytes, tess_error *e) {
    uint64_t all = t->setup.env.device_budget_bytes, used = t->obtained[TESS_DOMAIN_DEVICE];
    uint64_t left = used < all ? all - used : 0;
    if (!all || bytes <= left)
        return TESS_OK;
    return tess__slot_fail(e, TESS_E_NOMEM, "%llu bytes needed, %llu of its %llu free", (unsigned long long)bytes,
                           (unsigned long long)left, (unsigned long long)all);
}

/* The communicator that allocates the device's arenas, so that it reaches them best; null: the device does. */
static tess_comm *allocating_comm(const tess *t, uint32_t domain) {
    tess_comm_caps caps = { .struct_size = sizeof caps };
    tess_comm *comm = t->comms[TESS__WORLD];
    if (domain != TESS_DOMAIN_DEVICE || !comm || !TESS_CAN(tess_comm_ops, t->comm, mem_alloc) ||
        t->comm->query(t->setup.comm_ctx, comm, &caps) || !(caps.mem_mask >> t->setup.env.mem & 1))
        return NULL;
    return comm;
}

static tess_status obtain(tess *t, const tess_alloc_request *r, tess__arena *out) {
    tess_error e = { .struct_size = sizeof e };
    tess_buffer memory = { .struct_size = sizeof memory };
    tess_comm *comm = allocating_comm(t, r->domain);
    tess_status s = r->domain == TESS_DOMAIN_DEVICE ? tess__device_has_room(t, r->bytes, &e) : TESS_OK;
    if (s)
        return tess__plugin_failed(s, TESS_KIND_DEVICE, t->plugins[TESS_KIND_DEVICE], &e);
    s = comm ? t->comm->mem_alloc(comm, r, &memory, &e) : t->dev->mem_alloc(t->device, r, &memory, &e);
    if (s)
        return tess__plugin_failed(s, comm ? TESS_KIND_COMM : TESS_KIND_DEVICE,
                                   t->plugins[comm ? TESS_KIND_COMM : TESS_KIND_DEVICE], &e);
    *out = (tess__arena){ memory, comm };
    return TESS_OK;
}

tess_status tess__arena_obtain(tess *t, uint32_t domain, uint32_t arena, uint64_t bytes) {
    tess__arena *a = &t->arenas[domain][arena];
    if (!bytes)
        return TESS_OK;
    int pageable = arena == TESS__PAGEABLE || (arena == TESS__STEP && t->layout.activation_rest.pageable);
    uint32_t mem = domain == TESS_DOMAIN_DEVICE ? t->setup.env.mem : pageable ? TESS_MEM_HOST : TESS_MEM_PINNED;
    if (t->queues.on && mem == TESS_MEM_HOST)
        return tess__fail(TESS_E_UNSUPPORTED,
                          "device %s reaches page-locked host memory only: offload %s must not leave any pageable",
                          t->plugins[TESS_KIND_DEVICE]->name, t->plugins[TESS_KIND_OFFLOAD]->name);
    tess_alloc_request r = { .struct_size = sizeof r,
                             .mem = mem,
                             .domain = domain,
                             .category = 0,
                             .flags = mem == TESS_MEM_PINNED && !t->queues.on ? TESS_ALLOC_MAY_UNPIN : 0,
                             .numa_node = domain == TESS_DOMAIN_HOST ? t->numa_node : -1,
                             .bytes = tess__round_up(bytes, t->setup.granularity),
                             .align = t->setup.align };
    tess_status s = obtain(t, &r, a);
    if (s)
        return s;
    if (arena == TESS__STEP && tess__host_reads(t, domain))
        tess__poison(a->memory.ptr, a->memory.bytes);
    t->arena_bytes[domain][arena] = a->memory.bytes;
    t->obtained[domain] += a->memory.bytes;
    if (t->obtained[domain] > t->obtained_peak[domain])
        t->obtained_peak[domain] = t->obtained[domain];
    return TESS_OK;
}

void tess__arena_release(tess *t, uint32_t domain, uint32_t arena) {
    tess__arena *a = &t->arenas[domain][arena];
    if (!a->memory.ptr)
        return;
    t->obtained[domain] -= a->memory.bytes;
    t->arena_bytes[domain][arena] = 0;
    if (tess__host_reads(t, domain))
        tess__unpoison(a->memory.ptr, a->memory.bytes);
    if (a->comm)
        t->comm->mem_free(a->comm, &a->memory);
    else
        t->dev->mem_free(t->device, &a->memory);
    *a = (tess__arena){ .comm = NULL };
}

static tess_status make_tables(tess *t) {
    size_t n = (size_t)t->builder.stride;
    int ok = 1;
    for (int role = 0; role < TESS__N_ROLES; role++) {
        t->where[role] = calloc(n, sizeof **t->where);
        t->booked[role] = calloc(n, 1);
        t->taken[role] = calloc(n, sizeof **t->taken);
        ok = ok && t->where[role] && t->booked[role] && t->taken[role];
    }
    t->state = calloc(n + 1, sizeof *t->state);
    t->cap_overflow = (int32_t)(8 * n + 64);
    t->overflow = calloc((size_t)t->cap_overflow, sizeof *t->overflow);
    t->entered = calloc(2 * (size_t)t->model.n_scopes, sizeof *t->entered);
    t->block_params = calloc((size_t)t->model.n_params + 1, sizeof *t->block_params);
    t->block_grads = calloc((size_t)t->model.n_params + 1, sizeof *t->block_grads);
    if (!ok || !t->state || !t->overflow || !t->entered || !t->block_params || !t->block_grads)
        return tess__fail(TESS_E_NOMEM, "no memory for the engine's tables");
    tess_status s = tess__ledger_create(&t->ledger, t->layout.n_units);
    if (!s)
        s = tess__needs_create(&t->needs, &t->setup, &t->layout);
    if (s)
        return s;
    return tess__heap_create(&t->heap, t->cap_overflow);
}

/* Runs of one optimizer group in this rank's shards. Padding takes part: zero stays zero in every optimizer. */
static tess_status make_segments(tess *t) {
    const tess__layout *l = &t->layout;
    t->segments = calloc((size_t)l->n_order + 1, sizeof *t->segments);
    t->segment_group = calloc((size_t)l->n_order + 1, sizeof *t->segment_group);
    t->first_segment = calloc((size_t)l->n_groups + 2, sizeof *t->first_segment);
    if (!t->segments || !t->segment_group || !t->first_segment)
        return tess__fail(TESS_E_NOMEM, "no memory for the optimizer's segments");
    int32_t n = 0;
    for (int32_t g = 0; g < l->n_groups; g++) {
        t->first_segment[g] = n;
        for (int32_t i = 0; i < l->groups[g].n_params; i++) {
            const tess__param *p = &t->model.params[l->order[l->groups[g].first_param + i]];
            tess__piece piece = tess__layout_piece(l, p, t->shard_rank);
            if (!piece.elems)
                continue;
            int same = n > t->first_segment[g] && t->segment_group[n - 1] == p->optimizer_group;
            tess_segment *s = &t->segments[same ? n - 1 : n];
            if (!same) {
                *s = (tess_segment){ .struct_size = sizeof *s, .first = piece.in_shard };
                t->segment_group[n++] = p->optimizer_group;
            }
            s->elems = piece.in_shard + piece.elems - s->first;
        }
    }
    t->first_segment[l->n_groups] = n;
    return TESS_OK;
}

static tess_status zero(tess *t, uint32_t domain, tess__arena *a) {
    tess_error e = { .struct_size = sizeof e };
    if (!a->memory.ptr)
        return TESS_OK;
    if (domain == TESS_DOMAIN_HOST) {
        memset(a->memory.ptr, 0, a->memory.bytes);
        return TESS_OK;
    }
    tess_status s = t->dev->fill(t->device, a->memory.ptr, 0, a->memory.bytes, &t->compute, &e);
    return s ? tess__plugin_failed(s, TESS_KIND_DEVICE, t->plugins[TESS_KIND_DEVICE], &e) : TESS_OK;
}

/* Host memory lies on the node nearest the device; asked only where some will be obtained. */
static int32_t find_node(const tess *t) {
    tess_device_info info = { .struct_size = sizeof info };
    tess_error e = { .struct_size = sizeof e };
    int32_t index = t->setup.env.mem == TESS_MEM_HOST ? 0 : t->world.local_rank;
    if (!tess__planned_bytes(t, TESS_DOMAIN_HOST))
        return -1;
    if (t->dev->describe(t->setup.device_ctx, index, &info, &e) == TESS_OK && info.numa_node >= 0)
        return info.numa_node;
    info.id[sizeof info.id - 1] = 0;
    return tess__numa_nearest(t->setup.env.mem == TESS_MEM_HOST ? "" : info.id, "");
}

static tess_status obtain_all(tess *t) {
    tess_status s = TESS_OK;
    t->numa_node = find_node(t);
    for (uint32_t d = 1; !s && d < 3; d++)
        for (uint32_t a = TESS__RESIDENT; !s && a <= TESS__PAGEABLE; a++)
            s = tess__arena_obtain(t, d, a, arena_plan(t, d, a));
    for (uint32_t d = 1; !s && d < 3; d++)
        for (uint32_t a = TESS__RESIDENT; !s && a <= TESS__PAGEABLE; a += TESS__PAGEABLE - TESS__RESIDENT)
            s = zero(t, d, &t->arenas[d][a]);
    for (int32_t i = 0; !s && i < t->resident.n_buffers; i++) {
        const tess__buffer *b = &t->resident.buffers[i];
        t->where[b->role][b->index] = (char *)t->arenas[b->domain][b->arena].memory.ptr + b->offset;
        if (b->role != TESS__SHARD_GRAD)
            tess__book(t, b, NULL);
    }
    return s;
}

/* ---- tess_shard ---- */

static tess_status check_blocks(const tess *t) {
    if (t->model.n_scopes == 0)
        return tess__fail(TESS_E_INVALID, "no scope is declared, so no program can be compiled");
    for (int32_t i = 0; i + 1 < t->model.n_blocks; i++)
        if (!t->model.blocks[i].options.output_bytes)
            return tess__fail(TESS_E_INVALID, "block \"%s\" hands nothing on: output_bytes is 0",
                              t->model.blocks[i].options.name);
    return TESS_OK;
}

/* Collectives posted and not waited for at any time: gathers of the scopes looked ahead to and of the one entered, the
 * reductions of a unit, and a small one of the program's own. */
static uint32_t most_in_flight(const tess *t) {
    int32_t gathers = 0, reductions = 0;
    for (int32_t k = 0; k < t->model.n_scopes; k++) {
        int32_t n = 0;
        for (int32_t i = 0; i < t->builder.n_scope_units[k]; i++)
            n += t->layout.units[t->builder.scope_units[k][i]].n_groups;
        gathers = n > gathers ? n : gathers;
    }
    for (int32_t u = 0; u < t->layout.n_units; u++)
        if (t->layout.units[u].n_groups > reductions)
            reductions = t->layout.units[u].n_groups;
    return (uint32_t)((t->setup.prefetch + 1) * gathers + reductions + 1);
}

/* For wrap policies that try several: one candidate laid out, compiled and forgotten again. */
static tess_status plan_units(void *user, const int32_t *unit, int32_t n_units, tess_plan_result *out) {
    tess *t = user;
    tess_status s = tess__layout_build(&t->model, &t->setup, unit, n_units, &t->layout);
    if (s)
        return s;
    s = tess__builder_create(&t->builder, &t->setup, &t->model, &t->layout);
    if (!s) {
        t->setup.env.in_flight = most_in_flight(t);
        s = tess__compile_all(t);
    }
    if (!s) {
        out->peak_device_bytes = tess__planned_bytes(t, TESS_DOMAIN_DEVICE);
        out->peak_host_bytes = tess__planned_bytes(t, TESS_DOMAIN_HOST);
        out->step_ns = -1;
    }
    for (int i = 0; i < TESS__N_PROGRAMS; i++)
        tess__program_free(&t->programs[i]);
    tess__program_free(&t->resident);
    tess__builder_free(&t->builder);
    tess__layout_free(&t->layout);
    return s;
}

static tess_status wrap_and_lay_out(tess *t) {
    int32_t n_units = 0, *unit = calloc((size_t)t->model.n_params + 1, sizeof *unit);
    if (!unit)
        return tess__fail(TESS_E_NOMEM, "no memory for the units of %d parameters", t->model.n_params);
    const tess__plugin *wrap = t->plugins[TESS_KIND_WRAP];
    tess_status s = tess__wrap_apply_planned(&t->model, wrap->ops, wrap->ctx, t->selected[TESS_KIND_WRAP],
                                             &t->setup.env, plan_units, t, unit, &n_units);
    if (!s)
        s = tess__layout_build(&t->model, &t->setup, unit, n_units, &t->layout);
    free(unit);
    return s;
}

tess_status tess__plan_units(tess *t) {
    tess_status s = wrap_and_lay_out(t);
    if (!s)
        s = tess__builder_create(&t->builder, &t->setup, &t->model, &t->layout);
    if (s)
        return s;
    t->setup.env.in_flight = most_in_flight(t);
    s = tess__compile_all(t);
    return s ? s : fit_prefetch(t);
}

/* Over its budget: the message goes on with what to change. */
static tess_status advise(tess *t) {
    char said[1024], text[1024];
    snprintf(said, sizeof said, "%s", tess_last_error());
    tess__advise(t, t->try_change, t->try_user, &t->advice);
    tess__advice_text(&t->advice, said, text, sizeof text);
    return tess__fail(TESS_E_BUDGET, "%s", text);
}

static tess_status plan(tess *t) {
    tess_status s = check_blocks(t);
    if (!s)
        s = tess__model_finish(&t->model);
    if (!s)
        s = tess__plan_units(t);
    int planned = t->layout.n_units > 0; /* not where no choice of units fits (wrap=auto) */
    return s == TESS_E_BUDGET && planned && !tess__option_text("plan-file") ? advise(t) : s;
}

static tess_status shard(tess *t, tess_range_fn fill, void *user) {
    if (t->sharded)
        return tess__fail(TESS_E_INVALID, "tess_shard is called twice");
    tess_status s = plan(t);
    if (t->plan_only && (!s || s == TESS_E_BUDGET)) { /* which can be read, too */
        t->sharded = 1;
        if (tess__option_text("plan-file") && tess__describe(t, tess__option_text("plan-file")))
            return TESS_E_SYSTEM;
    }
    if (s)
        return s;
    if (t->plan_only) {
        return tess__fail(TESS_E_PLANNED, "planned, nothing allocated");
    }
    s = tess__handshake_programs(t, t->programs, TESS__N_PROGRAMS);
    if (!s)
        s = make_tables(t);
    if (!s)
        s = make_segments(t);
    if (!s)
        s = obtain_all(t);
    if (!s)
        s = tess__moves_start(t);
    if (s)
        return s;
    t->sharded = 1;
    return fill ? tess_each(t, TESS_OF_PARAM | TESS_OF_WRITE, fill, user) : TESS_OK;
}

tess_status tess_shard(tess *t, tess_range_fn fill, void *user) {
    tess_status s = tess__engine_check(t);
    if (s)
        return s;
    s = shard(t, fill, user);
    if (s == TESS_E_PLANNED || t->error)
        return s;
    return s ? tess__engine_fail(t, s) : TESS_OK;
}

/* A program that is only planned still computes with the pointer before tess_shard. Addresses, no memory. */
static void *reserve(uint64_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

tess_status tess_alloc(tess *t, const char *label, uint64_t bytes, void **out) {
    tess_status s = tess__engine_check(t);
    if (s)
        return s;
    if (!out)
        return tess__engine_fail(t, tess__fail(TESS_E_INVALID, "tess_alloc: there is no place for the pointer"));
    if (!label)
        label = "tess_alloc";
    if (t->n_user == TESS__MAX_USER)
        return tess__engine_fail(
            t, tess__fail(TESS_E_INVALID, "more than %d allocations; \"%s\" is one too many", TESS__MAX_USER, label));
    tess_error e = { .struct_size = sizeof e };
    tess_buffer *b = &t->user_buffers[t->n_user];
    *b = (tess_buffer){ .struct_size = sizeof *b };
    tess_alloc_request r = { .struct_size = sizeof r,
                             .mem = t->setup.env.mem,
                             .domain = TESS_DOMAIN_DEVICE,
                             .category = TESS_CAT_ACTIVATION,
                             .numa_node = -1,
                             .bytes = tess__round_up(bytes ? bytes : 1, t->setup.granularity),
                             .align = t->setup.align };
    if (t->plan_only) {
        b->bytes = r.bytes;
        b->ptr = reserve(r.bytes);
        *out = b->ptr;
        t->n_user++;
        return TESS_OK;
    }
    uint64_t budget = t->setup.env.device_budget_bytes;
    if (budget && t->obtained[TESS_DOMAIN_DEVICE] + r.bytes > budget)
        return tess__engine_fail(
            t, tess__fail(TESS_E_BUDGET,
                          "\"%s\" asks for %llu bytes; %llu of the %llu that TESSERA_DEVICE_MEMORY "
                          "allows are taken",
                          label, (unsigned long long)r.bytes, (unsigned long long)t->obtained[TESS_DOMAIN_DEVICE],
                          (unsigned long long)budget));
    s = t->dev->mem_alloc(t->device, &r, b, &e);
    if (s)
        return tess__engine_fail(t, tess__fail(s, "\"%s\": %s", label, e.message));
    t->n_user++;
    t->obtained[TESS_DOMAIN_DEVICE] += b->bytes;
    if (t->obtained[TESS_DOMAIN_DEVICE] > t->obtained_peak[TESS_DOMAIN_DEVICE])
        t->obtained_peak[TESS_DOMAIN_DEVICE] = t->obtained[TESS_DOMAIN_DEVICE];
    tess__ledger_add(&t->ledger, TESS_DOMAIN_DEVICE, TESS_CAT_ACTIVATION, -1, b->bytes);
    *out = b->ptr;
    return TESS_OK;
}

tess_status tess_stats_get(const tess *t, tess_stats *out) {
    if (!t || !out || !t->sharded)
        return tess__fail(TESS_E_INVALID, "statistics exist after tess_shard only");
    if (out->struct_size < 8 || out->struct_size > 1 << 16)
        return tess__fail(TESS_E_INVALID, "tess_stats_get: struct_size is %u; set it to sizeof(tess_stats)",
                          out->struct_size);
    tess_stats s = { .struct_size = out->struct_size,
                     .n_recompiles = t->n_recompiles,
                     .n_collectives = t->n_collectives,
                     .n_units = (uint64_t)t->layout.n_units,
                     .n_params = (uint64_t)t->model.n_params,
                     .param_elems = t->layout.param_elems,
                     .program_hash = t->programs[TESS__P_TRAIN].hash };
    for (uint32_t d = 1; d < 3; d++) {
        s.peak_bytes[d] = t->obtained_peak[d];
        s.planned_peak_bytes[d] = tess__planned_bytes(t, d);
        s.live_bytes[d] = t->ledger.total[d];
        s.live_peak_bytes[d] = t->ledger.most[d];
        memcpy(s.live_peak_category_bytes[d], t->ledger.at_most[d], sizeof t->ledger.at_most[d]);
        const tess__program *fullest = &t->programs[0];
        for (int i = 1; i < TESS__N_PROGRAMS; i++)
            if (t->programs[i].live_peak_bytes[d] > fullest->live_peak_bytes[d])
                fullest = &t->programs[i];
        uint64_t sum = 0;
        for (uint32_t c = 1; c < 16; c++)
            sum += s.category_peak_bytes[d][c] = fullest->category_bytes[d][c];
        for (int32_t i = 0; d == TESS_DOMAIN_DEVICE && i < t->n_user; i++) {
            s.category_peak_bytes[d][TESS_CAT_ACTIVATION] += t->user_buffers[i].bytes;
            sum += t->user_buffers[i].bytes;
        }
        s.category_peak_bytes[d][TESS_CAT_FRAGMENTATION] = s.planned_peak_bytes[d] - sum;
        for (int32_t i = 0; i < t->resident.n_buffers; i++)
            if (t->resident.buffers[i].domain == d && t->resident.buffers[i].role != TESS__SHARD_GRAD)
                s.resting_bytes[d] += t->resident.buffers[i].bytes;
    }
    tess__slot_out(out, &s, sizeof s);
    return TESS_OK;
}
