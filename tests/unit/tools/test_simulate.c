/* SPDX-License-Identifier: BSD-3-Clause */
/* Steps small enough to be timed by hand. Two scopes of 1024 elements; forward takes 1 s, backward 2 s. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>

#include "tests/unit/plan_fixture.h"
#include "core/runtime/trace.h"
#include "tools/plan/simulate.h"

enum { A, B, SCOPES };

static void assert_near(double got, double expected) {
    if (!(fabs(got - expected) <= 1e-9))
        fail_msg("%.12g, expected %.12g", got, expected);
}

typedef struct {
    plan p;
    machine_desc machine;
    scope_cost costs[SCOPES];
    int32_t apart;
    simulated_step line;
} step;

static void make(step *s, int32_t ranks, double link) {
    memset(s, 0, sizeof *s);
    plan_init(&s->p, ranks);
    plan_scope(&s->p, "a");
    plan_scope(&s->p, "b");
    assert_int_equal(plan_param(&s->p, "a.w", 1024, 0), TESS_OK);
    assert_int_equal(plan_param(&s->p, "b.w", 1024, 0), TESS_OK);
    plan_layout(&s->p);
    assert_int_equal(tess__compile_pass(&s->p.compiler, TESS_PASS_TRAIN, NULL, 0, &s->p.program), TESS_OK);
    for (int k = 0; k < SCOPES; k++)
        s->costs[k] = (scope_cost){ .forward_seconds = 1, .backward_seconds = 2 };
    s->machine = (machine_desc){ .algorithm = MACHINE_DIRECT, .within = { 0, link } };
}

static void run(step *s) {
    const tess__program *programs[] = { &s->p.program };
    simulation in = { .setup = &s->p.setup,
                      .model = &s->p.model,
                      .layout = &s->p.layout,
                      .machine = &s->machine,
                      .costs = s->costs,
                      .comm = "gloo",
                      .apart = s->apart,
                      .threads = 1,
                      .programs = programs,
                      .n_programs = 1 };
    assert_int_equal(simulate_step(&in, &s->line), TESS_OK);
}

static void done(step *s) {
    simulated_free(&s->line);
    plan_free(&s->p);
}

static const tess__span *find(const step *s, uint8_t track, uint8_t op, uint8_t event, int32_t index) {
    for (int32_t i = 0; i < s->line.n_spans; i++) {
        const tess__span *span = &s->line.spans[i];
        if (span->track == track && span->op == op && span->event == event && span->index == index)
            return span;
    }
    fail_msg("no span of op %u", op);
    return NULL;
}

static void assert_span(const step *s, uint8_t lane, uint8_t op, uint8_t event, int32_t index, double start,
                        double seconds) {
    const tess__span *span = find(s, lane, op, event, index);
    assert_near(span->start, start);
    assert_near(span->seconds, seconds);
}

/* A collective moves half of 4096 bytes per rank: 1 s at 2048 bytes/s. */
static void test_simulate__collectives_as_long_as_forward_hide_but_at_both_ends(void **state) {
    (void)state;
    step s;
    make(&s, 2, 2048);
    run(&s);
    assert_near(s.line.seconds, 8);
    assert_near(s.line.exposed[TESS__TRACK_COMM], 2);
    assert_near(s.line.busy[TESS__TRACK_COMM], 5);
    assert_near(s.line.busy[TESS__TRACK_COMPUTE], 6);
    assert_near(s.line.critical[TESS__TRACK_COMPUTE], 6);
    assert_near(s.line.critical[TESS__TRACK_COMM], 2);
    assert_span(&s, TESS__TRACK_COMM, TESS__GATHER, 0, A, 0, 1);
    assert_span(&s, TESS__TRACK_COMM, TESS__GATHER, 0, B, 1, 1); /* while forward of a runs */
    assert_span(&s, TESS__TRACK_COMPUTE, TESS__ENTER, TESS__FORWARD_BEGIN, A, 1, 1);
    assert_span(&s, TESS__TRACK_COMPUTE, TESS__ENTER, TESS__BACKWARD_BEGIN, B, 3, 2);
    assert_span(&s, TESS__TRACK_COMM, TESS__REDUCE, 0, B, 5, 1);
    assert_span(&s, TESS__TRACK_COMPUTE, TESS__ENTER, TESS__BACKWARD_BEGIN, A, 5, 2);
    assert_span(&s, TESS__TRACK_COMM, TESS__REDUCE, 0, A, 7, 1);
    assert_false(find(&s, TESS__TRACK_COMM, TESS__REDUCE, 0, B)->critical);
    assert_true(find(&s, TESS__TRACK_COMM, TESS__REDUCE, 0, A)->critical);
    done(&s);
}

