/* tessera run: starts ranks of any program on this host. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "common.h"
#include "launch.h"

enum { KEY_NO_PREFIX = 0x100, KEY_BIND, RANKS_MAX = 4096 };

typedef struct {
    launch_options launch;
    int ranks_given;
} run_arguments;

static const struct argp_option options[] = {
    { "ranks", 'n', "N", 0, "how many ranks to start", 0 },
    { "no-prefix", KEY_NO_PREFIX, NULL, 0, "leave the output as it is, without \"[rank] \" before each line", 0 },
    { "bind", KEY_BIND, "none|core", 0, "bind each rank to cores of its own (the default, when there are enough)", 0 },
    { NULL, 0, NULL, 0, NULL, 0 },
};

static error_t parse_ranks(struct argp_state *state, run_arguments *a, const char *from, const char *text) {
    char *end;
    long n = strtol(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || n < 1 || n > RANKS_MAX)
        return tool_usage_error(state, "%s is '%.40s', expected 1 to %d", from, text, RANKS_MAX);
    a->launch.ranks = (int32_t)n;
    a->ranks_given = 1;
    return 0;
}

static error_t finish(struct argp_state *state, run_arguments *a) {
    const char *ours = getenv("TESSERA_RANKS"), *world = getenv("WORLD_SIZE");
    error_t error = 0;
    if (!a->launch.argv)
        return tool_usage_error(state, "no program given: tessera run -n N -- PROGRAM [ARGUMENT…]");
    if (!a->ranks_given && ours && *ours)
        error = parse_ranks(state, a, "TESSERA_RANKS", ours);
    else if (!a->ranks_given && world && *world)
        error = parse_ranks(state, a, "WORLD_SIZE", world);
    else if (!a->ranks_given)
        return tool_usage_error(state, "how many ranks? -n N is missing");
    if (error)
        return error;
    if (tess_launch_wanted("run", a->launch.ranks) < 0)
        return EINVAL;
    if (getenv("RANK"))
        return tool_usage_error(state, "RANK is set: this is a rank already, of another launcher");
    return 0;
}

static error_t parse(int key, char *text, struct argp_state *state) {
    run_arguments *a = state->input;
    switch (key) {
    case 'n': return parse_ranks(state, a, "-n", text);
    case KEY_NO_PREFIX: a->launch.prefix = 0; return 0;
    case KEY_BIND:
        if (strcmp(text, "none") != 0 && strcmp(text, "core") != 0)
            return tool_usage_error(state, "--bind is '%.40s', expected none or core", text);
        a->launch.bind = strcmp(text, "core") == 0;
        return 0;
    case ARGP_KEY_ARGS: a->launch.argv = state->argv + state->next; return 0;
    case ARGP_KEY_END: return finish(state, a);
    default: return ARGP_ERR_UNKNOWN;
    }
}

int cmd_run(int argc, char **argv) {
    static const struct argp argp = { options,
                                      parse,
                                      "[--] PROGRAM [ARGUMENT…]",
                                      "Starts ranks of a program on this host, binds them to cores, puts their output "
                                      "together and stops all when one fails.",
                                      NULL,
                                      NULL,
                                      NULL };
    run_arguments a = { .launch = { .prefix = 1, .bind = 1 } };
    int code = tool_parse(&argp, ARGP_IN_ORDER, argc, argv, &a);
    return code ? code : tess_launch(&a.launch);
}
