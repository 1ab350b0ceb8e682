/* SPDX-License-Identifier: BSD-3-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#if TESSERA_HAVE_ZLIB
#include <zlib.h>
#endif

#include "tools/train/data/idx.h"
#include "tests/unit/scratch_dir.h"

enum { COUNT = 5, IMAGE_BYTES = 16 + COUNT * TOOL_IDX_PIXELS, LABEL_BYTES = 8 + COUNT };

static scratch_dir dir;
static unsigned char images[IMAGE_BYTES + 1], labels[LABEL_BYTES + 1];

static void put32(unsigned char *at, uint32_t value) {
    for (int i = 0; i < 4; i++)
        at[i] = (unsigned char)(value >> (24 - 8 * i));
}

static int setup(void **state) {
    (void)state;
    static const uint32_t image_header[] = { 0x803, COUNT, 28, 28 }, label_header[] = { 0x801, COUNT };
    for (int i = 0; i < 4; i++)
        put32(images + 4 * i, image_header[i]);
    for (int i = 0; i < 2; i++)
        put32(labels + 4 * i, label_header[i]);
    for (int i = 16; i < IMAGE_BYTES; i++)
        images[i] = (unsigned char)(i * 7);
    for (int i = 0; i < COUNT; i++)
        labels[8 + i] = (unsigned char)(9 - i);
    return scratch_dir_make(&dir);
}

static int teardown(void **state) {
    (void)state;
    scratch_dir_remove(&dir);
    return 0;
}

static void write_both(size_t image_bytes, size_t label_bytes) {
    assert_int_equal(scratch_write(&dir, "train-images-idx3-ubyte", images, image_bytes), 0);
    assert_int_equal(scratch_write(&dir, "train-labels-idx1-ubyte", labels, label_bytes), 0);
}

static void assert_loads(void) {
    tool_idx set;
    assert_int_equal(tool_idx_load(dir.path, "train", &set), TESS_OK);
    assert_int_equal(set.count, COUNT);
    assert_memory_equal(set.pixels, images + 16, COUNT * TOOL_IDX_PIXELS);
    assert_memory_equal(set.labels, labels + 8, COUNT);
    tool_idx_free(&set);
}

static void assert_refused(const char *file, const char *phrase) {
    tool_idx set = { .count = 99 };
    assert_int_equal(tool_idx_load(dir.path, "train", &set), TESS_E_DATA);
    assert_int_equal(set.count, 99);
    if (!strstr(tess_last_error(), file) || !strstr(tess_last_error(), phrase))
        fail_msg("'%s' lacks '%s' or '%s'", tess_last_error(), file, phrase);
    assert_null(strchr(tess_last_error(), '\n'));
}

static void test_idx__plain_files_load(void **state) {
    (void)state;
    write_both(IMAGE_BYTES, LABEL_BYTES);
    assert_loads();
}

static void test_idx__missing_files_are_named(void **state) {
    (void)state;
    assert_refused("train-images-idx3-ubyte", "no such file");
    write_both(IMAGE_BYTES, LABEL_BYTES);
    unlink(scratch_path(&dir, "train-labels-idx1-ubyte"));
    assert_refused("train-labels-idx1-ubyte", "no such file");
    assert_int_equal(mkdir(scratch_path(&dir, "train-labels-idx1-ubyte"), 0700), 0);
    assert_refused("train-labels-idx1-ubyte", "not a file");
}

static void test_idx__truncated_files_say_where_they_end(void **state) {
    (void)state;
    write_both(0, LABEL_BYTES);
    assert_refused("train-images", "offset 0: the file ends here");
    write_both(10, LABEL_BYTES);
    assert_refused("train-images", "offset 4: 5 items need 3936 bytes, the file holds at most 10");
    write_both(IMAGE_BYTES - 1, LABEL_BYTES);
    assert_refused("train-images", "offset 4: 5 items need 3936 bytes, the file holds at most 3935");
    write_both(IMAGE_BYTES, LABEL_BYTES - 1);
    assert_refused("train-labels", "offset 4: 5 items need 13 bytes, the file holds at most 12");
}

static void test_idx__more_data_than_announced_is_refused(void **state) {
    (void)state;
    write_both(IMAGE_BYTES + 1, LABEL_BYTES);
    assert_refused("train-images", "offset 3936: more data, expected the end of the file");
    write_both(IMAGE_BYTES, LABEL_BYTES + 1);
    assert_refused("train-labels", "offset 13: more data");
}

static void test_idx__wrong_headers_say_what_was_expected(void **state) {
    (void)state;
    put32(images, 0x801);
    write_both(IMAGE_BYTES, LABEL_BYTES);
    assert_refused("train-images", "offset 0: the magic number of images is 2049 (0x00000801), expected 2051");
    put32(images, 0x803);
    put32(images + 8, 27);
    write_both(IMAGE_BYTES, LABEL_BYTES);
    assert_refused("train-images", "offset 8: the number of rows is 27");
    put32(images + 8, 28);
    put32(images + 12, 0xffffffff);
    write_both(IMAGE_BYTES, LABEL_BYTES);
    assert_refused("train-images", "offset 12: the number of columns is 4294967295");
    put32(images + 12, 28);
    put32(images + 4, 0);
    write_both(IMAGE_BYTES, LABEL_BYTES);
    assert_refused("train-images", "offset 4: 0 items");
    put32(images + 4, 0xffffffff);
    write_both(IMAGE_BYTES, LABEL_BYTES);
    assert_refused("train-images", "offset 4: 4294967295 items need");
}

static void test_idx__labels_out_of_range_or_number_are_refused(void **state) {
    (void)state;
    labels[8 + 3] = 10;
    write_both(IMAGE_BYTES, LABEL_BYTES);
    assert_refused("train-labels", "offset 11: label 10, expected 0 to 9");
    labels[8 + 3] = 1;
    put32(labels + 4, 4);
    write_both(IMAGE_BYTES, LABEL_BYTES - 1);
    assert_refused("train-labels", "offset 4: 4 labels, expected 5");
}

#if TESSERA_HAVE_ZLIB
static void write_gz(const char *name, const void *bytes, unsigned n) {
    gzFile f = gzopen(scratch_path(&dir, name), "wb");
    assert_non_null(f);
    assert_int_equal(gzwrite(f, bytes, n), n);
    assert_int_equal(gzclose(f), Z_OK);
}

static void test_idx__gzipped_files_load(void **state) {
    (void)state;
    write_gz("train-images-idx3-ubyte.gz", images, IMAGE_BYTES);
    write_gz("train-labels-idx1-ubyte.gz", labels, LABEL_BYTES);
    assert_loads();
}

static void test_idx__cut_or_damaged_gzip_is_refused(void **state) {
    (void)state;
    unsigned char packed[8192];
    write_gz("train-images-idx3-ubyte.gz", images, IMAGE_BYTES);
    FILE *f = fopen(scratch_path(&dir, "train-images-idx3-ubyte.gz"), "rb");
    size_t n = fread(packed, 1, sizeof packed, f);
    fclose(f);
    assert_in_range(n, 40, sizeof packed - 1);
    for (size_t cut = 1; cut < n; cut++) { /* every length but the whole one */
        assert_int_equal(scratch_write(&dir, "train-images-idx3-ubyte.gz", packed, cut), 0);
        assert_refused("train-images-idx3-ubyte.gz", "");
    }
    packed[n - 6] ^= 1; /* in the checksum */
    assert_int_equal(scratch_write(&dir, "train-images-idx3-ubyte.gz", packed, n), 0);
    assert_refused("train-images-idx3-ubyte.gz", "cannot be decompressed");
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_idx__plain_files_load, setup, teardown),
        cmocka_unit_test_setup_teardown(test_idx__missing_files_are_named, setup, teardown),
        cmocka_unit_test_setup_teardown(test_idx__truncated_files_say_where_they_end, setup, teardown),
        cmocka_unit_test_setup_teardown(test_idx__more_data_than_announced_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_idx__wrong_headers_say_what_was_expected, setup, teardown),
        cmocka_unit_test_setup_teardown(test_idx__labels_out_of_range_or_number_are_refused, setup, teardown),
#if TESSERA_HAVE_ZLIB
        cmocka_unit_test_setup_teardown(test_idx__gzipped_files_load, setup, teardown),
        cmocka_unit_test_setup_teardown(test_idx__cut_or_damaged_gzip_is_refused, setup, teardown),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
