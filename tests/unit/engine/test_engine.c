/* SPDX-License-Identifier: BSD-3-Clause */
/* The engine at one rank, where every combination must give the same bits. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/engine/state.h"
#include "core/runtime/poison.h"
#include "tests/support/toy.h"

static tess *open_toy(toy *m, int blocks) {
    tess *t = NULL;
    tess_options o = { .struct_size = sizeof o, .optimizer = "adamw", .input_bytes = TOY_INPUT_BYTES };
    assert_int_equal(tess_open(&o, &t), TESS_OK);
    assert_int_equal(toy_declare(t, m, blocks), TESS_OK);
    assert_int_equal(tess_shard(t, toy_fill, NULL), TESS_OK);
    return t;
}

static const tess_optimizer_options step_options = { .struct_size = sizeof step_options, .lr = 0.01f };

static void train(tess *t, toy *m, int blocks, int fused, int steps) {
    double loss;
    for (int i = 0; i < steps; i++) {
        tess_status s = blocks ? toy_run(t, TESS_PASS_TRAIN, i, fused ? &step_options : NULL, &loss)
                               : toy_pass(t, m, TESS_PASS_TRAIN, i, &loss);
        assert_int_equal(s, TESS_OK);
        if (!fused)
            assert_int_equal(tess_step(t, &step_options), TESS_OK);
    }
}

static uint64_t digest_and_close(tess *t) {
    uint64_t digest = 0;
    assert_int_equal(toy_digest(t, &digest), TESS_OK);
    assert_int_equal(tess_close(t), TESS_OK);
    return digest;
}

static uint64_t digest_of(int blocks, int fused) {
    toy m;
    tess *t = open_toy(&m, blocks);
    train(t, &m, blocks, fused, 3);
    return digest_and_close(t);
}

static void test_engine__hooks_blocks_and_fused_step_agree(void **state) {
    (void)state;
    uint64_t hooks = digest_of(0, 0);
    assert_int_equal(digest_of(1, 0), hooks);
    assert_int_equal(digest_of(1, 1), hooks);
}

/* A smaller group keeps the microbatches of a step, where the program gives them in all. */
static void test_engine__microbatches_in_all_are_kept_with_the_setup(void **state) {
    (void)state;
    for (int32_t all = 0; all <= 12; all += 12) {
        tess *t = NULL;
        tess_options o = {
            .struct_size = sizeof o, .optimizer = "adamw", .microbatches = all, .plan_only = 1, .ranks = 4
        };
        assert_int_equal(tess_open(&o, &t), TESS_OK);
        assert_int_equal(t->plan.setup.microbatches, all);
        tess_close(t);
    }
}

static void test_engine__strategy_wrap_prefetch_and_recompute_do_not_change_bits(void **state) {
    (void)state;
    static const char *const settings[][2] = {
        { "TESSERA_STRATEGY", "grad_op" }, { "TESSERA_STRATEGY", "none" }, { "TESSERA_STRATEGY", "hybrid:1" },
        { "TESSERA_WRAP", "none" },        { "TESSERA_WRAP", "size:100" }, { "TESSERA_WRAP", "module:h.0,h.1" },
        { "TESSERA_PREFETCH", "0" },       { "TESSERA_PREFETCH", "3" },    { "TESSERA_ACTIVATIONS", "recompute" },
        { "TESSERA_DETERMINISTIC", "1" },  { "TESSERA_STRICT", "1" },
    };
    uint64_t plain = digest_of(1, 0);
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        setenv(settings[i][0], settings[i][1], 1);
        assert_int_equal(digest_of(1, 0), plain);
        unsetenv(settings[i][0]);
    }
}

static void test_engine__planned_bytes_equal_obtained_bytes(void **state) {
    (void)state;
    toy m;
    tess *t = open_toy(&m, 1);
    train(t, &m, 1, 0, 2);
    tess_stats s = { .struct_size = sizeof s };
    assert_int_equal(tess_stats_get(t, &s), TESS_OK);
    assert_true(s.peak_bytes[TESS_DOMAIN_DEVICE] > 0);
    assert_int_equal(s.peak_bytes[TESS_DOMAIN_DEVICE], s.planned_peak_bytes[TESS_DOMAIN_DEVICE]);
    uint64_t sum = 0;
    for (int c = 1; c < 16; c++)
        sum += s.category_peak_bytes[TESS_DOMAIN_DEVICE][c];
    assert_int_equal(sum, s.planned_peak_bytes[TESS_DOMAIN_DEVICE]);
    assert_int_equal(s.live_bytes[TESS_DOMAIN_DEVICE], s.resting_bytes[TESS_DOMAIN_DEVICE]);
    tess_close(t);
}

static tess *open_promised(toy *m) {
    tess *t = NULL;
    tess_options o = { .struct_size = sizeof o, .optimizer = "adamw", .input_bytes = TOY_INPUT_BYTES };
    o.flags = TESS_OPTIONS_STEP_IN_PASS | TESS_OPTIONS_NO_CLIP;
    assert_int_equal(tess_open(&o, &t), TESS_OK);
    assert_int_equal(toy_declare(t, m, 1), TESS_OK);
    assert_int_equal(tess_shard(t, toy_fill, NULL), TESS_OK);
    return t;
}

