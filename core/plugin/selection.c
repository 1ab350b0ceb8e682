/* SPDX-License-Identifier: BSD-3-Clause */
#include "selection.h"

#include "auto_comm.h"
#include "base/crash.h"
#include "base/log.h"
#include "base/options.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    int32_t nranks, ranks_per_host;
    int announce;
} ranks;

/* Picks for comm=auto: `self` for one rank, which needs no network, else the fastest plugin between these ranks. */
static tess_status pick_comm(tess__selection *x, const ranks *r) {
    tess_device_info info = { .struct_size = sizeof info };
    tess_error e = { .struct_size = sizeof e };
    const tess__plugin *device = x->plugins[TESS_KIND_DEVICE];
    const tess_device_ops *ops = device->ops;
    tess_status s = ops->describe(device->ctx, -1, &info, &e);
    if (s)
        return tess__plugin_failed(s, TESS_KIND_DEVICE, device, &e);
    tess_plan_env env = {
        .struct_size = sizeof env, .mem = info.mem, .nranks = r->nranks, .ranks_per_host = r->ranks_per_host
    };
    TRY(tess__comm_choose(&x->host, &env, &x->plugins[TESS_KIND_COMM]));
    if (r->announce && r->nranks > 1)
        tess__log(TESS_LOG_INFO, "comm=auto picked %s for %d ranks, %d of them on one host",
                  x->plugins[TESS_KIND_COMM]->name, r->nranks, r->ranks_per_host);
    x->comm_picked = 1;
    return TESS_OK;
}

static tess_status open_kind(tess__selection *x, const ranks *r, uint32_t kind, const char *fallback) {
    const char *selection = tess__option_or(tess__kind_name(kind), fallback);
    if (kind == TESS_KIND_COMM && strcmp(selection, "auto") == 0) {
        TRY(pick_comm(x, r));
        selection = x->plugins[kind]->name;
    } else {
        TRY(tess__plugin_open(kind, selection, &x->host, &x->plugins[kind]));
    }
    x->text[kind] = strdup(selection);
    return x->text[kind] ? TESS_OK : tess__fail(TESS_E_NOMEM, "no memory for the name of a plugin");
}

/* The device comes first: comm=auto asks it for its kind of memory. */
tess_status tess__selection_open(tess__selection *x, int32_t nranks, int32_t ranks_per_host, int announce) {
    const ranks r = { nranks, ranks_per_host, announce };
    TRY(open_kind(x, &r, TESS_KIND_DEVICE, "cpu"));
    TRY(open_kind(x, &r, TESS_KIND_COMM, "auto"));
    TRY(open_kind(x, &r, TESS_KIND_PRECISION, "fp32"));
    TRY(open_kind(x, &r, TESS_KIND_OFFLOAD, "none"));
    TRY(open_kind(x, &r, TESS_KIND_WRAP, "scopes"));
    const char *optimizer = tess__option_or("optimizer", "adamw");
    if (strcmp(optimizer, "none") == 0 || strcmp(optimizer, "own") == 0)
        return TESS_OK;
    TRY(open_kind(x, &r, TESS_KIND_OPTIMIZER, "adamw"));
    x->watches_crashes = *x->plugins[TESS_KIND_OPTIMIZER]->path != 0; /* not a built-in one */
    if (x->watches_crashes)
        tess__crash_watch();
    return TESS_OK;
}

void tess__selection_close(tess__selection *x) {
    if (x->watches_crashes)
        tess__crash_unwatch();
    x->watches_crashes = 0;
    for (int kind = 1; kind < TESS__N_KINDS; kind++) {
        tess__plugin_close(x->plugins[kind]);
        free(x->text[kind]);
    }
    uint64_t left = atomic_load(&x->book.live[TESS_DOMAIN_HOST]);
    if (left)
        tess__log(TESS_LOG_WARNING, "the plugins have not given back %llu bytes of host memory",
                  (unsigned long long)left);
}
