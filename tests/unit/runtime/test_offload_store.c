/* SPDX-License-Identifier: BSD-3-Clause */
/* What the engine asks of an offload plugin's store, and what becomes of its answers. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include <tessera/tessera.h>

#include "core/runtime/offload_store.h"

static struct {
    tess_status answer; /* of the next calls, with this message: */
    const char *why;
    int opened, posted, waited, closed;
    tess_store_io io;
    uint64_t obtained;
    void *memory;
    uint64_t bytes;
    int registered, deregistered;
} plugin;
static char a_store, a_request, a_ctx;
static const tess_store_config config = { .struct_size = sizeof config, .bytes = 4096 };

static tess_status answer(tess_error *e) {
    assert_int_equal(e->struct_size, sizeof *e);
    assert_int_equal(e->rank, -1);
    assert_string_equal(e->message, "");
    strcpy(e->message, plugin.why ? plugin.why : "");
    return plugin.answer;
}

static tess_status store_open(void *ctx, const tess_store_config *c, tess_store **out, uint64_t *obtained,
                              tess_error *e) {
    plugin.opened++;
    assert_ptr_equal(ctx, &a_ctx);
    assert_ptr_equal(c, &config);
    *out = (tess_store *)&a_store; /* also where it fails: nobody may close that */
    *obtained = plugin.obtained;
    return answer(e);
}

static tess_status store_post(tess_store *s, const tess_store_io *io, tess_request **out, tess_error *e) {
    plugin.posted++;
    assert_ptr_equal(s, &a_store);
    plugin.io = *io;
    *out = (tess_request *)&a_request;
    return answer(e);
}

static tess_status store_wait(tess_store *s, tess_request *r, tess_error *e) {
    plugin.waited++;
    assert_ptr_equal(s, &a_store);
    assert_ptr_equal(r, &a_request);
    return answer(e);
}

static void store_close(tess_store *s) {
    plugin.closed++;
    assert_ptr_equal(s, &a_store);
}

static tess_status store_register(tess_store *s, void *memory, uint64_t bytes, tess_error *e) {
    assert_ptr_equal(s, &a_store);
    assert_false(plugin.registered); /* one at a time */
    plugin.memory = memory;
    plugin.bytes = bytes;
    plugin.registered = plugin.answer == TESS_OK;
    return answer(e);
}

static void store_deregister(tess_store *s) {
    assert_ptr_equal(s, &a_store);
    assert_true(plugin.registered);
    plugin.registered = 0;
    plugin.deregistered++;
}

static const tess_offload_ops ops = { .struct_size = sizeof ops,
                                      .store_open = store_open,
                                      .store_post = store_post,
                                      .store_wait = store_wait,
                                      .store_close = store_close,
                                      .store_register = store_register,
                                      .store_deregister = store_deregister };
static const tess__setup setup = { .offload = &ops, .offload_ctx = &a_ctx, .offload_name = "paper" };

static tess__offload_store opened(void) {
    tess__offload_store x;
    uint64_t got = 0;
    memset(&plugin, 0, sizeof plugin);
    plugin.obtained = 8192;
    assert_int_equal(tess__offload_open(&x, &setup, &config, &got), TESS_OK);
    assert_int_equal(got, 8192);
    return x;
}

static void answers(tess_status s, const char *why) {
    plugin.answer = s;
    plugin.why = why;
}

static void test_offload_store__a_store_opens_once_and_closes_once(void **state) {
    (void)state;
    tess__offload_store x = opened(), none = { .ops = &ops };
    tess__offload_close(&x);
    tess__offload_close(&x);
    tess__offload_close(&none);
    assert_int_equal(plugin.opened, 1);
    assert_int_equal(plugin.closed, 1);
}

static void test_offload_store__one_that_does_not_open_is_none(void **state) {
    (void)state;
    tess__offload_store x = { .handle = (tess_store *)&plugin };
    uint64_t got = 0;
    memset(&plugin, 0, sizeof plugin);
    answers(TESS_E_NOMEM, "no room on the shelf");
    assert_int_equal(tess__offload_open(&x, &setup, &config, &got), TESS_E_NOMEM);
    assert_string_equal(tess_last_error(), "offload paper: no room on the shelf");
    tess__offload_close(&x);
    assert_int_equal(plugin.closed, 0);
    answers(TESS_E_SYSTEM, NULL);
    assert_int_equal(tess__offload_open(&x, &setup, &config, &got), TESS_E_SYSTEM);
    assert_string_equal(tess_last_error(), "offload paper: its store failed, and it does not say why");
}

/* Addresses count from TESS__STORE_BASE, where nothing is; the plugin counts from 0. */
static void test_offload_store__a_request_says_where_and_how_much(void **state) {
    (void)state;
    tess__offload_store x = opened();
    static const uint64_t places[] = { 0, 1, 4096, UINT64_C(1) << 40 };
    char memory[8];
    for (uint32_t op = TESS_STORE_READ; op <= TESS_STORE_WRITE; op++)
        for (int i = 0; i < 4; i++) {
            tess_request *r = NULL;
            assert_int_equal(
                tess__offload_post(&x, op, (void *)(uintptr_t)(TESS__STORE_BASE + places[i]), memory, 5, &r), TESS_OK);
            assert_ptr_equal(r, &a_request);
            assert_int_equal(plugin.io.struct_size, sizeof plugin.io);
            assert_int_equal(plugin.io.op, op);
            assert_int_equal(plugin.io.at, places[i]);
            assert_int_equal(plugin.io.bytes, 5);
            assert_ptr_equal(plugin.io.memory, memory);
            assert_int_equal(plugin.waited, 0);
        }
    tess__offload_close(&x);
}

