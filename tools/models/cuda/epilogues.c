/* SPDX-License-Identifier: BSD-3-Clause */
/* Products in fp8, and those in bf16 and fp16 for which cuBLASLt applies bias and GELU before it stores the result. An
 * algorithm is chosen once per shape, among those that give the same bits each time. GELU's gradient is not left to
 * cuBLASLt: its kernel takes nearly twice the plain product's time on Hopper, and the kernel that follows makes GELU
 * again in any case. */
#include "cuda_ops.h"
#include <tessera/tessera.h>

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CHOICES = 48 };

typedef struct { /* all that the choice of an algorithm depends on */
    int64_t rows, columns, depth, a_pitch, b_pitch, c_pitch;
    int32_t a_turned, b_turned, a_type, b_type, c_type, adds;
    uint32_t epilogue, align; /* align: common alignment of all pointers, at most 256 */
} shape;
typedef struct {
    shape of;
    int usable;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
} product_choice;
struct ops_epilogues {
    const ops_cublaslt *lt;
    int n;
    product_choice choices[MOST_CHOICES];
};

tess_status ops_cuda_epilogues_start(cuda_ops *c) {
    const ops_cublaslt *lt = ops_halves(&c->base) ? ops_cublaslt_load() : NULL;
    if (!lt)
        return TESS_OK;
    c->epilogues = calloc(1, sizeof *c->epilogues);
    if (!c->epilogues)
        return tess_fail(TESS_E_NOMEM, "out of memory for the CUDA operators");
    c->epilogues->lt = lt;
    return TESS_OK;
}

void ops_cuda_epilogues_end(cuda_ops *c) {
    struct ops_epilogues *e = c->epilogues;
    for (int i = 0; e && i < e->n; i++) {
        product_choice *x = &e->choices[i];
        if (x->product)
            e->lt->cublasLtMatmulDescDestroy(x->product);
        if (x->a)
            e->lt->cublasLtMatrixLayoutDestroy(x->a);
        if (x->b)
            e->lt->cublasLtMatrixLayoutDestroy(x->b);
        if (x->c)
            e->lt->cublasLtMatrixLayoutDestroy(x->c);
    }
    free(e);
    c->epilogues = NULL;
}

/* ---- choosing an algorithm ---------------------------------------------------------------------------- */

static uint32_t epilogue_of(const ops_epilogue *e) {
    if (!e->bias)
        return CUBLASLT_EPILOGUE_DEFAULT;
    if (!e->gelu)
        return CUBLASLT_EPILOGUE_BIAS;
    return e->before ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_BIAS;
}

static uint32_t common_alignment(const ops_product *p, const ops_epilogue *e) {
    uintptr_t all =
        (uintptr_t)p->a | (uintptr_t)p->b | (uintptr_t)p->c | (uintptr_t)e->bias | (uintptr_t)e->before | 256;
    return (uint32_t)(all & -all);
}

#define SET(attribute, value) lt->cublasLtMatmulDescSetAttribute(x->product, attribute, &(value), sizeof(value))

/* Pointers differ from layer to layer, but the algorithm depends only on their alignment. */
static cublasStatus_t set_pointers(const ops_cublaslt *lt, const product_choice *x, const ops_product *p,
                                   const ops_epilogue *e) {
    cublasStatus_t s = CUBLAS_STATUS_SUCCESS;
    if (p->a_inverse) {
        s = SET(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p->b_inverse);
        s = s ? s : SET(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p->a_inverse);
    }
    if (e->bias)
        s = SET(CUBLASLT_MATMUL_DESC_BIAS_POINTER, e->bias);
    if (s == CUBLAS_STATUS_SUCCESS && e->before)
        s = SET(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, e->before);
    return s;
}

