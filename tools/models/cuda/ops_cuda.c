/* SPDX-License-Identifier: BSD-3-Clause */
/* The operators for tensors in an NVIDIA GPU's memory: our own kernels (kernels.h), and cuBLAS for products. Each
 * call only enqueues on the engine's compute stream. Objects that depend only on shapes are made without a GPU, so
 * that a plan needs none. `start` makes the rest once the engine has its device. */
#include "cudnn_ops.h"
#include <tessera/tessera.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const unsigned char tess_ops_kernels[], tess_ops_kernels_f16[]; /* the compiled kernels.cu and kernels_f16.cu */
/* ---- the context ------------------------------------------------------------------------------- */
static tess_status cuda_create(const ops_options *options, ops **out) {
    cuda_ops *c = calloc(1, sizeof *c);
    if (!c)
        return tess_fail(TESS_E_NOMEM, "out of memory for the CUDA operators");
    c->base.t = &ops_cuda;
    c->base.threads = 1;
    c->base.bf16 = options && options->bf16;
    c->base.fp16 = options && options->fp16;
    c->base.fp8 = options && options->fp8;
    c->base.cudnn_attention = options && options->cudnn_attention;
    c->base.attention_products = options ? options->attention_products : 0;
    *out = &c->base;
    return TESS_OK;
}

static tess_status start_cublas(cuda_ops *c) {
    cublasStatus_t s = c->blas->cublasCreate_v2(&c->handle);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = c->blas->cublasSetStream_v2(c->handle, c->stream);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = c->blas->cublasSetMathMode(
            c->handle, (cublasMath_t)(CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION));
    return s == CUBLAS_STATUS_SUCCESS ? TESS_OK
                                      : tess_fail(TESS_E_DEVICE, "operators cuda: cuBLAS does not start: %s",
                                                  c->blas->cublasGetStatusString(s));
}

/* Ada (8.9) is the first with tensor cores for fp8. */
static tess_status check_fp8(const cuda_ops *c) {
    int major = 0, minor = 0;
    CU_TRY(c, "asking for the compute capability",
           c->d->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, c->device));
    CU_TRY(c, "asking for the compute capability",
           c->d->cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, c->device));
    if (!c->base.fp8 || 10 * major + minor >= 89)
        return TESS_OK;
    return tess_fail(TESS_E_UNSUPPORTED,
                     "operators cuda: products in fp8 need compute capability 8.9, this GPU has %d.%d: "
                     "TESSERA_PRECISION=bf16",
                     major, minor);
}

static tess_status start_inside(cuda_ops *c) {
    OPS_TRY(check_fp8(c));
    if (!c->stream)
        CU_TRY(c, "making a stream", c->d->cuStreamCreateWithPriority(&c->own, CU_STREAM_NON_BLOCKING, 0));
    c->stream = c->stream ? c->stream : c->own;
    char why[240];
    const unsigned char *image = c->base.fp16 ? tess_ops_kernels_f16 : tess_ops_kernels;
    CUresult r = tess_cuda_load_module(c->d, c->device, image, &c->module, why, sizeof why);
    if (r != CUDA_SUCCESS)
        return tess_fail(tess_cuda_status(r), "operators cuda: %s", why);
    for (int i = 0; i < OPS_N_KERNELS; i++)
        CU_TRY(c, ops_cuda_kernel_name(c, i),
               c->d->cuModuleGetFunction(&c->kernels[i], c->module, ops_cuda_kernel_name(c, i)));
    OPS_TRY(ops_cuda_take_shared(c));
    OPS_TRY(ops_cudnn_start(c));
    OPS_TRY(ops_cuda_epilogues_start(c));
    return start_cublas(c);
}

static tess_status cuda_start(ops *o, const tess_stream *stream) {
    cuda_ops *c = cuda_of(o);
    char why[240];
    int devices;
    tess_status status = tess_cuda_get(&c->d, why, sizeof why);
    if (status != TESS_OK)
        return tess_fail(status, "operators cuda: %s", why);
    OPS_TRY(ops_cublas_load(&c->blas));
    c->stream = stream->handle ? stream->handle : CU_STREAM_LEGACY; /* null: the default stream */
    CU_TRY(c, "taking the device", tess_cuda_device_of(c->d, stream->device, &c->device, &devices));
    CU_TRY(c, "taking the device's context", tess_cuda_retain(c->d, c->device, &c->context));
    OPS_TRY(ops_cuda_enter(c));
    status = start_inside(c);
    ops_cuda_leave(c);
    return status;
}

