/* SPDX-License-Identifier: BSD-3-Clause */
/* Offsets of buffers, against random programs. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "core/plan/place.h"
#include "tests/unit/drawn.h"

enum { ALIGN = 64, MOST = 400 };

static void book(tess__program *p, uint64_t bytes, uint8_t domain, uint8_t arena, uint8_t category) {
    tess__buffer b = { .domain = domain, .arena = arena, .category = category, .unit = -1, .bytes = bytes };
    int32_t at;
    b.first = p->n_instrs;
    b.last = INT32_MAX;
    assert_int_equal(tess__program_buffer(p, &b, &at), TESS_OK);
    assert_int_equal(tess__program_instr(p, TESS__ALLOC, 0, 0, at, 0), TESS_OK);
}

static void give(tess__program *p, int32_t buffer) {
    p->buffers[buffer].last = p->n_instrs;
    assert_int_equal(tess__program_instr(p, TESS__FREE, 0, 0, buffer, 0), TESS_OK);
}

/* Books and frees at random; what is left lives to the end. */
static void make_program(tess__program *p, uint64_t seed, int32_t n) {
    int32_t live[MOST], n_live = 0;
    *p = (tess__program){ .kind = TESS_PASS_TRAIN };
    for (int32_t i = 0; i < n; i++) {
        while (n_live && drawn64(&seed, 3) == 0) {
            int32_t k = (int32_t)(drawn64(&seed, (uint64_t)n_live));
            give(p, live[k]);
            live[k] = live[--n_live];
        }
        for (uint64_t plain = drawn64(&seed, 40); plain > 30; plain--)
            tess__program_instr(p, TESS__ENTER, 0, 0, -1, 0);
        live[n_live++] = p->n_buffers;
        book(p, ALIGN * (1 + drawn64(&seed, 50)), drawn64(&seed, 4) ? 1 : 2, TESS__STEP, TESS_CAT_TEMPORARY);
    }
    for (int32_t i = 0; i < p->n_buffers; i++)
        if (p->buffers[i].last == INT32_MAX)
            p->buffers[i].last = p->n_instrs;
}

static int live_at_once(const tess__buffer *a, const tess__buffer *b) {
    return a->domain == b->domain && a->first <= b->last && b->first <= a->last;
}

static tess__program none;

static void test_place__live_buffers_never_overlap(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        tess__program p;
        make_program(&p, seed, MOST);
        assert_int_equal(tess__assign_offsets(&p, &none, &none, ALIGN, ALIGN), TESS_OK);
        uint64_t end[3] = { 0 };
        for (int32_t i = 0; i < p.n_buffers; i++) {
            const tess__buffer *a = &p.buffers[i];
            assert_int_equal(a->offset % ALIGN, 0);
            if (a->offset + a->bytes > end[a->domain])
                end[a->domain] = a->offset + a->bytes;
            for (int32_t k = 0; k < i; k++) {
                const tess__buffer *b = &p.buffers[k];
                assert_false(live_at_once(a, b) && a->offset < b->offset + b->bytes &&
                             b->offset < a->offset + a->bytes);
            }
        }
        for (int d = 1; d < 3; d++) {
            assert_int_equal(p.step_bytes[d], end[d]);
            assert_true(p.step_bytes[d] >= p.live_peak_bytes[d]);
            assert_true(p.step_bytes[d] <= p.live_peak_bytes[d] * 5 / 4 + 64 * ALIGN); /* no waste to speak of */
        }
        tess__program_free(&p);
    }
}

