/* SPDX-License-Identifier: BSD-3-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/base/json_scan.h"
#include "tools/support/safetensors.h"
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

static const tool_tensor two[2] = {
    { .name = "h.0.weight", .dtype = TESS_F32, .ndim = 2, .shape = { 2, 3 } },
    { .name = "odd \"name\"\\\n\xc3\xa9", .dtype = TESS_F32, .ndim = 0 },
};

static void write_two(const char *path) {
    float values[7] = { 0, 1, 2, 3, 4, 5, 42 };
    tool_safetensors_writer *w;
    assert_int_equal(tool_safetensors_create(path, two, 2, &w), TESS_OK);
    assert_int_equal(tool_safetensors_write(w, values, 5), TESS_OK); /* pieces may end anywhere */
    assert_int_equal(tool_safetensors_write(w, (char *)values + 5, sizeof values - 5), TESS_OK);
    assert_int_equal(tool_safetensors_commit(w), TESS_OK);
}

static uint64_t data_offset(const char *path) {
    uint64_t length;
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fread(&length, sizeof length, 1, f), 1);
    fclose(f);
    return sizeof length + length;
}

static void test_safetensors__what_was_written_is_read(void **state) {
    (void)state;
    const char *path = scratch_path(&dir, "model.safetensors");
    write_two(path);
    assert_int_equal(scratch_entries(&dir), 1);
    tool_safetensors *s;
    assert_int_equal(tool_safetensors_open(path, &s), TESS_OK);
    uint64_t n;
    const tool_tensor *list = tool_safetensors_list(s, &n);
    assert_int_equal(n, 2);
    assert_string_equal(list[0].name, two[0].name);
    assert_string_equal(list[1].name, two[1].name);
    assert_int_equal(list[0].ndim, 2);
    assert_int_equal(list[0].shape[0], 2);
    assert_int_equal(list[0].shape[1], 3);
    assert_int_equal(data_offset(path) % 8, 0);
    assert_int_equal(list[1].elems, 1);
    float got[3];
    assert_int_equal(tool_safetensors_read(s, tool_safetensors_find(s, "h.0.weight"), 2, 3, got), TESS_OK);
    assert_memory_equal(got, ((float[]){ 2, 3, 4 }), sizeof got);
    assert_int_equal(tool_safetensors_read(s, tool_safetensors_find(s, two[1].name), 0, 1, got), TESS_OK);
    assert_true(got[0] == 42);
    assert_null(tool_safetensors_find(s, "h.0.bias"));
    assert_int_equal(tool_safetensors_read(s, &list[0], 4, 3, got), TESS_E_DATA);
    assert_int_equal(tool_safetensors_read(s, &list[0], UINT64_MAX, 3, got), TESS_E_DATA);
    tool_safetensors_close(s);
}

static void test_safetensors__a_discarded_or_short_file_leaves_nothing(void **state) {
    (void)state;
    const char *path = scratch_path(&dir, "model.safetensors");
    float values[7] = { 0 };
    tool_safetensors_writer *w;
    assert_int_equal(tool_safetensors_create(path, two, 2, &w), TESS_OK);
    assert_int_equal(scratch_entries(&dir), 1);
    tool_safetensors_discard(w);
    assert_int_equal(scratch_entries(&dir), 0);
    assert_int_equal(tool_safetensors_create(path, two, 2, &w), TESS_OK);
    assert_int_equal(tool_safetensors_write(w, values, 24), TESS_OK);
    assert_int_equal(tool_safetensors_commit(w), TESS_E_INTERNAL);
    assert_int_equal(scratch_entries(&dir), 0);
    assert_int_equal(tool_safetensors_create(path, two, 2, &w), TESS_OK);
    assert_int_equal(tool_safetensors_write(w, values, 28), TESS_OK);
    assert_int_equal(tool_safetensors_write(w, values, 1), TESS_E_INTERNAL);
    tool_safetensors_discard(w);
    tool_safetensors_discard(NULL);
}

static void test_safetensors__a_full_disk_leaves_the_old_file(void **state) {
    (void)state;
    const char *path = scratch_path(&dir, "model.safetensors");
    write_two(path);
    tool_tensor large = { .name = "large", .dtype = TESS_F32, .ndim = 1, .shape = { 4096 } };
    float values[4096] = { 0 };
    struct rlimit old, limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    limit = (struct rlimit){ 4096, old.rlim_max };
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    tool_safetensors_writer *w;
    tess_status created = tool_safetensors_create(path, &large, 1, &w);
    tess_status status = created == TESS_OK ? tool_safetensors_write(w, values, sizeof values) : created;
    if (created == TESS_OK)
        tool_safetensors_discard(w);
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, handler);
    assert_int_equal(created, TESS_OK);
    assert_int_equal(status, TESS_E_DATA);
    assert_non_null(strstr(tess_last_error(), "File too large"));
    assert_non_null(strstr(tess_last_error(), path));
    assert_int_equal(scratch_entries(&dir), 1);
    tool_safetensors *s;
    assert_int_equal(tool_safetensors_open(path, &s), TESS_OK);
    assert_non_null(tool_safetensors_find(s, "h.0.weight"));
    tool_safetensors_close(s);
}

