/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/unit/kernels/kernel_fixture.h"
#include "core/plugin/open.h"
#include <stdlib.h>

static tess__plugin *open_plugin(const char *selection) {
    tess__plugin *plugin = NULL;
    tess_status status = tess__plugin_open(TESS_KIND_PRECISION, selection, NULL, &plugin);
    if (status != TESS_OK)
        fail_msg("%s: %s", selection, tess_last_error());
    return plugin;
}

static const tess_param_view readable = {
    .struct_size = sizeof readable, .dtype = TESS_F32, .name = "h.0.w", .compute_mask = 1u << TESS_F32 | 1u << TESS_F16
};

static tess_status choose(const tess__plugin *plugin, const tess_param_view *param, tess_precision_choice *out,
                          tess_error *error) {
    const tess_precision_ops *ops = plugin->ops;
    *out = (tess_precision_choice){ .struct_size = sizeof *out };
    *error = (tess_error){ .struct_size = sizeof *error };
    return ops->choose(plugin->ctx, param, out, error);
}

static void test_precision_fp16__masters_are_fp32_and_the_rest_fp16(void **state) {
    (void)state;
    tess__plugin *plugin = open_plugin("fp16");
    tess_precision_choice c;
    tess_error error;
    assert_int_equal(choose(plugin, &readable, &c, &error), TESS_OK);
    assert_true(c.master == TESS_F32 && c.accumulate == TESS_F32 && c.grad_local == TESS_F32);
    assert_true(c.compute == TESS_F16 && c.gather == TESS_F16 && c.grad_wire == TESS_F16);
    assert_true(c.struct_size == sizeof c);
    tess_param_view frozen = readable;
    frozen.flags = 1;
    assert_int_equal(choose(plugin, &frozen, &c, &error), TESS_OK);
    assert_true(c.gather == TESS_F16);
    tess__plugin_close(plugin);
}

static void test_precision_fp16__gradients_follow_the_settings(void **state) {
    (void)state;
    tess_precision_choice c;
    tess_error error;
    tess__plugin *plugin = open_plugin("fp16:wire=fp32,grad=fp16");
    assert_int_equal(choose(plugin, &readable, &c, &error), TESS_OK);
    assert_true(c.grad_wire == TESS_F32 && c.grad_local == TESS_F16);
    tess__plugin_close(plugin);
    setenv("TESSERA_FP16_WIRE", "fp32", 1);
    plugin = open_plugin("fp16");
    assert_int_equal(choose(plugin, &readable, &c, &error), TESS_OK);
    assert_true(c.grad_wire == TESS_F32 && c.grad_local == TESS_F32);
    tess__plugin_close(plugin);
    plugin = open_plugin("fp16:wire=fp16"); /* args win */
    assert_int_equal(choose(plugin, &readable, &c, &error), TESS_OK);
    assert_true(c.grad_wire == TESS_F16);
    tess__plugin_close(plugin);
    unsetenv("TESSERA_FP16_WIRE");
}

static void test_precision_fp16__what_the_program_cannot_read_is_refused_by_name(void **state) {
    (void)state;
    tess__plugin *plugin = open_plugin("fp16");
    tess_param_view param = { .struct_size = sizeof param, .dtype = TESS_F32, .name = "norm.bias" };
    tess_precision_choice c;
    tess_error error;
    assert_int_equal(choose(plugin, &param, &c, &error), TESS_E_UNSUPPORTED);
    assert_int_equal(error.code, TESS_E_UNSUPPORTED);
    assert_ptr_equal(strstr(error.message, "the program does not read it in fp16"), error.message);
    assert_int_equal(c.master, 0); /* nothing is written on failure */
    param.compute_mask = 1u << TESS_F32;
    assert_int_equal(choose(plugin, &param, &c, &error), TESS_E_UNSUPPORTED);
    tess__plugin_close(plugin);
    plugin = open_plugin("fp16:unreadable=keep");
    assert_int_equal(choose(plugin, &param, &c, &error), TESS_OK);
    assert_true(c.compute == TESS_F32 && c.gather == TESS_F32 && c.grad_wire == TESS_F32);
    tess__plugin_close(plugin);
}

static void test_precision_fp16__other_dtypes_stay_as_declared(void **state) {
    (void)state;
    tess__plugin *plugin = open_plugin("fp16");
    static const uint32_t dtypes[] = { TESS_F64, TESS_F16, TESS_BF16, TESS_I64, TESS_U8 };
    tess_precision_choice c;
    tess_error error;
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        tess_param_view param = { .struct_size = sizeof param, .dtype = dtypes[i], .name = "p" };
        assert_int_equal(choose(plugin, &param, &c, &error), TESS_OK);
        assert_true(c.master == dtypes[i] && c.compute == dtypes[i] && c.gather == dtypes[i]);
        assert_true(c.grad_local == dtypes[i]);
        assert_int_equal(c.grad_wire, dtypes[i] == TESS_F64 ? TESS_F32 : dtypes[i]); /* as sums are fp32 */
    }
    tess_param_view odd = { .struct_size = sizeof odd, .dtype = TESS_F64, .compute_mask = 1u << TESS_F32, .name = "p" };
    assert_int_equal(choose(plugin, &odd, &c, &error), TESS_E_UNSUPPORTED);
    tess__plugin_close(plugin);
}

