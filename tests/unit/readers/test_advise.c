/* SPDX-License-Identifier: BSD-3-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/engine/state.h"
#include "core/base/options.h"
#include "core/base/status.h"

/* ---- a model, in hooks or in blocks ------------------------------------------------------------- */

typedef struct {
    int blocks;
    uint32_t compute; /* dtypes that its kernels read */
    int32_t ranks, accum;
    const char *strategy, *wrap, *comm;
    uint64_t budget, own; /* own: memory that the program takes */
    tess_plan_fn planner;
    void *planner_user;
} program;

enum { LAYERS = 6, SIDE = 100 };

static tess_status nothing(void *user, const tess_block_call *call) {
    (void)user, (void)call;
    return TESS_E_INTERNAL;
}

static void declare(const program *p, tess *t) {
    char name[32];
    void *memory;
    const int64_t shape[2] = { SIDE, SIDE };
    if (p->own)
        assert_int_equal(tess_alloc(t, "own", p->own, &memory), TESS_OK);
    for (int i = 0; i < LAYERS; i++) {
        snprintf(name, sizeof name, "h.%d", i);
        tess_block_options b = { .struct_size = sizeof b,
                                 .name = name,
                                 .output_bytes = 6400,
                                 .saved_bytes = 640000,
                                 .forward = nothing,
                                 .backward = nothing };
        assert_int_equal(p->blocks ? tess_block_add(t, &b, NULL) : tess_scope_add(t, name, 0, NULL), TESS_OK);
        for (int part = 0; part < 2; part++) {
            snprintf(name, sizeof name, "h.%d.%s.w", i, part ? "b" : "a");
            tess_param_options o = { .struct_size = sizeof o,
                                     .dtype = TESS_F32,
                                     .compute_dtypes = p->compute,
                                     .name = name,
                                     .shape = shape,
                                     .ndim = 2 };
            assert_int_equal(tess_param_add(t, &o, NULL), TESS_OK);
        }
    }
}

static tess *plan(const program *p, tess_status expected) {
    tess *t = NULL;
    tess_options o = { .struct_size = sizeof o,
                       .plan_only = 1,
                       .ranks = p->ranks,
                       .accum = p->accum,
                       .strategy = p->strategy,
                       .wrap = p->wrap,
                       .comm = p->comm,
                       .optimizer = "adamw",
                       .plan_alternative = p->planner,
                       .plan_user = p->planner_user,
                       .device_memory_bytes = p->budget };
    assert_int_equal(tess_open(&o, &t), TESS_OK);
    declare(p, t);
    tess_status s = tess_shard(t, NULL, NULL);
    if (s != expected)
        fail_msg("tess_shard: %s", tess_last_error());
    return t;
}

static uint64_t peak(const program *p, uint64_t *host) {
    program free = *p;
    free.budget = 0;
    tess *t = plan(&free, TESS_E_PLANNED);
    uint64_t bytes = tess__planned_bytes(&t->plan, TESS_DOMAIN_DEVICE);
    if (host)
        *host = tess__planned_bytes(&t->plan, TESS_DOMAIN_HOST);
    tess_close(t);
    return bytes;
}

static void set(const char *key, const char *value) {
    char variable[80];
    tess__option_variable(key, variable);
    if (value)
        setenv(variable, value, 1);
    else
        unsetenv(variable);
}

static void clear(void) {
    static const char *const keys[] = { "offload",       "precision",   "wrap", "strategy", "activations", "prefetch",
                                        "device-memory", "host-memory", "sync", "ranks",    "low-copy" };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        set(keys[i], NULL);
}

static int clean(void **state) {
    (void)state;
    clear();
    return 0;
}

static int can(const program *p) {
    tess *t = NULL;
    tess_options o = { .struct_size = sizeof o, .plan_only = 1, .ranks = p->ranks, .comm = p->comm };
    tess_status s = tess_open(&o, &t);
    tess_close(t);
    return s == TESS_OK;
}

static void skip_without(int there, const char *what) {
    if (there)
        return;
    printf("skipped: %s is not built here\n", what);
    skip();
}

