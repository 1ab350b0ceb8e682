/* SPDX-License-Identifier: BSD-3-Clause */
#include "direct.h"
#include <tessera/tessera.h>

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { GUARD = 64, GUARD_BYTE = 0xA5 };

typedef struct {
    char *data;
    uint64_t bytes;
} buffer;

struct direct {
    model *m;
    int check;
    int32_t n_buffers, max_params;
    buffer *buffers;         /* every allocation */
    float **params, **grads; /* per parameter */
    uint16_t **halves;       /* bf16 copies of the parameters if the model reads bf16 */
    const void **call_params;
    void **call_grads;
    char **outputs, **saved; /* per block */
    char *batch;             /* device copy of the batch; null if the operators compute on the host */
    char *scratch, *flow[2]; /* flow: two buffers that gradients between blocks alternate between */
    uint64_t scratch_bytes;
    double *clock; /* null: nothing is measured */
    float loss_scale;
};

static int on_host(const direct *d) {
    return d->m->o->t->mem == TESS_MEM_HOST;
}

static void *take(direct *d, uint64_t bytes) {
    uint64_t room = ops_align(bytes) + GUARD;
    void *device = NULL;
    if (!on_host(d)) {
        if (d->m->o->t->alloc(d->m->o, room, &device) == TESS_OK)
            d->buffers[d->n_buffers++] = (buffer){ device, bytes };
        return device;
    }
    char *data = aligned_alloc(64, room);
    if (!data)
        return NULL;
    memset(data, 0, bytes);
    memset(data + bytes, GUARD_BYTE, room - bytes);
    d->buffers[d->n_buffers++] = (buffer){ data, bytes };
    return data;
}

int direct_intact(const direct *d) {
    for (int32_t i = 0; on_host(d) && i < d->n_buffers; i++) {
        const buffer *b = &d->buffers[i];
        for (uint64_t at = b->bytes; at < ops_align(b->bytes) + GUARD; at++)
            if ((unsigned char)b->data[at] != GUARD_BYTE)
                return 0;
    }
    return 1;
}

static int32_t original(const model_desc *desc, int32_t i) {
    for (int32_t k = 0; desc->params[i].alias_of[0] && k < i; k++)
        if (!strcmp(desc->params[k].name, desc->params[i].alias_of))
            return k;
    return i;
}

static tess_status fill_param(direct *d, const tess_range *all, float *to) {
    if (on_host(d))
        return model_fill(d->m, all, to);
    float *values = malloc(all->elems * sizeof *values);
    if (!values)
        return tess_fail(TESS_E_NOMEM, "out of memory for %s", all->name);
    tess_status status = model_fill(d->m, all, values);
    if (status == TESS_OK)
        status = d->m->o->t->upload(d->m->o, values, to, all->elems * sizeof *values);
    free(values);
    return status;
}

static tess_status take_params(direct *d) {
    const model_desc *desc = &d->m->desc;
    for (int32_t i = 0; i < desc->n_params; i++) {
        const model_param *p = &desc->params[i];
        int32_t of = original(desc, i);
        d->params[i] = of == i ? take(d, (uint64_t)p->elems * sizeof(float)) : d->params[of];
        d->grads[i] = of == i ? take(d, (uint64_t)p->elems * sizeof(float)) : d->grads[of];
        int rounds = d->m->options.precision != TESS_F32 && !p->is_buffer && desc->params[of].stored == STORED_F32;
        if (rounds)
            d->halves[i] = of == i ? take(d, (uint64_t)p->elems * sizeof(uint16_t)) : d->halves[of];
        if (!d->params[i] || !d->grads[i] || (rounds && !d->halves[i]))
            return tess_fail(TESS_E_NOMEM, "out of memory for %s", p->name);
        tess_range all = { .struct_size = sizeof all, .param = i, .tag = (uint64_t)i, .name = p->name };
        all.slice_elems = all.elems = (uint64_t)p->elems;
        if (of == i)
            OPS_TRY(fill_param(d, &all, d->params[i]));
    }
    return TESS_OK;
}

