/* SPDX-License-Identifier: BSD-3-Clause */
#include "local.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/status.h"

enum { BACKLOG = 1024, NAME_MOST = 48 };

static int is_private(const char *path) {
    struct stat about;
    return lstat(path, &about) == 0 && S_ISDIR(about.st_mode) && about.st_uid == geteuid() &&
           (about.st_mode & 077) == 0;
}

static int set_address(const char *path, struct sockaddr_un *at) {
    if (strlen(path) >= sizeof at->sun_path)
        return ENAMETOOLONG;
    *at = (struct sockaddr_un){ .sun_family = AF_UNIX };
    memcpy(at->sun_path, path, strlen(path) + 1);
    return 0;
}

int tess__local_is_ours(int fd) {
    struct ucred peer;
    socklen_t size = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

int tess__local_connect(const char *path, int *fd) {
    struct sockaddr_un at;
    int error = set_address(path, &at), s = -1;
    if (!error && (s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) < 0)
        error = errno;
    if (!error && connect(s, (const struct sockaddr *)&at, sizeof at) != 0)
        error = errno == EAGAIN ? ECONNREFUSED : errno; /* a full queue counts as nobody there, for now */
    if (!error && !tess__local_is_ours(s))
        error = EACCES;
    if (error && s >= 0)
        close(s);
    if (!error)
        *fd = s;
    return error;
}

/* ---- the directory ------------------------------------------------------------------------------ */

/* Returns 1 when nobody listens there any more. It asks with a socket of another type, which a server that does
 * listen refuses with EPROTOTYPE and need not take in. */
static int is_left_over(const char *path) {
    struct sockaddr_un at;
    int s = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int refused = s >= 0 && set_address(path, &at) == 0 && connect(s, (const struct sockaddr *)&at, sizeof at) != 0 &&
                  errno == ECONNREFUSED;
    if (s >= 0)
        close(s);
    return refused;
}

static void remove_left_over(const char *folder) {
    DIR *list = opendir(folder);
    char path[TESS__LOCAL_PATH];
    for (struct dirent *entry; list && (entry = readdir(list));) {
        size_t length = strlen(entry->d_name);
        if (length < 5 || strcmp(entry->d_name + length - 5, ".sock") != 0 ||
            (size_t)snprintf(path, sizeof path, "%s/%s", folder, entry->d_name) >= sizeof path)
            continue;
        if (is_left_over(path))
            unlink(path);
    }
    if (list)
        closedir(list);
}

static void choose_folder(char *out, size_t size) {
    const char *runtime = secure_getenv("XDG_RUNTIME_DIR");
    if (runtime && *runtime == '/' && strlen(runtime) + sizeof "/tessera" <= size && is_private(runtime))
        snprintf(out, size, "%s/tessera", runtime);
    else
        snprintf(out, size, "/tmp/tessera-%u", (unsigned)geteuid());
}

tess_status tess__local_path(const char *name, char out[TESS__LOCAL_PATH]) {
    char folder[TESS__LOCAL_PATH - NAME_MOST];
    choose_folder(folder, sizeof folder);
    if (mkdir(folder, 0700) != 0 && errno != EEXIST)
        return tess__fail(TESS_E_SYSTEM, "cannot make the directory %s: %s", folder, strerror(errno));
    if (!is_private(folder))
        return tess__fail(TESS_E_INVALID,
                          "%s must be a directory of this user's alone (mode 0700): remove it, or set "
                          "XDG_RUNTIME_DIR",
                          folder);
    remove_left_over(folder);
    snprintf(out, TESS__LOCAL_PATH, "%s/%.*s.sock", folder, NAME_MOST - 8, name);
    return TESS_OK;
}

/* ---- listening ---------------------------------------------------------------------------------- */

/* Gives the socket its name only when it listens, because until then it would look left over. */
static int listen_under(int s, const char *path) {
    struct sockaddr_un at;
    char *first = at.sun_path;
    int error = set_address(path, &at);
    if (error)
        return error;
    snprintf(first, sizeof at.sun_path, "%.*s.%d", (int)sizeof at.sun_path - 16, path, (int)getpid());
    unlink(first);
    if (bind(s, (const struct sockaddr *)&at, sizeof at) != 0)
        return errno;
    if (listen(s, BACKLOG) != 0)
        error = errno;
    else if (is_left_over(path))
        unlink(path);
    if (!error && link(first, path) != 0)
        error = errno == EEXIST ? EADDRINUSE : errno;
    unlink(first);
    return error;
}

tess_status tess__local_listen(const char *path, int *fd) {
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int error = s < 0 ? errno : listen_under(s, path);
    if (!error) {
        *fd = s;
        return TESS_OK;
    }
    if (s >= 0)
        close(s);
    if (error == EADDRINUSE)
        return tess__fail(TESS_E_INVALID, "another job of this host meets at %s; set MASTER_PORT to another number",
                          path);
    return tess__fail(TESS_E_INVALID, "cannot listen on %s: %s", path, strerror(error));
}
