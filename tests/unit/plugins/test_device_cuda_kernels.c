/* SPDX-License-Identifier: BSD-3-Clause */
/* Kernels of device-cuda without a GPU: which are offered, which arguments are refused, and what each launch gets. */
#include "tests/unit/plugins/device_cuda_kernels.h"

/* ---- what is offered ---- */

static void test_device_cuda_kernels__are_offered_as_the_contract_lists_them(void **state) {
    (void)state;
    static const struct {
        uint32_t kernel;
        const char *pairs; /* with out of "no dtype" and i64 where that is a kernel's own */
    } offers[] = {
        { 0, "" },
        { TESS_K_CAST, "u8:u8 i8:i8 i32:i32 i64:i64 f16:f16,bf16,f32,f64 bf16:f16,bf16,f32,f64 "
                       "f32:f16,bf16,f32,f64,q8,q8e4m3 f64:f16,bf16,f32,f64 f8e4m3:f8e4m3 f8e5m2:f8e5m2 "
                       "q8:f16,bf16,f32,q8 q8e4m3:f16,bf16,f32,q8e4m3 " },
        { TESS_K_TREE_SUM, "i32:i32 i64:i64 f16:f16,bf16,f32,q8,q8e4m3 bf16:f16,bf16,f32,q8,q8e4m3 "
                           "f32:f16,bf16,f32,q8,q8e4m3 f64:f64 q8:f16,bf16,f32,q8,q8e4m3 "
                           "q8e4m3:f16,bf16,f32,q8,q8e4m3 " },
        { TESS_K_SCALE, "f32:f32 f64:f64 " },
        { TESS_K_SQUARE_SUM, "f16:no dtype,i64 bf16:no dtype,i64 f32:no dtype,i64 " },
        { TESS_K_OPTIMIZER, "f16:f32 bf16:f32 f32:f32 f64:f64 " },
        { TESS_K_CLIP, "i64:f32 " },
        { 7, "" },
    };
    for (size_t n = 0; n < sizeof offers / sizeof *offers; n++) {
        for (uint32_t in = 0; in < 70; in++) {
            int any = 0;
            for (uint32_t out = 0; out < 70; out++) {
                tess_kernel k = {
                    .struct_size = sizeof k, .kernel = offers[n].kernel, .in_dtype = in, .out_dtype = out
                };
                tess_need need = { .struct_size = sizeof need, .host_bytes = 7 };
                if (ops->kernel_need(plugin, &k, &need) != TESS_OK)
                    continue;
                assert_true(need.align == 256 && !need.host_bytes && !need.device_bytes);
                if (any)
                    say(",%s", tess_dtype_name(out));
                else
                    say("%s:%s", tess_dtype_name(in), tess_dtype_name(out));
                any = 1;
            }
            if (any)
                say(" ");
        }
        expect_said(offers[n].pairs);
    }
}

static void test_device_cuda_kernels__draws_are_of_casts_to_blocks(void **state) {
    (void)state;
    const tess_rounding r = { .struct_size = sizeof r };
    int offered = 0;
    for (uint32_t kernel = 0; kernel < 8; kernel++)
        for (uint32_t in = 0; in < 40; in++)
            for (uint32_t out = 0; out < 40; out++) {
                tess_kernel k = {
                    .struct_size = sizeof k, .kernel = kernel, .in_dtype = in, .out_dtype = out, .rounding = &r
                };
                tess_need need = { .struct_size = sizeof need };
                int is = kernel == TESS_K_CAST && in == TESS_F32 && (out == TESS_Q8 || out == TESS_Q8E4M3);
                assert_int_equal(ops->kernel_need(plugin, &k, &need), is ? TESS_OK : TESS_E_UNSUPPORTED);
                offered += is;
            }
    assert_int_equal(offered, 2);
    tess_kernel old = { .struct_size = offsetof(tess_kernel, rounding),
                        .kernel = TESS_K_CAST,
                        .in_dtype = TESS_F32,
                        .out_dtype = TESS_F32,
                        .rounding = &r };
    tess_need need = { .struct_size = sizeof need };
    assert_int_equal(ops->kernel_need(plugin, &old, &need), TESS_OK); /* of an older core */
}

