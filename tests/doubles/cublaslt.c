/* SPDX-License-Identifier: BSD-3-Clause */
/* The part of cuBLASLt that the models call: products in bf16 with what follows them, and products in fp8 as Hopper has
 * them: turned and not turned, sides of whole vectors of 16 bytes, at most one factor of e5m2. An algorithm is good for
 * what it was asked for and for nothing else: other sizes, pointers less aligned, less workspace and another handle are
 * refused, as are descriptors that lack something. */
#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>

#include "products.h"
#include "driver.h"

enum { WORKSPACE = 1 << 15, MAGIC = 0x17a1 };
typedef struct {
    int magic; /* +0 a product, +1 a matrix, +2 a wish */
    int32_t turn_a, turn_b;
    uint32_t epilogue;
    const uint16_t *bias;
    uint16_t *aux;
    int64_t aux_ld;
    const float *scale_a, *scale_b;
    int8_t fast;
} description;
typedef struct {
    int magic, type;
    uint64_t rows, columns;
    int64_t ld;
} layout;
typedef struct {
    int magic;
    uint64_t workspace;
    uint32_t sums, align[4];
} preference;
typedef struct { /* in cublasLtMatmulAlgo_t */
    int32_t magic, turn_a, turn_b;
    uint32_t epilogue, m, n, k, align, aux_align;
    int32_t types[2]; /* of the first factor, and of the result */
} algorithm;
_Static_assert(sizeof(algorithm) <= sizeof(cublasLtMatmulAlgo_t), "no room for the double's algorithm");

static cublasStatus_t create(const char *name, const char *kind, const void *from, size_t bytes, void *out) {
    void *made = double__fails(name) ? NULL : malloc(bytes);
    if (!made)
        return CUBLAS_STATUS_ALLOC_FAILED;
    memcpy(made, from, bytes);
    memcpy(out, &made, sizeof made);
    double__live(kind, 1);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t destroy(const char *kind, void *of) {
    if (!of)
        return CUBLAS_STATUS_INVALID_VALUE;
    double__live(kind, -1);
    free(of);
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- descriptions -------------------------------------------------------------------------------- */
DOUBLE_API cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                                   cudaDataType_t scale) {
    description d = { .magic = MAGIC, .epilogue = CUBLASLT_EPILOGUE_DEFAULT, .fast = 1 };
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F)
        return CUBLAS_STATUS_INVALID_VALUE;
    return create("cublasLtMatmulDescCreate", "cuBLASLt products", &d, sizeof d, out);
}
DOUBLE_API cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) {
    return destroy("cuBLASLt products", d);
}

static cublasStatus_t put(void *field, size_t bytes, const void *value, size_t value_bytes) {
    if (!value || bytes != value_bytes)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(field, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}
#define PUT(field) put(&(field), sizeof(field), value, bytes)

DOUBLE_API cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t of,
                                                         cublasLtMatmulDescAttributes_t attribute, const void *value,
                                                         size_t bytes) {
    description *d = (description *)(void *)of;
    if (double__fails("cublasLtMatmulDescSetAttribute") || !d || d->magic != MAGIC)
        return CUBLAS_STATUS_INVALID_VALUE;
    switch ((int)attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return PUT(d->turn_a);
    case CUBLASLT_MATMUL_DESC_TRANSB: return PUT(d->turn_b);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return PUT(d->epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return PUT(d->bias);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return PUT(d->aux);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return PUT(d->aux_ld);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER: return PUT(d->scale_a);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER: return PUT(d->scale_b);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM: return PUT(d->fast);
    default: return CUBLAS_STATUS_INVALID_VALUE;
    }
}

DOUBLE_API cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows,
                                                     uint64_t cols, int64_t ld) {
    layout l = { MAGIC + 1, (int)type, rows, cols, ld };
    return create("cublasLtMatrixLayoutCreate", "cuBLASLt matrices", &l, sizeof l, out);
}
DOUBLE_API cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) {
    return destroy("cuBLASLt matrices", l);
}

