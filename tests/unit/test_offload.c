/* Shards, gradients, optimizer state and activations in host memory: the bits stay, and every byte is where the plan
 * says, in both domains. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "support/toy.h"

static const tess_optimizer_options step_options = { .struct_size = sizeof step_options, .lr = 0.01f };

typedef struct {
    const char *variable, *value;
} setting;

static void set(const setting *s, int n) {
    for (int i = 0; i < n; i++)
        if (s[i].value)
            setenv(s[i].variable, s[i].value, 1);
}

static void unset(const setting *s, int n) {
    for (int i = 0; i < n; i++)
        unsetenv(s[i].variable);
}

static tess *open_toy(toy *m, int blocks) {
    tess *t = NULL;
    tess_options o = { .struct_size = sizeof o, .optimizer = "adamw", .input_bytes = TOY_INPUT_BYTES };
    if (tess_open(&o, &t) != TESS_OK)
        fail_msg("%s", tess_last_error());
    assert_int_equal(toy_declare(t, m, blocks), TESS_OK);
    if (tess_shard(t, toy_fill, NULL) != TESS_OK)
        fail_msg("%s", tess_last_error());
    return t;
}

enum { HOOKS, BLOCKS, FUSED, CLIPPED };

/* What was obtained is what was planned, the categories add up to it, and between steps only what rests is live. */
static void check_bytes(tess *t, int how) {
    tess_stats s = { .struct_size = sizeof s };
    assert_int_equal(tess_stats_get(t, &s), TESS_OK);
    for (int d = 1; d < 3; d++) {
        uint64_t sum = 0;
        for (int c = 1; c < 16; c++)
            sum += s.category_peak_bytes[d][c];
        assert_int_equal(s.peak_bytes[d], s.planned_peak_bytes[d]);
        assert_int_equal(sum, s.planned_peak_bytes[d]);
        assert_int_equal(s.live_bytes[d], s.resting_bytes[d]);
        uint64_t planned_live = sum - s.category_peak_bytes[d][TESS_CAT_FRAGMENTATION];
        assert_true(t->live_peak[d] <= planned_live);
        if (how == CLIPPED) /* runs every program but the fused one */
            assert_int_equal(t->live_peak[d], planned_live);
    }
}

static tess_status train_one(tess *t, toy *m, int how, int accum, int step) {
    tess_optimizer_options o = step_options;
    o.clip_norm = how == CLIPPED ? 0.002f : 0;
    tess_status s = TESS_OK;
    double loss;
    for (int k = 0; !s && k < accum; k++) {
        int64_t g = (int64_t)step * accum + k;
        int last = k == accum - 1;
        s = how == HOOKS ? toy_pass(t, m, TESS_PASS_TRAIN, g, &loss)
                         : toy_run(t, TESS_PASS_TRAIN, g, how == FUSED && last ? &o : NULL, &loss);
    }
    return s || how == FUSED ? s : tess_step(t, &o);
}

static uint64_t digest_of(const setting *settings, int n, int how) {
    toy m;
    uint64_t digest = 0;
    double loss;
    set(settings, n);
    const char *accum = getenv("TESSERA_ACCUM");
    tess *t = open_toy(&m, how != HOOKS);
    for (int i = 0; i < 3; i++) {
        if (train_one(t, &m, how, accum ? atoi(accum) : 1, i) != TESS_OK)
            fail_msg("%s", tess_last_error());
        tess_status s =
            how == HOOKS ? toy_pass(t, &m, TESS_PASS_EVAL, 99, &loss) : toy_run(t, TESS_PASS_EVAL, 99, NULL, &loss);
        assert_int_equal(s, TESS_OK);
    }
    assert_int_equal(toy_digest(t, &digest), TESS_OK);
    check_bytes(t, how);
    assert_int_equal(tess_close(t), TESS_OK);
    unset(settings, n);
    return digest;
}

/* ---- the product of what may combine at one rank ---- */

static const char *const offloads[] = {
    "none",           "cpu", "cpu:params", "cpu:grads", "cpu:grads,optimizer", "cpu:optimizer", "cpu:fraction=0.5",
    "cpu:pinned=8KiB"
};
static const char *const activations[] = { "keep", "recompute" };
static const char *const strategies[] = { "full", "grad_op", "none" };
static const char *const precisions[] = { "fp32", "bf16" };
static const struct {
    const char *accum, *sync, *deterministic;
} sums[] = { { NULL, NULL, NULL }, { "3", "each", NULL }, { "3", "end", NULL }, { "4", "each", "1" } };

#define COUNT(array) (int)(sizeof(array) / sizeof((array)[0]))

