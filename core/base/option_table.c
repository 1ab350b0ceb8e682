/* SPDX-License-Identifier: BSD-3-Clause */
/* The table itself and the page made from it, docs/variables.md. */
#include "options.h"

#include <string.h>

#define INT TESS_OPTION_INT
#define REAL TESS_OPTION_REAL
#define TEXT TESS_OPTION_TEXT
#define BYTES TESS_OPTION_BYTES
#define CHOICE TESS_OPTION_CHOICE
#define FLAG TESS_OPTION_FLAG

const tess__option tess__option_table[] = {
    /* what a run is made of */
    { "ranks", INT, NULL, NULL, "how many ranks to start or to plan for" },
    { "comm", TEXT, "auto", NULL, "communication plugin, NAME[:ARGS] or PATH[:ARGS]" },
    { "offload", TEXT, "none", NULL, "offload plugin, NAME[:ARGS] or PATH[:ARGS]" },
    { "precision", TEXT, "fp32", NULL, "precision plugin, NAME[:ARGS] or PATH[:ARGS]" },
    { "wrap", TEXT, "scopes", NULL, "scopes, none, size:N, module:PATTERN,…, auto:BYTES, a plugin" },
    { "units", CHOICE, "layer", "layer|half", "decoders on the CPU: whole layers, or their halves" },
    { "strategy", TEXT, "full", NULL, "full, grad_op, none, hybrid:K or hybrid_grad_op:K" },
    { "device", TEXT, "cpu", NULL, "device plugin, NAME[:ARGS] or PATH[:ARGS]" },
    { "device-memory", BYTES, NULL, NULL, "device memory a rank may use" },
    { "host-memory", BYTES, NULL, NULL, "host memory a rank may use" },
    { "activations", TEXT, "keep", "keep|recompute|offload|selective", "or MODE:PATTERN,…, auto:BYTES" },
    { "prefetch", INT, "auto", "auto", "how many units may be gathered ahead, 0 to 8" },
    { "threads", INT, NULL, NULL, "compute threads of a rank; unset: its cores, 1 if deterministic" },
    { "isa", TEXT, "auto", NULL, "highest instruction set the kernels may use; equal on all ranks" },
    { "deterministic", FLAG, "0", NULL, "the same bits whatever the number of ranks" },
    { "strict", FLAG, "0", NULL, "another order than the declared one fails; freed memory is NaN" },
    { "low-copy", FLAG, "0", NULL, "the step keeps bf16 shards too, which gathers and kernels read" },
    { "graphs", FLAG, "1", NULL, "a step that repeats is one launch on a GPU" },
    { "plan", INT, NULL, NULL, "ranks to plan for, set by tessera plan -- PROGRAM: nothing runs, tess_shard returns" },
    { "plan-file", TEXT, NULL, NULL,
      "file that tess_shard then writes what was declared to; set by tessera plan -- PROGRAM" },
    /* training */
    { "batch", INT, NULL, NULL, "samples per rank and microbatch" },
    { "accum", INT, "1", NULL, "microbatches per optimizer step" },
    { "sync", CHOICE, "each", "each|end", "communicate gradients after each microbatch or once a step" },
    { "seed", INT, "1", NULL, "seed of initial values, shuffling and dropout" },
    { "steps", INT, NULL, NULL, "optimizer steps to run" },
    { "epochs", INT, NULL, NULL, "passes over the data" },
    { "optimizer", CHOICE, NULL, "sgd|adam|adamw|adadelta", "optimizer; unset: the model's own" },
    { "lr", REAL, NULL, NULL, "learning rate" },
    { "momentum", REAL, NULL, NULL, "momentum of sgd" },
    { "weight-decay", REAL, NULL, NULL, "weight decay" },
    { "clip", REAL, NULL, NULL, "largest gradient norm; 0: none is computed, 1e30: it is only shown" },
    { "on-nan", CHOICE, "stop", "stop|skip|warn", "when a gradient or parameter is NaN or infinite" },
    { "spike", REAL, "0", NULL, "on-nan also for a norm above so many times the usual; 0: off" },
    { "model", TEXT, NULL, NULL, "Hugging Face folder to start from: config.json, safetensors" },
    { "config", TEXT, NULL, NULL, "config.json of a model to start from scratch" },
    { "freeze", TEXT, NULL, NULL, "parameters that are not trained: names with '*', joined by ','" },
    { "layers", INT, NULL, NULL, "gpt: layers" },
    { "heads", INT, NULL, NULL, "gpt: attention heads" },
    { "width", INT, NULL, NULL, "gpt: width" },
    { "context", INT, NULL, NULL, "gpt: context length in bytes; gpt2, llama: in tokens" },
    { "image-size", INT, NULL, NULL, "convbn: side of the images in pixels" },
    { "hidden", INT, NULL, NULL, "convbn: maps of the blocks" },
    { "data", TEXT, NULL, NULL, "file or directory to train on; unset: data that comes with the tool" },
    { "token-bits", CHOICE, "auto", "auto|16|32", "bits of a token in a .bin without a header" },
    { "save", TEXT, NULL, NULL, "directory to save checkpoints in" },
    { "save-every", INT, NULL, NULL, "steps between checkpoints; unset: one at the end" },
    { "keep", INT, "3", NULL, "how many checkpoints stay, 0: all" },
    { "checkpoint", CHOICE, "async", "async|sync", "save beside training, or while it waits" },
    { "on-newer", CHOICE, "stop", "stop|aside", "newer steps in the directory: refuse, or move aside" },
    { "resume", TEXT, NULL, NULL, "directory of checkpoints, or one of them, to go on from" },
    { "restarts", INT, "0", NULL, "how often to start again from a checkpoint when ranks are lost" },
    { "restart", INT, NULL, NULL, "how many restarts there have been; set by tessera run --restarts" },
    { "restart-ranks", INT, NULL, NULL, "ranks before the first restart; set by tessera run --restarts" },
    { "restart-file", TEXT, NULL, NULL, "file that outlives a restart; set by tessera run --restarts" },
    { "mirror", INT, "0", NULL, "steps between images in memory, to replace lost ranks from" },
    { "generation", INT, NULL, NULL, "how often ranks have been replaced; set by tessera run" },
    { "ranks-least", INT, NULL, NULL,
      "fewest ranks to go on with when some are lost; set by tessera run --ranks MIN:MAX" },
    { "export", TEXT, NULL, NULL, "Hugging Face folder to write the parameters to at the end" },
    { "sample", INT, NULL, NULL, "tokens that the model writes at the end" },
    { "prompt", TEXT, NULL, NULL, "what a sample begins after: text, or numbers of tokens" },
    { "temperature", REAL, "0.8", NULL, "of a sample; 0 takes the likeliest token" },
    { "top-k", INT, "0", NULL, "of a sample: likely tokens to draw from, 0: all" },
    /* time, simulated */
    { "machine", TEXT, NULL, NULL, "machine to simulate: a name, or a file of tessera bench --machine" },
    { "from", TEXT, NULL, NULL, "what --json wrote of an earlier run, for its measured times of blocks" },
    /* output */
    { "json", TEXT, NULL, NULL, "one JSON object per line, to FILE; 1 or no FILE: standard output" },
    { "csv", TEXT, NULL, NULL, "file for a line of numbers per step" },
    { "peak-flops", REAL, NULL, NULL, "what a rank reaches at best, per second; unset: measured" },
    { "report", TEXT, NULL, NULL, "file for a page with pictures of memory and time" },
    { "quiet", FLAG, "0", NULL, "no progress, no tables" },
    { "log", CHOICE, "info", "error|warning|info|debug", "least severe messages that are shown" },
    /* plugins and places */
    { "plugin-path", TEXT, NULL, NULL, "absolute directories to search for plugins first, separated by colons" },
    { "helper-cpus", TEXT, NULL, NULL, "cores for the threads of core and plugins, as in 2,6-7" },
    /* control plane */
    { "kv", TEXT, NULL, NULL, "HOST:PORT or /PATH of the key-value server; set by tessera run" },
    { "listen", TEXT, NULL, NULL, "address the key-value server listens on; unset: that of MASTER_ADDR" },
    { "interface", TEXT, NULL, NULL, "network interface for data between hosts; unset: the one on the route" },
    { "secret", TEXT, NULL, NULL, "shared secret of the ranks, needed to listen beyond this host" },
    { "secret-file", TEXT, NULL, NULL, "file whose first line is the secret" },
    { "secret-fd", TEXT, NULL, NULL, "number of an open file whose first line is the secret" },
    { "rendezvous-timeout", REAL, "60", NULL, "seconds to wait for all ranks at start" },
    { "heartbeat", REAL, "5", NULL, "seconds of silence after which a rank counts as lost; 0: never" },
    { "grace", REAL, "5", NULL, "seconds that tessera run leaves the other ranks to end by themselves when one fails" },
    { "timeout", REAL, "300", NULL, "seconds one collective may take" },
    { NULL, 0, NULL, NULL, NULL },
};
