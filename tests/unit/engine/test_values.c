/* SPDX-License-Identifier: BSD-3-Clause */
/* Values in and out at one rank: what is owned, all of it, small reductions, and a program's own memory. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/engine/state.h"
#include "tests/support/toy.h"

static tess *open_toy(toy *m, const char *optimizer) {
    tess *t = NULL;
    tess_options o = { .struct_size = sizeof o, .optimizer = optimizer, .input_bytes = TOY_INPUT_BYTES };
    assert_int_equal(tess_open(&o, &t), TESS_OK);
    assert_int_equal(toy_declare(t, m, 0), TESS_OK);
    assert_int_equal(tess_shard(t, toy_fill, NULL), TESS_OK);
    return t;
}

static void train_pass(tess *t, toy *m) {
    double loss;
    assert_int_equal(toy_pass(t, m, TESS_PASS_TRAIN, 0, &loss), TESS_OK);
}

static void step(tess *t) {
    const tess_optimizer_options o = { .struct_size = sizeof o, .lr = 0.01f };
    assert_int_equal(tess_step(t, &o), TESS_OK);
}

/* What a walk has shown, in order. */
typedef struct {
    int n;
    int32_t param[32];
    uint64_t first[32], elems[32];
    float sum, last_value;
    int write;
} seen;

static tess_status look(void *user, const tess_range *r, void *data) {
    seen *s = user;
    float *values = data;
    s->param[s->n] = r->param;
    s->first[s->n] = r->first_elem;
    s->elems[s->n++] = r->elems;
    assert_int_equal(r->struct_size, sizeof *r);
    assert_true(r->first_elem + r->elems <= r->slice_elems);
    for (uint64_t i = 0; i < r->elems; i++) {
        s->sum += values[i];
        if (s->write)
            values[i] = (float)r->param;
    }
    s->last_value = values[r->elems - 1];
    return TESS_OK;
}

/* Declared: embed 91, a 185 and 3, b 256 and 27 frozen, c 1 and a buffer of 5, head 70, and an alias of embed. */
static const uint64_t elems[8] = { 91, 185, 3, 256, 27, 1, 5, 70 };

static void test_ranges__each_parameter_is_shown_once_in_order_of_declaration(void **state) {
    (void)state;
    toy m;
    tess *t = open_toy(&m, "adamw");
    seen s = { .n = 0 }, full = { .n = 0 };
    assert_int_equal(tess_each_owned(t, TESS_OF_PARAM, look, &s), TESS_OK);
    assert_int_equal(tess_each_full(t, TESS_OF_PARAM, look, &full), TESS_OK);
    assert_int_equal(s.n, 8); /* the alias is not shown again */
    assert_int_equal(full.n, 8);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(s.param[i], i);
        assert_int_equal(s.first[i], 0);
        assert_int_equal(s.elems[i], elems[i]);
        assert_int_equal(full.elems[i], elems[i]);
    }
    assert_true(full.sum == s.sum && s.sum != 0);
    tess_close(t);
}

static void test_ranges__what_is_written_is_read_back(void **state) {
    (void)state;
    toy m;
    tess *t = open_toy(&m, "adamw");
    seen s = { .write = 1 };
    assert_int_equal(tess_each_owned(t, TESS_OF_PARAM | TESS_OF_WRITE, look, &s), TESS_OK);
    s = (seen){ .n = 0 };
    assert_int_equal(tess_each_full(t, TESS_OF_PARAM, look, &s), TESS_OK);
    float expected = 0;
    for (int i = 0; i < 8; i++)
        expected += (float)i * (float)elems[i];
    assert_true(s.sum == expected);
    tess_close(t);
}

static void test_ranges__gradients_and_states_are_of_what_is_trained(void **state) {
    (void)state;
    toy m;
    tess *t = open_toy(&m, "adamw");
    train_pass(t, &m);
    seen s = { .n = 0 };
    assert_int_equal(tess_each_owned(t, TESS_OF_GRAD, look, &s), TESS_OK);
    assert_int_equal(s.n, 6); /* neither the frozen one nor the buffer */
    assert_true(s.sum != 0);
    s = (seen){ .n = 0 };
    assert_int_equal(tess_each_full(t, TESS_OF_GRAD, look, &s), TESS_OK);
    assert_int_equal(s.n, 6);
    step(t);
    s = (seen){ .n = 0 };
    assert_int_equal(tess_each_owned(t, TESS_OF_MOMENT2, look, &s), TESS_OK);
    assert_int_equal(s.n, 6);
    assert_true(s.sum > 0);
    tess_close(t);
}

static void assert_refused(tess *t, tess_status s, const char *says) {
    assert_int_equal(s, TESS_E_INVALID);
    if (!strstr(tess_last_error(), says))
        fail_msg("\"%s\" lacks \"%s\"", tess_last_error(), says);
    assert_int_equal(tess_close(t), TESS_E_INVALID);
}

