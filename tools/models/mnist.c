/* SPDX-License-Identifier: BSD-3-Clause */
/* The network of PyTorch's FSDP tutorial on MNIST: two convolutions, two linear layers. Images are NHWC inside. The
 * pool writes PyTorch's order, so that fc1.weight has PyTorch's columns. */
#include "model.h"
#include <tessera/tessera.h>

#include <math.h>
#include <stdlib.h>

enum { SIDE = 28, SIDE1 = 26, SIDE2 = 24, POOLED = 12, MAPS1 = 32, MAPS2 = 64, FLAT = 9216, HIDDEN = 128, DIGITS = 10 };
enum { LAYER_POOL = 1, LAYER_HIDDEN = 2 }; /* layer numbers of the dropout masks */

typedef struct {
    ops_conv *conv1, *conv2;
    ops_linear *fc1, *fc2;
    ops_conv_shape pool; /* conv2's output */
    float drop_pool, drop_hidden;
    int32_t chunk;                   /* samples per call of a convolution */
    uint64_t map1_bytes, map2_bytes; /* bytes of a chunk's maps */
    uint64_t hidden_bytes, logits_bytes;
} mnist;

static tess_status batch_check(const model *m, const model_batch *batch) {
    const int32_t *labels = (const int32_t *)(batch + 1);
    if (batch->count > (uint32_t)m->options.batch)
        return tess_fail(TESS_E_DATA, "mnist: %u samples in a batch of %d", batch->count, m->options.batch);
    for (uint32_t i = 0; i < batch->count; i++)
        if (labels[i] < 0 || labels[i] >= DIGITS)
            return tess_fail(TESS_E_DATA, "mnist: label %d of sample %u: expected 0 to 9", labels[i], i);
    return TESS_OK;
}

/* Returns the images from the chunk's first sample on. */
static const float *images_of(const model *m, const void *batch) {
    return (const float *)((const char *)batch + sizeof(model_batch) +
                           ops_align((uint64_t)m->options.batch * sizeof(int32_t))) +
           (int64_t)m->first_sample * SIDE * SIDE;
}

/* Returns the common slope of relu and dropout. Where the output is 0 no gradient flows back; elsewhere it grows by
 * 1/(1-rate). */
static float growth(const model *m, const tess_block_call *call, float rate) {
    return 1.0f / (1.0f - model__dropout(m, call, 0, rate).rate);
}

static tess_status conv1_forward(void *user, const tess_block_call *call) {
    model *m = user;
    mnist *n = m->own;
    OPS_TRY(batch_check(m, model__batch(m, call)));
    return m->o->t->conv_forward(n->conv1, images_of(m, call->batch), call->params[0], call->params[1], call->output,
                                 call->scratch);
}

static tess_status conv1_backward(void *user, const tess_block_call *call) {
    model *m = user;
    mnist *n = m->own;
    float *dy = call->scratch;
    void *rest = (char *)call->scratch + n->map1_bytes;
    OPS_TRY(m->o->t->relu_backward(m->o, call->output, call->grad_output, dy, n->map1_bytes / sizeof *dy, 1));
    return m->o->t->conv_backward(n->conv1, images_of(m, call->batch), call->params[0], dy, NULL, call->grads[0],
                                  call->grads[1], rest);
}

static tess_status conv2_forward(void *user, const tess_block_call *call) {
    model *m = user;
    mnist *n = m->own;
    const ops_table *t = m->o->t;
    float *map = call->scratch;
    void *rest = (char *)call->scratch + n->map2_bytes;
    ops_dropout drop = model__dropout(m, call, LAYER_POOL, n->drop_pool);
    OPS_TRY(t->conv_forward(n->conv2, call->input, call->params[0], call->params[1], map, rest));
    OPS_TRY(t->maxpool(m->o, map, &n->pool, call->output, call->saved));
    return t->dropout(m->o, call->output, (uint64_t)n->chunk, FLAT, &drop);
}

static tess_status conv2_backward(void *user, const tess_block_call *call) {
    model *m = user;
    mnist *n = m->own;
    const ops_table *t = m->o->t;
    float *dmap = call->scratch, scale = growth(m, call, n->drop_pool);
    void *rest = (char *)call->scratch + n->map2_bytes;
    OPS_TRY(t->maxpool_backward(m->o, call->output, call->saved, call->grad_output, &n->pool, dmap, scale));
    return t->conv_backward(n->conv2, call->input, call->params[0], dmap, call->grad_input, call->grads[0],
                            call->grads[1], rest);
}