static void test_precision_fp16__out_structs_of_other_sizes_are_respected(void **state) {
    (void)state;
    tess__plugin *plugin = open_plugin("fp16");
    const tess_precision_ops *ops = plugin->ops;
    struct {
        tess_precision_choice choice;
        uint32_t later[2];
    } wide = { .later = { 7, 7 } };
    wide.choice.struct_size = sizeof wide;
    assert_int_equal(ops->choose(plugin->ctx, &readable, &wide.choice, NULL), TESS_OK);
    assert_true(wide.later[0] == 0 && wide.later[1] == 0 && wide.choice.struct_size == sizeof wide);
    tess_precision_choice narrow = { .struct_size = 12, .gather = 99 };
    assert_int_equal(ops->choose(plugin->ctx, &readable, &narrow, NULL), TESS_OK);
    assert_true(narrow.compute == TESS_F16 && narrow.gather == 99);
    tess__plugin_close(plugin);
}

static void test_precision_fp16__bad_settings_are_one_line(void **state) {
    (void)state;
    static const char *const bad[] = { "fp16:wire=fp64",
                                       "fp16:wire",
                                       "fp16:wire=",
                                       "fp16:=fp32",
                                       "fp16:wires=fp32",
                                       "fp16:,",
                                       "fp16:wire=fp32,,grad=fp16",
                                       "fp16:x" };
    tess__plugin *plugin = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(tess__plugin_open(TESS_KIND_PRECISION, bad[i], NULL, &plugin), TESS_E_INVALID);
        assert_non_null(strstr(tess_last_error(), "precision fp16: "));
        assert_null(strchr(tess_last_error(), '\n'));
    }
    assert_int_equal(tess__plugin_open(TESS_KIND_PRECISION, "fp16:wire=fp64", NULL, &plugin), TESS_E_INVALID);
    assert_non_null(strstr(tess_last_error(), "wire is \"fp64\", expected one of fp16|fp32"));
}

static tess_loss_scaling scaling_of(const char *selection) {
    tess__plugin *plugin = open_plugin(selection);
    tess_loss_scaling s = { .struct_size = sizeof s };
    const tess_precision_ops *ops = plugin->ops;
    assert_int_equal(ops->loss_scaling(plugin->ctx, &s, NULL), TESS_OK);
    tess__plugin_close(plugin);
    return s;
}

static void assert_scaling(tess_loss_scaling s, double init, double growth, double backoff, uint32_t every,
                           double least) {
    assert_true((double)s.init == init && (double)s.growth == growth && (double)s.backoff == backoff);
    assert_true(s.every == every && (double)s.least == least);
}

static void test_precision_fp16__the_scale_follows_the_settings(void **state) {
    (void)state;
    static const struct {
        const char *variable, *value;
    } set[] = { { "TESSERA_FP16_INIT", "1024" },      { "TESSERA_FP16_GROWTH", "4" },
                { "TESSERA_FP16_BACKOFF", "0.25" },   { "TESSERA_FP16_EVERY", "100" },
                { "TESSERA_FP16_LEAST", "8" },        { "TESSERA_FP16_GRAD", "fp16" },
                { "TESSERA_FP16_UNREADABLE", "keep" } };
    tess_precision_choice c;
    tess_error error;
    assert_scaling(scaling_of("fp16"), 65536, 2, 0.5, 2000, 1); /* PyTorch's, but for the least */
    assert_scaling(scaling_of("fp16:init=0.5,growth=8,backoff=0.125,every=0,least=0.25"), 0.5, 8, 0.125, 0, 0.25);
    assert_true(scaling_of("fp16:scale=off").init == 0);
    for (size_t i = 0; i < sizeof set / sizeof set[0]; i++)
        setenv(set[i].variable, set[i].value, 1);
    assert_scaling(scaling_of("fp16"), 1024, 4, 0.25, 100, 8);
    tess__plugin *plugin = open_plugin("fp16");
    assert_int_equal(choose(plugin, &readable, &c, &error), TESS_OK);
    assert_int_equal(c.grad_local, TESS_F16);
    tess_param_view wide = { .struct_size = sizeof wide, .dtype = TESS_F32, .name = "norm.bias" };
    assert_int_equal(choose(plugin, &wide, &c, &error), TESS_OK);
    assert_int_equal(c.compute, TESS_F32);
    tess__plugin_close(plugin);
    for (size_t i = 0; i < sizeof set / sizeof set[0]; i++)
        unsetenv(set[i].variable);
    setenv("TESSERA_FP16_SCALE", "off", 1);
    assert_true(scaling_of("fp16").init == 0);
    unsetenv("TESSERA_FP16_SCALE");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_precision_fp16__masters_are_fp32_and_the_rest_fp16),
        cmocka_unit_test(test_precision_fp16__gradients_follow_the_settings),
        cmocka_unit_test(test_precision_fp16__the_scale_follows_the_settings),
        cmocka_unit_test(test_precision_fp16__what_the_program_cannot_read_is_refused_by_name),
        cmocka_unit_test(test_precision_fp16__other_dtypes_stay_as_declared),
        cmocka_unit_test(test_precision_fp16__out_structs_of_other_sizes_are_respected),
        cmocka_unit_test(test_precision_fp16__bad_settings_are_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
