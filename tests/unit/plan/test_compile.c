/* SPDX-License-Identifier: BSD-3-Clause */
/* The order rules of the step compiler (docs/architecture.md), read off the instruction list. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

#include "core/layout/dtypes.h"
#include "tests/unit/no_steps.h"
#include "tests/unit/plan_fixture.h"

enum { SCOPES = 5 };
static const char *const names[SCOPES] = { "a", "b", "c", "d", "e" };

static void declare(plan *p, int32_t nranks, const char *strategy) {
    char name[16];
    plan_init(p, nranks);
    assert_int_equal(tess__setup_strategy(&p->setup, strategy), TESS_OK);
    for (int k = 0; k < SCOPES; k++)
        plan_scope(p, names[k]);
    for (int k = 0; k < SCOPES; k++) {
        snprintf(name, sizeof name, "%s.w", names[k]);
        plan_param(p, name, 1000 * (k + 1), 0);
    }
}

static void compile(plan *p, uint32_t kind) {
    plan_layout(p);
    assert_int_equal(tess__compile_pass(&p->compiler, kind, NULL, 0, &p->program), TESS_OK);
}

static void make(plan *p, int32_t nranks, const char *strategy, int32_t prefetch) {
    declare(p, nranks, strategy);
    p->setup.prefetch = prefetch;
    compile(p, TESS_PASS_TRAIN);
}

/* The position of the n-th instruction `op` of a group, or -1. */
static int32_t find(const plan *p, uint8_t op, int32_t index, int n) {
    for (int32_t i = 0; i < p->program.n_instrs; i++)
        if (p->program.instrs[i].op == op && p->program.instrs[i].index == index && n-- == 0)
            return i;
    return -1;
}

static int32_t find_event(const plan *p, uint8_t op, uint8_t type, int32_t scope) {
    for (int32_t i = 0; i < p->program.n_instrs; i++) {
        const tess__instr *in = &p->program.instrs[i];
        if (in->op == op && p->program.events[in->index].type == type && p->program.events[in->index].scope == scope)
            return i;
    }
    fail_msg("no event %d of scope %d", type, scope);
    return -1;
}

/* The position of the n-th booking or freeing of a role. */
static int32_t find_buffer(const plan *p, uint8_t op, uint8_t role, int32_t index, int n) {
    for (int32_t i = 0; i < p->program.n_instrs; i++) {
        const tess__instr *in = &p->program.instrs[i];
        if (in->op == op && p->program.buffers[in->buffer].role == role &&
            p->program.buffers[in->buffer].index == index && n-- == 0)
            return i;
    }
    return -1;
}

static int32_t count(const plan *p, uint8_t op, int32_t index) {
    int32_t n = 0;
    while (find(p, op, index, n) >= 0)
        n++;
    return n;
}

static int32_t most_alive(const plan *p, uint8_t role) {
    int32_t now = 0, most = 0;
    for (int32_t i = 0; i < p->program.n_instrs; i++) {
        const tess__instr *in = &p->program.instrs[i];
        if ((in->op != TESS__ALLOC && in->op != TESS__FREE) || p->program.buffers[in->buffer].role != role)
            continue;
        now += in->op == TESS__ALLOC ? 1 : -1;
        most = now > most ? now : most;
    }
    return most;
}

/* Group k is the unit of scope k: parameters were declared in that order. */

static void test_compile__the_next_gather_is_issued_before_this_computes(void **state) {
    (void)state;
    plan p;
    make(&p, 4, "full", 1);
    for (int32_t k = 0; k + 1 < SCOPES; k++) {
        int32_t enter = find_event(&p, TESS__ENTER, TESS__FORWARD_BEGIN, k);
        assert_true(find(&p, TESS__GATHER_WAIT, k, 0) < enter);
        assert_true(find(&p, TESS__GATHER, k + 1, 0) < enter);
        assert_true(find(&p, TESS__GATHER_WAIT, k + 1, 0) > find_event(&p, TESS__LEAVE, TESS__FORWARD_END, k));
    }
    for (int32_t k = SCOPES - 2; k > 0; k--) /* in backward each is gathered a second time, the last one is kept */
        assert_true(find(&p, TESS__GATHER, k - 1, 1) < find_event(&p, TESS__ENTER, TESS__BACKWARD_BEGIN, k));
    assert_int_equal(count(&p, TESS__GATHER, SCOPES - 1), 1);
    for (int32_t k = 0; k < SCOPES - 2; k++)
        assert_int_equal(count(&p, TESS__GATHER, k), 2);
    plan_free(&p);
}

static void test_compile__in_backward_the_next_gather_precedes_this_reduction(void **state) {
    (void)state;
    for (int32_t prefetch = 1; prefetch <= 3; prefetch++) {
        plan p;
        make(&p, 4, "full", prefetch);
        for (int32_t k = SCOPES - 1; k > 0; k--) {
            int32_t next = find(&p, TESS__GATHER, k - 1, 1);
            if (next >= 0)
                assert_true(next < find(&p, TESS__REDUCE, k, 0));
        }
        plan_free(&p);
    }
}

static void test_compile__parameters_go_before_the_reduction_and_gradients_after(void **state) {
    (void)state;
    plan p;
    make(&p, 4, "full", 1);
    for (int32_t k = 0; k < SCOPES; k++) {
        int32_t leave = find_event(&p, TESS__LEAVE, TESS__BACKWARD_END, k), reduce = find(&p, TESS__REDUCE, k, 0);
        int32_t wait = find(&p, TESS__REDUCE_WAIT, k, 0);
        int32_t last_free =
            find_buffer(&p, TESS__FREE, TESS__FULL, k, k == SCOPES - 1 ? 0 : count(&p, TESS__GATHER, k) - 1);
        assert_true(leave < last_free && last_free < reduce);
        assert_true(find_buffer(&p, TESS__ALLOC, TESS__GRAD, k, 0) <
                    find_event(&p, TESS__ENTER, TESS__BACKWARD_BEGIN, k));
        assert_true(find_buffer(&p, TESS__FREE, TESS__GRAD, k, 0) > wait);
        assert_true(find_buffer(&p, TESS__ALLOC, TESS__SHARD_GRAD, k, 0) < reduce);
        assert_int_equal(count(&p, TESS__REDUCE, k), 1);
    }
    /* One reduction is on its way while the next backward computes. */
    assert_true(find(&p, TESS__REDUCE_WAIT, 4, 0) > find_event(&p, TESS__LEAVE, TESS__BACKWARD_END, 3));
    plan_free(&p);
}

