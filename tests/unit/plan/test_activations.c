/* SPDX-License-Identifier: BSD-3-Clause */
/* TESSERA_ACTIVATIONS per block: which blocks a text means, and that auto passes over no cheaper choice that fits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "core/engine/state.h"
#include "core/plan/activations.h"
#include "core/runtime/measure.h"

enum { LAYERS = 5, BLOCKS = LAYERS + 2 };

static int layers = LAYERS; /* of the next plans */

static tess_status nothing(void *user, const tess_block_call *call) {
    (void)user, (void)call;
    return TESS_OK;
}

static void add_block(tess *t, const char *name, uint64_t saved, uint64_t selective, uint64_t elems) {
    char param[48];
    const int64_t shape[] = { (int64_t)elems };
    snprintf(param, sizeof param, "%s.w", name);
    tess_block_options b = { .struct_size = sizeof b, .name = name, .output_bytes = 4096, .saved_bytes = saved };
    b.forward_scratch_bytes = 2048;
    b.backward_scratch_bytes = 6144;
    b.selective_saved_bytes = selective;
    b.selective_scratch_bytes = selective ? 9216 : 0;
    b.forward = b.backward = nothing;
    tess_param_options p = { .struct_size = sizeof p, .name = param, .dtype = TESS_F32, .ndim = 1, .shape = shape };
    assert_int_equal(tess_param_add(t, &p, NULL), TESS_OK);
    assert_int_equal(tess_block_add(t, &b, NULL), TESS_OK);
}

/* Plans a model of so many layers, of which `odd` makes the third larger; TESS_E_PLANNED, or what is wrong. */
static tess_status plan(const char *activations, int odd, tess **out) {
    char name[16];
    tess_options o = { .struct_size = sizeof o, .plan_only = 1, .ranks = 1, .activations = activations };
    o.input_bytes = 64;
    *out = NULL;
    tess_status s = tess_open(&o, out);
    if (s)
        return s;
    add_block(*out, "embed", 0, 0, 640);
    for (int i = 0; i < layers; i++) {
        snprintf(name, sizeof name, "h.%d", i);
        add_block(*out, name, odd && i == 2 ? 90112 : 40960, odd && i == 3 ? 0 : 12288, odd && i == 2 ? 2048 : 1024);
    }
    add_block(*out, "head", 1024, 0, 640);
    return tess_shard(*out, NULL, NULL);
}

static void expect_modes(const char *spec, const char *modes) {
    tess *t;
    assert_int_equal(plan(spec, 0, &t), TESS_E_PLANNED);
    for (int i = 0; i < BLOCKS; i++)
        if ("kros"[tess__activations_of(&t->plan.setup, i)] != modes[i])
            fail_msg("%s: block %d is not %c", spec, i, modes[i]);
    tess_close(t);
}

static void test_activations__a_text_means_blocks(void **state) {
    (void)state;
    expect_modes("keep", "kkkkkkk");
    expect_modes("recompute", "rrrrrrr");
    expect_modes("recompute:h.1", "kkrkkkk");
    expect_modes("recompute:h.*", "krrrrrk");
    expect_modes("selective:h.[0-2],offload:h.4", "ksssk"
                                                  "ok");
    expect_modes("recompute:every=2", "krkrkrk");
    expect_modes("offload,keep:h.3,recompute:every=3", "oroo"
                                                       "roo");
}

/* What a selective block saves is planned as it is measured: less than it saves whole, in the modes that differ. */
static void test_activations__what_is_saved_in_part_is_measured_so(void **state) {
    static const char *const specs[] = { "selective", "keep", "recompute:h.1,selective:h.[2-4]" };
    (void)state;
    for (int i = 0; i < 3; i++) {
        tess *t;
        tess__needs needs = { NULL };
        int whole = 0, in_part = 0;
        assert_int_equal(plan(specs[i], 0, &t), TESS_E_PLANNED);
        assert_int_equal(tess__needs_create(&needs, &t->plan.setup, &t->plan.layout), TESS_OK);
        const tess__program *p = &t->plan.programs[TESS__P_TRAIN];
        for (int32_t b = 0; b < p->n_buffers; b++)
            if (p->buffers[b].role == TESS__SAVED) {
                assert_int_equal(tess__measure(&t->plan, &needs, p, NULL, NULL, TESS__SAVED, p->buffers[b].index),
                                 p->buffers[b].bytes);
                whole += p->buffers[b].bytes == 40960;
                in_part += p->buffers[b].bytes == 12288;
            }
        assert_true((whole > 0) == (i > 0) && (in_part > 0) == (i != 1));
        tess__needs_free(&needs);
        tess_close(t);
    }
}

static void refuse(const char *spec, const char *words) {
    tess *t;
    tess_status s = plan(spec, 0, &t);
    if (s != TESS_E_INVALID || !strstr(tess_last_error(), words) || strchr(tess_last_error(), '\n'))
        fail_msg("'%s': status %d, \"%s\"; expected \"%s\"", spec, s, tess_last_error(), words);
    tess_close(t);
}

