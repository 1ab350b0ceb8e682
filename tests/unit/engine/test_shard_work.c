/* SPDX-License-Identifier: BSD-3-Clause */
/* The work on a group's shard, alone. These tests hold which kernel runs from where to where, in which dtypes, with
 * which scale and on whose executor. They hold what an optimizer's kernel is told, where something rests, and how it is
 * copied. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "core/base/status.h"
#include "tests/unit/noted.h"
#include "rooms.h"

enum { SHARD = 512, PER_BLOCK = TESS_Q8_BYTES };
static struct {
    const char *fails; /* the call that fails, by its first word */
    uint32_t segments, levels;
    tess_rounding drawn;
    int has_drawn;
    tess_optimizer seen;
    int host_pool;
    void *pool;
} world;
static tess t;
static tess__group groups[N_GROUPS];
static uint8_t booked[TESS__N_ROLES][N_GROUPS];
static const void *arrived[8];
static tess_place runs[4];
static tess__executor lane;

#define note(...) noted(&world.fails, 1, __VA_ARGS__)

static tess_status kernel(void *executor, tess_kernel *k) {
    static const char *const names[] = { "?", "cast", "tree", "scale", "squares", "optimize", "clip" };
    char from[256] = "", more[160] = "";
    for (uint32_t i = 0; i < k->n_in; i++)
        snprintf(from + strlen(from), sizeof from - strlen(from), "%s%s", i ? "," : "", place(k->in[i]));
    if (k->out2)
        snprintf(more, sizeof more, " and %s", place(k->out2));
    for (int i = 0; i < 4 && k->state[i]; i++)
        snprintf(more + strlen(more), sizeof more - strlen(more), " with %s", place(k->state[i]));
    world.has_drawn = k->rounding != NULL;
    if (k->rounding)
        world.drawn = *k->rounding;
    if (k->optimizer)
        world.seen = *k->optimizer;
    return note("%s%s %u>%u*%llu f%u x%g %s>%s%s", executor == &lane ? "lane-" : "", names[k->kernel], k->in_dtype,
                k->out_dtype, (unsigned long long)k->elems, k->flags, k->scale, from, place(k->out), more);
}

static tess_status total(const tess__microbatch_sum *c, uint32_t n, int whose, void **out) {
    *out = c->level[c->n_levels - 1];
    return note("sum of %u in %s on %s", n, place(*out), whose == 2 ? "the lane" : whose ? "compute" : "?");
}
static tess_status add(const tess__microbatch_sum *c, uint32_t k, const void *leaf, uint32_t dtype) {
    return note("add %s:%u number %u to %s", place(leaf), dtype, k, place(c->level[0]));
}
static int whose(const void *e) {
    return e == &lane ? 2 : e == &t.transfers.compute;
}
static void give_segments(int32_t g, tess_optimizer *o) {
    assert_in_range(g, 0, N_GROUPS - 1);
    o->n_segments = world.segments;
}
#define tess__param_fetch(e, g) ((void)(e), note("fetch %d", g))
#define tess__sum_levels(s) ((int32_t)world.levels)
#define tess__microbatch_total(c, n, fn, user, out) total(c, n, whose(user), out)
#define tess__microbatch_add(c, k, leaf, dtype, fn, user) add(c, k, leaf, dtype)
#define tess__segments_of(s, l, g, o) give_segments(g, o)
static tess_status pieces(const tess__plugin *p, int32_t g, uint32_t phase, const void *pool) {
    return note("pieces %d %s %s", g, phase == TESS_PHASE_WHOLE && p == (void *)&world ? "whole" : "?",
                pool == &world.host_pool ? "host" : "own");
}
static tess_status step_there(const tess__plugin *p, const void *steps, int32_t g, const tess_stream *stream) {
    const int right = p == (void *)&world && steps == &world && stream == &t.transfers.step_stream;
    return note(right ? "plugin %d" : "plugin?", g);
}
static tess_status copy(const tess__device *d, const void *to, uint32_t to_mem, const void *from, uint32_t from_mem,
                        uint64_t n) {
    assert_ptr_equal(d, &t.device);
    return note("copy %s:%u>%s:%u*%d", place(from), from_mem, place(to), to_mem, (int)n);
}
#define tess__step_pieces(s, m, p, g, phase, pool) pieces(p, g, phase, pool)
#define tess__step_on_device(s, m, p, steps, g, stream) step_there(p, steps, g, stream)
#define tess__offload_run(store, what, at, mem, bytes)                                                                 \
    note("%s %s %s*%d", (what) == TESS_STORE_READ ? "load" : "store", place(at), place(mem), (int)(bytes))
