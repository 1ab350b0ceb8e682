/* SPDX-License-Identifier: BSD-3-Clause */
/* A step over layouts drawn by chance, element by element: which of them a plugin gets, from where, with whose numbers,
 * and where its results go; in host memory and on a device. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include "drawn_step.h"

static const float lr_scale[SETTINGS] = { 0, 0.5f, 3 }, decay[SETTINGS] = { 0.1f, 0, 0.01f };

/* ---- segments ---- */

/* Segments hold each parameter's elements once, in order and with its numbers; neighbours of one group are one. */
static void test_pieces__segments_hold_each_element_with_its_numbers(void **state) {
    (void)state;
    for (unsigned seed = 0; seed < 24; seed++) {
        const int32_t n = 1 + (int32_t)seed % RANKS;
        draw_layout(seed, n, 0, 0);
        for (int32_t r = 0; r < n; r++) {
            tess_optimizer all = { 0 }, own = { 0 };
            uint32_t total = 0;
            make_rank(r);
            tess__segments_of(&ranks[r].step, &world.plan.layout, -1, &all);
            for (int32_t g = 0; g < GROUPS; g++) {
                uint64_t at = 0;
                tess__segments_of(&ranks[r].step, &world.plan.layout, g, &own);
                assert_true(own.segments == all.segments + total);
                for (uint32_t i = 0; i < own.n_segments; i++) {
                    const tess_segment *s = &own.segments[i];
                    const uint64_t first = s->first + (uint64_t)r * world.groups[g].shard_elems;
                    const tess__param *begins = owner_of(g, first), *ends = owner_of(g, first + s->elems - 1);
                    const int32_t of = begins ? begins->optimizer_group : -1;
                    assert_true(begins && ends && s->elems > 0 && s->struct_size == sizeof *s);
                    for (; at < s->first; at++) /* between them is padding alone */
                        assert_null(owner_of(g, at + (uint64_t)r * world.groups[g].shard_elems));
                    for (; at < s->first + s->elems; at++) {
                        const tess__param *p = owner_of(g, at + (uint64_t)r * world.groups[g].shard_elems);
                        assert_true(!p || p->optimizer_group == of);
                    }
                    assert_true(s->lr == 0.1f * (lr_scale[of] != 0 ? lr_scale[of] : 1));
                    assert_true(s->weight_decay == decay[of] && s->momentum == 0.7f);
                    assert_true(i == 0 ||
                                ranks[r].step.segment_group[total + i] != ranks[r].step.segment_group[total + i - 1]);
                }
                for (; at < world.groups[g].shard_elems; at++)
                    assert_null(owner_of(g, at + (uint64_t)r * world.groups[g].shard_elems));
                total += own.n_segments;
            }
            assert_int_equal(all.n_segments, total);
        }
        forget(n);
    }
}

static void test_pieces__numbers_that_are_not_given_are_pytorchs(void **state) {
    (void)state;
    const tess_optimizer_options none = { .struct_size = sizeof none, .lr = 0.25f };
    const float rates[SETTINGS] = { 0, 5, 6 };
    tess_optimizer_options rated = { .struct_size = sizeof rated, .step = 3, .beta1 = 0.5f, .group_lr = rates };
    draw_layout(3, 1, 0, 0);
    make_rank(0);
    tess__step *s = &ranks[0].step;
    for (int adadelta = 0; adadelta < 2; adadelta++) {
        s->skips = s->has_norm = 1;
        s->norm_limbs = &s->noted;
        world.plan.layout.kernel = adadelta ? TESS_OPT_ADADELTA : TESS_OPT_ADAMW;
        tess__step_numbers(s, &world.plan.layout, &none, NULL);
        const tess_optimizer *k = &s->kernel;
        assert_true(k->struct_size == sizeof *k && k->optimizer == world.plan.layout.kernel && k->step == 7);
        assert_true(k->beta1 == 0.9f && k->beta2 == 0.999f && k->rho == 0.9f && k->grad_scale == 1);
        assert_true(k->eps == (adadelta ? 1e-6f : 1e-8f) && !k->not_finite && s->grad_scale == 1);
        assert_true(!s->skips && !s->has_norm && !s->norm_limbs);
        assert_true(s->segments[0].lr == 0.25f && s->segments[0].weight_decay == 0);
        assert_true(tess__numbers_said(s).beta1 == 0 && tess__numbers_said(s).step == 7);
    }
    tess__step_numbers(s, &world.plan.layout, &rated, &s->noted);
    assert_true(s->kernel.step == 3 && s->kernel.beta1 == 0.5f && s->kernel.not_finite == &s->noted);
    for (int32_t i = 0; i < s->first_segment[GROUPS]; i++) /* a rate of 0 is one */
        assert_true(s->segments[i].lr == rates[s->segment_group[i]]);
    forget(1);
}

/* ---- by elements ---- */

static void check_stepped(int32_t g, int32_t r, int device) {
    const tess__group *of = &world.groups[g];
    const rank *x = &ranks[r];
    for (uint64_t i = 0; i < ROOM; i++) {
        const uint64_t at = i + (uint64_t)r * of->shard_elems;
        const tess__param *p = i < of->shard_elems ? owner_of(g, at) : NULL;
        const float was = i < of->shard_elems ? master_at(at) : BEFORE;
        assert_true(x->master[g][i] == (p ? was + scaled(at) + 1 : was));
        assert_true(x->state[g][0][i] == (p ? scaled(at) : i < of->shard_elems ? state_at(at) : BEFORE));
        assert_int_equal(x->low[g][i], p && of->low_copy && !device ? bf16_of(x->master[g][i]) : 0);
        if (p)
            assert_int_equal(world.seen[p - world.params][at - p->offset], 1);
        if (i % PAD == 0)
            assert_int_equal(x->rows[g][i / PAD], p != NULL);
    }
}

