/* SPDX-License-Identifier: BSD-3-Clause */
/* The operators that both CPU tables share, in plain C. Their bits do not depend on the number of threads. ops.h has
 * the contracts. */
#ifndef TESS_MODELS_ELEMENTWISE_H
#define TESS_MODELS_ELEMENTWISE_H
#include "ops.h"

tess_status ops_cpu_relu_backward(ops *, const float *y, const float *dy, float *dx, uint64_t elems, float scale);
tess_status ops_cpu_dropout(ops *, float *x, uint64_t samples, uint64_t elems, const ops_dropout *);
tess_status ops_cpu_add(ops *, const float *x, float *y, uint64_t elems);
tess_status ops_cpu_maxpool(ops *, const float *x, const ops_conv_shape *, float *y, uint8_t *which);
tess_status ops_cpu_maxpool_backward(ops *, const float *y, const uint8_t *which, const float *dy,
                                     const ops_conv_shape *, float *dx, float scale);
tess_status ops_cpu_gelu(ops *, const float *x, float *y, uint64_t elems);
tess_status ops_cpu_gelu_backward(ops *, const float *x, const float *dy, float *dx, uint64_t elems);
tess_status ops_cpu_layernorm(ops *, const float *x, const float *w, const float *b, float *y, float *stats,
                              uint64_t rows, uint64_t width);
tess_status ops_cpu_layernorm_backward(ops *, const float *x, const float *w, const float *stats, const float *dy,
                                       float *dx, float *dw, float *db, uint64_t rows, uint64_t width);
tess_status ops_cpu_batchnorm(ops *, const ops_batchnorm_shape *, uint32_t with, const float *x, const float *w,
                              const float *b, float *running_mean, float *running_var, float *y, float *stats,
                              void *scratch);
tess_status ops_cpu_batchnorm_backward(ops *, const ops_batchnorm_shape *, const float *x, const float *w,
                                       const float *stats, const float *y, const float *dy, float *dx, float *dw,
                                       float *db, void *scratch);
tess_status ops_cpu_avgpool(ops *, const float *x, float *y, uint64_t batch, uint64_t places, uint64_t channels);
tess_status ops_cpu_avgpool_backward(ops *, const float *dy, float *dx, uint64_t batch, uint64_t places,
                                     uint64_t channels);
tess_status ops_cpu_cross_entropy(ops *, float *logits, const int32_t *labels, uint64_t rows, uint64_t classes,
                                  uint64_t count, ops_loss *out, void *scratch);
uint64_t ops_cpu_cross_entropy_need(uint64_t rows);
tess_status ops_cpu_sum_loss(ops *, const float *x, uint64_t elems, int32_t squared, uint64_t count, ops_loss *out);
tess_status ops_cpu_sum_loss_backward(ops *, const float *x, uint64_t elems, int32_t squared, float scale, uint64_t all,
                                      float *dx);
tess_status ops_cpu_ids(ops *, const uint8_t *text, uint64_t samples, uint64_t time, uint64_t stride, int32_t *out);
tess_status ops_cpu_cross_entropy_backward(ops *, const float *probabilities, const int32_t *labels, uint64_t rows,
                                           uint64_t classes, uint64_t count, float scale, float *dlogits);
tess_status ops_cpu_embedding(ops *, const int32_t *ids, const float *table, const float *position, float *y,
                              uint64_t rows, uint64_t time, uint64_t width);
tess_status ops_cpu_embedding_backward(ops *, const int32_t *ids, const float *dy, float *dtable, float *dposition,
                                       uint64_t rows, uint64_t time, uint64_t width);
void ops_cpu_attention_need(const ops *, const ops_attention_shape *, ops_scratch *need);
tess_status ops_cpu_attention(ops *, const ops_attention_shape *, const float *x, float *y, float *lse, void *scratch);
tess_status ops_cpu_attention_backward(ops *, const ops_attention_shape *, const float *x, const float *y,
                                       const float *lse, const float *dy, float *dx, void *scratch);
/** Adds the sum of dy's rows to db. Linear and conv of both tables use it. */
void ops_cpu_bias_backward(ops *, const float *dy, float *db, uint64_t rows, uint64_t width);
/** y += b, then relu if `relu` is set. */
void ops_cpu_bias_relu(ops *, const float *b_or_null, float *y, uint64_t rows, uint64_t width, int32_t relu);
/** Rounds fp32 to the nearest bf16, or in a table for it fp16, ties to even; ops_cpu_widen goes back. */
tess_status ops_cpu_narrow(const ops *, const float *x, uint16_t *y, uint64_t elems);
tess_status ops_cpu_widen(const ops *, const uint16_t *x, float *y, uint64_t elems);
tess_status ops_cpu_zero(ops *, void *x, uint64_t bytes);
tess_status ops_cpu_copy(ops *, const void *x, void *y, uint64_t bytes);
/** y[i] = exp(x[i] - minus) for x ≤ minus. The relative error is below 2e-7; results far below 1 become 0. */
void ops_cpu_exp(const float *x, float minus, float *y, uint64_t elems);

/* The slots of these operators in a CPU table. */
#define OPS_CPU_ELEMENTWISE                                                                                            \
    .narrow = ops_cpu_narrow, .widen = ops_cpu_widen, .zero = ops_cpu_zero, .copy = ops_cpu_copy, .ids = ops_cpu_ids,  \
    .cross_entropy_need = ops_cpu_cross_entropy_need, .sum_loss = ops_cpu_sum_loss,                                    \
    .sum_loss_backward = ops_cpu_sum_loss_backward, .relu_backward = ops_cpu_relu_backward,                            \
    .dropout = ops_cpu_dropout, .add = ops_cpu_add, .maxpool = ops_cpu_maxpool,                                        \
    .maxpool_backward = ops_cpu_maxpool_backward, .gelu = ops_cpu_gelu, .gelu_backward = ops_cpu_gelu_backward,        \
    .layernorm = ops_cpu_layernorm, .layernorm_backward = ops_cpu_layernorm_backward, .batchnorm = ops_cpu_batchnorm,  \
    .batchnorm_backward = ops_cpu_batchnorm_backward, .avgpool = ops_cpu_avgpool,                                      \
    .avgpool_backward = ops_cpu_avgpool_backward, .cross_entropy = ops_cpu_cross_entropy,                              \
    .cross_entropy_backward = ops_cpu_cross_entropy_backward, .embedding = ops_cpu_embedding,                          \
    .embedding_backward = ops_cpu_embedding_backward, .attention_need = ops_cpu_attention_need,                        \
    .attention = ops_cpu_attention, .attention_backward = ops_cpu_attention_backward
#endif
