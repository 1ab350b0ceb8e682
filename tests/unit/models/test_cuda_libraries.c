/* SPDX-License-Identifier: BSD-3-Clause */
/* Which cuBLAS is taken: 13 only where the driver takes its kernels, else 12. A driver and a loader of the test's own,
 * as a build for CUDA 13 starts with no driver for 12. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <dlfcn.h>

static void *look_for(const char *name, int flags);
#define dlopen look_for
#define dlerror() "it is not there"
#include "tools/models/cuda/libraries.c"
#undef dlopen

static int driver_is_for; /* 0: there is none */
static char looked_for[200];
static const char *there;

tess_status tess_cuda_get(const tess_cuda **out, char *message, size_t room) {
    static tess_cuda one;
    one.driver_version = driver_is_for;
    *out = &one;
    snprintf(message, room, "none");
    return driver_is_for ? TESS_OK : TESS_E_UNSUPPORTED;
}

static void *look_for(const char *name, int flags) {
    size_t at = strlen(looked_for);
    (void)flags;
    snprintf(looked_for + at, sizeof looked_for - at, "%s%s", at ? " " : "", name);
    return strcmp(name, there) == 0 ? (dlopen)(NULL, RTLD_NOW) : NULL; /* the test itself, which has no cuBLAS */
}

static const char *with(int driver, const char *library) {
    driver_is_for = driver;
    there = library;
    looked_for[0] = failure[0] = 0;
    load();
    return looked_for;
}

static void test_cuda_libraries__follow_the_driver(void **state) {
    (void)state;
    assert_string_equal(with(13000, "libcublas.so.13"), "libcublas.so.13 libcublasLt.so.13");
    assert_string_equal(with(13000, "libcublas.so.12"), "libcublas.so.13 libcublas.so.12 libcublasLt.so.12");
    assert_string_equal(with(12090, "libcublas.so.12"), "libcublas.so.12 libcublasLt.so.12");
    assert_string_equal(with(12090, "libcublas.so.13"), "libcublas.so.12");
    assert_string_equal(failure, "it is not there");
    assert_string_equal(with(0, "none"), "libcublas.so.13 libcublas.so.12");
}

static void test_cuda_libraries__incomplete_one_is_told(void **state) {
    (void)state;
    with(13000, "libcublas.so.13");
    assert_string_equal(failure, "the library lacks cublasCreate_v2");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_libraries__follow_the_driver),
        cmocka_unit_test(test_cuda_libraries__incomplete_one_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
