/* SPDX-License-Identifier: BSD-3-Clause */
/* Each instruction of a program alone, with all that it calls written down. These tests hold what it computes from
 * where to where, and which collective it posts and waits for. They hold where a run of instructions stops, and that
 * nothing comes behind a failure. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "core/base/status.h"
#include "core/engine/finite.h"
#include "core/kernels/norm.h"
#include "core/layout/matrices.h"
#include "core/optimize/parts.h"
#include "tests/unit/noted.h"
#include "rooms.h"

static struct {
    const char *fails; /* the call that fails, by its first word */
    const char *text;  /* of an instruction */
    int watched;       /* what looks at each instruction is written down too */
    int by_parts, on_host, on_device, offers;
    uint32_t draw;
    double norm;
    int64_t clock;
    int reached;
} world;
static tess t;
static tess__instr instrs[8];
static tess__program program;
static tess__planned_collective planned;
static tess__buffer buffers[2];
static tess__group groups[N_GROUPS];
static tess__in_flight in_flight[N_GROUPS];
static tess_optimizer_options step;
static tess_run_options run;
static tess_request *const posted = (tess_request *)&world;

#define note(...) noted(&world.fails, 1, __VA_ARGS__)

static const char *const comm_of[] = { "world", "shard", "replica", "copy", "sums" };
static const char *const op_of[] = { "?", "gather", "scatter", "sum", "broadcast", "exchange", "barrier", "parts" };

static tess_status say_collective(const char *how, int which, const tess_collective *c) {
    const tess_status s = note("%s %s %s %u:%u>%u*%llu x%g %s>%s tag %llu", how, comm_of[which], op_of[c->op], c->redop,
                               c->send_dtype, c->recv_dtype, (unsigned long long)c->count, c->scale, place(c->send),
                               place(c->recv), (unsigned long long)c->tag);
    if (c->scratch || c->scratch_bytes)
        say("with %s*%llu; ", place(c->scratch), (unsigned long long)c->scratch_bytes);
    return s;
}

static tess_status post(int which, tess_collective *c, tess_request **out) {
    const tess_status s = say_collective("post", which, c);
    if (c->send_parts || c->recv_parts)
        say("lengths %d %d; ", (int)*c->send_parts, (int)*c->recv_parts);
    TRY(s);
    c->seq = 41;
    *out = posted;
    return TESS_OK;
}

static tess_status compute(const tess_kernel *k) {
    static const char *const kernels[] = { "?", "cast", "tree", "scale", "squares", "optimize", "clip" };
    return note("%s %u>%u*%llu n%u f%u x%g %s>%s%s", kernels[k->kernel], k->in_dtype, k->out_dtype,
                (unsigned long long)k->elems, k->n_in, k->flags, k->scale, place(k->in[0]), place(k->out),
                k->rounding ? " drawn" : "");
}

static void lengths(int32_t g, int back, const uint64_t **send, const uint64_t **recv) {
    static uint64_t of[4];
    of[0] = (uint64_t)(10 * g + back);
    of[1] = of[0] + 100;
    *send = &of[0];
    *recv = &of[1];
}

static const tess_rounding *round_leaf(int32_t g, uint64_t first, uint32_t draw, tess_rounding *out) {
    assert_true(g == 1 && first == 0);
    world.draw = draw;
    return out;
}

static tess__microbatch_sum sum_of(int32_t g, int shards) {
    return (tess__microbatch_sum){ .n_levels = g, .in_order = shards };
}

static tess_status add_sum(const tess__microbatch_sum *c, uint32_t k, const void *leaf, uint32_t dtype, int mine) {
    return note("add %s%d %s:%u number %u%s", c->in_order ? "shard" : "", c->n_levels, place(leaf), dtype, k,
                mine ? "" : "?");
}

static tess_status total(const tess__microbatch_sum *c, uint32_t n, int mine, void **out) {
    *out = room[TOTAL][c->n_levels];
    return note("sum %s%d of %u%s", c->in_order ? "shard" : "", c->n_levels, n, mine ? "" : "?");
}

static tess_status gradient(int32_t g, int mine, void **out) {
    *out = room[SOURCE][g];
    return note("gradient %d%s", g, mine ? "" : "?");
}

static int offers(const tess_kernel *k) {
    assert_true(k->kernel == TESS_K_CLIP && k->in_dtype == TESS_I64 && k->out_dtype == TESS_F32 && k->n_in == 1);
    return world.offers;
}

static tess_status copy(void *to, uint32_t to_mem, const void *from, uint32_t from_mem, uint64_t bytes, int stream) {
    return note("copy %s:%u>%s:%u*%llu%s", place(from), from_mem, place(to), to_mem, (unsigned long long)bytes,
                stream ? "?" : "");
}

static int on_compute(const void *x) {
    return x == &t.transfers.compute;
}
#define tess__event_text(e, event, text, n)                                                                            \
    (void)(e), snprintf(text, n, "event %d of %d", (event)->type, (event)->scope)
