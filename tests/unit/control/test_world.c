/* SPDX-License-Identifier: BSD-3-Clause */
/* What launchers set, and what nobody should. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/control/control.h"
#include "core/control/host_id.h"

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
                                         "PMIX_NAMESPACE",
                                         "PMI_RANK",
                                         "PMI_SIZE",
                                         "MPI_LOCALRANKID",
                                         "MPI_LOCALNRANKS",
                                         "TORCHELASTIC_RUN_ID",
                                         "TORCHELASTIC_RESTART_COUNT",
                                         "TESSERA_SECRET_FILE",
                                         "TESSERA_SECRET_FD" };

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
    expect_world("RANK=1 WORLD_SIZE=2 TESSERA_KV=/run/user/0/tessera/run-1.sock", 1, 2, 1, 2,
                 "/run/user/0/tessera/run-1.sock", 0);
    expect_world("RANK=1 WORLD_SIZE=2 TESSERA_KV=[::1]:4567", 1, 2, 1, 2, "::1", 4567);
    expect_world("RANK=1 WORLD_SIZE=2 TESSERA_KV=[::1:4567", 1, 2, 1, 2, "[::1", 4567); /* half a bracket is none */
    expect_world("RANK=1 WORLD_SIZE=2 TESSERA_KV=host]:4567", 1, 2, 1, 2, "host]", 4567);
    expect_world("RANK=1 WORLD_SIZE=2 TESSERA_KV=[]:4567", 1, 2, 1, 2, "[]", 4567);
    expect_world("RANK=1 WORLD_SIZE=2 TESSERA_KV=[h]:4567", 1, 2, 1, 2, "h", 4567);
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
    expect_error("TESSERA_KV=here", "TESSERA_KV is 'here', expected HOST:PORT or /PATH");
    expect_error("TESSERA_KV=:80", "TESSERA_KV is ':80', expected HOST:PORT or /PATH");
    expect_error("TESSERA_KV=h:0", "TESSERA_KV is 'h:0', expected HOST:PORT or /PATH");
    expect_error("TESSERA_KV=h:65536", "TESSERA_KV is 'h:65536', expected HOST:PORT or /PATH");
    expect_error("TESSERA_KV=h:-1", "TESSERA_KV is 'h:-1', expected HOST:PORT or /PATH");
    expect_error("TESSERA_KV=h:8x", "TESSERA_KV is 'h:8x', expected HOST:PORT or /PATH");
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

static void test_world__mpich_and_intel_mpi_are_understood(void **state) {
    (void)state;
    expect_world("PMI_RANK=2 PMI_SIZE=3 MPI_LOCALRANKID=2 MPI_LOCALNRANKS=3", 2, 3, 2, 3, "127.0.0.1", 29500);
    expect_world("PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1 MASTER_ADDR=n1", 1, 2, 0, 1, "n1", 29500);
    expect_world("PMI_RANK=1 PMI_SIZE=2", 1, 2, 1, 0, "127.0.0.1", 29500);
    expect_error("PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1",
                 "mpirun started ranks on several hosts: set MASTER_ADDR to rank 0's host");
    expect_error("PMI_RANK=1", "PMI_RANK is set, but PMI_SIZE is not");
}

static void test_world__torchrun_keeps_its_port(void **state) {
    (void)state;
    tess__world w = expect_world("RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=n1 MASTER_PORT=29500 "
                                 "TORCHELASTIC_RUN_ID=job7 TORCHELASTIC_RESTART_COUNT=2",
                                 1, 2, 0, 1, "n1", 29501);
    assert_int_equal(w.n_ports, 8);
    assert_string_equal(w.job, "job7.2");
    expect_world("RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=n1 MASTER_PORT=65535 "
                 "TORCHELASTIC_RUN_ID=job7",
                 1, 2, 0, 1, "n1", 65527);
    w = expect_world("RANK=1 WORLD_SIZE=2 TORCHELASTIC_RUN_ID=job7 TESSERA_KV=127.0.0.1:4567", 1, 2, 1, 2, "127.0.0.1",
                     4567);
    assert_int_equal(w.n_ports, 1);
}

static void test_world__launchers_that_disagree_are_both_named(void **state) {
    (void)state;
    expect_error("RANK=0 WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2",
                 "two launchers disagree: RANK is 0 of 1 (WORLD_SIZE), but OMPI_COMM_WORLD_RANK is 1 of 2 "
                 "(OMPI_COMM_WORLD_SIZE); unset those of the one that did not start this rank");
    expect_error(
        "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 PMI_RANK=0 PMI_SIZE=2",
        "two launchers disagree: OMPI_COMM_WORLD_RANK is 1 of 2 (OMPI_COMM_WORLD_SIZE), but PMI_RANK is 0 of 2 "
        "(PMI_SIZE); unset those of the one that did not start this rank");
    expect_error("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 "
                 "SLURM_STEP_NUM_NODES=2",
                 "two launchers disagree: OMPI_COMM_WORLD_RANK is 1 of 2 (OMPI_COMM_WORLD_SIZE), but SLURM_PROCID is 0 "
                 "of 2 (SLURM_STEP_NUM_TASKS); unset those of the one that did not start this rank");
    expect_error(
        "RANK=0 WORLD_SIZE=4 SLURM_PROCID=1 SLURM_STEP_ID=0 SLURM_NTASKS=4",
        "two launchers disagree: RANK is 0 of 4 (WORLD_SIZE), but SLURM_PROCID is 1 of 4 (SLURM_NTASKS); unset "
        "those of the one that did not start this rank");
}

