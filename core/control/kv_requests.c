/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kv_state.h"

static void answer_waits(tess__kv_server *server, tess__kv_client *client, const char *key, tess__blob *value) {
    tess__kv_wait **at = &client->waits;
    while (*at) {
        tess__kv_wait *wait = *at;
        if (strcmp(wait->key, key) != 0) {
            at = &wait->next;
            continue;
        }
        *at = wait->next;
        client->n_waits--;
        tess__kv_send(server, client, TESS__WIRE_OK, wait->id, 0, value);
        free(wait);
    }
}

static void note_ready(tess__kv_server *server, const tess__message *in) {
    tess__kv_fits fits;
    atomic_store(&server->closing, !in->value_bytes);
    if (atomic_load(&server->mirrored) || in->value_bytes != sizeof fits)
        return;
    memcpy(&fits, in->value, sizeof fits);
    if (fits.n >= 0 && fits.n <= TESS__KV_FITS_MAX)
        server->fits = fits;
    atomic_store(&server->mirrored, 1);
}

void tess__kv_set(tess__kv_server *server, tess__kv_client *client, const tess__message *in) {
    const char *why;
    tess_status status = tess__kv_store_set(server->store, in->key, in->value, in->value_bytes, &why);
    if (status != TESS_OK) {
        tess__kv_send_text(server, client, TESS__WIRE_ERROR, in->id, status, why);
        return;
    }
    if (strcmp(in->key, TESS__KV_READY) == 0)
        note_ready(server, in);
    tess__kv_send(server, client, TESS__WIRE_OK, in->id, 0, NULL);
    tess__blob *value = tess__kv_store_get(server->store, in->key);
    for (int32_t r = 0; r < server->nranks; r++)
        if (server->ranks[r].client)
            answer_waits(server, server->ranks[r].client, in->key, value);
}

void tess__kv_drop(tess__kv_server *server, tess__kv_client *client, const tess__message *in) {
    tess__kv_store_drop(server->store, in->key);
    tess__kv_send(server, client, TESS__WIRE_OK, in->id, 0, NULL);
}

void tess__kv_get(tess__kv_server *server, tess__kv_client *client, const tess__message *in) {
    tess__blob *value = tess__kv_store_get(server->store, in->key);
    if (value) {
        tess__kv_send(server, client, TESS__WIRE_OK, in->id, 0, value);
        return;
    }
    tess__kv_wait *wait = client->n_waits < TESS__KV_WAITS_MAX ? calloc(1, sizeof *wait) : NULL;
    if (!wait) {
        tess__kv_send_text(server, client, TESS__WIRE_ERROR, in->id, TESS_E_NOMEM, "too many gets wait already");
        return;
    }
    wait->id = in->id;
    snprintf(wait->key, sizeof wait->key, "%s", in->key);
    wait->next = client->waits;
    client->waits = wait;
    client->n_waits++;
}

void tess__kv_cancel(tess__kv_client *client, uint32_t id) {
    for (tess__kv_wait **at = &client->waits; *at; at = &(*at)->next)
        if ((*at)->id == id) {
            tess__kv_wait *wait = *at;
            *at = wait->next;
            client->n_waits--;
            free(wait);
            return;
        }
}

static void free_exchange(tess__kv_exchange *exchange) {
    tess__blob_drop(exchange->data);
    free(exchange->place);
    free(exchange->ids);
    free(exchange);
}

static void unlink_exchange(tess__kv_server *server, tess__kv_exchange *exchange) {
    tess__kv_exchange **at = &server->exchanges;
    while (*at != exchange)
        at = &(*at)->next;
    *at = exchange->next;
}

/* Answers everyone who takes part and forgets the exchange. With status TESS_OK the answer has the data. */
static void finish_exchange(tess__kv_server *server, tess__kv_exchange *exchange, tess_status status,
                            const char *text) {
    unlink_exchange(server, exchange);
    for (int32_t r = 0; r < server->nranks; r++) {
        tess__kv_client *client = server->ranks[r].client;
        if (!exchange->ids[r] || !client)
            continue;
        if (status == TESS_OK)
            tess__kv_send(server, client, TESS__WIRE_OK, exchange->ids[r], 0, exchange->data);
        else
            tess__kv_send_text(server, client, TESS__WIRE_ERROR, exchange->ids[r], status, text);
    }
    free_exchange(exchange);
}

/* Where each rank stands among those that the message lists; all in their own order when it lists none. 0: no rank of
 * the list is unknown, or there twice, and the sender is one. */
