/* SPDX-License-Identifier: BSD-3-Clause */
/* The transfer lane: order, waiting, failures. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <pthread.h>
#include <string.h>

#include "core/base/fp_env.h"
#include "core/base/status.h"
#include "core/runtime/lane.h"

typedef struct {
    int32_t seen[2000];
    int n;
    pthread_mutex_t gate;
    float denormal;
} record;

static tess_status note(void *user, const tess__job *job) {
    record *r = user;
    r->seen[r->n++] = job->index + job->arg;
    return TESS_OK;
}

static tess_status note_behind_gate(void *user, const tess__job *job) {
    record *r = user;
    pthread_mutex_lock(&r->gate);
    pthread_mutex_unlock(&r->gate);
    return note(user, job);
}

static tess_status refuse(void *user, const tess__job *job) {
    (void)user;
    return tess__fail(TESS_E_DEVICE, "job %d went wrong", job->index);
}

static tess_status halve(void *user, const tess__job *job) {
    record *r = user;
    volatile float smallest = 0x1p-126f;
    (void)job;
    r->denormal = smallest * 0.5f;
    return TESS_OK;
}

static tess__lane *new_lane(void) {
    tess__lane *lane = NULL;
    assert_int_equal(tess__lane_create("", &lane), TESS_OK);
    return lane;
}

static void test_transfer__jobs_run_in_order_and_wait_means_done(void **state) {
    (void)state;
    static record r;
    tess__lane *lane = new_lane();
    uint64_t ticket = 0;
    for (int i = 0; i < 2000; i++) { /* more than wait at once */
        uint64_t next = tess__lane_post(lane, note, &r, &(tess__job){ .index = i, .arg = 7 });
        assert_true(next == ticket + 1);
        ticket = next;
    }
    assert_int_equal(tess__lane_wait(lane, ticket), TESS_OK);
    assert_int_equal(r.n, 2000);
    for (int i = 0; i < 2000; i++)
        assert_int_equal(r.seen[i], i + 7);
    assert_int_equal(tess__lane_wait(lane, 0), TESS_OK);
    tess__lane_destroy(lane);
    tess__lane_destroy(NULL);
}

static void test_transfer__posting_does_not_wait_for_the_job(void **state) {
    (void)state;
    static record r;
    pthread_mutex_init(&r.gate, NULL);
    tess__lane *lane = new_lane();
    pthread_mutex_lock(&r.gate);
    tess__lane_post(lane, note_behind_gate, &r, &(tess__job){ .index = 1, .arg = 0 });
    uint64_t second = tess__lane_post(lane, note_behind_gate, &r, &(tess__job){ .index = 2, .arg = 0 });
    assert_int_equal(r.n, 0);
    pthread_mutex_unlock(&r.gate);
    assert_int_equal(tess__lane_wait(lane, second), TESS_OK);
    assert_int_equal(r.n, 2);
    tess__lane_destroy(lane);
    pthread_mutex_destroy(&r.gate);
}

static void test_transfer__a_failure_reaches_the_waiting_thread_and_stops_the_lane(void **state) {
    (void)state;
    static record r;
    tess__lane *lane = new_lane();
    uint64_t first = tess__lane_post(lane, note, &r, &(tess__job){ .index = 1, .arg = 0 });
    uint64_t bad = tess__lane_post(lane, refuse, &r, &(tess__job){ .index = 2, .arg = 0 });
    uint64_t behind = tess__lane_post(lane, note, &r, &(tess__job){ .index = 3, .arg = 0 });
    assert_int_equal(tess__lane_wait(lane, behind), TESS_E_DEVICE);
    assert_string_equal(tess_last_error(), "job 2 went wrong");
    assert_int_equal(tess__lane_wait(lane, bad), TESS_E_DEVICE);
    assert_int_equal(tess__lane_wait(lane, first), TESS_OK);
    assert_int_equal(r.n, 1);
    tess__lane_destroy(lane);
}

static void test_transfer__destroy_does_what_was_posted(void **state) {
    (void)state;
    static record r;
    tess__lane *lane = new_lane();
    for (int i = 0; i < 100; i++)
        tess__lane_post(lane, note, &r, &(tess__job){ .index = i, .arg = 0 });
    tess__lane_destroy(lane);
    assert_int_equal(r.n, 100);
}

static void test_transfer__denormals_are_kept_whatever_the_creator_does(void **state) {
    (void)state;
    static record r;
#if defined(__SSE2__)
    unsigned mxcsr = _mm_getcsr();
    _mm_setcsr(mxcsr | 0x8040u); /* flush to zero, denormals are zero */
#endif
    tess__lane *lane = new_lane();
    tess__lane_wait(lane, tess__lane_post(lane, halve, &r, &(tess__job){ .index = 0, .arg = 0 }));
    tess__lane_destroy(lane);
#if defined(__SSE2__)
    _mm_setcsr(mxcsr);
#endif
    assert_true(r.denormal == 0x1p-127f);
}

static void test_transfer__a_bad_list_of_cpus_is_refused(void **state) {
    (void)state;
    tess__lane *lane = NULL;
    assert_int_equal(tess__lane_create("2,x", &lane), TESS_E_INVALID);
    assert_non_null(strstr(tess_last_error(), "\"2,x\""));
    assert_null(lane);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_transfer__jobs_run_in_order_and_wait_means_done),
        cmocka_unit_test(test_transfer__posting_does_not_wait_for_the_job),
        cmocka_unit_test(test_transfer__a_failure_reaches_the_waiting_thread_and_stops_the_lane),
        cmocka_unit_test(test_transfer__destroy_does_what_was_posted),
        cmocka_unit_test(test_transfer__denormals_are_kept_whatever_the_creator_does),
        cmocka_unit_test(test_transfer__a_bad_list_of_cpus_is_refused),
    };
    return cmocka_run_group_tests_name("transfer", tests, NULL, NULL);
}