static void test_device_cuda_kernels__sums_have_so_many_inputs(void **state) {
    (void)state;
    tess_kernel k = { .struct_size = sizeof k,
                      .kernel = TESS_K_TREE_SUM,
                      .in_dtype = TESS_F32,
                      .out_dtype = TESS_F32,
                      .n_in = 448,
                      .elems = 1 };
    tess_need need = { .struct_size = sizeof need };
    assert_int_equal(ops->kernel_need(plugin, &k, &need), TESS_OK);
    k.n_in = 449;
    assert_int_equal(ops->kernel_need(plugin, &k, &need), TESS_E_UNSUPPORTED);
    REFUSED(k, TESS_E_UNSUPPORTED, "device cuda: a tree sum of 449 inputs, expected 1 to 448");
    k.n_in = 0;
    REFUSED(k, TESS_E_INVALID, "device cuda: a tree sum of 0 inputs, expected 1 to 448");
    k.kernel = TESS_K_CAST, k.n_in = 449;
    assert_int_equal(ops->kernel_need(plugin, &k, &need), TESS_OK);
}

/* ---- what is refused ---- */

static void test_device_cuda_kernels__arguments_that_make_no_sense_are_refused(void **state) {
    (void)state;
    const void *in[] = { at(0x1000), NULL, at(0x3000) };
    tess_kernel k = { .struct_size = sizeof k,
                      .kernel = TESS_K_CAST,
                      .in_dtype = TESS_F32,
                      .out_dtype = TESS_I32,
                      .elems = 4,
                      .in = in,
                      .out = at(0x2000) };
    REFUSED(k, TESS_E_UNSUPPORTED, "device cuda: kernel 1 from f32 to i32 is not offered");
    k.out_dtype = TESS_BF16, k.scale = 2;
    REFUSED(k, TESS_E_UNSUPPORTED, "device cuda: kernel 1 of f32 does not scale");
    k.scale = 1, k.in = NULL;
    REFUSED(k, TESS_E_INVALID, "device cuda: kernel 1: input 0 is null");
    k.in = in + 1;
    REFUSED(k, TESS_E_INVALID, "device cuda: kernel 1: input 0 is null");
    k.in = in, k.out = NULL;
    REFUSED(k, TESS_E_INVALID, "device cuda: kernel 1: the output is null");
    k.elems = 0, k.in = NULL;
    run(&k); /* nothing to do */
    k = (tess_kernel){ .struct_size = sizeof k,
                       .kernel = TESS_K_TREE_SUM,
                       .in_dtype = TESS_F32,
                       .out_dtype = TESS_F32,
                       .n_in = 2,
                       .elems = 4,
                       .in = in,
                       .out = at(0x2000) };
    REFUSED(k, TESS_E_INVALID, "device cuda: kernel 2: input 1 is null");
    k = (tess_kernel){
        .struct_size = sizeof k, .kernel = TESS_K_SCALE, .in_dtype = TESS_F32, .out_dtype = TESS_F32, .elems = 4
    };
    REFUSED(k, TESS_E_INVALID, "device cuda: kernel 3: the output is null");
    k = (tess_kernel){
        .struct_size = sizeof k, .kernel = TESS_K_SQUARE_SUM, .in_dtype = TESS_F32, .out_dtype = TESS_I64, .in = in
    };
    REFUSED(k, TESS_E_INVALID, "device cuda: kernel 4: the output is null"); /* sums of nothing are written too */
}

static void test_device_cuda_kernels__sums_refuse_scales_and_flags_that_they_have_not(void **state) {
    (void)state;
    static const char through[] =
        "device cuda: a tree sum with flags %u: blocks are of one kind, of f32, and of no chain";
    const void *in[] = { at(0x1000), at(0x3000) };
    for (uint32_t in_dtype = TESS_U8; in_dtype <= TESS_Q8E4M3; in_dtype++)
        for (uint32_t out_dtype = TESS_U8; out_dtype <= TESS_Q8E4M3; out_dtype++)
            for (uint32_t flags = 0; flags < 32; flags += 2)
                for (int scale = 0; scale < 3; scale++) {
                    tess_kernel k = { .struct_size = sizeof k,
                                      .kernel = TESS_K_TREE_SUM,
                                      .in_dtype = in_dtype,
                                      .out_dtype = out_dtype,
                                      .n_in = 2,
                                      .flags = flags,
                                      .elems = 4,
                                      .in = in,
                                      .out = at(0x2000),
                                      .scale = scale };
                    tess_need need = { .struct_size = sizeof need };
                    char text[160];
                    int whole = in_dtype == TESS_I32 || in_dtype == TESS_I64, both = (flags & 24) == 24;
                    if (ops->kernel_need(plugin, &k, &need))
                        continue;
                    tess_status s = ops->kernel(device, &k, &stream, no_error());
                    if (flags & 24 && (both || flags & TESS_KERNEL_CHAIN || whole || in_dtype == TESS_F64)) {
                        snprintf(text, sizeof text, through, flags);
                        assert_int_equal(s, TESS_E_INVALID);
                        assert_string_equal(e.message, text);
                    } else if (scale == 2 && (whole || out_dtype >= TESS_Q8)) {
                        snprintf(text, sizeof text, "device cuda: kernel 2 of %s does not scale",
                                 tess_dtype_name(in_dtype));
                        assert_int_equal(s, TESS_E_UNSUPPORTED);
                        assert_string_equal(e.message, text);
                    } else
                        assert_int_equal(s, TESS_OK);
                    said_so_far[0] = 0;
                }
}