DOUBLE_API cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out) {
    preference p = { MAGIC + 2, 0, CUBLASLT_REDUCTION_SCHEME_MASK, { 256, 256, 256, 256 } };
    return create("cublasLtMatmulPreferenceCreate", "cuBLASLt preferences", &p, sizeof p, out);
}
DOUBLE_API cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
    return destroy("cuBLASLt preferences", p);
}
DOUBLE_API cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t of,
                                                               cublasLtMatmulPreferenceAttributes_t attribute,
                                                               const void *value, size_t bytes) {
    preference *p = (preference *)(void *)of;
    if (double__fails("cublasLtMatmulPreferenceSetAttribute") || !p || p->magic != MAGIC + 2)
        return CUBLAS_STATUS_INVALID_VALUE;
    switch ((int)attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return PUT(p->workspace);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return PUT(p->sums);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return PUT(p->align[0]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return PUT(p->align[1]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return PUT(p->align[2]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return PUT(p->align[3]);
    default: return CUBLAS_STATUS_INVALID_VALUE;
    }
}

/* ---- algorithms ---------------------------------------------------------------------------------- */
static int has_bias(uint32_t epilogue) {
    return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_BIAS ||
           epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}
static int has_aux(uint32_t epilogue) {
    return epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

static int is_code(int type) {
    return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2;
}

static int is_known(const description *d, const layout *a, const layout *c) {
    if (is_code(a->type)) /* the bits of a GPU's fast sums differ from these */
        return d->epilogue == CUBLASLT_EPILOGUE_DEFAULT && d->scale_a && d->scale_b && !d->fast && !d->bias && !d->aux;
    if (!has_bias(d->epilogue) || !d->bias || !has_aux(d->epilogue) != !d->aux)
        return 0;
    return !d->aux || (d->aux_ld % 8 == 0 && d->aux_ld == c->ld); /* cuBLASLt takes a pitch of its own, too */
}

static int is_matrix(const layout *l, int type, uint64_t rows, uint64_t columns) {
    return l && l->magic == MAGIC + 1 && l->type == type && l->rows == rows && l->columns == columns &&
           l->ld >= (int64_t)rows;
}

static uint32_t alignment(uintptr_t at) {
    at |= 256;
    return (uint32_t)(at & -at);
}

static int describe(const description *d, const layout *a, const layout *c, algorithm *out) {
    if (!d || d->magic != MAGIC || !a || a->magic != MAGIC + 1 || !c || c->magic != MAGIC + 1 || !is_known(d, a, c))
        return 0;
    *out = (algorithm){ .magic = MAGIC, .turn_a = d->turn_a, .turn_b = d->turn_b, .epilogue = d->epilogue };
    out->m = (uint32_t)c->rows, out->n = (uint32_t)c->columns, out->k = (uint32_t)(d->turn_a ? a->rows : a->columns);
    out->types[0] = a->type, out->types[1] = c->type;
    out->aux_align = alignment((uintptr_t)d->aux | (uintptr_t)d->bias);
    return 1;
}

static int fit_codes(const algorithm *x, const layout *a, const layout *b, const layout *c) {
    return is_code(b->type) && (a->type == CUDA_R_8F_E4M3 || b->type == CUDA_R_8F_E4M3) && x->turn_a && !x->turn_b &&
           (x->m | x->n | x->k | (uint64_t)a->ld | (uint64_t)b->ld) % 16 == 0 &&
           (c->type == CUDA_R_16BF || c->type == CUDA_R_32F) && is_matrix(a, a->type, x->k, x->m) &&
           is_matrix(b, b->type, x->k, x->n) && is_matrix(c, c->type, x->m, x->n);
}

static int fit(const algorithm *x, const layout *a, const layout *b, const layout *c) {
    if (is_code(a->type))
        return b && b->magic == MAGIC + 1 && fit_codes(x, a, b, c);
    return (a->type == CUDA_R_16BF || a->type == CUDA_R_16F) &&
           is_matrix(a, a->type, x->turn_a ? x->k : x->m, x->turn_a ? x->m : x->k) &&
           is_matrix(b, a->type, x->turn_b ? x->n : x->k, x->turn_b ? x->k : x->n) && is_matrix(c, a->type, x->m, x->n);
}

/* Vectors of 16 bytes: none for matrices whose rows or pointers are not so. */
DOUBLE_API cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t product,
                                                         cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                         cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                         cublasLtMatmulPreference_t want, int most,
                                                         cublasLtMatmulHeuristicResult_t out[], int *n) {
    const layout *la = (const layout *)(const void *)a, *lb = (const layout *)(const void *)b,
                 *lc = (const layout *)(const void *)c;
    const preference *p = (const preference *)(const void *)want;
    algorithm x;
    *n = 0;
    if (double__fails("cublasLtMatmulAlgoGetHeuristic"))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (double__blas_device(h) != double__current_device() || most < 1 || c != d || !p || p->magic != MAGIC + 2 ||
        !describe((const description *)(const void *)product, la, lc, &x) || !fit(&x, la, lb, lc) ||
        p->sums & CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE)
        return CUBLAS_STATUS_INVALID_VALUE;
    x.align = p->align[0] | p->align[1] | p->align[2] | p->align[3];
    x.align &= -x.align;
    if (x.align < 16 || x.aux_align < 16 || la->ld % 8 || lb->ld % 8 || lc->ld % 8 || p->workspace < WORKSPACE)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    memset(out, 0, sizeof *out);
    memcpy(&out->algo, &x, sizeof x);
    out->workspaceSize = WORKSPACE;
    out->state = CUBLAS_STATUS_SUCCESS;
    *n = 1;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- the product --------------------------------------------------------------------------------- */
static int in_device(const void *at, uint64_t bytes) {
    return double__is_device(at) && double__range_ok(at, bytes, 0);
}

static int beside_is_good(const double_product *p) {
    uint64_t elems = (uint64_t)(p->n - 1) * (uint64_t)p->ldc + (uint64_t)p->m;
    return (!p->bias || in_device(p->bias, (uint64_t)p->m * sizeof(uint16_t))) &&
           (!p->before || in_device(p->before, elems * sizeof(uint16_t))) && p->before != p->c;
}

static int bits_of(const layout *l) {
    return l->type == CUDA_R_8F_E4M3 ? 3 : l->type == CUDA_R_8F_E5M2 ? 2 : 0;
}

static double_product product_of(const description *d, const algorithm *x, const layout *a, const layout *b,
                                 const layout *c) {
    double_product p = { .turn_a = d->turn_a, .turn_b = d->turn_b, .m = (int)x->m, .n = (int)x->n, .k = (int)x->k };
    p.lda = (int)a->ld, p.ldb = (int)b->ld, p.ldc = (int)c->ld, p.halves = p.half_c = p.times = 1, p.alpha = 1;
    p.f16 = a->type == CUDA_R_16F, p.code_a = bits_of(a), p.code_b = bits_of(b);
    if (p.code_a) {
        p.halves = 0, p.half_c = c->type == CUDA_R_16BF, p.scale_a = d->scale_a, p.scale_b = d->scale_b;
        return p;
    }
    p.bias = d->bias, p.gelu = d->epilogue != CUBLASLT_EPILOGUE_BIAS;
    p.before = d->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ? d->aux : NULL;
    return p;
}

DOUBLE_API cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t product, const void *alpha,
                                         const void *A, cublasLtMatrixLayout_t a, const void *B,
                                         cublasLtMatrixLayout_t b, const void *beta, const void *C,
                                         cublasLtMatrixLayout_t c, void *D, cublasLtMatrixLayout_t d,
                                         const cublasLtMatmulAlgo_t *algo, void *workspace, size_t bytes,
                                         cudaStream_t stream) {
    const description *how = (const description *)(const void *)product;
    const layout *la = (const layout *)(const void *)a, *lb = (const layout *)(const void *)b,
                 *lc = (const layout *)(const void *)c;
    double_stream *s = double__stream_of((CUstream)stream);
    int fails = double__fails("cublasLtMatmul");
    algorithm x, asked;
    if (fails)
        return fails < 0 ? CUBLAS_STATUS_EXECUTION_FAILED : (cublasStatus_t)fails;
    if (double__blas_device(h) != double__current_device() || !s || !algo || C != D || c != d ||
        *(const float *)alpha != 1 || !describe(how, la, lc, &x) || !fit(&x, la, lb, lc) ||
        (*(const float *)beta != 0 && !(*(const float *)beta == 1 && is_code(la->type))))
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&asked, algo, sizeof asked);
    uint32_t align = alignment((uintptr_t)A | (uintptr_t)B | (uintptr_t)D), aux_align = x.aux_align;
    x.align = asked.align, x.aux_align = asked.aux_align;
    if (memcmp(&x, &asked, sizeof x) != 0 || align < asked.align || aux_align < 16)
        return CUBLAS_STATUS_INVALID_VALUE;
    double_product p = product_of(how, &x, la, lb, lc);
    p.a = A, p.b = B, p.c = D, p.beta = *(const float *)beta;
    if (p.code_a && (!in_device(p.scale_a, sizeof(float)) || !in_device(p.scale_b, sizeof(float))))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (bytes < WORKSPACE || (uintptr_t)workspace % 256 || !in_device(workspace, bytes) ||
        !double__product_is_good(&p) || !beside_is_good(&p))
        return CUBLAS_STATUS_INVALID_VALUE;
    double__product_push(s, &p);
    return CUBLAS_STATUS_SUCCESS;
}
