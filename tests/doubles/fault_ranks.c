/* SPDX-License-Identifier: BSD-3-Clause */
#include "fault_ranks.h"
#include "double.h"
#include "plugin_host.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <tessera/plugin.h>
#include <unistd.h>

#include <cmocka.h>

struct fault_shared *shared;
int nranks;
static int rank;

int fault_ranks_open(void) {
    if (!plugin_host_open())
        return 0;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return shared != MAP_FAILED;
}

/* ---- what a rank does --------------------------------------------------------------------------- */

static const tess_comm_ops *ops;
static void *ctx;
static tess_error error = { .struct_size = sizeof error };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tess_comm *live[2]; /* world, part */
static int leaving;

static void *watch_others(void *arg) {
    int loses = getenv("PROBE_LOST") != NULL;
    (void)arg;
    for (int told = 0; !told; usleep(1000)) {
        if (loses && double__hanging())
            atomic_store(&host_shared->failed, 1);
        pthread_mutex_lock(&lock);
        told = leaving;
        if (atomic_load(&host_shared->failed) && (live[0] || live[1])) {
            for (int i = 0; i < 2; i++)
                if (live[i])
                    ops->abort(live[i], TESS_E_PEER);
            told = 1;
        }
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

/* The first failure of this rank. */
static int bad(const char *slot, tess_status s) {
    atomic_fetch_add(&shared->at[rank].steps, 1);
    if (s == TESS_OK)
        return 0;
    if (!shared->said[rank][0])
        snprintf(shared->said[rank], sizeof shared->said[rank], "%s: %d: %s", slot, (int)s, error.message);
    atomic_store(&host_shared->failed, 1);
    return 1;
}

/* Notes what is called before it is. */
#define CALL(slot, ...) (atomic_store(&shared->at[rank].now, slot), ops->__VA_ARGS__)
#define FAILS(slot, ...) bad(slot, CALL(slot, __VA_ARGS__))

static void keep(int which, tess_comm *comm) {
    pthread_mutex_lock(&lock);
    live[which] = comm;
    pthread_mutex_unlock(&lock);
}

static int collect(tess_comm *comm, const tess_collective *calls, uint32_t n) {
    tess_request *request;
    if (FAILS("post", post(comm, calls, n, &request, &error)))
        return 1;
    tess_status s = CALL("wait", wait(request, LONG_NS, &error));
    int failed = bad("wait", s);
    if (s == TESS_E_TIMEOUT) /* no end: told as a hang */
        return 1;
    ops->request_free(request);
    return failed;
}

static int all_operations(tess_comm *comm, char *memory, int n) {
    char *send = memory, *recv = memory + (256 << 10), *scratch = memory + (512 << 10);
    tess_collective c = { .struct_size = sizeof c,
                          .redop = TESS_SUM,
                          .send_mem = TESS_MEM_CUDA,
                          .recv_mem = TESS_MEM_CUDA,
                          .send = send,
                          .recv = recv,
                          .scratch = scratch,
                          .scratch_bytes = 512 << 10,
                          .count = 1000,
                          .scale = 0.5 };
    uint64_t parts[n];
    for (int r = 0; r < n; r++)
        parts[r] = c.count / (uint64_t)n;
    for (c.op = TESS_ALL_GATHER; c.op <= TESS_ALL_TO_ALL_V; c.op++)
        for (int d = 0; d < 2; d++) {
            c.send_dtype = d ? TESS_BF16 : TESS_F32;
            c.recv_dtype = c.op == TESS_REDUCE_SCATTER || c.op == TESS_ALL_REDUCE ? TESS_F32 : c.send_dtype;
            c.send_parts = c.recv_parts = c.op == TESS_ALL_TO_ALL_V ? parts : NULL;
            c.tag++;
            if (collect(comm, &c, 1))
                return 1;
        }
    tess_collective pair[2] = { c, c };
    pair[0].op = pair[1].op = TESS_ALL_GATHER;
    pair[1].send = recv + (64 << 10);
    pair[1].recv = recv + (128 << 10);
    return collect(comm, pair, 2);
}

static int64_t timeout_ns(void) {
    return getenv("PROBE_TIMEOUT") ? 3 * A_SECOND : LONG_NS; /* of a busy machine, too */
}

static int shares(tess_comm *comm) {
    tess_comm_caps caps = { .struct_size = sizeof caps };
    return CALL("query", query(ctx, comm, &caps)) == TESS_OK && (caps.caps & TESS_COMM_SHARES);
}

/* The world's memory, registered and shared with the part too. */
static int reach_memory(tess_comm *part, const tess_buffer *buffer) {
    tess_buffer mine = *buffer;
    mine.reg = NULL;
    if (!shares(part) || CALL("mem_register", mem_register(part, &mine, &error)) != TESS_OK)
        return 0;
    int failed = FAILS("mem_share", mem_share(part, &mine, &error));
    CALL("mem_deregister", mem_deregister(part, &mine));
    return failed;
}

static int on_a_part(tess_comm *world, const tess_buffer *buffer) {
    tess_comm_config config = { .struct_size = sizeof config, .group = "part", .timeout_ns = timeout_ns() };
    tess_comm *part = NULL;
    tess_collective c = { .struct_size = sizeof c, .op = TESS_BARRIER, .scale = 1 };
    if (FAILS("split", split(world, 0, -rank, &config, &part, &error)))
        return 1;
    keep(1, part);
    int failed =
        collect(part, &c, 1) || reach_memory(part, buffer) || FAILS("finalize", finalize(part, timeout_ns(), &error));
    keep(1, NULL);
    CALL("destroy", destroy(part));
    return failed;
}

static int with_world(void) {
    tess_comm_config config = { .struct_size = sizeof config,
                                .rank = rank,
                                .nranks = nranks,
                                .local_rank = rank,
                                .device = getenv("PROBE_DEVICE") ? atoi(getenv("PROBE_DEVICE")) : -1,
                                .group = "world",
                                .timeout_ns = timeout_ns() };
    tess_alloc_request request = {
        .struct_size = sizeof request, .mem = TESS_MEM_CUDA, .bytes = 1 << 20, .align = 256
    };
    tess_buffer buffer = { .struct_size = sizeof buffer };
    tess_comm *world = NULL;
    if (FAILS("init", init(ctx, &config, &world, &error)))
        return 1;
    keep(0, world);
    int failed = FAILS("mem_alloc", mem_alloc(world, &request, &buffer, &error));
    if (!failed) {
        failed = (shares(world) && FAILS("mem_share", mem_share(world, &buffer, &error))) ||
                 all_operations(world, buffer.ptr, nranks) || on_a_part(world, &buffer);
        CALL("mem_free", mem_free(world, &buffer)); /* before finalize, which ends what takes registrations back */
        failed = failed || FAILS("finalize", finalize(world, timeout_ns(), &error));
    }
    keep(0, NULL);
    CALL("destroy", destroy(world));
    return failed;
}

int be_a_rank(void) {
    char number[12];
    pthread_t watcher;
    snprintf(number, sizeof number, "%d", rank);
    setenv("RANK", number, 1);
    setenv("TESSERA_DOUBLE_LEAKS", "55", 1);
    setenv("TESSERA_DOUBLE_DELAY_US", "0", 1);
    if (!plugin_host_load(&ops, &ctx, &error))
        return 9;
    pthread_create(&watcher, NULL, watch_others, NULL);
    int failed = with_world();
    pthread_mutex_lock(&lock);
    leaving = 1;
    pthread_mutex_unlock(&lock);
    pthread_join(watcher, NULL);
    CALL("close", close(ctx));
    return failed ? TOLD : DONE;
}

/* ---- one run of all ranks ----------------------------------------------------------------------- */

enum { RUNS = 1000 }; /* no exit code */

static int code_of(int status) {
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static int is_wrong(int code) {
    return code != RUNS && code != DONE && code != TOLD;
}

static void start_all(pid_t *pids, int *codes) {
    memset(shared, 0, sizeof *shared);
    memset(host_shared, 0, sizeof *host_shared);
    fflush(NULL);
    for (rank = 0; rank < nranks; rank++) {
        codes[rank] = RUNS;
        pids[rank] = fork();
        if (pids[rank] == 0)
            exit(be_a_rank());
        if (pids[rank] < 0)
            fail_msg("no process for rank %d", rank);
    }
}

/* Takes the codes of those who have ended; how many still run, or -1 when one has ended as none may. */
static int look_at_all(const pid_t *pids, int *codes) {
    int left = 0, wrong = 0;
    for (int i = 0, status; i < nranks; i++) {
        if (codes[i] == RUNS && waitpid(pids[i], &status, WNOHANG) == pids[i])
            codes[i] = code_of(status);
        left += codes[i] == RUNS;
        wrong |= is_wrong(codes[i]);
    }
    return wrong ? -1 : left;
}

static void stop_all(const pid_t *pids, const int *codes) {
    for (int i = 0; i < nranks; i++)
        if (codes[i] == RUNS)
            kill(pids[i], SIGKILL);
    for (int i = 0; i < nranks; i++)
        if (codes[i] == RUNS)
            waitpid(pids[i], NULL, 0);
}

/* What became of every rank. */
static void tell_all(const char *what, const int *codes) {
    char text[1800] = "";
    size_t at = 0;
    for (int i = 0; i < nranks; i++) {
        const char *now = atomic_load(&shared->at[i].now);
        at += (size_t)snprintf(text + at, sizeof text - at, "; rank %d ", i);
        at += codes[i] == RUNS
                  ? (size_t)snprintf(text + at, sizeof text - at, "hangs in %s", now ? now : "its start")
                  : (size_t)snprintf(text + at, sizeof text - at, "ended with %d%s", codes[i],
                                     codes[i] == LEFT_BEHIND ? ", which means that something is left behind" : "");
        at += (size_t)snprintf(text + at, sizeof text - at, " after %d steps (%s)", atomic_load(&shared->at[i].steps),
                               shared->said[i]);
    }
    fail_msg("%s%s", what, text);
}

void run_ranks(const char *what, int codes[RANKS]) {
    pid_t pids[RANKS];
    int left = nranks;
    start_all(pids, codes);
    for (int64_t late = now_ns() + 2 * LONG_NS; left > 0 && now_ns() < late; usleep(300))
        left = look_at_all(pids, codes);
    if (left == 0)
        return;
    stop_all(pids, codes);
    tell_all(what, codes);
}
