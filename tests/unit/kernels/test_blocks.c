/* SPDX-License-Identifier: BSD-3-Clause */
#include "kernel_fixture.h"
#include "kit/formulas.h"
#include <tessera/plugin_helpers.h>
#include <stdlib.h>

enum { ELEMS = 13 * TESS_Q8_BLOCK + 37, PARTS = 5 };
static int thorough; /* `test_blocks all`: more of what is drawn */
#define for_each_dtype(d) for (int at_##d = 0, d = TESS_Q8; at_##d < 2; at_##d++, d = TESS_Q8E4M3)

static void cast(uint32_t from, uint32_t to, const void *src, void *dst, uint64_t elems) {
    const void *in[1] = { src };
    tess_kernel k = { .struct_size = sizeof k,
                      .kernel = TESS_K_CAST,
                      .in_dtype = from,
                      .out_dtype = to,
                      .n_in = 1,
                      .in = in,
                      .out = dst,
                      .elems = elems };
    run_kernel(&k, NULL);
}

static float scale_of(const char *blocks, uint64_t block) {
    float scale;
    memcpy(&scale, blocks + block * TESS_Q8_BYTES, sizeof scale);
    return scale;
}

static void test_q8__a_block_is_its_scale_and_its_bytes(void **state) {
    (void)state;
    static float in[TESS_Q8_BLOCK + 3], out[TESS_Q8_BLOCK + 3];
    static char blocks[2 * TESS_Q8_BYTES];
    static const float values[] = { 254.0f, -254.0f, 1.0f, 3.0f, 5.0f, -1.0f, -3.0f, 0.5f };
    static const int8_t bytes[] = { 127, -127, 0, 2, 2, 0, -2, 0 }; /* scale 2: halves go to even */
    memcpy(in, values, sizeof values);
    in[TESS_Q8_BLOCK] = 127.0f, in[TESS_Q8_BLOCK + 2] = -64.0f; /* a short block, with a scale of its own */
    memset(blocks, 0x55, sizeof blocks);
    cast(TESS_F32, TESS_Q8, in, blocks, TESS_Q8_BLOCK + 3);
    assert_true(tess_dtype_span(TESS_Q8, TESS_Q8_BLOCK + 3) == sizeof blocks);
    assert_true(scale_of(blocks, 0) == 2.0f && scale_of(blocks, 1) == 1.0f);
    assert_memory_equal(blocks + 4, bytes, sizeof bytes);
    assert_true(blocks[TESS_Q8_BYTES + 4] == 127 && blocks[TESS_Q8_BYTES + 6] == -64);
    for (int i = TESS_Q8_BYTES + 7; i < 2 * TESS_Q8_BYTES; i++)
        assert_int_equal(blocks[i], 0);
    cast(TESS_Q8, TESS_F32, blocks, out, TESS_Q8_BLOCK + 3);
    for (int i = 0; i < 8; i++)
        assert_true(out[i] == 2.0f * bytes[i]);
    assert_true(out[TESS_Q8_BLOCK] == 127.0f && out[TESS_Q8_BLOCK + 2] == -64.0f);
}

/* Half a scale, of int8; of e4m3 half of the last of three bits, or of the least denormal. */
static void test_blocks__no_element_is_off_by_more_than_half_a_step(void **state) {
    (void)state;
    static float in[ELEMS], out[ELEMS];
    static char blocks[(ELEMS / TESS_Q8_BLOCK + 1) * TESS_Q8_BYTES];
    uint64_t seed = 7;
    for_each_dtype(d) for (int round = 0; round < (thorough ? 100 : 10); round++) {
        for (int i = 0; i < ELEMS; i++)
            in[i] = random_wide(&seed);
        cast(TESS_F32, (uint32_t)d, in, blocks, ELEMS);
        cast((uint32_t)d, TESS_F32, blocks, out, ELEMS);
        for (int i = 0; i < ELEMS; i++) {
            double scale = (double)scale_of(blocks, (uint64_t)i / TESS_Q8_BLOCK), x = fabs((double)in[i]);
            double most = d == TESS_Q8 ? scale / 2 : x / 16 > scale * 0x1p-10 ? x / 16 : scale * 0x1p-10;
            assert_true(fabs((double)out[i] - (double)in[i]) <= 1.00001 * most);
        }
    }
}

