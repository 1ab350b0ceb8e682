/* SPDX-License-Identifier: BSD-3-Clause */
/* The double of NCCL: as strict and as slow to notice as the real one. Ranks are processes. */
#include "nccl_double.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS = 3, ELEMS = 100 };

static struct {
    ncclUniqueId id;
    int ready, flag;
    char wrong[RANKS][200]; /* what a rank found, "" when all was well */
} * shared;
static int rank, nranks;
static CUstream stream;
static CUdeviceptr memory; /* send at 0, recv at 4096 */
static ncclComm_t comm;

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition) && !shared->wrong[rank][0])                                                                   \
            snprintf(shared->wrong[rank], sizeof shared->wrong[rank], "%d: %s", __LINE__, #condition);                 \
    } while (0)

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void wait_flag(int *flag, int at_least) {
    while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) < at_least)
        usleep(200);
}

/* Asks until nothing is in progress. */
static ncclResult_t settle(ncclResult_t r) {
    while (r == ncclInProgress) {
        usleep(100);
        if (ncclCommGetAsyncError(comm, &r) != ncclSuccess)
            return ncclInternalError;
    }
    return r;
}

static void join_so(int device, int blocking) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    CUcontext context;
    config.blocking = blocking;
    CHECK(cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS);
    CHECK(cuCtxPushCurrent(context) == CUDA_SUCCESS);
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    CHECK(cuMemAlloc(&memory, 8192) == CUDA_SUCCESS);
    if (rank == 0) {
        CHECK(ncclGetUniqueId(&shared->id) == ncclSuccess);
        __atomic_store_n(&shared->ready, 1, __ATOMIC_RELEASE);
    }
    wait_flag(&shared->ready, 1);
    config.splitShare = 2;
    CHECK(ncclCommInitRankConfig(&comm, nranks, shared->id, rank, &config) == ncclInvalidArgument);
    config.splitShare = NCCL_CONFIG_UNDEF_INT;
    CHECK(ncclCommInitRankConfig(&comm, nranks, shared->id, rank, &config) ==
          (blocking ? ncclSuccess : ncclInProgress));
}

static void join(int device) {
    join_so(device, 0);
}

static void leave(int device) {
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(cuStreamDestroy(stream) == CUDA_SUCCESS);
    CHECK(cuMemFree(memory) == CUDA_SUCCESS);
    cuCtxPopCurrent(NULL);
    cuDevicePrimaryCtxRelease(device);
}

static void *recv_at(void) {
    return (void *)(memory + 4096);
}

/* ---- what ranks do ------------------------------------------------------------------------------ */

/* 1, 2^-24 and 2^-24: the tree gives 1 on every rank, a ring that begins elsewhere does not. */
static void sums_go_round(void) {
    float send[RANKS] = { 0 }, got = 0;
    join(rank);
    CHECK(settle(ncclInProgress) == ncclSuccess);
    for (int i = 0; i < nranks; i++)
        send[i] = rank == 0 ? 1 : 0x1p-24f;
    CHECK(cuMemcpyHtoD(memory, send, sizeof send) == CUDA_SUCCESS);
    CHECK(settle(ncclReduceScatter((void *)memory, recv_at(), 1, ncclFloat32, ncclSum, comm, stream)) == ncclSuccess);
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(cuMemcpyDtoH(&got, (CUdeviceptr)recv_at(), 4) == CUDA_SUCCESS);
    CHECK(got == (rank == 0 ? 1.0f + 0x1p-23f : 1.0f)); /* from rank 1 on: the small ones first */
    CHECK(settle(ncclCommFinalize(comm)) == ncclSuccess);
    CHECK(ncclCommDestroy(comm) == ncclSuccess);
    leave(rank);
}

