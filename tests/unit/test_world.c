/* What launchers set, and what nobody should. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "control.h"

static const char *const variables[] = { "RANK",
                                         "WORLD_SIZE",
                                         "LOCAL_RANK",
                                         "LOCAL_WORLD_SIZE",
                                         "MASTER_ADDR",
                                         "MASTER_PORT",
                                         "TESSERA_KV",
                                         "TESSERA_SECRET",
                                         "TESSERA_LISTEN",
                                         "SLURM_JOB_ID",
                                         "SLURM_STEP_ID",
                                         "SLURM_PROCID",
                                         "SLURM_NTASKS",
                                         "SLURM_STEP_NUM_TASKS",
                                         "SLURM_LOCALID",
                                         "SLURM_NNODES",
                                         "SLURM_STEP_NUM_NODES",
                                         "SLURM_STEP_NODELIST",
                                         "SLURM_LAUNCH_NODE_IPADDR",
                                         "OMPI_COMM_WORLD_RANK",
                                         "OMPI_COMM_WORLD_SIZE",
                                         "OMPI_COMM_WORLD_LOCAL_RANK",
                                         "OMPI_COMM_WORLD_LOCAL_SIZE",
                                         "PMIX_NAMESPACE" };

/* "A=1 B=2" becomes the environment, as far as this file cares. */
static void set_environment(const char *pairs) {
    char text[1024];
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++)
        unsetenv(variables[i]);
    snprintf(text, sizeof text, "%s", pairs);
    for (char *save, *pair = strtok_r(text, " ", &save); pair; pair = strtok_r(NULL, " ", &save)) {
        char *equals = strchr(pair, '=');
        assert_non_null(equals);
        *equals = 0;
        int known = 0;
        for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++)
            known |= strcmp(pair, variables[i]) == 0;
        assert_true(known);
        setenv(pair, equals + 1, 1);
    }
}

static tess__world expect_world(const char *environment, int32_t rank, int32_t nranks, int32_t local_rank,
                                int32_t local_nranks, const char *address, int32_t port) {
    tess__world w;
    memset(&w, 0xee, sizeof w);
    set_environment(environment);
    tess_status status = tess__world_from_env(&w);
    if (status != TESS_OK)
        fail_msg("%s: %s", environment, tess_last_error());
    assert_int_equal(w.rank, rank);
    assert_int_equal(w.nranks, nranks);
    assert_int_equal(w.local_rank, local_rank);
    assert_int_equal(w.local_nranks, local_nranks);
    assert_string_equal(w.address, address);
    assert_int_equal(w.port, port);
    return w;
}

static void expect_error(const char *environment, const char *message) {
    tess__world w;
    memset(&w, 0xee, sizeof w);
    tess__world before = w;
    set_environment(environment);
    assert_int_equal(tess__world_from_env(&w), TESS_E_INVALID);
    assert_string_equal(tess_last_error(), message);
    assert_memory_equal(&w, &before, sizeof w);
}

static void test_world__nothing_set_is_one_rank(void **state) {
    (void)state;
    tess__world w = expect_world("", 0, 1, 0, 1, "127.0.0.1", 29500);
    assert_int_equal(w.launched, 0);
    assert_string_equal(w.secret, "");
    assert_string_equal(w.job, "");
    expect_world("WORLD_SIZE=1", 0, 1, 0, 1, "127.0.0.1", 29500);
}

static void test_world__rank_and_world_size_are_read(void **state) {
    (void)state;
    expect_world("RANK=3 WORLD_SIZE=4", 3, 4, 3, 0, "127.0.0.1", 29500);
    expect_world("RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=n1.example MASTER_PORT=1234", 3, 4, 1, 0, "n1.example",
                 1234);
    /* All on one host: they meet on its loopback. */
    expect_world("RANK=3 WORLD_SIZE=4 LOCAL_RANK=3 LOCAL_WORLD_SIZE=4 MASTER_ADDR=n1.example", 3, 4, 3, 4, "127.0.0.1",
                 29500);
    expect_world("RANK=3 WORLD_SIZE=4 LOCAL_RANK=3 LOCAL_WORLD_SIZE=4 MASTER_ADDR=n1.example TESSERA_LISTEN=0.0.0.0", 3,
                 4, 3, 4, "n1.example", 29500);
}

