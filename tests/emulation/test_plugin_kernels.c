/* SPDX-License-Identifier: BSD-3-Clause */
/* The kernels of device-cuda, comm-nccl and optimizer-lion as a GPU runs them: to the doubles' bits, on aligned arrays
 * and others. */
#include "against.h"

#include "plugins/comm-nccl/kernels.h"
#include "plugins/device-cuda/kernels_blocks.h"
#include "plugins/device-cuda/kernels_many.h"
#include "plugins/optimizer-lion/kernels.h"

enum { THREADS = 64 };
static char what[128];
#define WHAT(...) (snprintf(what, sizeof what, __VA_ARGS__), what)

static size_t bytes_of(uint32_t dtype) {
    return dtype == TESS_F64 || dtype == TESS_I64 ? 8 : dtype == TESS_F32 || dtype == TESS_I32 ? 4 : 2;
}
static void set(void *x, uint64_t i, uint32_t dtype, double v) {
    switch (dtype) {
    case TESS_F64: ((double *)x)[i] = v * 1.0000000001; break;
    case TESS_F32: ((float *)x)[i] = (float)v; break;
    case TESS_BF16: ((uint16_t *)x)[i] = tess_bf16_of_f32((float)v); break;
    case TESS_F16: ((uint16_t *)x)[i] = tess_f16_of_f32((float)v); break;
    case TESS_I32: ((int32_t *)x)[i] = (int32_t)(v * 1e5); break;
    default: ((int64_t *)x)[i] = (int64_t)(v * 1e12);
    }
}
/* n random numbers, `past` elements behind an aligned place; greatest: of their sizes. */
static void *values(uint32_t dtype, uint64_t n, uint64_t past, double greatest) {
    void *x = array_at(n * bytes_of(dtype), past * bytes_of(dtype));
    for (uint64_t i = 0; i < n; i++)
        set(x, i, dtype, greatest * (double)random_number());
    return x;
}
/* Whether whole items can be read at once, as device.c asks. */
static uint32_t aligned(const void *x, uint32_t dtype) {
    return (uintptr_t)x % (bytes_of(dtype) == 2 ? 8 : 16) == 0;
}

static const uint64_t counts[] = { 1, 3, 4, 517 };
enum { COUNTS = sizeof counts / sizeof *counts };
static const uint32_t reals[] = { TESS_F16, TESS_BF16, TESS_F32, TESS_F64 };

/* ---- casts and scales ------------------------------------------------------------------------------ */
static void cast(uint64_t n, uint64_t past, uint32_t from, uint32_t to) {
    cuda_cast_args a = { .items = over(n, CUDA_LANES), .elems = n, .in_dtype = from, .out_dtype = to };
    a.in = values(from, n, past, 100), a.out = values(to, n, 0, 1);
    a.vector = aligned(a.in, from) & aligned(a.out, to);
    LAUNCH("tess_cuda_cast", a, 2, THREADS);
    compare(WHAT("%d elements, past %d, dtype %d to %d", (int)n, (int)past, (int)from, (int)to));
}

static void test_plugin_kernels__casts(void **state) {
    (void)state;
    for (int k = 0; k < COUNTS; k++)
        for (uint64_t past = 0; past < 2; past++)
            for (int i = 0; i < 16; i++)
                if (i / 4 != i % 4)
                    cast(counts[k], past, reals[i / 4], reals[i % 4]);
}

static void test_plugin_kernels__scales(void **state) {
    (void)state;
    for (int k = 0; k < COUNTS; k++)
        for (int i = 0; i < 4; i++) {
            uint32_t dtype = reals[2 + i % 2];
            cuda_scale_args a = {
                .items = over(counts[k], CUDA_LANES), .elems = counts[k], .scale = 0.3, .dtype = dtype
            };
            a.in = a.out = values(dtype, counts[k], (uint64_t)i / 2, 1), a.vector = aligned(a.in, dtype);
            LAUNCH("tess_cuda_scale", a, 1, THREADS);
            compare(WHAT("%d elements of dtype %d", (int)counts[k], (int)dtype));
        }
}