#define tess__program_text(p, m, l, i, text, n) snprintf(text, n, "%s %d", world.text ? world.text : "number", i)
#define tess__comms_doing(c, text) ((void)note("do %s", text))
#define tess__comms_idle(c) ((void)note("idle"))
#define tess__mean_scale(e) 0.125f
#define tess__parts_exchanged(s, g, back, send, recv) lengths(g, back, send, recv)
#define tess__comm_post(c, which, x, out) post(which, x, out)
#define tess__tracing_begin(e) (world.clock)
#define tess__tracing_posted(e, in, r) note((r) == posted ? "trace-post" : "trace-post?")
#define tess__stream_collective(q, which, c, doing) ((void)say_collective("run", which, c), note("for %s", doing))
#define tess__compute(e, k) ((void)(e), compute(k))
#define tess__work(e, in) note("work %d", (in)->index)
#define tess__work_wait(e, in) note("work-wait %d", (in)->index)
#define tess__own_slot(e, g) ((void *)room[SLOT][g])
#define tess__gathered(e, g) ((void *)room[GATHERED][g])
#define tess__reduce_target(e, g) ((void *)room[TARGET][g])
#define tess__replica_wire(e, g) ((void *)room[ALL_REPLICAS][g])
#define tess__replica_slot(e, g) ((void *)room[ONE_REPLICA][g])
#define tess__retire(q, which, r, seq) note("retire %s %d%s", comm_of[which], (int)(seq), (r) == posted ? "" : "?")
#define tess__comm_wait(c, which, r, seq) note("wait %s %d%s", comm_of[which], (int)(seq), (r) == posted ? "" : "?")
#define tess__tracing_comm(e, in, ns) ((void)note("trace-comm %d", (int)(ns)))
#define tess__comm_free(c, r) ((void)note((r) == posted ? "free" : "free?"))
#define tess__rounding_of(e, g, first, draw, out) round_leaf(g, first, draw, out)
#define tess__microbatch_sum_of(e, g, shards) sum_of(g, shards)
#define tess__microbatch_add(c, k, leaf, dtype, kernel, user) add_sum(c, k, leaf, dtype, on_compute(user))
#define tess__microbatch_total(c, n, kernel, user, out) total(c, n, on_compute(user), out)
#define tess__gradient_to_send(e, g, on, out) gradient(g, on_compute(on), out)
#define tess__device_offers(d, k) offers(k)
#define tess__steps_on_host(e, g) (world.on_host == 1 + (g))
#define tess__steps_on_device(e, g) (world.on_device >> (g)&1)
#define tess__norm_take(q, to, from, bytes) note("take %s>%s*%d", place(from), place(to), (int)(bytes))
#define tess__streams_read(q, to, from, bytes) (memset(to, 0, bytes), note("read %s*%d", place(from), (int)(bytes)))
#define tess__norm_result(limbs) (world.norm + (double)(limbs)[0])
#define tess__clip_coefficient(most, norm) ((float)(most) / (float)(norm))
#define tess__judge_norm(e) note("judge")
#define tess__matrices_by_parts(s) (world.by_parts)
#define tess__parts_unpack(s, g, from, to) ((void)note("unpack %d %s>%s", g, place(from), place(to)))
#define OF_PLUGIN(p, pool) ((p) == (void *)&room && (pool) == (void *)&places ? "" : "?")
#define tess__update_make(s, m, p, g, pool) note("make %d%s", g, OF_PLUGIN(p, pool))
#define tess__matrices_step(s, m, p, g, pool) note("matrices %d%s", g, OF_PLUGIN(p, pool))
#define tess__step_pieces(s, m, p, g, phase, pool)                                                                     \
    note("pieces %d%s%s", g, OF_PLUGIN(p, pool), (phase) == TESS_PHASE_AFTER ? "" : "?")
#define tess__device_copy(d, to, to_mem, from, from_mem, n, s) copy(to, to_mem, from, from_mem, n, (s) != NULL)
#define tess__batch_mark(q) note("mark-batch")
#define tess__result_take(q, to, at, from, n) note("result %s>%s>%s*%d", place(from), place(at), place(to), (int)(n))
#define tess__place_buffer(m, p, in) note("place %d", (in)->buffer)
#define tess__release_buffer(m, p, in) note((m) == &t->memory ? "release %d %d" : "release?", (in)->index, (in)->buffer)
#define tess__widen(e, g, on) note("widen %d%s", g, on_compute(on) ? "" : "?")
#define tess__sum_arrived(e, g, on) note("sum-arrived %d%s", g, on_compute(on) ? "" : "?")
#define tess__sum_landed(e, g, on) note("sum-landed %d%s", g, on_compute(on) ? "" : "?")
#define tess__widen_sum(e, g, on) note("widen-sum %d%s", g, on_compute(on) ? "" : "?")
#define tess__states_instr(e, in) note("states %d", (in)->op)
static void reach(const tess__point *p) {
    world.reached++;
    assert_int_equal(p->at, p->point);
    (void)note("point");
}
#define tess__ledger_reach(e, p) reach(p)
static tess__mark mark(const tess__instr *in) {
    if (world.watched)
        (void)note("begin%s", in == instrs ? "" : "?");
    return (tess__mark){ .ns = 7 };
}
static void watched(const char *what) {
    if (world.watched)
        (void)note("%s", what);
}
#define tess__tracing_mark(e, in) mark(in)
#define tess__range_instr(e, in) watched("range")
#define tess__range_end(e) watched("range-end")
#define tess__tracing_instr(e, in, begin) watched((begin).ns == 7 ? "span" : "span?")
#include "core/engine/execute.c"

static tess_status digest_gradient(tess *e, int32_t g, const tess__executor *on) {
    (void)e;
    return note("digest %d%s", g, on_compute(on) ? "" : "?");
}
static tess_status digest_instr(tess *e, const tess__instr *in) {
    (void)e;
    return note("detail%s", in == instrs ? "" : "?");
}

static int begin(void **state) {
    static const tess__hooks hooks = { .digest_gradient = digest_gradient, .digest_instr = digest_instr };
    (void)state;
    memset(&world, 0, sizeof world);
    memset(&t, 0, sizeof t);
    memset(instrs, 0, sizeof instrs);
    memset(groups, 0, sizeof groups);
    memset(in_flight, 0, sizeof in_flight);
    memset(&step, 0, sizeof step);
    memset(&run, 0, sizeof run);
    place_all(&t);
    for (int i = 0; i < N_GROUPS; i++)
        groups[i] = (tess__group){ .trainable = 1,
                                   .grad_local = TESS_F32,
                                   .grad_wire = TESS_BF16,
                                   .grad_shard = TESS_F32,
                                   .flat_elems = 80,
                                   .shard_elems = 20 };
    planned = (tess__planned_collective){ .op = TESS_ALL_GATHER,
                                          .redop = TESS_SUM,
                                          .which = TESS__SHARD,
                                          .send_dtype = TESS_BF16,
                                          .recv_dtype = TESS_F32,
                                          .members = 4,
                                          .scratch = -1,
                                          .count = 20 };
    buffers[0].bytes = 32;
    buffers[1].bytes = 96;
    program = (tess__program){ .instrs = instrs, .n_instrs = 1, .buffers = buffers, .n_buffers = 2 };
    program.collectives = &planned;
    program.n_collectives = 1;
    t.hooks = &hooks;
    t.pass.program = &program;
    t.pass.run = &run;
    t.transfers.in_flight = in_flight;
    t.transfers.host_pool = (void *)&places;
    t.selection.plugins[TESS_KIND_OPTIMIZER] = (void *)&room;
    t.plan.layout.groups = groups;
    t.plan.layout.n_groups = N_GROUPS;
    t.plan.setup.shard_ranks = t.plan.setup.nranks = 4;
    t.plan.setup.accum = 1;
    t.plan.setup.align = 64;
    t.step.grad_scale = 1;
    t.device.mem = TESS_MEM_CUDA;
    return 0;
}

