/* SPDX-License-Identifier: BSD-3-Clause */
/* Tree sums of drawn dtypes, counts, lengths, flags and scales, an element at a time against the recursion of
 * docs/numbers.md. */
#include "kernel_fixture.h"
#include "core/kernels/kernel_x86.h"
#include <stdlib.h>
#include <tessera/plugin_helpers.h>

static struct {
    int adds, copies, pairs; /* by hand: additions and copies past the caches, and sums of two blocks */
} by_hand;

#if defined(TESS_HAVE_X86)
static void note_add(void *to, const void *a, const void *b, uint64_t elems) {
    by_hand.adds++;
    tess__add_past(to, a, b, elems);
}
static void note_copy(void *to, const void *from, uint64_t bytes) {
    by_hand.copies++;
    tess__copy_past(to, from, bytes);
}
static int note_q8(const void *a, const void *b, void *to, uint64_t elems, int past) {
    by_hand.pairs++;
    return tess__pair_q8_512(a, b, to, elems, past);
}
static int note_e4m3(const void *a, const void *b, void *to, uint64_t elems, int past) {
    by_hand.pairs++;
    return tess__pair_e4m3_512(a, b, to, elems, past);
}
#define tess__add_past note_add
#define tess__copy_past note_copy
#define tess__pair_q8_512 note_q8
#define tess__pair_e4m3_512 note_e4m3
#endif
#include "core/kernels/kernel_tree_sum.c"

enum { MOST = 2500, INPUTS = 37, GUARD = 8 };
typedef union {
    float f32[MOST + 2 * GUARD];
    double f64[MOST + 2 * GUARD];
    uint32_t i32[MOST + 2 * GUARD];
    uint64_t i64[MOST + 2 * GUARD];
    uint16_t f16[MOST + 2 * GUARD];
} array;
static array in[INPUTS], out, before;

static uint32_t sum_dtype(uint32_t dtype) {
    return dtype == TESS_BF16 || dtype == TESS_F16 ? TESS_F32 : dtype;
}

static void fill(array *a, uint32_t dtype, uint64_t *seed) {
    for (int i = 0; i < MOST + 2 * GUARD; i++) {
        const float x = random_wide(seed);
        switch (dtype) {
        case TESS_F64: a->f64[i] = (double)x / 3; break;
        case TESS_I32: a->i32[i] = (uint32_t)next_random(seed); break;
        case TESS_I64: a->i64[i] = next_random(seed); break;
        case TESS_BF16: a->f16[i] = tess_bf16_of_f32(x); break;
        case TESS_F16: a->f16[i] = tess_f16_of_f32(x); break;
        default: a->f32[i] = x;
        }
    }
}

/* One element in the sum's dtype; integers in two's complement, which wraps. */
typedef union {
    float f32;
    double f64;
    uint64_t i64;
} value;

static value value_at(const array *a, uint32_t dtype, int i) {
    switch (dtype) {
    case TESS_F64: return (value){ .f64 = a->f64[i] };
    case TESS_I32: return (value){ .i64 = a->i32[i] };
    case TESS_I64: return (value){ .i64 = a->i64[i] };
    case TESS_BF16: return (value){ .f32 = tess_f32_of_bf16(a->f16[i]) };
    case TESS_F16: return (value){ .f32 = tess_f32_of_f16(a->f16[i]) };
    default: return (value){ .f32 = a->f32[i] };
    }
}

static value plus(uint32_t sum, value a, value b) {
    if (sum == TESS_F32)
        a.f32 += b.f32;
    else if (sum == TESS_F64)
        a.f64 += b.f64;
    else
        a.i64 += b.i64;
    return a;
}

/* T(lo, hi) = T(lo, lo + p) + T(lo + p, hi), p the largest power of two below hi - lo. */
static value tree(uint32_t dtype, int lo, int hi, int i) {
    int p = 1;
    if (hi - lo == 1)
        return value_at(&in[lo], dtype, i);
    while (2 * p < hi - lo)
        p *= 2;
    return plus(sum_dtype(dtype), tree(dtype, lo, lo + p, i), tree(dtype, lo + p, hi, i));
}

/* in[0] + (in[1] + (… + in[n - 1])), of which all but the last have the sum's dtype. */
static value chain(uint32_t dtype, int n, int i) {
    value x = value_at(&in[n - 1], dtype, i);
    for (int k = n - 1; k-- > 0;)
        x = plus(sum_dtype(dtype), value_at(&in[k], sum_dtype(dtype), i), x);
    return x;
}

