/* SPDX-License-Identifier: BSD-3-Clause */
/* optimizer-lion: its numbers, and its steps on a GPU over a driver that writes down its calls. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>

#include "plugins/optimizer-lion/lion.h"
#include "tests/unit/plugins/written_driver.h"

const unsigned char lion_kernels_image[1];

static const char *settings = "";
static const tess_optimizer_ops *ops;
static void *plugin, *gpu;
static tess_optimizer_piece piece;
static tess_device_piece on;
static const tess_stream stream = { .mem = TESS_MEM_CUDA, .device = 1, .handle = (void *)(uintptr_t)70 };
static float master[8], momentum[8], gradient[8];

static tess_status open_plugin(void) {
    static tess_host host = { .struct_size = sizeof host, .option = no_option };
    const void *table;
    host.args = settings;
    tess_status s = tess_plugin_open_v1(&host, TESS_KIND_OPTIMIZER, &table, &plugin, &e);
    if (!s)
        ops = table;
    return s;
}

static int begin(void **state) {
    (void)state;
    written_begin();
    written_forget();
    written.who = "optimizer lion: ";
    settings = "";
    if (open_plugin())
        fail_msg("%s", e.message);
    piece =
        (tess_optimizer_piece){ .struct_size = sizeof piece, .elems = 8, .step = 3, .lr = 0.5, .weight_decay = 0.25 };
    piece.master = master, piece.grad = gradient, piece.state[0] = momentum;
    on = (tess_device_piece){ .struct_size = sizeof on, .grad_scale = 0.125f, .piece = &piece, .clip = gradient + 1 };
    return 0;
}
static int end(void **state) {
    (void)state;
    ops->close(plugin);
    is_clean();
    assert_int_equal(live_memory, 0);
    return 0;
}

/* ---- numbers ---- */

static lion_numbers numbers(void) {
    lion_numbers n;
    assert_int_equal(lion_numbers_of(plugin, &piece, &n, no_error()), TESS_OK);
    return n;
}
static void reopen(const char *text) {
    ops->close(plugin);
    settings = text;
    assert_int_equal(open_plugin(), TESS_OK);
}

static void test_lion__the_users_numbers_win_over_the_programs_and_those_over_the_usual(void **state) {
    (void)state;
    static const struct {
        const char *user;
        double said1, said2, want1, want2;
    } cases[] = {
        { "", 0, 0, 0.9, 0.99 },
        { "", 0.5, 0.75, 0.5, 0.75 },
        { "beta1=0.25", 0.5, 0.75, 0.25, 0.75 },
        { "beta2=0", 0.5, 0.75, 0.5, 0 },
        { "beta1=0,beta2=0.999999", 0.5, 0.75, 0, 0.999999 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        reopen(cases[i].user);
        piece.beta1 = cases[i].said1, piece.beta2 = cases[i].said2;
        const lion_numbers n = numbers();
        assert_true(n.b1 == (float)cases[i].want1 && n.b2 == (float)cases[i].want2);
        assert_true(n.c1 == (float)(1 - cases[i].want1) && n.c2 == (float)(1 - cases[i].want2));
        assert_true(n.lr == 0.5f && n.shrink == 0.875f);
    }
}

static void test_lion__numbers_that_are_none_are_refused_before_anything_changes(void **state) {
    (void)state;
    static const double bad[][2] = { { -0.5, 0.5 }, { 1, 0.5 },   { 0.5, -1e-9 }, { 0.5, 1 },
                                     { 0.5, 2 },    { NAN, 0.5 }, { 0.5, NAN } };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[160];
        piece.beta1 = bad[i][0], piece.beta2 = bad[i][1];
        for (int k = 0; k < 8; k++)
            master[k] = momentum[k] = gradient[k] = 1;
        snprintf(text, sizeof text, "optimizer lion: beta1 %g and beta2 %g, expected 0 or more and less than 1",
                 bad[i][0], bad[i][1]);
        EXPECT_FAILS(ops->step(plugin, &piece, &e), TESS_E_INVALID, text);
        for (int k = 0; k < 8; k++)
            assert_true(master[k] == 1 && momentum[k] == 1);
    }
    ops->close(plugin);
    static const char *const words[] = { "beta1=1", "beta2=-1", "beta3=0" };
    for (int i = 0; i < 3; i++) {
        settings = words[i];
        assert_int_equal(open_plugin(), TESS_E_INVALID);
        assert_non_null(strstr(e.message, "lion"));
    }
    settings = "";
    assert_int_equal(open_plugin(), TESS_OK);
}

