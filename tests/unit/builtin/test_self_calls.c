/* SPDX-License-Identifier: BSD-3-Clause */
/* comm self by the kernels that it runs, which are written down here: one of each collective, or none, or a clear no.
 */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>

#include "core/builtin/builtins.h"
#include "core/kernels/kernels.h"
#include <tessera/plugin_helpers.h>
#include "tests/unit/counted.h"
#include "tests/unit/said.h"

static char a[64], b[64];
static tess_status run_status;

static const char *name_of(const void *p) {
    return p == a ? "a" : p == b ? "b" : "null";
}
static tess_status run_kernel(const tess_kernel *k, tess__pool *pool, tess_error *error) {
    assert_true(!pool && k->struct_size == sizeof *k && k->n_in == 1);
    say("%s %s%s %u to %s %u, %d by %g; ", k->kernel == TESS_K_CAST ? "cast" : "sum", name_of(k->in[0]),
        k->flags == TESS_KERNEL_ADD ? " onto what is there"
        : k->flags                  ? " ?"
                                    : "",
        k->in_dtype, name_of(k->out), k->out_dtype, (int)k->elems, k->scale);
    return run_status ? tess_plugin_fail(error, run_status, "the kernel's word") : TESS_OK;
}
static tess_status kernel_need(const tess_kernel *k, tess_need *out) {
    say("need %s %u to %u; ", k->kernel == TESS_K_CAST ? "cast" : "sum", k->in_dtype, k->out_dtype);
    out->align = 64, out->device_bytes = 5;
    return run_status;
}
#define tess__kernel_run run_kernel
#define tess__kernel_need kernel_need
#include "core/builtin/comm_self.c"

static const tess_comm_ops *self_ops;
static void *self_ctx;
static tess_comm *comm;
static tess_error error;
static tess_request *request;

static int begin(void **state) {
    const tess_comm_config config = { .struct_size = sizeof config, .nranks = 1, .group = "world" };
    const void *table;
    (void)state;
    memset(&counted, 0, sizeof counted);
    run_status = TESS_OK;
    said_so_far[0] = 0;
    request = NULL;
    error = (tess_error){ .struct_size = sizeof error };
    assert_int_equal(tess__comm_self_open(NULL, &table, &self_ctx, &error), TESS_OK);
    self_ops = table;
    assert_int_equal(self_ops->init(self_ctx, &config, &comm, &error), TESS_OK);
    return 0;
}
static int end(void **state) {
    (void)state;
    self_ops->destroy(comm);
    self_ops->close(self_ctx);
    assert_int_equal(counted.live, 0);
    return 0;
}

static tess_collective collective(uint32_t op) {
    return (tess_collective){ .struct_size = sizeof(tess_collective),
                              .op = op,
                              .redop = TESS_SUM,
                              .send_dtype = TESS_BF16,
                              .recv_dtype = TESS_F32,
                              .send_mem = TESS_MEM_HOST,
                              .recv_mem = TESS_MEM_HOST,
                              .send = a,
                              .recv = b,
                              .count = 3,
                              .scale = 1 };
}
static void does(tess_collective c, const char *said) {
    request = NULL;
    if (self_ops->post(comm, &c, 1, &request, &error))
        fail_msg("%s", error.message);
    assert_non_null(request);
    assert_int_equal(self_ops->test(request, &error), TESS_OK);
    assert_int_equal(self_ops->wait(request, 0, &error), TESS_OK);
    assert_int_equal(self_ops->wait_stream(request, NULL, &error), TESS_OK);
    self_ops->request_free(request);
    expect_said(said);
}
static void refuses(tess_collective c, tess_status status, const char *message) {
    request = NULL;
    error.message[0] = 0;
    assert_int_equal(self_ops->post(comm, &c, 1, &request, &error), status);
    assert_string_equal(error.message, message);
    assert_null(request);
    expect_said("");
}

static void test_self_calls__each_collective_is_one_kernel(void **state) {
    (void)state;
    static const uint32_t copies[] = { TESS_ALL_GATHER, TESS_BROADCAST, TESS_ALL_TO_ALL };
    static const uint32_t sums[] = { TESS_REDUCE_SCATTER, TESS_ALL_REDUCE };
    for (int i = 0; i < 3; i++) {
        tess_collective c = collective(copies[i]);
        c.flags = 1, c.scale = 0.5, c.redop = 99; /* of sums alone */
        does(c, "cast a 6 to b 7, 3 by 1; ");
    }
    for (int i = 0; i < 2; i++) {
        tess_collective c = collective(sums[i]);
        does(c, "cast a 6 to b 7, 3 by 1; ");
        c.scale = 0; /* stands for 1 */
        does(c, "cast a 6 to b 7, 3 by 0; ");
        c.scale = 0.5;
        does(c, "sum a 6 to b 7, 3 by 0.5; ");
        c.flags = 1;
        does(c, "sum a onto what is there 6 to b 7, 3 by 0.5; ");
        c.scale = 1, c.flags = 3;
        does(c, "sum a onto what is there 6 to b 7, 3 by 1; ");
        c.flags = 2;
        does(c, "cast a 6 to b 7, 3 by 1; ");
        for (uint32_t redop = TESS_MIN; redop <= TESS_MAX; redop++) {
            c = collective(sums[i]), c.redop = redop;
            does(c, "cast a 6 to b 7, 3 by 1; ");
            c.flags = 1;
            refuses(c, TESS_E_UNSUPPORTED, "comm self: only a sum adds to what is there");
        }
    }
    does((tess_collective){ .struct_size = sizeof(tess_collective), .op = TESS_BARRIER, .count = 9, .send_mem = 77 },
         "");
    tess_collective c = collective(TESS_ALL_GATHER);
    c.count = 0, c.recv_mem = 77;
    does(c, "");
}

