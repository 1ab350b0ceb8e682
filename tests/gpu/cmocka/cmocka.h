/* SPDX-License-Identifier: BSD-3-Clause */
/* As much of CMocka's interface as our tests use, for a machine that has no CMocka and can fetch none. A failed
 * assertion leaves the test by longjmp; tests run in order, each once. Only tests/gpu/run builds with it. */
#ifndef TESSERA_SMALL_CMOCKA_H
#define TESSERA_SMALL_CMOCKA_H
#include <fnmatch.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uintmax_t LargestIntegralType;
typedef int (*CMFixtureFunction)(void **state);
struct CMUnitTest {
    const char *name;
    void (*test_func)(void **state);
    CMFixtureFunction setup_func, teardown_func;
    void *initial_state;
};

static jmp_buf small_left;
static const char *small_filter;

#define small_leave(how, ...)                                                                                          \
    (fprintf(stderr, "%s:%d: ", __FILE__, __LINE__), fprintf(stderr, __VA_ARGS__), fputc('\n', stderr),                \
     longjmp(small_left, how))
#define fail_msg(...) small_leave(1, __VA_ARGS__)
#define fail() small_leave(1, "failed")
#define skip() small_leave(2, "skipped")
#define print_message(...) printf(__VA_ARGS__)
#define print_error(...) fprintf(stderr, __VA_ARGS__)

#define small_check(what, text) ((what) ? (void)0 : small_leave(1, "%s", text))
#define assert_true(x) small_check(x, #x)
#define assert_false(x) small_check(!(x), "not: " #x)
#define assert_non_null(x) small_check((x) != NULL, #x " is null")
#define assert_null(x) small_check((x) == NULL, #x " is not null")
#define assert_ptr_equal(a, b) small_check((const void *)(a) == (const void *)(b), #a " is not " #b)
#define assert_int_equal(a, b) small_int_equal((intmax_t)(a), (intmax_t)(b), #a, __FILE__, __LINE__)
#define assert_int_not_equal(a, b) small_check((intmax_t)(a) != (intmax_t)(b), #a " equals " #b)
#define assert_in_range(x, least, most)                                                                                \
    small_check((uintmax_t)(x) >= (uintmax_t)(least) && (uintmax_t)(x) <= (uintmax_t)(most), #x " is out of range")
#define assert_memory_equal(a, b, bytes) small_check(memcmp(a, b, bytes) == 0, #a " and " #b " differ")
#define assert_memory_not_equal(a, b, bytes) small_check(memcmp(a, b, bytes) != 0, #a " and " #b " are the same")
#define assert_string_equal(a, b) small_string_equal(a, b, __FILE__, __LINE__)
#define assert_string_not_equal(a, b) small_check(strcmp(a, b) != 0, #a " equals " #b)

static inline void small_int_equal(intmax_t a, intmax_t b, const char *what, const char *file, int line) {
    if (a == b)
        return;
    fprintf(stderr, "%s:%d: %s is %jd, expected %jd\n", file, line, what, a, b);
    longjmp(small_left, 1);
}
static inline void small_string_equal(const char *a, const char *b, const char *file, int line) {
    if (strcmp(a, b) == 0)
        return;
    fprintf(stderr, "%s:%d: \"%s\", expected \"%s\"\n", file, line, a, b);
    longjmp(small_left, 1);
}

#define cmocka_unit_test(f)                                                                                            \
    { #f, f, NULL, NULL, NULL }
#define cmocka_unit_test_setup(f, setup)                                                                               \
    { #f, f, setup, NULL, NULL }
#define cmocka_unit_test_teardown(f, teardown)                                                                         \
    { #f, f, NULL, teardown, NULL }
#define cmocka_unit_test_setup_teardown(f, setup, teardown)                                                            \
    { #f, f, setup, teardown, NULL }
#define cmocka_set_test_filter(pattern) (small_filter = (pattern))
#define cmocka_set_message_output(how) ((void)(how))
#define cmocka_run_group_tests(tests, setup, teardown)                                                                 \
    _cmocka_run_group_tests(#tests, tests, sizeof(tests) / sizeof((tests)[0]), setup, teardown)
#define cmocka_run_group_tests_name(name, tests, setup, teardown)                                                      \
    _cmocka_run_group_tests(name, tests, sizeof(tests) / sizeof((tests)[0]), setup, teardown)

/* 0 passed, 1 failed, 2 skipped. */
static inline int small_run(const struct CMUnitTest *t, void *shared) {
    void *state = t->initial_state ? t->initial_state : shared;
    if (t->setup_func && t->setup_func(&state) != 0)
        return 1;
    volatile int how = setjmp(small_left);
    if (how == 0)
        t->test_func(&state);
    if (t->teardown_func && t->teardown_func(&state) != 0)
        return 1;
    return how;
}

static inline int _cmocka_run_group_tests(const char *group, const struct CMUnitTest *tests, size_t n,
                                          CMFixtureFunction setup, CMFixtureFunction teardown) {
    static const char *const words[] = { "ok", "FAILED", "skipped" };
    int counts[3] = { 0 };
    void *shared = NULL;
    if (setup && setup(&shared) != 0)
        return (int)n;
    for (size_t i = 0; i < n; i++) {
        if (small_filter && fnmatch(small_filter, tests[i].name, 0) != 0)
            continue;
        int how = small_run(&tests[i], shared);
        counts[how]++;
        printf("%-8s %s\n", words[how], tests[i].name);
        fflush(stdout);
    }
    if (teardown && teardown(&shared) != 0)
        counts[1]++;
    printf("%s: %d passed, %d failed, %d skipped\n", group, counts[0], counts[1], counts[2]);
    return counts[1];
}
#endif
