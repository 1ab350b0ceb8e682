/* SPDX-License-Identifier: BSD-3-Clause */
/* Writes token files in llm.c's format, which `tessera train` reads. A header of 256 words (magic, version, number of
 * tokens) precedes the tokens. They have 16 bits if the vocabulary has at most 65,536, else 32. */
#ifndef TOOL_TOKEN_FILE_H
#define TOOL_TOKEN_FILE_H
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <tessera/tessera.h>

typedef struct {
    const char *folder, *part; /* "train", "val" */
    int32_t width;             /* bytes of one token */
    uint64_t most;             /* tokens in one file */
    FILE *file;                /* file being written, or null */
    char path[PATH_MAX];
    uint64_t in_file, total;
    int32_t files;
} token_files;

/** Writes FOLDER/PART_000000.bin and so on. Returns TESS_E_DATA if the first exists, because it overwrites no file. */
tess_status token_files_begin(token_files *, const char *folder, const char *part, int32_t vocabulary);
tess_status token_files_add(token_files *, const int32_t *ids, size_t n);
/** Completes the last file. A file gets its name only when it is complete. */
tess_status token_files_end(token_files *);
/** Removes the unfinished file after a failure. */
void token_files_drop(token_files *);
#endif
