/* SPDX-License-Identifier: BSD-3-Clause */
/* comm-hosts among impostors: who listens in a rank's place in one of its groups, with noise or with what was recorded
 * in another group, is left and the rank behind it met; without one behind it the rank is named as this communicator
 * numbers it. Two hosts of two ranks, as threads, over a key-value store of the test's own. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <tessera/plugin.h>

enum { RANKS = 4, EACH = 2, GREETING = 36, ANSWER = 72, PROOF = 32, BLOCK = 128 << 10, KEYS = 64, TAPS = 16 };
typedef tess_status (*open_fn)(const tess_host *, uint32_t, const void **, void **, tess_error *);
static open_fn open_hosts, open_shm, open_gloo;

/* As the plugins have them. */
typedef struct {
    uint32_t magic, nranks;
    struct sockaddr_storage address;
    unsigned char key[32];
} card;
typedef struct {
    char host[64], boot[40];
    unsigned char address[16];
    uint32_t version, address_bytes;
    uint64_t secrets[2];
} record;

typedef struct { /* stands before the rank that has published this key */
    const char *key;
    int hostile; /* so many connections get no true answer */
    int listener;
    card real; /* of a group of gloo */
    atomic_int came, left, ended;
    pthread_t thread, taps[TAPS];
    int n_taps;
} impostor;

static struct {
    pthread_mutex_t lock;
    int n;
    struct {
        char key[96];
        unsigned char value[512];
        uint64_t bytes;
    } entries[KEYS];
    impostor *impostors[4];
} kv = { .lock = PTHREAD_MUTEX_INITIALIZER };

static struct { /* what the listener of the group of all ranks has said to one of them */
    atomic_int whole;
    unsigned char greeting[GREETING], proof[PROOF];
} heard;

static void pause_ms(long ms) {
    nanosleep(&(struct timespec){ .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 }, NULL);
}

/* ---- the store ------------------------------------------------------------------------------------ */

/* The impostor's address takes the place of the rank's. */
static void put_before(impostor *i, void *value) {
    if (strstr(i->key, "/shm/")) {
        struct sockaddr_un at;
        socklen_t bytes = sizeof at;
        record *r = value;
        assert_int_equal(getsockname(i->listener, (struct sockaddr *)&at, &bytes), 0);
        r->address_bytes = (uint32_t)(bytes - offsetof(struct sockaddr_un, sun_path));
        memcpy(r->address, at.sun_path, r->address_bytes);
        return;
    }
    card *c = value;
    socklen_t bytes = sizeof(struct sockaddr_in);
    i->real = *c;
    assert_int_equal(getsockname(i->listener, (struct sockaddr *)&c->address, &bytes), 0);
}

static tess_status kv_set(void *host, const char *key, const void *value, uint64_t bytes) {
    (void)host;
    if (bytes > sizeof kv.entries[0].value)
        return TESS_E_NOMEM;
    pthread_mutex_lock(&kv.lock);
    assert_true(kv.n < KEYS);
    snprintf(kv.entries[kv.n].key, sizeof kv.entries[0].key, "%s", key);
    memcpy(kv.entries[kv.n].value, value, bytes);
    kv.entries[kv.n].bytes = bytes;
    for (int i = 0; i < 4; i++)
        if (kv.impostors[i] && strcmp(kv.impostors[i]->key, key) == 0)
            put_before(kv.impostors[i], kv.entries[kv.n].value);
    kv.n++;
    pthread_mutex_unlock(&kv.lock);
    return TESS_OK;
}

static int take(const char *key, void *value, uint64_t *bytes) {
    int at = 0, there;
    pthread_mutex_lock(&kv.lock);
    while (at < kv.n && strcmp(kv.entries[at].key, key) != 0)
        at++;
    there = at < kv.n;
    if (there)
        memcpy(value, kv.entries[at].value, *bytes = kv.entries[at].bytes);
    pthread_mutex_unlock(&kv.lock);
    return there;
}

static tess_status kv_get(void *host, const char *key, void *value, uint64_t *bytes, int64_t timeout_ns) {
    (void)host;
    for (int64_t waited_ns = 0; !take(key, value, bytes); waited_ns += 1000000) {
        if (waited_ns >= timeout_ns)
            return TESS_E_TIMEOUT;
        pause_ms(1);
    }
    return TESS_OK;
}

/* ---- the ranks ------------------------------------------------------------------------------------ */

