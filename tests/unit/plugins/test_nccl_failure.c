/* SPDX-License-Identifier: BSD-3-Clause */
/* When memory of a communicator of comm-nccl may be freed: not beside an abort, and after a failure not beside work in
 * its streams. The driver and NCCL are functions of this test. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "plugins/comm-nccl/failure.c"
#include "plugins/comm-nccl/library.h"

enum { SOON_NS = 20000000, A_MINUTE = 60 };
#define WITHIN_A_MINUTE (kit_now_ns() + A_MINUTE * INT64_C(1000000000))

static int busy[2], asked[2]; /* of each stream: how often it still has work; how often it was asked */
static atomic_int may_end;
static tess_cuda driver;
static struct nccl_library library;
static struct nccl_settings settings;

static CUresult query(CUstream stream) {
    const int i = stream == (CUstream)&busy[1];
    asked[i]++;
    return busy[i] && busy[i]-- ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
static ncclResult_t end_slowly(ncclComm_t comm) {
    (void)comm;
    while (!atomic_load(&may_end))
        kit_nap(1000000);
    return ncclSuccess;
}
tess_status nccl_enter(const struct nccl_gpu *gpu, tess_error *e) {
    (void)gpu;
    (void)e;
    return TESS_OK;
}
void nccl_leave(const struct nccl_gpu *gpu) {
    (void)gpu;
}

static tess_comm *a_comm(int fails, int first, int second) {
    static const tess_host host = { .struct_size = sizeof host, .helper_cpus = "" };
    tess_comm *c = calloc(1, sizeof *c);
    assert_non_null(c);
    driver.cuStreamQuery = query;
    library.ncclCommAbort = end_slowly;
    settings.host = &host;
    c->settings = &settings;
    c->gpu = (struct nccl_gpu){ .cu = &driver, .lib = &library, .stream = (CUstream)&busy[0] };
    c->gpu.sums.stream = (CUstream)&busy[1];
    atomic_store(&c->stop, fails);
    busy[0] = first, busy[1] = second, asked[0] = asked[1] = 0;
    return c;
}

static void test_nccl_failure__without_one_streams_are_not_asked(void **state) {
    (void)state;
    tess_comm *c = a_comm(0, 1 << 30, 1 << 30);
    assert_int_equal(nccl_wait_until_aborted(c, kit_now_ns()), 1);
    assert_true(asked[0] == 0 && asked[1] == 0);
    free(c);
}

static void test_nccl_failure__memory_waits_for_the_work_of_both_streams(void **state) {
    (void)state;
    for (int second = 0; second < 2; second++) {
        tess_comm *c = a_comm(1, second ? 0 : 3, second ? 3 : 0);
        assert_int_equal(nccl_wait_until_aborted(c, WITHIN_A_MINUTE), 1);
        assert_true(busy[0] == 0 && busy[1] == 0 && asked[second] > 3);
        free(c);
        c = a_comm(1, second ? 0 : 1 << 30, second ? 1 << 30 : 0); /* work that does not end */
        assert_int_equal(nccl_wait_until_aborted(c, kit_now_ns() + SOON_NS), 0);
        free(c);
    }
}

static void test_nccl_failure__memory_waits_for_who_is_about_to_abort(void **state) {
    (void)state;
    tess_comm *c = a_comm(1, 0, 0);
    atomic_store(&c->comm, (ncclComm_t)&library);
    assert_int_equal(nccl_wait_until_aborted(c, kit_now_ns() + SOON_NS), 0);
    free(c);
}

static void test_nccl_failure__memory_waits_for_any_abort_of_the_process(void **state) {
    (void)state;
    tess_comm *failed = a_comm(1, 0, 0), *other = a_comm(0, 0, 0);
    atomic_store(&may_end, 0);
    atomic_store(&failed->comm, (ncclComm_t)&library);
    nccl_abort(failed);
    assert_null(atomic_load(&failed->comm));
    assert_int_equal(nccl_wait_until_aborted(failed, kit_now_ns() + SOON_NS), 0);
    assert_int_equal(nccl_wait_until_aborted(other, kit_now_ns() + SOON_NS), 0);
    nccl_abort(failed); /* again: there is nothing to abort */
    atomic_store(&may_end, 1);
    assert_int_equal(nccl_wait_until_aborted(other, WITHIN_A_MINUTE), 1);
    nccl_abort_join(failed);
    free(failed);
    free(other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nccl_failure__without_one_streams_are_not_asked),
        cmocka_unit_test(test_nccl_failure__memory_waits_for_the_work_of_both_streams),
        cmocka_unit_test(test_nccl_failure__memory_waits_for_who_is_about_to_abort),
        cmocka_unit_test(test_nccl_failure__memory_waits_for_any_abort_of_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