static tess_status runs_as(uint8_t op, uint8_t flags) {
    int32_t pc = 0;
    instrs[0] = (tess__instr){ .op = op, .flags = flags, .index = 1, .buffer = 1, .tag = 9 };
    said_so_far[0] = 0;
    return tess__execute(&t, &pc, TESS__TO_END);
}

static void runs(uint8_t op, uint8_t flags, const char *want) {
    assert_int_equal(runs_as(op, flags), TESS_OK);
    expect_said(want);
}

/* Each call on the way fails in turn: its failure is the instruction's, and nothing comes behind it. */
static void fails_alike(uint8_t op, uint8_t flags, const char *const *calls, const char *whole) {
    for (; *calls; calls++) {
        in_flight[1] = (tess__in_flight){ .gather = posted, .reduce = posted, .gather_seq = 3, .reduce_seq = 4 };
        world.fails = *calls;
        assert_int_equal(runs_as(op, flags), TESS_E_DEVICE);
        assert_int_equal(strncmp(said_so_far, whole, strlen(said_so_far)), 0);
        expect_last(*calls);
        world.fails = NULL;
    }
}

#define POSTED " tag 9; trace-post; idle; "

/* ---- collectives ---- */

static void test_instructions__a_gather_sends_what_the_shard_has(void **state) {
    static const char *const calls[] = { "work", "post", "trace-post", NULL };
    static const char *const sent = "work 1; do number 0; post shard gather 1:5>3*20 x1 slot1>gathered1" POSTED;
    (void)state;
    planned.send_dtype = 5;
    planned.recv_dtype = 3;
    world.clock = 70;
    runs(TESS__GATHER, 0, sent);
    assert_true(in_flight[1].gather == posted && in_flight[1].gather_seq == 41 && in_flight[1].gather_ns == 70);
    assert_true(!in_flight[1].reduce && !in_flight[1].reduce_seq && !in_flight[1].reduce_ns);
    runs(TESS__GATHER, TESS__ASYNC, sent);
    fails_alike(TESS__GATHER, 0, calls, sent);
    t.pass.kind = TESS_PASS_EVAL;
    runs(TESS__GATHER, 0, "work 1; do number 0 in an evaluation; post shard gather 1:5>3*20 x1 slot1>gathered1" POSTED);
    t.pass.kind = TESS_PASS_TRAIN | TESS_PASS_NO_SYNC;
    runs(TESS__GATHER, 0,
         "work 1; do number 0 in a training pass; post shard gather 1:5>3*20 x1 slot1>gathered1" POSTED);
    char text[300];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = 0;
    world.text = text; /* is cut: its room is that of an activity */
    assert_int_equal(runs_as(TESS__GATHER, 0), TESS_OK);
    assert_int_equal(strspn(strstr(said_so_far, "do ") + 3, "x"), 255);
    world.text = NULL;
    t.pass.kind = 0;
    groups[1].low_copy = 1; /* sent where the step wrote it, if it is on the device and nobody moves it there */
    runs(TESS__GATHER, 0, sent);
    groups[1].param_rest.domain = TESS_DOMAIN_DEVICE;
    runs(TESS__GATHER, TESS__ASYNC, sent);
    runs(TESS__GATHER, 0, "do number 0; post shard gather 1:5>3*20 x1 low1>full1" POSTED);
    groups[1].low_copy = 0;
    runs(TESS__GATHER, 0, sent);
    t.plan.setup.shard_ranks = 1; /* nobody to send it to */
    runs(TESS__GATHER, 0, "work 1; ");
}

static void test_instructions__scratch_and_means_are_the_collectives_own(void **state) {
    static const struct {
        uint8_t op;
        const char *want;
    } cases[] = { { TESS__GATHER, "work 1; do number 0; post shard gather 1:6>3*20 x1 slot1>gathered1 tag 9; with "
                                  "gather_scratch1*96; trace-post; idle; " },
                  { TESS__COLLECT, "do number 0; post shard gather 1:6>3*20 x1 update1>update1 tag 9; with "
                                   "collect_scratch1*96; trace-post; idle; " },
                  { TESS__RETURN, "do number 0; post shard gather 1:6>3*20 x1 update1>shard_grad1 tag 9; with "
                                  "return_scratch1*96; trace-post; idle; " },
                  { TESS__REDUCE, "gradient 1; do number 0; post shard gather 1:6>3*20 x1 source1>target1 tag 9; with "
                                  "reduce_scratch1*96; trace-post; idle; " } };
    (void)state;
    planned.send_dtype = 6;
    planned.recv_dtype = 3;
    planned.scratch = 1;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        runs(cases[i].op, 0, cases[i].want);
    planned.scratch = 0; /* the first buffer is one as well */
    runs(TESS__RETURN, 0,
         "do number 0; post shard gather 1:6>3*20 x1 update1>shard_grad1 tag 9; with return_scratch1*32; trace-post; "
         "idle; ");
    planned.scratch = -1;
    planned.is_mean = 1;
    runs(TESS__RETURN, 0, "do number 0; post shard gather 1:6>3*20 x0.125 update1>shard_grad1" POSTED);
}