typedef struct {
    int rank;
    tess_host host;
    pthread_t thread;
    tess_status status;
    tess_error error;
    unsigned char *send, *recv, *scratch;
} rank_state;
static rank_state ranks[RANKS];
static atomic_int abort_all;

typedef struct {
    const void *ops;
    void *ctx;
} under;

static int32_t aborting(void *host) {
    (void)host;
    return atomic_load(&abort_all);
}

static const char *option(void *host, const char *key) {
    (void)host;
    return strcmp(key, "hosts-ranks") == 0 ? "2" : strcmp(key, "heartbeat") == 0 ? "0" : NULL;
}

static void log_nothing(void *host, int32_t level, const char *plugin, const char *message) {
    (void)host, (void)level, (void)plugin, (void)message;
}

static tess_status open_under(void *host, uint32_t kind, const char *name, const void **ops, void **ctx, void **handle,
                              tess_error *e) {
    const rank_state *r = host;
    open_fn open_it = strcmp(name, "shm") == 0 ? open_shm : open_gloo;
    tess_status s = open_it(&r->host, kind, ops, ctx, e);
    if (s < 0)
        return s;
    under *u = malloc(sizeof *u);
    *u = (under){ *ops, *ctx };
    *handle = u;
    return TESS_OK;
}

static void close_under(void *host, void *handle) {
    under *u = handle;
    (void)host;
    if (u && ((const tess_comm_ops *)u->ops)->close)
        ((const tess_comm_ops *)u->ops)->close(u->ctx);
    free(u);
}

static tess_collective gather_of(rank_state *r) {
    return (tess_collective){ .struct_size = sizeof(tess_collective),
                              .op = TESS_ALL_GATHER,
                              .send_dtype = TESS_U8,
                              .recv_dtype = TESS_U8,
                              .send_mem = TESS_MEM_HOST,
                              .recv_mem = TESS_MEM_HOST,
                              .send = r->send,
                              .recv = r->recv,
                              .count = BLOCK,
                              .scale = 1 };
}

/* In two steps, so that every group has to do. */
static tess_status gather(const tess_comm_ops *ops, void *ctx, tess_comm *comm, rank_state *r) {
    const tess_plan_env env = {
        .struct_size = sizeof env, .mem = TESS_MEM_HOST, .nranks = RANKS, .ranks_per_host = EACH, .in_flight = 1
    };
    tess_collective c = gather_of(r);
    tess_need need = { .struct_size = sizeof need };
    tess_request *request = NULL;
    tess_status s = ops->need(ctx, &env, &c, &need);
    c.scratch = r->scratch = malloc(need.device_bytes + 1);
    c.scratch_bytes = need.device_bytes;
    if (s == TESS_OK && (s = ops->post(comm, &c, 1, &request, &r->error)) == TESS_OK) {
        s = ops->wait(request, -1, &r->error);
        ops->request_free(request);
    }
    free(r->scratch);
    return s;
}

static tess_status meet(const tess_comm_ops *ops, void *ctx, rank_state *r) {
    const int64_t soon = 20000000000;
    const tess_comm_config config = {
        .struct_size = sizeof config, .rank = r->rank, .nranks = RANKS, .group = "w", .timeout_ns = soon, .device = -1
    };
    tess_comm *comm = NULL;
    tess_status s = ops->init(ctx, &config, &comm, &r->error);
    if (s)
        return s;
    s = gather(ops, ctx, comm, r);
    if (s == TESS_OK)
        s = ops->finalize(comm, soon, &r->error);
    ops->destroy(comm);
    return s;
}

static void *run_rank(void *user) {
    rank_state *r = user;
    const void *ops = NULL;
    void *ctx = NULL;
    r->host = (tess_host){ .struct_size = sizeof r->host,
                           .abi_major = TESS_ABI_MAJOR,
                           .abi_minor = TESS_ABI_MINOR,
                           .host = r,
                           .log = log_nothing,
                           .option = option,
                           .kv_set = kv_set,
                           .kv_get = kv_get,
                           .aborting = aborting,
                           .plugin_open = open_under,
                           .plugin_close = close_under,
                           .args = "",
                           .helper_cpus = "" };
    r->error = (tess_error){ .struct_size = sizeof r->error, .rank = -1 };
    r->status = open_hosts(&r->host, TESS_KIND_COMM, &ops, &ctx, &r->error);
    if (r->status)
        return NULL;
    r->status = meet(ops, ctx, r);
    ((const tess_comm_ops *)ops)->close(ctx);
    return NULL;
}

