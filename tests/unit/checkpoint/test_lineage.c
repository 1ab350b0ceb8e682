/* SPDX-License-Identifier: BSD-3-Clause */
/* Which checkpoint belongs to whose past, which go, which stay, and which folders are checkpoints at all. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "core/checkpoint/saved.h"
#include "core/checkpoint/store.h"

static const tess__lineage none = { .n = 0 };

static void test_lineage__a_step_belongs_until_its_run_was_left(void **state) {
    (void)state;
    const tess__lineage l = { .n = 2, .runs = { { 7, 20 }, { 9, INT64_MAX } } };
    assert_int_equal(tess__lineage_id(&l), 9);
    assert_int_equal(tess__lineage_id(&none), 0);
    assert_true(tess__lineage_has(&l, 7, 0) && tess__lineage_has(&l, 7, 20));
    assert_false(tess__lineage_has(&l, 7, 21));
    assert_true(tess__lineage_has(&l, 9, 0) && tess__lineage_has(&l, 9, INT64_MAX));
    assert_false(tess__lineage_has(&l, 8, 1) || tess__lineage_has(&l, 0, 1));
    assert_true(tess__lineage_has(&none, 0, 5)); /* of before there were any */
    assert_false(tess__lineage_has(&none, 7, 5));
}

static void test_lineage__a_branch_ends_the_run_before_and_forgets_the_oldest(void **state) {
    (void)state;
    tess__lineage l = { .n = 0 };
    for (uint64_t step = 0; step < TESS__LINEAGE_MOST; step++) {
        tess__lineage_branch(&l, step);
        assert_int_equal(l.n, step + 1);
        assert_int_equal(l.runs[step].until, INT64_MAX);
        assert_int_not_equal(l.runs[step].id, 0);
        if (step) {
            assert_int_equal(l.runs[step - 1].until, step);
            assert_int_not_equal(l.runs[step - 1].id, l.runs[step].id);
        }
    }
    tess__lineage before = l;
    tess__lineage_branch(&l, 99);
    assert_int_equal(l.n, TESS__LINEAGE_MOST);
    before.runs[TESS__LINEAGE_MOST - 1].until = 99;
    assert_memory_equal(l.runs, before.runs + 1, (TESS__LINEAGE_MOST - 1) * sizeof l.runs[0]);
    assert_int_equal(l.runs[TESS__LINEAGE_MOST - 1].until, INT64_MAX);
    assert_int_not_equal(l.runs[TESS__LINEAGE_MOST - 1].id, before.runs[TESS__LINEAGE_MOST - 1].id);
}

static tess__entry entry_of(uint64_t step, int not_finite) {
    return (tess__entry){
        .step = step, .reads = 1, .not_finite = not_finite, .lineage = { .n = 1, .runs = { { 1, INT64_MAX } } }
    };
}

static void test_lineage__what_is_not_finite_displaces_nothing_that_is(void **state) {
    (void)state;
    const tess__entry all[] = { entry_of(10, 0), entry_of(20, 1), entry_of(30, 0), entry_of(40, 1), entry_of(50, 1) };
    uint64_t doomed[5];
    assert_int_equal(tess__store_doomed(all, 5, &all[0].lineage, 50, 2, doomed), 1);
    assert_int_equal(doomed[0], 20);
    assert_int_equal(tess__store_doomed(all, 5, &all[0].lineage, 50, 1, doomed), 3);
    assert_true(doomed[0] == 10 && doomed[1] == 20 && doomed[2] == 40);
    assert_int_equal(tess__store_doomed(all, 5, &all[0].lineage, 49, 1, doomed), 2);
    assert_true(doomed[0] == 10 && doomed[1] == 20);
    assert_int_equal(tess__store_doomed(all, 0, &all[0].lineage, 50, 1, doomed), 0);
}

static void test_lineage__the_last_is_the_one_that_was_written_last(void **state) {
    (void)state;
    tess__entry all[] = { entry_of(10, 0), entry_of(20, 0), entry_of(30, 0) };
    assert_null(tess__store_last(all, 0));
    assert_ptr_equal(tess__store_last(all, 3), &all[2]); /* without orders the highest step */
    all[0].order = 5;
    all[1].order = 7;
    all[2].order = 6;
    assert_ptr_equal(tess__store_last(all, 3), &all[1]);
    all[1].reads = 0;
    assert_ptr_equal(tess__store_last(all, 3), &all[2]);
    all[0].reads = all[2].reads = 0;
    assert_null(tess__store_last(all, 3));
}