static void test_self_calls__in_place_there_is_nothing_to_copy(void **state) {
    (void)state;
    tess_collective c = collective(TESS_ALL_GATHER);
    c.recv = a, c.recv_dtype = c.send_dtype;
    does(c, "");
    c.op = TESS_ALL_REDUCE;
    does(c, "");
    c.scale = 2;
    does(c, "sum a 6 to a 6, 3 by 2; ");
    c.op = TESS_REDUCE_SCATTER;
    refuses(c, TESS_E_INVALID, "comm self: a reduce_scatter is never in place");
    c.op = TESS_BROADCAST, c.send = NULL;
    does(c, "");
    c.recv_dtype = TESS_F32;
    refuses(c, TESS_E_INVALID, "comm self: cannot cast bf16 to f32 in place");
    c.op = TESS_ALL_GATHER, c.send = a;
    refuses(c, TESS_E_INVALID, "comm self: cannot cast bf16 to f32 in place");
    c.send = NULL, c.recv_dtype = c.send_dtype; /* the kernel says that there is no input */
    does(c, "cast null 6 to a 6, 3 by 1; ");
}

static void test_self_calls__bad_collectives_are_refused_by_name(void **state) {
    (void)state;
    char want[96];
    tess_collective c;
    for (uint32_t op = 0; op < 9; op++) {
        c = collective(op), c.count = 0;
        snprintf(want, sizeof want, "comm self: operation %u is unknown", op);
        if (op < TESS_ALL_GATHER || op > TESS_BARRIER)
            refuses(c, TESS_E_UNSUPPORTED, want);
        else
            does(c, "");
    }
    for (uint32_t redop = 0; redop < 6; redop++) {
        c = collective(TESS_ALL_REDUCE), c.redop = redop;
        snprintf(want, sizeof want, "comm self: reduction %u is unknown", redop);
        if (redop < TESS_SUM || redop > TESS_MAX)
            refuses(c, TESS_E_UNSUPPORTED, want);
        else
            does(c, "cast a 6 to b 7, 3 by 1; ");
    }
    for (int32_t root = -1; root < 2; root++) {
        c = collective(TESS_BROADCAST), c.root = root;
        snprintf(want, sizeof want, "comm self: root is %d, there is only rank 0", root);
        if (root)
            refuses(c, TESS_E_INVALID, want);
        c.op = TESS_ALL_GATHER; /* which has none */
        does(c, "cast a 6 to b 7, 3 by 1; ");
    }
    for (uint32_t from = 0; from < 40; from++)
        for (uint32_t to = 0; to < 40; to++) {
            const uint32_t reached = 1u << TESS_MEM_HOST | 1u << TESS_MEM_PINNED | 1u << TESS_MEM_SHM;
            c = collective(TESS_ALL_GATHER), c.send_mem = from, c.recv_mem = to;
            snprintf(want, sizeof want, "comm self cannot reach memory kinds %u and %u", from, to);
            if (from < 32 && to < 32 && reached >> from & 1 && reached >> to & 1)
                does(c, "cast a 6 to b 7, 3 by 1; ");
            else
                refuses(c, TESS_E_UNSUPPORTED, want);
        }
}

/* Each lies where the size of a later header says; the first that fails ends a batch. */
static void test_self_calls__a_batch_goes_on_until_one_fails(void **state) {
    (void)state;
    struct {
        tess_collective c;
        uint64_t later;
    } batch[3];
    for (int i = 0; i < 3; i++) {
        batch[i].c = collective(TESS_ALL_GATHER);
        batch[i].c.struct_size = sizeof batch[0];
        batch[i].c.count = 1 + (uint64_t)i;
        batch[i].later = UINT64_MAX;
    }
    assert_int_equal(self_ops->post(comm, &batch[0].c, 3, &request, &error), TESS_OK);
    expect_said("cast a 6 to b 7, 1 by 1; cast a 6 to b 7, 2 by 1; cast a 6 to b 7, 3 by 1; ");
    request = NULL;
    batch[1].c.op = 77;
    assert_int_equal(self_ops->post(comm, &batch[0].c, 3, &request, &error), TESS_E_UNSUPPORTED);
    expect_said("cast a 6 to b 7, 1 by 1; ");
    run_status = TESS_E_INVALID;
    assert_int_equal(self_ops->post(comm, &batch[0].c, 3, &request, &error), TESS_E_INVALID);
    assert_string_equal(error.message, "the kernel's word");
    assert_null(request);
}