static void refuse_promised(const tess_optimizer_options *step, const char *text) {
    toy m;
    double loss;
    tess *t = open_promised(&m);
    assert_int_equal(toy_run(t, TESS_PASS_TRAIN, 0, &step_options, &loss), TESS_OK);
    assert_int_equal(toy_run(t, TESS_PASS_TRAIN, 1, step, &loss), TESS_E_INVALID);
    assert_non_null(strstr(tess_last_error(), text));
    tess_close(t);
}

static void test_engine__a_step_in_each_pass_changes_no_bits_and_is_held_to(void **state) {
    (void)state;
    toy m;
    tess *t = open_promised(&m);
    tess_stats s = { .struct_size = sizeof s };
    assert_int_equal(t->plan.programs[TESS__P_TRAIN].n_instrs, 0);
    train(t, &m, 1, 1, 3);
    assert_int_equal(tess_stats_get(t, &s), TESS_OK);
    assert_int_equal(s.peak_bytes[TESS_DOMAIN_DEVICE], s.planned_peak_bytes[TESS_DOMAIN_DEVICE]);
    assert_int_equal(s.live_bytes[TESS_DOMAIN_DEVICE], s.resting_bytes[TESS_DOMAIN_DEVICE]);
    assert_true(s.program_hash != 0);
    assert_int_equal(digest_and_close(t), digest_of(1, 0));
    tess_optimizer_options clips = step_options;
    clips.clip_norm = 1;
    refuse_promised(NULL, "without a step");
    refuse_promised(&clips, "with clipping");
}

/* Skips scope c forward and backward: departs, is recompiled once, then runs as compiled. */
static void partial_pass(tess *t, const toy *m) {
    const void *p[8];
    void *g[8];
    static const int order[] = { 0, 1, 2, 4 };
    assert_int_equal(tess_pass(t, TESS_PASS_TRAIN), TESS_OK);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(tess_forward_begin(t, m->scope[order[i]], p, m->n_params[order[i]]), TESS_OK);
        assert_int_equal(tess_forward_end(t, m->scope[order[i]]), TESS_OK);
    }
    for (int i = 4; i-- > 0;) {
        assert_int_equal(tess_backward_begin(t, m->scope[order[i]], p, g, m->n_params[order[i]]), TESS_OK);
        for (int k = 0; k < m->n_params[order[i]]; k++)
            if (g[k])
                ((float *)g[k])[0] += 1.0f;
        assert_int_equal(tess_backward_end(t, m->scope[order[i]]), TESS_OK);
    }
}

typedef struct {
    float embed, scale, head;
} seen_grads;

static tess_status look(void *user, const tess_range *r, void *data) {
    seen_grads *s = user;
    const float *g = data;
    if (strcmp(r->name, "embed.weight") == 0)
        s->embed = g[0];
    if (strcmp(r->name, "h.2.scale") == 0)
        s->scale = g[0];
    if (strcmp(r->name, "head.bias") == 0)
        s->head = g[0];
    return TESS_OK;
}

static void test_engine__part_of_the_model_recompiles_once_and_leaves_zero_gradients(void **state) {
    (void)state;
    toy m;
    tess *t = open_toy(&m, 0);
    for (int i = 0; i < 3; i++) {
        partial_pass(t, &m);
        seen_grads s = { -1, -1, -1 };
        assert_int_equal(tess_each_owned(t, TESS_OF_GRAD, look, &s), TESS_OK);
        assert_true(s.embed == 2.0f); /* tied: two uses */
        assert_true(s.scale == 0.0f);
        assert_true(s.head == 1.0f);
        assert_int_equal(tess_grad_drop(t), TESS_OK);
        tess_stats stats = { .struct_size = sizeof stats };
        assert_int_equal(tess_stats_get(t, &stats), TESS_OK);
        assert_int_equal(stats.n_recompiles, 1);
        assert_int_equal(stats.live_bytes[1], stats.resting_bytes[1]);
    }
    assert_int_equal(tess_close(t), TESS_OK);
}

/* F F B B over one scope, nested in another: the gradient is reduced once, after the last use. */
static void test_engine__two_forwards_and_nested_scopes_reduce_once(void **state) {
    (void)state;
    toy m;
    tess *t = open_toy(&m, 0);
    const void *p[8], *outer[8];
    void *g[8];
    for (int pass = 0; pass < 2; pass++) {
        assert_int_equal(tess_pass(t, TESS_PASS_TRAIN), TESS_OK);
        assert_int_equal(tess_forward_begin(t, m.scope[0], outer, m.n_params[0]), TESS_OK);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(tess_forward_begin(t, m.scope[1], p, m.n_params[1]), TESS_OK);
            assert_int_equal(tess_forward_end(t, m.scope[1]), TESS_OK);
        }
        float first = ((const float *)outer[0])[0];
        assert_true(first == first);
        assert_int_equal(tess_forward_end(t, m.scope[0]), TESS_OK);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(tess_backward_begin(t, m.scope[1], p, g, m.n_params[1]), TESS_OK);
            assert_true(((float *)g[0])[0] == (float)i);
            ((float *)g[0])[0] += 1.0f;
            assert_int_equal(tess_backward_end(t, m.scope[1]), TESS_OK);
        }
        float norm = -1;
        assert_int_equal(tess_grad_norm(t, &norm), TESS_OK);
        assert_true(norm == 2.0f);
        assert_int_equal(tess_grad_drop(t), TESS_OK);
    }
    assert_int_equal(tess_close(t), TESS_OK);
}

