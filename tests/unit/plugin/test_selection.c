/* SPDX-License-Identifier: BSD-3-Clause */
/* The plugins of an engine: which are opened, in which order, by which text; and what is closed in the end. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "core/base/crash.h"
#include "core/base/options.h"
#include "core/base/status.h"
#include "core/plugin/auto_comm.h"
#include "core/plugin/selection.h"
#include "tests/unit/counted.h"
#include "tests/unit/logged.h"
#include "tests/unit/said.h"

static struct {
    const char *text[TESS__N_KINDS]; /* of each kind's variable; null: unset */
    uint32_t fails;                  /* which kind */
    tess_status describe, choose;
    const char *optimizer_path;
} world;
static tess__plugin opened[TESS__N_KINDS];
static tess__selection x;

static const char *option_or(const char *key, const char *fallback) {
    for (uint32_t kind = 1; kind < TESS__N_KINDS; kind++)
        if (strcmp(tess__kind_name(kind), key) == 0)
            return world.text[kind] ? world.text[kind] : fallback;
    fail_msg("no kind: %s", key);
    return NULL;
}
static tess_status describe(void *ctx, int32_t device, tess_device_info *out, tess_error *e) {
    assert_true(ctx == &opened[TESS_KIND_DEVICE] && device == -1);
    assert_true(out->struct_size == sizeof *out && e->struct_size == sizeof *e);
    out->mem = TESS_MEM_CUDA;
    snprintf(e->message, sizeof e->message, "GPU 0: off");
    return world.describe;
}
static tess_status open_plugin(uint32_t kind, const char *selection, const tess_host *h, tess__plugin **out) {
    static const tess_device_ops ops = { .describe = describe };
    tess__plugin *p = &opened[kind];
    assert_ptr_equal(h, &x.host);
    say("open %s %s; ", tess__kind_name(kind), selection);
    *p = (tess__plugin){ .kind = kind, .ops = &ops, .ctx = p };
    snprintf(p->name, sizeof p->name, "%.8s", selection);
    if (kind == TESS_KIND_OPTIMIZER && world.optimizer_path)
        snprintf(p->path, sizeof p->path, "%s", world.optimizer_path);
    if (kind == world.fails)
        return tess__fail(TESS_E_VERSION, "it is old");
    *out = p;
    return TESS_OK;
}
static tess_status choose(const tess_host *h, const tess_plan_env *env, tess__plugin **out) {
    assert_true(h == &x.host && env->struct_size == sizeof *env && env->mem == TESS_MEM_CUDA);
    assert_true(env->device_budget_bytes == 0 && env->in_flight == 0);
    say("choose among %d, %d on a host; ", env->nranks, env->ranks_per_host);
    if (world.choose)
        return world.choose;
    strcpy(opened[TESS_KIND_COMM].name, "shm");
    *out = &opened[TESS_KIND_COMM];
    return TESS_OK;
}
static void close_plugin(tess__plugin *p) {
    if (p)
        say("close %s; ", tess__kind_name((uint32_t)(p - opened)));
}
#define tess__option_or option_or
#define tess__plugin_open open_plugin
#define tess__comm_choose choose
#define tess__plugin_close close_plugin
#define tess__crash_watch() say("watch; ")
#define tess__crash_unwatch() say("unwatch; ")
#include "core/plugin/selection.c"

static int begin(void **state) {
    (void)state;
    memset(&world, 0, sizeof world);
    memset(&logged, 0, sizeof logged);
    memset(&x, 0, sizeof x);
    memset(&counted, 0, sizeof counted);
    said_so_far[0] = 0;
    return 0;
}

static void closes(const char *said) {
    said_so_far[0] = 0;
    tess__selection_close(&x);
    expect_said(said);
    assert_int_equal(counted.live, 0);
}

#define FIRST "open device cpu; "
#define REST "open precision fp32; open offload none; open wrap scopes; "
#define ALL "close comm; close offload; close precision; close wrap; close device; "

static void test_selection__one_of_each_kind_is_opened_the_device_first(void **state) {
    (void)state;
    static const char *const texts[] = { "cpu", "shm", "fp32", "none", "scopes", "adamw" };
    static const uint32_t kinds[] = { TESS_KIND_DEVICE,  TESS_KIND_COMM, TESS_KIND_PRECISION,
                                      TESS_KIND_OFFLOAD, TESS_KIND_WRAP, TESS_KIND_OPTIMIZER };
    assert_int_equal(tess__selection_open(&x, 4, 2, 1), TESS_OK);
    expect_said(FIRST "choose among 4, 2 on a host; " REST "open optimizer adamw; ");
    for (int i = 0; i < 6; i++) {
        assert_ptr_equal(x.plugins[kinds[i]], &opened[kinds[i]]);
        assert_string_equal(x.text[kinds[i]], texts[i]);
    }
    assert_true(x.comm_picked && !x.watches_crashes);
    expect_logged(1, TESS_LOG_INFO, "comm=auto picked shm for 4 ranks, 2 of them on one host");
    closes(ALL "close optimizer; ");
    expect_logged(0, 0, "");
}

