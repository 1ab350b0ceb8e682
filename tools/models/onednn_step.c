/* SPDX-License-Identifier: BSD-3-Clause */
#include "onednn_step.h"
#include <tessera/tessera.h>

#include <omp.h>
#include <string.h>

#if DNNL_VERSION_MAJOR >= 3
md_view onednn_view(const dnnl_memory_desc_t *md) {
    return *md;
}
void onednn_md_free(dnnl_memory_desc_t *md) {
    dnnl_memory_desc_destroy(*md);
}
dnnl_status_t onednn_md_make(dnnl_memory_desc_t *md, int n, const dnnl_dims_t dims, dnnl_data_type_t dtype,
                             dnnl_format_tag_t tag) {
    return dnnl_memory_desc_create_with_tag(md, n, dims, dtype, tag);
}
#else
md_view onednn_view(const dnnl_memory_desc_t *md) {
    return md;
}
void onednn_md_free(dnnl_memory_desc_t *md) {
    (void)md;
}
dnnl_status_t onednn_md_make(dnnl_memory_desc_t *md, int n, const dnnl_dims_t dims, dnnl_data_type_t dtype,
                             dnnl_format_tag_t tag) {
    return dnnl_memory_desc_init_by_tag(md, n, dims, dtype, tag);
}
#endif

dnnl_status_t onednn_md_matrix(dnnl_memory_desc_t *md, int64_t rows, int64_t columns, dnnl_data_type_t dtype,
                               int turned) {
    const dnnl_dims_t dims = { rows, columns };
    return onednn_md_make(md, 2, dims, dtype, turned ? dnnl_ba : dnnl_ab);
}

tess_status onednn_failed(const char *what, dnnl_status_t status) {
    tess_status code = status == dnnl_out_of_memory ? TESS_E_NOMEM : TESS_E_DEVICE;
    return tess_fail(code, "oneDNN: %s failed with status %d", what, (int)status);
}

/* oneDNN asks OpenMP for the number of threads when a primitive is made and when it runs. */
int onednn_enter(int32_t threads) {
    int before = omp_get_max_threads();
    omp_set_num_threads(threads);
    return before;
}

void onednn_leave(int before) {
    omp_set_num_threads(before);
}

/* ---- steps ------------------------------------------------------------------------------------- */
int onednn_usable(const_dnnl_primitive_desc_t pd) {
    const char *name = "";
    if (dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name) != dnnl_success)
        return 0;
    return strncmp(name, "gemm:", 5) && !strstr(name, ":gemm:") && strncmp(name, "ref", 3) && !strstr(name, ":ref");
}

tess_status onednn_step_arg(onednn_context *c, onednn_step *s, int kind, md_view md) {
    dnnl_memory_t memory;
    dnnl_status_t status = dnnl_memory_create(&memory, md, c->engine, DNNL_MEMORY_NONE);
    if (status != dnnl_success)
        return onednn_failed("creating a memory object", status);
    s->args[s->n_args].arg = kind;
    s->args[s->n_args++].memory = memory;
    return TESS_OK;
}

/* Creates the primitive of a description and adds its scratchpad as the last argument. */
tess_status onednn_step_finish(onednn_context *c, onednn_step *s, const_dnnl_primitive_desc_t pd) {
    md_view pad = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    dnnl_status_t status = dnnl_primitive_create(&s->primitive, pd);
    if (status != dnnl_success)
        return onednn_failed("creating a primitive", status);
    s->scratch_bytes = ops_align(pad ? dnnl_memory_desc_get_size(pad) : 0);
    return s->scratch_bytes ? onednn_step_arg(c, s, DNNL_ARG_SCRATCHPAD, pad) : TESS_OK;
}

void onednn_step_destroy(onednn_step *s) {
    for (int i = 0; i < s->n_args; i++)
        dnnl_memory_destroy(s->args[i].memory);
    if (s->primitive)
        dnnl_primitive_destroy(s->primitive);
    *s = (onednn_step){ 0 };
}

/* `pointers`: one per argument in the order of onednn_step_arg, then `scratch` if the step has a scratchpad. */
tess_status onednn_step_run(const onednn_context *c, onednn_step *s, const void *const *pointers, void *scratch) {
    return onednn_step_run_with(c, s, c->base.threads, pointers, scratch);
}

tess_status onednn_step_run_with(const onednn_context *c, onednn_step *s, int32_t threads, const void *const *pointers,
                                 void *scratch) {
    dnnl_status_t status = dnnl_success;
    for (int i = 0; i < s->n_args && status == dnnl_success; i++) {
        void *p = s->args[i].arg == DNNL_ARG_SCRATCHPAD ? scratch : (void *)(uintptr_t)pointers[i];
        status = dnnl_memory_set_data_handle(s->args[i].memory, p);
    }
    int before = onednn_enter(threads);
    if (status == dnnl_success)
        status = dnnl_primitive_execute(s->primitive, c->stream, s->n_args, s->args);
    if (status == dnnl_success)
        status = dnnl_stream_wait(c->stream);
    onednn_leave(before);
    return status == dnnl_success ? TESS_OK : onednn_failed("a primitive", status);
}

