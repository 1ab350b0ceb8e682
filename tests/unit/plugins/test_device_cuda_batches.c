/* SPDX-License-Identifier: BSD-3-Clause */
/* Optimizer steps and sums of squares of device-cuda without a GPU, of which many go in one launch. */
#include "tests/unit/plugins/device_cuda_kernels.h"

/* ---- many optimizer steps in a launch ---- */

static const void *grads[] = { (void *)0x1000 };
static tess_kernel a_step(const tess_optimizer *o, uint64_t elems, uint32_t flags) {
    return (tess_kernel){ .struct_size = sizeof(tess_kernel),
                          .kernel = TESS_K_OPTIMIZER,
                          .in_dtype = TESS_F32,
                          .out_dtype = TESS_F32,
                          .flags = flags,
                          .elems = elems,
                          .in = grads,
                          .out = at(0x2000),
                          .state = { at(0x4000), at(0x5000) },
                          .optimizer = o };
}
static tess_optimizer an_adam(const tess_segment *s, uint32_t n) {
    return (tess_optimizer){
        .struct_size = sizeof(tess_optimizer), .optimizer = TESS_OPT_ADAM, .n_segments = n, .segments = s, .step = 1
    };
}

static void test_device_cuda_batches__each_optimizer_has_its_kernel(void **state) {
    (void)state;
    static const char *const names[2][5] = {
        { "sgd_f32", "sgd_momentum_f32", "adam_f32", "adamw_f32", "adadelta_f32" },
        { "sgd_f64", "sgd_momentum_f64", "adam_f64", "adamw_f64", "adadelta_f64" },
    };
    tess_segment s = segment(0.5f, 0, 3);
    for (int wide = 0; wide < 2; wide++)
        for (int i = 0; i < 5; i++) {
            char want[240];
            tess_optimizer o = an_adam(&s, 1);
            o.optimizer = i < 2 ? TESS_OPT_SGD : (uint32_t)i;
            tess_kernel k = a_step(&o, 3, 0);
            k.in_dtype = k.out_dtype = wide ? TESS_F64 : TESS_F32;
            if (i < 2)
                k.state[1] = NULL;
            if (i == 0)
                k.state[0] = NULL;
            run(&k);
            snprintf(
                want, sizeof want,
                "tess_cuda_%s 1 x 256 on s70: 1 pieces, 1 blocks, 1 sets | [0, 3) from block 0, set 0, wide: %s 1000, "
                "2000%s, lr 0.5; ",
                names[wide][i], wide ? "f64" : "f32",
                i == 0   ? ""
                : i == 1 ? ", 4000, 0"
                         : ", 4000, 5000");
            expect_said(want);
        }
}

static void test_device_cuda_batches__each_address_of_a_step_decides_how_wide_it_is(void **state) {
    (void)state;
    tess_segment s = segment(0.5f, 0, 3);
    for (int which = 0; which < 5; which++)
        for (uintptr_t off = 0; off < 17; off++) {
            tess_optimizer o = an_adam(&s, 1);
            tess_kernel k = a_step(&o, 3, 0);
            const void *in[] = { at(0x1000) };
            k.in = in, k.out2 = at(0x6000);
            void **const places[] = { (void **)(uintptr_t)&in[0], &k.out, &k.state[0], &k.state[1], &k.out2 };
            *places[which] = (char *)*places[which] + off;
            run(&k);
            assert_int_equal(strstr(said_so_far, ", wide") != NULL, off % (which == 4 ? 8 : 16) == 0);
            said_so_far[0] = 0;
        }
}

