/* SPDX-License-Identifier: BSD-3-Clause */
/* The operators of decoders on a device, built on those of layer_ops.h. All tensors between them are bf16 if the
 * model is. decoder.h describes the operators, decoder_walk.c calls them. Each layer is one block. */
#ifndef TESS_MODELS_DECODER_DEVICE_H
#define TESS_MODELS_DECODER_DEVICE_H
#include "decoder.h"
#include "tools/models/layer_ops.h"

typedef struct {
    decoder d; /* first: sizes, places of parameters, layers */
    const ops_layer_table *t;
    ops_attention_shape attention;
    ops_rows rows;
    uint64_t row_bytes, stats_bytes, ids_bytes;
    uint64_t columns_bytes; /* scratch of a layer's sums over columns */
    ops_scratch inner;      /* the most that an operator of a layer needs, and then two rooms of found_bytes */
    uint64_t found_bytes;   /* of a fp8_found; 0: products are not in fp8 */
    double eps;             /* eps of normalisations */
    /* With rotary positions: turns per position for each pair of a head's elements. */
    double *turns[DECODER_SIGHTS];
    uint64_t pitch;       /* elements of a row of logits: whole vectors */
    char *past;           /* a sequence's queries, keys and values, layer after layer; null: no sequence is generated */
    uint64_t layer_bytes; /* bytes of one layer in `past` */
} device_decoder;

static inline device_decoder *device_of(const model *m) {
    return m->own;
}

static inline uint64_t device_most(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}
static inline int device_has_dropout(const model *m, const tess_block_call *call) {
    return m->options.dropout > 0 && call->pass & TESS_PASS_TRAIN;
}

/* Returns the number of elements in a row before the activation. */
static inline int64_t device_feed_width(const decoder *d) {
    return (1 + d->gated) * d->hidden;
}

/* ---- device_lora.c: adapters, and matrices that are stored in another dtype than products read ----------- */
/** Returns the bytes at the start of a product's scratch for a widened matrix and an adapter's rows; 0: none. */
uint64_t device_lora_bytes(const decoder *);
/** Returns the library's workspace, which follows them. */
void *device_workspace(const decoder_chunk *);
static inline int device_adapts(const decoder *d, int place) {
    return d->m->options.lora.rank && d->adapter[place] >= 0;
}
/** Widens rows of a matrix that is stored as `kind`: the first ones, or those with `ids`. */
tess_status device_widen(const decoder *, uint32_t kind, const void *from, const int32_t *ids, uint64_t rows,
                         uint64_t width, void *out);
/** Gives the matrix at `place` as the next product reads it; a later one may overwrite it. */
tess_status device_matrix(const decoder_chunk *, int place, int64_t outputs, int64_t inputs, const void **out);
typedef struct { /* a product of the layer; x[rows, inputs] and y[rows, outputs] or their gradients, y's rows `pitch`
                    apart */
    int place;
    int64_t rows, inputs, outputs, pitch;
    const void *x, *y;
} device_adapted;
/** y += the result of the adapter at `place` for x. Without an adapter this and the next two do nothing. */
tess_status device_adapt(const decoder_chunk *, const device_adapted *);
/** Adds the adapter's part to dx. */
tess_status device_adapt_input(const decoder_chunk *, const device_adapted *);
/** Computes the gradients of the adapter's parameters. */
tess_status device_adapt_weights(const decoder_chunk *, const device_adapted *);

/* ---- device_beside.c, device_fp8.c: products of a layer ------------------------------------------- */
enum { DEVICE_BESIDE = 3 };
typedef struct { /* products of the same rows with several matrices; a row of the result holds their results in this
                    order */
    int32_t n, place[DEVICE_BESIDE];
    int64_t inputs, width[DEVICE_BESIDE], all;
    int32_t bias[DEVICE_BESIDE]; /* indices of parameters */
} device_beside;
/** Counts adjacent matrices, whose elements of `elem` bytes lie at `at`, as one. They are adjacent if they lie in one
 * unit without gaps. */
device_beside device_as_few(const decoder *, const device_beside *, const void *const *at, uint64_t elem);
/** Returns whether the biases, if any, are adjacent and so count as one vector. */
int device_is_one_bias(const decoder_chunk *, const device_beside *);
/** Returns whether this call does the product and its backward in fp8. */
int device_in_fp8(const decoder_chunk *, const device_beside *);
/** [pure] Returns the scratch of such products before the library's workspace; 0: they are not in fp8. */
uint64_t device_fp8_bytes(const decoder *, int place, int64_t inputs, int64_t outputs);
/** Says where the kernel that writes a factor of these products may leave its largest magnitudes: nowhere if they are
 * not in fp8. `which` of two rooms, 0 or 1. They lie behind all other scratch, so that others may use that meanwhile.
 */
fp8_found device_found(const decoder_chunk *, const device_beside *, int which, int backward);
/** is_one: biases, if any, are adjacent. found: of x */
tess_status device_product_fp8(const decoder_chunk *, const device_beside *, int is_one, const void *x, void *y,
                               const ops_factors *with, const fp8_found *found);
/** found: of dy. Also makes what the next needs of it. Between the two the first `columns_bytes` of scratch may be
 * used. */
tess_status device_input_gradient_fp8(const decoder_chunk *, const device_beside *, const void *dy, void *dx,
                                      const ops_factors *with, const fp8_found *found);
tess_status device_weight_gradient_fp8(const decoder_chunk *, const device_beside *, const void *x,
                                       const fp8_found *found); /* of x */

/* ---- device_ends.c: the first block and the last ----------------------------------------------------- */
void device_measure_embed(const decoder *, model_block *);
void device_measure_head(decoder *, model_block *);

/* ---- device.c ----------------------------------------------------------------------------------------- */
tess_status device_create(model *);
void device_destroy(model *);

/** Writes the rows' places in their documents into `out`; *places is null if the batch is not packed. */
tess_status device_places(const model *, const tess_block_call *, int32_t *out, const int32_t **places);

/* ---- device_sequence.c: a pass over one position, if the batch asks for one ----------------------------- */
tess_status device_sequence_begin(model *, uint64_t *bytes); /* as model_sequence_begin */
void device_sequence_end(model *);
/** Returns whether this call computes one position of a sequence instead of a whole batch. */
int device_one_position(const model *, const tess_block_call *);
/** Returns the rows that a forward computes. */
ops_rows device_rows_of(const model *, const tess_block_call *);
/** Returns the position of the first of them. */
uint64_t device_first_position(const model *, const tess_block_call *);
typedef struct { /* the arguments of attention */
    ops_attention_shape shape;
    void *all, *rows; /* all: queries, keys and values of all positions; rows: of this call's */
} device_view;
/** qkv: the place that a whole batch uses. */
device_view device_view_of(const decoder_layer *, const tess_block_call *, void *qkv);
#endif
