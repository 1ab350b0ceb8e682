/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/unit/kernels/kernel_fixture.h"
#include "core/base/fp_env.h"
#include <pthread.h>
#include <sched.h>

enum { ELEMS = 100003 };
typedef struct {
    uint8_t seen[ELEMS];
    int32_t parts, odd_starts, flushing;
    cpu_set_t cpus;
} record;

static void visit(void *user, uint64_t first, uint64_t elems) {
    record *r = user;
    volatile float tiny = 0x1p-126f;
    if (first % 256)
        __atomic_add_fetch(&r->odd_starts, 1, __ATOMIC_RELAXED);
    if (tiny / 2 == 0)
        __atomic_add_fetch(&r->flushing, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&r->parts, 1, __ATOMIC_RELAXED);
    for (uint64_t i = first; i < first + elems; i++)
        r->seen[i]++;
}

static void assert_each_once(const record *r, uint64_t elems) {
    for (uint64_t i = 0; i < ELEMS; i++)
        assert_int_equal(r->seen[i], i < elems);
    assert_int_equal(r->odd_starts, 0);
    assert_int_equal(r->flushing, 0);
}

static void test_pool__every_element_is_visited_once(void **state) {
    (void)state;
    static record r;
    /* parts are multiples of 256: at 257 and 513 the last has one element, at 256 and 512 there is none over */
    static const uint64_t sizes[] = { 0, 1, 63, 64, 127, 128, 255, 256, 257, 333, 512, 513, 25252, 75090, ELEMS };
    for (int32_t threads = 1; threads <= 7; threads++) {
        tess__pool *pool = NULL;
        assert_int_equal(tess__pool_create(threads, "", &pool, NULL), TESS_OK);
        assert_int_equal(tess__pool_threads(pool), threads);
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            memset(&r, 0, sizeof r);
            tess__pool_run(pool, sizes[i], 64, visit, &r);
            assert_each_once(&r, sizes[i]);
        }
        tess__pool_destroy(pool);
    }
}

static void test_pool__small_work_stays_on_the_caller(void **state) {
    (void)state;
    static record r;
    tess__pool *pool = NULL;
    assert_int_equal(tess__pool_create(4, "", &pool, NULL), TESS_OK);
    memset(&r, 0, sizeof r);
    tess__pool_run(pool, 1999, 1000, visit, &r);
    assert_int_equal(r.parts, 1);
    memset(&r, 0, sizeof r);
    tess__pool_run(pool, 4000, 1000, visit, &r);
    assert_int_equal(r.parts, 4);
    tess__pool_destroy(pool);
}

static void test_pool__no_pool_is_the_caller_alone(void **state) {
    (void)state;
    static record r;
    memset(&r, 0, sizeof r);
    tess__pool_run(NULL, ELEMS, 1, visit, &r);
    assert_each_once(&r, ELEMS);
    assert_int_equal(r.parts, 1);
    assert_int_equal(tess__pool_threads(NULL), 1);
    tess__pool_destroy(NULL);
}

#if defined(__SSE2__)
static void test_pool__denormals_are_kept_and_the_callers_mode_returns(void **state) {
    (void)state;
    static record r;
    tess__pool *pool = NULL;
    uint32_t old = _mm_getcsr(), flushing = old | 0x8040; /* flush to zero, denormals are zero */
    assert_int_equal(tess__pool_create(3, "", &pool, NULL), TESS_OK);
    memset(&r, 0, sizeof r);
    _mm_setcsr(flushing);
    tess__pool_run(pool, ELEMS, 64, visit, &r);
    uint32_t after = _mm_getcsr();
    _mm_setcsr(old);
    assert_int_equal(after & 0xffc0, flushing & 0xffc0);
    assert_int_equal(r.flushing, 0);
    tess__pool_destroy(pool);
}
#endif

static void where(void *user, uint64_t first, uint64_t elems) {
    record *r = user;
    (void)elems;
    if (first)
        pthread_getaffinity_np(pthread_self(), sizeof r->cpus, &r->cpus);
}

static void test_pool__workers_run_where_told(void **state) {
    (void)state;
    static record r;
    cpu_set_t mine;
    char list[32];
    int cpu = 0;
    tess__pool *pool = NULL;
    pthread_getaffinity_np(pthread_self(), sizeof mine, &mine);
    while (!CPU_ISSET(cpu, &mine))
        cpu++;
    snprintf(list, sizeof list, "%d-%d", cpu, cpu);
    assert_int_equal(tess__pool_create(2, list, &pool, NULL), TESS_OK);
    tess__pool_run(pool, 1024, 256, where, &r);
    assert_int_equal(CPU_COUNT(&r.cpus), 1);
    assert_true(CPU_ISSET(cpu, &r.cpus));
    tess__pool_destroy(pool);
}

static void *many_rounds(void *arg) {
    static _Thread_local record r;
    for (int i = 0; i < 50; i++) {
        memset(&r, 0, sizeof r);
        tess__pool_run(arg, ELEMS, 64, visit, &r);
        for (uint64_t e = 0; e < ELEMS; e++)
            if (r.seen[e] != 1)
                return arg;
    }
    return NULL;
}

static void test_pool__callers_at_the_same_time_do_not_disturb_each_other(void **state) {
    (void)state;
    pthread_t threads[4];
    tess__pool *pool = NULL;
    assert_int_equal(tess__pool_create(3, "", &pool, NULL), TESS_OK);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, many_rounds, pool), 0);
    for (int i = 0; i < 4; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    tess__pool_destroy(pool);
}

static void test_pool__bad_settings_are_refused_in_words(void **state) {
    (void)state;
    tess__pool *pool = NULL;
    tess_error error = { .struct_size = sizeof error };
    static const char *const lists[] = { "x", "1-", "-3", "3-1", "1;2", "99999", "1,,2" };
    assert_int_equal(tess__pool_create(0, "", &pool, &error), TESS_E_INVALID);
    assert_string_equal(error.message, "0 kernel threads asked for, expected 1 to 256");
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        assert_int_equal(tess__pool_create(2, lists[i], &pool, &error), TESS_E_INVALID);
    assert_string_equal(error.message, "\"1,,2\" is no list of cpus, expected a list such as 2,6-7");
    assert_null(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool__every_element_is_visited_once),
        cmocka_unit_test(test_pool__small_work_stays_on_the_caller),
        cmocka_unit_test(test_pool__no_pool_is_the_caller_alone),
#if defined(__SSE2__)
        cmocka_unit_test(test_pool__denormals_are_kept_and_the_callers_mode_returns),
#endif
        cmocka_unit_test(test_pool__workers_run_where_told),
        cmocka_unit_test(test_pool__callers_at_the_same_time_do_not_disturb_each_other),
        cmocka_unit_test(test_pool__bad_settings_are_refused_in_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