static void test_device_cuda_batches__neighbours_with_the_same_settings_are_one_piece(void **state) {
    (void)state;
    tess_segment s[] = { segment(0.5f, 0, 3),   segment(0.5f, 3, 5),   segment(0.5f, 9, 1),  segment(0.25f, 10, 2),
                         segment(0.25f, 12, 2), segment(0.25f, 14, 2), segment(0.5f, 16, 0), segment(0.5f, 16, 2),
                         segment(0.5f, 18, 2),  segment(0.125f, 20, 0) };
    s[4].weight_decay = 1;
    s[5].weight_decay = 1, s[5].momentum = 0.5f;
    tess_optimizer o = an_adam(s, 10);
    tess_kernel k = a_step(&o, 20, 0);
    k.out2 = at(0x6000);
    run(&k);
    expect_said("tess_cuda_adam_f32 6 x 256 on s70: 6 pieces, 6 blocks, 4 sets"
                " | [0, 8) from block 0, set 0, wide: f32 1000, 2000, 4000, 5000, low 6000, lr 0.5"
                " | [9, 10) from block 1, set 0, wide: f32 1000, 2000, 4000, 5000, low 6000, lr 0.5"
                " | [10, 12) from block 2, set 1, wide: f32 1000, 2000, 4000, 5000, low 6000, lr 0.25"
                " | [12, 14) from block 3, set 2, wide: f32 1000, 2000, 4000, 5000, low 6000, lr 0.25"
                " | [14, 16) from block 4, set 3, wide: f32 1000, 2000, 4000, 5000, low 6000, lr 0.25"
                " | [16, 20) from block 5, set 0, wide: f32 1000, 2000, 4000, 5000, low 6000, lr 0.5; ");
}

static void test_device_cuda_batches__a_step_that_has_more_behind_it_waits_for_that(void **state) {
    (void)state;
    tess_segment s = segment(0.5f, 0, 3);
    int64_t *const noted = at(0x7000);
    tess_optimizer o = an_adam(&s, 1), other = o;
    other.not_finite = noted;
    tess_kernel more = a_step(&o, 3, TESS_KERNEL_MORE), last = a_step(&other, 3, 0), none = a_step(&o, 0, 0);
    none.in = NULL;
    run(&more);
    expect_said("");
    last.out = at(0x2100);
    run(&last);
    expect_said("tess_cuda_adam_f32 2 x 256 on s70: 2 pieces, 2 blocks, 1 sets"
                " | [0, 3) from block 0, set 0, wide: f32 1000, 2000, 4000, 5000, lr 0.5"
                " | [0, 3) from block 1, set 0, wide: f32 1000, 2100, 4000, 5000, noted 7000, lr 0.5; ");
    run(&more);
    run(&none); /* one of nothing ends it too */
    expect_said("tess_cuda_adam_f32 1 x 256 on s70: 1 pieces, 1 blocks, 1 sets"
                " | [0, 3) from block 0, set 0, wide: f32 1000, 2000, 4000, 5000, lr 0.5; ");
    run(&none);
    expect_said("");
}

static void test_device_cuda_batches__what_cannot_join_a_batch_launches_it_first(void **state) {
    (void)state;
    static const char first[] = "tess_cuda_adam_f32 1 x 256 on s70: 1 pieces, 1 blocks, 1 sets"
                                " | [0, 3) from block 0, set 0, wide: f32 1000, 2000, 4000, 5000, lr 0.5; ";
    const tess_buffer locked = page_locked();
    tess_segment s = segment(0.5f, 0, 3);
    tess_optimizer o = an_adam(&s, 1), adamw = o, clipped = o;
    const void *in[] = { at(0x1000) };
    tess_kernel more = a_step(&o, 3, TESS_KERNEL_MORE), cast = a_cast(TESS_F32, TESS_F16, 1, in, at(0x2000));
    adamw.optimizer = TESS_OPT_ADAMW;
    clipped.clip = at(0x8000);
    for (int i = 0; i < 5; i++) {
        tess_stream elsewhere = { .handle = (void *)(uintptr_t)71 };
        tess_kernel k = i == 4 ? cast : a_step(i == 0 ? &adamw : i == 1 ? &clipped : &o, 3, 0);
        if (i == 3)
            k.out = locked.ptr;
        run(&more);
        expect_said("");
        assert_int_equal(ops->kernel(device, &k, i == 2 ? &elsewhere : &stream, no_error()), TESS_OK);
        expect_said_first(first, i == 1 ? ", clip 8000" : i == 2 ? " on s71" : "; ");
    }
    run(&more);
    assert_int_equal(ops->record_begin(device, &stream, no_error()), TESS_OK);
    expect_said_first(first);
    tess_graph *g;
    run(&more);
    assert_int_equal(ops->record_end(device, &stream, &g, no_error()), TESS_OK); /* it is recorded too */
    expect_said_first(first, "recorded s70; exec of");
    run(&more);
    written.fails_in = 2, written.fails_with = CUDA_ERROR_UNKNOWN; /* what was held back is not in the recording */
    tess_graph *none = NULL;
    EXPECT_FAILS(ops->record_end(device, &stream, &none, &e), TESS_E_DEVICE,
                 "device cuda: GPU 1: what was recorded failed: NAME 999 (why)");
    assert_true(!none && written.live.graphs == 0);
    said_so_far[0] = 0;
    run(&more);
    assert_int_equal(ops->graph_run(g, &stream, no_error()), TESS_OK);
    expect_said_first(first);
    ops->graph_destroy(g);
    said_so_far[0] = 0;
}

