/* SPDX-License-Identifier: BSD-3-Clause */
/* comm-gloo while its ranks connect: strangers are dropped and the wait goes on, aborts end everybody in order, and a
 * rank that cannot be reached is named; and why a connected one left. Ranks are threads over a key-value store of the
 * test's own. */
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
#include <time.h>
#include <unistd.h>

#include <tessera/plugin.h>

enum { RANKS_MAX = 4, GREETING = 36, ANSWER = 72, PROOF = 32, GARBAGE = 400, SLOW = 200, ABORTS = 100 };
typedef tess_status (*open_fn)(const tess_host *, uint32_t, const void **, void **, tess_error *);
static open_fn open_plugin;

/* ---- the store ---------------------------------------------------------------------------------- */

typedef struct {
    uint32_t magic, nranks;
    struct sockaddr_storage address;
    unsigned char key[32];
} card;

typedef struct {
    pthread_mutex_t lock;
    int has[RANKS_MAX], held[RANKS_MAX]; /* held: nobody gets this card yet */
    card cards[RANKS_MAX];
    int64_t far_ns; /* how long an answer takes */
    int gated;      /* ranks that have joined wait for `open` */
    atomic_int joined, open;
} store;

typedef struct {
    store *kv;
    int rank, nranks;
    atomic_int aborting;
    const char *heartbeat;
    int64_t join_ns;
    uint64_t tag;                     /* of its barrier */
    const struct sockaddr_in *past_0; /* where it is told that rank 0 is; null: the truth */
    pthread_t thread;
    tess_status status;
    tess_error error;
} rank_state;

static void pause_ms(long ms) {
    nanosleep(&(struct timespec){ .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 }, NULL);
}

static tess_status kv_set(void *host, const char *key, const void *value, uint64_t bytes) {
    rank_state *r = host;
    int at = atoi(strrchr(key, '/') + 1);
    if (bytes != sizeof(card) || at != r->rank)
        return TESS_E_INTERNAL;
    pthread_mutex_lock(&r->kv->lock);
    memcpy(&r->kv->cards[at], value, bytes);
    r->kv->has[at] = 1;
    pthread_mutex_unlock(&r->kv->lock);
    return TESS_OK;
}

static int take_card(store *kv, int at, int even_held, card *out) {
    pthread_mutex_lock(&kv->lock);
    int there = kv->has[at] && (even_held || !kv->held[at]);
    if (there)
        *out = kv->cards[at];
    pthread_mutex_unlock(&kv->lock);
    return there;
}

static tess_status kv_get(void *host, const char *key, void *value, uint64_t *bytes, int64_t timeout_ns) {
    rank_state *r = host;
    int at = atoi(strrchr(key, '/') + 1);
    for (int64_t waited_ns = 0; waited_ns < r->kv->far_ns || !take_card(r->kv, at, 0, value); waited_ns += 1000000) {
        if (waited_ns >= timeout_ns)
            return TESS_E_TIMEOUT;
        pause_ms(1);
    }
    if (at == 0 && r->past_0)
        memcpy((char *)value + offsetof(card, address), r->past_0, sizeof *r->past_0);
    *bytes = sizeof(card);
    return TESS_OK;
}

static int32_t aborting(void *host) {
    return atomic_load(&((rank_state *)host)->aborting);
}

static const char *option(void *host, const char *key) {
    return strcmp(key, "heartbeat") == 0 ? ((rank_state *)host)->heartbeat : NULL;
}

static void hold(store *kv, int rank, int held) {
    pthread_mutex_lock(&kv->lock);
    kv->held[rank] = held;
    pthread_mutex_unlock(&kv->lock);
}

static card await_card(store *kv, int rank) {
    card c;
    while (!take_card(kv, rank, 1, &c))
        pause_ms(1);
    return c;
}

/* ---- a rank ------------------------------------------------------------------------------------- */

static tess_status meet_and_part(const tess_comm_ops *ops, void *ctx, const rank_state *r, tess_error *error) {
    tess_comm_config config = {
        .struct_size = sizeof config, .rank = r->rank, .nranks = r->nranks, .group = "world", .timeout_ns = r->join_ns
    };
    tess_comm *comm = NULL;
    tess_collective barrier = { .struct_size = sizeof barrier, .op = TESS_BARRIER, .scale = 1, .tag = r->tag };
    tess_request *request = NULL;
    tess_status s = ops->init(ctx, &config, &comm, error);
    if (s)
        return s;
    atomic_fetch_add(&r->kv->joined, 1);
    while (r->kv->gated && !atomic_load(&r->kv->open))
        pause_ms(1);
    s = ops->post(comm, &barrier, 1, &request, error);
    if (!s)
        s = ops->wait(request, 60000000000, error);
    if (request)
        ops->request_free(request);
    if (!s)
        s = ops->finalize(comm, 60000000000, error);
    ops->destroy(comm);
    return s;
}