static void test_device_cuda_kernels__optimizers_refuse_what_they_cannot_step(void **state) {
    (void)state;
    const void *in[] = { at(0x1000) };
    tess_segment s[] = { segment(1, 0, 4), segment(1, 4, 4) };
    tess_optimizer o = {
        .struct_size = sizeof o, .optimizer = TESS_OPT_ADAM, .n_segments = 2, .segments = s, .step = 1
    };
    tess_kernel k = { .struct_size = sizeof k,
                      .kernel = TESS_K_OPTIMIZER,
                      .in_dtype = TESS_F32,
                      .out_dtype = TESS_F32,
                      .elems = 8,
                      .in = in,
                      .out = at(0x2000),
                      .state = { at(0x4000), at(0x5000) } };
    static const char none[] = "device cuda: optimizer without settings, or of step 0",
                      where[] = "device cuda: segment 1 of the optimizer is %d elements from %d; expected ascending, "
                                "disjoint, within 8";
    REFUSED(k, TESS_E_INVALID, none);
    k.optimizer = &o, o.step = 0;
    REFUSED(k, TESS_E_INVALID, none);
    o.step = 1, o.segments = NULL;
    REFUSED(k, TESS_E_INVALID, none);
    o.segments = s, o.optimizer = 0;
    REFUSED(k, TESS_E_UNSUPPORTED, "device cuda: optimizer 0 is unknown, expected 1 to 4");
    o.optimizer = 5;
    REFUSED(k, TESS_E_UNSUPPORTED, "device cuda: optimizer 5 is unknown, expected 1 to 4");
    static const int wrong[][2] = { { 3, 4 }, { 9, 0 }, { 4, 5 }, { 8, 1 } };
    for (int i = 0; i < 4; i++) {
        char text[200];
        o.optimizer = TESS_OPT_ADAM;
        s[1] = segment(1, (uint64_t)wrong[i][0], (uint64_t)wrong[i][1]);
        snprintf(text, sizeof text, where, wrong[i][1], wrong[i][0]);
        REFUSED(k, TESS_E_INVALID, text);
    }
    s[1] = segment(1, 8, 0);
    run(&k);
    said_so_far[0] = 0;
    s[1] = segment(1, 4, 4);
    for (uint32_t which = TESS_OPT_SGD; which <= TESS_OPT_ADADELTA; which++)
        for (int momentum = 0; momentum < 3; momentum++) /* of none, of the first, of the last */
            for (int states = 0; states < 4; states++) {
                char text[100];
                int needed = which != TESS_OPT_SGD ? 3 : momentum ? 1 : 0, missing = needed & ~states;
                o.optimizer = which;
                s[0].momentum = momentum == 1 ? 0.5f : 0, s[1].momentum = momentum == 2 ? 0.5f : 0;
                k.state[0] = states & 1 ? at(0x4000) : NULL, k.state[1] = states & 2 ? at(0x5000) : NULL;
                snprintf(text, sizeof text, "device cuda: state %d of the optimizer is null", missing & 1 ? 0 : 1);
                if (missing)
                    REFUSED(k, TESS_E_INVALID, text);
                else
                    run(&k);
                said_so_far[0] = 0;
            }
    o.segments = NULL, o.n_segments = 0;
    run(&k); /* nothing to do */
    expect_said("");
}

/* ---- launches ---- */