static void test_selection__the_users_texts_count(void **state) {
    (void)state;
    world.text[TESS_KIND_COMM] = "gloo:eth0", world.text[TESS_KIND_DEVICE] = "cuda",
    world.text[TESS_KIND_WRAP] = "size:9";
    world.text[TESS_KIND_OPTIMIZER] = "muon", world.text[TESS_KIND_OFFLOAD] = "cpu",
    world.text[TESS_KIND_PRECISION] = "bf16";
    world.optimizer_path = "/p/muon.so";
    assert_int_equal(tess__selection_open(&x, 4, 2, 1), TESS_OK);
    expect_said("open device cuda; open comm gloo:eth0; open precision bf16; open offload cpu; open wrap size:9; "
                "open optimizer muon; watch; ");
    assert_true(!x.comm_picked && x.watches_crashes);
    assert_string_equal(x.text[TESS_KIND_COMM], "gloo:eth0");
    expect_logged(0, 0, "");
    closes("unwatch; " ALL "close optimizer; ");
    assert_false(x.watches_crashes);
}

static void test_selection__who_picks_is_said_once_and_not_of_one_rank(void **state) {
    (void)state;
    static const struct {
        int32_t ranks;
        int announce, said;
    } cases[] = { { 1, 1, 0 }, { 2, 0, 0 }, { 2, 1, 1 }, { 1, 0, 0 } };
    for (int i = 0; i < 4; i++) {
        begin(NULL);
        world.text[TESS_KIND_COMM] = i % 2 ? "auto" : NULL;
        assert_int_equal(tess__selection_open(&x, cases[i].ranks, 1, cases[i].announce), TESS_OK);
        assert_int_equal(logged.n, cases[i].said);
        assert_true(x.comm_picked);
        closes(ALL "close optimizer; ");
    }
}

static void test_selection__no_optimizer_is_no_plugin(void **state) {
    (void)state;
    static const char *const texts[] = { "none", "own" };
    for (int i = 0; i < 2; i++) {
        begin(NULL);
        world.text[TESS_KIND_OPTIMIZER] = texts[i];
        assert_int_equal(tess__selection_open(&x, 1, 1, 0), TESS_OK);
        expect_said(FIRST "choose among 1, 1 on a host; " REST);
        assert_true(!x.plugins[TESS_KIND_OPTIMIZER] && !x.text[TESS_KIND_OPTIMIZER] && !x.watches_crashes);
        closes(ALL);
    }
}

static void test_selection__what_was_opened_until_a_failure_stays(void **state) {
    (void)state;
    static const struct {
        uint32_t fails;
        const char *said, *closed;
    } cases[] = {
        { TESS_KIND_DEVICE, FIRST, "" },
        { TESS_KIND_COMM, FIRST "open comm x; ", "close device; " },
        { TESS_KIND_PRECISION, FIRST "open comm x; open precision fp32; ", "close comm; close device; " },
        { TESS_KIND_OFFLOAD, FIRST "open comm x; open precision fp32; open offload none; ",
          "close comm; close precision; close device; " },
        { TESS_KIND_WRAP, FIRST "open comm x; " REST, "close comm; close offload; close precision; close device; " },
        { TESS_KIND_OPTIMIZER, FIRST "open comm x; " REST "open optimizer adamw; ", ALL },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        begin(NULL);
        world.text[TESS_KIND_COMM] = "x";
        world.fails = cases[i].fails;
        assert_int_equal(tess__selection_open(&x, 2, 1, 1), TESS_E_VERSION);
        expect_said(cases[i].said);
        closes(cases[i].closed);
    }
    begin(NULL);
    world.describe = TESS_E_SYSTEM;
    assert_int_equal(tess__selection_open(&x, 2, 1, 1), TESS_E_SYSTEM);
    assert_string_equal(tess_last_error(), "device cpu: GPU 0: off");
    expect_said(FIRST);
    closes("close device; ");
    begin(NULL);
    world.choose = TESS_E_INVALID;
    assert_int_equal(tess__selection_open(&x, 2, 1, 1), TESS_E_INVALID);
    expect_said(FIRST "choose among 2, 1 on a host; ");
    closes("close device; ");
}

static void test_selection__without_memory_for_a_name_it_fails(void **state) {
    (void)state;
    for (int n = 1; n <= 6; n++) {
        begin(NULL);
        counted.refuse = n;
        assert_int_equal(tess__selection_open(&x, 2, 1, 0), TESS_E_NOMEM);
        assert_string_equal(tess_last_error(), "no memory for the name of a plugin");
        said_so_far[0] = 0;
        tess__selection_close(&x);
        assert_int_equal(counted.live, 0);
    }
}

static void test_selection__what_plugins_keep_is_said(void **state) {
    (void)state;
    atomic_store(&x.book.live[TESS_DOMAIN_HOST], 7);
    atomic_store(&x.book.live[TESS_DOMAIN_DEVICE], 70);
    closes("");
    expect_logged(1, TESS_LOG_WARNING, "the plugins have not given back 7 bytes of host memory");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_selection__one_of_each_kind_is_opened_the_device_first, begin),
        cmocka_unit_test_setup(test_selection__the_users_texts_count, begin),
        cmocka_unit_test_setup(test_selection__who_picks_is_said_once_and_not_of_one_rank, begin),
        cmocka_unit_test_setup(test_selection__no_optimizer_is_no_plugin, begin),
        cmocka_unit_test_setup(test_selection__what_was_opened_until_a_failure_stays, begin),
        cmocka_unit_test_setup(test_selection__without_memory_for_a_name_it_fails, begin),
        cmocka_unit_test_setup(test_selection__what_plugins_keep_is_said, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
