/* SPDX-License-Identifier: BSD-3-Clause */
/* comm=auto over plugins that are only written down here: what each is asked, what that counts, who is opened. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "core/base/status.h"
#include "core/plugin/open.h"
#include "tests/unit/said.h"

static struct {
    tess_plan_env env;
    tess_status query, need, cost, ask, open;
    uint32_t memory;
    int64_t cost_ns;
    int costs; /* whether the plugin has the slot */
    tess_collective asked;
} world;
static const tess_host services;
static int64_t (*ask_one)(void *, const tess__plugin *);
static const tess__plugin_row *rows;
static int n_rows;

static tess_status fake_query(void *ctx, tess_comm *comm, tess_comm_caps *out) {
    assert_true(ctx == &world && !comm && out->struct_size == sizeof *out);
    out->mem_mask = world.memory;
    return world.query;
}
static tess_status fake_need(void *ctx, const tess_plan_env *env, const tess_collective *c, tess_need *out) {
    assert_true(ctx == &world && env == &world.env && out->struct_size == sizeof *out);
    world.asked = *c;
    return world.need;
}
static tess_status fake_cost(void *ctx, const tess_plan_env *env, const tess_collective *c, int64_t *ns) {
    assert_true(ctx == &world && env == &world.env);
    assert_memory_equal(c, &world.asked, sizeof *c);
    if (world.cost_ns >= -1)
        *ns = world.cost_ns;
    return world.cost;
}

static tess_status ask_all(uint32_t kind, const tess_host *h, int64_t (*ask)(void *, const tess__plugin *),
                           tess__plugin_row_fn *row, void *user) {
    tess__plugin *none = NULL;
    assert_true(kind == TESS_KIND_COMM && h == &services);
    tess_comm_ops ops = { .struct_size = sizeof ops, .query = fake_query, .need = fake_need };
    const tess__plugin p = { .kind = TESS_KIND_COMM, .ops = &ops, .ctx = &world };
    ops.cost = world.costs ? fake_cost : NULL;
    if (world.ask)
        return world.ask;
    ask_one = ask;
    if (!n_rows)
        say("%lld; ", (long long)ask(user, &p));
    for (int i = 0; i < n_rows; i++)
        assert_int_equal(row(user, &rows[i], &none), TESS_OK);
    return TESS_OK;
}
static tess_status open_it(uint32_t kind, const char *name, const tess_host *h, tess__plugin **out) {
    static tess__plugin opened;
    assert_true(kind == TESS_KIND_COMM && h == &services);
    say("open %s; ", name);
    *out = &opened;
    return world.open;
}
#define tess__plugin_ask ask_all
#define tess__plugin_open open_it
#include "core/plugin/auto_comm.c"

static int begin(void **state) {
    (void)state;
    memset(&world, 0, sizeof world);
    said_so_far[0] = 0;
    world.env =
        (tess_plan_env){ .struct_size = sizeof world.env, .mem = TESS_MEM_HOST, .nranks = 4, .ranks_per_host = 2 };
    world.memory = 1u << TESS_MEM_HOST;
    n_rows = 0;
    return 0;
}

static void cost_is(const char *said) {
    tess__plugin *p = NULL;
    assert_int_equal(tess__comm_choose(&services, &world.env, &p), TESS_E_INVALID); /* it is asked alone */
    assert_null(p);
    expect_said(said);
}

/* 16 MiB in all are gathered; without a word of the plugin over 1 GB/s, which a host's ranks share, and 50 µs. */
static void test_comm_choice__what_a_plugin_costs(void **state) {
    (void)state;
    static const struct {
        int32_t ranks, per_host;
        long long ns;
    } by_default[] = { { 4, 2, 50000 + 4194304LL * 3 * 2 },
                       { 4, 0, 50000 + 4194304LL * 3 },
                       { 4, -1, 50000 + 4194304LL * 3 },
                       { 2, 1, 50000 + 8388608LL },
                       { 1024, 8, 50000 + 16384LL * 1023 * 8 } };
    char want[64];
    for (int has = 0; has < 3; has++) /* no slot; one that fails; one that says it does not know */
        for (size_t i = 0; i < sizeof by_default / sizeof by_default[0]; i++) {
            world.costs = has > 0, world.cost = has == 1 ? TESS_E_UNSUPPORTED : TESS_OK,
            world.cost_ns = has == 1 ? 5 : -1;
            world.env.nranks = by_default[i].ranks, world.env.ranks_per_host = by_default[i].per_host;
            snprintf(want, sizeof want, "%lld; ", by_default[i].ns);
            cost_is(want);
            assert_int_equal(world.asked.count, (16 << 20) / by_default[i].ranks);
        }
    begin(NULL);
    world.costs = 1;
    static const int64_t own[] = { 0, 1, INT64_C(1) << 40 };
    for (int i = 0; i < 3; i++) {
        world.cost_ns = own[i];
        snprintf(want, sizeof want, "%lld; ", (long long)own[i]);
        cost_is(want);
    }
    world.cost_ns = -2; /* it leaves what is there, which says nothing */
    cost_is("25215824; ");
}

