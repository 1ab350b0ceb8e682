/* SPDX-License-Identifier: BSD-3-Clause */
#include "kv_state.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "local.h"
#include "base/status.h"
#include "base/thread.h"

enum { STRANGER_LIMIT = 1024, RANK_LIMIT = TESS__KV_VALUE_MAX + 4 * TESS__KV_MEMBERS_MAX + 1024 };

static int32_t count_joined(const tess__kv_server *server) {
    int32_t n = 0;
    for (int32_t r = 0; r < server->nranks; r++)
        n += atomic_load(&server->joined[r]);
    return n;
}

/* ---- clients ----------------------------------------------------------------------------------- */

static void free_client(tess__kv_client *client) {
    tess__link_close(&client->link);
    tess__inbox_clear(&client->in);
    tess__outbox_clear(&client->out);
    while (client->waits)
        tess__kv_cancel(client, client->waits->id);
    free(client);
}

static void sweep_clients(tess__kv_server *server) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < server->n_clients; i++) {
        tess__kv_client *client = server->clients[i];
        if (client->link.fd >= 0)
            server->clients[kept++] = client;
        else
            free_client(client);
    }
    server->n_clients = kept;
}

/* ---- hello ------------------------------------------------------------------------------------- */

static void refuse_client(tess__kv_server *server, tess__kv_client *client, tess_status status, const char *why) {
    tess__kv_send_text(server, client, TESS__WIRE_REFUSED, 0, status, why);
    client->closing = 1;
}

/* Why this hello is not accepted, or null. */
static const char *hello_fault(const tess__kv_server *server, const tess__message *in, char *text, size_t size) {
    if (strlen(server->job) != in->value_bytes ||
        (in->value_bytes && memcmp(server->job, in->value, in->value_bytes) != 0))
        return "it belongs to another job";
    if (atoi(in->key) != server->world) {
        snprintf(text, size, "it belongs to a world of %.12s ranks, here are %d (WORLD_SIZE)", in->key,
                 (int)server->world);
        return text;
    }
    if (in->arg < 0 || in->arg >= server->world) {
        snprintf(text, size, "its rank %d is not in 0 to %d (RANK)", (int)in->arg, (int)server->world - 1);
        return text;
    }
    int32_t place = tess__kv_place(server, in->arg);
    if (place < 0)
        return "the others have gone on without it";
    if (!atomic_load(&server->joined[place]))
        return NULL;
    snprintf(text, size, "rank %d has joined already (two processes with the same RANK?)", (int)in->arg);
    return text;
}

/* Notes the address for ranks of other hosts. Ranks beside the server may know only its loopback, so what a rank of
 * another host connected to counts. */
static void note_address(tess__kv_server *server, const tess__kv_client *client) {
    char address[sizeof server->address];
    tess__wire_own_address(client->link.fd, address, sizeof address);
    if (!*server->address && *address && !tess__wire_is_loopback(address))
        snprintf(server->address, sizeof server->address, "%s", address);
}

static void handle_hello(tess__kv_server *server, tess__kv_client *client, const tess__message *in) {
    char text[160];
    const char *fault = hello_fault(server, in, text, sizeof text);
    if (fault || server->timed_out) {
        refuse_client(server, client, fault ? TESS_E_INVALID : TESS_E_TIMEOUT, fault ? fault : server->timeout_text);
        return;
    }
    client->rank = tess__kv_place(server, in->arg);
    server->ranks[client->rank].client = client;
    tess__outbox_reserve(&client->out);
    atomic_store(&server->joined[client->rank], 1);
    atomic_fetch_add(&server->n_connected, 1);
    if (!server->first_hello_ns)
        server->first_hello_ns = tess__now_ns();
    note_address(server, client);
    snprintf(text, sizeof text, "%d", (int)server->nranks);
    tess__kv_send_text(server, client, TESS__WIRE_WELCOME, 0, client->rank, text);
    if (server->cause.settled)
        tess__kv_send_text(server, client, TESS__WIRE_LOST, 0, server->cause.rank, server->cause.text);
    else if (count_joined(server) == server->nranks) {
        server->ready = 1;
        tess__kv_broadcast(server, TESS__WIRE_READY, 0, server->address);
    }
}

/* ---- what comes in ----------------------------------------------------------------------------- */

