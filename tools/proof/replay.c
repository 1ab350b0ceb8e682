/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera replay: runs a command again up to a step, with a ledger of its own, and compares that with the run's. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proof.h"
#include "tools/commands.h"
#include "tools/support/command_line.h"
#include "tools/support/say.h"
#include "tools/support/settings.h"

enum { KEY_STEP = 0x100 };

typedef struct {
    const char *path;
    uint64_t step; /* 0: the last */
    char **command;
} arguments;

static const struct argp_option options[] = {
    { "step", KEY_STEP, "N", 0, "step to run to; unset: the ledger's last", 0 }, { NULL, 0, NULL, 0, NULL, 0 }
};

static error_t parse_step(const struct argp_state *state, const char *text, uint64_t *out) {
    char *end;
    *out = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || !*out)
        return tool_usage_error(state, "--step is '%.40s', expected a step from 1 up", text);
    return 0;
}

static error_t parse(int key, char *text, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case KEY_STEP: return parse_step(state, text, &a->step);
    case ARGP_KEY_ARG:
        if (!a->path) {
            a->path = text;
            return 0;
        }
        a->command = state->argv + state->next - 1;
        state->next = state->argc;
        return 0;
    case ARGP_KEY_END:
        if (!a->path)
            return tool_usage_error(state, "no ledger given");
        return a->command ? 0 : tool_usage_error(state, "no command given: tessera replay LEDGER --step N -- COMMAND");
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const tool_page page = {
    .command = "replay",
    .usage = "LEDGER [--step N] -- COMMAND [ARGUMENT…]",
    .doc = "Runs the command of a run that wrote LEDGER again, up to step N, and compares every step's digests. It "
           "begins with the newest checkpoint before N that the ledger names and the disk has, else with the first "
           "step. The command saves nothing. With --deterministic the number of ranks may be another, and strategy, "
           "units and offload may always be.\n"
           "Exit code 0: equal; 1: a step differs; 6: the ledger is not as it was written, or is another run's.",
    .examples = "tessera replay run.ledger --step 40 -- tessera train gpt -n 2 --deterministic --accum 2\n"
                "  whether two ranks do what four ranks did\n",
};

/* ---- the command ----------------------------------------------------------------------------------- */

typedef struct {
    char dir[PATH_MAX], ledger[PATH_MAX + 16];
} place;

static tess_status make_place(place *p) {
    const char *tmp = getenv("TMPDIR");
    snprintf(p->dir, sizeof p->dir, "%s/tessera-replay-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(p->dir))
        return tess_fail(TESS_E_SYSTEM, "%s: cannot be made: %s", p->dir, strerror(errno));
    snprintf(p->ledger, sizeof p->ledger, "%s/ledger", p->dir);
    return TESS_OK;
}

static void remove_place(const place *p) {
    unlink(p->ledger);
    rmdir(p->dir);
}

/* The newest before `step` that is still there. */
static const proof_checkpoint *choose_start(const proof_ledger *l, uint64_t step) {
    const proof_checkpoint *best = NULL;
    for (size_t i = 0; i < l->n_checkpoints; i++) {
        const proof_checkpoint *c = &l->checkpoints[i];
        if (c->step < step && (!best || c->step >= best->step) && access(c->path, R_OK) == 0)
            best = c;
    }
    return best;
}

/* A command whose run did not begin with step 0 has a checkpoint of its own to begin with. */
static char **make_environment(const proof_ledger *l, const place *p, const proof_checkpoint *from, uint64_t step) {
    char to[24], every[24];
    snprintf(to, sizeof to, "%" PRIu64, step);
    snprintf(every, sizeof every, "%" PRIu64, l->every);
    const tess_setting extra[] = { { "replay", to },
                                   { "ledger-every", every },
                                   { "ledger", p->ledger },
                                   { "replay-ledger", p->ledger },
                                   { "replay-from", from ? from->path : "none" } };
    return tool_settings_environment(extra, from || !l->first ? 5 : 4);
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

static tess_status run(char **command, char **environment, int *code) {
    int status = 0;
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

/* ---- the verdict ----------------------------------------------------------------------------------- */

static tess_status check_same_run(const proof_ledger *l, const proof_ledger *again) {
    char theirs[512], mine[512];
    if (proof_words_differ(l, again, theirs, mine, sizeof mine))
        return tess_fail(TESS_E_DATA, "%s: line 1: it is the ledger of another run, with %s, and the command has %s",
                         l->path, theirs, mine);
    return TESS_OK;
}

/* A difference counts although the command has failed after it. */
static int judge(const proof_ledger *l, const char *path, uint64_t step, int code) {
    proof_ledger again = { .path = NULL };
    tess_status status =
        access(path, F_OK) == 0 ? proof_read(path, &again) : tess_fail(TESS_E_DATA, "the command wrote no ledger");
    if (status == TESS_OK)
        status = check_same_run(l, &again);
    int out = TOOL_OK;
    if (status == TESS_OK && (code == TOOL_OK || again.n_steps))
        out = proof_compare(l, &again, step);
    if (status == TESS_OK && out == TOOL_OK && !proof_find(&again, step))
        status = tess_fail(TESS_E_DATA, "the command ended with code %d before step %" PRIu64, code, step);
    proof_free(&again);
    return status != TESS_OK ? tool_report(status) : out;
}

static tess_status check_step(const proof_ledger *l, uint64_t *step) {
    if (!l->n_steps)
        return tess_fail(TESS_E_DATA, "%s has no step", l->path);
    if (!*step)
        *step = l->steps[l->n_steps - 1].step;
    if (!proof_find(l, *step))
        return tess_fail(TESS_E_DATA,
                         "%s has no step %" PRIu64 ": its %" PRIu64 " lines have steps %" PRIu64 " to %" PRIu64,
                         l->path, *step, l->lines, l->steps[0].step, l->steps[l->n_steps - 1].step);
    return TESS_OK;
}

static void say_doubts(const proof_ledger *l) {
    if (!l->ended)
        tool_say(SAY_WARNING, "%s does not end: its run goes on or was killed, or the file was cut", l->path);
    if (l->unlike)
        tool_say(SAY_WARNING, "%s: line %" PRIu64 ": the step ran again and had another root", l->path, l->unlike);
    if (!l->deterministic)
        tool_say(SAY_WARNING, "%s: the run was not deterministic: on another number of ranks it has other bits",
                 l->path);
}

static int replay(const proof_ledger *l, uint64_t step, char **command) {
    place p;
    int code = TOOL_OK;
    tess_status status = make_place(&p);
    if (status != TESS_OK)
        return tool_report(status);
    const proof_checkpoint *from = choose_start(l, step);
    char **environment = make_environment(l, &p, from, step);
    tool_say(SAY_INFO, "replays to step %" PRIu64 " from %s", step, from ? from->path : "the beginning");
    status = environment ? run(command, environment, &code) : tess_fail(TESS_E_NOMEM, "no memory for the variables");
    int out = status == TESS_OK ? judge(l, p.ledger, step, code) : tool_report(status);
    remove_place(&p);
    return out;
}

int cmd_replay(int argc, char **argv) {
    const struct argp argp = { options, parse, NULL, NULL, NULL, NULL, NULL };
    arguments a = { .path = NULL };
    proof_ledger l = { .path = NULL };
    int code = tool_parse_page(&page, &argp, ARGP_IN_ORDER, argc, argv, &a);
    if (code != TOOL_OK)
        return code;
    tess_status status = proof_read(a.path, &l);
    if (status == TESS_OK)
        status = check_step(&l, &a.step);
    if (status == TESS_OK) {
        say_doubts(&l);
        code = replay(&l, a.step, a.command);
    } else
        code = tool_report(status);
    proof_free(&l);
    return code;
}
