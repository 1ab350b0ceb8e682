/* SPDX-License-Identifier: BSD-3-Clause */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kv_state.h"

enum {
    EXIT_NEWS_MS = 200, /* how long a closed connection waits for the launcher to say how the process ended */
    ECHO_MS = 300       /* how long a report that may be an echo waits for the death behind it */
};

static void copy_text(char *out, size_t capacity, const unsigned char *text, size_t bytes) {
    size_t n = bytes < capacity - 1 ? bytes : capacity - 1;
    memcpy(out, text, n);
    out[n] = 0;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)out[i] < ' ')
            out[i] = ' ';
}

static void describe_rank(const tess__kv_server *server, char *out, int32_t rank, const char *verb, const char *why) {
    const char *doing = server->ranks[rank].doing; /* told ten times a second: a lost rank may have gone on since */
    char where[TESS__KV_DOING_MAX + 32] = "";
    if (*doing)
        snprintf(where, sizeof where, strcmp(verb, "was lost") == 0 ? " (last seen in %s)" : " in %s", doing);
    snprintf(out, TESS__WIRE_TEXT_MAX, "rank %d %s%s: %.320s%s", (int)rank, verb, where, why,
             strlen(why) > 320 ? "…" : "");
}

/* Suspects a rank. The first suspicion stands, but a death displaces an echo; it is final after hold_ms. A suspicion
 * that may be an echo is final only when all ranks have answered. A rank whose host is gone, or whose address is
 * another host's now, may not have been missed yet. */
static void suspect_rank(tess__kv_server *server, int strength, int32_t rank, const char *verb, const char *why,
                         int hold_ms) {
    tess__kv_cause *cause = &server->cause;
    if (cause->settled || strength <= cause->strength)
        return;
    if (!cause->strength && strength < TESS__KV_DEATH) {
        cause->asked_ns = tess__now_ns();
        tess__kv_ask_all(server);
    }
    cause->strength = strength;
    cause->rank = rank;
    cause->reported = strcmp(verb, "failed") == 0;
    cause->deadline_ns = tess__now_ns() + (int64_t)hold_ms * 1000000;
    describe_rank(server, cause->text, rank, verb, why);
}

/* A rank accuses another of closing its connections. If the accused rank reported first, its report is the cause. When
 * two ranks accuse each other, the first report holds. */
static void follow_echoes(tess__kv_server *server) {
    tess__kv_cause *cause = &server->cause;
    for (int32_t i = 0; i < server->nranks; i++) {
        int32_t accused = server->ranks[cause->rank].accused;
        if (accused < 0 || !server->ranks[accused].echoed || server->ranks[accused].accused == cause->rank)
            return;
        cause->rank = accused;
        memcpy(cause->text, server->ranks[accused].echo, sizeof cause->text);
    }
}

static void settle_cause(tess__kv_server *server) {
    if (server->cause.strength == TESS__KV_ECHO)
        follow_echoes(server);
    server->cause.settled = 1;
    atomic_store(&server->culprit, server->cause.rank);
    tess__kv_broadcast(server, TESS__WIRE_LOST, server->cause.rank, server->cause.text);
}

void tess__kv_doing(tess__kv_server *server, int32_t rank, const tess__message *in) {
    copy_text(server->ranks[rank].doing, TESS__KV_DOING_MAX, in->value, in->value_bytes);
}

static void note_echo(tess__kv_server *server, int32_t rank, const tess__message *in, const char *why) {
    tess__kv_rank *r = &server->ranks[rank];
    if (r->echoed)
        return;
    r->echoed = 1;
    r->accused =
        in->id && in->id <= (uint32_t)server->nranks && in->id != (uint32_t)rank + 1 ? (int32_t)in->id - 1 : -1;
    describe_rank(server, r->echo, rank, "failed", why);
}

/* It counts as lost from now on, so that the others go on without it; its end is no second cause. */
static void take_last_word(tess__kv_server *server, int32_t rank, const char *why) {
    suspect_rank(server, TESS__KV_DEATH, rank, "was lost", why, 0);
    if (!server->cause.settled && server->cause.rank == rank)
        snprintf(server->cause.last_word, sizeof server->cause.last_word, "%s", why);
}

