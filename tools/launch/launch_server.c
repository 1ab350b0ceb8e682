/* SPDX-License-Identifier: BSD-3-Clause */
/* The key-value server that this launcher's ranks meet at. On one host it is ours alone; of several, node 0's. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/log.h"
#include "core/control/wire.h"
#include "launch_internal.h"
#include "tools/commands.h"

int launch_several_hosts(const launch *l) {
    return l->options->world > l->options->ranks;
}

static int fail(tess_status status) {
    tess__log(TESS_LOG_ERROR, "%s", tess_last_error());
    return tess_exit_code(status);
}

/* The ranks inherit it as an open file: an environment can be read in /proc, and goes on to whatever they start. */
static int hand_over_secret(launch *l) {
    size_t length = strlen(l->secret);
    l->secret_fd = memfd_create("tessera-secret", MFD_CLOEXEC);
    if (l->secret_fd >= 0 && write(l->secret_fd, l->secret, length) == (ssize_t)length)
        return 0;
    tess__log(TESS_LOG_ERROR, "cannot hold the secret: %s", strerror(errno));
    return TOOL_CONFIG;
}

static int read_secret(launch *l) {
    tess_status status = l->options->follow ? TESS_OK : tess__secret_read(l->secret, sizeof l->secret);
    if (status != TESS_OK)
        return fail(status);
    if (strlen(l->secret) < TESS__SECRET_LEAST) {
        tess__log(TESS_LOG_ERROR, *l->secret
                                      ? "the secret has fewer than 16 characters: openssl rand -hex 32"
                                      : "several hosts need a secret: set TESSERA_SECRET or TESSERA_SECRET_FILE to the "
                                        "same text on all of them (openssl rand -hex 32)");
        return TOOL_CONFIG;
    }
    return hand_over_secret(l);
}

/* On the interface of the address that the others use, which must be this host's. */
static int listen_for_all(launch *l, int32_t *port) {
    const launch_options *o = l->options;
    char address[TESS__WIRE_ADDRESS_MAX];
    *port = o->port;
    if (tess__wire_route(o->host, address, sizeof address) != 0) {
        tess__log(TESS_LOG_ERROR, "--rendezvous: '%.100s' is no host that can be found from here", o->host);
        return TOOL_CONFIG;
    }
    const tess__kv_terms terms = { .secret = l->secret, .launcher = 1 };
    tess_status status = tess__kv_server_start(tess__wire_is_loopback(address) ? "0.0.0.0" : address, port, o->world,
                                               &terms, &l->server);
    return status == TESS_OK ? 0 : fail(status);
}

/* Nobody but this user gets in, so that no secret is needed. */
static int listen_here(launch *l) {
    const tess__kv_terms terms = { .launcher = 1 };
    char name[32];
    int32_t port = 0;
    snprintf(name, sizeof name, "run-%d", (int)getpid());
    tess_status status = tess__local_path(name, l->path);
    if (status == TESS_OK)
        status = tess__kv_server_start(l->path, &port, l->options->ranks, &terms, &l->server);
    return status == TESS_OK ? 0 : fail(status);
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
        return fail(status);
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
