/* SPDX-License-Identifier: BSD-3-Clause */
#include "secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/options.h"
#include "base/status.h"

static tess_status check_length(const char *name, size_t length, size_t size) {
    if (length >= size)
        return tess__fail(TESS_E_INVALID, "%s has %zu characters, expected at most %zu", name, length, size - 1);
    return TESS_OK;
}

static tess_status from_text(const char *text, char *out, size_t size) {
    tess_status status = check_length("TESSERA_SECRET", strlen(text), size);
    if (status == TESS_OK)
        memcpy(out, text, strlen(text) + 1);
    return status;
}

/* Reads the first line of an open file; `name` is the variable's. */
static tess_status from_fd(const char *name, int fd, char *out, size_t size) {
    char text[TESS__SECRET_BYTES + 1];
    ssize_t got = pread(fd, text, sizeof text - 1, 0);
    if (got < 0)
        return tess__fail(TESS_E_INVALID, "%s: the secret cannot be read: %s", name, strerror(errno));
    text[got] = 0;
    text[strcspn(text, "\r\n")] = 0;
    if (!*text)
        return tess__fail(TESS_E_INVALID, "%s: the secret is empty, expected a line of text", name);
    tess_status status = check_length(name, strlen(text), size);
    if (status == TESS_OK)
        memcpy(out, text, strlen(text) + 1);
    explicit_bzero(text, sizeof text);
    return status;
}

static tess_status from_file(const char *path, char *out, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return tess__fail(TESS_E_INVALID, "TESSERA_SECRET_FILE '%.200s' cannot be opened: %s", path, strerror(errno));
    struct stat about;
    tess_status status;
    if (fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && (about.st_mode & 077))
        status = tess__fail(TESS_E_INVALID, "TESSERA_SECRET_FILE '%.200s' can be read by other users: chmod 600", path);
    else
        status = from_fd("TESSERA_SECRET_FILE", fd, out, size);
    close(fd);
    return status;
}

static tess_status from_number(const char *text, char *out, size_t size) {
    char *end;
    long fd = strtol(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || fd > 1 << 20 || fcntl((int)fd, F_SETFD, FD_CLOEXEC) != 0)
        return tess__fail(TESS_E_INVALID, "TESSERA_SECRET_FD is '%.40s', expected the number of an open file", text);
    return from_fd("TESSERA_SECRET_FD", (int)fd, out, size);
}

tess_status tess__secret_read(char *out, size_t size) {
    const char *text = tess__option_text("secret"), *file = tess__option_text("secret-file"),
               *fd = tess__option_text("secret-fd");
    *out = 0;
    if ((text != NULL) + (file != NULL) + (fd != NULL) > 1)
        return tess__fail(TESS_E_INVALID,
                          "set one of TESSERA_SECRET, TESSERA_SECRET_FILE and TESSERA_SECRET_FD, not %s",
                          text && file && fd ? "three" : "two");
    if (text)
        return from_text(text, out, size);
    if (file)
        return from_file(file, out, size);
    return fd ? from_number(fd, out, size) : TESS_OK;
}