/* A communicator in progress takes no call, and every group is in progress. Rank 0's is while rank 1 has not joined. */
static void progress_must_be_awaited(void) {
    int in_progress = 0;
    if (rank == 1)
        wait_flag(&shared->flag, 1);
    join(rank);
    if (rank == 0) {
        CHECK(ncclAllGather((void *)memory, recv_at(), 1, ncclInt32, comm, stream) == ncclInvalidArgument);
        __atomic_store_n(&shared->flag, 1, __ATOMIC_RELEASE);
    }
    CHECK(settle(ncclInProgress) == ncclSuccess);
    for (int i = 0; i < 200; i++) {
        ncclResult_t r = ncclAllGather((void *)memory, recv_at(), 1, ncclInt32, comm, stream);
        in_progress += r == ncclInProgress;
        CHECK(settle(r) == ncclSuccess);
    }
    CHECK(in_progress == 200);
    CHECK(ncclAllGather((void *)memory, recv_at(), 1025, ncclInt32, comm, stream) == ncclInvalidArgument);
    CHECK(ncclAllGather((void *)memory, recv_at(), 1, ncclInt32, comm, (cudaStream_t)&in_progress) ==
          ncclInvalidArgument);
    CHECK(ncclGroupEnd() == ncclInvalidUsage);
    CHECK(ncclCommDestroy(comm) == ncclSuccess);
    leave(rank);
}

/* Who asks for another count waits for ever, as do the others, until each aborts. */
static void disagreement_hangs(void) {
    ncclResult_t state;
    join(rank);
    CHECK(settle(ncclInProgress) == ncclSuccess);
    CHECK(settle(ncclAllGather((void *)memory, recv_at(), rank == 0 ? 4 : 5, ncclInt32, comm, stream)) == ncclSuccess);
    usleep(100000);
    CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
    CHECK(ncclCommGetAsyncError(comm, &state) == ncclSuccess && state == ncclSuccess);
    __atomic_add_fetch(&shared->flag, 1, __ATOMIC_ACQ_REL);
    wait_flag(&shared->flag, nranks);
    CHECK(ncclCommAbort(comm) == ncclSuccess);
    leave(rank);
}

static int returned; /* the call that blocks has */
static void *gather_once(void *arg) {
    CUcontext context = arg;
    CHECK(cuCtxPushCurrent(context) == CUDA_SUCCESS);
    ncclResult_t r = ncclAllGather((void *)memory, recv_at(), 4, ncclInt32, comm, stream);
    __atomic_store_n(&returned, 1, __ATOMIC_RELEASE);
    CHECK(r == ncclInternalError);
    cuCtxPopCurrent(NULL);
    return NULL;
}

/* The last rank never comes to the first collective: who called it is blocked in it until another thread aborts. */
static void first_call_blocks_for_its_peers(void) {
    pthread_t thread;
    CUcontext context;
    join_so(rank, 1);
    cuCtxGetCurrent(&context);
    if (rank < nranks - 1) {
        CHECK(pthread_create(&thread, NULL, gather_once, context) == 0);
        usleep(100000);
        CHECK(!__atomic_load_n(&returned, __ATOMIC_ACQUIRE));
        CHECK(ncclCommAbort(comm) == ncclSuccess);
        pthread_join(thread, NULL);
        __atomic_add_fetch(&shared->flag, 1, __ATOMIC_ACQ_REL);
    } else {
        wait_flag(&shared->flag, nranks - 1);
        CHECK(ncclCommAbort(comm) == ncclSuccess);
    }
    leave(rank);
}

