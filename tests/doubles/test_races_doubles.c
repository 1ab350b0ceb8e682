/* SPDX-License-Identifier: BSD-3-Clause */
/* TESSERA_DOUBLE_RACES: work of two streams on the same bytes is told when nothing orders it, also when it happens to
 * come in the right order; and is not told when an event, the host, the null stream or a graph orders it. And
 * work counts as over only when the host has waited or asked. */
#include "driver.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { BYTES = 4096, TOLD = 55 };
static CUstream a, b;
static CUevent event;
static CUdeviceptr x, y;

static void must(CUresult r) {
    if (r != CUDA_SUCCESS) {
        fprintf(stderr, "CUDA error %d\n", (int)r);
        _exit(1);
    }
}

static void begin(void) {
    CUcontext context;
    must(cuInit(0));
    must(cuDevicePrimaryCtxRetain(&context, 0));
    must(cuCtxPushCurrent(context));
    must(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    must(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    must(cuEventCreate(&event, 0));
    must(cuMemAlloc(&x, BYTES));
    must(cuMemAlloc(&y, BYTES));
}

static void end(void) {
    CUcontext context;
    must(cuMemFree(x));
    must(cuMemFree(y));
    must(cuEventDestroy(event));
    must(cuStreamDestroy(a));
    must(cuStreamDestroy(b));
    must(cuCtxPopCurrent(&context));
    must(cuDevicePrimaryCtxRelease(0));
}

/* x in stream a; y of x in stream b. Long enough between them that the first is over. */
static void write_x(CUstream s) {
    must(cuMemsetD8Async(x, 1, BYTES, s));
}
static void read_x(CUstream s) {
    must(cuMemcpyDtoDAsync(y + 512, x + 512, 512, s));
}
static void order(CUstream first, CUstream then) {
    must(cuEventRecord(event, first));
    must(cuStreamWaitEvent(then, event, 0));
}

/* ---- told ----------------------------------------------------------------------------------------- */

static void nothing_between(void) {
    write_x(a);
    usleep(50000);
    read_x(b);
}
static void event_comes_too_early(void) {
    must(cuEventRecord(event, a));
    write_x(a);
    must(cuStreamWaitEvent(b, event, 0));
    usleep(50000);
    read_x(b);
}
static void wait_comes_too_late(void) {
    write_x(a);
    must(cuEventRecord(event, a));
    usleep(50000);
    read_x(b);
    must(cuStreamWaitEvent(b, event, 0));
}
static void written_again_before_it_was_read(void) {
    write_x(a);
    order(a, b);
    read_x(b);
    usleep(50000);
    write_x(a);
}
static void host_asked_another_stream(void) {
    write_x(a);
    must(cuStreamSynchronize(b));
    usleep(50000);
    read_x(b);
}

/* Two branches of one graph: `ordered` or not. */
static void launch_branches(int ordered) {
    CUgraph graph;
    CUgraphExec exec;
    must(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    order(a, b);
    write_x(a);
    if (ordered)
        order(a, b);
    read_x(b);
    order(b, a);
    must(cuStreamEndCapture(a, &graph));
    must(cuGraphInstantiateWithFlags(&exec, graph, 0));
    must(cuGraphLaunch(exec, a));
    must(cuStreamSynchronize(a));
    must(cuGraphExecDestroy(exec));
    must(cuGraphDestroy(graph));
}
static void branches_of_a_graph(void) {
    launch_branches(0);
}
/* Through a branch that does nothing itself, before or behind the work. */
static void launch_branches_by_way_of(int ordered) {
    CUgraph graph;
    CUgraphExec exec;
    CUstream c;
    must(cuStreamCreate(&c, CU_STREAM_NON_BLOCKING));
    must(cuStreamBeginCapture(c, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    order(c, a);
    if (ordered)
        write_x(a);
    order(a, c);
    order(c, b);
    if (!ordered)
        write_x(a);
    read_x(b);
    order(a, c);
    order(b, c);
    must(cuStreamEndCapture(c, &graph));
    must(cuGraphInstantiateWithFlags(&exec, graph, 0));
    must(cuGraphLaunch(exec, c));
    must(cuStreamSynchronize(c));
    must(cuGraphExecDestroy(exec));
    must(cuGraphDestroy(graph));
    must(cuStreamDestroy(c));
}
static void written_behind_an_empty_branch(void) {
    launch_branches_by_way_of(0);
}

/* ---- not told ------------------------------------------------------------------------------------- */

static void event_between(void) {
    write_x(a);
    order(a, b);
    read_x(b);
    order(b, a);
    write_x(a);
}
static void host_between(void) {
    write_x(a);
    must(cuStreamSynchronize(a));
    read_x(b);
    must(cuEventRecord(event, b));
    must(cuEventSynchronize(event));
    write_x(a);
}
static void third_stream_between(void) {
    CUstream c;
    must(cuStreamCreate(&c, CU_STREAM_NON_BLOCKING));
    write_x(a);
    order(a, c);
    order(c, b);
    read_x(b);
    must(cuStreamDestroy(c));
}
static void null_stream_between(void) {
    CUstream first, then;
    must(cuStreamCreate(&first, CU_STREAM_DEFAULT));
    must(cuStreamCreate(&then, CU_STREAM_DEFAULT));
    write_x(first);
    must(cuMemsetD8Async(y, 0, 16, NULL));
    read_x(then);
    must(cuStreamDestroy(first));
    must(cuStreamDestroy(then));
}
static void other_bytes(void) {
    must(cuMemsetD8Async(x, 1, 512, a));
    read_x(b);
    must(cuMemsetD8Async(x + 1024, 1, 512, a));
}
static void both_read(void) {
    read_x(a);
    must(cuMemcpyDtoDAsync(y + 2048, x, 1024, b));
}
static void ordered_branches_of_a_graph(void) {
    launch_branches(1);
}
static void empty_branch_between(void) {
    launch_branches_by_way_of(1);
}
/* Memory may go when the host knows that work on it is over, not when it happens to be. */
static void over_when_the_host_knows(void) {
    write_x(a);
    usleep(50000);
    if (!double__device_works(0))
        _exit(1);
    must(cuStreamSynchronize(a));
    if (double__device_works(0))
        _exit(2);
}

/* ---- each in a process of its own ----------------------------------------------------------------- */

static int run(void (*what)(void)) {
    int status;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        char left[16];
        snprintf(left, sizeof left, "%d", TOLD);
        setenv("TESSERA_DOUBLE_LEAKS", left, 1);
        setenv("TESSERA_DOUBLE_RACES", "1", 1);
        begin();
        what();
        must(cuCtxSynchronize());
        end();
        exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void test_races__unordered_work_is_told(void **state) {
    void (*const cases[])(void) = { nothing_between,
                                    event_comes_too_early,
                                    wait_comes_too_late,
                                    written_again_before_it_was_read,
                                    host_asked_another_stream,
                                    branches_of_a_graph,
                                    written_behind_an_empty_branch };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (run(cases[i]) != TOLD)
            fail_msg("case %zu is not told", i);
}

static void test_races__ordered_work_is_not_told(void **state) {
    void (*const cases[])(void) = { event_between,
                                    host_between,
                                    third_stream_between,
                                    null_stream_between,
                                    other_bytes,
                                    both_read,
                                    ordered_branches_of_a_graph,
                                    empty_branch_between,
                                    over_when_the_host_knows };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (run(cases[i]) != 0)
            fail_msg("case %zu is told", i);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_races__unordered_work_is_told),
        cmocka_unit_test(test_races__ordered_work_is_not_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