static void test_compile__replicas_add_up_beside_the_next_backward(void **state) {
    (void)state;
    plan p;
    make(&p, 4, "hybrid:2", 1);
    for (int32_t k = SCOPES - 1; k >= 2; k--) {
        int32_t reduced = find(&p, TESS__REDUCE_WAIT, k, 0), post = find(&p, TESS__REPLICATE, k, 0);
        int32_t wait = find(&p, TESS__REPLICATE_WAIT, k, 0);
        assert_true(reduced < post && post < find(&p, TESS__REDUCE, k - 1, 0));
        assert_true(post < find_event(&p, TESS__ENTER, TESS__BACKWARD_BEGIN, k - 2));
        assert_true(wait > find_event(&p, TESS__LEAVE, TESS__BACKWARD_END, k - 2));
        assert_true(find_buffer(&p, TESS__FREE, TESS__GRAD, k, 0) < post); /* its shard alone goes on */
        assert_int_equal(count(&p, TESS__REPLICATE, k), 1);
    }
    assert_true(find(&p, TESS__REPLICATE_WAIT, 0, 0) > find(&p, TESS__REPLICATE, 0, 0));
    assert_true(most_alive(&p, TESS__GRAD) <= 2);
    plan_free(&p);
}

/* Without prefetch a reduction ends before the next backward begins; else it goes on beside it. */
static void test_compile__nothing_travels_beside_a_scope_without_prefetch(void **state) {
    (void)state;
    for (int32_t prefetch = 0; prefetch <= 1; prefetch++) {
        plan p;
        make(&p, 4, "full", prefetch);
        for (int32_t k = 1; k < SCOPES; k++) {
            int32_t wait = find(&p, TESS__REDUCE_WAIT, k, 0),
                    next = find_event(&p, TESS__ENTER, TESS__BACKWARD_BEGIN, k - 1);
            assert_true(wait > 0 && next > 0);
            assert_int_equal(wait < next, prefetch == 0);
        }
        plan_free(&p);
    }
}

static void test_compile__at_most_two_units_are_whole_with_prefetch_1(void **state) {
    (void)state;
    for (int32_t prefetch = 0; prefetch <= 3; prefetch++) {
        plan p;
        make(&p, 4, "full", prefetch);
        assert_int_equal(most_alive(&p, TESS__FULL), prefetch + 1);
        assert_true(most_alive(&p, TESS__GRAD) <= 2);
        plan_free(&p);
    }
    plan p;
    make(&p, 4, "grad_op", 1); /* stays from forward to backward: all at once, gathered once */
    assert_int_equal(most_alive(&p, TESS__FULL), SCOPES);
    for (int32_t k = 0; k < SCOPES; k++)
        assert_int_equal(count(&p, TESS__GATHER, k), 1);
    plan_free(&p);
    make(&p, 4, "none", 1); /* whole on every rank: nothing to gather, gradients are averaged */
    for (int32_t k = 0; k < SCOPES; k++) {
        assert_int_equal(count(&p, TESS__GATHER, k), 0);
        assert_int_equal(count(&p, TESS__REDUCE, k), 0);
        assert_int_equal(count(&p, TESS__REPLICATE, k), 1);
    }
    plan_free(&p);
}

static void test_compile__an_evaluation_gathers_each_unit_once_and_has_no_gradient(void **state) {
    (void)state;
    static const char *const strategies[] = { "full", "grad_op" };
    for (int i = 0; i < 2; i++) {
        plan p;
        declare(&p, 4, strategies[i]);
        compile(&p, TESS_PASS_EVAL);
        for (int32_t k = 0; k < SCOPES; k++)
            assert_true(count(&p, TESS__GATHER, k) == 1 && count(&p, TESS__REDUCE, k) == 0);
        assert_int_equal(most_alive(&p, TESS__GRAD), 0);
        assert_int_equal(most_alive(&p, TESS__FULL), 2);
        plan_free(&p);
    }
}

/* embed.w is used by a, and by e as head.w: gathered at each use, reduced once, after the last backward. */
static void test_compile__a_tied_unit_is_gathered_at_each_use_and_reduced_once(void **state) {
    (void)state;
    plan p;
    declare(&p, 4, "full");
    plan_param(&p, "a.tied", 300, 0);
    assert_int_equal(tess__model_tie(&p.model, "e.tied", "a.tied"), TESS_OK);
    compile(&p, TESS_PASS_TRAIN);
    int32_t g = p.model.params[SCOPES].group;
    assert_int_equal(count(&p, TESS__GATHER, g), 3); /* a; e, forward and backward in one; a again */
    assert_int_equal(count(&p, TESS__REDUCE, g), 1);
    assert_true(find(&p, TESS__REDUCE, g, 0) > find_event(&p, TESS__LEAVE, TESS__BACKWARD_END, 0));
    assert_int_equal(find_buffer(&p, TESS__ALLOC, TESS__GRAD, g, 1), -1); /* between the uses only the gradient stays */
    assert_true(find_buffer(&p, TESS__ALLOC, TESS__GRAD, g, 0) < find_event(&p, TESS__ENTER, TESS__BACKWARD_BEGIN, 4));
    assert_true(find_buffer(&p, TESS__FREE, TESS__FULL, g, 1) < find_event(&p, TESS__ENTER, TESS__BACKWARD_BEGIN, 2));
    plan_free(&p);
}

static void test_compile__frozen_units_are_gathered_and_never_reduced(void **state) {
    (void)state;
    plan p;
    declare(&p, 4, "full");
    plan_param(&p, "c.frozen", 300, TESS_FROZEN);
    compile(&p, TESS_PASS_TRAIN);
    int32_t g = p.model.params[SCOPES].group;
    assert_true(g >= 0 && count(&p, TESS__GATHER, g) == 2);
    assert_int_equal(count(&p, TESS__REDUCE, g), 0);
    assert_int_equal(find_buffer(&p, TESS__ALLOC, TESS__GRAD, g, 0), -1);
    plan_free(&p);
}

