/* SPDX-License-Identifier: BSD-3-Clause */
/* The files that a run's frozen parameters were filled from. A checkpoint may name them by their checksums in place of
 * holding those parameters. */
#ifndef TESS_BASE_FILES_H
#define TESS_BASE_FILES_H
#include "disk.h"
#include "manifest.h"

typedef struct {
    tess__data_file *files; /* each with the checksum of all of it */
    uint64_t n;
} tess__base_files;
/** Reads all of them; `paths` ends with null. Out is empty in a build that computes no checksums. */
tess_status tess__base_files_read(const tess__disk *, const char *const *paths, tess__base_files *out);
/** TESS_E_DATA, naming the first file of the manifest that `mine` has not, or has with other values. */
tess_status tess__base_files_check(const char *path, const tess__manifest *, const tess__base_files *mine);
void tess__base_files_free(tess__base_files *);
#endif
