/* SPDX-License-Identifier: BSD-3-Clause */
/* Which kernels are taken and which are refused, by the lists of core/kernels/kernels.h, over all dtypes. */
#include "kernel_fixture.h"
#include <stdlib.h>
#include <tessera/plugin_helpers.h>

static tess_error error;
static _Alignas(64) char data[3][4096], scratch[4096]; /* room for a few elements of any dtype, and for limbs */
static const void *in[2] = { data[0], data[1] };
static tess_segment segments[3];
static tess_optimizer optimizer;

static int is_one_of(uint32_t x, const uint32_t *list, int n) {
    for (int i = 0; i < n; i++)
        if (list[i] == x)
            return 1;
    return 0;
}

static const uint32_t floats[] = { TESS_F32, TESS_BF16, TESS_F16, TESS_F64 }, wholes[] = { TESS_I32, TESS_I64 };
static const uint32_t blocks[] = { TESS_Q8, TESS_Q8E4M3 };
#define FLOAT(x) is_one_of(x, floats, 4)
#define NARROW_FLOAT(x) is_one_of(x, floats, 3) /* all but f64 */
#define BLOCKS(x) is_one_of(x, blocks, 2)

static int offers(uint32_t kernel, uint32_t from, uint32_t to) {
    switch (kernel) {
    case TESS_K_CAST:
        if (from == to)
            return from >= TESS_U8 && from <= TESS_Q8E4M3;
        return (FLOAT(from) && FLOAT(to)) || (from == TESS_F32 && BLOCKS(to)) || (BLOCKS(from) && NARROW_FLOAT(to));
    case TESS_K_TREE_SUM:
        if (NARROW_FLOAT(from) || BLOCKS(from))
            return NARROW_FLOAT(to) || BLOCKS(to);
        return from == to && (from == TESS_F64 || is_one_of(from, wholes, 2));
    case TESS_K_SCALE: return from == to && (from == TESS_F32 || from == TESS_F64);
    case TESS_K_SQUARE_SUM: return NARROW_FLOAT(from) && (to == 0 || to == TESS_I64);
    case TESS_K_OPTIMIZER: return to == TESS_F32 ? NARROW_FLOAT(from) : to == TESS_F64 && from == TESS_F64;
    default: return 0;
    }
}

static tess_kernel a_kernel(uint32_t kernel, uint32_t from, uint32_t to) {
    memset(data, 0, sizeof data);
    memset(scratch, 0, sizeof scratch);
    segments[0] = (tess_segment){ .struct_size = sizeof segments[0], .elems = 3 };
    optimizer = (tess_optimizer){ .struct_size = sizeof optimizer,
                                  .optimizer = TESS_OPT_ADAM,
                                  .n_segments = 1,
                                  .segments = segments,
                                  .step = 1,
                                  .eps = 1 };
    return (tess_kernel){ .struct_size = sizeof(tess_kernel),
                          .kernel = kernel,
                          .in_dtype = from,
                          .out_dtype = to,
                          .n_in = 2,
                          .in = in,
                          .out = data[2],
                          .state = { scratch, scratch + 1024 },
                          .elems = 3,
                          .optimizer = &optimizer };
}

static void refused(const tess_kernel *k, tess_status status, const char *message) {
    assert_int_equal(try_kernel(k, &error), status);
    assert_string_equal(error.message, message);
}

static void test_kernel_checks__dtypes_are_those_of_the_list(void **state) {
    (void)state;
    static const char *const names[] = { "kernel 0",   "cast",      "tree sum",       "scale",
                                         "square sum", "optimizer", "unknown kernel", "unknown kernel" };
    char want[128];
    for (uint32_t kernel = 0; kernel < 8; kernel++)
        for (uint32_t from = 0; from < 34; from++)
            for (uint32_t to = 0; to < 34; to++) {
                const tess_kernel k = a_kernel(kernel, from, to);
                const int offered = offers(kernel, from, to);
                tess_need need = { .struct_size = sizeof need, .device_bytes = 7, .host_bytes = 7, .align = 7 };
                assert_int_equal(tess__kernel_need(&k, &need), offered ? TESS_OK : TESS_E_UNSUPPORTED);
                assert_true(need.align == (offered ? 64 : 7) && need.device_bytes == (offered ? 0 : 7));
                if (offered) {
                    assert_int_equal(try_kernel(&k, &error), TESS_OK);
                    continue;
                }
                snprintf(want, sizeof want, "%s from %s to %s is not offered", names[kernel], tess_dtype_name(from),
                         tess_dtype_name(to));
                refused(&k, TESS_E_UNSUPPORTED, want);
            }
}