static tess_status fc1_forward(void *user, const tess_block_call *call) {
    model *m = user;
    mnist *n = m->own;
    ops_dropout drop = model__dropout(m, call, LAYER_HIDDEN, n->drop_hidden);
    OPS_TRY(
        m->o->t->linear_forward(n->fc1, call->input, call->params[0], call->params[1], call->output, call->scratch));
    return m->o->t->dropout(m->o, call->output, (uint64_t)m->options.batch, HIDDEN, &drop);
}

static tess_status fc1_backward(void *user, const tess_block_call *call) {
    model *m = user;
    mnist *n = m->own;
    float *dy = call->scratch, scale = growth(m, call, n->drop_hidden);
    void *rest = (char *)call->scratch + n->hidden_bytes;
    uint64_t elems = (uint64_t)m->options.batch * HIDDEN;
    OPS_TRY(m->o->t->relu_backward(m->o, call->output, call->grad_output, dy, elems, scale));
    return m->o->t->linear_backward(n->fc1, call->input, call->params[0], dy, call->grad_input, call->grads[0],
                                    call->grads[1], rest);
}

static const int32_t *labels_of(const tess_block_call *call) {
    return (const int32_t *)((const model_batch *)call->batch + 1);
}

static tess_status fc2_forward(void *user, const tess_block_call *call) {
    model *m = user;
    mnist *n = m->own;
    float *logits = call->saved ? call->saved : call->scratch;
    void *rest = (char *)call->scratch + n->logits_bytes;
    OPS_TRY(m->o->t->linear_forward(n->fc2, call->input, call->params[0], call->params[1], logits, rest));
    return m->o->t->cross_entropy(m->o, logits, labels_of(call), (uint64_t)m->options.batch, DIGITS,
                                  model__batch(m, call)->count, model__loss(call), rest);
}

static tess_status fc2_backward(void *user, const tess_block_call *call) {
    model *m = user;
    mnist *n = m->own;
    float *dlogits = call->scratch;
    void *rest = (char *)call->scratch + n->logits_bytes;
    OPS_TRY(m->o->t->cross_entropy_backward(m->o, call->saved, labels_of(call), (uint64_t)m->options.batch, DIGITS,
                                            model__batch(m, call)->count, model__loss_scale(call), dlogits));
    return m->o->t->linear_backward(n->fc2, call->input, call->params[0], dlogits, call->grad_input, call->grads[0],
                                    call->grads[1], rest);
}

/* PyTorch's default: weight and bias uniform within 1/sqrt(fan-in). */
static tess_status add_layer(model *m, const char *weight, const char *bias, const int64_t shape[MODEL_DIMS]) {
    int64_t fan = shape[1] * (shape[2] ? shape[2] * shape[3] : 1);
    float bound = (float)(1.0 / sqrt((double)fan));
    const int64_t line[MODEL_DIMS] = { shape[0] };
    OPS_TRY(model__add_param(m, weight, shape, MODEL_UNIFORM, bound));
    return model__add_param(m, bias, line, MODEL_UNIFORM, bound);
}

static tess_status build_convolutions(model *m, mnist *n) {
    ops_scratch need;
    int32_t chunk = n->chunk, chunks = m->options.batch / chunk;
    ops_conv_shape one = { chunk, SIDE, SIDE, 1, MAPS1, 3, 1, 0 }, two = { chunk, SIDE1, SIDE1, MAPS1, MAPS2, 3, 1, 0 };
    OPS_TRY(m->o->t->conv_create(m->o, &one, &n->conv1, &need));
    model_block b = { .name = "conv1", .chunks = chunks, .user = m, .products = 1, .reads_output = 1 };
    b.output_bytes = (uint64_t)chunks * n->map1_bytes;
    b.forward_scratch_bytes = need.forward_bytes;
    b.backward_scratch_bytes = n->map1_bytes + need.backward_bytes;
    b.forward = conv1_forward;
    b.backward = conv1_backward;
    OPS_TRY(add_layer(m, "conv1.weight", "conv1.bias", (const int64_t[MODEL_DIMS]){ MAPS1, 1, 3, 3 }));
    OPS_TRY(model__add_block(m, &b));
    OPS_TRY(m->o->t->conv_create(m->o, &two, &n->conv2, &need));
    b = (model_block){ .name = "conv2", .chunks = chunks, .user = m, .products = 1, .reads_output = 1 };
    b.output_bytes = (uint64_t)m->options.batch * FLAT * sizeof(float);
    b.saved_bytes = (uint64_t)m->options.batch * FLAT; /* the position of each maximum, one byte each */
    b.forward_scratch_bytes = n->map2_bytes + need.forward_bytes;
    b.backward_scratch_bytes = n->map2_bytes + need.backward_bytes;
    b.forward = conv2_forward;
    b.backward = conv2_backward;
    OPS_TRY(add_layer(m, "conv2.weight", "conv2.bias", (const int64_t[MODEL_DIMS]){ MAPS2, MAPS1, 3, 3 }));
    return model__add_block(m, &b);
}

