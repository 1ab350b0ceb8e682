/* SPDX-License-Identifier: BSD-3-Clause */
/* Runs a plan of cudnn_graph.c: its operations in their order, each over whole tensors. Tensors of 16 bits are rounded,
 * also those that exist within the graph alone. */
#include "cudnn_graph.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kit/formulas.h"
#include "races.h"

enum { TENSORS = 48, OPERATIONS = 24, INPUTS = 3, ALIGNMENT = 16, PLAN_ALIGNMENT = 256 };
typedef struct {
    int32_t size[RANK], step[RANK], type;
    int16_t id;
    int8_t is_virtual, by_value;
    float value;
    void *at;
} tensor;
typedef struct {
    int32_t type, mode, axis;
    int8_t in[INPUTS], out; /* -1: none */
} operation;
typedef struct {
    tensor tensors[TENSORS];
    operation operations[OPERATIONS];
    int n_tensors, n_operations, engine;
    void *workspace;
    uint64_t workspace_bytes;
} program;
_Static_assert(sizeof(program) <= DOUBLE_WORK_BYTES, "a piece of work");

/* ---- from descriptors ------------------------------------------------------------------------------- */
/* Returns the tensor's place in the program; a tensor that two descriptors name is one. */
static int8_t place_of(program *p, const descriptor *t) {
    if (!t)
        return -1;
    int16_t id = (int16_t)longs(t, CUDNN_ATTR_TENSOR_UNIQUE_ID)[0];
    for (int i = 0; i < p->n_tensors; i++)
        if (p->tensors[i].id == id)
            return (int8_t)i;
    if (p->n_tensors == TENSORS)
        abort();
    tensor *to = &p->tensors[p->n_tensors];
    *to = (tensor){ .id = id,
                    .type = number(t, CUDNN_ATTR_TENSOR_DATA_TYPE, 0),
                    .is_virtual = (int8_t)number(t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, 0),
                    .by_value = (int8_t)number(t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, 0) };
    for (int i = 0; i < RANK; i++)
        to->size[i] = (int32_t)sizes(t)[i], to->step[i] = (int32_t)longs(t, CUDNN_ATTR_TENSOR_STRIDES)[i];
    return (int8_t)p->n_tensors++;
}

static void take(program *p, const descriptor *o, const int names[INPUTS + 1], int how, int mode) {
    operation *to = &p->operations[p->n_operations++];
    const descriptor *by = how ? edge(o, how) : NULL;
    *to = (operation){ .type = o->type, .mode = by ? number(by, mode, 0) : 0 };
    if (by && find(by, CUDNN_ATTR_POINTWISE_AXIS))
        to->axis = (int32_t)longs(by, CUDNN_ATTR_POINTWISE_AXIS)[0];
    for (int i = 0; i < INPUTS; i++)
        to->in[i] = names[i] ? place_of(p, edge(o, names[i])) : -1;
    to->out = place_of(p, edge(o, names[INPUTS]));
}

static void take_operation(program *p, const descriptor *o) {
    static const int matmul[] = { CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC, 0,
                                  CUDNN_ATTR_OPERATION_MATMUL_CDESC };
    static const int reduction[] = { CUDNN_ATTR_OPERATION_REDUCTION_XDESC, 0, 0, CUDNN_ATTR_OPERATION_REDUCTION_YDESC };
    static const int reshape[] = { CUDNN_ATTR_OPERATION_RESHAPE_XDESC, 0, 0, CUDNN_ATTR_OPERATION_RESHAPE_YDESC };
    static const int point[] = { CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                                 CUDNN_ATTR_OPERATION_POINTWISE_TDESC, CUDNN_ATTR_OPERATION_POINTWISE_YDESC };
    if (p->n_operations == OPERATIONS)
        abort();
    switch (o->type) {
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: take(p, o, matmul, 0, 0); break;
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR: take(p, o, reshape, 0, 0); break;
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        take(p, o, reduction, CUDNN_ATTR_OPERATION_REDUCTION_DESC, CUDNN_ATTR_REDUCTION_OPERATOR);
        break;
    default: take(p, o, point, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MODE);
    }
}

