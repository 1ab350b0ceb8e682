/* SPDX-License-Identifier: BSD-3-Clause */
#include "guard.h"

#include <tessera/plugin_helpers.h>
#include "base/log.h"
#include "base/status.h"
#include "state.h"

#include <stdlib.h>
#include <string.h>

enum { FENCE_BYTES = 4096 };
/* The filler of closed copies. A parameter that is read late is then NaN, which has all bits set in every float
 * format. A gradient is 0, because a late addition would leave a NaN as it is and would not show. */
static const unsigned char closed[TESS__N_GUARDS] = { 0xff, 0 };

typedef struct {
    char *at; /* null: nothing to guard */
    uint64_t bytes;
    int32_t open;  /* nested begins */
    int32_t scope; /* that closed it last, or -1 */
} guard_copy;

struct tess__guard {
    guard_copy *copies; /* by parameter that holds storage */
    int32_t n;
    const tess__device *device;
    tess_buffer memory; /* all copies, on a device that the host does not read; null: each copy is the host's */
    char *seen[2];      /* what the host read back of that memory: a copy, and the bytes it is compared with */
};

static guard_copy *copy_of(const tess *t, int32_t param, int kind) {
    return &t->pass.guard->copies[TESS__N_GUARDS * t->plan.model.params[param].tied_to + kind];
}

static uint64_t bytes_of(const tess *t, const tess__param *p, int kind) {
    const tess__group *g = &t->plan.layout.groups[p->group];
    return p->elems * tess_dtype_bytes(kind == TESS__GUARD_PARAM ? g->compute : g->grad_local);
}

/* ---- made and given back ---- */

static uint64_t room_of(const guard_copy *c) {
    return tess__round_up(c->bytes + FENCE_BYTES, 256);
}

/* Tied parameters share the copies of the parameter that holds storage. */
static void measure_copies(const tess *t, tess__guard *g, int32_t i) {
    const tess__param *p = &t->plan.model.params[i];
    int kinds = p->tied_to != i || p->flags & TESS_BUFFER ? 0 : p->flags & TESS_FROZEN ? 1 : TESS__N_GUARDS;
    for (int k = 0; k < kinds; k++)
        g->copies[TESS__N_GUARDS * i + k] = (guard_copy){ .bytes = bytes_of(t, p, k), .scope = -1 };
}

static int obtain_host(tess__guard *g) {
    for (int32_t i = 0; i < TESS__N_GUARDS * g->n; i++) {
        guard_copy *c = &g->copies[i];
        if (!c->bytes)
            continue;
        if (!(c->at = aligned_alloc(64, room_of(c))))
            return 0;
        memset(c->at, closed[i % TESS__N_GUARDS], c->bytes + FENCE_BYTES);
    }
    return 1;
}

/* Allocates beside the plan and beside what is measured, because without strictness this memory does not exist. */
static tess_status obtain_device(tess *t, tess__guard *g) {
    uint64_t all = 0, most = 0;
    for (int32_t i = 0; i < TESS__N_GUARDS * g->n; i++) {
        uint64_t room = g->copies[i].bytes ? room_of(&g->copies[i]) : 0;
        all += room;
        most = room > most ? room : most;
    }
    tess_alloc_request r = { .struct_size = sizeof r,
                             .mem = t->device.mem,
                             .domain = TESS_DOMAIN_DEVICE,
                             .category = TESS_CAT_TEMPORARY,
                             .numa_node = -1,
                             .bytes = all,
                             .align = 256 };
    for (int i = 0; i < 2; i++)
        if (!(g->seen[i] = malloc(most + 1)))
            return tess__fail(TESS_E_NOMEM, "no memory to look at %llu bytes", (unsigned long long)most);
    TRY(all ? tess__device_alloc(g->device, &r, &g->memory) : TESS_OK);
    char *at = g->memory.ptr;
    for (int32_t i = 0; i < TESS__N_GUARDS * g->n; i++) {
        guard_copy *c = &g->copies[i];
        if (!c->bytes)
            continue;
        c->at = at;
        at += room_of(c);
        TRY(tess__device_fill(g->device, c->at, closed[i % TESS__N_GUARDS], c->bytes + FENCE_BYTES));
    }
    return TESS_OK;
}

