/* SPDX-License-Identifier: BSD-3-Clause */
/* The arenas of an engine, what lives where in them, and memory that a pass obtains beside the plan. */
#include "memory.h"

#include "base/numa.h"
#include "base/status.h"
#include "poison.h"

#include <stdlib.h>
#include <string.h>

/* Fails when the device has no room for `bytes` more, counting what the comm plugin allocated of it. */
static tess_status check_room(const tess__memory *m, uint64_t bytes) {
    uint64_t all = m->plan->setup.env.device_budget_bytes, used = m->obtained[TESS_DOMAIN_DEVICE];
    uint64_t left = used < all ? all - used : 0;
    if (!all || bytes <= left)
        return TESS_OK;
    return tess__fail(TESS_E_NOMEM, "device %s: %llu bytes needed, %llu of its %llu free", m->device->plugin->name,
                      (unsigned long long)bytes, (unsigned long long)left, (unsigned long long)all);
}

static void count_obtained(tess__memory *m, uint32_t domain, uint64_t bytes) {
    m->obtained[domain] += bytes;
    if (m->obtained[domain] > m->obtained_peak[domain])
        m->obtained_peak[domain] = m->obtained[domain];
}

static tess_status allocate_arena(tess__memory *m, const tess_alloc_request *r, tess__arena *out) {
    tess_buffer memory = { .struct_size = sizeof memory };
    int device = r->domain == TESS_DOMAIN_DEVICE;
    tess_comm *comm = device ? tess__comms_allocator(m->comms) : NULL;
    if (device)
        TRY(check_room(m, r->bytes));
    TRY(comm ? tess__comms_alloc(m->comms, comm, r, &memory) : tess__device_alloc(m->device, r, &memory));
    *out = (tess__arena){ .memory = memory, .comm = comm };
    count_obtained(m, r->domain, memory.bytes);
    return TESS_OK;
}

/* Registers an arena with each communicator, because only then reductions and hybrid's groups reach it in place. */
static void register_with_groups(const tess__memory *m, tess__arena *a) {
    const int groups[TESS__GROUPS] = { TESS__SHARD, TESS__REPLICA, TESS__SHARD_SUMS };
    for (int i = 0; a->comm && i < TESS__GROUPS; i++) {
        a->registered[i].memory = a->memory;
        a->registered[i].memory.reg = NULL;
        a->registered[i].comm = tess__comms_register(m->comms, groups[i], a->comm, &a->registered[i].memory);
    }
}

static void deregister_arena(const tess__memory *m, tess__arena *a) {
    for (int i = 0; i < TESS__GROUPS; i++)
        if (a->registered[i].comm)
            tess__comms_deregister(m->comms, a->registered[i].comm, &a->registered[i].memory);
}

/* A shard, each state and each sum of gradients have one request at most, and another may be under way of whoever reads
 * them apart from a step. */
static uint32_t most_posted(const tess__plan *p) {
    uint32_t most = 8, sums = (uint32_t)tess__sum_levels(&p->setup);
    for (int32_t g = 0; g < p->layout.n_groups; g++)
        most += p->layout.groups[g].step.n_states + 1 + (p->layout.groups[g].grad_rest.stored ? sums : 0);
    return most;
}

/* What a step moves lies in the step arena of the host. */
static tess_status tell_store(tess__memory *m) {
    const tess_buffer *step = &m->arenas[TESS_DOMAIN_HOST][TESS__STEP].memory;
    return tess__offload_memory(&m->store, step->ptr, step->ptr ? step->bytes : 0);
}

/* Its bytes are zero at first. */
static tess_status obtain_store(tess__memory *m, tess__arena *a, uint64_t bytes) {
    tess_store_config c = { .struct_size = sizeof c,
                            .most_posted = most_posted(m->plan),
                            .rank = m->comms->world.rank,
                            .nranks = m->comms->world.nranks,
                            .local_rank = m->comms->world.local_rank,
                            .align = (uint32_t)m->plan->layout.store_align,
                            .bytes = bytes,
                            .memory = m->arenas[TESS_DOMAIN_HOST][TESS__PAGEABLE].memory.ptr,
                            .memory_bytes = m->plan->layout.store_bytes };
    uint64_t obtained = 0;
    TRY(tess__offload_open(&m->store, &m->plan->setup, &c, &obtained));
    *a = (tess__arena){ .memory = { .struct_size = sizeof a->memory,
                                    .mem = TESS__MEM_STORE,
                                    .ptr = (void *)(uintptr_t)TESS__STORE_BASE,
                                    .bytes = obtained } };
    m->arena_bytes[TESS_DOMAIN_DISK][TESS__RESIDENT] = obtained;
    count_obtained(m, TESS_DOMAIN_DISK, obtained);
    return tell_store(m);
}

