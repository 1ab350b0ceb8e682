/* SPDX-License-Identifier: BSD-3-Clause */
/* comm-nccl on the doubles with one call of CUDA or NCCL failing, each in turn: every rank ends soon, the rank that it
 * happened to with one line that says what failed, and nothing is left behind.
 *
 *     test_nccl_faults_doubles [STRIDE]     every STRIDE-th call of each name; 1: all of them */
#include "double.h"
#include "fault_ranks.h"
#include "plugin_host.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <cuda.h>

enum { CALLS = 256 };

/* What may fail without a word: what gives back, what has another way to go on, and what is asked again and again, so
 * that a run may need fewer of it than the one that was counted. */
static int may_pass(const char *name) {
    static const char *const names[] = { "cuCtxPopCurrent",    "cuCtxPushCurrent",      "cuDevicePrimaryCtxRelease",
                                         "cuEventDestroy",     "cuEventQuery",          "cuMemFree",
                                         "cuMemFreeHost",      "cuModuleUnload",        "cuStreamDestroy",
                                         "cuMemGetInfo",       "cuStreamQuery",         "ncclCommAbort",
                                         "ncclCommDeregister", "ncclCommDestroy",       "ncclCommRegister",
                                         "ncclMemFree",        "ncclCommGetAsyncError", "ncclCommWindowDeregister" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], name) == 0)
            return 1;
    return 0;
}

static struct {
    char name[48];
    long calls;
} counted[CALLS];

/* A run in which nothing fails; what rank `of` called, and how often. */
static int count_calls(int of) {
    int codes[RANKS], n = 0, whose;
    char path[] = "/tmp/tessera-faults-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    unsetenv("TESSERA_DOUBLE_FAIL");
    setenv("TESSERA_DOUBLE_LOG", path, 1);
    run_ranks("nothing fails", codes);
    unsetenv("TESSERA_DOUBLE_LOG");
    for (int i = 0; i < nranks; i++)
        if (codes[i] != DONE)
            fail_msg("rank %d fails by itself: %s", i, shared->said[i]);
    FILE *log = fopen(path, "r");
    assert_non_null(log);
    while (n < CALLS && fscanf(log, "%d %47s %ld\n", &whose, counted[n].name, &counted[n].calls) == 3)
        if (whose == of) /* and nothing in it waits for the device on the host */
            assert_null(strstr(counted[n++].name, "Synchronize"));
    fclose(log);
    unlink(path);
    assert_true(n > 40);
    return n;
}

static long calls_of(const char *name) {
    for (int i = 0; i < CALLS; i++)
        if (strcmp(counted[i].name, name) == 0)
            return counted[i].calls;
    return 0;
}

static int stride = 1;
static int n_runs, n_told;

/* A test that failed may have left its variables, which would fail the next one too. */
static int begin_test(void **state) {
    static const char *const names[] = { "PROBE_DETERMINISTIC",
                                         "PROBE_WINDOWS",
                                         "PROBE_DEAF",
                                         "PROBE_LOST",
                                         "PROBE_TIMEOUT",
                                         "PROBE_DEVICE",
                                         "PROBE_SHARED_GPU",
                                         "NCCL_COMM_BLOCKING",
                                         "NCCL_MULTI_RANK_GPU_ENABLE",
                                         "TESSERA_DOUBLE_FAIL",
                                         "TESSERA_DOUBLE_HANG",
                                         "TESSERA_DOUBLE_LATE",
                                         "TESSERA_DOUBLE_LOG",
                                         "TESSERA_DOUBLE_NCCL_VERSION",
                                         "TESSERA_DOUBLE_DRIVER_VERSION",
                                         "TESSERA_DOUBLE_CAPABILITY",
                                         "TESSERA_DOUBLE_PTX_VERSION",
                                         "TESSERA_DOUBLE_MULTICAST",
                                         "TESSERA_DOUBLE_DEVICES" };
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]);
    n_runs = n_told = 0;
    return 0;
}

