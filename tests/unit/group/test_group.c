/* SPDX-License-Identifier: BSD-3-Clause */
/* Groups of the program's own ranks: alone, what is refused, and as programs of one to five ranks over each backend
 * (tests/support/groups_main.c), which this program runs itself as. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#define main groups_main
#include "tests/support/groups_main.c"
#undef main

#include <unistd.h>

#include "tests/support/ranks.h"

/* ---- alone ---- */

/* An error of a group stays, as an engine's does. */
#define REFUSED(call, why)                                                                                             \
    do {                                                                                                               \
        double x[2] = { 1, 2 };                                                                                        \
        tess_group *g = group_of(NULL, 0, 0, 0);                                                                       \
        assert_int_equal(call, TESS_E_INVALID);                                                                        \
        assert_string_equal(tess_last_error(), why);                                                                   \
        assert_int_equal(tess_group_all_reduce(g, x, 1, TESS_F64, TESS_SUM), TESS_E_INVALID);                          \
        assert_int_equal(tess_group_close(g), TESS_E_INVALID);                                                         \
    } while (0)

static void test_group__one_rank_has_what_it_gave(void **state) {
    (void)state;
    double sent[3] = { 1, 2, 3 }, got[3] = { 0 };
    tess_group *g = group_of("one", 5, 7, 1);
    assert_int_equal(tess_group_rank(g), 0);
    assert_int_equal(tess_group_ranks(g), 1);
    for (uint32_t op = TESS_SUM; op <= TESS_AVG; op++)
        assert_int_equal(tess_group_all_reduce(g, sent, 3, TESS_F64, op), TESS_OK);
    assert_int_equal(tess_group_broadcast(g, sent, 3, TESS_F64, 0), TESS_OK);
    assert_int_equal(tess_group_all_gather(g, sent, got, 2, TESS_F64), TESS_OK);
    assert_memory_equal(got, ((double[]){ 1, 2, 0 }), sizeof got);
    assert_int_equal(tess_group_exchange(g, sent, got, 3, TESS_F64), TESS_OK);
    assert_memory_equal(got, ((double[]){ 1, 2, 3 }), sizeof got);
    assert_int_equal(tess_group_all_gather(g, NULL, NULL, 0, TESS_F64), TESS_OK);
    assert_int_equal(tess_group_close(g), TESS_OK);
}

static void test_group__what_cannot_be_is_refused(void **state) {
    (void)state;
    tess_group *none = NULL;
    REFUSED(tess_group_all_reduce(g, x, 1, 99, TESS_SUM), "tess_group_all_reduce (sum): there is no dtype 99");
    REFUSED(tess_group_all_reduce(g, NULL, 1, TESS_F64, TESS_MIN),
            "tess_group_all_reduce (min): 1 elements at a null pointer");
    REFUSED(tess_group_all_gather(g, x, NULL, 2, TESS_F32), "tess_group_all_gather: 2 elements at a null pointer");
    REFUSED(tess_group_exchange(g, NULL, x, 2, TESS_F32), "tess_group_exchange: 2 elements at a null pointer");
    REFUSED(tess_group_all_reduce(g, x, 1, TESS_F64, TESS_SUM - 1), "tess_group_all_reduce: there is no operation 0");
    REFUSED(tess_group_all_reduce(g, x, 1, TESS_F64, TESS_AVG + 1), "tess_group_all_reduce: there is no operation 5");
    static const uint32_t integers[] = { TESS_U8, TESS_I8, TESS_I32, TESS_I64 };
    for (int i = 0; i < 4; i++)
        REFUSED(tess_group_all_reduce(g, x, 1, integers[i], TESS_AVG),
                "tess_group_all_reduce: integers have no average");
    REFUSED(tess_group_broadcast(g, x, 1, TESS_F64, 1), "tess_group_broadcast: the root is 1, in a group of 1 ranks");
    REFUSED(tess_group_broadcast(g, x, 1, TESS_F64, -1), "tess_group_broadcast: the root is -1, in a group of 1 ranks");
    const tess_options empty = { .struct_size = sizeof empty, .n_settings = 1 };
    assert_int_equal(tess_group_open(&empty, &none), TESS_E_INVALID);
    assert_string_equal(tess_last_error(), "tess_group_open: no settings to read");
    const tess_group_options two = { .struct_size = sizeof two, .ranks = 2, .name = "two" };
    const tess_options of_two = { .struct_size = sizeof of_two, .group = &two };
    assert_int_equal(tess_group_open(&of_two, &none), TESS_E_INVALID);
    assert_non_null(strstr(tess_last_error(), "tess_group_options.ranks is 2"));
    assert_null(none);
}

