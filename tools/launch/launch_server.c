/* SPDX-License-Identifier: BSD-3-Clause */
/* The key-value server that this launcher's ranks meet at. On one host it is ours alone; of several, node 0's. Here
 * alone the launcher calls the core's control plane. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tools/support/say.h"
#include "core/control/control.h"
#include "core/control/local.h"
#include "core/control/secret.h"
#include "core/control/wire.h"
#include "launch_internal.h"
#include "tools/commands.h"
#include "tools/support/command_line.h"

_Static_assert((int)LAUNCH_SECRET_BYTES == (int)TESS__SECRET_BYTES && (int)LAUNCH_PATH_BYTES == (int)TESS__LOCAL_PATH &&
                   (int)LAUNCH_FITS_MOST == (int)TESS__KV_FITS_MAX,
               "as the control plane has them");

int launch_several_hosts(const launch *l) {
    return l->options->world > l->options->ranks;
}

int launch_secret_read(char out[LAUNCH_SECRET_BYTES]) {
    tess_status status = tess__secret_read(out, LAUNCH_SECRET_BYTES);
    return status == TESS_OK ? 0 : tool_report(status);
}

int launch_read_seconds(const char *key, double fallback, double most, int64_t *out_ns) {
    tess_status status = tess__seconds_option(key, fallback, most, out_ns);
    return status == TESS_OK ? 0 : tool_report(status);
}

/* The ranks inherit the secret as an open file, because /proc shows the environment and every child inherits it. */
static int hand_over_secret(launch *l) {
    size_t length = strlen(l->secret);
    l->secret_fd = memfd_create("tessera-secret", MFD_CLOEXEC);
    if (l->secret_fd >= 0 && write(l->secret_fd, l->secret, length) == (ssize_t)length)
        return 0;
    tool_say(SAY_ERROR, "cannot hold the secret: %s", strerror(errno));
    return TOOL_CONFIG;
}

static int read_secret(launch *l) {
    int code = l->options->follow ? 0 : launch_secret_read(l->secret);
    if (code)
        return code;
    if (strlen(l->secret) < TESS__SECRET_LEAST) {
        tool_say(SAY_ERROR, *l->secret
                                ? "the secret has fewer than 16 characters: openssl rand -hex 32"
                                : "several hosts need a secret: set TESSERA_SECRET or TESSERA_SECRET_FILE to the "
                                  "same text on all of them (openssl rand -hex 32)");
        return TOOL_CONFIG;
    }
    return hand_over_secret(l);
}

/* Listens on the interface of the address that other hosts use; the address must be this host's. */
static int listen_for_all(launch *l, int32_t *port) {
    const launch_options *o = l->options;
    char address[TESS__WIRE_ADDRESS_MAX];
    *port = o->port;
    if (tess__wire_route(o->host, address, sizeof address) != 0) {
        tool_say(SAY_ERROR, "--rendezvous: '%.100s' is no host that can be found from here", o->host);
        return TOOL_CONFIG;
    }
    const tess__kv_terms terms = { .secret = l->secret, .launcher = 1 };
    tess_status status = tess__kv_server_start(tess__wire_is_loopback(address) ? "0.0.0.0" : address, port, o->world,
                                               &terms, &l->server);
    return status == TESS_OK ? 0 : tool_report(status);
}

/* Only this user can connect to the Unix socket, so no secret is needed. */
static int listen_here(launch *l) {
    const tess__kv_terms terms = { .launcher = 1 };
    char name[32];
    int32_t port = 0;
    snprintf(name, sizeof name, "run-%d", (int)getpid());
    tess_status status = tess__local_path(name, l->path);
    if (status == TESS_OK)
        status = tess__kv_server_start(l->path, &port, l->options->ranks, &terms, &l->server);
    return status == TESS_OK ? 0 : tool_report(status);
}

int launch_server_start(launch *l, int32_t *port) {
    *port = l->options->port;
    if (!launch_several_hosts(l))
        return listen_here(l);
    int code = read_secret(l);
    return code || l->options->node > 0 ? code : listen_for_all(l, port);
}

int launch_server_renew(launch *l) {
    launch_recovery *r = &l->recovery;
    const tess__kv_terms terms = { .launcher = 1, .members = r->members, .world = l->options->ranks };
    char path[TESS__LOCAL_PATH + 16];
    int32_t port = 0;
    tess__kv_server *fresh = NULL;
    snprintf(path, sizeof path, "%s-g%d", l->path, (int)r->generation);
    tess_status status = tess__kv_server_start(path, &port, r->n_members, &terms, &fresh);
    if (status != TESS_OK)
        return tool_report(status);
    tess__kv_server **old = &r->old[r->generation % LAUNCH_OLD_SERVERS];
    tess__kv_server_stop(*old);
    *old = l->server;
    l->server = fresh;
    return 0;
}

void launch_server_stop(launch *l) {
    tess__kv_server_stop(l->server);
    for (int i = 0; i < LAUNCH_OLD_SERVERS; i++)
        tess__kv_server_stop(l->recovery.old[i]);
    free(l->recovery.members);
    if (l->secret_fd >= 0)
        close(l->secret_fd);
    explicit_bzero(l->secret, sizeof l->secret);
}

/* ---- what it is told and knows ----------------------------------------------------------------------- */

/* Returns the rank's number over all hosts, which the server uses. */
static int32_t number(const launch *l, int32_t r) {
    return l->options->first_rank + r;
}

void launch_server_ended(launch *l, int32_t r, int orderly, const char *why) {
    if (l->server)
        tess__kv_server_rank_ended(l->server, number(l, r), orderly, why);
}

void launch_server_catch_up(launch *l) {
    tess__kv_server_catch_up(l->server);
}

int launch_server_joined(const launch *l, int32_t r) {
    return tess__kv_server_joined(l->server, number(l, r));
}

int launch_server_silent(const launch *l, int32_t r) {
    int32_t newest = l->recovery.generation;
    if (tess__kv_server_silent(l->server, number(l, r)))
        return 1;
    for (int32_t g = newest; g > l->ranks[r].generation && g > newest - LAUNCH_OLD_SERVERS; g--) {
        tess__kv_server *old = l->recovery.old[g % LAUNCH_OLD_SERVERS];
        if (old && tess__kv_server_silent(old, number(l, r)))
            return 1;
    }
    return 0;
}

int32_t launch_server_culprit(const launch *l) {
    return l->server ? tess__kv_server_culprit(l->server) - l->options->first_rank : -1;
}

int launch_server_last_word(const launch *l, int32_t r, char *out, size_t n) {
    return l->server && tess__kv_server_last_word(l->server, number(l, r), out, n);
}

int32_t launch_server_connected(const launch *l) {
    return tess__kv_server_connected(l->server);
}

int launch_server_ready(const launch *l) {
    return tess__kv_server_ready(l->server);
}

int launch_server_closing(const launch *l) {
    return tess__kv_server_closing(l->server);
}

int launch_server_fits(const launch *l, launch_fits *out) {
    tess__kv_fits said;
    if (!tess__kv_server_fits(l->server, &said))
        return 0;
    *out = (launch_fits){ .n = said.n, .stride = said.stride, .replicas = said.replicas };
    memcpy(out->ranks, said.fits, sizeof out->ranks);
    return 1;
}
