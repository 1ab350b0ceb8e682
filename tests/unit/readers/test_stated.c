/* SPDX-License-Identifier: BSD-3-Clause */
/* What a comm plugin states for itself: the most that it names for any collective of any program, each asked as it will
 * be posted, for the ranks that take part in it. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include "core/readers/stated.h"
#include "tests/unit/said.h"

static tess_status need(void *ctx, const tess_plan_env *env, const tess_collective *c, tess_need *out) {
    assert_ptr_equal(ctx, &said_so_far);
    assert_int_equal(c->struct_size, sizeof *c);
    assert_int_equal(out->struct_size, sizeof *out);
    assert_true(c->send_mem == TESS_MEM_CUDA && c->recv_mem == TESS_MEM_CUDA && c->scale == 1);
    assert_true(env->mem == TESS_MEM_CUDA && env->ranks_per_host == 4 && env->device_budget_bytes == 77);
    say("op %u.%u of %d: %u to %u, %d; ", c->op, c->redop, env->nranks, c->send_dtype, c->recv_dtype, (int)c->count);
    out->device_bytes = 9999; /* of the arena, and no part of it */
    out->backend_bytes = c->count;
    return c->count > 1000 ? TESS_E_UNSUPPORTED : TESS_OK;
}

static const tess_comm_ops ops = { .struct_size = sizeof ops, .need = need };

static void make_plan(tess__plan *p) {
    *p = (tess__plan){ .setup = { .comm = &ops,
                                  .comm_ctx = said_so_far,
                                  .env = { .struct_size = sizeof(tess_plan_env),
                                           .mem = TESS_MEM_CUDA,
                                           .nranks = 8,
                                           .ranks_per_host = 4,
                                           .device_budget_bytes = 77 } } };
    said_so_far[0] = 0;
}

static void test_stated__nothing_is_stated_where_nothing_is_sent(void **state) {
    (void)state;
    static tess__plan p;
    tess__planned_collective alone = { .op = TESS_ALL_GATHER, .members = 1, .count = 500 };
    make_plan(&p);
    assert_int_equal(tess__stated_bytes(&p), 0);
    p.programs[0].collectives = &alone;
    p.programs[0].n_collectives = 1;
    assert_int_equal(tess__stated_bytes(&p), 0);
    expect_said("");
}

/* Whichever program has the largest, and wherever it stands there. */
static void test_stated__the_largest_of_all_programs_counts(void **state) {
    (void)state;
    for (int in = 0; in < TESS__N_PROGRAMS; in++)
        for (int at = 0; at < 3; at++) {
            static tess__plan p;
            tess__planned_collective list[TESS__N_PROGRAMS][3];
            make_plan(&p);
            for (int i = 0; i < TESS__N_PROGRAMS; i++) {
                for (int k = 0; k < 3; k++)
                    list[i][k] = (tess__planned_collective){ .op = TESS_ALL_GATHER,
                                                             .members = 2,
                                                             .count = i == in && k == at ? 701 : 700 };
                p.programs[i].collectives = list[i];
                p.programs[i].n_collectives = 3;
            }
            assert_int_equal(tess__stated_bytes(&p), 701);
        }
}

static void test_stated__each_is_asked_as_it_is_posted(void **state) {
    (void)state;
    static tess__plan p;
    tess__planned_collective list[] = {
        { .op = TESS_ALL_GATHER, .send_dtype = TESS_BF16, .recv_dtype = TESS_F32, .members = 4, .count = 12 },
        { .op = TESS_REDUCE_SCATTER,
          .redop = TESS_MAX,
          .send_dtype = TESS_F32,
          .recv_dtype = TESS_F32,
          .members = 2,
          .count = 3 },
        { .op = TESS_ALL_REDUCE, .members = 8, .count = 1001 }, /* which the plugin does not take */
    };
    char want[200];
    make_plan(&p);
    p.programs[TESS__N_PROGRAMS - 1].collectives = list;
    p.programs[TESS__N_PROGRAMS - 1].n_collectives = 3;
    assert_int_equal(tess__stated_bytes(&p), 12);
    assert_int_equal(p.setup.env.nranks, 8); /* the plan is only read */
    snprintf(want, sizeof want, "op %d.0 of 4: %d to %d, 12; op %d.%d of 2: %d to %d, 3; op %d.0 of 8: 0 to 0, 1001; ",
             TESS_ALL_GATHER, TESS_BF16, TESS_F32, TESS_REDUCE_SCATTER, TESS_MAX, TESS_F32, TESS_F32, TESS_ALL_REDUCE);
    expect_said(want);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stated__nothing_is_stated_where_nothing_is_sent),
        cmocka_unit_test(test_stated__the_largest_of_all_programs_counts),
        cmocka_unit_test(test_stated__each_is_asked_as_it_is_posted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