#define tess__device_copy(d, to, to_mem, from, from_mem, n, s)                                                         \
    copy(d, to, to_mem, from, from_mem, (s) ? UINT64_MAX : (n))
#define tess__streams_sync(q) note("sync")
#include "core/engine/shard_work.c"

/* Rank 2 of a shard group of four, of two such groups. */
static int begin(void **state) {
    (void)state;
    memset(&world, 0, sizeof world);
    memset(&t, 0, sizeof t);
    memset(booked, 0, sizeof booked);
    memset(&lane, 0, sizeof lane);
    said_so_far[0] = 0;
    place_all(&t);
    for (int i = 0; i < N_GROUPS; i++)
        groups[i] = (tess__group){ .trainable = 1,
                                   .master = TESS_F32,
                                   .compute = TESS_BF16,
                                   .gather = TESS_BF16,
                                   .grad_local = TESS_F32,
                                   .grad_wire = TESS_BF16,
                                   .grad_shard = TESS_F32,
                                   .shard_elems = SHARD,
                                   .flat_elems = 4 * SHARD,
                                   .first_param = i,
                                   .n_params = 2 };
    for (int r = 0; r < TESS__N_ROLES; r++)
        t.memory.booked[r] = booked[r];
    t.plan.layout.groups = groups;
    t.plan.layout.n_groups = N_GROUPS;
    t.plan.setup.nranks = 8;
    t.plan.setup.shard_ranks = 4;
    t.plan.setup.replicas = 2;
    t.plan.setup.accum = 1;
    t.plan.setup.env.mem = TESS_MEM_CUDA;
    t.comms.shard_rank = 2;
    t.comms.replica_rank = 1;
    t.transfers.compute.kernel = lane.kernel = kernel;
    t.transfers.arrived = arrived;
    t.transfers.runs = runs;
    t.transfers.host_pool = (tess__pool *)&world.host_pool;
    t.transfers.steps = &world;
    t.selection.plugins[TESS_KIND_OPTIMIZER] = (void *)&world;
    t.step.steps_done = 6;
    world.segments = 1;
    world.levels = 1;
    return 0;
}

static void did(tess_status s, const char *want) {
    assert_int_equal(s, TESS_OK);
    expect_said(want);
}

#define ON (&t.transfers.compute)

/* ---- parameters ---- */

static void test_shard_work__a_shard_goes_to_its_slot_as_it_travels(void **state) {
    (void)state;
    assert_string_equal(place(tess__gathered(&t, 1)), "full1");
    assert_string_equal(place(tess__own_slot(&t, 1)), "full1+2048");
    did(tess__low_copy_make(&t, 1, ON), "cast 7>6*512 f0 x0 master1>low1; ");
    did(tess__shard_to_slot(&t, 1, ON), "fetch 1; cast 7>6*512 f0 x0 master1>full1+2048; ");
    did(tess__shard_to_slot(&t, 1, &lane), "fetch 1; lane-cast 7>6*512 f0 x0 master1>full1+2048; ");
    did(tess__shard_fetch(&t, 1, ON), "fetch 1; cast 7>6*512 f0 x0 master1>fetched1; ");
    groups[1].param_rest.stored = 1;
    did(tess__shard_to_slot(&t, 1, ON), "fetch 1; cast 7>6*512 f0 x0 staged_param1>full1+2048; ");
    did(tess__low_copy_make(&t, 1, ON), "cast 7>6*512 f0 x0 master1>low1; ");
    groups[1].low_copy = 1;
    did(tess__shard_to_slot(&t, 1, ON), "fetch 1; cast 6>6*512 f0 x0 low1>full1+2048; ");
    did(tess__shard_fetch(&t, 1, ON), "fetch 1; cast 6>6*512 f0 x0 low1>fetched1; ");
    booked[TESS__FETCHED][1] = 1; /* it was cast on its way there */
    did(tess__shard_to_slot(&t, 1, ON), "cast 6>6*512 f0 x0 fetched1>full1+2048; ");
    booked[TESS__FETCHED][1] = 0;
    world.fails = "fetch";
    assert_int_equal(tess__shard_to_slot(&t, 1, ON), TESS_E_DEVICE);
    expect_said("fetch 1; ");
    assert_int_equal(tess__shard_fetch(&t, 1, ON), TESS_E_DEVICE);
    expect_said("fetch 1; ");
}