static void *run_rank(void *user) {
    rank_state *r = user;
    tess_host host = { .struct_size = sizeof host,
                       .abi_major = TESS_ABI_MAJOR,
                       .abi_minor = TESS_ABI_MINOR,
                       .host = r,
                       .option = option,
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
    r->status = meet_and_part(ops, ctx, r, &r->error);
    ((const tess_comm_ops *)ops)->close(ctx);
    return NULL;
}

static void start(rank_state *ranks, int n, store *kv, const char *heartbeat) {
    *kv = (store){ .lock = PTHREAD_MUTEX_INITIALIZER };
    for (int r = 0; r < n; r++)
        ranks[r] = (rank_state){ .kv = kv, .rank = r, .nranks = n, .heartbeat = heartbeat, .join_ns = 60000000000 };
}

static void go(rank_state *r) {
    assert_int_equal(pthread_create(&r->thread, NULL, run_rank, r), 0);
}

static void end_well(rank_state *ranks, int n) {
    for (int r = 0; r < n; r++)
        pthread_join(ranks[r].thread, NULL);
    for (int r = 0; r < n; r++)
        if (ranks[r].status != TESS_OK)
            fail_msg("rank %d ended with %d: %s", r, ranks[r].status, ranks[r].error.message);
}

static void test_gloo_connect__ranks_far_from_the_store_meet(void **state) {
    (void)state;
    store kv;
    rank_state ranks[3];
    start(ranks, 3, &kv, "0");
    kv.far_ns = 90000000;
    for (int r = 0; r < 3; r++)
        go(&ranks[r]);
    end_well(ranks, 3);
}

/* ---- strangers ---------------------------------------------------------------------------------- */

static int reach(const card *to) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&to->address, sizeof(struct sockaddr_in)), 0);
    return fd;
}

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
    ssize_t ignored = send(fd, data, bytes, MSG_NOSIGNAL);
    (void)ignored;
}

static void send_garbage(const card *to) {
    unsigned char noise[200];
    for (size_t i = 0; i < sizeof noise; i++)
        noise[i] = (unsigned char)rand();
    int fd = reach(to);
    put(fd, noise, (size_t)rand() % sizeof noise);
    close(fd);
}

/* An answer of the right form that says it is `rank`. Nothing but the end may come back. */
static void assert_refused(const card *to, const unsigned char answer[ANSWER]) {
    unsigned char greeting[GREETING], proof[PROOF];
    int fd = reach(to);
    assert_int_equal(read_all(fd, greeting, sizeof greeting), GREETING);
    put(fd, answer, ANSWER);
    assert_int_equal(read_all(fd, proof, sizeof proof), 0);
    close(fd);
}

static void make_answer(uint32_t rank, unsigned char out[ANSWER]) {
    memcpy(out, "TGA2", 4);
    memcpy(out + 4, &rank, sizeof rank);
    for (int i = 8; i < ANSWER; i++)
        out[i] = (unsigned char)rand();
}

static void visit(const card *to, int *slow) {
    unsigned char answer[ANSWER];
    for (int i = 0; i < SLOW; i++)
        slow[i] = reach(to);
    for (int i = 0; i < GARBAGE; i++)
        send_garbage(to);
    for (uint32_t rank = 1; rank < 3; rank++) {
        make_answer(rank, answer);
        assert_refused(to, answer);
    }
}

static void test_gloo_connect__strangers_come_first_ranks_still_meet(void **state) {
    (void)state;
    static int slow[2][SLOW];
    store kv;
    rank_state ranks[3];
    start(ranks, 3, &kv, "0");
    hold(&kv, 1, 1);
    for (int r = 0; r < 2; r++)
        go(&ranks[r]);
    for (int r = 0; r < 2; r++) {
        card to = await_card(&kv, r);
        if (r == 0)
            hold(&kv, 1, 0); /* so that rank 0 can judge who says that it is rank 1 */
        visit(&to, slow[r]);
    }
    go(&ranks[2]);
    end_well(ranks, 3);
    for (int i = 0; i < SLOW; i++) {
        close(slow[0][i]);
        close(slow[1][i]);
    }
}

