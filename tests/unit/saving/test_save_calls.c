/* SPDX-License-Identifier: BSD-3-Clause */
/* Saving, waiting, loading and listing as a program calls them: what is refused in which words and whether the run may
 * go on, bounds of what is given, and what comes back of it. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <limits.h>
#include <signal.h>
#include <sys/resource.h>

#include "core/base/log.h"
#include "core/engine/state.h"
#include "core/saving/saver.h"
#include "tests/support/toy.h"
#include "tests/unit/heap_held.h"
#include "tests/unit/scratch_dir.h"

static scratch_dir dir;
static toy model;

static int make_dir(void **state) {
    (void)state;
    return scratch_dir_make(&dir);
}

static int remove_dir(void **state) {
    (void)state;
    return scratch_tree_remove(&dir);
}

static tess *declared(uint32_t async) {
    tess_options o = { .struct_size = sizeof o, .optimizer = "adamw", .checkpoint = async, .microbatches = 2 };
    tess *t = NULL;
    assert_int_equal(tess_open(&o, &t), TESS_OK);
    assert_int_equal(toy_declare(t, &model, 0), TESS_OK);
    return t;
}

static tess *opened(uint32_t async) {
    tess *t = declared(async);
    assert_int_equal(tess_shard(t, toy_fill, NULL), TESS_OK);
    return t;
}

static void train(tess *t) {
    const tess_optimizer_options step = { .struct_size = sizeof step, .lr = 0.01f };
    double loss;
    for (int k = 0; k < 2; k++)
        assert_int_equal(toy_pass(t, &model, TESS_PASS_TRAIN, k, &loss), TESS_OK);
    assert_int_equal(tess_step(t, &step), TESS_OK);
}

static tess_checkpoint_options to_dir(void) {
    return (tess_checkpoint_options){ .struct_size = sizeof(tess_checkpoint_options), .dir = dir.path };
}

static tess_checkpoint_load_options from_path(const char *path) {
    return (tess_checkpoint_load_options){ .struct_size = sizeof(tess_checkpoint_load_options), .path = path };
}

/* Refused for good: the engine says the same again. */
static void refuses(tess *t, const tess_checkpoint_options *o, tess_status status, const char *why) {
    assert_int_equal(tess_checkpoint_save(t, o), status);
    assert_string_equal(tess_last_error(), why);
    assert_int_equal(tess_checkpoint_wait(t, NULL), status);
    assert_int_equal(tess_close(t), status);
}

static void test_save_calls__what_cannot_be_saved_is_said(void **state) {
    (void)state;
    tess_checkpoint_options o = to_dir();
    double loss, scores[] = { NAN, INFINITY, -INFINITY };
    refuses(declared(0), &o, TESS_E_INVALID, "tess_checkpoint_save before tess_shard");
    tess *t = opened(0);
    assert_int_equal(toy_pass(t, &model, TESS_PASS_TRAIN, 0, &loss), TESS_OK);
    refuses(t, &o, TESS_E_INVALID, "tess_checkpoint_save within a step: save after tess_step or tess_grad_drop");
    t = opened(0);
    for (int k = 0; k < 2; k++)
        assert_int_equal(toy_pass(t, &model, TESS_PASS_TRAIN, k, &loss), TESS_OK);
    refuses(t, &o, TESS_E_INVALID, "tess_checkpoint_save within a step: save after tess_step or tess_grad_drop");
    o.on_newer = "asides";
    refuses(opened(0), &o, TESS_E_INVALID, "tess_checkpoint_save: on_newer is 'asides', expected stop or aside");
    o.on_newer = "a word that is longer than a message shows of it, by some";
    refuses(opened(0), &o, TESS_E_INVALID,
            "tess_checkpoint_save: on_newer is 'a word that is longer than a message sho', expected stop or aside");
    o = to_dir();
    setenv("TESSERA_ON_NEWER", "asides", 1);
    tess *wrong = opened(0);
    assert_int_equal(tess_checkpoint_save(wrong, &o), TESS_E_INVALID);
    assert_non_null(strstr(tess_last_error(), "TESSERA_ON_NEWER is 'asides', expected one of stop|aside"));
    tess_close(wrong);
    unsetenv("TESSERA_ON_NEWER");
    for (int i = 0; i < 2; i++) {
        o = to_dir();
        o.dir = i ? "" : NULL;
        refuses(opened(0), &o, TESS_E_INVALID, "tess_checkpoint_save: no directory is given");
    }
    for (int i = 0; i < 3; i++) {
        char want[96];
        o = to_dir();
        o.score = &scores[i];
        snprintf(want, sizeof want, "tess_checkpoint_save: the score is %g, expected a finite number", scores[i]);
        refuses(opened(0), &o, TESS_E_INVALID, want);
    }
    assert_int_equal(scratch_entries(&dir), 0);
}

