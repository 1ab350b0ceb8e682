/* SPDX-License-Identifier: BSD-3-Clause */
/* oneDNN 2.x or 3.x as steps. A step is one primitive with its memory objects, made once. Only onednn_*.c and
 * ops_onednn.c include this. */
#ifndef TESS_MODELS_ONEDNN_STEP_H
#define TESS_MODELS_ONEDNN_STEP_H
#include "ops.h"

#include <dnnl.h>

#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t md_view; /* the type that calls take; here dnnl_memory_desc_t is a handle */
#else
typedef const dnnl_memory_desc_t *md_view; /* here dnnl_memory_desc_t is a struct */
#endif
md_view onednn_view(const dnnl_memory_desc_t *);
void onednn_md_free(dnnl_memory_desc_t *);
dnnl_status_t onednn_md_make(dnnl_memory_desc_t *, int n, const dnnl_dims_t dims, dnnl_data_type_t, dnnl_format_tag_t);
/** Describes a matrix stored by rows, or by columns if `turned`. */
dnnl_status_t onednn_md_matrix(dnnl_memory_desc_t *, int64_t rows, int64_t columns, dnnl_data_type_t, int turned);

typedef struct {
    ops base;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    int32_t halves;  /* the machine multiplies bf16 itself; slower emulation is not used */
    int32_t n_wide;  /* operators made for bf16 without such a kernel, which compute in fp32 */
    int32_t n_plain; /* products without a usable kernel in the library */
} onednn_context;

enum { ONEDNN_ARGS = 5 };
typedef struct { /* a primitive with its memory objects, made once; a call sets their data handles */
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t args[ONEDNN_ARGS];
    int32_t n_args;
    uint64_t scratch_bytes; /* bytes of its scratchpad, which is one of the arguments */
} onednn_step;

tess_status onednn_failed(const char *what, dnnl_status_t);
/** oneDNN asks OpenMP for the number of threads when a primitive is made and when it runs. */
int onednn_enter(int32_t threads);
void onednn_leave(int before);
int onednn_usable(const_dnnl_primitive_desc_t);
tess_status onednn_step_arg(onednn_context *, onednn_step *, int kind, md_view);
/** Creates the primitive of a description and adds its scratchpad as the last argument. */
tess_status onednn_step_finish(onednn_context *, onednn_step *, const_dnnl_primitive_desc_t);
void onednn_step_destroy(onednn_step *);
/** `pointers`: one per argument in the order of onednn_step_arg, then `scratch` if the step has a scratchpad. */
tess_status onednn_step_run(const onednn_context *, onednn_step *, const void *const *pointers, void *scratch);
tess_status onednn_step_run_with(const onednn_context *, onednn_step *, int32_t threads, const void *const *pointers,
                                 void *scratch);
dnnl_primitive_attr_t onednn_attributes(int sum, int relu);
/** Returns the first usable implementation, or null. v3 takes `pd` over; v2 walks the operation's implementations. */
#if DNNL_VERSION_MAJOR >= 3
dnnl_primitive_desc_t onednn_first_usable(dnnl_primitive_desc_t);
#else
dnnl_primitive_desc_t onednn_first_usable(onednn_context *, const_dnnl_op_desc_t, dnnl_primitive_attr_t,
                                          const_dnnl_primitive_desc_t hint);
#endif

typedef struct {
    int64_t rows, depth, columns;
    int32_t turn_a, turn_b, bias, relu, add; /* turned: stored as the transpose */
    dnnl_data_type_t factor, result, bias_type;
} onednn_product;
/** Leaves the step without a primitive if no implementation is usable. Arguments: a, b, y, then bias if there is
 * one. */
tess_status onednn_product_step(onednn_context *, const onednn_product *, onednn_step *);

/** The table's slots; onednn_matmul.c has them. */
tess_status ops_onednn_matmul_create(ops *, const ops_matmul_shape *, ops_matmul **out, uint64_t *scratch_bytes);
void ops_onednn_matmul_destroy(ops_matmul *);
tess_status ops_onednn_matmul(ops_matmul *, const void *a, const void *b, const void *bias, void *y, void *scratch);
#endif