static void test_shard_work__blocks_are_drawn_where_masters_are_rounded(void **state) {
    (void)state;
    groups[1].gather = TESS_Q8;
    assert_string_equal(place(tess__gathered(&t, 1)), "packed1");
    assert_string_equal(place(tess__own_slot(&t, 1)), "packed1+1040"); /* two blocks for each of two ranks */
    did(tess__widen(&t, 1, ON), "cast 11>6*2048 f0 x0 packed1>full1; ");
    did(tess__shard_to_slot(&t, 1, ON), "fetch 1; cast 7>11*512 f0 x0 master1>packed1+1040; ");
    assert_false(world.has_drawn);
    groups[1].draws = 1;
    did(tess__shard_to_slot(&t, 1, ON), "fetch 1; cast 7>11*512 f0 x0 master1>packed1+1040; ");
    const tess_rounding *d = &world.drawn;
    assert_true(world.has_drawn && d->struct_size == sizeof *d && d->n_runs == 2 && d->runs == runs + 1);
    assert_true(d->first == 2 * SHARD && d->step == 6 && d->draw == 0);
    booked[TESS__FETCHED][1] = 1; /* blocks already: nothing is rounded again */
    did(tess__shard_to_slot(&t, 1, ON), "cast 11>11*512 f0 x0 fetched1>packed1+1040; ");
    assert_false(world.has_drawn);
    booked[TESS__FETCHED][1] = 0;
    groups[1].gather = TESS_BF16;
    did(tess__shard_to_slot(&t, 1, ON), "fetch 1; cast 7>6*512 f0 x0 master1>full1+2048; ");
    assert_false(world.has_drawn);
    tess_rounding r;
    t.transfers.runs = NULL;
    assert_ptr_equal(tess__rounding_of(&t, 2, 77, 5, &r), NULL); /* to nearest */
    groups[2].draws = 1;
    assert_ptr_equal(tess__rounding_of(&t, 2, 77, 5, &r), &r);
    assert_true(r.first == 77 && r.draw == 5 && r.runs == NULL && r.n_runs == 2);
}

/* ---- gradients ---- */

static void test_shard_work__microbatches_sum_in_levels(void **state) {
    (void)state;
    for (int shards = 0; shards < 2; shards++)
        for (int stored = 0; stored < 2; stored++)
            for (uint32_t n = 1; n <= 3; n++) {
                char want[32];
                world.levels = n;
                groups[1].grad_rest.stored = stored;
                t.plan.setup.deterministic = n > 1;
                const tess__microbatch_sum c = tess__microbatch_sum_of(&t, 1, shards);
                assert_true(c.n_levels == (int32_t)n && c.in_order == (n == 1) && c.flags == 0);
                assert_true(c.elems == (shards ? SHARD : 4 * SHARD));
                for (uint32_t l = 0; l < 3; l++) {
                    if (shards && !l)
                        snprintf(want, sizeof want, "%s", stored ? "staged_grad1" : "shard_grad1");
                    else
                        snprintf(want, sizeof want, "%ssum_%u_1", shards && stored ? "staged_" : "", l);
                    if (l < n)
                        assert_string_equal(place(c.level[l]), want);
                    else
                        assert_null(c.level[l]);
                }
            }
    static const uint32_t wires[][2] = {
        { TESS_F32, 0 }, { TESS_BF16, 0 }, { TESS_Q8, TESS_KERNEL_Q8 }, { TESS_Q8E4M3, TESS_KERNEL_Q8E4M3 }
    };
    for (int i = 0; i < 4; i++) {
        groups[1].grad_wire = wires[i][0];
        assert_int_equal(tess__microbatch_sum_of(&t, 1, 0).flags, wires[i][1]);
    }
    t.plan.setup.accum = 4;
    assert_true(tess__mean_scale(&t) == 1.0f / 32);
}

static void sends(const char *said, const char *from) {
    void *source = NULL;
    assert_int_equal(tess__gradient_to_send(&t, 1, ON, &source), TESS_OK);
    expect_said(said);
    assert_string_equal(place(source), from);
}

