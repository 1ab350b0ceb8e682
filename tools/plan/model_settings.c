/* SPDX-License-Identifier: BSD-3-Clause */
#include "model_settings.h"

#include <stdlib.h>
#include <string.h>

#include "tools/plugins/plugin_takes.h"
#include "tools/support/options.h"
#include "tools/support/say.h"
#include <tessera/tessera.h>
#include "tools/support/hf_family.h"

const char *const train_models[] = { "mnist",   "gpt",    "gpt2",   "llama",  "qwen2",  "qwen3",
                                     "mistral", "gemma2", "gemma3", "convbn", "linear", NULL };

const char *train_model_names(char out[128]) {
    size_t at = 0;
    for (const char *const *m = train_models; *m && at < 128; m++)
        at += (size_t)snprintf(out + at, 128 - at, "%s%s", m == train_models ? "" : m[1] ? ", " : " and ", *m);
    return out;
}

static const char language_schedule[] = "cosine";

static const train_settings defaults[] = {
    /* The PyTorch FSDP tutorial's. */
    { .model = "mnist", .batch = 64, .epochs = 5, .optimizer = "adadelta", .lr = 1.0, .schedule = "step" },
    { .model = "gpt",
      .batch = 6,
      .steps = 2000,
      .optimizer = "adamw",
      .lr = 2e-3,
      .weight_decay = 0.1,
      .clip = 1.0,
      .beta2 = 0.99,
      .layers = 4,
      .heads = 4,
      .width = 128,
      .context = 64,
      .sample = 300 },
#define OF_TOKENS(name)                                                                                                \
    {                                                                                                                  \
        .model = name, .batch = 4, .steps = 500, .optimizer = "adamw", .lr = 3e-4, .weight_decay = 0.1, .clip = 1.0,   \
        .beta2 = 0.95                                                                                                  \
    }
    OF_TOKENS("gpt2"),
    OF_TOKENS("llama"),
    OF_TOKENS("qwen2"),
    OF_TOKENS("qwen3"),
    OF_TOKENS("mistral"),
    OF_TOKENS("gemma2"),
    OF_TOKENS("gemma3"),
    /* PyTorch's FSDP memory test's. */
    { .model = "convbn",
      .batch = 2,
      .steps = 4,
      .optimizer = "sgd",
      .schedule = "constant",
      .lr = 1e-4,
      .momentum = 0.9,
      .image_size = 224,
      .hidden = 128 },
    { .model = "linear", .batch = 1, .steps = 1, .optimizer = "sgd", .lr = 0.125, .schedule = "constant" },
};

const tool_subject plan_subjects[] = {
    { "mnist", "a convolutional network on digits; without --data the tool draws them" },
    { "gpt", "a language model of bytes; without --data on Tessera's documentation" },
    { "gpt2", "GPT-2 from a Hugging Face folder (--model) or from scratch (--config)" },
    { "llama", "Llama from a Hugging Face folder (--model) or from scratch (--config)" },
    { "qwen2", "Qwen 2 or 2.5 from a Hugging Face folder (--model) or from scratch (--config)" },
    { "qwen3", "Qwen 3 from a Hugging Face folder (--model) or from scratch (--config)" },
    { "mistral", "Mistral from a Hugging Face folder (--model) or from scratch (--config)" },
    { "gemma2", "Gemma 2 from a Hugging Face folder (--model) or from scratch (--config)" },
    { "gemma3", "Gemma 3 of text from a Hugging Face folder (--model) or from scratch (--config)" },
    { "convbn", "the network of PyTorch's FSDP memory test, on images of noise" },
    { "linear", "one 3 x 3 layer for one step, compared with its closed form" },
    { NULL, NULL },
};

static const train_settings *defaults_of(const char *model) {
    for (size_t i = 0; model && i < sizeof defaults / sizeof defaults[0]; i++)
        if (strcmp(defaults[i].model, model) == 0)
            return &defaults[i];
    return NULL;
}

