#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "control_internal.h"
#include "options.h"
#include "status.h"

enum { RETRY = 1, PAUSE_MS = 20, ATTEMPT_MS = 5000 };

/* What every rank presents: the secret, and the job so that two jobs on one port do not mix. */
static void credential(const tess__world *world, char *out, size_t size) {
    snprintf(out, size, "%s%s%s", world->secret, *world->job ? "\n" : "", world->job);
}

static tess_status listen_address(const tess__world *world, const char **out) {
    const char *told = tess__option_text("listen");
    if (!told && !tess__wire_is_loopback(world->address))
        return tess__fail(TESS_E_INVALID,
                          "the ranks meet at %.100s (MASTER_ADDR), which is not loopback: set TESSERA_LISTEN to the "
                          "address to listen on (0.0.0.0: all) and TESSERA_SECRET, the same on all ranks",
                          world->address);
    *out = told ? told : world->address;
    if (!*world->secret && !tess__wire_is_loopback(*out))
        return tess__fail(TESS_E_INVALID,
                          "TESSERA_LISTEN is '%.100s': listening beyond loopback needs TESSERA_SECRET, "
                          "the same text on all ranks",
                          *out);
    return TESS_OK;
}

/* Rank 0 holds the server, and reaches it where it listens. */
static tess_status start_server(tess__control *control) {
    tess__world *world = &control->world;
    const char *address = NULL;
    char text[sizeof world->secret + sizeof world->job + 2];
    tess_status status = listen_address(world, &address);
    if (status != TESS_OK)
        return status;
    credential(world, text, sizeof text);
    status = tess__kv_server_start(address, &world->port, world->nranks, text, 0, &control->server);
    if (status != TESS_OK)
        return status;
    if (strcmp(address, "0.0.0.0") == 0)
        address = "127.0.0.1";
    else if (strcmp(address, "::") == 0)
        address = "::1";
    if (address != world->address)
        snprintf(world->address, sizeof world->address, "%s", address);
    return TESS_OK;
}

static int say_hello(tess__control *control) {
    const tess__world *world = &control->world;
    char text[sizeof world->secret + sizeof world->job + 2], nranks[16];
    credential(world, text, sizeof text);
    snprintf(nranks, sizeof nranks, "%d", (int)world->nranks);
    tess__message hello = { .type = TESS__WIRE_HELLO,
                            .arg = world->rank,
                            .key = nranks,
                            .key_bytes = (uint32_t)strlen(nranks) + 1,
                            .value = (const unsigned char *)text,
                            .value_bytes = (uint32_t)strlen(text) };
    return tess__outbox_copy(&control->out, &hello);
}

static tess_status judge_first_message(tess__control *control, const tess__message *in) {
    const tess__world *world = &control->world;
    if (in->type == TESS__WIRE_WELCOME)
        return TESS_OK;
    if (in->type == TESS__WIRE_REFUSED && in->arg < 0)
        return tess__fail(in->arg, "the key-value server at %.100s port %d refused rank %d: %.*s", world->address,
                          (int)world->port, (int)world->rank, (int)in->value_bytes, (const char *)in->value);
    return tess__fail(TESS_E_INTERNAL, "the key-value server at %.100s port %d answered hello with message %u",
                      world->address, (int)world->port, in->type);
}

/* TESS_OK when welcome, RETRY when the connection ended before anyone spoke, else the failure. */
static tess_status await_welcome(tess__control *control, int64_t deadline_ns) {
    const tess__world *world = &control->world;
    for (;;) {
        tess__message in;
        int sent = tess__outbox_flush(&control->out, control->fd);
        int got = tess__inbox_next(&control->in, TESS__WIRE_TEXT_MAX + 1, &in);
        if (got < 0)
            return tess__fail(TESS_E_INVALID,
                              "what answers at %.100s port %d is no key-value server of this version of Tessera; set "
                              "MASTER_PORT to a free port",
                              world->address, (int)world->port);
        if (got > 0) {
            tess_status status = judge_first_message(control, &in);
            tess__inbox_drop(&control->in, &in);
            return status;
        }
        int64_t left_ms = (deadline_ns - tess__now_ns()) / 1000000;
        if (left_ms <= 0 || sent < 0)
            return RETRY;
        struct pollfd wait = { .fd = control->fd, .events = (short)(POLLIN | (sent ? 0 : POLLOUT)) };
        poll(&wait, 1, (int)left_ms);
        if (tess__inbox_read(&control->in, control->fd) < 0)
            return RETRY;
    }
}

static tess_status no_server(const tess__control *control, int error) {
    const tess__world *world = &control->world;
    const char *why = error ? strerror(error) : "the connection ended at once";
    if (world->launched)
        return tess__fail(TESS_E_PEER, "the launcher (tessera run) has ended: nothing answers at %.100s port %d: %s",
                          world->address, (int)world->port, why);
    return tess__fail(TESS_E_TIMEOUT,
                      "rank 0 did not come within %g s (TESSERA_RENDEZVOUS_TIMEOUT): nothing answers at %.100s port %d "
                      "(MASTER_ADDR, MASTER_PORT): %s",
                      (double)control->rendezvous_ns / 1e9, world->address, (int)world->port, why);
}

static void drop_connection(tess__control *control) {
    close(control->fd);
    control->fd = -1;
    tess__outbox_clear(&control->out);
    tess__inbox_clear(&control->in);
}

tess_status tess__control_connect(tess__control *control) {
    const tess__world *world = &control->world;
    int64_t deadline_ns = tess__now_ns() + control->rendezvous_ns;
    struct timespec pause = { .tv_nsec = PAUSE_MS * 1000000 };
    tess_status status = TESS_OK;
    if (!world->launched && world->rank == 0)
        status = start_server(control);
    while (status == TESS_OK) {
        int64_t attempt_ns = tess__now_ns() + ATTEMPT_MS * 1000000ll;
        attempt_ns = attempt_ns < deadline_ns ? attempt_ns : deadline_ns;
        int error = tess__wire_connect(world->address, world->port, attempt_ns, &control->fd);
        if (error == 0) {
            status = say_hello(control) == 0 ? await_welcome(control, attempt_ns)
                                             : tess__fail(TESS_E_NOMEM, "no memory to say hello");
            if (status == TESS_OK)
                return TESS_OK;
            drop_connection(control);
            if (status != RETRY)
                return status;
            status = TESS_OK;
        }
        /* The launcher listens before it starts anyone; rank 0 may come later than we do. */
        if ((world->launched && error) || tess__now_ns() >= deadline_ns)
            return no_server(control, error);
        nanosleep(&pause, NULL);
    }
    return status;
}
