/* SPDX-License-Identifier: BSD-3-Clause */
/* The plain table's linear and convolution as functions of a shape. Other tables use them where their library lacks
 * a kernel. */
#ifndef TESS_MODELS_OPS_PLAIN_H
#define TESS_MODELS_OPS_PLAIN_H
#include "ops.h"

/** Returns weights as fp32. It widens bf16 or fp16 weights into the start of *scratch and moves *scratch behind them.
 */
const float *ops_plain_weights(const ops *, const void *w, uint64_t elems, void **scratch);
uint64_t ops_plain_weights_scratch(const ops *, uint64_t elems);
/** Returns what tables without bf16 or fp16 products append to their description. */
static inline const char *ops_as_fp32(const ops *o) {
    return o->fp16   ? ", fp16 as fp32 rounded at block boundaries"
           : o->bf16 ? ", bf16 as fp32 rounded at block boundaries"
                     : "";
}

uint64_t ops_plain_gemm_scratch(const ops *); /* scratch of each linear function below */
uint64_t ops_plain_conv_scratch(const ops *, const ops_conv_shape *);
void ops_plain_linear_forward(ops *, const ops_linear_shape *, const float *x, const float *w, const float *b, float *y,
                              void *scratch);
void ops_plain_linear_dx(ops *, const ops_linear_shape *, const float *w, const float *dy, float *dx, void *scratch);
void ops_plain_linear_dw(ops *, const ops_linear_shape *, const float *x, const float *dy, float *dw, void *scratch);
void ops_plain_conv_forward(ops *, const ops_conv_shape *, const float *x, const float *w, const float *b, float *y,
                            void *scratch);
void ops_plain_conv_dx(ops *, const ops_conv_shape *, const float *w, const float *dy, float *dx, void *scratch);
void ops_plain_conv_dw(ops *, const ops_conv_shape *, const float *x, const float *dy, float *dw, void *scratch);
#endif