const char *plan_fallback(const char *model, const char *key, char out[64]) {
    const train_settings *s = defaults_of(model);
    if (!s)
        return NULL;
    const struct {
        const char *key;
        double value;
    } rows[] = {
        { "batch", (double)s->batch },
        { "steps", (double)s->steps },
        { "epochs", (double)s->epochs },
        { "lr", s->lr },
        { "beta2", s->beta2 },
        { "momentum", s->momentum },
        { "weight-decay", s->weight_decay },
        { "clip", s->clip },
        { "layers", (double)s->layers },
        { "heads", (double)s->heads },
        { "width", (double)s->width },
        { "context", (double)s->context },
        { "image-size", (double)s->image_size },
        { "hidden", (double)s->hidden },
        { "sample", (double)s->sample },
    };
    if (strcmp(key, "optimizer") == 0)
        return s->optimizer;
    if (strcmp(key, "schedule") == 0)
        return s->schedule ? s->schedule : language_schedule;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(rows[i].key, key) == 0 && (rows[i].value > 0 || strcmp(key, "clip") == 0)) {
            snprintf(out, 64, "%.10g", rows[i].value);
            return out;
        }
    return NULL;
}

static tess_status read_optimizer(train_settings *s) {
    const char *name = tool_option_text("optimizer");
    if (name && strcmp(name, s->optimizer) != 0) { /* another one than the model's own: its usual rate */
        s->optimizer = name;
        s->lr = strcmp(name, "adadelta") == 0 ? 1.0 : strcmp(name, "sgd") == 0 ? 0.01 : 1e-3;
        s->weight_decay = s->momentum = 0;
        s->beta2 = 0;
    }
    static const char *const keys[] = { "lr", "momentum", "weight-decay", "clip" };
    double *const values[] = { &s->lr, &s->momentum, &s->weight_decay, &s->clip };
    for (int i = 0; i < 4; i++)
        TRY(tool_option_real(keys[i], values[i]));
    if (s->lr < 0 || s->momentum < 0 || s->weight_decay < 0 || s->clip < 0)
        return tess_fail(TESS_E_INVALID, "TESSERA_LR, _MOMENTUM, _WEIGHT_DECAY or _CLIP is negative");
    if (s->momentum > 0 && (strcmp(s->optimizer, "adadelta") == 0 || strcmp(s->optimizer, "adam") == 0 ||
                            strcmp(s->optimizer, "adamw") == 0))
        return tess_fail(TESS_E_INVALID, "momentum is set, but only sgd has one and the optimizer is %s", s->optimizer);
    return TESS_OK;
}

/* The numbers of Adam and its kin. One that a built-in optimizer does not have is refused; a plugin gets them all. */
static tess_status read_moments(train_settings *s) {
    int is_sgd = strcmp(s->optimizer, "sgd") == 0, has_betas = !is_sgd && strcmp(s->optimizer, "adadelta") != 0;
    const struct {
        const char *key;
        double *value;
        int has_one;
        const char *who;
    } rows[] = { { "beta1", &s->beta1, has_betas, "adam, adamw and plugins" },
                 { "beta2", &s->beta2, has_betas, "adam, adamw and plugins" },
                 { "eps", &s->eps, !is_sgd, "adam, adamw, adadelta and plugins" } };
    for (int i = 0; i < 3; i++) {
        if (!tool_option_text(rows[i].key))
            continue;
        TRY(tool_option_real(rows[i].key, rows[i].value));
        if (!rows[i].has_one)
            return tess_fail(TESS_E_INVALID, "%s is set, but only %s have one and the optimizer is %s", rows[i].key,
                             rows[i].who, s->optimizer);
        if (!(*rows[i].value > 0 && *rows[i].value < 1))
            return tess_fail(TESS_E_INVALID, "%s is %g, expected a number above 0 and below 1", rows[i].key,
                             *rows[i].value);
    }
    return TESS_OK;
}

/* A plugin may say which numbers it takes. One that the user gives and it does not take would change nothing. */
static tess_status check_taken(const train_settings *s) {
    static const char *const builtin[] = { "sgd", "adam", "adamw", "adadelta", NULL };
    static const struct {
        const char *key;
        uint64_t bit;
    } rows[] = { { "momentum", TESS_TAKES_MOMENTUM },
                 { "beta1", TESS_TAKES_BETA1 },
                 { "beta2", TESS_TAKES_BETA2 },
                 { "eps", TESS_TAKES_EPS } };
    uint64_t given = 0, takes;
    for (int i = 0; i < 4; i++)
        given |= tool_option_text(rows[i].key) ? rows[i].bit : 0;
    for (int i = 0; builtin[i]; i++)
        if (strcmp(s->optimizer, builtin[i]) == 0)
            return TESS_OK;
    takes = given ? plugin_optimizer_takes(s->optimizer) : 0;
    for (int i = 0; takes && i < 4; i++)
        if (given & ~takes & rows[i].bit)
            return tess_fail(TESS_E_INVALID, "%s is set, but the optimizer %s does not take it", rows[i].key,
                             s->optimizer);
    return TESS_OK;
}