/* The stream may no longer exist, so cuBLAS is detached from it first. */
static void cuda_destroy(ops *o) {
    cuda_ops *c = o ? cuda_of(o) : NULL;
    if (c && c->context) {
        CUcontext popped;
        int inside = c->d->cuCtxPushCurrent(c->context) == CUDA_SUCCESS;
        ops_cudnn_end(c);
        ops_cuda_epilogues_end(c);
        if (c->handle) {
            c->blas->cublasSetStream_v2(c->handle, NULL);
            c->blas->cublasDestroy_v2(c->handle);
        }
        if (c->module)
            c->d->cuModuleUnload(c->module);
        if (c->own)
            c->d->cuStreamDestroy(c->own);
        if (inside)
            c->d->cuCtxPopCurrent(&popped);
        c->d->cuDevicePrimaryCtxRelease(c->device);
    }
    free(c);
}

static void cuda_describe(const ops *o, char *out, size_t bytes) {
    const cuda_ops *c = cuda_of(o);
    const char *halves = o->fp16 ? ", fp16 products with fp32 sums" : o->bf16 ? ", bf16 products with fp32 sums" : "";
    char dnn[32] = "", products[80] = "";
    int version = 0;
    ops_cudnn_describe(c, dnn, sizeof dnn);
    if (o->attention_products)
        snprintf(products, sizeof products, ", %d products back through attention", o->attention_products);
    if (c->module && o->attention_products != 7 && !ops_cuda_has_shared(c, OPS_KERNEL_attend_five_128))
        strcat(products, ", 7 with heads above 96"); /* the GPU's limit, on which bits depend */
    if (c->handle && c->blas->cublasGetVersion_v2(c->handle, &version) == CUBLAS_STATUS_SUCCESS)
        snprintf(out, bytes, "cuda, cuBLAS %d.%d%s%s%s", version / 10000, version % 10000 / 100, dnn, halves, products);
    else
        snprintf(out, bytes, "cuda, cuBLAS%s%s", halves, products);
}

static CUdeviceptr at(const void *p) {
    return (CUdeviceptr)(uintptr_t)p;
}

/* ---- memory for models without the engine ------------------------------------------------------ */
static tess_status alloc_in(const cuda_ops *c, uint64_t bytes, void **out) {
    CUdeviceptr got = 0;
    CU_TRY(c, "taking memory", c->d->cuMemAlloc(&got, bytes ? bytes : 1));
    *out = (void *)(uintptr_t)got;
    return ops_cuda_zero_in(c, *out, bytes);
}
static tess_status cuda_alloc(ops *o, uint64_t bytes, void **out) {
    OPS_INSIDE(cuda_of(o), alloc_in(cuda_of(o), bytes, out));
}
static void cuda_free(ops *o, void *p) {
    const cuda_ops *c = cuda_of(o);
    if (!p || ops_cuda_enter(c) != TESS_OK)
        return;
    c->d->cuMemFree(at(p));
    ops_cuda_leave(c);
}
static tess_status pinned_in(const cuda_ops *c, uint64_t bytes, void **out) {
    CU_TRY(c, "taking pinned memory", c->d->cuMemHostAlloc(out, bytes ? bytes : 1, CU_MEMHOSTALLOC_PORTABLE));
    memset(*out, 0, bytes);
    return TESS_OK;
}
static tess_status cuda_pinned_alloc(ops *o, uint64_t bytes, void **out) {
    OPS_INSIDE(cuda_of(o), pinned_in(cuda_of(o), bytes, out));
}
static void cuda_pinned_free(ops *o, void *p) {
    const cuda_ops *c = cuda_of(o);
    if (!p || ops_cuda_enter(c) != TESS_OK)
        return;
    c->d->cuMemFreeHost(p);
    ops_cuda_leave(c);
}
static tess_status finish_in(const cuda_ops *c) {
    CU_TRY(c, "waiting for the stream", c->d->cuStreamSynchronize(c->stream));
    return TESS_OK;
}
static tess_status cuda_finish(ops *o) {
    OPS_INSIDE(cuda_of(o), finish_in(cuda_of(o)));
}
static tess_status upload_in(const cuda_ops *c, const void *host, void *to, uint64_t bytes) {
    if (bytes)
        CU_TRY(c, "copying to the device", c->d->cuMemcpyHtoDAsync(at(to), host, bytes, c->stream));
    return finish_in(c);
}
static tess_status cuda_upload(ops *o, const void *host, void *to, uint64_t bytes) {
    OPS_INSIDE(cuda_of(o), upload_in(cuda_of(o), host, to, bytes));
}
static tess_status download_in(const cuda_ops *c, const void *from, void *host, uint64_t bytes) {
    if (bytes)
        CU_TRY(c, "copying from the device", c->d->cuMemcpyDtoHAsync(host, at(from), bytes, c->stream));
    return finish_in(c);
}
static tess_status cuda_download(ops *o, const void *from, void *host, uint64_t bytes) {
    OPS_INSIDE(cuda_of(o), download_in(cuda_of(o), from, host, bytes));
}