/* ---- sums ------------------------------------------------------------------------------------------ */
static void sum(uint64_t n, uint64_t past, uint32_t inputs, uint32_t dtype, uint32_t partial, uint32_t out, int chain) {
    static cuda_sum_many_args many;
    cuda_sum_few_args few;
    cuda_sum s = { .items = over(n, CUDA_LANES), .elems = n, .n_in = inputs, .scale = 0.5, .chain = (uint32_t)chain };
    char name[64];
    s.add = inputs % 2, s.in_dtype = dtype, s.out_dtype = out, s.out = values(out, n, 0, 1), s.vector = 1;
    for (uint32_t k = 0; k < inputs; k++) {
        uint32_t of = chain && k + 1 < inputs ? partial : dtype;
        many.in[k] = values(of, n, k == 0 ? past : 0, 1), s.vector &= aligned(many.in[k], of);
    }
    memcpy(few.in, many.in, sizeof few.in);
    many.sum = few.sum = s;
    snprintf(name, sizeof name, "tess_cuda_sum_%s_%s",
             partial == TESS_F64   ? "f64"
             : partial == TESS_I32 ? "i32"
             : partial == TESS_I64 ? "i64"
                                   : "f32",
             inputs > CUDA_FEW ? "many" : "few");
    if (inputs > CUDA_FEW)
        LAUNCH(name, many, 2, THREADS);
    else
        LAUNCH(name, few, 2, THREADS);
    compare(WHAT("%d inputs of %d elements, past %d, chain %d", (int)inputs, (int)n, (int)past, chain));
}

static void test_plugin_kernels__sums_of_few_and_many(void **state) {
    static const uint32_t inputs[] = { 1, 2, 5, 16, 40 };
    (void)state;
    for (int k = 0; k < COUNTS; k++)
        for (int i = 0; i < 5; i++)
            for (int how = 0; how < 4; how++) {
                sum(counts[k], (uint64_t)how / 2, inputs[i], TESS_BF16, TESS_F32, TESS_F32, how % 2);
                sum(counts[k], (uint64_t)how / 2, inputs[i], TESS_F64, TESS_F64, TESS_F64, how % 2);
                sum(counts[k], (uint64_t)how / 2, inputs[i], TESS_I32, TESS_I32, TESS_I32, 0);
                sum(counts[k], (uint64_t)how / 2, inputs[i], TESS_I64, TESS_I64, TESS_I64, 0);
            }
}

/* ---- blocks of 8 bits ------------------------------------------------------------------------------- */
static uint64_t block_bytes(uint64_t n) {
    return over(n, TESS_Q8_BLOCK) * TESS_Q8_BYTES;
}
/* Blocks of all bytes, with scales of their own, one of them 0 and one NaN. */
static void *blocks(uint64_t n) {
    char *x = array(block_bytes(n));
    for (uint64_t b = 0; b < over(n, TESS_Q8_BLOCK); b++) {
        float scale = b % 7 == 5 ? 0.0f : b % 7 == 6 ? NAN : 0.001f * (float)(b + 1);
        memcpy(x + b * TESS_Q8_BYTES, &scale, sizeof scale);
        for (int i = 0; i < TESS_Q8_BLOCK;
             i++) { /* two NaNs in one product: which of them comes out is the compiler's */
            int byte = isnan(scale) ? 0 : (int)(random_number() * 127) & 0xff;
            x[b * TESS_Q8_BYTES + 4 + (uint64_t)i] = (char)((byte & 0x7f) == 0x7f ? 0 : byte);
        }
    }
    return x;
}
static void *numbers(uint32_t dtype, uint64_t n) {
    return cuda_is_blocks(dtype) ? blocks(n) : values(dtype, n, 0, 1);
}

static void sum_blocks(uint64_t n, uint32_t inputs, uint32_t in, uint32_t out, uint32_t round) {
    static cuda_sum_many_args many;
    cuda_sum_few_args few;
    many.sum = (cuda_sum){ .items = over(n, TESS_Q8_BLOCK), .elems = n, .n_in = inputs, .scale = 1, .round = round };
    many.sum.in_dtype = in, many.sum.out_dtype = out, many.sum.out = numbers(out, n), many.sum.add = inputs % 2;
    if (!cuda_is_blocks(out))
        many.sum.scale = 0.3;
    for (uint32_t k = 0; k < inputs; k++)
        many.in[k] = numbers(in, n);
    few.sum = many.sum;
    memcpy(few.in, many.in, sizeof few.in);
    if (inputs > CUDA_FEW)
        LAUNCH("tess_cuda_blocks_many", many, 2, THREADS);
    else
        LAUNCH("tess_cuda_blocks_few", few, 2, THREADS);
    compare(WHAT("blocks: %d inputs of %d elements, dtype %d to %d through %d", (int)inputs, (int)n, (int)in, (int)out,
                 (int)round));
}

