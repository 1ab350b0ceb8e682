/* SPDX-License-Identifier: BSD-3-Clause */
/* The kernels of the reference models on a GPU, as functions that compile for CUDA and for the host. kernels.cu
 * makes kernels of them; tests/doubles and tests/unit/test_cuda_ops.c run them in loops.
 *
 * A grid is one-dimensional, a block has OPS_BLOCK threads, a kernel takes one struct. A body is called once per
 * phase for each thread of a block. Between phases the block's threads wait for each other. Only `room`, doubles
 * that a block shares, carries values from one phase to the next. Threads beyond the work return. Only counts of
 * blocks are atomic, so the bits do not depend on the order in which blocks run. */
#ifndef TESS_MODELS_CUDA_KERNELS_H
#define TESS_MODELS_CUDA_KERNELS_H
#include "kernels_attend.h"
#include "kernels_attention.h"
#include "kernels_columns.h"
#include "kernels_elements.h"
#include "kernels_found.h"
#include "kernels_fp8.h"
#include "kernels_images.h"
#include "kernels_layer.h"
#include "kernels_llama.h"
#include "kernels_loss.h"
#include "kernels_norm.h"
#include "kernels_rows.h"
#include "kernels_stored.h"

/* ---- list of all kernels: name, phases ------------------------------------------------------------- */
#define OPS_CUDA_KERNELS(X)                                                                                            \
    X(narrow, 1)                                                                                                       \
    X(widen, 1)                                                                                                        \
    X(add, 1)                                                                                                          \
    X(relu_backward, 1)                                                                                                \
    X(bias_relu, 1)                                                                                                    \
    X(dropout, 1)                                                                                                      \
    X(maxpool, 1)                                                                                                      \
    X(maxpool_backward, 1)                                                                                             \
    X(avgpool_backward, 1)                                                                                             \
    X(column_sums, 2)                                                                                                  \
    X(cross_entropy, 4)                                                                                                \
    X(tokens, 1)                                                                                                       \
    X(places, 1)                                                                                                       \
    X(cross_entropy_backward, 1)                                                                                       \
    X(sum_loss, 1)                                                                                                     \
    X(sum_loss_backward, 1)                                                                                            \
    X(ids, 1)                                                                                                          \
    X(batchnorm_sums, 1)                                                                                               \
    X(batchnorm_stats, 1)                                                                                              \
    X(batchnorm, 1)                                                                                                    \
    X(batchnorm_slopes, 1)                                                                                             \
    X(batchnorm_means, 1)                                                                                              \
    X(batchnorm_backward, 1)                                                                                           \
    X(windows, 1)                                                                                                      \
    X(turn_weights, 1)                                                                                                 \
    X(add_weights, 1)                                                                                                  \
    X(mask, 1)                                                                                                         \
    X(bias, 3)                                                                                                         \
    X(gelu_slopes, 3)                                                                                                  \
    X(norm, 3)                                                                                                         \
    X(norm_slopes, 2)                                                                                                  \
    X(embed, 1)                                                                                                        \
    X(cap, 1)                                                                                                          \
    X(head_norm, 2)                                                                                                    \
    X(head_norm_slopes, 2)                                                                                             \
    X(rotate, 1)                                                                                                       \
    X(swiglu, 3)                                                                                                       \
    X(swiglu_slopes, 3)                                                                                                \
    X(stored, 1)                                                                                                       \
    X(fp8_most, 3)                                                                                                     \
    X(sort_ids, 2)                                                                                                     \
    X(embed_slopes, 1)                                                                                                 \
    X(attention_softmax, 3)                                                                                            \
    X(attention_slopes, 2)                                                                                             \
    X(attend_sums, 2)

/* Kernels whose room is OPS_WIDE doubles. */
#define OPS_CUDA_WIDE_KERNELS(X)                                                                                       \
    X(columns, 4)                                                                                                      \
    X(norm_slopes_columns, 6)                                                                                          \
    X(norm_tile, 7)                                                                                                    \
    X(fp8_codes, 4)                                                                                                    \
    X(norm_slopes_tile, 6)                                                                                             \
    X(loss_tile, 5)                                                                                                    \
    X(loss_rows, 4)                                                                                                    \
    X(loss_sum, 2)

/* Kernels of attention in 16 bits: name, arguments, shared memory of a block. A block has TILE_THREADS threads, which
 * synchronise within the body. */
#define OPS_ATTEND_KERNELS_OF(X, size)                                                                                 \
    X(attend_##size, ops_args_attend, attend_shared_##size)                                                            \
    X(attend_backward_##size, ops_args_attend_backward, attend_backward_shared_##size)
#define OPS_ATTEND_KERNELS(X)                                                                                          \
    OPS_ATTEND_KERNELS_OF(X, 16)                                                                                       \
    OPS_ATTEND_KERNELS_OF(X, 32)                                                                                       \
    OPS_ATTEND_KERNELS_OF(X, 64)                                                                                       \
    OPS_ATTEND_KERNELS_OF(X, 96)                                                                                       \
    OPS_ATTEND_KERNELS_OF(X, 128)                                                                                      \
    X(attend_five_64, ops_args_attend_backward, attend_five_shared_64)
/* The same with TILE_MOST_THREADS. Shared memory is more than the 48 KiB that a kernel may declare, so a launch gives
 * it, where the GPU has as much. */
#define OPS_ATTEND_LARGE_KERNELS(X) X(attend_five_128, ops_args_attend_backward, attend_five_shared_128)

/** The name under which a kernel is exported. */
#if defined(OPS_HALF_F16)
#define OPS_KERNEL(name) tess_ops_f16_##name
#else
#define OPS_KERNEL(name) tess_ops_##name
#endif
#define OPS_KERNEL_TEXT(name) #name
#define OPS_KERNEL_TEXT_OF(name) OPS_KERNEL_TEXT(name)
#define OPS_KERNEL_NAME(name) OPS_KERNEL_TEXT_OF(OPS_KERNEL(name))
#endif
