/* SPDX-License-Identifier: BSD-3-Clause */
/* The program's declarations: parameters, scopes and blocks, before any layout. */
#ifndef TESS_MODEL_H
#define TESS_MODEL_H
#include "base/name_index.h"
#include <tessera/plugin_helpers.h>

enum { TESS__MAX_DIMS = 8 };

typedef struct {
    char *name;
    uint32_t dtype, flags, compute_dtypes;
    int32_t ndim;
    int64_t shape[TESS__MAX_DIMS];
    uint64_t elems, tag;
    int64_t slice;   /* index in the stack, else 0 */
    int32_t scope;   /* its longest dotted prefix; set by tess__model_finish */
    int32_t tied_to; /* index of the parameter that holds the storage; its own when not an alias */
    int32_t optimizer_group;
    /* Set by the layout: */
    int32_t unit, group; /* -1 for buffers */
    uint64_t offset;     /* of the first element in the group's flat buffer, or in bytes among the buffers */
    uint64_t rows, cols, scratch_bytes; /* of its matrices, where the optimizer steps whole ones */
} tess__param;

typedef struct {
    char *name;
    int32_t block;             /* index, or -1 */
    int32_t n_params, *params; /* what entering it hands out, in declaration order, aliases included */
} tess__scope;

typedef struct {
    tess_block_options options; /* name owned by the scope, `also` by the block */
    int32_t scope;
} tess__block;

typedef struct {
    tess__param *params;
    tess__scope *scopes;
    tess__block *blocks;
    int32_t n_params, n_scopes, n_blocks;
    int32_t cap_params, cap_scopes, cap_blocks;
    tess__names param_index, scope_index; /* handles by name */
    uint64_t elems;                       /* declared so far */
    int finished;
} tess__model;

tess_status tess__model_add_scope(tess__model *, const char *name, int64_t stack, int32_t *first);
tess_status tess__model_add_param(tess__model *, const tess_param_options *, int32_t *first);
tess_status tess__model_add_block(tess__model *, const tess_block_options *, int32_t *scope);
tess_status tess__model_tie(tess__model *, const char *alias, const char *of);
/** Fails when a parameter lies in no scope. */
tess_status tess__model_check_homes(const tess__model *);
/** Assigns every parameter to its scope and builds each scope's list; after it nothing can be added. */
tess_status tess__model_finish(tess__model *);
void tess__model_free(tess__model *);
/** A hash of all names, shapes, dtypes, flags and ties: equal on ranks that declared the same. */
uint64_t tess__model_hash(const tess__model *);
/** All declarations as one list: its length, the hash of one, and one in words. */
int32_t tess__model_n_items(const tess__model *);
uint64_t tess__model_item_hash(const tess__model *, int32_t i);
void tess__model_item_text(const tess__model *, int32_t i, char *out, size_t n);
/** The handle of a name, or -1. */
int32_t tess__model_find_param(const tess__model *, const char *name);
#endif
