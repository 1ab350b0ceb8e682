/* SPDX-License-Identifier: BSD-3-Clause */
/* The plugins bf16 and fp16: what both promise, each with its own format, and what one of them has alone. */
#include "tests/unit/kernels/kernel_fixture.h"
#include "core/plugin/open.h"
#include <stdlib.h>

typedef struct half {
    const char *name, *wire; /* wire: the variable of its setting */
    uint32_t dtype;
} half;

static half bf16 = { "bf16", "TESSERA_BF16_WIRE", TESS_BF16 }, fp16 = { "fp16", "TESSERA_FP16_WIRE", TESS_F16 };

/* The text, in which H stands for the half's name. */
static const char *of_half(char out[static 80], const half *h, const char *text) {
    size_t at = 0;
    for (const char *c = text; *c; c++)
        at += (size_t)(*c == 'H' ? snprintf(out + at, 80 - at, "%s", h->name) : snprintf(out + at, 80 - at, "%c", *c));
    return out;
}

static tess__plugin *open_half(const half *h, const char *selection) {
    char text[80];
    tess__plugin *plugin = NULL;
    if (tess__plugin_open(TESS_KIND_PRECISION, of_half(text, h, selection), NULL, &plugin) != TESS_OK)
        fail_msg("%s: %s", text, tess_last_error());
    return plugin;
}

/* A parameter that the program reads in fp32 and in the half. */
static tess_param_view readable(const half *h) {
    return (tess_param_view){ .struct_size = sizeof(tess_param_view),
                              .dtype = TESS_F32,
                              .name = "h.0.w",
                              .compute_mask = 1u << TESS_F32 | 1u << h->dtype };
}

static tess_status choose(const tess__plugin *plugin, const tess_param_view *param, tess_precision_choice *out,
                          tess_error *error) {
    const tess_precision_ops *ops = plugin->ops;
    *out = (tess_precision_choice){ .struct_size = sizeof *out };
    *error = (tess_error){ .struct_size = sizeof *error };
    return ops->choose(plugin->ctx, param, out, error);
}

static void test_precision_halves__masters_are_fp32_and_the_rest_half(void **state) {
    const half *h = *state;
    const tess_param_view param = readable(h);
    tess__plugin *plugin = open_half(h, "H");
    tess_precision_choice c;
    tess_error error;
    assert_int_equal(choose(plugin, &param, &c, &error), TESS_OK);
    assert_true(c.master == TESS_F32 && c.accumulate == TESS_F32 && c.grad_local == TESS_F32);
    assert_true(c.compute == h->dtype && c.gather == h->dtype && c.grad_wire == h->dtype);
    assert_true(c.struct_size == sizeof c);
    tess_param_view frozen = param;
    frozen.flags = 1;
    assert_int_equal(choose(plugin, &frozen, &c, &error), TESS_OK);
    assert_true(c.gather == h->dtype);
    tess__plugin_close(plugin);
}

static void test_precision_halves__gradients_follow_the_settings(void **state) {
    const half *h = *state;
    const tess_param_view param = readable(h);
    tess_precision_choice c;
    tess_error error;
    tess__plugin *plugin = open_half(h, "H:wire=fp32,grad=H");
    assert_int_equal(choose(plugin, &param, &c, &error), TESS_OK);
    assert_true(c.grad_wire == TESS_F32 && c.grad_local == h->dtype);
    tess__plugin_close(plugin);
    setenv(h->wire, "fp32", 1);
    plugin = open_half(h, "H");
    assert_int_equal(choose(plugin, &param, &c, &error), TESS_OK);
    assert_true(c.grad_wire == TESS_F32 && c.grad_local == TESS_F32);
    tess__plugin_close(plugin);
    plugin = open_half(h, "H:wire=H"); /* args win */
    assert_int_equal(choose(plugin, &param, &c, &error), TESS_OK);
    assert_true(c.grad_wire == h->dtype);
    tess__plugin_close(plugin);
    unsetenv(h->wire);
}

/* Only of parameters that the program multiplies so, and that are computed with in bf16. */
static void test_precision_bf16__products_in_fp8_where_the_program_can(void **state) {
    (void)state;
    tess_precision_choice c;
    tess_error error;
    tess_param_view can = readable(&bf16), plain = can, wide = can;
    can.compute_mask |= 1u << TESS_F8E4M3;
    wide.compute_mask = 1u << TESS_F32 | 1u << TESS_F8E4M3;
    tess__plugin *plugin = open_half(&bf16, "H");
    assert_int_equal(choose(plugin, &can, &c, &error), TESS_OK);
    assert_int_equal(c.products, 0);
    tess__plugin_close(plugin);
    plugin = open_half(&bf16, "H:products=fp8,unreadable=keep");
    assert_int_equal(choose(plugin, &can, &c, &error), TESS_OK);
    assert_true(c.products == TESS_F8E4M3 && c.compute == TESS_BF16 && c.gather == TESS_BF16);
    assert_true(c.master == TESS_F32 && c.grad_local == TESS_F32 && c.grad_wire == TESS_BF16);
    assert_int_equal(choose(plugin, &plain, &c, &error), TESS_OK);
    assert_int_equal(c.products, 0);
    assert_int_equal(choose(plugin, &wide, &c, &error), TESS_OK);
    assert_true(c.products == 0 && c.compute == TESS_F32);
    tess__plugin_close(plugin);
}