static void test_blocks__what_is_not_finite_makes_its_block_nan_and_no_other(void **state) {
    (void)state;
    static const float bad[] = { INFINITY, -INFINITY, NAN };
    static float in[2 * TESS_Q8_BLOCK], out[2 * TESS_Q8_BLOCK];
    static char blocks[2 * TESS_Q8_BYTES];
    for_each_dtype(d) for_each_isa(isa) for (int b = 0; b < 3; b++) {
        for (int i = 0; i < 2 * TESS_Q8_BLOCK; i++)
            in[i] = d == TESS_Q8 ? (float)(i % 128) : (float)(i % 8 * 64);
        in[200] = bad[b];
        cast(TESS_F32, (uint32_t)d, in, blocks, 2 * TESS_Q8_BLOCK);
        cast((uint32_t)d, TESS_F32, blocks, out, 2 * TESS_Q8_BLOCK);
        for (int i = 0; i < TESS_Q8_BLOCK; i++)
            assert_true(isnan(out[i]) && out[TESS_Q8_BLOCK + i] == in[TESS_Q8_BLOCK + i]);
    }
    tess__isa_limit(0);
}

/* At both ends of f32: a scale is a normal number, and of what is finite comes nothing infinite. */
static void test_blocks__the_least_scale_and_the_greatest(void **state) {
    (void)state;
    static float in[TESS_Q8_BLOCK], out[TESS_Q8_BLOCK];
    char blocks[TESS_Q8_BYTES];
    for_each_dtype(d) for_each_isa(isa) {
        float least = d == TESS_Q8 ? 127 * 0x1p-126f : 448 * 0x1p-126f;
        in[3] = nextafterf(least, 0);
        cast(TESS_F32, (uint32_t)d, in, blocks, TESS_Q8_BLOCK);
        cast((uint32_t)d, TESS_F32, blocks, out, TESS_Q8_BLOCK);
        assert_true(scale_of(blocks, 0) == 0.0f && out[3] == 0.0f);
        in[3] = -least;
        cast(TESS_F32, (uint32_t)d, in, blocks, TESS_Q8_BLOCK);
        assert_int_equal((uint8_t)blocks[4 + 3], d == TESS_Q8 ? 0x81 : 0xfe); /* -127, -448 */
        assert_true(scale_of(blocks, 0) >= 0x1p-126f);
        in[3] = 0x1.fffffep127f;
        cast(TESS_F32, (uint32_t)d, in, blocks, TESS_Q8_BLOCK);
        cast((uint32_t)d, TESS_F32, blocks, out, TESS_Q8_BLOCK);
        assert_true(isfinite(out[3]) && out[3] >= 0x1.fffcp127f);
    }
    tess__isa_limit(0);
}

/* Whatever is read from blocks makes the same blocks again, so a sum may go through them any number of times. */
static void test_blocks__made_again_of_what_they_hold_are_the_same(void **state) {
    (void)state;
    static float in[ELEMS];
    static char blocks[(ELEMS / TESS_Q8_BLOCK + 1) * TESS_Q8_BYTES], again[sizeof blocks];
    uint64_t seed = 23;
    for_each_dtype(d) for (int round = 0; round < (thorough ? 3000 : 90); round++) {
        float least = d == TESS_Q8 ? 127 * 0x1p-126f : 448 * 0x1p-126f;
        for (int i = 0; i < ELEMS; i++)
            in[i] = round % 3 == 0   ? random_wide(&seed)
                    : round % 3 == 1 ? random_unit(&seed) * least * (float)(1 << round % 7)
                                     : random_unit(&seed);
        cast(TESS_F32, (uint32_t)d, in, blocks, ELEMS);
        cast((uint32_t)d, TESS_F32, blocks, in, ELEMS);
        cast(TESS_F32, (uint32_t)d, in, again, ELEMS);
        assert_memory_equal(again, blocks, sizeof blocks);
    }
}

/* ---- e4m3 ---- */

/* By the definition: exponents of bias 7, three bits of mantissa; 0x7f is no number. */
static double e4m3_value(int code) {
    int exponent = code >> 3 & 15, mantissa = code & 7;
    double size = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
    return code & 0x80 ? -size : size;
}