static void test_world__a_launcher_within_another_wins(void **state) {
    (void)state;
    /* The same said twice, as `srun --mpi=pmi2` does. */
    expect_world("PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 SLURM_STEP_ID=0 SLURM_PROCID=1 "
                 "SLURM_NTASKS=2",
                 1, 2, 1, 2, "127.0.0.1", 29500);
    /* One of mpirun's helpers, tessera run or torchrun per host, each a task of srun. */
    expect_world("OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1 "
                 "OMPI_COMM_WORLD_LOCAL_SIZE=4 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 "
                 "SLURM_STEP_NUM_NODES=2 MASTER_ADDR=n1",
                 5, 8, 1, 4, "n1", 29500);
    expect_world("RANK=1 WORLD_SIZE=2 TESSERA_KV=127.0.0.1:99 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=2", 1, 2, 1,
                 2, "127.0.0.1", 99);
    expect_world("RANK=1 WORLD_SIZE=2 TORCHELASTIC_RUN_ID=x SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=2", 1, 2, 1, 0,
                 "127.0.0.1", 29501);
}

static void test_world__secret_comes_from_a_file(void **state) {
    (void)state;
    char path[] = "/tmp/test_world_XXXXXX", text[128], message[256];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "open sesame, please\nnot this\n", 29), 29);
    snprintf(text, sizeof text, "TESSERA_SECRET_FILE=%s", path);
    assert_string_equal(expect_world(text, 0, 1, 0, 1, "127.0.0.1", 29500).secret, "open sesame, please");
    snprintf(text, sizeof text, "TESSERA_SECRET_FD=%d", fd);
    assert_string_equal(expect_world(text, 0, 1, 0, 1, "127.0.0.1", 29500).secret, "open sesame, please");
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    snprintf(text, sizeof text, "TESSERA_SECRET=x TESSERA_SECRET_FD=%d", fd);
    expect_error(text, "set one of TESSERA_SECRET, TESSERA_SECRET_FILE and TESSERA_SECRET_FD, not two");
    assert_int_equal(fchmod(fd, 0640), 0);
    snprintf(text, sizeof text, "TESSERA_SECRET_FILE=%s", path);
    snprintf(message, sizeof message, "TESSERA_SECRET_FILE '%s' can be read by other users: chmod 600", path);
    expect_error(text, message);
    snprintf(text, sizeof text, "TESSERA_SECRET=x TESSERA_SECRET_FILE=%s TESSERA_SECRET_FD=%d", path, fd);
    expect_error(text, "set one of TESSERA_SECRET, TESSERA_SECRET_FILE and TESSERA_SECRET_FD, not three");
    assert_int_equal(fchmod(fd, 0601), 0); /* to run it is too much, too */
    snprintf(text, sizeof text, "TESSERA_SECRET_FILE=%s", path);
    expect_error(text, message);
    assert_int_equal(fchmod(fd, 0600), 0);
    static const struct {
        const char *bytes, *secret; /* null: empty */
    } lines[] = { { "", NULL }, { "\nx", NULL }, { "\r\n", NULL }, { "a", "a" }, { "a b\r\nc", "a b" } };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        assert_int_equal(ftruncate(fd, 0), 0);
        assert_int_equal(pwrite(fd, lines[i].bytes, strlen(lines[i].bytes), 0), strlen(lines[i].bytes));
        if (lines[i].secret)
            assert_string_equal(expect_world(text, 0, 1, 0, 1, "127.0.0.1", 29500).secret, lines[i].secret);
        else
            expect_error(text, "TESSERA_SECRET_FILE: the secret is empty, expected a line of text");
    }
    int input = dup(0);
    close(0); /* then the file is number 0 */
    expect_world(text, 0, 1, 0, 1, "127.0.0.1", 29500);
    if (input >= 0)
        dup2(input, 0);
    close(input);
    char secret[200];
    memset(secret, 's', sizeof secret);
    assert_int_equal(pwrite(fd, secret, 135, 0), 135);
    assert_int_equal(strlen(expect_world(text, 0, 1, 0, 1, "127.0.0.1", 29500).secret), 135);
    assert_int_equal(pwrite(fd, secret, 200, 0), 200);
    expect_error(text, "TESSERA_SECRET_FILE has 136 characters, expected at most 135");
    close(fd);
    unlink(path);
    snprintf(message, sizeof message, "TESSERA_SECRET_FILE '%s' cannot be opened: No such file or directory", path);
    expect_error(text, message);
    static const char *const numbers[] = { "x", "-1", "1x", ":", "/", "1048577", "999999" };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        snprintf(text, sizeof text, "TESSERA_SECRET_FD=%s", numbers[i]);
        snprintf(message, sizeof message, "TESSERA_SECRET_FD is '%s', expected the number of an open file", numbers[i]);
        expect_error(text, message);
    }
}

