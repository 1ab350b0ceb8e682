/* SPDX-License-Identifier: BSD-3-Clause */
/* The host table's way for a plugin to open another one. */
#include "core/plugin/plugin_host.h"
#include "core/plugin/open.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static void test_plugin_host__opens_a_plugin_for_a_plugin(void **state) {
    (void)state;
    tess_host services = tess__plugin_services(NULL), *host = tess__plugin_host_new(&services, "");
    const void *ops = NULL;
    void *ctx = NULL, *handle = NULL;
    tess_error error = { .struct_size = sizeof error };
    assert_non_null(host);
    assert_true(TESS_CAN(tess_host, host, plugin_open) && TESS_CAN(tess_host, host, plugin_close));
    assert_int_equal(host->plugin_open(host->host, TESS_KIND_COMM, "self", &ops, &ctx, &handle, &error), TESS_OK);
    const tess_comm_ops *comm = ops;
    tess_comm_caps caps = { .struct_size = sizeof caps };
    assert_int_equal(comm->query(ctx, NULL, &caps), TESS_OK);
    assert_string_equal(caps.wire_id, "self");
    host->plugin_close(host->host, handle);
    host->plugin_close(host->host, NULL);
    free(host);
}

static void test_plugin_host__unknown_plugin_is_the_loaders_message(void **state) {
    (void)state;
    tess_host services = tess__plugin_services(NULL), *host = tess__plugin_host_new(&services, "");
    const void *ops = NULL;
    void *ctx = NULL, *handle = NULL;
    tess_error error = { .struct_size = sizeof error };
    assert_int_equal(host->plugin_open(host->host, TESS_KIND_COMM, "nowhere", &ops, &ctx, &handle, &error),
                     TESS_E_INVALID);
    assert_int_equal(error.code, TESS_E_INVALID);
    assert_non_null(strstr(error.message, "comm plugin 'nowhere' not found"));
    assert_true(!ops && !ctx && !handle);
    free(host);
}

static void test_plugin_host__services_without_the_slot_get_it(void **state) {
    (void)state;
    tess_host services = { .struct_size = offsetof(tess_host, plugin_open) };
    services = tess__plugin_services(&services);
    tess_host *host = tess__plugin_host_new(&services, "x");
    assert_int_equal(host->struct_size, sizeof *host);
    assert_string_equal(host->args, "x");
    assert_true(host->plugin_open && host->plugin_close && host->kv_get && host->log);
    free(host);
}

/* ---- gaps are filled ---- */

static void own_log(void *host, int32_t level, const char *plugin, const char *message) {
    (void)host, (void)level, (void)plugin, (void)message;
}

static const char *own_option(void *host, const char *key) {
    (void)host;
    return key;
}

static tess_status own_set(void *host, const char *key, const void *value, uint64_t bytes) {
    (void)host, (void)key, (void)value, (void)bytes;
    return TESS_OK;
}

static tess_status own_get(void *host, const char *key, void *value, uint64_t *bytes, int64_t timeout_ns) {
    (void)host, (void)key, (void)value, (void)bytes, (void)timeout_ns;
    return TESS_OK;
}

static int32_t own_aborting(void *host) {
    (void)host;
    return 1;
}

static tess_status own_alloc(void *host, uint32_t domain, uint32_t category, uint64_t bytes, uint64_t align,
                             void **out) {
    (void)host, (void)domain, (void)category, (void)bytes, (void)align, (void)out;
    return TESS_E_NOMEM;
}

static void own_free(void *host, void *ptr) {
    (void)host, (void)ptr;
}

/* Whatever is missing, that and nothing else comes from the defaults; memory goes back to where it came from. */
static void test_plugin_host__each_gap_is_filled_and_nothing_else(void **state) {
    (void)state;
    const tess_host *plain = &tess__host_defaults;
    for (int has = 0; has < 256; has++) {
        const tess_host given = { .struct_size = 8,
                                  .log = has & 1 ? own_log : NULL,
                                  .option = has & 2 ? own_option : NULL,
                                  .kv_set = has & 4 ? own_set : NULL,
                                  .kv_get = has & 8 ? own_get : NULL,
                                  .aborting = has & 16 ? own_aborting : NULL,
                                  .mem_alloc = has & 32 ? own_alloc : NULL,
                                  .mem_free = has & 64 ? own_free : NULL,
                                  .helper_cpus = has & 128 ? "3" : NULL,
                                  .numa_node = 5,
                                  .max_helper_threads = 6 };
        tess_host *host = tess__plugin_host_new(&given, "words");
        const int memory = (has & 96) == 96;
        assert_true(host->log == (has & 1 ? own_log : plain->log));
        assert_true(host->option == (has & 2 ? own_option : plain->option));
        assert_true(host->kv_set == (has & 4 ? own_set : plain->kv_set));
        assert_true(host->kv_get == (has & 8 ? own_get : plain->kv_get));
        assert_true(host->aborting == (has & 16 ? own_aborting : plain->aborting));
        assert_true(host->mem_alloc == (memory ? own_alloc : plain->mem_alloc));
        assert_true(host->mem_free == (memory ? own_free : plain->mem_free));
        assert_string_equal(host->helper_cpus, has & 128 ? "3" : "");
        assert_string_equal(host->args, "words");
        assert_true(host->numa_node == 5 && host->max_helper_threads == 6 && host->struct_size == sizeof *host);
        assert_true(host->abi_major == TESS_ABI_MAJOR && host->abi_minor == TESS_ABI_MINOR);
        free(host);
    }
}

static void test_plugin_host__a_profiler_is_said_where_nobody_gave_one(void **state) {
    (void)state;
    const tess_host given = { .struct_size = sizeof given, .profiler = "mine.so" };
    static const char *const values[] = { NULL, "", "nvtx.so" };
    for (int i = 0; i < 3; i++) {
        values[i] ? setenv("NVTX_INJECTION64_PATH", values[i], 1) : unsetenv("NVTX_INJECTION64_PATH");
        tess_host *host = tess__plugin_host_new(NULL, NULL), *own = tess__plugin_host_new(&given, NULL);
        assert_string_equal(host->profiler ? host->profiler : "none", i == 2 ? "nvtx.so" : "none");
        assert_string_equal(own->profiler, "mine.so");
        free(host);
        free(own);
    }
    unsetenv("NVTX_INJECTION64_PATH");
}

static void test_plugin_host__defaults_know_no_run(void **state) {
    (void)state;
    const tess_host *plain = &tess__host_defaults;
    uint64_t bytes = 4;
    char value[4] = { 0 };
    assert_int_equal(plain->kv_set(NULL, "k", value, 4), TESS_E_UNSUPPORTED);
    assert_int_equal(plain->kv_get(NULL, "k", value, &bytes, 0), TESS_E_UNSUPPORTED);
    assert_int_equal(plain->aborting(NULL), 0);
    assert_true(plain->numa_node == -1 && plain->max_helper_threads == -1 && !plain->option(NULL, NULL));
    setenv("TESSERA_ACCUM", "3", 1);
    assert_string_equal(plain->option(NULL, "accum"), "3");
    unsetenv("TESSERA_ACCUM");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plugin_host__opens_a_plugin_for_a_plugin),
        cmocka_unit_test(test_plugin_host__unknown_plugin_is_the_loaders_message),
        cmocka_unit_test(test_plugin_host__services_without_the_slot_get_it),
        cmocka_unit_test(test_plugin_host__each_gap_is_filled_and_nothing_else),
        cmocka_unit_test(test_plugin_host__a_profiler_is_said_where_nobody_gave_one),
        cmocka_unit_test(test_plugin_host__defaults_know_no_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
