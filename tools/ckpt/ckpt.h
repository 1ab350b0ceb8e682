/* SPDX-License-Identifier: BSD-3-Clause */
/* `tessera ckpt`: what its files share. ckpt.c parses, ckpt_look.c lists, shows, verifies and prunes, ckpt_pieces.c
 * reads values wherever their pieces lie, ckpt_diff.c compares, ckpt_write.c makes checkpoints and folders of others.
 */
#ifndef TOOL_CKPT_H
#define TOOL_CKPT_H
#include "core/checkpoint/saved.h"
#include "core/checkpoint/store.h"
#include "tools/support/json_out.h"

enum { CKPT_MOST_PATHS = 64 };
typedef struct {
    const char *verb, *paths[CKPT_MOST_PATHS];
    size_t n;
    uint64_t keep, to, max_file_bytes; /* 0: not given */
    uint64_t best;                     /* list, show: the step that is the best of its directory; UINT64_MAX: none */
    uint32_t dtype;                    /* of an export */
    int quiet, json_on, plan;          /* plan: reshard only reports what it would write */
    json_out json;
} ckpt_arguments;

/* Each returns the exit code, and prints one line if it is not 0. */
int ckpt_list(ckpt_arguments *);
int ckpt_show(ckpt_arguments *);
int ckpt_verify(ckpt_arguments *);
int ckpt_prune(ckpt_arguments *);
int ckpt_diff(ckpt_arguments *);
int ckpt_reshard(ckpt_arguments *);
int ckpt_export(ckpt_arguments *);
int ckpt_import(ckpt_arguments *);

/** Shows progress on a terminal in a line that it overwrites; done == total ends the line. */
void ckpt_progress(const ckpt_arguments *, const char *what, uint64_t done, uint64_t total);
/** PATH when it is a checkpoint, else the newest in it, of the lineage written last, of which the manifest reads. */
tess_status ckpt_find(const char *path, char out[PATH_MAX]);
/** -1 when a line of JSON could not be written. */
int ckpt_json_end(ckpt_arguments *);

/* ---- ckpt_pieces.c --------------------------------------------------------------------------------- */
enum { CKPT_COMMON = -1, CKPT_OWN = -2 }; /* the program's bytes: of all ranks, of one */
typedef struct {
    int kind;      /* TESS__PIECE_… */
    int32_t param; /* in the manifest; or CKPT_… */
    uint64_t first, elems, file, tensor;
    tess_state state; /* of a state: how it is kept */
} ckpt_piece;
typedef struct {
    tess__saved saved;
    ckpt_piece *pieces; /* by parameter, kind and first element */
    int named;          /* some states have names: a plugin's */
    uint64_t n, capacity;
    tess__saved_file *open; /* the file that was read last */
    uint64_t open_index;
} ckpt_source;
/** Checks that the pieces of each parameter lie end to end. */
tess_status ckpt_source_open(const char *path, ckpt_source *out);
/** The same of what ckpt_find makes of the path. */
tess_status ckpt_source_find(const char *path, ckpt_source *out);
void ckpt_source_close(ckpt_source *);
int ckpt_source_has(const ckpt_source *, int32_t param, int kind);
/** Values as they are stored; parameter and kind are there. `tensor`: of its pieces, for the dtype. */
tess_status ckpt_source_read(ckpt_source *, int32_t param, int kind, uint64_t first, uint64_t elems, void *out);
/** Returns the storage format of a parameter's state; null: it has no state of this kind. */
const tess_state *ckpt_source_state(const ckpt_source *, int32_t param, int kind);
/** Returns the number of values of one kind that a parameter has. */
uint64_t ckpt_source_elems(const ckpt_source *, int32_t param, int kind);
uint32_t ckpt_source_dtype(const ckpt_source *, int32_t param, int kind);
uint64_t ckpt_source_common_bytes(const ckpt_source *);
/** VALUE of the word "KEY=VALUE" in the text that `tessera train` leaves in a checkpoint; null: none. The caller frees
 * it. */
tess_status ckpt_source_word(ckpt_source *, const char *key, char **out);
#endif