static tess_status read_schedule(train_settings *s) {
    train_group run = { .lr = s->lr, .warmup = -1, .min_lr = -1, .weight_decay = -1 };
    run.schedule = s->schedule ? s->schedule : language_schedule;
    TRY(tool_option_choice("schedule", &run.schedule));
    TRY(tool_option_int("warmup", &run.warmup));
    TRY(tool_option_real("min-lr", &run.min_lr));
    if (tool_option_text("min-lr") && !(run.min_lr >= 0))
        return tess_fail(TESS_E_INVALID, "min-lr is %g, expected a rate from 0 to lr, %g", run.min_lr, s->lr);
    TRY(group_settings_check(s->model, "", &run));
    s->schedule = run.schedule;
    s->warmup = run.warmup;
    s->min_lr = run.min_lr;
    s->groups_text = tool_option_text("groups");
    run.min_lr = -1;
    return group_settings_read(s->model, s->groups_text, &run, s->groups, &s->n_groups);
}

static tess_status read_guard(train_settings *s) {
    s->on_nan = "stop";
    TRY(tool_option_choice("on-nan", &s->on_nan));
    return tool_option_real("spike", &s->spike);
}

static tess_status read_length(train_settings *s) {
    int64_t steps = 0, epochs = 0;
    int says_steps = tool_option_text("steps") != NULL; /* 0: an evaluation, and a sample */
    TRY(tool_option_int("steps", &steps));
    TRY(tool_option_int("epochs", &epochs));
    if (epochs && strcmp(s->model, "mnist") != 0)
        return tess_fail(TESS_E_INVALID, "epochs is set, but %s counts steps", s->model);
    if (says_steps)
        s->epochs = epochs = 0;
    if (says_steps || epochs) {
        s->steps = (uint64_t)steps;
        s->epochs = (uint64_t)epochs;
    }
    return TESS_OK;
}

