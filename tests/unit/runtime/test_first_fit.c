/* SPDX-License-Identifier: BSD-3-Clause */
/* First fit over one region. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "core/runtime/first_fit.h"
#include "tests/unit/drawn.h"

static tess__first_fit make(uint64_t bytes, int32_t extents) {
    tess__first_fit h;
    assert_int_equal(tess__first_fit_create(&h, extents), TESS_OK);
    tess__first_fit_reset(&h, bytes);
    return h;
}

static void test_heap__the_lowest_free_place_is_given(void **state) {
    (void)state;
    tess__first_fit h = make(1000, 8);
    uint64_t at = 99;
    assert_int_equal(tess__first_fit_take(&h, 0, 100), TESS_OK);
    assert_int_equal(tess__first_fit_take(&h, 320, 64), TESS_OK);
    assert_int_equal(tess__first_fit_get(&h, 192, 64, &at), TESS_OK);
    assert_int_equal(at, 128);
    assert_int_equal(tess__first_fit_get(&h, 64, 64, &at), TESS_OK);
    assert_int_equal(at, 384);
    tess__first_fit_give(&h, 128);
    assert_int_equal(tess__first_fit_get(&h, 193, 64, &at), TESS_OK); /* one too many for the gap */
    assert_int_equal(at, 448);
    tess__first_fit_free_all(&h);
}

static void test_heap__a_full_region_and_an_overlap_are_refused(void **state) {
    (void)state;
    tess__first_fit h = make(1000, 4);
    uint64_t at = 7;
    assert_int_equal(tess__first_fit_get(&h, 1001, 64, &at), TESS_E_NOMEM);
    assert_int_equal(at, 7);
    assert_int_equal(tess__first_fit_get(&h, 1000, 64, &at), TESS_OK);
    assert_int_equal(at, 0);
    assert_int_equal(tess__first_fit_get(&h, 1, 64, &at), TESS_E_NOMEM);
    assert_int_equal(tess__first_fit_take(&h, 999, 5), TESS_E_INTERNAL);
    assert_int_equal(tess__first_fit_take(&h, 1000, 5), TESS_OK);
    for (uint64_t bytes = 60; bytes < 64; bytes++) { /* the next place of that alignment lies behind the end */
        tess__first_fit_reset(&h, bytes);
        assert_int_equal(tess__first_fit_get(&h, 1, 64, &at), TESS_OK);
        assert_int_equal(tess__first_fit_get(&h, 1, 64, &at), TESS_E_NOMEM);
    }
    tess__first_fit_reset(&h, 64);
    assert_int_equal(tess__first_fit_get(&h, 64, 64, &at), TESS_OK);
    tess__first_fit_give(&h, 0);
    assert_int_equal(tess__first_fit_get(&h, UINT64_MAX, 64, &at), TESS_E_NOMEM);
    tess__first_fit_free_all(&h);
}

static void test_heap__a_full_list_is_no_overflow(void **state) {
    (void)state;
    tess__first_fit h = make(1000, 2);
    uint64_t at;
    assert_int_equal(tess__first_fit_get(&h, 1, 1, &at), TESS_OK);
    assert_int_equal(tess__first_fit_get(&h, 1, 1, &at), TESS_OK);
    assert_int_equal(tess__first_fit_get(&h, 1, 1, &at), TESS_E_NOMEM);
    tess__first_fit_free_all(&h);
}

/* Against a map of bytes. */
static void test_heap__random_calls_agree_with_a_map_of_bytes(void **state) {
    (void)state;
    enum { BYTES = 4096, MOST = 64, ALIGN = 16 };
    static unsigned char map[BYTES];
    uint64_t offset[MOST], length[MOST], seed = 5;
    int n = 0;
    tess__first_fit h = make(BYTES, MOST);
    for (int i = 0; i < 20000; i++) {
        uint64_t r = drawn64(&seed, 1u << 31);
        if (n && (r % 2 || n == MOST)) {
            int k = (int)(r / 2 % (uint64_t)n);
            tess__first_fit_give(&h, offset[k]);
            memset(map + offset[k], 0, length[k]);
            offset[k] = offset[--n];
            length[k] = length[n];
            continue;
        }
        uint64_t bytes = 1 + r / 2 % 300, at = 0, expected = BYTES;
        for (uint64_t from = 0; from + bytes <= BYTES && expected == BYTES; from += ALIGN)
            if (!memchr(map + from, 1, bytes))
                expected = from;
        tess_status s = tess__first_fit_get(&h, bytes, ALIGN, &at);
        assert_int_equal(s, expected == BYTES ? TESS_E_NOMEM : TESS_OK);
        if (s)
            continue;
        assert_int_equal(at, expected);
        memset(map + at, 1, bytes);
        offset[n] = at;
        length[n++] = bytes;
    }
    tess__first_fit_free_all(&h);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heap__the_lowest_free_place_is_given),
        cmocka_unit_test(test_heap__a_full_region_and_an_overlap_are_refused),
        cmocka_unit_test(test_heap__a_full_list_is_no_overflow),
        cmocka_unit_test(test_heap__random_calls_agree_with_a_map_of_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
