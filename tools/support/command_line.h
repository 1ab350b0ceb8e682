/* SPDX-License-Identifier: BSD-3-Clause */
/* The subcommands share these options, as a child for argp. The parser answers every mistake with one line and exit
 * code 2. */
#ifndef TOOL_COMMON_H
#define TOOL_COMMON_H
#include <argp.h>
#include <tessera/tessera.h>

#include "tools/commands.h"
#include "help.h"

/** The shared options. Each wins over its variable TESSERA_… (settings.h). The parser checks the values; options.h
 * reads them. */
const struct argp *tool_common_argp(void);

/** Reads the number of ranks from -n or TESSERA_RANKS. If neither is set, *out stays unchanged. It refuses MIN:MAX and
 * names `tessera run`, which takes it. */
tess_status tool_option_ranks(int64_t most, int64_t *out);

/** Parses a subcommand's arguments. argv[0] becomes "tessera NAME". `flags` is 0 or ARGP_IN_ORDER, as for argp_parse.
 * Returns 0, or the exit code after one line on standard error. --help and --version do not return. */
int tool_parse(const struct argp *, unsigned flags, int argc, char **argv, void *input);

/** The same with a page, which --help, -h and --help=man|options print without returning. It refuses in one line a
 * shared option that the command or its first word (a model, a file) does not take. */
int tool_parse_page(const tool_page *, const struct argp *, unsigned flags, int argc, char **argv, void *input);

/** For parsers: prints one line "tessera train: …" on standard error and returns EINVAL. tool_parse makes it exit code
 * 2. */
error_t tool_usage_error(const struct argp_state *, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** Prints the thread's last error as one line and returns the exit code that belongs to `status`. */
int tool_report(tess_status status);

/** Returns "; did you mean 'train'?" for a message, or "". The buffer is static. */
const char *tool_suggestion(const char *word, const char *const *names, size_t n);

/** Prints a blank and `text`, quoted as one word of a shell. */
void tool_put_word(FILE *f, const char *text);
#endif
