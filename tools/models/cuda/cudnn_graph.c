/* SPDX-License-Identifier: BSD-3-Clause */
/* Builds graphs of operations for cuDNN, and chooses the engine that runs one. */
#include "cudnn_graph.h"

#include <stdbool.h>

static cudnnBackendDescriptor_t make(ops_graph *g, cudnnBackendDescriptorType_t type) {
    cudnnBackendDescriptor_t d = NULL;
    if (g->n_all == OPS_GRAPH_MOST)
        g->status = CUDNN_STATUS_ALLOC_FAILED;
    if (!g->status)
        g->status = g->d->cudnnBackendCreateDescriptor(type, &d);
    return g->status ? NULL : (g->all[g->n_all++] = d);
}

static void put(ops_graph *g, cudnnBackendDescriptor_t to, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t n, const void *value) {
    if (!g->status)
        g->status = g->d->cudnnBackendSetAttribute(to, name, type, n, value);
}
static void put_edge(ops_graph *g, cudnnBackendDescriptor_t to, cudnnBackendAttributeName_t name, ops_graph_edge e) {
    if (e)
        put(g, to, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &e);
}
static void finish(ops_graph *g, cudnnBackendDescriptor_t d) {
    if (!g->status)
        g->status = g->d->cudnnBackendFinalize(d);
}
static void append(ops_graph *g, cudnnBackendDescriptor_t operation) {
    finish(g, operation);
    if (!g->status && g->n_operations == OPS_GRAPH_OPERATIONS)
        g->status = CUDNN_STATUS_ALLOC_FAILED;
    if (!g->status)
        g->operations[g->n_operations++] = operation;
}

void ops_graph_end(ops_graph *g) {
    while (g->n_all)
        g->d->cudnnBackendDestroyDescriptor(g->all[--g->n_all]);
    g->n_operations = 0;
}

/* ---- tensors and operations ---------------------------------------------------------------------- */
enum { ALIGNMENT = 16, FIRST_VIRTUAL = 1000 };