/* Each remedy, planned for itself with its options, fits and takes what was said, to the byte. */
static void assert_remedies_hold(const program *p, const tess__advice *a) {
    assert_int_not_equal(a->n, 0);
    for (int32_t i = 0; i < a->n; i++) {
        program changed = *p;
        const tess__option_set *c = &a->list[i].change;
        for (int32_t k = 0; k < c->n; k++) {
            if (strcmp(c->set[k].key, "ranks") == 0)
                changed.ranks = (int32_t)strtol(c->set[k].value, NULL, 10);
            else
                set(c->set[k].key, c->set[k].value);
        }
        tess *t = plan(&changed, TESS_E_PLANNED);
        assert_int_equal(tess__planned_bytes(&t->plan, TESS_DOMAIN_DEVICE), a->list[i].bytes[TESS_DOMAIN_DEVICE]);
        assert_int_equal(tess__planned_bytes(&t->plan, TESS_DOMAIN_HOST), a->list[i].bytes[TESS_DOMAIN_HOST]);
        tess_close(t);
        for (int32_t k = 0; k < c->n; k++)
            set(c->set[k].key, NULL);
    }
}

static int names(const tess__advice *a, const char *key, const char *value) {
    for (int32_t i = 0; i < a->n; i++) {
        const char *found = tess__change_value(&a->list[i].change, key);
        if (found && (!value || strcmp(found, value) == 0))
            return 1;
    }
    return 0;
}

/* The advice of a program whose budget is `part` of its peak, less a byte; checked. */
static tess__advice advice(program *p, double part) {
    p->budget = (uint64_t)((double)peak(p, NULL) * part) - (part >= 1);
    tess *t = plan(p, TESS_E_BUDGET);
    tess__advice a = t->advice;
    assert_non_null(strstr(tess_last_error(), "of device memory per rank and TESSERA_DEVICE_MEMORY allows"));
    assert_null(strchr(tess_last_error(), '\n'));
    tess_close(t);
    return a;
}

/* ---- tests -------------------------------------------------------------------------------------- */

static void test_advise__a_byte_below_the_peak_is_refused_with_advice_and_the_peak_is_planned(void **state) {
    (void)state;
    program p = { .ranks = 4, .wrap = "none" };
    skip_without(can(&p), "a comm plugin");
    tess__advice a = advice(&p, 1);
    assert_remedies_hold(&p, &a);
    assert_true(names(&a, "wrap", "scopes"));
    assert_false(names(&a, "activations", NULL)); /* hooks keep their own */
    assert_false(names(&a, "precision", NULL));   /* the kernels read fp32 */
    for (int32_t i = 1; i < a.n; i++)
        assert_true(a.list[i - 1].change.cost <= a.list[i].change.cost);
    p.budget++;
    tess_close(plan(&p, TESS_E_PLANNED));
}

static void test_advise__the_message_names_the_changes_and_their_bytes(void **state) {
    (void)state;
    program p = { .ranks = 4, .wrap = "none" };
    char expected[64];
    skip_without(can(&p), "a comm plugin");
    p.budget = peak(&p, NULL) - 1;
    tess *t = plan(&p, TESS_E_BUDGET);
    assert_string_equal(t->advice.list[0].change.set[0].key, "wrap");
    snprintf(expected, sizeof expected, ". With TESSERA_WRAP=scopes: %.1f KiB.",
             (double)t->advice.list[0].bytes[TESS_DOMAIN_DEVICE] / 1024);
    assert_non_null(strstr(tess_last_error(), expected));
    assert_int_equal(tess_exit_code(TESS_E_BUDGET), 4);
    tess_close(t);
}

static void test_advise__a_program_that_reads_bf16_is_told_of_it(void **state) {
    (void)state;
    program p = { .ranks = 4, .compute = 1u << TESS_F32 | 1u << TESS_BF16, .wrap = "none" };
    skip_without(can(&p), "a comm plugin");
    set("precision", "bf16");
    tess *t = NULL;
    tess_options o = { .struct_size = sizeof o, .plan_only = 1 };
    int there = tess_open(&o, &t) == TESS_OK;
    tess_close(t);
    clear();
    skip_without(there, "precision bf16");
    tess__advice a = advice(&p, 1);
    assert_true(names(&a, "precision", "bf16"));
    assert_string_equal(a.list[0].change.set[0].key, "precision");
    assert_remedies_hold(&p, &a);
}

