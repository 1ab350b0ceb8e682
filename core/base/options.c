/* SPDX-License-Identifier: BSD-3-Clause */
#include "options.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "log.h"
#include "status.h"

#define PREFIX "TESSERA_"
#define PREFIX_CHARS (sizeof PREFIX - 1)

/* Strings that are kept for good: what a plugin was handed, keys of plugins, names that were warned of. */
typedef struct kept {
    struct kept *next;
    char text[];
} kept;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static kept *texts, *plugin_keys, *warned;

static const char *keep_find(const kept *list, const char *text) {
    for (; list; list = list->next)
        if (strcmp(list->text, text) == 0)
            return list->text;
    return NULL;
}

/* The kept copy of `text`; null without memory. *added says whether it is new. */
static const char *keep_text(kept **list, const char *text, int *added) {
    *added = 0;
    const char *found = keep_find(*list, text);
    if (found)
        return found;
    size_t bytes = strlen(text) + 1;
    kept *k = malloc(sizeof *k + bytes);
    if (!k)
        return NULL;
    memcpy(k->text, text, bytes);
    k->next = *list;
    *list = k;
    *added = 1;
    return k->text;
}

static const tess__option *added;

void tess__options_add(const tess__option *rows) {
    added = rows;
}

static const tess__option *find_in(const tess__option *o, const char *key) {
    while (o && o->key && strcmp(o->key, key) != 0)
        o++;
    return o && o->key ? o : NULL;
}

const tess__option *tess__option_find(const char *key) {
    const tess__option *own = find_in(tess__option_table, key);
    return own ? own : find_in(added, key);
}

const char *tess__option_variable(const char *key, char out[80]) {
    size_t n = strlen(key);
    if (n == 0 || n + PREFIX_CHARS >= 80)
        return NULL;
    memcpy(out, PREFIX, PREFIX_CHARS);
    for (size_t i = 0; i <= n; i++) {
        char c = key[i];
        if (c >= 'a' && c <= 'z')
            c = (char)(c - 'a' + 'A');
        else if (c == '-')
            c = '_';
        else if (c && (c < '0' || c > '9'))
            return NULL;
        out[PREFIX_CHARS + i] = c;
    }
    return out;
}

/* ---- settings ---------------------------------------------------------------------------------- */

static _Thread_local const tess__given *in_use;

const tess__given *tess__given_use(const tess__given *settings) {
    const tess__given *before = in_use;
    in_use = settings;
    return before;
}

static const char *given_value(const tess__given *s, const char *key) {
    for (uint32_t i = s ? s->n : 0; i-- > 0;)
        if (strcmp(s->list[i].key, key) == 0 && s->list[i].value && s->list[i].value[0])
            return s->list[i].value;
    return NULL;
}

static const char *variable_text(const char *key);

const char *tess__given_text(const tess__given *s, const char *key) {
    const char *own = given_value(s, key);
    if (own && s->wins)
        return own;
    const char *text = variable_text(key);
    return text ? text : own;
}

const char *tess__option_text(const char *key) {
    return tess__given_text(in_use, key);
}

static const char *variable_text(const char *key) {
    char variable[80];
    if (!tess__option_variable(key, variable))
        return NULL;
    const char *text = secure_getenv(variable);
    if (!text || !*text)
        return NULL;
    /* A later setenv may move the environment's own copy. */
    int added;
    pthread_mutex_lock(&lock);
    const char *lasting = keep_text(&texts, text, &added);
    pthread_mutex_unlock(&lock);
    return lasting ? lasting : text;
}

const char *tess__option_or(const char *key, const char *fallback) {
    const char *text = tess__option_text(key);
    return text ? text : fallback;
}

/* ---- typed reads ------------------------------------------------------------------------------- */

static int is_word(const char *text, const char *words) {
    return tess_option_word(text, strlen(text), words) >= 0;
}

/* The text to parse, or null when there is none or it is one of the words beside a value. */
static const char *value_text(const char *key, const tess__option **row) {
    *row = tess__option_find(key);
    const char *text = tess__option_text(key);
    if (text && *row && (*row)->type != TESS_OPTION_CHOICE && is_word(text, (*row)->choices))
        return NULL;
    return text;
}

