/* SPDX-License-Identifier: BSD-3-Clause */
#include "shared_options.h"

#include <string.h>

enum {
    PLANS = TOOL_PLAN | TOOL_TUNE,
    TRAINS = TOOL_TRAIN | PLANS, /* a plan is for the same words as the training it stands for */
    ALL = TRAINS | TOOL_BENCH
};
#define MODEL TOOL_GROUP_MODEL
#define DATA TOOL_GROUP_DATA
#define OPTIM TOOL_GROUP_OPTIMIZER
#define MEMORY TOOL_GROUP_MEMORY
#define RANKS TOOL_GROUP_RANKS
#define OUTPUT TOOL_GROUP_OUTPUT
#define TRANSFORMERS "gpt gpt2 llama"

const tool_shared_option tool_shared_options[] = {
    { "model", "DIR", MODEL, ALL, "gpt2 llama", 0, 0 },
    { "config", "FILE", MODEL, ALL, "gpt2 llama", 0, 0 },
    { "freeze", "PATTERN", MODEL, TRAINS, NULL, 0, 0 },
    { "layers", "N", MODEL, ALL, TRANSFORMERS, 1, 4096 },
    { "heads", "N", MODEL, ALL, TRANSFORMERS, 1, 4096 },
    { "width", "N", MODEL, ALL, TRANSFORMERS, 1, 1 << 20 },
    { "context", "N", MODEL, ALL, TRANSFORMERS " FILE", 1, 1 << 20 },
    { "image-size", "N", MODEL, ALL, "convbn", 3, 4096 },
    { "hidden", "N", MODEL, ALL, "convbn", 1, 4096 },
    { "data", "PATH", DATA, TRAINS, "mnist " TRANSFORMERS, 0, 0 },
    { "token-bits", "16|32", DATA, TRAINS, "gpt2 llama", 0, 0 },
    { "batch", "B", DATA, ALL, NULL, 1, 1 << 20 },
    { "steps", "S", DATA, TRAINS, NULL, 0, 1e15 },
    { "epochs", "E", DATA, TRAINS, "mnist", 1, 1e9 },
    { "seed", "S", DATA, ALL, NULL, 0, 9e18 },
    { "optimizer", "NAME", OPTIM, TRAINS, NULL, 0, 0 },
    { "lr", "RATE", OPTIM, TRAINS, NULL, 0, 1e6 },
    { "momentum", "M", OPTIM, TRAINS, NULL, 0, 1 },
    { "weight-decay", "D", OPTIM, TRAINS, NULL, 0, 1e6 },
    { "clip", "NORM", OPTIM, TRAINS, NULL, 0, 1e30 },
    { "on-nan", "ACTION", OPTIM, TRAINS, NULL, 0, 0 },
    { "spike", "FACTOR", OPTIM, TRAINS, NULL, 0, 1e6 },
    { "accum", "K", OPTIM, TRAINS, NULL, 1, 1 << 16 },
    { "sync", "each|end", OPTIM, TRAINS, NULL, 0, 0 },
    { "strategy", "STRATEGY", MEMORY, TRAINS, NULL, 0, 0 },
    { "wrap", "POLICY", MEMORY, TRAINS, NULL, 0, 0 },
    { "units", "layer|half", MEMORY, ALL, TRANSFORMERS, 0, 0 },
    { "activations", "MODE", MEMORY, TRAINS, NULL, 0, 0 },
    { "offload", "PLUGIN", MEMORY, TRAINS, NULL, 0, 0 },
    { "precision", "PLUGIN", MEMORY, ALL, NULL, 0, 0 },
    { "low-copy", NULL, MEMORY, TRAINS, NULL, 0, 0 },
    { "prefetch", "N", MEMORY, TRAINS, NULL, 0, 8 },
    { "device-memory", "BYTES", MEMORY, TRAINS, NULL, 0, 0 },
    { "host-memory", "BYTES", MEMORY, TRAINS, NULL, 0, 0 },
    { "ranks", "N", RANKS, ALL, NULL, 1, 1 << 20 },
    { "comm", "PLUGIN", RANKS, ALL, NULL, 0, 0 },
    { "device", "PLUGIN", RANKS, ALL, NULL, 0, 0 },
    { "threads", "N", RANKS, ALL, NULL, 1, 4096 },
    { "isa", "NAME", RANKS, ALL, NULL, 0, 0 },
    { "deterministic", NULL, RANKS, ALL, NULL, 0, 0 },
    { "strict", NULL, RANKS, TRAINS, NULL, 0, 0 },
    { "machine", "NAME|FILE", RANKS, PLANS, NULL, 0, 0 },
    { "from", "FILE", RANKS, PLANS, NULL, 0, 0 },
    { "save", "DIR", OUTPUT, TRAINS, NULL, 0, 0 },
    { "save-every", "N", OUTPUT, TRAINS, NULL, 1, 1e15 },
    { "keep", "N", OUTPUT, TRAINS, NULL, 0, 1e15 },
    { "checkpoint", "MODE", OUTPUT, TRAINS, NULL, 0, 0 },
    { "on-newer", "stop|aside", OUTPUT, TRAINS, NULL, 0, 0 },
    { "resume", "DIR", OUTPUT, TRAINS, NULL, 0, 0 },
    { "restarts", "N", OUTPUT, TOOL_TRAIN, NULL, 0, 10000 },
    { "mirror", "K", OUTPUT, TRAINS, NULL, 0, 1e6 },
    { "export", "DIR", OUTPUT, TRAINS, NULL, 0, 0 },
    { "sample", "N", OUTPUT, TOOL_TRAIN, TRANSFORMERS, 0, 1e9 },
    { "prompt", "TEXT", OUTPUT, TOOL_TRAIN, TRANSFORMERS, 0, 0 },
    { "temperature", "T", OUTPUT, TOOL_TRAIN, TRANSFORMERS, 0, 1e6 },
    { "top-k", "K", OUTPUT, TOOL_TRAIN, TRANSFORMERS, 0, 1e9 },
    { "json", "FILE", OUTPUT, ALL | TOOL_CKPT, NULL, 0, 0 },
    { "csv", "FILE", OUTPUT, TOOL_TRAIN, NULL, 0, 0 },
    { "peak-flops", "FLOPS", OUTPUT, TOOL_TRAIN, NULL, 1, 1e20 },
    { "report", "FILE", OUTPUT, TRAINS, NULL, 0, 0 },
    { "quiet", NULL, OUTPUT, ALL | TOOL_CKPT, NULL, 0, 0 },
    { "log", "LEVEL", OUTPUT, ALL | TOOL_CKPT, NULL, 0, 0 },
    { NULL, NULL, 0, 0, NULL, 0, 0 },
};

size_t tool_shared_count(void) {
    return sizeof tool_shared_options / sizeof tool_shared_options[0] - 1;
}

const tool_shared_option *tool_shared_find(const char *key, size_t n) {
    for (const tool_shared_option *o = tool_shared_options; o->key; o++)
        if (strncmp(o->key, key, n) == 0 && !o->key[n])
            return o;
    return NULL;
}

int tool_listed(const char *words, const char *word) {
    size_t n = word ? strlen(word) : 0;
    if (!words || !word)
        return 1;
    for (const char *at = words; (at = strstr(at, word)) != NULL; at += n)
        if ((at == words || at[-1] == ' ') && (!at[n] || at[n] == ' '))
            return 1;
    return 0;
}

int tool_shared_is_for(const tool_shared_option *o, const char *subject) {
    return tool_listed(o->subjects, subject);
}
