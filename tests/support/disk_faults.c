/* SPDX-License-Identifier: BSD-3-Clause */
/* LD_PRELOAD: the DISK_FAULT_AT-th of a process's pwrite, fsync and rename calls goes wrong, as DISK_FAULT says:
 * "short" (half of it is written or read), "full" (ENOSPC), "broken" (EIO), "end" (nothing more to read), "kill"
 * (SIGKILL before it), "torn" (SIGKILL after half of it). "count" only counts; "slow" is every call, which takes
 * DISK_FAULT_MS longer. DISK_FAULT_OF: the one call that counts instead, "pread" too. DISK_FAULT_RANK: only on this
 * rank. DISK_FAULT_ONCE: a file that the first fault makes, so that no other process has one. DISK_FAULT_LOG gets a
 * line per call. Files outside DISK_FAULT_DIR are left alone. By io_uring: ring_faults.c. */
#define _GNU_SOURCE
#include "disk_faults.h"

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

static int is_meant(const char *call) {
    const char *of = getenv("DISK_FAULT_OF"), *only = getenv("DISK_FAULT_RANK"), *rank = getenv("RANK");
    if (only && (!rank || strcmp(only, rank) != 0))
        return 0;
    return of ? strcmp(of, call) == 0 : strcmp(call, "pread") != 0 && strncmp(call, "ring", 4) != 0;
}

static int is_first(void) {
    const char *once = getenv("DISK_FAULT_ONCE");
    int fd = once ? open(once, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
    if (fd >= 0)
        close(fd);
    return !once || fd >= 0;
}

static void wait_for_disk(void) {
    const char *ms = getenv("DISK_FAULT_MS");
    usleep(1000 * (useconds_t)(ms ? atoi(ms) : 0));
}

const char *disk_fault_of(const char *call) {
    const char *at = getenv("DISK_FAULT_AT"), *what = getenv("DISK_FAULT");
    if (!is_meant(call))
        return NULL;
    if (what && strcmp(what, "slow") == 0)
        wait_for_disk();
    pthread_mutex_lock(&lock);
    int mine = ++calls;
    pthread_mutex_unlock(&lock);
    write_log(call);
    if (!at || !what || atoi(at) != mine || !is_first())
        return NULL;
    if (strcmp(what, "kill") == 0)
        raise(SIGKILL);
    return what;
}

int disk_fault_errno(const char *fault) {
    return !fault ? 0 : strcmp(fault, "full") == 0 ? ENOSPC : strcmp(fault, "broken") == 0 ? EIO : 0;
}

static int fail_with(int error) {
    errno = error;
    return -1;
}

/* Past the cache: of whole sectors, as a disk would. */
static size_t whole_sectors(int fd, size_t bytes) {
    return fcntl(fd, F_GETFL) & O_DIRECT ? bytes / DISK_SECTOR * DISK_SECTOR : bytes;
}

typedef ssize_t (*pwrite_fn)(int, const void *, size_t, off_t);
static ssize_t faulty_pwrite(int fd, const void *data, size_t bytes, off_t offset) {
    static pwrite_fn next;
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "pwrite64");
    const char *fault = is_watched_file(fd) ? disk_fault_of("pwrite") : NULL;
    if (disk_fault_errno(fault))
        return fail_with(disk_fault_errno(fault));
    if (!fault)
        return next(fd, data, bytes, offset);
    ssize_t n = next(fd, data, whole_sectors(fd, bytes / 2 + 1), offset);
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

typedef ssize_t (*pread_fn)(int, void *, size_t, off_t);
static ssize_t faulty_pread(int fd, void *data, size_t bytes, off_t offset) {
    static pread_fn next;
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "pread64");
    const char *fault = is_watched_file(fd) ? disk_fault_of("pread") : NULL;
    if (disk_fault_errno(fault))
        return fail_with(disk_fault_errno(fault));
    if (fault && strcmp(fault, "end") == 0)
        return 0;
    return next(fd, data, fault ? whole_sectors(fd, bytes / 2) : bytes, offset);
}

__attribute__((visibility("default"))) ssize_t pread(int fd, void *data, size_t bytes, off_t offset) {
    return faulty_pread(fd, data, bytes, offset);
}

__attribute__((visibility("default"))) ssize_t pread64(int fd, void *data, size_t bytes, off64_t offset) {
    return faulty_pread(fd, data, bytes, offset);
}

typedef int (*fsync_fn)(int);
__attribute__((visibility("default"))) int fsync(int fd) {
    static fsync_fn next;
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "fsync");
    const char *fault = is_watched_file(fd) ? disk_fault_of("fsync") : NULL;
    return disk_fault_errno(fault) ? fail_with(disk_fault_errno(fault)) : next(fd);
}

typedef int (*rename_fn)(const char *, const char *);
__attribute__((visibility("default"))) int rename(const char *from, const char *to) {
    static rename_fn next;
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "rename");
    const char *fault = is_watched(from) ? disk_fault_of("rename") : NULL;
    return disk_fault_errno(fault) ? fail_with(disk_fault_errno(fault)) : next(from, to);
}
