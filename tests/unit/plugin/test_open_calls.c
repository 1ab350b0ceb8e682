/* SPDX-License-Identifier: BSD-3-Clause */
/* Selections and lists over files that are only written down here: which are opened, in which order, and what one line
 * tells of all. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>

#include "core/base/options.h"
#include "core/base/status.h"
#include "core/builtin/builtins.h"
#include "core/plugin/plugin.h"
#include "core/plugin/plugin_host.h"
#include "core/plugin/plugin_search.h"
#include "core/plugin/trial.h"
#include "tests/unit/counted.h"
#include "tests/unit/logged.h"
#include "tests/unit/said.h"

#ifndef TESSERA_VERSION
#define TESSERA_VERSION "7.8.9"
#endif

typedef struct {
    uint32_t kind;
    const char *dir, *name;
    const char *check, *tried, *opened; /* why not; null: it can */
    tess_status status;
    int64_t answer;
} file;

static struct {
    tess__plugin_search search;
    file files[320];
    int n_files, n_searches, takes_all;
    tess_status no_search, each;
    const char *failed_builtin;
    char failed[4096];
    const tess_host *services;
    tess__plugin opened[320];
    int n_opened, open;
} world;

/* ---- what open.c calls ------------------------------------------------------------------------- */

static tess_status take_fail(tess_status s, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(world.failed, sizeof world.failed, format, args);
    va_end(args);
    return s;
}
static tess_status give(uint32_t kind, const char *name, tess__plugin **out) {
    tess__plugin *p = &world.opened[world.n_opened++ % 320];
    memset(p, 0, sizeof *p);
    p->kind = kind;
    snprintf(p->name, sizeof p->name, "%s", name);
    p->ops = &world;
    p->ctx = p;
    world.open++;
    *out = p;
    return TESS_OK;
}
static void take_back(tess__plugin *p) {
    if (!p)
        return;
    world.open--;
    say("close %s; ", p->name);
}
static void note_services(const tess_host *h) {
    assert_true(h && h->plugin_open && h->plugin_close);
    world.services = h;
}
static const file *file_at(uint32_t kind, const char *path) {
    char own[512];
    for (int i = 0; i < world.n_files; i++) {
        const file *f = &world.files[i];
        snprintf(own, sizeof own, "%s/libtessera-%s-%s.so", f->dir, tess__kind_name(f->kind), f->name);
        if (f->kind == kind && strcmp(own, path) == 0)
            return f;
    }
    return NULL;
}
static tess_status refuse(char *reason, const file *f, const char *why) {
    snprintf(reason, TESS_REASON_BYTES, "%s", why);
    return f->status ? f->status : TESS_E_INVALID;
}
static tess_status file_open(uint32_t kind, const char *path, const char *args, const tess_host *services,
                             tess__plugin **out, char *reason) {
    const file *f = file_at(kind, path), missing = { .name = "none" };
    note_services(services);
    assert_string_equal(reason, "");
    assert_true(*path == '/' || world.takes_all);
    if (f || world.takes_all)
        say("open %s (%s); ", world.takes_all ? path : strrchr(path, '/') + 1, args);
    if (!f && !world.takes_all)
        return refuse(reason, &missing, "no such file");
    return f && f->opened ? refuse(reason, f, f->opened) : give(kind, f ? f->name : path, out);
}
static tess_status builtin_open(const tess__builtin *b, const char *args, const tess_host *services, tess__plugin **out,
                                char *reason) {
    const file f = { .status = TESS_E_UNSUPPORTED };
    note_services(services);
    say("built in %s (%s); ", b->name, args);
    return world.failed_builtin ? refuse(reason, &f, world.failed_builtin) : give(b->kind, b->name, out);
}
static tess_status file_check(uint32_t kind, const char *path, tess_plugin_note *note, char *reason) {
    const file *f = file_at(kind, path);
    if (f->status == TESS_E_DATA) /* it cannot be read */
        return refuse(reason, f, f->check);
    note->abi_major = 3;
    note->abi_minor = 14;
    snprintf(note->version, sizeof note->version, "v%d", (int)(f - world.files));
    return f->check ? refuse(reason, f, f->check) : TESS_OK;
}
static tess_status file_options(uint32_t kind, const char *path, char *reason) {
    const file *f = file_at(kind, path);
    say("options of %s; ", f->name);
    return f->opened ? refuse(reason, f, f->opened) : TESS_OK;
}
static const tess__question *asked;
static void try_files_out(tess__trial *list, size_t n, const tess_host *services, const tess__question *question) {
    note_services(services);
    asked = question;
    say("%d trials; ", (int)n);
    for (size_t i = 0; i < n; i++) {
        const file *f = file_at(list[i].kind, list[i].path);
        assert_non_null(f);
        assert_true(!f->check && list[i].status == TESS_OK);
        list[i].answer = f->answer;
        if (f->tried)
            list[i].status = refuse(list[i].reason, f, f->tried);
    }
}
static tess_status search_init(tess__plugin_search *s) {
    if (world.no_search)
        return world.no_search;
    world.n_searches++;
    *s = world.search;
    return TESS_OK;
}
static void search_finish(tess__plugin_search *s) {
    assert_memory_equal(s, &world.search, sizeof *s);
    world.n_searches--;
}
static tess_status search_each(const tess__plugin_search *s,
                               tess_status (*take)(void *, uint32_t, const char *, const char *), void *user) {
    tess_status status = TESS_OK;
    for (uint32_t d = 0; d < s->n; d++)
        for (int i = 0; i < world.n_files && !status && !s->dirs[d].reason; i++) {
            const file *f = &world.files[i];
            char path[512];
            snprintf(path, sizeof path, "%s/libtessera-%s-%s.so", f->dir, tess__kind_name(f->kind), f->name);
            if (strcmp(f->dir, s->dirs[d].path) == 0)
                status = take(user, f->kind, f->name, path);
        }
    return status ? status : world.each;
}
static tess_status join(tess__plugin *a, tess__plugin *b, tess__plugin **out) {
    say("join %s and %s; ", a->name, b->name);
    world.open -= 2;
    return give(a->kind, a->name, out);
}

