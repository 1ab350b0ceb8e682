/* SPDX-License-Identifier: BSD-3-Clause */
/* What a run leaves for the plan of the next one: where its file lies, for which model it counts, and that whatever
 * stands in its way is no error and leaves nothing behind. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/readers/last_run.h"
#include "tests/unit/scratch_dir.h"

static scratch_dir dir;
static tess__param params[2];
static tess__model model;
static char file[PATH_MAX]; /* of the model, below <dir>/cache */

static void path_of(char *out, const char *below) {
    snprintf(out, PATH_MAX, "%s/%s", dir.path, below);
}

static void use_cache(const char *below) {
    char path[PATH_MAX];
    path_of(path, below);
    setenv("XDG_CACHE_HOME", path, 1);
}

/* How many files are in a folder, and the last one's name; -1: no such folder. */
static int list(const char *folder, char *name) {
    DIR *d = opendir(folder);
    int n = 0;
    if (!d)
        return -1;
    for (struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.') {
            n++;
            snprintf(name, NAME_MAX + 1, "%s", e->d_name);
        }
    closedir(d);
    return n;
}

static int begin(void **state) {
    char folder[PATH_MAX], name[NAME_MAX + 1];
    (void)state;
    if (scratch_dir_make(&dir))
        return -1;
    params[0] = (tess__param){ .name = (char *)"a.w", .ndim = 2, .shape = { 3, 5 } };
    params[1] = (tess__param){ .name = (char *)"a.b", .ndim = 1, .shape = { 5 } };
    model = (tess__model){ .params = params, .n_params = 2 };
    use_cache("cache");
    setenv("HOME", dir.path, 1);
    tess__last_run_keep(&model, &(tess__last_run){ .held_bytes = 777, .ranks = 4 });
    path_of(folder, "cache/tessera");
    if (list(folder, name) != 1)
        return -1;
    snprintf(file, sizeof file, "%.2000s/%.200s", folder, name);
    return 0;
}

static int end(void **state) {
    (void)state;
    unsetenv("XDG_CACHE_HOME");
    return scratch_tree_remove(&dir);
}

static void assert_found(uint64_t bytes, int32_t ranks) {
    const tess__last_run run = tess__last_run_find(&model);
    assert_int_equal(run.held_bytes, bytes);
    assert_int_equal(run.ranks, ranks);
}

