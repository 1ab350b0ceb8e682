/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/unit/kernels/kernel_fixture.h"
#include "core/plugin/open.h"
#include <stdlib.h>

static tess_status choose(const char *selection, uint32_t dtype, uint32_t mask, tess_precision_choice *out,
                          tess_error *error) {
    tess__plugin *plugin = NULL;
    if (tess__plugin_open(TESS_KIND_PRECISION, selection, NULL, &plugin))
        fail_msg("%s: %s", selection, tess_last_error());
    const tess_precision_ops *ops = plugin->ops;
    tess_param_view param = { .struct_size = sizeof param, .dtype = dtype, .name = "h.0.w", .compute_mask = mask };
    *out = (tess_precision_choice){ .struct_size = sizeof *out };
    *error = (tess_error){ .struct_size = sizeof *error };
    tess_status status = ops->choose(plugin->ctx, &param, out, error);
    tess__plugin_close(plugin);
    return status;
}

static void test_precision_wire8__masters_and_sums_stay_fp32(void **state) {
    (void)state;
    static const struct {
        const char *selection;
        uint32_t compute, gather, wire;
    } cases[] = { { "wire8", TESS_F32, TESS_Q8, TESS_Q8 },
                  { "wire8:fp8", TESS_F32, TESS_Q8E4M3, TESS_Q8E4M3 },
                  { "wire8:fp8,compute=bf16,sends=gradients", TESS_BF16, TESS_BF16, TESS_Q8E4M3 },
                  { "wire8:compute=bf16", TESS_BF16, TESS_Q8, TESS_Q8 },
                  { "wire8:sends=parameters", TESS_F32, TESS_Q8, TESS_F32 },
                  { "wire8:compute=bf16,sends=gradients", TESS_BF16, TESS_BF16, TESS_Q8 } };
    tess_precision_choice c;
    tess_error error;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(choose(cases[i].selection, TESS_F32, 1u << TESS_F32 | 1u << TESS_BF16, &c, &error), TESS_OK);
        assert_true(c.master == TESS_F32 && c.grad_local == TESS_F32 && c.accumulate == TESS_F32);
        assert_true(c.compute == cases[i].compute && c.gather == cases[i].gather && c.grad_wire == cases[i].wire);
    }
}

static void test_precision_wire8__rounds_as_it_is_told(void **state) {
    (void)state;
    tess_precision_choice c;
    tess_error error;
    assert_int_equal(choose("wire8", TESS_F32, 0, &c, &error), TESS_OK);
    assert_int_equal(c.rounding, TESS_ROUND_NEAREST);
    assert_int_equal(choose("wire8:fp8,rounding=stochastic", TESS_F32, 0, &c, &error), TESS_OK);
    assert_true(c.rounding == TESS_ROUND_STOCHASTIC && c.gather == TESS_Q8E4M3);
}

static void test_precision_wire8__other_dtypes_travel_as_they_are(void **state) {
    (void)state;
    static const uint32_t dtypes[] = { TESS_F64, TESS_F16, TESS_BF16, TESS_I64 };
    tess_precision_choice c;
    tess_error error;
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        assert_int_equal(choose("wire8:compute=bf16", dtypes[i], 0, &c, &error), TESS_OK);
        assert_true(c.master == dtypes[i] && c.compute == dtypes[i] && c.gather == dtypes[i]);
        assert_int_equal(c.grad_wire, dtypes[i] == TESS_F64 ? TESS_F32 : dtypes[i]);
    }
}

static void test_precision_wire8__what_the_program_cannot_read_is_refused(void **state) {
    (void)state;
    tess_precision_choice c;
    tess_error error;
    assert_int_equal(choose("wire8:compute=bf16", TESS_F32, 0, &c, &error), TESS_E_UNSUPPORTED);
    assert_non_null(strstr(error.message, "the program does not read it in bf16, which TESSERA_WIRE8_COMPUTE=bf16"));
    assert_int_equal(c.master, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_precision_wire8__masters_and_sums_stay_fp32),
        cmocka_unit_test(test_precision_wire8__rounds_as_it_is_told),
        cmocka_unit_test(test_precision_wire8__other_dtypes_travel_as_they_are),
        cmocka_unit_test(test_precision_wire8__what_the_program_cannot_read_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