static const tess__builtin built_in[] = { { TESS_KIND_COMM, "self", "", NULL },
                                          { TESS_KIND_OFFLOAD, "none", "", NULL },
                                          { TESS_KIND_OFFLOAD, "half", "", NULL },
                                          { 0, NULL, NULL, NULL } };

#define tess__fail take_fail
#define tess__builtins built_in
#define tess__plugin_file_open file_open
#define tess__plugin_builtin_open builtin_open
#define tess__plugin_file_check(kind, path, real, note, reason) ((void)(real), file_check(kind, path, note, reason))
#define tess__plugin_file_options file_options
#define tess__plugin_trials try_files_out
#define tess__plugin_search_init search_init
#define tess__plugin_search_finish search_finish
#define tess__plugin_search_each search_each
#define tess__plugin_close take_back
#define tess__joined_make join
#define tess_last_error() (world.failed)
#include "core/plugin/open.c"

/* ---- the tests --------------------------------------------------------------------------------- */

static struct { int calls, stop_at, keeps; } list;

static int begin(void **state) {
    (void)state;
    memset(&world, 0, sizeof world);
    memset(&logged, 0, sizeof logged);
    memset(&counted, 0, sizeof counted);
    memset(&list, 0, sizeof list);
    said_so_far[0] = 0;
    return 0;
}

/* Whatever happened, all is given back but what is open. */
static int end(void **state) {
    (void)state;
    assert_int_equal(counted.live, 0);
    assert_int_equal(world.n_searches, 0);
    return 0;
}

static void directory(const char *path, const char *reason) {
    world.search.dirs[world.search.n].path = (char *)(uintptr_t)path;
    world.search.dirs[world.search.n++].reason = (char *)(uintptr_t)reason;
}

static file *add(uint32_t kind, const char *dir, const char *name) {
    file *f = &world.files[world.n_files++];
    *f = (file){ .kind = kind, .dir = dir, .name = name };
    return f;
}

static void leads(uint32_t kind, const char *selection, const char *said) {
    tess__plugin *p = NULL;
    const int before = world.open;
    if (tess__plugin_open(kind, selection, NULL, &p))
        fail_msg("%s: %s", selection, world.failed);
    assert_int_equal(world.open, before + 1);
    assert_int_equal(p->kind, kind);
    expect_said(said);
    world.open--;
}