/* At fp32 there are no copies yet, so that their end alone helps nothing; bf16 brings them, and may fit only without.
 */
static void test_advise__a_precision_is_offered_without_the_copies_that_it_would_bring(void **state) {
    (void)state;
    program p = { .ranks = 4, .compute = 1u << TESS_F32 | 1u << TESS_BF16, .wrap = "none" };
    skip_without(can(&p), "a comm plugin");
    set("prefetch", "0"); /* which the engine would try by itself */
    set("precision", "bf16");
    skip_without(can(&p), "precision bf16");
    uint64_t without = peak(&p, NULL);
    set("low-copy", "1");
    assert_true(peak(&p, NULL) > without);
    set("precision", NULL);
    assert_true(peak(&p, NULL) > without);
    p.budget = without;
    tess *t = plan(&p, TESS_E_BUDGET);
    tess__advice one = { .n = 0 };
    for (int32_t i = 0; i < t->advice.n; i++)
        if (t->advice.list[i].change.n == 2 && tess__change_value(&t->advice.list[i].change, "precision") &&
            tess__change_value(&t->advice.list[i].change, "low-copy"))
            one.list[one.n++] = t->advice.list[i];
    tess_close(t);
    assert_int_equal(one.n, 1);
    assert_remedies_hold(&p, &one);
}

static void test_advise__blocks_can_let_go_of_their_activations(void **state) {
    (void)state;
    program p = { .ranks = 1, .blocks = 1, .comm = "self" };
    tess__advice a = advice(&p, 0.75);
    assert_true(names(&a, "activations", "recompute"));
    char chosen[40]; /* for the budget, of blocks that keep theirs and blocks that do not */
    snprintf(chosen, sizeof chosen, "auto:%llu", (unsigned long long)p.budget);
    assert_true(names(&a, "activations", chosen));
    assert_false(names(&a, "ranks", NULL)); /* comm self is for one */
    assert_remedies_hold(&p, &a);
    set("activations", "recompute"); /* chosen: it is not talked out of */
    a = advice(&p, 1);
    assert_false(names(&a, "activations", NULL));
}

static void test_advise__strategy_and_sync_are_offered_where_they_are_not_full_and_each(void **state) {
    (void)state;
    program p = { .ranks = 4, .accum = 2, .strategy = "grad_op" };
    skip_without(can(&p), "a comm plugin");
    set("sync", "end");
    tess__advice a = advice(&p, 1);
    assert_true(names(&a, "strategy", "full"));
    assert_true(names(&a, "sync", "each"));
    for (int32_t i = 0; i < a.n; i++) { /* assert_remedies_hold takes options out, so sync is set again */
        tess__advice one = { .n = 1 };
        one.list[0] = a.list[i];
        set("sync", "end");
        assert_remedies_hold(&p, &one);
    }
}

static void test_advise__no_unit_gathered_ahead_is_offered_where_that_was_set(void **state) {
    (void)state;
    program p = { .ranks = 4 };
    skip_without(can(&p), "a comm plugin");
    set("prefetch", "2");
    tess__advice a = advice(&p, 1);
    assert_true(names(&a, "prefetch", "0"));
    for (int32_t i = 0; i < a.n; i++) {
        tess__advice one = { .n = 1 };
        one.list[0] = a.list[i];
        set("prefetch", "2");
        assert_remedies_hold(&p, &one);
    }
}

static void test_advise__changes_come_together_where_one_is_not_enough(void **state) {
    (void)state;
    program p = { .ranks = 2, .blocks = 1, .wrap = "none", .strategy = "grad_op" };
    skip_without(can(&p), "a comm plugin");
    tess__advice a = advice(&p, 0.42);
    assert_true(a.n > 0);
    for (int32_t i = 0; i < a.n; i++)
        assert_true(a.list[i].change.n > 1);
    for (int32_t i = 0; i < a.n; i++) /* none is part of another */
        for (int32_t k = 0; k < a.n; k++) {
            int32_t same = 0;
            for (int32_t s = 0; s < a.list[i].change.n; s++) {
                const char *value = tess__change_value(&a.list[k].change, a.list[i].change.set[s].key);
                same += value && strcmp(value, a.list[i].change.set[s].value) == 0;
            }
            assert_true(i == k || same < a.list[i].change.n);
        }
    assert_remedies_hold(&p, &a);
}

