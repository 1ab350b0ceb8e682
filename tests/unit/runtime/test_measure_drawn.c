/* SPDX-License-Identifier: BSD-3-Clause */
/* As test_measure, of plans that are drawn by chance, with plugins of the test's own: it takes no time. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include "measured.h"
#include "tests/unit/drawn_plan.h"

/* Each call wants other scratch, and fewer ranks may want more. One rank alone has nobody to call. */
static tess_status odd_need(void *ctx, const tess_plan_env *env, const tess_collective *c, tess_need *out) {
    (void)ctx;
    uint64_t h = tess__hash_u64(TESS__HASH_START, (uint64_t)c->op << 32 | c->send_dtype << 16 | c->recv_dtype);
    if (env->nranks < 2)
        return TESS_E_INVALID;
    out->device_bytes = tess__hash_u64(h, c->count << 16 | (uint64_t)env->nranks) % 5000;
    return TESS_OK;
}
static tess_status records(void *ctx, tess_comm *comm, tess_comm_caps *out) {
    (void)ctx, (void)comm;
    out->caps = TESS_COMM_RECORDS;
    return TESS_OK;
}
static const tess_comm_ops odd_comm = { .struct_size = sizeof odd_comm, .query = records, .need = odd_need };

/* Files have blocks of their own. */
static tess_status place_in_blocks(void *ctx, const tess_plan_env *env, const tess_region *regions, uint32_t n,
                                   tess_placement *out, tess_error *e) {
    tess_status s = place_by_turns(ctx, env, regions, n, out, e);
    for (uint32_t i = 0; i < n; i++)
        out[i].align = out[i].rest == TESS_REST_STORE ? 512 : 64;
    return s;
}
static const tess_offload_ops in_blocks = { .struct_size = sizeof in_blocks,
                                            .place = place_in_blocks,
                                            .store_close = close_store };

static tess_status no_recording(tess_device *d, const tess_stream *s, tess_error *e) {
    (void)d, (void)s, (void)e;
    return TESS_E_DEVICE;
}
static tess_status no_numbers(void *ctx, const tess_optimizer *o, void *out) {
    (void)ctx, (void)o, (void)out;
    return TESS_E_INVALID;
}
static const tess_device_ops with_graphs = { .struct_size = sizeof with_graphs,
                                             .kernel_need = any_kernel,
                                             .stream_create = no_stream,
                                             .record_begin = no_recording,
                                             .optimizer_prepare = no_numbers };

/* Of some the last unit alone learns; of some the last parameter is one that is stepped, and no buffer. */
static void bend(int n, tess__plan *p) {
    const int64_t elems = 90;
    tess_param_options last = { .struct_size = sizeof last, .dtype = TESS_F32, .name = "d.last", .shape = &elems };
    last.ndim = 1;
    last.compute_dtypes = 1u << TESS_F32 | 1u << TESS_BF16;
    p->setup.comm = &odd_comm;
    if (p->setup.offload == &by_turns)
        p->setup.offload = &in_blocks;
    if (p->setup.device == &with_streams)
        p->setup.device = &with_graphs, p->setup.graphs = 1, p->setup.repeats = n % 2;
    for (int32_t i = 0; n % 4 == 0 && i < p->model.n_params; i++) {
        const tess__param *root = &p->model.params[p->model.params[i].tied_to];
        if (!strchr("dy", root->name[0]) && !(root->flags & TESS_BUFFER))
            p->model.params[i].flags |= TESS_FROZEN;
    }
    if (n % 3 == 0 && p->model.n_blocks)
        assert_int_equal(tess__model_add_param(&p->model, &last, NULL), TESS_OK);
}

/* Of a comm plugin that wants scratch for each collective, and of settings that no engine on a processor takes. */
static void test_measure_drawn__plans_are_measured_as_they_are_planned(void **state) {
    (void)state;
    int planned = 0;
    bend_plan = bend;
    for (int n = 0; n < 300; n++) {
        char what[1024];
        plan f;
        tess__plan p;
        if (plan_drawn(n, &f, &p, what) == TESS_OK)
            check_plan(&p, what), planned++;
        tess__plan_free(&p);
    }
    assert_true(planned > 200);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_measure_drawn__plans_are_measured_as_they_are_planned) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
