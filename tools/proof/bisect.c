/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera bisect: the first step, unit and kind of value in which two runs differ, by their ledgers. */
#include <inttypes.h>
#include <stdio.h>

#include "proof.h"
#include "tools/commands.h"
#include "tools/support/command_line.h"
#include "tools/support/say.h"

typedef struct {
    const char *path[2];
    int n;
} arguments;

static error_t parse(int key, char *text, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_ARG:
        if (a->n == 2)
            return tool_usage_error(state, "unexpected '%s': two ledgers are compared", text);
        a->path[a->n++] = text;
        return 0;
    case ARGP_KEY_END: return a->n == 2 ? 0 : tool_usage_error(state, "two ledgers are compared, %d given", a->n);
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const tool_page page = {
    .command = "bisect",
    .usage = "LEDGER LEDGER",
    .doc = "Compares two ledgers of digests, which runs wrote with --ledger, and finds the first step that differs. It "
           "names the unit and the kind of value that the step made first, and all others of that step.\n"
           "Exit code 0: the steps that both have are equal; 1: one differs; 6: a ledger is not as it was written.",
    .examples = "tessera bisect a.ledger b.ledger\n"
                "  the first difference of two runs\n",
};

static void say_words(const proof_ledger *l) {
    char mine[512], theirs[512];
    if (proof_words_differ(&l[0], &l[1], mine, theirs, sizeof mine))
        tool_say(SAY_INFO, "the runs differ: %s has %s, %s has %s", l[0].path, mine, l[1].path, theirs);
    for (int i = 0; i < 2; i++)
        if (l[i].unlike)
            tool_say(SAY_WARNING, "%s: line %" PRIu64 ": the step ran again and had another root", l[i].path,
                     l[i].unlike);
}

int cmd_bisect(int argc, char **argv) {
    const struct argp argp = { NULL, parse, NULL, NULL, NULL, NULL, NULL };
    arguments a = { .n = 0 };
    proof_ledger l[2] = { { .path = NULL }, { .path = NULL } };
    int code = tool_parse_page(&page, &argp, 0, argc, argv, &a);
    for (int i = 0; code == TOOL_OK && i < 2; i++)
        if (proof_read(a.path[i], &l[i]) != TESS_OK)
            code = tool_report(TESS_E_DATA);
    if (code == TOOL_OK) {
        say_words(l);
        code = proof_compare(&l[0], &l[1], UINT64_MAX);
    }
    proof_free(&l[0]);
    proof_free(&l[1]);
    return code;
}