static void write_file(const char *text) {
    FILE *f = fopen(file, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static void test_last_run__its_file_is_for_its_owner_alone(void **state) {
    (void)state;
    struct stat s;
    char text[64] = "", folder[PATH_MAX];
    assert_found(777, 4);
    assert_int_equal(stat(file, &s), 0);
    assert_int_equal(s.st_mode & 0777, 0600);
    FILE *f = fopen(file, "r");
    assert_non_null(f);
    assert_non_null(fgets(text, sizeof text, f));
    fclose(f);
    assert_string_equal(text, "777 4\n");
    path_of(folder, "cache/tessera");
    assert_int_equal(stat(folder, &s), 0);
    assert_int_equal(s.st_mode & 0777, 0700);
    path_of(folder, "cache");
    assert_int_equal(stat(folder, &s), 0);
    assert_int_equal(s.st_mode & 0777, 0700);
}

static void test_last_run__a_model_is_its_names_and_shapes(void **state) {
    (void)state;
    params[1].name = (char *)"a.c";
    assert_found(0, 0);
    params[1].name = (char *)"a.b";
    for (int i = 0; i < 2; i++)
        for (int d = 0; d < params[i].ndim; d++) {
            params[i].shape[d]++;
            assert_found(0, 0);
            params[i].shape[d]--;
        }
    model.n_params = 1;
    assert_found(0, 0);
    model.n_params = 2;
    params[0].shape[7] = 9; /* no dimension of it */
    assert_found(777, 4);
    tess__last_run_keep(&model, &(tess__last_run){ .held_bytes = 1, .ranks = 2 }); /* the last one counts */
    assert_found(1, 2);
}

static void test_last_run__a_file_that_is_not_whole_says_nothing(void **state) {
    (void)state;
    static const char *const bad[] = { "", "777", "777 0\n", "777 -1\n", "x 4\n", "777 x\n" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        write_file(bad[i]);
        assert_found(0, 0);
    }
    write_file("5 1");
    assert_found(5, 1);
}

/* Without XDG_CACHE_HOME it is ~/.cache; paths that do not begin at the root do not count. */
static void test_last_run__the_folder_is_the_users(void **state) {
    (void)state;
    char folder[PATH_MAX], name[NAME_MAX + 1], in_root[PATH_MAX], here[PATH_MAX];
    const tess__last_run run = { .held_bytes = 3, .ranks = 3 };
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir(dir.path), 0);
    for (int i = 0; i < 2; i++) {
        if (i)
            setenv("XDG_CACHE_HOME", "cache", 1);
        else
            unsetenv("XDG_CACHE_HOME");
        assert_found(i ? 3 : 0, i ? 3 : 0);
        path_of(folder, ".cache/tessera");
        assert_int_equal(list(folder, name), i ? 1 : -1); /* who only looks makes none */
        tess__last_run_keep(&model, &run);
        assert_int_equal(list(folder, name), 1);
        assert_string_equal(name, strrchr(file, '/') + 1);
        assert_found(3, 3);
    }
    snprintf(in_root, sizeof in_root, "/%.200s", strrchr(file, '/') + 1);
    unlink(in_root);            /* of an earlier run that failed */
    setenv("HOME", "cache", 1); /* where there is none */
    tess__last_run_keep(&model, &run);
    assert_found(0, 0);
    unsetenv("HOME");
    tess__last_run_keep(&model, &run);
    assert_found(0, 0);
    setenv("XDG_CACHE_HOME", "", 1);
    tess__last_run_keep(&model, &run);
    assert_found(0, 0);
    assert_int_not_equal(access(in_root, F_OK), 0);
    assert_int_equal(chdir(here), 0);
    path_of(folder, "cache/tessera");
    assert_int_equal(list(folder, name), 1); /* nothing came to a path that begins elsewhere */
}

/* What is longer than a path can be with the file's name is no folder, even where a shorter name would have room. */
static void test_last_run__a_path_has_room_for_its_name(void **state) {
    (void)state;
    static char longest[PATH_MAX], name[NAME_MAX + 1];
    const size_t room = PATH_MAX - sizeof "/tessera/0123456789abcdef.12345678901";
    for (size_t over = 0; over < 2; over++) {
        const size_t length = room + over;
        snprintf(longest, sizeof longest, "%s", dir.path);
        for (size_t at = strlen(longest); at < length; at = strlen(longest)) {
            size_t part = length - at > 200 ? 100 : length - at; /* with its slash; the last is never the slash alone */
            longest[at] = '/';
            memset(longest + at + 1, over ? 'y' : 'x', part - 1);
            longest[at + part] = 0;
            assert_true(mkdir(longest, 0700) == 0 || list(longest, name) >= 0);
        }
        assert_int_equal(strlen(longest), length);
        setenv("XDG_CACHE_HOME", longest, 1);
        tess__last_run_keep(&model, &(tess__last_run){ 1, 1 });
        assert_found(!over, !over);
        assert_int_equal(list(longest, name), !over);
    }
}

static void test_last_run__what_stands_in_its_way_leaves_nothing_behind(void **state) {
    (void)state;
    char folder[PATH_MAX], name[NAME_MAX + 1], fresh[PATH_MAX + 16];
    const tess__last_run run = { .held_bytes = 8, .ranks = 8 };
    path_of(folder, "cache/tessera");
    snprintf(fresh, sizeof fresh, "%s.%d", file, (int)getpid());
    assert_int_equal(symlink("elsewhere", fresh), 0); /* another's file is not written to */
    tess__last_run_keep(&model, &run);
    assert_found(777, 4);
    assert_int_equal(unlink(fresh), 0);
    assert_int_equal(unlink(file), 0);
    assert_int_equal(mkdir(file, 0700), 0); /* no file can take its place */
    tess__last_run_keep(&model, &run);
    assert_int_equal(list(folder, name), 1);
    assert_string_equal(name, strrchr(file, '/') + 1);
    assert_found(0, 0);
    assert_int_equal(rmdir(file), 0);
    const int input = dup(0); /* a program without standard input gets its number */
    close(0);
    tess__last_run_keep(&model, &run);
    if (input >= 0) {
        assert_int_equal(dup2(input, 0), 0);
        close(input);
    }
    assert_found(8, 8);
    assert_int_equal(list(folder, name), 1);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(test_last_run__##name, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(its_file_is_for_its_owner_alone),       TEST(a_model_is_its_names_and_shapes),
        TEST(a_file_that_is_not_whole_says_nothing), TEST(the_folder_is_the_users),
        TEST(a_path_has_room_for_its_name),          TEST(what_stands_in_its_way_leaves_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
