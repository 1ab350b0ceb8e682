/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera doctor: the command. */
#include "doctor.h"

#include "tools/support/command_line.h"

enum { KEY_JSON = 0x100 };

static const tool_page page = {
    .command = "doctor",
    .usage = "[--json]",
    .doc =
        "Shows what works on this machine: processor, limits, libraries, plugins and GPUs, and a training step on one "
        "rank and on two. What does not work has its repair in the next line.\n"
        "A note costs speed or takes one part away. Exit code 0: training works; 1: it does not.",
    .examples = "tessera doctor\n"
                "  one line for each thing that was tried\n"
                "tessera doctor --json\n"
                "  the same as objects, the verdict last\n",
};

static error_t parse(int key, char *text, struct argp_state *state) {
    doctor *d = state->input;
    if (key == ARGP_KEY_ARG)
        return tool_usage_error(state, "unexpected '%s'", text);
    if (key != KEY_JSON)
        return ARGP_ERR_UNKNOWN;
    d->as_json = 1;
    return 0;
}

int cmd_doctor(int argc, char **argv) {
    static const struct argp_option options[] = {
        { "json", KEY_JSON, NULL, 0, "one JSON object per row, and the verdict", 0 }, { 0 }
    };
    const struct argp argp = { options, parse, NULL, NULL, NULL, NULL, NULL };
    doctor d = { 0 };
    json_init(&d.json, stdout);
    int code = tool_parse_page(&page, &argp, 0, argc, argv, &d);
    if (code != TOOL_OK)
        return code;
    doctor_machine(&d);
    doctor_libraries(&d);
    doctor_plugins(&d);
    doctor_trials(&d);
    return doctor_verdict(&d);
}
