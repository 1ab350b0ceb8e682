/* SPDX-License-Identifier: BSD-3-Clause */
/* Which files may run within a program: where each goes through links, who may write on the way, and the one clause
 * that says what is wrong. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <limits.h>

#include "core/plugin/trusted_path.h"
#include "tests/unit/scratch_dir.h"

static scratch_dir dir;
static char real[4096], reason[512];

static const char *at(const char *name) {
    return scratch_path(&dir, name);
}

static void make_file(const char *name, mode_t mode) {
    int fd = open(at(name), O_CREAT | O_WRONLY, 0600);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(chmod(at(name), mode), 0);
}

static void make_folder(const char *name, mode_t mode) {
    assert_int_equal(mkdir(at(name), 0700), 0);
    assert_int_equal(chmod(at(name), mode), 0);
}

static int make_tree(void **state) {
    (void)state;
    assert_int_equal(scratch_dir_make(&dir), 0);
    make_folder("plain", 0755);
    make_folder("open", 0777);
    make_folder("sticky", 01777);
    make_file("plain/file", 0644);
    make_file("plain/shared", 0664); /* of the owner's own group */
    make_file("plain/written", 0646);
    make_file("open/file", 0644);
    make_file("sticky/file", 0644);
    make_folder("sticky/below", 0700);
    make_file("sticky/below/file", 0600);
    assert_int_equal(mkfifo(at("plain/pipe"), 0600), 0);
    assert_int_equal(symlink("plain/file", at("relative")), 0);
    assert_int_equal(symlink("../relative", at("plain/back")), 0);
    assert_int_equal(symlink(at("plain"), at("absolute")), 0);
    assert_int_equal(symlink("circle", at("circle")), 0);
    assert_int_equal(symlink("open/file", at("to_open")), 0);
    for (int i = 0; i < 41; i++) { /* 0 is the file, and link i goes through i links */
        char from[16], to[16];
        snprintf(from, sizeof from, "l%d", i);
        snprintf(to, sizeof to, "l%d", i - 1);
        assert_int_equal(symlink(i ? to : "plain/file", at(from)), 0);
    }
    return 0;
}

static int remove_tree(void **state) {
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", dir.path);
    return system(command);
}

static void leads(const char *path, uint32_t want, const char *to) {
    char expected[PATH_MAX];
    reason[0] = 0;
    if (tess__trusted_path(path, want, real, reason, sizeof reason))
        fail_msg("%s: %s", path, reason);
    snprintf(expected, sizeof expected, "%s", *to == '/' ? to : at(to));
    assert_string_equal(real, expected);
}

static void refused(const char *path, uint32_t want, const char *why) {
    assert_int_equal(tess__trusted_path(path, want, real, reason, sizeof reason), TESS_E_INVALID);
    if (!strstr(reason, why))
        fail_msg("%s: expected '%s', got '%s'", path, why, reason);
}

static void test_trusted_path__links_lead_to_what_they_name(void **state) {
    (void)state;
    char odd[256], here[PATH_MAX];
    leads(at("plain/file"), TESS_PATH_FILE, "plain/file");
    leads(at("plain"), TESS_PATH_DIRECTORY, "plain");
    leads(at("relative"), TESS_PATH_FILE, "plain/file");
    leads(at("plain/back"), TESS_PATH_FILE, "plain/file");
    leads(at("absolute/back"), TESS_PATH_FILE, "plain/file");
    leads(at("absolute"), TESS_PATH_DIRECTORY, "plain");
    leads(at("l39"), TESS_PATH_FILE, "plain/file"); /* 40 links */
    leads(at("sticky/below/file"), TESS_PATH_FILE, "sticky/below/file");
    leads("/", TESS_PATH_DIRECTORY, "/");
    leads("//../usr/./", TESS_PATH_DIRECTORY, "/usr");
    snprintf(odd, sizeof odd, "%s//plain/.././absolute//file", dir.path);
    leads(odd, TESS_PATH_FILE, "plain/file");
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir(at("plain")), 0);
    leads("file", TESS_PATH_FILE, "plain/file");
    leads("../relative", TESS_PATH_FILE, "plain/file");
    assert_int_equal(chdir(here), 0);
}