static void test_device_cuda_batches__a_launch_has_so_many_pieces_and_sets(void **state) {
    (void)state;
    tess_segment s[48];
    for (uint64_t i = 0; i < 48; i++) /* apart, so that none continues the one before */
        s[i] = segment(0.5f, 4 * i, 2);
    tess_optimizer o = an_adam(s, 48);
    tess_kernel k = a_step(&o, 192, 0);
    run(&k);
    expect_said_first("tess_cuda_adam_f32 40 x 256 on s70: 40 pieces, 40 blocks, 1 sets | [0, 2)",
                      "tess_cuda_adam_f32 8 x 256 on s70: 8 pieces, 8 blocks, 1 sets | [160, 162) from block 0");
    for (int i = 0; i < 7; i++)
        s[i] = segment((float)(i + 1), 4 * (uint64_t)i, 2);
    s[7] = segment(6, 28, 2);
    o.n_segments = 8;
    run(&k);
    expect_said("tess_cuda_adam_f32 5 x 256 on s70: 5 pieces, 5 blocks, 5 sets"
                " | [0, 2) from block 0, set 0, wide: f32 1000, 2000, 4000, 5000, lr 1"
                " | [4, 6) from block 1, set 1, wide: f32 1000, 2000, 4000, 5000, lr 2"
                " | [8, 10) from block 2, set 2, wide: f32 1000, 2000, 4000, 5000, lr 3"
                " | [12, 14) from block 3, set 3, wide: f32 1000, 2000, 4000, 5000, lr 4"
                " | [16, 18) from block 4, set 4, wide: f32 1000, 2000, 4000, 5000, lr 5; "
                "tess_cuda_adam_f32 3 x 256 on s70: 3 pieces, 3 blocks, 2 sets"
                " | [20, 22) from block 0, set 0, wide: f32 1000, 2000, 4000, 5000, lr 6"
                " | [24, 26) from block 1, set 1, wide: f32 1000, 2000, 4000, 5000, lr 7"
                " | [28, 30) from block 2, set 0, wide: f32 1000, 2000, 4000, 5000, lr 6; ");
}

static void test_device_cuda_batches__blocks_are_shared_by_items(void **state) {
    (void)state;
    tess_segment s[] = { segment(0.5f, 0, 3 << 20), segment(0.25f, 3 << 20, 1 << 20), segment(1, 4 << 20, 4) };
    tess_optimizer o = an_adam(s, 3);
    tess_kernel k = a_step(&o, (4 << 20) + 4, 0);
    run(&k); /* of 80 blocks each has its part and one more, but no more than it can use */
    expect_said("tess_cuda_adam_f32 81 x 256 on s70: 3 pieces, 81 blocks, 3 sets"
                " | [0, 3145728) from block 0, set 0, wide: f32 1000, 2000, 4000, 5000, lr 0.5"
                " | [3145728, 4194304) from block 60, set 1, wide: f32 1000, 2000, 4000, 5000, lr 0.25"
                " | [4194304, 4194308) from block 80, set 2, wide: f32 1000, 2000, 4000, 5000, lr 1; ");
    o.n_segments = 1, k.elems = 3 << 20; /* alone, it has them all, whatever was there before */
    run(&k);
    expect_said("tess_cuda_adam_f32 81 x 256 on s70: 1 pieces, 81 blocks, 1 sets"
                " | [0, 3145728) from block 0, set 0, wide: f32 1000, 2000, 4000, 5000, lr 0.5; ");
    static const int elems[] = { 1020, 1024, 1028, 2048, 2052 }, blocks[] = { 1, 1, 2, 2, 3 }; /* 1024 to a block */
    for (int i = 0; i < 5; i++) {
        char want[60];
        s[0].elems = k.elems = (uint64_t)elems[i];
        run(&k);
        snprintf(want, sizeof want, "tess_cuda_adam_f32 %d x 256 on s70", blocks[i]);
        expect_said_first(want);
    }
}