static void test_offload__no_combination_changes_bits_or_breaks_the_plan(void **state) {
    (void)state;
    for (int p = 0; p < COUNT(precisions); p++)
        for (int k = 0; k < COUNT(sums); k++)
            for (int how = p ? BLOCKS : HOOKS; how <= CLIPPED; how++) { /* the toy's hooks read fp32 only */
                uint64_t plain = 0;
                for (int o = 0; o < COUNT(offloads); o++)
                    for (int a = 0; a < (how == HOOKS ? 1 : COUNT(activations)); a++)
                        for (int s = 0; s < COUNT(strategies); s++) {
                            const setting settings[] = {
                                { "TESSERA_PRECISION", precisions[p] },
                                { "TESSERA_OFFLOAD", offloads[o] },
                                { "TESSERA_ACTIVATIONS", activations[a] },
                                { "TESSERA_STRATEGY", strategies[s] },
                                { "TESSERA_ACCUM", sums[k].accum },
                                { "TESSERA_SYNC", sums[k].sync },
                                { "TESSERA_DETERMINISTIC", sums[k].deterministic },
                            };
                            uint64_t digest = digest_of(settings, COUNT(settings), how);
                            plain = plain ? plain : digest;
                            if (digest != plain)
                                fail_msg("%s %s %s %s accum %s %s how %d: other bits", precisions[p], offloads[o],
                                         activations[a], strategies[s], sums[k].accum, sums[k].sync, how);
                        }
            }
}

/* ---- places ---- */

static uint64_t resting(const char *offload, uint32_t domain, uint32_t category) {
    toy m;
    uint64_t bytes = 0;
    setenv("TESSERA_OFFLOAD", offload, 1);
    tess *t = open_toy(&m, 1);
    for (int32_t i = 0; i < t->resident.n_buffers; i++)
        if (t->resident.buffers[i].domain == domain && t->resident.buffers[i].category == category)
            bytes += t->resident.buffers[i].bytes;
    assert_int_equal(tess_close(t), TESS_OK);
    unsetenv("TESSERA_OFFLOAD");
    return bytes;
}

static void test_offload__what_is_named_rests_on_the_host_and_nothing_else(void **state) {
    (void)state;
    uint64_t params = resting("none", 1, TESS_CAT_SHARD_PARAM), grads = resting("none", 1, TESS_CAT_SHARD_GRAD),
             states = resting("none", 1, TESS_CAT_OPTIMIZER);
    assert_true(params > 0 && grads > 0 && grads < params && states == 2 * grads); /* frozen: no gradient */
    assert_int_equal(resting("cpu", 2, TESS_CAT_SHARD_PARAM), params);
    assert_int_equal(resting("cpu", 2, TESS_CAT_SHARD_GRAD), grads);
    assert_int_equal(resting("cpu", 2, TESS_CAT_OPTIMIZER), states);
    assert_int_equal(resting("cpu", 1, TESS_CAT_SHARD_PARAM), 0);
    assert_int_equal(resting("cpu:optimizer", 2, TESS_CAT_OPTIMIZER), states);
    assert_int_equal(resting("cpu:optimizer", 2, TESS_CAT_SHARD_PARAM), 0);
    assert_int_equal(resting("cpu:optimizer", 1, TESS_CAT_SHARD_GRAD), grads);
    assert_int_equal(resting("cpu:fraction=0", 2, TESS_CAT_SHARD_PARAM), 0);
    uint64_t half = resting("cpu:fraction=0.5", 2, TESS_CAT_SHARD_PARAM);
    assert_true(half > 0 && half < params);
}

/* The page-locked budget: what was locked is within it, and the rest rests in pageable memory. */
static void test_offload__locked_memory_stays_within_the_budget(void **state) {
    (void)state;
    toy m;
    setenv("TESSERA_OFFLOAD", "cpu:pinned=4KiB", 1);
    tess *t = open_toy(&m, 1);
    uint64_t locked = t->resident.step_bytes[TESS_DOMAIN_HOST], pageable = t->resident.pageable_bytes;
    assert_true(locked > 0 && locked <= 4096);
    assert_true(pageable > 0);
    assert_int_equal(t->arena_bytes[TESS_DOMAIN_HOST][TESS__RESIDENT], 4096);
    assert_int_equal(t->arenas[TESS_DOMAIN_HOST][TESS__PAGEABLE].memory.mem, TESS_MEM_HOST);
    assert_int_equal(tess_close(t), TESS_OK);
    setenv("TESSERA_OFFLOAD", "cpu:pinned=0", 1);
    t = open_toy(&m, 1);
    assert_int_equal(t->arena_bytes[TESS_DOMAIN_HOST][TESS__RESIDENT], 0);
    assert_int_equal(t->resident.pageable_bytes, locked + pageable);
    assert_int_equal(tess_close(t), TESS_OK);
    unsetenv("TESSERA_OFFLOAD");
}

