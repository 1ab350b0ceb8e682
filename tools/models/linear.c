/* SPDX-License-Identifier: BSD-3-Clause */
/* The 3×3 linear layer without bias of PyTorch's uneven-sharding test. It is so small that some ranks own nothing.
 * Its loss is the sum of its outputs, so output and update have a closed form. */
#include "model.h"
#include <tessera/tessera.h>

#include <stdlib.h>

enum { SIZE = 3 };

typedef struct {
    ops_linear *layer;
    uint64_t y_bytes;
} linear;

static uint32_t rows_of(const model *m, const model_batch *batch) {
    return batch->count < (uint32_t)m->options.batch ? batch->count : (uint32_t)m->options.batch;
}

static const float *input_of(const tess_block_call *call) {
    return (const float *)((const model_batch *)call->batch + 1);
}

static tess_status linear_forward(void *user, const tess_block_call *call) {
    model *m = user;
    linear *l = m->own;
    const ops_table *t = m->o->t;
    float *y = call->scratch;
    linear_result *result = call->output;
    uint32_t rows = rows_of(m, model__batch(m, call));
    OPS_TRY(t->linear_forward(l->layer, input_of(call), call->params[0], NULL, y, (char *)y + l->y_bytes));
    OPS_TRY(t->zero(m->o, result, sizeof *result));
    OPS_TRY(t->copy(m->o, y, result->output, sizeof result->output));
    return t->sum_loss(m->o, y, rows * SIZE, 0, rows, model__loss(call));
}

/* The loss is the mean over rows of the sum of outputs. */
static tess_status linear_backward(void *user, const tess_block_call *call) {
    model *m = user;
    linear *l = m->own;
    float *dy = call->scratch;
    uint32_t rows = rows_of(m, model__batch(m, call));
    OPS_TRY(m->o->t->sum_loss_backward(m->o, NULL, rows * SIZE, 0, model__loss_scale(call) / (float)rows,
                                       (uint64_t)m->options.batch * SIZE, dy));
    return m->o->t->linear_backward(l->layer, input_of(call), call->params[0], dy, NULL, call->grads[0], NULL,
                                    (char *)dy + l->y_bytes);
}

static tess_status linear_build(model *m) {
    uint64_t batch = (uint64_t)m->options.batch;
    ops_scratch need;
    linear *l = m->own = calloc(1, sizeof *l);
    if (!l)
        return tess_fail(TESS_E_NOMEM, "out of memory for model linear");
    ops_linear_shape shape = { m->options.batch, SIZE, SIZE, 0, 1 };
    OPS_TRY(m->o->t->linear_create(m->o, &shape, &l->layer, &need));
    l->y_bytes = ops_align(batch * SIZE * sizeof(float));
    m->desc.input_bytes = sizeof(model_batch) + batch * SIZE * sizeof(float);
    model_block b = { .name = "linear", .output_bytes = sizeof(linear_result), .user = m, .products = 1 };
    b.forward_scratch_bytes = l->y_bytes + need.forward_bytes;
    b.backward_scratch_bytes = l->y_bytes + need.backward_bytes;
    b.forward = linear_forward;
    b.backward = linear_backward;
    OPS_TRY(model__add_param(m, "linear.weight", (const int64_t[MODEL_DIMS]){ SIZE, SIZE }, MODEL_GRID, 0.125f));
    return model__add_block(m, &b);
}

static void linear_release(model *m) {
    linear *l = m->own;
    if (l)
        m->o->t->linear_destroy(l->layer);
    free(l);
}

void linear_fill_input(uint64_t sample, float x[3]) {
    for (uint64_t i = 0; i < SIZE; i++)
        x[i] = 1.0f + 0.25f * (float)(sample % 16 * SIZE + i);
}

void linear_expect(int32_t ranks, int32_t batch, double lr, const float x[3], double weight[9], double output[3],
                   double updated[9]) {
    double mean[SIZE] = { 0 };
    int32_t samples = ranks * batch;
    for (int32_t s = 0; s < samples; s++) {
        float row[SIZE];
        linear_fill_input((uint64_t)s, row);
        for (int i = 0; i < SIZE; i++)
            mean[i] += row[i];
    }
    for (int o = 0; o < SIZE; o++) {
        output[o] = 0;
        for (int i = 0; i < SIZE; i++) {
            int e = o * SIZE + i;
            weight[e] = 0.125 * (e % 7 - 3);
            output[o] += weight[e] * x[i];
            updated[e] = weight[e] - lr * mean[i] / samples; /* each output's gradient is its input */
        }
    }
}

const model_ops model_linear = {
    .name = "linear",
    .defaults = { .batch = 1 },
    .optimizer_groups = 1,
    .build = linear_build,
    .release = linear_release,
};
