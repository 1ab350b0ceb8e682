/* SPDX-License-Identifier: BSD-3-Clause */
/* The inside of a rank's control plane: control.c opens, closes and runs the thread; control_requests.c is set, get
 * and exchange. `lock` guards all but the atomics and what the thread alone uses. */
#ifndef TESS_CONTROL_INTERNAL_H
#define TESS_CONTROL_INTERNAL_H
#include <pthread.h>
#include <stdatomic.h>

#include "control.h"
#include "kv_state.h"
#include "wire.h"

typedef struct tess__control_request {
    struct tess__control_request *next;
    uint32_t id;
    int done;
    tess_status status;
    void *out; /* written by the thread while the caller waits */
    uint64_t capacity, bytes;
    char why[TESS__WIRE_TEXT_MAX];
} tess__control_request;

struct tess__control {
    tess__world world;
    tess__kv_server *server; /* in rank 0, unless launched */
    tess__kv_store *store;   /* one rank without a server */
    tess__link link;
    tess__link_key *key; /* null: a Unix socket */
    int wake_fd, threaded;
    pthread_t thread;
    pthread_mutex_t lock, calls; /* calls: held during the callback */
    pthread_cond_t changed;

    tess__outbox out;
    tess__control_request *requests;
    uint32_t next_id;
    int ready, connected, goodbye_sent, goodbye_heard, stop, has_cause;
    tess_status refused;
    int32_t cause_rank;
    char address[TESS__WIRE_ADDRESS_MAX]; /* of this rank's host for the others */
    char cause_text[TESS__WIRE_TEXT_MAX], refusal[TESS__WIRE_TEXT_MAX];

    atomic_int aborting, news;
    atomic_uchar *departed;
    /* Seqlock: the engine's thread writes the activity at any moment; the control thread reads it again when
     * `doing_turn` was odd or has changed meanwhile. */
    atomic_uint doing_turn;
    atomic_ullong doing[TESS__KV_DOING_MAX / 8];

    /* the thread's own */
    tess__inbox in;
    char doing_sent[TESS__KV_DOING_MAX];
    int64_t heartbeat_ns, rendezvous_ns, doing_ns, beat_ns, heard_ns, turn_ns;

    /* under `calls` */
    tess__lost_fn on_lost;
    void *lost_user;
    int lost_told;
};

void tess__control_wake(tess__control *);
/** With `lock` held. Waits until something changed or the deadline has passed (INT64_MAX: none). 0: in time. */
int tess__control_wait(tess__control *, int64_t deadline_ns);
/** With `lock` held. Fixes the first cause, unless there is one. */
void tess__control_set_cause(tess__control *, int32_t rank, const char *text);
/** With `lock` held. An answer from the server. */
void tess__control_answer(tess__control *, const tess__message *);

/* control_connect.c: the connection up to the server's welcome. */
tess_status tess__control_connect(tess__control *);
#endif
