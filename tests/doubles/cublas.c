/* SPDX-License-Identifier: BSD-3-Clause */
/* The part of cuBLAS that the models call: products, run in the stream's order by the plain product of tools/models.
 * Pointers must lie in device memory as a whole, the workspace too. */
#include <cublas_v2.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "products.h"
#include "driver.h"
#include "races.h"
#include "kit/formulas.h"
#include "tools/models/gemm.h"
#include "tools/models/ops_formulas.h"

struct cublasContext {
    double_stream *stream;
    int device;
};

static cublasStatus_t enter(const char *name) {
    return double__fails(name) ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}

DOUBLE_API cublasStatus_t cublasCreate_v2(cublasHandle_t *out) {
    int fails = double__fails("cublasCreate");
    if (fails || double__current_device() < 0)
        return fails ? CUBLAS_STATUS_ALLOC_FAILED : CUBLAS_STATUS_NOT_INITIALIZED;
    struct cublasContext *h = calloc(1, sizeof *h);
    if (!h)
        return CUBLAS_STATUS_ALLOC_FAILED;
    h->device = double__current_device();
    h->stream = double__null_stream(h->device);
    double__live("cuBLAS handles", 1);
    *out = h;
    return CUBLAS_STATUS_SUCCESS;
}

DOUBLE_API cublasStatus_t cublasDestroy_v2(cublasHandle_t h) {
    if (!h || double__current_device() < 0)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    double__finish_device(h->device);
    double__live("cuBLAS handles", -1);
    free(h);
    return CUBLAS_STATUS_SUCCESS;
}