static int read_places(const tess__kv_server *server, int32_t sender, const tess__message *in, int32_t *place) {
    for (int32_t r = 0; r < server->nranks; r++)
        place[r] = in->arg ? -1 : r;
    for (int32_t i = 0; i < in->arg; i++) {
        uint32_t rank = tess__wire_get_u32(in->value + 4 * i);
        if (rank >= (uint32_t)server->nranks || place[rank] >= 0)
            return -1;
        place[rank] = i;
    }
    return place[sender] < 0 ? -1 : 0;
}

static tess__kv_exchange *new_exchange(tess__kv_server *server, const tess__message *in, uint64_t bytes, int32_t rank) {
    tess__kv_exchange *exchange = calloc(1, sizeof *exchange);
    if (!exchange)
        return NULL;
    snprintf(exchange->key, sizeof exchange->key, "%s", in->key);
    exchange->bytes = bytes;
    exchange->first = rank;
    exchange->n = in->arg ? in->arg : server->nranks;
    exchange->data = tess__blob_new(NULL, bytes * (uint64_t)exchange->n);
    exchange->ids = calloc((size_t)server->nranks, sizeof *exchange->ids);
    exchange->place = calloc((size_t)server->nranks, sizeof *exchange->place);
    if (!exchange->data || !exchange->ids || !exchange->place) {
        free_exchange(exchange);
        return NULL;
    }
    exchange->next = server->exchanges;
    server->exchanges = exchange;
    return exchange;
}

static tess__kv_exchange *find_exchange(const tess__kv_server *server, const char *key) {
    tess__kv_exchange *e = server->exchanges;
    while (e && strcmp(e->key, key) != 0)
        e = e->next;
    return e;
}

static tess__kv_exchange *exchange_of(const tess__kv_server *server, int32_t rank) {
    tess__kv_exchange *e = server->exchanges;
    while (e && !e->ids[rank])
        e = e->next;
    return e;
}

/* The lowest rank that `e` waits for and that waits in another circular exchange itself. -1: there is none, or one that
 * waits in no exchange may still come. */
static int32_t waits_elsewhere(const tess__kv_server *server, const tess__kv_exchange *e) {
    int32_t lowest = -1;
    for (int32_t r = 0; r < server->nranks; r++) {
        if (e->place[r] < 0 || e->ids[r])
            continue;
        const tess__kv_exchange *other = exchange_of(server, r);
        if (!other)
            return -1;
        lowest = lowest < 0 && other->circular ? r : lowest;
    }
    return lowest;
}

/* Marks the exchanges that wait for each other, or for such: an exchange ends when all its ranks have come, and a rank
 * comes to one only when the one it waits in has ended. */
static void mark_circular(tess__kv_server *server) {
    for (tess__kv_exchange *e = server->exchanges; e; e = e->next)
        e->circular = 1;
    for (int again = 1; again;) {
        again = 0;
        for (tess__kv_exchange *e = server->exchanges; e; e = e->next)
            if (e->circular && waits_elsewhere(server, e) < 0) {
                e->circular = 0;
                again = 1;
            }
    }
}

static tess__kv_exchange *first_circular(tess__kv_server *server, int32_t *rank) {
    for (*rank = 0; *rank < server->nranks; ++*rank) {
        tess__kv_exchange *e = exchange_of(server, *rank);
        if (e && e->circular)
            return e;
    }
    return NULL;
}

/* Ranks that wait for each other in different exchanges will never agree. */
static void check_agreement(tess__kv_server *server) {
    int32_t rank, other;
    mark_circular(server);
    tess__kv_exchange *mine = first_circular(server, &rank);
    if (!mine)
        return;
    other = waits_elsewhere(server, mine);
    char text[TESS__WIRE_TEXT_MAX];
    snprintf(text, sizeof text, "the ranks disagree about what comes next: rank %d is at '%.150s', rank %d at '%.150s'",
             (int)rank, mine->key, (int)other, exchange_of(server, other)->key);
    for (tess__kv_exchange *e = server->exchanges, *next; e; e = next) {
        next = e->next;
        if (e->circular)
            finish_exchange(server, e, TESS_E_MISMATCH, text);
    }
}

static void refuse_exchange(tess__kv_server *server, tess__kv_client *client, const tess__message *in,
                            tess_status status, const char *why) {
    tess__kv_send_text(server, client, TESS__WIRE_ERROR, in->id, status, why);
}

