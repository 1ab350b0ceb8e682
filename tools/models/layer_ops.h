/* SPDX-License-Identifier: BSD-3-Clause */
/* The operators of a decoder in a device's memory, in as few launches as possible. ops.h has one operator per
 * formula; these fuse several.
 *
 *  - A factor is an operand of products: bf16 or fp16 if the table was made for it, otherwise fp32. All tensors are
 *    factors, parameters included. The exceptions are fp32 or wider: gradients of parameters, statistics, sums of
 *    exponentials and the loss.
 *  - Each call only enqueues, and is one launch unless its comment says otherwise.
 *  - Gradients are stored, or with `add` added to the old values. */
#ifndef TESS_MODELS_LAYER_OPS_H
#define TESS_MODELS_LAYER_OPS_H
#include "fp8.h"

typedef struct { /* y[rows, columns] = a[rows, depth] · b[depth, columns]; with `add`, y += that */
    int64_t rows, columns, depth;
    const void *a, *b;
    void *y;
    int64_t a_pitch, y_pitch; /* elements between rows as stored; 0: rows have no gaps */
    int32_t turn_a, turn_b;   /* 1: stored as the transpose */
    /* wide: y is fp32. The fields below exclude a_pitch, y_pitch, wide and add, except that bias may have y_pitch. */
    int32_t wide, add;
    const void *bias; /* null: none; added to each row */
    void *before;     /* null: not wanted; with gelu it gets GELU's input */
    /* If not null, the product is a gradient, and y gets it after the backward of the GELU that read this. */
    const void *through;
    void *again;  /* with `through`: gets that GELU's result again */
    int32_t gelu; /* y = GELU(product + bias) */
    float times;  /* factor of a product without the fields from `bias` on; 0: 1 */
    /* If not null, a and b are codes of fp8, [rows, depth] and [columns, depth] (turn_b), and the product is multiplied
     * by both. Sides are multiples of 16. They exclude a_pitch and times, and allow bias with y_pitch, wide and add. */
    const float *a_inverse, *b_inverse;
    int32_t a_e5m2;                 /* a is of e5m2; else it is, as b, of e4m3 */
    fp8_found *found, *found_again; /* with them: of y behind GELU or its backward, and of `again`; null: not wanted */
} ops_factors;

enum { OPS_FP8_MOST = 3 };
typedef struct { /* codes of n matrices of `width` columns, which lie behind each other and have one scale (fp8.h) */
    const void *from[OPS_FP8_MOST];
    uint64_t rows[OPS_FP8_MOST], width; /* multiples of 16 */
    int32_t n, e5m2;                    /* n 0: no factor */
    void *to, *turned;                  /* [all rows, width] and [width, all rows]; null: not wanted */
    float *inverse;                     /* gets 1 / the scale */
    const fp8_found *found;             /* of its one matrix; null or empty: it is read for that */
} ops_fp8_factor;

typedef struct { /* rows of `width`; `time` rows are a sample */
    uint64_t rows, width, time;
} ops_rows;

typedef struct { /* sum = x + dropout(add + add_bias); next = sum + next_bias; y = layernorm(sum) */
    ops_rows of;
    const void *x, *add, *add_bias, *next_bias, *w, *b; /* add null: sum is x and is not written */
    void *sum, *next, *y;                               /* next, y null: not wanted; a null bias: none */
    float *stats;
    const ops_dropout *drop; /* null: none */
    double eps;              /* 0: 1e-5 */
    int32_t about_zero;      /* Llama's normalisation by the root of the mean square */
    int32_t one_more;        /* gains are 1 + w, as Gemma's are */
    fp8_found *found;        /* of y; null: not wanted */
} ops_norm;

typedef struct { /* dx = add + the gradient of x; masked: dx after dropout's backward; normal: y, computed again */
    ops_rows of;
    const void *x, *w, *b, *dy, *add; /* add null: none */
    const float *stats;
    void *dx, *masked, *normal; /* masked, normal null: not wanted */
    const ops_dropout *drop;    /* dropout of `masked` */
    int32_t about_zero, one_more;
    fp8_found *found, *found_normal; /* of masked, or without it of dx, and of normal; null: not wanted */
} ops_norm_backward;

