/* SPDX-License-Identifier: BSD-3-Clause */
/* comm-shm while its ranks meet: descriptors of who does not have the secret are closed unseen, and so are those of the
 * wrong number or of a rank that does not exist. Ranks are threads over a key-value store of the test's own. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <tessera/plugin.h>

enum { RANKS = 2, RANKS_MAX = 3, MOST_FDS = 2 * RANKS + 1, TRIES = 5 /* of a rank that is hung up on */ };
static tess_status (*open_plugin)(const tess_host *, uint32_t, const void **, void **, tess_error *);

/* As plugins/comm-shm/rendezvous.c has them. */
typedef struct {
    char host[64], boot[40];
    unsigned char address[16];
    uint32_t version, address_bytes;
    uint64_t secrets[2]; /* of what rank 0 is sent, and of its answer */
} record;
typedef struct {
    uint64_t secret;
    int32_t rank, reserved;
} fd_message;

/* ---- the store and the ranks -------------------------------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    int has[RANKS_MAX];
    record records[RANKS_MAX];
} kv = { .lock = PTHREAD_MUTEX_INITIALIZER };

typedef struct {
    int rank, nranks;   /* 0: RANKS */
    int64_t timeout_ns; /* 0: 20 s */
    pthread_t thread;
    tess_status status;
    tess_error error;
} rank_state;

static void pause_ms(long ms) {
    nanosleep(&(struct timespec){ .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 }, NULL);
}

static tess_status kv_set(void *host, const char *key, const void *value, uint64_t bytes) {
    rank_state *r = host;
    (void)key;
    if (bytes != sizeof(record))
        return TESS_E_INTERNAL;
    pthread_mutex_lock(&kv.lock);
    memcpy(&kv.records[r->rank], value, bytes);
    kv.has[r->rank] = 1;
    pthread_mutex_unlock(&kv.lock);
    return TESS_OK;
}

static int take_record(int rank, record *out) {
    pthread_mutex_lock(&kv.lock);
    int there = kv.has[rank];
    if (there)
        *out = kv.records[rank];
    pthread_mutex_unlock(&kv.lock);
    return there;
}

static tess_status kv_get(void *host, const char *key, void *value, uint64_t *bytes, int64_t timeout_ns) {
    (void)host;
    for (int64_t waited_ns = 0; !take_record(atoi(strrchr(key, '/') + 1), value); waited_ns += 1000000) {
        if (waited_ns >= timeout_ns)
            return TESS_E_TIMEOUT;
        pause_ms(1);
    }
    *bytes = sizeof(record);
    return TESS_OK;
}

static int32_t aborting(void *host) {
    (void)host;
    return 0;
}

static tess_status meet_and_part(const tess_comm_ops *ops, void *ctx, rank_state *r) {
    const int64_t soon = r->timeout_ns ? r->timeout_ns : 20000000000;
    tess_comm_config config = { .struct_size = sizeof config,
                                .rank = r->rank,
                                .nranks = r->nranks ? r->nranks : RANKS,
                                .group = "world",
                                .timeout_ns = soon };
    tess_comm *comm = NULL;
    tess_status s = ops->init(ctx, &config, &comm, &r->error);
    if (s)
        return s;
    s = ops->finalize(comm, soon, &r->error);
    ops->destroy(comm);
    return s;
}

static void *run_rank(void *user) {
    rank_state *r = user;
    tess_host host = { .struct_size = sizeof host,
                       .abi_major = TESS_ABI_MAJOR,
                       .abi_minor = TESS_ABI_MINOR,
                       .host = r,
                       .kv_set = kv_set,
                       .kv_get = kv_get,
                       .aborting = aborting,
                       .args = "",
                       .helper_cpus = "" };
    const void *ops = NULL;
    void *ctx = NULL;
    r->error = (tess_error){ .struct_size = sizeof r->error, .rank = -1 };
    r->status = open_plugin(&host, TESS_KIND_COMM, &ops, &ctx, &r->error);
    if (r->status)
        return NULL;
    r->status = meet_and_part(ops, ctx, r);
    if (((const tess_comm_ops *)ops)->close)
        ((const tess_comm_ops *)ops)->close(ctx);
    return NULL;
}

