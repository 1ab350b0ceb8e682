/* SPDX-License-Identifier: BSD-3-Clause */
#include "settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "say.h"
#include "core/base/options.h"

enum { MOST_SETTINGS = 256 };
static tess_setting list[MOST_SETTINGS];
static tess__given all = { .list = list, .wins = 1 };

static void set_log_level(const char *level) {
    static const char *const names[] = { "error", "warning", "info", "debug" };
    for (int32_t i = 0; i < 4; i++)
        if (strcmp(level, names[i]) == 0)
            tool_say_at_most(i);
}

tess_status tool_settings_set(const char *key, const char *value) {
    char *own_key = strdup(key), *own_value = strdup(value);
    if (!own_key || !own_value || all.n == MOST_SETTINGS) {
        free(own_key);
        free(own_value);
        return tess_fail(TESS_E_NOMEM, "no memory for the option --%s", key);
    }
    list[all.n++] = (tess_setting){ own_key, own_value };
    tess__given_use(&all);
    if (strcmp(key, "log") == 0)
        set_log_level(value);
    return TESS_OK;
}

uint32_t tool_settings_mark(void) {
    return all.n;
}

void tool_settings_back(uint32_t mark) {
    while (all.n > mark) {
        all.n--;
        free((void *)list[all.n].key);
        free((void *)list[all.n].value);
    }
}

void tool_settings_give(tess_options *o) {
    o->flags |= TESS_OPTIONS_WIN;
    o->settings = all.list;
    o->n_settings = all.n;
}

/* ---- for another program ----------------------------------------------------------------------- */

static char *entry_of(const tess_setting *s) {
    char variable[80], *entry = NULL;
    if (tess__option_variable(s->key, variable) && asprintf(&entry, "%s=%s", variable, s->value) >= 0)
        return entry;
    return NULL;
}

/* Takes the place of an entry with the same name, else goes to the end. */
static size_t put(char **entries, size_t n, char *entry) {
    size_t name = strcspn(entry, "=") + 1, i = 0;
    while (i < n && strncmp(entries[i], entry, name) != 0)
        i++;
    entries[i] = entry;
    return i < n ? n : n + 1;
}

static int put_all(char **entries, size_t *n, const tess_setting *settings, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        char *entry = entry_of(&settings[i]);
        if (!entry)
            return 0;
        *n = put(entries, *n, entry);
    }
    return 1;
}

char **tool_settings_environment(const tess_setting *extra, uint32_t n_extra) {
    size_t n = 0;
    while (environ[n])
        n++;
    char **entries = calloc(n + all.n + n_extra + 1, sizeof *entries);
    if (!entries)
        return NULL;
    memcpy(entries, environ, n * sizeof *entries);
    if (put_all(entries, &n, all.list, all.n) && put_all(entries, &n, extra, n_extra))
        return entries;
    free(entries);
    return NULL;
}