static void test_device_cuda_kernels__casts_take_four_elements_an_item(void **state) {
    (void)state;
    const void *in[] = { at(0x1000) };
    tess_kernel k = a_cast(TESS_F32, TESS_BF16, 1, in, at(0x2000));
    run(&k);
    expect_said("tess_cuda_cast 1 x 256 on s70: f32 to bf16, 1 in 1 items, wide, 1000 to 2000; ");
    k.elems = 1024, k.scale = 1;
    run(&k);
    expect_said("tess_cuda_cast 1 x 256 on s70: f32 to bf16, 1024 in 256 items, wide, 1000 to 2000; ");
    k.elems = 1025;
    run(&k);
    expect_said("tess_cuda_cast 2 x 256 on s70: f32 to bf16, 1025 in 257 items, wide, 1000 to 2000; ");
    k.elems = 79 << 10;
    run(&k);
    expect_said("tess_cuda_cast 79 x 256 on s70: f32 to bf16, 80896 in 20224 items, wide, 1000 to 2000; ");
    k.elems = 1 << 20; /* ten processors have eight blocks each */
    run(&k);
    expect_said("tess_cuda_cast 80 x 256 on s70: f32 to bf16, 1048576 in 262144 items, wide, 1000 to 2000; ");
    assert_int_equal(ops->kernel(device, &k, NULL, no_error()), TESS_OK);
    expect_said("tess_cuda_cast 80 x 256 on s0: f32 to bf16, 1048576 in 262144 items, wide, 1000 to 2000; ");
}

static void test_device_cuda_kernels__items_are_wide_where_both_addresses_allow_it(void **state) {
    (void)state;
    for (uintptr_t from = 0; from < 17; from++)
        for (uintptr_t to = 0; to < 17; to++) {
            const void *in[] = { at(0x1000 + from) };
            tess_kernel k = a_cast(TESS_F32, TESS_F16, 1, in, at(0x2000 + to));
            run(&k);
            assert_int_equal(strstr(said_so_far, "wide") != NULL, from % 16 == 0 && to % 8 == 0);
            said_so_far[0] = 0;
        }
}

static void test_device_cuda_kernels__what_stays_as_it_is_is_copied(void **state) {
    (void)state;
    const void *in[] = { at(0x1000) };
    tess_kernel k = a_cast(TESS_F16, TESS_F16, 5, in, at(0x2000));
    run(&k);
    expect_said("copy 2000 from 1000, 10 on s70; ");
    k = a_cast(TESS_Q8, TESS_Q8, 257, in, at(0x2000));
    run(&k);
    expect_said("copy 2000 from 1000, 520 on s70; ");
    k.out = at(0x1000);
    run(&k);
    expect_said("");
    k = a_cast(TESS_Q8, TESS_F32, 257, in, at(0x2000));
    run(&k);
    expect_said("tess_cuda_cast 1 x 256 on s70: q8 to f32, 257 in 65 items, wide, 1000 to 2000; ");
}

static void test_device_cuda_kernels__blocks_have_a_warp_each(void **state) {
    (void)state;
    const void *in[] = { at(0x1000) };
    tess_kernel k = a_cast(TESS_F32, TESS_Q8E4M3, 2049, in, at(0x2000));
    k.flags = TESS_KERNEL_ADD | TESS_KERNEL_Q8; /* which are not a cast's */
    k.n_in = 9;
    run(&k);
    expect_said("tess_cuda_blocks_few 2 x 256 on s70: 1 of f32 as q8e4m3, 2049 in 9 items, to 2000 from 1000; ");
    k.elems = 2048;
    run(&k);
    expect_said("tess_cuda_blocks_few 1 x 256 on s70: 1 of f32 as q8e4m3, 2048 in 8 items, to 2000 from 1000; ");
    k.elems = 256;
    run(&k);
    expect_said("tess_cuda_blocks_few 1 x 256 on s70: 1 of f32 as q8e4m3, 256 in 1 items, to 2000 from 1000; ");
}

