/* SPDX-License-Identifier: BSD-3-Clause */
/* many_ranks N [tcp]: one key-value server, and in another process N ranks that are nothing but connections to it, over
 * a Unix socket or TLS on loopback. Prints the seconds until all are ready, of an exchange of 64 bytes between all, and
 * from the end of one connection without goodbye until the last of the others has heard. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/status.h"
#include "core/control/control.h"
#include "core/control/wire.h"

enum { BYTES = 64 };
#define MINUTE_NS 60000000000ll

typedef struct {
    tess__link link;
    tess__inbox in;
    tess__outbox out;
    int ready, exchanged, lost, named;
} simulated;

static simulated *ranks;
static struct pollfd *fds;
static int n;
static const char *secret = "a secret of many simulated ranks";

static int failed(const char *what) {
    fprintf(stderr, "many_ranks: %s: %s\n", what, tess_last_error());
    return -1;
}

static void hear(simulated *r, const tess__message *in) {
    int victim = -1;
    r->ready |= in->type == TESS__WIRE_READY;
    r->exchanged |= in->type == TESS__WIRE_OK && in->value_bytes == (uint32_t)(n * BYTES);
    if (in->type != TESS__WIRE_LOST)
        return;
    r->lost = 1;
    r->named = sscanf((const char *)in->value, "rank %d was lost", &victim) == 1 && victim == n / 2;
}

static int serve_one(simulated *r) {
    tess__message in;
    int got = tess__inbox_read(&r->in, &r->link), next = 0;
    while (got >= 0 && (next = tess__inbox_next(&r->in, (size_t)n * BYTES + 1024, &in)) > 0) {
        hear(r, &in);
        tess__inbox_drop(&r->in, &in);
    }
    if (next < 0 || tess__outbox_flush(&r->out, &r->link) < 0)
        return -1;
    return got < 0 ? -1 : 0;
}

static int turn(void) {
    for (int i = 0; i < n; i++)
        fds[i] = (struct pollfd){ .fd = ranks[i].link.fd,
                                  .events = tess__link_events(&ranks[i].link, ranks[i].out.first != NULL) };
    if (poll(fds, (nfds_t)n, 1000) < 0)
        return -1;
    for (int i = 0; i < n; i++)
        if (fds[i].revents && serve_one(&ranks[i]) != 0 && !ranks[i].lost)
            return failed("a rank was hung up on");
    return 0;
}

static int all(size_t offset, int but) {
    for (int i = 0; i < n; i++)
        if (i != but && !*(int *)(void *)((char *)&ranks[i] + offset))
            return 0;
    return 1;
}

/* Until all but one have it; the seconds it took, or -1. */
static double await(size_t offset, int but, int64_t begin_ns) {
    while (!all(offset, but))
        if (turn() != 0 || tess__now_ns() - begin_ns > MINUTE_NS)
            return -1;
    return (double)(tess__now_ns() - begin_ns) / 1e9;
}

static int connect_one(simulated *r, int rank, const char *address, int32_t port, tess__link_key *key) {
    char size[16];
    int fd;
    snprintf(size, sizeof size, "%d", n);
    if (tess__wire_connect(address, port, tess__now_ns() + MINUTE_NS, &fd) != 0 ||
        tess__link_open(&r->link, fd, key) != 0)
        return -1;
    tess__outbox_init(&r->out);
    tess__message hello = {
        .type = TESS__WIRE_HELLO, .arg = rank, .key = size, .key_bytes = (uint32_t)strlen(size) + 1
    };
    return tess__outbox_copy(&r->out, &hello);
}

static void send_exchange(int rank) {
    unsigned char mine[BYTES] = { (unsigned char)rank };
    tess__message message = {
        .type = TESS__WIRE_EXCHANGE, .id = 1, .key = "all", .key_bytes = 4, .value = mine, .value_bytes = BYTES
    };
    tess__outbox_copy(&ranks[rank].out, &message);
}

static int simulate(const char *address, int32_t port, tess__link_key *key) {
    int64_t begin_ns = tess__now_ns();
    for (int i = 0; i < n; i++)
        if (connect_one(&ranks[i], i, address, port, key) != 0 || turn() != 0)
            return failed("connecting");
    double ready = await(offsetof(simulated, ready), -1, begin_ns);
    begin_ns = tess__now_ns();
    for (int i = 0; i < n; i++)
        send_exchange(i);
    double exchanged = await(offsetof(simulated, exchanged), -1, begin_ns);
    begin_ns = tess__now_ns();
    shutdown(ranks[n / 2].link.fd, 2);
    ranks[n / 2].lost = 1;
    double lost = await(offsetof(simulated, lost), n / 2, begin_ns);
    if (ready < 0 || exchanged < 0 || lost < 0 || !all(offsetof(simulated, named), n / 2))
        return failed("not all have heard");
    printf("| %d | %s | %.3f | %.3f | %.3f |\n", n, key ? "TLS" : "Unix socket", ready, exchanged, lost);
    return 0;
}

static int serve(int out, const char *address) {
    const tess__kv_terms terms = { .secret = secret };
    tess__kv_server *server;
    int32_t port = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0ul);
    if (tess__kv_server_start(address, &port, n, &terms, &server) != TESS_OK)
        return failed("the server");
    if (write(out, &port, sizeof port) != sizeof port)
        return -1;
    pause();
    return 0;
}

int main(int argc, char **argv) {
    char path[64];
    int pipes[2], tcp = argc > 2 && strcmp(argv[2], "tcp") == 0;
    int32_t port;
    n = argc > 1 ? atoi(argv[1]) : 0;
    ranks = calloc((size_t)n + 1, sizeof *ranks);
    fds = calloc((size_t)n + 1, sizeof *fds);
    if (n < 2 || !ranks || !fds || pipe2(pipes, O_CLOEXEC) != 0)
        return 2;
    for (int i = 0; i < n; i++)
        ranks[i].link.fd = -1;
    snprintf(path, sizeof path, "/tmp/many_ranks-%d.sock", (int)getpid());
    const char *address = tcp ? "127.0.0.1" : path;
    pid_t child = fork();
    if (child == 0)
        _exit(serve(pipes[1], address) ? 3 : 0);
    close(pipes[1]);
    tess__link_key *key = NULL;
    int bad = read(pipes[0], &port, sizeof port) != sizeof port ||
              (tcp && tess__link_key_create(secret, 0, &key) != TESS_OK) || simulate(address, port, key) != 0;
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    unlink(path);
    return bad ? 3 : 0;
}