static void fails(uint32_t kind, const char *selection, tess_status status, const char *text) {
    tess__plugin *p = (void *)&world;
    const int before = world.open;
    world.failed[0] = 0;
    assert_int_equal(tess__plugin_open(kind, selection, NULL, &p), status);
    assert_ptr_equal(p, &world);
    assert_int_equal(world.open, before);
    assert_string_equal(world.failed, text);
}

static void test_open_calls__a_selection_is_a_name_or_a_path_with_args(void **state) {
    (void)state;
    world.takes_all = 1;
    directory("/d", NULL);
    leads(TESS_KIND_COMM, "self", "built in self (); ");
    leads(TESS_KIND_COMM, "self:", "built in self (); ");
    leads(TESS_KIND_COMM, "self:a/b:c", "built in self (a/b:c); ");
    leads(TESS_KIND_COMM, "half", "open /d/libtessera-comm-half.so (); "); /* built in of another kind */
    leads(TESS_KIND_WRAP, "az_09-:/x", "open /d/libtessera-wrap-az_09-.so (/x); ");
    leads(TESS_KIND_COMM, "/p/lib.so", "open /p/lib.so (); ");
    leads(TESS_KIND_COMM, "/p/lib.so:", "open /p/lib.so (); ");
    leads(TESS_KIND_COMM, "/p/lib.so:/mnt/x:y", "open /p/lib.so (/mnt/x:y); ");
    leads(TESS_KIND_COMM, "./a.so:b.so:c", "open ./a.so (b.so:c); ");
    leads(TESS_KIND_COMM, "/a:b/lib.so:x", "open /a:b/lib.so (x); ");
    leads(TESS_KIND_COMM, "a/b:c/lib", "open a/b:c/lib (); ");
    leads(TESS_KIND_COMM, "/p/noend:x:y", "open /p/noend (x:y); ");
    leads(TESS_KIND_COMM, "abcdefghijklmnopqrstuvwxyz01234",
          "open /d/libtessera-comm-abcdefghijklmnopqrstuvwxyz01234.so (); ");
}

static void test_open_calls__what_is_neither_is_refused_and_nothing_is_opened(void **state) {
    (void)state;
    static const char no_name[] = "comm plugin '%s': not a plugin's name, which is [a-z0-9_-]+ of at most 31 "
                                  "characters; a path needs a slash";
    static const char *const bad[] = {
        "Self", "lib.so", "self ", "a+b", "\xc3\xa4", "abcdefghijklmnopqrstuvwxyz012345"
    };
    char text[512], large[200];
    world.takes_all = 1;
    directory("/d", NULL);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        snprintf(text, sizeof text, no_name, bad[i]);
        fails(TESS_KIND_COMM, bad[i], TESS_E_INVALID, text);
    }
    memset(large, 'x', sizeof large);
    large[100] = 0;
    snprintf(text, sizeof text, no_name, large); /* as much of it is shown */
    large[100] = 'x', large[sizeof large - 1] = 0;
    fails(TESS_KIND_COMM, large, TESS_E_INVALID, text);
    fails(TESS_KIND_COMM, NULL, TESS_E_INVALID, "comm plugin: empty name, expected [a-z0-9_-]+ or a path with a slash");
    fails(TESS_KIND_WRAP, ":x", TESS_E_INVALID, "wrap plugin: empty name, expected [a-z0-9_-]+ or a path with a slash");
    fails(0, "self", TESS_E_INVALID, "unknown kind of plugin: 0");
    fails(7, "self", TESS_E_INVALID, "unknown kind of plugin: 7");
    expect_said("");
}

static void test_open_calls__a_plugins_own_reason_stands_in_one_line(void **state) {
    (void)state;
    file *f = add(TESS_KIND_COMM, "/d", "gloo");
    directory("/d", NULL);
    world.failed_builtin = f->opened = "first\r\nsecond";
    f->status = TESS_E_VERSION;
    fails(TESS_KIND_COMM, "self", TESS_E_UNSUPPORTED, "comm plugin 'self' (built in): first  second");
    fails(TESS_KIND_COMM, "/d/libtessera-comm-gloo.so:x", TESS_E_VERSION,
          "comm plugin '/d/libtessera-comm-gloo.so': first  second");
    fails(TESS_KIND_COMM, "gloo", TESS_E_VERSION,
          "comm plugin 'gloo' cannot be used: /d/libtessera-comm-gloo.so: first  second");
    fails(TESS_KIND_COMM, "/d/none.so", TESS_E_INVALID, "comm plugin '/d/none.so': no such file");
}

