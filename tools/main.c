/* The `tessera` command: finds the subcommand and hands over to it. */
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "common.h"

/* One row per subcommand, in the order that --help shows. */
static const struct {
    const char *name;
    tool_command_fn run;
    const char *help;
} commands[] = {
    { "train", cmd_train, "train a reference model, on files or on data that comes with it" },
    { "run", cmd_run, "start ranks of any program" },
    { "plan", cmd_plan, "what a run would take: bytes per rank, by category, for any number of ranks" },
    { "tune", cmd_tune, "the fastest combination of options that fits, by planning and simulating" },
    { "plugins", cmd_plugins, "list the plugins, or describe one" },
    { "report", cmd_report, "draw the memory and time of runs and plans: a page, a picture or a trace" },
    { "bench", cmd_bench, "measure collectives and kernels against the machine's limits" },
    { NULL, NULL, NULL },
};

static int print_help(FILE *out) {
    fputs("Usage: tessera COMMAND [OPTION…]\n"
          "Fully sharded data parallel training.\n\n",
          out);
    for (size_t i = 0; commands[i].name; i++)
        fprintf(out, "  %-9s %s\n", commands[i].name, commands[i].help);
    fputs("\n  --help    this text; `tessera COMMAND --help` describes one command\n"
          "  --version the version\n",
          out);
    return TOOL_OK;
}

static int unknown(const char *word) {
    enum { MOST = 16 };
    const char *names[MOST] = { NULL };
    size_t n = 0;
    for (; n < MOST && commands[n].name; n++)
        names[n] = commands[n].name;
    const char *near = tool_suggestion(word, names, n);
    fprintf(stderr, "tessera: unknown command '%s'%s\n", word, *near ? near : "; `tessera --help` lists them");
    return TOOL_USAGE;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fputs("tessera: no command given; `tessera --help` lists them\n", stderr);
        return TOOL_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-?") == 0 || strcmp(argv[1], "help") == 0)
        return print_help(stdout);
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
        puts("tessera " TESSERA_VERSION);
        return TOOL_OK;
    }
    for (size_t i = 0; commands[i].name; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    return unknown(argv[1]);
}
