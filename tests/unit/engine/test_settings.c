/* SPDX-License-Identifier: BSD-3-Clause */
/* What an engine makes of its options: each default, the bounds of each number, who wins where program and environment
 * say different things, and the one line about what is wrong. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/engine/state.h"
#include "core/readers/declaration_file.h"
#include <tessera/gpu.h>

static tess t;
static const char *set[16]; /* variables that the test has set */
static int n_set;

static void forget(void) {
    free(t.settings.strategy);
    free(t.settings.optimizer);
    free(t.settings.activations);
    free(t.settings.ledger);
    free(t.settings.detail);
    free(t.settings.detail_values);
    tess__given_use(NULL);
    tess__given_free(&t.settings.given);
    memset(&t, 0, sizeof t);
    t.settings.options.struct_size = sizeof t.settings.options;
    t.comms.world.nranks = t.plan.setup.nranks = 4;
}

static int begin(void **state) {
    (void)state;
    forget();
    while (n_set)
        unsetenv(set[--n_set]);
    return 0;
}

static void variable(const char *name, const char *value) {
    set[n_set++] = name;
    setenv(name, value, 1);
}

/* What the caller of the test has set is not what is tested. */
static int forget_the_callers(void **state) {
    extern char **environ;
    for (char **e = environ; *e;) {
        char name[80];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*e, "="), *e);
        if (strncmp(name, "TESSERA_", 8) == 0)
            unsetenv(name), e = environ;
        else
            e++;
    }
    return begin(state);
}

static tess_status read_them(void) {
    tess__given_free(&t.settings.given);
    assert_int_equal(tess__given_of(&t.settings.options, &t.settings.given), TESS_OK);
    tess__given_use(&t.settings.given);
    return tess__read_options(&t);
}

static void reads(void) {
    if (read_them() != TESS_OK)
        fail_msg("%s", tess_last_error());
}

static void refused(tess_status want, const char *says) {
    assert_int_equal(read_them(), want);
    if (!strstr(tess_last_error(), says))
        fail_msg("\"%s\" lacks \"%s\"", tess_last_error(), says);
    forget();
}

static void test_settings__the_defaults_are_those_of_the_manual(void **state) {
    (void)state;
    reads();
    const tess__setup *s = &t.plan.setup;
    const tess__settings *o = &t.settings;
    assert_true(s->accum == 1 && s->sync_each && s->prefetch == 1 && !s->prefetch_fixed && !s->microbatches);
    assert_true(!s->deterministic && s->graphs && !s->low_copy && !s->snapshot && !s->mirror && !s->norm_first);
    assert_true(!s->step_in_pass && !s->no_clip && !s->repeats && !s->late && !s->base_apart && !s->with_momentum);
    assert_true(s->shard_ranks == 4 && s->replicas == 1 && !s->own_optimizer && !s->n_states);
    assert_true(s->activations == TESS__ACTIVATIONS_KEEP && !s->activation_spec && !s->input_bytes && !s->common_bytes);
    assert_true(!s->ledger_every && !s->audit_every && !s->env.device_budget_bytes && !s->env.host_budget_bytes);
    assert_true(!o->strict && !o->digests_rest && !o->audit_recovers && !o->detail_step && o->spike == 0);
    assert_int_equal(o->on_nan, TESS__NAN_STOP);
    assert_true(!o->ledger && !o->detail && !o->detail_values && o->timeout_ns == INT64_C(300000000000));
    assert_string_equal(o->strategy, "full");
    assert_string_equal(o->optimizer, "adamw");
    assert_string_equal(o->activations, "keep");
    assert_string_equal(o->accum_text, "");
}

