/* SPDX-License-Identifier: BSD-3-Clause */
/* A disk in memory behind the core's table of file operations. It crashes at the n-th operation that changes it; then
 * what was not synced is kept, lost or torn, as the test asks, and the disk is read as after a new start. */
#ifndef TEST_SIM_DISK_H
#define TEST_SIM_DISK_H
#include "core/checkpoint/disk.h"

typedef struct sim_disk sim_disk;
sim_disk *sim_disk_create(void);
void sim_disk_destroy(sim_disk *);
const tess__disk *sim_disk_table(sim_disk *);

/** After this many more changing operations everything fails (0: never). The last one still reaches the disk's cache.
 */
void sim_disk_crash_after(sim_disk *, int operations);
int sim_disk_operations(const sim_disk *); /* changing ones so far */
int sim_disk_unsynced(const sim_disk *);
/** Writes past the cache: as the name says, or each third is cut short within a block (0: the file system has none).
 * Those that are not whole blocks fail with EINVAL. */
typedef enum { SIM_NO_DIRECT, SIM_DIRECT, SIM_ODD_DIRECT, SIM_REFUSES_DIRECT } sim_direct;
void sim_disk_set_direct(sim_disk *, sim_direct);
int sim_disk_direct_writes(const sim_disk *); /* that reached the disk so far */
/** The k-th sync fails with EIO, and so does every later one of that file (0: none does). */
void sim_disk_fail_sync(sim_disk *, int k);

/* What becomes of the i-th unsynced operation (from 0). Torn: a write's first half. */
typedef enum { SIM_KEEP, SIM_DROP, SIM_TEAR } sim_fate;
typedef sim_fate (*sim_fate_fn)(void *user, int i);
/** A new disk as it is found after the crash. */
sim_disk *sim_disk_after(const sim_disk *, sim_fate_fn, void *user);
/** Flips one bit of a file; -1 when it is shorter or not there. */
int sim_disk_flip(sim_disk *, const char *path, uint64_t bit);
int sim_disk_truncate(sim_disk *, const char *path, uint64_t bytes);
int sim_disk_files(const sim_disk *); /* files, without directories */
#endif
