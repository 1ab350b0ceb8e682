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
#include "tools/support/say.h"
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
    tess_setting extra[10] = {
        { "replay", to }, { "ledger-every", every }, { "ledger", p->ledger }, { "replay-ledger", p->ledger }
    };
    uint32_t n = 4;
    if (h->from)
        extra[n++] = (tess_setting){ "replay-from", h->from };
    if (h->saves || h->detail) /* bisect runs four times */
        extra[n++] = (tess_setting){ "quiet", "1" };
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

/* ---- is it the run? --------------------------------------------------------------------------------- */

void again_say_start(const proof_ledger *l, const char *what, uint64_t step, const proof_checkpoint *from) {
    char gone[256] = "", where[64] = "its beginning";
    size_t n = 0;
    for (size_t i = 0; i < l->n_checkpoints && n < sizeof gone; i++) {
        const proof_checkpoint *c = &l->checkpoints[i];
        if (c->step < step && (!from || c->step > from->step) && access(c->path, R_OK) != 0)
            n += (size_t)snprintf(gone + n, sizeof gone - n, "%s %" PRIu64, n ? "," : "", c->step);
    }
    if (l->first && !from)
        snprintf(where, sizeof where, "where the command begins");
    tool_say(SAY_INFO, "%s to step %" PRIu64 " from %s", what, step, from ? from->path : where);
    if (n)
        tool_say(SAY_INFO, "of the checkpoints that %s names these are no longer on disk:%s", l->path, gone);
}

void again_say_doubts(const proof_ledger *l) {
    if (!l->ended)
        tool_say(SAY_WARNING, "%s does not end: its run goes on or was killed, or the file was cut", l->path);
    if (l->unlike)
        tool_say(SAY_WARNING, "%s: line %" PRIu64 ": the step ran again and had another root", l->path, l->unlike);
}

tess_status again_check(const proof_ledger *l, const proof_ledger *again, int warns) {
    char theirs[512], mine[512];
    if (proof_words_differ(l, again, theirs, mine, sizeof mine))
        return tess_fail(TESS_E_DATA, "%s: line 1: it is the ledger of another run, with %s, and the command has %s",
                         l->path, theirs, mine);
    if (warns && proof_steps_differ(l, again, theirs, mine, sizeof mine))
        tool_say(SAY_WARNING, "%s has %s, and the command has %s: the learning rate may differ", l->path, theirs, mine);
    return TESS_OK;
}

tess_status again_compare(const proof_ledger *l, const proof_ledger *again, uint64_t step, proof_finding *out) {
    TRY(proof_compare(l, again, step, out));
    if (out->differs && again->first < l->first)
        return tess_fail(TESS_E_DATA,
                         "%s begins behind step %" PRIu64 ", and the command behind step %" PRIu64
                         ": it needs --resume with the checkpoint of step %" PRIu64,
                         l->path, l->first, again->first, l->first);
    return TESS_OK;
}