static void test_open_calls__the_first_file_that_will_do_is_taken(void **state) {
    (void)state;
    directory("/wide", "can be written by others");
    directory("/none", "no such directory");
    directory("/a", NULL), directory("/b", NULL), directory("/c", NULL), directory("/d", NULL);
    directory("/last", "is another's");
    add(TESS_KIND_COMM, "/wide", "x");
    file *second = add(TESS_KIND_COMM, "/b", "x"), *third = add(TESS_KIND_COMM, "/c", "x");
    add(TESS_KIND_COMM, "/d", "x");
    leads(TESS_KIND_COMM, "x:w", "open libtessera-comm-x.so (w); ");
    expect_logged(0, 0, "");
    second->opened = "is\nold", second->status = TESS_E_VERSION;
    leads(TESS_KIND_COMM, "x", "open libtessera-comm-x.so (); open libtessera-comm-x.so (); ");
    expect_logged(1, TESS_LOG_WARNING,
                  "comm plugin 'x' is /c/libtessera-comm-x.so; passed over: "
                  "/b/libtessera-comm-x.so: is old");
    third->opened = "is broken";
    leads(TESS_KIND_COMM, "x",
          "open libtessera-comm-x.so (); open libtessera-comm-x.so (); open libtessera-comm-x.so (); ");
    expect_logged(1, TESS_LOG_WARNING,
                  "comm plugin 'x' is /d/libtessera-comm-x.so; passed over: "
                  "/b/libtessera-comm-x.so: is old; /c/libtessera-comm-x.so: is broken");
    world.n_files--;
    fails(TESS_KIND_COMM, "x", TESS_E_VERSION, /* the first one's */
          "comm plugin 'x' cannot be used: /b/libtessera-comm-x.so: is old; /c/libtessera-comm-x.so: is broken; "
          "/wide: can be written by others; /last: is another's");
    expect_logged(0, 0, "");
}

static void test_open_calls__what_is_nowhere_lists_where_it_was_looked_for(void **state) {
    (void)state;
    fails(TESS_KIND_WRAP, "zz", TESS_E_INVALID,
          "wrap plugin 'zz' not found (looked for libtessera-wrap-zz.so; built in are none)");
    directory("/a", NULL), directory("/b", "no such directory");
    add(TESS_KIND_OFFLOAD, "/a", "disc");
    add(TESS_KIND_COMM, "/a", "disk");
    fails(TESS_KIND_OFFLOAD, "disk", TESS_E_INVALID,
          "offload plugin 'disk' not found; did you mean disc? (looked for libtessera-offload-disk.so; built in are "
          "none half; /a: has no such file; /b: no such directory)");
    fails(TESS_KIND_OFFLOAD, "hallf", TESS_E_INVALID,
          "offload plugin 'hallf' not found; did you mean half? (looked for libtessera-offload-hallf.so; built in are "
          "none half; /a: has no such file; /b: no such directory)");
    world.no_search = TESS_E_NOMEM;
    fails(TESS_KIND_COMM, "x", TESS_E_NOMEM, "no memory to search for comm plugin 'x'");
    fails(TESS_KIND_COMM, NULL, TESS_E_INVALID, "comm plugin: empty name, expected [a-z0-9_-]+ or a path with a slash");
}

