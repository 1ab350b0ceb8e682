/* SPDX-License-Identifier: BSD-3-Clause */
/* cost of the comm plugins, by which comm=auto chooses and the simulator may count: pure, and never less for more. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <tessera/plugin_helpers.h>
#include "core/plugin/open.h"

/* -1: the plugin does not serve such ranks. */
static int64_t cost_on_hosts(const tess__plugin *p, uint32_t op, int32_t ranks, int32_t per_host, uint64_t count) {
    const tess_comm_ops *ops = p->ops;
    tess_plan_env env = { .struct_size = sizeof env, .mem = TESS_MEM_HOST, .nranks = ranks };
    env.ranks_per_host = per_host;
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
    tess_status status = ops->cost(p->ctx, &env, &c, &ns);
    assert_int_equal(status, ns < 0 ? TESS_E_UNSUPPORTED : TESS_OK);
    return ns;
}

static int64_t cost_of(const tess__plugin *p, uint32_t op, int32_t ranks, uint64_t count) {
    return cost_on_hosts(p, op, ranks, ranks, count);
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

/* By the formulas that comm=auto compares them with: bytes through memory at 12 a ns, over the network at one. */
static void test_comm_cost__is_what_moves_at_the_speed_of_its_way(void **state) {
    (void)state;
    enum { COUNT = 3 << 10 }; /* 12 KiB of one rank */
    static const struct {
        uint32_t op;
        int64_t four, one;
    } shm[] = { { TESS_ALL_GATHER, 8000 + 24 * 1024, 4000 },
                { TESS_ALL_TO_ALL, 8000 + 32 * 1024, 4000 + 2 * 1024 },
                { TESS_ALL_TO_ALL_V, 8000 + 8 * 1024, 4000 + 2 * 1024 }, /* of which no rank has more in all */
                { TESS_REDUCE_SCATTER, 8000 + 20 * 1024, 4000 + 2 * 1024 },
                { TESS_ALL_REDUCE, 8000 + 11 * 1024, 4000 + 2 * 1024 },
                { TESS_BROADCAST, 8000 + 6 * 1024, 4000 },
                { TESS_BARRIER, 8000, 4000 } };
    tess__plugin *p = NULL;
    assert_int_equal(tess__plugin_open(TESS_KIND_COMM, "shm", NULL, &p), TESS_OK);
    for (size_t i = 0; i < sizeof shm / sizeof *shm; i++) {
        assert_int_equal(cost_of(p, shm[i].op, 4, COUNT), shm[i].four);
        assert_int_equal(cost_of(p, shm[i].op, 1, COUNT), shm[i].one);
        assert_int_equal(cost_on_hosts(p, shm[i].op, 4, 2, COUNT), -1);
    }
    tess__plugin_close(p);
    assert_int_equal(tess__plugin_open(TESS_KIND_COMM, "hosts", NULL, &p), TESS_OK);
    static const struct {
        int32_t ranks, per_host;
        int64_t ns;
    } hosts[] = { { 8, 4, 100000 + 4 * 12288 + 64 * 1024 }, /* each byte crosses once, and goes through memory */
                  { 8, 2, 100000 + 6 * 12288 + 32 * 1024 },
                  { 8, 3, 49999 + 7 * 3 * 12288 }, /* in one step */
                  { 8, 8, -1 },
                  { 8, 1, -1 } };
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++)
        assert_int_equal(cost_on_hosts(p, TESS_ALL_GATHER, hosts[i].ranks, hosts[i].per_host, COUNT), hosts[i].ns);
    tess__plugin_close(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_cost__more_is_never_cheaper),
        cmocka_unit_test(test_comm_cost__is_what_moves_at_the_speed_of_its_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
