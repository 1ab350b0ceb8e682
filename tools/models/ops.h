/* SPDX-License-Identifier: BSD-3-Clause */
/* The operators of the reference models as a table, so that a model is written once. There are three tables:
 * ops_plain (C alone), ops_onednn, and ops_cuda for tensors in an NVIDIA GPU's memory, whose calls only enqueue.
 *
 *  - Tensors are fp32, rows first; images are NHWC. Weights have PyTorch's layouts: linear [out, in], conv [out, in,
 *    k, k]. A table made for bf16 or fp16 takes the weights of these two operators in it, but not the
 *    biases. It multiplies in it with fp32 sums if the machine can, otherwise in fp32.
 *  - The …_create calls make all objects that depend on a shape, and return how much scratch a call needs. Other
 *    calls allocate nothing of ours. Pointers are 64-byte aligned unless a comment says otherwise; scratch is
 *    undefined on entry.
 *  - dx is written. dw and db are ADDED to; a null one is not computed.
 *  - The bits of ops_plain depend on neither threads nor instruction set. oneDNN's depend on both, so both are fixed
 *    when an `ops` is made. */
#ifndef TESS_MODELS_OPS_H
#define TESS_MODELS_OPS_H
#include <tessera/tessera.h>

#define OPS_TRY(call)                                                                                                  \
    do {                                                                                                               \
        tess_status ops_status_ = (call);                                                                              \
        if (ops_status_ != TESS_OK)                                                                                    \
            return ops_status_;                                                                                        \
    } while (0)
/** Rounds a size in bytes up, so that the next tensor stays aligned. */
static inline uint64_t ops_align(uint64_t bytes) {
    return (bytes + 63) & ~(uint64_t)63;
}

typedef struct ops_table ops_table;
typedef struct ops_layer_table ops_layer_table; /* layer_ops.h */
typedef struct {                                /* the start of each table's context */
    const ops_table *t;
    int32_t threads, bf16, fp16, fp8;
    int32_t cudnn_attention, attention_products;
} ops;
/** Weights, and factors of products, are bf16 or fp16. */
static inline int ops_halves(const ops *o) {
    return o->bf16 || o->fp16;
}
typedef struct {
    int32_t threads; /* 0: 1 */
    int32_t bf16;    /* weights of linear and conv are bf16 */
    const char *isa; /* null: the best; "avx2", "avx512_core", "avx512_core_bf16", …: an upper bound for oneDNN */
    int32_t fp16;    /* instead they are fp16; on the CPU products are then fp32 */
    int32_t fp8;     /* with bf16: products in fp8 are wanted. `start` refuses a device that has none */
    int32_t cudnn_attention;    /* on a GPU in 16 bits: cuDNN computes attention. `start` refuses a device without it */
    int32_t attention_products; /* of attention's backward on a GPU in 16 bits: 5, 7, or 0: the shape decides */
} ops_options;
typedef struct {
    uint64_t forward_bytes, backward_bytes;
} ops_scratch;

typedef struct ops_linear ops_linear;
typedef struct { /* y[rows, outputs] = x[rows, inputs] · w^T + b */
    int32_t rows, inputs, outputs, relu, no_bias;
} ops_linear_shape;
typedef struct ops_matmul ops_matmul;
typedef struct { /* y[rows, columns] = a[rows, depth] · b[depth, columns] + bias; with `add`, y += that */
    int64_t rows, depth, columns;
    int32_t turn_a, turn_b; /* 1: stored as the transpose */
    int32_t bias, add;
    int32_t alone; /* runs on the calling thread, so another object may run beside it */
    uint32_t factor,
        result; /* TESS_F32, TESS_BF16 or TESS_F16: `factor` of a, b and bias, `result` of y; sums are fp32 */
} ops_matmul_shape;
typedef struct ops_conv ops_conv;
typedef struct { /* y[batch, h+2p-k+1, w+2p-k+1, outputs] = x[batch, h, w, channels] * w + b; stride 1, p = pad zeros
                    around */
    int32_t batch, height, width, channels, outputs, kernel, relu, pad;
} ops_conv_shape;
static inline int32_t ops_conv_height(const ops_conv_shape *s) {
    return s->height + 2 * s->pad - s->kernel + 1;
}
static inline int32_t ops_conv_width(const ops_conv_shape *s) {
    return s->width + 2 * s->pad - s->kernel + 1;
}
typedef struct { /* x[batch, time, 3, heads, size] → y[batch, time, heads, size]; position t sees 0 … t */
    int32_t batch, time, heads, size;
    /* Only layer_ops.h reads the fields from here to window. kv_heads: heads that share keys and values, [batch,
     * time, heads + 2 · kv_heads, size]; 0: heads. */
    int32_t kv_heads;
    int32_t window; /* positions that a row sees, including itself; 0: all before it */
    /* scale 0: 1/√size. cap (layer_ops.h): scores become cap · tanh(score / cap); 0: none. */
    float scale, cap;
    int32_t packs;         /* layer_ops.h: documents may share a sample, and a call has `places` */
    int32_t grows;         /* the next call has a row more, so nothing is prepared for this length */
    const int32_t *places; /* [batch, time]: positions within their documents, which see no other; null: no packing */
} ops_attention_shape;
typedef struct { /* these values alone determine a mask, so it does not depend on the rank that holds the sample */
    uint64_t seed, step, first_sample;
    uint32_t layer;
    float rate; /* 0: no dropout */
} ops_dropout;
typedef struct {
    double loss; /* sum over the counted rows */
    uint64_t correct, count;
    double divisor;
} ops_loss; /* a model_result in tensor memory */