typedef struct { /* in place: normalises about zero each head of queries and keys, with which a row begins */
    ops_rows of; /* width: elements from row to row */
    void *x;
    const void *query_w, *key_w;
    void *kept;   /* [rows, heads + kv_heads, size]: the values before normalisation */
    float *stats; /* first each query head of all rows, then each key head: 0 and 1/σ */
    int32_t heads, kv_heads, size, one_more;
    double eps;
} ops_head_norm;

typedef struct { /* in place: turns pair p of the heads with which a row begins by its position times turns[p] */
    ops_rows of; /* width: elements from row to row */
    void *x;
    uint64_t first; /* position of a sample's first row */
    /* pairs: half of a head's elements, at most OPS_ROTATION_MOST; back: turns the other way. */
    int32_t heads, pairs, back;
    const double *turns; /* the unit is a turn of a circle; the call reads them before it returns */
    float scale;         /* factor of the turned elements; 0: 1 */
    /* Cosine and sine of each pair for each position below `time`, or null. It is written if `first` is 0.
     * attention_backward reads it and writes nothing else. */
    float *table;
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
typedef struct { /* db[c] = sum of dy's column c; dw[c] = sum of dy's column c times the normalised x; null: not wanted
                  */
    const void *x, *dy;
    const float *stats;
    float *dw, *db;
    uint64_t width;
    /* Elements between groups of `group` rows (0: 1) of dy and of x; 0: no gaps. */
    uint64_t pitch, x_pitch, group;
} ops_columns;

typedef struct {  /* a chunk of rows of logits, `pitch` apart; the first `count` rows count, unless their label is -1 */
    void *logits; /* factors */
    const int32_t *labels;
    void *losses; /* the losses of all rows (cross_entropy_need); the chunk's start at `first` */
    uint64_t first, rows, classes, count, pitch; /* pitch: a multiple of 8 */
    int32_t
        slopes;  /* 1: logits are replaced by their gradient, times `mean` and `scale`; rows that do not count get 0 */
    float mean;  /* 1 / the rows of all chunks that count */
    float scale; /* of the loss; 0: 1 */
    float cap;   /* 0: none; `logits` and their gradients are those before the cap */
    /* In tensor memory, or null. If it is not 0, its inverse replaces `mean`. */
    const double *divisor;
} ops_row_loss; /* rows with a label of -1 have neither loss nor gradient */

struct ops_layer_table {
    uint64_t (*product_need)(int64_t rows, int64_t columns, int64_t depth); /* bytes of workspace; [pure] */
    /** One launch. Another follows with `through`, and if the library of products does not support bias or GELU. Sides
     * that are no multiples of eight may take several. */
    tess_status (*product)(ops *, const ops_factors *, void *workspace);
    uint64_t (*fp8_need)(void); /* bytes of scratch of the next; [pure] */
    /** [pure] Bytes of a tensor's fp8_found. */
    uint64_t (*fp8_found_need)(uint64_t rows, uint64_t width);
    /** Makes codes of one factor or two, each of which is read once for both orders. Two launches, or one if there is
     * nothing to seek. A table for bf16 has it. */
    tess_status (*fp8_codes)(ops *, const ops_fp8_factor both[2], void *scratch);
    tess_status (*norm)(ops *, const ops_norm *);
    tess_status (*norm_backward)(ops *, const ops_norm_backward *);
    /** y = dropout(x) and *out = y; at rate 0 nothing is enqueued and *out = x. */
    tess_status (*mask)(ops *, const ops_rows *, const ops_dropout *, const void *x, void *y, const void **out);
    /** y = GELU(x); x may be y. */
    tess_status (*gelu)(ops *, const void *x, void *y, uint64_t elems);
    /** Writes dx, which may be dy, and y again. */
    tess_status (*gelu_backward)(ops *, const void *x, const void *dy, void *dx, void *y, uint64_t elems);
    /** Writes a frozen matrix, or rows of it, as factors. */
    tess_status (*widen_stored)(ops *, const ops_stored *);
    /* [pure] Bytes of scratch; sums: number of all columns of dw and db. */
    uint64_t (*columns_need)(uint64_t rows, uint64_t sums);
    /** Computes at most OPS_COLUMNS_MOST jobs over the same rows. */
    tess_status (*columns)(ops *, const ops_columns *, int32_t n, uint64_t rows, int32_t add, void *scratch);
    /** Computes both over the same rows; the sums must not read what norm_backward writes. It needs two launches if
     * a row is too long for a block to keep, or does not consist of whole vectors. */
    tess_status (*norm_backward_columns)(ops *, const ops_norm_backward *, const ops_columns *, int32_t n, int32_t add,
                                         void *scratch);
    tess_status (*rotate)(ops *, const ops_rotation *);
    tess_status (*head_norm)(ops *, const ops_head_norm *);
    /** x: gradients, in place. Three launches. A null gradient of a gain is not computed. Scratch: columns_need for
     * the number of all rows' heads, and 2 · size. */
    tess_status (*head_norm_backward)(ops *, const ops_head_norm *, float *query_dw, float *key_dw, int32_t add,
                                      void *scratch);
    /** y[rows, width] = the SiLU, or with `gelu` the GELU, of a row's first half, times its second half. found null:
     * not wanted */
    tess_status (*swiglu)(ops *, const void *x, void *y, uint64_t rows, uint64_t width, int32_t gelu, fp8_found *found);
    /** Computes dx, and y again, which may be dy. found: of dx; found_again: of y */
    tess_status (*swiglu_backward)(ops *, const void *x, const void *dy, void *dx, void *y, uint64_t rows,
                                   uint64_t width, int32_t gelu, fp8_found *found, fp8_found *found_again);
    /** Returns TESS_E_UNSUPPORTED if what was asked to compute attention cannot compute this shape. */
    tess_status (*attention_check)(const ops *, const ops_attention_shape *);
    void (*attention_need)(const ops *, const ops_attention_shape *, ops_scratch *need);
    /** In 16 bits with heads of at most 128 elements and without `packs` forward and backward are one launch each.
     * Otherwise they are products by blocks of queries. If `back` is not null it turns dqkv back: in the same launch if
     * it has a table, otherwise in another. */
    tess_status (*attention)(ops *, const ops_attention_shape *, const void *qkv, void *y, float *lse, void *scratch);
    tess_status (*attention_backward)(ops *, const ops_attention_shape *, const void *qkv, const void *y,
                                      const float *lse, const void *dy, void *dqkv, const ops_rotation *back,
                                      void *scratch);
    /** Returns the bytes of the table with which attention_backward turns its gradients as it writes them; 0: it
     * takes no table. */
    uint64_t (*rotation_need)(const ops *, const ops_attention_shape *);
    /** ids null: row r reads the table's row r; places null: row r reads row (r mod time) of position; position null:
     * none; scale: factor of the table's rows, 0: 1 */
    tess_status (*embed)(ops *, const ops_rows *, const int32_t *ids, const void *table, const int32_t *places,
                         const void *position, float scale, const ops_dropout *, void *y);
    uint64_t (*embed_backward_need)(uint64_t rows);
    /** Two launches. The table's gradient is added to. The gradient of positions is stored or added, as `add` says.
     * Null: not wanted. */
    tess_status (*embed_backward)(ops *, const ops_rows *, const int32_t *ids, const void *dy, float scale,
                                  float *dtable, float *dposition, int32_t add, void *scratch);
    /** out[sample, t] = tokens[sample · stride + t] for t below `time`, without the bits `marks`; -1 if it has the
     * bit `ignored`. */
    tess_status (*tokens)(ops *, const int32_t *tokens, uint64_t samples, uint64_t time, uint64_t stride,
                          int32_t ignored, int32_t marks, int32_t *out);
    /** out[sample, t] = t less the position of the last token with `begins` up to t; 0 without one. */
    tess_status (*places)(ops *, const int32_t *tokens, uint64_t samples, uint64_t time, uint64_t stride,
                          int32_t begins, int32_t *out);
    /** x = cap · tanh(x / cap) */
    tess_status (*cap)(ops *, float *x, uint64_t elems, float cap);
    /** Computes the rows' losses, and with `slopes` the gradient of the logits in their place. */
    tess_status (*loss)(ops *, const ops_row_loss *);
    /** Sums the first `rows` losses, and counts the labels that are not -1; labels null: all count. */
    tess_status (*loss_sum)(ops *, const void *losses, uint64_t rows, const int32_t *labels, const double *divisor,
                            ops_loss *out);
};
#endif
