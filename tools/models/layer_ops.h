/* SPDX-License-Identifier: BSD-3-Clause */
/* The operators of a GPT-2-style decoder in a device's memory, as few launches as it takes: a model on a device is made
 * of these, where ops.h has one operator for each formula.
 *
 *  - A factor is what products take: bf16 where the table is made for it, else fp32. Everything is a factor, parameters
 *    too, but gradients of parameters, statistics, sums of exponentials and the loss, which are fp32 or wider.
 *  - Every call only enqueues, and each is one launch unless it says otherwise.
 *  - Gradients are stored, or with `add` added to what is there. */
#ifndef TESS_MODELS_LAYER_OPS_H
#define TESS_MODELS_LAYER_OPS_H
#include "ops.h"

typedef struct { /* y[rows, columns] = a[rows, depth] · b[depth, columns], or y += it */
    int64_t rows, columns, depth;
    const void *a, *b;
    void *y;
    int64_t a_pitch, y_pitch; /* elements between rows as stored; 0: there is nothing between them */
    int32_t turn_a, turn_b;   /* stored as the transpose */
    int32_t wide, add;   /* wide: y is fp32. The fields below go with none of these four, but a bias with y_pitch */
    const void *bias;    /* null: none; added to each row */
    void *before;        /* null: not wanted; with gelu, what it was taken of */
    const void *through; /* not null: y comes back through the GELU that was taken of this */
    void *again;         /* beside `through`: that GELU, made again */
    int32_t gelu;        /* y = GELU of the product with its bias */
    float times;         /* of the product, which then has none of the fields from `bias` on; 0: 1 */
} ops_factors;

typedef struct { /* rows of `width`, of which `time` are a sample */
    uint64_t rows, width, time;
} ops_rows;

typedef struct { /* sum = x + dropped(add + add_bias); next = sum + next_bias; y = the sum, normalised as layernorm */
    ops_rows of;
    const void *x, *add, *add_bias, *next_bias, *w, *b; /* add null: the sum is x, and not written */
    void *sum, *next, *y;                               /* next, y null: not wanted; a bias: none */
    float *stats;
    const ops_dropout *drop; /* null: none */
    double eps;              /* 0: 1e-5 */
    int32_t about_zero;      /* by the root of the mean square, as Llama */
    int32_t one_more;        /* gains are 1 + w, as Gemma's */
} ops_norm;

typedef struct { /* dx = add + the gradient of x; masked: dx as dropout lets it back; normal: y, made again */
    ops_rows of;
    const void *x, *w, *b, *dy, *add; /* add null: none */
    const float *stats;
    void *dx, *masked, *normal; /* masked, normal null: not wanted */
    const ops_dropout *drop;    /* of masked */
    int32_t about_zero, one_more;
} ops_norm_backward;

typedef struct { /* in place: each head of queries and keys, which a row begins with, normalised about zero */
    ops_rows of; /* width: elements from row to row */
    void *x;
    const void *query_w, *key_w;
    void *kept;   /* [rows, heads + kv_heads, size]: as they were */
    float *stats; /* of each query head of all rows, then of each key head: 0 and 1/σ */
    int32_t heads, kv_heads, size, one_more;
    double eps;
} ops_head_norm;

typedef struct { /* in place: pair p of each of the heads that a row begins with turns by its position times turns[p] */
    ops_rows of; /* width: elements from row to row */
    void *x;
    uint64_t first;             /* position of a sample's first row */
    int32_t heads, pairs, back; /* pairs: half of a head's elements, at most OPS_ROTATION_MOST; back: the other way */
    const double *turns;        /* in parts of a circle; read by the call */
    float scale;                /* of what is turned; 0: 1 */
    float *table; /* of each position below `time` the cosine and sine of each pair: null, or written where first is 0,
                     and read by attention_backward, which writes nothing else */
} ops_rotation;
enum { OPS_ROTATION_MOST = 256 };

typedef struct {   /* y[rows, width] = rows ids[…] of a matrix that rests as stored.h has it */
    uint32_t kind; /* STORED_… */
    const void *from;
    const int32_t *ids; /* null: rows in their order */
    void *y;
    uint64_t rows, width;
} ops_stored;

enum { OPS_COLUMNS_MOST = 8 };
typedef struct { /* db[c] = the sum of dy's column c; dw[c] that of dy times the normalised x. Null: not wanted */
    const void *x, *dy;
    const float *stats;
    float *dw, *db;
    uint64_t width;
    uint64_t pitch, x_pitch, group; /* elements between groups of `group` rows, 1 with 0, of dy and of x; 0: no gaps */
} ops_columns;

typedef struct { /* a chunk of rows of logits, `pitch` apart, of which the first `count` count */
    const float *logits;
    const int32_t *labels;
    void *dlogits; /* null: not wanted; times `mean`, and 0 in the rows after `count` */
    float *stats; /* of each row the maximum and 1 / the sum of exponentials; loss makes them, loss_slopes reads them */
    void *losses; /* of all rows, cross_entropy_need; the chunk's are those from `first` on */
    uint64_t first, rows, classes, count, pitch; /* pitch: whole vectors of 8 */
    float mean;                                  /* 1 / the rows of all chunks that count */
    float cap;                                   /* 0: none; dlogits are of what `cap` was made of */
    const double *divisor; /* in tensor memory: where it is not 0, its inverse takes the mean's place; may be null */
} ops_row_loss;            /* a label of -1 has neither loss nor slopes */