static void test_settings__threads_are_the_ranks_share_of_the_cores(void **state) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    char text[16];
    (void)state;
    t.comms.world.nranks = 1; /* of this host none is known: all are here */
    reads();
    assert_int_equal(t.plan.setup.threads, cores);
    snprintf(text, sizeof text, "%ld", cores);
    assert_string_equal(t.settings.threads_text, text);
    forget();
    t.comms.world.nranks = 100000;
    t.comms.world.local_nranks = 1;
    reads();
    assert_int_equal(t.plan.setup.threads, cores);
    forget();
    t.comms.world.local_nranks = 100000;
    reads();
    assert_int_equal(t.plan.setup.threads, 1);
    forget();
    t.comms.world.nranks = 1;
    variable("TESSERA_DETERMINISTIC", "1");
    reads();
    assert_true(t.plan.setup.threads == 1 && t.plan.setup.deterministic);
    variable("TESSERA_THREADS", "1024");
    forget();
    reads();
    assert_int_equal(t.plan.setup.threads, 1024);
    variable("TESSERA_THREADS", "1025");
    refused(TESS_E_INVALID, "TESSERA_THREADS is '1025', expected an integer from 1 to 1024");
    variable("TESSERA_THREADS", "0");
    refused(TESS_E_INVALID, "TESSERA_THREADS is '0', expected an integer from 1 to 1024");
}

static void test_settings__each_variable_is_read(void **state) {
    (void)state;
    variable("TESSERA_SYNC", "end");
    variable("TESSERA_STRICT", "1");
    variable("TESSERA_LOW_COPY", "1");
    variable("TESSERA_AT_REST_DIGESTS", "1");
    variable("TESSERA_ON_AUDIT", "recover");
    variable("TESSERA_TIMEOUT", "1.5");
    variable("TESSERA_PREFETCH", "8");
    variable("TESSERA_DEVICE_MEMORY", "1KiB");
    variable("TESSERA_HOST_MEMORY", "2KiB");
    variable("TESSERA_DISK_MEMORY", "3KiB");
    variable("TESSERA_ACTIVATIONS", "recompute");
    variable("TESSERA_STRATEGY", "hybrid:2");
    variable("TESSERA_OPTIMIZER", "sgd");
    reads();
    const tess__setup *s = &t.plan.setup;
    assert_true(!s->sync_each && s->low_copy && s->prefetch == 8 && s->prefetch_fixed);
    assert_true(t.settings.strict && !s->graphs && t.settings.digests_rest && t.settings.audit_recovers);
    assert_true(t.settings.timeout_ns == INT64_C(1500000000) && s->env.device_budget_bytes == 1024);
    assert_true(s->env.host_budget_bytes == 2048 && s->disk_budget_bytes == 3072);
    assert_true(s->activations == TESS__ACTIVATIONS_RECOMPUTE && !s->activation_spec);
    assert_true(s->shard_ranks == 2 && s->replicas == 2);
    begin(state);
    variable("TESSERA_GRAPHS", "0");
    variable("TESSERA_PREFETCH", "auto");
    variable("TESSERA_ACTIVATIONS", "recompute:b*");
    reads();
    assert_true(!s->graphs && s->prefetch == 1 && !s->prefetch_fixed && !t.settings.strict);
    assert_string_equal(s->activation_spec, "recompute:b*");
    assert_ptr_equal(s->activation_spec, t.settings.activations);
    variable("TESSERA_PREFETCH", "9");
    refused(TESS_E_INVALID, "TESSERA_PREFETCH is '9', expected an integer from 0 to 8");
    variable("TESSERA_PREFETCH", "0");
    reads();
    assert_true(s->prefetch == 0 && s->prefetch_fixed);
}