static tess_status bad_value(const char *key, const char *text, const char *choices, const char *expected) {
    char variable[80];
    return tess__fail(TESS_E_INVALID, "%s is '%.100s', expected %s%s%s", tess__option_variable(key, variable), text,
                      expected, choices ? " or " : "", choices ? choices : "");
}

tess_status tess__option_int(const char *key, int64_t least, int64_t most, int64_t *out) {
    const tess__option *row;
    const char *text = value_text(key, &row);
    int64_t value;
    if (!text)
        return TESS_OK;
    if (tess_option_parse_int(text, &value) && value >= least && value <= most) {
        *out = value;
        return TESS_OK;
    }
    char expected[96];
    if (most == INT64_MAX)
        snprintf(expected, sizeof expected, "an integer from %lld up", (long long)least);
    else
        snprintf(expected, sizeof expected, "an integer from %lld to %lld", (long long)least, (long long)most);
    return bad_value(key, text, row ? row->choices : NULL, expected);
}

tess_status tess__option_real(const char *key, double *out) {
    const tess__option *row;
    const char *text = value_text(key, &row);
    if (!text || tess_option_parse_real(text, out))
        return TESS_OK;
    return bad_value(key, text, row ? row->choices : NULL, "a finite number");
}

#define BYTES_EXPECTED "bytes such as 512, 64KiB or 1.5GiB"

tess_status tess__option_bytes(const char *key, uint64_t *out) {
    const tess__option *row;
    const char *text = value_text(key, &row);
    if (!text || tess_option_parse_bytes(text, out))
        return TESS_OK;
    return bad_value(key, text, row ? row->choices : NULL, BYTES_EXPECTED);
}

tess_status tess__option_flag(const char *key, int *out) {
    const tess__option *row;
    const char *text = value_text(key, &row);
    uint64_t on;
    if (!text)
        return TESS_OK;
    if (tess_option_parse_flag(text, &on)) {
        *out = (int)on;
        return TESS_OK;
    }
    return bad_value(key, text, row ? row->choices : NULL, "0, 1, no, yes, off, on, false or true");
}

tess_status tess__option_choice(const char *key, const char **out) {
    const tess__option *row = tess__option_find(key);
    const char *text = tess__option_text(key);
    if (!row || row->type != TESS_OPTION_CHOICE)
        return tess__fail(TESS_E_INTERNAL, "option '%s' is no choice", key);
    if (!text)
        return TESS_OK;
    if (!is_word(text, row->choices)) {
        char expected[160];
        snprintf(expected, sizeof expected, "one of %s", row->choices);
        return bad_value(key, text, NULL, expected);
    }
    *out = text;
    return TESS_OK;
}

/* ---- plugins' own ------------------------------------------------------------------------------ */

/* Underscores in a plugin's name are hyphens in its keys. */
int tess__option_has_prefix(const char *key, const char *prefix) {
    size_t n = strlen(prefix);
    for (size_t i = 0; i < n; i++)
        if (key[i] != (prefix[i] == '_' ? '-' : prefix[i]))
            return 0;
    return key[n] == '-' && key[n + 1];
}

static int is_ended(const char *text, size_t room) {
    return memchr(text, 0, room) != NULL;
}

static tess_status check_form(const char *kind, const char *plugin, const tess_option_spec *o) {
    char variable[80];
    const int ended = is_ended(o->key, sizeof o->key) && is_ended(o->fallback, sizeof o->fallback) &&
                      is_ended(o->choices, sizeof o->choices) && is_ended(o->help, sizeof o->help);
    if (!ended || !tess__option_variable(o->key, variable))
        return tess__fail(TESS_E_INVALID, "%s plugin %s declares an option with the key '%.64s', expected [a-z0-9-]+%s",
                          kind, plugin, o->key, ended ? "" : " and texts that end");
    if (o->type < TESS_OPTION_INT || o->type > TESS_OPTION_LIST)
        return tess__fail(TESS_E_INVALID, "%s plugin %s declares option '%s' of unknown type %u", kind, plugin, o->key,
                          o->type);
    if ((o->type == TESS_OPTION_CHOICE || o->type == TESS_OPTION_LIST) && !*o->choices)
        return tess__fail(TESS_E_INVALID, "%s plugin %s declares option '%s' without choices", kind, plugin, o->key);
    return TESS_OK;
}