static void test_engine__departing_under_strict_is_an_error_that_names_both(void **state) {
    (void)state;
    toy m;
    setenv("TESSERA_STRICT", "1", 1);
    tess *t = open_toy(&m, 0);
    unsetenv("TESSERA_STRICT");
    const void *p[8];
    assert_int_equal(tess_pass(t, TESS_PASS_TRAIN), TESS_OK);
    assert_int_equal(tess_forward_begin(t, m.scope[2], p, m.n_params[2]), TESS_E_MISMATCH);
    assert_non_null(strstr(tess_last_error(), "\"embed\""));
    assert_non_null(strstr(tess_last_error(), "\"h.1\""));
    assert_int_equal(tess_step(t, &step_options), TESS_E_MISMATCH); /* sticky */
    assert_int_equal(tess_close(t), TESS_E_MISMATCH);
}

static void test_engine__summoned_parameters_are_the_trained_ones(void **state) {
    (void)state;
    toy m;
    tess *t = open_toy(&m, 0);
    const float *embed[1], *head[2];
    assert_int_equal(tess_summon_begin(t, m.scope[0], embed, 1), TESS_OK);
    assert_int_equal(tess_summon_begin(t, m.scope[4], head, 2), TESS_OK);
    float expected[91];
    tess_range r = { .name = "embed.weight", .elems = 91 };
    toy_fill(NULL, &r, expected);
    assert_memory_equal(embed[0], expected, sizeof expected);
    assert_memory_equal(head[1], expected, sizeof expected);
    assert_int_equal(tess_pass(t, TESS_PASS_EVAL), TESS_E_INVALID);
    assert_int_equal(tess_close(t), TESS_E_INVALID);
}

/* Copies with NaN behind them are for passes. What is summoned is read where it lies. */
static void test_engine__what_is_summoned_under_strict_lies_in_its_own_place(void **state) {
    (void)state;
    toy m;
    setenv("TESSERA_STRICT", "1", 1);
    tess *t = open_toy(&m, 0);
    unsetenv("TESSERA_STRICT");
    const char *embed[1], *again[1];
    assert_int_equal(tess_summon_begin(t, m.scope[0], embed, 1), TESS_OK);
    const tess__param *p = &t->plan.model.params[0];
    assert_true(t->pass.guard && t->plan.layout.groups[p->group].in_place);
    const char *place = tess__address_of(t, TESS__MASTER, p->group);
    assert_ptr_equal(embed[0], place + p->offset * sizeof(float));
    assert_int_equal(tess_summon_end(t, m.scope[0]), TESS_OK);
    assert_int_equal(tess_pass(t, TESS_PASS_EVAL), TESS_OK); /* which has its copies again */
    assert_int_equal(tess_forward_begin(t, m.scope[0], again, 1), TESS_OK);
    assert_ptr_not_equal(again[0], embed[0]);
    assert_int_equal(tess_forward_end(t, m.scope[0]), TESS_OK);
    tess_close(t);
}

static void test_engine__a_released_pointer_reads_nan_under_strict(void **state) {
    (void)state;
    if (TESS__CHECKING)
        skip(); /* AddressSanitizer has the buffer, and stops who reads it: e2e/test_memory_mutations */
    toy m;
    setenv("TESSERA_STRICT", "1", 1);
    setenv("TESSERA_STRATEGY", "full", 1);
    setenv("TESSERA_PREFETCH", "0", 1);
    tess *t = open_toy(&m, 1);
    train(t, &m, 1, 0, 1);
    const unsigned char *step = t->memory.arenas[TESS_DOMAIN_DEVICE][TESS__STEP].memory.ptr;
    tess__unpoison(step, t->memory.arena_bytes[TESS_DOMAIN_DEVICE][TESS__STEP]);
    for (uint64_t i = 0; i < t->plan.programs[TESS__P_TRAIN].buffers[0].bytes; i++)
        assert_int_equal(step[t->plan.programs[TESS__P_TRAIN].buffers[0].offset + i], 0xff);
    tess_close(t);
    unsetenv("TESSERA_STRICT");
    unsetenv("TESSERA_STRATEGY");
    unsetenv("TESSERA_PREFETCH");
}

