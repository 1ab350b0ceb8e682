/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <poll.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "control_state.h"
#include "base/status.h"
#include "base/thread.h"

enum { MESSAGE_LIMIT = TESS__KV_EXCHANGE_MAX + 1024, LINGER_ORDERLY_S = 5, LINGER_S = 1 };
#define SECOND_NS 1000000000ll
#define TICK_NS (TESS__KV_TICK_MS * 1000000ll)

/* ---- the thread -------------------------------------------------------------------------------- */

static void lose_server(tess__control *control, const char *why) {
    char text[TESS__WIRE_TEXT_MAX];
    if (control->world.launched)
        snprintf(text, sizeof text, "the launcher (tessera run) was lost: %s", why);
    else if (atomic_load(&control->departed[0]))
        snprintf(text, sizeof text, "rank 0, which holds the key-value server, has ended");
    else
        snprintf(text, sizeof text, "rank 0 was lost: %s", why);
    control->connected = 0;
    if (!control->goodbye_sent)
        tess__control_set_cause(control, control->world.launched ? -1 : 0, text);
    pthread_cond_broadcast(&control->changed);
}

static void handle_text(char *out, const tess__message *in) {
    snprintf(out, TESS__WIRE_TEXT_MAX, "%.*s", (int)in->value_bytes, (const char *)in->value);
}

static void note_address(tess__control *control, const tess__message *in) {
    char own[sizeof control->address];
    tess__wire_own_address(control->link.fd, own, sizeof own);
    if (in->value_bytes && (!*own || tess__wire_is_loopback(own)))
        snprintf(own, sizeof own, "%.*s", (int)in->value_bytes, (const char *)in->value);
    memcpy(control->address, own, sizeof own);
}

static void handle_message(tess__control *control, const tess__message *in) {
    char text[TESS__WIRE_TEXT_MAX];
    switch (in->type) {
    case TESS__WIRE_READY:
        note_address(control, in);
        control->ready = 1;
        break;
    case TESS__WIRE_BEAT:
        if (in->id)
            tess__outbox_push(&control->out, TESS__WIRE_BEAT, in->id, 0, NULL);
        return;
    case TESS__WIRE_GOODBYE: control->goodbye_heard = 1; break;
    case TESS__WIRE_OK:
    case TESS__WIRE_ERROR: tess__control_answer(control, in); break;
    case TESS__WIRE_REFUSED:
        control->refused = in->arg < 0 ? in->arg : TESS_E_INTERNAL;
        handle_text(control->refusal, in);
        break;
    case TESS__WIRE_LOST:
        handle_text(text, in);
        tess__control_set_cause(control, in->arg, text);
        break;
    case TESS__WIRE_DEPARTED:
    case TESS__WIRE_BACK:
        if (in->arg >= 0 && in->arg < control->world.nranks)
            atomic_store(&control->departed[in->arg], in->type == TESS__WIRE_DEPARTED);
        break;
    default: return;
    }
    pthread_cond_broadcast(&control->changed);
}

static void handle_all(tess__control *control) {
    tess__message in;
    int next;
    while ((next = tess__inbox_next(&control->in, MESSAGE_LIMIT, &in)) > 0) {
        handle_message(control, &in);
        tess__inbox_drop(&control->in, &in);
    }
    if (next < 0)
        lose_server(control, "it sent what is no message");
}

static void receive_messages(tess__control *control) {
    int got = tess__inbox_read(&control->in, &control->link);
    if (got > 0)
        control->heard_ns = tess__now_ns();
    pthread_mutex_lock(&control->lock);
    if (got < 0)
        lose_server(control, "its connection closed without goodbye (killed?)");
    else
        handle_all(control);
    pthread_mutex_unlock(&control->lock);
}

