/* SPDX-License-Identifier: BSD-3-Clause */
#include "joined.h"

#include "base/status.h"
#include "plugin.h"
#include <tessera/plugin_helpers.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *tess__joined_cut(char *selection) {
    char *cut = NULL;
    for (char *plus = strchr(selection, '+'); plus; plus = strchr(plus + 1, '+')) {
        size_t name = strspn(plus + 1, "abcdefghijklmnopqrstuvwxyz0123456789_-");
        if (plus[1] >= 'a' && plus[1] <= 'z' && (plus[1 + name] == ':' || !plus[1 + name]))
            cut = plus;
    }
    if (!cut)
        return NULL;
    *cut = 0;
    return cut + 1;
}

typedef struct {
    tess_offload_ops ops; /* the store's slots are those of the plugin that has it, whose store they get */
    tess__plugin *of[2];
    int storing; /* which of them has a store */
} joined;

/* ---- where things rest ------------------------------------------------------------------------- */

typedef struct { /* what the first one leaves to the second */
    tess_region *regions;
    tess_placement *placements;
    uint32_t *at, n; /* which of all regions each is */
} remainder;

static tess_status place_with(const tess__plugin *p, const tess_plan_env *env, const tess_region *regions, uint32_t n,
                              tess_placement *out, tess_error *error) {
    const tess_offload_ops *ops = p->ops;
    return ops->place(p->ctx, env, regions, n, out, error);
}

static void collect(remainder *r, const tess_region *regions, uint32_t n, const tess_placement *placed) {
    for (uint32_t i = 0; i < n; i++) {
        if (TESS_AT(placed, i)->rest != TESS_REST_DEVICE)
            continue;
        r->regions[r->n].struct_size = r->placements[r->n].struct_size = 0;
        tess_plugin_give(&r->regions[r->n], sizeof *r->regions, TESS_AT(regions, i), regions->struct_size);
        r->regions[r->n].struct_size = sizeof *r->regions;
        r->placements[r->n].struct_size = sizeof *r->placements;
        r->at[r->n++] = i;
    }
}

static tess_status place_remainder(const tess__plugin *p, const tess_plan_env *env, remainder *r, tess_placement *out,
                                   tess_error *error) {
    uint32_t size = out->struct_size;
    tess_status status = r->n ? place_with(p, env, r->regions, r->n, r->placements, error) : TESS_OK;
    for (uint32_t i = 0; !status && i < r->n; i++)
        tess_plugin_give((char *)out + (size_t)r->at[i] * size, size, &r->placements[i], sizeof *r->placements);
    return status;
}

static tess_status joined_place(void *ctx, const tess_plan_env *env, const tess_region *regions, uint32_t n,
                                tess_placement *out, tess_error *error) {
    const joined *x = ctx;
    remainder r = { .regions = calloc(n + 1, sizeof *r.regions),
                    .placements = calloc(n + 1, sizeof *r.placements),
                    .at = calloc(n + 1, sizeof *r.at) };
    tess_status status = r.regions && r.placements && r.at
                             ? place_with(x->of[0], env, regions, n, out, error)
                             : tess_plugin_fail(error, TESS_E_NOMEM, "no memory to place %u regions", n);
    if (!status && n) {
        collect(&r, regions, n, out);
        status = place_remainder(x->of[1], env, &r, out, error);
    }
    free(r.regions);
    free(r.placements);
    free(r.at);
    return status;
}

/* ---- the table --------------------------------------------------------------------------------- */

static tess_status joined_store_open(void *ctx, const tess_store_config *config, tess_store **out, uint64_t *obtained,
                                     tess_error *error) {
    const joined *x = ctx;
    const tess__plugin *p = x->of[x->storing];
    const tess_offload_ops *ops = p->ops;
    return ops->store_open(p->ctx, config, out, obtained, error);
}

static void joined_close(void *ctx) {
    joined *x = ctx;
    tess__plugin_close(x->of[0]);
    tess__plugin_close(x->of[1]);
    free(x);
}

static int has_store(const tess__plugin *p) {
    return TESS_CAN(tess_offload_ops, (const tess_offload_ops *)p->ops, store_close);
}

static void fill_table(joined *x) {
    x->ops = (tess_offload_ops){ .struct_size = sizeof x->ops,
                                 .abi_major = TESS_ABI_MAJOR,
                                 .abi_minor = TESS_ABI_MINOR,
                                 .close = joined_close,
                                 .place = joined_place };
    x->storing = !has_store(x->of[0]);
    if (!has_store(x->of[x->storing]))
        return;
    const tess_offload_ops *ops = x->of[x->storing]->ops;
    x->ops.store_open = joined_store_open;
    x->ops.store_post = ops->store_post;
    x->ops.store_wait = ops->store_wait;
    x->ops.store_close = ops->store_close;
    if (!TESS_CAN(tess_offload_ops, ops, store_deregister))
        return;
    x->ops.store_register = ops->store_register;
    x->ops.store_deregister = ops->store_deregister;
}

static tess_status make(joined *x, tess__plugin *p) {
    const tess__plugin *a = x->of[0], *b = x->of[1];
    if (has_store(a) && has_store(b))
        return tess__fail(TESS_E_UNSUPPORTED, "offload %s and %s have a store each, and a rank has one", a->name,
                          b->name);
    fill_table(x);
    p->kind = TESS_KIND_OFFLOAD;
    p->abi_major = a->abi_major < b->abi_major ? a->abi_major : b->abi_major;
    p->abi_minor = a->abi_minor < b->abi_minor ? a->abi_minor : b->abi_minor;
    snprintf(p->name, sizeof p->name, "%.15s+%.15s", a->name, b->name);
    snprintf(p->version, sizeof p->version, "%.11s+%.11s", a->version, b->version);
    p->ops = &x->ops;
    p->ctx = x;
    return TESS_OK;
}

tess_status tess__joined_make(tess__plugin *first, tess__plugin *second, tess__plugin **out) {
    joined *x = calloc(1, sizeof *x);
    tess__plugin *p = calloc(1, sizeof *p);
    tess_status status = TESS_E_NOMEM;
    if (x && p) {
        x->of[0] = first;
        x->of[1] = second;
        status = make(x, p);
    } else
        tess__fail(TESS_E_NOMEM, "no memory for two offload plugins");
    if (!status) {
        *out = p;
        return TESS_OK;
    }
    tess__plugin_close(first);
    tess__plugin_close(second);
    free(x);
    free(p);
    return status;
}
