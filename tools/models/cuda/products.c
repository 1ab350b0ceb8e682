/* SPDX-License-Identifier: BSD-3-Clause */
/* Products of matrices by cuBLAS, and the linear operator. Factors are fp32, or of 16 bits with fp32 sums and results.
 *
 * The workspace is part of the caller's scratch, so cuBLAS allocates none. Its size depends only on the product's
 * size, so a plan needs no GPU. One handle, one stream and one workspace give the same bits each time. */
#include "cuda_ops.h"
#include <tessera/tessera.h>

#include <limits.h>
#include <stdlib.h>

enum { WORKSPACE_ALIGN = 256 };

struct ops_linear {
    cuda_ops *c;
    ops_linear_shape s;
};

/* Large products get NVIDIA's recommendation for Hopper. The small sizes are the least that cuBLAS accepts. */
uint64_t ops_cuda_workspace(int64_t rows, int64_t columns, int64_t depth, int64_t n) {
    double work = (double)rows * (double)columns * (double)depth * (double)n;
    uint64_t bytes = work >= 0x1p32 ? 32u << 20 : work >= 0x1p26 ? 4u << 20 : 64u << 10;
    return bytes + WORKSPACE_ALIGN;
}

ops_room ops_cuda_room(const ops_product *p, void *workspace) {
    uintptr_t at = ((uintptr_t)workspace + WORKSPACE_ALIGN - 1) / WORKSPACE_ALIGN * WORKSPACE_ALIGN;
    uint64_t bytes = ops_cuda_workspace(p->rows, p->columns, p->depth, p->n ? p->n : 1);
    return (ops_room){ (void *)at, bytes - WORKSPACE_ALIGN };
}

tess_status ops_cuda_product_failed(const cuda_ops *c, cublasStatus_t status, const ops_product *p) {
    tess_status code = status == CUBLAS_STATUS_ALLOC_FAILED ? TESS_E_NOMEM : TESS_E_DEVICE;
    return tess_fail(code, "cuBLAS: product of %lld x %lld by %lld x %lld: %s", (long long)p->rows, (long long)p->depth,
                     (long long)p->depth, (long long)p->columns, c->blas->cublasGetStatusString(status));
}

/* cuBLAS is column-major. So the factors are exchanged and read as their transposes. */
static tess_status multiply(const cuda_ops *c, const ops_product *p, void *workspace) {
    cublasOperation_t a = p->a_turned ? CUBLAS_OP_T : CUBLAS_OP_N, b = p->b_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    cudaDataType_t half = ops_cuda_half_type(c), dtype = p->halves ? half : CUDA_R_32F;
    cudaDataType_t out = p->half_c ? half : CUDA_R_32F;
    int m = (int)p->columns, n = (int)p->rows, k = (int)p->depth;
    int64_t times = p->n ? p->n : 1;
    ops_room room = ops_cuda_room(p, workspace);
    if (p->rows > INT_MAX || p->columns > INT_MAX || p->depth > INT_MAX)
        return ops_cuda_product_failed(c, CUBLAS_STATUS_INVALID_VALUE, p);
    cublasStatus_t s = c->blas->cublasSetWorkspace_v2(c->handle, room.at, room.bytes);
    if (s != CUBLAS_STATUS_SUCCESS)
        return ops_cuda_product_failed(c, s, p);
    if (times == 1)
        s = c->blas->cublasGemmEx(c->handle, b, a, m, n, k, &p->alpha, p->b, dtype, (int)p->b_pitch, p->a, dtype,
                                  (int)p->a_pitch, &p->beta, p->c, out, (int)p->c_pitch, CUBLAS_COMPUTE_32F,
                                  CUBLAS_GEMM_DEFAULT);
    else
        s = c->blas->cublasGemmStridedBatchedEx(c->handle, b, a, m, n, k, &p->alpha, p->b, dtype, (int)p->b_pitch,
                                                p->b_step, p->a, dtype, (int)p->a_pitch, p->a_step, &p->beta, p->c, out,
                                                (int)p->c_pitch, p->c_step, (int)times, CUBLAS_COMPUTE_32F,
                                                CUBLAS_GEMM_DEFAULT);
    return s == CUBLAS_STATUS_SUCCESS ? TESS_OK : ops_cuda_product_failed(c, s, p);
}