static void test_kernel_checks__inputs_and_outputs_are_there(void **state) {
    (void)state;
    static const struct {
        uint32_t kernel;
        const char *name;
        int inputs;
    } each[] = { { TESS_K_CAST, "cast", 1 },
                 { TESS_K_TREE_SUM, "tree sum", 2 },
                 { TESS_K_SQUARE_SUM, "square sum", 1 },
                 { TESS_K_OPTIMIZER, "optimizer", 1 },
                 { TESS_K_SCALE, "scale", 0 } };
    char want[128];
    for (int i = 0; i < 5; i++) {
        const uint32_t to = each[i].kernel == TESS_K_SQUARE_SUM ? TESS_I64 : TESS_F32;
        for (int null = 0; null < 2; null++) {
            const void *list[2] = { null == 0 ? NULL : data[0], null == 1 ? NULL : data[1] };
            tess_kernel k = a_kernel(each[i].kernel, TESS_F32, to);
            k.in = list;
            snprintf(want, sizeof want, "%s: input %d of %d is null", each[i].name, null, each[i].inputs);
            if (null < each[i].inputs)
                refused(&k, TESS_E_INVALID, want);
            else
                assert_int_equal(try_kernel(&k, &error), TESS_OK);
        }
        tess_kernel k = a_kernel(each[i].kernel, TESS_F32, to);
        k.in = NULL;
        snprintf(want, sizeof want, "%s: no inputs given", each[i].name);
        if (each[i].inputs)
            refused(&k, TESS_E_INVALID, want);
        else
            assert_int_equal(try_kernel(&k, &error), TESS_OK);
        k = a_kernel(each[i].kernel, TESS_F32, to), k.out = NULL;
        snprintf(want, sizeof want, "%s: the output is null", each[i].name);
        refused(&k, TESS_E_INVALID, want);
    }
    tess_kernel k = a_kernel(TESS_K_TREE_SUM, TESS_F32, TESS_F32);
    k.n_in = 0;
    refused(&k, TESS_E_INVALID, "a tree sum of no inputs");
}

static void test_kernel_checks__not_all_is_scaled(void **state) {
    (void)state;
    static const struct {
        uint32_t kernel, from, to;
        const char *refused; /* null: it is scaled */
    } each[] = {
        { TESS_K_CAST, TESS_F32, TESS_BF16, "cast of f32" },
        { TESS_K_TREE_SUM, TESS_F32, TESS_BF16, NULL },
        { TESS_K_TREE_SUM, TESS_F64, TESS_F64, NULL },
        { TESS_K_TREE_SUM, TESS_I32, TESS_I32, "tree sum of i32" },
        { TESS_K_TREE_SUM, TESS_I64, TESS_I64, "tree sum of i64" },
        { TESS_K_TREE_SUM, TESS_F32, TESS_Q8, "tree sum of f32" },
        { TESS_K_TREE_SUM, TESS_BF16, TESS_Q8E4M3, "tree sum of bf16" },
        { TESS_K_TREE_SUM, TESS_Q8, TESS_F32, NULL },
        { TESS_K_SCALE, TESS_F32, TESS_F32, NULL },
        { TESS_K_SQUARE_SUM, TESS_BF16, TESS_I64, NULL },
        { TESS_K_OPTIMIZER, TESS_F32, TESS_F32, NULL },
    };
    static const double plain[] = { 0, 1 }, others[] = { 0.5, -1, 2 };
    char want[128];
    for (size_t i = 0; i < sizeof each / sizeof each[0]; i++) {
        tess_kernel k = a_kernel(each[i].kernel, each[i].from, each[i].to);
        for (int s = 0; s < 2; s++) {
            k.scale = plain[s];
            assert_int_equal(try_kernel(&k, &error), TESS_OK);
        }
        for (int s = 0; s < 3; s++) {
            k.scale = others[s];
            snprintf(want, sizeof want, "%s does not scale: scale is %g, expected 0 or 1", each[i].refused, k.scale);
            if (each[i].refused)
                refused(&k, TESS_E_UNSUPPORTED, want);
            else
                assert_int_equal(try_kernel(&k, &error), TESS_OK);
        }
    }
}

