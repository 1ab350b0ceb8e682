/* SPDX-License-Identifier: BSD-3-Clause */
/* Tells a program what its engine chose: tess_info_get, tess_stream_get, dtypes, microbatches. */
#include "engine/state.h"

#include <tessera/gpu.h>
#include <tessera/inspect.h>
#include <tessera/plugin_helpers.h>
#include "layout/dtypes.h"
#include "base/status.h"

static tess_info info_of(const tess *t) {
    const tess__setup *s = &t->plan.setup;
    return (tess_info){ .memory = s->env.mem,
                        .comm = t->selection.text[TESS_KIND_COMM],
                        .offload = t->selection.text[TESS_KIND_OFFLOAD],
                        .precision = t->selection.text[TESS_KIND_PRECISION],
                        .wrap = t->selection.text[TESS_KIND_WRAP],
                        .strategy = t->settings.strategy,
                        .device = t->selection.text[TESS_KIND_DEVICE],
                        .optimizer = t->settings.optimizer,
                        .activations = t->plan.activations_text ? t->plan.activations_text : t->settings.activations,
                        .rank = t->comms.world.rank,
                        .ranks = s->nranks,
                        .local_rank = t->comms.world.local_rank,
                        .shard_ranks = s->shard_ranks,
                        .replicas = s->replicas,
                        .threads = t->plan.setup.threads,
                        .accum = s->accum,
                        .prefetch = s->prefetch,
                        .sync_each = s->sync_each != 0,
                        .deterministic = s->deterministic != 0,
                        .strict = t->settings.strict != 0,
                        .plan_only = t->settings.plan_only != 0,
                        .n_states = s->step ? t->plan.layout.n_states : s->n_states,
                        .device_memory_bytes = s->env.device_budget_bytes,
                        .host_memory_bytes = s->env.host_budget_bytes,
                        .disk_memory_bytes = s->disk_budget_bytes,
                        .mirror = s->mirror,
                        .joins = t->mirror.joins != 0 };
}

tess_status tess_info_get(const tess *t, tess_info *out) {
    if (!t || !out)
        return tess__fail(TESS_E_INVALID, "tess_info_get: the engine or the place for the answer is missing");
    if (out->struct_size < 8 || out->struct_size > 1 << 16)
        return tess__fail(TESS_E_INVALID, "tess_info_get: struct_size is %u; set it to sizeof(tess_info)",
                          out->struct_size);
    tess_info info = info_of(t);
    TESS_GIVE(out, &info);
    return TESS_OK;
}

void *tess_stream_get(const tess *t) {
    return t ? t->device.compute.handle : NULL;
}

/* ---- precision ---- */

static tess_status choice_of(const tess *t, const char *call, const tess_param_options *options,
                             tess_precision_choice *c) {
    tess_param_options o;
    TRY(tess__copy_options(call, &o, sizeof o, TESS__UP_TO(tess_param_options, tag), options));
    if (!o.name || o.ndim < 0 || o.ndim > TESS__MAX_DIMS || !o.ndim != !o.shape || !tess_dtype_bytes(o.dtype))
        return tess__fail(TESS_E_INVALID, "%s: a parameter needs a name, a dtype and a shape", call);
    tess__param p = { .name = (char *)o.name,
                      .dtype = o.dtype,
                      .flags = o.flags,
                      .compute_dtypes = o.compute_dtypes,
                      .ndim = o.ndim,
                      .elems = 1 };
    for (int32_t d = 0; d < o.ndim; d++)
        p.elems *= (uint64_t)(p.shape[d] = o.shape[d]);
    *c = (tess_precision_choice){ .compute = o.dtype, .grad_local = o.dtype };
    return o.flags & TESS_BUFFER ? TESS_OK : tess__param_dtypes(&t->plan.setup, &p, c);
}

tess_status tess_compute_dtype(const tess *t, const tess_param_options *options, uint32_t *dtype, uint32_t *grad) {
    tess_precision_choice c;
    if (!t || !dtype)
        return tess__fail(TESS_E_INVALID, "tess_compute_dtype: the engine or the place for the dtype is missing");
    TRY(choice_of(t, "tess_compute_dtype", options, &c));
    *dtype = c.compute;
    if (grad)
        *grad = c.grad_local;
    return TESS_OK;
}

tess_status tess_product_dtype(const tess *t, const tess_param_options *options, uint32_t *dtype) {
    tess_precision_choice c;
    if (!t || !dtype)
        return tess__fail(TESS_E_INVALID, "tess_product_dtype: the engine or the place for the dtype is missing");
    TRY(choice_of(t, "tess_product_dtype", options, &c));
    *dtype = c.products;
    return TESS_OK;
}

/* ---- microbatches ---- */

int32_t tess_accum(const tess *t) {
    return t ? t->plan.setup.accum : -1;
}

/* A microbatch is a leaf of the sum: docs/numbers.md, "Sums". */
uint64_t tess_microbatch(const tess *t, uint64_t k) {
    if (!t)
        return 0;
    uint64_t rank = (uint64_t)t->comms.world.rank, ranks = (uint64_t)t->plan.setup.nranks;
    uint64_t accum = (uint64_t)t->plan.setup.accum, j = k % accum;
    return k / accum * accum * ranks + (t->plan.setup.sync_each ? j * ranks + rank : rank * accum + j);
}
