/* SPDX-License-Identifier: BSD-3-Clause */
/* The part of cuDNN that the models call: convolutions of NHWC tensors, with the filters [out, k, k, in], as plain
 * loops in the stream's order. The deterministic algorithms alone; each wants a workspace, which must lie in device
 * memory. */
#include "cudnn_graph.h"

#include <stdlib.h>
#include <string.h>

#include "races.h"

struct cudnnTensorStruct {
    int dtype, n, c, h, w;
};
struct cudnnFilterStruct {
    int dtype, k, c, h, w;
};
struct cudnnConvolutionStruct {
    int pad;
};
enum { WORKSPACE_BYTES = 8192 };

DOUBLE_API size_t cudnnGetVersion(void) {
    return (size_t)double__number("CUDNN_VERSION", CUDNN_VERSION);
}
DOUBLE_API const char *cudnnGetErrorString(cudnnStatus_t status) {
    return status == CUDNN_STATUS_BAD_PARAM ? "bad parameter" : "the double says so";
}

DOUBLE_API cudnnStatus_t cudnnCreate(cudnnHandle_t *out) {
    if (double__fails("cudnnCreate") || double__current_device() < 0)
        return CUDNN_STATUS_NOT_INITIALIZED;
    struct cudnnContext *h = calloc(1, sizeof *h);
    if (!h)
        return CUDNN_STATUS_ALLOC_FAILED;
    h->device = double__current_device();
    h->stream = double__null_stream(h->device);
    double__live("cuDNN handles", 1);
    *out = h;
    return CUDNN_STATUS_SUCCESS;
}
DOUBLE_API cudnnStatus_t cudnnDestroy(cudnnHandle_t h) {
    if (!h || double__current_device() < 0)
        return CUDNN_STATUS_NOT_INITIALIZED;
    double__finish_device(h->device);
    double__live("cuDNN handles", -1);
    free(h);
    return CUDNN_STATUS_SUCCESS;
}
DOUBLE_API cudnnStatus_t cudnnSetStream(cudnnHandle_t h, cudaStream_t stream) {
    double_stream *s = double__stream_of((CUstream)stream);
    if (double__fails("cudnnSetStream") || !h || !s)
        return CUDNN_STATUS_BAD_PARAM;
    h->stream = s;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- descriptors ------------------------------------------------------------------------------- */
#define DESCRIPTOR(Name, type, tag)                                                                                    \
    DOUBLE_API cudnnStatus_t cudnnCreate##Name##Descriptor(type *out) {                                                \
        *out = double__fails("cudnnCreateDescriptor") ? NULL : calloc(1, sizeof(struct tag));                          \
        if (*out)                                                                                                      \
            double__live("cuDNN descriptors", 1);                                                                      \
        return *out ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_ALLOC_FAILED;                                                \
    }                                                                                                                  \
    DOUBLE_API cudnnStatus_t cudnnDestroy##Name##Descriptor(type d) {                                                  \
        if (d)                                                                                                         \
            double__live("cuDNN descriptors", -1);                                                                     \
        free(d);                                                                                                       \
        return CUDNN_STATUS_SUCCESS;                                                                                   \
    }
DESCRIPTOR(Tensor, cudnnTensorDescriptor_t, cudnnTensorStruct)
DESCRIPTOR(Filter, cudnnFilterDescriptor_t, cudnnFilterStruct)
DESCRIPTOR(Convolution, cudnnConvolutionDescriptor_t, cudnnConvolutionStruct)

