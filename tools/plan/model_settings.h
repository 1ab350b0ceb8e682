/* SPDX-License-Identifier: BSD-3-Clause */
/* The settings of a run of a reference model: the options, else the model's defaults. For help and refusals the models'
 * names, and a line about each. */
#ifndef TOOL_MODEL_SETTINGS_H
#define TOOL_MODEL_SETTINGS_H
#include <stdint.h>
#include <tessera/tessera.h>

#include "group_settings.h"
#include "tools/support/help.h"

typedef struct { /* options, else the model's defaults */
    const char *model;
    int64_t batch, accum, threads; /* threads 0: not set */
    int sync_each, quiet, deterministic, half_units, cudnn_attention;
    int attention_products;       /* of our kernels' backward: 5, 7, or 0: the shape decides */
    const char *attention;        /* the option itself */
    int steps_apart;              /* 1: a pass may run without its optimizer step */
    uint64_t seed, steps, epochs; /* one of steps and epochs is 0 */
    const char *optimizer;
    double lr, momentum, weight_decay, clip, beta1, beta2, eps; /* beta1, beta2, eps 0: the optimizer's own */
    const char *schedule; /* null in a row of defaults: the schedule of language models */
    int64_t warmup;       /* steps; -1: not set */
    double min_lr;        /* -1: not set */
    train_group groups[TRAIN_GROUPS];
    int32_t n_groups;
    const char *groups_text; /* null: none */
    int64_t layers, heads, width, context, image_size, hidden, head_rows;
    const char *tokenizer, *valid; /* null: the folder's; the share, 0: the default */
    double valid_share;
    int pack;
    const char *lora; /* null: no adapters */
    int merge;        /* an export has them in its matrices */
    const char *data, *folder, *config, *freeze, *csv, *tensorboard, *watch, *save, *resume, *export_to, *json, *report,
        *isa; /* null: not set; json "1": standard output */
    uint64_t save_every, keep;
    uint64_t eval_every, patience; /* 0: the model's own; never */
    int keep_best;
    uint64_t sample, top_k; /* tokens to write at the end; number of likely ones to draw from, 0: all */
    double peak_flops;      /* 0: measures it */
    double temperature;     /* 0: always the likeliest */
    const char *prompt;     /* null: none */
    const char *on_nan;     /* stop, skip or warn */
    double spike;           /* 0: off */
    uint64_t replay;        /* step to end after, with nothing written but a ledger; 0: this is no replay */
} train_settings;

/** Reads options and environment for `model`, which is in the list of models. */
tess_status train_settings_read(const char *model, train_settings *out);
/** The names of all models; ends with null. */
extern const char *const train_models[];
/** The same as "mnist, gpt and so on". */
const char *train_model_names(char out[128]);

extern const tool_subject plan_subjects[]; /* ends with a null name */
/** A model's default of an option, as tool_page.fallback; null: none. */
const char *plan_fallback(const char *model, const char *key, char out[64]);
#endif
