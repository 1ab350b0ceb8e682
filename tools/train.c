/* tessera train MODEL: parses, then runs as one rank, or starts several of itself. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "control.h"
#include "options.h"
#include "train.h"

typedef struct {
    const char *model;
} arguments;

static error_t take_model(arguments *a, const char *word, const struct argp_state *state) {
    size_t n = 0;
    if (a->model)
        return tool_usage_error(state, "one model at a time: '%s' and '%s'", a->model, word);
    for (; train_models[n]; n++)
        if (strcmp(train_models[n], word) == 0) {
            a->model = word;
            return 0;
        }
    const char *near = tool_suggestion(word, train_models, n);
    return tool_usage_error(state, "unknown model '%s'%s", word, *near ? near : "; there are mnist, gpt and linear");
}

static error_t parse(int key, char *text, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_ARG: return take_model(a, text, state);
    case ARGP_KEY_END: return a->model ? 0 : tool_usage_error(state, "no model given; there are mnist, gpt and linear");
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const char doc[] = "Trains MODEL, sharded over the ranks: mnist (a convolutional network on digits), gpt (a "
                          "language model of bytes) or linear (a 3x3 layer). Without --data it trains on data that "
                          "comes with it.";

int cmd_train(int argc, char **argv) {
    struct argp_child children[] = { { tool_common_argp(), 0, NULL, 0 }, { NULL, 0, NULL, 0 } };
    struct argp argp = { NULL, parse, "MODEL", doc, children, NULL, NULL };
    arguments a = { .model = NULL };
    train_settings settings;
    int code = tool_parse(&argp, 0, argc, argv, &a);
    if (code != TOOL_OK)
        return code;
    tess_status status = train_settings_read(a.model, &settings);
    if (status != TESS_OK)
        return tool_report(status);
    signal(SIGXFSZ, SIG_IGN); /* a file size limit is a failed write, with a message */
    return train_rank(&settings);
}