static void test_lion__a_step_moves_by_the_rate_against_the_signs_and_keeps_the_rest(void **state) {
    (void)state;
    /* Powers of two, so that each result is exact: x shrinks to 7/8, then goes by 1/2; m becomes 3/4 m + 1/4 g. */
    static const float g[] = { 4, -4, 0, 8, -8, 0, 0, 1 }, m[] = { 0, 0, 0, -8, 8, 4, -4, -1 };
    static const float sign[] = { 1, -1, 0, 0, 0, 1, -1, 0 };
    piece.beta1 = 0.5, piece.beta2 = 0.75;
    piece.elems = 7; /* the last one is another's */
    for (int i = 0; i < 8; i++)
        master[i] = 16, momentum[i] = m[i], gradient[i] = g[i];
    assert_int_equal(ops->step(plugin, &piece, no_error()), TESS_OK);
    for (int i = 0; i < 7; i++) {
        assert_true(master[i] == 14 - 0.5f * sign[i]);
        assert_true(momentum[i] == 0.75f * m[i] + 0.25f * g[i] && gradient[i] == g[i]);
    }
    assert_true(master[7] == 16 && momentum[7] == -1);
}

static void test_lion__has_one_state_of_fp32_and_names_what_it_takes(void **state) {
    (void)state;
    tess_grain grain = { .struct_size = sizeof grain };
    assert_int_equal(ops->describe(plugin, NULL, 0, &grain, no_error()), TESS_OK);
    assert_true(grain.grain == TESS_GRAIN_ELEMENT && grain.n_states == 1 && !grain.kernel);
    assert_true(grain.state[0].dtype == TESS_F32 && grain.state[0].every == 1);
    assert_string_equal(grain.state[0].name, "exp_avg");
    assert_int_equal(ops->takes, TESS_TAKES_LR | TESS_TAKES_BETA1 | TESS_TAKES_BETA2);
}

/* ---- on a GPU ---- */

static tess_status open_gpu(void) {
    gpu = NULL;
    tess_status s = ops->device_open(plugin, TESS_MEM_CUDA, &stream, &gpu, &e);
    assert_int_equal(gpu == NULL, s != TESS_OK);
    if (gpu)
        WITHOUT_FAILURES(ops->device_close(gpu));
    return s;
}

static void test_lion__takes_a_gpu_and_gives_it_back(void **state) {
    (void)state;
    assert_int_equal(open_gpu(), TESS_OK);
    expect_said("open libcuda.so.1, 1002; init 0; retain 101; load; unload; release 101; ");
    assert_int_equal(fail_each_call_thrice(open_gpu, is_clean), 7);
    static const char *const doings[] = { "opening the GPU failed: NAME 999 (why)",
                                          "opening the GPU failed: NAME 999 (why)",
                                          "opening the GPU failed: NAME 999 (why)",
                                          "opening the GPU failed: NAME 999 (why)",
                                          "making the GPU's context current failed: NAME 999 (why)",
                                          NULL,
                                          "loading its kernel failed: NAME 999 (why)" };
    for (int n = 0; n < 7; n++) {
        char text[200];
        written.fails_in = n + 1, written.fails_with = CUDA_ERROR_UNKNOWN;
        if (!doings[n]) { /* the module says more by itself */
            assert_int_equal(open_gpu(), TESS_E_DEVICE);
            assert_ptr_equal(strstr(e.message, "optimizer lion: loading kernels made with CUDA"), e.message);
            continue;
        }
        snprintf(text, sizeof text, "optimizer lion: %s", doings[n]);
        EXPECT_FAILS(open_gpu(), TESS_E_DEVICE, text);
        assert_int_equal(e.native, 999);
    }
    no_memory_in = 1;
    EXPECT_FAILS(open_gpu(), TESS_E_NOMEM, "optimizer lion: no memory to open a GPU");
    written_forget();
    written.missing = "all";
    EXPECT_FAILS(open_gpu(), TESS_E_UNSUPPORTED,
                 "optimizer lion: no NVIDIA driver here: libcuda.so.1 cannot be loaded");
}