static void test_shard_work__what_is_sent_is_the_leaf_or_the_sum(void **state) {
    (void)state;
    sends("", "wire1");
    groups[1].grad_wire = TESS_F32; /* as it is */
    sends("", "grad1");
    groups[1].grad_in_place = 1;
    sends("", "shard_grad1");
    t.plan.setup.accum = 4;
    t.plan.setup.sync_each = 1; /* each leaf goes out */
    sends("", "shard_grad1");
    t.plan.setup.sync_each = 0;
    sends("sum of 4 in sum_0_1 on compute; ", "sum_0_1");
    groups[1].grad_wire = TESS_Q8;
    groups[1].grad_in_place = 0;
    sends("", "wire1");      /* which PACK_SUM has filled */
    t.plan.setup.nranks = 1; /* nothing travels */
    sends("sum of 4 in sum_0_1 on compute; ", "sum_0_1");
    t.plan.setup.accum = 1;
    sends("", "wire1");
    assert_string_equal(place(tess__reduce_target(&t, 1)), "shard_grad1");
    groups[1].grad_rest.stored = 1;
    assert_string_equal(place(tess__reduce_target(&t, 1)), "staged_grad1");
    booked[TESS__PART][1] = 1;
    assert_string_equal(place(tess__reduce_target(&t, 1)), "part1");
}

static void test_shard_work__one_rank_rounds_as_many_do(void **state) {
    (void)state;
    t.plan.setup.nranks = t.plan.setup.shard_ranks = t.plan.setup.replicas = 1;
    did(tess__reduce_single_rank(&t, 1, ON), "tree 6>7*512 f0 x1 wire1>shard_grad1; ");
    t.plan.setup.accum = 4;
    did(tess__reduce_single_rank(&t, 1, &lane),
        "sum of 4 in sum_0_1 on the lane; lane-tree 7>7*512 f0 x0.25 sum_0_1>shard_grad1; ");
    t.plan.setup.sync_each = 1; /* the division waits for the last */
    booked[TESS__PART][1] = 1;
    did(tess__reduce_single_rank(&t, 1, ON), "tree 6>7*512 f0 x1 wire1>part1; ");
    t.plan.setup.sync_each = 0;
    world.fails = "sum";
    assert_int_equal(tess__reduce_single_rank(&t, 1, ON), TESS_E_DEVICE);
    expect_said("sum of 4 in sum_0_1 on compute; ");
}

static void test_shard_work__blocks_of_all_ranks_are_summed(void **state) {
    (void)state;
    groups[1].grad_wire = TESS_Q8;
    did(tess__sum_arrived(&t, 1, ON),
        "tree 11>11*512 f8 x1 arrived1,arrived1+520,arrived1+1040,arrived1+1560>shard_wire1; ");
    t.plan.setup.replicas = 1;
    t.plan.setup.nranks = 4;
    did(tess__sum_arrived(&t, 1, ON),
        "tree 11>7*512 f8 x0.25 arrived1,arrived1+520,arrived1+1040,arrived1+1560>shard_grad1; ");
    t.plan.setup.accum = 2;
    did(tess__sum_arrived(&t, 1, ON),
        "tree 11>7*512 f8 x0.125 arrived1,arrived1+520,arrived1+1040,arrived1+1560>shard_grad1; ");
    t.plan.setup.sync_each = 1;
    did(tess__sum_arrived(&t, 1, ON),
        "tree 11>7*512 f8 x1 arrived1,arrived1+520,arrived1+1040,arrived1+1560>shard_grad1; ");
    begin(NULL);
    groups[1].grad_wire = TESS_Q8E4M3; /* each of two replicas has one of two blocks */
    assert_string_equal(place(tess__replica_wire(&t, 1)), "shard_wire1");
    assert_string_equal(place(tess__replica_slot(&t, 1)), "shard_wire1+260");
    did(tess__sum_landed(&t, 1, ON), "tree 12>12*256 f16 x1 landed1,landed1+260>shard_wire1+260; ");
    did(tess__widen_sum(&t, 1, ON), "tree 12>7*512 f16 x0.125 shard_wire1>shard_grad1; ");
    booked[TESS__PART][1] = 1;
    did(tess__widen_sum(&t, 1, ON), "tree 12>7*512 f16 x0.125 shard_wire1>part1; ");
    t.plan.setup.shard_ranks = 1; /* then the whole gradient goes round */
    assert_string_equal(place(tess__replica_wire(&t, 1)), "wire1");
}