static void test_simulate__slow_collectives_are_exposed_and_queue(void **state) {
    (void)state;
    step s;
    make(&s, 2, 2048.0 / 3);
    run(&s);
    assert_near(s.line.seconds, 16);
    assert_near(s.line.exposed[TESS__TRACK_COMM], 10);
    assert_span(&s, TESS__TRACK_COMM, TESS__REDUCE, 0, B, 10, 3); /* posted at 9, behind the gather of a */
    assert_near(s.line.critical[TESS__TRACK_COMPUTE] + s.line.critical[TESS__TRACK_COMM], 16);
    done(&s);
}

/* Collectives of 3 s, as above. The gather of a has 1 s left at 9, when the reduction of b begins beside it: each has
 * half of the link until 11, and the reduction goes on alone. */
static void test_simulate__reductions_apart_share_the_link_with_gathers(void **state) {
    (void)state;
    step s;
    make(&s, 2, 2048.0 / 3);
    s.apart = 1;
    run(&s);
    assert_near(s.line.seconds, 16); /* the link is never idle from 7 on, as before */
    assert_span(&s, TESS__TRACK_COMM, TESS__REDUCE, 0, B, 9, 4);
    assert_span(&s, TESS__TRACK_COMPUTE, TESS__ENTER, TESS__BACKWARD_BEGIN, A, 11, 2);
    assert_span(&s, TESS__TRACK_COMM, TESS__REDUCE, 0, A, 13, 3);
    int gathers = 0;
    for (int32_t i = 0; i < s.line.n_spans; i++)
        gathers += s.line.spans[i].track == TESS__TRACK_COMM && s.line.spans[i].op == TESS__GATHER &&
                   s.line.spans[i].start == 7 && s.line.spans[i].seconds == 4;
    assert_int_equal(gathers, 1);
    done(&s);
}

static void test_simulate__one_rank_only_computes(void **state) {
    (void)state;
    step s;
    make(&s, 1, 0);
    run(&s);
    assert_near(s.line.seconds, 6);
    assert_near(s.line.exposed[TESS__TRACK_COMM], 0);
    assert_near(s.line.busy[TESS__TRACK_COMM], 0);
    for (int32_t i = 0; i < s.line.n_spans; i++)
        assert_true(s.line.spans[i].critical);
    done(&s);
}

/* Two ranks on two cores; a collective keeps a core busy: what overlaps takes as long as one after the other. */
static void test_simulate__lanes_that_share_a_core_slow_each_other(void **state) {
    (void)state;
    machine_collective measured[] = {
        { .comm = "gloo", .op = TESS_ALL_GATHER, .ranks = 2, .bytes = 4096, .seconds = 1, .cpu_seconds = 1 },
        { .comm = "gloo", .op = TESS_REDUCE_SCATTER, .ranks = 2, .bytes = 4096, .seconds = 1, .cpu_seconds = 1 },
    };
    step s;
    make(&s, 2, 0);
    s.machine.is_cpu = 1;
    s.machine.cores = 2;
    s.machine.ranks_per_node = 2;
    s.machine.collectives = measured;
    s.machine.n_collectives = 2;
    run(&s);
    assert_near(s.line.seconds, 11);
    assert_span(&s, TESS__TRACK_COMPUTE, TESS__ENTER, TESS__FORWARD_BEGIN, A, 1, 2);
    assert_span(&s, TESS__TRACK_COMPUTE, TESS__ENTER, TESS__BACKWARD_BEGIN, B, 4, 3);
    assert_span(&s, TESS__TRACK_COMPUTE, TESS__ENTER, TESS__BACKWARD_BEGIN, A, 7, 3);
    done(&s);
    make(&s, 2, 0); /* with a core to spare they do not */
    s.machine.is_cpu = 1;
    s.machine.cores = 4;
    s.machine.collectives = measured;
    s.machine.n_collectives = 2;
    run(&s);
    assert_near(s.line.seconds, 8);
    done(&s);
}

