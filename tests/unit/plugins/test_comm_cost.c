/* SPDX-License-Identifier: BSD-3-Clause */
/* cost of the comm plugins, by which comm=auto chooses and the simulator may count: pure, and never less for more. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <tessera/plugin_helpers.h>
#include "core/plugin/open.h"

static int64_t cost_of(const tess__plugin *p, uint32_t op, int32_t ranks, uint64_t count) {
    const tess_comm_ops *ops = p->ops;
    tess_plan_env env = { .struct_size = sizeof env, .mem = TESS_MEM_HOST, .nranks = ranks, .ranks_per_host = ranks };
    tess_collective c = { .struct_size = sizeof c,
                          .op = op,
                          .redop = TESS_SUM,
                          .send_dtype = TESS_F32,
                          .recv_dtype = TESS_F32,
                          .send_mem = TESS_MEM_HOST,
                          .recv_mem = TESS_MEM_HOST,
                          .count = count,
                          .scale = 1 };
    int64_t ns = -1;
    assert_int_equal(ops->cost(p->ctx, &env, &c, &ns), TESS_OK);
    return ns;
}

static void check(const char *name) {
    tess__plugin *p = NULL;
    assert_int_equal(tess__plugin_open(TESS_KIND_COMM, name, NULL, &p), TESS_OK);
    const tess_comm_ops *ops = p->ops;
    for (uint32_t op = TESS_ALL_GATHER; op <= TESS_ALL_REDUCE && TESS_CAN(tess_comm_ops, ops, cost); op++) {
        int64_t before = 0;
        for (uint64_t count = 1024; count <= 1 << 24; count *= 4) {
            int64_t ns = cost_of(p, op, 4, count);
            assert_true(ns >= before);
            assert_int_equal(cost_of(p, op, 4, count), ns);
            assert_true(cost_of(p, op, 8, count) >= ns);
            before = ns;
        }
        assert_true(before > 0);
    }
    tess__plugin_close(p);
}

static void test_comm_cost__more_is_never_cheaper(void **state) {
    (void)state;
    check("gloo");
    check("shm");
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_comm_cost__more_is_never_cheaper) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