static void test_instructions__reductions_go_to_where_sums_are_kept(void **state) {
    static const char *const calls[] = { "gradient", "post", "trace-post", NULL };
    static const char *const scattered =
        "gradient 1; do number 0; post sums scatter 1:6>3*20 x1 source1>target1" POSTED;
    (void)state;
    planned.send_dtype = 6;
    planned.recv_dtype = 3;
    planned.op = TESS_REDUCE_SCATTER;
    planned.which = TESS__SHARD_SUMS;
    world.clock = 80;
    runs(TESS__REDUCE, 0, scattered);
    assert_true(in_flight[1].reduce == posted && in_flight[1].reduce_seq == 41 && in_flight[1].reduce_ns == 80);
    assert_true(!in_flight[1].gather && !in_flight[1].gather_seq && !in_flight[1].gather_ns);
    fails_alike(TESS__REDUCE, 0, calls, scattered);
    planned.op = TESS_ALL_TO_ALL; /* blocks are summed by whom they come to */
    runs(TESS__REDUCE, 0, "gradient 1; do number 0; post sums exchange 1:6>3*20 x1 source1>arrived1" POSTED);
    planned.which = TESS__REPLICA;
    runs(TESS__REPLICATE, 0, "do number 0; post replica exchange 1:6>3*20 x1 replicas1>landed1" POSTED);
    planned.op = TESS_ALL_GATHER;
    runs(TESS__REPLICATE, TESS__BACK, "do number 0; post replica gather 1:6>3*20 x1 replica1>replicas1" POSTED);
    planned.op = TESS_ALL_REDUCE;
    runs(TESS__REPLICATE, 0, "do number 0; post replica sum 1:6>3*20 x1 target1>target1" POSTED);
    t.plan.setup.shard_ranks = 1; /* then a replica sends its whole gradient, and has nothing to scatter */
    runs(TESS__REPLICATE, 0, "gradient 1; do number 0; post replica sum 1:6>3*20 x1 source1>target1" POSTED);
    world.fails = "gradient";
    assert_int_equal(runs_as(TESS__REPLICATE, 0), TESS_E_DEVICE);
    expect_said("gradient 1; ");
    world.fails = NULL;
    runs(TESS__REDUCE, 0, "work 1; ");
}

static void test_instructions__waits_end_what_was_posted(void **state) {
    static const struct {
        uint8_t op;
        int gathers;
        const char *first, *of;
    } cases[] = { { TESS__GATHER_WAIT, 1, "work-wait 1; ", "shard" },
                  { TESS__COLLECT_WAIT, 1, "", "shard" },
                  { TESS__REDUCE_WAIT, 0, "work-wait 1; ", "sums" },
                  { TESS__REPLICATE_WAIT, 0, "", "replica" },
                  { TESS__RETURN_WAIT, 0, "", "sums" } };
    static const char *const calls[] = { "work-wait", "wait", NULL };
    char want[256];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int how = 0; how < 4; how++) { /* 0, 1, 2: the host waits, 3: a stream does */
            t.streams.on = how > 1;
            t.streams.comm_waits = how % 2;
            in_flight[1] = (tess__in_flight){ .gather_seq = 3, .reduce_seq = 4, .gather_ns = 5, .reduce_ns = 6 };
            runs(cases[i].op, 0, cases[i].first); /* nothing is under way */
            in_flight[1].gather = in_flight[1].reduce = posted;
            const int n = cases[i].gathers ? 3 : 4;
            if (how == 3)
                snprintf(want, sizeof want, "%sdo number 0; retire %s %d; idle; ", cases[i].first, cases[i].of, n);
            else
                snprintf(want, sizeof want, "%sdo number 0; wait %s %d; trace-comm %d; free; idle; ", cases[i].first,
                         cases[i].of, n, n + 2);
            runs(cases[i].op, 0, want);
            assert_ptr_equal(in_flight[1].gather, cases[i].gathers ? NULL : posted);
            assert_ptr_equal(in_flight[1].reduce, cases[i].gathers ? posted : NULL);
        }
    world.fails = "retire";
    in_flight[1].reduce = posted;
    assert_int_equal(runs_as(TESS__REDUCE_WAIT, 0), TESS_E_DEVICE);
    expect_said("work-wait 1; do number 0; retire sums 4; ");
    assert_null(in_flight[1].reduce); /* whom it was given to has it */
    world.fails = NULL;
    t.streams.on = 0;
    fails_alike(TESS__GATHER_WAIT, 0, calls, "work-wait 1; do number 0; wait shard 3; ");
    fails_alike(TESS__REDUCE_WAIT, 0, calls, "work-wait 1; do number 0; wait sums 4; ");
    assert_ptr_equal(in_flight[1].reduce, posted); /* it is dropped with the engine */
}

/* ---- gradients ---- */

static void test_instructions__gradients_go_to_the_dtype_of_the_wire(void **state) {
    (void)state;
    runs(TESS__CAST_WIRE, 0, "cast 7>6*80 n1 f0 x0 grad1>wire1; ");
    groups[1].grad_shard = TESS_BF16; /* one leaf alone is the shard's gradient as it is sent */
    runs(TESS__CAST_WIRE, 0, "cast 7>6*80 n1 f0 x0 grad1>shard_grad1; ");
    groups[1].grad_wire = TESS_Q8;
    groups[1].grad_shard = TESS_F32;
    runs(TESS__CAST_WIRE, 0, "cast 7>11*80 n1 f0 x0 grad1>wire1 drawn; ");
    groups[1].grad_wire = TESS_F32;
    t.pass.microbatch = 2;
    runs(TESS__SUM_FULL, 0, "add 1 grad1:7 number 2; ");
    groups[1].grad_wire = TESS_BF16;
    runs(TESS__SUM_FULL, 0, "add 1 wire1:6 number 2; ");
    t.plan.setup.accum = 6;
    static const char *const packed = "sum 1 of 6; cast 7>6*80 n1 f0 x0 total1>wire1; ";
    static const char *const calls[] = { "sum", "cast", NULL };
    runs(TESS__PACK_SUM, 0, packed);
    fails_alike(TESS__PACK_SUM, 0, calls, packed);
}

