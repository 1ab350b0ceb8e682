/* SPDX-License-Identifier: BSD-3-Clause */
/* What a program learns of its engine, sets on it, and does beside training, at one rank. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/log.h"
#include "tests/support/toy.h"

static tess *open_toy(toy *m, tess_options o) {
    tess *t = NULL;
    o.struct_size = sizeof o;
    assert_int_equal(tess_open(&o, &t), TESS_OK);
    assert_int_equal(toy_declare(t, m, 0), TESS_OK);
    assert_int_equal(tess_shard(t, toy_fill, NULL), TESS_OK);
    return t;
}

static tess_info info_of(const tess *t) {
    tess_info info = { .struct_size = sizeof info };
    assert_int_equal(tess_info_get(t, &info), TESS_OK);
    return info;
}

/* ---- options ----------------------------------------------------------------------------------- */

static void test_public__every_field_of_the_options_arrives(void **state) {
    (void)state;
    toy m;
    const tess_setting more[] = { { "timeout", "30" } };
    tess *t = open_toy(&m, (tess_options){ .wrap = "none",
                                           .strategy = "grad_op",
                                           .optimizer = "sgd",
                                           .sync = "end",
                                           .accum = 3,
                                           .prefetch = "2",
                                           .threads = 5,
                                           .deterministic = 1,
                                           .strict = 1,
                                           .device_memory_bytes = 1 << 30,
                                           .host_memory_bytes = 1 << 29,
                                           .settings = more,
                                           .n_settings = 1 });
    tess_info i = info_of(t);
    assert_string_equal(i.wrap, "none");
    assert_string_equal(i.strategy, "grad_op");
    assert_string_equal(i.optimizer, "sgd");
    assert_string_equal(i.comm, "self");
    assert_string_equal(i.device, "cpu");
    assert_string_equal(i.activations, "keep");
    assert_true(i.accum == 3 && !i.sync_each && i.prefetch == 2 && i.threads == 5 && i.deterministic && i.strict);
    assert_true(i.device_memory_bytes == 1 << 30 && i.host_memory_bytes == 1 << 29);
    assert_true(i.memory == TESS_MEM_HOST && i.rank == 0 && i.ranks == 1 && i.shard_ranks == 1 && i.replicas == 1);
    assert_int_equal(tess_accum(t), 3);
    assert_int_equal(tess__log_rank(), -1); /* lines of a rank alone name none */
    tess_close(t);
}

static void test_public__the_environment_wins_unless_the_flag_says_otherwise(void **state) {
    (void)state;
    toy m;
    setenv("TESSERA_ACCUM", "2", 1);
    setenv("TESSERA_DETERMINISTIC", "1", 1);
    tess *t = open_toy(&m, (tess_options){ .accum = 5, .deterministic = -1 });
    assert_int_equal(tess_accum(t), 2);
    assert_int_equal(info_of(t).deterministic, 1);
    tess_close(t);
    t = open_toy(&m, (tess_options){ .accum = 5, .deterministic = -1, .flags = TESS_OPTIONS_WIN });
    assert_int_equal(tess_accum(t), 5);
    assert_int_equal(info_of(t).deterministic, 0);
    tess_close(t);
    unsetenv("TESSERA_ACCUM");
    unsetenv("TESSERA_DETERMINISTIC");
}

static void test_public__a_setting_wins_over_its_field_and_the_last_over_the_first(void **state) {
    (void)state;
    toy m;
    const tess_setting twice[] = { { "wrap", "scopes" }, { "accum", "2" }, { "accum", "4" } };
    tess *t = open_toy(&m, (tess_options){ .wrap = "none", .accum = 3, .settings = twice, .n_settings = 3 });
    assert_string_equal(info_of(t).wrap, "scopes");
    assert_int_equal(tess_accum(t), 4);
    tess_close(t);
}

static void refused(tess_options o, const char *part) {
    tess *t = NULL;
    o.struct_size = sizeof o;
    assert_int_equal(tess_open(&o, &t), TESS_E_INVALID);
    if (!strstr(tess_last_error(), part))
        fail_msg("'%s' is not in: %s", part, tess_last_error());
}

