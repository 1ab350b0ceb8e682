/* SPDX-License-Identifier: BSD-3-Clause */
/* manifest.json: what a checkpoint holds, of which files, and their checksums. Its last member is the checksum of all
 * that stands before it. */
#ifndef TESS_MANIFEST_H
#define TESS_MANIFEST_H
#include "base/loss_scale.h"
#include "checksum.h"
#include "lineage.h"
#include "safetensors.h"

enum { TESS__MANIFEST_VERSION = 4, TESS__CHUNK_BYTES = 4 << 20, TESS__FILE_NAME = 64 };

typedef struct {
    char name[TESS__FILE_NAME]; /* within the checkpoint's directory */
    uint64_t bytes, n_sums;
    uint8_t (*sums)[TESS__SUM_BYTES]; /* of its chunks */
} tess__data_file;

typedef struct {
    uint64_t step, chunk_bytes, generation;
    uint64_t order; /* of all saves in its directory; 0: of version 1, which has no lineage either */
    tess__lineage lineage;
    uint64_t ranks, microbatches; /* that trained; of one step over all ranks */
    int has_sums;                 /* 0: written by a build without xxHash */
    int not_finite;               /* a parameter, a buffer or a state is NaN or infinite */
    int has_score;                /* one without it and without a base is of version 2, which older tesseras read */
    double score;                 /* lowest is best; finite */
    tess__loss_scale loss_scale;  /* one without is of version 3 or 2 */
    char writer[32], optimizer[32], strategy[64], precision[64];
    uint64_t n_states;
    uint64_t n_files, n_params;
    tess__data_file *files;
    tess__tensor *params; /* name, dtype, shape of each whole parameter and buffer, in declaration order */
    uint8_t *is_buffer;   /* of each */
    uint8_t *in_base;     /* of each: it is frozen and in no file of this checkpoint, but in `base`; null: none is */
    uint64_t n_base;
    tess__data_file *base; /* files that frozen parameters are made of, each with the checksum of all of it; 0: none */
} tess__manifest;

static inline int tess__manifest_in_base(const tess__manifest *m, uint64_t param) {
    return m->in_base && m->in_base[param];
}
/** Text to write; the caller frees *out. */
tess_status tess__manifest_write(const tess__manifest *, const char *path, char **out, size_t *bytes);
/** TESS_E_DATA, naming `path` and the offset, for what is torn, foreign or newer. */
tess_status tess__manifest_read(const char *path, const char *text, uint64_t bytes, tess__manifest *out);
/** Whether it begins as one of a later version, of which nothing else is known. */
int tess__manifest_is_newer(const char *text, uint64_t bytes);
void tess__manifest_free(tess__manifest *);
#endif
