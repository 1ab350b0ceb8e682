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

static tess__kv_exchange *new_exchange(tess__kv_server *server, const char *key, uint64_t bytes, int32_t rank) {
    tess__kv_exchange *exchange = calloc(1, sizeof *exchange);
    if (!exchange)
        return NULL;
    snprintf(exchange->key, sizeof exchange->key, "%s", key);
    exchange->bytes = bytes;
    exchange->first = rank;
    exchange->data = tess__blob_new(NULL, bytes * (uint64_t)server->nranks);
    exchange->ids = calloc((size_t)server->nranks, sizeof *exchange->ids);
    if (!exchange->data || !exchange->ids) {
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

/* When every rank waits in an exchange and none can complete, they will never agree. */
static void check_agreement(tess__kv_server *server) {
    tess__kv_exchange *mine = exchange_of(server, 0), *theirs = NULL;
    int32_t other = 0;
    for (int32_t r = 0; r < server->nranks; r++) {
        tess__kv_exchange *e = exchange_of(server, r);
        if (!e)
            return;
        if (e != mine && !theirs) {
            theirs = e;
            other = r;
        }
    }
    char text[TESS__WIRE_TEXT_MAX];
    snprintf(text, sizeof text, "the ranks disagree about what comes next: rank 0 is at '%.150s', rank %d at '%.150s'",
             mine->key, (int)other, theirs->key);
    while (server->exchanges)
        finish_exchange(server, server->exchanges, TESS_E_MISMATCH, text);
}

/* Finds the exchange this request belongs to; null after an error was the answer. */
static tess__kv_exchange *join_exchange(tess__kv_server *server, tess__kv_client *client, const tess__message *in) {
    tess__kv_exchange *e = find_exchange(server, in->key);
    char text[TESS__WIRE_TEXT_MAX];
    if ((uint64_t)in->value_bytes * (uint64_t)server->nranks > TESS__KV_EXCHANGE_MAX) {
        snprintf(text, sizeof text, "exchange '%.200s': %u bytes from each of %d ranks are more than 64 MiB", in->key,
                 in->value_bytes, (int)server->nranks);
        tess__kv_send_text(server, client, TESS__WIRE_ERROR, in->id, TESS_E_INVALID, text);
        return NULL;
    }
    if (exchange_of(server, client->rank)) {
        tess__kv_send_text(server, client, TESS__WIRE_ERROR, in->id, TESS_E_INVALID,
                           "an exchange is under way already");
        return NULL;
    }
    if (!e)
        e = new_exchange(server, in->key, in->value_bytes, client->rank);
    if (!e) {
        tess__kv_send_text(server, client, TESS__WIRE_ERROR, in->id, TESS_E_NOMEM, "no memory for an exchange");
        return NULL;
    }
    e->ids[client->rank] = in->id;
    if (e->bytes == in->value_bytes)
        return e;
    snprintf(text, sizeof text, "exchange '%.200s': rank %d passes %llu bytes, rank %d %u", in->key, (int)e->first,
             (unsigned long long)e->bytes, (int)client->rank, in->value_bytes);
    finish_exchange(server, e, TESS_E_MISMATCH, text);
    return NULL;
}

/* Tells whether a rank will not take part: it has said goodbye, and the exchange is not the opening that it may come
 * back for. */
static int is_gone(const tess__kv_server *server, int32_t rank, const tess__kv_exchange *e) {
    const tess__kv_rank *r = &server->ranks[rank];
    return r->departed && !(r->parked && strncmp(e->key, "open/", 5) == 0);
}

static int32_t first_gone(const tess__kv_server *server, const tess__kv_exchange *e) {
    for (int32_t r = 0; r < server->nranks; r++)
        if (is_gone(server, r, e))
            return r;
    return -1;
}

void tess__kv_exchange_add(tess__kv_server *server, tess__kv_client *client, const tess__message *in) {
    tess__kv_exchange *e = join_exchange(server, client, in);
    if (!e)
        return;
    if (e->bytes)
        memcpy(e->data->data + (uint64_t)client->rank * e->bytes, in->value, e->bytes);
    if (++e->n_in == server->nranks) {
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
