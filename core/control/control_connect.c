/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "control_state.h"
#include "host_id.h"
#include "local.h"
#include "secret.h"
#include "base/options.h"
#include "base/status.h"

enum { RETRY = 1, QUIET = -1 /* in place of an errno: taken, and no word */, PAUSE_MS = 20, ATTEMPT_MS = 5000 };

static tess_status check_secret(const tess__world *world) {
    size_t length = strlen(world->secret);
    if (length == 0)
        return tess__fail(
            TESS_E_INVALID,
            "the ranks meet at %.100s, beyond this host: set TESSERA_SECRET or TESSERA_SECRET_FILE to the "
            "same text on all hosts; without it nothing listens there",
            world->address);
    if (length < TESS__SECRET_LEAST)
        return tess__fail(TESS_E_INVALID, "the secret has %zu characters, expected at least %d: openssl rand -hex 32",
                          length, TESS__SECRET_LEAST);
    return TESS_OK;
}

/* Makes ranks of one host meet at a Unix socket. Its name has MASTER_PORT's number and the network that they are in. */
static tess_status choose_local(tess__world *world) {
    char name[64];
    if (world->launched || tess__option_text("listen") || !tess__wire_is_loopback(world->address))
        return TESS_OK;
    snprintf(name, sizeof name, "port-%d-%08x", (int)world->port, (unsigned)(tess__host_id() & 0xffffffff));
    char path[TESS__LOCAL_PATH];
    TRY(tess__local_path(name, path));
    snprintf(world->address, sizeof world->address, "%s", path);
    return TESS_OK;
}

/* Finds the address that MASTER_ADDR has on this host. Some hosts name themselves in their loopback (Debian's
 * 127.0.1.1); then any address listens. */
static tess_status listen_address(const tess__world *world, char *out, size_t size) {
    const char *told = tess__option_text("listen");
    int local = tess__wire_is_local(world->address);
    if (!local)
        TRY(check_secret(world));
    if (told || local) {
        snprintf(out, size, "%s", told ? told : world->address);
        return TESS_OK;
    }
    if (tess__wire_route(world->address, out, size) != 0)
        return tess__fail(TESS_E_INVALID, "'%.100s' (MASTER_ADDR) is no host that can be found from here",
                          world->address);
    if (tess__wire_is_loopback(out))
        snprintf(out, size, "0.0.0.0");
    return TESS_OK;
}

static tess_status listen_somewhere(tess__control *control, const char *address) {
    tess__world *world = &control->world;
    const tess__kv_terms terms = { .secret = world->secret, .job = world->job };
    tess_status status = TESS_E_INVALID;
    int32_t first = world->port;
    for (int32_t i = 0; status != TESS_OK && (i == 0 || i < world->n_ports); i++) {
        world->port = first + i;
        status = tess__kv_server_start(address, &world->port, world->nranks, &terms, &control->server);
    }
    world->n_ports = 1;
    return status;
}

/* Rank 0 holds the server, and reaches it where it listens. */
static tess_status start_server(tess__control *control) {
    tess__world *world = &control->world;
    char address[sizeof world->address];
    TRY(listen_address(world, address, sizeof address));
    TRY(listen_somewhere(control, address));
    snprintf(world->address, sizeof world->address, "%s",
             strcmp(address, "0.0.0.0") == 0 ? "127.0.0.1"
             : strcmp(address, "::") == 0    ? "::1"
                                             : address);
    return TESS_OK;
}

static int say_hello(tess__control *control) {
    const tess__world *world = &control->world;
    char nranks[16];
    snprintf(nranks, sizeof nranks, "%d",
             (int)world->nranks); /* the number at first; the answer says how many are left */
    tess__message hello = { .type = TESS__WIRE_HELLO,
                            .arg = world->rank,
                            .key = nranks,
                            .key_bytes = (uint32_t)strlen(nranks) + 1,
                            .value = (const unsigned char *)world->job,
                            .value_bytes = (uint32_t)strlen(world->job) };
    tess__outbox_reserve(&control->out);
    return tess__outbox_copy(&control->out, &hello);
}

/* Ranks that go on without others are numbered anew. */
static tess_status take_place(tess__world *world, const tess__message *in) {
    char text[16];
    snprintf(text, sizeof text, "%.*s", (int)in->value_bytes, (const char *)in->value);
    int32_t nranks = atoi(text);
    if (nranks < 1 || nranks > world->nranks || in->arg < 0 || in->arg >= nranks)
        return tess__fail(TESS_E_INTERNAL, "the key-value server at %.100s says that this is rank %d of %d",
                          world->address, (int)in->arg, (int)nranks);
    world->rank = in->arg;
    world->nranks = nranks;
    return TESS_OK;
}

static tess_status judge_first_message(tess__control *control, const tess__message *in) {
    tess__world *world = &control->world;
    if (in->type == TESS__WIRE_WELCOME)
        return take_place(world, in);
    if (in->type == TESS__WIRE_REFUSED && in->arg < 0)
        return tess__fail(in->arg, "the key-value server at %.100s port %d refused rank %d: %.*s", world->address,
                          (int)world->port, (int)world->rank, (int)in->value_bytes, (const char *)in->value);
    return tess__fail(TESS_E_INTERNAL, "the key-value server at %.100s port %d answered hello with message %u",
                      world->address, (int)world->port, in->type);
}

