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
    { "wrap", TEXT, "scopes", NULL,
      "wrap policy: scopes, none, size:ELEMENTS, module:PATTERN,…, auto:BYTES or a plugin" },
    { "strategy", TEXT, "full", NULL, "full, grad_op, none, hybrid:K or hybrid_grad_op:K" },
    { "device", TEXT, "cpu", NULL, "device plugin, NAME[:ARGS] or PATH[:ARGS]" },
    { "device-memory", BYTES, NULL, NULL, "device memory a rank may use" },
    { "host-memory", BYTES, NULL, NULL, "host memory a rank may use" },
    { "activations", CHOICE, "keep", "keep|recompute|offload", "what happens to a block's activations until backward" },
    { "prefetch", INT, "auto", "auto", "how many units may be gathered ahead, 0 to 8" },
    { "threads", INT, NULL, NULL, "compute threads of a rank; unset: its share of the cores, 1 under DETERMINISTIC" },
    { "isa", TEXT, "auto", NULL, "highest instruction set the kernels may use; equal on all ranks" },
    { "deterministic", FLAG, "0", NULL, "the same bits whatever the number of ranks" },
    { "strict", FLAG, "0", NULL,
      "check the program's use: a departure from the declared order is an error, released "
      "memory is filled with NaN" },
    { "plan", INT, NULL, NULL, "ranks to plan for, set by tessera plan -- PROGRAM: nothing runs, tess_shard returns" },
    { "plan-file", TEXT, NULL, NULL,
      "file that tess_shard then writes what was declared to; set by tessera plan -- PROGRAM" },
    /* training */
    { "batch", INT, NULL, NULL, "samples per rank and microbatch" },
    { "accum", INT, "1", NULL, "microbatches per optimizer step" },
    { "sync", CHOICE, "each", "each|end", "communicate gradients after each microbatch or at the end of the step" },
    { "seed", INT, "1", NULL, "seed of initial values, shuffling and dropout" },
    { "steps", INT, NULL, NULL, "optimizer steps to run" },
    { "epochs", INT, NULL, NULL, "passes over the data" },
    { "optimizer", CHOICE, NULL, "sgd|adam|adamw|adadelta", "optimizer; unset: the model's own" },
    { "lr", REAL, NULL, NULL, "learning rate" },
    { "momentum", REAL, NULL, NULL, "momentum of sgd" },
    { "weight-decay", REAL, NULL, NULL, "weight decay" },
    { "clip", REAL, NULL, NULL, "largest gradient norm; 0: no clipping" },
    { "layers", INT, NULL, NULL, "gpt: layers" },
    { "heads", INT, NULL, NULL, "gpt: attention heads" },
    { "width", INT, NULL, NULL, "gpt: width" },
    { "context", INT, NULL, NULL, "gpt: context length in bytes" },
    { "image-size", INT, NULL, NULL, "convbn: side of the images in pixels" },
    { "hidden", INT, NULL, NULL, "convbn: maps of the blocks" },
    { "data", TEXT, NULL, NULL, "file or directory to train on; unset: data that comes with the tool" },
    { "save", TEXT, NULL, NULL, "directory to save to" },
    { "save-every", INT, NULL, NULL, "steps between saves" },
    { "resume", TEXT, NULL, NULL, "directory to go on from" },
    /* time, simulated */
    { "machine", TEXT, NULL, NULL, "machine to simulate: a name, or a file that tessera bench --machine wrote" },
    { "from", TEXT, NULL, NULL, "what --json wrote of an earlier run, for its measured times of blocks" },
    /* output */
    { "json", TEXT, NULL, NULL, "1: one JSON object per line on standard output; else the file for them" },
    { "report", TEXT, NULL, NULL, "file for a page with pictures of memory and time of the run or plan" },
    { "quiet", FLAG, "0", NULL, "no progress, no tables" },
    { "log", CHOICE, "info", "error|warning|info|debug", "least severe messages that are shown" },
    /* plugins and places */
    { "plugin-path", TEXT, NULL, NULL, "absolute directories to search for plugins first, separated by colons" },
    { "helper-cpus", TEXT, NULL, NULL, "cores for the threads of core and plugins, as in 2,6-7" },
    /* control plane */
    { "kv", TEXT, NULL, NULL, "HOST:PORT of the key-value server; set by tessera run" },
    { "listen", TEXT, "127.0.0.1", NULL, "address the key-value server listens on" },
    { "secret", TEXT, NULL, NULL, "shared secret of the ranks, needed to listen beyond loopback" },
    { "rendezvous-timeout", REAL, "60", NULL, "seconds to wait for all ranks at start" },
    { "heartbeat", REAL, "5", NULL, "seconds of silence after which a rank counts as lost; 0: never" },
    { "grace", REAL, "5", NULL, "seconds that tessera run leaves the other ranks to end by themselves when one fails" },
    { "timeout", REAL, "300", NULL, "seconds one collective may take" },
    { NULL, 0, NULL, NULL, NULL },
};

static const char *type_word(uint32_t type) {
    static const char *const words[] = { "", "integer", "number", "text", "bytes", "choice", "flag" };
    return words[type];
}

/* A bar inside a table cell has to be escaped. */
static void print_cell(FILE *out, const char *text) {
    for (; *text; text++)
        fprintf(out, *text == '|' ? "\\|" : "%c", *text);
}

static void print_values(FILE *out, const tess__option *o) {
    if (o->type != CHOICE)
        fputs(type_word(o->type), out);
    if (o->choices && o->type != CHOICE)
        fputs(" or ", out);
    if (o->choices)
        print_cell(out, o->choices);
}

void tess__options_markdown(FILE *out) {
    fputs("# Variables\n\n"
          "Every variable that Tessera reads, made from the table in core/option_table.c. Most are options of the\n"
          "command too: `--device-memory` is `TESSERA_DEVICE_MEMORY`. The command line is stronger than the\n"
          "environment, and that is stronger than what a program passes to `tess_open`. An empty variable counts as\n"
          "unset; in a setuid program all do. A bad value is an error, an unknown variable a warning with the nearest\n"
          "name.\n\n"
          "Bytes are a whole number, or one with a suffix KiB, MiB, GiB or TiB (`64KiB`, `1.5GiB`). Flags are 0 or 1,\n"
          "no or yes, off or on, false or true.\n\n"
          "| variable | values | default | meaning |\n| --- | --- | --- | --- |\n",
          out);
    for (const tess__option *o = tess__option_table; o->key; o++) {
        char variable[80];
        fprintf(out, "| `%s` | ", tess__option_variable(o->key, variable));
        print_values(out, o);
        fprintf(out, " | %s | ", o->fallback ? o->fallback : "");
        print_cell(out, o->help);
        fputs(" |\n", out);
    }
    fputs(
        "\nA plugin has variables of its own, which begin with its name or its kind: the plugin `gloo` reads\n"
        "`TESSERA_GLOO_…`. `tessera plugins info NAME` lists them. One that is set and that the plugin does not know\n"
        "is an error.\n\n"
        "`NO_COLOR` and the variables of launchers (`RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR`, `MASTER_PORT`,\n"
        "those of Slurm and Open MPI) are read as everywhere else.\n",
        out);
}