/* ---- properties of every program ---- */

/* Blocks with a frozen parameter each, one whose gradient travels in another dtype, and a tied one. */
static void add_blocks(plan *p) {
    const int64_t wide = 600;
    const tess_param_options cast = {
        .struct_size = sizeof cast, .dtype = TESS_F64, .name = "c.d", .shape = &wide, .ndim = 1
    };
    char name[16];
    for (int k = 0; k < SCOPES; k++) {
        tess_block_options o = { .struct_size = sizeof o,
                                 .name = names[k],
                                 .output_bytes = 100,
                                 .saved_bytes = 200,
                                 .forward_scratch_bytes = 50,
                                 .backward_scratch_bytes = 60,
                                 .forward = no_block,
                                 .backward = no_block };
        assert_int_equal(tess__model_add_block(&p->model, &o, NULL), TESS_OK);
        snprintf(name, sizeof name, "%s.w", names[k]);
        plan_param(p, name, 1000 * (k + 1), 0);
        snprintf(name, sizeof name, "%s.f", names[k]);
        plan_param(p, name, 70, k % 2 ? TESS_FROZEN : 0);
    }
    assert_int_equal(tess__model_add_param(&p->model, &cast, NULL), TESS_OK); /* f64, and its gradient travels in f32 */
    assert_int_equal(tess__model_tie(&p->model, "e.t", "a.w"), TESS_OK);
}

/* An offload plugin that keeps all on the host. */
static tess_status place_on_host(void *ctx, const tess_plan_env *env, const tess_region *regions, uint32_t n,
                                 tess_placement *out, tess_error *e) {
    (void)ctx, (void)env, (void)e;
    for (uint32_t i = 0; i < n; i++)
        out[i] = (tess_placement){ .struct_size = sizeof *out,
                                   .rest = TESS_REST_HOST,
                                   .host_bytes = regions[i].bytes,
                                   .pinned_bytes = regions[i].bytes,
                                   .align = 64 };
    return TESS_OK;
}
static const tess_offload_ops on_host = { .struct_size = sizeof on_host, .place = place_on_host };

/* One that keeps all but activations in a store. */
static tess_status place_in_store(void *ctx, const tess_plan_env *env, const tess_region *regions, uint32_t n,
                                  tess_placement *out, tess_error *e) {
    place_on_host(ctx, env, regions, n, out, e);
    for (uint32_t i = 0; i < n; i++)
        if (regions[i].region != TESS_REGION_ACTIVATION)
            out[i].rest = TESS_REST_STORE;
    return TESS_OK;
}
static const tess_offload_ops in_store = { .struct_size = sizeof in_store,
                                           .place = place_in_store,
                                           .store_close = close_store };

/* ---- who uses what ---- */

static int scope_holds(const plan *p, int32_t scope, int32_t group) {
    const tess__scope *s = &p->model.scopes[scope];
    for (int32_t i = 0; i < s->n_params; i++)
        if (p->model.params[s->params[i]].unit == p->layout.groups[group].unit)
            return 1;
    return 0;
}

/* A block's call: its unit's parameters and gradients, what comes in and goes out, what it keeps. */
static int call_uses(const plan *p, const tess__event *e, const tess__buffer *b) {
    int32_t block = p->model.scopes[e->scope].block;
    int backward = e->type == TESS__BACKWARD_BEGIN || e->type == TESS__BACKWARD_END;
    int again = e->type == TESS__RECOMPUTE_BEGIN || e->type == TESS__RECOMPUTE_END;
    switch (b->role) {
    case TESS__FULL: return scope_holds(p, e->scope, b->index);
    case TESS__GRAD:
    case TESS__SHARD_GRAD: return backward && scope_holds(p, e->scope, b->index);
    case TESS__INPUT: return block == 0;
    case TESS__OUTPUT: return b->index == block - 1 || (b->index == block && !again);
    case TESS__SAVED:
    case TESS__SCRATCH: return b->index == block;
    case TESS__OUTPUT_GRAD: return backward && (b->index == block || b->index == block - 1);
    default: return 0;
    }
}

/* A gradient on its way from the kernels to the shard; of replicas alone there is no reduction before theirs. */
static int sends(const plan *p, uint8_t op, const tess__buffer *b) {
    int replicates = op == TESS__REPLICATE || op == TESS__REPLICATE_WAIT;
    int source = b->role == TESS__GRAD || b->role == TESS__WIRE;
    return b->role == TESS__PART || b->role == TESS__SHARD_GRAD || b->role == TESS__REDUCE_SCRATCH ||
           b->role == TESS__ARRIVED || (source && (!replicates || p->setup.shard_ranks == 1)) ||
           (replicates && (b->role == TESS__SHARD_WIRE || b->role == TESS__LANDED));
}