static void test_public__bad_options_are_named(void **state) {
    (void)state;
    const tess_setting slip[] = { { "acum", "2" } }, bad_key[] = { { "no key", "2" } };
    refused((tess_options){ .activations = "forget" }, "'forget' is none of them; expected keep, recompute");
    refused((tess_options){ .settings = slip, .n_settings = 1 }, "'acum' is an option of neither");
    refused((tess_options){ .settings = slip, .n_settings = 1 }, "TESSERA_ACCUM?");
    refused((tess_options){ .settings = bad_key, .n_settings = 1 }, "the key 'no key'");
    refused((tess_options){ .flags = 128 }, "unknown flags 0x80");
    refused((tess_options){ .optimizer = "own", .own_states = 3 }, "own_states is 3");
    refused((tess_options){ .accum = -1 }, "tess_options.accum is -1, expected 0 or more");
    refused((tess_options){ .threads = -2 }, "tess_options.threads is -2, expected 0 or more");
    refused((tess_options){ .mirror = INT32_MIN }, "tess_options.mirror is -2147483648, expected 0 or more");
}

/* ---- reading ----------------------------------------------------------------------------------- */

static void test_public__microbatches_are_numbered_by_the_rule(void **state) {
    (void)state;
    toy m;
    tess *t = open_toy(&m, (tess_options){ .accum = 4, .sync = "end" });
    assert_int_equal(tess_microbatch(t, 0), 0);
    assert_int_equal(tess_microbatch(t, 3), 3);
    assert_int_equal(tess_microbatch(t, 5), 5); /* of the next step */
    tess_close(t);
}

static int32_t accum_of(tess_options o, int32_t ranks) {
    tess *t = NULL;
    o.struct_size = sizeof o;
    o.plan_only = 1;
    o.ranks = ranks;
    tess_status s = tess_open(&o, &t);
    int32_t accum = s ? s : tess_accum(t);
    tess_close(t);
    return accum;
}

static void test_public__microbatches_in_all_give_accum(void **state) {
    (void)state;
    const tess_setting two[] = { { "accum", "2" } };
    tess_options o = { .comm = "shm", .microbatches = 12 };
    assert_int_equal(accum_of(o, 4), 3);
    assert_int_equal(accum_of(o, 12), 1);
    assert_int_equal(accum_of(o, 5), TESS_E_INVALID);
    assert_non_null(strstr(tess_last_error(), "tess_options.microbatches is 12, which 5 ranks do not divide: "));
    o.accum = 3; /* as it is */
    assert_int_equal(accum_of(o, 4), 3);
    assert_int_equal(accum_of(o, 3), TESS_E_INVALID);
    assert_non_null(strstr(tess_last_error(), "tess_options.accum is 3 on 3 ranks and tess_options.microbatches 12"));
    o = (tess_options){ .comm = "shm", .microbatches = 12, .settings = two, .n_settings = 1 };
    assert_int_equal(accum_of(o, 3), TESS_E_INVALID);
    o = (tess_options){ .comm = "shm", .microbatches = -1 };
    assert_int_equal(accum_of(o, 3), TESS_E_INVALID);
}

static void test_public__microbatches_give_way_to_the_users_accum(void **state) {
    (void)state;
    tess_options o = { .comm = "shm", .microbatches = 12 };
    setenv("TESSERA_ACCUM", "2", 1);
    assert_int_equal(accum_of(o, 5), 2);
    o.flags = TESS_OPTIONS_WIN;
    assert_int_equal(accum_of(o, 4), 3);
    unsetenv("TESSERA_ACCUM");
}

/* Three ranks have 4 each, which add up to the same bits with sync=end alone. */
static void test_public__microbatches_divide_into_subtrees_when_deterministic(void **state) {
    (void)state;
    tess_options o = { .comm = "shm", .microbatches = 12, .deterministic = 1 };
    tess_info info = { .struct_size = sizeof info };
    tess *t = NULL;
    assert_int_equal(accum_of(o, 3), 4);
    o.microbatches = 18;
    assert_int_equal(accum_of(o, 3), TESS_E_INVALID);
    assert_non_null(strstr(tess_last_error(), "do not divide into aligned subtrees"));
    o = (tess_options){
        .struct_size = sizeof o, .comm = "shm", .microbatches = 12, .deterministic = 1, .plan_only = 1, .ranks = 3
    };
    assert_int_equal(tess_open(&o, &t), TESS_OK);
    assert_int_equal(tess_info_get(t, &info), TESS_OK);
    assert_int_equal(info.sync_each, 0);
    tess_close(t);
}