static void test_precision_halves__what_the_program_cannot_read_is_refused_by_name(void **state) {
    const half *h = *state;
    char text[80];
    tess__plugin *plugin = open_half(h, "H");
    tess_param_view param = { .struct_size = sizeof param, .dtype = TESS_F32, .name = "norm.bias" };
    tess_precision_choice c;
    tess_error error;
    assert_int_equal(choose(plugin, &param, &c, &error), TESS_E_UNSUPPORTED);
    assert_int_equal(error.code, TESS_E_UNSUPPORTED);
    assert_ptr_equal(strstr(error.message, of_half(text, h, "the program does not read it in H")), error.message);
    assert_int_equal(c.master, 0); /* nothing is written on failure */
    param.compute_mask = 1u << TESS_F32;
    assert_int_equal(choose(plugin, &param, &c, &error), TESS_E_UNSUPPORTED);
    tess__plugin_close(plugin);
    plugin = open_half(h, "H:unreadable=keep");
    assert_int_equal(choose(plugin, &param, &c, &error), TESS_OK);
    assert_true(c.compute == TESS_F32 && c.gather == TESS_F32 && c.grad_wire == TESS_F32);
    tess__plugin_close(plugin);
}

static void test_precision_halves__other_dtypes_stay_as_declared(void **state) {
    const half *h = *state;
    tess__plugin *plugin = open_half(h, "H");
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

static void test_precision_halves__out_structs_of_other_sizes_are_respected(void **state) {
    const half *h = *state;
    const tess_param_view param = readable(h);
    tess__plugin *plugin = open_half(h, "H");
    const tess_precision_ops *ops = plugin->ops;
    struct {
        tess_precision_choice choice;
        uint32_t later[2];
    } wide = { .later = { 7, 7 } };
    wide.choice.struct_size = sizeof wide;
    assert_int_equal(ops->choose(plugin->ctx, &param, &wide.choice, NULL), TESS_OK);
    assert_true(wide.later[0] == 0 && wide.later[1] == 0 && wide.choice.struct_size == sizeof wide);
    tess_precision_choice narrow = { .struct_size = 12, .gather = 99 };
    assert_int_equal(ops->choose(plugin->ctx, &param, &narrow, NULL), TESS_OK);
    assert_true(narrow.compute == h->dtype && narrow.gather == 99);
    tess__plugin_close(plugin);
}

static void assert_refused(const half *h, const char *selection, const char *reason) {
    char text[80];
    tess__plugin *plugin = NULL;
    assert_int_equal(tess__plugin_open(TESS_KIND_PRECISION, of_half(text, h, selection), NULL, &plugin),
                     TESS_E_INVALID);
    assert_non_null(strstr(tess_last_error(), of_half(text, h, reason)));
    assert_null(strchr(tess_last_error(), '\n'));
}

static void test_precision_halves__bad_settings_are_one_line(void **state) {
    static const char *const bad[] = { "H:wire", "H:wire=", "H:=fp32", "H:wires=fp32", "H:,", "H:wire=fp32,,grad=H",
                                       "H:x" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_refused(*state, bad[i], "precision H: ");
    assert_refused(*state, "H:wire=fp64", "precision H: ");
    assert_refused(*state, "H:wire=fp64", "wire is \"fp64\", expected one of H|fp32");
}

static tess_loss_scaling scaling_of(const char *selection) {
    tess__plugin *plugin = open_half(&fp16, selection);
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
    const tess_param_view param = readable(&fp16);
    tess_precision_choice c;
    tess_error error;
    assert_scaling(scaling_of("fp16"), 65536, 2, 0.5, 2000, 1); /* PyTorch's, but for the least */
    assert_scaling(scaling_of("fp16:init=0.5,growth=8,backoff=0.125,every=0,least=0.25"), 0.5, 8, 0.125, 0, 0.25);
    assert_true(scaling_of("fp16:scale=off").init == 0);
    for (size_t i = 0; i < sizeof set / sizeof set[0]; i++)
        setenv(set[i].variable, set[i].value, 1);
    assert_scaling(scaling_of("fp16"), 1024, 4, 0.25, 100, 8);
    tess__plugin *plugin = open_half(&fp16, "fp16");
    assert_int_equal(choose(plugin, &param, &c, &error), TESS_OK);
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

#define OF_BOTH(test) cmocka_unit_test_prestate(test, &bf16), cmocka_unit_test_prestate(test, &fp16)

int main(void) {
    const struct CMUnitTest tests[] = {
        OF_BOTH(test_precision_halves__masters_are_fp32_and_the_rest_half),
        OF_BOTH(test_precision_halves__gradients_follow_the_settings),
        OF_BOTH(test_precision_halves__what_the_program_cannot_read_is_refused_by_name),
        OF_BOTH(test_precision_halves__other_dtypes_stay_as_declared),
        OF_BOTH(test_precision_halves__out_structs_of_other_sizes_are_respected),
        OF_BOTH(test_precision_halves__bad_settings_are_one_line),
        cmocka_unit_test(test_precision_bf16__products_in_fp8_where_the_program_can),
        cmocka_unit_test(test_precision_fp16__the_scale_follows_the_settings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