/* The step arena starts filled with a pattern: what is touched ends where the plan says (docs/numbers.md, "Bytes"). */
static void test_engine__touches_the_step_arena_up_to_the_planned_byte(void **state) {
    (void)state;
    if (TESS__CHECKING)
        skip(); /* each buffer has memory of its own there */
    toy m;
    tess *t = open_toy(&m, 1);
    unsigned char *step = t->memory.arenas[TESS_DOMAIN_DEVICE][TESS__STEP].memory.ptr;
    uint64_t bytes = t->memory.arena_bytes[TESS_DOMAIN_DEVICE][TESS__STEP], planned = 0;
    for (int i = 0; i < TESS__N_PROGRAMS; i++)
        if (t->plan.programs[i].step_bytes[1] > planned)
            planned = t->plan.programs[i].step_bytes[1];
    tess__unpoison(step, bytes);
    memset(step, 0xa5, bytes);
    train(t, &m, 1, 0, 2);
    uint64_t digest;
    assert_int_equal(toy_digest(t, &digest), TESS_OK);
    tess__unpoison(step, bytes);
    uint64_t highest = bytes;
    while (highest > 0 && step[highest - 1] == 0xa5)
        highest--;
    assert_true(highest <= planned);
    assert_true(planned - highest < t->plan.setup.align + 64 * sizeof(float));
    tess_close(t);
}

static void test_engine__accumulation_in_the_tree_equals_more_ranks_order(void **state) {
    (void)state;
    uint64_t digest[2];
    static const char *const sync[] = { "each", "end" };
    setenv("TESSERA_ACCUM", "4", 1);
    setenv("TESSERA_DETERMINISTIC", "1", 1);
    for (int i = 0; i < 2; i++) {
        toy m;
        double loss;
        setenv("TESSERA_SYNC", sync[i], 1);
        tess *t = open_toy(&m, 1);
        for (int step = 0; step < 2; step++) {
            for (int k = 0; k < 4; k++)
                assert_int_equal(toy_run(t, TESS_PASS_TRAIN, step * 4 + k, NULL, &loss), TESS_OK);
            assert_int_equal(toy_run(t, TESS_PASS_TRAIN, 0, NULL, &loss) == TESS_OK, 0);
            break;
        }
        tess_close(t);
        t = open_toy(&m, 1);
        for (int step = 0; step < 2; step++) {
            for (int k = 0; k < 4; k++)
                assert_int_equal(toy_run(t, TESS_PASS_TRAIN, step * 4 + k, NULL, &loss), TESS_OK);
            assert_int_equal(tess_step(t, &step_options), TESS_OK);
        }
        digest[i] = digest_and_close(t);
    }
    unsetenv("TESSERA_ACCUM");
    unsetenv("TESSERA_DETERMINISTIC");
    unsetenv("TESSERA_SYNC");
    assert_int_equal(digest[0], digest[1]);
}

static void test_engine__a_budget_below_the_plan_is_refused_before_allocation(void **state) {
    (void)state;
    toy m;
    tess *t = open_toy(&m, 1);
    uint64_t planned = tess__planned_bytes(&t->plan, TESS_DOMAIN_DEVICE);
    tess_close(t);
    for (int below = 0; below < 2; below++) {
        char text[32];
        snprintf(text, sizeof text, "%llu", (unsigned long long)(planned - (uint64_t)below * 4096));
        setenv("TESSERA_DEVICE_MEMORY", text, 1);
        setenv("TESSERA_PREFETCH", "1", 1);
        tess_options o = { .struct_size = sizeof o, .optimizer = "adamw", .input_bytes = TOY_INPUT_BYTES };
        assert_int_equal(tess_open(&o, &t), TESS_OK);
        assert_int_equal(toy_declare(t, &m, 1), TESS_OK);
        assert_int_equal(tess_shard(t, toy_fill, NULL), below ? TESS_E_BUDGET : TESS_OK);
        if (below) {
            assert_non_null(strstr(tess_last_error(), "sharded parameter"));
            assert_int_equal(t->memory.obtained_peak[TESS_DOMAIN_DEVICE], 0);
            assert_int_equal(tess_exit_code(TESS_E_BUDGET), 4);
        }
        tess_close(t);
    }
    unsetenv("TESSERA_DEVICE_MEMORY");
    unsetenv("TESSERA_PREFETCH");
}