static void test_advise__more_ranks_are_the_last_resort(void **state) {
    (void)state;
    program p = { .ranks = 2 };
    skip_without(can(&p), "a comm plugin");
    tess__advice a = advice(&p, 0.8);
    assert_true(names(&a, "ranks", NULL));
    assert_string_equal(a.list[a.n - 1].change.set[0].key, "ranks");
    assert_remedies_hold(&p, &a);
    p = (program){ .ranks = 1 }; /* of one rank with comm=auto too */
    a = advice(&p, 0.8);
    assert_true(names(&a, "ranks", NULL));
    assert_remedies_hold(&p, &a);
}

/* What a program takes itself may be another size on other ranks: only a planner that asks the program can say. */
static void test_advise__ranks_are_not_offered_to_a_program_with_memory_of_its_own(void **state) {
    (void)state;
    program p = { .ranks = 2 };
    skip_without(can(&p), "a comm plugin");
    tess__advice a = advice(&p, 0.8);
    assert_true(names(&a, "ranks", NULL));
    p.own = 1000;
    p.budget = (uint64_t)((double)peak(&p, NULL) * 0.8);
    tess *t = plan(&p, TESS_E_BUDGET);
    assert_false(names(&t->advice, "ranks", NULL));
    assert_null(strstr(tess_last_error(), "With -n"));
    assert_null(strstr(tess_last_error(), "and -n"));
    tess_close(t);
}

static void test_advise__where_nothing_fits_the_least_is_named(void **state) {
    (void)state;
    program p = { .ranks = 1, .blocks = 1, .comm = "self", .budget = 4096 };
    tess *t = plan(&p, TESS_E_BUDGET);
    assert_int_equal(t->advice.n, 0);
    assert_true(t->advice.n_planned > 0);
    assert_true(t->advice.least.change.n > 0);
    assert_non_null(strstr(tess_last_error(), ". Nothing fits of "));
    assert_non_null(strstr(tess_last_error(), "TESSERA_ACTIVATIONS=recompute"));
    tess_close(t);
}

static void test_advise__the_host_budget_counts_too(void **state) {
    (void)state;
    program p = { .ranks = 1, .comm = "self" };
    set("offload", "cpu");
    tess *t = NULL;
    tess_options o = { .struct_size = sizeof o, .plan_only = 1 };
    int there = tess_open(&o, &t) == TESS_OK;
    tess_close(t);
    clear();
    skip_without(there, "offload cpu");
    tess__advice a = advice(&p, 0.8);
    assert_true(names(&a, "offload", "cpu"));
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)a.list[0].bytes[TESS_DOMAIN_HOST] - 1);
    set("host-memory", text);
    a = advice(&p, 0.8);
    assert_false(names(&a, "offload", "cpu"));
    set("device-memory", NULL);
    set("offload", "cpu"); /* over the budget of the host, the message speaks of that */
    p.budget = 0;
    t = plan(&p, TESS_E_BUDGET);
    assert_non_null(strstr(tess_last_error(), "of host memory per rank and TESSERA_HOST_MEMORY allows"));
    tess_close(t);
}

static void test_advise__the_engine_stays_as_it_was_planned(void **state) {
    (void)state;
    program p = { .ranks = 4, .wrap = "none", .compute = 1u << TESS_F32 | 1u << TESS_BF16 };
    skip_without(can(&p), "a comm plugin");
    tess *before = plan(&p, TESS_E_PLANNED);
    p.budget = tess__planned_bytes(&before->plan, TESS_DOMAIN_DEVICE) - 1;
    tess *t = plan(&p, TESS_E_BUDGET);
    assert_true(t->advice.n_planned > 3);
    assert_int_equal(tess__planned_bytes(&t->plan, 1), tess__planned_bytes(&before->plan, 1));
    for (int i = 0; i < TESS__N_PROGRAMS; i++)
        assert_int_equal(t->plan.programs[i].hash, before->plan.programs[i].hash);
    for (int32_t i = 0; i < t->plan.model.n_params; i++) {
        assert_int_equal(t->plan.model.params[i].unit, before->plan.model.params[i].unit);
        assert_int_equal(t->plan.model.params[i].offset, before->plan.model.params[i].offset);
    }
    tess_close(t);
    tess_close(before);
}