static void test_activations__what_means_nothing_is_refused(void **state) {
    (void)state;
    refuse("forget", "'forget' is none of them");
    refuse("keep,", "'' is none of them");
    refuse("recompute:", "'recompute:' says no blocks");
    refuse("recompute:every=0", "does not count from 1");
    refuse("recompute:every=x", "does not count from 1");
    refuse("recompute:every=99999999999", "does not count from 1");
    refuse("recompute:layers.*", "no block is named 'layers.*'; there are embed to head");
    refuse("auto", "expected auto:BYTES, or TESSERA_DEVICE_MEMORY");
    refuse("auto:much", "names no bytes of device memory");
    refuse("auto:0", "names no bytes of device memory");
    refuse("keep,auto:1MiB", "'auto:1MiB' is none of them");
    refuse("auto:1MiB,keep", "'keep' follows auto, which takes offload alone");
    refuse("auto:,offload", "'auto:' names no bytes of device memory");
    refuse("auto,offload", "expected auto:BYTES, or TESSERA_DEVICE_MEMORY");
}

/* ---- auto ---------------------------------------------------------------------------------------------- */
enum { MODES = 4, ALL = 1024 /* MODES to the power of LAYERS */ };
static const char *const names[MODES] = { "keep", "recompute", "selective", "offload" };

typedef struct {
    double work, moved;
    uint64_t bytes;
} outcome;

static outcome outcome_of(const tess *t) {
    outcome o = { 0, tess__activations_moved(&t->plan), tess__planned_bytes(&t->plan, TESS_DOMAIN_DEVICE) };
    for (int b = 0; b < BLOCKS; b++)
        o.work += tess__activations_work(&t->plan, b, tess__activations_of(&t->plan.setup, b));
    return o;
}

static outcome plan_one(const int modes[LAYERS], int odd) {
    char spec[256] = "";
    size_t at = 0;
    tess *t;
    for (int i = 0; i < LAYERS; i++)
        at += (size_t)snprintf(spec + at, sizeof spec - at, "%s%s:h.%d", i ? "," : "", names[modes[i]], i);
    assert_int_equal(plan(spec, odd, &t), TESS_E_PLANNED);
    outcome o = outcome_of(t);
    if (odd && modes[3] == 2)
        o.work = 1e30; /* which is to keep, by a dearer name */
    tess_close(t);
    return o;
}

/* Every way to give the layers one of the first `modes` modes each; returns how many. */
static int plan_all(int odd, int modes, outcome out[ALL]) {
    int all = 1;
    for (int i = 0; i < LAYERS; i++)
        all *= modes;
    for (int n = 0; n < all; n++) {
        int of[LAYERS];
        for (int i = 0, rest = n; i < LAYERS; i++, rest /= modes)
            of[i] = rest % modes;
        out[n] = plan_one(of, odd);
    }
    return all;
}

static int is_cheaper(const outcome *a, const outcome *b) {
    return a->work < b->work || (a->work == b->work && a->moved < b->moved);
}

static void check_budget(const outcome *all, int n_all, int odd, const char *behind, uint64_t budget) {
    char spec[64];
    tess *t, *again;
    snprintf(spec, sizeof spec, "auto:%llu%s", (unsigned long long)budget, behind);
    assert_int_equal(plan(spec, odd, &t), TESS_E_PLANNED);
    outcome chosen = outcome_of(t);
    assert_true(chosen.bytes <= budget);
    for (int n = 0; n < n_all; n++)
        if (is_cheaper(&all[n], &chosen) && all[n].bytes <= budget)
            fail_msg("%s: work %g and %g bytes moved were chosen, %g and %g fit too", spec, chosen.work, chosen.moved,
                     all[n].work, all[n].moved);
    tess_info info = { .struct_size = sizeof info };
    assert_int_equal(tess_info_get(t, &info), TESS_OK);
    assert_int_equal(plan(info.activations, odd, &again), TESS_E_PLANNED); /* what it says is a value of the option */
    assert_int_equal(outcome_of(again).bytes, chosen.bytes);
    assert_int_equal(again->plan.programs[TESS__P_FUSED].hash, t->plan.programs[TESS__P_FUSED].hash);
    tess_close(again);
    tess_close(t);
}

static void check_budgets(int odd, int modes, const char *behind) {
    static outcome all[ALL];
    uint64_t least = UINT64_MAX, most = 0;
    int n_all = plan_all(odd, modes, all);
    for (int n = 0; n < n_all; n++) {
        least = all[n].bytes < least ? all[n].bytes : least;
        most = all[n].bytes > most ? all[n].bytes : most;
    }
    assert_true(most > least + 100000);
    for (uint64_t i = 0; i <= 10; i++)
        check_budget(all, n_all, odd, behind, least + (most - least) * i / 10);
    char spec[64];
    tess *t;
    snprintf(spec, sizeof spec, "auto:%llu%s", (unsigned long long)least - 1, behind);
    assert_int_equal(plan(spec, odd, &t), TESS_E_BUDGET);
    assert_non_null(strstr(tess_last_error(), "fits"));
    assert_int_equal(outcome_of(t).bytes, least); /* left to be read */
    tess_close(t);
}

