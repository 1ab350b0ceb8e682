/* SPDX-License-Identifier: BSD-3-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tools/train/data/random.h"
#include "tools/train/data/sampler.h"

/* Known answers of the Random123 distribution (kat_vectors, philox4x32 10). */
static void test_philox__known_counters_give_published_bits(void **state) {
    (void)state;
    uint32_t want_zero[4] = { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 };
    uint32_t want_ones[4] = { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd };
    philox_block out = philox(0, 0, 0, 0, 0);
    assert_memory_equal(out.v, want_zero, sizeof out.v);
    out = philox(UINT64_MAX, ~0u, ~0u, ~0u, ~0u);
    assert_memory_equal(out.v, want_ones, sizeof out.v);
}

static void assert_each_once(const tool_sampler *s, uint64_t epoch) {
    unsigned char *seen = calloc(s->samples, 1);
    assert_non_null(seen);
    for (uint64_t i = 0; i < s->samples; i++) {
        uint64_t at = tool_sampler_at(s, epoch, i);
        assert_true(at < s->samples);
        assert_int_equal(seen[at]++, 0);
    }
    free(seen);
}

static void test_sampler__every_size_is_a_permutation(void **state) {
    (void)state;
    for (uint64_t n = 1; n <= 70; n++)
        assert_each_once(&(tool_sampler){ .samples = n, .seed = 7, .batch = 1, .ranks = 1, .accum = 1 }, n % 3);
    assert_each_once(&(tool_sampler){ .samples = 7000, .seed = 1, .batch = 64, .ranks = 1, .accum = 1 }, 0);
}

static void test_sampler__another_epoch_or_seed_orders_otherwise(void **state) {
    (void)state;
    tool_sampler a = { .samples = 1000, .seed = 1, .batch = 1, .ranks = 1, .accum = 1 }, b = a;
    b.seed = 2;
    int same_epoch = 0, same_seed = 0, same_place = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        same_epoch += tool_sampler_at(&a, 0, i) == tool_sampler_at(&a, 1, i);
        same_seed += tool_sampler_at(&a, 0, i) == tool_sampler_at(&b, 0, i);
        same_place += tool_sampler_at(&a, 0, i) == i;
    }
    /* A random pair of orders agrees in one place on average; more than 8 has probability below 2e-6. */
    assert_in_range(same_epoch, 0, 8);
    assert_in_range(same_seed, 0, 8);
    assert_in_range(same_place, 0, 8);
}

static void collect(const tool_sampler *s, uint64_t *out) {
    for (uint64_t step = 0; step < tool_sampler_steps(s); step++)
        for (int32_t rank = 0; rank < s->ranks; rank++)
            for (int32_t k = 0; k < s->accum; k++) {
                uint64_t g = step * (uint64_t)(s->ranks * s->accum) + tool_sampler_slot(s, rank, k);
                tool_sampler_batch(s, 3, step, rank, k, out + g * (uint64_t)s->batch);
            }
}

static void test_sampler__ranks_and_accumulation_regroup_the_same_microbatches(void **state) {
    (void)state;
    static const int shapes[][3] = { { 1, 4, 0 }, { 2, 2, 0 }, { 4, 1, 0 }, { 2, 2, 1 }, { 1, 4, 1 }, { 4, 1, 1 } };
    uint64_t want[112], got[112];
    tool_sampler s = { .samples = 100, .seed = 5, .batch = 7, .ranks = 4, .accum = 1 };
    assert_int_equal(tool_sampler_steps(&s), 4);
    collect(&s, want);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        s.ranks = shapes[i][0];
        s.accum = shapes[i][1];
        s.sync_each = shapes[i][2];
        memset(got, 0xff, sizeof got);
        collect(&s, got);
        assert_memory_equal(got, want, sizeof got);
    }
}

static void test_sampler__communicating_each_time_interleaves_ranks(void **state) {
    (void)state;
    tool_sampler s = { .samples = 100, .batch = 1, .ranks = 3, .accum = 2 };
    assert_int_equal(tool_sampler_slot(&s, 2, 1), 5);
    assert_int_equal(tool_sampler_slot(&s, 1, 0), 2);
    s.sync_each = 1;
    assert_int_equal(tool_sampler_slot(&s, 2, 1), 5);
    assert_int_equal(tool_sampler_slot(&s, 1, 0), 1);
}

static void test_sampler__last_step_starts_over_at_the_epochs_beginning(void **state) {
    (void)state;
    tool_sampler s = { .samples = 10, .seed = 9, .batch = 4, .ranks = 2, .accum = 1 };
    assert_int_equal(tool_sampler_steps(&s), 2);
    uint64_t batch[4];
    tool_sampler_batch(&s, 0, 1, 1, 0, batch);
    for (uint64_t i = 0; i < 4; i++)
        assert_int_equal(batch[i], tool_sampler_at(&s, 0, 2 + i));
    s.samples = 16;
    assert_int_equal(tool_sampler_steps(&s), 2);
    s.samples = 17;
    assert_int_equal(tool_sampler_steps(&s), 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox__known_counters_give_published_bits),
        cmocka_unit_test(test_sampler__every_size_is_a_permutation),
        cmocka_unit_test(test_sampler__another_epoch_or_seed_orders_otherwise),
        cmocka_unit_test(test_sampler__ranks_and_accumulation_regroup_the_same_microbatches),
        cmocka_unit_test(test_sampler__communicating_each_time_interleaves_ranks),
        cmocka_unit_test(test_sampler__last_step_starts_over_at_the_epochs_beginning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