static void test_save_calls__a_program_saves_at_most_so_much_of_its_own(void **state) {
    (void)state;
    enum { MOST = TESS_CHECKPOINT_BYTES };
    char given[2][MOST + 1], got[2][MOST];
    for (int i = 0; i <= MOST; i++)
        given[0][i] = (char)(i * 7), given[1][i] = (char)(i * 11 + 1);
    for (int i = 1; i < 4; i++) {
        char want[128];
        tess_checkpoint_options o = to_dir();
        o.common = given[0], o.own = given[1];
        o.common_bytes = MOST + (i & 1), o.own_bytes = MOST + (i >> 1);
        snprintf(want, sizeof want, "tess_checkpoint_save: the program has %d and %d bytes, at most 4096 of each",
                 MOST + (i & 1), MOST + (i >> 1));
        refuses(opened(0), &o, TESS_E_INVALID, want);
    }
    tess *t = opened(0);
    tess_checkpoint_options o = to_dir();
    tess_checkpoint_info info = { .struct_size = sizeof info };
    o.common = given[0], o.own = given[1];
    o.common_bytes = o.own_bytes = MOST;
    assert_int_equal(tess_checkpoint_save(t, &o), TESS_OK);
    assert_int_equal(tess_checkpoint_wait(t, &info), TESS_OK);
    assert_true(info.common_bytes == MOST && info.own_bytes == MOST && info.ranks == 1 && info.step == 0);
    assert_int_equal(info.microbatches, 2);
    assert_true(info.bytes > 2 * MOST && info.stall_seconds >= info.write_seconds && info.write_seconds > 0);
    for (int room = 0; room <= MOST; room += MOST / 2) { /* as much as there is room for */
        tess_checkpoint_load_options from = from_path(dir.path);
        memset(got, 0x5a, sizeof got);
        from.common = got[0], from.own = got[1];
        from.common_bytes = from.own_bytes = (uint64_t)room;
        assert_int_equal(tess_checkpoint_load(t, &from, &info), TESS_OK);
        for (int k = 0; k < 2; k++) {
            assert_memory_equal(got[k], given[k], room);
            assert_true(room == MOST || got[k][room] == 0x5a);
        }
        assert_true(info.common_bytes == MOST && info.own_bytes == MOST); /* those that were saved */
    }
    assert_int_equal(tess_close(t), TESS_OK);
}

/* Where the path ends, names of steps and files must still have room. */
static void test_save_calls__a_path_has_room_for_names(void **state) {
    (void)state;
    enum { MOST = PATH_MAX - 128 };
    static char path[PATH_MAX + 8];
    memset(path, 'x', sizeof path - 1);
    for (int more = -1; more < 1; more++) {
        tess *t = opened(0);
        tess_checkpoint_options o = to_dir();
        o.dir = path;
        path[MOST + more] = 0;
        assert_int_equal(tess_checkpoint_save(t, &o), more < 0 ? TESS_E_DATA : TESS_E_INVALID);
        if (!more)
            assert_string_equal(tess_last_error(), "tess_checkpoint_save: the path is longer than 4096 bytes");
        assert_int_equal(tess_close(t), more < 0 ? TESS_OK : TESS_E_INVALID);
        path[MOST + more] = 'x';
    }
}

static void expect_steps(int n) {
    assert_int_equal(scratch_entries(&dir), n);
}