/* ---- sides such as a vocabulary of 50,257 ---------------------------------------------------------- */
/* Tensor cores read and write 16 bytes at a time only along sides of whole eights. cuBLAS takes slow kernels for any
 * other side, even if all rows begin at multiples of 16 bytes. So such a product takes eights of the side, and the rest
 * in a small product. Nothing may lie behind a matrix, so no side can be lengthened. */
enum { VECTOR = 8 /* elements */, VECTOR_BYTES = 16 };
typedef enum { WHOLE, OF_ROWS, OF_COLUMNS, OF_DEPTH } odd_side;

static int is_odd(int64_t side) {
    return side > VECTOR && side % VECTOR != 0;
}

/* Returns a side whose eights would let all three matrices be read and written by vectors. */
static odd_side odd_side_of(const ops_product *p) {
    int64_t pitches = p->a_pitch | p->b_pitch | p->c_pitch;
    uintptr_t at = (uintptr_t)p->a | (uintptr_t)p->b | (uintptr_t)p->c;
    if (!p->halves || p->n > 1 || pitches % VECTOR || at % VECTOR_BYTES)
        return WHOLE;
    if (is_odd(p->depth) && (!p->a_turned || p->b_turned))
        return OF_DEPTH;
    return is_odd(p->columns) ? OF_COLUMNS : is_odd(p->rows) && p->a_turned ? OF_ROWS : WHOLE;
}

static const void *factor_at(const void *x, int64_t elems) {
    return (const uint16_t *)x + elems;
}
static void *result_at(const ops_product *p, int64_t elems) {
    return (char *)p->c + elems * (int64_t)(p->half_c ? sizeof(uint16_t) : sizeof(float));
}

/* Returns the product of `n` from `first` on of a side. */
static ops_product part_of(const ops_product *p, odd_side side, int64_t first, int64_t n) {
    ops_product part = *p;
    if (side != OF_COLUMNS)
        part.a = factor_at(p->a, first * ((side == OF_ROWS) == !p->a_turned ? p->a_pitch : 1));
    if (side != OF_ROWS)
        part.b = factor_at(p->b, first * ((side == OF_COLUMNS) == !p->b_turned ? 1 : p->b_pitch));
    if (side != OF_DEPTH)
        part.c = result_at(p, first * (side == OF_ROWS ? p->c_pitch : 1));
    *(side == OF_ROWS ? &part.rows : side == OF_COLUMNS ? &part.columns : &part.depth) = n;
    return part;
}

/* A depth begins with its rest: that is little, and so is what its rounding costs. */
tess_status ops_cuda_product(const cuda_ops *c, const ops_product *p, void *workspace) {
    odd_side side = odd_side_of(p);
    int64_t all = side == OF_ROWS ? p->rows : side == OF_COLUMNS ? p->columns : p->depth;
    int64_t eights = all / VECTOR * VECTOR;
    if (side == WHOLE)
        return multiply(c, p, workspace);
    ops_product most = part_of(p, side, 0, eights), rest = part_of(p, side, eights, all - eights);
    OPS_TRY(multiply(c, &rest, workspace));
    most.beta = side == OF_DEPTH ? 1 : p->beta;
    return ops_cuda_product(c, &most, workspace);
}

/* ---- linear ------------------------------------------------------------------------------------ */
static uint64_t x_elems(const ops_linear_shape *s) {
    return (uint64_t)s->rows * (uint64_t)s->inputs;
}
static uint64_t y_elems(const ops_linear_shape *s) {
    return (uint64_t)s->rows * (uint64_t)s->outputs;
}
static uint64_t half_bytes(uint64_t elems) {
    return ops_align(elems * sizeof(uint16_t));
}