/* Parameters and momentum rest; between backward and step the sharded gradient is alive too. */
static void test_engine__sgd_with_momentum_rests_in_two_shards_and_has_three_after_backward(void **state) {
    (void)state;
    toy m;
    tess *t = NULL;
    tess_options o = { .struct_size = sizeof o, .optimizer = "sgd", .momentum = 0.9f, .input_bytes = TOY_INPUT_BYTES };
    tess_optimizer_options step = { .struct_size = sizeof step, .lr = 0.1f, .momentum = 0.9f };
    assert_int_equal(tess_open(&o, &t), TESS_OK);
    assert_int_equal(toy_declare(t, &m, 0), TESS_OK);
    assert_int_equal(tess_shard(t, toy_fill, NULL), TESS_OK);
    uint64_t trained = 0, frozen = 0;
    for (int32_t g = 0; g < t->plan.layout.n_groups; g++)
        *(t->plan.layout.groups[g].trainable ? &trained : &frozen) += t->plan.layout.groups[g].shard_elems * 4;
    uint64_t buffer = tess__round_up(5 * 4, t->plan.setup.align);
    for (int i = 0; i < 2; i++) {
        double loss;
        tess_stats s = { .struct_size = sizeof s };
        assert_int_equal(tess_stats_get(t, &s), TESS_OK);
        assert_int_equal(s.live_bytes[TESS_DOMAIN_DEVICE], 2 * trained + frozen + buffer);
        assert_int_equal(s.resting_bytes[TESS_DOMAIN_DEVICE], 2 * trained + frozen + buffer);
        assert_int_equal(toy_pass(t, &m, TESS_PASS_TRAIN, i, &loss), TESS_OK);
        float norm;
        assert_int_equal(tess_grad_norm(t, &norm), TESS_OK);
        assert_int_equal(tess_stats_get(t, &s), TESS_OK);
        assert_int_equal(s.live_bytes[TESS_DOMAIN_DEVICE], 3 * trained + frozen + buffer);
        assert_int_equal(tess_step(t, &step), TESS_OK);
    }
    assert_int_equal(tess_close(t), TESS_OK);
}

static void test_engine__planning_allocates_nothing_and_says_the_same(void **state) {
    (void)state;
    toy m;
    tess *t = open_toy(&m, 1);
    uint64_t planned = tess__planned_bytes(&t->plan, TESS_DOMAIN_DEVICE);
    tess_close(t);
    tess_options o = {
        .struct_size = sizeof o, .optimizer = "adamw", .input_bytes = TOY_INPUT_BYTES, .plan_only = 1, .ranks = 1
    };
    assert_int_equal(tess_open(&o, &t), TESS_OK);
    assert_int_equal(toy_declare(t, &m, 1), TESS_OK);
    assert_int_equal(tess_shard(t, toy_fill, NULL), TESS_E_PLANNED);
    assert_int_equal(tess__planned_bytes(&t->plan, TESS_DOMAIN_DEVICE), planned);
    assert_null(t->device.handle);
    assert_int_equal(tess_close(t), TESS_OK);
}

static void test_engine__wrong_calls_name_what_was_expected(void **state) {
    (void)state;
    toy m;
    const void *p[8];
    tess *t = open_toy(&m, 0);
    assert_int_equal(tess_forward_begin(t, 99, p, 1), TESS_E_INVALID);
    assert_non_null(strstr(tess_last_error(), "99"));
    tess_close(t);
    t = open_toy(&m, 0);
    assert_int_equal(tess_step(t, &step_options), TESS_E_INVALID);
    assert_non_null(strstr(tess_last_error(), "0 of 1 training passes"));
    tess_close(t);
    t = open_toy(&m, 0);
    assert_int_equal(tess_pass(t, TESS_PASS_TRAIN), TESS_OK);
    assert_int_equal(tess_forward_begin(t, m.scope[0], p, 3), TESS_E_INVALID);
    assert_non_null(strstr(tess_last_error(), "embed"));
    tess_close(t);
    assert_int_equal(tess_pass(NULL, TESS_PASS_TRAIN), TESS_E_INVALID);
    assert_int_equal(tess_close(NULL), TESS_OK);
}

/* A pass far longer than the compiled one, with little memory: what is obtained on top is given back at once. */
static void test_engine__a_long_departing_pass_takes_no_more_than_its_fullest_moment(void **state) {
    (void)state;
    enum { SCOPES = 9 };
    static const char *const names[SCOPES] = { "a", "b", "c", "d", "e", "f", "g", "h", "i" };
    tess_scope scope[SCOPES];
    const void *p[1];
    tess *t = NULL;
    setenv("TESSERA_PRECISION", "bf16", 1); /* what is cast is gathered, at one rank too */
    tess_options o = { .struct_size = sizeof o, .optimizer = "sgd" };
    tess_status s = tess_open(&o, &t);
    unsetenv("TESSERA_PRECISION");
    if (s)
        skip();
    for (int k = 0; k < SCOPES; k++) {
        char name[8];
        const int64_t elems = 5000 + 1000 * k;
        snprintf(name, sizeof name, "%s.w", names[k]);
        tess_param_options param = { .struct_size = sizeof param,
                                     .dtype = TESS_F32,
                                     .compute_dtypes = 1u << TESS_F32 | 1u << TESS_BF16,
                                     .name = name,
                                     .shape = &elems,
                                     .ndim = 1 };
        assert_int_equal(tess_scope_add(t, names[k], 0, &scope[k]), TESS_OK);
        assert_int_equal(tess_param_add(t, &param, NULL), TESS_OK);
    }
    assert_int_equal(tess_shard(t, NULL, NULL), TESS_OK);
    assert_int_equal(tess_pass(t, TESS_PASS_EVAL), TESS_OK);
    for (int round = 0; round < 300; round++) { /* all at once: more than any compiled pass holds */
        for (int k = SCOPES; k-- > 0;)
            assert_int_equal(tess_forward_begin(t, scope[k], p, 1), TESS_OK);
        if (round == 0)
            assert_true(t->memory.n_overflow > 0);
        for (int k = SCOPES; k-- > 0;)
            assert_int_equal(tess_forward_end(t, scope[k]), TESS_OK);
        assert_int_equal(t->memory.n_overflow, 0);
    }
    assert_true(t->memory.obtained_peak[1] < 3 * tess__planned_bytes(&t->plan, TESS_DOMAIN_DEVICE));
    assert_int_equal(tess_close(t), TESS_OK);
}