static void test_public__the_precision_decides_the_compute_dtype(void **state) {
    (void)state;
    tess *t = NULL;
    const int64_t shape[] = { 3, 5 };
    uint32_t dtype = 0, grad = 0;
    tess_param_options o = { .struct_size = sizeof o, .dtype = TESS_F32, .name = "w", .shape = shape, .ndim = 2 };
    assert_int_equal(tess_open(NULL, &t), TESS_OK);
    assert_int_equal(tess_compute_dtype(t, &o, &dtype, &grad), TESS_OK);
    assert_true(dtype == TESS_F32 && grad == TESS_F32);
    o.name = NULL;
    assert_int_equal(tess_compute_dtype(t, &o, &dtype, NULL), TESS_E_INVALID);
    tess_close(t);
}

static void test_public__the_precision_decides_the_dtype_of_products(void **state) {
    (void)state;
    const int64_t shape[] = { 3, 5 };
    uint32_t dtype = 7;
    for (int fp8 = 0; fp8 < 2; fp8++) {
        tess *t = NULL;
        const tess_options with = { .struct_size = sizeof with, .precision = fp8 ? "bf16:products=fp8" : "bf16" };
        tess_param_options o = { .struct_size = sizeof o, .dtype = TESS_F32, .name = "w", .shape = shape, .ndim = 2 };
        assert_int_equal(tess_open(&with, &t), TESS_OK);
        o.compute_dtypes = 1u << TESS_BF16;
        assert_int_equal(tess_product_dtype(t, &o, &dtype), TESS_OK);
        assert_int_equal(dtype, 0);
        o.compute_dtypes |= 1u << TESS_F8E4M3;
        assert_int_equal(tess_product_dtype(t, &o, &dtype), TESS_OK);
        assert_int_equal(dtype, fp8 ? TESS_F8E4M3 : 0);
        o.flags = TESS_BUFFER;
        assert_int_equal(tess_product_dtype(t, &o, &dtype), TESS_OK);
        assert_int_equal(dtype, 0);
        assert_int_equal(tess_product_dtype(t, &o, NULL), TESS_E_INVALID);
        o.name = NULL;
        assert_int_equal(tess_product_dtype(t, &o, &dtype), TESS_E_INVALID);
        tess_close(t);
    }
}

static void test_public__agreement_at_one_rank_gives_the_error_back(void **state) {
    (void)state;
    toy m;
    tess *t = open_toy(&m, (tess_options){ 0 });
    assert_int_equal(tess_agree(t, TESS_OK), TESS_OK);
    assert_int_equal(tess_agree(t, tess_fail(TESS_E_DATA, "%s: line %d", "corpus.txt", 7)), TESS_E_DATA);
    assert_string_equal(tess_last_error(), "corpus.txt: line 7");
    assert_int_equal(tess_agree(t, TESS_OK), TESS_OK); /* it ends no engine */
    tess_close(t);
}

static void test_public__given_up_inside_a_pass_the_programs_message_stays(void **state) {
    (void)state;
    toy m;
    tess *t = open_toy(&m, (tess_options){ 0 });
    assert_int_equal(tess_pass(t, TESS_PASS_EVAL), TESS_OK);
    assert_int_equal(tess_give_up(t, tess_fail(TESS_E_DATA, "%s: thrown", "forward")), TESS_E_DATA);
    assert_int_equal(tess_pass(t, TESS_PASS_EVAL), TESS_E_DATA);
    assert_string_equal(tess_last_error(), "forward: thrown");
    assert_int_equal(tess_give_up(t, tess_fail(TESS_E_INVALID, "later")), TESS_E_DATA); /* the first stays */
    tess_close(t);
}

static tess_status refuse(void *user, const tess_range *r, void *data) {
    (void)user, (void)data;
    return tess_fail(TESS_E_DATA, "no values for %s", r->name);
}

static void test_public__a_callbacks_message_is_kept(void **state) {
    (void)state;
    toy m;
    tess *t = open_toy(&m, (tess_options){ 0 });
    assert_int_equal(tess_each_owned(t, TESS_OF_PARAM, refuse, NULL), TESS_E_DATA);
    assert_string_equal(tess_last_error(), "no values for embed.weight");
    tess_close(t);
}

static tess_status place(void *user, const tess_range *r, void *data) {
    uint64_t *next = user;
    (void)data;
    assert_int_equal(r->stacked_first, (uint64_t)r->slice * r->slice_elems + r->first_elem);
    assert_int_equal(r->stacked_first, *next);
    *next += r->elems;
    return TESS_OK;
}

