/* SPDX-License-Identifier: BSD-3-Clause */
/* libnccl.so.2 as comm-nccl looks it up: which versions serve, and what each failure of it means. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void *open_library(const char *name, int mode);
static void *find_function(void *handle, const char *name);
static char *last_error(void);
#include <dlfcn.h>
#define dlopen open_library
#define dlsym find_function
#define dlerror last_error
#include "plugins/comm-nccl/library.c"
#undef dlopen
#undef dlsym
#undef dlerror

static int version, is_there;
static const char *missing;
static ncclResult_t version_result;
static tess_error e;
static const struct nccl_library *found;

static void *open_library(const char *name, int mode) {
    assert_string_equal(name, "libnccl.so.2");
    assert_int_equal(mode, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    return is_there ? &is_there : NULL;
}
static char *last_error(void) {
    static char text[] = "no such file";
    return text;
}
static ncclResult_t get_version(int *out) {
    *out = version;
    return version_result;
}
static const char *error_text(ncclResult_t r) {
    return r == ncclSuccess ? "no error" : "why";
}
static void *find_function(void *handle, const char *name) {
    static const char names[][32] = {
#define NAME(name) #name,
        NCCL_NEEDED(NAME) NCCL_SINCE_2_19(NAME) NCCL_SINCE_2_27(NAME)
    };
    void *at = NULL;
    assert_ptr_equal(handle, &is_there);
    if (missing && strcmp(name, missing) == 0)
        return NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], name) == 0)
            at = (void *)(uintptr_t)names[i];
    ncclResult_t (*const version_at)(int *) = get_version;
    const char *(*const text_at)(ncclResult_t) = error_text;
    if (strcmp(name, "ncclGetVersion") == 0)
        memcpy(&at, &version_at, sizeof at);
    if (strcmp(name, "ncclGetErrorString") == 0)
        memcpy(&at, &text_at, sizeof at);
    return at;
}

static tess_status get(void) {
    once = (pthread_once_t)PTHREAD_ONCE_INIT;
    memset(&library, 0, sizeof library);
    failure = (tess_error){ .struct_size = sizeof failure, .rank = -1 };
    e = (tess_error){ .struct_size = sizeof e };
    return nccl_library_get(&found, &e);
}
static int begin(void **state) {
    (void)state;
    version = NCCL_VERSION(2, 28, 9), is_there = 1, missing = NULL, version_result = ncclSuccess, found = NULL;
    return 0;
}
static void refused(tess_status status, const char *text) {
    assert_int_equal(get(), status);
    assert_true(e.code == status && e.rank == -1 && !found);
    assert_string_equal(e.message, text);
    is_there = 1, missing = NULL; /* asked once: the answer stays */
    e = (tess_error){ .struct_size = sizeof e };
    assert_int_equal(nccl_library_get(&found, &e), status);
    assert_string_equal(e.message, text);
}

static void test_nccl_library__a_missing_one_says_where_it_was_looked_for(void **state) {
    (void)state;
    is_there = 0;
    refused(TESS_E_UNSUPPORTED,
            "nccl: cannot load libnccl.so.2 (is NCCL installed, or its folder in LD_LIBRARY_PATH?): no such file");
}