static void test_pieces__each_element_steps_once_and_keeps_its_place(void **state) {
    (void)state;
    tess__pool *pool = NULL;
    tess_error e = { .struct_size = sizeof e };
    assert_int_equal(tess__pool_create(3, "", &pool, &e), TESS_OK);
    for (unsigned seed = 0; seed < 16; seed++) {
        const int32_t n = 1 + (int32_t)seed % RANKS;
        draw_layout(seed, n, 0, 0);
        for (int32_t r = 0; r < n; r++) {
            make_rank(r);
            for (int32_t g = 0; g < GROUPS; g++)
                assert_int_equal(tess__step_pieces(&ranks[r].step, &ranks[r].memory, &plugin, g, TESS_PHASE_WHOLE,
                                                   seed % 3 ? pool : NULL),
                                 TESS_OK);
            for (int32_t g = 0; g < GROUPS; g++)
                check_stepped(g, r, 0);
            assert_int_equal(ranks[r].step.noted, 0);
        }
        assert_null(tess__crash_now);
        forget(n);
    }
    tess__pool_destroy(pool);
}

static tess_status step_all(rank *x) {
    for (int32_t g = 0; g < GROUPS; g++)
        TRY(tess__step_pieces(&x->step, &x->memory, &plugin, g, TESS_PHASE_WHOLE, NULL));
    return TESS_OK;
}

/* The first failure is told, and nothing is stepped behind it. */
static void test_pieces__a_step_that_fails_is_the_last(void **state) {
    (void)state;
    draw_layout(5, 1, 0, 0);
    make_rank(0);
    assert_int_equal(step_all(&ranks[0]), TESS_OK);
    const int calls = world.calls;
    for (int k = 1; k <= calls; k++) {
        world.calls = 0;
        world.fails_at = k;
        assert_int_equal(step_all(&ranks[0]), TESS_E_INVALID);
        assert_int_equal(world.calls, k);
        assert_int_equal(ranks[0].step.noted, 0);
        tess__segments_free(&ranks[0].step);
        make_rank(0);
        assert_non_null(strstr(tess_last_error(), "optimizer fake: p"));
        assert_non_null(strstr(tess_last_error(), " is bad"));
    }
    forget(1);
}

/* A NaN in a parameter or an infinity in a state: the number of the first such step stays. */
static void test_pieces__the_first_step_that_is_not_finite_is_noted(void **state) {
    (void)state;
    for (int in_state = 0; in_state < 2; in_state++) {
        draw_layout(6, 1, 0, 0);
        make_rank(0);
        world.nan_at = in_state ? -2 : 2;
        assert_int_equal(step_all(&ranks[0]), TESS_OK);
        assert_int_equal(ranks[0].step.noted, 7);
        ranks[0].step.noted = 3;
        assert_int_equal(step_all(&ranks[0]), TESS_OK);
        assert_int_equal(ranks[0].step.noted, 3);
        ranks[0].step.kernel.not_finite = NULL; /* nobody asks */
        assert_int_equal(step_all(&ranks[0]), TESS_OK);
        forget(1);
    }
}

static void test_pieces__a_device_gets_each_parameters_part(void **state) {
    (void)state;
    const tess_stream stream = { .mem = TESS_MEM_CUDA };
    const tess_stream host = { .mem = TESS_MEM_HOST };
    void *opened = NULL;
    memset(&world, 0, sizeof world);
    assert_int_equal(tess__device_steps_open(&plugin, &host, &opened), TESS_E_UNSUPPORTED);
    assert_string_equal(tess_last_error(), "optimizer fake: not in such memory");
    for (unsigned seed = 0; seed < 12; seed++) {
        const int32_t n = 1 + (int32_t)seed % RANKS;
        draw_layout(seed, n, 0, 0);
        world.narrow = 0;
        assert_int_equal(tess__device_steps_open(&plugin, &stream, &opened), TESS_OK);
        for (int32_t r = 0; r < n; r++) {
            make_rank(r);
            rank *x = &ranks[r];
            x->step.kernel.clip = (const float *)&world;
            x->step.kernel.not_finite = (int64_t *)&world.plan;
            for (int32_t g = 0; g < GROUPS; g++)
                assert_int_equal(tess__step_on_device(&x->step, &x->memory, &plugin, opened, g, &stream), TESS_OK);
            for (int32_t g = 0; g < GROUPS; g++)
                check_stepped(g, r, 1);
        }
        world.fails_at = (int)world.device_pieces + 1;
        assert_int_equal(tess__step_on_device(&ranks[0].step, &ranks[0].memory, &plugin, opened, 0, &stream),
                         TESS_E_DEVICE);
        assert_string_equal(tess_last_error(), "optimizer fake: p0 is lost");
        assert_null(tess__crash_now);
        forget(n);
    }
    device_closed = 0;
    tess__device_steps_close(&plugin, NULL);
    assert_int_equal(device_closed, 0);
    tess__device_steps_close(&plugin, opened);
    assert_int_equal(device_closed, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces__segments_hold_each_element_with_its_numbers),
        cmocka_unit_test(test_pieces__numbers_that_are_not_given_are_pytorchs),
        cmocka_unit_test(test_pieces__each_element_steps_once_and_keeps_its_place),
        cmocka_unit_test(test_pieces__a_step_that_fails_is_the_last),
        cmocka_unit_test(test_pieces__the_first_step_that_is_not_finite_is_noted),
        cmocka_unit_test(test_pieces__a_device_gets_each_parameters_part),
    };
    ranks = calloc(RANKS, sizeof *ranks);
    const int failed = cmocka_run_group_tests_name("pieces", tests, NULL, NULL);
    free(ranks);
    return failed;
}