static void test_activations__auto_passes_over_nothing_cheaper_that_fits(void **state) {
    (void)state;
    check_budgets(0, 3, "");
    check_budgets(1, 3, "");
}

static void test_activations__auto_with_offload_passes_over_nothing_cheaper_that_fits(void **state) {
    (void)state;
    check_budgets(0, 4, ",offload");
    check_budgets(1, 4, ",offload");
}

static void test_activations__auto_with_offload_keeps_to_the_host_budget(void **state) {
    (void)state;
    tess *t;
    assert_int_equal(plan("offload", 0, &t), TESS_E_PLANNED);
    uint64_t device = tess__planned_bytes(&t->plan, TESS_DOMAIN_DEVICE);
    uint64_t host = tess__planned_bytes(&t->plan, TESS_DOMAIN_HOST);
    char spec[64], budget[32];
    tess_close(t);
    snprintf(spec, sizeof spec, "auto:%llu,offload", (unsigned long long)device);
    snprintf(budget, sizeof budget, "%llu", (unsigned long long)host / 2);
    setenv("TESSERA_HOST_MEMORY", budget, 1);
    assert_int_equal(plan(spec, 0, &t), TESS_E_PLANNED);
    assert_true(tess__planned_bytes(&t->plan, TESS_DOMAIN_HOST) <= host / 2);
    assert_true(tess__planned_bytes(&t->plan, TESS_DOMAIN_DEVICE) <= device);
    assert_true(outcome_of(t).work > 0);
    tess_close(t);
    unsetenv("TESSERA_HOST_MEMORY");
}

/* 0, step, 2 step … below n, and n: the next of them. */
static int after(int i, int step, int n) {
    return i + step < n || i == n ? i + step : n;
}

/* The ways to have so many blocks made again and saved in part, both counts in steps. */
static int count_ways(int n, int step, int selective) {
    int ways = 0;
    for (int made = 0; made <= n; made = after(made, step, n))
        for (int part = 0; part <= (selective ? n - made : 0); part = selective ? after(part, step, n - made) : 1)
            ways++;
    return ways;
}

static int compiled;

/* In place of a compiler: nothing fits. */
static tess_status compile_too_large(tess__plan *p, uint64_t bytes[3]) {
    (void)p;
    compiled++;
    bytes[TESS_DOMAIN_DEVICE] = 2;
    bytes[TESS_DOMAIN_HOST] = 0;
    return TESS_OK;
}

/* Where blocks are so many that their choices are too many, the counts of the largest kind of blocks go in steps. */
static void test_activations__auto_takes_steps_where_blocks_are_many(void **state) {
    static const struct { int layers, odd; } cases[] = { { 7, 0 }, { 40, 0 }, { 90, 0 }, { 40, 1 } };
    (void)state;
    for (int i = 0; i < 4; i++) {
        int alike = cases[i].layers - 2 * cases[i].odd, step = 1, ways;
        int others = cases[i].odd ? count_ways(1, 1, 1) * count_ways(1, 1, 0) : 1;
        while ((ways = count_ways(alike, step, 1) * others) > 4096)
            step++;
        char says[80];
        tess *t;
        layers = cases[i].layers;
        snprintf(says, sizeof says, "no choice of %d fits 1 bytes of device memory", ways);
        assert_int_equal(plan("auto:1GiB", cases[i].odd, &t), TESS_E_PLANNED);
        free(t->plan.activations_text);
        t->plan.setup.activation_spec = "auto:1";
        compiled = 0;
        assert_int_equal(tess__activations_choose(&t->plan, compile_too_large), TESS_E_BUDGET);
        assert_int_equal(compiled, ways + 1); /* at last the smallest */
        if (!strstr(tess_last_error(), says))
            fail_msg("%d layers: \"%s\" lacks \"%s\"", layers, tess_last_error(), says);
        tess_close(t);
        layers = LAYERS;
    }
}

int main(void) {
    setenv("TESSERA_LOG", "error", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_activations__a_text_means_blocks),
        cmocka_unit_test(test_activations__what_is_saved_in_part_is_measured_so),
        cmocka_unit_test(test_activations__what_means_nothing_is_refused),
        cmocka_unit_test(test_activations__auto_passes_over_nothing_cheaper_that_fits),
        cmocka_unit_test(test_activations__auto_with_offload_passes_over_nothing_cheaper_that_fits),
        cmocka_unit_test(test_activations__auto_takes_steps_where_blocks_are_many),
        cmocka_unit_test(test_activations__auto_with_offload_keeps_to_the_host_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
