/* SPDX-License-Identifier: BSD-3-Clause */
/* The words of a run that say which optimizer it has: the plugin's name and version, and the value of each of its
 * options. A plugin by its path has the words of one by its name, and a variable those of the text behind the colon. */
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "core/plugin/open.h"
#include <tessera/plugin_options.h>
#include "train.h"

enum { ROOM = 1024, MOST = 96 }; /* MOST: bytes of the options' words in a run's; a hash stands for more */

/* Appends to a text that may be full. */
__attribute__((format(printf, 2, 3))) static void put(char out[ROOM], const char *format, ...) {
    const size_t used = strlen(out);
    va_list list;
    va_start(list, format);
    vsnprintf(out + used, ROOM - used, format, list);
    va_end(list);
}

/* Returns 1 if the key is PREFIX-NAME. */
static int is_key(const char *key, const char *prefix, const char *name, size_t bytes) {
    const size_t n = strlen(prefix);
    return strlen(key) == n + 1 + bytes && memcmp(key, prefix, n) == 0 && key[n] == '-' &&
           memcmp(key + n + 1, name, bytes) == 0;
}

/* Finds the option that "NAME=VALUE" or "FLAG" behind the colon sets; n_options: none. */
static uint32_t option_of(const tess__plugin *p, const char *item, size_t bytes) {
    const char *equals = memchr(item, '=', bytes);
    const size_t name = equals ? (size_t)(equals - item) : bytes;
    uint32_t i = 0;
    for (; i < p->n_options; i++) {
        const tess_option_spec *o = &p->options[i];
        if ((is_key(o->key, p->name, item, name) || is_key(o->key, tess__kind_name(p->kind), item, name)) &&
            (equals || o->type == TESS_OPTION_FLAG))
            break;
    }
    return i;
}

/* Writes what the text behind the colon says of option i; of several, the last counts. Returns 0 if it says nothing. */
static int said_behind_colon(const tess__plugin *p, uint32_t i, char out[ROOM]) {
    int found = 0;
    for (const char *at = p->args; *at; at += strcspn(at, ","), at += *at == ',') {
        const size_t item = strcspn(at, ",");
        const char *equals = memchr(at, '=', item);
        if (option_of(p, at, item) != i)
            continue;
        snprintf(out, ROOM, "%.*s", equals ? (int)(at + item - equals - 1) : 1, equals ? equals + 1 : "1");
        found = 1;
    }
    return found;
}

/* Writes a value in one way: 0.50 is 0.5, and yes is 1. */
static void put_value(char out[ROOM], const tess_option_spec *o, const char *text) {
    tess_option_value v;
    put(out, " %s=", o->key);
    if (o->type == TESS_OPTION_REAL && tess_option_parse(o, text, &v))
        put(out, "%.15g", v.real);
    else if (o->type == TESS_OPTION_INT && tess_option_parse(o, text, &v))
        put(out, "%" PRId64, v.integer);
    else if ((o->type == TESS_OPTION_FLAG || o->type == TESS_OPTION_BYTES) && tess_option_parse(o, text, &v))
        put(out, "%" PRIu64, v.number);
    else
        for (const char *c = *text ? text : "none"; *c; c++)
            put(out, "%c", *c == ' ' ? '_' : *c);
}

static void put_options(char out[ROOM], const tess__plugin *p) {
    for (uint32_t i = 0; i < p->n_options; i++) {
        const tess_option_spec *o = &p->options[i];
        const char *set = p->host->option(p->host->host, o->key);
        char said[ROOM];
        put_value(out, o, said_behind_colon(p, i, said) ? said : set ? set : o->fallback);
    }
}

/* Text behind the colon that sets no option means something to the plugin alone, so it stays as it is. */
static void put_rest(char out[ROOM], const tess__plugin *p) {
    int n = 0;
    for (const char *at = p->args; *at; at += strcspn(at, ","), at += *at == ',') {
        const size_t item = strcspn(at, ",");
        if (option_of(p, at, item) == p->n_options)
            put(out, "%s%.*s", n++ ? "," : " optimizer-args=", (int)item, at);
    }
}

static void put_plugin(const tess__plugin *p, char out[TRAIN_OPTIMIZER_BYTES]) {
    char version[48] = "", options[ROOM] = "";
    if (*p->path)
        snprintf(version, sizeof version, " optimizer-version=%s", p->version);
    put_options(options, p);
    put_rest(options, p);
    if (strlen(options) > MOST)
        snprintf(options, sizeof options, " optimizer-options=%016" PRIx64,
                 train_hash_on(14695981039346656037u, (const unsigned char *)options, strlen(options)));
    snprintf(out, TRAIN_OPTIMIZER_BYTES, "optimizer=%s%s%.*s", p->name, version, MOST, options);
}

void train_optimizer_words(const char *selection, char out[TRAIN_OPTIMIZER_BYTES]) {
    tess__plugin *p = NULL;
    if (strcmp(selection, "none") != 0 && strcmp(selection, "own") != 0 &&
        tess__plugin_open(TESS_KIND_OPTIMIZER, selection, NULL, &p) == TESS_OK)
        put_plugin(p, out);
    else
        snprintf(out, TRAIN_OPTIMIZER_BYTES, "optimizer=%.200s", selection);
    tess__plugin_close(p);
}