static uint64_t most(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static tess_status take_buffers(direct *d) {
    const model_desc *desc = &d->m->desc;
    uint64_t flow_bytes = 0;
    for (int32_t i = 0; i < desc->n_blocks; i++) {
        const model_block *b = &desc->blocks[i];
        d->outputs[i] = take(d, b->output_bytes);
        d->saved[i] = take(d, b->saved_bytes);
        if (!d->outputs[i] || !d->saved[i])
            return tess_fail(TESS_E_NOMEM, "out of memory for block %s", b->name);
        flow_bytes = most(flow_bytes, b->output_bytes);
        d->scratch_bytes = most(d->scratch_bytes, most(b->forward_scratch_bytes, b->backward_scratch_bytes));
    }
    d->scratch = take(d, d->scratch_bytes);
    d->batch = on_host(d) ? NULL : take(d, desc->input_bytes);
    if (!on_host(d) && !d->batch)
        return tess_fail(TESS_E_NOMEM, "out of memory for a batch");
    d->flow[0] = take(d, flow_bytes);
    d->flow[1] = take(d, flow_bytes);
    if (!d->scratch || !d->flow[0] || !d->flow[1])
        return tess_fail(TESS_E_NOMEM, "out of memory for scratch");
    return TESS_OK;
}

tess_status direct_create(model *m, int check, direct **out) {
    size_t params = (size_t)m->desc.n_params, blocks = (size_t)m->desc.n_blocks;
    tess_status status = TESS_E_NOMEM;
    direct *d = calloc(1, sizeof *d);
    if (!d)
        return tess_fail(TESS_E_NOMEM, "out of memory for model %s", m->t->name);
    d->m = m;
    d->check = check;
    d->buffers = calloc(3 * params + 2 * blocks + 4, sizeof *d->buffers);
    d->params = calloc(params, sizeof *d->params);
    d->grads = calloc(params, sizeof *d->grads);
    d->halves = calloc(params, sizeof *d->halves);
    d->call_params = calloc(params, sizeof *d->call_params);
    d->call_grads = calloc(params, sizeof *d->call_grads);
    d->outputs = calloc(blocks, sizeof *d->outputs);
    d->saved = calloc(blocks, sizeof *d->saved);
    if (d->buffers && d->params && d->grads && d->halves && d->call_params && d->call_grads && d->outputs && d->saved)
        status = take_params(d);
    else
        tess_fail(TESS_E_NOMEM, "out of memory for model %s", m->t->name);
    if (status == TESS_OK)
        status = take_buffers(d);
    if (status == TESS_OK && on_host(d))
        status = m->o->t->start(m->o, NULL);
    if (status != TESS_OK) {
        direct_destroy(d);
        return status;
    }
    *out = d;
    return TESS_OK;
}

void direct_destroy(direct *d) {
    if (!d)
        return;
    for (int32_t i = 0; d->buffers && i < d->n_buffers; i++)
        if (on_host(d))
            free(d->buffers[i].data);
        else
            d->m->o->t->free(d->m->o, d->buffers[i].data);
    free(d->buffers);
    free(d->params);
    free(d->grads);
    free(d->halves);
    free(d->call_params);
    free(d->call_grads);
    free(d->outputs);
    free(d->saved);
    free(d);
}

float *direct_param(direct *d, int32_t param) {
    return d->params[param];
}
float *direct_grad(direct *d, int32_t param) {
    return d->grads[param];
}

void direct_zero_grads(direct *d) {
    const model_desc *desc = &d->m->desc;
    for (int32_t i = 0; i < desc->n_params; i++)
        if (!model__stores_grad(d->m, i))
            d->m->o->t->zero(d->m->o, d->grads[i],
                             (size_t)desc->params[i].elems * sizeof(float)); /* aliases have no elements */
}

static void prepare_call(direct *d, int32_t i, uint64_t scratch_bytes, tess_block_call *call) {
    const model_block *b = &d->m->desc.blocks[i];
    for (int32_t k = 0; k < b->n_params; k++) {
        int32_t p = b->first_param + k;
        d->call_params[k] = d->halves[p] ? (const void *)d->halves[p] : d->params[p];
        d->call_grads[k] = d->m->desc.params[p].is_frozen ? NULL : d->grads[p];
    }
    call->params = d->call_params;
    call->grads = d->call_grads;
    call->n_params = b->n_params;
    call->input = i > 0 ? d->outputs[i - 1] : NULL;
    call->output = d->outputs[i];
    call->saved = call->pass & TESS_PASS_TRAIN ? d->saved[i] : NULL;
    /* A call's scratch ends where the buffer ends, so that a write beyond the declared size hits the guard. */
    call->scratch = d->scratch + (ops_align(d->scratch_bytes) - ops_align(scratch_bytes));
    if (d->check && on_host(d))
        memset(d->scratch, 0xFF, d->scratch_bytes);
}

/* Rounds the fp32 parameters to the bf16 or fp16 that the blocks read. */
static tess_status round_params(direct *d) {
    const model_desc *desc = &d->m->desc;
    for (int32_t i = 0; i < desc->n_params; i++)
        if (d->halves[i])
            OPS_TRY(d->m->o->t->narrow(d->m->o, d->params[i], d->halves[i], (uint64_t)desc->params[i].elems));
    return TESS_OK;
}

void direct_scale_loss(direct *d, float scale) {
    d->loss_scale = scale;
}

void direct_clock(direct *d, double *seconds) {
    d->clock = seconds;
}

static tess_status call_block(direct *d, tess_block_fn fn, void *user, const tess_block_call *call, int32_t at) {
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    tess_status status = fn(user, call);
    if (status == TESS_OK && d->clock && !on_host(d))
        status = d->m->o->t->finish(d->m->o);
    clock_gettime(CLOCK_MONOTONIC, &end);
    if (d->clock)
        d->clock[at] = (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) * 1e-9;
    return status;
}

static int result_is_late(const direct *d, uint32_t pass) {
    return pass & TESS_PASS_TRAIN && d->m->desc.blocks[d->m->desc.n_blocks - 1].flags & TESS_BLOCK_LATE_RESULT;
}

static tess_status take_result(direct *d, void *result) {
    const model_desc *desc = &d->m->desc;
    if (result && !on_host(d))
        return d->m->o->t->download(d->m->o, d->outputs[desc->n_blocks - 1], result, desc->result_bytes);
    if (result)
        memcpy(result, d->outputs[desc->n_blocks - 1], desc->result_bytes);
    return TESS_OK;
}

/* Acts as the engine does: later calls cannot read a dropped output, and a gradient in place has no second buffer. */
static void keep_promises(direct *d, int32_t i, int32_t *flow, tess_block_call *call) {
    const model_block *b = &d->m->desc.blocks[i];
    int last = i == d->m->desc.n_blocks - 1,
        in_place = i > 0 && !last && b->flags & TESS_BLOCK_GRAD_IN_PLACE && b->output_bytes == b[-1].output_bytes;
    if (b->flags & TESS_BLOCK_DROP_OUTPUT) {
        if (d->check && on_host(d))
            memset(d->outputs[i], 0xFF, b->output_bytes);
        call->output = NULL;
    }
    call->grad_output = last ? NULL : d->flow[*flow];
    *flow ^= !in_place;
    call->grad_input = i > 0 ? d->flow[*flow] : NULL;
}

static tess_status run_backward(direct *d, tess_block_call *call) {
    const model_desc *desc = &d->m->desc;
    int32_t flow = 0;
    for (int32_t i = desc->n_blocks - 1; i >= 0; i--) {
        prepare_call(d, i, desc->blocks[i].backward_scratch_bytes, call);
        keep_promises(d, i, &flow, call);
        OPS_TRY(call_block(d, desc->blocks[i].backward, desc->blocks[i].user, call, desc->n_blocks + i));
    }
    return TESS_OK;
}

tess_status direct_run(direct *d, uint32_t pass, const void *batch, uint64_t step, uint64_t microbatch, void *result) {
    const model_desc *desc = &d->m->desc;
    tess_block_call call = { .struct_size = sizeof call, .pass = pass, .batch = batch };
    call.compute_dtype = d->m->options.precision;
    call.step = step;
    call.microbatch = microbatch;
    call.loss_scale = d->loss_scale;
    call.threads = d->m->options.threads;
    OPS_TRY(round_params(d));
    d->m->host_batch = NULL;
    if (!on_host(d)) {
        OPS_TRY(d->m->t->check_batch ? d->m->t->check_batch(d->m, batch) : TESS_OK);
        d->m->host_batch = batch;
        call.batch = d->batch;
        OPS_TRY(d->m->o->t->upload(d->m->o, batch, d->batch, desc->input_bytes));
    }
    for (int32_t i = 0; i < desc->n_blocks; i++) {
        prepare_call(d, i, desc->blocks[i].forward_scratch_bytes, &call);
        OPS_TRY(call_block(d, desc->blocks[i].forward, desc->blocks[i].user, &call, i));
    }
    OPS_TRY(result_is_late(d, pass) ? TESS_OK : take_result(d, result));
    OPS_TRY(pass & TESS_PASS_TRAIN ? run_backward(d, &call) : TESS_OK);
    return result_is_late(d, pass) ? take_result(d, result) : TESS_OK;
}
