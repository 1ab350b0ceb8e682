/* SPDX-License-Identifier: BSD-3-Clause */
/* The sockets of ranks of one host: in the user's own folder, one listener of a name, and those that nobody listens on
 * are taken away. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <sys/socket.h>

#include "core/control/local.h"
#include "tests/unit/scratch_dir.h"

static scratch_dir dir;

static int make_dir(void **state) {
    (void)state;
    return scratch_dir_make(&dir) || setenv("XDG_RUNTIME_DIR", dir.path, 1);
}

static int remove_dir(void **state) {
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", dir.path);
    return system(command);
}

static void lies_in(const char *runtime, const char *folder) {
    char path[TESS__LOCAL_PATH], want[TESS__LOCAL_PATH];
    setenv("XDG_RUNTIME_DIR", runtime, 1);
    assert_int_equal(tess__local_path("job", path), TESS_OK);
    snprintf(want, sizeof want, "%s/job.sock", folder);
    assert_string_equal(path, want);
    setenv("XDG_RUNTIME_DIR", dir.path, 1);
}

static void test_local__the_folder_is_this_users_alone(void **state) {
    (void)state;
    char own[80], shared[32], deep[80], path[TESS__LOCAL_PATH];
    snprintf(own, sizeof own, "%s/tessera", dir.path);
    snprintf(shared, sizeof shared, "/tmp/tessera-%u", (unsigned)geteuid());
    lies_in(dir.path, own);
    lies_in("", shared);
    lies_in(dir.path + 1, shared); /* no whole path */
    snprintf(deep, sizeof deep, "%s/a-folder-whose-name-leaves-no-room", dir.path);
    assert_int_equal(mkdir(deep, 0700), 0);
    lies_in(deep, shared);
    assert_int_equal(chmod(dir.path, 0750), 0); /* open to others */
    lies_in(dir.path, shared);
    assert_int_equal(chmod(dir.path, 0700), 0);
    assert_int_equal(chmod(own, 0755), 0);
    assert_int_equal(tess__local_path("job", path), TESS_E_INVALID);
    assert_non_null(strstr(tess_last_error(), "must be a directory of this user's alone"));
    assert_int_equal(chmod(own, 0700), 0);
}

static void test_local__one_listens_and_who_is_gone_makes_room(void **state) {
    (void)state;
    char path[TESS__LOCAL_PATH], other[TESS__LOCAL_PATH], notes[80];
    int first = -1, second = -1, to = -1;
    assert_int_equal(tess__local_path("one", path), TESS_OK);
    assert_int_equal(tess__local_connect(path, &to), ENOENT);
    assert_int_equal(tess__local_listen(path, &first), TESS_OK);
    assert_int_not_equal(tess__local_listen(path, &second), TESS_OK);
    assert_int_equal(tess__local_connect(path, &to), 0);
    assert_true(tess__local_is_ours(to));
    snprintf(notes, sizeof notes, "%s/tessera/notes", dir.path);
    assert_int_equal(scratch_write(&dir, "tessera/notes", "x", 1), 0);
    assert_int_equal(tess__local_path("other", other), TESS_OK); /* which looks for what is left over */
    assert_int_equal(access(path, F_OK), 0);
    close(first);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(tess__local_listen(path, &second), TESS_OK); /* in its place */
    close(second);
    assert_int_equal(tess__local_path("other", other), TESS_OK);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(access(notes, F_OK), 0);
    close(to);
}

static void test_local__a_name_that_fits_no_address_is_an_error(void **state) {
    (void)state;
    char path[2 * TESS__LOCAL_PATH];
    int fd = -1, to = -1;
    memset(path, 'n', sizeof path);
    path[0] = '/';
    path[TESS__LOCAL_PATH] = 0;
    assert_int_equal(tess__local_connect(path, &fd), ENAMETOOLONG);
    path[TESS__LOCAL_PATH - 1] = 0;
    assert_int_equal(tess__local_connect(path, &fd), ENOENT);
    memcpy(path, dir.path, strlen(dir.path));
    path[strlen(dir.path)] = '/';
    path[TESS__LOCAL_PATH - 1] = 'n';
    assert_int_equal(tess__local_listen(path, &fd), TESS_E_INVALID);
    assert_non_null(strstr(tess_last_error(), "n: File name too long"));
    assert_int_equal(fd, -1);
    path[TESS__LOCAL_PATH - 1] = 0;
    assert_int_equal(tess__local_listen(path, &fd), TESS_OK);
    assert_int_equal(tess__local_connect(path, &to), 0);
    close(fd);
    close(to);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_local__the_folder_is_this_users_alone),
        cmocka_unit_test(test_local__one_listens_and_who_is_gone_makes_room),
        cmocka_unit_test(test_local__a_name_that_fits_no_address_is_an_error),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