static void fail_one(const char *name, long call, int of) {
    char wish[96];
    int codes[RANKS];
    snprintf(wish, sizeof wish, "%s:%ld@%d", name, call, of);
    setenv("TESSERA_DOUBLE_FAIL", wish, 1);
    run_ranks(wish, codes);
    unsetenv("TESSERA_DOUBLE_FAIL");
    const char *said = shared->said[of];
    n_runs++;
    n_told += codes[of] == TOLD;
    if (codes[of] == DONE && !may_pass(name))
        fail_msg("%s: rank %d says nothing", wish, of);
    if (codes[of] == TOLD && (!strstr(said, ": nccl: ") || strchr(said, '\n')))
        fail_msg("%s: rank %d says \"%s\"", wish, of, said);
}

static void fail_every_call(int of) {
    int n = count_calls(of);
    for (int i = 0; i < n; i++) {
        /* The log of a run that polls is never the same twice: a call beyond the last just does not happen. */
        long step = counted[i].calls > 400 ? stride * 20 : counted[i].calls > 40 ? stride * 8 : stride;
        for (long call = 1; call <= counted[i].calls * 9 / 10 || call == 1; call += step)
            if (strncmp(counted[i].name, "cu", 2) == 0 || strncmp(counted[i].name, "nccl", 4) == 0)
                fail_one(counted[i].name, call, of);
    }
    print_message("%d runs, %d of them told of a failure\n", n_runs, n_told);
}

static void test_nccl_faults__any_call_fails_alone_doubles(void **state) {
    (void)state;
    nranks = 1;
    fail_every_call(0);
}

static void test_nccl_faults__any_call_fails_on_one_of_two_ranks_doubles(void **state) {
    (void)state;
    nranks = 2;
    fail_every_call(0);
    fail_every_call(1);
}

static void test_nccl_faults__any_call_fails_in_deterministic_mode_doubles(void **state) {
    (void)state;
    nranks = 3;
    setenv("PROBE_DETERMINISTIC", "1", 1);
    fail_every_call(2);
}

/* With windows, whose making waits for the other rank. */
static void test_nccl_faults__any_call_fails_with_windows_doubles(void **state) {
    (void)state;
    nranks = 2;
    setenv("PROBE_WINDOWS", "on", 1);
    if (stride == 1)
        fail_every_call(1);
    else
        count_calls(1);
    assert_int_equal(calls_of("ncclCommWindowRegister"), 2); /* the world's and the part's */
    assert_int_equal(calls_of("ncclCommWindowDeregister"), 2);
    assert_true(calls_of("collectives-in-windows") > 0);
    for (int call = 1; call <= 2; call++) {
        fail_one("ncclCommWindowRegister", call, 1);
        fail_one("ncclCommWindowDeregister", call, 1);
    }
    assert_true(n_told >= 2);
}

/* The device's work itself fails, some time after it was queued. */
static void test_nccl_faults__work_fails_on_the_device_doubles(void **state) {
    (void)state;
    nranks = 2;
    for (long n = 1; n <= 40; n += stride)
        fail_one("work", n, 1);
    assert_true(n_told > 0);
}

/* ---- a call of NCCL's that does not end -------------------------------------------------------------- */

/* `wish` hangs on rank 1; it says `line`, or, where both wait for the same time, another rank does. */
static void hang_one(const char *wish, int both_wait, const char *line) {
    int codes[RANKS];
    setenv("TESSERA_DOUBLE_HANG", wish, 1);
    int64_t begin = now_ns();
    run_ranks(wish, codes);
    double seconds = (double)(now_ns() - begin) * 1e-9;
    int says = strstr(shared->said[1], line) ||
               (both_wait && (strstr(shared->said[0], line) || strstr(shared->said[0], "not done within"))); /* first */
    if (codes[1] != TOLD || !says || strchr(shared->said[1], '\n'))
        fail_msg("%s: rank 1 ends with %d and says \"%s\", rank 0 says \"%s\", expected \"%s\"", wish, codes[1],
                 shared->said[1], shared->said[0], line);
    if (seconds > (double)LONG_NS * 1e-9 / 2) /* it ended by itself */
        fail_msg("%s: took %.1f s", wish, seconds);
}