static void test_simulate__counts_become_seconds_by_the_machines_rates(void **state) {
    (void)state;
    step s;
    make(&s, 1, 0);
    s.costs[A] = (scope_cost){ .forward_flops = 100, .forward_bytes = 30, .forward_kernels = 4 };
    s.costs[B] = (scope_cost){ .backward_flops = 200, .backward_bytes = 60 };
    s.machine.flops_per_second[TESS_F32] = 50;
    s.machine.memory_bytes_per_second = 1e9;
    run(&s);
    double zeroing = 2 * 4096 / 1e9; /* gradients */
    assert_near(s.line.seconds, 2 + 4 + 90 / 1e9 + zeroing);
    done(&s);
}

/* Products in fp8 have a rate of their own; without one that of the compute dtype. */
static void test_simulate__products_in_fp8_have_their_own_rate(void **state) {
    (void)state;
    for (int says = 0; says < 2; says++) {
        step s;
        make(&s, 1, 0);
        s.costs[A] = (scope_cost){ .forward_flops = 100, .forward_fp8 = 40 };
        s.costs[B] = (scope_cost){ .backward_flops = 200, .backward_fp8 = 200 };
        s.machine.flops_per_second[TESS_F32] = 50;
        s.machine.flops_per_second[TESS_F8E4M3] = says ? 80 : 0;
        s.machine.memory_bytes_per_second = 1e9;
        run(&s);
        double zeroing = 2 * 4096 / 1e9;
        assert_near(s.line.seconds, zeroing + (says ? 60 / 50.0 + 40 / 80.0 + 200 / 80.0 : 2 + 4));
        done(&s);
    }
}

/* ---- activations and prefetching ---- */
static tess_status no_work(void *user, const tess_block_call *call) {
    (void)user, (void)call;
    return TESS_OK;
}

/* As make(), but of blocks, whose saved buffers are 200 bytes. */
static double seconds_of_blocks(int activations, const tess_block_options *like, int32_t ranks, int32_t prefetch) {
    static const char *const names[] = { "a", "b" };
    step s;
    memset(&s, 0, sizeof s);
    plan_init(&s.p, ranks);
    s.p.setup.activations = activations;
    s.p.setup.prefetch = prefetch;
    for (int k = 0; k < SCOPES; k++) {
        tess_block_options o = *like;
        o.struct_size = sizeof o, o.name = names[k], o.saved_bytes = 200, o.output_bytes = 100;
        o.forward = o.backward = no_work;
        assert_int_equal(tess__model_add_block(&s.p.model, &o, NULL), TESS_OK);
        assert_int_equal(plan_param(&s.p, k ? "b.w" : "a.w", 1024, 0), TESS_OK);
        s.costs[k] = (scope_cost){ .forward_seconds = 1, .backward_seconds = 2 };
    }
    plan_layout(&s.p);
    assert_int_equal(tess__compile_pass(&s.p.compiler, TESS_PASS_TRAIN, NULL, 0, &s.p.program), TESS_OK);
    s.machine = (machine_desc){ .algorithm = MACHINE_DIRECT, .within = { 0, 2048 } };
    run(&s);
    double seconds = s.line.seconds;
    done(&s);
    return seconds;
}

