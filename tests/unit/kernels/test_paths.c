/* SPDX-License-Identifier: BSD-3-Clause */
/* Every path of every cast, into the caches and past them, gives the bits of the plain loop, at any place and length.
 * Sums and copies past the caches do no more than that. */
#include "kernel_fixture.h"
#include "core/kernels/digest.h"
#include "core/kernels/kernel_x86.h"
#include <stdlib.h>
#include <tessera/plugin_helpers.h>

enum { MOST = 40 * TESS_Q8_BLOCK, GUARD = 256 };
static _Alignas(64) char from[MOST * 8 + GUARD], got[MOST * 8 + 2 * GUARD], want[MOST * 8 + 2 * GUARD];
static const uint32_t dtypes[] = { TESS_F32,    TESS_BF16, TESS_F16, TESS_F64, TESS_Q8,
                                   TESS_Q8E4M3, TESS_U8,   TESS_I32, TESS_I64 };

/* Any bits: numbers of all sizes, denormals, infinities and NaN; scales of blocks are finite. */
static void fill(uint32_t dtype, uint64_t *seed) {
    for (size_t i = 0; i < sizeof from; i += 8) {
        const uint64_t bits = next_random(seed);
        memcpy(from + i, &bits, 8);
    }
    for (int i = 0; i < MOST && dtype == TESS_F32; i++) { /* as numbers mostly are */
        const float x = random_wide(seed);
        if (i % 7)
            memcpy(from + i * 4, &x, 4);
    }
    for (int i = 0; i < MOST && dtype == TESS_F64; i++) {
        const double x = (double)random_wide(seed) / 3;
        memcpy(from + i * 8, &x, 8);
    }
    for (int b = 0; b * TESS_Q8_BYTES < MOST && tess_dtype_is_blocks(dtype); b++) {
        const float scale = fabsf(random_wide(seed));
        memcpy(from + b * TESS_Q8_BYTES, &scale, 4);
        for (int i = 0; i < TESS_Q8_BLOCK && b % 3; i++) /* in two of three no NaN */
            if ((from[b * TESS_Q8_BYTES + 4 + i] & 0x7f) == 0x7f)
                from[b * TESS_Q8_BYTES + 4 + i] = 0x11;
    }
}

/* Whose bits the formulas say, which test_cast holds. */
static void compare(uint32_t in, uint32_t out, int isa, int stream, int elems, int shift) {
    const uint64_t span = tess_dtype_span(out, (uint64_t)elems);
    tess__cast_fn fn = tess__cast_find(in, out, stream);
    assert_non_null(fn);
    memset(got, 0xee, sizeof got);
    fn(from, got + GUARD + shift, (uint64_t)elems);
    if (memcmp(got + GUARD + shift, want + GUARD, span) != 0)
        fail_msg("%s to %s, %s, past the caches %d: %d elements at %d", tess_dtype_name(in), tess_dtype_name(out),
                 tess__isa_name(isa), stream, elems, shift);
    for (uint64_t i = 0; i < (uint64_t)(GUARD + shift); i++)
        assert_int_equal((uint8_t)got[i], 0xee);
    for (uint64_t i = (uint64_t)(GUARD + shift) + span; i < sizeof got; i += i < GUARD + shift + span + 64 ? 1 : 61)
        assert_int_equal((uint8_t)got[i], 0xee);
}

static void test_paths__each_cast_gives_the_plain_loops_bits(void **state) {
    (void)state;
    static const int lengths[] = { 0, 1, 15, 16, 33, 255, 256, 257, 1024 + 256, 17 * 256 + 9, MOST - 64 };
    uint64_t seed = 81;
    int casts = 0;
    for (int i = 0; i < 9; i++)
        for (int o = 0; o < 9; o++) {
            tess__isa_limit(TESS_ISA_C);
            tess__cast_fn plain = tess__cast_find(dtypes[i], dtypes[o], 0);
            casts += plain != NULL;
            for (int n = 0; n < 11 && plain; n++) {
                const int elems = lengths[n], shift = (int)(next_random(&seed) % 3) * 16 + (n % 2) * 8;
                fill(dtypes[i], &seed);
                tess__isa_limit(TESS_ISA_C);
                plain(from, want + GUARD, (uint64_t)elems);
                for_each_isa(isa) for (int stream = 0; stream < 2; stream++) {
                    compare(dtypes[i], dtypes[o], isa, stream, elems, shift);
                    compare(dtypes[i], dtypes[o], isa, stream, elems, 0);
                }
            }
        }
    assert_int_equal(casts,
                     4 * 4 + 2 * 4 + 2 + 3); /* floats; blocks of and to f32, to the 16 bits; themselves; others */
    tess__isa_limit(0);
}