static void test_comm_choice__a_gather_of_bytes_in_the_devices_memory_is_asked_for(void **state) {
    (void)state;
    world.env.mem = TESS_MEM_CUDA;
    world.memory = 1u << TESS_MEM_CUDA;
    cost_is("25215824; ");
    const tess_collective *c = &world.asked;
    assert_int_equal(c->struct_size, sizeof *c);
    assert_true(c->op == TESS_ALL_GATHER && c->send_dtype == TESS_U8 && c->recv_dtype == TESS_U8 && c->scale == 1);
    assert_true(c->send_mem == TESS_MEM_CUDA && c->recv_mem == TESS_MEM_CUDA && !c->send && !c->recv && !c->flags);
}

static void test_comm_choice__who_does_not_serve_such_ranks_costs_nothing(void **state) {
    (void)state;
    world.query = TESS_E_SYSTEM;
    cost_is("-1; ");
    begin(NULL);
    world.need = TESS_E_UNSUPPORTED;
    cost_is("-1; ");
    begin(NULL);
    world.memory = ~(1u << TESS_MEM_HOST);
    cost_is("-1; ");
    world.env.mem = TESS_MEM_SHM;
    cost_is("25215824; ");
}

static void test_comm_choice__the_cheapest_is_opened_of_equal_ones_the_first_by_name(void **state) {
    (void)state;
#define ROW(name, path, usable, answer)                                                                                \
    { TESS_KIND_COMM, name, "", path, 0, 0, usable, answer, "" }
    static const tess__plugin_row list[] = {
        ROW("self", "", 1, 0),    ROW("broken", "/p", 0, 1), ROW("no", "/p", 1, -1),   ROW("slow", "/p", 1, 30),
        ROW("gamma", "/p", 1, 8), ROW("delta", "/p", 1, 7),  ROW("alpha", "/p", 1, 7), ROW("beta", "/p", 1, 7),
        ROW("free", "/p", 1, 0),  ROW("far", "/p", 1, 1),
    };
    static const char *const chosen[] = {
        NULL, NULL, NULL, "slow", "gamma", "delta", "alpha", "alpha", "free", "free"
    };
    for (int n = 1; n <= 10; n++) {
        tess__plugin *p = NULL;
        char want[64] = "";
        rows = list, n_rows = n;
        assert_int_equal(tess__comm_choose(&services, &world.env, &p), chosen[n - 1] ? TESS_OK : TESS_E_INVALID);
        if (chosen[n - 1])
            snprintf(want, sizeof want, "open %s; ", chosen[n - 1]);
        else
            assert_string_equal(tess_last_error(),
                                "4 ranks need a comm plugin and none is usable; `tessera plugins list` says why");
        expect_said(want);
    }
    tess__plugin *p = NULL;
    world.open = TESS_E_VERSION;
    assert_int_equal(tess__comm_choose(&services, &world.env, &p), TESS_E_VERSION);
    expect_said("open free; ");
    world.ask = TESS_E_NOMEM;
    assert_int_equal(tess__comm_choose(&services, &world.env, &p), TESS_E_NOMEM);
    world.env.nranks = 1; /* nobody is asked */
    world.open = TESS_OK;
    assert_int_equal(tess__comm_choose(&services, &world.env, &p), TESS_OK);
    expect_said("open self; ");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_comm_choice__what_a_plugin_costs, begin),
        cmocka_unit_test_setup(test_comm_choice__a_gather_of_bytes_in_the_devices_memory_is_asked_for, begin),
        cmocka_unit_test_setup(test_comm_choice__who_does_not_serve_such_ranks_costs_nothing, begin),
        cmocka_unit_test_setup(test_comm_choice__the_cheapest_is_opened_of_equal_ones_the_first_by_name, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
