/* SPDX-License-Identifier: BSD-3-Clause */
/* Work beside the compute stream: which executor has an instruction's job, which ticket stands for it, what a wait
 * waits for, and how elements are numbered for draws. The executors of this engine write down what they are handed. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "core/engine/state.h"
#include "tests/unit/said.h"

enum { GROUPS = 3 };
static tess t;
static tess__group groups[GROUPS];
static tess__in_flight *flight;

static char name_of(const tess__executor *x) {
    return x == &t.transfers.compute ? 'c' : x == &t.transfers.up ? 'u' : x == &t.transfers.down ? 'd' : 'h';
}

/* Where the ticket lies in the record of group 1. */
static const char *ticket_name(const uint64_t *ticket) {
    const tess__in_flight *f = &flight[1];
    return ticket == &f->fetched        ? "fetched"
           : ticket == &f->on_host      ? "on_host"
           : ticket == &f->stepped      ? "stepped"
           : ticket == &f->offloaded[0] ? "offloaded"
           : ticket == &f->offloaded[1] ? "offloaded output"
           : ticket == &f->reloaded[0]  ? "reloaded"
           : ticket == &f->reloaded[1]  ? "reloaded output"
                                        : "?";
}

static tess_status post(tess__executor *x, const tess__job *job, uint64_t *ticket) {
    say("%c %d.%d.%d %s; ", name_of(x), job->op, job->index, job->arg, ticket_name(ticket));
    return TESS_OK;
}

static tess_status await(tess__executor *x, uint64_t ticket) {
    say("%c %d; ", name_of(x), (int)ticket);
    return TESS_OK;
}

static int begin(void **state) {
    static int32_t segments[GROUPS + 1] = { 0, 1, 2, 2 };
    (void)state;
    tess__transfers_destroy(&t);
    memset(&t, 0, sizeof t);
    memset(groups, 0, sizeof groups);
    t.plan.compiler.stride = GROUPS;
    t.plan.setup.nranks = 2;
    t.plan.layout.groups = groups;
    t.step.first_segment = segments;
    assert_int_equal(tess__transfers_create(&t), TESS_OK);
    flight = t.transfers.in_flight;
    tess__executor *all[] = { &t.transfers.compute, &t.transfers.up, &t.transfers.down, &t.transfers.host };
    for (int i = 0; i < 4; i++)
        *all[i] = (tess__executor){ .post = post, .wait = await };
    return 0;
}

static void works(uint8_t op, uint8_t flags, const char *want) {
    char text[64];
    tess__instr in = { .op = op, .flags = flags, .index = 1 };
    assert_int_equal(tess__work(&t, &in), TESS_OK);
    snprintf(text, sizeof text, want, op);
    expect_said(text);
}

static void test_transfers__each_job_has_its_executor_and_its_ticket(void **state) {
    (void)state;
    t.pass.microbatch = 3;
    works(TESS__GATHER, 0, "c %d.1.0 fetched; ");
    works(TESS__GATHER, TESS__ASYNC, "u %d.1.0 fetched; ");
    works(TESS__PREFETCH, 0, "u %d.1.0 fetched; ");
    works(TESS__RELOAD, 0, "u %d.1.0 reloaded; ");
    works(TESS__RELOAD, TESS__OUTPUTS, "u %d.1.1 reloaded output; ");
    works(TESS__OFFLOAD, 0, "d %d.1.0 offloaded; ");
    works(TESS__OFFLOAD, TESS__OUTPUTS, "d %d.1.1 offloaded output; ");
    works(TESS__REDUCE, 0, "c %d.1.0 on_host; ");
    works(TESS__REDUCE, TESS__ASYNC, "d %d.1.0 on_host; ");
    works(TESS__SUM_SHARD, TESS__ASYNC, "d %d.1.3 on_host; "); /* which microbatch it adds */
    works(TESS__OPTIMIZE, 0, "c %d.1.0 on_host; ");
    works(TESS__OPTIMIZE, TESS__ASYNC, "d %d.1.0 on_host; ");
    t.streams.on = 1; /* all of the group rests on the host, which is another processor than the device */
    groups[1].param_rest.domain = groups[1].grad_rest.domain = TESS_DOMAIN_HOST;
    works(TESS__OPTIMIZE, TESS__ASYNC, "h %d.1.0 stepped; ");
    groups[1].step.n_states = 1;
    works(TESS__OPTIMIZE, TESS__ASYNC, "d %d.1.0 on_host; ");
}

static void waits(uint8_t op, uint8_t flags, const char *want) {
    tess__instr in = { .op = op, .flags = flags, .index = 1 };
    flight[1] =
        (tess__in_flight){ .fetched = 1, .on_host = 2, .stepped = 3, .offloaded = { 4, 5 }, .reloaded = { 6, 7 } };
    assert_int_equal(tess__work_wait(&t, &in), TESS_OK);
    expect_said(want);
    assert_int_equal(tess__work_wait(&t, &in), TESS_OK);
    expect_said(""); /* once for each */
}