static void test_device_cuda_kernels__scales_work_in_place_or_from_another_array(void **state) {
    (void)state;
    const void *in[] = { at(0x1008) }, *none[] = { NULL };
    tess_kernel k = { .struct_size = sizeof k,
                      .kernel = TESS_K_SCALE,
                      .in_dtype = TESS_F64,
                      .out_dtype = TESS_F64,
                      .elems = 5,
                      .out = at(0x2000),
                      .scale = 0 };
    run(&k);
    expect_said("tess_cuda_scale 1 x 256 on s70: f64 * 0, 5 in 2 items, wide, 2000 to 2000; ");
    k.in = none, k.scale = 0.5;
    run(&k);
    expect_said("tess_cuda_scale 1 x 256 on s70: f64 * 0.5, 5 in 2 items, wide, 2000 to 2000; ");
    k.in = in;
    run(&k);
    expect_said("tess_cuda_scale 1 x 256 on s70: f64 * 0.5, 5 in 2 items, 1008 to 2000; ");
    k.in = none, k.out = at(0x2008);
    run(&k);
    expect_said("tess_cuda_scale 1 x 256 on s70: f64 * 0.5, 5 in 2 items, 2008 to 2008; ");
}

static void test_device_cuda_kernels__the_clip_is_one_item(void **state) {
    (void)state;
    const void *in[] = { at(0x1000) };
    tess_kernel k = { .struct_size = sizeof k,
                      .kernel = TESS_K_CLIP,
                      .in_dtype = TESS_I64,
                      .out_dtype = TESS_F32,
                      .elems = 1,
                      .in = in,
                      .out = at(0x1000),
                      .scale = 0.25 };
    run(&k);
    expect_said("tess_cuda_clip 1 x 256 on s70: 1, 1000 to 1000, at most 0.25; ");
}

/* ---- sums ---- */

enum { MOST = 448 };
static const void *many[MOST];
static tess_kernel a_sum(uint32_t in_dtype, uint32_t out_dtype, uint32_t n, uint64_t elems) {
    for (uint32_t i = 0; i < MOST; i++)
        many[i] = at(0x1000 * (i + 1));
    return (tess_kernel){ .struct_size = sizeof(tess_kernel),
                          .kernel = TESS_K_TREE_SUM,
                          .in_dtype = in_dtype,
                          .out_dtype = out_dtype,
                          .n_in = n,
                          .elems = elems,
                          .in = many,
                          .out = at(0xf000) };
}

static void test_device_cuda_kernels__sums_are_of_their_dtype_and_of_few_or_many(void **state) {
    (void)state;
    static const struct {
        uint32_t in, out;
        const char *name;
    } kinds[] = { { TESS_F32, TESS_F32, "f32" }, { TESS_BF16, TESS_F32, "f32" }, { TESS_Q8, TESS_BF16, "f32" },
                  { TESS_F64, TESS_F64, "f64" }, { TESS_I32, TESS_I32, "i32" },  { TESS_I64, TESS_I64, "i64" } };
    for (int i = 0; i < 6; i++)
        for (uint32_t n = 15; n <= 448; n += n < 18 ? 1 : 430) {
            char want[240];
            tess_kernel k = a_sum(kinds[i].in, kinds[i].out, n, 9);
            run(&k);
            snprintf(
                want, sizeof want,
                "tess_cuda_sum_%s_%s 1 x 256 on s70: %u of %s as %s, 9 in 3 items, wide, to f000 from 1000 2000 3000; ",
                kinds[i].name, n > 16 ? "many" : "few", n, tess_dtype_name(kinds[i].in), tess_dtype_name(kinds[i].out));
            expect_said(want);
        }
}

static void test_device_cuda_kernels__a_sum_of_one_is_a_cast_unless_it_adds_or_scales(void **state) {
    (void)state;
    tess_kernel k = a_sum(TESS_F32, TESS_F32, 1, 4);
    run(&k);
    expect_said("copy f000 from 1000, 16 on s70; ");
    k.scale = 1, k.out_dtype = TESS_F16;
    run(&k);
    expect_said("tess_cuda_cast 1 x 256 on s70: f32 to f16, 4 in 1 items, wide, 1000 to f000; ");
    k.scale = 0.5;
    run(&k);
    expect_said("tess_cuda_sum_f32_few 1 x 256 on s70: 1 of f32 as f16, 4 in 1 items, wide * 0.5, to f000 from 1000; ");
    k.scale = 0, k.flags = TESS_KERNEL_ADD;
    run(&k);
    expect_said(
        "tess_cuda_sum_f32_few 1 x 256 on s70: 1 of f32 as f16, 4 in 1 items, wide, added, to f000 from 1000; ");
    k.n_in = 2, k.scale = 2;
    run(&k);
    expect_said("tess_cuda_sum_f32_few 1 x 256 on s70: 2 of f32 as f16, 4 in 1 items, wide, added * 2, to f000 from "
                "1000 2000; ");
}

