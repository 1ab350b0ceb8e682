/* SPDX-License-Identifier: BSD-3-Clause */
/* For tests of a plugin alone: memory that fails when it is told to, the error, and a host that writes down its log.
 * The linker puts the functions of memory between the plugin, whose threads may call them, and the C library. To be
 * included once by a test, after cmocka.h. */
#ifndef TEST_FAILING_H
#define TEST_FAILING_H
#include <stdlib.h>
#include <tessera/plugin.h>

#include "tests/unit/said.h"

/* ---- memory ---- */

static int no_memory_in, live_memory; /* the n-th allocation from now fails, 0: none; what was not freed */

static int has_memory(void) {
    return __atomic_load_n(&no_memory_in, __ATOMIC_RELAXED) <= 0 ||
           __atomic_sub_fetch(&no_memory_in, 1, __ATOMIC_RELAXED) != 0;
}
static void *counted(void *at) {
    __atomic_fetch_add(&live_memory, at != NULL, __ATOMIC_RELAXED);
    return at;
}
void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void __real_free(void *at);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void __wrap_free(void *at);
void *__wrap_malloc(size_t bytes) {
    return counted(has_memory() ? __real_malloc(bytes) : NULL);
}
void *__wrap_calloc(size_t n, size_t bytes) {
    return counted(has_memory() ? __real_calloc(n, bytes) : NULL);
}
void __wrap_free(void *at) {
    __atomic_fetch_sub(&live_memory, at != NULL, __ATOMIC_RELAXED);
    __real_free(at);
}

/* ---- the error ---- */

static tess_error e;

static inline tess_error *no_error(void) {
    e = (tess_error){ .struct_size = sizeof e };
    return &e;
}

/* The status of a failed call, and its message without what each has in front. */
#define EXPECT_FAILS(call, status, text)                                                                               \
    do {                                                                                                               \
        no_error();                                                                                                    \
        assert_int_equal(call, status);                                                                                \
        assert_true(e.code == (status) && e.rank == -1);                                                               \
        assert_string_equal(e.message, text);                                                                          \
    } while (0)

/* ---- the host ---- */

static inline void write_log(void *host, int32_t level, const char *who, const char *line) {
    (void)host;
    say("log %d, %s: %s; ", level, who, line);
}
static inline const char *no_option(void *host, const char *key) {
    (void)host, (void)key;
    return NULL;
}
#endif
