/* SPDX-License-Identifier: BSD-3-Clause */
#include "control_share.h"

#include <pthread.h>
#include <string.h>

#include "base/status.h"

static struct {
    pthread_mutex_t lock;   /* of all but `seats`; held while a connection is made */
    pthread_mutex_t calls;  /* of `seats`; held during on_lost */
    tess__control *control; /* null: none; parked while nobody has a seat */
    tess__control_seat *seats;
    tess__world world;
    uint32_t n_engines; /* that ever joined */
} shared = { .lock = PTHREAD_MUTEX_INITIALIZER, .calls = PTHREAD_MUTEX_INITIALIZER };

static void tell_all(void *user, int32_t rank, const char *why) {
    (void)user;
    pthread_mutex_lock(&shared.calls);
    for (tess__control_seat *s = shared.seats; s; s = s->next)
        s->on_lost(s->user, rank, why);
    pthread_mutex_unlock(&shared.calls);
}

static void end_connection(int orderly) {
    tess__control_on_lost(shared.control, NULL, NULL);
    tess__control_close(shared.control, orderly);
    shared.control = NULL;
}

static int same_world(const tess__world *w) {
    const tess__world *own = &shared.world;
    return w->rank == own->rank && w->nranks == own->nranks && w->port == own->port && w->launched == own->launched &&
           strcmp(w->address, own->address) == 0;
}

/* Comes back on the parked connection, or opens another: without an engine the ranks may have been told to meet
 * elsewhere, or their server may have gone. */
static tess_status come_back(const tess__world *w) {
    char cause[512];
    tess__control_cause_text(shared.control, cause, sizeof cause);
    if (cause[0])
        return tess__fail(TESS_E_PEER, "%s", cause);
    if (!same_world(w) || tess__control_return(shared.control))
        end_connection(0);
    return TESS_OK;
}

static tess_status connect_once(const tess__world *w) {
    tess_status s = shared.control && !shared.seats ? come_back(w) : TESS_OK;
    if (shared.control && shared.world.generation != w->generation)
        return tess__fail(TESS_E_UNSUPPORTED, "another engine of this process still holds the ranks of before");
    if (!shared.control && shared.world.generation != w->generation)
        shared.n_engines = 0; /* in the process that takes a lost rank's place this engine is the first */
    if (s || shared.control)
        return s;
    if ((s = tess__control_open(w, &shared.control)))
        return s;
    shared.world = *w;
    tess__control_on_lost(shared.control, tell_all, NULL);
    return TESS_OK;
}

tess_status tess__control_join(const tess__world *w, tess__lost_fn on_lost, void *user, tess__control_seat *seat) {
    pthread_mutex_lock(&shared.lock);
    tess_status s = connect_once(w);
    if (!s) {
        pthread_mutex_lock(&shared.calls);
        *seat = (tess__control_seat){ NULL, shared.control, ++shared.n_engines, on_lost, user };
        seat->next = shared.seats;
        shared.seats = seat;
        pthread_mutex_unlock(&shared.calls);
    }
    pthread_mutex_unlock(&shared.lock);
    return s;
}

static void unlink_seat(tess__control_seat *seat) {
    pthread_mutex_lock(&shared.calls);
    tess__control_seat **at = &shared.seats;
    while (*at != seat)
        at = &(*at)->next;
    *at = seat->next;
    pthread_mutex_unlock(&shared.calls);
}

void tess__control_leave(tess__control_seat *seat, int orderly) {
    if (!seat->control)
        return;
    pthread_mutex_lock(&shared.lock);
    unlink_seat(seat);
    seat->control = NULL;
    if (!shared.seats && (!orderly || tess__control_park(shared.control)))
        end_connection(0);
    pthread_mutex_unlock(&shared.lock);
}

uint32_t tess__control_engines(void) {
    pthread_mutex_lock(&shared.calls);
    uint32_t n = shared.n_engines;
    pthread_mutex_unlock(&shared.calls);
    return n;
}

void tess__control_each_seat(void (*visit)(void *ctx, uint32_t engine, void *user), void *ctx) {
    pthread_mutex_lock(&shared.calls);
    for (tess__control_seat *s = shared.seats; s; s = s->next)
        visit(ctx, s->engine, s->user);
    pthread_mutex_unlock(&shared.calls);
}

/* Ends a parked connection with the process, its threads before what they use. */
__attribute__((destructor)) static void end_parked(void) {
    if (shared.control && !shared.seats)
        end_connection(0);
}