/* As the sampler counts: with sync=end a rank has microbatches in a row, else ranks take turns. */
static void test_instructions__each_leaf_draws_by_its_own_number(void **state) {
    int seen[24];
    (void)state;
    for (int accum = 1; accum <= 3; accum++)
        for (int each = 0; each < 2; each++) {
            memset(seen, 0, sizeof seen);
            t.plan.setup.accum = accum;
            t.plan.setup.sync_each = each;
            for (int rank = 0; rank < 4; rank++)
                for (int k = 0; k < accum; k++) {
                    t.comms.world.rank = rank;
                    t.pass.microbatch = k;
                    assert_int_equal(runs_as(TESS__CAST_WIRE, 0), TESS_OK);
                    assert_in_range(world.draw, 1, 4 * accum); /* 0 is the parameters' */
                    assert_int_equal(seen[world.draw]++, 0);
                    if (rank == 0 && k == 1)
                        assert_int_equal(world.draw, each ? 5 : 2);
                    if (rank == 1 && k == 0)
                        assert_int_equal(world.draw, each || accum == 1 ? 2 : 1 + accum);
                }
        }
}

/* ---- the norm ---- */

static void test_instructions__squares_are_added_to_the_limbs(void **state) {
    (void)state;
    groups[1].grad_shard = TESS_BF16;
    runs(TESS__NORM_GROUP, 0, "squares 6>4*20 n1 f1 x0 shard_grad1>limbs0; "); /* a scale of 1 is none */
    t.step.grad_scale = 0.25f;
    groups[1].grad_rest.stored = 1;
    runs(TESS__NORM_GROUP, 0, "squares 6>4*20 n1 f1 x0.25 staged_grad1>limbs0; ");
    planned = (tess__planned_collective){ .op = TESS_ALL_REDUCE, .redop = 1, .members = 4, .scratch = 1, .count = 7 };
    runs(TESS__NORM_REDUCE, 0,
         "run world sum 1:0>0*7 x1 limbs0>limbs0 tag 9; with limbs_scratch1*96; for all_reduce of the gradient norm; ");
    runs(TESS__SHARE_BUFFERS, 0,
         "run world sum 1:0>0*7 x1 buffers0>buffers0 tag 9; with chunk_scratch1*96; for the broadcast of buffers; ");
    planned.members = 1;
    runs(TESS__NORM_REDUCE, 0, "");
    runs(TESS__SHARE_BUFFERS, 0, "");
}

static void test_instructions__the_host_has_the_norm_and_clips(void **state) {
    static const char *const calls[] = { "read", "judge", NULL };
    char read[64], judged[64];
    (void)state;
    snprintf(read, sizeof read, "read limbs0*%d; ", (int)(TESS__NORM_LIMBS * sizeof(int64_t)));
    snprintf(judged, sizeof judged, "%sjudge; ", read);
    world.norm = 8;
    t.step.grad_scale = 0.5f;
    t.step.kernel.grad_scale = 0.5f;
    t.step.has_norm = 1;
    runs(TESS__NORM_FINISH, 0, read); /* tess_grad_norm: no step is under way */
    assert_true(t.step.norm == 8 && !t.step.has_norm);
    t.step.options = &step;
    t.step.has_norm = 1;
    program.kind = TESS__PASS_NORM;
    runs(TESS__NORM_FINISH, 0, read);
    assert_false(t.step.has_norm);
    program.kind = TESS__PASS_CLIP;
    runs(TESS__NORM_FINISH, 0, judged); /* nothing is clipped, and the norm is known */
    assert_true(t.step.has_norm && t.step.kernel.grad_scale == 0.5f);
    step.clip_norm = 2;
    runs(TESS__NORM_FINISH, 0, judged);
    assert_true(t.step.has_norm && t.step.norm == 8 && t.step.kernel.grad_scale == 0.125f);
    fails_alike(TESS__NORM_FINISH, 0, calls, judged);
    t.step.options = NULL;
    t.step.has_norm = 1;
    runs(TESS__NORM_FINISH, 0, read);
    assert_false(t.step.has_norm);
}

static void test_instructions__a_device_clips_where_only_its_kernels_need_the_norm(void **state) {
    (void)state;
    char want[160];
    t.streams.on = world.offers = 1;
    assert_true(tess__device_clips(&t));
    t.streams.on = 0;
    assert_false(tess__device_clips(&t));
    t.streams.on = t.plan.setup.norm_first = 1;
    assert_false(tess__device_clips(&t));
    t.plan.setup.norm_first = world.offers = 0;
    assert_false(tess__device_clips(&t));
    world.offers = 1;
    for (int g = 0; g < N_GROUPS; g++) { /* a group that the host steps needs its factor there; a frozen one none */
        world.on_host = 1 + g;
        assert_false(tess__device_clips(&t));
        groups[g].trainable = 0;
        assert_true(tess__device_clips(&t));
        groups[g].trainable = 1;
    }
    world.on_host = 0;
    t.step.options = &step;
    step.clip_norm = 2;
    program.kind = TESS__PASS_CLIP;
    const int bytes = (int)(TESS__NORM_LIMBS * sizeof(int64_t));
    snprintf(want, sizeof want, "take limbs0>norm_result0*%d; clip %d>%d*%d n1 f0 x2 limbs0>limbs0; ", bytes, TESS_I64,
             TESS_F32, TESS__NORM_LIMBS);
    runs(TESS__NORM_FINISH, 0, want);
    assert_ptr_equal(t.step.norm_limbs, room[TESS__NORM_RESULT][0]);
    assert_ptr_equal(t.step.kernel.clip, room[TESS__LIMBS][0]);
    t.streams.pass = 1; /* the second of two passes that are under way */
    snprintf(want, sizeof want, "take limbs0>norm_result0+%d*%d; ", (bytes + 63) / 64 * 64, bytes);
    world.fails = "take";
    assert_int_equal(runs_as(TESS__NORM_FINISH, 0), TESS_E_DEVICE);
    expect_said(want);
    world.fails = NULL;
    program.kind = TESS__PASS_NORM;
    assert_int_equal(runs_as(TESS__NORM_FINISH, 0), TESS_OK);
    assert_int_equal(strncmp(said_so_far, "read limbs0", 11), 0);
    program.kind = TESS__PASS_CLIP;
    t.step.options = NULL;
    assert_int_equal(runs_as(TESS__NORM_FINISH, 0), TESS_OK);
    assert_int_equal(strncmp(said_so_far, "read limbs0", 11), 0);
}