/* The first 256 names may be meant. */
static void test_open_calls__of_very_many_names_the_first_may_be_meant(void **state) {
    (void)state;
    static char names[300][32];
    directory("/a", NULL);
    for (int i = 0; i < 300; i++) {
        snprintf(names[i], sizeof names[i], "number%c%c%c%c%c%c", 'a' + i / 100, 'a' + i / 100, 'a' + i / 10 % 10,
                 'a' + i / 10 % 10, 'a' + i % 10, 'a' + i % 10);
        add(TESS_KIND_WRAP, "/a", names[i]);
    }
    for (int i = 250; i < 262; i++) {
        char slip[40], want[64];
        tess__plugin *p;
        snprintf(slip, sizeof slip, "%sz", names[i]);
        snprintf(want, sizeof want, "did you mean %s?", names[i]);
        assert_int_equal(tess__plugin_open(TESS_KIND_WRAP, slip, NULL, &p), TESS_E_INVALID);
        assert_int_equal(strstr(world.failed, want) != NULL, i < 256);
    }
}

/* A text that is longer than its room ends there. */
static void test_open_calls__a_long_account_is_cut(void **state) {
    (void)state;
    static char dirs[12][120];
    char whole[4096] = "", want[4096];
    static const char before[] = "comm plugin 'x' not found (looked for libtessera-comm-x.so; ";
    snprintf(whole, sizeof whole, "built in are self");
    for (int i = 0; i < 12; i++) {
        memset(dirs[i], 'a' + i, sizeof dirs[i] - 1);
        dirs[i][0] = '/';
        directory(dirs[i], NULL);
        snprintf(whole + strlen(whole), sizeof whole - strlen(whole), "; %s: has no such file", dirs[i]);
    }
    snprintf(want, sizeof want, "%s%.799s)", before, whole);
    fails(TESS_KIND_COMM, "x", TESS_E_INVALID, want);
    for (int n = 0; n < 120; n++) { /* wherever the end lies */
        dirs[0][120 - 1 - n] = 0;
        snprintf(whole, sizeof whole, "built in are self");
        for (int i = 0; i < 12; i++)
            snprintf(whole + strlen(whole), sizeof whole - strlen(whole), "; %s: has no such file", dirs[i]);
        snprintf(want, sizeof want, "%s%.799s)", before, whole);
        fails(TESS_KIND_COMM, "x", TESS_E_INVALID, want);
    }
}

static void test_open_calls__offload_plugins_are_joined_from_the_left(void **state) {
    (void)state;
    file *a = add(TESS_KIND_OFFLOAD, "/d", "a"), *b = add(TESS_KIND_OFFLOAD, "/d", "b");
    directory("/d", NULL);
    leads(TESS_KIND_OFFLOAD, "a:x+none+b:y",
          "open libtessera-offload-a.so (x); built in none (); join a and none; open libtessera-offload-b.so (y); "
          "join a and b; ");
    b->opened = "no";
    fails(TESS_KIND_OFFLOAD, "a+none+b", TESS_E_INVALID,
          "offload plugin 'b' cannot be used: /d/libtessera-offload-b.so: no");
    expect_said("open libtessera-offload-a.so (); built in none (); join a and none; open libtessera-offload-b.so (); "
                "close a; ");
    a->opened = "nor this";
    fails(TESS_KIND_OFFLOAD, "a+b", TESS_E_INVALID,
          "offload plugin 'a' cannot be used: /d/libtessera-offload-a.so: nor this");
    expect_said("open libtessera-offload-a.so (); ");
}

/* ---- services ---- */

static tess_status own_open(void *host, uint32_t kind, const char *selection, const void **ops, void **ctx,
                            void **handle, tess_error *error) {
    (void)host, (void)kind, (void)selection, (void)ops, (void)ctx, (void)handle, (void)error;
    return TESS_E_SYSTEM;
}
static void own_close(void *host, void *handle) {
    (void)host, (void)handle;
}

static void test_open_calls__services_without_both_slots_get_both(void **state) {
    (void)state;
    for (int has = 0; has < 4; has++) {
        const tess_host given = { .numa_node = 5,
                                  .plugin_open = has & 1 ? own_open : NULL,
                                  .plugin_close = has & 2 ? own_close : NULL };
        const tess_host h = tess__plugin_services(&given);
        assert_int_equal(h.plugin_open == own_open, has == 3);
        assert_int_equal(h.plugin_close == own_close, has == 3);
        assert_true(h.plugin_open && h.plugin_close && h.numa_node == 5);
    }
    const tess_host h = tess__plugin_services(NULL);
    assert_true(h.log == tess__host_defaults.log && h.plugin_open && h.plugin_close);
}

