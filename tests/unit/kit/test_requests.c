/* SPDX-License-Identifier: BSD-3-Clause */
/* The kit's queue over a plugin that only counts: order, waiting, the sticky failure, abort, finalize. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "kit/requests.h"

struct tess_comm {
    kit_requests requests;
    int blocked, interrupted, may_fail; /* atomic */
    uint64_t tags[256];
    int n, drained, left_aborted;
};

enum { BLOCKS = 99, FAILS = 98 }; /* tags */

static tess_status comm_check(tess_comm *c, const tess_collective *call, tess_error *e) {
    (void)c;
    return call->count == 77 ? tess_plugin_fail(e, TESS_E_INVALID, "seventy-seven") : TESS_OK;
}

static tess_status comm_run(tess_comm *c, const tess_collective *calls, uint32_t n, uint32_t own_op, tess_error *e) {
    for (uint32_t i = 0; i < n; i++) {
        c->tags[c->n++] = calls[i].tag;
        __atomic_store_n(&c->blocked, calls[i].tag == BLOCKS, __ATOMIC_RELEASE);
        while (calls[i].tag == BLOCKS && !__atomic_load_n(&c->interrupted, __ATOMIC_ACQUIRE))
            kit_nap(100000);
        if (calls[i].tag == BLOCKS)
            return tess_plugin_fail(e, TESS_E_INTERNAL, "interrupted");
        while (calls[i].tag == FAILS && !__atomic_load_n(&c->may_fail, __ATOMIC_ACQUIRE))
            kit_nap(100000);
        if (calls[i].tag == FAILS)
            return tess_plugin_fail_of(e, TESS_E_PEER, 2, "rank 2 is gone");
    }
    return own_op && own_op != KIT_OP_FINALIZE ? TESS_E_INTERNAL : TESS_OK;
}

static void comm_interrupt(tess_comm *c) {
    __atomic_store_n(&c->interrupted, 1, __ATOMIC_RELEASE);
}
static void comm_drain(tess_comm *c, const tess_error *cause) {
    c->drained = cause->code;
}
static void comm_leave(tess_comm *c, const tess_error *cause, int aborted) {
    (void)cause;
    c->left_aborted = aborted;
}

static const kit_requests_ops ops = { "net", "net-work", comm_check, comm_run, comm_interrupt, comm_drain, comm_leave };
static int32_t never_aborting(void *host) {
    (void)host;
    return 0;
}
static const tess_host host = { .struct_size = sizeof host, .aborting = never_aborting, .helper_cpus = "" };
static tess_comm comm;

static int begin(void **state) {
    (void)state;
    memset(&comm, 0, sizeof comm);
    kit_requests_init(&comm.requests, &ops, &host);
    return kit_requests_start(&comm.requests, NULL);
}
static int end(void **state) {
    (void)state;
    kit_requests_stop(&comm.requests);
    kit_requests_finish(&comm.requests);
    return 0;
}

static tess_request *post(uint64_t tag, uint32_t n) {
    tess_collective calls[16];
    tess_request *r = NULL;
    for (uint32_t i = 0; i < n; i++)
        calls[i] = (tess_collective){ .struct_size = sizeof calls[i], .op = TESS_BARRIER, .tag = tag + i };
    assert_int_equal(kit_slot_post(&comm, calls, n, &r, NULL), TESS_OK);
    return r;
}

static void test_requests__run_in_post_order(void **state) {
    (void)state;
    tess_request *requests[80];
    for (int i = 0; i < 80; i++) /* more than are made at the start */
        requests[i] = post((uint64_t)i, 1);
    tess_request *batch = post(200, 16);
    assert_int_equal(kit_slot_wait(batch, -1, NULL), TESS_OK);
    for (int i = 0; i < 80; i++) {
        assert_int_equal(kit_slot_test(requests[i], NULL), TESS_OK);
        assert_int_equal(comm.tags[i], i);
        kit_slot_request_free(requests[i]);
    }
    for (int i = 0; i < 16; i++)
        assert_int_equal(comm.tags[80 + i], 200 + i);
    kit_slot_request_free(batch);
    assert_int_equal(kit_slot_finalize(&comm, -1, NULL), TESS_OK);
    assert_int_equal(kit_slot_finalize(&comm, -1, NULL), TESS_OK);
    tess_request *late = NULL;
    const tess_collective c = { .struct_size = sizeof c, .op = TESS_BARRIER };
    assert_int_equal(kit_slot_post(&comm, &c, 1, &late, NULL), TESS_E_INVALID);
}