static void test_device_cuda_batches__prepared_constants_are_named_by_their_place(void **state) {
    (void)state;
    tess_segment s[] = { segment(0.5f, 0, 4), segment(0.5f, 4, 4), segment(0.25f, 8, 4) };
    tess_optimizer o = an_adam(s, 3), before = an_adam(s, 1), plain = an_adam(s, 1);
    o.prepared = at(0x10000);
    before.prepared = at(0x10000 - 2 * TESS_PREPARED_BYTES);
    tess_kernel k = a_step(&o, 12, TESS_KERNEL_MORE), next = a_step(&before, 4, 0), other = a_step(&plain, 4, 0);
    run(&k);
    run(&next);
    expect_said("tess_cuda_adam_f32 4 x 256 on s70: 4 pieces, 4 blocks, 0 sets, prepared 10000"
                " | [0, 4) from block 0, set 0, wide: f32 1000, 2000, 4000, 5000"
                " | [4, 8) from block 1, set 1, wide: f32 1000, 2000, 4000, 5000"
                " | [8, 12) from block 2, set 2, wide: f32 1000, 2000, 4000, 5000"
                " | [0, 4) from block 3, set -2, wide: f32 1000, 2000, 4000, 5000; ");
    run(&k);
    run(&other); /* which has its own with it */
    expect_said("tess_cuda_adam_f32 3 x 256 on s70: 3 pieces, 3 blocks, 0 sets, prepared 10000"
                " | [0, 4) from block 0, set 0, wide: f32 1000, 2000, 4000, 5000"
                " | [4, 8) from block 1, set 1, wide: f32 1000, 2000, 4000, 5000"
                " | [8, 12) from block 2, set 2, wide: f32 1000, 2000, 4000, 5000; "
                "tess_cuda_adam_f32 1 x 256 on s70: 1 pieces, 1 blocks, 1 sets"
                " | [0, 4) from block 0, set 0, wide: f32 1000, 2000, 4000, 5000, lr 0.5; ");
}

static void test_device_cuda_batches__prepared_constants_are_as_many_as_there_are_pieces(void **state) {
    (void)state;
    tess_segment s[9]; /* more than a launch has sets of its own */
    for (uint64_t i = 0; i < 9; i++)
        s[i] = segment((float)i, 4 * i, 2);
    tess_optimizer o = an_adam(s, 9);
    o.prepared = at(0x10000);
    tess_kernel k = a_step(&o, 36, 0);
    run(&k);
    assert_null(strstr(said_so_far, "; tess"));
    expect_said_first("tess_cuda_adam_f32 9 x 256 on s70: 9 pieces, 9 blocks, 0 sets, prepared 10000");
}

static void test_device_cuda_batches__prepared_constants_are_those_of_each_segment(void **state) {
    (void)state;
    tess_segment s[] = { segment(0.5f, 0, 4), segment(0.25f, 4, 4) };
    tess_optimizer o = an_adam(s, 2);
    char prepared[3 * TESS_PREPARED_BYTES];
    memset(prepared, 'x', sizeof prepared);
    assert_int_equal(ops->optimizer_prepare(plugin, &o, prepared), TESS_OK);
    for (int i = 0; i < 2; i++) {
        tess_step_constants c;
        memcpy(&c, prepared + i * TESS_PREPARED_BYTES, sizeof c);
        assert_true(c.optimizer == TESS_OPT_ADAM && c.minus_lr == (i ? -0.25 : -0.5) && c.step == 1);
        for (size_t b = sizeof c; b < TESS_PREPARED_BYTES; b++)
            assert_int_equal(prepared[i * TESS_PREPARED_BYTES + (int)b], 0);
    }
    assert_int_equal(prepared[2 * TESS_PREPARED_BYTES], 'x');
    o.segments = NULL;
    assert_int_equal(ops->optimizer_prepare(plugin, &o, prepared), TESS_E_INVALID);
    o.n_segments = 0;
    assert_int_equal(ops->optimizer_prepare(plugin, &o, prepared), TESS_OK);
    o.step = 0;
    assert_int_equal(ops->optimizer_prepare(plugin, &o, prepared), TESS_E_INVALID);
}