DOUBLE_API cublasStatus_t cublasGetVersion_v2(cublasHandle_t h, int *out) {
    *out = CUBLAS_VER_MAJOR * 10000 + CUBLAS_VER_MINOR * 100;
    return h ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

DOUBLE_API cublasStatus_t cublasSetStream_v2(cublasHandle_t h, cudaStream_t stream) {
    double_stream *s = double__stream_of((CUstream)stream);
    if (enter("cublasSetStream") != CUBLAS_STATUS_SUCCESS || !h || !s)
        return CUBLAS_STATUS_INVALID_VALUE;
    h->stream = s;
    return CUBLAS_STATUS_SUCCESS;
}

DOUBLE_API cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t h, void *at, size_t bytes) {
    if (enter("cublasSetWorkspace") != CUBLAS_STATUS_SUCCESS || !h || (uintptr_t)at % 256 || bytes < 16384 ||
        !double__is_device(at) || !double__range_ok(at, bytes, 0))
        return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

DOUBLE_API cublasStatus_t cublasSetMathMode(cublasHandle_t h, cublasMath_t mode) {
    (void)mode;
    return h ? enter("cublasSetMathMode") : CUBLAS_STATUS_NOT_INITIALIZED;
}

DOUBLE_API const char *cublasGetStatusString(cublasStatus_t status) {
    return status == CUBLAS_STATUS_INVALID_VALUE ? "an unsupported value or parameter" : "the double says so";
}

/* ---- products ----------------------------------------------------------------------------------- */
/* Elements from the first to the last of a matrix of `columns` columns of `rows`. */
static uint64_t extent(int64_t rows, int64_t columns, int64_t pitch) {
    return (uint64_t)((columns - 1) * pitch + rows);
}

/* A stream's thread keeps what it once took, so that a step takes nothing after the first: as cuBLAS does. */
enum { KEPT = 4 };
typedef struct {
    float *at[KEPT];
    uint64_t elems[KEPT];
} kept;
static pthread_key_t kept_key;
static pthread_once_t kept_once = PTHREAD_ONCE_INIT;
static void give_back(void *data) {
    kept *k = data;
    for (int i = 0; i < KEPT; i++)
        free(k->at[i]);
    free(k);
}
static void make_key(void) {
    pthread_key_create(&kept_key, give_back);
}
static float *keep(int which, uint64_t elems) {
    pthread_once(&kept_once, make_key);
    kept *k = pthread_getspecific(kept_key);
    if (!k) {
        k = calloc(1, sizeof *k);
        pthread_setspecific(kept_key, k);
    }
    if (k && k->elems[which] < elems) {
        free(k->at[which]);
        k->at[which] = aligned_alloc(64, (elems * sizeof(float) + 63) / 64 * 64);
        k->elems[which] = k->at[which] ? elems : 0;
    }
    return k ? k->at[which] : NULL;
}

static float wide_of(const double_product *p, uint16_t half) {
    return p->f16 ? tess_f32_of_f16(half) : tess_f32_of_bf16(half);
}
static uint16_t half_of(const double_product *p, float x) {
    return p->f16 ? tess_f16_of_f32(x) : tess_bf16_of_f32(x);
}

/* By the definition of the formats: a sign, `7 - bits` bits of exponent, `bits` of mantissa. */
static float of_code(uint8_t code, int bits) {
    int exponent = (code & 0x7f) >> bits, mantissa = code & ((1 << bits) - 1), bias = bits == 3 ? 7 : 15;
    int is_nan = bits == 3 ? (code & 0x7f) == 0x7f : exponent == 31;
    float size = exponent ? ldexpf((float)(mantissa + (1 << bits)), exponent - bias - bits)
                          : ldexpf((float)mantissa, 1 - bias - bits);
    return is_nan ? NAN : code & 0x80 ? -size : size;
}

static const float *of_codes(const uint8_t *codes, uint64_t elems, int bits, int which) {
    float *wide = keep(which, elems);
    for (uint64_t i = 0; wide && i < elems; i++)
        wide[i] = of_code(codes[i], bits);
    return wide;
}

static const float *widened(const double_product *p, const void *x, uint64_t elems, int which) {
    int bits = which ? p->code_b : p->code_a;
    const uint16_t *half = x;
    if (bits)
        return of_codes(x, elems, bits, which);
    float *wide = p->halves ? keep(which, elems) : NULL;
    for (uint64_t i = 0; wide && i < elems; i++)
        wide[i] = wide_of(p, half[i]);
    return p->halves ? wide : x;
}

static uint64_t a_elems(const double_product *p) {
    return p->turn_a ? extent(p->k, p->m, p->lda) : extent(p->m, p->k, p->lda);
}
static uint64_t b_elems(const double_product *p) {
    return p->turn_b ? extent(p->n, p->k, p->ldb) : extent(p->k, p->n, p->ldb);
}

/* The plain product has rows first, so the factors change places. */
static void multiply(const double_product *p, const float *a, const float *b, float *c, void *scratch) {
    gemm_task t = { .rows = p->n, .columns = p->m, .depth = p->k, .a = b, .b = a, .c = c, .c_row = p->ldc };
    t.a_row = p->turn_b ? 1 : p->ldb, t.a_depth = p->turn_b ? p->ldb : 1;
    t.b_depth = p->turn_a ? 1 : p->lda, t.b_column = p->turn_a ? p->lda : 1;
    t.accumulate = p->beta != 0, t.scale = p->alpha;
    gemm(&t, scratch);
}

/* Bias and GELU of element `row` of a column, at place i of the matrix, before it is rounded. */
static float follow_product(const double_product *p, int64_t row, int64_t i, float sum) {
    const uint16_t *bias = double_host(p->bias);
    uint16_t *before = double_host(p->before);
    sum += bias ? wide_of(p, bias[row]) : 0;
    if (before)
        before[i] = half_of(p, sum);
    return p->gelu ? ops_gelu_of(sum) : sum;
}

/* In fp32, and rounded once at the end. */
static void multiply_rounded(const double_product *p, const float *a, const float *b, uint16_t *c, void *scratch) {
    uint64_t elems = extent(p->m, p->n, p->ldc);
    float *wide = keep(3, elems);
    for (uint64_t i = 0; wide && i < elems; i++)
        wide[i] = wide_of(p, c[i]);
    if (wide)
        multiply(p, a, b, wide, scratch);
    for (int64_t column = 0; wide && column < p->n; column++)
        for (int64_t row = 0; row < p->m; row++) {
            int64_t i = column * p->ldc + row;
            c[i] = half_of(p, follow_product(p, row, i, wide[i]));
        }
}

static void run_product(void *data) {
    double_product scaled = *(const double_product *)data;
    const double_product *p = &scaled;
    if (p->scale_a)
        scaled.alpha *= *(const float *)double_host(p->scale_a) * *(const float *)double_host(p->scale_b);
    size_t size = p->halves ? sizeof(uint16_t) : sizeof(float);
    void *scratch = keep(2, GEMM_SCRATCH_BYTES / sizeof(float));
    const char *a = double_host(p->a), *b = double_host(p->b);
    char *c = double_host(p->c);
    for (long long i = 0; scratch && i < p->times; i++) {
        const float *wide_a = widened(p, a + (size_t)(i * p->step_a) * size, a_elems(p), 0);
        const float *wide_b = widened(p, b + (size_t)(i * p->step_b) * size, b_elems(p), 1);
        if (wide_a && wide_b && p->half_c)
            multiply_rounded(p, wide_a, wide_b, (uint16_t *)(void *)c + i * p->step_c, scratch);
        else if (wide_a && wide_b)
            multiply(p, wide_a, wide_b, (float *)(void *)c + i * p->step_c, scratch);
    }
}

static void describe_product(const void *data, double_access *a) {
    double__reads_words(a, "a product of cuBLAS", data, sizeof(double_product));
}
__attribute__((constructor)) static void describe_products(void) {
    double__describes(run_product, describe_product);
}

static int in_device(const void *at, uint64_t elems, long long step, int times, size_t size) {
    uint64_t all = elems + (uint64_t)step * (uint64_t)(times - 1);
    return double__is_device(at) && double__range_ok(at, all * size, 0) && (uintptr_t)at % size == 0;
}

int double__product_is_good(const double_product *p) {
    size_t size = p->code_a ? 1 : p->halves ? sizeof(uint16_t) : sizeof(float);
    if (p->m < 1 || p->n < 1 || p->k < 1 || p->times < 1 || p->ldc < p->m || (p->beta != 0 && p->beta != 1) ||
        p->alpha == 0 || p->lda < (p->turn_a ? p->k : p->m) || p->ldb < (p->turn_b ? p->n : p->k))
        return 0;
    return in_device(p->a, a_elems(p), p->step_a, p->times, size) &&
           in_device(p->b, b_elems(p), p->step_b, p->times, size) &&
           in_device(p->c, extent(p->m, p->n, p->ldc), p->step_c, p->times,
                     p->half_c ? sizeof(uint16_t) : sizeof(float));
}

void double__product_push(double_stream *stream, const double_product *p) {
    double__push(stream, run_product, p, sizeof *p);
}

int double__blas_device(const void *handle) {
    return handle ? ((const struct cublasContext *)handle)->device : -1;
}

/* Whether a library would read or write this matrix element by element, though its rows begin where vectors do. */
static int is_odd(int side, int pitch) {
    return side > 8 && side % 8 != 0 && pitch % 8 == 0;
}
static void count_odd_sides(const double_product *p) {
    if (p->halves &&
        (is_odd(p->turn_a ? p->k : p->m, p->lda) || is_odd(p->turn_b ? p->n : p->k, p->ldb) || is_odd(p->m, p->ldc)))
        double__fails("odd-sides"); /* counts them */
}

DOUBLE_API cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t h, cublasOperation_t transa,
                                                     cublasOperation_t transb, int m, int n, int k, const void *alpha,
                                                     const void *A, cudaDataType Atype, int lda, long long int strideA,
                                                     const void *B, cudaDataType Btype, int ldb, long long int strideB,
                                                     const void *beta, void *C, cudaDataType Ctype, int ldc,
                                                     long long int strideC, int batchCount, cublasComputeType_t compute,
                                                     cublasGemmAlgo_t algo) {
    cublasStatus_t entered = enter("cublasGemm");
    double_product p = { .turn_a = transa != CUBLAS_OP_N, .turn_b = transb != CUBLAS_OP_N, .m = m, .n = n, .k = k };
    p.lda = lda, p.ldb = ldb, p.ldc = ldc, p.halves = Atype != CUDA_R_32F, p.half_c = Ctype != CUDA_R_32F;
    p.f16 = Atype == CUDA_R_16F;
    p.times = batchCount, p.alpha = *(const float *)alpha, p.beta = *(const float *)beta;
    p.a = A, p.b = B, p.c = C, p.step_a = strideA, p.step_b = strideB, p.step_c = strideC;
    (void)algo;
    if (entered != CUBLAS_STATUS_SUCCESS)
        return entered;
    if (!h || double__current_device() != h->device)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (Atype != Btype || (Ctype != CUDA_R_32F && Ctype != Atype) || (p.halves && !p.f16 && Atype != CUDA_R_16BF) ||
        compute != CUBLAS_COMPUTE_32F || !double__product_is_good(&p))
        return CUBLAS_STATUS_INVALID_VALUE;
    count_odd_sides(&p);
    double__product_push(h->stream, &p);
    return CUBLAS_STATUS_SUCCESS;
}

DOUBLE_API cublasStatus_t cublasGemmEx(cublasHandle_t h, cublasOperation_t transa, cublasOperation_t transb, int m,
                                       int n, int k, const void *alpha, const void *A, cudaDataType Atype, int lda,
                                       const void *B, cudaDataType Btype, int ldb, const void *beta, void *C,
                                       cudaDataType Ctype, int ldc, cublasComputeType_t compute,
                                       cublasGemmAlgo_t algo) {
    return cublasGemmStridedBatchedEx(h, transa, transb, m, n, k, alpha, A, Atype, lda, 0, B, Btype, ldb, 0, beta, C,
                                      Ctype, ldc, 0, 1, compute, algo);
}
