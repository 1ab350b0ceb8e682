/* SPDX-License-Identifier: BSD-3-Clause */
#include "options.h"

#include <string.h>

#include "core/base/options.h"

enum { MOST_OWN = 128 };

void tool_options_start(void) {
    static tess__option own[MOST_OWN + 1];
    size_t n = 0;
    for (const tool_option *o = tool_options; o->key && n < MOST_OWN; o++)
        if (o->help)
            own[n++] = (tess__option){ o->key, o->type, o->fallback, o->choices, o->help };
    tess__options_add(own);
}

const tool_option *tool_option_find(const char *key, size_t n) {
    for (const tool_option *o = tool_options; o->key; o++)
        if (strncmp(o->key, key, n) == 0 && !o->key[n])
            return o;
    return NULL;
}

tool_option tool_option_of(const tool_option *row) {
    tool_option all = *row;
    const tess__option *core = row->help ? NULL : tess__option_find(row->key);
    if (core) {
        all.type = core->type;
        all.fallback = core->fallback;
        all.choices = core->choices;
        all.help = core->help;
    }
    return all;
}

int tool_listed(const char *words, const char *word) {
    size_t n = word ? strlen(word) : 0;
    if (!words || !word)
        return 1;
    for (const char *at = words; (at = strstr(at, word)) != NULL; at += n)
        if ((at == words || at[-1] == ' ') && (!at[n] || at[n] == ' '))
            return 1;
    return 0;
}

int tool_option_may_stand_alone(const char *key) {
    return strcmp(key, "json") == 0 || strcmp(key, "watch") == 0;
}

int tool_option_is_for(const tool_option *o, const char *subject) {
    return tool_listed(o->subjects, subject);
}

const char *tool_option_variable(const char *key, char out[80]) {
    return tess__option_variable(key, out);
}

/* ---- what is set ------------------------------------------------------------------------------- */

const char *tool_option_text(const char *key) {
    return tess__option_text(key);
}

tess_status tool_option_int(const char *key, int64_t *out) {
    const tool_option *o = tool_option_find(key, strlen(key));
    if (!o)
        return tess_fail(TESS_E_INTERNAL, "option '%s' is not in the table", key);
    return tess__option_int(key, (int64_t)o->least, o->most >= 0x1p63 ? INT64_MAX : (int64_t)o->most, out);
}

tess_status tool_option_int_in(const char *key, int64_t least, int64_t most, int64_t *out) {
    return tess__option_int(key, least, most, out);
}

tess_status tool_option_real(const char *key, double *out) {
    return tess__option_real(key, out);
}

tess_status tool_option_bytes(const char *key, uint64_t *out) {
    return tess__option_bytes(key, out);
}

tess_status tool_option_flag(const char *key, int *out) {
    return tess__option_flag(key, out);
}

tess_status tool_option_choice(const char *key, const char **out) {
    return tess__option_choice(key, out);
}

void tool_options_use(const tess_setting *list, uint32_t n) {
    static tess__given given = { .wins = 1 };
    given.list = list;
    given.n = n;
    tess__given_use(&given);
}

/* ---- plugins and misspellings ------------------------------------------------------------------ */

tess_status tool_options_declare(const char *kind, const char *plugin, const tess_option_spec *options, uint32_t n) {
    return tess__options_register(kind, plugin, options, n);
}

const char *tool_nearest(const char *word, const char *const *names, size_t n) {
    return tess__nearest(word, names, n);
}