/* The nearest of all magnitudes, of two the even code: by looking at each. */
static int e4m3_nearest(double x) {
    int best = 0;
    for (int code = 1; code < 0x7f; code++) {
        double off = fabs(e4m3_value(code) - fabs(x)), least = fabs(e4m3_value(best) - fabs(x));
        if (off < least || (off == least && !(code & 1)))
            best = code;
    }
    return best | (signbit(x) ? 0x80 : 0);
}

static void test_e4m3__each_code_is_its_value_and_back(void **state) {
    (void)state;
    assert_true(e4m3_value(0x7e) == 448 && e4m3_value(1) == 0x1p-9 && e4m3_value(0x88) == -0x1p-6);
    for (int code = 0; code < 256; code++) {
        float x = tess_f32_of_e4m3((uint8_t)code);
        if ((code & 0x7f) == 0x7f) {
            assert_int_equal(tess_f32_bits(x), 0x7fc00000u | (uint32_t)(code & 0x80) << 24);
        } else {
            assert_true((double)x == e4m3_value(code) && !signbit(x) == !(code & 0x80));
        }
        assert_int_equal(tess_e4m3_of_f32(x), code);
    }
}

/* Each value, each middle of two, and the floats beside them; then all floats of 16 bits, with the rest 0, 1 or ones.
 */
static void test_e4m3__all_is_rounded_to_the_nearest(void **state) {
    (void)state;
    for (int code = 0; code < 0x7e; code++)
        for (int middle = 0; middle < 2; middle++) {
            float x = (float)(middle ? (e4m3_value(code) + e4m3_value(code + 1)) / 2 : e4m3_value(code));
            float near[] = { x, nextafterf(x, 1e9f), nextafterf(x, -1e9f), -x, -nextafterf(x, 1e9f) };
            for (int i = 0; i < 5; i++)
                assert_int_equal(tess_e4m3_of_f32(near[i]), e4m3_nearest((double)near[i]));
        }
    static const uint32_t rest[] = { 0, 1, 0x8000, 0xffff };
    for (uint32_t high = 0; high < 0x10000; high++)
        for (int i = 0; i < 4; i++) {
            float x = tess_f32_of_bits(high << 16 | rest[i]);
            int want = isnan(x)              ? (signbit(x) ? 0xff : 0x7f)
                       : fabsf(x) > 448      ? (signbit(x) ? 0xfe : 0x7e)
                       : fabsf(x) < 0x1p-12f ? (signbit(x) ? 0x80 : 0)
                                             : e4m3_nearest((double)x);
            assert_int_equal(tess_e4m3_of_f32(x), want);
        }
}

/* The formula of blocks is that of all floats, as far as blocks go: to what a cut scale adds above 448. */
static void test_e4m3__blocks_round_as_all_floats_do(void **state) {
    (void)state;
    static const uint32_t rest[] = { 0, 1, 0x7fff, 0x8000, 0x8001, 0xffff };
    for (uint32_t high = 0; high < 0x10000; high++)
        for (int i = 0; i < 6; i++) {
            float y = tess_f32_of_bits(high << 16 | rest[i]);
            if (fabsf(y) <= 448 * (1 + 0x1p-15f))
                assert_int_equal(tess_e4m3_of_block(y), tess_e4m3_of_f32(y));
        }
}

/* All 256 codes through a block, on every path: read to each dtype, and of finite ones made again. */
static void test_e4m3__a_block_of_all_codes(void **state) {
    (void)state;
    char block[TESS_Q8_BYTES], again[TESS_Q8_BYTES];
    float out[TESS_Q8_BLOCK], scale = 0x1.8p-3f;
    uint16_t narrow[TESS_Q8_BLOCK], half[TESS_Q8_BLOCK];
    for_each_isa(isa) {
        memcpy(block, &scale, sizeof scale);
        for (int code = 0; code < 256; code++)
            block[4 + code] = (char)code;
        cast(TESS_Q8E4M3, TESS_F32, block, out, TESS_Q8_BLOCK);
        cast(TESS_Q8E4M3, TESS_BF16, block, narrow, TESS_Q8_BLOCK);
        cast(TESS_Q8E4M3, TESS_F16, block, half, TESS_Q8_BLOCK);
        for (int code = 0; code < 256; code++) {
            int is_nan = (code & 0x7f) == 0x7f;
            assert_true(is_nan ? isnan(out[code]) : (double)out[code] == e4m3_value(code) * (double)scale);
            assert_int_equal(narrow[code], tess_bf16_of_f32(out[code]));
            assert_int_equal(half[code], tess_f16_of_f32(out[code]));
            if (is_nan)
                out[code] = 0, block[4 + code] = 0;
        }
        cast(TESS_F32, TESS_Q8E4M3, out, again, TESS_Q8_BLOCK);
        assert_memory_equal(again, block, sizeof block);
    }
    tess__isa_limit(0);
}