static tess_status obtain_copies(tess *t, tess__guard **g) {
    if (tess__host_reads(&t->device))
        return obtain_host(*g) ? TESS_OK
                               : tess__fail(TESS_E_NOMEM, "no memory for the copies that TESSERA_STRICT=1 hands out");
    tess_status s = obtain_device(t, *g);
    if (s != TESS_E_NOMEM)
        return s;
    tess__log(TESS_LOG_WARNING,
              "TESSERA_STRICT=1 does not watch pointers, as the copies that it hands out find no room: %s",
              tess_last_error());
    tess__guard_destroy(*g);
    *g = NULL;
    return TESS_OK;
}

tess_status tess__guard_create(tess *t, tess__guard **out) {
    if (!t->settings.strict)
        return TESS_OK;
    tess__guard *g = calloc(1, sizeof *g);
    int32_t n = t->plan.model.n_params;
    if (!g || !(g->copies = calloc(TESS__N_GUARDS * ((size_t)n + 1), sizeof *g->copies))) {
        free(g);
        return tess__fail(TESS_E_NOMEM, "no memory for the tables of TESSERA_STRICT=1");
    }
    g->n = n;
    g->device = &t->device;
    g->memory.struct_size = sizeof g->memory;
    for (int32_t i = 0; i < n; i++)
        measure_copies(t, g, i);
    tess_status s = obtain_copies(t, &g);
    if (s)
        tess__guard_destroy(g);
    else
        *out = g;
    return s;
}

void tess__guard_destroy(tess__guard *g) {
    if (!g)
        return;
    for (int32_t i = 0; !g->memory.ptr && !g->seen[0] && i < TESS__N_GUARDS * g->n; i++)
        free(g->copies[i].at);
    if (g->memory.ptr)
        tess__device_free(g->device, &g->memory);
    free(g->seen[0]);
    free(g->seen[1]);
    free(g->copies);
    free(g);
}

/* Gives the host the bytes at `at`; of a device, after its work has ended. Each of the two places, `which`, holds
 * until its next use. */
static tess_status fetch_bytes(tess *t, int which, const void *at, uint64_t bytes, const char **out) {
    *out = at;
    if (tess__host_reads(&t->device))
        return TESS_OK;
    *out = t->pass.guard->seen[which];
    return tess__streams_read(&t->streams, t->pass.guard->seen[which], at, bytes);
}

/* ---- open and close ---- */

static int is_closed(const char *at, uint64_t bytes, int kind) {
    for (uint64_t i = 0; i < bytes; i++)
        if ((unsigned char)at[i] != closed[kind])
            return 0;
    return 1;
}

static const char *name_of(int kind) {
    return kind == TESS__GUARD_PARAM ? "parameter" : "gradient of";
}

/* Names the call, or the block's function, at which a pointer ends. */
static const char *end_of(const tess *t, int kind) {
    if (t->plan.model.n_blocks)
        return kind == TESS__GUARD_PARAM ? "forward or backward" : "backward";
    return kind == TESS__GUARD_PARAM ? "the end" : "tess_backward_end";
}

static tess_status check_closed(tess *t, int32_t param, int kind, const char *call) {
    const guard_copy *c = copy_of(t, param, kind);
    const char *scope = c->scope >= 0 ? t->plan.model.scopes[c->scope].name : "?", *seen;
    TRY(fetch_bytes(t, 0, c->at, c->bytes + FENCE_BYTES, &seen));
    if (is_closed(seen, c->bytes + FENCE_BYTES, kind))
        return TESS_OK;
    return tess__fail(TESS_E_INVALID,
                      "%s \"%s\" was written after %s of scope \"%s\": its pointer held until then (seen in %s, "
                      "TESSERA_STRICT=1)",
                      name_of(kind), t->plan.model.params[param].name, end_of(t, kind), scope, call);
}