static void test_open_calls__a_plugin_opens_another_through_its_host(void **state) {
    (void)state;
    const tess_host h = tess__plugin_services(NULL);
    tess_error error = { .struct_size = sizeof error };
    const void *ops = NULL;
    void *ctx = NULL, *handle = NULL;
    assert_int_equal(h.plugin_open(NULL, TESS_KIND_COMM, "Bad", &ops, &ctx, &handle, &error), TESS_E_INVALID);
    assert_int_equal(error.code, TESS_E_INVALID);
    assert_string_equal(error.message, world.failed);
    assert_true(!ops && !ctx && !handle);
    assert_int_equal(h.plugin_open(NULL, TESS_KIND_COMM, "self:x", &ops, &ctx, &handle, &error), TESS_OK);
    assert_true(ops == &world && ctx == &world.opened[0] && handle == &world.opened[0]);
    h.plugin_close(NULL, handle);
    h.plugin_close(NULL, NULL);
    expect_said("built in self (x); close self; ");
}

/* ---- the list ---- */

static tess_status take_row(void *user, const tess__plugin_row *r, tess__plugin **opened) {
    assert_ptr_equal(user, &list);
    say("%u %s|%s|%s|%u.%u|%d|%d|%s%s\n", r->kind, r->name, r->path, r->version, r->abi_major, r->abi_minor, r->usable,
        (int)r->answer, r->reason, *opened ? "|open" : "");
    if (list.keeps)
        *opened = NULL;
    return ++list.calls == list.stop_at ? TESS_E_PEER : TESS_OK;
}

static char line[3][128];
static const char *built(int i, uint32_t kind, const char *name) {
    snprintf(line[i], sizeof line[i], "%u %s||%s|%d.%d|1|0|\n", kind, name, TESSERA_VERSION, TESS_ABI_MAJOR,
             TESS_ABI_MINOR);
    return line[i];
}

static void make_list(void) {
    directory("/none", "no such directory");
    directory("/a", NULL);
    directory("/b", NULL);
    add(TESS_KIND_COMM, "/a", "self"); /* hidden by the one that is built in */
    add(TESS_KIND_COMM, "/a", "bad")->check = "is\nno plugin";
    add(TESS_KIND_COMM, "/a", "cut")->check = "it is truncated";
    world.files[2].status = TESS_E_DATA;
    add(TESS_KIND_COMM, "/a", "dies")->tried = "it died";
    add(TESS_KIND_COMM, "/a", "good")->answer = 17;
    add(TESS_KIND_WRAP, "/a", "self")->answer = -4;
    add(TESS_KIND_COMM, "/b", "bad")->answer = 23;
    add(TESS_KIND_COMM, "/b", "dies")->opened = "not here";
    add(TESS_KIND_COMM, "/b", "good")->answer = 99;
}

static void test_open_calls__a_list_has_all_in_order_and_says_why_not(void **state) {
    (void)state;
    char want[2048];
    make_list();
    assert_int_equal(tess__plugin_list(0, NULL, take_row, &list), TESS_OK);
    snprintf(want, sizeof want,
             "%s%s%s7 trials; "
             "1 self|/a/libtessera-comm-self.so|v0|3.14|0|0|hidden by one of the same name found before\n"
             "1 bad|/a/libtessera-comm-bad.so||3.14|0|0|is no plugin\n"
             "1 cut|/a/libtessera-comm-cut.so||0.0|0|0|it is truncated\n"
             "1 dies|/a/libtessera-comm-dies.so|v3|3.14|0|0|it died\n"
             "open libtessera-comm-good.so (); "
             "1 good|/a/libtessera-comm-good.so|v4|3.14|1|17||open\n"
             "close good; "
             "open libtessera-wrap-self.so (); "
             "4 self|/a/libtessera-wrap-self.so|v5|3.14|1|-4||open\n"
             "close self; "
             "open libtessera-comm-bad.so (); "
             "1 bad|/b/libtessera-comm-bad.so|v6|3.14|1|23||open\n"
             "close bad; "
             "open libtessera-comm-dies.so (); "
             "1 dies|/b/libtessera-comm-dies.so|v7|3.14|0|0|not here\n"
             "1 good|/b/libtessera-comm-good.so|v8|3.14|0|0|hidden by one of the same name found before\n",
             built(0, TESS_KIND_COMM, "self"), built(1, TESS_KIND_OFFLOAD, "none"),
             built(2, TESS_KIND_OFFLOAD, "half"));
    expect_said(want);
    assert_null(asked);
    expect_logged(0, 0, "");
}