void tess__kv_report(tess__kv_server *server, int32_t rank, const tess__message *in) {
    char why[TESS__WIRE_TEXT_MAX];
    copy_text(why, sizeof why, in->value, in->value_bytes);
    if (in->arg == TESS_E_LOST) {
        take_last_word(server, rank, why);
        return;
    }
    int echo = in->arg == TESS_E_PEER || in->arg == TESS_E_ABORTED || in->arg == TESS_E_TIMEOUT;
    /* The rank that says so has found the silence itself; the others see only that this one left. */
    int silence = echo && strstr(why, "cannot be reached") != NULL;
    if (echo)
        note_echo(server, rank, in, why);
    suspect_rank(server,
                 silence ? TESS__KV_SILENCE
                 : echo  ? TESS__KV_ECHO
                         : TESS__KV_DEATH,
                 rank, "failed", why, echo ? ECHO_MS : 0);
}

void tess__kv_goodbye(tess__kv_server *server, tess__kv_client *client, int32_t stay) {
    tess__kv_rank *r = &server->ranks[client->rank];
    tess__kv_send(server, client, TESS__WIRE_GOODBYE, 0, 0, NULL);
    client->closing = !stay;
    r->departed = 1;
    r->parked = stay && r->client && client->link.fd >= 0;
    if (r->parked)
        atomic_fetch_sub(&server->n_connected, 1);
    tess__kv_exchange_without(server, client->rank);
    tess__kv_broadcast(server, TESS__WIRE_DEPARTED, client->rank, NULL);
}

void tess__kv_back(tess__kv_server *server, tess__kv_client *client) {
    tess__kv_rank *r = &server->ranks[client->rank];
    if (!r->parked)
        return;
    r->departed = r->parked = 0;
    atomic_fetch_add(&server->n_connected, 1);
    tess__kv_broadcast(server, TESS__WIRE_BACK, client->rank, NULL);
}

static void connection_ended(tess__kv_server *server, int32_t rank) {
    tess__kv_rank *r = &server->ranks[rank];
    if (r->departed) {
        tess__kv_exchange_without(server, rank);
        return;
    }
    if (r->echoed)
        return; /* the rank has given up and said why */
    if (r->ended)
        suspect_rank(server, TESS__KV_DEATH, rank, "was lost", r->ended_why, 0);
    else
        suspect_rank(server, TESS__KV_DEATH, rank, "was lost", "its connection closed without goodbye (killed?)",
                     server->launcher ? EXIT_NEWS_MS : 0);
}

/* Takes the news of a process that ended, of which everything sent before has been read. */
static void take_ended(tess__kv_server *server, const tess__kv_ended *news) {
    tess__kv_rank *r = &server->ranks[news->rank];
    tess__kv_cause *cause = &server->cause;
    r->ended = 1;
    snprintf(r->ended_why, sizeof r->ended_why, "%.120s%s", news->why,
             atomic_load(&server->joined[news->rank]) ? "" : " before it joined the others");
    if ((news->orderly && r->departed) || r->echoed)
        return;
    if (!cause->settled && cause->strength == TESS__KV_DEATH && cause->rank == news->rank && !cause->reported &&
        !*cause->last_word) {
        describe_rank(server, cause->text, news->rank, "was lost", r->ended_why);
        cause->deadline_ns = 0;
    }
    suspect_rank(server, TESS__KV_DEATH, news->rank, "was lost", r->ended_why, 0);
}

static void take_hung_up(tess__kv_server *server) {
    for (int32_t r = 0; server->n_hung_up && r < server->nranks; r++) {
        if (!server->ranks[r].hung_up)
            continue;
        server->ranks[r].hung_up = 0;
        server->n_hung_up--;
        connection_ended(server, r);
    }
}