tess_status tess__guard_open(tess *t, int32_t param, int kind, void *real, void **out) {
    guard_copy *c = t->pass.guard && real ? copy_of(t, param, kind) : NULL;
    *out = real;
    if (!c || !c->at)
        return TESS_OK;
    if (!c->open)
        TRY(check_closed(t, param, kind, "the next begin"));
    if (!c->open++)
        TRY(tess__device_copy(&t->device, c->at, t->device.mem, real, t->device.mem, c->bytes, NULL));
    *out = c->at;
    return TESS_OK;
}

static tess_status check_content(tess *t, int32_t param, int kind, const void *real, const char *call,
                                 const char *scope) {
    const guard_copy *c = copy_of(t, param, kind);
    const tess__param *p = &t->plan.model.params[param];
    const char *seen, *as_given = NULL;
    TRY(fetch_bytes(t, 0, c->at, c->bytes + FENCE_BYTES, &seen));
    if (kind == TESS__GUARD_PARAM)
        TRY(fetch_bytes(t, 1, real, c->bytes, &as_given));
    if (!is_closed(seen + c->bytes, FENCE_BYTES, kind))
        return tess__fail(TESS_E_INVALID,
                          "%s of scope \"%s\": the program wrote past the end of the %s \"%s\", which is declared with "
                          "%llu elements (TESSERA_STRICT=1)",
                          call, scope, name_of(kind), p->name, (unsigned long long)p->elems);
    if (as_given && memcmp(seen, as_given, c->bytes) != 0)
        return tess__fail(TESS_E_INVALID,
                          "%s of scope \"%s\": the program wrote to parameter \"%s\", which is read-only "
                          "(TESSERA_STRICT=1)",
                          call, scope, p->name);
    uint32_t dtype = t->plan.layout.groups[p->group].grad_local;
    if (kind == TESS__GUARD_GRAD && tess__guard_in(seen, p->elems, dtype))
        return tess__fail(TESS_E_INVALID,
                          "%s of scope \"%s\": the gradient of \"%s\" holds the NaN that TESSERA_STRICT=1 leaves in "
                          "released memory: a pointer was used after its end, or past the end of a parameter",
                          call, scope, p->name);
    return TESS_OK;
}

tess_status tess__guard_close(tess *t, int32_t param, int kind, void *real, const char *call, int32_t scope) {
    guard_copy *c = t->pass.guard && real ? copy_of(t, param, kind) : NULL;
    if (!c || !c->at || !c->open || --c->open)
        return TESS_OK;
    TRY(check_content(t, param, kind, real, call, t->plan.model.scopes[scope].name));
    c->scope = scope;
    if (kind == TESS__GUARD_GRAD)
        TRY(tess__device_copy(&t->device, real, t->device.mem, c->at, t->device.mem, c->bytes, NULL));
    return tess__device_fill(&t->device, c->at, closed[kind], c->bytes);
}

tess_status tess__guard_check(tess *t, const char *call) {
    const tess__guard *g = t->pass.guard;
    for (int32_t i = 0; g && i < g->n; i++)
        for (int k = 0; k < TESS__N_GUARDS; k++)
            if (g->copies[TESS__N_GUARDS * i + k].at && !g->copies[TESS__N_GUARDS * i + k].open)
                TRY(check_closed(t, i, k, call));
    return TESS_OK;
}

/* ---- the NaN ---- */

/* Arithmetic passes a NaN's payload on, and narrowing or widening keeps its upper bits. */
int tess__guard_in(const void *data, uint64_t elems, uint32_t dtype) {
    for (uint64_t i = 0; i < elems; i++) {
        uint32_t single;
        uint64_t wide;
        if (dtype == TESS_F32)
            memcpy(&single, (const char *)data + 4 * i, sizeof single);
        else if (dtype == TESS_F64)
            memcpy(&wide, (const char *)data + 8 * i, sizeof wide);
        else
            return 0;
        if (dtype == TESS_F32 ? single == UINT32_MAX : wide >> 29 == UINT64_MAX >> 29)
            return 1;
    }
    return 0;
}