static void test_offload_store__a_request_is_waited_for_once_whatever_it_says(void **state) {
    (void)state;
    tess__offload_store x = opened();
    tess_request *r = (tess_request *)&a_request;
    assert_int_equal(tess__offload_wait(&x, &r), TESS_OK);
    assert_null(r);
    assert_int_equal(tess__offload_wait(&x, &r), TESS_OK);
    assert_int_equal(plugin.waited, 1);
    assert_int_equal(atomic_load(&x.failed), 0);
    r = (tess_request *)&a_request;
    answers(TESS_E_DATA, "page 3 is blank");
    assert_int_equal(tess__offload_wait(&x, &r), TESS_E_DATA);
    assert_null(r);
    assert_string_equal(tess_last_error(), "offload paper: page 3 is blank");
    assert_int_equal(tess__offload_wait(&x, &r), TESS_OK);
    assert_int_equal(plugin.waited, 2);
    assert_int_equal(atomic_load(&x.failed), 1); /* for good */
    tess__offload_close(&x);
}

/* A store that cannot prepare the memory does without; one whose table ends before those slots is not asked. */
static void test_offload_store__it_knows_one_memory_at_a_time(void **state) {
    (void)state;
    tess__offload_store x = opened(), none = { .ops = &ops };
    char step[64], larger[128];
    assert_int_equal(tess__offload_memory(&none, step, sizeof step), TESS_OK);
    assert_int_equal(tess__offload_memory(&x, NULL, 0), TESS_OK);
    assert_null(plugin.memory);
    assert_int_equal(tess__offload_memory(&x, step, sizeof step), TESS_OK);
    assert_true(plugin.registered && plugin.memory == step && plugin.bytes == sizeof step);
    assert_int_equal(tess__offload_memory(&x, larger, sizeof larger), TESS_OK);
    assert_true(plugin.registered && plugin.memory == larger && plugin.deregistered == 1);
    assert_int_equal(tess__offload_memory(&x, NULL, 0), TESS_OK);
    assert_true(!plugin.registered && plugin.deregistered == 2);
    answers(TESS_E_UNSUPPORTED, "there is a limit");
    assert_int_equal(tess__offload_memory(&x, step, sizeof step), TESS_OK);
    assert_int_equal(tess__offload_memory(&x, NULL, 0), TESS_OK);
    assert_int_equal(plugin.deregistered, 2);
    answers(TESS_E_SYSTEM, "the desk is gone");
    assert_int_equal(tess__offload_memory(&x, step, sizeof step), TESS_E_SYSTEM);
    assert_string_equal(tess_last_error(), "offload paper: the desk is gone");
    answers(TESS_OK, NULL);
    assert_int_equal(tess__offload_memory(&x, step, sizeof step), TESS_OK);
    tess__offload_close(&x); /* which ends it */
    assert_int_equal(tess__offload_memory(&x, NULL, 0), TESS_OK);
    assert_int_equal(plugin.deregistered, 2);
    x = opened();
    tess_offload_ops older = ops;
    older.struct_size = offsetof(tess_offload_ops, store_register);
    x.ops = &older;
    assert_int_equal(tess__offload_memory(&x, step, sizeof step), TESS_OK);
    assert_null(plugin.memory);
    tess__offload_close(&x);
}

static void test_offload_store__what_runs_posts_and_waits(void **state) {
    (void)state;
    tess__offload_store x = opened();
    char memory[8];
    void *at = (void *)(uintptr_t)(TESS__STORE_BASE + 64);
    assert_int_equal(tess__offload_run(&x, TESS_STORE_WRITE, at, memory, 8), TESS_OK);
    assert_true(plugin.posted == 1 && plugin.waited == 1);
    assert_true(plugin.io.op == TESS_STORE_WRITE && plugin.io.at == 64 && plugin.io.bytes == 8);
    assert_ptr_equal(plugin.io.memory, memory);
    answers(TESS_E_SYSTEM, "the pen is dry");
    assert_int_equal(tess__offload_run(&x, TESS_STORE_WRITE, at, memory, 8), TESS_E_SYSTEM);
    assert_string_equal(tess_last_error(), "offload paper: the pen is dry");
    assert_true(plugin.posted == 2 && plugin.waited == 1); /* nothing is under way */
    assert_int_equal(atomic_load(&x.failed), 1);
    tess__offload_close(&x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_offload_store__a_store_opens_once_and_closes_once),
        cmocka_unit_test(test_offload_store__one_that_does_not_open_is_none),
        cmocka_unit_test(test_offload_store__a_request_says_where_and_how_much),
        cmocka_unit_test(test_offload_store__a_request_is_waited_for_once_whatever_it_says),
        cmocka_unit_test(test_offload_store__it_knows_one_memory_at_a_time),
        cmocka_unit_test(test_offload_store__what_runs_posts_and_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