#if defined(TESS_HAVE_X86)
/* Each set of instructions has loops of its own; those that are written by hand have one past the caches too. A linker
 * that makes one of functions with the same code would break this. */
static void test_paths__each_set_of_instructions_has_its_own(void **state) {
    (void)state;
    static const uint32_t f = TESS_F32, b = TESS_BF16, h = TESS_F16, d = TESS_F64, q = TESS_Q8, e = TESS_Q8E4M3;
    const struct {
        uint32_t from, to;
        int by_hand;
    } each[] = { { f, b, 1 }, { f, h, 1 }, { b, f, 1 }, { h, f, 1 }, { f, d, 0 }, { d, f, 0 }, { d, b, 0 },
                 { b, d, 0 }, { d, h, 0 }, { h, d, 0 }, { h, b, 0 }, { b, h, 0 }, { f, q, 1 }, { f, e, 1 },
                 { q, f, 1 }, { e, f, 1 }, { q, b, 0 }, { q, h, 0 }, { e, b, 0 }, { e, h, 0 } };
    const int best = tess__isa_limit(TESS_ISA_AVX512);
    for (size_t i = 0; i < sizeof each / sizeof each[0]; i++) {
        tess__cast_fn found[8];
        int n = 0;
        for (int isa = TESS_ISA_C; isa <= best; isa++)
            for (int stream = 0; stream < 2; stream++) {
                tess__isa_limit(isa);
                found[n] = tess__cast_find(each[i].from, each[i].to, stream);
                for (int k = 0; k < n; k++) {
                    const int same_set = k / 2 == n / 2;
                    assert_int_equal(found[k] == found[n], same_set && (isa == TESS_ISA_C || !each[i].by_hand));
                }
                n++;
            }
    }
    tess__isa_limit(0);
}

static void test_paths__what_is_past_the_caches_is_all_there(void **state) {
    (void)state;
    if (tess__isa() < TESS_ISA_AVX2)
        skip();
    uint64_t seed = 5;
    fill(TESS_F32, &seed);
    ((float *)(void *)from)[40] = ((float *)(void *)from)[256 + 40] = -0.0f; /* whose sum is -0 */
    for (int elems = 0; elems < 90; elems++)
        for (int shift = 0; shift < 64; shift += 4) {
            float *sum = (float *)(void *)(got + GUARD + shift);
            const float *a = (const float *)(const void *)from, *b = (const float *)(const void *)(from + 1024);
            memset(got, 0xee, 2048);
            tess__add_past(sum, a, b, (uint64_t)elems);
            for (int i = 0; i < elems; i++) {
                const float one = a[i] + b[i];
                assert_true(isnan(one) ? isnan(sum[i]) : tess_f32_bits(sum[i]) == tess_f32_bits(one));
            }
            assert_true((uint8_t)got[GUARD + shift - 1] == 0xee && (uint8_t)got[GUARD + shift + elems * 4] == 0xee);
            memset(got, 0xee, 2048);
            tess__copy_past(got + GUARD + shift, from + 3, (uint64_t)elems * 5);
            tess__copy_past_end();
            assert_memory_equal(got + GUARD + shift, from + 3, (size_t)elems * 5);
            assert_true((uint8_t)got[GUARD + shift - 1] == 0xee && (uint8_t)got[GUARD + shift + elems * 5] == 0xee);
        }
}
#endif

/* ---- digests ---- */

/* As core/kernels/kernel_digest.c and docs say it. The key of a word is that of its place in its block of 256, times
 * that of the block. */
static uint64_t digest_of(const void *values, uint32_t bytes, uint64_t first, uint64_t n, uint64_t seed) {
    const uint64_t step = UINT64_C(0x9e3779b97f4a7c15), words = bytes == 8 ? 2 : 1;
    const uint32_t width = bytes == 8 ? 4 : bytes;
    uint64_t sum = 0;
    for (uint64_t i = 0; i < n * words; i++) {
        const uint64_t place = first * words + i;
        uint64_t word = 0;
        memcpy(&word, (const char *)values + i * width, width);
        const uint64_t key = tess__spread((place % 256 + 1) * step) >> 32 | 1;
        sum += key * word * (tess__spread(seed + place / 256 * step) | 1);
    }
    return sum;
}