static void test_lion__only_says_whether_it_would_without_a_stream(void **state) {
    (void)state;
    assert_int_equal(ops->device_open(plugin, TESS_MEM_CUDA, NULL, &gpu, no_error()), TESS_OK);
    EXPECT_FAILS(ops->device_open(plugin, TESS_MEM_PINNED, NULL, &gpu, &e), TESS_E_UNSUPPORTED,
                 "optimizer lion: memory of kind 2, expected the host's or CUDA's");
    assert_int_equal(written.calls, 0);
    expect_said("");
}

static void say_launch(const char *kernel, const void *args) {
    const lion_args *a = args;
    assert_string_equal(kernel, "tess_lion");
    assert_true(a->master == master && a->momentum == momentum && a->grad == gradient && a->clip == gradient + 1);
    assert_true(a->not_finite == on.not_finite);
    say(": %d, step %d, scale %g, %g %g %g", (int)a->items, (int)a->step, (double)a->grad_scale, (double)a->numbers.b1,
        (double)a->numbers.lr, (double)a->numbers.shrink);
}
static tess_status step_on_gpu(void) {
    return ops->device_step(gpu, &on, &stream, &e);
}

static void test_lion__a_step_is_one_launch_over_all_elements(void **state) {
    (void)state;
    int64_t noted = 0;
    on.not_finite = &noted;
    assert_int_equal(ops->device_open(plugin, TESS_MEM_CUDA, &stream, &gpu, no_error()), TESS_OK);
    written.launch = say_launch;
    said_so_far[0] = 0;
    static const struct {
        uint64_t elems;
        int blocks;
    } sizes[] = { { 1, 1 }, { 256, 1 }, { 257, 2 }, { 79 * 256 + 1, 80 }, { 80 * 256, 80 }, { 81 * 256, 80 } };
    for (int i = 0; i < 6; i++) {
        char want[120];
        piece.elems = sizes[i].elems;
        assert_int_equal(step_on_gpu(), TESS_OK);
        snprintf(want, sizeof want, "tess_lion %d x 256 on s70: %d, step 3, scale 0.125, 0.9 0.5 0.875; ",
                 sizes[i].blocks, (int)sizes[i].elems);
        expect_said(want);
    }
    assert_int_equal(fail_each_call(step_on_gpu, CUDA_ERROR_UNKNOWN, NULL), 2);
    for (int n = 1; n <= 2; n++) {
        written.fails_in = n, written.fails_with = CUDA_ERROR_UNKNOWN;
        EXPECT_FAILS(step_on_gpu(), TESS_E_DEVICE,
                     n == 1 ? "optimizer lion: making the GPU's context current failed: NAME 999 (why)"
                            : "optimizer lion: a step failed: NAME 999 (why)");
    }
    said_so_far[0] = 0;
    piece.beta1 = 2;
    assert_int_equal(step_on_gpu(), TESS_E_INVALID);
    expect_said("");
    written.fails_in =
        1; /* the module cannot be unloaded outside the context, the context is given back all the same */
    ops->device_close(gpu);
    expect_said("release 101; ");
    written.live.modules = 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_lion__the_users_numbers_win_over_the_programs_and_those_over_the_usual,
                                        begin, end),
        cmocka_unit_test_setup_teardown(test_lion__numbers_that_are_none_are_refused_before_anything_changes, begin,
                                        end),
        cmocka_unit_test_setup_teardown(test_lion__a_step_moves_by_the_rate_against_the_signs_and_keeps_the_rest, begin,
                                        end),
        cmocka_unit_test_setup_teardown(test_lion__has_one_state_of_fp32_and_names_what_it_takes, begin, end),
        cmocka_unit_test_setup_teardown(test_lion__takes_a_gpu_and_gives_it_back, begin, end),
        cmocka_unit_test_setup_teardown(test_lion__only_says_whether_it_would_without_a_stream, begin, end),
        cmocka_unit_test_setup_teardown(test_lion__a_step_is_one_launch_over_all_elements, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
