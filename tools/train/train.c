/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera train MODEL: parses the options, then runs as one rank or starts several ranks. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "tools/support/command_line.h"
#include "tools/support/options.h"
#include "tools/support/say.h"
#include "tools/launch/restart.h"
#include "tools/plan/model_settings.h"
#include "train.h"
#include "tools/support/settings.h"

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
    char names[128];
    const char *near = tool_suggestion(word, train_models, n);
    if (*near)
        return tool_usage_error(state, "unknown model '%s'%s", word, near);
    return tool_usage_error(state, "unknown model '%s'; there are %s", word, train_model_names(names));
}

static error_t parse(int key, char *text, struct argp_state *state) {
    arguments *a = state->input;
    char names[128];
    switch (key) {
    case ARGP_KEY_ARG: return take_model(a, text, state);
    case ARGP_KEY_END:
        return a->model ? 0 : tool_usage_error(state, "no model given; there are %s", train_model_names(names));
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const tool_page page = {
    .command = "train",
    .usage = "MODEL [OPTION…]",
    .doc =
        "Trains MODEL, sharded over the ranks. With -n N the command starts N ranks of itself; under another launcher "
        "it is one rank of that launcher's world.",
    .subjects_title = "Models",
    .subjects = plan_subjects,
    .by_subject = 1,
    .examples = "tessera train mnist -n 2\n"
                "  two ranks on digits that the tool draws\n"
                "tessera train gpt -n 4 --data input.txt --steps 500 --wrap auto:2MiB\n"
                "  a language model of your text, in units of at most 2 MiB\n"
                "tessera train gpt -n 2 --offload cpu --activations recompute --report run.html\n"
                "  with little device memory, and a page of where it went\n"
                "tessera train gpt2 -n 2 --model FOLDER --data tokens/ --export tuned\n"
                "  fine-tuning of a Hugging Face folder, into another\n"
                "tessera train llama -n 2 --config config.json --precision bf16\n"
                "  from scratch, with bf16 copies for the kernels\n"
                "tessera train qwen2 -n 2 --model FOLDER --data texts/ --export tuned\n"
                "  fine-tuning on texts\n"
                "tessera train qwen3 --model FOLDER --steps 0 --sample 100 --prompt Hello\n"
                "  a sample of the model as it is\n"
                "tessera train mistral -n 2 --model FOLDER --data tokens/ --freeze 'embed.*'\n"
                "  with the embedding as it is\n"
                "tessera train gemma2 -n 2 --model FOLDER --data tokens/ --offload cpu\n"
                "  with the optimizer in the host's memory\n"
                "tessera train gemma3 -n 2 --config config.json --data tokens/\n"
                "  from scratch\n"
                "tessera train convbn -n 2 --image-size 64 --steps 3\n"
                "  images of noise\n"
                "tessera train linear -n 4\n"
                "  whether four ranks compute what one computes",
    .shared = TOOL_TRAIN,
    .fallback = plan_fallback,
};

enum { REPLAY_SAVES_EVERY = 8 };

/* tessera replay and bisect run a command up to a step: from a checkpoint of theirs, and what it writes is theirs. */
static tess_status take_replay(train_settings *s) {
    int64_t step = 0;
    const char *from = tool_option_text("replay-from"), *ledger = tool_option_text("replay-ledger");
    TRY(tool_option_int("replay", &step));
    if (!step)
        return TESS_OK;
    s->replay = (uint64_t)step;
    s->export_to = s->csv = s->tensorboard = s->watch = s->json = s->report = NULL;
    s->keep_best = 0;
    s->save = tool_option_text("replay-save");
    s->save_every = REPLAY_SAVES_EVERY;
    s->keep = s->save ? 0 : s->keep;
    if (from && strcmp(from, "none") != 0)
        s->resume = from;
    else if (from && train_resumes_checkpoint(s))
        s->resume = NULL;
    TRY(tool_settings_set("restarts", "0"));
    return ledger ? tool_settings_set("ledger", ledger) : TESS_OK;
}

/* The ranks get the same arguments, because a rank ignores -n. */
static int start_ranks(const train_settings *settings, int32_t ranks, int argc, char **argv) {
    train_settings adapted = *settings;
    tess_status status = train_resume_adapt(&adapted, ranks);
    if (status == TESS_OK)
        status = train_plan(&adapted, ranks);
    if (status != TESS_OK)
        return tool_report(status);
    char **words = calloc((size_t)argc + 2, sizeof *words);
    if (!words)
        return TOOL_MEMORY;
    words[0] = "tessera";
    words[1] = "train";
    memcpy(words + 2, argv + 1, (size_t)(argc - 1) * sizeof *words);
    int64_t restarts = 0;
    int code = tool_option_int("restarts", &restarts) != TESS_OK ? TOOL_CONFIG : TOOL_OK;
    if (code == TOOL_OK)
        code = restart_launch(
            &(launch_options){ .ranks = ranks, .bind = 1, .ranks_explain = 1, .argv = words },
            &(restart_options){ .restarts = (int32_t)restarts, .replacements = RESTART_MOST_REPLACED, .self = 1 });
    free(words);
    return code;
}

int cmd_train(int argc, char **argv) {
    struct argp_child children[] = { { tool_common_argp(), 0, NULL, 0 }, { NULL, 0, NULL, 0 } };
    struct argp argp = { NULL, parse, NULL, NULL, children, NULL, NULL };
    arguments a = { .model = NULL };
    train_settings settings;
    int64_t ranks = 0; /* 0: one rank, or as many as another launcher started */
    int code = tool_parse_page(&page, &argp, 0, argc, argv, &a);
    if (code != TOOL_OK)
        return code;
    tess_status status = train_settings_read(a.model, &settings);
    if (status == TESS_OK)
        status = take_replay(&settings);
    if (status == TESS_OK)
        status = tool_option_ranks(65536, &ranks);
    if (status != TESS_OK)
        return tool_report(status);
    if (settings.quiet && !tool_option_text("log"))
        tool_settings_set("log", "warning");
    int start = ranks ? launch_wanted("train", ranks) : 0;
    if (start < 0)
        return TOOL_USAGE;
    if (start)
        return start_ranks(&settings, (int32_t)ranks, argc, argv);
    signal(SIGXFSZ, SIG_IGN); /* so that a write over the size limit fails with a message */
    return train_rank(&settings);
}
