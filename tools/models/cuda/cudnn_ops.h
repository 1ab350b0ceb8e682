/* cuDNN's part in convolution in fp32: cudnn.c. */
#ifndef TESS_MODELS_CUDNN_OPS_H
#define TESS_MODELS_CUDNN_OPS_H
#include "cuda_ops.h"

typedef struct {
    cudnnTensorDescriptor_t x, y;
    cudnnFilterDescriptor_t w;
    cudnnConvolutionDescriptor_t conv;
    size_t forward_bytes, data_bytes, filter_bytes; /* workspaces */
    int asked, use_forward, use_data, use_filter;
} ops_cudnn_conv;

/** Once, after the start: what of a convolution cuDNN does within `room`. Nothing, where there is no cuDNN. */
void ops_cudnn_conv_prepare(const cuda_ops *, ops_cudnn_conv *, const ops_conv_shape *, ops_scratch room);
void ops_cudnn_conv_release(const cuda_ops *, ops_cudnn_conv *);
tess_status ops_cudnn_forward(const cuda_ops *, const ops_cudnn_conv *, const ops_conv_shape *, const float *x,
                              const void *w, float *y, void *scratch);
tess_status ops_cudnn_data(const cuda_ops *, const ops_cudnn_conv *, const ops_conv_shape *, const void *w,
                           const float *dy, float *dx, void *scratch);
tess_status ops_cudnn_filter(const cuda_ops *, const ops_cudnn_conv *, const ops_conv_shape *, const float *x,
                             const float *dy, float *dw, void *scratch);
#endif