static void test_device_cuda_kernels__sums_through_blocks_are_the_blocks(void **state) {
    (void)state;
    tess_kernel k = a_sum(TESS_BF16, TESS_F32, 2, 300);
    k.flags = TESS_KERNEL_Q8;
    run(&k);
    expect_said(
        "tess_cuda_blocks_few 1 x 256 on s70: 2 of bf16 as f32, 300 in 2 items, through q8, to f000 from 1000 2000; ");
    k.flags = TESS_KERNEL_Q8E4M3 | TESS_KERNEL_ADD, k.scale = 0.5;
    run(&k);
    expect_said(
        "tess_cuda_blocks_few 1 x 256 on s70: 2 of bf16 as f32, 300 in 2 items, added * 0.5, through q8e4m3, to "
        "f000 from 1000 2000; ");
    k = a_sum(TESS_Q8, TESS_Q8, 17, 300);
    k.scale = 1;
    run(&k);
    expect_said("tess_cuda_blocks_many 1 x 256 on s70: 17 of q8 as q8, 300 in 2 items, to f000 from 1000 2000 3000; ");
    k.n_in = 16;
    run(&k);
    expect_said("tess_cuda_blocks_few 1 x 256 on s70: 16 of q8 as q8, 300 in 2 items, to f000 from 1000 2000 3000; ");
}

/* All but the last of a chain have the sum's dtype already, whose items are wider. */
static void test_device_cuda_kernels__each_address_of_a_sum_decides_how_wide_it_is(void **state) {
    (void)state;
    for (int chain = 0; chain < 2; chain++)
        for (int which = -1; which < 3; which++)
            for (uintptr_t off = 0; off < 17; off++) {
                tess_kernel k = a_sum(TESS_BF16, TESS_F32, 3, 4);
                k.flags = chain ? TESS_KERNEL_CHAIN : 0;
                if (which < 0)
                    k.out = at(0xf000 + off);
                else
                    many[which] = at(0x1000 * ((uintptr_t)which + 1) + off);
                run(&k);
                uintptr_t width = which < 0 || (chain && which < 2) ? 16 : 8;
                assert_int_equal(strstr(said_so_far, ", wide") != NULL, off % width == 0);
                assert_int_equal(strstr(said_so_far, ", chain") != NULL, chain);
                said_so_far[0] = 0;
            }
    for (uintptr_t off = 0; off < 17; off += 8) { /* of f64 the partials are f64 */
        tess_kernel k = a_sum(TESS_F64, TESS_F64, 2, 4);
        k.flags = TESS_KERNEL_CHAIN;
        many[0] = at(0x1000 + off);
        run(&k);
        assert_int_equal(strstr(said_so_far, ", wide") != NULL, off != 8);
        said_so_far[0] = 0;
    }
}

/* ---- draws ---- */

static void test_device_cuda_kernels__draws_are_launched_for_each_parameter_with_zeros_between(void **state) {
    (void)state;
    /* In the flat buffer; the input begins at element 512 and has 2048 elements: [512, 2560). */
    static const tess_place runs[] = { { 0, 300, 5000 },     /* before it */
                                       { 512, 700, 100 },    /* to 1212, its blocks to 1280 */
                                       { 1536, 256, 9000 },  /* one block */
                                       { 2048, 900, 20000 }, /* beyond its end */
                                       { 3072, 256, 30000 } };
    const tess_rounding r = { .struct_size = sizeof r, .n_runs = 5, .runs = runs, .first = 512, .step = 6, .draw = 7 };
    const void *in[] = { at(0x10000) };
    tess_kernel k = a_cast(TESS_F32, TESS_Q8, 2048, in, at(0x2000));
    k.rounding = &r;
    run(&k);
    expect_said("tess_cuda_draw 1 x 256 on s70: 768 in 3 blocks of q8, 10000 to 2000, number 100, step 6, draw 7; "
                "fill 230c with 0, 260 on s70; "
                "tess_cuda_draw 1 x 256 on s70: 256 in 1 blocks of q8, 11000 to 2410, number 9000, step 6, draw 7; "
                "fill 2514 with 0, 260 on s70; "
                "tess_cuda_draw 1 x 256 on s70: 512 in 2 blocks of q8, 11800 to 2618, number 20000, step 6, draw 7; ");
}

