/* SPDX-License-Identifier: BSD-3-Clause */
/* The kit's queue over a plugin that only counts: order, waiting, the sticky failure, abort, finalize. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>

#include "kit/requests.h"

struct tess_comm {
    kit_requests requests;
    int blocked, interrupted, may_fail; /* atomic */
    uint64_t tags[256];
    int n, drained, left_aborted;
    uint32_t own[8];
    int n_own;
    const tess_collective *next; /* behind a call of tag LOOKS */
};

enum { BLOCKS = 99, FAILS = 98, LOOKS = 97, STOPS = 96 /* as BLOCKS, and says no more than that it was stopped */ };

static tess_status comm_check(tess_comm *c, const tess_collective *call, tess_error *e) {
    (void)c;
    return call->count == 77 ? tess_plugin_fail(e, TESS_E_INVALID, "seventy-seven") : TESS_OK;
}

static tess_status comm_run(tess_comm *c, const tess_collective *calls, uint32_t n, uint32_t own_op, tess_error *e) {
    for (uint32_t i = 0; i < n; i++) {
        c->tags[c->n++] = calls[i].tag;
        while (calls[i].tag == LOOKS && !__atomic_load_n(&c->may_fail, __ATOMIC_ACQUIRE))
            kit_nap(100000);
        if (calls[i].tag == LOOKS)
            c->next = kit_requests_next(&c->requests);
        if (calls[i].op == TESS_ALL_GATHER && calls[i].recv) /* as rank 1 of two would see it */
            memcpy((char *)(uintptr_t)calls[i].recv + sizeof(kit_choice), calls[i].send, sizeof(kit_choice));
        const int blocks = calls[i].tag == BLOCKS || calls[i].tag == STOPS;
        __atomic_store_n(&c->blocked, blocks, __ATOMIC_RELEASE);
        while (blocks && !__atomic_load_n(&c->interrupted, __ATOMIC_ACQUIRE))
            kit_nap(100000);
        if (blocks)
            return tess_plugin_fail(e, calls[i].tag == BLOCKS ? TESS_E_INTERNAL : TESS_E_ABORTED, "interrupted");
        while (calls[i].tag == FAILS && !__atomic_load_n(&c->may_fail, __ATOMIC_ACQUIRE))
            kit_nap(100000);
        if (calls[i].tag == FAILS)
            return tess_plugin_fail_of(e, TESS_E_PEER, 2, "rank 2 is gone");
    }
    if (own_op) {
        c->own[c->n_own++] = own_op;
        while (own_op == KIT_OP_SPLIT && !__atomic_load_n(&c->interrupted, __ATOMIC_ACQUIRE))
            kit_nap(100000);
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

static void refuses(const tess_collective *calls, uint32_t n, const char *why) {
    tess_error e = { .struct_size = sizeof e };
    tess_request *r = NULL;
    assert_int_equal(kit_slot_post(&comm, calls, n, &r, &e), TESS_E_INVALID);
    assert_string_equal(e.message, why);
    assert_null(r);
}

static void test_requests__what_is_no_batch_is_refused(void **state) {
    (void)state;
    enum { LEAST = offsetof(tess_collective, tag) + sizeof(uint64_t) };
    static tess_collective many[UINT16_MAX + 1];
    for (int i = 0; i <= UINT16_MAX; i++)
        many[i] = (tess_collective){ .struct_size = sizeof many[i], .op = TESS_BARRIER, .tag = 1 };
    refuses(many, 0, "net: 0 collectives of 0 bytes each");
    char want[64];
    snprintf(want, sizeof want, "net: 65536 collectives of %zu bytes each", sizeof *many);
    refuses(many, UINT16_MAX + 1, want);
    many[0].struct_size = LEAST - 1;
    snprintf(want, sizeof want, "net: 1 collectives of %d bytes each", LEAST - 1);
    refuses(many, 1, want);
    many[0].struct_size = LEAST;
    tess_request *r = NULL;
    assert_int_equal(kit_slot_post(&comm, many, 1, &r, NULL), TESS_OK);
    assert_int_equal(kit_slot_wait_stream(r, NULL, NULL), TESS_OK);
    kit_slot_request_free(r);
    kit_slot_request_free(NULL);
    assert_int_equal(kit_slot_finalize(&comm, -1, NULL), TESS_OK);
    assert_int_equal(comm.n_own, 1);
    assert_int_equal(kit_slot_finalize(&comm, -1, NULL), TESS_OK); /* once */
    assert_int_equal(comm.n_own, 1);
    refuses(many, 1, "net: post after finalize");
    assert_int_equal(kit_slot_health(&comm, NULL), TESS_OK);
}

/* Room for a longer batch stays with its request. */
static void test_requests__batches_of_any_length_take_turns(void **state) {
    (void)state;
    static const uint32_t lengths[] = { 1, 4, 5, 16, 3, 8, 16, 2 };
    for (int turn = 0; turn < 2; turn++) {
        tess_request *r[8];
        comm.n = 0;
        for (int i = 0; i < 8; i++)
            r[i] = post((uint64_t)i * 100, lengths[i]);
        for (int i = 0, at = 0; i < 8; i++) {
            assert_int_equal(kit_slot_wait(r[i], 5000000000, NULL), TESS_OK);
            for (uint32_t k = 0; k < lengths[i]; k++)
                assert_int_equal(comm.tags[at++], (uint64_t)i * 100 + k);
            kit_slot_request_free(r[i]);
        }
    }
}

static void test_requests__an_operation_of_its_own_is_waited_for(void **state) {
    (void)state;
    tess_error e = { .struct_size = sizeof e };
    tess_request *r = NULL;
    assert_int_equal(kit_requests_meet(&comm.requests, KIT_OP_SPLIT, 20000000, &e), TESS_E_TIMEOUT);
    assert_string_equal(e.message, "net: split has not ended within 0.020 s");
    assert_int_equal(kit_slot_health(&comm, NULL), TESS_OK); /* late, and no failure */
    assert_int_equal(kit_slot_abort(&comm, TESS_OK), TESS_OK);
    assert_int_equal(kit_slot_health(&comm, &e), TESS_E_ABORTED); /* an abort has a cause */
    assert_string_equal(e.message, "net: the communicator was aborted");
    assert_int_equal(kit_requests_post_own(&comm.requests, KIT_OP_FINALIZE, &r, &e), TESS_E_ABORTED);
    assert_null(r);
    assert_int_equal(kit_requests_meet(&comm.requests, KIT_OP_FINALIZE, -1, &e), TESS_E_ABORTED);
    kit_requests_stop(&comm.requests);
    assert_int_equal(comm.left_aborted, 1);
    assert_int_equal(comm.drained, TESS_E_ABORTED);
}

static void test_requests__being_destroyed_is_no_abort(void **state) {
    (void)state;
    comm.left_aborted = 7;
    tess_request *r = post(BLOCKS, 1);
    tess_error e = { .struct_size = sizeof e };
    kit_requests_stop(&comm.requests);
    assert_int_equal(comm.left_aborted, 0);
    assert_int_equal(kit_slot_wait(r, 0, &e), TESS_E_ABORTED);
    assert_string_equal(e.message, "net: the communicator was destroyed");
}

static void test_requests__choices_are_gathered_or_the_communicator_fails(void **state) {
    (void)state;
    const kit_choice mine = { .color = 3, .key = -4, .value = 5 };
    kit_choice all[2] = { { 0, 0, 0 }, { 0, 0, 0 } };
    tess_error e = { .struct_size = sizeof e };
    for (int64_t timeout_ns = -1; timeout_ns <= 0; timeout_ns++) { /* none */
        memset(all, 0, sizeof all);
        assert_int_equal(kit_requests_choices(&comm.requests, &mine, all, timeout_ns, &e), TESS_OK);
        assert_true(all[1].color == 3 && all[1].key == -4 && all[1].value == 5);
    }
    assert_int_equal(comm.tags[0], 0x73706c6974);
    tess_request *r = post(BLOCKS, 1);
    assert_int_equal(kit_requests_choices(&comm.requests, &mine, all, 20000000, &e), TESS_E_TIMEOUT);
    assert_string_equal(e.message, "net: all_gather of 2 i64, tag 0x73706c6974 has not ended within 0.020 s");
    assert_int_equal(kit_slot_health(&comm, &e), TESS_E_TIMEOUT);
    assert_int_equal(kit_slot_wait(r, -1, NULL), TESS_E_TIMEOUT);
    kit_slot_request_free(r);
}

/* Of what follows only collectives are known ahead. */
static void test_requests__the_next_collective_is_known_while_one_runs(void **state) {
    (void)state;
    for (int behind = 0; behind < 3; behind++) {
        (void)(behind ? begin(state) : 0);
        tess_request *r = post(LOOKS, 1), *other = NULL;
        if (behind == 1)
            other = post(5, 2);
        if (behind == 2)
            assert_int_equal(kit_requests_post_own(&comm.requests, KIT_OP_FINALIZE, &other, NULL), TESS_OK);
        __atomic_store_n(&comm.may_fail, 1, __ATOMIC_RELEASE);
        assert_int_equal(kit_slot_wait(r, -1, NULL), TESS_OK);
        assert_int_equal(comm.next != NULL, behind == 1);
        if (behind == 1)
            assert_int_equal(comm.next->tag, 5);
        if (other)
            assert_int_equal(kit_slot_wait(other, -1, NULL), TESS_OK);
        if (behind < 2)
            (void)end(state);
    }
}

/* A suspicion is the cause, unless the running call has one of its own. */
static void test_requests__a_running_call_says_more_than_a_suspicion(void **state) {
    static const struct {
        uint64_t tag; /* 0: nothing runs */
        tess_status call, after;
    } cases[] = { { 0, TESS_OK, TESS_E_PEER },
                  { STOPS, TESS_E_PEER, TESS_E_PEER },
                  { BLOCKS, TESS_E_INTERNAL, TESS_E_INTERNAL },
                  { LOOKS, TESS_OK, TESS_E_PEER } };
    (void)state;
    for (int i = 0; i < 4; i++) {
        tess_error lost = { .struct_size = sizeof lost }, e = lost;
        tess_plugin_fail_of(&lost, TESS_E_PEER, 3, "rank 3 closed");
        (void)(i ? begin(state) : 0);
        tess_request *r = cases[i].tag ? post(cases[i].tag, 1) : NULL;
        for (int runs = 0; r && !runs; kit_nap(100000)) {
            pthread_mutex_lock(&comm.requests.lock);
            runs = comm.requests.running == r;
            pthread_mutex_unlock(&comm.requests.lock);
        }
        kit_requests_suspect(&comm.requests, &lost);
        assert_int_equal(__atomic_load_n(&comm.interrupted, __ATOMIC_ACQUIRE), 1);
        __atomic_store_n(&comm.may_fail, 1, __ATOMIC_RELEASE);
        assert_int_equal(r ? kit_slot_wait(r, -1, NULL) : TESS_OK, cases[i].call);
        tess_request *none = NULL;
        const tess_collective c = { .struct_size = sizeof c, .op = TESS_BARRIER };
        while (kit_slot_post(&comm, &c, 1, &none, &e) == TESS_OK) /* the call has ended, its worker not yet */
            kit_slot_wait(none, -1, NULL);
        assert_int_equal(kit_slot_health(&comm, &e), cases[i].after);
        assert_int_equal(e.rank, cases[i].after == TESS_E_PEER ? 3 : -1);
        if (i < 3)
            (void)end(state);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_requests__run_in_post_order, begin, end),
        cmocka_unit_test_setup_teardown(test_requests__a_refused_batch_starts_nothing, begin, end),
        cmocka_unit_test_setup_teardown(test_requests__the_first_failure_stays, begin, end),
        cmocka_unit_test_setup_teardown(test_requests__a_timeout_is_no_end, begin, end),
        cmocka_unit_test_setup_teardown(test_requests__stopping_ends_what_is_in_flight, begin, end),
        cmocka_unit_test_setup_teardown(test_requests__what_is_no_batch_is_refused, begin, end),
        cmocka_unit_test_setup_teardown(test_requests__batches_of_any_length_take_turns, begin, end),
        cmocka_unit_test_setup_teardown(test_requests__an_operation_of_its_own_is_waited_for, begin, end),
        cmocka_unit_test_setup_teardown(test_requests__being_destroyed_is_no_abort, begin, end),
        cmocka_unit_test_setup_teardown(test_requests__choices_are_gathered_or_the_communicator_fails, begin, end),
        cmocka_unit_test_setup_teardown(test_requests__the_next_collective_is_known_while_one_runs, begin, end),
        cmocka_unit_test_setup_teardown(test_requests__a_running_call_says_more_than_a_suspicion, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