/* Handles one message. 0, or -1 when the client does not keep to the protocol. */
static int handle_message(tess__kv_server *server, tess__kv_client *client, const tess__message *in) {
    if (client->rank < 0) {
        if (in->type != TESS__WIRE_HELLO)
            return -1;
        handle_hello(server, client, in);
        return 0;
    }
    switch (in->type) {
    case TESS__WIRE_SET: tess__kv_set(server, client, in); return 0;
    case TESS__WIRE_DROP: tess__kv_drop(server, client, in); return 0;
    case TESS__WIRE_GET: tess__kv_get(server, client, in); return 0;
    case TESS__WIRE_CANCEL: tess__kv_cancel(client, in->id); return 0;
    case TESS__WIRE_EXCHANGE:
        if (!in->id)
            return -1;
        tess__kv_exchange_add(server, client, in);
        return 0;
    case TESS__WIRE_DOING: tess__kv_doing(server, client->rank, in); return 0;
    case TESS__WIRE_REPORT: tess__kv_report(server, client->rank, in); return 0;
    case TESS__WIRE_GOODBYE: tess__kv_goodbye(server, client, in->arg); return 0;
    case TESS__WIRE_BACK: tess__kv_back(server, client); return 0;
    case TESS__WIRE_BEAT:
        if (in->id)
            server->ranks[client->rank].answered = 1;
        else
            tess__kv_send(server, client, TESS__WIRE_BEAT, 0, 0, NULL);
        return 0;
    default: return -1;
    }
}

static int handle_all(tess__kv_server *server, tess__kv_client *client) {
    tess__message in;
    while (client->link.fd >= 0 && !client->closing) {
        int got = tess__inbox_next(&client->in, client->rank < 0 ? STRANGER_LIMIT : RANK_LIMIT, &in);
        if (got <= 0)
            return got;
        if (handle_message(server, client, &in) != 0)
            return -1;
        tess__inbox_drop(&client->in, &in);
    }
    return 0;
}

static void read_client(tess__kv_server *server, tess__kv_client *client) {
    int got = tess__inbox_read(&client->in, &client->link);
    if (got > 0)
        client->heard_ns = tess__now_ns();
    if (got < 0 || (got > 0 && handle_all(server, client) != 0))
        tess__kv_hang_up(server, client);
    if (client->closing)
        tess__inbox_clear(&client->in);
}

static void drop_oldest_stranger(tess__kv_server *server) {
    tess__kv_client *oldest = NULL;
    uint32_t n = 0;
    for (uint32_t i = 0; i < server->n_clients; i++) {
        tess__kv_client *client = server->clients[i];
        if (client->link.fd < 0 || client->rank >= 0)
            continue;
        n++;
        if (!oldest || client->since_ns < oldest->since_ns)
            oldest = client;
    }
    /* Ranks that are still to come look like strangers until they have said hello, so they are not counted as such. */
    if (n >= TESS__KV_STRANGERS_MAX + (uint32_t)(server->nranks - count_joined(server)))
        tess__kv_hang_up(server, oldest);
}

