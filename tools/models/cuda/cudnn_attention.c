/* SPDX-License-Identifier: BSD-3-Clause */
/* Attention in 16 bits as graphs of operations, which cuDNN fuses. Forward writes the same log-sum-exp as our own
 * kernels. Backward gives dQ as one product of the slopes of scores, which cuDNN then keeps in its workspace. Were they
 * kept nowhere, blocks would add to dQ in the order in which they end, and bits would change from run to run. */
#include "cudnn_attention.h"
#include <tessera/tessera.h>

#include <math.h>
#include <stdlib.h>

enum { Q = 1, K, V, Y, LSE, SCALE, MASKED, FORWARD, DY = FORWARD, SUMS, DQ, DK, DV, IDS }; /* tensors with an address */

typedef struct {
    ops_graph *g;
    int64_t batch, time, heads, kv_heads, size;
    cudnnDataType_t half;
} shape;

static shape shape_of(ops_graph *g, const ops_attention_shape *s, int fp16) {
    int64_t kv = s->kv_heads ? s->kv_heads : s->heads;
    return (shape){ g, s->batch, s->time, s->heads, kv, s->size, fp16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16 };
}

/* ---- tensors, [batch, heads, rows, columns] ----------------------------------------------------- */
/* Heads within rows of `pitch` elements; `turned` exchanges rows and columns. */
static ops_graph_edge heads_in(const shape *s, int64_t id, int64_t heads, int64_t pitch, int turned) {
    ops_graph_tensor t = { .size = { s->batch, heads, s->time, s->size },
                           .step = { s->time * pitch, s->size, pitch, 1 },
                           .type = s->half,
                           .id = id };
    if (turned) {
        t.size[2] = s->size, t.size[3] = s->time;
        t.step[2] = 1, t.step[3] = pitch;
    }
    return ops_graph_tensor_of(s->g, &t);
}
static int64_t width(const shape *s) {
    return s->heads * s->size;
}
static int64_t pitch(const shape *s) {
    return width(s) + 2 * s->kv_heads * s->size;
}
static ops_graph_edge queries(const shape *s, int64_t id) {
    return heads_in(s, id, s->heads, pitch(s), 0);
}
static ops_graph_edge keys(const shape *s, int64_t id, int turned) {
    return heads_in(s, id, s->kv_heads, pitch(s), turned);
}
static ops_graph_edge rows_of_y(const shape *s, int64_t id) {
    return heads_in(s, id, s->heads, width(s), 0);
}
/* The heads of keys or values apart for each query head, within the graph alone. */
static ops_graph_edge all_heads(const shape *s, cudnnDataType_t type) {
    ops_graph_tensor t = { .size = { s->batch, s->heads, s->time, s->size },
                           .step = { s->heads * s->time * s->size, s->time * s->size, s->size, 1 },
                           .type = type };
    return ops_graph_tensor_of(s->g, &t);
}
static ops_graph_edge scores(const shape *s, cudnnDataType_t type, int turned) {
    int64_t t = s->time;
    return ops_graph_tensor_of(s->g,
                               &(ops_graph_tensor){ .size = { s->batch, s->heads, t, t },
                                                    .step = { s->heads * t * t, t * t, turned ? 1 : t, turned ? t : 1 },
                                                    .type = type });
}
static ops_graph_edge each_row(const shape *s, int64_t id) {
    return ops_graph_tensor_of(s->g, &(ops_graph_tensor){ .size = { s->batch, s->heads, s->time, 1 },
                                                          .step = { s->heads * s->time, s->time, 1, 1 },
                                                          .type = CUDNN_DATA_FLOAT,
                                                          .id = id });
}
static ops_graph_edge number(const shape *s, int64_t id) {
    return ops_graph_tensor_of(
        s->g, &(ops_graph_tensor){
                  .size = { 1, 1, 1, 1 }, .step = { 1, 1, 1, 1 }, .type = CUDNN_DATA_FLOAT, .id = id, .by_value = 1 });
}

/* ---- operations ---------------------------------------------------------------------------------- */
static ops_graph_edge point(const shape *s, cudnnPointwiseMode_t mode, ops_graph_edge x, ops_graph_edge b,
                            ops_graph_edge out) {
    ops_graph_point(s->g, &(ops_graph_pointwise){ .mode = mode, .precision = CUDNN_DATA_FLOAT, .x = x, .b = b }, out);
    return out;
}
static ops_graph_edge on_scores(const shape *s, cudnnPointwiseMode_t mode, ops_graph_edge x, ops_graph_edge b) {
    return point(s, mode, x, b, scores(s, CUDNN_DATA_FLOAT, 0));
}