/* ---- element by element ------------------------------------------------------------------------ */
static tess_status cuda_narrow(const ops *o, const float *x, uint16_t *y, uint64_t elems) {
    OPS_INSIDE(cuda_of(o), ops_cuda_narrow_in(cuda_of(o), x, y, elems));
}
static tess_status cuda_widen(const ops *o, const uint16_t *x, float *y, uint64_t elems) {
    OPS_INSIDE(cuda_of(o), OPS_LAUNCH(cuda_of(o), widen, ops_blocks_each(elems), .x = x, .y = y, .elems = elems));
}

static tess_status cuda_zero(ops *o, void *x, uint64_t bytes) {
    OPS_INSIDE(cuda_of(o), ops_cuda_zero_in(cuda_of(o), x, bytes));
}

static tess_status copy_in(const cuda_ops *c, const void *x, void *y, uint64_t bytes) {
    if (bytes)
        CU_TRY(c, "copying", c->d->cuMemcpyDtoDAsync(at(y), at(x), bytes, c->stream));
    return TESS_OK;
}
static tess_status cuda_copy(ops *o, const void *x, void *y, uint64_t bytes) {
    OPS_INSIDE(cuda_of(o), copy_in(cuda_of(o), x, y, bytes));
}

static tess_status cuda_relu_backward(ops *o, const float *y, const float *dy, float *dx, uint64_t elems, float scale) {
    OPS_INSIDE(cuda_of(o), OPS_LAUNCH(cuda_of(o), relu_backward, ops_blocks_each(elems), .y = y, .dy = dy, .dx = dx,
                                      .elems = elems, .scale = scale));
}
static tess_status cuda_add(ops *o, const float *x, float *y, uint64_t elems) {
    OPS_INSIDE(cuda_of(o), OPS_LAUNCH(cuda_of(o), add, ops_blocks_each(elems), .x = x, .y = y, .elems = elems));
}
static tess_status cuda_dropout(ops *o, float *x, uint64_t samples, uint64_t elems, const ops_dropout *d) {
    uint64_t threads = samples * ((elems + 3) / 4);
    if (!(d->rate > 0))
        return TESS_OK;
    OPS_INSIDE(cuda_of(o), OPS_LAUNCH(cuda_of(o), dropout, ops_blocks_threads(threads), .x = x, .samples = samples,
                                      .elems = elems, .seed = d->seed, .step = d->step, .first_sample = d->first_sample,
                                      .layer = d->layer, .rate = d->rate));
}

/* ---- pools ------------------------------------------------------------------------------------- */
static tess_status cuda_maxpool(ops *o, const float *x, const ops_conv_shape *s, float *y, uint8_t *which) {
    uint64_t elems = (uint64_t)s->batch * (uint64_t)(s->height / 2) * (uint64_t)(s->width / 2) * (uint64_t)s->channels;
    OPS_INSIDE(cuda_of(o),
               OPS_LAUNCH(cuda_of(o), maxpool, ops_blocks_each(elems), .x = x, .y = y, .which = which,
                          .batch = s->batch, .height = s->height, .width = s->width, .channels = s->channels));
}
static tess_status cuda_maxpool_backward(ops *o, const float *y, const uint8_t *which, const float *dy,
                                         const ops_conv_shape *s, float *dx, float scale) {
    uint64_t elems = (uint64_t)s->batch * (uint64_t)s->height * (uint64_t)s->width * (uint64_t)s->channels;
    OPS_INSIDE(cuda_of(o), OPS_LAUNCH(cuda_of(o), maxpool_backward, ops_blocks_each(elems), .y = y, .dy = dy,
                                      .which = which, .dx = dx, .batch = s->batch, .height = s->height,
                                      .width = s->width, .channels = s->channels, .scale = scale));
}