static void start_ranks(void) {
    for (int i = 0; i < RANKS; i++) {
        ranks[i] = (rank_state){ .rank = i, .send = malloc(BLOCK), .recv = calloc(RANKS, BLOCK) };
        memset(ranks[i].send, 'a' + i, BLOCK);
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
    }
}

static void free_ranks(void) {
    for (int i = 0; i < RANKS; i++) {
        free(ranks[i].send);
        free(ranks[i].recv);
    }
}

/* ---- impostors of gloo ---------------------------------------------------------------------------- */

static size_t read_all(int fd, unsigned char *out, size_t bytes) {
    size_t n = 0;
    struct pollfd wait = { .fd = fd, .events = POLLIN };
    while (n < bytes && poll(&wait, 1, 10000) > 0) {
        ssize_t got = recv(fd, out + n, bytes - n, 0);
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    return n;
}

static void put(int fd, const void *data, size_t bytes) {
    for (size_t n = 0; n < bytes;) {
        ssize_t sent = send(fd, (const unsigned char *)data + n, bytes - n, MSG_NOSIGNAL);
        if (sent <= 0)
            return;
        n += (size_t)sent;
    }
}

/* Noise, or what the group of all ranks has heard. It is left without a word. */
static void deceive(impostor *i, int fd, int replays) {
    unsigned char greeting[GREETING] = "TGG2", answer[ANSWER], proof[PROOF], more;
    for (int k = 0; k < PROOF; k++)
        greeting[4 + k] = (unsigned char)rand(), proof[k] = (unsigned char)rand();
    put(fd, replays ? heard.greeting : greeting, GREETING);
    if (read_all(fd, answer, ANSWER) != ANSWER)
        return;
    put(fd, replays ? heard.proof : proof, PROOF);
    struct pollfd end = { .fd = fd, .events = POLLIN };
    if (poll(&end, 1, 10000) == 1 && recv(fd, &more, 1, 0) <= 0)
        atomic_fetch_add(&i->left, 1);
}

static int pump(int from, int to) {
    unsigned char data[1 << 14];
    ssize_t got = recv(from, data, sizeof data, 0);
    if (got > 0)
        put(to, data, (size_t)got);
    return got > 0;
}

typedef struct {
    impostor *of;
    int in, records;
} way;

/* Between a rank and the one that it means. */
static void *hand_on(void *user) {
    way w = *(way *)user;
    unsigned char answer[ANSWER];
    int out = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    free(user);
    if (connect(out, (const struct sockaddr *)&w.of->real.address, sizeof(struct sockaddr_in)) == 0) {
        if (w.records && read_all(out, heard.greeting, GREETING) == GREETING) {
            put(w.in, heard.greeting, GREETING);
            put(out, answer, read_all(w.in, answer, ANSWER));
            put(w.in, heard.proof, read_all(out, heard.proof, PROOF));
            atomic_store(&heard.whole, 1);
        }
        struct pollfd both[2] = { { .fd = w.in, .events = POLLIN }, { .fd = out, .events = POLLIN } };
        while (poll(both, 2, 10000) > 0)
            if ((both[0].revents && !pump(w.in, out)) || (both[1].revents && !pump(out, w.in)))
                break;
    }
    close(w.in);
    close(out);
    return NULL;
}

static void *run_impostor(void *user) {
    impostor *i = user;
    while (!atomic_load(&i->ended)) {
        struct pollfd wait = { .fd = i->listener, .events = POLLIN };
        int fd = poll(&wait, 1, 10) > 0 ? accept(i->listener, NULL, NULL) : -1;
        if (fd < 0)
            continue;
        const int turn = atomic_fetch_add(&i->came, 1);
        if (turn < i->hostile) {
            deceive(i, fd, turn % 2 && atomic_load(&heard.whole));
            close(fd);
        } else if (i->n_taps < TAPS) {
            way *w = malloc(sizeof *w);
            *w = (way){ i, fd, strcmp(i->key, "w/whole/gloo/0") == 0 && turn == 0 };
            pthread_create(&i->taps[i->n_taps++], NULL, hand_on, w);
        }
    }
    return NULL;
}

static void let_in(impostor *i) {
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    i->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(i->listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(i->listener, 16), 0);
    assert_int_equal(pthread_create(&i->thread, NULL, run_impostor, i), 0);
}

static void let_out(impostor *i) {
    atomic_store(&i->ended, 1);
    pthread_join(i->thread, NULL);
    for (int k = 0; k < i->n_taps; k++)
        pthread_join(i->taps[k], NULL);
    close(i->listener);
}

static void test_hosts_impostor__ranks_behind_impostors_are_met(void **state) {
    (void)state;
    impostor all[] = { { .key = "w/whole/gloo/0" },
                       { .key = "w/rail0/gloo/0", .hostile = 4 },
                       { .key = "w/rail1/gloo/0", .hostile = 4 } };
    kv.n = 0;
    for (int i = 0; i < 3; i++) {
        kv.impostors[i] = &all[i];
        let_in(&all[i]);
    }
    start_ranks();
    for (int r = 0; r < RANKS; r++) {
        pthread_join(ranks[r].thread, NULL);
        if (ranks[r].status != TESS_OK)
            fail_msg("rank %d ended with %d: %s", r, ranks[r].status, ranks[r].error.message);
        for (int k = 0; k < RANKS; k++)
            assert_true(ranks[r].recv[k * BLOCK] == 'a' + k &&
                        memcmp(ranks[r].recv + k * BLOCK, ranks[k].send, BLOCK) == 0);
    }
    free_ranks();
    for (int i = 0; i < 3; i++) {
        let_out(&all[i]);
        kv.impostors[i] = NULL;
        assert_int_equal(atomic_load(&all[i].left), all[i].hostile);
    }
    assert_int_equal(atomic_load(&heard.whole), 1);
}

/* ---- an impostor of shm --------------------------------------------------------------------------- */

/* Takes what it is sent, and sends it back. */
static void answer_with_the_same(int fd) {
    unsigned char said[64];
    union {
        char bytes[CMSG_SPACE(8 * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec io = { said, sizeof said };
    struct msghdr message = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control
    };
    ssize_t got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    assert_true(got > 0);
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    assert_non_null(c);
    int fds[4]; /* as many as there are for two ranks */
    memcpy(fds, CMSG_DATA(c), 2 * sizeof(int));
    memcpy(fds + 2, CMSG_DATA(c), 2 * sizeof(int));
    io.iov_len = (size_t)got;
    message.msg_controllen = CMSG_SPACE(sizeof fds);
    c->cmsg_len = CMSG_LEN(sizeof fds);
    memcpy(CMSG_DATA(c), fds, sizeof fds);
    assert_int_equal(sendmsg(fd, &message, MSG_NOSIGNAL), got);
    close(fds[0]);
    close(fds[1]);
}

static void test_hosts_impostor__rank_whose_place_is_taken_is_named(void **state) {
    (void)state;
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    impostor first = { .key = "w/host2/shm/0", .listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0) };
    kv.n = 0;
    kv.impostors[0] = &first;
    assert_int_equal(bind(first.listener, (struct sockaddr *)&at, sizeof at.sun_family), 0);
    assert_int_equal(listen(first.listener, 1), 0);
    start_ranks();
    int fd = accept(first.listener, NULL, NULL);
    answer_with_the_same(fd);
    pthread_join(ranks[3].thread, NULL);
    atomic_store(&abort_all, 1); /* as the control plane does */
    for (int r = 0; r < 3; r++)
        pthread_join(ranks[r].thread, NULL);
    atomic_store(&abort_all, 0);
    for (int r = 0; r < 3; r++)
        assert_true(ranks[r].status == TESS_E_ABORTED || ranks[r].status == TESS_E_PEER);
    assert_int_equal(ranks[3].status, TESS_E_PEER);
    assert_int_equal(ranks[3].error.rank, 2);
    assert_non_null(strstr(ranks[3].error.message, "shm: no descriptors came from rank 0"));
    assert_non_null(strstr(ranks[3].error.message, "(of the group \"host2\", whose rank 0 is rank 2)"));
    free_ranks();
    kv.impostors[0] = NULL;
    close(fd);
    close(first.listener);
}

/* ---- the program ---------------------------------------------------------------------------------- */

static open_fn load(const char *name) {
    char path[4096];
    open_fn found = NULL;
    snprintf(path, sizeof path, "%s/libtessera-comm-%s.so", getenv("TESSERA_PLUGIN_PATH"), name);
    void *plugin = access(path, R_OK) == 0 ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (plugin)
        *(void **)&found = dlsym(plugin, "tess_plugin_open_v1");
    else
        printf("skipped: comm-%s is not built\n", name);
    return found;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hosts_impostor__ranks_behind_impostors_are_met),
        cmocka_unit_test(test_hosts_impostor__rank_whose_place_is_taken_is_named),
    };
    if (!(open_hosts = load("hosts")) || !(open_shm = load("shm")) || !(open_gloo = load("gloo")))
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
