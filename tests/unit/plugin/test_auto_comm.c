/* SPDX-License-Identifier: BSD-3-Clause */
/* comm=auto: by what plugins say of themselves, not by their names. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "core/base/status.h"
#include "core/control/host_id.h"
#include "core/plugin/auto_comm.h"
#include "core/plugin/open.h"

static int has(const char *name) {
    tess__plugin *p;
    if (tess__plugin_open(TESS_KIND_COMM, name, NULL, &p)) {
        print_message("no comm %s: %s\n", name, tess_last_error());
        return 0;
    }
    tess__plugin_close(p);
    return 1;
}

static tess_status choose(int32_t ranks, int32_t per_host, uint32_t mem, char name[32]) {
    tess_plan_env env = { .struct_size = sizeof env, .mem = mem, .nranks = ranks, .ranks_per_host = per_host };
    tess__plugin *p;
    TRY(tess__comm_choose(NULL, &env, &p));
    memcpy(name, p->name, sizeof p->name);
    tess__plugin_close(p);
    return TESS_OK;
}

/* The first test: afterwards others have opened all. */
static void test_auto_comm__opens_its_choice_alone(void **state) {
    (void)state;
    char name[32], line[4096];
    int chosen = 0;
    if (choose(2, 2, TESS_MEM_HOST, name) != TESS_OK || strcmp(name, "shm") != 0)
        skip();
    FILE *maps = fopen("/proc/self/maps", "r");
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps)) {
        chosen |= strstr(line, "libtessera-comm-shm") != NULL;
        assert_null(strstr(line, "libtessera-comm-gloo"));
    }
    fclose(maps);
    assert_true(chosen);
}

static void test_auto_comm__one_rank_needs_no_network(void **state) {
    (void)state;
    char name[32];
    assert_int_equal(choose(1, 1, TESS_MEM_HOST, name), TESS_OK);
    assert_string_equal(name, "self");
}

static void test_auto_comm__ranks_of_one_host_share_memory(void **state) {
    (void)state;
    char name[32];
    if (!has("shm"))
        skip();
    for (int32_t ranks = 2; ranks <= 64; ranks *= 2) {
        assert_int_equal(choose(ranks, ranks, TESS_MEM_HOST, name), TESS_OK);
        assert_string_equal(name, "shm");
    }
}

static void test_auto_comm__ranks_of_two_hosts_use_the_network(void **state) {
    (void)state;
    char name[32] = "untouched";
    int network = has("gloo");
    tess_status s = choose(4, 2, TESS_MEM_HOST, name);
    assert_int_equal(s, network ? TESS_OK : TESS_E_INVALID);
    assert_string_equal(name, !network ? "untouched" : has("hosts") && has("shm") ? "hosts" : "gloo");
    s = choose(65, 65, TESS_MEM_HOST, name); /* more than shm serves */
    assert_int_equal(s, network ? TESS_OK : TESS_E_INVALID);
}

static void test_auto_comm__memory_nobody_reaches_is_said(void **state) {
    (void)state;
    char name[32];
    if (choose(2, 2, TESS_MEM_CUDA, name) == TESS_OK)
        skip(); /* a plugin for GPUs is built here */
    assert_string_equal(tess_last_error(),
                        "2 ranks need a comm plugin and none is usable; `tessera plugins list` says why");
}

static void test_auto_comm__hosts_are_counted_alike_on_every_rank(void **state) {
    (void)state;
    const uint64_t one[] = { 7, 7, 7 }, uneven[] = { 7, 8, 7, 7, 8 }, apart[] = { 1, 2, 3 };
    assert_int_equal(tess__most_on_a_host(one, 3), 3);
    assert_int_equal(tess__most_on_a_host(uneven, 5), 3);
    assert_int_equal(tess__most_on_a_host(apart, 3), 1);
    assert_true(tess__host_id() == tess__host_id());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_auto_comm__opens_its_choice_alone),
        cmocka_unit_test(test_auto_comm__one_rank_needs_no_network),
        cmocka_unit_test(test_auto_comm__ranks_of_one_host_share_memory),
        cmocka_unit_test(test_auto_comm__ranks_of_two_hosts_use_the_network),
        cmocka_unit_test(test_auto_comm__memory_nobody_reaches_is_said),
        cmocka_unit_test(test_auto_comm__hosts_are_counted_alike_on_every_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