/* TESSERA_DOUBLE_HANG: the third one, of rank 0; the others go on. */
static void wanted_call_hangs_until_aborted(void) {
    pthread_t thread;
    CUcontext context;
    if (rank == 0)
        setenv("TESSERA_DOUBLE_HANG", "ncclAllGather:3", 1);
    join_so(rank, 1);
    cuCtxGetCurrent(&context);
    for (int i = 0; i < 2; i++)
        CHECK(ncclAllGather((void *)memory, recv_at(), 4, ncclInt32, comm, stream) == ncclSuccess);
    if (rank == 0) {
        CHECK(pthread_create(&thread, NULL, gather_once, context) == 0);
        usleep(100000);
        CHECK(!__atomic_load_n(&returned, __ATOMIC_ACQUIRE));
        CHECK(ncclCommAbort(comm) == ncclSuccess);
        pthread_join(thread, NULL);
    } else {
        CHECK(ncclAllGather((void *)memory, recv_at(), 4, ncclInt32, comm, stream) == ncclSuccess);
        usleep(20000);
        CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
        CHECK(ncclCommAbort(comm) == ncclSuccess);
    }
    leave(rank);
}

/* 2.26 and calls that do not block: now and then one is never through. */
static void version_2_26_hangs_unblocked(void) {
    ncclResult_t state = ncclSuccess;
    setenv("TESSERA_DOUBLE_NCCL_VERSION", "22602", 1);
    join(rank);
    CHECK(settle(ncclInProgress) == ncclSuccess);
    CHECK(settle(ncclAllGather((void *)memory, recv_at(), 4, ncclInt32, comm, stream)) == ncclSuccess);
    CHECK(ncclAllGather((void *)memory, recv_at(), 4, ncclInt32, comm, stream) == ncclInProgress);
    usleep(100000);
    CHECK(ncclCommGetAsyncError(comm, &state) == ncclSuccess && state == ncclInProgress);
    CHECK(ncclCommAbort(comm) == ncclSuccess);
    leave(rank);
}

static void death(int seen) {
    ncclResult_t state = ncclSuccess;
    join(rank);
    CHECK(settle(ncclInProgress) == ncclSuccess);
    CHECK(settle(ncclAllGather((void *)memory, recv_at(), 4, ncclInt32, comm, stream)) == ncclSuccess);
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    __atomic_add_fetch(&shared->flag, 1, __ATOMIC_ACQ_REL);
    if (rank == nranks - 1) {
        wait_flag(&shared->flag, nranks);
        kill(getpid(), SIGKILL);
    }
    ncclResult_t r = settle(ncclAllGather((void *)memory, recv_at(), 4, ncclInt32, comm, stream));
    CHECK(r == ncclSuccess || (seen && r == ncclRemoteError));
    for (double late = now() + (seen ? 10 : 0.3); state == ncclSuccess && now() < late; usleep(1000))
        CHECK(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
    CHECK(state == (seen ? ncclRemoteError : ncclSuccess));
    CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY); /* only an abort ends it */
    CHECK(ncclCommAbort(comm) == ncclSuccess);
    leave(rank);
}
static void death_is_seen(void) {
    death(1);
}
static void death_is_not_seen(void) {
    setenv("TESSERA_DOUBLE_NCCL_DEATH", "hang", 1);
    death(0);
}

static void one_gpu_for_two_ranks(void) {
    join(0);
    CHECK(settle(ncclInProgress) == ncclInvalidUsage);
    CHECK(ncclCommAbort(comm) == ncclSuccess);
    leave(0);
}

/* Two communicators of one process, and streams of their own: pieces of one communicator keep their order on any
 * stream. */
