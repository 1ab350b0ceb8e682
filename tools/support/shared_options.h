/* SPDX-License-Identifier: BSD-3-Clause */
/* The options that several commands share: which command and which model takes each, its group in --help, its bounds.
 * Type, default and help stand in the core's table (core/base/options.h). Help, man pages and completion are made from
 * both. */
#ifndef TOOL_SHARED_OPTIONS_H
#define TOOL_SHARED_OPTIONS_H
#include <stddef.h>
#include <stdint.h>

/* Commands, as bits. */
enum { TOOL_TRAIN = 1, TOOL_PLAN = 2, TOOL_TUNE = 4, TOOL_BENCH = 8, TOOL_CKPT = 16 };
/* Groups, in the order of --help. TOOL_GROUP_OWN: what only one command has. */
enum {
    TOOL_GROUP_OWN,
    TOOL_GROUP_MODEL,
    TOOL_GROUP_DATA,
    TOOL_GROUP_OPTIMIZER,
    TOOL_GROUP_MEMORY,
    TOOL_GROUP_RANKS,
    TOOL_GROUP_OUTPUT,
    TOOL_GROUPS
};

typedef struct {
    const char *key;
    const char *value; /* as --help shows it; null: a flag */
    uint32_t group, commands;
    const char *subjects; /* "gpt convbn FILE": what takes it; null: everything */
    double least, most;   /* of whole numbers and of reals */
} tool_shared_option;

extern const tool_shared_option tool_shared_options[]; /* ends with a null key */
/** How many rows there are. */
size_t tool_shared_count(void);
/** The row of `key`, of which `n` characters count, or null. */
const tool_shared_option *tool_shared_find(const char *key, size_t n);
/** Whether `word` is one of `words`, which blanks part; a null on either side: it is. */
int tool_listed(const char *words, const char *word);
/** Whether the row is for `subject`: a model, "FILE" or "PROGRAM"; null: no subject, so everything is. */
int tool_shared_is_for(const tool_shared_option *, const char *subject);
#endif