static void test_world__layouts_of_hosts_differ_and_names_do_not(void **state) {
    (void)state;
    static const uint64_t pairs[] = { 7, 7, 9, 9 }, others[] = { 1, 1, 2, 2 }, spread[] = { 7, 9, 7, 9 },
                          uneven[] = { 7, 7, 7, 9 }, alone[] = { 1, 2, 3, 4 };
    uint64_t h = tess__layout_of_hosts(pairs, 4);
    assert_int_equal(h, tess__layout_of_hosts(others, 4));
    assert_int_not_equal(h, tess__layout_of_hosts(spread, 4));
    assert_int_not_equal(h, tess__layout_of_hosts(uneven, 4));
    assert_int_not_equal(h, tess__layout_of_hosts(alone, 4));
    assert_int_not_equal(h, tess__layout_of_hosts(pairs, 3));
    assert_int_equal(tess__most_on_a_host(pairs, 4), 2);
    assert_int_equal(tess__most_on_a_host(spread, 4), 2);
    assert_int_equal(tess__most_on_a_host(uneven, 4), 3);
    assert_int_equal(tess__most_on_a_host(alone, 4), 1);
    assert_int_equal(tess__most_on_a_host(uneven, 1), 1);
    assert_int_equal(tess__host_id(), tess__host_id());
    assert_int_not_equal(tess__host_id(), 0);
}

/* Ranks that are replaced meet again at another path of the launcher's. */
static void test_world__each_generation_has_its_path(void **state) {
    (void)state;
    tess__world w = expect_world("RANK=1 WORLD_SIZE=2 TESSERA_KV=/run/x", 1, 2, 1, 2, "/run/x", 0);
    w.first_rank = 3;
    w.first_nranks = 4;
    for (int32_t generation = 0; generation < 12; generation += 11) {
        w.rank = w.nranks = 9;
        assert_int_equal(tess__world_at_generation(&w, generation), TESS_OK);
        assert_string_equal(w.address, generation ? "/run/x-g11" : "/run/x");
        assert_true(w.generation == generation && w.rank == 3 && w.nranks == 4);
    }
    assert_int_equal(tess__world_at_generation(&w, -1), TESS_E_UNSUPPORTED);
    static const char *const others[] = { "RANK=1", "TESSERA_KV=host:1" };
    for (int i = 0; i < 2; i++) {
        set_environment(others[i]);
        assert_int_equal(tess__world_at_generation(&w, 0), TESS_E_UNSUPPORTED);
    }
    assert_int_equal(w.generation, 11);
    char path[sizeof w.address + 16] = "TESSERA_KV=/";
    memset(path + 12, 'x',
           sizeof w.address - 2); /* as long as an address can be: none is left for a generation's name */
    set_environment(path);
    assert_int_equal(tess__world_at_generation(&w, 0), TESS_OK);
    assert_int_equal(tess__world_at_generation(&w, 1), TESS_E_INVALID);
    set_environment("");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_world__layouts_of_hosts_differ_and_names_do_not),
        cmocka_unit_test(test_world__nothing_set_is_one_rank),
        cmocka_unit_test(test_world__rank_and_world_size_are_read),
        cmocka_unit_test(test_world__kv_names_the_launchers_server),
        cmocka_unit_test(test_world__slurm_tasks_are_understood),
        cmocka_unit_test(test_world__a_slurm_shell_is_no_task),
        cmocka_unit_test(test_world__open_mpi_is_understood),
        cmocka_unit_test(test_world__rank_wins_over_slurm),
        cmocka_unit_test(test_world__mpich_and_intel_mpi_are_understood),
        cmocka_unit_test(test_world__torchrun_keeps_its_port),
        cmocka_unit_test(test_world__launchers_that_disagree_are_both_named),
        cmocka_unit_test(test_world__a_launcher_within_another_wins),
        cmocka_unit_test(test_world__secret_comes_from_a_file),
        cmocka_unit_test(test_world__absurd_values_are_one_line),
        cmocka_unit_test(test_world__bad_kv_is_one_line),
        cmocka_unit_test(test_world__overlong_texts_are_refused),
        cmocka_unit_test(test_world__each_generation_has_its_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