static void assert_is(value want, uint32_t sum, uint32_t dtype, int i) {
    int same;
    if (dtype == TESS_BF16)
        same = out.f16[i] == tess_bf16_of_f32(want.f32);
    else if (dtype == TESS_F16)
        same = out.f16[i] == tess_f16_of_f32(want.f32);
    else if (sum == TESS_F32)
        same = tess_f32_bits(out.f32[i]) == tess_f32_bits(want.f32);
    else if (sum == TESS_F64)
        same = memcmp(&out.f64[i], &want.f64, 8) == 0;
    else
        same = dtype == TESS_I32 ? out.i32[i] == (uint32_t)want.i64 : out.i64[i] == want.i64;
    if (!same)
        fail_msg("element %d", i);
}

typedef struct {
    uint32_t dtype, out_dtype, flags;
    int n, alias, first, elems; /* alias: the output is this input; -1: none */
    double scale;
} sum_case;

static void *at(array *a, uint32_t dtype, int first) {
    return (char *)a + (size_t)first * tess_dtype_bytes(dtype);
}

static void check(const sum_case *c) {
    const uint32_t sum = sum_dtype(c->dtype);
    const void *list[INPUTS];
    for (int k = 0; k < c->n; k++)
        list[k] = k == c->alias ? at(&out, c->out_dtype, c->first)
                                : at(&in[k], c->flags & TESS_KERNEL_CHAIN && k < c->n - 1 ? sum : c->dtype, c->first);
    out = c->alias < 0 ? before : in[c->alias];
    before = out;
    tess_kernel k = { .struct_size = sizeof k,
                      .kernel = TESS_K_TREE_SUM,
                      .in_dtype = c->dtype,
                      .out_dtype = c->out_dtype,
                      .n_in = (uint32_t)c->n,
                      .flags = c->flags,
                      .in = list,
                      .out = at(&out, c->out_dtype, c->first),
                      .elems = (uint64_t)c->elems,
                      .scale = c->scale };
    run_kernel(&k, NULL);
    for (int i = c->first; i < c->first + c->elems; i++) {
        value want = c->flags & TESS_KERNEL_CHAIN ? chain(c->dtype, c->n, i) : tree(c->dtype, 0, c->n, i);
        if (c->flags & TESS_KERNEL_ADD)
            want = plus(sum, value_at(&before, c->out_dtype, i), want);
        if (c->scale != 0 && sum == TESS_F32)
            want.f32 *= (float)c->scale;
        if (c->scale != 0 && sum == TESS_F64)
            want.f64 *= c->scale;
        assert_is(want, sum, c->out_dtype, i);
    }
    const size_t bytes = tess_dtype_bytes(c->out_dtype), begin = (size_t)c->first * bytes;
    const size_t end = begin + (size_t)c->elems * bytes;
    assert_memory_equal(&out, &before, begin);
    assert_memory_equal((char *)&out + end, (char *)&before + end, sizeof out - end);
}

/* A dtype that may go out of a sum. */
static uint32_t draw_out(uint32_t dtype, uint64_t *seed) {
    static const uint32_t floats[] = { TESS_F32, TESS_BF16, TESS_F16 };
    return sum_dtype(dtype) == TESS_F32 ? floats[next_random(seed) % 3] : dtype;
}

static void test_sums__are_trees_of_whatever_is_drawn(void **state) {
    (void)state;
    static const uint32_t dtypes[] = { TESS_F32, TESS_F64, TESS_I32, TESS_I64, TESS_BF16, TESS_F16 };
    static const int lengths[] = { 0, 1, 15, 64, 511, 512, 513, 1024, 1025, MOST };
    static const double scales[] = { 0, 1, 1.0 / 3, -2 };
    uint64_t seed = 61;
    for (int round = 0; round < 360; round++) {
        sum_case c = { .dtype = dtypes[round % 6], .alias = -1, .first = (int)(next_random(&seed) % GUARD) };
        const uint32_t sum = sum_dtype(c.dtype);
        c.out_dtype = draw_out(c.dtype, &seed);
        c.n = (int)(round % 3 ? 1 + next_random(&seed) % 9 : 1 + next_random(&seed) % INPUTS);
        c.elems = lengths[next_random(&seed) % 10] / (c.n > 9 ? 2 : 1);
        c.flags = next_random(&seed) % 3 ? 0 : TESS_KERNEL_ADD;
        if (next_random(&seed) % 4 == 0)
            c.flags |= TESS_KERNEL_CHAIN;
        c.scale = scales[next_random(&seed) % (sum == TESS_I32 || sum == TESS_I64 ? 2 : 4)];
        if (c.out_dtype == c.dtype && next_random(&seed) % 3 == 0)
            c.alias = (int)(next_random(&seed) % (uint64_t)c.n);
        for (int k = 0; k < c.n; k++)
            fill(&in[k], c.flags & TESS_KERNEL_CHAIN && k < c.n - 1 ? sum : c.dtype, &seed);
        if (c.alias >= 0 && c.flags & TESS_KERNEL_CHAIN && c.dtype != sum)
            c.alias = -1;
        fill(&before, c.out_dtype, &seed);
        if (c.alias >= 0)
            before = in[c.alias];
        tess__isa_limit(round / 6 % 4 + 1);
        check(&c);
    }
    tess__isa_limit(0);
}