static int uses(const plan *p, const tess__instr *in, const tess__buffer *b) {
    int same = in->index == b->index;
    switch (in->op) {
    case TESS__INPUT_COPY: return b->role == TESS__INPUT;
    case TESS__RESULT_COPY: return same && b->role == TESS__OUTPUT;
    case TESS__PREFETCH:
    case TESS__PREFETCH_WAIT: return same && b->role == TESS__FETCHED;
    case TESS__GATHER:
        if (same && b->role == TESS__FETCHED)
            return 1; /* fall through */
    case TESS__GATHER_WAIT:
        return same && (b->role == TESS__FULL || b->role == TESS__PACKED || b->role == TESS__GATHER_SCRATCH);
    case TESS__WIDEN: return same && (b->role == TESS__FULL || b->role == TESS__PACKED);
    case TESS__SUM_ARRIVED:
        return same && (b->role == TESS__ARRIVED || b->role == TESS__PART || b->role == TESS__SHARD_GRAD ||
                        b->role == TESS__SHARD_WIRE);
    case TESS__PACK_SUM: return same && b->role == TESS__WIRE;
    case TESS__SUM_LANDED:
        return same && (b->role == TESS__LANDED || b->role == TESS__WIRE || b->role == TESS__SHARD_WIRE);
    case TESS__WIDEN_SUM:
        return same && (b->role == TESS__PART || b->role == TESS__SHARD_GRAD || b->role == TESS__WIRE ||
                        b->role == TESS__SHARD_WIRE);
    case TESS__ENTER:
    case TESS__LEAVE: return call_uses(p, &p->program.events[in->index], b);
    case TESS__CAST_WIRE: /* what is rounded, and to where */
    case TESS__SUM_FULL: return same && (b->role == TESS__GRAD || b->role == TESS__WIRE || b->role == TESS__SHARD_GRAD);
    case TESS__REDUCE: /* each with its wait */
    case TESS__REDUCE_WAIT:
    case TESS__REPLICATE:
    case TESS__REPLICATE_WAIT: return same && sends(p, in->op, b);
    case TESS__SUM_SHARD:
    case TESS__HOST_WAIT: return same && (b->role == TESS__PART || b->role == TESS__SHARD_GRAD);
    case TESS__OFFLOAD: /* each with its wait */
    case TESS__OFFLOAD_WAIT:
    case TESS__RELOAD:
    case TESS__RELOAD_WAIT:
        return same && (in->flags & TESS__OUTPUTS ? b->role == TESS__OUTPUT || b->role == TESS__OUTPUT_HOST
                                                  : b->role == TESS__SAVED || b->role == TESS__SAVED_HOST);
    case TESS__OPTIMIZE: return same && b->role == TESS__SHARD_GRAD;
    default: return 0;
    }
}

/* What a block's end does before the memory of its unit goes: nothing there takes more of the same domain. */
static int ends_block(const tess__program *p, int32_t i, uint8_t domain) {
    const tess__instr *in = &p->instrs[i];
    return in->op == TESS__FREE || in->op == TESS__RESULT_COPY || in->op == TESS__OFFLOAD ||
           in->op == TESS__OFFLOAD_WAIT || (in->op == TESS__ALLOC && p->buffers[in->buffer].domain != domain);
}

/* A step buffer is freed behind its last use, before anything else begins. The pass's input alone lives until its end.
 */
static void check_lives(const plan *p) {
    const tess__program *program = &p->program;
    for (int32_t i = 0; i < program->n_buffers; i++) {
        const tess__buffer *b = &program->buffers[i];
        int32_t last = -1;
        if (b->arena != TESS__STEP || b->role == TESS__INPUT)
            continue;
        for (int32_t k = b->first + 1; k < b->last; k++)
            if (uses(p, &program->instrs[k], b))
                last = k;
        for (int32_t k = b->last - 1; k > last; k--)
            if (!ends_block(program, k, b->domain))
                fail_msg("role %d of %d is freed at %d; its last use is %d, and at %d operation %d comes", b->role,
                         b->index, b->last, last, k, program->instrs[k].op);
    }
}

/* What is booked is freed once, what is posted is waited for once, memory is held through both, and tags are unique. */
static void check_program(const tess__program *p) {
    for (int32_t i = 0; i < p->n_buffers; i++) {
        int booked = 0, freed = 0;
        for (int32_t k = 0; k < p->n_instrs; k++)
            if (p->instrs[k].buffer == i) {
                booked += p->instrs[k].op == TESS__ALLOC;
                freed += p->instrs[k].op == TESS__FREE;
                assert_true(p->instrs[k].op != TESS__ALLOC || (k == p->buffers[i].first && !freed));
            }
        assert_int_equal(booked, 1);
        assert_int_equal(freed, p->buffers[i].arena == TESS__STEP || freed == 1);
    }
    for (int32_t i = 0; i < p->n_instrs; i++)
        for (int32_t k = 0; p->instrs[i].tag && k < i; k++)
            assert_true(p->instrs[k].tag != p->instrs[i].tag);
}

static void check_waits(const tess__program *p, uint8_t post, uint8_t wait, uint8_t role) {
    for (int32_t i = 0; i < p->n_instrs; i++) {
        if (p->instrs[i].op != post)
            continue;
        int32_t k = i + 1;
        for (; k < p->n_instrs && !(p->instrs[k].op == wait && p->instrs[k].index == p->instrs[i].index); k++) {
            assert_false(p->instrs[k].op == post && p->instrs[k].index == p->instrs[i].index);
            assert_false(p->instrs[k].op == TESS__FREE && p->buffers[p->instrs[k].buffer].role == role &&
                         p->instrs[k].index == p->instrs[i].index);
        }
        assert_true(k < p->n_instrs);
    }
}

enum { VARIANTS = 48 };
static void set_variant(plan *p, int32_t ranks, const char *strategy, int variant) {
    const int hosted = variant / 24, recomputed = hosted ? TESS__ACTIVATIONS_OFFLOAD : TESS__ACTIVATIONS_RECOMPUTE,
              sums = variant % 24 / 8;
    plan_init(p, ranks);
    assert_int_equal(tess__setup_strategy(&p->setup, strategy), TESS_OK);
    p->setup.prefetch = variant % 4;
    p->setup.activations = variant / 4 % 2 ? recomputed : TESS__ACTIVATIONS_KEEP;
    p->setup.accum = sums ? 4 : 1;
    p->setup.sync_each = sums < 2;
    p->setup.deterministic = sums == 1;
    p->setup.input_bytes = 40;
    if (hosted)
        p->setup.offload = &on_host;
    add_blocks(p);
    plan_layout(p);
}

