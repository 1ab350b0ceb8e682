/* SPDX-License-Identifier: BSD-3-Clause */
#include "settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "say.h"
#include "options.h"

enum { MOST_SETTINGS = 256 };
static tess_setting list[MOST_SETTINGS];
static uint32_t n_list;

static void set_log_level(const char *level) {
    static const char *const names[] = { "error", "warning", "info", "debug" };
    for (int32_t i = 0; i < 4; i++)
        if (strcmp(level, names[i]) == 0)
            tool_say_at_most(i);
}

tess_status tool_settings_set(const char *key, const char *value) {
    char *own_key = strdup(key), *own_value = strdup(value);
    if (!own_key || !own_value || n_list == MOST_SETTINGS) {
        free(own_key);
        free(own_value);
        return tess_fail(TESS_E_NOMEM, "no memory for the option --%s", key);
    }
    list[n_list++] = (tess_setting){ own_key, own_value };
    tool_options_use(list, n_list);
    if (strcmp(key, "log") == 0)
        set_log_level(value);
    return TESS_OK;
}

uint32_t tool_settings_mark(void) {
    return n_list;
}

void tool_settings_back(uint32_t mark) {
    while (n_list > mark) {
        n_list--;
        free((void *)list[n_list].key);
        free((void *)list[n_list].value);
    }
    tool_options_use(list, n_list);
}

void tool_settings_give(tess_options *o) {
    o->flags |= TESS_OPTIONS_WIN;
    o->settings = list;
    o->n_settings = n_list;
}

/* ---- for other programs ------------------------------------------------------------------------ */

static char *entry_of(const tess_setting *s) {
    char variable[80], *entry = NULL;
    if (tool_option_variable(s->key, variable) && asprintf(&entry, "%s=%s", variable, s->value) >= 0)
        return entry;
    return NULL;
}

/* Replaces the entry of the same name, or appends a new one. */
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
    char **entries = calloc(n + n_list + n_extra + 1, sizeof *entries);
    if (!entries)
        return NULL;
    memcpy(entries, environ, n * sizeof *entries);
    if (put_all(entries, &n, list, n_list) && put_all(entries, &n, extra, n_extra))
        return entries;
    free(entries);
    return NULL;
}
