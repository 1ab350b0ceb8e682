/* SPDX-License-Identifier: BSD-3-Clause */
/* One writer's file of a checkpoint. Whole blocks go past the operating system's cache where the file system takes it:
 * then a write costs no copy, and the disk works while later data is summed. */
#ifndef TESS_DATA_WRITER_H
#define TESS_DATA_WRITER_H
#include "disk.h"
#include "manifest.h"

#include <limits.h>
#include <stdatomic.h>

typedef struct {
    const tess__disk *disk;
    char path[PATH_MAX], dir[PATH_MAX];
    int file, direct; /* direct: writes go past the cache */
    uint64_t at;      /* bytes given so far; the last `staged` of them are not written yet */
    char *stage;      /* for what does not lie in memory as it must for such a write */
    uint64_t staged;
    tess__sums sums;
    atomic_int *cancel; /* not null and not 0, from any thread: the next write fails */
} tess__data_writer;
/** The start of such a file, to its data; the caller frees *out. `path` is for messages. */
tess_status tess__data_header(const char *path, const tess__tensor *tensors, uint64_t n, char **out, size_t *bytes);
/** Creates the file and writes its header. `tensors` are arranged. */
tess_status tess__data_create(const tess__disk *, const char *step_dir, const char *name, const tess__tensor *tensors,
                              uint64_t n, tess__data_writer *out);
/** The data, in the tensors' order, in pieces of any size. Large ones that begin on a block of memory, as the first
 * data does in the file, are written without a copy. */
tess_status tess__data_write(tess__data_writer *, const void *data, uint64_t bytes);
/** Syncs and closes; out: its size and checksums, which the caller frees. A failed sync is not tried again. */
tess_status tess__data_finish(tess__data_writer *, tess__data_file *out);
void tess__data_drop(tess__data_writer *); /* closes; the leader's abandon removes the file */
#endif