/* Finds the exchange this request, with so many bytes of the rank's own, belongs to; null after an error was the
 * answer. */
static tess__kv_exchange *join_exchange(tess__kv_server *server, tess__kv_client *client, const tess__message *in,
                                        uint64_t bytes) {
    tess__kv_exchange *e = find_exchange(server, in->key);
    char text[TESS__WIRE_TEXT_MAX];
    int32_t n = in->arg ? in->arg : server->nranks;
    if (bytes * (uint64_t)n > TESS__KV_EXCHANGE_MAX) {
        snprintf(text, sizeof text, "exchange '%.200s': %llu bytes from each of %d ranks are more than 64 MiB", in->key,
                 (unsigned long long)bytes, (int)n);
        refuse_exchange(server, client, in, TESS_E_INVALID, text);
        return NULL;
    }
    if (exchange_of(server, client->rank)) {
        refuse_exchange(server, client, in, TESS_E_INVALID, "an exchange is under way already");
        return NULL;
    }
    if (!e)
        e = new_exchange(server, in, bytes, client->rank);
    if (!e) {
        refuse_exchange(server, client, in, TESS_E_NOMEM, "no memory for an exchange");
        return NULL;
    }
    if (!e->n_in && read_places(server, client->rank, in, e->place) != 0) {
        unlink_exchange(server, e);
        free_exchange(e);
        refuse_exchange(server, client, in, TESS_E_INVALID, "the ranks of an exchange are not such, or this is none");
        return NULL;
    }
    if (e->place[client->rank] < 0) {
        refuse_exchange(server, client, in, TESS_E_MISMATCH, "this rank does not belong to the exchange");
        return NULL;
    }
    e->ids[client->rank] = in->id;
    if (e->bytes == bytes)
        return e;
    snprintf(text, sizeof text, "exchange '%.200s': rank %d passes %llu bytes, rank %d %llu", in->key, (int)e->first,
             (unsigned long long)e->bytes, (int)client->rank, (unsigned long long)bytes);
    finish_exchange(server, e, TESS_E_MISMATCH, text);
    return NULL;
}

/* Tells whether a rank will not take part: it has said goodbye, and the exchange is not the opening that it may come
 * back for. */
static int is_gone(const tess__kv_server *server, int32_t rank, const tess__kv_exchange *e) {
    const tess__kv_rank *r = &server->ranks[rank];
    return e->place[rank] >= 0 && r->departed && !(r->parked && strncmp(e->key, "open/", 5) == 0);
}

static int32_t first_gone(const tess__kv_server *server, const tess__kv_exchange *e) {
    for (int32_t r = 0; r < server->nranks; r++)
        if (is_gone(server, r, e))
            return r;
    return -1;
}

void tess__kv_exchange_add(tess__kv_server *server, tess__kv_client *client, const tess__message *in) {
    uint32_t listed = 4 * (uint32_t)in->arg;
    if (in->arg < 0 || in->arg > TESS__KV_MEMBERS_MAX || in->value_bytes < listed) {
        refuse_exchange(server, client, in, TESS_E_INVALID, "an exchange among ranks that are not listed");
        return;
    }
    tess__kv_exchange *e = join_exchange(server, client, in, in->value_bytes - listed);
    if (!e)
        return;
    if (e->bytes)
        memcpy(e->data->data + (uint64_t)e->place[client->rank] * e->bytes, in->value + listed, e->bytes);
    if (++e->n_in == e->n) {
        finish_exchange(server, e, TESS_OK, NULL);
        return;
    }
    int32_t departed = first_gone(server, e);
    if (departed >= 0)
        tess__kv_exchange_without(server, departed);
    else
        check_agreement(server);
}

void tess__kv_exchange_without(tess__kv_server *server, int32_t rank) {
    tess__kv_exchange *e = server->exchanges;
    while (e) {
        tess__kv_exchange *next = e->next;
        char text[TESS__WIRE_TEXT_MAX];
        snprintf(text, sizeof text, "rank %d has ended, while others wait for it at '%.200s'", (int)rank, e->key);
        if (!e->ids[rank] && is_gone(server, rank, e))
            finish_exchange(server, e, TESS_E_PEER, text);
        e = next;
    }
}

void tess__kv_exchange_free(tess__kv_server *server) {
    while (server->exchanges) {
        tess__kv_exchange *e = server->exchanges;
        server->exchanges = e->next;
        free_exchange(e);
    }
}