ops_graph_edge ops_graph_tensor_of(ops_graph *g, const ops_graph_tensor *t) {
    cudnnBackendDescriptor_t d = make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    int64_t alignment = t->by_value ? (int64_t)sizeof(float) : ALIGNMENT;
    int64_t id = t->id ? t->id : FIRST_VIRTUAL + ++g->last_id;
    bool is_virtual = !t->id, by_value = t->by_value;
    put(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &t->type);
    put(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, t->size);
    put(g, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, t->step);
    put(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    put(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    put(g, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    put(g, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    finish(g, d);
    return d;
}

void ops_graph_matmul(ops_graph *g, ops_graph_edge a, ops_graph_edge b, ops_graph_edge out) {
    cudnnBackendDescriptor_t how = make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    cudnnDataType_t sums = CUDNN_DATA_FLOAT;
    put(g, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sums);
    finish(g, how);
    cudnnBackendDescriptor_t o = make(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    put_edge(g, o, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    put_edge(g, o, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    put_edge(g, o, CUDNN_ATTR_OPERATION_MATMUL_CDESC, out);
    put_edge(g, o, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    append(g, o);
}

void ops_graph_reduce(ops_graph *g, cudnnReduceTensorOp_t mode, ops_graph_edge x, ops_graph_edge out) {
    cudnnBackendDescriptor_t how = make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    cudnnDataType_t sums = CUDNN_DATA_FLOAT;
    put(g, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sums);
    put(g, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode);
    finish(g, how);
    cudnnBackendDescriptor_t o = make(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    put_edge(g, o, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    put_edge(g, o, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, out);
    put_edge(g, o, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    append(g, o);
}

void ops_graph_reshape(ops_graph *g, ops_graph_edge x, ops_graph_edge out) {
    cudnnBackendDescriptor_t o = make(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    put_edge(g, o, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    put_edge(g, o, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, out);
    append(g, o);
}

void ops_graph_point(ops_graph *g, const ops_graph_pointwise *p, ops_graph_edge out) {
    cudnnBackendDescriptor_t how = make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    put(g, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &p->mode);
    put(g, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &p->precision);
    if (p->mode == CUDNN_POINTWISE_GEN_INDEX)
        put(g, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &p->axis);
    finish(g, how);
    cudnnBackendDescriptor_t o = make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    put_edge(g, o, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    put_edge(g, o, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, p->x);
    put_edge(g, o, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, p->b);
    put_edge(g, o, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, p->which);
    put_edge(g, o, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, out);
    append(g, o);
}

/* ---- engines --------------------------------------------------------------------------------------- */
enum { CANDIDATES = 8, NOTES = CUDNN_NUMERICAL_NOTE_TYPE_COUNT };

static int64_t get(ops_graph *g, cudnnBackendDescriptor_t of, cudnnBackendAttributeName_t name,
                   cudnnBackendAttributeType_t type, int64_t most, void *out) {
    int64_t n = 0;
    if (!g->status)
        g->status = g->d->cudnnBackendGetAttribute(of, name, type, most, &n, out);
    return g->status ? 0 : n < most ? n : most;
}

/* Sets the device for which `to`, a plan or what chooses engines, is made, where a graph has no handle. */
static void put_device(ops_graph *g, cudnnBackendDescriptor_t to, int is_plan, const ops_graph_target *t) {
#if CUDNN_VERSION >= 90800 /* headers before that describe no device */
    if (!t->handle)
        put_edge(g, to, is_plan ? CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP : CUDNN_ATTR_ENGINEHEUR_DEVICEPROP,
                 t->properties);
#else
    (void)g, (void)to, (void)is_plan, (void)t;
#endif
}

static cudnnBackendDescriptor_t whole(ops_graph *g, const ops_graph_target *t) {
    cudnnBackendDescriptor_t graph = make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    put(g, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->n_operations, g->operations);
    if (t->handle)
        put(g, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &t->handle);
    finish(g, graph);
    return graph;
}

/* An engine may add in the order in which its blocks finish; its notes say so. */
static int repeats(ops_graph *g, cudnnBackendDescriptor_t config) {
    cudnnBackendNumericalNote_t notes[NOTES];
    cudnnBackendDescriptor_t engine = make(g, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    get(g, config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engine);
    int64_t n = get(g, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, NOTES, notes);
    for (int64_t i = 0; i < n; i++)
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)
            return 0;
    return !g->status;
}

static cudnnBackendDescriptor_t plan_of(ops_graph *g, cudnnBackendDescriptor_t config, const ops_graph_target *t) {
    cudnnBackendDescriptor_t plan = make(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    if (t->handle)
        put(g, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &t->handle);
    put_device(g, plan, 1, t);
    put_edge(g, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    finish(g, plan);
    return plan;
}

/* cuDNN gives the configurations best first. One that this device does not support fails as its plan is made. */
cudnnBackendDescriptor_t ops_graph_plan(ops_graph *g, const ops_graph_target *t, int64_t *workspace_bytes) {
    cudnnBackendDescriptor_t configs[CANDIDATES], graph = whole(g, t), heuristic, plan;
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    heuristic = make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    put_edge(g, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    put(g, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    put_device(g, heuristic, 0, t);
    finish(g, heuristic);
    for (int i = 0; i < CANDIDATES; i++)
        configs[i] = make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    int64_t n = get(g, heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, CANDIDATES, configs);
    cudnnStatus_t found = g->status ? g->status : CUDNN_STATUS_NOT_SUPPORTED;
    for (int64_t i = 0; i < n; i++, g->status = CUDNN_STATUS_SUCCESS) {
        plan = repeats(g, configs[i]) ? plan_of(g, configs[i], t) : NULL;
        if (plan)
            get(g, plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, workspace_bytes);
        if (plan && !g->status)
            return plan;
    }
    g->status = found;
    return NULL;
}

cudnnStatus_t ops_graph_run(const ops_graph *of, cudnnHandle_t handle, cudnnBackendDescriptor_t plan, int64_t n,
                            const int64_t *ids, void **addresses, void *workspace) {
    ops_graph g = { .d = of->d };
    cudnnBackendDescriptor_t pack = make(&g, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    put(&g, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, ids);
    put(&g, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, addresses);
    put(&g, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    finish(&g, pack);
    if (!g.status)
        g.status = g.d->cudnnBackendExecute(handle, plan, pack);
    ops_graph_end(&g);
    return g.status;
}
