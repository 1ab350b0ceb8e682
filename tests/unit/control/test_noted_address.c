/* SPDX-License-Identifier: BSD-3-Clause */
/* Which address of the server all ranks are told: the first that a rank of another host has connected to. */
#include "kv_fixture.h"

static const char *const *next_address; /* of the connections, in the order of their hellos */

static void own_address(int fd, char *out, size_t size) {
    (void)fd;
    snprintf(out, size, "%s", *next_address++);
}

#define tess__wire_own_address own_address
#include "core/control/kv_server.c"

enum { RANKS = 4 };

static void expect_told(const char *const addresses[RANKS], const char *told) {
    tess__inbox box[RANKS] = { 0 };
    tess__message got;
    int fd[RANKS];
    next_address = addresses;
    tess__kv_server *server = start_here(RANKS);
    for (int r = 0; r < RANKS; r++) {
        fd[r] = connect_here();
        say_hello(fd[r], r, "4", "");
        expect_message(fd[r], &box[r], TESS__WIRE_WELCOME, &got);
        tess__inbox_drop(&box[r], &got);
    }
    for (int r = 0; r < RANKS; r++) {
        expect_message(fd[r], &box[r], TESS__WIRE_READY, &got);
        assert_int_equal(got.value_bytes, strlen(told));
        assert_memory_equal(got.value, told, strlen(told));
        tess__inbox_clear(&box[r]);
        close(fd[r]);
    }
    tess__kv_server_stop(server);
}

static void test_noted_address__the_first_of_another_host_counts(void **state) {
    (void)state;
    expect_told((const char *[RANKS]){ "", "127.0.0.1", "10.1.2.3", "10.1.2.4" }, "10.1.2.3");
    expect_told((const char *[RANKS]){ "10.1.2.4", "", "127.0.0.1", "10.1.2.3" }, "10.1.2.4");
    expect_told((const char *[RANKS]){ "::1", "127.0.0.1", "", "fd00::7" }, "fd00::7");
}

static void test_noted_address__of_one_host_there_is_none(void **state) {
    (void)state;
    expect_told((const char *[RANKS]){ "", "127.0.0.1", "::1", "" }, "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_noted_address__the_first_of_another_host_counts),
        cmocka_unit_test(test_noted_address__of_one_host_there_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