/* ---- on the host -------------------------------------------------------------------------------------- */
static int64_t elems_of(const tensor *t) {
    return (int64_t)t->size[0] * t->size[1] * t->size[2] * t->size[3];
}
static void index_of(const tensor *t, int64_t n, int64_t at[RANK]) {
    for (int i = RANK - 1; i >= 0; i--)
        at[i] = n % t->size[i], n /= t->size[i];
}
/* The element of `t` that belongs to index `at` of a tensor with whole multiples of its sizes. */
static int64_t shared(const tensor *t, const tensor *whole, const int64_t at[RANK]) {
    int64_t n = 0;
    for (int i = 0; i < RANK; i++)
        n = n * t->size[i] + at[i] / (whole->size[i] / t->size[i]);
    return n;
}
static int64_t offset_of(const tensor *t, int64_t n) {
    int64_t at[RANK], sum = 0;
    index_of(t, n, at);
    for (int i = 0; i < RANK; i++)
        sum += at[i] * t->step[i];
    return sum;
}
static float rounded(const tensor *t, float x) {
    return t->type == CUDNN_DATA_BFLOAT16 ? tess_f32_of_bf16(tess_bf16_of_f32(x))
           : t->type == CUDNN_DATA_HALF   ? tess_f32_of_f16(tess_f16_of_f32(x))
                                          : x;
}

static float *load(const tensor *t) {
    int64_t n = elems_of(t);
    float *x = malloc((size_t)n * sizeof *x);
    const void *from = t->at ? double_host(t->at) : NULL;
    for (int64_t i = 0; i < n && (t->by_value || from); i++) {
        int64_t at = offset_of(t, i);
        x[i] = t->by_value                      ? t->value
               : t->type == CUDNN_DATA_FLOAT    ? ((const float *)from)[at]
               : t->type == CUDNN_DATA_BFLOAT16 ? tess_f32_of_bf16(((const uint16_t *)from)[at])
                                                : tess_f32_of_f16(((const uint16_t *)from)[at]);
    }
    return x;
}
static void store(const tensor *t, const float *x) {
    void *to = t->at ? double_host(t->at) : NULL;
    for (int64_t i = 0; to && i < elems_of(t); i++) {
        int64_t at = offset_of(t, i);
        if (t->type == CUDNN_DATA_FLOAT)
            ((float *)to)[at] = x[i];
        else
            ((uint16_t *)to)[at] = t->type == CUDNN_DATA_BFLOAT16 ? tess_bf16_of_f32(x[i]) : tess_f16_of_f32(x[i]);
    }
}

static void matmul(const tensor *t, const operation *o, float *const x[], float *y) {
    const tensor *a = &t[o->in[0]], *b = &t[o->in[1]], *c = &t[o->out];
    int64_t depth = a->size[3], columns = c->size[3];
    for (int64_t row = 0; row < elems_of(c) / columns; row++) {
        int64_t head = row / c->size[2] % c->size[1], share = head / (c->size[1] / b->size[1]);
        const float *left = x[o->in[0]] + row * depth;
        const float *right = x[o->in[1]] + (row / c->size[2] / c->size[1] * b->size[1] + share) * depth * columns;
        memset(y + row * columns, 0, (size_t)columns * sizeof *y);
        for (int64_t k = 0; k < depth; k++)
            for (int64_t i = 0; i < columns; i++)
                y[row * columns + i] += left[k] * right[k * columns + i];
    }
}

static void reduce(const tensor *t, const operation *o, float *const x[], float *y) {
    const tensor *from = &t[o->in[0]], *to = &t[o->out];
    int64_t at[RANK];
    for (int64_t i = 0; i < elems_of(to); i++)
        y[i] = o->mode == CUDNN_REDUCE_TENSOR_MAX ? -INFINITY : 0;
    for (int64_t i = 0; i < elems_of(from); i++) {
        index_of(from, i, at);
        float *sum = &y[shared(to, from, at)], v = x[o->in[0]][i];
        *sum = o->mode == CUDNN_REDUCE_TENSOR_MAX ? fmaxf(*sum, v) : *sum + v;
    }
}

static void turn(const tensor *t, const operation *o, float *const x[], float *y) {
    const tensor *to = &t[o->out];
    int64_t rows = to->size[2], columns = to->size[3];
    for (int64_t i = 0; i < elems_of(to); i++) {
        int64_t row = i / columns % rows, column = i % columns, before = i / columns / rows;
        y[i] = x[o->in[0]][(before * columns + column) * rows + row];
    }
}

static float point_at(int mode, float x, float b, float which, int64_t index) {
    switch (mode) {
    case CUDNN_POINTWISE_MUL: return x * b;
    case CUDNN_POINTWISE_ADD: return x + b;
    case CUDNN_POINTWISE_SUB: return x - b;
    case CUDNN_POINTWISE_DIV: return x / b;
    case CUDNN_POINTWISE_EXP: return expf(x);
    case CUDNN_POINTWISE_LOG: return logf(x);
    case CUDNN_POINTWISE_CMP_GE: return x >= b;
    case CUDNN_POINTWISE_BINARY_SELECT: return which != 0 ? x : b;
    default: return (float)index;
    }
}
static void point(const tensor *t, const operation *o, float *const x[], float *y) {
    const tensor *to = &t[o->out];
    int64_t at[RANK];
    for (int64_t i = 0; i < elems_of(to); i++) {
        index_of(to, i, at);
        float b = o->in[1] < 0 ? 0 : x[o->in[1]][shared(&t[o->in[1]], to, at)];
        y[i] = point_at(o->mode, x[o->in[0]][i], b, o->in[2] < 0 ? 0 : x[o->in[2]][i], at[o->axis]);
    }
}

