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
    .struct_size = sizeof readable, .dtype = TESS_F32, .name = "h.0.w", .compute_mask = 1u << TESS_F32 | 1u << TESS_BF16
};

static tess_status choose(const tess__plugin *plugin, const tess_param_view *param, tess_precision_choice *out,
                          tess_error *error) {
    const tess_precision_ops *ops = plugin->ops;
    *out = (tess_precision_choice){ .struct_size = sizeof *out };
    *error = (tess_error){ .struct_size = sizeof *error };
    return ops->choose(plugin->ctx, param, out, error);
}

static void test_precision_bf16__masters_are_fp32_and_the_rest_bf16(void **state) {
    (void)state;
    tess__plugin *plugin = open_plugin("bf16");
    tess_precision_choice c;
    tess_error error;
    assert_int_equal(choose(plugin, &readable, &c, &error), TESS_OK);
    assert_true(c.master == TESS_F32 && c.accumulate == TESS_F32 && c.grad_local == TESS_F32);
    assert_true(c.compute == TESS_BF16 && c.gather == TESS_BF16 && c.grad_wire == TESS_BF16);
    assert_true(c.struct_size == sizeof c);
    tess_param_view frozen = readable;
    frozen.flags = 1;
    assert_int_equal(choose(plugin, &frozen, &c, &error), TESS_OK);
    assert_true(c.gather == TESS_BF16);
    tess__plugin_close(plugin);
}

static void test_precision_bf16__gradients_follow_the_settings(void **state) {
    (void)state;
    tess_precision_choice c;
    tess_error error;
    tess__plugin *plugin = open_plugin("bf16:wire=fp32,grad=bf16");
    assert_int_equal(choose(plugin, &readable, &c, &error), TESS_OK);
    assert_true(c.grad_wire == TESS_F32 && c.grad_local == TESS_BF16);
    tess__plugin_close(plugin);
    setenv("TESSERA_BF16_WIRE", "fp32", 1);
    plugin = open_plugin("bf16");
    assert_int_equal(choose(plugin, &readable, &c, &error), TESS_OK);
    assert_true(c.grad_wire == TESS_F32 && c.grad_local == TESS_F32);
    tess__plugin_close(plugin);
    plugin = open_plugin("bf16:wire=bf16"); /* args win */
    assert_int_equal(choose(plugin, &readable, &c, &error), TESS_OK);
    assert_true(c.grad_wire == TESS_BF16);
    tess__plugin_close(plugin);
    unsetenv("TESSERA_BF16_WIRE");
}

/* Only of parameters that the program multiplies so, and that are computed with in bf16. */
static void test_precision_bf16__products_in_fp8_where_the_program_can(void **state) {
    (void)state;
    tess_precision_choice c;
    tess_error error;
    tess_param_view can = readable, wide = readable;
    can.compute_mask |= 1u << TESS_F8E4M3;
    wide.compute_mask = 1u << TESS_F32 | 1u << TESS_F8E4M3;
    tess__plugin *plugin = open_plugin("bf16");
    assert_int_equal(choose(plugin, &can, &c, &error), TESS_OK);
    assert_int_equal(c.products, 0);
    tess__plugin_close(plugin);
    plugin = open_plugin("bf16:products=fp8,unreadable=keep");
    assert_int_equal(choose(plugin, &can, &c, &error), TESS_OK);
    assert_true(c.products == TESS_F8E4M3 && c.compute == TESS_BF16 && c.gather == TESS_BF16);
    assert_true(c.master == TESS_F32 && c.grad_local == TESS_F32 && c.grad_wire == TESS_BF16);
    assert_int_equal(choose(plugin, &readable, &c, &error), TESS_OK);
    assert_int_equal(c.products, 0);
    assert_int_equal(choose(plugin, &wide, &c, &error), TESS_OK);
    assert_true(c.products == 0 && c.compute == TESS_F32);
    tess__plugin_close(plugin);
}

static void test_precision_bf16__what_the_program_cannot_read_is_refused_by_name(void **state) {
    (void)state;
    tess__plugin *plugin = open_plugin("bf16");
    tess_param_view param = { .struct_size = sizeof param, .dtype = TESS_F32, .name = "norm.bias" };
    tess_precision_choice c;
    tess_error error;
    assert_int_equal(choose(plugin, &param, &c, &error), TESS_E_UNSUPPORTED);
    assert_int_equal(error.code, TESS_E_UNSUPPORTED);
    assert_ptr_equal(strstr(error.message, "the program does not read it in bf16"), error.message);
    assert_int_equal(c.master, 0); /* nothing is written on failure */
    param.compute_mask = 1u << TESS_F32;
    assert_int_equal(choose(plugin, &param, &c, &error), TESS_E_UNSUPPORTED);
    tess__plugin_close(plugin);
    plugin = open_plugin("bf16:unreadable=keep");
    assert_int_equal(choose(plugin, &param, &c, &error), TESS_OK);
    assert_true(c.compute == TESS_F32 && c.gather == TESS_F32 && c.grad_wire == TESS_F32);
    tess__plugin_close(plugin);
}

static void test_precision_bf16__other_dtypes_stay_as_declared(void **state) {
    (void)state;
    tess__plugin *plugin = open_plugin("bf16");
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

static void test_precision_bf16__out_structs_of_other_sizes_are_respected(void **state) {
    (void)state;
    tess__plugin *plugin = open_plugin("bf16");
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
    assert_true(narrow.compute == TESS_BF16 && narrow.gather == 99);
    tess__plugin_close(plugin);
}

static void test_precision_bf16__bad_settings_are_one_line(void **state) {
    (void)state;
    static const char *const bad[] = { "bf16:wire=fp64",
                                       "bf16:wire",
                                       "bf16:wire=",
                                       "bf16:=fp32",
                                       "bf16:wires=fp32",
                                       "bf16:,",
                                       "bf16:wire=fp32,,grad=bf16",
                                       "bf16:x" };
    tess__plugin *plugin = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(tess__plugin_open(TESS_KIND_PRECISION, bad[i], NULL, &plugin), TESS_E_INVALID);
        assert_non_null(strstr(tess_last_error(), "precision bf16: "));
        assert_null(strchr(tess_last_error(), '\n'));
    }
    assert_int_equal(tess__plugin_open(TESS_KIND_PRECISION, "bf16:wire=fp64", NULL, &plugin), TESS_E_INVALID);
    assert_non_null(strstr(tess_last_error(), "wire is \"fp64\", expected one of bf16|fp32"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_precision_bf16__masters_are_fp32_and_the_rest_bf16),
        cmocka_unit_test(test_precision_bf16__gradients_follow_the_settings),
        cmocka_unit_test(test_precision_bf16__products_in_fp8_where_the_program_can),
        cmocka_unit_test(test_precision_bf16__what_the_program_cannot_read_is_refused_by_name),
        cmocka_unit_test(test_precision_bf16__other_dtypes_stay_as_declared),
        cmocka_unit_test(test_precision_bf16__out_structs_of_other_sizes_are_respected),
        cmocka_unit_test(test_precision_bf16__bad_settings_are_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