/* A planner of the caller's: says that every second change fits, and how long a step takes. */
static tess_status fake(void *user, const tess_setting *change, uint32_t n, uint64_t bytes[3], double *seconds) {
    int *calls = user, ranks = 0;
    ++*calls;
    for (uint32_t i = 0; i < n; i++)
        ranks |= strcmp(change[i].key, "ranks") == 0;
    bytes[TESS_DOMAIN_DEVICE] = 100;
    bytes[TESS_DOMAIN_HOST] = 0;
    *seconds = ranks ? 1 : 2;
    return strcmp(change[0].key, "wrap") == 0 ? tess__fail(TESS_E_UNSUPPORTED, "not this one") : TESS_OK;
}

static void test_advise__a_planner_of_the_callers_decides_and_its_times_order(void **state) {
    (void)state;
    int calls = 0;
    program p = { .ranks = 2, .blocks = 1, .planner = fake, .planner_user = &calls };
    skip_without(can(&p), "a comm plugin");
    p.budget = peak(&p, NULL) / 2;
    tess *t = plan(&p, TESS_E_BUDGET);
    assert_int_equal(t->advice.n_planned, calls);
    assert_string_equal(t->advice.list[0].change.set[0].key, "ranks"); /* the quickest */
    assert_true(t->advice.list[0].seconds == 1);
    assert_true(t->advice.list[1].seconds == 2);
    assert_false(names(&t->advice, "wrap", NULL));
    tess_close(t);
}

static void test_advise__changes_are_spelled_as_they_are_set(void **state) {
    (void)state;
    char text[200];
    tess__option_set c = { .n = 3, .set = { { "offload", "cpu" }, { "ranks", "8" }, { "wrap", "size:50000" } } };
    tess__change_text(&c, text, sizeof text);
    assert_string_equal(text, "TESSERA_OFFLOAD=cpu and -n 8 and TESSERA_WRAP=size:50000");
    assert_string_equal(tess__change_value(&c, "ranks"), "8");
    assert_null(tess__change_value(&c, "strategy"));
    for (size_t room = 1; room < 57; room++) { /* as much of it as there is room for */
        memset(text, '#', sizeof text);
        tess__change_text(&c, text, room);
        assert_int_equal(strlen(text), room - 1);
        assert_int_equal(strncmp("TESSERA_OFFLOAD=cpu and -n 8 and TESSERA_WRAP=size:50000", text, room - 1), 0);
        assert_int_equal(text[room], '#');
    }
    tess__change_text(&(tess__option_set){ .n = 0 }, text, sizeof text);
    assert_string_equal(text, "");
    tess__advice a = { .n = 2, .n_planned = 9 };
    a.list[0] =
        (tess__remedy){ .change = { .n = 1, .set = { { "offload", "cpu" } } }, .bytes = { 0, 522190848, 1000 } };
    a.list[1] = (tess__remedy){ .change = { .n = 1, .set = { { "strategy", "full" } } },
                                .bytes = { 0, UINT64_C(12) << 30, 0 } };
    tess__advice_text(&a, "too much", text, sizeof text);
    assert_string_equal(text, "too much. With TESSERA_OFFLOAD=cpu: 498.0 MiB and 1.0 KiB of host memory. "
                              "With TESSERA_STRATEGY=full: 12.0 GiB.");
    for (size_t room = 74; room <= 111; room++) { /* whole sentences only */
        tess__advice_text(&a, "too much", text, room);
        assert_string_equal(text, "too much. With TESSERA_OFFLOAD=cpu: 498.0 MiB and 1.0 KiB of host memory.");
    }
    tess__advice_text(&a, "too much", text, 73);
    assert_string_equal(text, "too much");
    tess__advice_text(&a, "too much", text, 4);
    assert_string_equal(text, "too");
}

