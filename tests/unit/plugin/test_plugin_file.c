/* SPDX-License-Identifier: BSD-3-Clause */
/* One plugin from its file to a checked table: what is done in which order, and what becomes of it when a step fails.
 * Libraries, checks and options are written down here. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <fenv.h>
#include <stdio.h>
#include <string.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "core/base/status.h"
#include "core/plugin/elf_note.h"
#include "core/plugin/plugin.h"
#include "core/plugin/plugin_host.h"
#include "core/plugin/plugin_options.h"
#include "core/plugin/trusted_path.h"
#include "tests/unit/counted.h"
#include "tests/unit/logged.h"
#include "tests/unit/said.h"

#ifndef TESSERA_VERSION
#define TESSERA_VERSION "7.8.9"
#endif

static struct {
    tess_status path, note, check, options, open, ops;
    int no_library, no_note, other_note, no_open, no_table, no_close, closed;
    uint32_t changes; /* 1: the rounding; 2: denormals; 4: exception flags alone */
    const char *message;
    uint16_t table_major;
    tess__common_ops table;
} world;
static tess_plugin_note in_file, in_library;
static tess_host services;

/* ---- what plugin.c calls ----------------------------------------------------------------------- */

static tess_status because(tess_status s, const char *what, char *reason) {
    if (s)
        snprintf(reason, TESS_REASON_BYTES, "%s will not do", what);
    return s;
}
static tess_status trusted_path(const char *path, uint32_t want, char real[4096], char *reason, size_t n) {
    assert_true(want == TESS_PATH_FILE && n == TESS_REASON_BYTES);
    say("path %s; ", path);
    snprintf(real, 4096, "/real%s", path);
    return because(world.path, "the path", reason);
}
static tess_status elf_note(const char *real, tess_plugin_note *out, char *reason, size_t n) {
    assert_int_equal(n, TESS_REASON_BYTES);
    say("note of %s; ", real);
    *out = in_file;
    return because(world.note, "the note", reason);
}
static tess_status note_check(const tess_plugin_note *note, uint32_t kind, char *reason) {
    assert_memory_equal(note, &in_file, sizeof in_file);
    say("check as %u; ", kind);
    return because(world.check, "the check", reason);
}
static tess_status options_of(tess__plugin *p, const tess_plugin_note *note, char *reason) {
    assert_memory_equal(note, &in_file, sizeof in_file);
    assert_true(!p->library && !p->ops);
    say("options of %s %s %u.%u at %s as %u; ", p->name, p->version, p->abi_major, p->abi_minor, p->path, p->kind);
    p->options = calloc(2, sizeof *p->options);
    return because(world.options, "an option", reason);
}
static tess_status ops_check(uint32_t kind, const void *ops, char *reason) {
    assert_ptr_equal(ops, world.no_table ? NULL : &world.table);
    say("table of %u; ", kind);
    return because(world.no_table ? TESS_E_DATA : world.ops, "the table", reason);
}
static void change_modes(void) {
    if (world.changes & 1)
        fesetround(FE_TOWARDZERO);
#if defined(__SSE2__)
    if (world.changes & 2)
        _mm_setcsr(_mm_getcsr() | 0x8040); /* both flush denormals */
    if (world.changes & 4)
        _mm_setcsr(_mm_getcsr() | 0x3f);
#endif
}
static void *fake_dlopen(const char *file, int flags) {
    assert_int_equal(flags, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    say("load %s; ", file);
    change_modes();
    return world.no_library ? NULL : &world;
}
static tess_status open_plugin(const tess_host *h, uint32_t kind, const void **ops, void **ctx, tess_error *e) {
    assert_true(e->struct_size == sizeof *e && e->rank == -1 && !*ops && !*ctx);
    say("open as %u with %s, node %d; ", kind, h->args, h->numa_node);
    if (!world.no_table)
        *ops = &world.table;
    *ctx = (void *)h->args;
    if (world.message) /* which may fill its room */
        memcpy(e->message, world.message, strnlen(world.message, sizeof e->message));
    return world.open;
}
static tess_status open_builtin(const tess_host *h, const void **ops, void **ctx, tess_error *e) {
    return open_plugin(h, 99, ops, ctx, e);
}
static void *fake_dlsym(void *library, const char *name) {
    void *open = NULL;
    tess_status (*const function)(const tess_host *, uint32_t, const void **, void **, tess_error *) = open_plugin;
    assert_ptr_equal(library, &world);
    memcpy(&open, &function, sizeof open);
    if (strcmp(name, "tess_plugin_open_v1") == 0)
        return world.no_open ? NULL : open;
    assert_string_equal(name, "tess_plugin_note_v1");
    return world.no_note ? NULL : &in_library;
}
static void close_plugin(void *ctx) {
    say("close %s; ", (const char *)ctx);
    world.closed++;
}
static tess_host *host_new(const tess_host *given, const char *args) {
    tess_host *h = calloc(1, sizeof *h);
    if (!h)
        return NULL;
    *h = *given;
    h->args = args;
    return h;
}

#define tess__trusted_path trusted_path
#define tess__elf_note_file elf_note
#define tess__note_check note_check
#define tess__plugin_options options_of
#define tess__ops_check ops_check
#define tess__plugin_host_new host_new
#define dlopen fake_dlopen
#define dlsym fake_dlsym
#define dlerror() "it does not load"
#include "core/plugin/plugin.c"

/* ---- the tests --------------------------------------------------------------------------------- */

#define CHECKED "path /f.so; note of /real/f.so; check as 4; "
#define READ CHECKED "options of a name 1.2 6.7 at /real/f.so as 4; "
static char reason[TESS_REASON_BYTES];

static int begin(void **state) {
    (void)state;
    memset(&world, 0, sizeof world);
    memset(&logged, 0, sizeof logged);
    memset(&counted, 0, sizeof counted);
    world.table = (tess__common_ops){ sizeof world.table, TESS_ABI_MAJOR, 0, close_plugin };
    in_file = (tess_plugin_note){ .abi_major = 6, .abi_minor = 7, .name = "a name", .version = "1.2", .needs = "x" };
    in_library = in_file;
    services = (tess_host){ .numa_node = 3 };
    said_so_far[0] = 0;
    fesetround(FE_TONEAREST);
    return 0;
}

static int end(void **state) {
    (void)state;
    assert_int_equal(counted.live, 0);
    assert_int_equal(fegetround(), FE_TONEAREST);
    return 0;
}

static void opens(const char *said) {
    tess__plugin *p = NULL;
    reason[0] = 0;
    if (tess__plugin_file_open(TESS_KIND_WRAP, "/f.so", "words", &services, &p, reason))
        fail_msg("%s", reason);
    expect_said(said);
    assert_true(p->kind == TESS_KIND_WRAP && p->ops == &world.table && p->library == &world);
    assert_string_equal(p->args, "words");
    assert_ptr_equal(p->ctx, p->args);
    assert_ptr_not_equal(p->host, &services);
    tess__plugin_close(p);
    expect_said(world.no_close ? "" : "close words; ");
    assert_int_equal(counted.live, 0);
}

static void fails(tess_status status, const char *why, const char *said) {
    tess__plugin *p = (void *)&world;
    reason[0] = 0;
    assert_int_equal(tess__plugin_file_open(TESS_KIND_WRAP, "/f.so", "words", &services, &p, reason), status);
    assert_string_equal(reason, why);
    assert_ptr_equal(p, &world);
    assert_int_equal(counted.live, 0);
    expect_said(said);
}

static void test_plugin_file__is_checked_read_loaded_and_opened(void **state) {
    (void)state;
    opens(READ "load /real/f.so; open as 4 with words, node 3; table of 4; ");
    world.no_close = 1;
    world.table.close = NULL;
    opens(READ "load /real/f.so; open as 4 with words, node 3; table of 4; ");
    world.table.close = close_plugin;
    world.table.struct_size = offsetof(tess__common_ops, close); /* it has none */
    opens(READ "load /real/f.so; open as 4 with words, node 3; table of 4; ");
    tess__plugin_close(NULL);
    expect_logged(0, 0, "");
}

static void test_plugin_file__no_code_runs_before_all_is_checked(void **state) {
    (void)state;
    world.options = TESS_E_INVALID;
    fails(TESS_E_INVALID, "an option will not do", READ);
    world.check = TESS_E_VERSION;
    fails(TESS_E_VERSION, "the check will not do", CHECKED);
    world.note = TESS_E_DATA;
    fails(TESS_E_DATA, "the note will not do", "path /f.so; note of /real/f.so; ");
    world.path = TESS_E_INVALID;
    fails(TESS_E_INVALID, "the path will not do", "path /f.so; ");
}

static void test_plugin_file__the_library_is_what_the_file_says(void **state) {
    (void)state;
    world.no_open = 1;
    fails(TESS_E_INVALID, "symbol tess_plugin_open_v1 is missing", READ "load /real/f.so; ");
    for (size_t i = 0; i < sizeof in_library; i++) {
        ((char *)&in_library)[i] ^= 1;
        fails(TESS_E_INVALID, "tess_plugin_note_v1 is not what section .tessera.plugin says", READ "load /real/f.so; ");
        ((char *)&in_library)[i] ^= 1;
    }
    world.no_note = 1;
    fails(TESS_E_INVALID, "symbol tess_plugin_note_v1 is missing", READ "load /real/f.so; ");
    world.no_library = 1;
    fails(TESS_E_INVALID, "it does not load", READ "load /real/f.so; ");
}

static void test_plugin_file__a_failed_open_says_why(void **state) {
    (void)state;
    static const char opened[] = READ "load /real/f.so; open as 4 with words, node 3; ";
    char large[400], want[TESS_REASON_BYTES];
    world.open = TESS_E_MISMATCH;
    fails(TESS_E_MISMATCH, "open failed: no message (TESS_E_MISMATCH)", opened);
    world.message = "no GPU";
    fails(TESS_E_MISMATCH, "open failed: no GPU (TESS_E_MISMATCH)", opened);
    memset(large, 'm', sizeof large);
    large[399] = 0;
    world.message = large; /* it ends nowhere */
    snprintf(want, sizeof want, "open failed: %.*s (TESS_E_MISMATCH)", (int)sizeof((tess_error){ 0 }).message - 1,
             large);
    fails(TESS_E_MISMATCH, want, opened);
    world.open = 1;
    fails(TESS_E_INVALID, "open returned 1, expected 0 or a negative status", opened);
    world.open = 77;
    fails(TESS_E_INVALID, "open returned 77, expected 0 or a negative status", opened);
}

static void test_plugin_file__an_unfit_table_is_closed_where_it_can_be(void **state) {
    (void)state;
    static const char checked[] = READ "load /real/f.so; open as 4 with words, node 3; table of 4; ";
    char want[512];
    world.ops = TESS_E_VERSION;
    snprintf(want, sizeof want, "%sclose words; ", checked);
    fails(TESS_E_VERSION, "the table will not do", want);
    world.table.abi_major++; /* its close may lie elsewhere */
    fails(TESS_E_VERSION, "the table will not do", checked);
    world.no_table = 1;
    fails(TESS_E_DATA, "the table will not do", checked);
}

static void test_plugin_file__modes_that_a_library_changes_are_restored(void **state) {
    (void)state;
    static const char warning[] = "plugin a name (/real/f.so) changed the thread's rounding or denormal mode while it "
                                  "was loaded; restored";
#if defined(__SSE2__)
    const unsigned before = _mm_getcsr() & ~0x3fu;
    enum { WAYS = 8 };
#else
    enum { WAYS = 2 };
#endif
    for (uint32_t c = 0; c < WAYS; c++)
        for (int bad = 0; bad < 2; bad++) {
            tess__plugin *p = NULL;
            world.changes = c, world.no_library = bad;
            tess__plugin_file_open(TESS_KIND_WRAP, "/f.so", "", &services, &p, reason);
            expect_logged((c & 3) != 0, TESS_LOG_WARNING, c & 3 ? warning : "");
            assert_int_equal(fegetround(), FE_TONEAREST);
#if defined(__SSE2__)
            assert_int_equal(_mm_getcsr() & ~0x3fu, before);
            if (c & 4)
                assert_int_equal(_mm_getcsr() & 0x3f, 0x3f); /* flags stay as they are */
            _mm_setcsr(before);
#endif
            tess__plugin_close(p);
        }
    said_so_far[0] = 0;
}

static void test_plugin_file__options_are_known_without_an_open(void **state) {
    (void)state;
    assert_int_equal(tess__plugin_file_options(TESS_KIND_WRAP, "/f.so", reason), TESS_OK);
    expect_said(READ);
    world.options = TESS_E_INVALID;
    assert_int_equal(tess__plugin_file_options(TESS_KIND_WRAP, "/f.so", reason), TESS_E_INVALID);
    assert_string_equal(reason, "an option will not do");
    counted.refuse = 1;
    assert_int_equal(tess__plugin_file_options(TESS_KIND_WRAP, "/f.so", reason), TESS_E_NOMEM);
    assert_string_equal(reason, "no memory");
    expect_said(READ);
}

static void test_plugin_file__a_built_in_one_is_opened_in_place(void **state) {
    (void)state;
    const tess__builtin b = { TESS_KIND_COMM, "mine", "", open_builtin };
    tess__plugin *p = NULL;
    assert_int_equal(tess__plugin_builtin_open(&b, "x", &services, &p, reason), TESS_OK);
    expect_said("open as 99 with x, node 3; table of 1; ");
    assert_string_equal(p->name, "mine");
    assert_string_equal(p->version, TESSERA_VERSION);
    assert_string_equal(p->path, "");
    assert_true(p->abi_major == TESS_ABI_MAJOR && p->abi_minor == TESS_ABI_MINOR && p->kind == TESS_KIND_COMM);
    assert_true(p->ops == &world.table && !p->library && !p->n_options);
    tess__plugin_close(p);
    expect_said("close x; ");
    p = (void *)&world;
    world.open = TESS_E_INVALID, world.message = "takes nothing";
    assert_int_equal(tess__plugin_builtin_open(&b, "x", &services, &p, reason), TESS_E_INVALID);
    assert_string_equal(reason, "open failed: takes nothing (TESS_E_INVALID)");
    assert_ptr_equal(p, &world);
    said_so_far[0] = 0;
}

static void test_plugin_file__without_memory_nothing_is_left_behind(void **state) {
    (void)state;
    const tess__builtin b = { TESS_KIND_COMM, "mine", "", open_builtin };
    tess__plugin *p = (void *)&world;
    for (int n = 1; n <= 3; n++) {
        counted.refuse = n;
        fails(TESS_E_NOMEM, "no memory", "");
        counted.refuse = n;
        assert_int_equal(tess__plugin_builtin_open(&b, "x", &services, &p, reason), TESS_E_NOMEM);
        assert_string_equal(reason, "no memory");
        assert_ptr_equal(p, &world);
    }
    expect_said("");
}

/* Whether a plugin names itself or not, its kind and name stand there once. */
static void test_plugin_file__who_failed_is_named_once(void **state) {
    (void)state;
    static const char *const texts[][2] = {
        { "GPU 0: off", "device cuda: GPU 0: off" },
        { "cuda: GPU 0: off", "device cuda: GPU 0: off" },
        { "device cuda: GPU 0: off", "device cuda: GPU 0: off" },
        { "device cuda GPU", "device cuda: cuda GPU" },
        { "device off", "device cuda: off" },
        { "cuda off", "device cuda: cuda off" },
        { "cudas: off", "device cuda: cudas: off" },
        { "", "device cuda: " },
    };
    tess__plugin p = { .kind = TESS_KIND_DEVICE, .name = "cuda" };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        tess_error e = { .struct_size = sizeof e };
        snprintf(e.message, sizeof e.message, "%s", texts[i][0]);
        assert_int_equal(tess__plugin_failed(TESS_E_SYSTEM, TESS_KIND_DEVICE, &p, &e), TESS_E_SYSTEM);
        assert_string_equal(tess_last_error(), texts[i][1]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_plugin_file__is_checked_read_loaded_and_opened, begin, end),
        cmocka_unit_test_setup_teardown(test_plugin_file__no_code_runs_before_all_is_checked, begin, end),
        cmocka_unit_test_setup_teardown(test_plugin_file__the_library_is_what_the_file_says, begin, end),
        cmocka_unit_test_setup_teardown(test_plugin_file__a_failed_open_says_why, begin, end),
        cmocka_unit_test_setup_teardown(test_plugin_file__an_unfit_table_is_closed_where_it_can_be, begin, end),
        cmocka_unit_test_setup_teardown(test_plugin_file__modes_that_a_library_changes_are_restored, begin, end),
        cmocka_unit_test_setup_teardown(test_plugin_file__options_are_known_without_an_open, begin, end),
        cmocka_unit_test_setup_teardown(test_plugin_file__a_built_in_one_is_opened_in_place, begin, end),
        cmocka_unit_test_setup_teardown(test_plugin_file__without_memory_nothing_is_left_behind, begin, end),
        cmocka_unit_test_setup_teardown(test_plugin_file__who_failed_is_named_once, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
