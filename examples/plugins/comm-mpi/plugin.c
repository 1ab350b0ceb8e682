/* SPDX-License-Identifier: BSD-3-Clause */
/* TESSERA_COMM=mpi: collectives over MPI point-to-point messages, for programs started by mpirun or srun. Raw
 * contributions travel and are summed by the comm kit in the engine's order, so digests are those of every such
 * backend; MPI_Reduce would sum in an order of its own, and cannot be aborted.
 *
 * All links share MPI_COMM_WORLD and differ by tag. Making communicators of MPI's own would be collective calls that no
 * timeout ends. Everything goes through non-blocking calls under one lock, so MPI_THREAD_SERIALIZED is enough. */
#include "comm_kit.h"

#include <mpi.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

TESS_DESCRIPTOR(1u << TESS_KIND_COMM, "mpi", "1.0.0", "", "MPI, started by mpirun");

enum { PIECE_BYTES = 256 << 20, IDLE_NS = 20000, SPINS = 200, GIVE_UP_MS = 500, FINALIZE_MS = 3000 };

struct kit_link {
    int32_t rank, nranks;
    int tag;
    int stop;              /* atomic */
    int *world;            /* [nranks]: ranks in MPI_COMM_WORLD */
    MPI_Request *requests; /* [2 * nranks]: receives, then sends */
    int n_done, *done;     /* what MPI_Testsome says */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of MPI, and of what follows */
static int started_here, broken, links, tags_given;

static tess_status failed(tess_error *error, const char *what, int code) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    return tess_plugin_fail(error, TESS_E_SYSTEM, "mpi: %s: %.150s", what, text);
}

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void nap(int idle) {
    const struct timespec t = { 0, IDLE_NS };
    if (idle > SPINS) /* ranks may share cores: let others run */
        nanosleep(&t, NULL);
}

/* ---- MPI itself --------------------------------------------------------------------------------- */

/* With the lock held. The program may have started MPI itself, and then ends it itself. */
static tess_status start_mpi(tess_error *error) {
    int on = 0, over = 0, level = MPI_THREAD_SINGLE, code;
    MPI_Initialized(&on);
    MPI_Finalized(&over);
    if (over)
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "mpi: MPI was ended in this process and cannot start again");
    if (!on) {
        code = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
        if (code != MPI_SUCCESS)
            return failed(error, "MPI_Init_thread", code);
        started_here = 1;
    }
    MPI_Query_thread(&level);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (level < MPI_THREAD_SERIALIZED)
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "mpi: this MPI's thread level is %d, expected %d at least",
                                level, MPI_THREAD_SERIALIZED);
    return TESS_OK;
}