static tess_status obtain_arena(tess__memory *m, uint32_t domain, uint32_t arena, uint64_t bytes) {
    tess__arena *a = &m->arenas[domain][arena];
    if (!bytes)
        return TESS_OK;
    if (domain == TESS_DOMAIN_DISK)
        return obtain_store(m, a, tess__round_up(bytes, m->plan->setup.granularity));
    int pageable = arena == TESS__PAGEABLE || (arena == TESS__STEP && m->plan->layout.activation_rest.pageable);
    uint32_t mem = domain == TESS_DOMAIN_DEVICE ? m->device->mem : pageable ? TESS_MEM_HOST : TESS_MEM_PINNED;
    if (m->streams->on && mem == TESS_MEM_HOST)
        return tess__fail(TESS_E_UNSUPPORTED,
                          "device %s reaches page-locked host memory only: offload %s must not leave any pageable",
                          m->device->plugin->name, m->plan->setup.offload_name);
    tess_alloc_request r = { .struct_size = sizeof r,
                             .mem = mem,
                             .domain = domain,
                             .category = 0,
                             .flags = mem == TESS_MEM_PINNED && !m->streams->on ? TESS_ALLOC_MAY_UNPIN : 0,
                             .numa_node = domain == TESS_DOMAIN_HOST ? m->numa_node : -1,
                             .bytes = tess__round_up(bytes, m->plan->setup.granularity),
                             .align = domain == TESS_DOMAIN_HOST ? tess__host_align(&m->plan->setup, &m->plan->layout)
                                                                 : m->plan->setup.align };
    TRY(allocate_arena(m, &r, a));
    register_with_groups(m, a);
    if (arena == TESS__STEP && tess__host_reads(m->device))
        tess__poison(a->memory.ptr, a->memory.bytes);
    m->arena_bytes[domain][arena] = a->memory.bytes;
    return domain == TESS_DOMAIN_HOST && arena == TESS__STEP ? tell_store(m) : TESS_OK;
}

static void release_arena(tess__memory *m, uint32_t domain, uint32_t arena) {
    tess__arena *a = &m->arenas[domain][arena];
    if (!a->memory.ptr)
        return;
    m->obtained[domain] -= a->memory.bytes;
    m->arena_bytes[domain][arena] = 0;
    if (domain == TESS_DOMAIN_DISK) {
        tess__offload_close(&m->store);
        *a = (tess__arena){ .comm = NULL };
        return;
    }
    if (tess__host_reads(m->device))
        tess__unpoison(a->memory.ptr, a->memory.bytes);
    if (domain == TESS_DOMAIN_HOST && arena == TESS__STEP)
        (void)tess__offload_memory(&m->store, NULL, 0);
    deregister_arena(m, a);
    if (a->comm)
        tess__comms_free(m->comms, a->comm, &a->memory);
    else
        tess__device_free(m->device, &a->memory);
    *a = (tess__arena){ .comm = NULL };
}

tess_status tess__step_arena_grow(tess__memory *m) {
    for (uint32_t d = 1; d < 3; d++) {
        uint64_t most = tess__planned_arena(m->plan, d, TESS__STEP);
        if (most <= m->arena_bytes[d][TESS__STEP])
            continue;
        TRY(tess__streams_sync(m->streams)); /* a backend may unmap at once what kernels still use */
        release_arena(m, d, TESS__STEP);
        TRY(obtain_arena(m, d, TESS__STEP, most));
    }
    return TESS_OK;
}

/* ---- the books ---- */

/* Whether this rank's own code reads and writes at the buffer's address. */
static int is_reached(const tess__memory *m, const tess__buffer *b) {
    return tess__host_reads(m->device) && b->domain != TESS_DOMAIN_DISK;
}

void tess__book(tess__memory *m, const tess__buffer *b, const tess__program *p, const tess__instr *in) {
    uint64_t bytes = tess__measure(m->plan, &m->comm_scratch, p, m->booked[TESS__SAVED], in, b->role, b->index);
    m->booked[b->role][b->index] = 1;
    m->booked_bytes[b->role][b->index] = bytes;
    if (b->arena != TESS__STEP && is_reached(m, b))
        tess__unpoison(m->address[b->role][b->index], b->bytes);
    tess__held_ask(m->held, m->ledger.total[TESS_DOMAIN_DEVICE]);
    tess__ledger_add(&m->ledger, b->domain, b->category, b->unit, bytes);
}

