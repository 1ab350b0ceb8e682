/* SPDX-License-Identifier: BSD-3-Clause */
/* The files of the CUDA operators share these: the context, launches, products, and the libraries that were found. */
#ifndef TESS_MODELS_CUDA_OPS_H
#define TESS_MODELS_CUDA_OPS_H
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda.h>
#if TESSERA_HAVE_CUDNN
#include <cudnn.h>
#endif

#include "tools/models/layer_ops.h"
#include "cuda_driver.h"
#include "kernels.h"

/* ---- libraries.c: cuBLAS, by dlopen ------------------------------------------------------------ */
#define OPS_CUBLAS_FUNCTIONS(X)                                                                                        \
    X(cublasCreate_v2)                                                                                                 \
    X(cublasDestroy_v2)                                                                                                \
    X(cublasGetVersion_v2)                                                                                             \
    X(cublasSetStream_v2)                                                                                              \
    X(cublasSetWorkspace_v2)                                                                                           \
    X(cublasSetMathMode)                                                                                               \
    X(cublasGemmEx)                                                                                                    \
    X(cublasGemmStridedBatchedEx)                                                                                      \
    X(cublasGetStatusString)
typedef struct {
#define OPS_MEMBER(name) __typeof__(&(name)) name;
    OPS_CUBLAS_FUNCTIONS(OPS_MEMBER)
#undef OPS_MEMBER
} ops_cublas;
/** Loads libcublas.so.13 or .12 once per process. TESS_E_UNSUPPORTED names what is missing. */
tess_status ops_cublas_load(const ops_cublas **out);

#define OPS_CUBLASLT_FUNCTIONS(X)                                                                                      \
    X(cublasLtMatmul)                                                                                                  \
    X(cublasLtMatmulAlgoGetHeuristic)                                                                                  \
    X(cublasLtMatmulDescCreate)                                                                                        \
    X(cublasLtMatmulDescDestroy)                                                                                       \
    X(cublasLtMatmulDescSetAttribute)                                                                                  \
    X(cublasLtMatrixLayoutCreate)                                                                                      \
    X(cublasLtMatrixLayoutDestroy)                                                                                     \
    X(cublasLtMatmulPreferenceCreate)                                                                                  \
    X(cublasLtMatmulPreferenceDestroy)                                                                                 \
    X(cublasLtMatmulPreferenceSetAttribute)
typedef struct {
#define OPS_MEMBER(name) __typeof__(&(name)) name;
    OPS_CUBLASLT_FUNCTIONS(OPS_MEMBER)
#undef OPS_MEMBER
} ops_cublaslt;
/** Loads the cuBLASLt of that cuBLAS; null if there is none. */
const ops_cublaslt *ops_cublaslt_load(void);

/* ---- cudnn.c: cuDNN, by dlopen, if there is one -------------------------------------------------- */
#if TESSERA_HAVE_CUDNN
#define OPS_CUDNN_FUNCTIONS(X)                                                                                         \
    X(cudnnCreate)                                                                                                     \
    X(cudnnDestroy)                                                                                                    \
    X(cudnnGetVersion)                                                                                                 \
    X(cudnnGetErrorString)                                                                                             \
    X(cudnnSetStream)                                                                                                  \
    X(cudnnCreateTensorDescriptor)                                                                                     \
    X(cudnnSetTensor4dDescriptor)                                                                                      \
    X(cudnnDestroyTensorDescriptor)                                                                                    \
    X(cudnnCreateFilterDescriptor)                                                                                     \
    X(cudnnSetFilter4dDescriptor)                                                                                      \
    X(cudnnDestroyFilterDescriptor)                                                                                    \
    X(cudnnCreateConvolutionDescriptor)                                                                                \
    X(cudnnSetConvolution2dDescriptor)                                                                                 \
    X(cudnnSetConvolutionMathType)                                                                                     \
    X(cudnnDestroyConvolutionDescriptor)                                                                               \
    X(cudnnGetConvolutionForwardWorkspaceSize)                                                                         \
    X(cudnnConvolutionForward)                                                                                         \
    X(cudnnGetConvolutionBackwardDataWorkspaceSize)                                                                    \
    X(cudnnConvolutionBackwardData)                                                                                    \
    X(cudnnGetConvolutionBackwardFilterWorkspaceSize)                                                                  \
    X(cudnnConvolutionBackwardFilter)                                                                                  \
    X(cudnnBackendCreateDescriptor)                                                                                    \
    X(cudnnBackendDestroyDescriptor)                                                                                   \
    X(cudnnBackendSetAttribute)                                                                                        \
    X(cudnnBackendGetAttribute)                                                                                        \
    X(cudnnBackendFinalize)                                                                                            \
    X(cudnnBackendExecute)