static void test_plugin_kernels__blocks(void **state) {
    static const uint32_t inputs[] = { 1, 2, 5, 18 }, dtypes[] = { TESS_F32, TESS_BF16, TESS_Q8, TESS_Q8E4M3 };
    static const uint64_t elems[] = { 3, 256, 1900 };
    (void)state;
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < 4; i++)
            for (int pair = 0; pair < 16; pair++)
                for (uint32_t round = TESS_Q8; round <= TESS_Q8E4M3; round++)
                    sum_blocks(elems[k], inputs[i], dtypes[pair / 4], dtypes[pair % 4], pair % 3 ? round : 0);
}

/* Draws: against the cast of the host, from a block on that is not the run's first. */
static void test_plugin_kernels__blocks_by_draws(void **state) {
    static const uint64_t elems[] = { 3, 256, 1900 };
    (void)state;
    for (int k = 0; k < 3; k++)
        for (uint32_t dtype = TESS_Q8; dtype <= TESS_Q8E4M3; dtype++) {
            cuda_draw_args a = { .items = over(elems[k], TESS_Q8_BLOCK), .elems = elems[k], .dtype = dtype };
            a.in = values(TESS_F32, elems[k], 0, 1), a.out = blocks(elems[k]);
            a.at = (UINT64_C(1) << 35) + 512, a.step = 7, a.draw = 3;
            LAUNCH("tess_cuda_draw", a, 2, THREADS);
            compare(WHAT("draws: %d elements, dtype %d", (int)elems[k], (int)dtype));
        }
}

/* The same kernels as the others read them: a cast, and a sum that rounds nothing. */
static void test_plugin_kernels__blocks_are_widened(void **state) {
    (void)state;
    for (uint32_t dtype = TESS_Q8; dtype <= TESS_Q8E4M3; dtype++) {
        cuda_cast_args a = {
            .items = over(1900, CUDA_LANES), .elems = 1900, .in_dtype = dtype, .out_dtype = TESS_BF16
        };
        a.in = blocks(1900), a.out = values(TESS_BF16, 1900, 0, 1);
        LAUNCH("tess_cuda_cast", a, 2, THREADS);
        compare(WHAT("blocks of dtype %d to bf16", (int)dtype));
    }
}

/* ---- optimizers ------------------------------------------------------------------------------------ */
static tess_step_constants constants(int k) {
    tess_step_constants c = { .grad_scale = 0.5, .minus_lr = -0.1 - 0.01 * k, .weight_decay = 0.01, .decays = 1 };
    c.momentum = 0.9, c.shrink = 0.999, c.one_minus_beta1 = 0.1, c.beta2 = 0.99, c.one_minus_beta2 = 0.01;
    c.eps = 1e-8, c.bias2_root = 0.3, c.minus_step = -0.2 - 0.01 * k, c.rho = 0.9, c.one_minus_rho = 0.1;
    return c;
}
/* State that is no root of a negative number. */
static void *sizes_of(uint32_t dtype, uint64_t n, uint64_t past) {
    void *x = array_at(n * bytes_of(dtype), past * bytes_of(dtype));
    for (uint64_t i = 0; i < n; i++)
        set(x, i, dtype, fabs((double)random_number()));
    return x;
}

static void steps(const char *name, uint32_t dtype, uint64_t past, int prepared) {
    enum { ELEMS = 1300, PIECES = 3 };
    static const uint64_t cuts[PIECES + 1] = { 2, 515, 1031, 1299 };
    cuda_steps_args a = { .n_pieces = PIECES };
    cuda_step_piece piece = { .grad_dtype = dtype == TESS_F64 ? TESS_F64 : TESS_BF16, .vector = !past };
    char *sets = array(PIECES * TESS_PREPARED_BYTES);
    float *clip = floats(1, 1);
    piece.grad = values(piece.grad_dtype, ELEMS, past, 1), piece.master = values(dtype, ELEMS, 0, 1);
    piece.state0 = sizes_of(dtype, ELEMS, past), piece.state1 = sizes_of(dtype, ELEMS, 0);
    piece.low = values(TESS_BF16, ELEMS, 0, 1);
    for (int k = 0; k < PIECES; k++) {
        a.sets[k] = constants(k);
        memcpy(sets + k * TESS_PREPARED_BYTES, &a.sets[k], sizeof a.sets[k]);
        a.pieces[k] = piece;
        a.pieces[k].first = cuts[k], a.pieces[k].end = cuts[k + 1], a.pieces[k].first_block = a.n_blocks;
        a.pieces[k].set = (uint32_t)(prepared ? k - 1 : k), a.n_blocks += (uint32_t)k + 1;
    }
    a.prepared = prepared ? sets + TESS_PREPARED_BYTES : NULL, a.clip = prepared ? clip : NULL, a.n_sets = PIECES;
    LAUNCH(name, a, a.n_blocks, THREADS);
    compare(WHAT("past %d, prepared %d", (int)past, prepared));
}