static void test_shard_work__parts_go_into_the_sharded_gradient(void **state) {
    (void)state;
    did(tess__sum_shard(&t, 1, 0, ON), "cast 7>7*512 f0 x0 part1>shard_grad1; ");
    t.plan.setup.accum = 3;
    did(tess__sum_shard(&t, 1, 0, ON), "cast 7>7*512 f0 x0 part1>shard_grad1; ");
    t.plan.setup.sync_each = 1;
    did(tess__sum_shard(&t, 1, 0, ON), "add part1:7 number 0 to shard_grad1; ");
    did(tess__sum_shard(&t, 1, 1, ON), "add part1:7 number 1 to shard_grad1; ");
    world.levels = 2;
    char want[200];
    snprintf(want, sizeof want,
             "add part1:7 number 2 to shard_grad1; sum of 3 in sum_1_1 on the lane; lane-scale 7>7*512 f0 x%g "
             "sum_1_1>shard_grad1; ",
             1.0 / 24);
    did(tess__sum_shard(&t, 1, 2, &lane), want);
    static const char *const calls[] = { "add", "sum", "lane-scale" };
    for (int i = 0; i < 3; i++) {
        world.fails = calls[i];
        assert_int_equal(tess__sum_shard(&t, 1, 2, &lane), TESS_E_DEVICE);
        assert_int_equal(strncmp(said_so_far, want, strlen(said_so_far)), 0);
        assert_int_equal(strstr(said_so_far, "sum of") != NULL, i > 0);
        assert_int_equal(strstr(said_so_far, "scale") != NULL, i > 1);
        said_so_far[0] = 0;
    }
    world.fails = NULL;
    t.plan.setup.accum = 1; /* nothing to add */
    did(tess__sum_shard(&t, 1, 0, ON), "cast 7>7*512 f0 x0 part1>shard_grad1; ");
}

/* ---- the step ---- */

static void test_shard_work__a_step_is_the_devices_kernel(void **state) {
    static int32_t first_segment[] = { 0, 3, 7, 9 };
    (void)state;
    groups[1].step.kernel = TESS_OPT_ADAMW;
    groups[1].step.n_states = 2;
    t.step.kernel.beta1 = 0.5f;
    did(tess__optimize(&t, 1, ON), "optimize 7>7*512 f0 x0 shard_grad1>master1 with state1 with state_1_1; ");
    assert_true(world.seen.beta1 == 0.5f && world.seen.n_segments == 1 && !world.seen.prepared);
    t.step.more_follow = 1;
    did(tess__optimize(&t, 1, ON), "optimize 7>7*512 f4 x0 shard_grad1>master1 with state1 with state_1_1; ");
    did(tess__optimize(&t, 1, &lane), "lane-optimize 7>7*512 f0 x0 shard_grad1>master1 with state1 with state_1_1; ");
    t.step.more_follow = 0;
    groups[1].low_copy = 1;
    did(tess__optimize(&t, 1, ON), "optimize 7>7*512 f0 x0 shard_grad1>master1 and low1 with state1 with state_1_1; ");
    groups[1].compute = groups[1].gather = TESS_F16; /* which kernels of steps do not write */
    groups[1].grad_rest.stored = groups[1].param_rest.stored = groups[1].state_rest.stored = 1;
    did(tess__optimize(&t, 1, ON), "optimize 7>7*512 f0 x0 staged_grad1>staged_param1 with staged1 with staged_1_1; "
                                   "cast 7>5*512 f0 x0 master1>low1; ");
    groups[1].low_copy = 0;
    groups[1].step.n_states = 0;
    t.graphs.recording = 1; /* its numbers come by memory then */
    t.step.first_segment = first_segment;
    did(tess__optimize(&t, 1, ON), "optimize 7>7*512 f0 x0 staged_grad1>staged_param1; ");
    assert_ptr_equal(world.seen.prepared, room[TESS__NUMBERS][0] + 3 * TESS_PREPARED_BYTES);
    world.segments = 0; /* nothing of it belongs to this rank */
    did(tess__optimize(&t, 1, ON), "");
    world.segments = 1;
    groups[1].low_copy = 1;
    world.fails = "optimize";
    assert_int_equal(tess__optimize(&t, 1, ON), TESS_E_DEVICE);
    assert_null(strstr(said_so_far, "cast"));
}