/* ---- draws ---- */

static tess_rounding rounding_of(const tess_place *runs, uint32_t n, uint64_t first) {
    return (tess_rounding){
        .struct_size = sizeof(tess_rounding), .n_runs = n, .runs = runs, .first = first, .step = 3, .draw = 5
    };
}

static void pack_drawn(uint32_t dtype, const float *in, void *out, uint64_t elems, const tess_rounding *r,
                       tess__pool *pool) {
    const void *list[1] = { in };
    tess_kernel k = { .struct_size = sizeof k,
                      .kernel = TESS_K_CAST,
                      .in_dtype = TESS_F32,
                      .out_dtype = dtype,
                      .n_in = 1,
                      .in = list,
                      .out = out,
                      .elems = elems,
                      .rounding = r };
    run_kernel(&k, pool);
}

/* Up or down, by as much as is cut off: the mean over many steps is the element. Numbers of the format stay. */
static void draws_are_fair(uint32_t dtype) {
    enum { STEPS = 4000 };
    static const double of_q8[] = { 127, 0.25, -0.25, 63.9, -100.5, 3, 0 };
    static const double of_e4m3[] = { 448, 17.25, -17.25, 0x1.4p-9, -300, 20, 0x1p-12 };
    const double *values = dtype == TESS_Q8 ? of_q8 : of_e4m3;
    float in[TESS_Q8_BLOCK] = { 0 }, out[TESS_Q8_BLOCK];
    double sum[7] = { 0 };
    char block[TESS_Q8_BYTES];
    tess_place run = { .elems = TESS_Q8_BLOCK, .at = 512 };
    for (int i = 0; i < 7; i++)
        in[i] = (float)values[i];
    for (uint32_t step = 0; step < STEPS; step++) {
        tess_rounding r = rounding_of(&run, 1, 0);
        r.step = step;
        pack_drawn(dtype, in, block, TESS_Q8_BLOCK, &r, NULL);
        cast(dtype, TESS_F32, block, out, TESS_Q8_BLOCK);
        for (int i = 0; i < 7; i++)
            sum[i] += (double)out[i];
        assert_true(out[0] == in[0] && out[5] == in[5] && out[7] == 0);
    }
    for (int i = 0; i < 7; i++) {
        double gap = dtype == TESS_Q8 ? 1 : fabs(values[i]) < 0x1p-6 ? 0x1p-9 : exp2(floor(log2(fabs(values[i]))) - 3);
        assert_true(fabs(sum[i] / STEPS - values[i]) < 4 * gap / 2 / sqrt(STEPS) + gap * 0x1p-12);
    }
}

static void test_draws__round_up_as_often_as_is_cut_off(void **state) {
    (void)state;
    draws_are_fair(TESS_Q8);
    draws_are_fair(TESS_Q8E4M3);
}

/* A scale is cut, so that the greatest element may be a little beyond the greatest byte. */
static void test_draws__the_greatest_byte_stays(void **state) {
    (void)state;
    for (uint32_t draw = 0; draw < 4096; draw++) {
        assert_int_equal(tess_q8_drawn(127.0019f, draw), 127);
        assert_int_equal(tess_q8_drawn(-127.0019f, draw), 256 - 127);
        assert_int_equal(tess_e4m3_drawn(448.006f, draw), 0x7e);
        assert_int_equal(tess_e4m3_drawn(-448.006f, draw), 0xfe);
    }
}

