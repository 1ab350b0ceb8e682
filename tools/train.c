/* tessera train MODEL: parses, then runs as one rank, or starts several of itself. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "launch.h"
#include "options.h"
#include "plan.h"
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
    return tool_usage_error(state, "unknown model '%s'%s", word,
                            *near ? near : "; there are mnist, gpt, convbn and linear");
}

static error_t parse(int key, char *text, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_ARG: return take_model(a, text, state);
    case ARGP_KEY_END:
        return a->model ? 0 : tool_usage_error(state, "no model given; there are mnist, gpt, convbn and linear");
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const char doc[] = "Trains MODEL, sharded over the ranks: mnist (a convolutional network on digits), gpt (a "
                          "language model of bytes), convbn (the network of PyTorch's FSDP memory test) or linear "
                          "(a 3x3 layer). Without --data it trains on data that "
                          "comes with it.";

/* Options are in the environment by now, which the ranks inherit. */
static int start_ranks(const train_settings *settings, int32_t ranks) {
    char *argv[] = { "tessera", "train", (char *)settings->model, NULL };
    tess_status status = train_plan(settings, ranks);
    if (status != TESS_OK)
        return status == TESS_E_BUDGET ? plan_refuse(settings->model, ranks, status) : tool_report(status);
    return tess_launch_self(&(launch_options){ .ranks = ranks, .bind = 1, .ranks_explain = 1, .argv = argv });
}

int cmd_train(int argc, char **argv) {
    struct argp_child children[] = { { tool_common_argp(), 0, NULL, 0 }, { NULL, 0, NULL, 0 } };
    struct argp argp = { NULL, parse, "MODEL", doc, children, NULL, NULL };
    arguments a = { .model = NULL };
    train_settings settings;
    int64_t ranks = 0; /* not said: one, or as many as another launcher started */
    int code = tool_parse(&argp, 0, argc, argv, &a);
    if (code != TOOL_OK)
        return code;
    tess_status status = train_settings_read(a.model, &settings);
    if (status == TESS_OK)
        status = tess__option_int("ranks", 1, 65536, &ranks);
    if (status != TESS_OK)
        return tool_report(status);
    if (settings.quiet && !tess__option_text("log"))
        setenv("TESSERA_LOG", "warning", 1);
    int start = ranks ? tess_launch_wanted("train", ranks) : 0;
    if (start < 0)
        return TOOL_USAGE;
    if (start)
        return start_ranks(&settings, (int32_t)ranks);
    signal(SIGXFSZ, SIG_IGN); /* a file size limit is a failed write, with a message */
    return train_rank(&settings);
}