static void test_shard_work__or_the_plugins_own(void **state) {
    static const uint32_t host = TESS_DOMAIN_HOST, device = TESS_DOMAIN_DEVICE;
    (void)state;
    did(tess__optimize(&t, 1, ON), "pieces 1 whole host; ");
    lane.pool = (tess__pool *)&world.pool;
    did(tess__optimize(&t, 1, &lane), "pieces 1 whole own; ");
    for (int i = 0; i < 32; i++) { /* where all that it steps rests on the host, nothing of it is on a device's */
        tess__group *g = &groups[1];
        g->param_rest.domain = i & 1 ? host : device;
        g->grad_rest.domain = i & 2 ? host : device;
        g->state_rest.domain = i & 4 ? host : device;
        g->step.n_states = i & 8 ? 1 : 0;
        g->step.grain = TESS_GRAIN_ELEMENT;
        g->step.kernel = 0;
        t.streams.on = i >> 4;
        const int on_host = (i & 3) == 3 && (!(i & 8) || i & 4);
        assert_int_equal(tess__rests_on_host(&t, 1), on_host);
        assert_int_equal(tess__plugin_steps_on_device(&t, 1), t.streams.on && !on_host);
        g->step.grain = 0;
        assert_false(tess__plugin_steps_on_device(&t, 1));
        g->step.grain = TESS_GRAIN_ELEMENT;
        g->step.kernel = TESS_OPT_ADAM;
        assert_false(tess__plugin_steps_on_device(&t, 1));
    }
    groups[1].step.kernel = 0;
    groups[1].param_rest.domain = device;
    did(tess__optimize(&t, 1, ON), "plugin 1; ");
    groups[1].low_copy = 1;
    did(tess__optimize(&t, 1, ON), "plugin 1; cast 7>6*512 f0 x0 master1>low1; ");
    world.fails = "plugin";
    assert_int_equal(tess__optimize(&t, 1, ON), TESS_E_DEVICE);
    expect_said("plugin 1; ");
}

/* ---- memory ---- */

static void test_shard_work__copies_know_the_memory_of_both_ends(void **state) {
    (void)state;
    t.memory.arenas[TESS_DOMAIN_HOST][TESS__RESIDENT].memory.mem = TESS_MEM_PINNED;
    t.memory.arenas[TESS_DOMAIN_HOST][TESS__PAGEABLE].memory.mem = TESS_MEM_HOST;
    assert_int_equal(tess__rest_mem(&t, &(tess__rest){ .domain = TESS_DOMAIN_DEVICE }), TESS_MEM_CUDA);
    assert_int_equal(tess__rest_mem(&t, &(tess__rest){ .domain = TESS_DOMAIN_HOST }), TESS_MEM_PINNED);
    assert_int_equal(tess__rest_mem(&t, &(tess__rest){ .domain = TESS_DOMAIN_HOST, .pageable = 1 }), TESS_MEM_HOST);
    assert_int_equal(tess__rest_mem(&t, &(tess__rest){ .domain = TESS_DOMAIN_HOST, .stored = 1 }), TESS__MEM_STORE);
    char *a = room[TESS__FULL][0], *b = room[TESS__GRAD][0];
    char want[96];
    snprintf(want, sizeof want, "copy full0:%d>grad0:%d*9; sync; ", TESS_MEM_HOST, TESS_MEM_CUDA);
    did(tess__copy_now(&t, b, TESS_MEM_CUDA, a, TESS_MEM_HOST, 9), want);
    world.fails = "copy";
    assert_int_equal(tess__copy_now(&t, b, TESS_MEM_CUDA, a, TESS_MEM_HOST, 9), TESS_E_DEVICE);
    assert_null(strstr(said_so_far, "sync"));
    said_so_far[0] = 0;
    did(tess__copy_now(&t, b, TESS_MEM_HOST, a, TESS__MEM_STORE, 9), "load full0 grad0*9; ");
    did(tess__copy_now(&t, b, TESS__MEM_STORE, a, TESS_MEM_HOST, 9), "store grad0 full0*9; ");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_shard_work__a_shard_goes_to_its_slot_as_it_travels, begin),
        cmocka_unit_test_setup(test_shard_work__blocks_are_drawn_where_masters_are_rounded, begin),
        cmocka_unit_test_setup(test_shard_work__microbatches_sum_in_levels, begin),
        cmocka_unit_test_setup(test_shard_work__what_is_sent_is_the_leaf_or_the_sum, begin),
        cmocka_unit_test_setup(test_shard_work__one_rank_rounds_as_many_do, begin),
        cmocka_unit_test_setup(test_shard_work__blocks_of_all_ranks_are_summed, begin),
        cmocka_unit_test_setup(test_shard_work__parts_go_into_the_sharded_gradient, begin),
        cmocka_unit_test_setup(test_shard_work__a_step_is_the_devices_kernel, begin),
        cmocka_unit_test_setup(test_shard_work__or_the_plugins_own, begin),
        cmocka_unit_test_setup(test_shard_work__copies_know_the_memory_of_both_ends, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