void tess__unbook(tess__memory *m, const tess__buffer *b) {
    m->booked[b->role][b->index] = 0;
    tess__held_ask(m->held, m->ledger.total[TESS_DOMAIN_DEVICE]);
    tess__ledger_take(&m->ledger, b->domain, b->category, b->unit, m->booked_bytes[b->role][b->index]);
    if (b->arena != TESS__STEP && is_reached(m, b))
        tess__poison(m->address[b->role][b->index], b->bytes);
}

/* ---- memory of its own, in a checking build ---- */

/* A checking build takes memory of its own: malloc puts a red zone around a buffer and does not soon give its bytes
 * to another. So it finds an access beyond the buffer, and one after its end. Memory that a comm plugin must reach
 * stays in the arena. */
static int has_own(const tess__memory *m, const tess__buffer *b) {
    return TESS__CHECKING && b->arena == TESS__STEP && !m->deviating && tess__host_reads(m->device) &&
           !m->arenas[b->domain][TESS__STEP].comm;
}

static tess_status take_own(tess__memory *m, const tess__buffer *b) {
    void **own = &m->own[b->role][b->index];
    uint64_t align =
        b->domain == TESS_DOMAIN_HOST ? tess__host_align(&m->plan->setup, &m->plan->layout) : m->plan->setup.align;
    free(*own);
    *own = aligned_alloc(align, tess__round_up(b->bytes ? b->bytes : 1, align));
    m->address[b->role][b->index] = *own;
    return *own ? TESS_OK : tess__fail(TESS_E_NOMEM, "no memory for a checked buffer");
}

/* Returns whether the buffer had memory of its own. */
static int give_own(tess__memory *m, const tess__buffer *b) {
    void **own = TESS__CHECKING ? &m->own[b->role][b->index] : NULL;
    if (!own || !*own)
        return 0;
    free(*own);
    *own = NULL;
    return 1;
}

/* ---- beside the plan ---- */

/* A pass that deviates finds room as it goes, and obtains beside the arena what does not fit. */
static tess_status alloc_beyond_plan(tess__memory *m, tess__buffer *b) {
    tess__arena *a = &m->arenas[b->domain][TESS__STEP];
    int host = b->domain == TESS_DOMAIN_HOST; /* rare and small: always obtained beside the plan */
    if (!host && tess__first_fit_get(&m->first_fit, b->bytes, m->plan->setup.align, &b->offset) == TESS_OK) {
        m->address[b->role][b->index] = (char *)a->memory.ptr + b->offset;
        return TESS_OK;
    }
    tess_buffer more = { .struct_size = sizeof more };
    tess_alloc_request r = { .struct_size = sizeof r,
                             .mem = !host            ? m->device->mem
                                    : m->streams->on ? TESS_MEM_PINNED
                                                     : TESS_MEM_HOST,
                             .domain = b->domain,
                             .category = b->category,
                             .numa_node = host ? m->numa_node : -1,
                             .bytes = tess__round_up(b->bytes, m->plan->setup.granularity),
                             .align =
                                 host ? tess__host_align(&m->plan->setup, &m->plan->layout) : m->plan->setup.align };
    if (m->n_overflow == m->cap_overflow)
        return tess__fail(TESS_E_INTERNAL, "more than %d buffers beside the step arena", m->cap_overflow);
    tess_status s = host ? TESS_OK : check_room(m, r.bytes);
    if (!s)
        s = tess__device_alloc(m->device, &r, &more);
    if (s)
        return tess__fail(s, "a pass that deviates from the compiled order needs %llu bytes beside the plan: %s",
                          (unsigned long long)r.bytes, tess_last_error());
    m->overflow[m->n_overflow++] = (tess__overflow){ more, b->domain };
    count_obtained(m, b->domain, more.bytes);
    b->offset = UINT64_MAX;
    m->address[b->role][b->index] = more.ptr;
    return TESS_OK;
}

