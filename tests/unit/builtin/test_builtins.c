/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/unit/kernels/kernel_fixture.h"
#include "core/builtin/builtins.h"
#include "core/plugin/open.h"

static tess_error error;
static const void *open_builtin(uint32_t kind, const char *name) {
    const void *ops = NULL;
    void *ctx = NULL;
    memset(&error, 0, sizeof error);
    error.struct_size = sizeof error;
    tess_host host = { .struct_size = sizeof host, .args = "" };
    for (const tess__builtin *b = tess__builtins; b->kind; b++)
        if (b->kind == kind && strcmp(b->name, name) == 0)
            assert_int_equal(b->open(&host, &ops, &ctx, &error), TESS_OK);
    if (!ops)
        fail_msg("no built-in %s", name);
    if (kind == TESS_KIND_DEVICE)
        ((const tess_device_ops *)ops)->close(ctx);
    return ops;
}

static tess_comm *self(const tess_comm_ops **ops) {
    tess_comm_config config = { .struct_size = sizeof config, .nranks = 1, .group = "world" };
    tess_comm *comm = NULL;
    *ops = open_builtin(TESS_KIND_COMM, "self");
    assert_int_equal((*ops)->init(NULL, &config, &comm, &error), TESS_OK);
    return comm;
}
static tess_collective collective(uint32_t op, const void *send, uint32_t send_dtype, void *recv, uint32_t recv_dtype,
                                  uint64_t count) {
    return (tess_collective){ .struct_size = sizeof(tess_collective),
                              .op = op,
                              .redop = TESS_SUM,
                              .send_dtype = send_dtype,
                              .recv_dtype = recv_dtype,
                              .send_mem = TESS_MEM_HOST,
                              .recv_mem = TESS_MEM_HOST,
                              .send = send,
                              .recv = recv,
                              .count = count,
                              .scale = 1 };
}

static void test_builtins__table_has_every_kind_but_no_plugin(void **state) {
    (void)state;
    open_builtin(TESS_KIND_COMM, "self");
    open_builtin(TESS_KIND_OFFLOAD, "none");
    open_builtin(TESS_KIND_PRECISION, "fp32");
    open_builtin(TESS_KIND_DEVICE, "cpu");
}

static void test_builtins__arguments_to_those_that_take_none_are_refused(void **state) {
    (void)state;
    const void *ops;
    void *ctx;
    tess_host host = { .struct_size = sizeof host, .args = "x" };
    assert_int_equal(tess__optimizer_adamw_open(&host, &ops, &ctx, &error), TESS_E_INVALID);
    assert_int_equal(tess__comm_self_open(&host, &ops, &ctx, &error), TESS_E_INVALID);
    assert_int_equal(tess__offload_none_open(&host, &ops, &ctx, &error), TESS_E_INVALID);
    assert_int_equal(tess__precision_fp32_open(&host, &ops, &ctx, &error), TESS_E_INVALID);
    assert_string_equal(error.message, "precision fp32 takes no arguments, found \"x\"");
}

static void test_builtins__self_copies_casts_adds_and_scales(void **state) {
    (void)state;
    const tess_comm_ops *ops;
    tess_comm *comm = self(&ops);
    tess_request *request = NULL;
    float in[3] = { 1, 2, 3 }, out[3] = { 10, 20, 30 };
    uint16_t low[3], all[3];
    int64_t limbs[3] = { 1, -2, 3 }, sums[3] = { 0 };
    for (int i = 0; i < 3; i++)
        low[i] = tess_bf16_of_f32(in[i]);
    tess_collective batch[2] = { collective(TESS_REDUCE_SCATTER, low, TESS_BF16, out, TESS_F32, 3),
                                 collective(TESS_ALL_GATHER, low, TESS_BF16, all, TESS_BF16, 3) };
    batch[0].flags = 1;
    batch[0].scale = 0.5;
    assert_int_equal(ops->post(comm, batch, 2, &request, &error), TESS_OK);
    assert_int_equal(ops->test(request, &error), TESS_OK);
    assert_int_equal(ops->wait(request, 0, &error), TESS_OK);
    ops->request_free(request);
    assert_true(out[0] == 5.5f && out[1] == 11 && out[2] == 16.5f);
    assert_memory_equal(all, low, sizeof low);
    tess_collective reduce = collective(TESS_ALL_REDUCE, limbs, TESS_I64, sums, TESS_I64, 3);
    assert_int_equal(ops->post(comm, &reduce, 1, &request, &error), TESS_OK);
    assert_memory_equal(sums, limbs, sizeof limbs);
    reduce = collective(TESS_ALL_REDUCE, out, TESS_F32, out, TESS_F32, 3); /* in place */
    reduce.scale = 2;
    assert_int_equal(ops->post(comm, &reduce, 1, &request, &error), TESS_OK);
    assert_true(out[0] == 11 && out[2] == 33);
    tess_collective barrier = collective(TESS_BARRIER, NULL, 0, NULL, 0, 0);
    assert_int_equal(ops->post(comm, &barrier, 1, &request, &error), TESS_OK);
    ops->destroy(comm);
}