static void test_trusted_path__what_is_not_there_or_another_thing_is_said(void **state) {
    (void)state;
    char large[PATH_MAX + 64];
    refused(at("plain/none"), TESS_PATH_FILE, "no such file");
    refused(at("none/file"), TESS_PATH_DIRECTORY, "no such directory");
    refused(at("plain/file/more"), TESS_PATH_FILE, "plain/file is not a directory");
    refused(at("plain"), TESS_PATH_FILE, "plain is a directory, not a file");
    refused(at("plain/pipe"), TESS_PATH_FILE, "plain/pipe is not a regular file");
    refused(at("plain/file"), TESS_PATH_DIRECTORY, "plain/file is not a directory");
    refused(at("circle"), TESS_PATH_FILE, "circle: more than 40 symbolic links");
    refused(at("l40"), TESS_PATH_FILE, ": more than 40 symbolic links");
    memset(large, 'n', sizeof large);
    large[0] = '/';
    large[257] = 0;
    refused(large, TESS_PATH_FILE, "a file name of more than 255 bytes");
    large[256] = 0;
    refused(large, TESS_PATH_FILE, "no such file");
    large[256] = large[257] = 'n';
    large[PATH_MAX] = 0;
    refused(large, TESS_PATH_FILE, "path too long");
}

static void test_trusted_path__what_others_may_write_is_refused(void **state) {
    (void)state;
    static const uint32_t want[] = { TESS_PATH_FILE, TESS_PATH_DIRECTORY };
    refused(at("plain/written"), TESS_PATH_FILE, "plain/written can be written by others (mode 0646)");
    refused(at("open/file"), TESS_PATH_FILE, "open can be written by others (mode 0777)");
    refused(at("to_open"), TESS_PATH_FILE, "open can be written by others");
    refused(at("sticky/file"), TESS_PATH_FILE, "sticky can be written by others (mode 1777)"); /* directly within */
    refused(at("sticky"), TESS_PATH_DIRECTORY, "sticky can be written by others (mode 1777)");
    refused(at("open"), TESS_PATH_DIRECTORY, "open can be written by others");
    if (getuid() == getgid())
        leads(at("plain/shared"), TESS_PATH_FILE, "plain/shared");
    if (getuid() != 0)
        return;
    const char *const names[] = { "plain/file", "plain" };
    for (int i = 0; i < 2; i++) { /* of another user, or for another group to write */
        char why[128];
        assert_int_equal(lchown(at(names[i]), 4711, 4711), 0);
        snprintf(why, sizeof why, "%s belongs to user 4711, who is neither root nor you", names[i]);
        refused(at(names[i]), want[i], why);
        refused(at("plain/file"), TESS_PATH_FILE, why);
        assert_int_equal(lchown(at(names[i]), 0, 4711), 0);
        assert_int_equal(chmod(at(names[i]), 0775), 0);
        refused(at(names[i]), want[i], "can be written by others (mode 0775)");
        assert_int_equal(chmod(at(names[i]), 0755), 0);
        leads(at(names[i]), want[i], names[i]);
        assert_int_equal(lchown(at(names[i]), 0, 0), 0);
    }
    assert_int_equal(lchown(at("relative"), 4711, 4711), 0);
    refused(at("relative"), TESS_PATH_FILE, "relative belongs to user 4711");
    assert_int_equal(lchown(at("relative"), 0, 0), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trusted_path__links_lead_to_what_they_name),
        cmocka_unit_test(test_trusted_path__what_is_not_there_or_another_thing_is_said),
        cmocka_unit_test(test_trusted_path__what_others_may_write_is_refused),
    };
    return cmocka_run_group_tests(tests, make_tree, remove_tree);
}