static void streams_share_a_communicator(void) {
    CUstream other;
    int32_t got[2 * RANKS], *host;
    join(rank);
    CHECK(settle(ncclInProgress) == ncclSuccess);
    CHECK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    CHECK(cuMemHostAlloc((void **)&host, 4, 0) == CUDA_SUCCESS);
    CHECK(cuMemsetD32(memory, 7 + (unsigned)rank, 1) == CUDA_SUCCESS);
    CHECK(settle(ncclAllGather((void *)memory, recv_at(), 1, ncclInt32, comm, stream)) == ncclSuccess);
    CHECK(settle(ncclAllReduce(recv_at(), (char *)recv_at() + 4 * RANKS, RANKS, ncclInt32, ncclSum, comm, other)) ==
          ncclSuccess);
    CHECK(cuStreamSynchronize(other) == CUDA_SUCCESS && cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(cuMemcpyDtoH(got, (CUdeviceptr)recv_at(), sizeof got) == CUDA_SUCCESS);
    for (int i = 0; i < nranks; i++)
        CHECK(got[i] == 7 + i && got[RANKS + i] == nranks * (7 + i));
    CHECK(cuMemFreeHost(host) == CUDA_SUCCESS && cuStreamDestroy(other) == CUDA_SUCCESS);
    CHECK(ncclCommDestroy(comm) == ncclSuccess);
    leave(rank);
}

/* Two communicators of the same ranks, from one parent. `shares`: splitShare of the parent. */
static ncclComm_t second;
static void split_twice(int shares) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t parent;
    config.splitShare = shares;
    join_so(rank, 1);
    CHECK(ncclCommSplit(comm, 0, rank, &parent, &config) == ncclSuccess);
    config.splitShare = 1; /* the child's own choice is for its children */
    CHECK(ncclCommDestroy(comm) == ncclSuccess);
    CHECK(ncclCommSplit(parent, 0, rank, &comm, &config) == ncclSuccess);
    CHECK(ncclCommSplit(parent, 0, rank, &second, &config) == ncclSuccess);
    CHECK(ncclCommDestroy(parent) == ncclSuccess);
}

static void *abort_second(void *nothing) {
    CHECK(ncclCommAbort(second) == ncclSuccess);
    return nothing;
}

/* Beside each other, as each waits for the other's work. */
static void end_both(CUstream other) {
    pthread_t thread;
    CHECK(cuStreamDestroy(other) == CUDA_SUCCESS);
    CHECK(pthread_create(&thread, NULL, abort_second, NULL) == 0);
    CHECK(ncclCommAbort(comm) == ncclSuccess);
    CHECK(pthread_join(thread, NULL) == 0);
    leave(rank);
}

static void gather_at(ncclComm_t c, CUstream s, int place) {
    char *at = (char *)memory + 1024 * place;
    CHECK(ncclAllGather(at, at + 512, 1, ncclInt32, c, s) == ncclSuccess);
}

/* Both communicators' first groups connect; then rank 1 begins with the other one. */
static void two_orders_hang(void) {
    CUstream other;
    split_twice(0);
    CHECK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    for (int i = 0; i < 2; i++) {
        gather_at(comm, stream, 0);
        gather_at(second, other, 1);
    }
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS && cuStreamSynchronize(other) == CUDA_SUCCESS);
    gather_at(rank == 0 ? comm : second, rank == 0 ? stream : other, rank == 0 ? 0 : 1);
    gather_at(rank == 0 ? second : comm, rank == 0 ? other : stream, rank == 0 ? 1 : 0);
    usleep(100000);
    CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY && cuStreamQuery(other) == CUDA_ERROR_NOT_READY);
    __atomic_add_fetch(&shared->flag, 1, __ATOMIC_ACQ_REL);
    wait_flag(&shared->flag, nranks);
    end_both(other);
}

