#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "safetensors.h"
#include "safetensors_dtype.h"
#include "status.h"

struct tool_safetensors_writer {
    char path[PATH_MAX], temporary[PATH_MAX];
    int fd;
    uint64_t written, total; /* bytes of data */
};

static tess_status write_error(const tool_safetensors_writer *w, uint64_t offset) {
    return tess__fail(TESS_E_DATA, "%s: cannot write at offset %" PRIu64 ": %s", w->path, offset, strerror(errno));
}

static tess_status write_all(tool_safetensors_writer *w, const void *data, uint64_t bytes, uint64_t offset) {
    for (uint64_t done = 0; done < bytes;) {
        ssize_t n = write(w->fd, (const char *)data + done, bytes - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return write_error(w, offset + done);
        done += (uint64_t)n;
    }
    return TESS_OK;
}

static void put_name(FILE *f, const char *name) {
    fputc('"', f);
    for (; *name; name++) {
        unsigned char c = (unsigned char)*name;
        if (c == '"' || c == '\\')
            fprintf(f, "\\%c", c);
        else if (c < 0x20)
            fprintf(f, "\\u%04x", c);
        else
            fputc(c, f);
    }
    fputc('"', f);
}

static uint64_t tensor_elems(const tool_tensor *t) {
    uint64_t elems = 1;
    for (int32_t d = 0; d < t->ndim; d++)
        elems *= (uint64_t)t->shape[d];
    return elems;
}

static void put_tensor(FILE *f, const tool_tensor *t, uint64_t begin, uint64_t end) {
    fputc(',', f);
    put_name(f, t->name);
    fprintf(f, ":{\"dtype\":\"%s\",\"shape\":[", tool__dtype_word(t->dtype));
    for (int32_t d = 0; d < t->ndim; d++)
        fprintf(f, "%s%" PRId64, d ? "," : "", t->shape[d]);
    fprintf(f, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", begin, end);
}

/* The header in memory, padded with spaces so that the data starts at a multiple of 8; *total: bytes of data. */
static char *build_header(const tool_tensor *tensors, uint64_t n, size_t *bytes, uint64_t *total) {
    char *text = NULL;
    FILE *f = open_memstream(&text, bytes);
    uint64_t at = 0;
    if (!f)
        return NULL;
    fputs("{\"__metadata__\":{\"format\":\"pt\"}", f);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t end = at + tensor_elems(&tensors[i]) * tool_dtype_bytes(tensors[i].dtype);
        put_tensor(f, &tensors[i], at, end);
        at = end;
    }
    fputc('}', f);
    for (long length = ftell(f); length % 8 != 0; length++)
        fputc(' ', f);
    if (fclose(f) != 0) {
        free(text);
        return NULL;
    }
    *total = at;
    return text;
}

static tess_status write_header(tool_safetensors_writer *w, const tool_tensor *tensors, uint64_t n) {
    size_t bytes;
    unsigned char length[8];
    char *header = build_header(tensors, n, &bytes, &w->total);
    if (!header)
        return tess__fail(TESS_E_NOMEM, "%s: no memory for the header", w->path);
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)((uint64_t)bytes >> (8 * i));
    tess_status status = write_all(w, length, 8, 0);
    if (status == TESS_OK)
        status = write_all(w, header, bytes, 8);
    free(header);
    return status;
}

static tess_status open_temporary(tool_safetensors_writer *w, const char *path) {
    if ((size_t)snprintf(w->path, sizeof w->path, "%s", path) >= sizeof w->path ||
        (size_t)snprintf(w->temporary, sizeof w->temporary, "%s.tmp-%ld", path, (long)getpid()) >= sizeof w->temporary)
        return tess__fail(TESS_E_DATA, "the path of a file to write is longer than %d bytes", PATH_MAX);
    unlink(w->temporary); /* a left-over of a dead process with our number */
    w->fd = open(w->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (w->fd < 0)
        return tess__fail(TESS_E_DATA, "%s: cannot be written: %s", w->path, strerror(errno));
    return TESS_OK;
}

tess_status tool_safetensors_create(const char *path, const tool_tensor *tensors, uint64_t n,
                                    tool_safetensors_writer **out) {
    tool_safetensors_writer *w = calloc(1, sizeof *w);
    if (!w)
        return tess__fail(TESS_E_NOMEM, "%s: no memory to write it", path);
    tess_status status = open_temporary(w, path);
    if (status != TESS_OK) {
        free(w);
        return status;
    }
    status = write_header(w, tensors, n);
    if (status != TESS_OK)
        tool_safetensors_discard(w);
    else
        *out = w;
    return status;
}

tess_status tool_safetensors_write(tool_safetensors_writer *w, const void *data, uint64_t bytes) {
    if (bytes > w->total - w->written)
        return tess__fail(TESS_E_INTERNAL, "%s: more data than the %" PRIu64 " bytes announced", w->path, w->total);
    tess_status status = write_all(w, data, bytes, w->written);
    if (status == TESS_OK)
        w->written += bytes;
    return status;
}

/* The new name is on disk only when the directory is. */
static void sync_dir(const char *path) {
    char dir[PATH_MAX];
    snprintf(dir, sizeof dir, "%s", path);
    char *slash = strrchr(dir, '/');
    if (slash)
        slash[slash == dir] = '\0';
    int fd = open(slash ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    (void)fsync(fd); /* some file systems refuse it for directories */
    close(fd);
}

tess_status tool_safetensors_commit(tool_safetensors_writer *w) {
    tess_status status = TESS_OK;
    if (w->written != w->total)
        status = tess__fail(TESS_E_INTERNAL, "%s: %" PRIu64 " bytes of data came, %" PRIu64 " were announced", w->path,
                            w->written, w->total);
    else if (fsync(w->fd) != 0)
        status = write_error(w, w->total);
    else if (rename(w->temporary, w->path) != 0)
        status = tess__fail(TESS_E_DATA, "%s: cannot be put in place: %s", w->path, strerror(errno));
    if (status == TESS_OK) {
        sync_dir(w->path);
        close(w->fd);
        free(w);
        return TESS_OK;
    }
    tool_safetensors_discard(w);
    return status;
}

void tool_safetensors_discard(tool_safetensors_writer *w) {
    if (!w)
        return;
    close(w->fd);
    unlink(w->temporary);
    free(w);
}