static void test_offload__host_memory_beyond_its_budget_is_refused(void **state) {
    (void)state;
    toy m;
    tess *t = NULL;
    setenv("TESSERA_OFFLOAD", "cpu", 1);
    setenv("TESSERA_HOST_MEMORY", "4KiB", 1);
    tess_options o = { .struct_size = sizeof o, .optimizer = "adamw", .input_bytes = TOY_INPUT_BYTES };
    assert_int_equal(tess_open(&o, &t), TESS_OK);
    assert_int_equal(toy_declare(t, &m, 1), TESS_OK);
    assert_int_equal(tess_shard(t, toy_fill, NULL), TESS_E_BUDGET);
    assert_non_null(strstr(tess_last_error(), "TESSERA_HOST_MEMORY"));
    tess_close(t);
    unsetenv("TESSERA_HOST_MEMORY");
    unsetenv("TESSERA_OFFLOAD");
}

static tess_status sum_up(void *user, const tess_range *r, void *data) {
    double *sum = user;
    for (uint64_t i = 0; i < r->elems; i++)
        *sum += ((const float *)data)[i];
    return TESS_OK;
}

/* Gradients, moments and the norm are read from wherever they rest. */
static void test_offload__gradients_moments_and_norm_read_the_same(void **state) {
    (void)state;
    static const char *const where[] = { "none", "cpu" };
    double seen[2][4], loss;
    for (int i = 0; i < 2; i++) {
        toy m;
        float norm;
        setenv("TESSERA_OFFLOAD", where[i], 1);
        tess *t = open_toy(&m, 0);
        memset(seen[i], 0, sizeof seen[i]);
        assert_int_equal(toy_pass(t, &m, TESS_PASS_TRAIN, 0, &loss), TESS_OK);
        assert_int_equal(tess_grad_norm(t, &norm), TESS_OK);
        assert_int_equal(tess_each(t, TESS_OF_GRAD, sum_up, &seen[i][0]), TESS_OK);
        assert_int_equal(tess_each_full(t, TESS_OF_GRAD, sum_up, &seen[i][1]), TESS_OK);
        assert_int_equal(tess_step(t, &step_options), TESS_OK);
        assert_int_equal(tess_each(t, TESS_OF_MOMENT2, sum_up, &seen[i][2]), TESS_OK);
        assert_int_equal(tess_close(t), TESS_OK);
        seen[i][3] = norm;
        assert_true(norm > 0 && seen[i][2] > 0);
    }
    unsetenv("TESSERA_OFFLOAD");
    assert_memory_equal(seen[0], seen[1], sizeof seen[0]);
}

/* ---- settings ---- */

static void refuse(const char *offload, const char *what, const char *word) {
    tess *t = NULL;
    tess_options o = { .struct_size = sizeof o };
    setenv("TESSERA_OFFLOAD", offload, 1);
    if (what)
        setenv("TESSERA_OFFLOAD_WHAT", what, 1);
    assert_int_equal(tess_open(&o, &t), TESS_E_INVALID);
    if (!strstr(tess_last_error(), word))
        fail_msg("\"%s\" does not say \"%s\"", tess_last_error(), word);
    unsetenv("TESSERA_OFFLOAD_WHAT");
    unsetenv("TESSERA_OFFLOAD");
}

static void test_offload__bad_settings_name_what_was_expected(void **state) {
    (void)state;
    refuse("cpu:everything", NULL, "\"everything\" is no setting");
    refuse("cpu:fraction=1.5", NULL, "fraction is \"1.5\", expected a number from 0 to 1");
    refuse("cpu:fraction=.", NULL, "expected a number from 0 to 1");
    refuse("cpu:fraction=1e0", NULL, "expected a number from 0 to 1");
    refuse("cpu:pinned=1MB", NULL, "pinned is \"1MB\"");
    refuse("cpu:pinned=99999999999999999999", NULL, "pinned is");
    refuse("cpu", "params,fraction=0.5", "TESSERA_OFFLOAD_WHAT");
    refuse("cpu", "moments", "\"moments\" is no setting");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_offload__no_combination_changes_bits_or_breaks_the_plan),
        cmocka_unit_test(test_offload__what_is_named_rests_on_the_host_and_nothing_else),
        cmocka_unit_test(test_offload__locked_memory_stays_within_the_budget),
        cmocka_unit_test(test_offload__host_memory_beyond_its_budget_is_refused),
        cmocka_unit_test(test_offload__gradients_moments_and_norm_read_the_same),
        cmocka_unit_test(test_offload__bad_settings_name_what_was_expected),
    };
    return cmocka_run_group_tests_name("offload", tests, NULL, NULL);
}
