/* SPDX-License-Identifier: BSD-3-Clause */
#include "disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIECE_BYTES = 8 << 20 }; /* of one write: large, and still cancelled soon */

static int real_open(void *self, const char *path, int how) {
    static const int flags[] = { 0, O_RDONLY | O_NONBLOCK, O_WRONLY | O_CREAT | O_TRUNC, O_RDONLY | O_DIRECTORY };
    struct stat st;
    (void)self;
    int fd = open(path, flags[how] | O_CLOEXEC, 0666);
    if (fd < 0)
        return -errno;
    if (how != TESS__DISK_DIR && (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))) {
        close(fd);
        return S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL;
    }
    return fd;
}

static void real_close(void *self, int file) {
    (void)self;
    close(file);
}

static int64_t real_read(void *self, int file, void *into, uint64_t bytes, uint64_t offset) {
    (void)self;
    ssize_t n;
    do
        n = pread(file, into, bytes, (off_t)offset);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : n;
}

static int64_t real_write(void *self, int file, const void *data, uint64_t bytes, uint64_t offset) {
    (void)self;
    ssize_t n;
    do
        n = pwrite(file, data, bytes, (off_t)offset);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : n;
}

static int real_direct(void *self, int file, int on) {
    (void)self;
    int flags = fcntl(file, F_GETFL);
    return flags < 0 || fcntl(file, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) != 0 ? -errno : 0;
}

static int64_t real_size(void *self, int file) {
    struct stat st;
    (void)self;
    return fstat(file, &st) != 0 ? -errno : (int64_t)st.st_size;
}

static int real_sync(void *self, int file) {
    (void)self;
    return fsync(file) != 0 ? -errno : 0;
}

static int real_rename(void *self, const char *from, const char *to) {
    (void)self;
    return rename(from, to) != 0 ? -errno : 0;
}

static int real_remove(void *self, const char *path) {
    (void)self;
    return remove(path) != 0 ? -errno : 0;
}

static int real_make_dir(void *self, const char *path) {
    (void)self;
    return mkdir(path, 0777) != 0 ? -errno : 0;
}

static int real_list(void *self, const char *path, tess__disk_name_fn fn, void *user) {
    (void)self;
    DIR *dir = opendir(path);
    if (!dir)
        return -errno;
    for (struct dirent *e; (e = readdir(dir));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            fn(user, e->d_name);
    closedir(dir);
    return 0;
}

static int real_lock(void *self, int dir) {
    (void)self;
    return flock(dir, LOCK_EX | LOCK_NB) != 0 ? -errno : 0;
}

const tess__disk tess__disk_real = { .open = real_open,
                                     .close = real_close,
                                     .read = real_read,
                                     .write = real_write,
                                     .direct = real_direct,
                                     .size = real_size,
                                     .sync = real_sync,
                                     .rename = real_rename,
                                     .remove = real_remove,
                                     .make_dir = real_make_dir,
                                     .list = real_list,
                                     .lock = real_lock };

int tess__disk_read_all(const tess__disk *d, int file, void *into, uint64_t bytes, uint64_t offset) {
    for (uint64_t done = 0; done < bytes;) {
        int64_t n = d->read(d->self, file, (char *)into + done, bytes - done, offset + done);
        if (n <= 0)
            return n < 0 ? (int)n : -ENODATA;
        done += (uint64_t)n;
    }
    return 0;
}

int tess__disk_write_all(const tess__disk *d, int file, const void *data, uint64_t bytes, uint64_t offset) {
    for (uint64_t done = 0; done < bytes;) {
        uint64_t piece = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES;
        int64_t n = d->write(d->self, file, (const char *)data + done, piece, offset + done);
        if (n <= 0)
            return n < 0 ? (int)n : -ENOSPC;
        done += (uint64_t)n;
    }
    return 0;
}

int tess__disk_sync_dir(const tess__disk *d, const char *path) {
    int dir = d->open(d->self, path, TESS__DISK_DIR);
    if (dir < 0)
        return dir;
    int status = d->sync(d->self, dir);
    d->close(d->self, dir);
    return status == -EINVAL ? 0 : status; /* some file systems have nothing to sync of a directory */
}