static void test_device_cuda_batches__a_failed_launch_of_a_batch_is_said_by_who_caused_it(void **state) {
    (void)state;
    static tess_segment s[48];
    static tess_optimizer o;
    for (uint64_t i = 0; i < 48; i++)
        s[i] = segment((float)i, 4 * i, 2);
    o = an_adam(s, 48);
    failing = a_step(&o, 192, 0);
    const char *const text = "device cuda: GPU 1: a kernel failed: NAME 999 (why)";
    for (int n = 2; n < 12; n++) { /* ten launches of five sets each */
        written.fails_in = n, written.fails_with = CUDA_ERROR_UNKNOWN;
        EXPECT_FAILS(run_failing(), TESS_E_DEVICE, text);
        said_so_far[0] = 0;
        tess_kernel none = a_step(&o, 0, 0);
        run(&none); /* what had been collected is not launched later */
        expect_said("");
    }
    written.fails_in = 12;
    assert_int_equal(run_failing(), TESS_OK);
    written.fails_in = 0;
    said_so_far[0] = 0;
}

/* ---- sums of squares ---- */

static tess_kernel a_square(uint64_t elems, uint32_t flags) {
    return (tess_kernel){ .struct_size = sizeof(tess_kernel),
                          .kernel = TESS_K_SQUARE_SUM,
                          .in_dtype = TESS_BF16,
                          .out_dtype = TESS_I64,
                          .flags = flags,
                          .elems = elems,
                          .in = grads,
                          .out = at(0x2000) };
}

static void test_device_cuda_batches__squares_begin_at_zero_and_end_with_a_carry(void **state) {
    (void)state;
    char want[200];
    tess_kernel k = a_square(5, 0);
    snprintf(
        want, sizeof want,
        "fill 2000 with 0, %zu on s70; tess_cuda_square_sum 1 x 128 on s70: 1 pieces, 1 blocks to 2000, * 1 | 5 of "
        "bf16 1000 from block 0, wide; tess_cuda_carry 1 x 256 on s70: 1, 2000; ",
        TESS__NORM_LIMBS * sizeof(int64_t));
    run(&k);
    expect_said(want);
    k = a_square(5, TESS_KERNEL_ADD);
    k.scale = 0.5;
    run(&k);
    expect_said(
        "tess_cuda_square_sum 1 x 128 on s70: 1 pieces, 1 blocks to 2000, * 0.5 | 5 of bf16 1000 from block 0, wide; "
        "tess_cuda_carry 1 x 256 on s70: 1, 2000; ");
    k = a_square(0, TESS_KERNEL_ADD);
    run(&k);
    expect_said("");
    static const int elems[] = { 1, 511, 512, 513 }, blocks[] = { 1, 1, 1, 2 }; /* 512 to a block */
    for (int i = 0; i < 4; i++) {
        k = a_square((uint64_t)elems[i], TESS_KERNEL_ADD);
        run(&k);
        snprintf(want, sizeof want, "tess_cuda_square_sum %d x 128 on s70", blocks[i]);
        expect_said_first(want);
    }
    k = a_square(1 << 20, TESS_KERNEL_ADD); /* twice as many blocks of half as many threads */
    k.in = (const void *[]){ at(0x1004), at(0x1000) };
    run(&k);
    expect_said(
        "tess_cuda_square_sum 161 x 128 on s70: 1 pieces, 161 blocks to 2000, * 1 | 1048576 of bf16 1004 from block "
        "0; tess_cuda_carry 1 x 256 on s70: 1, 2000; ");
}