/* A parameter of 700 elements, number 2560 of the model on, whole; then in two kernels, behind another, on threads. */
static void test_draws__depend_on_the_place_in_the_model_alone(void **state) {
    (void)state;
    enum { N = 700, BEHIND = 512, ALL = BEHIND + 768 };
    static float in[ALL], out[N];
    static char whole[3 * TESS_Q8_BYTES], parts[3 * TESS_Q8_BYTES], behind[5 * TESS_Q8_BYTES], other[3 * TESS_Q8_BYTES];
    const tess_place alone = { .elems = N, .at = 2560 };
    const tess_place two[2] = { { .elems = 300, .at = 0 }, { .first = BEHIND, .elems = N, .at = 2560 } };
    uint64_t seed = 41;
    tess__pool *pool;
    tess_error error = { .struct_size = sizeof error };
    assert_int_equal(tess__pool_create(3, "", &pool, &error), TESS_OK);
    for (int i = 0; i < ALL; i++)
        in[i] = i < BEHIND + N ? random_unit(&seed) : 0;
    for_each_dtype(d) {
        tess__isa_limit(TESS_ISA_C);
        tess_rounding r = rounding_of(&alone, 1, 0);
        pack_drawn((uint32_t)d, in + BEHIND, whole, N, &r, NULL);
        cast((uint32_t)d, TESS_F32, whole, out, N);
        for (int i = 0; i < N; i++) { /* to a neighbour, up or down, also of the greatest */
            float scale = scale_of(whole, (uint64_t)i / TESS_Q8_BLOCK), size = fabsf(in[BEHIND + i]) / 8;
            assert_true(fabsf(out[i] - in[BEHIND + i]) <= 1.001f * (d == TESS_Q8 || scale > size ? scale : size));
        }
        for_each_isa(isa) {
            r = rounding_of(&alone, 1, 0);
            pack_drawn((uint32_t)d, in + BEHIND, parts, 256, &r, NULL);
            r.first = 256;
            pack_drawn((uint32_t)d, in + BEHIND + 256, parts + TESS_Q8_BYTES, N - 256, &r, NULL);
            assert_memory_equal(parts, whole, sizeof whole);
            r = rounding_of(two, 2, 0);
            pack_drawn((uint32_t)d, in, behind, ALL, &r, pool);
            assert_memory_equal(behind + 2 * TESS_Q8_BYTES, whole, sizeof whole);
        }
        r = rounding_of(&alone, 1, 0), r.step++;
        pack_drawn((uint32_t)d, in + BEHIND, other, N, &r, NULL);
        assert_memory_not_equal(other, whole, sizeof whole);
        r = rounding_of(&alone, 1, 0), r.draw++;
        pack_drawn((uint32_t)d, in + BEHIND, other, N, &r, NULL);
        assert_memory_not_equal(other, whole, sizeof whole);
    }
    tess__isa_limit(0);
    tess__pool_destroy(pool);
}

/* Runs with gaps between them: each block is as if it were alone, and zeros where there is no run. */
static void test_draws__each_block_is_of_its_run(void **state) {
    (void)state;
    enum { BLOCKS = 60 };
    static float in[BLOCKS * TESS_Q8_BLOCK];
    static char all[BLOCKS * TESS_Q8_BYTES], one[TESS_Q8_BYTES], none[TESS_Q8_BYTES];
    tess_place runs[16];
    uint64_t seed = 43;
    for (int i = 0; i < BLOCKS * TESS_Q8_BLOCK; i++)
        in[i] = random_unit(&seed);
    for (int round = 0; round < 8; round++) {
        uint32_t n = 0, block = round % 3;
        for (; n < 16 && block < BLOCKS - 5; n++) { /* the last block of a run may be short */
            const uint32_t blocks = 1 + (uint32_t)(next_random(&seed) % 3);
            runs[n] =
                (tess_place){ .first = block * TESS_Q8_BLOCK,
                              .elems = blocks * TESS_Q8_BLOCK - (n % 4 ? next_random(&seed) % 200 : TESS_Q8_BLOCK - 1),
                              .at = 8 * (next_random(&seed) % 100000) };
            block += blocks + (uint32_t)(next_random(&seed) % 3);
        }
        for_each_dtype(d) {
            tess_rounding r = rounding_of(runs, n, 0);
            memset(all, 0x55, sizeof all);
            pack_drawn((uint32_t)d, in, all, BLOCKS * TESS_Q8_BLOCK, &r, NULL);
            for (uint64_t b = 0; b < BLOCKS; b++) {
                const uint64_t first = b * TESS_Q8_BLOCK;
                const char *want = none;
                for (uint32_t k = 0; k < n; k++)
                    if (first >= runs[k].first && first < runs[k].first + runs[k].elems) {
                        const tess_place alone = { .elems = TESS_Q8_BLOCK, .at = runs[k].at + first - runs[k].first };
                        r = rounding_of(&alone, 1, 0);
                        pack_drawn((uint32_t)d, in + first, one, TESS_Q8_BLOCK, &r, NULL);
                        want = one;
                    }
                assert_memory_equal(all + b * TESS_Q8_BYTES, want, TESS_Q8_BYTES);
            }
        }
    }
}