typedef struct {
#define OPS_MEMBER(name) __typeof__(&(name)) name;
    OPS_CUDNN_FUNCTIONS(OPS_MEMBER)
#undef OPS_MEMBER
} ops_cudnn;
/** Loads libcudnn.so.9 once per process; null if there is none. */
const ops_cudnn *ops_cudnn_load(void);
#endif

/* ---- ops_cuda_launch.c: the context ------------------------------------------------------------------- */
enum {
#define OPS_INDEX(name, phases) OPS_KERNEL_##name,
    OPS_CUDA_KERNELS(OPS_INDEX) OPS_CUDA_WIDE_KERNELS(OPS_INDEX)
#undef OPS_INDEX
#define OPS_INDEX(name, args, shares) OPS_KERNEL_##name,
        OPS_ATTEND_KERNELS(OPS_INDEX) OPS_ATTEND_LARGE_KERNELS(OPS_INDEX)
#undef OPS_INDEX
            OPS_N_KERNELS
};
typedef struct {
    ops base;
    const tess_cuda *d; /* `start` sets this field and those after it */
    const ops_cublas *blas;
    CUdevice device;
    CUcontext context;
    CUstream stream, own; /* own: a stream that `start` created; otherwise null */
    CUmodule module;
    CUfunction kernels[OPS_N_KERNELS];
    int shared_bytes; /* of a block, at most */
    cublasHandle_t handle;
    struct ops_epilogues *epilogues; /* null: cuBLASLt is not used */
#if TESSERA_HAVE_CUDNN
    const ops_cudnn *dnn;
    cudnnHandle_t dnn_handle; /* null: convolutions are computed by products */
    struct ops_cudnn_plan *attention_plans;
#endif
} cuda_ops;

static inline cuda_ops *cuda_of(const ops *o) {
    return (cuda_ops *)(uintptr_t)o;
}
/** The libraries' name for the factors of 16 bits. */
static inline cudaDataType_t ops_cuda_half_type(const cuda_ops *c) {
    return c->base.fp16 ? CUDA_R_16F : CUDA_R_16BF;
}
/** Makes the context current for this thread's next calls; leave undoes it. TESS_E_INVALID: not started. */
tess_status ops_cuda_enter(const cuda_ops *);
void ops_cuda_leave(const cuda_ops *);
/** Tells the driver of kernels whose blocks share more than 48 KiB. Call it inside once the kernels are found. */
tess_status ops_cuda_take_shared(cuda_ops *);
/** Whether the GPU has the shared memory of a block of this kernel. */
int ops_cuda_has_shared(const cuda_ops *, int kernel);
/** Enqueues kernel OPS_KERNEL_… with `blocks` blocks; 0 blocks enqueue nothing. Call it between enter and leave. */
tess_status ops_cuda_launch(const cuda_ops *, int kernel, const void *args, uint64_t blocks);
/** Return the number of blocks for work of `elems` elements (four or eight per thread), of threads, or of rows of
 * lanes. */