static void test_settings__a_bad_value_of_any_is_one_line(void **state) {
    static const char *const bad[][2] = {
        { "TESSERA_SYNC", "expected one of each|end" },
        { "TESSERA_ACTIVATIONS", "TESSERA_ACTIVATIONS is" },
        { "TESSERA_CHECKPOINT", "expected one of async|sync" },
        { "TESSERA_DETERMINISTIC", "expected 0, 1," },
        { "TESSERA_STRICT", "expected 0, 1," },
        { "TESSERA_LOW_COPY", "expected 0, 1," },
        { "TESSERA_AT_REST_DIGESTS", "expected 0, 1," },
        { "TESSERA_GRAPHS", "expected 0, 1," },
        { "TESSERA_ON_NAN", "expected one of stop|skip|warn" },
        { "TESSERA_SPIKE", "expected a finite number" },
        { "TESSERA_TIMEOUT", "expected a finite number" },
        { "TESSERA_PREFETCH", "expected an integer from 0 to 8" },
        { "TESSERA_THREADS", "expected an integer from 1" },
        { "TESSERA_ACCUM", "expected an integer from 1 to 16384" },
        { "TESSERA_MIRROR", "expected an integer from 0" },
        { "TESSERA_LEDGER_EVERY", "expected an integer from 1" },
        { "TESSERA_ON_AUDIT", "expected one of stop|recover" },
        { "TESSERA_AUDIT", "expected 0 (off) or 1/K with K from 1 to 1048576" },
        { "TESSERA_DETAIL_STEP", "expected an integer from 1 up" },
        { "TESSERA_DEVICE_MEMORY", "expected bytes" },
        { "TESSERA_DISK_MEMORY", "expected bytes" },
        { "TESSERA_HOST_MEMORY", "expected bytes" },
        { "TESSERA_STRATEGY", "expected full, grad_op" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        begin(state);
        variable(bad[i][0], "-?");
        refused(TESS_E_INVALID, bad[i][1]);
    }
}

static void test_settings__guards(void **state) {
    static const char *const names[] = { "stop", "skip", "warn" };
    for (int i = 0; i < 3; i++) {
        begin(state);
        variable("TESSERA_ON_NAN", names[i]);
        t.settings.options.flags = TESS_OPTIONS_NO_CLIP;
        reads();
        assert_int_equal(t.settings.on_nan, i == 0 ? TESS__NAN_STOP : i == 1 ? TESS__NAN_SKIP : TESS__NAN_WARN);
        assert_int_equal(t.plan.setup.norm_first, i == 1); /* what is skipped must be known before */
        assert_int_equal(t.plan.setup.no_clip, i != 1);
    }
    begin(state);
    variable("TESSERA_SPIKE", "1");
    reads();
    assert_true(t.settings.spike == 1 && t.plan.setup.norm_first);
    variable("TESSERA_SPIKE", "0.5");
    refused(TESS_E_INVALID, "TESSERA_SPIKE is 0.5, expected 0 (off) or a number from 1 up");
    variable("TESSERA_SPIKE", "-1");
    refused(TESS_E_INVALID, "TESSERA_SPIKE is -1, expected");
}

static void test_settings__a_program_s_promises(void **state) {
    static const uint32_t flags[] = { TESS_OPTIONS_STEP_IN_PASS, TESS_OPTIONS_NO_CLIP, TESS_OPTIONS_REPEAT,
                                      TESS_OPTIONS_LATE, TESS_OPTIONS_BASE_APART };
    for (int i = 0; i < 5; i++) {
        begin(state);
        t.settings.options.flags = flags[i];
        t.settings.options.input_bytes = 12;
        reads();
        const tess__setup *s = &t.plan.setup;
        assert_true(s->step_in_pass == (i == 0) && s->no_clip == (i == 1) && s->repeats == (i == 2));
        assert_true(s->late == (i == 3) && (s->base_apart == (i == 4)) && s->input_bytes == 12);
    }
}

/* Snapshots are for programs that save, and unless saves are to wait. */
static void test_settings__checkpoints_need_room_for_a_snapshot(void **state) {
    for (int i = 0; i < 4; i++) {
        begin(state);
        t.settings.options.checkpoint = i & 1;
        variable("TESSERA_CHECKPOINT", i & 2 ? "sync" : "async");
        reads();
        assert_int_equal(t.plan.setup.snapshot, i == 1);
    }
}

static void accumulates(int32_t accum, int32_t microbatches, const char *text) {
    reads();
    assert_int_equal(t.plan.setup.accum, accum);
    assert_int_equal(t.plan.setup.microbatches, microbatches);
    assert_string_equal(t.settings.accum_text, text);
    forget();
}

static void test_settings__microbatches(void **state) {
    (void)state;
    t.settings.options.accum = 3;
    accumulates(3, 0, " (tess_options.accum=3)");
    t.settings.options.microbatches = 8; /* of all ranks */
    accumulates(2, 8, " (tess_options.microbatches=8)");
    t.settings.options.microbatches = 4;
    accumulates(1, 4, "");
    t.settings.options.microbatches = 8; /* twice the same */
    t.settings.options.accum = 2;
    accumulates(2, 8, " (tess_options.microbatches=8)");
    t.settings.options.microbatches = 8;
    t.settings.options.accum = 3;
    refused(TESS_E_INVALID, "tess_options.accum is 3 on 4 ranks and tess_options.microbatches 8: leave accum 0");
    t.settings.options.microbatches = 6;
    refused(TESS_E_INVALID,
            "tess_options.microbatches is 6, which 4 ranks do not divide: take another number of ranks");
    t.settings.options.microbatches = -4;
    refused(TESS_E_INVALID, "tess_options.microbatches is -4, which 4 ranks do not divide");
    t.settings.options.microbatches = 4 << 14; /* the most that accum may be */
    accumulates(1 << 14, 4 << 14, " (tess_options.microbatches=65536)");
    t.settings.options.microbatches = (4 << 14) + 4;
    refused(TESS_E_INVALID, "tess_options.microbatches is 65540, which 4 ranks do not divide");
    t.plan.setup.nranks = 1;
    t.settings.options.microbatches = (1 << 14) + 1;
    refused(TESS_E_INVALID, "tess_options.microbatches is 16385, which 1 rank does not divide");
    variable("TESSERA_DETERMINISTIC", "1");
    t.plan.setup.nranks = 3;
    t.settings.options.microbatches = 9;
    refused(TESS_E_INVALID, "which 3 ranks do not divide into aligned subtrees: take");
    t.plan.setup.nranks = 3; /* only in the end do they keep the tree */
    t.settings.options.microbatches = 12;
    reads();
    assert_true(t.plan.setup.accum == 4 && !t.plan.setup.sync_each);
    forget();
    variable("TESSERA_ACCUM", "5"); /* the user's wins */
    t.settings.options.accum = 7;
    t.settings.options.microbatches = 8;
    accumulates(5, 0, " (TESSERA_ACCUM=5)");
    variable("TESSERA_ACCUM", "16384");
    accumulates(16384, 0, " (TESSERA_ACCUM=16384)");
    variable("TESSERA_ACCUM", "16385");
    refused(TESS_E_INVALID, "TESSERA_ACCUM is '16385', expected an integer from 1 to 16384");
}

static void test_settings__what_a_command_line_gives_wins_over_the_environment(void **state) {
    static const tess_setting accum = { "accum", "3" };
    (void)state;
    variable("TESSERA_ACCUM", "5");
    t.settings.options.settings = &accum;
    t.settings.options.n_settings = 1;
    t.settings.options.flags = TESS_OPTIONS_WIN;
    accumulates(3, 0, " (tess_options.accum=3)");
}

static void test_settings__common_bytes(void **state) {
    static char common[4];
    (void)state;
    t.settings.options.common = common;
    t.settings.options.common_bytes = TESS_CHECKPOINT_BYTES;
    reads();
    assert_int_equal(t.plan.setup.common_bytes, TESS_CHECKPOINT_BYTES);
    forget();
    t.settings.options.common = common;
    t.settings.options.common_bytes = TESS_CHECKPOINT_BYTES + 1;
    refused(TESS_E_INVALID, ": at most ");
    t.settings.options.common_bytes = 4;
    refused(TESS_E_INVALID, "tess_options.common_bytes is 4 and common is null: at most ");
    t.settings.options.common_bytes = 4; /* a plan reads none */
    t.settings.plan_only = 1;
    reads();
    assert_int_equal(t.plan.setup.common_bytes, 4);
}

static void mirror(int32_t want) {
    t.comms.world.rank = 1; /* rank 0 says what is off */
    reads();
    assert_int_equal(t.plan.setup.mirror, want);
    forget();
}

static void test_settings__images_are_for_those_who_can_be_replaced(void **state) {
    static const tess_group_options group = { .struct_size = sizeof group };
    (void)state;
    variable("TESSERA_MIRROR", "3");
    for (int i = 0; i < 4; i++) { /* by the launcher of one host */
        t.settings.options.recover = 1;
        t.comms.world.launched = i & 1;
        t.comms.world.address[0] = i & 2 ? '/' : '1';
        mirror(i == 3 ? 3 : 0);
    }
    t.settings.options.recover = t.settings.plan_only = 1;
    mirror(3);
    t.settings.plan_only = 1; /* a program that does not call tess_recover */
    mirror(0);
    t.settings.options.recover = t.settings.plan_only = t.plan.setup.nranks = 1;
    mirror(0);
    t.settings.options.recover = t.settings.plan_only = 1;
    t.settings.options.group = &group;
    refused(TESS_E_UNSUPPORTED, "TESSERA_MIRROR=3: an engine over a group of ranks");
    t.settings.options.group = &group;
    mirror(0);
    variable("TESSERA_MIRROR", "0");
    t.settings.options.recover = t.settings.plan_only = 1;
    mirror(0);
}

static void test_settings__ledgers_and_details_have_a_place(void **state) {
    (void)state;
    variable("TESSERA_LEDGER_EVERY", "7"); /* without a file it means nothing */
    variable("TESSERA_DETAIL_STEP", "9");
    variable("TESSERA_DETAIL_VALUES", "b.weight");
    reads();
    assert_true(!t.plan.setup.ledger_every && !t.settings.ledger && !t.settings.detail_step && !t.settings.detail);
    assert_null(t.settings.detail_values);
    variable("TESSERA_LEDGER", "a/file");
    variable("TESSERA_DETAIL", "a/folder");
    forget();
    reads();
    assert_true(t.plan.setup.ledger_every == 7 && t.settings.detail_step == 9);
    assert_string_equal(t.settings.ledger, "a/file");
    assert_string_equal(t.settings.detail, "a/folder");
    assert_string_equal(t.settings.detail_values, "b.weight");
    begin(state);
    variable("TESSERA_LEDGER", "a/file");
    variable("TESSERA_DETAIL", "a/folder");
    reads();
    assert_true(t.plan.setup.ledger_every == 1 && t.settings.detail_step == 1 && !t.settings.detail_values);
}

static void test_settings__an_audit_is_a_share_of_one(void **state) {
    static const char *const bad[] = { "2/3", "1/", "1/0", "1/x", "1/3x", "1/-3", "1/ 3", "1/1048577", "1", "/3" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char says[96];
        begin(state);
        variable("TESSERA_AUDIT", bad[i]);
        snprintf(says, sizeof says, "TESSERA_AUDIT is '%s', expected 0 (off) or 1/K with K from 1 to 1048576", bad[i]);
        refused(TESS_E_INVALID, says);
    }
    static const char *const good[] = { "0", "1/1", "1/9", "1/1048576" };
    static const int32_t every[] = { 0, 1, 9, 1048576 };
    for (int i = 0; i < 4; i++) {
        begin(state);
        variable("TESSERA_AUDIT", good[i]);
        reads();
        assert_int_equal(t.plan.setup.audit_every, every[i]);
    }
    forget();
    t.plan.setup.nranks = 1;
    refused(TESS_E_INVALID, "TESSERA_AUDIT=1/1048576: one rank has no other that computes again; take two");
}

static void test_settings__a_program_s_own_optimizer_has_up_to_two_states(void **state) {
    (void)state;
    for (int32_t n = -1; n < 4; n++) {
        for (int own = 0; own < 2; own++) {
            char says[80];
            t.settings.options.own_states = n;
            t.settings.options.optimizer = own ? "own" : "adamw";
            t.settings.options.momentum = own ? 0.5f : 0;
            snprintf(says, sizeof says, "tess_options.own_states is %d, expected 0 to 2", n);
            if (n < 0 || n > 2) {
                refused(TESS_E_INVALID, says);
                continue;
            }
            reads();
            assert_int_equal(t.plan.setup.own_optimizer, own);
            assert_int_equal(t.plan.setup.n_states, own ? n : 0);
            assert_int_equal(t.plan.setup.with_momentum, own);
            forget();
        }
    }
}

static void test_settings__a_plan_says_for_how_many_ranks(void **state) {
    (void)state;
    assert_int_equal(tess__read_plan(&t), TESS_OK); /* none: one rank */
    assert_true(!t.settings.plan_only && t.settings.options.ranks == 1);
    t.settings.options.ranks = 3;
    t.settings.options.plan_only = 1;
    variable("TESSERA_PLAN", "7"); /* a program that plans by itself is not told */
    assert_int_equal(tess__read_plan(&t), TESS_OK);
    assert_true(t.settings.plan_only && t.settings.options.ranks == 3);
    t.settings.options.plan_only = 0;
    assert_int_equal(tess__read_plan(&t), TESS_OK);
    tess__describe_expect(-1);
    assert_true(t.settings.plan_only && t.settings.options.ranks == 7);
    forget();
    variable("TESSERA_PLAN", "0");
    assert_int_equal(tess__read_plan(&t), TESS_E_INVALID);
    tess__describe_expect(-1);
}

static void group_refused(const tess_group_options *o, const char *says) {
    t.settings.options.group = o;
    assert_int_equal(tess__read_group(&t), TESS_E_INVALID);
    if (!strstr(tess_last_error(), says))
        fail_msg("\"%s\" lacks \"%s\"", tess_last_error(), says);
}

static void test_settings__a_group_has_a_short_name_and_a_number_of_ranks(void **state) {
    char name[40] = "the name of a group, 31 letters";
    (void)state;
    tess_group_options o = { .struct_size = sizeof o, .ranks = 0, .name = name };
    assert_int_equal(tess__read_group(&t), TESS_OK);
    assert_null(t.settings.options.group);
    t.settings.options.group = &o;
    assert_int_equal(tess__read_group(&t), TESS_OK);
    assert_ptr_equal(t.settings.options.group, &t.settings.group); /* a copy */
    assert_ptr_equal(t.settings.group.name, t.settings.group_name);
    assert_string_equal(t.settings.group_name, name);
    strcat(name, "!");
    group_refused(&o, "tess_options.group: ranks is 0, the name 'the name of a group, 31 letters!', expected a number "
                      "from 0 up and at most 31 characters");
    strcpy(name, "a\nb");
    group_refused(&o, "the name '");
    strcpy(name, "short");
    o.ranks = -1;
    group_refused(&o, "tess_options.group: ranks is -1, the name 'short'");
    o.ranks = 0;
    o.struct_size--;
    group_refused(&o, "tess_options.group: struct_size is");
    o.struct_size++;
    t.settings.plan_only = 1;
    group_refused(&o, "tess_options.group.ranks is 0, so a plan does not know how many ranks group 'short' has");
    o.ranks = 1;
    o.name = NULL;
    t.settings.options.group = &o;
    assert_int_equal(tess__read_group(&t), TESS_OK);
    assert_string_equal(t.settings.group_name, "");
    t.settings.options.group = NULL;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_settings__the_defaults_are_those_of_the_manual, begin),
        cmocka_unit_test_setup(test_settings__threads_are_the_ranks_share_of_the_cores, begin),
        cmocka_unit_test_setup(test_settings__each_variable_is_read, begin),
        cmocka_unit_test_setup(test_settings__a_bad_value_of_any_is_one_line, begin),
        cmocka_unit_test_setup(test_settings__guards, begin),
        cmocka_unit_test_setup(test_settings__a_program_s_promises, begin),
        cmocka_unit_test_setup(test_settings__checkpoints_need_room_for_a_snapshot, begin),
        cmocka_unit_test_setup(test_settings__microbatches, begin),
        cmocka_unit_test_setup(test_settings__what_a_command_line_gives_wins_over_the_environment, begin),
        cmocka_unit_test_setup(test_settings__common_bytes, begin),
        cmocka_unit_test_setup(test_settings__images_are_for_those_who_can_be_replaced, begin),
        cmocka_unit_test_setup(test_settings__ledgers_and_details_have_a_place, begin),
        cmocka_unit_test_setup(test_settings__an_audit_is_a_share_of_one, begin),
        cmocka_unit_test_setup(test_settings__a_program_s_own_optimizer_has_up_to_two_states, begin),
        cmocka_unit_test_setup(test_settings__a_plan_says_for_how_many_ranks, begin),
        cmocka_unit_test_setup(test_settings__a_group_has_a_short_name_and_a_number_of_ranks, begin),
    };
    return cmocka_run_group_tests(tests, forget_the_callers, begin);
}