static void test_lineage__only_a_name_as_it_is_written_is_a_step(void **state) {
    (void)state;
    static const struct {
        const char *name;
        uint64_t step; /* UINT64_MAX - 1: of none */
    } cases[] = { { "step-000000", 0 },
                  { "step-000010", 10 },
                  { "step-999999", 999999 },
                  { "step-1234567", 1234567 },
                  { "step-18446744073709551615", UINT64_MAX },
                  { "step-18446744073709551616", UINT64_MAX - 1 },
                  { "step-", UINT64_MAX - 1 },
                  { "step-10", UINT64_MAX - 1 },
                  { "step-0000010", UINT64_MAX - 1 },
                  { "step-000010x", UINT64_MAX - 1 },
                  { "step--00010", UINT64_MAX - 1 },
                  { "step-+00010", UINT64_MAX - 1 },
                  { "step- 00010", UINT64_MAX - 1 },
                  { "steps000010", UINT64_MAX - 1 },
                  { "Step-000010", UINT64_MAX - 1 },
                  { "aside-1", UINT64_MAX - 1 },
                  { "", UINT64_MAX - 1 } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t step = 77;
        int is_step = tess__step_of(cases[i].name, &step);
        if (is_step != (cases[i].step != UINT64_MAX - 1) || (is_step && step != cases[i].step))
            fail_msg("'%s'", cases[i].name);
    }
    char path[PATH_MAX];
    assert_int_equal(tess__step_dir("d", 20, path), TESS_OK);
    assert_string_equal(path, "d/step-000020");
}

static void test_lineage__a_path_that_leaves_no_room_for_files_is_refused(void **state) {
    (void)state;
    static char dir[PATH_MAX + 2], path[PATH_MAX];
    tess__store store;
    tess__saved saved;
    const size_t most = PATH_MAX - 128 - sizeof "/step-000001"; /* of DIR */
    memset(dir, 'd', most);
    assert_int_equal(tess__step_dir(dir, 1, path), TESS_OK);
    assert_int_equal(strlen(path), PATH_MAX - 129);
    dir[most] = 'd';
    assert_int_equal(tess__step_dir(dir, 1, path), TESS_E_DATA);
    assert_non_null(strstr(tess_last_error(), "the path is longer than 4096 bytes"));
    memset(dir, 'd', PATH_MAX - 128);
    assert_int_equal(tess__store_open(&tess__disk_real, dir, &store), TESS_E_DATA);
    assert_non_null(strstr(tess_last_error(), "the path is longer than 4096 bytes"));
    assert_int_equal(tess__saved_open(&tess__disk_real, dir, &saved), TESS_E_DATA);
    assert_non_null(strstr(tess_last_error(), "the path is longer than 4096 bytes"));
    dir[PATH_MAX - 129] = 0; /* one less: the disk says what is wrong */
    assert_int_equal(tess__store_open(&tess__disk_real, dir, &store), TESS_E_DATA);
    assert_null(strstr(tess_last_error(), "the path is longer"));
    assert_int_equal(tess__saved_open(&tess__disk_real, dir, &saved), TESS_E_DATA);
    assert_null(strstr(tess_last_error(), "the path is longer"));
}

static void test_lineage__a_piece_has_a_name_of_each_kind(void **state) {
    (void)state;
    char text[TESS__TENSOR_NAME], expected[TESS__TENSOR_NAME];
    static const char *const words[] = { "", "param", "buffer", "program", "state0", "state1", "state2", "state3" };
    for (int kind = TESS__PIECE_PARAM; kind < TESS__PIECE_STATE0 + 4; kind++) {
        tess__piece_name got, name = { .kind = kind, .first = 12, .name = "w" };
        assert_int_equal(tess__piece_name_write(&name, text), TESS_OK);
        snprintf(expected, sizeof expected, "%s/w@12", words[kind]);
        assert_string_equal(text, expected);
        assert_int_equal(tess__piece_name_read(text, &got), 0);
        assert_int_equal(got.kind, kind);
        assert_int_equal(got.first, 12);
        assert_string_equal(got.name, "w");
    }
    static const char *const bad[] = { "state4/w@0",
                                       "para/w@0",
                                       "paramx/w@0",
                                       "/w@0",
                                       "param/w@",
                                       "param/w@x",
                                       "param/w@-1",
                                       "param/w@1x",
                                       "param@1/w",
                                       "param/w",
                                       "param/w@99999999999999999999",
                                       "" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        tess__piece_name got;
        if (tess__piece_name_read(bad[i], &got) != -1)
            fail_msg("'%s'", bad[i]);
    }
    tess__piece_name edge = { .kind = TESS__PIECE_PARAM };
    const size_t most = TESS__TENSOR_NAME - sizeof "param/@0";
    assert_true(most + 1 < sizeof edge.name);
    memset(edge.name, 'n', most);
    assert_int_equal(tess__piece_name_write(&edge, text), TESS_OK);
    assert_int_equal(strlen(text), TESS__TENSOR_NAME - 1);
    edge.name[most] = 'n';
    assert_int_equal(tess__piece_name_write(&edge, text), TESS_E_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lineage__a_step_belongs_until_its_run_was_left),
        cmocka_unit_test(test_lineage__a_branch_ends_the_run_before_and_forgets_the_oldest),
        cmocka_unit_test(test_lineage__what_is_not_finite_displaces_nothing_that_is),
        cmocka_unit_test(test_lineage__the_last_is_the_one_that_was_written_last),
        cmocka_unit_test(test_lineage__only_a_name_as_it_is_written_is_a_step),
        cmocka_unit_test(test_lineage__a_path_that_leaves_no_room_for_files_is_refused),
        cmocka_unit_test(test_lineage__a_piece_has_a_name_of_each_kind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