static void test_public__ranges_know_their_place_in_a_stack(void **state) {
    (void)state;
    tess *t = NULL;
    uint64_t next = 0;
    const int64_t shape[] = { 10 };
    tess_param_options o = { .struct_size = sizeof o, .dtype = TESS_F32, .name = "h.*.w", .stack = 3 };
    o.shape = shape;
    o.ndim = 1;
    assert_int_equal(tess_open(NULL, &t), TESS_OK);
    assert_int_equal(tess_scope_add(t, "h.*", 3, NULL), TESS_OK);
    assert_int_equal(tess_param_add(t, &o, NULL), TESS_OK);
    assert_int_equal(tess_shard(t, NULL, NULL), TESS_OK);
    assert_int_equal(tess_each_owned(t, TESS_OF_PARAM, place, &next), TESS_OK);
    assert_int_equal(next, 30);
    tess_close(t);
}

static void test_public__each_full_refuses_to_write_under_its_own_name(void **state) {
    (void)state;
    toy m;
    tess *t = open_toy(&m, (tess_options){ 0 });
    assert_int_equal(tess_each_full(t, TESS_OF_PARAM | TESS_OF_WRITE, refuse, NULL), TESS_E_INVALID);
    assert_non_null(strstr(tess_last_error(), "tess_each_full only reads"));
    tess_close(t);
}

/* ---- an optimizer of one's own ------------------------------------------------------------------- */

/* The built-in AdamW's formulas are its own; SGD with momentum is simple enough to write twice. */
static tess_status sgd(void *user, const tess_range *r, void *param, const float *grad, float *const *state) {
    float *p = param, lr = *(const float *)user;
    for (uint64_t i = 0; i < r->elems; i++) {
        state[0][i] = fmaf(0.5f, state[0][i], grad[i]);
        p[i] = p[i] - lr * state[0][i];
    }
    return TESS_OK;
}

typedef struct {
    double sum, count;
} moments;

static tess_status add_up(void *user, const tess_range *r, void *data) {
    moments *m = user;
    for (uint64_t i = 0; i < r->elems; i++)
        m->sum += fabs((double)((float *)data)[i]);
    m->count += (double)r->elems;
    return TESS_OK;
}

static void test_public__an_optimizer_of_ones_own_steps_and_its_states_are_planned(void **state) {
    (void)state;
    toy m;
    double loss[3];
    float lr = 0.05f;
    tess *t = open_toy(&m, (tess_options){ .optimizer = "own", .own_states = 1 });
    tess_stats stats = { .struct_size = sizeof stats };
    for (int i = 0; i < 3; i++) {
        assert_int_equal(toy_pass(t, &m, TESS_PASS_TRAIN, 0, &loss[i]), TESS_OK);
        assert_int_equal(tess_update(t, sgd, &lr), TESS_OK);
    }
    assert_true(loss[2] < loss[1] && loss[1] < loss[0]);
    assert_int_equal(tess_steps_done(t), 3);
    moments seen = { 0 };
    assert_int_equal(tess_each_owned(t, TESS_OF_MOMENT1, add_up, &seen), TESS_OK);
    assert_true(seen.sum > 0);
    assert_int_equal(tess_stats_get(t, &stats), TESS_OK);
    assert_true(stats.category_peak_bytes[TESS_DOMAIN_DEVICE][TESS_CAT_OPTIMIZER] >= 4 * (uint64_t)seen.count);
    assert_int_equal(stats.peak_bytes[TESS_DOMAIN_DEVICE], stats.planned_peak_bytes[TESS_DOMAIN_DEVICE]);
    assert_int_equal(stats.live_bytes[TESS_DOMAIN_DEVICE], stats.resting_bytes[TESS_DOMAIN_DEVICE]);
    assert_int_equal(tess_step(t, &(tess_optimizer_options){ .struct_size = sizeof(tess_optimizer_options), .lr = 1 }),
                     TESS_E_INVALID);
    tess_close(t);
}