/* Silence counts only while this rank itself ran. */
static void check_silence(tess__control *control, int64_t now_ns) {
    int64_t away_ns = now_ns - control->turn_ns;
    control->turn_ns = now_ns;
    if (away_ns > TICK_NS + control->heartbeat_ns / 2)
        control->heard_ns += away_ns;
    int64_t silent_ns = now_ns - control->heard_ns;
    if (!control->heartbeat_ns || silent_ns <= control->heartbeat_ns)
        return;
    char why[96];
    snprintf(why, sizeof why, "no sign of life for %.1f s (%s?)", (double)silent_ns / 1e9,
             control->key ? "stopped, or it cannot be reached" : "stopped");
    lose_server(control, why);
}

/* Reads the activity. 0: it is being written right now, and the next turn is soon enough. */
static int read_doing(tess__control *control, char *out) {
    unsigned before = atomic_load(&control->doing_turn);
    for (size_t i = 0; i < TESS__KV_DOING_MAX / 8; i++) {
        uint64_t word = atomic_load(&control->doing[i]);
        memcpy(out + 8 * i, &word, 8);
    }
    out[TESS__KV_DOING_MAX - 1] = 0;
    return before % 2 == 0 && before == atomic_load(&control->doing_turn);
}

static void publish_doing(tess__control *control) {
    char doing[TESS__KV_DOING_MAX];
    if (!read_doing(control, doing) || strcmp(doing, control->doing_sent) == 0)
        return;
    size_t length = strlen(doing);
    tess__message message = { .type = TESS__WIRE_DOING,
                              .value = (const unsigned char *)doing,
                              .value_bytes = (uint32_t)length };
    tess__outbox_copy(&control->out, &message);
    memcpy(control->doing_sent, doing, length + 1);
    control->doing_ns = tess__now_ns(); /* a message about the activity is no beat: the server answers only beats */
}

static void publish_state(tess__control *control, int64_t now_ns) {
    if (now_ns - control->doing_ns >= TICK_NS - 5000000)
        publish_doing(control);
    int64_t every_ns =
        control->heartbeat_ns && control->heartbeat_ns < 4 * SECOND_NS ? control->heartbeat_ns / 4 : SECOND_NS;
    if (now_ns - control->beat_ns >= every_ns) {
        tess__outbox_push(&control->out, TESS__WIRE_BEAT, 0, 0, NULL);
        control->beat_ns = now_ns;
    }
}

/* The callback runs without `lock`, so that it may ask; `calls` keeps it from running after an unregistration. */
static void run_callback(tess__control *control) {
    char text[TESS__WIRE_TEXT_MAX] = "";
    if (!atomic_exchange(&control->news, 0))
        return;
    pthread_mutex_lock(&control->lock);
    int lost = control->has_cause;
    int32_t rank = control->cause_rank;
    memcpy(text, control->cause_text, sizeof text);
    pthread_mutex_unlock(&control->lock);

    pthread_mutex_lock(&control->calls);
    if (lost && control->on_lost && !control->lost_told) {
        control->lost_told = 1;
        control->on_lost(control->lost_user, rank, text);
    }
    pthread_mutex_unlock(&control->calls);
}

static int wait_for_events(tess__control *control, short *events) {
    pthread_mutex_lock(&control->lock);
    int stop = control->stop;
    struct pollfd fds[2] = { { .fd = control->wake_fd, .events = POLLIN },
                             { .fd = control->connected ? control->link.fd : -1,
                               .events = tess__link_events(&control->link, control->out.first != NULL) } };
    pthread_mutex_unlock(&control->lock);
    if (stop)
        return 0;
    int n = poll(fds, 2, control->connected ? TESS__KV_TICK_MS : -1);
    uint64_t count;
    if (n > 0 && fds[0].revents && read(control->wake_fd, &count, sizeof count) < 0)
        n = 0; /* another wake-up took it */
    *events = n > 0 ? fds[1].revents : 0;
    return 1;
}

