/* SPDX-License-Identifier: BSD-3-Clause */
/* The table of the command's options and their values. Each is also a variable (docs/variables.md). The core knows only
 * its own options, so the command registers these with it. */
#ifndef TOOL_OPTIONS_H
#define TOOL_OPTIONS_H
#include <stddef.h>
#include <tessera/plugin.h>
#include <tessera/tessera.h>

/* Commands as bits. */
enum { TOOL_TRAIN = 1, TOOL_PLAN = 2, TOOL_TUNE = 4, TOOL_BENCH = 8, TOOL_CKPT = 16 };
/* Groups in the order of --help. TOOL_GROUP_OWN holds options that only one command has. */
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
    const char *fallback;     /* default to show, or null */
    const char *choices;      /* "each|end" for a choice; for other types, words allowed instead of a value */
    const char *help;         /* null for a core option: tool_option_of gets these four from the core */
    const char *value;        /* value's name in --help; null: a flag */
    uint32_t group, commands; /* commands 0: only a variable */
    const char *subjects;     /* "gpt convbn FILE": subjects that take it; null: all */
    double least, most;       /* bounds of a number */
} tool_option;

extern const tool_option tool_options[]; /* ends with a null key */
/** Registers the table with the core. Call it once, when the process starts. */
void tool_options_start(void);
/** Returns the row of `key`, which has `n` characters, or null. */
const tool_option *tool_option_find(const char *key, size_t n);
/** Returns the row with the core's description filled in. */
tool_option tool_option_of(const tool_option *);
/** Returns 1 if `word` is in `words`, which blanks separate, or if either is null. */
int tool_listed(const char *words, const char *word);
/** Returns 1 if the row is for `subject`: a model, "FILE" or "PROGRAM". Null means no subject, and every row is for
 * that. */
int tool_option_is_for(const tool_option *, const char *subject);
/** Returns 1 if the option may omit its value, which is then "1". */
int tool_option_may_stand_alone(const char *key);
/** Returns "TESSERA_DEVICE_MEMORY" for "device-memory", or null if the key is not [a-z0-9-]+. */
const char *tool_option_variable(const char *key, char out[80]);

/** Returns the text from the command line or else the environment, or null. It lives as long as the process. */
const char *tool_option_text(const char *key);
/** Each of these leaves *out unchanged if nothing is set, or a word that is allowed instead of a value. A bad value
 * gives TESS_E_INVALID and a message that names the variable. Whole numbers must be within the bounds of their row. */
tess_status tool_option_int(const char *key, int64_t *out);
tess_status tool_option_int_in(const char *key, int64_t least, int64_t most, int64_t *out);
tess_status tool_option_real(const char *key, double *out);
tess_status tool_option_bytes(const char *key, uint64_t *out);
tess_status tool_option_flag(const char *key, int *out);
tess_status tool_option_choice(const char *key, const char **out);
/** Makes this thread read these settings before the environment (settings.h). It does not copy them. */
void tool_options_use(const tess_setting *, uint32_t n);

/** Registers a plugin's options and checks those that are set, as loading the plugin does. */
tess_status tool_options_declare(const char *kind, const char *plugin, const tess_option_spec *, uint32_t n);
/** Returns the nearest of `n` names for "did you mean", or null if none is near. */
const char *tool_nearest(const char *word, const char *const *names, size_t n);
#endif