DOUBLE_API cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t d, cudnnTensorFormat_t format,
                                                    cudnnDataType_t dtype, int n, int c, int h, int w) {
    if (format != CUDNN_TENSOR_NHWC || n < 1 || c < 1 || h < 1 || w < 1)
        return CUDNN_STATUS_BAD_PARAM;
    *d = (struct cudnnTensorStruct){ (int)dtype, n, c, h, w };
    return CUDNN_STATUS_SUCCESS;
}
DOUBLE_API cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t d, cudnnDataType_t dtype,
                                                    cudnnTensorFormat_t format, int k, int c, int h, int w) {
    if (format != CUDNN_TENSOR_NHWC || h != w || k < 1 || c < 1 || h < 1)
        return CUDNN_STATUS_BAD_PARAM;
    *d = (struct cudnnFilterStruct){ (int)dtype, k, c, h, w };
    return CUDNN_STATUS_SUCCESS;
}
DOUBLE_API cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t d, int pad_h, int pad_w, int u,
                                                         int v, int dilation_h, int dilation_w,
                                                         cudnnConvolutionMode_t mode, cudnnDataType_t compute) {
    if (pad_h != pad_w || u != 1 || v != 1 || dilation_h != 1 || dilation_w != 1 || mode != CUDNN_CROSS_CORRELATION ||
        compute != CUDNN_DATA_FLOAT)
        return CUDNN_STATUS_NOT_SUPPORTED;
    d->pad = pad_h;
    return CUDNN_STATUS_SUCCESS;
}
DOUBLE_API cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t d, cudnnMathType_t math) {
    (void)math;
    return d ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

/* ---- convolutions ------------------------------------------------------------------------------ */
typedef struct {
    int what, pad; /* 0 forward, 1 the input's gradient, 2 the filter's */
    struct cudnnTensorStruct x, y;
    struct cudnnFilterStruct w;
    const void *in, *other; /* what: x and w; dy and w; x and dy */
    void *out;
} work;

static int64_t at(const struct cudnnTensorStruct *t, int64_t n, int64_t row, int64_t column, int64_t c) {
    return ((n * t->h + row) * t->w + column) * t->c + c;
}
static int64_t tap_at(const struct cudnnFilterStruct *f, int64_t k, int64_t row, int64_t column, int64_t c) {
    return ((k * f->h + row) * f->w + column) * f->c + c;
}

enum { LANES = 16 };
/* In lanes, for speed. */
static float dot(const float *a, const float *b, int64_t n) {
    float lane[LANES] = { 0 }, sum = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] += a[i + l] * b[i + l];
    for (int l = 0; l < LANES; l++)
        sum += lane[l];
    for (; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* One element of y: over the filter and the channels. */
static float forward_at(const work *p, int64_t n, int64_t row, int64_t column, int64_t k) {
    float sum = 0;
    for (int64_t i = 0; i < p->w.h; i++)
        for (int64_t j = 0; j < p->w.w; j++) {
            int64_t r = row + i - p->pad, c = column + j - p->pad;
            if (r < 0 || r >= p->x.h || c < 0 || c >= p->x.w)
                continue;
            sum += dot((const float *)p->in + at(&p->x, n, r, c, 0),
                       (const float *)p->other + tap_at(&p->w, k, i, j, 0), p->x.c);
        }
    return sum;
}

/* One element of dx. */
static float data_at(const work *p, int64_t n, int64_t row, int64_t column, int64_t q) {
    float sum = 0;
    for (int64_t i = 0; i < p->w.h; i++)
        for (int64_t j = 0; j < p->w.w; j++) {
            int64_t r = row + p->pad - i, c = column + p->pad - j;
            if (r < 0 || r >= p->y.h || c < 0 || c >= p->y.w)
                continue;
            for (int64_t k = 0; k < p->y.c; k++)
                sum += ((const float *)p->in)[at(&p->y, n, r, c, k)] *
                       ((const float *)p->other)[tap_at(&p->w, k, i, j, q)];
        }
    return sum;
}

/* One element of dw. */
static float filter_at(const work *p, int64_t k, int64_t i, int64_t j, int64_t q) {
    float sum = 0;
    for (int64_t n = 0; n < p->y.n; n++)
        for (int64_t row = 0; row < p->y.h; row++)
            for (int64_t column = 0; column < p->y.w; column++) {
                int64_t r = row + i - p->pad, c = column + j - p->pad;
                if (r >= 0 && r < p->x.h && c >= 0 && c < p->x.w)
                    sum += ((const float *)p->in)[at(&p->x, n, r, c, q)] *
                           ((const float *)p->other)[at(&p->y, n, row, column, k)];
            }
    return sum;
}

static void run_work(void *data) {
    work p = *(work *)data;
    int64_t sizes[3][4] = { { p.y.n, p.y.h, p.y.w, p.y.c },
                            { p.x.n, p.x.h, p.x.w, p.x.c },
                            { p.w.k, p.w.h, p.w.w, p.w.c } };
    const int64_t *s = sizes[p.what];
    p.in = double_host(p.in);
    p.other = double_host(p.other);
    p.out = double_host(p.out);
    for (int64_t i = 0; i < s[0] * s[1] * s[2] * s[3]; i++) {
        int64_t d = i % s[3], c = i / s[3] % s[2], b = i / (s[3] * s[2]) % s[1], a = i / (s[3] * s[2] * s[1]);
        float v = p.what == 0   ? forward_at(&p, a, b, c, d)
                  : p.what == 1 ? data_at(&p, a, b, c, d)
                                : filter_at(&p, a, b, c, d);
        ((float *)p.out)[i] = v;
    }
}

static void describe_work(const void *data, double_access *a) {
    const work *p = data;
    double__reads(a, "cuDNN", p->in, 1);
    double__reads(a, "cuDNN", p->other, 1);
    double__reads(a, "cuDNN", p->out, 1);
}
__attribute__((constructor)) static void describe_convolutions(void) {
    double__describes(run_work, describe_work);
}

static int fits(cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w, cudnnConvolutionDescriptor_t conv,
                cudnnTensorDescriptor_t y) {
    return x->dtype == CUDNN_DATA_FLOAT && w->dtype == x->dtype && y->dtype == x->dtype && x->c == w->c &&
           y->c == w->k && x->n == y->n && y->h == x->h + 2 * conv->pad - w->h + 1 &&
           y->w == x->w + 2 * conv->pad - w->w + 1;
}

static int in_device(const void *p, uint64_t bytes) {
    return double__is_device(p) && double__range_ok(p, bytes, 0);
}

static cudnnStatus_t push(cudnnHandle_t h, const char *name, int what, cudnnTensorDescriptor_t x,
                          cudnnFilterDescriptor_t w, cudnnConvolutionDescriptor_t conv, cudnnTensorDescriptor_t y,
                          const void *in, const void *other, void *out, void *workspace, size_t bytes,
                          const float *alpha, const float *beta) {
    uint64_t size = sizeof(float);
    uint64_t all[3] = { (uint64_t)x->n * (uint64_t)x->h * (uint64_t)x->w * (uint64_t)x->c * size,
                        (uint64_t)w->k * (uint64_t)w->h * (uint64_t)w->w * (uint64_t)w->c * size,
                        (uint64_t)y->n * (uint64_t)y->h * (uint64_t)y->w * (uint64_t)y->c * size };
    static const int of[3][3] = { { 0, 1, 2 }, { 2, 1, 0 }, { 0, 2, 1 } }; /* in, other, out */
    if (double__fails(name))
        return CUDNN_STATUS_EXECUTION_FAILED;
    if (!h || double__current_device() != h->device)
        return CUDNN_STATUS_NOT_INITIALIZED;
    if (!fits(x, w, conv, y) || *alpha != 1 || *beta != 0 || bytes < WORKSPACE_BYTES || !in_device(workspace, bytes) ||
        !in_device(in, all[of[what][0]]) || !in_device(other, all[of[what][1]]) || !in_device(out, all[of[what][2]]))
        return CUDNN_STATUS_BAD_PARAM;
    work p = { what, conv->pad, *x, *y, *w, in, other, out };
    double__push(h->stream, run_work, &p, sizeof p);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t workspace_of(int good, size_t *out) {
    *out = WORKSPACE_BYTES;
    return double__fails("cudnnGetWorkspaceSize") || !good ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS;
}

DOUBLE_API cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t h, const cudnnTensorDescriptor_t x,
                                                                 const cudnnFilterDescriptor_t w,
                                                                 const cudnnConvolutionDescriptor_t conv,
                                                                 const cudnnTensorDescriptor_t y,
                                                                 cudnnConvolutionFwdAlgo_t algo, size_t *out) {
    return workspace_of(h && fits(x, w, conv, y) && algo == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, out);
}
DOUBLE_API cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t h, const cudnnFilterDescriptor_t w,
                                                                      const cudnnTensorDescriptor_t dy,
                                                                      const cudnnConvolutionDescriptor_t conv,
                                                                      const cudnnTensorDescriptor_t dx,
                                                                      cudnnConvolutionBwdDataAlgo_t algo, size_t *out) {
    return workspace_of(h && fits(dx, w, conv, dy) && algo == CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, out);
}
DOUBLE_API cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(
    cudnnHandle_t h, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t conv, const cudnnFilterDescriptor_t dw, cudnnConvolutionBwdFilterAlgo_t algo,
    size_t *out) {
    return workspace_of(h && fits(x, dw, conv, dy) && algo == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, out);
}

DOUBLE_API cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t h, const void *alpha, const cudnnTensorDescriptor_t xd,
                                                 const void *x, const cudnnFilterDescriptor_t wd, const void *w,
                                                 const cudnnConvolutionDescriptor_t conv,
                                                 cudnnConvolutionFwdAlgo_t algo, void *workspace, size_t bytes,
                                                 const void *beta, const cudnnTensorDescriptor_t yd, void *y) {
    (void)algo;
    return push(h, "cudnnConvolutionForward", 0, xd, wd, conv, yd, x, w, y, workspace, bytes, alpha, beta);
}
DOUBLE_API cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t h, const void *alpha,
                                                      const cudnnFilterDescriptor_t wd, const void *w,
                                                      const cudnnTensorDescriptor_t dyd, const void *dy,
                                                      const cudnnConvolutionDescriptor_t conv,
                                                      cudnnConvolutionBwdDataAlgo_t algo, void *workspace, size_t bytes,
                                                      const void *beta, const cudnnTensorDescriptor_t dxd, void *dx) {
    (void)algo;
    return push(h, "cudnnConvolutionBackwardData", 1, dxd, wd, conv, dyd, dy, w, dx, workspace, bytes, alpha, beta);
}
DOUBLE_API cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t h, const void *alpha,
                                                        const cudnnTensorDescriptor_t xd, const void *x,
                                                        const cudnnTensorDescriptor_t dyd, const void *dy,
                                                        const cudnnConvolutionDescriptor_t conv,
                                                        cudnnConvolutionBwdFilterAlgo_t algo, void *workspace,
                                                        size_t bytes, const void *beta,
                                                        const cudnnFilterDescriptor_t dwd, void *dw) {
    (void)algo;
    return push(h, "cudnnConvolutionBackwardFilter", 2, xd, dwd, conv, dyd, x, dy, dw, workspace, bytes, alpha, beta);
}
