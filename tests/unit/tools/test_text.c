/* SPDX-License-Identifier: BSD-3-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tools/train/data/text.h"
#include "tests/unit/scratch_dir.h"

static scratch_dir dir;

static int make_dir(void **state) {
    (void)state;
    return scratch_dir_make(&dir);
}

static int remove_dir(void **state) {
    (void)state;
    scratch_dir_remove(&dir);
    return 0;
}

static void test_text__a_file_keeps_its_last_tenth_out(void **state) {
    (void)state;
    char bytes[100];
    for (int i = 0; i < 100; i++)
        bytes[i] = (char)i;
    assert_int_equal(scratch_write(&dir, "a.txt", bytes, 100), 0);
    tool_text text;
    assert_int_equal(tool_text_load(scratch_path(&dir, "a.txt"), 4, &text), TESS_OK);
    assert_int_equal(text.n_bytes, 100);
    assert_int_equal(text.n_train, 90);
    assert_memory_equal(text.bytes, bytes, 100);
    tool_text_free(&text);
    assert_null(text.bytes);
}

static void test_text__a_directory_is_read_in_the_order_of_names(void **state) {
    (void)state;
    char want[41] = "";
    for (int i = 0; i < 20; i++)
        strcat(want, i < 10 ? "B1" : "b2");
    assert_int_equal(scratch_write(&dir, "b", want + 20, 20), 0);
    assert_int_equal(scratch_write(&dir, "B", want, 20), 0);
    assert_int_equal(scratch_write(&dir, ".hidden", "no", 2), 0);
    assert_int_equal(mkdir(scratch_path(&dir, "folder"), 0700), 0);
    tool_text text;
    assert_int_equal(tool_text_load(dir.path, 2, &text), TESS_OK);
    assert_int_equal(text.n_bytes, 40);
    assert_memory_equal(text.bytes, want, 40);
    tool_text_free(&text);
}

static void assert_refused(const char *path, const char *phrase) {
    tool_text text = { .n_bytes = 77 };
    assert_int_equal(tool_text_load(path, 8, &text), TESS_E_DATA);
    assert_int_equal(text.n_bytes, 77);
    assert_non_null(strstr(tess_last_error(), path));
    if (!strstr(tess_last_error(), phrase))
        fail_msg("'%s' lacks '%s'", tess_last_error(), phrase);
    assert_null(strchr(tess_last_error(), '\n'));
}

static void test_text__empty_short_and_missing_text_is_refused(void **state) {
    (void)state;
    assert_refused(dir.path, "0 bytes");
    assert_int_equal(scratch_write(&dir, "empty", "", 0), 0);
    assert_refused(scratch_path(&dir, "empty"), "0 bytes");
    assert_int_equal(scratch_write(&dir, "short", "0123456789", 10), 0);
    assert_refused(scratch_path(&dir, "short"), "10 bytes of text, expected at least 90");
    assert_refused(scratch_path(&dir, "none"), "No such file");
    assert_int_equal(mkfifo(scratch_path(&dir, "fifo"), 0600), 0);
    assert_refused(scratch_path(&dir, "fifo"), "not a file");
}

static void test_text__training_windows_stay_inside_and_cover_the_part(void **state) {
    (void)state;
    unsigned char bytes[100] = { 0 };
    tool_text text = { .bytes = bytes, .n_bytes = 100, .n_train = 90 };
    char seen[90] = { 0 };
    for (uint64_t sample = 0; sample < 5000; sample++) {
        const unsigned char *window = tool_text_train_window(&text, 1, sample, 8);
        assert_ptr_equal(window, tool_text_train_window(&text, 1, sample, 8));
        assert_in_range(window - bytes, 0, 90 - 9);
        seen[window - bytes] = 1;
    }
    for (int i = 0; i <= 90 - 9; i++)
        assert_int_equal(seen[i], 1);
}

static void test_text__validation_windows_predict_every_held_out_byte_once(void **state) {
    (void)state;
    unsigned char bytes[200] = { 0 };
    for (int64_t context = 1; context <= 19; context++) {
        tool_text text = { .bytes = bytes, .n_bytes = 200, .n_train = 180 };
        uint64_t expected = 181;
        for (uint64_t i = 0; i < tool_text_valid_windows(&text, context); i++) {
            int64_t n = 0;
            const unsigned char *window = tool_text_valid_window(&text, i, context, &n);
            assert_int_equal(window + 1 - bytes, expected);
            assert_in_range(n, 1, context);
            expected += (uint64_t)n;
        }
        assert_int_equal(expected, 200);
    }
}

static void test_text__documentation_is_built_in(void **state) {
    (void)state;
    tool_text text;
    tess_status status = tool_text_load(NULL, 8, &text);
    if (status != TESS_OK) { /* a tree without documents still builds */
        assert_int_equal(status, TESS_E_DATA);
        return;
    }
    assert_true(text.n_bytes > text.n_train);
    tool_text_free(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_text__a_file_keeps_its_last_tenth_out, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_text__a_directory_is_read_in_the_order_of_names, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_text__empty_short_and_missing_text_is_refused, make_dir, remove_dir),
        cmocka_unit_test(test_text__training_windows_stay_inside_and_cover_the_part),
        cmocka_unit_test(test_text__validation_windows_predict_every_held_out_byte_once),
        cmocka_unit_test(test_text__documentation_is_built_in),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