static void test_compile__every_program_is_balanced(void **state) {
    (void)state;
    static const char *const strategies[] = { "full", "grad_op", "none", "hybrid:2", "hybrid_grad_op:2" };
    int programs = 0;
    for (int32_t ranks = 1; ranks <= 4; ranks += ranks)
        for (int i = 0; i < (ranks == 1 ? 3 : 5); i++)
            for (int variant = 0; variant < VARIANTS; variant++) {
                plan p;
                set_variant(&p, ranks, strategies[i], variant);
                static const uint32_t kinds[] = { TESS_PASS_TRAIN, TESS_PASS_EVAL,
                                                  TESS_PASS_TRAIN | TESS_PASS_NO_SYNC };
                for (int k = 0; k < (p.setup.sync_each ? 2 : 3); k++)
                    for (int fused = 0; fused <= (k == 0 && p.setup.accum == 1); fused++) {
                        assert_int_equal(tess__compile_pass(&p.compiler, kinds[k], NULL, fused, &p.program), TESS_OK);
                        check_program(&p.program);
                        check_lives(&p);
                        check_waits(&p.program, TESS__GATHER, TESS__GATHER_WAIT, TESS__FULL);
                        check_waits(&p.program, TESS__REDUCE, TESS__REDUCE_WAIT, TESS__GRAD);
                        check_waits(&p.program, TESS__REDUCE, TESS__REDUCE_WAIT, TESS__REDUCE_SCRATCH);
                        check_waits(&p.program, TESS__REPLICATE, TESS__REPLICATE_WAIT, TESS__REDUCE_SCRATCH);
                        programs++;
                    }
                plan_free(&p);
            }
    assert_int_equal(programs, 2 * (3 + 5 + 5) * 8 * (3 + 2 + 3));
}

/* ---- what rests in a store ---- */

static void add_plain_blocks(plan *p) {
    char name[16];
    for (int k = 0; k < SCOPES; k++) {
        tess_block_options o = {
            .struct_size = sizeof o, .name = names[k], .output_bytes = 100, .forward = no_block, .backward = no_block
        };
        assert_int_equal(tess__model_add_block(&p->model, &o, NULL), TESS_OK);
        snprintf(name, sizeof name, "%s.w", names[k]);
        plan_param(p, name, 1000 * (k + 1), 0);
    }
}

static void set_stored(plan *p, int32_t ranks, int variant, int mixed) {
    plan_init(p, ranks);
    p->setup.prefetch = variant % 3;
    p->setup.offload = &in_store;
    p->setup.optimizer = TESS_OPT_ADAM;
    p->setup.n_states = 2;
    p->setup.no_clip = p->setup.step_in_pass = !mixed; /* then gradients never rest */
    p->setup.accum = variant / 3 ? 4 : 1;
    p->setup.deterministic = variant / 3 == 2;
    if (mixed)
        add_blocks(p);
    else
        add_plain_blocks(p);
    plan_layout(p);
}

static void compile_stored(plan *p, int fused) {
    assert_int_equal(tess__compile_pass(&p->compiler, TESS_PASS_TRAIN, NULL, fused, &p->program), TESS_OK);
    check_program(&p->program);
    check_waits(&p->program, TESS__STATES_FETCH, TESS__STATES_FETCH_WAIT, TESS__STAGED0);
    check_waits(&p->program, TESS__STATES_STORE, TESS__STATES_STORE_WAIT, TESS__STAGED0);
    check_waits(&p->program, TESS__STATES_STORE, TESS__STATES_STORE_WAIT, TESS__STAGED_PARAM);
    check_waits(&p->program, TESS__GRAD_FETCH, TESS__GRAD_FETCH_WAIT, TESS__STAGED_GRAD0);
    check_waits(&p->program, TESS__GRAD_STORE, TESS__GRAD_STORE_WAIT, TESS__STAGED_GRAD0);
}

/* Right behind the lane's work, by the same lane. */
static void check_handed_over(const plan *p, uint8_t work, uint8_t store, int32_t g) {
    int32_t at = find(p, work, g, 0);
    assert_true(at >= 0);
    assert_int_equal(p->program.instrs[at].flags, TESS__ASYNC);
    assert_int_equal(p->program.instrs[at + 1].op, store);
    assert_int_equal(p->program.instrs[at + 1].index, g);
    assert_int_equal(p->program.instrs[at + 1].flags, TESS__ASYNC);
    assert_int_equal(count(p, store, g), 1);
}

/* A unit's states come beside its own backward. The lane that has stepped them hands them to the store, whatever
 * backward the engine's thread is in, and they are waited for when the next step has been handed over. So with one rank
 * no more than two units' are in memory, and with several, whose reductions take a backward longer, three. */
static void test_compile__a_stepped_unit_goes_to_its_store_at_once(void **state) {
    (void)state;
    for (int32_t ranks = 1; ranks <= 4; ranks += 3)
        for (int32_t prefetch = 0; prefetch < 3; prefetch++) {
            plan p;
            set_stored(&p, ranks, prefetch, 0);
            compile_stored(&p, 1);
            for (int32_t g = 0; g < SCOPES; g++) {
                int32_t stored = find(&p, TESS__STATES_STORE_WAIT, g, 0), fetch = find(&p, TESS__STATES_FETCH, g, 0);
                check_handed_over(&p, TESS__OPTIMIZE, TESS__STATES_STORE, g);
                assert_int_equal(fetch<find_event(&p, TESS__ENTER, TESS__BACKWARD_BEGIN, g), prefetch> 0);
                assert_true(find(&p, TESS__HOST_WAIT, g, 0) < stored);
                if (g)
                    assert_int_equal(find(&p, TESS__OPTIMIZE, g - 1, 0) < stored, prefetch > 0);
            }
            assert_int_equal(most_alive(&p, TESS__STAGED0), !prefetch ? 1 : ranks == 1 ? 2 : 3);
            plan_free(&p);
        }
}

/* So do gradients: behind the sum of microbatches; with one rank behind the only one. */
static void test_compile__a_summed_gradient_goes_to_its_store_at_once(void **state) {
    (void)state;
    for (int32_t ranks = 1; ranks <= 4; ranks += 3)
        for (int variant = 0; variant < 9; variant++) {
            plan p;
            set_stored(&p, ranks, variant, 1);
            if (p.setup.accum == 1)
                compile_stored(&p, 1);
            compile_stored(&p, 0);
            for (int32_t g = 0; g < p.layout.n_groups; g++)
                if (!p.layout.groups[g].trainable)
                    continue;
                else if (p.setup.accum > 1)
                    check_handed_over(&p, TESS__SUM_SHARD, TESS__GRAD_STORE, g);
                else if (ranks == 1)
                    check_handed_over(&p, TESS__REDUCE, TESS__GRAD_STORE, g);
                else
                    assert_int_equal(count(&p, TESS__GRAD_STORE, g), 1);
            plan_free(&p);
        }
}

