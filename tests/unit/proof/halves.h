/* SPDX-License-Identifier: BSD-3-Clause */
/* Work of a pool of two threads, of which the second comes first. After cmocka.h. */
#ifndef TEST_HALVES_H
#define TEST_HALVES_H
#include <stdint.h>

static inline void run_halves(uint64_t n, uint64_t least, void (*fn)(void *, uint64_t, uint64_t), void *user) {
    assert_true(n > 0 && least > 1);
    fn(user, n / 2, n - n / 2);
    if (n / 2)
        fn(user, 0, n / 2);
}
#endif