static int64_t answer(void *user, const tess__plugin *p) {
    (void)user, (void)p;
    return 0;
}

static void test_open_calls__who_asks_has_no_file_opened_here(void **state) {
    (void)state;
    make_list();
    assert_int_equal(tess__plugin_ask(TESS_KIND_WRAP, NULL, answer, take_row, &list), TESS_OK);
    expect_said("1 trials; options of self; 4 self|/a/libtessera-wrap-self.so|v5|3.14|1|-4|\n");
    assert_non_null(asked);
    world.files[5].opened = "a slip";
    assert_int_equal(tess__plugin_ask(TESS_KIND_WRAP, NULL, answer, take_row, &list), TESS_OK);
    expect_said("1 trials; options of self; 4 self|/a/libtessera-wrap-self.so|v5|3.14|0|0|a slip\n");
    assert_int_equal(tess__plugin_ask(TESS_KIND_DEVICE, NULL, answer, take_row, &list), TESS_OK);
    expect_said("0 trials; ");
}

static void test_open_calls__a_directory_that_is_not_searched_is_warned_of(void **state) {
    (void)state;
    directory("/none", "no such directory");
    assert_int_equal(tess__plugin_list(TESS_KIND_WRAP, NULL, take_row, &list), TESS_OK);
    expect_logged(0, 0, "");
    directory("/wide", "is open to all");
    assert_int_equal(tess__plugin_list(TESS_KIND_WRAP, NULL, take_row, &list), TESS_OK);
    expect_logged(1, TESS_LOG_WARNING, "plugin directory /wide is not searched: is open to all");
    world.search.n = 0;
    directory("/first", "is relative");
    assert_int_equal(tess__plugin_list(TESS_KIND_WRAP, NULL, take_row, &list), TESS_OK);
    expect_logged(1, TESS_LOG_WARNING, "plugin directory /first is not searched: is relative");
}

static void test_open_calls__the_first_status_ends_a_list(void **state) {
    (void)state;
    make_list();
    for (int at = 1; at <= 12; at++) {
        list = (__typeof__(list)){ .stop_at = at };
        assert_int_equal(tess__plugin_list(0, NULL, take_row, &list), TESS_E_PEER);
        assert_int_equal(list.calls, at);
        said_so_far[0] = 0;
    }
    assert_int_equal(world.open, 0);
    list = (__typeof__(list)){ .keeps = 1 };
    assert_int_equal(tess__plugin_list(TESS_KIND_COMM, NULL, take_row, &list), TESS_OK);
    assert_int_equal(world.open, 2); /* whoever took one has it */
    list = (__typeof__(list)){ .calls = 0 };
    said_so_far[0] = 0;
    world.each = TESS_E_DATA;
    assert_int_equal(tess__plugin_list(TESS_KIND_COMM, NULL, take_row, &list), TESS_E_DATA);
    assert_int_equal(list.calls, 1);
}

/* One that is built in is opened by whoever wants it, and closed where it is left. */
static tess_status open_row(void *user, const tess__plugin_row *row, tess__plugin **opened) {
    assert_null(*opened);
    give(row->kind, row->name, opened);
    if (strcmp(row->name, user) == 0)
        *opened = NULL;
    return TESS_OK;
}

static void test_open_calls__whoever_opens_a_built_in_one_may_leave_it(void **state) {
    (void)state;
    assert_int_equal(tess__plugin_list(TESS_KIND_OFFLOAD, NULL, open_row, "none"), TESS_OK);
    expect_said("close half; 0 trials; ");
    assert_int_equal(world.open, 1);
}

/* Names of usable ones are kept up to 256; who comes later hides nobody, and is listed all the same. */
static tess_status count_usable(void *user, const tess__plugin_row *row, tess__plugin **opened) {
    int *usable = user;
    (void)opened;
    usable[row->path[1] == 'b'] += row->usable;
    said_so_far[0] = 0;
    return TESS_OK;
}