static tess_status choose_blocks(void *ctx, const tess_param_view *v, tess_precision_choice *out, tess_error *e) {
    (void)ctx, (void)v, (void)e;
    tess_precision_choice c = { .master = TESS_F32,
                                .compute = TESS_F32,
                                .gather = TESS_Q8,
                                .grad_local = TESS_F32,
                                .grad_wire = TESS_Q8,
                                .accumulate = TESS_F32 };
    TESS_GIVE(out, &c);
    return TESS_OK;
}

static tess_status makes_blocks(void *ctx, const tess_kernel *k, tess_need *out) {
    (void)ctx, (void)out;
    return k->out_dtype == TESS_Q8 ? TESS_OK : TESS_E_UNSUPPORTED;
}

static tess_status makes_none(void *ctx, const tess_kernel *k, tess_need *out) {
    (void)ctx, (void)k, (void)out;
    return TESS_E_UNSUPPORTED;
}

static tess_status describe_none(void *ctx, int32_t index, tess_device_info *out, tess_error *e) {
    (void)ctx, (void)index, (void)e;
    strcpy(out->name, "plain");
    return TESS_OK;
}

static const tess_precision_ops in_blocks = { .struct_size = sizeof in_blocks, .choose = choose_blocks };
static tess_device_ops with_blocks = { .struct_size = sizeof with_blocks, .describe = describe_none };

/* Blocks are whole on every rank; the whole is booked behind its gather, and gradients go from rank to rank and from
 * replica to replica, never wide. */
static void check_blocks(const plan *p) {
    int sharded = p->setup.shard_ranks > 1, replicated = p->setup.replicas > 1;
    int at_end = p->setup.accum > 1 && !p->setup.sync_each;
    for (int32_t g = 0; g < p->layout.n_groups; g++) {
        assert_true(p->layout.groups[g].shard_elems % TESS_Q8_BLOCK == 0 && !p->layout.groups[g].in_place);
        assert_true(find_buffer(p, TESS__ALLOC, TESS__FULL, g, 0) > find(p, TESS__GATHER_WAIT, g, 0));
        assert_int_equal(count(p, TESS__WIDEN, g), count(p, TESS__GATHER, g));
        assert_int_equal(count(p, TESS__SUM_ARRIVED, g), sharded);
        assert_int_equal(count(p, TESS__REPLICATE, g), 2 * replicated);
        assert_int_equal(count(p, TESS__SUM_LANDED, g), replicated);
        assert_int_equal(count(p, TESS__WIDEN_SUM, g), replicated);
        assert_int_equal(count(p, TESS__PACK_SUM, g), at_end && p->setup.nranks > 1);
    }
    for (int32_t i = 0; i < p->program.n_collectives; i++) {
        const tess__planned_collective *c = &p->program.collectives[i];
        assert_true(c->members == 1 || (c->send_dtype == TESS_U8 && c->recv_dtype == TESS_U8));
        assert_true(c->op != TESS_ALL_TO_ALL || c->count % TESS_Q8_BYTES == 0);
    }
}

static void test_compile__blocks_travel_whole_and_are_widened_when_needed(void **state) {
    (void)state;
    static const char *const strategies[] = { "full", "grad_op", "none", "hybrid:2", "hybrid_grad_op:2" };
    with_blocks.kernel_need = makes_blocks;
    for (int i = 0; i < 5 * 3 * 4; i++) { /* of hybrid 2, 4, 6 and 8 ranks */
        int how = i / 5 % 3, nranks = 2 * (i / 15) + (i % 5 < 3 ? 1 : 2);
        plan p;
        declare(&p, nranks, strategies[i % 5]);
        p.setup.precision = &in_blocks, p.setup.device = &with_blocks;
        p.setup.accum = how ? 2 : 1, p.setup.sync_each = how == 1;
        compile(&p, TESS_PASS_TRAIN);
        check_program(&p.program);
        check_lives(&p);
        check_blocks(&p);
        check_waits(&p.program, TESS__REPLICATE, TESS__REPLICATE_WAIT, TESS__REDUCE_SCRATCH);
        plan_free(&p);
    }
}

static void test_compile__a_device_without_blocks_is_refused_by_name(void **state) {
    (void)state;
    plan p;
    tess_precision_choice c;
    declare(&p, 2, "full");
    with_blocks.kernel_need = makes_none;
    p.setup.precision = &in_blocks, p.setup.device = &with_blocks;
    assert_int_equal(tess__param_dtypes(&p.setup, &p.model.params[0], &c), TESS_E_UNSUPPORTED);
    assert_string_equal(
        tess_last_error(),
        "parameter \"a.w\": TESSERA_PRECISION sends blocks of 8 bits, which device plain does not make: "
        "TESSERA_DEVICE=cpu, or TESSERA_PRECISION=bf16");
    plan_free(&p);
}

static void test_compile__recomputation_runs_each_block_but_the_last_again(void **state) {
    (void)state;
    plan p;
    plan_init(&p, 2);
    p.setup.activations = TESS__ACTIVATIONS_RECOMPUTE;
    add_blocks(&p);
    compile(&p, TESS_PASS_TRAIN);
    for (int32_t k = 0; k + 1 < SCOPES; k++) {
        int32_t again = find_event(&p, TESS__ENTER, TESS__RECOMPUTE_BEGIN, k);
        assert_true(again > find_event(&p, TESS__LEAVE, TESS__BACKWARD_END, k + 1));
        assert_true(again < find_event(&p, TESS__ENTER, TESS__BACKWARD_BEGIN, k));
        assert_true(find_buffer(&p, TESS__FREE, TESS__SAVED, k, 0) <
                    find_event(&p, TESS__ENTER, TESS__FORWARD_BEGIN, k + 1));
        assert_true(find_buffer(&p, TESS__ALLOC, TESS__SAVED, k, 1) < again);
    }
    assert_int_equal(find_buffer(&p, TESS__ALLOC, TESS__SAVED, SCOPES - 1, 1), -1);
    assert_int_equal(most_alive(&p, TESS__SAVED), 1);
    plan_free(&p);
    plan_init(&p, 2);
    add_blocks(&p);
    compile(&p, TESS_PASS_TRAIN);
    assert_int_equal(most_alive(&p, TESS__SAVED), SCOPES);
    plan_free(&p);
}