static void take_all_ended(tess__kv_server *server, tess__kv_ended *list) {
    while (list) {
        tess__kv_ended *next = list->next;
        take_ended(server, list);
        free(list);
        list = next;
    }
}

/* Finds silent ranks. Silence counts only while the server itself ran: after Ctrl-Z or a suspended machine everyone
 * starts afresh. */
static void find_silent(tess__kv_server *server, int64_t now_ns) {
    int64_t away_ns = now_ns - server->turn_ns;
    server->turn_ns = now_ns;
    int was_away = away_ns > TESS__KV_TICK_MS * 1000000ll + server->heartbeat_ns / 2;
    for (int32_t r = 0; r < server->nranks && server->heartbeat_ns; r++) {
        tess__kv_client *client = server->ranks[r].client;
        if (!client || server->ranks[r].departed)
            continue;
        if (was_away)
            client->heard_ns += away_ns;
        if (now_ns - client->heard_ns <= server->heartbeat_ns)
            continue;
        char why[96];
        atomic_store(&server->silent[r], 1);
        snprintf(why, sizeof why, "no sign of life for %.1f s (%s?)", (double)(now_ns - client->heard_ns) / 1e9,
                 *server->path ? "stopped" : "stopped, or it cannot be reached");
        suspect_rank(server, TESS__KV_DEATH, r, "was lost", why, 0);
    }
}

static void find_missing(tess__kv_server *server, int64_t now_ns) {
    if (server->ready || server->timed_out || server->cause.settled || !server->first_hello_ns ||
        now_ns - server->first_hello_ns < server->rendezvous_ns)
        return;
    char missing[256] = "";
    size_t at = 0;
    int n = 0;
    for (int32_t r = 0; r < server->nranks; r++) {
        if (atomic_load(&server->joined[r]))
            continue;
        n++;
        if (at < sizeof missing - 24)
            at += (size_t)snprintf(missing + at, sizeof missing - at, "%s%d", at ? ", " : "", (int)r);
        else if (at < sizeof missing - 8)
            at += (size_t)snprintf(missing + at, sizeof missing - at, ", …");
    }
    snprintf(server->timeout_text, sizeof server->timeout_text,
             "%d of %d ranks did not come within %g s (TESSERA_RENDEZVOUS_TIMEOUT): missing %s", n, (int)server->nranks,
             (double)server->rendezvous_ns / 1e9, missing);
    server->timed_out = 1;
    tess__kv_broadcast(server, TESS__WIRE_REFUSED, TESS_E_TIMEOUT, server->timeout_text);
}

/* Tells whether a rank is quiet, so that a cause waits. A rank whose host is cut off may give up before it counts as
 * lost here, and its peers' reports come first. A rank that is heard and never answers hears nothing; it gives up by
 * itself within a heartbeat. */
static int someone_is_quiet(const tess__kv_server *server, int64_t now_ns) {
    const int64_t limit_ns = server->heartbeat_ns;
    const int may_answer = now_ns - server->cause.asked_ns < limit_ns + limit_ns / 2;
    for (int32_t r = 0; r < server->nranks && limit_ns; r++) {
        const tess__kv_client *client = server->ranks[r].client;
        if (!client || server->ranks[r].departed)
            continue;
        if (now_ns - client->heard_ns > limit_ns / 2 || (may_answer && !server->ranks[r].answered))
            return 1;
    }
    return 0;
}

void tess__kv_news_turn(tess__kv_server *server, tess__kv_ended *ended, int64_t now_ns) {
    take_hung_up(server);
    take_all_ended(server, ended);
    find_silent(server, now_ns);
    find_missing(server, now_ns);
    tess__kv_cause *cause = &server->cause;
    now_ns = tess__now_ns();
    if (cause->settled || !cause->strength || now_ns < cause->deadline_ns)
        return;
    if (cause->strength < TESS__KV_DEATH && someone_is_quiet(server, now_ns))
        cause->deadline_ns = now_ns + TESS__KV_TICK_MS * 1000000ll; /* the quiet rank is heard again or lost soon */
    else
        settle_cause(server);
}