/* Two blocks: the last never makes anything again. */
static void test_simulate__what_backward_makes_again_takes_its_time(void **state) {
    (void)state;
    tess_block_options plain = { .forward_work = 8, .selective_work = 2 }, remakes = plain, selects = plain,
                       keeps = plain;
    remakes.remake_scratch_bytes = 64;
    selects.selective_saved_bytes = 100;
    keeps.flags = TESS_BLOCK_KEEP;
    assert_near(seconds_of_blocks(TESS__ACTIVATIONS_KEEP, &remakes, 1, 1), 6);
    assert_near(seconds_of_blocks(TESS__ACTIVATIONS_RECOMPUTE, &remakes, 1, 1), 7); /* inside backward */
    assert_near(seconds_of_blocks(TESS__ACTIVATIONS_RECOMPUTE, &plain, 1, 1), 7);   /* by a second forward */
    assert_near(seconds_of_blocks(TESS__ACTIVATIONS_RECOMPUTE, &keeps, 1, 1), 6);
    assert_near(seconds_of_blocks(TESS__ACTIVATIONS_SELECTIVE, &selects, 1, 1), 6.25);
    assert_near(seconds_of_blocks(TESS__ACTIVATIONS_SELECTIVE, &plain, 1, 1), 6);
    selects.forward_work = selects.selective_work = 0; /* not said: half */
    assert_near(seconds_of_blocks(TESS__ACTIVATIONS_SELECTIVE, &selects, 1, 1), 6.5);
}

/* Each collective takes 1 s. Without prefetching, the gather of b in forward is waited for, and in backward that of a,
 * behind the reduction of b. */
static void test_simulate__without_prefetching_gathers_are_waited_for(void **state) {
    (void)state;
    tess_block_options o = { .forward_work = 1 };
    assert_near(seconds_of_blocks(TESS__ACTIVATIONS_KEEP, &o, 2, 1), 8);
    assert_near(seconds_of_blocks(TESS__ACTIVATIONS_KEEP, &o, 2, 0), 11);
}

static tess_status choose_bf16(void *ctx, const tess_param_view *p, tess_precision_choice *out, tess_error *e) {
    (void)ctx, (void)p, (void)e;
    out->master = out->accumulate = TESS_F32;
    out->compute = out->gather = out->grad_local = out->grad_wire = TESS_BF16;
    return TESS_OK;
}

static tess_status place_on_host(void *ctx, const tess_plan_env *env, const tess_region *r, uint32_t n,
                                 tess_placement *out, tess_error *e) {
    (void)ctx, (void)env, (void)e;
    for (uint32_t i = 0; i < n; i++) {
        out[i].rest = TESS_REST_HOST;
        out[i].host_bytes = out[i].pinned_bytes = r[i].bytes;
    }
    return TESS_OK;
}

/* How long the shard of b takes from the host, at 2048 bytes/s. */
static double seconds_of_fetch(int32_t ranks, int low_copy, uint8_t op) {
    static const tess_precision_ops precision = { .struct_size = sizeof precision, .choose = choose_bf16 };
    static const tess_offload_ops offload = { .struct_size = sizeof offload, .place = place_on_host };
    step s;
    memset(&s, 0, sizeof s);
    plan_init(&s.p, ranks);
    s.p.setup.precision = &precision;
    s.p.setup.offload = &offload;
    s.p.setup.low_copy = low_copy;
    s.p.setup.prefetch = 0; /* so that it comes up, but is not sent yet */
    for (int k = 0; k < SCOPES; k++) {
        tess_param_options o = { .struct_size = sizeof o,
                                 .dtype = TESS_F32,
                                 .compute_dtypes = 1 << TESS_BF16,
                                 .name = k ? "b.w" : "a.w",
                                 .shape = (const int64_t[]){ 1024 },
                                 .ndim = 1 };
        plan_scope(&s.p, k ? "b" : "a");
        assert_int_equal(tess__model_add_param(&s.p.model, &o, NULL), TESS_OK);
        s.costs[k] = (scope_cost){ .forward_seconds = 1, .backward_seconds = 2 };
    }
    plan_layout(&s.p);
    assert_int_equal(tess__compile_pass(&s.p.compiler, TESS_PASS_TRAIN, NULL, 0, &s.p.program), TESS_OK);
    s.machine = (machine_desc){ .algorithm = MACHINE_DIRECT, .within = { 0, 2048 }, .up_bytes_per_second = 2048 };
    run(&s);
    double seconds = find(&s, TESS__TRACK_UP, op, 0, B)->seconds;
    done(&s);
    return seconds;
}

