/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads a checkpoint from disk. Every byte that it hands out was compared with its chunk's checksum. */
#ifndef TESS_SAVED_H
#define TESS_SAVED_H
#include "disk.h"
#include "manifest.h"

#include <limits.h>

typedef struct {
    const tess__disk *disk;
    char path[PATH_MAX];
    tess__manifest manifest;
} tess__saved;
/** Reads the manifest and compares the files' sizes with it. TESS_E_DATA when the checkpoint is not whole. */
tess_status tess__saved_open(const tess__disk *, const char *path, tess__saved *out);
void tess__saved_close(tess__saved *);
/** Reads the manifest alone. TESS_E_DATA also when the folder has the name of another step. */
tess_status tess__saved_manifest(const tess__disk *, const char *path, tess__manifest *out);
/** Whether a later version of the format wrote it, or its folder has the name of another step. */
int tess__saved_is_foreign(const tess__disk *, const char *path);
/** The step of "step-000020"; 0 for another name. */
int tess__step_of(const char *name, uint64_t *step);

typedef struct tess__saved_file tess__saved_file;
/** File i of the manifest. */
tess_status tess__saved_file_open(const tess__saved *, uint64_t i, tess__saved_file **out);
void tess__saved_file_close(tess__saved_file *);                                  /* null is fine */
const tess__tensor *tess__saved_file_list(const tess__saved_file *, uint64_t *n); /* in the order of their data */
/** Elements of one of its tensors as they are stored. */
tess_status tess__saved_file_read(tess__saved_file *, const tess__tensor *, uint64_t first, uint64_t elems, void *out);
/** Reads all of it. */
tess_status tess__saved_file_verify(tess__saved_file *);

/* ---- names of the pieces: "param/h.0.weight@4096", "state1/…", "state1.exp_avg:256/…", "buffer/…",
 * "program/rank-00002@0" ---------- */
enum { TESS__PIECE_PARAM = 1, TESS__PIECE_BUFFER, TESS__PIECE_PROGRAM, TESS__PIECE_STATE0 /* + k */ };
typedef struct {
    int kind;
    uint64_t first;               /* element of the parameter; of a state with one value for `every` elements, value */
    tess_state state;             /* of an optimizer plugin: name and `every`; else "", 1. No dtype */
    char name[TESS__TENSOR_NAME]; /* of the parameter, or of the program's bytes: "common", "rank-00002" */
} tess__piece_name;
/** TESS_E_INVALID: the name is too long for the format's field. */
tess_status tess__piece_name_write(const tess__piece_name *, char out[TESS__TENSOR_NAME]);
/** 0, or -1 for the name of something else. */
int tess__piece_name_read(const char *text, tess__piece_name *out);
#endif
