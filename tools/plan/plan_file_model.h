/* SPDX-License-Identifier: BSD-3-Clause */
/* A model as a file describes it, before it is declared; shared by the files of plan_file.h. plan_file_model.c holds
 * the lists, plan_file_tensors.c reads tensors' headers, plan_file_names.c finds blocks in names, plan_file_config.c
 * has the formula for decoders, plan_file_json.c reads MODEL.json. */
#ifndef TOOL_PLAN_FILE_MODEL_H
#define TOOL_PLAN_FILE_MODEL_H
#include <tessera/tessera.h>

#include "tools/support/json_file.h"
#include "tools/support/safetensors.h"

enum { PLAN_MOST_PARAMS = 1 << 20, PLAN_MOST_BLOCKS = 1 << 14 };
#define PLAN_MOST_BYTES (UINT64_C(1) << 60) /* limit of all activations together, so that no sum overflows */

typedef struct {
    char *name;
    uint32_t dtype, flags, compute_dtypes;
    int32_t ndim;
    int64_t shape[TOOL_TENSOR_DIMS], stack;
} plan_param;
typedef struct {
    char *alias, *of;
} plan_tie;
enum { PLAN_BEFORE, PLAN_LAYER, PLAN_AFTER, PLAN_HEAD }; /* a block's position in the model, derived from names */
typedef struct {
    char *name;
    int64_t stack;
    uint64_t output_bytes, saved_bytes, forward_scratch_bytes, backward_scratch_bytes;
    int32_t keep, place; /* place: PLAN_BEFORE, …, of blocks found in names */
} plan_block;

typedef struct {
    plan_param *params;
    plan_tie *ties;
    plan_block *blocks; /* in forward order */
    int32_t n_params, n_ties, n_blocks, cap_params, cap_ties, cap_blocks;
    int32_t all_params, all_blocks; /* numbers that count every copy of a stack */
    uint64_t input_bytes;
    int has_activations; /* declared as blocks; else as scopes, which have none */
} plan_model;

/** Each copies its names. Beyond the limits above it fails with TESS_E_DATA and names `path`. Call measure after the
 * last block. */
tess_status plan_model_param(plan_model *, const char *path, const plan_param *);
tess_status plan_model_tie(plan_model *, const char *path, const char *alias, const char *of);
tess_status plan_model_block(plan_model *, const char *path, const plan_block *);
/** Bounds the blocks' bytes and sets has_activations. */
tess_status plan_model_measure(plan_model *, const char *path);
void plan_model_free(plan_model *);

/** Adds the tensors that one file's header lists. */
tess_status plan_tensors_file(plan_model *, const char *path);
/** Adds what DIR/model.safetensors.index.json lists. `path` is the index. */
tess_status plan_tensors_index(plan_model *, const char *path);
/** Finds the blocks in the parameters' names: layers by their number, other modules before or behind them. */
tess_status plan_names_blocks(plan_model *, const char *path);
tess_status plan_json_read(plan_model *, const char *path, int *estimate);

typedef struct { /* a decoder, from config.json */
    uint64_t hidden, layers, heads, kv_heads, head_dim, intermediate, vocabulary, positions;
    uint64_t experts; /* feed-forward experts that each token uses */
    uint64_t batch, context;
    int gated, layer_norm, says_tied; /* says_tied: 1: the head is the embedding; 0: it is not; -1: not stated */
    char reason[96];                  /* why there is no formula; "" when there is one */
} plan_config;
/** `m`: with its parameters and blocks. A config.json that is no decoder's is no error, but has a `reason`. */
tess_status plan_config_read(const char *path, const plan_model *m, plan_config *out);
/** Ties the head to the embedding if config.json says so or the head is missing. */
tess_status plan_config_tie(plan_model *, const char *path, const plan_config *);
/** The formula of docs/model-json.md: sets the blocks' bytes. `width`: bytes of a computed element. */
tess_status plan_config_activations(plan_model *, const char *path, const plan_config *, uint64_t width);
#endif