/* Read in fp32 or as a copy in bf16, written in bf16: half of both, whether it is then sent to others or not. */
static void test_simulate__a_copy_comes_from_the_host_with_fewer_bytes(void **state) {
    (void)state;
    assert_near(seconds_of_fetch(2, 0, TESS__PREFETCH), 512 * 3 / 2048.0);
    assert_near(seconds_of_fetch(2, 1, TESS__PREFETCH), 512 * 2 / 2048.0);
    assert_near(seconds_of_fetch(1, 0, TESS__GATHER), 1024 * 3 / 2048.0);
    assert_near(seconds_of_fetch(1, 1, TESS__GATHER), 1024 * 2 / 2048.0);
}

/* ---- one collective ---- */

static void test_collective__widest_and_narrowest_level_and_latency(void **state) {
    (void)state;
    machine_desc m = { .within = { 1e-6, 100 }, .across = { 1e-5, 10 }, .ranks_per_node = 8 };
    /* 8 ranks of a node: 7/8 of the bytes at 100/s, 7 hops of a ring */
    assert_near(simulate_collective(&m, NULL, TESS_ALL_GATHER, 8, 8, 800, NULL), 7 + 7e-6);
    /* 16 ranks, 8 to a node: 8 links of 10/s between nodes; 80/s is the narrower */
    assert_near(simulate_collective(&m, NULL, TESS_ALL_GATHER, 16, 8, 800, NULL), 750 / 80.0 + 15e-5);
    m.algorithm = MACHINE_TREE;
    assert_near(simulate_collective(&m, NULL, TESS_ALL_REDUCE, 16, 1, 800, NULL), 2 * (750 / 10.0 + 4e-5));
    assert_near(simulate_collective(&m, NULL, TESS_ALL_GATHER, 1, 1, 800, NULL), 0);
}

static void test_collective__measured_sizes_are_interpolated(void **state) {
    (void)state;
    machine_collective t[] = { { "gloo", TESS_ALL_GATHER, 2, 1000, 2, 1 }, { "gloo", TESS_ALL_GATHER, 2, 3000, 4, 2 } };
    machine_desc m = { .collectives = t, .n_collectives = 2, .within = { 0, 1 } };
    double cpu;
    assert_near(simulate_collective(&m, "gloo", TESS_ALL_GATHER, 2, 2, 2000, &cpu), 3);
    assert_near(cpu, 1.5);
    assert_near(simulate_collective(&m, "gloo", TESS_ALL_GATHER, 2, 2, 10, NULL), 2);
    assert_near(simulate_collective(&m, "gloo", TESS_ALL_GATHER, 2, 2, 6000, NULL), 8);
    /* four ranks receive 3/4, two receive 1/2: as if the buffer were half as large again */
    assert_near(simulate_collective(&m, "gloo", TESS_ALL_GATHER, 4, 4, 2000, NULL), 4);
    assert_near(simulate_collective(&m, "shm", TESS_ALL_GATHER, 2, 2, 2000, NULL), 1000);
}

