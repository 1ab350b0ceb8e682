/* SPDX-License-Identifier: BSD-3-Clause */
#include "open.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/options.h"
#include <tessera/plugin_helpers.h>
#include "builtin/builtins.h"
#include "joined.h"
#include "plugin.h"
#include "plugin_host.h"
#include "plugin_search.h"
#include "base/status.h"
#include "trial.h"

#define NO_FILE "no such file" /* trusted_path.c's words for what is just not there */
#define NO_DIRECTORY "no such directory"

/* ---- what was asked for ------------------------------------------------------------------------ */

typedef struct {
    uint32_t kind;
    const char *word; /* the kind's */
    char *name;       /* or path */
    int is_path;
    const char *args;
    const tess_host *services;
} request;

/* Finds where the args begin: behind ".so:", so that they may hold slashes, else behind the first colon of the file
 * name. */
static char *path_args(char *path) {
    char *colon = strstr(path, ".so:");
    if (colon)
        return colon + 3;
    return strchr(strrchr(path, '/'), ':');
}

static tess_status parse_selection(request *r, char *text) {
    size_t head = strcspn(text, ":/");
    char *colon = text + head;
    r->is_path = *colon == '/';
    if (r->is_path)
        colon = path_args(text);
    r->args = "";
    if (colon && *colon == ':') {
        *colon = 0;
        r->args = colon + 1;
    }
    r->name = text;
    if (r->is_path)
        return TESS_OK;
    if (!*text)
        return tess__fail(TESS_E_INVALID, "%s plugin: empty name, expected [a-z0-9_-]+ or a path with a slash",
                          r->word);
    if (text[strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_-")] || strlen(text) > 31)
        return tess__fail(
            TESS_E_INVALID,
            "%s plugin '%.100s': not a plugin's name, which is [a-z0-9_-]+ of at most 31 characters; a path "
            "needs a slash",
            r->word, text);
    return TESS_OK;
}

/* ---- one line about everything that was tried --------------------------------------------------- */

typedef struct {
    char text[800];
    size_t n;
    tess_status status; /* of the first candidate that was there and failed */
} account;

static void add_reason(account *a, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add_reason(account *a, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(a->text + a->n, sizeof a->text - a->n, format, args);
    va_end(args);
    if (n > 0)
        a->n = a->n + (size_t)n < sizeof a->text ? a->n + (size_t)n : sizeof a->text - 1;
}

static void one_line(char *text) {
    for (; *text; text++)
        if (*text == '\n' || *text == '\r')
            *text = ' ';
}

static void tell_failed(account *a, const char *what, tess_status status, char *reason) {
    one_line(reason);
    add_reason(a, "%s%s: %s", a->n ? "; " : "", what, reason);
    if (a->status == TESS_OK)
        a->status = status;
}

/* ---- by name ----------------------------------------------------------------------------------- */

typedef struct {
    const request *r;
    const char *names[256];
    char kept[256][32];
    size_t n;
} name_list;

static tess_status take_name(void *user, uint32_t kind, const char *name, const char *path) {
    name_list *l = user;
    (void)path;
    if (kind == l->r->kind && l->n < 256) {
        memcpy(l->kept[l->n], name, strlen(name) + 1);
        l->names[l->n] = l->kept[l->n];
        l->n++;
    }
    return TESS_OK;
}

static tess_status not_found(const request *r, const tess__plugin_search *search) {
    name_list names = { .r = r };
    account where = { .text = "" };
    for (const tess__builtin *b = tess__builtins; b->kind; b++)
        take_name(&names, b->kind, b->name, "");
    add_reason(&where, "built in are");
    for (size_t i = 0; i < names.n; i++)
        add_reason(&where, " %s", names.names[i]);
    if (names.n == 0)
        add_reason(&where, " none");
    tess__plugin_search_each(search, take_name, &names);
    for (uint32_t i = 0; i < search->n; i++)
        add_reason(&where, "; %s: %s", search->dirs[i].path,
                   search->dirs[i].reason ? search->dirs[i].reason : "has no such file");
    const char *near = tess__nearest(r->name, names.names, names.n);
    return tess__fail(TESS_E_INVALID, "%s plugin '%s' not found%s%s%s (looked for libtessera-%s-%s.so; %s)", r->word,
                      r->name, near ? "; did you mean " : "", near ? near : "", near ? "?" : "", r->word, r->name,
                      where.text);
}

static tess_status open_builtin(const request *r, const tess__builtin *b, tess__plugin **out) {
    char reason[TESS_REASON_BYTES] = "";
    tess_status s = tess__plugin_builtin_open(b, r->args, r->services, out, reason);
    one_line(reason);
    return s ? tess__fail(s, "%s plugin '%s' (built in): %s", r->word, r->name, reason) : TESS_OK;
}

/* Tries each directory's file and takes the first that can be used. Warns of those before it. */
static tess_status open_searched(const request *r, const tess__plugin_search *search, tess__plugin **out) {
    account a = { .text = "" };
    for (uint32_t i = 0; i < search->n; i++) {
        char path[4096 + 64], reason[TESS_REASON_BYTES] = "";
        snprintf(path, sizeof path, "%s/libtessera-%s-%s.so", search->dirs[i].path, r->word, r->name);
        if (search->dirs[i].reason)
            continue;
        tess_status s = tess__plugin_file_open(r->kind, path, r->args, r->services, out, reason);
        if (s == TESS_OK) {
            if (a.n)
                tess__log(TESS_LOG_WARNING, "%s plugin '%s' is %s; passed over: %s", r->word, r->name, path, a.text);
            return TESS_OK;
        }
        if (strcmp(reason, NO_FILE) != 0)
            tell_failed(&a, path, s, reason);
    }
    if (!a.n)
        return not_found(r, search);
    for (uint32_t i = 0; i < search->n; i++)
        if (search->dirs[i].reason && strcmp(search->dirs[i].reason, NO_DIRECTORY) != 0)
            add_reason(&a, "; %s: %s", search->dirs[i].path, search->dirs[i].reason);
    return tess__fail(a.status, "%s plugin '%s' cannot be used: %s", r->word, r->name, a.text);
}

static tess_status open_named(const request *r, tess__plugin **out) {
    for (const tess__builtin *b = tess__builtins; b->kind; b++)
        if (b->kind == r->kind && strcmp(b->name, r->name) == 0)
            return open_builtin(r, b, out);
    tess__plugin_search search;
    if (tess__plugin_search_init(&search))
        return tess__fail(TESS_E_NOMEM, "no memory to search for %s plugin '%s'", r->word, r->name);
    tess_status s = open_searched(r, &search, out);
    tess__plugin_search_finish(&search);
    return s;
}

static tess_status open_path(const request *r, tess__plugin **out) {
    char reason[TESS_REASON_BYTES] = "";
    tess_status s = tess__plugin_file_open(r->kind, r->name, r->args, r->services, out, reason);
    one_line(reason);
    return s ? tess__fail(s, "%s plugin '%.400s': %s", r->word, r->name, reason) : TESS_OK;
}

static tess_status open_one(request r, char *text, tess__plugin **out) {
    TRY(parse_selection(&r, text));
    return r.is_path ? open_path(&r, out) : open_named(&r, out);
}

/* Several offload plugins are joined from the left. */
static tess_status open_all(const request *r, char *text, tess__plugin **out) {
    char *last = r->kind == TESS_KIND_OFFLOAD ? tess__joined_cut(text) : NULL;
    tess__plugin *first, *second;
    if (!last)
        return open_one(*r, text, out);
    TRY(open_all(r, text, &first));
    tess_status s = open_one(*r, last, &second);
    if (s == TESS_OK)
        return tess__joined_make(first, second, out);
    tess__plugin_close(first);
    return s;
}

tess_status tess__plugin_open(uint32_t kind, const char *selection, const tess_host *services, tess__plugin **out) {
    const tess_host full = tess__plugin_services(services);
    const request r = { .kind = kind, .word = tess__kind_name(kind), .services = &full };
    if (!r.word)
        return tess__fail(TESS_E_INVALID, "unknown kind of plugin: %u", kind);
    char *text = strdup(selection ? selection : "");
    if (!text)
        return tess__fail(TESS_E_NOMEM, "no memory to open the %s plugin", r.word);
    tess_status s = open_all(&r, text, out);
    free(text);
    return s;
}

/* ---- for plugins that open plugins -------------------------------------------------------------- */

tess_status tess__plugin_host_open(const tess_host *services, uint32_t kind, const char *selection, const void **ops,
                                   void **ctx, void **handle, tess_error *error) {
    tess__plugin *p;
    tess_status s = tess__plugin_open(kind, selection, services, &p);
    if (s)
        return tess_plugin_fail(error, s, "%s", tess_last_error());
    *ops = p->ops;
    *ctx = p->ctx;
    *handle = p;
    return TESS_OK;
}

void tess__plugin_host_close(void *host, void *handle) {
    (void)host;
    tess__plugin_close(handle);
}

static tess_status host_plugin_open(void *host, uint32_t kind, const char *selection, const void **ops, void **ctx,
                                    void **handle, tess_error *error) {
    (void)host;
    return tess__plugin_host_open(NULL, kind, selection, ops, ctx, handle, error);
}

tess_host tess__plugin_services(const tess_host *given) {
    tess_host h = given ? *given : tess__host_defaults;
    if (!h.plugin_open || !h.plugin_close) {
        h.plugin_open = host_plugin_open;
        h.plugin_close = tess__plugin_host_close;
    }
    return h;
}

/* ---- the list ---------------------------------------------------------------------------------- */

typedef struct {
    tess__plugin_row row;
    tess__trial trial; /* path null: the file was refused before */
} candidate;

typedef struct {
    uint32_t kind; /* 0: every one */
    const tess_host *services;
    tess__plugin_row_fn *row;
    void *user;
    const tess__question *question; /* null: each is opened here too */
    candidate **files;              /* in the order of the search */
    size_t n_files;
    char usable[256][40]; /* "KIND-NAME" of the rows before, built-in ones too */
    size_t n_usable;
} listing;

/* Tells whether a usable plugin of the same name comes first, so that this file is never taken. */
static int is_hidden(listing *l, uint32_t kind, const char *name, int remember) {
    char key[40];
    snprintf(key, sizeof key, "%u-%s", kind, name);
    for (size_t i = 0; i < l->n_usable; i++)
        if (strcmp(l->usable[i], key) == 0)
            return 1;
    if (remember && l->n_usable < 256)
        memcpy(l->usable[l->n_usable++], key, sizeof key);
    return 0;
}

static tess_status note_file(void *user, uint32_t kind, const char *name, const char *path) {
    listing *l = user;
    tess_plugin_note note = { .abi_major = 0 };
    char real[4096];
    if (l->kind && kind != l->kind)
        return TESS_OK;
    candidate **more = realloc(l->files, (l->n_files + 1) * sizeof *more), *c = calloc(1, sizeof *c);
    l->files = more ? more : l->files;
    if (!more || !c) {
        free(c);
        return tess__fail(TESS_E_NOMEM, "no memory to list the plugins");
    }
    l->files[l->n_files++] = c;
    tess__plugin_row *row = &c->row;
    row->kind = kind;
    snprintf(row->name, sizeof row->name, "%s", name);
    snprintf(row->path, sizeof row->path, "%s", path);
    if (tess__plugin_file_check(kind, path, real, &note, row->reason) == TESS_OK) {
        memcpy(row->version, note.version, sizeof row->version);
        c->trial.kind = kind;
        c->trial.path = row->path;
    }
    row->abi_major = note.abi_major;
    row->abi_minor = note.abi_minor;
    return TESS_OK;
}

/* All that may be opened, at once. */
static tess_status try_files(listing *l) {
    size_t n = 0;
    tess__trial *trials = calloc(l->n_files + 1, sizeof *trials);
    if (!trials)
        return tess__fail(TESS_E_NOMEM, "no memory to list the plugins");
    for (size_t i = 0; i < l->n_files; i++)
        if (l->files[i]->trial.path)
            trials[n++] = l->files[i]->trial;
    tess__plugin_trials(trials, n, l->services, l->question);
    for (size_t i = l->n_files; i-- > 0;)
        if (l->files[i]->trial.path)
            l->files[i]->trial = trials[--n];
    free(trials);
    return TESS_OK;
}

static tess_status list_file(listing *l, candidate *c) {
    tess__plugin_row *row = &c->row;
    tess__plugin *plugin = NULL;
    if (c->trial.path && is_hidden(l, row->kind, row->name, 0))
        snprintf(row->reason, sizeof row->reason, "hidden by one of the same name found before");
    else if (c->trial.status)
        memcpy(row->reason, c->trial.reason, sizeof row->reason);
    else if (c->trial.path &&
             (l->question ? tess__plugin_file_options(row->kind, row->path, row->reason)
                          : tess__plugin_file_open(row->kind, row->path, "", l->services, &plugin, row->reason)) == 0) {
        row->usable = 1;
        row->answer = c->trial.answer;
        is_hidden(l, row->kind, row->name, 1);
    }
    one_line(row->reason);
    tess_status s = l->row(l->user, row, &plugin);
    tess__plugin_close(plugin);
    return s;
}

static tess_status list_files(listing *l, const tess__plugin_search *search) {
    tess_status s = tess__plugin_search_each(search, note_file, l);
    if (s == TESS_OK)
        s = try_files(l);
    for (size_t i = 0; i < l->n_files && s == TESS_OK; i++)
        s = list_file(l, l->files[i]);
    for (size_t i = 0; i < l->n_files; i++)
        free(l->files[i]);
    free(l->files);
    return s;
}

static tess_status list_builtins(listing *l) {
    tess_status s = TESS_OK;
    for (const tess__builtin *b = tess__builtins; b->kind && s == TESS_OK; b++) {
        tess__plugin_row row = {
            .kind = b->kind, .abi_major = TESS_ABI_MAJOR, .abi_minor = TESS_ABI_MINOR, .usable = 1
        };
        snprintf(row.name, sizeof row.name, "%s", b->name);
        snprintf(row.version, sizeof row.version, "%s", TESSERA_VERSION);
        is_hidden(l, b->kind, b->name, 1);
        tess__plugin *none = NULL;
        s = !l->kind || b->kind == l->kind ? l->row(l->user, &row, &none) : TESS_OK;
        tess__plugin_close(none);
    }
    return s;
}

static tess_status list_all(const listing *how) {
    const tess_host full = tess__plugin_services(how->services);
    tess__plugin_search search;
    listing *l = malloc(sizeof *l);
    if (!l || tess__plugin_search_init(&search)) {
        free(l);
        return tess__fail(TESS_E_NOMEM, "no memory to list the plugins");
    }
    *l = *how;
    l->services = &full;
    for (uint32_t i = 0; i < search.n; i++)
        if (search.dirs[i].reason && strcmp(search.dirs[i].reason, NO_DIRECTORY) != 0)
            tess__log(TESS_LOG_WARNING, "plugin directory %s is not searched: %s", search.dirs[i].path,
                      search.dirs[i].reason);
    tess_status s = list_builtins(l);
    if (s == TESS_OK)
        s = list_files(l, &search);
    tess__plugin_search_finish(&search);
    free(l);
    return s;
}

tess_status tess__plugin_list(uint32_t kind, const tess_host *services, tess__plugin_row_fn *row, void *user) {
    const listing how = { .kind = kind, .services = services, .row = row, .user = user };
    return list_all(&how);
}

tess_status tess__plugin_ask(uint32_t kind, const tess_host *services, int64_t (*ask)(void *user, const tess__plugin *),
                             tess__plugin_row_fn *row, void *user) {
    const tess__question question = { ask, user };
    const listing how = { .kind = kind, .services = services, .row = row, .user = user, .question = &question };
    return list_all(&how);
}
