/* SPDX-License-Identifier: BSD-3-Clause */
/* The part of fp32 convolution that cuDNN computes (cudnn.c). */
#ifndef TESS_MODELS_CUDNN_OPS_H
#define TESS_MODELS_CUDNN_OPS_H
#include "cuda_ops.h"

#if TESSERA_HAVE_CUDNN
typedef struct {
    cudnnTensorDescriptor_t x, y;
    cudnnFilterDescriptor_t w;
    cudnnConvolutionDescriptor_t conv;
    size_t forward_bytes, data_bytes, filter_bytes; /* bytes of workspaces */
    int asked, use_forward, use_data, use_filter;
} ops_cudnn_conv;

/** Decides once, after `start`, which directions cuDNN computes within `room`. Without cuDNN it computes none. */
void ops_cudnn_conv_prepare(const cuda_ops *, ops_cudnn_conv *, const ops_conv_shape *, ops_scratch room);
void ops_cudnn_conv_release(const cuda_ops *, ops_cudnn_conv *);
/** Each computes one direction. If cuDNN fails, it clears that direction's `use_…`, and the products have to compute
 * it. */
tess_status ops_cudnn_forward(const cuda_ops *, ops_cudnn_conv *, const ops_conv_shape *, const float *x, const void *w,
                              float *y, void *scratch);
tess_status ops_cudnn_data(const cuda_ops *, ops_cudnn_conv *, const ops_conv_shape *, const void *w, const float *dy,
                           float *dx, void *scratch);
tess_status ops_cudnn_filter(const cuda_ops *, ops_cudnn_conv *, const ops_conv_shape *, const float *x,
                             const float *dy, float *dw, void *scratch);
/** Starts cuDNN for a context if there is one; ops_cudnn_end ends it. It fails only if attention is to be cuDNN's. Call
 * both between enter and leave. */
tess_status ops_cudnn_start(cuda_ops *);
void ops_cudnn_end(cuda_ops *);
/** Writes for example ", cuDNN 9.13", or nothing. */
void ops_cudnn_describe(const cuda_ops *, char *out, size_t bytes);
#else /* built without cuDNN: products compute convolutions */
typedef struct {
    int asked, use_forward, use_data, use_filter;
} ops_cudnn_conv;
#define ops_cudnn_conv_prepare(c, v, s, room) ((v)->asked = 1)
#define ops_cudnn_conv_release(c, v) ((void)(v))
#define ops_cudnn_forward(c, v, s, x, w, y, scratch) TESS_E_INTERNAL
#define ops_cudnn_data(c, v, s, w, dy, dx, scratch) TESS_E_INTERNAL
#define ops_cudnn_filter(c, v, s, x, dy, dw, scratch) TESS_E_INTERNAL
#define ops_cudnn_start(c) TESS_OK
#define ops_cudnn_end(c) ((void)(c))
#define ops_cudnn_describe(c, out, bytes) ((void)(c))
#endif
#endif
