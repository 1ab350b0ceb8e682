/* SPDX-License-Identifier: BSD-3-Clause */
/* When comm-nccl may abort NCCL's communicator while another thread holds its lock: not while that thread is on its way
 * into NCCL. No GPU is needed for that. */
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "plugins/comm-nccl/use.h"

enum { A_MINUTE = 60 };
static struct nccl_use use;
static atomic_int stop, spins, calls;
static sem_t reached, go_on;

static void begin_test(void) {
    use = (struct nccl_use){ .state = NCCL_UNUSED };
    atomic_store(&stop, 0);
    atomic_store(&spins, 0);
    sem_init(&reached, 0, 0);
    sem_init(&go_on, 0, 0);
}

static void test_nccl_use__once_stopped_nobody_begins(void **state) {
    struct nccl_seen seen = { 0, 0 };
    (void)state;
    begin_test();
    assert_true(nccl_use_may_abort(&use, &seen));
    atomic_store(&stop, 1);
    assert_false(nccl_use_begin(&use, &stop));
    assert_true(nccl_use_may_abort(&use, &seen));
}

/* Sleeps on its way, then in the call. */
static void *sleep_twice(void *unused) {
    if (!nccl_use_begin(&use, &stop))
        return NULL;
    sem_post(&reached);
    sem_wait(&go_on);
    nccl_use_blocks(&use);
    sem_post(&reached);
    sem_wait(&go_on);
    nccl_use_end(&use);
    return unused;
}

static int within_a_minute(struct nccl_seen *seen) {
    const struct timespec nap = { .tv_nsec = 10000000 };
    time_t late = time(NULL) + A_MINUTE;
    while (!nccl_use_may_abort(&use, seen)) {
        if (time(NULL) > late)
            return 0;
        nanosleep(&nap, NULL);
    }
    return 1;
}

static void test_nccl_use__a_thread_that_sleeps_in_the_call_may_be_aborted(void **state) {
    struct nccl_seen seen = { 0, 0 };
    pthread_t thread;
    (void)state;
    begin_test();
    assert_int_equal(pthread_create(&thread, NULL, sleep_twice, NULL), 0);
    sem_wait(&reached);
    atomic_store(&stop, 1); /* too late for it */
    for (int i = 0; i < 30; i++) {
        assert_false(nccl_use_may_abort(&use, &seen));
        usleep(1000);
    }
    sem_post(&go_on);
    sem_wait(&reached);
    assert_true(within_a_minute(&seen));
    sem_post(&go_on);
    pthread_join(thread, NULL);
    assert_true(nccl_use_may_abort(&use, &seen));
    assert_false(nccl_use_begin(&use, &stop));
}

/* Never sleeps in its calls; begins another one whenever it is asked to. */
static void *spin(void *unused) {
    for (int call = 0; atomic_load(&spins); call++) {
        nccl_use_begin(&use, &stop);
        nccl_use_blocks(&use);
        sem_post(&reached);
        while (atomic_load(&spins) && atomic_load(&calls) == call)
            ;
        nccl_use_end(&use);
    }
    return unused;
}

static void test_nccl_use__a_thread_that_runs_in_the_call_may_be_aborted(void **state) {
    struct nccl_seen seen = { 0, 0 };
    pthread_t thread;
    (void)state;
    begin_test();
    atomic_store(&spins, 1);
    atomic_store(&calls, 0);
    assert_int_equal(pthread_create(&thread, NULL, spin, NULL), 0);
    sem_wait(&reached);
    assert_false(nccl_use_may_abort(&use, &seen)); /* it may not have got there yet */
    assert_true(within_a_minute(&seen));
    atomic_fetch_add(&calls, 1);
    sem_wait(&reached);
    assert_false(nccl_use_may_abort(&use, &seen)); /* another call */
    assert_true(within_a_minute(&seen));
    atomic_store(&spins, 0);
    pthread_join(thread, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nccl_use__once_stopped_nobody_begins),
        cmocka_unit_test(test_nccl_use__a_thread_that_sleeps_in_the_call_may_be_aborted),
        cmocka_unit_test(test_nccl_use__a_thread_that_runs_in_the_call_may_be_aborted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
