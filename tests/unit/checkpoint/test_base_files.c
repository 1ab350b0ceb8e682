/* SPDX-License-Identifier: BSD-3-Clause */
/* The files of frozen parameters by their checksums: each is read whole, whatever its size; what cannot be one is
 * refused by its path, and a base that a checkpoint does not name is no matter. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/checkpoint/base_files.h"
#include "core/checkpoint/checksum.h"
#include "tests/unit/scratch_dir.h"

enum { MOST = (4 << 20) + 77 /* more than is read at once */ };
static scratch_dir dir;
static unsigned char content[MOST];

static int make_dir(void **state) {
    (void)state;
    for (size_t i = 0; i < MOST; i++)
        content[i] = (unsigned char)((i * 2654435761u) >> 13);
    return scratch_dir_make(&dir);
}

static int remove_dir(void **state) {
    (void)state;
    scratch_dir_remove(&dir);
    return 0;
}

static const char *file_of(const char *name, size_t bytes) {
    assert_int_equal(scratch_write(&dir, name, content, bytes), 0);
    return scratch_path(&dir, name);
}

static void sum_of(size_t bytes, char text[33]) {
    char path[512];
    tess__base_files b;
    snprintf(path, sizeof path, "%s", file_of("one", bytes));
    assert_int_equal(tess__base_files_read(&tess__disk_real, (const char *const[]){ path, NULL }, &b), TESS_OK);
    assert_int_equal(b.n, 1);
    assert_string_equal(b.files[0].name, "one");
    assert_int_equal(b.files[0].bytes, bytes);
    assert_int_equal(b.files[0].n_sums, 1);
    tess__sum_text(b.files[0].sums[0], text);
    tess__base_files_free(&b);
    assert_int_equal(b.n, 0);
}

/* A changed byte anywhere is another sum. */
static void test_base_files__each_is_read_whole(void **state) {
    (void)state;
    static const size_t sizes[] = { 1, 4095, 4 << 20, (4 << 20) + 1, MOST };
    char sum[33], other[33];
    if (!tess__sum_known())
        skip();
    for (int i = 0; i < 5; i++) {
        const size_t places[] = { 0, sizes[i] / 2, sizes[i] - 1 };
        sum_of(sizes[i], sum);
        for (int k = 0; k < 3; k++) {
            content[places[k]] ^= 1;
            sum_of(sizes[i], other);
            assert_string_not_equal(sum, other);
            content[places[k]] ^= 1;
        }
        sum_of(sizes[i], other);
        assert_string_equal(sum, other);
    }
}

static void test_base_files__what_is_none_is_refused_by_its_path(void **state) {
    (void)state;
    char good[512], bad[512], name[TESS__FILE_NAME + 8], want[700];
    tess__base_files b = { .n = 7 };
    if (!tess__sum_known())
        skip();
    snprintf(good, sizeof good, "%s", file_of("good", 5));
    memset(name, 'n', sizeof name);
    name[TESS__FILE_NAME] = 0;
    const struct {
        const char *name, *why;
    } cases[] = { { "empty", "empty, or a name longer than" },
                  { name, "empty, or a name longer than" },
                  { "none", "No such file or directory" } };
    for (int i = 0; i < 3; i++) {
        snprintf(bad, sizeof bad, "%s", i == 2 ? scratch_path(&dir, "none") : file_of(cases[i].name, i));
        assert_int_equal(tess__base_files_read(&tess__disk_real, (const char *const[]){ good, bad, NULL }, &b),
                         TESS_E_DATA);
        snprintf(want, sizeof want, "%s: %s", bad, cases[i].why);
        assert_non_null(strstr(tess_last_error(), want));
        assert_int_equal(b.n, 7);
    }
    name[TESS__FILE_NAME - 1] = 0; /* the longest */
    snprintf(bad, sizeof bad, "%s", file_of(name, 1));
    assert_int_equal(tess__base_files_read(&tess__disk_real, (const char *const[]){ bad, good, NULL }, &b), TESS_OK);
    assert_int_equal(b.n, 2);
    assert_string_equal(b.files[1].name, "good");
    tess__manifest m = { .n_base = 1, .base = &b.files[1] }; /* whatever else there is, in any order */
    assert_int_equal(tess__base_files_check("step", &m, &b), TESS_OK);
    tess__data_file longer = b.files[1];
    longer.bytes++;
    m.base = &longer;
    assert_int_equal(tess__base_files_check("step", &m, &b), TESS_E_DATA);
    tess__base_files_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_files__each_is_read_whole),
        cmocka_unit_test(test_base_files__what_is_none_is_refused_by_its_path),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