/* Sums through blocks are of one kind, of f32 from their beginning, and of no chain. */
static void test_kernel_checks__sums_through_blocks(void **state) {
    (void)state;
    static const uint32_t dtypes[] = {
        TESS_F32, TESS_BF16, TESS_F16, TESS_Q8, TESS_Q8E4M3, TESS_F64, TESS_I32, TESS_I64
    };
    char want[128];
    for (int d = 0; d < 8; d++)
        for (uint32_t flags = 0; flags < 32; flags++) {
            tess_kernel k = a_kernel(TESS_K_TREE_SUM, dtypes[d], dtypes[d]);
            const uint32_t both = TESS_KERNEL_Q8 | TESS_KERNEL_Q8E4M3, kinds = flags & both;
            const int fine = !kinds || (d < 5 && kinds != both && !(flags & TESS_KERNEL_CHAIN));
            if (!kinds && flags & TESS_KERNEL_CHAIN && d > 2 && d < 5)
                continue; /* a chain is of sums, which are no blocks */
            k.flags = flags;
            snprintf(want, sizeof want, "tree sum of %s with flags %u: blocks are of one kind, of f32, and of no chain",
                     tess_dtype_name(dtypes[d]), flags);
            if (fine)
                assert_int_equal(try_kernel(&k, &error), TESS_OK);
            else
                refused(&k, TESS_E_INVALID, want);
            k = a_kernel(TESS_K_CAST, dtypes[d], dtypes[d]), k.flags = flags; /* which has no flags */
            assert_int_equal(try_kernel(&k, &error), TESS_OK);
        }
}

static void test_kernel_checks__draws_are_of_whole_blocks_of_f32(void **state) {
    (void)state;
    const tess_place runs[1] = { { .elems = 3 } };
    for (uint32_t from = 1; from <= TESS_Q8E4M3; from++)
        for (uint32_t to = 1; to <= TESS_Q8E4M3; to++)
            for (int odd = 0; odd < 4; odd++) { /* a place within a block; no list; neither runs nor a list */
                if (!offers(TESS_K_CAST, from, to))
                    continue;
                tess_rounding r = { .struct_size = sizeof r, .n_runs = odd != 3, .runs = odd < 2 ? runs : NULL };
                char want[128];
                r.first = odd == 1 ? 255 : 512;
                tess_kernel k = a_kernel(TESS_K_CAST, from, to);
                k.rounding = &r;
                snprintf(want, sizeof want, "cast from %s to %s by draws: from f32 to blocks, whole ones",
                         tess_dtype_name(from), tess_dtype_name(to));
                if (from == TESS_F32 && BLOCKS(to) && odd != 1 && odd != 2)
                    assert_int_equal(try_kernel(&k, &error), TESS_OK);
                else
                    refused(&k, TESS_E_INVALID, want);
                k.struct_size = sizeof k - 1; /* an older caller's, who knows no draws */
                assert_int_equal(try_kernel(&k, &error), TESS_OK);
            }
}

