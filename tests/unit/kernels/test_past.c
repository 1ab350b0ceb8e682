/* SPDX-License-Identifier: BSD-3-Clause */
/* Kernels whose bytes are more than the caches hold write past them. What they write is what small ones write. */
#include "kernel_fixture.h"
#include <stdlib.h>
#include <tessera/plugin_helpers.h>

enum { ELEMS = 5 * (1 << 20) + 777, SMALL = 8192 /* a multiple of a block */, GUARD = 128 };

typedef struct {
    char *in[2], *out, *want;
    tess__pool *pool;
} room;

static void fill(char *out, uint32_t dtype) {
    float *x = malloc(ELEMS * sizeof *x);
    const void *list[1] = { x };
    uint64_t seed = 31 + dtype;
    assert_non_null(x);
    for (int i = 0; i < ELEMS; i++)
        x[i] = random_wide(&seed);
    tess_kernel cast = { .struct_size = sizeof cast, .kernel = TESS_K_CAST, .in_dtype = TESS_F32 };
    cast.out_dtype = dtype, cast.n_in = 1, cast.in = list, cast.out = out, cast.elems = ELEMS;
    run_kernel(&cast, NULL);
    free(x);
}

/* Runs `k` whole, `shift` bytes behind the start of a line, and in small parts. */
static void compare_with_parts(const room *r, tess_kernel k, uint64_t shift) {
    const void *list[2];
    uint64_t span = tess_dtype_span(k.out_dtype, ELEMS);
    memset(r->out, 0xee, span + 2 * GUARD);
    k.in = list, k.out = r->out + GUARD + shift, k.elems = ELEMS;
    list[0] = r->in[0], list[1] = r->in[1];
    run_kernel(&k, r->pool);
    for (uint64_t at = 0; at < ELEMS; at += SMALL) {
        tess_kernel part = k;
        part.elems = ELEMS - at < SMALL ? ELEMS - at : SMALL;
        list[0] = r->in[0] + tess_dtype_span(k.in_dtype, at), list[1] = r->in[1] + tess_dtype_span(k.in_dtype, at);
        part.out = r->want + tess_dtype_span(k.out_dtype, at);
        run_kernel(&part, NULL);
    }
    assert_memory_equal(r->out + GUARD + shift, r->want, span);
    for (uint64_t i = 0; i < GUARD + shift; i++)
        assert_int_equal((uint8_t)r->out[i], 0xee);
    for (uint64_t i = GUARD + shift + span; i < span + 2 * GUARD; i++)
        assert_int_equal((uint8_t)r->out[i], 0xee);
}

static void test_past__all_casts_and_sums_of_two_write_what_small_ones_do(void **state) {
    (void)state;
    const uint32_t dtypes[] = { TESS_F32, TESS_BF16, TESS_F16, TESS_F64, TESS_Q8, TESS_Q8E4M3 };
    room r = { .out = aligned_alloc(64, ELEMS / 64 * 64 * 8 + 65536), .want = malloc(ELEMS * 8 + 4096) };
    assert_int_equal(tess__pool_create(2, "", &r.pool, NULL), TESS_OK);
    r.in[0] = malloc(ELEMS * 8 + 4096), r.in[1] = malloc(ELEMS * 8 + 4096);
    int casts = 0, sums = 0;
    for (int i = 0; i < 6; i++) {
        fill(r.in[0], dtypes[i]);
        fill(r.in[1], dtypes[i]);
        for (int o = 0; o < 6; o++) {
            tess_kernel k = { .struct_size = sizeof k, .in_dtype = dtypes[i], .out_dtype = dtypes[o] };
            k.kernel = TESS_K_CAST, k.n_in = 1;
            if (tess__cast_find(k.in_dtype, k.out_dtype, 1)) {
                compare_with_parts(&r, k, 0);
                compare_with_parts(&r, k, 16);
                casts++;
            }
            k.kernel = TESS_K_TREE_SUM, k.n_in = 2;
            tess_need need = { .struct_size = sizeof need };
            if (tess__kernel_need(&k, &need) == TESS_OK) {
                compare_with_parts(&r, k, 0);
                compare_with_parts(&r, k, 16);
                sums++;
            }
            if (k.out_dtype == TESS_F32 && tess_dtype_is_blocks(k.in_dtype)) {
                k.flags = k.in_dtype == TESS_Q8 ? TESS_KERNEL_Q8 : TESS_KERNEL_Q8E4M3;
                compare_with_parts(&r, k, 0);
                compare_with_parts(&r, k, 16);
            }
        }
    }
    assert_int_equal(casts, 26);
    assert_int_equal(sums, 26);
    tess__pool_destroy(r.pool);
    free(r.in[0]), free(r.in[1]), free(r.out), free(r.want);
}

/* An output that is an input, and one that is added to, are read first. */
static void test_past__sums_in_place_and_onto_what_is_there(void **state) {
    (void)state;
    char *a = malloc(ELEMS * 4), *b = malloc(ELEMS * 4), *sum = malloc(ELEMS * 4);
    const void *list[2] = { a, b };
    fill(a, TESS_F32);
    fill(b, TESS_F32);
    tess_kernel k = { .struct_size = sizeof k, .kernel = TESS_K_TREE_SUM, .in_dtype = TESS_F32, .out_dtype = TESS_F32 };
    k.n_in = 2, k.in = list, k.elems = ELEMS, k.out = sum;
    run_kernel(&k, NULL);
    for (int i = 0; i < ELEMS; i++)
        assert_true(((float *)sum)[i] == ((float *)a)[i] + ((float *)b)[i]);
    k.flags = TESS_KERNEL_ADD;
    run_kernel(&k, NULL);
    for (int i = 0; i < ELEMS; i++) {
        float twice = ((float *)a)[i] + ((float *)b)[i];
        assert_true(((float *)sum)[i] == twice + twice);
    }
    k.flags = 0, k.out = a;
    run_kernel(&k, NULL);
    for (int i = 0; i < ELEMS; i++)
        assert_true(((float *)a)[i] * 2 == ((float *)sum)[i]);
    free(a), free(b), free(sum);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_past__all_casts_and_sums_of_two_write_what_small_ones_do),
        cmocka_unit_test(test_past__sums_in_place_and_onto_what_is_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
