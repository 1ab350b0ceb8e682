/* SPDX-License-Identifier: BSD-3-Clause */
/* Products by oneDNN. It multiplies bf16 factors if the machine has bf16 products, otherwise fp32 copies of them. If
 * oneDNN has no usable kernel, the plain one computes. */
#include "onednn_step.h"
#include "gemm.h"
#include "matmul.h"
#include <tessera/tessera.h>

#include <stdlib.h>

struct ops_matmul {
    onednn_context *c;
    ops_matmul_shape s;
    onednn_step step; /* has no primitive if the plain kernel computes */
    int32_t native;   /* the step takes the tensors as they are */
};

static int32_t threads_of(const ops_matmul *p) {
    return p->s.alone ? 1 : p->c->base.threads;
}

static onednn_product describe(const ops_matmul *p) {
    const ops_matmul_shape *s = &p->s;
    dnnl_data_type_t factor = p->native && s->factor == TESS_BF16 ? dnnl_bf16 : dnnl_f32;
    return (onednn_product){ .rows = s->rows,
                             .depth = s->depth,
                             .columns = s->columns,
                             .turn_a = s->turn_a,
                             .turn_b = s->turn_b,
                             .bias = p->native && s->bias,
                             .add = s->add,
                             .factor = factor,
                             .result = p->native && s->result == TESS_BF16 ? dnnl_bf16 : dnnl_f32,
                             .bias_type = factor };
}

static int is_wide(const ops_matmul_shape *s) {
    return s->factor == TESS_F32 && s->result == TESS_F32;
}

static tess_status make(ops_matmul *p) {
    p->native = is_wide(&p->s) || p->c->halves; /* of bf16; fp16 is always widened */
    onednn_product d = describe(p);
    OPS_TRY(onednn_product_step(p->c, &d, &p->step));
    if (!p->step.primitive && p->native) {
        p->native = 0;
        p->c->n_wide += !is_wide(&p->s);
        d = describe(p);
        OPS_TRY(onednn_product_step(p->c, &d, &p->step));
    }
    p->c->n_plain += !p->step.primitive;
    return TESS_OK;
}

tess_status ops_onednn_matmul_create(ops *o, const ops_matmul_shape *s, ops_matmul **out, uint64_t *scratch_bytes) {
    ops_matmul *p = calloc(1, sizeof *p);
    if (!p)
        return tess_fail(TESS_E_NOMEM, "out of memory for a product");
    p->c = (onednn_context *)o;
    p->s = *s;
    int before = onednn_enter(threads_of(p));
    tess_status status = make(p);
    onednn_leave(before);
    if (status != TESS_OK) {
        ops_onednn_matmul_destroy(p);
        return status;
    }
    *scratch_bytes = p->step.primitive ? p->step.scratch_bytes : (uint64_t)threads_of(p) * GEMM_SCRATCH_BYTES;
    if (!p->native)
        *scratch_bytes += matmul_scratch(s);
    *out = p;
    return TESS_OK;
}

void ops_onednn_matmul_destroy(ops_matmul *p) {
    if (p)
        onednn_step_destroy(&p->step);
    free(p);
}

static tess_status multiply(void *user, const float *a, const float *b, float *y, void *scratch) {
    ops_matmul *p = user;
    if (p->step.primitive)
        return onednn_step_run_with(p->c, &p->step, threads_of(p), (const void *[]){ a, b, y }, scratch);
    ops_plain_matmul_wide(&p->c->base, &p->s, a, b, y, scratch);
    return TESS_OK;
}

tess_status ops_onednn_matmul(ops_matmul *p, const void *a, const void *b, const void *bias, void *y, void *scratch) {
    if (p->native)
        return onednn_step_run_with(p->c, &p->step, threads_of(p), (const void *[]){ a, b, y, bias }, scratch);
    return matmul_run(&p->c->base, &p->s, a, b, bias, y, multiply, p, scratch);
}