/* ---- replay ------------------------------------------------------------------------------------- */

typedef struct {
    int listener;
    card real;
    unsigned char answer[ANSWER];
    atomic_int heard;
    pthread_t thread;
} tap; /* stands between rank 1 and rank 0, and remembers what rank 1 said */

static int pump(int from, int to) {
    unsigned char data[4096];
    ssize_t got = recv(from, data, sizeof data, 0);
    if (got > 0)
        put(to, data, (size_t)got);
    return got > 0;
}

static void *run_tap(void *user) {
    tap *t = user;
    unsigned char greeting[GREETING];
    int in = accept(t->listener, NULL, NULL), out = reach(&t->real);
    read_all(out, greeting, GREETING);
    put(in, greeting, GREETING);
    read_all(in, t->answer, ANSWER);
    put(out, t->answer, ANSWER);
    atomic_store(&t->heard, 1);
    struct pollfd both[2] = { { .fd = in, .events = POLLIN }, { .fd = out, .events = POLLIN } };
    while (poll(both, 2, 10000) > 0)
        if ((both[0].revents && !pump(in, out)) || (both[1].revents && !pump(out, in)))
            break;
    close(in);
    close(out);
    return NULL;
}

/* From now on, who reads rank 0's card comes to this listener. */
static void listen_for_rank_0(tap *t, store *kv) {
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t size = sizeof at;
    t->real = await_card(kv, 0);
    t->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(t->listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(t->listener, 1), 0);
    assert_int_equal(getsockname(t->listener, (struct sockaddr *)&at, &size), 0);
    pthread_mutex_lock(&kv->lock);
    memcpy(&kv->cards[0].address, &at, sizeof at);
    kv->held[0] = 0;
    pthread_mutex_unlock(&kv->lock);
}

static void test_gloo_connect__recorded_answer_is_of_no_use(void **state) {
    (void)state;
    store kv;
    rank_state ranks[3];
    tap t = { .heard = 0 };
    start(ranks, 3, &kv, "0");
    hold(&kv, 0, 1);
    go(&ranks[0]);
    go(&ranks[1]);
    listen_for_rank_0(&t, &kv);
    assert_int_equal(pthread_create(&t.thread, NULL, run_tap, &t), 0);
    while (!atomic_load(&t.heard))
        pause_ms(1);
    assert_refused(&t.real, t.answer);
    pthread_mutex_lock(&kv.lock);
    kv.cards[0] = t.real;
    pthread_mutex_unlock(&kv.lock);
    go(&ranks[2]);
    end_well(ranks, 3);
    pthread_join(t.thread, NULL);
    close(t.listener);
}

/* ---- impostors ---------------------------------------------------------------------------------- */

/* Greets as rank 0 would and cannot prove it: with noise, or with what rank 1 itself has just said. Rank 1 hangs up
 * without a word. */
static void assert_left(const tap *t, int echoes) {
    unsigned char greeting[GREETING] = "TGG2", answer[ANSWER], proof[PROOF], more;
    int fd = accept(t->listener, NULL, NULL);
    for (int i = 0; i < PROOF; i++)
        greeting[4 + i] = (unsigned char)rand(), proof[i] = (unsigned char)rand();
    put(fd, greeting, sizeof greeting);
    assert_int_equal(read_all(fd, answer, sizeof answer), ANSWER);
    put(fd, echoes ? answer + ANSWER - PROOF : proof, PROOF);
    struct pollfd end = { .fd = fd, .events = POLLIN };
    assert_int_equal(poll(&end, 1, 10000), 1);
    assert_int_equal(recv(fd, &more, 1, 0), 0);
    close(fd);
}

static void test_gloo_connect__who_listens_in_a_ranks_place_is_left(void **state) {
    (void)state;
    store kv;
    rank_state ranks[2];
    tap t = { .heard = 0 };
    start(ranks, 2, &kv, "0");
    hold(&kv, 0, 1);
    for (int r = 0; r < 2; r++)
        go(&ranks[r]);
    listen_for_rank_0(&t, &kv);
    for (int echoes = 0; echoes < 2; echoes++)
        assert_left(&t, echoes);
    assert_int_equal(pthread_create(&t.thread, NULL, run_tap, &t), 0); /* the real one behind it is taken */
    end_well(ranks, 2);
    pthread_join(t.thread, NULL);
    close(t.listener);
}

