/* SPDX-License-Identifier: BSD-3-Clause */
/* Declares a model's parameters and blocks to the engine. No other file of the models calls the engine. */
#include "model.h"

#include <string.h>
#include <tessera/gpu.h>
#include <tessera/inspect.h>
#include <tessera/plugin_helpers.h>

/* Aliases add their gradients up, so such a parameter's gradient cannot be stored. */
static int is_shared(const model *m, int32_t of) {
    for (int32_t i = 0; i < m->desc.n_params; i++)
        if (!strcmp(m->desc.params[i].alias_of, m->desc.params[of].name))
            return 1;
    return 0;
}

int model__stores_grad(const model *m, int32_t i) {
    return m->stores_grads && !m->desc.params[i].alias_of[0] && !is_shared(m, i);
}

/* Kernels must add gradients when several microbatches share a gradient buffer. With a mirror the group may become
 * smaller; each rank then gets more microbatches, so the answer has to hold for that case too. */
static int adds_at_end(const tess_info *info) {
    return info->mirror ? !info->sync_each || info->deterministic : info->accum > 1 && !info->sync_each;
}

static tess_status declare_param(tess *t, const model *m, int32_t i) {
    const model_param *p = &m->desc.params[i];
    if (p->alias_of[0])
        return tess_param_tie(t, p->name, p->alias_of);
    tess_param_options o = { .struct_size = sizeof o, .dtype = TESS_F32, .name = p->name };
    o.compute_dtypes = 1u << (p->is_buffer ? TESS_F32 : m->options.precision) | (p->in_fp8 ? 1u << TESS_F8E4M3 : 0);
    o.flags = p->is_buffer ? TESS_BUFFER : p->is_frozen ? TESS_FROZEN : 0;
    if (!o.flags && model__stores_grad(m, i))
        o.flags = TESS_GRAD_OVERWRITE;
    int64_t blocks = stored_elems(p->stored, p->elems);
    o.shape = p->shape;
    o.ndim = p->ndim;
    if (p->stored != STORED_F32) {
        o.dtype = stored_dtype(p->stored);
        o.compute_dtypes = 1u << o.dtype;
    }
    if (stored_in_blocks(p->stored))
        o.shape = &blocks, o.ndim = 1;
    o.optimizer_group = p->optimizer_group;
    o.tag = (uint64_t)i;
    return tess_param_add(t, &o, NULL);
}

/* Asks the engine for the dtype of a parameter that kernels can read in fp32, bf16 and fp16. */
static tess_status check_precision(const tess *t, const model *m, const model_param *p, uint32_t *compute) {
    tess_param_options o = { .struct_size = sizeof o, .dtype = TESS_F32, .name = p->name, .shape = p->shape };
    uint32_t dtype = 0, gradient = 0;
    o.ndim = p->ndim;
    o.compute_dtypes = 1u << TESS_F32 | 1u << TESS_BF16 | 1u << TESS_F16;
    OPS_TRY(tess_compute_dtype(t, &o, &dtype, &gradient));
    if (*compute && dtype != *compute)
        return tess_fail(TESS_E_UNSUPPORTED,
                         "parameter %s: TESSERA_PRECISION asks for dtype %u; model %s computes in f32, bf16 or f16 "
                         "throughout",
                         p->name, dtype, m->t->name);
    if (gradient != TESS_F32)
        return tess_fail(TESS_E_UNSUPPORTED,
                         "parameter %s: TESSERA_PRECISION asks for local gradients in dtype %u; model %s adds them up "
                         "in f32",
                         p->name, gradient, m->t->name);
    *compute = dtype;
    return TESS_OK;
}

/* Asks for the products of a matrix. Only a decoder's can be in fp8, and only beside bf16. */
static tess_status check_products(const tess *t, const model *m, uint32_t compute, uint32_t *out) {
    const int64_t shape[] = { 16, 16 };
    tess_param_options o = {
        .struct_size = sizeof o, .dtype = TESS_F32, .name = "products", .shape = shape, .ndim = 2
    };
    o.compute_dtypes = 1u << TESS_F32 | 1u << TESS_BF16 | 1u << TESS_F16 | 1u << TESS_F8E4M3;
    OPS_TRY(tess_product_dtype(t, &o, out));
    if (*out && (!m->t->decoder || compute != TESS_BF16))
        return tess_fail(
            TESS_E_UNSUPPORTED,
            "TESSERA_PRECISION asks for products in fp8, which are for decoders in bf16; model %s computes "
            "in %s",
            m->t->name, tess_dtype_name(compute));
    return TESS_OK;
}

