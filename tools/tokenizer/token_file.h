/* SPDX-License-Identifier: BSD-3-Clause */
/* Token files as llm.c has them and `tessera train` reads them: 256 words of header (magic, version, tokens), then the
 * tokens, of 16 bits where the vocabulary has at most 65,536, else of 32. */
#ifndef TOOL_TOKEN_FILE_H
#define TOOL_TOKEN_FILE_H
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <tessera/tessera.h>

typedef struct {
    const char *folder, *part; /* "train", "val" */
    int32_t width;             /* bytes of a token */
    uint64_t most;             /* tokens in one file */
    FILE *file;                /* the one in work; null: none */
    char path[PATH_MAX];
    uint64_t in_file, total;
    int32_t files;
} token_files;

/** The files are FOLDER/PART_000000.bin and so on. TESS_E_DATA when the first exists; nothing is written over. */
tess_status token_files_begin(token_files *, const char *folder, const char *part, int32_t vocabulary);
tess_status token_files_add(token_files *, const int32_t *ids, size_t n);
/** A file gets its name only when it is complete. */
tess_status token_files_end(token_files *);
/** Removes the unfinished file after a failure. */
void token_files_drop(token_files *);
#endif