/* Nobody is behind the impostor: the wait ends in its time, whether rank 1 is answered with noise or with silence. */
static void test_gloo_connect__an_impostor_alone_ends_the_join_in_time(void **state) {
    (void)state;
    for (int silent = 0; silent < 2; silent++) {
        store kv;
        rank_state ranks[2];
        tap t = { .heard = 0 };
        struct timespec before, after;
        start(ranks, 2, &kv, "0.4");
        ranks[1].join_ns = 1000000000;
        kv.has[0] = 1;
        kv.cards[0] = (card){ .magic = 0x32434754, .nranks = 2 };
        listen_for_rank_0(&t, &kv);
        clock_gettime(CLOCK_MONOTONIC, &before);
        go(&ranks[1]);
        if (silent)
            assert_true(accept(t.listener, NULL, NULL) >= 0);
        else
            assert_left(&t, 0);
        pthread_join(ranks[1].thread, NULL);
        clock_gettime(CLOCK_MONOTONIC, &after);
        assert_int_equal(ranks[1].status, TESS_E_TIMEOUT);
        assert_int_equal(ranks[1].error.rank, 0);
        assert_non_null(strstr(ranks[1].error.message, "rank 0 has not joined group 'world' within 1.0 s"));
        assert_true(after.tv_sec - before.tv_sec < 5);
        close(t.listener);
    }
}

/* ---- ends --------------------------------------------------------------------------------------- */

static void abort_round(int round) {
    store kv;
    rank_state ranks[RANKS_MAX];
    start(ranks, RANKS_MAX, &kv, "0");
    for (int r = 0; r < RANKS_MAX; r++)
        go(&ranks[r]);
    nanosleep(&(struct timespec){ .tv_nsec = rand() % 4000000 }, NULL);
    atomic_store(&ranks[round % RANKS_MAX].aborting, 1);
    nanosleep(&(struct timespec){ .tv_nsec = rand() % 20000000 }, NULL);
    for (int r = 0; r < RANKS_MAX; r++)
        atomic_store(&ranks[r].aborting, 1);
    for (int r = 0; r < RANKS_MAX; r++) {
        pthread_join(ranks[r].thread, NULL);
        if (ranks[r].status != TESS_OK && ranks[r].status != TESS_E_ABORTED && ranks[r].status != TESS_E_PEER)
            fail_msg("round %d, rank %d ended with %d: %s", round, r, ranks[r].status, ranks[r].error.message);
    }
}

/* Gloo's own connections ended the process here, when one was reset before its thread had looked at it.
 * TESSERA_TEST_ABORTS: how many. */
static void test_gloo_connect__aborts_end_every_rank_in_order(void **state) {
    (void)state;
    const char *rounds = getenv("TESSERA_TEST_ABORTS");
    for (int round = 0; round < (rounds ? atoi(rounds) : ABORTS); round++)
        abort_round(round);
}

static void test_gloo_connect__unreachable_rank_is_named(void **state) {
    (void)state;
    store kv;
    rank_state ranks[2];
    start(ranks, 2, &kv, "0.5");
    kv.has[0] = 1;
    struct sockaddr_in nowhere = { .sin_family = AF_INET, .sin_port = htons(9) };
    nowhere.sin_addr.s_addr = htonl(0xc0000201); /* 192.0.2.1, which is nobody's */
    kv.cards[0] = (card){ .magic = 0x32434754, .nranks = 2 };
    memcpy(&kv.cards[0].address, &nowhere, sizeof nowhere);
    go(&ranks[1]);
    pthread_join(ranks[1].thread, NULL);
    assert_int_equal(ranks[1].status, TESS_E_PEER);
    assert_int_equal(ranks[1].error.rank, 0);
    assert_non_null(strstr(ranks[1].error.message, "rank 0 cannot be reached from rank 1 at 192.0.2.1 port 9"));
}

static void test_gloo_connect__groups_of_two_sizes_mismatch(void **state) {
    (void)state;
    store kv;
    rank_state ranks[3];
    start(ranks, 3, &kv, "0");
    ranks[1].nranks = 2;
    go(&ranks[0]);
    go(&ranks[1]);
    for (int r = 0; r < 2; r++) {
        pthread_join(ranks[r].thread, NULL);
        assert_int_equal(ranks[r].status, TESS_E_MISMATCH);
        assert_int_equal(ranks[r].error.rank, 1 - r);
    }
}

/* ---- a header that comes late ---------------------------------------------------------------------- */

