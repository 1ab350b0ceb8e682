/* SPDX-License-Identifier: BSD-3-Clause */
/* The kernels of the reference models on a GPU, as functions that compile for CUDA and for the host alike: kernels.cu
 * makes kernels of them, tests/doubles and tests/unit/test_cuda_ops.c run them in loops.
 *
 * A grid is one-dimensional, a block has OPS_BLOCK threads, a kernel takes one struct. A body is called once per phase
 * for every thread of a block; between phases the block's threads wait for each other, and nothing is carried from one
 * phase to the next but through `room`, ROOM doubles that a block shares. Threads beyond the work return. Nothing is
 * atomic, so the bits do not depend on who runs when. */
#ifndef TESS_MODELS_CUDA_KERNELS_H
#define TESS_MODELS_CUDA_KERNELS_H
#include "kernels_attention.h"
#include "kernels_elements.h"
#include "kernels_images.h"
#include "kernels_rows.h"

/* ---- all of them: name, phases ----------------------------------------------------------------- */
#define OPS_CUDA_KERNELS(X)                                                                                            \
    X(narrow, 1)                                                                                                       \
    X(widen, 1)                                                                                                        \
    X(add, 1)                                                                                                          \
    X(relu_backward, 1)                                                                                                \
    X(gelu, 1)                                                                                                         \
    X(gelu_backward, 1)                                                                                                \
    X(bias_relu, 1)                                                                                                    \
    X(dropout, 1)                                                                                                      \
    X(maxpool, 1)                                                                                                      \
    X(maxpool_backward, 1)                                                                                             \
    X(avgpool_backward, 1)                                                                                             \
    X(column_sums, 2)                                                                                                  \
    X(layernorm_columns, 2)                                                                                            \
    X(layernorm, 3)                                                                                                    \
    X(layernorm_rows, 2)                                                                                               \
    X(cross_entropy, 4)                                                                                                \
    X(loss_sum, 2)                                                                                                     \
    X(cross_entropy_backward, 1)                                                                                       \
    X(sum_loss, 1)                                                                                                     \
    X(sum_loss_backward, 1)                                                                                            \
    X(ids, 1)                                                                                                          \
    X(embedding, 1)                                                                                                    \
    X(embedding_table, 1)                                                                                              \
    X(embedding_position, 1)                                                                                           \
    X(batchnorm_sums, 1)                                                                                               \
    X(batchnorm_stats, 1)                                                                                              \
    X(batchnorm, 1)                                                                                                    \
    X(batchnorm_slopes, 1)                                                                                             \
    X(batchnorm_means, 1)                                                                                              \
    X(batchnorm_backward, 1)                                                                                           \
    X(windows, 1)                                                                                                      \
    X(turn_weights, 1)                                                                                                 \
    X(add_weights, 1)                                                                                                  \
    X(attention_softmax, 3)                                                                                            \
    X(attention_slopes, 2)

/** Shared by all blocks of `name`, as kernels of this name. */
#define OPS_KERNEL_NAME(name) "tess_ops_" #name
#endif