static void test_requests__a_refused_batch_starts_nothing(void **state) {
    (void)state;
    tess_error e = { .struct_size = sizeof e };
    tess_request *r = NULL;
    const tess_collective c[2] = { { .struct_size = sizeof c[0], .op = TESS_BARRIER },
                                   { .struct_size = sizeof c[0], .op = TESS_ALL_GATHER, .count = 77 } };
    assert_int_equal(kit_slot_post(&comm, c, 2, &r, &e), TESS_E_INVALID);
    assert_string_equal(e.message, "seventy-seven");
    assert_null(r);
    tess_request *next = post(1, 1);
    assert_int_equal(kit_slot_wait(next, -1, NULL), TESS_OK);
    assert_int_equal(comm.n, 1);
    kit_slot_request_free(next);
}

static void test_requests__the_first_failure_stays(void **state) {
    (void)state;
    tess_error e = { .struct_size = sizeof e };
    tess_request *failing = post(FAILS, 1), *behind = post(5, 1), *none = NULL;
    __atomic_store_n(&comm.may_fail, 1, __ATOMIC_RELEASE); /* not before both are in the queue */
    assert_int_equal(kit_slot_wait(behind, -1, &e), TESS_E_PEER);
    assert_int_equal(e.rank, 2);
    assert_string_equal(e.message, "rank 2 is gone");
    assert_int_equal(kit_slot_wait(failing, -1, NULL), TESS_E_PEER);
    assert_int_equal(comm.drained, TESS_E_PEER);
    kit_slot_abort(&comm, TESS_E_ABORTED);
    assert_int_equal(kit_slot_health(&comm, NULL), TESS_E_PEER);
    const tess_collective c = { .struct_size = sizeof c, .op = TESS_BARRIER };
    assert_int_equal(kit_slot_post(&comm, &c, 1, &none, &e), TESS_E_PEER);
    assert_int_equal(kit_slot_finalize(&comm, -1, &e), TESS_E_PEER);
    kit_slot_request_free(failing);
    kit_slot_request_free(behind);
    kit_requests_stop(&comm.requests);
    assert_int_equal(comm.left_aborted, 1);
}

static void test_requests__a_timeout_is_no_end(void **state) {
    (void)state;
    tess_error e = { .struct_size = sizeof e };
    tess_request *r = post(BLOCKS, 1);
    assert_int_equal(kit_slot_test(r, NULL), TESS_PENDING);
    assert_int_equal(kit_slot_wait(r, 20000000, &e), TESS_E_TIMEOUT);
    assert_string_equal(e.message, "net: barrier, tag 0x63 has not ended within 0.020 s");
    assert_int_equal(kit_slot_test(r, NULL), TESS_PENDING);
    kit_slot_abort(&comm, TESS_E_TIMEOUT);
    assert_int_equal(kit_slot_wait(r, -1, &e), TESS_E_TIMEOUT);
    assert_string_equal(e.message, "net: the communicator was aborted");
    kit_slot_request_free(r);
}

static void test_requests__stopping_ends_what_is_in_flight(void **state) {
    (void)state;
    tess_request *r = post(BLOCKS, 1), *behind = post(1, 1);
    kit_requests_stop(&comm.requests);
    assert_int_equal(kit_slot_test(r, NULL), TESS_E_ABORTED);
    assert_int_equal(kit_slot_test(behind, NULL), TESS_E_ABORTED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_requests__run_in_post_order, begin, end),
        cmocka_unit_test_setup_teardown(test_requests__a_refused_batch_starts_nothing, begin, end),
        cmocka_unit_test_setup_teardown(test_requests__the_first_failure_stays, begin, end),
        cmocka_unit_test_setup_teardown(test_requests__a_timeout_is_no_end, begin, end),
        cmocka_unit_test_setup_teardown(test_requests__stopping_ends_what_is_in_flight, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
