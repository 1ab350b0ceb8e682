/* SPDX-License-Identifier: BSD-3-Clause */
/* test_offload_engine SELECTION: training with an offload plugin; what it promises apart from the engine is checked by
 * `tessera plugins check`. Exits with 77 when the plugin cannot be used here. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/plugin/open.h"
#include "tests/support/toy.h"

static const char *selection;

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
        cmocka_unit_test(test_offload__training_ends_with_the_bits_of_none),
    };
    tess__plugin *plugin = NULL;
    selection = argc > 1 ? argv[1] : "none";
    if (tess__plugin_open(TESS_KIND_OFFLOAD, selection, NULL, &plugin) != TESS_OK) {
        print_message("skipped: %s\n", tess_last_error());
        return 77;
    }
    int code = cmocka_run_group_tests_name(selection, tests, NULL, NULL);
    tess__plugin_close(plugin);
    return code;
}