static void accept_one(tess__kv_server *server, int fd) {
    int one = 1;
    if (server->n_clients == server->capacity)
        sweep_clients(server); /* frees clients that were hung up on in this turn */
    tess__kv_client *client = server->n_clients < server->capacity ? calloc(1, sizeof *client) : NULL;
    if (!client) {
        close(fd);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (tess__link_open(&client->link, fd, server->key) != 0) {
        free(client);
        return;
    }
    client->rank = -1;
    client->since_ns = client->heard_ns = tess__now_ns();
    tess__outbox_init(&client->out);
    server->clients[server->n_clients++] = client;
}

/* Accepts some connections. 0: nobody else waits. */
static int accept_some(tess__kv_server *server) {
    for (int i = 0; i < TESS__KV_STRANGERS_MAX; i++) {
        int fd = accept4(server->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0)
            return 0;
        if (*server->path && !tess__local_is_ours(fd)) {
            close(fd);
            continue;
        }
        drop_oldest_stranger(server);
        accept_one(server, fd);
    }
    return 1;
}

/* The hello of a rank that has ended may wait here unread, on a connection that is not accepted yet. */
static void catch_up(tess__kv_server *server) {
    uint32_t asked = atomic_load(&server->asked);
    if (asked == atomic_load(&server->caught_up))
        return;
    for (int more = 1; more;) {
        more = accept_some(server);
        for (uint32_t i = 0; i < server->n_clients; i++)
            if (server->clients[i]->link.fd >= 0 && !server->clients[i]->closing)
                read_client(server, server->clients[i]);
    }
    atomic_store(&server->caught_up, asked);
}

/* ---- the thread -------------------------------------------------------------------------------- */

static void drop_late_strangers(tess__kv_server *server, int64_t now_ns) {
    for (uint32_t i = 0; i < server->n_clients; i++) {
        tess__kv_client *client = server->clients[i];
        int64_t from_ns = client->rank < 0 ? client->since_ns : client->heard_ns;
        if ((client->rank < 0 || client->closing) && client->link.fd >= 0 &&
            now_ns - from_ns > TESS__KV_STRANGER_MS * 1000000ll)
            tess__kv_hang_up(server, client);
    }
}

static void flush_all(tess__kv_server *server) {
    for (uint32_t i = 0; i < server->n_clients; i++) {
        tess__kv_client *client = server->clients[i];
        if (client->link.fd < 0 || (!client->out.first && !client->closing))
            continue;
        int sent = tess__outbox_flush(&client->out, &client->link);
        if (sent < 0 || (sent > 0 && client->closing))
            tess__kv_hang_up(server, client);
    }
}

static void wait_for_events(tess__kv_server *server, struct pollfd *fds) {
    int64_t timeout_ms = TESS__KV_TICK_MS;
    const tess__kv_cause *cause = &server->cause;
    if (cause->strength && !cause->settled) {
        int64_t left_ms = (cause->deadline_ns - tess__now_ns()) / 1000000 + 1;
        timeout_ms = left_ms < 0 ? 0 : left_ms < timeout_ms ? left_ms : timeout_ms;
    }
    if (server->n_hung_up)
        timeout_ms = 0; /* news of this turn's end */
    fds[0] = (struct pollfd){ .fd = server->wake_fd, .events = POLLIN };
    fds[1] = (struct pollfd){ .fd = server->listen_fd, .events = POLLIN };
    for (uint32_t i = 0; i < server->n_clients; i++) {
        const tess__kv_client *client = server->clients[i];
        int reads = client->out.n < TESS__KV_QUEUE_MAX && !client->closing;
        short events = tess__link_events(&client->link, client->out.first != NULL);
        fds[2 + i] = (struct pollfd){ .fd = client->link.fd, .events = (short)(reads ? events : events & ~POLLIN) };
    }
    if (poll(fds, 2 + server->n_clients, (int)timeout_ms) < 0)
        fds[0].revents = fds[1].revents = 0;
}

/* Takes the exits that the launcher saw. Messages that those ranks sent before come first. */
static tess__kv_ended *take_ended(tess__kv_server *server) {
    pthread_mutex_lock(&server->lock);
    tess__kv_ended *list = server->ended;
    server->ended = NULL;
    server->ended_end = &server->ended;
    pthread_mutex_unlock(&server->lock);
    for (const tess__kv_ended *e = list; e; e = e->next)
        if (server->ranks[e->rank].client)
            read_client(server, server->ranks[e->rank].client);
    return list;
}

static void server_turn(tess__kv_server *server, struct pollfd *fds) {
    uint32_t n = server->n_clients;
    wait_for_events(server, fds);
    if (fds[0].revents) {
        uint64_t count;
        ssize_t ignored = read(server->wake_fd, &count, sizeof count);
        (void)ignored;
    }
    for (uint32_t i = 0; i < n; i++)
        if (server->clients[i]->link.fd >= 0 && !server->clients[i]->closing &&
            (fds[2 + i].revents & (POLLIN | POLLERR | POLLHUP)))
            read_client(server, server->clients[i]);
    if (fds[1].revents)
        accept_some(server);
    catch_up(server);
    int64_t now_ns = tess__now_ns();
    tess__kv_news_turn(server, take_ended(server), now_ns);
    drop_late_strangers(server, now_ns);
    flush_all(server);
    sweep_clients(server);
}

static void *server_work(void *user) {
    tess__kv_server *server = user;
    struct pollfd *fds = calloc(2 + (size_t)server->capacity, sizeof *fds);
    server->turn_ns = tess__now_ns();
    pthread_setname_np(pthread_self(), TESS__KV_SERVER_THREAD);
    while (fds && !atomic_load(&server->stop))
        server_turn(server, fds);
    free(fds);
    return NULL;
}

/* ---- start and stop ---------------------------------------------------------------------------- */

static void destroy_server(tess__kv_server *server) {
    for (uint32_t i = 0; i < server->n_clients; i++)
        free_client(server->clients[i]);
    while (server->ended) {
        tess__kv_ended *news = server->ended;
        server->ended = news->next;
        free(news);
    }
    if (server->listen_fd >= 0)
        close(server->listen_fd);
    if (server->wake_fd >= 0)
        close(server->wake_fd);
    tess__kv_exchange_free(server);
    tess__kv_store_destroy(server->store);
    pthread_mutex_destroy(&server->lock);
    free(server->clients);
    free(server->ranks);
    free(server->joined);
    free(server->silent);
    free(server->place);
    if (*server->path)
        unlink(server->path);
    tess__link_key_destroy(server->key);
    free(server);
}

/* Notes which of the first ranks are in this group, and under which number. */
static int number_ranks(tess__kv_server *server, const tess__kv_terms *terms) {
    server->world = terms->members ? terms->world : server->nranks;
    server->place = calloc((size_t)server->world, sizeof *server->place);
    for (int32_t r = 0; server->place && r < server->world; r++)
        server->place[r] = terms->members ? -1 : r;
    for (int32_t r = 0; server->place && terms->members && r < server->nranks; r++)
        server->place[terms->members[r]] = r;
    return server->place != NULL;
}

static tess__kv_server *create_server(int32_t nranks, const tess__kv_terms *terms) {
    tess__kv_server *server = calloc(1, sizeof *server);
    if (!server)
        return NULL;
    server->nranks = nranks;
    server->launcher = terms->launcher;
    server->capacity = 2 * (uint32_t)nranks + TESS__KV_STRANGERS_MAX;
    server->listen_fd = -1;
    server->ended_end = &server->ended;
    atomic_store(&server->culprit, -1);
    pthread_mutex_init(&server->lock, NULL);
    server->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    server->clients = calloc(server->capacity, sizeof *server->clients);
    server->ranks = calloc((size_t)nranks, sizeof *server->ranks);
    server->joined = calloc((size_t)nranks, sizeof *server->joined);
    server->silent = calloc((size_t)nranks, sizeof *server->silent);
    snprintf(server->job, sizeof server->job, "%s", terms->job ? terms->job : "");
    server->store = tess__kv_store_create();
    if (number_ranks(server, terms) && server->wake_fd >= 0 && server->clients && server->ranks && server->joined &&
        server->silent && server->store)
        return server;
    destroy_server(server);
    return NULL;
}

static tess_status read_limits(tess__kv_server *server) {
    TRY(tess__seconds_option("heartbeat", 5, 86400, &server->heartbeat_ns));
    return tess__seconds_option("rendezvous-timeout", 60, 86400, &server->rendezvous_ns);
}

static tess_status open_door(tess__kv_server *server, const char *address, int32_t *port, const char *secret) {
    int local = tess__wire_is_local(address);
    if (!local)
        TRY(tess__link_key_create(secret, 1, &server->key));
    TRY(tess__wire_listen(address, port, server->launcher ? "--rendezvous HOST:PORT" : "MASTER_PORT",
                          &server->listen_fd));
    if (local)
        snprintf(server->path, sizeof server->path, "%s", address);
    return TESS_OK;
}

static uint64_t count_open_files(void) {
    uint64_t n = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (dir && readdir(dir))
        n++;
    if (dir)
        closedir(dir);
    return n;
}

/* Checks that enough files can be open: a server that cannot accept its last ranks would let all of them wait. */
static tess_status check_files(int32_t nranks) {
    struct rlimit limit;
    const uint64_t needed = count_open_files() + (uint64_t)nranks;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || needed <= limit.rlim_cur)
        return TESS_OK;
    return tess__fail(TESS_E_SYSTEM,
                      "the key-value server of %d ranks needs %" PRIu64 " files open at once, ulimit -n allows %" PRIu64
                      ": Too many open files",
                      (int)nranks, needed, (uint64_t)limit.rlim_cur);
}

