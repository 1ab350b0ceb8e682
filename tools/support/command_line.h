/* SPDX-License-Identifier: BSD-3-Clause */
/* Shared by the subcommands: the options that they take as a child for argp, and parsing that answers every
 * mistake with one line and exit code 2. */
#ifndef TOOL_COMMON_H
#define TOOL_COMMON_H
#include <argp.h>
#include <tessera/tessera.h>

#include "tools/commands.h"
#include "help.h"

/** The shared options. Each wins over its variable, TESSERA_… (settings.h); the values are checked here and read where
 * they are used (options.h). */
const struct argp *tool_common_argp(void);

/** Reads the ranks that -n or TESSERA_RANKS asks for; *out stays if neither is set. It refuses MIN:MAX and names
 * `tessera run`, which takes it. */
tess_status tool_option_ranks(int64_t most, int64_t *out);

/** Parses a subcommand's arguments. argv[0] is replaced by "tessera NAME". `flags` as for argp_parse: 0 or
 * ARGP_IN_ORDER. Returns 0, or the exit code after one line on standard error; --help and --version do not return. */
int tool_parse(const struct argp *, unsigned flags, int argc, char **argv, void *input);

/** The same with a page: --help, -h and --help=man|options print it and do not return. A shared option that the command
 * does not take, or that its first word (a model, a file) does not take, is refused in one line. */
int tool_parse_page(const tool_page *, const struct argp *, unsigned flags, int argc, char **argv, void *input);

/** Parsers call it: it prints one line "tessera train: …" on standard error and returns EINVAL. tool_parse turns that
 * into exit code 2. */
error_t tool_usage_error(const struct argp_state *, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** Prints the thread's last error as one line and returns the exit code that belongs to `status`. */
int tool_report(tess_status status);

/** "did you mean …" for messages: "; did you mean 'train'?" or "". In a static buffer. */
const char *tool_suggestion(const char *word, const char *const *names, size_t n);

/** A blank and `text` as one word of a shell. */
void tool_put_word(FILE *f, const char *text);
#endif