/* ---- much ---- */

/* At 16 MiB in all a sum goes past the caches. `n` inputs of one array, each at its own place in it. */
static void sum_much(uint32_t dtype, uint32_t out_dtype, int n, uint64_t elems, double scale) {
    enum { APART = 4 };
    const uint32_t sum = sum_dtype(dtype), bytes = tess_dtype_bytes(dtype), out_bytes = tess_dtype_bytes(out_dtype);
    char *all = calloc(elems + APART * INPUTS, bytes), *to = aligned_alloc(64, (elems + 64) * out_bytes / 64 * 64 + 64);
    const void *list[INPUTS];
    uint64_t seed = 5;
    fill(&in[0], dtype, &seed);
    for (uint64_t i = 0; i < elems + APART * INPUTS; i += 2048) /* the same 2048 again and again */
        memcpy(all + i * bytes, &in[0],
               (elems + APART * INPUTS - i < 2048 ? elems + APART * INPUTS - i : 2048) * bytes);
    for (int k = 0; k < n; k++)
        list[k] = all + (size_t)k * APART * bytes;
    tess_kernel k = { .struct_size = sizeof k,
                      .kernel = TESS_K_TREE_SUM,
                      .in_dtype = dtype,
                      .out_dtype = out_dtype,
                      .n_in = (uint32_t)n,
                      .in = list,
                      .out = to + 64,
                      .elems = elems - 64,
                      .scale = scale };
    memset(to, 0, elems * out_bytes);
    run_kernel(&k, NULL);
    for (int j = 1; j < n; j++) /* as if they were arrays of their own */
        memmove(&in[j], (char *)&in[0] + (size_t)j * APART * bytes, 2000 * bytes);
    for (uint64_t i = 0; i < k.elems; i += i < 4096 || i + 4096 > k.elems ? 1 : 97) {
        const uint64_t place = i % 2048;
        if (place >= 1800) /* where an input's place in 2048 begins again */
            continue;
        memcpy((char *)&out + place * out_bytes, to + 64 + i * out_bytes, out_bytes);
        value want = tree(dtype, 0, n, (int)place);
        if (scale != 0)
            want.f32 *= (float)scale;
        assert_is(want, sum, out_dtype, (int)place);
    }
    free(all), free(to);
}

enum { LINE = 1 << 20 }; /* elements of three arrays and their sum in f32 that have 16 MiB in all */
static void test_sums__from_16_mib_on_go_past_the_caches_and_are_the_same(void **state) {
    (void)state;
    for (int isa = TESS_ISA_C; isa <= TESS_ISA_AVX512; isa++) {
        const int wide = tess__isa_limit(isa) > TESS_ISA_C;
        static const struct {
            uint32_t dtype, out_dtype;
            int n, past, adds; /* past, and by additions of their own */
            uint64_t elems;
            double scale;
        } each[] = {
            { TESS_F32, TESS_F32, 3, 0, 0, LINE - 1, 0 },      { TESS_F32, TESS_F32, 3, 1, 1, LINE, 0 },
            { TESS_F32, TESS_F32, 3, 1, 0, LINE, 1.0 / 3 },    { TESS_I32, TESS_I32, 3, 1, 0, LINE, 0 },
            { TESS_BF16, TESS_F32, 2, 1, 1, 2 * LINE, 0 },     { TESS_F32, TESS_BF16, 4, 0, 0, LINE, 0 },
            { TESS_F32, TESS_F32, 2, 1, 1, 2 * LINE - 77, 1 },
        };
        for (size_t i = 0; i < sizeof each / sizeof each[0]; i++) {
            memset(&by_hand, 0, sizeof by_hand);
            sum_much(each[i].dtype, each[i].out_dtype, each[i].n, each[i].elems + 64, each[i].scale);
            assert_int_equal(by_hand.adds > 0, wide && each[i].adds);
            assert_int_equal(by_hand.copies > 0, wide && each[i].past && !each[i].adds);
        }
    }
    tess__isa_limit(0);
}