static void go(rank_state *r, int rank) {
    *r = (rank_state){ .rank = rank };
    assert_int_equal(pthread_create(&r->thread, NULL, run_rank, r), 0);
}

static void end_with(rank_state *r, tess_status expected) {
    pthread_join(r->thread, NULL);
    if (r->status != expected)
        fail_msg("rank %d ended with %d, expected %d: %s", r->rank, r->status, expected, r->error.message);
}

/* ---- the system --------------------------------------------------------------------------------- */

/* The plugin calls this one. Linux looks for a message and then for the end: rank 0 may send and close in between, and
 * who reads an empty socket without waiting is told the end. Here each such reader is. */
__attribute__((visibility("default"))) ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
    struct pollfd now = { .fd = fd, .events = POLLIN };
    struct timeval waits = { 0 };
    socklen_t bytes = sizeof waits;
    getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &waits, &bytes);
    if (waits.tv_sec == 0 && poll(&now, 1, 0) == 0)
        return 0;
    return syscall(SYS_recvmsg, fd, message, flags);
}

/* ---- the stranger ------------------------------------------------------------------------------- */

static int reach(const record *first) {
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    memcpy(at.sun_path, first->address, first->address_bytes);
    assert_int_equal(
        connect(fd, (struct sockaddr *)&at, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + first->address_bytes)),
        0);
    return fd;
}