/* ---- paths and sums ---- */

/* Every path, and any part of the work, gives the bits of the plain one. */
static void paths_agree(uint32_t dtype) {
    enum { MANY = 2 * TESS_Q8_BLOCK * TESS_Q8_BLOCK + 77 };
    tess__pool *pool;
    tess_error error = { .struct_size = sizeof error };
    float *in = malloc(MANY * sizeof *in);
    char *want = malloc(tess_dtype_span(dtype, MANY)), *got = malloc(tess_dtype_span(dtype, MANY));
    uint64_t seed = 3;
    assert_int_equal(tess__pool_create(3, "", &pool, &error), TESS_OK);
    for (int i = 0; i < MANY; i++)
        in[i] = random_wide(&seed);
    tess__isa_limit(TESS_ISA_C);
    cast(TESS_F32, dtype, in, want, MANY);
    const void *list[1] = { in };
    tess_kernel k = { .struct_size = sizeof k,
                      .kernel = TESS_K_CAST,
                      .in_dtype = TESS_F32,
                      .out_dtype = dtype,
                      .n_in = 1,
                      .in = list,
                      .out = got,
                      .elems = MANY };
    for_each_isa(isa) {
        memset(got, 0x55, tess_dtype_span(dtype, MANY));
        run_kernel(&k, pool);
        assert_memory_equal(got, want, tess_dtype_span(dtype, MANY));
    }
    tess__isa_limit(0);
    tess__pool_destroy(pool);
    free(in), free(want), free(got);
}

static void test_blocks__instruction_sets_and_threads_change_no_bit(void **state) {
    (void)state;
    for_each_dtype(d) paths_agree((uint32_t)d);
}

/* A sum of blocks is the tree of what they hold, and so are the steps of its binary counter. */
static void sums_are_trees(uint32_t dtype) {
    static float wide[PARTS][ELEMS], want[ELEMS], got[ELEMS];
    static char blocks[PARTS][(ELEMS / TESS_Q8_BLOCK + 1) * TESS_Q8_BYTES];
    const void *as_f32[PARTS], *as_q8[PARTS];
    uint64_t seed = 5;
    for (int p = 0; p < PARTS; p++) {
        for (int i = 0; i < ELEMS; i++)
            wide[p][i] = random_wide(&seed);
        cast(TESS_F32, dtype, wide[p], blocks[p], ELEMS);
        cast(dtype, TESS_F32, blocks[p], wide[p], ELEMS);
        as_f32[p] = wide[p], as_q8[p] = blocks[p];
    }
    for_each_isa(isa) for (uint32_t n = 1; n <= PARTS; n++) {
        tess_kernel k = { .struct_size = sizeof k,
                          .kernel = TESS_K_TREE_SUM,
                          .in_dtype = TESS_F32,
                          .out_dtype = TESS_F32,
                          .n_in = n,
                          .in = as_f32,
                          .out = want,
                          .elems = ELEMS,
                          .scale = 1.0 / 3 };
        run_kernel(&k, NULL);
        k.in_dtype = dtype, k.in = as_q8, k.out = got;
        run_kernel(&k, NULL);
        assert_memory_equal(got, want, sizeof got);
    }
    tess__isa_limit(0);
}

/* The tree by its definition, each sum of two in blocks: out[i] = T(lo, hi) of parts. */
static void tree_in_blocks(uint32_t dtype, float parts[][ELEMS], int lo, int hi, float *out) {
    float right[ELEMS];
    char blocks[(ELEMS / TESS_Q8_BLOCK + 1) * TESS_Q8_BYTES];
    int p = 1;
    memcpy(out, parts[lo], sizeof right);
    if (hi - lo == 1)
        return;
    while (2 * p < hi - lo)
        p *= 2;
    tree_in_blocks(dtype, parts, lo, lo + p, out);
    tree_in_blocks(dtype, parts, lo + p, hi, right);
    for (int i = 0; i < ELEMS; i++)
        out[i] += right[i];
    cast(TESS_F32, dtype, out, blocks, ELEMS);
    cast(dtype, TESS_F32, blocks, out, ELEMS);
}

