/* SPDX-License-Identifier: BSD-3-Clause */
/* The core or a plugin reads each of these. The command has a table of its own, tools/support/option_table.c. */
#include "options.h"

#define INT TESS_OPTION_INT
#define REAL TESS_OPTION_REAL
#define TEXT TESS_OPTION_TEXT
#define BYTES TESS_OPTION_BYTES
#define CHOICE TESS_OPTION_CHOICE
#define FLAG TESS_OPTION_FLAG

const tess__option tess__option_table[] = {
    /* what a run is made of; "ranks" is in what tess_plan_fn is to plan with */
    { "ranks", INT, NULL, NULL, "how many ranks to start or to plan for" },
    { "comm", TEXT, "auto", NULL, "communication plugin, NAME[:ARGS] or PATH[:ARGS]" },
    { "offload", TEXT, "none", NULL, "offload plugin, NAME[:ARGS] or PATH[:ARGS]; several joined by +" },
    { "precision", TEXT, "fp32", NULL, "precision plugin, NAME[:ARGS] or PATH[:ARGS]" },
    { "wrap", TEXT, "scopes", NULL, "scopes, none, size:N, module:PATTERN,…, auto:BYTES, a plugin" },
    { "strategy", TEXT, "full", NULL, "full, grad_op, none, hybrid:K or hybrid_grad_op:K" },
    { "device", TEXT, "cpu", NULL, "device plugin, NAME[:ARGS] or PATH[:ARGS]" },
    { "device-memory", BYTES, NULL, NULL, "device memory a rank may use" },
    { "host-memory", BYTES, NULL, NULL, "host memory a rank may use" },
    { "disk-memory", BYTES, NULL, NULL, "bytes that a rank may keep in files (TESSERA_OFFLOAD=disk:DIR)" },
    { "activations", TEXT, "keep", "keep|recompute|offload|selective", "or MODE:PATTERN,…, auto:BYTES" },
    { "prefetch", INT, "auto", "auto", "how many units may be gathered ahead, 0 to 8" },
    { "threads", INT, NULL, NULL, "compute threads of a rank; unset: its cores, 1 if deterministic" },
    { "isa", TEXT, "auto", NULL, "highest instruction set the kernels may use; equal on all ranks" },
    { "deterministic", FLAG, "0", NULL, "the same bits on any number of ranks that has as many microbatches" },
    { "strict", FLAG, "0", NULL, "another order than the declared one fails; freed memory is NaN" },
    { "low-copy", FLAG, "0", NULL, "the step keeps bf16 or fp16 shards too, which gathers and kernels read" },
    { "graphs", FLAG, "1", NULL, "a step that repeats is one launch on a GPU" },
    { "plan", INT, NULL, NULL, "ranks to plan for, set by tessera plan -- PROGRAM: nothing runs, tess_shard returns" },
    { "plan-file", TEXT, NULL, NULL,
      "file that tess_shard then writes what was declared to; set by tessera plan -- PROGRAM" },
    /* training */
    { "accum", INT, "1", NULL, "microbatches per optimizer step" },
    { "sync", CHOICE, "each", "each|end", "communicate gradients after each microbatch or once a step" },
    { "optimizer", TEXT, NULL, NULL, "sgd, adam, adamw, adadelta or a plugin, NAME[:ARGS]" },
    { "on-nan", CHOICE, "stop", "stop|skip|warn", "when a gradient or parameter is NaN or infinite" },
    { "spike", REAL, "0", NULL, "on-nan also for a norm above so many times the usual; 0: off" },
    { "checkpoint", CHOICE, "async", "async|sync", "save beside training, or while it waits" },
    { "on-newer", CHOICE, "stop", "stop|aside", "newer steps in the directory: refuse, or move aside" },
    { "mirror", INT, "0", NULL, "steps between images in memory, to replace lost ranks from" },
    { "ledger", TEXT, NULL, NULL, "file for digests of each step, by which two runs are compared" },
    { "ledger-every", INT, "1", NULL, "steps between two lines of the ledger" },
    { "detail", TEXT, NULL, NULL, "directory for digests after every instruction of one step; set by tessera bisect" },
    { "detail-step", INT, "1", NULL, "that step; set by tessera bisect" },
    { "detail-values", TEXT, NULL, NULL, "key or name of the tensor whose elements are written there too" },
    { "at-rest-digests", FLAG, "0", NULL, "checks what a step left when it is read next" },
    { "audit", TEXT, "0", NULL, "another rank repeats a K-th of each pass" },
    { "on-audit", CHOICE, "stop", "stop|recover", "when an audit fails: stop, or go on from images" },
    { "generation", INT, NULL, NULL, "how often ranks have been replaced; set by tessera run" },
    { "ranks-least", INT, NULL, NULL,
      "fewest ranks to go on with when some are lost; set by tessera run --ranks MIN:MAX" },
    /* output */
    { "log", CHOICE, "info", "error|warning|info|debug", "least severe messages that are shown" },
    /* plugins and places */
    { "plugin-path", TEXT, NULL, NULL, "absolute directories to search for plugins first, separated by colons" },
    { "helper-cpus", TEXT, NULL, NULL, "cores for the threads of core and plugins, as in 2,6-7" },
    /* control plane */
    { "kv", TEXT, NULL, NULL, "HOST:PORT or /PATH of the key-value server; set by tessera run" },
    { "listen", TEXT, NULL, NULL, "address the key-value server listens on; unset: that of MASTER_ADDR" },
    { "interface", TEXT, NULL, NULL, "network interface for data between hosts; unset: the one on the route" },
    { "mesh", TEXT, NULL, NULL,
      "the ranks as a grid, as in dp=4,tp=2; the ranks of the last dimension are neighbours" },
    { "secret", TEXT, NULL, NULL, "shared secret of the ranks, needed to listen beyond this host" },
    { "secret-file", TEXT, NULL, NULL, "file whose first line is the secret" },
    { "secret-fd", TEXT, NULL, NULL, "number of an open file whose first line is the secret" },
    { "rendezvous-timeout", REAL, "60", NULL, "seconds to wait for all ranks at start" },
    { "heartbeat", REAL, "5", NULL, "seconds of silence after which a rank counts as lost; 0: never" },
    { "timeout", REAL, "300", NULL, "seconds one collective may take" },
    { NULL, 0, NULL, NULL, NULL },
};
