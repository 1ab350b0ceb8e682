/* SPDX-License-Identifier: BSD-3-Clause */
/* Convolution in fp32 by cuDNN's per-operation interface. It is used if libcudnn.so.9 is present and its workspace
 * fits into the scratch of convolution.c's products. So the plan is the same with and without cuDNN.
 *
 * The algorithms are deterministic and without TF32. Tensors are NHWC; weights are reordered to [out, k, k, in]. In
 * 16 bits cuDNN would round results too, so products compute there, whose results are fp32. */
#include "cudnn_attention.h"
#include "cudnn_ops.h"
#include "tools/support/say.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static ops_cudnn cudnn;
static int is_there;

static void load(void) {
    void *lib = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        return;
    is_there = 1;
#define FIND(name)                                                                                                     \
    *(void **)(void *)&cudnn.name = dlsym(lib, #name);                                                                 \
    is_there &= cudnn.name != NULL;
    OPS_CUDNN_FUNCTIONS(FIND)
#undef FIND
}

const ops_cudnn *ops_cudnn_load(void) {
    pthread_once(&once, load);
    return is_there ? &cudnn : NULL;
}

/* In 16 bits only attention uses cuDNN, if that is asked for. Without it convolutions are products, and the description
 * of the operators says so. */
static void start_library(cuda_ops *c) {
    c->dnn = ops_halves(&c->base) && !c->base.cudnn_attention ? NULL : ops_cudnn_load();
    if (!c->dnn || c->dnn->cudnnCreate(&c->dnn_handle) != CUDNN_STATUS_SUCCESS) {
        c->dnn_handle = NULL;
        return;
    }
    if (c->dnn->cudnnSetStream(c->dnn_handle, c->stream) == CUDNN_STATUS_SUCCESS)
        return;
    c->dnn->cudnnDestroy(c->dnn_handle);
    c->dnn_handle = NULL;
}

tess_status ops_cudnn_start(cuda_ops *c) {
    start_library(c);
    return c->base.cudnn_attention ? ops_cudnn_attention_start(c) : TESS_OK;
}

/* The stream may no longer exist, so the handle is detached from it first. */
void ops_cudnn_end(cuda_ops *c) {
    if (!c->dnn_handle)
        return;
    ops_cudnn_attention_end(c);
    c->dnn->cudnnSetStream(c->dnn_handle, NULL);
    c->dnn->cudnnDestroy(c->dnn_handle);
}

void ops_cudnn_describe(const cuda_ops *c, char *out, size_t bytes) {
    size_t version = c->dnn_handle ? c->dnn->cudnnGetVersion() : 0;
    if (version)
        snprintf(out, bytes, ", cuDNN %zu.%zu", version / 10000, version % 10000 / 100);
}

/* ---- descriptors ------------------------------------------------------------------------------- */
enum { ALIGN = 256 };
static const cudnnConvolutionFwdAlgo_t forward_algo = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
static const cudnnConvolutionBwdDataAlgo_t data_algo = CUDNN_CONVOLUTION_BWD_DATA_ALGO_1;
static const cudnnConvolutionBwdFilterAlgo_t filter_algo = CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1;

static uint64_t w_elems(const ops_conv_shape *s) {
    return (uint64_t)s->outputs * (uint64_t)s->channels * (uint64_t)s->kernel * (uint64_t)s->kernel;
}

static cudnnStatus_t describe(const cuda_ops *c, ops_cudnn_conv *v, const ops_conv_shape *s) {
    const ops_cudnn *d = c->dnn;
    cudnnDataType_t dtype = CUDNN_DATA_FLOAT;
    cudnnStatus_t r = d->cudnnCreateTensorDescriptor(&v->x);
    r = r ? r : d->cudnnCreateTensorDescriptor(&v->y);
    r = r ? r : d->cudnnCreateFilterDescriptor(&v->w);
    r = r ? r : d->cudnnCreateConvolutionDescriptor(&v->conv);
    r = r ? r
          : d->cudnnSetTensor4dDescriptor(v->x, CUDNN_TENSOR_NHWC, dtype, s->batch, s->channels, s->height, s->width);
    r = r ? r
          : d->cudnnSetTensor4dDescriptor(v->y, CUDNN_TENSOR_NHWC, dtype, s->batch, s->outputs, ops_conv_height(s),
                                          ops_conv_width(s));
    r = r ? r
          : d->cudnnSetFilter4dDescriptor(v->w, dtype, CUDNN_TENSOR_NHWC, s->outputs, s->channels, s->kernel,
                                          s->kernel);
    r = r ? r
          : d->cudnnSetConvolution2dDescriptor(v->conv, s->pad, s->pad, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION,
                                               CUDNN_DATA_FLOAT);
    return r ? r : d->cudnnSetConvolutionMathType(v->conv, CUDNN_FMA_MATH); /* excludes TF32 */
}

/* Returns the scratch that a call needs: weights and workspace. */
static uint64_t needed(const ops_conv_shape *s, size_t workspace) {
    return ops_align(w_elems(s) * sizeof(float)) + workspace + ALIGN;
}

void ops_cudnn_conv_prepare(const cuda_ops *c, ops_cudnn_conv *v, const ops_conv_shape *s, ops_scratch room) {
    const ops_cudnn *d = c->dnn;
    v->asked = 1;
    if (!c->dnn_handle || describe(c, v, s) != CUDNN_STATUS_SUCCESS)
        return;
    v->use_forward = d->cudnnGetConvolutionForwardWorkspaceSize(c->dnn_handle, v->x, v->w, v->conv, v->y, forward_algo,
                                                                &v->forward_bytes) == CUDNN_STATUS_SUCCESS &&
                     needed(s, v->forward_bytes) <= room.forward_bytes;
    v->use_data = d->cudnnGetConvolutionBackwardDataWorkspaceSize(c->dnn_handle, v->w, v->y, v->conv, v->x, data_algo,
                                                                  &v->data_bytes) == CUDNN_STATUS_SUCCESS &&
                  needed(s, v->data_bytes) <= room.backward_bytes;
    v->use_filter =
        d->cudnnGetConvolutionBackwardFilterWorkspaceSize(c->dnn_handle, v->x, v->y, v->conv, v->w, filter_algo,
                                                          &v->filter_bytes) == CUDNN_STATUS_SUCCESS &&
        needed(s, v->filter_bytes) <= room.backward_bytes;
}

void ops_cudnn_conv_release(const cuda_ops *c, ops_cudnn_conv *v) {
    const ops_cudnn *d = c->dnn;
    if (v->x)
        d->cudnnDestroyTensorDescriptor(v->x);
    if (v->y)
        d->cudnnDestroyTensorDescriptor(v->y);
    if (v->w)
        d->cudnnDestroyFilterDescriptor(v->w);
    if (v->conv)
        d->cudnnDestroyConvolutionDescriptor(v->conv);
    memset(v, 0, sizeof *v);
}

/* ---- calls, between enter and leave -------------------------------------------------------------- */
typedef struct { /* parts of a call's scratch */
    float *w;
    void *workspace;
} pieces;

static pieces cut(const ops_conv_shape *s, char *at) {
    uintptr_t behind = (uintptr_t)at + ops_align(w_elems(s) * sizeof(float));
    return (pieces){ (float *)(void *)at, (void *)((behind + ALIGN - 1) / ALIGN * ALIGN) };
}

/* An algorithm may fail although its workspace size was valid. Products then compute this and all later calls. If
 * the failure broke the context, their first launch reports it. */
static tess_status done(const cuda_ops *c, cudnnStatus_t r, const char *what, int *use) {
    if (r == CUDNN_STATUS_SUCCESS)
        return TESS_OK;
    *use = 0;
    tool_say(SAY_WARNING, "operators cuda: cuDNN's %s failed (%s): products do it from here on", what,
             c->dnn->cudnnGetErrorString(r));
    return TESS_OK;
}

static tess_status turn(const cuda_ops *c, const ops_conv_shape *s, const void *w, float *out) {
    return OPS_LAUNCH(c, turn_weights, ops_blocks_each(w_elems(s)), .w = w, .out = out, .elems = w_elems(s),
                      .channels = s->channels, .outputs = s->outputs, .kernel = s->kernel,
                      .turned = OPS_TURN_OUT_FIRST);
}

static const float one = 1, zero = 0;

tess_status ops_cudnn_forward(const cuda_ops *c, ops_cudnn_conv *v, const ops_conv_shape *s, const float *x,
                              const void *w, float *y, void *scratch) {
    pieces p = cut(s, scratch);
    OPS_TRY(turn(c, s, w, p.w));
    return done(c,
                c->dnn->cudnnConvolutionForward(c->dnn_handle, &one, v->x, x, v->w, p.w, v->conv, forward_algo,
                                                p.workspace, v->forward_bytes, &zero, v->y, y),
                "convolution", &v->use_forward);
}

tess_status ops_cudnn_data(const cuda_ops *c, ops_cudnn_conv *v, const ops_conv_shape *s, const void *w,
                           const float *dy, float *dx, void *scratch) {
    pieces p = cut(s, scratch);
    OPS_TRY(turn(c, s, w, p.w));
    return done(c,
                c->dnn->cudnnConvolutionBackwardData(c->dnn_handle, &one, v->w, p.w, v->y, dy, v->conv, data_algo,
                                                     p.workspace, v->data_bytes, &zero, v->x, dx),
                "gradient of a convolution's input", &v->use_data);
}

tess_status ops_cudnn_filter(const cuda_ops *c, ops_cudnn_conv *v, const ops_conv_shape *s, const float *x,
                             const float *dy, float *dw, void *scratch) {
    pieces p = cut(s, scratch);
    OPS_TRY(done(c,
                 c->dnn->cudnnConvolutionBackwardFilter(c->dnn_handle, &one, v->x, x, v->y, dy, v->conv, filter_algo,
                                                        p.workspace, v->filter_bytes, &zero, v->w, p.w),
                 "gradient of a convolution's weights", &v->use_filter));
    if (!v->use_filter)
        return TESS_OK;
    return OPS_LAUNCH(c, add_weights, ops_blocks_each(w_elems(s)), .d = p.w, .dw = dw, .elems = w_elems(s),
                      .channels = s->channels, .outputs = s->outputs, .kernel = s->kernel, .out_first = 1);
}