static void test_device_cuda_batches__squares_join_those_of_the_same_sum(void **state) {
    (void)state;
    tess_kernel first = a_square(1000, TESS_KERNEL_ADD | TESS_KERNEL_MORE), last = a_square(5, TESS_KERNEL_ADD);
    run(&first);
    expect_said("");
    run(&last);
    expect_said(
        "tess_cuda_square_sum 3 x 128 on s70: 2 pieces, 3 blocks to 2000, * 1 | 1000 of bf16 1000 from block 0, wide"
        " | 5 of bf16 1000 from block 2, wide; tess_cuda_carry 1 x 256 on s70: 1, 2000; ");
    static const char alone[] =
        "tess_cuda_square_sum 2 x 128 on s70: 1 pieces, 2 blocks to 2000, * 1 | 1000 of bf16 1000 "
        "from block 0, wide; tess_cuda_carry 1 x 256 on s70: 1, 2000; ";
    for (int i = 0; i < 4; i++) {
        tess_kernel k = a_square(5, i == 0 ? 0 : TESS_KERNEL_ADD);
        tess_stream elsewhere = { .handle = (void *)(uintptr_t)71 };
        if (i == 1)
            k.out = at(0x3000);
        if (i == 2)
            k.scale = 0.5;
        run(&first);
        expect_said("");
        assert_int_equal(ops->kernel(device, &k, i == 3 ? &elsewhere : &stream, no_error()), TESS_OK);
        expect_said_first(alone, "; ");
    }
    tess_segment s = segment(0.5f, 0, 3);
    tess_optimizer o = an_adam(&s, 1);
    tess_kernel step = a_step(&o, 3, TESS_KERNEL_MORE);
    run(&first);
    run(&step);
    expect_said(alone);
    run(&last);
    expect_said_first("tess_cuda_adam_f32 1 x", "| 5 of bf16");
    for (int i = 0; i < 97; i++) {
        first = a_square(4, TESS_KERNEL_ADD | TESS_KERNEL_MORE);
        run(&first);
        assert_int_equal(said_so_far[0] != 0, i == 96); /* a launch has 96 */
    }
    expect_said_among("96 pieces, 96 blocks");
    run(&last);
    expect_said_among(" 2 pieces, 2 blocks");
}

static void test_device_cuda_batches__failed_squares_say_so(void **state) {
    (void)state;
    failing = a_square(5, 0);
    assert_int_equal(fail_each_call(run_failing, CUDA_ERROR_UNKNOWN, NULL), 4); /* context, zeros, squares, carry */
    const tess_kernel held = a_square(5, TESS_KERNEL_ADD | TESS_KERNEL_MORE), none = a_square(0, TESS_KERNEL_ADD);
    tess_segment s = segment(0.5f, 0, 3);
    tess_optimizer o = an_adam(&s, 1);
    failing = a_step(&o, 3, 0);
    run(&held);
    written.fails_in = 2; /* the launch of what was held, which a step cannot join */
    assert_int_equal(run_failing(), TESS_E_DEVICE);
    said_so_far[0] = 0;
    run(&none); /* the step is not launched later, as squares */
    expect_said("");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_DEVICE(test_device_cuda_batches__each_optimizer_has_its_kernel),
        IN_DEVICE(test_device_cuda_batches__each_address_of_a_step_decides_how_wide_it_is),
        IN_DEVICE(test_device_cuda_batches__neighbours_with_the_same_settings_are_one_piece),
        IN_DEVICE(test_device_cuda_batches__a_step_that_has_more_behind_it_waits_for_that),
        IN_DEVICE(test_device_cuda_batches__what_cannot_join_a_batch_launches_it_first),
        IN_DEVICE(test_device_cuda_batches__a_launch_has_so_many_pieces_and_sets),
        IN_DEVICE(test_device_cuda_batches__blocks_are_shared_by_items),
        IN_DEVICE(test_device_cuda_batches__prepared_constants_are_named_by_their_place),
        IN_DEVICE(test_device_cuda_batches__prepared_constants_are_as_many_as_there_are_pieces),
        IN_DEVICE(test_device_cuda_batches__prepared_constants_are_those_of_each_segment),
        IN_DEVICE(test_device_cuda_batches__a_failed_launch_of_a_batch_is_said_by_who_caused_it),
        IN_DEVICE(test_device_cuda_batches__squares_begin_at_zero_and_end_with_a_carry),
        IN_DEVICE(test_device_cuda_batches__squares_join_those_of_the_same_sum),
        IN_DEVICE(test_device_cuda_batches__failed_squares_say_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