static void test_ranges__what_is_not_there_is_refused(void **state) {
    (void)state;
    toy m;
    seen s = { .n = 0 };
    tess *t = open_toy(&m, "adamw");
    assert_refused(t, tess_each_owned(t, TESS_OF_GRAD, look, &s), "no gradients");
    t = open_toy(&m, "sgd");
    assert_refused(t, tess_each_owned(t, TESS_OF_MOMENT1, look, &s), "keeps 0 states");
    t = open_toy(&m, "adamw");
    assert_refused(t, tess_each_owned(t, 9, look, &s), "9 is nothing");
    t = open_toy(&m, "adamw");
    assert_refused(t, tess_each_full(t, TESS_OF_PARAM | TESS_OF_WRITE, look, &s), "tess_each_full only reads");
    t = open_toy(&m, "adamw");
    assert_refused(t, tess_each_owned(t, TESS_OF_PARAM, NULL, &s), "tess_each_owned");
    assert_int_equal(tess_open(NULL, &t), TESS_OK);
    assert_refused(t, tess_each_owned(t, TESS_OF_PARAM, look, &s), "before tess_shard");
}

/* f64 goes through as it is; bf16 and f16 are shown as fp32 and rounded once when taken back. */
static tess_status set_thirds(void *user, const tess_range *r, void *data) {
    (void)user;
    for (uint64_t i = 0; i < r->elems; i++)
        if (strcmp(r->name, "a.f64") == 0)
            ((double *)data)[i] = 1.0 / 3.0;
        else
            ((float *)data)[i] = 1.0f / 3.0f;
    return TESS_OK;
}

static tess_status check_thirds(void *user, const tess_range *r, void *data) {
    uint64_t *total = user;
    for (uint64_t i = 0; i < r->elems; i++) {
        double value = strcmp(r->name, "a.f64") == 0 ? ((double *)data)[i] : (double)((float *)data)[i];
        double expected = strcmp(r->name, "a.f64") == 0    ? 1.0 / 3.0
                          : strcmp(r->name, "a.bf16") == 0 ? 0.333984375
                                                           : 0.333251953125;
        assert_true(value == expected);
    }
    *total += r->elems;
    return TESS_OK;
}

static void test_ranges__states_that_are_no_floats_are_refused_and_nothing_is_shown(void **state) {
    (void)state;
    toy m;
    seen s = { .write = 1 };
    tess *t = open_toy(&m, "adamw8bit:least=0");
    const tess_status owned = tess_each_owned(t, TESS_OF_MOMENT1 | TESS_OF_WRITE, look, &s);
    assert_int_equal(owned, TESS_E_UNSUPPORTED);
    assert_string_equal(tess_last_error(), "tess_each_owned: optimizer adamw8bit:least=0 keeps its state exp_avg in "
                                           "u8, not as a number for each element");
    assert_int_equal(s.n, 0);
    tess_close(t);
}

static void test_ranges__small_floats_are_shown_in_fp32(void **state) {
    (void)state;
    static const struct {
        const char *name;
        uint32_t dtype;
        int64_t elems;
    } params[] = { { "a.f64", TESS_F64, 5 }, { "a.bf16", TESS_BF16, 200000 }, { "a.f16", TESS_F16, 70000 } };
    tess *t = NULL;
    uint64_t total = 0;
    assert_int_equal(tess_open(NULL, &t), TESS_OK);
    assert_int_equal(tess_scope_add(t, "a", 0, NULL), TESS_OK);
    for (int i = 0; i < 3; i++) {
        tess_param_options o = { .struct_size = sizeof o,
                                 .dtype = params[i].dtype,
                                 .flags = TESS_FROZEN,
                                 .name = params[i].name,
                                 .shape = &params[i].elems,
                                 .ndim = 1 };
        assert_int_equal(tess_param_add(t, &o, NULL), TESS_OK);
    }
    assert_int_equal(tess_shard(t, set_thirds, NULL), TESS_OK);
    assert_int_equal(tess_each_owned(t, TESS_OF_PARAM, check_thirds, &total), TESS_OK);
    assert_int_equal(total, 270005);
    assert_int_equal(tess_each_full(t, TESS_OF_PARAM, check_thirds, &total), TESS_OK);
    assert_int_equal(total, 540010);
    assert_int_equal(tess_close(t), TESS_OK);
}

static tess_status set_bytes(void *user, const tess_range *r, void *data) {
    (void)user;
    for (uint64_t i = 0; i < r->elems; i++)
        ((unsigned char *)data)[i] = (unsigned char)((r->first_elem + i) * 37);
    return TESS_OK;
}

static tess_status check_bytes(void *total, const tess_range *r, void *data) {
    for (uint64_t i = 0; i < r->elems; i++)
        assert_int_equal(((unsigned char *)data)[i], (unsigned char)((r->first_elem + i) * 37));
    *(uint64_t *)total += r->elems;
    return TESS_OK;
}

static tess *open_opaque(uint32_t flags, tess_scope *scope, tess_status *added) {
    static const int64_t elems = 70001;
    tess *t = NULL;
    tess_param_options o = {
        .struct_size = sizeof o, .dtype = TESS_U8, .flags = flags, .name = "a.codes", .shape = &elems, .ndim = 1
    };
    assert_int_equal(tess_open(NULL, &t), TESS_OK);
    assert_int_equal(tess_scope_add(t, "a", 0, scope), TESS_OK);
    *added = tess_param_add(t, &o, NULL);
    return t;
}