/* Waits for the welcome. TESS_OK when welcome, RETRY when nobody spoke (*error: QUIET, or 0 when the connection ended),
 * else the failure. */
static tess_status await_welcome(tess__control *control, int64_t deadline_ns, int *error) {
    const tess__world *world = &control->world;
    for (;;) {
        tess__message in;
        int sent = tess__outbox_flush(&control->out, &control->link);
        int got = tess__inbox_next(&control->in, TESS__WIRE_TEXT_MAX + 1, &in);
        if (got < 0)
            return tess__fail(
                TESS_E_INVALID,
                "what answers at %.100s port %d is no key-value server of this version of Tessera; set %s to a "
                "free port",
                world->address, (int)world->port, world->launched ? "--rendezvous" : "MASTER_PORT");
        if (got > 0) {
            tess_status status = judge_first_message(control, &in);
            tess__inbox_drop(&control->in, &in);
            return status;
        }
        int64_t left_ms = (deadline_ns - tess__now_ns()) / 1000000;
        *error = left_ms <= 0 ? QUIET : 0;
        if (left_ms <= 0 || (sent < 0 && !control->link.refused))
            return RETRY;
        struct pollfd wait = { .fd = control->link.fd, .events = tess__link_events(&control->link, !sent) };
        poll(&wait, 1, (int)left_ms);
        int ended = tess__inbox_read(&control->in, &control->link) < 0;
        if (control->link.refused)
            return tess__fail(
                TESS_E_INVALID,
                "what answers at %.100s port %d has another secret than this rank (TESSERA_SECRET), or is "
                "no key-value server of Tessera",
                world->address, (int)world->port);
        if (ended)
            return RETRY;
    }
}

/* Tells whether the server must be there already: a launcher on this host listens before it starts anyone. Rank 0,
 * and a launcher on another host, may come later. */
static int must_be_there(const tess__world *world) {
    return world->launched && (world->local_nranks == 0 || world->local_nranks == world->nranks);
}

static tess_status no_server(const tess__control *control, int error) {
    const tess__world *world = &control->world;
    const char *why = error > 0        ? strerror(error)
                      : error == QUIET ? "it takes connections and says nothing"
                                       : "the connection ended at once";
    if (must_be_there(world))
        return tess__fail(TESS_E_PEER, "the launcher (tessera run) has ended: nothing answers at %.100s port %d: %s",
                          world->address, (int)world->port, why);
    return tess__fail(
        TESS_E_TIMEOUT,
        "%s did not come within %g s (TESSERA_RENDEZVOUS_TIMEOUT): nothing answers at %.100s port %d (%s): %s",
        world->launched ? "node 0's tessera run" : "rank 0", (double)control->rendezvous_ns / 1e9, world->address,
        (int)world->port, world->launched ? "--rendezvous" : "MASTER_ADDR, MASTER_PORT", why);
}

static void drop_connection(tess__control *control) {
    tess__link_close(&control->link);
    tess__outbox_clear(&control->out);
    tess__inbox_clear(&control->in);
}

/* Tries to connect once. TESS_OK when welcome, RETRY when nobody is there yet (*error: why), else the failure. */
static tess_status try_connect(tess__control *control, int32_t port, int64_t deadline_ns, int *error) {
    control->world.port = port;
    int fd;
    *error = tess__wire_connect(control->world.address, port, deadline_ns, &fd);
    if (*error)
        return RETRY;
    if (tess__link_open(&control->link, fd, control->key) != 0)
        return tess__fail(TESS_E_NOMEM, "no memory for a connection");
    tess_status status = say_hello(control) == 0 ? await_welcome(control, deadline_ns, error)
                                                 : tess__fail(TESS_E_NOMEM, "no memory to say hello");
    if (status != TESS_OK)
        drop_connection(control);
    return status;
}

static tess_status make_key(tess__control *control) {
    tess_status status = check_secret(&control->world);
    return status == TESS_OK ? tess__link_key_create(control->world.secret, 0, &control->key) : status;
}

tess_status tess__control_connect(tess__control *control) {
    tess__world *world = &control->world;
    int64_t deadline_ns = tess__now_ns() + control->rendezvous_ns;
    struct timespec pause = { .tv_nsec = PAUSE_MS * 1000000 };
    tess_status status = choose_local(world);
    if (status == TESS_OK && !world->launched && world->rank == 0)
        status = start_server(control);
    if (status == TESS_OK && !tess__wire_is_local(world->address))
        status = make_key(control);
    int32_t first = world->port;
    int why = QUIET; /* the last attempt may just be short */
    for (int32_t turn = 0; status == TESS_OK; turn++) {
        int error, several = world->n_ports > 1;
        int64_t attempt_ns = tess__now_ns() + ATTEMPT_MS * 1000000ll;
        attempt_ns = attempt_ns < deadline_ns ? attempt_ns : deadline_ns;
        status = try_connect(control, first + (several ? turn % world->n_ports : 0), attempt_ns, &error);
        int late = tess__now_ns() >= deadline_ns;
        why = error == QUIET ? why : error;
        if (status == TESS_OK || (status != RETRY && (late || !several)))
            return status; /* with several ports a stranger may answer at one */
        if (late || (error > 0 && must_be_there(world)))
            return no_server(control, why);
        status = TESS_OK;
        nanosleep(&pause, NULL);
    }
    return status;
}