static void test_engine__blocks_can_be_summoned_and_not_hooked(void **state) {
    (void)state;
    toy m;
    const float *p[8];
    tess *t = open_toy(&m, 1);
    train(t, &m, 1, 0, 1);
    for (int k = 0; k < TOY_SCOPES; k++) {
        assert_int_equal(tess_summon_begin(t, m.scope[k], p, m.n_params[k]), TESS_OK);
        assert_non_null(p[0]);
        assert_int_equal(tess_summon_end(t, m.scope[k]), TESS_OK);
    }
    train(t, &m, 1, 0, 1);
    assert_int_equal(tess_pass(t, TESS_PASS_TRAIN), TESS_E_INVALID);
    assert_non_null(strstr(tess_last_error(), "tess_run"));
    tess_close(t);
}

static void assert_refused(tess *t, tess_status s, const char *says) {
    assert_int_equal(s, TESS_E_INVALID);
    if (!strstr(tess_last_error(), says))
        fail_msg("\"%s\" lacks \"%s\"", tess_last_error(), says);
    assert_int_equal(tess_close(t), TESS_E_INVALID);
}

static void test_engine__nothing_moves_while_parameters_are_summoned(void **state) {
    (void)state;
    toy m;
    const void *p[8];
    float norm;
    uint64_t digest;
    for (int call = 0; call < 4; call++) {
        tess *t = open_toy(&m, 0);
        train(t, &m, 0, 0, 1);
        double loss;
        assert_int_equal(toy_pass(t, &m, TESS_PASS_TRAIN, 0, &loss), TESS_OK);
        assert_int_equal(tess_summon_begin(t, m.scope[1], p, m.n_params[1]), TESS_OK);
        tess_status s = call == 0   ? tess_step(t, &step_options)
                        : call == 1 ? tess_grad_norm(t, &norm)
                        : call == 2 ? toy_digest(t, &digest)
                                    : tess_summon_end(t, m.scope[2]);
        assert_refused(t, s, call == 3 ? "scope 2 is not summoned" : "while parameters are summoned");
    }
}

static void test_engine__unbalanced_begins_and_ends_are_refused_by_scope(void **state) {
    (void)state;
    toy m;
    const void *p[8];
    void *g[8];
    tess *t = open_toy(&m, 0);
    assert_int_equal(tess_pass(t, TESS_PASS_TRAIN), TESS_OK);
    assert_refused(t, tess_forward_end(t, m.scope[1]), "forward of scope \"h.0\" ends without having begun");
    t = open_toy(&m, 0);
    assert_int_equal(tess_pass(t, TESS_PASS_TRAIN), TESS_OK);
    assert_int_equal(tess_forward_begin(t, m.scope[1], p, m.n_params[1]), TESS_OK);
    assert_refused(t, tess_backward_end(t, m.scope[1]), "backward of scope \"h.0\" ends without having begun");
    t = open_toy(&m, 0);
    assert_int_equal(tess_pass(t, TESS_PASS_TRAIN), TESS_OK);
    assert_int_equal(tess_forward_begin(t, m.scope[1], p, m.n_params[1]), TESS_OK);
    assert_refused(t, tess_pass(t, TESS_PASS_TRAIN), "forward of scope \"h.0\" has begun and not ended");
    t = open_toy(&m, 0); /* a second round within one pass: its gradient is gone already */
    assert_int_equal(tess_pass(t, TESS_PASS_TRAIN), TESS_OK);
    tess_status s = TESS_OK;
    for (int round = 0; !s && round < 2; round++) {
        assert_int_equal(tess_forward_begin(t, m.scope[1], p, m.n_params[1]), TESS_OK);
        assert_int_equal(tess_forward_end(t, m.scope[1]), TESS_OK);
        if (!(s = tess_backward_begin(t, m.scope[1], p, g, m.n_params[1])))
            assert_int_equal(tess_backward_end(t, m.scope[1]), TESS_OK);
    }
    assert_refused(t, s, "backward enters unit h.0 again");
}