/* In a process of its own, since all that it does is wait. */
static const char *the_wish;
static void test_nccl_faults__this_call_ends_in_time_doubles(void **state) {
    (void)state;
    nranks = 2;
    setenv("PROBE_TIMEOUT", "1", 1);
    setenv("PROBE_WINDOWS", "on", 1);
    hang_one(the_wish, 1, "did not end in time");
}

static int hang_alone(const char *wish) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_nccl_faults__this_call_ends_in_time_doubles, begin_test),
    };
    the_wish = wish;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

static pid_t start_alone(const char *wish) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "test_nccl_faults_doubles", "hang", wish, (char *)NULL);
        _exit(99);
    }
    assert_true(child > 0);
    return child;
}

static void test_nccl_faults__call_that_hangs_ends_in_time_doubles(void **state) {
    static const char *const wishes[] = { "ncclCommInitRankConfig:1@1", "ncclCommSplit:1@1",
                                          "ncclGroupEnd:1@1",           "ncclGroupEnd:2@1",
                                          "ncclGroupEnd:7@1",           "ncclCommFinalize:1@1",
                                          "ncclCommWindowRegister:1@1", "ncclCommWindowRegister:2@1" };
    enum { N = sizeof wishes / sizeof *wishes, AT_ONCE = 4 };
    int failed = 0;
    (void)state;
    for (int first = 0; first < N; first += AT_ONCE) {
        pid_t children[AT_ONCE];
        int n = N - first < AT_ONCE ? N - first : AT_ONCE;
        for (int i = 0; i < n; i++)
            children[i] = start_alone(wishes[first + i]);
        for (int i = 0, status; i < n; i++)
            failed |= waitpid(children[i], &status, 0) != children[i] || status != 0;
    }
    assert_false(failed);
}

/* Another thread aborts, as the core does when a rank is lost: PROBE_LOST says that one is, while the call hangs. */
static void test_nccl_faults__abort_ends_a_call_that_hangs_doubles(void **state) {
    (void)state;
    nranks = 2;
    setenv("PROBE_DEAF", "1", 1); /* nobody asks the host */
    setenv("PROBE_LOST", "1", 1);
    hang_one("ncclGroupEnd:4@1", 0, "nccl: the communicator was aborted");
}

/* As before, but the rank is held up where it does not wait for peers: on its way into NCCL, between the calls of a
 * group, between two groups. The abort, which comes meanwhile and has its patience, must not take NCCL's communicator
 * from under it: the double ends a process that uses one that was given back. */
static void test_nccl_faults__abort_waits_for_a_thread_on_its_way_doubles(void **state) {
    static const char *const wishes[] = { "ncclGroupStart:4@1", "ncclAllGather:4@1", "ncclSend:1@1",
                                          "cuLaunchKernel:1@1", "cuMemcpyHtoDAsync:4@1" };
    (void)state;
    nranks = 2;
    setenv("PROBE_DEAF", "1", 1);
    setenv("PROBE_LOST", "1", 1);
    setenv("PROBE_DETERMINISTIC", "1", 1);
    for (size_t i = 0; i < sizeof wishes / sizeof *wishes; i++) {
        int codes[RANKS];
        setenv("TESSERA_DOUBLE_LATE", wishes[i], 1);
        run_ranks(wishes[i], codes);
        for (int rank = 0; rank < nranks; rank++)
            if (codes[rank] != TOLD || strchr(shared->said[rank], '\n'))
                fail_msg("%s: rank %d ends with %d and says \"%s\"", wishes[i], rank, codes[rank], shared->said[rank]);
        if (!strstr(shared->said[1], "nccl: the communicator was aborted"))
            fail_msg("%s: rank 1 says \"%s\"", wishes[i], shared->said[1]);
    }
}

