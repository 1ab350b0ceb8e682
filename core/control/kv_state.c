/* SPDX-License-Identifier: BSD-3-Clause */
#include "kv_state.h"

#include <string.h>

void tess__kv_hang_up(tess__kv_server *server, tess__kv_client *client) {
    if (client->link.fd < 0)
        return;
    tess__link_close(&client->link);
    if (client->rank < 0)
        return;
    server->ranks[client->rank].client = NULL;
    if (!server->ranks[client->rank].parked)
        atomic_fetch_sub(&server->n_connected, 1);
    server->ranks[client->rank].parked = 0;
    server->ranks[client->rank].hung_up = 1;
    server->n_hung_up++;
}

void tess__kv_send(tess__kv_server *server, tess__kv_client *client, uint32_t type, uint32_t id, int32_t arg,
                   tess__blob *value) {
    if (client->link.fd >= 0 && tess__outbox_push(&client->out, type, id, arg, value) != 0)
        tess__kv_hang_up(server, client);
}

void tess__kv_send_text(tess__kv_server *server, tess__kv_client *client, uint32_t type, uint32_t id, int32_t arg,
                        const char *text) {
    tess__blob *blob = tess__blob_new(text, strlen(text));
    tess__kv_send(server, client, type, id, arg, blob);
    tess__blob_drop(blob);
}

void tess__kv_ask_all(tess__kv_server *server) {
    for (int32_t r = 0; r < server->nranks; r++) {
        server->ranks[r].answered = 0;
        if (server->ranks[r].client)
            tess__kv_send(server, server->ranks[r].client, TESS__WIRE_BEAT, 1, 0, NULL);
    }
}

void tess__kv_broadcast(tess__kv_server *server, uint32_t type, int32_t arg, const char *text) {
    tess__blob *blob = text ? tess__blob_new(text, strlen(text)) : NULL;
    for (int32_t r = 0; r < server->nranks; r++)
        if (server->ranks[r].client && !server->ranks[r].client->closing)
            tess__kv_send(server, server->ranks[r].client, type, 0, arg, blob);
    tess__blob_drop(blob);
}