/* Frees memory obtained beside the arena as soon as its buffer ends, because a pass may be long. */
static void free_beyond_plan(tess__memory *m, const tess__buffer *b) {
    if (b->offset != UINT64_MAX) {
        tess__first_fit_give(&m->first_fit, b->offset);
        return;
    }
    for (int32_t i = 0; i < m->n_overflow; i++)
        if (m->overflow[i].memory.ptr == tess__address(m, b->role, b->index)) {
            m->obtained[b->domain] -= m->overflow[i].memory.bytes;
            if (tess__host_reads(m->device))
                tess__unpoison(m->overflow[i].memory.ptr, m->overflow[i].memory.bytes);
            tess__device_free(m->device, &m->overflow[i].memory);
            m->overflow[i] = m->overflow[--m->n_overflow];
            return;
        }
}

void tess__overflow_drop(tess__memory *m) {
    for (int32_t i = 0; i < m->n_overflow; i++) {
        tess_buffer *b = &m->overflow[i].memory;
        m->obtained[m->overflow[i].domain] -= b->bytes;
        if (tess__host_reads(m->device))
            tess__unpoison(b->ptr, b->bytes);
        tess__device_free(m->device, b);
    }
    m->n_overflow = 0;
}

/* ---- a buffer of the running program ---- */

/* Checks that the place handed out lies in memory that was obtained. */
static tess_status check_place(const tess__memory *m, const tess__buffer *b) {
    const tess_buffer *arena = &m->arenas[b->domain][b->arena].memory;
    if (m->deviating || b->arena != TESS__STEP || has_own(m, b)) /* deviating: its room is found as it goes */
        return TESS_OK;
    uint64_t first = (uint64_t)((char *)m->address[b->role][b->index] - (char *)arena->ptr);
    uint64_t bytes = m->booked_bytes[b->role][b->index];
    if (first > arena->bytes || bytes > arena->bytes - first)
        return tess__fail(TESS_E_INTERNAL, "%llu bytes are needed at offset %llu of %llu that were obtained",
                          (unsigned long long)bytes, (unsigned long long)first, (unsigned long long)arena->bytes);
    return TESS_OK;
}

static tess_status fill_buffer(tess__memory *m, const tess__buffer *b, uint8_t byte) {
    void *at = tess__address(m, b->role, b->index);
    if (b->domain == TESS_DOMAIN_DEVICE)
        return tess__device_fill(m->device, at, byte, b->bytes);
    TRY(tess__streams_sync(m->streams));
    memset(at, byte, b->bytes);
    return TESS_OK;
}

tess_status tess__place_buffer(tess__memory *m, tess__program *p, const tess__instr *in) {
    tess__buffer *b = &p->buffers[in->buffer];
    if (b->arena == TESS__STEP) {
        if (m->deviating)
            TRY(alloc_beyond_plan(m, b));
        else if (has_own(m, b))
            TRY(take_own(m, b));
        else
            m->address[b->role][b->index] = (char *)m->arenas[b->domain][TESS__STEP].memory.ptr + b->offset;
    } else if (m->booked[b->role][b->index]) {
        return TESS_OK;
    }
    tess__book(m, b, p, in);
    TRY(check_place(m, b));
    if (is_reached(m, b))
        tess__unpoison(tess__address(m, b->role, b->index), b->bytes);
    return in->flags & TESS__ZERO ? fill_buffer(m, b, 0) : TESS_OK;
}

tess_status tess__release_buffer(tess__memory *m, const tess__program *p, const tess__instr *in) {
    const tess__buffer *b = &p->buffers[in->buffer];
    if (!m->booked[b->role][b->index])
        return TESS_OK;
    tess__unbook(m, b);
    if (b->arena != TESS__STEP)
        return TESS_OK;
    if (m->strict) /* all bits set is a NaN in every float format */
        TRY(fill_buffer(m, b, 0xff));
    if (!give_own(m, b) && tess__host_reads(m->device))
        tess__poison(tess__address(m, b->role, b->index), b->bytes);
    if (m->deviating)
        free_beyond_plan(m, b);
    return TESS_OK;
}

/* ---- from tess_shard ---- */