static tess_status check_declared(const char *kind, const char *plugin, const tess_option_spec *o) {
    tess_option_value value;
    char expected[200];
    TRY(check_form(kind, plugin, o));
    if (!tess__option_has_prefix(o->key, plugin) && !tess__option_has_prefix(o->key, kind))
        return tess__fail(TESS_E_INVALID,
                          "%s plugin %s declares option '%s', which begins with neither '%s-' nor '%s-'", kind, plugin,
                          o->key, plugin, kind);
    if (tess__option_find(o->key))
        return tess__fail(TESS_E_INVALID, "%s plugin %s declares option '%s', which is the core's", kind, plugin,
                          o->key);
    if (*o->fallback && !tess_option_parse(o, o->fallback, &value))
        return tess__fail(TESS_E_INVALID, "%s plugin %s declares option '%s' with the fallback '%s', expected %s", kind,
                          plugin, o->key, o->fallback, tess_option_expected(o, expected, sizeof expected));
    return TESS_OK;
}

static tess_status check_set_value(const tess_option_spec *o) {
    const char *text = tess__option_text(o->key);
    tess_option_value value;
    char expected[200];
    if (!text || tess_option_parse(o, text, &value))
        return TESS_OK;
    return bad_value(o->key, text, NULL, tess_option_expected(o, expected, sizeof expected));
}

/* "TESSERA_GLOO_PORT=1" → "gloo-port"; 0 when the entry is no variable of ours that is set. */
static int entry_key(const char *entry, char key[80]) {
    const char *equals = strchr(entry, '=');
    if (strncmp(entry, PREFIX, PREFIX_CHARS) != 0 || !equals || !equals[1])
        return 0;
    size_t n = (size_t)(equals - entry) - PREFIX_CHARS;
    if (n == 0 || n >= 80)
        return 0;
    for (size_t i = 0; i < n; i++) {
        char c = entry[PREFIX_CHARS + i];
        key[i] = c == '_' ? '-' : c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : '?'; /* '?' is in no key */
        if (c >= '0' && c <= '9')
            key[i] = c;
    }
    key[n] = 0;
    return 1;
}

static int key_known(const char *key) {
    pthread_mutex_lock(&lock);
    int known = keep_find(plugin_keys, key) != NULL;
    pthread_mutex_unlock(&lock);
    return known || tess__option_find(key);
}

/* The variable whose key comes nearest, or null. */
static const char *nearest_variable(const char *key, char out[80]) {
    const char *names[256];
    size_t n = 0;
    for (const tess__option *o = tess__option_table; o->key; o++)
        names[n++] = o->key;
    for (const tess__option *o = added; o && o->key && n < 256; o++)
        names[n++] = o->key;
    pthread_mutex_lock(&lock);
    for (const kept *k = plugin_keys; k && n < 256; k = k->next)
        names[n++] = k->text;
    pthread_mutex_unlock(&lock);
    const char *near = tess__nearest(key, names, n);
    return near ? tess__option_variable(near, out) : NULL;
}

tess_status tess__given_check(const tess__given *s) {
    char near[80];
    for (uint32_t i = 0; i < s->n; i++) {
        const char *key = s->list[i].key;
        if (key_known(key))
            continue;
        const char *hint = nearest_variable(key, near);
        return tess__fail(TESS_E_INVALID,
                          "tess_options.settings: '%.64s' is an option of neither tessera nor a plugin in use%s%s%s",
                          key, hint ? "; did you mean that of " : "", hint ? hint : "", hint ? "?" : "");
    }
    return TESS_OK;
}

/* A variable with this plugin's prefix that names no option is a slip, which would otherwise go unnoticed. */
static tess_status check_no_stranger(const char *kind, const char *plugin, const char *prefix) {
    for (char **e = environ; e && *e; e++) {
        char key[80], near[80];
        if (!entry_key(*e, key) || !tess__option_has_prefix(key, prefix) || key_known(key))
            continue;
        const char *hint = nearest_variable(key, near);
        return tess__fail(TESS_E_INVALID, "%.*s is set, but %s plugin %s has no such option%s%s%s",
                          (int)strcspn(*e, "="), *e, kind, plugin, hint ? "; did you mean " : "", hint ? hint : "",
                          hint ? "?" : "");
    }
    return TESS_OK;
}