/* ---- whole matrices ---- */

static void test_instructions__matrices_go_to_their_owner_and_back(void **state) {
    const uint8_t second = 2 << TESS__PIECE_SHIFT;
    (void)state;
    planned.send_dtype = planned.recv_dtype = 3;
    t.comms.shard_rank = 2; /* of shards of 20 elements, in fp32 */
    runs(TESS__COLLECT, 0, "do number 0; post shard gather 1:3>3*20 x1 update1+160>update1" POSTED);
    runs(TESS__COLLECT, second, "do number 0; post shard gather 1:3>3*20 x1 update_2_1+160>update_2_1" POSTED);
    assert_ptr_equal(in_flight[1].gather, posted);
    runs(TESS__RETURN, 0, "do number 0; post shard gather 1:3>3*20 x1 update1>shard_grad1" POSTED);
    assert_ptr_equal(in_flight[1].reduce, posted);
    runs(TESS__RETURN, second, "do number 0; post shard gather 1:3>3*20 x1 update_2_1>state_1_1" POSTED);
    groups[1].grad_rest.stored = groups[1].state_rest.stored = 1;
    runs(TESS__RETURN, 0, "do number 0; post shard gather 1:3>3*20 x1 update1>staged_grad1" POSTED);
    runs(TESS__RETURN, second, "do number 0; post shard gather 1:3>3*20 x1 update_2_1>staged_1_1" POSTED);
    world.by_parts = 1;
    planned.op = TESS_ALL_TO_ALL_V;
#define BY_PARTS(from_to, lengths)                                                                                     \
    "do number 0; post shard parts 1:3>3*20 x1 " from_to " tag 9; lengths " lengths "; trace-post; idle; "
    runs(TESS__COLLECT, 0, BY_PARTS("parts1>update1", "10 110"));
    runs(TESS__COLLECT, second, BY_PARTS("parts_2_1>update_2_1", "10 110"));
    runs(TESS__RETURN, 0, BY_PARTS("update1>staged_grad1", "11 111"));
    runs(TESS__RETURN, second, BY_PARTS("update_2_1>parts_2_1", "11 111"));
    runs(TESS__RETURN_WAIT, second,
         "do number 0; wait sums 41; trace-comm 0; free; idle; unpack 1 parts_2_1>staged_1_1; ");
    in_flight[1].reduce = NULL;
    runs(TESS__RETURN_WAIT, 0, "");
    world.by_parts = 0;
    runs(TESS__RETURN_WAIT, second, "");
    in_flight[1].reduce = posted;
    world.by_parts = 1;
    world.fails = "wait";
    assert_int_equal(runs_as(TESS__RETURN_WAIT, second), TESS_E_DEVICE);
    expect_said("do number 0; wait sums 41; ");
}

static void test_instructions__the_owners_work_is_the_plugins(void **state) {
    (void)state;
    runs(TESS__UPDATE_MAKE, 0, "make 1; ");
    runs(TESS__MATRIX, 0, "matrices 1; ");
    runs(TESS__UPDATE_APPLY, 0, "pieces 1; ");
    t.proof = (void *)&world;
    runs(TESS__UPDATE_MAKE, 0, "digest 1; make 1; detail; ");
    world.fails = "digest";
    assert_int_equal(runs_as(TESS__UPDATE_MAKE, 0), TESS_E_DEVICE);
    expect_said("digest 1; ");
    world.fails = NULL;
    t.proof = NULL;
    in_flight[1].gather = in_flight[1].reduce = posted;
    t.step.skips = 1; /* the step is left out, on every rank alike */
    static const uint8_t of_step[] = { TESS__OPTIMIZE, TESS__UPDATE_MAKE,  TESS__COLLECT, TESS__COLLECT_WAIT,
                                       TESS__MATRIX,   TESS__UPDATE_APPLY, TESS__RETURN,  TESS__RETURN_WAIT };
    for (size_t i = 0; i < sizeof of_step; i++)
        runs(of_step[i], 0, "");
}

/* ---- what a program gives and gets ---- */

static void test_instructions__a_batch_is_copied_and_a_result_taken(void **state) {
    tess__block blocks[2] = { { .options = { .output_bytes = 1 } }, { .options = { .output_bytes = 24 } } };
    (void)state;
    run.batch = memcpy(room[OF_PROGRAM][0], "a batch of the program", 23);
    runs(TESS__INPUT_COPY, 0, "");
    t.plan.setup.input_bytes = 70;
    char want[96];
    snprintf(want, sizeof want, "copy program0:%d>input0:%d*70; mark-batch; ", TESS_MEM_HOST, TESS_MEM_CUDA);
    runs(TESS__INPUT_COPY, 0, want);
    world.fails = "copy";
    assert_int_equal(runs_as(TESS__INPUT_COPY, 0), TESS_E_DEVICE);
    assert_null(strstr(said_so_far, "mark"));
    world.fails = NULL;
    t.streams.late = t.streams.pass = 1;
    snprintf(want, sizeof want, "copy batch0+128:%d>input0:%d*70; ", TESS_MEM_PINNED, TESS_MEM_CUDA);
    runs(TESS__INPUT_COPY, 0, want);
    assert_memory_equal(room[TESS__BATCH][0] + 128, run.batch, 70); /* the program may change its own from now on */
    t.plan.model.blocks = blocks;
    t.streams.pass = 0;
    runs(TESS__RESULT_COPY, 0, ""); /* nobody wants it */
    run.result = room[OF_PROGRAM][1];
    runs(TESS__RESULT_COPY, 0, "result output1>result0>program1*24; ");
    t.streams.pass = 1;
    run.result = NULL;
    t.streams.recording = 1; /* a pass that is repeated may want it */
    runs(TESS__RESULT_COPY, 0, "result output1>result0+64>null*24; ");
    blocks[1].options.output_bytes = 0;
    runs(TESS__RESULT_COPY, 0, "");
}