static tess_status cuda_avgpool(ops *o, const float *x, float *y, uint64_t batch, uint64_t places, uint64_t channels) {
    OPS_INSIDE(cuda_of(o), ops_cuda_sample_sums_in(cuda_of(o), x, y, batch, places, channels, 0, 1));
}
static tess_status cuda_avgpool_backward(ops *o, const float *dy, float *dx, uint64_t batch, uint64_t places,
                                         uint64_t channels) {
    uint64_t elems = batch * places * channels;
    OPS_INSIDE(cuda_of(o), OPS_LAUNCH(cuda_of(o), avgpool_backward, ops_blocks_each(elems), .dy = dy, .dx = dx,
                                      .elems = elems, .places = places, .channels = channels));
}

/* ---- normalisation ----------------------------------------------------------------------------- */
static uint64_t chunk_threads(const ops_batchnorm_shape *s) {
    return (s->rows + OPS_CHUNK - 1) / OPS_CHUNK * s->channels;
}

static tess_status batchnorm(const cuda_ops *c, const ops_batchnorm_shape *s, uint32_t with, const float *x,
                             const float *w, const float *b, float *running_mean, float *running_var, float *y,
                             float *stats, double *sums) {
    uint64_t elems = s->rows * s->channels;
    if (with != OPS_RUNNING)
        OPS_TRY(OPS_LAUNCH(c, batchnorm_sums, ops_blocks_threads(chunk_threads(s)), .x = x, .sums = sums,
                           .rows = s->rows, .channels = s->channels));
    OPS_TRY(OPS_LAUNCH(c, batchnorm_stats, ops_blocks_threads(s->channels), .sums = with == OPS_RUNNING ? NULL : sums,
                       .running_mean = running_mean, .running_var = running_var, .stats = stats, .rows = s->rows,
                       .channels = s->channels, .update = with == OPS_BATCH_UPDATE));
    return OPS_LAUNCH(c, batchnorm, ops_blocks_each(elems), .x = x, .w = w, .b = b, .stats = stats, .y = y,
                      .elems = elems, .channels = s->channels, .relu = s->relu);
}
static tess_status cuda_batchnorm(ops *o, const ops_batchnorm_shape *s, uint32_t with, const float *x, const float *w,
                                  const float *b, float *running_mean, float *running_var, float *y, float *stats,
                                  void *scratch) {
    OPS_INSIDE(cuda_of(o), batchnorm(cuda_of(o), s, with, x, w, b, running_mean, running_var, y, stats, scratch));
}

static tess_status batchnorm_backward(const cuda_ops *c, const ops_batchnorm_shape *s, const float *x, const float *w,
                                      const float *stats, const float *y, const float *dy, float *dx, float *dw,
                                      float *db, double *sums) {
    float *means = (float *)(sums + chunk_threads(s) * 2);
    uint64_t elems = s->rows * s->channels;
    OPS_TRY(OPS_LAUNCH(c, batchnorm_slopes, ops_blocks_threads(chunk_threads(s)), .x = x, .y = y, .dy = dy,
                       .stats = stats, .sums = sums, .rows = s->rows, .channels = s->channels, .relu = s->relu));
    OPS_TRY(OPS_LAUNCH(c, batchnorm_means, ops_blocks_threads(s->channels), .sums = sums, .dw = dw, .db = db,
                       .means = means, .rows = s->rows, .channels = s->channels));
    return OPS_LAUNCH(c, batchnorm_backward, ops_blocks_each(elems), .x = x, .y = y, .dy = dy, .w = w, .stats = stats,
                      .means = means, .dx = dx, .elems = elems, .channels = s->channels, .relu = s->relu);
}
static tess_status cuda_batchnorm_backward(ops *o, const ops_batchnorm_shape *s, const float *x, const float *w,
                                           const float *stats, const float *y, const float *dy, float *dx, float *dw,
                                           float *db, void *scratch) {
    OPS_INSIDE(cuda_of(o), batchnorm_backward(cuda_of(o), s, x, w, stats, y, dy, dx, dw, db, scratch));
}