static void test_paths__a_digest_is_its_words_by_their_places(void **state) {
    (void)state;
    static const uint32_t widths[] = { 1, 2, 4, 8 };
    uint64_t seed = 19;
    for (int round = 0; round < 300; round++) {
        const uint32_t bytes = widths[round % 4];
        const uint64_t first = next_random(&seed) % 1000, n = next_random(&seed) % 900, of = next_random(&seed);
        fill(TESS_I64, &seed);
        const uint64_t expected = digest_of(from, bytes, first, n, of);
        for_each_isa(isa) assert_true(tess__digest(from, bytes, first, n, of) == expected);
        assert_true(tess__digest(from, bytes, first, n / 2, of) +
                        tess__digest(from + n / 2 * bytes, bytes, first + n / 2, n - n / 2, of) ==
                    expected);
        tess__isa_limit(0);
    }
}

/* ---- finite ---- */

static void test_paths__one_that_is_not_finite_is_seen_wherever_it_is(void **state) {
    (void)state;
    static const uint32_t floats[] = { TESS_F32, TESS_F64, TESS_BF16, TESS_F16 };
    static const float odd[] = { INFINITY, -INFINITY, NAN };
    uint64_t seed = 23;
    for (int d = 0; d < 4; d++)
        for (int round = 0; round < 60; round++) {
            const int n = 1 + (int)(next_random(&seed) % 300), at = (int)(next_random(&seed) % (uint64_t)n);
            const uint32_t bytes = tess_dtype_bytes(floats[d]);
            tess__isa_limit(0);
            for (int i = 0; i < 300; i++) { /* all finite, up to the greatest */
                const float x = i % 9 ? random_wide(&seed) : i % 2 ? 65504 : -65504;
                if (floats[d] == TESS_F64)
                    ((double *)(void *)want)[i] = i % 9 ? (double)x : 1.7e308;
                else if (floats[d] == TESS_F32)
                    ((float *)(void *)want)[i] = x;
                else
                    ((uint16_t *)(void *)want)[i] = floats[d] == TESS_F16 ? tess_f16_of_f32(x) : tess_bf16_of_f32(x);
            }
            for_each_isa(isa) {
                memcpy(got, want, sizeof got);
                assert_true(tess__all_finite(got, floats[d], (uint64_t)n));
                const float x = odd[round % 3];
                const double wide = (double)x;
                const uint16_t low = floats[d] == TESS_F16 ? tess_f16_of_f32(x) : tess_bf16_of_f32(x);
                memcpy(got + at * (int)bytes,
                       bytes == 8   ? (const void *)&wide
                       : bytes == 4 ? (const void *)&x
                                    : &low,
                       bytes);
                assert_false(tess__all_finite(got, floats[d], (uint64_t)n));
                assert_true(tess__all_finite(got, floats[d], (uint64_t)at));
            }
        }
    tess__isa_limit(0);
    memset(got, 0xff, 64);
    assert_true(tess__all_finite(got, TESS_I32, 16) && tess__all_finite(got, TESS_U8, 64));
}

static void test_paths__sets_of_instructions_have_names(void **state) {
    (void)state;
    static const char *const names[] = { "none", "c", "avx2", "avx512", "avx512_bf16", "none" };
    const int best = tess__isa();
    assert_in_range(best, TESS_ISA_C, TESS_ISA_AVX512_BF16);
    for (int isa = -1; isa < 6; isa++) {
        assert_string_equal(tess__isa_name(isa), isa < 0 ? "none" : names[isa]);
        if (isa > 0)
            assert_int_equal(tess__isa_limit(isa), isa < best ? isa : best);
    }
    assert_int_equal(tess__isa_limit(0), best);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paths__each_cast_gives_the_plain_loops_bits),
#if defined(TESS_HAVE_X86)
        cmocka_unit_test(test_paths__each_set_of_instructions_has_its_own),
        cmocka_unit_test(test_paths__what_is_past_the_caches_is_all_there),
#endif
        cmocka_unit_test(test_paths__a_digest_is_its_words_by_their_places),
        cmocka_unit_test(test_paths__one_that_is_not_finite_is_seen_wherever_it_is),
        cmocka_unit_test(test_paths__sets_of_instructions_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
