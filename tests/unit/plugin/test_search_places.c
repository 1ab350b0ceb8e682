/* SPDX-License-Identifier: BSD-3-Clause */
/* The order of the places where plugins are looked for: the variable's, beside the program or the library, the build's
 * and the install's. Files and folders are written down here. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/options.h"
#include "core/plugin/open.h"
#include "core/plugin/plugin_check.h"
#include "core/plugin/plugin_search.h"
#include "core/plugin/trusted_path.h"
#include "tests/unit/counted.h"
#include "tests/unit/said.h"

#undef TESSERA_VERSION
#undef TESSERA_PLUGIN_SUBDIR
#undef TESSERA_PLUGINS_FROM_LIBRARY
#undef TESSERA_BUILD_PLUGIN_DIR
#undef TESSERA_INSTALL_PLUGIN_DIR
#define TESSERA_VERSION "7.8.9"
#define TESSERA_PLUGIN_SUBDIR "lib/tessera"
#define TESSERA_PLUGINS_FROM_LIBRARY "tessera"
#define TESSERA_BUILD_PLUGIN_DIR "/build/plugins"
#define TESSERA_INSTALL_PLUGIN_DIR "/usr/lib/tessera"

static struct {
    const char *variable, *program, *loaded; /* loaded: the file of this code, as the loader has it; null: unknown */
    const char *resolved[8][2];              /* paths that are another one */
    const char *missing[4], *folders[4], *files[4], *refused[4];
} world;

static int among(const char *const *list, const char *path) {
    for (int i = 0; i < 4; i++)
        if (list[i] && strcmp(list[i], path) == 0)
            return 1;
    return 0;
}
static const char *resolve(const char *path) {
    for (int i = 0; i < 8 && world.resolved[i][0]; i++)
        if (strcmp(world.resolved[i][0], path) == 0)
            return world.resolved[i][1];
    return path;
}
static char *fake_realpath(const char *path, char *out) {
    if (among(world.missing, path))
        return NULL;
    return strcpy(out, resolve(path));
}
static int fake_dladdr(const void *at, Dl_info *info) {
    Dl_info own;
    assert_true(dladdr(at, info) && dladdr(&world, &own) && info->dli_fbase == own.dli_fbase);
    info->dli_fname = world.loaded && *world.loaded ? world.loaded : NULL;
    return world.loaded != NULL;
}
static ssize_t fake_readlink(const char *path, char *out, size_t n) {
    assert_string_equal(path, "/proc/self/exe");
    assert_int_equal(n, 4095);
    if (!world.program)
        return -1;
    const size_t m = strlen(world.program);
    memset(out, '/', n); /* it writes no end */
    memcpy(out, world.program, m < n ? m : n);
    return (ssize_t)(m < n ? m : n);
}
static int fake_stat(const char *path, struct stat *s) {
    s->st_mode = among(world.folders, path) ? S_IFDIR : S_IFREG;
    return among(world.folders, path) || among(world.files, path) ? 0 : -1;
}
static tess_status trusted(const char *path, uint32_t want, char *real, char *reason, size_t n) {
    assert_true(want == TESS_PATH_DIRECTORY && n == TESS_REASON_BYTES && *path == '/');
    snprintf(real, 4096, "%s", resolve(path));
    if (!among(world.refused, path))
        return TESS_OK;
    snprintf(reason, n, "no such directory");
    return TESS_E_INVALID;
}
static const char *option(const char *key) {
    assert_string_equal(key, "plugin-path");
    return world.variable;
}
#define realpath(path, out) fake_realpath(path, out)
#define dladdr(at, info) fake_dladdr(at, info)
#define readlink(path, out, n) fake_readlink(path, out, n)
#define stat(path, s) fake_stat(path, s)
#define tess__trusted_path trusted
#define tess__option_text option
#include "core/plugin/plugin_search.c"
#undef stat

static int begin(void **state) {
    (void)state;
    memset(&world, 0, sizeof world);
    memset(&counted, 0, sizeof counted);
    said_so_far[0] = 0;
    world.program = "/home/me/app";
    return 0;
}

static void places_are(const char *want) {
    tess__plugin_search s;
    memset(&s, 0xee, sizeof s);
    assert_int_equal(tess__plugin_search_init(&s), TESS_OK);
    for (uint32_t i = 0; i < s.n; i++)
        say("%s%s%s; ", s.dirs[i].path, s.dirs[i].reason ? ": " : "", s.dirs[i].reason ? s.dirs[i].reason : "");
    tess__plugin_search_finish(&s);
    assert_int_equal(s.n, 0);
    assert_int_equal(counted.live, 0);
    expect_said(want);
}

static void test_search_places__the_variable_comes_first_in_its_order(void **state) {
    (void)state;
    places_are("/usr/lib/tessera; ");
    world.variable = "/b:/a";
    places_are("/b; /a; /usr/lib/tessera; ");
    world.variable = "::/b::/a:";
    places_are("/b; /a; /usr/lib/tessera; ");
    world.variable = ".:/a:../b:/a/";
    world.resolved[0][0] = "/a/", world.resolved[0][1] = "/a";
    places_are(".: not an absolute path; /a; ../b: not an absolute path; /usr/lib/tessera; ");
    world.variable = "";
    places_are("/usr/lib/tessera; ");
}

static void test_search_places__one_that_is_named_twice_counts_once(void **state) {
    (void)state;
    world.variable = "/a:/link:/usr/lib/tessera:/b:/none:/none:.:.";
    world.resolved[0][0] = "/link", world.resolved[0][1] = "/a";
    world.refused[0] = "/none";
    places_are("/a; /usr/lib/tessera; /b; /none: no such directory; .: not an absolute path; ");
    world.variable = "/link:/a";
    places_are("/a; /usr/lib/tessera; "); /* as what it is */
}

