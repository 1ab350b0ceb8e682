/* SPDX-License-Identifier: BSD-3-Clause */
/* Shared by the verbs. */
#include "ckpt.h"

#include <stdlib.h>
#include <unistd.h>

void ckpt_progress(const ckpt_arguments *a, const char *what, uint64_t done, uint64_t total) {
    if (a->quiet || !isatty(STDERR_FILENO))
        return;
    enum { WIDTH = 30 };
    int filled = (int)(total ? WIDTH * done / total : WIDTH);
    fprintf(stderr, "\r%.40s [%.*s%*s] %3d %%%s", what, filled, "##############################", WIDTH - filled, "",
            (int)(total ? 100 * done / total : 100), done == total ? "\n" : "");
}

tess_status ckpt_find(const char *path, char out[PATH_MAX]) {
    uint64_t *steps = NULL, n = 0;
    tess__manifest m;
    if (tess__is_checkpoint(&tess__disk_real, path)) {
        snprintf(out, PATH_MAX, "%s", path);
        return TESS_OK;
    }
    tess_status status = tess__store_line(&tess__disk_real, path, &steps, &n);
    if (status)
        return status;
    int found = 0;
    while (!found && n)
        if (tess__step_dir(path, steps[--n], out) == TESS_OK &&
            tess__saved_manifest(&tess__disk_real, out, &m) == TESS_OK) {
            tess__manifest_free(&m);
            found = 1;
        }
    free(steps);
    return found ? TESS_OK : tess_fail(TESS_E_DATA, "%s: no checkpoint, nor a directory of some", path);
}

int ckpt_json_end(ckpt_arguments *a) {
    json_object_end(&a->json);
    return json_line(&a->json);
}