/* ---- the loop ---- */

static void test_instructions__each_has_its_work(void **state) {
    static const struct {
        uint8_t op;
        const char *want;
    } cases[] = { { TESS__ALLOC, "place 1; " },
                  { TESS__FREE, "release 1 1; " },
                  { TESS__WIDEN, "widen 1; " },
                  { TESS__SUM_ARRIVED, "sum-arrived 1; " },
                  { TESS__SUM_LANDED, "sum-landed 1; " },
                  { TESS__WIDEN_SUM, "widen-sum 1; " },
                  { TESS__OPTIMIZE, "work 1; " },
                  { TESS__SUM_SHARD, "work 1; " },
                  { TESS__PREFETCH, "work 1; " },
                  { TESS__OFFLOAD, "work 1; " },
                  { TESS__RELOAD, "work 1; " },
                  { TESS__PREFETCH_WAIT, "work-wait 1; " },
                  { TESS__HOST_WAIT, "work-wait 1; " },
                  { TESS__OFFLOAD_WAIT, "work-wait 1; " },
                  { TESS__RELOAD_WAIT, "work-wait 1; " },
                  { TESS__ENTER, "" },
                  { TESS__LEAVE, "" } };
    (void)state;
    char want[64];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        runs(cases[i].op, 0, cases[i].want);
    for (int op = TESS__STATES_FETCH; op <= TESS__GRAD_STORE_WAIT; op++) {
        snprintf(want, sizeof want, "states %d; ", op);
        runs((uint8_t)op, 0, want);
    }
    static const uint8_t unknown[] = { 0, TESS__AUDIT, TESS__GRAD_STORE_WAIT + 1, 255 };
    for (size_t i = 0; i < sizeof unknown; i++) {
        assert_int_equal(runs_as(unknown[i], 0), TESS_E_INTERNAL);
        snprintf(want, sizeof want, "instruction %d is unknown", unknown[i]);
        assert_string_equal(tess_last_error(), want);
    }
    said_so_far[0] = 0;
    assert_int_equal(tess__free_all(&t, &program), TESS_OK);
    expect_said("release 0 0; release 0 1; ");
    world.fails = "release";
    assert_int_equal(tess__free_all(&t, &program), TESS_E_DEVICE);
    expect_said("release 0 0; ");
    tess__doing_event(&t, &(tess__event){ .type = 3, .scope = 8 });
    expect_said("do event 3 of 8; ");
}

/* Whoever looks on sees an instruction begin and end; after a failure nobody sees its end. */
static void test_instructions__who_looks_on_sees_each(void **state) {
    (void)state;
    world.watched = 1;
    runs(TESS__ALLOC, 0, "begin; range; place 1; range-end; span; ");
    t.proof = (void *)&world;
    runs(TESS__ALLOC, 0, "begin; range; place 1; range-end; detail; span; ");
    world.fails = "detail";
    assert_int_equal(runs_as(TESS__ALLOC, 0), TESS_E_DEVICE);
    expect_said("begin; range; place 1; range-end; detail; ");
    world.fails = "place";
    assert_int_equal(runs_as(TESS__ALLOC, 0), TESS_E_DEVICE);
    expect_said("begin; range; place 1; range-end; ");
}

static void test_instructions__a_run_stops_where_the_program_goes_on(void **state) {
    static const uint8_t events[] = { TESS__ENTER, TESS__LEAVE, TESS__AUDIT, TESS__AUDIT_SEND };
    static const uint8_t blocks[] = { TESS__GATHER_WAIT,   TESS__REDUCE_WAIT, TESS__REPLICATE_WAIT, TESS__NORM_REDUCE,
                                      TESS__PREFETCH_WAIT, TESS__HOST_WAIT,   TESS__COLLECT_WAIT,   TESS__RETURN_WAIT };
    (void)state;
    for (int op = 1; op <= TESS__GRAD_STORE_WAIT; op++) {
        const int is_event = memchr(events, op, sizeof events) != NULL,
                  is_block = memchr(blocks, op, sizeof blocks) != NULL;
        assert_int_equal(stops_at((uint8_t)op, TESS__TO_END), 0);
        assert_int_equal(stops_at((uint8_t)op, TESS__TO_EVENT), is_event);
        assert_int_equal(stops_at((uint8_t)op, TESS__TO_WAIT), is_event || is_block);
    }
    tess__point points[3] = { { .at = 0, .point = 0 }, { .at = 2, .point = 2 }, { .at = 3, .point = 3 } };
    for (int i = 0; i < 3; i++)
        instrs[i] = (tess__instr){ .op = i == 1 ? TESS__ENTER : TESS__ALLOC, .buffer = i };
    program.n_instrs = 3;
    program.points = points;
    program.n_points = 3;
    int32_t pc = 0;
    said_so_far[0] = 0;
    assert_int_equal(tess__execute(&t, &pc, TESS__TO_EVENT), TESS_OK);
    assert_int_equal(pc, 1);
    expect_said("point; place 0; ");
    assert_int_equal(tess__execute(&t, &pc, TESS__TO_EVENT), TESS_OK); /* and stays there */
    assert_int_equal(pc, 1);
    expect_said("");
    pc++;
    assert_int_equal(tess__execute(&t, &pc, TESS__TO_EVENT), TESS_OK);
    assert_int_equal(pc, 3);
    expect_said("point; place 2; point; "); /* what ends with the program is reached too */
    assert_int_equal(world.reached, 3);
    static tess__program none;
    t.recorder.next_point = 2;
    t.pass.program = &none;
    assert_int_equal(tess__run_program(&t, &program), TESS_OK);
    assert_ptr_equal(t.pass.program, &program);
    expect_said("point; place 0; point; place 2; point; ");
}