static void test_open_calls__very_many_are_all_listed(void **state) {
    (void)state;
    static char names[260][32];
    int usable[2] = { 0, 0 };
    directory("/a", NULL);
    directory("/b", NULL);
    for (int i = 0; i < 260; i++) {
        snprintf(names[i], sizeof names[i], "a-name-of-the-greatest-length-%c", 'a' + i % 26);
        names[i][26] = (char)('a' + i / 26);
        add(TESS_KIND_WRAP, "/a", names[i]);
    }
    for (int i = 200; i < 260; i++)
        add(TESS_KIND_WRAP, "/b", names[i]);
    assert_int_equal(tess__plugin_list(TESS_KIND_WRAP, NULL, count_usable, usable), TESS_OK);
    assert_int_equal(usable[0], 260);
    assert_int_equal(usable[1], 260 - (256 - 3)); /* three are built in */
}

static void test_open_calls__without_memory_nothing_is_left_behind(void **state) {
    (void)state;
    tess__plugin *p = NULL;
    int n = 0;
    make_list();
    for (tess_status s = TESS_E_NOMEM; s; n++) {
        counted.refuse = n + 1;
        s = tess__plugin_list(TESS_KIND_COMM, NULL, take_row, &list);
        assert_int_equal(counted.live, 0);
        assert_int_equal(world.n_searches, 0);
        assert_int_equal(world.open, 0);
        if (s) {
            assert_int_equal(s, TESS_E_NOMEM);
            assert_string_equal(world.failed, "no memory to list the plugins");
        }
        said_so_far[0] = 0;
    }
    assert_true(n > 1 && counted.refuse); /* a list ends well where nothing was refused */
    counted.refuse = 0;
    world.no_search = TESS_E_NOMEM;
    assert_int_equal(tess__plugin_list(0, NULL, take_row, &list), TESS_E_NOMEM);
    assert_string_equal(world.failed, "no memory to list the plugins");
    counted.refuse = 1;
    assert_int_equal(tess__plugin_open(TESS_KIND_COMM, "self", NULL, &p), TESS_E_NOMEM);
    assert_string_equal(world.failed, "no memory to open the comm plugin");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_open_calls__a_selection_is_a_name_or_a_path_with_args, begin, end),
        cmocka_unit_test_setup_teardown(test_open_calls__what_is_neither_is_refused_and_nothing_is_opened, begin, end),
        cmocka_unit_test_setup_teardown(test_open_calls__a_plugins_own_reason_stands_in_one_line, begin, end),
        cmocka_unit_test_setup_teardown(test_open_calls__the_first_file_that_will_do_is_taken, begin, end),
        cmocka_unit_test_setup_teardown(test_open_calls__what_is_nowhere_lists_where_it_was_looked_for, begin, end),
        cmocka_unit_test_setup_teardown(test_open_calls__of_very_many_names_the_first_may_be_meant, begin, end),
        cmocka_unit_test_setup_teardown(test_open_calls__a_long_account_is_cut, begin, end),
        cmocka_unit_test_setup_teardown(test_open_calls__offload_plugins_are_joined_from_the_left, begin, end),
        cmocka_unit_test_setup_teardown(test_open_calls__services_without_both_slots_get_both, begin, end),
        cmocka_unit_test_setup_teardown(test_open_calls__a_plugin_opens_another_through_its_host, begin, end),
        cmocka_unit_test_setup_teardown(test_open_calls__a_list_has_all_in_order_and_says_why_not, begin, end),
        cmocka_unit_test_setup_teardown(test_open_calls__who_asks_has_no_file_opened_here, begin, end),
        cmocka_unit_test_setup_teardown(test_open_calls__a_directory_that_is_not_searched_is_warned_of, begin, end),
        cmocka_unit_test_setup_teardown(test_open_calls__the_first_status_ends_a_list, begin, end),
        cmocka_unit_test_setup_teardown(test_open_calls__whoever_opens_a_built_in_one_may_leave_it, begin, end),
        cmocka_unit_test_setup_teardown(test_open_calls__very_many_are_all_listed, begin, end),
        cmocka_unit_test_setup_teardown(test_open_calls__without_memory_nothing_is_left_behind, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
