/* test_offload_suite SELECTION: what every offload plugin promises. Exits with 77 when the plugin cannot be used here.
 */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loader.h"
#include "support/toy.h"

enum { UNITS = 23, PER_UNIT = 4, N = UNITS * PER_UNIT + 1 };

static const tess_offload_ops *ops;
static void *ctx;
static const char *selection;

/* ---- place, called as planning does ---- */

static const struct {
    uint32_t region, index;
} of_unit[PER_UNIT] = {
    { TESS_REGION_MASTER, 0 }, { TESS_REGION_GRAD, 0 }, { TESS_REGION_STATE, 0 }, { TESS_REGION_STATE, 1 }
};

static uint32_t make_regions(tess_region *out) {
    for (int i = 0; i < N; i++) {
        int unit = i / PER_UNIT, k = i % PER_UNIT;
        uint64_t elems = 64 * (uint64_t)(1 + unit * unit);
        out[i] = (tess_region){ .struct_size = sizeof *out,
                                .region = i == N - 1 ? TESS_REGION_ACTIVATION : of_unit[k].region,
                                .dtype = TESS_F32,
                                .index = of_unit[k].index,
                                .unit = i == N - 1 ? -1 : unit,
                                .group = i == N - 1 ? -1 : unit,
                                .elems = elems,
                                .bytes = elems * 4 };
    }
    return N;
}

static tess_plan_env environment(int32_t nranks) {
    return (tess_plan_env){ .struct_size = sizeof(tess_plan_env),
                            .mem = TESS_MEM_HOST,
                            .nranks = nranks,
                            .ranks_per_host = nranks,
                            .in_flight = 1 };
}

static void place(const tess_region *regions, uint32_t n, tess_placement *out, int garbage) {
    tess_plan_env env = environment(4);
    tess_error e = { .struct_size = sizeof e };
    memset(out, garbage, n * sizeof *out);
    for (uint32_t i = 0; i < n; i++)
        out[i].struct_size = sizeof *out;
    if (ops->place(ctx, &env, regions, n, out, &e) != TESS_OK)
        fail_msg("place: %s", e.message);
}

static void test_offload__placing_is_pure_and_complete(void **state) {
    (void)state;
    tess_region regions[N];
    tess_placement a[N], b[N];
    uint32_t n = make_regions(regions);
    place(regions, n, a, 0x5a);
    place(regions, n, b, 0xa5);
    assert_memory_equal(a, b, sizeof a); /* nothing left as it was, struct_size among it */
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(a[i].struct_size, sizeof a[i]);
    assert_int_equal(ops->place(ctx, &(tess_plan_env){ 0 }, NULL, 0, NULL, NULL), TESS_OK);
}

static void test_offload__sizes_fit_the_place(void **state) {
    (void)state;
    tess_region regions[N];
    tess_placement p[N];
    uint32_t n = make_regions(regions);
    place(regions, n, p, 0);
    for (uint32_t i = 0; i < n; i++) {
        assert_in_range(p[i].rest, TESS_REST_DEVICE, TESS_REST_PLUGIN);
        assert_true((p[i].align & (p[i].align - 1)) == 0);
        if (p[i].rest == TESS_REST_HOST)
            assert_true(p[i].host_bytes >= regions[i].bytes);
        if (p[i].rest == TESS_REST_DEVICE)
            assert_true(p[i].host_bytes == 0 && p[i].storage_bytes == 0);
        assert_true(p[i].pinned_bytes <= p[i].host_bytes);
        if (p[i].rest == TESS_REST_PLUGIN) /* then it moves things itself */
            assert_true(TESS_CAN(tess_offload_ops, ops, post) && TESS_CAN(tess_offload_ops, ops, step));
    }
    for (int i = 1; i < N - 1; i++) /* the states of a unit are one thing */
        if (regions[i].region == TESS_REGION_STATE && regions[i].index == 1)
            assert_int_equal(p[i].rest, p[i - 1].rest);
}