/* The peak is the most that lives at once, counted anew here. */
static void test_place__peaks_and_categories_are_those_of_the_fullest_point(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 10; seed++) {
        tess__program p;
        tess__buffer resident[2] = { { .domain = 1, .category = TESS_CAT_SHARD_PARAM, .bytes = 640 },
                                     { .domain = 2, .category = TESS_CAT_OPTIMIZER, .bytes = 128 } };
        const tess__program resting = { .buffers = resident, .n_buffers = 2 };
        make_program(&p, seed, 100);
        assert_int_equal(tess__assign_offsets(&p, &resting, &none, ALIGN, ALIGN), TESS_OK);
        uint64_t now[3] = { 0, 640, 128 }, peak[3] = { 0, 640, 128 };
        for (int32_t i = 0; i < p.n_instrs; i++) {
            if (p.instrs[i].op != TESS__ALLOC && p.instrs[i].op != TESS__FREE)
                continue;
            const tess__buffer *b = &p.buffers[p.instrs[i].buffer];
            now[b->domain] += p.instrs[i].op == TESS__ALLOC ? b->bytes : 0 - b->bytes;
            peak[b->domain] = now[b->domain] > peak[b->domain] ? now[b->domain] : peak[b->domain];
        }
        for (int d = 1; d < 3; d++) {
            uint64_t sum = 0;
            for (int c = 0; c < 16; c++)
                sum += p.category_bytes[d][c];
            assert_int_equal(p.live_peak_bytes[d], peak[d]);
            assert_int_equal(sum, peak[d]);
        }
        assert_int_equal(p.category_bytes[1][TESS_CAT_SHARD_PARAM], 640);
        assert_int_equal(p.category_bytes[2][TESS_CAT_OPTIMIZER], 128);
        tess__program_free(&p);
    }
}

static void test_place__is_the_same_every_time(void **state) {
    (void)state;
    tess__program a, b;
    make_program(&a, 7, MOST);
    make_program(&b, 7, MOST);
    assert_int_equal(tess__assign_offsets(&a, &none, &none, ALIGN, ALIGN), TESS_OK);
    assert_int_equal(tess__assign_offsets(&b, &none, &none, ALIGN, ALIGN), TESS_OK);
    for (int32_t i = 0; i < a.n_buffers; i++)
        assert_int_equal(a.buffers[i].offset, b.buffers[i].offset);
    assert_int_equal(tess__assign_offsets(&b, &none, &none, ALIGN, ALIGN),
                     TESS_OK); /* placed again: nothing of before counts */
    assert_int_equal(tess__program_hash(&a), tess__program_hash(&b));
    tess__program_free(&a);
    tess__program_free(&b);
}

/* What is lent from the step arena is left alone throughout. */
static void test_place__lent_gradients_are_placed_around(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 10; seed++) {
        tess__program p;
        tess__buffer gradients[2] = {
            { .role = TESS__SHARD_GRAD, .domain = 1, .arena = TESS__STEP, .bytes = 640, .offset = 0 },
            { .role = TESS__SHARD_GRAD, .domain = 1, .arena = TESS__STEP, .bytes = 1280, .offset = 4096 }
        };
        tess__program lent = { .buffers = gradients, .n_buffers = 2 };
        make_program(&p, seed, 100);
        assert_int_equal(tess__assign_offsets(&p, &none, &lent, ALIGN, ALIGN), TESS_OK);
        for (int32_t i = 0; i < p.n_buffers; i++)
            for (int k = 0; k < 2; k++)
                assert_true(p.buffers[i].domain != 1 || p.buffers[i].arena != TESS__STEP ||
                            p.buffers[i].offset >= gradients[k].offset + gradients[k].bytes ||
                            p.buffers[i].offset + p.buffers[i].bytes <= gradients[k].offset);
        tess__program_free(&p);
    }
}

/* One after the other: all at 0. All at once: their sum. A resident buffer takes no room in the step arena. */
static void test_place__shares_memory_exactly_where_lives_do_not_meet(void **state) {
    (void)state;
    tess__program p = { .kind = TESS_PASS_EVAL };
    for (int i = 0; i < 5; i++) {
        book(&p, 640, 1, TESS__STEP, TESS_CAT_TEMPORARY);
        give(&p, i);
    }
    assert_int_equal(tess__assign_offsets(&p, &none, &none, ALIGN, ALIGN), TESS_OK);
    assert_int_equal(p.step_bytes[1], 640);
    tess__program_clear(&p);
    for (int i = 0; i < 5; i++)
        book(&p, 640, 1, i == 4 ? TESS__RESIDENT : TESS__STEP, TESS_CAT_TEMPORARY);
    for (int i = 0; i < 5; i++)
        give(&p, i);
    assert_int_equal(tess__assign_offsets(&p, &none, &none, ALIGN, ALIGN), TESS_OK);
    assert_int_equal(p.step_bytes[1], 4 * 640);
    assert_int_equal(p.live_peak_bytes[1], 5 * 640);
    tess__program_free(&p);
}