tess_status tess__memory_create(tess__memory *m) {
    size_t n = (size_t)m->plan->compiler.stride;
    int ok = 1;
    for (int role = 0; role < TESS__N_ROLES; role++) {
        m->address[role] = calloc(n, sizeof **m->address);
        m->booked[role] = calloc(n, 1);
        m->booked_bytes[role] = calloc(n, sizeof **m->booked_bytes);
        m->own[role] = TESS__CHECKING ? calloc(n, sizeof **m->own) : NULL;
        ok = ok && m->address[role] && m->booked[role] && m->booked_bytes[role] && (m->own[role] || !TESS__CHECKING);
    }
    m->cap_overflow = (int32_t)(8 * n + 64);
    m->overflow = calloc((size_t)m->cap_overflow, sizeof *m->overflow);
    if (!ok || !m->overflow)
        return tess__fail(TESS_E_NOMEM, "no memory for the engine's tables");
    TRY(tess__ledger_create(&m->ledger, m->plan->layout.n_units));
    TRY(tess__needs_create(&m->comm_scratch, &m->plan->setup, &m->plan->layout));
    return tess__first_fit_create(&m->first_fit, m->cap_overflow);
}

static tess_status zero_arena(tess__memory *m, uint32_t domain, tess__arena *a) {
    if (!a->memory.ptr || domain == TESS_DOMAIN_DISK)
        return TESS_OK;
    if (domain == TESS_DOMAIN_DEVICE)
        return tess__device_fill(m->device, a->memory.ptr, 0, a->memory.bytes);
    memset(a->memory.ptr, 0, a->memory.bytes);
    return TESS_OK;
}

/* Finds the node nearest the device, where host memory is to lie. Asks only when some will be obtained. */
static int32_t find_node(const tess__memory *m, int32_t device_index) {
    tess_device_info info;
    if (!tess__planned_bytes(m->plan, TESS_DOMAIN_HOST))
        return -1;
    if (tess__device_describe(m->device, device_index, &info) == TESS_OK && info.numa_node >= 0)
        return info.numa_node;
    info.id[sizeof info.id - 1] = 0;
    return tess__numa_nearest(m->device->mem == TESS_MEM_HOST ? "" : info.id, "");
}

static void point_at_rest(tess__memory *m) {
    for (int32_t i = 0; i < m->plan->resident.n_buffers; i++) {
        const tess__buffer *b = &m->plan->resident.buffers[i];
        m->address[b->role][b->index] = (char *)m->arenas[b->domain][b->arena].memory.ptr + b->offset;
    }
}

tess_status tess__memory_obtain(tess__memory *m, int32_t device_index) {
    m->numa_node = find_node(m, device_index);
    for (uint32_t d = 1; d < TESS__DOMAINS; d++)
        for (uint32_t a = TESS__RESIDENT; a <= TESS__PAGEABLE; a++)
            TRY(obtain_arena(m, d, a, tess__planned_arena(m->plan, d, a)));
    for (uint32_t d = 1; d < TESS__DOMAINS; d++)
        for (uint32_t a = TESS__RESIDENT; a <= TESS__PAGEABLE; a += TESS__PAGEABLE - TESS__RESIDENT)
            TRY(zero_arena(m, d, &m->arenas[d][a]));
    point_at_rest(m);
    for (int32_t i = 0; i < m->plan->resident.n_buffers; i++) {
        const tess__buffer *b = &m->plan->resident.buffers[i];
        if (b->role != TESS__SHARD_GRAD)
            tess__book(m, b, NULL, NULL);
        else if (is_reached(m, b))
            tess__poison(m->address[b->role][b->index], b->bytes);
    }
    return TESS_OK;
}

/* ---- anew, for another group of ranks ---- */

/* Takes off the books what a broken-off step had booked. Its memory is freed or filled anew. */
static void forget_step(tess__memory *m, const tess__program *p) {
    for (int32_t i = 0; i < p->n_buffers; i++) {
        const tess__buffer *b = &p->buffers[i];
        if ((b->arena == TESS__STEP || b->role == TESS__SHARD_GRAD) && m->booked[b->role][b->index])
            tess__unbook(m, b);
    }
}

void tess__memory_forget(tess__memory *m, const tess__program *deviating) {
    forget_step(m, deviating);
    for (int i = 0; i < TESS__N_PROGRAMS; i++)
        forget_step(m, &m->plan->programs[i]);
    forget_step(m, &m->plan->resident);
    tess__overflow_drop(m);
    m->deviating = 0;
}

tess_status tess__memory_renew(tess__memory *m) {
    for (uint32_t d = 1; d < TESS__DOMAINS; d++)
        for (uint32_t a = TESS__RESIDENT; a <= TESS__PAGEABLE; a++) {
            if (m->arenas[d][a].memory.ptr)
                continue;
            TRY(obtain_arena(m, d, a, tess__planned_arena(m->plan, d, a)));
            TRY(a == TESS__STEP ? TESS_OK : zero_arena(m, d, &m->arenas[d][a]));
        }
    point_at_rest(m);
    return TESS_OK;
}