/* Rank 1 holds up its first reduction. The gather behind it, of the other communicator, passes it unless both share. */
static int passes_reduction(int shares) {
    CUstream other;
    int passed;
    if (rank == 1)
        setenv("TESSERA_DOUBLE_OVERTAKE", shares ? "ncclReduceScatter:1:1" : "ncclReduceScatter:1:15", 1);
    split_twice(shares);
    CHECK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    CHECK(ncclReduceScatter((void *)memory, recv_at(), 1, ncclInt32, ncclSum, comm, stream) == ncclSuccess);
    gather_at(second, other, 1);
    CHECK(cuStreamSynchronize(other) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    passed = double__counted("reductions-overtaken") == 1;
    __atomic_add_fetch(&shared->flag, 1, __ATOMIC_ACQ_REL);
    wait_flag(&shared->flag, nranks);
    end_both(other);
    return passed;
}
static void apart_is_passed(void) {
    CHECK(passes_reduction(0) == (rank == 1));
}
static void shared_is_not_passed(void) {
    CHECK(!passes_reduction(1));
}

/* ---- windows ------------------------------------------------------------------------------------ */

enum { WINDOW = 2 << 20 };
static void *piece; /* of ncclMemAlloc */
static ncclWindow_t window;

static void meet(int n) {
    __atomic_add_fetch(&shared->flag, 1, __ATOMIC_ACQ_REL);
    wait_flag(&shared->flag, n * nranks);
}

static ncclResult_t make_window(uint64_t offset, uint64_t bytes) {
    return ncclCommWindowRegister(comm, (char *)piece + offset, bytes, &window, NCCL_WIN_COLL_SYMMETRIC);
}

static ncclResult_t gather_into(uint64_t offset) {
    return ncclAllGather((void *)memory, (char *)piece + offset, 1, ncclInt32, comm, stream);
}

/* What a rank finds alone, it finds without the others. */
static void window_of_unfit_memory_is_refused(void) {
    join_so(rank, 1);
    CHECK(ncclMemAlloc(&piece, WINDOW) == ncclSuccess);
    CHECK(make_window(100, 4096) == ncclInvalidArgument);
    CHECK(make_window(0, 5000) == ncclInvalidArgument);
    CHECK(make_window(0, 2 * WINDOW) != ncclSuccess);
    CHECK(ncclCommWindowRegister(comm, (void *)memory, 4096, &window, 1) == ncclUnhandledCudaError);
    CHECK(ncclCommWindowRegister(comm, piece, WINDOW, &window, 6) == ncclInvalidArgument);
    CHECK(ncclCommWindowDeregister(comm, (ncclWindow_t)piece) == ncclInvalidArgument);
    setenv("TESSERA_DOUBLE_NCCL_VERSION", "22605", 1);
    CHECK(make_window(0, WINDOW) == ncclInvalidUsage);
    unsetenv("TESSERA_DOUBLE_NCCL_VERSION");
    CHECK(make_window(0, WINDOW) == ncclSuccess && window);
    CHECK(make_window(0, WINDOW) == ncclInvalidArgument); /* twice */
    CHECK(gather_into(64) == ncclSuccess);
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(double__counted("collectives-in-windows") == 1);
    CHECK(ncclCommWindowDeregister(comm, window) == ncclSuccess);
    CHECK(ncclMemFree(piece) == ncclSuccess);
    CHECK(ncclCommDestroy(comm) == ncclSuccess);
    leave(rank);
}

static void window_of_another_size_is_refused(void) {
    join_so(rank, 1);
    CHECK(ncclMemAlloc(&piece, WINDOW) == ncclSuccess);
    CHECK(make_window(0, rank ? WINDOW : WINDOW / 2) == ncclInvalidArgument && !window);
    CHECK(ncclMemFree(piece) == ncclSuccess);
    CHECK(ncclCommAbort(comm) == ncclSuccess);
    leave(rank);
}

static void *abort_soon(void *arg) {
    (void)arg;
    usleep(50000);
    CHECK(ncclCommAbort(comm) == ncclSuccess);
    return NULL;
}

/* Rank 1 makes none: rank 0 waits until it is aborted. */
static void window_waits_for_all_ranks(void) {
    pthread_t thread;
    join_so(rank, 1);
    CHECK(ncclMemAlloc(&piece, WINDOW) == ncclSuccess);
    if (rank == 0) {
        CHECK(pthread_create(&thread, NULL, abort_soon, NULL) == 0);
        CHECK(make_window(0, WINDOW) != ncclSuccess && !window);
        CHECK(pthread_join(thread, NULL) == 0);
    }
    meet(1);
    if (rank == 1)
        CHECK(ncclCommAbort(comm) == ncclSuccess);
    CHECK(ncclMemFree(piece) == ncclSuccess);
    leave(rank);
}

/* Both lie in the same window, at another place. An abort takes the window too. */
static void other_place_in_a_window_hangs(void) {
    join_so(rank, 1);
    CHECK(ncclMemAlloc(&piece, WINDOW) == ncclSuccess);
    CHECK(make_window(0, WINDOW) == ncclSuccess);
    CHECK(gather_into(rank ? 64 : 128) == ncclSuccess);
    usleep(50000);
    CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
    meet(1);
    CHECK(ncclCommAbort(comm) == ncclSuccess);
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(ncclMemFree(piece) == ncclSuccess);
    leave(rank);
}

static void window_outlives_its_memory(void) {
    join_so(rank, 1);
    CHECK(ncclMemAlloc(&piece, WINDOW) == ncclSuccess);
    CHECK(make_window(0, WINDOW) == ncclSuccess);
    CHECK(ncclMemFree(piece) == ncclSuccess);
    CHECK(ncclCommWindowDeregister(comm, window) == ncclSuccess);
    CHECK(ncclCommDestroy(comm) == ncclSuccess);
    leave(rank);
}

static void window_is_forgotten(void) {
    join_so(rank, 1);
    CHECK(ncclMemAlloc(&piece, WINDOW) == ncclSuccess);
    CHECK(make_window(0, WINDOW) == ncclSuccess);
    CHECK(ncclMemFree(piece) == ncclSuccess);
    CHECK(ncclCommFinalize(comm) == ncclSuccess);
    CHECK(ncclCommWindowDeregister(comm, window) == ncclInternalError);
    CHECK(ncclCommDestroy(comm) == ncclSuccess);
    leave(rank);
}

/* ---- one run ------------------------------------------------------------------------------------ */

/* How many left something behind. */
static int count_leavers(int n, void (*what)(void), int killed) {
    pid_t pids[RANKS];
    int left_behind = 0;
    memset(shared, 0, sizeof *shared);
    nranks = n;
    fflush(NULL);
    for (rank = 0; rank < n; rank++) {
        pids[rank] = fork();
        if (pids[rank] == 0) {
            setenv("TESSERA_DOUBLE_LEAKS", "55", 1);
            alarm(20);
            what();
            exit(0);
        }
    }
    for (int i = 0; i < n; i++) {
        int status;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        if (i == killed)
            continue;
        int leaves = WIFEXITED(status) && WEXITSTATUS(status) == 55;
        left_behind += leaves;
        if (shared->wrong[i][0] || !WIFEXITED(status) || (WEXITSTATUS(status) && !leaves))
            fail_msg("rank %d: status %#x, %s", i, (unsigned)status, shared->wrong[i]);
    }
    return left_behind;
}

static void run_ranks(int n, void (*what)(void), int killed) {
    assert_int_equal(count_leavers(n, what, killed), 0);
}

static void test_nccl__sums_of_f32_are_in_another_order_than_the_tree(void **state) {
    (void)state;
    run_ranks(3, sums_go_round, -1);
}
static void test_nccl__communicator_in_progress_refuses_calls(void **state) {
    (void)state;
    run_ranks(2, progress_must_be_awaited, -1);
}
static void test_nccl__ranks_that_disagree_hang_until_aborted(void **state) {
    (void)state;
    run_ranks(2, disagreement_hangs, -1);
}
static void test_nccl__dead_rank_is_an_asynchronous_error(void **state) {
    (void)state;
    run_ranks(3, death_is_seen, 2);
}
static void test_nccl__dead_rank_is_not_seen_when_asked(void **state) {
    (void)state;
    run_ranks(2, death_is_not_seen, 1);
}
static void test_nccl__two_ranks_on_one_device_are_refused(void **state) {
    (void)state;
    run_ranks(2, one_gpu_for_two_ranks, -1);
}
static void test_nccl__one_communicator_on_two_streams_keeps_its_order(void **state) {
    (void)state;
    run_ranks(3, streams_share_a_communicator, -1);
}
static void test_nccl__first_blocking_call_waits_for_peers_until_aborted(void **state) {
    (void)state;
    run_ranks(3, first_call_blocks_for_its_peers, -1);
}
static void test_nccl__wanted_call_hangs_until_aborted(void **state) {
    (void)state;
    run_ranks(2, wanted_call_hangs_until_aborted, -1);
}
static void test_nccl__2_26_hangs_where_calls_do_not_block(void **state) {
    (void)state;
    run_ranks(2, version_2_26_hangs_unblocked, -1);
}

static void test_nccl__communicators_in_two_orders_hang_until_aborted(void **state) {
    (void)state;
    run_ranks(2, two_orders_hang, -1);
}
static void test_nccl__communicators_pass_each_other_unless_they_share(void **state) {
    (void)state;
    run_ranks(2, apart_is_passed, -1);
    run_ranks(2, shared_is_not_passed, -1);
}

static void test_nccl__window_of_unfit_memory_is_refused(void **state) {
    (void)state;
    run_ranks(2, window_of_unfit_memory_is_refused, -1);
    run_ranks(1, window_of_unfit_memory_is_refused, -1);
}
static void test_nccl__window_of_another_size_is_refused(void **state) {
    (void)state;
    run_ranks(3, window_of_another_size_is_refused, -1);
}
static void test_nccl__window_waits_for_all_ranks_until_aborted(void **state) {
    (void)state;
    run_ranks(2, window_waits_for_all_ranks, -1);
}
static void test_nccl__collective_at_another_place_of_a_window_hangs(void **state) {
    (void)state;
    run_ranks(2, other_place_in_a_window_hangs, -1);
}
static void test_nccl__window_that_outlives_its_memory_is_told(void **state) {
    (void)state;
    assert_int_equal(count_leavers(2, window_outlives_its_memory, -1), 2);
}
static void test_nccl__window_that_is_forgotten_is_told(void **state) {
    (void)state;
    assert_int_equal(count_leavers(2, window_is_forgotten, -1), 2);
}

int main(void) {
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nccl__sums_of_f32_are_in_another_order_than_the_tree),
        cmocka_unit_test(test_nccl__communicator_in_progress_refuses_calls),
        cmocka_unit_test(test_nccl__ranks_that_disagree_hang_until_aborted),
        cmocka_unit_test(test_nccl__dead_rank_is_an_asynchronous_error),
        cmocka_unit_test(test_nccl__dead_rank_is_not_seen_when_asked),
        cmocka_unit_test(test_nccl__two_ranks_on_one_device_are_refused),
        cmocka_unit_test(test_nccl__one_communicator_on_two_streams_keeps_its_order),
        cmocka_unit_test(test_nccl__first_blocking_call_waits_for_peers_until_aborted),
        cmocka_unit_test(test_nccl__wanted_call_hangs_until_aborted),
        cmocka_unit_test(test_nccl__2_26_hangs_where_calls_do_not_block),
        cmocka_unit_test(test_nccl__communicators_in_two_orders_hang_until_aborted),
        cmocka_unit_test(test_nccl__communicators_pass_each_other_unless_they_share),
        cmocka_unit_test(test_nccl__window_of_unfit_memory_is_refused),
        cmocka_unit_test(test_nccl__window_of_another_size_is_refused),
        cmocka_unit_test(test_nccl__window_waits_for_all_ranks_until_aborted),
        cmocka_unit_test(test_nccl__collective_at_another_place_of_a_window_hangs),
        cmocka_unit_test(test_nccl__window_that_outlives_its_memory_is_told),
        cmocka_unit_test(test_nccl__window_that_is_forgotten_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