static void test_builtins__self_refuses_more_ranks_and_bad_collectives(void **state) {
    (void)state;
    const tess_comm_ops *ops;
    tess_comm *comm = self(&ops), *other = NULL;
    tess_request *request = NULL;
    float x[2] = { 0 };
    tess_comm_config config = { .struct_size = sizeof config, .nranks = 2, .rank = 1 };
    assert_int_equal(ops->init(NULL, &config, &other, &error), TESS_E_INVALID);
    assert_string_equal(error.message, "comm self serves one rank, this is rank 1 of 2: set TESSERA_COMM to another");
    tess_collective bad = collective(TESS_ALL_REDUCE, x, TESS_F32, x, TESS_F32, 2);
    static const uint32_t redops[] = { 0, TESS_MAX + 1, 9 };
    for (int i = 0; i < 3; i++) {
        bad.redop = redops[i];
        assert_int_equal(ops->post(comm, &bad, 1, &request, &error), TESS_E_UNSUPPORTED);
    }
    bad.redop = TESS_MIN;
    bad.flags = 1;
    assert_int_equal(ops->post(comm, &bad, 1, &request, &error), TESS_E_UNSUPPORTED);
    bad = collective(77, x, TESS_F32, x, TESS_F32, 2);
    assert_int_equal(ops->post(comm, &bad, 1, &request, &error), TESS_E_UNSUPPORTED);
    bad = collective(TESS_BROADCAST, x, TESS_F32, x, TESS_F32, 2);
    bad.root = 1;
    assert_int_equal(ops->post(comm, &bad, 1, &request, &error), TESS_E_INVALID);
    bad = collective(TESS_ALL_GATHER, x, TESS_F32, x, TESS_F32, 2);
    bad.recv_mem = TESS_MEM_CUDA;
    assert_int_equal(ops->post(comm, &bad, 1, &request, &error), TESS_E_UNSUPPORTED);
    bad = collective(TESS_ALL_GATHER, x, TESS_F32, x, TESS_BF16, 2);
    assert_int_equal(ops->post(comm, &bad, 1, &request, &error), TESS_E_INVALID);
    assert_null(request);
    ops->destroy(comm);
}

static void test_builtins__self_splits_and_aborts(void **state) {
    (void)state;
    const tess_comm_ops *ops;
    tess_comm *comm = self(&ops), *part = comm;
    tess_request *request = NULL;
    assert_int_equal(ops->split(comm, -1, 0, NULL, &part, &error), TESS_OK);
    assert_null(part);
    assert_int_equal(ops->split(comm, 0, 0, NULL, &part, &error), TESS_OK);
    assert_non_null(part);
    assert_int_equal(ops->abort(comm, TESS_E_PEER), TESS_OK);
    assert_int_equal(ops->abort(comm, TESS_E_TIMEOUT), TESS_OK); /* the first reason stays */
    tess_collective barrier = collective(TESS_BARRIER, NULL, 0, NULL, 0, 0);
    assert_int_equal(ops->post(comm, &barrier, 1, &request, &error), TESS_E_PEER);
    assert_int_equal(ops->health(comm, &error), TESS_E_PEER);
    assert_int_equal(ops->finalize(comm, 0, &error), TESS_E_PEER);
    assert_int_equal(ops->finalize(part, 0, &error), TESS_OK);
    ops->destroy(part);
    ops->destroy(comm);
}

