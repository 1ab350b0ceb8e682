/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera replay: runs a command again up to a step, with a ledger of its own, and compares that with the run's. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "again.h"
#include "output.h"
#include "tools/commands.h"
#include "tools/support/command_line.h"
#include "tools/support/say.h"

enum { KEY_STEP = 0x100, KEY_JSON };

typedef struct {
    const char *path;
    uint64_t step; /* 0: the last */
    char **command;
    const char *json;
    proof_output output;
} arguments;

static const struct argp_option options[] = {
    { "step", KEY_STEP, "N", 0, "step to run to; unset: the ledger's last", 0 },
    { "json", KEY_JSON, "FILE", OPTION_ARG_OPTIONAL, "one JSON object, to FILE; no FILE: standard output", 0 },
    { NULL, 0, NULL, 0, NULL, 0 }
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
    case KEY_JSON: a->json = text ? text : "1"; return 0;
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
    .usage = "LEDGER [OPTION…] -- COMMAND [ARGUMENT…]",
    .doc = "Runs the command of a run that wrote LEDGER again, up to step N, and compares every step's digests. It "
           "begins with the newest checkpoint before N that the ledger names and the disk has, else with the first "
           "step. The command is the run's own, --steps too. It saves nothing. With --deterministic the number of "
           "ranks may be another, and strategy, "
           "units and offload may always be.\n"
           "Exit code 0: equal; 1: a step differs; 6: the ledger is not as it was written, or is another run's.",
    .examples = "tessera replay run.ledger --step 40 -- tessera train gpt -n 2 --deterministic --steps 100 --accum 2\n"
                "  whether two ranks do what four ranks did\n",
};

/* ---- the verdict ----------------------------------------------------------------------------------- */

/* A difference counts although the command has failed after it. */
static int judge(arguments *a, const proof_ledger *l, const char *path, int code) {
    uint64_t step = a->step;
    proof_ledger again = { .path = NULL };
    proof_finding found = { .n = 0 };
    tess_status status =
        access(path, F_OK) == 0 ? proof_read(path, &again) : tess_fail(TESS_E_DATA, "the command wrote no ledger");
    if (status == TESS_OK)
        status = again_check(l, &again, 1);
    if (status == TESS_OK && (code == TOOL_OK || again.n_steps))
        status = again_compare(l, &again, step, &found);
    if (status == TESS_OK && !found.differs && !proof_find(&again, step))
        status = tess_fail(TESS_E_DATA, "the command ended with code %d before step %" PRIu64, code, step);
    int out = status == TESS_OK ? proof_say(&a->output, &found, l) : TOOL_OK;
    if (status == TESS_OK) {
        proof_json_begin(&a->output, "replay", &found);
        status = proof_json_end(&a->output);
    }
    out = status == TESS_OK ? out : tool_report(status);
    proof_free(&again);
    return out;
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
    again_say_doubts(l);
    if (!l->deterministic)
        tool_say(SAY_WARNING, "%s: the run was not deterministic: on another number of ranks it has other bits",
                 l->path);
}

/* A command whose run did not begin with step 0 has a checkpoint of its own to begin with. */
static int replay(arguments *a, const proof_ledger *l) {
    uint64_t step = a->step;
    again_place p;
    int code = TOOL_OK;
    tess_status status = again_place_make(&p);
    if (status != TESS_OK)
        return tool_report(status);
    const proof_checkpoint *from = again_start(l, step);
    again_how how = { .step = step, .every = l->every, .from = from ? from->path : l->first ? NULL : "none" };
    again_say_start(l, "replays", step, from);
    status = again_run(a->command, &p, &how, &code);
    int out = status == TESS_OK ? judge(a, l, p.ledger, code) : tool_report(status);
    again_place_remove(&p);
    return out;
}

int cmd_replay(int argc, char **argv) {
    const struct argp argp = { options, parse, NULL, NULL, NULL, NULL, NULL };
    arguments a = { .path = NULL };
    proof_ledger l = { .path = NULL };
    int code = tool_parse_page(&page, &argp, ARGP_IN_ORDER, argc, argv, &a);
    if (code != TOOL_OK)
        return code;
    tess_status status = proof_output_open(a.json, &a.output);
    if (status == TESS_OK)
        status = proof_read(a.path, &l);
    if (status == TESS_OK)
        status = check_step(&l, &a.step);
    if (status == TESS_OK) {
        say_doubts(&l);
        code = replay(&a, &l);
    } else
        code = tool_report(status);
    proof_free(&l);
    proof_output_close(&a.output);
    return code;
}
