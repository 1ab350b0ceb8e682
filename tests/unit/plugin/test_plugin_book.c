/* SPDX-License-Identifier: BSD-3-Clause */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>

static struct {
    uint64_t step, bytes; /* as the system was asked */
    int calls;
} asked;
static int fake_memalign(void **out, uint64_t step, uint64_t bytes) {
    asked.step = step, asked.bytes = bytes, asked.calls++;
    return bytes > 1 << 20 ? ENOMEM : posix_memalign(out, step, bytes);
}
#define posix_memalign(out, step, bytes) fake_memalign(out, step, bytes)
#include "core/plugin/plugin_book.c"

enum { HOST = TESS_DOMAIN_HOST, LAST = TESS_CAT_OPTIMIZER_SCRATCH /* of the header's categories */ };

/* A size beyond all memory is asked for on purpose, and has to be refused as malloc does. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "allocator_may_return_null=1";
}

static tess__plugin_book book;

static void *taken(uint32_t category, uint64_t bytes, uint64_t align) {
    void *p = NULL;
    assert_int_equal(tess__plugin_book_alloc(&book, HOST, category, bytes, align, &p), TESS_OK);
    assert_int_equal((uintptr_t)p % align, 0);
    memset(p, 0x5a, bytes);
    return p;
}

static void test_plugin_book__bytes_are_booked_by_category_and_come_back(void **state) {
    (void)state;
    void *a = taken(TESS_CAT_COMM, 1000, 64), *b = taken(TESS_CAT_BUFFER, 1, 1), *c = taken(TESS_CAT_COMM, 24, 4096);
    assert_int_equal(book.live[HOST], 1025);
    assert_int_equal(book.category_live[HOST][TESS_CAT_COMM], 1024);
    assert_int_equal(book.category_live[HOST][TESS_CAT_BUFFER], 1);
    tess__plugin_book_free(a);
    void *d = taken(TESS_CAT_COMM, 8, 16);
    assert_int_equal(book.live[HOST], 33);
    assert_int_equal(book.peak[HOST], 1025);
    assert_int_equal(book.category_peak[HOST][TESS_CAT_COMM], 1024);
    tess__plugin_book_free(b), tess__plugin_book_free(c), tess__plugin_book_free(d), tess__plugin_book_free(NULL);
    assert_int_equal(book.live[HOST], 0);
    assert_int_equal(book.category_live[HOST][TESS_CAT_COMM], 0);
    assert_int_equal(book.live[TESS_DOMAIN_DEVICE], 0);
}

static void refused(tess_status status, uint32_t domain, uint32_t category, uint64_t bytes, uint64_t align) {
    void *p = &book;
    const uint64_t before = book.live[HOST];
    assert_int_equal(tess__plugin_book_alloc(&book, domain, category, bytes, align, &p), status);
    assert_ptr_equal(p, &book);
    assert_int_equal(book.live[HOST], before);
}

static void test_plugin_book__what_is_no_place_is_refused_and_booked_nowhere(void **state) {
    (void)state;
    refused(TESS_E_UNSUPPORTED, TESS_DOMAIN_DEVICE, TESS_CAT_COMM, 8, 8);
    refused(TESS_E_UNSUPPORTED, 7, TESS_CAT_COMM, 8, 8);
    refused(TESS_E_INVALID, HOST, 0, 8, 8);
    refused(TESS_E_INVALID, HOST, LAST + 1, 8, 8);
    refused(TESS_E_INVALID, HOST, TESS_CAT_COMM, 8, 0);
    refused(TESS_E_INVALID, HOST, TESS_CAT_COMM, 8, 48);
    refused(TESS_E_NOMEM, HOST, TESS_CAT_COMM, UINT64_MAX, 8);
    refused(TESS_E_NOMEM, HOST, TESS_CAT_COMM, UINT64_C(1) << 62, 8);
}

/* A note of 32 bytes lies before what a plugin gets, whatever the alignment. */
static void test_plugin_book__the_system_is_asked_for_what_is_needed(void **state) {
    (void)state;
    static const struct {
        uint64_t align, step, before;
    } each[] = { { 1, 16, 32 },  { 8, 16, 32 },     { 16, 16, 32 },       { 32, 32, 32 },
                 { 64, 64, 64 }, { 128, 128, 128 }, { 4096, 4096, 4096 }, { 1 << 30, 1 << 30, 1 << 30 } };
    for (size_t i = 0; i < sizeof each / sizeof each[0]; i++) {
        void *p = NULL;
        const int fits = each[i].before < 1 << 20;
        assert_int_equal(tess__plugin_book_alloc(NULL, HOST, TESS_CAT_COMM, 100, each[i].align, &p),
                         fits ? TESS_OK : TESS_E_NOMEM);
        assert_true(asked.step == each[i].step && asked.bytes == each[i].before + 100);
        assert_int_equal(p != NULL, fits);
        if (fits)
            memset(p, 1, 100);
        tess__plugin_book_free(p);
    }
    asked.calls = 0;
    refused(TESS_E_NOMEM, HOST, TESS_CAT_COMM, UINT64_MAX - 32, 8);
    assert_true(asked.calls == 1 && asked.bytes == UINT64_MAX);
    refused(TESS_E_NOMEM, HOST, TESS_CAT_COMM, UINT64_MAX - 31, 8); /* which with the note is more than there is */
    refused(TESS_E_INVALID, HOST, TESS_CAT_COMM, 8, UINT64_C(1) << 31);
    assert_int_equal(asked.calls, 1);
}

static void test_plugin_book__each_category_has_its_row(void **state) {
    (void)state;
    void *all[LAST + 1];
    for (uint32_t c = TESS_CAT_SHARD_PARAM; c <= LAST; c++)
        all[c] = taken(c, c, 1);
    for (uint32_t c = 0; c < 16; c++) {
        const int known = c >= TESS_CAT_SHARD_PARAM && c <= LAST;
        assert_int_equal(book.category_live[HOST][c], known ? c : 0);
    }
    for (uint32_t c = TESS_CAT_SHARD_PARAM; c <= LAST; c++) {
        assert_true(book.category_peak[HOST][c] >= c);
        tess__plugin_book_free(all[c]);
        assert_int_equal(book.category_live[HOST][c], 0);
    }
    assert_int_equal(book.live[HOST], 0);
}

static void *take_and_give(void *arg) {
    for (int i = 0; i < 2000; i++) {
        void *p = NULL;
        if (tess__plugin_book_alloc(&book, HOST, TESS_CAT_TEMPORARY, 16, 16, &p) == TESS_OK)
            tess__plugin_book_free(p);
        else
            *(int *)arg = 1;
    }
    return NULL;
}

static void test_plugin_book__threads_lose_no_byte(void **state) {
    (void)state;
    pthread_t threads[4];
    int failed[4] = { 0 };
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, take_and_give, &failed[i]), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_true(!failed[0] && !failed[1] && !failed[2] && !failed[3]);
    assert_int_equal(book.category_live[HOST][TESS_CAT_TEMPORARY], 0);
    assert_in_range(book.category_peak[HOST][TESS_CAT_TEMPORARY], 16, 64);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plugin_book__bytes_are_booked_by_category_and_come_back),
        cmocka_unit_test(test_plugin_book__what_is_no_place_is_refused_and_booked_nowhere),
        cmocka_unit_test(test_plugin_book__the_system_is_asked_for_what_is_needed),
        cmocka_unit_test(test_plugin_book__each_category_has_its_row),
        cmocka_unit_test(test_plugin_book__threads_lose_no_byte),
    };
    return cmocka_run_group_tests_name("plugin_book", tests, NULL, NULL);
}