static void test_device_cuda_kernels__draws_begin_within_a_parameter_and_clear_what_has_none(void **state) {
    (void)state;
    static const tess_place runs[] = { { 256, 1000, 100 } }, long_run[] = { { 0, 2048, 0 } },
                            short_run[] = { { 0, 256, 7 } }; /* to 1256, its blocks to 1280 */
    tess_rounding r = { .struct_size = sizeof r, .n_runs = 1, .runs = runs, .first = 1024, .step = 1, .draw = 2 };
    const void *in[] = { at(0x10000) };
    tess_kernel k = a_cast(TESS_F32, TESS_Q8, 1000, in, at(0x2000));
    k.rounding = &r;
    run(&k);
    expect_said("tess_cuda_draw 1 x 256 on s70: 256 in 1 blocks of q8, 10000 to 2000, number 868, step 1, draw 2; "
                "fill 2104 with 0, 780 on s70; ");
    r.n_runs = 0;
    run(&k);
    expect_said("fill 2000 with 0, 1040 on s70; ");
    r.n_runs = 1, r.first = 1280; /* behind it */
    run(&k);
    expect_said("fill 2000 with 0, 1040 on s70; ");
    r.first = 0, k.elems = 256; /* before it */
    run(&k);
    expect_said("fill 2000 with 0, 260 on s70; ");
    k.elems = 257; /* the last element is the run's first, or the first behind it */
    run(&k);
    expect_said("fill 2000 with 0, 260 on s70; "
                "tess_cuda_draw 1 x 256 on s70: 1 in 1 blocks of q8, 10400 to 2104, number 100, step 1, draw 2; ");
    r.runs = short_run;
    run(&k);
    expect_said("tess_cuda_draw 1 x 256 on s70: 256 in 1 blocks of q8, 10000 to 2000, number 7, step 1, draw 2; "
                "fill 2104 with 0, 260 on s70; ");
    r.runs = long_run, k.elems = 2048; /* eight blocks, of a warp each */
    run(&k);
    expect_said("tess_cuda_draw 1 x 256 on s70: 2048 in 8 blocks of q8, 10000 to 2000, number 0, step 1, draw 2; ");
    r.runs = runs, r.first = 0, k.elems = 512;
    run(&k);
    expect_said("fill 2000 with 0, 260 on s70; "
                "tess_cuda_draw 1 x 256 on s70: 256 in 1 blocks of q8, 10400 to 2104, number 100, step 1, draw 2; ");
}

static void test_device_cuda_kernels__failed_draws_end_there(void **state) {
    (void)state;
    static const tess_place runs[] = { { 256, 256, 0 }, { 768, 256, 0 } };
    const tess_rounding r = { .struct_size = sizeof r, .n_runs = 2, .runs = runs };
    const void *in[] = { at(0x10000) };
    failing = a_cast(TESS_F32, TESS_Q8, 1280, in, at(0x2000));
    failing.rounding = &r;
    for (int n = 2; n <= 6; n++) { /* zeros, draw, zeros, draw, zeros */
        int calls = written.calls;
        written.fails_in = n, written.fails_with = CUDA_ERROR_UNKNOWN;
        EXPECT_FAILS(run_failing(), TESS_E_DEVICE, "device cuda: GPU 1: a kernel failed: NAME 999 (why)");
        assert_int_equal(written.calls - calls, n + 1); /* and out of the context */
    }
    assert_int_equal(fail_each_call(run_failing, CUDA_ERROR_UNKNOWN, NULL), 6);
}

/* ---- memory of the host ---- */

static void expect_blocks(const tess_kernel *k, const char *blocks) {
    run(k);
    expect_said_among(blocks);
}