/* Largest first puts the two that stay above the two that do not: 11 where 10 is alive. The second order finds 10, and
 * leaves the other domain, of which it would take no less, as it is. */
static void test_place__the_second_order_is_taken_where_it_is_smaller(void **state) {
    (void)state;
    tess__program p = { .kind = TESS_PASS_TRAIN };
    book(&p, 5 * ALIGN, 1, TESS__STEP, TESS_CAT_TEMPORARY);
    book(&p, 3 * ALIGN, 1, TESS__STEP, TESS_CAT_TEMPORARY);
    book(&p, 2 * ALIGN, 2, TESS__STEP, TESS_CAT_TEMPORARY);
    give(&p, 0);
    book(&p, 4 * ALIGN, 1, TESS__STEP, TESS_CAT_TEMPORARY);
    book(&p, 3 * ALIGN, 1, TESS__STEP, TESS_CAT_TEMPORARY);
    give(&p, 3);
    give(&p, 1);
    give(&p, 4);
    give(&p, 2);
    assert_int_equal(tess__assign_offsets(&p, &none, &none, ALIGN, ALIGN), TESS_OK);
    assert_int_equal(p.live_peak_bytes[1], 10 * ALIGN);
    assert_int_equal(p.step_bytes[1], 10 * ALIGN);
    assert_int_equal(p.step_bytes[2], 2 * ALIGN);
    static const uint64_t offsets[] = { 3 * ALIGN, 0, 0, 3 * ALIGN, 7 * ALIGN };
    for (int i = 0; i < 5; i++)
        assert_int_equal(p.buffers[i].offset, offsets[i]);
    tess__program_free(&p);
}

/* Books above 0, in units of ALIGN; -n gives buffer n - 1. */
static void place_events(const int *events, uint64_t alive, uint64_t bytes) {
    tess__program p = { .kind = TESS_PASS_TRAIN };
    for (; *events; events++)
        if (*events > 0)
            book(&p, (uint64_t)*events * ALIGN, 1, TESS__STEP, TESS_CAT_TEMPORARY);
        else
            give(&p, -*events - 1);
    assert_int_equal(tess__assign_offsets(&p, &none, &none, ALIGN, ALIGN), TESS_OK);
    assert_int_equal(p.live_peak_bytes[1], alive * ALIGN);
    assert_int_equal(p.step_bytes[1], bytes * ALIGN);
    tess__program_free(&p);
}

/* In each one order alone of those that begin with the fullest point's buffers takes no more than is alive, and its
 * opposite takes more. */
static void test_place__the_fullest_points_buffers_come_first_where_that_is_smaller(void **state) {
    (void)state;
    place_events((const int[]){ 6, 1, -2, 5, 1, -3, 2, -4, 5, -5, -1, -6, 0 }, 13, 13); /* the earlier first */
    place_events((const int[]){ 5, 2, 4, 2, -1, 3, -4, 3, -6, -2, -3, -5, 0 }, 13, 13); /* the longer first */
    place_events((const int[]){ 6, 3, 3, -1, 3, -3, 4, -5, -2, -4, 0 }, 12, 12); /* the one that stays longer first */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_place__live_buffers_never_overlap),
        cmocka_unit_test(test_place__peaks_and_categories_are_those_of_the_fullest_point),
        cmocka_unit_test(test_place__lent_gradients_are_placed_around),
        cmocka_unit_test(test_place__is_the_same_every_time),
        cmocka_unit_test(test_place__shares_memory_exactly_where_lives_do_not_meet),
        cmocka_unit_test(test_place__the_second_order_is_taken_where_it_is_smaller),
        cmocka_unit_test(test_place__the_fullest_points_buffers_come_first_where_that_is_smaller),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