/* The abort, in a thread of its own, is late: who frees memory waits for it. The double ends a process that does not.
 */
static void test_nccl_faults__memory_is_freed_behind_an_abort_doubles(void **state) {
    (void)state;
    nranks = 2;
    setenv("TESSERA_DOUBLE_LATE", "ncclCommAbort:1@1", 1);
    fail_one("ncclGroupEnd", 4, 1);
    assert_int_equal(n_told, 1);
}

/* What hung, ended by another thread; and one whose peer is told of a failure while it waits in it. */
static void test_nccl_faults__abort_ends_the_making_of_a_window_doubles(void **state) {
    (void)state;
    nranks = 2;
    setenv("PROBE_DEAF", "1", 1);
    setenv("PROBE_LOST", "1", 1);
    setenv("PROBE_WINDOWS", "on", 1);
    hang_one("ncclCommWindowRegister:1@1", 0, "nccl: the communicator was aborted");
    hang_one("ncclCommWindowRegister:2@1", 0, "nccl: the communicator was aborted");
}

static void calls_by(const char *version, const char *windows, long made) {
    nranks = 2;
    setenv("PROBE_WINDOWS", windows, 1);
    setenv("TESSERA_DOUBLE_NCCL_VERSION", version, 1);
    count_calls(1);
    assert_int_equal(calls_of("ncclCommWindowRegister"), made);
    assert_int_equal(calls_of("ncclCommWindowDeregister"), made);
}

/* An older NCCL is used without a word; one whose kernels do not end by an abort is named. */
static void test_nccl_faults__windows_are_of_nccl_that_has_them_doubles(void **state) {
    (void)state;
    calls_by("22605", "on", 0);
    assert_null(strstr(host_shared->logged, "windows"));
    calls_by("22707", "off", 0);
    calls_by("22707", "on", 2);
    assert_non_null(strstr(host_shared->logged, "NCCL 2.27.7 does not end collectives in windows when a rank is lost"));
    host_shared->logged[0] = 0;
    calls_by("22907", "on", 2);
    assert_null(strstr(host_shared->logged, "windows"));
}

/* On 2.26 only calls that block are safe. */
static void test_nccl_faults__2_26_works_as_all_calls_block_doubles(void **state) {
    int codes[RANKS];
    (void)state;
    nranks = 3;
    setenv("TESSERA_DOUBLE_NCCL_VERSION", "22602", 1);
    run_ranks("NCCL 2.26", codes);
    for (int i = 0; i < nranks; i++)
        if (codes[i] != DONE)
            fail_msg("rank %d: %s", i, shared->said[i]);
}

/* As older versions of NCCL on GPUs with multicast. */
static void test_nccl_faults__memory_beyond_the_plan_is_said_doubles(void **state) {
    int codes[RANKS];
    (void)state;
    nranks = 1;
    setenv("TESSERA_DOUBLE_MULTICAST", "134217728", 1);
    run_ranks("multicast", codes);
    assert_int_equal(codes[0], DONE);
    assert_non_null(
        strstr(host_shared->logged, "ncclMemAlloc took 134217728 bytes of the GPU for 2097152, as this NCCL rounds"));
}

/* What ranks compare travels with the data. Two joins and two ends, the part's barrier, seven operations with two
 * dtypes, a batch: one group each. */
static void test_nccl_faults__comparing_takes_no_group_of_its_own_doubles(void **state) {
    (void)state;
    nranks = 2;
    count_calls(1);
    assert_int_equal(calls_of("groups-of-nccl"), 2 + 2 + 1 + 14 + 1);
}

/* ---- what is missing or wrong at the start ------------------------------------------------------ */