tess_status tess__kv_server_start(const char *address, int32_t *port, int32_t nranks, const tess__kv_terms *terms,
                                  tess__kv_server **out) {
    if (nranks < 1)
        return tess__fail(TESS_E_INVALID, "a world of %d ranks cannot be served, expected 1 or more", (int)nranks);
    if ((!terms->secret || !*terms->secret) && !tess__wire_is_local(address))
        return tess__fail(TESS_E_INVALID,
                          "listening on %s needs a shared secret: set TESSERA_SECRET to the same text on all ranks",
                          address);
    tess_status status = check_files(nranks);
    if (status != TESS_OK)
        return status;
    tess__kv_server *server = create_server(nranks, terms);
    if (!server)
        return tess__fail(TESS_E_NOMEM, "no memory for a key-value server of %d ranks", (int)nranks);
    int32_t bound = *port;
    status = read_limits(server);
    if (status == TESS_OK)
        status = open_door(server, address, &bound, terms->secret);
    if (status == TESS_OK && tess__thread_start(&server->thread, server_work, server) != 0)
        status = tess__fail(TESS_E_SYSTEM, "cannot start the key-value server's thread");
    if (status != TESS_OK) {
        destroy_server(server);
        return status;
    }
    *port = bound;
    *out = server;
    return TESS_OK;
}