/* Scores of later keys become -inf. */
static ops_graph_edge mask(const shape *s, ops_graph_edge x) {
    ops_graph_edge place[2], seen = scores(s, CUDNN_DATA_BOOLEAN, 0), out = scores(s, CUDNN_DATA_FLOAT, 0);
    for (int i = 0; i < 2; i++) {
        ops_graph_pointwise p = {
            .mode = CUDNN_POINTWISE_GEN_INDEX, .precision = CUDNN_DATA_INT32, .axis = 2 + i, .x = x
        };
        place[i] = scores(s, CUDNN_DATA_INT32, 0);
        ops_graph_point(s->g, &p, place[i]);
    }
    ops_graph_pointwise compare = {
        .mode = CUDNN_POINTWISE_CMP_GE, .precision = CUDNN_DATA_BOOLEAN, .x = place[0], .b = place[1]
    };
    ops_graph_point(s->g, &compare, seen);
    ops_graph_pointwise choose = { .mode = CUDNN_POINTWISE_BINARY_SELECT,
                                   .precision = CUDNN_DATA_FLOAT,
                                   .x = x,
                                   .b = number(s, MASKED),
                                   .which = seen };
    ops_graph_point(s->g, &choose, out);
    return out;
}

/* keys: turned */
static ops_graph_edge scaled_scores(const shape *s, ops_graph_edge q, ops_graph_edge k, ops_graph_edge scale) {
    ops_graph_edge product = scores(s, CUDNN_DATA_FLOAT, 0);
    ops_graph_matmul(s->g, q, k, product);
    return on_scores(s, CUDNN_POINTWISE_MUL, product, scale);
}

/* The softmax in the operations that cuDNN knows as one. */
static void build_forward(const shape *s) {
    ops_graph_edge most = each_row(s, 0), sum = each_row(s, 0), log_sum = each_row(s, 0), p = scores(s, s->half, 0);
    ops_graph_edge x = mask(s, scaled_scores(s, queries(s, Q), keys(s, K, 1), number(s, SCALE)));
    ops_graph_reduce(s->g, CUDNN_REDUCE_TENSOR_MAX, x, most);
    x = on_scores(s, CUDNN_POINTWISE_SUB, x, most);
    x = on_scores(s, CUDNN_POINTWISE_EXP, x, NULL);
    ops_graph_reduce(s->g, CUDNN_REDUCE_TENSOR_ADD, x, sum);
    point(s, CUDNN_POINTWISE_LOG, sum, NULL, log_sum);
    point(s, CUDNN_POINTWISE_ADD, most, log_sum, each_row(s, LSE));
    point(s, CUDNN_POINTWISE_DIV, x, sum, p);
    ops_graph_matmul(s->g, p, keys(s, V, 0), rows_of_y(s, Y));
}

/* The gradient of keys or of values: weights turned times `right`, added over the heads that share them. */
static void spread(const shape *s, ops_graph_edge weights, ops_graph_edge right, ops_graph_edge out) {
    ops_graph_edge turned = scores(s, s->half, 1), whole = s->heads == s->kv_heads ? out : all_heads(s, s->half);
    ops_graph_reshape(s->g, weights, turned);
    ops_graph_matmul(s->g, turned, right, whole);
    if (whole != out)
        ops_graph_reduce(s->g, CUDNN_REDUCE_TENSOR_ADD, whole, out);
}

static ops_graph_edge sums_of(const shape *s, ops_graph_edge y, ops_graph_edge dy) {
    ops_graph_edge product = all_heads(s, CUDNN_DATA_FLOAT), sums = each_row(s, SUMS);
    point(s, CUDNN_POINTWISE_MUL, dy, y, product);
    ops_graph_reduce(s->g, CUDNN_REDUCE_TENSOR_ADD, product, sums);
    return sums;
}

static void build_backward(const shape *s) {
    ops_graph_edge q = queries(s, Q), k = keys(s, K, 1), dy = rows_of_y(s, DY), scale = number(s, SCALE);
    ops_graph_edge sums = sums_of(s, rows_of_y(s, Y), dy), x = scaled_scores(s, q, k, scale);
    x = mask(s, on_scores(s, CUDNN_POINTWISE_SUB, x, each_row(s, LSE)));
    ops_graph_edge p = on_scores(s, CUDNN_POINTWISE_EXP, x, NULL), dp = scores(s, CUDNN_DATA_FLOAT, 0), ds, rows;
    spread(s, p, dy, keys(s, DV, 0));
    ops_graph_matmul(s->g, dy, keys(s, V, 1), dp);
    ds = on_scores(s, CUDNN_POINTWISE_MUL, on_scores(s, CUDNN_POINTWISE_SUB, dp, sums), p);
    ds = point(s, CUDNN_POINTWISE_MUL, ds, scale, scores(s, s->half, 0));
    spread(s, ds, q, keys(s, DK, 0));
    ops_graph_reshape(s->g, k, rows = keys(s, 0, 0));
    ops_graph_matmul(s->g, ds, rows, queries(s, DQ));
}

