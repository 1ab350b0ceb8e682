/* SPDX-License-Identifier: BSD-3-Clause */
/* The TESSERA_ variables. API options are weakest, then the environment, then the command line, which
 * sets the environment; so the core reads one place. Reads with secure_getenv. */
#ifndef TESS_OPTIONS_H
#define TESS_OPTIONS_H
#include <tessera/plugin_options.h>
#include <tessera/tessera.h>

typedef struct {
    const char *key;      /* "device-memory": --device-memory and TESSERA_DEVICE_MEMORY */
    uint32_t type;        /* TESS_OPTION_… of plugin.h */
    const char *fallback; /* shown in the docs; null: none */
    const char *choices;  /* "each|end" for TESS_OPTION_CHOICE; for the other types words allowed beside a value */
    const char *help;
} tess__option;
extern const tess__option tess__option_table[]; /* the core's and its plugins'; ends with a null key */
/** A program's own options, which are then known as the core's are. The rows end with a null key and live as long as
 * the process. Once, before another thread reads. */
void tess__options_add(const tess__option *rows);

/** The row of `key`, or null. */
const tess__option *tess__option_find(const char *key);
/** "device-memory" → "TESSERA_DEVICE_MEMORY", at most 79 characters. Null when the key is not [a-z0-9-]+. */
const char *tess__option_variable(const char *key, char out[80]);

/** The settings that a program gave to tess_open, or a user to the command line, by key. */
typedef struct {
    const tess_setting *list; /* a later one of the same key takes the place of an earlier */
    uint32_t n;
    int wins; /* stronger than the environment, else weaker */
} tess__given;
/** This thread's reads below look there too, until it is called again. Returns what they looked at before. */
const tess__given *tess__given_use(const tess__given *or_null);
/** Whether every key is one that a row or a registered plugin knows; else TESS_E_INVALID with the nearest name. */
tess_status tess__given_check(const tess__given *);
/** One read with the settings given, from any thread. */
const char *tess__given_text(const tess__given *or_null, const char *key);

/** The variable's text, or null when unset or empty (and in a setuid program). Any key of [a-z0-9-]+: those
 * that are in no row are plugins'. The text lives as long as the process. */
const char *tess__option_text(const char *key);
/** A text option, or `fallback` when it is unset. */
const char *tess__option_or(const char *key, const char *fallback);
/** Typed reads: *out is untouched when the variable is unset or holds one of the words in the table's `choices`
 * ("auto"). A bad value fails with TESS_E_INVALID and a message that names the variable, its text and what was
 * expected. */
tess_status tess__option_int(const char *key, int64_t least, int64_t most, int64_t *out);
tess_status tess__option_real(const char *key, double *out);
tess_status tess__option_bytes(const char *key, uint64_t *out);     /* "512", "64KiB", "1.5GiB" */
tess_status tess__option_flag(const char *key, int *out);           /* 0 1 no yes off on false true */
tess_status tess__option_choice(const char *key, const char **out); /* checks against the table's choices */
/** Makes a plugin's options known, and checks what the environment sets of them: a bad value, or a variable with the
 * plugin's prefix that is none of its options, fails with TESS_E_INVALID. Keys begin with the plugin's name or its
 * kind and a hyphen. Copies what it keeps. */
tess_status tess__options_register(const char *kind, const char *plugin, const tess_option_spec *, uint32_t n);
/** Whether the key begins with that name, or kind, and a hyphen. */
int tess__option_has_prefix(const char *key, const char *prefix);
/** Warns, once for each in the life of the process, of TESSERA_ variables that no row and no registered plugin knows:
 * of a slip with the nearest name, of the others in one line. Returns how many it warned of. */
int tess__options_warn_unknown(void);
/** The nearest of `n` names by edit distance, or null when none is near. For "did you mean". */
const char *tess__nearest(const char *word, const char *const *names, size_t n);
#endif
