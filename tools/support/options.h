/* SPDX-License-Identifier: BSD-3-Clause */
/* This is the table of the command's options and their values. Each is a variable too (docs/variables.md). The core
 * knows its own options alone; the command registers these with it. */
#ifndef TOOL_OPTIONS_H
#define TOOL_OPTIONS_H
#include <stddef.h>
#include <tessera/plugin.h>
#include <tessera/tessera.h>

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
    const char *key;          /* "lr": --lr and TESSERA_LR */
    uint32_t type;            /* TESS_OPTION_… of plugin.h */
    const char *fallback;     /* shown; null: none */
    const char *choices;      /* "each|end" of a choice; of the other types words allowed beside a value */
    const char *help;         /* null: a core option; tool_option_of gets these four from the core */
    const char *value;        /* as --help shows it; null: a flag */
    uint32_t group, commands; /* commands 0: a variable alone */
    const char *subjects;     /* "gpt convbn FILE": subjects that take it; null: all */
    double least, most;       /* bounds of numbers */
} tool_option;

extern const tool_option tool_options[]; /* ends with a null key */
/** Makes the table known to the core: once, at the beginning of the process. */
void tool_options_start(void);
/** Returns the row of `key`, which has `n` characters, or null. */
const tool_option *tool_option_find(const char *key, size_t n);
/** Returns the row completed by the core's description. */
tool_option tool_option_of(const tool_option *);
/** Returns 1 if `word` is in `words`, which blanks separate, or if either is null. */
int tool_listed(const char *words, const char *word);
/** Whether the row is for `subject`: a model, "FILE" or "PROGRAM"; null: no subject, so everything is. */
int tool_option_is_for(const tool_option *, const char *subject);
/** Whether the option may stand without its value; it is then "1". */
int tool_option_may_stand_alone(const char *key);
/** "device-memory" → "TESSERA_DEVICE_MEMORY"; null when the key is not [a-z0-9-]+. */
const char *tool_option_variable(const char *key, char out[80]);

/** The text set on the command line, or else in the environment; null: nothing is. It lives as long as the process.
 */
const char *tool_option_text(const char *key);
/** Typed reads: *out is untouched when nothing is set, or one of the words beside a value. A bad value fails with
 * TESS_E_INVALID and a message that names the variable. A whole number keeps to the bounds of its row. */
tess_status tool_option_int(const char *key, int64_t *out);
tess_status tool_option_int_in(const char *key, int64_t least, int64_t most, int64_t *out);
tess_status tool_option_real(const char *key, double *out);
tess_status tool_option_bytes(const char *key, uint64_t *out);
tess_status tool_option_flag(const char *key, int *out);
tess_status tool_option_choice(const char *key, const char **out);
/** Makes this thread read these settings before the environment (settings.h). It does not copy them. */
void tool_options_use(const tess_setting *, uint32_t n);

/** Makes a plugin's options known and checks what is set of them, as its loading does. */
tess_status tool_options_declare(const char *kind, const char *plugin, const tess_option_spec *, uint32_t n);
/** The nearest of `n` names, or null when none is near. For "did you mean". */
const char *tool_nearest(const char *word, const char *const *names, size_t n);
#endif
