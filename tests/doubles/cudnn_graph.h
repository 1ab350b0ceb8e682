/* SPDX-License-Identifier: BSD-3-Clause */
/* Descriptors of cuDNN's backend interface, for the two files of the double that have it. */
#ifndef TESSERA_DOUBLE_CUDNN_GRAPH_H
#define TESSERA_DOUBLE_CUDNN_GRAPH_H
#include <cudnn.h>
#include <stdbool.h>

#include "driver.h"

struct cudnnContext {
    double_stream *stream;
    int device;
};

enum { ATTRIBUTES = 8, RANK = 4 };
typedef struct {
    int name, type;
    int64_t n;
    void *data;
} attribute;
typedef struct {
    int type, is_final, n;
    attribute all[ATTRIBUTES];
    int64_t engine; /* of what a heuristic gives */
} descriptor;

static inline const attribute *find(const descriptor *d, int name) {
    for (int i = 0; i < d->n; i++)
        if (d->all[i].name == name)
            return &d->all[i];
    return NULL;
}
static inline descriptor *edge(const descriptor *d, int name) {
    const attribute *a = find(d, name);
    return a ? ((descriptor **)a->data)[0] : NULL;
}
static inline int number(const descriptor *d, int name, int otherwise) {
    const attribute *a = find(d, name);
    return !a ? otherwise : a->type == CUDNN_TYPE_BOOLEAN ? *(bool *)a->data : *(int *)a->data;
}
static inline const int64_t *longs(const descriptor *d, int name) {
    return find(d, name)->data;
}

static inline const int64_t *sizes(const descriptor *t) {
    return longs(t, CUDNN_ATTR_TENSOR_DIMENSIONS);
}
static inline int64_t elems(const descriptor *t) {
    return sizes(t)[0] * sizes(t)[1] * sizes(t)[2] * sizes(t)[3];
}

static inline const attribute *operations(const descriptor *graph) {
    return find(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
}

static inline const descriptor *graph_of(const descriptor *plan) {
    return edge(edge(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG), CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
}
int64_t double__cudnn_workspace(const descriptor *graph);
#endif