/* Of the two all-to-alls each has its own times, and the other's where there are none. */
static void test_collective__an_all_to_all_takes_the_times_of_its_like(void **state) {
    (void)state;
    machine_collective t[] = { { "gloo", TESS_ALL_TO_ALL, 2, 1000, 2, 1 },
                               { "gloo", TESS_ALL_TO_ALL_V, 2, 1000, 5, 1 },
                               { "shm", TESS_ALL_TO_ALL_V, 2, 1000, 7, 1 } };
    machine_desc m = { .collectives = t, .n_collectives = 3, .within = { 0, 1 } };
    assert_near(simulate_collective(&m, "gloo", TESS_ALL_TO_ALL, 2, 2, 1000, NULL), 2);
    assert_near(simulate_collective(&m, "gloo", TESS_ALL_TO_ALL_V, 2, 2, 1000, NULL), 5);
    assert_near(simulate_collective(&m, "shm", TESS_ALL_TO_ALL, 2, 2, 1000, NULL), 7);
    m.n_collectives = 1;
    assert_near(simulate_collective(&m, "gloo", TESS_ALL_TO_ALL_V, 2, 2, 1000, NULL), 2);
    assert_near(simulate_collective(&m, "gloo", TESS_ALL_GATHER, 2, 2, 1000, NULL), 500);
}

/* ---- the ring of measured spans ---- */

static void test_trace__keeps_the_last_spans_and_reads_one_step(void **state) {
    (void)state;
    tess__trace *t;
    tess__span spans[8];
    tess__instr gather = { .op = TESS__GATHER, .index = 3 }, enter = { .op = TESS__ENTER };
    tess__event forward = { TESS__FORWARD_BEGIN, 5 };
    assert_int_equal(tess__trace_create(0, &t), TESS_E_INVALID);
    assert_int_equal(tess__trace_create(4, &t), TESS_OK);
    int64_t now = tess__trace_now();
    for (uint64_t step = 0; step < 3; step++) {
        tess__trace_add(t, TESS__TRACK_COMM, &gather, NULL, step, now + 1000);
        tess__trace_add(t, TESS__TRACK_COMPUTE, &enter, &forward, step, now);
    }
    assert_int_equal(tess__trace_read(t, 0, spans, 8), 0); /* overwritten */
    assert_int_equal(tess__trace_read(t, 2, NULL, 0), 2);
    assert_int_equal(tess__trace_read(t, 2, spans, 8), 2);
    assert_string_equal(tess__span_op(&spans[0]), "forward");
    assert_int_equal(spans[0].index, 5);
    assert_near(spans[0].start, 0);
    assert_true(spans[0].seconds >= 0);
    assert_string_equal(tess__track_name(spans[1].track), "communication");
    assert_string_equal(tess__span_op(&spans[1]), "all_gather");
    assert_near(spans[1].start, 1e-6);
    tess__trace_destroy(t);
    tess__trace_add(NULL, 0, &gather, NULL, 0, 0); /* without a trace: nothing */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_simulate__collectives_as_long_as_forward_hide_but_at_both_ends),
        cmocka_unit_test(test_simulate__slow_collectives_are_exposed_and_queue),
        cmocka_unit_test(test_simulate__reductions_apart_share_the_link_with_gathers),
        cmocka_unit_test(test_simulate__one_rank_only_computes),
        cmocka_unit_test(test_simulate__lanes_that_share_a_core_slow_each_other),
        cmocka_unit_test(test_simulate__counts_become_seconds_by_the_machines_rates),
        cmocka_unit_test(test_simulate__products_in_fp8_have_their_own_rate),
        cmocka_unit_test(test_simulate__what_backward_makes_again_takes_its_time),
        cmocka_unit_test(test_simulate__without_prefetching_gathers_are_waited_for),
        cmocka_unit_test(test_simulate__a_copy_comes_from_the_host_with_fewer_bytes),
        cmocka_unit_test(test_collective__widest_and_narrowest_level_and_latency),
        cmocka_unit_test(test_collective__measured_sizes_are_interpolated),
        cmocka_unit_test(test_collective__an_all_to_all_takes_the_times_of_its_like),
        cmocka_unit_test(test_trace__keeps_the_last_spans_and_reads_one_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
