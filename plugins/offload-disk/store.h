/* SPDX-License-Identifier: BSD-3-Clause */
/* A rank's store: one file without a name, sums of what is in it, and who reads and writes it in blocks. */
#ifndef DISK_STORE_H
#define DISK_STORE_H
#include "plugin_base.h"

/* ALIGN: of places in the file and in memory, as O_DIRECT wants it. BLOCK: what one read or write moves. BOUNCE: memory
 * for requests that lie anywhere. */
enum { DISK_ALIGN = 4096, DISK_BLOCK = 1 << 20, DISK_BOUNCE = 1 << 18 };

enum { DISK_IO_AUTO, DISK_IO_URING, DISK_IO_THREADS };

typedef struct {
    const tess_host *host;
    const char *dir;  /* null: none was given */
    uint32_t regions; /* bits (1 << TESS_REGION_…) of what rests there */
    int verify;
    uint32_t threads, depth; /* depth: blocks under way at once, with io_uring */
    int io;                  /* DISK_IO_… */
    uint64_t fraction;       /* of units, in billionths */
} disk_settings;

typedef struct {  /* sums.c: what each piece of ALIGN bytes was when it was written; 0: it never was, and is zero */
    uint32_t *of; /* null: nothing is verified */
    uint64_t n;
} disk_sums;

typedef struct { /* file.c */
    int fd;
    int32_t rank; /* for messages, as dir */
    const char *dir;
} disk_file;

typedef struct { /* a part of a request, or of a bounce */
    uint32_t op;
    uint64_t at, bytes;
    char *memory;
    tess_request *request;
} disk_block;

/** Makes a file of `bytes` bytes in `dir`, all of them taken, which no folder lists and no kill leaves behind. Past the
 * page cache where the file system can. *obtained: its size, as the system says it. */
tess_status disk_file_open(disk_file *, const disk_settings *, const tess_store_config *, uint64_t *obtained,
                           tess_error *);
void disk_file_close(disk_file *);
/** Reads or writes all of a block. TESS_E_DATA names the folder, the rank, the offset and the system's error. */
tess_status disk_file_move(const disk_file *, const disk_block *, tess_error *);
/** The same failure, of whoever reads and writes by other means; error_number 0: nothing is there any more. */
tess_status disk_file_failed(const disk_file *, uint32_t op, uint64_t at, int error_number, tess_error *);

void disk_sums_note(const disk_sums *, const disk_block *); /* before it is written */
/** Compares what was read. TESS_E_DATA names the offset of the first piece that is another. */
tess_status disk_sums_check(const disk_sums *, const disk_file *, const disk_block *, tess_error *);
uint64_t disk_sums_bytes(uint64_t stored_bytes); /* memory for them */

/** The slots of tess_offload_ops. */
tess_status disk_store_open(const disk_settings *, const tess_store_config *, tess_store **out, uint64_t *obtained,
                            tess_error *);
tess_status disk_store_post(tess_store *, const tess_store_io *, tess_request **out, tess_error *);
tess_status disk_store_wait(tess_store *, tess_request *, tess_error *);
void disk_store_close(tess_store *);
tess_status disk_store_register(tess_store *, void *memory, uint64_t bytes, tess_error *);
void disk_store_deregister(tess_store *);
#endif