static void test_engine__structs_without_a_size_are_refused(void **state) {
    (void)state;
    static const uint32_t sizes[] = { 0, 4, 7, 9, 0x7fffffff, sizeof(void *) /* of the pointer, as slips go */ };
    toy m;
    tess *t = NULL;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        tess_options o = { .struct_size = sizes[i] };
        tess_param_options param = { .struct_size = sizes[i], .name = "a.w" };
        tess_block_options block = { .struct_size = sizes[i], .name = "a" };
        tess_optimizer_options step = { .struct_size = sizes[i] };
        tess_run_options run = { .struct_size = sizes[i] };
        tess_stats stats = { .struct_size = sizes[i] };
        assert_int_equal(tess_open(&o, &t), TESS_E_INVALID);
        assert_non_null(strstr(tess_last_error(), "tess_open: struct_size"));
        assert_int_equal(tess_open(NULL, &t), TESS_OK);
        assert_refused(t, tess_param_add(t, &param, NULL), "tess_param_add: struct_size");
        assert_int_equal(tess_open(NULL, &t), TESS_OK);
        assert_refused(t, tess_block_add(t, &block, NULL), "tess_block_add: struct_size");
        t = open_toy(&m, 1);
        if (i < 4 && i != 3)
            assert_int_equal(tess_stats_get(t, &stats), TESS_E_INVALID);
        assert_refused(t, tess_step(t, &step), "tess_step: struct_size");
        t = open_toy(&m, 1);
        assert_refused(t, tess_run(t, &run), "tess_run: struct_size");
    }
    t = open_toy(&m, 1);
    assert_refused(t, tess_step(t, NULL), "tess_step: the options are missing");
    assert_int_equal(tess_open(NULL, NULL), TESS_E_INVALID);
}

/* An older program's struct is shorter, a newer one's longer: what is beyond is the default, or not ours. */
static void test_engine__shorter_and_longer_structs_are_taken(void **state) {
    (void)state;
    toy m;
    struct {
        tess_optimizer_options known;
        uint64_t more[4];
    } longer = { .known = { .struct_size = sizeof longer, .lr = 0.01f }, .more = { 1, 2, 3, 4 } };
    const tess_options shorter = { .struct_size = offsetof(tess_options, activations), .log = "beyond" };
    uint64_t digest[3];
    const void *const given[] = { &step_options, &longer, &step_options };
    for (int i = 0; i < 3; i++) {
        tess *t = open_toy(&m, 0);
        if (i == 2) {
            tess_close(t);
            assert_int_equal(tess_open(&shorter, &t), TESS_OK);
            assert_int_equal(toy_declare(t, &m, 0), TESS_OK);
            assert_int_equal(tess_shard(t, toy_fill, NULL), TESS_OK);
        }
        double loss;
        assert_int_equal(toy_pass(t, &m, TESS_PASS_TRAIN, 0, &loss), TESS_OK);
        assert_int_equal(tess_step(t, given[i]), TESS_OK);
        digest[i] = digest_and_close(t);
    }
    assert_int_equal(digest[1], digest[0]);
    assert_int_equal(digest[2], digest[0]);
    struct {
        tess_stats known;
        uint64_t more;
    } stats = { .known = { .struct_size = sizeof stats }, .more = 99 };
    tess *t = open_toy(&m, 0);
    assert_int_equal(tess_stats_get(t, &stats.known), TESS_OK);
    assert_int_equal(stats.more, 0);
    assert_int_equal(stats.known.struct_size, sizeof stats);
    tess_close(t);
}

static tess_status refuse(void *user, const tess_range *r, void *data) {
    (void)data;
    return strcmp(r->name, "h.1.weight") == 0 ? *(tess_status *)user : TESS_OK;
}

static void test_engine__a_failing_callback_is_named_by_parameter(void **state) {
    (void)state;
    static tess_status returned[] = { TESS_E_DATA, 1 };
    static const tess_status expected[] = { TESS_E_DATA, TESS_E_INVALID };
    toy m;
    for (int i = 0; i < 2; i++) {
        tess *t = NULL;
        assert_int_equal(tess_open(NULL, &t), TESS_OK);
        assert_int_equal(toy_declare(t, &m, 0), TESS_OK);
        assert_int_equal(tess_shard(t, refuse, &returned[i]), expected[i]);
        assert_non_null(strstr(tess_last_error(), "\"h.1.weight\""));
        assert_int_equal(tess_close(t), expected[i]);
    }
}

static void test_engine__optimizer_groups_must_be_given_for_all_parameters(void **state) {
    (void)state;
    int64_t three = 3;
    for (int n_groups = 1; n_groups <= 3; n_groups++) {
        tess *t = NULL;
        tess_scope scope;
        tess_options open = { .struct_size = sizeof open, .optimizer = "sgd" };
        tess_param_options o = {
            .struct_size = sizeof o, .dtype = TESS_F32, .name = "a.w", .shape = &three, .ndim = 1, .optimizer_group = 2
        };
        const tess_optimizer_group groups[3] = { { 0, 1 }, { 0, 1 }, { 0, 2 } };
        tess_optimizer_options step = { .struct_size = sizeof step, .lr = 1, .groups = groups, .n_groups = n_groups };
        void *p[1], *g[1];
        assert_int_equal(tess_open(&open, &t), TESS_OK);
        assert_int_equal(tess_scope_add(t, "a", 0, &scope), TESS_OK);
        assert_int_equal(tess_param_add(t, &o, NULL), TESS_OK);
        assert_int_equal(tess_shard(t, NULL, NULL), TESS_OK);
        assert_int_equal(tess_pass(t, TESS_PASS_TRAIN), TESS_OK);
        assert_int_equal(tess_forward_begin(t, scope, p, 1), TESS_OK);
        assert_int_equal(tess_forward_end(t, scope), TESS_OK);
        assert_int_equal(tess_backward_begin(t, scope, p, g, 1), TESS_OK);
        ((float *)g[0])[1] = 0.5f;
        assert_int_equal(tess_backward_end(t, scope), TESS_OK);
        tess_status s = tess_step(t, &step);
        if (n_groups < 3) {
            assert_refused(t, s, "parameter \"a.w\" is in optimizer group 2");
            continue;
        }
        assert_int_equal(s, TESS_OK);
        assert_int_equal(tess_summon_begin(t, scope, p, 1), TESS_OK);
        assert_true(((float *)p[0])[1] == -1.0f); /* lr 1 * lr_scale 2 * 0.5 */
        assert_int_equal(tess_close(t), TESS_OK);
    }
}