static void test_builtins__self_needs_nothing_and_offers_what_it_runs(void **state) {
    (void)state;
    const tess_comm_ops *ops = open_builtin(TESS_KIND_COMM, "self");
    tess_plan_env env = { .struct_size = sizeof env, .nranks = 1 };
    tess_need need = { .struct_size = sizeof need, .device_bytes = 99 };
    tess_collective c = collective(TESS_REDUCE_SCATTER, NULL, TESS_BF16, NULL, TESS_F32, 1000);
    assert_int_equal(ops->need(NULL, &env, &c, &need), TESS_OK);
    assert_true(need.device_bytes == 0 && need.host_bytes == 0 && need.backend_bytes == 0);
    env.nranks = 2;
    assert_int_equal(ops->need(NULL, &env, &c, &need), TESS_E_UNSUPPORTED);
    env.nranks = 1;
    c.recv_dtype = TESS_I32;
    assert_int_equal(ops->need(NULL, &env, &c, &need), TESS_E_UNSUPPORTED);
    struct {
        tess_comm_caps caps;
        uint64_t later; /* of a newer header */
    } wide = { .caps = { .struct_size = sizeof wide }, .later = 5 };
    assert_int_equal(ops->query(NULL, NULL, &wide.caps), TESS_OK);
    assert_true(wide.later == 0 && wide.caps.struct_size == sizeof wide);
    assert_true(wide.caps.caps & TESS_COMM_TREE_ORDER);
    assert_string_equal(wide.caps.wire_id, "self");
}

/* Posts it with field `which` (0 to 3: operation, reduction, dtype, memory) at each value; whether the mask says what
 * runs. */
static void check_mask(const tess_comm_ops *ops, tess_comm *comm, int which, uint64_t mask) {
    double x[4] = { 0 }, y[4];
    const uint32_t end = which == 2 ? TESS_F64 + 1 : 32; /* blocks are cast, too, which the mask does not say */
    for (uint32_t k = 0; k < end; k++) {
        tess_request *request = NULL;
        const uint32_t dtype = which == 2 ? k : TESS_F32, op = which == 0 ? k : TESS_ALL_REDUCE;
        tess_collective c = collective(op, x, dtype, y, dtype, 2);
        c.redop = which == 1 ? k : TESS_SUM;
        c.recv_mem = which == 3 ? k : TESS_MEM_HOST;
        const tess_status s = ops->post(comm, &c, 1, &request, &error);
        assert_int_equal(s == TESS_OK, mask >> k & 1);
        if (!s)
            assert_int_equal(ops->wait(request, -1, &error), TESS_OK);
    }
}

static void test_builtins__self_offers_exactly_what_runs(void **state) {
    (void)state;
    const tess_comm_ops *ops;
    tess_comm *comm = self(&ops);
    tess_request *request = NULL;
    tess_comm_caps caps = { .struct_size = sizeof caps };
    float x[2] = { 3, 4 };
    assert_int_equal(ops->query(NULL, NULL, &caps), TESS_OK);
    check_mask(ops, comm, 0, caps.op_mask);
    check_mask(ops, comm, 1, caps.redop_mask);
    check_mask(ops, comm, 2, caps.dtype_mask);
    check_mask(ops, comm, 3, caps.mem_mask);
    assert_true(caps.align == 8 && caps.max_bytes == UINT64_MAX);
    /* A barrier has no data, and no elements have no root: nothing else is looked at. */
    tess_collective c = collective(TESS_BARRIER, x, TESS_F32, x, TESS_F32, 2);
    c.recv_mem = TESS_MEM_CUDA;
    assert_int_equal(ops->post(comm, &c, 1, &request, &error), TESS_OK);
    assert_int_equal(ops->wait(request, -1, &error), TESS_OK);
    c = collective(TESS_BROADCAST, x, TESS_F32, x, TESS_F32, 0);
    c.root = 1;
    assert_int_equal(ops->post(comm, &c, 1, &request, &error), TESS_OK);
    assert_int_equal(ops->wait(request, -1, &error), TESS_OK);
    assert_true(x[0] == 3 && x[1] == 4);
    ops->destroy(comm);
}