static void test_search_places__the_builds_are_for_programs_in_it(void **state) {
    (void)state;
    static const char *const within[] = { "/build/app", "/build/tests/unit/app" };
    static const char *const without[] = { "/build", "/buildings/app", "/buil/app", "/x/build/app", NULL };
    world.resolved[0][0] = "/build/plugins/..", world.resolved[0][1] = "/build";
    for (int i = 0; i < 2; i++) {
        world.program = within[i];
        places_are("/build/plugins; /usr/lib/tessera; ");
    }
    for (int i = 0; i < 5; i++) {
        world.program = without[i];
        places_are("/usr/lib/tessera; ");
    }
    world.program = within[0];
    world.missing[0] = "/build/plugins/..";
    places_are("/usr/lib/tessera; ");
}

static void test_search_places__an_install_that_was_moved_has_its_own(void **state) {
    (void)state;
    static const char *const elsewhere[] = { NULL, "", "/opt/t/bin/tessera" }; /* no library */
    world.program = "/opt/t/bin/tessera";
    world.folders[0] = "/opt/t/bin/../lib/tessera";
    for (int i = 0; i < 3; i++) {
        world.loaded = elsewhere[i];
        places_are("/opt/t/bin/../lib/tessera; /usr/lib/tessera; ");
    }
    world.variable = "/a";
    places_are("/a; /opt/t/bin/../lib/tessera; /usr/lib/tessera; ");
    world.variable = NULL;
    world.files[0] = world.folders[0], world.folders[0] = NULL; /* a file of that name */
    places_are("/usr/lib/tessera; ");
    world.loaded = "libtessera.so.1";
    world.resolved[0][0] = world.loaded, world.resolved[0][1] = "/opt/lib/libtessera.so.1.2";
    places_are("/usr/lib/tessera; ");
    world.folders[0] = "/opt/lib/tessera";
    places_are("/opt/lib/tessera; /usr/lib/tessera; ");
    world.missing[0] = world.loaded; /* then by the program */
    world.folders[0] = "/opt/t/bin/../lib/tessera";
    places_are("/opt/t/bin/../lib/tessera; /usr/lib/tessera; ");
    world.program = NULL;
    places_are("/usr/lib/tessera; ");
    world.program = "app"; /* of no folder */
    places_are("/usr/lib/tessera; ");
}

/* Also when the program lies in the build, but not when the build itself is that folder. */
static void test_search_places__what_lies_beside_goes_before_the_build(void **state) {
    (void)state;
    world.resolved[0][0] = "/build/plugins/..", world.resolved[0][1] = "/build";
    world.program = "/build/stage/bin/tessera";
    world.folders[0] = "/build/stage/bin/../lib/tessera";
    places_are("/build/stage/bin/../lib/tessera; /usr/lib/tessera; ");
    world.program = "/build/tessera";
    world.folders[0] = "/build/../lib/tessera";
    places_are("/build/plugins; /usr/lib/tessera; ");
}

static void test_search_places__a_path_that_is_too_long_is_none(void **state) {
    (void)state;
    static char program[5000], beside[5000];
    for (int n = 4060; n < 4200; n++) { /* around what a path may have */
        memset(program, 'p', sizeof program);
        program[0] = '/', program[n - 2] = '/', program[n] = 0;
        snprintf(beside, sizeof beside, "%.*s/../lib/tessera", n - 2, program);
        world.program = program;
        world.folders[0] = beside;
        world.refused[0] = beside;
        tess__plugin_search s;
        assert_int_equal(tess__plugin_search_init(&s), TESS_OK);
        assert_int_equal(s.n, strlen(beside) < 4096 ? 2 : 1);
        tess__plugin_search_finish(&s);
    }
}

static void test_search_places__there_are_64_at_most(void **state) {
    (void)state;
    char list[1024] = "", want[2048] = "";
    for (int i = 0; i < 70; i++) {
        snprintf(list + strlen(list), sizeof list - strlen(list), "/%d:", i);
        if (i < 64)
            snprintf(want + strlen(want), sizeof want - strlen(want), "/%d; ", i);
    }
    world.variable = list;
    places_are(want);
}

static void test_search_places__without_memory_nothing_is_left_behind(void **state) {
    (void)state;
    tess_status s = TESS_E_NOMEM;
    int n = 0;
    world.variable = "/a:/none:/a";
    world.refused[0] = "/none";
    world.resolved[0][0] = "/build/plugins/..", world.resolved[0][1] = "/build";
    world.program = "/build/app";
    for (; s; n++) {
        tess__plugin_search search;
        counted.refuse = n + 1;
        s = tess__plugin_search_init(&search);
        assert_true(s == TESS_OK || s == TESS_E_NOMEM);
        if (s == TESS_OK)
            tess__plugin_search_finish(&search);
        assert_int_equal(counted.live, 0);
        assert_int_equal(search.n, 0);
    }
    assert_true(n > 1 && counted.refuse); /* it ends well where nothing was refused */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_search_places__the_variable_comes_first_in_its_order, begin),
        cmocka_unit_test_setup(test_search_places__one_that_is_named_twice_counts_once, begin),
        cmocka_unit_test_setup(test_search_places__the_builds_are_for_programs_in_it, begin),
        cmocka_unit_test_setup(test_search_places__an_install_that_was_moved_has_its_own, begin),
        cmocka_unit_test_setup(test_search_places__what_lies_beside_goes_before_the_build, begin),
        cmocka_unit_test_setup(test_search_places__a_path_that_is_too_long_is_none, begin),
        cmocka_unit_test_setup(test_search_places__there_are_64_at_most, begin),
        cmocka_unit_test_setup(test_search_places__without_memory_nothing_is_left_behind, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
