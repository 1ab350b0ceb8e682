/* SPDX-License-Identifier: BSD-3-Clause */
/* Attention in 16 bits by cuDNN's fused kernels (cudnn_attention.c), for contexts with `cudnn_attention`. */
#ifndef TESS_MODELS_CUDNN_ATTENTION_H
#define TESS_MODELS_CUDNN_ATTENTION_H
#include "cuda_ops.h"

#if TESSERA_HAVE_CUDNN
#include "cudnn_graph.h"

/** TESS_E_UNSUPPORTED: cuDNN is asked for and has no such attention. It needs no GPU and no library. */
tess_status ops_cudnn_attention_check(const ops *, const ops_attention_shape *);
/** [pure] Returns scratch with room for the workspaces of all engines that we know. */
void ops_cudnn_attention_need(const ops_attention_shape *, ops_scratch *need);
/** Refuses what is no GPU, or no cuDNN, for which the graphs are known to be right and to repeat their bits. Call it
 * between enter and leave, as those below. */
tess_status ops_cudnn_attention_start(const cuda_ops *);
void ops_cudnn_attention_end(cuda_ops *);
tess_status ops_cudnn_attention(cuda_ops *, const ops_attention_shape *, const void *qkv, void *y, float *lse,
                                void *scratch);
tess_status ops_cudnn_attention_backward(cuda_ops *, const ops_attention_shape *, const void *qkv, const void *y,
                                         const float *lse, const void *dy, void *dqkv, void *scratch);
/** Builds the graph of a direction. */
void ops_cudnn_attention_build(ops_graph *, const ops_attention_shape *, int fp16, int backward);
#else
#define ops_cudnn_attention_check ops_cudnn_no_attention
#define ops_cudnn_attention_need(s, need) ((void)(s), (void)(need))
#define ops_cudnn_attention(c, s, qkv, y, lse, scratch) TESS_E_INTERNAL
#define ops_cudnn_attention_backward(c, s, qkv, y, lse, dy, dqkv, scratch) TESS_E_INTERNAL
static inline tess_status ops_cudnn_no_attention(const ops *o, const ops_attention_shape *s) {
    (void)s;
    return o->cudnn_attention ? tess_fail(TESS_E_UNSUPPORTED, "attention=cudnn: this build has no cuDNN") : TESS_OK;
}
#endif
#endif