static void test_builtins__none_rests_everything_on_the_device(void **state) {
    (void)state;
    const tess_offload_ops *ops = open_builtin(TESS_KIND_OFFLOAD, "none");
    tess_region regions[3] = { { .struct_size = sizeof regions[0], .region = TESS_REGION_MASTER, .bytes = 400 } };
    tess_placement places[3];
    memset(places, 0xff, sizeof places);
    places[0].struct_size = sizeof places[0];
    assert_int_equal(ops->place(NULL, NULL, regions, 3, places, &error), TESS_OK);
    for (int i = 0; i < 3; i++)
        assert_true(places[i].rest == TESS_REST_DEVICE && places[i].host_bytes == 0 && places[i].pinned_bytes == 0);
}

static void test_builtins__fp32_keeps_the_declared_dtype(void **state) {
    (void)state;
    const tess_precision_ops *ops = open_builtin(TESS_KIND_PRECISION, "fp32");
    tess_precision_choice choice = { .struct_size = sizeof choice };
    tess_param_view param = { .struct_size = sizeof param, .dtype = TESS_F64, .name = "h.0.w" };
    assert_int_equal(ops->choose(NULL, &param, &choice, &error), TESS_OK);
    assert_true(choice.master == TESS_F64 && choice.gather == TESS_F64 && choice.accumulate == TESS_F64);
    param.dtype = TESS_BF16;
    assert_int_equal(ops->choose(NULL, &param, &choice, &error), TESS_OK);
    assert_true(choice.grad_wire == TESS_BF16 && choice.accumulate == TESS_F32);
    param.compute_mask = 1u << TESS_F32;
    assert_int_equal(ops->choose(NULL, &param, &choice, &error), TESS_E_UNSUPPORTED);
    assert_string_equal(error.message,
                        "the program cannot read its own dtype bf16, in which TESSERA_PRECISION=fp32 keeps it");
}

static tess_grain step_of(const char *name, uint32_t flags) {
    const tess_optimizer_ops *ops;
    const void *table;
    void *ctx;
    tess_grain grain = { .struct_size = sizeof grain };
    const tess_param_view param = { .struct_size = sizeof param, .dtype = TESS_F32, .name = "h.0.w", .elems = 100 };
    const tess__builtin *b = tess__builtins;
    while (b->kind != TESS_KIND_OPTIMIZER || strcmp(b->name, name) != 0)
        b++;
    assert_int_equal(b->open(NULL, &table, &ctx, &error), TESS_OK);
    ops = table;
    assert_int_equal(ops->describe(ctx, &param, flags, &grain, &error), TESS_OK);
    assert_false(TESS_CAN(tess_optimizer_ops, ops, step)); /* a device's kernel steps */
    ops->close(ctx);
    return grain;
}

static void test_builtins__optimizers_are_kernels_of_devices(void **state) {
    (void)state;
    static const struct {
        const char *name, *first;
        uint32_t kernel;
    } all[] = { { "adam", "exp_avg", TESS_OPT_ADAM },
                { "adamw", "exp_avg", TESS_OPT_ADAMW },
                { "adadelta", "square_avg", TESS_OPT_ADADELTA } };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        tess_grain g = step_of(all[i].name, 0);
        assert_true(g.grain == TESS_GRAIN_ELEMENT && g.kernel == all[i].kernel && g.n_states == 2);
        assert_true(g.state[1].dtype == TESS_F32 && g.state[1].every == 1);
        assert_string_equal(g.state[0].name, all[i].first);
    }
    assert_int_equal(step_of("sgd", 0).n_states, 0);
    assert_int_equal(step_of("sgd", TESS_STEPS_MOMENTUM).n_states, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_builtins__table_has_every_kind_but_no_plugin),
        cmocka_unit_test(test_builtins__arguments_to_those_that_take_none_are_refused),
        cmocka_unit_test(test_builtins__self_copies_casts_adds_and_scales),
        cmocka_unit_test(test_builtins__self_refuses_more_ranks_and_bad_collectives),
        cmocka_unit_test(test_builtins__self_splits_and_aborts),
        cmocka_unit_test(test_builtins__self_needs_nothing_and_offers_what_it_runs),
        cmocka_unit_test(test_builtins__self_offers_exactly_what_runs),
        cmocka_unit_test(test_builtins__none_rests_everything_on_the_device),
        cmocka_unit_test(test_builtins__fp32_keeps_the_declared_dtype),
        cmocka_unit_test(test_builtins__optimizers_are_kernels_of_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
