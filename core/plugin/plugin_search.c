/* SPDX-License-Identifier: BSD-3-Clause */
#include "plugin_search.h"

#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "open.h"
#include "base/options.h"
#include "plugin_check.h"
#include "trusted_path.h"

#define FILE_PREFIX "libtessera-"
#define FILE_SUFFIX ".so"

static tess_status add_candidate(tess__plugin_search *s, const char *path, size_t bytes) {
    char reason[TESS_REASON_BYTES] = "", real[4096];
    if (s->n == TESS_SEARCH_MAX)
        return TESS_OK;
    char *text = strndup(path, bytes), *why = NULL;
    if (!text)
        return TESS_E_NOMEM;
    if (*text != '/')
        snprintf(reason, sizeof reason, "not an absolute path");
    else
        (void)tess__trusted_path(text, TESS_PATH_DIRECTORY, real, reason, sizeof reason); /* says why not */
    /* A directory that is named twice counts once, under the first name. */
    for (uint32_t i = 0; i < s->n; i++)
        if (strcmp(s->dirs[i].path, *reason ? text : real) == 0) {
            free(text);
            return TESS_OK;
        }
    if (!*reason) {
        free(text);
        text = strdup(real);
    } else
        why = strdup(reason);
    if (!text || (*reason && !why)) {
        free(text);
        return TESS_E_NOMEM;
    }
    s->dirs[s->n].path = text;
    s->dirs[s->n++].reason = why;
    return TESS_OK;
}

static tess_status add_variable(tess__plugin_search *s) {
    const char *text = tess__option_text("plugin-path");
    tess_status status = TESS_OK;
    while (text && status == TESS_OK) {
        size_t n = strcspn(text, ":");
        if (n)
            status = add_candidate(s, text, n);
        text = text[n] ? text + n + 1 : NULL;
    }
    return status;
}

/* Finds the file this code was loaded from: the program, or the shared library when it lives in one. */
static int own_file(char out[4096], int *is_library) {
    Dl_info info;
    if (dladdr((const void *)TESSERA_VERSION, &info) && info.dli_fname && strstr(info.dli_fname, ".so") &&
        realpath(info.dli_fname, out))
        return *is_library = 1;
    ssize_t n = readlink("/proc/self/exe", out, 4095);
    if (n <= 0)
        return 0;
    out[n] = 0;
    return 1;
}

static int program_below(const char *directory) {
    char program[4096];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    size_t m = strlen(directory);
    if (n <= 0)
        return 0;
    program[n] = 0;
    return strncmp(program, directory, m) == 0 && program[m] == '/';
}

/* Finds where an install has its plugins, seen from this file: 1 and the path, when there is such a directory. */
static int find_beside(char path[4096]) {
    char file[4096], tree[4096] = "";
    struct stat st;
    int is_library = 0;
    if (*TESSERA_PLUGIN_SUBDIR == '/' || !own_file(file, &is_library))
        return 0;
    char *slash = strrchr(file, '/');
    if (!slash)
        return 0;
    *slash = 0;
    if (realpath(TESSERA_BUILD_PLUGIN_DIR "/..", tree) && strcmp(tree, file) == 0)
        return 0; /* the build's own, which may be installed around it */
    int n = snprintf(path, 4096, "%s/%s%s", file, is_library ? "" : "../",
                     is_library ? TESSERA_PLUGINS_FROM_LIBRARY : TESSERA_PLUGIN_SUBDIR);
    return n < 4096 && stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Adds the folder of an install beside this file, wherever it is; else that of the build that the program lies in. */
static tess_status add_own(tess__plugin_search *s) {
    char path[4096], tree[4096];
    if (find_beside(path))
        return add_candidate(s, path, strlen(path));
    if (!realpath(TESSERA_BUILD_PLUGIN_DIR "/..", tree) || !program_below(tree))
        return TESS_OK;
    return add_candidate(s, TESSERA_BUILD_PLUGIN_DIR, strlen(TESSERA_BUILD_PLUGIN_DIR));
}

tess_status tess__plugin_search_init(tess__plugin_search *s) {
    memset(s, 0, sizeof *s);
    tess_status status = add_variable(s);
    if (status == TESS_OK)
        status = add_own(s);
    if (status == TESS_OK)
        status = add_candidate(s, TESSERA_INSTALL_PLUGIN_DIR, strlen(TESSERA_INSTALL_PLUGIN_DIR));
    if (status)
        tess__plugin_search_finish(s);
    return status;
}

void tess__plugin_search_finish(tess__plugin_search *s) {
    for (uint32_t i = 0; i < s->n; i++) {
        free(s->dirs[i].path);
        free(s->dirs[i].reason);
    }
    s->n = 0;
}

/* Splits "libtessera-comm-gloo.so" into TESS_KIND_COMM and "gloo"; 0 when it is no plugin's name. */
static uint32_t split_name(const char *file, char name[32]) {
    size_t n = strlen(file), prefix = sizeof FILE_PREFIX - 1, suffix = sizeof FILE_SUFFIX - 1;
    if (n <= prefix + suffix || strncmp(file, FILE_PREFIX, prefix) != 0 || strcmp(file + n - suffix, FILE_SUFFIX) != 0)
        return 0;
    for (uint32_t kind = 1; tess__kind_name(kind); kind++) {
        const char *word = tess__kind_name(kind);
        size_t m = strlen(word);
        if (strncmp(file + prefix, word, m) != 0 || file[prefix + m] != '-')
            continue;
        const char *from = file + prefix + m + 1;
        size_t length = (size_t)(file + n - suffix - from);
        if (length == 0 || length > 31)
            return 0;
        memcpy(name, from, length);
        name[length] = 0;
        return kind;
    }
    return 0;
}

static int is_plugin(const struct dirent *e) {
    char name[32];
    return split_name(e->d_name, name) != 0;
}

static tess_status each_in(const char *directory,
                           tess_status (*file)(void *user, uint32_t kind, const char *name, const char *path),
                           void *user) {
    struct dirent **entries;
    int n = scandir(directory, &entries, is_plugin, alphasort);
    tess_status status = TESS_OK;
    for (int i = 0; i < n; i++) {
        char name[32], path[4096 + 300];
        uint32_t kind = split_name(entries[i]->d_name, name);
        snprintf(path, sizeof path, "%s/%s", directory, entries[i]->d_name);
        if (status == TESS_OK)
            status = file(user, kind, name, path);
        free(entries[i]);
    }
    if (n >= 0)
        free(entries);
    return status;
}

tess_status tess__plugin_search_each(const tess__plugin_search *s,
                                     tess_status (*file)(void *user, uint32_t kind, const char *name, const char *path),
                                     void *user) {
    tess_status status = TESS_OK;
    for (uint32_t i = 0; i < s->n && status == TESS_OK; i++)
        if (!s->dirs[i].reason)
            status = each_in(s->dirs[i].path, file, user);
    return status;
}
