/* SPDX-License-Identifier: BSD-3-Clause */
/* The table describes the command's own options in full, and says which of the core's (core/base/option_table.c) it
 * takes. Help, man pages, completion and docs/variables.md come from both tables. */
#include "options.h"

#include <tessera/plugin.h>

enum {
    PLANS = TOOL_PLAN | TOOL_TUNE,
    TRAINS = TOOL_TRAIN | PLANS, /* a plan takes the options of the training that it predicts */
    ALL = TRAINS | TOOL_BENCH
};
#define INT TESS_OPTION_INT
#define REAL TESS_OPTION_REAL
#define TEXT TESS_OPTION_TEXT
#define CHOICE TESS_OPTION_CHOICE
#define FLAG TESS_OPTION_FLAG
#define OF_CORE 0, NULL, NULL, NULL
#define UP 0x1p63 /* no upper bound */
#define MODEL TOOL_GROUP_MODEL
#define DATA TOOL_GROUP_DATA
#define OPTIM TOOL_GROUP_OPTIMIZER
#define MEMORY TOOL_GROUP_MEMORY
#define RANKS TOOL_GROUP_RANKS
#define OUTPUT TOOL_GROUP_OUTPUT
#define FOLDERS "gpt2 llama qwen2 qwen3 mistral gemma2 gemma3"
#define TRANSFORMERS "gpt " FOLDERS