/* `n` descriptors of one pipe's end, whose other end tells when the last of them has been closed. */
static void send_fds(int to, uint64_t secret, int32_t rank, int n, int *other_end) {
    fd_message p = { .secret = secret, .rank = rank };
    union {
        char bytes[CMSG_SPACE(MOST_FDS * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec io = { &p, sizeof p };
    struct msghdr message = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_SPACE((size_t)n * sizeof(int))
    };
    int ends[2];
    memset(&control, 0, sizeof control);
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN((size_t)n * sizeof(int));
    for (int i = 0; i < n; i++)
        memcpy(CMSG_DATA(c) + (size_t)i * sizeof(int), &ends[1], sizeof(int));
    assert_int_equal(sendmsg(to, &message, MSG_NOSIGNAL), sizeof p);
    close(ends[1]);
    *other_end = ends[0];
}

static int ends_soon(int fd) {
    char more;
    struct pollfd end = { .fd = fd, .events = POLLIN };
    return poll(&end, 1, 10000) == 1 && read(fd, &more, 1) == 0;
}

/* Nothing comes back, and what was handed over is closed. */
static void assert_refused(const record *first, uint64_t secret, int32_t rank, int n) {
    int other_end, fd = reach(first);
    send_fds(fd, secret, rank, n, &other_end);
    assert_true(ends_soon(fd));
    assert_true(ends_soon(other_end));
    close(fd);
    close(other_end);
}

static record await_record(int rank) {
    record r;
    while (!take_record(rank, &r))
        pause_ms(1);
    return r;
}

static void test_shm_meet__descriptors_without_the_secret_are_closed(void **state) {
    (void)state;
    rank_state ranks[RANKS];
    memset(kv.has, 0, sizeof kv.has);
    kv.records[1] = (record){ .version = 0 };
    go(&ranks[0], 0);
    record first = await_record(0);
    kv_set(&(rank_state){ .rank = 1 }, "", &first, sizeof first); /* so that rank 0 goes on to collect */
    for (int bit = 0; bit < 64; bit += 21)
        assert_refused(&first, first.secrets[0] ^ UINT64_C(1) << bit, 1, 2);
    assert_refused(&first, 0, 1, 2);
    assert_refused(&first, first.secrets[1], 1, 2); /* that of the answer */
    assert_refused(&first, first.secrets[0] ^ 1, 1,
                   1); /* of a rank, too few would mean that this process has no more room */
    assert_refused(&first, first.secrets[0], 1, 3);
    for (int32_t rank = -1; rank <= RANKS; rank++)
        if (rank != 1)
            assert_refused(&first, first.secrets[0], rank, 2);
    go(&ranks[1], 1);
    for (int r = 0; r < RANKS; r++)
        end_with(&ranks[r], TESS_OK);
}

/* What somebody with the secret said for rank 1 is of no use a second time; rank 0 goes on to wait for rank 2. */
static void test_shm_meet__a_rank_is_taken_once(void **state) {
    (void)state;
    rank_state rank = { .rank = 0, .nranks = 3, .timeout_ns = 2000000000 };
    int other_end;
    memset(kv.has, 0, sizeof kv.has);
    assert_int_equal(pthread_create(&rank.thread, NULL, run_rank, &rank), 0);
    record first = await_record(0);
    for (int r = 1; r < 3; r++)
        kv_set(&(rank_state){ .rank = r }, "", &first, sizeof first);
    int fd = reach(&first);
    send_fds(fd, first.secrets[0], 1, 2, &other_end);
    for (int again = 0; again < 2; again++)
        assert_refused(&first, first.secrets[0], 1, 2);
    end_with(&rank, TESS_E_TIMEOUT);
    assert_int_equal(rank.error.rank, 2);
    close(fd);
    close(other_end);
}

/* ---- what ranks say of themselves ---------------------------------------------------------------------------------
 */

typedef struct {
    const char *host, *boot; /* null: as rank 0 has it */
    uint32_t later, address_bytes;
    tess_status status;
    const char *says;
} told;

static void test_shm_meet__ranks_elsewhere_and_of_other_versions_are_named(void **state) {
    (void)state;
    static const told cases[] = {
        { .boot = "another", .status = TESS_E_UNSUPPORTED, .says = "comm shm serves the ranks of one host" },
        { .host = "far", .boot = "", .status = TESS_E_UNSUPPORTED, .says = "rank 1 on host far; comm shm" },
        { .host = "renamed", .status = TESS_OK },
        { .boot = "", .status = TESS_OK },
        { .later = 1, .status = TESS_E_VERSION, .says = "shm: rank 1 speaks version 4, this one 3" },
        { .address_bytes = 17, .status = TESS_E_VERSION, .says = "rank 1 speaks version" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const told *c = &cases[i];
        rank_state ranks[RANKS];
        memset(kv.has, 0, sizeof kv.has);
        go(&ranks[0], 0);
        record other = await_record(0);
        snprintf(other.host, sizeof other.host, "%s", c->host ? c->host : kv.records[0].host);
        snprintf(other.boot, sizeof other.boot, "%s", c->boot ? c->boot : kv.records[0].boot);
        other.version += c->later;
        other.address_bytes = c->address_bytes;
        kv_set(&(rank_state){ .rank = 1 }, "", &other, sizeof other);
        if (c->status == TESS_OK) {
            other = await_record(0);
            assert_refused(&other, 0, 1, 2); /* rank 0 has read it: it takes connections */
            go(&ranks[1], 1);
            end_with(&ranks[1], TESS_OK);
        }
        end_with(&ranks[0], c->status);
        assert_true(c->status == TESS_OK || (ranks[0].error.rank == 1 && strstr(ranks[0].error.message, c->says)));
    }
}

/* Somebody of the same user listens at rank 0's address, as its next owner may when rank 0 has ended. */
static void listen_for_rank_0(int *listener, record *first) {
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    socklen_t bytes = sizeof at;
    *listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(*listener, (struct sockaddr *)&at, sizeof at.sun_family), 0);
    assert_int_equal(listen(*listener, 1), 0);
    assert_int_equal(getsockname(*listener, (struct sockaddr *)&at, &bytes), 0);
    *first = await_record(1); /* the same host and version */
    first->address_bytes = (uint32_t)(bytes - offsetof(struct sockaddr_un, sun_path));
    memcpy(first->address, at.sun_path, first->address_bytes);
    first->secrets[0] = 0x123456789abcdef0;
    first->secrets[1] = 0x0fedcba987654321;
    kv_set(&(rank_state){ .rank = 0 }, "", first, sizeof *first);
}

static void read_message(int fd, fd_message *out) {
    assert_int_equal(recv(fd, out, sizeof *out, 0), sizeof *out); /* its descriptors are closed unseen */
}

enum { OTHER_SECRET, WHAT_WAS_SAID, TOO_FEW, HANGS_UP, SILENT, IMPOSTORS };

static void test_shm_meet__an_impostors_descriptors_are_closed(void **state) {
    (void)state;
    for (int kind = 0; kind < IMPOSTORS; kind++) {
        rank_state rank = { .rank = 1, .timeout_ns = kind == SILENT ? 300000000 : 0 };
        record first;
        fd_message said;
        int other_end = -1, listener;
        memset(kv.has, 0, sizeof kv.has);
        assert_int_equal(pthread_create(&rank.thread, NULL, run_rank, &rank), 0);
        listen_for_rank_0(&listener, &first);
        int fd = accept(listener, NULL, NULL);
        read_message(fd, &said);
        assert_int_equal(said.secret, first.secrets[0]);
        if (kind == OTHER_SECRET || kind == WHAT_WAS_SAID)
            send_fds(fd, kind == OTHER_SECRET ? first.secrets[1] ^ 1 : said.secret, 0, 2 * RANKS, &other_end);
        else if (kind == TOO_FEW)
            send_fds(fd, said.secret, 0, 2, &other_end);
        for (int tries = 1; kind == HANGS_UP && tries <= TRIES; tries++) {
            close(fd);
            fd = tries < TRIES ? accept(listener, NULL, NULL) : -1;
        }
        assert_true(other_end < 0 || ends_soon(other_end));
        end_with(&rank, kind == SILENT ? TESS_E_TIMEOUT : TESS_E_PEER);
        assert_int_equal(rank.error.rank, 0);
        assert_non_null(strstr(rank.error.message, kind == SILENT ? "rank 0" : "no descriptors came from rank 0"));
        if (kind != HANGS_UP)
            close(fd);
        if (other_end >= 0)
            close(other_end);
        close(listener);
    }
}

/* An answer takes its time, and is read when it is there. */
static void test_shm_meet__an_answer_is_awaited(void **state) {
    (void)state;
    for (int again = 0; again < 20; again++) {
        rank_state ranks[RANKS];
        memset(kv.has, 0, sizeof kv.has);
        for (int r = 0; r < RANKS; r++)
            go(&ranks[r], r);
        for (int r = 0; r < RANKS; r++)
            end_with(&ranks[r], TESS_OK);
    }
}

/* A rank is paused between its connection and its message, or before it reads: rank 0 has hung up, and takes it later.
 */
static void test_shm_meet__a_rank_that_was_too_slow_comes_again(void **state) {
    (void)state;
    for (int reads = 0; reads < 2; reads++) {
        rank_state rank = { .rank = 1 };
        record first;
        fd_message said;
        int other_end, listener;
        memset(kv.has, 0, sizeof kv.has);
        assert_int_equal(pthread_create(&rank.thread, NULL, run_rank, &rank), 0);
        listen_for_rank_0(&listener, &first);
        int fd = accept(listener, NULL, NULL);
        if (reads)
            read_message(fd, &said);
        close(fd);
        fd = accept(listener, NULL, NULL);
        read_message(fd, &said);
        assert_int_equal(said.secret, first.secrets[0]);
        assert_int_equal(said.rank, 1);
        send_fds(fd, first.secrets[1] ^ 1, 0, 2 * RANKS, &other_end); /* what it does not take it has heard */
        end_with(&rank, TESS_E_PEER);
        assert_true(ends_soon(other_end));
        close(fd);
        close(other_end);
        close(listener);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shm_meet__an_answer_is_awaited),
        cmocka_unit_test(test_shm_meet__a_rank_that_was_too_slow_comes_again),
        cmocka_unit_test(test_shm_meet__descriptors_without_the_secret_are_closed),
        cmocka_unit_test(test_shm_meet__a_rank_is_taken_once),
        cmocka_unit_test(test_shm_meet__ranks_elsewhere_and_of_other_versions_are_named),
        cmocka_unit_test(test_shm_meet__an_impostors_descriptors_are_closed),
    };
    char path[4096];
    snprintf(path, sizeof path, "%s/libtessera-comm-shm.so", getenv("TESSERA_PLUGIN_PATH"));
    if (access(path, R_OK) != 0) {
        printf("skipped: comm-shm is not built\n");
        return 77;
    }
    void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!plugin) {
        printf("%s\n", dlerror());
        return 1;
    }
    *(void **)&open_plugin = dlsym(plugin, "tess_plugin_open_v1");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
