/* SPDX-License-Identifier: BSD-3-Clause */
/* cost of the comm plugins, by which comm=auto chooses and the simulator may count: pure, and never less for more. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <tessera/plugin_helpers.h>
#include "core/plugin/open.h"
#include "tests/unit/kept.h"

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

/* ---- what collectives need, in numbers ---- */

static void print_need(const tess__plugin *p, const tess_plan_env *env, const tess_collective *c, char *out) {
    const tess_comm_ops *ops = p->ops;
    tess_need need = { .struct_size = sizeof need };
    int64_t ns = -1;
    tess_status s = ops->need(p->ctx, env, c, &need);
    if (TESS_CAN(tess_comm_ops, ops, cost))
        ops->cost(p->ctx, env, c, &ns);
    if (s)
        sprintf(out, " %d", s);
    else
        sprintf(out, " %llu+%llu:%lld", (unsigned long long)need.device_bytes,
                (unsigned long long)(need.host_bytes + need.pinned_bytes), (long long)ns);
}

static void print_needs(kept *k, const tess__plugin *p, const char *name, tess_collective *c,
                        const tess_plan_env *env) {
    static const uint64_t counts[] = { 0, 1, 1000, 4096, 20000, 65536, 1 << 20, (3 << 20) + 7 };
    char line[KEPT_LINE];
    sprintf(line, "%s operation %u %s %s, %d ranks, %d a host:", name, c->op, c->redop == TESS_MAX ? "max" : "sum",
            tess_dtype_name(c->send_dtype), env->nranks, env->ranks_per_host);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        c->count = counts[i];
        print_need(p, env, c, line + strlen(line));
    }
    kept_line(k, line);
}

static void test_comm_cost__needs_equal_those_that_are_kept(void **state) {
    (void)state;
    static const char *const names[] = { "gloo", "shm", "hosts" };
    static const int32_t hosts[][2] = {
        { 1, 1 }, { 2, 2 }, { 4, 4 }, { 4, 2 }, { 6, 2 }, { 7, 4 }, { 5, 2 }, { 6, 3 }
    };
    kept k = kept_open("plugins/kept_needs.txt");
    for (int n = 0; n < 3; n++) {
        tess__plugin *p = NULL;
        assert_int_equal(tess__plugin_open(TESS_KIND_COMM, names[n], NULL, &p), TESS_OK);
        for (int i = 0; i < 8 * 7 * 3; i++) {
            tess_plan_env env = { .struct_size = sizeof env, .mem = TESS_MEM_HOST, .in_flight = 2 };
            uint32_t half = i % 3 ? TESS_BF16 : TESS_F32, redop = i % 3 == 2 ? TESS_MAX : TESS_SUM;
            tess_collective c = { .struct_size = sizeof c,
                                  .op = TESS_ALL_GATHER + (uint32_t)(i / 3 % 7),
                                  .redop = redop };
            c.send_dtype = half;
            c.recv_dtype = c.op == TESS_REDUCE_SCATTER && redop == TESS_SUM ? TESS_F32 : half;
            c.send_mem = c.recv_mem = TESS_MEM_HOST;
            c.scale = 1;
            env.nranks = hosts[i / 21][0], env.ranks_per_host = hosts[i / 21][1];
            print_needs(&k, p, names[n], &c, &env);
        }
        tess__plugin_close(p);
    }
    kept_close(&k);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_cost__more_is_never_cheaper),
        cmocka_unit_test(test_comm_cost__is_what_moves_at_the_speed_of_its_way),
        cmocka_unit_test(test_comm_cost__needs_equal_those_that_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
