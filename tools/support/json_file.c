/* SPDX-License-Identifier: BSD-3-Clause */
#include "json_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static tess_status read_all(int fd, const char *path, char *into, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = read(fd, into + done, bytes - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return tess_fail(TESS_E_DATA, "%s: offset %zu: %s", path, done,
                             n < 0 ? strerror(errno) : "the file ends here, it was longer when it was opened");
        done += (size_t)n;
    }
    return TESS_OK;
}

tess_status json_file_read(const char *path, uint64_t most, char **text, size_t *bytes) {
    struct stat st;
    tess_status status = TESS_OK;
    char *into = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) != 0)
        status = tess_fail(TESS_E_DATA, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        status = tess_fail(TESS_E_DATA, "%s: not a file, expected JSON", path);
    else if ((uint64_t)st.st_size > most)
        status = tess_fail(TESS_E_DATA, "%s: %" PRIu64 " bytes, expected at most %" PRIu64 " of JSON", path,
                           (uint64_t)st.st_size, most);
    else if (!(into = malloc((size_t)st.st_size + 1)))
        status = tess_fail(TESS_E_NOMEM, "%s: no memory", path);
    if (status == TESS_OK)
        status = read_all(fd, path, into, (size_t)st.st_size);
    if (fd >= 0)
        close(fd);
    if (status != TESS_OK) {
        free(into);
        return status;
    }
    *text = into;
    *bytes = (size_t)st.st_size;
    return TESS_OK;
}

tess_status json_file_bad(const char *path, const json_in *in) {
    return tess_fail(TESS_E_DATA, "%s: offset %zu: expected %s", path, in->at, in->expected ? in->expected : "JSON");
}