tess_status model_precision(tess *t, const model *m, model_options *out) {
    uint32_t compute = 0, products = 0;
    for (int32_t i = 0; i < m->desc.n_params; i++)
        if (!m->desc.params[i].alias_of[0] && !m->desc.params[i].is_buffer)
            OPS_TRY(check_precision(t, m, &m->desc.params[i], &compute));
    compute = compute ? compute : TESS_F32;
    OPS_TRY(check_products(t, m, compute, &products));
    out->precision = compute, out->products = products;
    return TESS_OK;
}

tess_status model_declare(tess *t, model *m) {
    tess_info info = { .struct_size = sizeof info };
    OPS_TRY(tess_info_get(t, &info));
    m->stores_grads = m->may_store && !adds_at_end(&info);
    for (int32_t i = 0; i < m->desc.n_params; i++)
        OPS_TRY(declare_param(t, m, i));
    for (int32_t i = 0; i < m->desc.n_blocks; i++) {
        const model_block *b = &m->desc.blocks[i];
        tess_block_options o = { .struct_size = sizeof o, .name = b->name, .output_bytes = b->output_bytes };
        o.flags = b->flags | TESS_BLOCK_AUDIT;
        o.also = b->also[0] ? b->also : NULL;
        o.saved_bytes = b->saved_bytes;
        o.forward_scratch_bytes = b->forward_scratch_bytes;
        o.backward_scratch_bytes = b->backward_scratch_bytes;
        o.remake_scratch_bytes = b->remake_scratch_bytes;
        o.selective_saved_bytes = b->selective_saved_bytes;
        o.selective_scratch_bytes = b->selective_scratch_bytes;
        o.forward_work = model_block_cost(m, i).forward_flops;
        o.selective_work = model_selective_flops(m, i);
        o.forward = b->forward;
        o.backward = b->backward;
        o.user = b->user;
        OPS_TRY(tess_block_add(t, &o, NULL));
    }
    for (int32_t i = 0; i < m->desc.n_scopes; i++)
        OPS_TRY(tess_scope_add(t, m->desc.scopes[i], 0, NULL));
    return TESS_OK;
}

tess_status model_start(tess *t, model *m) {
    tess_info info = { .struct_size = sizeof info };
    OPS_TRY(tess_info_get(t, &info));
    tess_stream compute = { .mem = info.memory, .device = info.local_rank, .handle = tess_stream_get(t) };
    OPS_TRY(m->o->t->start(m->o, &compute));
    model__describe(m);
    return TESS_OK;
}

/* A recording may be replayed only if the launches are the same. They depend on the batch's header, and dropout
 * masks on the step. */
static uint64_t repeats(const model *m, const void *batch) {
    const model_batch *header = batch;
    uint64_t number = 1469598103934665603u;
    if (m->options.dropout > 0)
        return 0;
    const uint32_t of[] = { header->count, header->want_logits, header->logits_row, header->position };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        number = (number ^ of[i]) * 1099511628211u;
    return number | 1;
}

/* The host reads the batch's header, because the sizes of the launches depend on it. */
tess_status model_run_late(tess *t, model *m, const tess_run_options *options, int may_repeat) {
    tess_run_options o = *options;
    if (m->o->t->mem != TESS_MEM_HOST && m->t->check_batch && o.batch)
        OPS_TRY(m->t->check_batch(m, o.batch));
    m->host_batch = m->o->t->mem == TESS_MEM_HOST ? NULL : o.batch;
    tess_status status = tess_run_repeat(t, &o, may_repeat ? repeats(m, o.batch) : 0);
    m->host_batch = NULL;
    return status;
}

tess_status model_run(tess *t, model *m, const tess_run_options *o) {
    OPS_TRY(model_run_late(t, m, o, 1));
    return tess_run_wait(t);
}