/* ---- to tess_close ---- */

void tess__memory_release(tess__memory *m, int of_comm) {
    for (uint32_t d = TESS__DOMAINS; --d;) /* a store ends before memory that it may still read or write */
        for (uint32_t a = TESS__RESIDENT; a <= TESS__PAGEABLE; a++)
            if (!m->arenas[d][a].comm == !of_comm)
                release_arena(m, d, a);
}

static void free_tables(tess__memory *m) {
    for (int role = 0; role < TESS__N_ROLES; role++) {
        free(m->address[role]);
        free(m->booked[role]);
        free(m->booked_bytes[role]);
        for (int32_t i = 0; m->own[role] && i < m->plan->compiler.stride; i++)
            free(m->own[role][i]);
        free(m->own[role]);
    }
    free(m->overflow);
    m->overflow = NULL;
    tess__first_fit_free_all(&m->first_fit);
    tess__ledger_free(&m->ledger);
    tess__needs_free(&m->comm_scratch);
}

void tess__memory_free(tess__memory *m) {
    for (int32_t i = 0; i < m->n_overflow; i++)
        tess__device_free(m->device, &m->overflow[i].memory);
    for (int32_t i = 0; m->device && m->device->handle && i < m->plan->n_user; i++)
        if (m->user[i].ptr)
            tess__device_free(m->device, &m->user[i]);
    tess__memory_release(m, 0);
    free_tables(m);
    free(m->held);
}

void tess__memory_drop(tess__memory *m) {
    tess__memory_release(m, 0);
    free_tables(m);
    for (int32_t i = 0; i < m->plan->n_user; i++)
        tess__ledger_add(&m->ledger, TESS_DOMAIN_DEVICE, TESS_CAT_ACTIVATION, -1, m->user[i].bytes);
}

/* ---- beside the arenas ---- */

tess_status tess__memory_beside(tess__memory *m, uint64_t bytes, tess_buffer *out) {
    int pinned = m->streams->on;
    tess_alloc_request r = { .struct_size = sizeof r,
                             .mem = pinned ? TESS_MEM_PINNED : TESS_MEM_HOST,
                             .domain = TESS_DOMAIN_HOST,
                             .category = TESS_CAT_MIRROR,
                             .numa_node = m->numa_node,
                             .bytes = bytes,
                             .align = m->plan->setup.align };
    *out = (tess_buffer){ .struct_size = sizeof *out };
    TRY(tess__device_alloc(m->device, &r, out));
    count_obtained(m, TESS_DOMAIN_HOST, out->bytes);
    return TESS_OK;
}

void tess__memory_beside_free(tess__memory *m, tess_buffer *b) {
    if (!b->ptr)
        return;
    m->obtained[TESS_DOMAIN_HOST] -= b->bytes;
    tess__device_free(m->device, b);
    b->ptr = NULL;
}

/* ---- the program's own ---- */

tess_status tess__memory_user(tess__memory *m, const char *label, uint64_t bytes, int32_t n) {
    tess_buffer *b = &m->user[n];
    *b = (tess_buffer){ .struct_size = sizeof *b };
    tess_alloc_request r = { .struct_size = sizeof r,
                             .mem = m->device->mem,
                             .domain = TESS_DOMAIN_DEVICE,
                             .category = TESS_CAT_ACTIVATION,
                             .numa_node = -1,
                             .bytes = bytes,
                             .align = m->plan->setup.align };
    uint64_t budget = m->plan->setup.env.device_budget_bytes;
    if (budget && m->obtained[TESS_DOMAIN_DEVICE] + r.bytes > budget)
        return tess__fail(TESS_E_BUDGET,
                          "\"%s\" asks for %llu bytes; %llu of the %llu that TESSERA_DEVICE_MEMORY allows are taken",
                          label, (unsigned long long)r.bytes, (unsigned long long)m->obtained[TESS_DOMAIN_DEVICE],
                          (unsigned long long)budget);
    tess_status s = tess__device_alloc(m->device, &r, b);
    if (s)
        return tess__fail(s, "\"%s\": %s", label, tess_last_error());
    count_obtained(m, TESS_DOMAIN_DEVICE, b->bytes);
    tess__ledger_add(&m->ledger, TESS_DOMAIN_DEVICE, TESS_CAT_ACTIVATION, -1, b->bytes);
    return TESS_OK;
}
