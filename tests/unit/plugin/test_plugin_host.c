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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plugin_host__opens_a_plugin_for_a_plugin),
        cmocka_unit_test(test_plugin_host__unknown_plugin_is_the_loaders_message),
        cmocka_unit_test(test_plugin_host__services_without_the_slot_get_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
