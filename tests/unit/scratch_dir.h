/* SPDX-License-Identifier: BSD-3-Clause */
/* A directory of a test's own, and files in it. */
#ifndef TEST_SCRATCH_DIR_H
#define TEST_SCRATCH_DIR_H
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    char path[64];
} scratch_dir;

static inline int scratch_dir_make(scratch_dir *d) {
    strcpy(d->path, "/tmp/tessera-test-XXXXXX");
    return mkdtemp(d->path) ? 0 : -1;
}

static inline const char *scratch_path(const scratch_dir *d, const char *name) {
    static char path[2][512];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", d->path, name);
    return path[turn];
}

static inline int scratch_write(const scratch_dir *d, const char *name, const void *bytes, size_t n) {
    FILE *f = fopen(scratch_path(d, name), "wb");
    if (!f)
        return -1;
    size_t done = fwrite(bytes, 1, n, f);
    return fclose(f) == 0 && done == n ? 0 : -1;
}

static inline int scratch_entries(const scratch_dir *d) {
    DIR *dir = opendir(d->path);
    int n = 0;
    for (struct dirent *e; dir && (e = readdir(dir));)
        n += e->d_name[0] != '.';
    if (dir)
        closedir(dir);
    return n;
}

static inline void scratch_dir_remove(const scratch_dir *d) {
    DIR *dir = opendir(d->path);
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            if (unlink(scratch_path(d, e->d_name)) != 0)
                rmdir(scratch_path(d, e->d_name));
        }
    if (dir)
        closedir(dir);
    rmdir(d->path);
}

/* With all folders in it. 0: it is gone. */
static inline int scratch_tree_remove(const scratch_dir *d) {
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", d->path);
    return system(command);
}
#endif