static tess_status read_whole_numbers(train_settings *s) {
    int64_t seed = 1, save_every = 0, keep = 3, eval_every = 0, patience = 0;
    const struct {
        const char *key;
        int64_t *value;
    } rows[] = {
        { "batch", &s->batch },     { "accum", &s->accum },
        { "threads", &s->threads }, { "layers", &s->layers },
        { "heads", &s->heads },     { "width", &s->width },
        { "context", &s->context }, { "image-size", &s->image_size },
        { "hidden", &s->hidden },   { "head-rows", &s->head_rows },
        { "seed", &seed },          { "save-every", &save_every },
        { "keep", &keep },          { "eval-every", &eval_every },
        { "patience", &patience },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        TRY(tool_option_int(rows[i].key, rows[i].value));
    s->seed = (uint64_t)seed;
    s->save_every = (uint64_t)save_every;
    s->keep = (uint64_t)keep;
    s->eval_every = (uint64_t)eval_every;
    s->patience = (uint64_t)patience;
    if (s->heads && s->width && s->width % s->heads != 0)
        return tess_fail(TESS_E_INVALID, "width %lld is not a multiple of heads %lld", (long long)s->width,
                         (long long)s->heads);
    return TESS_OK;
}

/* The shape of a model in a folder is its own. */
static tess_status check_folder(const train_settings *s) {
    static const char *const shapes[] = { "layers", "heads", "width" };
    char names[128];
    if (!s->folder && !s->config)
        return TESS_OK;
    if (!s->model || !hf_family_find(s->model))
        return tess_fail(TESS_E_INVALID, "model or config is set, but %s is made by its options: %s read them",
                         s->model, hf_family_names(0, "and", names));
    if (s->folder && s->config)
        return tess_fail(TESS_E_INVALID, "model and config are both set: a folder has its own config.json");
    for (int i = 0; i < 3; i++)
        if (tool_option_text(shapes[i]))
            return tess_fail(TESS_E_INVALID, "%s is set, but config.json says it", shapes[i]);
    return TESS_OK;
}

static tess_status read_sample(train_settings *s) {
    int64_t sample = (int64_t)s->sample, top_k = 0;
    s->temperature = 0.8;
    TRY(tool_option_int("sample", &sample));
    TRY(tool_option_int("top-k", &top_k));
    TRY(tool_option_real("temperature", &s->temperature));
    if (!(s->temperature >= 0))
        return tess_fail(TESS_E_INVALID, "TESSERA_TEMPERATURE is below 0");
    s->sample = (uint64_t)sample;
    s->top_k = (uint64_t)top_k;
    s->prompt = tool_option_text("prompt");
    return TESS_OK;
}

/* Reads options that depend on evaluations, so the model needs held-out data. */
static tess_status read_best(train_settings *s) {
    static const char *const keys[] = { "eval-every", "patience", "keep-best" };
    int has_some = strcmp(s->model, "convbn") != 0 && strcmp(s->model, "linear") != 0;
    TRY(tool_option_flag("keep-best", &s->keep_best));
    for (int i = 0; i < 3 && !has_some; i++)
        if (tool_option_text(keys[i]))
            return tess_fail(TESS_E_INVALID, "%s is set, but %s has no data that is held out", keys[i], s->model);
    if (s->keep_best && !s->save)
        return tess_fail(TESS_E_INVALID, "keep-best is set, but no checkpoint is saved: it needs --save DIR");
    return TESS_OK;
}

static tess_status read_lora(train_settings *s) {
    TRY(tool_option_flag("merge", &s->merge));
    s->lora = tool_option_text("lora");
    if (s->merge && (!s->lora || !s->export_to))
        return tess_fail(TESS_E_INVALID, "merge is set, but %s is not: it is for an export of adapters",
                         s->lora ? "export" : "lora");
    return TESS_OK;
}

/* --val: a number is a share, all else a path. */
static tess_status read_data(train_settings *s) {
    const char *valid = tool_option_text("val");
    char *end = NULL;
    s->data = tool_option_text("data");
    s->tokenizer = tool_option_text("tokenizer");
    double share = valid ? strtod(valid, &end) : 0;
    if (valid && (end == valid || *end))
        s->valid = valid;
    else if (valid && !(share > 0 && share < 1))
        return tess_fail(TESS_E_INVALID, "--val is '%.40s', expected a path, or a share between 0 and 1", valid);
    s->valid_share = s->valid ? 0 : share;
    return tool_option_flag("pack", &s->pack);
}

static void read_texts(train_settings *s) {
    s->folder = tool_option_text("model");
    s->config = tool_option_text("config");
    s->freeze = tool_option_text("freeze");
    s->csv = tool_option_text("csv");
    s->watch = tool_option_text("watch");
    s->tensorboard = tool_option_text("tensorboard");
    s->save = tool_option_text("save");
    s->resume = tool_option_text("resume");
    s->export_to = tool_option_text("export");
    s->json = tool_option_text("json");
    s->report = tool_option_text("report");
    s->isa = tool_option_text("isa");
    if (s->isa && strcmp(s->isa, "auto") == 0)
        s->isa = NULL;
}

static tess_status read_attention(train_settings *s) {
    const char *attention = "own";
    TRY(tool_option_choice("attention", &attention));
    s->attention = attention, s->cudnn_attention = strcmp(attention, "cudnn") == 0;
    s->attention_products = strcmp(attention, "five") == 0 ? 5 : strcmp(attention, "seven") == 0 ? 7 : 0;
    return TESS_OK;
}

tess_status train_settings_read(const char *model, train_settings *out) {
    const train_settings *usual = defaults_of(model);
    train_settings s = usual ? *usual : (train_settings){ .model = NULL };
    const char *sync = "each", *units = "layer";
    s.accum = 1;
    TRY(read_whole_numbers(&s));
    TRY(read_length(&s));
    TRY(read_optimizer(&s));
    TRY(read_moments(&s));
    TRY(check_taken(&s));
    TRY(read_schedule(&s));
    TRY(read_guard(&s));
    TRY(read_sample(&s));
    TRY(read_data(&s));
    TRY(tool_option_flag("quiet", &s.quiet));
    if (tool_option_text("peak-flops"))
        TRY(tool_option_real("peak-flops", &s.peak_flops));
    TRY(tool_option_flag("deterministic", &s.deterministic));
    TRY(tool_option_choice("sync", &sync));
    TRY(tool_option_choice("units", &units));
    TRY(read_attention(&s));
    s.sync_each = strcmp(sync, "each") == 0;
    s.half_units = strcmp(units, "half") == 0;
    read_texts(&s);
    TRY(check_folder(&s));
    TRY(read_best(&s));
    TRY(read_lora(&s));
    *out = s;
    return TESS_OK;
}
