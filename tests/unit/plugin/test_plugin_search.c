/* SPDX-License-Identifier: BSD-3-Clause */
/* Which files of a directory are plugins, against a regular expression, and in which order they come. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/plugin/open.h"
#include "core/plugin/plugin_search.h"
#include "tests/unit/scratch_dir.h"

enum { MOST = 2000, NAME = 96 };
static struct {
    char files[MOST][NAME];
    int n, calls, stop_at;
    const char *dir;
} world;

static void add(const char *prefix, const char *word, const char *dash, const char *name, const char *suffix) {
    char path[512];
    assert_in_range(world.n, 0, MOST - 1);
    char *file = world.files[world.n++];
    assert_in_range(snprintf(file, NAME, "%s%s%s%s%s", prefix, word, dash, name, suffix), 0, NAME - 1);
    snprintf(path, sizeof path, "%s/%s", world.dir, file);
    FILE *f = *file ? fopen(path, "w") : NULL;
    if (f)
        fclose(f);
    else
        world.n--;
}

/* Every prefix, kind, dash, length and suffix, right ones and ones that are off by a letter. */
static void make_files(void) {
    static const char *const prefixes[] = { "libtessera-", "libtessera_", "ibtessera-", "xlibtessera-", "" };
    static const char *const words[] = {
        "comm", "device", "offload", "precision", "wrap", "optimizer", "com", "comma"
    };
    static const char *const dashes[] = { "-", "", "_" };
    static const char *const suffixes[] = { ".so", ".so.1", ".sox", "so", "" };
    static const int lengths[] = { 0, 1, 3, 30, 31, 32, 40 };
    for (int p = 0; p < 5; p++)
        for (int w = 0; w < 8; w++)
            for (int d = 0; d < 3; d++)
                for (int s = 0; s < 5; s++)
                    for (int l = 0; l < 7; l++) {
                        char name[48];
                        const int off = (p != 0) + (w > 5) + (d != 0) + (s != 0);
                        memset(name, 'a' + l, sizeof name);
                        name[lengths[l]] = 0;
                        if (off <= 1)
                            add(prefixes[p], words[w], dashes[d], name, suffixes[s]);
                    }
    add("libtessera-", "", "", "", ".so");
    add("libtessera", "", "", "", ".so");
    add("", "", "", "", ".so");
}

static int is_plugin(const char *file, char kind[NAME], char name[NAME]) {
    regex_t form;
    regmatch_t at[3];
    assert_int_equal(
        regcomp(&form, "^libtessera-(comm|device|offload|precision|wrap|optimizer)-(.{1,31})\\.so$", REG_EXTENDED), 0);
    const int found = regexec(&form, file, 3, at, 0) == 0;
    regfree(&form);
    if (found) {
        snprintf(kind, NAME, "%.*s", (int)(at[1].rm_eo - at[1].rm_so), file + at[1].rm_so);
        snprintf(name, NAME, "%.*s", (int)(at[2].rm_eo - at[2].rm_so), file + at[2].rm_so);
    }
    return found;
}

static int ascending(const void *a, const void *b) {
    return strcmp(a, b);
}

/* The next plugin of the list, which is sorted. */
static tess_status take(void *user, uint32_t kind, const char *name, const char *path) {
    int *at = user;
    char want_kind[NAME], want_name[NAME], want[512];
    while (*at < world.n && !is_plugin(world.files[*at], want_kind, want_name))
        ++*at;
    assert_in_range(*at, 0, world.n - 1);
    snprintf(want, sizeof want, "%s/%s", world.dir, world.files[(*at)++]);
    assert_string_equal(path, want);
    assert_string_equal(name, want_name);
    assert_string_equal(tess__kind_name(kind), want_kind);
    return ++world.calls == world.stop_at ? TESS_E_INVALID : TESS_OK;
}

static void test_plugin_search__files_of_the_pattern_come_in_order(void **state) {
    (void)state;
    scratch_dir dir;
    char kind[NAME], name[NAME], closed[] = "not to be trusted";
    int plugins = 0, at = 0;
    assert_int_equal(scratch_dir_make(&dir), 0);
    world.dir = dir.path;
    make_files();
    qsort(world.files, (size_t)world.n, NAME, ascending);
    for (int i = 0; i < world.n; i++)
        plugins += is_plugin(world.files[i], kind, name);
    assert_int_equal(plugins, 6 * 4); /* four lengths of each kind */
    tess__plugin_search s = { .n = 3, .dirs = { { dir.path, closed }, { dir.path, NULL }, { closed, NULL } } };
    assert_int_equal(tess__plugin_search_each(&s, take, &at), TESS_OK);
    assert_int_equal(world.calls, plugins);
    for (int refused = 0; refused < 2; refused++) { /* the first and last alone */
        tess__plugin_search one = { .n = 1, .dirs = { { dir.path, refused ? closed : NULL } } };
        world.calls = at = 0;
        assert_int_equal(tess__plugin_search_each(&one, take, &at), TESS_OK);
        assert_int_equal(world.calls, refused ? 0 : plugins);
    }
    for (int stop = 1; stop <= plugins; stop += 5) { /* the first status ends it */
        world.calls = at = 0;
        world.stop_at = stop;
        assert_int_equal(tess__plugin_search_each(&s, take, &at), TESS_E_INVALID);
        assert_int_equal(world.calls, stop);
    }
    scratch_dir_remove(&dir);
}

int main(void) {
    setenv("LC_ALL", "C", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plugin_search__files_of_the_pattern_come_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