static tess_status build_linears(model *m, mnist *n) {
    ops_scratch need;
    int32_t batch = m->options.batch;
    OPS_TRY(m->o->t->linear_create(m->o, &(ops_linear_shape){ batch, FLAT, HIDDEN, 1, 0 }, &n->fc1, &need));
    model_block b = { .name = "fc1", .output_bytes = n->hidden_bytes, .user = m, .products = 1, .reads_output = 1 };
    b.forward_scratch_bytes = need.forward_bytes;
    b.backward_scratch_bytes = n->hidden_bytes + need.backward_bytes;
    b.forward = fc1_forward;
    b.backward = fc1_backward;
    OPS_TRY(add_layer(m, "fc1.weight", "fc1.bias", (const int64_t[MODEL_DIMS]){ HIDDEN, FLAT }));
    OPS_TRY(model__add_block(m, &b));
    OPS_TRY(m->o->t->linear_create(m->o, &(ops_linear_shape){ batch, HIDDEN, DIGITS, 0, 0 }, &n->fc2, &need));
    b = (model_block){ .name = "fc2", .output_bytes = sizeof(model_result), .user = m, .products = 1 };
    b.saved_bytes = n->logits_bytes;
    uint64_t loss_bytes = m->o->t->cross_entropy_need((uint64_t)m->options.batch);
    b.forward_scratch_bytes = n->logits_bytes + (need.forward_bytes > loss_bytes ? need.forward_bytes : loss_bytes);
    b.backward_scratch_bytes = n->logits_bytes + need.backward_bytes;
    b.forward = fc2_forward;
    b.backward = fc2_backward;
    OPS_TRY(add_layer(m, "fc2.weight", "fc2.bias", (const int64_t[MODEL_DIMS]){ DIGITS, HIDDEN }));
    return model__add_block(m, &b);
}

static tess_status mnist_build(model *m) {
    uint64_t batch = (uint64_t)m->options.batch;
    mnist *n = m->own = calloc(1, sizeof *n);
    if (!n)
        return tess_fail(TESS_E_NOMEM, "out of memory for model mnist");
    n->chunk = model__chunk_samples(m);
    n->pool = (ops_conv_shape){ .batch = n->chunk, .height = SIDE2, .width = SIDE2, .channels = MAPS2 };
    n->drop_pool = m->options.dropout > 0 ? 0.25f : 0;
    n->drop_hidden = m->options.dropout > 0 ? 0.5f : 0;
    n->map1_bytes = (uint64_t)n->chunk * SIDE1 * SIDE1 * MAPS1 * sizeof(float);
    n->map2_bytes = (uint64_t)n->chunk * SIDE2 * SIDE2 * MAPS2 * sizeof(float);
    n->hidden_bytes = batch * HIDDEN * sizeof(float);
    n->logits_bytes = ops_align(batch * DIGITS * sizeof(float));
    m->desc.input_bytes =
        sizeof(model_batch) + ops_align(batch * sizeof(int32_t)) + batch * SIDE * SIDE * sizeof(float);
    OPS_TRY(build_convolutions(m, n));
    return build_linears(m, n);
}

static void mnist_release(model *m) {
    mnist *n = m->own;
    const ops_table *t = m->o->t;
    if (!n)
        return;
    t->conv_destroy(n->conv1);
    t->conv_destroy(n->conv2);
    t->linear_destroy(n->fc1);
    t->linear_destroy(n->fc2);
    free(n);
}

const model_ops model_mnist = {
    .name = "mnist",
    .defaults = { .batch = 64, .dropout = 0.5f },
    .optimizer_groups = 1,
    .build = mnist_build,
    .release = mnist_release,
};
