/* SPDX-License-Identifier: BSD-3-Clause */
#include "store.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* Where a file system knows no file without a name, its name is gone as soon as it is open. */
static int make_unnamed(const char *dir) {
    char path[PATH_MAX];
    int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR))
        return fd;
    if (snprintf(path, sizeof path, "%s/tessera-XXXXXX", dir) >= (int)sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0)
        unlink(path);
    return fd;
}

/* Takes room for all of it now, because a disk that is full later would end a run in the middle. */
static tess_status take_room(const disk_file *f, uint64_t bytes, tess_error *error) {
    int failed = posix_fallocate(f->fd, 0, (off_t)bytes);
    if (!failed)
        return TESS_OK;
    int full = failed == ENOSPC || failed == EDQUOT || failed == EFBIG;
    return tess_plugin_fail(error, full ? TESS_E_NOMEM : TESS_E_SYSTEM,
                            "%.100s has no room for the %llu bytes of rank %d: %s", f->dir, (unsigned long long)bytes,
                            (int)f->rank, strerror(failed));
}

/* Page caches hold a second copy of what should not be in memory at all. */
static void pass_cache_by(const disk_file *f, const disk_settings *s, const tess_store_config *c) {
    int flags = fcntl(f->fd, F_GETFL);
    if ((flags < 0 || fcntl(f->fd, F_SETFL, flags | O_DIRECT) != 0) && c->local_rank == 0)
        kit_log(s->host, 1, "offload disk", "%.100s knows no O_DIRECT (%s): files go through the page cache", f->dir,
                strerror(errno));
}

tess_status disk_file_open(disk_file *f, const disk_settings *s, const tess_store_config *c, uint64_t *obtained,
                           tess_error *error) {
    struct stat st;
    *f = (disk_file){ .fd = make_unnamed(s->dir), .rank = c->rank, .dir = s->dir };
    if (f->fd < 0)
        return tess_plugin_fail(error, TESS_E_SYSTEM, "%.100s: no file can be made there for rank %d: %s", s->dir,
                                (int)c->rank, strerror(errno));
    tess_status status = take_room(f, c->bytes, error);
    if (!status && fstat(f->fd, &st) != 0)
        status = tess_plugin_fail(error, TESS_E_SYSTEM, "%.100s: the size of rank %d's file is unknown: %s", s->dir,
                                  (int)c->rank, strerror(errno));
    if (status) {
        disk_file_close(f);
        return status;
    }
    pass_cache_by(f, s, c);
    *obtained = (uint64_t)st.st_size;
    return TESS_OK;
}

void disk_file_close(disk_file *f) {
    if (f->fd >= 0)
        close(f->fd);
    f->fd = -1;
}

tess_status disk_file_failed(const disk_file *f, uint32_t op, uint64_t at, int error_number, tess_error *error) {
    return tess_plugin_fail(error, TESS_E_DATA, "the file of rank %d in %.100s, offset %llu: %s: %s", (int)f->rank,
                            f->dir, (unsigned long long)at, op == TESS_STORE_READ ? "reading" : "writing",
                            error_number ? strerror(error_number) : "the file ends here: it was cut");
}

tess_status disk_file_move(const disk_file *f, const disk_block *b, tess_error *error) {
    for (uint64_t done = 0; done < b->bytes;) {
        off_t at = (off_t)(b->at + done);
        ssize_t n = b->op == TESS_STORE_READ ? pread(f->fd, b->memory + done, b->bytes - done, at)
                                             : pwrite(f->fd, b->memory + done, b->bytes - done, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return disk_file_failed(f, b->op, b->at + done, n < 0 ? errno : 0, error);
        done += (uint64_t)n;
    }
    return TESS_OK;
}