static void test_transfers__a_wait_waits_for_its_job_alone(void **state) {
    (void)state;
    waits(TESS__GATHER_WAIT, 0, "u 1; ");
    waits(TESS__PREFETCH_WAIT, 0, "u 1; ");
    waits(TESS__RELOAD_WAIT, 0, "u 6; ");
    waits(TESS__RELOAD_WAIT, TESS__OUTPUTS, "u 7; ");
    waits(TESS__OFFLOAD_WAIT, 0, "d 4; ");
    waits(TESS__OFFLOAD_WAIT, TESS__OUTPUTS, "d 5; ");
    waits(TESS__REDUCE_WAIT, 0, "d 2; ");
    waits(TESS__HOST_WAIT, 0, "d 2; h 3; ");
}

static void test_transfers__the_device_steps_what_has_elements_a_kernel_and_a_place_there(void **state) {
    for (int i = 0; i < 16; i++) {
        begin(state);
        int32_t g = i & 1 ? 1 : 2; /* group 2 has no segment of this rank's */
        groups[g].step.kernel = i & 2 ? TESS_OPT_SGD : 0;
        t.streams.on = (i & 4) != 0;
        groups[g].param_rest.domain = groups[g].grad_rest.domain = i & 8 ? TESS_DOMAIN_HOST : TESS_DOMAIN_DEVICE;
        assert_int_equal(tess__steps_on_device(&t, g), (i & 3) == 3 && (i & 12) != 12);
    }
}

/* A parameter's numbers depend on the declaration alone, not on the units; each begins with a block. An alias has none.
 */
static void test_transfers__elements_are_numbered_in_the_order_of_declaration(void **state) {
    static tess__param params[5];
    static int32_t order[4] = { 4, 0, 1, 3 };
    static const uint64_t elems[5] = { 1, 257, 0, 256, 10 }, at[5] = { 0, 256, 0, 768, 1024 };
    (void)state;
    for (int32_t i = 0; i < 5; i++)
        params[i] = (tess__param){ .tied_to = i, .elems = elems[i], .offset = 64 * (uint64_t)i };
    params[2] = (tess__param){ .tied_to = 1, .elems = 257 };
    t.plan.layout.n_groups = GROUPS;
    t.plan.layout.order = order;
    t.plan.layout.n_order = 4;
    t.plan.model.params = params;
    t.plan.model.n_params = 5;
    tess__transfers_destroy(&t);
    assert_int_equal(tess__transfers_create(&t), TESS_OK);
    assert_null(t.transfers.runs); /* nobody draws */
    tess__transfers_destroy(&t);
    groups[2].draws = 1;
    assert_int_equal(tess__transfers_create(&t), TESS_OK);
    for (int i = 0; i < 4; i++) {
        const tess_place *p = &t.transfers.runs[i];
        assert_true(p->first == 64 * (uint64_t)order[i] && p->elems == elems[order[i]] && p->at == at[order[i]]);
    }
    groups[0] = (tess__group){ .first_param = 1, .n_params = 3, .draws = 1 };
    t.step.steps_done = 9;
    tess_rounding room;
    const tess_rounding *r = tess__rounding_of(&t, 0, 128, 5, &room);
    assert_true(r->runs == t.transfers.runs + 1 && r->n_runs == 3 && r->first == 128 && r->step == 9 && r->draw == 5);
    assert_int_equal(r->struct_size, sizeof room);
    groups[0].draws = 0;
    assert_null(tess__rounding_of(&t, 0, 128, 5, &room));
}

static void test_transfers__forgetting_leaves_no_ticket(void **state) {
    (void)state;
    for (int32_t g = 0; g <= GROUPS; g++)
        flight[g].fetched = flight[g].stepped = 1;
    tess__transfers_forget(&t);
    for (int32_t g = 0; g <= GROUPS; g++)
        assert_true(!flight[g].fetched && !flight[g].stepped);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_transfers__each_job_has_its_executor_and_its_ticket, begin),
        cmocka_unit_test_setup(test_transfers__a_wait_waits_for_its_job_alone, begin),
        cmocka_unit_test_setup(test_transfers__the_device_steps_what_has_elements_a_kernel_and_a_place_there, begin),
        cmocka_unit_test_setup(test_transfers__elements_are_numbered_in_the_order_of_declaration, begin),
        cmocka_unit_test_setup(test_transfers__forgetting_leaves_no_ticket, begin),
    };
    return cmocka_run_group_tests(tests, NULL, begin);
}