static void test_ranges__opaque_bytes_are_shown_as_they_are_and_take_a_byte_each(void **state) {
    (void)state;
    tess_scope scope;
    tess_status added;
    uint64_t total = 0;
    const unsigned char *codes = NULL;
    tess *t = open_opaque(TESS_FROZEN, &scope, &added);
    assert_int_equal(added, TESS_OK);
    assert_int_equal(tess_shard(t, set_bytes, NULL), TESS_OK);
    assert_int_equal(t->plan.layout.groups[0].shard_elems, 70016);
    assert_int_equal(t->plan.resident.step_bytes[TESS_DOMAIN_DEVICE], 70016);
    assert_int_equal(tess_each_owned(t, TESS_OF_PARAM, check_bytes, &total), TESS_OK);
    assert_int_equal(tess_each_full(t, TESS_OF_PARAM, check_bytes, &total), TESS_OK);
    assert_int_equal(total, 140002);
    assert_int_equal(tess_summon_begin(t, scope, &codes, 1), TESS_OK);
    assert_int_equal(codes[70000], (unsigned char)(70000 * 37));
    assert_int_equal(tess_summon_end(t, scope), TESS_OK);
    assert_int_equal(tess_close(t), TESS_OK);
}

static void test_ranges__opaque_bytes_that_would_be_trained_are_refused(void **state) {
    (void)state;
    static const uint32_t flags[] = { 0, TESS_BUFFER, TESS_GRAD_OVERWRITE, TESS_FROZEN | TESS_BUFFER };
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        tess_scope scope;
        tess_status added;
        tess *t = open_opaque(flags[i], &scope, &added);
        assert_refused(t, added, "TESS_FROZEN");
    }
}

static void test_ranges__one_rank_reduces_to_itself_and_bad_reductions_are_refused(void **state) {
    (void)state;
    toy m;
    double x[3] = { 1, 2, 3 };
    tess *t = open_toy(&m, "none");
    assert_int_equal(tess_all_reduce(t, x, 3, TESS_F64, TESS_AVG), TESS_OK);
    assert_true(x[0] == 1 && x[2] == 3);
    assert_int_equal(tess_barrier(t), TESS_OK);
    assert_refused(t, tess_all_reduce(t, x, 3, TESS_BF16, TESS_SUM), "bf16");
    t = open_toy(&m, "none");
    assert_refused(t, tess_all_reduce(t, x, 3, TESS_I64, TESS_AVG), "i64");
    t = open_toy(&m, "none");
    assert_refused(t, tess_all_reduce(t, NULL, 3, TESS_F64, TESS_SUM), "null pointer");
    t = open_toy(&m, "none");
    assert_refused(t, tess_all_reduce(t, x, 3, TESS_F64, 9), "operation 9");
}

static void test_ranges__own_memory_is_planned_booked_and_freed(void **state) {
    (void)state;
    toy m;
    tess *t = NULL;
    void *before = NULL, *after = NULL;
    tess_stats s = { .struct_size = sizeof s };
    tess_options o = { .struct_size = sizeof o, .optimizer = "sgd" };
    assert_int_equal(tess_open(&o, &t), TESS_OK);
    assert_int_equal(tess_alloc(t, "activations", 10000, &before), TESS_OK);
    assert_int_equal(toy_declare(t, &m, 0), TESS_OK);
    assert_int_equal(tess_shard(t, toy_fill, NULL), TESS_OK);
    assert_int_equal(tess_alloc(t, NULL, 5000, &after), TESS_OK);
    memset(before, 1, 10000);
    memset(after, 2, 5000);
    assert_int_equal(tess_stats_get(t, &s), TESS_OK);
    assert_true(s.category_peak_bytes[TESS_DOMAIN_DEVICE][TESS_CAT_ACTIVATION] >= 15000);
    assert_int_equal(s.peak_bytes[TESS_DOMAIN_DEVICE], s.planned_peak_bytes[TESS_DOMAIN_DEVICE]);
    assert_refused(t, tess_alloc(t, "x", 1, NULL), "no place");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranges__each_parameter_is_shown_once_in_order_of_declaration),
        cmocka_unit_test(test_ranges__what_is_written_is_read_back),
        cmocka_unit_test(test_ranges__gradients_and_states_are_of_what_is_trained),
        cmocka_unit_test(test_ranges__what_is_not_there_is_refused),
        cmocka_unit_test(test_ranges__states_that_are_no_floats_are_refused_and_nothing_is_shown),
        cmocka_unit_test(test_ranges__small_floats_are_shown_in_fp32),
        cmocka_unit_test(test_ranges__opaque_bytes_are_shown_as_they_are_and_take_a_byte_each),
        cmocka_unit_test(test_ranges__opaque_bytes_that_would_be_trained_are_refused),
        cmocka_unit_test(test_ranges__one_rank_reduces_to_itself_and_bad_reductions_are_refused),
        cmocka_unit_test(test_ranges__own_memory_is_planned_booked_and_freed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
