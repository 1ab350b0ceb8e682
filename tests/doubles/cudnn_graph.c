/* SPDX-License-Identifier: BSD-3-Clause */
/* cuDNN's graphs of operations: descriptors with the attributes of the real ones, and plans that run a graph operation
 * by operation, in the stream's order. It knows the operations of attention alone, and knows nothing of attention. Of
 * the two engines that it offers the first says that it does not repeat its bits, and does not. */
#include "cudnn_graph.h"

#include <stdlib.h>
#include <string.h>

#include "double.h"

/* ---- attributes: which descriptor has which, of which type, and which it must have ---------------------------------
 */
enum { ENGINES = 2, PLAN_ALIGN = 256 };
#define NEEDED 1
#define MANY 64
typedef struct {
    int owner, name, type, most, needed;
} rule;
#define RULE(owner, name, type, most, needed)                                                                          \
    { CUDNN_BACKEND_##owner##_DESCRIPTOR, CUDNN_ATTR_##name, CUDNN_TYPE_##type, most, needed }
#define EDGE(owner, name, needed) RULE(owner, name, BACKEND_DESCRIPTOR, 1, needed)
static const rule rules[] = {
    RULE(TENSOR, TENSOR_DATA_TYPE, DATA_TYPE, 1, NEEDED),
    RULE(TENSOR, TENSOR_DIMENSIONS, INT64, RANK, NEEDED),
    RULE(TENSOR, TENSOR_STRIDES, INT64, RANK, NEEDED),
    RULE(TENSOR, TENSOR_UNIQUE_ID, INT64, 1, NEEDED),
    RULE(TENSOR, TENSOR_BYTE_ALIGNMENT, INT64, 1, NEEDED),
    RULE(TENSOR, TENSOR_IS_VIRTUAL, BOOLEAN, 1, 0),
    RULE(TENSOR, TENSOR_IS_BY_VALUE, BOOLEAN, 1, 0),
    RULE(MATMUL, MATMUL_COMP_TYPE, DATA_TYPE, 1, NEEDED),
    EDGE(OPERATION_MATMUL, OPERATION_MATMUL_ADESC, NEEDED),
    EDGE(OPERATION_MATMUL, OPERATION_MATMUL_BDESC, NEEDED),
    EDGE(OPERATION_MATMUL, OPERATION_MATMUL_CDESC, NEEDED),
    EDGE(OPERATION_MATMUL, OPERATION_MATMUL_DESC, NEEDED),
    RULE(REDUCTION, REDUCTION_COMP_TYPE, DATA_TYPE, 1, NEEDED),
    RULE(REDUCTION, REDUCTION_OPERATOR, REDUCTION_OPERATOR_TYPE, 1, NEEDED),
    EDGE(OPERATION_REDUCTION, OPERATION_REDUCTION_XDESC, NEEDED),
    EDGE(OPERATION_REDUCTION, OPERATION_REDUCTION_YDESC, NEEDED),
    EDGE(OPERATION_REDUCTION, OPERATION_REDUCTION_DESC, NEEDED),
    EDGE(OPERATION_RESHAPE, OPERATION_RESHAPE_XDESC, NEEDED),
    EDGE(OPERATION_RESHAPE, OPERATION_RESHAPE_YDESC, NEEDED),
    RULE(POINTWISE, POINTWISE_MODE, POINTWISE_MODE, 1, NEEDED),
    RULE(POINTWISE, POINTWISE_MATH_PREC, DATA_TYPE, 1, NEEDED),
    RULE(POINTWISE, POINTWISE_AXIS, INT64, 1, 0),
    EDGE(OPERATION_POINTWISE, OPERATION_POINTWISE_PW_DESCRIPTOR, NEEDED),
    EDGE(OPERATION_POINTWISE, OPERATION_POINTWISE_XDESC, NEEDED),
    EDGE(OPERATION_POINTWISE, OPERATION_POINTWISE_BDESC, 0),
    EDGE(OPERATION_POINTWISE, OPERATION_POINTWISE_TDESC, 0),
    EDGE(OPERATION_POINTWISE, OPERATION_POINTWISE_YDESC, NEEDED),
    RULE(OPERATIONGRAPH, OPERATIONGRAPH_OPS, BACKEND_DESCRIPTOR, MANY, NEEDED),
    RULE(OPERATIONGRAPH, OPERATIONGRAPH_HANDLE, HANDLE, 1, NEEDED),
    EDGE(ENGINEHEUR, ENGINEHEUR_OPERATION_GRAPH, NEEDED),
    RULE(ENGINEHEUR, ENGINEHEUR_MODE, HEUR_MODE, 1, NEEDED),
    RULE(EXECUTION_PLAN, EXECUTION_PLAN_HANDLE, HANDLE, 1, NEEDED),
    EDGE(EXECUTION_PLAN, EXECUTION_PLAN_ENGINE_CONFIG, NEEDED),
    RULE(VARIANT_PACK, VARIANT_PACK_UNIQUE_IDS, INT64, MANY, NEEDED),
    RULE(VARIANT_PACK, VARIANT_PACK_DATA_POINTERS, VOID_PTR, MANY, NEEDED),
    RULE(VARIANT_PACK, VARIANT_PACK_WORKSPACE, VOID_PTR, 1, NEEDED),
};

static const rule *rule_of(int owner, int name) {
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].owner == owner && rules[i].name == name)
            return &rules[i];
    return NULL;
}
static size_t size_of(int type) {
    return type == CUDNN_TYPE_BOOLEAN ? sizeof(bool)
           : type == CUDNN_TYPE_INT64 || type == CUDNN_TYPE_BACKEND_DESCRIPTOR || type == CUDNN_TYPE_HANDLE ||
                   type == CUDNN_TYPE_VOID_PTR
               ? 8
               : sizeof(int);
}
DOUBLE_API cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                                      cudnnBackendDescriptor_t *out) {
    descriptor *d = double__fails("cudnnBackendCreateDescriptor") ? NULL : calloc(1, sizeof *d);
    if (!d)
        return CUDNN_STATUS_ALLOC_FAILED;
    d->type = (int)type;
    double__live("cuDNN descriptors", 1);
    *out = d;
    return CUDNN_STATUS_SUCCESS;
}
DOUBLE_API cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t at) {
    descriptor *d = at;
    for (int i = 0; i < d->n; i++)
        free(d->all[i].data);
    free(d);
    double__live("cuDNN descriptors", -1);
    return CUDNN_STATUS_SUCCESS;
}

