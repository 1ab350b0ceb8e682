/* SPDX-License-Identifier: BSD-3-Clause */
/* The subcommands of `tessera`: one file each. Each returns the exit code of docs/errors.md. */
#ifndef TESSERA_COMMANDS_H
#define TESSERA_COMMANDS_H

/* argv[0] is the subcommand's name. */
typedef int (*tool_command_fn)(int argc, char **argv);
int cmd_train(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_tune(int argc, char **argv);
int cmd_plugins(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_report(int argc, char **argv);
int cmd_ckpt(int argc, char **argv);
int cmd_replay(int argc, char **argv);
int cmd_bisect(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_doctor(int argc, char **argv);

enum { TOOL_OK = 0, TOOL_FAILED = 1, TOOL_USAGE = 2, TOOL_CONFIG = 3, TOOL_MEMORY = 4, TOOL_PEER = 5, TOOL_DATA = 6 };
#endif