static void test_plugin_kernels__optimizers(void **state) {
    static const char *const names[] = { "sgd", "sgd_momentum", "adam", "adamw", "adadelta" };
    char name[64];
    (void)state;
    for (int i = 0; i < 10; i++)
        for (int how = 0; how < 4; how++) {
            snprintf(name, sizeof name, "tess_cuda_%s_%s", names[i / 2], i % 2 ? "f64" : "f32");
            steps(name, i % 2 ? TESS_F64 : TESS_F32, (uint64_t)how / 2, how % 2);
        }
}

/* ---- norms ----------------------------------------------------------------------------------------- */
static void test_plugin_kernels__sum_of_squares(void **state) {
    static const uint32_t dtypes[] = { TESS_F32, TESS_BF16, TESS_F16 };
    static const uint64_t elems[] = { 1, 2049, 777 };
    cuda_squares_args a = { .n_pieces = 3, .scale = 0.7f, .limbs = array(TESS__NORM_LIMBS * sizeof(int64_t)) };
    (void)state;
    memset(a.limbs, 0, TESS__NORM_LIMBS * sizeof(int64_t));
    for (int k = 0; k < 3; k++) {
        a.pieces[k].in = values(dtypes[k], elems[k], k == 2, k == 1 ? 1e18 : 1e-3), a.pieces[k].elems = elems[k];
        a.pieces[k].in_dtype = dtypes[k], a.pieces[k].vector = k != 2, a.pieces[k].first_block = a.n_blocks;
        a.n_blocks += (uint32_t)k + 1;
    }
    LAUNCH("tess_cuda_square_sum", a, a.n_blocks, CUDA_COLUMNS);
    compare("3 pieces");
}

static void carry_and_clip(double most) {
    cuda_carry_args carry = { .items = 1, .limbs = array(TESS__NORM_LIMBS * sizeof(int64_t)) };
    cuda_clip_args clip = { .items = 1, .limbs = carry.limbs, .out = floats(1, 1), .most = most };
    memset(carry.limbs, 0, TESS__NORM_LIMBS * sizeof(int64_t));
    for (int i = 0; i < 6; i++)
        carry.limbs[i] = (int64_t)1 << (34 + i) | 77 * i;
    LAUNCH("tess_cuda_carry", carry, 1, THREADS);
    LAUNCH("tess_cuda_clip", clip, 1, THREADS);
    compare(WHAT("at most %g", most));
}
static void test_plugin_kernels__a_norm_from_its_digits(void **state) {
    (void)state;
    carry_and_clip(1);
    carry_and_clip(1e-9);
}

/* ---- comm-nccl ------------------------------------------------------------------------------------- */
static void reduce(uint32_t ranks, uint32_t own, uint32_t dtype, uint32_t redop) {
    enum { ELEMS = 133 };
    tess_nccl_reduce_args a = { .elems = ELEMS, .scale = 0.25, .n = ranks, .own_rank = own, .redop = redop };
    a.stride_bytes = ELEMS * bytes_of(dtype), a.in_dtype = dtype, a.out_dtype = dtype == TESS_BF16 ? TESS_F32 : dtype;
    a.others = values(dtype, ELEMS * ranks, 0, 1), a.own = values(dtype, ELEMS, 0, 1);
    a.out = values(a.out_dtype, ELEMS, 0, 1), a.add = ranks % 2;
    LAUNCH("tess_nccl_reduce", a, 2, THREADS);
    compare(WHAT("%d ranks, dtype %d, operation %d", (int)ranks, (int)dtype, (int)redop));
}

static void test_plugin_kernels__contributions_of_ranks(void **state) {
    static const uint32_t dtypes[] = { TESS_BF16, TESS_F16, TESS_F32, TESS_F64, TESS_I32, TESS_I64 };
    (void)state;
    for (int i = 0; i < 6; i++)
        for (uint32_t ranks = 1; ranks < 10; ranks += 2) {
            reduce(ranks, ranks / 2, dtypes[i], TESS_SUM);
            reduce(ranks, 0, dtypes[i], TESS_MAX);
        }
}

