/* SPDX-License-Identifier: BSD-3-Clause */
/* What evaluations say of a run's end, also of one that a recovery took back, and one that goes on. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>

#include "tools/train/train.h"

static void evaluates(train_run *r, uint64_t step, double loss) {
    r->steps_done = step;
    r->eval_loss = loss;
    train_best_note(r);
}

static void test_best__taken_back_run_ends_where_it_ended(void **state) {
    (void)state;
    static train_run r = { .s.patience = 2 };
    evaluates(&r, 6, 3.0);
    evaluates(&r, 12, 3.5);
    assert_false(train_best_stops(&r));
    evaluates(&r, 18, NAN); /* no better than anything */
    assert_true(train_best_stops(&r));
    r.steps_done = 16; /* the image that a lost rank leaves */
    assert_false(train_best_stops(&r));
    evaluates(&r, 18, NAN);
    assert_true(train_best_stops(&r));
    assert_int_equal(r.best.without, 2);
    assert_int_equal(r.best.step, 6);
}

static void test_best__words_hold_for_the_same_data_alone(void **state) {
    (void)state;
    static train_run r = { .identity = "model=gpt data=0123456789abcdef", .held_out = 7 }, other, held;
    char words[TRAIN_BEST_BYTES], saved[600];
    evaluates(&r, 6, 0.1);
    evaluates(&r, 12, 0.2);
    train_best_words(&r, words);
    snprintf(saved, sizeof saved, "%s%s config={\"best=\":1}", r.identity, words);
    other = held = r;
    r.best = other.best = held.best = (train_best){ .n = 0 };
    other.identity[20] ^= 1;
    held.held_out++;
    train_best_take(&other, saved);
    train_best_take(&held, saved);
    train_best_take(&r, saved);
    assert_int_equal(other.best.n, 0);
    assert_int_equal(held.best.n, 0);
    assert_int_equal(r.best.n, 2);
    assert_int_equal(r.best.step, 6);
    assert_int_equal(r.best.last, 12);
    assert_int_equal(r.best.without, 1);
    assert_true(r.best.loss == 0.1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_best__taken_back_run_ends_where_it_ended),
        cmocka_unit_test(test_best__words_hold_for_the_same_data_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