static void wake_server(tess__kv_server *server) {
    uint64_t one = 1;
    ssize_t ignored = write(server->wake_fd, &one, sizeof one);
    (void)ignored;
}

void tess__kv_server_stop(tess__kv_server *server) {
    if (!server)
        return;
    atomic_store(&server->stop, 1);
    wake_server(server);
    pthread_join(server->thread, NULL);
    destroy_server(server);
}

void tess__kv_server_linger(tess__kv_server *server, int64_t deadline_ns) {
    struct timespec pause = { .tv_nsec = 1000000 };
    while (atomic_load(&server->n_connected) > 0 && tess__now_ns() < deadline_ns)
        nanosleep(&pause, NULL);
}

void tess__kv_server_rank_ended(tess__kv_server *server, int32_t rank, int orderly, const char *why) {
    int32_t place = tess__kv_place(server, rank);
    tess__kv_ended *news = place >= 0 ? calloc(1, sizeof *news) : NULL;
    if (!news)
        return;
    news->rank = place;
    news->orderly = orderly;
    snprintf(news->why, sizeof news->why, "%s", why);
    pthread_mutex_lock(&server->lock);
    *server->ended_end = news;
    server->ended_end = &news->next;
    pthread_mutex_unlock(&server->lock);
    wake_server(server);
}

void tess__kv_server_catch_up(tess__kv_server *server) {
    const struct timespec pause = { .tv_nsec = 100000 };
    const int64_t deadline_ns = tess__now_ns() + TESS__KV_STRANGER_MS * 1000000ll;
    uint32_t asked = atomic_fetch_add(&server->asked, 1) + 1;
    wake_server(server);
    while (atomic_load(&server->caught_up) != asked && tess__now_ns() < deadline_ns)
        nanosleep(&pause, NULL);
}

int32_t tess__kv_server_joined(tess__kv_server *server, int32_t rank) {
    int32_t place = tess__kv_place(server, rank);
    return place >= 0 && atomic_load(&server->joined[place]);
}

int32_t tess__kv_server_silent(tess__kv_server *server, int32_t rank) {
    int32_t place = tess__kv_place(server, rank);
    return place >= 0 && atomic_load(&server->silent[place]);
}

int32_t tess__kv_server_connected(tess__kv_server *server) {
    return atomic_load(&server->n_connected);
}

int32_t tess__kv_server_culprit(tess__kv_server *server) {
    int32_t place = atomic_load(&server->culprit), first = 0;
    while (place >= 0 && first < server->world && server->place[first] != place)
        first++;
    return place < 0 ? place : first;
}

int32_t tess__kv_server_last_word(tess__kv_server *server, int32_t rank, char *out, size_t n) {
    int32_t place = tess__kv_place(server, rank);
    if (place < 0 || atomic_load(&server->culprit) != place || !*server->cause.last_word) /* settled: it stays */
        return 0;
    snprintf(out, n, "%s", server->cause.last_word);
    return 1;
}

int32_t tess__kv_server_ready(tess__kv_server *server) {
    return atomic_load(&server->mirrored);
}

int32_t tess__kv_server_closing(tess__kv_server *server) {
    return atomic_load(&server->closing);
}

int32_t tess__kv_server_fits(tess__kv_server *server, tess__kv_fits *out) {
    if (!atomic_load(&server->mirrored))
        return 0;
    *out = server->fits;
    return 1;
}
