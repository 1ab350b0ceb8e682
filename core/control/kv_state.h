/* SPDX-License-Identifier: BSD-3-Clause */
/* The key-value server's inside: kv_server.c holds the sockets and the thread, kv_requests.c answers set, get and
 * exchange, kv_state.c sends and hangs up, kv_cause.c decides who is lost. All but the atomics and `ended` belong to
 * the server's thread. */
#ifndef TESS_KV_SERVER_H
#define TESS_KV_SERVER_H
#include <pthread.h>
#include <stdatomic.h>

#include "control.h"
#include "kv_store.h"
#include "local.h"
#include "wire.h"

enum {
    TESS__KV_TICK_MS = 100,
    TESS__KV_STRANGERS_MAX = 64,      /* connections that have not said hello */
    TESS__KV_STRANGER_MS = 5000,      /* how long they may take */
    TESS__KV_WAITS_MAX = 4096,        /* gets of one rank that wait for their key */
    TESS__KV_QUEUE_MAX = 4096,        /* answers a rank leaves unread before it is read no further */
    TESS__KV_EXCHANGE_MAX = 64 << 20, /* bytes of one exchange, all ranks together */
    TESS__KV_DOING_MAX = 160
};

typedef struct tess__kv_wait {
    struct tess__kv_wait *next;
    uint32_t id;
    char key[TESS__KV_KEY_MAX + 1];
} tess__kv_wait;

typedef struct {
    tess__link link; /* fd -1: gone, to be swept */
    int32_t rank;    /* -1: has not said hello */
    int closing;     /* close once the outbox is empty */
    int64_t since_ns, heard_ns;
    tess__inbox in;
    tess__outbox out;
    tess__kv_wait *waits;
    uint32_t n_waits;
} tess__kv_client;

typedef struct {
    tess__kv_client *client; /* null: not connected (any more) */
    int departed, ended;
    int hung_up;     /* its connection has ended, which is not yet considered */
    int parked;      /* has departed, and stays connected to come back */
    int answered;    /* the server's question after the first report that may be an echo */
    int echoed;      /* it has sent such a report: */
    int32_t accused; /* the rank that it lost, -1: it named none */
    char doing[TESS__KV_DOING_MAX], ended_why[TESS__KV_DOING_MAX], echo[TESS__WIRE_TEXT_MAX];
} tess__kv_rank;

typedef struct tess__kv_exchange {
    struct tess__kv_exchange *next;
    char key[TESS__KV_KEY_MAX + 1];
    uint64_t bytes; /* of one rank */
    int32_t n_in, first;
    int32_t n, *place; /* of how many ranks; by rank, its place among them, -1: it does not belong to it */
    int circular;      /* waits for itself, for check_agreement */
    tess__blob *data;
    uint32_t *ids; /* of each rank's request; 0: has not come */
} tess__kv_exchange;

/* A report that may be an echo yields to a heartbeat that stopped, and both yield to a death. */
enum { TESS__KV_NO_CAUSE = 0, TESS__KV_ECHO, TESS__KV_SILENCE, TESS__KV_DEATH };
typedef struct {
    int strength, settled, reported;
    int32_t rank;
    int64_t deadline_ns, asked_ns; /* when it becomes final; when all ranks were asked whether they are there */
    char text[TESS__WIRE_TEXT_MAX];
    char last_word[TESS__WIRE_TEXT_MAX]; /* of a rank that ends itself; else "" */
} tess__kv_cause;

typedef struct tess__kv_ended { /* rank_ended, on its way to the thread */
    struct tess__kv_ended *next;
    int32_t rank;
    int orderly;
    char why[TESS__KV_DOING_MAX];
} tess__kv_ended;

struct tess__kv_server {
    pthread_t thread;
    int listen_fd, wake_fd;
    int32_t nranks, launcher;
    int32_t world,
        *place;          /* ranks that there were at first, and the number here of each; -1: it is not in this group */
    tess__link_key *key; /* null: a Unix socket */
    char path[TESS__LOCAL_PATH], job[64];
    int64_t heartbeat_ns, rendezvous_ns, first_hello_ns, turn_ns;
    int ready, timed_out;
    int32_t n_hung_up;
    char timeout_text[TESS__WIRE_TEXT_MAX];
    char address[TESS__WIRE_ADDRESS_MAX]; /* of this host, as ranks of other hosts see it; "" none came */
    tess__kv_client **clients;
    uint32_t n_clients, capacity;
    tess__kv_rank *ranks;
    tess__kv_store *store;
    tess__kv_exchange *exchanges;
    tess__kv_cause cause;
    pthread_mutex_t lock; /* of `ended` */
    tess__kv_ended *ended, **ended_end;
    atomic_int stop, culprit, n_connected, mirrored, closing; /* mirrored: TESS__KV_READY is set; closing: to nothing */
    atomic_uint asked, caught_up; /* how often the launcher wanted all read that has come, and up to which time it is */
    atomic_uchar *joined, *silent;
    tess__kv_fits fits; /* written before `mirrored` is set */
};

/** The number here of a rank by that which it began with; -1: none. */
static inline int32_t tess__kv_place(const tess__kv_server *server, int32_t first) {
    return first >= 0 && first < server->world ? server->place[first] : -1;
}

/** Marks the rank as gone, for tess__kv_news_turn; the client stays in the table until the end of the turn. */
void tess__kv_hang_up(tess__kv_server *, tess__kv_client *);
/** Queues for one client, or drops the client when there is no memory. */
void tess__kv_send(tess__kv_server *, tess__kv_client *, uint32_t type, uint32_t id, int32_t arg, tess__blob *or_null);
void tess__kv_send_text(tess__kv_server *, tess__kv_client *, uint32_t type, uint32_t id, int32_t arg, const char *);
void tess__kv_broadcast(tess__kv_server *, uint32_t type, int32_t arg, const char *text_or_null);
/** Asks every rank whether it is there; those that are set `answered`. */
void tess__kv_ask_all(tess__kv_server *);
/** Waits until no rank is connected or the time has come. Any thread. */
void tess__kv_server_linger(tess__kv_server *, int64_t deadline_ns);

/* kv_requests.c */
void tess__kv_set(tess__kv_server *, tess__kv_client *, const tess__message *);
void tess__kv_drop(tess__kv_server *, tess__kv_client *, const tess__message *);
void tess__kv_get(tess__kv_server *, tess__kv_client *, const tess__message *);
void tess__kv_cancel(tess__kv_client *, uint32_t id);
void tess__kv_exchange_add(tess__kv_server *, tess__kv_client *, const tess__message *);
/** Ends the exchanges that rank can no longer take part in. */
void tess__kv_exchange_without(tess__kv_server *, int32_t rank);
void tess__kv_exchange_free(tess__kv_server *);

/* kv_cause.c */
void tess__kv_doing(tess__kv_server *, int32_t rank, const tess__message *);
void tess__kv_report(tess__kv_server *, int32_t rank, const tess__message *);
void tess__kv_goodbye(tess__kv_server *, tess__kv_client *, int32_t stay);
void tess__kv_back(tess__kv_server *, tess__kv_client *);
/** Each turn of the loop: connections that have ended, exits seen by the launcher (freed here), silence, deadlines. */
void tess__kv_news_turn(tess__kv_server *, tess__kv_ended *, int64_t now_ns);
#endif
