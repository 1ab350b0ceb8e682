/* SPDX-License-Identifier: BSD-3-Clause */
#include "token_file.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "tools/support/say.h"

enum { HEADER_WORDS = 256, MAGIC_16 = 20240520, VERSION_16 = 1, MAGIC_32 = 20240801, VERSION_32 = 7, MOST = 100000000 };

static tess_status failed(const token_files *f, const char *path) {
    return tess_fail(errno == ENOMEM ? TESS_E_NOMEM : TESS_E_DATA, "%s: %s", path[0] ? path : f->folder,
                     strerror(errno));
}

static void final_name(const token_files *f, char out[PATH_MAX]) {
    memcpy(out, f->path, sizeof f->path);
    out[strlen(out) - strlen(".tmp")] = '\0';
}

/* Refuses to overwrite a file. */
static tess_status name_file(token_files *f) {
    char path[PATH_MAX];
    if (snprintf(f->path, sizeof f->path, "%s/%s_%06d.bin.tmp", f->folder, f->part, f->files) >= PATH_MAX)
        return tess_fail(TESS_E_DATA, "%.60s…: the path is too long", f->folder);
    final_name(f, path);
    return access(path, F_OK) != 0 ? TESS_OK : tess_fail(TESS_E_DATA, "%s exists: choose another --out", path);
}

tess_status token_files_begin(token_files *f, const char *folder, const char *part, int32_t vocabulary) {
    *f = (token_files){ .folder = folder, .part = part, .width = vocabulary > 65536 ? 4 : 2, .most = MOST };
    return name_file(f);
}

static int put_header(const token_files *f) {
    int32_t words[HEADER_WORDS] = { f->width == 4 ? MAGIC_32 : MAGIC_16, f->width == 4 ? VERSION_32 : VERSION_16,
                                    (int32_t)f->in_file };
    return fwrite(words, sizeof words, 1, f->file) == 1;
}

static tess_status open_file(token_files *f) {
    TRY(name_file(f));
    f->in_file = 0;
    f->file = fopen(f->path, "wbe");
    return f->file && put_header(f) ? TESS_OK : failed(f, f->path);
}

static tess_status close_file(token_files *f) {
    char path[PATH_MAX];
    final_name(f, path);
    int good = fseek(f->file, 0, SEEK_SET) == 0 && put_header(f) && fflush(f->file) == 0 && fsync(fileno(f->file)) == 0;
    int error = errno;
    good = fclose(f->file) == 0 && good;
    f->file = NULL;
    errno = good ? errno : error;
    if (!good || rename(f->path, path) != 0) {
        tess_status status = failed(f, f->path);
        unlink(f->path);
        return status;
    }
    f->files++;
    return TESS_OK;
}

static int put(const token_files *f, int32_t id) {
    uint16_t narrow = (uint16_t)id;
    return f->width == 4 ? fwrite(&id, sizeof id, 1, f->file) == 1 : fwrite(&narrow, sizeof narrow, 1, f->file) == 1;
}

tess_status token_files_add(token_files *f, const int32_t *ids, size_t n) {
    if (f->file && f->in_file > 0 && f->in_file + n > f->most) /* keeps a document in one file if it fits */
        TRY(close_file(f));
    for (size_t i = 0; i < n; i++) {
        if (f->file && f->in_file == f->most)
            TRY(close_file(f));
        if (!f->file)
            TRY(open_file(f));
        if (!put(f, ids[i]))
            return failed(f, f->path);
        f->in_file++;
    }
    f->total += n;
    return TESS_OK;
}

tess_status token_files_end(token_files *f) {
    return f->file ? close_file(f) : TESS_OK;
}

void token_files_drop(token_files *f) {
    if (!f->file)
        return;
    fclose(f->file);
    f->file = NULL;
    unlink(f->path);
}
