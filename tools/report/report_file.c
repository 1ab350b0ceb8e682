/* SPDX-License-Identifier: BSD-3-Clause */
/* A whole file in place, or none. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "report.h"
#include <tessera/tessera.h>

static tess_status cannot(const report_file *f, int error) {
    return tess_fail(TESS_E_DATA, "%s: cannot be written: %s", f->path, strerror(error));
}

/* Follows a link, so that its target is replaced and the link stays. */
static int resolve(report_file *f) {
    char real[PATH_MAX];
    const char *path = realpath(f->path, real) ? real : f->path;
    return (size_t)snprintf(f->target, sizeof f->target, "%s", path) < sizeof f->target;
}

tess_status report_file_open(report_file *f, const char *path) {
    struct stat there;
    *f = (report_file){ .path = path };
    if (strcmp(path, "-") == 0) {
        f->path = "standard output";
        f->out = stdout;
        return TESS_OK;
    }
    int exists = stat(path, &there) == 0;
    if (!resolve(f))
        return cannot(f, ENAMETOOLONG);
    if (exists && S_ISDIR(there.st_mode))
        return cannot(f, EISDIR);
    if (exists && !S_ISREG(there.st_mode)) {
        f->out = fopen(path, "we"); /* a device or a pipe has no other name */
        return f->out ? TESS_OK : cannot(f, errno);
    }
    snprintf(f->temporary, sizeof f->temporary, "%s.tmp-%ld", f->target, (long)getpid());
    unlink(f->temporary); /* a left-over of a dead process with our number */
    int fd = open(f->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    f->out = fd < 0 ? NULL : fdopen(fd, "w");
    return f->out ? TESS_OK : cannot(f, errno);
}

void report_file_discard(report_file *f) {
    if (f->out && f->out != stdout)
        fclose(f->out);
    if (f->temporary[0])
        unlink(f->temporary);
    f->out = NULL;
}

tess_status report_file_commit(report_file *f) {
    errno = 0;
    int bad = fflush(f->out) != 0 || ferror(f->out), error = errno;
    if (f->out != stdout && fclose(f->out) != 0 && !bad) {
        bad = 1;
        error = errno;
    }
    if (!bad && f->temporary[0] && rename(f->temporary, f->target) != 0) {
        bad = 1;
        error = errno;
    }
    f->out = NULL;
    if (!bad)
        return TESS_OK;
    if (f->temporary[0])
        unlink(f->temporary);
    return cannot(f, error ? error : EIO);
}