static void widen(uint64_t n, uint64_t past, uint32_t blocks, uint32_t dtype) {
    tess_nccl_widen_args a = { .items = over(n, TESS_NCCL_LANES), .elems = n, .stride = n + 16, .blocks = blocks };
    a.from = values(dtype, (n + 16) * blocks, past, 100), a.to = values(TESS_F32, n * blocks, 0, 1);
    a.in_dtype = dtype, a.vector = !past && (blocks == 1 || n % TESS_NCCL_LANES == 0);
    LAUNCH("tess_nccl_widen", a, 2, THREADS);
    compare(WHAT("%d elements, past %d, %d blocks, dtype %d", (int)n, (int)past, (int)blocks, (int)dtype));
}

static void finish(uint64_t n, uint64_t past, uint32_t in, uint32_t out, uint32_t add) {
    tess_nccl_finish_args a = { .items = over(n, TESS_NCCL_LANES), .elems = n, .scale = add ? 1 : 0.3f, .add = add };
    a.from = values(in, n, 0, 100), a.out = values(out, n, past, 1);
    a.in_dtype = in, a.out_dtype = out, a.vector = !past;
    LAUNCH("tess_nccl_finish", a, 2, THREADS);
    compare(WHAT("%d elements, past %d, dtype %d to %d", (int)n, (int)past, (int)in, (int)out));
}

static void test_plugin_kernels__around_sums_of_nccl(void **state) {
    static const uint64_t numbers[] = { 1, 8, 520, 517 };
    (void)state;
    for (int k = 0; k < 4; k++)
        for (uint64_t past = 0; past < 2; past++)
            for (uint32_t i = 0; i < 9; i++) {
                widen(numbers[k], past, 1 + i % 3, reals[i % 2]);
                finish(numbers[k], past, reals[i / 3], reals[i % 3], i % 2);
            }
}

/* ---- optimizer-lion -------------------------------------------------------------------------------- */
static void test_plugin_kernels__lion(void **state) {
    (void)state;
    for (int i = 0; i < 2 * COUNTS; i++) {
        uint64_t n = counts[i / 2], past = (uint64_t)i % 2;
        lion_args a = { .items = n, .step = 7, .grad_scale = 0.5f };
        a.numbers = (lion_numbers){ .b1 = 0.9f, .c1 = 0.1f, .b2 = 0.99f, .c2 = 0.01f, .shrink = 0.999f, .lr = 0.01f };
        a.master = values(TESS_F32, n, past, 1), a.momentum = values(TESS_F32, n, 0, 1);
        float *grad = values(TESS_F32, n, 0, 1);
        if (i == 2 * COUNTS - 1)
            grad[n / 2] = NAN;
        a.grad = grad, a.clip = past ? floats(1, 1) : NULL, a.not_finite = array(sizeof *a.not_finite);
        *a.not_finite = 0;
        LAUNCH("tess_lion", a, 2, THREADS);
        expect_doubles_bits(WHAT("%d elements, past %d", (int)n, (int)past), 0);
        assert_int_equal(*a.not_finite, i == 2 * COUNTS - 1 ? 7 : 0);
        forget_arrays();
    }
}

static void test_plugin_kernels__every_kernel_has_a_case(void **state) {
    (void)state;
    expect_all_launched(emulated_device, NULL);
    expect_all_launched(emulated_nccl, NULL);
    expect_all_launched(emulated_lion, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plugin_kernels__casts),
        cmocka_unit_test(test_plugin_kernels__scales),
        cmocka_unit_test(test_plugin_kernels__blocks),
        cmocka_unit_test(test_plugin_kernels__blocks_by_draws),
        cmocka_unit_test(test_plugin_kernels__blocks_are_widened),
        cmocka_unit_test(test_plugin_kernels__sums_of_few_and_many),
        cmocka_unit_test(test_plugin_kernels__optimizers),
        cmocka_unit_test(test_plugin_kernels__sum_of_squares),
        cmocka_unit_test(test_plugin_kernels__a_norm_from_its_digits),
        cmocka_unit_test(test_plugin_kernels__contributions_of_ranks),
        cmocka_unit_test(test_plugin_kernels__around_sums_of_nccl),
        cmocka_unit_test(test_plugin_kernels__lion),
        cmocka_unit_test(test_plugin_kernels__every_kernel_has_a_case),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