void ops_cudnn_attention_build(ops_graph *g, const ops_attention_shape *s, int fp16, int backward) {
    shape of = shape_of(g, s, fp16);
    if (backward)
        build_backward(&of);
    else
        build_forward(&of);
}

/* ---- the choice ------------------------------------------------------------------------------------ */
enum { HEAD_MOST = 128, HEAD_STEP = 8, TILE = 128, LEAST_VERSION = 91600, ALIGN = 256 };

static tess_status refuse(const char *what, int64_t value) {
    return tess_fail(TESS_E_UNSUPPORTED, "attention=cudnn: %s%.0lld: TESSERA_ATTENTION=own", what, (long long)value);
}

tess_status ops_cudnn_attention_check(const ops *o, const ops_attention_shape *s) {
    if (!o->cudnn_attention)
        return TESS_OK;
    if (!ops_halves(o))
        return refuse("the precision is fp32, and it computes in 16 bits", 0);
    if (s->size % HEAD_STEP || s->size > HEAD_MOST)
        return refuse("heads are multiples of 8 to 128 elements, and these have ", s->size);
    if (s->packs)
        return refuse("documents share samples (pack)", 0);
    if (s->cap > 0)
        return refuse("scores have a cap", 0);
    return s->window > 0 && s->window < s->time ? refuse("rows see a window of ", s->window) : TESS_OK;
}

static uint64_t sums_bytes(const ops_attention_shape *s) {
    return ops_align((uint64_t)s->batch * (uint64_t)s->heads * (uint64_t)s->time * sizeof(float));
}

/* As of cuDNN 9.19: backward keeps three arrays of scores in 16 bits, one of them in whole tiles, and, if heads share
 * keys, both gradients of each head. Forward keeps a few bytes. */
void ops_cudnn_attention_need(const ops_attention_shape *s, ops_scratch *need) {
    uint64_t time = ((uint64_t)s->time + TILE - 1) / TILE * TILE, heads = (uint64_t)s->batch * (uint64_t)s->heads;
    uint64_t shared = s->kv_heads && s->kv_heads != s->heads ? 2 * (uint64_t)s->time * (uint64_t)s->size : 0;
    need->forward_bytes = 2 * ALIGN;
    need->backward_bytes = sums_bytes(s) + heads * (3 * time * time + shared) * sizeof(uint16_t) + (uint64_t)4 * ALIGN;
}

/* Earlier versions want a mask of padding where rows are no multiple of 128. From capability 10 on, the engine that
 * is chosen does not say whether it repeats its bits. */
tess_status ops_cudnn_attention_start(const cuda_ops *c) {
    int major = 0;
    size_t version = c->dnn_handle ? c->dnn->cudnnGetVersion() : 0;
    if (!version)
        return refuse("libcudnn.so.9 is missing, or does not start", 0);
    if (version < LEAST_VERSION)
        return tess_fail(TESS_E_UNSUPPORTED,
                         "attention=cudnn: this is cuDNN %zu.%zu, and 9.16 is needed: TESSERA_ATTENTION=own",
                         version / 10000, version % 10000 / 100);
    CU_TRY(c, "asking for the compute capability",
           c->d->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, c->device));
    return major < 8 || major > 9 ? refuse("it repeats its bits on compute capability 8 and 9, and this is ", major)
                                  : TESS_OK;
}

/* ---- plans, one for each shape and direction -------------------------------------------------------- */
typedef struct ops_cudnn_plan {
    ops_attention_shape s;
    int backward;
    ops_graph g;
    cudnnBackendDescriptor_t plan;
    struct ops_cudnn_plan *next;
} ops_cudnn_plan;

static void free_plan(ops_cudnn_plan *p) {
    if (p)
        ops_graph_end(&p->g);
    free(p);
}

void ops_cudnn_attention_end(cuda_ops *c) {
    while (c->attention_plans) {
        ops_cudnn_plan *next = c->attention_plans->next;
        free_plan(c->attention_plans);
        c->attention_plans = next;
    }
}

static int is_of(const ops_cudnn_plan *p, const ops_attention_shape *s, int backward) {
    return p->backward == backward && p->s.batch == s->batch && p->s.time == s->time && p->s.heads == s->heads &&
           p->s.kv_heads == s->kv_heads && p->s.size == s->size;
}

