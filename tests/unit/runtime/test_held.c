/* SPDX-License-Identifier: BSD-3-Clause */
/* What the program says it holds: now, at most, and at most together with what is booked. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/runtime/held.h"

typedef struct {
    uint64_t now, most; /* since it was asked last */
} said;

static uint64_t holds(void *user, uint64_t *most) {
    const said *s = user;
    assert_int_equal(*most, 0); /* who says nothing of it has held no more than now */
    if (s->most)
        *most = s->most;
    return s->now;
}

static void test_held__the_most_is_kept_alone_and_with_what_is_booked(void **state) {
    (void)state;
    static const struct {
        said says;
        uint64_t booked, most, whole; /* most and whole: afterwards */
    } asked[] = { { { 10, 0 }, 100, 10, 110 },   { { 10, 12 }, 100, 12, 112 }, { { 13, 12 }, 90, 13, 112 },
                  { { 5, 6 }, 200, 13, 206 },    { { 0, 0 }, 206, 13, 206 },   { { 0, 0 }, 207, 13, 207 },
                  { { 14, 13 }, 192, 14, 207 },  { { 14, 15 }, 192, 15, 207 }, { { 15, 15 }, 193, 15, 208 },
                  { { 1, 1000 }, 0, 1000, 1000 } };
    said says;
    tess__held h = { .fn = holds, .user = &says };
    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
        says = asked[i].says;
        tess__held_ask(&h, asked[i].booked);
        assert_int_equal(h.now, asked[i].says.now);
        assert_int_equal(h.most, asked[i].most);
        assert_int_equal(h.whole, asked[i].whole);
    }
    tess__held_ask(NULL, 5); /* nobody to ask */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_held__the_most_is_kept_alone_and_with_what_is_booked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