static void test_advise__where_nothing_fits_that_is_said(void **state) {
    (void)state;
    char text[200];
    tess__advice a = { .n_planned = 17 };
    tess__advice_text(&a, "too much", text, sizeof text);
    assert_string_equal(text, "too much. None of 17 alternatives needs less.");
    a.least = (tess__remedy){ .change = { .n = 1, .set = { { "ranks", "4" } } }, .bytes = { 0, 2048, 0, 3072 } };
    tess__advice_text(&a, "too much", text, sizeof text);
    assert_string_equal(text, "too much. Nothing fits of 17 alternatives; with -n 4: 2.0 KiB and 3.0 KiB of disk.");
    for (int least = 0; least < 2; least++) {
        char whole[200];
        a.least.change.n = least;
        tess__advice_text(&a, "too much", whole, sizeof whole);
        for (size_t room = 1; room < strlen(whole); room++) { /* as much of it as there is room for */
            memset(text, '#', sizeof text);
            tess__advice_text(&a, "too much", text, room);
            assert_int_equal(strlen(text), room - 1);
            assert_int_equal(strncmp(text, whole, room - 1), 0);
            assert_int_equal(text[room], '#');
        }
    }
    a.n_planned = 0; /* nothing was tried */
    tess__advice_text(&a, "too much", text, sizeof text);
    assert_string_equal(text, "too much");
}

static void test_advise__amounts_are_in_the_unit_that_says_enough(void **state) {
    (void)state;
    static const struct {
        uint64_t bytes;
        const char *want;
    } cases[] = {
        { 0, "0.0 KiB" },
        { 1536, "1.5 KiB" },
        { (1024 << 10) - 1024, "1023.0 KiB" },
        { 1024 << 10, "1.0 MiB" },
        { (UINT64_C(10240) << 20) - (1 << 20), "10239.0 MiB" },
        { UINT64_C(10240) << 20, "10.0 GiB" },
        { UINT64_MAX, "17179869184.0 GiB" },
    };
    char text[200], want[200];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tess__advice a = { .n = 1, .n_planned = 1 };
        a.list[0] = (tess__remedy){ .change = { .n = 1, .set = { { "ranks", "4" } } }, .bytes = { 0, cases[i].bytes } };
        tess__advice_text(&a, "no", text, sizeof text);
        snprintf(want, sizeof want, "no. With -n 4: %s.", cases[i].want);
        assert_string_equal(text, want);
    }
}

/* With other ranks too, and not the one that auto would take. */
static void test_advise__a_comm_plugin_that_was_chosen_stays(void **state) {
    (void)state;
    program p = { .ranks = 2, .comm = "gloo" };
    skip_without(can(&p), "comm gloo");
    tess__advice a = advice(&p, 0.8);
    assert_true(names(&a, "ranks", NULL));
    assert_remedies_hold(&p, &a);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(test_advise__##name, clean, clean)
    const struct CMUnitTest tests[] = {
        TEST(a_byte_below_the_peak_is_refused_with_advice_and_the_peak_is_planned),
        TEST(the_message_names_the_changes_and_their_bytes),
        TEST(a_program_that_reads_bf16_is_told_of_it),
        TEST(a_precision_is_offered_without_the_copies_that_it_would_bring),
        TEST(blocks_can_let_go_of_their_activations),
        TEST(strategy_and_sync_are_offered_where_they_are_not_full_and_each),
        TEST(no_unit_gathered_ahead_is_offered_where_that_was_set),
        TEST(changes_come_together_where_one_is_not_enough),
        TEST(more_ranks_are_the_last_resort),
        TEST(ranks_are_not_offered_to_a_program_with_memory_of_its_own),
        TEST(where_nothing_fits_the_least_is_named),
        TEST(the_host_budget_counts_too),
        TEST(the_engine_stays_as_it_was_planned),
        TEST(a_planner_of_the_callers_decides_and_its_times_order),
        TEST(changes_are_spelled_as_they_are_set),
        TEST(where_nothing_fits_that_is_said),
        TEST(amounts_are_in_the_unit_that_says_enough),
        TEST(a_comm_plugin_that_was_chosen_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