static void test_public__an_update_needs_the_optimizer_own_and_a_gradient(void **state) {
    (void)state;
    toy m;
    tess *t = open_toy(&m, (tess_options){ .optimizer = "sgd" });
    assert_int_equal(tess_update(t, sgd, NULL), TESS_E_INVALID);
    assert_non_null(strstr(tess_last_error(), "opened with optimizer \"sgd\""));
    tess_close(t);
    t = open_toy(&m, (tess_options){ .optimizer = "own" });
    assert_int_equal(tess_update(t, sgd, NULL), TESS_E_INVALID);
    assert_non_null(strstr(tess_last_error(), "tess_update: 0 of 1 training passes"));
    tess_close(t);
}

/* ---- going on ---------------------------------------------------------------------------------- */

typedef struct {
    float *values;
    uint64_t at;
} store;

static tess_status save(void *user, const tess_range *r, void *data) {
    store *s = user;
    memcpy(s->values + s->at, data, r->elems * sizeof(float));
    s->at += r->elems;
    return TESS_OK;
}

static tess_status load(void *user, const tess_range *r, void *data) {
    store *s = user;
    memcpy(data, s->values + s->at, r->elems * sizeof(float));
    s->at += r->elems;
    return TESS_OK;
}

static void walk(tess *t, uint32_t of, tess_range_fn fn, float *values) {
    store s = { .values = values };
    assert_int_equal(tess_each_owned(t, of, fn, &s), TESS_OK);
}

static void steps(tess *t, toy *m, int first, int n) {
    double loss;
    const tess_optimizer_options o = { .struct_size = sizeof o, .lr = 0.01f };
    for (int i = first; i < first + n; i++) {
        assert_int_equal(toy_pass(t, m, TESS_PASS_TRAIN, i, &loss), TESS_OK);
        assert_int_equal(tess_step(t, &o), TESS_OK);
    }
}

/* Without the steps done, bias correction would begin anew and the bits would differ. */
static void resume(uint64_t steps_done, uint64_t *digest) {
    static float values[3][4096];
    const uint32_t of[] = { TESS_OF_PARAM, TESS_OF_MOMENT1, TESS_OF_MOMENT2 };
    toy m;
    tess *t = open_toy(&m, (tess_options){ 0 });
    steps(t, &m, 0, 2);
    for (int i = 0; i < 3; i++)
        walk(t, of[i], save, values[i]);
    assert_int_equal(tess_steps_done(t), 2);
    tess_close(t);
    t = open_toy(&m, (tess_options){ 0 });
    for (int i = 0; i < 3; i++)
        walk(t, of[i] | TESS_OF_WRITE, load, values[i]);
    assert_int_equal(tess_steps_set(t, steps_done), TESS_OK);
    steps(t, &m, 2, 2);
    assert_int_equal(toy_digest(t, digest), TESS_OK);
    tess_close(t);
}

static void test_public__a_run_goes_on_with_moments_and_steps_done(void **state) {
    (void)state;
    toy m;
    uint64_t whole = 0, resumed = 0, forgetful = 0;
    tess *t = open_toy(&m, (tess_options){ 0 });
    steps(t, &m, 0, 4);
    assert_int_equal(toy_digest(t, &whole), TESS_OK);
    tess_close(t);
    resume(2, &resumed);
    resume(0, &forgetful);
    assert_true(resumed == whole);
    assert_true(forgetful != whole);
}

int main(void) {
#define TEST(name) cmocka_unit_test(test_public__##name)
    const struct CMUnitTest tests[] = {
        TEST(every_field_of_the_options_arrives),
        TEST(the_environment_wins_unless_the_flag_says_otherwise),
        TEST(a_setting_wins_over_its_field_and_the_last_over_the_first),
        TEST(bad_options_are_named),
        TEST(microbatches_are_numbered_by_the_rule),
        TEST(microbatches_in_all_give_accum),
        TEST(microbatches_give_way_to_the_users_accum),
        TEST(microbatches_divide_into_subtrees_when_deterministic),
        TEST(the_precision_decides_the_compute_dtype),
        TEST(the_precision_decides_the_dtype_of_products),
        TEST(agreement_at_one_rank_gives_the_error_back),
        TEST(given_up_inside_a_pass_the_programs_message_stays),
        TEST(a_callbacks_message_is_kept),
        TEST(ranges_know_their_place_in_a_stack),
        TEST(each_full_refuses_to_write_under_its_own_name),
        TEST(an_optimizer_of_ones_own_steps_and_its_states_are_planned),
        TEST(an_update_needs_the_optimizer_own_and_a_gradient),
        TEST(a_run_goes_on_with_moments_and_steps_done),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
