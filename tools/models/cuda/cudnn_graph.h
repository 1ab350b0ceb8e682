/* SPDX-License-Identifier: BSD-3-Clause */
/* Graphs of operations for cuDNN's backend interface. Each function continues only while all before it succeeded; the
 * first failure is in `status`. */
#ifndef TESS_MODELS_CUDNN_GRAPH_H
#define TESS_MODELS_CUDNN_GRAPH_H
#include "cuda_ops.h"

enum { OPS_GRAPH_MOST = 160, OPS_GRAPH_OPERATIONS = 32 };
typedef struct {
    const ops_cudnn *d;
    cudnnBackendDescriptor_t all[OPS_GRAPH_MOST], operations[OPS_GRAPH_OPERATIONS];
    int n_all, n_operations;
    int64_t last_id; /* of virtual tensors; callers name their own tensors with small numbers */
    cudnnStatus_t status;
} ops_graph;

typedef struct {
    int64_t size[4], step[4];
    cudnnDataType_t type;
    int64_t id;   /* 0: virtual, exists only within the graph */
    int by_value; /* the caller gives the address of a number in host memory */
} ops_graph_tensor;

typedef cudnnBackendDescriptor_t ops_graph_edge;

ops_graph_edge ops_graph_tensor_of(ops_graph *, const ops_graph_tensor *);
/** Each appends one operation that writes `out`. */
void ops_graph_matmul(ops_graph *, ops_graph_edge a, ops_graph_edge b, ops_graph_edge out);
void ops_graph_reduce(ops_graph *, cudnnReduceTensorOp_t, ops_graph_edge x, ops_graph_edge out);
void ops_graph_reshape(ops_graph *, ops_graph_edge x, ops_graph_edge out);
/** `b` and `which` may be null. `axis` is used by CUDNN_POINTWISE_GEN_INDEX alone. */
typedef struct {
    cudnnPointwiseMode_t mode;
    cudnnDataType_t precision;
    int64_t axis;
    ops_graph_edge x, b, which;
} ops_graph_pointwise;
void ops_graph_point(ops_graph *, const ops_graph_pointwise *, ops_graph_edge out);

/** Plans for a handle's device, or, where `handle` is null, for the device that `properties` describes. Such a plan
 * tells its workspace without a GPU, and cannot run. */
typedef struct {
    cudnnHandle_t handle;
    cudnnBackendDescriptor_t properties;
} ops_graph_target;
/** Returns a plan whose engine gives the same bits each time; null if there is none, with the reason in `status`. */
cudnnBackendDescriptor_t ops_graph_plan(ops_graph *, const ops_graph_target *, int64_t *workspace_bytes);
/** Enqueues a plan on the stream of its handle, with the addresses of its `n` tensors. */
cudnnStatus_t ops_graph_run(const ops_graph *, cudnnHandle_t, cudnnBackendDescriptor_t plan, int64_t n,
                            const int64_t *ids, void **addresses, void *workspace);
/** Destroys all descriptors that the functions above made. */
void ops_graph_end(ops_graph *);
#endif