/* Nothing is written, but the directory is taken, and what would be refused later is refused now. */
static void test_save_calls__a_save_that_prepares_takes_the_directory(void **state) {
    (void)state;
    char file[128], deep[128];
    tess *t = opened(0), *other = opened(0);
    tess_checkpoint_options o = to_dir();
    snprintf(deep, sizeof deep, "%s/prepared", dir.path);
    o.dir = deep;
    o.flags = TESS_CHECKPOINT_PREPARE;
    const int before = scratch_entries(&dir);
    assert_int_equal(tess_checkpoint_save(t, &o), TESS_OK);
    expect_steps(before + 1);
    assert_int_equal(tess_checkpoint_wait(t, NULL), TESS_OK);
    assert_int_equal(tess_checkpoint_save(other, &o), TESS_E_DATA); /* two runs, which is no end of either */
    assert_non_null(strstr(tess_last_error(), "another run saves there"));
    o.flags = 0;
    assert_int_equal(tess_checkpoint_save(t, &o), TESS_OK);
    assert_int_equal(tess_close(t), TESS_OK);
    snprintf(file, sizeof file, "%s/file", dir.path);
    assert_int_equal(scratch_write(&dir, "file", "x", 1), 0);
    o.dir = file;
    assert_int_equal(tess_checkpoint_save(other, &o), TESS_E_DATA);
    assert_non_null(strstr(tess_last_error(), "a file is there"));
    train(other); /* training goes on */
    o.dir = deep;
    o.on_newer = "aside";
    assert_int_equal(tess_checkpoint_save(other, &o), TESS_OK);
    assert_int_equal(tess_close(other), TESS_OK);
}

static tess_status count_listed(void *user, const char *path, const tess_checkpoint_info *info) {
    (void)path, (void)info;
    ++*(int *)user;
    return TESS_OK;
}

static tess_status note_step(void *user, const char *path, const tess_checkpoint_info *info) {
    uint64_t *seen = user;
    assert_non_null(strstr(path, "/step-00000"));
    assert_true(info->ranks == 1 && info->microbatches == 2 && info->bytes > 0);
    seen[1 + seen[0]++] = info->step;
    return seen[0] == seen[4] ? TESS_E_DATA : TESS_OK;
}

/* A run that goes elsewhere leaves the first directory to others, and takes the second. */
static void test_save_calls__a_run_may_change_its_directory(void **state) {
    (void)state;
    char first[128], second[128];
    uint64_t seen[5] = { 0 };
    tess *t = opened(0), *other = opened(0);
    tess_checkpoint_options o = to_dir();
    snprintf(first, sizeof first, "%s/first", dir.path);
    snprintf(second, sizeof second, "%s/second", dir.path);
    o.dir = first;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(tess_checkpoint_save(t, &o), TESS_OK);
        train(t);
    }
    o.dir = second;
    assert_int_equal(tess_checkpoint_save(t, &o), TESS_OK);
    assert_int_equal(tess_checkpoint_save(other, &o), TESS_E_DATA);
    o.dir = first;
    o.on_newer = "aside";
    assert_int_equal(tess_checkpoint_save(other, &o), TESS_OK);
    assert_int_equal(tess_close(other), TESS_OK);
    assert_int_equal(tess_checkpoint_list(second, note_step, seen), TESS_OK);
    assert_true(seen[0] == 1 && seen[1] == 3);
    assert_int_equal(tess_close(t), TESS_OK);
}

/* Between two saves nothing of them is held. */
static void test_save_calls__a_save_that_is_over_holds_no_memory(void **state) {
    (void)state;
    for (uint32_t async = 0; async < 2; async++) {
        char path[128];
        tess *t = opened(async);
        tess_checkpoint_options o = to_dir();
        snprintf(path, sizeof path, "%s/holds-%d", dir.path, (int)async);
        o.dir = path;
        assert_int_equal(tess_checkpoint_save(t, &o), TESS_OK);
        if (async)
            assert_int_equal(tess_checkpoint_wait(t, NULL), TESS_OK);
        assert_true(!t->saver->pieces.pieces && !t->saver->pieces.tensors && !t->saver->pieces.n);
        assert_int_equal(tess_close(t), TESS_OK);
    }
}