static void run_operation(const program *p, const operation *o, float *x[]) {
    const tensor *to = &p->tensors[o->out];
    float *y = x[o->out], noise = p->engine ? 1 : 1 + (float)(double__random() % 64) / 256;
    switch (o->type) {
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: matmul(p->tensors, o, x, y); break;
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR: reduce(p->tensors, o, x, y); break;
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR: turn(p->tensors, o, x, y); break;
    default: point(p->tensors, o, x, y);
    }
    for (int64_t i = 0; i < elems_of(to); i++)
        y[i] = rounded(to, to->is_virtual ? y[i] : y[i] * noise);
    if (!to->is_virtual)
        store(to, y);
}

static void run_program(void *data) {
    const program *p = data;
    float *x[TENSORS];
    memset(double_host(p->workspace), 0xff, p->workspace_bytes); /* nothing may be expected there */
    for (int i = 0; i < p->n_tensors; i++)
        x[i] = load(&p->tensors[i]);
    for (int i = 0; i < p->n_operations; i++)
        run_operation(p, &p->operations[i], x);
    for (int i = 0; i < p->n_tensors; i++)
        free(x[i]);
}

/* ---- the call ----------------------------------------------------------------------------------------- */
static uint64_t bytes_of(const tensor *t) {
    return (uint64_t)(offset_of(t, elems_of(t) - 1) + 1) *
           (t->type == CUDNN_DATA_FLOAT ? sizeof(float) : sizeof(uint16_t));
}
static int is_written(const program *p, int place) {
    for (int i = 0; i < p->n_operations; i++)
        if (p->operations[i].out == place)
            return 1;
    return 0;
}
static void describe_program(const void *data, double_access *a) {
    const program *p = data;
    for (int i = 0; i < p->n_tensors; i++) {
        const tensor *t = &p->tensors[i];
        if (t->at && is_written(p, i))
            double__writes(a, "cuDNN", t->at, bytes_of(t));
        else if (t->at)
            double__reads(a, "cuDNN", t->at, bytes_of(t));
    }
    double__writes(a, "cuDNN", p->workspace, p->workspace_bytes);
}
__attribute__((constructor)) static void describe_programs(void) {
    double__describes(run_program, describe_program);
}

/* Each tensor that is not virtual has an address, and nothing else has. */
static int take_addresses(program *p, const descriptor *pack) {
    const attribute *ids = find(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    void **at = find(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS)->data;
    int64_t found = 0;
    for (int i = 0; i < p->n_tensors; i++) {
        tensor *t = &p->tensors[i];
        for (int64_t k = 0; !t->is_virtual && k < ids->n; k++) {
            if (((int64_t *)ids->data)[k] != t->id)
                continue;
            found++;
            if (t->by_value)
                t->value = *(const float *)at[k];
            else
                t->at = at[k];
        }
        if (!t->is_virtual && !t->by_value &&
            ((uintptr_t)t->at % ALIGNMENT || !double__is_device(t->at) || !double__range_ok(t->at, bytes_of(t), 0)))
            return 0;
    }
    return found == ids->n;
}

DOUBLE_API cudnnStatus_t cudnnBackendExecute(cudnnHandle_t h, cudnnBackendDescriptor_t plan_at,
                                             cudnnBackendDescriptor_t pack_at) {
    const descriptor *plan = plan_at, *pack = pack_at, *graph = graph_of(plan);
    program p = { .workspace = *(void **)find(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE)->data };
    if (double__fails("cudnnBackendExecute"))
        return CUDNN_STATUS_EXECUTION_FAILED;
    if (!h || double__current_device() != h->device || !plan->is_final || !pack->is_final)
        return CUDNN_STATUS_NOT_INITIALIZED;
    p.workspace_bytes = (uint64_t)double__cudnn_workspace(graph);
    p.engine = (int)edge(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)->engine;
    for (int64_t i = 0; i < operations(graph)->n; i++)
        take_operation(&p, ((descriptor **)operations(graph)->data)[i]);
    if (!take_addresses(&p, pack) || (uintptr_t)p.workspace % PLAN_ALIGNMENT || !double__is_device(p.workspace) ||
        !double__range_ok(p.workspace, p.workspace_bytes, 0))
        return CUDNN_STATUS_BAD_PARAM;
    double__push(h->stream, run_program, &p, sizeof p);
    return CUDNN_STATUS_SUCCESS;
}