dnnl_primitive_attr_t onednn_attributes(int sum, int relu) {
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_post_ops_t post = NULL;
    if (dnnl_primitive_attr_create(&attributes) != dnnl_success)
        return NULL;
    dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user);
    if ((!sum && !relu) || dnnl_post_ops_create(&post) != dnnl_success)
        return attributes;
#if DNNL_VERSION_MAJOR >= 3
    if (sum)
        dnnl_post_ops_append_sum(post, 1.0f, 0, dnnl_data_type_undef);
    if (relu)
        dnnl_post_ops_append_eltwise(post, dnnl_eltwise_relu, 0.0f, 0.0f);
#else
    if (sum)
        dnnl_post_ops_append_sum(post, 1.0f);
    if (relu)
        dnnl_post_ops_append_eltwise(post, 1.0f, dnnl_eltwise_relu, 0.0f, 0.0f);
#endif
    dnnl_primitive_attr_set_post_ops(attributes, post);
    dnnl_post_ops_destroy(post);
    return attributes;
}

/* Returns the first usable implementation, or null. v3 takes `pd` over; v2 walks the operation's implementations. */
#if DNNL_VERSION_MAJOR >= 3
dnnl_primitive_desc_t onednn_first_usable(dnnl_primitive_desc_t pd) {
    while (!onednn_usable(pd))
        if (dnnl_primitive_desc_next_impl(pd) != dnnl_success) {
            dnnl_primitive_desc_destroy(pd);
            return NULL;
        }
    return pd;
}
#else
dnnl_primitive_desc_t onednn_first_usable(onednn_context *c, const_dnnl_op_desc_t operation,
                                          dnnl_primitive_attr_t attributes, const_dnnl_primitive_desc_t hint) {
    dnnl_primitive_desc_iterator_t i;
    dnnl_primitive_desc_t pd = NULL;
    if (dnnl_primitive_desc_iterator_create(&i, operation, attributes, c->engine, hint) != dnnl_success)
        return NULL;
    do {
        pd = dnnl_primitive_desc_iterator_fetch(i);
        if (pd && onednn_usable(pd))
            break;
        if (pd)
            dnnl_primitive_desc_destroy(pd);
        pd = NULL;
    } while (dnnl_primitive_desc_iterator_next(i) == dnnl_success);
    dnnl_primitive_desc_iterator_destroy(i);
    return pd;
}
#endif

/* ---- products ---------------------------------------------------------------------------------- */
static dnnl_primitive_desc_t describe_product(onednn_context *c, const onednn_product *p,
                                              const dnnl_memory_desc_t md[4]) {
    dnnl_primitive_attr_t attributes = onednn_attributes(p->add, p->relu);
    dnnl_primitive_desc_t pd = NULL;
    md_view bias = p->bias ? onednn_view(&md[3]) : NULL;
#if DNNL_VERSION_MAJOR >= 3
    if (dnnl_matmul_primitive_desc_create(&pd, c->engine, onednn_view(&md[0]), onednn_view(&md[1]), bias,
                                          onednn_view(&md[2]), attributes) == dnnl_success)
        pd = onednn_first_usable(pd);
#else
    dnnl_matmul_desc_t operation;
    if (dnnl_matmul_desc_init(&operation, onednn_view(&md[0]), onednn_view(&md[1]), bias, onednn_view(&md[2])) ==
        dnnl_success)
        pd = onednn_first_usable(c, &operation, attributes, NULL);
#endif
    dnnl_primitive_attr_destroy(attributes);
    return pd;
}

tess_status onednn_product_step(onednn_context *c, const onednn_product *p, onednn_step *s) {
    dnnl_memory_desc_t md[4] = { 0 };
    if (onednn_md_matrix(&md[0], p->rows, p->depth, p->factor, p->turn_a) ||
        onednn_md_matrix(&md[1], p->depth, p->columns, p->factor, p->turn_b) ||
        onednn_md_matrix(&md[2], p->rows, p->columns, p->result, 0) ||
        onednn_md_matrix(&md[3], 1, p->columns, p->bias_type, 0))
        return onednn_failed("describing a matrix", dnnl_invalid_arguments);
    dnnl_primitive_desc_t pd = describe_product(c, p, md);
    tess_status status = TESS_OK;
    if (pd) {
        const int kinds[4] = { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS };
        for (int i = 0; i < (p->bias ? 4 : 3) && status == TESS_OK; i++)
            status = onednn_step_arg(c, s, kinds[i], onednn_view(&md[i]));
        if (status == TESS_OK)
            status = onednn_step_finish(c, s, pd);
        dnnl_primitive_desc_destroy(pd);
    }
    for (int i = 0; i < 4; i++)
        onednn_md_free(&md[i]);
    return status;
}