static uint64_t room_of(const ops_attention_shape *s, int backward) {
    ops_scratch need;
    ops_cudnn_attention_need(s, &need);
    return backward ? need.backward_bytes - sums_bytes(s) - ALIGN : need.forward_bytes - ALIGN;
}

static tess_status make_plan(cuda_ops *c, const ops_attention_shape *s, int backward, ops_cudnn_plan *p) {
    ops_graph_target target = { .handle = c->dnn_handle };
    int64_t bytes = 0;
    *p = (ops_cudnn_plan){ .s = *s, .backward = backward, .g = { .d = c->dnn }, .next = c->attention_plans };
    ops_cudnn_attention_build(&p->g, s, c->base.fp16, backward);
    if (!(p->plan = ops_graph_plan(&p->g, &target, &bytes)))
        return tess_fail(TESS_E_UNSUPPORTED,
                         "attention=cudnn: it has no engine for %s of heads of %d at length %d (%s): "
                         "TESSERA_ATTENTION=own",
                         backward ? "backward" : "forward", s->size, s->time, c->dnn->cudnnGetErrorString(p->g.status));
    if ((uint64_t)bytes > room_of(s, backward))
        return refuse("its workspace is larger than planned, bytes: ", bytes);
    c->attention_plans = p;
    return TESS_OK;
}

static tess_status plan_for(cuda_ops *c, const ops_attention_shape *s, int backward, ops_cudnn_plan **out) {
    for (*out = c->attention_plans; *out; *out = (*out)->next)
        if (is_of(*out, s, backward))
            return TESS_OK;
    ops_cudnn_plan *made = malloc(sizeof *made);
    if (!made)
        return tess_fail(TESS_E_NOMEM, "out of memory for attention");
    tess_status status = make_plan(c, s, backward, made);
    if (status != TESS_OK)
        free_plan(made);
    else
        *out = made;
    return status;
}

/* ---- calls ------------------------------------------------------------------------------------------ */
/* Returns the address of keys (1) or values (2) in rows of queries, keys and values. */
static void *part(const ops_attention_shape *s, const void *rows, int which) {
    int64_t kv = s->kv_heads ? s->kv_heads : s->heads;
    return (uint16_t *)(uintptr_t)rows + (s->heads + (which - 1) * kv) * s->size;
}

/* `at`: addresses by their tensor. Numbers by value are in memory of the host. */
static tess_status run(cuda_ops *c, const ops_attention_shape *s, int backward, void **at, void *workspace) {
    static const int64_t ids[IDS] = { 0, Q, K, V, Y, LSE, SCALE, MASKED, DY, SUMS, DQ, DK, DV };
    float scale = ops_cuda_attention_scale(s), masked = -INFINITY;
    uintptr_t behind = ((uintptr_t)workspace + ALIGN - 1) / ALIGN * ALIGN;
    ops_cudnn_plan *p;
    OPS_TRY(plan_for(c, s, backward, &p));
    at[SCALE] = &scale, at[MASKED] = &masked;
    cudnnStatus_t r =
        ops_graph_run(&p->g, c->dnn_handle, p->plan, (backward ? IDS : FORWARD) - Q, ids + Q, at + Q, (void *)behind);
    return r == CUDNN_STATUS_SUCCESS ? TESS_OK
                                     : tess_fail(TESS_E_DEVICE, "operators cuda: cuDNN's attention failed: %s",
                                                 c->dnn->cudnnGetErrorString(r));
}

tess_status ops_cudnn_attention(cuda_ops *c, const ops_attention_shape *s, const void *qkv, void *y, float *lse,
                                void *scratch) {
    void *at[IDS] = {
        [Q] = (void *)(uintptr_t)qkv, [K] = part(s, qkv, 1), [V] = part(s, qkv, 2), [Y] = y, [LSE] = lse
    };
    return run(c, s, 0, at, scratch);
}

tess_status ops_cudnn_attention_backward(cuda_ops *c, const ops_attention_shape *s, const void *qkv, const void *y,
                                         const float *lse, const void *dy, void *dqkv, void *scratch) {
    void *at[IDS] = {
        [Q] = (void *)(uintptr_t)qkv,   [K] = part(s, qkv, 1),        [V] = part(s, qkv, 2), [Y] = (void *)(uintptr_t)y,
        [LSE] = (void *)(uintptr_t)lse, [DY] = (void *)(uintptr_t)dy, [SUMS] = scratch,      [DQ] = dqkv,
        [DK] = part(s, dqkv, 1),        [DV] = part(s, dqkv, 2)
    };
    return run(c, s, 1, at, (char *)scratch + sums_bytes(s));
}
