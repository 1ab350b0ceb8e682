/* SPDX-License-Identifier: BSD-3-Clause */
#include "trusted_path.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, LINKS_MAX = 40 };

typedef struct {
    char done[PATH_BYTES]; /* resolved so far, without a slash at its end; "" is the root */
    char rest[PATH_BYTES];
    int links;
    uint32_t want;
    char *reason;
    size_t reason_bytes;
} walk;

#define REFUSE(w, ...) (snprintf((w)->reason, (w)->reason_bytes, __VA_ARGS__), TESS_E_INVALID)

static const char *shown_path(const walk *w) {
    return *w->done ? w->done : "/";
}

static int others_write(const struct stat *s) {
    return (s->st_mode & S_IWOTH) || ((s->st_mode & S_IWGRP) && (uint32_t)s->st_gid != (uint32_t)s->st_uid);
}

static tess_status check_owner(walk *w, const struct stat *s) {
    if (s->st_uid == 0 || s->st_uid == geteuid())
        return TESS_OK;
    return REFUSE(w, "%s belongs to user %u, who is neither root nor you", shown_path(w), (unsigned)s->st_uid);
}

static tess_status check_writers(walk *w, const struct stat *s, int sticky_will_do) {
    if (!others_write(s) || (sticky_will_do && (s->st_mode & S_ISVTX)))
        return TESS_OK;
    return REFUSE(w, "%s can be written by others (mode %04o)", shown_path(w), (unsigned)s->st_mode & 07777);
}

static void cut_last(char *path) {
    char *slash = strrchr(path, '/');
    if (slash)
        *slash = 0;
}

/* Takes the next component off `rest`; 0 when there is none, -1 when it is too long. */
static int next_component(walk *w, char name[256]) {
    const char *from = w->rest + strspn(w->rest, "/");
    size_t n = strcspn(from, "/");
    if (n > 255)
        return -1;
    memcpy(name, from, n);
    name[n] = 0;
    memmove(w->rest, from + n, strlen(from + n) + 1);
    return n > 0;
}

static tess_status follow_link(walk *w) {
    char target[PATH_BYTES];
    ssize_t n = readlink(w->done, target, sizeof target - 1);
    if (n <= 0)
        return REFUSE(w, "%s: %s", shown_path(w), n < 0 ? strerror(errno) : "empty link");
    target[n] = 0;
    if (++w->links > LINKS_MAX)
        return REFUSE(w, "%s: more than %d symbolic links", shown_path(w), LINKS_MAX);
    size_t rest = strlen(w->rest);
    if ((size_t)n + 1 + rest >= PATH_BYTES)
        return REFUSE(w, "%s: path too long", shown_path(w));
    memmove(w->rest + n + 1, w->rest, rest + 1);
    memcpy(w->rest, target, (size_t)n);
    w->rest[n] = '/';
    if (*target == '/')
        w->done[0] = 0;
    else
        cut_last(w->done);
    return TESS_OK;
}

/* Takes one component of the path. */
static tess_status step_into(walk *w, const char *name) {
    size_t done = strlen(w->done), n = strlen(name);
    struct stat s;
    if (strcmp(name, ".") == 0)
        return TESS_OK;
    if (strcmp(name, "..") == 0) {
        cut_last(w->done);
        return TESS_OK;
    }
    if (done + 1 + n >= PATH_BYTES)
        return REFUSE(w, "%.64s…: path too long", w->done);
    w->done[done] = '/';
    memcpy(w->done + done + 1, name, n + 1);
    if (lstat(w->done, &s) != 0)
        return errno == ENOENT ? REFUSE(w, "no such %s", w->want == TESS_PATH_FILE ? "file" : "directory")
                               : REFUSE(w, "%s: %s", w->done, strerror(errno));
    tess_status status = check_owner(w, &s);
    if (status == TESS_OK && S_ISLNK(s.st_mode))
        return follow_link(w);
    if (status == TESS_OK && S_ISDIR(s.st_mode))
        status = check_writers(w, &s, 1);
    else if (status == TESS_OK && w->rest[strspn(w->rest, "/")])
        status = REFUSE(w, "%s is not a directory", w->done);
    return status;
}

static tess_status begin_walk(walk *w, const char *path) {
    struct stat s;
    size_t n = 0;
    w->done[0] = 0;
    if (*path != '/') {
        if (!getcwd(w->rest, PATH_BYTES))
            return REFUSE(w, "working directory: %s", strerror(errno));
        n = strlen(w->rest);
    }
    if (n + 1 + strlen(path) >= PATH_BYTES)
        return REFUSE(w, "path too long");
    snprintf(w->rest + n, PATH_BYTES - n, "/%s", path);
    if (stat("/", &s) != 0)
        return REFUSE(w, "/: %s", strerror(errno));
    tess_status status = check_owner(w, &s);
    return status ? status : check_writers(w, &s, 1);
}

/* Checks the end of the path: it has the right type, and neither it nor the directory that holds a file is open to
 * others. */
static tess_status check_end(walk *w) {
    uint32_t want = w->want;
    struct stat s;
    if (stat(shown_path(w), &s) != 0)
        return REFUSE(w, "%s: %s", shown_path(w), strerror(errno));
    if (want == TESS_PATH_FILE && S_ISDIR(s.st_mode))
        return REFUSE(w, "%s is a directory, not a file", shown_path(w));
    if (want == TESS_PATH_FILE && !S_ISREG(s.st_mode))
        return REFUSE(w, "%s is not a regular file", shown_path(w));
    if (want == TESS_PATH_DIRECTORY && !S_ISDIR(s.st_mode))
        return REFUSE(w, "%s is not a directory", shown_path(w));
    tess_status status = check_writers(w, &s, 0);
    if (status || want == TESS_PATH_DIRECTORY)
        return status;
    char file[PATH_BYTES];
    memcpy(file, w->done, sizeof file);
    cut_last(w->done);
    if (stat(shown_path(w), &s) != 0)
        return REFUSE(w, "%s: %s", shown_path(w), strerror(errno));
    status = check_writers(w, &s, 0);
    memcpy(w->done, file, sizeof file);
    return status;
}

tess_status tess__trusted_path(const char *path, uint32_t want, char real[4096], char *reason, size_t reason_bytes) {
    walk w = { .want = want, .reason = reason, .reason_bytes = reason_bytes };
    char name[256];
    int more = 0;
    tess_status status = begin_walk(&w, path);
    while (status == TESS_OK && (more = next_component(&w, name)) > 0)
        status = step_into(&w, name);
    if (status == TESS_OK && more < 0)
        status = REFUSE(&w, "a file name of more than 255 bytes");
    if (status == TESS_OK)
        status = check_end(&w);
    if (status == TESS_OK)
        snprintf(real, PATH_BYTES, "%s", shown_path(&w));
    return status;
}