enum {                   /* the statistics that batchnorm uses */
       OPS_BATCH = 1,    /* the batch's mean and variance */
       OPS_BATCH_UPDATE, /* the same; the running ones move a tenth towards them (unbiased variance) */
       OPS_RUNNING       /* the running mean and variance */
};
typedef struct { /* x[rows, channels]; rows: samples times places; eps 1e-5 */
    uint64_t rows, channels;
    int32_t relu; /* applies relu to the result */
} ops_batchnorm_shape;
enum { OPS_CHUNK_ROWS = 512 }; /* sums over rows add chunks of this size first, so that bits do not depend on threads */
static inline uint64_t ops_batchnorm_scratch(const ops_batchnorm_shape *s) {
    return ops_align((s->rows / OPS_CHUNK_ROWS + 2) * s->channels * 2 * sizeof(double));
}

struct ops_table {
    const char *name;
    uint32_t mem; /* TESS_MEM_… of tensors, scratch and results */
    uint32_t reserved;
    const ops_layer_table *layer; /* null: none */
    tess_status (*create)(const ops_options *, ops **out);
    /** Binds the operators to the device of `stream`, on which later calls enqueue; a null handle makes it create a
     * stream. On the host it starts the threads. It precedes the first operator; …_create does not need it. */
    tess_status (*start)(ops *, const tess_stream *stream);
    /** For a model without the engine: zeroed tensor memory, copies between it and the host, and a wait for all
     * calls. These slots are null if `mem` is the host's. */
    tess_status (*alloc)(ops *, uint64_t bytes, void **out);
    void (*free)(ops *, void *);
    tess_status (*upload)(ops *, const void *host, void *to, uint64_t bytes);
    tess_status (*download)(ops *, const void *from, void *host, uint64_t bytes);
    tess_status (*finish)(ops *);
    /** Zeroed host memory that the device copies to and from directly. */
    tess_status (*pinned_alloc)(ops *, uint64_t bytes, void **out);
    void (*pinned_free)(ops *, void *);
    void (*destroy)(ops *); /* called after its operators are destroyed; null is fine */
    /** Writes for example "onednn 2.6.3 avx512_core_bf16, 2 threads". The text names all that bits depend on, for
     * hashes and printing. */
    void (*describe)(const ops *, char *out, size_t bytes);

    tess_status (*linear_create)(ops *, const ops_linear_shape *, ops_linear **out, ops_scratch *need);
    void (*linear_destroy)(ops_linear *);
    tess_status (*linear_forward)(ops_linear *, const float *x, const void *w, const float *b_or_null, float *y,
                                  void *scratch);
    tess_status (*linear_backward)(ops_linear *, const float *x, const void *w, const float *dy, float *dx, float *dw,
                                   float *db, void *scratch); /* dy: gradient of the value before relu */
    tess_status (*conv_create)(ops *, const ops_conv_shape *, ops_conv **out, ops_scratch *need);
    void (*conv_destroy)(ops_conv *);
    tess_status (*conv_forward)(ops_conv *, const float *x, const void *w, const float *b, float *y, void *scratch);
    tess_status (*conv_backward)(ops_conv *, const float *x, const void *w, const float *dy, float *dx, float *dw,
                                 float *db, void *scratch);

    /** Null if the table has none. */
    tess_status (*matmul_create)(ops *, const ops_matmul_shape *, ops_matmul **out, uint64_t *scratch_bytes);
    void (*matmul_destroy)(ops_matmul *);
    tess_status (*matmul)(ops_matmul *, const void *a, const void *b, const void *bias_or_null, void *y, void *scratch);