/* ---- losses ---------------------------------------------------------------------------------- */
static uint64_t cuda_cross_entropy_need(uint64_t rows) {
    return ops_align(rows * sizeof(ops_cuda_row_loss));
}
static tess_status cross_entropy(const cuda_ops *c, float *logits, const int32_t *labels, uint64_t classes,
                                 uint64_t count, ops_loss *out, ops_cuda_row_loss *losses) {
    OPS_TRY(OPS_LAUNCH(c, cross_entropy, ops_blocks_rows(count), .logits = logits, .labels = labels, .losses = losses,
                       .rows = count, .classes = classes));
    return OPS_LAUNCH(c, loss_sum, 1, .losses = losses, .out = (ops_cuda_loss *)out, .rows = count);
}
static tess_status cuda_cross_entropy(ops *o, float *logits, const int32_t *labels, uint64_t rows, uint64_t classes,
                                      uint64_t count, ops_loss *out, void *scratch) {
    (void)rows;
    OPS_INSIDE(cuda_of(o), cross_entropy(cuda_of(o), logits, labels, classes, count, out, scratch));
}
static tess_status cuda_cross_entropy_backward(ops *o, const float *probabilities, const int32_t *labels, uint64_t rows,
                                               uint64_t classes, uint64_t count, float scale, float *dlogits) {
    float over = count ? (float)((double)scale / (double)count) : 0;
    OPS_INSIDE(cuda_of(o), OPS_LAUNCH(cuda_of(o), cross_entropy_backward, ops_blocks_each(rows * classes),
                                      .probabilities = probabilities, .labels = labels, .dlogits = dlogits,
                                      .elems = rows * classes, .classes = classes, .count = count, .over = over));
}
static tess_status cuda_sum_loss(ops *o, const float *x, uint64_t elems, int32_t squared, uint64_t count,
                                 ops_loss *out) {
    OPS_INSIDE(cuda_of(o), OPS_LAUNCH(cuda_of(o), sum_loss, 1, .x = x, .out = (ops_cuda_loss *)out, .elems = elems,
                                      .count = count, .squared = squared));
}
static tess_status cuda_sum_loss_backward(ops *o, const float *x, uint64_t elems, int32_t squared, float scale,
                                          uint64_t all, float *dx) {
    OPS_INSIDE(cuda_of(o), OPS_LAUNCH(cuda_of(o), sum_loss_backward, ops_blocks_each(all), .x = x, .dx = dx,
                                      .elems = elems, .all = all, .squared = squared, .scale = scale));
}

/* ---- indices --------------------------------------------------------------------------------- */
static tess_status cuda_ids(ops *o, const uint8_t *text, uint64_t samples, uint64_t time, uint64_t stride,
                            int32_t *out) {
    OPS_INSIDE(cuda_of(o), OPS_LAUNCH(cuda_of(o), ids, ops_blocks_each(samples * time), .text = text, .out = out,
                                      .elems = samples * time, .time = time, .stride = stride));
}
const ops_table ops_cuda = {
    .name = "cuda",
    .mem = TESS_MEM_CUDA,
    .layer = &ops_cuda_layer,
    .create = cuda_create,
    .start = cuda_start,
    .destroy = cuda_destroy,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .upload = cuda_upload,
    .download = cuda_download,
    .finish = cuda_finish,
    .pinned_alloc = cuda_pinned_alloc,
    .pinned_free = cuda_pinned_free,
    .describe = cuda_describe,
    .linear_create = ops_cuda_linear_create,
    .linear_destroy = ops_cuda_linear_destroy,
    .linear_forward = ops_cuda_linear_forward,
    .linear_backward = ops_cuda_linear_backward,
    .conv_create = ops_cuda_conv_create,
    .conv_destroy = ops_cuda_conv_destroy,
    .conv_forward = ops_cuda_conv_forward,
    .conv_backward = ops_cuda_conv_backward,
    .narrow = cuda_narrow,
    .widen = cuda_widen,
    .zero = cuda_zero,
    .copy = cuda_copy,
    .relu_backward = cuda_relu_backward,
    .dropout = cuda_dropout,
    .add = cuda_add,
    .maxpool = cuda_maxpool,
    .maxpool_backward = cuda_maxpool_backward,
    .batchnorm = cuda_batchnorm,
    .batchnorm_backward = cuda_batchnorm_backward,
    .avgpool = cuda_avgpool,
    .avgpool_backward = cuda_avgpool_backward,
    .cross_entropy = cuda_cross_entropy,
    .cross_entropy_need = cuda_cross_entropy_need,
    .cross_entropy_backward = cuda_cross_entropy_backward,
    .sum_loss = cuda_sum_loss,
    .sum_loss_backward = cuda_sum_loss_backward,
    .ids = cuda_ids,
};
