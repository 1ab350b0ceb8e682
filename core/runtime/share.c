/* SPDX-License-Identifier: BSD-3-Clause */
/* Shares arenas, so that ranks reach each other's memory, over backends that can. Sharing one waits for all ranks,
 * so all first agree on what they have. An arena that differs, or that one rank could not register, is not shared. */
#include "memory.h"

#include "base/hash.h"
#include "base/log.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

typedef struct {                 /* the state of one arena on one rank */
    uint64_t bytes, places;      /* places: what rests in it, and where, hashed; programs are compared elsewhere */
    uint32_t registered, shared; /* registered: with the allocator and the groups, bits */
} arena_state;

enum { N_ARENAS = TESS__PAGEABLE + 1 };

static uint64_t hash_places(const tess__program *resident) {
    uint64_t h = TESS__HASH_START;
    for (int32_t i = 0; i < resident->n_buffers; i++) {
        const tess__buffer *b = &resident->buffers[i];
        if (b->domain != TESS_DOMAIN_DEVICE || b->arena != TESS__RESIDENT)
            continue;
        h = tess__hash_u64(h, (uint64_t)b->role << 32 | (uint32_t)b->index);
        h = tess__hash_u64(tess__hash_u64(h, b->bytes), b->offset);
    }
    return h;
}

static arena_state arena_state_of(const tess__arena *a) {
    arena_state h = { .bytes = a->comm ? a->memory.bytes : 0, .shared = (uint32_t)a->shared };
    h.registered = a->comm && a->memory.reg;
    for (int i = 0; i < TESS__GROUPS; i++)
        h.registered |= (uint32_t)(a->registered[i].comm != NULL) << (i + 1);
    return h;
}

static int differs(const arena_state (*all)[N_ARENAS], int32_t nranks, int arena) {
    for (int32_t r = 1; r < nranks; r++)
        if (memcmp(&all[r][arena], &all[0][arena], sizeof **all) != 0)
            return 1;
    return 0;
}

static int is_shared_by_one(const arena_state (*all)[N_ARENAS], int32_t nranks, int arena) {
    for (int32_t r = 0; r < nranks; r++)
        if (all[r][arena].shared == 1)
            return 1;
    return 0;
}

static tess_status share_arena(tess__memory *m, tess__arena *a) {
    tess_status s = tess__comms_share(m->comms, a->comm, &a->memory);
    for (int i = 0; !s && i < TESS__GROUPS; i++)
        if (a->registered[i].comm)
            s = tess__comms_share(m->comms, a->registered[i].comm, &a->registered[i].memory);
    a->shared = s ? -1 : 1;
    return s == TESS_E_UNSUPPORTED ? TESS_OK : s;
}

/* Leaves an arena unshared. If a rank has shared it already, it is in use and cannot become its own again. */
static tess_status refuse(const tess__memory *m, const arena_state (*all)[N_ARENAS], int arena) {
    if (is_shared_by_one(all, m->comms->world.nranks, arena))
        return tess__fail(TESS_E_INTERNAL, "the ranks hold different arenas %d, and one is shared", arena);
    if (m->comms->world.rank == 0)
        tess__log(TESS_LOG_INFO, "arena %d is not the same on all ranks, and is not shared", arena);
    return TESS_OK;
}

static tess_status share_alike(tess__memory *m, const arena_state (*all)[N_ARENAS]) {
    for (int i = TESS__RESIDENT; i < N_ARENAS; i++) {
        tess__arena *a = &m->arenas[TESS_DOMAIN_DEVICE][i];
        if (differs(all, m->comms->world.nranks, i))
            TRY(refuse(m, all, i));
        else if (a->comm && a->memory.reg && !a->shared)
            TRY(share_arena(m, a));
    }
    return TESS_OK;
}

tess_status tess__memory_share(tess__memory *m) {
    arena_state mine[N_ARENAS];
    if (!tess__comms_share_memory(m->comms))
        return TESS_OK;
    memset(mine, 0, sizeof mine);
    for (int i = TESS__RESIDENT; i < N_ARENAS; i++)
        mine[i] = arena_state_of(&m->arenas[TESS_DOMAIN_DEVICE][i]);
    mine[TESS__RESIDENT].places = hash_places(&m->plan->resident);
    arena_state(*all)[N_ARENAS] = calloc((size_t)m->comms->world.nranks, sizeof *all);
    if (!all)
        return tess__fail(TESS_E_NOMEM, "no memory to compare %d ranks", m->comms->world.nranks);
    tess_status s = tess__comms_exchange(m->comms, "the comparison of arenas", mine, sizeof mine, all);
    if (!s)
        s = share_alike(m, (const arena_state(*)[N_ARENAS])all);
    free(all);
    return s;
}