static void test_self_calls__needs_are_those_of_the_kernel(void **state) {
    (void)state;
    tess_plan_env env = { .struct_size = sizeof env, .nranks = 1 };
    tess_need need = { .struct_size = sizeof need };
    for (uint32_t op = 0; op < 9; op++) {
        tess_collective c = collective(op);
        const int known = op >= TESS_ALL_GATHER && op <= TESS_BARRIER, runs = known && op != TESS_BARRIER;
        need.align = need.device_bytes = 9;
        said_so_far[0] = 0;
        assert_int_equal(self_ops->need(self_ctx, op % 2 ? &env : NULL, &c, &need),
                         known ? TESS_OK : TESS_E_UNSUPPORTED);
        expect_said(runs ? "need cast 6 to 7; " : "");
        assert_true(need.align == (runs ? 64 : known ? 1 : 9) && need.device_bytes == (runs ? 5 : known ? 0 : 9));
    }
    tess_collective c = collective(TESS_ALL_REDUCE);
    c.flags = 1;
    assert_int_equal(self_ops->need(self_ctx, &env, &c, &need), TESS_OK);
    expect_said("need sum 6 to 7; ");
    env.nranks = 2;
    assert_int_equal(self_ops->need(self_ctx, &env, &c, &need), TESS_E_UNSUPPORTED);
    env.nranks = 1, run_status = TESS_E_UNSUPPORTED;
    assert_int_equal(self_ops->need(self_ctx, &env, &c, &need), TESS_E_UNSUPPORTED);
}

static void test_self_calls__communicators_are_of_one_rank(void **state) {
    (void)state;
    static const int32_t bad[][2] = { { 0, 0 }, { 0, 2 }, { 1, 1 }, { -1, 1 }, { 1, 2 } };
    tess_comm *part = (void *)a;
    char want[128];
    for (int i = 0; i < 5; i++) {
        const tess_comm_config config = { .struct_size = sizeof config, .rank = bad[i][0], .nranks = bad[i][1] };
        assert_int_equal(self_ops->init(self_ctx, &config, &part, &error), TESS_E_INVALID);
        snprintf(want, sizeof want, "comm self serves one rank, this is rank %d of %d: set TESSERA_COMM to another",
                 bad[i][0], bad[i][1]);
        assert_string_equal(error.message, want);
        assert_ptr_equal(part, a);
    }
    counted.refuse = 1;
    assert_int_equal(self_ops->split(comm, 0, 0, NULL, &part, &error), TESS_E_NOMEM);
    assert_string_equal(error.message, "comm self: no memory for a communicator");
    assert_ptr_equal(part, a);
    assert_int_equal(self_ops->split(comm, 0, 0, NULL, &part, &error), TESS_OK);
    assert_true(part != (void *)a && part != comm);
    assert_int_equal(self_ops->abort(part, TESS_OK), TESS_OK); /* for no reason */
    assert_int_equal(self_ops->health(part, &error), TESS_E_ABORTED);
    assert_string_equal(error.message, "comm self was aborted");
    assert_int_equal(self_ops->health(comm, &error), TESS_OK);
    self_ops->destroy(part);
    assert_int_equal(self_ops->split(comm, -1, 0, NULL, &part, &error), TESS_OK);
    assert_null(part);
    assert_int_equal(self_ops->abort(comm, TESS_E_PEER), TESS_OK);
    assert_int_equal(self_ops->abort(comm, TESS_E_TIMEOUT), TESS_OK);
    refuses(collective(TESS_BARRIER), TESS_E_PEER, "comm self was aborted");
    assert_int_equal(self_ops->finalize(comm, 0, &error), TESS_E_PEER);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_self_calls__each_collective_is_one_kernel, begin, end),
        cmocka_unit_test_setup_teardown(test_self_calls__in_place_there_is_nothing_to_copy, begin, end),
        cmocka_unit_test_setup_teardown(test_self_calls__bad_collectives_are_refused_by_name, begin, end),
        cmocka_unit_test_setup_teardown(test_self_calls__a_batch_goes_on_until_one_fails, begin, end),
        cmocka_unit_test_setup_teardown(test_self_calls__needs_are_those_of_the_kernel, begin, end),
        cmocka_unit_test_setup_teardown(test_self_calls__communicators_are_of_one_rank, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