static tess_status keep_key(const char *kind, const char *plugin, const tess_option_spec *o) {
    int added;
    TRY(check_declared(kind, plugin, o));
    TRY(check_set_value(o));
    pthread_mutex_lock(&lock);
    const char *kept_key = keep_text(&plugin_keys, o->key, &added);
    pthread_mutex_unlock(&lock);
    return kept_key ? TESS_OK : tess__fail(TESS_E_NOMEM, "no memory for the options of %s plugin %s", kind, plugin);
}

tess_status tess__options_register(const char *kind, const char *plugin, const tess_option_spec *options, uint32_t n) {
    int of_kind = 0;
    for (uint32_t i = 0; i < n; i++) {
        TRY(keep_key(kind, plugin, &options[i]));
        of_kind |= tess__option_has_prefix(options[i].key, kind);
    }
    TRY(check_no_stranger(kind, plugin, plugin));
    return of_kind ? check_no_stranger(kind, plugin, kind) : TESS_OK;
}

/* Variables of the test suite, and those with which tessera run tells a program of its restarts. */
static int for_others(const char *key) {
    return strncmp(key, "test-", 5) == 0 || strncmp(key, "matrix-", 7) == 0 || strncmp(key, "double-", 7) == 0 ||
           strcmp(key, "restart") == 0 || strncmp(key, "restart-", 8) == 0;
}

/* Whether this is the first time. */
static int warns_of(const char *key) {
    int is_new;
    pthread_mutex_lock(&lock);
    keep_text(&warned, key, &is_new);
    pthread_mutex_unlock(&lock);
    return is_new;
}

int tess__options_warn_unknown(void) {
    char unread[512] = "";
    size_t at = 0;
    int n = 0, n_unread = 0;
    for (char **e = environ; e && *e; e++) {
        char key[80], near[80];
        int name = (int)strcspn(*e, "=");
        if (!entry_key(*e, key) || key_known(key) || for_others(key) || !warns_of(key))
            continue;
        const char *hint = nearest_variable(key, near);
        n++;
        if (hint) {
            tess__log(TESS_LOG_WARNING, "%.*s is set, but nothing here reads it; did you mean %s?", name, *e, hint);
            continue;
        }
        n_unread++;
        if (at + (size_t)name + 3 < sizeof unread) /* whole names */
            at += (size_t)snprintf(unread + at, sizeof unread - at, "%s%.*s", at ? ", " : "", name, *e);
    }
    if (n_unread)
        tess__log(TESS_LOG_WARNING, "%s %s set, but nothing here reads %s", unread, n_unread > 1 ? "are" : "is",
                  n_unread > 1 ? "them" : "it");
    return n;
}

/* ---- did you mean ------------------------------------------------------------------------------ */

enum { WORD_MAX = 64 };

static size_t least3(size_t a, size_t b, size_t c) {
    size_t ab = a < b ? a : b;
    return ab < c ? ab : c;
}

/* Insertions, deletions, substitutions and swaps of neighbours. */
static size_t edit_distance(const char *a, size_t n, const char *b, size_t m) {
    size_t rows[3][WORD_MAX + 1];
    size_t *before = rows[0], *last = rows[1], *row = rows[2];
    for (size_t j = 0; j <= m; j++)
        last[j] = j;
    for (size_t i = 1; i <= n; i++) {
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            row[j] = least3(last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < row[j])
                row[j] = before[j - 2] + 1;
        }
        size_t *free_row = before;
        before = last, last = row, row = free_row;
    }
    return last[m];
}

const char *tess__nearest(const char *word, const char *const *names, size_t n) {
    size_t length = strlen(word);
    if (length == 0 || length > WORD_MAX)
        return NULL;
    /* A third of the letters wrong is no slip any more. */
    size_t best = length < 6 ? 1 : length / 3;
    const char *found = NULL;
    for (size_t i = 0; i < n; i++) {
        size_t m = strlen(names[i]);
        if (m == 0 || m > WORD_MAX)
            continue;
        size_t d = edit_distance(word, length, names[i], m);
        if (d < best || (d == best && !found)) {
            best = d;
            found = names[i];
        }
    }
    return found;
}