static void test_nccl_library__each_function_that_is_needed_is_missed(void **state) {
    (void)state;
#define MISS(name)                                                                                                     \
    missing = #name;                                                                                                   \
    refused(TESS_E_VERSION, "nccl: libnccl.so.2 has no " #name ": NCCL 2.18 or later is needed");
    NCCL_NEEDED(MISS)
}

static void test_nccl_library__functions_that_came_later_are_those_of_their_version(void **state) {
    (void)state;
    static const struct {
        int version, of_2_19, of_2_27;
    } cases[] = {
        { NCCL_VERSION(2, 18, 0), 0, 0 }, { NCCL_VERSION(2, 18, 9), 0, 0 }, { NCCL_VERSION(2, 19, 0), 1, 0 },
        { NCCL_VERSION(2, 26, 9), 1, 0 }, { NCCL_VERSION(2, 27, 0), 1, 1 }, { NCCL_VERSION(2, 30, 1), 1, 1 }
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        version = cases[i].version;
        assert_int_equal(get(), TESS_OK);
        assert_int_equal(found->version, version);
        assert_int_equal(found->ncclMemAlloc != NULL, cases[i].of_2_19);
        assert_int_equal(found->ncclCommRegister != NULL, cases[i].of_2_19);
        assert_int_equal(found->ncclCommWindowRegister != NULL, cases[i].of_2_27);
        assert_non_null(found->ncclCommSplit);
    }
#define DO_WITHOUT(name)                                                                                               \
    missing = #name;                                                                                                   \
    assert_int_equal(get(), TESS_OK);                                                                                  \
    assert_null(found->name);
    NCCL_SINCE_2_19(DO_WITHOUT)
    NCCL_SINCE_2_27(DO_WITHOUT)
}

static void test_nccl_library__one_that_is_too_old_or_does_not_answer_is_refused(void **state) {
    (void)state;
    version = 21799;
    refused(TESS_E_VERSION, "nccl: libnccl.so.2 is NCCL 2.17.99, 2.18.0 or later is needed");
    version = 2709;
    refused(TESS_E_VERSION, "nccl: libnccl.so.2 is NCCL 2.7.9, 2.18.0 or later is needed");
    version = 22809, version_result = ncclInternalError;
    refused(TESS_E_SYSTEM, "nccl: ncclGetVersion gave 3: why");
    assert_int_equal(e.native, ncclInternalError);
}

static void test_nccl_library__versions_are_told_as_ncclGetVersion_means_them(void **state) {
    (void)state;
    static const struct {
        int version;
        const char *text;
    } cases[] = { { 21800, "2.18.0" }, { 22809, "2.28.9" }, { 22910, "2.29.10" }, { 2708, "2.7.8" },
                  { 2400, "2.4.0" },   { 9999, "9.9.99" },  { 10000, "1.0.0" },   { 30001, "3.0.1" } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[24];
        assert_string_equal(nccl_version_text(cases[i].version, text), cases[i].text);
    }
    assert_true(nccl_hangs_in_windows(NCCL_VERSION(2, 29, 6)) && !nccl_hangs_in_windows(NCCL_VERSION(2, 29, 7)));
}

static void test_nccl_library__results_have_the_status_of_their_kind(void **state) {
    (void)state;
    static const tess_status kinds[] = {
        [ncclUnhandledCudaError] = TESS_E_DEVICE, [ncclSystemError] = TESS_E_SYSTEM,
        [ncclInternalError] = TESS_E_SYSTEM,      [ncclInvalidArgument] = TESS_E_INVALID,
        [ncclInvalidUsage] = TESS_E_INVALID,      [ncclRemoteError] = TESS_E_PEER
    };
    assert_int_equal(get(), TESS_OK);
    for (int r = ncclUnhandledCudaError; r <= ncclRemoteError; r++) {
        char text[60];
        e = (tess_error){ .struct_size = sizeof e };
        assert_int_equal(nccl_failed(&e, found, (ncclResult_t)r, "ncclThing"), kinds[r]);
        snprintf(text, sizeof text, "nccl: ncclThing gave %d: why", r);
        assert_string_equal(e.message, text);
        assert_true(e.native == r && e.code == kinds[r]);
    }
    assert_int_equal(nccl_failed(&e, found, ncclInProgress, "ncclThing"), TESS_E_INVALID);
    assert_string_equal(e.message,
                        "nccl: ncclThing did not block, as NCCL_COMM_BLOCKING=0 has it: unset that variable");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_nccl_library__a_missing_one_says_where_it_was_looked_for, begin),
        cmocka_unit_test_setup(test_nccl_library__each_function_that_is_needed_is_missed, begin),
        cmocka_unit_test_setup(test_nccl_library__functions_that_came_later_are_those_of_their_version, begin),
        cmocka_unit_test_setup(test_nccl_library__one_that_is_too_old_or_does_not_answer_is_refused, begin),
        cmocka_unit_test_setup(test_nccl_library__versions_are_told_as_ncclGetVersion_means_them, begin),
        cmocka_unit_test_setup(test_nccl_library__results_have_the_status_of_their_kind, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