const tool_option tool_options[] = {
    { "model", TEXT, NULL, NULL, "Hugging Face folder to start from: config.json, safetensors", "DIR", MODEL, ALL,
      FOLDERS, 0, 0 },
    { "config", TEXT, NULL, NULL, "config.json of a model to start from scratch", "FILE", MODEL, ALL, FOLDERS, 0, 0 },
    { "freeze", TEXT, NULL, NULL, "parameters that are not trained: names with '*', joined by ','", "PATTERN", MODEL,
      TRAINS, NULL, 0, 0 },
    { "lora", TEXT, NULL, NULL, "adapters to train: rank=R,alpha=A,targets=MODULES…, or a folder", "SPEC", MODEL,
      TRAINS, TRANSFORMERS, 0, 0 },
    { "layers", INT, NULL, NULL, "number of layers", "N", MODEL, ALL, TRANSFORMERS, 1, 4096 },
    { "heads", INT, NULL, NULL, "number of attention heads", "N", MODEL, ALL, TRANSFORMERS, 1, 4096 },
    { "width", INT, NULL, NULL, "width of each position", "N", MODEL, ALL, TRANSFORMERS, 1, 1 << 20 },
    { "context", INT, NULL, NULL, "context length: bytes of gpt, tokens of others", "N", MODEL, ALL,
      TRANSFORMERS " FILE", 1, 1 << 20 },
    { "image-size", INT, NULL, NULL, "side of convbn's images in pixels", "N", MODEL, ALL, "convbn", 3, 4096 },
    { "hidden", INT, NULL, NULL, "maps of convbn's blocks", "N", MODEL, ALL, "convbn", 1, 4096 },
    { "data", TEXT, NULL, NULL, "file or directory to train on; unset: data that comes with the tool", "PATH", DATA,
      TRAINS, "mnist " TRANSFORMERS, 0, 0 },
    { "val", TEXT, NULL, NULL, "held out: a file or directory, or a share of each file; unset: 0.1", "PATH|SHARE", DATA,
      TRAINS, FOLDERS, 0, 0 },
    { "tokenizer", TEXT, NULL, NULL, "tokenizer of text: its file or folder; unset: the model's folder's", "FILE", DATA,
      TRAINS, FOLDERS, 0, 0 },
    { "pack", FLAG, "0", NULL, "documents share a window, and neither see nor predict each other", NULL, DATA, TRAINS,
      FOLDERS, 0, 0 },
    { "token-bits", CHOICE, "auto", "auto|16|32", "bits of a token in a .bin without a header", "16|32", DATA, TRAINS,
      FOLDERS, 0, 0 },
    { "batch", INT, NULL, NULL, "samples per rank and microbatch", "B", DATA, ALL, NULL, 1, 1 << 20 },
    { "steps", INT, NULL, NULL, "optimizer steps to run", "S", DATA, TRAINS, NULL, 0, UP },
    { "epochs", INT, NULL, NULL, "passes over the data", "E", DATA, TRAINS, "mnist", 1, UP },
    { "eval-every", INT, NULL, NULL, "steps between evaluations; unset: 500, mnist: an epoch", "N", DATA, TRAINS,
      "mnist " TRANSFORMERS, 1, UP },
    { "patience", INT, "0", NULL, "ends after N evaluations without a lower loss; 0: never", "N", DATA, TRAINS,
      "mnist " TRANSFORMERS, 0, 1e9 },
    { "seed", INT, "1", NULL, "seed of initial values, shuffling and dropout", "S", DATA, ALL, NULL, 0, UP },
    { "optimizer", OF_CORE, "NAME", OPTIM, TRAINS, NULL, 0, 0 },
    { "lr", REAL, NULL, NULL, "learning rate", "RATE", OPTIM, TRAINS, NULL, 0, 1e6 },
    { "schedule", CHOICE, NULL, "constant|linear|cosine|wsd|step", "rate over the steps", "NAME", OPTIM, TRAINS, NULL,
      0, 0 },
    { "warmup", INT, NULL, NULL, "steps in which the rate rises at first", "N", OPTIM, TRAINS, NULL, 0, UP },
    { "min-lr", REAL, NULL, NULL, "rate that linear, cosine and wsd end with; unset: a tenth", "RATE", OPTIM, TRAINS,
      NULL, 0, 1e6 },
    { "momentum", REAL, NULL, NULL, "momentum of sgd", "M", OPTIM, TRAINS, NULL, 0, 1 },
    { "beta1", REAL, NULL, NULL, "of adam, adamw, plugins: decay of the mean of gradients", "B", OPTIM, TRAINS, NULL, 0,
      1 },
    { "beta2", REAL, NULL, NULL, "of adam, adamw, plugins: decay of the mean of their squares", "B", OPTIM, TRAINS,
      NULL, 0, 1 },
    { "eps", REAL, NULL, NULL, "of adam, adamw, adadelta, plugins: added to the divisor", "E", OPTIM, TRAINS, NULL, 0,
      1 },
    { "weight-decay", REAL, NULL, NULL, "weight decay", "D", OPTIM, TRAINS, NULL, 0, 1e6 },
    { "clip", REAL, NULL, NULL, "largest gradient norm; 0: none is computed, 1e30: it is only shown", "NORM", OPTIM,
      TRAINS, NULL, 0, 1e30 },
    { "on-nan", OF_CORE, "ACTION", OPTIM, TRAINS, NULL, 0, 0 },
    { "spike", OF_CORE, "FACTOR", OPTIM, TRAINS, NULL, 0, 1e6 },
    { "accum", OF_CORE, "K", OPTIM, TRAINS, NULL, 1, 1 << 16 },
    { "sync", OF_CORE, "each|end", OPTIM, TRAINS, NULL, 0, 0 },
    { "strategy", OF_CORE, "STRATEGY", MEMORY, TRAINS, NULL, 0, 0 },
    { "wrap", OF_CORE, "POLICY", MEMORY, TRAINS, NULL, 0, 0 },
    { "units", CHOICE, "layer", "layer|half", "decoders on the CPU: whole layers, or their halves", "layer|half",
      MEMORY, ALL, TRANSFORMERS, 0, 0 },
    { "activations", OF_CORE, "MODE", MEMORY, TRAINS, NULL, 0, 0 },
    { "offload", OF_CORE, "PLUGIN", MEMORY, TRAINS, NULL, 0, 0 },
    { "precision", OF_CORE, "PLUGIN", MEMORY, ALL, NULL, 0, 0 },
    { "low-copy", OF_CORE, NULL, MEMORY, TRAINS, NULL, 0, 0 },
    { "prefetch", OF_CORE, "N", MEMORY, TRAINS, NULL, 0, 8 },
    { "device-memory", OF_CORE, "BYTES", MEMORY, TRAINS, NULL, 0, 0 },
    { "host-memory", OF_CORE, "BYTES", MEMORY, TRAINS, NULL, 0, 0 },
    { "ranks", OF_CORE, "N", RANKS, ALL, NULL, 1, 1 << 20 },
    { "mesh", OF_CORE, "MESH", RANKS, TOOL_PLAN, NULL, 0, 0 },
    { "comm", OF_CORE, "PLUGIN", RANKS, ALL, NULL, 0, 0 },
    { "device", OF_CORE, "PLUGIN", RANKS, ALL, NULL, 0, 0 },
    { "threads", OF_CORE, "N", RANKS, ALL, NULL, 1, 4096 },
    { "isa", OF_CORE, "NAME", RANKS, ALL, NULL, 0, 0 },
    { "deterministic", OF_CORE, NULL, RANKS, ALL, NULL, 0, 0 },
    { "strict", OF_CORE, NULL, RANKS, TRAINS, NULL, 0, 0 },
    { "machine", TEXT, NULL, NULL, "machine to simulate: a name, or a file of tessera bench --machine", "NAME|FILE",
      RANKS, PLANS, NULL, 0, 0 },
    { "from", TEXT, NULL, NULL, "what --json wrote of an earlier run, for its measured times of blocks", "FILE", RANKS,
      PLANS, NULL, 0, 0 },
    { "save", TEXT, NULL, NULL, "directory to save checkpoints in", "DIR", OUTPUT, TRAINS, NULL, 0, 0 },
    { "save-every", INT, NULL, NULL, "steps between checkpoints; unset: one at the end", "N", OUTPUT, TRAINS, NULL, 1,
      UP },
    { "keep", INT, "3", NULL, "how many checkpoints stay, 0: all", "N", OUTPUT, TRAINS, NULL, 0, UP },
    { "keep-best", FLAG, "0", NULL, "keeps the checkpoint of the lowest validation loss too", NULL, OUTPUT, TRAINS,
      "mnist " TRANSFORMERS, 0, 0 },
    { "checkpoint", OF_CORE, "MODE", OUTPUT, TRAINS, NULL, 0, 0 },
    { "on-newer", OF_CORE, "stop|aside", OUTPUT, TRAINS, NULL, 0, 0 },
    { "resume", TEXT, NULL, NULL, "directory of checkpoints, or one of them, to go on from", "DIR", OUTPUT, TRAINS,
      NULL, 0, 0 },
    { "restarts", INT, "0", NULL, "how often to start again from a checkpoint when ranks are lost", "N", OUTPUT,
      TOOL_TRAIN, NULL, 0, 10000 },
    { "mirror", OF_CORE, "K", OUTPUT, TRAINS, NULL, 0, 1e6 },
    { "export", TEXT, NULL, NULL, "Hugging Face folder to write the parameters to at the end", "DIR", OUTPUT, TRAINS,
      NULL, 0, 0 },
    { "merge", FLAG, "0", NULL, "with --lora: the export is the model with its adapters added in", NULL, OUTPUT,
      TOOL_TRAIN, TRANSFORMERS, 0, 0 },
    { "sample", INT, NULL, NULL, "tokens that the model writes at the end", "N", OUTPUT, TOOL_TRAIN, TRANSFORMERS, 0,
      1e9 },
    { "prompt", TEXT, NULL, NULL, "what a sample begins after: text, or numbers of tokens", "TEXT", OUTPUT, TOOL_TRAIN,
      TRANSFORMERS, 0, 0 },
    { "temperature", REAL, "0.8", NULL, "of a sample; 0 takes the likeliest token", "T", OUTPUT, TOOL_TRAIN,
      TRANSFORMERS, 0, 1e6 },
    { "top-k", INT, "0", NULL, "of a sample: likely tokens to draw from, 0: all", "K", OUTPUT, TOOL_TRAIN, TRANSFORMERS,
      0, 1e9 },
    { "json", TEXT, NULL, NULL, "one JSON object per line, to FILE; 1 or no FILE: standard output", "FILE", OUTPUT,
      ALL | TOOL_CKPT, NULL, 0, 0 },
    { "csv", TEXT, NULL, NULL, "file for a line of numbers per step", "FILE", OUTPUT, TOOL_TRAIN, NULL, 0, 0 },
    { "tensorboard", TEXT, NULL, NULL, "directory for an event file that TensorBoard reads", "DIR", OUTPUT, TOOL_TRAIN,
      NULL, 0, 0 },
    { "peak-flops", REAL, NULL, NULL, "what a rank reaches at best, per second; unset: measured", "FLOPS", OUTPUT,
      TOOL_TRAIN, NULL, 1, 1e20 },
    { "report", TEXT, NULL, NULL, "file for a page with pictures of memory and time", "FILE", OUTPUT, TRAINS, NULL, 0,
      0 },
    { "watch", TEXT, NULL, NULL, "serves the report while training, to this host alone", "PORT", OUTPUT, TOOL_TRAIN,
      NULL, 0, 0 },
    { "quiet", FLAG, "0", NULL, "no progress, no tables", NULL, OUTPUT, ALL | TOOL_CKPT, NULL, 0, 0 },
    { "log", OF_CORE, "LEVEL", OUTPUT, ALL | TOOL_CKPT, NULL, 0, 0 },
    /* only variables, without an option */
    { "restart", INT, NULL, NULL, "how many restarts there have been; set by tessera run --restarts", NULL, 0, 0, NULL,
      0, 1 << 20 },
    { "restart-ranks", INT, NULL, NULL, "ranks before the first restart; set by tessera run --restarts", NULL, 0, 0,
      NULL, 1, 1 << 20 },
    { "restart-file", TEXT, NULL, NULL, "file that outlives a restart; set by tessera run --restarts", NULL, 0, 0, NULL,
      0, 0 },
    { "grace", REAL, "5", NULL, "seconds that tessera run leaves the other ranks to end by themselves when one fails",
      NULL, 0, 0, NULL, 0, 0 },
    { .key = NULL },
};