static void test_world__kv_names_the_launchers_server(void **state) {
    (void)state;
    tess__world w = expect_world("RANK=1 WORLD_SIZE=2 TESSERA_KV=127.0.0.1:4567 TESSERA_SECRET=abc MASTER_PORT=1", 1, 2,
                                 1, 2, "127.0.0.1", 4567);
    assert_int_equal(w.launched, 1);
    assert_string_equal(w.secret, "abc");
    expect_world("RANK=1 WORLD_SIZE=2 TESSERA_KV=[::1]:4567", 1, 2, 1, 2, "::1", 4567);
}

static void test_world__slurm_tasks_are_understood(void **state) {
    (void)state;
    tess__world w = expect_world("SLURM_JOB_ID=77 SLURM_STEP_ID=2 SLURM_PROCID=5 SLURM_NTASKS=8 SLURM_LOCALID=1 "
                                 "SLURM_NNODES=2 SLURM_STEP_NODELIST=node[07-08],x3 SLURM_LAUNCH_NODE_IPADDR=10.0.0.9",
                                 5, 8, 1, 0, "node07", 29500);
    assert_string_equal(w.job, "77.2");
    expect_world("SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=1 SLURM_NNODES=1 "
                 "SLURM_STEP_NODELIST=node07 SLURM_LAUNCH_NODE_IPADDR=10.0.0.9",
                 1, 2, 1, 2, "127.0.0.1", 29500);
    expect_world("SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=0 SLURM_LAUNCH_NODE_IPADDR=10.0.0.9", 1, 2, 0, 0,
                 "10.0.0.9", 29500);
    expect_world("SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_NTASKS=16 SLURM_STEP_NUM_NODES=2 "
                 "SLURM_STEP_NODELIST=r[1-2]c[03,05] MASTER_PORT=31000",
                 1, 2, 0, 0, "r1c03", 31000);
    expect_world("SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_NNODES=2 SLURM_STEP_NODELIST=a,b MASTER_ADDR=c",
                 1, 2, 0, 0, "c", 29500);
}

static void test_world__a_slurm_shell_is_no_task(void **state) {
    (void)state;
    expect_world("SLURM_JOB_ID=77", 0, 1, 0, 1, "127.0.0.1", 29500);
    expect_world("SLURM_JOB_ID=77 SLURM_NTASKS=4 SLURM_NNODES=2", 0, 1, 0, 1, "127.0.0.1", 29500);
    expect_world("SLURM_JOB_ID=77 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_LOCALID=0", 0, 1, 0, 1, "127.0.0.1", 29500);
    expect_world("SLURM_JOB_ID=77 SLURM_STEP_ID=4294967290 SLURM_PROCID=0 SLURM_NTASKS=4", 0, 1, 0, 1, "127.0.0.1",
                 29500);
}

static void test_world__open_mpi_is_understood(void **state) {
    (void)state;
    tess__world w = expect_world("OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_RANK=2 "
                                 "OMPI_COMM_WORLD_LOCAL_SIZE=3 PMIX_NAMESPACE=prterun-7@1",
                                 2, 3, 2, 3, "127.0.0.1", 29500);
    assert_string_equal(w.job, "prterun-7@1");
    expect_world("OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_RANK=0 "
                 "OMPI_COMM_WORLD_LOCAL_SIZE=1 MASTER_ADDR=n1 MASTER_PORT=2000",
                 2, 3, 0, 1, "n1", 2000);
    expect_error("OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_SIZE=1",
                 "mpirun started ranks on several hosts: set MASTER_ADDR to rank 0's host");
    expect_error("OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_RANK is set, but OMPI_COMM_WORLD_SIZE is not");
}

static void test_world__rank_wins_over_slurm(void **state) {
    (void)state;
    expect_world("RANK=1 WORLD_SIZE=2 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=1", 1, 2, 1, 0, "127.0.0.1", 29500);
}