/* cuBLASLt is column-major, as cuBLAS is. So the factors are exchanged and read as their transposes. */
static cublasStatus_t make_product(const ops_cublaslt *lt, product_choice *x, const ops_product *p,
                                   const ops_epilogue *e) {
    int32_t a = p->b_turned ? CUBLAS_OP_T : CUBLAS_OP_N, b = p->a_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int8_t slow = 0;
    cublasStatus_t s = lt->cublasLtMatmulDescCreate(&x->product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    s = s ? s : SET(CUBLASLT_MATMUL_DESC_TRANSA, a);
    s = s ? s : SET(CUBLASLT_MATMUL_DESC_TRANSB, b);
    s = s ? s : SET(CUBLASLT_MATMUL_DESC_EPILOGUE, x->of.epilogue);
    if (!s && e->before)
        s = SET(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p->c_pitch);
    if (!s && p->a_inverse) /* sums of fp8 stay in fp32 throughout */
        s = SET(CUBLASLT_MATMUL_DESC_FAST_ACCUM, slow);
    return s ? s : set_pointers(lt, x, p, e);
}
#undef SET

static cublasStatus_t make_layouts(const ops_cublaslt *lt, product_choice *x, const ops_product *p) {
    const shape *of = &x->of;
    uint64_t m = (uint64_t)p->columns, n = (uint64_t)p->rows, k = (uint64_t)p->depth;
    cublasStatus_t s = lt->cublasLtMatrixLayoutCreate(&x->a, (cudaDataType_t)of->b_type, p->b_turned ? k : m,
                                                      p->b_turned ? m : k, p->b_pitch);
    s = s ? s
          : lt->cublasLtMatrixLayoutCreate(&x->b, (cudaDataType_t)of->a_type, p->a_turned ? n : k, p->a_turned ? k : n,
                                           p->a_pitch);
    return s ? s : lt->cublasLtMatrixLayoutCreate(&x->c, (cudaDataType_t)of->c_type, m, n, p->c_pitch);
}

/* Excludes reductions in 16 bits, and reductions whose order depends on which block finishes first. */
static cublasStatus_t set_preference(const ops_cublaslt *lt, cublasLtMatmulPreference_t want, uint64_t workspace,
                                     uint32_t align) {
    static const cublasLtMatmulPreferenceAttributes_t pointers[] = { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                                                                     CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                                                                     CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                                                                     CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES };
    uint32_t sums = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cublasStatus_t s = lt->cublasLtMatmulPreferenceSetAttribute(want, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                                &workspace, sizeof workspace);
    s = s ? s
          : lt->cublasLtMatmulPreferenceSetAttribute(want, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &sums,
                                                     sizeof sums);
    for (size_t i = 0; !s && i < sizeof pointers / sizeof *pointers; i++)
        s = lt->cublasLtMatmulPreferenceSetAttribute(want, pointers[i], &align, sizeof align);
    return s;
}

static int choose_algorithm(const cuda_ops *c, product_choice *x, uint64_t workspace) {
    const ops_cublaslt *lt = c->epilogues->lt;
    cublasLtMatmulPreference_t want = NULL;
    cublasLtMatmulHeuristicResult_t found;
    int n = 0;
    cublasStatus_t s = lt->cublasLtMatmulPreferenceCreate(&want);
    s = s ? s : set_preference(lt, want, workspace, x->of.align);
    s = s ? s
          : lt->cublasLtMatmulAlgoGetHeuristic((cublasLtHandle_t)c->handle, x->product, x->a, x->b, x->c, x->c, want, 1,
                                               &found, &n);
    if (want)
        lt->cublasLtMatmulPreferenceDestroy(want);
    if (s || n < 1 || found.state != CUBLAS_STATUS_SUCCESS || found.workspaceSize > workspace)
        return 0;
    x->algo = found.algo;
    return 1;
}

/* Returns null if there is no room for another choice. */
static product_choice *choice_of(const cuda_ops *c, const ops_product *p, const ops_epilogue *e, uint64_t workspace) {
    struct ops_epilogues *all = c->epilogues;
    shape of = { .rows = p->rows, .columns = p->columns, .depth = p->depth, .a_pitch = p->a_pitch };
    of.b_pitch = p->b_pitch, of.c_pitch = p->c_pitch, of.a_turned = p->a_turned, of.b_turned = p->b_turned;
    of.a_type = of.b_type = of.c_type = ops_cuda_half_type(c);
    if (p->a_inverse)
        of.a_type = p->a_e5m2 ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3, of.b_type = CUDA_R_8F_E4M3;
    of.c_type = p->half_c ? of.c_type : CUDA_R_32F, of.adds = p->beta != 0;
    of.epilogue = epilogue_of(e), of.align = common_alignment(p, e);
    for (int i = 0; i < all->n; i++)
        if (!memcmp(&all->choices[i].of, &of, sizeof of))
            return &all->choices[i];
    if (all->n == MOST_CHOICES)
        return NULL;
    product_choice *x = &all->choices[all->n++];
    x->of = of;
    x->usable = !make_product(all->lt, x, p, e) && !make_layouts(all->lt, x, p) && choose_algorithm(c, x, workspace);
    return x;
}

/* ---- the product --------------------------------------------------------------------------------- */

/* With these statuses cuBLASLt says that it does not support the product; the caller then uses another way. */
static int refuses(cublasStatus_t s) {
    return s == CUBLAS_STATUS_NOT_SUPPORTED || s == CUBLAS_STATUS_INVALID_VALUE || s == CUBLAS_STATUS_ARCH_MISMATCH;
}

static tess_status run(const cuda_ops *c, const ops_product *p, const ops_epilogue *e, void *workspace, int *done) {
    ops_room room = ops_cuda_room(p, workspace);
    int fits = p->rows <= INT_MAX && p->columns <= INT_MAX && p->depth <= INT_MAX;
    product_choice *x = c->epilogues && fits ? choice_of(c, p, e, room.bytes) : NULL;
    const float one = 1;
    *done = 0;
    if (!x || !x->usable)
        return TESS_OK;
    cublasStatus_t s = set_pointers(c->epilogues->lt, x, p, e);
    s = s ? s
          : c->epilogues->lt->cublasLtMatmul((cublasLtHandle_t)c->handle, x->product, &one, p->b, x->a, p->a, x->b,
                                             &p->beta, p->c, x->c, p->c, x->c, &x->algo, room.at, room.bytes,
                                             c->stream);
    *done = s == CUBLAS_STATUS_SUCCESS;
    x->usable = !refuses(s);
    return *done || !x->usable ? TESS_OK : ops_cuda_product_failed(c, s, p);
}

tess_status ops_cuda_product_with(const cuda_ops *c, const ops_product *p, const ops_epilogue *e, void *workspace,
                                  int *done) {
    *done = 0;
    return p->halves && p->half_c ? run(c, p, e, workspace, done) : TESS_OK;
}

/* Nothing takes its place: ranks whose products were in another precision would have other bits. */
tess_status ops_cuda_product_fp8(const cuda_ops *c, const ops_product *p, void *workspace) {
    const ops_epilogue none = { 0 };
    int done;
    OPS_TRY(run(c, p, &none, workspace, &done));
    if (done)
        return TESS_OK;
    return tess_fail(TESS_E_UNSUPPORTED,
                     "cuBLASLt%s has no product in fp8 of %lld x %lld by %lld x %lld: TESSERA_PRECISION=bf16",
                     c->epilogues ? "" : ", which was not found,", (long long)p->rows, (long long)p->depth,
                     (long long)p->depth, (long long)p->columns);
}