/* Structs of a later core are longer: walked by their size, the rest of an answer zeroed. */
static void test_offload__longer_structs_are_walked_by_their_size(void **state) {
    (void)state;
    struct {
        tess_region r;
        uint64_t later[3];
    } regions[N];
    struct {
        tess_placement p;
        uint64_t later[2];
    } out[N];
    tess_region plain[N];
    tess_placement expected[N];
    tess_plan_env env = environment(4);
    uint32_t n = make_regions(plain);
    place(plain, n, expected, 0);
    memset(regions, 0xee, sizeof regions);
    memset(out, 0xdd, sizeof out);
    for (uint32_t i = 0; i < n; i++) {
        regions[i].r = plain[i];
        regions[i].r.struct_size = sizeof regions[i];
        out[i].p.struct_size = sizeof out[i];
    }
    assert_int_equal(ops->place(ctx, &env, &regions[0].r, n, &out[0].p, NULL), TESS_OK);
    for (uint32_t i = 0; i < n; i++) {
        assert_true(out[i].later[0] == 0 && out[i].later[1] == 0);
        assert_int_equal(out[i].p.struct_size, sizeof out[i]);
        out[i].p.struct_size = sizeof expected[i];
        assert_memory_equal(&out[i].p, &expected[i], sizeof expected[i]);
    }
}

/* ---- in the engine ---- */

static tess *open_toy(const char *offload, toy *m, int blocks) {
    tess *t = NULL;
    tess_options o = { .struct_size = sizeof o, .optimizer = "adam", .input_bytes = TOY_INPUT_BYTES };
    setenv("TESSERA_OFFLOAD", offload, 1);
    if (tess_open(&o, &t) != TESS_OK || toy_declare(t, m, blocks) != TESS_OK ||
        tess_shard(t, toy_fill, NULL) != TESS_OK)
        fail_msg("%s: %s", offload, tess_last_error());
    unsetenv("TESSERA_OFFLOAD");
    return t;
}

/* Three steps and an evaluation; the bytes are checked on the way. */
static uint64_t digest_of(const char *offload, int blocks, float clip) {
    const tess_optimizer_options step = { .struct_size = sizeof step, .lr = 0.01f, .clip_norm = clip };
    tess_stats s = { .struct_size = sizeof s };
    toy m;
    double loss;
    uint64_t digest = 0;
    tess *t = open_toy(offload, &m, blocks);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(blocks ? toy_run(t, TESS_PASS_TRAIN, i, &step, &loss)
                                : toy_pass(t, &m, TESS_PASS_TRAIN, i, &loss),
                         TESS_OK);
        if (!blocks)
            assert_int_equal(tess_step(t, &step), TESS_OK);
    }
    assert_int_equal(blocks ? toy_run(t, TESS_PASS_EVAL, 9, NULL, &loss) : toy_pass(t, &m, TESS_PASS_EVAL, 9, &loss),
                     TESS_OK);
    assert_int_equal(toy_digest(t, &digest), TESS_OK);
    assert_int_equal(tess_stats_get(t, &s), TESS_OK);
    for (int d = 1; d < 3; d++) {
        assert_int_equal(s.peak_bytes[d], s.planned_peak_bytes[d]);
        assert_int_equal(s.live_bytes[d], s.resting_bytes[d]);
    }
    assert_int_equal(tess_close(t), TESS_OK);
    return digest;
}

static void test_offload__training_ends_with_the_bits_of_none(void **state) {
    (void)state;
    for (int blocks = 0; blocks < 2; blocks++)
        for (int clip = 0; clip < 2; clip++)
            assert_int_equal(digest_of(selection, blocks, clip ? 0.002f : 0),
                             digest_of("none", blocks, clip ? 0.002f : 0));
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_offload__placing_is_pure_and_complete),
        cmocka_unit_test(test_offload__sizes_fit_the_place),
        cmocka_unit_test(test_offload__longer_structs_are_walked_by_their_size),
        cmocka_unit_test(test_offload__training_ends_with_the_bits_of_none),
    };
    tess__plugin *plugin = NULL;
    selection = argc > 1 ? argv[1] : "none";
    if (tess__plugin_open(TESS_KIND_OFFLOAD, selection, NULL, &plugin) != TESS_OK) {
        print_message("skipped: %s\n", tess_last_error());
        return 77;
    }
    ops = plugin->ops;
    ctx = plugin->ctx;
    int code = cmocka_run_group_tests_name(selection, tests, NULL, NULL);
    tess__plugin_close(plugin);
    return code;
}