/* A part whose blocks are of all kinds: of one size and of many, of zeros and of the least numbers, not finite, and
 * with a code that no cast makes. `blocks` and what they hold. */
static void part_of_all_kinds(uint32_t dtype, int part, float *wide, char *blocks, uint64_t *seed) {
    for (int i = 0; i < ELEMS; i++)
        wide[i] = i / TESS_Q8_BLOCK % 2 ? random_wide(seed) : random_unit(seed);
    for (int i = 4 * TESS_Q8_BLOCK; i < 5 * TESS_Q8_BLOCK; i++)
        wide[i] = part < 2 ? 0 : ldexpf(wide[i], -118);
    for (int i = 5 * TESS_Q8_BLOCK; i < 6 * TESS_Q8_BLOCK; i++) /* two that leave next to nothing */
        wide[i] = ldexpf(part ? 1 : -1.001f, i % 2 ? -112 : -113);
    if (part == 1)
        wide[9 * TESS_Q8_BLOCK + 5] = INFINITY;
    cast(TESS_F32, dtype, wide, blocks, ELEMS);
    if (part == 2)
        blocks[10 * TESS_Q8_BYTES + 4 + 17] = 0x7f;
    cast(dtype, TESS_F32, blocks, wide, ELEMS);
}

/* Into f32, scaled and as it is; into blocks; and added to what is there. */
static void sums_go_through(uint32_t dtype, uint32_t flag) {
    static float wide[PARTS][ELEMS], two[2][ELEMS], want[ELEMS], got[ELEMS];
    static char blocks[PARTS][(ELEMS / TESS_Q8_BLOCK + 1) * TESS_Q8_BYTES], sum[sizeof blocks[0]], packed[sizeof sum];
    const void *in[PARTS];
    uint64_t seed = 9;
    for (int p = 0; p < PARTS; p++) {
        part_of_all_kinds(dtype, p, wide[p], blocks[p], &seed);
        in[p] = blocks[p];
    }
    for_each_isa(isa) for (int n = 1; n <= PARTS; n++) {
        tess_kernel k = { .struct_size = sizeof k,
                          .kernel = TESS_K_TREE_SUM,
                          .in_dtype = dtype,
                          .out_dtype = dtype,
                          .n_in = (uint32_t)n,
                          .flags = flag,
                          .in = in,
                          .out = sum,
                          .elems = ELEMS };
        tree_in_blocks(dtype, wide, 0, n, want);
        cast(TESS_F32, dtype, want, packed, ELEMS);
        run_kernel(&k, NULL);
        assert_memory_equal(sum, packed, sizeof sum);
        k.out_dtype = TESS_F32, k.out = got;
        run_kernel(&k, NULL);
        assert_memory_equal(got, want, sizeof got);
        memcpy(two[0], wide[0], sizeof got), memcpy(two[1], want, sizeof got), memcpy(got, wide[0], sizeof got);
        tree_in_blocks(dtype, two, 0, 2, want);
        for (int i = 0; i < ELEMS; i++)
            want[i] *= (float)(1.0 / 3);
        k.out_dtype = TESS_F32, k.out = got, k.flags = flag | TESS_KERNEL_ADD, k.scale = 1.0 / 3;
        run_kernel(&k, NULL);
        assert_memory_equal(got, want, sizeof got);
    }
    tess__isa_limit(0);
}

static void test_blocks__sums_of_two_go_through_them(void **state) {
    (void)state;
    sums_go_through(TESS_Q8, TESS_KERNEL_Q8);
    sums_go_through(TESS_Q8E4M3, TESS_KERNEL_Q8E4M3);
}

