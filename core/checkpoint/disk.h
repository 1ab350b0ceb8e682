/* SPDX-License-Identifier: BSD-3-Clause */
/* The table of file operations that checkpoints go through, so that a test can put a simulated disk behind it. */
#ifndef TESS_DISK_H
#define TESS_DISK_H
#include <stdint.h>

enum { TESS__DISK_BLOCK = 4096 }; /* of writes past the cache: memory, offset and bytes are multiples of it */
enum {
    TESS__DISK_READ = 1,
    TESS__DISK_CREATE, /* for writing; what is there is replaced */
    TESS__DISK_DIR     /* a directory: for sync and lock */
};
typedef void (*tess__disk_name_fn)(void *user, const char *name);

/* Every slot returns a negative errno when it fails. Offsets and sizes are in bytes. */
typedef struct {
    void *self;
    int (*open)(void *self, const char *path, int how); /* a handle, 0 or more */
    void (*close)(void *self, int file);
    int64_t (*read)(void *self, int file, void *into, uint64_t bytes, uint64_t offset); /* may be short; 0: the end */
    int64_t (*write)(void *self, int file, const void *data, uint64_t bytes, uint64_t offset); /* may be short */
    /** Whether writes of a file go past the cache of the operating system (on: 1); -EINVAL where it has no such. They
     * need a sync all the same: the disk has a cache too, and the file's size is not its data. */
    int (*direct)(void *self, int file, int on);
    int64_t (*size)(void *self, int file);
    int (*sync)(void *self, int file); /* of a file's data, or of a directory's names */
    int (*rename)(void *self, const char *from, const char *to);
    int (*remove)(void *self, const char *path); /* a file, or an empty directory */
    int (*make_dir)(void *self, const char *path);
    int (*list)(void *self, const char *path, tess__disk_name_fn, void *user); /* without . and .. */
    /** Takes the lock of an open directory, without waiting: -EWOULDBLOCK when another process has it. It ends with
     * the handle or with the process. */
    int (*lock)(void *self, int dir);
} tess__disk;

/** The operating system's. */
extern const tess__disk tess__disk_real;

/** All of it, in as many calls as it takes. 0 or a negative errno; a read past the end is -ENODATA. */
int tess__disk_read_all(const tess__disk *, int file, void *into, uint64_t bytes, uint64_t offset);
int tess__disk_write_all(const tess__disk *, int file, const void *data, uint64_t bytes, uint64_t offset);
/** Syncs a directory by its path. */
int tess__disk_sync_dir(const tess__disk *, const char *path);
#endif
