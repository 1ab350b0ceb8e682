/* SPDX-License-Identifier: BSD-3-Clause */
/* What every plugin takes from the kit: time limits, threads as the host wants them, log lines, and what a rank says
 * that cannot join its group. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fenv.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "kit/plugin_base.h"

static struct {
    tess_status answers[4]; /* of kv_get, in turn; the last stays */
    int asked, aborting_at; /* aborts when so many have been asked; 0: never */
    uint64_t bytes;         /* of the value */
    char key[300], log[300];
    int32_t level;
} world;

static tess_status get(void *host, const char *key, void *value, uint64_t *bytes, int64_t timeout_ns) {
    assert_ptr_equal(host, &world);
    assert_true(timeout_ns > 0);
    snprintf(world.key, sizeof world.key, "%s", key);
    const tess_status s = world.answers[world.asked < 3 ? world.asked : 3];
    world.asked++;
    if (s == TESS_OK)
        memset(value, 9, *bytes = world.bytes);
    return s;
}

static tess_status set(void *host, const char *key, const void *value, uint64_t bytes) {
    assert_ptr_equal(host, &world);
    assert_int_equal(bytes, 4);
    assert_int_equal(*(const uint32_t *)value, 77);
    snprintf(world.key, sizeof world.key, "%s", key);
    return world.answers[0];
}

static int32_t aborting(void *host) {
    assert_ptr_equal(host, &world);
    return world.aborting_at && world.asked >= world.aborting_at;
}

static void take_log(void *host, int32_t level, const char *plugin, const char *text) {
    assert_ptr_equal(host, &world);
    world.level = level;
    snprintf(world.log, sizeof world.log, "%s: %s", plugin, text);
}

static const tess_host host = { .struct_size = sizeof host,
                                .host = &world,
                                .kv_get = get,
                                .kv_set = set,
                                .aborting = aborting,
                                .log = take_log,
                                .helper_cpus = "" };

static void begin(tess_status first, tess_status second, tess_status third) {
    memset(&world, 0, sizeof world);
    world.answers[0] = first;
    world.answers[1] = second;
    world.answers[2] = world.answers[3] = third;
    world.bytes = 4;
}

/* ---- joining ---- */

static tess_status join(const char *group, int64_t timeout_ns, tess_error *e) {
    const kit_joining j = kit_joining_begin(&host, "net", group, timeout_ns);
    uint32_t value = 0;
    *e = (tess_error){ .struct_size = sizeof *e, .rank = -1 };
    tess_status s = kit_joining_get(&j, "card", 3, &value, sizeof value, e);
    assert_int_equal(value, s == TESS_OK ? 0x09090909 : world.bytes == 4 ? 0 : value);
    return s;
}

static void fails(tess_status want, int32_t rank, const char *why) {
    tess_error e;
    assert_int_equal(join("world", -1, &e), want);
    assert_int_equal(e.rank, rank);
    assert_string_equal(e.message, why);
}

static void test_plugin_base__what_the_store_says_is_told_by_rank(void **state) {
    (void)state;
    tess_error e;
    begin(TESS_E_TIMEOUT, TESS_E_TIMEOUT, TESS_OK);
    assert_int_equal(join("world", -1, &e), TESS_OK);
    assert_int_equal(world.asked, 3);
    assert_string_equal(world.key, "world/card/3");
    begin(TESS_E_INVALID, 0, 0); /* it has more bytes than there is room for */
    fails(TESS_E_VERSION, 3, "net: rank 3 has another version of this plugin: 'world/card/3' has another size");
    begin(TESS_OK, 0, 0);
    world.bytes = 3;
    fails(TESS_E_VERSION, 3, "net: rank 3 has another version of this plugin: 'world/card/3' has another size");
    begin(TESS_E_SYSTEM, 0, 0);
    fails(TESS_E_SYSTEM, 3, "net: the key-value store failed while waiting for rank 3");
    begin(TESS_E_TIMEOUT, TESS_E_ABORTED, 0); /* the store's own, and no abort of the run */
    fails(TESS_E_ABORTED, 3, "net: the key-value store failed while waiting for rank 3");
    begin(TESS_E_TIMEOUT, TESS_E_ABORTED, 0);
    world.aborting_at = 2;
    fails(TESS_E_ABORTED, -1, "net: the run was aborted while this rank joined group 'world'");
    assert_int_equal(world.asked, 2);
    begin(TESS_E_TIMEOUT, 0, 0);
    world.aborting_at = 1;
    fails(TESS_E_ABORTED, -1, "net: the run was aborted while this rank joined group 'world'");
    begin(TESS_E_TIMEOUT, TESS_E_TIMEOUT, TESS_E_TIMEOUT);
    assert_int_equal(
        join("a group whose name is so long that a message of eighty letters cannot show all of it at once", 1, &e),
        TESS_E_TIMEOUT);
    assert_string_equal(e.message,
                        "net: rank 3 has not joined group 'a group whose name is so long that a message of eighty "
                        "letters cannot show all o' within 0.0 s");
}