    /** Rounds fp32 to the nearest bf16 or fp16, ties to even; `widen` goes back. */
    tess_status (*narrow)(const ops *, const float *x, uint16_t *y, uint64_t elems);
    tess_status (*widen)(const ops *, const uint16_t *x, float *y, uint64_t elems);
    tess_status (*zero)(ops *, void *x, uint64_t bytes);
    tess_status (*copy)(ops *, const void *x, void *y, uint64_t bytes);
    /** dx = scale · dy where y > 0, else 0. This is the backward of relu, and with scale 1/(1-rate) of relu followed
     * by dropout. dx may be dy. */
    tess_status (*relu_backward)(ops *, const float *y, const float *dy, float *dx, uint64_t elems, float scale);
    /** Works in place on `samples` rows of `elems`; kept values grow by 1/(1-rate). The same call on a gradient is
     * the backward. */
    tess_status (*dropout)(ops *, float *x, uint64_t samples, uint64_t elems, const ops_dropout *);
    tess_status (*add)(ops *, const float *x, float *y, uint64_t elems); /* y += x */
    /** 2×2, stride 2: x[batch, h, w, c] → y[batch, c, h/2, w/2], the order that PyTorch has before a linear layer.
     * `which`: position of each maximum, 0 … 3. */
    tess_status (*maxpool)(ops *, const float *x, const ops_conv_shape *, float *y, uint8_t *which);
    /** y and `which` are maxpool's. dx = scale · dy at the maximum where y > 0 (relu before the pool), else 0. */
    tess_status (*maxpool_backward)(ops *, const float *y, const uint8_t *which, const float *dy,
                                    const ops_conv_shape *, float *dx, float scale);
    /** GPT-2's approximation, 0.5 x (1 + tanh(√(2/π)(x + 0.044715 x³))). */
    tess_status (*gelu)(ops *, const float *x, float *y, uint64_t elems);
    tess_status (*gelu_backward)(ops *, const float *x, const float *dy, float *dx, uint64_t elems);
    /** stats: mean and 1/σ per row, 2 × rows. eps 1e-5. */
    tess_status (*layernorm)(ops *, const float *x, const float *w, const float *b, float *y, float *stats,
                             uint64_t rows, uint64_t width);
    tess_status (*layernorm_backward)(ops *, const float *x, const float *w, const float *stats, const float *dy,
                                      float *dx, float *dw, float *db, uint64_t rows, uint64_t width);
    /** stats: the mean and 1/σ that were used, [2][channels]. y may be x. Scratch, also for backward:
     * ops_batchnorm_scratch. */
    tess_status (*batchnorm)(ops *, const ops_batchnorm_shape *, uint32_t with, const float *x, const float *w,
                             const float *b, float *running_mean, float *running_var, float *y, float *stats,
                             void *scratch);
    /** Backward of OPS_BATCH and OPS_BATCH_UPDATE. y: the result, which relu's backward reads. dx may be dy. */
    tess_status (*batchnorm_backward)(ops *, const ops_batchnorm_shape *, const float *x, const float *w,
                                      const float *stats, const float *y, const float *dy, float *dx, float *dw,
                                      float *db, void *scratch);
    /** The mean over all places: x[batch, places, channels] → y[batch, channels]. */
    tess_status (*avgpool)(ops *, const float *x, float *y, uint64_t batch, uint64_t places, uint64_t channels);
    tess_status (*avgpool_backward)(ops *, const float *dy, float *dx, uint64_t batch, uint64_t places,
                                    uint64_t channels);
    /** Log-softmax and negative log likelihood of the first `count` rows; logits become probabilities. */
    tess_status (*cross_entropy)(ops *, float *logits, const int32_t *labels, uint64_t rows, uint64_t classes,
                                 uint64_t count, ops_loss *out, void *scratch);
    uint64_t (*cross_entropy_need)(uint64_t rows); /* bytes of its scratch */
    /** Writes the gradient of `scale` times the mean over `count` rows; later rows get 0. */
    tess_status (*cross_entropy_backward)(ops *, const float *probabilities, const int32_t *labels, uint64_t rows,
                                          uint64_t classes, uint64_t count, float scale, float *dlogits);
    /** out = the sum of x, or its square; `count` passes through to out. */
    tess_status (*sum_loss)(ops *, const float *x, uint64_t elems, int32_t squared, uint64_t count, ops_loss *out);
    /** dx[0 … elems) = scale, if squared times twice the sum of x; dx[elems … all) = 0. */
    tess_status (*sum_loss_backward)(ops *, const float *x, uint64_t elems, int32_t squared, float scale, uint64_t all,
                                     float *dx);
    /** out[sample, t] = text[sample · stride + t] for t below `time`: bytes become indices. */
    tess_status (*ids)(ops *, const uint8_t *text, uint64_t samples, uint64_t time, uint64_t stride, int32_t *out);
    /** y[row] = table[ids[row]] + position[row mod time]. */
    tess_status (*embedding)(ops *, const int32_t *ids, const float *table, const float *position, float *y,
                             uint64_t rows, uint64_t time, uint64_t width);
    tess_status (*embedding_backward)(ops *, const int32_t *ids, const float *dy, float *dtable, float *dposition,
                                      uint64_t rows, uint64_t time, uint64_t width);
    void (*attention_need)(const ops *, const ops_attention_shape *, ops_scratch *need);
    /** lse: log of the sum of exponentials per batch, head and time. Backward needs only it, x and y. */
    tess_status (*attention)(ops *, const ops_attention_shape *, const float *x, float *y, float *lse, void *scratch);
    tess_status (*attention_backward)(ops *, const ops_attention_shape *, const float *x, const float *y,
                                      const float *lse, const float *dy, float *dx, void *scratch);
};

extern const ops_table ops_plain;
#ifdef TESSERA_HAVE_DNNL
extern const ops_table ops_onednn;
#endif
extern const ops_table ops_cuda; /* only in builds with CUDA */
/** Finds "plain", "onednn" or "cuda"; null or "auto" gives the CPU's fastest. TESS_E_UNSUPPORTED names an operator
 * table that this build omits. */
tess_status ops_find(const char *name_or_null, const ops_table **out);
#endif
