/* SPDX-License-Identifier: BSD-3-Clause */
/* Two reckonings of each buffer's bytes, by the plan and by what measures while it runs, agree for every way to train.
 */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/log.h"
#include "core/engine/state.h"
#include <tessera/gpu.h>
#include "measured.h"
#include "tests/support/toy.h"
#include "tests/unit/drawn.h"

typedef struct {
    const char *name, *value;
} setting;

/* Each of these alone and, by a seed, some of them together. */
static const setting settings[] = {
    { "TESSERA_STRATEGY", "grad_op" },
    { "TESSERA_STRATEGY", "none" },
    { "TESSERA_STRATEGY", "hybrid:2" },
    { "TESSERA_PRECISION", "bf16" },
    { "TESSERA_PRECISION", "bf16:grad=bf16" },
    { "TESSERA_OFFLOAD", "cpu" },
    { "TESSERA_OFFLOAD", "cpu:params" },
    { "TESSERA_ACCUM", "2" },
    { "TESSERA_ACCUM", "4" },
    { "TESSERA_SYNC", "end" },
    { "TESSERA_DETERMINISTIC", "1" },
    { "TESSERA_ACTIVATIONS", "recompute" },
    { "TESSERA_ACTIVATIONS", "offload" },
    { "TESSERA_MIRROR", "2" },
    { "TESSERA_OPTIMIZER", "sgd" },
    { "TESSERA_PREFETCH", "0" },
    { "TESSERA_PREFETCH", "3" },
    { "TESSERA_WRAP", "none" },
    { "TESSERA_WRAP", "size:100" },
    { "TESSERA_LOW_COPY", "1" },
    { "TESSERA_PRECISION", "fp16" },
    { "TESSERA_PRECISION", "wire8" },
    { "TESSERA_OPTIMIZER", "muon:adamw=none" },
    { "TESSERA_OPTIMIZER", "adamw8bit:least=0" },
    { "TESSERA_AT_REST_DIGESTS", "1" },
    { "TESSERA_LEDGER", "/dev/null" },
    { "TESSERA_AUDIT", "1/3" },
};
enum { N_SETTINGS = sizeof settings / sizeof settings[0] };

static int plan_and_check(int ranks, int flags, uint32_t promises, int snapshot, const char *what) {
    tess_options o = { .struct_size = sizeof o, .optimizer = "adamw", .input_bytes = TOY_INPUT_BYTES, .plan_only = 1 };
    toy m;
    tess *t = NULL;
    o.ranks = ranks;
    o.checkpoint = snapshot;
    o.recover = getenv("TESSERA_MIRROR") != NULL;
    o.flags = promises | TESS_OPTIONS_LOSS_SCALE; /* as fp16 wants it; others take no notice */
    tess_status s = tess_open(&o, &t);
    if (!s)
        s = toy_declare(t, &m, flags);
    if (!s)
        s = tess_shard(t, toy_fill, NULL);
    if (s == TESS_E_PLANNED)
        check_plan(&t->plan, what);
    else if (s != TESS_E_INVALID && s != TESS_E_UNSUPPORTED)
        fail_msg("%s: %s", what, tess_last_error());
    tess_close(t);
    return s == TESS_E_PLANNED;
}

static int check_all(const char *what) {
    static const int flags[] = { 0, TOY_BLOCKS, TOY_BLOCKS | TOY_LARGE | TOY_GROUPS };
    int planned = 0;
    for (int ranks = 1; ranks <= 4; ranks++) {
        setenv("TESSERA_COMM", ranks % 2 ? "gloo" : "shm", 1); /* which want other scratch */
        for (int f = 0; f < 3; f++) {
            planned +=
                flags[f] && plan_and_check(ranks, flags[f], TESS_OPTIONS_LATE | TESS_OPTIONS_REPEAT, f % 2, what);
            for (int promise = 0; promise < (flags[f] ? 3 : 1); promise++)
                planned += plan_and_check(ranks, flags[f],
                                          promise == 0   ? 0
                                          : promise == 1 ? TESS_OPTIONS_STEP_IN_PASS
                                                         : TESS_OPTIONS_STEP_IN_PASS | TESS_OPTIONS_NO_CLIP,
                                          (ranks + f) % 2, what);
        }
    }
    return planned;
}

static void test_measure__each_setting_is_planned_as_it_is_measured(void **state) {
    (void)state;
    char what[128];
    assert_int_equal(check_all("nothing set"), 36);
    for (int i = 0; i < N_SETTINGS; i++) {
        setenv(settings[i].name, settings[i].value, 1);
        snprintf(what, sizeof what, "%s=%s", settings[i].name, settings[i].value);
        if (check_all(what) == 0)
            fail_msg("%s: no plan: %s", what, tess_last_error());
        unsetenv(settings[i].name);
    }
    print_message("%ld buffers\n", checked);
}

static void test_measure__so_are_many_together(void **state) {
    (void)state;
    uint64_t seed = 1;
    int planned = 0;
    for (int round = 0; round < 60; round++) {
        char what[1024] = "";
        for (int i = 0; i < N_SETTINGS; i++) {
            if (drawn64(&seed, 4))
                continue;
            setenv(settings[i].name, settings[i].value, 1);
            snprintf(what + strlen(what), sizeof what - strlen(what), "%s=%s ", settings[i].name, settings[i].value);
        }
        planned += check_all(what);
        for (int i = 0; i < N_SETTINGS; i++)
            unsetenv(settings[i].name);
    }
    assert_true(planned > 100);
    print_message("%d plans, %ld buffers\n", planned, checked);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_measure__each_setting_is_planned_as_it_is_measured),
        cmocka_unit_test(test_measure__so_are_many_together),
    };
    tess__log_set_least(TESS_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