static void test_compile__a_block_that_keeps_does_not_run_again(void **state) {
    (void)state;
    plan p;
    plan_init(&p, 2);
    p.setup.activations = TESS__ACTIVATIONS_RECOMPUTE;
    add_blocks(&p);
    p.model.blocks[1].options.flags = TESS_BLOCK_KEEP;
    compile(&p, TESS_PASS_TRAIN);
    int again = 0;
    for (int32_t i = 0; i < p.program.n_events; i++) {
        again += p.program.events[i].type == TESS__RECOMPUTE_BEGIN;
        assert_false(p.program.events[i].type == TESS__RECOMPUTE_BEGIN && p.program.events[i].scope == 1);
    }
    assert_int_equal(again, SCOPES - 2);
    assert_int_equal(find_buffer(&p, TESS__ALLOC, TESS__SAVED, 1, 1), -1);
    assert_true(find_buffer(&p, TESS__FREE, TESS__SAVED, 1, 0) > find_event(&p, TESS__LEAVE, TESS__BACKWARD_END, 1));
    assert_int_equal(most_alive(&p, TESS__SAVED), 2);
    plan_free(&p);
}

/* Of a last block that has the flag training copies the result behind backward, before the output's memory goes. */
static void test_compile__a_late_result_is_copied_behind_backward(void **state) {
    (void)state;
    for (int late = 0; late < 2; late++)
        for (uint32_t kind = TESS_PASS_TRAIN; kind <= TESS_PASS_EVAL; kind++) {
            plan p;
            plan_init(&p, 2);
            add_blocks(&p);
            for (int32_t i = 0; late && i < SCOPES; i++) /* other blocks' is not heeded */
                p.model.blocks[i].options.flags = TESS_BLOCK_LATE_RESULT;
            compile(&p, kind);
            uint8_t behind = late && kind == TESS_PASS_TRAIN ? TESS__BACKWARD_END : TESS__FORWARD_END;
            int32_t copy = find(&p, TESS__RESULT_COPY, SCOPES - 1, 0);
            assert_int_equal(count(&p, TESS__RESULT_COPY, SCOPES - 1), 1);
            assert_int_equal(count(&p, TESS__RESULT_COPY, 0), 0);
            assert_true(copy > find_event(&p, TESS__LEAVE, behind, SCOPES - 1));
            assert_true(copy < find_buffer(&p, TESS__FREE, TESS__OUTPUT, SCOPES - 1, 0));
            if (kind == TESS_PASS_TRAIN)
                assert_int_equal(late, copy > find_event(&p, TESS__ENTER, TESS__BACKWARD_BEGIN, SCOPES - 1));
            plan_free(&p);
        }
}

static void test_compile__a_fused_step_follows_each_reduction(void **state) {
    (void)state;
    plan p;
    plan_init(&p, 4);
    add_blocks(&p);
    plan_layout(&p);
    assert_int_equal(tess__compile_pass(&p.compiler, TESS_PASS_TRAIN, NULL, 1, &p.program), TESS_OK);
    for (int32_t g = 0; g < p.layout.n_groups; g++) {
        assert_int_equal(count(&p, TESS__OPTIMIZE, g), p.layout.groups[g].trainable);
        if (p.layout.groups[g].trainable)
            assert_true(find(&p, TESS__OPTIMIZE, g, 0) > find(&p, TESS__REDUCE_WAIT, g, 0));
    }
    plan_free(&p);
}

/* The bytes of host memory that rest, on a device with those slots and memory of that kind. */
static uint64_t resting_on_host(const tess_device_ops *device, uint32_t mem, uint32_t optimizer, int blocks) {
    plan p;
    tess__program resident = { 0 };
    plan_init(&p, 1);
    p.setup.device = device;
    p.setup.env.mem = mem;
    p.setup.optimizer = optimizer;
    if (blocks)
        add_blocks(&p);
    else
        plan_scope(&p, "a"), assert_int_equal(plan_param(&p, "a.w", 64, 0), TESS_OK);
    plan_layout(&p);
    assert_int_equal(tess__resident(&p.setup, &p.layout, 1, &resident), TESS_OK);
    uint64_t bytes = resident.step_bytes[TESS_DOMAIN_HOST];
    tess__program_free(&resident);
    plan_free(&p);
    return bytes;
}

/* The last block hands on 100 bytes, which take 128 with their alignment; the norm has 16 limbs of 8 bytes; a step's
 * note of what is not finite takes 64. */
static void test_compile__with_streams_results_have_room_on_the_host(void **state) {
    const tess_device_ops plain = { .struct_size = sizeof plain },
                          streams = { .struct_size = sizeof streams, .stream_create = no_stream };
    (void)state;
    assert_int_equal(resting_on_host(&streams, TESS_MEM_CUDA, TESS_OPT_ADAM, 1), 128 + 128 + 64);
    assert_int_equal(resting_on_host(&streams, TESS_MEM_CUDA, 0, 1), 128);
    assert_int_equal(resting_on_host(&streams, TESS_MEM_CUDA, TESS_OPT_ADAM, 0), 128 + 64);
    assert_int_equal(resting_on_host(&streams, TESS_MEM_HOST, TESS_OPT_ADAM, 1), 0);
    assert_int_equal(resting_on_host(&plain, TESS_MEM_CUDA, TESS_OPT_ADAM, 1), 0);
}

/* The same on all ranks: the compiler knows no rank. Another world or strategy gives another program. */
static void test_compile__the_hash_tells_programs_apart(void **state) {
    (void)state;
    static const struct {
        int32_t ranks;
        const char *strategy;
        int32_t prefetch;
    } cases[] = { { 4, "full", 1 }, { 4, "full", 1 },    { 4, "full", 0 }, { 4, "full", 2 },
                  { 3, "full", 1 }, { 4, "grad_op", 1 }, { 4, "none", 1 }, { 4, "hybrid:2", 1 } };
    enum { N = sizeof cases / sizeof cases[0] };
    uint64_t hash[N];
    for (int i = 0; i < N; i++) {
        plan p;
        make(&p, cases[i].ranks, cases[i].strategy, cases[i].prefetch);
        hash[i] = p.program.hash;
        for (int k = 0; k < i; k++)
            assert_int_equal(hash[k] == hash[i], i == 1);
        plan_free(&p);
    }
}

