/* SPDX-License-Identifier: BSD-3-Clause */
/* Saves onto a simulated disk that crashes at every operation, or loses bits: the newest checkpoint or the one before
 * always loads, and nothing is left over after the next start. */
#include "save_fixture.h"

#include "core/base/log.h"

/* After the next start there are only files that manifests name. */
static void check_no_leftovers(sim_disk *disk, int writers) {
    tess__store store;
    uint64_t *list = NULL, n = 0;
    const tess__disk *d = sim_disk_table(disk);
    assert_int_equal(tess__store_open(d, DIR_OF_ALL, &store), TESS_OK);
    assert_int_equal(tess__store_list(d, DIR_OF_ALL, &list, &n), TESS_OK);
    assert_int_equal(sim_disk_files(disk), (int)n * (writers + 1));
    free(list);
    assert_int_equal(save_step(&store, 50, 7, writers), TESS_OK);
    tess__store_close(&store);
    assert_int_equal(newest(d), 7);
}

static sim_fate all(void *user, int i) {
    (void)i;
    return *(sim_fate *)user;
}

typedef struct {
    int which;
    sim_fate fate;
} one_of;
static sim_fate only(void *user, int i) {
    const one_of *o = user;
    return i == o->which ? o->fate : SIM_KEEP;
}

static sim_fate by_seed(void *user, int i) {
    uint64_t *seed = user;
    *seed = *seed * 6364136223846793005u + 1442695040888963407u + (uint64_t)i;
    return (sim_fate)((*seed >> 40) % 3);
}

static long checked;
static void check_after(const sim_disk *crashed, int done, int writers, sim_fate_fn fate, void *user) {
    sim_disk *disk = sim_disk_after(crashed, fate, user);
    int found = newest(sim_disk_table(disk));
    if (found != done && found != done - 1)
        fail_msg("W=%d: crash at operation %d: save %d was complete, found %d", writers, sim_disk_operations(crashed),
                 done - 1, found);
    check_no_leftovers(disk, writers);
    sim_disk_destroy(disk);
    checked++;
}

static void check_crash(const sim_disk *crashed, int done, int writers) {
    sim_fate keep = SIM_KEEP, drop = SIM_DROP, tear = SIM_TEAR;
    check_after(crashed, done, writers, all, &keep);
    check_after(crashed, done, writers, all, &drop);
    check_after(crashed, done, writers, all, &tear);
    for (int i = 0; i < sim_disk_unsynced(crashed); i++)
        for (sim_fate f = SIM_DROP; f <= SIM_TEAR; f++)
            check_after(crashed, done, writers, only, &(one_of){ i, f });
    for (uint64_t seed = 1; seed <= 4; seed++)
        check_after(crashed, done, writers, by_seed, &(uint64_t){ seed * 977 });
}

/* A sanitizer maps each of the disk's buffers anew, which takes minutes for all operations. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { EVERY = 5 };
#else
enum { EVERY = 1 };
#endif

static void test_crashes__a_crash_at_any_operation_loses_nothing(void **state) {
    (void)state;
    static const sim_direct direct[] = { SIM_DIRECT, SIM_ODD_DIRECT, SIM_NO_DIRECT, SIM_REFUSES_DIRECT };
    for (int writers = 1; writers <= 4; writers++) {
        keep = writers % 2 ? 2 : 1; /* with one, the order of the new and the old is all there is */
        sim_disk *whole = sim_disk_create();
        sim_disk_set_direct(whole, direct[writers - 1]);
        assert_int_equal(run_saves(whole, writers), N_SAVES);
        assert_int_equal(sim_disk_direct_writes(whole) > 0, writers <= 2);
        int operations = sim_disk_operations(whole);
        assert_int_equal(sim_disk_files(whole), (int)(keep + 1) * (writers + 1)); /* it counts its own alone */
        assert_int_equal(newest(sim_disk_table(whole)), N_SAVES - 1);
        sim_disk_destroy(whole);
        for (int n = 1; n <= operations; n += EVERY) {
            sim_disk *disk = sim_disk_create();
            sim_disk_set_direct(disk, direct[writers - 1]);
            sim_disk_crash_after(disk, n);
            check_crash(disk, run_saves(disk, writers), writers);
            sim_disk_destroy(disk);
        }
    }
    keep = 2;
    line = first_run;
    assert_true(checked > 1000 / EVERY);
    print_message("%ld disks after a crash\n", checked);
}

/* Every bit of a small checkpoint would take long: every 97th, and every shorter length by steps. */
static void test_crashes__damage_is_found(void **state) {
    (void)state;
    static const char *const names[] = { "manifest.json", "data-1-00000-of-00002.safetensors",
                                         "data-1-00001-of-00002.safetensors" };
    if (!tess__sum_known())
        skip();
    for (size_t f = 0; f < 3; f++)
        for (uint64_t bit = 0;; bit += 97) {
            char path[PATH_MAX];
            tess__store store;
            sim_disk *disk = sim_disk_create();
            const tess__disk *d = sim_disk_table(disk);
            snprintf(path, sizeof path, DIR_OF_ALL "/step-000010/%s", names[f]);
            assert_int_equal(tess__store_open(d, DIR_OF_ALL, &store), TESS_OK);
            assert_int_equal(save_step(&store, 10, 0, 2), TESS_OK);
            assert_int_equal(save_in(d, 10), 0);
            int outside = sim_disk_flip(disk, path, bit);
            if (!outside && save_in(d, 10) >= 0)
                fail_msg("bit %llu of %s", (unsigned long long)bit, names[f]);
            if (!outside && sim_disk_flip(disk, path, bit) == 0 && sim_disk_truncate(disk, path, bit / 8) == 0)
                assert_int_equal(save_in(d, 10), -1);
            tess__store_close(&store);
            sim_disk_destroy(disk);
            if (outside)
                break;
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crashes__a_crash_at_any_operation_loses_nothing),
        cmocka_unit_test(test_crashes__damage_is_found),
    };
    tess__log_set_least(TESS_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