static void *finalize(void *arg) {
    MPI_Finalize();
    __atomic_store_n((int *)arg, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* MPI_Finalize waits for all ranks, and mpirun takes a process that ends without it for a failed one. After an abort a
 * rank may never come, so it is waited for a while only, on a thread that is left behind then. */
static void finalize_for_a_while(void) {
    static int done;
    pthread_t thread;
    if (pthread_create(&thread, NULL, finalize, &done) != 0)
        return;
    pthread_detach(thread);
    for (int64_t end = now_ms() + FINALIZE_MS; !__atomic_load_n(&done, __ATOMIC_ACQUIRE) && now_ms() < end;)
        nap(SPINS + 1);
}

static void mpi_closed(void) {
    pthread_mutex_lock(&lock);
    int over = 1;
    if (started_here && !links)
        MPI_Finalized(&over);
    if (!over && broken)
        finalize_for_a_while();
    else if (!over)
        MPI_Finalize();
    pthread_mutex_unlock(&lock);
}

/* ---- joining ------------------------------------------------------------------------------------ */

typedef struct { /* what a rank says of itself through the key-value store */
    int world, tag;
} hello;

static void key_of(const tess_comm_config *config, int32_t rank, char key[300]) {
    snprintf(key, 300, "%.250s/%d", config->group, (int)rank);
}

/* Who is which rank of MPI_COMM_WORLD, and the tag that the group's first rank has chosen: no other group has it, as it
 * holds that rank's number and a count. */
static tess_status meet(const tess_host *host, const tess_comm_config *config, kit_link *link, int n_world, int self,
                        tess_error *error) {
    char key[300];
    hello mine = { self, self + n_world * ++tags_given };
    key_of(config, config->rank, key);
    tess_status s = host->kv_set(host->host, key, &mine, sizeof mine);
    for (int32_t p = 0; p < config->nranks && s == TESS_OK; p++) {
        hello theirs = { 0, 0 };
        uint64_t bytes = sizeof theirs;
        key_of(config, p, key);
        s = host->kv_get(host->host, key, &theirs, &bytes, config->timeout_ns);
        if (s < 0)
            return tess_plugin_fail_of(error, s, p, "mpi: nothing from rank %d", (int)p);
        link->world[p] = theirs.world;
        if (p == 0)
            link->tag = theirs.tag;
    }
    return s < 0 ? tess_plugin_fail(error, s, "mpi: cannot tell the others who we are") : TESS_OK;
}

static void mpi_leave(kit_link *link) {
    if (!link)
        return;
    pthread_mutex_lock(&lock);
    links--;
    pthread_mutex_unlock(&lock);
    free(link->world);
    free(link->requests);
    free(link->done);
    free(link);
}

static tess_status new_link(const tess_comm_config *config, kit_link **out, tess_error *error) {
    size_t n = (size_t)config->nranks;
    kit_link *link = calloc(1, sizeof *link);
    if (!link)
        return tess_plugin_fail(error, TESS_E_NOMEM, "mpi: no memory");
    links++;
    link->rank = config->rank;
    link->nranks = config->nranks;
    link->world = calloc(n, sizeof *link->world);
    link->requests = calloc(2 * n, sizeof *link->requests);
    link->done = calloc(2 * n, sizeof *link->done);
    *out = link;
    if (link->world && link->requests && link->done)
        return TESS_OK;
    return tess_plugin_fail(error, TESS_E_NOMEM, "mpi: no memory for %zu ranks", n);
}

static tess_status mpi_join(const tess_host *host, const tess_comm_config *config, kit_link **out, tess_error *error) {
    kit_link *link = NULL;
    int n_world = 0, self = 0;
    pthread_mutex_lock(&lock);
    tess_status s = start_mpi(error);
    if (s == TESS_OK) {
        MPI_Comm_size(MPI_COMM_WORLD, &n_world);
        MPI_Comm_rank(MPI_COMM_WORLD, &self);
        s = new_link(config, &link, error);
    }
    pthread_mutex_unlock(&lock);
    if (s == TESS_OK && n_world < config->nranks)
        s = tess_plugin_fail(error, TESS_E_UNSUPPORTED,
                             "mpi: %d ranks, but MPI knows of %d: start the program with mpirun -n %d",
                             (int)config->nranks, n_world, (int)config->nranks);
    if (s == TESS_OK && config->nranks > 1)
        s = meet(host, config, link, n_world, self, error);
    if (s < 0)
        mpi_leave(link);
    else
        *out = link;
    return s;
}

/* ---- exchanging --------------------------------------------------------------------------------- */

/* With the lock held: starts what goes to and comes from every rank. MPI counts in int, so long blocks go in pieces. */
static int start(kit_link *link, const void *const *out, void *const *in, uint64_t first, int bytes) {
    int code = MPI_SUCCESS;
    for (int32_t p = 0; p < link->nranks; p++) {
        link->requests[p] = link->requests[link->nranks + p] = MPI_REQUEST_NULL;
        if (in[p] && code == MPI_SUCCESS)
            code = MPI_Irecv((char *)in[p] + first, bytes, MPI_BYTE, link->world[p], link->tag, MPI_COMM_WORLD,
                             &link->requests[p]);
    }
    for (int32_t p = 0; p < link->nranks && code == MPI_SUCCESS; p++)
        if (out[p])
            code = MPI_Isend((const char *)out[p] + first, bytes, MPI_BYTE, link->world[p], link->tag, MPI_COMM_WORLD,
                             &link->requests[link->nranks + p]);
    return code;
}

/* Takes back what has not come: afterwards nothing is written to the caller's memory. MPI cannot take back sends; a
 * rank that aborts is about to end. */
static void cancel(kit_link *link) {
    int all = 0;
    pthread_mutex_lock(&lock);
    broken = 1;
    for (int32_t p = 0; p < link->nranks; p++)
        if (link->requests[p] != MPI_REQUEST_NULL)
            MPI_Cancel(&link->requests[p]);
    for (int64_t end = now_ms() + GIVE_UP_MS; !all && now_ms() < end;)
        MPI_Testall(link->nranks, link->requests, &all, MPI_STATUSES_IGNORE);
    pthread_mutex_unlock(&lock);
}

static tess_status finish(kit_link *link, uint64_t bytes, uint64_t *came, tess_error *error) {
    for (int idle = 0;; idle++) {
        pthread_mutex_lock(&lock);
        int code = MPI_Testsome(2 * link->nranks, link->requests, &link->n_done, link->done, MPI_STATUSES_IGNORE);
        pthread_mutex_unlock(&lock);
        if (code != MPI_SUCCESS) {
            cancel(link);
            return failed(error, "MPI_Testsome", code);
        }
        if (link->n_done == MPI_UNDEFINED) /* none is left */
            return TESS_OK;
        for (int i = 0; i < link->n_done; i++)
            if (link->done[i] < link->nranks)
                came[link->done[i]] += bytes;
        if (__atomic_load_n(&link->stop, __ATOMIC_ACQUIRE)) {
            cancel(link);
            return tess_plugin_fail(error, TESS_E_ABORTED, "mpi: interrupted");
        }
        idle = link->n_done ? 0 : idle;
        nap(idle);
    }
}

static tess_status mpi_exchange(kit_link *link, const void *const *out, void *const *in, uint64_t bytes, uint64_t *came,
                                tess_error *error) {
    tess_status s = TESS_OK;
    memset(came, 0, (size_t)link->nranks * sizeof *came);
    for (uint64_t first = 0; first < bytes && s == TESS_OK; first += PIECE_BYTES) {
        uint64_t piece = bytes - first < PIECE_BYTES ? bytes - first : PIECE_BYTES;
        pthread_mutex_lock(&lock);
        int code = start(link, out, in, first, (int)piece);
        pthread_mutex_unlock(&lock);
        if (code != MPI_SUCCESS) {
            cancel(link);
            return failed(error, "MPI_Isend or MPI_Irecv", code);
        }
        s = finish(link, piece, came, error);
    }
    return s;
}

static void mpi_interrupt(kit_link *link) {
    __atomic_store_n(&link->stop, 1, __ATOMIC_RELEASE);
}

/* ---- opening ------------------------------------------------------------------------------------ */

static const kit_link_ops link_ops = {
    .name = "mpi",
    .wire_id = "mpi-1",
    .mem_mask = 1u << TESS_MEM_HOST | 1u << TESS_MEM_PINNED,
    .join = mpi_join,
    .exchange = mpi_exchange,
    .interrupt = mpi_interrupt,
    .leave = mpi_leave,
    .closed = mpi_closed,
};

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **ops, void **ctx, tess_error *error) {
    if (kind != TESS_KIND_COMM)
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "mpi offers comm only");
    if (*host->args)
        return tess_plugin_fail(error, TESS_E_INVALID, "comm mpi takes no arguments, found \"%.100s\"", host->args);
    return kit_open(&link_ops, host, ops, ctx, error);
}