static void test_world__absurd_values_are_one_line(void **state) {
    (void)state;
    expect_error("RANK=0 WORLD_SIZE=0", "WORLD_SIZE is '0', expected an integer from 1 to 1048576");
    expect_error("RANK=0 WORLD_SIZE=-2", "WORLD_SIZE is '-2', expected an integer from 1 to 1048576");
    expect_error("RANK=0 WORLD_SIZE=two", "WORLD_SIZE is 'two', expected an integer from 1 to 1048576");
    expect_error("RANK=0 WORLD_SIZE=2x", "WORLD_SIZE is '2x', expected an integer from 1 to 1048576");
    expect_error("RANK=0 WORLD_SIZE=99999999999999999999",
                 "WORLD_SIZE is '99999999999999999999', expected an integer from 1 to 1048576");
    expect_error("RANK=-1 WORLD_SIZE=2", "RANK is '-1', expected an integer from 0 to 1048575");
    expect_error("RANK=2 WORLD_SIZE=2", "RANK is 2, but WORLD_SIZE is 2: ranks count from 0");
    expect_error("RANK=2", "RANK is set to '2', but WORLD_SIZE is not set");
    expect_error("WORLD_SIZE=2", "WORLD_SIZE is 2, but RANK is not set");
    expect_error("RANK=1 WORLD_SIZE=2 LOCAL_RANK=2", "LOCAL_RANK is 2, but only 2 ranks are on this host");
    expect_error("RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=1",
                 "LOCAL_RANK is 1, but only 1 ranks are on this host");
    expect_error("RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=3", "LOCAL_WORLD_SIZE is 3, more than WORLD_SIZE, which is 2");
    expect_error("RANK=1 WORLD_SIZE=2 MASTER_PORT=65536", "MASTER_PORT is '65536', expected an integer from 1 to "
                                                          "65535");
    expect_error("SLURM_STEP_ID=0 SLURM_PROCID=9 SLURM_NTASKS=8",
                 "SLURM_PROCID is 9, but SLURM_NTASKS is 8: ranks count from 0");
    expect_error("SLURM_STEP_ID=0 SLURM_PROCID=9",
                 "SLURM_PROCID is set, but neither SLURM_STEP_NUM_TASKS nor SLURM_NTASKS is");
    expect_error("SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_NNODES=2 SLURM_STEP_NODELIST=a[1-2",
                 "SLURM_STEP_NODELIST is 'a[1-2', expected names of hosts");
}

static void test_world__bad_kv_is_one_line(void **state) {
    (void)state;
    expect_error("TESSERA_KV=here", "TESSERA_KV is 'here', expected HOST:PORT");
    expect_error("TESSERA_KV=:80", "TESSERA_KV is ':80', expected HOST:PORT");
    expect_error("TESSERA_KV=h:0", "TESSERA_KV is 'h:0', expected HOST:PORT");
    expect_error("TESSERA_KV=h:65536", "TESSERA_KV is 'h:65536', expected HOST:PORT");
    expect_error("TESSERA_KV=h:-1", "TESSERA_KV is 'h:-1', expected HOST:PORT");
    expect_error("TESSERA_KV=h:8x", "TESSERA_KV is 'h:8x', expected HOST:PORT");
}

static void test_world__overlong_texts_are_refused(void **state) {
    (void)state;
    char text[512] = "TESSERA_SECRET=";
    memset(text + strlen(text), 's', 136);
    expect_error(text, "TESSERA_SECRET has 136 characters, expected at most 135");
    memset(text, 0, sizeof text);
    snprintf(text, sizeof text, "MASTER_ADDR=");
    memset(text + strlen(text), 'a', 256);
    expect_error(text, "MASTER_ADDR has 256 characters, expected the name of a host");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_world__nothing_set_is_one_rank),
        cmocka_unit_test(test_world__rank_and_world_size_are_read),
        cmocka_unit_test(test_world__kv_names_the_launchers_server),
        cmocka_unit_test(test_world__slurm_tasks_are_understood),
        cmocka_unit_test(test_world__a_slurm_shell_is_no_task),
        cmocka_unit_test(test_world__open_mpi_is_understood),
        cmocka_unit_test(test_world__rank_wins_over_slurm),
        cmocka_unit_test(test_world__absurd_values_are_one_line),
        cmocka_unit_test(test_world__bad_kv_is_one_line),
        cmocka_unit_test(test_world__overlong_texts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