/* Whether the next work on the stream is of the same kind, so that a device may do both at once. */
static int follows(uint8_t op, const tess__instr *next, int n) {
    instrs[0] = (tess__instr){ .op = op, .index = 1 };
    for (int i = 0; i < n; i++)
        instrs[1 + i] = next[i];
    program.n_instrs = 1 + n;
    t.step.more_follow = 7;
    int32_t pc = 0;
    world.fails = op == TESS__NORM_GROUP ? "squares" : op == TESS__OPTIMIZE ? "work" : "place"; /* the first alone */
    assert_int_equal(tess__execute(&t, &pc, TESS__TO_END), TESS_E_DEVICE);
    said_so_far[0] = 0;
    return t.step.more_follow;
}

static void test_instructions__work_of_one_kind_is_announced(void **state) {
    const tess__instr norm = { .op = TESS__NORM_GROUP, .index = 2 }, opt = { .op = TESS__OPTIMIZE, .index = 2 };
    const tess__instr frees = { .op = TESS__FREE }, alloc = { .op = TESS__ALLOC };
    const tess__instr zero = { .op = TESS__ALLOC, .flags = TESS__ZERO };
    const tess__instr beside = { .op = TESS__NORM_GROUP, .flags = TESS__ASYNC };
    (void)state;
    assert_int_equal(follows(TESS__NORM_GROUP, NULL, 0), 0);
    assert_int_equal(follows(TESS__NORM_GROUP, &norm, 1), 1);
    assert_int_equal(follows(TESS__NORM_GROUP, &opt, 1), 0);
    assert_int_equal(follows(TESS__NORM_GROUP, &beside, 1), 0);
    assert_int_equal(follows(TESS__ALLOC, &alloc, 1), 0); /* of other kinds nobody asks */
    assert_int_equal(follows(TESS__NORM_GROUP, (tess__instr[]){ frees, alloc, frees, norm }, 4), 1);
    assert_int_equal(follows(TESS__NORM_GROUP, (tess__instr[]){ frees, alloc }, 2), 0); /* nothing but memory */
    assert_int_equal(follows(TESS__NORM_GROUP, (tess__instr[]){ zero, norm }, 2), 0);   /* filling is work */
    assert_int_equal(follows(TESS__OPTIMIZE, &opt, 1), 0);                              /* it has nothing to do there */
    world.on_device = 1 << 2;
    assert_int_equal(follows(TESS__OPTIMIZE, &opt, 1), 1);
    world.on_device = 1 << 1;
    assert_int_equal(follows(TESS__OPTIMIZE, &opt, 1), 0);
    t.memory.strict = 1; /* released memory is filled in between */
    assert_int_equal(follows(TESS__NORM_GROUP, &norm, 1), 0);
    t.memory.strict = 0;
    t.recorder.timeline.trace = (void *)&world; /* each is measured by itself */
    assert_int_equal(follows(TESS__NORM_GROUP, &norm, 1), 0);
    t.recorder.timeline.trace = NULL;
    int32_t pc = 0;
    world.fails = NULL;
    instrs[0] = (tess__instr){ .op = TESS__OPTIMIZE, .flags = TESS__ASYNC, .index = 1 };
    instrs[1] = (tess__instr){ .op = TESS__OPTIMIZE, .index = 1 };
    program.n_instrs = 1;
    assert_int_equal(tess__execute(&t, &pc, TESS__TO_END), TESS_OK);
    assert_int_equal(t.step.more_follow, 0); /* a lane's work is on no stream, and behind the end is nothing */
    program.n_instrs = 2;
    pc = 0;
    t.step.more_follow = 1;
    world.fails = "work";
    assert_int_equal(tess__execute(&t, &pc, TESS__TO_END), TESS_E_DEVICE);
    assert_int_equal(t.step.more_follow, 0);
    world.fails = NULL;
    instrs[0] = (tess__instr){ .op = TESS__NORM_GROUP, .index = 1 };
    instrs[1] = (tess__instr){ .op = TESS__NORM_GROUP, .index = 2 };
    pc = 0;
    said_so_far[0] = 0;
    assert_int_equal(tess__execute(&t, &pc, TESS__TO_END), TESS_OK); /* the kernel is told: TESS_KERNEL_MORE */
    char want[128];
    snprintf(want, sizeof want,
             "squares 7>%d*20 n1 f5 x0 shard_grad1>limbs0; squares 7>%d*20 n1 f1 x0 shard_grad2>limbs0; ", TESS_I64,
             TESS_I64);
    expect_said(want);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_instructions__a_gather_sends_what_the_shard_has, begin),
        cmocka_unit_test_setup(test_instructions__scratch_and_means_are_the_collectives_own, begin),
        cmocka_unit_test_setup(test_instructions__reductions_go_to_where_sums_are_kept, begin),
        cmocka_unit_test_setup(test_instructions__waits_end_what_was_posted, begin),
        cmocka_unit_test_setup(test_instructions__gradients_go_to_the_dtype_of_the_wire, begin),
        cmocka_unit_test_setup(test_instructions__each_leaf_draws_by_its_own_number, begin),
        cmocka_unit_test_setup(test_instructions__squares_are_added_to_the_limbs, begin),
        cmocka_unit_test_setup(test_instructions__the_host_has_the_norm_and_clips, begin),
        cmocka_unit_test_setup(test_instructions__a_device_clips_where_only_its_kernels_need_the_norm, begin),
        cmocka_unit_test_setup(test_instructions__matrices_go_to_their_owner_and_back, begin),
        cmocka_unit_test_setup(test_instructions__the_owners_work_is_the_plugins, begin),
        cmocka_unit_test_setup(test_instructions__a_batch_is_copied_and_a_result_taken, begin),
        cmocka_unit_test_setup(test_instructions__each_has_its_work, begin),
        cmocka_unit_test_setup(test_instructions__who_looks_on_sees_each, begin),
        cmocka_unit_test_setup(test_instructions__a_run_stops_where_the_program_goes_on, begin),
        cmocka_unit_test_setup(test_instructions__work_of_one_kind_is_announced, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