/* A run may save and load as often as it likes. */
static void test_save_calls__many_saves_and_loads_hold_no_more_than_few(void **state) {
    size_t held[2] = { 0 };
    char path[128];
    (void)state;
    snprintf(path, sizeof path, "%s/many", dir.path);
    tess *t = opened(0);
    for (int i = 0; i < 12; i++) {
        tess_checkpoint_options save = to_dir();
        tess_checkpoint_load_options load = from_path(path);
        int listed = 0;
        save.dir = path;
        save.keep = 1;
        train(t);
        assert_int_equal(tess_checkpoint_save(t, &save), TESS_OK);
        assert_int_equal(tess_checkpoint_load(t, &load, NULL), TESS_OK);
        assert_int_equal(tess_checkpoint_list(path, count_listed, &listed), TESS_OK);
        assert_int_equal(listed, 1);
        if (i == 3 || i == 11)
            held[i == 11] = heap_held();
    }
    assert_int_equal(held[0], held[1]);
    assert_int_equal(tess_close(t), TESS_OK);
}

static void test_save_calls__a_list_is_ascending_and_ends_where_it_is_told(void **state) {
    (void)state;
    char path[128];
    tess *t = opened(0);
    tess_checkpoint_options o = to_dir();
    snprintf(path, sizeof path, "%s/listed", dir.path);
    o.dir = path;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(tess_checkpoint_save(t, &o), TESS_OK);
        train(t);
    }
    assert_int_equal(tess_close(t), TESS_OK);
    for (uint64_t end = 1; end <= 4; end++) {
        uint64_t seen[5] = { 0, 9, 9, 9, end };
        assert_int_equal(tess_checkpoint_list(path, note_step, seen), end < 4 ? TESS_E_DATA : TESS_OK);
        assert_int_equal(seen[0], end < 4 ? end : 3);
        for (uint64_t i = 0; i < seen[0]; i++)
            assert_int_equal(seen[1 + i], i);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tess_checkpoint_list(i ? path : NULL, i ? NULL : note_step, NULL), TESS_E_INVALID);
        assert_string_equal(tess_last_error(), "tess_checkpoint_list: a directory and a function to call are needed");
    }
}

static void refuses_load(tess *t, const tess_checkpoint_load_options *o, tess_status status, const char *why) {
    assert_int_equal(tess_checkpoint_load(t, o, NULL), status);
    if (!strstr(tess_last_error(), why))
        fail_msg("'%s', expected '%s'", tess_last_error(), why);
    assert_int_equal(tess_close(t), status);
}

static void test_save_calls__what_cannot_be_loaded_is_said(void **state) {
    (void)state;
    tess_checkpoint_load_options o = from_path(dir.path), none = from_path(NULL);
    double loss;
    char path[128];
    refuses_load(declared(0), &o, TESS_E_INVALID, "tess_checkpoint_load before tess_shard");
    refuses_load(opened(0), &none, TESS_E_INVALID, "tess_checkpoint_load: no path is given");
    tess *t = opened(0);
    assert_int_equal(toy_pass(t, &model, TESS_PASS_TRAIN, 0, &loss), TESS_OK);
    refuses_load(t, &o, TESS_E_INVALID, "tess_checkpoint_load within a step");
    t = opened(0);
    for (int k = 0; k < 2; k++)
        assert_int_equal(toy_pass(t, &model, TESS_PASS_TRAIN, k, &loss), TESS_OK);
    refuses_load(t, &o, TESS_E_INVALID, "tess_checkpoint_load within a step");
    snprintf(path, sizeof path, "%s/absent", dir.path);
    o.path = path;
    refuses_load(opened(0), &o, TESS_E_DATA, "/absent");
}