static void *control_work(void *user) {
    tess__control *control = user;
    short events;
    pthread_mutex_lock(&control->lock);
    handle_all(control); /* what came together with the welcome */
    pthread_mutex_unlock(&control->lock);
    while (wait_for_events(control, &events)) {
        if (events & (POLLIN | POLLERR | POLLHUP))
            receive_messages(control);
        pthread_mutex_lock(&control->lock);
        if (control->connected) {
            int64_t now_ns = tess__now_ns();
            check_silence(control, now_ns);
            publish_state(control, now_ns);
            /* A failed write is no news yet: the server's last messages are read first, and its end shows in the
             * next turn. */
            if (tess__outbox_flush(&control->out, &control->link) < 0)
                tess__outbox_clear(&control->out);
            if (control->goodbye_sent)
                pthread_cond_broadcast(&control->changed);
        }
        pthread_mutex_unlock(&control->lock);
        run_callback(control);
    }
    return NULL;
}

/* ---- open and close ---------------------------------------------------------------------------- */

static void destroy_control(tess__control *control) {
    tess__link_close(&control->link);
    tess__link_key_destroy(control->key);
    if (control->wake_fd >= 0)
        close(control->wake_fd);
    tess__outbox_clear(&control->out);
    tess__inbox_clear(&control->in);
    tess__kv_server_stop(control->server);
    tess__kv_store_destroy(control->store);
    pthread_cond_destroy(&control->changed);
    pthread_mutex_destroy(&control->calls);
    pthread_mutex_destroy(&control->lock);
    free(control->departed);

    free(control);
}