static void test_device_cuda_kernels__few_blocks_work_on_memory_of_the_host(void **state) {
    (void)state;
    const tess_buffer locked = page_locked();
    char *from = locked.ptr;
    const void *in[] = { at(0x1000) }, *inside[] = { from }, *last[] = { from + locked.bytes - 1 },
               *behind[] = { from + locked.bytes }, *before[] = { from - 1 };
    tess_kernel k = a_cast(TESS_F32, TESS_F16, 1 << 20, in, at(0x2000));
    expect_blocks(&k, " 80 x 256");
    k.in = inside;
    expect_blocks(&k, " 32 x 256");
    k.in = last;
    expect_blocks(&k, " 32 x 256");
    k.in = behind;
    expect_blocks(&k, " 80 x 256");
    k.in = before;
    expect_blocks(&k, " 80 x 256");
    k.in = in, k.out = from + 8;
    expect_blocks(&k, " 32 x 256");
    k = a_sum(TESS_F32, TESS_F32, 3, 1 << 20);
    expect_blocks(&k, " 80 x 256");
    many[2] = from;
    expect_blocks(&k, " 32 x 256");
    k.n_in = 2;
    expect_blocks(&k, " 80 x 256");
    tess_segment s = segment(1, 0, 1 << 20);
    tess_optimizer o = {
        .struct_size = sizeof o, .optimizer = TESS_OPT_ADAM, .n_segments = 1, .segments = &s, .step = 1
    };
    for (int i = 0; i < 4; i++) {
        tess_kernel step = { .struct_size = sizeof step,
                             .kernel = TESS_K_OPTIMIZER,
                             .in_dtype = TESS_F32,
                             .out_dtype = TESS_F32,
                             .elems = 1 << 20,
                             .in = in,
                             .out = at(0x2000),
                             .state = { at(0x4000), at(0x5000) },
                             .optimizer = &o };
        if (i)
            step.state[i - 1] = from;
        expect_blocks(&step, i % 3 ? " 33 x 256" : " 81 x 256"); /* a piece has one more than its part */
    }
    tess_kernel cast = a_cast(TESS_F32, TESS_F16, 1 << 20, in, at(0x2000));
    cast.state[0] = from; /* which is no optimizer's */
    expect_blocks(&cast, " 80 x 256");
    tess_kernel scale = { .struct_size = sizeof scale,
                          .kernel = TESS_K_SCALE,
                          .in_dtype = TESS_F32,
                          .out_dtype = TESS_F32,
                          .elems = 1 << 20,
                          .out = at(0x2000) };
    expect_blocks(&scale, " 80 x 256");
    const tess_alloc_request gpu = { .struct_size = sizeof gpu, .mem = TESS_MEM_CUDA, .bytes = 1 };
    tess_buffer own = { .struct_size = sizeof own };
    assert_int_equal(ops->mem_alloc(device, &gpu, &own, no_error()), TESS_OK);
    said_so_far[0] = 0;
    cast.out = own.ptr; /* the GPU's */
    expect_blocks(&cast, " 80 x 256");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_DEVICE(test_device_cuda_kernels__are_offered_as_the_contract_lists_them),
        IN_DEVICE(test_device_cuda_kernels__draws_are_of_casts_to_blocks),
        IN_DEVICE(test_device_cuda_kernels__sums_have_so_many_inputs),
        IN_DEVICE(test_device_cuda_kernels__arguments_that_make_no_sense_are_refused),
        IN_DEVICE(test_device_cuda_kernels__sums_refuse_scales_and_flags_that_they_have_not),
        IN_DEVICE(test_device_cuda_kernels__optimizers_refuse_what_they_cannot_step),
        IN_DEVICE(test_device_cuda_kernels__casts_take_four_elements_an_item),
        IN_DEVICE(test_device_cuda_kernels__items_are_wide_where_both_addresses_allow_it),
        IN_DEVICE(test_device_cuda_kernels__what_stays_as_it_is_is_copied),
        IN_DEVICE(test_device_cuda_kernels__blocks_have_a_warp_each),
        IN_DEVICE(test_device_cuda_kernels__scales_work_in_place_or_from_another_array),
        IN_DEVICE(test_device_cuda_kernels__the_clip_is_one_item),
        IN_DEVICE(test_device_cuda_kernels__sums_are_of_their_dtype_and_of_few_or_many),
        IN_DEVICE(test_device_cuda_kernels__a_sum_of_one_is_a_cast_unless_it_adds_or_scales),
        IN_DEVICE(test_device_cuda_kernels__sums_through_blocks_are_the_blocks),
        IN_DEVICE(test_device_cuda_kernels__each_address_of_a_sum_decides_how_wide_it_is),
        IN_DEVICE(test_device_cuda_kernels__draws_are_launched_for_each_parameter_with_zeros_between),
        IN_DEVICE(test_device_cuda_kernels__draws_begin_within_a_parameter_and_clear_what_has_none),
        IN_DEVICE(test_device_cuda_kernels__failed_draws_end_there),
        IN_DEVICE(test_device_cuda_kernels__few_blocks_work_on_memory_of_the_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