/* A code that no cast makes, at each place of either part: the sum's block is not finite, whatever the instructions. */
static void test_blocks__a_nan_is_seen_at_each_place(void **state) {
    (void)state;
    static char part[2][TESS_Q8_BYTES], sum[TESS_Q8_BYTES];
    float ones[TESS_Q8_BLOCK], wide[TESS_Q8_BLOCK];
    const void *in[2] = { part[0], part[1] };
    for (int i = 0; i < TESS_Q8_BLOCK; i++)
        ones[i] = 1;
    for_each_isa(isa) for (int at = 0; at < 2 * TESS_Q8_BLOCK; at++) {
        tess_kernel k = { .struct_size = sizeof k,
                          .kernel = TESS_K_TREE_SUM,
                          .in_dtype = TESS_Q8E4M3,
                          .out_dtype = TESS_Q8E4M3,
                          .n_in = 2,
                          .flags = TESS_KERNEL_Q8E4M3,
                          .in = in,
                          .out = sum,
                          .elems = TESS_Q8_BLOCK };
        for (int p = 0; p < 2; p++)
            cast(TESS_F32, TESS_Q8E4M3, ones, part[p], TESS_Q8_BLOCK);
        part[at / TESS_Q8_BLOCK][4 + at % TESS_Q8_BLOCK] = at % 3 ? 0x7f : (char)0xff;
        run_kernel(&k, NULL);
        cast(TESS_Q8E4M3, TESS_F32, sum, wide, TESS_Q8_BLOCK);
        assert_true(isnan(wide[at % TESS_Q8_BLOCK]));
    }
    tess__isa_limit(0);
}

static void test_blocks__sums_that_cannot_are_refused(void **state) {
    (void)state;
    double x[1] = { 1 }, y[1] = { 0 };
    const void *in[1] = { x };
    tess_error e = { .struct_size = sizeof e };
    tess_kernel k = { .struct_size = sizeof k,
                      .kernel = TESS_K_TREE_SUM,
                      .in_dtype = TESS_F64,
                      .out_dtype = TESS_F64,
                      .n_in = 1,
                      .flags = TESS_KERNEL_Q8,
                      .in = in,
                      .out = y,
                      .elems = 1 };
    assert_int_equal(tess__kernel_run(&k, NULL, &e), TESS_E_INVALID);
    assert_non_null(strstr(e.message, "blocks are of one kind, of f32"));
    k.in_dtype = k.out_dtype = TESS_F32, k.flags = TESS_KERNEL_Q8 | TESS_KERNEL_Q8E4M3;
    assert_int_equal(tess__kernel_run(&k, NULL, &e), TESS_E_INVALID);
    k.flags = TESS_KERNEL_Q8 | TESS_KERNEL_CHAIN;
    assert_int_equal(tess__kernel_run(&k, NULL, &e), TESS_E_INVALID);
    k.flags = 0, k.out_dtype = TESS_Q8, k.scale = 0.5;
    assert_int_equal(tess__kernel_run(&k, NULL, &e), TESS_E_UNSUPPORTED);
}

static void test_blocks__sums_are_the_tree_of_the_widened_values(void **state) {
    (void)state;
    for_each_dtype(d) sums_are_trees((uint32_t)d);
}

int main(int argc, char **argv) {
    thorough = argc > 1 && strcmp(argv[1], "all") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_q8__a_block_is_its_scale_and_its_bytes),
        cmocka_unit_test(test_blocks__no_element_is_off_by_more_than_half_a_step),
        cmocka_unit_test(test_blocks__what_is_not_finite_makes_its_block_nan_and_no_other),
        cmocka_unit_test(test_blocks__the_least_scale_and_the_greatest),
        cmocka_unit_test(test_blocks__made_again_of_what_they_hold_are_the_same),
        cmocka_unit_test(test_e4m3__each_code_is_its_value_and_back),
        cmocka_unit_test(test_e4m3__all_is_rounded_to_the_nearest),
        cmocka_unit_test(test_e4m3__blocks_round_as_all_floats_do),
        cmocka_unit_test(test_e4m3__a_block_of_all_codes),
        cmocka_unit_test(test_draws__round_up_as_often_as_is_cut_off),
        cmocka_unit_test(test_draws__the_greatest_byte_stays),
        cmocka_unit_test(test_draws__depend_on_the_place_in_the_model_alone),
        cmocka_unit_test(test_draws__each_block_is_of_its_run),
        cmocka_unit_test(test_blocks__instruction_sets_and_threads_change_no_bit),
        cmocka_unit_test(test_blocks__sums_of_two_go_through_them),
        cmocka_unit_test(test_blocks__a_nan_is_seen_at_each_place),
        cmocka_unit_test(test_blocks__sums_that_cannot_are_refused),
        cmocka_unit_test(test_blocks__sums_are_the_tree_of_the_widened_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