/* With `name` set to `value`, every rank says so. */
static void must_say(int ranks, const char *name, const char *value, const char *line) {
    int codes[RANKS];
    nranks = ranks;
    setenv(name, value, 1);
    run_ranks(line, codes);
    for (int i = 0; i < ranks; i++) {
        assert_int_equal(codes[i], TOLD);
        if (strstr(shared->said[i], "the run was aborted")) /* the other was faster */
            continue;
        assert_string_equal(shared->said[i], line);
        n_told++;
    }
    assert_true(n_told > 0);
}

static void test_nccl_faults__old_nccl_is_named_doubles(void **state) {
    (void)state;
    must_say(1, "TESSERA_DOUBLE_NCCL_VERSION", "21705",
             "init: -9: nccl: libnccl.so.2 is NCCL 2.17.5, 2.18.0 or later is needed");
}

/* The variable holds over the blocking communicator that is asked for. */
static void test_nccl_faults__variable_against_blocking_is_named_doubles(void **state) {
    (void)state;
    must_say(
        2, "NCCL_COMM_BLOCKING", "0",
        "init: -1: nccl: ncclCommInitRankConfig did not block, as NCCL_COMM_BLOCKING=0 has it: unset that variable");
}

static void old_driver(int version, char *line, size_t room) {
    int built = CUDA_VERSION, oldest = built < 13000 ? 12000 : built / 1000 * 1000;
    snprintf(line, room,
             "init: -9: nccl: the NVIDIA driver is for CUDA %d.%d; this build, made with CUDA %d.%d, needs %d.%d or "
             "later",
             version / 1000, version % 1000 / 10, built / 1000, built % 1000 / 10, oldest / 1000, oldest % 1000 / 10);
}

static void test_nccl_faults__old_driver_is_named_doubles(void **state) {
    char line[200];
    (void)state;
    old_driver(11080, line, sizeof line);
    must_say(1, "TESSERA_DOUBLE_DRIVER_VERSION", "11080", line);
}

/* The double looks at the kernels' image: a driver of the major version before does not take it. */
static void test_nccl_faults__driver_of_the_version_before_is_named_doubles(void **state) {
    char version[16], line[200];
    (void)state;
    if (CUDA_VERSION < 13000)
        skip(); /* a driver for 12.0 is the oldest there is */
    snprintf(version, sizeof version, "%d", CUDA_VERSION / 1000 * 1000 - 10);
    old_driver(CUDA_VERSION / 1000 * 1000 - 10, line, sizeof line);
    must_say(1, "TESSERA_DOUBLE_DRIVER_VERSION", version, line);
}

static void kernels_do_not_load(const char *chip, const char *capability, const char *error) {
    char line[400];
    int built = CUDA_VERSION;
    snprintf(line, sizeof line,
             "init: -8: nccl: loading kernels made with CUDA %d.%d on a GPU of compute capability %s with a driver for "
             "CUDA %d.%d failed: %s",
             built / 1000, built % 1000 / 10, capability, built / 1000, built % 1000 / 10, error);
    must_say(1, "TESSERA_DOUBLE_CAPABILITY", chip, line);
}

static void test_nccl_faults__chip_without_kernels_is_named_doubles(void **state) {
    (void)state;
    kernels_do_not_load("75", "7.5",
                        "CUDA_ERROR_NO_BINARY_FOR_GPU 209 (no kernel image is available for execution on the device)");
}

/* A chip of the future takes PTX only, which a driver of an earlier minor version does not compile. */
static void test_nccl_faults__ptx_newer_than_the_driver_is_named_doubles(void **state) {
    char older[16];
    (void)state;
    snprintf(older, sizeof older, "%d", CUDA_VERSION - 10);
    setenv("TESSERA_DOUBLE_PTX_VERSION", older, 1);
    kernels_do_not_load("190", "19.0",
                        "CUDA_ERROR_UNSUPPORTED_PTX_VERSION 222 (the provided PTX was compiled with an unsupported "
                        "toolchain.)");
}