static void test_engine__without_an_engine_every_call_is_refused(void **state) {
    (void)state;
    tess_param_options param = { .struct_size = sizeof param, .name = "w" };
    tess_block_options block = { .struct_size = sizeof block, .name = "b" };
    tess_scope scope;
    tess_param first;
    void *at;
    double out;
    const tess_status said[] = {
        tess_scope_add(NULL, "a", 0, &scope),
        tess_param_add(NULL, &param, &first),
        tess_param_tie(NULL, "a", "b"),
        tess_block_add(NULL, &block, &scope),
        tess_shard(NULL, NULL, NULL),
        tess_alloc(NULL, "a", 1, &at),
        tess_pass(NULL, TESS_PASS_TRAIN),
        tess_forward_begin(NULL, 0, &at, 1),
        tess_forward_end(NULL, 0),
        tess_backward_begin(NULL, 0, &at, &at, 1),
        tess_backward_end(NULL, 0),
        tess_run(NULL, NULL),
        tess_step(NULL, NULL),
        tess_grad_norm(NULL, NULL),
        tess_grad_drop(NULL),
        tess_each_owned(NULL, TESS_OF_PARAM, NULL, NULL),
        tess_each_full(NULL, TESS_OF_PARAM, NULL, NULL),
        tess_all_reduce(NULL, &out, 1, TESS_F64, TESS_SUM),
        tess_barrier(NULL),
        tess_summon_begin(NULL, 0, &at, 1),
        tess_summon_end(NULL, 0),
        tess_trace(NULL, 1),
        tess_ledger_reset(NULL),
    };
    for (size_t i = 0; i < sizeof said / sizeof said[0]; i++)
        assert_int_equal(said[i], TESS_E_INVALID);
    assert_int_equal(tess_close(NULL), TESS_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_engine__hooks_blocks_and_fused_step_agree),
        cmocka_unit_test(test_engine__microbatches_in_all_are_kept_with_the_setup),
        cmocka_unit_test(test_engine__strategy_wrap_prefetch_and_recompute_do_not_change_bits),
        cmocka_unit_test(test_engine__planned_bytes_equal_obtained_bytes),
        cmocka_unit_test(test_engine__a_step_in_each_pass_changes_no_bits_and_is_held_to),
        cmocka_unit_test(test_engine__part_of_the_model_recompiles_once_and_leaves_zero_gradients),
        cmocka_unit_test(test_engine__two_forwards_and_nested_scopes_reduce_once),
        cmocka_unit_test(test_engine__departing_under_strict_is_an_error_that_names_both),
        cmocka_unit_test(test_engine__summoned_parameters_are_the_trained_ones),
        cmocka_unit_test(test_engine__what_is_summoned_under_strict_lies_in_its_own_place),
        cmocka_unit_test(test_engine__a_released_pointer_reads_nan_under_strict),
        cmocka_unit_test(test_engine__touches_the_step_arena_up_to_the_planned_byte),
        cmocka_unit_test(test_engine__accumulation_in_the_tree_equals_more_ranks_order),
        cmocka_unit_test(test_engine__a_budget_below_the_plan_is_refused_before_allocation),
        cmocka_unit_test(test_engine__sgd_with_momentum_rests_in_two_shards_and_has_three_after_backward),
        cmocka_unit_test(test_engine__planning_allocates_nothing_and_says_the_same),
        cmocka_unit_test(test_engine__wrong_calls_name_what_was_expected),
        cmocka_unit_test(test_engine__a_long_departing_pass_takes_no_more_than_its_fullest_moment),
        cmocka_unit_test(test_engine__blocks_can_be_summoned_and_not_hooked),
        cmocka_unit_test(test_engine__nothing_moves_while_parameters_are_summoned),
        cmocka_unit_test(test_engine__unbalanced_begins_and_ends_are_refused_by_scope),
        cmocka_unit_test(test_engine__structs_without_a_size_are_refused),
        cmocka_unit_test(test_engine__shorter_and_longer_structs_are_taken),
        cmocka_unit_test(test_engine__a_failing_callback_is_named_by_parameter),
        cmocka_unit_test(test_engine__optimizer_groups_must_be_given_for_all_parameters),
        cmocka_unit_test(test_engine__without_an_engine_every_call_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