/* A snapshot is written beside training: what a save skips, and who says how it went. */
static void test_save_calls__what_a_thread_writes_is_asked_for_once(void **state) {
    (void)state;
    char path[128];
    tess *t = opened(1);
    tess_checkpoint_options o = to_dir();
    tess_checkpoint_info info = { .struct_size = sizeof info };
    snprintf(path, sizeof path, "%s/beside", dir.path);
    o.dir = path;
    assert_int_equal(tess_checkpoint_wait(t, &info), TESS_OK); /* there is none */
    assert_int_equal(info.bytes, 0);
    assert_int_equal(tess_checkpoint_save(t, &o), TESS_OK);
    assert_int_equal(tess_checkpoint_wait(t, &info), TESS_OK);
    assert_true(info.bytes > 0 && info.step == 0);
    info.bytes = 0;
    assert_int_equal(tess_checkpoint_wait(t, &info), TESS_OK);
    assert_int_equal(info.bytes, 0); /* asked for already */
    o.flags = TESS_CHECKPOINT_SKIP;  /* nothing is being written */
    train(t);
    assert_int_equal(tess_checkpoint_save(t, &o), TESS_OK);
    assert_int_equal(tess_checkpoint_wait(t, &info), TESS_OK);
    assert_int_equal(info.step, 1);
    assert_int_equal(tess_close(t), TESS_OK);
}

/* A file that cannot grow: the save fails on its own, and is told by the call that waits for it. */
static void test_save_calls__what_the_disk_refuses_is_not_the_end(void **state) {
    (void)state;
    for (uint32_t async = 0; async < 2; async++) {
        char path[128];
        struct rlimit limit, less;
        tess *t = opened(async);
        tess_checkpoint_options o = to_dir();
        snprintf(path, sizeof path, "%s/full%u", dir.path, async);
        o.dir = path;
        getrlimit(RLIMIT_FSIZE, &limit);
        less = limit;
        less.rlim_cur = 100;
        setrlimit(RLIMIT_FSIZE, &less);
        tess_status saved = tess_checkpoint_save(t, &o);
        tess_status waited = tess_checkpoint_wait(t, NULL);
        setrlimit(RLIMIT_FSIZE, &limit);
        assert_int_equal(saved, async ? TESS_OK : TESS_E_DATA);
        assert_int_equal(waited, async ? TESS_E_DATA : TESS_OK);
        assert_non_null(strstr(tess_last_error(), "/step-000000/data-1-00000-of-00001.safetensors"));
        train(t);
        assert_int_equal(tess_checkpoint_save(t, &o), TESS_OK);
        assert_int_equal(tess_checkpoint_wait(t, NULL), TESS_OK);
        assert_int_equal(tess_close(t), TESS_OK);
    }
}

/* A step on a device may have left what is not finite, and nobody has looked since. */
static void test_save_calls__the_last_steps_are_looked_at_first(void **state) {
    (void)state;
    static int64_t noted;
    tess_checkpoint_options o = to_dir();
    char path[128];
    snprintf(path, sizeof path, "%s/looked", dir.path);
    o.dir = path;
    tess *t = opened(0);
    train(t);
    noted = 0;
    t->step.noted_at = &noted;
    assert_int_equal(tess_checkpoint_save(t, &o), TESS_OK);
    noted = 1;
    assert_int_equal(tess_checkpoint_save(t, &o), TESS_E_NOT_FINITE);
    assert_non_null(strstr(tess_last_error(), "step 1 leaves values that are not finite"));
    t->step.noted_at = NULL;
    tess_close(t);
}

int main(void) {
    signal(SIGXFSZ, SIG_IGN);
    tess__log_set_least(TESS_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_save_calls__what_cannot_be_saved_is_said),
        cmocka_unit_test(test_save_calls__a_program_saves_at_most_so_much_of_its_own),
        cmocka_unit_test(test_save_calls__a_path_has_room_for_names),
        cmocka_unit_test(test_save_calls__a_save_that_prepares_takes_the_directory),
        cmocka_unit_test(test_save_calls__a_run_may_change_its_directory),
        cmocka_unit_test(test_save_calls__a_save_that_is_over_holds_no_memory),
        cmocka_unit_test(test_save_calls__many_saves_and_loads_hold_no_more_than_few),
        cmocka_unit_test(test_save_calls__a_list_is_ascending_and_ends_where_it_is_told),
        cmocka_unit_test(test_save_calls__what_cannot_be_loaded_is_said),
        cmocka_unit_test(test_save_calls__what_a_thread_writes_is_asked_for_once),
        cmocka_unit_test(test_save_calls__the_last_steps_are_looked_at_first),
        cmocka_unit_test(test_save_calls__what_the_disk_refuses_is_not_the_end),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