static void test_plugin_base__what_the_store_refuses_is_told_by_key(void **state) {
    (void)state;
    const uint32_t value = 77;
    const kit_joining j = kit_joining_begin(&host, "net", "world", 0);
    tess_error e = { .struct_size = sizeof e };
    begin(TESS_OK, 0, 0);
    assert_int_equal(kit_joining_set(&j, "card", 12, &value, sizeof value, &e), TESS_OK);
    assert_string_equal(world.key, "world/card/12");
    begin(TESS_E_NOMEM, 0, 0);
    assert_int_equal(kit_joining_set(&j, "card", 12, &value, sizeof value, &e), TESS_E_NOMEM);
    assert_string_equal(e.message, "net: the key-value store refuses 'world/card/12'");
    assert_int_equal(kit_joining_check(&j, 5, &e), TESS_OK); /* 0: no limit */
    assert_int_equal(j.until_ns, INT64_MAX);
}

/* ---- time ---- */

static void test_plugin_base__limits_count_from_now(void **state) {
    (void)state;
    const int64_t century_ns = INT64_C(3000000000000000000), before = kit_now_ns();
    assert_int_equal(kit_until_ns(-1), INT64_MAX);
    assert_int_equal(kit_until_ns(INT64_MAX), INT64_MAX);
    assert_int_equal(kit_until_ns(century_ns + 1), INT64_MAX);
    assert_true(kit_until_ns(century_ns) < INT64_MAX);
    const int64_t at = kit_until_ns(5000000000);
    assert_true(at >= before + 5000000000 && at <= kit_now_ns() + 5000000000);
    assert_true(kit_until_ns(0) <= kit_now_ns());
    kit_nap(2000000);
    assert_true(kit_now_ns() - before >= 2000000);
    pthread_cond_t cond;
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    kit_cond_init(&cond);
    pthread_mutex_lock(&lock);
    const int64_t began = kit_now_ns();
    assert_true(kit_cond_wait(&cond, &lock, began + 3000000)); /* nobody signals */
    assert_true(kit_now_ns() - began >= 3000000);
    pthread_mutex_unlock(&lock);
    pthread_cond_destroy(&cond);
}

/* ---- threads ---- */

typedef struct {
    char name[16];
    int blocked, cpus, rounds_up;
} seen;

static void look(void *arg) {
    seen *s = arg;
    sigset_t set;
    cpu_set_t cpus;
    pthread_getname_np(pthread_self(), s->name, sizeof s->name);
    pthread_sigmask(SIG_SETMASK, NULL, &set);
    s->blocked = sigismember(&set, SIGTERM) && sigismember(&set, SIGUSR1);
    sched_getaffinity(0, sizeof cpus, &cpus);
    s->cpus = CPU_COUNT(&cpus);
    s->rounds_up = fegetround() == FE_UPWARD;
}

static void test_plugin_base__a_thread_takes_no_signals_and_rounds_as_ever(void **state) {
    (void)state;
    tess_host bound = host;
    cpu_set_t mine;
    sigset_t before;
    seen s[2] = { { .name = "" }, { .name = "" } };
    char cpu[16];
    sched_getaffinity(0, sizeof mine, &mine);
    int first = 0;
    while (!CPU_ISSET((size_t)first, &mine))
        first++;
    snprintf(cpu, sizeof cpu, "%d", first);
    bound.helper_cpus = cpu;
    fesetround(FE_UPWARD);
    for (int i = 0; i < 2; i++) {
        pthread_t thread;
        assert_int_equal(
            kit_thread_start(&thread, i ? &bound : &host, "net", i ? "net-two" : "net-one", look, &s[i], NULL),
            TESS_OK);
        pthread_join(thread, NULL);
        assert_string_equal(s[i].name, i ? "net-two" : "net-one");
        assert_true(s[i].blocked);
        assert_false(s[i].rounds_up);
        assert_int_equal(s[i].cpus, i ? 1 : CPU_COUNT(&mine));
    }
    fesetround(FE_TONEAREST);
    pthread_sigmask(SIG_SETMASK, NULL, &before); /* the caller's are as they were */
    assert_false(sigismember(&before, SIGUSR1));
}

static void test_plugin_base__log_lines_are_cut_and_named(void **state) {
    (void)state;
    char want[260];
    begin(0, 0, 0);
    kit_log(&host, 1, "net", "%d of %s", 3, "seven");
    assert_string_equal(world.log, "net: 3 of seven");
    assert_int_equal(world.level, 1);
    kit_log(&host, 7, "net", "%0300d", 1);
    snprintf(want, sizeof want, "net: %0239d", 0);
    assert_string_equal(world.log, want);
    assert_int_equal(world.level, 7);
    assert_false(kit_aborting(&host));
    world.asked = world.aborting_at = 1;
    assert_int_equal(kit_aborting(&host), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plugin_base__what_the_store_says_is_told_by_rank),
        cmocka_unit_test(test_plugin_base__what_the_store_refuses_is_told_by_key),
        cmocka_unit_test(test_plugin_base__limits_count_from_now),
        cmocka_unit_test(test_plugin_base__a_thread_takes_no_signals_and_rounds_as_ever),
        cmocka_unit_test(test_plugin_base__log_lines_are_cut_and_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