DOUBLE_API cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t at, cudnnBackendAttributeName_t name,
                                                  cudnnBackendAttributeType_t type, int64_t n, const void *value) {
    descriptor *d = at;
    const rule *r = rule_of(d->type, (int)name);
    if (double__fails("cudnnBackendSetAttribute") || d->is_final || !r || r->type != (int)type || n < 1 ||
        n > r->most || !value || find(d, (int)name) || d->n == ATTRIBUTES)
        return CUDNN_STATUS_BAD_PARAM;
    for (int64_t i = 0; type == CUDNN_TYPE_BACKEND_DESCRIPTOR && i < n; i++) {
        const descriptor *of = ((descriptor *const *)value)[i];
        if (!of || !of->is_final)
            return CUDNN_STATUS_BAD_PARAM;
    }
    size_t bytes = (size_t)n * size_of((int)type);
    attribute *a = &d->all[d->n];
    *a = (attribute){ (int)name, (int)type, n, malloc(bytes) };
    if (!a->data)
        return CUDNN_STATUS_ALLOC_FAILED;
    memcpy(a->data, value, bytes);
    d->n++;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- shapes ---------------------------------------------------------------------------------------------------------
 */
static int divides(const descriptor *small, const descriptor *large) {
    for (int i = 0; i < RANK; i++)
        if (sizes(large)[i] % sizes(small)[i])
            return 0;
    return 1;
}
static int same(const descriptor *a, const descriptor *b) {
    return !memcmp(sizes(a), sizes(b), RANK * sizeof(int64_t));
}
static int matmul_fits(const descriptor *o) {
    const int64_t *a = sizes(edge(o, CUDNN_ATTR_OPERATION_MATMUL_ADESC));
    const int64_t *b = sizes(edge(o, CUDNN_ATTR_OPERATION_MATMUL_BDESC));
    const int64_t *c = sizes(edge(o, CUDNN_ATTR_OPERATION_MATMUL_CDESC));
    return a[0] == c[0] && b[0] == c[0] && a[1] == c[1] && c[1] % b[1] == 0 && a[2] == c[2] && a[3] == b[2] &&
           b[3] == c[3];
}
static int pointwise_fits(const descriptor *o) {
    const descriptor *y = edge(o, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
    const descriptor *x = edge(o, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
    const descriptor *b = edge(o, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
    const descriptor *which = edge(o, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
    int mode = number(edge(o, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR), CUDNN_ATTR_POINTWISE_MODE, -1);
    int two = mode == CUDNN_POINTWISE_MUL || mode == CUDNN_POINTWISE_ADD || mode == CUDNN_POINTWISE_SUB ||
              mode == CUDNN_POINTWISE_DIV || mode == CUDNN_POINTWISE_CMP_GE || mode == CUDNN_POINTWISE_BINARY_SELECT;
    int one = mode == CUDNN_POINTWISE_EXP || mode == CUDNN_POINTWISE_LOG || mode == CUDNN_POINTWISE_GEN_INDEX;
    return (one || two) && two == (b != NULL) && (mode == CUDNN_POINTWISE_BINARY_SELECT) == (which != NULL) &&
           same(x, y) && (!b || divides(b, y)) && (!which || same(which, y));
}

/* Rows and columns exchanged, in memory that stays as it is. */
static int reshape_fits(const descriptor *o) {
    const descriptor *x = edge(o, CUDNN_ATTR_OPERATION_RESHAPE_XDESC), *y = edge(o, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
    const int64_t *from = longs(x, CUDNN_ATTR_TENSOR_STRIDES), *to = longs(y, CUDNN_ATTR_TENSOR_STRIDES);
    return sizes(x)[0] == sizes(y)[0] && sizes(x)[1] == sizes(y)[1] && sizes(x)[2] == sizes(y)[3] &&
           sizes(x)[3] == sizes(y)[2] && from[0] == to[0] && from[1] == to[1] && from[2] == to[3] && from[3] == to[2];
}
/* Vectors of 16 bytes are loaded. */
static int tensor_fits(const descriptor *t) {
    int type = number(t, CUDNN_ATTR_TENSOR_DATA_TYPE, 0);
    for (int i = 0; type != CUDNN_DATA_FLOAT && !number(t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, 0) && i < RANK; i++)
        if (longs(t, CUDNN_ATTR_TENSOR_STRIDES)[i] != 1 && longs(t, CUDNN_ATTR_TENSOR_STRIDES)[i] % 8)
            return 0;
    return longs(t, CUDNN_ATTR_TENSOR_UNIQUE_ID)[0] > 0;
}

static int fits(const descriptor *d) {
    switch (d->type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR: return tensor_fits(d);
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: return matmul_fits(d);
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: return pointwise_fits(d);
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR: return reshape_fits(d);
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        return divides(edge(d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC), edge(d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC));
    default: return 1;
    }
}

/* ---- engines --------------------------------------------------------------------------------------------------------
 */
/* Each reshaped array of scores is kept. */
int64_t double__cudnn_workspace(const descriptor *graph) {
    int64_t bytes = PLAN_ALIGN + double__number("CUDNN_WORKSPACE", 0);
    for (int64_t i = 0; i < operations(graph)->n; i++) {
        const descriptor *o = ((descriptor **)operations(graph)->data)[i];
        if (o->type == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)
            bytes += 2 * elems(edge(o, CUDNN_ATTR_OPERATION_RESHAPE_YDESC));
    }
    return bytes;
}

DOUBLE_API cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t at) {
    descriptor *d = at;
    if (double__fails("cudnnBackendFinalize") || d->is_final)
        return CUDNN_STATUS_BAD_PARAM;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].owner == d->type && rules[i].needed && !find(d, rules[i].name))
            return CUDNN_STATUS_BAD_PARAM;
    if (!fits(d))
        return CUDNN_STATUS_BAD_PARAM;
    d->is_final = 1;
    return CUDNN_STATUS_SUCCESS;
}

/* A configuration and its engine carry their graph as an attribute that nobody asks for. */
static cudnnStatus_t fill(descriptor *d, int type, int64_t engine, descriptor *graph) {
    if (d->type != type || d->is_final || d->n)
        return CUDNN_STATUS_BAD_PARAM;
    d->all[0] =
        (attribute){ CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, malloc(sizeof graph) };
    memcpy(d->all[0].data, &graph, sizeof graph);
    d->n = 1, d->is_final = 1, d->engine = engine;
    return CUDNN_STATUS_SUCCESS;
}

DOUBLE_API cudnnStatus_t cudnnBackendGetAttribute(const cudnnBackendDescriptor_t at, cudnnBackendAttributeName_t name,
                                                  cudnnBackendAttributeType_t type, int64_t most, int64_t *n,
                                                  void *out) {
    const descriptor *d = at;
    (void)type;
    if (double__fails("cudnnBackendGetAttribute") || !d->is_final || most < 1)
        return CUDNN_STATUS_BAD_PARAM;
    switch ((int)name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
        *n = double__fails("engines") ? 0 : most < ENGINES ? most : ENGINES;
        for (int64_t i = 0; i < *n; i++)
            if (fill(((descriptor **)out)[i], CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, i,
                     edge(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)))
                return CUDNN_STATUS_BAD_PARAM;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINECFG_ENGINE:
        *n = 1;
        return fill(*(descriptor **)out, CUDNN_BACKEND_ENGINE_DESCRIPTOR, d->engine,
                    edge(d, CUDNN_ATTR_ENGINE_OPERATION_GRAPH));
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
        *n = 1;
        *(cudnnBackendNumericalNote_t *)out =
            d->engine ? CUDNN_NUMERICAL_NOTE_TENSOR_CORE : CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
        *n = 1;
        *(int64_t *)out = double__cudnn_workspace(graph_of(d));
        return CUDNN_STATUS_SUCCESS;
    default: return CUDNN_STATUS_NOT_SUPPORTED;
    }
}