struct ops_layer_table {
    uint64_t (*product_need)(int64_t rows, int64_t columns, int64_t depth); /* workspace; [pure] */
    /** One launch, and one more for `again`; a third where the library of products does not take bias or GELU. */
    tess_status (*product)(ops *, const ops_factors *, void *workspace);
    tess_status (*norm)(ops *, const ops_norm *);
    tess_status (*norm_backward)(ops *, const ops_norm_backward *);
    /** y = dropped(x); nothing at rate 0, and then *out is x, else y. */
    tess_status (*mask)(ops *, const ops_rows *, const ops_dropout *, const void *x, void *y, const void **out);
    /** y = GELU of x, which may be y. */
    tess_status (*gelu)(ops *, const void *x, void *y, uint64_t elems);
    /** dx, which may be dy, and y made again. */
    tess_status (*gelu_backward)(ops *, const void *x, const void *dy, void *dx, void *y, uint64_t elems);
    /** The factors that a frozen matrix, or rows of it, are read as. */
    tess_status (*widen_stored)(ops *, const ops_stored *);
    uint64_t (*columns_need)(uint64_t rows, uint64_t sums); /* scratch; sums: how many dw and db have; [pure] */
    /** At most OPS_COLUMNS_MOST of them, over the same rows. */
    tess_status (*columns)(ops *, const ops_columns *, int32_t n, uint64_t rows, int32_t add, void *scratch);
    /** Both over the same rows, where the sums read nothing that norm_backward writes. Two launches where a row is too
     * long for a block to keep or no whole vectors. */
    tess_status (*norm_backward_columns)(ops *, const ops_norm_backward *, const ops_columns *, int32_t n, int32_t add,
                                         void *scratch);
    tess_status (*rotate)(ops *, const ops_rotation *);
    tess_status (*head_norm)(ops *, const ops_head_norm *);
    /** x: gradients, in place. Three launches; null: a gain's gradient that is not wanted. Scratch: columns_need of as
     * many rows as all have heads, and 2 · size. */
    tess_status (*head_norm_backward)(ops *, const ops_head_norm *, float *query_dw, float *key_dw, int32_t add,
                                      void *scratch);
    /** y[rows, width] = SiLU, or with `gelu` GELU, of a row's first half times its second. */
    tess_status (*swiglu)(ops *, const void *x, void *y, uint64_t rows, uint64_t width, int32_t gelu);
    /** dx, and y made again, which may be dy. */
    tess_status (*swiglu_backward)(ops *, const void *x, const void *dy, void *dx, void *y, uint64_t rows,
                                   uint64_t width, int32_t gelu);
    void (*attention_need)(const ops *, const ops_attention_shape *, ops_scratch *need);
    /** In bf16 with heads of 128 elements or less one launch, and one for backward; with larger heads, and with
     * `packs`, products by blocks of queries. `back`, where it is not null, is the rotation of dqkv: part of that
     * launch where it has a table, else a launch more. */
    tess_status (*attention)(ops *, const ops_attention_shape *, const void *qkv, void *y, float *lse, void *scratch);
    tess_status (*attention_backward)(ops *, const ops_attention_shape *, const void *qkv, const void *y,
                                      const float *lse, const void *dy, void *dqkv, const ops_rotation *back,
                                      void *scratch);
    /** Bytes of the table with which attention_backward turns its gradients as it writes them; 0: it takes none. */
    uint64_t (*rotation_need)(const ops *, const ops_attention_shape *);
    /** ids null: rows of the table in their order; places null: rows of `position` in their order, which null is none;
     * scale: of the table's rows, 0: 1 */
    tess_status (*embed)(ops *, const ops_rows *, const int32_t *ids, const void *table, const int32_t *places,
                         const void *position, float scale, const ops_dropout *, void *y);
    uint64_t (*embed_backward_need)(uint64_t rows);
    /** Two launches. The table's gradient is added to; that of positions as `add` says; null: not wanted. */
    tess_status (*embed_backward)(ops *, const ops_rows *, const int32_t *ids, const void *dy, float scale,
                                  float *dtable, float *dposition, int32_t add, void *scratch);
    /** out[sample, t] = tokens[sample · stride + t], t below `time`: without `marks`, or -1 for one with `ignored`. */
    tess_status (*tokens)(ops *, const int32_t *tokens, uint64_t samples, uint64_t time, uint64_t stride,
                          int32_t ignored, int32_t marks, int32_t *out);
    /** out[sample, t] = t less the position of the last token with `begins` up to t; 0 without one. */
    tess_status (*places)(ops *, const int32_t *tokens, uint64_t samples, uint64_t time, uint64_t stride,
                          int32_t begins, int32_t *out);
    /** x = cap · tanh(x / cap) */
    tess_status (*cap)(ops *, float *x, uint64_t elems, float cap);
    /** The rows' losses and what is wanted beside them; dlogits too in the same launch where a row is short enough to
     * stay with its block, else by a second one. */
    tess_status (*loss)(ops *, const ops_row_loss *);
    /** dlogits from logits and stats. */
    tess_status (*loss_slopes)(ops *, const ops_row_loss *);
    /** The sum of the first `rows` losses, and how many of their labels are not -1; labels null: all. */
    tess_status (*loss_sum)(ops *, const void *losses, uint64_t rows, const int32_t *labels, const double *divisor,
                            ops_loss *out);
};
#endif
