/* SPDX-License-Identifier: BSD-3-Clause */
/* What each kind of executor does with a job: where it runs, which ticket stands for it, and that what fails has none.
 */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <pthread.h>
#include <string.h>

#include "core/runtime/executor.h"

static tess_status fails_with;
static pthread_t runs_on;
static uint64_t ran; /* the index of the job that ran last */

static tess_status run(void *executor, const tess__job *job) {
    (void)executor;
    runs_on = pthread_self();
    ran = (uint64_t)job->index;
    return fails_with;
}

static tess_status waits_for(tess__executor *x, uint64_t ticket) {
    *(uint64_t *)x->engine = ticket;
    return TESS_E_TIMEOUT;
}

static void test_executor__compute_runs_a_job_at_once_and_has_no_ticket(void **state) {
    tess__executor x = { .run = run };
    uint64_t ticket = 7;
    (void)state;
    tess__executor_compute(&x, NULL);
    for (int i = 0; i < 2; i++) {
        fails_with = i ? TESS_E_DEVICE : TESS_OK;
        assert_int_equal(x.post(&x, &(tess__job){ .index = 3 + i }, &ticket), fails_with);
        assert_int_equal(ran, 3 + i);
        assert_true(pthread_equal(runs_on, pthread_self()));
        assert_int_equal(ticket, 7);
    }
    assert_true(!x.copy && !x.wait);
}

/* The ticket is that of the last piece of work which the job has put on the stream. */
static void test_executor__a_stream_s_ticket_is_where_the_job_ends(void **state) {
    static tess__stream stream;
    tess__executor x = { .run = run };
    uint64_t ticket = 0;
    (void)state;
    tess__executor_stream(&x, NULL, &stream);
    stream.posted = 12;
    fails_with = TESS_OK;
    assert_int_equal(x.post(&x, &(tess__job){ .index = 1 }, &ticket), TESS_OK);
    assert_int_equal(ticket, 12);
    fails_with = TESS_E_DEVICE;
    assert_int_equal(x.post(&x, &(tess__job){ .index = 1 }, &ticket), TESS_E_DEVICE);
    assert_int_equal(ticket, 0); /* nobody waits for it */
}

static void test_executor__a_lane_runs_it_on_a_thread_of_its_own(void **state) {
    tess__executor x = { .run = run };
    char from[300], to[301];
    uint64_t ticket = 0;
    (void)state;
    fails_with = TESS_OK;
    assert_int_equal(tess__executor_lane(&x, "", NULL, NULL, NULL), TESS_OK);
    assert_int_equal(x.post(&x, &(tess__job){ .index = 5 }, &ticket), TESS_OK);
    assert_true(ticket > 0);
    assert_int_equal(tess__executor_wait(&x, &ticket), TESS_OK);
    assert_int_equal(ran, 5);
    assert_false(pthread_equal(runs_on, pthread_self()));
    fails_with = TESS_E_DEVICE;
    assert_int_equal(x.post(&x, &(tess__job){ .index = 6 }, &ticket), TESS_OK);
    assert_int_equal(tess__executor_wait(&x, &ticket), TESS_E_DEVICE);
    memset(from, 'a', sizeof from);
    memset(to, 'b', sizeof to);
    assert_int_equal(x.copy(&x, to, TESS_MEM_HOST, from, TESS_MEM_HOST, sizeof from), TESS_OK);
    assert_memory_equal(to, from, sizeof from);
    assert_int_equal(to[300], 'b');
    tess_kernel wrong = { .kernel = 999 };
    assert_int_not_equal(x.kernel(&x, &wrong), TESS_OK);
    assert_non_null(strstr(tess_last_error(), "on the host: "));
    tess__executor_end(&x);
    assert_true(!x.lane && !x.run);
    tess__executor_end(&x); /* once more is fine */
}

static void test_executor__a_ticket_is_waited_for_once(void **state) {
    uint64_t waited = 0, ticket = 9;
    tess__executor x = { .wait = waits_for, .engine = &waited };
    (void)state;
    assert_int_equal(tess__executor_wait(&x, &ticket), TESS_E_TIMEOUT);
    assert_true(waited == 9 && ticket == 0);
    waited = 0;
    assert_int_equal(tess__executor_wait(&x, &ticket), TESS_OK);
    assert_int_equal(waited, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_executor__compute_runs_a_job_at_once_and_has_no_ticket),
        cmocka_unit_test(test_executor__a_stream_s_ticket_is_where_the_job_ends),
        cmocka_unit_test(test_executor__a_lane_runs_it_on_a_thread_of_its_own),
        cmocka_unit_test(test_executor__a_ticket_is_waited_for_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