tess_status ops_cuda_linear_create(ops *o, const ops_linear_shape *s, ops_linear **out, ops_scratch *need) {
    ops_linear *l = calloc(1, sizeof *l);
    if (!l)
        return tess_fail(TESS_E_NOMEM, "out of memory for a linear operator");
    *l = (ops_linear){ cuda_of(o), *s };
    uint64_t workspace = ops_cuda_workspace(s->rows, s->inputs, s->outputs, 1);
    need->forward_bytes = workspace + (ops_halves(o) ? half_bytes(x_elems(s)) : 0);
    need->backward_bytes = workspace + (ops_halves(o) ? half_bytes(x_elems(s)) + half_bytes(y_elems(s)) : 0);
    *out = l;
    return TESS_OK;
}

void ops_cuda_linear_destroy(ops_linear *l) {
    free(l);
}

/* Returns x as the products read it: x itself, or 16 bits each at the start of *scratch, which then points behind it.
 */
static tess_status factor(const cuda_ops *c, const float *x, uint64_t elems, void **scratch, const void **out) {
    uint16_t *half = *scratch;
    *out = ops_halves(&c->base) ? (const void *)half : x;
    if (!ops_halves(&c->base))
        return TESS_OK;
    *scratch = (char *)half + half_bytes(elems);
    return ops_cuda_narrow_in(c, x, half, elems);
}

static tess_status forward(const ops_linear *l, const float *x, const void *w, const float *b, float *y,
                           void *scratch) {
    const ops_linear_shape *s = &l->s;
    const void *in;
    OPS_TRY(factor(l->c, x, x_elems(s), &scratch, &in));
    ops_product p = { .rows = s->rows, .columns = s->outputs, .depth = s->inputs, .a = in, .b = w, .c = y, .alpha = 1 };
    p.a_pitch = s->inputs, p.b_pitch = s->inputs, p.b_turned = 1, p.c_pitch = s->outputs,
    p.halves = ops_halves(&l->c->base);
    OPS_TRY(ops_cuda_product(l->c, &p, scratch));
    if (!b && !s->relu)
        return TESS_OK;
    return OPS_LAUNCH(l->c, bias_relu, ops_blocks_each(y_elems(s)), .b = b, .y = y, .elems = y_elems(s),
                      .width = (uint64_t)s->outputs, .relu = s->relu);
}

tess_status ops_cuda_linear_forward(ops_linear *l, const float *x, const void *w, const float *b, float *y,
                                    void *scratch) {
    OPS_INSIDE(l->c, forward(l, x, w, b, y, scratch));
}

static tess_status backward(const ops_linear *l, const float *x, const void *w, const float *dy, float *dx, float *dw,
                            float *db, void *scratch) {
    const ops_linear_shape *s = &l->s;
    const void *in_x = NULL, *in_dy;
    OPS_TRY(factor(l->c, dy, y_elems(s), &scratch, &in_dy));
    if (dw)
        OPS_TRY(factor(l->c, x, x_elems(s), &scratch, &in_x));
    ops_product p = {
        .alpha = 1, .halves = ops_halves(&l->c->base), .a = in_dy, .a_pitch = s->outputs, .c_pitch = s->inputs
    };
    p.rows = s->rows, p.columns = s->inputs, p.depth = s->outputs, p.b = w, p.b_pitch = s->inputs, p.c = dx;
    if (dx)
        OPS_TRY(ops_cuda_product(l->c, &p, scratch));
    p.rows = s->outputs, p.depth = s->rows, p.a_turned = 1, p.b = in_x, p.c = dw, p.beta = 1;
    if (dw)
        OPS_TRY(ops_cuda_product(l->c, &p, scratch));
    return db ? ops_cuda_column_sums_in(l->c, dy, db, (uint64_t)s->rows, (uint64_t)s->outputs, 1) : TESS_OK;
}

tess_status ops_cuda_linear_backward(ops_linear *l, const float *x, const void *w, const float *dy, float *dx,
                                     float *dw, float *db, void *scratch) {
    OPS_INSIDE(l->c, backward(l, x, w, dy, dx, dw, db, scratch));
}