/* Those of one kind through blocks of that kind, with AVX-512. */
static void test_sums__blocks_are_summed_in_registers(void **state) {
    (void)state;
    static const uint32_t kinds[] = { TESS_Q8, TESS_Q8E4M3, TESS_F32 },
                          flags[] = { TESS_KERNEL_Q8, TESS_KERNEL_Q8E4M3, 0 };
    uint64_t seed = 6;
    const void *list[3] = { &in[0], &in[1], &in[2] }, *as_f32[1] = { &before };
    for_each_isa(isa) for (int of = 0; of < 3; of++) for (int through = 0; through < 3; through++) for (int n = 2;
                                                                                                        n < 4; n++) {
        fill(&before, TESS_F32, &seed);
        for (int k = 0; k < n; k++) {
            tess_kernel cast = { .struct_size = sizeof cast, .kernel = TESS_K_CAST, .in_dtype = TESS_F32 };
            cast.out_dtype = kinds[of], cast.n_in = 1, cast.in = as_f32, cast.out = &in[k], cast.elems = 2048;
            run_kernel(&cast, NULL);
        }
        tess_kernel k = { .struct_size = sizeof k, .kernel = TESS_K_TREE_SUM, .in_dtype = kinds[of] };
        k.out_dtype = TESS_F32, k.n_in = (uint32_t)n, k.flags = flags[through], k.in = list, k.out = &out,
        k.elems = 2048;
        memset(&by_hand, 0, sizeof by_hand);
        run_kernel(&k, NULL);
        assert_int_equal(by_hand.pairs > 0, isa >= TESS_ISA_AVX512 && of == through && of < 2);
    }
    tess__isa_limit(0);
}

static void test_sums__threads_change_no_bit(void **state) {
    (void)state;
    enum { LARGE = 140001 };
    float *a = malloc(LARGE * sizeof *a), *sum = malloc(LARGE * sizeof *sum);
    const void *list[3] = { a, a, a };
    uint64_t seed = 4;
    tess__pool *pool = NULL;
    assert_int_equal(tess__pool_create(3, "", &pool, NULL), TESS_OK);
    for (int i = 0; i < LARGE; i++)
        a[i] = random_unit(&seed);
    tess_kernel k = { .struct_size = sizeof k,
                      .kernel = TESS_K_TREE_SUM,
                      .in_dtype = TESS_F32,
                      .out_dtype = TESS_F32,
                      .n_in = 3,
                      .in = list,
                      .out = sum,
                      .elems = LARGE };
    run_kernel(&k, pool);
    for (int i = 0; i < LARGE; i++)
        assert_true(sum[i] == a[i] + a[i] + a[i]);
    k.kernel = TESS_K_SCALE, k.in = list, k.scale = 0.75;
    run_kernel(&k, pool);
    for (int i = 0; i < LARGE; i++)
        assert_true(sum[i] == a[i] * 0.75f);
    tess__pool_destroy(pool);
    free(a), free(sum);
}

/* ---- scale ---- */

static void test_sums__scale_multiplies_each(void **state) {
    (void)state;
    static const double scales[] = { 0, 1, 1.0 / 3, -7 };
    const void *list[1] = { &in[0] }, *none[1] = { NULL };
    uint64_t seed = 71;
    for (int way = 0; way < 3; way++) /* from an input; in place without a list, and with an empty one */
        for (int s = 0; s < 4; s++)
            for (int wide = 0; wide < 2; wide++) {
                const uint32_t dtype = wide ? TESS_F64 : TESS_F32;
                fill(&in[0], dtype, &seed);
                fill(&before, dtype, &seed);
                out = before;
                tess_kernel k = { .struct_size = sizeof k, .kernel = TESS_K_SCALE, .in_dtype = dtype };
                k.out_dtype = dtype, k.in = way == 0 ? list : way == 1 ? NULL : none, k.out = &out;
                k.n_in = way == 0, k.elems = MOST, k.scale = scales[s];
                run_kernel(&k, NULL);
                const array *from = way ? &before : &in[0];
                for (int i = 0; i < MOST + GUARD; i++)
                    if (wide)
                        assert_true(out.f64[i] == (i < MOST ? from->f64[i] * scales[s] : before.f64[i]));
                    else
                        assert_true(out.f32[i] == (i < MOST ? from->f32[i] * (float)scales[s] : before.f32[i]));
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums__are_trees_of_whatever_is_drawn),
        cmocka_unit_test(test_sums__from_16_mib_on_go_past_the_caches_and_are_the_same),
        cmocka_unit_test(test_sums__blocks_are_summed_in_registers),
        cmocka_unit_test(test_sums__threads_change_no_bit),
        cmocka_unit_test(test_sums__scale_multiplies_each),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