static void test_nccl_faults__only_visible_gpu_serves_any_local_rank_doubles(void **state) {
    int codes[RANKS];
    (void)state;
    nranks = 1;
    setenv("PROBE_DEVICE", "3", 1);
    setenv("TESSERA_DOUBLE_DEVICES", "1", 1);
    run_ranks("one visible GPU", codes);
    assert_int_equal(codes[0], DONE);
}

static void test_nccl_faults__no_gpu_is_told_doubles(void **state) {
    (void)state;
    must_say(1, "TESSERA_DOUBLE_DEVICES", "0",
             "init: -8: nccl: the NVIDIA driver finds no GPU (is one visible? CUDA_VISIBLE_DEVICES)");
}

static void test_nccl_faults__more_ranks_than_gpus_is_told_doubles(void **state) {
    (void)state;
    must_say(1, "PROBE_DEVICE", "7",
             "init: -1: nccl: GPU 7 asked for, this host has 4; a rank takes the one of its LOCAL_RANK");
}

static void test_nccl_faults__two_ranks_on_one_gpu_are_named_doubles(void **state) {
    char line[400], name[64] = "";
    (void)state;
    gethostname(name, sizeof name - 1);
    snprintf(line, sizeof line,
             "init: -1: nccl: ranks 0 and 1 are both on GPU 00de:02:00.0 of host %.40s, and each needs one of its own "
             "(LOCAL_RANK)",
             name);
    must_say(2, "PROBE_DEVICE", "2", line);
}

/* Where it is asked for, and NCCL can. */
static void test_nccl_faults__two_ranks_on_one_gpu_are_allowed_by_choice_doubles(void **state) {
    int codes[RANKS];
    char line[400], name[64] = "";
    (void)state;
    gethostname(name, sizeof name - 1);
    nranks = 2;
    setenv("PROBE_DEVICE", "2", 1);
    setenv("PROBE_SHARED_GPU", "on", 1);
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    setenv("TESSERA_DOUBLE_NCCL_VERSION", "23000", 1);
    run_ranks("two ranks on one GPU", codes);
    for (int i = 0; i < nranks; i++)
        if (codes[i] != DONE)
            fail_msg("rank %d: %s", i, shared->said[i]);
    snprintf(line, sizeof line,
             "init: -1: nccl: ranks 0 and 1 are both on GPU 00de:02:00.0 of host %.40s, which takes NCCL 2.30.0 or "
             "later; here is 2.29.7",
             name);
    must_say(2, "TESSERA_DOUBLE_NCCL_VERSION", "22907", line);
}

/* The two libraries are looked for where the loader looks: a folder with one of them, then with neither. An empty file
 * stands before an NCCL that the machine may have. */