static void test_compile__a_comm_that_lacks_a_collective_is_named(void **state) {
    (void)state;
    plan p;
    declare(&p, 13, "full"); /* the fixture's comm has no broadcast among 13 */
    plan_layout(&p);
    assert_int_equal(tess__compile_other(&p.compiler, TESS__PASS_FULL, &p.program), TESS_E_UNSUPPORTED);
    assert_non_null(strstr(tess_last_error(), "13 ranks"));
    plan_free(&p);
}

/* 1000 elements over four ranks are 4 shards of 256, in fp32 4096 bytes. */
static void test_compile__a_collective_beyond_the_comms_limit_is_refused(void **state) {
    (void)state;
    for (uint64_t most = 4096; most >= 4095; most--) {
        plan p;
        plan_init(&p, 4);
        p.setup.most_bytes = most;
        plan_scope(&p, "a");
        assert_int_equal(plan_param(&p, "a.w", 1000, 0), TESS_OK);
        plan_layout(&p);
        tess_status s = tess__compile_other(&p.compiler, TESS__PASS_FULL, &p.program);
        assert_int_equal(s, most == 4096 ? TESS_OK : TESS_E_UNSUPPORTED);
        plan_free(&p);
    }
    assert_string_equal(tess_last_error(), "a collective has 4096 bytes on a rank, and the comm plugin takes 4095: "
                                           "smaller units are needed (TESSERA_WRAP)");
}

/* ---- gradients that kernels store --------------------------------------------------------------- */

static tess_status nothing(void *user, const tess_block_call *call) {
    (void)user, (void)call;
    return TESS_OK;
}

static void add_block(plan *p, const char *name, int64_t elems, uint32_t flags) {
    char param[16];
    tess_block_options b = { .struct_size = sizeof b, .name = name, .output_bytes = 64 };
    b.forward = b.backward = nothing;
    assert_int_equal(tess__model_add_block(&p->model, &b, NULL), TESS_OK);
    snprintf(param, sizeof param, "%s.w", name);
    assert_int_equal(plan_param(p, param, elems, flags), TESS_OK);
}

static int is_zeroed(const plan *p, int32_t group) {
    int32_t at = find_buffer(p, TESS__ALLOC, TESS__GRAD, group, 0);
    return (p->program.instrs[at >= 0 ? at : find_buffer(p, TESS__ALLOC, TESS__SHARD_GRAD, group, 0)].flags &
            TESS__ZERO) != 0;
}

static void test_compile__a_gradient_stored_whole_is_not_zeroed(void **state) {
    (void)state;
    for (int32_t nranks = 1; nranks < 3; nranks++) {
        plan p;
        plan_init(&p, nranks);
        add_block(&p, "whole", 1024, TESS_GRAD_OVERWRITE);
        add_block(&p, "padded", 1000, TESS_GRAD_OVERWRITE);
        add_block(&p, "added", 1024, 0);
        compile(&p, TESS_PASS_TRAIN);
        assert_int_equal(is_zeroed(&p, 0), 0);
        assert_int_equal(is_zeroed(&p, 1), 1);
        assert_int_equal(is_zeroed(&p, 2), 1);
        plan_free(&p);
    }
}

/* A program that enters its scopes itself may leave one out. */
static void test_compile__without_blocks_every_gradient_is_zeroed(void **state) {
    plan p;
    (void)state;
    plan_init(&p, 1);
    plan_scope(&p, "a");
    assert_int_equal(plan_param(&p, "a.w", 1024, TESS_GRAD_OVERWRITE), TESS_OK);
    compile(&p, TESS_PASS_TRAIN);
    assert_int_equal(is_zeroed(&p, 0), 1);
    plan_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_compile__the_next_gather_is_issued_before_this_computes),
        cmocka_unit_test(test_compile__in_backward_the_next_gather_precedes_this_reduction),
        cmocka_unit_test(test_compile__parameters_go_before_the_reduction_and_gradients_after),
        cmocka_unit_test(test_compile__replicas_add_up_beside_the_next_backward),
        cmocka_unit_test(test_compile__nothing_travels_beside_a_scope_without_prefetch),
        cmocka_unit_test(test_compile__at_most_two_units_are_whole_with_prefetch_1),
        cmocka_unit_test(test_compile__an_evaluation_gathers_each_unit_once_and_has_no_gradient),
        cmocka_unit_test(test_compile__a_tied_unit_is_gathered_at_each_use_and_reduced_once),
        cmocka_unit_test(test_compile__frozen_units_are_gathered_and_never_reduced),
        cmocka_unit_test(test_compile__every_program_is_balanced),
        cmocka_unit_test(test_compile__a_stepped_unit_goes_to_its_store_at_once),
        cmocka_unit_test(test_compile__a_summed_gradient_goes_to_its_store_at_once),
        cmocka_unit_test(test_compile__blocks_travel_whole_and_are_widened_when_needed),
        cmocka_unit_test(test_compile__a_device_without_blocks_is_refused_by_name),
        cmocka_unit_test(test_compile__recomputation_runs_each_block_but_the_last_again),
        cmocka_unit_test(test_compile__a_block_that_keeps_does_not_run_again),
        cmocka_unit_test(test_compile__a_late_result_is_copied_behind_backward),
        cmocka_unit_test(test_compile__a_fused_step_follows_each_reduction),
        cmocka_unit_test(test_compile__with_streams_results_have_room_on_the_host),
        cmocka_unit_test(test_compile__the_hash_tells_programs_apart),
        cmocka_unit_test(test_compile__a_comm_that_lacks_a_collective_is_named),
        cmocka_unit_test(test_compile__a_collective_beyond_the_comms_limit_is_refused),
        cmocka_unit_test(test_compile__a_gradient_stored_whole_is_not_zeroed),
        cmocka_unit_test(test_compile__without_blocks_every_gradient_is_zeroed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