static tess__control *create_control(const tess__world *world) {
    tess__control *control = calloc(1, sizeof *control);
    if (!control)
        return NULL;
    control->world = *world;
    control->link.fd = -1;
    control->cause_rank = -1;
    tess__outbox_init(&control->out);
    pthread_mutex_init(&control->lock, NULL);
    pthread_mutex_init(&control->calls, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&control->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    control->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    control->departed = calloc((size_t)world->nranks, sizeof *control->departed);

    if (world->nranks == 1 && !world->launched)
        control->store = tess__kv_store_create();
    if (control->wake_fd >= 0 && control->departed && (control->store || world->nranks > 1 || world->launched))
        return control;
    destroy_control(control);
    return NULL;
}

static tess_status start_thread(tess__control *control) {
    control->connected = 1;
    control->heard_ns = control->turn_ns = control->beat_ns = tess__now_ns();
    int error = tess__thread_start(&control->thread, control_work, control);
    if (error)
        return tess__fail(TESS_E_SYSTEM, "cannot start the control plane's thread: %s", strerror(error));
    control->threaded = 1;
    return TESS_OK;
}

static tess_status await_ready(tess__control *control) {
    /* The server's own clock ends this first, and names who is missing. */
    int64_t deadline_ns = tess__now_ns() + control->rendezvous_ns + 5 * SECOND_NS;
    int late = 0;
    pthread_mutex_lock(&control->lock);
    while (!control->ready && !control->refused && !control->has_cause && !late)
        late = tess__control_wait(control, deadline_ns);
    tess_status status = TESS_OK;
    if (control->refused)
        status = tess__fail(control->refused, "%s", control->refusal);
    else if (control->has_cause)
        status = tess__fail(TESS_E_PEER, "%s", control->cause_text);
    else if (!control->ready)
        status = tess__fail(TESS_E_TIMEOUT,
                            "the key-value server at %.100s port %d has not gathered %d ranks within "
                            "%g s",
                            control->world.address, (int)control->world.port, (int)control->world.nranks,
                            (double)control->rendezvous_ns / 1e9 + 5);
    pthread_mutex_unlock(&control->lock);
    return status;
}

/* `tessera run` has ranks terminated when it dies, for programs that do not use this library. A rank that does hears
 * of it by the end of the connection, and can still say so and return an error. The launcher also hands on lines as
 * they come, which a pipe would hold back until there are many. */
static void meet_launcher(void) {
    int signal = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (prctl(PR_GET_PDEATHSIG, &signal) == 0 && signal == SIGTERM)
        prctl(PR_SET_PDEATHSIG, 0);
}

tess_status tess__control_open(const tess__world *world, tess__control **out) {
    if (world->nranks < 1 || world->rank < 0 || world->rank >= world->nranks)
        return tess__fail(TESS_E_INVALID, "rank %d of %d ranks cannot be", (int)world->rank, (int)world->nranks);
    tess__control *control = create_control(world);
    if (!control)
        return tess__fail(TESS_E_NOMEM, "no memory for the control plane of %d ranks", (int)world->nranks);
    if (control->store) {
        *out = control;
        return TESS_OK;
    }
    if (world->launched)
        meet_launcher();
    tess_status status = tess__seconds_option("heartbeat", 5, 86400, &control->heartbeat_ns);
    if (status == TESS_OK)
        status = tess__seconds_option("rendezvous-timeout", 60, 86400, &control->rendezvous_ns);
    if (status == TESS_OK)
        status = tess__control_connect(control);
    if (status == TESS_OK)
        status = start_thread(control);
    if (status == TESS_OK)
        status = await_ready(control);
    if (status != TESS_OK) {
        tess__control_close(control, 0);
        return status;
    }
    *out = control;
    return TESS_OK;
}

static void say_goodbye(tess__control *control, int32_t stay) {
    int64_t deadline_ns = tess__now_ns() + SECOND_NS;
    pthread_mutex_lock(&control->lock);
    if (!control->has_cause && control->connected &&
        tess__outbox_push(&control->out, TESS__WIRE_GOODBYE, 0, stay, NULL) == 0) {
        control->goodbye_sent = 1;
        tess__control_wake(control);
        while (!control->goodbye_heard && control->connected)
            if (tess__control_wait(control, deadline_ns))
                break;
    }
    pthread_mutex_unlock(&control->lock);
}

void tess__control_close(tess__control *control, int orderly) {
    if (!control)
        return;
    if (control->threaded && orderly)
        say_goodbye(control, 0);
    if (control->threaded) {
        pthread_mutex_lock(&control->lock);
        control->stop = 1;
        pthread_mutex_unlock(&control->lock);
        tess__control_wake(control);
        pthread_join(control->thread, NULL);
    }
    tess__link_close(&control->link);
    if (control->server)
        tess__kv_server_linger(control->server, tess__now_ns() + (orderly ? LINGER_ORDERLY_S : LINGER_S) * SECOND_NS);
    destroy_control(control);
}

tess_status tess__control_park(tess__control *control) {
    if (!control->threaded)
        return TESS_E_UNSUPPORTED;
    say_goodbye(control, 1);
    pthread_mutex_lock(&control->lock);
    int parked = control->goodbye_heard && control->connected && !control->has_cause;
    pthread_mutex_unlock(&control->lock);
    if (parked && control->server)
        tess__kv_server_linger(control->server, tess__now_ns() + LINGER_ORDERLY_S * SECOND_NS);
    return parked ? TESS_OK : TESS_E_PEER;
}

tess_status tess__control_return(tess__control *control) {
    pthread_mutex_lock(&control->lock);
    int back =
        control->connected && !control->has_cause && tess__outbox_push(&control->out, TESS__WIRE_BACK, 0, 0, NULL) == 0;
    if (back)
        control->goodbye_sent = control->goodbye_heard = 0;
    pthread_mutex_unlock(&control->lock);
    if (back)
        tess__control_wake(control);
    return back ? TESS_OK : TESS_E_PEER;
}

/* ---- news -------------------------------------------------------------------------------------- */

void tess__control_on_lost(tess__control *control, tess__lost_fn fn, void *user) {
    pthread_mutex_lock(&control->calls);
    control->on_lost = fn;
    control->lost_user = user;
    pthread_mutex_unlock(&control->calls);
    atomic_store(&control->news, 1);
    if (control->threaded)
        tess__control_wake(control);
}

int32_t tess__control_departed(tess__control *control, int32_t rank) {
    return rank >= 0 && rank < control->world.nranks && atomic_load(&control->departed[rank]);
}

tess_status tess__control_cause(tess__control *control, tess_error *out) {
    pthread_mutex_lock(&control->lock);
    tess_status status = control->has_cause ? TESS_E_PEER : TESS_OK;
    if (status != TESS_OK && out) {
        out->code = status;
        out->native = 0;
        out->rank = control->cause_rank;
        snprintf(out->message, sizeof out->message, "%.*s", (int)sizeof out->message - 1, control->cause_text);
    }
    pthread_mutex_unlock(&control->lock);
    return status;
}

void tess__control_cause_text(tess__control *control, char *out, size_t n) {
    pthread_mutex_lock(&control->lock);
    snprintf(out, n, "%s", control->has_cause ? control->cause_text : "");
    pthread_mutex_unlock(&control->lock);
}

/* Tells a lost rank from one that reported: the server's sentence says "failed" of a rank that is still there with
 * an error of its own. */
int32_t tess__control_was_lost(tess__control *control) {
    int rank, at = 0;
    pthread_mutex_lock(&control->lock);
    int lost = control->has_cause && control->cause_rank >= 0 &&
               sscanf(control->cause_text, "rank %d was lost%n", &rank, &at) == 1 && at > 0;
    pthread_mutex_unlock(&control->lock);
    return lost;
}

const char *tess__control_address(const tess__control *control) {
    return *control->address ? control->address : NULL;
}

void tess__control_place(const tess__control *control, int32_t *rank, int32_t *nranks) {
    *rank = control->world.rank;
    *nranks = control->world.nranks;
}

int32_t tess__control_aborting(tess__control *control) {
    return atomic_load_explicit(&control->aborting, memory_order_acquire);
}

void tess__control_doing(tess__control *control, const char *text) {
    text = text ? text : "";
    size_t length = strnlen(text, TESS__KV_DOING_MAX - 1);
    atomic_fetch_add(&control->doing_turn, 1);
    for (size_t at = 0; at <= length; at += 8) {
        uint64_t word = 0;
        memcpy(&word, text + at, length - at < 8 ? length - at : 8);
        atomic_store(&control->doing[at / 8], word);
    }
    atomic_fetch_add(&control->doing_turn, 1);
}

/* A rank that is alone is the cause itself, as there is nobody to decide. */
static void report_alone(tess__control *control, const char *message) {
    char text[TESS__WIRE_TEXT_MAX];
    snprintf(text, sizeof text, "rank %d failed: %.480s", (int)control->world.rank, message);
    tess__control_set_cause(control, control->world.rank, text);
}

void tess__control_report(tess__control *control, tess_status status, int32_t lost, const char *message) {
    /* Waits for the first cause, because a rank that left before it is known would be one more to suspect. */
    int64_t deadline_ns = tess__now_ns() + SECOND_NS + 2 * control->heartbeat_ns;
    pthread_mutex_lock(&control->lock);
    size_t length = strnlen(message, TESS__WIRE_TEXT_MAX - 1);
    tess__message report = { .type = TESS__WIRE_REPORT,
                             .id = (uint32_t)(lost + 1),
                             .arg = status,
                             .value = (const unsigned char *)message,
                             .value_bytes = (uint32_t)length };
    if (control->threaded && control->connected && !control->has_cause)
        publish_doing(control); /* the place where it failed, not one of a moment ago */
    if (!control->threaded || !control->connected)
        report_alone(control, message);
    else if (!control->has_cause && tess__outbox_copy(&control->out, &report) == 0)
        tess__control_wake(control);
    int on_thread = control->threaded && pthread_equal(pthread_self(), control->thread);
    while (!control->has_cause && !on_thread)
        if (tess__control_wait(control, deadline_ns))
            break;
    pthread_mutex_unlock(&control->lock);
}