static void without_libraries(const char *line, int with_driver) {
    char folder[] = "/tmp/tessera-nccl-XXXXXX", from[2][4200], to[2][64], empty[64];
    const char *doubles = getenv("DOUBLES"), *names[] = { "libcuda.so.1", "libdoubles.so" };
    int status;
    assert_non_null(mkdtemp(folder));
    for (int i = 0; i < 2; i++) {
        snprintf(from[i], sizeof from[i], "%s/%s", doubles, names[i]);
        snprintf(to[i], sizeof to[i], "%s/%s", folder, names[i]);
        if (with_driver)
            assert_int_equal(symlink(from[i], to[i]), 0);
    }
    snprintf(empty, sizeof empty, "%s/libnccl.so.2", folder);
    close(open(empty, O_CREAT | O_WRONLY, 0700));
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) { /* the loader reads the variable when a program starts */
        setenv("LD_LIBRARY_PATH", folder, 1);
        setenv("PROBE_LINE", line, 1);
        execl("/proc/self/exe", "test_nccl_faults_doubles", "alone", (char *)NULL);
        _exit(99);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    for (int i = 0; with_driver && i < 2; i++)
        unlink(to[i]);
    unlink(empty);
    rmdir(folder);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void test_nccl_faults__missing_libraries_are_named_doubles(void **state) {
    (void)state;
    without_libraries("init: -2: nccl: no NVIDIA driver here: libcuda.so.1 cannot be loaded", 0);
    without_libraries("init: -2: nccl: cannot load libnccl.so.2 (is NCCL installed, or its folder in LD_LIBRARY_PATH?)",
                      1);
}

/* A process of its own with one rank; PROBE_LINE is how its message begins. */
static int alone(void) {
    const char *line = getenv("PROBE_LINE");
    nranks = 1;
    int code = be_a_rank();
    if (code == TOLD && strncmp(shared->said[0], line, strlen(line)) == 0 && !strchr(shared->said[0], '\n'))
        return 0;
    fprintf(stderr, "%d: \"%s\", expected \"%s\"\n", code, shared->said[0], line);
    return 1;
}

int main(int argc, char **argv) {
    int by_itself = argc > 1 && strcmp(argv[1], "alone") == 0, hangs = argc > 2 && strcmp(argv[1], "hang") == 0;
    stride = argc > 1 && !by_itself && !hangs ? atoi(argv[1]) : 9;
    if (!fault_ranks_open() || stride < 1)
        return 1;
    if (by_itself)
        return alone();
    if (hangs)
        return hang_alone(argv[2]);
    if (!getenv("PLUGIN")) {
        printf("skipped: PLUGIN does not name comm-nccl\n");
        return 77;
    }
#define TEST(name) cmocka_unit_test_setup(name, begin_test)
    const struct CMUnitTest tests[] = {
        TEST(test_nccl_faults__any_call_fails_alone_doubles),
        TEST(test_nccl_faults__any_call_fails_on_one_of_two_ranks_doubles),
        TEST(test_nccl_faults__any_call_fails_in_deterministic_mode_doubles),
        TEST(test_nccl_faults__any_call_fails_with_windows_doubles),
        TEST(test_nccl_faults__work_fails_on_the_device_doubles),
        TEST(test_nccl_faults__call_that_hangs_ends_in_time_doubles),
        TEST(test_nccl_faults__abort_ends_a_call_that_hangs_doubles),
        TEST(test_nccl_faults__abort_waits_for_a_thread_on_its_way_doubles),
        TEST(test_nccl_faults__memory_is_freed_behind_an_abort_doubles),
        TEST(test_nccl_faults__abort_ends_the_making_of_a_window_doubles),
        TEST(test_nccl_faults__windows_are_of_nccl_that_has_them_doubles),
        TEST(test_nccl_faults__2_26_works_as_all_calls_block_doubles),
        TEST(test_nccl_faults__memory_beyond_the_plan_is_said_doubles),
        TEST(test_nccl_faults__comparing_takes_no_group_of_its_own_doubles),
        TEST(test_nccl_faults__old_nccl_is_named_doubles),
        TEST(test_nccl_faults__variable_against_blocking_is_named_doubles),
        TEST(test_nccl_faults__old_driver_is_named_doubles),
        TEST(test_nccl_faults__driver_of_the_version_before_is_named_doubles),
        TEST(test_nccl_faults__chip_without_kernels_is_named_doubles),
        TEST(test_nccl_faults__ptx_newer_than_the_driver_is_named_doubles),
        TEST(test_nccl_faults__only_visible_gpu_serves_any_local_rank_doubles),
        TEST(test_nccl_faults__no_gpu_is_told_doubles),
        TEST(test_nccl_faults__more_ranks_than_gpus_is_told_doubles),
        TEST(test_nccl_faults__two_ranks_on_one_gpu_are_named_doubles),
        TEST(test_nccl_faults__two_ranks_on_one_gpu_are_allowed_by_choice_doubles),
        TEST(test_nccl_faults__missing_libraries_are_named_doubles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
