/* SPDX-License-Identifier: BSD-3-Clause */
#include "again.h"

#include <errno.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/commands.h"
#include "tools/support/settings.h"

tess_status again_place_make(again_place *p) {
    const char *tmp = getenv("TMPDIR");
    snprintf(p->dir, sizeof p->dir, "%s/tessera-replay-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(p->dir)) {
        tess_status status = tess_fail(TESS_E_SYSTEM, "%s: cannot be made: %s", p->dir, strerror(errno));
        p->dir[0] = 0;
        return status;
    }
    snprintf(p->ledger, sizeof p->ledger, "%s/ledger", p->dir);
    return TESS_OK;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

void again_place_remove(const again_place *p) {
    if (p->dir[0])
        nftw(p->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static char **make_environment(const again_place *p, const again_how *h) {
    char to[24], every[24], saved[PATH_MAX];
    snprintf(to, sizeof to, "%" PRIu64, h->step);
    snprintf(every, sizeof every, "%" PRIu64, h->every ? h->every : 1);
    snprintf(saved, sizeof saved, "%s/saved", p->dir);
    tess_setting extra[9] = {
        { "replay", to }, { "ledger-every", every }, { "ledger", p->ledger }, { "replay-ledger", p->ledger }
    };
    uint32_t n = 4;
    if (h->from)
        extra[n++] = (tess_setting){ "replay-from", h->from };
    if (h->saves)
        extra[n++] = (tess_setting){ "replay-save", saved };
    if (h->detail) {
        extra[n++] = (tess_setting){ "detail", p->dir };
        extra[n++] = (tess_setting){ "detail-step", to };
    }
    if (h->values)
        extra[n++] = (tess_setting){ "detail-values", h->values };
    return tool_settings_environment(extra, n);
}

/* Its output goes to standard error, so that standard output has the verdict alone. */
static void become(char **command, char **environment) {
    dup2(2, 1);
    if (strcmp(command[0], "tessera") == 0)
        execve("/proc/self/exe", command, environment);
    execvpe(command[0], command, environment);
    fprintf(stderr, "tessera: %s: %s\n", command[0], strerror(errno));
    _exit(TOOL_CONFIG);
}

tess_status again_run(char **command, const again_place *p, const again_how *h, int *code) {
    int status = 0;
    char **environment = make_environment(p, h);
    if (!environment)
        return tess_fail(TESS_E_NOMEM, "no memory for the variables");
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        become(command, environment);
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (child < 0)
        return tess_fail(TESS_E_SYSTEM, "cannot start %s: %s", command[0], strerror(errno));
    *code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return TESS_OK;
}

const proof_checkpoint *again_start(const proof_ledger *l, uint64_t step) {
    const proof_checkpoint *best = NULL;
    for (size_t i = 0; i < l->n_checkpoints; i++) {
        const proof_checkpoint *c = &l->checkpoints[i];
        if (c->step < step && (!best || c->step >= best->step) && access(c->path, R_OK) == 0)
            best = c;
    }
    return best;
}