static inline uint64_t ops_blocks_each(uint64_t elems) {
    return (elems + OPS_BLOCK * OPS_EACH - 1) / (OPS_BLOCK * OPS_EACH);
}
static inline uint64_t ops_blocks_eights(uint64_t elems) {
    return (elems + OPS_BLOCK * 8 - 1) / (OPS_BLOCK * 8);
}
static inline uint64_t ops_blocks_threads(uint64_t threads) {
    return (threads + OPS_BLOCK - 1) / OPS_BLOCK;
}
static inline uint64_t ops_blocks_rows(uint64_t rows) {
    return (rows + OPS_ROWS_PER_BLOCK - 1) / OPS_ROWS_PER_BLOCK;
}
/** LAUNCH(c, narrow, blocks, .x = x, …) */
#define OPS_LAUNCH(c, name, blocks, ...)                                                                               \
    ops_cuda_launch(c, OPS_KERNEL_##name, &(const ops_args_##name){ __VA_ARGS__ }, blocks)
const char *ops_cuda_kernel_name(const cuda_ops *, int kernel);
tess_status ops_cuda_failed(const cuda_ops *, CUresult, const char *what);
#define CU_TRY(c, what, call)                                                                                          \
    do {                                                                                                               \
        CUresult result_ = (call);                                                                                     \
        if (result_ != CUDA_SUCCESS)                                                                                   \
            return ops_cuda_failed(c, result_, what);                                                                  \
    } while (0)
/* The functions …_in are called between enter and leave. */
tess_status ops_cuda_narrow_in(const cuda_ops *, const float *x, uint16_t *y, uint64_t elems);
tess_status ops_cuda_zero_in(const cuda_ops *, void *x, uint64_t bytes);
/** Sums the columns of `samples` samples of `rows` rows each. */
tess_status ops_cuda_sample_sums_in(const cuda_ops *, const float *x, float *y, uint64_t samples, uint64_t rows,
                                    uint64_t width, int add, uint32_t over);
tess_status ops_cuda_column_sums_in(const cuda_ops *, const float *x, float *y, uint64_t rows, uint64_t width, int add);

/* ---- products.c -------------------------------------------------------------------------------- */
typedef struct { /* c[rows, columns] = alpha · a[rows, depth] · b[depth, columns] + beta · c, rows first */
    int64_t rows, columns, depth;
    const void *a, *b;
    void *c;
    int64_t a_pitch, b_pitch, c_pitch; /* elements between rows as stored */
    int32_t a_turned, b_turned;        /* 1: stored as [depth, rows], [columns, depth] */
    int32_t halves, half_c;            /* halves: a and b are of 16 bits; half_c: c is */
    float alpha, beta;
    int64_t a_step, b_step, c_step;     /* elements between the products of a batch */
    int32_t n;                          /* products; 0: 1 */
    const float *a_inverse, *b_inverse; /* if not null, a and b are codes of fp8 */
    int32_t a_e5m2;
} ops_product;
/** [pure] Returns the workspace for a product of this size, including room to align it. */
uint64_t ops_cuda_workspace(int64_t rows, int64_t columns, int64_t depth, int64_t n);
/** The part of a workspace that a library uses. */
typedef struct {
    void *at;
    uint64_t bytes;
} ops_room;
ops_room ops_cuda_room(const ops_product *, void *workspace);
tess_status ops_cuda_product(const cuda_ops *, const ops_product *, void *workspace);
tess_status ops_cuda_product_failed(const cuda_ops *, cublasStatus_t, const ops_product *);

/* ---- epilogues.c ------------------------------------------------------------------------------- */
typedef struct { /* fields of ops_factors */
    const void *bias;
    void *before;
    int32_t gelu;
} ops_epilogue;
tess_status ops_cuda_epilogues_start(cuda_ops *);
void ops_cuda_epilogues_end(cuda_ops *);
/** Enqueues the product and its epilogue as one launch. *done = 0: the library does not support it, and nothing was
 * enqueued. */
tess_status ops_cuda_product_with(const cuda_ops *, const ops_product *, const ops_epilogue *, void *workspace,
                                  int *done);

/** Enqueues a product of codes of fp8, with fp32 sums. TESS_E_UNSUPPORTED: cuBLASLt has none of this shape. */
tess_status ops_cuda_product_fp8(const cuda_ops *, const ops_product *, void *workspace);

/* ---- linear, in products.c --------------------------------------------------------------------- */

tess_status ops_cuda_linear_create(ops *, const ops_linear_shape *, ops_linear **out, ops_scratch *need);
void ops_cuda_linear_destroy(ops_linear *);
tess_status ops_cuda_linear_forward(ops_linear *, const float *x, const void *w, const float *b, float *y,
                                    void *scratch);
tess_status ops_cuda_linear_backward(ops_linear *, const float *x, const void *w, const float *dy, float *dx, float *dw,
                                     float *db, void *scratch);
/* ---- convolution.c, attention.c ---------------------------------------------------------------- */
tess_status ops_cuda_conv_create(ops *, const ops_conv_shape *, ops_conv **out, ops_scratch *need);
void ops_cuda_conv_destroy(ops_conv *);
tess_status ops_cuda_conv_forward(ops_conv *, const float *x, const void *w, const float *b, float *y, void *scratch);
tess_status ops_cuda_conv_backward(ops_conv *, const float *x, const void *w, const float *dy, float *dx, float *dw,
                                   float *db, void *scratch);
/** Returns the factor of scores. */
float ops_cuda_attention_scale(const ops_attention_shape *);
/* Attention by products over blocks of queries. */
void ops_cuda_attention_need(const ops *, const ops_attention_shape *, ops_scratch *need);
tess_status ops_cuda_attention(const cuda_ops *, const ops_attention_shape *, const void *qkv, void *y, float *lse,
                               void *scratch);
tess_status ops_cuda_attention_backward(const cuda_ops *, const ops_attention_shape *, const void *qkv, const void *y,
                                        const float *lse, const void *dy, void *dqkv, void *scratch);
/* ---- layer.c ----------------------------------------------------------------------------------- */
extern const ops_layer_table ops_cuda_layer;

/** Runs `call` with the context current. */
#define OPS_INSIDE(c, call)                                                                                            \
    do {                                                                                                               \
        tess_status inside_ = ops_cuda_enter(c);                                                                       \
        if (inside_ != TESS_OK)                                                                                        \
            return inside_;                                                                                            \
        inside_ = (call);                                                                                              \
        ops_cuda_leave(c);                                                                                             \
        return inside_;                                                                                                \
    } while (0)
#endif
