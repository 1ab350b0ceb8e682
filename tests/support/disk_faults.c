/* SPDX-License-Identifier: BSD-3-Clause */
/* LD_PRELOAD: the DISK_FAULT_AT-th of a process's pwrite, fsync and rename calls goes wrong, as DISK_FAULT says:
 * "short" (half of it is written), "full" (ENOSPC), "broken" (EIO), "kill" (SIGKILL before it), "torn" (SIGKILL after
 * half of it). "count" only counts. DISK_FAULT_LOG gets a line per call. Files outside DISK_FAULT_DIR are left alone.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int calls;

static int is_watched(const char *path) {
    const char *dir = getenv("DISK_FAULT_DIR");
    return dir && strncmp(path, dir, strlen(dir)) == 0;
}

static int is_watched_file(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = 0;
    return is_watched(path);
}

static void write_log(const char *call) {
    const char *log = getenv("DISK_FAULT_LOG");
    int fd = log ? open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (fd < 0)
        return;
    dprintf(fd, "%s\n", call);
    close(fd);
}

/* What is to happen to this call; null: nothing. */
static const char *fault_of(const char *call) {
    const char *at = getenv("DISK_FAULT_AT"), *what = getenv("DISK_FAULT");
    pthread_mutex_lock(&lock);
    int mine = ++calls;
    pthread_mutex_unlock(&lock);
    write_log(call);
    if (!at || !what || atoi(at) != mine)
        return NULL;
    if (strcmp(what, "kill") == 0)
        raise(SIGKILL);
    return what;
}

/* 0: go on; else the errno of the failure. */
static int error_of(const char *fault) {
    return !fault ? 0 : strcmp(fault, "full") == 0 ? ENOSPC : strcmp(fault, "broken") == 0 ? EIO : 0;
}

static int fail_with(int error) {
    errno = error;
    return -1;
}

typedef ssize_t (*pwrite_fn)(int, const void *, size_t, off_t);
static ssize_t faulty_pwrite(int fd, const void *data, size_t bytes, off_t offset) {
    static pwrite_fn next;
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "pwrite64");
    const char *fault = is_watched_file(fd) ? fault_of("pwrite") : NULL;
    if (error_of(fault))
        return fail_with(error_of(fault));
    if (!fault)
        return next(fd, data, bytes, offset);
    size_t half = bytes / 2 + 1; /* past the cache: of whole sectors, as a disk would */
    ssize_t n = next(fd, data, fcntl(fd, F_GETFL) & O_DIRECT ? half / 512 * 512 : half, offset);
    if (strcmp(fault, "torn") == 0)
        raise(SIGKILL);
    return n;
}

__attribute__((visibility("default"))) ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset) {
    return faulty_pwrite(fd, data, bytes, offset);
}

__attribute__((visibility("default"))) ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t offset) {
    return faulty_pwrite(fd, data, bytes, offset);
}

typedef int (*fsync_fn)(int);
__attribute__((visibility("default"))) int fsync(int fd) {
    static fsync_fn next;
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "fsync");
    const char *fault = is_watched_file(fd) ? fault_of("fsync") : NULL;
    return error_of(fault) ? fail_with(error_of(fault)) : next(fd);
}

typedef int (*rename_fn)(const char *, const char *);
__attribute__((visibility("default"))) int rename(const char *from, const char *to) {
    static rename_fn next;
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "rename");
    const char *fault = is_watched(from) ? fault_of("rename") : NULL;
    return error_of(fault) ? fail_with(error_of(fault)) : next(from, to);
}