static void test_safetensors__an_unwritable_place_is_named(void **state) {
    (void)state;
    tool_safetensors_writer *w = NULL;
    assert_int_equal(tool_safetensors_create("/nonexistent/x.safetensors", two, 2, &w), TESS_E_DATA);
    assert_null(w);
    assert_non_null(strstr(tess_last_error(), "/nonexistent/x.safetensors: cannot be written: No such file"));
}

/* ---- files made by hand ------------------------------------------------------------------------ */
static void write_raw(const char *header, uint64_t announced, size_t data_bytes) {
    unsigned char bytes[4096] = { 0 };
    size_t length = strlen(header);
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(announced >> (8 * i));
    memcpy(bytes + 8, header, length);
    for (size_t i = 0; i < data_bytes; i++)
        bytes[8 + length + i] = (unsigned char)i;
    assert_int_equal(scratch_write(&dir, "raw", bytes, 8 + length + data_bytes), 0);
}

static void assert_refused(const char *header, size_t data_bytes, const char *phrase) {
    tool_safetensors *s = NULL;
    write_raw(header, strlen(header), data_bytes);
    assert_int_equal(tool_safetensors_open(scratch_path(&dir, "raw"), &s), TESS_E_DATA);
    assert_null(s);
    if (!strstr(tess_last_error(), phrase) || !strstr(tess_last_error(), dir.path))
        fail_msg("for %s: '%s' lacks '%s'", header, tess_last_error(), phrase);
    assert_null(strchr(tess_last_error(), '\n'));
}

#define T(name, dtype, shape, begin, end)                                                                              \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"

static void test_safetensors__other_writers_files_are_read(void **state) {
    (void)state;
    static const char header[] =
        " { \"__metadata__\" : { \"a\" : [ 1, {\"b\": null}, \"x\\\"y\" ] } , "
        "\"b\":{\"data_offsets\":[4,12],\"shape\":[2, 1, 1],\"dtype\":\"F32\"}, " T(
            "\\u0061\\ud83d\\ude00", "BF16", "[2]", "0", "4") "," T("e", "F16", "[0,3]", "12",
                                                                    "12") "," T("z", "F64", "[]", "12", "20") "}  ";
    write_raw(header, sizeof header - 1, 20);
    tool_safetensors *s;
    tess_status status = tool_safetensors_open(scratch_path(&dir, "raw"), &s);
    if (status != TESS_OK)
        fail_msg("%s", tess_last_error());
    uint64_t n;
    tool_safetensors_list(s, &n);
    assert_int_equal(n, 4);
    const tool_tensor *t = tool_safetensors_find(s, "a\xf0\x9f\x98\x80");
    assert_non_null(t);
    float got[2];
    assert_int_equal(tool_safetensors_read(s, t, 0, 2, got), TESS_OK);
    uint32_t want[2] = { 0x01000000, 0x03020000 };
    assert_memory_equal(got, want, 8);
    assert_int_equal(tool_safetensors_find(s, "e")->elems, 0);
    double wide;
    memcpy(&wide, (unsigned char[]){ 12, 13, 14, 15, 16, 17, 18, 19 }, 8);
    assert_int_equal(tool_safetensors_read(s, tool_safetensors_find(s, "z"), 0, 1, got), TESS_OK);
    assert_true(got[0] == (float)wide);
    tool_safetensors_close(s);
}

static void test_safetensors__half_precision_values_are_exact(void **state) {
    (void)state;
    static const char header[] = "{" T("h", "F16", "[8]", "0", "16") "}";
    static const uint16_t halves[8] = { 0x3c00, 0xc000, 0x0001, 0x8001, 0x03ff, 0x7bff, 0x0400, 0xfc00 };
    static const float want[8] = { 1, -2, 0x1p-24f, -0x1p-24f, 1023 * 0x1p-24f, 65504, 0x1p-14f, -__builtin_inff() };
    unsigned char bytes[8 + sizeof header - 1 + 16] = { sizeof header - 1 };
    memcpy(bytes + 8, header, sizeof header - 1);
    memcpy(bytes + 8 + sizeof header - 1, halves, 16);
    assert_int_equal(scratch_write(&dir, "raw", bytes, sizeof bytes), 0);
    tool_safetensors *s;
    float got[8];
    assert_int_equal(tool_safetensors_open(scratch_path(&dir, "raw"), &s), TESS_OK);
    assert_int_equal(tool_safetensors_read(s, tool_safetensors_find(s, "h"), 0, 8, got), TESS_OK);
    assert_memory_equal(got, want, sizeof want);
    tool_safetensors_close(s);
}

