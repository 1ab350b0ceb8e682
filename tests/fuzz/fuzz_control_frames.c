/* SPDX-License-Identifier: BSD-3-Clause */
/* libFuzzer: any bytes as what a connection sends to the key-value server. The first byte says whether they come from a
 * stranger (even) or from rank 0, which has said hello (odd). Nothing is sent or listened on. */
#include "core/control/kv_server.c"

#include <fcntl.h>
#include <stdint.h>

static void feed(tess__kv_server *server, tess__kv_client *client, const void *data, size_t size) {
    tess__inbox *in = &client->in;
    in->data = realloc(in->data, in->start + in->bytes + size + 1);
    memcpy(in->data + in->start + in->bytes, data, size);
    in->bytes += size;
    in->capacity = in->start + in->bytes + 1;
    if (handle_all(server, client) != 0)
        tess__kv_hang_up(server, client);
}

static const unsigned char greeting[TESS__WIRE_HEADER + 2] = {
    'T', 'S', 'S', 'K', 1, 0, 0, 0, TESS__WIRE_HELLO, [20] = 2, [TESS__WIRE_HEADER] = '2'
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1)
        return 0;
    tess__kv_server *server = create_server(2, &(tess__kv_terms){ .job = "" });
    if (!server)
        return 0;
    accept_one(server, open("/dev/null", O_RDWR | O_CLOEXEC));
    tess__kv_client *client = server->clients[0];
    if (data[0] & 1)
        feed(server, client, greeting, sizeof greeting);
    if (client->link.fd >= 0)
        feed(server, client, data + 1, size - 1);
    tess__kv_news_turn(server, NULL, tess__now_ns());
    sweep_clients(server);
    destroy_server(server);
    return 0;
}
