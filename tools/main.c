/* SPDX-License-Identifier: BSD-3-Clause */
/* The `tessera` command: finds the subcommand and hands over to it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "tools/support/command_line.h"
#include "tools/support/options.h"
#include "tools/support/spinning.h"
#include "tools/support/version.h"

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
    { "plugins", cmd_plugins, "list, describe and check plugins, or write a new one" },
    { "report", cmd_report, "draw the memory and time of runs and plans: a page, a picture or a trace" },
    { "bench", cmd_bench, "measure collectives and kernels against the machine's limits" },
    { "ckpt", cmd_ckpt, "look at checkpoints, check them, and make others of them" },
    { "replay", cmd_replay, "run a run again, from its ledger of digests, and compare every step" },
    { "bisect", cmd_bisect, "the first step and unit in which two ledgers of digests differ" },
    { "tokenize", cmd_tokenize, "text to token files, by the tokenizer of a model's folder" },
    { "doctor", cmd_doctor, "what works on this machine, and the repair of what does not" },
    { NULL, NULL, NULL },
};

static int print_help(FILE *out) {
    fputs("Usage: tessera COMMAND [OPTION…]\n"
          "Fully sharded data parallel training.\n\n",
          out);
    for (size_t i = 0; commands[i].name; i++)
        fprintf(out, "  %-9s %s\n", commands[i].name, commands[i].help);
    fputs("\n  -h, --help  this text; `tessera COMMAND --help` describes one command\n"
          "  --version   the version and what was built in\n",
          out);
    return TOOL_OK;
}

/* For tools/pages: the names of the commands, and the page of all. */
static int print_names(void) {
    for (size_t i = 0; commands[i].name; i++)
        puts(commands[i].name);
    return TOOL_OK;
}

static int print_man(void) {
    puts(".\\\" Made from the table of commands.\n.TH TESSERA 1 \"\" \"tessera " TESSERA_VERSION
         "\" \"User Commands\"\n.SH NAME\ntessera \\- fully sharded data parallel training for programs written in C\n"
         ".SH SYNOPSIS\n.B tessera\nCOMMAND [OPTION…]\n.SH COMMANDS");
    for (size_t i = 0; commands[i].name; i++)
        printf(".TP\n.BR tessera\\-%s (1)\n%s\n", commands[i].name, commands[i].help);
    puts(".SH EXIT STATUS\n0 success, 1 a check that failed, 2 usage, 3 a setting or plugin that cannot be used, 4 "
         "memory, "
         "5 a lost rank or the network, 6 bad data.\n.SH SEE ALSO\n.BR tessera.h (3)");
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

/* A closed standard descriptor would be the next socket's or file's number, and be handed to ranks as their input. What
 * is written to standard output is lost then, so a write fails: check_output says so. */
static int open_standard(void) {
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", fd == 1 ? O_RDONLY : O_RDWR) != fd)
            return -1;
    return 0;
}

/* Success means that the output has arrived. argp ends the process itself after --help, hence not in main. */
static void check_output(int code, void *user) {
    (void)user;
    int bad = ferror(stdout), error = EIO;
    if (fflush(stdout) != 0) {
        bad = 1;
        error = errno;
    }
    if (!bad || code != TOOL_OK)
        return;
    fprintf(stderr, "tessera: cannot write to standard output: %s\n", strerror(error));
    _exit(TOOL_CONFIG);
}

static int run(int argc, char **argv) {
    if (argc < 2) {
        fputs("tessera: no command given; `tessera --help` lists them\n", stderr);
        return TOOL_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "-?") == 0 ||
        strcmp(argv[1], "help") == 0)
        return print_help(stdout);
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
        tool_version(stdout);
        return TOOL_OK;
    }
    if (strcmp(argv[1], "--help=names") == 0)
        return print_names();
    if (strcmp(argv[1], "--help=man") == 0)
        return print_man();
    if (strcmp(argv[1], "train") == 0)
        tool_spinning_bound(argv);
    for (size_t i = 0; commands[i].name; i++)
        if (strcmp(argv[1], commands[i].name) == 0) {
            tool_help_set_summary(commands[i].help);
            return commands[i].run(argc - 1, argv + 1);
        }
    return unknown(argv[1]);
}

int main(int argc, char **argv) {
    tool_options_start();
    return open_standard() == 0 && on_exit(check_output, NULL) == 0 ? run(argc, argv) : TOOL_CONFIG;
}