static void test_safetensors__bad_headers_are_refused_at_their_place(void **state) {
    (void)state;
    assert_refused("[]", 0, "offset 8: the header is not as expected here: expected '{'");
    assert_refused("{", 0, "offset 9: the header is not as expected here: expected '\"'");
    assert_refused("{}x", 0, "expected the end");
    assert_refused("{\"a\":{}}", 0, "expected '\"'");
    assert_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "expected dtype, shape and data_offsets");
    assert_refused("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", 4, "expected dtype, shape and data_offsets");
    assert_refused("{" T("a", "F31", "[1]", "0", "4") "}", 4, "a known dtype");
    assert_refused("{" T("a", "F32", "[-1]", "0", "4") "}", 4, "a whole number");
    assert_refused("{" T("a", "F32", "[1.5]", "0", "4") "}", 4, "expected ']'");
    assert_refused("{" T("a", "F32", "[99999999999999999999]", "0", "4") "}", 4, "a smaller number");
    assert_refused("{" T("a", "F32", "[4294967296,4294967296]", "0", "0") "}", 0, "fewer than 2^60");
    assert_refused("{" T("a", "F32", "[1,1,1,1,1,1,1,1,1]", "0", "4") "}", 4, "at most 8 dimensions");
    assert_refused("{" T("a\\u0000b", "F32", "[1]", "0", "4") "}", 4, "null character");
    assert_refused("{\"a\x01\":{}}", 4, "no control character");
    assert_refused("{\"__metadata__\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}", 0,
                   "less nesting");
}

/* The format's limit; the file is a hole. */
static void test_safetensors__a_header_beyond_the_formats_limit_is_refused(void **state) {
    (void)state;
    const uint64_t length = 100000001;
    unsigned char start[8];
    tool_safetensors *s = NULL;
    for (int i = 0; i < 8; i++)
        start[i] = (unsigned char)(length >> (8 * i));
    assert_int_equal(scratch_write(&dir, "large", start, sizeof start), 0);
    assert_int_equal(truncate(scratch_path(&dir, "large"), 100000100), 0);
    assert_int_equal(tool_safetensors_open(scratch_path(&dir, "large"), &s), TESS_E_DATA);
    assert_non_null(strstr(tess_last_error(), "a header of 100000001 bytes, expected at most 100000000"));
}

static void test_safetensors__tensors_that_do_not_fill_the_file_are_refused(void **state) {
    (void)state;
    assert_refused("{" T("a", "F32", "[1]", "0", "4") "}", 3, "'a' lies at 0 to 4, expected 4 bytes within 3");
    assert_refused("{" T("a", "F32", "[1]", "0", "8") "}", 8, "'a' lies at 0 to 8, expected 4 bytes");
    assert_refused("{" T("a", "F32", "[1]", "8", "4") "}", 8, "'a' lies at 8 to 4");
    assert_refused("{" T("a", "F32", "[1]", "0", "4") "}", 6, "2 bytes belong to no tensor");
    assert_refused("{" T("a", "F32", "[1]", "4", "8") "}", 8, "'a' begins at offset 4 of the data, expected 0");
    assert_refused("{" T("a", "F32", "[2]", "0", "8") "," T("b", "F32", "[1]", "4", "8") "}", 8,
                   "'b' begins at offset 4");
    assert_refused("{" T("a", "F32", "[1]", "0", "4") "," T("a", "F32", "[1]", "4", "8") "}", 8, "'a' appears twice");
}

static void test_safetensors__truncated_files_are_refused(void **state) {
    (void)state;
    const char *path = scratch_path(&dir, "whole");
    unsigned char bytes[1024];
    write_two(path);
    FILE *f = fopen(path, "rb");
    size_t n = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    assert_in_range(n, 100, sizeof bytes - 1);
    for (size_t cut = 0; cut < n; cut++) {
        tool_safetensors *s = NULL;
        assert_int_equal(scratch_write(&dir, "cut", bytes, cut), 0);
        assert_int_equal(tool_safetensors_open(scratch_path(&dir, "cut"), &s), TESS_E_DATA);
    }
    for (int i = 0; i < 8; i++)
        bytes[i] = 0xff;
    tool_safetensors *s = NULL;
    assert_int_equal(scratch_write(&dir, "cut", bytes, n), 0);
    assert_int_equal(tool_safetensors_open(scratch_path(&dir, "cut"), &s), TESS_E_DATA);
    assert_non_null(strstr(tess_last_error(), "offset 0: a header of 18446744073709551615 bytes"));
    assert_int_equal(tool_safetensors_open("/dev/zero", &s), TESS_E_DATA);
    assert_non_null(strstr(tess_last_error(), "not a file"));
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(test_safetensors__##name, make_dir, remove_dir)
    const struct CMUnitTest tests[] = {
        TEST(what_was_written_is_read),
        TEST(a_discarded_or_short_file_leaves_nothing),
        TEST(a_full_disk_leaves_the_old_file),
        TEST(an_unwritable_place_is_named),
        TEST(other_writers_files_are_read),
        TEST(half_precision_values_are_exact),
        TEST(bad_headers_are_refused_at_their_place),
        TEST(a_header_beyond_the_formats_limit_is_refused),
        TEST(tensors_that_do_not_fill_the_file_are_refused),
        TEST(truncated_files_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