/* A program's own settings count, the environment before them; settings of engines do not reach a group. */
static void test_group__settings_are_the_environments_then_the_programs(void **state) {
    (void)state;
    tess_group *g = NULL;
    tess_setting own = { "comm", "nowhere" };
    const tess_options o = { .struct_size = sizeof o, .n_settings = 1, .settings = &own, .optimizer = "nowhere" };
    assert_int_not_equal(tess_group_open(&o, &g), TESS_OK);
    assert_non_null(strstr(tess_last_error(), "nowhere"));
    const tess_options field = { .struct_size = sizeof field, .comm = "nowhere" };
    assert_int_not_equal(tess_group_open(&field, &g), TESS_OK);
    setenv("TESSERA_COMM", "self", 1);
    setenv("TESSERA_STRATEGY", "hybrid:7", 1); /* of no group */
    setenv("TESSERA_OFFLOAD", "nowhere", 1);
    assert_int_equal(tess_group_open(&o, &g), TESS_OK);
    assert_int_equal(tess_group_close(g), TESS_OK);
    assert_int_equal(tess_group_open(&field, &g), TESS_OK);
    assert_int_equal(tess_group_close(g), TESS_OK);
    unsetenv("TESSERA_COMM");
    unsetenv("TESSERA_STRATEGY");
    unsetenv("TESSERA_OFFLOAD");
}

/* ---- together ---- */

static int over(const char *comm) { /* whether the plugin is built */
    char path[4096];
    const char *folder = getenv("TESSERA_PLUGIN_PATH");
    snprintf(path, sizeof path, "%s/libtessera-comm-%s.so", folder ? folder : "", comm);
    setenv("TESSERA_COMM", comm, 1);
    setenv("TESSERA_HOSTS_RANKS", "2", 1);
    return access(path, R_OK) == 0;
}

static void run_groups(int n, const char *mode, const char *victim, int code, const char *says) {
    char output[4096];
    char *argv[] = { "/proc/self/exe", (char *)mode, (char *)victim, NULL };
    int got = ranks_run(n, argv, 60, output, sizeof output);
    if (got != code || !strstr(output, says))
        fail_msg("%d ranks, %s: exit code %d, expected %d and \"%s\": %s", n, mode, got, code, says, output);
}

static void test_group__collectives_have_their_values_over_each_backend(void **state) {
    (void)state;
    static const char *const comms[] = { "shm", "gloo", "hosts" };
    for (int i = 0; i < 3; i++)
        if (over(comms[i]))
            for (int n = 2; n <= 5; n += i ? 3 : 1)
                run_groups(n, "values", NULL, 0, "ok\n");
    unsetenv("TESSERA_COMM");
}

/* The replicas of a mesh come to one digest, and planned bytes are measured. */
static void test_group__a_mesh_trains(void **state) {
    (void)state;
    char alone[64], output[4096];
    char *argv[] = { "/proc/self/exe", "kill", "-1", NULL };
    setenv("TESSERA_MESH", "dp=2", 1);
    assert_int_equal(ranks_run(2, argv, 60, alone, sizeof alone), 0);
    setenv("TESSERA_MESH", "dp=2,tp=2", 1);
    assert_int_equal(ranks_run(4, argv, 60, output, sizeof output), 0);
    assert_string_equal(output, alone);
    unsetenv("TESSERA_MESH");
}

static void test_group__ranks_that_wait_for_each_other_are_told(void **state) {
    (void)state;
#define SUM "tess_group_all_reduce (sum) of 1 f64"
#define ORDERS "the ranks use their engines and groups in different orders: "
    run_groups(2, "crossed", NULL, 5,
               ORDERS "rank 0 is in " SUM " of group left (ranks 0, 1), rank 1 is in " SUM
                      " of group right (ranks 0, 1)");
    run_groups(3, "circle", NULL, 5,
               ORDERS "rank 0 is in " SUM " of group zero-one (ranks 0, 1), rank 1 is in " SUM
                      " of group one-two (ranks 1, 2), rank 2 is in " SUM " of group two-zero (ranks 0, 2)");
    run_groups(2, "half", NULL, 5,
               ORDERS "rank 0 is in tess_close of group left (ranks 0, 1), rank 1 is in " SUM
                      " of group right (ranks 0, 1)");
    run_groups(3, "opened", NULL, 5,
               "the ranks open their groups in different orders: rank 0 opens group left, rank 1 group right");
    run_groups(2, "sizes", NULL, 3, ", but 2 ranks gave the color 0 of group three");
}

int main(int argc, char **argv) {
    if (argc > 1)
        return groups_main(argc, argv);
    unsetenv("TESSERA_COMM");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_group__one_rank_has_what_it_gave),
        cmocka_unit_test(test_group__what_cannot_be_is_refused),
        cmocka_unit_test(test_group__settings_are_the_environments_then_the_programs),
        cmocka_unit_test(test_group__collectives_have_their_values_over_each_backend),
        cmocka_unit_test(test_group__a_mesh_trains),
        cmocka_unit_test(test_group__ranks_that_wait_for_each_other_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