static void test_kernel_checks__an_optimizers_settings(void **state) {
    (void)state;
    tess_kernel k = a_kernel(TESS_K_OPTIMIZER, TESS_F32, TESS_F32);
    k.optimizer = NULL;
    refused(&k, TESS_E_INVALID, "optimizer: its settings are null");
    k = a_kernel(TESS_K_OPTIMIZER, TESS_F32, TESS_F32), optimizer.segments = NULL;
    refused(&k, TESS_E_INVALID, "optimizer: its settings are null");
    optimizer.n_segments = 0;
    assert_int_equal(try_kernel(&k, &error), TESS_OK);
    for (uint32_t o = 0; o < 7; o++) {
        char want[64];
        k = a_kernel(TESS_K_OPTIMIZER, TESS_F32, TESS_F32), optimizer.optimizer = o;
        snprintf(want, sizeof want, "optimizer %u is unknown, expected 1 to 4", o);
        if (o < 1 || o > 4)
            refused(&k, TESS_E_UNSUPPORTED, want);
        else
            assert_int_equal(try_kernel(&k, &error), TESS_OK);
        for (int missing = 0; missing < 2 && o >= 1 && o <= 4; missing++) {
            k = a_kernel(TESS_K_OPTIMIZER, TESS_F32, TESS_F32), optimizer.optimizer = o;
            k.state[missing] = NULL;
            snprintf(want, sizeof want, "optimizer %u: state %d is null", o, missing);
            if (o == TESS_OPT_SGD)
                assert_int_equal(try_kernel(&k, &error), TESS_OK);
            else
                refused(&k, TESS_E_INVALID, want);
        }
    }
    k = a_kernel(TESS_K_OPTIMIZER, TESS_F32, TESS_F32), optimizer.optimizer = TESS_OPT_SGD;
    segments[1] = segments[0], segments[0].elems = 1, segments[1].first = 1, segments[1].elems = 1;
    optimizer.n_segments = 2, k.state[0] = k.state[1] = NULL;
    assert_int_equal(try_kernel(&k, &error), TESS_OK);
    segments[1].momentum = 0.5f; /* of any segment */
    refused(&k, TESS_E_INVALID, "optimizer 1: state 0 is null");
    segments[0].momentum = 0.5f, segments[1].momentum = 0;
    refused(&k, TESS_E_INVALID, "optimizer 1: state 0 is null");
    k.state[0] = scratch;
    assert_int_equal(try_kernel(&k, &error), TESS_OK);
    optimizer.step = 0;
    refused(&k, TESS_E_INVALID, "optimizer: the step is 0, it counts from 1");
}

static void test_kernel_checks__segments_ascend_within_the_shard(void **state) {
    (void)state;
    for (uint64_t a = 0; a < 5; a++)
        for (uint64_t an = 0; an < 5; an++)
            for (uint64_t b = 0; b < 5; b++)
                for (uint64_t bn = 0; bn < 5; bn++) { /* two of them in a shard of three */
                    char want[128];
                    tess_kernel k = a_kernel(TESS_K_OPTIMIZER, TESS_F32, TESS_F32);
                    segments[1] = segments[0];
                    segments[0].first = a, segments[0].elems = an, segments[1].first = b, segments[1].elems = bn;
                    optimizer.n_segments = 2;
                    const int bad = a + an > 3 ? 0 : b + bn > 3 || b < a + an ? 1 : -1;
                    snprintf(want, sizeof want,
                             "optimizer: segment %d is %d elements from %d; expected ascending, disjoint, within 3",
                             bad, (int)(bad ? bn : an), (int)(bad ? b : a));
                    if (bad < 0)
                        assert_int_equal(try_kernel(&k, &error), TESS_OK);
                    else
                        refused(&k, TESS_E_INVALID, want);
                }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernel_checks__dtypes_are_those_of_the_list),
        cmocka_unit_test(test_kernel_checks__inputs_and_outputs_are_there),
        cmocka_unit_test(test_kernel_checks__not_all_is_scaled),
        cmocka_unit_test(test_kernel_checks__sums_through_blocks),
        cmocka_unit_test(test_kernel_checks__draws_are_of_whole_blocks_of_f32),
        cmocka_unit_test(test_kernel_checks__an_optimizers_settings),
        cmocka_unit_test(test_kernel_checks__segments_ascend_within_the_shard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