typedef struct { /* between the last rank, which connects to it, and rank 0 */
    int listener;
    struct sockaddr_in address;
    card to;
    atomic_int holds, held; /* nothing goes on to rank 0 */
    pthread_t thread;
} relay;

static int hand_on(int from, int to) {
    unsigned char data[4096];
    ssize_t got = recv(from, data, sizeof data, MSG_DONTWAIT);
    if (got > 0)
        put(to, data, (size_t)got);
    return got != 0;
}

static void *run_relay(void *user) {
    relay *b = user;
    const int ends[2] = { accept(b->listener, NULL, NULL), reach(&b->to) };
    for (int goes_on = 1; goes_on;) {
        const int holds = atomic_load(&b->holds);
        atomic_store(&b->held, holds);
        struct pollfd both[2] = { { .fd = holds ? -1 : ends[0], .events = POLLIN },
                                  { .fd = ends[1], .events = POLLIN } };
        poll(both, 2, 1);
        for (int i = 0; i < 2; i++)
            if (both[i].revents)
                goes_on &= hand_on(ends[i], ends[!i]);
    }
    close(ends[0]);
    close(ends[1]);
    return NULL;
}

static void start_relay(relay *b, card to) {
    socklen_t size = sizeof b->address;
    *b = (relay){ .to = to, .address.sin_family = AF_INET, .address.sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    b->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(b->listener, (const struct sockaddr *)&b->address, size), 0);
    assert_int_equal(listen(b->listener, 1), 0);
    assert_int_equal(getsockname(b->listener, (struct sockaddr *)&b->address, &size), 0);
    assert_int_equal(pthread_create(&b->thread, NULL, run_relay, b), 0);
}

/* Rank 1 finds that rank 2 differs, and leaves before rank 0 has heard rank 2. */
static void differ_behind_a_relay(rank_state *ranks, int comes) {
    store kv;
    relay b;
    start(ranks, 3, &kv, "0");
    kv.gated = 1;
    ranks[2].tag = 7;
    ranks[2].past_0 = &b.address;
    go(&ranks[0]);
    start_relay(&b, await_card(&kv, 0));
    go(&ranks[1]);
    go(&ranks[2]);
    while (atomic_load(&kv.joined) < 3)
        pause_ms(1);
    atomic_store(&b.holds, 1);
    while (!atomic_load(&b.held))
        pause_ms(1);
    atomic_store(&kv.open, 1);
    pthread_join(ranks[1].thread, NULL);
    pause_ms(20);
    atomic_store(&b.holds, !comes);
    pthread_join(ranks[0].thread, NULL);
    atomic_store(&b.holds, 0);
    pthread_join(ranks[2].thread, NULL);
    pthread_join(b.thread, NULL);
    close(b.listener);
}

static void test_gloo_connect__a_late_header_explains_who_left(void **state) {
    (void)state;
    for (int comes = 0; comes < 2; comes++) {
        rank_state ranks[3];
        differ_behind_a_relay(ranks, comes);
        for (int r = 0; r < 3; r++) {
            const int lost = r == 0 && !comes, with = ranks[r].error.rank;
            if (ranks[r].status != (lost ? TESS_E_PEER : TESS_E_MISMATCH) || (r < 2 ? with != 2 - lost : with > 1))
                fail_msg("rank %d ended with %d: %s", r, ranks[r].status, ranks[r].error.message);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gloo_connect__ranks_far_from_the_store_meet),
        cmocka_unit_test(test_gloo_connect__strangers_come_first_ranks_still_meet),
        cmocka_unit_test(test_gloo_connect__recorded_answer_is_of_no_use),
        cmocka_unit_test(test_gloo_connect__who_listens_in_a_ranks_place_is_left),
        cmocka_unit_test(test_gloo_connect__an_impostor_alone_ends_the_join_in_time),
        cmocka_unit_test(test_gloo_connect__aborts_end_every_rank_in_order),
        cmocka_unit_test(test_gloo_connect__unreachable_rank_is_named),
        cmocka_unit_test(test_gloo_connect__groups_of_two_sizes_mismatch),
        cmocka_unit_test(test_gloo_connect__a_late_header_explains_who_left),
    };
    char path[4096];
    snprintf(path, sizeof path, "%s/libtessera-comm-gloo.so", getenv("TESSERA_PLUGIN_PATH"));
    if (access(path, R_OK) != 0) {
        printf("skipped: comm-gloo is not built\n");
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
